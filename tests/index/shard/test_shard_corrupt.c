/* Corrupt words in a partition of a shard index that is in use (S11, S12). Operations that follow them must report
 * corruption within bounded work, and a shrink must be cancelled, so that no memory in use is freed. Each comment names
 * the change of the code that makes its test fail. */
#include "client/op.h"
#include "shard_shrink_rig.h"
#include "test.h"


/* Proves that an insert does not try forever to cancel a shrink when the root word in far memory is corrupt: it is
 * older than the root word of the shrink, or names another directory. The insert must return FAR_ERR_CORRUPT. */
static void shrink_that_cannot_be_cancelled_on(const variant *variant) {
    for (unsigned i = 0; i < 2; i++) {
        stage s;
        open_empty(&s, variant);
        uint64_t before = far_root(&s), *word = world_bytes(s.world, shard_state_of(s.a.index)->part[0].pcb);
        shrink_until(&s, &s.c, SHARD_SHRINK, 0);
        assert_true(far_session_call(s.a.session, FAR_STATS_OTHER, false, refresh_root, s.a.index) >= 0);
        uint64_t shrinking = far_root(&s);
        assert_int_equal(root_of(&s.a), shrinking);
        *word = i == 0 ? before : shard_root_with_directory(shrinking, 3);
        assert_int_equal(insert(&s.a, number(5), 7), FAR_ERR_CORRUPT);
        *word = shrinking;
        assert_int_equal(insert(&s.a, number(5), 7), 0);
        assert_int_equal(COUNTED(&s, cancelled), 1);
        assert_there_once(&s, number(5), 7);
        stage_close(&s);
    }
}
TEST_ALL_VARIANTS(shrink_that_cannot_be_cancelled);


/* Verifies that a shrink is cancelled, and that no key is lost, if this word of the partition is corrupt. */
static void shrink_is_cancelled_with(stage *s, uint64_t *word, uint64_t broken) {
    uint64_t sound = *word;
    shrinker w = {.actor = &s->c, .world = s->world, .steps = 1, .trips = 100};
    shrink_until(s, &s->c, SHARD_SHRINK, 0);
    *word = broken;
    for (unsigned i = 0; i < 100 && current_phase(s) == SHARD_SHRINK; i++)
        run_shrink(&w);
    assert_int_equal(current_phase(s), SHARD_STABLE);
    assert_int_equal(current_directory(s), 0);
    *word = sound;
    put(&s->a, number(5), 7);
    assert_there_once(s, number(5), 7);
}


