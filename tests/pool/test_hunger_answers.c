/* Memory that is short, and other handles that have some: each answers the announcement, early or late or never. */
#include "hunger_rig.h"


/* ---- A handle that is slow ---- */

typedef struct slow_room { /* the second handle has no thread of its own: it stands still when nobody polls */
    room r;
    bool stop;
    far_thread *poller;
} slow_room;


static void poll_main(void *arg) {
    slow_room *s = arg;
    far_pool *pool = s->r.pool[1];
    far_host *host = pool->fabric->host;
    while (!s->stop) {
        far_parker parker = {0};
        far_pool_poll(pool);
        host->ops->park(host, &parker, far_host_now(host) + far_housekeeping_tick(pool));
    }
}


static void go(slow_room *s) {
    far_host *host = s->r.pool[1]->fabric->host;
    s->stop = false;
    assert_int_equal(host->ops->start(host, poll_main, s, &s->poller), 0);
}


static void stand_still(slow_room *s) {
    far_host *host = s->r.pool[1]->fabric->host;
    s->stop = true;
    host->ops->join(host, s->poller);
}


static uint64_t word_at(const room *r, far_addr addr) {
    uint64_t word;
    memcpy(&word, (const char *)far_sim_memory(r->world, 0) + addr, 8);
    return word;
}


static uint32_t announced(const room *r) {
    return far_short_number(word_at(r, FAR_SUPER_SHORT));
}


static uint32_t answered(const room *r, const guest *g) {
    return far_client_answered(word_at(r, far_client_entry(g->session->id) + offsetof(far_client, answer)));
}


/* The pool is full but for half a block, which a session of the slow handle holds; all have answered what was announced
 * so far. */
static void open_slow_room(slow_room *s, unsigned seed, bool asleep) {
    static const far_pool_options options[] = {{.rdwc = 1}, {.rdwc = 1, .no_thread = 1}};
    static const char *const keys[] = {"g0", "g1", "g2"};
    room *r = &s->r;
    open_room_with(r, seed, 2, 2, "1500K", options);
    guest *hungry = &r->guests[0], *holder = &r->guests[1];
    go(s);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(put(holder, keys[i], HALF), 0);
    assert_true(fill(hungry, "a", HALF) > 4);
    assert_true(fill(hungry, "b", 1) > 4);
    pass_epochs(holder);
    delete_key(holder, "g", 1);
    pass_epochs(holder);
    if (asleep)
        far_sim_sleep(r->world, 50000000);
    else
        assert_int_equal(far_get(holder->session, holder->index, "g0", 2, NULL, 0, NULL), FAR_ERR_TOO_SMALL);
    assert_int_equal(far_epoch_is_awake(r->pool[1]), !asleep);
    assert_int_equal(answered(r, holder), announced(r));
    stand_still(s);
}


static void close_slow_room(slow_room *s) {
    assert_int_equal(far_pool_check(s->r.guests[0].session, 0, fail_at_problem, NULL), 0);
    assert_int_equal(far_sim_watch_errors(s->r.world), 0);
    stand_still(s);
    leave_room(&s->r);
}


/* Its answer to an earlier announcement does not count. */
static void comes_late(unsigned seed, bool asleep) {
    slow_room s;
    open_slow_room(&s, seed, asleep);
    guest *hungry = &s.r.guests[0], *holder = &s.r.guests[1];
    uint32_t before = announced(&s.r);
    assert_true(before > 0);
    start(&s.r, 0, 1, HALF);
    far_sim_limit(s.r.world, 500000000);
    assert_true(far_sim_run_client(hungry->client) != FAR_SIM_ENDED);
    assert_int_equal(answered(&s.r, holder), before);
    assert_true(announced(&s.r) > before);
    far_sim_limit(s.r.world, 0);
    go(&s);
    assert_int_equal(far_sim_run_client(hungry->client), FAR_SIM_ENDED);
    assert_int_equal(hungry->result, 0);
    close_slow_room(&s);
}


