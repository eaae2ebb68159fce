/* DART's skip table, named interleavings of growing segments and of adjusting the list. The mutation that was tried,
 * and made the test fail, stands in brackets; adjust_to_another_length has none: it goes through all four steps
 * without a competitor. */
#include "dart_est_rig.h"

#define OPTIONS "upkeep_batch=1,adjust=0,directory_bits=0"
enum { PREFIXES = 40 };


/* Many nodes of depth 2: the only segment grows. */
static void run_grow(void *arg) {
    actor *a = arg;
    char byte;
    a->result = 0;
    for (unsigned i = 0; i < PREFIXES && a->result >= 0; i++) {
        char key[] = {(char)('A' + i), 'q', '1', 0};
        a->result = far_insert(a->session, a->index, key, 3, key, 3);
        key[2] = '2';
        if (a->result >= 0)
            a->result = far_insert(a->session, a->index, key, 3, key, 3);
        for (unsigned j = 0; j < 12; j++)
            far_get(a->session, a->index, "~", 1, &byte, 1, NULL);
    }
    a->ended = true;
}


static void grow_to(actor *a, const char *point) {
    a->client = far_sim_start(a->pool->fabric, "grows", run_grow, a);
    if (point)
        far_sim_stop_before(a->client, (far_sim_match){.point = point});
    assert_int_equal(far_sim_run_client(a->client), point ? FAR_SIM_STOPPED : FAR_SIM_ENDED);
}


static void has_grown(actor *a) {
    for (unsigned i = 0; i < PREFIXES; i++) {
        char key[] = {(char)('A' + i), 'q', '1', 0};
        reads(a, key, key);
    }
}


static uint64_t directory_word(stage *s, const actor *a) {
    return world_word(s->world, dart_spot_at(dart_est_of(a->index), 0).addr);
}


