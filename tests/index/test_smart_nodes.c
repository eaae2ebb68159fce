/* SMART, named interleavings: splits, hints, REPLACE. Each drives a race that the design rules out (H1-H31
 * there) by hand; what fails when the guarding line is taken out is said at each test. */
#include "smart_rig.h"


/* H5. A node is merged away and its child comes up, with more of the prefix between: no step of that leaves a gap to
 * those who come through the cache, or through the root. */
static void merge_over_a_prefix(void **state) {
    (void)state;
    static const char *const points[] = {"smart:removed", "smart:merge", "smart:frozen", "smart:replaced"};
    for (unsigned i = 0; i < 4; i++) {
        up(EAGER, NULL);
        put_all(a, "nxaaa nxaab nxb nba");
        assert_true(stage_reads(b, "nxaaa", V1) && stage_reads(b, "nxb", V1));
        stand(a, points[i], FAR_OP_DELETE, "nxb", NULL);
        assert_true(stage_reads(b, "nxaaa", V1) && stage_reads(b, "nxaab", V1) && stage_reads(b, "nxb", NULL));
        assert_true(stage_reads(c, "nxaaa", V1) && stage_reads(c, "nxaab", V1) && stage_reads(c, "nxb", NULL));
        assert_int_equal(stage_do(c, FAR_OP_INSERT, "nxac", V2), 0);
        stage_finish(a);
        assert_true(stage_reads(a, "nxaab", V1) && stage_reads(b, "nxac", V2));
        stage_close(&s);
    }
}


/* H8. A leaf of another key, found through the cache, proves nothing. */
static void stale_negative_after_split(void **state) {
    (void)state;
    up("", NULL);
    put_all(a, "naaa nbaa");
    assert_true(stage_reads(b, "naaa", V1));
    assert_int_equal(stage_do(a, FAR_OP_INSERT, "naab", V2), 0);
    assert_true(stage_reads(b, "naab", V2));
    assert_int_equal(stage_do(a, FAR_OP_INSERT, "nabb", V3), 0); /* above the node of the two */
    assert_true(stage_reads(b, "nabb", V3));
    stage_close(&s);
}


static void stale_negative_after_crashed_splitter(void **state) {
    (void)state;
    up("", NULL);
    put_all(b, "naaa nbaa");
    assert_true(stage_reads(b, "naaa", V1));
    stand(a, "smart:branched", FAR_OP_INSERT, "naab", V2);
    stage_kill(&s, a);
    assert_true(stage_reads(b, "naab", V2));
    stage_close(&s);
}


/* H9. A split does not touch what it splits over, neither with its CAS nor later: when the key that split is gone
 * before the splitter is through, nothing is left of it. Fails when the splitter shortens the prefix of the child. */
static void late_shrink(void **state) {
    (void)state;
    static const char *const options[] = {EAGER, EAGER ",layout=paper"};
    uint32_t bytes[] = {128, 2088};
    for (unsigned i = 0; i < 2; i++) {
        uint64_t header[SMART_HEADER / 8];
        up(options[i], NULL);
        far_sim_on_verb(s.world, note_written, &bytes[i]);
        put_all(a, "nxaaaa nxaaba");
        const uint64_t *child = memory_of(written);
        put_all(a, "nba");
        memcpy(header, child, SMART_HEADER);
        stand(a, "smart:branched", FAR_OP_INSERT, "nxb", V2);
        assert_int_equal(stage_do(b, FAR_OP_DELETE, "nxb", NULL), 0); /* the new node is merged away */
        stage_finish(a);
        assert_memory_equal(child, header, SMART_HEADER);
        assert_true(stage_reads(b, "nxaaaa", V1) && stage_reads(c, "nxaaba", V1) && stage_reads(a, "nxb", NULL));
        assert_int_equal(stage_do(c, FAR_OP_INSERT, "nxab", V3), 0); /* parts the same prefix */
        assert_true(stage_reads(b, "nxaaaa", V1) && stage_reads(a, "nxaaba", V1) && stage_reads(b, "nxab", V3));
        far_sim_on_verb(s.world, NULL, NULL);
        stage_close(&s);
    }
}


/* H10. A slot behind the READ that the hint asks for is found before the hint is mended. */
static void append_invisible_same_partial(void **state) {
    (void)state;
    up("", NULL);
    put_all(a, "naa nba nca nda");
    stand(a, "smart:linked", FAR_OP_INSERT, "nea", V2);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nea", V3), 0);
    stand(b, "smart:linked", FAR_OP_INSERT, "nfa", V2);
    assert_true(stage_reads(c, "nfa", V2) && stage_reads(c, "nea", V3)); /* the last one first: nothing is cached */
    stage_finish(a);
    stage_finish(b);
    stage_close(&s);
}


/* H11. A preallocated node in used memory: what an earlier one had behind its children is not there. Fails when only
 * the beginning of a new node is written. */
