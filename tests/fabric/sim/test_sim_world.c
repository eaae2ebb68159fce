/* Tests of the worlds of the simulator: options, names, the virtual host, determinism, the trace, and that no run
 * hangs. */
#include "base/coroutine.h"
#include "base/random.h"
#include "sim_rig.h"
#include "test.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define X 0x1000


/* ---- Options and names ---- */

/* Each malformed option returns FAR_ERR_INVALID and a message. */
TEST(bad_options_are_refused_with_a_message) {
    static const char *const bad[] = {
        "seed",
        "seed=",
        "seed=x",
        "seed=-1",
        "seed=99999999999999999999",
        "sed=1",
        "seed=1,",
        ",seed=1",
        "seed=1,,size=1M",
        "memory_nodes=0",
        "memory_nodes=257",
        "size=1T",
        "size=100",
        "size=5000",
        "atomic_bytes=32",
        "atomic_bytes=65",
        "masked_cas=maybe",
        "nic=cx7",
        "faults=tears",
        "faults=tear+",
        "faults=",
        "read_mops=fast",
        "read_mops=0",
        "bandwidth=12.5x",
        "rtt_read=1us",
        "rtt_read=2min",
        "outstanding=0",
        "name=",
        "watch=2",
        "wire=2us",
    };
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        far_fabric *fabric = NULL;
        if (far_sim_open(bad[i], &fabric) != FAR_ERR_INVALID)
            fail_msg("'%s' was taken", bad[i]);
        assert_null(fabric);
        assert_non_null(strstr(far_last_error(), "sim: "));
    }
}


/* Options of the URI appear in the capabilities, sizes and latencies of the fabric. */
TEST(options_take_effect) {
    far_fabric *fabric =
        rig_open("seed=9,memory_nodes=3,size=2M,atomic_bytes=8,masked_cas=off,atomics_in_order=on,rtt_read=3us,"
                 "rtt_write=3100ns,rtt_atomic=3.2us,wire=1.1us,bandwidth=25,read_mops=10");
    assert_int_equal(far_sim_seed(far_sim_world_of(fabric)), 9);
    assert_int_equal(fabric->nodes, 3);
    assert_int_equal(fabric->node_bytes[2], 2 << 20);
    assert_int_equal(fabric->capabilities.atomic_bytes, 8);
    assert_false(fabric->capabilities.masked_cas);
    assert_true(fabric->capabilities.atomics_in_order);
    assert_int_equal(fabric->capabilities.min_rtt, 3000);
    assert_int_equal(fabric->rtt, 3000);
    rig r;
    uint64_t word;
    rig_connect(&r, fabric);
    rig_run_verb(&r, rig_read(X, &word, 8));
    assert_int_equal(far_sim_now(far_sim_world_of(fabric)), 3000);
    rig_disconnect(&r);
    fabric->ops->close(fabric);
    fabric = rig_open("%s", "");
    assert_int_equal(fabric->nodes, 1);
    assert_int_equal(fabric->node_bytes[0], 64 << 20);
    assert_true(fabric->capabilities.masked_cas);
    fabric->ops->close(fabric);
}


/* Handles with the same name share a world, handles with another name or none do not. A handle with other options is
 * refused. After the last close the name denotes a new world. */
TEST(worlds_are_shared_by_name_and_end_with_the_last_handle) {
    rig a, b;
    uint64_t word = 77, seen = 0;
    rig_connect(&a, rig_open("name=n,seed=3,nic=cx5,wire=900"));
    rig_connect(&b, rig_open("seed=3,name=n,nic=cx5"));
    far_fabric *other = rig_open("name=m"), *nameless = rig_open("seed=3"), *refused = NULL;
    assert_ptr_equal(far_sim_world_of(a.fabric), far_sim_world_of(b.fabric));
    assert_ptr_not_equal(far_sim_world_of(a.fabric), far_sim_world_of(other));
    assert_ptr_not_equal(far_sim_world_of(other), far_sim_world_of(nameless));
    assert_int_equal(far_sim_open("name=n,seed=4", &refused), FAR_ERR_INVALID);
    assert_non_null(strstr(far_last_error(), "other options"));
    assert_int_equal(rig_run_verb(&a, rig_write(X, &word, 8)), 0);
    rig_disconnect(&a);
    a.fabric->ops->close(a.fabric);
    assert_int_equal(rig_run_verb(&b, rig_read(X, &seen, 8)), 0);
    assert_int_equal(seen, 77);
    rig_disconnect(&b);
    b.fabric->ops->close(b.fabric);
    rig_connect(&a, rig_open("name=n,seed=4")); /* The name denotes a new world now, because the old world has ended. */
    assert_int_equal(rig_run_verb(&a, rig_read(X, &seen, 8)), 0);
    assert_int_equal(seen, 0);
    rig_disconnect(&a);
    a.fabric->ops->close(a.fabric);
    other->ops->close(other);
    nameless->ops->close(nameless);
}


