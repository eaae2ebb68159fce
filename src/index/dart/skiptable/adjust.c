/* Adjustment of the list of prefix lengths to the sampled keys. The list contains two sets of lengths: clients register
 * nodes under the lookup lengths, and remove nodes under the active lengths. Every handle reads the newest list before
 * it pins a new epoch. The adjustment has four steps:
 *
 *     1  Publish active = active + new lengths. Two epochs later all clients remove nodes under the new lengths, too.
 *        Only then entries of these lengths may be made.
 *     2  Fill the table: traverse the tree and register every node under the new lengths.
 *     3  Publish the new lookup lengths. Two epochs later no client registers nodes under the dropped lengths any more.
 *     4  Sweep the entries of the dropped lengths, and publish active = lookup.
 *
 * The active lengths are a superset of the lookup lengths at every moment. So the client that adjusts the list may fail
 * at any step; the next adjuster starts again with step 1. A lock, which contains its owner, permits one adjuster at a
 * time; the lock of a failed client is taken over. The idle hook calls dart_est_adjust, which does a part of the work
 * and never waits. */
#include "base/error.h"
#include "index/dart/skiptable/skiptable.h"
#include "index/dart/traversal.h"
#include "pool/epoch/epoch.h"
#include "pool/format/owner.h"

#define LENGTHS_MAX 8u   /* maximal number of lengths that an adjustment chooses */
#define RARELY      128u /* maximal interval between two choices, in units of adjust_every operations */
/* A length must have at least this many leaves per entry, which limits the memory for its entries. */
#define LEAVES_PER_ENTRY 4u
#define LEAVES_TO_JUDGE  256u /* number of visited leaves after which a length is checked against LEAVES_PER_ENTRY */


void dart_est_sample_key(dart_est *est, far_bytes key) {
    dart_adjust *a = &est->adjust;
    if (key.length > DART_EST_PREFIX_MAX)
        return;
    far_spin_lock(&a->lock);
    unsigned at = a->sampled++ % DART_SAMPLES;
    a->keys[at].length = (uint8_t)key.length;
    memcpy(a->keys[at].key, key.data, key.length);
    far_spin_unlock(&a->lock);
}


/* ---- The lock and the list ---- */

static int take_lock(far_task *t, far_index *index) {
    dart_adjust *a = &dart_est_of(index)->adjust;
    far_addr addr = index->descriptor + offsetof(dart_super, adjuster);
    uint64_t mine = far_owner_of_session(t), seen;
    int err = far_cas_word(t, addr, 0, mine, &seen);
    if (err >= 0 && seen != 0 && seen != mine) {
        uint64_t theirs = seen;
        if ((err = far_owner_confirm_failed(t, theirs)) <= 0)
            return err;
        if ((err = far_cas_word(t, addr, theirs, mine, &seen)) >= 0 && seen != theirs)
            return 0;
    }
    if (err < 0)
        return err;
    a->lock_word = mine;
    return 1;
}


static int release_lock(far_task *t, far_index *index) {
    dart_adjust *a = &dart_est_of(index)->adjust;
    uint64_t mine = a->lock_word, seen;
    a->lock_word = 0;
    a->phase = DART_ADJUST_IDLE;
    return far_cas_word(t, index->descriptor + offsetof(dart_super, adjuster), mine, 0, &seen);
}


void dart_est_leave(far_task *t, far_index *index) {
    if (dart_est_of(index)->adjust.lock_word)
        release_lock(t, index);
}


/* Publishes a list and remembers the epoch of the publication. Returns 1; 0 if another client has published a list,
 * which means that this handle no longer holds the lock; or an error. */
