/* Memory nodes reached by an RDMA card: what verbs do, and that none takes effect after its session was cut. Needs a
 * device with the addresses 10.9.0.1 to 10.9.0.3: `make test-rdma` runs it on a machine that has one (tests/rdma/vm).
 *
 * usage: test_rdma [PATTERN]    those tests whose name matches */
#include "base/random.h"
#include "daemons.h"
#include "fabric/rdma.h"
#include "pool/handle.h"
#include "sim_rig.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define SIZE      "8M"
#define CUTS      1000 /* FARINDEX_CUTS: fewer, or more */
#define IDLE_S    5
#define COUNTER   (2u << 20) /* offset of a word on node 0 */
#define VICTIM_ID 7

static char uri[256];
static far_fabric *fabric;


static void open_count(unsigned nodes) {
    daemons_start_rdma(nodes, SIZE, "", uri, sizeof(uri));
    if (far_fabric_open(uri, &fabric) != 0)
        fail_msg("%s: %s", uri, far_last_error());
}


static int open_nodes(void **state) {
    (void)state;
    open_count(3);
    return 0;
}


static int open_one(void **state) { /* sessions come and go faster */
    (void)state;
    open_count(1);
    return 0;
}


static int close_nodes(void **state) {
    (void)state;
    fabric->ops->close(fabric);
    daemons_end(uri);
    return 0;
}


static void join(rig *r, unsigned id, unsigned generation) {
    rig_connect(r, fabric);
    assert_int_equal(rig_ask(r, FAR_ASK_CLAIM, id, generation), 0);
}


/* ---- Verbs ---- */

/* All sizes, on all nodes, at places that cut pieces anywhere. */
static void what_is_written_is_read(void **state) {
    (void)state;
    static const uint32_t sizes[] = {8, 16, 64, 120, 128, 136, 1024, 4096, 65528, 65536, 65544, 300000, 1u << 20};
    char *out = malloc(1u << 20), *in = malloc(1u << 20);
    far_random random;
    rig r;
    far_random_seed(&random, 1);
    join(&r, 1, 1);
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (unsigned node = 0; node < 3; node++) {
            far_addr at = far_addr_make(node, (1u << 20) + 8 * (37 * i + node));
            for (uint32_t b = 0; b < sizes[i]; b++)
                out[b] = (char)far_random_next(&random);
            far_verb verbs[] = {rig_write(at, out, sizes[i]), rig_read(at, in, sizes[i])};
            memset(in, 0, sizes[i]);
            assert_int_equal(rig_run(&r, verbs, 2), 0);
            assert_memory_equal(in, out, sizes[i]);
        }
    free(out);
    free(in);
    rig_disconnect(&r);
}


static void atomics_give_what_was_there(void **state) {
    (void)state;
    uint64_t old[4] = {9, 9, 9, 9}, word = 5, now = 0;
    far_addr at = far_addr_make(1, COUNTER);
    rig r;
    join(&r, 1, 2);
    far_verb verbs[] = {rig_write(at, &word, 8),     rig_faa(at, 3, &old[0]),          rig_cas(at, 8, 11, &old[1]),
                        rig_cas(at, 8, 12, &old[2]), rig_faa(at, UINT64_MAX, &old[3]), rig_read(at, &now, 8)};
    verbs[5].flags = FAR_VERB_FENCE; /* a READ is not behind an atomic otherwise */
    assert_int_equal(rig_run(&r, verbs, 6), 0);
    assert_int_equal(old[0], 5);
    assert_int_equal(old[1], 8);
    assert_int_equal(old[2], 11);
    assert_int_equal(old[3], 11);
    assert_int_equal(now, 10);
    rig_disconnect(&r);
}


