/* Client A is stopped before a verb of one of its operations, with any lock and pin that it holds by then. Proves that
 * every call of other clients ends within a bounded time: it succeeds, or it fails with FAR_ERR_BUSY, names client A,
 * and has changed nothing. Proves too that all data are correct after A continues, and that no call is refused if
 * clients may be evicted.
 *
 * test_stopped_anywhere [FILTER]      FARINDEX_STOPS sets the number of verbs at which A is stopped in each script */
#include "stage.h"
#include "task/session.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Client C has written the keys 0, 10, 20 and so on. A works on some keys, and B alone on others. */
#define KEYS  40u
#define STOPS 4u /* number of stops in each script */
/* virtual time: more than far_stall_bound, the longest time that a client waits for a stopped one */
#define BOUND_NS (11 * 1000000000ull)

typedef struct story {
    const char *kind, *options;
    bool ordered;
} story;

static const story stories[] = {
    {"chime", "", true},
    {"chime", "key_size=8,value_size=8", true},
    {"chime", "key_size=8,value_size=8,span=12,hop=2,handover=off", true},
    {"dart", "", true},
    {"dolphin", "", true},
    {"dolphin", "key_size=8,value_size=8", true},
    {"smart", "", true},
    {"smart", "layout=paper", true},
    {"shard", "partitions=1,bits=0,slots=6,l2_slots=1,load=95,extent=1024", false},
    {"shard", "partitions=1,bits=10,slots=1,l2_slots=1,load=95,key_size=8,value_size=8", false},
    {"shard", "partitions=1,bits=0,slots=6,l2_slots=1,load=95,lazy_resize=off", false},
    {"shard", "partitions=1,bits=0,slots=6,l2_slots=1,load=95,ordered_cas=off", false},
    {"dart", "lock_free=off", true},
    {"dolphin", "sync=exclusive,patience=2,leaf_slots=4", true},
    {"smart", "lockfree_nodes=off", true},
};

/* numbers of calls in the current story: those that failed with FAR_ERR_BUSY, and all others */
static unsigned refused, served;


static const char *key_of(unsigned number) {
    static char key[16];
    snprintf(key, sizeof(key), "key %04u", number); /* 8 bytes, like the values */
    return key;
}


static const char *value_of(char who, unsigned number) {
    static char value[16];
    snprintf(value, sizeof(value), "%c: %05u", who, number);
    return value;
}


static unsigned count_stops(void) {
    const char *wish = getenv("FARINDEX_STOPS");
    return wish ? (unsigned)strtoul(wish, NULL, 10) : STOPS;
}


/* ---- The operations of A ---- */

typedef struct script {
    far_op_kind kind;
    unsigned first, count; /* A works on every tenth number from `first` on */
} script;

static const script scripts[] = {{FAR_OP_UPDATE, 100, 20}, {FAR_OP_INSERT, 1000, 60}, {FAR_OP_DELETE, 100, 30}};

static struct {
    const script *script;
    unsigned number; /* number of the key on which A works now */
    uint64_t verbs;
} work;


static void run_script(void *actor) {
    stage_actor *a = actor;
    a->result = 0;
    for (unsigned i = 0; i < work.script->count && a->result == 0; i++) {
        work.number = work.script->first + 10 * i;
        stage_set(a, work.script->kind, key_of(work.number), value_of('a', work.number));
        a->result = stage_run(a);
    }
    a->ended = true;
}


static void open_story(stage *s, const story *of, const script *script, bool evict) {
    /* an option of the simulator without which clients cannot be evicted */
    stage_open(s, of->kind, of->options, evict ? "questions=on" : NULL);
    s->b.pool->options.evict_after_ms = evict;
    for (unsigned i = 0; i < KEYS; i++)
        stage_write(&s->c, key_of(10 * i), value_of('c', 10 * i));
    work.script = script;
    stage_start_main(&s->a, "a", run_script);
}


static void count_verb(void *ctx, const far_sim_posted *posted) {
    work.verbs += posted->client == ctx;
}


/* ---- The calls of B while A is stopped ---- */

typedef struct call {
    far_op_kind kind;
    bool near_a;     /* the key is a neighbour of the key on which A works; otherwise it is distant */
    unsigned number; /* number of the key; if near_a is set, it is added to the number of A's key */
} call;

static const call calls[] = {
    {FAR_OP_GET, true, 0},   {FAR_OP_UPDATE, true, 0},   {FAR_OP_INSERT, true, 3},
    {FAR_OP_PUT, false, 20}, {FAR_OP_DELETE, false, 40}, {FAR_OP_UPDATE, false, 60},
    {FAR_OP_GET, false, 80}, {FAR_OP_INSERT, true, 5},   {FAR_OP_SCAN, false, 0},
};