/* ---- The host ---- */

typedef struct threads {
    far_fabric *fabric;
    far_parker parker;
    uint64_t woke_at, ran;
    unsigned joined;
} threads;


static void run_background(void *arg) {
    threads *t = arg;
    far_host *host = t->fabric->host;
    far_parker own = {0};
    host->ops->park(host, &own, far_host_now(host) + 5000);
    t->ran = far_host_now(host);
    host->ops->unpark(host, &t->parker);
}


static void run_joiner(void *arg) {
    threads *t = arg;
    far_host *host = t->fabric->host;
    far_thread *thread;
    if (host->ops->start(host, run_background, t, &thread) != 0)
        abort();
    host->ops->join(host, thread);
    t->joined++;
}


/* The virtual host starts threads, parks them until a deadline or an unpark, and joins them, in virtual time. */
TEST(threads_of_the_host_run_park_and_are_joined) {
    threads t = {.fabric = rig_open("seed=1")};
    far_host *host = t.fabric->host;
    far_thread *thread;
    assert_int_equal(host->ops->start(host, run_background, &t, &thread), 0);
    host->ops->park(host, &t.parker, 3000); /* The park returns at the deadline, before the unpark. */
    assert_int_equal(far_host_now(host), 3000);
    assert_int_equal(t.ran, 0);
    host->ops->park(host, &t.parker, FAR_TIME_NEVER);
    assert_int_equal(far_host_now(host), 5000);
    host->ops->join(host, thread);
    host->ops->unpark(host, &t.parker); /* An unpark before the park is not lost, so the next park returns at once. */
    host->ops->park(host, &t.parker, FAR_TIME_NEVER);
    assert_int_equal(far_host_now(host), 5000);
    far_sim_start(t.fabric, "joiner", run_joiner, &t);
    assert_int_equal(far_sim_run(far_sim_world_of(t.fabric)), FAR_SIM_ENDED);
    assert_int_equal(t.joined, 1);
    assert_int_equal(far_host_now(host), 10000);
    t.fabric->ops->close(t.fabric);
}


/* The secrets of the virtual host depend on the seed only. */
TEST(secrets_come_from_the_seed) {
    uint8_t bytes[3][21] = {{0}};
    static const char *const options[] = {"seed=1", "seed=1", "seed=2"};
    for (unsigned i = 0; i < 3; i++) {
        far_fabric *fabric = rig_open("%s", options[i]);
        fabric->host->ops->secret(fabric->host, bytes[i], 13);
        fabric->host->ops->secret(fabric->host, bytes[i] + 13, 8);
        fabric->ops->close(fabric);
    }
    assert_memory_equal(bytes[0], bytes[1], 21);
    assert_memory_not_equal(bytes[0], bytes[2], 21);
}


/* A client that runs code in a coroutine of its own. If the client is stopped inside of that coroutine, it continues
 * there. */
typedef struct nested {
    rig r;
    far_context *outer;
    bool inner_done;
    uint64_t word;
} nested;


static void run_inner(void *arg) {
    nested *n = arg;
    n->r.fabric->watch->point(n->r.conn, "inner", NULL);
    rig_run_verb(&n->r, rig_read(X, &n->word, 8));
    n->inner_done = true;
    far_context_exit(n->outer);
}


static void run_nested(void *arg) {
    nested *n = arg;
    n->outer = far_context_current();
    far_context *inner = far_context_new(65536, run_inner, n);
    far_context_switch(inner);
    far_context_free(inner);
}