static int publish_list(far_task *t, far_index *index, dart_list *list) {
    dart_est *est = dart_est_of(index);
    int err = dart_est_read_list(t, index);
    if (err < 0)
        return err;
    const dart_local_list *old = atomic_load_explicit(&est->list, memory_order_acquire);
    far_object object;
    uint64_t seen;
    if ((err = far_alloc(t, index, DART_TYPE_LIST, sizeof(*list), 0, 0, &object)) < 0)
        return err;
    list->generation = old->list.generation + 1;
    far_write(t, object.addr, list, sizeof(*list));
    if ((err = far_wait(t)) < 0)
        return err;
    far_point(t, "dart:adjust_publish");
    if ((err = far_cas_word(t, est->super + offsetof(dart_super, list), old->word,
                            dart_list_word(list->generation, object.addr), &seen)) < 0)
        return err;
    if (seen != old->word) {
        far_free(t, index, DART_TYPE_LIST, object.addr, sizeof(*list));
        return 0;
    }
    far_retire(t, index, DART_TYPE_LIST, dart_word_addr(old->word), sizeof(*list));
    if ((err = dart_est_read_list(t, index)) < 0 || (err = far_epoch_read(t, &est->adjust.epoch)) < 0)
        return err;
    return 1;
}


static bool contains_length(const uint8_t *lengths, unsigned count, unsigned length) {
    for (unsigned i = 0; i < count; i++)
        if (lengths[i] == length)
            return true;
    return false;
}


/* Merges two ascending lists of lengths into one ascending list. Returns the number of lengths; 0 if there are more
 * than DART_LIST_MAX. */
static unsigned merge_lengths(const uint8_t *a, unsigned a_count, const uint8_t *b, unsigned b_count,
                              uint8_t united[DART_LIST_MAX]) {
    unsigned count = 0;
    for (unsigned l = 1; l <= DART_EST_PREFIX_MAX; l++)
        if (contains_length(a, a_count, l) || contains_length(b, b_count, l)) {
            if (count == DART_LIST_MAX)
                return 0;
            united[count++] = (uint8_t)l;
        }
    return count;
}


/* Returns true if all pins are at least two epochs newer than the last publication; otherwise requests a new epoch. */
static bool poll_two_epochs(far_task *t, const dart_adjust *a) {
    if (far_epoch_safe(t) >= a->epoch + 2)
        return true;
    far_epoch_request(far_task_pool(t));
    return false;
}


/* ---- Step 0: the choice of the lengths ---- */

static int measure_sample(far_task *t, far_index *index, far_bytes key, dart_sample *sample) {
    far_scratch_mark mark = far_scratch_here(t);
    dart_find *f = far_scratch(t, sizeof(*f));
    if (!f)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for a sample");
    memset(f, 0, sizeof(*f));
    dart_find_init(f, key, DART_SEEK_VALUE);
    f->from_root = true;
    int err = dart_find_run(t, index, f);
    *sample = (dart_sample){.key_length = (unsigned)key.length};
    for (unsigned i = 0; err >= 0 && i < f->path.count && i < DART_SAMPLE_DEPTHS; i++)
        sample->depths[sample->count++] = (uint16_t)f->path.steps[i].node.depth;
    far_scratch_back(t, mark);
    return err;
}


/* Sets target->lookup to the lengths that suit the sampled keys, or to the current lengths if the new lengths are not
 * much better. Returns 0 or an error. */
static int choose_target(far_task *t, far_index *index, dart_list *target) {
    dart_adjust *a = &dart_est_of(index)->adjust;
    dart_sample *samples = far_scratch(t, DART_SAMPLES * sizeof(*samples));
    uint8_t key[DART_EST_PREFIX_MAX];
    if (!samples)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for samples");
    unsigned count = 0;
    for (unsigned sampled = DART_SAMPLES; count < sampled; count++) {
        unsigned i = count;
        far_spin_lock(&a->lock);
        sampled = a->sampled < DART_SAMPLES ? a->sampled : DART_SAMPLES;
        unsigned length = a->keys[i].length;
        memcpy(key, a->keys[i].key, length);
        far_spin_unlock(&a->lock);
        int err = measure_sample(t, index, (far_bytes){key, length}, &samples[i]);
        if (err < 0)
            return err;
    }
    target->lookup_count = (uint8_t)dart_choose_lengths(samples, count, LENGTHS_MAX, target->lookup);
    int err = dart_est_read_list(t, index); /* The list cannot change, because this handle holds the lock. */
    const dart_list *now = dart_est_list(dart_est_of(index));
    if (!dart_lengths_are_worth(samples, count, now, target->lookup, target->lookup_count)) {
        target->lookup_count = now->lookup_count;
        memcpy(target->lookup, now->lookup, sizeof(target->lookup));
    }
    return err;
}


