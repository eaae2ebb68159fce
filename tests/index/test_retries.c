/* Proves that a retry reuses the scratch memory of the attempt before: an operation that fails to take effect many
 * times needs no more scratch memory than one that fails a few times. Operations of each kind are made to retry again
 * and again, because another client changes the objects that they are about to change or read, holds the lock that they
 * need, or is stopped in the middle of a merge. The last test proves the same for an operation that removes many nodes
 * one after the other. Each test fails without far_scratch_back in the loop of attempts. */
#include "../support/stage.h"
#include "task/session.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

#define ROUNDS  96  /* number of retries in each half of the test; both halves must need the same memory */
#define WAITS   200 /* smallest number of verbs of a waiting operation in each half of the time */
#define WAIT_NS 20000000
#define VALUE   "8 bytes!"
#define LARGE   "size=64M"

void *__real_far_scratch(far_task *t, size_t bytes);
void *__wrap_far_scratch(far_task *t, size_t bytes);

static const far_session *watched;
static size_t peak_bytes; /* largest number of bytes of scratch memory that an operation of that session held */


void *__wrap_far_scratch(far_task *t, size_t bytes) {
    void *memory = __real_far_scratch(t, bytes);
    size_t held = 0;
    for (const far_scratch_chunk *chunk = t->chunk; chunk; chunk = chunk->below)
        held += chunk->used;
    if (t->session == watched && !t->background && held > peak_bytes)
        peak_bytes = held;
    return memory;
}


/* ---- Retries because of changes by another client ---- */

/* Inserts and deletes keys that differ in the last byte, so that nodes grow and shrink. */
static void insert_and_delete_neighbours(stage *s, const char *key) {
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


/* Moves the key to another leaf. This works because dolphin uses each slot of a leaf only once. */
static void move_to_other_leaf(stage *s, const char *key) {
    for (unsigned i = 0; i < 2; i++) {
        stage_delete(&s->b, key);
        stage_write(&s->b, "another.", VALUE);
        stage_write(&s->b, key, VALUE);
        stage_delete(&s->b, "another.");
    }
}


/* Takes the lock of the key's bucket, or frees it if it is taken. */
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
    bool absent; /* the key is not inserted before the test */
    void (*change)(stage *s, const char *key);
    const char *changed; /* the key that is passed to `change` */
    far_sim_kind verb;   /* client A stops before each verb of this kind while client B calls `change` */
    const char *point;   /* if not NULL: A stops at this point instead */
    /* neighbours: number of keys that differ from `key` in the last byte and are inserted first */
    unsigned rounds, neighbours;
} contest;


static size_t make_a_retry(stage *s, const contest *c) {
    peak_bytes = 0;
    for (unsigned i = 0; i < c->rounds; i++) {
        far_sim_stop_before(s->a.client, (far_sim_match){.kind = c->verb, .point = c->point});
        far_sim_resume(s->a.client);
        if (far_sim_run_client(s->a.client) != FAR_SIM_STOPPED)
            fail_msg("%s %s: operation %d ended after %u rounds: %d", c->kind, c->options, (int)c->how, i, s->a.result);
        c->change(s, c->changed);
    }
    return peak_bytes;
}


static void compare_few_and_many_retries(const contest *c) {
    stage s;
    char other[16];
    stage_open(&s, c->kind, c->options, LARGE);
    for (unsigned i = 0; i < c->neighbours; i++) {
        snprintf(other, sizeof(other), "%s", c->key);
        other[strlen(c->key) - 1] = (char)('a' + i);
        stage_write(&s.a, other, VALUE);
    }
    if (!c->absent)
        stage_write(&s.a, c->key, VALUE);
    watched = s.a.session;
    stage_start(&s.a, c->how, c->key, VALUE);
    size_t few = make_a_retry(&s, c), many = make_a_retry(&s, c);
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
    {"dart", "", FAR_OP_INSERT, "kk", true, insert_and_delete_neighbours, "kk", FAR_SIM_ATOMIC, NULL, ROUNDS, 2},
    /* A full node grows, and its parent changes. */
    {"dart", "", FAR_OP_INSERT, "kkk", true, insert_and_delete_neighbours, "kz", FAR_SIM_ANY, "dart:install", 40, 7},
    {"smart", "update=rcu", FAR_OP_DELETE, "kk", false, change_value, "kk", FAR_SIM_ATOMIC, NULL, ROUNDS, 2},
    {"smart", "update=rcu", FAR_OP_UPDATE, "kk", false, change_value, "kk", FAR_SIM_ATOMIC, NULL, ROUNDS, 2},
    {"shard", "partitions=1", FAR_OP_DELETE, "kk", false, change_value, "kk", FAR_SIM_ATOMIC, NULL, ROUNDS, 2},
};

