/* Reopened buckets and cleared filters. A table in which keys change while their number stays the same must stay as
 * fast as it was. In the pointer layout, a bucket without EMPTY words is reopened: all its TOMBs, except the one that
 * the reopening insert takes, become EMPTY words of the next cycle. (A cycle is the time between two reopenings of a
 * bucket; every EMPTY word and the header contain the number of their cycle.) Then the header is changed to that cycle.
 * The tests cover each race of reopening, and, in both layouts, the filters while keys leave levels 2 and 3. */
#include "client/op.h"
#include "shard_rig.h"
#include "test.h"

#define WIDE  "slots=16,l2_slots=1,afs=1000000" /* two lines of slots */
#define ROOMY "slots=2,l2_slots=4,afs=1000000"
#define THREE "slots=3,l2_slots=1,afs=1000000" /* all keys have the same probe order */


/* Returns the n-th key whose probe order begins at this line; there are two lines. */
static key key_from_line(const stage_actor *a, unsigned line, unsigned n) {
    for (uint64_t i = 1;; i++) {
        shard_op y = {.st = shard_state_of(a->index), .h = hash_of(a, number(i))};
        unsigned start = shard_start_line(&y);
        if ((start == 1 ? 1u : 0u) == line && n-- == 0)
            return number(i);
    }
}


/* returns the header of the bucket in far memory; no operation may be in progress */
static uint64_t header_of(stage *s) {
    far_sim_run_for(s->world, 50000);
    return words_at(s, bucket_addr(&s->a, 0))[shard_header_at(shard_state_of(s->a.index))];
}


static void delete_present(stage_actor *a, key k) {
    assert_int_equal(delete_key(a, k), 0);
}


/* Fills both lines, reopens the bucket, and lets B read the reopened bucket. Afterwards every slot is in use, at cycle
 * 1. Keys 0 to 7 of each line were put first. Then keys 0 and 1 of line 0 and key 0 of line 1 were deleted, and keys 8
 * and 9 of line 0 and key 8 of line 1 were inserted. */
static void fill_at_cycle_1(stage *s) {
    for (unsigned i = 0; i < 16; i++)
        put(&s->a, key_from_line(&s->a, i / 8, i % 8), 1);
    delete_present(&s->a, key_from_line(&s->a, 0, 0));
    delete_present(&s->a, key_from_line(&s->a, 0, 1));
    delete_present(&s->a, key_from_line(&s->a, 1, 0));
    put(&s->a, key_from_line(&s->a, 1, 8), 1);
    assert_int_equal(COUNTED(s, reopened), 1);
    put(&s->b, key_from_line(&s->a, 0, 8), 1);
    put(&s->b, key_from_line(&s->a, 0, 9), 1);
    assert_int_equal(COUNTED(s, reopened), 1);
    assert_int_equal(COUNTED(s, overflows), 0);
}


/* B inserts k. It has read the header, and its READ of the bucket is held. */
static far_sim_hold *hold_image_of_b(stage *s, key k) {
    far_addr bucket = bucket_addr(&s->a, 0);
    start(&s->b, FAR_OP_INSERT, k, 5);
    return stage_hold(&s->b, (far_sim_match){.kind = FAR_SIM_READ, .from = bucket, .to = bucket + 8});
}


static void show_first_line(far_sim_hold *hold, const variant *variant) {
    uint32_t order[8];
    for (unsigned i = 0; i < 8; i++)
        order[i] = i;
    assert_int_equal(far_sim_release_units(hold, order, variant->units / 8), 0);
}


/* C puts k; then B reads the rest of the bucket. Verifies that k exists once. */
static void put_between_the_reads(stage *s, far_sim_hold *hold, key k) {
    put(&s->c, k, 7);
    far_sim_release(hold);
    stage_finish(&s->b);
    assert_int_equal(s->b.result, FAR_ERR_EXISTS);
    assert_there_once(s, k, 7);
}


/* Proves that an image of two cycles is not used for an insert. B reads one line before the bucket is reopened and the
 * other line after it. B finds k in neither line, and reads an EMPTY word after the word that k has taken meanwhile.
 * Fails if the whole image is assumed to have the cycle of its EMPTY word (prove_one_cycle in pointer/write.c). */
