/* Dolphin, named interleavings: lives and deaths. Memory that is recycled under stale pointers (T12 .. T14, T30 of its
 * design), and what dead clients leave (T23, T31, T32). What fails when the guarding line is taken out is said at each
 * test. */
#include "dolphin_rig.h"
#include "pool/epoch.h"
#include "pool/sweep.h"
#include "task/session.h"


/* The memory of the leaf of "na" is free again, in a life that c's cache still knows. */
static uint64_t recycle(const char *options) {
    up(options, NULL);
    put_all(a, "na nb");
    assert_true(stage_reads(c, "na", V1));
    uint64_t old = leaf_entry("na", 0);
    put_all(a, "nc"); /* the leaf is replaced */
    stage_age(&s);
    return old;
}


/* Until the memory of the leaf is in use again: keys that begin with p lie on the same memory node as those with n. */
static void reuse(uint64_t old, const char *first) {
    char key[3] = {first[0], first[1], 0};
    uint64_t *spear = memory_of(dolphin_entry_addr(old));
    for (unsigned i = 0; i < 26 && dolphin_tag(*spear) == dolphin_entry_tag(old); i++, key[1]++)
        stage_write(a, key, V3);
    assert_int_not_equal(dolphin_tag(*spear), dolphin_entry_tag(old));
}


/* T12, A18. Who comes through an old pointer adds one to the count and takes it off, in whatever life: were the spear
 * word overwritten at birth, the count would be one too low afterwards. */
static void stray_enter_and_exit_over_recycling(void **state) {
    (void)state;
    uint64_t old = recycle(SLOTS2);
    stand(c, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    reuse(old, "pd");
    stage_finish(c);
    assert_int_equal(dolphin_count(*memory_of(dolphin_entry_addr(old))), 0);
    assert_true(stage_reads(b, "na", V2) && stage_reads(b, "nc", V1));
    put_all(a, "pa pb pc pd pe pf pg");
    stage_close(&s);
}


/* T13, A19. A recycled leaf that is being built for other keys is not what the cache knew: the tag tells. */
static void stale_pointer_to_recycled_leaf(void **state) {
    (void)state;
    uint64_t old = recycle(SLOTS2);
    reuse(old, "pd");
    assert_true(stage_reads(c, "na", V1) && stage_reads(c, "nx", NULL));
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", V2), 0);
    assert_true(stage_reads(b, "na", V2));
    stage_close(&s);
}


/* The same by a hint, which knows the slot: there the recycled leaf has a key with the same rest, alive. */
static void stale_hint_to_recycled_leaf(void **state) {
    (void)state;
    for (unsigned update = 0; update < 2; update++) {
        uint64_t old = recycle("value_size=8,leaf_slots=2");
        far_addr leaf = dolphin_entry_addr(old);
        char key[3] = "pa"; /* every second letter: on the same memory node */
        for (; key[0] <= 'z' && dolphin_tag(*memory_of(leaf)) == dolphin_entry_tag(old); key[0] += 2)
            stage_write(a, key, V3);
        key[0] -= 2;
        assert_int_equal(*memory_of(dolphin_key_at(leaf, 0)),
                         dolphin_with_state(dolphin_inline_kword((far_bytes){"na", 2}, 1), DOLPHIN_HELD));
        if (update)
            assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", V2), 0);
        assert_true(stage_reads(c, "na", update ? V2 : V1) && stage_reads(b, key, V3));
        stage_close(&s);
    }
}


/* The same, when what is built there is for the very keys, and its builder dies before it links it. */
static void stale_pointer_to_unpublished_leaf(void **state) {
    (void)state;
    uint64_t old = recycle(SLOTS2);
    far_addr leaf = dolphin_entry_addr(old);
    char key[3] = "nd";
    bool held = false;
    for (; key[1] <= 'z' && !held; key[1]++) {
        stage_start(a, FAR_OP_PUT, key, V3);
        far_sim_stop_before(a->client, (far_sim_match){.kind = FAR_SIM_WRITE, .from = leaf, .to = leaf + 96});
        held = far_sim_run_client(a->client) == FAR_SIM_STOPPED;
    }
    assert_true(held);
    far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_FAA, .from = leaf, .to = leaf + 8}, FAR_SIM_WHOLE);
    far_sim_resume(a->client);
    far_sim_run_client(a->client);
    assert_int_not_equal(dolphin_tag(*memory_of(leaf)), dolphin_entry_tag(old));
    stage_kill(&s, a);
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", V2), 0);
    assert_true(stage_reads(b, "na", V2) && stage_reads(c, "na", V2));
    stage_close(&s);
}


