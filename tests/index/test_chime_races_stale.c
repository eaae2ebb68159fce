/* CHIME, named interleavings of what was read long ago or is torn: copies in units of 8 bytes, roots, notes and cached
 * leaves that have grown old, counts that wrap. What fails when the guarding line is taken out is said at each test. */
#include "chime_rig.h"
#include "pool/catalog_layout.h"

#define XXH_INLINE_ALL
#include <xxhash.h>


/* Units of 8 bytes. A reader is stopped in the middle of its copy while its key is updated very often: what it returns
 * was the value at some time, and it need not look again. */
static void a_reader_is_stopped_for_long(void **state) {
    (void)state;
    up("key_size=8,value_size=8,speculation=off", ONE ",atomic_bytes=8");
    uint64_t key = key_at(20, 1);
    assert_int_equal(insert(a, key, 0), 0);
    assert_true(reads(b, key, 0));
    far_addr leaf = chime_ptr_addr(leaf_of(key, NULL));
    far_stats before, after;
    far_session_stats(b->session, &before);
    begin(b, FAR_OP_GET, key, 0);
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ,
                                                       .from = leaf + chime_slot_at(CHIME_PER_LINE, 20),
                                                       .to = leaf + chime_slot_at(CHIME_PER_LINE, 20) + 16});
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


/* Units of 8 bytes. Between a key and its value the slot gets another item: the reader must not return the value of
 * that. Fails without the look at S in look() and speculate(). */
static void a_key_and_the_value_of_another(void **state) {
    (void)state;
    static const char *const options[] = {"key_size=8,value_size=8,speculation=off",
                                          "key_size=8,value_size=8,hotspot=64K"};
    for (unsigned i = 0; i < 2; i++) {
        up(options[i], ONE ",atomic_bytes=8");
        uint64_t key = key_at(20, 1), other = key_at(20, key + 1);
        assert_int_equal(insert(a, key, 1), 0);
        assert_true(reads(b, key, 1));
        far_addr slot = chime_ptr_addr(leaf_of(key, NULL)) + chime_slot_at(CHIME_PER_LINE, 20);
        begin(b, FAR_OP_GET, key, 0);
        far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = slot, .to = slot + 16});
        uint32_t units = far_sim_hold_units(hold), most[64];
        for (uint32_t k = 0; k + 1 < units; k++)
            most[k] = k;
        /* All but what lies behind the key word: the header, which says occupied, and the key. */
        uint64_t *w = memory_of(slot);
        assert_true(w[0] == key);
        unsigned until = 0; /* of the READ, which begins at the header of the line */
        far_addr first = chime_ptr_addr(leaf_of(key, NULL)) + chime_read_from(CHIME_PER_LINE, 20);
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


static void look_at_atomic(void *ctx, const far_sim_posted *posted) {
    const chime_state *st = ctx;
    const far_verb *v = posted->verb;
    (void)st;
    assert_true(v->kind != FAR_FAA || posted->client != a->client);
    if (v->kind == FAR_CAS && v->compare == ~0ull) {
        assert_true(v->swap == ~0ull);
        map_reads++;
    }
}


/* A15. Without masked CAS the map of a leaf is WRITten under the lock, and read by an atomic that must never succeed: a
 * successful one may swallow the WRITE of the holder at the same time, and the map would show a slot free that is not.
 * The holder's WRITE and the reading of who asks for the lock are made to meet. Fails when the map is read by FAA, and
 * when a map can look like what the CAS compares with. */
static void the_map_is_read_without_a_trace(void **state) {
    (void)state;
    up("key_size=8,value_size=8,hop=16", ONE ",masked_cas=off");
    map_reads = 0;
    far_sim_on_verb(s.world, look_at_atomic, chime_state_of(a->index));
    uint64_t *tail, key = 0;
    leaf_of(1, &tail);
    for (unsigned n = 0; n < 70; n++) { /* up to a full leaf */
        key = (uint64_t)n << 50 | n;
        stand(a, "chime:locked", FAR_OP_INSERT, key, n);
        begin(b, FAR_OP_INSERT, key + 1, n);
        far_sim_run_for(s.world, 4000); /* its atomics are under way */
        far_sim_resume(a->client);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        assert_true(a->result == 0 && b->result == 0);
        assert_true(tail[CHIME_TAIL_V] != ~0ull);
    }
    assert_true(map_reads > 140);
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
}