static void an_image_of_two_cycles_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, WIDE);
    fill_at_cycle_1(&s);
    key k = key_from_line(&s.a, 0, 20);
    delete_present(&s.a, key_from_line(&s.a, 0, 2));
    delete_present(&s.a, key_from_line(&s.a, 1, 1));
    delete_present(&s.a, key_from_line(&s.a, 1, 2));
    far_sim_hold *hold = hold_image_of_b(&s, k);
    show_first_line(hold, variant);
    /* takes the last EMPTY word, in line 1, and reopens the bucket: the TOMBs of two deleted keys become EMPTY */
    put(&s.a, key_from_line(&s.a, 1, 9), 1);
    assert_int_equal(COUNTED(&s, reopened), 2);
    put_between_the_reads(&s, hold, k); /* C's put takes the reopened word in line 0 */
    stage_close(&s);
}
TEST_VARIANTS_OF(an_image_of_two_cycles, POINTERS);


/* Proves that an insert retries when its handle meets a reopened bucket for the first time. From then on the inserts of
 * this handle read the header before the rest of the bucket, so that they know the cycle. The handle of C has not seen
 * a reopened bucket of this version before. */
static void a_cycle_that_a_handle_has_not_seen_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, WIDE);
    fill_at_cycle_1(&s);
    delete_present(&s.a, key_from_line(&s.a, 0, 2));
    delete_present(&s.a, key_from_line(&s.a, 0, 3));
    put(&s.a, key_from_line(&s.a, 0, 10), 1);
    assert_int_equal(COUNTED(&s, reopened), 2);
    assert_int_equal(insert(&s.c, key_from_line(&s.a, 0, 10), 2), FAR_ERR_EXISTS);
    put(&s.c, key_from_line(&s.a, 0, 11), 3);
    assert_there_once(&s, key_from_line(&s.a, 0, 11), 3);
    stage_close(&s);
}
TEST_VARIANTS_OF(a_cycle_that_a_handle_has_not_seen, POINTERS);


/* Fills the free words, deletes all keys, and inserts k, which takes the first word. This insert reopens the bucket, so
 * the other two words become EMPTY again. */
static void reopen_and_insert(stage *s, key k, unsigned turn) {
    for (unsigned i = 0; i < 3; i++)
        put(&s->a, number(1000 + 3 * turn + i), 1);
    for (unsigned i = 0; i < 3; i++)
        delete_present(&s->a, number(1000 + 3 * turn + i));
    put(&s->a, k, 7);
}


/* Proves that an insert does not take a word that became EMPTY again in a later cycle. B's insert of k has seen an
 * EMPTY word of cycle 0 and stops before its CAS. A fills all words, deletes the keys, and inserts k. A's insert finds
 * no EMPTY word and reopens the bucket: k takes the first word, and the others become EMPTY words of the next cycle.
 * One of them is the word that B has seen. B's CAS must fail, because the cycle number in the word has changed, and B
 * must report EXISTS. Fails if EMPTY words do not contain their cycle. */
static void an_empty_word_of_an_old_cycle_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, THREE);
    key k = number(7), first = number(1);
    put(&s.a, first, 1);
    start(&s.b, FAR_OP_INSERT, k, 5);
    stage_stop_at(&s.b, at("shard:insert"));
    put(&s.a, number(2), 1);
    put(&s.a, number(3), 1);
    delete_present(&s.a, first);
    delete_present(&s.a, number(2));
    delete_present(&s.a, number(3));
    put(&s.a, k, 7);
    assert_int_equal(COUNTED(&s, reopened), 1);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, FAR_ERR_EXISTS);
    assert_there_once(&s, k, 7);
    stage_close(&s);
}
TEST_VARIANTS_OF(an_empty_word_of_an_old_cycle, POINTERS);


static void advance_epoch(stage *s) {
    far_epoch_request(s->a.pool);
    far_sim_sleep(s->world, 100000);
    stage_poll(s, 1);
}