/* More at once than the queues and the rings take: batches wait their turn, and none is lost. */
static void more_than_there_is_room_for_waits(void **state) {
    (void)state;
    enum { BATCHES = 200, VERBS = 4 };
    static far_verb verbs[BATCHES][VERBS];
    static far_batch batches[BATCHES];
    static uint64_t old[BATCHES];
    char *block = calloc(1, 40000);
    rig r;
    join(&r, 1, 3);
    uint64_t zero = 0;
    assert_int_equal(rig_run1(&r, rig_write(far_addr_make(2, COUNTER), &zero, 8)), 0);
    for (unsigned i = 0; i < BATCHES; i++) {
        verbs[i][0] = rig_write(far_addr_make(i % 3, 4u << 20), block, 40000);
        verbs[i][1] = rig_faa(far_addr_make(2, COUNTER), 1, &old[i]);
        verbs[i][2] = rig_read(far_addr_make((i + 1) % 3, 4u << 20), block, 40000);
        verbs[i][3] = rig_read(far_addr_make(0, 64), block, 8);
        verbs[i][3].flags = i % 7 == 0 ? FAR_VERB_FENCE : 0;
        batches[i] = rig_batch(verbs[i], VERBS);
        rig_post(&r, &batches[i]);
    }
    for (unsigned i = 0; i < BATCHES; i++) {
        assert_int_equal(rig_wait(&r, &batches[i]), 0);
        assert_int_equal(old[i], i); /* atomics of one connection keep their order */
    }
    free(block);
    rig_disconnect(&r);
}


/* ---- Cuts ---- */

static uint64_t read_counter(rig *r) {
    uint64_t word;
    assert_int_equal(rig_run1(r, rig_read(far_addr_make(0, COUNTER), &word, 8)), 0);
    return word;
}


typedef struct victim_state {    /* shared with the victim's process */
    _Atomic unsigned generation; /* it has claimed this one and works */
    _Atomic unsigned allowed;    /* it may go on with this one */
} victim_state;


static victim_state *map_shared(bool fresh) {
    int file = open("/dev/shm/test_rdma", O_RDWR | O_CREAT | (fresh ? O_TRUNC : 0), 0600);
    if (file < 0 || ftruncate(file, sizeof(victim_state)) < 0)
        fail_msg("/dev/shm/test_rdma cannot be made");
    victim_state *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return shared;
}


/* This program in a process of its own, as somebody else. A forked child alone could not use RDMA. */
static pid_t start_again(const char *role) {
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/proc/self/exe", "test_rdma", role, uri, (char *)NULL);
        _exit(127);
    }
    return child;
}


/* Adds to the counter until it is cut, then comes back with the next generation. */
static void be_victim(victim_state *shared) {
    enum { VERBS = 32 };
    far_fabric *mine;
    if (far_fabric_open(uri, &mine) != 0)
        _exit(1);
    for (unsigned generation = 1;; generation++) {
        far_verb verbs[VERBS];
        uint64_t old[VERBS];
        rig r;
        while (atomic_load(&shared->allowed) < generation)
            usleep(200);
        rig_connect(&r, mine);
        if (rig_ask(&r, FAR_ASK_CLAIM, VICTIM_ID, generation) != 0)
            _exit(2);
        atomic_store(&shared->generation, generation);
        do {
            for (unsigned v = 0; v < VERBS; v++)
                verbs[v] = rig_faa(far_addr_make(0, COUNTER), 1, &old[v]);
        } while (rig_run(&r, verbs, VERBS) == 0);
        rig_disconnect(&r);
    }
}


/* The victim has verbs under way when its eviction is answered: what they did by then is all that they ever do. */
static void nothing_takes_effect_after_a_cut(void **state) {
    (void)state;
    rig judge;
    far_random random;
    const char *wish = getenv("FARINDEX_CUTS");
    unsigned cuts = wish ? (unsigned)strtoul(wish, NULL, 10) : CUTS;
    victim_state *shared = map_shared(true);
    far_random_seed(&random, 1);
    pid_t victim = start_again("victim");
    join(&judge, 2, 1);
    for (unsigned round = 1; round <= cuts; round++) {
        atomic_store(&shared->allowed, round);
        while (atomic_load(&shared->generation) < round) {
            assert_int_equal(waitpid(victim, NULL, WNOHANG), 0);
            usleep(200);
        }
        uint64_t before = read_counter(&judge);
        while (read_counter(&judge) == before) /* it is at work */
            continue;
        usleep((unsigned)(far_random_next(&random) % 2000));
        assert_int_equal(rig_ask(&judge, FAR_ASK_EVICT, VICTIM_ID, round), 0);
        uint64_t then = read_counter(&judge);
        for (unsigned look = 0; look < 4; look++) {
            usleep(200);
            assert_int_equal(read_counter(&judge), then);
        }
    }
    kill(victim, SIGKILL);
    waitpid(victim, NULL, 0);
    rig_disconnect(&judge);
}


