/* CHIME compared with a simple model: random operations of one client, for every geometry and layout, with both tearing
 * granules, with and without masked CAS. The structure is checked after every few operations. */
#include "../support/problem.h"
#include "base/random.h"
#include "farindex.h"
#include "test.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { KEYS = 400, STEPS = 6000 };

typedef struct model {
    far_session *session;
    far_index *index;
    unsigned key_bytes, value_bytes; /* sizes of keys and values; 0: any size */
    unsigned long_keys;              /* number of bytes that precede the number in a key */
    unsigned number[KEYS];           /* 0: the key is absent; otherwise the number of its value */
} model;


/* Makes the key of a number. Keys are ordered like their numbers. */
static size_t key_of(const model *m, unsigned n, uint8_t key[64]) {
    size_t at = 0;
    for (; at < m->long_keys; at++)
        key[at] = 'c';
    if (m->key_bytes || n % 3)
        for (unsigned i = 0; i < (m->key_bytes ? m->key_bytes : 8); i++)
            key[at++] = i < 4 ? (uint8_t)(n >> (24 - 8 * i)) : 0;
    else /* with shorter keys in between, such as "a" before "a\0" */
        for (unsigned i = 0; i < 4; i++)
            key[at++] = (uint8_t)(n >> (24 - 8 * i));
    return at;
}


static size_t value_of(const model *m, unsigned number, uint8_t value[256]) {
    size_t length = m->value_bytes ? m->value_bytes : number % 200;
    memset(value, (int)(number & 0xff), length);
    if (length >= 4)
        memcpy(value, &number, 4);
    return length;
}


typedef struct pass {
    const model *m;
    bool backward;
    unsigned next, pairs; /* number of the key that the scan returns next, or of an absent key before it */
} pass;


static int look_at_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    pass *p = ctx;
    uint8_t k[64], v[256];
    while (p->next < KEYS && !p->m->number[p->next])
        p->next += p->backward ? -1u : 1;
    assert_true(p->next < KEYS);
    assert_int_equal(key_len, key_of(p->m, p->next, k));
    assert_memory_equal(key, k, key_len);
    assert_int_equal(value_len, value_of(p->m, p->m->number[p->next], v));
    assert_memory_equal(value, v, value_len);
    p->next += p->backward ? -1u : 1;
    p->pairs++;
    return 0;
}


/* Scans the keys from..to - 1, or from the key `from` on if `to` is KEYS, in both directions. */
static void scan_from(model *m, unsigned from, unsigned to, uint64_t limit) {
    uint8_t a[64], b[64];
    size_t a_len = key_of(m, from, a), b_len = key_of(m, to, b);
    unsigned there = 0;
    for (unsigned n = from; n < to; n++)
        there += m->number[n] != 0;
    for (unsigned backward = 0; backward < 2; backward++) {
        pass p = {.m = m, .backward = backward, .next = backward ? to - 1 : from};
        const void *end = to == KEYS ? NULL : b;
        int64_t pairs =
            backward ? far_scan_reverse(m->session, m->index, a, a_len, end, end ? b_len : 0, limit, look_at_pair, &p)
                     : far_scan(m->session, m->index, a, a_len, end, end ? b_len : 0, limit, look_at_pair, &p);
        assert_int_equal(pairs, limit && limit < there ? limit : there);
        assert_int_equal(p.pairs, pairs);
    }
}


static void run_step(model *m, far_random *random, unsigned step) {
    unsigned n = (unsigned)far_random_below(random, KEYS), pick = (unsigned)far_random_below(random, 100);
    /* There are three phases: the index grows, shrinks to nothing, or stays about equal. */
    unsigned inserts = step / 1500 % 3 == 0 ? 60 : step / 1500 % 3 == 1 ? 10 : 35;
    uint8_t key[64], value[256], back[256];
    size_t length = key_of(m, n, key), bytes = value_of(m, step + 1, value), found = 0;
    unsigned before = m->number[n];
    if (pick < inserts) {
        bool put = pick % 2;
        int result = put ? far_put(m->session, m->index, key, length, value, bytes)
                         : far_insert(m->session, m->index, key, length, value, bytes);
        assert_int_equal(result, put || !before ? 0 : FAR_ERR_EXISTS);
        m->number[n] = result == 0 ? step + 1 : before;
    } else if (pick < 75) {
        assert_int_equal(far_delete(m->session, m->index, key, length), before ? 0 : FAR_ERR_NOT_FOUND);
        m->number[n] = 0;
    } else if (pick < 80) {
        assert_int_equal(far_update(m->session, m->index, key, length, value, bytes), before ? 0 : FAR_ERR_NOT_FOUND);
        m->number[n] = before ? step + 1 : 0;
    } else if (pick < 97) {
        assert_int_equal(far_get(m->session, m->index, key, length, back, sizeof(back), &found),
                         before ? 0 : FAR_ERR_NOT_FOUND);
        if (before) {
            assert_int_equal(found, value_of(m, before, value));
            assert_memory_equal(back, value, found);
        }
    } else {
        unsigned to = n + (unsigned)far_random_below(random, KEYS - n + 1);
        scan_from(m, n, to, pick == 99 ? 0 : 1 + far_random_below(random, 30));
    }
}