/* A21. A root word that was read long ago: the tree has grown by two levels since. Whoever splits the old root's level
 * adds its pivots to the level that is there, and makes no root of its own. Three lines see to it, each alone:
 * chime_descend and grow_root READ the word, and the CAS compares it. Fails when all three go by the cache. */
static void a_root_from_long_ago(void **state) {
    (void)state;
    up(SMALL, ONE);
    fill(a, 3);
    assert_all(b, 0, 3); /* b knows the leaf as the root */
    uint64_t old = atomic_load_explicit(&chime_state_of(b->index)->root, memory_order_relaxed);
    assert_int_equal(chime_ptr_low(old), 0);
    for (unsigned n = 3; n < 300; n++)
        assert_int_equal(insert(a, nth(n), n), 0);
    settle(a);
    assert_int_equal(height(), 2);
    atomic_store_explicit(&chime_state_of(b->index)->root, old, memory_order_relaxed);
    for (unsigned k = 1; k < 60; k++)
        assert_int_equal(insert(b, nth(0) + k, k), 0);
    settle(b);
    assert_int_equal(height(), 2);
    for (unsigned k = 1; k < 60; k++)
        assert_true(reads(c, nth(0) + k, k));
    assert_all(c, 0, 300);
    stage_close(&s);
}


/* The splitter died before the pivot was in. Whoever meets the new leaf notes it in the cached parent, so that it is
 * not met again; all the same the pivot gets in, because the parent is READ again some time later. Fails without
 * renew_due.
 */
static void a_noted_leaf_gets_its_pivot(void **state) {
    (void)state;
    up(SMALL, ONE);
    fill(b, 24);
    unsigned n = insert_until_split(a, 24);
    chime_ptr made = leaf_at(n), parent = parent_of(0);
    stage_kill(&s, a);
    far_stats before, after;
    assert_true(reads(b, nth(n), n)); /* goes right */
    far_session_stats(b->session, &before);
    assert_true(reads(b, nth(n), n)); /* need not */
    far_session_stats(b->session, &after);
    assert_int_equal(after.round_trips - before.round_trips, 1);
    far_sim_run_for(s.world, 2000000);
    for (unsigned i = 0; i < 3; i++)
        assert_true(misses(b, nth(n) + 1)); /* not by way of the hotspot buffer */
    settle(b);
    uint64_t *w = memory_of(chime_ptr_addr(parent));
    bool there = false;
    for (unsigned slot = 0; slot < 12; slot++)
        there |= chime_is_occupied(shape(), w, slot) && chime_slot(shape(), w, slot)[1] == made;
    assert_true(there);
    stage_close(&s);
}


/* A6. Tags repeat after 2^15 epochs: what a cache knows is trusted for half of that. Fails without EPOCHS_MAX, or
 * without is_aged. */
static void what_is_too_old_is_not_trusted(void **state) {
    (void)state;
    up(SMALL ",hotspot=64K", ONE);
    fill(a, 24);
    assert_true(reads(a, nth(7), 7));
    chime_state *st = chime_state_of(a->index);
    far_pool_usage usage;
    assert_int_equal(far_pool_stat(a->session, &usage), 0);
    uint64_t now = usage.epoch, old = now + (1u << 14), half = now + (1u << 13);
    chime_ptr root = chime_ptr_plain(atomic_load_explicit(&st->root, memory_order_relaxed)), children[12];
    chime_key key;
    chime_route route;
    chime_key_make(st, (far_bytes){bytes_of(nth(7)), 8}, &key);
    assert_true(chime_cache_route(st->cache, st, root, &key, half, &route));
    assert_false(chime_cache_route(st->cache, st, root, &key, old, &route));
    assert_true(chime_cache_children(st->cache, st, root, &key, NULL, half, 12, children) > 0);
    assert_int_equal(chime_cache_children(st->cache, st, root, &key, NULL, old, 12, children), 0);
    assert_true(chime_hot_find(st->hot, key.hash, half) != 0);
    assert_true(chime_hot_find(st->hot, key.hash, old) == 0);
    /* A child that was noted later does not make the rest younger. */
    chime_fence pivot = {.word = nth(7) + 1, .first = nth(7) + 1};
    assert_true(chime_cache_add(st->cache, st, root, &pivot, chime_ptr_make(1 << 20, 1, 0)));
    assert_false(chime_cache_route(st->cache, st, root, &key, old, &route));
    assert_true(chime_cache_route(st->cache, st, root, &key, half, &route));
    chime_cache_drop(st->cache, root);
    stage_close(&s);
}


