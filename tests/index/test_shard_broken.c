/* Broken words in a partition of shard, while it is in use: whoever follows them says so within bounded work, and a
 * shrink is called off, so that nothing goes that others use. What was taken out of the code to see a story fail is
 * told with it. */
#include "client/op.h"
#include "shard_shrink_rig.h"


/* The root in far memory is not one that can follow the shrink that a handle knows of: an old one, or one of another
 * body. Who would call that shrink off does not try for ever. */
static void shrink_that_cannot_be_called_off_told(const told *told) {
    for (unsigned i = 0; i < 2; i++) {
        stage s;
        open_empty(&s, told);
        uint64_t before = true_root(&s), *word = world_bytes(s.world, shard_state_of(s.a.index)->part[0].pcb);
        shrink_until(&s, &s.c, SHARD_SHRINK, 0);
        assert_true(far_session_call(s.a.session, FAR_STATS_OTHER, false, refresh, s.a.index) >= 0);
        uint64_t shrinking = true_root(&s);
        assert_int_equal(root_of(&s.a), shrinking);
        *word = i == 0 ? before : shard_root_of_body(shrinking, 3);
        assert_int_equal(insert(&s.a, number(5), 7), FAR_ERR_CORRUPT);
        *word = shrinking;
        assert_int_equal(insert(&s.a, number(5), 7), 0);
        assert_int_equal(COUNTED(&s, called_off), 1);
        assert_there_once(&s, number(5), 7);
        stage_close(&s);
    }
}
TOLD_OF_ALL(shrink_that_cannot_be_called_off);


/* A shrink goes on with those words of the partition broken: it is called off, and nothing is lost. */
static void called_off_with(stage *s, uint64_t *word, uint64_t broken) {
    uint64_t sound = *word;
    shrinker w = {.actor = &s->c, .world = s->world, .steps = 1, .trips = 100};
    shrink_until(s, &s->c, SHARD_SHRINK, 0);
    *word = broken;
    for (unsigned i = 0; i < 100 && phase(s) == SHARD_SHRINK; i++)
        shrink(&w);
    assert_int_equal(phase(s), SHARD_STABLE);
    assert_int_equal(body(s), 0);
    *word = sound;
    put(&s->a, number(5), 7);
    assert_there_once(s, number(5), 7);
}


