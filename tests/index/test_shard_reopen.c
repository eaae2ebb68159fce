/* Buckets that are opened again, and filters that forget: a table whose keys change, and whose size does not, stays as
 * fast as it was. Layout P: the eras of a bucket, each race by itself. Both layouts: what the filter says while keys
 * leave levels 2 and 3. */
#include "client/op.h"
#include "shard_rig.h"

#define WIDE  "slots=16,l2_slots=1,afs=1000000" /* two lines of slots */
#define ROOMY "slots=2,l2_slots=4,afs=1000000"
#define THREE "slots=3,l2_slots=1,afs=1000000" /* all keys have the same order of slots */


/* The n-th key whose order of slots begins with that line, of the two there are. */
static key key_from_line(const stage_actor *a, unsigned line, unsigned n) {
    for (uint64_t i = 1;; i++) {
        shard_try y = {.st = shard_state_of(a->index), .h = hash_of(a, number(i))};
        unsigned start = shard_start_line(&y);
        if ((start == 1 ? 1u : 0u) == line && n-- == 0)
            return number(i);
    }
}


static uint64_t header_of(stage *s) { /* once nothing is under way */
    far_sim_run_for(s->world, 50000);
    return words_at(s, bucket_addr(&s->a, 0))[shard_header_at(shard_state_of(s->a.index))];
}


static void take(stage_actor *a, key k) {
    assert_int_equal(delete_key(a, k), 0);
}


/* Fills both lines, opens the bucket again, and lets b know of it: every slot is in use at era 1. Keys 0 to 7 of a line
 * were put first; now 0 and 1 of line 0, and 0 of line 1, are gone, and 8, 9 and 8 are there. */
static void fill_at_era_1(stage *s) {
    for (unsigned i = 0; i < 16; i++)
        put(&s->a, key_from_line(&s->a, i / 8, i % 8), 1);
    take(&s->a, key_from_line(&s->a, 0, 0));
    take(&s->a, key_from_line(&s->a, 0, 1));
    take(&s->a, key_from_line(&s->a, 1, 0));
    put(&s->a, key_from_line(&s->a, 1, 8), 1);
    assert_int_equal(COUNTED(s, reopened), 1);
    put(&s->b, key_from_line(&s->a, 0, 8), 1);
    put(&s->b, key_from_line(&s->a, 0, 9), 1);
    assert_int_equal(COUNTED(s, reopened), 1);
    assert_int_equal(COUNTED(s, overflows), 0);
}


/* b inserts k, and has read the header, but nothing of the bucket. */
static far_sim_hold *hold_image_of_b(stage *s, key k) {
    far_addr bucket = bucket_addr(&s->a, 0);
    start(&s->b, FAR_OP_INSERT, k, 5);
    return stage_hold(&s->b, (far_sim_match){.kind = FAR_SIM_READ, .from = bucket, .to = bucket + 8});
}


static void show_first_line(far_sim_hold *hold, const told *told) {
    uint32_t order[8];
    for (unsigned i = 0; i < 8; i++)
        order[i] = i;
    assert_int_equal(far_sim_release_units(hold, order, told->units / 8), 0);
}


/* c puts k, then b sees the rest of the bucket: k is there once. */
static void put_before_the_rest(stage *s, far_sim_hold *hold, key k) {
    put(&s->c, k, 7);
    far_sim_release(hold);
    stage_finish(&s->b);
    assert_int_equal(s->b.result, FAR_ERR_EXISTS);
    assert_there_once(s, k, 7);
}


/* An insert reads one line before the bucket is opened again, and the other after it: it sees that k is in neither, and
 * an EMPTY word behind the one that k has taken meanwhile. (The image taken for one of the era of its EMPTY word.) */
static void an_image_of_two_eras_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, WIDE);
    fill_at_era_1(&s);
    key k = key_from_line(&s.a, 0, 20);
    take(&s.a, key_from_line(&s.a, 0, 2));
    take(&s.a, key_from_line(&s.a, 1, 1));
    take(&s.a, key_from_line(&s.a, 1, 2));
    far_sim_hold *hold = hold_image_of_b(&s, k);
    show_first_line(hold, told);
    put(&s.a, key_from_line(&s.a, 1, 9), 1); /* takes a word of line 1, and opens two */
    assert_int_equal(COUNTED(&s, reopened), 2);
    put_before_the_rest(&s, hold, k); /* in the word of line 0 */
    stage_close(&s);
}
TOLD_OF(an_image_of_two_eras, POINTERS);


