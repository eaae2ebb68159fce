/* Proves that walks, checks and usage counts return the same results in slices of a few nodes as in one slice, and that
 * an adjustment of DART which normally follows many operations can be configured to follow a few. */
#include "../support/world.h"
#include "base/random.h"
#include "index/dart/skiptable/skiptable.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

#define KEYS    200
#define KEY_MAX 12

typedef struct key {
    uint8_t bytes[KEY_MAX];
    size_t length;
} key;

static key keys[KEYS];
static far_sim_world *world;
static far_pool *pool;
static far_session *session;
static far_index *map;


/* Many keys are prefixes of others, and the bytes 0 and 255 occur. */
static void make_keys(void) {
    static const uint8_t alphabet[] = {0, 'a', 'b', 255};
    far_random random;
    far_random_seed(&random, 7);
    for (unsigned i = 0; i < KEYS; i++) {
        keys[i].length = 1 + far_random_below(&random, KEY_MAX);
        for (size_t k = 0; k < keys[i].length; k++)
            keys[i].bytes[k] = alphabet[far_random_below(&random, sizeof(alphabet))];
    }
}


static void open_kind(const char *kind, const char *options) {
    char uri[WORLD_URI];
    world_uri(uri, "seed=1,size=32M,memory_nodes=2,faults=none");
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    pool_options.rdwc = -1;
    make_keys();
    world = world_join(uri, &pool_options, &pool, &session);
    assert_int_equal(far_index_create(session, "map", kind, options, &map), 0);
    for (unsigned i = 0; i < KEYS; i++)
        assert_int_equal(far_put(session, map, keys[i].bytes, keys[i].length, keys[i].bytes, keys[i].length), 0);
    far_sim_sleep(world, 20000000);
}


static void close_pool(void) {
    world_assert_nothing_leaked(session);
    world_assert_no_checker_error(world);
    far_index_close(map);
    far_session_close(session);
    far_pool_close(pool);
}


/* Proves that every object is reported, and counted once, at whatever leaf a slice ends. Fails if a slice begins at
 * another place than where the previous one has ended, or if a node at that place is counted twice. */
static void assert_slices_agree(const char *kind, const char *more) {
    static const unsigned slices[] = {1000, 2, 3, 7};
    far_usage whole = {0}, usage;
    for (unsigned slice = 0; slice < sizeof(slices) / sizeof(slices[0]); slice++) {
        char options[64];
        snprintf(options, sizeof(options), "walk_slice=%u%s", slices[slice], more);
        open_kind(kind, options);
        assert_int_equal(far_index_check(session, map, fail_at_problem, NULL), 0);
        assert_int_equal(far_index_usage(session, map, &usage), 0);
        if (slice == 0)
            whole = usage;
        assert_true(usage.keys > KEYS / 2);
        assert_true(usage.keys == whole.keys && usage.key_bytes == whole.key_bytes);
        assert_int_equal(usage.value_bytes, whole.value_bytes);
        assert_int_equal(usage.pool_bytes, whole.pool_bytes);
        close_pool();
    }
}


TEST(dart_slices) {
    assert_slices_agree("dart", ",directory_bits=3");
}


TEST(chime_slices) {
    assert_slices_agree("chime", ",span=12,hop=4");
}


TEST(smart_slices) {
    assert_slices_agree("smart", "");
}


TEST(dolphin_slices) {
    assert_slices_agree("dolphin", ",leaf_slots=2");
    assert_slices_agree("dolphin", "");
}


static uint64_t count_entries_below(uint64_t word, unsigned length) {
    uint64_t count = 0;
    const uint64_t *slots = word ? world_bytes(world, dart_word_addr(word)) : NULL;
    for (unsigned i = 0; dart_is_table(word) && i < DART_TABLE_WORDS; i++)
        count += count_entries_below(slots[i], length);
    for (unsigned s = 0; word && !dart_is_table(word) && s < DART_EST_GROUP_SLOTS << dart_directory_log_groups(word);
         s++) {
        if (!dart_est_is_committed(slots[s]))
            continue;
        const dart_header *header = world_bytes(world, dart_word_addr(slots[s]));
        count += dart_header_depth(header) - dart_est_delta(slots[s]) == length;
    }
    return count;
}


static uint64_t count_entries_of_length(unsigned length) {
    uint64_t count = 0;
    const dart_est *est = dart_est_of(map);
    for (unsigned i = 0; i < 1u << est->bits; i++)
        count += count_entries_below(world_word(world, dart_dir_slot_at(est, i).addr), length);
    return count;
}


/* Proves that after a few operations the prefix lengths follow the keys, that a traversal in many slices fills the skip
 * table, and that no entries of dropped lengths remain. Fails if that traversal does not continue, or starts again in
 * each slice. */
TEST(dart_adjusts_after_few_operations) {
    char back[KEY_MAX];
    for (unsigned slice = 1; slice < 6; slice += 4) {
        char options[64];
        snprintf(options, sizeof(options), "adjust_every=64,walk_slice=%u,directory_bits=3", slice);
        open_kind("dart", options);
        const dart_est *est = dart_est_of(map);
        for (unsigned round = 0; round < 400 && est->adjust.next_adjustment < 4096; round++) {
            const key *k = &keys[round % KEYS];
            assert_int_equal(far_get(session, map, k->bytes, k->length, back, sizeof(back), NULL), 0);
            far_sim_sleep(world, 1000000);
        }
        far_sim_sleep(world, 100000000);
        assert_int_equal(est->adjust.phase, DART_ADJUST_IDLE);
        const dart_list *list = dart_est_list(dart_est_of(map));
        assert_true(list->generation >= 4);
        assert_true(list->lookup_count > 0 && list->lookup_count == list->active_count);
        assert_memory_equal(list->lookup, list->active, list->lookup_count);
        for (unsigned l = 1; l <= KEY_MAX; l++) {
            bool is_there = memchr(list->lookup, (int)l, list->lookup_count);
            assert_true(is_there ? count_entries_of_length(l) > 0 : count_entries_of_length(l) == 0);
        }
        for (unsigned i = 0; i < KEYS; i++)
            assert_int_equal(far_get(session, map, keys[i].bytes, keys[i].length, back, sizeof(back), NULL), 0);
        close_pool();
    }
}
