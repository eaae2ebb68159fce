/* SMART, named interleavings: inserts of branch nodes, size hints, and REPLACE (the replacement of a node). The numbers
 * H1 to H31 refer to docs/races/smart.md. Each test fails if its guard is removed. */
#include "smart_rig.h"
#include "test.h"


/* Race H5. A merges a node away, so that its child takes its place and the slot above skips more bytes. A stops at each
 * step of the merge in turn. B, through its cache, and C, through the root, find all keys at each step. */
TEST(merge_over_a_prefix) {
    static const char *const points[] = {"smart:removed", "smart:merge", "smart:frozen", "smart:replaced"};
    for (unsigned i = 0; i < 4; i++) {
        open_stage(EAGER, NULL);
        put_all(a, "nxaaa nxaab nxb nba");
        assert_true(stage_reads(b, "nxaaa", V1) && stage_reads(b, "nxb", V1));
        run_until_point(a, points[i], FAR_OP_DELETE, "nxb", NULL);
        assert_true(stage_reads(b, "nxaaa", V1) && stage_reads(b, "nxaab", V1) && stage_reads(b, "nxb", NULL));
        assert_true(stage_reads(c, "nxaaa", V1) && stage_reads(c, "nxaab", V1) && stage_reads(c, "nxb", NULL));
        assert_int_equal(stage_do(c, FAR_OP_INSERT, "nxac", V2), 0);
        stage_finish(a);
        assert_true(stage_reads(a, "nxaab", V1) && stage_reads(b, "nxac", V2));
        stage_close(&s);
    }
}


/* Race H8. B's cache names a leaf. A inserts keys next to this leaf, with new nodes above it. B must find the new keys,
 * although its cache leads to another key's leaf. The guard is find_from_cached_node (find_cached.c): a get may report
 * a key as absent only after it has READ the deciding node. */
TEST(stale_negative_after_split) {
    open_stage("", NULL);
    put_all(a, "naaa nbaa");
    assert_true(stage_reads(b, "naaa", V1));
    assert_int_equal(stage_do(a, FAR_OP_INSERT, "naab", V2), 0);
    assert_true(stage_reads(b, "naab", V2));
    /* This insert makes a node above the node of the two keys. */
    assert_int_equal(stage_do(a, FAR_OP_INSERT, "nabb", V3), 0);
    assert_true(stage_reads(b, "nabb", V3));
    stage_close(&s);
}


/* Race H8. B's cache names a leaf, and A fails directly after the CAS that links a new node above this leaf. B must
 * find A's key. */
TEST(stale_negative_after_crashed_splitter) {
    open_stage("", NULL);
    put_all(b, "naaa nbaa");
    assert_true(stage_reads(b, "naaa", V1));
    run_until_point(a, "smart:branched", FAR_OP_INSERT, "naab", V2);
    stage_kill(&s, a);
    assert_true(stage_reads(b, "naab", V2));
    stage_close(&s);
}


/* Race H9. A inserts a node above a child and stops after the CAS. B deletes A's key, so that the new node is merged
 * away. A continues. The header of the child must be unchanged, and all keys found. Fails if branching shortens the
 * prefix of the child. */
TEST(late_shrink) {
    static const char *const options[] = {EAGER, EAGER ",layout=paper"};
    uint32_t bytes[] = {128, 2088};
    for (unsigned i = 0; i < 2; i++) {
        uint64_t header[SMART_HEADER / 8];
        open_stage(options[i], NULL);
        far_sim_on_verb(s.world, note_written, &bytes[i]);
        put_all(a, "nxaaaa nxaaba");
        const uint64_t *child = memory_of(written);
        put_all(a, "nba");
        memcpy(header, child, SMART_HEADER);
        run_until_point(a, "smart:branched", FAR_OP_INSERT, "nxb", V2);
        /* After this delete the new node is merged away. */
        assert_int_equal(stage_do(b, FAR_OP_DELETE, "nxb", NULL), 0);
        stage_finish(a);
        assert_memory_equal(child, header, SMART_HEADER);
        assert_true(stage_reads(b, "nxaaaa", V1) && stage_reads(c, "nxaaba", V1) && stage_reads(a, "nxb", NULL));
        assert_int_equal(stage_do(c, FAR_OP_INSERT, "nxab", V3), 0); /* The new key differs within the same prefix. */
        assert_true(stage_reads(b, "nxaaaa", V1) && stage_reads(a, "nxaaba", V1) && stage_reads(b, "nxab", V3));
        far_sim_on_verb(s.world, NULL, NULL);
        stage_close(&s);
    }
}


