/* The table of open indexes when a session of the handle is lost on the way: its last WRITE may take effect late, while
 * the other sessions go on. And when damage changes its words.
 *
 * Whether the WRITE of a lost session still takes effect is up to the seed: every story is told for several, and must
 * have met both. */
#include "open_table_rig.h"
#include "pool/owner.h"
#include "pool/request.h"

enum { SEEDS = 16 };


/* Runs `action` by the session that is to be lost until the effect of that verb is held back; then its connection is
 * lost. */
static far_sim_hold *lose_at(story *s, void (*action)(void *), far_sim_match match) {
    s->client = far_sim_start(s->pool->fabric, "lost", action, s);
    far_sim_hold *hold = far_sim_hold_effect(s->client, match);
    assert_int_equal(far_sim_run_client(s->client), FAR_SIM_HELD);
    far_sim_lose(s->lost->conn);
    assert_int_equal(far_sim_run_client(s->client), FAR_SIM_ENDED);
    assert_int_equal(s->result, FAR_ERR_UNREACHABLE);
    return hold;
}


static far_sim_match write_of(far_addr addr, uint64_t bytes) {
    return (far_sim_match){.kind = FAR_SIM_WRITE, .from = addr, .to = addr + bytes};
}


static far_addr table_of(story *s) { /* an index that is open in between makes the handle's table */
    far_index_close(open_next(s, "y"));
    return word_at(s, far_open_table_word_of(s->pool->team.own->id));
}


static void y_is_safe_until_it_is_closed(story *s, far_index *y) {
    char value[4];
    assert_int_equal(far_index_drop(s->dropper, "y"), FAR_ERR_BUSY);
    assert_int_equal(far_get(s->next, y, "k", 1, value, sizeof(value), NULL), 0);
    far_index_close(y);
    assert_int_equal(far_index_drop(s->dropper, "y"), 0);
}


/* Stories. Each returns whether the WRITE of the lost session took effect. */

typedef bool telling(story *s);


static void tell(telling *of) {
    unsigned landed = 0;
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        story s;
        set_up(&s, seed);
        landed += of(&s);
        tear_down(&s);
    }
    assert_true(landed > 0 && landed < SEEDS);
}


/* Without the repair the drop is refused for ever. */
static bool word_stays_behind(story *s) {
    far_addr table = table_of(s);
    far_sim_hold *hold = lose_at(s, open_x, write_of(table, FAR_OPEN_TABLE_BYTES));
    release(s, hold);
    bool landed = word_at(s, table) != 0;
    assert_int_equal(far_index_drop(s->dropper, "x"), landed ? FAR_ERR_BUSY : 0);
    assert_int_equal(far_pool_poll(s->pool), 0);
    if (landed)
        assert_int_equal(far_index_drop(s->dropper, "x"), 0);
    return landed;
}


static void a_lost_opener_does_not_refuse_drops_for_ever(void **state) {
    (void)state;
    tell(word_stays_behind);
}


/* A session of the same handle need not wait for housekeeping. */
static bool word_is_cleared_by_a_dropper(story *s) {
    far_addr table = table_of(s);
    release(s, lose_at(s, open_x, write_of(table, FAR_OPEN_TABLE_BYTES)));
    bool landed = word_at(s, table) != 0;
    assert_int_equal(far_index_drop(s->next, "x"), 0);
    return landed;
}


static void a_lost_opener_does_not_refuse_a_drop_of_its_own_handle(void **state) {
    (void)state;
    tell(word_is_cleared_by_a_dropper);
}


/* y must not get the slot while the lost WRITE of x may still come: it would take y's word away, and y be dropped under
 * its user. */
static bool word_comes_late(story *s) {
    far_addr table = table_of(s);
    far_sim_hold *hold = lose_at(s, open_x, write_of(table, FAR_OPEN_TABLE_BYTES));
    if (far_sim_seed(s->world) % 2)
        release(s, hold);
    bool landed = word_at(s, table) != 0;
    far_index *y = open_next(s, "y");
    release(s, hold);
    y_is_safe_until_it_is_closed(s, y);
    assert_int_equal(far_pool_poll(s->pool), 0);
    assert_int_equal(far_index_drop(s->dropper, "x"), 0);
    return landed;
}


static void a_late_word_of_a_lost_opener_takes_no_other_place(void **state) {
    (void)state;
    tell(word_comes_late);
}


