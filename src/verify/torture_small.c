/* Options with which a few hundred operations go through all that a kind does: tables as small as they can be. By
 * turns of the seed, where the caller has none of its own; every fifth seed has the defaults of the kind. And whether
 * there are times at which all keys go: an index that is empty may shrink. */
#include "verify/torture_run.h"

#include <string.h>

typedef struct small_index {
    const char *kind, *options;
    const char *keys; /* of these alone; NULL: any */
    uint64_t value_bytes;
    uint64_t key_space; /* 0: as usual */
} small_index;

static const small_index small_indexes[] = {
    {"dolphin", "leaf_slots=2,walk_slice=2,scan_batch=2,hot_updates=on", NULL, 0, 0},
    {"dolphin", "leaf_slots=4,insert=cas", NULL, 0, 0},
    {"dolphin", "leaf_slots=1,walk_slice=4", "seq", 0, 0}, /* all below one entry of the root: nodes that grow */
    {"dolphin", "leaf_slots=4,value_size=8", "seq", 8, 0},
    {"shard", "partitions=1,bits=0,slots=2,l2_slots=1,load=15", NULL, 0, 0},
    {"shard", "partitions=2,bits=0,slots=2,l2_slots=1,load=95,afs=1", NULL, 0, 0},
    {"shard", "key_size=8,value_size=8,narrow=on,partitions=1,bits=0,slots=1,l2_slots=1,load=60", "seq", 8, 0},
    {"shard", "key_size=8,value_size=8,narrow=on,partitions=1,bits=0,slots=2,l2_slots=1,load=95,afs=1", "seq", 8, 0},
    {"chime", "span=12,hop=2,merge=sparse", NULL, 0, 24},
    {"chime", "span=12,hop=4,merge=sparse,walk_slice=2,hotspot=4K", NULL, 0, 100},
    {"chime", "key_size=8,value_size=8,span=12,hop=2,merge=sparse,hotspot=4K", "u64", 8, 24},
    {"chime", "key_size=8,value_size=8,span=12,hop=4,merge=sparse,walk_slice=2", "u64", 8, 100},
};


void far_torture_choose_small(far_torture *torture, uint64_t seed) {
    far_torture usual;
    uint64_t turn = seed % 5, n = 0;
    far_torture_init(&usual);
    torture->ebb = strcmp(torture->kind, "shard") == 0 && seed / 5 % 2;
    bool free = strcmp(torture->keys, usual.keys) == 0 && torture->value_bytes[0] == usual.value_bytes[0] &&
                torture->value_bytes[1] == usual.value_bytes[1];
    for (size_t i = 0; i < sizeof(small_indexes) / sizeof(small_indexes[0]) && !torture->options; i++) {
        const small_index *small = &small_indexes[i];
        if (strcmp(small->kind, torture->kind) != 0 || ++n != turn || (small->keys && !free))
            continue;
        torture->options = small->options;
        torture->key_space = torture->key_space ? torture->key_space : small->key_space;
        torture->keys = small->keys ? small->keys : torture->keys;
        if (small->value_bytes) {
            torture->value_bytes[0] = torture->value_bytes[1] = small->value_bytes;
            torture->churn = false; /* its indexes get values of all sizes */
        }
    }
}
