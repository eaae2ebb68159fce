/* The self-test of a fabric allocates memory, runs each rule of selftest_rules.c with several sessions, each in a
 * thread of the pool's host, and records violations in the pool. `farindex selftest` calls `far_selftest`. */
#include "verify/selftest.h"
#include "base/error.h"
#include "base/numa.h"
#include "base/parse.h"
#include "pool/alloc/alloc.h"
#include "pool/catalog/layout.h"
#include "pool/epoch/epoch.h"
#include "pool/format/clients.h"
#include "pool/format/fabric_record.h"
#include "verify/selftest_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>


/* arguments of a function that runs as a task of a session */

typedef struct call {
    participant *participant;
    unsigned id, generation;
    int (*check)(far_task *t, participant *participants);
} call;


static int run_participant_task(far_task *t, void *arg) {
    participant *s = ((call *)arg)->participant;
    return s->act(t, s);
}


static int run_final_check(far_task *t, void *arg) {
    call *c = arg;
    return c->check(t, c->participant);
}


static int run_check_after_failure(far_task *t, void *arg) {
    call *c = arg;
    return far_selftest_check_after_failure(t, c->participant, c->id, c->generation);
}


static void run_participant(void *arg) {
    participant *s = arg;
    call c = {.participant = s};
    s->result = far_session_call(s->session, FAR_STATS_OTHER, false, run_participant_task, &c);
    if (s->is_reader)
        atomic_fetch_sub_explicit(&s->trial->active_readers, 1, memory_order_relaxed);
}


static int start_participant(trial *b, unsigned number, int (*act)(far_task *t, participant *s), bool is_reader) {
    participant *s = &b->participants[number];
    far_host *host = b->pool->fabric->host;
    *s = (participant){.trial = b, .act = act, .is_reader = is_reader};
    int err = far_session_open(b->pool, &s->session);
    if (is_reader)
        atomic_fetch_add_explicit(&b->active_readers, 1, memory_order_relaxed);
    if (err == 0)
        err = host->ops->start(host, run_participant, s, &s->thread);
    if (err < 0 && is_reader)
        atomic_fetch_sub_explicit(&b->active_readers, 1, memory_order_relaxed);
    return err;
}


static int end_participants(trial *b) {
    far_host *host = b->pool->fabric->host;
    int err = 0;
    for (unsigned i = 0; i < PARTICIPANTS; i++) {
        participant *s = &b->participants[i];
        if (s->thread)
            host->ops->join(host, s->thread);
        if (s->session)
            far_session_close(s->session);
        err = s->thread && s->result < 0 ? s->result : err;
    }
    return err;
}


static int run_trial(trial *b, const rule *r, far_session *own, far_selftest_result *result) {
    int err = 0;
    unsigned participants = 0;
    for (; participants < r->readers && err == 0; participants++)
        err = start_participant(b, participants, r->read, true);
    if (r->change && err == 0)
        err = start_participant(b, participants, r->change, false);
    int ended = end_participants(b);
    err = err < 0 ? err : ended;
    call c = {.participant = b->participants, .check = r->check};
    if (err == 0 && r->check)
        err = far_session_call(own, FAR_STATS_OTHER, false, run_final_check, &c);
    for (unsigned i = 0; i < r->readers; i++) {
        result->tries += b->participants[i].tries;
        result->broken += b->participants[i].broken;
    }
    return err;
}


static int run_failures(trial *b, far_session *own, far_selftest_result *result) {
    int err = 0;
    for (unsigned i = 0; i < VICTIMS && err == 0; i++) {
        err = start_participant(b, 0, far_selftest_post_and_fail, true);
        if (err < 0)
            break;
        call c = {.participant = &b->participants[0],
                  .id = b->participants[0].session->id,
                  .generation = b->participants[0].session->generation};
        far_host *host = b->pool->fabric->host;
        host->ops->join(host, b->participants[0].thread);
        err = far_session_call(own, FAR_STATS_OTHER, false, run_check_after_failure, &c);
        far_session_close(b->participants[0].session);
        result->tries += b->participants[0].tries;
        result->broken += b->participants[0].broken;
    }
    return err;
}


static unsigned violation_of_rule(unsigned i) {
    return i < FAR_SELFTESTS - 1 ? far_selftest_rules[i].refuted : FAR_VIOLATED_RULE;
}


/* the memory node on which an arena is allocated, and the address of the arena */

typedef struct place {
    unsigned node;
    far_addr addr;
} place;


/* Allocates an arena that belongs to the session. A collection does not free it, and it is freed when the session ends.
 */