/* The same when it is cleared before: once that was done nothing comes late. */
static bool word_comes_after_the_repair(story *s) {
    far_addr table = table_of(s);
    far_sim_hold *hold = lose_at(s, open_x, write_of(table, FAR_OPEN_TABLE_BYTES));
    bool early = far_sim_seed(s->world) % 2;
    if (early)
        release(s, hold);
    bool landed = word_at(s, table) != 0;
    assert_int_equal(far_pool_poll(s->pool), 0);
    far_index *y = open_next(s, "y");
    uint64_t word = word_at(s, table);
    assert_true(word != 0);
    release(s, hold);
    assert_int_equal(word_at(s, table), word);
    y_is_safe_until_it_is_closed(s, y);
    assert_int_equal(far_index_drop(s->dropper, "x"), 0);
    return landed;
}


static void the_repair_waits_until_nothing_can_come_late(void **state) {
    (void)state;
    tell(word_comes_after_the_repair);
}


/* The first opener makes the table. Its address comes late, after another session has shown one: droppers would look at
 * the wrong one, and a sweep free the right one. */
static bool address_comes_late(story *s) {
    far_addr address = far_open_table_word_of(s->pool->team.own->id);
    far_sim_hold *hold = lose_at(s, open_x, write_of(address, 8));
    bool early = far_sim_seed(s->world) % 2;
    if (early)
        release(s, hold);
    far_addr table = word_at(s, address);
    far_index *y = open_next(s, "y");
    if (table) /* it is taken over: what the lost session made is not left behind */
        assert_int_equal(word_at(s, address), table);
    release(s, hold);
    assert_int_equal(word_at(s, address), s->pool->open_table.table);
    nothing_is_lost(s->next);
    y_is_safe_until_it_is_closed(s, y);
    assert_int_equal(far_index_drop(s->dropper, "x"), 0);
    return table != 0;
}


static void a_late_address_of_a_table_replaces_no_other(void **state) {
    (void)state;
    tell(address_comes_late);
}


/* A session was lost, and the word in which it may have left the address of a table was damaged: what is there is another's
 * object. */
static void what_no_session_made_is_not_taken_for_a_table(void **state) {
    (void)state;
    story s;
    far_index *y, *x;
    set_up(&s, 1);
    assert_int_equal(far_index_open(s.dropper, "y", &y), 0);
    far_index_record before = *(far_index_record *)world_bytes(s.world, y->record);
    *(uint64_t *)world_bytes(s.world, far_open_table_word_of(s.pool->team.own->id)) = y->record;
    atomic_store_explicit(&s.pool->open_table.unsure, true, memory_order_relaxed);
    assert_int_equal(far_index_open(s.next, "x", &x), 0);
    assert_int_not_equal(s.pool->open_table.table, y->record);
    assert_memory_equal(world_bytes(s.world, y->record), &before, sizeof(before));
    far_index_close(x);
    far_index_close(y);
    tear_down(&s);
}


/* A creator enters the table with what it made: it waits in the same way. */
static bool creator_meets_a_lost_table(story *s) {
    far_addr address = far_open_table_word_of(s->pool->team.own->id);
    far_sim_hold *hold = lose_at(s, open_x, write_of(address, 8));
    bool early = far_sim_seed(s->world) % 2;
    if (early)
        release(s, hold);
    bool landed = word_at(s, address) != 0;
    far_index *z;
    assert_int_equal(far_index_create(s->next, "z", "toy", "slots=4", &z), 0);
    release(s, hold);
    assert_int_equal(far_index_drop(s->dropper, "z"), FAR_ERR_BUSY);
    far_index_close(z);
    assert_int_equal(far_index_drop(s->dropper, "z"), 0);
    return landed;
}


static void a_creator_after_a_lost_opener_is_seen_by_droppers(void **state) {
    (void)state;
    tell(creator_meets_a_lost_table);
}


/* A walk has the index open; the user's flag on its word. */

/* The flag comes after the walk has left its slot, and another index has taken it: it must not. */
static bool flag_comes_late(story *s) {
    walking w = walk_x(s);
    far_addr table = word_at(s, far_open_table_word_of(s->pool->team.own->id));
    far_sim_hold *hold = lose_at(s, open_x, write_of(table, FAR_OPEN_TABLE_BYTES));
    bool early = far_sim_seed(s->world) % 2;
    if (early)
        release(s, hold);
    bool landed = word_at(s, table) & FAR_OPEN_TABLE_USER;
    assert_int_equal(far_session_call(s->next, FAR_STATS_OTHER, true, end_walk, &w), 0);
    far_index *y = open_next(s, "y");
    release(s, hold);
    y_is_safe_until_it_is_closed(s, y);
    assert_int_equal(far_pool_poll(s->pool), 0);
    assert_int_equal(far_index_drop(s->dropper, "x"), 0);
    return landed;
}


