/* Dolphin, named interleavings: a client dies while it replaces a leaf or a NULL, and others read,
 * scan, check and recover what it left. What fails when the guarding line is taken out is said at each test. */
#include "dolphin_rig.h"
#include "pool/epoch.h"
#include "task/session.h"

#define TAIL  "-and-a-long-tail"
#define UPPER "nmc" TAIL " nmd" TAIL


/* Until no leaf can be had any more. */
static void fill_the_pool(stage_actor *by) {
    static char large[20000];
    far_index *filler;
    int err = 0;
    assert_int_equal(far_index_create(by->session, "filler", "toy", "slots=1024", &filler), 0);
    for (size_t bytes = sizeof(large); bytes > 10; bytes /= 3)
        for (unsigned i = 0; i < 20000 && (err = far_put(by->session, filler, &i, 4, large, bytes)) == 0;)
            i += (unsigned)bytes;
    for (unsigned i = 0; i < 60000 && (i < 100 || err == 0); i++) {
        char key[8];
        snprintf(key, sizeof(key), "%c%05u", 'o' + i % 8, i);
        err = far_put(by->session, by->index, key, 6, V1, 8);
    }
    assert_int_equal(err, FAR_ERR_NO_MEMORY);
    far_index_close(filler);
}


/* A client dies when the upper half of a leaf (nc nd of nb nc) is linked, and the lower one is not. nc is updated
 * since, in its new leaf. without: housekeeping; nobody sweeps meanwhile. */
static far_addr half_replaced_with(const char *options, const char *sim, bool without) {
    by_hand = without;
    up(options, sim);
    by_hand = true;
    put_all(a, FIVE);
    assert_true(all_read(c, FIVE, V1));
    dolphin_node node = node_at("na", 1);
    far_addr leaf = dolphin_entry_addr(leaf_entry("nb", 1));
    int at = dolphin_lookup(&node, dolphin_position((far_bytes){"nb", 2}, 1));
    far_addr place = dolphin_entry_place(&node, (unsigned)at);
    stage_start(a, FAR_OP_INSERT, "nd", V1);
    far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_CAS, .from = place, .to = place + 8}, 0);
    far_sim_run_client(a->client);
    stage_kill(&s, a);
    assert_int_not_equal(leaf_entry("nb", 1), leaf_entry("nc", 1));
    assert_int_equal(dolphin_entry_addr(leaf_entry("nb", 1)), leaf);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nc", V2), 0);
    return leaf;
}


static far_addr half_replaced(const char *sim, bool without) {
    return half_replaced_with(SLOTS2, sim, without);
}


/* Nobody waits for the dead in a pool that is full: what they left is put right in place. */
static void recovery_needs_no_memory(void **state) {
    (void)state;
    far_addr leaf = half_replaced("size=1M", true);
    fill_the_pool(b);
    assert_true(*memory_of(leaf) & DOLPHIN_FROZEN);
    stand(b, "dolphin:narrowed", FAR_OP_UPDATE, "nb", V2);
    far_sim_resume(b->client);
    for (unsigned i = 0; i < 1000 && !b->ended; i++) { /* the pins get newer */
        far_sim_run_for(s.world, 10000);
        stage_poll(&s, 1);
    }
    assert_true(b->ended && b->result == 0);
    assert_true(!(*memory_of(leaf) & DOLPHIN_FROZEN) && (memory_of(leaf)[1] & DOLPHIN_NARROWED));
    assert_true(all_read(c, "nb nc", V2) && all_read(c, "na nd nx ny", V1));
    stage_delete(c, "nb");
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nc", V3), 0);
    assert_true(stage_reads(c, "nb", NULL) && stage_reads(c, "nc", V3));
    stage_close(&s);
}


/* What is elsewhere already goes from the leaf, the value before the key: who takes over may die in between, and the
 * next one must find the key. In the other order the block of nc would stay in a dead slot, and be freed with it. */
static void value_goes_before_its_key(void **state) {
    (void)state;
    far_addr leaf = half_replaced_with("hints=off,leaf_slots=2", NULL, true);
    uint64_t nc = dolphin_with_state(dolphin_inline_kword((far_bytes){"nc", 2}, 1), DOLPHIN_HELD);
    unsigned slot = *memory_of(dolphin_key_at(leaf, 1)) == nc;
    far_addr kword = dolphin_key_at(leaf, slot), value = dolphin_value_at(leaf, 2, slot);
    assert_int_equal(*memory_of(kword), nc);
    stage_start(b, FAR_OP_UPDATE, "nb", V2);
    far_sim_kill_at(b->client, (far_sim_match){.kind = FAR_SIM_CAS, .from = kword, .to = kword + 8}, 0);
    far_sim_run_client(b->client);
    stage_kill(&s, b);
    assert_true(*memory_of(kword) == nc && *memory_of(value) == 0);
    stage_start(c, FAR_OP_UPDATE, "nb", V3);
    for (unsigned i = 0; i < 1000 && !c->ended; i++) {
        far_sim_run_for(s.world, 10000);
        stage_poll(&s, 1);
    }
    assert_true(c->ended && c->result == 0 && *memory_of(kword) == DOLPHIN_HOLE);
    assert_true(stage_reads(c, "nb", V3) && stage_reads(c, "nc", V2) && stage_reads(c, "nd", V1));
    stage_close(&s);
}