static void an_answer_that_comes_late_is_waited_for(void **state) {
    (void)state;
    comes_late(500, false);
    comes_late(501, true);
}


/* Its process was stopped. Once that was found out nobody waits for it, until it answers again. */
static void never_comes(unsigned seed, bool asleep) {
    slow_room s;
    open_slow_room(&s, seed, asleep);
    guest *hungry = &s.r.guests[0];
    for (unsigned i = 0; i < 3; i++) {
        start(&s.r, 0, 1, HALF);
        far_sim_limit(s.r.world, i == 0 ? 3000000000 : 50000000);
        assert_int_equal(far_sim_run_client(hungry->client), FAR_SIM_ENDED);
        assert_int_equal(hungry->result, FAR_ERR_NO_MEMORY);
    }
    far_sim_limit(s.r.world, 0);
    go(&s);
    far_sim_sleep(s.r.world, 50000000);
    assert_int_equal(put(hungry, "c", HALF), 0);
    close_slow_room(&s);
}


static void nobody_waits_for_ever_for_an_answer(void **state) {
    (void)state;
    never_comes(510, false);
    never_comes(511, true);
}


/* It is not waited for any more, and what it held comes back. */
static void who_dies_is_not_waited_for(void **state) {
    (void)state;
    for (unsigned seed = 520; seed < 522; seed++) {
        slow_room s;
        open_slow_room(&s, seed, seed == 521);
        guest *hungry = &s.r.guests[0];
        start(&s.r, 0, 1, HALF);
        far_sim_limit(s.r.world, 300000000);
        assert_true(far_sim_run_client(hungry->client) != FAR_SIM_ENDED);
        far_sim_kill(s.r.pool[1]->fabric);
        far_sim_limit(s.r.world, 100000000);
        assert_int_equal(far_sim_run_client(hungry->client), FAR_SIM_ENDED);
        assert_int_equal(hungry->result, 0);
        far_sim_limit(s.r.world, 0);
        leave_room(&s.r);
    }
}


/* The epoch moves meanwhile: those who hear of it late shall not take it for an old one. */
static void an_announcement_is_renewed_while_answers_are_waited_for(void **state) {
    (void)state;
    slow_room s;
    open_slow_room(&s, 530, true);
    guest *hungry = &s.r.guests[0];
    far_session *other;
    assert_int_equal(far_session_open(s.r.pool[0], &other), 0);
    start(&s.r, 0, 1, HALF);
    far_sim_limit(s.r.world, 50000000);
    assert_true(far_sim_run_client(hungry->client) != FAR_SIM_ENDED);
    for (unsigned i = 0; i < 8; i++) {
        uint64_t epoch = word_at(&s.r, FAR_SUPER_EPOCH) + FAR_EPOCH_FIRST;
        far_sim_limit(s.r.world, 0);
        assert_int_equal(far_session_call(other, FAR_STATS_OTHER, true, wait_and_tick, NULL), 0);
        far_sim_limit(s.r.world, 1000000);
        assert_true(far_sim_run_client(hungry->client) != FAR_SIM_ENDED);
        assert_true(word_at(&s.r, FAR_SUPER_EPOCH) + FAR_EPOCH_FIRST >= epoch + 5);
        assert_true(far_short_is_near(word_at(&s.r, FAR_SUPER_SHORT), epoch + 5, 16));
    }
    far_sim_limit(s.r.world, 0);
    go(&s);
    assert_int_equal(far_sim_run_client(hungry->client), FAR_SIM_ENDED);
    assert_int_equal(hungry->result, 0);
    far_session_close(other);
    close_slow_room(&s);
}


/* ---- Two at once ---- */

static const far_sim_match announces = {.kind = FAR_SIM_CAS, .from = FAR_SUPER_SHORT, .to = FAR_SUPER_SHORT + 8};


static unsigned announcer(const room *r) {
    return far_short_handle(word_at(r, FAR_SUPER_SHORT));
}


