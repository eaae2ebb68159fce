/* The costs of DART's tree, measured by counters: the exact round trips of each operation on small trees, and averages
 * over a million keys. The averages are measured without the skip table, so every descent starts at the root. With
 * whole nodes the averages must be those of a plain adaptive radix tree (ART). */
#include "farindex.h"
#include "index/dart/shared_reads.h"
#include "pool/handle.h"
#include "task/session.h"
#include "test.h"
#include "workload/keyset.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct rig {
    far_pool *pool;
    far_session *session;
    far_index *index;
} rig;


static void open_index(rig *r, const char *uri, const char *options) {
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    pool_options.rdwc = -1;
    assert_int_equal(far_pool_open(uri, &pool_options, &r->pool), 0);
    assert_int_equal(far_session_open(r->pool, &r->session), 0);
    assert_int_equal(far_index_create(r->session, "map", "dart", options, &r->index), 0);
}


static void close_index(rig *r) {
    far_index_close(r->index);
    far_session_close(r->session);
    far_pool_close(r->pool);
}


/* ---- One operation ---- */

static far_stats measure_op(rig *r, far_op_kind kind, const char *key) {
    far_stats before, after;
    size_t length = strlen(key);
    char value[64];
    int result;
    assert_int_equal(far_session_stats_of(r->session, kind, &before), 0);
    if (kind == FAR_OP_GET)
        result = far_get(r->session, r->index, key, length, value, sizeof(value), NULL);
    else if (kind == FAR_OP_INSERT)
        result = far_insert(r->session, r->index, key, length, "value", 5);
    else if (kind == FAR_OP_UPDATE)
        result = far_update(r->session, r->index, key, length, "other", 5);
    else
        result = far_delete(r->session, r->index, key, length);
    assert_true(result == 0 || result == FAR_ERR_NOT_FOUND);
    assert_int_equal(far_session_stats_of(r->session, kind, &after), 0);
    return far_stats_diff(&after, &before);
}


static uint64_t round_trips_of(rig *r, far_op_kind kind, const char *key) {
    return measure_op(r, kind, key).round_trips;
}


/* Proves that every operation takes the round trips that the table in src/index/dart/README.md lists. The descents of
 * this test start at the root, so the numbers are one higher than those of a descent that starts at the node "p". The
 * comments at the ends of the lines list the batches of the operation. */
TEST(each_way_to_write_takes_its_round_trips) {
    rig r;
    open_index(&r, "sim:size=32M,memory_nodes=1,faults=none", "est=0");
    assert_int_equal(round_trips_of(&r, FAR_OP_INSERT, "pa"), 2); /* batches: root slot, CAS */
    assert_int_equal(round_trips_of(&r, FAR_OP_GET, "pa"), 2);    /* batches: root slot, leaf */
    assert_int_equal(round_trips_of(&r, FAR_OP_GET, "x"), 1);     /* batch: root slot */
    assert_int_equal(round_trips_of(&r, FAR_OP_INSERT, "pb"), 3); /* batches: root slot, leaf, {WRITE node, CAS} */
    assert_int_equal(round_trips_of(&r, FAR_OP_INSERT, "pc"), 3); /* batches: root slot, node, CAS */
    assert_int_equal(round_trips_of(&r, FAR_OP_GET, "pc"), 3);
    /* batches: root slot, node. No leaf is READ: the header of the node was READ together with the bucket and shows
     * that the key is absent. */
    assert_int_equal(round_trips_of(&r, FAR_OP_GET, "pz"), 2);
    assert_int_equal(round_trips_of(&r, FAR_OP_UPDATE, "pc"), 4); /* batches: root slot, node, leaf, CAS */
    assert_int_equal(round_trips_of(&r, FAR_OP_DELETE, "pc"), 4);
    /* batches: root slot, node, CAS; the leaf takes the slot of its symbol's TOMB */
    assert_int_equal(round_trips_of(&r, FAR_OP_INSERT, "pc"), 3);
    far_stats full = measure_op(&r, FAR_OP_INSERT, "pd");
    assert_int_equal(full.round_trips, 4); /* batches: root slot, node, {freeze, WRITE node}, CAS */
    assert_int_equal(full.masked_cas, 3);
    for (const char *key = "efg"; *key; key++)
        assert_int_equal(round_trips_of(&r, FAR_OP_INSERT, (char[]){'p', *key, 0}), 3);
    full = measure_op(&r, FAR_OP_INSERT, "ph");
    assert_int_equal(full.round_trips, 4);
    assert_int_equal(full.masked_cas, 7);
    for (const char *key = "ijklmno"; *key; key++)
        assert_int_equal(round_trips_of(&r, FAR_OP_INSERT, (char[]){'p', *key, 0}), 3);
    assert_int_equal(measure_op(&r, FAR_OP_INSERT, "pp").round_trips, 4);
    /* The node is an N32 now, which has several buckets. The batches are: root slot, the bucket of 'q', CAS. */
    assert_int_equal(round_trips_of(&r, FAR_OP_INSERT, "pq"), 3);
    assert_int_equal(round_trips_of(&r, FAR_OP_INSERT, "long_way_a"), 2);
    assert_int_equal(round_trips_of(&r, FAR_OP_INSERT, "long_way_b"), 3);
    assert_int_equal(round_trips_of(&r, FAR_OP_INSERT, "long_x"),
                     3); /* batches: root slot, node with its header, {WRITE node, CAS} */
    close_index(&r);
}


