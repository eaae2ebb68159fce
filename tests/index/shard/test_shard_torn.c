/* Torn images: the READ of a bucket returns words from different moments, in any order. The words are read in several
 * orders: for every word of a bucket, this word first or last; and every prefix and suffix of the words before the
 * other words. */
#include "shard_rig.h"
#include "test.h"

#include "base/sanitizer.h"
#include "index/common/rdwc.h"

/* number of orders in which the granules are read */
enum { FORMS = 4 };

/* distance between two tested words; larger if the build is slow */
enum { STEP = FAR_ASAN ? 23 : 5 };


static unsigned seen_first(unsigned form, unsigned nth, unsigned units, uint32_t *order) {
    unsigned count = 0;
    for (unsigned i = 0; i < units; i++) {
        bool first = form == 0 ? i == nth : form == 1 ? i != nth : form == 2 ? i <= nth : i >= nth;
        if (first)
            order[count++] = form % 2 ? units - 1 - i : i; /* ascending or descending */
    }
    return count;
}


/* Race H8 (docs/races/shard.md). Proves that a reader with the old root does not return an old value, whatever part of
 * the parent it has read while a split rewrites the parent. The key was changed in the child. Fails if
 * shard_is_splitting (shard.h) always returns false, or if the inline layout clears MOVING before it changes the
 * version. */
static void torn_mark_and_version_on(const variant *variant) {
    const unsigned units = variant->units;
    for (unsigned form = 0; form < FORMS; form++)
        for (unsigned nth = 0; nth<units; nth += units> 8 && form > 1 ? STEP : 1) {
            stage s;
            uint32_t order[64];
            open_stage(&s, variant, 0, GROWING ",idle_sweep=off");
            put(&s.a, key_with(&s.a, 0, 0), 10);
            put(&s.a, key_with(&s.a, 1, 0), 11);
            key k = key_with(&s.a, 1, 0);
            far_addr parent = bucket_addr(&s.a, 0);
            assert_int_equal(get(&s.c, k), 11);
            start(&s.c, FAR_OP_GET, k, 0);
            stage_stop_at(&s.c, (far_sim_match){.kind = FAR_SIM_READ}); /* C relies on the old root */
            put(&s.b, key_with(&s.a, 0, 1), 12);
            start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), 20);
            far_sim_hold *rewriting = stage_hold(&s.b, rewrite_of(variant, parent));
            put(&s.a, k, 21);
            far_sim_hold *reading = far_sim_hold_effect(
                s.c.client, (far_sim_match){.kind = FAR_SIM_READ, .from = parent, .to = parent + 512});
            far_sim_resume(s.c.client);
            while (!far_sim_reached(reading))
                far_sim_run_client(s.c.client);
            assert_int_equal(far_sim_hold_units(reading), variant->units);
            unsigned count = seen_first(form, nth, variant->units, order);
            assert_int_equal(far_sim_release_units(reading, order, count), 0);
            far_sim_release(rewriting);
            stage_finish(&s.b);
            far_sim_release(reading);
            stage_finish(&s.c);
            assert_int_equal(result_value(&s.c), 21);
            stage_tear_down(&s);
        }
}
TEST_ALL_VARIANTS(torn_mark_and_version);


/* A change that happens between the two parts of a get's READ of its bucket, and the possible results of the get. */
typedef struct change {
    const char *name;
    bool growing, leaves, absent;
    uint64_t may[3]; /* values that the get may return; 0: the key may be absent */
    void (*run)(stage *s, key k);
} change;


static void update_it(stage *s, key k) {
    put(&s->a, k, 2);
}


static void delete_it(stage *s, key k) {
    assert_int_equal(delete_key(&s->a, k), 0);
}


static void use_its_slot(stage *s, key k) {
    assert_int_equal(delete_key(&s->a, k), 0);
    for (uint64_t n = 1000; n < 1003; n++)
        assert_int_equal(insert(&s->b, number(n), 5), 0);
}


static void insert_it_anew(stage *s, key k) {
    assert_int_equal(delete_key(&s->a, k), 0);
    assert_int_equal(insert(&s->b, number(1000), 5), 0);
    assert_int_equal(insert(&s->b, k, 2), 0);
}


static void split_bucket(stage *s, key k) {
    (void)k;
    put(&s->b, key_with(&s->a, 0, 1), 12);
    assert_int_equal(version(&s->b), 1);
    put(&s->b, key_with(&s->a, 0, 1), 13);
    assert_true(COUNTED(s, splits_frozen) + COUNTED(s, splits_graced) > 0);
}


static void split_and_update(stage *s, key k) {
    split_bucket(s, k);
    put(&s->a, k, 2);
}


