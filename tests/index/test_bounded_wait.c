/* Client A is stopped before a verb of one of its operations, and stays stopped. Four other handles, the first with
 * three sessions, call functions all the time, on the keys near the key of A's operation. So they wait for the lock of
 * A, for each other's locks, in the lines of local latches, at gates, as members of RDWC rounds, and for epochs. Proves
 * that no call takes longer than 1.1 times the bound (far_stall_bound), in virtual time.
 *
 * test_bounded_wait [FILTER]      FARINDEX_STOPS sets the number of verbs at which A is stopped in each script */
#include "stage.h"
#include "task/session.h"
#include "task/session_list.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS     40u
#define STOPS    3u /* number of stops in each script */
#define HANDLES  4u
#define SESSIONS 6u /* of all these handles; the first three belong to the first handle */
#define CALLS    9u /* calls of each session */

typedef struct story {
    const char *kind, *options;
} story;

static const story stories[] = {
    {"chime", ""},
    {"chime", "key_size=8,value_size=8,span=12,hop=2,handover=off"},
    {"dart", ""},
    {"dart", "lock_free=off"},
    {"dolphin", ""},
    {"dolphin", "key_size=8,value_size=8"},
    {"dolphin", "sync=exclusive,patience=2,leaf_slots=4"},
    {"smart", ""},
    {"smart", "lockfree_nodes=off"},
    {"smart", "update=lock"},
    {"shard", "partitions=1,bits=0,slots=6,l2_slots=1,load=95,extent=1024"},
    {"shard", "partitions=1,bits=10,slots=1,l2_slots=1,load=95,key_size=8,value_size=8"},
    {"toy", "slots=4"},
};

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

static struct {
    stage_actor live[SESSIONS];
    uint64_t longest;    /* the longest call, in ns */
    char longest_at[96]; /* which call that was */
    uint64_t longest_of_story;
    unsigned refused, calls;
    far_sim_world *world;
} crowd;


static void name_key(unsigned number, char key[16]) {
    snprintf(key, 16, "key %04u", number); /* 8 bytes, like the values */
}


static unsigned count_stops(void) {
    const char *wish = getenv("FARINDEX_STOPS");
    return wish ? (unsigned)strtoul(wish, NULL, 10) : STOPS;
}


static void run_script(void *actor) {
    stage_actor *a = actor;
    char key[16];
    a->result = 0;
    for (unsigned i = 0; i < work.script->count && a->result == 0; i++) {
        work.number = work.script->first + 10 * i;
        name_key(work.number, key);
        stage_set(a, work.script->kind, key, key);
        a->result = stage_run(a);
    }
    a->ended = true;
}


/* ---- The live clients ---- */

/* Runs the calls of one session. All sessions use the same few keys around the key of A. */
static void run_calls(void *actor) {
    static const far_op_kind kinds[] = {FAR_OP_UPDATE, FAR_OP_PUT, FAR_OP_INSERT, FAR_OP_DELETE, FAR_OP_GET};
    stage_actor *b = actor;
    const unsigned place = (unsigned)(b - crowd.live);
    char key[16];
    for (unsigned i = 0; i < CALLS; i++) {
        far_op_kind kind = kinds[(place / 2 + i) % 5];
        name_key(work.number + (i % 3 == 2 ? 3 + place : 0), key);
        stage_set(b, kind, key, key);
        uint64_t began = far_sim_now(crowd.world);
        int result = stage_run(b);
        uint64_t took = far_sim_now(crowd.world) - began;
        crowd.calls++;
        crowd.refused += result == FAR_ERR_BUSY;
        if (result < 0 && result != FAR_ERR_BUSY && result != FAR_ERR_NOT_FOUND && result != FAR_ERR_EXISTS)
            fail_msg("call %u of session %u returned %d (%s)", i, place, result, far_last_error());
        if (took > crowd.longest) {
            crowd.longest = took;
            snprintf(crowd.longest_at, sizeof(crowd.longest_at), "call %u (kind %d) of session %u: %d", i, kind, place,
                     result);
        }
    }
    b->ended = true;
}