static void remover_meets_growth(const char *sim, const char *point) {
    stage s;
    set_up(&s, sim, OPTIONS);
    LOAD(&s.b, SEVEN("ab"));
    settle(&s);
    dart_node x = node_at(&s.c, "aba", 2);
    assert_int_equal(names_of(&s.c, x.addr), 1);
    grow_to(&s.a, point);
    busy_to(&s.b, "b", FAR_OP_INSERT, "abx", "b", "dart:retire",
            1); /* it has removed the entry, and not yet registered the new node */
    assert_true(node_at(&s.c, "aba", 2).addr != x.addr);
    finish(&s.a, 0);
    assert_int_equal(names_of(&s.c, x.addr), 0);
    finish(&s.b, 0);
    settle(&s);
    assert_int_equal(names_of(&s.c, x.addr), 0);
    let_memory_go(&s, &s.c);
    has_grown(&s.c);
    reads(&s.c, "abx", "b");
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* a has frozen the segment, or has copied it too, when b must remove the entry of X. (The remover passes over frozen
 * slots.) */
EST_RACE(A14_grow_vs_remove) {
    remover_meets_growth(sim, "dart:est_frozen");
    remover_meets_growth(sim, "dart:est_grow");
}


/* a's tentative word is validated, then the segment is replaced: a must not commit into the old one, where nobody would
 * remove it. (Tentative words are not frozen.) */
EST_RACE(A14b_grow_vs_commit) {
    stage s;
    set_up(&s, sim, OPTIONS);
    LOAD(&s.b, SEVEN("ab"));
    settle(&s);
    busy_to(&s.a, "a", FAR_OP_INSERT, "abh", "a", "dart:est_validated", 1);
    uint64_t old = directory_word(&s, &s.b);
    grow_to(&s.b, NULL);
    assert_true(directory_word(&s, &s.b) != old);
    dart_node n = node_at(&s.c, "aba", 2);
    far_sim_stop_before(s.a.client, (far_sim_match){.point = "dart:est_committed"});
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_STOPPED);
    for (unsigned i = 0; i < DART_EST_GROUP_SLOTS << dart_directory_log_groups(old); i++) {
        uint64_t word = world_word(s.world, dart_word_addr(old) + 8 * i);
        assert_true(dart_is_frozen(word));
        assert_false(dart_est_is_committed(word) && dart_word_addr(word) == n.addr);
    }
    finish(&s.a, 0);
    for (char k = 'i'; k <= 'p'; k++) {
        char key[] = {'a', 'b', k, 0};
        busy(&s.b, "b", FAR_OP_INSERT, key, "b");
    }
    settle(&s);
    assert_int_equal(names_of(&s.c, n.addr), 0);
    let_memory_go(&s, &s.c);
    has_grown(&s.c);
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* c knows a directory word whose segment was replaced and is free by now. (The tag not looked at: a READ of free
 * memory.) */
EST_RACE(A15_stale_directory_word) {
    stage s;
    set_up(&s, sim, OPTIONS ",express_cache=0");
    LOAD(&s.b, SEVEN("ab"));
    settle(&s);
    for (unsigned i = 0; i < 70; i++)
        reads(&s.c, "aba", "aba");
    bool fresh;
    uint64_t old = directory_word(&s, &s.b);
    assert_true(dart_directory_get(&dart_est_of(s.c.index)->directory, 1, 0, &fresh) == old);
    grow_to(&s.a, NULL);
    let_memory_go(&s, &s.a);
    for (unsigned i = 0; i < 8; i++)
        reads(&s.c, "aba", "aba");
    world_assert_watch_is_content(s.world);
    has_grown(&s.c);
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* The same after each epoch: as long as c may use the word that it kept, the segment is not free. (Segments without
 * DART_SEGMENT_EPOCHS: a READ of free memory.) */
EST_RACE(A15b_directory_word_after_each_epoch) {
    bool first = false, last = false;
    for (unsigned epochs = 0; epochs < 12 + DART_SEGMENT_EPOCHS; epochs++) {
        stage s;
        set_up(&s, sim, OPTIONS ",express_cache=0");
        LOAD(&s.b, SEVEN("ab"));
        settle(&s);
        for (unsigned i = 0; i < 70; i++)
            reads(&s.c, "aba", "aba");
        far_addr old = dart_word_addr(directory_word(&s, &s.b));
        grow_to(&s.a, NULL);
        assert_true(dart_word_addr(directory_word(&s, &s.b)) != old);
        pass_epochs(&s, &s.a, epochs);
        last = is_poisoned(&s, old);
        first |= last && epochs == 0;
        bool fresh;
        far_pool_usage usage = {0};
        assert_int_equal(far_pool_stat(s.a.session, &usage), 0);
        uint64_t kept = dart_directory_get(&dart_est_of(s.c.index)->directory, 1, usage.epoch, &fresh);
        assert_true(dart_word_addr(kept) == old && !(fresh && last));
        for (unsigned i = 0; i < 8; i++)
            reads(&s.c, "aba", "aba");
        world_assert_watch_is_content(s.world);
        is_sound(&s, &s.c);
        tear_down(&s);
    }
    assert_true(!first && last); /* all moments were met */
}


/* A dead client's half-done growth: others read on, and the next who needs the segment finishes it. (Nobody helps.) */
EST_RACE(dead_grower_is_helped) {
    static const char *const points[] = {"dart:est_frozen", "dart:est_grow"};
    for (unsigned i = 0; i < 2; i++) {
        stage s;
        set_up(&s, sim, OPTIONS);
        LOAD(&s.b, SEVEN("ab"));
        settle(&s);
        uint64_t old = directory_word(&s, &s.b);
        grow_to(&s.a, points[i]);
        far_sim_kill(s.a.pool->fabric);
        far_sim_resume(s.a.client);
        assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
        reads(&s.b, "abc", "abc");
        busy(&s.b, "b", FAR_OP_INSERT, "abx", "b");
        settle(&s);
        assert_true(directory_word(&s, &s.b) != old);
        assert_int_equal(names_of(&s.b, node_at(&s.b, "aba", 2).addr), 1);
        is_sound(&s, &s.b);
        tear_down(&s);
    }
}


/* ---- A segment that lies on another memory node than its directory word ---- */

typedef struct segment_write {
    uint64_t bytes;
    far_addr addr; /* 0: not written yet */
} segment_write;


static void note_segment(void *ctx, const far_sim_posted *posted) {
    segment_write *w = ctx;
    if (!w->addr && posted->verb->kind == FAR_WRITE && posted->verb->length == w->bytes)
        w->addr = posted->verb->addr;
}


/* The WRITE of the segment, once it is known where that goes, is held back: until it lands the directory does not name
 * the segment. */
static void write_segment(segment_write *w) {
    stage s;
    bool known = w->addr != 0;
    set_up(&s, "size=4M,memory_nodes=2,masked_cas=on", OPTIONS);
    unsigned node = far_addr_node(dart_spot_at(dart_est_of(s.a.index), 0).addr);
    for (unsigned log_groups = 0; log_groups < 2; log_groups++)
        fill_for(s.a.session, (full_node){s.a.index, node, DART_TYPE_EST_SEGMENT, dart_segment_bytes(log_groups)});
    far_sim_on_verb(s.world, note_segment, w);
    s.a.client = far_sim_start(s.a.pool->fabric, "grows", run_grow, &s.a);
    if (known) {
        far_sim_hold *hold = far_sim_hold_effect(
            s.a.client, (far_sim_match){.kind = FAR_SIM_WRITE, .from = w->addr, .to = w->addr + w->bytes});
        while (!far_sim_reached(hold))
            assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_HELD);
        assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_HELD); /* it does what it can */
        assert_true(dart_word_addr(directory_word(&s, &s.b)) != w->addr);
        far_sim_release(hold);
    }
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    far_sim_on_verb(s.world, NULL, NULL);
    assert_true(w->addr && far_addr_node(w->addr) != node);
    has_grown(&s.c);
    tear_down(&s);
}


