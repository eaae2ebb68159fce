/* Memory that is short, move by move: operations that wait for it beside closes, stopped processes and others that give
 * theirs up just then. */
#include "hunger_rig.h"


static const far_pool_options without_thread = {.rdwc = 1, .no_thread = 1};


/* ---- Closing ---- */

static void close_pool(void *arg) {
    far_pool_close(((room *)arg)->pool[0]);
}


static void close_comes_to_an_end(room *r) {
    far_sim_client *closer = far_sim_start(r->pool[0]->fabric, "closer", close_pool, r);
    far_sim_limit(r->world, 1000000000);
    assert_int_equal(far_sim_run_client(closer), FAR_SIM_ENDED);
    far_index_close(r->index[0]);
    for (unsigned i = 0; i < r->count; i++)
        far_session_close(r->guests[i].session);
}


/* They wait for the epoch to move, one of them for the other; housekeeping, which moves it, has ended. */
static void a_handle_is_closed_while_operations_wait_for_memory(void **state) {
    (void)state;
    static char value[FAR_VALUE_MAX];
    room r;
    far_op ops[2], *list[2];
    open_room(&r, 400, 1, 3, "2M");
    for (unsigned i = 1; i < 3; i++)
        assert_int_equal(put(&r.guests[i], "first", 1), 0);
    assert_true(fill(&r.guests[0], "a", LARGE) > 2);
    delete_key(&r.guests[0], "a", 0);
    for (unsigned i = 0; i < 2; i++) {
        guest *g = &r.guests[1 + i];
        ops[i] = (far_op){.kind = FAR_OP_PUT,
                          .index = g->index,
                          .key = g->key,
                          .key_len = strlen(g->key),
                          .value = value,
                          .value_len = LARGE,
                          .result = 77};
        list[i] = &ops[i];
        assert_int_equal(far_submit(g->session, &list[i], 1), 1);
    }
    close_comes_to_an_end(&r);
    if (ops[0].result != 0 || (ops[1].result != 0 && ops[1].result != FAR_ERR_NO_MEMORY)) /* there was room for one */
        fail_msg("the first in line got %d, the second %d", ops[0].result, ops[1].result);
}


static void wait_for_epochs(far_task *t, void *arg) {
    *(int *)arg = far_wait_epochs(t, 5);
}


static void a_handle_is_closed_while_a_task_waits_for_epochs(void **state) {
    (void)state;
    room r;
    int result = 77;
    open_room(&r, 401, 1, 1, "2M");
    far_session *s = r.guests[0].session;
    far_session_enter(s);
    assert_non_null(far_task_new(s, FAR_STATS_OTHER, wait_for_epochs, &result));
    far_session_leave(s);
    close_comes_to_an_end(&r);
    assert_int_equal(result, 0);
}


/* An operation that was submitted is waking the handle; the session that is closed first wants a pin too. */
static void a_handle_is_closed_while_an_operation_wakes_it(void **state) {
    (void)state;
    room r;
    open_room(&r, 402, 1, 2, "2M");
    guest *first = &r.guests[0];
    assert_int_equal(put(first, "first", 1), 0);
    far_sim_sleep(r.world, 50000000);
    assert_false(far_epoch_is_awake(r.pool[0]));
    far_op op = {.kind = FAR_OP_PUT,
                 .index = first->index,
                 .key = "b",
                 .key_len = 1,
                 .value = "c",
                 .value_len = 1,
                 .result = 77},
           *list = &op;
    assert_int_equal(far_submit(first->session, &list, 1), 1);
    close_comes_to_an_end(&r);
    assert_int_equal(op.result, 0);
}


/* ---- What is on its way ---- */

static far_sim_match data_write(const room *r) {
    far_addr first = far_addr_make(0, r->pool[0]->geometry.node[0].first_block);
    return (far_sim_match){.kind = FAR_SIM_WRITE, .from = first, .to = first + (1ull << 30)};
}


/* Two of them, g1 and g2, fill a block. */
static void put_three(guest *g) {
    static const char *const keys[] = {"g0", "g1", "g2"};
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(put(g, keys[i], HALF), 0);
}


static void poll_main(void *arg) {
    room *r = arg;
    for (unsigned i = 0; i < 40; i++) {
        far_epoch_request(r->pool[0]);
        assert_int_equal(far_pool_poll(r->pool[0]), 0);
    }
}


/* Another session hears of it, and gives up its only free block. That is no longer in its lists, and not yet in the
 * pool.
 */