static int allocate_arena_task(far_task *t, void *arg) {
    place *p = arg;
    far_object object;
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, NULL, FAR_POOL_TYPE_RECORD, ARENA, p->node,
                        FAR_ALLOC_ZERO | FAR_ALLOC_ON_NODE | FAR_ALLOC_SESSION_OWNED, &object);
    far_pin_drop(t);
    p->addr = err < 0 ? 0 : (object.addr + LINE - 1) / LINE * LINE;
    /* Writes a word, because a page that was never touched has no NUMA node yet. */
    return err < 0 ? err : far_write_word(t, p->addr, 0);
}


static int allocate_arena(far_session *own, unsigned node, far_addr *arena) {
    place p = {node, 0};
    int err = far_session_call(own, FAR_STATS_OTHER, false, allocate_arena_task, &p);
    *arena = p.addr;
    return err;
}


/* Forms pairs of arenas on different NUMA nodes: one arena on the NUMA node of the first arena, and one elsewhere.
 * Every other pair is turned around, so that both directions are tested. */
static void pair_numa_nodes(field *f, const int *numa) {
    unsigned here = 0, there = 0;
    while (f->numa_pairs < ARENAS_MOST / 2) {
        while (here < f->count && numa[here] != numa[0])
            here++;
        while (there < f->count && numa[there] == numa[0])
            there++;
        if (here == f->count || there == f->count)
            return;
        bool turned = f->numa_pairs % 2 == 1;
        f->near[f->numa_pairs] = f->arena[turned ? there : here];
        f->elsewhere[f->numa_pairs++] = f->arena[turned ? here : there];
        here++;
        there++;
    }
}


static int find_numa_pairs(far_pool *pool, unsigned node, field *f) {
    uint64_t *offsets = malloc(f->count * sizeof(*offsets));
    int *numa = malloc(f->count * sizeof(*numa));
    int err = offsets && numa ? 0 : far_fail(FAR_ERR_NO_MEMORY, "no memory for a self-test");
    for (unsigned i = 0; i < f->count && err == 0; i++)
        offsets[i] = far_addr_offset(f->arena[i]);
    if (err == 0)
        err = far_fabric_places(pool->fabric, node, offsets, f->count, numa);
    bool known = err == 0;
    for (unsigned i = 0; i < f->count && known; i++)
        known = numa[i] != FAR_NUMA_UNKNOWN;
    if (known)
        pair_numa_nodes(f, numa);
    if (f->numa_pairs == 0)
        f->no_numa = known ? "all memory is located on one NUMA node" : "the NUMA nodes of the memory are not known";
    free(offsets);
    free(numa);
    return err;
}


/* Reports that this memory node has too little free memory for the self-test. (Nodes of FAR_SELFTEST_NODE_LEAST bytes
 * have enough for the smallest number of arenas and some small indexes.) */
static int fail_without_room(unsigned node, unsigned arenas) {
    char needed[FAR_SIZE_TEXT], least[FAR_SIZE_TEXT];
    return far_fail(
        FAR_ERR_NO_MEMORY,
        "a self-test needs %s of free memory at each memory node, and nodes of %s at least: node %u has not enough",
        far_format_size((uint64_t)arenas * ARENA, needed), far_format_size(FAR_SELFTEST_NODE_LEAST, least), node);
}


static int allocate_field(far_pool *pool, far_session *own, unsigned node, field *f) {
    uint64_t wanted = pool->fabric->node_bytes[node] / 32 / ARENA;
    unsigned count = wanted < ARENAS_LEAST ? ARENAS_LEAST : wanted > ARENAS_MOST ? ARENAS_MOST : (unsigned)wanted;
    int err = 0;
    for (f->count = 0; f->count < count && err == 0; f->count += err == 0)
        err = allocate_arena(own, node, &f->arena[f->count]);
    if (err == FAR_ERR_NO_MEMORY)
        return fail_without_room(node, count);
    return err < 0 ? err : find_numa_pairs(pool, node, f);
}


/* ---- Running all rules ---- */

static int run_rule_at(far_pool *pool, far_session *own, unsigned node, unsigned number, field *f, uint64_t tries,
                       far_selftest_result *result) {
    bool is_failure_rule = number == FAR_SELFTESTS - 1;
    const rule *r = is_failure_rule ? NULL : &far_selftest_rules[number];
    trial b = {.pool = pool, .tries = tries, .field = f};
    if (r) {
        b.apart = r->apart;
        b.cold = r->cold;
        b.tries = r->readers == CONTENDERS ? tries * 4 / CONTENDERS : tries;
        atomic_init(&b.number_written, f->counted);
    }
    if (r && r->apart == TWO_NUMA_NODES && f->no_numa) {
        result->left_out = f->no_numa;
        return 0;
    }
    int err = allocate_arena(own, node, &b.memory);
    if (err == 0)
        err = is_failure_rule ? run_failures(&b, own, result) : run_trial(&b, r, own, result);
    return err;
}


