/* Tables of DART's skip table in walks, collections and adjustments, also while other clients make tables; damaged
 * words; and an index that is dropped. The comment of each test names the guard without which the test was seen to
 * fail. */
#include "dart_tables_rig.h"
#include "test.h"


/* ---- Walks ---- */

typedef struct tracker {
    far_index *index;
    /* The walk makes tables of the segments that it reaches with fewer than this number of tables above them. */
    unsigned grow_below;
    unsigned place, slices;
    uint64_t entries, tables;
    uint8_t met[DART_DIR_NUMBERS]; /* for each directory word: number of visits of its table or segment */
    unsigned count;
    far_addr nodes[4096]; /* the nodes that entries name */
} tracker;


static int track_visit(far_task *t, far_index *index, const dart_dir_slot *spot, uint64_t word, const uint64_t *slots,
                       unsigned count, void *ctx) {
    tracker *w = ctx;
    if (!dart_is_table(word) && spot->level < w->grow_below) {
        int err = dart_est_grow(t, index, spot, word, false);
        return err < 0 ? err : 1;
    }
    w->met[spot->number]++;
    w->tables += dart_is_table(word);
    for (unsigned i = 0; i < count; i++)
        if (dart_est_is_committed(slots[i]))
            w->nodes[w->count++ % 4096] = dart_word_addr(slots[i]);
    return 0;
}


static int slice_task(far_task *t, void *arg) {
    tracker *w = arg;
    int err = far_pin_take(t);
    if (err >= 0)
        err = dart_est_visit_segments(t, w->index, &w->place, track_visit, w);
    far_pin_drop(t);
    return err;
}


/* Visits the next slice. Returns false if the walk is complete. */
static bool next_slice(actor *a, tracker *w) {
    if (w->place >= dart_est_places(dart_est_of(w->index)))
        return false;
    w->slices++;
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, slice_task, w), 0);
    return true;
}


typedef struct content { /* the objects that far memory contains */
    uint64_t tables, segments, deepest, count;
    far_addr nodes[4096];
} content;


static void read_subtable(stage *s, uint64_t word, unsigned level, content *c) {
    const uint64_t *slots = word ? world_bytes(s->world, dart_word_addr(word)) : NULL;
    c->deepest = level > c->deepest ? level : c->deepest;
    for (unsigned i = 0; dart_is_table(word) && i < DART_TABLE_WORDS; i++)
        read_subtable(s, slots[i], level + 1, c);
    c->tables += dart_is_table(word);
    c->segments += word && !dart_is_table(word);
    for (unsigned i = 0; word && !dart_is_table(word) && i < DART_EST_GROUP_SLOTS << dart_directory_log_groups(word);
         i++)
        if (dart_est_is_committed(slots[i]))
            c->nodes[c->count++ % 4096] = dart_word_addr(slots[i]);
}


static void read_whole_table(stage *s, content *c) {
    const dart_est *est = dart_est_of(s->c.index);
    *c = (content){0};
    for (unsigned i = 0; i < 1u << est->bits; i++)
        read_subtable(s, world_word(s->world, dart_dir_slot_at(est, i).addr), 0, c);
}


static unsigned times_met(const tracker *w, far_addr node) {
    unsigned times = 0;
    for (unsigned i = 0; i < w->count; i++)
        times += w->nodes[i] == node;
    return times;
}


static tracker walker;
static content before, after;


/* While the walk runs, the test makes each segment grow into a table at the moment when the walk reaches it. This
 * includes the segment that the first word of a table names; it grows immediately after the walk has visited that
 * table. Asserts that the walk visits each table, each segment and each entry once. */