static void open_full_room(room *r, unsigned seed) {
    open_room(r, seed, 2, 3, "2M");
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(put(&r->guests[i], "first", 1), 0); /* it has what it keeps for itself */
    assert_true(fill(&r->guests[2], "a", LARGE) > 2);
    far_sim_sleep(r->world, 500000); /* all have heard that nobody is short any more */
}


/* Both want to announce themselves: one is faster, the other one lets it go first. */
static void of_two_that_announce_themselves_at_once_one_goes_first(void **state) {
    (void)state;
    room r;
    open_full_room(&r, 540);
    delete_key(&r.guests[2], "a", 0); /* there will be room for one */
    guest *second = &r.guests[0], *first = &r.guests[1];
    start(&r, 0, 1, LARGE);
    far_sim_stop_before(second->client, announces);
    assert_int_equal(far_sim_run_client(second->client), FAR_SIM_STOPPED);
    start(&r, 1, 1, LARGE);
    far_sim_stop_before(first->client, (far_sim_match){.point = "hunger:waits"});
    assert_int_equal(far_sim_run_client(first->client), FAR_SIM_STOPPED);
    assert_int_equal(announcer(&r), r.pool[1]->own->id);
    far_sim_resume(second->client);
    far_sim_limit(r.world, 300000);
    assert_true(far_sim_run_client(second->client) != FAR_SIM_ENDED);
    assert_int_equal(announcer(&r), r.pool[1]->own->id);
    far_sim_limit(r.world, 0);
    far_sim_resume(first->client);
    assert_int_equal(far_sim_run_client(first->client), FAR_SIM_ENDED);
    assert_int_equal(first->result, 0);
    assert_int_equal(far_sim_run_client(second->client), FAR_SIM_ENDED);
    assert_int_equal(second->result, FAR_ERR_NO_MEMORY);
    close_room(&r);
}


static int announce_once(far_task *t, void *arg) {
    bool on = *(bool *)arg;
    uint64_t word, epoch = 0;
    int err = far_read_word(t, FAR_SUPER_SHORT, &word);
    if (err == 0)
        err = far_epoch_read(t, &epoch);
    uint64_t mine = far_short_pack(far_short_number(word) + on, epoch, on ? far_task_pool(t)->own->id : 0);
    return err < 0 ? err : far_cas_word(t, FAR_SUPER_SHORT, word, mine, &word);
}


/* It let others go first, and it is its turn now; but before it looks again, another handle announces itself, and has
 * all it needs when it looks: that one may take it. */
static void who_is_first_in_line_takes_nothing_while_another_handle_goes_first(void **state) {
    (void)state;
    room r;
    open_full_room(&r, 541);
    guest *late = &r.guests[0], *early = &r.guests[1]; /* in different handles */
    bool on = true;
    assert_int_equal(far_session_call(early->session, FAR_STATS_OTHER, true, announce_once, &on), 0);
    far_sim_sleep(r.world, 300000);
    start(&r, 0, 1, LARGE);
    far_sim_stop_before(late->client, (far_sim_match){.point = "hunger:served"});
    far_sim_run_for(r.world, 300000);
    on = false;
    assert_int_equal(far_session_call(early->session, FAR_STATS_OTHER, true, announce_once, &on), 0);
    assert_int_equal(far_sim_run_client(late->client), FAR_SIM_STOPPED);

    delete_key(early, "a", 0); /* there will be room for one */
    start(&r, 1, 1, LARGE);
    far_sim_stop_before(early->client, (far_sim_match){.point = "hunger:served"});
    assert_int_equal(far_sim_run_client(early->client), FAR_SIM_STOPPED);
    assert_int_equal(announcer(&r), r.pool[1]->own->id);
    far_sim_resume(late->client);
    far_sim_limit(r.world, 300000);
    assert_true(far_sim_run_client(late->client) != FAR_SIM_ENDED);
    far_sim_limit(r.world, 0);
    far_sim_resume(early->client);
    assert_int_equal(far_sim_run_client(early->client), FAR_SIM_ENDED);
    assert_int_equal(early->result, 0);
    assert_int_equal(far_sim_run_client(late->client), FAR_SIM_ENDED);
    assert_int_equal(late->result, FAR_ERR_NO_MEMORY);
    close_room(&r);
}


