/* Dolphin, named interleavings: a client fails while it replaces a leaf or a NULL interval, and other clients read,
 * scan, check and repair what it has left (A16, A34). Each test fails if the guard that its comment names is removed.
 */
#include "dolphin_rig.h"
#include "pool/epoch/epoch.h"
#include "task/session.h"
#include "test.h"

#define TAIL  "-and-a-long-tail"
#define UPPER "nmc" TAIL " nmd" TAIL


/* Fills the pool until no leaf can be allocated. */
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


/* A splits the leaf with nb and nc to insert nd. It links the new leaf for nc and nd, and fails before it replaces the
 * entry of nb. Then B updates nc in the new leaf. If `without` is set, the stage runs without housekeeping, so that no
 * collection repairs the leaf. Returns the old leaf. */
static far_addr make_half_replaced_leaf_with(const char *options, const char *sim, bool without) {
    without_housekeeping = without;
    open_stage(options, sim);
    without_housekeeping = true;
    put_all(a, FIVE);
    assert_true(keys_have_value(c, FIVE, V1));
    dolphin_node node = node_at("na", 1);
    far_addr leaf = dolphin_entry_addr(leaf_entry("nb", 1));
    int at = dolphin_find_entry(&node, dolphin_position((far_bytes){"nb", 2}, 1));
    far_addr place = dolphin_entry_word_addr(&node, (unsigned)at);
    stage_start(a, FAR_OP_INSERT, "nd", V1);
    far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_CAS, .from = place, .to = place + 8}, 0);
    far_sim_run_client(a->client);
    stage_kill(&s, a);
    assert_int_not_equal(leaf_entry("nb", 1), leaf_entry("nc", 1));
    assert_int_equal(dolphin_entry_addr(leaf_entry("nb", 1)), leaf);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nc", V2), 0);
    return leaf;
}


static far_addr make_half_replaced_leaf(const char *sim, bool without) {
    return make_half_replaced_leaf_with(SLOTS2, sim, without);
}


/* Recovery needs no memory, so B must be able to repair a half-replaced leaf in a full pool. B does it by narrowing the
 * leaf in place. Fails if recover_leaf (recover.c) copies the leaf instead of narrowing it. */
TEST_OF_BOTH_INSERTS(recovery_needs_no_memory) {
    far_addr leaf = make_half_replaced_leaf("size=1M", true);
    fill_the_pool(b);
    assert_true(*memory_at(leaf) & DOLPHIN_FROZEN);
    run_to_point(b, "dolphin:wait_for_readers", FAR_OP_UPDATE, "nb", V2);
    far_sim_resume(b->client);
    for (unsigned i = 0; i < 1000 && !b->ended; i++) { /* the pins become newer */
        far_sim_run_for(s.world, 10000);
        stage_poll(&s, 1);
    }
    assert_true(b->ended && b->result == 0);
    assert_true(!(*memory_at(leaf) & DOLPHIN_FROZEN) && (memory_at(leaf)[1] & DOLPHIN_NARROWED));
    assert_true(keys_have_value(c, "nb nc", V2) && keys_have_value(c, "na nd nx ny", V1));
    stage_delete(c, "nb");
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nc", V3), 0);
    assert_true(stage_reads(c, "nb", NULL) && stage_reads(c, "nc", V3));
    stage_close(&s);
}


/* B recovers a half-replaced leaf and fails after it has cleared the value word of a moved slot. The key word must
 * still be there, so that C finds the slot and finishes it. Fails if dolphin_narrow_leaf (restructure_leaf.c) clears
 * the key word first: a DEAD slot would still name the value block, and the block would be freed with the leaf although
 * the new leaf uses it. */
