/* The fabric shm: making and finding the file, what is refused in words, and the life of sessions over processes. */
#define _GNU_SOURCE
#include "conform.h"
#include "fabric/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[64], uri[96], bare_uri[80];


static int name_pool(void **state) {
    static unsigned serial;
    (void)state;
    snprintf(path, sizeof(path), "/dev/shm/farindex-shm-%d-%u", (int)getpid(), ++serial);
    snprintf(uri, sizeof(uri), "shm:%s?size=8M", path);
    snprintf(bare_uri, sizeof(bare_uri), "shm:%s", path);
    return 0;
}


static int remove_pool(void **state) {
    (void)state;
    unlink(path);
    return 0;
}


static void expect_refusal(const char *what, int code, const char *word) {
    far_pool *pool = NULL;
    assert_code(code, far_pool_open(what, NULL, &pool));
    if (!strstr(far_last_error(), word))
        fail_msg("'%s' was refused with \"%s\", without a word of '%s'", what, far_last_error(), word);
    assert_null(pool);
}


static bool is_there(void) {
    return access(path, F_OK) == 0;
}


/* Puts (or reads) a pair in a new handle. */
static int use_pool(const char *where, const char *name, bool create) {
    far_pool *pool = NULL;
    far_session *session = NULL;
    far_index *index = NULL;
    char value[8];
    size_t length = 0;
    int err = far_pool_open(where, NULL, &pool);
    if (err == 0)
        err = far_session_open(pool, &session);
    if (err == 0)
        err =
            create ? far_index_create(session, name, "toy", "slots=16", &index) : far_index_open(session, name, &index);
    if (err == 0 && create)
        err = far_put(session, index, "k", 1, "v", 1);
    if (err == 0)
        err = far_get(session, index, "k", 1, value, sizeof(value), &length);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    return err == 0 && length != 1 ? -100 : err;
}


/* A process of its own runs it; returns its exit status, or -1. */
static int run_child(int (*run)(void *arg), void *arg) {
    int status;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(run(arg));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}


/* ---- Making and finding ---- */

static int make_in_child(void *arg) {
    return use_pool(uri, arg, true) ? 1 : 0;
}


static void data_outlives_the_process(void **state) {
    (void)state;
    assert_int_equal(run_child(make_in_child, "a"), 0);
    assert_ok(use_pool(uri, "a", false));
    assert_ok(use_pool(bare_uri, "a", false)); /* size may be left out */
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
}


static void an_absent_pool_is_not_made_without_a_size(void **state) {
    (void)state;
    expect_refusal(bare_uri, FAR_ERR_NOT_FOUND, "size=");
    assert_false(is_there());
    expect_refusal("shm:/dev/shm/no-such-folder/pool?size=8M", FAR_ERR_NOT_FOUND, "no-such-folder");
}


enum { STARTERS = 6, ROUNDS = 8, OTHER = 7 };


/* Processes that make index i0, i1 .. in the pool, at the same time, with the two URIs in turn. Each ends with 0, with
 * OTHER when it was told that the pool is there with another size, else with 1. */
static void start_at_once(pid_t pids[STARTERS], const char *const uris[2], int round) {
    _Atomic int *go = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fflush(NULL);
    for (int i = 0; i < STARTERS; i++)
        if ((pids[i] = fork()) == 0) {
            char name[8];
            snprintf(name, sizeof(name), "i%d", i);
            while (!atomic_load_explicit(go, memory_order_relaxed))
                sched_yield();
            int err = use_pool(uris[(i + round) % 2], name, true);
            bool told = err == FAR_ERR_INVALID && strstr(far_last_error(), "the pool is there");
            _exit(err == 0 ? 0 : told ? OTHER : 1);
        }
    atomic_store_explicit(go, 1, memory_order_relaxed);
    munmap((void *)go, 4096);
}