/* A client that waits inside a coroutine of its own continues there. The same holds for code outside of all clients. */
TEST(clients_may_wait_inside_their_own_coroutines) {
    nested n = {0};
    rig_connect(&n.r, rig_open("seed=1"));
    far_sim_client *client = far_sim_start(n.r.fabric, "nested", run_nested, &n);
    far_sim_stop_before(client, (far_sim_match){.point = "inner"});
    assert_int_equal(far_sim_run_client(client), FAR_SIM_STOPPED);
    far_sim_resume(client);
    assert_int_equal(far_sim_run_client(client), FAR_SIM_ENDED);
    assert_true(n.inner_done);
    n.inner_done = false;
    run_nested(&n); /* Code outside of all clients can wait in a coroutine, too. */
    assert_true(n.inner_done);
    rig_disconnect(&n.r);
    n.r.fabric->ops->close(n.r.fabric);
}


/* A loop that only polls advances virtual time, so the batch completes. */
TEST(polling_alone_advances_time) {
    rig r;
    uint64_t word;
    rig_connect(&r, rig_open("seed=1"));
    far_verb verb = rig_read(X, &word, 8);
    far_batch batch = rig_batch(&verb, 1);
    rig_post(&r, &batch);
    while (batch.pending)
        r.fabric->ops->poll(r.conn);
    assert_true(far_sim_now(far_sim_world_of(r.fabric)) < 4000);
    rig_disconnect(&r);
    r.fabric->ops->close(r.fabric);
}


static void post_until_time(void *arg) {
    rig *r = arg;
    uint64_t word = 0;
    while (far_host_now(r->fabric->host) < 100000)
        rig_run_verb(r, rig_read(X, &word, 8));
}


/* A client that posts in a loop on a fenced connection does not stop virtual time. Fails without REFUSALS_MAX in
 * src/fabric/sim/connection.c. */
TEST(posting_forever_on_a_fenced_connection_advances_time) {
    rig r;
    rig_connect(&r, rig_open("seed=1"));
    far_sim_start(r.fabric, "stubborn", post_until_time, &r);
    far_sim_run_for(far_sim_world_of(r.fabric), 1000);
    far_sim_kill(r.fabric);
    assert_int_equal(far_sim_run(far_sim_world_of(r.fabric)), FAR_SIM_ENDED);
    rig_disconnect(&r);
    r.fabric->ops->close(r.fabric);
}


static void note_time(void *arg) {
    uint64_t *times = arg;
    times[1 + times[0]++] = 1;
}


/* Functions that are registered with `far_sim_at` are called exactly at their time. */
TEST(calls_are_made_at_their_time) {
    uint64_t calls[4] = {0};
    far_fabric *fabric = rig_open("seed=1");
    far_sim_world *world = far_sim_world_of(fabric);
    far_sim_at(world, 1000, note_time, calls);
    far_sim_at(world, 2000, note_time, calls);
    far_sim_run_for(world, 999);
    assert_int_equal(calls[0], 0);
    far_sim_run_for(world, 1);
    assert_int_equal(calls[0], 1);
    far_sim_sleep(world, 1000);
    assert_int_equal(calls[0], 2);
    /* This function is never called, because the world ends before that time. */
    far_sim_at(world, 5000, note_time, calls);
    fabric->ops->close(fabric);
}


/* ---- Determinism ---- */

typedef struct worker {
    rig r;
    unsigned number;
    far_random random;
    void *noise;
} worker;


static void run_worker(void *arg) {
    worker *w = arg;
    uint64_t words[40], old;
    for (unsigned i = 0; i < 40; i++) {
        far_addr addr = X + far_random_below(&w->random, 8) * 64;
        uint64_t payload[25];
        memset(payload, (int)(w->number * 40 + i), sizeof payload);
        far_verb verbs[3] = {rig_read(addr, words, 320), rig_faa(addr, w->number, &old), rig_write(addr, payload, 200)};
        if (i % 5 == 0)
            verbs[2].flags = FAR_VERB_FENCE;
        /* fields that these verbs do not use contain garbage */
        verbs[0].compare = verbs[0].swap = verbs[1].compare = verbs[2].swap = (uintptr_t)w->noise;
        if (rig_run(&w->r, verbs, 3) != 0)
            return;
    }
}


static void kill_node(void *arg) {
    far_sim_kill(arg);
}


