/* SMART, named interleavings: updates in place, locks, scans. Each drives a race that the design rules out (H1-H31
 * there) by hand; what fails when the guarding line is taken out is said at each test. */
#include "smart_rig.h"


/* H23. Without the takeover b waits for ever. */
static void lock_owner_dies(void **state) {
    (void)state;
    up("update=lock", NULL);
    assert_int_equal(stage_do(b, FAR_OP_PUT, "naa", LONG), 0);
    stand(a, "smart:locked", FAR_OP_UPDATE, "naa", "another value, in place, which is never seen or else whole");
    stage_kill(&s, a);
    stage_start(b, FAR_OP_UPDATE, "naa", V2);
    far_sim_resume(a->client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_int_equal(b->result, 0);
    assert_true(stage_reads(b, "naa", V2));
    stage_close(&s);
}


/* A live holder is waited for. */
static void lock_owner_lives(void **state) {
    (void)state;
    up("update=lock", NULL);
    assert_int_equal(stage_do(b, FAR_OP_PUT, "naa", LONG), 0);
    stand(a, "smart:locked", FAR_OP_UPDATE, "naa", V1);
    stage_start(b, FAR_OP_UPDATE, "naa", V2);
    far_sim_run_for(s.world, 20000000);
    assert_false(b->ended);
    far_sim_resume(a->client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(stage_reads(a, "naa", V2));
    stage_close(&s);
}


/* A value of 399 bytes, and where its leaf lies. */
static far_addr put_long(const char *key, const char *value) {
    uint32_t bytes = 448;
    far_sim_on_verb(s.world, note_written, &bytes);
    written = 0;
    stage_write(b, key, value);
    far_sim_on_verb(s.world, NULL, NULL);
    assert_true(written != 0);
    return written;
}


/* The WRITE of an update in place has landed to one half. Fails without the checksum over the value: in
 * smart_leaf_is_whole (nothing is cached), or where a cached leaf certifies itself. */
static void half_written_value_is_not_read(void **state) {
    (void)state;
    static const char *const options[] = {"cache=off", ""};
    char old[400], new[400];
    memset(old, 'o', sizeof(old));
    memset(new, 'w', sizeof(new));
    old[399] = new[399] = 0;
    for (unsigned i = 0; i < 2; i++) {
        up(options[i], NULL);
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


/* H30. One client updates a leaf in place without a rest, over and over; another reads it. */
static void overwrite(void *arg) {
    char value[400];
    stage_actor *by = arg;
    for (unsigned i = 0; i < 300 && by->result == 0; i++) {
        memset(value, 'a' + (int)(i % 26), sizeof(value));
        by->result = far_update(by->session, by->index, "naa", 3, value, sizeof(value));
    }
    by->ended = true;
}


static void hot_leaf_starves_no_reader(void **state) {
    (void)state;
    static const char *const sims[] = {"atomic_bytes=64", "atomic_bytes=8"};
    for (unsigned i = 0; i < 2; i++) {
        char value[400];
        memset(value, 'z', sizeof(value));
        up("", sims[i]);
        assert_int_equal(far_put(b->session, b->index, "naa", 3, value, sizeof(value)), 0);
        far_sim_set_faults(s.world, FAR_SIM_TEAR | FAR_SIM_REORDER);
        a->result = 0;
        a->ended = false;
        a->client = far_sim_start(a->pool->fabric, "writer", overwrite, a);
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


/* H24. The WRITE of an update in place is cut: the redo record completes it. Fails when it is not (the leaf stays
 * torn). */
static void inplace_write_cut(void **state) {
    (void)state;
    char old[400], new[400];
    memset(old, 'o', sizeof(old));
    memset(new, 'w', sizeof(new));
    old[399] = new[399] = 0;
    for (uint32_t units = 0; units < 8; units++) {
        up("", NULL);
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


/* H25. A client that was declared dead while it held the lock writes nothing afterwards. */
static void zombie_write(void **state) {
    (void)state;
    up("update=lock", NULL);
    assert_int_equal(stage_do(b, FAR_OP_PUT, "naa", LONG), 0);
    stand(a, "smart:locked", FAR_OP_UPDATE, "naa", "what a zombie writes: it must not be seen once b has written");
    assert_true(far_sim_declare_dead(s.world, a->session->id, a->session->generation) > 0);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "naa", V2), 0);
    far_sim_resume(a->client);
    far_sim_run_client(a->client);
    assert_true(a->result < 0);
    assert_true(stage_reads(b, "naa", V2));
    stage_close(&s);
}


static void scan_cached_incomplete(void **state) {
    (void)state;
    up("", NULL);
    put_all(a, "naa nba nxaa nxba");
    assert_true(stage_reads(b, "naa", V1) && stage_reads(b, "nxaa", V1));
    put_all(a, "nca nxca n");
    assert_true(stage_scans(b, "n", "n naa nba nca nxaa nxba nxca"));
    stage_close(&s);
}


static void scan_during_replace(void **state) {
    (void)state;
    up(EAGER, NULL);
    put_all(a, "naa nxaa nxba nza");
    stand(a, "smart:frozen", FAR_OP_DELETE, "nxaa", NULL);
    assert_true(stage_scans(b, "n", "naa nxba nza"));
    stage_finish(a);
    assert_true(stage_scans(c, "nb", "nxba nza"));
    stage_close(&s);
}


/* A node that a dead client froze is replaced by the first who comes by, a scan too: nobody meets it again. Fails when
 * scans take frozen words for others. */
static void scan_completes_what_the_dead_froze(void **state) {
    (void)state;
    far_stats before, after;
    up(EAGER, NULL);
    put_all(a, "naa nxaa nxba nza");
    stand(a, "smart:frozen", FAR_OP_DELETE, "nxaa", NULL);
    stage_kill(&s, a);
    assert_true(stage_scans(b, "n", "naa nxba nza"));
    far_session_stats(c->session, &before);
    assert_int_equal(stage_do(c, FAR_OP_INSERT, "nxca", V2), 0);
    far_session_stats(c->session, &after);
    assert_int_equal(after.retries - before.retries, 0);
    assert_true(stage_scans(b, "n", "naa nxba nxca nza"));
    stage_close(&s);
}


static void scan_deleted_tail(void **state) {
    (void)state;
    up(EAGER, NULL);
    put_all(a, "naa nba nca");
    stand(a, "smart:removed", FAR_OP_DELETE, "nca", NULL);
    assert_true(stage_scans(b, "n", "naa nba"));
    stage_finish(a);
    stage_close(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lock_owner_dies),
        cmocka_unit_test(lock_owner_lives),
        cmocka_unit_test(half_written_value_is_not_read),
        cmocka_unit_test(hot_leaf_starves_no_reader),
        cmocka_unit_test(inplace_write_cut),
        cmocka_unit_test(zombie_write),
        cmocka_unit_test(scan_cached_incomplete),
        cmocka_unit_test(scan_during_replace),
        cmocka_unit_test(scan_completes_what_the_dead_froze),
        cmocka_unit_test(scan_deleted_tail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
