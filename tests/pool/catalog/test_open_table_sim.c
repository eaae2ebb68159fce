/* Tests of the table of open indexes after a session of the handle was lost: the last WRITE of the lost session may
 * take effect late, while other sessions continue. The last tests damage words of the table.
 *
 * The seed decides whether the WRITE of a lost session takes effect. Each scenario runs for several seeds, and the test
 * requires that both outcomes occur. */
#include "open_table_rig.h"
#include "test.h"
#include "pool/format/owner.h"
#include "pool/gc/request.h"

enum { SEEDS = 16 };


/* Runs `action` in the session that will be lost, until the effect of the matching verb is held back; then the
 * connection of the session is lost. */
static far_sim_hold *lose_session_at(scenario *s, void (*action)(void *), far_sim_match match) {
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


/* opens and closes an index, which creates the handle's table, and returns the address of that table */
static far_addr create_table_of(scenario *s) {
    far_index_close(open_in_next(s, "y"));
    return read_word_at(s, far_open_table_word_of(s->pool->team.own->id));
}


static void check_y_until_it_is_closed(scenario *s, far_index *y) {
    char value[4];
    assert_int_equal(far_index_drop(s->dropper, "y"), FAR_ERR_BUSY);
    assert_int_equal(far_get(s->next, y, "k", 1, value, sizeof(value), NULL), 0);
    far_index_close(y);
    assert_int_equal(far_index_drop(s->dropper, "y"), 0);
}


/* ---- Scenarios. Each returns whether the WRITE of the lost session took effect. ---- */

typedef bool scenario_function(scenario *s);


static void run_for_all_seeds(scenario_function *of) {
    unsigned landed = 0;
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        scenario s;
        set_up(&s, seed);
        landed += of(&s);
        tear_down(&s);
    }
    assert_true(landed > 0 && landed < SEEDS);
}


/* A session is lost while it opens x. Its WRITE of the table may take effect before the handle is polled. The poll
 * writes the table again. */
static bool write_takes_effect_before_the_poll(scenario *s) {
    far_addr table = create_table_of(s);
    far_sim_hold *hold = lose_session_at(s, open_x_in_lost, write_of(table, FAR_OPEN_TABLE_BYTES));
    release_hold(s, hold);
    bool landed = read_word_at(s, table) != 0;
    assert_int_equal(far_index_drop(s->dropper, "x"), landed ? FAR_ERR_BUSY : 0);
    assert_int_equal(far_pool_poll(s->pool), 0);
    if (landed)
        assert_int_equal(far_index_drop(s->dropper, "x"), 0);
    return landed;
}


/* After a session was lost while it opened x, and the handle was polled, another handle can drop x. Fails without
 * far_open_table_retry_write in housekeeping. */
TEST(a_lost_opener_does_not_block_drops_for_ever) {
    run_for_all_seeds(write_takes_effect_before_the_poll);
}


/* A session is lost while it opens x, and its WRITE of the table may take effect. The handle is not polled, but another
 * session of the handle drops x, which writes the table again. */
static bool write_is_cleared_by_a_dropper(scenario *s) {
    far_addr table = create_table_of(s);
    release_hold(s, lose_session_at(s, open_x_in_lost, write_of(table, FAR_OPEN_TABLE_BYTES)));
    bool landed = read_word_at(s, table) != 0;
    assert_int_equal(far_index_drop(s->next, "x"), 0);
    return landed;
}


/* Another session of the same handle can drop x at once. Fails without far_open_table_retry_write in far_catalog_drop.
 */
TEST(a_lost_opener_does_not_block_a_drop_in_its_own_handle) {
    run_for_all_seeds(write_is_cleared_by_a_dropper);
}


/* Session A is lost while it opens x. Session B of the same handle opens y while A's WRITE may still take effect. If y
 * got A's slot, the late WRITE would overwrite y's word, and y could be dropped while it is open. */
