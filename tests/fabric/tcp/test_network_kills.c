/* Failures on the network: clients and daemons are killed, stopped, evicted, or forked. A failed session has no effect
 * any more; a session that is alive is not declared failed; the data of a node with a memory file survives a kill of
 * its daemon. The environment variables KILLS and DAEMON_KILLS give the numbers of kills (default: a few), KIND the
 * kind of index. */
#define _GNU_SOURCE
#include "client/end_client.h"
#include "daemons.h"
#include "guest.h"
#include "test.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE "16M"
#define KEYS 64

typedef struct shared { /* memory that is shared with the child processes */
    _Atomic uint64_t started, acknowledged[KEYS], stopped;
    _Atomic int result;
} shared;

typedef struct cluster {
    daemon_node nodes[3];
    char paths[3][64], uri[256];
    unsigned count;
} cluster;

static shared *ours;
static int ours_fd;               /* descriptor of the shared memory, for processes that are started by exec */
static const char *kind = "dart"; /* kind of index */


static unsigned number_of_kills(const char *variable, unsigned otherwise) {
    const char *text = getenv(variable);
    return text ? (unsigned)atoi(text) : otherwise;
}


static void start_cluster(cluster *c, unsigned count, bool files, const char *options) {
    memset(c, 0, sizeof(*c));
    c->count = count;
    size_t used = (size_t)snprintf(c->uri, sizeof(c->uri), "tcp://");
    for (unsigned i = 0; i < count; i++) {
        snprintf(c->paths[i], sizeof(c->paths[i]), "/dev/shm/farindex-kills-%d-%u", (int)getpid(), i);
        unlink(c->paths[i]);
        assert_true(daemon_start(&c->nodes[i], NULL, "--size " SIZE " --memory %s", files ? c->paths[i] : "anonymous"));
        used += (size_t)snprintf(c->uri + used, sizeof(c->uri) - used, "%s%s", i ? "," : "", c->nodes[i].address);
    }
    snprintf(c->uri + used, sizeof(c->uri) - used, "%s", options);
    memset(ours, 0, sizeof(*ours));
}


static void stop_cluster(cluster *c) {
    for (unsigned i = 0; i < c->count; i++) {
        assert_int_equal(daemon_stop(&c->nodes[i]), 0);
        unlink(c->paths[i]);
    }
}


/* Puts rising numbers, one key after the other, and records which puts have begun and which were acknowledged. Returns
 * the error of the first put that failed. */
static int put_until_error(guest *c) {
    for (uint64_t n = 1;; n++) {
        uint64_t key = n % KEYS;
        atomic_store(&ours->started, n);
        int err = far_put(c->session, c->index, &key, sizeof(key), &n, sizeof(n));
        if (err < 0)
            return err;
        atomic_store(&ours->acknowledged[key], n);
    }
}


static int run_writer(const char *uri) {
    guest c;
    int err = guest_enter(&c, uri, NULL);
    if (err == 0)
        err = put_until_error(&c);
    atomic_store(&ours->result, err);
    return 0;
}


/* Starts this program again as a writer. A forked copy would not do, because the threads of this process may hold locks
 * at the fork (including locks of the sanitizer's allocator). In the copy these locks would never be released. */
static pid_t start_writer(const char *uri) {
    char memory[16];
    snprintf(memory, sizeof(memory), "%d", ours_fd);
    atomic_store(&ours->started, 0);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "test_network_kills", "--writer", uri, memory, (char *)NULL);
        _exit(127);
    }
    assert_true(child > 0);
    while (atomic_load(&ours->started) < 200)
        usleep(200);
    return child;
}


/* Asserts that each key has the last acknowledged value, or a value that was put after it. */
static void assert_all_there(guest *c, uint64_t before) {
    for (uint64_t key = 0; key < KEYS; key++) {
        uint64_t got = 0, least = atomic_load(&ours->acknowledged[key]);
        int err = far_get(c->session, c->index, &key, sizeof(key), &got, sizeof(got), NULL);
        if (least == 0 && before == 0)
            continue;
        assert_ok(err);
        if (least && (got < least || got > least + KEYS || got % KEYS != key))
            fail_msg("key %llu has %llu, %llu was acknowledged", (unsigned long long)key, (unsigned long long)got,
                     (unsigned long long)least);
    }
}


/* ---- Clients ---- */

/* A writer is killed at random moments. Its sessions are found failed, and the survivor can use all keys that the
 * writer may have locked. */
