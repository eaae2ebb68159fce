/* SMART, named interleavings (docs/races/smart.md): updates in place, locks, and scans. Each test fails if its guard is
 * removed. */
#include "smart_rig.h"
#include "test.h"


/* Race H23. A takes a leaf's lock and fails. B's update completes A's update and then runs. Fails without
 * smart_recover_lock (write_in_place.c): B waits for ever. */
TEST(lock_owner_dies) {
    open_stage("update=lock", NULL);
    assert_int_equal(stage_do(b, FAR_OP_PUT, "naa", LONG), 0);
    run_until_point(a, "smart:locked", FAR_OP_UPDATE, "naa",
                    "another value, in place, which is never seen or else whole");
    stage_kill(&s, a);
    stage_start(b, FAR_OP_UPDATE, "naa", V2);
    far_sim_resume(a->client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_int_equal(b->result, 0);
    assert_true(stage_reads(b, "naa", V2));
    stage_close(&s);
}


/* Race H23. A holds a leaf's lock and stops, but is alive. B's update waits until A has released the lock. */
TEST(lock_owner_lives) {
    open_stage("update=lock", NULL);
    assert_int_equal(stage_do(b, FAR_OP_PUT, "naa", LONG), 0);
    run_until_point(a, "smart:locked", FAR_OP_UPDATE, "naa", V1);
    stage_start(b, FAR_OP_UPDATE, "naa", V2);
    far_sim_run_for(s.world, 20000000);
    assert_false(b->ended);
    far_sim_resume(a->client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(stage_reads(a, "naa", V2));
    stage_close(&s);
}


/* Writes a value of 399 bytes as B and returns the address of its leaf. */
static far_addr put_long(const char *key, const char *value) {
    uint32_t bytes = 448;
    far_sim_on_verb(s.world, note_written, &bytes);
    written = 0;
    stage_write(b, key, value);
    far_sim_on_verb(s.world, NULL, NULL);
    assert_true(written != 0);
    return written;
}


/* Race H24. Half of A's WRITE of an update in place has taken effect. B's get must wait for the rest. Fails without the
 * checksum over the value, in smart_leaf_is_whole (leaf.c) if nothing is cached, or in leaf_certifies_itself
 * (find_cached.c). */
TEST(half_written_value_is_not_read) {
    static const char *const options[] = {"cache=off", ""};
    char old[400], new[400];
    memset(old, 'o', sizeof(old));
    memset(new, 'w', sizeof(new));
    old[399] = new[399] = 0;
    for (unsigned i = 0; i < 2; i++) {
        open_stage(options[i], NULL);
        far_addr leaf = put_long("naa", old);
        assert_true(stage_reads(b, "naa", old));
        stage_start(a, FAR_OP_UPDATE, "naa", new);
        far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_WRITE, .from = leaf, .to = leaf + 440});
        assert_int_equal(far_sim_release_units(hold, (const uint32_t[]){0, 1, 2}, 3), 0);
        stage_start(b, FAR_OP_GET, "naa", NULL);
        far_sim_run_for(s.world, 1000000);
        assert_false(b->ended);
        far_sim_release(hold);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        assert_int_equal(b->result, 0);
        assert_int_equal(b->value_len, 399);
        assert_memory_equal(b->value, new, 399);
        stage_close(&s);
    }
}


/* Updates the leaf in place again and again, without a pause. */
static void overwrite_repeatedly(void *arg) {
    char value[400];
    stage_actor *by = arg;
    for (unsigned i = 0; i < 300 && by->result == 0; i++) {
        memset(value, 'a' + (int)(i % 26), sizeof(value));
        by->result = far_update(by->session, by->index, "naa", 3, value, sizeof(value));
    }
    by->ended = true;
}


/* Race H30. A updates a leaf in place without a pause, and verbs are torn and reordered. Each get of B ends and returns
 * a whole value (handle_torn_leaf in leaf.c). */
TEST(hot_leaf_starves_no_reader) {
    static const char *const sims[] = {"atomic_bytes=64", "atomic_bytes=8"};
    for (unsigned i = 0; i < 2; i++) {
        char value[400];
        memset(value, 'z', sizeof(value));
        open_stage("", sims[i]);
        assert_int_equal(far_put(b->session, b->index, "naa", 3, value, sizeof(value)), 0);
        far_sim_set_faults(s.world, FAR_SIM_TEAR | FAR_SIM_REORDER);
        a->result = 0;
        a->ended = false;
        a->client = far_sim_start(a->pool->fabric, "writer", overwrite_repeatedly, a);
        for (unsigned reads = 0; reads < 20; reads++) {
            stage_start(b, FAR_OP_GET, "naa", NULL);
            while (!b->ended)
                far_sim_run_for(s.world, 100000);
            assert_true(b->result == 0 && b->value_len == sizeof(value));
            for (unsigned k = 1; k < sizeof(value); k++)
                assert_int_equal(b->value[k], b->value[0]);
        }
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        assert_int_equal(a->result, 0);
        far_sim_set_faults(s.world, 0);
        stage_close(&s);
    }
}


