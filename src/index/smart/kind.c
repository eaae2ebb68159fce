/* The kind "smart" after "SMART: A High-Performance Adaptive Radix Tree for Disaggregated Memory" (OSDI 2023): its
 * options, object types, create, open and close, and the table of its functions. The index is a radix tree of lock-free
 * internal nodes over one leaf per key, with a cache of internal nodes in each compute node. README.md in this folder
 * explains the protocol. */
#include "base/error.h"
#include "index/smart/smart.h"

#include <stdlib.h>
#include <string.h>


static uint64_t root_bytes(unsigned stripes) {
    return (sizeof(smart_root) + stripes * 8ull + 15) / 16 * 16;
}


/* Adds the WRITE of one stripe of the root. A stripe consists of slots, which are bound and have no child, and of the
 * node locks after the slots. */
static int write_stripe(far_task *t, far_addr stripe, unsigned number, unsigned stripes) {
    uint64_t bytes = smart_stripe_bytes(stripes), *words = far_scratch(t, bytes);
    if (!words)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to create an index");
    memset(words, 0, bytes);
    for (unsigned byte = number; byte < SMART_ROOT_SLOTS; byte += stripes)
        words[byte / stripes] = smart_tombstone(byte);
    far_write(t, stripe, words, bytes);
    return 0;
}


/* Creates the index. It frees nothing on failure, because the pool frees all objects of an index that was never
 * published. */
static int smart_create(far_task *t, far_index *index) {
    unsigned stripes = far_task_nodes(t);
    uint64_t bytes = root_bytes(stripes);
    smart_root *root = far_scratch(t, bytes);
    if (!root)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to create an index");
    memset(root, 0, bytes);
    root->magic = SMART_MAGIC;
    root->stripes = stripes;
    far_object object;
    int err;
    for (unsigned i = 0; i < stripes; i++) {
        if ((err = far_alloc(t, index, SMART_TYPE_STRIPE, smart_stripe_bytes(stripes), i, FAR_ALLOC_ON_NODE, &object)) <
                0 ||
            (err = write_stripe(t, object.addr, i, stripes)) < 0)
            return err;
        root->stripe[i] = object.addr;
    }
    if ((err = far_alloc(t, index, SMART_TYPE_ROOT, bytes, 0, 0, &object)) < 0)
        return err;
    far_index_set_descriptor(index, object.addr);
    far_write(t, object.addr, root, bytes);
    return far_wait(t);
}


static int read_root(far_task *t, far_index *index, smart_state *st) {
    smart_root root;
    far_read(t, index->descriptor, &root, sizeof(root));
    int err = far_wait(t);
    if (err < 0)
        return err;
    if (root.magic != SMART_MAGIC || root.stripes != far_task_nodes(t))
        return far_fail(FAR_ERR_CORRUPT, "index '%s': its root is corrupt", index->name);
    st->stripes = (unsigned)root.stripes;
    far_read(t, index->descriptor + sizeof(root), st->stripe, st->stripes * 8ull);
    return far_wait(t);
}


static void smart_close(far_index *index) {
    smart_state *st = index->state;
    smart_merge_queue_free(st->merge_queue);
    smart_cache_free(st->cache);
    smart_redo_pool_free(st->redo_pool);
    free(st);
    index->state = NULL;
}


static int smart_open(far_task *t, far_index *index) {
    smart_state *st = calloc(1, sizeof(*st));
    if (!st || !(st->merge_queue = smart_merge_queue_new()) || !(st->redo_pool = smart_redo_pool_new(index))) {
        if (st)
            smart_merge_queue_free(st->merge_queue);
        free(st);
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to open an index");
    }
    const int64_t *options = index->options;
    st->paper_layout = options[SMART_OPTION_LAYOUT] != 0;
    st->update = (unsigned)options[SMART_OPTION_UPDATE];
    st->in_place = (unsigned)options[SMART_OPTION_IN_PLACE];
    st->node_types = (unsigned)options[SMART_OPTION_NODE_TYPES];
    st->spread_nodes = options[SMART_OPTION_PLACE] == 0;
    st->merge_eagerly = options[SMART_OPTION_MERGE] == SMART_MERGE_EAGER;
    st->rear_lock = options[SMART_OPTION_REAR_LOCK] != 0;
    st->node_locks = options[SMART_OPTION_LOCKFREE_NODES] == 0;
    st->path_compression = options[SMART_OPTION_PATH_COMPRESSION] != 0;
    st->walk_slice = (unsigned)options[SMART_OPTION_WALK_SLICE];
    st->scan_batch = (unsigned)options[SMART_OPTION_SCAN_BATCH];
    st->attempts_per_pin = (unsigned)options[SMART_OPTION_PATIENCE];
    /* On mapped memory a round trip costs so little that READs in advance would save nothing. Single steps rely on slot
     * words without the header of the node, so a salvage does without them. */
    st->single_steps = !index->lenient && (options[SMART_OPTION_SINGLE_STEPS] == SMART_SINGLE_STEPS_AUTO
                                               ? far_task_fabric(t)->at_once
                                               : options[SMART_OPTION_SINGLE_STEPS] == SMART_SINGLE_STEPS_ON);
    uint64_t value_size = (uint64_t)options[FAR_OPTION_VALUE_SIZE];
    /* VI leaves are not counted as leaves that are never replaced, because an update in place that finds no memory for
     * its redo record replaces the leaf. */
    unsigned leaf_kind = value_size ? smart_kind_for(st, 0, value_size) : SMART_VR;
    st->never_replaces = leaf_kind == SMART_C8 || leaf_kind == SMART_VW;
    uint64_t key_size = (uint64_t)options[FAR_OPTION_KEY_SIZE];
    st->has_fingerprints = key_size && value_size;
    if (st->has_fingerprints)
        st->leaf_class =
            smart_class_for(smart_leaf_bytes(smart_kind_for(st, key_size, value_size), key_size, value_size));
    uint64_t secret[4];
    memcpy(secret, index->secret, sizeof(secret));
    st->hash_base = secret[0] % (SMART_HASH_PRIME - 1024) + 512;
    st->chk_seed = secret[1];
    st->tag = secret[2] >> 25;
    index->state = st;
    int err = read_root(t, index, st);
    if (err >= 0 && options[SMART_OPTION_CACHE] && !index->lenient) /* the cache relies on sound slots */
        err = smart_cache_new(index, options[SMART_OPTION_EVICTION] == SMART_EVICT_FIFO, &st->cache);
    smart_merge_queue_set_budget(st->merge_queue, st->cache);
    if (err < 0)
        smart_close(index);
    return err;
}


