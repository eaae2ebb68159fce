/* Adjusting the list of prefix lengths to the keys, in four steps. Writers register under the lookup lengths and remove
 * under the active ones, and every handle has the newest list before it pins a new epoch. So:
 *
 *   1  publish active + new lengths. Two epochs later everybody removes under them; only then come entries of them:
 *   2  fill: a tour of the tree registers every node under the new lengths
 *   3  publish the new lookup list. Two epochs later nobody registers under the dropped lengths any more:
 *   4  sweep their entries, publish active = lookup
 *
 * Active is a superset of lookup at every moment, so a death anywhere does no harm: the next adjuster starts over. One
 * at a time: the lock names its owner; that of a dead one is taken over. A step at a time, from the idle hook: nothing
 * waits. */
#include "base/error.h"
#include "index/dart/est.h"
#include "index/dart/tour.h"
#include "pool/epoch.h"
#include "pool/owner.h"

#define LENGTHS_MAX   8u   /* of a chosen list */
#define SELDOM        128u /* times adjust_every operations: so often it looks again, at least */
#define LEAVES_ENTRY  4u   /* leaves for each entry of a length, at least: the memory that a length may take */
#define LEAVES_ENOUGH 256u /* met before that is judged */


void dart_est_sample(dart_est *est, far_bytes key) {
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
        if ((err = far_owner_is_dead(t, theirs)) <= 0)
            return err;
        if ((err = far_cas_word(t, addr, theirs, mine, &seen)) >= 0 && seen != theirs)
            return 0;
    }
    if (err < 0)
        return err;
    a->lock_word = mine;
    return 1;
}


static int drop_lock(far_task *t, far_index *index) {
    dart_adjust *a = &dart_est_of(index)->adjust;
    uint64_t mine = a->lock_word, seen;
    a->lock_word = 0;
    a->phase = DART_ADJUST_IDLE;
    return far_cas_word(t, index->descriptor + offsetof(dart_super, adjuster), mine, 0, &seen);
}


void dart_est_leave(far_task *t, far_index *index) {
    if (dart_est_of(index)->adjust.lock_word)
        drop_lock(t, index);
}


/* 1: shown, and the epoch of that is remembered; 0: another was faster, which means that we are no adjuster any more.
 */
