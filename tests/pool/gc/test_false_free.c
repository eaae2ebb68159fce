/* Tests of false free bits: damage sets the free bit of an object in use. The tests cover collections that find such a
 * bit, owners that have taken the object already, and objects that only seem to have a false bit.
 * tests/damage/test_false_free_kinds.c does this for every type of object. Proves false_free.c. */
#include "sweep_phase_rig.h"
#include "test.h"


static void set_false_free_bit(const rig *r, const actor *a, far_addr addr) {
    uint64_t *word = bytes_at(r, bit_word(a, addr));
    assert_false(free_bit_is_set(r, a, addr));
    *word |= 1ull << far_block_offset(&a->pool->geometry, addr) / FAR_GRANULE % FAR_WORD_GRANULES;
}


static int take_all_returned(far_task *t, void *arg) {
    (void)arg;
    int err = far_pin_take(t);
    far_store_enter(t);
    if (err == 0)
        err = far_slabs_take_all_returned(t);
    far_store_leave(t);
    far_pin_drop(t);
    return err;
}


static void take_all_returned_main(void *arg) {
    actor *a = arg;
    a->result = call(a, take_all_returned, NULL);
}


static int count_problem(void *ctx, const char *what) {
    (void)what;
    ++*(unsigned *)ctx;
    return 0;
}


static unsigned count_problems(actor *a) {
    unsigned count = 0;
    assert_true(far_pool_check(a->session, 0, count_problem, &count) >= 0);
    return count;
}


/* Damage sets the free bit of an object in use. The owner takes the bit, so that the object is in its store, but has
 * not handed it out yet. A collection marks the object, and the owner withdraws it when it sweeps. Fails without
 * far_store_withdraw in sweep_slab (sweep.c). */
TEST(an_object_in_use_is_withdrawn_from_the_store) {
    rig r;
    open_owners(&r, 1, 2, 0);
    actor *owner = &r.actors[0], *collector = &r.actors[1];
    put_many(owner, "a");
    far_addr used = bucket_of(&r, owner, "a7");
    set_false_free_bit(&r, owner, used);
    assert_int_equal(call(owner, take_all_returned, NULL), 0);
    assert_true(is_in_store(owner, used));
    assert_int_equal(sweep(collector, FAR_COLLECT_REPAIR), 0);
    assert_false(is_in_store(owner, used));
    use_all_free_memory(&r, owner);
    assert_many(collector, "a");
    assert_int_equal(count_problems(owner), 1);
    assert_int_equal(count_problems(owner), 0);
    close_rig_with_held_blocks(&r);
}


/* Every collection finds false free bits. Only FAR_COLLECT_MEND clears them. Afterwards the objects are intact although
 * all free memory is used. */
TEST(only_a_mending_collection_clears_false_free_bits) {
    static const far_collect_mode modes[] = {FAR_COLLECT_COUNT, FAR_COLLECT_IN_BACKGROUND, FAR_COLLECT_REPAIR,
                                             FAR_COLLECT_OUT_OF_MEMORY};
    rig r;
    open_owners(&r, 2, 2, 0);
    actor *owner = &r.actors[0], *collector = &r.actors[1];
    put_many(owner, "a");
    far_addr used[2] = {bucket_of(&r, owner, "a7"), bucket_of(&r, owner, "a9")};
    set_false_free_bit(&r, owner, used[0]);
    set_false_free_bit(&r, owner, used[1]);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(sweep(collector, modes[i]), 0);
        assert_int_equal(collector->swept.false_free_bits, 2);
        assert_true(free_bit_is_set(&r, owner, used[0]) && free_bit_is_set(&r, owner, used[1]));
    }
    assert_int_equal(count_problems(collector), 1);
    assert_int_equal(sweep(collector, FAR_COLLECT_MEND), 0);
    assert_int_equal(collector->swept.false_free_bits, 2);
    assert_false(free_bit_is_set(&r, owner, used[0]) || free_bit_is_set(&r, owner, used[1]));
    assert_int_equal(count_problems(collector), 0);
    use_all_free_memory(&r, owner);
    assert_many(collector, "a");
    close_rig_with_held_blocks(&r);
}


