/* Reading the allocator's tables: how many bytes are free, used, retired and leaked (far_memory_stat), and whether the
 * tables are sound (far_memory_check). */
#include "pool/alloc/store.h"
#include "pool/gc/request.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#define OWNERS 64u


/* ---- Sums ---- */

typedef struct byte_sums {
    far_pool *pool;
    uint64_t free;
    void (*each)(void *ctx, uint32_t uid, uint64_t bytes); /* NULL if the caller needs only the totals */
    void *ctx;
} byte_sums;


static int add_slab_bytes(far_task *t, void *ctx, far_tables *b) {
    byte_sums *s = ctx;
    const far_geometry *g = &s->pool->geometry;
    int err = far_tables_read_until_sound(t, b);
    const uint64_t page_words = g->page_bytes / FAR_GRANULE / 64;
    for (unsigned p = 0; p < FAR_BLOCK_PAGES && err == 0;) {
        far_page_state page = far_page_unpack(b->pages[p]);
        if (!page.in_use) {
            s->free += g->page_bytes;
            p++;
            continue;
        }
        uint64_t returned = 0, room = far_slab_objects(g->page_bytes, &page) * page.size;
        for (uint64_t w = p * page_words; w < (p + page.pages) * page_words; w++)
            returned += (uint64_t)__builtin_popcountll(b->bits[w]) * page.size;
        s->free += returned;
        if (s->each && returned < room)
            s->each(s->ctx, page.uid, room - returned);
        p += page.pages;
    }
    return err;
}


/* Adds the bytes of a block that has no slabs. Returns true if the block has slabs, which add_slab_bytes adds. */
static bool add_block_bytes(void *ctx, far_block_id id, const uint64_t *entry) {
    byte_sums *s = ctx;
    far_block_state state = far_block_unpack(entry[0]);
    (void)id;
    if (state.kind == FAR_BLOCK_FREE)
        s->free += s->pool->geometry.block_bytes;
    return far_block_has_slabs(entry[0]);
}


int far_memory_stat(far_task *t, far_pool_usage *usage, void (*each)(void *ctx, uint32_t uid, uint64_t bytes),
                    void *ctx) {
    far_pool *pool = far_task_pool(t);
    byte_sums s = {.pool = pool, .each = each, .ctx = ctx};
    far_handle_usage told;
    uint64_t leaked = 0, total = 0;
    for (unsigned node = 0; node < pool->geometry.nodes; node++)
        total += pool->geometry.node_bytes[node];
    int err = far_tables_each(t, add_block_bytes, add_slab_bytes, &s);
    if (err == 0)
        err = far_handle_usage_sum(t, &told);
    if (err == 0)
        err = far_read_word(t, far_addr_make(0, FAR_SUPER_LEAKED), &leaked);
    if (err < 0)
        return err;
    s.free += told.free_bytes;
    usage->total = total;
    /* the sum of the free bytes is not exact while clients are working, so it may exceed the total */
    usage->free = s.free < total ? s.free : total;
    usage->retired = told.retired_bytes < total - usage->free ? told.retired_bytes : total - usage->free;
    uint64_t rest = total - usage->free - usage->retired;
    usage->leaked = leaked < rest ? leaked : rest;
    usage->used = rest - usage->leaked;
    return 0;
}


/* ---- Checks ----
 *
 * The problem found in a block is put into block_check.problem, which is empty if there is none. */

typedef struct block_check {
    far_task *t;
    const far_geometry *g;
    far_report *report;
    /* true if no collection is requested; a block without an existing owner would then stay in this state */
    bool at_rest;
    /* a cache of owner words that were found to be valid, indexed by the owner's id modulo OWNERS */
    uint64_t owned[OWNERS];
    char problem[160];
} block_check;

#define PROBLEM(c, ...) (snprintf((c)->problem, sizeof((c)->problem), __VA_ARGS__), 0)


