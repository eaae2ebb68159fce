/* The index kind "dolphin": its options, its memory types, and how an index is created, opened and closed. It
 * implements "Dolphin: A Resource-efficient Hybrid Index on Disaggregated Memory" (MSST 2024). The inner nodes form a
 * radix tree that clients cache. The leaves have many slots, and several clients write to one leaf at the same time.
 * README.md in this folder explains the protocol. The pool calls these functions through far_dolphin_kind. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"

#include <stdlib.h>


static bool values_are_raw(const int64_t *options) {
    return options[FAR_OPTION_VALUE_SIZE] == 8 && options[DOLPHIN_OPTION_VALUES] != DOLPHIN_INDIRECT;
}


/* Creates the index. An error path frees nothing, because the pool reclaims all memory of an index whose creation
 * failed. */
static int dolphin_create(far_task *t, far_index *index) {
    unsigned bytes = DOLPHIN_ROOT_BYTES;
    dolphin_root *head = far_scratch(t, sizeof(*head));
    uint64_t *image = far_scratch(t, bytes);
    far_object object, top;
    if (!head || !image)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to create an index");
    int err = far_alloc(t, index, DOLPHIN_TYPE_ROOT, bytes, 0, 0, &top);
    if (err < 0 || (err = far_alloc(t, index, DOLPHIN_TYPE_ROOT, sizeof(*head), 0, 0, &object)) < 0)
        return err;
    memset(image, 0, bytes);
    uint64_t word = dolphin_entry(top.addr, 1, 0, DOLPHIN_KIND_NODE + DOLPHIN_ROOT_CLASS);
    image[0] = dolphin_unlocked_word(word);
    image[1] = dolphin_node_ident(0, DOLPHIN_ROOT_CLASS);
    for (unsigned i = 0; i < DOLPHIN_POSITIONS; i++)
        image[DOLPHIN_NODE_HEADER / 8 + i] = dolphin_null_entry(i, i);
    for (unsigned i = 0; i < 256; i++)
        image[DOLPHIN_ROOT_LOCKS / 8 + i] = image[0];
    *head = (dolphin_root){DOLPHIN_MAGIC, word, (uint64_t)index->options[DOLPHIN_OPTION_SLOTS],
                           values_are_raw(index->options)};
    far_write(t, top.addr, image, bytes);
    far_write(t, object.addr, head, sizeof(*head));
    index->descriptor = object.addr;
    return far_wait(t);
}


static void dolphin_close(far_index *index) {
    dolphin_state *st = index->state;
    dolphin_slot_hints_free(st->slot_hints);
    dolphin_cache_free(st->cache);
    free(st);
    index->state = NULL;
}


static int read_root(far_task *t, far_index *index, dolphin_state *st) {
    dolphin_root head;
    far_read(t, index->descriptor, &head, sizeof(head));
    int err = far_wait(t);
    if (err < 0)
        return err;
    if (head.magic != DOLPHIN_MAGIC || head.slots != st->slots || head.raw_values != st->raw_values ||
        !dolphin_entry_is_sound(head.root) || dolphin_entry_kind(head.root) != DOLPHIN_KIND_NODE + DOLPHIN_ROOT_CLASS)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': its descriptor is damaged, or was written by another version",
                        index->name);
    st->root = head.root;
    return 0;
}


static int dolphin_open(far_task *t, far_index *index) {
    dolphin_state *st = calloc(1, sizeof(*st));
    if (!st)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to open an index");
    const int64_t *options = index->options;
    st->slots = (unsigned)options[DOLPHIN_OPTION_SLOTS];
    st->leaf_bytes = dolphin_leaf_bytes(st->slots);
    st->indirect_values = options[DOLPHIN_OPTION_VALUES] == DOLPHIN_INDIRECT;
    st->raw_values = values_are_raw(options);
    st->last_byte_coverage = options[DOLPHIN_OPTION_COVERAGE] == DOLPHIN_LASTBYTE;
    st->exclusive_writes = options[DOLPHIN_OPTION_SYNC] == DOLPHIN_EXCLUSIVE;
    st->insert_by_ticket = options[DOLPHIN_OPTION_INSERT] == DOLPHIN_BY_TICKET;
    st->hot_updates = options[DOLPHIN_OPTION_HOT_UPDATES] && !st->raw_values && !st->exclusive_writes;
    st->split_arrays = options[DOLPHIN_OPTION_SPLIT_ARRAYS] != 0;
    st->scan_batch = (unsigned)options[DOLPHIN_OPTION_SCAN_BATCH];
    st->walk_slice = (unsigned)options[DOLPHIN_OPTION_WALK_SLICE];
    st->attempts_per_pin = (unsigned)options[DOLPHIN_OPTION_PATIENCE];
    st->calm_after = (unsigned)options[DOLPHIN_OPTION_CALM_AFTER];
    st->has_masked_cas = far_task_capabilities(t)->masked_cas;
    memcpy(&st->poison, index->secret, 8);
    memcpy(&st->hash_seed, index->secret + 8, 8);
    index->state = st;
    int err = read_root(t, index, st);
    if (err >= 0 && options[DOLPHIN_OPTION_CACHE])
        err = dolphin_cache_new(index, &st->cache);
    if (err >= 0 && st->cache && options[DOLPHIN_OPTION_HINTS] && !index->lenient) /* hints rely on sound slots */
        err = dolphin_slot_hints_new(index, &st->slot_hints);
    if (err < 0)
        dolphin_close(index);
    return err;
}


