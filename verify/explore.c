/* The crash explorer repeats an operation in fresh pools and kills its client at each verb in turn. `far_explore_run`
 * is called by tests. */
#include "verify/explore.h"

#include "fabric/sim/sim.h"
#include "pool/handle.h"

#include <inttypes.h>
#include <string.h>

#define INDEX_NAME "explored"
/* number of verbs of one client for which the explorer records whether they are READs; later verbs are treated as
 * changes */
#define VERBS_MAX 4096

/* the verb at which the client is killed, and the number of its granules that take effect; verb 0: it is not killed */
typedef struct cut {
    uint64_t verb;
    uint32_t granules;
} cut;

typedef struct victim {
    far_explore_step step;
    cut cut;
    far_pool *pool;
    far_index *index;
    far_session *session;
    uint64_t verbs;               /* number of verbs that this client has posted */
    uint32_t granules_of_verb;    /* number of granules of the verb at which this client is killed */
    uint8_t reads[VERBS_MAX / 8]; /* bitmap of the verbs that are READs */
    void *ctx;
} victim;

typedef struct exploration {
    const far_explore *explore;
    far_explore_result *result;
    victim victims[2];
    unsigned count; /* number of clients that are killed */
    far_pool *survivor;
    far_index *survivor_index;
    far_session *survivor_session;
    far_sim_world *world;
    int survived;  /* result of the `survive` step of the surviving client */
    uint64_t turn; /* number of kills of the first client so far; counted only if there is a second client */
} exploration;


static void report_problem(exploration *s, const char *what) {
    s->result->problems++;
    if (!s->explore->out)
        return;
    for (unsigned i = 0; i < s->count; i++)
        fprintf(s->explore->out, "client killed at verb %" PRIu64 " after %u granules%s", s->victims[i].cut.verb,
                s->victims[i].cut.granules, i + 1 < s->count ? ", " : ": ");
    fprintf(s->explore->out, "%s\n", what);
}


static int report_found_problem(void *ctx, const char *what) {
    report_problem(ctx, what);
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
        v->granules_of_verb = posted->verb->kind == FAR_WRITE ? posted->units : 1;
}


static void victim_main(void *arg) {
    victim *v = arg;
    v->step(v->session, v->index, v->ctx);
}


static void survivor_main(void *arg) {
    exploration *s = arg;
    s->survived = s->explore->survive(s->survivor_session, s->survivor_index, s->explore->ctx);
}


static int open_pools(exploration *s) {
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


static void run_victim(exploration *s, victim *v) {
    far_sim_client *client = far_sim_start(v->pool->fabric, "victim", victim_main, v);
    if (!client) {
        report_problem(s, "no memory for the victim");
        return;
    }
    far_sim_on_verb(s->world, count_verb, v);
    if (v->cut.verb)
        far_sim_kill_at(client, (far_sim_match){.nth = (unsigned)v->cut.verb}, v->cut.granules);
    if (far_sim_run_client(client) != FAR_SIM_ENDED)
        report_problem(s, "the code of the killed client does not return");
    far_sim_on_verb(s->world, NULL, NULL);
}


/* Runs the survivor as a simulated client, so that an endless wait is detected. If the survivor waits endlessly, it is
 * killed too, so that its code returns, and this function returns false. */
static bool run_survivor(exploration *s) {
    s->survived = 0;
    far_sim_client *survivor = far_sim_start(s->survivor->fabric, "survivor", survivor_main, s);
    far_sim_result how = survivor ? far_sim_run_client(survivor) : FAR_SIM_ENDED;
    if (!survivor || s->survived < 0)
        report_problem(s, survivor ? "the survivor returned an error" : "no memory for the survivor");
    if (how == FAR_SIM_ENDED)
        return true;
    report_problem(s, "the survivor waits forever");
    far_sim_kill(s->survivor->fabric);
    far_sim_run_client(survivor);
    return false;
}


static void run_and_check_survivor(exploration *s) {
    far_pool_usage usage;
    if (!run_survivor(s))
        return;
    if (far_index_check(s->survivor_session, s->survivor_index, report_found_problem, s) < 0)
        report_problem(s, "the check of the index could not run");
    if (s->explore->collect) {
        if (far_pool_check(s->survivor_session, 1, report_found_problem, s) < 0)
            report_problem(s, "the check of the pool with repair could not run");
        if (far_pool_check(s->survivor_session, 0, report_found_problem, s) < 0 ||
            far_pool_stat(s->survivor_session, &usage) < 0)
            report_problem(s, "the check of the pool after the repair could not run");
        else if (usage.leaked)
            report_problem(s, "memory is still leaked after the check of the pool with repair");
    }
    if (far_sim_deadlocked(s->world))
        report_problem(s, "a call of the survivor waits forever");
    for (unsigned i = 0; far_sim_watch_error(s->world, i); i++)
        report_problem(s, far_sim_watch_error(s->world, i));
}


static void close_pools(exploration *s) {
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


/* Runs one combination of kills in a fresh pool. */
static int explore_cut(exploration *s) {
    s->survivor = NULL;
    s->survivor_index = NULL;
    s->survivor_session = NULL;
    for (unsigned i = 0; i < s->count; i++) {
        victim *v = &s->victims[i];
        *v = (victim){.step = v->step, .cut = v->cut, .ctx = v->ctx};
    }
    int err = open_pools(s);
    for (unsigned i = 0; !err && i < s->count; i++)
        run_victim(s, &s->victims[i]);
    if (!err)
        run_and_check_survivor(s);
    close_pools(s);
    s->result->cuts += s->victims[0].cut.verb != 0;
    return err;
}


/* Explores each kill of this client, each combined with every kill of the clients after it. */
static int explore_victim(exploration *s, unsigned which) {
    victim *v = &s->victims[which];
    bool last = which + 1 == s->count;
    v->cut = (cut){0};
    int err = explore_cut(s); /* In this first run the client is not killed, so that its verbs are counted. */
    uint64_t verbs = v->verbs;
    if (which == 0)
        s->result->verbs = verbs;
    uint8_t reads[VERBS_MAX / 8];
    memcpy(reads, v->reads, sizeof(reads));
    uint64_t step = which > 0 && s->explore->stride ? s->explore->stride : 1;
    /* After each kill of the first client, the explored verbs of the second client begin one verb later, so that the
     * stride selects different verbs. */
    uint64_t skip = which > 0 ? s->turn++ : 0;
    for (uint64_t verb = 1; !err && verb <= verbs; verb++) {
        bool through = !s->explore->changes_only || verb == verbs;
        if (!through && verb < VERBS_MAX && (reads[verb / 8] >> verb % 8 & 1))
            continue;
        if (skip++ % step != 0)
            continue;
        uint32_t granules = 1;
        for (uint32_t granule = 0; !err && granule < granules + through;
             /* granule == 0: the client is killed before the verb takes effect; granule == number of granules of the
              * verb: killed after it has taken effect */
             granule++) {
            v->cut = (cut){verb, granule};
            err = last ? explore_cut(s) : explore_victim(s, which + 1);
            granules = v->granules_of_verb;
            if (!s->explore->every_unit && granule == 0 && granules > 0)
                granule = through ? granules - 1 : granules;
        }
    }
    return err;
}


int far_explore_run(const far_explore *explore, far_explore_result *result) {
    *result = (far_explore_result){0};
    exploration s = {.explore = explore, .result = result, .count = explore->second ? 2 : 1};
    s.victims[0].step = explore->victim;
    s.victims[1].step = explore->second;
    s.victims[0].ctx = s.victims[1].ctx = explore->ctx;
    return explore_victim(&s, 0);
}
