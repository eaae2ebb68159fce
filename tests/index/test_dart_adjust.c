/* DART: the adjuster of the prefix lengths, step by step. */
#include "dart_est_rig.h"

#define BY_HAND "adjust=0,directory_bits=2,upkeep_batch=1,slot_cache=0"


typedef struct stepping {
    far_index *index;
    const uint8_t *lengths; /* to set out for; NULL: a step further */
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


static int set_out(actor *a, const uint8_t *lengths, unsigned count) {
    stepping s = {a->index, lengths, count};
    return far_session_call(a->pool->team.own, FAR_STATS_OTHER, true, step_task, &s);
}


static dart_adjust *adjuster_of(actor *a) {
    return &dart_est_of(a->index)->adjust;
}


/* One step; epochs may pass. */
static void step(stage *s, actor *a) {
    stepping next = {a->index, NULL, 0};
    assert_true(far_session_call(a->pool->team.own, FAR_STATS_OTHER, true, step_task, &next) >= 0);
    far_sim_sleep(s->world, 1000000);
}


static void step_until(stage *s, actor *a, dart_adjust_phase phase) {
    for (unsigned i = 0; i < 300 && adjuster_of(a)->phase != phase; i++)
        step(s, a);
    assert_int_equal(adjuster_of(a)->phase, phase);
}


typedef struct list_watch {
    stage *s;
    far_addr word;           /* of the descriptor, that names the list */
    unsigned shown, unready; /* lists that were about to be named; of these, not written yet */
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


/* The descriptor's memory node is full: the list lies on another, and is written before it is named. (WRITE and CAS in
 * one batch.) */
EST_RACE(a_list_elsewhere_is_written_before_it_is_named) {
    stage s;
    char text[128];
    static const uint8_t lengths[] = {3};
    snprintf(text, sizeof(text), "size=4M,memory_nodes=2,%s", sim);
    set_up(&s, text, BY_HAND);
    LOAD(&s.a, "abX", SEVEN("abc"));
    far_addr word = s.a.index->descriptor + offsetof(dart_super, list);
    fill_for(s.a.pool->team.own, (full_node){s.a.index, far_addr_node(word), DART_TYPE_LIST, sizeof(dart_list)});
    list_watch watch = {.s = &s, .word = word};
    far_sim_on_verb(s.world, see_list, &watch);
    assert_int_equal(set_out(&s.a, lengths, 1), 1);
    far_sim_on_verb(s.world, NULL, NULL);
    assert_true(watch.shown == 1 && watch.unready == 0);
    tear_down(&s);
}


/* (The lock is kept by the handle, which lives: nobody adjusts any more.) */
EST_RACE(the_lock_ends_with_the_index) {
    stage s;
    static const uint8_t lengths[] = {3};
    set_up(&s, sim, BY_HAND);
    LOAD(&s.a, "abX", SEVEN("abc"));
    assert_int_equal(set_out(&s.a, lengths, 1), 1);
    assert_int_equal(set_out(&s.b, lengths, 1), 0);
    far_index_close(s.a.index);
    assert_int_equal(set_out(&s.b, lengths, 1), 1);
    step_until(&s, &s.b, DART_ADJUST_IDLE);
    assert_int_equal(far_index_open(s.a.session, "map", &s.a.index), 0);
    is_sound(&s, &s.c);
    tear_down(&s);
}


static void set_out_for_3(void *arg) {
    actor *a = arg;
    a->result = set_out(a, (const uint8_t[]){3}, 1);
}


/* Damage has freed the lock, and there are two adjusters: of the two lists one is shown, and the old one retired once. (A lost
 * CAS taken for one that was not.) */
EST_RACE(of_two_adjusters_one_shows_its_list) {
    stage s;
    set_up(&s, sim, BY_HAND);
    LOAD(&s.a, "abX", SEVEN("abc"));
    stage_start_main(&s.a, "a", set_out_for_3);
    stage_stop_at(&s.a, (far_sim_match){.point = "dart:adjust_publish"});
    *(uint64_t *)world_bytes(s.world, s.a.index->descriptor + offsetof(dart_super, adjuster)) = 0;
    set_out_for_3(&s.b);
    assert_int_equal(s.b.result, 1);
    world_finish(s.a.client);
    assert_int_equal(s.a.result, 0);
    step_until(&s, &s.b, DART_ADJUST_IDLE);
    let_memory_go(&s, &s.b);
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* b registers a node under length 2, with the list in which that is looked up. a drops that length: it waits for b
 * before it sweeps, or b's entry would stay and outlive its node. (The sweep does not wait.) */
EST_RACE(a_dropped_length_waits_for_who_registers_it) {
    stage s;
    static const uint8_t lengths[] = {3};
    set_up(&s, sim, BY_HAND);
    LOAD(&s.a, "abX", SEVEN("abc"), "cdX");
    settle(&s);
    assert_int_equal(set_out(&s.a, lengths, 1), 1);
    step_until(&s, &s.a, DART_ADJUST_FILL);
    busy_to(&s.b, "b", FAR_OP_INSERT, "cdY", "b", "dart:est_validated", 1);
    step_until(&s, &s.a, DART_ADJUST_SHOWN);
    for (unsigned i = 0; i < 10; i++)
        step(&s, &s.a);
    assert_int_equal(adjuster_of(&s.a)->phase, DART_ADJUST_SHOWN);
    finish(&s.b, 0);
    dart_node node = node_at(&s.c, "cdX", 2);
    step_until(&s, &s.a, DART_ADJUST_IDLE);
    assert_int_equal(names_of(&s.c, node.addr), 0);
    is_sound(&s, &s.c);
    tear_down(&s);
}


static void sweep_by_a(void *arg) {
    actor *a = arg;
    stepping next = {a->index, NULL, 0};
    for (unsigned i = 0; i < 50 && adjuster_of(a)->phase != DART_ADJUST_IDLE; i++)
        far_session_call(a->pool->team.own, FAR_STATS_OTHER, true, step_task, &next);
    a->ended = true;
}


/* The segment is replaced by a larger one between a's look at an entry of a dropped length and its CAS: the copy holds
 * it, and a looks again. (What a lost CAS says is not looked at: the entry stays.) */
EST_RACE(a_sweep_looks_again_at_what_it_lost) {
    stage s;
    static const uint8_t lengths[] = {3};
    set_up(&s, sim, "adjust=0,directory_bits=0,upkeep_batch=1,slot_cache=0");
    LOAD(&s.a, "abX", SEVEN("abc"));
    settle(&s);
    dart_node node = node_at(&s.a, "abX", 2);
    assert_int_equal(names_of(&s.a, node.addr), 1);
    assert_int_equal(set_out(&s.a, lengths, 1), 1);
    step_until(&s, &s.a, DART_ADJUST_SWEEP);
    s.a.client = far_sim_start(s.a.pool->fabric, "a", sweep_by_a, &s.a);
    far_sim_stop_before(s.a.client, (far_sim_match){.point = "dart:est_sweep", .nth = 1});
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_STOPPED);
    for (unsigned i = 0; i < 40; i++) { /* nodes of depth 3: the segment grows */
        char key[2][8];
        for (unsigned j = 0; j < 2; j++)
            snprintf(key[j], sizeof(key[j]), "q%02u%c", i, "xy"[j]);
        LOAD(&s.b, key[0], key[1]);
    }
    settle(&s);
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    assert_int_equal(adjuster_of(&s.a)->phase, DART_ADJUST_IDLE);
    assert_int_equal(names_of(&s.c, node.addr), 0);
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* Nodes of ten children have entries, nodes of two do not: length 6 would take an entry for every second leaf. */
EST_RACE(lengths_with_an_entry_for_few_leaves_are_left_out) {
    stage s;
    static const uint8_t both[] = {5, 6}, costly[] = {6};
    set_up(&s, sim, BY_HAND);
    for (unsigned i = 0; i < 300; i++) {
        char key[2][8];
        for (unsigned j = 0; j < 2; j++)
            snprintf(key[j], sizeof(key[j]), "kkk%03u%c", i, "xy"[j]);
        LOAD(&s.a, key[0], key[1]);
    }
    settle(&s);
    assert_int_equal(set_out(&s.a, both, 2), 1);
    step_until(&s, &s.a, DART_ADJUST_IDLE);
    const dart_list *list = dart_est_list(dart_est_of(s.a.index));
    assert_int_equal(list->lookup_count, 1);
    assert_int_equal(list->lookup[0], 5);
    assert_int_equal(list->active_count, 1);
    dart_node two = node_at(&s.a, "kkk123x", 6), ten = node_at(&s.a, "kkk123x", 5);
    assert_int_equal(names_of_length(&s.a, &two, 6), 0);
    assert_int_equal(names_of_length(&s.a, &ten, 5), 1);
    assert_int_equal(set_out(&s.a, costly, 1), 1);
    step_until(&s, &s.a, DART_ADJUST_IDLE);
    list = dart_est_list(dart_est_of(s.a.index));
    assert_int_equal(list->lookup_count, 1);
    assert_int_equal(list->lookup[0], 5);
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* However many operations there were: 128 times adjust_every later it looks again. */
EST_RACE(the_choice_is_made_again_and_again) {
    stage s;
    set_up(&s, sim, "adjust=1,adjust_every=4,directory_bits=2,slot_cache=0");
    LOAD(&s.a, "abX", SEVEN("abc"));
    dart_adjust *adjuster = adjuster_of(&s.a);
    for (unsigned round = 1; round <= 3; round++) {
        uint64_t seen = (uint64_t)round << 33;
        atomic_store(&adjuster->seen, seen);
        for (unsigned i = 0; i < 300 && (adjuster->next <= seen || adjuster->phase != DART_ADJUST_IDLE); i++) {
            reads(&s.a, "abca", "abca");
            far_sim_sleep(s.world, 1000000);
        }
        assert_in_range(adjuster->next, seen + 512, seen + 512 + 300);
    }
    is_sound(&s, &s.c);
    tear_down(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_two_adjusters_one_shows_its_list),
        cmocka_unit_test(the_lock_ends_with_the_index),
        cmocka_unit_test(a_list_elsewhere_is_written_before_it_is_named),
        cmocka_unit_test(a_dropped_length_waits_for_who_registers_it),
        cmocka_unit_test(a_sweep_looks_again_at_what_it_lost),
        cmocka_unit_test(lengths_with_an_entry_for_few_leaves_are_left_out),
        cmocka_unit_test(the_choice_is_made_again_and_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