TEST_OF_BOTH_INSERTS(value_word_is_cleared_before_key_word) {
    far_addr leaf = make_half_replaced_leaf_with("hints=off,leaf_slots=2", NULL, true);
    uint64_t nc = dolphin_kword_with_state(dolphin_inline_kword((far_bytes){"nc", 2}, 1), DOLPHIN_SLOT_LIVE);
    unsigned slot = *memory_at(dolphin_kword_addr(leaf, 1)) == nc;
    far_addr kword = dolphin_kword_addr(leaf, slot), value = dolphin_vword_addr(leaf, 2, slot);
    assert_int_equal(*memory_at(kword), nc);
    stage_start(b, FAR_OP_UPDATE, "nb", V2);
    far_sim_kill_at(b->client, (far_sim_match){.kind = FAR_SIM_CAS, .from = kword, .to = kword + 8}, 0);
    far_sim_run_client(b->client);
    stage_kill(&s, b);
    assert_true(*memory_at(kword) == nc && *memory_at(value) == 0);
    stage_start(c, FAR_OP_UPDATE, "nb", V3);
    for (unsigned i = 0; i < 1000 && !c->ended; i++) {
        far_sim_run_for(s.world, 10000);
        stage_poll(&s, 1);
    }
    assert_true(c->ended && c->result == 0 && *memory_at(kword) == DOLPHIN_SLOT_HOLE);
    assert_true(stage_reads(c, "nb", V3) && stage_reads(c, "nc", V2) && stage_reads(c, "nd", V1));
    stage_close(&s);
}


/* Finds a key below "nk" with a key block of the same size and the same fingerprint as that of `key`, so that the key
 * words of both are equal. */
static far_bytes find_colliding_key(far_bytes key, char text[32]) {
    far_bytes colliding_key = {text, key.length};
    unsigned wanted = dolphin_fingerprint(state_of(c), key);
    for (unsigned i = 0; i == 0 || dolphin_fingerprint(state_of(c), colliding_key) != wanted; i++)
        snprintf(text, 32, "nk%0*u", (int)key.length - 2, i);
    return colliding_key;
}


/* A moves the keys nma to nmd into a node of their own. For this, A adds a NULL entry for the interval after nm, then
 * adds an entry for the new node, and then changes the entry of the old leaf. A fails when `done` of the three have
 * changed. Returns the old leaf. */
static far_addr make_half_deepened_leaf(unsigned done) {
    open_stage("leaf_slots=4", NULL);
    put_all(a, "na nb nc nx nk nma" TAIL); /* The leaves then contain na nb; nc nk nx nma. */
    for (const char *key = "ckx"; *key; key++)
        stage_delete(a, (char[]){'n', *key, 0});
    put_all(a, "nmb" TAIL " nmc" TAIL " nmd" TAIL);
    dolphin_node node = node_at("na", 1);
    far_addr leaf = dolphin_entry_addr(leaf_entry("nm", 1));
    unsigned at = (unsigned)dolphin_find_entry(&node, dolphin_position((far_bytes){"nk", 2}, 1));
    assert_int_equal(dolphin_entry_addr(node.entries[at]), leaf);
    for (unsigned i = node.capacity, free = dolphin_count_free_entries(&node); done < 2 && i-- > 0;)
        if (node.entries[i] == 0 && --free == done)
            at = i; /* records the index of the first or the second free entry */
    stage_start(a, FAR_OP_INSERT, "nme" TAIL, V1);
    far_addr place = dolphin_entry_word_addr(&node, at);
    far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_CAS, .from = place, .to = place + 8}, 0);
    far_sim_run_client(a->client);
    stage_kill(&s, a);
    assert_int_equal(dolphin_entry_addr(leaf_entry("nk", 1)), leaf);
    return leaf;
}


/* Deletes nma and nmb. Then overwrites the key block of nma, as if it had been reused, with a key that could have been
 * in the old leaf. */
static void reuse_key_block(far_addr leaf, char colliding_key[32]) {
    uint8_t *block = (uint8_t *)memory_at(dolphin_kword_block(*memory_at(dolphin_kword_addr(leaf, 0))));
    far_bytes key = {"nma" TAIL, strlen("nma" TAIL)};
    assert_memory_equal(block + 2, key.data, key.length);
    stage_delete(b, "nma" TAIL);
    stage_delete(b, "nmb" TAIL);
    memcpy(block + 2, find_colliding_key(key, colliding_key).data, key.length);
}


/* Counts the keys of the index. far_index_usage would also do that, but it waits for other sessions. */
static int count_keys(far_task *t, void *usage) {
    return dolphin_usage(t, c->index, usage);
}


static void recover_with_put(stage_actor *by, const char *key) {
    stage_start(by, FAR_OP_PUT, key, V3);
    for (unsigned i = 0; i < 1000 && !by->ended; i++) {
        far_sim_run_for(s.world, 10000);
        stage_poll(&s, 1);
    }
    assert_true(by->ended && by->result == 0);
}


