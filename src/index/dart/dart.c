/* DART: a lock-free two-layer hashed radix tree for far memory. After the paper "DART" (a lock-free two-layer hashed
 * radix tree for disaggregated memory); README.md tells the protocol in short, docs/races/dart.md all of it, and what
 * differs and why. Here: options, create, open, close. */
#include "index/dart/dart.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>

#define SPARE_BYTES 6160 /* the largest node there is */
_Static_assert((2 + DART_KEY_MAX + 7) / 8 * 8 + 8 * DART_NODE_SLOTS_MAX == SPARE_BYTES, "a spare holds every node");


static int check_options(const far_index *index) {
    int64_t bucket = index->options[DART_OPTION_BUCKET];
    if (bucket & (bucket - 1))
        return far_fail(FAR_ERR_INVALID, "option bucket: %lld is no power of two", (long long)bucket);
    return 0;
}


static int alloc_zeroed(far_task *t, far_index *index, unsigned type, uint64_t bytes, far_addr *addr) {
    far_object object;
    int err = far_alloc(t, index, type, bytes, 0, FAR_ALLOC_ZERO, &object);
    *addr = object.addr;
    return err;
}


static int dart_create(far_task *t, far_index *index) {
    dart_super super = {.magic = DART_MAGIC, .bucket = (uint32_t)index->options[DART_OPTION_BUCKET]};
    uint64_t header = dart_header_word(0, DART_N256, false), bytes = dart_node_bytes(DART_N256, 0, super.bucket);
    far_object object;
    int err = check_options(index);
    memcpy(&super.hash_seed, index->secret, sizeof(super.hash_seed));
    if (err < 0 || (err = alloc_zeroed(t, index, DART_TYPE_NODE, bytes, &super.root)) < 0)
        return err;
    if (!index->options[DART_OPTION_LOCK_FREE] &&
        (err = alloc_zeroed(t, index, DART_TYPE_LOCKS, DART_LOCKS * 8, &super.locks)) < 0)
        return err;
    if (index->options[DART_OPTION_EST] && (err = dart_est_create(t, index, &super)) < 0)
        return err;
    if ((err = far_alloc(t, index, DART_TYPE_SUPER, sizeof(super), 0, 0, &object)) < 0)
        return err;
    index->descriptor = object.addr;
    far_write(t, super.root, &header, 8);
    far_write(t, object.addr, &super, sizeof(super));
    return far_wait(t);
}


static void read_options(dart_index *dart, const int64_t *options) {
    dart->hashed_nodes = options[DART_OPTION_HASHED_NODES];
    dart->lock_free = options[DART_OPTION_LOCK_FREE];
    dart->header_inline = options[DART_OPTION_HEADER_INLINE];
    dart->masked_freeze = options[DART_OPTION_MASKED_FREEZE];
    dart->rider = options[DART_OPTION_RIDER];
    dart->spec_write = options[DART_OPTION_SPEC_WRITE];
    dart->absorb = options[DART_OPTION_ABSORB];
    dart->shrink = options[DART_OPTION_SHRINK];
    dart->colocate = options[DART_OPTION_COLOCATE];
    dart->leaf_min = (unsigned)options[DART_OPTION_LEAF_MIN];
    dart->max_skip = (unsigned)options[DART_OPTION_MAX_SKIP];
    dart->max_key = (size_t)options[FAR_OPTION_MAX_KEY];
    dart->walk_slice = (unsigned)options[DART_OPTION_WALK_SLICE];
}


static int dart_open(far_task *t, far_index *index) {
    dart_index *dart = calloc(1, sizeof(*dart));
    if (!dart)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to open an index");
    far_read(t, index->descriptor, &dart->super, sizeof(dart->super));
    int err = far_wait(t);
    const dart_super *super = &dart->super;
    if (err >= 0 && ((super->magic != DART_MAGIC && super->magic != DART_MAGIC_OLD) ||
                     super->bucket != (uint64_t)index->options[DART_OPTION_BUCKET] || super->root == 0))
        err = far_fail(FAR_ERR_CORRUPT, "index '%s': its descriptor is broken", index->name);
    dart->root = super->root;
    dart->locks = super->locks;
    dart->bucket = super->bucket;
    read_options(dart, index->options);
    index->state = dart;
    if (err >= 0)
        err = dart_est_open(t, index);
    if (err < 0) {
        free(dart);
        index->state = NULL;
    }
    return err;
}


static void dart_close(far_index *index) {
    if (dart_of(index)->est)
        dart_est_close(index);
    free(index->state);
    index->state = NULL;
}


static void dart_leave(far_task *t, far_index *index) {
    if (dart_of(index)->est)
        dart_est_leave(t, index);
}


static int dart_epoch_hook(far_task *t, far_index *index, uint64_t epoch) {
    return dart_of(index)->est ? dart_est_epoch_hook(t, index, epoch) : 0;
}


static int dart_idle_hook(far_task *t, far_index *index) {
    return dart_of(index)->est ? dart_est_idle_hook(t, index) : 0;
}


static size_t dart_cache_bytes(far_index *index) {
    return dart_of(index)->est ? dart_est_cache_bytes(index) : 0;
}


#define SWITCH(option, initial, help)                                                                                  \
    { option, FAR_OPTION_BOOL, initial, 0, 1, NULL, help }

