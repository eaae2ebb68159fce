/* Options with which a few hundred operations reach all mechanisms of a kind: tables of the smallest size, and few
 * keys, so that operations conflict often. The table `small_indexes` has several rows of options for each kind. If the
 * caller gives no options, consecutive seeds use the rows of the kind in turn; the last seed of each round uses the
 * defaults of the kind. The seed also decides whether there are phases that delete all keys, because an empty index may
 * shrink. tests/verify/test_torture_coverage.c proves that every named point of every kind is reached. */
#include "verify/torture_run.h"

#include <string.h>

#define USUAL_OPS  200
#define HOT_KEYS   8   /* key space of most seeds */
#define MANY_KEYS  100 /* key space of every fourth seed, which makes larger structures */
#define MANY_DEPTH 4   /* operations in flight in every third seed; gets that are submitted together are merged */

typedef struct small_index { /* settings of one row; fields that are 0 keep the usual setting */
    const char *kind, *options;
    /* key set of this row; used only if the caller left the key set and the value sizes at their defaults. A row with
     * value_bytes is used only in this case. */
    const char *keys;
    uint64_t value_bytes, key_space, ops;
    /* RDWC (which merges concurrent operations on one key) is off, so operations of one compute node conflict at the
     * key */
    bool merge_nothing;
    unsigned checks;
    const char *lost_at;
} small_index;

#define WORDS(set) .keys = (set), .value_bytes = 8

/* A seed selects one of the settings of a kind: a row of this table, or the defaults. Unless the row sets a key space,
 * every fourth seed uses MANY_KEYS. Every third seed uses MANY_DEPTH. The number of settings of a kind (rows + 1) has
 * no common divisor with 12, so each setting meets each combination of both (test settings_meet_every_depth_and_size).
 */
static const small_index small_indexes[] = {
    {.kind = "chime", .options = "span=12,hop=2,merge=sparse", .key_space = 24},
    {.kind = "chime", .options = "span=12,hop=4,merge=sparse,walk_slice=2,hotspot=4K", .key_space = 100},
    {.kind = "chime",
     .options = "key_size=8,value_size=8,span=12,hop=2,merge=sparse,hotspot=4K",
     WORDS("u64"),
     .key_space = 24},
    {.kind = "chime",
     .options = "key_size=8,value_size=8,span=12,hop=4,merge=sparse,walk_slice=2",
     WORDS("u64"),
     .key_space = 100},
    {.kind = "chime", .options = "span=12,hop=4,merge=sparse", .key_space = 12, .merge_nothing = true},
    /* This row makes so many leaves that inner nodes split. */
    {.kind = "chime", .options = "span=12,hop=2,merge=empty", .key_space = 1000, .ops = 400},

    /* This row makes small segments and adjusts often. So the prefix length changes, and segments of the skip table
     * grow, are replaced by tables, and are collected. */
    {.kind = "dart", .options = "adjust_every=4,directory_bits=1,upkeep_batch=1", .keys = "prefix"},
    {.kind = "dart", .options = "adjust_every=4,directory_bits=0,upkeep_batch=1,segment_log=0", .keys = "prefix"},
    {.kind = "dart",
     .options =
         "adjust_every=4,directory_bits=0,upkeep_batch=1,walk_slice=2,masked_freeze=off,segment_log=0,one_by_one=2",
     .keys = "prefix"},
    {.kind = "dart",
     .options = "adjust_every=16,directory_bits=0,upkeep_batch=1,walk_slice=1,segment_log=1",
     .keys = "prefix",
     .key_space = 400,
     .ops = 400},
    {.kind = "dart",
     .options = "adjust_every=4,directory_bits=2,upkeep_batch=2,walk_slice=1,one_fingerprint=on",
     .keys = "email"},
    {.kind = "dart",
     .options = "masked_freeze=off,bucket=8,upkeep_batch=1,adjust_every=16",
     .key_space = 100,
     .merge_nothing = true},

    {.kind = "dolphin", .options = "leaf_slots=2,walk_slice=2,scan_batch=2,hot_updates=on", .keys = "seq"},
    {.kind = "dolphin", .options = "leaf_slots=4,insert=cas", .key_space = 4, .merge_nothing = true},
    /* In this row all keys are below one entry of the root, so that nodes grow. */
    {.kind = "dolphin", .options = "leaf_slots=1,walk_slice=4", .keys = "seq"},
    {.kind = "dolphin", .options = "leaf_slots=4,value_size=8", WORDS("seq")},
    /* In this row a leaf consists of several tearing granules. It is READ while its few keys are inserted and deleted,
     * so that readers observe values that are not written yet or are already removed. */
    {.kind = "dolphin",
     .options = "leaf_slots=8,hints=off",
     .key_space = 3,
     .ops = 1600,
     .merge_nothing = true,
     .checks = 150},
    /* In this row sessions are lost in the middle of a split, when one of the two new entries exists and the other does
     * not. */
    {.kind = "dolphin",
     .options = "leaf_slots=2,walk_slice=1",
     .keys = "prefix",
     .key_space = 100,
     .ops = 800,
     .lost_at = "dolphin:write_cut"},

    {.kind = "shard", .options = "partitions=1,bits=0,slots=2,l2_slots=1,load=15"},
    {.kind = "shard", .options = "partitions=2,bits=0,slots=2,l2_slots=1,load=95,afs=1"},
    {.kind = "shard",
     .options = "key_size=8,value_size=8,narrow=on,partitions=1,bits=0,slots=1,l2_slots=1,load=60",
     WORDS("seq")},
    {.kind = "shard",
     .options = "key_size=8,value_size=8,narrow=on,partitions=1,bits=0,slots=2,l2_slots=1,load=95,afs=1",
     WORDS("seq")},

    {.kind = "smart", .options = "walk_slice=2,scan_batch=2,merge=eager", .keys = "prefix"},
    {.kind = "smart", .options = "key_size=8,value_size=8,merge=eager", WORDS("u64")},
    {.kind = "smart", .options = "walk_slice=2,scan_batch=1,patience=2,merge=eager", .keys = "email"},
    {.kind = "smart",
     .options = "update=lock,merge=eager,node_types=1",
     .merge_nothing = true,
     .lost_at = "smart:locked"},
    /* In these rows scans READ one node or leaf at a time, as on mapped memory. The keys of the first row have 256
     * different last bytes, so their node becomes a DIR node, which such scans READ in parts. */
    {.kind = "smart", .options = "single_steps=on,merge=eager", .keys = "seq", .key_space = 400, .ops = 800},
    {.kind = "smart", .options = "single_steps=on,walk_slice=2,scan_batch=1,merge=eager,cache=off", .keys = "prefix"},
};