/* Proves that with one lock per node (lock_free=0) a write takes two more round trips, and a read takes no more than
 * without locks. */
TEST(a_lock_for_every_write_costs_two_round_trips) {
    rig r;
    open_index(&r, "sim:size=32M,memory_nodes=1,faults=none", "est=0,lock_free=0");
    assert_int_equal(round_trips_of(&r, FAR_OP_INSERT, "pa"), 4);
    assert_int_equal(round_trips_of(&r, FAR_OP_GET, "pa"), 2);
    assert_int_equal(round_trips_of(&r, FAR_OP_GET, "x"), 1);
    assert_int_equal(round_trips_of(&r, FAR_OP_UPDATE, "pa"), 5);
    assert_int_equal(round_trips_of(&r, FAR_OP_INSERT, "pb"), 5);
    assert_int_equal(round_trips_of(&r, FAR_OP_GET, "pb"), 3);
    assert_int_equal(round_trips_of(&r, FAR_OP_DELETE, "pb"), 6);
    close_index(&r);
}


/* Proves the number of round trips of an insert into a full node for each switched-off technique. See the table `ways`.
 */
TEST(without_its_techniques_a_replacement_takes_longer) {
    static const struct {
        const char *sim, *options;
        uint64_t trips;
    } ways[] = {
        {"", "est=0", 4},
        /* {WRITE, CAS} is one batch; with spec_write the WRITE is in the batch of the freeze */
        {"", "est=0,spec_write=0", 4},
        {"", "est=0,spec_write=0,colocate=0", 5},
        {",masked_cas=off", "est=0", 4}, /* the bucket was read before, so CAS can be used instead of masked CAS */
        {",masked_cas=off", "est=0,masked_freeze=0,spec_write=0", 4},
        /* the node is replaced without the key, and then the insert is repeated: root slot, node, CAS */
        {"", "est=0,rider=0", 7},
        {"", "est=0,header_inline=0", 5}, /* one round trip more, because the header must be read to prove the path */
        {"", "est=0,lock_free=0", 6},     /* two round trips more: one to lock, one to unlock */
    };
    for (unsigned i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        rig r;
        char uri[128];
        snprintf(uri, sizeof(uri), "sim:size=32M,memory_nodes=2,faults=none%s", ways[i].sim);
        open_index(&r, uri, ways[i].options);
        for (const char *key = "abcdefg"; *key; key++)
            assert_true(round_trips_of(&r, FAR_OP_INSERT, (char[]){'p', 'q', *key, 0}) <= 9);
        uint64_t got = round_trips_of(&r, FAR_OP_INSERT, "pqh");
        if (got != ways[i].trips)
            fail_msg("%s %s: %llu round trips, not %llu", ways[i].sim, ways[i].options, (unsigned long long)got,
                     (unsigned long long)ways[i].trips);
        close_index(&r);
    }
}


