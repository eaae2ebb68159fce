/* Tests with memory nodes that are reached through a real RDMA device. They prove the results of verbs, and that no
 * verb takes effect after its session was fenced. The tests need a device with the addresses 10.9.0.1 to 10.9.0.3;
 * `make test-rdma` runs them on a virtual machine that has such a device (tests/fabric/rdma/vm).
 *
 * usage: test_rdma [PATTERN]    runs the tests with matching names */
#include "base/random.h"
#include "daemons.h"
#include "fabric/rdma/rdma.h"
#include "pool/handle.h"
#include "sim_rig.h"
#include "test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE      "8M"
#define CUTS      1000 /* default number of rounds; the environment variable FARINDEX_CUTS gives another number */
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


TEST_FIXTURE(open_nodes) {
    open_count(3);
    return 0;
}


TEST_FIXTURE(open_one) { /* One node is enough here, and sessions connect to one node faster. */
    open_count(1);
    return 0;
}


TEST_FIXTURE(close_nodes) {
    fabric->ops->close(fabric);
    daemons_end(uri);
    return 0;
}


static void connect_and_claim(rig *r, unsigned id, unsigned generation) {
    rig_connect(r, fabric);
    assert_int_equal(rig_ask(r, FAR_CONTROL_CLAIM, id, generation), 0);
}


/* ---- Verbs ---- */

/* WRITEs and READs of many sizes on all nodes, at offsets that split them into pieces at different places, transfer the
 * right data. */
TEST_WITH(written_data_is_read, open_nodes, close_nodes) {
    static const uint32_t sizes[] = {8, 16, 64, 120, 128, 136, 1024, 4096, 65528, 65536, 65544, 300000, 1u << 20};
    char *out = malloc(1u << 20), *in = malloc(1u << 20);
    far_random random;
    rig r;
    far_random_seed(&random, 1);
    connect_and_claim(&r, 1, 1);
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


/* Atomics return the old word, and a failed CAS changes nothing. */
TEST_WITH(atomics_return_the_old_word, open_nodes, close_nodes) {
    uint64_t old[4] = {9, 9, 9, 9}, word = 5, now = 0;
    far_addr at = far_addr_make(1, COUNTER);
    rig r;
    connect_and_claim(&r, 1, 2);
    far_verb verbs[] = {rig_write(at, &word, 8),     rig_faa(at, 3, &old[0]),          rig_cas(at, 8, 11, &old[1]),
                        rig_cas(at, 8, 12, &old[2]), rig_faa(at, UINT64_MAX, &old[3]), rig_read(at, &now, 8)};
    verbs[5].flags = FAR_VERB_FENCE; /* Without this flag, the READ is not ordered after the earlier atomic. */
    assert_int_equal(rig_run(&r, verbs, 6), 0);
    assert_int_equal(old[0], 5);
    assert_int_equal(old[1], 8);
    assert_int_equal(old[2], 11);
    assert_int_equal(old[3], 11);
    assert_int_equal(now, 10);
    rig_disconnect(&r);
}


/* More batches are posted than the queues and rings have room for. Batches are stalled, none is lost, and the atomics
 * keep their order. */
TEST_WITH(batches_without_room_wait, open_nodes, close_nodes) {
    enum { BATCHES = 200, VERBS = 4 };
    static far_verb verbs[BATCHES][VERBS];
    static far_batch batches[BATCHES];
    static uint64_t old[BATCHES];
    char *block = calloc(1, 40000);
    rig r;
    connect_and_claim(&r, 1, 3);
    uint64_t zero = 0;
    assert_int_equal(rig_run_verb(&r, rig_write(far_addr_make(2, COUNTER), &zero, 8)), 0);
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


/* ---- Fencing ---- */

static uint64_t read_counter(rig *r) {
    uint64_t word;
    assert_int_equal(rig_run_verb(r, rig_read(far_addr_make(0, COUNTER), &word, 8)), 0);
    return word;
}


/* memory shared with the process of the victim, which is the client that will be fenced */
typedef struct victim_state {
    _Atomic unsigned generation; /* the generation that the victim has claimed */
    _Atomic unsigned allowed;    /* the generation with which the victim may continue */
} victim_state;


static victim_state *map_shared(bool truncate) {
    int file = open("/dev/shm/test_rdma", O_RDWR | O_CREAT | (truncate ? O_TRUNC : 0), 0600);
    if (file < 0 || ftruncate(file, sizeof(victim_state)) < 0)
        fail_msg("/dev/shm/test_rdma cannot be created");
    victim_state *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return shared;
}


/* Starts this program again in another role. A forked child could use RDMA only after exec. */
static pid_t start_again(const char *role) {
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/proc/self/exe", "test_rdma", role, uri, (char *)NULL);
        _exit(127);
    }
    return child;
}


/* Runs in the victim's process: adds to the word COUNTER by FAA until the session is fenced, and then claims the id
 * with the next generation. */
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
        if (rig_ask(&r, FAR_CONTROL_CLAIM, VICTIM_ID, generation) != 0)
            _exit(2);
        atomic_store(&shared->generation, generation);
        do {
            for (unsigned v = 0; v < VERBS; v++)
                verbs[v] = rig_faa(far_addr_make(0, COUNTER), 1, &old[v]);
        } while (rig_run(&r, verbs, VERBS) == 0);
        rig_disconnect(&r);
    }
}


