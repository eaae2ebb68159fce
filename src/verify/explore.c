/* One operation crashed after each of its verbs in turn. */
#include "verify/explore.h"

#include "fabric/sim/sim.h"
#include "pool/handle.h"

#include <inttypes.h>
#include <string.h>

#define INDEX_NAME "explored"
#define VERBS_MAX  4096 /* of a victim: those after them are taken for changes */

typedef struct cut { /* where the victim dies; verb 0: not at all */
    uint64_t verb;
    uint32_t units;
} cut;

typedef struct victim {
    far_explore_step step;
    cut cut;
    far_pool *pool;
    far_index *index;
    far_session *session;
    uint64_t verbs;               /* so far */
    uint32_t units_of_verb;       /* how often the verb of its cut can be cut */
    uint8_t reads[VERBS_MAX / 8]; /* which of them change nothing */
    void *ctx;
} victim;

typedef struct story {
    const far_explore *explore;
    far_explore_result *result;
    victim victims[2];
    unsigned count; /* of them */
    far_pool *survivor;
    far_index *survivor_index;
    far_session *survivor_session;
    far_sim_world *world;
    int survived;  /* what the survivor says */
    uint64_t turn; /* of deaths of the second victim, counted in first deaths */
} story;


static void problem(story *s, const char *what) {
    s->result->problems++;
    if (!s->explore->out)
        return;
    for (unsigned i = 0; i < s->count; i++)
        fprintf(s->explore->out, "death at verb %" PRIu64 " after %u units%s", s->victims[i].cut.verb,
                s->victims[i].cut.units, i + 1 < s->count ? ", " : ": ");
    fprintf(s->explore->out, "%s\n", what);
}


static int tell_problem(void *ctx, const char *what) {
    problem(ctx, what);
    return 0;
}


static void count_verb(void *ctx, const far_sim_posted *posted) {
    victim *v = ctx;
    if (posted->conn != v->session->conn)
        return;
    v->verbs++;
    if (posted->verb->kind == FAR_READ && v->verbs < VERBS_MAX)
        v->reads[v->verbs / 8] |= (uint8_t)(1u << v->verbs % 8);
    if (v->verbs == v->cut.verb)
        v->units_of_verb = posted->verb->kind == FAR_WRITE ? posted->units : 1;
}


static void victim_main(void *arg) {
    victim *v = arg;
    v->step(v->session, v->index, v->ctx);
}


static void survivor_main(void *arg) {
    story *s = arg;
    s->survived = s->explore->survive(s->survivor_session, s->survivor_index, s->explore->ctx);
}


static int set_up(story *s) {
    char uri[256];
    const char *more = s->explore->sim;
    snprintf(uri, sizeof(uri), "sim:seed=1,memory_nodes=2,size=8M,name=explore%s%s", more ? "," : "", more ? more : "");
    int err = far_pool_open(uri, NULL, &s->survivor);
    for (unsigned i = 0; !err && i < s->count; i++)
        err = far_pool_open(uri, NULL, &s->victims[i].pool);
    if (!err)
        err = far_session_open(s->survivor, &s->survivor_session);
    for (unsigned i = 0; !err && i < s->count; i++)
        err = far_session_open(s->victims[i].pool, &s->victims[i].session);
    if (!err)
        err = far_index_create(s->survivor_session, INDEX_NAME, s->explore->kind, s->explore->options,
                               &s->survivor_index);
    for (unsigned i = 0; !err && i < s->count; i++)
        err = far_index_open(s->victims[i].session, INDEX_NAME, &s->victims[i].index);
    if (!err && s->explore->prepare)
        err = s->explore->prepare(s->survivor_session, s->survivor_index, s->explore->ctx);
    if (!err)
        s->world = far_sim_world_of(s->survivor->fabric);
    return err;
}


static void run_victim(story *s, victim *v) {
    far_sim_client *client = far_sim_start(v->pool->fabric, "victim", victim_main, v);
    if (!client) {
        problem(s, "no memory for the victim");
        return;
    }
    far_sim_on_verb(s->world, count_verb, v);
    if (v->cut.verb)
        far_sim_kill_at(client, (far_sim_match){.nth = (unsigned)v->cut.verb}, v->cut.units);
    if (far_sim_run_client(client) != FAR_SIM_ENDED)
        problem(s, "the victim's code does not come to an end");
    far_sim_on_verb(s->world, NULL, NULL);
}


