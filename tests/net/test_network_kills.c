/* Deaths on the network: clients and daemons that are killed, stopped, evicted, or forked from. Who is dead does nothing
 * any more; who lives is not declared dead; what a node with a memory file had is there after its death. KILLS and
 * DAEMON_KILLS in the environment say how often (default: a few), KIND with which kind of index. */
#define _GNU_SOURCE
#include "client/end_client.h"
#include "daemons.h"
#include "guest.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE "16M"
#define KEYS 64

typedef struct shared { /* with the children */
    _Atomic uint64_t started, acknowledged[KEYS], stopped;
    _Atomic int result;
} shared;

typedef struct cluster {
    daemon_node nodes[3];
    char paths[3][64], uri[256];
    unsigned count;
} cluster;

static shared *ours;
static int ours_fd;               /* its memory, for processes that are started anew */
static const char *kind = "dart"; /* of the index; KIND in the environment says another */


static unsigned kills(const char *variable, unsigned usual) {
    const char *text = getenv(variable);
    return text ? (unsigned)atoi(text) : usual;
}


static void up(cluster *c, unsigned count, bool files, const char *options) {
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


static void down(cluster *c) {
    for (unsigned i = 0; i < c->count; i++) {
        assert_int_equal(daemon_stop(&c->nodes[i]), 0);
        unlink(c->paths[i]);
    }
}


/* Puts rising numbers under one key after the other, and says what was done. Returns why it ended. */
static int put_on(guest *c) {
    for (uint64_t n = 1;; n++) {
        uint64_t key = n % KEYS;
        atomic_store(&ours->started, n);
        int err = far_put(c->session, c->index, &key, sizeof(key), &n, sizeof(n));
        if (err < 0)
            return err;
        atomic_store(&ours->acknowledged[key], n);
    }
}


static int write_on(const char *uri) {
    guest c;
    int err = guest_enter(&c, uri, NULL);
    if (err == 0)
        err = put_on(&c);
    atomic_store(&ours->result, err);
    return 0;
}


/* This program anew: a copy of a process with threads would have the locks that they held (those of the sanitizer's
 * allocator too), and nobody to free them. */
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


/* What was acknowledged is there, or what was begun after it. */
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

static void killed_clients_are_found_dead(void **state) {
    (void)state;
    cluster k;
    guest c;
    double worst = 0;
    up(&k, 2, false, "");
    assert_ok(guest_enter(&c, k.uri, kind));
    for (unsigned i = 0; i < kills("KILLS", 5); i++) {
        pid_t child = start_writer(k.uri);
        usleep(1000 * (i * 7 % 13));
        kill(child, SIGKILL);
        double begun = daemon_seconds();
        while (guest_living(&c) > 2)
            continue;
        worst = daemon_seconds() - begun > worst ? daemon_seconds() - begun : worst;
        waitpid(child, NULL, 0);
        for (uint64_t key = 0; key < KEYS; key++) /* whatever it had locked */
            assert_ok(far_put(c.session, c.index, &key, sizeof(key), &key, sizeof(key)));
        assert_index_is_sound(c.session, c.index);
    }
    print_message("found dead after at most %.1f ms\n", worst * 1e3);
    assert_pool_is_sound(c.session);
    guest_leave(&c);
    down(&k);
}


/* Nobody calls anything: node 0 tells the survivor, which wakes, marks the dead and sweeps. */
static void an_idle_survivor_cleans_up(void **state) {
    (void)state;
    cluster k;
    guest c;
    up(&k, 1, false, "");
    assert_ok(guest_enter(&c, k.uri, kind));
    pid_t child = start_writer(k.uri);
    kill(child, SIGSTOP);
    uint64_t before = 0, now = 1;
    while (now != before) { /* the survivor falls asleep */
        before = now;
        usleep(500000);
        now = daemon_look(k.nodes[0].address).batches;
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    while (daemon_look(k.nodes[0].address).batches < before + 10) /* at least asks, marks and walks */
        usleep(20000);
    assert_pool_is_sound(c.session);
    guest_leave(&c);
    down(&k);
}


static void a_stopped_client_is_not_dead_until_it_is_evicted(void **state) {
    (void)state;
    cluster k;
    guest c;
    far_client_info killed;
    up(&k, 2, false, "");
    assert_ok(guest_enter(&c, k.uri, kind));
    pid_t child = start_writer(k.uri);
    kill(child, SIGSTOP);
    usleep(300000);
    assert_int_equal(guest_living(&c), 4);
    assert_int_equal(far_pool_evict(c.session, 1, 0, &killed), FAR_ERR_INVALID); /* our own */
    assert_int_equal(far_pool_evict(c.session, 9, 0, &killed), FAR_ERR_NOT_FOUND);
    assert_ok(far_pool_evict(c.session, 3, 0, &killed));
    assert_int_equal(killed.id, 3);
    assert_int_equal(guest_living(&c), 2);
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
    down(&k);
}


/* The child's copies of the sockets do not keep the parent's sessions alive, nor do they end them. */
static void a_forked_child_is_nobody(void **state) {
    (void)state;
    cluster k;
    guest c;
    int hold[2];
    up(&k, 2, false, "");
    assert_ok(
        guest_enter(&c, k.uri, kind)); /* makes the index; and leaves, so that there is no thread when this forks */
    guest_leave(&c);
    assert_int_equal(pipe(hold), 0);
    pid_t parent = fork();
    if (parent == 0) {
        guest own;
        int err = guest_enter(&own, k.uri, NULL);
        if (err == 0 && fork() == 0) { /* lives on, and holds what it has */
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
            err = far_put(own.session, own.index, &key, sizeof(key), &key, sizeof(key)); /* it has not ended */
        atomic_store(&ours->stopped, err == 0 ? 1 : 2);
        pause();
    }
    assert_ok(guest_enter(&c, k.uri, NULL));
    while (atomic_load(&ours->stopped) == 0)
        usleep(1000);
    assert_int_equal(atomic_load(&ours->stopped), 1);
    assert_true(atomic_load(&ours->result) < 0);
    assert_int_equal(guest_living(&c), 4);
    kill(parent, SIGKILL);
    while (guest_living(&c) > 2)
        continue;
    waitpid(parent, NULL, 0);
    close(hold[0]);
    close(hold[1]); /* the grandchild ends */
    guest_leave(&c);
    down(&k);
}


/* ---- Daemons ---- */

static void a_stopped_daemon_is_named_in_time(void **state) {
    (void)state;
    cluster k;
    guest c;
    up(&k, 2, true, "?timeout=700ms");
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
    down(&k);
}


static void killed_daemons_come_back_with_their_memory(void **state) {
    (void)state;
    cluster k;
    guest c;
    up(&k, 3, true, "?timeout=3s");
    assert_ok(guest_enter(&c, k.uri, kind));
    guest_leave(&c);
    for (unsigned i = 0; i < kills("DAEMON_KILLS", 6); i++) {
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
                assert_true(daemon_again(&k.nodes[n]));
        assert_ok(guest_enter(&c, k.uri, NULL));
        assert_all_there(&c, i);
        assert_index_is_sound(c.session, c.index);
        assert_pool_is_sound(c.session);
        guest_leave(&c);
    }
    down(&k);
}


int main(int count, char **arguments) {
    bool writes = count == 4 && strcmp(arguments[1], "--writer") == 0;
    kind = getenv("KIND") ? getenv("KIND") : kind;
    ours_fd = writes ? atoi(arguments[3]) : memfd_create("kills", 0);
    if (!writes && ftruncate(ours_fd, sizeof(*ours)) < 0)
        return 1;
    ours = mmap(NULL, sizeof(*ours), PROT_READ | PROT_WRITE, MAP_SHARED, ours_fd, 0);
    if (ours == MAP_FAILED)
        return 1;
    if (writes)
        return write_on(arguments[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_clients_are_found_dead),
        cmocka_unit_test(an_idle_survivor_cleans_up),
        cmocka_unit_test(a_stopped_client_is_not_dead_until_it_is_evicted),
        cmocka_unit_test(a_forked_child_is_nobody),
        cmocka_unit_test(a_stopped_daemon_is_named_in_time),
        cmocka_unit_test(killed_daemons_come_back_with_their_memory),
    };
    return cmocka_run_group_tests_name("net/kills", tests, NULL, NULL);
}
