/* Nodes that wish for an entry in the skip table wait here until there are some of them: then one task serves them all,
 * four batches of verbs for the nodes of many operations. What waits is a hint, known to this handle only: a wish that
 * is dropped is an entry that is missed, and made when somebody misses it.
 *
 * A wish outlives the pin of its operation. It carries the epoch in which its node was linked, and is granted under a
 * later pin only as long as the tag rule (express.c) allows: until then the node, retired or not, is not reused. */
#include "index/dart/est.h"
#include "pool/epoch.h"


/* Takes all out. */
static unsigned take(dart_wishes *q, dart_wish *wishes) {
    far_spin_lock(&q->lock);
    unsigned count = q->count;
    memcpy(wishes, q->wish, count * sizeof(*wishes));
    q->count = 0;
    q->called = false;
    far_spin_unlock(&q->lock);
    return count;
}


static void run_grant(far_task *t, far_index *index, void *arg) {
    (void)arg;
    far_point(t, "dart:est_upkeep");
    dart_wish *wishes = far_scratch(t, DART_WISHES * sizeof(*wishes));
    unsigned count = wishes ? take(&dart_est_of(index)->wishes, wishes) : 0;
    if (count)
        dart_est_grant(t, index, wishes, count);
}


static bool waits_already(const dart_wishes *q, far_addr node) {
    for (unsigned i = 0; i < q->count; i++)
        if (q->wish[i].node.addr == node)
            return true;
    return false;
}


bool dart_est_wish(far_task *t, far_index *index, const dart_wish *wish) {
    dart_est *est = dart_est_of(index);
    dart_wishes *q = &est->wishes;
    far_spin_lock(&q->lock);
    bool taken = q->count < DART_WISHES && !waits_already(q, wish->node.addr);
    if (taken) {
        q->wish[q->count] = *wish;
        q->wish[q->count++].epoch = far_epoch(t);
    }
    bool call = q->count >= est->upkeep_batch && (!q->called || q->count == DART_WISHES);
    q->called |= call;
    far_spin_unlock(&q->lock);
    if (call && !far_index_spawn(t, index, run_grant, NULL, 0)) {
        far_spin_lock(&q->lock);
        q->called = false;
        far_spin_unlock(&q->lock);
    }
    return taken;
}


/* Housekeeping: what nobody has added to for a while is granted too. */
void dart_est_wishes_idle(far_task *t, far_index *index) {
    dart_wishes *q = &dart_est_of(index)->wishes;
    far_spin_lock(&q->lock);
    bool waited = q->count > 0 && q->count == q->idle;
    q->idle = q->count;
    far_spin_unlock(&q->lock);
    if (!waited)
        return;
    far_scratch_mark mark = far_scratch_here(t);
    run_grant(t, index, NULL);
    far_scratch_back(t, mark);
}


/* ---- What is wished ---- */

static bool wish_lengths(far_task *t, far_index *index, const dart_node *node, unsigned above, unsigned length,
                         const void *prefix, const dart_names *names) {
    const dart_list *list = dart_est_list(dart_est_of(index));
    dart_wish wish = {.node = *node};
    for (unsigned i = 0; i < list->lookup_count; i++) {
        unsigned l = list->lookup[i];
        bool wanted = length ? l == length : l > above;
        if (wanted && l <= node->depth && node->depth - l <= DART_EST_DELTA_MAX)
            wish.lengths[wish.count++] = (uint8_t)l;
    }
    if (wish.count == 0)
        return false;
    memcpy(wish.prefix, prefix, wish.lengths[wish.count - 1]);
    dart_est_names_empty(index, names, &wish);
    return dart_est_wish(t, index, &wish);
}


bool dart_est_wish_length(far_task *t, far_index *index, const dart_node *node, const void *prefix, unsigned length) {
    return wish_lengths(t, index, node, 0, length, prefix, NULL);
}


void dart_est_register(far_task *t, far_index *index, const dart_node *node, unsigned parent_depth, far_bytes prefix,
                       bool soon, const dart_names *names) {
    dart_est *est = dart_est_of(index);
    if (!est || prefix.length < node->depth)
        return;
    dart_est_keep_linked(t, index, node, parent_depth, prefix);
    if (est->update && (soon || dart_est_is_eager(est)))
        wish_lengths(t, index, node, parent_depth, 0, prefix.data, names);
}


/* ---- A stale entry ---- */

typedef struct stale {
    far_addr entry;
    uint64_t word;
} stale;


static void run_clear(far_task *t, far_index *index, void *arg) {
    const stale *work = arg;
    (void)index;
    far_point(t, "dart:est_upkeep");
    far_cas(t, work->entry, work->word, 0, NULL);
    far_wait(t);
}


void dart_est_spawn_clear(far_task *t, far_index *index, far_addr entry, uint64_t word) {
    stale work = {entry, word};
    far_index_spawn(t, index, run_clear, &work, sizeof(work));
}


/* ---- A node in another's place ---- */

/* Where the entry is that led to a node, as far as this handle knows; 0: it does not. */
static far_addr entry_of(far_task *t, dart_est *est, const dart_start *start, uint64_t hash) {
    bool fresh;
    if (start->entry || start->slot == 0)
        return start->entry;
    dart_spot spot = dart_spot_at(est, dart_hash_directory(hash, est->bits));
    uint64_t word = dart_est_know(est, hash, far_epoch(t), &spot, &fresh);
    return fresh ? dart_est_bucket_addr(word, spot.level, hash) + (start->slot - 1) * 8ull : 0;
}


bool dart_est_rename_put(far_task *t, far_index *index, const dart_start *old, const dart_node *new,
                         unsigned parent_depth, far_bytes prefix, dart_rename *rename) {
    dart_est *est = dart_est_of(index);
    if (!est || !est->update || old->length <= parent_depth || !dart_list_looks_up(dart_est_list(est), old->length))
        return false;
    uint64_t hash = dart_est_hash(est, prefix.data, old->length);
    unsigned fingerprint = dart_est_fingerprint_of(est, hash), delta = new->depth - old->length;
    *rename = (dart_rename){.entry = entry_of(t, est, old, hash), .node = *new, .hash = hash};
    if (!rename->entry ||
        !dart_est_begin_work(&est->outstanding, far_task_client(t), new->addr)) /* until its wish is granted */
        return false;
    rename->slot = old->slot - 1;
    rename->expected = dart_est_word(fingerprint, delta, old->node.type, old->node.addr);
    rename->tentative = dart_est_tentative(far_task_client(t), far_task_generation(t), new->addr);
    rename->committed = dart_est_word(fingerprint, delta, new->type, new->addr);
    far_cas(t, rename->entry, rename->expected, rename->tentative, &rename->seen);
    return true;
}


bool dart_est_rename_end(far_task *t, far_index *index, const dart_rename *rename, bool linked) {
    dart_wish wish = {.node = rename->node,
                      .entry = rename->entry,
                      .slot = rename->slot,
                      .tentative = rename->tentative,
                      .committed = rename->committed,
                      .hash = rename->hash};
    if (linked && rename->seen == rename->expected && dart_est_wish(t, index, &wish))
        return true;
    dart_est_end_work(&dart_est_of(index)->outstanding, far_task_client(t), rename->node.addr);
    return false;
}