/* ---- A million ---- */

typedef struct average {
    double trips, read_bytes, freezes;
} average;


static average measure_keys(rig *r, const char *keys, far_op_kind kind, uint64_t from, uint64_t to) {
    far_keyset *set;
    far_stats before, after;
    char key[FAR_KEY_MAX], value[64] = {0};
    assert_int_equal(far_keyset_open(keys, 1, &set, NULL, 0), 0);
    assert_int_equal(far_session_stats_of(r->session, kind, &before), 0);
    for (uint64_t i = from; i < to; i++) {
        size_t length = far_keyset_key(set, i, key);
        int result = kind == FAR_OP_INSERT   ? far_insert(r->session, r->index, key, length, value, sizeof(value))
                     : kind == FAR_OP_UPDATE ? far_update(r->session, r->index, key, length, value, sizeof(value))
                                             : far_get(r->session, r->index, key, length, value, sizeof(value), NULL);
        assert_int_equal(result, 0);
    }
    assert_int_equal(far_session_stats_of(r->session, kind, &after), 0);
    far_keyset_close(set);
    far_stats d = far_stats_diff(&after, &before);
    double n = (double)(to - from);
    return (average){(double)d.round_trips / n, (double)d.bytes_read / n, (double)d.masked_cas / n};
}


#define BETWEEN(value, low, high)                                                                                      \
    do {                                                                                                               \
        double value_ = (value);                                                                                       \
        if (value_ < (low) || value_ > (high))                                                                         \
            fail_msg("%s is %.3f, not between %.3f and %.3f", #value, value_, (double)(low), (double)(high));          \
    } while (0)

enum { MILLION = 1000000, SOME = 100000, EMAILS = 300000, SCANS = 2000 };


/* ---- A plain adaptive radix tree, computed from its keys ---- */

typedef struct text {
    uint8_t bytes[56];
    size_t length;
} text;


static int compare_texts(const void *a, const void *b) {
    const text *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, x->length < y->length ? x->length : y->length);
    return order ? order : (x->length > y->length) - (x->length < y->length);
}


static uint64_t art_node_bytes(unsigned children) { /* header of 16 bytes, key bytes or index, pointers */
    return children <= 4    ? 16 + 4 + 4 * 8
           : children <= 16 ? 16 + 16 + 16 * 8
           : children <= 48 ? 16 + 256 + 48 * 8
                            : 16 + 256 * 8;
}


/* Adds the READs and bytes that gets of all these keys need below the node at which the keys diverge, this node
 * included. */
static void add_subtree(const text *keys, size_t count, size_t depth, uint64_t *reads, uint64_t *bytes) {
    if (count == 1)
        return;
    while (depth < keys[0].length && depth < keys[count - 1].length &&
           keys[0].bytes[depth] == keys[count - 1].bytes[depth])
        depth++;
    unsigned children = 0;
    for (size_t from = 0, to; from < count; from = to, children++) {
        int symbol = keys[from].length == depth ? -1 : keys[from].bytes[depth];
        for (to = from + 1; to < count && symbol >= 0 && keys[to].bytes[depth] == symbol;)
            to++;
        add_subtree(keys + from, to - from, depth + 1, reads, bytes);
    }
    *reads += count;
    *bytes += count * art_node_bytes(children);
}


