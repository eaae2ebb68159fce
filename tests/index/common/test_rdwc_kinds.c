/* RDWC with the hooks of each kind (H17, H18 in docs/races/smart.md). A and D are clients of one compute node (`a` and
 * `with` in the code), and B is a client of another one; all operate on one key. A stops before each of its verbs in
 * turn, or the completion of that verb is held back. B runs its operation to the end. Then D starts, and may be merged
 * with A. The results must be those of some order in which B's operation precedes D's.
 *
 * A test fails if a kind calls far_rdwc_mark for a batch after it has posted the batch, calls far_rdwc_seal after it
 * has built the payload, or passes a later batch to far_rdwc_done than the one that decides the result. The wrong
 * results are those of four tests in test_rdwc.c: a get returns a value that was overwritten before it began
 * (delegate_cross_machine); a value is acknowledged and never written (wc_late_join), is written into a leaf that was
 * deleted before (wc_join_after_delete), or has the length of another value (wc_mixed_sizes). */
#include "../support/stage.h"
#include "base/sanitizer.h"
#include "index/common/rdwc.h"
#include "test.h"
#include "verify/history.h"

#include <stdio.h>
#include <string.h>

#define KEY   "keystory"
#define SHORT "8 bytes1"
#define OTHER "8 bytes2"
#define THIRD "8 bytes3"
#define FIRST "8 bytes0"
#define LONG  "a value of another length, which does not fit where the others were"

typedef struct kind {
    const char *name, *options;
    bool warm;      /* the caches of A's compute node contain the key */
    bool one_batch; /* A get takes one round trip, so a later operation cannot join it. */
    bool fixed;     /* all values have 8 bytes */
    /* The kind has gets_never_wait_for_writes, so gets and writes of a key are not merged with each other. */
    bool apart;
    /* A write that joins while the leader searches for its place is combined, because the leader builds the value after
     * this search. */
    bool late_writes;
    /* Many longer keys are inserted after the key, so its leaf was split. The upper fence of the leaf is then a long
     * key in another object, which a client READs to find out whether the searched key is behind it. */
    bool crowded;
} kind;

static const kind kinds[] = {
    {"smart", "cache=off", .late_writes = true},
    {"smart", "", .warm = true, .late_writes = true},
    {"smart", "update=lock,cache=off", .late_writes = true},
    {"smart", "update=rcu,cache=off", .late_writes = true},
    {"chime", "", .warm = true, .apart = true},
    {"chime", "miss=confirm,speculation=off,cache=off", .warm = false, .apart = true},
    {"chime", "span=12,hop=4,speculation=off", .warm = true, .apart = true, .crowded = true},
    {"chime", "key_size=8,value_size=8", .one_batch = true, .fixed = true, .late_writes = true, .apart = true},
    {"dart", "", .warm = false},
    {"dart", "", .warm = true},
    {"dolphin", "", .warm = true},
    {"dolphin", "leaf_slots=2,cache=off", .warm = false},
    {"dolphin", "value_size=8", .warm = true, .fixed = true},
    {"shard", "partitions=1", .one_batch = true, .late_writes = true},
    {"shard", "key_size=8,value_size=8,partitions=1,bits=10,half_read=off", .one_batch = true, .fixed = true,
     .late_writes = true},
    {"shard", "key_size=8,value_size=8,partitions=1,bits=10", .one_batch = true, .fixed = true, .late_writes = true},
};

typedef struct story {
    far_op_kind first, between, second;
    bool present; /* true if the key is present at the beginning */
    const char *first_value, *second_value;
} story;

/* The result that an operation must return, on a map that contains only this one key. */
typedef struct model {
    const char *value; /* current value of the key; NULL: the key is absent */
} model;

typedef struct seen {
    far_op_kind kind;
    const char *value; /* value that the operation wrote */
    int result;
    const char *got;
    size_t length;
} seen;

static stage s;
static stage_actor with; /* D, another client of A's compute node */