/* A client may open the pool while a repair runs. The owner A has read a bitmap word with a false bit and stops before its
 * CAS. The collector B clears the bit. A continues: its CAS fails, and it takes the bits that are set now. No other bit changes. Fails if the bits are taken
 * by FAA instead of CAS (take_free_bits in slabs.c), because the subtraction would borrow from other bits. */
TEST(a_false_bit_is_cleared_while_its_owner_takes_it) {
    rig r;
    open_owners(&r, 6, 2, 0);
    actor *owner = &r.actors[0], *collector = &r.actors[1];
    put_many(owner, "a");
    far_addr used = bucket_of(&r, owner, "a7");
    set_false_free_bit(&r, owner, used);
    collector->mode = FAR_COLLECT_MEND;
    start(collector, "sweeper", sweep_main);
    stop_at_point(collector, "collect:walk_indexes");
    start(owner, "owner", take_all_returned_main);
    stop_at(owner,
            (far_sim_match){.kind = FAR_SIM_ATOMIC, .from = bit_word(owner, used), .to = bit_word(owner, used) + 8});
    far_sim_resume(collector->client);
    for (unsigned i = 0; i < 1000 && free_bit_is_set(&r, owner, used); i++)
        far_sim_run_for(r.world, 10000);
    assert_int_equal(word_at(&r, bit_word(owner, used)), 0);
    far_sim_resume(owner->client);
    assert_int_equal(far_sim_run_client(owner->client), FAR_SIM_ENDED);
    assert_int_equal(owner->result, 0);
    assert_int_equal(word_at(&r, bit_word(owner, used)), 0);
    assert_false(is_in_store(owner, used));
    finish_collection(&r, collector);
    assert_int_equal(collector->swept.false_free_bits, 1);
    use_all_free_memory(&r, owner);
    assert_many(collector, "a");
    assert_int_equal(count_problems(owner), 0);
    close_rig_with_held_blocks(&r);
}


static int flush_returns(far_task *t, void *arg) {
    (void)arg;
    int err = far_pin_take(t);
    far_remote_objects_queue_return(far_store_of(t));
    if (err == 0)
        err = far_returns_flush(t);
    far_pin_drop(t);
    return err;
}


/* The actor, whose handle does not own the block of the bucket, deletes the key and returns the key's bucket to the
 * owner of the block. */
static void delete_and_return(rig *r, actor *other, const char *key, far_addr bucket) {
    assert_int_equal(bucket_of(r, other, key), bucket);
    remove_now(other, key);
    for (unsigned i = 0; i < 100 && !free_bit_is_set(r, other, bucket); i++) {
        pass_epochs(other, 1);
        assert_int_equal(call(other, flush_returns, NULL), 0);
    }
    assert_true(free_bit_is_set(r, other, bucket));
}


static uint32_t count_slabs(const actor *a) {
    uint32_t count = 0;
    for (const far_slab *slab = far_slab_next(a->pool->store, NULL); slab; slab = far_slab_next(a->pool->store, slab))
        count++;
    return count;
}


/* Finds two keys whose buckets have their free bits in the same bitmap word. */
static void find_neighbours(const rig *r, const actor *a, char first[16], char second[16]) {
    for (unsigned i = 0; i < MANY; i++)
        for (unsigned k = i + 1; k < MANY; k++) {
            snprintf(first, 16, "a%u", i);
            snprintf(second, 16, "a%u", k);
            far_addr one = bucket_of(r, a, first), other = bucket_of(r, a, second);
            if (one != other && bit_word(a, one) == bit_word(a, other))
                return;
        }
    fail_msg("no two buckets have their free bits in one word");
}


