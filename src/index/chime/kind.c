/* CHIME, after "CHIME: A Cache-Efficient and High-Performance Hybrid Index on Disaggregated Memory" (SOSP 2024): a
 * B-link tree whose leaves are small hopscotch hash tables. A point read fetches one neighbourhood instead of a leaf,
 * while the compute side caches inner nodes only.
 *
 * This file describes the kind to the library, with its options, object types and entry points; it also creates, opens
 * and closes an index. README.md explains the protocol. */
#include "base/budget.h"
#include "base/error.h"
#include "index/chime/chime.h"

#include <stdlib.h>


static bool key_and_value_are_words(const chime_state *st) {
    return st->key_bytes == 8 && st->value_bytes == 8;
}


/* Chooses the format of a new index, which determines where its items are stored. A value longer than one word is
 * written into its line by one WRITE, so it is stored in the slot only where the fabric does not tear lines. */
static uint64_t choose_magic(const chime_state *st, unsigned most) {
    bool fits = st->key_fits_word && st->value_bytes > 0 && st->value_bytes <= (st->lines_can_tear ? 8 : most);
    if (!fits || key_and_value_are_words(st))
        return CHIME_MAGIC;
    return st->value_bytes <= 8 ? CHIME_MAGIC_02 : CHIME_MAGIC_03;
}


static void set_geometry(chime_state *st, const far_index *index, uint64_t magic) {
    st->magic = magic;
    st->inline_items = magic != CHIME_MAGIC || key_and_value_are_words(st);
    st->per_line = chime_per_line(st->inline_items ? st->value_bytes : 8);
    st->value_words = chime_slot_bytes(st->per_line) / 8 - 1;
    st->lines = chime_line_of(st->per_line, (unsigned)index->options[CHIME_OPTION_SPAN]);
    st->span = st->lines * st->per_line;
    st->home_slots = st->wrap ? st->span : st->span - st->hop + 1;
    st->node_bytes = chime_node_bytes(st->per_line, st->span);
    st->group = (st->span + CHIME_MAP_BITS - 1) / CHIME_MAP_BITS;
    st->combine_inserts = st->handover && st->inline_items && !st->lines_can_tear;
}


static void read_options(far_task *t, const far_index *index, chime_state *st) {
    const int64_t *options = index->options;
    const far_capabilities *can = far_task_capabilities(t);
    st->key_bytes = (unsigned)options[FAR_OPTION_KEY_SIZE];
    st->value_bytes = (unsigned)options[FAR_OPTION_VALUE_SIZE];
    st->key_fits_word = st->key_bytes > 0 && st->key_bytes <= 8;
    st->lines_can_tear = can->atomic_bytes < CHIME_LINE;
    st->hop = (unsigned)options[CHIME_OPTION_HOP];
    st->wrap = options[CHIME_OPTION_WRAP] != 0;
    st->masked_cas = can->masked_cas;
    st->fuse_lock_and_read = can->atomics_in_order && options[CHIME_OPTION_FUSION];
    st->handover = options[CHIME_OPTION_HANDOVER] != 0;
    st->split_early = options[CHIME_OPTION_CROWD] != 0;
    st->hopscotch = options[CHIME_OPTION_HOPSCOTCH] != 0;
    st->vacancy = options[CHIME_OPTION_VACANCY] != 0;
    st->replication = options[CHIME_OPTION_REPLICATION] != 0;
    st->paper_split = options[CHIME_OPTION_SPLIT] == CHIME_SPLIT_PAPER;
    st->hop_writes_ascending = options[CHIME_OPTION_HOP_WRITES] != 0;
    st->miss = (unsigned)options[CHIME_OPTION_MISS];
    st->merge = (unsigned)options[CHIME_OPTION_MERGE];
    st->lock_attempts = (unsigned)options[CHIME_OPTION_PATIENCE];
    st->walk_slice = (unsigned)options[CHIME_OPTION_WALK_SLICE];
    memcpy(&st->seed, index->secret, sizeof(st->seed));
    set_geometry(st, index, choose_magic(st, (unsigned)options[CHIME_OPTION_INLINE]));
}


static chime_root make_descriptor(const chime_state *st) {
    return (chime_root){.magic = st->magic,
                        .span = st->span,
                        .hop = st->hop,
                        .home_slots = st->home_slots,
                        .inline_items = st->inline_items,
                        .unit = st->lines_can_tear ? 8 : 64,
                        .masked_cas = st->masked_cas};
}


/* Creates the index. Nothing is freed here on failure, because the pool reclaims all memory of an index that was never
 * published. */