static void update_with_the_split(stage *s, key k) {
    put(&s->b, key_with(&s->a, 0, 1), 12);
    put(&s->b, k, 2);
    assert_int_equal(COUNTED(s, merged), 1);
}


static void delete_with_the_split(stage *s, key k) {
    put(&s->b, key_with(&s->a, 0, 1), 12);
    assert_int_equal(delete_key(&s->b, k), 0);
    assert_int_equal(COUNTED(s, merged), 1);
}


static void insert_with_the_split(stage *s, key k) {
    put(&s->b, key_with(&s->a, 0, 1), 12);
    assert_int_equal(insert(&s->b, k, 2), 0);
    assert_int_equal(COUNTED(s, merged), 1);
}


static const change changes[] = {
    {"update", false, false, false, {1, 2, 2}, update_it},
    {"delete", false, false, false, {1, 0, 0}, delete_it},
    {"slot reused for another key", false, false, false, {1, 0, 0}, use_its_slot},
    {"deleted and inserted again", false, false, false, {1, 0, 2}, insert_it_anew},
    {"split, it stays", true, false, false, {1, 1, 1}, split_bucket},
    {"split, it leaves", true, true, false, {1, 1, 1}, split_bucket},
    {"split and update, it stays", true, false, false, {1, 2, 2}, split_and_update},
    {"split and update, it leaves", true, true, false, {1, 2, 2}, split_and_update},
    {"split with update, it stays", true, false, false, {1, 2, 2}, update_with_the_split},
    {"split with update, it leaves", true, true, false, {1, 2, 2}, update_with_the_split},
    {"split with delete, it stays", true, false, false, {1, 0, 0}, delete_with_the_split},
    {"split with delete, it leaves", true, true, false, {1, 0, 0}, delete_with_the_split},
    {"split with insert, it stays", true, false, true, {0, 2, 2}, insert_with_the_split},
    {"split with insert, it leaves", true, true, true, {0, 2, 2}, insert_with_the_split},
    {"split, another is absent", true, true, true, {0, 0, 0}, split_bucket},
};


/* Returns the n-th key like key_with whose probe order begins in the first half of the bucket. */
static key key_of_first_half(const stage_actor *a, bool leaves, unsigned n) {
    for (unsigned i = 0;; i++) {
        shard_op op = {.st = shard_state_of(a->index), .h = hash_of(a, key_with(a, leaves, i))};
        if (shard_i_half(&op) == 0 && n-- == 0)
            return key_with(a, leaves, i);
    }
}


/* Gets a key while its bucket changes. The get reads the granules `nth` of the order `form` before the change, and the
 * other granules after it. half: the get first reads half of the bucket. */
static void read_around(const variant *variant, bool half, const change *c, unsigned form, unsigned nth) {
    stage s;
    uint32_t order[64];
    const unsigned units = half ? variant->units / 2 : variant->units;
    char options[128];
    snprintf(options, sizeof(options), "%s,half_read=%s", c->growing ? GROWING ",idle_sweep=off" : NO_GROWTH,
             half ? "on" : "off");
    open_stage(&s, variant, 0, options);
    key first = half ? key_of_first_half(&s.a, c->leaves, 0) : key_with(&s.a, c->leaves, 0);
    key k = !c->absent ? first : half ? key_of_first_half(&s.a, c->leaves, 3) : key_with(&s.a, c->leaves, 3);
    put(&s.a, first, 1);
    if (c->growing)
        put(&s.a, key_with(&s.a, !c->leaves, 0), 9);
    far_addr main_bucket = bucket_addr(&s.a, 0);
    assert_int_equal(get(&s.c, k), c->absent ? 0 : 1);
    start(&s.c, FAR_OP_GET, k, 0);
    far_sim_hold *hold = stage_hold(
        &s.c, (far_sim_match){.kind = FAR_SIM_READ, .from = main_bucket, .to = main_bucket + SHARD_BUCKET_BYTES});
    assert_int_equal(far_sim_hold_units(hold), units);
    unsigned count = seen_first(form, nth, units, order);
    assert_int_equal(far_sim_release_units(hold, order, count), 0);
    c->run(&s, k);
    far_sim_release(hold);
    stage_finish(&s.c);
    uint64_t value = result_value(&s.c);
    if (value != c->may[0] && value != c->may[1] && value != c->may[2])
        print_error("%s, %s, form %u of %u: %llu\n", c->name, variant->sim, form, nth, (unsigned long long)value);
    assert_true(value == c->may[0] || value == c->may[1] || value == c->may[2]);
    assert_int_equal(far_sim_watch_errors(s.world), 0);
    stage_tear_down(&s);
}