static void a_late_flag_of_a_lost_opener_outlives_no_walk(void **state) {
    (void)state;
    tell(flag_comes_late);
}


/* While the walk goes on: a drop waits for walks, and is not refused because of the flag of an opener that was lost. */
static bool flag_stands_on_a_walk(story *s) {
    walking w = walk_x(s);
    far_addr table = word_at(s, far_open_table_word_of(s->pool->team.own->id));
    release(s, lose_at(s, open_x, write_of(table, FAR_OPEN_TABLE_BYTES)));
    bool landed = word_at(s, table) & FAR_OPEN_TABLE_USER;
    assert_int_equal(far_pool_poll(s->pool), 0);
    far_sim_client *drop = far_sim_start(s->other->fabric, "dropper", drop_x_elsewhere, s);
    s->result = 77;
    far_sim_run_for(s->world, 2000000);
    assert_int_equal(s->result, 77); /* it looks again and again */
    assert_int_equal(far_session_call(s->next, FAR_STATS_OTHER, true, end_walk, &w), 0);
    assert_int_equal(far_sim_run_client(drop), FAR_SIM_ENDED);
    assert_int_equal(s->result, 0);
    return landed;
}


static void a_flag_of_a_lost_opener_does_not_refuse_what_waits_for_a_walk(void **state) {
    (void)state;
    tell(flag_stands_on_a_walk);
}


/* The opener met a drop and takes its flag back; that WRITE is lost and comes late. */
static bool undoing_comes_late(story *s) {
    walking w = walk_x(s);
    far_addr table = word_at(s, far_open_table_word_of(s->pool->team.own->id));
    s->client = far_sim_start(s->pool->fabric, "lost", open_x, s);
    far_sim_stop_before(s->client, (far_sim_match){.point = "catalog:enter_user"});
    assert_int_equal(far_sim_run_client(s->client), FAR_SIM_STOPPED);
    story other = *s;
    assert_int_equal(far_session_open(s->other, &other.dropper), 0);
    far_sim_client *drop = far_sim_start(s->other->fabric, "dropper", drop_x_elsewhere, &other);
    far_sim_stop_before(drop, (far_sim_match){.point = "catalog:marked"});
    assert_int_equal(far_sim_run_client(drop), FAR_SIM_STOPPED);

    far_sim_match second = write_of(table, FAR_OPEN_TABLE_BYTES);
    second.nth = 2;
    far_sim_hold *hold = far_sim_hold_effect(s->client, second);
    far_sim_resume(s->client);
    assert_int_equal(far_sim_run_client(s->client), FAR_SIM_HELD);
    assert_true(word_at(s, table) & FAR_OPEN_TABLE_USER);
    far_sim_lose(s->lost->conn);
    assert_int_equal(far_sim_run_client(s->client), FAR_SIM_ENDED);
    assert_int_equal(s->result, FAR_ERR_UNREACHABLE);
    bool early = far_sim_seed(s->world) % 2;
    if (early)
        release(s, hold);
    bool landed = !(word_at(s, table) & FAR_OPEN_TABLE_USER);
    assert_int_equal(far_session_call(s->next, FAR_STATS_OTHER, true, end_walk, &w), 0);
    far_index *y = open_next(s, "y");
    release(s, hold);
    y_is_safe_until_it_is_closed(s, y);
    assert_int_equal(far_pool_poll(s->pool), 0);
    far_sim_resume(drop);
    assert_int_equal(far_sim_run_client(drop), FAR_SIM_ENDED);
    assert_int_equal(other.result, 0);
    far_session_close(other.dropper);
    return landed;
}


static void a_flag_that_is_taken_back_late_harms_nobody(void **state) {
    (void)state;
    tell(undoing_comes_late);
}


/* The handle is closed, and its memory and its registry entry are another's, when the WRITE would come. */
static bool handle_is_closed(story *s, bool with_table) {
    far_addr address = far_open_table_word_of(s->pool->team.own->id), table = with_table ? table_of(s) : 0;
    far_sim_match match = with_table ? write_of(table, FAR_OPEN_TABLE_BYTES) : write_of(address, 8);
    far_sim_hold *hold = lose_at(s, open_x, match);
    bool early = far_sim_seed(s->world) % 2;
    if (early)
        release(s, hold);
    bool landed = word_at(s, with_table ? table : address) != 0;
    far_session_close(s->lost);
    far_session_close(s->next);
    far_pool_close(s->pool);
    assert_int_equal(word_at(s, address), 0);
    release(s, hold);
    assert_int_equal(word_at(s, address), 0);
    assert_int_equal(far_index_drop(s->dropper, "x"), 0);
    nothing_is_lost(s->dropper);
    s->lost = s->next = NULL;
    s->pool = NULL;
    return landed;
}


