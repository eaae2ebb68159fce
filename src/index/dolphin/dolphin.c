/* Dolphin, after "Dolphin: A Resource-efficient Hybrid Index on Disaggregated Memory" (MSST 2024): radix inner nodes,
 * cached by the clients, over leaves of many slots that are written without an exclusive lock. README.md beside this
 * file has the protocol on a page. */
#include "index/dolphin/dolphin.h"
#include "base/error.h"

#include <stdlib.h>


static bool values_are_words(const int64_t *options) {
    return options[FAR_OPTION_VALUE_SIZE] == 8 && options[DOLPHIN_OPTION_VALUES] != DOLPHIN_INDIRECT;
}


/* Nothing is freed here when something fails: the pool takes back all that an index which was never shown has
 * allocated. */
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
    uint64_t word = dolphin_entry(top.addr, 1, 0, DOLPHIN_NODE + DOLPHIN_ROOT_CLASS);
    image[0] = dolphin_lock_free(word);
    image[1] = dolphin_node_ident(0, DOLPHIN_ROOT_CLASS);
    for (unsigned i = 0; i < DOLPHIN_POSITIONS; i++)
        image[DOLPHIN_NODE_HEADER / 8 + i] = dolphin_null(i, i);
    for (unsigned i = 0; i < 256; i++)
        image[DOLPHIN_ROOT_LOCKS / 8 + i] = image[0];
    *head = (dolphin_root){DOLPHIN_MAGIC, word, (uint64_t)index->options[DOLPHIN_OPTION_SLOTS],
                           values_are_words(index->options)};
    far_write(t, top.addr, image, bytes);
    far_write(t, object.addr, head, sizeof(*head));
    index->descriptor = object.addr;
    return far_wait(t);
}


static void dolphin_close(far_index *index) {
    dolphin_state *st = index->state;
    dolphin_hints_free(st->hints);
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
    if (head.magic != DOLPHIN_MAGIC || head.slots != st->slots || head.words != st->words ||
        !dolphin_entry_is_sound(head.root) || dolphin_entry_kind(head.root) != DOLPHIN_NODE + DOLPHIN_ROOT_CLASS)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': its root is broken", index->name);
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
    st->indirect = options[DOLPHIN_OPTION_VALUES] == DOLPHIN_INDIRECT;
    st->words = values_are_words(options);
    st->lastbyte = options[DOLPHIN_OPTION_COVERAGE] == DOLPHIN_LASTBYTE;
    st->exclusive = options[DOLPHIN_OPTION_SYNC] == DOLPHIN_EXCLUSIVE;
    st->tickets = options[DOLPHIN_OPTION_INSERT] == DOLPHIN_BY_TICKET;
    st->hot = options[DOLPHIN_OPTION_HOT_UPDATES] && !st->words && !st->exclusive;
    st->split_arrays = options[DOLPHIN_OPTION_SPLIT_ARRAYS] != 0;
    st->scan_batch = (unsigned)options[DOLPHIN_OPTION_SCAN_BATCH];
    st->walk_slice = (unsigned)options[DOLPHIN_OPTION_WALK_SLICE];
    st->patience = (unsigned)options[DOLPHIN_OPTION_PATIENCE];
    st->calm_after = (unsigned)options[DOLPHIN_OPTION_CALM_AFTER];
    st->masked = far_task_capabilities(t)->masked_cas;
    memcpy(&st->poison, index->secret, 8);
    memcpy(&st->seed, index->secret + 8, 8);
    index->state = st;
    int err = read_root(t, index, st);
    if (err >= 0 && options[DOLPHIN_OPTION_CACHE])
        err = dolphin_cache_new(index, &st->cache);
    if (err >= 0 && st->cache && options[DOLPHIN_OPTION_HINTS])
        err = dolphin_hints_new(index, &st->hints);
    if (err < 0)
        dolphin_close(index);
    return err;
}


static const char *const coverages[] = {"adaptive", "lastbyte", NULL};
static const char *const inserts[] = {"cas", "ticket", NULL};
static const char *const syncs[] = {"spear", "exclusive", NULL};
static const char *const places[] = {"leaf", "indirect", NULL};

static const far_option_def options[] = {
    {"leaf_slots", FAR_OPTION_NUMBER, DOLPHIN_SLOTS_MAX, 1, DOLPHIN_SLOTS_MAX, NULL, "keys that a leaf has room for"},
    {"coverage", FAR_OPTION_CHOICE, DOLPHIN_ADAPTIVE, 0, 0, coverages,
     "a new leaf is for all keys of an empty interval; or, as in the paper, for those that differ in the last byte"},
    {"sync", FAR_OPTION_CHOICE, DOLPHIN_SPEAR, 0, 0, syncs,
     "writers of a leaf are counted, and share it; or, to compare, one at a time locks it: a round trip more"},
    {"insert", FAR_OPTION_CHOICE, DOLPHIN_BY_TICKET, 0, 0, inserts,
     "slots are given out by a counter of the leaf, in two round trips; or taken by CAS, as in the paper, in three"},
    {"values", FAR_OPTION_CHOICE, DOLPHIN_IN_LEAF, 0, 0, places,
     "values that fit lie in the leaf; or, to compare, all of them in blocks: a round trip more for a get"},
    {"split_arrays", FAR_OPTION_BOOL, 1, 0, 1, NULL, "writes READ the keys of a leaf only; off: its values too"},
    {"cache", FAR_OPTION_BOOL, 1, 0, 1, NULL, "inner nodes are cached on the compute side"},
    {"hints", FAR_OPTION_BOOL, 1, 0, 1, NULL,
     "slots of hot keys are remembered: 24 bytes are READ instead of the leaf"},
    {"scan_batch", FAR_OPTION_NUMBER, 8, 1, 8, NULL, "leaves that a scan reads at once"},
    {"walk_slice", FAR_OPTION_NUMBER, 64, 1, 1 << 20, NULL, "leaves that a walk or a check looks at under one pin"},
    {"patience", FAR_OPTION_NUMBER, 12, 2, 1000, NULL, "attempts before a new pin is taken"},
    {"hot_updates", FAR_OPTION_BOOL, 0, 0, 1, NULL,
     "values of any size: hot keys are updated in one round trip; leaves that are replaced are frozen word by word"},
    {"calm_after", FAR_OPTION_NUMBER, 0, 0, 1 << 20, NULL,
     "values of 8 bytes: after about so many updates that meet, those of hot keys in a leaf are no longer counted; "
     "whoever "
     "replaces it waits for epochs (0: never)"},
    {0},
};

static const far_type types[DOLPHIN_TYPES] = {
    [DOLPHIN_TYPE_ROOT] = {.name = "root", .align = 64},
    [DOLPHIN_TYPE_NODE] = {.name = "node", .align = 64, .stable = true, .extra_epochs = DOLPHIN_EXTRA_EPOCHS},
    [DOLPHIN_TYPE_LEAF] = {.name = "leaf", .align = 64, .stable = true, .extra_epochs = DOLPHIN_EXTRA_EPOCHS},
    [DOLPHIN_TYPE_KEY] = {.name = "key", .align = 16},
    [DOLPHIN_TYPE_VALUE] = {.name = "value", .align = 16, .swapped = true},
};

const far_index_kind far_dolphin_kind = {
    .name = "dolphin",
    .what_for = "scans, updates without locks, little cache and far memory",
    .options = options,
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
    .cache_bytes = dolphin_cache_bytes,
};