/* ---- What was given back in blocks of others ---- */

static int stand_at_point(far_task *t, void *arg) {
    (void)arg;
    far_point(t, "hunger:inside");
    return 0;
}


static void stand_inside(void *arg) {
    guest *g = arg;
    g->result = far_session_call(g->session, FAR_STATS_OTHER, false, stand_at_point, NULL);
}


static void delete_and_stand(void *arg) {
    guest *g = arg;
    delete_key(g, "a", g->wanted);
    stand_inside(g);
}


/* Its thread stands still inside the session. */
static void start_and_stand(guest *g, void (*run)(void *arg)) {
    g->client = far_sim_start(g->session->pool->fabric, "stands", run, g);
    far_sim_stop_before(g->client, (far_sim_match){.point = "hunger:inside"});
    assert_int_equal(far_sim_run_client(g->client), FAR_SIM_STOPPED);
}


/* It has told nobody of what it has just freed. */
static void start_delete_and_stand(guest *g, unsigned key) {
    g->wanted = key;
    start_and_stand(g, delete_and_stand);
}


/* One session has all blocks. */
static unsigned open_room_of_one(room *r, unsigned seed, unsigned handles, unsigned owner, unsigned hungry) {
    open_room(r, seed, handles, 4, "1500K");
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(put(&r->guests[i], "first", 1), 0);
    unsigned count = fill(&r->guests[owner], "a", 9000);
    assert_true(count > 20);
    assert_int_equal(fill(&r->guests[hungry], "b", 9000), 0); /* who takes what the others have left */
    far_sim_sleep(r->world, 500000);                          /* all have heard that nobody is short any more */
    assert_int_equal(r->guests[owner].session->memory->free_bytes, 0);
    return count / 2;
}


/* It stands still, and is waited for: then the hungry one gets what it needs. */
static void put_beside(room *r, guest *hungry, guest *slow) {
    start(r, (unsigned)(hungry - r->guests), 1, 9000);
    far_sim_limit(r->world, 20000000);
    assert_true(far_sim_run_client(hungry->client) != FAR_SIM_ENDED);
    far_sim_limit(r->world, 0);
    far_sim_resume(slow->client);
    assert_int_equal(far_sim_run(r->world), FAR_SIM_ENDED);
    assert_int_equal(hungry->result, 0);
}


static void delete_some(guest *deleter, unsigned key) {
    for (unsigned i = 0; i < 4; i++)
        delete_key(deleter, "a", key + i);
    for (unsigned i = 0; i < 2; i++)
        pass_epochs(deleter);
    assert_int_equal(deleter->session->memory->retired_bytes + deleter->session->memory->free_bytes, 0);
    assert_true(far_epoch_is_awake(deleter->session->pool));
}


/* Another one deletes some of what is in them: bits in far memory that only the first can find, who does not know of
 * them. A third one needs that memory. */
static void found_when_there(unsigned seed, unsigned handles, unsigned owner, unsigned deleter, unsigned hungry) {
    room r;
    unsigned key = open_room_of_one(&r, seed, handles, owner, hungry);
    delete_some(&r.guests[deleter], key);
    if (handles == 1 || owner % 2 == hungry % 2) /* what others sleep on is not found */
        far_sim_sleep(r.world, 50000000);
    assert_int_equal(put(&r.guests[hungry], "z", 9000), 0);
    close_room(&r);
}