static void assert_index_is_sound(const char *keys, unsigned count) {
    far_usage usage = {0};
    assert_true(scans_both_ways(b, "n", keys));
    assert_int_equal(far_index_check(c->session, c->index, fail_at_problem, NULL), 0);
    assert_int_equal(far_session_call(c->session, FAR_STATS_OTHER, true, count_keys, &usage), 0);
    assert_int_equal(usage.keys, count);
}


/* Race A34. The old leaf owns only nb. Scans, checks and counts must not return nc from the old leaf, because its value
 * is outdated and it would be counted twice. Fails without dolphin_moved_slots and the bound `hi` (dolphin_read_pairs
 * in leaf_pairs.c). */
TEST_OF_BOTH_INSERTS(scan_of_a_half_replaced_leaf) {
    far_addr leaf = make_half_replaced_leaf(NULL, true);
    assert_index_is_sound("na nb nc nd nx ny", 6);
    c->limit = 3;
    assert_int_equal(stage_do(c, FAR_OP_SCAN, "na", NULL), 3);
    assert_true(strcmp(c->keys[2], "nc") == 0 && memcmp(c->value, V2, 8) == 0);
    c->limit = 0;
    assert_true(stage_reads(c, "nc", V2) && stage_reads(c, "nd", V1) && stage_reads(c, "nb", V1));
    assert_true(*memory_at(leaf) & DOLPHIN_FROZEN);
    stage_close(&s);
}


/* Race A34. The key block of a moved slot was freed and reused by another key. Scans, checks, counts and the recovery
 * must not READ it. Fails without `moved` (dolphin_moved_slots in leaf_pairs.c): they would find damage, or a key that
 * was never put. */
TEST_OF_BOTH_INSERTS(key_blocks_of_moved_slots_are_not_read) {
    char colliding_key[32];
    far_addr leaf = make_half_deepened_leaf(2);
    reuse_key_block(leaf, colliding_key);
    assert_index_is_sound("na nb " UPPER " nme" TAIL, 5);
    assert_true(*memory_at(leaf) & DOLPHIN_FROZEN);
    recover_with_put(c, "nka");
    assert_true(stage_reads(c, colliding_key, NULL) && scans_both_ways(b, "n", "na nb nka " UPPER " nme" TAIL));
    stage_close(&s);
}


/* Race A34, with coverage=lastbyte. A links a node in the middle of a NULL interval, and fails before it shortens the
 * NULL entry, so that two entries overlap. Scans and checks must not report this as damage. The next writer must
 * shorten the NULL entry. Fails without narrow_overlapping_nulls (recover.c): the next insert into the interval would
 * add entries that exist already. */
TEST_OF_BOTH_INSERTS(null_of_a_failed_client) {
    open_stage(WORDS ",coverage=lastbyte", NULL);
    put_all(a, "na1 nc1");
    dolphin_node node = node_at("na1", 1);
    int at = dolphin_find_entry(&node, dolphin_position((far_bytes){"nm", 2}, 1));
    far_addr place = dolphin_entry_word_addr(&node, (unsigned)at);
    stage_start(a, FAR_OP_INSERT, "nm1", V1);
    far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_CAS, .from = place, .to = place + 8}, 0);
    far_sim_run_client(a->client);
    stage_kill(&s, a);
    assert_int_equal(dolphin_entry_hi(node.entries[at]), DOLPHIN_LAST_POSITION);
    assert_true(stage_reads(b, "nm1", V1));
    assert_index_is_sound("na1 nc1 nm1", 3);
    assert_int_equal(stage_do(c, FAR_OP_PUT, "ng1", V3), 0);
    assert_index_is_sound("na1 nc1 ng1 nm1", 4);
    node = node_at("na1", 1);
    uint64_t *null = &node.entries[dolphin_find_entry(&node, dolphin_position((far_bytes){"ne", 2}, 1))], was = *null;
    /* An unlocked node in the same state is damaged. */
    *null = dolphin_null_entry(dolphin_entry_lb(was), DOLPHIN_LAST_POSITION);
    assert_true(far_index_check(c->session, c->index, accept_problem, NULL) > 0);
    *null = was;
    stage_close(&s);
}


/* Race A34. `cut` and `moved` are written before the first entry changes. As long as no entry has changed, the old leaf
 * owns all its key blocks. Recovery must set both words to 0. Fails if recover_leaf (recover.c) leaves them as they
 * are, because a READ that overlaps with the next change could combine an old word with a new one. */