/* Adds to the counter until it is killed. */
static void be_client(victim_state *shared) {
    far_fabric *mine;
    rig r;
    if (far_fabric_open(uri, &mine) != 0)
        _exit(1);
    rig_connect(&r, mine);
    if (rig_ask(&r, FAR_ASK_CLAIM, 9, 1) != 0)
        _exit(2);
    atomic_store(&shared->generation, 1);
    for (uint64_t old;;)
        rig_run1(&r, rig_faa(far_addr_make(0, COUNTER), 1, &old));
}


/* A process that is killed is dead soon, at all nodes, and writes no more. */
static void a_killed_client_is_found_dead(void **state) {
    (void)state;
    victim_state *shared = map_shared(true);
    pid_t child = start_again("client");
    rig judge;
    join(&judge, 3, 1);
    while (atomic_load(&shared->generation) == 0) {
        assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
        usleep(1000);
    }
    assert_int_equal(rig_ask(&judge, FAR_ASK_DEAD, 9, 1), 0);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    while (rig_ask(&judge, FAR_ASK_DEAD, 9, 1) == 0)
        usleep(1000);
    uint64_t then = read_counter(&judge);
    usleep(100000);
    assert_int_equal(read_counter(&judge), then);
    rig_disconnect(&judge);
}


/* ---- Words ---- */