/* Two whole-node changes of the first leaf, which holds one key of its own: a split, and a merge that takes it back. */
static void split_and_merge_first_leaf(const uint64_t *tail) {
    uint64_t shape = tail[CHIME_TAIL_H1];
    unsigned count = 0;
    for (; tail[CHIME_TAIL_H1] == shape; count++)
        assert_int_equal(insert(a, nth(0) + 1 + count, 1), 0);
    settle(a); /* the pivot */
    shape = tail[CHIME_TAIL_H1];
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(delete (a, nth(0) + 1 + i), 0);
    for (unsigned i = 0; tail[CHIME_TAIL_H1] == shape && i < 10; i++)
        settle(a);
    assert_true(tail[CHIME_TAIL_H1] != shape);
}


/* nv-wrap. Sixteen splits and merges inside one READ leave sibling and nv as they were: only S tells that this READ
 * proves nothing. Fails (one round trip) without S in judge. */
static void the_count_of_changes_wraps(void **state) {
    (void)state;
    up("key_size=8,value_size=8,span=12,hop=4,merge=sparse,miss=bracket,speculation=off", ONE);
    fill(a, 24);
    uint64_t *tail, absent = key_at(2, nth(0) + 1000); /* slots 2 .. 5: two lines */
    chime_ptr leaf = leaf_of(nth(0), &tail);
    unsigned end = end_of(0, 24);
    for (unsigned n = 1; n < end; n++)
        assert_int_equal(delete (a, nth(n)), 0);
    settle(a);
    assert_true(leaf_at(0) == leaf && misses(b, absent));
    far_stats before, after;
    far_session_stats(b->session, &before);
    begin(b, FAR_OP_GET, absent, 0);
    far_sim_hold *hold =
        stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ,
                                      .from = chime_ptr_addr(leaf) + chime_slot_at(CHIME_PER_LINE, 2),
                                      .to = chime_ptr_addr(leaf) + chime_slot_at(CHIME_PER_LINE, 2) + 16});
    static const uint32_t first[] = {0};
    assert_int_equal(far_sim_release_units(hold, first, 1), 0);
    uint64_t shape = tail[CHIME_TAIL_H1];
    for (unsigned i = 0; i < 8; i++)
        split_and_merge_first_leaf(tail);
    assert_int_equal(tail[CHIME_TAIL_H1], shape);
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


/* A check READs the tail of a leaf while it is free, and its lines while an insert has written them but not yet its map:
 * that is no damage. Fails when check_map does not look again. */
static void a_check_beside_an_insert(void **state) {
    (void)state;
    up("key_size=8,value_size=8,span=12,hop=4", ONE);
    assert_int_equal(insert(a, nth(0), 0), 0);
    assert_true(reads(b, nth(0), 0));
    far_addr leaf = chime_ptr_addr(leaf_of(nth(0), NULL)), tail = leaf + chime_tail_at(CHIME_PER_LINE, 12);
    b->ended = false;
    b->client = far_sim_start(b->pool->fabric, "checker", check_index, b);
    far_sim_hold *read = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf + 64, .to = leaf + 128});
    static const uint32_t last[] = {4};
    assert_int_equal(far_sim_hold_units(read), 5);
    assert_int_equal(far_sim_release_units(read, last, 1), 0);
    begin(a, FAR_OP_INSERT, nth(1), 1);
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