enum { CALLS = sizeof(calls) / sizeof(calls[0]) };


static unsigned key_number(const call *c, unsigned working) {
    return c->near_a ? working + c->number : c->number;
}


/* Returns whether A works on the same key, so that the result of the call is not determined. */
static bool key_is_shared(const call *c) {
    return c->near_a && c->number == 0;
}


static char words[256]; /* error message of the last call */


static void run_call(void *actor) {
    stage_actor *b = actor;
    b->result = stage_run(b);
    snprintf(words, sizeof(words), "%s", b->result < 0 ? far_last_error() : "");
    b->ended = true;
}


static int run_and_check_call(stage *s, const call *c, unsigned working, const char *where) {
    char name[32];
    unsigned number = key_number(c, working);
    uint64_t began = far_sim_now(s->world);
    stage_set(&s->b, c->kind, key_of(number), value_of('b', number));
    stage_start_main(&s->b, "b", run_call);
    while (!s->b.ended && far_sim_now(s->world) - began < BOUND_NS)
        far_sim_run_for(s->world, BOUND_NS / 100);
    if (!s->b.ended)
        fail_msg("%s: call %u does not end", where, (unsigned)(c - calls));
    snprintf(name, sizeof(name), "client %u,", s->a.pool->team.own->id);
    if (s->b.result == FAR_ERR_BUSY && !strstr(words, name))
        fail_msg("%s: '%s' does not name %s", where, words, name);
    if (s->b.result < 0 && s->b.result != FAR_ERR_BUSY && !(key_is_shared(c) && s->b.result == FAR_ERR_NOT_FOUND))
        fail_msg("%s: call %u returned %d (%s)", where, (unsigned)(c - calls), s->b.result, words);
    refused += s->b.result == FAR_ERR_BUSY;
    served += s->b.result != FAR_ERR_BUSY;
    return s->b.result;
}


static void assert_key_matches_result(stage *s, const call *c, unsigned working, int result, const char *where) {
    unsigned number = key_number(c, working);
    bool done = result >= 0, there = c->kind == FAR_OP_DELETE ? !done : c->kind != FAR_OP_INSERT || done;
    bool written = done && (c->kind == FAR_OP_INSERT || c->kind == FAR_OP_UPDATE || c->kind == FAR_OP_PUT);
    if (!key_is_shared(c) && c->kind != FAR_OP_SCAN &&
        !stage_reads(&s->c, key_of(number), there ? value_of(written ? 'b' : 'c', number) : NULL))
        fail_msg("%s: call %u returned %d, but its key does not match that", where, (unsigned)(c - calls), result);
}


/* ---- Stories ---- */

static uint64_t count_verbs(const story *of, const script *script, bool evict) {
    stage s;
    open_story(&s, of, script, evict);
    work.verbs = 0;
    far_sim_on_verb(s.world, count_verb, s.a.client);
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
    return work.verbs;
}


static void run_story_stopped_at(const story *of, const script *script, unsigned nth, bool evict) {
    stage s;
    int results[CALLS] = {0};
    char where[160];
    open_story(&s, of, script, evict);
    stage_stop_at(&s.a, (far_sim_match){.nth = nth});
    unsigned working = work.number;
    snprintf(where, sizeof(where), "%s %s, operation %d of key %u stopped at verb %u", of->kind, of->options,
             script->kind, working, nth);
    for (unsigned i = 0; i < CALLS - (of->ordered ? 0u : 1u); i++) {
        results[i] = run_and_check_call(&s, &calls[i], working, where);
        if (evict && results[i] == FAR_ERR_BUSY)
            fail_msg("%s: call %u is refused: %s", where, i, words);
    }
    stage_finish(&s.a);
    if (s.a.result < 0 && !(evict && s.a.result == FAR_ERR_FENCED) && s.a.result != FAR_ERR_NOT_FOUND)
        fail_msg("%s: after it continued it failed with %d (%s)", where, s.a.result, far_last_error());
    for (unsigned i = 0; i < CALLS - (of->ordered ? 0u : 1u); i++)
        assert_key_matches_result(&s, &calls[i], working, results[i], where);
    if (s.a.result == FAR_ERR_FENCED)
        stage_kill(&s, &s.a);
    stage_close(&s);
}