/* The owner A has read a bitmap word and stops before its CAS. Handle B returns another object with its bit in the same
 * word. A must take both objects. Fails if post_bit_takes (slabs.c) does not try again with the value that its CAS
 * found. */
TEST(an_object_returned_while_the_owner_takes_bits_is_taken_too) {
    rig r;
    char first[16], second[16];
    open_owners(&r, 10, 2, WITHOUT_HOUSEKEEPING(1));
    actor *owner = &r.actors[0], *other = &r.actors[1];
    put_many(owner, "a");
    find_neighbours(&r, owner, first, second);
    far_addr one = bucket_of(&r, owner, first), two = bucket_of(&r, owner, second), word = bit_word(owner, one);
    delete_and_return(&r, other, first, one);
    remove_now(other, second);
    pass_epochs(other, 4);
    assert_false(free_bit_is_set(&r, owner, two));
    start(owner, "owner", take_all_returned_main);
    stop_at(owner, (far_sim_match){.kind = FAR_SIM_ATOMIC, .from = word, .to = word + 8});
    assert_int_equal(call(other, flush_returns, NULL), 0);
    assert_true(free_bit_is_set(&r, owner, two));
    far_sim_resume(owner->client);
    assert_int_equal(far_sim_run_client(owner->client), FAR_SIM_ENDED);
    assert_int_equal(word_at(&r, word), 0);
    assert_true(is_in_store(owner, one) && is_in_store(owner, two));
    close_rig_with_held_blocks(&r);
}


/* The owner takes returned objects and puts keys with this prefix until a key uses the given bucket. Stores that key in
 * `key`. */
static void link_again(rig *r, actor *owner, const char *prefix, far_addr bucket, char key[16]) {
    assert_true(free_bit_is_set(r, owner, bucket));
    assert_int_equal(call(owner, take_all_returned, NULL), 0);
    key[0] = 0;
    for (unsigned i = 0; i < 1000 && bucket_of(r, owner, key) != bucket; i++) {
        snprintf(key, 16, "%s%u", prefix, i);
        put_now(owner, key, 300);
    }
    assert_int_equal(bucket_of(r, owner, key), bucket);
}


/* A bucket is returned before the collector reads the tables. Before the walk reaches it, the owner takes it and links
 * it again. So the walk reaches an object whose free bit was set, which is not a false bit. Fails if
 * far_false_free_examine does not read the tables again. */
TEST(an_object_linked_again_during_the_walk_is_no_false_free) {
    rig r;
    char key[16];
    open_owners(&r, 7, 3, 0);
    actor *owner = &r.actors[0], *other = &r.actors[1], *collector = &r.actors[2];
    put_many(owner, "a");
    far_addr bucket = bucket_of(&r, owner, "a7");
    delete_and_return(&r, other, "a7", bucket);
    start_sweep(collector);
    stop_at_point(collector, "collect:walk_indexes");
    link_again(&r, owner, "n", bucket, key);
    finish_collection(&r, collector);
    assert_true(is_marked(&r, owner, bucket));
    assert_int_equal(collector->swept.false_free_bits, 0);
    assert_int_equal(count_problems(collector), 0);
    close_rig_with_held_blocks(&r);
}


/* After the collector has read the tables, the owner cuts new slabs and links objects in them. The walk reaches objects
 * where the tables described none. That is no damage. */
TEST(objects_in_slabs_cut_during_the_walk_are_no_damage) {
    rig r;
    open_owners(&r, 9, 2, 0);
    actor *owner = &r.actors[0], *collector = &r.actors[1];
    put_many(owner, "a");
    start_sweep(collector);
    stop_at_point(collector, "collect:walk_indexes");
    uint32_t slabs = count_slabs(owner);
    for (unsigned round = 0; count_slabs(owner) == slabs; round++) {
        char prefix[4];
        snprintf(prefix, sizeof(prefix), "m%u", round);
        put_many(owner, prefix);
    }
    finish_collection(&r, collector);
    assert_int_equal(collector->swept.false_free_bits, 0);
    assert_many(collector, "a");
    close_rig_with_held_blocks(&r);
}