/* Race H10. A binds a slot beyond the size hint and stops before it raises the hint. B updates A's key, and then
 * inserts another key beyond the hint in the same way. C, whose cache is empty, finds both keys. The guard is in
 * smart_look_up_slot (find.c), which READs the list up to the first unbound slot. */
TEST(append_invisible_same_partial) {
    open_stage("", NULL);
    put_all(a, "naa nba nca nda");
    run_until_point(a, "smart:linked", FAR_OP_INSERT, "nea", V2);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nea", V3), 0);
    run_until_point(b, "smart:linked", FAR_OP_INSERT, "nfa", V2);
    /* The last key is read first, because C's cache is still empty then. */
    assert_true(stage_reads(c, "nfa", V2) && stage_reads(c, "nea", V3));
    stage_finish(a);
    stage_finish(b);
    stage_close(&s);
}


/* Race H11. A preallocated node is written in recycled memory. The children that the earlier node had there must not be
 * visible. Fails if only the beginning of a new node is written. */
TEST(dirty_tail) {
    uint32_t bytes = 2088;
    open_stage(EAGER ",layout=paper", NULL);
    far_sim_on_verb(s.world, note_written, &bytes);
    put_all(a, "nxaa nxba nxca nxda nxea nxfa");
    far_addr first = written;
    for (char key[] = "nxaa"; key[2] <= 'f'; key[2]++)
        stage_delete(a, key);
    stage_free_retired(&s);
    put_all(a, "nxka nxla");
    assert_int_equal(written, first);
    for (char key[] = "nxaa"; key[2] <= 'f'; key[2]++)
        assert_true(stage_reads(c, key, NULL));
    put_all(b, "nxma nxca");
    assert_true(stage_scans(c, "n", "nxca nxka nxla nxma"));
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
}


/* Race H12. A is about to link a new node by a CAS of a slot. B raises the size hint in that slot's word. A's CAS
 * fails, and A repeats its insert (smart_put in write_insert.c). */
TEST(hint_vs_commit) {
    open_stage("", NULL);
    put_all(a, "nxaa nxab nxac nxad nba");
    run_until_point(a, "smart:branch", FAR_OP_INSERT, "nxb", V2);
    /* These slots are beyond the first READ, so the inserts raise the hint in the slot above. */
    put_all(b, "nxae nxaf");
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(stage_scans(c, "n", "nba nxaa nxab nxac nxad nxae nxaf nxb"));
    stage_close(&s);
}


/* Races H12 and H13. A and B have both frozen the same full list to grow it. C completes the growth with its own key.
 * Then B and A continue. All keys must be present. */
TEST(two_helpers) {
    open_stage(EAGER, NULL);
    put_all(a, "naa nba nca nda nea nfa nga nha nia nja nka nla nAa"); /* These puts make the list full. */
    run_until_point(a, "smart:frozen", FAR_OP_INSERT, "nma", V2);
    run_until_point(b, "smart:frozen", FAR_OP_INSERT, "nna", V3);
    assert_int_equal(stage_do(c, FAR_OP_INSERT, "noa", V1), 0);
    stage_finish(b);
    stage_finish(a);
    assert_true(stage_reads(c, "nma", V2) && stage_reads(c, "nna", V3) && stage_reads(c, "noa", V1) &&
                stage_reads(c, "nla", V1));
    stage_close(&s);
}


