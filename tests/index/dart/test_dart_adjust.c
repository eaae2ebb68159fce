/* The adjustment of DART's list of prefix lengths, executed step by step. The comment of each test names the guard (the
 * code that makes the test pass); without this guard the test was seen to fail. */
#include "dart_est_rig.h"
#include "test.h"

#define WITHOUT_HOUSEKEEPING "adjust=0,directory_bits=2,upkeep_batch=1,slot_cache=0"


typedef struct stepping {
    far_index *index;
    /* lookup lengths of the adjustment to start; NULL to execute the next step of a started adjustment */
    const uint8_t *lengths;
    unsigned count;
} stepping;


static int step_task(far_task *t, void *arg) {
    const stepping *s = arg;
    int err = far_pin_take(t);
    if (err >= 0)
        err = s->lengths ? dart_est_adjust_to(t, s->index, s->lengths, s->count) : dart_est_adjust(t, s->index);
    far_pin_drop(t);
    return err;
}


static int start_adjustment(actor *a, const uint8_t *lengths, unsigned count) {
    stepping s = {a->index, lengths, count};
    return far_session_call(a->pool->team.own, FAR_STATS_OTHER, true, step_task, &s);
}


static dart_adjust *adjuster_of(actor *a) {
    return &dart_est_of(a->index)->adjust;
}


/* Lets the handle of the actor execute one step of its adjustment, and then lets some time pass, so that epochs may
 * advance. */
static void execute_step(stage *s, actor *a) {
    stepping next = {a->index, NULL, 0};
    assert_true(far_session_call(a->pool->team.own, FAR_STATS_OTHER, true, step_task, &next) >= 0);
    far_sim_sleep(s->world, 1000000);
}


static void step_until_phase(stage *s, actor *a, dart_adjust_phase phase) {
    for (unsigned i = 0; i < 300 && adjuster_of(a)->phase != phase; i++)
        execute_step(s, a);
    assert_int_equal(adjuster_of(a)->phase, phase);
}


typedef struct list_watch {
    stage *s;
    far_addr word; /* address of the list word in the descriptor */
    /* shown: number of CASes that make the list word name a new list; unready: number of those that were posted while
     * the new list was not yet written in far memory */
    unsigned shown, unready;
} list_watch;


static void see_list(void *ctx, const far_sim_posted *posted) {
    list_watch *w = ctx;
    if (posted->verb->kind != FAR_CAS || posted->verb->addr != w->word)
        return;
    far_addr list = dart_word_addr(posted->verb->swap);
    const dart_list *bytes =
        (const dart_list *)((char *)far_sim_memory(w->s->world, far_addr_node(list)) + far_addr_offset(list));
    assert_true(far_addr_node(list) != far_addr_node(w->word));
    w->shown++;
    w->unready += dart_list_word(bytes->generation, list) != posted->verb->swap;
}


/* The descriptor's memory node is full, so the new list is on another memory node. Proves that the new list is written
 * before the list word names it. Fails if skiptable/adjust.c, publish_list sends WRITE and CAS in one batch. */
EST_RACE(a_list_elsewhere_is_written_before_it_is_named) {
    stage s;
    char text[128];
    static const uint8_t lengths[] = {3};
    snprintf(text, sizeof(text), "size=4M,memory_nodes=2,%s", sim);
    set_up(&s, text, WITHOUT_HOUSEKEEPING);
    INSERT_KEYS(&s.a, "abX", SEVEN_KEYS("abc"));
    far_addr word = s.a.index->descriptor + offsetof(dart_super, list);
    fill_memory_node(s.a.pool->team.own,
                     (node_to_fill){s.a.index, far_addr_node(word), DART_TYPE_LIST, sizeof(dart_list)});
    list_watch watch = {.s = &s, .word = word};
    far_sim_on_verb(s.world, see_list, &watch);
    assert_int_equal(start_adjustment(&s.a, lengths, 1), 1);
    far_sim_on_verb(s.world, NULL, NULL);
    assert_true(watch.shown == 1 && watch.unready == 0);
    tear_down(&s);
}


/* A starts an adjustment and closes the index. Proves that B can then take the adjuster lock. Fails if dart_est_leave
 * (skiptable/skiptable.c) does not release the lock: A's session is still alive, so B may not take the lock over. */