static average compute_plain_art(const char *keys, uint64_t count) {
    far_keyset *set;
    text *texts = malloc(count * sizeof(*texts));
    uint64_t reads = 0, bytes = 0;
    assert_non_null(texts);
    assert_int_equal(far_keyset_open(keys, 1, &set, NULL, 0), 0);
    for (uint64_t i = 0; i < count; i++) {
        char key[FAR_KEY_MAX];
        texts[i].length = far_keyset_key(set, i, key);
        assert_true(texts[i].length <= sizeof(texts[i].bytes));
        memcpy(texts[i].bytes, key, texts[i].length);
        bytes += (8 + texts[i].length + 64 + 15) / 16 * 16; /* the leaf */
        reads++;
    }
    far_keyset_close(set);
    qsort(texts, count, sizeof(*texts), compare_texts);
    add_subtree(texts, count, 0, &reads, &bytes);
    free(texts);
    return (average){.trips = (double)reads / (double)count, .read_bytes = (double)bytes / (double)count};
}


/* Consumer of a scan that ignores the pairs. */
static int ignore_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)ctx, (void)key, (void)key_len, (void)value, (void)value_len;
    return 0;
}


/* Returns the average round trips of `count` scans of 100 pairs, each of which starts at another key. */
static double measure_scans(rig *r, const char *keys, uint64_t count) {
    far_keyset *set;
    far_stats before, after;
    char from[FAR_KEY_MAX];
    assert_int_equal(far_keyset_open(keys, 1, &set, NULL, 0), 0);
    assert_int_equal(far_session_stats_of(r->session, FAR_OP_SCAN, &before), 0);
    for (uint64_t i = 0; i < count; i++) {
        size_t length = far_keyset_key(set, i, from);
        assert_true(far_scan(r->session, r->index, from, length, NULL, 0, 100, ignore_pair, NULL) > 0);
    }
    assert_int_equal(far_session_stats_of(r->session, FAR_OP_SCAN, &after), 0);
    far_keyset_close(set);
    return (double)(after.round_trips - before.round_trips) / (double)count;
}


static average measure_default_gets(const char *keys, uint64_t count, double *scan_trips) {
    rig r;
    open_index(&r, "local:2x256M", "adjust=0,one_by_one=0");
    measure_keys(&r, keys, FAR_OP_INSERT, 0, count);
    measure_keys(&r, keys, FAR_OP_GET, 0, SOME);
    average gets = measure_keys(&r, keys, FAR_OP_GET, 0, SOME);
    *scan_trips = measure_scans(&r, keys, SCANS);
    close_index(&r);
    return gets;
}


/* Proves that for a million random keys the tree has two full levels, then nodes of about 15 children, and 6 % of the
 * leaves one level deeper. So round trips and bytes must be in narrow ranges. */
TEST(a_million_u64_keys_from_the_root) {
    rig r;
    open_index(&r, "local:2x256M", "est=0,key_size=8");
    average first = measure_keys(&r, "u64", FAR_OP_INSERT, 0, MILLION / 2),
            load = measure_keys(&r, "u64", FAR_OP_INSERT, MILLION / 2, MILLION);
    average get = measure_keys(&r, "u64", FAR_OP_GET, 0, SOME),
            update = measure_keys(&r, "u64", FAR_OP_UPDATE, 0, SOME);
    BETWEEN(get.trips, 4.0, 4.1);
    BETWEEN(get.read_bytes, 150, 420);
    BETWEEN(update.trips - get.trips, 0.99, 1.01);
    BETWEEN(load.trips, 4.0, 4.4);
    BETWEEN((first.freezes + load.freezes) / 2, 0.1, 2.0);
    close_index(&r);

    rig plain;
    open_index(&plain, "local:2x256M", "est=0,key_size=8,hashed_nodes=0");
    measure_keys(&plain, "u64", FAR_OP_INSERT, 0, MILLION);
    average whole = measure_keys(&plain, "u64", FAR_OP_GET, 0, SOME);
    /* hashed nodes do not change the shape of the tree, so the round trips are the same with whole nodes */
    BETWEEN(whole.trips, get.trips - 0.001, get.trips + 0.001);
    BETWEEN(whole.read_bytes / get.read_bytes, 6, 40);
    close_index(&plain);

    double scan_trips;
    average art = compute_plain_art("u64", MILLION), all = measure_default_gets("u64", MILLION, &scan_trips);
    print_message("u64: plain ART %.2f, %.0f bytes; here %.2f, %.0f; all on %.2f, %.0f\n", art.trips, art.read_bytes,
                  whole.trips, whole.read_bytes, all.trips, all.read_bytes);
    BETWEEN(whole.trips / art.trips, 0.9, 1.1);
    BETWEEN(whole.read_bytes / art.read_bytes, 0.9, 1.1);
    BETWEEN(whole.read_bytes / all.read_bytes, 6, 60);
    print_message("u64: a scan of 100 takes %.2f round trips\n", scan_trips);
    BETWEEN(scan_trips, 1, 6);
}