/* Race H24. A fails after each tearing granule of the WRITE of an update in place. B completes the update from the redo
 * record. Fails without that: the leaf stays torn. */
TEST(inplace_write_cut) {
    char old[400], new[400];
    memset(old, 'o', sizeof(old));
    memset(new, 'w', sizeof(new));
    old[399] = new[399] = 0;
    for (uint32_t units = 0; units < 8; units++) {
        open_stage("", NULL);
        far_addr leaf = put_long("naa", old);
        stage_start(a, FAR_OP_UPDATE, "naa", new);
        far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_WRITE, .from = leaf, .to = leaf + 440}, units);
        far_sim_run(s.world);
        assert_true(far_sim_killed(a->pool->fabric));
        bool is_old = stage_reads(b, "naa", old), is_new = stage_reads(b, "naa", new);
        assert_true(is_old != is_new);
        assert_true(units == 0 || is_new);
        assert_int_equal(stage_do(b, FAR_OP_UPDATE, "naa", old), 0);
        assert_true(stage_reads(b, "naa", old));
        stage_close(&s);
    }
}


/* Race H25. A is declared dead while it holds a lock. B writes. A continues, and its WRITE must not take effect. */
TEST(zombie_write) {
    open_stage("update=lock", NULL);
    assert_int_equal(stage_do(b, FAR_OP_PUT, "naa", LONG), 0);
    run_until_point(a, "smart:locked", FAR_OP_UPDATE, "naa",
                    "what a zombie writes: it must not be seen once b has written");
    assert_true(far_sim_declare_dead(s.world, a->session->id, a->session->generation) > 0);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "naa", V2), 0);
    far_sim_resume(a->client);
    far_sim_run_client(a->client);
    assert_true(a->result < 0);
    assert_true(stage_reads(b, "naa", V2));
    stage_close(&s);
}


/* Race H19. B has nodes in its cache. A inserts more keys below them. B's scan must give them too
 * (smart_take_readahead_node in scan_readahead.c). */
TEST(scan_cached_incomplete) {
    open_stage("", NULL);
    put_all(a, "naa nba nxaa nxba");
    assert_true(stage_reads(b, "naa", V1) && stage_reads(b, "nxaa", V1));
    put_all(a, "nca nxca n");
    assert_true(stage_scans(b, "n", "n naa nba nca nxaa nxba nxca"));
    stage_close(&s);
}


/* Race H19. A stops after it has frozen a node. B's scan completes the replacement and gives all keys. */
TEST(scan_during_replace) {
    open_stage(EAGER, NULL);
    put_all(a, "naa nxaa nxba nza");
    run_until_point(a, "smart:frozen", FAR_OP_DELETE, "nxaa", NULL);
    assert_true(stage_scans(b, "n", "naa nxba nza"));
    stage_finish(a);
    assert_true(stage_scans(c, "nb", "nxba nza"));
    stage_close(&s);
}


/* Race H19. A fails after it has frozen a node. B's scan completes the replacement, so that C's insert meets no frozen
 * word. Fails if scans only use frozen words and do not complete the replacement (examine_word in scan_nodes.c). */
TEST(scan_completes_an_interrupted_replacement) {
    far_stats before, after;
    open_stage(EAGER, NULL);
    put_all(a, "naa nxaa nxba nza");
    run_until_point(a, "smart:frozen", FAR_OP_DELETE, "nxaa", NULL);
    stage_kill(&s, a);
    assert_true(stage_scans(b, "n", "naa nxba nza"));
    far_session_stats(c->session, &before);
    assert_int_equal(stage_do(c, FAR_OP_INSERT, "nxca", V2), 0);
    far_session_stats(c->session, &after);
    assert_int_equal(after.retries - before.retries, 0);
    assert_true(stage_scans(b, "n", "naa nxba nxca nza"));
    stage_close(&s);
}


/* Race H19. A has deleted the last key, and its slot still names the DEAD leaf. B's scan leaves it out. */
TEST(scan_deleted_tail) {
    open_stage(EAGER, NULL);
    put_all(a, "naa nba nca");
    run_until_point(a, "smart:removed", FAR_OP_DELETE, "nca", NULL);
    assert_true(stage_scans(b, "n", "naa nba"));
    stage_finish(a);
    stage_close(&s);
}