static const contest gets[] = {
    {"dolphin", "leaf_slots=2", FAR_OP_GET, "key....k", false, move_to_other_leaf, "key....k", FAR_SIM_READ, NULL,
     ROUNDS, 2},
    /* After four attempts the operation does not check again whether the bucket has changed. */
    {"shard", "partitions=1,ordered_cas=off", FAR_OP_GET, "key....k", false, lock_or_unlock, "key....k", FAR_SIM_ANY,
     "shard:main_bucket_read", 2, 2},
};


TEST(retries_of_writes_need_no_more_memory) {
    for (size_t i = 0; i < sizeof(writes) / sizeof(writes[0]); i++)
        compare_few_and_many_retries(&writes[i]);
}


TEST(retries_of_gets_need_no_more_memory) {
    for (size_t i = 0; i < sizeof(gets) / sizeof(gets[0]); i++)
        compare_few_and_many_retries(&gets[i]);
}


/* ---- Waiting for a lock ---- */

typedef struct lock_wait {
    const char *kind, *options;
    far_op_kind holder;
    const char *holder_key, *held; /* point at which the holder has the lock */
    far_op_kind waits;             /* operation of the other client, which waits */
    const char *key;
} lock_wait;

static const lock_wait lock_waits[] = {
    {"chime", "", FAR_OP_PUT, "key....k", "chime:locked", FAR_OP_PUT, "key....k"},
    {"chime", "", FAR_OP_PUT, "key....k", "chime:locked", FAR_OP_DELETE, "key....k"},
    {"dolphin", "leaf_slots=2", FAR_OP_INSERT, "key....l", "dolphin:locked", FAR_OP_INSERT, "key....m"},
    {"dolphin", "leaf_slots=2", FAR_OP_INSERT, "key....l", "dolphin:frozen", FAR_OP_INSERT, "key....m"},
    {"dolphin", "leaf_slots=2", FAR_OP_INSERT, "key....l", "dolphin:frozen", FAR_OP_DELETE, "key....k"},
    {"shard", INLINE, FAR_OP_PUT, "key....k", "shard:replace", FAR_OP_PUT, "key....k"},
    {"shard", INLINE, FAR_OP_PUT, "key....k", "shard:replace", FAR_OP_DELETE, "key....k"},
    {"smart", "update=lock", FAR_OP_PUT, "key....k", "smart:locked", FAR_OP_PUT, "key....k"},
};


/* Lets A wait for a long time, and compares the memory that it needs in the first and in the second half. */
static void compare_halves_of_wait(stage *s, const lock_wait *g) {
    size_t most[2];
    uint64_t verbs[3] = {far_sim_verbs(s->a.client)};
    for (unsigned i = 0; i < 2; i++) {
        peak_bytes = 0;
        far_sim_run_for(s->world, WAIT_NS);
        most[i] = peak_bytes;
        verbs[i + 1] = far_sim_verbs(s->a.client);
    }
    if (s->a.ended || verbs[1] < verbs[0] + WAITS || verbs[2] < verbs[1] + WAITS || most[1] > most[0])
        fail_msg("%s %s: operation %d needs %zu bytes, after a long wait %zu; %llu, then %llu verbs", g->kind,
                 g->options, (int)g->waits, most[0], most[1], (unsigned long long)(verbs[1] - verbs[0]),
                 (unsigned long long)(verbs[2] - verbs[1]));
}


static void compare_wait_for_lock(const lock_wait *g) {
    stage s;
    stage_open(&s, g->kind, g->options, LARGE);
    for (unsigned i = 0; i < 3; i++)
        stage_write(&s.a, (const char *[]){"key....a", "key....b", "key....k"}[i], VALUE);
    stage_start(&s.b, g->holder, g->holder_key, VALUE);
    stage_stop_at(&s.b, (far_sim_match){.point = g->held});
    watched = s.a.session;
    stage_start(&s.a, g->waits, g->key, VALUE);
    compare_halves_of_wait(&s, g);
    stage_finish(&s.b);
    stage_finish(&s.a);
    watched = NULL;
    stage_close(&s);
}


TEST(a_wait_for_a_lock_needs_no_more_memory) {
    for (size_t i = 0; i < sizeof(lock_waits) / sizeof(lock_waits[0]); i++)
        compare_wait_for_lock(&lock_waits[i]);
}


/* ---- Waiting for a task of the same handle ---- */

/* The neighbour, another session of A's handle, replaces the leaf of both keys and stops while the leaf is frozen. */
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