static const char *const coverages[] = {"adaptive", "lastbyte", NULL};
static const char *const inserts[] = {"cas", "ticket", NULL};
static const char *const syncs[] = {"spear", "exclusive", NULL};
static const char *const value_places[] = {"leaf", "indirect", NULL};

static const far_option_def options[] = {
    {"leaf_slots", FAR_OPTION_NUMBER, DOLPHIN_SLOTS_MAX, 1, DOLPHIN_SLOTS_MAX, NULL, "number of slots (keys) per leaf"},
    {"coverage", FAR_OPTION_CHOICE, DOLPHIN_ADAPTIVE, 0, 0, coverages,
     "keys of a new leaf; adaptive: all keys of the empty interval; lastbyte, as in the paper: keys that differ only "
     "in "
     "the last byte"},
    {"sync", FAR_OPTION_CHOICE, DOLPHIN_SPEAR, 0, 0, syncs,
     "writers of a leaf; spear: counted, several at a time; exclusive, for comparison: one at a time with a lock, one "
     "round trip more"},
    {"insert", FAR_OPTION_CHOICE, DOLPHIN_BY_TICKET, 0, 0, inserts,
     "choice of the slot; ticket: by a counter in the leaf, two round trips; cas, as in the paper: by CAS, three round "
     "trips"},
    {"values", FAR_OPTION_CHOICE, DOLPHIN_IN_LEAF, 0, 0, value_places,
     "place of values; leaf: in the leaf if they fit; indirect, for comparison: in value blocks, one round trip more "
     "per get"},
    {"split_arrays", FAR_OPTION_BOOL, 1, 0, 1, NULL, "writes READ only the keys of a leaf; off: also the values"},
    {"cache", FAR_OPTION_BOOL, 1, 0, 1, NULL, "cache inner nodes in the compute node"},
    {"hints", FAR_OPTION_BOOL, 1, 0, 1, NULL,
     "remember the slots of hot keys, so that a get READs 24 bytes instead of the leaf"},
    {"scan_batch", FAR_OPTION_NUMBER, 8, 1, 8, NULL, "number of leaves that a scan READs in one batch"},
    {"walk_slice", FAR_OPTION_NUMBER, 64, 1, 1 << 20, NULL,
     "number of leaves that a traversal (collection, check) visits under one pin"},
    {"patience", FAR_OPTION_NUMBER, 12, 2, 1000, NULL, "number of retries before an operation renews its pin"},
    {"hot_updates", FAR_OPTION_BOOL, 0, 0, 1, NULL,
     "update hot keys in one round trip, for values of any size; replacing a leaf freezes each of its value words"},
    {"calm_after", FAR_OPTION_NUMBER, 0, 0, 1 << 20, NULL,
     "values of 8 bytes: after about this number of concurrent updates, a leaf no longer counts its writers, and "
     "replacing it waits for epochs (0: never)"},
    {0},
};

static const far_type types[DOLPHIN_TYPES] = {
    [DOLPHIN_TYPE_ROOT] = {.name = "root", .align = 64},
    [DOLPHIN_TYPE_NODE] = {.name = "node", .align = 64, .stable = true, .extra_epochs = DOLPHIN_EXTRA_EPOCHS},
    [DOLPHIN_TYPE_LEAF] = {.name = "leaf", .align = 64, .stable = true, .extra_epochs = DOLPHIN_EXTRA_EPOCHS},
    [DOLPHIN_TYPE_KEY] = {.name = "key", .align = 16},
    [DOLPHIN_TYPE_VALUE] = {.name = "value", .align = 16},
};

static const char *const private_options[] = {"split_arrays", "scan_batch", "walk_slice", "patience",
                                              "hot_updates",  "calm_after", NULL};

const far_index_kind far_dolphin_kind = {
    .name = "dolphin",
    .what_for = "scans, updates without locks, little cache and far memory",
    .options = options,
    .private_options = private_options,
    .max_key = FAR_KEY_MAX,
    .types = types,
    .type_count = DOLPHIN_TYPES,
    .create = dolphin_create,
    .open = dolphin_open,
    .close = dolphin_close,
    .get = dolphin_get,
    .get_many = dolphin_get_many,
    .put = dolphin_put,
    .remove = dolphin_remove,
    .scan = dolphin_scan,
    .walk = dolphin_walk,
    .check = dolphin_check,
    .usage = dolphin_usage,
    .object_keys = dolphin_object_keys,
    .cache_bytes = dolphin_cache_bytes,
};
