/* The queue of nodes to be registered in the skip table. When the queue has enough nodes, one task registers all of
 * them, with four batches of verbs for the nodes of many operations. The queue is local to a handle. A queued node may
 * be dropped, because an operation that misses the table entry later queues the node again.
 *
 * A queued registration outlives the pin of its operation. Therefore the registration contains the epoch in which its
 * node was linked. The registration is executed under a later pin only if the tag rule (cache_express.c) permits,
 * because until then the node's memory is not reused, whether the node was retired or not. */
#include "index/dart/skiptable/skiptable.h"
#include "pool/epoch/epoch.h"


/* Removes all registrations from the queue, and returns their number. */
static unsigned take_all(dart_registration_queue *q, dart_registration *registrations) {
    far_spin_lock(&q->lock);
    unsigned count = q->count;
    memcpy(registrations, q->entries, count * sizeof(*registrations));
    q->count = 0;
    q->task_spawned = false;
    far_spin_unlock(&q->lock);
    return count;
}


static void register_queued(far_task *t, far_index *index, void *arg) {
    (void)arg;
    far_point(t, "dart:est_upkeep");
    dart_registration *registrations = far_scratch(t, DART_REGISTRATIONS * sizeof(*registrations));
    unsigned count = registrations ? take_all(&dart_est_of(index)->queue, registrations) : 0;
    if (count)
        dart_est_register_batch(t, index, registrations, count);
}


static bool node_is_queued(const dart_registration_queue *q, far_addr node) {
    for (unsigned i = 0; i < q->count; i++)
        if (q->entries[i].node.addr == node)
            return true;
    return false;
}


bool dart_est_queue_registration(far_task *t, far_index *index, const dart_registration *registration) {
    dart_est *est = dart_est_of(index);
    dart_registration_queue *q = &est->queue;
    far_spin_lock(&q->lock);
    bool taken = q->count < DART_REGISTRATIONS && !node_is_queued(q, registration->node.addr);
    if (taken) {
        q->entries[q->count] = *registration;
        q->entries[q->count++].epoch = far_epoch(t);
    }
    bool call = q->count >= est->upkeep_batch && (!q->task_spawned || q->count == DART_REGISTRATIONS);
    q->task_spawned |= call;
    far_spin_unlock(&q->lock);
    if (call && !far_index_spawn(t, index, register_queued, NULL, 0)) {
        far_spin_lock(&q->lock);
        q->task_spawned = false;
        far_spin_unlock(&q->lock);
    }
    return taken;
}


/* Called by housekeeping. If no registration was queued since the last call, executes the queued registrations. */
void dart_est_flush_idle_queue(far_task *t, far_index *index) {
    dart_registration_queue *q = &dart_est_of(index)->queue;
    far_spin_lock(&q->lock);
    bool waited = q->count > 0 && q->count == q->count_at_idle;
    q->count_at_idle = q->count;
    far_spin_unlock(&q->lock);
    if (!waited)
        return;
    far_scratch_mark mark = far_scratch_here(t);
    register_queued(t, index, NULL);
    far_scratch_back(t, mark);
}


/* ---- Adding nodes to the queue ---- */

static bool queue_lengths(far_task *t, far_index *index, const dart_node *node, unsigned above, unsigned length,
                          const void *prefix, const dart_entry_buckets *buckets) {
    const dart_list *list = dart_est_list(dart_est_of(index));
    dart_registration registration = {.node = *node};
    for (unsigned i = 0; i < list->lookup_count; i++) {
        unsigned l = list->lookup[i];
        bool wanted = length ? l == length : l > above;
        if (wanted && l <= node->depth && node->depth - l <= DART_EST_DELTA_MAX)
            registration.lengths[registration.count++] = (uint8_t)l;
    }
    if (registration.count == 0)
        return false;
    memcpy(registration.prefix, prefix, registration.lengths[registration.count - 1]);
    dart_est_choose_empty_slot(index, buckets, &registration);
    return dart_est_queue_registration(t, index, &registration);
}


