/* Races of two handles for the same free blocks, and free blocks whose entry is damaged. A handle whose CAS of a block entry fails does not own the block, and
 * undoes only its own changes. */
#include "pool_rig.h"
#include "test.h"


static far_sim_match cas_of_block_entry(const far_geometry *g) {
    return (far_sim_match){
        .kind = FAR_SIM_CAS, .from = far_addr_make(0, g->node[0].entries), .to = far_addr_make(0, g->node[0].pages)};
}


typedef struct rival {
    rig *r;
    actor *of;
    far_addr entry; /* address of the block entry that the other handle took */
} rival;


/* Called at each verb. When a client posts the CAS that takes the first free block, this function gives that block to
 * the other handle just before the CAS takes effect. */
static void take_the_same_block(void *ctx, const far_sim_posted *posted) {
    rival *v = ctx;
    const far_session *own = v->of->pool->team.own;
    far_sim_match entries = cas_of_block_entry(&v->of->pool->geometry);
    if (v->entry || posted->verb->kind != FAR_CAS || posted->verb->addr < entries.from ||
        posted->verb->addr >= entries.to || !far_block_is_free(posted->verb->compare))
        return;
    v->entry = posted->verb->addr;
    far_block_state taken = {.kind = FAR_BLOCK_OWNED, .used = true, .id = own->id, .generation = own->generation};
    *(uint64_t *)bytes_at(v->r, v->entry) = far_block_pack(&taken);
}


/* Handle A tries to take a free block, and handle B becomes its owner just before A's CAS. A must not add the block to
 * its store. Fails if take_random_blocks (exchange.c) does not check the values that its CASes found, because both
 * handles would then use the block. */
TEST(a_block_taken_by_another_handle_is_not_added) {
    rig r;
    open_rig_with(&r, 91, 2, 0, "size=4M", 16);
    actor *a = &r.actors[0], *b = &r.actors[1];
    const far_geometry *g = &a->pool->geometry;
    rival v = {.r = &r, .of = b};
    a->size = g->block_bytes / 2;
    far_sim_on_verb(r.world, take_the_same_block, &v);
    for (unsigned i = 0; i < 8 && v.entry == 0; i++)
        assert_int_equal(call(a, alloc_object, a), 0);
    far_sim_on_verb(r.world, NULL, NULL);
    assert_true(v.entry != 0);
    far_block_id id = {0, (uint32_t)((v.entry - cas_of_block_entry(g).from) / FAR_BLOCK_ENTRY_BYTES)};
    assert_null(far_owned_block_at(a->pool->store, far_block_base(g, id)));
    assert_true(block_of(a, a->object).index != id.index);
    *(uint64_t *)bytes_at(&r, v.entry) = 0;
    assert_nothing_lost(&r, b);
    close_rig(&r);
}


/* Proves that a handle uses no block whose entry says that it is free although a page of it is in use. This is so for
 * every second free block. A must give such a block back after it has taken it, with its entry unchanged. Fails without
 * give_back_if_in_use (exchange.c), because A would overwrite the objects in the block. */
TEST(a_free_block_with_pages_in_use_is_not_used) {
    rig r;
    open_rig_with(&r, 92, 2, 0, "size=8M", 16);
    actor *a = &r.actors[0], *b = &r.actors[1];
    const far_geometry *g = &a->pool->geometry;
    far_page_state slab = {.in_use = true, .uid = a->index->uid, .pages = 1, .size = 64};
    uint64_t damaged = 0;
    for (uint32_t i = 0; i < 64 && i < g->node[0].blocks; i++)
        if (i % 2 && far_block_is_free(*(uint64_t *)bytes_at(&r, far_block_entry(g, (far_block_id){0, i})))) {
            *(uint64_t *)bytes_at(&r, far_block_page(g, (far_block_id){0, i}, 0)) = far_page_pack(&slab);
            damaged |= 1ull << i;
        }
    assert_true(damaged != 0);
    a->size = g->block_bytes / 2;
    for (unsigned i = 0; i < 12; i++) {
        assert_int_equal(call(a, alloc_object, a), 0);
        assert_false(block_of(a, a->object).index < 64 && damaged >> block_of(a, a->object).index & 1);
    }
    for (uint32_t i = 0; i < 64; i++)
        if (damaged >> i & 1) {
            assert_true(far_block_is_free(*(uint64_t *)bytes_at(&r, far_block_entry(g, (far_block_id){0, i}))));
            *(uint64_t *)bytes_at(&r, far_block_page(g, (far_block_id){0, i}, 0)) = 0;
        }
    assert_nothing_lost(&r, b);
    close_rig(&r);
}