/* A's get of an absent key has READ the slot above a full list. B inserts the key, so that a larger list takes the
 * place of the full list. C, a session of A's compute node, gets the same key, and its get joins A's get by RDWC. Then
 * A READs the old list. C must find the key, because C's get was invoked after B's insert had ended. Fails if
 * smart_look_up_slot (find.c) reports a key that is not in a full list as absent although the words of the list are
 * frozen. */
TEST(a_replaced_full_list_proves_no_absence) {
    open_stage("cache=off", NULL);
    a->pool->rdwc = far_rdwc_new(0);
    stage_actor later = {.pool = a->pool, .index = a->index};
    assert_int_equal(far_session_open(later.pool, &later.session), 0);
    put_all(c, "naa nba nca nda nea nfa nga nha nia nja nka nla nAa"); /* These puts make the list full. */
    /* This get makes A's session active. Otherwise the next get of A would begin with READs of the epoch, and the test
     * would hold one of these instead of the READ of the slot. */
    assert_true(stage_reads(a, "nma", NULL));
    stage_start(a, FAR_OP_GET, "nma", NULL);
    far_sim_hold *slot = far_sim_hold_completion(a->client, (far_sim_match){.kind = FAR_SIM_READ});
    for (unsigned i = 0; i < 100 && !far_sim_reached(slot); i++)
        far_sim_run_client(a->client);
    assert_true(far_sim_reached(slot));
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nma", V2), 0);
    stage_start(&later, FAR_OP_GET, "nma", NULL);
    far_sim_run_for(s.world, 100000); /* C's get waits for the get of A */
    assert_false(later.ended || a->ended);
    far_sim_release(slot);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_int_equal(later.result, 0);
    assert_memory_equal(later.value, V2, 8);
    far_session_close(later.session);
    stage_close(&s);
}


/* Race H12. A has frozen node "nxa". B inserts a node between it and its parent. A continues. All keys are present. */
TEST(branch_over_frozen) {
    open_stage(EAGER, NULL);
    put_all(a, "nxaaa nxaba nbaaa");
    run_until_point(a, "smart:frozen", FAR_OP_DELETE, "nxaaa", NULL); /* node "nxa" is frozen */
    /* The new node is between node "nxa" and its parent. */
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nxbaa", V2), 0);
    stage_finish(a);
    assert_true(stage_reads(b, "nxbaa", V2) && stage_reads(b, "nxaba", V1) && stage_reads(b, "nxaaa", NULL));
    stage_close(&s);
}


/* Race H13. A has frozen node "nx", and B its parent. A continues first, although the slot above its node is frozen; in
 * the second round B continues as soon as A has replaced a node. Fails if smart_find (find.c) does not complete the
 * upper replacement first. */
TEST(parent_frozen) {
    for (unsigned i = 0; i < 2; i++) {
        open_stage(EAGER, NULL);
        put_all(a, "nxaa nxba nbaa");
        run_until_point(a, "smart:frozen", FAR_OP_DELETE, "nxaa", NULL); /* node "nx" is frozen */
        run_until_point(b, "smart:frozen", FAR_OP_DELETE, "nbaa", NULL); /* its parent is frozen too */
        if (i == 1) {
            stage_stop_at(a, (far_sim_match){.point = "smart:replaced"});
            stage_finish(b);
        }
        stage_finish(a);
        if (i == 0)
            stage_finish(b);
        assert_true(stage_reads(c, "nxba", V1) && stage_reads(c, "nbaa", NULL) && stage_reads(c, "nxaa", NULL));
        stage_close(&s);
    }
}


/* Races H21 and H22. A updates a value to other lengths again and again, and stops before the slot is changed. B's
 * cached word names the first leaf. B must follow the chain to leaves of other sizes, and notice when the memory is
 * reused. */