static void several_that_start_at_once_agree(void **state) {
    (void)state;
    const char *uris[2] = {uri, uri};
    for (int round = 0; round < ROUNDS; round++) {
        pid_t pids[STARTERS];
        start_at_once(pids, uris, round);
        for (int i = 0; i < STARTERS; i++) {
            int status;
            assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
            assert_int_equal(status, 0);
        }
        for (int i = 0; i < STARTERS; i++) {
            char name[8];
            snprintf(name, sizeof(name), "i%d", i);
            assert_ok(use_pool(bare_uri, name, false));
        }
        assert_int_equal(unlink(path), 0);
    }
}


/* One of them makes it; those who meant another size are told, and nothing of theirs is left. */
static void of_creators_with_different_sizes_one_wins(void **state) {
    (void)state;
    char sizes[2][128];
    const char *uris[2] = {sizes[0], sizes[1]};
    unsigned won_by[2] = {0};
    for (int i = 0; i < 2; i++)
        snprintf(sizes[i], sizeof(sizes[i]), "shm:%s?size=%dM", path, i ? 16 : 8);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t pids[STARTERS];
        start_at_once(pids, uris, round);
        unsigned done[2] = {0};
        for (int i = 0; i < STARTERS; i++) {
            int status;
            assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
            assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == OTHER));
            done[(i + round) % 2] += WEXITSTATUS(status) == 0;
        }
        assert_true((done[0] == STARTERS / 2 && done[1] == 0) || (done[1] == STARTERS / 2 && done[0] == 0));
        int winner = done[1] > 0;
        won_by[winner]++;
        for (int i = 0; i < STARTERS; i++) {
            char name[8];
            snprintf(name, sizeof(name), "i%d", i);
            assert_code((i + round) % 2 == winner ? 0 : FAR_ERR_NOT_FOUND, use_pool(bare_uri, name, false));
        }
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(won_by[0] + won_by[1], ROUNDS);
}


static void another_shape_than_that_of_the_pool_is_refused(void **state) {
    (void)state;
    char other[128];
    assert_ok(use_pool(uri, "a", true));
    snprintf(other, sizeof(other), "shm:%s?size=16M", path);
    expect_refusal(other, FAR_ERR_INVALID, "8M");
    snprintf(other, sizeof(other), "shm:%s?nodes=2", path);
    expect_refusal(other, FAR_ERR_INVALID, "1 memory nodes");
    far_pool *pool = NULL;
    assert_ok(far_pool_open(uri, NULL, &pool)); /* the same when this process has it open */
    expect_refusal(other, FAR_ERR_INVALID, "1 memory nodes");
    far_pool_close(pool);
    snprintf(other, sizeof(other), "shm:%s?size=8192K&nodes=1", path);
    assert_ok(use_pool(other, "a", false));
}


static void memory_nodes_are_apart(void **state) {
    (void)state;
    char many[128];
    far_fabric *fabric = NULL;
    snprintf(many, sizeof(many), "shm:%s?size=1028K&nodes=5", path);
    assert_ok(far_fabric_open(many, &fabric));
    assert_int_equal(fabric->nodes, 5);
    const shm_world *world = ((shm_fabric *)fabric)->world;
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(fabric->node_bytes[i], 1028 << 10);
        assert_int_equal((uintptr_t)world->memory[i] % SHM_HUGE_PAGE, 0);
        assert_true(i == 0 || world->memory[i] >= world->memory[i - 1] + fabric->node_bytes[i - 1]);
    }
    assert_true(world->memory[4] + fabric->node_bytes[4] <= world->base + world->mapped);
    fabric->ops->close(fabric);
}


/* ---- What is wrong with a file ---- */

static void write_at(off_t offset, const void *bytes, size_t count) {
    int file = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(file >= 0);
    assert_int_equal(pwrite(file, bytes, count, offset), count);
    close(file);
}


static uint64_t word_at(off_t offset) {
    uint64_t word = 0;
    int file = open(path, O_RDONLY);
    assert_true(file >= 0);
    assert_int_equal(pread(file, &word, 8, offset), 8);
    close(file);
    return word;
}