/* An index of small pairs from before these lay in the slots: its root says so. Fails without root.magic in chime_open.
 */
static void small_pairs_in_blocks_stay_there(void **state) {
    (void)state;
    uint32_t value = 7, back = 0;
    size_t length;
    up("key_size=8,value_size=4", ONE);
    *memory_of(a->index->descriptor) = CHIME_MAGIC;
    *memory_of(a->index->descriptor + offsetof(chime_root, fixed)) = 0;
    for (unsigned i = 0; i < 3; i++) {
        stage_actor *by = stage_actor_at(&s, i);
        far_index_close(by->index);
        assert_int_equal(far_index_open(by->session, "map", &by->index), 0);
        assert_false(chime_state_of(by->index)->fixed);
    }
    assert_int_equal(far_insert(a->session, a->index, bytes_of(5), 8, &value, 4), 0);
    assert_int_equal(far_get(b->session, b->index, bytes_of(5), 8, &back, 4, &length), 0);
    assert_true(length == 4 && back == value);
    stage_close(&s);
}


/* So does one of larger values from before these lay in the slots. It was made when there was no option
 * that asks for that: here one that asks for less is changed where it is kept. */
static void larger_values_in_blocks_stay_there(void **state) {
    (void)state;
    uint8_t value[20] = {7}, back[20] = {0};
    size_t length;
    up("key_size=8,value_size=20,inline=16", ONE);
    far_index_record *record = (far_index_record *)memory_of(a->index->record);
    char *option = strstr(record->options, "inline=16");
    assert_non_null(option);
    memcpy(option, "inline=40", 9);
    record->check = XXH3_64bits(&record->uid, offsetof(far_index_record, check) - offsetof(far_index_record, uid));
    for (unsigned i = 0; i < 3; i++) {
        stage_actor *by = stage_actor_at(&s, i);
        far_index_close(by->index);
        assert_int_equal(far_index_open(by->session, "map", &by->index), 0);
        assert_true(!chime_state_of(by->index)->fixed && chime_state_of(by->index)->span == 63);
    }
    assert_int_equal(far_insert(a->session, a->index, bytes_of(5), 8, value, sizeof(value)), 0);
    assert_int_equal(far_get(b->session, b->index, bytes_of(5), 8, back, sizeof(back), &length), 0);
    assert_true(length == sizeof(value) && back[0] == 7);
    stage_close(&s);
}


/* A word of the descriptor of pairs that lie in the slots is wiped, or is that of an index that has them elsewhere: neither
 * alone makes it one. (By `fixed` alone it is opened: keys that are there are not found, and inserted again.) */
static void refuses_damaged_words(const char *options, uint64_t other_magic) {
    const struct {
        size_t at;
        uint64_t word;
    } damages[] = {{offsetof(chime_root, fixed), 0},
                   {offsetof(chime_root, magic), CHIME_MAGIC},
                   {offsetof(chime_root, magic), other_magic}};
    up(options, ONE);
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


static void a_word_of_the_root_alone_moves_no_pairs(void **state) {
    (void)state;
    refuses_damaged_words("key_size=5,value_size=4", CHIME_MAGIC_03);
    refuses_damaged_words("key_size=8,value_size=16", CHIME_MAGIC_02);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reader_is_stopped_for_long),
        cmocka_unit_test(a_key_and_the_value_of_another),
        cmocka_unit_test(the_map_is_read_without_a_trace),
        cmocka_unit_test(a_root_from_long_ago),
        cmocka_unit_test(a_noted_leaf_gets_its_pivot),
        cmocka_unit_test(what_is_too_old_is_not_trusted),
        cmocka_unit_test(the_count_of_changes_wraps),
        cmocka_unit_test(a_check_beside_an_insert),
        cmocka_unit_test(larger_values_in_blocks_stay_there),
        cmocka_unit_test(small_pairs_in_blocks_stay_there),
        cmocka_unit_test(a_word_of_the_root_alone_moves_no_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