/* Proves for mail addresses that hashed nodes keep the round trips and reduce the bytes, and that with whole nodes the
 * tree costs the same as a plain ART. */
TEST(email_keys_from_the_root) {
    rig r, plain;
    open_index(&r, "local:2x256M", "est=0");
    measure_keys(&r, "email", FAR_OP_INSERT, 0, EMAILS);
    average get = measure_keys(&r, "email", FAR_OP_GET, 0, SOME);
    close_index(&r);
    open_index(&plain, "local:2x256M", "est=0,hashed_nodes=0");
    measure_keys(&plain, "email", FAR_OP_INSERT, 0, EMAILS);
    average whole = measure_keys(&plain, "email", FAR_OP_GET, 0, SOME);
    close_index(&plain);
    BETWEEN(whole.trips, get.trips - 0.001, get.trips + 0.001);
    BETWEEN(whole.trips, 8, 16);
    BETWEEN(whole.read_bytes / get.read_bytes, 2, 20);

    double scan_trips;
    average art = compute_plain_art("email", EMAILS), all = measure_default_gets("email", EMAILS, &scan_trips);
    print_message("email: plain ART %.2f, %.0f bytes; here %.2f, %.0f; all on %.2f, %.0f\n", art.trips, art.read_bytes,
                  whole.trips, whole.read_bytes, all.trips, all.read_bytes);
    BETWEEN(whole.trips / art.trips, 0.9, 1.1);
    /* The root, which is always an N256 here, is left out. The other nodes are a little smaller than those of an ART,
     * because there are more types. */
    BETWEEN((whole.read_bytes - 2064) / (art.read_bytes - art_node_bytes(40)), 0.8, 1.1);
    BETWEEN(whole.read_bytes / all.read_bytes, 2, 30);
    print_message("email: a scan of 100 takes %.2f round trips\n", scan_trips);
    BETWEEN(scan_trips, 1, 8);
}


/* ---- Scans and multi-gets ---- */

/* Proves that a scan of 100 pairs takes one round trip per level and few for the leaves. */
TEST(a_scan_of_100_takes_few_round_trips) {
    rig r;
    far_stats before, after;
    open_index(&r, "local:2x256M", "est=0,one_by_one=0");
    measure_keys(&r, "u64", FAR_OP_INSERT, 0, 300000);
    assert_int_equal(far_session_stats_of(r.session, FAR_OP_SCAN, &before), 0);
    for (unsigned i = 0; i < 200; i++) {
        uint8_t from[8] = {(uint8_t)(i * 37 % 250), (uint8_t)(i * 101), (uint8_t)(i * 53)};
        assert_int_equal(far_scan(r.session, r.index, from, 8, NULL, 0, 100, ignore_pair, NULL), 100);
    }
    assert_int_equal(far_session_stats_of(r.session, FAR_OP_SCAN, &after), 0);
    BETWEEN((double)(after.round_trips - before.round_trips) / 200, 4, 3 + 4);
    close_index(&r);
}


/* Proves that after a load in key order by one client, 100 leaves are in a few contiguous areas of memory, so a scan
 * reads them with few READs. */
