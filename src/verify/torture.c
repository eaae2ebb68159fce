/* Torture: a simulated world with faults made from one seed, its clients, and the judgement of what they saw. */
#include "verify/torture_run.h"

#include "base/error.h"
#include "index/rdwc.h"
#include "pool/handle.h"
#include "verify/verify.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PROBLEMS_SHOWN 10
#define SCAN_LIMIT_MAX 20
#define TIME_LIMIT     1000000000ull /* ns of virtual time for the clients together: a thousand times what they need */
#define HOT_KEYS       8             /* of most seeds, unless told otherwise */
#define MANY_KEYS      100           /* of every fourth: larger structures, which hot keys alone never make */
#define CHURN_STEPS    6             /* of one who churns */
#define SILENCE_SHORT  100000u       /* ns of a memory node: who waits for one loses patience after so long */
#define SILENCE_LONG   600000u
#define RENEW_PAUSE    20000u   /* ns between two tries to open the pool again */
#define ECHO_NS        5000000u /* until all that a silence set going has happened */

typedef far_tortured run;
typedef far_torture_slot slot;
typedef far_torture_client client;
typedef far_torture_node node;


void far_torture_init(far_torture *torture) {
    memset(torture, 0, sizeof(*torture));
    torture->clients = 4;
    torture->compute_nodes = 2;
    torture->memory_nodes = 2;
    torture->depth = 1;
    torture->ops = 200;
    torture->keys = "u64";
    torture->value_bytes[0] = 8;
    torture->value_bytes[1] = 200;
    torture->tear = torture->reorder = torture->stall = torture->crash = true;
    torture->atomic_bytes = 64;
    torture->masked_cas = torture->reads_in_order = torture->rdwc = torture->scans = torture->churn = true;
    torture->cache_bytes = 1 << 20;
    torture->pool_bytes = 16 << 20;
}


static int64_t stamp(run *r) {
    int64_t now = (int64_t)far_sim_now(r->world);
    r->stamp = now > r->stamp ? now : r->stamp + 1;
    return r->stamp;
}


void far_torture_problem(run *r, const char *what) {
    if (r->problems++ < PROBLEMS_SHOWN)
        fprintf(r->out, "seed %" PRIu64 ": %s\n", r->seed, what);
}


static int tell_problem(void *ctx, const char *what) {
    far_torture_problem(ctx, what);
    return 0;
}


static bool is_killed(const node *n) {
    return (n->first && far_sim_killed(n->first->fabric)) || (n->pool && far_sim_killed(n->pool->fabric));
}


bool far_torture_is_dead(const client *c) {
    return is_killed(c->node);
}


/* What a client does. */

static far_op_kind choose_kind(client *c) {
    uint64_t x = far_random_below(&c->random, 100);
    if (x < 30)
        return FAR_OP_GET;
    if (x < 50)
        return FAR_OP_PUT;
    if (x < 63)
        return FAR_OP_UPDATE;
    if (x < 78)
        return FAR_OP_INSERT;
    if (x < 94 || !c->run->torture->scans)
        return FAR_OP_DELETE;
    return FAR_OP_SCAN;
}


static size_t choose_key(client *c, uint8_t *key) {
    return far_keyset_key(c->run->keyset, far_random_below(&c->random, c->run->key_space), key);
}


/* Every value written is another one, so that a read tells which write it saw. The body repeats the number: a torn
 * value matches no write. Half of them have the largest size: only values of one size are updated in place. */
static size_t make_value(client *c, uint8_t *value) {
    const uint64_t *bounds = c->run->torture->value_bytes;
    bool largest = far_random_chance(&c->random, 1, 2);
    size_t length = (size_t)(largest ? bounds[1] : bounds[0] + far_random_below(&c->random, bounds[1] - bounds[0] + 1));
    uint64_t number = ((uint64_t)c->number + 1) << 40 | ++c->written;
    for (size_t i = 0; i < length; i++)
        value[i] = (uint8_t)(number >> 8 * (i % 8)) ^ (uint8_t)(i / 8 * 31);
    return length;
}


static int record_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    slot *s = ctx;
    far_history_pair_given(s->owner->history, s->record, key, key_len, value, value_len);
    return 0;
}


