/* CHIME, races with outdated or torn copies: READs of 8-byte units, old root words, recorded half splits, cached
 * leaves, and counters that wrap. The comment above each test says without which guard it fails.
 *
 * Clients A (a), B (b) and C (c) are three compute nodes. */
#include "chime_rig.h"
#include "pool/catalog/layout.h"
#include "test.h"

#define XXH_INLINE_ALL
#include <xxhash.h>


/* Race A13, on a fabric that tears lines into units of 8 bytes. B is stopped in the middle of a READ, and its key is
 * updated very often. Proves that the value that B returns was the current one at some time, and B does not READ again.
 */
TEST(a_reader_is_stopped_for_long) {
    open_chime("key_size=8,value_size=8,speculation=off", ONE ",atomic_bytes=8");
    uint64_t key = key_with_home_slot(20, 1);
    assert_int_equal(insert(a, key, 0), 0);
    assert_true(key_has_value(b, key, 0));
    far_addr leaf = chime_ptr_addr(find_leaf(key, NULL));
    far_stats before, after;
    far_session_stats(b->session, &before);
    start_operation(b, FAR_OP_GET, key, 0);
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ,
                                                       .from = leaf + chime_slot_offset(CHIME_PER_LINE, 20),
                                                       .to = leaf + chime_slot_offset(CHIME_PER_LINE, 20) + 16});
    static const uint32_t some[] = {0, 1, 2, 3};
    assert_int_equal(far_sim_release_units(hold, some, 4), 0);
    for (uint64_t i = 1; i <= 3000; i++)
        assert_int_equal(update(a, key, i), 0);
    far_sim_release(hold);
    stage_finish(b);
    uint64_t found;
    memcpy(&found, b->value, 8);
    assert_true(b->result == 0 && found <= 3000);
    far_session_stats(b->session, &after);
    assert_int_equal(after.round_trips - before.round_trips, 1);
    stage_close(&s);
}


/* Race A14, on a fabric that tears lines into units of 8 bytes. Steps: B READs the key word of a slot; A deletes the
 * item, and inserts another one into the slot; B READs the value word. Proves that B does not return the value of the
 * other item. Fails without chime_read_is_stable in search_leaf and search_hotspot (get.c). */
TEST(a_key_and_the_value_of_another) {
    static const char *const options[] = {"key_size=8,value_size=8,speculation=off",
                                          "key_size=8,value_size=8,hotspot=64K"};
    for (unsigned i = 0; i < 2; i++) {
        open_chime(options[i], ONE ",atomic_bytes=8");
        uint64_t key = key_with_home_slot(20, 1), other = key_with_home_slot(20, key + 1);
        assert_int_equal(insert(a, key, 1), 0);
        assert_true(key_has_value(b, key, 1));
        far_addr slot = chime_ptr_addr(find_leaf(key, NULL)) + chime_slot_offset(CHIME_PER_LINE, 20);
        start_operation(b, FAR_OP_GET, key, 0);
        far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = slot, .to = slot + 16});
        uint32_t units = far_sim_hold_units(hold), most[64];
        for (uint32_t k = 0; k + 1 < units; k++)
            most[k] = k;
        /* releases the header with the occupied bit and the key word, but not the value word */
        uint64_t *w = memory_of(slot);
        assert_true(w[0] == key);
        unsigned until = 0; /* number of units from the beginning of the READ, which starts at the header of the line */
        far_addr first = chime_ptr_addr(find_leaf(key, NULL)) + chime_read_begin(CHIME_PER_LINE, 20);
        until = (unsigned)(slot + 8 - first) / 8;
        assert_int_equal(far_sim_release_units(hold, most, until), 0);
        assert_int_equal(delete (a, key), 0);
        assert_int_equal(insert(a, other, 2), 0);
        assert_true(w[0] == other && w[1] == 2);
        far_sim_release(hold);
        stage_finish(b);
        assert_int_equal(b->result, FAR_ERR_NOT_FOUND);
        stage_close(&s);
    }
}