/* Begins the adjustment to the lengths a->target.lookup. The caller holds the lock. Returns 0 or an error. */
static int start_adjustment(far_task *t, far_index *index) {
    dart_est *est = dart_est_of(index);
    dart_adjust *a = &est->adjust;
    int err = dart_est_read_list(t, index);
    if (err < 0)
        return err;
    const dart_list *now = dart_est_list(est);
    bool same =
        a->target.lookup_count == now->lookup_count && memcmp(a->target.lookup, now->lookup, now->lookup_count) == 0;
    dart_list list = *now;
    list.active_count =
        (uint8_t)merge_lengths(now->active, now->active_count, a->target.lookup, a->target.lookup_count, list.active);
    if (same || a->target.lookup_count == 0 || list.active_count == 0) {
        /* No length will be added, so the adjustment continues as after step 3. An earlier adjuster that failed may
         * have left active lengths that must be dropped. */
        a->phase = DART_ADJUST_LOOKUP_PUBLISHED;
        return (err = far_epoch_read(t, &a->epoch)) < 0 ? err : 1;
    }
    if ((err = publish_list(t, index, &list)) <= 0)
        return err < 0 ? err : release_lock(t, index);
    a->phase = DART_ADJUST_ACTIVE_PUBLISHED;
    a->cursor_length = 0;
    a->leaves = 0;
    memset(a->entries, 0, sizeof(a->entries));
    return 1;
}


int dart_est_adjust_to(far_task *t, far_index *index, const uint8_t *lengths, unsigned count) {
    dart_adjust *a = &dart_est_of(index)->adjust;
    int err = take_lock(t, index);
    if (err <= 0)
        return err;
    a->target.lookup_count = (uint8_t)count;
    memcpy(a->target.lookup, lengths, count);
    return start_adjustment(t, index);
}


static int begin_adjustment(far_task *t, far_index *index) {
    const dart_est *est = dart_est_of(index);
    dart_adjust *a = &dart_est_of(index)->adjust;
    uint64_t seen = atomic_load_explicit(&a->operations, memory_order_relaxed),
             longest = (uint64_t)RARELY * est->adjust_every;
    a->next_adjustment = a->next_adjustment ? a->next_adjustment : est->adjust_every;
    far_spin_lock(&a->lock);
    bool enough = a->sampled >= (est->adjust_every < DART_SAMPLES ? est->adjust_every : DART_SAMPLES);
    far_spin_unlock(&a->lock);
    if (seen < a->next_adjustment || !enough)
        return 0;
    /* A choice costs some thousand READs, so the number of operations until the next choice doubles each time, up to a
     * limit. */
    a->next_adjustment = seen + (seen < longest ? seen : longest);
    int err = take_lock(t, index);
    if (err <= 0)
        return err;
    far_scratch_mark mark = far_scratch_here(t);
    err = choose_target(t, index, &a->target);
    far_scratch_back(t, mark);
    return err < 0 ? err : start_adjustment(t, index);
}


/* ---- Step 2: filling ---- */

typedef struct filling {
    uint8_t lengths[DART_LIST_MAX]; /* the prefix lengths under which nodes are registered */
    unsigned count;
} filling;


/* Removes from the target the lengths that need an entry for every few leaves, because such lengths take more memory
 * than they are worth. The entries that were already made under these lengths are swept together with the entries of
 * the dropped lengths. */