static void prepare(client *c, slot *s) {
    run *r = c->run;
    far_op *op = &s->op;
    memset(op, 0, sizeof(*op));
    op->kind = choose_kind(c);
    op->index = c->node->index;
    op->key = s->key;
    op->key_len = choose_key(c, s->key);
    op->value = s->value;
    op->user = s;
    switch (op->kind) {
    case FAR_OP_GET:
        op->capacity = FAR_VALUE_MAX;
        break;
    case FAR_OP_SCAN:
        if (far_random_chance(&c->random, 1, 3))
            op->key = NULL, op->key_len = 0;
        if (far_random_chance(&c->random, 1, 3)) {
            op->to = s->to;
            op->to_len = choose_key(c, s->to);
        }
        op->limit = far_random_below(&c->random, SCAN_LIMIT_MAX);
        op->each = record_pair;
        op->each_ctx = s;
        s->record = far_history_begin_scan(r->history, c->number, op->key, op->key_len, op->to, op->to_len, op->limit,
                                           stamp(r));
        return;
    case FAR_OP_DELETE:
        break;
    default:
        op->value_len = make_value(c, s->value);
        break;
    }
    bool writes = op->kind == FAR_OP_INSERT || op->kind == FAR_OP_UPDATE || op->kind == FAR_OP_PUT;
    s->record = far_history_begin(r->history, c->number, op->kind, op->key, op->key_len, writes ? op->value : NULL,
                                  writes ? op->value_len : 0, stamp(r));
}


static void record_end(client *c, slot *s) {
    if (far_torture_is_dead(c))
        return; /* whatever its code still says, nobody hears it: the operation was cut */
    const far_op *op = &s->op;
    bool has_value = op->kind == FAR_OP_GET && op->result == 0;
    far_history_end(c->run->history, s->record, op->result, has_value ? op->value : NULL, has_value ? op->value_len : 0,
                    stamp(c->run));
}


static void run_now(far_session *session, far_op *op) {
    switch (op->kind) {
    case FAR_OP_GET:
        op->result = far_get(session, op->index, op->key, op->key_len, op->value, op->capacity, &op->value_len);
        break;
    case FAR_OP_INSERT:
        op->result = far_insert(session, op->index, op->key, op->key_len, op->value, op->value_len);
        break;
    case FAR_OP_UPDATE:
        op->result = far_update(session, op->index, op->key, op->key_len, op->value, op->value_len);
        break;
    case FAR_OP_PUT:
        op->result = far_put(session, op->index, op->key, op->key_len, op->value, op->value_len);
        break;
    case FAR_OP_DELETE:
        op->result = far_delete(session, op->index, op->key, op->key_len);
        break;
    case FAR_OP_SCAN:
        op->result = (int)far_scan(session, op->index, op->key, op->key_len, op->to, op->to_len, op->limit, op->each,
                                   op->each_ctx);
        break;
    }
}


static bool is_lost(int result) {
    return result == FAR_ERR_FENCED || result == FAR_ERR_UNREACHABLE;
}


static void unexpected(client *c, const far_op *op) {
    char text[160];
    switch (op->result) {
    case FAR_ERR_NOT_FOUND:
    case FAR_ERR_EXISTS:
    case FAR_ERR_NO_MEMORY:
        return;
    default:
        snprintf(text, sizeof(text), "client %u: %s returned %d (%s)", c->number, far_op_name(op->kind), op->result,
                 far_strerror(op->result));
        far_torture_problem(c->run, text);
    }
}


/* It may be time for another session. */
static bool has_enough(client *c) {
    return c->run->torture->churn && far_random_chance(&c->random, 1, 32);
}


/* Operations one after the other; false: the session is lost. */
bool far_torture_work(client *c) {
    while (c->left && !has_enough(c)) {
        slot *s = &c->slots[0];
        c->left--;
        prepare(c, s);
        run_now(c->session, &s->op);
        record_end(c, s);
        if (is_lost(s->op.result))
            return false;
        if (s->op.result < 0)
            unexpected(c, &s->op);
    }
    return true;
}


/* Fills all free slots, and submits these operations together (gets among them may be served as one), or one by one.
 * Returns how many were taken; *lost: not all. */
