/* Bits of the free bitmap that are wrong: an object in use is said to be home. Stories of sweeps that find it, of owners that
 * have taken it already, and of objects that only look so. (tests/damage/test_false_home.c has every sort of object.) */
#include "settle_rig.h"


static void say_home(const rig *r, const actor *a, far_addr addr) {
    uint64_t *word = bytes_at(r, bit_word(a, addr));
    assert_false(is_home(r, a, addr));
    *word |= 1ull << far_block_inner(&a->pool->geometry, addr) / FAR_GRANULE % FAR_WORD_GRANULES;
}


static int look_at_all(far_task *t, void *arg) {
    (void)arg;
    int err = far_pin_take(t);
    far_store_enter(t);
    if (err == 0)
        err = far_slabs_look_at_all(t);
    far_store_leave(t);
    far_pin_drop(t);
    return err;
}


static void look_main(void *arg) {
    actor *a = arg;
    a->result = call(a, look_at_all, NULL);
}


static int count_problem(void *ctx, const char *what) {
    (void)what;
    ++*(unsigned *)ctx;
    return 0;
}


static unsigned problems(actor *a) {
    unsigned count = 0;
    assert_true(far_pool_check(a->session, 0, count_problem, &count) >= 0);
    return count;
}


/* Its owner has taken it into its store, and handed nothing out yet: it is withdrawn when a sweep is settled. */
static void what_is_in_store_and_in_use_is_not_handed_out(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 1, 2, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1];
    put_many(owner, "a");
    far_addr used = bucket_of(&r, owner, "a7");
    say_home(&r, owner, used);
    assert_int_equal(call(owner, look_at_all, NULL), 0);
    assert_true(is_in_store(owner, used));
    assert_int_equal(sweep(sweeper, FAR_SWEEP_REPAIR), 0);
    assert_false(is_in_store(owner, used));
    use_all_free_memory(&r, owner);
    assert_many(sweeper, "a");
    assert_int_equal(problems(owner), 1);
    assert_int_equal(problems(owner), 0);
    close_holders(&r);
}


/* A count names it, and leaves it as it is; any other sweep takes the bit away. */
static void a_sweep_takes_the_bit_away(void **state) {
    static const far_sweep_mode modes[] = {FAR_SWEEP_SLOWLY, FAR_SWEEP_REPAIR, FAR_SWEEP_SHORT};
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        rig r;
        open_settlers(&r, 2 + i, 2, 0);
        actor *owner = &r.actors[0], *sweeper = &r.actors[1];
        put_many(owner, "a");
        far_addr used[2] = {bucket_of(&r, owner, "a7"), bucket_of(&r, owner, "a9")};
        say_home(&r, owner, used[0]);
        say_home(&r, owner, used[1]);
        assert_int_equal(sweep(sweeper, FAR_SWEEP_COUNT), 0);
        assert_int_equal(sweeper->swept.false_homes, 2);
        assert_true(is_home(&r, owner, used[0]));
        assert_int_equal(sweep(sweeper, modes[i]), 0);
        assert_int_equal(sweeper->swept.false_homes, 2);
        assert_false(is_home(&r, owner, used[0]) || is_home(&r, owner, used[1]));
        assert_int_equal(problems(sweeper), 0);
        use_all_free_memory(&r, owner);
        assert_many(sweeper, "a");
        close_holders(&r);
    }
}


/* Between the owner's look at a word and its taking of what it saw, a sweeper takes the bit away: the owner takes what is there
 * then, and no other bit becomes set. */