static void walk_makes_tables(const char *sim, unsigned bits, unsigned walk_slice) {
    stage s;
    char options[128];
    unsigned levels = (DART_DIRECTORY_BITS_MAX - bits) / DART_TABLE_LOG;
    snprintf(options, sizeof(options), "upkeep_batch=1,adjust=0,segment_log=0,directory_bits=%u,walk_slice=%u", bits,
             walk_slice);
    set_up(&s, sim, options);
    insert_pairs(&s.a, 0, 20);
    finish_background(&s);
    read_whole_table(&s, &before);
    assert_true(before.count >= 20 && before.deepest == 0);
    walker = (tracker){.index = s.c.index, .grow_below = levels < 2 ? levels : 2};
    while (next_slice(&s.c, &walker))
        ;
    read_whole_table(&s, &after);
    assert_int_equal(after.deepest, walker.grow_below);
    assert_int_equal(walker.tables, after.tables);
    for (unsigned i = 0; i < DART_DIR_NUMBERS; i++)
        assert_true(walker.met[i] <= 1);
    assert_int_equal(walker.count, before.count);
    for (unsigned i = 0; i < before.count; i++)
        assert_int_equal(times_met(&walker, before.nodes[i]), 1);
    finish_background(&s);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* Proves that the walk visits each table, segment and entry once. Fails if skiptable/traverse.c, find_run reports a
 * table again after its first word became a table, if visit_run continues after a segment that became a table, or if
 * the walk always starts a table at its first word. */
TEST(a_walk_visits_a_segment_that_becomes_a_table_once) {
    static const unsigned bits[] = {0, 1, 2, 3, 4, 7, 8, 9, 11, 12, 13, 16}, slices[] = {1, 6, 2048};
    for (unsigned i = 0; i < 12; i++)
        for (unsigned j = 0; j < 3; j++)
            /* on one memory node of 64 MiB a block contains a directory of 2^15 words, but not one of 2^16 */
            walk_makes_tables(j == 1 ? "size=64M,memory_nodes=1"
                              : j    ? "size=128M"
                                     : "size=192M,memory_nodes=3",
                              j == 1 && bits[i] == 16 ? 15 : bits[i], slices[j]);
}


enum { MANY = 900 };


static void run_fill_many(void *arg) {
    actor *a = arg;
    a->result = 0;
    for (unsigned i = ENOUGH; i < MANY && a->result >= 0; i++)
        insert_pair(a, i);
    a->ended = true;
}


/* A makes tables below tables, one after each slice of C's walk. Proves that everything that existed before the walk is
 * visited once. */
TEST(a_walk_while_nested_tables_are_made) {
    static const unsigned slices[] = {1, 8, 2048};
    for (unsigned i = 0; i < 3; i++) {
        stage s;
        set_up(&s, "size=16M", CALM);
        dart_of(s.b.index)->walk_slice = dart_of(s.c.index)->walk_slice = slices[i];
        insert_pairs(&s.a, 0, ENOUGH);
        finish_background(&s);
        read_whole_table(&s, &before);
        walker = (tracker){.index = s.c.index};
        stage_start_main(&s.a, "fills", run_fill_many);
        far_sim_stop_before(s.a.client, (far_sim_match){.point = "dart:est_install_table"});
        bool more = true;
        while (far_sim_run_client(s.a.client) == FAR_SIM_STOPPED) {
            more = more && next_slice(&s.c, &walker);
            far_sim_resume(s.a.client);
            far_sim_stop_before(s.a.client, (far_sim_match){.point = "dart:est_install_table"});
        }
        assert_true(s.a.ended && s.a.result == 0);
        while (next_slice(&s.c, &walker))
            ;
        for (unsigned n = 0; n < DART_DIR_NUMBERS; n++)
            assert_true(walker.met[n] <= 1);
        for (unsigned n = 0; n < before.count; n++)
            assert_int_equal(times_met(&walker, before.nodes[n]), 1);
        finish_background(&s);
        read_whole_table(&s, &after);
        assert_true(after.deepest >= 2 && after.tables > 4);
        assert_int_equal(count_tables(s.c.session, s.c.index), after.tables);
        expect_pairs(&s.c, 0, MANY);
        expect_sound(&s, &s.c);
        tear_down(&s);
    }
}


/* A fails with the segment frozen. Proves that the walk of B's collection completes the table and continues in it.
 * Fails if skiptable/traverse.c, walk_segment skips frozen segments. */
EST_RACE(a_collection_finishes_a_failed_clients_table) {
    static const char *const points[] = {"dart:est_frozen", "dart:est_install_table"};
    for (unsigned i = 0; i < 2; i++) {
        stage s;
        set_up(&s, sim, CALM ",walk_slice=1");
        INSERT_KEYS(&s.b, SEVEN_KEYS("ab"));
        finish_background(&s);
        fill_until(&s.a, points[i]);
        stage_kill(&s, &s.a);
        expect_sound(&s, &s.b);
        assert_true(dart_is_table(top_word(&s)));
        assert_int_equal(count_entries_of(&s.b, node_at(&s.b, "aba", 2).addr), 1);
        tear_down(&s);
    }
}


static int start_adjustment_task(far_task *t, void *arg) {
    static const uint8_t lengths[] = {3};
    int err = far_pin_take(t);
    if (err >= 0)
        err = dart_est_adjust_to(t, arg, lengths, 1);
    far_pin_drop(t);
    return err;
}


static unsigned length_of(stage *s, uint64_t entry) {
    return dart_header_depth(world_bytes(s->world, dart_word_addr(entry))) - dart_est_delta(entry);
}


static unsigned entries_of_length(stage *s, uint64_t word, unsigned length) {
    const uint64_t *slots = word ? world_bytes(s->world, dart_word_addr(word)) : NULL;
    unsigned count = 0;
    for (unsigned i = 0; dart_is_table(word) && i < DART_TABLE_WORDS; i++)
        count += entries_of_length(s, slots[i], length);
    for (unsigned i = 0; word && !dart_is_table(word) && i < DART_EST_GROUP_SLOTS << dart_directory_log_groups(word);
         i++)
        count += dart_est_is_committed(slots[i]) && length_of(s, slots[i]) == length;
    return count;
}


/* Inserts two keys that make a node of depth 3. */
static void insert_triple(actor *a, unsigned i) {
    for (char last = '1'; last <= '2'; last++) {
        char key[] = {(char)('A' + i % 50), (char)('0' + i / 50), 'x', last};
        assert_int_equal(far_insert(a->session, a->index, key, 4, key, 4), 0);
    }
}


/* The adjustment removes the entries of a length, in slices of one segment, while B registers nodes under another
 * length, so that segments become tables. Proves that no entry of the dropped length is left. Fails if the next slice
 * continues at the number of the directory word that the last one has reached, and not at the place inside of a nested
 * table (skiptable/traverse.c, dart_est_visit_segments). */
TEST(a_length_is_dropped_from_nested_tables) {
    stage s;
    set_up(&s, "size=16M", TABLES "adjust=1,walk_slice=1");
    insert_pairs(&s.a, 0, 400);
    finish_background(&s);
    assert_true(entries_of_length(&s, top_word(&s), 2) >= 390);
    assert_int_equal(far_session_call(s.a.pool->team.own, FAR_STATS_OTHER, true, start_adjustment_task, s.a.index), 1);
    unsigned made = 0, sweeping = 0;
    for (unsigned n = 0; n < 3000 && dart_est_of(s.a.index)->adjust.phase != DART_ADJUST_IDLE; n++) {
        bool sweeps = dart_est_of(s.a.index)->adjust.phase == DART_ADJUST_SWEEP;
        if (sweeps && sweeping++ == 0)
            read_whole_table(&s, &before);
        for (unsigned i = 0; sweeps && i < 20 && made < 500; i++, made++)
            insert_triple(&s.b, made);
        expect_get(&s.a, "!c1", "!c1");
        far_sim_sleep(s.world, 300000);
    }
    assert_int_equal(dart_est_of(s.a.index)->adjust.phase, DART_ADJUST_IDLE);
    read_whole_table(&s, &after);
    assert_true(sweeping > 3 && after.tables > before.tables);
    assert_int_equal(entries_of_length(&s, top_word(&s), 2), 0);
    assert_true(entries_of_length(&s, top_word(&s), 3) > 100);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* B fails with the segment frozen, and no other client needs it. Proves that A's adjustment completes the table and
 * removes the entries from it. Fails if skiptable/adjust.c, sweep_segment does not help, because its CASes fail
 * forever. */
EST_RACE(a_length_is_dropped_from_a_failed_clients_table) {
    static const char *const points[] = {"dart:est_frozen", "dart:est_install_table"};
    for (unsigned i = 0; i < 2; i++) {
        stage s;
        char byte;
        set_up(&s, sim, TABLES "adjust=1");
        fill_until(&s.b, points[i]);
        stage_kill(&s, &s.b);
        assert_int_equal(far_session_call(s.a.pool->team.own, FAR_STATS_OTHER, true, start_adjustment_task, s.a.index),
                         1);
        assert_false(dart_is_table(top_word(&s)));
        for (unsigned n = 0; n < 300 && dart_est_of(s.a.index)->adjust.phase != DART_ADJUST_IDLE; n++) {
            far_get(s.a.session, s.a.index, "~", 1, &byte, 1, NULL);
            far_sim_sleep(s.world, 1000000);
        }
        assert_int_equal(dart_est_of(s.a.index)->adjust.phase, DART_ADJUST_IDLE);
        assert_true(dart_is_table(top_word(&s)));
        assert_int_equal(entries_of_length(&s, top_word(&s), 2), 0);
        expect_sound(&s, &s.a);
        tear_down(&s);
    }
}


/* ---- Damage ---- */

static int count_problem(void *ctx, const char *what) {
    (void)what;
    ++*(unsigned *)ctx;
    return 0;
}


/* Damages the word that make_word selects. Two handles use the index: one has cached the table, the other has not.
 * Asserts that the operations of both end with a result, and that a check reports the damage. */
static void expect_damage_found(uint64_t (*make_word)(stage *s, far_addr *addr)) {
    stage s;
    far_addr addr;
    unsigned problems = 0;
    char value[8];
    set_up(&s, "masked_cas=on", CALM ",express_cache=0,slot_cache=0");
    INSERT_KEYS(&s.b, SEVEN_KEYS("ab"));
    fill_until(&s.a, NULL);
    finish_background(&s);
    assert_true(dart_is_table(top_word(&s)));
    uint64_t bad = make_word(&s, &addr);
    memcpy(world_bytes(s.world, addr), &bad, 8);
    int result = far_index_check(s.c.session, s.c.index, count_problem, &problems);
    assert_true(result != 0 || problems > 0);
    for (unsigned n = 0; n < 2; n++) {
        actor *a = n ? &s.c : &s.a;
        for (unsigned i = 0; i < ENOUGH; i++) {
            char key[4];
            name_of(i, key);
            result = far_get(a->session, a->index, key, 3, value, sizeof(value), NULL);
            assert_true(result == 0 || result == FAR_ERR_CORRUPT);
            key[2] = (char)('5' + n);
            result = far_put(a->session, a->index, key, 3, "v", 1);
            assert_true(result == 0 || result == FAR_ERR_CORRUPT);
        }
    }
    finish_background(&s);
    tear_down(&s);
}


static uint64_t make_self_reference(stage *s, far_addr *addr) {
    *addr = dart_dir_slot_at(dart_est_of(s->c.index), 0).addr;
    return dart_table_word(*addr);
}


static uint64_t make_cycle(stage *s, far_addr *addr) {
    *addr = dart_word_addr(top_word(s)) + 24;
    return top_word(s);
}


static uint64_t make_table_of_a_segment(stage *s, far_addr *addr) {
    *addr = dart_dir_slot_at(dart_est_of(s->c.index), 0).addr;
    return dart_table_word(dart_word_addr(world_word(s->world, dart_word_addr(top_word(s)) + 8)));
}


static uint64_t make_free_address(stage *s, far_addr *addr) {
    *addr = dart_dir_slot_at(dart_est_of(s->c.index), 0).addr;
    return dart_table_word(far_addr_make(0, 1ull << 30));
}


static uint64_t make_unknown_memory_node(stage *s, far_addr *addr) {
    *addr = dart_word_addr(top_word(s)) + 40;
    return dart_table_word(far_addr_make(9, 4096));
}


static uint64_t make_table_with_unused_bits(stage *s, far_addr *addr) {
    *addr = dart_dir_slot_at(dart_est_of(s->c.index), 0).addr;
    return top_word(s) | 1ull << 50;
}


static uint64_t make_segment_with_unused_bits(stage *s, far_addr *addr) {
    *addr = dart_word_addr(top_word(s)) + 16;
    return world_word(s->world, *addr) | 1ull << 50;
}


static uint64_t make_too_large_segment(stage *s, far_addr *addr) {
    *addr = dart_word_addr(top_word(s)) + 16;
    return world_word(s->world, *addr) | (DART_LOG_GROUPS_MAX + 1ull) << 56;
}


/* Proves that in an index with a directory of maximal size, a word that names a table is damage. Fails if
 * skiptable/lookup.c, dart_est_check_dir_word permits tables at every level. */
TEST(a_table_below_the_last_level_is_damage) {
    for (unsigned bits = DART_DIRECTORY_BITS_MAX - DART_TABLE_LOG + 1; bits <= DART_DIRECTORY_BITS_MAX; bits++) {
        stage s;
        char options[64];
        unsigned problems = 0;
        snprintf(options, sizeof(options), "adjust=0,upkeep_batch=1,directory_bits=%u", bits);
        set_up(&s, "masked_cas=on,size=128M", options);
        far_addr directory = dart_dir_slot_at(dart_est_of(s.c.index), 0).addr;
        for (unsigned i = 0; i < DART_TABLE_WORDS; i++) /* the directory itself would be a valid table here */
            assert_int_equal(world_word(s.world, directory + 1024 + 8 * i), 0);
        assert_int_equal(far_index_check(s.c.session, s.c.index, count_problem, &problems), 0);
        uint64_t bad = dart_table_word(directory + 1024);
        memcpy(world_bytes(s.world, directory + 8 * 7), &bad, 8);
        assert_int_equal(far_index_check(s.c.session, s.c.index, count_problem, &problems), 1);
        tear_down(&s);
    }
}


/* Proves that damaged directory words of all kinds are found. Fails if skiptable/lookup.c, dart_est_check_dir_word is
 * not called, or ignores unused bits. */
TEST(damaged_words_are_found) {
    expect_damage_found(make_self_reference);
    expect_damage_found(make_cycle);
    expect_damage_found(make_table_of_a_segment);
    expect_damage_found(make_free_address);
    expect_damage_found(make_unknown_memory_node);
    expect_damage_found(make_table_with_unused_bits);
    expect_damage_found(make_segment_with_unused_bits);
    expect_damage_found(make_too_large_segment);
}


/* ---- Dropping ---- */

/* Waits until the pool has no retired objects, and returns the bytes in use. Polls until they are at most `limit`,
 * because later ticks of housekeeping free the memory of a dropped index. Fails if a large number of polls is not
 * enough. */
static uint64_t wait_for_usage(far_session *s, far_pool *pool, uint64_t limit) {
    far_pool_usage usage;
    unsigned polls = 0;
    do {
        far_pool_poll(pool);
        far_epoch_request(pool);
        assert_int_equal(far_pool_stat(s, &usage), 0);
        assert_true(++polls < 10000000);
    } while (polls < 100 || usage.retired > 0 || usage.used > limit);
    return usage.used;
}


/* An index with nested tables is dropped and created again under the same name, three times. Proves that its memory is
 * freed each time, and the new directory is empty. Fails if a walk that continues in a later slice keeps only the
 * number of the directory word that it has reached, and not the place inside of a nested table. */
TEST(a_dropped_index_frees_its_tables) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    far_pool *pool;
    far_session *s;
    far_index *index;
    uint64_t used[3], full = 0;
    options.no_thread = 1;
    assert_int_equal(far_pool_open("local:64M", &options, &pool), 0);
    assert_int_equal(far_session_open(pool, &s), 0);
    for (unsigned n = 0; n < 3; n++) {
        assert_int_equal(far_index_create(s, "map", "dart", CALM, &index), 0);
        assert_int_equal(count_tables(s, index), 0);
        actor a = {.session = s, .index = index};
        insert_pairs(&a, 0, MANY);
        assert_true(count_tables(s, index) > 4);
        expect_pairs(&a, 0, MANY);
        assert_int_equal(far_index_check(s, index, fail_at_problem, NULL), 0);
        full = wait_for_usage(s, pool, UINT64_MAX);
        far_index_close(index);
        assert_int_equal(far_index_drop(s, "map"), 0);
        used[n] = wait_for_usage(s, pool, n > 0 ? used[0] : full - 100000);
        world_assert_nothing_leaked(s);
    }
    assert_true(used[1] == used[0] && used[2] == used[0] && used[0] + 100000 < full);
    far_session_close(s);
    far_pool_close(pool);
}
