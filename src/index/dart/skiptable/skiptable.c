/* The skip table as a whole: create, open and close, the list of prefix lengths, and the hooks that are called once per
 * epoch and when a handle is idle. */
#include "index/dart/skiptable/skiptable.h"
#include "base/error.h"
#include "index/dart/cache_slots.h"
#include "pool/epoch/epoch.h"

#include <stdlib.h>

#define SLOTS_SHARE       4u /* the slot cache gets at most 1/4 of the byte budget */
/* With a small byte budget the slot cache gets only 1/8, because then entries of the skip table save more round trips.
 */
#define SLOTS_SMALL_SHARE 8u
/* the scan cache gets at most 1/8 of the byte budget, and uses it only if there are scans */
#define AHEAD_SHARE       8u
#define SMALL_BUDGET      (8u << 20)
#define DIRECTORY_SHARE   (64u << 10) /* bytes of the byte budget for directory words, enough for some million keys */

/* The list of a new index. Length 1 is not in the list because it would save nothing: reading a slot of the root costs
 * the same round trip as reading the table. */
static const dart_list first_list = {
    .generation = 1,
    .lookup_count = 7,
    .active_count = 7,
    .lookup = {2, 4, 8, 16, 32, 64, 128},
    .active = {2, 4, 8, 16, 32, 64, 128},
};


int dart_est_create(far_task *t, far_index *index, dart_super *super) {
    unsigned nodes = far_task_nodes(t), bits = (unsigned)index->options[DART_OPTION_DIRECTORY_BITS];
    unsigned stripes = nodes < DART_STRIPES_MAX ? nodes : DART_STRIPES_MAX;
    far_object object;
    int err;
    if (!index->options[DART_OPTION_EST])
        return 0;
    if (stripes > 1u << bits)
        stripes = 1u << bits;
    for (unsigned i = 0; i < stripes; i++) {
        uint64_t bytes = ((1ull << bits) + stripes - 1) / stripes * 8;
        if ((err = far_alloc(t, index, DART_TYPE_EST_DIRECTORY, bytes, i, FAR_ALLOC_ZERO | FAR_ALLOC_ON_NODE,
                             &object)) < 0)
            return err;
        super->directory[i] = object.addr;
    }
    if ((err = far_alloc(t, index, DART_TYPE_LIST, sizeof(dart_list), 0, 0, &object)) < 0)
        return err;
    super->directory_bits = bits;
    super->list = dart_list_word(first_list.generation, object.addr);
    far_write(t, object.addr, &first_list, sizeof(first_list));
    return far_wait(t);
}


/* ---- The list ---- */

static bool is_rising(const uint8_t *lengths, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (lengths[i] == 0 || (i > 0 && lengths[i] <= lengths[i - 1]))
            return false;
    return true;
}


static bool list_is_sound(const dart_list *list) {
    return list->lookup_count <= DART_LIST_MAX && list->active_count <= DART_LIST_MAX &&
           is_rising(list->lookup, list->lookup_count) && is_rising(list->active, list->active_count);
}


/* Makes a list the current list of this handle if the list is newer than the current list. Old lists stay allocated
 * until close, because an operation may be using an old list, and there are only few lists. Returns 0 or an error. */
static int install_list(dart_est *est, const dart_list *list, uint64_t word) {
    dart_local_list *local = calloc(1, sizeof(*local));
    if (!local)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for a list");
    far_spin_lock(&est->list_lock);
    dart_local_list *old = atomic_load_explicit(&est->list, memory_order_relaxed);
    bool newer = !old || list->generation > old->list.generation;
    if (newer) {
        local->list = *list;
        local->word = word;
        local->next = old;
        atomic_store_explicit(&est->list, local, memory_order_release);
    }
    far_spin_unlock(&est->list_lock);
    if (!newer)
        free(local);
    for (unsigned i = 0; newer && old && i < DART_LENGTH_CLASSES; i++)
        dart_length_class_reset(&est->classes[i]);
    return 0;
}


int dart_est_read_list(far_task *t, far_index *index) {
    dart_est *est = dart_est_of(index);
    dart_local_list *old = atomic_load_explicit(&est->list, memory_order_acquire);
    uint64_t word;
    dart_list list;
    int err = far_read_word(t, est->super + offsetof(dart_super, list), &word);
    if (err < 0 || (old && old->word == word))
        return err;
    far_read(t, dart_word_addr(word), &list, sizeof(list));
    if ((err = far_wait(t)) < 0)
        return err;
    if (!list_is_sound(&list))
        return far_fail(FAR_ERR_CORRUPT, "index '%s': its list of prefix lengths is damaged", index->name);
    return install_list(est, &list, word);
}


/* ---- Open and close ---- */