static void corrupt_words_on(const variant *variant) {
    static const uint64_t tables[] = {0xffffull << 48 | 4096, 47ull << 48 | 4096, 1ull << 48 | 0xfffffffff0,
                                      1ull << 48 | 0xff0000001000};
    stage s;
    for (unsigned i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        for (unsigned word = SHARD_DIR_L2; word < SHARD_DIR_L3; word++) {
            open_empty(&s, variant);
            shrink_is_cancelled_with(&s, (uint64_t *)words_at(&s, directory_addr(&s.a)) + word, tables[i]);
            stage_close(&s);
        }
}
TEST_ALL_VARIANTS(corrupt_words);


/* Race S11 (docs/races/shard.md). Proves that a corrupt directory number does not lead to the previous directory, which
 * is in use by other objects. Fails if every directory word with the right number is used (check_prepared_directory).
 */
static void corrupt_number_of_a_directory_on(const variant *variant) {
    stage s;
    open_empty(&s, variant);
    shrink_until(&s, &s.c, SHARD_STABLE, 1);
    fill_and_empty(&s, KEYS);
    far_sim_sleep(s.world, 30000000);
    uint64_t *word = world_bytes(s.world, shard_state_of(s.a.index)->part[0].pcb + 8 * SHARD_PCB_DIRECTORY),
             before = *word;
    *word = shard_directory_word(shard_directory_addr(before, 0), 2);
    shrinker w = {.actor = &s.c, .world = s.world, .steps = 1, .trips = 100};
    for (unsigned i = 0; i < 100 && COUNTED(&s, cancelled) == 0 && current_directory(&s) == 1; i++)
        run_shrink(&w);
    assert_int_equal(current_directory(&s), 1);
    assert_int_equal(COUNTED(&s, cancelled), 1);
    *word = before;
    put(&s.a, number(5), 7);
    assert_there_once(&s, number(5), 7);
    stage_close(&s);
}
TEST_ALL_VARIANTS(corrupt_number_of_a_directory);

/* Race S11 (docs/races/shard.md). Proves that a shrink retires only extents that it has read as empty, and retires no
 * extent twice. Fails without shard_check_unchanged or check_no_overlap, because the partition then shrinks although an
 * address is corrupt. */
static void addresses_other_than_those_proved_empty_on(const variant *variant) {
    for (unsigned i = 0; i < 3; i++) {
        stage s;
        open_empty(&s, variant);
        uint64_t *directory = (uint64_t *)words_at(&s, directory_addr(&s.a));
        assert_true(directory[SHARD_DIR_SEGMENT + 1] && directory[SHARD_DIR_PROGRESS + 1]);
        if (i == 0)
            shrink_is_cancelled_with(&s, &directory[SHARD_DIR_SEGMENT + 1], s.a.index->descriptor);
        else if (i == 1)
            shrink_is_cancelled_with(&s, &directory[SHARD_DIR_PROGRESS + 1], directory[SHARD_DIR_SEGMENT]);
        else
            shrink_is_cancelled_with(&s, &directory[SHARD_DIR_PROGRESS + 1], directory[SHARD_DIR_SEGMENT + 1] + 16);
        stage_close(&s);
    }
}
TEST_ALL_VARIANTS(addresses_other_than_those_proved_empty);


/* Proves that an index with an older or newer layout is refused with a message that says what to do. */
TEST(other_layouts_are_refused) {
    stage s;
    open_stage(&s, &all_variants[0], 0, SHRINK_OPTIONS);
    far_index *again;
    shard_descriptor *descriptor = world_bytes(s.world, s.a.index->descriptor);
    far_session *session;
    far_pool *pool;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    const uint64_t older = SHARD_MAGIC - (1ull << 56), newer = SHARD_MAGIC + (1ull << 56);
    descriptor->magic = older;
    assert_int_equal(far_pool_open(s.uri, &options, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_open(session, "map", &again), FAR_ERR_INVALID);
    assert_non_null(strstr(far_last_error(), "earlier version"));
    descriptor->magic = newer;
    assert_int_equal(far_index_open(session, "map", &again), FAR_ERR_INVALID);
    assert_non_null(strstr(far_last_error(), "later version"));
    descriptor->magic = SHARD_MAGIC;
    assert_int_equal(far_index_open(session, "map", &again), 0);
    far_index_close(again);
    far_session_close(session);
    far_pool_close(pool);
    stage_close(&s);
}

/* ---- Chains with a cycle ---- */

typedef struct chain {
    far_addr link[16]; /* addresses of the words that name the next node: in the head, in the first node, and so on */
    far_addr node[16];
    unsigned count;
} chain;


/* Reads the chain of the only head. */
static chain read_chain(stage *s, unsigned generation) {
    uint64_t size = shard_node_bytes(shard_state_of(s->a.index));
    uint64_t word = words_at(s, directory_addr(&s->a))[SHARD_DIR_L3 + generation % 2];
    chain c = {{shard_table_addr(word, generation) + size - 8}, {0}, 0};
    for (far_addr next; (next = world_word(s->world, c.link[c.count])) != 0;) {
        c.node[c.count++] = next;
        assert_true(c.count < 16);
        c.link[c.count] = next + size - 8;
    }
    assert_true(c.count >= 2);
    return c;
}


/* Race S12. The nodes of the chain are empty, so the partition could shrink. The shrink must fail because the chain has
 * a cycle. Fails without shard_chain_step. */
static void shrink_of_a_cyclic_chain_on(const variant *variant) {
    stage s;
    open_full(&s, variant);
    delete_all(&s, KEYS);
    far_sim_sleep(s.world, 3000000);
    chain c = read_chain(&s, 1);
    shrink_is_cancelled_with(&s, world_bytes(s.world, c.link[c.count]), c.node[0]);
    stage_close(&s);
}
TEST_ALL_VARIANTS(shrink_of_a_cyclic_chain);


static int ignore_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t length) {
    (void)ctx, (void)key, (void)key_len, (void)value, (void)length;
    return 0;
}


static int keep_problem(void *ctx, const char *what) {
    snprintf(ctx, 256, "%s", what);
    return 0;
}


/* Returns an absent key for which the chain is searched, because the filter of its bucket has the bit of this key set.
 */
static key absent_in_chain(stage *s) {
    uint64_t value, n = 1000;
    int err;
    do
        err = far_get(s->a.session, s->a.index, number(++n).bytes, 8, &value, 8, NULL);
    while (err == FAR_ERR_NOT_FOUND && n < 2000);
    assert_int_equal(err, FAR_ERR_CORRUPT);
    return number(n);
}


static void all_operations_report_the_cycle(stage *s) {
    key absent = absent_in_chain(s);
    uint64_t value = 1;
    far_usage usage;
    assert_non_null(strstr(far_last_error(), "has a cycle"));
    assert_int_equal(insert(&s->a, absent, 1), FAR_ERR_CORRUPT);
    assert_int_equal(far_put(s->b.session, s->b.index, absent.bytes, 8, &value, 8), FAR_ERR_CORRUPT);
    assert_int_equal(delete_key(&s->b, absent), FAR_ERR_CORRUPT);
    assert_int_equal(far_index_pairs(s->a.session, s->a.index, ignore_pair, NULL), FAR_ERR_CORRUPT);
    assert_int_equal(far_index_usage(s->a.session, s->a.index, &usage), FAR_ERR_CORRUPT);
    char problem[256] = "";
    assert_int_equal(far_index_check(s->c.session, s->c.index, keep_problem, problem), 1);
    assert_non_null(strstr(problem, "has a cycle"));
}


/* Race S12 (docs/races/shard.md). Proves that every operation reports a chain with a cycle. Fails without
 * shard_chain_step: then none of these calls returns. */
static void chains_with_a_cycle_on(const variant *variant) {
    stage s;
    open_full(&s, variant);
    chain c = read_chain(&s, 1);
    for (unsigned from = 1; from <= c.count; from++)
        for (unsigned to = 0; to < from; to++) {
            uint64_t *word = world_bytes(s.world, c.link[from]), sound = *word;
            *word = c.node[to];
            all_operations_report_the_cycle(&s);
            *word = sound;
        }
    for (uint64_t n = 1; n <= KEYS; n++)
        assert_int_equal(get(&s.b, number(n)), n);
    stage_close(&s);
}
TEST_ALL_VARIANTS(chains_with_a_cycle);


/* Race S12 (docs/races/shard.md). Proves that a drain retires no node of a chain with a cycle. Without the guard it
 * would retire a node more than once. `nodes` is the number of the node with the corrupt link, which names the first
 * node. Fails without check_chain_ends (restructure_drain.c). */
static void drain_of_a_cyclic_chain_of(const variant *variant, unsigned nodes) {
    stage s;
    open_full(&s, variant);
    chain c = read_chain(&s, 1);
    assert_true(c.count >= nodes);
    double_by(&s, &s.a);
    for (unsigned i = 0; i < 100 && current_phase(&s) != SHARD_DRAIN; i++)
        assert_true(far_session_call(s.a.session, FAR_STATS_OTHER, false, work_step, s.a.index) >= 0);
    assert_int_equal(current_phase(&s), SHARD_DRAIN);
    uint64_t *word = world_bytes(s.world, c.link[nodes]), sound = *word;
    *word = c.node[0];
    int broken = 0;
    for (unsigned i = 0; i < 100; i++)
        broken += far_session_call(s.a.session, FAR_STATS_OTHER, false, work_step, s.a.index) == FAR_ERR_CORRUPT;
    assert_true(broken > 0);
    assert_int_equal(current_phase(&s), SHARD_DRAIN);
    assert_int_equal(world_word(s.world, c.link[0]), c.node[0]);
    *word = sound;
    for (unsigned i = 0; i < 400 && current_phase(&s) != SHARD_STABLE; i++)
        assert_true(far_session_call(s.a.session, FAR_STATS_OTHER, false, work_step, s.a.index) >= 0);
    assert_int_equal(current_phase(&s), SHARD_STABLE);
    for (uint64_t n = 1; n <= KEYS; n++)
        assert_int_equal(get(&s.b, number(n)), n);
    stage_close(&s);
}


static void drain_of_a_cyclic_chain_on(const variant *variant) {
    drain_of_a_cyclic_chain_of(variant, 1);
    drain_of_a_cyclic_chain_of(variant, 2);
}
TEST_ALL_VARIANTS(drain_of_a_cyclic_chain);


/* Race S12 (docs/races/shard.md). Proves that operations report a root word with a version that no partition can have.
 * Fails if shard_progress_addr (partition.c) does not check the version: then another word of the directory is taken
 * for the address of a progress table. */
static void version_above_the_largest_on(const variant *variant) {
    static const unsigned versions[] = {SHARD_VERSIONS, SHARD_VERSIONS + 3, 63};
    for (unsigned i = 0; i < sizeof(versions) / sizeof(versions[0]); i++)
        for (unsigned phase = SHARD_GROW; phase <= SHARD_DRAIN; phase++) {
            stage s;
            open_stage(&s, variant, 4, SHRINK_OPTIONS);
            put(&s.a, number(1), 1);
            uint64_t root = far_root(&s), *word = world_bytes(s.world, shard_state_of(s.a.index)->part[0].pcb);
            uint64_t *directory = world_bytes(s.world, directory_addr(&s.a));
            if (SHARD_DIR_PROGRESS + versions[i] < SHARD_DIR_WORDS)
                /* The version selects this word beyond the progress addresses. The test stores the address of the
                 * directory in it, because the directory's content looks like a progress table. So only the check of
                 * the version can find the error. */
                directory[SHARD_DIR_PROGRESS + versions[i]] = directory_addr(&s.a);
            *word = shard_root_next(root, versions[i], phase, true, shard_root_stamp(root) + 1);
            assert_true(far_session_call(s.a.session, FAR_STATS_OTHER, false, refresh_root, s.a.index) >= 0);
            assert_int_equal(shard_root_d(root_of(&s.a)), versions[i]);
            for (uint64_t n = 1; n <= KEYS; n++)
                assert_int_equal(insert(&s.a, number(n), 7), FAR_ERR_CORRUPT);
            assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, false, work_step, s.a.index),
                             FAR_ERR_CORRUPT);
            stage_tear_down(&s);
        }
}
TEST_ALL_VARIANTS(version_above_the_largest);