static unsigned map_reads;


static void record_atomic(void *ctx, const far_sim_posted *posted) {
    const chime_state *st = ctx;
    const far_verb *v = posted->verb;
    (void)st;
    assert_true(v->kind != FAR_FAA || posted->client != a->client);
    if (v->kind == FAR_CAS && v->compare == ~0ull) {
        assert_true(v->swap == ~0ull);
        map_reads++;
    }
}


/* Race A15. Without masked CAS, the lock holder A WRITEs the occupancy map, and B reads the map by an atomic that must
 * never succeed. An atomic that succeeds writes back the word that it has read. So it could undo A's WRITE, and the map
 * would show an occupied slot as free. The test lets A's WRITE and B's atomic meet. Fails if the map is read by FAA, or
 * if a map can be equal to the value with which the CAS compares. */
TEST(the_map_is_read_without_writing) {
    open_chime("key_size=8,value_size=8,hop=16", ONE ",masked_cas=off");
    map_reads = 0;
    far_sim_on_verb(s.world, record_atomic, chime_state_of(a->index));
    uint64_t *tail, key = 0;
    find_leaf(1, &tail);
    for (unsigned n = 0; n < 70; n++) { /* these inserts fill the leaf */
        key = (uint64_t)n << 50 | n;
        run_until_point(a, "chime:locked", FAR_OP_INSERT, key, n);
        start_operation(b, FAR_OP_INSERT, key + 1, n);
        far_sim_run_for(s.world, 4000); /* B's atomics are in flight */
        far_sim_resume(a->client);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        assert_true(a->result == 0 && b->result == 0);
        assert_true(tail[CHIME_TAIL_V] != ~0ull);
    }
    assert_true(map_reads > 140);
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
}


/* Race A21. Steps: B reads the root word; A makes the tree grow by two levels; B splits nodes of the level of the old
 * root. Proves that B inserts its pivots into the existing level, and publishes no root of its own. There are three
 * guards, each of which is sufficient alone: chime_descend READs the root word again, grow_root does so too, and the
 * CAS on the root word compares it. Fails if all three use the cached root word. */
TEST(an_old_root_word) {
    open_chime(SMALL, ONE);
    insert_keys(a, 3);
    assert_keys_present(b, 0, 3); /* B's cache contains a root that is still a leaf. */
    uint64_t old = atomic_load_explicit(&chime_state_of(b->index)->root, memory_order_relaxed);
    assert_int_equal(chime_ptr_low(old), 0);
    for (unsigned n = 3; n < 300; n++)
        assert_int_equal(insert(a, nth_key(n), n), 0);
    run_background_work(a);
    assert_int_equal(height(), 2);
    atomic_store_explicit(&chime_state_of(b->index)->root, old, memory_order_relaxed);
    for (unsigned k = 1; k < 60; k++)
        assert_int_equal(insert(b, nth_key(0) + k, k), 0);
    run_background_work(b);
    assert_int_equal(height(), 2);
    for (unsigned k = 1; k < 60; k++)
        assert_true(key_has_value(c, nth_key(0) + k, k));
    assert_keys_present(c, 0, 300);
    stage_close(&s);
}


/* Race A9. A fails after a split, before the pivot is inserted. When B first reaches the new leaf through the sibling
 * pointer of the old one, it adds the new leaf to its cached copy of the parent. Proves that B need not move right
 * again, and that the pivot is inserted nevertheless, because B READs the parent again later. The guards are in find.c:
 * without chime_cache_add_child in chime_note_half_split, B moves right again; without renew_due_parents, no client
 * inserts the pivot. */