static int run_rules_at(far_pool *pool, far_session *own, unsigned node, uint64_t tries, far_selftest_begins begins,
                        far_selftest_result results[FAR_SELFTESTS]) {
    field *f = calloc(1, sizeof(*f));
    int err = f ? allocate_field(pool, own, node, f) : far_fail(FAR_ERR_NO_MEMORY, "no memory for a self-test");
    for (unsigned i = 0; i < FAR_SELFTESTS && err == 0; i++) {
        double done = (double)(node * FAR_SELFTESTS + i) / (pool->fabric->nodes * FAR_SELFTESTS);
        err = begins && begins(done, results[i].what) ? 1 : run_rule_at(pool, own, node, i, f, tries, &results[i]);
    }
    free(f);
    return err;
}


static void init_results(const far_pool *pool, far_selftest_result results[FAR_SELFTESTS]) {
    for (unsigned i = 0; i < FAR_SELFTESTS - 1; i++)
        results[i] = (far_selftest_result){.what = far_selftest_rules[i].what,
                                           .capability = far_selftest_rules[i].capability,
                                           .claimed = far_selftest_rules[i].claimed(&pool->geometry.capabilities)};
    results[FAR_SELFTESTS - 1] = (far_selftest_result){.what = "no verb takes effect after fencing", .claimed = true};
}


/* ---- The record of violations ---- */

typedef struct recording {
    unsigned refuted, recorded;
} recording;


static int record_refuted(far_task *t, void *arg) {
    recording *r = arg;
    return far_fabric_record_add(t, r->refuted, &r->recorded);
}


static int forget_record(far_task *t, void *arg) {
    (void)arg;
    return far_fabric_record_clear(t);
}


/* Changes the record of violations. The word in the pool is authoritative. The memory nodes only have a copy of this
 * word, for clients that query the nodes. Another self-test may change the word after this one, but update the nodes
 * before it. Therefore the word is read again after the nodes were updated, until word and copies are equal. */
static int change_record(far_session *own, int (*change)(far_task *t, void *arg), recording *r) {
    far_fabric *fabric = own->pool->fabric;
    int err = far_session_call(own, FAR_STATS_OTHER, false, change, r);
    for (bool told = !fabric->ops->record; err == 0 && !told;) {
        recording now = {0};
        err = fabric->ops->record(fabric, r->recorded);
        if (err == 0)
            err = far_session_call(own, FAR_STATS_OTHER, false, record_refuted, &now);
        told = now.recorded == r->recorded;
        r->recorded = err == 0 ? now.recorded : r->recorded;
    }
    return err;
}


static int record_results(far_session *own, far_selftest_result results[FAR_SELFTESTS]) {
    recording r = {0};
    for (unsigned i = 0; i < FAR_SELFTESTS; i++)
        if (results[i].claimed && results[i].broken > 0)
            r.refuted |= violation_of_rule(i);
    int err = change_record(own, record_refuted, &r);
    for (unsigned i = 0; i < FAR_SELFTESTS; i++) {
        results[i].recorded = (r.recorded & violation_of_rule(i)) != 0;
        /* A rule that could not be tested at this memory node (left_out) was tested anyway if another node could test
         * it. */
        if (results[i].tries > 0)
            results[i].left_out = NULL;
    }
    return err;
}


/* Records the violations that were found. This is done even if the self-test was ended or failed before it had tried
 * every rule. */
static int record_all(far_session *own, far_selftest_result results[FAR_SELFTESTS], int ended) {
    char why[FAR_MESSAGE_BYTES] = "";
    if (ended < 0)
        snprintf(why, sizeof(why), "%s", far_last_error());
    int err = record_results(own, results);
    return ended < 0 ? far_fail(ended, "%s", why) : err;
}


int far_selftest_forget(far_pool *pool) {
    far_session *own;
    recording r = {0};
    int err = far_session_open(pool, &own);
    if (err < 0)
        return err;
    err = change_record(own, forget_record, &r);
    far_session_close(own);
    return err;
}


int far_selftest(far_pool *pool, uint64_t tries, far_selftest_begins begins,
                 far_selftest_result results[FAR_SELFTESTS]) {
    far_fabric *fabric = pool->fabric;
    far_session *own;
    uint64_t each = tries / fabric->nodes < TRIES_LEAST ? TRIES_LEAST : tries / fabric->nodes;
    init_results(pool, results);
    /* The verbs of the pool itself must not rely on a guarantee that is being tested. */
    far_fabric_give_up_order_of_reads(fabric);
    int err = far_session_open(pool, &own);
    if (err < 0)
        return err;
    for (unsigned node = 0; node < fabric->nodes && err == 0; node++)
        err = run_rules_at(pool, own, node, each, begins, results);
    err = record_all(own, results, err);
    far_session_close(own);
    return err;
}