/* Waits until cycles of the bucket may begin in the current epoch and in the next one. */
static void wait_for_cycles(stage *s) {
    uint64_t header = header_of(s), epoch;
    while (epoch = atomic_load(&s->a.pool->epochs.known),
           shard_next_cycle(header, epoch) == 0 || shard_next_cycle(header, epoch + 1) == 0)
        advance_epoch(s);
}


/* Proves that a cycle number is not used again while an insert is pinned. B's insert has read the header and is delayed
 * before it reads the bucket. However often A fills and empties the bucket meanwhile, the number of the cycle that B
 * has read does not return, because B's pin holds the epoch. Fails if shard_next_cycle (layout.h) only counts the
 * cycles. */
static void a_cycle_number_does_not_return_on(const variant *variant) {
    enum { TURNS = 40 };
    stage s;
    open_stage(&s, variant, 0, THREE);
    key k = number(7), first = number(1);
    reopen_and_insert(&s, first, 0);
    delete_present(&s.a, first);
    put(&s.b, first, 1); /* makes B know that there are reopened buckets */
    delete_present(&s.b, first);
    wait_for_cycles(&s);
    far_sim_hold *hold = hold_image_of_b(&s, k);
    unsigned before = shard_header_cycle(header_of(&s)), ended = 0;
    for (unsigned turn = 1; turn <= TURNS; turn++) {
        reopen_and_insert(&s, first, turn);
        delete_present(&s.a, first);
        unsigned now = shard_header_cycle(header_of(&s));
        assert_false(ended >> now & 1);
        ended |= now != before ? 1u << before : 0;
        before = now;
        advance_epoch(&s);
    }
    assert_true(COUNTED(&s, reopened) > 5);
    put_between_the_reads(&s, hold, k);
    stage_close(&s);
}
TEST_VARIANTS_OF(a_cycle_number_does_not_return, POINTERS);


/* Returns the n-th key with this line that stays in the first bucket when it is split. */
static key staying_key(const stage_actor *a, unsigned line, unsigned n) {
    const shard_state *st = shard_state_of(a->index);
    for (unsigned i = 0;; i++) {
        key k = key_from_line(a, line, i);
        if (!shard_key_moves(hash_of(a, k), st->p, st->b, 1) && n-- == 0)
            return k;
    }
}


/* Proves that a cycle of the previous version is not confused with a cycle of the current one. B's insert reads the
 * header before a split and the bucket after it. The bucket has a cycle with the same number again, which began between
 * B's two lines. Fails if the cycle number is compared without the version. */
static void a_cycle_of_the_previous_version_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, WIDE ",idle_sweep=off");
    for (unsigned i = 0; i < 16; i++)
        put(&s.a, staying_key(&s.a, i / 8, i % 8), 1);
    delete_present(&s.a, staying_key(&s.a, 0, 0));
    delete_present(&s.a, staying_key(&s.a, 1, 0));
    put(&s.a, staying_key(&s.a, 1, 8), 1); /* one EMPTY word is left, of a cycle of version 0 */
    unsigned cycle = shard_header_cycle(header_of(&s));
    assert_int_not_equal(cycle, 0);
    double_by(&s, &s.a);
    while (shard_next_cycle(shard_header(1, 0, 0), atomic_load(&s.a.pool->epochs.known) + 1) != cycle)
        advance_epoch(&s);
    key k = staying_key(&s.a, 0, 20);
    atomic_store(&shard_state_of(s.b.index)->part[0].reopened_at,
                 2); /* sets the state of B's handle as if B had read a reopened bucket of version 1 */
    far_sim_hold *hold = hold_image_of_b(&s, k);
    put(&s.a, staying_key(&s.a, 0, 8), 1); /* splits the bucket and takes the last word */
    show_first_line(hold, variant);
    delete_present(&s.a, staying_key(&s.a, 0, 1));
    delete_present(&s.a, staying_key(&s.a, 1, 1));
    delete_present(&s.a, staying_key(&s.a, 1, 2));
    advance_epoch(&s);
    put(&s.a, staying_key(&s.a, 1, 9), 1); /* reopens a word in each line */
    assert_int_equal(shard_header_v(header_of(&s)), 1);
    assert_int_equal(shard_header_cycle(header_of(&s)), cycle);
    put_between_the_reads(&s, hold, k); /* C's put takes the reopened word in line 0 */
    stage_close(&s);
}
TEST_VARIANTS_OF(a_cycle_of_the_previous_version, POINTERS);