static const far_option_def options[] = {
    {"bucket", FAR_OPTION_NUMBER, 16, 8, 64, NULL, "slots of a bucket, a power of two"},
    SWITCH("hashed_nodes", 1, "read one bucket of a node, not all of it"),
    SWITCH("lock_free", 1, "off: writers lock nodes, to see what that costs"),
    SWITCH("header_inline", 1, "headers are read together with buckets"),
    SWITCH("masked_freeze", 1, "freeze by masked CAS where the pool has it"),
    SWITCH("rider", 1, "a change that meets a full or frozen node goes with its replacement"),
    SWITCH("spec_write", 1, "write the new node in the batch that freezes the old one"),
    SWITCH("absorb", 1, "an update that lost to another write is done"),
    SWITCH("shrink", 1, "rebuild, merge and remove nodes after deletes"),
    SWITCH("colocate", 1, "new nodes on the memory node of their parent; off: on another"),
    {"leaf_min", FAR_OPTION_NUMBER, 0, 0, 4096, NULL, "smallest leaf in bytes"},
    {"max_skip", FAR_OPTION_NUMBER, DART_SKIP_MAX, 1, DART_SKIP_MAX, NULL, "longest path that one slot compresses"},
    SWITCH("est", 1, "the express skip table: descents start near the leaf"),
    SWITCH("est_update", 1, "off: the skip table is not kept up to date by writes"),
    SWITCH("adjust", 1, "choose the prefix lengths of the skip table at run time"),
    {"express_cache", FAR_OPTION_NUMBER, 64 << 20, 0, 1ll << 40, NULL,
     "bytes of the cache of skip table entries, at most"},
    {"probe_width", FAR_OPTION_NUMBER, 2, 1, 4, NULL, "prefix lengths looked up at once, at most"},
    {"directory_bits", FAR_OPTION_NUMBER, 8, 0, 16, NULL,
     "log2 of the size of the skip table's directory at first; it grows with the index"},
    SWITCH("one_fingerprint", 0, "for tests: all fingerprints are the same"),
    {"adjust_every", FAR_OPTION_NUMBER, 8192, 1, 1 << 30, NULL,
     "operations of a handle before it first chooses prefix lengths; then more seldom, down to every 128th of that"},
    {"walk_slice", FAR_OPTION_NUMBER, 2048, 1, 1 << 20, NULL, "leaves that a walk or a check looks at under one pin"},
    {"upkeep_batch", FAR_OPTION_NUMBER, 16, 1, DART_WISHES_MAX, NULL,
     "nodes that wait for each other to be registered in the skip table; 1: all nodes are, each at once"},
    {"slot_cache", FAR_OPTION_NUMBER, 64 << 20, 0, 1ll << 40, NULL,
     "bytes of the cache of hot keys' slots, at most; a quarter of the byte budget at most"},
    {"scan_cache", FAR_OPTION_NUMBER, 64 << 20, 0, 1ll << 40, NULL,
     "bytes of what scans keep of the tree, at most; an eighth of the byte budget at most"},
    {"segment_log", FAR_OPTION_NUMBER, 6, 0, 8, NULL,
     "for tests: log2 of the groups that a segment of the skip table has before a table takes its place"},
    {0},
};

static const far_type types[DART_TYPES] = {
    [DART_TYPE_SUPER] = {.name = "descriptor", .align = 64},
    [DART_TYPE_NODE] = {.name = "node", .align = 16, .extra_epochs = DART_EXTRA_EPOCHS},
    [DART_TYPE_SPARE] = {.name = "spare", .align = 16, .extra_epochs = DART_EXTRA_EPOCHS},
    [DART_TYPE_LEAF] = {.name = "leaf", .align = 16, .swapped = true, .extra_epochs = DART_LEAF_EPOCHS},
    [DART_TYPE_LOCKS] = {.name = "locks", .align = 64},
    [DART_TYPE_EST_DIRECTORY] = {.name = "directory", .align = 64},
    [DART_TYPE_EST_SEGMENT] = {.name = "segment", .align = 64, .extra_epochs = DART_SEGMENT_EPOCHS},
    [DART_TYPE_LIST] = {.name = "list", .align = 64},
};

/* To finish the replacement of a frozen node, and of the one above it, in a full pool. */
static const far_reserve reserve[] = {{DART_TYPE_SPARE, SPARE_BYTES, 2}};

const far_index_kind far_dart_kind = {
    .name = "dart",
    .what_for = "variable-size keys, little compute-side memory",
    .options = options,
    .max_key = DART_KEY_MAX,
    .types = types,
    .type_count = DART_TYPES,
    .reserve = reserve,
    .reserve_count = sizeof(reserve) / sizeof(reserve[0]),
    .create = dart_create,
    .open = dart_open,
    .leave = dart_leave,
    .close = dart_close,
    .get = dart_get,
    .put = dart_put,
    .remove = dart_remove,
    .scan = dart_scan,
    .get_many = dart_get_many,
    .walk = dart_walk,
    .check = dart_check,
    .usage = dart_usage,
    .cache_bytes = dart_cache_bytes,
    .epoch_hook = dart_epoch_hook,
    .idle_hook = dart_idle_hook,
};