TEST(a_recorded_half_split_gets_its_pivot) {
    open_chime(SMALL ",speculation=off", ONE); /* without speculation only the cached parent leads B to the leaf */
    insert_keys(b, 24);
    unsigned n = insert_until_split(a, 24);
    chime_ptr made = leaf_of_nth(n), parent = parent_of_nth(0);
    stage_kill(&s, a);
    far_stats before, after;
    assert_true(key_has_value(b, nth_key(n), n)); /* B moves right to the new leaf. */
    far_session_stats(b->session, &before);
    /* B's cached parent contains the new leaf, so B does not move right. */
    assert_true(key_has_value(b, nth_key(n), n));
    far_session_stats(b->session, &after);
    assert_int_equal(after.round_trips - before.round_trips, 1);
    far_sim_run_for(s.world, 2000000);
    for (unsigned i = 0; i < 3; i++)
        assert_true(key_is_absent(b, nth_key(n) + 1));
    run_background_work(b);
    uint64_t *w = memory_of(chime_ptr_addr(parent));
    bool there = false;
    for (unsigned slot = 0; slot < 12; slot++)
        there |= chime_slot_is_occupied(state_of_a(), w, slot) && chime_slot(state_of_a(), w, slot)[1] == made;
    assert_true(there);
    stage_close(&s);
}


/* Race A6. Incarnation tags repeat after 2^15 epochs. Proves that caches use an entry for at most half of that time.
 * Fails without EPOCHS_MAX (cache.c), without entry_is_too_old (cache_hotspot.c), or if that function compares so few
 * bits of the epoch that a much older entry looks recent. */
TEST(old_cache_entries_are_not_used) {
    open_chime(SMALL ",hotspot=64K", ONE);
    insert_keys(a, 24);
    assert_true(key_has_value(a, nth_key(7), 7));
    chime_state *st = chime_state_of(a->index);
    far_pool_usage usage;
    assert_int_equal(far_pool_stat(a->session, &usage), 0);
    uint64_t now = usage.epoch, old = now + (1u << 14), half = now + (1u << 13);
    chime_ptr root = chime_ptr_without_low(atomic_load_explicit(&st->root, memory_order_relaxed));
    chime_key key;
    chime_route route;
    chime_key_make(st, (far_bytes){bytes_of(nth_key(7)), 8}, &key);
    assert_true(chime_cache_route(st->cache, st, root, &key, half, &route));
    assert_false(chime_cache_route(st->cache, st, root, &key, old, &route));
    chime_leaf_list list = {.at = &key, .wanted = 12};
    assert_true(chime_cache_children(st->cache, st, root, half, &list) && list.count > 0);
    assert_false(chime_cache_children(st->cache, st, root, old, &list));
    assert_true(chime_hot_find(st->hot, key.hash, half) != 0);
    assert_true(chime_hot_find(st->hot, key.hash, old) == 0);
    for (uint64_t age = 1u << 14; age < 1u << 20; age += 1000)
        assert_true(chime_hot_find(st->hot, key.hash, now + age) == 0);
    assert_true(chime_hot_find(st->hot, key.hash, now + (1ull << 32)) == 0);
    /* A child that is added later must not make the entry look younger. */
    chime_fence pivot = {.word = nth_key(7) + 1, .first = nth_key(7) + 1};
    assert_true(chime_cache_add_child(st->cache, st, root, &pivot, chime_ptr_make(1 << 20, 1, 0)));
    assert_false(chime_cache_route(st->cache, st, root, &key, old, &route));
    assert_true(chime_cache_route(st->cache, st, root, &key, half, &route));
    chime_cache_drop(st->cache, root);
    stage_close(&s);
}


/* Changes the first leaf twice, by a split and by a merge that undoes the split. The leaf has one key of its own. */
static void split_and_merge_first_leaf(const uint64_t *tail) {
    uint64_t state_of_a = tail[CHIME_TAIL_H1];
    unsigned count = 0;
    for (; tail[CHIME_TAIL_H1] == state_of_a; count++)
        assert_int_equal(insert(a, nth_key(0) + 1 + count, 1), 0);
    run_background_work(a); /* The background work inserts the pivot. */
    state_of_a = tail[CHIME_TAIL_H1];
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(delete (a, nth_key(0) + 1 + i), 0);
    for (unsigned i = 0; tail[CHIME_TAIL_H1] == state_of_a && i < 10; i++)
        run_background_work(a);
    assert_true(tail[CHIME_TAIL_H1] != state_of_a);
}