/* A key below "nk" whose block could be taken for that of this key: of as many bytes, with the same fingerprint. */
static far_bytes twin_of(far_bytes key, char text[32]) {
    far_bytes twin = {text, key.length};
    unsigned wanted = dolphin_fingerprint(state_of(c), key);
    for (unsigned i = 0; i == 0 || dolphin_fingerprint(state_of(c), twin) != wanted; i++)
        snprintf(text, 32, "nk%0*u", (int)key.length - 2, i);
    return twin;
}


/* All keys of a leaf, nma to nmd, go into a node of their own: it is linked for nm, NULL behind it, and before it, in place
 * of the leaf. The client dies when so many of the three are done. */
static far_addr half_deepened(unsigned done) {
    up("leaf_slots=4", NULL);
    put_all(a, "na nb nc nx nk nma" TAIL); /* na nb; nc nk nx nma */
    for (const char *key = "ckx"; *key; key++)
        stage_delete(a, (char[]){'n', *key, 0});
    put_all(a, "nmb" TAIL " nmc" TAIL " nmd" TAIL);
    dolphin_node node = node_at("na", 1);
    far_addr leaf = dolphin_entry_addr(leaf_entry("nm", 1));
    unsigned at = (unsigned)dolphin_lookup(&node, dolphin_position((far_bytes){"nk", 2}, 1));
    assert_int_equal(dolphin_entry_addr(node.entries[at]), leaf);
    for (unsigned i = node.capacity, free = dolphin_free_entries(&node); done < 2 && i-- > 0;)
        if (node.entries[i] == 0 && --free == done)
            at = i; /* the first free one, or the second */
    stage_start(a, FAR_OP_INSERT, "nme" TAIL, V1);
    far_addr place = dolphin_entry_place(&node, at);
    far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_CAS, .from = place, .to = place + 8}, 0);
    far_sim_run_client(a->client);
    stage_kill(&s, a);
    assert_int_equal(dolphin_entry_addr(leaf_entry("nk", 1)), leaf);
    return leaf;
}


/* nma and nmb are deleted since, and the block of nma is used again, for a key that could stand in that leaf. */
static void use_again(far_addr leaf, char twin[32]) {
    uint8_t *block = (uint8_t *)memory_of(dolphin_kword_block(*memory_of(dolphin_key_at(leaf, 0))));
    far_bytes key = {"nma" TAIL, strlen("nma" TAIL)};
    assert_memory_equal(block + 2, key.data, key.length);
    stage_delete(b, "nma" TAIL);
    stage_delete(b, "nmb" TAIL);
    memcpy(block + 2, twin_of(key, twin).data, key.length);
}


/* As far_index_usage does, which also waits for the others. */
static int count_keys(far_task *t, void *usage) {
    return dolphin_usage(t, c->index, usage);
}


static void recover_by(stage_actor *by, const char *key) {
    stage_start(by, FAR_OP_PUT, key, V3);
    for (unsigned i = 0; i < 1000 && !by->ended; i++) {
        far_sim_run_for(s.world, 10000);
        stage_poll(&s, 1);
    }
    assert_true(by->ended && by->result == 0);
}


static void assert_all_is_well(const char *keys, unsigned count) {
    far_usage usage = {0};
    assert_true(stage_scans(b, "n", keys));
    assert_int_equal(far_index_check(c->session, c->index, fail_at_problem, NULL), 0);
    assert_int_equal(far_session_call(c->session, FAR_STATS_OTHER, true, count_keys, &usage), 0);
    assert_int_equal(usage.keys, count);
}