TEST(leaf_length_changes_under_a_cache) {
    char longer[2000];
    memset(longer, 'l', sizeof(longer));
    longer[sizeof(longer) - 1] = 0;
    const char *values[] = {LONG, longer, V2, longer, LONG, V3};
    open_stage("", NULL);
    put_all(a, "naa nba");
    assert_true(stage_reads(b, "naa", V1));
    for (unsigned i = 0; i < 6; i++) {
        run_until_point(a, "smart:leaf_replaced", FAR_OP_UPDATE, "naa", values[i]);
        assert_true(stage_reads(b, "naa", values[i]));
        stage_finish(a);
        if (i % 2)
            stage_free_retired(&s);
        assert_true(stage_reads(b, "naa", values[i]) && stage_reads(c, "naa", values[i]));
    }
    stage_close(&s);
}


/* Race H20. Keys with a common prefix of 209 bytes need few round trips, because a prefix has no chain of nodes. A key
 * that differs in the middle of that prefix can be inserted. */
TEST(prefix_chain) {
    char one[220], two[220], three[220];
    far_stats before, after;
    open_stage("cache=off", NULL);
    memset(one, 'n', sizeof(one));
    one[210] = 0;
    memcpy(two, one, sizeof(one));
    memcpy(three, one, sizeof(one));
    two[209] = 'o';
    three[100] = 'o'; /* The key differs in the middle of the common prefix, in a byte that no node header contains. */
    assert_int_equal(stage_do(a, FAR_OP_PUT, one, V1), 0);
    assert_int_equal(stage_do(a, FAR_OP_PUT, two, V2), 0);
    assert_int_equal(stage_do(a, FAR_OP_PUT, three, V3), 0);
    far_session_stats(b->session, &before);
    assert_true(stage_reads(b, one, V1));
    far_session_stats(b->session, &after);
    assert_true(after.round_trips - before.round_trips <= 4);
    assert_true(stage_reads(b, two, V2) && stage_reads(b, three, V3));
    one[100] = 'a';
    assert_int_equal(stage_do(b, FAR_OP_SCAN, one, NULL), 3);
    stage_close(&s);
}


/* Race H20. Keys that are prefixes of other keys, and keys that end with zero bytes, are different keys, and a scan
 * gives them in order. Fails if the partial key for the end of a key is that of a zero byte (smart_part, layout.h). */
TEST(prefixes_and_zero_bytes_at_the_end) {
    static const struct {
        const char *bytes;
        size_t length;
    } keys[] = {{"n", 1}, {"n\0", 2}, {"n\0\0", 3}, {"n\0n", 3}, {"nn", 2}, {"nn\0", 3}};
    enum { COUNT = sizeof(keys) / sizeof(keys[0]) };
    open_stage("", NULL);
    for (uint64_t i = 0; i < COUNT; i++)
        assert_int_equal(far_insert(a->session, a->index, keys[i].bytes, keys[i].length, &i, sizeof(i)), 0);
    for (unsigned gone = 0; gone <= 2; gone++) {
        for (uint64_t i = 0, found; i < COUNT; i++)
            if (far_get(b->session, b->index, keys[i].bytes, keys[i].length, &found, sizeof(found), NULL) < 0)
                assert_true(i < gone);
            else
                assert_true(i >= gone && found == i);
        assert_int_equal(stage_do(c, FAR_OP_SCAN, "n", NULL), (int)(COUNT - gone));
        for (unsigned i = 0; i < c->pairs; i++)
            assert_memory_equal(c->keys[i], keys[gone + i].bytes, keys[gone + i].length);
        assert_int_equal(far_delete(a->session, a->index, keys[gone].bytes, keys[gone].length), 0);
    }
    stage_close(&s);
}


/* Race H27. A's new node is on another memory node than the slot, and its WRITE is held back. B must see the tree as it
 * was. Fails if the WRITE is not waited for before the CAS (insert_branch in write_insert.c). */
