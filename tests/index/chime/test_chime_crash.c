/* CHIME, client failures. A client fails at every verb, and after every unit of every WRITE, of runs of changes that
 * hop, split leaves, grow the root and merge. In further runs a second client fails during the repair. The tests prove
 * that the surviving clients find every acknowledged change, and at most one change that was in progress; that they can
 * continue; that check reports no problem; and that a full garbage collection finds no leaked memory. */
#include "test.h"
#include "verify/explore.h"

#include <stdio.h>
#include <string.h>

enum { KEYS_MAX = 160 };

typedef enum { ABSENT, OLD, NEW } state;

typedef struct story {
    const char *name, *options;
    unsigned present;      /* keys 0 .. present - 1 are inserted before the test */
    unsigned from, to;     /* the client that fails changes these keys one after the other */
    char change;           /* the kind of change: i(nsert), u(pdate), d(elete) */
    unsigned value_bytes;  /* size of all values; 0: keys and values of several sizes */
    bool twice;            /* a second client fails during the repair */
    unsigned long_keys;    /* number of bytes that precede the number in a key */
    unsigned acknowledged; /* number of changes that the failing client has completed */
} story;

#define SMALL "span=12,hop=4,merge=sparse"
#define FIXED SMALL ",key_size=8,value_size=8"

static story stories[] = {
    {"insert, hop, split, root", SMALL, 0, 0, 16, 'i', 0, false, 0, 0},
    {"the same with keys and values of 8 bytes", FIXED, 0, 0, 16, 'i', 8, false, 0, 0},
    {"the same with long keys", SMALL, 0, 0, 14, 'i', 0, false, 40, 0},
    {"insert into full inner nodes", FIXED, 96, 96, 120, 'i', 8, false, 0, 0},
    {"update", SMALL, 12, 0, 4, 'u', 0, false, 0, 0},
    {"update of 8 bytes", FIXED, 12, 0, 4, 'u', 8, false, 0, 0},
    {"delete and merge", SMALL, 24, 0, 24, 'd', 0, false, 0, 0},
    {"delete and merge of 8 bytes", FIXED, 24, 0, 24, 'd', 8, false, 0, 0},
    {"delete and merge of long keys", SMALL, 20, 0, 20, 'd', 0, false, 40, 0},
    {"delete and merge of inner nodes", FIXED, 110, 40, 110, 'd', 8, false, 0, 0},
    {"no wrap", FIXED ",wrap=off", 0, 0, 14, 'i', 8, false, 0, 0},
};

static story larger[] = {
    {"values of 16 bytes: insert, hop, split, root", SMALL ",key_size=8,value_size=16", 0, 0, 14, 'i', 16, false, 0, 0},
    {"update of 16 bytes", SMALL ",key_size=8,value_size=16", 6, 0, 2, 'u', 16, false, 0, 0},
    {"update of 40 bytes", SMALL ",key_size=8,value_size=40", 6, 0, 2, 'u', 40, false, 0, 0},
    {"delete and merge of 40 bytes", SMALL ",key_size=8,value_size=40", 14, 0, 14, 'd', 40, false, 0, 0},
    {"repair of a split, 40 bytes", SMALL ",key_size=8,value_size=40", 10, 10, 14, 'i', 40, true, 0, 0},
};

static story twice[] = {
    {"repair of a split", FIXED, 8, 8, 14, 'i', 8, true, 0, 0},
    {"repair of a merge", FIXED, 20, 6, 20, 'd', 8, true, 0, 0},
    {"repair with blocks", SMALL, 18, 6, 18, 'd', 0, true, 0, 0},
};


static size_t key_of(const story *st, unsigned n, uint8_t key[64]) {
    uint64_t x = (n + 1) * 0x9e3779b97f4a7c15ull;
    size_t at = 0;
    for (; at < st->long_keys; at++)
        key[at] = 'p';
    for (unsigned i = 0; i < 8; i++)
        key[at++] = (uint8_t)(x >> (56 - 8 * i));
    return at;
}


static size_t value_of(const story *st, unsigned n, char letter, char value[64]) {
    size_t length = st->value_bytes ? st->value_bytes : 11 + n % 30;
    memset(value, letter, length);
    value[0] = (char)n;
    return length;
}


static int write_one(far_session *s, far_index *index, const story *st, unsigned n, char change, char letter) {
    uint8_t key[64];
    char value[64];
    size_t length = key_of(st, n, key), bytes = value_of(st, n, letter, value);
    if (change == 'd')
        return far_delete(s, index, key, length);
    return change == 'i' ? far_insert(s, index, key, length, value, bytes)
                         : far_update(s, index, key, length, value, bytes);
}


static int look_up_key(far_session *s, far_index *index, const story *st, unsigned n) {
    uint8_t key[64];
    char value[64], wanted[64];
    size_t length = key_of(st, n, key), bytes = 0;
    int result = far_get(s, index, key, length, value, sizeof(value), &bytes);
    if (result == FAR_ERR_NOT_FOUND)
        return ABSENT;
    for (int i = OLD; i <= NEW && result == 0; i++)
        if (bytes == value_of(st, n, i == OLD ? 'o' : 'n', wanted) && memcmp(value, wanted, bytes) == 0)
            return i;
    return -1;
}


