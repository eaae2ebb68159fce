/* SMART in a full pool, with the option value_size. A delete may change the leaf and its slot in one batch only if no
 * update ever replaces a leaf. An update of a longer value replaces the leaf if it finds no memory for a redo record.
 * So with values that need redo records, deletes must not use one batch. */
#include "stage.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

enum { VALUE = 200 };


/* Inserts keys until the pool has no memory left for another pair. */
static void fill_pool(stage_actor *by, const char *value) {
    int result = 0;
    for (unsigned i = 0; result == 0; i++) {
        char key[16];
        snprintf(key, sizeof(key), "f%08u", i);
        assert_true(i < 100000);
        result = far_insert(by->session, by->index, key, strlen(key), value, VALUE);
    }
    assert_int_equal(result, FAR_ERR_NO_MEMORY);
}


/* The leaf of the key is a VI leaf: an update overwrites the value in place, under a lock. The value of 200 bytes is
 * larger than the tearing granule, so the update also needs a redo record. The pool is full. Steps: (1) B deletes the
 * key: it has READ the leaf and its slot, and stops before it changes them. (2) A updates the key. Its session has no
 * redo record, and the pool has no memory for one, so A replaces the leaf if there is memory for the new leaf, and
 * otherwise fails. (3) B continues. B is the only client that deletes the key, so B must find it in both cases. B must
 * not post {CAS leaf LIVE -> DEAD, CAS slot -> tombstone} as one batch, because if A has replaced the leaf, the first
 * CAS fails and the second one removes the slot of the new leaf. A's acknowledged update would be lost, and B would
 * report that there was no such key. Fails if `never_replaces` (smart_open in kind.c) is true for VI leaves, because a
 * delete then uses this batch. */
TEST(an_update_without_a_redo_record_does_not_break_a_delete) {
    stage s;
    char old[VALUE + 1], new[VALUE + 1];
    memset(old, 'o', VALUE);
    memset(new, 'n', VALUE);
    old[VALUE] = new[VALUE] = 0;
    stage_open(&s, "smart", "value_size=200", "size=1M");
    stage_write(&s.b, "nk", old);
    fill_pool(&s.c, old);
    stage_start(&s.b, FAR_OP_DELETE, "nk", NULL);
    stage_stop_at(&s.b, (far_sim_match){.point = "smart:remove"});
    int updated = stage_do(&s.a, FAR_OP_UPDATE, "nk", new);
    assert_true(updated == 0 || updated == FAR_ERR_NO_MEMORY);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    assert_true(stage_reads(&s.c, "nk", NULL));
    stage_check(&s);
    stage_tear_down(&s);
}