static bool write_takes_effect_late(scenario *s) {
    far_addr table = create_table_of(s);
    far_sim_hold *hold = lose_session_at(s, open_x_in_lost, write_of(table, FAR_OPEN_TABLE_BYTES));
    if (far_sim_seed(s->world) % 2)
        release_hold(s, hold);
    bool landed = read_word_at(s, table) != 0;
    far_index *y = open_in_next(s, "y");
    release_hold(s, hold);
    check_y_until_it_is_closed(s, y);
    assert_int_equal(far_pool_poll(s->pool), 0);
    assert_int_equal(far_index_drop(s->dropper, "x"), 0);
    return landed;
}


/* An index that is opened after a session was lost cannot be dropped until it is closed. Fails without
 * far_pins_release_fenced in rewrite_if_unconfirmed. */
TEST(a_late_write_of_a_lost_opener_overwrites_no_other_slot) {
    run_for_all_seeds(write_takes_effect_late);
}


/* Session A is lost while it opens x. The handle is polled, so the table is rewritten, before session B of the same
 * handle opens y. A's WRITE of the table cannot take effect after the rewrite. */
static bool write_is_released_after_the_rewrite(scenario *s) {
    far_addr table = create_table_of(s);
    far_sim_hold *hold = lose_session_at(s, open_x_in_lost, write_of(table, FAR_OPEN_TABLE_BYTES));
    bool early = far_sim_seed(s->world) % 2;
    if (early)
        release_hold(s, hold);
    bool landed = read_word_at(s, table) != 0;
    assert_int_equal(far_pool_poll(s->pool), 0);
    far_index *y = open_in_next(s, "y");
    uint64_t word = read_word_at(s, table);
    assert_true(word != 0);
    release_hold(s, hold);
    assert_int_equal(read_word_at(s, table), word);
    check_y_until_it_is_closed(s, y);
    assert_int_equal(far_index_drop(s->dropper, "x"), 0);
    return landed;
}


/* After the table was rewritten, the late WRITE of the lost session does not change the table any more. */
TEST(the_rewrite_waits_until_no_write_can_take_effect_late) {
    run_for_all_seeds(write_is_released_after_the_rewrite);
}


/* Session A is lost while it publishes the address of a new table. Session B of the same handle opens y, so it needs a
 * table. If A's WRITE replaced the address of a newer table, droppers would read the wrong table, and a collection
 * would free the right one. */
static bool address_takes_effect_late(scenario *s) {
    far_addr address = far_open_table_word_of(s->pool->team.own->id);
    far_sim_hold *hold = lose_session_at(s, open_x_in_lost, write_of(address, 8));
    bool early = far_sim_seed(s->world) % 2;
    if (early)
        release_hold(s, hold);
    far_addr table = read_word_at(s, address);
    far_index *y = open_in_next(s, "y");
    if (table) /* if A's WRITE took effect, its table is adopted and not leaked */
        assert_int_equal(read_word_at(s, address), table);
    release_hold(s, hold);
    assert_int_equal(read_word_at(s, address), s->pool->open_table.table);
    assert_nothing_leaked(s->next);
    check_y_until_it_is_closed(s, y);
    assert_int_equal(far_index_drop(s->dropper, "x"), 0);
    return table != 0;
}


/* The registry names the table that the handle uses, whenever the lost WRITE takes effect, and no table is leaked. */
TEST(a_late_address_of_a_table_replaces_no_newer_one) {
    run_for_all_seeds(address_takes_effect_late);
}


/* A session was lost, and damage wrote the address of a record to the registry. The handle must not take that record
 * for its table and overwrite it. Fails without the comparison with `created` in adopt_created_table. */
TEST(an_address_that_no_session_wrote_is_not_adopted_as_table) {
    scenario s;
    far_index *y, *x;
    set_up(&s, 1);
    assert_int_equal(far_index_open(s.dropper, "y", &y), 0);
    far_index_record before = *(far_index_record *)world_bytes(s.world, y->record);
    *(uint64_t *)world_bytes(s.world, far_open_table_word_of(s.pool->team.own->id)) = y->record;
    atomic_store_explicit(&s.pool->open_table.write_unconfirmed, true, memory_order_relaxed);
    assert_int_equal(far_index_open(s.next, "x", &x), 0);
    assert_int_not_equal(s.pool->open_table.table, y->record);
    assert_memory_equal(world_bytes(s.world, y->record), &before, sizeof(before));
    far_index_close(x);
    far_index_close(y);
    tear_down(&s);
}