/* ---- Extents of level-2 tables ---- */

enum { MANY = 80 };


/* Opens a stage that drains tables of two extents, which contain many of the keys. */
static void open_drain_of_extents(stage *s, const variant *variant) {
    open_stage(s, variant, 4, "slots=2,l2_slots=1,load=95,afs=1000000,idle_sweep=off,extent=512");
    for (uint64_t n = 1; n <= MANY; n++)
        put(&s->a, number(n), n);
    if (shard_root_d(far_root(s)) == 0) /* the inserts may have begun the doubling */
        double_by(s, &s->a);
    for (unsigned i = 0; i < 400 && current_phase(s) != SHARD_DRAIN; i++) {
        assert_true(far_session_call(s->a.session, FAR_STATS_OTHER, false, work_step, s->a.index) >= 0);
        far_sim_sleep(s->world, 300000);
    }
    assert_int_equal(current_phase(s), SHARD_DRAIN);
    assert_int_equal(shard_root_d(far_root(s)), 1);
    assert_int_equal(shard_extent_count(shard_state_of(s->a.index), 2, 0), 2);
}


/* Clears the addresses of the extents of the level-2 table of generation 0 in the cache of the handle. */
static void forget_level_2(const stage_actor *a) {
    shard_extents *extents = shard_state_of(a->index)->part[0].extents[0];
    while (extents && extents->version != 0)
        extents = extents->next;
    for (unsigned i = 0; extents && i < 2; i++)
        atomic_store(&extents->extent[i], 0);
}