/* Client A has FAAs on the word COUNTER under way when client B evicts A. After B has got the answer, the word does not
 * change any more, although A continues to post. Fails if net_queue_stop does not destroy the queue pair before the
 * request is answered. */
TEST_WITH(nothing_takes_effect_after_fencing, open_one, close_nodes) {
    rig judge;
    far_random random;
    const char *wish = getenv("FARINDEX_CUTS");
    unsigned cuts = wish ? (unsigned)strtoul(wish, NULL, 10) : CUTS;
    victim_state *shared = map_shared(true);
    far_random_seed(&random, 1);
    pid_t victim = start_again("victim");
    connect_and_claim(&judge, 2, 1);
    for (unsigned round = 1; round <= cuts; round++) {
        atomic_store(&shared->allowed, round);
        while (atomic_load(&shared->generation) < round) {
            assert_int_equal(waitpid(victim, NULL, WNOHANG), 0);
            usleep(200);
        }
        uint64_t before = read_counter(&judge);
        while (read_counter(&judge) == before) /* The loop waits until the victim has begun to add. */
            continue;
        usleep((unsigned)(far_random_next(&random) % 2000));
        assert_int_equal(rig_ask(&judge, FAR_CONTROL_EVICT, VICTIM_ID, round), 0);
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


/* Runs in a client process: adds to the word COUNTER by FAA until the process is killed. */
static void be_client(victim_state *shared) {
    far_fabric *mine;
    rig r;
    if (far_fabric_open(uri, &mine) != 0)
        _exit(1);
    rig_connect(&r, mine);
    if (rig_ask(&r, FAR_CONTROL_CLAIM, 9, 1) != 0)
        _exit(2);
    atomic_store(&shared->generation, 1);
    for (uint64_t old;;)
        rig_run_verb(&r, rig_faa(far_addr_make(0, COUNTER), 1, &old));
}


/* A client process adds to the word COUNTER on node 0 and is killed. Another session soon gets the answer that the
 * client has failed at all nodes. After this answer the word COUNTER does not change any more. */
TEST_WITH(a_killed_client_is_found_failed, open_nodes, close_nodes) {
    victim_state *shared = map_shared(true);
    pid_t child = start_again("client");
    rig judge;
    connect_and_claim(&judge, 3, 1);
    while (atomic_load(&shared->generation) == 0) {
        assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
        usleep(1000);
    }
    assert_int_equal(rig_ask(&judge, FAR_CONTROL_HAS_FAILED, 9, 1), 0);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    while (rig_ask(&judge, FAR_CONTROL_HAS_FAILED, 9, 1) == 0)
        usleep(1000);
    uint64_t then = read_counter(&judge);
    usleep(100000);
    assert_int_equal(read_counter(&judge), then);
    rig_disconnect(&judge);
}


/* ---- Forks and addresses ---- */

/* A forked child cannot open an RDMA fabric, because it would use the devices of its parent. */
TEST_WITH(a_forked_child_is_refused, open_nodes, close_nodes) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        far_fabric *mine;
        _exit(far_fabric_open(uri, &mine) == FAR_ERR_UNSUPPORTED && strstr(far_last_error(), "must call exec before")
                  ? 0
                  : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}


/* A forked child closes its copy of a connection. The connection of the parent continues to work. Fails without the
 * checks of closed_in_child in queue_pair.c. */
TEST_WITH(a_forked_child_leaves_its_parents_queue_pairs_alone, open_one, close_nodes) {
    int status;
    rig r;
    connect_and_claim(&r, 5, 1);
    uint64_t before = read_counter(&r);
    pid_t child = fork();
    if (child == 0) {
        uint64_t word;
        int err = rig_run_verb(&r, rig_read(far_addr_make(0, COUNTER), &word, 8));
        rig_disconnect(&r);
        _exit(err < 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(read_counter(&r), before);
    rig_disconnect(&r);
}


/* Nodes that are served by rdma:// are refused by tcp://. */
TEST_WITH(transports_do_not_mix, open_nodes, close_nodes) {
    far_fabric *other = NULL;
    char tcp[256];
    snprintf(tcp, sizeof(tcp), "tcp%s", uri + strlen("rdma"));
    assert_int_equal(far_fabric_open(tcp, &other), FAR_ERR_UNSUPPORTED);
    assert_non_null(strstr(far_last_error(), "is served by rdma://, not by tcp://"));
}


/* A daemon with --fabric rdma does not start on an address without an RDMA device, and prints the reason. */
TEST_WITH(an_address_without_a_device_is_refused, open_nodes, close_nodes) {
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


/* ---- Idle sessions and nodes ---- */

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


/* A wait requests an event for the next completion and ends by its time; a poll then handles the completion. The event
 * must be consumed before the next sleep. Otherwise that sleep ends at once, and all later sleeps do, too. Fails
 * without the consume_completion_events in rdma_wait. */
TEST_WITH(a_handled_completion_ends_no_later_sleep, open_one, close_nodes) {
    enum { ROUNDS = 20, VERBS = 4, BYTES = 60000, REST_NS = 5000000 };
    char *block = malloc(BYTES);
    rig r;
    unsigned wakes = 0;
    connect_and_claim(&r, 6, 1);
    for (unsigned round = 0; round < ROUNDS; round++) {
        far_verb verbs[VERBS];
        for (unsigned v = 0; v < VERBS; v++)
            verbs[v] = rig_read(far_addr_make(0, 4u << 20), block, BYTES);
        far_batch batch = rig_batch(verbs, VERBS);
        rig_post(&r, &batch);
        /* The wait polls, requests a completion event, and ends immediately, because its time is now. */
        fabric->ops->wait(r.conn, far_host_now(fabric->host));
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


/* Opens a pool with an index and a connection, works a little, and is idle then. */
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


/* An idle session, an idle handle and idle daemons use no processor time for five seconds. */
TEST_WITH(an_idle_session_and_an_idle_node_cost_nothing, open_nodes, close_nodes) {
    victim_state *shared = map_shared(true);
    pid_t idler = start_again("idler");
    while (atomic_load(&shared->generation) == 0) {
        assert_int_equal(waitpid(idler, NULL, WNOHANG), 0);
        usleep(1000);
    }
    long before = -1, now = all_ticks(idler);
    while (now != before) { /* waits until the handle is idle; it makes its last check a while after the last work */
        before = now;
        usleep(2200000);
        now = all_ticks(idler);
    }
    sleep(IDLE_S);
    assert_int_equal(all_ticks(idler), before);
    kill(idler, SIGKILL);
    waitpid(idler, NULL, 0);
}


TEST_ARGUMENTS(argc, argv) {
    if (argc == 3) {
        snprintf(uri, sizeof(uri), "%s", argv[2]);
        if (strcmp(argv[1], "victim") == 0)
            be_victim(map_shared(false));
        if (strcmp(argv[1], "idler") == 0)
            be_idler(map_shared(false));
        be_client(map_shared(false));
    }
    if (argc == 2)
        test_set_pattern(argv[1]);
    return TEST_CONTINUE;
}
