#include "verify/explore.h"

#include "fabric/sim/sim.h"
#include "pool/handle.h"

#include <inttypes.h>

#define INDEX_NAME "explored"

typedef struct cut { /* where the victim dies; verb 0: not at all */
    uint64_t verb;
    uint32_t units;
} cut;

typedef struct story {
    const far_explore *explore;
    far_explore_result *result;
    cut cut;
    far_pool *survivor, *doomed;
    far_index *survivor_index, *doomed_index;
    far_session *survivor_session, *doomed_session;
    far_sim_world *world;
    int survived;         /* what the survivor says */
    uint64_t verbs;       /* of the victim so far */
    uint32_t units_of_verb; /* how often the verb of this cut can be cut */
} story;


static void problem(story *s, const char *what) {
    s->result->problems++;
    if (s->explore->out)
        fprintf(s->explore->out, "death at verb %" PRIu64 " after %u units: %s\n", s->cut.verb, s->cut.units, what);
}


static int tell_problem(void *ctx, const char *what) {
    problem(ctx, what);
    return 0;
}


static void count_verb(void *ctx, const far_sim_posted *posted) {
    story *s = ctx;
    if (posted->conn != s->doomed_session->conn)
        return;
    s->verbs++;
    if (s->verbs == s->cut.verb)
        s->units_of_verb = posted->verb->kind == FAR_WRITE ? posted->units : 1;
}


static void victim_main(void *arg) {
    story *s = arg;
    s->explore->victim(s->doomed_session, s->doomed_index, s->explore->ctx);
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
    if (!err)
        err = far_pool_open(uri, NULL, &s->doomed);
    if (!err)
        err = far_session_open(s->survivor, &s->survivor_session);
    if (!err)
        err = far_session_open(s->doomed, &s->doomed_session);
    if (!err)
        err = far_index_create(s->survivor_session, INDEX_NAME, s->explore->kind, s->explore->options, &s->survivor_index);
    if (!err)
        err = far_index_open(s->doomed_session, INDEX_NAME, &s->doomed_index);
    if (!err && s->explore->prepare)
        err = s->explore->prepare(s->survivor_session, s->survivor_index, s->explore->ctx);
    return err;
}


static void run_victim(story *s) {
    s->world = far_sim_world_of(s->doomed->fabric);
    far_sim_client *victim = far_sim_start(s->doomed->fabric, "victim", victim_main, s);
    if (!victim) {
        problem(s, "no memory for the victim");
        return;
    }
    far_sim_on_verb(s->world, count_verb, s);
    if (s->cut.verb)
        far_sim_kill_at(victim, (far_sim_match){.nth = (unsigned)s->cut.verb}, s->cut.units);
    if (far_sim_run_client(victim) != FAR_SIM_ENDED)
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
        if (far_pool_check(s->survivor_session, 0, tell_problem, s) < 0 || far_pool_stat(s->survivor_session, &usage) < 0)
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
    far_session_close(s->doomed_session);
    far_index_close(s->survivor_index);
    far_index_close(s->doomed_index);
    far_pool_close(s->survivor);
    far_pool_close(s->doomed);
}


/* One death in a fresh pool. */
static int explore_cut(story *s) {
    s->survivor = s->doomed = NULL;
    s->survivor_index = s->doomed_index = NULL;
    s->survivor_session = s->doomed_session = NULL;
    s->verbs = 0;
    s->units_of_verb = 0;
    int err = set_up(s);
    if (!err) {
        run_victim(s);
        survive(s);
    }
    tidy_up(s);
    s->result->cuts += s->cut.verb != 0;
    return err;
}


int far_explore_run(const far_explore *explore, far_explore_result *result) {
    *result = (far_explore_result){0};
    story s = {.explore = explore, .result = result};
    int err = explore_cut(&s); /* nobody dies: counts the verbs */
    result->verbs = s.verbs;
    for (uint64_t verb = 1; !err && verb <= result->verbs; verb++) {
        uint32_t units = 1;
        for (uint32_t unit = 0; !err && unit <= units; unit++) { /* unit 0: before it; units: after it */
            s.cut = (cut){verb, unit};
            err = explore_cut(&s);
            units = s.units_of_verb;
            if (!explore->every_unit && unit == 0 && units > 0)
                unit = units - 1;
        }
    }
    return err;
}