/* Runs several clients with all faults and a failure, and writes the trace to *text. */
static uint64_t mixed_run(unsigned seed, char **text, uint64_t *memory_sum, void *noise) {
    size_t size;
    FILE *file = open_memstream(text, &size);
    far_fabric *fabrics[2] = {rig_open("name=mixed,seed=%u,size=1M,faults=all", seed), rig_open("name=mixed")};
    far_sim_world *world = far_sim_world_of(fabrics[0]);
    worker workers[4];
    far_sim_trace_to(world, file);
    for (unsigned i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%u", i);
        workers[i].number = i + 1;
        workers[i].noise = noise;
        far_random_seed(&workers[i].random, i);
        rig_connect(&workers[i].r, fabrics[i % 2]);
        far_sim_start(fabrics[i % 2], name, run_worker, &workers[i]);
    }
    far_sim_at(world, 150000, kill_node, fabrics[1]);
    assert_int_equal(far_sim_run(world), FAR_SIM_ENDED);
    far_sim_run_for(world, 1000000);
    uint64_t hash = far_sim_trace_hash(world);
    const uint8_t *memory = far_sim_memory(world, 0);
    *memory_sum = 0;
    for (unsigned i = 0; i < 4096; i++)
        *memory_sum = *memory_sum * 31 + memory[X + i];
    far_sim_trace_to(world, NULL);
    assert_int_equal(far_sim_watch_errors(world), 0);
    for (unsigned i = 0; i < 4; i++)
        rig_disconnect(&workers[i].r);
    fabrics[0]->ops->close(fabrics[0]);
    fabrics[1]->ops->close(fabrics[1]);
    fclose(file);
    return hash;
}


/* Two runs with the same seed have the same trace, hash and memory, although objects have other addresses. Another seed
 * gives another run. */
TEST(the_same_seed_gives_the_same_run_byte_for_byte) {
    for (unsigned seed = 1; seed <= 5; seed++) {
        char *text[3], *noise = NULL;
        uint64_t hash[3], memory[3];
        hash[0] = mixed_run(seed, &text[0], &memory[0], NULL);
        noise = malloc(12345 * seed); /* objects get other addresses, but the run must be the same */
        hash[1] = mixed_run(seed, &text[1], &memory[1], noise);
        hash[2] = mixed_run(seed + 100, &text[2], &memory[2], NULL);
        assert_true(hash[0] == hash[1] && memory[0] == memory[1]);
        assert_string_equal(text[0], text[1]);
        assert_true(hash[0] != hash[2] && strcmp(text[0], text[2]) != 0);
        assert_true(strlen(text[0]) > 10000);
        for (unsigned i = 0; i < 3; i++)
            free(text[i]);
        free(noise);
    }
}


/* The trace contains posts, effects and completions with their operands. */
TEST(the_trace_is_readable) {
    rig r;
    uint64_t old, word = 3;
    char *text = NULL;
    size_t size;
    rig_connect(&r, rig_open("seed=1,size=1M"));
    rig_run_verb(&r, rig_cas(X, 0, 5, &old));
    rig_run_verb(&r, rig_cas(X, 0, 6, &old));
    rig_run_verb(&r, rig_write(X + 64, &word, 8));
    FILE *file = open_memstream(&text, &size);
    far_sim_trace_dump(far_sim_world_of(r.fabric), file);
    fclose(file);
    assert_non_null(strstr(text, "post     #1 CAS 0:0x1000+8 compare 0 swap 0x5"));
    assert_non_null(strstr(text, "effect   #1 CAS 0:0x1000+8 old 0 new 0x5\n"));
    assert_non_null(strstr(text, "effect   #2 CAS 0:0x1000+8 old 0x5 new 0x5 (failed)"));
    assert_non_null(strstr(text, "done     #3 WRITE 0:0x1040+8"));
    free(text);
    rig_disconnect(&r);
    r.fabric->ops->close(r.fabric);
}


/* Faults can be switched on and off in a running world, and change only the verbs in between. */
TEST(faults_can_be_switched_while_running) {
    rig r;
    uint64_t words[64] = {0};
    rig_connect(&r, rig_open("name=switch"));
    far_sim_world *world = far_sim_world_of(r.fabric);
    for (int i = 0; i < 10; i++)
        rig_run_verb(&r, rig_write(X, words, 8));
    assert_int_equal(far_sim_now(world), 24000);
    far_sim_set_faults(world, FAR_SIM_ALL_FAULTS);
    /* This handle joins with the options with which the world was created, because a change of the faults does not
     * affect the options that are compared. */
    far_fabric *joins = rig_open("name=switch,faults=none");
    joins->ops->close(joins);
    for (int i = 0; i < 10; i++)
        rig_run_verb(&r, rig_write(X, words, 512));
    uint64_t with = far_sim_now(world) - 24000;
    assert_true(with > 24000);
    far_sim_set_faults(world, 0);
    for (int i = 0; i < 10; i++)
        rig_run_verb(&r, rig_write(X, words, 8));
    assert_int_equal(far_sim_now(world), 24000 + with + 24000);
    rig_disconnect(&r);
    r.fabric->ops->close(r.fabric);
}