static void broken_words_told(const told *told) {
    static const uint64_t tables[] = {0xffffull << 48 | 4096, 47ull << 48 | 4096, 1ull << 48 | 0xfffffffff0,
                                      1ull << 48 | 0xff0000001000};
    stage s;
    for (unsigned i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        for (unsigned word = SHARD_BODY_L2; word < SHARD_BODY_L3; word++) {
            open_empty(&s, told);
            called_off_with(&s, (uint64_t *)words_at(&s, body_addr(&s.a)) + word, tables[i]);
            stage_close(&s);
        }
}
TOLD_OF_ALL(broken_words);


/* What stands in place of the next body has its number by damage: it is the one before, whose memory others have by
 * now. (Whatever has the number is used.) */
static void broken_number_of_a_body_told(const told *told) {
    stage s;
    open_empty(&s, told);
    shrink_until(&s, &s.c, SHARD_STABLE, 1);
    fill_and_empty(&s, KEYS);
    far_sim_sleep(s.world, 30000000);
    uint64_t *word = world_bytes(s.world, shard_state_of(s.a.index)->part[0].pcb + 8 * SHARD_PCB_BODY), before = *word;
    *word = shard_body(shard_body_addr(before, 0), 2);
    shrinker w = {.actor = &s.c, .world = s.world, .steps = 1, .trips = 100};
    for (unsigned i = 0; i < 100 && COUNTED(&s, called_off) == 0 && body(&s) == 1; i++)
        shrink(&w);
    assert_int_equal(body(&s), 1);
    assert_int_equal(COUNTED(&s, called_off), 1);
    *word = before;
    put(&s.a, number(5), 7);
    assert_there_once(&s, number(5), 7);
    stage_close(&s);
}
TOLD_OF_ALL(broken_number_of_a_body);

/* What a shrink would give back is not what it has seen to be empty, or it would give it back twice. (Without
 * shard_is_as_known, without check_list: the partition shrinks.) */
static void other_addresses_told(const told *told) {
    for (unsigned i = 0; i < 3; i++) {
        stage s;
        open_empty(&s, told);
        uint64_t *body = (uint64_t *)words_at(&s, body_addr(&s.a));
        assert_true(body[SHARD_BODY_SEGMENT + 1] && body[SHARD_BODY_PROGRESS + 1]);
        if (i == 0)
            called_off_with(&s, &body[SHARD_BODY_SEGMENT + 1], s.a.index->descriptor);
        else if (i == 1)
            called_off_with(&s, &body[SHARD_BODY_PROGRESS + 1], body[SHARD_BODY_SEGMENT]);
        else
            called_off_with(&s, &body[SHARD_BODY_PROGRESS + 1], body[SHARD_BODY_SEGMENT + 1] + 16);
        stage_close(&s);
    }
}
TOLD_OF_ALL(other_addresses);


/* An index of the layout before is refused, in words that say what to do. */
static void an_older_layout_is_refused(void **state) {
    (void)state;
    stage s;
    open_stage(&s, &all_told[0], 0, TOLD);
    far_index *again;
    shard_descriptor *descriptor = world_bytes(s.world, s.a.index->descriptor);
    far_session *session;
    far_pool *pool;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    descriptor->magic = SHARD_MAGIC_OLD;
    assert_int_equal(far_pool_open(s.uri, &options, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_open(session, "map", &again), FAR_ERR_INVALID);
    assert_non_null(strstr(far_last_error(), "earlier version"));
    descriptor->magic = SHARD_MAGIC;
    assert_int_equal(far_index_open(session, "map", &again), 0);
    far_index_close(again);
    far_session_close(session);
    far_pool_close(pool);
    stage_close(&s);
}

/* ---- Chains that go round ---- */

typedef struct chain {
    far_addr link[16]; /* where the address of the next node stands: in the head, in the first node ... */
    far_addr node[16];
    unsigned count;
} chain;


/* Of the only head. */
static chain chain_of(stage *s, unsigned generation) {
    uint64_t size = shard_node_bytes(shard_state_of(s->a.index));
    uint64_t word = words_at(s, body_addr(&s->a))[SHARD_BODY_L3 + generation % 2];
    chain c = {{shard_table_addr(word, generation) + size - 8}, {0}, 0};
    for (far_addr next; (next = world_word(s->world, c.link[c.count])) != 0;) {
        c.node[c.count++] = next;
        assert_true(c.count < 16);
        c.link[c.count] = next + size - 8;
    }
    assert_true(c.count >= 2);
    return c;
}


/* The nodes are empty, and the partition could shrink. (shard_follow) */
static void shrink_along_a_circle_told(const told *told) {
    stage s;
    open_full(&s, told);
    delete_all(&s, KEYS);
    far_sim_sleep(s.world, 3000000);
    chain c = chain_of(&s, 1);
    called_off_with(&s, world_bytes(s.world, c.link[c.count]), c.node[0]);
    stage_close(&s);
}
TOLD_OF_ALL(shrink_along_a_circle);


static int no_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t length) {
    (void)ctx, (void)key, (void)key_len, (void)value, (void)length;
    return 0;
}


static int keep_problem(void *ctx, const char *what) {
    snprintf(ctx, 256, "%s", what);
    return 0;
}


/* A key that is not there, and is looked for in the chain: the filter of its bucket has its bit. */
static key absent_in_chain(stage *s) {
    uint64_t value, n = 1000;
    int err;
    do
        err = far_get(s->a.session, s->a.index, number(++n).bytes, 8, &value, 8, NULL);
    while (err == FAR_ERR_NOT_FOUND && n < 2000);
    assert_int_equal(err, FAR_ERR_CORRUPT);
    return number(n);
}


static void all_say_so(stage *s) {
    key absent = absent_in_chain(s);
    uint64_t value = 1;
    far_usage usage;
    assert_non_null(strstr(far_last_error(), "comes back to"));
    assert_int_equal(insert(&s->a, absent, 1), FAR_ERR_CORRUPT);
    assert_int_equal(far_put(s->b.session, s->b.index, absent.bytes, 8, &value, 8), FAR_ERR_CORRUPT);
    assert_int_equal(delete_key(&s->b, absent), FAR_ERR_CORRUPT);
    assert_int_equal(far_index_pairs(s->a.session, s->a.index, no_pair, NULL), FAR_ERR_CORRUPT);
    assert_int_equal(far_index_usage(s->a.session, s->a.index, &usage), FAR_ERR_CORRUPT);
    char said[256] = "";
    assert_int_equal(far_index_check(s->c.session, s->c.index, keep_problem, said), 1);
    assert_non_null(strstr(said, "comes back to"));
}


/* (shard_follow: none of these calls ends.) */
static void chains_that_go_round_told(const told *told) {
    stage s;
    open_full(&s, told);
    chain c = chain_of(&s, 1);
    for (unsigned from = 1; from <= c.count; from++)
        for (unsigned to = 0; to < from; to++) {
            uint64_t *word = world_bytes(s.world, c.link[from]), sound = *word;
            *word = c.node[to];
            all_say_so(&s);
            *word = sound;
        }
    for (uint64_t n = 1; n <= KEYS; n++)
        assert_int_equal(get(&s.b, number(n)), n);
    stage_close(&s);
}
TOLD_OF_ALL(chains_that_go_round);


/* Nothing is taken out of a chain that goes round and given back: a node that is behind itself again and again, those
 * of a larger circle twice. The link from that node leads to the first one. (prove_end) */
static void drain_along_a_circle_of(const told *told, unsigned nodes) {
    stage s;
    open_full(&s, told);
    chain c = chain_of(&s, 1);
    assert_true(c.count >= nodes);
    double_by(&s, &s.a);
    for (unsigned i = 0; i < 100 && phase(&s) != SHARD_DRAIN; i++)
        assert_true(far_session_call(s.a.session, FAR_STATS_OTHER, false, work_step, s.a.index) >= 0);
    assert_int_equal(phase(&s), SHARD_DRAIN);
    uint64_t *word = world_bytes(s.world, c.link[nodes]), sound = *word;
    *word = c.node[0];
    int broken = 0;
    for (unsigned i = 0; i < 100; i++)
        broken += far_session_call(s.a.session, FAR_STATS_OTHER, false, work_step, s.a.index) == FAR_ERR_CORRUPT;
    assert_true(broken > 0);
    assert_int_equal(phase(&s), SHARD_DRAIN);
    assert_int_equal(world_word(s.world, c.link[0]), c.node[0]);
    *word = sound;
    for (unsigned i = 0; i < 400 && phase(&s) != SHARD_STABLE; i++)
        assert_true(far_session_call(s.a.session, FAR_STATS_OTHER, false, work_step, s.a.index) >= 0);
    assert_int_equal(phase(&s), SHARD_STABLE);
    for (uint64_t n = 1; n <= KEYS; n++)
        assert_int_equal(get(&s.b, number(n)), n);
    stage_close(&s);
}


static void drain_along_a_circle_told(const told *told) {
    drain_along_a_circle_of(told, 1);
    drain_along_a_circle_of(told, 2);
}
TOLD_OF_ALL(drain_along_a_circle);


/* The root tells of a doubling to a version that no partition can have: operations and whoever works on the doubling say
 * so. (Without the largest version in shard_progress_addr: other words of the body count as a progress table, of more
 * chunks than fit any memory.) */
static void version_beyond_the_largest_told(const told *told) {
    static const unsigned versions[] = {SHARD_VERSIONS, SHARD_VERSIONS + 3, 63};
    for (unsigned i = 0; i < sizeof(versions) / sizeof(versions[0]); i++)
        for (unsigned phase = SHARD_GROW; phase <= SHARD_DRAIN; phase++) {
            stage s;
            open_stage(&s, told, 4, TOLD);
            put(&s.a, number(1), 1);
            uint64_t root = true_root(&s), *word = world_bytes(s.world, shard_state_of(s.a.index)->part[0].pcb);
            uint64_t *body = world_bytes(s.world, body_addr(&s.a));
            if (SHARD_BODY_PROGRESS + versions[i] < SHARD_BODY_WORDS)
                body[SHARD_BODY_PROGRESS + versions[i]] = body_addr(&s.a); /* what looks like a progress table */
            *word = shard_root_next(root, versions[i], phase, true, shard_root_stamp(root) + 1);
            assert_true(far_session_call(s.a.session, FAR_STATS_OTHER, false, refresh, s.a.index) >= 0);
            assert_int_equal(shard_root_d(root_of(&s.a)), versions[i]);
            for (uint64_t n = 1; n <= KEYS; n++)
                assert_int_equal(insert(&s.a, number(n), 7), FAR_ERR_CORRUPT);
            assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, false, work_step, s.a.index),
                             FAR_ERR_CORRUPT);
            stage_tear_down(&s);
        }
}
TOLD_OF_ALL(version_beyond_the_largest);


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shrink_that_cannot_be_called_off),
        cmocka_unit_test(broken_words),
        cmocka_unit_test(broken_number_of_a_body),
        cmocka_unit_test(other_addresses),
        cmocka_unit_test(shrink_along_a_circle),
        cmocka_unit_test(chains_that_go_round),
        cmocka_unit_test(drain_along_a_circle),
        cmocka_unit_test(version_beyond_the_largest),
        cmocka_unit_test(an_older_layout_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