static bool handle_is_closed_with_a_table(story *s) {
    return handle_is_closed(s, true);
}


static bool handle_is_closed_before_it_had_one(story *s) {
    return handle_is_closed(s, false);
}


static void a_handle_that_is_closed_leaves_nothing_that_comes_late(void **state) {
    (void)state;
    tell(handle_is_closed_with_a_table);
    tell(handle_is_closed_before_it_had_one);
}


static void close_pool(void *arg) {
    story *s = arg;
    far_pool_close(s->pool);
    s->result = 0;
}


/* A lost session need not be known to be dead at once. One that lives stands for it here: it is returned. */
static far_session *lose_next(story *s) {
    far_session *writer;
    far_index *index;
    assert_int_equal(far_session_open(s->other, &writer), 0);
    table_of(s);
    far_sim_lose(s->next->conn);
    assert_true(far_index_open(s->next, "x", &index) < 0 && s->next->lost);
    s->next->id = writer->id;
    s->next->generation = writer->generation;
    atomic_store_explicit(&s->pool->open_table.unsure, true, memory_order_relaxed);
    return writer;
}


static void a_handle_is_not_closed_before_its_lost_writers_are_fenced(void **state) {
    (void)state;
    for (unsigned of_address = 0; of_address < 2; of_address++) {
        story s;
        set_up(&s, 1);
        far_session *writer = lose_next(&s);
        if (of_address)
            s.pool->open_table.table = 0;
        s.client = far_sim_start(s.pool->fabric, "closer", close_pool, &s);
        far_sim_run_for(s.world, 2000000);
        assert_int_equal(s.result, 77);
        assert_true(word_at(&s, far_open_table_word_of(s.pool->team.own->id)) != 0); /* not for another reason */
        far_session_close(writer);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        assert_int_equal(s.result, 0);
        far_session_close(s.lost);
        far_session_close(s.next);
        s.lost = s.next = NULL;
        s.pool = NULL;
        tear_down(&s);
    }
}


/* The opener that waits has its index when the lost session, whose id and generation these were, can write no more. */
static void fence(story *s, far_session *writer, unsigned id, unsigned generation) {
    far_session_close(writer);
    assert_int_equal(far_sim_run(s->world), FAR_SIM_ENDED);
    assert_int_equal(s->result, 0);
    s->next->id = id;
    s->next->generation = generation;
    far_index_close(s->index);
    tear_down(s);
}


static void nothing_is_opened_before_lost_writers_are_fenced(void **state) {
    (void)state;
    story s;
    set_up(&s, 1);
    unsigned id = s.next->id, generation = s.next->generation;
    far_session *writer = lose_next(&s);
    s.client = far_sim_start(s.pool->fabric, "opener", open_x, &s);
    far_sim_run_for(s.world, 2000000);
    assert_int_equal(s.result, 77);
    fence(&s, writer, id, generation);
}


/* Before that the opener has met a drop, which was given up soon. What it waits for afterwards, for long, is not that. */
static void a_drop_that_was_met_once_is_not_waited_for(void **state) {
    (void)state;
    story s;
    set_up(&s, 1);
    unsigned id = s.next->id, generation = s.next->generation;
    far_index *x;
    assert_int_equal(far_index_open(s.dropper, "x", &x), 0);
    uint64_t *mark = world_bytes(s.world, x->record + offsetof(far_index_record, mark));
    far_index_close(x);
    far_session *writer = lose_next(&s);
    *mark = far_owner_pack(s.dropper->id, s.dropper->generation, 0);
    s.client = far_sim_start(s.pool->fabric, "opener", open_x, &s);
    far_sim_run_for(s.world, 30000);
    *mark = 0;
    far_sim_run_for(s.world, 20000 * far_tick(s.pool->fabric));
    assert_int_equal(s.result, 77);
    fence(&s, writer, id, generation);
}


/* The last WRITE of the table was one of the handle's own session, which is lost: nobody writes it anew, the handle is dead. */
static void after_a_lost_own_session_nothing_is_opened(void **state) {
    (void)state;
    story s;
    far_index *index;
    set_up(&s, 1);
    table_of(&s);
    far_session_enter(s.pool->team.own);
    far_session_lose(s.pool->team.own, FAR_ERR_UNREACHABLE);
    far_session_leave(s.pool->team.own);
    atomic_store_explicit(&s.pool->open_table.unsure, true, memory_order_relaxed);
    assert_int_equal(far_index_open(s.next, "x", &index), FAR_ERR_FENCED);
    assert_true(far_open_table_is_unsure(s.pool));
    tear_down(&s);
}