/* The child would work on the devices of its parent. */
static void a_forked_child_is_refused(void **state) {
    (void)state;
    int status;
    pid_t child = fork();
    if (child == 0) {
        far_fabric *mine;
        _exit(far_fabric_open(uri, &mine) == FAR_ERR_UNSUPPORTED && strstr(far_last_error(), "exec first") ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}


/* What a child has of its parent's connection is the parent's: it ends its copy, and the parent goes on. */
static void a_forked_child_leaves_its_parents_queue_pairs_alone(void **state) {
    (void)state;
    int status;
    rig r;
    join(&r, 5, 1);
    uint64_t before = read_counter(&r);
    pid_t child = fork();
    if (child == 0) {
        uint64_t word;
        int err = rig_run1(&r, rig_read(far_addr_make(0, COUNTER), &word, 8));
        rig_disconnect(&r);
        _exit(err < 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(read_counter(&r), before);
    rig_disconnect(&r);
}


static void carriers_do_not_mix(void **state) {
    (void)state;
    far_fabric *other = NULL;
    char tcp[256];
    snprintf(tcp, sizeof(tcp), "tcp%s", uri + strlen("rdma"));
    assert_int_equal(far_fabric_open(tcp, &other), FAR_ERR_UNSUPPORTED);
    assert_non_null(strstr(far_last_error(), "is served by rdma://, not by tcp://"));
}


static void an_address_without_a_device_is_refused(void **state) {
    (void)state;
    daemon_node node;
    assert_false(daemon_start(&node, "/tmp/rdma-serve.log", "--fabric rdma --size " SIZE " --listen 127.0.0.1:0"));
    waitpid(node.pid, NULL, 0);
    char text[512] = "";
    FILE *log = fopen("/tmp/rdma-serve.log", "r");
    assert_non_null(log);
    assert_non_null(fgets(text, sizeof(text), log));
    fclose(log);
    assert_non_null(strstr(text, "RDMA device"));
}


/* ---- Idle ---- */

static long ticks_of(pid_t pid) {
    char path[64], text[512];
    long user = 0, system = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof(text), file));
    fclose(file);
    assert_int_equal(
        sscanf(strrchr(text, ')'), ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user, &system), 2);
    return user + system;
}


/* A wait that ended by its time has asked to be woken by a completion, which a poll then finds: what wakes is taken back
 * before the next sleep, or that would end at once, again and again. */
static void a_completion_that_a_poll_found_wakes_nobody_later(void **state) {
    (void)state;
    enum { ROUNDS = 20, VERBS = 4, BYTES = 60000, REST_NS = 5000000 };
    char *block = malloc(BYTES);
    rig r;
    unsigned wakes = 0;
    join(&r, 6, 1);
    for (unsigned round = 0; round < ROUNDS; round++) {
        far_verb verbs[VERBS];
        for (unsigned v = 0; v < VERBS; v++)
            verbs[v] = rig_read(far_addr_make(0, 4u << 20), block, BYTES);
        far_batch batch = rig_batch(verbs, VERBS);
        rig_post(&r, &batch);
        fabric->ops->wait(r.conn, far_host_now(fabric->host)); /* looks, asks to be woken, and is at its end */
        while (batch.pending)
            fabric->ops->poll(r.conn);
        assert_int_equal(batch.status, 0);
        for (uint64_t until = far_host_now(fabric->host) + REST_NS; far_host_now(fabric->host) < until; wakes++)
            fabric->ops->wait(r.conn, until);
    }
    assert_in_range(wakes, ROUNDS, 2 * ROUNDS);
    free(block);
    rig_disconnect(&r);
}


/* Has a handle with an index, and a connection that has worked; then nothing is asked of it any more. */
static void be_idler(victim_state *shared) {
    far_pool *pool;
    far_session *session;
    far_index *index;
    rig r;
    if (far_pool_open(uri, NULL, &pool) < 0 || far_session_open(pool, &session) < 0 ||
        far_index_create(session, "i", "dart", NULL, &index) < 0 || far_put(session, index, "key", 3, "value", 5) < 0)
        _exit(1);
    rig_connect(&r, pool->fabric);
    read_counter(&r);
    atomic_store(&shared->generation, 1);
    for (;;)
        r.fabric->ops->wait(r.conn, FAR_TIME_NEVER);
}


static long all_ticks(pid_t idler) {
    return daemons_ticks(uri, ticks_of) + ticks_of(idler);
}


static void an_idle_session_and_an_idle_node_cost_nothing(void **state) {
    (void)state;
    victim_state *shared = map_shared(true);
    pid_t idler = start_again("idler");
    while (atomic_load(&shared->generation) == 0) {
        assert_int_equal(waitpid(idler, NULL, WNOHANG), 0);
        usleep(1000);
    }
    long before = -1, now = all_ticks(idler);
    while (now != before) { /* until the handle sleeps: a while after the last work it looks for the last time */
        before = now;
        usleep(2200000);
        now = all_ticks(idler);
    }
    sleep(IDLE_S);
    assert_int_equal(all_ticks(idler), before);
    kill(idler, SIGKILL);
    waitpid(idler, NULL, 0);
}


int main(int argc, char **argv) {
    if (argc == 3) {
        snprintf(uri, sizeof(uri), "%s", argv[2]);
        if (strcmp(argv[1], "victim") == 0)
            be_victim(map_shared(false));
        if (strcmp(argv[1], "idler") == 0)
            be_idler(map_shared(false));
        be_client(map_shared(false));
    }
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_written_is_read, open_nodes, close_nodes),
        cmocka_unit_test_setup_teardown(atomics_give_what_was_there, open_nodes, close_nodes),
        cmocka_unit_test_setup_teardown(more_than_there_is_room_for_waits, open_nodes, close_nodes),
        cmocka_unit_test_setup_teardown(nothing_takes_effect_after_a_cut, open_one, close_nodes),
        cmocka_unit_test_setup_teardown(a_killed_client_is_found_dead, open_nodes, close_nodes),
        cmocka_unit_test_setup_teardown(a_forked_child_is_refused, open_nodes, close_nodes),
        cmocka_unit_test_setup_teardown(a_forked_child_leaves_its_parents_queue_pairs_alone, open_one, close_nodes),
        cmocka_unit_test_setup_teardown(carriers_do_not_mix, open_nodes, close_nodes),
        cmocka_unit_test_setup_teardown(an_address_without_a_device_is_refused, open_nodes, close_nodes),
        cmocka_unit_test_setup_teardown(a_completion_that_a_poll_found_wakes_nobody_later, open_one, close_nodes),
        cmocka_unit_test_setup_teardown(an_idle_session_and_an_idle_node_cost_nothing, open_nodes, close_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
