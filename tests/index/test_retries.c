/* A retry gives back the scratch memory of the attempt before: an operation that loses to others again and again needs no
 * more of it than one that loses a few times. Of each kind operations are made to lose again and again: another client
 * changes what they are about to change or to read, or stands still with the lock that they want, or in the middle of a
 * merge; and one that tidies up many nodes needs no more than for the first. (Without far_scratch_back in a loop of
 * attempts its test fails.) */
#include "../support/stage.h"
#include "task/session.h"

#include <stdio.h>
#include <string.h>

#define ROUNDS   96  /* twice: what the second half needs at most is compared with the first */
#define WAITS    200 /* verbs of one who waits, in each half of that time */
#define SIEGE_NS 20000000
#define VALUE    "8 bytes!"
#define LARGE    "size=64M"

void *__real_far_scratch(far_task *t, size_t bytes);
void *__wrap_far_scratch(far_task *t, size_t bytes);

static const far_session *watched;
static size_t peak; /* bytes of scratch memory that an operation of that session held */


void *__wrap_far_scratch(far_task *t, size_t bytes) {
    void *memory = __real_far_scratch(t, bytes);
    size_t held = 0;
    for (const far_scratch_chunk *chunk = t->chunk; chunk; chunk = chunk->below)
        held += chunk->used;
    if (t->session == watched && !t->background && held > peak)
        peak = held;
    return memory;
}


/* ---- Losing to another's changes ---- */

/* Keys that differ in the last byte come and go: nodes grow, and are made small again. */
static void move_neighbours(stage *s, const char *key) {
    char other[16];
    size_t last = strlen(key) - 1;
    snprintf(other, sizeof(other), "%s", key);
    for (unsigned i = 0; i < 20; i++) {
        other[last] = (char)('A' + i);
        assert_int_equal(stage_do(&s->b, FAR_OP_INSERT, other, VALUE), 0);
    }
    for (unsigned i = 0; i < 20; i++) {
        other[last] = (char)('A' + i);
        assert_int_equal(stage_do(&s->b, FAR_OP_DELETE, other, NULL), 0);
    }
}


static void change_value(stage *s, const char *key) {
    static unsigned version;
    char value[16];
    snprintf(value, sizeof(value), "%08u", version++ % 100000000u);
    assert_int_equal(stage_do(&s->b, FAR_OP_PUT, key, value), 0);
}


/* Slots of a leaf are used once: the key goes to another leaf. */
static void move_to_other_leaf(stage *s, const char *key) {
    for (unsigned i = 0; i < 2; i++) {
        stage_delete(&s->b, key);
        stage_write(&s->b, "another.", VALUE);
        stage_write(&s->b, key, VALUE);
        stage_delete(&s->b, "another.");
    }
}


/* The lock of its bucket is taken, or freed. */
static void lock_or_unlock(stage *s, const char *key) {
    static bool locked;
    if (!locked) {
        stage_start(&s->b, FAR_OP_PUT, key, VALUE);
        stage_stop_at(&s->b, (far_sim_match){.point = "shard:locked"});
    } else {
        stage_finish(&s->b);
        assert_int_equal(s->b.result, 0);
    }
    locked = !locked;
}


typedef struct contest {
    const char *kind, *options;
    far_op_kind how;
    const char *key;
    bool absent; /* the key is not there */
    void (*change)(stage *s, const char *key);
    const char *changed;     /* what change is given */
    far_sim_kind verb;       /* before which a stands, again and again, while b changes that; */
    const char *point;       /* or at this point */
    unsigned rounds, beside; /* beside: other keys at first, that differ in the last byte */
} contest;


static size_t lose(stage *s, const contest *c) {
    peak = 0;
    for (unsigned i = 0; i < c->rounds; i++) {
        far_sim_stop_before(s->a.client, (far_sim_match){.kind = c->verb, .point = c->point});
        far_sim_resume(s->a.client);
        if (far_sim_run_client(s->a.client) != FAR_SIM_STOPPED)
            fail_msg("%s %s: operation %d ended after %u rounds: %d", c->kind, c->options, (int)c->how, i, s->a.result);
        c->change(s, c->changed);
    }
    return peak;
}