TEST_OF_BOTH_INSERTS(key_blocks_stay_until_entries_change) {
    for (unsigned done = 0; done < 2; done++) {
        far_addr leaf = make_half_deepened_leaf(done), cut = leaf + DOLPHIN_LEAF_CUT;
        assert_true(*memory_at(leaf) & DOLPHIN_FROZEN);
        assert_int_equal(*memory_at(cut), dolphin_position((far_bytes){"nm", 2}, 1));
        assert_int_equal(*memory_at(cut + 8), 15);
        assert_index_is_sound("na nb nma" TAIL " nmb" TAIL " " UPPER, 6);
        recover_with_put(c, "nma" TAIL);
        assert_true(!(*memory_at(leaf) & DOLPHIN_FROZEN) && *memory_at(cut) == 0 && *memory_at(cut + 8) == 0);
        assert_index_is_sound("na nb nma" TAIL " nmb" TAIL " " UPPER, 6);
        assert_true(stage_reads(b, "nma" TAIL, V3));
        stage_close(&s);
    }
}


/* Race A30. B narrows the old leaf and is about to thaw it. C's READ of this leaf has copied the old ident word, which
 * contains the wider interval, and has not copied the spear word yet. B must wait until C's operation has ended. Fails
 * without wait_for_readers (recover.c): C would find the leaf unfrozen, with an interval that contains nc, and return
 * the old value of nc. */
TEST_OF_BOTH_INSERTS(narrowed_leaf_vs_late_read) {
    far_addr leaf = make_half_replaced_leaf("atomic_bytes=8", false);
    static const uint32_t ident = 1;
    stage_start(c, FAR_OP_GET, "nc", NULL); /* C's cache still names the old leaf */
    far_sim_hold *hold = stage_hold(c, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf, .to = leaf + 96});
    assert_int_equal(far_sim_release_units(hold, &ident, 1), 0);
    stage_start(b, FAR_OP_PUT, "nba", V3);
    stage_stop_at(b, (far_sim_match){.point = "dolphin:wait_for_readers"});
    assert_true((*memory_at(leaf) & DOLPHIN_FROZEN) && (memory_at(leaf)[1] & DOLPHIN_NARROWED));
    far_sim_resume(b->client);
    far_sim_run_for(s.world, 1000000);
    assert_true(!b->ended && (*memory_at(leaf) & DOLPHIN_FROZEN));
    far_sim_release(hold);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(c->result == 0 && b->result == 0);
    assert_memory_equal(c->value, V2, 8);
    assert_true(stage_reads(c, "nba", V3) && stage_reads(c, "nc", V2) &&
                scans_both_ways(c, "n", "na nb nba nc nd nx ny"));
    stage_close(&s);
}


/* Race A30. B fails after it has narrowed the leaf, before it thaws it. D repairs the leaf. Before it thaws the leaf,
 * it must wait for C's READ as B did, although the leaf is narrowed already. Fails if recover_leaf (recover.c) waits
 * only when it narrows the leaf itself, and ignores NARROWED. */
TEST_OF_BOTH_INSERTS(narrowed_leaf_of_two_failed_clients) {
    far_addr leaf = make_half_replaced_leaf("atomic_bytes=8", false);
    static const uint32_t ident = 1;
    stage_start(c, FAR_OP_GET, "nc", NULL);
    far_sim_hold *hold = stage_hold(c, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf, .to = leaf + 96});
    assert_int_equal(far_sim_release_units(hold, &ident, 1), 0);
    run_to_point(b, "dolphin:wait_for_readers", FAR_OP_PUT, "nba", V3);
    stage_actor d = open_another_session(c);
    far_sim_kill(b->pool->fabric);
    stage_start(&d, FAR_OP_PUT, "nba", V3);
    far_sim_run_for(s.world, 3000000);
    assert_true(!d.ended && (*memory_at(leaf) & DOLPHIN_FROZEN));
    far_sim_release(hold);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(c->result == 0 && d.result == 0);
    assert_memory_equal(c->value, V2, 8);
    far_session_close(d.session);
    stage_close(&s);
}


/* Lets C scan all keys. C's READ of the old leaf copies these units of memory and is then stopped. B puts a key into
 * the leaf; it narrows the leaf, and waits for readers. Then C continues. Asserts that C has returned these keys. In the end, B
 * fails. */
