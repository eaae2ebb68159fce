/* RDWC with threads: many tasks of many sessions of two compute nodes on few keys. The index is one word per key, which
 * is READ and WRITTEN by verbs. Every history is checked exactly. All written values are different, so the theorem of
 * Gibbons and Korach decides whether a history is linearizable (check_key_history). */
#include "base/sanitizer.h"
#include "index/common/rdwc.h"
#include "pool/handle.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

#define THREADS 8
#define TASKS   24 /* number of tasks of each thread */
#define KEYS    2
#define NODES   2
#define ROUNDS  (FAR_TSAN || FAR_ASAN ? 60 : 250) /* number of operations of each task */
#define OPS_MAX (THREADS * TASKS * 250)

typedef struct event {
    unsigned key;
    bool is_read;
    uint64_t value, begin, end;
} event;

static far_pool *nodes[NODES];
static const far_index_kind no_kind = {.name = "none"};
static far_index indexes[NODES];
static bool with_hooks;
/* Failures are counted and not asserted at once, because only the main thread may use cmocka's asserts. */
static atomic_uint failures;

static event *events;
static atomic_uint event_count;
static _Atomic uint64_t ticks, next_value;


static far_addr word_of(far_bytes key) {
    return far_addr_make(0, 4096 + 64 * (uint64_t) * (const unsigned char *)key.data);
}


static int word_get(far_task *t, far_bytes key, far_out *out) {
    uint64_t word;
    uint32_t m = with_hooks ? far_rdwc_mark(t) : 0;
    int err = far_read_word(t, word_of(key), &word);
    if (with_hooks)
        far_rdwc_done(t, m);
    return err < 0 ? err : far_out_give(out, &word, 8);
}


/* Performs a put. It READs the word first, like an index that searches for the place of the key, so that other
 * operations can join meanwhile. */
static int word_put(far_task *t, far_bytes key, far_bytes value) {
    uint64_t word;
    uint32_t m = 0;
    if (with_hooks)
        far_rdwc_mark(t);
    int err = far_read_word(t, word_of(key), &word);
    if (err < 0)
        return err;
    if (with_hooks) {
        far_rdwc_seal(t, &value);
        m = far_rdwc_mark(t);
    }
    memcpy(&word, value.data, 8);
    err = far_write_word(t, word_of(key), word);
    if (with_hooks)
        far_rdwc_done(t, m);
    return err;
}


static int word_run(far_task *t, far_index *index, far_op_kind kind, far_bytes key, far_bytes value, far_out *out) {
    (void)index;
    return kind == FAR_OP_GET ? word_get(t, key, out) : word_put(t, key, value);
}


static void run_task(far_task *t, void *arg) {
    unsigned node = *(const unsigned *)arg;
    far_random random;
    far_random_seed(&random, far_task_random(t));
    for (unsigned i = 0; i < ROUNDS; i++) {
        unsigned char name = (unsigned char)far_random_below(&random, KEYS);
        unsigned dice = (unsigned)far_random_below(&random, 10);
        far_op_kind kind = dice < 7 ? FAR_OP_GET : dice < 8 ? FAR_OP_PUT : dice < 9 ? FAR_OP_UPDATE : FAR_OP_INSERT;
        event *e = &events[atomic_fetch_add_explicit(&event_count, 1, memory_order_relaxed)];
        uint64_t word = 0;
        if (kind != FAR_OP_GET)
            word = atomic_fetch_add_explicit(&next_value, 1, memory_order_relaxed);
        far_out out = {&word, 8, 0};
        e->key = name;
        e->is_read = kind == FAR_OP_GET;
        e->begin = atomic_fetch_add_explicit(&ticks, 1, memory_order_seq_cst);
        int err = far_rdwc_run(t, &indexes[node], kind, (far_bytes){&name, 1}, (far_bytes){&word, 8},
                               e->is_read ? &out : NULL, word_run);
        e->end = atomic_fetch_add_explicit(&ticks, 1, memory_order_seq_cst);
        e->value = word;
        if (err < 0 || (e->is_read && out.length != 8))
            atomic_fetch_add_explicit(&failures, 1, memory_order_relaxed);
        if (dice == 0)
            far_yield(t);
    }
}


typedef struct worker {
    unsigned node;
    uint64_t delegated, combined;
} worker;


static void run_worker(void *arg) {
    worker *w = arg;
    far_session *s;
    if (far_pool_session_new(nodes[w->node], &s) < 0) {
        atomic_fetch_add_explicit(&failures, 1, memory_order_relaxed);
        return;
    }
    far_session_enter(s);
    for (unsigned i = 0; i < TASKS; i++)
        if (!far_task_new(s, FAR_OP_GET, run_task, &w->node))
            atomic_fetch_add_explicit(&failures, 1, memory_order_relaxed);
    far_session_drain(s);
    far_session_leave(s);
    w->delegated = s->stats[FAR_OP_GET].delegated_reads;
    w->combined = s->stats[FAR_OP_GET].combined_writes;
    far_session_free(s);
}


/* The zone of a value in a history: from the first end to the last begin of the operations on it (a forward zone), or
 * in the other direction (a backward zone). */