static void what_another_session_is_giving_up_is_waited_for(void **state) {
    (void)state;
    room r;
    open_room_with(&r, 410, 1, 2, "2M", &without_thread);
    guest *hungry = &r.guests[1], *giver = &r.guests[0];
    put_three(giver);
    assert_true(fill(hungry, "a", HALF) > 4);              /* others have left what else they had ... */
    assert_false(far_drops_wait(hungry->session->memory)); /* ... in which nothing is of an index that may be gone */
    pass_epochs(giver);
    assert_int_equal(giver->session->memory->free_bytes, 0);
    delete_key(giver, "g", 1);
    pass_epochs(giver);
    pass_epochs(hungry);

    start(&r, 1, 1, HALF);
    far_sim_stop_before(hungry->client, (far_sim_match){.point = "hunger:short"});
    assert_int_equal(far_sim_run_client(hungry->client), FAR_SIM_STOPPED);
    far_sim_client *poller = far_sim_start(r.pool[0]->fabric, "poller", poll_main, &r);
    far_sim_hold *hold = far_sim_hold_effect(poller, data_write(&r));
    assert_int_equal(far_sim_run_client(poller), FAR_SIM_HELD);
    assert_int_equal(far_sim_run_client(poller), FAR_SIM_ENDED);
    far_sim_resume(hungry->client);
    far_sim_limit(r.world, 20000000);
    assert_true(far_sim_run_client(hungry->client) != FAR_SIM_ENDED);
    far_sim_limit(r.world, 0);
    far_sim_release(hold);
    assert_int_equal(far_sim_run_client(hungry->client), FAR_SIM_ENDED);
    assert_int_equal(hungry->result, 0);
    close_room(&r);
}


/* Blocks that were one value are being wiped by a task of the session itself. */
static void what_the_session_itself_is_freeing_is_waited_for(void **state) {
    (void)state;
    room r;
    open_room_with(&r, 411, 1, 1, "2M", &without_thread);
    guest *g = &r.guests[0];
    assert_true(fill(g, "a", FAR_VALUE_MAX) > 2);
    delete_key(g, "a", 0);
    pass_epochs(g);
    delete_key(g, "a", 1);
    assert_int_equal(put(g, "b", FAR_VALUE_MAX), 0); /* what the first one was */
    far_sim_client *poller = far_sim_start(r.pool[0]->fabric, "poller", poll_main, &r);
    far_sim_hold *hold = far_sim_hold_completion(poller, data_write(&r));
    assert_int_equal(far_sim_run_client(poller), FAR_SIM_HELD);
    assert_int_equal(far_sim_run_client(poller), FAR_SIM_ENDED);
    start(&r, 0, 1, FAR_VALUE_MAX);
    far_sim_limit(r.world, 20000000);
    assert_true(far_sim_run_client(g->client) != FAR_SIM_ENDED);
    far_sim_limit(r.world, 0);
    far_sim_release(hold);
    assert_int_equal(far_sim_run(r.world), FAR_SIM_ENDED);
    assert_int_equal(g->result, 0);
    close_room(&r);
}


/* A tick that takes long is one task, however often housekeeping comes by. */
static void ticks_of_a_session_do_not_pile_up(void **state) {
    (void)state;
    room r;
    open_room_with(&r, 412, 1, 1, "2M", &without_thread);
    guest *g = &r.guests[0];
    assert_int_equal(put(g, "a0", HALF), 0);
    delete_key(g, "a", 0);
    pass_epochs(g);
    atomic_fetch_add_explicit(&r.pool[0]->quarantine->shortage, 1, memory_order_relaxed); /* all that is free goes */
    far_sim_client *poller = far_sim_start(r.pool[0]->fabric, "poller", poll_main, &r);
    far_sim_hold *hold = far_sim_hold_effect(poller, data_write(&r));
    assert_int_equal(far_sim_run_client(poller), FAR_SIM_HELD);
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(far_sim_run_client(poller), FAR_SIM_ENDED);
        poller = far_sim_start(r.pool[0]->fabric, "poller", poll_main, &r);
    }
    assert_int_equal(atomic_load_explicit(&g->session->active, memory_order_relaxed), 1);
    far_sim_release(hold);
    assert_int_equal(far_sim_run(r.world), FAR_SIM_ENDED);
    close_room(&r);
}


/* ---- What came back just now ---- */

/* Nothing else is free in its blocks. */
static unsigned fill_up(guest *g, size_t first) {
    char prefix[2] = "a";
    unsigned count = fill(g, prefix, first);
    for (size_t bytes = first / 2; bytes > 0; bytes /= 2) {
        prefix[0]++;
        fill(g, prefix, bytes);
    }
    return count;
}