/* The frozen leaf speaks for nb alone: were all of it given, nc would be an old value, and counted twice. */
static void scan_of_a_half_replaced_leaf(void **state) {
    (void)state;
    far_addr leaf = half_replaced(NULL, true);
    assert_all_is_well("na nb nc nd nx ny", 6);
    c->limit = 3;
    assert_int_equal(stage_do(c, FAR_OP_SCAN, "na", NULL), 3);
    assert_true(strcmp(c->keys[2], "nc") == 0 && memcmp(c->value, V2, 8) == 0);
    c->limit = 0;
    assert_true(stage_reads(c, "nc", V2) && stage_reads(c, "nd", V1) && stage_reads(c, "nb", V1));
    assert_true(*memory_of(leaf) & DOLPHIN_FROZEN);
    stage_close(&s);
}


/* Whose blocks those are that a half-replaced leaf names, it says itself. Without that scans, checks, counts and the
 * recovery find broken keys in memory that is free, or a key that nobody put there. */
static void blocks_of_a_half_replaced_leaf_are_gone(void **state) {
    (void)state;
    char twin[32];
    far_addr leaf = half_deepened(2);
    use_again(leaf, twin);
    assert_all_is_well("na nb " UPPER " nme" TAIL, 5);
    assert_true(*memory_of(leaf) & DOLPHIN_FROZEN);
    recover_by(c, "nka");
    assert_true(stage_reads(c, twin, NULL) && stage_scans(b, "n", "na nb nka " UPPER " nme" TAIL));
    stage_close(&s);
}


/* coverage=lastbyte: a NULL is to be narrowed around a node, and the client dies when the node is linked, and the NULL
 * still says that it goes beyond. The key is there: a scan gives it, a check is content. Whoever takes over narrows the
 * NULL: else the next key in it would bring entries that are there already. */
static void null_of_the_dead(void **state) {
    (void)state;
    up(WORDS ",coverage=lastbyte", NULL);
    put_all(a, "na1 nc1");
    dolphin_node node = node_at("na1", 1);
    int at = dolphin_lookup(&node, dolphin_position((far_bytes){"nm", 2}, 1));
    far_addr place = dolphin_entry_place(&node, (unsigned)at);
    stage_start(a, FAR_OP_INSERT, "nm1", V1);
    far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_CAS, .from = place, .to = place + 8}, 0);
    far_sim_run_client(a->client);
    stage_kill(&s, a);
    assert_int_equal(dolphin_entry_hi(node.entries[at]), DOLPHIN_LAST);
    assert_true(stage_reads(b, "nm1", V1));
    assert_all_is_well("na1 nc1 nm1", 3);
    assert_int_equal(stage_do(c, FAR_OP_PUT, "ng1", V3), 0);
    assert_all_is_well("na1 nc1 ng1 nm1", 4);
    node = node_at("na1", 1);
    uint64_t *null = &node.entries[dolphin_lookup(&node, dolphin_position((far_bytes){"ne", 2}, 1))], was = *null;
    *null = dolphin_null(dolphin_entry_lb(was), DOLPHIN_LAST); /* the same, and nobody has the lock */
    assert_true(far_index_check(c->session, c->index, expect_problem, NULL) > 0);
    *null = was;
    stage_close(&s);
}


/* It says so before the entries change: as long as they do not, all is its own. What it said is forgotten then, so that a
 * READ that falls into the next change does not find half of each. */
static void blocks_of_a_leaf_that_was_to_be_replaced_stay(void **state) {
    (void)state;
    for (unsigned done = 0; done < 2; done++) {
        far_addr leaf = half_deepened(done), cut = leaf + DOLPHIN_LEAF_CUT;
        assert_true(*memory_of(leaf) & DOLPHIN_FROZEN);
        assert_int_equal(*memory_of(cut), dolphin_position((far_bytes){"nm", 2}, 1));
        assert_int_equal(*memory_of(cut + 8), 15);
        assert_all_is_well("na nb nma" TAIL " nmb" TAIL " " UPPER, 6);
        recover_by(c, "nma" TAIL);
        assert_true(!(*memory_of(leaf) & DOLPHIN_FROZEN) && *memory_of(cut) == 0 && *memory_of(cut + 8) == 0);
        assert_all_is_well("na nb nma" TAIL " nmb" TAIL " " UPPER, 6);
        assert_true(stage_reads(b, "nma" TAIL, V3));
        stage_close(&s);
    }
}


/* Whoever takes over takes from the leaf what is elsewhere, and lets it thaw: when nobody can still hold a READ of it
 * that shows what it was for before. Without that wait nc is not found, or an old value. */