static void start_stage(const kind *k, const story *st) {
    stage_open(&s, k->name, k->options, NULL);
    s.a.pool->rdwc = far_rdwc_new(0);
    with = (stage_actor){.pool = s.a.pool, .index = s.a.index};
    assert_int_equal(far_session_open(with.pool, &with.session), 0);
    stage_write(&s.c, "keystori", FIRST);
    stage_write(&s.c, "keynight", FIRST);
    stage_write(&s.c, "kelvin-0", FIRST);
    for (unsigned i = 10; k->crowded && i < 40; i++) {
        char key[32];
        snprintf(key, sizeof(key), KEY "-and-more-%u", i);
        stage_write(&s.c, key, FIRST);
    }
    if (st->present)
        stage_write(&s.c, KEY, FIRST);
    if (k->warm) {
        stage_reads(&s.a, KEY, FIRST);
        stage_reads(&s.a, KEY, FIRST);
    }
}


static void end_stage(void) {
    far_session_close(with.session);
    stage_close(&s);
}


static bool order_gives_the_results(model *m, const seen *op) {
    switch (op->kind) {
    case FAR_OP_GET:
        if (!m->value)
            return op->result == FAR_ERR_NOT_FOUND;
        return op->result == 0 && op->length == strlen(m->value) && memcmp(op->got, m->value, op->length) == 0;
    case FAR_OP_UPDATE:
        if (!m->value)
            return op->result == FAR_ERR_NOT_FOUND;
        break;
    case FAR_OP_INSERT:
        if (m->value)
            return op->result == FAR_ERR_EXISTS;
        break;
    case FAR_OP_DELETE:
        if (!m->value)
            return op->result == FAR_ERR_NOT_FOUND;
        m->value = NULL;
        return op->result == 0;
    default:
        break;
    }
    m->value = op->value;
    return op->result == 0;
}


static seen seen_of(const stage_actor *by, const char *value) {
    return (seen){by->kind, value, by->result, by->value, by->value_len};
}


/* Returns whether the results are those of some order of A's (0), B's (1) and D's (2) operation. `foreign_was_over`
 * means that B's operation had ended before D's began; then only orders in which B's operation precedes D's are
 * allowed. */
static bool some_order_explains(const story *st, bool foreign_was_over) {
    static const unsigned orders[6][3] = {{0, 1, 2}, {1, 0, 2}, {1, 2, 0}, {0, 2, 1}, {2, 0, 1}, {2, 1, 0}};
    const seen ops[3] = {seen_of(&s.a, st->first_value), seen_of(&s.b, OTHER), seen_of(&with, st->second_value)};
    for (unsigned i = 0; i < (foreign_was_over ? 3 : 6); i++) {
        model m = {st->present ? FIRST : NULL};
        bool explains = true;
        for (unsigned k = 0; k < 3; k++)
            explains = explains && order_gives_the_results(&m, &ops[orders[i][k]]);
        if (explains && stage_reads(&s.c, KEY, m.value))
            return true;
    }
    return false;
}


static void start_op(stage_actor *by, far_op_kind how, const char *value) {
    stage_start(by, how, KEY, how == FAR_OP_GET || how == FAR_OP_DELETE ? NULL : value);
}


/* Runs A up to its n-th verb. If `posted` is set, the verb is posted and its completion is held back; otherwise A stops
 * before it posts the verb. Returns false if A ended before its n-th verb. */
static bool run_to_verb(unsigned n, bool posted, far_sim_hold **hold) {
    far_sim_match match = {.nth = n};
    *hold = NULL;
    if (!posted) {
        far_sim_stop_before(s.a.client, match);
        return far_sim_run_client(s.a.client) == FAR_SIM_STOPPED;
    }
    *hold = far_sim_hold_completion(s.a.client, match);
    while (!far_sim_reached(*hold) && !s.a.ended)
        far_sim_run_client(s.a.client);
    return far_sim_reached(*hold) && !s.a.ended;
}