static int chime_create(far_task *t, far_index *index) {
    chime_state *st = far_scratch(t, sizeof(*st));
    far_object leaf, descriptor;
    if (!st)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to create an index");
    memset(st, 0, sizeof(*st));
    read_options(t, index, st);
    if (st->hop + st->per_line > st->span)
        return far_fail(FAR_ERR_INVALID, "option hop: %u slots are too many for a span of %u", st->hop, st->span);
    uint64_t *w = far_scratch(t, st->node_bytes);
    chime_root *root = far_scratch(t, sizeof(*root));
    if (!w || !root)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to create an index");
    int err = far_alloc(t, index, CHIME_TYPE_NODE, st->node_bytes, FAR_NODE_ANY, 0, &leaf);
    if (err < 0 || (err = far_alloc(t, index, CHIME_TYPE_ROOT, sizeof(*root), 0, 0, &descriptor)) < 0)
        return err;
    chime_init_node(st, w, (unsigned)leaf.epoch, 0);
    chime_tail(st, w)[CHIME_TAIL_S] = chime_nonce_make(far_task_client(t), far_task_generation(t), 0, false);
    *root = make_descriptor(st);
    root->root = chime_ptr_make(leaf.addr, (unsigned)leaf.epoch, 0);
    far_index_set_descriptor(index, descriptor.addr);
    far_write(t, leaf.addr, w, st->node_bytes);
    far_write(t, descriptor.addr, root, sizeof(*root));
    return far_wait(t);
}


static void chime_close(far_index *index) {
    chime_state *st = index->state;
    chime_free_deferred_merges(st);
    chime_hot_free(st->hot);
    chime_cache_free(st->cache);
    free(st);
    index->state = NULL;
}


/* Returns the size of the hotspot buffer. By default this is three tenths of the cache budget if these are at least 50
 * MB, otherwise 0. */
static uint64_t hotspot_bytes(const far_index *index) {
    int64_t asked = index->options[CHIME_OPTION_HOTSPOT];
    size_t budget = far_budget_limit(far_index_budget(index));
    if (!index->options[CHIME_OPTION_SPECULATION])
        return 0;
    return asked >= 0 ? (uint64_t)asked : budget >= 50u << 20 ? budget / 10 * 3 : 0;
}


static int chime_open(far_task *t, far_index *index) {
    chime_state *st = calloc(1, sizeof(*st));
    if (!st)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to open an index");
    read_options(t, index, st);
    atomic_init(&st->half_renew_at, UINT64_MAX);
    index->state = st;
    chime_root root;
    far_read(t, index->descriptor, &root, sizeof(root));
    int err = far_wait(t);
    if (err >= 0) {
        /* An index keeps the format with which it was created, even if this version of the library would choose another
         * format. */
        if (root.magic == CHIME_MAGIC)
            set_geometry(st, index, CHIME_MAGIC);
        chime_root mine = make_descriptor(st);
        mine.root = root.root;
        if (memcmp(&root, &mine, sizeof(root)) != 0)
            err = far_fail(FAR_ERR_CORRUPT, "index '%s': its descriptor is invalid", index->name);
    }
    if (err >= 0 && index->options[CHIME_OPTION_CACHE] != 2)
        err = chime_cache_new(index, &st->cache);
    if (err >= 0)
        err = chime_hot_new(index, st->cache, hotspot_bytes(index), &st->hot);
    if (err < 0)
        chime_close(index);
    return err;
}


static void chime_report_figures(far_index *index, far_figures *figures) {
    chime_counts *counts = &chime_state_of(index)->counts;
    figures->splits = atomic_load_explicit(&counts->splits, memory_order_relaxed);
    figures->split_keys = atomic_load_explicit(&counts->split_items, memory_order_relaxed);
    figures->split_slots = figures->splits * chime_state_of(index)->span;
    figures->gets = atomic_load_explicit(&counts->gets, memory_order_relaxed);
    figures->speculated = atomic_load_explicit(&counts->speculated, memory_order_relaxed);
    figures->speculations_correct = atomic_load_explicit(&counts->speculations_correct, memory_order_relaxed);
}


static const char *const misses[] = {"adaptive", "confirm", "bracket", "unsafe", "time", NULL};
static const char *const hop_writes[] = {"falling", "rising", NULL};
static const char *const splits[] = {"median", "paper", NULL};
static const char *const merges[] = {"off", "empty", "sparse", NULL};
static const char *const caches[] = {"plain", "packed", "off", NULL};