static void open_crowd(stage *s) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    memset(crowd.live, 0, sizeof(crowd.live));
    crowd.world = s->world;
    crowd.longest = 0;
    for (unsigned i = 0; i < SESSIONS; i++) {
        stage_actor *b = &crowd.live[i];
        if (i == 0 || i > SESSIONS - HANDLES) {
            world_join(s->uri, &options, &b->pool, &b->session);
            assert_int_equal(far_index_open(b->session, "map", &b->index), 0);
        } else {
            b->pool = crowd.live[0].pool;
            b->index = crowd.live[0].index;
            assert_int_equal(far_session_open(b->pool, &b->session), 0);
        }
    }
}


static void close_crowd(void) {
    for (unsigned i = SESSIONS; i-- > 0;) {
        bool handle = i == 0 || i > SESSIONS - HANDLES;
        if (handle)
            far_index_close(crowd.live[i].index);
        far_session_close(crowd.live[i].session);
        if (handle)
            far_pool_close(crowd.live[i].pool);
    }
}


static bool crowd_has_ended(void) {
    bool ended = true;
    for (unsigned i = 0; i < SESSIONS; i++)
        ended &= crowd.live[i].ended;
    return ended;
}


/* ---- Stories ---- */

static void open_story(stage *s, const story *of, const script *script) {
    char key[16];
    stage_open(s, of->kind, of->options, "limit=1000s");
    for (unsigned i = 0; i < KEYS; i++) {
        name_key(10 * i, key);
        stage_write(&s->c, key, key);
    }
    work.script = script;
    stage_start_main(&s->a, "a", run_script);
}


static void count_verb(void *ctx, const far_sim_posted *posted) {
    work.verbs += posted->client == ctx;
}


static uint64_t count_verbs(const story *of, const script *script) {
    stage s;
    open_story(&s, of, script);
    open_crowd(&s);
    work.verbs = 0;
    far_sim_on_verb(s.world, count_verb, s.a.client);
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    far_sim_on_verb(s.world, NULL, NULL);
    close_crowd();
    stage_close(&s);
    return work.verbs;
}


static void run_story_stopped_at(const story *of, const script *script, unsigned nth) {
    stage s;
    open_story(&s, of, script);
    open_crowd(&s);
    const uint64_t bound = far_stall_bound(crowd.live[0].pool->fabric), began = far_sim_now(s.world);
    stage_stop_at(&s.a, (far_sim_match){.nth = nth});
    for (unsigned i = 0; i < SESSIONS; i++)
        stage_start_main(&crowd.live[i], "live", run_calls);
    while (!crowd_has_ended() && far_sim_now(s.world) - began < 20 * bound)
        far_sim_run_for(s.world, bound / 100);
    if (!crowd_has_ended() || crowd.longest > bound + bound / 10)
        fail_msg("%s %s, operation %d of key %u stopped at verb %u: %s, after %.2f bounds", of->kind, of->options,
                 script->kind, work.number, nth, crowd_has_ended() ? crowd.longest_at : "a call does not end",
                 (double)crowd.longest / (double)bound);
    if (crowd.longest > crowd.longest_of_story)
        crowd.longest_of_story = crowd.longest;
    stage_finish(&s.a);
    if (s.a.result < 0 && s.a.result != FAR_ERR_NOT_FOUND && s.a.result != FAR_ERR_EXISTS)
        fail_msg("A failed with %d (%s)", s.a.result, far_last_error());
    close_crowd();
    stage_close(&s);
}


TEST_FUNCTION(no_call_takes_longer_than_the_bound) {
    const story *of = *state;
    crowd.refused = crowd.calls = 0;
    crowd.longest_of_story = 0;
    for (unsigned i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++) {
        uint64_t verbs = count_verbs(of, &scripts[i]);
        for (unsigned k = 0; k < count_stops(); k++)
            run_story_stopped_at(of, &scripts[i], 1 + (unsigned)(verbs * (2 * k + 1) / (2 * count_stops())));
    }
    print_message("%s %s: %u of %u calls were refused, the longest took %.1f ms\n", of->kind, of->options,
                  crowd.refused, crowd.calls, (double)crowd.longest_of_story / 1e6);
}


TEST_GENERATOR(add_stories) {
    for (unsigned at = 0; at < sizeof(stories) / sizeof(stories[0]); at++) {
        char name[128];
        snprintf(name, sizeof(name), "%s %s", stories[at].kind, stories[at].options);
        test_add(name, no_call_takes_longer_than_the_bound, NULL, NULL, (void *)&stories[at]);
    }
}