static void contend(const contest *c) {
    stage s;
    char other[16];
    stage_open(&s, c->kind, c->options, LARGE);
    for (unsigned i = 0; i < c->beside; i++) {
        snprintf(other, sizeof(other), "%s", c->key);
        other[strlen(c->key) - 1] = (char)('a' + i);
        stage_write(&s.a, other, VALUE);
    }
    if (!c->absent)
        stage_write(&s.a, c->key, VALUE);
    watched = s.a.session;
    stage_start(&s.a, c->how, c->key, VALUE);
    size_t few = lose(&s, c), many = lose(&s, c);
    if (many > few)
        fail_msg("%s %s: operation %d needs %zu bytes, after many retries %zu", c->kind, c->options, (int)c->how, few,
                 many);
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    watched = NULL;
    stage_close(&s);
}


#define INLINE "key_size=8,value_size=8,partitions=1,bits=10"

static const contest writes[] = {
    {"dart", "", FAR_OP_DELETE, "kk", false, change_value, "kk", FAR_SIM_ATOMIC, NULL, ROUNDS, 2},
    {"dart", "absorb=0", FAR_OP_UPDATE, "kk", false, change_value, "kk", FAR_SIM_ATOMIC, NULL, ROUNDS, 2},
    {"dart", "", FAR_OP_INSERT, "kk", true, move_neighbours, "kk", FAR_SIM_ATOMIC, NULL, ROUNDS, 2},
    /* A full node grows, and the one above it changes. */
    {"dart", "", FAR_OP_INSERT, "kkk", true, move_neighbours, "kz", FAR_SIM_ANY, "dart:install", 40, 7},
    {"smart", "update=rcu", FAR_OP_DELETE, "kk", false, change_value, "kk", FAR_SIM_ATOMIC, NULL, ROUNDS, 2},
    {"smart", "update=rcu", FAR_OP_UPDATE, "kk", false, change_value, "kk", FAR_SIM_ATOMIC, NULL, ROUNDS, 2},
    {"shard", "partitions=1", FAR_OP_DELETE, "kk", false, change_value, "kk", FAR_SIM_ATOMIC, NULL, ROUNDS, 2},
};

static const contest gets[] = {
    {"dolphin", "leaf_slots=2", FAR_OP_GET, "key....k", false, move_to_other_leaf, "key....k", FAR_SIM_READ, NULL,
     ROUNDS, 2},
    /* After four attempts it does not ask whether the bucket has changed. */
    {"shard", "partitions=1,ordered_cas=off", FAR_OP_GET, "key....k", false, lock_or_unlock, "key....k", FAR_SIM_ANY,
     "shard:home_read", 2, 2},
};


static void who_loses_to_changes_needs_no_more_memory(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(writes) / sizeof(writes[0]); i++)
        contend(&writes[i]);
}


static void who_reads_beside_changes_needs_no_more_memory(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(gets) / sizeof(gets[0]); i++)
        contend(&gets[i]);
}


/* ---- Waiting for a lock ---- */

typedef struct siege {
    const char *kind, *options;
    far_op_kind holder;
    const char *holder_key, *held; /* held: a point at which it has the lock */
    far_op_kind waits;             /* of the other client */
    const char *key;
} siege;

static const siege sieges[] = {
    {"chime", "", FAR_OP_PUT, "key....k", "chime:locked", FAR_OP_PUT, "key....k"},
    {"chime", "", FAR_OP_PUT, "key....k", "chime:locked", FAR_OP_DELETE, "key....k"},
    {"dolphin", "leaf_slots=2", FAR_OP_INSERT, "key....l", "dolphin:locked", FAR_OP_INSERT, "key....m"},
    {"dolphin", "leaf_slots=2", FAR_OP_INSERT, "key....l", "dolphin:frozen", FAR_OP_INSERT, "key....m"},
    {"dolphin", "leaf_slots=2", FAR_OP_INSERT, "key....l", "dolphin:frozen", FAR_OP_DELETE, "key....k"},
    {"shard", INLINE, FAR_OP_PUT, "key....k", "shard:replace", FAR_OP_PUT, "key....k"},
    {"shard", INLINE, FAR_OP_PUT, "key....k", "shard:replace", FAR_OP_DELETE, "key....k"},
    {"smart", "update=lock", FAR_OP_PUT, "key....k", "smart:locked", FAR_OP_PUT, "key....k"},
};