/* A create in the same handle also waits until the lost WRITE of the table's address cannot take effect any more. */
static bool creator_finds_a_lost_table(scenario *s) {
    far_addr address = far_open_table_word_of(s->pool->team.own->id);
    far_sim_hold *hold = lose_session_at(s, open_x_in_lost, write_of(address, 8));
    bool early = far_sim_seed(s->world) % 2;
    if (early)
        release_hold(s, hold);
    bool landed = read_word_at(s, address) != 0;
    far_index *z;
    assert_int_equal(far_index_create(s->next, "z", "toy", "slots=4", &z), 0);
    release_hold(s, hold);
    assert_int_equal(far_index_drop(s->dropper, "z"), FAR_ERR_BUSY);
    far_index_close(z);
    assert_int_equal(far_index_drop(s->dropper, "z"), 0);
    return landed;
}


/* An index that is created in a handle with a lost session is entered into the right table, so a drop fails with
 * FAR_ERR_BUSY until it is closed. */
TEST(an_index_created_after_a_lost_opener_cannot_be_dropped_while_open) {
    run_for_all_seeds(creator_finds_a_lost_table);
}


/* ---- The user flag on the word of an index walk ---- */

/* An index walk has x open. Session A is lost while it sets the user flag in the walk's word. The walk ends, and
 * session B opens y. If y got the walk's slot, the late WRITE would replace y by x. */
static bool user_flag_takes_effect_late(scenario *s) {
    open_walk w = open_x_as_walk(s);
    far_addr table = read_word_at(s, far_open_table_word_of(s->pool->team.own->id));
    far_sim_hold *hold = lose_session_at(s, open_x_in_lost, write_of(table, FAR_OPEN_TABLE_BYTES));
    bool early = far_sim_seed(s->world) % 2;
    if (early)
        release_hold(s, hold);
    bool landed = read_word_at(s, table) & FAR_OPEN_TABLE_USER;
    assert_int_equal(far_session_call(s->next, FAR_STATS_OTHER, true, run_end_walk, &w), 0);
    far_index *y = open_in_next(s, "y");
    release_hold(s, hold);
    check_y_until_it_is_closed(s, y);
    assert_int_equal(far_pool_poll(s->pool), 0);
    assert_int_equal(far_index_drop(s->dropper, "x"), 0);
    return landed;
}


/* A user's open of x is lost while an index walk has x open. y, opened after the walk has ended, cannot be dropped
 * until it is closed, and x can be dropped. */
TEST(a_late_user_flag_of_a_lost_opener_does_not_outlive_the_walk) {
    run_for_all_seeds(user_flag_takes_effect_late);
}


/* An index walk has x open. Session A is lost while it sets the user flag in the walk's word, and the walk continues. A
 * drop of x waits for the walk; the user flag of the lost session does not make the drop fail. */
static bool user_flag_is_set_during_a_walk(scenario *s) {
    open_walk w = open_x_as_walk(s);
    far_addr table = read_word_at(s, far_open_table_word_of(s->pool->team.own->id));
    release_hold(s, lose_session_at(s, open_x_in_lost, write_of(table, FAR_OPEN_TABLE_BYTES)));
    bool landed = read_word_at(s, table) & FAR_OPEN_TABLE_USER;
    assert_int_equal(far_pool_poll(s->pool), 0);
    far_sim_client *drop = far_sim_start(s->other->fabric, "dropper", drop_x_in_dropper, s);
    s->result = 77;
    far_sim_run_for(s->world, 2000000);
    assert_int_equal(s->result, 77); /* the drop is waiting for the walk */
    assert_int_equal(far_session_call(s->next, FAR_STATS_OTHER, true, run_end_walk, &w), 0);
    assert_int_equal(far_sim_run_client(drop), FAR_SIM_ENDED);
    assert_int_equal(s->result, 0);
    return landed;
}