static unsigned submit_some(client *c, far_op **ops, bool *lost) {
    unsigned depth = c->run->torture->depth, count = 0, flying = 0;
    for (unsigned i = 0; i < depth && c->left; i++)
        if (!c->slots[i].busy) {
            prepare(c, &c->slots[i]);
            ops[count++] = &c->slots[i].op;
            c->left--;
        }
    unsigned together = far_random_chance(&c->random, 1, 2) ? count : 1;
    for (unsigned first = 0; first < count; first += together) {
        int taken = *lost ? FAR_ERR_BUSY : far_submit(c->session, ops + first, together);
        for (unsigned i = first; i < first + together; i++) {
            slot *s = ops[i]->user;
            s->busy = taken > (int)(i - first);
            flying += s->busy;
            if (s->busy)
                continue;
            ops[i]->result = taken < 0 ? taken : FAR_ERR_BUSY;
            record_end(c, s);
            *lost = true;
        }
    }
    return flying;
}


/* `depth` operations in flight; false: the session is lost. */
static bool work_async(client *c) {
    unsigned depth = c->run->torture->depth, flying = 0;
    bool lost = false;
    far_op **done = calloc(depth, sizeof(*done));
    while (done && (flying || (c->left && !lost))) {
        if (!lost)
            flying += submit_some(c, done, &lost);
        int count = far_reap(c->session, done, depth, 1);
        lost |= count < 0;
        for (int i = 0; i < count; i++) {
            slot *s = done[i]->user;
            s->busy = false;
            flying--;
            record_end(c, s);
            if (is_lost(done[i]->result))
                lost = true;
            else if (done[i]->result < 0)
                unexpected(c, done[i]);
        }
        if (count < 0)
            break;
    }
    for (unsigned i = 0; i < depth; i++)
        c->slots[i].busy = false;
    free(done);
    return !lost;
}


/* Sessions, and handles that the memory nodes have lost. */

/* Few clients make a quiet handle, in which RDWC leaves gets alone: here it merges whatever it can. */
static int merge_all(far_pool *pool) {
    if (!pool->rdwc)
        return 0;
    far_rdwc *rdwc = far_rdwc_new(0);
    if (!rdwc)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for RDWC");
    far_rdwc_free(pool->rdwc);
    pool->rdwc = rdwc;
    return 0;
}


static int open_pool(run *r, node *n) {
    int err = far_pool_open(r->uri, &r->options, &n->pool);
    return err < 0 ? err : merge_all(n->pool);
}


static void close_pool(node *n) {
    far_index_close(n->index);
    if (n->pool != n->first)
        far_pool_close(n->pool);
    n->index = NULL;
    n->pool = NULL;
}


static int open_again(run *r, node *n) {
    far_session *session;
    int err = open_pool(r, n);
    if (err < 0 || (err = far_session_open(n->pool, &session)) < 0)
        return err;
    err = far_index_open(session, FAR_TORTURED_INDEX, &n->index);
    far_session_close(session);
    return err;
}


/* When nobody uses it any more, one client does it; the others wait. */
static int renew(run *r, node *n) {
    int err = FAR_ERR_UNREACHABLE;
    if (n->users > 0 || n->renewing)
        return 0;
    n->renewing = true;
    while (is_lost(err) && !is_killed(n)) {
        close_pool(n);
        far_sim_sleep(r->world, RENEW_PAUSE);
        err = open_again(r, n);
    }
    n->renewing = false;
    return err;
}


static int open_session(client *c) {
    node *n = c->node;
    if (n->renewing)
        return FAR_ERR_UNREACHABLE;
    n->users++;
    int err = far_session_open(n->pool, &c->session); /* from then on it can be declared dead */
    if (err < 0) {
        c->session = NULL;
        n->users--;
    }
    return err;
}


int far_torture_enter(client *c) {
    int err = open_session(c);
    while (is_lost(err) && c->run->silence_count && !far_torture_is_dead(c)) {
        if ((err = renew(c->run, c->node)) < 0)
            break;
        far_sim_sleep(c->run->world, RENEW_PAUSE);
        err = open_session(c);
    }
    return err;
}


void far_torture_leave(client *c) {
    far_session *session = c->session;
    c->session = NULL;
    far_session_close(session);
    c->node->users--;
}