static void a_file_that_is_no_pool_is_left_alone(void **state) {
    (void)state;
    struct stat status;
    write_at(0, "hello", 5);
    expect_refusal(uri, FAR_ERR_CORRUPT, "not a farindex pool");
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_size, 5);
    assert_int_equal(truncate(path, 0), 0);
    expect_refusal(uri, FAR_ERR_CORRUPT, "not a farindex pool");
    assert_int_equal(truncate(path, 32 << 20), 0); /* zeros */
    expect_refusal(uri, FAR_ERR_CORRUPT, "not a farindex pool");
    assert_int_equal(word_at(0), 0);
    expect_refusal("shm:/dev/shm?size=8M", FAR_ERR_INVALID, "directory");
    expect_refusal("shm:/dev/null/x?size=8M", FAR_ERR_NOT_FOUND, "/dev/null/x");
}


static void another_version_is_refused_and_left_alone(void **state) {
    (void)state;
    assert_ok(use_pool(uri, "a", true));
    uint32_t version = SHM_VERSION + 1;
    write_at(offsetof(shm_header, version), &version, sizeof(version));
    expect_refusal(uri, FAR_ERR_CORRUPT, "version 2");
    version = SHM_VERSION;
    write_at(offsetof(shm_header, version), &version, sizeof(version));
    uint64_t magic = word_at(SHM_NODES_AT), other = magic + 1;
    write_at(SHM_NODES_AT, &other, 8); /* of the pool in it */
    expect_refusal(uri, FAR_ERR_CORRUPT, "version");
    assert_int_equal(word_at(SHM_NODES_AT), other);
    write_at(SHM_NODES_AT, &magic, 8);
    assert_ok(use_pool(uri, "a", false));
}


static void a_damaged_header_is_refused(void **state) {
    (void)state;
    assert_ok(use_pool(uri, "a", true));
    for (size_t offset = offsetof(shm_header, nodes); offset < offsetof(shm_header, check); offset++) {
        uint8_t byte = (uint8_t)word_at((off_t)offset), flipped = byte ^ 0x10;
        write_at((off_t)offset, &flipped, 1);
        expect_refusal(bare_uri, FAR_ERR_CORRUPT, "damaged");
        write_at((off_t)offset, &byte, 1);
    }
    assert_ok(use_pool(uri, "a", false));
}


static void a_truncated_file_is_refused(void **state) {
    (void)state;
    struct stat status;
    assert_ok(use_pool(uri, "a", true));
    assert_int_equal(stat(path, &status), 0);
    const off_t sizes[] = {status.st_size - 1, status.st_size / 2, SHM_NODES_AT, 100, 0};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        assert_int_equal(truncate(path, sizes[i]), 0);
        expect_refusal(uri, FAR_ERR_CORRUPT, sizes[i] < SHM_NODES_AT ? "not a farindex pool" : "cut");
    }
}


/* ---- What the system refuses ---- */

static int open_as_nobody(void *arg) {
    far_pool *pool = NULL;
    if (getuid() == 0 && setuid(65534) != 0)
        return 2;
    int err = far_pool_open(arg, NULL, &pool);
    return err == FAR_ERR_UNREACHABLE && strstr(far_last_error(), "denied") ? 0 : 1;
}


static void a_path_without_permission_is_refused(void **state) {
    (void)state;
    char inside[128], folder[96];
    assert_ok(use_pool(uri, "a", true));
    assert_int_equal(chmod(path, 0), 0);
    assert_int_equal(run_child(open_as_nobody, uri), 0);
    assert_int_equal(chmod(path, 0600), 0);
    assert_ok(use_pool(uri, "a", false));
    snprintf(folder, sizeof(folder), "%s-folder", path);
    snprintf(inside, sizeof(inside), "shm:%s/p?size=8M", folder);
    assert_int_equal(mkdir(folder, 0500), 0);
    assert_int_equal(run_child(open_as_nobody, inside), 0);
    assert_int_equal(rmdir(folder), 0); /* which is empty */
}


static int open_with_limit(void *arg) {
    (void)arg;
    far_pool *pool = NULL;
    struct rlimit limit = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    int err = far_pool_open(uri, NULL, &pool);
    return err == FAR_ERR_NO_MEMORY && strstr(far_last_error(), "ulimit") ? 0 : 1;
}


