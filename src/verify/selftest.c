/* Does a fabric do what it says? For each rule a few sessions run at once, each in a thread of the pool's host: some
 * change the memory, the others look. */
#include "verify/selftest.h"
#include "base/error.h"
#include "base/numa.h"
#include "pool/alloc.h"
#include "pool/catalog_layout.h"
#include "pool/clients.h"
#include "pool/epoch.h"
#include "pool/refuted.h"
#include "verify/selftest_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>


/* ---- Running ---- */

typedef struct call {
    side *side;
    unsigned id, generation;
    int (*judge)(far_task *t, side *sides);
} call;


static int run_act(far_task *t, void *arg) {
    side *s = ((call *)arg)->side;
    return s->act(t, s);
}


static int run_judge(far_task *t, void *arg) {
    call *c = arg;
    return c->judge(t, c->side);
}


static int run_look_after_death(far_task *t, void *arg) {
    call *c = arg;
    return far_selftest_look_after_death(t, c->side, c->id, c->generation);
}


static void run_side(void *arg) {
    side *s = arg;
    call c = {.side = s};
    s->result = far_session_call(s->session, FAR_STATS_OTHER, false, run_act, &c);
    if (s->looks)
        atomic_fetch_sub_explicit(&s->bout->looking, 1, memory_order_relaxed);
}


static int start_side(bout *b, unsigned number, int (*act)(far_task *t, side *s), bool looks) {
    side *s = &b->sides[number];
    far_host *host = b->pool->fabric->host;
    *s = (side){.bout = b, .act = act, .looks = looks};
    int err = far_session_open(b->pool, &s->session);
    if (looks)
        atomic_fetch_add_explicit(&b->looking, 1, memory_order_relaxed);
    if (err == 0)
        err = host->ops->start(host, run_side, s, &s->thread);
    if (err < 0 && looks)
        atomic_fetch_sub_explicit(&b->looking, 1, memory_order_relaxed);
    return err;
}


static int end_sides(bout *b) {
    far_host *host = b->pool->fabric->host;
    int err = 0;
    for (unsigned i = 0; i < SIDES; i++) {
        side *s = &b->sides[i];
        if (s->thread)
            host->ops->join(host, s->thread);
        if (s->session)
            far_session_close(s->session);
        err = s->thread && s->result < 0 ? s->result : err;
    }
    return err;
}


static int run_bout(bout *b, const rule *r, far_session *own, far_selftest_result *result) {
    int err = 0;
    unsigned sides = 0;
    for (; sides < r->lookers && err == 0; sides++)
        err = start_side(b, sides, r->look, true);
    if (r->change && err == 0)
        err = start_side(b, sides, r->change, false);
    int ended = end_sides(b);
    err = err < 0 ? err : ended;
    call c = {.side = b->sides, .judge = r->judge};
    if (err == 0 && r->judge)
        err = far_session_call(own, FAR_STATS_OTHER, false, run_judge, &c);
    for (unsigned i = 0; i < r->lookers; i++) {
        result->tries += b->sides[i].tries;
        result->broken += b->sides[i].broken;
    }
    return err;
}


static int run_deaths(bout *b, far_session *own, far_selftest_result *result) {
    int err = 0;
    for (unsigned i = 0; i < VICTIMS && err == 0; i++) {
        err = start_side(b, 0, far_selftest_work_and_die, true);
        if (err < 0)
            break;
        call c = {.side = &b->sides[0], .id = b->sides[0].session->id, .generation = b->sides[0].session->generation};
        far_host *host = b->pool->fabric->host;
        host->ops->join(host, b->sides[0].thread);
        err = far_session_call(own, FAR_STATS_OTHER, false, run_look_after_death, &c);
        far_session_close(b->sides[0].session);
        result->tries += b->sides[0].tries;
        result->broken += b->sides[0].broken;
    }
    return err;
}


static unsigned refuted_by(unsigned i) {
    return i < FAR_SELFTESTS - 1 ? far_selftest_rules[i].refuted : FAR_REFUTED_RULE;
}


/* ---- Memory ---- */

typedef struct place {
    unsigned node;
    far_addr addr;
} place;


/* The session's own: no sweep takes it, and it goes with the session. */
static int take_memory(far_task *t, void *arg) {
    place *p = arg;
    far_object object;
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, NULL, FAR_POOL_TYPE_RECORD, ARENA, p->node,
                        FAR_ALLOC_ZERO | FAR_ALLOC_ON_NODE | FAR_ALLOC_KEEP, &object);
    far_pin_drop(t);
    p->addr = err < 0 ? 0 : (object.addr + LINE - 1) / LINE * LINE;
    return err < 0 ? err : far_write_word(t, p->addr, 0); /* a page that nobody has touched lies nowhere yet */
}


static int take_arena(far_session *own, unsigned node, far_addr *arena) {
    place p = {node, 0};
    int err = far_session_call(own, FAR_STATS_OTHER, false, take_memory, &p);
    *arena = p.addr;
    return err;
}


/* Pairs up arenas of the first one's NUMA node with those of others; every other pair begins elsewhere. */
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
        f->no_numa = known ? "the memory lies on one NUMA node" : "nobody tells on which NUMA nodes the memory lies";
    free(offsets);
    free(numa);
    return err;
}


