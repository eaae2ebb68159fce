/* A rig for tests of the memory of dropped indexes. */
#ifndef TESTS_DROPPED_RIG_H
#define TESTS_DROPPED_RIG_H

#include "pool_rig.h"

static inline void open_without_index(rig *r, unsigned seed, unsigned count, unsigned by_hand) {
    open_rig_with(r, seed, count, by_hand, "size=16M", 0);
}


/* Creates an index with this many keys, closes it, and returns its uid. Every value has `bytes` bytes; with 0 the
 * values have many sizes, so that an index with many keys has slabs of all sizes. */
static inline uint32_t create_with_values(far_session *s, const char *name, const char *kind, unsigned keys,
                                          size_t bytes) {
    static const char value[FAR_VALUE_MAX];
    far_index *index;
    assert_int_equal(far_index_create(s, name, kind, NULL, &index), 0);
    for (unsigned i = 0; i < keys; i++)
        assert_int_equal(far_put(s, index, &i, sizeof(i), value, bytes ? bytes : i * 73 % 3000), 0);
    uint32_t uid = index->uid;
    far_index_close(index);
    return uid;
}


static inline uint32_t create_with_keys(far_session *s, const char *name, const char *kind, unsigned keys) {
    return create_with_values(s, name, kind, keys, 0);
}


static inline uint32_t create_index(actor *a, const char *name, const char *kind) {
    return create_with_keys(a->session, name, kind, 40);
}


static inline bool block_has_index(const rig *r, far_block_id id, uint32_t uid) {
    const far_geometry *g = &r->actors[0].pool->geometry;
    bool found = false;
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++)
        found |= far_page_unpack(word_at(r, far_block_page(g, id, p))).uid == uid;
    return found;
}


/* Closes the handle of the actor, so that its blocks become orphans, and opens a new one. */
static inline void reopen(rig *r, actor *a) {
    bool by_hand = a->pool->options.no_thread;
    leave(a);
    join(r, a->number, by_hand);
}


static inline void assert_no_leak_and_close(rig *r) {
    wait_for_sweeps(r);
    assert_int_equal(leaked(&r->actors[0]), 0);
    close_rig(r);
}


/* Watches the epoch while a client frees or adopts blocks of one kind, one after the other. Each CAS of such a block's
 * entry requests the next epoch through another handle. */
typedef struct epoch_watch {
    rig *r;
    far_block_kind of;
    far_addr from, to; /* address range of the block entries that are watched */
    uint64_t first, last;
    unsigned taken;
} epoch_watch;


static inline epoch_watch begin_epoch_watch(rig *r, far_block_kind of) {
    const far_geometry *g = &r->actors[0].pool->geometry;
    return (epoch_watch){r, of, far_addr_make(0, g->node[0].entries), far_addr_make(0, g->node[0].pages), 0, 0, 0};
}


static inline void watch_block_cas(void *ctx, const far_sim_posted *posted) {
    epoch_watch *seen = ctx;
    if (posted->verb->kind != FAR_CAS || posted->verb->addr < seen->from || posted->verb->addr >= seen->to ||
        far_block_unpack(posted->verb->compare).kind != seen->of)
        return;
    uint64_t epoch = word_at(seen->r, FAR_SUPER_EPOCH);
    seen->first = seen->taken++ == 0 ? epoch : seen->first;
    seen->last = epoch;
    far_epoch_request(seen->r->actors[1].pool);
}


static inline void close_pool_main(void *arg) {
    actor *a = arg;
    far_session_close(a->session);
    a->session = NULL;
    far_pool_close(a->pool);
}

#endif
