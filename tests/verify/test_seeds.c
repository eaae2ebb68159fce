/* Torture seeds that found bugs in the past. Later changes of the code change the course of these runs, but they cost
 * little and are kept. The tests at the end use small constants, with which few operations reach all parts of a kind.
 */
#include "test.h"
#include "verify/torture.h"

#include <stdlib.h>
#include <string.h>


static void assert_seed_passes(const far_torture *torture, uint64_t seed) {
    far_torture_result result = {0};
    assert_int_equal(far_torture_run(torture, seed, &result, stderr), 0);
    assert_int_equal(result.violations, 0);
    assert_int_equal(result.problems, 0);
    assert_int_equal(result.gave_up, 0);
}


/* Makes the settings with which the seeds were found: at that time seeds did not choose options and depth. */
static far_torture plain(const char *kind) {
    far_torture torture;
    far_torture_init(&torture);
    torture.kind = kind;
    torture.options = "";
    torture.depth = 1;
    return torture;
}


/* Sessions were lost while they opened or closed an index, and words that they had written in far memory remained, so
 * drops of the index waited forever. */
TEST(sessions_lost_while_opening_an_index_do_not_block_its_drop) {
    far_torture torture = plain("smart");
    torture.key_space = 8;
    assert_seed_passes(&torture, 2376);
    torture.keys = "email";
    assert_seed_passes(&torture, 968);
    torture.keys = "prefix";
    assert_seed_passes(&torture, 2326);
    assert_seed_passes(&torture, 4499);
}


/* A collection had freed a block, its owner had not observed that, and took it as part of a large object. */
TEST(freed_blocks_do_not_come_back_to_their_old_owner) {
    far_torture torture = plain("toy");
    torture.pool_bytes = 1 << 20;
    torture.memory_nodes = 1;
    torture.value_bytes[0] = 0;
    torture.value_bytes[1] = 20000;
    torture.key_space = 24;
    assert_seed_passes(&torture, 20302);
}


/* While a check counted, a handle released a block that contained pages of a lost session. Memory that the next
 * collection would find was reported as leaked. */
TEST(blocks_that_change_owner_during_a_check_are_not_reported_leaked) {
    far_torture torture = plain("shard");
    torture.scans = false;
    assert_seed_passes(&torture, 424);
}


/* A session was lost right after it had entered a new index into the catalog, and the index was taken for a dropped
 * one. */
TEST(listed_indexes_are_not_collected) {
    far_torture torture = plain("dolphin");
    torture.keys = "email";
    torture.atomic_bytes = 8;
    assert_seed_passes(&torture, 663);
}


/* Blocks that a half-replaced leaf refers to were freed, and the check reported them as broken; and a NULL was half
 * replaced. */
TEST(dolphin_survives_failures_between_two_entries) {
    far_torture torture = plain("dolphin");
    torture.keys = "email";
    torture.atomic_bytes = 64;
    torture.options = "leaf_slots=2,walk_slice=2,scan_batch=2,hot_updates=on";
    assert_seed_passes(&torture, 2336);
    torture.keys = "prefix";
    torture.options = "coverage=lastbyte,insert=cas";
    assert_seed_passes(&torture, 56);
}


static void assert_some_seeds_pass(const char *kind, const char *keys, unsigned unit, uint64_t cache,
                                   const char *options) {
    far_torture torture;
    far_torture_init(&torture);
    torture.kind = kind;
    torture.keys = keys;
    torture.atomic_bytes = unit;
    torture.cache_bytes = cache;
    torture.options = options;
    for (uint64_t seed = 1; seed <= 6; seed++)
        assert_seed_passes(&torture, seed);
}


/* The prefix length is adjusted, segments of the skip table grow, and index walks take many slices. */
TEST(dart_with_small_constants) {
    assert_some_seeds_pass("dart", "email", 8, 1 << 20, "adjust_every=4,walk_slice=2,directory_bits=2");
    assert_some_seeds_pass("dart", "prefix", 64, 1 << 20,
                           "adjust_every=4,walk_slice=1,directory_bits=0,one_fingerprint=1");
}


/* Small leaves cause splits, hops, merges and their repair with few keys, and a small cache evicts all the time. */
TEST(chime_with_small_leaves) {
    assert_some_seeds_pass("chime", "email", 8, 2048, "span=12,hop=4,merge=sparse,walk_slice=1,patience=2");
    assert_some_seeds_pass("chime", "prefix", 64, 4096, "span=12,hop=3,merge=sparse,walk_slice=2,hotspot=1K");
    assert_some_seeds_pass("chime", "u64", 64, 1 << 20, "span=15,hop=4,merge=sparse,wrap=off,miss=bracket");
}


/* The cache evicts all the time, scans and walks continue after a few leaves, and waiting operations renew their pins.
 */
TEST(smart_with_small_constants) {
    assert_some_seeds_pass("smart", "email", 8, 2048, "walk_slice=2,scan_batch=1,patience=2");
    assert_some_seeds_pass("smart", "prefix", 64, 4096, "walk_slice=2,scan_batch=2,patience=2,update=lock,merge=eager");
}


/* Few keys cause splits, deeper trees, growth and merges; walks and scans continue after a few leaves. */
TEST(dolphin_with_small_constants) {
    assert_some_seeds_pass("dolphin", "email", 8, 2048, "leaf_slots=2,walk_slice=2,scan_batch=1,patience=2");
    assert_some_seeds_pass("dolphin", "prefix", 64, 4096,
                           "leaf_slots=4,walk_slice=1,scan_batch=2,patience=3,insert=ticket");
    assert_some_seeds_pass("dolphin", "prefix", 8, 1 << 20, "leaf_slots=1,coverage=lastbyte,sync=exclusive,hints=off");
}


/* A fabric like a network without ordered READs: control messages take round trips, and READs overtake each other. */
TEST(all_kinds_work_on_a_fabric_like_a_network) {
    static const char *const kinds[] = {"chime", "dart", "dolphin", "shard", "smart"};
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        far_torture torture;
        far_torture_init(&torture);
        torture.kind = kinds[i];
        torture.questions = true;
        torture.reads_in_order = false;
        torture.memory_nodes = 3;
        torture.scans = strcmp(kinds[i], "shard") != 0;
        for (uint64_t seed = 1; seed <= 4; seed++)
            assert_seed_passes(&torture, seed);
    }
}
