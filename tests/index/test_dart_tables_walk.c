/* DART's skip table: walks, sweeps and the adjuster go over tables of the directory, also while they are made; damaged
 * words; a dropped index. The mutation that was tried, and made the test fail, stands in brackets. */
#include "dart_tables_rig.h"


/* ---- Walks ---- */

typedef struct tracker {
    far_index *index;
    unsigned grow_below; /* segments of lower levels become tables when the walk comes to them */
    unsigned place, slices;
    uint64_t entries, tables;
    uint8_t met[DART_NUMBERS]; /* how often the table, or segment, of this number was told */
    unsigned count;
    far_addr nodes[4096]; /* that entries name */
} tracker;


static int track(far_task *t, far_index *index, const dart_spot *spot, uint64_t word, const uint64_t *slots,
                 unsigned count, void *ctx) {
    tracker *w = ctx;
    if (!dart_is_table(word) && spot->level < w->grow_below) {
        int err = dart_est_grow(t, index, spot, word, false);
        return err < 0 ? err : 1;
    }
    w->met[spot->at]++;
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
        err = dart_est_each_segment(t, w->index, &w->place, track, w);
    far_pin_drop(t);
    return err;
}


/* False: the walk is over. */
static bool next_slice(actor *a, tracker *w) {
    if (w->place >= dart_est_places(dart_est_of(w->index)))
        return false;
    w->slices++;
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, slice_task, w), 0);
    return true;
}


typedef struct content { /* of the memory itself */
    uint64_t tables, segments, deepest, count;
    far_addr nodes[4096];
} content;


static void look_below(stage *s, uint64_t word, unsigned level, content *c) {
    const uint64_t *slots = word ? world_bytes(s->world, dart_word_addr(word)) : NULL;
    c->deepest = level > c->deepest ? level : c->deepest;
    for (unsigned i = 0; dart_is_table(word) && i < DART_TABLE_WORDS; i++)
        look_below(s, slots[i], level + 1, c);
    c->tables += dart_is_table(word);
    c->segments += word && !dart_is_table(word);
    for (unsigned i = 0; word && !dart_is_table(word) && i < DART_EST_GROUP_SLOTS << dart_directory_log_groups(word);
         i++)
        if (dart_est_is_committed(slots[i]))
            c->nodes[c->count++ % 4096] = dart_word_addr(slots[i]);
}


static void look_at_all(stage *s, content *c) {
    const dart_est *est = dart_est_of(s->c.index);
    *c = (content){0};
    for (unsigned i = 0; i < 1u << est->bits; i++)
        look_below(s, world_word(s->world, dart_spot_at(est, i).addr), 0, c);
}


static unsigned times_met(const tracker *w, far_addr node) {
    unsigned times = 0;
    for (unsigned i = 0; i < w->count; i++)
        times += w->nodes[i] == node;
    return times;
}


static tracker walker;
static content before, after;


/* Everything becomes a table when the walk comes to it, also the first words of tables that it has just told of: each
 * table and each segment is met once, and each entry. */