/* The first one takes its time. */
static void found_when_slow(unsigned seed, unsigned handles, unsigned owner, unsigned deleter, unsigned hungry) {
    room r;
    unsigned key = open_room_of_one(&r, seed, handles, owner, hungry);
    delete_some(&r.guests[deleter], key);
    start_and_stand(&r.guests[owner], stand_inside);
    put_beside(&r, &r.guests[hungry], &r.guests[owner]);
    close_room(&r);
}


/* The deleter is late: when it gives up what it has, the first one has done so already. */
static void found_when_late(unsigned seed, unsigned handles, unsigned owner, unsigned deleter, unsigned hungry) {
    room r;
    unsigned key = open_room_of_one(&r, seed, handles, owner, hungry);
    start_delete_and_stand(&r.guests[deleter], key);
    put_beside(&r, &r.guests[hungry], &r.guests[deleter]);
    close_room(&r);
}


static void what_others_gave_back_in_blocks_of_a_session_is_found(void **state) {
    (void)state;
    for (unsigned late = 0; late < 2; late++) {
        void (*found)(unsigned, unsigned, unsigned, unsigned, unsigned) = late ? found_when_late : found_when_there;
        found(550 + late, 1, 2, 1, 3);
        found(552 + late, 2, 2, 1, 0); /* by the other handle */
        found(554 + late, 2, 3, 1, 0); /* in the other handle */
        found(556 + late, 2, 3, 2, 0); /* in the other handle, by this one */
    }
    found_when_slow(545, 1, 2, 1, 3);
    found_when_slow(546, 2, 2, 1, 0);
}


/* An orphan may hold objects that were given back. */
static void who_adopts_a_block_does_not_know_what_is_in_it(void **state) {
    (void)state;
    room r;
    open_room(&r, 558, 1, 2, "1500K");
    guest *heir = &r.guests[1];
    assert_true(fill(&r.guests[0], "a", SMALL) > 300);
    far_session_close(r.guests[0].session);
    r.guests[0] = (guest){0};
    assert_int_equal(heir->session->memory->looked, r.pool[0]->quarantine->given);
    assert_int_equal(put(heir, "b", 1), 0);
    assert_non_null(heir->session->memory->blocks);
    assert_true(heir->session->memory->looked != r.pool[0]->quarantine->given);
    leave_room(&r);
}


/* ---- What is not told ---- */

static void who_could_not_tell_what_it_holds_is_waited_for(void **state) {
    (void)state;
    room r;
    open_full_room(&r, 560);
    guest *hungry = &r.guests[1], *holder = &r.guests[2];
    assert_int_equal(fill(hungry, "b", LARGE), 0); /* the others have given up what they had */
    far_sim_sleep(r.world, 50000000);
    assert_int_equal(holder->session->memory->free_bytes, 0);
    assert_false(far_epoch_is_awake(r.pool[0]));
    start_delete_and_stand(holder, 0);
    far_sim_sleep(r.world, 20000000);
    assert_int_equal(word_at(&r, far_client_entry(holder->session->id) + offsetof(far_client, retired_bytes)), 0);
    start(&r, 1, 1, LARGE);
    far_sim_limit(r.world, 50000000);
    assert_true(far_sim_run_client(hungry->client) != FAR_SIM_ENDED);
    far_sim_limit(r.world, 0);
    far_sim_resume(holder->client);
    assert_int_equal(far_sim_run(r.world), FAR_SIM_ENDED);
    assert_int_equal(hungry->result, 0);
    close_room(&r);
}


/* ---- Heeding ---- */

static int pin_at_point(far_task *t, void *arg) {
    (void)arg;
    int err = far_pin_take(t);
    far_point(t, "hunger:pinned");
    far_pin_drop(t);
    return err;
}


static void pin_main(void *arg) {
    guest *g = arg;
    g->result = far_session_call(g->session, FAR_STATS_OTHER, false, pin_at_point, NULL);
}