/* Race A13. Within one READ of B, A does 16 splits and merges of the leaf, so that sibling and node version are the
 * same as before. Proves that B notices, by the two values of S (the structure nonce), that this READ proves nothing.
 * Without S in classify_miss (get.c) the get ends after one round trip and the test fails. */
TEST(the_count_of_changes_wraps) {
    open_chime("key_size=8,value_size=8,span=12,hop=4,merge=sparse,miss=bracket,speculation=off", ONE);
    insert_keys(a, 24);
    /* B's neighbourhood is slots 2 to 5, which are in two lines. */
    uint64_t *tail, absent = key_with_home_slot(2, nth_key(0) + 1000);
    chime_ptr leaf = find_leaf(nth_key(0), &tail);
    unsigned end = first_key_after_leaf(0, 24);
    for (unsigned n = 1; n < end; n++)
        assert_int_equal(delete (a, nth_key(n)), 0);
    run_background_work(a);
    assert_true(leaf_of_nth(0) == leaf && key_is_absent(b, absent));
    far_stats before, after;
    far_session_stats(b->session, &before);
    start_operation(b, FAR_OP_GET, absent, 0);
    far_sim_hold *hold =
        stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ,
                                      .from = chime_ptr_addr(leaf) + chime_slot_offset(CHIME_PER_LINE, 2),
                                      .to = chime_ptr_addr(leaf) + chime_slot_offset(CHIME_PER_LINE, 2) + 16});
    static const uint32_t first[] = {0};
    assert_int_equal(far_sim_release_units(hold, first, 1), 0);
    uint64_t state_of_a = tail[CHIME_TAIL_H1];
    for (unsigned i = 0; i < 8; i++)
        split_and_merge_first_leaf(tail);
    assert_int_equal(tail[CHIME_TAIL_H1], state_of_a);
    far_sim_release(hold);
    stage_finish(b);
    far_session_stats(b->session, &after);
    assert_int_equal(b->result, FAR_ERR_NOT_FOUND);
    assert_true(after.round_trips - before.round_trips >= 2);
    stage_close(&s);
}


static int count_problem(void *ctx, const char *what) {
    (void)what;
    ++*(unsigned *)ctx;
    return 0;
}


static void check_index(void *arg) {
    stage_actor *by = arg;
    unsigned problems = 0;
    by->result = far_index_check(by->session, by->index, count_problem, &problems);
    by->result = by->result < 0 ? by->result : (int)problems;
    by->ended = true;
}


/* Steps: a check of B READs the tail of a leaf while it is unlocked; A inserts an item, and has WRITTEN the lines but
 * not the map; the check READs the lines. Proves that the check does not report the map as wrong. Fails if check_map
 * (check.c) does not READ the leaf again. */
TEST(a_check_concurrent_with_an_insert) {
    open_chime("key_size=8,value_size=8,span=12,hop=4", ONE);
    assert_int_equal(insert(a, nth_key(0), 0), 0);
    assert_true(key_has_value(b, nth_key(0), 0));
    far_addr leaf = chime_ptr_addr(find_leaf(nth_key(0), NULL)), tail = leaf + chime_tail_offset(CHIME_PER_LINE, 12);
    b->ended = false;
    b->client = far_sim_start(b->pool->fabric, "checker", check_index, b);
    far_sim_hold *read = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf + 64, .to = leaf + 128});
    static const uint32_t last[] = {4};
    assert_int_equal(far_sim_hold_units(read), 5);
    assert_int_equal(far_sim_release_units(read, last, 1), 0);
    start_operation(a, FAR_OP_INSERT, nth_key(1), 1);
    far_sim_hold *unlock = stage_hold(
        a, (far_sim_match){.kind = FAR_SIM_WRITE, .from = tail + 8 * CHIME_TAIL_S, .to = tail + 8 * CHIME_TAIL_S + 16});
    far_sim_release(read);
    far_sim_run_for(s.world, 50000);
    far_sim_release(unlock);
    stage_finish(a);
    stage_finish(b);
    assert_int_equal(b->result, 0);
    stage_close(&s);
}