static void drop_costly_lengths(dart_adjust *a) {
    unsigned remaining = 0, count = a->target.lookup_count;
    for (unsigned i = 0; i < count; i++) {
        unsigned length = a->target.lookup[i];
        bool costly = a->leaves >= LEAVES_TO_JUDGE && a->entries[length] * LEAVES_PER_ENTRY > a->leaves;
        if (!costly)
            a->target.lookup[remaining++] = (uint8_t)length;
    }
    a->target.lookup_count = (uint8_t)remaining;
}


static int fill_node(far_task *t, far_index *index, const dart_view *view, const dart_item *item, void *ctx) {
    const filling *fill = ctx;
    uint8_t lengths[DART_LIST_MAX];
    if (!item) /* Without an item, the node is the root, which has no entry. */
        return 0;
    unsigned parent = dart_header_depth(item->parent), count = 0;
    for (unsigned i = 0; i < fill->count; i++)
        if (fill->lengths[i] > parent && fill->lengths[i] <= view->node.depth)
            lengths[count++] = fill->lengths[i];
    for (unsigned i = 0; i < count; i++)
        dart_est_of(index)->adjust.entries[lengths[i]]++;
    return count ? dart_est_register_now(t, index, &view->node, view->header->prefix, lengths, count) : 0;
}


/* Traverses a part of the tree and registers its nodes. Returns 1 if a part of the tree remains, 0 if not, or an error.
 */
static int fill_some(far_task *t, far_index *index, filling *fill) {
    dart_adjust *a = &dart_est_of(index)->adjust;
    far_scratch_mark mark = far_scratch_here(t);
    unsigned most = (dart_of(index)->walk_slice + 1) / 2;
    dart_traversal traversal = {.range.from = {a->cursor, a->cursor_length},
                                .reads = DART_READ_SLOTS,
                                .wanted = most,
                                .visit_node = fill_node,
                                .ctx = fill};
    const dart_item *leaf;
    int more = 1;
    for (unsigned i = 0; i < most && more == 1; i++) {
        more = dart_traversal_next(t, index, &traversal, &leaf);
        a->leaves += more == 1;
    }
    if (more == 1) {
        size_t length = 0;
        if ((more = dart_traversal_next_key(&traversal, a->cursor, &length)))
            a->cursor_length = length;
    }
    far_scratch_back(t, mark);
    return more;
}


static int fill_and_publish(far_task *t, far_index *index) {
    dart_est *est = dart_est_of(index);
    dart_adjust *a = &est->adjust;
    const dart_list *now = dart_est_list(est);
    filling fill = {.count = 0};
    for (unsigned i = 0; i < a->target.lookup_count; i++)
        if (!contains_length(now->lookup, now->lookup_count, a->target.lookup[i]))
            fill.lengths[fill.count++] = a->target.lookup[i];
    int more = fill.count ? fill_some(t, index, &fill) : 0;
    if (more == FAR_ERR_NO_MEMORY) /* Operations will register the other nodes when they miss them. */
        more = 0;
    if (more >= 0)
        drop_costly_lengths(a);
    if (more != 0)
        return more;
    dart_list list = *now;
    if (a->target.lookup_count == 0) { /* no length of the target is worth its memory, so the list stays as it is */
        a->target.lookup_count = now->lookup_count;
        memcpy(a->target.lookup, now->lookup, sizeof(a->target.lookup));
    }
    list.lookup_count = a->target.lookup_count;
    memcpy(list.lookup, a->target.lookup, sizeof(list.lookup));
    int err = publish_list(t, index, &list);
    if (err <= 0)
        return err < 0 ? err : release_lock(t, index);
    a->phase = DART_ADJUST_LOOKUP_PUBLISHED;
    return 1;
}


/* ---- Step 4: sweeping ---- */