/* A handle that knows of no era meets one: it looks again, with the header ahead. */
static void an_era_nobody_told_of_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, WIDE);
    fill_at_era_1(&s);
    take(&s.a, key_from_line(&s.a, 0, 2));
    take(&s.a, key_from_line(&s.a, 0, 3));
    put(&s.a, key_from_line(&s.a, 0, 10), 1);
    assert_int_equal(COUNTED(&s, reopened), 2);
    assert_int_equal(insert(&s.c, key_from_line(&s.a, 0, 10), 2), FAR_ERR_EXISTS);
    put(&s.c, key_from_line(&s.a, 0, 11), 3);
    assert_there_once(&s, key_from_line(&s.a, 0, 11), 3);
    stage_close(&s);
}
TOLD_OF(an_era_nobody_told_of, POINTERS);


/* Fills what is free, frees all of it, and inserts k, which takes the first word; the other two are opened again. */
static void reopen_for(stage *s, key k, unsigned turn) {
    for (unsigned i = 0; i < 3; i++)
        put(&s->a, number(1000 + 3 * turn + i), 1);
    for (unsigned i = 0; i < 3; i++)
        take(&s->a, number(1000 + 3 * turn + i));
    put(&s->a, k, 7);
}


/* An insert has seen an EMPTY word. Until its CAS the word is used, freed, and opened again, and k comes to another word.
 * (EMPTY words that are all alike.) */
static void an_empty_word_of_long_ago_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, THREE);
    key k = number(7), first = number(1);
    put(&s.a, first, 1);
    start(&s.b, FAR_OP_INSERT, k, 5);
    stage_stop_at(&s.b, at("shard:insert"));
    put(&s.a, number(2), 1);
    put(&s.a, number(3), 1);
    take(&s.a, first);
    take(&s.a, number(2));
    take(&s.a, number(3));
    put(&s.a, k, 7);
    assert_int_equal(COUNTED(&s, reopened), 1);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, FAR_ERR_EXISTS);
    assert_there_once(&s, k, 7);
    stage_close(&s);
}
TOLD_OF(an_empty_word_of_long_ago, POINTERS);


static void move_the_epoch(stage *s) {
    far_epoch_request(s->a.pool);
    far_sim_sleep(s->world, 100000);
    stage_poll(s, 1);
}


/* Until eras of the bucket may begin in this epoch and in the next one. */
static void wait_for_eras(stage *s) {
    uint64_t header = header_of(s), epoch;
    while (epoch = atomic_load(&s->a.pool->epochs.known),
           shard_next_era(header, epoch) == 0 || shard_next_era(header, epoch + 1) == 0)
        move_the_epoch(s);
}


/* An insert has read the header, and is held up before the bucket. However often the bucket is used up and freed
 * meanwhile, the number of its era does not come round: the pin of the insert holds the epoch. (Eras that are counted.) */
static void an_era_does_not_come_round_told(const told *told) {
    enum { TURNS = 40 };
    stage s;
    open_stage(&s, told, 0, THREE);
    key k = number(7), first = number(1);
    reopen_for(&s, first, 0);
    take(&s.a, first);
    put(&s.b, first, 1); /* b knows that there are eras */
    take(&s.b, first);
    wait_for_eras(&s);
    far_sim_hold *hold = hold_image_of_b(&s, k);
    unsigned before = shard_header_era(header_of(&s)), ended = 0;
    for (unsigned turn = 1; turn <= TURNS; turn++) {
        reopen_for(&s, first, turn);
        take(&s.a, first);
        unsigned now = shard_header_era(header_of(&s));
        assert_false(ended >> now & 1);
        ended |= now != before ? 1u << before : 0;
        before = now;
        move_the_epoch(&s);
    }
    assert_true(COUNTED(&s, reopened) > 5);
    put_before_the_rest(&s, hold, k);
    stage_close(&s);
}
TOLD_OF(an_era_does_not_come_round, POINTERS);