static int take_field(far_pool *pool, far_session *own, unsigned node, field *f) {
    uint64_t wanted = pool->fabric->node_bytes[node] / 32 / ARENA;
    unsigned count = wanted < ARENAS_LEAST ? ARENAS_LEAST : wanted > ARENAS_MOST ? ARENAS_MOST : (unsigned)wanted;
    int err = 0;
    for (f->count = 0; f->count < count && err == 0; f->count += err == 0)
        err = take_arena(own, node, &f->arena[f->count]);
    return err < 0 ? err : find_numa_pairs(pool, node, f);
}


/* ---- All rules ---- */

static int run_rule_at(far_pool *pool, far_session *own, unsigned node, unsigned number, field *f, uint64_t tries,
                       far_selftest_result *result) {
    bool dies = number == FAR_SELFTESTS - 1;
    const rule *r = dies ? NULL : &far_selftest_rules[number];
    bout b = {.pool = pool, .tries = tries, .field = f};
    if (r) {
        b.apart = r->apart;
        b.cold = r->cold;
        b.tries = r->lookers == CROWD ? tries * 4 / CROWD : tries;
        atomic_init(&b.turn, f->counted);
    }
    if (r && r->apart == TWO_NUMA_NODES && f->no_numa) {
        result->left_out = f->no_numa;
        return 0;
    }
    int err = take_arena(own, node, &b.memory);
    if (err == 0)
        err = dies ? run_deaths(&b, own, result) : run_bout(&b, r, own, result);
    return err;
}


static int run_rules_at(far_pool *pool, far_session *own, unsigned node, uint64_t tries, far_selftest_begins begins,
                        far_selftest_result results[FAR_SELFTESTS]) {
    field *f = calloc(1, sizeof(*f));
    int err = f ? take_field(pool, own, node, f) : far_fail(FAR_ERR_NO_MEMORY, "no memory for a self-test");
    for (unsigned i = 0; i < FAR_SELFTESTS && err == 0; i++) {
        double done = (double)(node * FAR_SELFTESTS + i) / (pool->fabric->nodes * FAR_SELFTESTS);
        err = begins && begins(done, results[i].what) ? 1 : run_rule_at(pool, own, node, i, f, tries, &results[i]);
    }
    free(f);
    return err;
}


static void begin_results(const far_pool *pool, far_selftest_result results[FAR_SELFTESTS]) {
    for (unsigned i = 0; i < FAR_SELFTESTS - 1; i++)
        results[i] = (far_selftest_result){.what = far_selftest_rules[i].what,
                                           .capability = far_selftest_rules[i].capability,
                                           .claimed = far_selftest_rules[i].claimed(&pool->geometry.capabilities)};
    results[FAR_SELFTESTS - 1] = (far_selftest_result){.what = "no effect after a cut", .claimed = true};
}


/* ---- The record ---- */

typedef struct recording {
    unsigned refuted, recorded;
} recording;


static int record(far_task *t, void *arg) {
    recording *r = arg;
    return far_refuted_record(t, r->refuted, &r->recorded);
}


static int forget(far_task *t, void *arg) {
    (void)arg;
    return far_refuted_forget(t);
}


/* The pool's word is what counts; the nodes tell it to clients that look at them. Another self-test may change the word and tell the
 * nodes first: so whoever has told them looks at the word again. */
static int change_record(far_session *own, int (*change)(far_task *t, void *arg), recording *r) {
    far_fabric *fabric = own->pool->fabric;
    int err = far_session_call(own, FAR_STATS_OTHER, false, change, r);
    for (bool told = !fabric->ops->record; err == 0 && !told;) {
        recording now = {0};
        err = fabric->ops->record(fabric, r->recorded);
        if (err == 0)
            err = far_session_call(own, FAR_STATS_OTHER, false, record, &now);
        told = now.recorded == r->recorded;
        r->recorded = err == 0 ? now.recorded : r->recorded;
    }
    return err;
}


static int record_results(far_session *own, far_selftest_result results[FAR_SELFTESTS]) {
    recording r = {0};
    for (unsigned i = 0; i < FAR_SELFTESTS; i++)
        if (results[i].claimed && results[i].broken > 0)
            r.refuted |= refuted_by(i);
    int err = change_record(own, record, &r);
    for (unsigned i = 0; i < FAR_SELFTESTS; i++) {
        results[i].recorded = (r.recorded & refuted_by(i)) != 0;
        if (results[i].tries > 0) /* at another memory node */
            results[i].left_out = NULL;
    }
    return err;
}


/* What was seen is refuted, also by a self-test that was ended, or failed, before it had tried everything. */
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
    err = change_record(own, forget, &r);
    far_session_close(own);
    return err;
}


int far_selftest(far_pool *pool, uint64_t tries, far_selftest_begins begins,
                 far_selftest_result results[FAR_SELFTESTS]) {
    far_fabric *fabric = pool->fabric;
    far_session *own;
    uint64_t each = tries / fabric->nodes < TRIES_LEAST ? TRIES_LEAST : tries / fabric->nodes;
    begin_results(pool, results);
    far_fabric_give_up_order_of_reads(fabric); /* the pool's own verbs do not rest on what is being tried */
    int err = far_session_open(pool, &own);
    if (err < 0)
        return err;
    for (unsigned node = 0; node < fabric->nodes && err == 0; node++)
        err = run_rules_at(pool, own, node, each, begins, results);
    err = record_all(own, results, err);
    far_session_close(own);
    return err;
}