static void a_pool_that_does_not_fit_is_refused_and_leaves_nothing(void **state) {
    (void)state;
    char large[128];
    snprintf(large, sizeof(large), "shm:%s?size=1024G&nodes=64", path);
    expect_refusal(large, FAR_ERR_NO_MEMORY, "left");
    assert_false(is_there());
    assert_int_equal(run_child(open_with_limit, NULL), 0);
    assert_false(is_there());
    assert_ok(use_pool(uri, "a", true)); /* one that fits does */
}


static void all_room_is_taken_at_the_start(void **state) {
    (void)state;
    struct stat status;
    assert_ok(use_pool(uri, "a", true));
    assert_int_equal(stat(path, &status), 0);
    assert_true((off_t)status.st_blocks * 512 >= status.st_size);
}


/* ---- Life and death ---- */

/* A process that claims session `id`, and does something then; it is waited for until it says that it is ready. */
typedef struct partner {
    pid_t pid;
    int ready, go; /* pipes */
} partner;

typedef enum { PLAIN, CLOSES_ANOTHER, FORKS, FORKS_AND_EXECS, LOSES_ITSELF } behaviour_of_partner;

#define PARTNER_ID         5
#define PARTNER_GENERATION 70


static void join_fabric(far_fabric **fabric, far_conn **conn) {
    static far_parker parker;
    if (far_fabric_open(uri, fabric) < 0 || (*fabric)->ops->connect(*fabric, &parker, conn) < 0)
        _exit(9);
}


static void sleep_until_killed(void) {
    for (;;)
        pause();
}


static void be_partner(behaviour_of_partner what, int ready, int go) {
    far_fabric *fabric;
    far_conn *conn;
    char byte = 1;
    pid_t child = 0;
    join_fabric(&fabric, &conn);
    if (fabric->ops->claim(conn, PARTNER_ID, PARTNER_GENERATION) < 0)
        _exit(8);
    if (what == CLOSES_ANOTHER)
        close(open(path, O_RDWR));
    if (what == LOSES_ITSELF)
        fabric->ops->fence_self(conn);
    if ((what == FORKS || what == FORKS_AND_EXECS) && (child = fork()) == 0) {
        alarm(30); /* whatever happens to the test */
        if (what == FORKS_AND_EXECS)
            execlp("sleep", "sleep", "1000", (char *)NULL);
        sleep_until_killed();
    }
    if (write(ready, &child, sizeof(child)) != sizeof(child) || read(go, &byte, 1) < 0)
        _exit(7);
    sleep_until_killed();
}


static pid_t start_partner(partner *p, behaviour_of_partner what) {
    int ready[2], go[2];
    pid_t child = -1;
    assert_int_equal(pipe2(ready, O_CLOEXEC) + pipe2(go, O_CLOEXEC), 0);
    fflush(NULL);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (p->pid == 0)
        be_partner(what, ready[1], go[0]);
    close(ready[1]);
    close(go[0]);
    p->ready = ready[0];
    p->go = go[1];
    assert_int_equal(read(p->ready, &child, sizeof(child)), sizeof(child));
    return child;
}


static void kill_partner(partner *p) {
    int status;
    assert_int_equal(kill(p->pid, SIGKILL), 0);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    close(p->ready);
    close(p->go);
}