TEST(killed_clients_are_found_failed) {
    cluster k;
    guest c;
    double worst = 0;
    start_cluster(&k, 2, false, "");
    assert_ok(guest_enter(&c, k.uri, kind));
    for (unsigned i = 0; i < number_of_kills("KILLS", 5); i++) {
        pid_t child = start_writer(k.uri);
        usleep(1000 * (i * 7 % 13));
        kill(child, SIGKILL);
        double begun = daemon_seconds();
        while (guest_count_live_sessions(&c) > 2)
            continue;
        worst = daemon_seconds() - begun > worst ? daemon_seconds() - begun : worst;
        waitpid(child, NULL, 0);
        for (uint64_t key = 0; key < KEYS; key++) /* The loop also writes the keys that the writer had locked. */
            assert_ok(far_put(c.session, c.index, &key, sizeof(key), &key, sizeof(key)));
        assert_index_is_sound(c.session, c.index);
    }
    print_message("found failed after at most %.1f ms\n", worst * 1e3);
    assert_pool_is_sound(c.session);
    guest_leave(&c);
    stop_cluster(&k);
}


/* A client is killed while the other client is idle and makes no calls. Node 0 notifies the survivor, which wakes up,
 * marks the failed sessions and runs a collection. Afterwards no memory is leaked. */