TEST(batch_cross_node) {
    for (char second = 'a'; second < 'i'; second++) { /* nodes are spread, so some nodes are on another memory node */
        char one[] = "n?aa", two[] = "n?ab";
        open_stage("", NULL);
        one[1] = two[1] = second;
        put_all(a, "nzaa");
        assert_int_equal(stage_do(a, FAR_OP_PUT, one, V1), 0);
        run_until_point(a, "smart:branch", FAR_OP_INSERT, two, V2); /* the allocator's WRITEs are complete */
        far_sim_resume(a->client);
        far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_WRITE});
        far_sim_run_client(a->client);
        assert_true(stage_reads(b, one, V1));
        assert_true(stage_reads(b, two, NULL));
        far_sim_release(hold);
        stage_finish(a);
        assert_true(stage_reads(b, two, V2));
        stage_close(&s);
    }
}


static int count_problem(void *ctx, const char *what) {
    (void)what;
    (*(int *)ctx)++;
    return 0;
}


static int count_problems(void) {
    int count = 0;
    assert_true(far_index_check(b->session, b->index, count_problem, &count) >= 0);
    return count;
}


/* Check reports a damaged key, a wrong checksum, two slots for one partial key, a word that is not sound, and a wrong
 * depth. */
TEST(check_finds_damage) {
    uint32_t leaf_bytes = 40, node_bytes = 128;
    open_stage("", NULL);
    put_all(a, "naa");
    far_sim_on_verb(s.world, note_written, &node_bytes);
    put_all(a, "nba");
    uint64_t *node = memory_of(written);
    far_sim_on_verb(s.world, note_written, &leaf_bytes);
    put_all(a, "nca");
    uint64_t *leaf = memory_of(written);
    far_sim_on_verb(s.world, NULL, NULL);
    assert_int_equal(count_problems(), 0);
    leaf[4] ^= 1 << 16; /* damages a byte of the key */
    assert_true(count_problems() > 0);
    leaf[4] ^= 1 << 16;
    leaf[1] ^= 1; /* damages the checksum */
    assert_true(count_problems() > 0);
    leaf[1] ^= 1;
    node[6] = node[5]; /* makes two slots for one partial key */
    assert_true(count_problems() > 0);
    node[6] = 0;
    node[5] |= 1ull << 63; /* sets a bit that no slot word has */
    assert_true(count_problems() > 0);
    node[5] &= ~(1ull << 63);
    node[2] ^= 3; /* damages the depth of the node */
    assert_true(count_problems() > 0);
    node[2] ^= 3;
    stage_close(&s);
}


static int found_in_between;


static void run_check(void *actor) {
    stage_actor *who = actor;
    who->result = far_index_check(who->session, who->index, count_problem, &found_in_between);
    who->ended = true;
}


/* B's check READs the first half of a list before A binds two slots, and the second half after that. So it sees an
 * unbound slot before a bound one, and must not report this as a problem. The guard is check_gap (check.c), which READs
 * the unbound slot again before it reports. */
TEST(check_during_inserts_finds_no_problem) {
    uint32_t node_bytes = 128;
    open_stage("", NULL);
    put_all(a, "naa");
    far_sim_on_verb(s.world, note_written, &node_bytes);
    put_all(a, "nba");
    far_addr node = written;
    far_sim_on_verb(s.world, NULL, NULL);
    unsigned first = (64 - node % 64 - SMART_HEADER) / 8; /* slots in the first tearing granule */
    char key[] = "nca";
    for (unsigned i = 2; i + 1 < first; i++, key[1]++)
        put_all(a, key);
    found_in_between = 0;
    b->ended = false;
    stage_start_main(b, "b", run_check);
    far_sim_hold *look = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = node, .to = node + 128});
    assert_true(far_sim_hold_units(look) >= 2);
    assert_int_equal(far_sim_release_units(look, (const uint32_t[]){0}, 1), 0);
    for (unsigned i = 0; i < 2; i++, key[1]++)
        put_all(a, key);
    far_sim_release(look);
    stage_finish(b);
    assert_int_equal(found_in_between, 0);
    stage_close(&s);
}