/* The first segment, and a larger one. (The CAS of the directory word is posted with the WRITE.) */
static void a_segment_elsewhere_is_written_before_the_directory_names_it(void **state) {
    (void)state;
    for (unsigned log_groups = 0; log_groups < 2; log_groups++) {
        segment_write w = {.bytes = dart_segment_bytes(log_groups)};
        write_segment(&w);
        write_segment(&w);
    }
}


/* ---- The list ---- */

static int set_out_task(far_task *t, void *arg) {
    static const uint8_t lengths[] = {3};
    int err = far_pin_take(t);
    if (err >= 0)
        err = dart_est_adjust_to(t, arg, lengths, 1);
    far_pin_drop(t);
    return err;
}


/* Housekeeping goes on with what was begun. */
static void adjust_for(stage *s, actor *a, unsigned turns) {
    for (unsigned i = 0; i < turns && dart_est_of(a->index)->adjust.phase != DART_ADJUST_IDLE; i++) {
        reads(a, "abX", "abX");
        far_sim_sleep(s->world, 1000000);
    }
}


static void load_two_levels(stage *s) {
    LOAD(&s->a, "abX", SEVEN("abc"));
    settle(s);
    reads(&s->b, "abca", "abca");
    reads(&s->c, "abca", "abca");
}


/* All four steps: entries of the new length are there and are removed with their node by a handle that had the old
 * list, those of the dropped length are gone. */