/* The n-th key from that line that stays in the first bucket when it is split. */
static key staying_key(const stage_actor *a, unsigned line, unsigned n) {
    const shard_state *st = shard_state_of(a->index);
    for (unsigned i = 0;; i++) {
        key k = key_from_line(a, line, i);
        if (!shard_changes(hash_of(a, k), st->p, st->b, 1) && n-- == 0)
            return k;
    }
}


/* An insert has read the header before a split, and the bucket after it. The bucket has an era of the same number again,
 * which began between its two lines. (The number of the era without the version.) */
static void an_era_of_the_version_before_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, WIDE ",idle_sweep=off");
    for (unsigned i = 0; i < 16; i++)
        put(&s.a, staying_key(&s.a, i / 8, i % 8), 1);
    take(&s.a, staying_key(&s.a, 0, 0));
    take(&s.a, staying_key(&s.a, 1, 0));
    put(&s.a, staying_key(&s.a, 1, 8), 1); /* one word is left, of an era of version 0 */
    unsigned era = shard_header_era(header_of(&s));
    assert_int_not_equal(era, 0);
    double_by(&s, &s.a);
    while (shard_next_era(shard_header(1, 0, 0), atomic_load(&s.a.pool->epochs.known) + 1) != era)
        move_the_epoch(&s);
    key k = staying_key(&s.a, 0, 20);
    atomic_store(&shard_state_of(s.b.index)->part[0].eras, 2); /* b has met eras of version 1 in another bucket */
    far_sim_hold *hold = hold_image_of_b(&s, k);
    put(&s.a, staying_key(&s.a, 0, 8), 1); /* splits, and takes the last word */
    show_first_line(hold, told);
    take(&s.a, staying_key(&s.a, 0, 1));
    take(&s.a, staying_key(&s.a, 1, 1));
    take(&s.a, staying_key(&s.a, 1, 2));
    move_the_epoch(&s);
    put(&s.a, staying_key(&s.a, 1, 9), 1); /* opens a word in each line */
    assert_int_equal(shard_header_v(header_of(&s)), 1);
    assert_int_equal(shard_header_era(header_of(&s)), era);
    put_before_the_rest(&s, hold, k); /* in the word of line 0 */
    stage_close(&s);
}
TOLD_OF(an_era_of_the_version_before, POINTERS);


/* Who opens a bucket dies before the header says so: its words are used, by the next one who has the lock, and not
 * before. (A word of an era that the header does not know taken without the lock.) */
static void an_opening_cut_short_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, WIDE);
    fill_at_era_1(&s);
    for (unsigned i = 2; i < 6; i++)
        take(&s.a, key_from_line(&s.a, 0, i));
    start(&s.b, FAR_OP_INSERT, key_from_line(&s.a, 0, 10), 5);
    stage_stop_at(&s.b, at("shard:reopened"));
    stage_kill(&s, &s.b);
    key k = key_from_line(&s.a, 0, 20);
    start(&s.c, FAR_OP_INSERT, k, 7);
    stage_finish(&s.c);
    assert_int_equal(s.c.result, 0);
    assert_int_equal(insert(&s.a, k, 8), FAR_ERR_EXISTS);
    assert_int_equal(COUNTED(&s, overflows), 0);
    assert_int_equal(get(&s.a, k), 7);
    put(&s.a, key_from_line(&s.a, 0, 21), 9); /* one of the words that are open now */
    assert_int_equal(get(&s.c, key_from_line(&s.a, 0, 21)), 9);
    stage_close(&s);
}
TOLD_OF(an_opening_cut_short, POINTERS);


/* Who opens a bucket shows the era when all of it is done: its own entry may come last. Another insert of the key that
 * goes by that era finds the entry. (The header shown in one batch with the CASes: these have no order with a WRITE.) */