/* T30, A20. One READ of two lives: the body before the new one is written, the spear word after its birth. */
static void read_spanning_two_lives(void **state) {
    (void)state;
    up(SLOTS2, "atomic_bytes=8");
    put_all(a, "na nb");
    assert_true(stage_reads(c, "na", V1));
    uint64_t old = leaf_entry("na", 0);
    far_addr leaf = dolphin_entry_addr(old);
    put_all(a, "nc");
    assert_int_equal(stage_do(a, FAR_OP_UPDATE, "na", V2), 0);
    stage_age(&s);
    stage_start(c, FAR_OP_GET, "na", NULL);
    far_sim_hold *hold = stage_hold(c, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf, .to = leaf + 96});
    static const uint32_t body[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    assert_int_equal(far_sim_release_units(hold, body, 11), 0);
    reuse(old, "pd");
    far_sim_release(hold);
    stage_finish(c);
    assert_int_equal(c->result, 0);
    assert_memory_equal(c->value, V2, 8);
    stage_close(&s);
}


/* T14. Pointers that are older than the tags are good for are not used, however well they look. */
static void old_pointers_are_not_used(void **state) {
    (void)state;
    _Static_assert(DOLPHIN_POINTER_LIFE / (4 + DOLPHIN_EXTRA_EPOCHS) < DOLPHIN_TAGS, "no tag comes twice");
    up(SLOTS2, NULL);
    put_all(a, "na nb nc");
    assert_true(stage_reads(a, "na", V1));
    dolphin_hint hint;
    far_bytes key = {"na", 2};
    uint64_t now = 0;
    while ((!dolphin_cache_probe(state_of(a)->cache, key, now, &hint) || hint.depth == 0) && now < 1000)
        now++;
    assert_true(now < 1000);
    uint64_t last = now;
    while (dolphin_cache_probe(state_of(a)->cache, key, last + 1, &hint) && hint.depth > 0)
        last++;
    assert_in_range(last - now, DOLPHIN_POINTER_LIFE - 100, DOLPHIN_POINTER_LIFE + 1);
    stage_close(&s);
}


/* T23, A16, A22. A client dies inside a leaf; its place is waited for until all pins are newer, by the one who replaces
 * the leaf without a pin, while others wait for him and renew theirs. */
