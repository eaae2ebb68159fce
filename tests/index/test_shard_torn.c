/* The READ of a bucket sees its words at different moments, in any order: some before another's change, the others
 * after it. For every word: that one first, that one last; and every prefix, and every suffix. */
#include "shard_rig.h"

#include "base/sanitizer.h"
#include "index/rdwc.h"

/* Which units are seen first. */
enum { FORMS = 4 };

/* Not every one of many words, and fewer where every step takes long. */
enum { STEP = FAR_ASAN ? 23 : 5 };


static unsigned seen_first(unsigned form, unsigned nth, unsigned units, uint32_t *order) {
    unsigned count = 0;
    for (unsigned i = 0; i < units; i++) {
        bool first = form == 0 ? i == nth : form == 1 ? i != nth : form == 2 ? i <= nth : i >= nth;
        if (first)
            order[count++] = form % 2 ? units - 1 - i : i; /* rising and falling */
    }
    return count;
}


/* H8: a reader with the old root, after the key was changed in the child: whatever it sees of the parent while the
 * mover rewrites that, it does not take the old value. (is_splitting always false; I: MOVING cleared before the
 * version.) */
static void torn_mark_and_version_told(const told *told) {
    const unsigned units = told->units;
    for (unsigned form = 0; form < FORMS; form++)
        for (unsigned nth = 0; nth<units; nth += units> 8 && form > 1 ? STEP : 1) {
            stage s;
            uint32_t order[64];
            open_stage(&s, told, 0, GROWING ",idle_sweep=off");
            put(&s.a, key_with(&s.a, 0, 0), 10);
            put(&s.a, key_with(&s.a, 1, 0), 11);
            key k = key_with(&s.a, 1, 0);
            far_addr parent = bucket_addr(&s.a, 0);
            assert_int_equal(get(&s.c, k), 11);
            start(&s.c, FAR_OP_GET, k, 0);
            stage_stop_at(&s.c, (far_sim_match){.kind = FAR_SIM_READ}); /* it goes by the old root */
            put(&s.b, key_with(&s.a, 0, 1), 12);
            start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), 20);
            far_sim_hold *rewriting = stage_hold(&s.b, write_of(parent));
            put(&s.a, k, 21);
            far_sim_hold *reading = far_sim_hold_effect(
                s.c.client, (far_sim_match){.kind = FAR_SIM_READ, .from = parent, .to = parent + 512});
            far_sim_resume(s.c.client);
            while (!far_sim_reached(reading))
                far_sim_run_client(s.c.client);
            assert_int_equal(far_sim_hold_units(reading), told->units);
            unsigned count = seen_first(form, nth, told->units, order);
            assert_int_equal(far_sim_release_units(reading, order, count), 0);
            far_sim_release(rewriting);
            stage_finish(&s.b);
            far_sim_release(reading);
            stage_finish(&s.c);
            assert_int_equal(given(&s.c), 21);
            stage_tear_down(&s);
        }
}
TOLD_OF_ALL(torn_mark_and_version);