/* Proves that the words of an interrupted reopening are used by the next lock holder, and not before. B fails after it
 * has reopened the words and before it changes the header. C's insert must take the lock, and then A can use the
 * reopened words. Fails if a word of a cycle that the header does not show is taken without the lock. */
static void an_interrupted_reopening_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, WIDE);
    fill_at_cycle_1(&s);
    for (unsigned i = 2; i < 6; i++)
        delete_present(&s.a, key_from_line(&s.a, 0, i));
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
TEST_VARIANTS_OF(an_interrupted_reopening, POINTERS);


/* Proves that the header shows a new cycle only after all words are reopened and the lock holder's own entry is stored.
 * B reopens the bucket for its insert of k, and the CAS of its own entry is held. C inserts k and must report EXISTS.
 * If the header showed the new cycle before B's CAS, C would take an EMPTY word without seeing B's entry, and k would
 * exist twice. Fails if the header is written in one batch with the CASes, because a WRITE and atomics have no order.
 */
static void the_header_shows_a_cycle_last_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, WIDE);
    fill_at_cycle_1(&s);
    delete_present(&s.a, key_from_line(&s.a, 0, 2));
    delete_present(&s.a, key_from_line(&s.a, 0, 3));
    delete_present(&s.a, key_from_line(&s.a, 1, 1));
    far_addr bucket = bucket_addr(&s.a, 0);
    unsigned tomb = 8;
    while (!shard_is_tomb(words_at(&s, bucket)[tomb]))
        tomb++;
    assert_in_range(tomb, 8, 15);
    /* k's probe order begins in line 1, so B stores its entry of k in the TOMB of line 1. In the same batch, B reopens
     * the two TOMBs of line 0 (makes them EMPTY words of the next cycle). */
    key k = key_from_line(&s.a, 1, 20);
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
TEST_VARIANTS_OF(the_header_shows_a_cycle_last, POINTERS);


/* Proves that a filter is cleared when the last key below level 1 is deleted, and not before. If a client has counted a
 * key and failed before it stored the key, the count stays too high, and the filter is not cleared. Fails if a delete
 * does not change the count, or decrements it twice. */
static void a_filter_is_cleared_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, ROOMY);
    for (unsigned i = 1; i < 5; i++)
        put(&s.a, number(i), i);
    assert_int_equal(COUNTED(&s, overflows), 2);
    assert_int_not_equal(shard_header_fnew(header_of(&s)), 0);
    delete_present(&s.b, number(3));
    assert_int_not_equal(shard_header_fnew(header_of(&s)), 0);
    assert_int_equal(get(&s.c, number(4)), 4);
    put(&s.c, number(4), 40);
    assert_int_equal(get(&s.a, number(4)), 40);
    delete_present(&s.c, number(4));
    assert_int_equal(shard_header_fnew(header_of(&s)), 0);
    assert_int_equal(COUNTED(&s, forgotten), 1);
    put(&s.a, number(5), 5); /* goes to level 2 again */
    assert_int_equal(get(&s.b, number(5)), 5);
    start(&s.b, FAR_OP_INSERT, number(6), 6);
    stage_stop_at(&s.b, at("shard:place_in_overflow"));
    stage_kill(&s, &s.b);
    assert_int_equal(get(&s.a, number(5)), 5);
    delete_present(&s.a, number(5));
    assert_int_equal(get(&s.a, number(5)), 0);
    assert_int_equal(get(&s.a, number(1)), 1);
    stage_close(&s);
}
TEST_ALL_VARIANTS(a_filter_is_cleared);


/* Proves that a client counts a key in the header before it stores the key at level 2 or 3. So if the client fails in
 * between, the count is too high rather than too low, and the filter is not cleared while a key is at level 2 or 3.
 * Fails if the count is changed after the key is stored. */
