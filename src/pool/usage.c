/* Looking at the allocator's tables: where the bytes are, and whether the tables are sound. */
#include "pool/request.h"
#include "pool/store.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#define OWNERS 64u


/* Sums. */

typedef struct sums {
    far_pool *pool;
    uint64_t free;
    void (*each)(void *ctx, uint32_t uid, uint64_t bytes); /* NULL: only the sums are wanted */
    void *ctx;
} sums;


static int add_slabs(far_task *t, void *ctx, far_tables *b) {
    sums *s = ctx;
    const far_geometry *g = &s->pool->geometry;
    int err = far_tables_prove(t, b);
    const uint64_t page_words = g->page_bytes / FAR_GRANULE / 64;
    for (unsigned p = 0; p < FAR_BLOCK_PAGES && err == 0;) {
        far_page_state page = far_page_unpack(b->pages[p]);
        if (!page.in_use) {
            s->free += g->page_bytes;
            p++;
            continue;
        }
        uint64_t home = 0, room = far_slab_objects(g->page_bytes, &page) * page.size;
        for (uint64_t w = p * page_words; w < (p + page.pages) * page_words; w++)
            home += (uint64_t)__builtin_popcountll(b->bits[w]) * page.size;
        s->free += home;
        if (s->each && home < room)
            s->each(s->ctx, page.uid, room - home);
        p += page.pages;
    }
    return err;
}


/* Of a block: whether it has slabs to be added; what it is otherwise is. */
static bool add_block(void *ctx, far_block_id id, const uint64_t *entry) {
    sums *s = ctx;
    far_block_state state = far_block_unpack(entry[0]);
    (void)id;
    if (state.kind == FAR_BLOCK_FREE)
        s->free += s->pool->geometry.block_bytes;
    else if (state.kind == FAR_BLOCK_RUN && s->each)
        s->each(s->ctx, state.uid, state.length * s->pool->geometry.block_bytes);
    return far_has_slabs(entry[0]);
}


int far_memory_stat(far_task *t, far_pool_usage *usage, void (*each)(void *ctx, uint32_t uid, uint64_t bytes),
                    void *ctx) {
    far_pool *pool = far_task_pool(t);
    sums s = {.pool = pool, .each = each, .ctx = ctx};
    far_told told;
    uint64_t leaked = 0, total = 0;
    for (unsigned node = 0; node < pool->geometry.nodes; node++)
        total += pool->geometry.node_bytes[node];
    int err = far_tables_each(t, add_block, add_slabs, &s);
    if (err == 0)
        err = far_told_sum(t, &told);
    if (err == 0)
        err = far_read_word(t, far_addr_make(0, FAR_SUPER_LEAKED), &leaked);
    if (err < 0)
        return err;
    s.free += told.free_bytes;
    usage->total = total;
    usage->free = s.free < total ? s.free : total; /* beside live clients the sum is not exact */
    usage->retired = told.retired_bytes < total - usage->free ? told.retired_bytes : total - usage->free;
    uint64_t rest = total - usage->free - usage->retired;
    usage->leaked = leaked < rest ? leaked : rest;
    usage->used = rest - usage->leaked;
    return 0;
}


/* Checks: what is wrong with a block, "" = nothing. */

typedef struct checked {
    far_task *t;
    const far_geometry *g;
    far_report *report;
    bool at_rest;           /* no sweep is wanted: a block whose owner is gone would stay so */
    uint64_t owned[OWNERS]; /* words of blocks whose owners are there; by their ids */
    far_block_id head;      /* of the last run */
    uint64_t head_word;     /* ... its entry */
    char problem[160];
} checked;

#define PROBLEM(c, ...) (snprintf((c)->problem, sizeof((c)->problem), __VA_ARGS__), 0)


static int check_bits(checked *c, const far_tables *b) {
    const far_geometry *g = c->g;
    const uint64_t *pages = b->pages;
    unsigned first = 0;
    far_page_state page = {0};
    for (uint64_t w = 0; w < far_bitmap_bytes(g) / 8 && c->problem[0] == 0; w++)
        for (uint64_t rest = b->bits[w]; rest != 0; rest &= rest - 1) {
            uint64_t at = (w * 64 + (unsigned)__builtin_ctzll(rest)) * FAR_GRANULE;
            unsigned p = (unsigned)(at / g->page_bytes);
            for (unsigned q = first; q <= p; q++)
                if (pages[q] != 0) {
                    first = q;
                    page = far_page_unpack(pages[q]);
                }
            uint64_t inner = at - first * g->page_bytes;
            if (!page.in_use || p >= first + page.pages)
                return PROBLEM(c, "a free bit in free page %u", p);
            if (inner % page.size != 0 || inner / page.size >= far_slab_objects(g->page_bytes, &page))
                return PROBLEM(c, "a free bit at %#llx, where no object begins", (unsigned long long)at);
        }
    return 0;
}


static int check_owner(checked *c, const far_block_state *s) {
    far_client client;
    uint64_t word = far_block_pack(s), *there = &c->owned[s->id % OWNERS];
    if (word == *there)
        return 0;
    if (s->id == 0 || s->id > far_task_pool(c->t)->geometry.session_slots)
        return PROBLEM(c, "owned by client %u, an impossible id", s->id);
    far_read(c->t, far_client_entry(s->id), &client, sizeof(client));
    int err = far_wait(c->t);
    if (err == 0 && c->at_rest &&
        (far_client_state_of(client.word) == FAR_CLIENT_FREE || far_client_generation_of(client.word) != s->generation))
        return PROBLEM(c, "owned by client %u of generation %u, who is gone", s->id, s->generation);
    if (err == 0)
        *there = word;
    return err;
}


