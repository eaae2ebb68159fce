/* DART: a lock-free two-layer hashed radix tree for far memory, after the paper "DART: A Lock-free Two-layer Hashed ART
 * Index for Disaggregated Memory". README.md teaches the protocol and lists the differences from the paper;
 * docs/races/dart.md lists the races. This file defines the kind: its options, and create, open and close. */
#include "base/error.h"
#include "index/dart/dart.h"

#include <stdlib.h>
#include <string.h>

static int check_options(const far_index *index) {
    int64_t bucket = index->options[DART_OPTION_BUCKET];
    if (bucket & (bucket - 1))
        return far_fail(FAR_ERR_INVALID, "option bucket: %lld is not a power of two", (long long)bucket);
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
    uint64_t header = dart_header_word(0, DART_N256), bytes = dart_node_bytes(DART_N256, 0, super.bucket);
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
    dart->one_by_one = (dart_one_by_one)options[DART_OPTION_ONE_BY_ONE];
    dart->walk_slice = (unsigned)options[DART_OPTION_WALK_SLICE];
}


static int dart_open(far_task *t, far_index *index) {
    dart_index *dart = calloc(1, sizeof(*dart));
    if (!dart)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory to open an index");
    far_read(t, index->descriptor, &dart->super, sizeof(dart->super));
    int err = far_wait(t);
    const dart_super *super = &dart->super;
    if (err >= 0 && ((super->magic != DART_MAGIC && super->magic != DART_MAGIC_OLD) ||
                     super->bucket != (uint64_t)index->options[DART_OPTION_BUCKET] || super->root == 0))
        err = far_fail(FAR_ERR_CORRUPT, "index '%s': its descriptor is damaged, or does not match the option bucket",
                       index->name);
    dart->root = super->root;
    dart->locks = super->locks;
    dart->bucket = super->bucket;
    read_options(dart, index->options);
    index->state = dart;
    /* the tree is whole without the skip table, which may be damaged */
    if (err >= 0 && !index->lenient)
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
    {"bucket", FAR_OPTION_NUMBER, 16, 8, 64, NULL, "slots in a bucket of a node, a power of two"},
    SWITCH("hashed_nodes", 1, "read one bucket of a node instead of the whole node"),
    SWITCH("lock_free", 1, "off: writers lock nodes, to measure the cost of locks"),
    SWITCH("header_inline", 1, "read node headers together with buckets"),
    SWITCH("masked_freeze", 1, "freeze nodes by masked CAS if the pool's fabric supports it"),
    SWITCH("rider", 1, "a write that meets a full or frozen node is made with the replacement of the node"),
    SWITCH("spec_write", 1, "write the new node in the batch that freezes the old one"),
    SWITCH("absorb", 1, "an update that loses its CAS to another update is complete without a retry"),
    SWITCH("shrink", 1, "rebuild, merge and remove nodes after deletes"),
    SWITCH("colocate", 1, "allocate new nodes on the memory node of their parent; off: on another one"),
    {"leaf_min", FAR_OPTION_NUMBER, 0, 0, 4096, NULL, "smallest leaf in bytes"},
    {"max_skip", FAR_OPTION_NUMBER, DART_SKIP_MAX, 1, DART_SKIP_MAX, NULL,
     "maximal number of key bytes that one slot skips"},
    SWITCH("est", 1, "the express skip table: descents start near the leaf"),
    SWITCH("est_update", 1, "off: writes do not update the skip table; it is built once"),
    SWITCH("adjust", 1, "choose the prefix lengths of the skip table at run time"),
    {"express_cache", FAR_OPTION_NUMBER, 64 << 20, 0, 1ll << 40, NULL,
     "maximal bytes of the cache of skip table entries"},
    {"probe_width", FAR_OPTION_NUMBER, 2, 1, 4, NULL,
     "maximal number of prefix lengths that the first lookup reads at once"},
    {"directory_bits", FAR_OPTION_NUMBER, 8, 0, 16, NULL,
     "log2 of the initial size of the skip table's directory, which grows with the index"},
    SWITCH("one_fingerprint", 0, "for tests: give all skip table entries the same fingerprint"),
    {"adjust_every", FAR_OPTION_NUMBER, 8192, 1, 1 << 30, NULL,
     "operations of a handle before it first chooses prefix lengths; the interval then doubles, up to 128 times this"},
    {"walk_slice", FAR_OPTION_NUMBER, 2048, 1, 1 << 20, NULL, "leaves that a walk or a check visits under one pin"},
    {"upkeep_batch", FAR_OPTION_NUMBER, 16, 1, DART_REGISTRATIONS_MAX, NULL,
     "number of nodes that are registered in the skip table together; 1: register each node immediately"},
    {"slot_cache", FAR_OPTION_NUMBER, 64 << 20, 0, 1ll << 40, NULL,
     "maximal bytes of the cache of hot keys' slots; never more than a quarter of the byte budget"},
    {"scan_cache", FAR_OPTION_NUMBER, 64 << 20, 0, 1ll << 40, NULL,
     "maximal bytes of the scan cache; never more than an eighth of the byte budget"},
    {"segment_log", FAR_OPTION_NUMBER, 6, 0, 8, NULL,
     "for tests: log2 of the number of groups of a full skip table segment that is replaced by a table"},
    {"one_by_one", FAR_OPTION_NUMBER, DART_ONE_BY_ONE_IF_MAPPED, DART_ONE_BY_ONE_NEVER, DART_ONE_BY_ONE_ALWAYS, NULL,
     "for tests: scans read objects one by one instead of in batches: 0 never, 1 if the memory is mapped, 2 always"},
    {0},
};

static const far_type types[DART_TYPES] = {
    [DART_TYPE_SUPER] = {.name = "descriptor", .align = 64},
    [DART_TYPE_NODE] = {.name = "node", .align = 16, .extra_epochs = DART_EXTRA_EPOCHS},
    [DART_TYPE_LEAF] = {.name = "leaf", .align = 16, .extra_epochs = DART_LEAF_EPOCHS},
    [DART_TYPE_LOCKS] = {.name = "locks", .align = 64},
    [DART_TYPE_EST_DIRECTORY] = {.name = "directory", .align = 64},
    [DART_TYPE_EST_SEGMENT] = {.name = "segment", .align = 64, .extra_epochs = DART_SEGMENT_EPOCHS},
    [DART_TYPE_LIST] = {.name = "list", .align = 64},
};

/* Options for tests. They turn off an optimisation, to measure its effect, or make a rare path likely. */
static const char *const private_options[] = {
    "header_inline", "masked_freeze", "rider",       "spec_write",      "absorb",       "shrink",     "colocate",
    "leaf_min",      "max_skip",      "probe_width", "one_fingerprint", "adjust_every", "walk_slice", "upkeep_batch",
    "segment_log",   "one_by_one",    NULL};

const far_index_kind far_dart_kind = {
    .name = "dart",
    .what_for = "variable-size keys, little compute-side memory",
    .options = options,
    .private_options = private_options,
    .max_key = DART_KEY_MAX,
    .types = types,
    .type_count = DART_TYPES,
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
    .object_keys = dart_object_keys,
    .cache_bytes = dart_cache_bytes,
    .epoch_hook = dart_epoch_hook,
    .idle_hook = dart_idle_hook,
};