typedef struct zone {
    uint64_t value, first_end, last_begin, writes, write_begin;
} zone;


static int by_low(const void *a, const void *b) {
    const zone *x = a, *y = b;
    uint64_t p = x->first_end < x->last_begin ? x->first_end : x->last_begin;
    uint64_t q = y->first_end < y->last_begin ? y->first_end : y->last_begin;
    return (p > q) - (p < q);
}


static void make_zones(unsigned key, zone *zones, uint64_t values) {
    for (uint64_t v = 0; v < values; v++)
        zones[v] = (zone){v, UINT64_MAX, 0, 0, 0};
    zones[0] = (zone){0, 0, 0, 1, 0}; /* The first value was stored before all operations. */
    unsigned count = atomic_load_explicit(&event_count, memory_order_relaxed);
    for (unsigned i = 0; i < count; i++) {
        const event *e = &events[i];
        if (e->key != key)
            continue;
        assert_true(e->value < values);
        zone *z = &zones[e->value];
        z->first_end = e->end < z->first_end ? e->end : z->first_end;
        z->last_begin = e->begin > z->last_begin ? e->begin : z->last_begin;
        z->writes += !e->is_read;
        if (!e->is_read)
            z->write_begin = e->begin;
    }
}


/* Asserts that the history of a key is linearizable. All written values differ. Such a history is linearizable if every
 * value that was read has a write that began early enough, no two forward zones overlap, and no forward zone contains a
 * backward zone (Gibbons and Korach, "Testing Shared Memories", 1997). */
static void check_key_history(unsigned key) {
    uint64_t values = atomic_load_explicit(&next_value, memory_order_relaxed), used = 0, forward_end = 0;
    zone *zones = calloc(values, sizeof(*zones));
    make_zones(key, zones, values);
    for (uint64_t v = 0; v < values; v++)
        if (zones[v].first_end != UINT64_MAX) {
            assert_int_equal(zones[v].writes, 1);                    /* Every value that was read was written once. */
            assert_true(zones[v].write_begin <= zones[v].first_end); /* No value was read before its write began. */
            zones[used++] = zones[v];
        }
    qsort(zones, used, sizeof(*zones), by_low);
    for (uint64_t i = 0; i < used; i++) {
        const zone *z = &zones[i];
        if (z->first_end < z->last_begin) {
            assert_true(forward_end <= z->first_end); /* forward zones must not overlap */
            forward_end = z->last_begin;
        } else {
            assert_true(forward_end <= z->first_end); /* a forward zone must not contain a backward zone */
        }
    }
    free(zones);
}


static void make_node(unsigned i) {
    far_pool *pool = nodes[i] = calloc(1, sizeof(*pool));
    assert_int_equal(far_fabric_open("local:1M?name=rdwc&rtt=20us", &pool->fabric), 0);
    pool->geometry.capabilities = pool->fabric->capabilities;
    pool->team.latches = far_latches_new();
    pool->rdwc = far_rdwc_new(FAR_RDWC_QUIET_BELOW);
    indexes[i] = (far_index){.uid = 1, .pool = pool, .kind = &no_kind};
}


static void free_node(unsigned i) {
    far_rdwc_free(nodes[i]->rdwc);
    far_latches_free(nodes[i]->team.latches);
    nodes[i]->fabric->ops->close(nodes[i]->fabric);
    free(nodes[i]);
}


static void run_history(bool hooks) {
    worker workers[THREADS];
    far_thread *threads[THREADS];
    far_host *host = &far_host_threads;
    with_hooks = hooks;
    events = calloc(OPS_MAX, sizeof(*events));
    atomic_store_explicit(&event_count, 0, memory_order_relaxed);
    atomic_store_explicit(&failures, 0, memory_order_relaxed);
    atomic_store_explicit(&ticks, 1, memory_order_relaxed);
    atomic_store_explicit(&next_value, 1, memory_order_relaxed);
    for (unsigned i = 0; i < NODES; i++)
        make_node(i);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (worker){.node = i % 4 == 3};
        assert_int_equal(host->ops->start(host, run_worker, &workers[i], &threads[i]), 0);
    }
    uint64_t delegated = 0, combined = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        host->ops->join(host, threads[i]);
        delegated += workers[i].delegated;
        combined += workers[i].combined;
    }
    assert_int_equal(atomic_load_explicit(&failures, memory_order_relaxed), 0);
    assert_int_equal(atomic_load_explicit(&event_count, memory_order_relaxed), THREADS * TASKS * ROUNDS);
    assert_true(delegated > 0 && combined > 0);
    for (unsigned key = 0; key < KEYS; key++)
        check_key_history(key);
    for (unsigned i = 0; i < NODES; i++)
        free_node(i);
    free(events);
}


/* The histories of threads in two compute nodes are linearizable if the operations call the hooks. */
TEST(two_nodes_with_hooks_are_linearizable) {
    run_history(true);
}


/* The histories of threads in two compute nodes are also linearizable if the operations call no hooks. */
TEST(two_nodes_without_hooks_are_linearizable) {
    run_history(false);
}
