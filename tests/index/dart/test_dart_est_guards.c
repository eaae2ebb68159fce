/* Races of DART that need a guard which no other test covers. The comment of each test names the guard. */
#include "dart_est_rig.h"
#include "test.h"


static bool enough;


/* Main function of an actor that gets its key until `enough` is set, and after each get other keys, so that its
 * background work runs to the end. */
static void get_repeatedly(void *arg) {
    actor *by = arg;
    char byte;
    for (unsigned i = 0; i < 64 && !enough; i++) {
        by->result = stage_run(by);
        for (unsigned n = 0; n < 16; n++)
            far_get(by->session, by->index, "~", 1, &byte, 1, NULL);
    }
    by->ended = true;
}


/* Steps: (1) B is registering X: it has written a tentative entry and has seen that X is linked. (2) A replaces X and
 * finds B's word when it removes the entries of X. (3) B commits its entry. (4) A's CAS that clears B's word fails.
 * Proves that A reads the bucket again, so no entry names X when X is retired. Fails if skiptable/upkeep.c, remove_once
 * does not examine the word that its CAS returned. */
EST_RACE(entry_committed_while_it_is_removed) {
    stage s;
    dart_node x = set_up_node_without_entries(&s, sim);

    enough = false;
    prepare(&s.b, FAR_OP_GET, "abcde1", "");
    s.b.client = far_sim_start(s.b.pool->fabric, "b", get_repeatedly, &s.b);
    stage_stop_at(&s.b, (far_sim_match){.point = "dart:est_validated"});
    enough = true;
    start_with_background_until(&s.a, "a", FAR_OP_INSERT, "abcde4", "a", "dart:est_remove", 1);
    expect_result(&s.b, 0);
    assert_int_equal(count_entries_of(&s.c, x.addr), 1);
    resume_until(&s.a, "dart:retire", 1);
    assert_int_equal(count_entries_of(&s.c, x.addr), 0);
    expect_result(&s.a, 0);
    finish_background(&s);
    let_memory_be_reused(&s, &s.a);
    for (unsigned i = 0; i < 8; i++)
        expect_get(&s.b, "abcde1", "abcde1");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* A has replaced X, and the table still names X. B's scan could start at X. Proves that it does not, because the key
 * with which A has made the replacement would be missing. Fails if traversal_start.c, read_start_nodes does not require an
 * unfrozen slot. */
EST_RACE(scan_does_not_start_at_a_replaced_node) {
    stage s;
    set_up(&s, sim, "scan_cache=0,upkeep_batch=1,adjust=0,directory_bits=0");
    INSERT_KEYS(&s.a, "az", "abcde1", "abcde2", "abcde3");
    finish_background(&s);
    dart_node x = node_at(&s.a, "abcde1", 5);
    assert_true(x.addr && count_entries_of(&s.a, x.addr) > 0);
    start_until(&s.a, "a", FAR_OP_INSERT, "abcde0", "a", "dart:installed", 1);
    assert_true(count_entries_of(&s.c, x.addr) > 0);
    for (unsigned i = 0; i < 16; i++) {
        /* a scan with limit 1 starts at the deepest node that the table names; limit 0 means no limit */
        s.b.limit = i % 2;
        assert_int_equal(run_op(&s.b, FAR_OP_SCAN, "abcde", "abcde9"), i % 2 ? 1 : 4);
        expect_scanned(&s.b, i % 2 ? "abcde0" : "abcde0 abcde1 abcde2 abcde3");
    }
    expect_result(&s.a, 0);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* All fingerprints are equal, so the table names nodes of other prefixes and depths. Proves that a scan does not start
 * there. Fails if traversal_start.c, read_start_nodes does not compare prefixes. */
EST_RACE(scan_does_not_start_at_a_node_of_another_prefix) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,directory_bits=0,one_fingerprint=1");
    INSERT_KEYS(&s.a, "xz", "xbcdefgh1", "xbcdefgh2", "yz", "ycdefghi1", "ycdefghi2", "zz", "zdefghij1", "zdefghij2",
                "qz", "qrstu00001", "qrstu5");
    finish_background(&s);
    assert_true(count_entries_of(&s.a, node_at(&s.a, "xbcdefgh1", 8).addr) > 0);
    for (unsigned i = 0; i < 16; i++) {
        assert_int_equal(run_op(&s.b, FAR_OP_SCAN, "qrstu00000", "qrstu00009"), 1);
        expect_scanned(&s.b, "qrstu00001");
    }
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* A scan starts at an express node whose subtree has no key of the range. Proves that the scan continues directly after
 * the node's prefix. Fails if traversal_start.c, key_after_prefix returns a later key. */
EST_RACE(scan_continues_after_an_exhausted_node) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,directory_bits=0");
    INSERT_KEYS(&s.a, "az", "abcd1", "abcd2", "abcd3", "abce", "abcf");
    finish_background(&s);
    for (unsigned i = 0; i < 32; i++) {
        s.b.limit = 1;
        assert_int_equal(run_op(&s.b, FAR_OP_SCAN, "abcd9", "b"), 1);
        expect_scanned(&s.b, "abce");
    }
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* A deletes a key, so that the node has one leaf left, and A is about to replace the node by this leaf in the parent's
 * slot. Before A freezes the node, B replaces the leaf by an inner node that is much deeper. If this inner node took
 * the place of the node, the parent's slot would have to skip more bytes than fit into it. Proves that the node is not
 * removed. Fails if restructure.c, choose_replacement does not check the length. */
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
    INSERT_KEYS(&s.a, z, w);
    start_until(&s.a, "a", FAR_OP_DELETE, w, "", "dart:freeze", 1);
    assert_int_equal(run_op(&s.b, FAR_OP_INSERT, one, "1"), 0);
    assert_int_equal(run_op(&s.b, FAR_OP_INSERT, two, "2"), 0);
    assert_int_equal(run_op(&s.b, FAR_OP_DELETE, z, ""), 0);
    expect_result(&s.a, 0);
    expect_get(&s.c, one, "1");
    expect_get(&s.c, two, "2");
    expect_get(&s.c, z, NULL);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* ---- A session that is lost while it commits the entry of another session ---- */

typedef struct lost_session {
    far_index *index;
    far_session *session; /* the session that loses its connection, or NULL */
    dart_registration registration;
} lost_session;


static int register_and_lose_task(far_task *t, void *arg) {
    lost_session *l = arg;
    int err = far_pin_take(t);
    l->registration.epoch = far_epoch(t);
    if (err >= 0 && l->session)
        far_sim_lose(l->session->conn);
    if (err >= 0)
        dart_est_register_batch(t, l->index, &l->registration, 1);
    far_pin_drop(t);
    return err;
}


/* Session 1 of a process has claimed a node and written its tentative word. Session 2 of the same process commits this
 * word and is lost, so its CAS may still take effect later. If session 1 registered the node again, it would write the
 * same tentative word, and the late CAS would commit it without validation. Proves that session 1 keeps its claim, so
 * that it cannot register the node again. Fails if skiptable/upkeep.c, dart_est_register_batch releases the claim of
 * the node. */
EST_RACE(the_word_of_a_lost_session_is_not_written_again) {
    for (unsigned lost = 0; lost < 2; lost++) {
        stage s;
        far_session *other;
        set_up(&s, sim, "adjust=0,upkeep_batch=1,directory_bits=0");
        INSERT_KEYS(&s.a, SEVEN_KEYS("ab"));
        finish_background(&s);
        assert_int_equal(far_session_open(s.a.pool, &other), 0);
        dart_node_claims *work = &dart_est_of(s.a.index)->claims;
        dart_node node = node_at(&s.a, "aba", 2);
        unsigned client = s.a.session->id;
        uint64_t tentative = dart_est_tentative(client, s.a.session->generation, node.addr);
        lost_session l = {.index = s.a.index, .session = lost ? other : NULL};
        l.registration = (dart_registration){.node = node, .entry = dart_slot_addr(&node, 0), .tentative = tentative};
        l.registration.committed = dart_est_word(7, node.depth - 2, node.type, node.addr);
        assert_true(dart_est_claim_node(work, client, node.addr));
        far_session_call(other, FAR_STATS_OTHER, true, register_and_lose_task, &l);
        assert_int_equal(dart_est_claim_node(work, client, node.addr), !lost);
        far_session_close(other);
        expect_sound(&s, &s.b);
        tear_down(&s);
    }
}
