/* One run of torture: creates a simulated world from a seed, starts its clients, and checks the history, the index and
 * the pool after the run. `far_torture_run` is the entry. */
#include "verify/torture_run.h"

#include "base/error.h"
#include "pool/handle.h"
#include "verify/verify.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PROBLEMS_SHOWN 10
/* limit of virtual time in ns of all clients; about a thousand times the time that they need */
#define TIME_LIMIT  1000000000ull
#define CHURN_STEPS 6        /* number of steps of a client that churns */
#define SETTLE_NS   5000000u /* time in ns after the run after which all effects of an outage have happened */

typedef far_tortured run;
typedef far_torture_client client;
typedef far_torture_node node;


void far_torture_init(far_torture *torture) {
    memset(torture, 0, sizeof(*torture));
    torture->clients = 4;
    torture->compute_nodes = 2;
    torture->memory_nodes = 2;
    torture->keys = "u64";
    torture->value_bytes[0] = 8;
    torture->value_bytes[1] = 200;
    torture->tear = torture->reorder = torture->stall = torture->crash = true;
    torture->atomic_bytes = 64;
    torture->masked_cas = torture->reads_in_order = torture->rdwc = torture->scans = torture->churn = true;
    torture->cache_bytes = 1 << 20;
    torture->pool_bytes = 16 << 20;
}


int64_t far_torture_stamp(run *r) {
    int64_t now = (int64_t)far_sim_now(r->world);
    r->stamp = now > r->stamp ? now : r->stamp + 1;
    return r->stamp;
}


void far_torture_problem(run *r, const char *what) {
    if (r->problems++ < PROBLEMS_SHOWN)
        fprintf(r->out, "seed %" PRIu64 ": %s\n", r->seed, what);
}


static int report_found_problem(void *ctx, const char *what) {
    far_torture_problem(ctx, what);
    return 0;
}


/* ---- Opening and closing ---- */

static int open_nodes(run *r) {
    const far_torture *t = r->torture;
    snprintf(r->uri, sizeof(r->uri),
             "sim:seed=%" PRIu64 ",memory_nodes=%u,size=%" PRIu64
             ",atomic_bytes=%u,masked_cas=%s,atomics_in_order=%s,reads_in_order=%s,questions=%s,name=torture",
             r->seed, t->memory_nodes, t->pool_bytes / t->memory_nodes / 4096 * 4096, t->atomic_bytes,
             t->masked_cas ? "on" : "off", t->atomics_in_order ? "on" : "off", t->reads_in_order ? "on" : "off",
             t->questions ? "on" : "off");
    r->options = (far_pool_options)FAR_POOL_OPTIONS_INIT;
    r->options.rdwc = t->rdwc ? 1 : -1;
    r->options.cache_bytes = t->cache_bytes;
    for (unsigned i = 0; i < r->node_count; i++) {
        int err = far_torture_open_pool(r, &r->nodes[i]);
        if (err < 0)
            return err;
        r->nodes[i].first = r->nodes[i].pool;
    }
    r->world = far_sim_world_of(r->nodes[0].pool->fabric);
    if (t->trace)
        far_sim_trace_to(r->world, t->trace);
    return 0;
}


static int open_index(run *r) {
    for (unsigned i = 0; i < r->node_count; i++) {
        far_session *session;
        int err = far_session_open(r->nodes[i].pool, &session);
        if (err)
            return err;
        if (i == 0)
            err = far_index_create(session, FAR_TORTURED_INDEX, r->torture->kind, r->torture->options,
                                   &r->nodes[i].index);
        else
            err = far_index_open(session, FAR_TORTURED_INDEX, &r->nodes[i].index);
        far_session_close(session);
        if (err)
            return err;
    }
    return 0;
}


static int make_clients(run *r) {
    const far_torture *t = r->torture;
    for (unsigned i = 0; i < r->client_count; i++) {
        client *c = &r->clients[i];
        c->run = r;
        c->number = i;
        c->node = &r->nodes[i % r->node_count];
        bool churns = i >= t->clients;
        c->left = churns ? CHURN_STEPS : t->ops / t->clients + (i < t->ops % t->clients);
        far_random_seed(&c->random, far_random_next(&r->random));
        c->slots = calloc(t->depth, sizeof(*c->slots));
        for (unsigned k = 0; c->slots && k < t->depth; k++) {
            c->slots[k].owner = r;
            c->slots[k].value = malloc(FAR_VALUE_MAX);
            if (!c->slots[k].value)
                return far_fail(FAR_ERR_NO_MEMORY, "no memory for the clients");
        }
        char name[24]; /* the trace and the history name the client by the same number */
        snprintf(name, sizeof name, "%s-%u", churns ? "churner" : "client", i);
        c->sim = c->slots ? far_sim_start(c->node->pool->fabric, name,
                                          churns ? far_torture_churn : far_torture_client_main, c)
                          : NULL;
        if (!c->sim)
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for the clients");
    }
    return 0;
}


static void close_run(run *r) {
    for (unsigned i = 0; i < r->node_count; i++) {
        far_torture_close_pool(&r->nodes[i]);
        far_pool_close(r->nodes[i].first);
    }
    for (unsigned i = 0; i < r->client_count; i++) {
        for (unsigned k = 0; r->clients[i].slots && k < r->torture->depth; k++)
            free(r->clients[i].slots[k].value);
        free(r->clients[i].slots);
    }
    far_keyset_close(r->keyset);
    far_history_free(r->history);
    free(r->nodes);
    free(r->clients);
}


/* ---- Checks after the run, by a surviving compute node ---- */