/* A user's open of x is lost while an index walk has x open. After the handle was polled, a drop of x waits for the
 * walk and then succeeds. */
TEST(a_user_flag_of_a_lost_opener_does_not_block_a_drop_that_waits_for_a_walk) {
    run_for_all_seeds(user_flag_is_set_during_a_walk);
}


/* An index walk has x open. Session A opens x for its user: it sets the user flag in the walk's word, finds a drop mark
 * on x, and clears the flag again. A is lost during this second WRITE, which may take effect at any later time. The
 * walk ends, and session B opens y. If y got the walk's word, the late WRITE would replace y by x. */
static bool clearing_takes_effect_late(scenario *s) {
    open_walk w = open_x_as_walk(s);
    far_addr table = read_word_at(s, far_open_table_word_of(s->pool->team.own->id));
    s->client = far_sim_start(s->pool->fabric, "lost", open_x_in_lost, s);
    far_sim_stop_before(s->client, (far_sim_match){.point = "catalog:set_user_bit"});
    assert_int_equal(far_sim_run_client(s->client), FAR_SIM_STOPPED);
    scenario other = *s;
    assert_int_equal(far_session_open(s->other, &other.dropper), 0);
    far_sim_client *drop = far_sim_start(s->other->fabric, "dropper", drop_x_in_dropper, &other);
    far_sim_stop_before(drop, (far_sim_match){.point = "catalog:mark_is_set"});
    assert_int_equal(far_sim_run_client(drop), FAR_SIM_STOPPED);

    far_sim_match second = write_of(table, FAR_OPEN_TABLE_BYTES);
    second.nth = 2;
    far_sim_hold *hold = far_sim_hold_effect(s->client, second);
    far_sim_resume(s->client);
    assert_int_equal(far_sim_run_client(s->client), FAR_SIM_HELD);
    assert_true(read_word_at(s, table) & FAR_OPEN_TABLE_USER);
    far_sim_lose(s->lost->conn);
    assert_int_equal(far_sim_run_client(s->client), FAR_SIM_ENDED);
    assert_int_equal(s->result, FAR_ERR_UNREACHABLE);
    bool early = far_sim_seed(s->world) % 2;
    if (early)
        release_hold(s, hold);
    bool landed = !(read_word_at(s, table) & FAR_OPEN_TABLE_USER);
    assert_int_equal(far_session_call(s->next, FAR_STATS_OTHER, true, run_end_walk, &w), 0);
    far_index *y = open_in_next(s, "y");
    release_hold(s, hold);
    check_y_until_it_is_closed(s, y);
    assert_int_equal(far_pool_poll(s->pool), 0);
    far_sim_resume(drop);
    assert_int_equal(far_sim_run_client(drop), FAR_SIM_ENDED);
    assert_int_equal(other.result, 0);
    far_session_close(other.dropper);
    return landed;
}


/* A user's open of x reads a drop mark and is lost while it clears its flag. y, opened afterwards, cannot be dropped
 * until it is closed, and the drop of x succeeds. */
TEST(a_user_flag_that_is_cleared_late_does_no_harm) {
    run_for_all_seeds(clearing_takes_effect_late);
}


/* The handle is closed before the WRITE of its lost session takes effect. When the WRITE could take effect, the memory
 * of the table and the registry entry of the handle may belong to another client. */