static void walk_makes_tables(const char *sim, unsigned bits, unsigned walk_slice) {
    stage s;
    char options[128];
    unsigned levels = (DART_DIRECTORY_BITS_MAX - bits) / DART_TABLE_LOG;
    snprintf(options, sizeof(options), "upkeep_batch=1,adjust=0,segment_log=0,directory_bits=%u,walk_slice=%u", bits,
             walk_slice);
    set_up(&s, sim, options);
    insert_pairs(&s.a, 0, 20);
    settle(&s);
    look_at_all(&s, &before);
    assert_true(before.count >= 20 && before.deepest == 0);
    walker = (tracker){.index = s.c.index, .grow_below = levels < 2 ? levels : 2};
    while (next_slice(&s.c, &walker))
        ;
    look_at_all(&s, &after);
    assert_int_equal(after.deepest, walker.grow_below);
    assert_int_equal(walker.tables, after.tables);
    for (unsigned i = 0; i < DART_NUMBERS; i++)
        assert_true(walker.met[i] <= 1);
    assert_int_equal(walker.count, before.count);
    for (unsigned i = 0; i < before.count; i++)
        assert_int_equal(times_met(&walker, before.nodes[i]), 1);
    settle(&s);
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* (The walk tells again of the table whose first word became one; it goes on behind a segment that became a table; it
 * begins a table at its first word always.) */
static void a_walk_meets_what_becomes_a_table_under_it_once(void **state) {
    (void)state;
    static const unsigned bits[] = {0, 1, 2, 3, 4, 7, 8, 9, 11, 12, 13, 16}, slices[] = {1, 6, 2048};
    for (unsigned i = 0; i < 12; i++)
        for (unsigned j = 0; j < 3; j++)
            walk_makes_tables(j == 1 ? "size=16M,memory_nodes=1"
                              : j    ? "size=16M"
                                     : "size=24M,memory_nodes=3",
                              bits[i], slices[j]);
}


enum { MANY = 900 };


static void run_fill_many(void *arg) {
    actor *a = arg;
    a->result = 0;
    for (unsigned i = ENOUGH; i < MANY && a->result >= 0; i++)
        insert_pair(a, i);
    a->ended = true;
}


/* a makes tables below tables while c walks, a slice for each table: what was there before is met once. */
static void a_walk_beside_one_who_makes_nested_tables(void **state) {
    (void)state;
    static const unsigned slices[] = {1, 8, 2048};
    for (unsigned i = 0; i < 3; i++) {
        stage s;
        set_up(&s, "size=16M", CALM);
        dart_of(s.b.index)->walk_slice = dart_of(s.c.index)->walk_slice = slices[i];
        insert_pairs(&s.a, 0, ENOUGH);
        settle(&s);
        look_at_all(&s, &before);
        walker = (tracker){.index = s.c.index};
        stage_start_main(&s.a, "fills", run_fill_many);
        far_sim_stop_before(s.a.client, (far_sim_match){.point = "dart:est_table"});
        bool more = true;
        while (far_sim_run_client(s.a.client) == FAR_SIM_STOPPED) {
            more = more && next_slice(&s.c, &walker);
            far_sim_resume(s.a.client);
            far_sim_stop_before(s.a.client, (far_sim_match){.point = "dart:est_table"});
        }
        assert_true(s.a.ended && s.a.result == 0);
        while (next_slice(&s.c, &walker))
            ;
        for (unsigned n = 0; n < DART_NUMBERS; n++)
            assert_true(walker.met[n] <= 1);
        for (unsigned n = 0; n < before.count; n++)
            assert_int_equal(times_met(&walker, before.nodes[n]), 1);
        settle(&s);
        look_at_all(&s, &after);
        assert_true(after.deepest >= 2 && after.tables > 4);
        assert_int_equal(count_tables(s.c.session, s.c.index), after.tables);
        holds_pairs(&s.c, 0, MANY);
        is_sound(&s, &s.c);
        tear_down(&s);
    }
}


/* a died with the segment frozen: the walk of a sweep makes the table, and goes on in it. (The walk leaves a frozen
 * segment alone.) */
EST_RACE(a_sweep_finishes_a_dead_clients_table) {
    static const char *const points[] = {"dart:est_frozen", "dart:est_table"};
    for (unsigned i = 0; i < 2; i++) {
        stage s;
        set_up(&s, sim, CALM ",walk_slice=1");
        LOAD(&s.b, SEVEN("ab"));
        settle(&s);
        fill_to(&s.a, points[i]);
        stage_kill(&s, &s.a);
        is_sound(&s, &s.b);
        assert_true(dart_is_table(top_word(&s)));
        assert_int_equal(names_of(&s.b, node_at(&s.b, "aba", 2).addr), 1);
        tear_down(&s);
    }
}


static int set_out_task(far_task *t, void *arg) {
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


/* A node of depth 3. */
static void insert_triple(actor *a, unsigned i) {
    for (char last = '1'; last <= '2'; last++) {
        char key[] = {(char)('A' + i % 50), (char)('0' + i / 50), 'x', last};
        assert_int_equal(far_insert(a->session, a->index, key, 4, key, 4), 0);
    }
}


/* The adjuster takes entries of a length out, in slices of one segment, while b's nodes of another length make tables
 * of segments: nothing of that length is left. (The cursor of the sweep goes on by words of the directory.) */
static void a_length_is_dropped_from_nested_tables(void **state) {
    (void)state;
    stage s;
    set_up(&s, "size=16M", TABLES "adjust=1,walk_slice=1");
    insert_pairs(&s.a, 0, 400);
    settle(&s);
    assert_true(entries_of_length(&s, top_word(&s), 2) >= 390);
    assert_int_equal(far_session_call(s.a.pool->team.own, FAR_STATS_OTHER, true, set_out_task, s.a.index), 1);
    unsigned made = 0, sweeping = 0;
    for (unsigned n = 0; n < 3000 && dart_est_of(s.a.index)->adjust.phase != DART_ADJUST_IDLE; n++) {
        bool sweeps = dart_est_of(s.a.index)->adjust.phase == DART_ADJUST_SWEEP;
        if (sweeps && sweeping++ == 0)
            look_at_all(&s, &before);
        for (unsigned i = 0; sweeps && i < 20 && made < 500; i++, made++)
            insert_triple(&s.b, made);
        reads(&s.a, "!c1", "!c1");
        far_sim_sleep(s.world, 300000);
    }
    assert_int_equal(dart_est_of(s.a.index)->adjust.phase, DART_ADJUST_IDLE);
    look_at_all(&s, &after);
    assert_true(sweeping > 3 && after.tables > before.tables);
    assert_int_equal(entries_of_length(&s, top_word(&s), 2), 0);
    assert_true(entries_of_length(&s, top_word(&s), 3) > 100);
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* b died with the segment frozen, and nobody needs it: the adjuster makes the table, and takes the entries out of it.
 * (It does not help: its CASes lose for ever.) */
EST_RACE(a_length_is_dropped_from_a_dead_clients_table) {
    static const char *const points[] = {"dart:est_frozen", "dart:est_table"};
    for (unsigned i = 0; i < 2; i++) {
        stage s;
        char byte;
        set_up(&s, sim, TABLES "adjust=1");
        fill_to(&s.b, points[i]);
        stage_kill(&s, &s.b);
        assert_int_equal(far_session_call(s.a.pool->team.own, FAR_STATS_OTHER, true, set_out_task, s.a.index), 1);
        assert_false(dart_is_table(top_word(&s)));
        for (unsigned n = 0; n < 300 && dart_est_of(s.a.index)->adjust.phase != DART_ADJUST_IDLE; n++) {
            far_get(s.a.session, s.a.index, "~", 1, &byte, 1, NULL);
            far_sim_sleep(s.world, 1000000);
        }
        assert_int_equal(dart_est_of(s.a.index)->adjust.phase, DART_ADJUST_IDLE);
        assert_true(dart_is_table(top_word(&s)));
        assert_int_equal(entries_of_length(&s, top_word(&s), 2), 0);
        is_sound(&s, &s.a);
        tear_down(&s);
    }
}


/* ---- Damage ---- */

static int count_problem(void *ctx, const char *what) {
    (void)what;
    ++*(unsigned *)ctx;
    return 0;
}


/* The word at addr is damaged: operations come to an end, of handles that knew the table and of one that did not, and a
 * check finds it. */
static void damage(uint64_t (*word_of)(stage *s, far_addr *addr)) {
    stage s;
    far_addr addr;
    unsigned problems = 0;
    char value[8];
    set_up(&s, "masked_cas=on", CALM ",express_cache=0,slot_cache=0");
    LOAD(&s.b, SEVEN("ab"));
    fill_to(&s.a, NULL);
    settle(&s);
    assert_true(dart_is_table(top_word(&s)));
    uint64_t bad = word_of(&s, &addr);
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
    settle(&s);
    tear_down(&s);
}


static uint64_t names_itself(stage *s, far_addr *addr) {
    *addr = dart_spot_at(dart_est_of(s->c.index), 0).addr;
    return dart_table_word(*addr);
}


static uint64_t names_the_table_above(stage *s, far_addr *addr) {
    *addr = dart_word_addr(top_word(s)) + 24;
    return top_word(s);
}


static uint64_t names_a_segment(stage *s, far_addr *addr) {
    *addr = dart_spot_at(dart_est_of(s->c.index), 0).addr;
    return dart_table_word(dart_word_addr(world_word(s->world, dart_word_addr(top_word(s)) + 8)));
}


static uint64_t names_nothing(stage *s, far_addr *addr) {
    *addr = dart_spot_at(dart_est_of(s->c.index), 0).addr;
    return dart_table_word(far_addr_make(0, 1ull << 30));
}


static uint64_t names_no_memory_node(stage *s, far_addr *addr) {
    *addr = dart_word_addr(top_word(s)) + 40;
    return dart_table_word(far_addr_make(9, 4096));
}


static uint64_t has_more_bits(stage *s, far_addr *addr) {
    *addr = dart_spot_at(dart_est_of(s->c.index), 0).addr;
    return top_word(s) | 1ull << 50;
}


static uint64_t is_a_segment_with_more_bits(stage *s, far_addr *addr) {
    *addr = dart_word_addr(top_word(s)) + 16;
    return world_word(s->world, *addr) | 1ull << 50;
}


static uint64_t is_too_large(stage *s, far_addr *addr) {
    *addr = dart_word_addr(top_word(s)) + 16;
    return world_word(s->world, *addr) | (DART_LOG_GROUPS_MAX + 1ull) << 56;
}


/* An index whose directory is as large as it may be has no tables. (A table may stand at any level.) */
static void a_table_below_the_last_level_is_damage(void **state) {
    (void)state;
    for (unsigned bits = DART_DIRECTORY_BITS_MAX - DART_TABLE_LOG + 1; bits <= DART_DIRECTORY_BITS_MAX; bits++) {
        stage s;
        char options[64];
        unsigned problems = 0;
        snprintf(options, sizeof(options), "adjust=0,upkeep_batch=1,directory_bits=%u", bits);
        set_up(&s, "masked_cas=on,memory_nodes=1", options);
        far_addr directory = dart_spot_at(dart_est_of(s.c.index), 0).addr;
        for (unsigned i = 0; i < DART_TABLE_WORDS; i++) /* itself would be a sound table */
            assert_int_equal(world_word(s.world, directory + 1024 + 8 * i), 0);
        assert_int_equal(far_index_check(s.c.session, s.c.index, count_problem, &problems), 0);
        uint64_t bad = dart_table_word(directory + 1024);
        memcpy(world_bytes(s.world, directory + 8 * 7), &bad, 8);
        assert_int_equal(far_index_check(s.c.session, s.c.index, count_problem, &problems), 1);
        tear_down(&s);
    }
}


/* (A word is not looked at; bits that mean nothing are passed over.) */
static void damaged_words_are_found(void **state) {
    (void)state;
    damage(names_itself);
    damage(names_the_table_above);
    damage(names_a_segment);
    damage(names_nothing);
    damage(names_no_memory_node);
    damage(has_more_bits);
    damage(is_a_segment_with_more_bits);
    damage(is_too_large);
}


/* ---- Dropping ---- */

static uint64_t used_now(far_session *s, far_pool *pool) {
    far_pool_usage usage;
    for (unsigned i = 0; i < 4000; i++) {
        assert_int_equal(far_pool_stat(s, &usage), 0);
        if (i > 100 && usage.retired == 0)
            break;
        far_pool_poll(pool);
        far_epoch_request(pool);
    }
    assert_int_equal(usage.retired, 0);
    return usage.used;
}


/* An index with nested tables is dropped, and made again under its name, three times: its memory comes back each time,
 * and the new one's directory is empty. (The cursor of walks goes by directory words alone.) */
static void a_dropped_index_gives_its_tables_back(void **state) {
    (void)state;
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
        holds_pairs(&a, 0, MANY);
        assert_int_equal(far_index_check(s, index, fail_at_problem, NULL), 0);
        full = used_now(s, pool);
        far_index_close(index);
        assert_int_equal(far_index_drop(s, "map"), 0);
        used[n] = used_now(s, pool);
        world_assert_nothing_leaked(s);
    }
    assert_true(used[1] == used[0] && used[2] == used[0] && used[0] + 100000 < full);
    far_session_close(s);
    far_pool_close(pool);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_walk_meets_what_becomes_a_table_under_it_once),
        cmocka_unit_test(a_walk_beside_one_who_makes_nested_tables),
        cmocka_unit_test(a_sweep_finishes_a_dead_clients_table),
        cmocka_unit_test(a_length_is_dropped_from_nested_tables),
        cmocka_unit_test(a_length_is_dropped_from_a_dead_clients_table),
        cmocka_unit_test(damaged_words_are_found),
        cmocka_unit_test(a_table_below_the_last_level_is_damage),
        cmocka_unit_test(a_dropped_index_gives_its_tables_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