static int publish(far_task *t, far_index *index, dart_list *list) {
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


static bool has(const uint8_t *lengths, unsigned count, unsigned length) {
    for (unsigned i = 0; i < count; i++)
        if (lengths[i] == length)
            return true;
    return false;
}


/* Both lists in one, rising; 0: that is too long. */
static unsigned unite(const uint8_t *a, unsigned a_count, const uint8_t *b, unsigned b_count,
                      uint8_t united[DART_LIST_MAX]) {
    unsigned count = 0;
    for (unsigned l = 1; l <= DART_EST_PREFIX_MAX; l++)
        if (has(a, a_count, l) || has(b, b_count, l)) {
            if (count == DART_LIST_MAX)
                return 0;
            united[count++] = (uint8_t)l;
        }
    return count;
}


/* All pins are two epochs younger than the last publication. */
static bool has_waited(far_task *t, const dart_adjust *a) {
    if (far_epoch_safe(t) >= a->epoch + 2)
        return true;
    far_epoch_request(far_task_pool(t));
    return false;
}


/* ---- Step 0: the choice ---- */

static int take_sample(far_task *t, far_index *index, far_bytes key, dart_sample *sample) {
    far_scratch_mark mark = far_scratch_here(t);
    dart_find *f = far_scratch(t, sizeof(*f));
    if (!f)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a sample");
    memset(f, 0, sizeof(*f));
    dart_find_init(f, key, DART_SEEK_VALUE);
    f->to_root = true;
    int err = dart_find_run(t, index, f);
    *sample = (dart_sample){.key_length = (unsigned)key.length};
    for (unsigned i = 0; err >= 0 && i < f->path.count && i < DART_SAMPLE_DEPTHS; i++)
        sample->depths[sample->count++] = (uint16_t)f->path.steps[i].node.depth;
    far_scratch_back(t, mark);
    return err;
}


/* The lengths that the sampled keys ask for; or those that are there, when these are not much better. */
static int choose(far_task *t, far_index *index, dart_list *target) {
    dart_adjust *a = &dart_est_of(index)->adjust;
    dart_sample *samples = far_scratch(t, DART_SAMPLES * sizeof(*samples));
    uint8_t key[DART_EST_PREFIX_MAX];
    if (!samples)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for samples");
    unsigned count = 0;
    for (unsigned sampled = DART_SAMPLES; count < sampled; count++) {
        unsigned i = count;
        far_spin_lock(&a->lock);
        sampled = a->sampled < DART_SAMPLES ? a->sampled : DART_SAMPLES;
        unsigned length = a->keys[i].length;
        memcpy(key, a->keys[i].key, length);
        far_spin_unlock(&a->lock);
        int err = take_sample(t, index, (far_bytes){key, length}, &samples[i]);
        if (err < 0)
            return err;
    }
    target->lookup_count = (uint8_t)dart_choose_lengths(samples, count, LENGTHS_MAX, target->lookup);
    int err = dart_est_read_list(t, index); /* with the lock: it stays */
    const dart_list *now = dart_est_list(dart_est_of(index));
    if (!dart_lengths_are_worth(samples, count, now, target->lookup, target->lookup_count)) {
        target->lookup_count = now->lookup_count;
        memcpy(target->lookup, now->lookup, sizeof(target->lookup));
    }
    return err;
}


/* With the lock: towards these lookup lengths. */
static int set_out(far_task *t, far_index *index) {
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
        (uint8_t)unite(now->active, now->active_count, a->target.lookup, a->target.lookup_count, list.active);
    if (same || a->target.lookup_count == 0 || list.active_count == 0) {
        a->phase = DART_ADJUST_SHOWN; /* a predecessor may have left lengths to be dropped */
        return (err = far_epoch_read(t, &a->epoch)) < 0 ? err : 1;
    }
    if ((err = publish(t, index, &list)) <= 0)
        return err < 0 ? err : drop_lock(t, index);
    a->phase = DART_ADJUST_PUBLISHED;
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
    return set_out(t, index);
}


static int begin(far_task *t, far_index *index) {
    const dart_est *est = dart_est_of(index);
    dart_adjust *a = &dart_est_of(index)->adjust;
    uint64_t seen = atomic_load_explicit(&a->seen, memory_order_relaxed), seldom = (uint64_t)SELDOM * est->adjust_every;
    a->next = a->next ? a->next : est->adjust_every;
    far_spin_lock(&a->lock);
    bool enough = a->sampled >= (est->adjust_every < DART_SAMPLES ? est->adjust_every : DART_SAMPLES);
    far_spin_unlock(&a->lock);
    if (seen < a->next || !enough)
        return 0;
    a->next = seen + (seen < seldom ? seen : seldom); /* a choice costs some thousand READs */
    int err = take_lock(t, index);
    if (err <= 0)
        return err;
    far_scratch_mark mark = far_scratch_here(t);
    err = choose(t, index, &a->target);
    far_scratch_back(t, mark);
    return err < 0 ? err : set_out(t, index);
}


/* ---- Step 2: filling ---- */

typedef struct filling {
    uint8_t lengths[DART_LIST_MAX]; /* to be filled in */
    unsigned count;
} filling;


/* Lengths with an entry for every few leaves would take more memory than they are worth: they are left out of what is
 * to be. Their entries go with those of the lengths that are dropped. */
static void leave_out_costly(dart_adjust *a) {
    unsigned kept = 0, count = a->target.lookup_count;
    for (unsigned i = 0; i < count; i++) {
        unsigned length = a->target.lookup[i];
        bool costly = a->leaves >= LEAVES_ENOUGH && a->entries[length] * LEAVES_ENTRY > a->leaves;
        if (!costly)
            a->target.lookup[kept++] = (uint8_t)length;
    }
    a->target.lookup_count = (uint8_t)kept;
}


static int fill_node(far_task *t, far_index *index, const dart_view *view, const dart_item *item, void *ctx) {
    const filling *fill = ctx;
    uint8_t lengths[DART_LIST_MAX];
    if (!item) /* the root */
        return 0;
    unsigned parent = dart_header_depth(item->above), count = 0;
    for (unsigned i = 0; i < fill->count; i++)
        if (fill->lengths[i] > parent && fill->lengths[i] <= view->node.depth)
            lengths[count++] = fill->lengths[i];
    for (unsigned i = 0; i < count; i++)
        dart_est_of(index)->adjust.entries[lengths[i]]++;
    return count ? dart_est_register_now(t, index, &view->node, view->header->prefix, lengths, count) : 0;
}


/* A part of the tree; 1: there is more. */
static int fill_some(far_task *t, far_index *index, filling *fill) {
    dart_adjust *a = &dart_est_of(index)->adjust;
    far_scratch_mark mark = far_scratch_here(t);
    unsigned most = (dart_of(index)->walk_slice + 1) / 2;
    dart_tour tour = {.from = {a->cursor, a->cursor_length},
                      .reads = DART_READ_SLOTS,
                      .wanted = most,
                      .node = fill_node,
                      .ctx = fill};
    dart_item leaf;
    int more = 1;
    for (unsigned i = 0; i < most && more == 1; i++) {
        more = dart_tour_next(t, index, &tour, &leaf);
        a->leaves += more == 1;
    }
    if (more == 1 && (more = tour.first != NULL))
        a->cursor_length = dart_item_place(tour.first, a->cursor);
    far_scratch_back(t, mark);
    return more;
}


static int fill_and_show(far_task *t, far_index *index) {
    dart_est *est = dart_est_of(index);
    dart_adjust *a = &est->adjust;
    const dart_list *now = dart_est_list(est);
    filling fill = {.count = 0};
    for (unsigned i = 0; i < a->target.lookup_count; i++)
        if (!has(now->lookup, now->lookup_count, a->target.lookup[i]))
            fill.lengths[fill.count++] = a->target.lookup[i];
    int more = fill.count ? fill_some(t, index, &fill) : 0;
    if (more == FAR_ERR_NO_MEMORY) /* the rest comes by use */
        more = 0;
    if (more >= 0)
        leave_out_costly(a);
    if (more != 0)
        return more;
    dart_list list = *now;
    if (a->target.lookup_count == 0) { /* none is worth it: all stays as it is */
        a->target.lookup_count = now->lookup_count;
        memcpy(a->target.lookup, now->lookup, sizeof(a->target.lookup));
    }
    list.lookup_count = a->target.lookup_count;
    memcpy(list.lookup, a->target.lookup, sizeof(list.lookup));
    int err = publish(t, index, &list);
    if (err <= 0)
        return err < 0 ? err : drop_lock(t, index);
    a->phase = DART_ADJUST_SHOWN;
    return 1;
}


/* ---- Step 4: sweeping ---- */

static int sweep_segment(far_task *t, far_index *index, const dart_spot *spot, uint64_t word, const uint64_t *slots,
                         unsigned count, void *ctx) {
    const dart_list *list = ctx;
    if (dart_is_table(word))
        return 0;
    if (dart_est_any_frozen(slots, count)) {
        int err = dart_est_grow(t, index, spot, word, true);
        return err < 0 ? err : 1;
    }
    far_scratch_mark mark = far_scratch_here(t);
    dart_target *targets = far_scratch(t, count * sizeof(*targets));
    uint64_t *seen = far_scratch(t, count * 8ull);
    bool any = false, gone = false, lost = false;
    if (!targets || !seen)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a sweep");
    for (unsigned i = 0; i < count; i++) {
        targets[i].addr = dart_est_is_committed(slots[i]) ? dart_word_addr(slots[i]) : 0;
        any |= targets[i].addr != 0;
    }
    int err = any ? dart_est_read_targets(t, index, targets, count) : 0;
    for (unsigned i = 0; err >= 0 && i < count; i++) {
        unsigned length = targets[i].depth - dart_est_delta(slots[i]);
        seen[i] = slots[i];
        if (targets[i].addr && targets[i].sound && !has(list->lookup, list->lookup_count, length)) {
            far_cas(t, dart_word_addr(word) + i * 8ull, slots[i], 0, &seen[i]);
            gone = true;
        }
    }
    far_point(t, "dart:est_sweep");
    if (err >= 0)
        err = far_wait(t);
    for (unsigned i = 0; err >= 0 && i < count; i++)
        lost |= seen[i] != slots[i];
    if (gone)
        dart_est_note_empty(dart_est_of(index), spot->at);
    far_scratch_back(t, mark);
    return err < 0 ? err : lost;
}


static int sweep_some(far_task *t, far_index *index) {
    dart_est *est = dart_est_of(index);
    dart_adjust *a = &est->adjust;
    dart_list list = *dart_est_list(est);
    int err = 0;
    if (a->at < dart_est_places(est) && /* else all of it was swept before, and there was no memory for the list */
        (err = dart_est_each_segment(t, index, &a->at, sweep_segment, &list)) < 0)
        return err;
    if (a->at < dart_est_places(est))
        return 1;
    list.active_count = list.lookup_count;
    memcpy(list.active, list.lookup, sizeof(list.active));
    if ((err = publish(t, index, &list)) < 0)
        return err;
    return drop_lock(t, index);
}


static int finish(far_task *t, far_index *index) {
    dart_est *est = dart_est_of(index);
    const dart_list *now = dart_est_list(est);
    if (now->active_count == now->lookup_count)
        return drop_lock(t, index);
    if (!has_waited(t, &est->adjust))
        return 1;
    est->adjust.at = 0;
    est->adjust.phase = DART_ADJUST_SWEEP;
    return 1;
}


/* est_update=off: the table is built once, after the load, which is over when the first get comes. */
int dart_est_build_once(far_task *t, far_index *index) {
    dart_est *est = dart_est_of(index);
    const dart_list *list = dart_est_list(est);
    filling fill = {.count = list->lookup_count};
    if (est->update || est->adjust.filled || !atomic_load_explicit(&est->adjust.read_from, memory_order_relaxed))
        return 0;
    memcpy(fill.lengths, list->lookup, sizeof(fill.lengths));
    int more = fill_some(t, index, &fill);
    est->adjust.filled = more == 0;
    return more;
}


int dart_est_adjust(far_task *t, far_index *index) {
    dart_est *est = dart_est_of(index);
    dart_adjust *a = &est->adjust;
    switch (a->phase) {
    case DART_ADJUST_IDLE:
        return est->adjusting ? begin(t, index) : 0;
    case DART_ADJUST_PUBLISHED:
        if (has_waited(t, a))
            a->phase = DART_ADJUST_FILL;
        return 1;
    case DART_ADJUST_FILL:
        return fill_and_show(t, index);
    case DART_ADJUST_SHOWN:
        return finish(t, index);
    default:
        return sweep_some(t, index);
    }
}