TEST(adjacent_leaves_are_one_read) {
    rig r;
    far_stats before, after;
    open_index(&r, "local:64M", "est=0,one_by_one=0");
    for (unsigned i = 0; i < 20000; i++) {
        uint8_t key[4] = {0, 0, (uint8_t)(i >> 8), (uint8_t)i};
        assert_int_equal(far_insert(r.session, r.index, key, 4, "some value of 24 bytes..", 24), 0);
    }
    assert_int_equal(far_session_stats_of(r.session, FAR_OP_SCAN, &before), 0);
    for (unsigned i = 0; i < 190; i++) {
        uint8_t from[4] = {0, 0, (uint8_t)(i % 77), (uint8_t)(i * 13)};
        assert_int_equal(far_scan(r.session, r.index, from, 4, NULL, 0, 100, ignore_pair, NULL), 100);
    }
    assert_int_equal(far_session_stats_of(r.session, FAR_OP_SCAN, &after), 0);
    BETWEEN((double)(after.reads - before.reads) / 190, 3, 100 / 8);
    close_index(&r);
}


/* Proves that gets that are submitted together (a multi-get) take as many round trips as their longest descent, and
 * that equal READs of these gets are posted once. The guard is find.c, dart_get_many. */
TEST(gets_submitted_together_share_their_round_trips) {
    rig r;
    enum { TOGETHER = 16 };
    far_op ops[TOGETHER], *list[TOGETHER], *done[TOGETHER];
    far_stats before, after;
    char keys[TOGETHER][8], values[TOGETHER][64];
    open_index(&r, "local:64M", "est=0");
    memset(ops, 0, sizeof(ops));
    for (unsigned i = 0; i < TOGETHER; i++) {
        ops[i] = (far_op){.kind = FAR_OP_GET, .index = r.index, .key = keys[i], .value = values[i], .capacity = 64};
        ops[i].key_len = (size_t)sprintf(keys[i], "p%u%c", i % 3, (char)('a' + i));
        list[i] = &ops[i];
        assert_int_equal(far_put(r.session, r.index, keys[i], ops[i].key_len, keys[i], ops[i].key_len), 0);
    }
    assert_int_equal(far_session_stats_of(r.session, FAR_OP_GET, &before), 0);
    assert_int_equal(far_submit(r.session, list, TOGETHER), TOGETHER);
    assert_int_equal(far_reap(r.session, done, TOGETHER, TOGETHER), TOGETHER);
    assert_int_equal(far_session_stats_of(r.session, FAR_OP_GET, &after), 0);
    for (unsigned i = 0; i < TOGETHER; i++)
        assert_true(ops[i].result == 0 && ops[i].value_len == ops[i].key_len &&
                    memcmp(values[i], keys[i], ops[i].key_len) == 0);
    assert_int_equal(after.round_trips - before.round_trips, 4); /* root, p, p0..p2, leaves */
    assert_int_equal(after.reads - before.reads, 1 + 1 + 3 + TOGETHER);
    close_index(&r);
}


enum { LENGTHS = 12 };


/* Adds READs of one address with increasing lengths to a batch, each length twice. */
static int read_lengths_task(far_task *t, void *arg) {
    const far_index *index = arg;
    dart_shared_reads shared;
    uint64_t words[LENGTHS], got[2][LENGTHS][LENGTHS] = {0};
    assert_true(dart_shared_reads_init(t, &shared, 1));
    far_read(t, index->descriptor, words, sizeof(words));
    int err = far_wait(t);
    for (unsigned twice = 0; twice < 2; twice++)
        for (unsigned i = 0; i < LENGTHS; i++)
            dart_add_shared_read(t, &shared, index->descriptor, got[twice][i], 8 * (i + 1), 0);
    assert_true(shared.count >= 4); /* at least some of the second READs are copies */
    if (err < 0 || (err = far_wait(t)) < 0)
        return err;
    dart_shared_reads_copy(&shared);
    for (unsigned i = 0; i < LENGTHS; i++) {
        assert_memory_equal(got[0][i], words, 8 * (i + 1));
        assert_memory_equal(got[1][i], words, 8 * (i + 1));
    }
    return 0;
}