static void an_era_is_shown_last_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, WIDE);
    fill_at_era_1(&s);
    take(&s.a, key_from_line(&s.a, 0, 2));
    take(&s.a, key_from_line(&s.a, 0, 3));
    take(&s.a, key_from_line(&s.a, 1, 1));
    far_addr bucket = bucket_addr(&s.a, 0);
    unsigned tomb = 8;
    while (!shard_is_tomb(words_at(&s, bucket)[tomb]))
        tomb++;
    assert_in_range(tomb, 8, 15);
    key k = key_from_line(&s.a, 1, 20); /* it takes that one, behind those of line 0, which are opened */
    start(&s.b, FAR_OP_INSERT, k, 5);
    far_addr word = bucket + 8 * tomb;
    far_sim_hold *hold = stage_hold(&s.b, (far_sim_match){.kind = FAR_SIM_CAS, .from = word, .to = word + 8});
    start(&s.c, FAR_OP_INSERT, k, 7);
    far_sim_run_for(s.world, 200000);
    far_sim_release(hold);
    stage_finish(&s.b);
    stage_finish(&s.c);
    assert_int_equal(s.b.result, 0);
    assert_int_equal(s.c.result, FAR_ERR_EXISTS);
    assert_there_once(&s, k, 5);
    stage_close(&s);
}
TOLD_OF(an_era_is_shown_last, POINTERS);


/* Two keys lie below level 1. With the first that goes the filter stays, with the second it forgets; a key that dies on
 * its way there, announced and not there, keeps it from that. (The count left alone at a delete, or taken down twice.) */
static void a_filter_forgets_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, ROOMY);
    for (unsigned i = 1; i < 5; i++)
        put(&s.a, number(i), i);
    assert_int_equal(COUNTED(&s, overflows), 2);
    assert_int_not_equal(shard_header_fnew(header_of(&s)), 0);
    take(&s.b, number(3));
    assert_int_not_equal(shard_header_fnew(header_of(&s)), 0);
    assert_int_equal(get(&s.c, number(4)), 4);
    put(&s.c, number(4), 40);
    assert_int_equal(get(&s.a, number(4)), 40);
    take(&s.c, number(4));
    assert_int_equal(shard_header_fnew(header_of(&s)), 0);
    assert_int_equal(COUNTED(&s, forgotten), 1);
    put(&s.a, number(5), 5); /* level 2 again */
    assert_int_equal(get(&s.b, number(5)), 5);
    start(&s.b, FAR_OP_INSERT, number(6), 6);
    stage_stop_at(&s.b, at("shard:place_in_overflow"));
    stage_kill(&s, &s.b);
    assert_int_equal(get(&s.a, number(5)), 5);
    take(&s.a, number(5));
    assert_int_equal(get(&s.a, number(5)), 0);
    assert_int_equal(get(&s.a, number(1)), 1);
    stage_close(&s);
}
TOLD_OF_ALL(a_filter_forgets);


/* Who brings a key below level 1 dies after its n-th verb: whether the key is there or not, it was counted before. So
 * when it is deleted the filter does not forget another that is there. (The key announced after it is there.) */
static void die_on_the_way_below_told(const told *told) {
    bool died = true;
    for (unsigned verb = 1; died; verb++) {
        stage s;
        open_stage(&s, told, 0, ROOMY ",filter_bits=1");
        put(&s.a, number(1), 1);
        put(&s.a, number(2), 2);
        start(&s.b, FAR_OP_INSERT, number(3), 3);
        far_sim_kill_at(s.b.client, (far_sim_match){.nth = verb}, FAR_SIM_WHOLE);
        far_sim_run_client(s.b.client);
        died = far_sim_killed(s.b.pool->fabric);
        put(&s.a, number(4), 4);
        int err = delete_key(&s.c, number(3));
        assert_true(err == 0 || (died && err == FAR_ERR_NOT_FOUND));
        assert_int_equal(get(&s.a, number(3)), 0);
        assert_int_equal(get(&s.a, number(4)), 4);
        stage_close(&s);
    }
}
TOLD_OF_ALL(die_on_the_way_below);


/* A get sees the filter empty, and the slot of its key before the key came there: it is absent at some moment, and not
 * before its delete and after its insert both. A get that began before the delete may say either. */
static void a_get_beside_a_filter_that_forgets_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, ROOMY);
    for (unsigned i = 1; i < 4; i++)
        put(&s.a, number(i), i);
    start(&s.c, FAR_OP_GET, number(3), 0);
    stage_stop_at(&s.c, at("shard:l1_missed"));
    take(&s.a, number(1));
    take(&s.a, number(3)); /* the filter forgets */
    put(&s.a, number(3), 30);
    stage_finish(&s.c);
    assert_true(given(&s.c) == 30 || given(&s.c) == 0);
    assert_there_once(&s, number(3), 30);
    stage_close(&s);
}
TOLD_OF_ALL(a_get_beside_a_filter_that_forgets);