static void a_bit_is_put_right_while_its_owner_takes_it(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 6, 2, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1];
    put_many(owner, "a");
    far_addr used = bucket_of(&r, owner, "a7");
    say_home(&r, owner, used);
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:met");
    start(owner, "owner", look_main);
    stop_at(owner,
            (far_sim_match){.kind = FAR_SIM_ATOMIC, .from = bit_word(owner, used), .to = bit_word(owner, used) + 8});
    far_sim_resume(sweeper->client);
    for (unsigned i = 0; i < 1000 && is_home(&r, owner, used); i++)
        far_sim_run_for(r.world, 10000);
    assert_int_equal(word_at(&r, bit_word(owner, used)), 0);
    far_sim_resume(owner->client);
    assert_int_equal(far_sim_run_client(owner->client), FAR_SIM_ENDED);
    assert_int_equal(owner->result, 0);
    assert_int_equal(word_at(&r, bit_word(owner, used)), 0);
    assert_false(is_in_store(owner, used));
    finish_sweep(&r, sweeper);
    assert_int_equal(sweeper->swept.false_homes, 1);
    use_all_free_memory(&r, owner);
    assert_many(sweeper, "a");
    assert_int_equal(problems(owner), 0);
    close_holders(&r);
}


static int send_home(far_task *t, void *arg) {
    (void)arg;
    int err = far_pin_take(t);
    far_foreign_leave(far_store_of(t));
    if (err == 0)
        err = far_send_home(t);
    far_pin_drop(t);
    return err;
}


/* Another than its owner deletes the key, and brings the bucket home. */
static void bring_home(rig *r, actor *other, const char *key, far_addr bucket) {
    assert_int_equal(bucket_of(r, other, key), bucket);
    remove_now(other, key);
    for (unsigned i = 0; i < 100 && !is_home(r, other, bucket); i++) {
        pass_epochs(other, 1);
        assert_int_equal(call(other, send_home, NULL), 0);
    }
    assert_true(is_home(r, other, bucket));
}


/* Two keys whose buckets have their bits in one word. */
static void find_neighbours(const rig *r, const actor *a, char first[16], char second[16]) {
    for (unsigned i = 0; i < MANY; i++)
        for (unsigned k = i + 1; k < MANY; k++) {
            snprintf(first, 16, "a%u", i);
            snprintf(second, 16, "a%u", k);
            far_addr one = bucket_of(r, a, first), other = bucket_of(r, a, second);
            if (one != other && bit_word(a, one) == bit_word(a, other))
                return;
        }
    fail_msg("no two buckets have their bits in one word");
}


/* ... or others bring another object home: the owner takes both. */
static void more_comes_home_while_the_owner_takes(void **state) {
    (void)state;
    rig r;
    char first[16], second[16];
    open_settlers(&r, 10, 2, BY_HAND(1));
    actor *owner = &r.actors[0], *other = &r.actors[1];
    put_many(owner, "a");
    find_neighbours(&r, owner, first, second);
    far_addr one = bucket_of(&r, owner, first), two = bucket_of(&r, owner, second), word = bit_word(owner, one);
    bring_home(&r, other, first, one);
    remove_now(other, second);
    pass_epochs(other, 4);
    assert_false(is_home(&r, owner, two));
    start(owner, "owner", look_main);
    stop_at(owner, (far_sim_match){.kind = FAR_SIM_ATOMIC, .from = word, .to = word + 8});
    assert_int_equal(call(other, send_home, NULL), 0);
    assert_true(is_home(&r, owner, two));
    far_sim_resume(owner->client);
    assert_int_equal(far_sim_run_client(owner->client), FAR_SIM_ENDED);
    assert_int_equal(word_at(&r, word), 0);
    assert_true(is_in_store(owner, one) && is_in_store(owner, two));
    close_holders(&r);
}


/* The owner takes what is home, and puts keys until one is in that bucket. */
static void link_again(rig *r, actor *owner, const char *prefix, far_addr bucket, char key[16]) {
    assert_true(is_home(r, owner, bucket));
    assert_int_equal(call(owner, look_at_all, NULL), 0);
    key[0] = 0;
    for (unsigned i = 0; i < 1000 && bucket_of(r, owner, key) != bucket; i++) {
        snprintf(key, 16, "%s%u", prefix, i);
        put_now(owner, key, 300);
    }
    assert_int_equal(bucket_of(r, owner, key), bucket);
}