static void dies_when_killed(behaviour_of_partner what) {
    partner p;
    far_fabric *fabric;
    far_conn *conn;
    pid_t child = start_partner(&p, what);
    join_fabric(&fabric, &conn);
    assert_int_equal(fabric->ops->is_dead(conn, PARTNER_ID, PARTNER_GENERATION), 0);
    assert_int_equal(fabric->ops->is_dead(conn, PARTNER_ID, PARTNER_GENERATION + 1), 1); /* that is nobody */
    assert_int_equal(fabric->ops->is_dead(conn, PARTNER_ID + 1, PARTNER_GENERATION), 1);
    assert_int_equal(fabric->ops->process_of(conn, PARTNER_ID, PARTNER_GENERATION), p.pid);
    assert_code(FAR_ERR_BUSY, fabric->ops->claim(conn, PARTNER_ID, PARTNER_GENERATION + 1));
    assert_int_equal(fabric->ops->is_dead(conn, PARTNER_ID, PARTNER_GENERATION), 0);
    kill_partner(&p);
    while (child > 0 && !fabric->ops->is_dead(conn, PARTNER_ID, PARTNER_GENERATION))
        usleep(1000); /* a child that was never on yet holds the lock until it is */
    assert_int_equal(fabric->ops->is_dead(conn, PARTNER_ID, PARTNER_GENERATION), 1);
    assert_ok(fabric->ops->claim(conn, PARTNER_ID, PARTNER_GENERATION + 1));
    assert_int_equal(fabric->ops->is_dead(conn, PARTNER_ID, PARTNER_GENERATION), 1);
    assert_int_equal(fabric->ops->is_dead(conn, PARTNER_ID, PARTNER_GENERATION + 1), 0);
    if (child > 0)
        kill(child, SIGKILL);
    fabric->ops->disconnect(conn);
    fabric->ops->close(fabric);
}


static void a_session_dies_with_its_process(void **state) {
    (void)state;
    dies_when_killed(PLAIN);
}


static void closing_the_file_elsewhere_does_not_kill(void **state) {
    (void)state;
    dies_when_killed(CLOSES_ANOTHER);
}


static void a_forked_child_does_not_keep_a_session_alive(void **state) {
    (void)state;
    dies_when_killed(FORKS);
}


static void a_program_that_was_started_does_not_keep_a_session_alive(void **state) {
    (void)state;
    dies_when_killed(FORKS_AND_EXECS);
}


static void a_stopped_process_is_not_dead(void **state) {
    (void)state;
    partner p;
    far_fabric *fabric;
    far_conn *conn;
    int status;
    start_partner(&p, PLAIN);
    join_fabric(&fabric, &conn);
    assert_int_equal(kill(p.pid, SIGSTOP), 0);
    assert_int_equal(waitpid(p.pid, &status, WUNTRACED), p.pid);
    assert_int_equal(fabric->ops->is_dead(conn, PARTNER_ID, PARTNER_GENERATION), 0);
    assert_ok(fabric->ops->evict(conn, PARTNER_ID, PARTNER_GENERATION));
    assert_int_equal(fabric->ops->is_dead(conn, PARTNER_ID, PARTNER_GENERATION), 1);
    assert_int_equal(waitpid(p.pid, &status, 0), p.pid);
    assert_true(WIFSIGNALED(status));
    fabric->ops->disconnect(conn);
    fabric->ops->close(fabric);
}


static void a_lost_session_is_dead_though_its_process_lives(void **state) {
    (void)state;
    partner p;
    far_fabric *fabric;
    far_conn *conn;
    start_partner(&p, LOSES_ITSELF);
    join_fabric(&fabric, &conn);
    assert_int_equal(fabric->ops->is_dead(conn, PARTNER_ID, PARTNER_GENERATION), 1);
    kill_partner(&p);
    fabric->ops->disconnect(conn);
    fabric->ops->close(fabric);
}


/* A process is not killed in place of one that had its number before. */
static void evict_never_hits_another_process(void **state) {
    (void)state;
    partner p;
    far_fabric *fabric;
    far_conn *conn;
    int status;
    start_partner(&p, PLAIN);
    join_fabric(&fabric, &conn);
    shm_client *client = &((shm_fabric *)fabric)->world->clients[PARTNER_ID];
    atomic_fetch_add_explicit(&client->started, 1, memory_order_relaxed);
    assert_code(FAR_ERR_UNREACHABLE, fabric->ops->evict(conn, PARTNER_ID, PARTNER_GENERATION));
    assert_int_equal(waitpid(p.pid, &status, WNOHANG), 0); /* it lives */
    kill_partner(&p);
    assert_ok(fabric->ops->evict(conn, PARTNER_ID, PARTNER_GENERATION)); /* of the dead nothing is left to do */
    fabric->ops->disconnect(conn);
    fabric->ops->close(fabric);
}