/* What a does meanwhile, and what it needs. */
static void wait_long(stage *s, const siege *g) {
    size_t most[2];
    uint64_t verbs[3] = {far_sim_verbs(s->a.client)};
    for (unsigned i = 0; i < 2; i++) {
        peak = 0;
        far_sim_run_for(s->world, SIEGE_NS);
        most[i] = peak;
        verbs[i + 1] = far_sim_verbs(s->a.client);
    }
    if (s->a.ended || verbs[1] < verbs[0] + WAITS || verbs[2] < verbs[1] + WAITS || most[1] > most[0])
        fail_msg("%s %s: operation %d needs %zu bytes, after a long wait %zu; %llu, then %llu verbs", g->kind,
                 g->options, (int)g->waits, most[0], most[1], (unsigned long long)(verbs[1] - verbs[0]),
                 (unsigned long long)(verbs[2] - verbs[1]));
}


static void besiege(const siege *g) {
    stage s;
    stage_open(&s, g->kind, g->options, LARGE);
    for (unsigned i = 0; i < 3; i++)
        stage_write(&s.a, (const char *[]){"key....a", "key....b", "key....k"}[i], VALUE);
    stage_start(&s.b, g->holder, g->holder_key, VALUE);
    stage_stop_at(&s.b, (far_sim_match){.point = g->held});
    watched = s.a.session;
    stage_start(&s.a, g->waits, g->key, VALUE);
    wait_long(&s, g);
    stage_finish(&s.b);
    stage_finish(&s.a);
    watched = NULL;
    stage_close(&s);
}


static void who_waits_for_a_lock_needs_no_more_memory(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(sieges) / sizeof(sieges[0]); i++)
        besiege(&sieges[i]);
}


/* ---- Waiting for a task of the same handle ---- */

/* The neighbour replaces the leaf of both, and stands with it frozen. */
static void freeze_leaf(stage_actor *neighbour) {
    for (unsigned i = 0; i < 8; i++) {
        stage_start(neighbour, FAR_OP_INSERT, "key....l", VALUE);
        far_sim_stop_before(neighbour->client, (far_sim_match){.point = "dolphin:frozen"});
        if (far_sim_run_client(neighbour->client) == FAR_SIM_STOPPED)
            return;
        stage_delete(neighbour, "key....l");
    }
    fail_msg("dolphin: the leaf is never full");
}


/* a comes to the leaf when it is frozen, waits, looks again, and is about to enter what is there now; again and again. */
static size_t meet_frozen_leaves(stage *s, stage_actor *neighbour) {
    peak = 0;
    for (unsigned i = 0; i < 16; i++) {
        freeze_leaf(neighbour);
        far_sim_resume(s->a.client);
        far_sim_run_for(s->world, 100000);
        assert_false(s->a.ended);
        far_sim_stop_before(s->a.client, (far_sim_match){.kind = FAR_SIM_ATOMIC});
        stage_finish(neighbour);
        assert_int_equal(neighbour->result, 0);
        assert_int_equal(far_sim_run_client(s->a.client), FAR_SIM_STOPPED);
        stage_delete(neighbour, "key....l");
    }
    return peak;
}


static void who_waits_for_its_own_handle_needs_no_more_memory(void **state) {
    (void)state;
    stage s;
    stage_open(&s, "dolphin", "leaf_slots=4", LARGE);
    stage_actor neighbour = {.pool = s.a.pool, .index = s.a.index};
    assert_int_equal(far_session_open(s.a.pool, &neighbour.session), 0);
    stage_write(&s.a, "key....k", VALUE);
    watched = s.a.session;
    stage_start(&s.a, FAR_OP_INSERT, "key....m", VALUE);
    stage_stop_at(&s.a, (far_sim_match){.kind = FAR_SIM_ATOMIC});
    size_t few = meet_frozen_leaves(&s, &neighbour), many = meet_frozen_leaves(&s, &neighbour);
    if (many > few)
        fail_msg("dolphin: an insert needs %zu bytes, after many waits %zu", few, many);
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    watched = NULL;
    far_session_close(neighbour.session);
    stage_close(&s);
}


/* ---- A merge that stands still ---- */

enum { KEYS = 60 };


static const char *nth(unsigned n) {
    static char key[16];
    snprintf(key, sizeof(key), "%08u", n);
    return key;
}