EST_RACE(adjust_to_another_length) {
    stage s;
    set_up(&s, sim, "adjust=1,directory_bits=2");
    load_two_levels(&s);
    dart_node x = node_at(&s.a, "abca", 3);
    assert_int_equal(far_session_call(s.a.pool->team.own, FAR_STATS_OTHER, true, set_out_task, s.a.index), 1);
    adjust_for(&s, &s.a, 200);
    assert_int_equal(dart_est_of(s.a.index)->adjust.phase, DART_ADJUST_IDLE);
    const dart_list *list = dart_est_list(dart_est_of(s.a.index));
    assert_int_equal(list->lookup_count, 1);
    assert_int_equal(list->active_count, 1);
    assert_int_equal(list->lookup[0], 3);
    assert_int_equal(names_of_length(&s.a, &x, 3), 1);
    assert_int_equal(names_of(&s.a, node_at(&s.a, "abX", 2).addr), 0); /* of the dropped length */
    busy(&s.b, "b", FAR_OP_INSERT, "abch", "b");
    settle(&s);
    assert_int_equal(names_of(&s.a, x.addr), 0);
    let_memory_go(&s, &s.c);
    for (unsigned i = 0; i < 8; i++)
        reads(&s.c, "abch", "b");
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* b is about to replace X, with the list as it was: it will not look for entries of the new length. Were X registered
 * under that now, the entry would outlive it. (Filling without waiting for two epochs.) */
EST_RACE(adjust_active_before_fill) {
    stage s;
    set_up(&s, sim, "adjust=1,directory_bits=2");
    load_two_levels(&s);
    dart_node x = node_at(&s.a, "abca", 3);
    start_to(&s.b, "b", FAR_OP_INSERT, "abch", "b", "dart:freeze", 1);
    assert_int_equal(far_session_call(s.a.pool->team.own, FAR_STATS_OTHER, true, set_out_task, s.a.index), 1);
    adjust_for(&s, &s.a, 20);
    finish(&s.b, 0);
    adjust_for(&s, &s.a, 200);
    assert_int_equal(dart_est_of(s.a.index)->adjust.phase, DART_ADJUST_IDLE);
    settle(&s);
    dart_node now = node_at(&s.a, "abca", 3);
    assert_true(now.addr != x.addr);
    assert_int_equal(names_of(&s.a, x.addr), 0);
    assert_int_equal(names_of_length(&s.a, &now, 3), 1);
    let_memory_go(&s, &s.c);
    for (unsigned i = 0; i < 8; i++)
        reads(&s.c, "abca", "abca");
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* b is in the middle of an operation, with the list as it was: the adjuster waits. (Filling without waiting for two
 * epochs.) */
EST_RACE(adjust_waits_for_the_pinned) {
    stage s;
    set_up(&s, sim, "adjust=1,directory_bits=2");
    load_two_levels(&s);
    dart_node x = node_at(&s.a, "abca", 3);
    start_to(&s.b, "b", FAR_OP_INSERT, "abch", "b", "dart:install", 1);
    assert_int_equal(far_session_call(s.a.pool->team.own, FAR_STATS_OTHER, true, set_out_task, s.a.index), 1);
    adjust_for(&s, &s.a, 20);
    assert_int_equal(dart_est_of(s.a.index)->adjust.phase, DART_ADJUST_PUBLISHED);
    assert_int_equal(names_of_length(&s.a, &x, 3), 0);
    finish(&s.b, 0);
    adjust_for(&s, &s.a, 200);
    assert_int_equal(dart_est_of(s.a.index)->adjust.phase, DART_ADJUST_IDLE);
    assert_int_equal(names_of(&s.a, x.addr), 0);
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* The adjuster dies; another takes over the lock and starts over. (The lock of a dead owner is respected.) */
EST_RACE(adjuster_dies) {
    stage s;
    set_up(&s, sim, "adjust=1,directory_bits=2");
    load_two_levels(&s);
    assert_int_equal(far_session_call(s.a.pool->team.own, FAR_STATS_OTHER, true, set_out_task, s.a.index), 1);
    far_sim_kill(s.a.pool->fabric);
    settle(&s);
    assert_int_equal(far_session_call(s.b.pool->team.own, FAR_STATS_OTHER, true, set_out_task, s.b.index), 1);
    adjust_for(&s, &s.b, 200);
    assert_int_equal(dart_est_of(s.b.index)->adjust.phase, DART_ADJUST_IDLE);
    dart_node x = node_at(&s.b, "abca", 3);
    assert_int_equal(names_of_length(&s.b, &x, 3), 1);
    is_sound(&s, &s.b);
    tear_down(&s);
}


enum { PAIRS = 40 };


static far_index *granted_in;
static dart_node granted[2 * PAIRS];


static void name_of(unsigned i, char key[4]) {
    snprintf(key, 4, "%c%c1", 'A' + i % 26, 'a' + i / 26);
}


/* A node that waits for an entry under its whole prefix; chosen: for a slot that was empty when its bucket was read. */
static dart_wish wish_for(far_task *t, unsigned i, bool chosen) {
    dart_wish wish = {.node = granted[i], .lengths = {2}, .count = 1, .epoch = far_epoch(t)};
    dart_est_read r;
    char key[4];
    name_of(i, key);
    memcpy(wish.prefix, key, 2);
    dart_est_read_init(dart_est_of(granted_in), &r, key, 2);
    assert_int_equal(dart_est_read_all(t, dart_est_of(granted_in), &r, 1), 0);
    for (unsigned s = 0; chosen && r.word && !wish.entry && s < DART_EST_READ_SLOTS; s++)
        if (r.slots[s] == 0) {
            wish.entry = dart_est_slot_addr(&r, s);
            wish.slot = s;
        }
    return wish;
}


static int grant_pairs(far_task *t, void *arg) {
    (void)arg;
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 2 * PAIRS && err == 0; i += 2) {
        dart_wish both[2] = {wish_for(t, i, false), wish_for(t, i + 1, true)};
        dart_est_grant(t, granted_in, both, 2);
    }
    far_pin_drop(t);
    return err;
}


/* Wishes are granted together: one finds its bucket full, and the segment grows; another one of that segment, whose slot
 * was chosen when its node was linked, has read nothing of it yet. Without a segment its slot lay at the pool's first
 * words. (Places are chosen whether or not they were read.) */
EST_RACE(a_place_whose_segment_has_grown_is_read_before_it_is_chosen) {
    stage s;
    set_up(&s, sim, "adjust=0,directory_bits=0");
    for (unsigned i = 0; i < 2 * PAIRS; i++) {
        char key[4];
        name_of(i, key);
        for (; key[2] < '3'; key[2]++)
            assert_int_equal(far_insert(s.a.session, s.a.index, key, 3, key, 3), 0);
        granted[i] = node_at(&s.a, key, 2);
    }
    granted_in = s.a.index;
    assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, false, grant_pairs, NULL), 0);
    assert_true(dart_directory_log_groups(directory_word(&s, &s.a)) > 1);
    for (unsigned at = FAR_SUPER_CHECK + 8; at < FAR_SUPER_NODE_TABLE; at += 8)
        if (at < FAR_SUPER_EPOCH || at >= FAR_SUPER_LEAKED)
            assert_int_equal(world_word(s.world, far_addr_make(0, at)), 0);
    is_sound(&s, &s.b);
    tear_down(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(A14_grow_vs_remove),
        cmocka_unit_test(A14b_grow_vs_commit),
        cmocka_unit_test(A15_stale_directory_word),
        cmocka_unit_test(A15b_directory_word_after_each_epoch),
        cmocka_unit_test(dead_grower_is_helped),
        cmocka_unit_test(a_segment_elsewhere_is_written_before_the_directory_names_it),
        cmocka_unit_test(adjust_to_another_length),
        cmocka_unit_test(adjust_active_before_fill),
        cmocka_unit_test(adjust_waits_for_the_pinned),
        cmocka_unit_test(adjuster_dies),
        cmocka_unit_test(a_place_whose_segment_has_grown_is_read_before_it_is_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