static void run_model(const char *sim, const char *options, unsigned long_keys) {
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    far_pool *pool;
    const char *sizes = strstr(options, "key_size=");
    model m = {.long_keys = long_keys};
    far_random random;
    if (sizes)
        assert_int_equal(sscanf(sizes, "key_size=%u,value_size=%u", &m.key_bytes, &m.value_bytes), 2);
    pool_options.cache_bytes = 16 << 10;
    assert_int_equal(far_pool_open(sim, &pool_options, &pool), 0);
    assert_int_equal(far_session_open(pool, &m.session), 0);
    assert_int_equal(far_index_create(m.session, "map", "chime", options, &m.index), 0);
    far_random_seed(&random, strlen(options) + long_keys);
    for (unsigned step = 0; step < STEPS; step++) {
        run_step(&m, &random, step);
        if (step % 300 == 0)
            assert_int_equal(far_index_check(m.session, m.index, fail_at_problem, NULL), 0);
    }
    far_usage usage;
    unsigned there = 0;
    for (unsigned n = 0; n < KEYS; n++)
        there += m.number[n] != 0;
    assert_int_equal(far_index_usage(m.session, m.index, &usage), 0);
    assert_int_equal(usage.keys, there);
    assert_int_equal(far_pool_check(m.session, 1, fail_at_problem, NULL), 0);
    far_index_close(m.index);
    far_session_close(m.session);
    far_pool_close(pool);
}


#define FIXED "key_size=8,value_size=8"
#define SIM   "sim:seed=3,memory_nodes=2,size=8M"


TEST(every_geometry) {
    static const char *const more[] = {"span=12,hop=2",
                                       "span=12,hop=4,merge=sparse",
                                       "span=15,hop=8,merge=sparse",
                                       "span=63,hop=8,merge=sparse",
                                       "span=63,hop=16",
                                       "span=66,hop=2,merge=sparse",
                                       "span=129,hop=4,wrap=off,merge=sparse",
                                       "span=510,hop=2",
                                       "span=33,hop=5,wrap=off",
                                       "span=21,hop=4,merge=off,split=paper"};
    for (unsigned i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        char options[128];
        snprintf(options, sizeof(options), FIXED ",%s", more[i]);
        run_model(SIM, options, 0);
        run_model(SIM ",atomic_bytes=8", more[i], i % 2 * 20);
    }
}


/* Proves that keys and values of every size up to a word are stored in the slots, and values of up to 40 bytes too
 * where lines do not tear. */
TEST(every_inline_size) {
    static const char *const sizes[] = {"key_size=4,value_size=5", "key_size=5,value_size=1", "key_size=8,value_size=7",
                                        "key_size=7,value_size=8"};
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char options[128];
        snprintf(options, sizeof(options), "%s,span=12,hop=4,merge=sparse", sizes[i]);
        run_model(i % 2 ? SIM : SIM ",atomic_bytes=8", options, 0);
    }
    run_model(SIM, "key_size=8,value_size=16,span=12,hop=4,merge=sparse", 0);
    run_model(SIM ",atomic_bytes=8", "key_size=8,value_size=16,span=12,hop=4,merge=sparse", 0);
    run_model(SIM ",masked_cas=off", "key_size=6,value_size=17,span=12,hop=4,merge=sparse,hotspot=1K", 0);
    run_model(SIM, "key_size=8,value_size=40,span=129,hop=3,wrap=off,merge=sparse,cache=off", 0);
}


TEST(every_switch) {
    static const char *const more[] = {"hopscotch=off", "vacancy=off", "replication=off",
                                       "miss=bracket",  "cache=off",   "cache=plain,speculation=off",
                                       "hotspot=1K",    "fusion=off"};
    static const char *const sims[] = {SIM ",masked_cas=off", SIM ",atomics_in_order=on",
                                       SIM ",atomic_bytes=8,masked_cas=off,atomics_in_order=on"};
    for (unsigned i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        char options[128];
        snprintf(options, sizeof(options), "span=12,hop=4,merge=sparse,%s%s", more[i], i % 2 ? "," FIXED : "");
        run_model(sims[i % 3], options, i % 2 ? 0 : 9);
    }
    run_model("local:2x16M", "span=12,hop=4,merge=sparse", 0);
}


/* Proves that a check, which opens the index once more to see whether other clients could, evicts nothing from the
 * caches of the handle. Fails if the second opening uses the same cache budget. */
TEST(a_check_evicts_nothing) {
    static const char *const kinds[] = {"chime", "dolphin", "dart", "smart", "shard"};
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        far_pool_options options = {.cache_bytes = 64 << 10};
        far_usage before, after;
        far_pool *pool;
        model m = {.key_bytes = 8};
        uint8_t key[64], value[8] = {0};
        size_t bytes;
        assert_int_equal(far_pool_open("local:64M", &options, &pool), 0);
        assert_int_equal(far_session_open(pool, &m.session), 0);
        assert_int_equal(
            far_index_create(m.session, "m", kinds[i], i ? NULL : FIXED ",span=12,hop=4,hotspot=30K", &m.index), 0);
        for (unsigned n = 0; n < 20000; n++)
            assert_int_equal(far_put(m.session, m.index, key, key_of(&m, n * 77777, key), value, 8), 0);
        for (unsigned n = 0; n < 20000; n++)
            assert_int_equal(far_get(m.session, m.index, key, key_of(&m, n * 77777, key), value, 8, &bytes), 0);
        assert_int_equal(far_index_usage(m.session, m.index, &before), 0);
        assert_int_equal(far_index_check(m.session, m.index, fail_at_problem, NULL), 0);
        assert_int_equal(far_index_usage(m.session, m.index, &after), 0);
        assert_true(after.cache_bytes + 4096 >= before.cache_bytes);
        far_index_close(m.index);
        far_session_close(m.session);
        far_pool_close(pool);
    }
}