/* Equal READs of a batch are posted once, and the result is copied. Proves that a longer READ of the same address is
 * not served by the copy of a shorter one. Fails if shared_reads.c, find_read compares only addresses. */
TEST(equal_reads_of_one_batch_are_shared) {
    rig r;
    open_index(&r, "local:16M", "est=0");
    assert_int_equal(far_session_call(r.session, FAR_STATS_OTHER, true, read_lengths_task, r.index), 0);
    close_index(&r);
}


/* ---- Scans that start at an express node ---- */

typedef struct seen_keys {
    unsigned count;
    uint8_t first[8], last[8]; /* the first and last bytes of each key */
} seen_keys;


static int note_key(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    seen_keys *seen = ctx;
    (void)value, (void)value_len;
    seen->first[seen->count] = *(const uint8_t *)key;
    seen->last[seen->count++] = ((const uint8_t *)key)[key_len - 1];
    return 0;
}


/* Proves that after the keys with prefix "A\xff", a scan continues with "B". Fails if traversal_start.c, key_after_prefix
 * adds 1 with a carry but does not cut the key after the carry, because the scan then continues after "B\xff" or "B\0".
 * Also fails if the function makes no carry, because the scan then continues after "A\0", with four times as many
 * READs. */
TEST(a_scan_continues_after_a_prefix_that_ends_in_ff) {
    rig r;
    /* the two caches are switched off, so scans use only the skip table */
    open_index(&r, "local:16M", "upkeep_batch=1,adjust=0,slot_cache=0,scan_cache=0,one_by_one=0");
    uint8_t key[] = {'A', 0xff, 0};
    for (unsigned last = 0; last < 12; last++) {
        for (unsigned i = 0; i < 3; i++) {
            key[0] = "AAB"[i];
            key[1] = (uint8_t) "\x10\xff\x01"[i];
            key[2] = (uint8_t)last;
            assert_int_equal(far_insert(r.session, r.index, key, 3, "value", 5), 0);
        }
    }
    assert_int_equal(far_insert(r.session, r.index, "B", 1, "value", 5), 0);
    memcpy(key, "A\xff\x0a", 3);
    for (unsigned i = 0; i < 300; i++) /* enough gets that lookups try length 2 and then prefer it */
        assert_int_equal(far_get(r.session, r.index, key, 3, (char[8]){0}, 8, NULL), 0);
    far_stats before, after;
    far_session_stats_of(r.session, FAR_OP_SCAN, &before);
    for (unsigned i = 0; i < 300; i++) {
        seen_keys seen = {0};
        assert_int_equal(far_scan(r.session, r.index, key, 3, NULL, 0, 4, note_key, &seen), 4);
        assert_memory_equal(seen.first, "AABB", 4);
        assert_memory_equal(seen.last, ((uint8_t[]){10, 11, 'B', 0}), 4);
    }
    far_session_stats_of(r.session, FAR_OP_SCAN, &after);
    assert_true(after.reads - before.reads < 300 * 10);
    close_index(&r);
}


/* ---- Many memory nodes ---- */

enum { NODES = 8 };
static uint64_t verbs_to[NODES];
static const far_fabric_ops *real_ops;


static void count_and_post(far_conn *conn, far_batch *batch) {
    for (uint32_t i = 0; i < batch->count; i++)
        verbs_to[far_addr_node(batch->verbs[i].addr)]++;
    real_ops->post(conn, batch);
}


/* Proves that with a small cache, in which gets read the skip table, inner nodes and leaves, the busiest memory node
 * has at most 1.3 times the average number of READs. Fails if a child is always on the memory node of its parent,
 * because then all inner nodes are on one. */
