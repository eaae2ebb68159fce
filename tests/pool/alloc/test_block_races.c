/* Races of two handles for the same free blocks. A handle whose CAS of a block entry fails does not own the block, and
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