static void narrow_during_a_scan(far_addr leaf, const uint32_t units[], uint32_t count, const char *put,
                                 const char *keys) {
    stage_start(c, FAR_OP_SCAN, "n", NULL);
    far_sim_hold *hold = stage_hold(c, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf, .to = leaf + 96});
    assert_int_equal(far_sim_release_units(hold, units, count), 0);
    stage_start(b, FAR_OP_PUT, put, V3);
    stage_stop_at(b, (far_sim_match){.point = "dolphin:wait_for_readers"});
    assert_true((*memory_at(leaf) & DOLPHIN_FROZEN) && (memory_at(leaf)[1] & DOLPHIN_NARROWED));
    far_sim_release(hold);
    stage_finish(c);
    char text[STAGE_VALUE_MAX];
    assert_string_equal(stage_scanned(c, text), keys);
    stage_kill(&s, b);
}


/* Race A34. C's READ has copied the key words of the old leaf before B narrows it, and copies the header afterwards. So
 * C's image has the smaller interval and still contains nc and nd. C must return these keys from the new leaf, once and
 * with their new values. Fails if select_keys (leaf_pairs.c) takes keys beyond `hi` from a frozen leaf with this
 * interval. */
TEST_OF_BOTH_INSERTS(scan_of_a_leaf_that_is_being_narrowed) {
    static const uint32_t kwords[] = {8, 9};
    far_addr leaf = make_half_replaced_leaf("atomic_bytes=8", true);
    c->to = "nca";
    narrow_during_a_scan(leaf, kwords, 2, "nba", "na nb nc");
    assert_memory_equal(c->value, V2, 8);
    stage_close(&s);
}


/* Race A34. As in the test above, but the moved keys have key blocks, and one of these blocks was reused. C must not
 * READ the blocks. Fails if dolphin_moved_slots (leaf_pairs.c) ignores `moved` in a frozen leaf that is narrowed. */
TEST_OF_BOTH_INSERTS(key_blocks_of_a_leaf_that_is_being_narrowed) {
    static const uint32_t slots[] = {1};
    char colliding_key[32];
    far_addr leaf = make_half_deepened_leaf(2);
    reuse_key_block(leaf, colliding_key);
    narrow_during_a_scan(leaf, slots, 1, "nka", "na nb " UPPER " nme" TAIL);
    stage_close(&s);
}


static int ignore_object(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    (void)walk, (void)index, (void)type, (void)addr, (void)size;
    return 0;
}


/* Runs the mark phase with pauses between its pins, as on memory of this host. */
static int walk_with_pauses(far_task *t, void *arg) {
    stage_actor *by = arg;
    far_walk walk = {.object = ignore_object};
    by->pool->fabric->at_once = true;
    far_task_throttle(t, true);
    by->pool->fabric->at_once = false;
    return dolphin_walk(t, by->index, &walk);
}


static void run_walk(void *arg) {
    stage_actor *by = arg;
    by->result = far_session_call(by->session, FAR_STATS_OTHER, true, walk_with_pauses, by);
    by->ended = true;
}


/* A mark phase in the background pauses before each pin, nine times as long as it has worked. While it holds a lock
 * that it has taken over from a failed client, it renews its pin to wait for epochs. It must not pause before that pin,
 * because writers wait for the lock. Fails if far_pin_after_epochs pauses. */
TEST_OF_BOTH_INSERTS(traversal_does_not_pause_with_a_lock) {
    far_addr leaf = make_half_replaced_leaf(NULL, true);
    b->ended = false;
    b->client = far_sim_start(b->pool->fabric, "walk", run_walk, b);
    stage_stop_at(b, (far_sim_match){.point = "dolphin:wait_for_readers"});
    far_sim_resume(b->client);
    far_sim_run_for(s.world, 10000000); /* meanwhile no pin becomes newer */
    uint64_t since = far_sim_now(s.world);
    assert_true(*memory_at(leaf) & DOLPHIN_FROZEN);
    while (*memory_at(leaf) & DOLPHIN_FROZEN) { /* now the pins become newer */
        far_sim_run_for(s.world, 10000);
        stage_poll(&s, 1);
        assert_true(far_sim_now(s.world) - since < 10000000);
    }
    assert_string_equal(far_sim_result_name(far_sim_run(s.world)), far_sim_result_name(FAR_SIM_ENDED));
    assert_true(b->ended && b->result == 0 && stage_reads(c, "nc", V2) && keys_have_value(c, "na nb nd nx ny", V1));
    stage_close(&s);
}
