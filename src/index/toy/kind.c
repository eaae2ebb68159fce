/* The toy map is the smallest complete index, an example for authors of other kinds. This file has its options, object
 * types, create, open and close, and the table of its functions. src/index/README.md walks through all files of the
 * folder.
 *
 * The map is a fixed table of slots. Each slot names an immutable bucket with all pairs of keys that hash to the slot.
 * A write builds a new bucket and makes the slot name it by one CAS. So writers need no locks, and a client that fails
 * before its CAS leaves nothing but an unreachable bucket, which a collection frees.
 *
 * Round trips: a get takes 2 and a write 3, which are READ slot, READ bucket, {WRITE bucket, CAS slot}. With locks=on
 * taking the lock is one more, and the slot is written together with the unlock. */
#include "base/error.h"
#include "index/toy/toy.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>


static unsigned slot_bytes(const far_index *index) {
    bool locks = index->options[TOY_OPTION_LOCKS] || index->options[TOY_OPTION_BROKEN] == TOY_FORGOTTEN_LOCK;
    return locks ? 16 : 8;
}


/* create frees nothing when it fails, because the pool frees all objects of an index that was never published. */
static int toy_create(far_task *t, far_index *index) {
    uint64_t slots = (uint64_t)index->options[TOY_OPTION_SLOTS];
    const uint64_t most = far_object_bytes_max(index->pool), bytes_in_all = slots * slot_bytes(index);
    unsigned nodes = far_task_nodes(t), stripes = slots < nodes ? (unsigned)slots : nodes;
    if (stripes < bytes_in_all / most)
        stripes = (unsigned)(bytes_in_all / most);
    if (stripes > FAR_NODES_MAX)
        return far_fail(FAR_ERR_INVALID, "option slots: the pool is too small for %llu slots",
                        (unsigned long long)slots);
    uint64_t root_bytes = toy_round(sizeof(toy_root) + stripes * 8ull, 16);
    if (slots & (slots - 1))
        return far_fail(FAR_ERR_INVALID, "option slots: %llu is not a power of two", (unsigned long long)slots);
    toy_root *root = far_scratch(t, root_bytes);
    if (!root)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to create an index");
    memset(root, 0, root_bytes);
    root->magic = TOY_MAGIC;
    root->slots = slots;
    root->stripes = stripes;
    root->slot_bytes = slot_bytes(index);
    far_object object;
    int err;
    for (unsigned i = 0; i < stripes; i++) {
        uint64_t bytes = (slots + stripes - 1) / stripes * root->slot_bytes;
        if ((err = far_alloc(t, index, TOY_TYPE_STRIPE, bytes, i % nodes, FAR_ALLOC_ZERO | FAR_ALLOC_ON_NODE,
                             &object)) < 0)
            return err;
        root->stripe[i] = object.addr;
    }
    if ((err = far_alloc(t, index, TOY_TYPE_ROOT, root_bytes, 0, 0, &object)) < 0)
        return err;
    index->descriptor = object.addr;
    far_write(t, object.addr, root, root_bytes);
    return far_wait(t);
}


static int read_root(far_task *t, far_index *index, toy_root *root, uint64_t *stripe) {
    far_read(t, index->descriptor, root, sizeof(*root));
    int err = far_wait(t);
    if (err < 0)
        return err;
    if (root->magic != TOY_MAGIC || root->stripes == 0 || root->stripes > FAR_NODES_MAX ||
        root->slots != (uint64_t)index->options[TOY_OPTION_SLOTS] || root->slot_bytes != slot_bytes(index))
        return far_fail(FAR_ERR_CORRUPT, "index '%s': its root is corrupt", index->name);
    far_read(t, index->descriptor + sizeof(*root), stripe, root->stripes * 8);
    return far_wait(t);
}


static int toy_open(far_task *t, far_index *index) {
    toy_root root;
    toy_state *state = calloc(1, sizeof(*state));
    if (!state)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to open an index");
    int err = read_root(t, index, &root, state->stripe);
    if (err < 0) {
        free(state);
        return err;
    }
    state->slots = root.slots;
    state->stripes = root.stripes;
    state->slot_bytes = root.slot_bytes;
    state->locks = root.slot_bytes == 16;
    state->fault = (toy_fault)index->options[TOY_OPTION_BROKEN];
    memcpy(&state->seed, index->secret, sizeof(state->seed));
    if (state->fault == TOY_STALE_CACHE && !(state->cache = calloc(state->slots, sizeof(*state->cache)))) {
        free(state);
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to open an index");
    }
    index->state = state;
    return 0;
}


static void toy_close(far_index *index) {
    toy_state *state = index->state;
    free((void *)state->cache);
    free(state);
    index->state = NULL;
}


static size_t toy_cache_bytes(far_index *index) {
    const toy_state *state = index->state;
    return state->cache ? state->slots * sizeof(*state->cache) : 0;
}


static const char *const faults[] = {
    [TOY_SOUND] = "none",
    [TOY_LOST_UPDATE] = "lost_update",
    [TOY_TORN_READ] = "torn_read",
    [TOY_EARLY_FREE] = "early_free",
    [TOY_FORGOTTEN_LOCK] = "forgotten_lock",
    [TOY_DROPPED_WRITE] = "dropped_write",
    [TOY_UNORDERED] = "unordered",
    [TOY_STALE_CACHE] = "stale_cache",
    [TOY_BACKWARD_GAP] = "backward_gap",
    NULL,
};

static const far_option_def options[] = {
    {"slots", FAR_OPTION_NUMBER, 1024, 1, 1 << 20, NULL, "size of the table, a power of two"},
    {"locks", FAR_OPTION_BOOL, 0, 0, 1, NULL, "writers lock their slot instead of changing it by CAS"},
    {"broken", FAR_OPTION_CHOICE, TOY_SOUND, 0, 0, faults, "a deliberate fault, for tests of the test kit"},
    {0},
};

static const far_type types[TOY_TYPES] = {
    [TOY_TYPE_ROOT] = {.name = "root", .align = 16},
    [TOY_TYPE_STRIPE] = {.name = "stripe", .align = 64},
    [TOY_TYPE_BUCKET] = {.name = "bucket", .align = 16},
};

const far_index_kind far_toy_kind = {
    .name = "toy",
    .what_for = "learning how an index is written; small maps",
    .hidden = true,
    .options = options,
    .max_key = 4096,
    .types = types,
    .type_count = TOY_TYPES,
    .create = toy_create,
    .open = toy_open,
    .close = toy_close,
    .get = toy_get,
    .put = toy_put,
    .remove = toy_remove,
    .scan = toy_scan,
    .get_many = toy_get_many,
    .walk = toy_walk,
    .check = toy_check,
    .usage = toy_usage,
    .object_keys = toy_object_keys,
    .cache_bytes = toy_cache_bytes,
};