/* The survivor is a client too, so that one that waits for ever is noticed: then it dies as well, and its code ends. */
static bool run_survivor(story *s) {
    s->survived = 0;
    far_sim_client *survivor = far_sim_start(s->survivor->fabric, "survivor", survivor_main, s);
    far_sim_result how = survivor ? far_sim_run_client(survivor) : FAR_SIM_ENDED;
    if (!survivor || s->survived < 0)
        problem(s, survivor ? "the survivor found something wrong" : "no memory for the survivor");
    if (how == FAR_SIM_ENDED)
        return true;
    problem(s, "the survivor waits for ever");
    far_sim_kill(s->survivor->fabric);
    far_sim_run_client(survivor);
    return false;
}


static void survive(story *s) {
    far_pool_usage usage;
    if (!run_survivor(s))
        return;
    if (far_index_check(s->survivor_session, s->survivor_index, tell_problem, s) < 0)
        problem(s, "the check failed");
    if (s->explore->sweep) {
        if (far_pool_check(s->survivor_session, 1, tell_problem, s) < 0)
            problem(s, "the check of the pool failed");
        if (far_pool_check(s->survivor_session, 0, tell_problem, s) < 0 ||
            far_pool_stat(s->survivor_session, &usage) < 0)
            problem(s, "the second check of the pool failed");
        else if (usage.leaked)
            problem(s, "memory is lost after the sweep");
    }
    if (far_sim_deadlocked(s->world))
        problem(s, "a survivor waits for ever");
    for (unsigned i = 0; far_sim_watch_error(s->world, i); i++)
        problem(s, far_sim_watch_error(s->world, i));
}


static void tidy_up(story *s) {
    far_session_close(s->survivor_session);
    for (unsigned i = 0; i < s->count; i++)
        far_session_close(s->victims[i].session);
    far_index_close(s->survivor_index);
    for (unsigned i = 0; i < s->count; i++)
        far_index_close(s->victims[i].index);
    far_pool_close(s->survivor);
    for (unsigned i = 0; i < s->count; i++)
        far_pool_close(s->victims[i].pool);
}


/* One death of each victim, in a fresh pool. */
static int explore_cut(story *s) {
    s->survivor = NULL;
    s->survivor_index = NULL;
    s->survivor_session = NULL;
    for (unsigned i = 0; i < s->count; i++) {
        victim *v = &s->victims[i];
        *v = (victim){.step = v->step, .cut = v->cut, .ctx = v->ctx};
    }
    int err = set_up(s);
    for (unsigned i = 0; !err && i < s->count; i++)
        run_victim(s, &s->victims[i]);
    if (!err)
        survive(s);
    tidy_up(s);
    s->result->cuts += s->victims[0].cut.verb != 0;
    return err;
}


/* Every death of that victim, with every one of those after it. */
static int explore_victim(story *s, unsigned which) {
    victim *v = &s->victims[which];
    bool last = which + 1 == s->count;
    v->cut = (cut){0};
    int err = explore_cut(s); /* the victim does not die: its verbs are counted */
    uint64_t verbs = v->verbs;
    if (which == 0)
        s->result->verbs = verbs;
    uint8_t reads[VERBS_MAX / 8];
    memcpy(reads, v->reads, sizeof(reads));
    uint64_t step = which > 0 && s->explore->stride ? s->explore->stride : 1;
    uint64_t skip = which > 0 ? s->turn++ : 0; /* after each first death the second begins one verb further on */
    for (uint64_t verb = 1; !err && verb <= verbs; verb++) {
        bool through = !s->explore->changes_only || verb == verbs;
        if (!through && verb < VERBS_MAX && (reads[verb / 8] >> verb % 8 & 1))
            continue;
        if (skip++ % step != 0)
            continue;
        uint32_t units = 1;
        for (uint32_t unit = 0; !err && unit < units + through; unit++) { /* unit 0: before it; units: after it */
            v->cut = (cut){verb, unit};
            err = last ? explore_cut(s) : explore_victim(s, which + 1);
            units = v->units_of_verb;
            if (!s->explore->every_unit && unit == 0 && units > 0)
                unit = through ? units - 1 : units;
        }
    }
    return err;
}


int far_explore_run(const far_explore *explore, far_explore_result *result) {
    *result = (far_explore_result){0};
    story s = {.explore = explore, .result = result, .count = explore->second ? 2 : 1};
    s.victims[0].step = explore->victim;
    s.victims[1].step = explore->second;
    s.victims[0].ctx = s.victims[1].ctx = explore->ctx;
    return explore_victim(&s, 0);
}
