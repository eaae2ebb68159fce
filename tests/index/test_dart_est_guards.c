/* DART, named interleavings of guards that no other test missed when they were taken out. */
#include "dart_est_rig.h"


static bool enough;


/* Reads its key until it is enough, and each time others, in which its background work runs to the end. */
static void get_often(void *arg) {
    actor *by = arg;
    char byte;
    for (unsigned i = 0; i < 64 && !enough; i++) {
        by->result = stage_run(by);
        for (unsigned n = 0; n < 16; n++)
            far_get(by->session, by->index, "~", 1, &byte, 1, NULL);
    }
    by->ended = true;
}


/* b has a tentative entry of X in the table and has seen X linked. a replaces X, and on its way to retire it finds b's
 * word; before a takes it out, b commits it: the CAS of a fails, and a must look again. (It does not: the table names X
 * when it is retired.) */
EST_RACE(entry_committed_while_it_is_removed) {
    stage s;
    dart_node x = set_up_without_entries(&s, sim);

    enough = false;
    prepare(&s.b, FAR_OP_GET, "abcde1", "");
    s.b.client = far_sim_start(s.b.pool->fabric, "b", get_often, &s.b);
    stage_stop_at(&s.b, (far_sim_match){.point = "dart:est_validated"});
    enough = true;
    busy_to(&s.a, "a", FAR_OP_INSERT, "abcde4", "a", "dart:est_remove", 1);
    finish(&s.b, 0);
    assert_int_equal(names_of(&s.c, x.addr), 1);
    resume_to(&s.a, "dart:retire", 1);
    assert_int_equal(names_of(&s.c, x.addr), 0);
    finish(&s.a, 0);
    settle(&s);
    let_memory_go(&s, &s.a);
    for (unsigned i = 0; i < 8; i++)
        reads(&s.b, "abcde1", "abcde1");
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* a has put another node in the place of X, and the table still names X: a range that could begin there does not, what
 * is in X was true before. (It does when frozen slots are not looked at: abcde5 is missing.) */
EST_RACE(scan_does_not_begin_at_a_dead_node) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,directory_bits=0");
    LOAD(&s.a, "az", "abcde1", "abcde2", "abcde3");
    settle(&s);
    dart_node x = node_at(&s.a, "abcde1", 5);
    assert_true(x.addr && names_of(&s.a, x.addr) > 0);
    start_to(&s.a, "a", FAR_OP_INSERT, "abcde4", "a", "dart:installed", 1);
    assert_true(names_of(&s.c, x.addr) > 0);
    assert_int_equal(does(&s.c, FAR_OP_INSERT, "abcde5", "5"), 0);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(does(&s.b, FAR_OP_SCAN, "abcde0", "abcde9"), 5);
        gave(&s.b, "abcde1 abcde2 abcde3 abcde4 abcde5");
    }
    finish(&s.a, 0);
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* All fingerprints are the same: the table names nodes of other prefixes, and deeper ones. (A scan begins at one of
 * these when prefixes are not compared.) */
EST_RACE(scan_does_not_begin_at_a_node_of_another_prefix) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,directory_bits=0,one_fingerprint=1");
    LOAD(&s.a, "xz", "xbcdefgh1", "xbcdefgh2", "yz", "ycdefghi1", "ycdefghi2", "zz", "zdefghij1", "zdefghij2", "qz",
         "qrstu00001", "qrstu5");
    settle(&s);
    assert_true(names_of(&s.a, node_at(&s.a, "xbcdefgh1", 8).addr) > 0);
    for (unsigned i = 0; i < 16; i++) {
        assert_int_equal(does(&s.b, FAR_OP_SCAN, "qrstu00000", "qrstu00009"), 1);
        gave(&s.b, "qrstu00001");
    }
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* A scan that began at an express node below which nothing is left goes on right behind that node's prefix. (At a later
 * place: the next key is missing.) */