static int check_slabs(checked *c, const far_tables *b, const far_block_state *s) {
    if (!far_pages_sound(c->g, b->pages))
        return PROBLEM(c, "its page words are broken");
    for (unsigned p = 0; !far_has_slabs(b->entry[0]) && p < FAR_BLOCK_PAGES; p++)
        if (b->pages[p] != 0)
            return PROBLEM(c, "%s, but page %u is in use", s->kind == FAR_BLOCK_FREE ? "free" : "part of a run", p);
    return check_bits(c, b);
}


/* A run fits the node; its bodies follow it, and a body has a head. Blocks come in their order, so that the head is
 * known. What is owned is just being made, or undone. */
static int check_run(checked *c, far_block_id id, const far_block_state *s) {
    uint32_t before = id.node == c->head.node ? id.index - c->head.index : 0;
    int err = 0;
    if ((s->kind == FAR_BLOCK_RUN || s->kind == FAR_BLOCK_WIPING) &&
        (s->length == 0 || s->length > c->g->node[id.node].blocks - id.index))
        return PROBLEM(c, "a run of %u blocks does not fit the node", s->length);
    if (s->kind == FAR_BLOCK_BODY && (s->length == 0 || s->length > id.index))
        return PROBLEM(c, "part of a run that begins before the node");
    if (s->kind == FAR_BLOCK_BODY && s->length != before) {
        c->head = (far_block_id){id.node, id.index - s->length};
        err = far_read_word(c->t, far_block_entry(c->g, c->head), &c->head_word);
        before = s->length;
    }
    far_block_state head = far_block_unpack(c->head_word);
    bool is_head = head.kind == FAR_BLOCK_RUN || head.kind == FAR_BLOCK_WIPING || head.kind == FAR_BLOCK_OWNED;
    bool inside = before > 0 && before < head.length;
    if (err == 0 && s->kind == FAR_BLOCK_BODY && !(is_head && inside))
        return PROBLEM(c, "part of a run, but block %u does not begin one of that length", c->head.index);
    if (err == 0 && s->kind != FAR_BLOCK_BODY && s->kind != FAR_BLOCK_OWNED && head.kind == FAR_BLOCK_RUN && inside)
        return PROBLEM(c, "no part of the run that block %u begins", c->head.index);
    return err;
}


static int check_once(checked *c, const far_tables *b) {
    uint64_t word = b->entry[0];
    int err = 0;
    c->problem[0] = 0;
    far_block_state s = far_block_unpack(word);
    if (s.kind >= FAR_BLOCK_KINDS || far_block_pack(&s) != word)
        return PROBLEM(c, "its state %#llx means nothing", (unsigned long long)word);
    if (s.kind == FAR_BLOCK_OWNED || s.kind == FAR_BLOCK_WIPING)
        err = check_owner(c, &s);
    if (err == 0 && c->problem[0] == 0)
        err = check_slabs(c, b, &s);
    return err == 0 && c->problem[0] == 0 ? check_run(c, b->id, &s) : err;
}


static int look_again(checked *c, far_tables *b, unsigned attempt) {
    int err = far_tables_again(c->t, b, attempt);
    if (err == 0)
        err = far_read_word(c->t, far_block_entry(c->g, c->head), &c->head_word);
    return err < 0 ? err : check_once(c, b);
}


static int check_block(far_task *t, void *ctx, far_tables *b) {
    checked *c = ctx;
    (void)t;
    int err = check_once(c, b);
    for (unsigned tries = 1; err == 0 && c->problem[0] != 0 && tries < FAR_TABLES_LOOKS; tries++)
        err = look_again(c, b, tries);
    if (err == 0 && c->problem[0] != 0) {
        far_report_problem(c->report, "block %u of node %u: %s", b->id.index, b->id.node, c->problem);
        c->head = b->id; /* a run that ends here by damage is told once */
        c->head_word = 0;
    } else if (far_block_unpack(b->entry[0]).length > 0 && far_block_unpack(b->entry[0]).kind != FAR_BLOCK_BODY) {
        c->head = b->id;
        c->head_word = b->entry[0];
    }
    return err;
}


/* What this handle has met: far memory named an object that is none, or named one twice; or said that one is free which a
 * walk has met. */
void far_memory_check_freed(far_task *t, far_report *report) {
    far_store *s = far_store_of(t);
    pthread_mutex_lock(&s->lock);
    far_addr addr = s->freed_wrongly;
    s->freed_wrongly = 0;
    pthread_mutex_unlock(&s->lock);
    if (addr != 0)
        far_report_problem(report, "%#llx was freed, where no object was in use, or one that still is",
                           (unsigned long long)(addr & ~1ull));
}


int far_memory_check(far_task *t, far_report *report) {
    checked c = {.t = t, .g = far_geometry_of(t), .report = report};
    assert(t->pin.epoch == 0);
    int wanted = far_sweep_is_wanted(t);
    if (wanted < 0)
        return wanted;
    c.at_rest = wanted == 0;
    far_memory_check_freed(t, report);
    return far_tables_each(t, NULL, check_block, &c);
}
