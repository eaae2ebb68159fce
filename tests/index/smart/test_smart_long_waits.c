/* SMART: tests of operations that wait long for other clients. Such an operation renews its pin, so that memory can be
 * reused meanwhile, and must not use anything that it READ under the old pin. */
#include "smart_rig.h"
#include "test.h"

#include "index/smart/smart.h"
#include "pool/alloc/store.h"
#include "pool/epoch/epoch.h"

#define LEAF 448 /* size of the leaf for a value of 399 bytes */

static char text[2][400];


static void make_values(void) {
    for (unsigned i = 0; i < 2; i++) {
        memset(text[i], 'a' + (int)i, 399);
        text[i][399] = 0;
    }
}


/* Returns the address of the leaf that the root's slot for this byte names, or 0 if the slot names no leaf. */
static far_addr leaf_at(char first) {
    uint64_t word = *memory_of(smart_root_slot(smart_state_of(c->index), (uint8_t)first));
    return smart_word_kind_of(word) == SMART_LEAF ? smart_word_addr(word) : 0;
}


static uint64_t epoch_of(const stage_actor *by) {
    return atomic_load_explicit(&by->pool->epochs.known, memory_order_relaxed);
}


/* Requests new epochs, and gives all handles time for housekeeping. */
static void poll_until_epochs_pass(unsigned times) {
    for (unsigned i = 0; i < times; i++) {
        far_epoch_request(c->pool);
        far_sim_sleep(s.world, 100000);
        if (s.by_hand)
            stage_poll(&s, 1);
    }
}


/* B wants to update a leaf in place, but whenever B tries to take the leaf's lock, A holds it for another update. B
 * renews its pin, so epochs pass. Fails if B keeps its pin (wait_for_lock in write_in_place.c): no memory would be
 * reused while B waits. */
TEST(waiting_for_a_lock_does_not_hold_back_memory) {
    make_values();
    stage_open(&s, "smart", "", NULL);
    stage_write(c, "nk", text[0]);
    far_addr lock = leaf_at('n') + LEAF - 8;
    stage_start(b, FAR_OP_UPDATE, "nk", text[1]);
    stage_stop_at(b, (far_sim_match){.kind = FAR_SIM_CAS, .from = lock, .to = lock + 8});
    uint64_t before = epoch_of(c);
    for (unsigned i = 0; i < 60; i++) {
        run_until_point(a, "smart:locked", FAR_OP_UPDATE, "nk", text[0]);
        stage_stop_at(b, (far_sim_match){.kind = FAR_SIM_CAS, .from = lock, .to = lock + 8});
        stage_finish(a);
        assert_int_equal(a->result, 0);
        poll_until_epochs_pass(2);
    }
    assert_true(epoch_of(c) >= before + 4);
    stage_finish(b);
    assert_int_equal(b->result, 0);
    assert_true(stage_reads(c, "nk", text[1]));
    stage_close(&s);
}


/* A READs the leaf while B updates it, so that A gets some old and some new words. */
static void read_torn(far_addr leaf, unsigned round) {
    far_sim_resume(a->client);
    far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf, .to = leaf + 8});
    assert_int_equal(far_sim_release_units(hold, (const uint32_t[]){0, 1, 2}, 3), 0);
    stage_write(b, "nk", text[round % 2]);
    far_sim_release(hold);
}


/* A's cache leads to L, the leaf of another key. A READs L and remembers that the word which names L does not lead to
 * A's key. Then A READs a leaf of its own key, and every READ is torn, until A renews its pin. Meanwhile the memory of
 * L is reused for the leaf of A's key, so that the slot has the remembered word. A must READ L again. Fails if
 * smart_renew_pin (find.c) does not forget the word: A returns "absent". */
TEST(reads_under_an_old_pin_are_not_used) {
    make_values();
    open_stage("patience=2", NULL);
    far_addr slot = smart_root_slot(smart_state_of(c->index), 'n');
    far_sim_match root = {.kind = FAR_SIM_READ, .from = slot, .to = slot + 8};
    stage_write(b, "nj", text[0]);
    far_addr first = leaf_at('n');
    assert_true(stage_reads(a, "nj", text[0]));
    stage_start(a, FAR_OP_GET, "nk", NULL);
    stage_stop_at(a, root); /* A has READ L, the leaf of another key. */
    stage_delete(b, "nj");
    uint64_t retired = epoch_of(b);
    stage_write(b, "nk", text[0]);
    far_addr leaf = leaf_at('n');
    assert_true(leaf && leaf != first);

    for (unsigned round = 0; round < 30 && epoch_of(b) < retired + 5; round++) {
        for (unsigned reads = 0; reads < 3; reads++)
            read_torn(leaf, 3 * round + reads + 1);
        stage_stop_at(a, root); /* A has a new pin now. */
        poll_until_epochs_pass(4);
    }
    assert_true(epoch_of(b) >= retired + 5);
    for (unsigned i = 0; i < 400 && leaf_at('n') != first; i++) {
        stage_delete(b, "nk");
        stage_write(b, "nk", text[1]);
        poll_until_epochs_pass(1);
    }
    assert_true(leaf_at('n') == first);
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_int_equal(a->value_len, 399);
    assert_memory_equal(a->value, text[1], 399);
    stage_close(&s);
}


/* A stops while it holds a leaf's lock, so that B's updates are refused with FAR_ERR_BUSY one after the other. Each of
 * B's updates uses the same redo record. Fails if smart_update_locked (write_in_place.c) does not return the record:
 * the number of B's records would grow with each update. */
TEST(a_refused_update_keeps_its_redo_record) {
    make_values();
    stage_open(&s, "smart", "", NULL);
    stage_write(c, "nk", text[0]);
    run_until_point(a, "smart:locked", FAR_OP_UPDATE, "nk", text[1]);
    uint32_t kept = 0;
    for (unsigned i = 0; i < 4; i++) {
        stage_start(b, FAR_OP_UPDATE, "nk", text[0]);
        while (!b->ended)
            far_sim_run_for(s.world, 100000000);
        assert_int_equal(b->result, FAR_ERR_BUSY);
        assert_true(i == 0 || b->session->memory->session_owned_count == kept);
        kept = b->session->memory->session_owned_count;
    }
    stage_finish(a);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nk", text[0]), 0);
    assert_int_equal(b->session->memory->session_owned_count, kept);
    assert_true(stage_reads(c, "nk", text[0]));
    stage_close(&s);
}