/* The first attempt found nothing because another session had it, which then hears of that and gives it to the pool. */
static void what_came_back_after_the_first_attempt_is_seen(void **state) {
    (void)state;
    room r;
    open_room(&r, 420, 1, 2, "1500K");
    guest *hungry = &r.guests[0];
    assert_true(fill_up(hungry, SMALL) > 300);
    pass_epochs(&r.guests[1]); /* it has heard that memory was short */
    for (unsigned i = 0; i < 4; i++)
        delete_key(&r.guests[1], "a", 10 * i); /* it has no blocks of its own */
    pass_epochs(&r.guests[1]);
    start(&r, 0, 1, SMALL);
    far_sim_stop_before(hungry->client, (far_sim_match){.point = "hunger:short"});
    assert_int_equal(far_sim_run_client(hungry->client), FAR_SIM_STOPPED);
    far_sim_sleep(r.world, 10000000);
    far_sim_resume(hungry->client);
    assert_int_equal(far_sim_run_client(hungry->client), FAR_SIM_ENDED);
    assert_int_equal(hungry->result, 0);
    close_room(&r);
}


/* ---- What an attempt leaves ---- */

static int put_and_fail(far_task *t, void *arg) {
    static const uint64_t word = 12345;
    (void)arg;
    int err = far_pin_take(t);
    far_write(t, far_addr_make(0, FAR_SUPER_LEAKED), &word, 8);
    return err < 0 ? err : FAR_ERR_NO_MEMORY;
}


static int fail_hungry(far_task *t, void *arg) {
    int err = put_and_fail(t, arg);
    return err == FAR_ERR_NO_MEMORY ? far_run_hungry(t, put_and_fail, arg) : err;
}


static int read_leaked(far_task *t, void *arg) {
    return far_read_word(t, far_addr_make(0, FAR_SUPER_LEAKED), arg);
}


/* It had put a verb when it found no memory: that is not posted any more, its pin is gone and perhaps its memory. */
static void verbs_of_an_attempt_that_failed_are_not_posted(void **state) {
    (void)state;
    room r;
    uint64_t word = 77;
    open_room(&r, 425, 1, 1, "2M");
    far_session *s = r.guests[0].session;
    assert_int_equal(far_session_call(s, FAR_STATS_OTHER, false, fail_hungry, NULL), FAR_ERR_NO_MEMORY);
    assert_int_equal(far_session_call(s, FAR_STATS_OTHER, false, read_leaked, &word), 0);
    assert_int_equal(word, 0);
    close_room(&r);
}


/* ---- Stopped processes ---- */

static int hold_pin(far_task *t, void *arg) {
    (void)arg;
    int err = far_pin_take(t);
    far_point(t, "hunger:pinned");
    far_pin_drop(t);
    return err;
}


static void hold_main(void *arg) {
    guest *g = arg;
    g->result = far_session_call(g->session, FAR_STATS_OTHER, false, hold_pin, NULL);
}


/* Its process was stopped in the middle of an operation: the epoch stays where it is, and what is retired with it. */
static void nobody_waits_for_ever_beside_a_pin_that_stays(void **state) {
    (void)state;
    room r;
    open_room(&r, 430, 2, 4, "2M");
    guest *stopped = &r.guests[1];
    for (unsigned i = 2; i < 4; i++)
        assert_int_equal(put(&r.guests[i], "first", 1), 0);
    assert_true(fill(&r.guests[0], "a", LARGE) > 2);
    stopped->client = far_sim_start(r.pool[1]->fabric, "stopped", hold_main, stopped);
    far_sim_stop_before(stopped->client, (far_sim_match){.point = "hunger:pinned"});
    assert_int_equal(far_sim_run_client(stopped->client), FAR_SIM_STOPPED);
    delete_key(&r.guests[0], "a", 0);
    far_sim_limit(r.world, 2000000000);
    for (unsigned i = 0; i < 3; i++) {
        start(&r, 2, 1, LARGE);
        assert_int_equal(far_sim_run_client(r.guests[2].client), FAR_SIM_ENDED);
        assert_int_equal(r.guests[2].result, FAR_ERR_NO_MEMORY);
    }
    far_sim_resume(stopped->client);
    assert_int_equal(far_sim_run(r.world), FAR_SIM_ENDED);
    assert_int_equal(put(&r.guests[2], "b", LARGE), 0);
    close_room(&r);
}