static const far_option_def options[] = {
    {"span", FAR_OPTION_NUMBER, 63, 12, CHIME_SPAN_MAX, NULL,
     "slots per node, rounded down to whole lines of 3 slots (2 or 1 with larger inline values); above 63, one bit of "
     "the occupancy map stands for several slots"},
    {"hop", FAR_OPTION_NUMBER, 8, 2, CHIME_HOP_MAX, NULL, "slots per neighbourhood"},
    {"wrap", FAR_OPTION_BOOL, 1, 0, 1, NULL, "neighbourhoods may continue at the beginning of the leaf"},
    {"hopscotch", FAR_OPTION_BOOL, 1, 0, 1, NULL, "a get reads one neighbourhood; off: the whole leaf"},
    {"vacancy", FAR_OPTION_BOOL, 1, 0, 1, NULL,
     "the lock word contains a map of free slots; off: an insert reads the whole leaf"},
    {"replication", FAR_OPTION_BOOL, 1, 0, 1, NULL,
     "every line contains the metadata that a get checks; off: a get also reads the tail of the leaf"},
    {"speculation", FAR_OPTION_BOOL, 1, 0, 1, NULL,
     "a get of a hot key reads only the slot in which the key was found last"},
    {"hotspot", FAR_OPTION_NUMBER, -1, -1, 1ll << 32, NULL,
     "bytes for the slots of hot keys; -1: three tenths of the cache if it has at least 50 MB"},
    {"miss", FAR_OPTION_CHOICE, CHIME_MISS_ADAPTIVE, 0, 0, misses,
     "how a get proves that a key is absent; confirm: by a second read; bracket: within the first read; adaptive: as "
     "recent misses make it cheaper; time: by the duration of the first read, where the fabric guarantees a minimum "
     "round trip; unsafe: by hop bitmaps alone, as in the paper (an existing key may be missed)"},
    {"hop_writes", FAR_OPTION_CHOICE, 0, 0, 0, hop_writes,
     "order in which an insert writes changed lines; rising: as in the paper (a client failure in between loses keys)"},
    {"fusion", FAR_OPTION_BOOL, 1, 0, 1, NULL,
     "lock and read in one round trip where the fabric executes atomics before later reads"},
    {"handover", FAR_OPTION_BOOL, 1, 0, 1, NULL,
     "a lock is handed over to the next task of the same compute node, with the image of the leaf; waiting inserts are "
     "written together"},
    {"crowd", FAR_OPTION_BOOL, 1, 0, 1, NULL,
     "while the tree has few leaves, a leaf that many tasks wait for is split before it is full"},
    {"split", FAR_OPTION_CHOICE, CHIME_SPLIT_MEDIAN, 0, 0, splits,
     "where a leaf is split; median: near its median; paper: at the median of the full neighbourhood"},
    {"merge", FAR_OPTION_CHOICE, CHIME_MERGE_EMPTY, 0, 0, merges, "which leaves are merged into their left neighbour"},
    {"cache", FAR_OPTION_CHOICE, 1, 0, 0, caches, "how inner nodes are cached on the compute side"},
    {"walk_slice", FAR_OPTION_NUMBER, 64, 1, 1 << 20, NULL, "nodes that a walk or a check reads under one pin"},
    {"patience", FAR_OPTION_NUMBER, 12, 2, 1000, NULL, "attempts at a lock before the search starts again at the root"},
    {"inline", FAR_OPTION_NUMBER, CHIME_VALUE_WORDS * 8, 8, CHIME_VALUE_WORDS * 8, NULL,
     "largest value in bytes that is stored in the leaves, if key_size (at most 8) and value_size are set; at most 8 "
     "where the fabric writes 8 bytes at once, at most 40 where it writes 64"},
    {0},
};

static const far_type types[CHIME_TYPES] = {
    [CHIME_TYPE_ROOT] = {.name = "root", .align = 64},
    [CHIME_TYPE_NODE] = {.name = "node", .align = 64, .stable = true},
    [CHIME_TYPE_BLOCK] = {.name = "block", .align = 16},
    [CHIME_TYPE_KEY] = {.name = "key", .align = 16},
};

static const char *const private_options[] = {"wrap",  "hop_writes", "fusion",   "crowd",
                                              "cache", "walk_slice", "patience", NULL};

const far_index_kind far_chime_kind = {
    .name = "chime",
    .what_for = "scans and point reads of ordered data, with a small cache",
    .options = options,
    .private_options = private_options,
    .max_key = CHIME_KEY_MAX,
    .types = types,
    .type_count = CHIME_TYPES,
    .gets_never_wait_for_writes = true,
    .create = chime_create,
    .open = chime_open,
    .close = chime_close,
    .get = chime_get,
    .get_many = chime_get_many,
    .put = chime_put,
    .remove = chime_remove,
    .scan = chime_scan,
    .walk = chime_walk,
    .check = chime_check,
    .usage = chime_usage,
    .object_keys = chime_object_keys,
    .load_factor = chime_load_factor,
    .cache_bytes = chime_cache_bytes,
    .figures = chime_report_figures,
    .idle_hook = chime_run_deferred_merge,
};