/* The mark phase reaches a bucket. Then handle B unlinks and returns it, and the owner takes it before it sweeps. The
 * bucket is in the store and is marked, but it must stay in the store. Fails if objects taken by their free bits do not
 * become black (add_taken_objects in slabs.c), because the owner would withdraw the bucket. */
TEST(an_object_returned_after_the_walk_stays_in_the_store) {
    rig r;
    open_owners(&r, 8, 3, 0);
    actor *owner = &r.actors[0], *other = &r.actors[1], *collector = &r.actors[2];
    put_many(owner, "a");
    far_addr bucket = bucket_of(&r, owner, "a7");
    start_sweep(collector);
    stop_at_point(collector, "collect:walked_indexes");
    delete_and_return(&r, other, "a7", bucket);
    assert_int_equal(call(owner, take_all_returned, NULL), 0);
    assert_true(is_in_store(owner, bucket));
    finish_collection(&r, collector);
    assert_true(is_marked(&r, owner, bucket));
    assert_true(is_in_store(owner, bucket));
    assert_int_equal(count_problems(owner), 0);
    close_rig_with_held_blocks(&r);
}


/* Returns the last page of the block that begins no slab; with `free`, the last free page. Returns 0 if there is none. */
static unsigned find_page(const uint64_t pages[FAR_BLOCK_PAGES], bool free) {
    unsigned last = 0;
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++)
        if (pages[p] == 0)
            last = p;
        else if (free)
            p += far_page_unpack(pages[p]).pages - 1;
    return last;
}


/* Writes the word of a slab that is longer than the rest of the block, so that the page words are not sound. Returns the
 * place of the word. */
static uint64_t *make_page_words_unsound(const actor *owner, uint64_t pages[FAR_BLOCK_PAGES], bool free) {
    far_page_state slab = {
        .in_use = true, .uid = owner->index->uid, .type = TOY_TYPE_BUCKET, .size = 512, .pages = FAR_BLOCK_PAGES};
    unsigned page = find_page(pages, free);
    assert_true(page > 0);
    pages[page] = far_page_pack(&slab);
    assert_false(far_pages_are_sound(&owner->pool->geometry, pages));
    return &pages[page];
}


/* The collector reads the page words of an owned block while the owner releases a slab and cuts another one at a
 * different place. The words of the two moments together are not sound. That is no damage, because linked objects are
 * in slabs that stay. The bucket was free when the collector read the tables first, so the walk reads them again. Fails
 * if tables_have_object (false_free.c) requires that all page words of the block are sound. */
TEST(page_words_of_two_moments_are_no_damage) {
    rig r;
    char key[16];
    open_owners(&r, 12, 3, 0);
    actor *owner = &r.actors[0], *other = &r.actors[1], *collector = &r.actors[2];
    put_many(owner, "a");
    far_addr bucket = 0;
    uint64_t *pages = NULL;
    for (unsigned i = 0; i < MANY && !bucket; i++) {
        snprintf(key, sizeof(key), "a%u", i);
        far_addr addr = bucket_of(&r, owner, key);
        pages = bytes_at(&r, far_block_page(&owner->pool->geometry, block_of(owner, addr), 0));
        bucket = find_page(pages, true) > 0 ? addr : 0;
    }
    assert_true(bucket != 0);
    delete_and_return(&r, other, key, bucket);
    start_sweep(collector);
    stop_at_point(collector, "collect:walk_indexes");
    link_again(&r, owner, "n", bucket, key);
    uint64_t *unsound = make_page_words_unsound(owner, pages, true);
    finish_collection(&r, collector);
    assert_true(is_marked(&r, owner, bucket));
    *unsound = 0;
    assert_int_equal(count_problems(owner), 0);
    close_rig_with_held_blocks(&r);
}


/* Makes the actor read the page words of a block in two parts, from two moments, so that the words together are not
 * sound. Makes the words sound before the actor can read them again. */