static void dead_writer_inside(void **state) {
    (void)state;
    stage_open(&s, "dolphin", insert_by[0] == 'c' ? SLOTS2 ",insert=cas" : SLOTS2, NULL);
    put_all(a, "na nb");
    assert_true(stage_reads(b, "na", V1) && stage_reads(c, "na", V1));
    stand(c, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    stage_kill(&s, c);
    stage_start(a, FAR_OP_INSERT, "nc", V2);
    stage_start(b, FAR_OP_UPDATE, "nb", V2);
    assert_string_equal(far_sim_result_name(far_sim_run(s.world)), far_sim_result_name(FAR_SIM_ENDED));
    assert_true(a->result == 0 && b->result == 0);
    assert_true(stage_reads(a, "nb", V2) && stage_reads(b, "nc", V2) && stage_reads(b, "na", V1));
    stage_close(&s);
}


/* ... and others of his handle wait for him at a gate, without a pin: else the pins would never all be newer. */
static void who_waits_at_a_gate_has_no_pin(void **state) {
    (void)state;
    stage_open(&s, "dolphin", SLOTS2, NULL);
    put_all(a, "na nb");
    assert_true(stage_reads(c, "na", V1));
    stand(c, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    stage_kill(&s, c);
    stage_actor d = another_of(a);
    stand(a, "dolphin:drain", FAR_OP_INSERT, "nc", V2);
    start_and_wait(&d, FAR_OP_UPDATE, "nb", V2);
    far_sim_resume(a->client);
    far_sim_run_for(s.world, 50000000);
    assert_true(a->ended && d.ended && a->result == 0 && d.result == 0);
    assert_true(stage_reads(a, "nb", V2) && stage_reads(b, "nc", V2) && stage_reads(b, "na", V1));
    far_session_close(d.session);
    stage_close(&s);
}


/* sync=exclusive: two come to take over the lock of a leaf from a dead client. Who is late waits: one at a time is inside. */
static void late_takeover_of_a_leaf(void **state) {
    (void)state;
    up(SLOTS2 ",sync=exclusive", NULL);
    put_all(a, "na nb");
    assert_true(stage_reads(b, "na", V1) && stage_reads(c, "na", V1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0)), lock = leaf + DOLPHIN_LEAF_LOCK;
    stand(a, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    uint64_t dead = *memory_of(lock);
    stage_kill(&s, a);
    stage_start(b, FAR_OP_UPDATE, "nb", V2);
    stage_stop_at(b, (far_sim_match){.kind = FAR_SIM_CAS, .from = lock, .to = lock + 8, .nth = 5});
    stand(c, "dolphin:entered", FAR_OP_UPDATE, "na", V3);
    assert_int_not_equal(*memory_of(lock), dead);
    far_sim_resume(b->client);
    far_sim_run_for(s.world, 10000);
    assert_true(!b->ended && dolphin_count(*memory_of(leaf)) == 2); /* the dead one, and c */
    stage_finish(c);
    stage_finish(b);
    assert_true(b->result == 0 && c->result == 0 && stage_reads(c, "na", V3) && stage_reads(c, "nb", V2));
    stage_close(&s);
}


/* T31. The lock of a dead client is taken over, and what it left is put right, by a session that may have its number.
 */
static void lock_of_the_dead(void **state) {
    (void)state;
    static const char *const points[] = {"dolphin:locked", "dolphin:frozen", "dolphin:publish", "dolphin:replaced"};
    for (unsigned i = 0; i < 4; i++) {
        up(SLOTS2, NULL);
        put_all(a, FIVE);
        stand(a, points[i], FAR_OP_INSERT, "nd", V2);
        stage_kill(&s, a);
        assert_int_equal(stage_do(b, FAR_OP_PUT, "nca", V3), 0);
        assert_true(all_read(c, FIVE, V1) && stage_reads(c, "nca", V3));
        assert_int_equal(stage_do(c, FAR_OP_PUT, "nd", V3), 0);
        stage_close(&s);
    }
}


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


#define TAIL  "-and-a-long-tail"
#define UPPER "nmc" TAIL " nmd" TAIL


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


static int expect_problem(void *ctx, const char *what) {
    (void)ctx, (void)what;
    return 0;
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


/* A get, or a scan, has READ a frozen leaf, and does not come to look at its node for so long that it takes a new pin.
 * What it READ counts no more: the leaf thawed, the key was updated, and its old block is used anew. */
static void frozen_leaf_of_an_older_pin_in(far_op_kind does, const char *point) {
    static const char other[] = "another one that is as long as the first of them";
    _Static_assert(sizeof(other) == sizeof(LONG1), "their blocks have one size");
    up("leaf_slots=4,hints=off,patience=2", NULL);
    for (const char *key = "abcd"; *key; key++)
        stage_write(c, (char[]){'n', *key, 0}, LONG1);
    assert_true(stage_reads(a, "na", LONG1) && stage_reads(b, "na", LONG1));
    stand(b, "dolphin:frozen", FAR_OP_INSERT, "ne", LONG1);
    a->limit = 1;
    stand(a, point, does, "na", NULL);
    stage_kill(&s, b);
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", LONG2), 0);
    dolphin_node root = node_at("na", 0);
    uint64_t *entry = &root.entries['n' + 1], saved = *entry;
    *entry = 0; /* as in READs that fall into changes, again and again */
    far_sim_resume(a->client);
    for (unsigned i = 0; i < 30; i++) {
        far_epoch_request(a->pool);
        far_sim_run_for(s.world, 20000);
        stage_poll(&s, 1);
    }
    for (unsigned i = 0; i < 40; i++) {
        char key[8];
        snprintf(key, sizeof(key), "p%03u", i);
        stage_write(c, key, other);
    }
    assert_false(a->ended);
    *entry = saved;
    stage_finish(a);
    assert_true(a->result == (does == FAR_OP_SCAN) && a->value_len == strlen(LONG2));
    assert_memory_equal(a->value, LONG2, strlen(LONG2));
    stage_close(&s);
}


static void frozen_leaf_of_an_older_pin(void **state) {
    (void)state;
    frozen_leaf_of_an_older_pin_in(FAR_OP_GET, "dolphin:leaf_read");
    frozen_leaf_of_an_older_pin_in(FAR_OP_SCAN, "dolphin:scan_read");
}


/* A leaf is frozen, and its words are damaged: whoever looks at it again and again comes to an end. Without the bound of
 * a scan it hangs; without the look at what the kept leaf is for it gives what is no key of it. */
static void frozen_leaf_that_is_broken(void **state) {
    (void)state;
    up(SLOTS2, NULL);
    put_all(a, FIVE);
    uint64_t *leaf = memory_of(dolphin_entry_addr(leaf_entry("nb", 1))), spear = leaf[0], ident = leaf[1];
    leaf[0] |= DOLPHIN_FROZEN;
    leaf[1] = dolphin_leaf_ident(2, 0, DOLPHIN_LAST, 3);
    assert_int_equal(stage_do(b, FAR_OP_SCAN, "na", NULL), FAR_ERR_CORRUPT);
    assert_int_equal(stage_do(b, FAR_OP_GET, "nb", NULL), FAR_ERR_CORRUPT);
    leaf[0] = spear;
    leaf[1] = ident;
    assert_true(stage_scans(c, "n", "na nb nc nx ny") && stage_scans(b, "n", "na nb nc nx ny"));
    stage_close(&s);
}


/* Two gets at once. */
static void get_both(stage_actor *by, const char *keys[2], int results[2]) {
    static char values[2][STAGE_VALUE_MAX];
    far_op ops[2], *list[2] = {&ops[0], &ops[1]}, *done[2];
    for (unsigned i = 0; i < 2; i++)
        ops[i] = (far_op){.kind = FAR_OP_GET,
                          .index = by->index,
                          .key = keys[i],
                          .key_len = strlen(keys[i]),
                          .value = values[i],
                          .capacity = sizeof(values[i])};
    assert_int_equal(far_submit(by->session, list, 2), 2);
    assert_int_equal(far_reap(by->session, done, 2, 2), 2);
    for (unsigned i = 0; i < 2; i++)
        results[i] = ops[i].result;
}


/* A value word is damaged, and leads to the block of another key: a block says whose it is, to whoever reads it, by a hint
 * or in the leaf, alone or with others, in scans and checks. */
static void value_of_another_key(void **state) {
    (void)state;
    const char *both[2] = {"nb", "na"};
    int results[2];
    up("leaf_slots=4", NULL);
    for (unsigned i = 0; i < 2; i++)
        stage_write(a, both[i], LONG1);
    assert_true(stage_reads(b, "na", LONG1) && stage_reads(c, "nb", LONG1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
    uint64_t *values = memory_of(dolphin_value_at(leaf, 4, 0)), was = values[1];
    values[1] = values[0];
    assert_int_equal(stage_do(b, FAR_OP_GET, "na", NULL), FAR_ERR_CORRUPT); /* by a hint */
    assert_int_equal(stage_do(c, FAR_OP_GET, "na", NULL), FAR_ERR_CORRUPT);
    assert_int_equal(stage_do(c, FAR_OP_SCAN, "n", NULL), FAR_ERR_CORRUPT);
    get_both(c, both, results);
    assert_true(results[0] == 0 && results[1] == FAR_ERR_CORRUPT);
    assert_int_equal(far_index_check(c->session, c->index, expect_problem, NULL), 1);
    values[1] = was;
    assert_true(stage_scans(c, "n", "na nb"));
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


/* A client dies when the old node is frozen, and the entry above it not yet changed: whoever takes over the lock above
 * lets it thaw. */
static void frozen_node_of_the_dead(void **state) {
    (void)state;
    up(SLOTS1, NULL);
    put_all(a, MANY);
    stand(a, "dolphin:switch", FAR_OP_INSERT, "nc", V2);
    uint64_t *lock = node_at("nb", 1).image;
    stage_kill(&s, a);
    *lock |= DOLPHIN_FROZEN; /* where the CAS was not waited for it may not have taken effect */
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nc", V3), 0);
    assert_true(stage_reads(c, "nc", V3) && all_read(c, MANY, V1));
    stage_close(&s);
}


/* Two come to take over the lock of a dead client. Who is late leaves it alone: were what the other one has frozen
 * since thawed, writers would come into a leaf that is being copied. */
static void late_takeover_changes_nothing(void **state) {
    (void)state;
    up(SLOTS2, NULL);
    put_all(a, FIVE);
    assert_true(all_read(b, FIVE, V1));
    uint64_t *leaf = memory_of(dolphin_entry_addr(leaf_entry("nb", 1)));
    far_addr lock = node_addr("na");
    stand(a, "dolphin:frozen", FAR_OP_INSERT, "nd", V2);
    stage_kill(&s, a);
    stage_start(b, FAR_OP_UPDATE, "nb", V2);
    stage_stop_at(b, (far_sim_match){.kind = FAR_SIM_CAS, .from = lock, .to = lock + 8});
    stand(c, "dolphin:frozen", FAR_OP_INSERT, "nd", V3);
    far_sim_resume(b->client);
    far_sim_run_for(s.world, 100000);
    assert_true(!b->ended && (*leaf & DOLPHIN_FROZEN));
    stage_finish(c);
    stage_finish(b);
    assert_true(b->result == 0 && c->result == 0 && stage_reads(c, "nb", V2) && stage_reads(b, "nd", V3));
    stage_close(&s);
}


/* T31. The number of a dead client is used again, by one that lives: a lock with the old generation is a dead one's.
 * Without the generation in the lock word it would be waited for for ever. */
static void lock_of_the_dead_whose_number_lives(void **state) {
    (void)state;
    stage_open(&s, "dolphin", SLOTS2, NULL);
    put_all(a, FIVE);
    stand(a, "dolphin:locked", FAR_OP_INSERT, "nd", V2);
    unsigned id = a->session->id, generation = a->session->generation;
    uint64_t *lock = memory_of(node_addr("na")), held = *lock;
    assert_int_equal(far_owner_client(dolphin_lock_owner(held)), id);
    stage_kill(&s, a);
    far_session *sessions[64];
    unsigned count = 0;
    bool again = false;
    for (unsigned tries = 0; tries < 8 && !again; tries++) { /* the sweep takes the lock over, and frees the number */
        assert_int_equal(far_pool_check(b->session, 1, fail_at_problem, NULL), 0);
        assert_int_equal(dolphin_lock_owner(*lock), 0);
        for (unsigned i = 0; i < 8 && !again; i++) {
            assert_int_equal(far_session_open(c->pool, &sessions[count]), 0);
            again = sessions[count]->id == id && sessions[count]->generation != generation;
            count++;
        }
    }
    assert_true(again);
    *lock = held;
    assert_int_equal(stage_do(b, FAR_OP_PUT, "nd", V3), 0);
    assert_true(stage_reads(c, "nd", V3) && all_read(c, FIVE, V1));
    while (count)
        far_session_close(sessions[--count]);
    stage_close(&s);
}


/* T32. A client that is declared dead, and goes on, changes nothing any more. */
static void zombie_after_takeover(void **state) {
    (void)state;
    static const char *const points[] = {"dolphin:locked", "dolphin:publish"};
    for (unsigned i = 0; i < 2; i++) {
        up(SLOTS2, NULL);
        put_all(a, FIVE);
        stand(a, points[i], FAR_OP_INSERT, "nd", V2);
        assert_int_equal(far_sim_declare_dead(s.world, a->session->id, a->session->generation), 1);
        assert_int_equal(stage_do(b, FAR_OP_PUT, "nd", V3), 0);
        stage_finish(a);
        assert_true(a->result < 0 && stage_reads(c, "nd", V3) && all_read(c, FIVE, V1));
        stage_kill(&s, a);
        stage_close(&s);
    }
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stray_enter_and_exit_over_recycling),
        cmocka_unit_test(stale_pointer_to_recycled_leaf),
        cmocka_unit_test(stale_hint_to_recycled_leaf),
        cmocka_unit_test(stale_pointer_to_unpublished_leaf),
        cmocka_unit_test(read_spanning_two_lives),
        cmocka_unit_test(old_pointers_are_not_used),
        cmocka_unit_test(dead_writer_inside),
        cmocka_unit_test(who_waits_at_a_gate_has_no_pin),
        cmocka_unit_test(late_takeover_of_a_leaf),
        cmocka_unit_test(lock_of_the_dead),
        cmocka_unit_test(recovery_needs_no_memory),
        cmocka_unit_test(value_goes_before_its_key),
        cmocka_unit_test(scan_of_a_half_replaced_leaf),
        cmocka_unit_test(blocks_of_a_half_replaced_leaf_are_gone),
        cmocka_unit_test(blocks_of_a_leaf_that_was_to_be_replaced_stay),
        cmocka_unit_test(narrowed_leaf_vs_late_read),
        cmocka_unit_test(narrowed_leaf_of_two_dead),
        cmocka_unit_test(null_of_the_dead),
        cmocka_unit_test(frozen_leaf_of_an_older_pin),
        cmocka_unit_test(frozen_leaf_that_is_broken),
        cmocka_unit_test(value_of_another_key),
        cmocka_unit_test(nobody_rests_with_a_lock),
        cmocka_unit_test(frozen_node_of_the_dead),
        cmocka_unit_test(late_takeover_changes_nothing),
        cmocka_unit_test(lock_of_the_dead_whose_number_lives),
        cmocka_unit_test(zombie_after_takeover),
    };
    int failed = cmocka_run_group_tests(tests, inserts_by_ticket, NULL);
    return failed + cmocka_run_group_tests(tests, inserts_by_cas, NULL);
}