static bool close_handle_with_lost_write(scenario *s, bool with_table) {
    far_addr address = far_open_table_word_of(s->pool->team.own->id), table = with_table ? create_table_of(s) : 0;
    far_sim_match match = with_table ? write_of(table, FAR_OPEN_TABLE_BYTES) : write_of(address, 8);
    far_sim_hold *hold = lose_session_at(s, open_x_in_lost, match);
    bool early = far_sim_seed(s->world) % 2;
    if (early)
        release_hold(s, hold);
    bool landed = read_word_at(s, with_table ? table : address) != 0;
    far_session_close(s->lost);
    far_session_close(s->next);
    far_pool_close(s->pool);
    assert_int_equal(read_word_at(s, address), 0);
    release_hold(s, hold);
    assert_int_equal(read_word_at(s, address), 0);
    assert_int_equal(far_index_drop(s->dropper, "x"), 0);
    assert_nothing_leaked(s->dropper);
    s->lost = s->next = NULL;
    s->pool = NULL;
    return landed;
}


static bool close_handle_with_a_table(scenario *s) {
    return close_handle_with_lost_write(s, true);
}


static bool close_handle_without_a_table(scenario *s) {
    return close_handle_with_lost_write(s, false);
}


/* A handle with a lost session is closed, with and without a table. Its registry word is 0 and stays 0, and nothing is
 * leaked. */
TEST(a_closed_handle_leaves_no_write_that_takes_effect_late) {
    run_for_all_seeds(close_handle_with_a_table);
    run_for_all_seeds(close_handle_without_a_table);
}


static void close_pool(void *arg) {
    scenario *s = arg;
    far_pool_close(s->pool);
    s->result = 0;
}


/* Loses the session `next` without fencing it. For that, `next` gets the identity of a live session of another handle,
 * so `next` does not count as fenced until that live session is closed. Returns the live session. */
static far_session *lose_next_unfenced(scenario *s) {
    far_session *writer;
    far_index *index;
    assert_int_equal(far_session_open(s->other, &writer), 0);
    create_table_of(s);
    far_sim_lose(s->next->conn);
    assert_true(far_index_open(s->next, "x", &index) < 0 && s->next->lost);
    s->next->id = writer->id;
    s->next->generation = writer->generation;
    atomic_store_explicit(&s->pool->open_table.write_unconfirmed, true, memory_order_relaxed);
    return writer;
}


/* A close waits while a lost session that wrote to the table is not fenced, and completes afterwards. Fails without the
 * loop in far_catalog_close_table. */
