/* Races of DART's skip table: segments that are replaced, and the adjustment of the list of prefix lengths. The comment
 * of each test names the guard without which it was seen to fail; adjust_to_another_length has none, because it runs
 * all four steps without a competitor. */
#include "dart_est_rig.h"
#include "test.h"

#define OPTIONS "upkeep_batch=1,adjust=0,directory_bits=0"
enum { PREFIXES = 40 };


/* Main function of an actor that makes many nodes of depth 2, until the only segment is replaced by a larger one. */
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


static void grow_until(actor *a, const char *point) {
    a->client = far_sim_start(a->pool->fabric, "grows", run_grow, a);
    if (point)
        far_sim_stop_before(a->client, (far_sim_match){.point = point});
    assert_int_equal(far_sim_run_client(a->client), point ? FAR_SIM_STOPPED : FAR_SIM_ENDED);
}


static void expect_grown_keys(actor *a) {
    for (unsigned i = 0; i < PREFIXES; i++) {
        char key[] = {(char)('A' + i), 'q', '1', 0};
        expect_get(a, key, key);
    }
}


static uint64_t directory_word(stage *s, const actor *a) {
    return world_word(s->world, dart_dir_slot_at(dart_est_of(a->index), 0).addr);
}


static void remove_while_segment_grows(const char *sim, const char *point) {
    stage s;
    set_up(&s, sim, OPTIONS);
    INSERT_KEYS(&s.b, SEVEN_KEYS("ab"));
    finish_background(&s);
    dart_node x = node_at(&s.c, "aba", 2);
    assert_int_equal(count_entries_of(&s.c, x.addr), 1);
    grow_until(&s.a, point);
    start_with_background_until(&s.b, "b", FAR_OP_INSERT, "abx", "b", "dart:retire",
                                1); /* B has removed the entry, and has not registered the new node yet */
    assert_true(node_at(&s.c, "aba", 2).addr != x.addr);
    /* A could not publish its copy, which contains the entry of X, because B has completed the replacement without this
     * entry. A begins again. */
    resume_until(&s.a, "dart:est_slots_chosen", 1);
    assert_int_equal(count_entries_of(&s.c, x.addr), 0);
    expect_result(&s.a, 0);
    assert_int_equal(count_entries_of(&s.c, x.addr), 0);
    expect_result(&s.b, 0);
    finish_background(&s);
    assert_int_equal(count_entries_of(&s.c, x.addr), 0);
    let_memory_be_reused(&s, &s.c);
    expect_grown_keys(&s.c);
    expect_get(&s.c, "abx", "b");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* B has replaced node X and must remove its entry while A replaces the segment of this entry. A has only frozen the
 * segment, or has also copied it. Proves that the new segment does not contain the entry. Fails if skiptable/upkeep.c,
 * add_removals ignores frozen slots. */
EST_RACE(A14_grow_vs_remove) {
    remove_while_segment_grows(sim, "dart:est_frozen");
    remove_while_segment_grows(sim, "dart:est_install_grown");
}


/* A has validated its tentative word; then B replaces the segment. Proves that A does not commit into the old segment,
 * because no client would remove the entry there. Fails if skiptable/grow.c, freeze_segment does not freeze tentative
 * words. */
EST_RACE(A14b_grow_vs_commit) {
    stage s;
    set_up(&s, sim, OPTIONS);
    INSERT_KEYS(&s.b, SEVEN_KEYS("ab"));
    finish_background(&s);
    start_with_background_until(&s.a, "a", FAR_OP_INSERT, "abh", "a", "dart:est_validated", 1);
    uint64_t old = directory_word(&s, &s.b);
    grow_until(&s.b, NULL);
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
    expect_result(&s.a, 0);
    for (char k = 'i'; k <= 'p'; k++) {
        char key[] = {'a', 'b', k, 0};
        run_with_background(&s.b, "b", FAR_OP_INSERT, key, "b");
    }
    finish_background(&s);
    assert_int_equal(count_entries_of(&s.c, n.addr), 0);
    let_memory_be_reused(&s, &s.c);
    expect_grown_keys(&s.c);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* C has cached a directory word. A replaces the segment, which is then freed. Proves that C does not read the old
 * segment. Fails with a READ of free memory without the check of the tag (skiptable/cache_express.c, segment_is_fresh).
 */
EST_RACE(A15_stale_directory_word) {
    stage s;
    set_up(&s, sim, OPTIONS ",express_cache=0");
    INSERT_KEYS(&s.b, SEVEN_KEYS("ab"));
    finish_background(&s);
    for (unsigned i = 0; i < 70; i++)
        expect_get(&s.c, "aba", "aba");
    bool fresh;
    uint64_t old = directory_word(&s, &s.b);
    assert_true(dart_directory_get(&dart_est_of(s.c.index)->directory, 1, 0, &fresh) == old);
    grow_until(&s.a, NULL);
    let_memory_be_reused(&s, &s.a);
    for (unsigned i = 0; i < 8; i++)
        expect_get(&s.c, "aba", "aba");
    world_assert_no_checker_error(s.world);
    expect_grown_keys(&s.c);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* C has cached a directory word, A replaces the segment, and some epochs pass. Proves for each number of epochs that
 * the memory of the old segment is not free as long as C may use the word. Fails without DART_SEGMENT_EPOCHS. */
EST_RACE(A15b_directory_word_after_each_epoch) {
    bool first = false, last = false;
    for (unsigned epochs = 0; epochs < 12 + DART_SEGMENT_EPOCHS; epochs++) {
        stage s;
        set_up(&s, sim, OPTIONS ",express_cache=0");
        INSERT_KEYS(&s.b, SEVEN_KEYS("ab"));
        finish_background(&s);
        for (unsigned i = 0; i < 70; i++)
            expect_get(&s.c, "aba", "aba");
        far_addr old = dart_word_addr(directory_word(&s, &s.b));
        grow_until(&s.a, NULL);
        assert_true(dart_word_addr(directory_word(&s, &s.b)) != old);
        advance_epochs(&s, &s.a, epochs);
        last = is_poisoned(&s, old);
        first |= last && epochs == 0;
        bool fresh;
        far_pool_usage usage = {0};
        assert_int_equal(far_pool_stat(s.a.session, &usage), 0);
        uint64_t kept = dart_directory_get(&dart_est_of(s.c.index)->directory, 1, usage.epoch, &fresh);
        assert_true(dart_word_addr(kept) == old && !(fresh && last));
        for (unsigned i = 0; i < 8; i++)
            expect_get(&s.c, "aba", "aba");
        world_assert_no_checker_error(s.world);
        expect_sound(&s, &s.c);
        tear_down(&s);
    }
    assert_true(!first && last); /* the memory was not free at first and was free in the end */
}


/* A fails while it replaces a segment. Proves that B can still read, and completes the replacement when it needs the
 * segment. Fails if neither read_current_buckets, which meets the frozen slots, nor choose_slots, which finds no free
 * slot, completes the replacement (skiptable/upkeep.c). */
EST_RACE(a_failed_clients_segment_is_finished) {
    static const char *const points[] = {"dart:est_frozen", "dart:est_install_grown"};
    for (unsigned i = 0; i < 2; i++) {
        stage s;
        set_up(&s, sim, OPTIONS);
        INSERT_KEYS(&s.b, SEVEN_KEYS("ab"));
        finish_background(&s);
        uint64_t old = directory_word(&s, &s.b);
        grow_until(&s.a, points[i]);
        far_sim_kill(s.a.pool->fabric);
        far_sim_resume(s.a.client);
        assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
        expect_get(&s.b, "abc", "abc");
        run_with_background(&s.b, "b", FAR_OP_INSERT, "abx", "b");
        finish_background(&s);
        assert_true(directory_word(&s, &s.b) != old);
        assert_int_equal(count_entries_of(&s.b, node_at(&s.b, "aba", 2).addr), 1);
        expect_sound(&s, &s.b);
        tear_down(&s);
    }
}


/* ---- A segment on another memory node than its directory word ---- */

typedef struct segment_write {
    uint64_t bytes;
    far_addr addr; /* address of the new segment; 0 while it is not written */
} segment_write;


static void note_segment(void *ctx, const far_sim_posted *posted) {
    segment_write *w = ctx;
    if (!w->addr && posted->verb->kind == FAR_WRITE && posted->verb->length == w->bytes)
        w->addr = posted->verb->addr;
}


/* Holds back the WRITE of the new segment, if a former run has found its address. Until the WRITE takes effect, the
 * directory must not name the segment. */
static void write_segment(segment_write *w) {
    stage s;
    bool known = w->addr != 0;
    set_up(&s, "size=4M,memory_nodes=2,masked_cas=on", OPTIONS);
    unsigned node = far_addr_node(dart_dir_slot_at(dart_est_of(s.a.index), 0).addr);
    for (unsigned log_groups = 0; log_groups < 2; log_groups++)
        fill_memory_node(s.a.session,
                         (node_to_fill){s.a.index, node, DART_TYPE_EST_SEGMENT, dart_segment_bytes(log_groups)});
    far_sim_on_verb(s.world, note_segment, w);
    s.a.client = far_sim_start(s.a.pool->fabric, "grows", run_grow, &s.a);
    if (known) {
        far_sim_hold *hold = far_sim_hold_effect(
            s.a.client, (far_sim_match){.kind = FAR_SIM_WRITE, .from = w->addr, .to = w->addr + w->bytes});
        while (!far_sim_reached(hold))
            assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_HELD);
        /* the client continues as far as it can without the WRITE */
        assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_HELD);
        assert_true(dart_word_addr(directory_word(&s, &s.b)) != w->addr);
        far_sim_release(hold);
    }
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    far_sim_on_verb(s.world, NULL, NULL);
    assert_true(w->addr && far_addr_node(w->addr) != node);
    expect_grown_keys(&s.c);
    tear_down(&s);
}


/* Proves that the directory names a segment on another memory node only after it was written, for the first segment and
 * for a larger one. Fails if the CAS of the directory word is in the batch of the WRITE (skiptable/grow.c,
 * link_empty_segments and publish_new). */
TEST(a_segment_elsewhere_is_written_before_the_directory_names_it) {
    for (unsigned log_groups = 0; log_groups < 2; log_groups++) {
        segment_write w = {.bytes = dart_segment_bytes(log_groups)};
        write_segment(&w);
        write_segment(&w);
    }
}


/* ---- The list of prefix lengths ---- */

static int start_adjustment_task(far_task *t, void *arg) {
    static const uint8_t lengths[] = {3};
    int err = far_pin_take(t);
    if (err >= 0)
        err = dart_est_adjust_to(t, arg, lengths, 1);
    far_pin_drop(t);
    return err;
}


/* Lets housekeeping continue the adjustment, for at most this number of turns. */
static void run_adjustment(stage *s, actor *a, unsigned turns) {
    for (unsigned i = 0; i < turns && dart_est_of(a->index)->adjust.phase != DART_ADJUST_IDLE; i++) {
        expect_get(a, "abX", "abX");
        far_sim_sleep(s->world, 1000000);
    }
}


static void load_two_levels(stage *s) {
    INSERT_KEYS(&s->a, "abX", SEVEN_KEYS("abc"));
    finish_background(s);
    expect_get(&s->b, "abca", "abca");
    expect_get(&s->c, "abca", "abca");
}


/* Proves that after all four steps of an adjustment there are entries of the new length and none of the dropped length.
 * Also, a handle that had the old list removes an entry of the new length when it replaces the node of the entry. */
EST_RACE(adjust_to_another_length) {
    stage s;
    set_up(&s, sim, "adjust=1,directory_bits=2");
    load_two_levels(&s);
    dart_node x = node_at(&s.a, "abca", 3);
    assert_int_equal(far_session_call(s.a.pool->team.own, FAR_STATS_OTHER, true, start_adjustment_task, s.a.index), 1);
    run_adjustment(&s, &s.a, 200);
    assert_int_equal(dart_est_of(s.a.index)->adjust.phase, DART_ADJUST_IDLE);
    const dart_list *list = dart_est_list(dart_est_of(s.a.index));
    assert_int_equal(list->lookup_count, 1);
    assert_int_equal(list->active_count, 1);
    assert_int_equal(list->lookup[0], 3);
    assert_int_equal(count_entries_of_length(&s.a, &x, 3), 1);
    /* the only entry of this node had the dropped length, so the sweep has removed it */
    assert_int_equal(count_entries_of(&s.a, node_at(&s.a, "abX", 2).addr), 0);
    run_with_background(&s.b, "b", FAR_OP_INSERT, "abch", "b");
    finish_background(&s);
    assert_int_equal(count_entries_of(&s.a, x.addr), 0);
    let_memory_be_reused(&s, &s.c);
    for (unsigned i = 0; i < 8; i++)
        expect_get(&s.c, "abch", "b");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* B uses the old list of prefix lengths and is about to replace X, so B will not search for entries of the new length.
 * A adjusts the list. Proves that X is not registered under the new length before B has finished; otherwise the entry
 * would remain after X is retired. Fails if skiptable/adjust.c makes entries of the new length without waiting for two
 * epochs (poll_two_epochs). */
EST_RACE(adjust_active_before_fill) {
    stage s;
    set_up(&s, sim, "adjust=1,directory_bits=2");
    load_two_levels(&s);
    dart_node x = node_at(&s.a, "abca", 3);
    start_until(&s.b, "b", FAR_OP_INSERT, "abch", "b", "dart:freeze", 1);
    assert_int_equal(far_session_call(s.a.pool->team.own, FAR_STATS_OTHER, true, start_adjustment_task, s.a.index), 1);
    run_adjustment(&s, &s.a, 20);
    expect_result(&s.b, 0);
    run_adjustment(&s, &s.a, 200);
    assert_int_equal(dart_est_of(s.a.index)->adjust.phase, DART_ADJUST_IDLE);
    finish_background(&s);
    dart_node now = node_at(&s.a, "abca", 3);
    assert_true(now.addr != x.addr);
    assert_int_equal(count_entries_of(&s.a, x.addr), 0);
    assert_int_equal(count_entries_of_length(&s.a, &now, 3), 1);
    let_memory_be_reused(&s, &s.c);
    for (unsigned i = 0; i < 8; i++)
        expect_get(&s.c, "abca", "abca");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* B is in the middle of an operation, with the old list. Proves that A's adjustment waits until B has released its pin.
 * Fails if skiptable/adjust.c makes entries of the new length without waiting for two epochs (poll_two_epochs). */
EST_RACE(adjust_waits_for_pinned_clients) {
    stage s;
    set_up(&s, sim, "adjust=1,directory_bits=2");
    load_two_levels(&s);
    dart_node x = node_at(&s.a, "abca", 3);
    start_until(&s.b, "b", FAR_OP_INSERT, "abch", "b", "dart:install", 1);
    assert_int_equal(far_session_call(s.a.pool->team.own, FAR_STATS_OTHER, true, start_adjustment_task, s.a.index), 1);
    run_adjustment(&s, &s.a, 20);
    assert_int_equal(dart_est_of(s.a.index)->adjust.phase, DART_ADJUST_ACTIVE_PUBLISHED);
    assert_int_equal(count_entries_of_length(&s.a, &x, 3), 0);
    expect_result(&s.b, 0);
    run_adjustment(&s, &s.a, 200);
    assert_int_equal(dart_est_of(s.a.index)->adjust.phase, DART_ADJUST_IDLE);
    assert_int_equal(count_entries_of(&s.a, x.addr), 0);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* A fails while it adjusts the list. Proves that B takes over the lock and starts again. Fails if B waits for the lock
 * of the failed client (skiptable/adjust.c, take_lock). */
EST_RACE(adjuster_dies) {
    stage s;
    set_up(&s, sim, "adjust=1,directory_bits=2");
    load_two_levels(&s);
    assert_int_equal(far_session_call(s.a.pool->team.own, FAR_STATS_OTHER, true, start_adjustment_task, s.a.index), 1);
    far_sim_kill(s.a.pool->fabric);
    finish_background(&s);
    assert_int_equal(far_session_call(s.b.pool->team.own, FAR_STATS_OTHER, true, start_adjustment_task, s.b.index), 1);
    run_adjustment(&s, &s.b, 200);
    assert_int_equal(dart_est_of(s.b.index)->adjust.phase, DART_ADJUST_IDLE);
    dart_node x = node_at(&s.b, "abca", 3);
    assert_int_equal(count_entries_of_length(&s.b, &x, 3), 1);
    expect_sound(&s, &s.b);
    tear_down(&s);
}


enum { PAIRS = 40 };


static far_index *registered_in;
static dart_node registered_nodes[2 * PAIRS];


static void name_of(unsigned i, char key[4]) {
    snprintf(key, 4, "%c%c1", 'A' + i % 26, 'a' + i / 26);
}


/* Makes a registration of a node under its whole prefix. If `chosen` is set, a slot for the entry was chosen already:
 * the registration contains the address of a slot that was empty when its bucket was read. */
static dart_registration make_registration(far_task *t, unsigned i, bool chosen) {
    dart_registration registration = {.node = registered_nodes[i], .lengths = {2}, .count = 1, .epoch = far_epoch(t)};
    dart_bucket_read r;
    char key[4];
    name_of(i, key);
    memcpy(registration.prefix, key, 2);
    dart_bucket_read_init(dart_est_of(registered_in), &r, key, 2);
    assert_int_equal(dart_bucket_reads_run(t, dart_est_of(registered_in), &r, 1), 0);
    for (unsigned s = 0; chosen && r.word && !registration.entry && s < DART_EST_READ_SLOTS; s++)
        if (r.slots[s] == 0) {
            registration.entry = dart_est_slot_addr(&r, s);
            registration.slot = s;
        }
    return registration;
}


static int register_pairs(far_task *t, void *arg) {
    (void)arg;
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 2 * PAIRS && err == 0; i += 2) {
        dart_registration both[2] = {make_registration(t, i, false), make_registration(t, i + 1, true)};
        dart_est_register_batch(t, registered_in, both, 2);
    }
    far_pin_drop(t);
    return err;
}


/* Two registrations are executed together. The first finds its bucket full, so the segment is replaced. The second has
 * a slot that was chosen earlier, and has not read its bucket. Proves that the second registration reads the bucket in
 * the new segment before it chooses a slot. Without this READ (skiptable/upkeep.c, choose_slots), the slot's address
 * was computed without a segment, and was in the first words of the pool. */
EST_RACE(a_bucket_of_a_grown_segment_is_read_before_a_slot_is_chosen) {
    stage s;
    set_up(&s, sim, "adjust=0,directory_bits=0");
    for (unsigned i = 0; i < 2 * PAIRS; i++) {
        char key[4];
        name_of(i, key);
        for (; key[2] < '3'; key[2]++)
            assert_int_equal(far_insert(s.a.session, s.a.index, key, 3, key, 3), 0);
        registered_nodes[i] = node_at(&s.a, key, 2);
    }
    registered_in = s.a.index;
    assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, false, register_pairs, NULL), 0);
    assert_true(dart_directory_log_groups(directory_word(&s, &s.a)) > 1);
    for (unsigned at = FAR_SUPER_CHECK + 8; at < FAR_SUPER_NODE_TABLE; at += 8)
        if (at < FAR_SUPER_EPOCH || at >= FAR_SUPER_LEAKED)
            assert_int_equal(world_word(s.world, far_addr_make(0, at)), 0);
    expect_sound(&s, &s.b);
    tear_down(&s);
}