static void dirty_tail(void **state) {
    (void)state;
    uint32_t bytes = 2088;
    up(EAGER ",layout=paper", NULL);
    far_sim_on_verb(s.world, note_written, &bytes);
    put_all(a, "nxaa nxba nxca nxda nxea nxfa");
    far_addr first = written;
    for (char key[] = "nxaa"; key[2] <= 'f'; key[2]++)
        stage_delete(a, key);
    stage_age(&s);
    put_all(a, "nxka nxla");
    assert_int_equal(written, first);
    for (char key[] = "nxaa"; key[2] <= 'f'; key[2]++)
        assert_true(stage_reads(c, key, NULL));
    put_all(b, "nxma nxca");
    assert_true(stage_scans(c, "n", "nxca nxka nxla nxma"));
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
}


/* H12. The hint in a slot word changes under a split of that slot: its CAS fails, and it is done again. */
static void hint_vs_commit(void **state) {
    (void)state;
    up("", NULL);
    put_all(a, "nxaa nxab nxac nxad nba");
    stand(a, "smart:branch", FAR_OP_INSERT, "nxb", V2);
    put_all(b, "nxae nxaf"); /* beyond what is READ at first: the word above says so afterwards */
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(stage_scans(c, "n", "nba nxaa nxab nxac nxad nxae nxaf nxb"));
    stage_close(&s);
}


/* H12, H13. */
static void two_helpers(void **state) {
    (void)state;
    up(EAGER, NULL);
    put_all(a, "naa nba nca nda nea nfa nga nha nia nja nka nla nAa"); /* full */
    stand(a, "smart:frozen", FAR_OP_INSERT, "nma", V2);
    stand(b, "smart:frozen", FAR_OP_INSERT, "nna", V3);
    assert_int_equal(stage_do(c, FAR_OP_INSERT, "noa", V1), 0);
    stage_finish(b);
    stage_finish(a);
    assert_true(stage_reads(c, "nma", V2) && stage_reads(c, "nna", V3) && stage_reads(c, "noa", V1) &&
                stage_reads(c, "nla", V1));
    stage_close(&s);
}


/* A get of an absent key stands between the READ of the slot above a full list and the READ of the list. A foreign
 * insert replaces the list by one with the key. Who joins the get after that must find the key: a full list whose words
 * are frozen proves nothing for the time when it was READ. Fails when the word that stands for a full list has no F. */
static void a_full_list_that_is_gone_serves_nobody_who_came_later(void **state) {
    (void)state;
    up("cache=off", NULL);
    a->pool->rdwc = far_rdwc_new(0);
    stage_actor later = {.pool = a->pool, .index = a->index};
    assert_int_equal(far_session_open(later.pool, &later.session), 0);
    put_all(c, "naa nba nca nda nea nfa nga nha nia nja nka nla nAa"); /* full */
    assert_true(stage_reads(a, "nma", NULL)); /* a is awake: its next READs are those of the search */
    stage_start(a, FAR_OP_GET, "nma", NULL);
    far_sim_hold *slot = far_sim_hold_completion(a->client, (far_sim_match){.kind = FAR_SIM_READ});
    for (unsigned i = 0; i < 100 && !far_sim_reached(slot); i++)
        far_sim_run_client(a->client);
    assert_true(far_sim_reached(slot));
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nma", V2), 0);
    stage_start(&later, FAR_OP_GET, "nma", NULL);
    far_sim_run_for(s.world, 100000); /* it waits for the other */
    assert_false(later.ended || a->ended);
    far_sim_release(slot);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_int_equal(later.result, 0);
    assert_memory_equal(later.value, V2, 8);
    far_session_close(later.session);
    stage_close(&s);
}


static void branch_over_frozen(void **state) {
    (void)state;
    up(EAGER, NULL);
    put_all(a, "nxaaa nxaba nbaaa");
    stand(a, "smart:frozen", FAR_OP_DELETE, "nxaaa", NULL);       /* node "nxa" is frozen */
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nxbaa", V2), 0); /* between it and its parent */
    stage_finish(a);
    assert_true(stage_reads(b, "nxbaa", V2) && stage_reads(b, "nxaba", V1) && stage_reads(b, "nxaaa", NULL));
    stage_close(&s);
}


static void parent_frozen(void **state) {
    (void)state;
    up(EAGER, NULL);
    put_all(a, "nxaa nxba nbaa");
    stand(a, "smart:frozen", FAR_OP_DELETE, "nxaa", NULL); /* node "nx" is frozen */
    stand(b, "smart:frozen", FAR_OP_DELETE, "nbaa", NULL); /* its parent, too */
    stage_finish(a);
    stage_finish(b);
    assert_true(stage_reads(c, "nxba", V1) && stage_reads(c, "nbaa", NULL) && stage_reads(c, "nxaa", NULL));
    stage_close(&s);
}


/* H21, H22. The size of a leaf comes with its address: a cached word leads from the leaf it names to the ones that took
 * its place, of whatever size, and when its memory is another's it is found out. */