/* ---- Words that damage changed ---- */

static uint64_t *table_words(story *s, const far_pool *pool) {
    far_addr table = word_at(s, far_open_table_word_of(pool->team.own->id));
    assert_true(table != 0 && !(table & FAR_OPEN_TABLE_ALONE));
    return world_bytes(s->world, table);
}


static int ask_for_attention(far_task *t, void *arg) {
    (void)arg;
    return far_request_attention(t);
}


/* (Without far_open_table_prove in a tick: the index is dropped under its user.) */
static void a_word_that_damage_took_away_is_back_with_the_next_request(void **state) {
    (void)state;
    story s;
    far_index *x;
    set_up(&s, 16);
    assert_int_equal(far_index_open(s.dropper, "x", &x), 0);
    uint64_t *words = table_words(&s, s.other), sound = words[0];
    assert_true(sound & FAR_OPEN_TABLE_USER);
    words[0] = 0;
    assert_int_equal(far_session_call(s.next, FAR_STATS_OTHER, true, ask_for_attention, NULL), 0);
    for (unsigned i = 0; i < 100 && words[0] == 0; i++) {
        far_pool_poll(s.pool);
        far_sim_sleep(s.world, 1000000);
    }
    assert_int_equal(words[0], sound);
    assert_int_equal(far_index_drop(s.next, "x"), FAR_ERR_BUSY);
    assert_int_equal(far_put(s.dropper, x, "k", 1, "v", 1), 0);
    far_index_close(x);
    tear_down(&s);
}


/* In the table of another handle, which hears that somebody waits; in that of the one who drops, which does not wait.
 * (Without far_open_table_prove in a tick, or in a drop: it waits for a walk that never ends.) */
static void a_walk_that_damage_made_up_does_not_hold_up_a_drop(void **state) {
    (void)state;
    story s;
    far_index *z;
    set_up(&s, 17);
    uint64_t uid[2], before;
    for (unsigned i = 0; i < 2; i++) {
        far_index *index = open_next(&s, i ? "y" : "x");
        uid[i] = index->uid;
        far_index_close(index);
    }
    assert_int_equal(far_index_create(s.next, "z", "toy", "slots=4", &z), 0);
    uint64_t *words = table_words(&s, s.pool);
    assert_int_equal(words[7], 0);
    words[7] = uid[0];
    s.client = world_start(s.other, "dropper", drop_x_elsewhere, &s);
    for (unsigned i = 0; i < 1000 && !far_sim_ended(s.client); i++) {
        far_pool_poll(s.pool);
        far_sim_run_for(s.world, 1000000);
    }
    assert_true(far_sim_ended(s.client));
    assert_int_equal(s.result, 0);
    assert_int_equal(words[7], 0);

    words[7] = uid[1];
    before = far_host_now(s.pool->fabric->host);
    assert_int_equal(far_index_drop(s.next, "y"), 0);
    assert_true(far_host_now(s.pool->fabric->host) - before < far_tick(s.pool->fabric));
    far_index_close(z);
    tear_down(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_opener_does_not_refuse_drops_for_ever),
        cmocka_unit_test(a_lost_opener_does_not_refuse_a_drop_of_its_own_handle),
        cmocka_unit_test(a_late_word_of_a_lost_opener_takes_no_other_place),
        cmocka_unit_test(the_repair_waits_until_nothing_can_come_late),
        cmocka_unit_test(a_late_address_of_a_table_replaces_no_other),
        cmocka_unit_test(what_no_session_made_is_not_taken_for_a_table),
        cmocka_unit_test(a_creator_after_a_lost_opener_is_seen_by_droppers),
        cmocka_unit_test(a_late_flag_of_a_lost_opener_outlives_no_walk),
        cmocka_unit_test(a_flag_of_a_lost_opener_does_not_refuse_what_waits_for_a_walk),
        cmocka_unit_test(a_flag_that_is_taken_back_late_harms_nobody),
        cmocka_unit_test(a_handle_that_is_closed_leaves_nothing_that_comes_late),
        cmocka_unit_test(a_handle_is_not_closed_before_its_lost_writers_are_fenced),
        cmocka_unit_test(nothing_is_opened_before_lost_writers_are_fenced),
        cmocka_unit_test(a_drop_that_was_met_once_is_not_waited_for),
        cmocka_unit_test(after_a_lost_own_session_nothing_is_opened),
        cmocka_unit_test(a_word_that_damage_took_away_is_back_with_the_next_request),
        cmocka_unit_test(a_walk_that_damage_made_up_does_not_hold_up_a_drop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