static int sweep_segment(far_task *t, far_index *index, const dart_dir_slot *dir, uint64_t word, const uint64_t *slots,
                         unsigned count, void *ctx) {
    const dart_list *list = ctx;
    if (dart_is_table(word))
        return 0;
    if (dart_est_any_frozen(slots, count)) {
        int err = dart_est_grow(t, index, dir, word, true);
        return err < 0 ? err : 1;
    }
    far_scratch_mark mark = far_scratch_here(t);
    dart_target *targets = far_scratch(t, count * sizeof(*targets));
    uint64_t *seen = far_scratch(t, count * 8ull);
    bool any = false, gone = false, lost = false;
    if (!targets || !seen)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for a sweep");
    for (unsigned i = 0; i < count; i++) {
        targets[i].addr = dart_est_is_committed(slots[i]) ? dart_word_addr(slots[i]) : 0;
        any |= targets[i].addr != 0;
    }
    int err = any ? dart_est_read_targets(t, index, targets, count) : 0;
    for (unsigned i = 0; err >= 0 && i < count; i++) {
        unsigned length = targets[i].depth - dart_est_delta(slots[i]);
        seen[i] = slots[i];
        if (targets[i].addr && targets[i].sound && !contains_length(list->lookup, list->lookup_count, length)) {
            far_cas(t, dart_word_addr(word) + i * 8ull, slots[i], 0, &seen[i]);
            gone = true;
        }
    }
    far_point(t, "dart:est_clear_unlisted");
    if (err >= 0)
        err = far_wait(t);
    for (unsigned i = 0; err >= 0 && i < count; i++)
        lost |= seen[i] != slots[i];
    if (gone)
        dart_est_mark_emptied(dart_est_of(index), dir->number);
    far_scratch_back(t, mark);
    return err < 0 ? err : lost;
}


static int sweep_some(far_task *t, far_index *index) {
    dart_est *est = dart_est_of(index);
    dart_adjust *a = &est->adjust;
    dart_list list = *dart_est_list(est);
    int err = 0;
    /* The whole table is swept already if an earlier call failed to publish the list, for lack of memory. Then only the
     * list is published. */
    if (a->sweep_place < dart_est_places(est) &&
        (err = dart_est_visit_segments(t, index, &a->sweep_place, sweep_segment, &list)) < 0)
        return err;
    if (a->sweep_place < dart_est_places(est))
        return 1;
    list.active_count = list.lookup_count;
    memcpy(list.active, list.lookup, sizeof(list.active));
    if ((err = publish_list(t, index, &list)) < 0)
        return err;
    return release_lock(t, index);
}


static int start_sweep_or_finish(far_task *t, far_index *index) {
    dart_est *est = dart_est_of(index);
    const dart_list *now = dart_est_list(est);
    if (now->active_count == now->lookup_count)
        return release_lock(t, index);
    if (!poll_two_epochs(t, &est->adjust))
        return 1;
    est->adjust.sweep_place = 0;
    est->adjust.phase = DART_ADJUST_SWEEP;
    return 1;
}


/* With est_update=off the table is built once, after the initial load. The first get is taken as the end of the load.
 */
int dart_est_build_once(far_task *t, far_index *index) {
    dart_est *est = dart_est_of(index);
    const dart_list *list = dart_est_list(est);
    filling fill = {.count = list->lookup_count};
    if (est->update || est->adjust.built || !atomic_load_explicit(&est->adjust.had_get, memory_order_relaxed))
        return 0;
    memcpy(fill.lengths, list->lookup, sizeof(fill.lengths));
    int more = fill_some(t, index, &fill);
    est->adjust.built = more == 0;
    return more;
}


int dart_est_adjust(far_task *t, far_index *index) {
    dart_est *est = dart_est_of(index);
    dart_adjust *a = &est->adjust;
    switch (a->phase) {
    case DART_ADJUST_IDLE:
        return est->adjusting ? begin_adjustment(t, index) : 0;
    case DART_ADJUST_ACTIVE_PUBLISHED:
        if (poll_two_epochs(t, a))
            a->phase = DART_ADJUST_FILL;
        return 1;
    case DART_ADJUST_FILL:
        return fill_and_publish(t, index);
    case DART_ADJUST_LOOKUP_PUBLISHED:
        return start_sweep_or_finish(t, index);
    default:
        return sweep_some(t, index);
    }
}