EST_RACE(closing_the_index_releases_the_lock) {
    stage s;
    static const uint8_t lengths[] = {3};
    set_up(&s, sim, WITHOUT_HOUSEKEEPING);
    INSERT_KEYS(&s.a, "abX", SEVEN_KEYS("abc"));
    assert_int_equal(start_adjustment(&s.a, lengths, 1), 1);
    assert_int_equal(start_adjustment(&s.b, lengths, 1), 0);
    far_index_close(s.a.index);
    assert_int_equal(start_adjustment(&s.b, lengths, 1), 1);
    step_until_phase(&s, &s.b, DART_ADJUST_IDLE);
    assert_int_equal(far_index_open(s.a.session, "map", &s.a.index), 0);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


static void set_out_for_3(void *arg) {
    actor *a = arg;
    a->result = start_adjustment(a, (const uint8_t[]){3}, 1);
}


/* Damage has cleared the adjuster lock, so A and B both adjust the list. Proves that only one of their lists is
 * published, and that the old list is retired once. Fails if skiptable/adjust.c, publish_list does not notice that its
 * CAS has failed. */
EST_RACE(of_two_adjusters_one_publishes_its_list) {
    stage s;
    set_up(&s, sim, WITHOUT_HOUSEKEEPING);
    INSERT_KEYS(&s.a, "abX", SEVEN_KEYS("abc"));
    stage_start_main(&s.a, "a", set_out_for_3);
    stage_stop_at(&s.a, (far_sim_match){.point = "dart:adjust_publish"});
    *(uint64_t *)world_bytes(s.world, s.a.index->descriptor + offsetof(dart_super, adjuster)) = 0;
    set_out_for_3(&s.b);
    assert_int_equal(s.b.result, 1);
    world_finish(s.a.client);
    assert_int_equal(s.a.result, 0);
    step_until_phase(&s, &s.b, DART_ADJUST_IDLE);
    let_memory_be_reused(&s, &s.b);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* B still uses the old list of prefix lengths and registers a node under length 2. A drops length 2 from the list.
 * Proves that A does not begin to remove the entries of length 2 (the sweep) before B has finished; otherwise B's entry
 * would remain after its node was retired. Fails if skiptable/adjust.c, start_sweep_or_finish does not wait. */
EST_RACE(a_dropped_length_waits_for_its_registrar) {
    stage s;
    static const uint8_t lengths[] = {3};
    set_up(&s, sim, WITHOUT_HOUSEKEEPING);
    INSERT_KEYS(&s.a, "abX", SEVEN_KEYS("abc"), "cdX");
    finish_background(&s);
    assert_int_equal(start_adjustment(&s.a, lengths, 1), 1);
    step_until_phase(&s, &s.a, DART_ADJUST_FILL);
    start_with_background_until(&s.b, "b", FAR_OP_INSERT, "cdY", "b", "dart:est_validated", 1);
    step_until_phase(&s, &s.a, DART_ADJUST_LOOKUP_PUBLISHED);
    for (unsigned i = 0; i < 10; i++)
        execute_step(&s, &s.a);
    assert_int_equal(adjuster_of(&s.a)->phase, DART_ADJUST_LOOKUP_PUBLISHED);
    expect_result(&s.b, 0);
    dart_node node = node_at(&s.c, "cdX", 2);
    step_until_phase(&s, &s.a, DART_ADJUST_IDLE);
    assert_int_equal(count_entries_of(&s.c, node.addr), 0);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


static void sweep_by_a(void *arg) {
    actor *a = arg;
    stepping next = {a->index, NULL, 0};
    for (unsigned i = 0; i < 50 && adjuster_of(a)->phase != DART_ADJUST_IDLE; i++)
        far_session_call(a->pool->team.own, FAR_STATS_OTHER, true, step_task, &next);
    a->ended = true;
}


/* Steps: (1) A's sweep has read an entry of a dropped length. (2) B's registrations make the segment grow. (3) A's CAS
 * that clears the entry fails, because the slot is frozen. Proves that A visits the new segment, which has a copy of
 * the entry. Fails if skiptable/adjust.c, sweep_segment ignores the word that its CAS returned. */
EST_RACE(a_sweep_visits_a_segment_again_after_a_lost_cas) {
    stage s;
    static const uint8_t lengths[] = {3};
    set_up(&s, sim, "adjust=0,directory_bits=0,upkeep_batch=1,slot_cache=0");
    INSERT_KEYS(&s.a, "abX", SEVEN_KEYS("abc"));
    finish_background(&s);
    dart_node node = node_at(&s.a, "abX", 2);
    assert_int_equal(count_entries_of(&s.a, node.addr), 1);
    assert_int_equal(start_adjustment(&s.a, lengths, 1), 1);
    step_until_phase(&s, &s.a, DART_ADJUST_SWEEP);
    s.a.client = far_sim_start(s.a.pool->fabric, "a", sweep_by_a, &s.a);
    far_sim_stop_before(s.a.client, (far_sim_match){.point = "dart:est_clear_unlisted", .nth = 1});
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_STOPPED);
    for (unsigned i = 0; i < 40; i++) { /* nodes of depth 3; their entries make the segment grow */
        char key[2][8];
        for (unsigned j = 0; j < 2; j++)
            snprintf(key[j], sizeof(key[j]), "q%02u%c", i, "xy"[j]);
        INSERT_KEYS(&s.b, key[0], key[1]);
    }
    finish_background(&s);
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    assert_int_equal(adjuster_of(&s.a)->phase, DART_ADJUST_IDLE);
    assert_int_equal(count_entries_of(&s.c, node.addr), 0);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* There are ten leaves for each entry of length 5, but only two for each entry of length 6. Proves that only length 5
 * is chosen, because entries for few leaves cost more memory than they save READs. Fails without skiptable/adjust.c,
 * drop_costly_lengths. */
EST_RACE(lengths_with_an_entry_for_few_leaves_are_dropped) {
    stage s;
    static const uint8_t both[] = {5, 6}, costly[] = {6};
    set_up(&s, sim, WITHOUT_HOUSEKEEPING);
    for (unsigned i = 0; i < 300; i++) {
        char key[2][8];
        for (unsigned j = 0; j < 2; j++)
            snprintf(key[j], sizeof(key[j]), "kkk%03u%c", i, "xy"[j]);
        INSERT_KEYS(&s.a, key[0], key[1]);
    }
    finish_background(&s);
    assert_int_equal(start_adjustment(&s.a, both, 2), 1);
    step_until_phase(&s, &s.a, DART_ADJUST_IDLE);
    const dart_list *list = dart_est_list(dart_est_of(s.a.index));
    assert_int_equal(list->lookup_count, 1);
    assert_int_equal(list->lookup[0], 5);
    assert_int_equal(list->active_count, 1);
    dart_node two = node_at(&s.a, "kkk123x", 6), ten = node_at(&s.a, "kkk123x", 5);
    assert_int_equal(count_entries_of_length(&s.a, &two, 6), 0);
    assert_int_equal(count_entries_of_length(&s.a, &ten, 5), 1);
    assert_int_equal(start_adjustment(&s.a, costly, 1), 1);
    step_until_phase(&s, &s.a, DART_ADJUST_IDLE);
    list = dart_est_list(dart_est_of(s.a.index));
    assert_int_equal(list->lookup_count, 1);
    assert_int_equal(list->lookup[0], 5);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* Proves that however many operations there were, the lengths are chosen again after at most 128 times adjust_every
 * operations. */
EST_RACE(lengths_are_chosen_again_at_bounded_intervals) {
    stage s;
    set_up(&s, sim, "adjust=1,adjust_every=4,directory_bits=2,slot_cache=0");
    INSERT_KEYS(&s.a, "abX", SEVEN_KEYS("abc"));
    dart_adjust *adjuster = adjuster_of(&s.a);
    for (unsigned round = 1; round <= 3; round++) {
        uint64_t seen = (uint64_t)round << 33;
        atomic_store(&adjuster->operations, seen);
        for (unsigned i = 0; i < 300 && (adjuster->next_adjustment <= seen || adjuster->phase != DART_ADJUST_IDLE);
             i++) {
            expect_get(&s.a, "abca", "abca");
            far_sim_sleep(s.world, 1000000);
        }
        assert_in_range(adjuster->next_adjustment, seen + 512, seen + 512 + 300);
    }
    expect_sound(&s, &s.c);
    tear_down(&s);
}