/* Home before the walk and behind it, and met by it: it was taken, linked, and brought home again in between. The second walk
 * does not meet it; or it was taken and linked once more, and is not home when the second walk meets it. */
static void suspected_in_vain(unsigned seed, bool again) {
    rig r;
    char key[16];
    open_settlers(&r, seed, 3, 0);
    actor *owner = &r.actors[0], *other = &r.actors[1], *sweeper = &r.actors[2];
    put_many(owner, "a");
    far_addr bucket = bucket_of(&r, owner, "a7");
    bring_home(&r, other, "a7", bucket);
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:homes");
    link_again(&r, owner, "n", bucket, key);
    far_sim_resume(sweeper->client);
    stop_at_point(sweeper, "sweep:met");
    bring_home(&r, other, key, bucket);
    far_sim_resume(sweeper->client);
    stop_at_point(sweeper, "sweep:suspects");
    if (again)
        link_again(&r, owner, "m", bucket, key);
    finish_sweep(&r, sweeper);
    assert_int_equal(sweeper->swept.false_homes, 0);
    assert_int_equal(problems(sweeper), 0);
    close_holders(&r);
}


static void what_comes_home_again_during_a_walk_is_suspected_in_vain(void **state) {
    (void)state;
    suspected_in_vain(7, false);
    suspected_in_vain(9, true);
}


/* Met by the walk, unlinked and brought home behind it, and taken by its owner before it settles: it is in store by right. */
static void what_came_home_behind_the_walk_stays_in_store(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 8, 3, 0);
    actor *owner = &r.actors[0], *other = &r.actors[1], *sweeper = &r.actors[2];
    put_many(owner, "a");
    far_addr bucket = bucket_of(&r, owner, "a7");
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:met");
    bring_home(&r, other, "a7", bucket);
    assert_int_equal(call(owner, look_at_all, NULL), 0);
    assert_true(is_in_store(owner, bucket));
    finish_sweep(&r, sweeper);
    assert_true(is_marked(&r, owner, bucket));
    assert_true(is_in_store(owner, bucket));
    assert_int_equal(problems(owner), 0);
    close_holders(&r);
}


/* The page words of an owned block are read while its owner gives back one slab and cuts another that begins
 * elsewhere: together they are not sound. What is linked lies in slabs that stay, and nothing is wrong. (With
 * far_pages_read in false_home.c: damage.) */
static void page_words_of_two_moments_are_no_damage(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 12, 3, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[2];
    const far_geometry *g = &owner->pool->geometry;
    put_many(owner, "a");
    far_block_id id = block_of(owner, bucket_of(&r, owner, "a7"));
    uint64_t *pages = bytes_at(&r, far_block_page(g, id, 0));
    far_page_state slab = {.in_use = true, .uid = owner->index->uid, .type = TOY_TYPE_BUCKET, .size = 512, .pages = 2};
    assert_int_equal(pages[FAR_BLOCK_PAGES - 1], 0);
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:met");
    pages[FAR_BLOCK_PAGES - 1] = far_page_pack(&slab);
    assert_false(far_pages_sound(g, pages));
    finish_sweep(&r, sweeper);
    pages[FAR_BLOCK_PAGES - 1] = 0;
    assert_int_equal(problems(owner), 0);
    assert_many(owner, "a");
    close_holders(&r);
}


/* What he reads of the block is of two moments, and sound when he looks again. */
static void read_at_two_moments(rig *r, actor *a, far_block_id id) {
    const far_geometry *g = &a->pool->geometry;
    far_addr at = far_block_page(g, id, 0);
    uint64_t *pages = bytes_at(r, at);
    far_page_state slab = {.in_use = true, .uid = a->index->uid, .type = TOY_TYPE_BUCKET, .size = 512, .pages = 2};
    assert_int_equal(pages[FAR_BLOCK_PAGES - 1], 0);
    pages[FAR_BLOCK_PAGES - 1] = far_page_pack(&slab);
    assert_false(far_pages_sound(g, pages));
    far_sim_hold *hold = far_sim_hold_completion(
        a->client, (far_sim_match){.kind = FAR_SIM_READ, .from = at, .to = at + FAR_BLOCK_PAGES * 8});
    far_sim_resume(a->client);
    far_sim_run_client(a->client);
    assert_true(far_sim_reached(hold));
    pages[FAR_BLOCK_PAGES - 1] = 0;
    far_sim_release(hold);
}