/* It was stopped, and the epoch with it, so that the announcement does not grow old: it holds up one operation. */
static void an_announcement_that_was_heeded_for_long_is_not_heeded_again(void **state) {
    (void)state;
    room r;
    bool on = true;
    open_room(&r, 570, 2, 2, "2M");
    guest *stopped = &r.guests[1];
    assert_int_equal(put(&r.guests[0], "first", 1), 0);
    assert_int_equal(far_session_call(stopped->session, FAR_STATS_OTHER, true, announce_once, &on), 0);
    stopped->client = far_sim_start(r.pool[1]->fabric, "stopped", pin_main, stopped);
    far_sim_stop_before(stopped->client, (far_sim_match){.point = "hunger:pinned"});
    assert_int_equal(far_sim_run_client(stopped->client), FAR_SIM_STOPPED);
    far_sim_sleep(r.world, 500000); /* the others have heard of it */
    for (unsigned i = 0; i < 3; i++) {
        start(&r, 0, i + 1, LARGE); /* one more */
        far_sim_limit(r.world, 50000000);
        far_sim_result result = far_sim_run_client(r.guests[0].client);
        assert_int_equal(result == FAR_SIM_ENDED, i > 0);
        far_sim_limit(r.world, 1000000000);
        if (i == 0)
            assert_int_equal(far_sim_run_client(r.guests[0].client), FAR_SIM_ENDED);
        assert_int_equal(r.guests[0].result, 0);
    }
    far_sim_limit(r.world, 0);
    far_sim_resume(stopped->client);
    assert_int_equal(far_sim_run_client(stopped->client), FAR_SIM_ENDED);
    close_room(&r);
}


/* Those who read the word come in any order: the last one said counts. */
static void an_announcement_that_was_read_earlier_is_not_taken_for_news(void **state) {
    (void)state;
    room r;
    open_room(&r, 580, 1, 1, "2M");
    far_pool *pool = r.pool[0];
    uint64_t epoch = atomic_load_explicit(&pool->epochs.known, memory_order_relaxed);
    uint64_t first = far_short_pack(UINT32_MAX - 1, epoch, 77), second = far_short_pack(0, epoch, 78),
             nobody = far_short_pack(0, 0, 0);
    assert_true(far_memory_hear(pool, far_short_pack(INT32_MAX, epoch, 76)));
    assert_true(far_memory_hear(pool, first));
    assert_true(far_memory_hear(pool, second));
    assert_false(far_memory_hear(pool, first));
    assert_int_equal(atomic_load_explicit(&pool->quarantine->announced, memory_order_relaxed), second);
    assert_false(far_memory_hear(pool, nobody)); /* no news, but it counts */
    assert_false(far_memory_hear(pool, second));
    assert_int_equal(atomic_load_explicit(&pool->quarantine->announced, memory_order_relaxed), nobody);
    assert_false(far_short_is_near(first, epoch + 16, 16));
    assert_true(far_short_is_near(first, epoch + 15, 16));
    assert_true(far_short_is_near(first, epoch - 15, 16));
    assert_false(far_short_is_near(first, epoch - 16, 16));
    assert_true(far_short_is_near(far_short_pack(1, 0x3fffe, 1), 0x40002, 16));
    leave_room(&r);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_that_comes_late_is_waited_for),
        cmocka_unit_test(nobody_waits_for_ever_for_an_answer),
        cmocka_unit_test(who_dies_is_not_waited_for),
        cmocka_unit_test(an_announcement_is_renewed_while_answers_are_waited_for),
        cmocka_unit_test(of_two_that_announce_themselves_at_once_one_goes_first),
        cmocka_unit_test(who_is_first_in_line_takes_nothing_while_another_handle_goes_first),
        cmocka_unit_test(what_others_gave_back_in_blocks_of_a_session_is_found),
        cmocka_unit_test(who_adopts_a_block_does_not_know_what_is_in_it),
        cmocka_unit_test(who_could_not_tell_what_it_holds_is_waited_for),
        cmocka_unit_test(an_announcement_that_was_heeded_for_long_is_not_heeded_again),
        cmocka_unit_test(an_announcement_that_was_read_earlier_is_not_taken_for_news),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