/* Again and again: the neighbour freezes the leaf; A reaches the leaf, waits, reads it again, and stops when it is
 * about to enter the new leaf. Returns the memory that A needed. */
static size_t meet_frozen_leaves(stage *s, stage_actor *neighbour) {
    peak_bytes = 0;
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
    return peak_bytes;
}


TEST(a_wait_for_the_same_handle_needs_no_more_memory) {
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


/* ---- A client that is stopped in a merge ---- */

enum { KEYS = 60 };


static const char *nth_key(unsigned n) {
    static char key[16];
    snprintf(key, sizeof(key), "%08u", n);
    return key;
}


/* Runs a delete and then gets, during which the merge that follows the delete is done. */
static void run_delete_and_gets(void *arg) {
    stage_actor *by = arg;
    char value[8];
    by->result = stage_run(by);
    for (unsigned i = 0; i < 24; i++)
        far_get(by->session, by->index, "~nothing", 8, value, sizeof(value), NULL);
    by->ended = true;
}


/* Starts a get of a key in a merge whose right leaf is invalid while the left one does not contain its items yet.
 * Returns whether the get waits; otherwise it has found the key, or found it absent. */
static bool get_is_waiting(stage *s, unsigned n) {
    stage_start(&s->a, FAR_OP_GET, nth_key(n), NULL);
    far_sim_run_for(s->world, 1000000);
    return !s->a.ended;
}


TEST(a_get_during_a_merge_needs_no_more_memory) {
    const lock_wait g = {"chime", "key_size=8,value_size=8,span=12,hop=4,merge=sparse", .waits = FAR_OP_GET};
    stage s;
    bool waits = false;
    stage_open_without_housekeeping(&s, g.kind, g.options, LARGE);
    for (unsigned n = 0; n < KEYS; n++)
        stage_write(&s.b, nth_key(n), VALUE);
    watched = s.a.session;
    for (unsigned n = 1; n < KEYS && !waits; n++) {
        stage_set(&s.b, FAR_OP_DELETE, nth_key(n), NULL);
        stage_start_main(&s.b, "merges", run_delete_and_gets);
        far_sim_stop_before(s.b.client, (far_sim_match){.point = "chime:merge_committed"});
        if (far_sim_run_client(s.b.client) != FAR_SIM_STOPPED)
            continue;
        for (unsigned k = n + 1; k < KEYS && !waits; k++)
            waits = get_is_waiting(&s, k);
        if (!waits)
            stage_finish(&s.b);
    }
    assert_true(waits);
    compare_halves_of_wait(&s, &g);
    stage_finish(&s.b);
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    watched = NULL;
    stage_close(&s);
}


/* ---- Removing nodes on many levels ---- */

enum { LEVELS = 20 };


/* Returns the key that consists of `level` times the letter 'a' and the last byte. */
static const char *key_at_level(unsigned level, char last) {
    static char key[LEVELS + 2];
    memset(key, 'a', level);
    key[level] = last;
    key[level + 1] = '\0';
    return key;
}


/* Runs A until it has replaced the next node. Returns false if there is no further one. */
static bool run_until_next_replacement(stage *s) {
    far_sim_stop_before(s->a.client, (far_sim_match){.point = "smart:replaced"});
    far_sim_resume(s->a.client);
    return far_sim_run_client(s->a.client) == FAR_SIM_STOPPED;
}


/* Each node has a leaf and the next node. The leaves are deleted first, from the top. When the last leaf is deleted,
 * its node is removed, and then all nodes above it, one after the other. */
TEST(removing_many_levels_needs_no_more_memory) {
    stage s;
    unsigned nodes = 0;
    stage_open_without_housekeeping(&s, "smart", "", LARGE); /* an operation removes empty nodes before it returns */
    for (unsigned level = 1; level <= LEVELS; level++)
        stage_write(&s.a, key_at_level(level, '1'), VALUE);
    stage_write(&s.a, key_at_level(LEVELS, '2'), VALUE);
    for (unsigned level = 1; level <= LEVELS; level++)
        stage_delete(&s.a, key_at_level(level, '1'));
    watched = s.a.session;
    peak_bytes = 0;
    stage_start(&s.a, FAR_OP_DELETE, key_at_level(LEVELS, '2'), NULL);
    assert_true(run_until_next_replacement(&s));
    size_t few = peak_bytes;
    for (peak_bytes = 0; run_until_next_replacement(&s);)
        nodes++;
    if (nodes < LEVELS / 2 || peak_bytes > few)
        fail_msg("smart: one node needs %zu bytes, %u more after it %zu", few, nodes, peak_bytes);
    assert_true(s.a.ended);
    assert_int_equal(s.a.result, 0);
    watched = NULL;
    stage_close(&s);
}