/* ---- Nothing hangs ---- */

static void wait_forever(void *arg) {
    rig *r = arg;
    r->fabric->host->ops->park(r->fabric->host, &r->parker, FAR_TIME_NEVER);
}


/* A run of clients that wait forever returns FAR_SIM_DEADLOCK. */
TEST(a_deadlock_of_clients_is_found) {
    rig r;
    rig_connect(&r, rig_open("seed=1"));
    far_sim_client *client = far_sim_start(r.fabric, "waits", wait_forever, &r);
    assert_int_equal(far_sim_run(far_sim_world_of(r.fabric)), FAR_SIM_DEADLOCK);
    assert_int_equal(far_sim_run_client(client), FAR_SIM_DEADLOCK);
    assert_false(far_sim_deadlocked(far_sim_world_of(r.fabric)));
    assert_int_equal(far_sim_now(far_sim_world_of(r.fabric)), 0);
    rig_disconnect(&r);
    r.fabric->ops->close(r.fabric); /* the stack of the client is freed with the world */
}


/* If code outside of all clients waits forever, all connections are fenced and the wait fails. */
TEST(a_wait_from_outside_that_cannot_end_fails) {
    rig r;
    uint64_t word;
    rig_connect(&r, rig_open("seed=1"));
    far_sim_world *world = far_sim_world_of(r.fabric);
    far_sim_hold_effect(far_sim_current(world), (far_sim_match){0});
    assert_int_equal(rig_run_verb(&r, rig_read(X, &word, 8)), FAR_ERR_UNREACHABLE);
    assert_true(far_sim_deadlocked(world));
    assert_int_equal(rig_run_verb(&r, rig_read(X, &word, 8)), FAR_ERR_FENCED);
    rig_disconnect(&r);
    r.fabric->ops->close(r.fabric);
}


static void run_tick(void *arg) {
    threads *t = arg;
    far_host *host = t->fabric->host;
    while (!t->joined)
        host->ops->park(host, &t->parker, far_host_now(host) + 1000000);
}


/* A wait from outside ends at the time limit, although a background thread wakes up again and again. */
TEST(a_wait_from_outside_ends_at_the_limit) {
    rig r;
    uint64_t word;
    far_thread *thread;
    rig_connect(&r, rig_open("seed=1,limit=1s"));
    threads t = {.fabric = r.fabric};
    far_sim_world *world = far_sim_world_of(r.fabric);
    assert_int_equal(r.fabric->host->ops->start(r.fabric->host, run_tick, &t, &thread), 0);
    far_sim_hold_effect(far_sim_current(world), (far_sim_match){0});
    assert_int_equal(rig_run_verb(&r, rig_read(X, &word, 8)), FAR_ERR_UNREACHABLE);
    assert_true(far_sim_deadlocked(world));
    assert_in_range(far_sim_now(world), 999000000, 1100000000);
    rig_disconnect(&r);
    r.fabric->ops->close(r.fabric);
    free(thread);
}


typedef struct ping {
    far_fabric *fabric;
    far_parker *own, *other;
} ping;


static void run_ping(void *arg) {
    ping *p = arg;
    far_host *host = p->fabric->host;
    for (;;) {
        host->ops->unpark(host, p->other);
        host->ops->park(host, p->own, FAR_TIME_NEVER);
    }
}


/* Two clients that wake each other without advancing virtual time end the run with FAR_SIM_LIMIT. */
TEST(clients_that_wake_each_other_forever_are_found) {
    far_fabric *fabric = rig_open("seed=1");
    far_parker parkers[2] = {{0}, {0}};
    ping pings[2] = {{fabric, &parkers[0], &parkers[1]}, {fabric, &parkers[1], &parkers[0]}};
    far_sim_start(fabric, "ping", run_ping, &pings[0]);
    far_sim_start(fabric, "pong", run_ping, &pings[1]);
    assert_int_equal(far_sim_run(far_sim_world_of(fabric)), FAR_SIM_LIMIT);
    fabric->ops->close(fabric);
}
