/* Two handles that want the same free blocks: whoever loses a CAS has not got the block, and takes nothing back that is
 * another's. */
#include "pool_rig.h"


static void alloc_main(void *arg) {
    actor *a = arg;
    a->result = call(a, alloc_object, a);
}


static far_sim_match cas_of_an_entry(const far_geometry *g) {
    return (far_sim_match){
        .kind = FAR_SIM_CAS, .from = far_addr_make(0, g->node[0].entries), .to = far_addr_make(0, g->node[0].pages)};
}


/* a is about to take the last four blocks for a run, when b makes one of the last two. a gives back the one that it got, and
 * finds others. (A lost CAS that counts: the runs overlap. An undo that does not compare the distance: b's second block is
 * free.) */
static void of_two_runs_one_gets_the_blocks(void **state) {
    (void)state;
    rig r;
    open_rig_with(&r, 90, 2, 0, "size=4M", 16);
    actor *a = &r.actors[0], *b = &r.actors[1];
    const far_geometry *g = &a->pool->geometry;
    a->size = 4 * g->block_bytes;
    b->size = 2 * g->block_bytes;
    start(a, "a", alloc_main);
    stop_at(a, cas_of_an_entry(g));
    assert_int_equal(call(b, alloc_object, b), 0);
    finish(a);
    assert_int_equal(a->result, 0);
    far_block_id first = block_of(b, b->object), second = {0, first.index + 1};
    assert_int_equal(second.index + 1, g->node[0].blocks);
    assert_int_equal(far_block_unpack(word_at(&r, far_block_entry(g, first))).kind, FAR_BLOCK_RUN);
    assert_int_equal(far_block_unpack(word_at(&r, far_block_entry(g, second))).kind, FAR_BLOCK_BODY);
    assert_true(block_of(a, a->object).index + 4 <= first.index);
    assert_int_equal(far_block_unpack(word_at(&r, far_block_entry(g, (far_block_id){0, first.index - 1}))).kind,
                     FAR_BLOCK_BODY);
    assert_nothing_lost(&r, a);
    close_rig(&r);
}


typedef struct rival {
    rig *r;
    actor *of;
    far_addr entry; /* that the rival took */
} rival;


/* The first block that somebody goes for is the rival's in the same moment. */
static void take_first(void *ctx, const far_sim_posted *posted) {
    rival *v = ctx;
    const far_session *own = v->of->pool->team.own;
    far_sim_match entries = cas_of_an_entry(&v->of->pool->geometry);
    if (v->entry || posted->verb->kind != FAR_CAS || posted->verb->addr < entries.from ||
        posted->verb->addr >= entries.to || !far_block_is_free(posted->verb->compare))
        return;
    v->entry = posted->verb->addr;
    far_block_state taken = {.kind = FAR_BLOCK_OWNED, .used = true, .id = own->id, .generation = own->generation};
    *(uint64_t *)bytes_at(v->r, v->entry) = far_block_pack(&taken);
}


/* (A lost CAS that counts: both have it.) */
static void a_block_that_another_took_is_not_ours(void **state) {
    (void)state;
    rig r;
    open_rig_with(&r, 91, 2, 0, "size=4M", 16);
    actor *a = &r.actors[0], *b = &r.actors[1];
    const far_geometry *g = &a->pool->geometry;
    rival v = {.r = &r, .of = b};
    a->size = g->block_bytes / 2;
    far_sim_on_verb(r.world, take_first, &v);
    for (unsigned i = 0; i < 8 && v.entry == 0; i++)
        assert_int_equal(call(a, alloc_object, a), 0);
    far_sim_on_verb(r.world, NULL, NULL);
    assert_true(v.entry != 0);
    far_block_id id = {0, (uint32_t)((v.entry - cas_of_an_entry(g).from) / FAR_BLOCK_ENTRY_BYTES)};
    assert_null(far_held_at(a->pool->store, far_block_base(g, id)));
    assert_true(block_of(a, a->object).index != id.index);
    *(uint64_t *)bytes_at(&r, v.entry) = 0;
    assert_nothing_lost(&r, b);
    close_rig(&r);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_two_runs_one_gets_the_blocks),
        cmocka_unit_test(a_block_that_another_took_is_not_ours),
    };
    return cmocka_run_group_tests_name("block_races", tests, NULL, NULL);
}