static int prepare(far_session *s, far_index *index, void *ctx) {
    story *st = ctx;
    st->acknowledged = 0;
    for (unsigned n = 0; n < st->present; n++)
        if (write_one(s, index, st, n, 'i', 'o') < 0)
            return -1;
    for (unsigned i = 0; i < 40; i++) /* continue until the background work has ended */
        if (look_up_key(s, index, st, i % (st->present + 1)) < 0)
            return -1;
    return 0;
}


static int victim(far_session *s, far_index *index, void *ctx) {
    story *st = ctx;
    for (unsigned n = st->from; n < st->to; n++) {
        if (write_one(s, index, st, n, st->change, 'n') < 0)
            return -1;
        st->acknowledged++;
    }
    for (unsigned i = 0; i < 30; i++)
        look_up_key(s, index, st, i % st->to);
    return 0;
}


/* The second client: reads and writes every key, and so repairs the nodes that the first client left behind. */
static int recover_as_second(far_session *s, far_index *index, void *ctx) {
    story *st = ctx;
    for (unsigned n = 0; n < st->to; n++) {
        int is = look_up_key(s, index, st, n);
        if (is < 0)
            return -1;
        if (is != ABSENT && write_one(s, index, st, n, 'u', is == OLD ? 'o' : 'n') < 0)
            return -1;
    }
    return 0;
}


static int expected(const story *st, unsigned n, bool changed) {
    if (n < st->from || n >= st->to || !changed)
        return n < st->present ? OLD : ABSENT;
    return st->change == 'd' ? ABSENT : NEW;
}


typedef struct counted {
    unsigned pairs;
    bool sorted;
    uint8_t last[64];
    size_t length;
} counted;


static int count_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    counted *c = ctx;
    int order = memcmp(c->last, key, c->length < key_len ? c->length : key_len);
    (void)value;
    (void)value_len;
    c->sorted &= c->pairs == 0 || order < 0;
    memcpy(c->last, key, key_len);
    c->length = key_len;
    c->pairs++;
    return 0;
}


static int survive(far_session *s, far_index *index, void *ctx) {
    story *st = ctx;
    unsigned last = st->to > st->present ? st->to : st->present, there = 0;
    for (unsigned n = 0; n < last; n++) {
        bool done = n < st->from + st->acknowledged, maybe = n == st->from + st->acknowledged;
        int is = look_up_key(s, index, st, n);
        if (is < 0 || (is != expected(st, n, done) && !(maybe && is == expected(st, n, true)))) {
            fprintf(stderr, "key %u looks %d, expected %d (%u acknowledged)\n", n, is, expected(st, n, done),
                    st->acknowledged);
            return -1;
        }
        there += is != ABSENT;
    }
    counted c = {.sorted = true};
    if (far_scan(s, index, NULL, 0, NULL, 0, 0, count_pair, &c) < 0 || c.pairs != there || !c.sorted) {
        fprintf(stderr, "a scan gives %u pairs of %u\n", c.pairs, there);
        return -1;
    }
    for (unsigned n = 0; n < last; n++) {
        if (look_up_key(s, index, st, n) == ABSENT && write_one(s, index, st, n, 'i', 'o') < 0)
            return -1;
        if (write_one(s, index, st, n, 'u', 'n') < 0 || look_up_key(s, index, st, n) != NEW)
            return -1;
    }
    for (unsigned n = 0; n < last; n += 2)
        if (write_one(s, index, st, n, 'd', 'n') < 0)
            return -1;
    for (unsigned n = 0; n < last; n++)
        if (look_up_key(s, index, st, n) != (n % 2 ? NEW : ABSENT))
            return -1;
    return 0;
}


static void explore(story *st, const char *sim) {
    far_explore e = {.kind = "chime",
                     .options = st->options,
                     .sim = sim,
                     .prepare = prepare,
                     .victim = victim,
                     .second = st->twice ? recover_as_second : NULL,
                     .stride = 7,
                     .changes_only = true,
                     .survive = survive,
                     .every_unit = !st->twice,
                     .collect = true,
                     .ctx = st,
                     .out = stderr};
    far_explore_result result;
    assert_int_equal(far_explore_run(&e, &result), 0);
    print_message("%s, %s: %u verbs, %u deaths\n", st->name, sim, (unsigned)result.verbs, (unsigned)result.cuts);
    assert_int_equal(result.problems, 0);
    assert_true(result.verbs >= 8);
}


static const char *const fabrics[] = {"atomic_bytes=64", "atomic_bytes=8", "atomic_bytes=64,masked_cas=off",
                                      "atomic_bytes=8,masked_cas=off,atomics_in_order=on"};


TEST(every_failure_is_survived) {
    for (size_t i = 0; i < sizeof(stories) / sizeof(stories[0]); i++)
        explore(&stories[i], fabrics[i % 2]);
    explore(&stories[0], fabrics[1]);
    explore(&stories[1], fabrics[2]);
    explore(&stories[7], fabrics[0]);
    explore(&stories[7], fabrics[3]);
}


TEST(a_second_failure_is_survived) {
    for (size_t i = 0; i < sizeof(twice) / sizeof(twice[0]); i++)
        explore(&twice[i], fabrics[i % 2]);
}


/* Proves that after a client failure a value larger than a word is either the old or the new one, never a mixture, in
 * slots where lines do not tear and in pair blocks. */
TEST(larger_values_are_never_torn) {
    for (size_t i = 0; i < sizeof(larger) / sizeof(larger[0]); i++)
        explore(&larger[i], fabrics[0]);
    explore(&larger[1], fabrics[1]);
    explore(&larger[2], fabrics[2]);
}