static void finish_drain(stage *s) {
    for (unsigned i = 0; i < 400 && current_phase(s) != SHARD_STABLE; i++) {
        assert_true(far_session_call(s->a.session, FAR_STATS_OTHER, false, work_step, s->a.index) >= 0);
        far_sim_sleep(s->world, 300000);
    }
    assert_int_equal(current_phase(s), SHARD_STABLE);
}


/* Proves that a drain does not take a missing extent for a generation without tables,
 * and that a get does not take its keys for absent. Fails without check_table_is_unused (partition.c): then the table
 * is dropped with its keys. */
static void missing_extent_of_a_drained_table_on(const variant *variant) {
    for (unsigned extent = 0; extent < 2; extent++) {
        stage s;
        open_drain_of_extents(&s, variant);
        far_addr array = shard_table_addr(words_at(&s, directory_addr(&s.a))[SHARD_DIR_L2], 0);
        uint64_t *word = (uint64_t *)words_at(&s, array) + extent, sound = *word, value;
        *word = 0;
        forget_level_2(&s.a);
        forget_level_2(&s.b);
        int broken = 0, refused = 0;
        for (unsigned i = 0; i < 100; i++)
            broken += far_session_call(s.a.session, FAR_STATS_OTHER, false, work_step, s.a.index) == FAR_ERR_CORRUPT;
        for (uint64_t n = 1; n <= MANY; n++) {
            int err = far_get(s.b.session, s.b.index, number(n).bytes, 8, &value, 8, NULL);
            assert_true(err == 0 || err == FAR_ERR_CORRUPT);
            refused += err != 0;
        }
        assert_true(broken > 0 && refused > 0);
        assert_int_equal(current_phase(&s), SHARD_DRAIN);
        *word = sound;
        finish_drain(&s);
        for (uint64_t n = 1; n <= MANY; n++)
            assert_int_equal(get(&s.b, number(n)), n);
        stage_close(&s);
    }
}
TEST_ALL_VARIANTS(missing_extent_of_a_drained_table);