static void look_at_usage(void *arg) {
    actor *a = arg;
    far_pool_usage usage;
    a->result = far_pool_stat(a->session, &usage);
}


/* (With page words that are believed at the first look: FAR_ERR_CORRUPT.) */
static void a_sum_looks_again_at_page_words_of_two_moments(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 13, 3, 0);
    actor *owner = &r.actors[0], *other = &r.actors[1];
    put_many(owner, "a");
    start(other, "sums", look_at_usage);
    read_at_two_moments(&r, other, block_of(owner, bucket_of(&r, owner, "a7")));
    finish(other);
    assert_int_equal(other->result, 0);
    close_holders(&r);
}


/* ---- Marks ---- */

/* An orphan is adopted while the sweeper reads what is lost in it. (As above.) */
static void a_sweep_looks_again_at_page_words_of_two_moments(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 14, 3, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1];
    put_many(owner, "a");
    far_addr used = bucket_of(&r, owner, "a7");
    hold_blocks(owner, false);
    assert_int_equal(call(owner, give_up_blocks, NULL), 0);
    assert_int_equal(block_state(&r, sweeper, used).kind, FAR_BLOCK_ORPHAN);
    start_sweep(sweeper);
    stop_at(sweeper, before_done());
    read_at_two_moments(&r, sweeper, block_of(sweeper, used));
    finish_sweep(&r, sweeper);
    assert_many(sweeper, "a");
    assert_nothing_lost(&r, sweeper);
    close_holders(&r);
}


/* A sweep has met all that is in an orphan; then damage takes marks away. Who adopts the block frees nothing by
 * them. */
static void damaged_marks_free_nothing_in_use(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 11, 3, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1], *heir = &r.actors[2];
    put_many(owner, "a");
    hold_blocks(owner, false);
    assert_int_equal(call(owner, give_up_blocks, NULL), 0);
    far_addr used = bucket_of(&r, sweeper, "a7");
    assert_int_equal(block_state(&r, sweeper, used).kind, FAR_BLOCK_ORPHAN);
    assert_int_equal(sweep(sweeper, FAR_SWEEP_REPAIR), 0);
    assert_int_equal(block_state(&r, sweeper, used).kind, FAR_BLOCK_ORPHAN);
    assert_true(is_marked(&r, sweeper, used));
    memset(bytes_at(&r, far_block_marks(&sweeper->pool->geometry, block_of(sweeper, used))), 0,
           far_bitmap_bytes(&sweeper->pool->geometry));
    assert_int_equal(call(heir, adopt_orphans, NULL), 0);
    use_all_free_memory(&r, heir);
    assert_many(sweeper, "a");
    assert_nothing_lost(&r, sweeper);
    close_holders(&r);
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_in_store_and_in_use_is_not_handed_out),
        cmocka_unit_test(a_sweep_takes_the_bit_away),
        cmocka_unit_test(a_bit_is_put_right_while_its_owner_takes_it),
        cmocka_unit_test(more_comes_home_while_the_owner_takes),
        cmocka_unit_test(what_comes_home_again_during_a_walk_is_suspected_in_vain),
        cmocka_unit_test(what_came_home_behind_the_walk_stays_in_store),
        cmocka_unit_test(page_words_of_two_moments_are_no_damage),
        cmocka_unit_test(a_sum_looks_again_at_page_words_of_two_moments),
        cmocka_unit_test(a_sweep_looks_again_at_page_words_of_two_moments),
        cmocka_unit_test(damaged_marks_free_nothing_in_use),
    };
    return cmocka_run_group_tests_name("home bits", tests, NULL, NULL);
}