static int post_read(far_conn *conn) {
    uint64_t word = 0;
    far_verb verb = {.kind = FAR_READ, .length = 8, .addr = 64, .local = &word};
    far_batch batch = {.verbs = &verb, .count = 1};
    conn->fabric->ops->post(conn, &batch);
    bool in_place = atomic_load_explicit(&conn->in_place, memory_order_acquire) != NULL;
    return in_place == (batch.status == 0) ? batch.status : FAR_ERR_CORRUPT; /* who may not post runs none in place */
}


static void sessions_of_one_process_are_apart(void **state) {
    (void)state;
    far_fabric *first, *second, *third;
    far_conn *a, *b, *c;
    join_fabric(&first, &a);
    join_fabric(&second, &b);
    join_fabric(&third, &c);
    assert_ok(first->ops->claim(a, 1, 1));
    assert_code(FAR_ERR_BUSY, second->ops->claim(b, 1, 2));
    assert_ok(second->ops->claim(b, 2, 1));
    assert_int_equal(second->ops->is_dead(c, 1, 1), 0);
    assert_int_equal(second->ops->is_dead(b, 1, 1), 0);
    first->ops->fence_self(a);
    assert_int_equal(post_read(a), FAR_ERR_FENCED);
    assert_int_equal(post_read(b), 0);
    assert_int_equal(second->ops->is_dead(b, 1, 1), 1);
    assert_int_equal(second->ops->is_dead(c, 2, 1), 0);
    assert_ok(second->ops->claim(b, 0, 0)); /* lets go of it */
    assert_int_equal(second->ops->is_dead(c, 2, 1), 1);
    assert_ok(second->ops->claim(b, 1, 2));
    second->ops->disconnect(b);
    assert_int_equal(second->ops->is_dead(c, 1, 2), 1);
    first->ops->disconnect(a);
    first->ops->close(first);
    second->ops->close(second);
    third->ops->disconnect(c);
    third->ops->close(third);
}


static int post_in_child(void *conn) {
    return post_read(conn) == FAR_ERR_FENCED ? 0 : 1;
}


static void inherited_sessions_are_fenced_in_a_forked_child(void **state) {
    (void)state;
    far_fabric *fabric;
    far_conn *conn;
    join_fabric(&fabric, &conn);
    assert_ok(fabric->ops->claim(conn, 1, 1));
    assert_int_equal(run_child(post_in_child, conn), 0);
    assert_int_equal(run_child(make_in_child, "of_child"), 0); /* it can open its own */
    assert_int_equal(post_read(conn), 0);
    assert_int_equal(fabric->ops->is_dead(conn, 1, 1), 0); /* the child's end took nothing from us */
    fabric->ops->disconnect(conn);
    fabric->ops->close(fabric);
}


#define TEST(function) cmocka_unit_test_setup_teardown(function, name_pool, remove_pool)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(data_outlives_the_process),
        TEST(an_absent_pool_is_not_made_without_a_size),
        TEST(several_that_start_at_once_agree),
        TEST(of_creators_with_different_sizes_one_wins),
        TEST(another_shape_than_that_of_the_pool_is_refused),
        TEST(memory_nodes_are_apart),
        TEST(a_file_that_is_no_pool_is_left_alone),
        TEST(another_version_is_refused_and_left_alone),
        TEST(a_damaged_header_is_refused),
        TEST(a_truncated_file_is_refused),
        TEST(a_path_without_permission_is_refused),
        TEST(a_pool_that_does_not_fit_is_refused_and_leaves_nothing),
        TEST(all_room_is_taken_at_the_start),
        TEST(a_session_dies_with_its_process),
        TEST(closing_the_file_elsewhere_does_not_kill),
        TEST(a_forked_child_does_not_keep_a_session_alive),
        TEST(a_program_that_was_started_does_not_keep_a_session_alive),
        TEST(a_stopped_process_is_not_dead),
        TEST(a_lost_session_is_dead_though_its_process_lives),
        TEST(evict_never_hits_another_process),
        TEST(sessions_of_one_process_are_apart),
        TEST(inherited_sessions_are_fenced_in_a_forked_child),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