static int open_caches(const far_index *index, dart_est *est) {
    struct far_budget *budget = far_index_budget(index);
    uint64_t limit = far_budget_limit(budget), directory = DIRECTORY_SHARE;
    uint64_t slots = (uint64_t)index->options[DART_OPTION_SLOT_CACHE];
    uint64_t share = limit < SMALL_BUDGET ? limit / SLOTS_SMALL_SHARE : limit / SLOTS_SHARE;
    slots = !dart_of(index)->lock_free ? 0 : slots < share ? slots : share;
    uint64_t ahead = (uint64_t)index->options[DART_OPTION_SCAN_CACHE];
    ahead = ahead < limit / AHEAD_SHARE ? ahead : limit / AHEAD_SHARE;
    uint64_t room = (limit > 2 * directory ? limit - directory : limit / 2) - slots;
    room /= DART_EXPRESS_WORDS * 8;
    uint64_t express = (uint64_t)index->options[DART_OPTION_EXPRESS_CACHE] / (DART_CHUNK_WORDS * 8);
    /* if the cache had more chunks than the budget allows, its chunks would evict each other */
    express = express < room ? express : room;
    int err = dart_cache_open(&est->directory.words, budget, "dart directory", DART_DIR_NUMBERS / DART_CHUNK_WORDS,
                              DART_CHUNK_WORDS);
    if (err >= 0)
        err = dart_cache_open(&est->express, budget, "dart express", (unsigned)express, DART_EXPRESS_WORDS);
    if (err >= 0)
        err = dart_cache_open(&est->slots, budget, "dart slots", (unsigned)(slots / (DART_CHUNK_WORDS * 8)),
                              DART_CHUNK_WORDS);
    if (err >= 0)
        err = dart_cache_open(&est->scans, budget, "dart scans", (unsigned)(ahead / (DART_CHUNK_WORDS * 8)),
                              DART_CHUNK_WORDS);
    est->emptied = calloc(DART_DIR_NUMBERS / 64, sizeof(*est->emptied));
    est->adjust.cursor = malloc(dart_of(index)->max_key + 1);
    return err >= 0 && (!est->emptied || !est->adjust.cursor)
               ? far_fail(FAR_ERR_NO_MEMORY, "no local memory to open an index")
               : err;
}


int dart_est_open(far_task *t, far_index *index) {
    dart_index *dart = dart_of(index);
    const dart_super *super = &dart->super;
    if (super->directory[0] == 0)
        return 0;
    dart_est *est = dart->est = calloc(1, sizeof(*est));
    if (!est)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory to open an index");
    while (est->stripes < DART_STRIPES_MAX && super->directory[est->stripes]) {
        est->stripe[est->stripes] = super->directory[est->stripes];
        est->stripes++;
    }
    est->bits = super->directory_bits;
    est->tables = super->magic != DART_MAGIC_OLD;
    est->seed = super->hash_seed;
    est->super = index->descriptor;
    est->width = (unsigned)index->options[DART_OPTION_PROBE_WIDTH];
    est->update = index->options[DART_OPTION_EST_UPDATE];
    est->adjusting = index->options[DART_OPTION_ADJUST];
    est->one_fingerprint = index->options[DART_OPTION_ONE_FINGERPRINT];
    est->adjust_every = (unsigned)index->options[DART_OPTION_ADJUST_EVERY];
    est->upkeep_batch = (unsigned)index->options[DART_OPTION_UPKEEP_BATCH];
    est->segment_log = (unsigned)index->options[DART_OPTION_SEGMENT_LOG];
    est->sample_every = est->adjust_every > DART_SAMPLES ? est->adjust_every / DART_SAMPLES : 1;
    int err = est->bits > DART_DIRECTORY_BITS_MAX || est->width == 0 || est->width > DART_EST_WIDTH_MAX
                  ? far_fail(FAR_ERR_CORRUPT, "index '%s': the parameters of its skip table are damaged", index->name)
                  : open_caches(index, est);
    if (err >= 0)
        err = dart_est_read_list(t, index);
    if (err < 0)
        dart_est_close(index);
    return err < 0 ? err : 0;
}


void dart_est_close(far_index *index) {
    dart_est *est = dart_est_of(index);
    if (!est)
        return;
    dart_cache_close(&est->directory.words);
    dart_cache_close(&est->express);
    dart_cache_close(&est->slots);
    dart_cache_close(&est->scans);
    for (dart_local_list *list = atomic_load_explicit(&est->list, memory_order_relaxed), *next; list; list = next) {
        next = list->next;
        free(list);
    }
    free((void *)est->emptied);
    free(est->adjust.cursor);
    free(est);
    dart_of(index)->est = NULL;
}


size_t dart_est_cache_bytes(far_index *index) {
    dart_est *est = dart_est_of(index);
    return est ? dart_cache_used(&est->directory.words) + dart_cache_used(&est->express) +
                     dart_cache_used(&est->slots) + dart_cache_used(&est->scans)
               : 0;
}


/* ---- Hooks ---- */

/* Reads the newest list of prefix lengths before any operation of this handle is pinned at the new epoch. The protocol
 * of adjust.c depends on this order, because an adjuster waits two epochs for all clients to use the list. Returns 0 or
 * an error. */
int dart_est_epoch_hook(far_task *t, far_index *index, uint64_t epoch) {
    dart_est *est = dart_est_of(index);
    if (!est)
        return 0;
    uint64_t before = atomic_exchange_explicit(&est->epoch, epoch, memory_order_relaxed);
    dart_cache_age(&est->directory.words, &est->express, before, epoch);
    dart_below_root_age(&est->below_root, before, epoch);
    dart_slot_cache_age(&est->slots, before, epoch);
    return dart_est_read_list(t, index);
}


int dart_est_idle_hook(far_task *t, far_index *index) {
    const dart_est *est = dart_est_of(index);
    if (!est)
        return 0;
    dart_est_flush_idle_queue(t, index);
    int more = dart_est_shrink_segments(t, index), next = 0;
    if (more >= 0 && (next = dart_est_build_once(t, index)) >= 0 && est->adjusting) {
        more |= next;
        next = dart_est_adjust(t, index);
    }
    return more < 0 ? more : next < 0 ? next : more | next;
}