TEST(a_handle_is_not_closed_before_its_lost_writers_are_fenced) {
    for (unsigned of_address = 0; of_address < 2; of_address++) {
        scenario s;
        set_up(&s, 1);
        far_session *writer = lose_next_unfenced(&s);
        if (of_address)
            s.pool->open_table.table = 0;
        s.client = far_sim_start(s.pool->fabric, "closer", close_pool, &s);
        far_sim_run_for(s.world, 2000000);
        assert_int_equal(s.result, 77);
        /* The closing handle is waiting for the fence, and still has its table. */
        assert_true(read_word_at(&s, far_open_table_word_of(s.pool->team.own->id)) != 0);
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


/* Fences the lost session: closes `writer`, whose identity the lost session had, and restores the identity {id,
 * generation} of the lost session. The waiting open then succeeds. */
static void fence_and_finish(scenario *s, far_session *writer, unsigned id, unsigned generation) {
    far_session_close(writer);
    assert_int_equal(far_sim_run(s->world), FAR_SIM_ENDED);
    assert_int_equal(s->result, 0);
    s->next->id = id;
    s->next->generation = generation;
    far_index_close(s->index);
    tear_down(s);
}


/* An open waits while a lost session that wrote to the table is not fenced, and succeeds afterwards. Fails without
 * far_pins_are_unfenced in rewrite_if_unconfirmed. */
TEST(nothing_is_opened_before_lost_writers_are_fenced) {
    scenario s;
    set_up(&s, 1);
    unsigned id = s.next->id, generation = s.next->generation;
    far_session *writer = lose_next_unfenced(&s);
    s.client = far_sim_start(s.pool->fabric, "opener", open_x_in_lost, &s);
    far_sim_run_for(s.world, 2000000);
    assert_int_equal(s.result, 77);
    fence_and_finish(&s, writer, id, generation);
}


/* An opener read a drop mark that was cleared soon. Then it waits long for another reason, an unfenced session. It must
 * not treat that wait as a wait for the mark. */
TEST(a_drop_mark_that_was_read_once_is_not_waited_for_again) {
    scenario s;
    set_up(&s, 1);
    unsigned id = s.next->id, generation = s.next->generation;
    far_index *x;
    assert_int_equal(far_index_open(s.dropper, "x", &x), 0);
    uint64_t *mark = world_bytes(s.world, x->record + offsetof(far_index_record, mark));
    far_index_close(x);
    far_session *writer = lose_next_unfenced(&s);
    *mark = far_owner_pack(s.dropper->id, s.dropper->generation, 0);
    s.client = far_sim_start(s.pool->fabric, "opener", open_x_in_lost, &s);
    far_sim_run_for(s.world, 30000);
    *mark = 0;
    far_sim_run_for(s.world, 20000 * far_tick(s.pool->fabric));
    assert_int_equal(s.result, 77);
    fence_and_finish(&s, writer, id, generation);
}


/* The last WRITE of the table was sent by the system session, which is lost. The handle cannot confirm that the system
 * session is fenced, so the handle does not write the table again, and opens fail with FAR_ERR_FENCED. */
TEST(after_the_system_session_is_lost_nothing_is_opened) {
    scenario s;
    far_index *index;
    set_up(&s, 1);
    create_table_of(&s);
    far_session_enter(s.pool->team.own);
    far_session_lose(s.pool->team.own, FAR_ERR_UNREACHABLE);
    far_session_leave(s.pool->team.own);
    atomic_store_explicit(&s.pool->open_table.write_unconfirmed, true, memory_order_relaxed);
    assert_int_equal(far_index_open(s.next, "x", &index), FAR_ERR_FENCED);
    assert_true(far_open_table_is_unconfirmed(s.pool));
    tear_down(&s);
}


/* ---- Damaged words ---- */

static uint64_t *table_words(scenario *s, const far_pool *pool) {
    far_addr table = read_word_at(s, far_open_table_word_of(pool->team.own->id));
    assert_true(table != 0 && !(table & FAR_OPEN_TABLE_INLINE));
    return world_bytes(s->world, table);
}


static int make_request(far_task *t, void *arg) {
    (void)arg;
    return far_request_publish_empty(t);
}


/* Damage clears the word of an open index. The next request makes the handle compare its table and restore the word, so
 * a drop fails with FAR_ERR_BUSY. Fails without far_open_table_repair_words in a tick; the index would be dropped while
 * it is open. */
TEST(a_word_that_damage_cleared_is_restored_at_the_next_request) {
    scenario s;
    far_index *x;
    set_up(&s, 16);
    assert_int_equal(far_index_open(s.dropper, "x", &x), 0);
    uint64_t *words = table_words(&s, s.other), sound = words[0];
    assert_true(sound & FAR_OPEN_TABLE_USER);
    words[0] = 0;
    assert_int_equal(far_session_call(s.next, FAR_STATS_OTHER, true, make_request, NULL), 0);
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


/* Damage writes the word of an index walk that does not exist, first to the table of another handle and then to the
 * table of the dropping handle. The other handle repairs its table when the drop makes a request; the dropping handle
 * repairs its own at once. Fails without far_open_table_repair_words in a tick or in a drop; the drop would wait for a
 * walk that never ends. */
TEST(a_walk_word_that_damage_wrote_does_not_block_a_drop) {
    scenario s;
    far_index *z;
    set_up(&s, 17);
    uint64_t uid[2], before;
    for (unsigned i = 0; i < 2; i++) {
        far_index *index = open_in_next(&s, i ? "y" : "x");
        uid[i] = index->uid;
        far_index_close(index);
    }
    assert_int_equal(far_index_create(s.next, "z", "toy", "slots=4", &z), 0);
    uint64_t *words = table_words(&s, s.pool);
    assert_int_equal(words[7], 0);
    words[7] = uid[0];
    s.client = world_start(s.other, "dropper", drop_x_in_dropper, &s);
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