static void client_main(void *arg) {
    client *c = arg;
    run *r = c->run;
    while (c->left && !far_torture_is_dead(c)) {
        int err = far_torture_enter(c);
        if (err < 0) {
            char text[160];
            snprintf(text, sizeof(text), "client %u cannot open a session: %d (%s)", c->number, err, far_strerror(err));
            if (!far_torture_is_dead(c))
                far_torture_problem(r, text);
            return;
        }
        if (r->torture->depth > 1)
            work_async(c);
        else
            far_torture_work(c);
        far_stats stats;
        far_session_stats(c->session, &stats);
        r->merged += stats.delegated_reads + stats.combined_writes;
        far_torture_leave(c);
    }
}


/* Crashes, and memory nodes that do not answer. */

static void end_silence(void *arg) {
    far_torture_silence *silence = arg;
    run *r = silence->run;
    if (silence->restart) {
        r->restarts++;
        far_sim_node_restart(r->world, silence->node);
    }
    far_sim_node_down(r->world, silence->node, false);
}


static void begin_silences(run *r) {
    r->verbs++;
    for (unsigned i = 0; i < r->silence_count; i++) {
        far_torture_silence *silence = &r->silences[i];
        if (silence->verbs != r->verbs)
            continue;
        r->silent++;
        far_sim_node_down(r->world, silence->node, true);
        far_sim_at(r->world, far_sim_now(r->world) + silence->ns, end_silence, silence);
    }
}


static void kill_node(run *r, node *n) {
    r->crashes++;
    far_sim_kill(n->first->fabric);
    if (n->pool != n->first)
        far_sim_kill(n->pool->fabric);
}


static void on_verb(void *ctx, const far_sim_posted *posted) {
    run *r = ctx;
    begin_silences(r);
    for (unsigned i = 0; i < r->client_count; i++) {
        client *c = &r->clients[i];
        if (c->sim != posted->client)
            continue;
        node *n = c->node;
        if (n->verbs_to_live && !n->renewing && --n->verbs_to_live == 0 && !is_killed(n)) {
            kill_node(r, n);
        } else if (c->verbs_to_live && --c->verbs_to_live == 0 && c->session && c->session->id) {
            r->crashes++;
            if (c->loses)
                far_sim_lose(c->session->conn);
            else
                far_sim_declare_dead(r->world, c->session->id, c->session->generation);
        }
        return;
    }
}


static void plan_crashes(run *r) {
    const far_torture *t = r->torture;
    uint64_t span = 1 + t->ops * 8 / r->node_count; /* about the verbs that a node posts */
    unsigned survivor = (unsigned)far_random_below(&r->random, r->node_count);
    for (unsigned i = 0; t->crash && i < r->node_count; i++)
        if (i != survivor && far_random_chance(&r->random, 3, 4))
            r->nodes[i].verbs_to_live = 1 + far_random_below(&r->random, span);
    for (unsigned i = 0; t->stall && i < r->client_count; i++)
        if (far_random_chance(&r->random, 1, 6)) {
            r->clients[i].verbs_to_live = 1 + far_random_below(&r->random, span);
            r->clients[i].loses = far_random_chance(&r->random, 1, 2);
        }
}


/* Most seeds have some, shorter or longer than clients wait; after some of them the node was started again. */
static void plan_silences(run *r) {
    const far_torture *t = r->torture;
    if (!t->questions || !t->crash || far_random_chance(&r->random, 1, 4))
        return;
    r->silence_count = 1 + (unsigned)far_random_below(&r->random, FAR_TORTURE_SILENCES);
    for (unsigned i = 0; i < r->silence_count; i++) {
        uint64_t most = far_random_chance(&r->random, 1, 2) ? SILENCE_SHORT : SILENCE_LONG;
        r->silences[i] = (far_torture_silence){.verbs = 1 + far_random_below(&r->random, t->ops * 8),
                                               .ns = 1 + far_random_below(&r->random, most),
                                               .node = (unsigned)far_random_below(&r->random, t->memory_nodes),
                                               .restart = far_random_chance(&r->random, 1, 3),
                                               .run = r};
    }
}


/* Setting up and tidying up. */

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
        int err = open_pool(r, &r->nodes[i]);
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
        c->sim = c->slots ? far_sim_start(c->node->pool->fabric, churns ? "churner" : "client",
                                          churns ? far_torture_churn : client_main, c)
                          : NULL;
        if (!c->sim)
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for the clients");
    }
    return 0;
}