static const small_index *find_row(const char *kind, uint64_t seed) {
    uint64_t rows = 0, turn;
    for (size_t i = 0; i < sizeof(small_indexes) / sizeof(small_indexes[0]); i++)
        rows += strcmp(small_indexes[i].kind, kind) == 0;
    turn = seed % (rows + 1);
    for (size_t i = 0; i < sizeof(small_indexes) / sizeof(small_indexes[0]); i++)
        if (strcmp(small_indexes[i].kind, kind) == 0 && --turn == 0)
            return &small_indexes[i];
    return NULL;
}


static void apply_row(far_torture *torture, const small_index *row, bool free) {
    torture->options = row->options;
    torture->key_space = torture->key_space ? torture->key_space : row->key_space;
    torture->ops = torture->ops ? torture->ops : row->ops;
    torture->keys = row->keys && free ? row->keys : torture->keys;
    torture->rdwc = torture->rdwc && !row->merge_nothing;
    torture->checks = row->checks;
    torture->lost_at = row->lost_at;
    if (row->value_bytes)
        torture->value_bytes[0] = torture->value_bytes[1] = row->value_bytes;
}


void far_torture_choose_small(far_torture *torture, uint64_t seed) {
    far_torture usual;
    far_torture_init(&usual);
    torture->ebb = strcmp(torture->kind, "shard") == 0 && seed / 5 % 2;
    bool free = strcmp(torture->keys, usual.keys) == 0 && torture->value_bytes[0] == usual.value_bytes[0] &&
                torture->value_bytes[1] == usual.value_bytes[1];
    const small_index *row = torture->options ? NULL : find_row(torture->kind, seed);
    if (row && (free || !row->value_bytes))
        apply_row(torture, row, free);
    if (!torture->key_space)
        torture->key_space = seed % 4 ? HOT_KEYS : MANY_KEYS;
    if (!torture->ops)
        torture->ops = USUAL_OPS;
    if (!torture->depth)
        torture->depth = seed % 3 == 2 ? MANY_DEPTH : 1;
}