static void narrowed_leaf_vs_late_read(void **state) {
    (void)state;
    far_addr leaf = half_replaced("atomic_bytes=8", false);
    static const uint32_t ident = 1;
    stage_start(c, FAR_OP_GET, "nc", NULL); /* by what it knew */
    far_sim_hold *hold = stage_hold(c, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf, .to = leaf + 96});
    assert_int_equal(far_sim_release_units(hold, &ident, 1), 0);
    stage_start(b, FAR_OP_PUT, "nba", V3);
    stage_stop_at(b, (far_sim_match){.point = "dolphin:narrowed"});
    assert_true((*memory_of(leaf) & DOLPHIN_FROZEN) && (memory_of(leaf)[1] & DOLPHIN_NARROWED));
    far_sim_resume(b->client);
    far_sim_run_for(s.world, 1000000);
    assert_true(!b->ended && (*memory_of(leaf) & DOLPHIN_FROZEN));
    far_sim_release(hold);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(c->result == 0 && b->result == 0);
    assert_memory_equal(c->value, V2, 8);
    assert_true(stage_reads(c, "nba", V3) && stage_reads(c, "nc", V2) && stage_scans(c, "n", "na nb nba nc nd nx ny"));
    stage_close(&s);
}


/* Who takes over dies between the two: the next one waits as well. */
static void narrowed_leaf_of_two_dead(void **state) {
    (void)state;
    far_addr leaf = half_replaced("atomic_bytes=8", false);
    static const uint32_t ident = 1;
    stage_start(c, FAR_OP_GET, "nc", NULL);
    far_sim_hold *hold = stage_hold(c, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf, .to = leaf + 96});
    assert_int_equal(far_sim_release_units(hold, &ident, 1), 0);
    stand(b, "dolphin:narrowed", FAR_OP_PUT, "nba", V3);
    stage_actor d = another_of(c);
    far_sim_kill(b->pool->fabric);
    stage_start(&d, FAR_OP_PUT, "nba", V3);
    far_sim_run_for(s.world, 3000000);
    assert_true(!d.ended && (*memory_of(leaf) & DOLPHIN_FROZEN));
    far_sim_release(hold);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(c->result == 0 && d.result == 0);
    assert_memory_equal(c->value, V2, 8);
    far_session_close(d.session);
    stage_close(&s);
}


static int ignore_object(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    (void)walk, (void)index, (void)type, (void)addr, (void)size;
    return 0;
}


/* As it does where verbs are work of this host's processors. */
static int walk_slowly(far_task *t, void *arg) {
    stage_actor *by = arg;
    far_walk walk = {.object = ignore_object};
    by->pool->fabric->at_once = true;
    far_task_rest_between_pins(t, true);
    by->pool->fabric->at_once = false;
    return dolphin_walk(t, by->index, &walk);
}


static void walk_main(void *arg) {
    stage_actor *by = arg;
    by->result = far_session_call(by->session, FAR_STATS_OTHER, true, walk_slowly, by);
    by->ended = true;
}


/* A walk in the background rests before each pin, nine times as long as it worked: but not before the one that it takes
 * with the lock of a dead client, for which writers wait. */
static void nobody_rests_with_a_lock(void **state) {
    (void)state;
    far_addr leaf = half_replaced(NULL, true);
    b->ended = false;
    b->client = far_sim_start(b->pool->fabric, "walk", walk_main, b);
    stage_stop_at(b, (far_sim_match){.point = "dolphin:narrowed"});
    far_sim_resume(b->client);
    far_sim_run_for(s.world, 10000000); /* the pins stay as they are */
    uint64_t since = far_sim_now(s.world);
    assert_true(*memory_of(leaf) & DOLPHIN_FROZEN);
    while (*memory_of(leaf) & DOLPHIN_FROZEN) { /* ... and get newer */
        far_sim_run_for(s.world, 10000);
        stage_poll(&s, 1);
        assert_true(far_sim_now(s.world) - since < 10000000);
    }
    assert_string_equal(far_sim_result_name(far_sim_run(s.world)), far_sim_result_name(FAR_SIM_ENDED));
    assert_true(b->ended && b->result == 0 && stage_reads(c, "nc", V2) && all_read(c, "na nb nd nx ny", V1));
    stage_close(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recovery_needs_no_memory),
        cmocka_unit_test(value_goes_before_its_key),
        cmocka_unit_test(scan_of_a_half_replaced_leaf),
        cmocka_unit_test(blocks_of_a_half_replaced_leaf_are_gone),
        cmocka_unit_test(null_of_the_dead),
        cmocka_unit_test(blocks_of_a_leaf_that_was_to_be_replaced_stay),
        cmocka_unit_test(narrowed_leaf_vs_late_read),
        cmocka_unit_test(narrowed_leaf_of_two_dead),
        cmocka_unit_test(nobody_rests_with_a_lock),
    };
    int failed = cmocka_run_group_tests(tests, inserts_by_ticket, NULL);
    return failed + cmocka_run_group_tests(tests, inserts_by_cas, NULL);
}