static int check_free_bits(block_check *c, const far_tables *b) {
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
                return PROBLEM(c, "the free bitmap has a bit in page %u, which is free", p);
            if (inner % page.size != 0 || inner / page.size >= far_slab_objects(g->page_bytes, &page))
                return PROBLEM(c, "the free bitmap has a bit at %#llx, where no object begins", (unsigned long long)at);
        }
    return 0;
}


static int check_owner(block_check *c, const far_block_state *s) {
    far_client client;
    uint64_t word = far_block_pack(s), *known = &c->owned[s->id % OWNERS];
    if (word == *known)
        return 0;
    if (s->id == 0 || s->id > far_task_pool(c->t)->geometry.session_slots)
        return PROBLEM(c, "owned by client %u, but no client can have that id", s->id);
    far_read(c->t, far_client_entry(s->id), &client, sizeof(client));
    int err = far_wait(c->t);
    if (err == 0 && c->at_rest &&
        (far_client_state_of(client.word) == FAR_CLIENT_FREE || far_client_generation_of(client.word) != s->generation))
        return PROBLEM(c, "owned by client %u of generation %u, which does not exist any more", s->id, s->generation);
    if (err == 0)
        *known = word;
    return err;
}


static int check_slabs(block_check *c, const far_tables *b) {
    if (!far_pages_are_sound(c->g, b->pages))
        return PROBLEM(c, "its page words are damaged");
    for (unsigned p = 0; !far_block_has_slabs(b->entry[0]) && p < FAR_BLOCK_PAGES; p++)
        if (b->pages[p] != 0)
            return PROBLEM(c, "free, but page %u is in use", p);
    return check_free_bits(c, b);
}


static int check_block_once(block_check *c, const far_tables *b) {
    uint64_t word = b->entry[0];
    int err = 0;
    c->problem[0] = 0;
    far_block_state s = far_block_unpack(word);
    if (s.kind >= FAR_BLOCK_KINDS || far_block_pack(&s) != word)
        return PROBLEM(c, "its state %#llx is invalid", (unsigned long long)word);
    if (s.kind == FAR_BLOCK_OWNED)
        err = check_owner(c, &s);
    return err == 0 && c->problem[0] == 0 ? check_slabs(c, b) : err;
}


static int recheck_block(block_check *c, far_tables *b, unsigned attempt) {
    int err = far_tables_reread(c->t, b, attempt);
    return err < 0 ? err : check_block_once(c, b);
}


static int check_block(far_task *t, void *ctx, far_tables *b) {
    block_check *c = ctx;
    (void)t;
    int err = check_block_once(c, b);
    for (unsigned tries = 1; err == 0 && c->problem[0] != 0 && tries < FAR_TABLES_READS_MAX; tries++)
        err = recheck_block(c, b, tries);
    if (err == 0 && c->problem[0] != 0)
        far_report_problem(c->report, "block %u of node %u: %s", b->id.index, b->id.node, c->problem);
    return err;
}


/* Reports an invalid free that this handle recorded. Either an index freed an object that was not in use or was freed
 * already, or a collection reached an object that this handle had as free in the store. */
void far_memory_check_invalid_free(far_task *t, far_report *report) {
    far_store *s = far_store_of(t);
    pthread_mutex_lock(&s->lock);
    far_addr addr = far_store_take_invalid_free(s);
    pthread_mutex_unlock(&s->lock);
    if (addr != 0)
        far_report_problem(report, "%#llx was freed, but no object was in use there, or the object is still in use",
                           (unsigned long long)(addr & ~1ull));
}


int far_memory_check(far_task *t, bool mends, far_report *report) {
    block_check c = {.t = t, .g = far_geometry_of(t), .report = report};
    assert(t->pin.epoch == 0);
    int wanted = far_collection_is_requested(t);
    if (wanted < 0)
        return wanted;
    c.at_rest = wanted == 0 && !mends;
    far_memory_check_invalid_free(t, report);
    return far_tables_each(t, NULL, check_block, &c);
}