static void run_until_stable(void *arg) {
    stage *s = arg;
    finish_drain(s);
    s->a.ended = true;
}


/* Proves that the retirement of a drained table follows no damaged address. The word of the table, or the address of
 * its second extent, is that of an object of the next generation's table, which is in use. Fails if retire_table
 * (partition.c) compares nothing with the addresses that the handle has used: then objects in use are reused. */
static void damaged_address_of_a_drained_table_on(const variant *variant) {
    for (unsigned i = 0; i < 2; i++) {
        stage s;
        open_drain_of_extents(&s, variant);
        uint64_t *directory = (uint64_t *)words_at(&s, directory_addr(&s.a));
        far_addr drained = shard_table_addr(directory[SHARD_DIR_L2], 0),
                 used = shard_table_addr(directory[SHARD_DIR_L2 + 1], 1);
        s.a.ended = false;
        s.a.client = far_sim_start(s.a.pool->fabric, "worker", run_until_stable, &s);
        stage_stop_at(&s.a, at("shard:drop_overflow_tables"));
        if (i == 0)
            directory[SHARD_DIR_L2] = shard_table_word(used, 0);
        else
            ((uint64_t *)words_at(&s, drained))[1] = words_at(&s, used)[1];
        stage_finish(&s.a);
        far_sim_sleep(s.world, 30000000);
        for (uint64_t n = MANY + 1; n <= 3 * MANY; n++)
            put(&s.a, number(n), n);
        for (uint64_t n = 1; n <= 3 * MANY; n++)
            assert_int_equal(get(&s.b, number(n)), n);
        stage_close(&s);
    }
}
TEST_ALL_VARIANTS(damaged_address_of_a_drained_table);
