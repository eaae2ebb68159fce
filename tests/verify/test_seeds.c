/* Seeds of torture that found something once. Later changes shift what happens in them; they cost little and stay. And
 * some with small constants, without which few operations do not come to all parts of a kind. */
#include "verify/torture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>


static void stands(const far_torture *torture, uint64_t seed) {
    far_torture_result result = {0};
    assert_int_equal(far_torture_run(torture, seed, &result, stderr), 0);
    assert_int_equal(result.violations, 0);
    assert_int_equal(result.problems, 0);
    assert_int_equal(result.gave_up, 0);
}


/* As when they were found: defaults that seeds had got no options and no depth for then. */
static far_torture plain(const char *kind) {
    far_torture torture;
    far_torture_init(&torture);
    torture.kind = kind;
    torture.options = "";
    torture.depth = 1;
    return torture;
}


/* The sessions that opened or closed an index were lost on the way, and their word in the table of open indexes stayed:
 * drops of it waited for ever. */
static void lost_openers_hold_up_no_drop(void **state) {
    (void)state;
    far_torture torture = plain("smart");
    torture.key_space = 8;
    stands(&torture, 2376);
    torture.keys = "email";
    stands(&torture, 968);
    torture.keys = "prefix";
    stands(&torture, 2326);
    stands(&torture, 4499);
}


/* A block that a sweep had freed, unheard by its owner, was taken as part of a run. */
static void freed_blocks_do_not_come_back_to_their_old_owner(void **state) {
    (void)state;
    far_torture torture = plain("toy");
    torture.pool_bytes = 1 << 20;
    torture.memory_nodes = 1;
    torture.value_bytes[0] = 0;
    torture.value_bytes[1] = 20000;
    torture.key_space = 24;
    stands(&torture, 20302);
}


/* A handle gave up a block, with pages that a lost session had left in it, while a check counted: what the next sweep
 * would find by itself was told as lost. */
static void what_changes_hands_beside_a_check_is_not_lost(void **state) {
    (void)state;
    far_torture torture = plain("shard");
    torture.scans = false;
    stands(&torture, 424);
}


/* An index whose creator lost its session right after it was listed was taken for one that is gone. */
static void listed_indexes_are_not_collected(void **state) {
    (void)state;
    far_torture torture = plain("dolphin");
    torture.keys = "email";
    torture.atomic_bytes = 8;
    stands(&torture, 663);
}


/* Blocks that a half-replaced leaf named were freed since, and called broken; and a NULL was half replaced. */
static void dolphin_between_two_entries(void **state) {
    (void)state;
    far_torture torture = plain("dolphin");
    torture.keys = "email";
    torture.atomic_bytes = 64;
    torture.options = "leaf_slots=2,walk_slice=2,scan_batch=2,hot_updates=on";
    stands(&torture, 2336);
    torture.keys = "prefix";
    torture.options = "coverage=lastbyte,insert=cas";
    stands(&torture, 56);
}


static void some_stand(const char *kind, const char *keys, unsigned unit, uint64_t cache, const char *options) {
    far_torture torture;
    far_torture_init(&torture);
    torture.kind = kind;
    torture.keys = keys;
    torture.atomic_bytes = unit;
    torture.cache_bytes = cache;
    torture.options = options;
    for (uint64_t seed = 1; seed <= 6; seed++)
        stands(&torture, seed);
}


/* The adjuster of prefix lengths acts, segments of the skip table grow, walks take many slices. */
static void dart_with_small_constants(void **state) {
    (void)state;
    some_stand("dart", "email", 8, 1 << 20, "adjust_every=4,walk_slice=2,directory_bits=2");
    some_stand("dart", "prefix", 64, 1 << 20, "adjust_every=4,walk_slice=1,directory_bits=0,one_fingerprint=1");
}


/* Small leaves: splits, hops, merges and their repair with few keys; a cache that evicts all the time. */
static void chime_with_small_leaves(void **state) {
    (void)state;
    some_stand("chime", "email", 8, 2048, "span=12,hop=4,merge=sparse,walk_slice=1,patience=2");
    some_stand("chime", "prefix", 64, 4096, "span=12,hop=3,merge=sparse,walk_slice=2,hotspot=1K");
    some_stand("chime", "u64", 64, 1 << 20, "span=15,hop=4,merge=sparse,wrap=off,miss=bracket");
}


/* The cache evicts all the time, scans and walks go on after a few leaves, who waits takes a new pin. */
static void smart_with_small_constants(void **state) {
    (void)state;
    some_stand("smart", "email", 8, 2048, "walk_slice=2,scan_batch=1,patience=2");
    some_stand("smart", "prefix", 64, 4096, "walk_slice=2,scan_batch=2,patience=2,update=lock,merge=eager");
}


/* Few keys split, deepen, grow and merge; walks and scans go on after a few leaves. */
static void dolphin_with_small_constants(void **state) {
    (void)state;
    some_stand("dolphin", "email", 8, 2048, "leaf_slots=2,walk_slice=2,scan_batch=1,patience=2");
    some_stand("dolphin", "prefix", 64, 4096, "leaf_slots=4,walk_slice=1,scan_batch=2,patience=3,insert=ticket");
    some_stand("dolphin", "prefix", 8, 1 << 20, "leaf_slots=1,coverage=lastbyte,sync=exclusive,hints=off");
}


/* As over a network whose READs have no order: claims, deaths and cuts take messages, READs overtake each other. */
static void all_kinds_without_what_a_near_fabric_has(void **state) {
    (void)state;
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
            stands(&torture, seed);
    }
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lost_openers_hold_up_no_drop),
        cmocka_unit_test(what_changes_hands_beside_a_check_is_not_lost),
        cmocka_unit_test(listed_indexes_are_not_collected),
        cmocka_unit_test(freed_blocks_do_not_come_back_to_their_old_owner),
        cmocka_unit_test(dolphin_between_two_entries),
        cmocka_unit_test(dart_with_small_constants),
        cmocka_unit_test(chime_with_small_leaves),
        cmocka_unit_test(smart_with_small_constants),
        cmocka_unit_test(dolphin_with_small_constants),
        cmocka_unit_test(all_kinds_without_what_a_near_fabric_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