static void fail_while_placing_below_on(const variant *variant) {
    bool died = true;
    for (unsigned verb = 1; died; verb++) {
        stage s;
        open_stage(&s, variant, 0, ROOMY ",filter_bits=1");
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
TEST_ALL_VARIANTS(fail_while_placing_below);


/* Proves that a get during the clearing of a filter is correct. C's get has missed its key at level 1 and stops before
 * it searches level 2. A deletes the key at level 2, which clears the filter, and inserts it again. C may return the
 * new value, or report that the key is absent, because it was absent at some moment during the get. */
static void a_get_while_a_filter_is_cleared_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, ROOMY);
    for (unsigned i = 1; i < 4; i++)
        put(&s.a, number(i), i);
    start(&s.c, FAR_OP_GET, number(3), 0);
    stage_stop_at(&s.c, at("shard:l1_missed"));
    delete_present(&s.a, number(1));
    delete_present(&s.a, number(3)); /* clears the filter */
    put(&s.a, number(3), 30);
    stage_finish(&s.c);
    assert_true(result_value(&s.c) == 30 || result_value(&s.c) == 0);
    assert_there_once(&s, number(3), 30);
    stage_close(&s);
}
TEST_ALL_VARIANTS(a_get_while_a_filter_is_cleared);


/* ---- Churn ---- */

typedef struct costs {
    double insert, miss;
} costs;


static uint64_t round_trips_of(far_session *session, far_op_kind kind) {
    far_stats stats;
    assert_int_equal(far_session_stats_of(session, kind, &stats), 0);
    return stats.round_trips;
}


/* Replaces the keys `from` to `from + count` by the next `count` keys, and then gets as many absent keys. */
static costs replace_all_keys(far_pool *pool, far_session *session, far_index *index, uint64_t from, uint64_t count,
                              uint64_t size) {
    uint64_t inserts = round_trips_of(session, FAR_OP_INSERT), gets = round_trips_of(session, FAR_OP_GET), value = 1;
    for (uint64_t n = from; n < from + count; n++) {
        uint64_t old = n * SHARD_FACTOR, new = (n + size) * SHARD_FACTOR;
        assert_int_equal(far_delete(session, index, &old, 8), 0);
        assert_int_equal(far_insert(session, index, &new, 8, &value, 8), 0);
        if (n % 64 == 0)
            far_pool_poll(pool); /* lets epochs pass, as housekeeping would */
    }
    for (uint64_t n = 1; n <= count; n++) {
        uint64_t none = (n << 40) * SHARD_FACTOR;
        size_t length;
        assert_int_equal(far_get(session, index, &none, 8, &value, 8, &length), FAR_ERR_NOT_FOUND);
    }
    return (costs){(double)(round_trips_of(session, FAR_OP_INSERT) - inserts) / (double)count,
                   (double)(round_trips_of(session, FAR_OP_GET) - gets) / (double)count};
}


/* Measures how often inserts can use the words of deleted keys again (reopening). `load` is the part of the slots in
 * use, in thousandths. The table does not double. */
static void measure_replacement(const char *options, uint64_t slots, unsigned load) {
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
    costs fresh = replace_all_keys(pool, session, index, 0, size / 10, size), last = fresh;
    for (unsigned turn = 0; turn < 10; turn++)
        last = replace_all_keys(pool, session, index, size / 10 + turn * size, size, size);
    print_message("    %s at %u: insert %.3f, after ten turnovers %.3f; miss %.3f, %.3f\n", options, load, fresh.insert,
                  last.insert, fresh.miss, last.miss);
    assert_int_equal(shard_root_d(atomic_load_explicit(&shard_state_of(index)->part[0].root, memory_order_relaxed)), 0);
    assert_true(last.insert <= 1.1 * fresh.insert);
    assert_true(last.miss <= 1.1 * fresh.miss);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
}


TEST(a_table_of_constant_size_stays_fast) {
    measure_replacement("layout=pointer,partitions=2,bits=4", 32 * 71, 550);
    measure_replacement("layout=pointer,partitions=2,bits=4", 32 * 71, 740);
    measure_replacement("key_size=8,value_size=8,partitions=32,bits=5", 1024 * 35, 560);
    measure_replacement("key_size=8,value_size=8,partitions=32,bits=5", 1024 * 35, 650);
}