static void leaf_length_changes_under_a_cache(void **state) {
    (void)state;
    char longer[2000];
    memset(longer, 'l', sizeof(longer));
    longer[sizeof(longer) - 1] = 0;
    const char *values[] = {LONG, longer, V2, longer, LONG, V3};
    up("", NULL);
    put_all(a, "naa nba");
    assert_true(stage_reads(b, "naa", V1));
    for (unsigned i = 0; i < 6; i++) {
        stand(a, "smart:leaf_replaced", FAR_OP_UPDATE, "naa", values[i]);
        assert_true(stage_reads(b, "naa", values[i]));
        stage_finish(a);
        if (i % 2)
            stage_age(&s);
        assert_true(stage_reads(b, "naa", values[i]) && stage_reads(c, "naa", values[i]));
    }
    stage_close(&s);
}


/* H20. A long common prefix is no chain of nodes. */
static void prefix_chain(void **state) {
    (void)state;
    char one[220], two[220], three[220];
    far_stats before, after;
    up("cache=off", NULL);
    memset(one, 'n', sizeof(one));
    one[210] = 0;
    memcpy(two, one, sizeof(one));
    memcpy(three, one, sizeof(one));
    two[209] = 'o';
    three[100] = 'o'; /* parts in the middle of a gap that no tail covers */
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


/* H27. What lies on another memory node than the slot is written, and waited for, before the slot names it. */
static void batch_cross_node(void **state) {
    (void)state;
    for (char second = 'a'; second < 'i'; second++) { /* new nodes are spread: some lie elsewhere */
        char one[] = "n?aa", two[] = "n?ab";
        up("", NULL);
        one[1] = two[1] = second;
        put_all(a, "nzaa");
        assert_int_equal(stage_do(a, FAR_OP_PUT, one, V1), 0);
        stage_start(a, FAR_OP_INSERT, two, V2);
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


static int problems(void) {
    int count = 0;
    assert_true(far_index_check(b->session, b->index, count_problem, &count) >= 0);
    return count;
}


static void check_finds_damage(void **state) {
    (void)state;
    uint32_t leaf_bytes = 40, node_bytes = 128;
    up("", NULL);
    put_all(a, "naa");
    far_sim_on_verb(s.world, note_written, &node_bytes);
    put_all(a, "nba");
    uint64_t *node = memory_of(written);
    far_sim_on_verb(s.world, note_written, &leaf_bytes);
    put_all(a, "nca");
    uint64_t *leaf = memory_of(written);
    far_sim_on_verb(s.world, NULL, NULL);
    assert_int_equal(problems(), 0);
    leaf[4] ^= 1 << 16; /* the key */
    assert_true(problems() > 0);
    leaf[4] ^= 1 << 16;
    leaf[1] ^= 1; /* the checksum */
    assert_true(problems() > 0);
    leaf[1] ^= 1;
    node[6] = node[5]; /* a partial key twice */
    assert_true(problems() > 0);
    node[6] = 0;
    node[5] |= 1ull << 63; /* no word at all */
    assert_true(problems() > 0);
    node[5] &= ~(1ull << 63);
    node[2] ^= 3; /* the depth */
    assert_true(problems() > 0);
    node[2] ^= 3;
    stage_close(&s);
}


static int found_in_between;


static void check_in_between(void *actor) {
    stage_actor *who = actor;
    who->result = far_index_check(who->session, who->index, count_problem, &found_in_between);
    who->ended = true;
}


/* A check READs the first half of a list before two slots are bound, the second half after it: of the slots that it sees
 * the last one of the first half is free, the first one of the second half is not. */
static void check_beside_inserts_has_no_problem(void **state) {
    (void)state;
    uint32_t node_bytes = 128;
    up("", NULL);
    put_all(a, "naa");
    far_sim_on_verb(s.world, note_written, &node_bytes);
    put_all(a, "nba");
    far_addr node = written;
    far_sim_on_verb(s.world, NULL, NULL);
    unsigned first = (64 - node % 64 - SMART_HEADER) / 8; /* slots in the first unit */
    char key[] = "nca";
    for (unsigned i = 2; i + 1 < first; i++, key[1]++)
        put_all(a, key);
    found_in_between = 0;
    b->ended = false;
    stage_start_main(b, "b", check_in_between);
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


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merge_over_a_prefix),
        cmocka_unit_test(stale_negative_after_split),
        cmocka_unit_test(stale_negative_after_crashed_splitter),
        cmocka_unit_test(late_shrink),
        cmocka_unit_test(append_invisible_same_partial),
        cmocka_unit_test(dirty_tail),
        cmocka_unit_test(hint_vs_commit),
        cmocka_unit_test(two_helpers),
        cmocka_unit_test(a_full_list_that_is_gone_serves_nobody_who_came_later),
        cmocka_unit_test(branch_over_frozen),
        cmocka_unit_test(parent_frozen),
        cmocka_unit_test(leaf_length_changes_under_a_cache),
        cmocka_unit_test(prefix_chain),
        cmocka_unit_test(batch_cross_node),
        cmocka_unit_test(check_finds_damage),
        cmocka_unit_test(check_beside_inserts_has_no_problem),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