/* What happens between the two parts of a get's READ of its bucket; may: what the get may say then. */
typedef struct change {
    const char *name;
    bool growing, leaves, absent;
    uint64_t may[3]; /* 0: absent */
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


static void split(stage *s, key k) {
    (void)k;
    put(&s->b, key_with(&s->a, 0, 1), 12);
    assert_int_equal(version(&s->b), 1);
    put(&s->b, key_with(&s->a, 0, 1), 13);
    assert_true(COUNTED(s, splits_frozen) + COUNTED(s, splits_graced) > 0);
}


static void split_and_update(stage *s, key k) {
    split(s, k);
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
    {"slot used for another", false, false, false, {1, 0, 0}, use_its_slot},
    {"deleted and inserted anew", false, false, false, {1, 0, 2}, insert_it_anew},
    {"split, it stays", true, false, false, {1, 1, 1}, split},
    {"split, it leaves", true, true, false, {1, 1, 1}, split},
    {"split and update, it stays", true, false, false, {1, 2, 2}, split_and_update},
    {"split and update, it leaves", true, true, false, {1, 2, 2}, split_and_update},
    {"split with update, it stays", true, false, false, {1, 2, 2}, update_with_the_split},
    {"split with update, it leaves", true, true, false, {1, 2, 2}, update_with_the_split},
    {"split with delete, it stays", true, false, false, {1, 0, 0}, delete_with_the_split},
    {"split with delete, it leaves", true, true, false, {1, 0, 0}, delete_with_the_split},
    {"split with insert, it stays", true, false, true, {0, 2, 2}, insert_with_the_split},
    {"split with insert, it leaves", true, true, true, {0, 2, 2}, insert_with_the_split},
    {"split, another is absent", true, true, true, {0, 0, 0}, split},
};


static void read_around(const told *told, const change *c, unsigned form, unsigned nth) {
    stage s;
    uint32_t order[64];
    open_stage(&s, told, 0, c->growing ? GROWING ",idle_sweep=off" : STILL);
    key k = key_with(&s.a, c->leaves, c->absent ? 3 : 0);
    put(&s.a, key_with(&s.a, c->leaves, 0), 1);
    if (c->growing)
        put(&s.a, key_with(&s.a, !c->leaves, 0), 9);
    far_addr home = bucket_addr(&s.a, 0);
    assert_int_equal(get(&s.c, k), c->absent ? 0 : 1);
    start(&s.c, FAR_OP_GET, k, 0);
    far_sim_hold *hold =
        stage_hold(&s.c, (far_sim_match){.kind = FAR_SIM_READ, .from = home, .to = home + SHARD_BUCKET_BYTES});
    assert_int_equal(far_sim_hold_units(hold), told->units);
    unsigned count = seen_first(form, nth, told->units, order);
    assert_int_equal(far_sim_release_units(hold, order, count), 0);
    c->run(&s, k);
    far_sim_release(hold);
    stage_finish(&s.c);
    uint64_t value = given(&s.c);
    if (value != c->may[0] && value != c->may[1] && value != c->may[2])
        print_error("%s, %s, form %u of %u: %llu\n", c->name, told->sim, form, nth, (unsigned long long)value);
    assert_true(value == c->may[0] || value == c->may[1] || value == c->may[2]);
    assert_int_equal(far_sim_watch_errors(s.world), 0);
    stage_tear_down(&s);
}


static void words_in_every_order_told(const told *told) {
    const unsigned units = told->units;
    for (unsigned i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
        for (unsigned form = 0; form < FORMS; form++)
            for (unsigned nth = 0; nth<units; nth += units> 8 && (form > 1 || nth > 8) ? STEP : 1)
                read_around(told, &changes[i], form, nth);
    /* the words that say what a bucket is */
    for (unsigned i = 0; units == 64 && i < sizeof(changes) / sizeof(changes[0]); i++)
        for (unsigned form = 0; form < FORMS; form++)
            for (unsigned nth = SHARD_I_H; nth < 64; nth++)
                read_around(told, &changes[i], form, nth);
}
TOLD_OF_ALL(words_in_every_order);


/* H31: a get does not join another one of its compute node whose READ was posted before it began. (far_rdwc_done with a
 * later mark.) */
static void rdwc_join_posted_read_told(const told *told) {
    for (unsigned window = 0; window < 2; window++) {
        stage s;
        open_stage(&s, told, 0, window ? STILL ",window_read=on" : STILL);
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
        assert_true(far_sim_reached(hold)); /* it has seen the old value */
        put(&s.a, number(7), 2);
        start(&late, FAR_OP_GET, number(7), 0);
        start(&later, FAR_OP_GET, number(7), 0);
        far_sim_run_for(s.world, 100000);
        far_sim_release(hold);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        assert_true(given(&s.c) == 1 || given(&s.c) == 2);
        assert_int_equal(given(&late), 2);
        assert_int_equal(given(&later), 2);
        far_session_close(late.session);
        far_session_close(later.session);
        stage_close(&s);
    }
}
TOLD_OF_ALL(rdwc_join_posted_read);


int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(torn_mark_and_version),
        cmocka_unit_test(words_in_every_order),
        cmocka_unit_test(rdwc_join_posted_read),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