/* Runs one interleaving. Returns false if A has no n-th verb. */
static bool run_interleaving(const kind *k, const story *st, unsigned n, bool posted, uint64_t *merged) {
    far_sim_hold *hold;
    far_stats stats;
    start_stage(k, st);
    start_op(&s.a, st->first, st->first_value);
    bool reached = run_to_verb(n, posted, &hold), over = false;
    if (reached) {
        start_op(&s.b, st->between, OTHER);
        far_sim_run_for(s.world, 1000000); /* B may have to wait for a lock of A */
        over = s.b.ended;
        start_op(&with, st->second, st->second_value);
        far_sim_run_for(s.world, 1000000);
    }
    if (hold)
        far_sim_release(hold);
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    if (reached && !some_order_explains(st, over))
        fail_msg("%s %s: %s, then a foreign %s, then %s, at verb %u%s: %d, %d and %d", k->name, k->options,
                 far_op_name(st->first), far_op_name(st->between), far_op_name(st->second), n,
                 posted ? " (posted)" : "", s.a.result, s.b.result, with.result);
    far_session_stats(with.session, &stats);
    *merged += stats.delegated_reads + stats.combined_writes;
    end_stage();
    return reached;
}


static uint64_t play_all(const kind *k, const story *st) {
    uint64_t merged = 0;
    for (unsigned posted = 0; posted < 2; posted++)
        for (unsigned n = 1; n < 40 && run_interleaving(k, st, n, posted, &merged); n += FAR_ASAN ? 3 : 1)
            ;
    return merged;
}


/* Runs A's and D's operations with each operation of B, on a key that is present and on one that is absent. Returns how
 * often A's and D's operations were merged. */
static uint64_t run_with_every_foreign_operation(const kind *k, far_op_kind first, far_op_kind second,
                                                 const char *first_value, const char *second_value) {
    story st = {first, FAR_OP_PUT, second, true, first_value, second_value};
    uint64_t merged = play_all(k, &st);
    st.between = FAR_OP_DELETE;
    merged += play_all(k, &st);
    st.between = FAR_OP_INSERT;
    st.present = false;
    return merged + play_all(k, &st);
}


/* Proves for every kind that gets which join gets, puts or updates return correct results, with a put, delete or insert
 * of B in between. Correct means that some order of the three operations explains all results. Also proves that gets
 * are really merged where the kind allows it. */
TEST(gets_join_gets_and_writes) {
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const kind *k = &kinds[i];
        uint64_t gets = run_with_every_foreign_operation(k, FAR_OP_GET, FAR_OP_GET, NULL, NULL);
        uint64_t puts = run_with_every_foreign_operation(k, FAR_OP_PUT, FAR_OP_GET, SHORT, NULL);
        uint64_t updates = run_with_every_foreign_operation(k, FAR_OP_UPDATE, FAR_OP_GET, SHORT, NULL);
        print_message("%s %s: gets merged with gets %u, puts %u, updates %u times\n", k->name, k->options,
                      (unsigned)gets, (unsigned)puts, (unsigned)updates);
        assert_true(k->warm || k->one_batch || gets > 0);
        assert_true(k->apart ? puts + updates == 0 : puts > 0);
    }
}


/* Proves for every kind that puts which join puts, and updates which join updates, return correct results, with values
 * of equal and of different lengths. */
TEST(writes_join_writes) {
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const kind *k = &kinds[i];
        static const far_op_kind hows[] = {FAR_OP_PUT, FAR_OP_UPDATE};
        for (unsigned h = 0; h < 2; h++) {
            uint64_t merged = run_with_every_foreign_operation(k, hows[h], hows[h], SHORT, THIRD);
            if (!k->fixed) {
                merged += run_with_every_foreign_operation(k, hows[h], hows[h], SHORT, LONG);
                merged += run_with_every_foreign_operation(k, hows[h], hows[h], LONG, SHORT);
            }
            print_message("%s %s: %ss merged %u times\n", k->name, k->options, far_op_name(hows[h]), (unsigned)merged);
            assert_true(!k->late_writes || merged > 0);
        }
    }
}