static void words_in_every_order_on(const variant *variant) {
    const unsigned units = variant->units;
    for (unsigned i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
        for (unsigned form = 0; form < FORMS; form++)
            for (unsigned nth = 0; nth<units; nth += units> 8 && (form > 1 || nth > 8) ? STEP : 1)
                read_around(variant, false, &changes[i], form, nth);
    /* the words that identify the state of a bucket */
    for (unsigned i = 0; units == 64 && i < sizeof(changes) / sizeof(changes[0]); i++)
        for (unsigned form = 0; form < FORMS; form++)
            for (unsigned nth = SHARD_I_H; nth < 64; nth++)
                read_around(variant, false, &changes[i], form, nth);
}
TEST_ALL_VARIANTS(words_in_every_order);


/* Rule R8 (find.c). Proves that a get that reads half of its bucket returns only values that the key had meanwhile,
 * whatever part of the half it has read before a change. */
static void words_of_a_half_in_every_order_on(const variant *variant) {
    for (unsigned i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
        for (unsigned form = 0; form < FORMS; form++)
            for (unsigned nth = 0; nth < variant->units / 2; nth++)
                read_around(variant, true, &changes[i], form, nth);
}
TEST_VARIANTS_OF(words_of_a_half_in_every_order, INLINE);


/* Race H39 (docs/races/shard.md). Proves that a get with the old root word that reads half of its bucket does not return
 * an old value. B splits the bucket; B's WRITEs of the announcement and of the child have taken effect, but not that of
 * the parent. A changes the key in the child. C, which knows nothing of the doubling, then gets the key. Fails if
 * shard_i_find_in_half (inline/find.c) ignores LEAVING, or if build_announcement (inline/split.c) does not set it. */
static void half_of_a_parent_after_child_update_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, GROWING ",idle_sweep=off,half_read=on");
    key k = key_of_first_half(&s.a, true, 0);
    put(&s.a, key_with(&s.a, 0, 0), 10);
    put(&s.a, k, 11);
    assert_int_equal(get(&s.c, k), 11);
    start(&s.c, FAR_OP_GET, k, 0);
    stage_stop_at(&s.c, (far_sim_match){.kind = FAR_SIM_READ}); /* C relies on the old root */
    put(&s.b, key_with(&s.a, 0, 1), 12);
    start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), 20);
    far_sim_hold *rewriting = stage_hold(&s.b, rewrite_of(variant, bucket_addr(&s.a, 0)));
    put(&s.a, k, 21);
    far_sim_resume(s.c.client);
    far_sim_run_for(s.world, 20000);
    assert_true(!s.c.ended || result_value(&s.c) == 21);
    far_sim_release(rewriting);
    stage_finish(&s.b);
    stage_finish(&s.c);
    assert_int_equal(result_value(&s.c), 21);
    stage_close(&s);
}
TEST_VARIANTS_OF(half_of_a_parent_after_child_update, INLINE);


/* Race H31 (docs/races/shard.md). Proves that a get does not join another get of its compute node whose READ was posted
 * before it began. Fails if far_rdwc_done gets a later mark. */
static void rdwc_join_posted_read_on(const variant *variant) {
    for (unsigned half = 0; half < 2; half++) {
        stage s;
        open_stage(&s, variant, 0, half ? NO_GROWTH ",half_read=on" : NO_GROWTH);
        s.c.pool->rdwc = far_rdwc_new(0);
        stage_actor late = s.c, later = s.c;
        assert_int_equal(far_session_open(s.c.pool, &late.session), 0);
        assert_int_equal(far_session_open(s.c.pool, &later.session), 0);
        put(&s.a, number(7), 1);
        assert_int_equal(get(&s.c, number(7)), 1);
        assert_int_equal(get(&late, number(7)), 1);
        start(&s.c, FAR_OP_GET, number(7), 0);
        far_sim_hold *hold = far_sim_hold_completion(s.c.client, (far_sim_match){.kind = FAR_SIM_READ});
        for (unsigned i = 0; i < 100 && !far_sim_reached(hold); i++)
            far_sim_run_client(s.c.client);
        assert_true(far_sim_reached(hold)); /* it has read the old value */
        put(&s.a, number(7), 2);
        start(&late, FAR_OP_GET, number(7), 0);
        start(&later, FAR_OP_GET, number(7), 0);
        far_sim_run_for(s.world, 100000);
        far_sim_release(hold);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        assert_true(result_value(&s.c) == 1 || result_value(&s.c) == 2);
        assert_int_equal(result_value(&late), 2);
        assert_int_equal(result_value(&later), 2);
        far_session_close(late.session);
        far_session_close(later.session);
        stage_close(&s);
    }
}
TEST_ALL_VARIANTS(rdwc_join_posted_read);