static int stand_still(far_task *t, void *arg) {
    (void)arg;
    far_point(t, "hunger:still");
    return 0;
}


static void stand_main(void *arg) {
    guest *g = arg;
    g->result = far_session_call(g->session, FAR_STATS_OTHER, false, stand_still, NULL);
}


/* Its thread does not get to run for a while, inside the session: nobody can make it give up what it holds. */
static void a_session_whose_thread_is_slow_is_waited_for(void **state) {
    (void)state;
    room r;
    open_room(&r, 431, 1, 2, "2M");
    guest *slow = &r.guests[0], *hungry = &r.guests[1];
    assert_int_equal(put(hungry, "first", 1), 0);
    assert_true(fill(slow, "a", LARGE) > 2);
    slow->client = far_sim_start(r.pool[0]->fabric, "slow", stand_main, slow);
    delete_key(slow, "a", 0);
    far_sim_stop_before(slow->client, (far_sim_match){.point = "hunger:still"});
    assert_int_equal(far_sim_run_client(slow->client), FAR_SIM_STOPPED);
    start(&r, 1, 1, LARGE);
    far_sim_limit(r.world, 10000000);
    assert_true(far_sim_run_client(hungry->client) != FAR_SIM_ENDED);
    far_sim_limit(r.world, 0);
    far_sim_resume(slow->client);
    assert_int_equal(far_sim_run(r.world), FAR_SIM_ENDED);
    assert_int_equal(hungry->result, 0);
    close_room(&r);
}


/* ---- Announcements ---- */

static int announce_on(far_task *t, void *arg) {
    const uint64_t *until = arg;
    const far_addr word = far_addr_make(0, FAR_SUPER_SHORT);
    unsigned handle = far_task_pool(t)->own->id;
    uint64_t epoch, last = 0;
    int err = 0;
    while (err == 0 && far_now(t) < *until) {
        if ((err = far_epoch_read(t, &epoch)) == 0 && (err = far_read_word(t, word, &last)) == 0)
            err = far_cas_word(t, word, last, far_short_pack(far_short_number(last) + 1, epoch, handle), &last);
        far_sleep(t, 40000);
    }
    return err;
}


typedef struct announcer {
    guest *guest;
    uint64_t until;
} announcer;


static void announce_main(void *arg) {
    announcer *a = arg;
    a->guest->result = far_session_call(a->guest->session, FAR_STATS_OTHER, false, announce_on, &a->until);
}


/* In another handle one operation after the other finds no memory. */
static void a_handle_that_is_always_short_starves_nobody(void **state) {
    (void)state;
    room r;
    open_room(&r, 440, 2, 2, "2M");
    announcer a = {&r.guests[1], far_sim_now(r.world) + 2000000000};
    far_sim_client *client = far_sim_start(r.pool[1]->fabric, "announcer", announce_main, &a);
    far_sim_run_for(r.world, 1000000);
    start(&r, 0, 3, LARGE);
    far_sim_run_for(r.world, 1000000000);
    assert_false(far_sim_ended(client));
    assert_true(far_sim_ended(r.guests[0].client));
    assert_int_equal(r.guests[0].puts, 3);
    assert_int_equal(far_sim_run(r.world), FAR_SIM_ENDED);
    close_room(&r);
}


/* It looks up long after somebody was short of memory, who waits, and moves the epoch on meanwhile. What it has are
 * free pages in a block of its own. */
static void a_handle_that_sleeps_hears_of_who_waits_in_another(void **state) {
    (void)state;
    room r;
    open_room(&r, 442, 2, 2, "1500K");
    guest *hungry = &r.guests[0], *sleeper = &r.guests[1];
    put_three(sleeper);
    assert_true(fill(hungry, "a", HALF) > 4);
    pass_epochs(sleeper);
    delete_key(sleeper, "g", 1);
    pass_epochs(sleeper);
    for (unsigned i = 0; i < 3; i++)
        pass_epochs(hungry); /* others are asked again */
    far_sim_sleep(r.world, 50000000);
    assert_false(far_epoch_is_awake(r.pool[1]));
    assert_int_equal(put(hungry, "b", HALF), 0);
    close_room(&r);
}


static void delete_and_put(void *arg) {
    guest *g = arg;
    for (unsigned i = 0; i < 4; i++)
        delete_key(g, "a", i);
    g->result = put(g, g->key, LARGE);
}