/* The merge that a delete brings is done beside the gets that follow. */
static void run_and_stay(void *arg) {
    stage_actor *by = arg;
    char value[8];
    by->result = stage_run(by);
    for (unsigned i = 0; i < 24; i++)
        far_get(by->session, by->index, "~nothing", 8, value, sizeof(value), NULL);
    by->ended = true;
}


/* The right leaf is gone, and the left one does not show its items yet: a get of one of these begins anew again and
 * again. False: it found the key, or that it is not there. */
static bool is_kept_waiting(stage *s, unsigned n) {
    stage_start(&s->a, FAR_OP_GET, nth(n), NULL);
    far_sim_run_for(s->world, 1000000);
    return !s->a.ended;
}


static void who_reads_beside_a_merge_needs_no_more_memory(void **state) {
    (void)state;
    const siege g = {"chime", "key_size=8,value_size=8,span=12,hop=4,merge=sparse", .waits = FAR_OP_GET};
    stage s;
    bool waits = false;
    stage_open_by_hand(&s, g.kind, g.options, LARGE);
    for (unsigned n = 0; n < KEYS; n++)
        stage_write(&s.b, nth(n), VALUE);
    watched = s.a.session;
    for (unsigned n = 1; n < KEYS && !waits; n++) {
        stage_set(&s.b, FAR_OP_DELETE, nth(n), NULL);
        stage_start_main(&s.b, "merges", run_and_stay);
        far_sim_stop_before(s.b.client, (far_sim_match){.point = "chime:merge_committed"});
        if (far_sim_run_client(s.b.client) != FAR_SIM_STOPPED)
            continue;
        for (unsigned k = n + 1; k < KEYS && !waits; k++)
            waits = is_kept_waiting(&s, k);
        if (!waits)
            stage_finish(&s.b);
    }
    assert_true(waits);
    wait_long(&s, &g);
    stage_finish(&s.b);
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    watched = NULL;
    stage_close(&s);
}


/* ---- Many levels that are tidied up ---- */

enum { LEVELS = 20 };


/* So many times 'a', and the last byte. */
static const char *at_level(unsigned level, char last) {
    static char key[LEVELS + 2];
    memset(key, 'a', level);
    key[level] = last;
    key[level + 1] = '\0';
    return key;
}


/* Runs a until the next node is replaced. False: there is none. */
static bool replaces_one(stage *s) {
    far_sim_stop_before(s->a.client, (far_sim_match){.point = "smart:replaced"});
    far_sim_resume(s->a.client);
    return far_sim_run_client(s->a.client) == FAR_SIM_STOPPED;
}


/* Each node has a leaf and the next node; the leaves are deleted first, from the top, and when the last one is, its node
 * goes, and so do all above, one after another. */
static void who_tidies_up_many_levels_needs_no_more_memory(void **state) {
    (void)state;
    stage s;
    unsigned nodes = 0;
    stage_open_by_hand(&s, "smart", "", LARGE); /* an operation tidies up before it returns */
    for (unsigned level = 1; level <= LEVELS; level++)
        stage_write(&s.a, at_level(level, '1'), VALUE);
    stage_write(&s.a, at_level(LEVELS, '2'), VALUE);
    for (unsigned level = 1; level <= LEVELS; level++)
        stage_delete(&s.a, at_level(level, '1'));
    watched = s.a.session;
    peak = 0;
    stage_start(&s.a, FAR_OP_DELETE, at_level(LEVELS, '2'), NULL);
    assert_true(replaces_one(&s));
    size_t few = peak;
    for (peak = 0; replaces_one(&s);)
        nodes++;
    if (nodes < LEVELS / 2 || peak > few)
        fail_msg("smart: one node needs %zu bytes, %u more after it %zu", few, nodes, peak);
    assert_true(s.a.ended);
    assert_int_equal(s.a.result, 0);
    watched = NULL;
    stage_close(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(who_loses_to_changes_needs_no_more_memory),
                                       cmocka_unit_test(who_reads_beside_changes_needs_no_more_memory),
                                       cmocka_unit_test(who_waits_for_a_lock_needs_no_more_memory),
                                       cmocka_unit_test(who_waits_for_its_own_handle_needs_no_more_memory),
                                       cmocka_unit_test(who_reads_beside_a_merge_needs_no_more_memory),
                                       cmocka_unit_test(who_tidies_up_many_levels_needs_no_more_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
