/* SMART: operations that wait long for others. They take a new pin now and then, so that memory comes back meanwhile,
 * and forget what they saw under the old one. */
#include "smart_rig.h"

#include "index/smart/smart.h"
#include "pool/epoch.h"
#include "pool/store.h"

#define LEAF 448 /* bytes of the leaf of a value of 399 */

static char text[2][400];


static void make_values(void) {
    for (unsigned i = 0; i < 2; i++) {
        memset(text[i], 'a' + (int)i, 399);
        text[i][399] = 0;
    }
}


/* What the root's slot for this byte names; 0: no leaf. */
static far_addr leaf_at(char first) {
    uint64_t word = *memory_of(smart_root_slot(smart_state_of(c->index), (uint8_t)first));
    return smart_word_is(word) == SMART_LEAF ? smart_word_addr(word) : 0;
}


static uint64_t epoch_of(const stage_actor *by) {
    return atomic_load_explicit(&by->pool->epochs.known, memory_order_relaxed);
}


/* Time for housekeeping of all, who would like the epoch to move. */
static void let_epochs_pass(unsigned times) {
    for (unsigned i = 0; i < times; i++) {
        far_epoch_request(c->pool);
        far_sim_sleep(s.world, 100000);
        if (s.by_hand)
            stage_poll(&s, 1);
    }
}


/* b wants to update a leaf in place, and whenever it asks for the lock, a has it, each time for another update. Without
 * a new pin b would keep all memory from being used again as long as it has no luck. */
static void who_waits_for_a_lock_lets_memory_go(void **state) {
    (void)state;
    make_values();
    stage_open(&s, "smart", "", NULL);
    stage_write(c, "nk", text[0]);
    far_addr lock = leaf_at('n') + LEAF - 8;
    stage_start(b, FAR_OP_UPDATE, "nk", text[1]);
    stage_stop_at(b, (far_sim_match){.kind = FAR_SIM_CAS, .from = lock, .to = lock + 8});
    uint64_t before = epoch_of(c);
    for (unsigned i = 0; i < 60; i++) {
        stand(a, "smart:locked", FAR_OP_UPDATE, "nk", text[0]);
        stage_stop_at(b, (far_sim_match){.kind = FAR_SIM_CAS, .from = lock, .to = lock + 8});
        stage_finish(a);
        assert_int_equal(a->result, 0);
        let_epochs_pass(2);
    }
    assert_true(epoch_of(c) >= before + 4);
    stage_finish(b);
    assert_int_equal(b->result, 0);
    assert_true(stage_reads(c, "nk", text[1]));
    stage_close(&s);
}


/* a READs the leaf, and while it does, b updates it: of the words that a got some are old and some are new. */
static void read_torn(far_addr leaf, unsigned round) {
    far_sim_resume(a->client);
    far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf, .to = leaf + 8});
    assert_int_equal(far_sim_release_units(hold, (const uint32_t[]){0, 1, 2}, 3), 0);
    stage_write(b, "nk", text[round % 2]);
    far_sim_release(hold);
}


/* The cache of a names L, the leaf of another key that is there no more; a sees that, and remembers: no need to READ it
 * again. Then it meets a leaf M of its key, which changes whenever it is READ, until a takes a new pin. Meanwhile L is
 * used again, for the key that a looks for: the word is the one that a remembers. It said that the key is absent. */
static void what_was_seen_under_an_old_pin_is_forgotten(void **state) {
    (void)state;
    make_values();
    up("patience=2", NULL);
    far_addr slot = smart_root_slot(smart_state_of(c->index), 'n');
    far_sim_match root = {.kind = FAR_SIM_READ, .from = slot, .to = slot + 8};
    stage_write(b, "nj", text[0]);
    far_addr first = leaf_at('n');
    assert_true(stage_reads(a, "nj", text[0]));
    stage_start(a, FAR_OP_GET, "nk", NULL);
    stage_stop_at(a, root); /* it has READ L */
    stage_delete(b, "nj");
    uint64_t retired = epoch_of(b);
    stage_write(b, "nk", text[0]);
    far_addr leaf = leaf_at('n');
    assert_true(leaf && leaf != first);

    for (unsigned round = 0; round < 30 && epoch_of(b) < retired + 5; round++) {
        for (unsigned reads = 0; reads < 3; reads++)
            read_torn(leaf, 3 * round + reads + 1);
        stage_stop_at(a, root); /* under a new pin */
        let_epochs_pass(4);
    }
    assert_true(epoch_of(b) >= retired + 5);
    for (unsigned i = 0; i < 400 && leaf_at('n') != first; i++) {
        stage_delete(b, "nk");
        stage_write(b, "nk", text[1]);
        let_epochs_pass(1);
    }
    assert_true(leaf_at('n') == first);
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_int_equal(a->value_len, 399);
    assert_memory_equal(a->value, text[1], 399);
    stage_close(&s);
}


/* a is stopped with the lock of a leaf, so that updates of b are refused, one after the other. Each of them has a redo
 * record, which is the next one's: b keeps no more of them than before. */
static void who_is_refused_keeps_its_redo_record(void **state) {
    (void)state;
    make_values();
    stage_open(&s, "smart", "", NULL);
    stage_write(c, "nk", text[0]);
    stand(a, "smart:locked", FAR_OP_UPDATE, "nk", text[1]);
    uint32_t kept = 0;
    for (unsigned i = 0; i < 4; i++) {
        stage_start(b, FAR_OP_UPDATE, "nk", text[0]);
        while (!b->ended)
            far_sim_run_for(s.world, 100000000);
        assert_int_equal(b->result, FAR_ERR_BUSY);
        assert_true(i == 0 || b->session->memory->kept_count == kept);
        kept = b->session->memory->kept_count;
    }
    stage_finish(a);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nk", text[0]), 0);
    assert_int_equal(b->session->memory->kept_count, kept);
    assert_true(stage_reads(c, "nk", text[0]));
    stage_close(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_waits_for_a_lock_lets_memory_go),
        cmocka_unit_test(what_was_seen_under_an_old_pin_is_forgotten),
        cmocka_unit_test(who_is_refused_keeps_its_redo_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