bool dart_est_queue_length(far_task *t, far_index *index, const dart_node *node, const void *prefix, unsigned length) {
    return queue_lengths(t, index, node, 0, length, prefix, NULL);
}


void dart_est_register(far_task *t, far_index *index, const dart_node *node, unsigned parent_depth, far_bytes prefix,
                       bool soon, const dart_entry_buckets *buckets) {
    dart_est *est = dart_est_of(index);
    if (!est || prefix.length < node->depth)
        return;
    dart_est_cache_linked(t, index, node, parent_depth, prefix);
    if (est->update && (soon || dart_est_is_eager(est)))
        queue_lengths(t, index, node, parent_depth, 0, prefix.data, buckets);
}


/* ---- Stale entries ---- */

typedef struct stale_entry {
    far_addr entry;
    uint64_t word;
} stale_entry;


static void clear_stale_entry(far_task *t, far_index *index, void *arg) {
    const stale_entry *work = arg;
    (void)index;
    far_point(t, "dart:est_upkeep");
    far_cas(t, work->entry, work->word, 0, NULL);
    far_wait(t);
}


void dart_est_clear_entry_later(far_task *t, far_index *index, far_addr entry, uint64_t word) {
    stale_entry work = {entry, word};
    far_index_spawn(t, index, clear_stale_entry, &work, sizeof(work));
}


/* ---- Redirecting the entry of a replaced node to its replacement ---- */

/* Returns the address of the entry through which a node was reached; 0 if this handle does not know it. */
static far_addr entry_address(far_task *t, dart_est *est, const dart_start *start, uint64_t hash) {
    bool fresh;
    if (start->entry || start->position == 0)
        return start->entry;
    dart_dir_slot dir = dart_dir_slot_at(est, dart_hash_directory(hash, est->bits));
    uint64_t word = dart_est_follow_cached_tables(est, hash, far_epoch(t), &dir, &fresh);
    return fresh ? dart_est_bucket_addr(word, dir.level, hash) + (start->position - 1) * 8ull : 0;
}


bool dart_est_redirect_add_cas(far_task *t, far_index *index, const dart_start *old, const dart_node *new,
                               unsigned parent_depth, far_bytes prefix, dart_redirect *redirect) {
    dart_est *est = dart_est_of(index);
    if (!est || !est->update || old->length <= parent_depth || !dart_list_has_lookup(dart_est_list(est), old->length))
        return false;
    uint64_t hash = dart_est_hash(est, prefix.data, old->length);
    unsigned fingerprint = dart_est_fingerprint_of(est, hash), delta = new->depth - old->length;
    *redirect = (dart_redirect){.entry = entry_address(t, est, old, hash), .node = *new, .hash = hash};
    /* The claim of the new node is released after the queued commit was executed. */
    if (!redirect->entry || !dart_est_claim_node(&est->claims, far_task_client(t), new->addr))
        return false;
    redirect->slot = old->position - 1;
    redirect->expected = dart_est_word(fingerprint, delta, old->node.type, old->node.addr);
    redirect->tentative = dart_est_tentative(far_task_client(t), far_task_generation(t), new->addr);
    redirect->committed = dart_est_word(fingerprint, delta, new->type, new->addr);
    far_cas(t, redirect->entry, redirect->expected, redirect->tentative, &redirect->seen);
    return true;
}


bool dart_est_redirect_finish(far_task *t, far_index *index, const dart_redirect *redirect, bool linked) {
    dart_registration registration = {.node = redirect->node,
                                      .entry = redirect->entry,
                                      .slot = redirect->slot,
                                      .tentative = redirect->tentative,
                                      .committed = redirect->committed,
                                      .hash = redirect->hash};
    if (linked && redirect->seen == redirect->expected && dart_est_queue_registration(t, index, &registration))
        return true;
    dart_est_release_node(&dart_est_of(index)->claims, far_task_client(t), redirect->node.addr);
    return false;
}