static void tidy_up(run *r) {
    for (unsigned i = 0; i < r->node_count; i++) {
        close_pool(&r->nodes[i]);
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


/* After the clients: survivors find everything in order. */

static void read_all_keys(run *r, far_session *session, const node *n) {
    static uint8_t value[FAR_VALUE_MAX];
    uint8_t key[FAR_KEY_MAX];
    size_t length;
    for (uint64_t i = 0; i < r->key_space; i++) {
        size_t key_len = far_keyset_key(r->keyset, i, key);
        size_t record = far_history_begin(r->history, r->client_count, FAR_OP_GET, key, key_len, NULL, 0, stamp(r));
        int result = far_get(session, n->index, key, key_len, value, sizeof(value), &length);
        far_history_end(r->history, record, result, result == 0 ? value : NULL, result == 0 ? length : 0, stamp(r));
        if (result < 0 && result != FAR_ERR_NOT_FOUND)
            far_torture_problem(r, "a survivor cannot read a key");
    }
}


static void failed(run *r, const char *what) {
    char text[320];
    snprintf(text, sizeof(text), "%s: %s", what, far_last_error());
    far_torture_problem(r, text);
}


static void check_pool(run *r, far_session *session, const node *n) {
    far_pool_usage usage;
    if (far_index_check(session, n->index, tell_problem, r) < 0)
        failed(r, "the check of the index failed");
    if (far_pool_check(session, 1, tell_problem, r) < 0)
        failed(r, "the check of the pool failed");
    if (far_pool_check(session, 0, tell_problem, r) < 0 || far_pool_stat(session, &usage) < 0)
        failed(r, "the second check of the pool failed");
    else if (usage.leaked)
        far_torture_problem(r, "memory is lost after the sweep");
}


static void look_after(run *r) {
    if (r->silent)
        far_sim_sleep(r->world, ECHO_NS);
    for (unsigned i = 0; i < r->node_count; i++) {
        node *n = &r->nodes[i];
        if (is_killed(n))
            continue;
        far_session *session;
        if ((r->silent && renew(r, n) < 0) || far_session_open(n->pool, &session) < 0) {
            far_torture_problem(r, far_last_error());
            return;
        }
        read_all_keys(r, session, n);
        check_pool(r, session, n);
        far_session_close(session);
        return;
    }
}


/* The clients hang: all die, so that their code comes to an end. */
static void give_up(run *r, far_sim_result how) {
    char text[80];
    snprintf(text, sizeof(text), "the clients do not come to an end: %s", far_sim_result_name(how));
    far_torture_problem(r, text);
    for (unsigned i = 0; i < r->node_count; i++)
        kill_node(r, &r->nodes[i]);
    for (unsigned i = 0; i < r->client_count; i++)
        if (r->clients[i].guest)
            far_sim_kill(r->clients[i].guest->fabric);
    far_sim_run(r->world);
}


static void judge(run *r, far_torture_result *result) {
    far_verify_report verdict;
    far_verify_history(r->history, NULL, 0, r->out, &verdict);
    uint64_t violations = verdict.violations + far_sim_watch_errors(r->world);
    for (unsigned i = 0; far_sim_watch_error(r->world, i); i++)
        fprintf(r->out, "seed %" PRIu64 ": watch: %s\n", r->seed, far_sim_watch_error(r->world, i));
    if (violations || r->problems) {
        fprintf(r->out, "seed %" PRIu64 ": %" PRIu64 " violations, %" PRIu64 " problems; the last verbs:\n", r->seed,
                violations, r->problems);
        far_sim_trace_dump(r->world, r->out);
    }
    result->violations += violations;
    result->gave_up += verdict.gave_up;
    result->problems += r->problems;
    result->ops += far_history_count(r->history);
    result->crashes += r->crashes;
    result->silences += r->silent;
    result->restarts += r->restarts;
    result->merged += r->merged;
    result->seeds++;
    result->trace_hash = far_sim_trace_hash(r->world);
    if (r->torture->history)
        far_history_write(r->history, r->torture->history);
}


static unsigned fault_bits(const far_torture *t) {
    unsigned bits = t->tear ? FAR_SIM_TEAR : 0;
    if (t->reorder)
        bits |= FAR_SIM_REORDER | FAR_SIM_LATE | FAR_SIM_SWALLOW;
    return bits | (t->stall ? FAR_SIM_STALL : 0);
}


/* Options with which a few hundred operations go through all that a kind does: tables as small as they can be. By turns
 * of the seed, where the caller has none of his own; every fifth seed has the defaults of the kind. */
typedef struct small_index {
    const char *kind, *options;
    const char *keys; /* of these alone; NULL: any */
    uint64_t value_bytes;
    uint64_t key_space; /* 0: as usual */
} small_index;

static const small_index small_indexes[] = {
    {"dolphin", "leaf_slots=2,walk_slice=2,scan_batch=2,hot_updates=on", NULL, 0, 0},
    {"dolphin", "leaf_slots=4,insert=cas", NULL, 0, 0},
    {"dolphin", "leaf_slots=1,walk_slice=4", "seq", 0, 0}, /* all below one entry of the root: nodes that grow */
    {"dolphin", "leaf_slots=4,value_size=8", "seq", 8, 0},
    {"shard", "partitions=1,bits=0,slots=2,l2_slots=1,load=15", NULL, 0, 0},
    {"shard", "partitions=2,bits=0,slots=2,l2_slots=1,load=95,afs=1", NULL, 0, 0},
    {"shard", "key_size=8,value_size=8,narrow=on,partitions=1,bits=0,slots=1,l2_slots=1,load=60", "seq", 8, 0},
    {"shard", "key_size=8,value_size=8,narrow=on,partitions=1,bits=0,slots=2,l2_slots=1,load=95,afs=1", "seq", 8, 0},
    {"chime", "span=12,hop=2,merge=sparse", NULL, 0, 24},
    {"chime", "span=12,hop=4,merge=sparse,walk_slice=2,hotspot=4K", NULL, 0, 100},
    {"chime", "key_size=8,value_size=8,span=12,hop=2,merge=sparse,hotspot=4K", "u64", 8, 24},
    {"chime", "key_size=8,value_size=8,span=12,hop=4,merge=sparse,walk_slice=2", "u64", 8, 100},
};


static void make_small(far_torture *torture, uint64_t seed) {
    far_torture usual;
    uint64_t turn = seed % 5, n = 0;
    far_torture_init(&usual);
    bool free = strcmp(torture->keys, usual.keys) == 0 && torture->value_bytes[0] == usual.value_bytes[0] &&
                torture->value_bytes[1] == usual.value_bytes[1];
    for (size_t i = 0; i < sizeof(small_indexes) / sizeof(small_indexes[0]) && !torture->options; i++) {
        const small_index *small = &small_indexes[i];
        if (strcmp(small->kind, torture->kind) != 0 || ++n != turn || (small->keys && !free))
            continue;
        torture->options = small->options;
        torture->key_space = torture->key_space ? torture->key_space : small->key_space;
        torture->keys = small->keys ? small->keys : torture->keys;
        if (small->value_bytes) {
            torture->value_bytes[0] = torture->value_bytes[1] = small->value_bytes;
            torture->churn = false; /* its indexes get values of all sizes */
        }
    }
}


int far_torture_run(const far_torture *asked, uint64_t seed, far_torture_result *result, FILE *out) {
    char error[256];
    far_torture chosen = *asked, *torture = &chosen;
    make_small(&chosen, seed);
    run r = {.torture = torture,
             .seed = seed,
             .out = out,
             .key_space = torture->key_space ? torture->key_space
                          : seed % 4         ? HOT_KEYS
                                             : MANY_KEYS,
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
        plan_crashes(&r);
        plan_silences(&r);
        far_sim_set_faults(r.world, fault_bits(torture));
        far_sim_on_verb(r.world, on_verb, &r);
        far_sim_limit(r.world, TIME_LIMIT);
        far_sim_result how = far_sim_run(r.world);
        far_sim_on_verb(r.world, NULL, NULL);
        if (how == FAR_SIM_ENDED)
            look_after(&r);
        else
            give_up(&r, how);
        judge(&r, result);
    }
    tidy_up(&r);
    return err;
}