static void read_all_keys(run *r, far_session *session, const node *n) {
    static uint8_t value[FAR_VALUE_MAX];
    uint8_t key[FAR_KEY_MAX];
    size_t length;
    for (uint64_t i = 0; i < r->key_space; i++) {
        size_t key_len = far_keyset_key(r->keyset, i, key);
        size_t record =
            far_history_begin(r->history, r->client_count, FAR_OP_GET, key, key_len, NULL, 0, far_torture_stamp(r));
        int result = far_get(session, n->index, key, key_len, value, sizeof(value), &length);
        far_history_end(r->history, record, result, result == 0 ? value : NULL, result == 0 ? length : 0,
                        far_torture_stamp(r));
        if (result < 0 && result != FAR_ERR_NOT_FOUND)
            far_torture_problem(r, "a get by a surviving client failed after the run");
    }
}


static void report_failed_call(run *r, const char *what) {
    char text[320];
    snprintf(text, sizeof(text), "%s: %s", what, far_last_error());
    far_torture_problem(r, text);
}


static void check_pool(run *r, far_session *session, const node *n) {
    far_pool_usage usage;
    if (far_index_check(session, n->index, report_found_problem, r) < 0)
        report_failed_call(r, "the check of the index could not run");
    if (far_pool_check(session, 1, report_found_problem, r) < 0)
        report_failed_call(r, "the check of the pool with repair could not run");
    if (far_pool_check(session, 0, report_found_problem, r) < 0 || far_pool_stat(session, &usage) < 0)
        report_failed_call(r, "the check of the pool after the repair could not run");
    else if (usage.leaked)
        far_torture_problem(r, "memory is still leaked after the check of the pool with repair");
}


static void check_after_run(run *r) {
    if (r->outages_begun)
        far_sim_sleep(r->world, SETTLE_NS);
    for (unsigned i = 0; i < r->node_count; i++) {
        node *n = &r->nodes[i];
        if (far_torture_is_killed(n))
            continue;
        far_session *session;
        if ((r->outages_begun && far_torture_reopen_pool(r, n) < 0) || far_session_open(n->pool, &session) < 0) {
            far_torture_problem(r, far_last_error());
            return;
        }
        read_all_keys(r, session, n);
        check_pool(r, session, n);
        far_session_close(session);
        return;
    }
}


/* Called when clients hang. Kills all compute nodes, so that the code of the clients returns. */
static void kill_hanging_clients(run *r, far_sim_result how) {
    char text[80];
    snprintf(text, sizeof(text), "the clients did not finish: the simulator returned '%s'", far_sim_result_name(how));
    far_torture_problem(r, text);
    for (unsigned i = 0; i < r->node_count; i++)
        far_torture_kill(r, &r->nodes[i]);
    for (unsigned i = 0; i < r->client_count; i++)
        if (r->clients[i].temporary_pool)
            far_sim_kill(r->clients[i].temporary_pool->fabric);
    far_sim_run(r->world);
}


static void check_history(run *r, far_torture_result *result) {
    far_verify_report verdict;
    far_verify_history(r->history, NULL, 0, r->out, &verdict);
    uint64_t violations = verdict.violations + far_sim_watch_errors(r->world);
    for (unsigned i = 0; far_sim_watch_error(r->world, i); i++)
        fprintf(r->out, "seed %" PRIu64 ": memory checker: %s\n", r->seed, far_sim_watch_error(r->world, i));
    if (violations || r->problems) {
        fprintf(r->out,
                "seed %" PRIu64 ": %" PRIu64 " violations, %" PRIu64 " problems; the last events of the simulator:\n",
                r->seed, violations, r->problems);
        far_sim_trace_dump(r->world, r->out);
    }
    result->violations += violations;
    result->gave_up += verdict.gave_up;
    result->problems += r->problems;
    result->ops += far_history_count(r->history);
    result->crashes += r->crashes;
    result->silences += r->outages_begun;
    result->restarts += r->restarts;
    result->merged += r->merged;
    result->seeds++;
    result->trace_hash = far_sim_trace_hash(r->world);
    if (r->torture->history)
        far_history_write(r->history, r->torture->history);
}


int far_torture_run(const far_torture *asked, uint64_t seed, far_torture_result *result, FILE *out) {
    char error[256];
    far_torture chosen = *asked, *torture = &chosen;
    far_torture_choose_small(&chosen, seed);
    run r = {.torture = torture,
             .seed = seed,
             .out = out,
             .key_space = torture->key_space,
             .node_count = torture->compute_nodes,
             .client_count = torture->clients + (torture->churn ? torture->compute_nodes : 0)};
    far_random_seed(&r.random, seed);
    r.nodes = calloc(r.node_count, sizeof(*r.nodes));
    r.clients = calloc(r.client_count, sizeof(*r.clients));
    r.history = far_history_new(seed);
    int err = r.nodes && r.clients && r.history ? 0 : far_fail(FAR_ERR_NO_MEMORY, "no memory for a run");
    if (!err && far_keyset_open(torture->keys, seed, &r.keyset, error, sizeof(error)) < 0)
        err = far_fail(FAR_ERR_INVALID, "%s", error);
    if (!err)
        err = open_nodes(&r);
    if (!err)
        err = open_index(&r);
    if (!err)
        err = make_clients(&r);
    if (!err) {
        far_torture_set_faults(&r);
        far_sim_limit(r.world, TIME_LIMIT);
        far_sim_result how = far_sim_run(r.world);
        far_sim_on_verb(r.world, NULL, NULL);
        far_sim_on_point(r.world, NULL, NULL);
        if (how == FAR_SIM_ENDED)
            check_after_run(&r);
        else
            kill_hanging_clients(&r, how);
        check_history(&r, result);
    }
    close_run(&r);
    return err;
}