static void read_at_two_moments(rig *r, actor *a, far_block_id id) {
    const far_geometry *g = &a->pool->geometry;
    far_addr at = far_block_page(g, id, 0);
    uint64_t *pages = bytes_at(r, at);
    uint64_t *unsound = make_page_words_unsound(a, pages, false);
    far_sim_hold *hold = far_sim_hold_completion(
        a->client, (far_sim_match){.kind = FAR_SIM_READ, .from = at, .to = at + FAR_BLOCK_PAGES * 8});
    far_sim_resume(a->client);
    far_sim_run_client(a->client);
    assert_true(far_sim_reached(hold));
    *unsound = 0;
    far_sim_release(hold);
}


static void read_usage_main(void *arg) {
    actor *a = arg;
    far_pool_usage usage;
    a->result = far_pool_stat(a->session, &usage);
}


/* far_pool_stat reads page words of two moments. It must read them again instead of reporting corruption. Fails without
 * far_tables_read_until_sound in add_slab_bytes (usage.c). */
TEST(statistics_reread_page_words_of_two_moments) {
    rig r;
    open_owners(&r, 13, 3, 0);
    actor *owner = &r.actors[0], *other = &r.actors[1];
    put_many(owner, "a");
    start(other, "sums", read_usage_main);
    read_at_two_moments(&r, other, block_of(owner, bucket_of(&r, owner, "a7")));
    finish(other);
    assert_int_equal(other->result, 0);
    close_rig_with_held_blocks(&r);
}


/* ---- Damaged page words and marks during a collection ---- */

/* An orphan is adopted while the collector reads its tables to find leaked objects. The collector must read the page
 * words again instead of reporting corruption. Fails without far_tables_read_until_sound in sweep_orphan (collect.c).
 */
TEST(a_collection_rereads_page_words_of_two_moments) {
    rig r;
    open_owners(&r, 14, 3, 0);
    actor *owner = &r.actors[0], *collector = &r.actors[1];
    put_many(owner, "a");
    far_addr used = bucket_of(&r, owner, "a7");
    hold_blocks(owner, false);
    assert_int_equal(call(owner, release_all_blocks, NULL), 0);
    assert_int_equal(block_state(&r, collector, used).kind, FAR_BLOCK_ORPHAN);
    start_sweep(collector);
    stop_at(collector, before_done());
    read_at_two_moments(&r, collector, block_of(collector, used));
    finish_collection(&r, collector);
    assert_many(collector, "a");
    assert_nothing_lost(&r, collector);
    close_rig_with_held_blocks(&r);
}


/* A collection has marked the objects of an orphan, and damage clears the marks. A handle that adopts the block must
 * not free objects because of that. Fails without check_marks (sweep.c). */
TEST(damaged_marks_free_nothing_in_use) {
    rig r;
    open_owners(&r, 11, 3, 0);
    actor *owner = &r.actors[0], *collector = &r.actors[1], *adopter = &r.actors[2];
    put_many(owner, "a");
    hold_blocks(owner, false);
    assert_int_equal(call(owner, release_all_blocks, NULL), 0);
    far_addr used = bucket_of(&r, collector, "a7");
    assert_int_equal(block_state(&r, collector, used).kind, FAR_BLOCK_ORPHAN);
    assert_int_equal(sweep(collector, FAR_COLLECT_REPAIR), 0);
    assert_int_equal(block_state(&r, collector, used).kind, FAR_BLOCK_ORPHAN);
    assert_true(is_marked(&r, collector, used));
    memset(bytes_at(&r, far_block_marks(&collector->pool->geometry, block_of(collector, used))), 0,
           far_bitmap_bytes(&collector->pool->geometry));
    assert_int_equal(call(adopter, adopt_orphans, NULL), 0);
    use_all_free_memory(&r, adopter);
    assert_many(collector, "a");
    assert_nothing_lost(&r, collector);
    close_rig_with_held_blocks(&r);
}