/* Its thread is always inside, so no tick of housekeeping tells what it holds: it does so itself before it waits. */
static void who_waits_for_memory_tells_what_he_holds_himself(void **state) {
    (void)state;
    room r;
    open_room(&r, 443, 2, 2, "2M");
    guest *g = &r.guests[0];
    assert_true(fill(g, "a", LARGE) > 10);
    g->client = far_sim_start(r.pool[0]->fabric, "busy", delete_and_put, g);
    far_sim_stop_before(g->client, (far_sim_match){.point = "hunger:waits"});
    assert_int_equal(far_sim_run_client(g->client), FAR_SIM_STOPPED);
    const far_client *told =
        (const far_client *)((const char *)far_sim_memory(r.world, 0) + far_client_entry(g->session->id));
    assert_true(g->session->memory->retired_bytes > 4 * LARGE);
    assert_int_equal(told->retired_bytes, g->session->memory->retired_bytes);
    assert_int_equal(told->free_bytes, g->session->memory->free_bytes);
    far_sim_resume(g->client);
    assert_int_equal(far_sim_run_client(g->client), FAR_SIM_ENDED);
    assert_int_equal(g->result, 0);
    close_room(&r);
}


/* One takes its announcement back just when another handle has announced itself: that one must be heard. */
static void who_takes_an_announcement_back_leaves_those_of_others(void **state) {
    (void)state;
    room r;
    open_room(&r, 441, 2, 3, "1500K");
    guest *holder = &r.guests[0], *second = &r.guests[1], *first = &r.guests[2]; /* the second is in the other handle */
    assert_int_equal(put(first, "first", 1), 0);
    assert_int_equal(put(second, "second", 1), 0);
    unsigned count = fill(holder, "a", SMALL);
    for (unsigned i = 0; i < 3; i++)
        pass_epochs(holder); /* others are asked again */
    delete_key(holder, "a", 0);
    start(&r, 2, 1, SMALL);
    far_sim_stop_before(first->client, (far_sim_match){.point = "hunger:take_back"});
    assert_int_equal(far_sim_run_client(first->client), FAR_SIM_STOPPED);
    for (unsigned i = 1; i < count; i++) {
        char key[32];
        snprintf(key, sizeof(key), "a%u", i);
        if (i % 4 != 0) /* some find no memory for what remains: the first one holds its pin */
            far_delete(holder->session, holder->index, key, strlen(key));
    }
    far_sim_sleep(r.world, 5000000);

    start(&r, 1, 1, SMALL);
    far_sim_hold *hold = far_sim_hold_completion(
        second->client, (far_sim_match){.kind = FAR_SIM_CAS, .from = FAR_SUPER_SHORT, .to = FAR_SUPER_SHORT + 8});
    assert_int_equal(far_sim_run_client(second->client), FAR_SIM_HELD);
    far_sim_resume(first->client);
    assert_int_equal(far_sim_run_client(first->client), FAR_SIM_ENDED);
    assert_int_equal(first->result, 0);
    uint64_t word;
    memcpy(&word, (const char *)far_sim_memory(r.world, 0) + FAR_SUPER_SHORT, 8);
    assert_int_equal(far_short_handle(word), r.pool[1]->own->id);
    far_sim_release(hold);
    assert_int_equal(far_sim_run_client(second->client), FAR_SIM_ENDED);
    assert_int_equal(second->result, 0);
    close_room(&r);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_handle_is_closed_while_operations_wait_for_memory),
        cmocka_unit_test(a_handle_is_closed_while_a_task_waits_for_epochs),
        cmocka_unit_test(a_handle_is_closed_while_an_operation_wakes_it),
        cmocka_unit_test(what_another_session_is_giving_up_is_waited_for),
        cmocka_unit_test(what_the_session_itself_is_freeing_is_waited_for),
        cmocka_unit_test(ticks_of_a_session_do_not_pile_up),
        cmocka_unit_test(what_came_back_after_the_first_attempt_is_seen),
        cmocka_unit_test(verbs_of_an_attempt_that_failed_are_not_posted),
        cmocka_unit_test(nobody_waits_for_ever_beside_a_pin_that_stays),
        cmocka_unit_test(a_session_whose_thread_is_slow_is_waited_for),
        cmocka_unit_test(a_handle_that_is_always_short_starves_nobody),
        cmocka_unit_test(a_handle_that_sleeps_hears_of_who_waits_in_another),
        cmocka_unit_test(who_waits_for_memory_tells_what_he_holds_himself),
        cmocka_unit_test(who_takes_an_announcement_back_leaves_those_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
