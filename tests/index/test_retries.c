/* A retry gives back the scratch memory of the attempt before: an operation that loses to others again and again needs no
 * more of it than one that loses a few times. Of each kind operations are made to lose hundreds of times: another client
 * changes what they are about to change, or stands still with the lock that they want. (Without far_scratch_back in a loop
 * of attempts its test fails.) */
#include "../support/stage.h"
#include "task/session.h"

#include <stdio.h>
#include <string.h>

#define ROUNDS   96  /* twice: what the second half needs at most is compared with the first */
#define WAITS    200 /* verbs of one who waits, in each half of that time */
#define SIEGE_NS 20000000
#define KEY      "kk"
#define VALUE    "8 bytes!"

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

/* Its neighbours come and go: nodes grow, and are made small again. */
static void move_neighbours(stage *s, const char *key) {
    char other[8];
    for (unsigned i = 0; i < 20; i++) {
        snprintf(other, sizeof(other), "%c%c", key[0], (int)('A' + i));
        assert_int_equal(stage_do(&s->b, FAR_OP_INSERT, other, VALUE), 0);
    }
    for (unsigned i = 0; i < 20; i++) {
        snprintf(other, sizeof(other), "%c%c", key[0], (int)('A' + i));
        assert_int_equal(stage_do(&s->b, FAR_OP_DELETE, other, NULL), 0);
    }
}


static void change_value(stage *s, const char *key) {
    static unsigned version;
    char value[16];
    snprintf(value, sizeof(value), "%08u", version++ % 100000000u);
    assert_int_equal(stage_do(&s->b, FAR_OP_PUT, key, value), 0);
}


typedef struct contest {
    const char *kind, *options;
    far_op_kind how;
    void (*change)(stage *s, const char *key);
    bool absent; /* the key is not there */
} contest;


/* a is stopped before each of its atomics, and b changes what it is about to change. */
static size_t lose(stage *s, const contest *c, unsigned rounds) {
    peak = 0;
    for (unsigned i = 0; i < rounds; i++) {
        far_sim_stop_before(s->a.client, (far_sim_match){.kind = FAR_SIM_ATOMIC});
        far_sim_resume(s->a.client);
        if (far_sim_run_client(s->a.client) != FAR_SIM_STOPPED)
            fail_msg("%s %s: operation %d ended after %u rounds: %d", c->kind, c->options, (int)c->how, i, s->a.result);
        c->change(s, KEY);
    }
    return peak;
}


static void contend(const contest *c) {
    stage s;
    stage_open(&s, c->kind, c->options, "size=64M");
    stage_write(&s.a, "ka", VALUE);
    stage_write(&s.a, "kb", VALUE);
    if (!c->absent)
        stage_write(&s.a, KEY, VALUE);
    watched = s.a.session;
    stage_start(&s.a, c->how, KEY, VALUE);
    size_t few = lose(&s, c, ROUNDS), many = lose(&s, c, ROUNDS);
    if (many > few)
        fail_msg("%s %s: operation %d needs %zu bytes, after many retries %zu", c->kind, c->options, (int)c->how, few,
                 many);
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    watched = NULL;
    stage_check(&s);
    stage_tear_down(&s);
}


static const contest contests[] = {
    {"dart", "", FAR_OP_DELETE, change_value, false},
    {"dart", "absorb=0", FAR_OP_UPDATE, change_value, false},
    {"dart", "", FAR_OP_INSERT, move_neighbours, true},
    {"smart", "update=rcu", FAR_OP_DELETE, change_value, false},
    {"smart", "update=rcu", FAR_OP_UPDATE, change_value, false},
    {"shard", "partitions=1", FAR_OP_DELETE, change_value, false},
};


static void who_loses_to_changes_needs_no_more_memory(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(contests) / sizeof(contests[0]); i++)
        contend(&contests[i]);
}


/* ---- Waiting for a lock ---- */

typedef struct siege {
    const char *kind, *options;
    far_op_kind holder;
    const char *holder_key, *held; /* held: a point at which it has the lock */
    far_op_kind waits;             /* of the other client */
    const char *key;
} siege;

#define INLINE "key_size=8,value_size=8,partitions=1,bits=10"

static const siege sieges[] = {
    {"chime", "", FAR_OP_PUT, "key....k", "chime:locked", FAR_OP_PUT, "key....k"},
    {"chime", "", FAR_OP_PUT, "key....k", "chime:locked", FAR_OP_DELETE, "key....k"},
    {"dolphin", "leaf_slots=2", FAR_OP_INSERT, "key....l", "dolphin:frozen", FAR_OP_INSERT, "key....m"},
    {"dolphin", "leaf_slots=2", FAR_OP_INSERT, "key....l", "dolphin:frozen", FAR_OP_DELETE, "key....k"},
    {"shard", INLINE, FAR_OP_PUT, "key....k", "shard:replace", FAR_OP_PUT, "key....k"},
    {"shard", INLINE, FAR_OP_PUT, "key....k", "shard:replace", FAR_OP_DELETE, "key....k"},
    {"smart", "update=lock", FAR_OP_PUT, "key....k", "smart:locked", FAR_OP_PUT, "key....k"},
};


static void besiege(const siege *g) {
    stage s;
    stage_open(&s, g->kind, g->options, "size=64M");
    for (unsigned i = 0; i < 3; i++)
        stage_write(&s.a, (const char *[]){"key....a", "key....b", "key....k"}[i], VALUE);
    stage_start(&s.b, g->holder, g->holder_key, VALUE);
    stage_stop_at(&s.b, (far_sim_match){.point = g->held});
    watched = s.a.session;
    stage_start(&s.a, g->waits, g->key, VALUE);
    size_t most[2];
    uint64_t verbs[3] = {0};
    for (unsigned i = 0; i < 2; i++) {
        peak = 0;
        far_sim_run_for(s.world, SIEGE_NS);
        most[i] = peak;
        verbs[i + 1] = far_sim_verbs(s.a.client);
    }
    if (s.a.ended || verbs[1] < WAITS || verbs[2] < verbs[1] + WAITS || most[1] > most[0])
        fail_msg("%s %s: operation %d needs %zu bytes, after a long wait %zu; %llu, then %llu verbs", g->kind,
                 g->options, (int)g->waits, most[0], most[1], (unsigned long long)verbs[1],
                 (unsigned long long)verbs[2]);
    stage_finish(&s.b);
    stage_finish(&s.a);
    watched = NULL;
    stage_check(&s);
    stage_tear_down(&s);
}


static void who_waits_for_a_lock_needs_no_more_memory(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(sieges) / sizeof(sieges[0]); i++)
        besiege(&sieges[i]);
}


int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(who_loses_to_changes_needs_no_more_memory),
                                       cmocka_unit_test(who_waits_for_a_lock_needs_no_more_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