TEST(gets_spread_over_the_memory_nodes) {
    rig r;
    static far_fabric_ops counting;
    far_keyset *keys;
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    pool_options.rdwc = -1;
    pool_options.cache_bytes = 64 << 10;
    assert_int_equal(far_pool_open("local:8x64M", &pool_options, &r.pool), 0);
    assert_int_equal(far_session_open(r.pool, &r.session), 0);
    assert_int_equal(far_index_create(r.session, "map", "dart", "", &r.index), 0);
    assert_int_equal(far_keyset_open("u64", 1, &keys, NULL, 0), 0);
    char key[FAR_KEY_MAX], value[8] = {0};
    for (uint64_t i = 0; i < 200000; i++)
        assert_int_equal(far_insert(r.session, r.index, key, far_keyset_key(keys, i, key), value, sizeof(value)), 0);
    real_ops = r.pool->fabric->ops;
    counting = *real_ops;
    counting.post = count_and_post;
    uint64_t sum = 0, most = 0;
    far_session *session = r.session;
    for (unsigned round = 0; round < 2; round++) { /* the first round creates the missing entries */
        if (round) {
            r.pool->fabric->ops = &counting;
            /* a session that posts its verbs, so that they are counted */
            assert_int_equal(far_session_open(r.pool, &session), 0);
        }
        for (uint64_t i = 0; i < 200000; i++)
            assert_int_equal(far_get(session, r.index, key, far_keyset_key(keys, i, key), value, sizeof(value), NULL),
                             0);
    }
    far_session_close(session);
    r.pool->fabric->ops = real_ops;
    for (unsigned i = 0; i < NODES; i++) {
        sum += verbs_to[i];
        most = verbs_to[i] > most ? verbs_to[i] : most;
    }
    print_message("the busiest memory node has %.2f times its share of %llu verbs\n",
                  (double)(most * NODES) / (double)sum, (unsigned long long)sum);
    assert_true(sum > 400000 && most * NODES * 10 <= sum * 13);
    far_keyset_close(keys);
    close_index(&r);
}


/* ---- Scans that start at several express nodes ---- */

enum { DEEP_KEYS = 20000 };

typedef struct key_list {
    unsigned count;
    struct {
        uint8_t length, bytes[40];
    } key[DEEP_KEYS];
} key_list;


static int append_to_list(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    key_list *list = ctx;
    (void)value, (void)value_len;
    assert_true(list->count < DEEP_KEYS && key_len <= 40);
    memset(&list->key[list->count], 0, sizeof(list->key[0]));
    list->key[list->count].length = (uint8_t)key_len;
    memcpy(list->key[list->count++].bytes, key, key_len);
    return 0;
}


/* Proves that scans in a deep tree, which start at several express nodes at once, return every key in order. The guard
 * is traversal.c, start_at_express_chain. */
TEST(scans_of_a_deep_tree_give_every_key) {
    rig r;
    open_index(&r, "local:64M", "adjust=0,upkeep_batch=1,one_by_one=0");
    key_list *all = test_calloc(1, sizeof(*all)), *some = test_calloc(1, sizeof(*some));
    measure_keys(&r, "email", FAR_OP_INSERT, 0, DEEP_KEYS);
    far_scan(r.session, r.index, NULL, 0, NULL, 0, 0, append_to_list, all);
    assert_int_equal(all->count, DEEP_KEYS);
    for (unsigned at = 0; at < DEEP_KEYS; at += 37) {
        unsigned wanted = at % 2 ? 100 : 300, left = DEEP_KEYS - at, bound = at + wanted / 2;
        bool bounded = at % 3 == 0 && bound < DEEP_KEYS;
        some->count = 0;
        far_scan(r.session, r.index, all->key[at].bytes, all->key[at].length, bounded ? all->key[bound].bytes : NULL,
                 bounded ? all->key[bound].length : 0, wanted, append_to_list, some);
        assert_int_equal(some->count, bounded ? wanted / 2 : left < wanted ? left : wanted);
        assert_memory_equal(some->key, &all->key[at], some->count * sizeof(some->key[0]));
    }
    test_free(all);
    test_free(some);
    close_index(&r);
}