TEST(an_idle_survivor_cleans_up) {
    cluster k;
    guest c;
    start_cluster(&k, 1, false, "");
    assert_ok(guest_enter(&c, k.uri, kind));
    pid_t child = start_writer(k.uri);
    kill(child, SIGSTOP);
    uint64_t before = 0, now = 1;
    while (now != before) { /* This loop ends when the survivor is idle. */
        before = now;
        usleep(500000);
        now = daemon_read_status(k.nodes[0].address).batches;
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    /* The survivor needs at least 10 batches to query the session, mark it and walk the index. */
    while (daemon_read_status(k.nodes[0].address).batches < before + 10)
        usleep(20000);
    assert_pool_is_sound(c.session);
    guest_leave(&c);
    stop_cluster(&k);
}


/* The sessions of a stopped process are alive until they are evicted. When the process continues, it gets an error, and
 * none of its puts takes effect. */
TEST(a_stopped_client_is_alive_until_it_is_evicted) {
    cluster k;
    guest c;
    far_client_info killed;
    start_cluster(&k, 2, false, "");
    assert_ok(guest_enter(&c, k.uri, kind));
    pid_t child = start_writer(k.uri);
    kill(child, SIGSTOP);
    usleep(300000);
    assert_int_equal(guest_count_live_sessions(&c), 4);
    /* the session of the caller cannot be evicted */
    assert_int_equal(far_pool_evict(c.session, 1, 0, false, &killed), FAR_ERR_INVALID);
    assert_int_equal(far_pool_evict(c.session, 9, 0, false, &killed), FAR_ERR_NOT_FOUND);
    assert_ok(far_pool_evict(c.session, 3, 0, false, &killed));
    assert_int_equal(killed.id, 3);
    assert_int_equal(guest_count_live_sessions(&c), 2);
    uint64_t values[KEYS];
    for (uint64_t key = 0; key < KEYS; key++) {
        values[key] = 1000000 + key;
        assert_ok(far_put(c.session, c.index, &key, sizeof(key), &values[key], sizeof(values[key])));
    }
    kill(child, SIGCONT);
    waitpid(child, NULL, 0);
    int result = atomic_load(&ours->result);
    assert_true(result == FAR_ERR_FENCED || result == FAR_ERR_UNREACHABLE);
    for (uint64_t key = 0; key < KEYS; key++)
        assert_value(c.session, c.index, &key, sizeof(key), &values[key], sizeof(values[key]));
    assert_pool_is_sound(c.session);
    guest_leave(&c);
    stop_cluster(&k);
}


/* A client process forks, and is killed. The child's copies of the sockets neither keep the parent's sessions alive
 * after the kill, nor do they end the sessions before. Calls in the child are refused. */
TEST(a_forked_child_has_no_session) {
    cluster k;
    guest c;
    int hold[2];
    start_cluster(&k, 2, false, "");
    /* This process opens the pool as a guest, creates the index, and closes the pool again, because it must have no
     * housekeeping thread when it forks. */
    assert_ok(guest_enter(&c, k.uri, kind));
    guest_leave(&c);
    assert_int_equal(pipe(hold), 0);
    pid_t parent = fork();
    if (parent == 0) {
        guest own;
        int err = guest_enter(&own, k.uri, NULL);
        if (err == 0 && fork() == 0) { /* The child of the client lives on and keeps its copies of the descriptors. */
            char byte;
            uint64_t key = 1;
            close(hold[1]);
            int refused = far_put(own.session, own.index, &key, sizeof(key), &key, sizeof(key));
            atomic_store(&ours->result, refused);
            ssize_t got = read(hold[0], &byte, 1);
            _exit(got < 0);
        }
        while (err == 0 && atomic_load(&ours->result) == 0)
            usleep(1000);
        uint64_t key = 2;
        if (err == 0)
            /* The put succeeds if the fork has not ended the session of the parent. */
            err = far_put(own.session, own.index, &key, sizeof(key), &key, sizeof(key));
        atomic_store(&ours->stopped, err == 0 ? 1 : 2);
        pause();
    }
    assert_ok(guest_enter(&c, k.uri, NULL));
    while (atomic_load(&ours->stopped) == 0)
        usleep(1000);
    assert_int_equal(atomic_load(&ours->stopped), 1);
    assert_true(atomic_load(&ours->result) < 0);
    assert_int_equal(guest_count_live_sessions(&c), 4);
    kill(parent, SIGKILL);
    while (guest_count_live_sessions(&c) > 2)
        continue;
    waitpid(parent, NULL, 0);
    close(hold[0]);
    close(hold[1]); /* Closing the pipe ends the child of the client. */
    guest_leave(&c);
    stop_cluster(&k);
}


/* ---- Daemons ---- */

/* A daemon is stopped. Calls that need it fail within the timeout with its address in the message, and so does opening
 * the pool. After it continues, the pool works and no data is lost. */
TEST(a_stopped_daemon_is_named_in_time) {
    cluster k;
    guest c;
    start_cluster(&k, 2, true, "?timeout=700ms");
    assert_ok(guest_enter(&c, k.uri, kind));
    for (uint64_t key = 0; key < KEYS; key++)
        assert_ok(far_put(c.session, c.index, &key, sizeof(key), &key, sizeof(key)));
    kill(k.nodes[1].pid, SIGSTOP);
    int err = 0;
    double begun = daemon_seconds();
    for (uint64_t key = 0; err >= 0; key = (key + 1) % 1000)
        err = far_put(c.session, c.index, &key, sizeof(key), &key, sizeof(key));
    assert_true(err == FAR_ERR_UNREACHABLE || err == FAR_ERR_FENCED);
    assert_true(daemon_seconds() - begun < 20);
    if (err == FAR_ERR_UNREACHABLE)
        assert_non_null(strstr(far_last_error(), k.nodes[1].address));
    guest late;
    assert_int_equal(guest_enter(&late, k.uri, NULL), FAR_ERR_UNREACHABLE);
    assert_non_null(strstr(far_last_error(), k.nodes[1].address));
    guest_leave(&late);
    kill(k.nodes[1].pid, SIGCONT);
    guest_leave(&c);
    assert_ok(guest_enter(&c, k.uri, NULL));
    uint64_t got, key = 5;
    assert_ok(far_get(c.session, c.index, &key, sizeof(key), &got, sizeof(got), NULL));
    assert_index_is_sound(c.session, c.index);
    assert_pool_is_sound(c.session);
    guest_leave(&c);
    stop_cluster(&k);
}


/* Daemons with memory files are killed during puts and restarted. All acknowledged puts are there, and the index and
 * the pool are sound. */
TEST(killed_daemons_come_back_with_their_memory) {
    cluster k;
    guest c;
    start_cluster(&k, 3, true, "?timeout=3s");
    assert_ok(guest_enter(&c, k.uri, kind));
    guest_leave(&c);
    for (unsigned i = 0; i < number_of_kills("DAEMON_KILLS", 6); i++) {
        pid_t child = start_writer(k.uri);
        unsigned which = i % 4;
        usleep(500 * (i * 11 % 17));
        for (unsigned n = 0; n < 3; n++)
            if (n == which || which == 3)
                daemon_kill(&k.nodes[n]);
        waitpid(child, NULL, 0);
        int result = atomic_load(&ours->result);
        assert_true(result == FAR_ERR_UNREACHABLE || result == FAR_ERR_FENCED);
        for (unsigned n = 0; n < 3; n++)
            if (n == which || which == 3)
                assert_true(daemon_restart(&k.nodes[n]));
        assert_ok(guest_enter(&c, k.uri, NULL));
        assert_all_there(&c, i);
        assert_index_is_sound(c.session, c.index);
        assert_pool_is_sound(c.session);
        guest_leave(&c);
    }
    stop_cluster(&k);
}


/* As `test_network_kills --writer URI DESCRIPTOR` the program is a client that writes until it is killed. */
TEST_ARGUMENTS(argc, argv) {
    bool writes = argc == 4 && strcmp(argv[1], "--writer") == 0;
    kind = getenv("KIND") ? getenv("KIND") : kind;
    ours_fd = writes ? atoi(argv[3]) : memfd_create("kills", 0);
    if (!writes && ftruncate(ours_fd, sizeof(*ours)) < 0)
        return 1;
    ours = mmap(NULL, sizeof(*ours), PROT_READ | PROT_WRITE, MAP_SHARED, ours_fd, 0);
    if (ours == MAP_FAILED)
        return 1;
    return writes ? run_writer(argv[2]) : TEST_CONTINUE;
}