/* ---- Churn ---- */

typedef struct costs {
    double insert, miss;
} costs;


static uint64_t trips(far_session *session, far_op_kind kind) {
    far_stats stats;
    assert_int_equal(far_session_stats_of(session, kind, &stats), 0);
    return stats.round_trips;
}


/* Replaces the keys `from` .. `from + count` by the next `count`, then asks for as many that are not there. */
static costs turn_over(far_pool *pool, far_session *session, far_index *index, uint64_t from, uint64_t count,
                       uint64_t size) {
    uint64_t inserts = trips(session, FAR_OP_INSERT), gets = trips(session, FAR_OP_GET), value = 1;
    for (uint64_t n = from; n < from + count; n++) {
        uint64_t old = n * SHARD_FACTOR, new = (n + size) * SHARD_FACTOR;
        assert_int_equal(far_delete(session, index, &old, 8), 0);
        assert_int_equal(far_insert(session, index, &new, 8, &value, 8), 0);
        if (n % 64 == 0)
            far_pool_poll(pool); /* as housekeeping would: epochs pass */
    }
    for (uint64_t n = 1; n <= count; n++) {
        uint64_t none = (n << 40) * SHARD_FACTOR;
        size_t length;
        assert_int_equal(far_get(session, index, &none, 8, &value, 8, &length), FAR_ERR_NOT_FOUND);
    }
    return (costs){(double)(trips(session, FAR_OP_INSERT) - inserts) / (double)count,
                   (double)(trips(session, FAR_OP_GET) - gets) / (double)count};
}


/* At that load, in thousandths, of a table that does not double. */
static void stays_fast(const char *options, uint64_t slots, unsigned load) {
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    far_pool *pool;
    far_session *session;
    far_index *index;
    uint64_t size = slots * load / 1000, value = 1;
    pool_options.no_thread = 1;
    assert_int_equal(far_pool_open("sim:seed=1,size=64M,faults=none,watch=off,limit=10000s", &pool_options, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_create(session, "t", "shard", options, &index), 0);
    for (uint64_t n = 0; n < size; n++) {
        uint64_t k = n * SHARD_FACTOR;
        assert_int_equal(far_insert(session, index, &k, 8, &value, 8), 0);
    }
    costs fresh = turn_over(pool, session, index, 0, size / 10, size), last = fresh;
    for (unsigned turn = 0; turn < 10; turn++)
        last = turn_over(pool, session, index, size / 10 + turn * size, size, size);
    print_message("    %s at %u: insert %.3f, after ten turnovers %.3f; miss %.3f, %.3f\n", options, load, fresh.insert,
                  last.insert, fresh.miss, last.miss);
    assert_int_equal(shard_root_d(atomic_load_explicit(&shard_state_of(index)->part[0].root, memory_order_relaxed)), 0);
    assert_true(last.insert <= 1.1 * fresh.insert);
    assert_true(last.miss <= 1.1 * fresh.miss);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
}


static void a_table_of_constant_size_stays_fast(void **state) {
    (void)state;
    stays_fast("layout=pointer,partitions=2,bits=4", 32 * 71, 550);
    stays_fast("layout=pointer,partitions=2,bits=4", 32 * 71, 740);
    stays_fast("key_size=8,value_size=8,partitions=32,bits=5", 1024 * 35, 560);
    stays_fast("key_size=8,value_size=8,partitions=32,bits=5", 1024 * 35, 650);
}


int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_image_of_two_eras),
        cmocka_unit_test(an_era_nobody_told_of),
        cmocka_unit_test(an_empty_word_of_long_ago),
        cmocka_unit_test(an_era_does_not_come_round),
        cmocka_unit_test(an_era_of_the_version_before),
        cmocka_unit_test(an_opening_cut_short),
        cmocka_unit_test(an_era_is_shown_last),
        cmocka_unit_test(a_filter_forgets),
        cmocka_unit_test(die_on_the_way_below),
        cmocka_unit_test(a_get_beside_a_filter_that_forgets),
        cmocka_unit_test(a_table_of_constant_size_stays_fast),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