static const char *const layouts[] = {"adaptive", "paper", NULL};
static const char *const updates[] = {"word", "lock", "rcu", NULL};
static const char *const evictions[] = {"clock", "fifo", NULL};
static const char *const places[] = {"spread", "near", NULL};
static const char *const merges[] = {"delayed", "eager", NULL};
static const char *const single_steps[] = {"auto", "on", "off", NULL};

static const far_option_def options[] = {
    {"layout", FAR_OPTION_CHOICE, 0, 0, 0, layouts,
     "internal nodes: sized by their number of children, or the paper's preallocated NODE_256"},
    {"update", FAR_OPTION_CHOICE, SMART_UPDATE_WORD, 0, 0, updates,
     "8-byte values by one WRITE, others in place; all in place under the leaf's lock; all by a new leaf"},
    {"in_place", FAR_OPTION_NUMBER, 1024, 0, 4096, NULL, "longest value that is updated in place, in bytes"},
    {"node_types", FAR_OPTION_NUMBER, 10, 1, 10, NULL,
     "number of different READ sizes for list nodes; 1: always the whole node"},
    {"cache", FAR_OPTION_BOOL, 1, 0, 1, NULL, "cache internal nodes on the compute side"},
    {"eviction", FAR_OPTION_CHOICE, SMART_EVICT_CLOCK, 0, 0, evictions, "which node leaves a full cache first"},
    {"place", FAR_OPTION_CHOICE, 0, 0, 0, places,
     "new internal nodes: spread over the memory nodes, or on their parent's memory node"},
    {"merge", FAR_OPTION_CHOICE, SMART_MERGE_DELAYED, 0, 0, merges,
     "nodes left with one child are merged after a delay, or at once"},
    {"rear_lock", FAR_OPTION_BOOL, 1, 0, 1, NULL,
     "release a leaf's lock with the WRITE of its content; off: in a round trip of its own"},
    {"lockfree_nodes", FAR_OPTION_BOOL, 1, 0, 1, NULL,
     "change slots by CAS alone; off: under a lock of the node as well"},
    {"path_compression", FAR_OPTION_BOOL, 1, 0, 1, NULL,
     "no node for a byte in which no two keys differ; off: a node for every byte of a common prefix"},
    {"walk_slice", FAR_OPTION_NUMBER, 512, 2, 1 << 20, NULL, "leaves that a walk or a check visits under one pin"},
    {"scan_batch", FAR_OPTION_NUMBER, SMART_SCAN_BATCH_MAX, 1, SMART_SCAN_BATCH_MAX, NULL,
     "leaves that a scan READs in one batch"},
    {"patience", FAR_OPTION_NUMBER, 12, 2, 1000, NULL,
     "attempts at a lock, or at a leaf under change, before the pin is renewed and the search repeated"},
    {"single_steps", FAR_OPTION_CHOICE, SMART_SINGLE_STEPS_AUTO, 0, 0, single_steps,
     "scans READ one node or leaf at a time: on mapped memory only, always, or never"},
    {0},
};

static const far_type types[SMART_TYPES] = {
    [SMART_TYPE_ROOT] = {.name = "root", .align = 16},
    [SMART_TYPE_STRIPE] = {.name = "stripe", .align = 64},
    [SMART_TYPE_NODE] = {.name = "node", .align = 32, .extra_epochs = SMART_NODE_EPOCHS},
    [SMART_TYPE_LEAF] = {.name = "leaf", .align = 32},
    [SMART_TYPE_REDO] = {.name = "redo", .align = 32},
};

static const char *const private_options[] = {"walk_slice", "scan_batch", "patience", "single_steps", NULL};

const far_index_kind far_smart_kind = {
    .name = "smart",
    .what_for = "skewed updates and point reads of ordered data, with ample cache",
    .options = options,
    .private_options = private_options,
    .max_key = SMART_KEY_MAX,
    .types = types,
    .type_count = SMART_TYPES,
    .create = smart_create,
    .open = smart_open,
    .close = smart_close,
    .get = smart_get,
    .get_many = smart_get_many,
    .put = smart_put,
    .remove = smart_remove,
    .scan = smart_scan,
    .walk = smart_walk,
    .check = smart_check,
    .usage = smart_usage,
    .object_keys = smart_object_keys,
    .cache_bytes = smart_cache_bytes,
    .idle_hook = smart_run_due_merge,
};