static void run_story(const story *of, bool evict) {
    refused = served = 0;
    for (unsigned i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++) {
        uint64_t verbs = count_verbs(of, &scripts[i], evict);
        for (unsigned k = 0; k < count_stops(); k++)
            run_story_stopped_at(of, &scripts[i], 1 + (unsigned)(verbs * (2 * k + 1) / (2 * count_stops())), evict);
    }
    print_message("%s %s: %u served, %u refused\n", of->kind, of->options, served, refused);
    assert_true(served > 0);
}


TEST_FUNCTION(each_call_ends_and_names_the_stopped_client) {
    run_story(*state, false);
}


TEST_FUNCTION(with_eviction_no_call_is_refused) {
    run_story(*state, true);
}


/* ---- Merged operations ---- */

#define JOINED 5u

static struct {
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_op ops[JOINED];
    bool ended;
} joint;


static void run_merged_puts(void *arg) {
    far_op *ops[JOINED], *done[JOINED];
    char key[16], values[JOINED][16];
    (void)arg;
    snprintf(key, sizeof(key), "%s", key_of(100));
    for (unsigned i = 0; i < JOINED; i++) {
        snprintf(values[i], sizeof(values[i]), "%s", value_of('j', i));
        joint.ops[i] = (far_op){
            .kind = FAR_OP_PUT, .index = joint.index, .key = key, .key_len = 8, .value = values[i], .value_len = 8};
        ops[i] = &joint.ops[i];
    }
    assert_int_equal(far_submit(joint.session, ops, JOINED), JOINED);
    assert_int_equal(far_reap(joint.session, done, JOINED, JOINED), JOINED);
    joint.ended = true;
}


/* Several puts of one key are merged by RDWC, and their leader is refused. Proves that all puts are refused, and that
 * no value is stored. Fails without far_note_wait in wait_for_release (rdwc.c). */
TEST(merged_puts_are_refused_together) {
    static const struct {
        const char *kind, *options, *point;
    } held[] = {{"smart", "update=lock", "smart:locked"},
                {"chime", "", "chime:locked"},
                {"dolphin", "sync=exclusive", "dolphin:entered"},
                {"shard", "partitions=1,bits=10,key_size=8,value_size=8", "shard:locked"}};
    for (unsigned k = 0; k < sizeof(held) / sizeof(held[0]); k++) {
        stage s;
        far_pool_options options = FAR_POOL_OPTIONS_INIT;
        stage_open(&s, held[k].kind, held[k].options, NULL);
        memset(&joint, 0, sizeof(joint));
        world_join(s.uri, &options, &joint.pool, &joint.session);
        assert_int_equal(far_index_open(joint.session, "map", &joint.index), 0);
        stage_write(&s.c, key_of(100), value_of('c', 100));
        stage_start(&s.a, FAR_OP_PUT, key_of(100), value_of('a', 100));
        stage_stop_at(&s.a, (far_sim_match){.point = held[k].point});
        world_start(joint.pool, "joint", run_merged_puts, NULL);
        uint64_t began = far_sim_now(s.world);
        const uint64_t bound = far_stall_bound(joint.pool->fabric);
        while (!joint.ended && far_sim_now(s.world) - began < 2 * bound)
            far_sim_run_for(s.world, bound / 1000);
        /* The leader is refused after 9/10 of the bound. The members do not wait again afterwards. */
        if (!joint.ended || far_sim_now(s.world) - began > bound / 10 * 9 + bound / 100)
            fail_msg("%s: the puts took %.3f bounds", held[k].kind,
                     (double)(far_sim_now(s.world) - began) / (double)bound);
        for (unsigned i = 0; i < JOINED; i++)
            if (joint.ops[i].result != FAR_ERR_BUSY)
                fail_msg("%s: put %u returned %d", held[k].kind, i, joint.ops[i].result);
        stage_finish(&s.a);
        assert_int_equal(s.a.result, 0);
        assert_true(stage_reads(&s.c, key_of(100), value_of('a', 100)));
        far_index_close(joint.index);
        far_session_close(joint.session);
        far_pool_close(joint.pool);
        stage_close(&s);
    }
}


TEST_GENERATOR(add_stories) {
    for (unsigned at = 0; at < sizeof(stories) / sizeof(stories[0]); at++) {
        char name[128];
        snprintf(name, sizeof(name), "%s %s", stories[at].kind, stories[at].options);
        test_add(name, each_call_ends_and_names_the_stopped_client, NULL, NULL, (void *)&stories[at]);
        snprintf(name, sizeof(name), "%s %s evicted", stories[at].kind, stories[at].options);
        test_add(name, with_eviction_no_call_is_refused, NULL, NULL, (void *)&stories[at]);
    }
}