EST_RACE(scan_goes_on_behind_an_exhausted_node) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,directory_bits=0");
    LOAD(&s.a, "az", "abcd1", "abcd2", "abcd3", "abce", "abcf");
    settle(&s);
    for (unsigned i = 0; i < 32; i++) {
        s.b.limit = 1;
        assert_int_equal(does(&s.b, FAR_OP_SCAN, "abcd9", "b"), 1);
        gave(&s.b, "abce");
    }
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* A node on a long path, from which a has deleted a key: one leaf is left, to be put into the slot above. Before a has
 * frozen it, that leaf goes too, and another node comes below, over a long path: the two paths do not fit into one
 * slot, and the node stays. (It does not when the length is not looked at: the slot names no node.) */
RACE(paths_too_long_for_one_slot) {
    stage s;
    char z[80], w[80], one[200], two[200];
    memset(z, 'p', 60);
    memcpy(w, z, 60);
    strcpy(z + 60, "z");
    strcpy(w + 60, "w");
    memcpy(one, z, 60);
    memset(one + 60, 'q', 120);
    memcpy(two, one, 180);
    strcpy(one + 180, "1");
    strcpy(two + 180, "2");
    set_up(&s, sim, options);
    LOAD(&s.a, z, w);
    start_to(&s.a, "a", FAR_OP_DELETE, w, "", "dart:freeze", 1);
    assert_int_equal(does(&s.b, FAR_OP_INSERT, one, "1"), 0);
    assert_int_equal(does(&s.b, FAR_OP_INSERT, two, "2"), 0);
    assert_int_equal(does(&s.b, FAR_OP_DELETE, z, ""), 0);
    finish(&s.a, 0);
    reads(&s.c, one, "1");
    reads(&s.c, two, "2");
    reads(&s.c, z, NULL);
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* ---- A session that is lost while it grants the wish of another ---- */

typedef struct losing {
    far_index *index;
    far_session *session; /* that loses its connection; NULL: none */
    dart_wish wish;
} losing;


static int grant_and_lose_task(far_task *t, void *arg) {
    losing *l = arg;
    int err = far_pin_take(t);
    l->wish.epoch = far_epoch(t);
    if (err >= 0 && l->session)
        far_sim_lose(l->session->conn);
    if (err >= 0)
        dart_est_grant(t, l->index, &l->wish, 1);
    far_pin_drop(t);
    return err;
}


/* One session's tentative word is to be committed by another of the same process, which is lost: its CAS may still land,
 * so the word must not come back, and its owner does no more work on that node. (The work is ended whatever became of
 * the CAS.) */
EST_RACE(the_word_of_a_lost_granter_does_not_come_back) {
    for (unsigned lost = 0; lost < 2; lost++) {
        stage s;
        far_session *other;
        set_up(&s, sim, "adjust=0,upkeep_batch=1,directory_bits=0");
        LOAD(&s.a, SEVEN("ab"));
        settle(&s);
        assert_int_equal(far_session_open(s.a.pool, &other), 0);
        dart_outstanding *work = &dart_est_of(s.a.index)->outstanding;
        dart_node node = node_at(&s.a, "aba", 2);
        unsigned client = s.a.session->id;
        uint64_t tentative = dart_est_tentative(client, s.a.session->generation, node.addr);
        losing l = {.index = s.a.index, .session = lost ? other : NULL};
        l.wish = (dart_wish){.node = node, .entry = dart_slot_addr(&node, 0), .tentative = tentative};
        l.wish.committed = dart_est_word(7, node.depth - 2, node.type, node.addr);
        assert_true(dart_est_begin_work(work, client, node.addr));
        far_session_call(other, FAR_STATS_OTHER, true, grant_and_lose_task, &l);
        assert_int_equal(dart_est_begin_work(work, client, node.addr), !lost);
        far_session_close(other);
        is_sound(&s, &s.b);
        tear_down(&s);
    }
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entry_committed_while_it_is_removed),
        cmocka_unit_test(scan_does_not_begin_at_a_dead_node),
        cmocka_unit_test(scan_does_not_begin_at_a_node_of_another_prefix),
        cmocka_unit_test(scan_goes_on_behind_an_exhausted_node),
        cmocka_unit_test(paths_too_long_for_one_slot),
        cmocka_unit_test(the_word_of_a_lost_granter_does_not_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