/* Proves that an index of small pairs that was created when these were stored in pair blocks is opened in that format,
 * which its descriptor names. Fails without the comparison of root.magic in chime_open (kind.c). */
TEST(old_small_pairs_stay_in_blocks) {
    uint32_t value = 7, back = 0;
    size_t length;
    open_chime("key_size=8,value_size=4", ONE);
    *memory_of(a->index->descriptor) = CHIME_MAGIC;
    *memory_of(a->index->descriptor + offsetof(chime_root, inline_items)) = 0;
    for (unsigned i = 0; i < 3; i++) {
        stage_actor *by = stage_actor_at(&s, i);
        far_index_close(by->index);
        assert_int_equal(far_index_open(by->session, "map", &by->index), 0);
        assert_false(chime_state_of(by->index)->inline_items);
    }
    assert_int_equal(far_insert(a->session, a->index, bytes_of(5), 8, &value, 4), 0);
    assert_int_equal(far_get(b->session, b->index, bytes_of(5), 8, &back, 4, &length), 0);
    assert_true(length == 4 && back == value);
    stage_close(&s);
}


/* Proves that an index of larger values that was created when these were stored in pair blocks is opened in that
 * format. The option `inline` did not exist when such an index was created; the test creates an index with a smaller
 * `inline` and changes its stored options. */
TEST(old_larger_values_stay_in_blocks) {
    uint8_t value[20] = {7}, back[20] = {0};
    size_t length;
    open_chime("key_size=8,value_size=20,inline=16", ONE);
    far_index_record *record = (far_index_record *)memory_of(a->index->record);
    char *option = strstr(record->options, "inline=16");
    assert_non_null(option);
    memcpy(option, "inline=40", 9);
    record->check = XXH3_64bits(&record->uid, offsetof(far_index_record, check) - offsetof(far_index_record, uid));
    for (unsigned i = 0; i < 3; i++) {
        stage_actor *by = stage_actor_at(&s, i);
        far_index_close(by->index);
        assert_int_equal(far_index_open(by->session, "map", &by->index), 0);
        assert_true(!chime_state_of(by->index)->inline_items && chime_state_of(by->index)->span == 63);
    }
    assert_int_equal(far_insert(a->session, a->index, bytes_of(5), 8, value, sizeof(value)), 0);
    assert_int_equal(far_get(b->session, b->index, bytes_of(5), 8, back, sizeof(back), &length), 0);
    assert_true(length == sizeof(value) && back[0] == 7);
    stage_close(&s);
}


/* Asserts that an index is refused as corrupt if one word of its descriptor is wiped, or if its magic number is that of
 * another format. (If the index were opened in the other format, existing keys would not be found and could be inserted
 * again.) */
static void assert_damaged_words_are_refused(const char *options, uint64_t other_magic) {
    const struct {
        size_t at;
        uint64_t word;
    } damages[] = {{offsetof(chime_root, inline_items), 0},
                   {offsetof(chime_root, magic), CHIME_MAGIC},
                   {offsetof(chime_root, magic), other_magic}};
    open_chime(options, ONE);
    for (unsigned i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
        uint64_t *word = memory_of(a->index->descriptor + damages[i].at), saved = *word;
        far_index_close(b->index);
        *word = damages[i].word;
        assert_int_equal(far_index_open(b->session, "map", &b->index), FAR_ERR_CORRUPT);
        *word = saved;
        assert_int_equal(far_index_open(b->session, "map", &b->index), 0);
    }
    stage_close(&s);
}


TEST(one_damaged_descriptor_word_is_rejected) {
    assert_damaged_words_are_refused("key_size=5,value_size=4", CHIME_MAGIC_03);
    assert_damaged_words_are_refused("key_size=8,value_size=16", CHIME_MAGIC_02);
}
