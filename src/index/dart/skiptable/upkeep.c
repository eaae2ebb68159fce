/* Registration of nodes in the skip table, and the removal of their entries. An entry is first written as a tentative
 * word, then validated, then committed. The entry is removed before its node is retired. Invariant E1: a committed
 * entry never names a node that was handed to far_retire.
 *
 * Proof of E1. A client removes the entries of a node only after all slots of the node are frozen, and retires the node
 * after the removal. A registering client commits its entry only if it saw a slot of the node unfrozen after its
 * tentative word was in the table. So the removing client reads the bucket later than the tentative word was written,
 * and finds the word, tentative or committed. No client commits the tentative word of another client, because the word
 * contains the owner's client id, and at most one task of a client registers a node at a time.
 *
 * Registrations are collected in a queue (queue.c), so that each batch serves the nodes of many operations. */
#include "base/error.h"
#include "index/dart/skiptable/skiptable.h"
#include "pool/epoch/epoch.h"

#define TRIES 4u

typedef struct pending_entry { /* the registration of a node under one prefix length */
    const dart_node *node;
    const void *prefix;
    dart_bucket_read read;
    uint64_t tentative, committed; /* the tentative word and the committed word of the entry */
    unsigned slot;                 /* number of the chosen slot in the bucket pair */
    far_addr addr;                 /* address of the chosen slot */
    uint64_t expected, seen;
    uint64_t alive; /* word of the node's first slot, read to validate the entry */
    enum { ENTRY_SEARCHES, ENTRY_SLOT_CHOSEN, ENTRY_TENTATIVE, ENTRY_GIVEN_UP } state;
} pending_entry;


/* ---- At most one task of a client registers a node at a time ---- */

bool dart_est_claim_node(dart_node_claims *o, unsigned client, far_addr node) {
    int empty = -1;
    far_spin_lock(&o->lock);
    for (int i = 0; i < (int)DART_NODE_CLAIMS; i++) {
        if (o->entry[i].node == node && o->entry[i].client == client) {
            far_spin_unlock(&o->lock);
            return false;
        }
        if (o->entry[i].node == 0 && empty < 0)
            empty = i;
    }
    if (empty >= 0) {
        o->entry[empty].node = node;
        o->entry[empty].client = client;
    }
    far_spin_unlock(&o->lock);
    return empty >= 0;
}


void dart_est_release_node(dart_node_claims *o, unsigned client, far_addr node) {
    far_spin_lock(&o->lock);
    for (unsigned i = 0; i < DART_NODE_CLAIMS; i++)
        if (o->entry[i].node == node && o->entry[i].client == client)
            o->entry[i].node = 0;
    far_spin_unlock(&o->lock);
}


/* ---- Registration ---- */

/* Makes a pending entry start again: its bucket must be read again, perhaps in another segment. */
static void restart_search(pending_entry *p) {
    p->read.done = p->read.cache_consulted = p->read.word_is_usable = p->read.word_is_current = false;
    p->state = ENTRY_SEARCHES;
}


/* Called when the segment of a directory word was replaced: all pending entries in this segment read their buckets
 * again. */
static void restart_searches(pending_entry *entries, unsigned count, unsigned at) {
    for (unsigned i = 0; i < count; i++)
        if ((entries[i].state == ENTRY_SEARCHES || entries[i].state == ENTRY_SLOT_CHOSEN) &&
            entries[i].read.dir.number == at)
            restart_search(&entries[i]);
}


static int read_buckets(far_task *t, dart_est *est, pending_entry *entries, unsigned count) {
    for (bool more = true; more;) {
        more = false;
        for (unsigned i = 0; i < count; i++)
            more |= entries[i].state == ENTRY_SEARCHES && dart_bucket_read_add_verbs(t, est, &entries[i].read);
        int err = more ? far_wait(t) : 0;
        for (unsigned i = 0; err >= 0 && i < count; i++) {
            dart_bucket_read *r = &entries[i].read;
            if (entries[i].state == ENTRY_SEARCHES && (r->reads_word || r->reads_slots))
                err = dart_bucket_read_process(t, est, r);
        }
        if (err < 0)
            return err;
    }
    return 0;
}


/* Sets the images of the bucket pair to empty without a READ, because the segment is new. */
static void set_empty_bucket(dart_bucket_read *r, uint64_t word) {
    r->word = word;
    memset(r->slots, 0, sizeof(r->slots));
    r->cache_consulted = r->word_is_current = r->done = true;
}


/* Creates, in one batch, the segments that were missing when the buckets were read. Returns the number of created
 * segments, or an error. */
static int make_missing_segments(far_task *t, far_index *index, pending_entry *entries, unsigned count) {
    unsigned missing = 0;
    dart_dir_slot *dirs = far_scratch(t, count * sizeof(*dirs) + 1);
    uint64_t *words = far_scratch(t, count * sizeof(*words) + 1);
    if (!dirs || !words)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for the upkeep of the skip table");
    for (unsigned i = 0; i < count; i++) {
        unsigned known = 0;
        if (entries[i].state != ENTRY_SEARCHES || entries[i].read.word)
            continue;
        while (known < missing && dirs[known].number != entries[i].read.dir.number)
            known++;
        if (known == missing)
            dirs[missing++] = entries[i].read.dir;
        restart_search(&entries[i]);
    }
    int made = missing ? dart_est_make_segments(t, index, dirs, missing, words) : 0;
    for (unsigned i = 0; i < count; i++)
        for (int m = 0; m < made && entries[i].state == ENTRY_SEARCHES; m++)
            if (entries[i].read.dir.number == dirs[m].number && words[m])
                set_empty_bucket(&entries[i].read, words[m]);
    return made;
}


/* Reads the buckets of all pending entries that have no slot yet. Creates missing segments, and completes the
 * replacement of segments that another client has frozen. Returns 0 or an error. */
static int read_current_buckets(far_task *t, far_index *index, pending_entry *entries, unsigned count) {
    for (bool again = true; again;) {
        int err = read_buckets(t, dart_est_of(index), entries, count);
        again = false;
        for (unsigned i = 0; err >= 0 && i < count; i++) {
            dart_bucket_read *r = &entries[i].read;
            if (entries[i].state != ENTRY_SEARCHES || !r->done || !r->word ||
                !dart_est_any_frozen(r->slots, DART_EST_READ_SLOTS))
                continue;
            err = dart_est_grow(t, index, &r->dir, r->word, true);
            restart_searches(entries, count, r->dir.number);
            again = true;
        }
        if (err < 0 || ((err = make_missing_segments(t, index, entries, count)) < 0 && err != FAR_ERR_NO_MEMORY))
            return err;
        /* If there is no memory for new segments, the entries without a segment are given up. */
        for (unsigned i = 0; err == FAR_ERR_NO_MEMORY && i < count; i++)
            if (entries[i].state == ENTRY_SEARCHES && !entries[i].read.word)
                entries[i].state = ENTRY_GIVEN_UP;
        again |= err > 0;
    }
    return 0;
}


static bool slot_is_chosen(const pending_entry *entries, unsigned before, far_addr slot) {
    for (unsigned i = 0; i < before; i++)
        if ((entries[i].state == ENTRY_SLOT_CHOSEN || entries[i].state == ENTRY_TENTATIVE) && entries[i].addr == slot)
            return true;
    return false;
}


/* Returns the position in the bucket pair of the i-th slot that this hash uses. A hash uses the slots of its main
 * bucket first, then those of the overflow bucket. Main 0 precedes the overflow bucket in the pair, and main 1 follows
 * it. */
static unsigned nth_slot(const dart_bucket_read *r, unsigned i) {
    return dart_hash_main(r->hash) ? (i + DART_EST_BUCKET) % DART_EST_READ_SLOTS : i;
}


/* Searches the bucket for entries of exactly the same prefix. Returns 1 if the new entry is not needed, because an
 * entry names this node or a live node that is less deep; 0 if the new entry is needed; or an error. Sets *slot to an
 * entry that may be overwritten, because its node is dead or not less deep. */
static int find_same_prefix_entry(far_task *t, far_index *index, const pending_entry *p, int *slot) {
    const dart_bucket_read *r = &p->read;
    dart_target targets[DART_EST_READ_SLOTS] = {0};
    bool any = false;
    for (unsigned i = 0; i < DART_EST_READ_SLOTS; i++) {
        uint64_t word = r->slots[i];
        bool rival = dart_est_is_committed(word) && dart_est_fingerprint(word) == dart_est_fingerprint(p->committed);
        if (rival && dart_word_addr(word) == p->node->addr)
            return 1;
        targets[i].addr = rival ? dart_word_addr(word) : 0;
        any |= rival;
    }
    int err = any ? dart_est_read_targets(t, index, targets, DART_EST_READ_SLOTS) : 0;
    for (unsigned i = 0; err >= 0 && any && i < DART_EST_READ_SLOTS; i++) {
        const dart_target *target = &targets[i];
        if (!target->addr || !target->sound || target->depth != r->length + dart_est_delta(r->slots[i]) ||
            memcmp(target->prefix, p->prefix, r->length) != 0)
            continue;
        if (!target->frozen && target->depth < p->node->depth)
            return 1;
        *slot = (int)i;
    }
    return err < 0 ? err : 0;
}


/* result of choose_slot; ENTRY_NOT_NEEDED: find_same_prefix_entry has found an entry that serves as well */
typedef enum { SLOT_CHOSEN, ENTRY_NOT_NEEDED, BUCKET_FULL } slot_choice;


/* Chooses a slot for the tentative word. Returns a slot_choice or an error. */
static int choose_slot(far_task *t, far_index *index, pending_entry *entries, unsigned at) {
    pending_entry *p = &entries[at];
    const dart_bucket_read *r = &p->read;
    int slot = -1, tentative = -1, result = find_same_prefix_entry(t, index, p, &slot);
    if (result != 0)
        return result < 0 ? result : ENTRY_NOT_NEEDED;
    /* prefer a slot with a tentative word for the same node: a client began to register the node there, and may have
     * failed */
    for (unsigned i = 0; i < DART_EST_READ_SLOTS && slot < 0; i++)
        if (dart_est_is_tentative(r->slots[i]) && dart_word_addr(r->slots[i]) == p->node->addr &&
            !slot_is_chosen(entries, at, dart_est_slot_addr(r, i)))
            slot = (int)i;
    for (unsigned n = 0; n < DART_EST_READ_SLOTS && slot < 0; n++) {
        unsigned i = nth_slot(r, n);
        if (slot_is_chosen(entries, at, dart_est_slot_addr(r, i)))
            continue;
        if (r->slots[i] == 0)
            slot = (int)i;
        else if (dart_est_is_tentative(r->slots[i]) && tentative < 0)
            tentative = (int)i;
    }
    slot = slot < 0 ? tentative : slot;
    if (slot < 0)
        return BUCKET_FULL;
    p->slot = (unsigned)slot;
    p->addr = dart_est_slot_addr(r, p->slot);
    p->expected = r->slots[slot];
    p->state = ENTRY_SLOT_CHOSEN;
    return SLOT_CHOSEN;
}


static int choose_slots(far_task *t, far_index *index, pending_entry *entries, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        pending_entry *p = &entries[i];
        /* Skips the entries that have a slot already or were given up, and those whose segment was just replaced,
         * because their buckets must be read again first. */
        if (p->state != ENTRY_SEARCHES || !p->read.done)
            continue;
        int result = choose_slot(t, index, entries, i);
        if (result == BUCKET_FULL) {
            result = dart_est_grow(t, index, &p->read.dir, p->read.word, false);
            /* If there is no memory to replace the full segment, only this entry is given up. The entries that already
             * have a slot in this segment continue. */
            bool full = result == FAR_ERR_NO_MEMORY;
            if (result >= 0)
                restart_searches(entries, count, p->read.dir.number);
            if (full) {
                p->state = ENTRY_GIVEN_UP;
                result = 0;
            }
        } else if (result == ENTRY_NOT_NEEDED) {
            p->state = ENTRY_GIVEN_UP;
        }
        if (result < 0)
            return result;
    }
    return 0;
}


/* Writes the tentative words of all pending entries. Entries that get no slot after some tries are given up. Returns 0
 * or an error. */
static int install_tentative_words(far_task *t, far_index *index, pending_entry *entries, unsigned count) {
    bool missing = true;
    for (unsigned n = 0; n < TRIES && missing; n++) {
        int err = read_current_buckets(t, index, entries, count);
        if (err < 0 || (err = choose_slots(t, index, entries, count)) < 0)
            return err;
        far_point(t, "dart:est_slots_chosen");
        for (unsigned i = 0; i < count; i++)
            if (entries[i].state == ENTRY_SLOT_CHOSEN)
                far_cas(t, entries[i].addr, entries[i].expected, entries[i].tentative, &entries[i].seen);
        if ((err = far_wait(t)) < 0)
            return err;
        missing = false;
        for (unsigned i = 0; i < count; i++) {
            if (entries[i].state == ENTRY_SLOT_CHOSEN && entries[i].seen == entries[i].expected)
                entries[i].state = ENTRY_TENTATIVE;
            else if (entries[i].state == ENTRY_SLOT_CHOSEN)
                restart_search(&entries[i]);
            missing |= entries[i].state == ENTRY_SEARCHES;
        }
    }
    return 0;
}


/* Validates the pending entries whose tentative word is in the table, by reading the first slots of their nodes.
 * Commits the entries of nodes that are linked, and clears the other entries. Returns 0 or an error. */
static int commit_entries(far_task *t, far_index *index, pending_entry *entries, unsigned count) {
    dart_est *est = dart_est_of(index);
    for (unsigned i = 0; i < count; i++)
        if (entries[i].state == ENTRY_TENTATIVE)
            far_read(t, dart_slot_addr(entries[i].node, 0), &entries[i].alive, 8);
    far_point(t, "dart:est_tentative");
    int err = far_wait(t);
    if (err < 0)
        return err;
    far_point(t, "dart:est_validated");
    for (unsigned i = 0; i < count; i++)
        if (entries[i].state == ENTRY_TENTATIVE)
            far_cas(t, entries[i].addr, entries[i].tentative,
                    dart_is_frozen(entries[i].alive) ? 0 : entries[i].committed, &entries[i].seen);
    if ((err = far_wait(t)) < 0)
        return err;
    for (unsigned i = 0; i < count; i++)
        if (entries[i].state == ENTRY_TENTATIVE && entries[i].seen == entries[i].tentative &&
            !dart_is_frozen(entries[i].alive))
            dart_express_set_position(&est->express, entries[i].read.hash, entries[i].committed, entries[i].slot);
    far_point(t, "dart:est_committed");
    return 0;
}


static int register_entries(far_task *t, far_index *index, pending_entry *entries, unsigned count) {
    int err = install_tentative_words(t, index, entries, count);
    bool any = false;
    for (unsigned i = 0; i < count; i++)
        any |= entries[i].state == ENTRY_TENTATIVE;
    return err < 0 || !any ? err : commit_entries(t, index, entries, count);
}


/* Adds one pending entry for each length under which the node can be registered. Returns the number of added entries.
 */
static unsigned add_pending_entries(far_task *t, const dart_est *est, const dart_node *node, const void *prefix,
                                    const uint8_t *lengths, unsigned count, pending_entry *entries) {
    unsigned used = 0;
    for (unsigned i = 0; i < count; i++) {
        if (lengths[i] > node->depth || node->depth - lengths[i] > DART_EST_DELTA_MAX)
            continue;
        pending_entry *p = &entries[used++];
        p->node = node;
        p->prefix = prefix;
        p->state = ENTRY_SEARCHES;
        p->slot = 0;
        p->tentative = dart_est_tentative(far_task_client(t), far_task_generation(t), node->addr);
        dart_bucket_read_init(est, &p->read, prefix, lengths[i]);
        p->committed =
            dart_est_word(dart_est_fingerprint_of(est, p->read.hash), node->depth - lengths[i], node->type, node->addr);
    }
    return used;
}


int dart_est_register_now(far_task *t, far_index *index, const dart_node *node, const void *prefix,
                          const uint8_t *lengths, unsigned count) {
    dart_est *est = dart_est_of(index);
    unsigned client = far_task_client(t);
    if (count > DART_LIST_MAX || !dart_est_claim_node(&est->claims, client, node->addr))
        return 0;
    far_scratch_mark mark = far_scratch_here(t);
    pending_entry *entries = far_scratch(t, count * sizeof(*entries) + 1);
    int err = entries ? 0 : FAR_ERR_NO_MEMORY;
    unsigned used = entries ? add_pending_entries(t, est, node, prefix, lengths, count, entries) : 0;
    if (used)
        err = register_entries(t, index, entries, used);
    far_scratch_back(t, mark);
    dart_est_release_node(&est->claims, client, node->addr);
    return err;
}


/* Adds a pending entry for a registration whose tentative word a redirect has already stored, in place of the old
 * node's entry. */
static void add_redirected_entry(const dart_registration *registration, pending_entry *p) {
    *p = (pending_entry){.node = &registration->node,
                         .state = ENTRY_TENTATIVE,
                         .slot = registration->slot,
                         .addr = registration->entry,
                         .tentative = registration->tentative,
                         .committed = registration->committed,
                         .read.hash = registration->hash};
}


/* Uses for this pending entry the slot that was read as empty when the node was linked. */
static void choose_known_empty_slot(pending_entry *entries, unsigned at, const dart_registration *registration) {
    pending_entry *p = &entries[at];
    if (slot_is_chosen(entries, at, registration->entry))
        return;
    p->slot = registration->slot;
    p->addr = registration->entry;
    p->expected = 0;
    p->state = ENTRY_SLOT_CHOSEN;
}


/* Returns those lengths of a queued registration that are still in the lookup list. An entry under a length that was
 * dropped must not be made: a client that replaces the node would not search for this entry, so the entry would remain
 * after the node is retired. The adjuster waits for the pin under which this function runs, so the adjuster does not
 * complete the drop of a length before this registration ends. */
static unsigned lengths_still_listed(const dart_list *list, const dart_registration *registration,
                                     uint8_t lengths[DART_LIST_MAX]) {
    unsigned remaining = 0;
    for (unsigned i = 0; i < registration->count; i++)
        if (dart_list_has_lookup(list, registration->lengths[i]))
            lengths[remaining++] = registration->lengths[i];
    return remaining;
}


void dart_est_register_batch(far_task *t, far_index *index, const dart_registration *registrations, unsigned count) {
    dart_est *est = dart_est_of(index);
    const dart_list *list = dart_est_list(est);
    uint8_t lengths[DART_LIST_MAX];
    int err = 0;
    unsigned client = far_task_client(t), used = 0, most = 0;
    for (unsigned i = 0; i < count; i++)
        most += registrations[i].tentative ? 1 : registrations[i].count;
    far_scratch_mark mark = far_scratch_here(t);
    pending_entry *entries = far_scratch(t, most * sizeof(*entries) + 1);
    bool *mine = far_scratch(t, count);
    for (unsigned i = 0; entries && mine && i < count; i++) {
        const dart_registration *registration = &registrations[i];
        /* true if the node may still be read, by the tag rule in cache_express.c */
        bool fresh = far_epoch(t) <= registration->epoch + 1 + DART_EXTRA_EPOCHS;
        mine[i] =
            fresh && !registration->tentative && dart_est_claim_node(&est->claims, client, registration->node.addr);
        unsigned first = used;
        if (registration->tentative && fresh &&
            dart_list_has_lookup(list, registration->node.depth - dart_est_delta(registration->committed)))
            add_redirected_entry(registration, &entries[used++]);
        else if (mine[i])
            used += add_pending_entries(t, est, &registration->node, registration->prefix, lengths,
                                        lengths_still_listed(list, registration, lengths), &entries[used]);
        if (mine[i] && registration->entry && used == first + 1)
            choose_known_empty_slot(entries, first, registration);
    }
    if (entries && mine && used && (err = register_entries(t, index, entries, used)) < 0)
        far_discard_batch(t); /* Operations that miss these entries will queue their nodes again. */
    for (unsigned i = 0; i < count; i++)
        if (registrations[i].tentative && dart_session_is_lost(err) &&
            dart_est_client(registrations[i].tentative) != client)
            /* If the session was lost, a CAS that it sent to commit the tentative word of another session may still
             * take effect. So this tentative word must never be written again, and the node stays claimed. */
            continue;
        else if (registrations[i].tentative || (mine && entries && mine[i]))
            dart_est_release_node(&est->claims,
                                  registrations[i].tentative ? dart_est_client(registrations[i].tentative) : client,
                                  registrations[i].node.addr);
    far_scratch_back(t, mark);
}


/* ---- Removal ---- */

/* Adds to the batch a CAS for each word of the bucket that names the node. Returns 1 if the bucket must be read again,
 * 0 if not, or an error. */
static int add_removals(far_task *t, far_index *index, dart_bucket_read *r, far_addr node, uint64_t *seen) {
    if (r->word == 0)
        return 0;
    if (dart_est_any_frozen(r->slots, DART_EST_READ_SLOTS)) {
        int err = dart_est_grow(t, index, &r->dir, r->word, true);
        return err < 0 ? err : 1;
    }
    for (unsigned i = 0; i < DART_EST_READ_SLOTS; i++)
        if (dart_word_addr(r->slots[i]) == node)
            far_cas(t, dart_est_slot_addr(r, i), r->slots[i], 0, &seen[i]);
        else
            seen[i] = r->slots[i];
    return 0;
}


static int remove_once(far_task *t, far_index *index, dart_bucket_read *reads, unsigned *count, far_addr node) {
    dart_est *est = dart_est_of(index);
    int err = dart_bucket_reads_run(t, est, reads, *count);
    if (err < 0)
        return err;
    far_point(t, "dart:est_remove");
    uint64_t(*seen)[DART_EST_READ_SLOTS] = far_scratch(t, *count * sizeof(*seen));
    bool again[DART_LIST_MAX] = {0};
    if (!seen)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for the upkeep of the skip table");
    for (unsigned i = 0; i < *count; i++) {
        if ((err = add_removals(t, index, &reads[i], node, seen[i])) < 0)
            return err;
        again[i] = err > 0;
    }
    if ((err = far_wait(t)) < 0)
        return err;
    unsigned left = 0;
    for (unsigned i = 0; i < *count; i++) {
        for (unsigned s = 0; reads[i].word && !again[i] && s < DART_EST_READ_SLOTS; s++)
            again[i] = seen[i][s] != reads[i].slots[s];
        bool empty = reads[i].word && !again[i];
        for (unsigned s = 0; empty && s < DART_EST_READ_SLOTS; s++)
            empty = reads[i].slots[s] == 0 || dart_word_addr(reads[i].slots[s]) == node;
        if (empty)
            dart_est_mark_emptied(est, reads[i].dir.number);
        if (again[i]) {
            reads[left] = reads[i];
            reads[left].done = reads[left].cache_consulted = reads[left].word_is_usable = reads[left].word_is_current =
                false;
            left++;
        }
    }
    *count = left;
    return 0;
}


/* Initializes reads of the buckets in which an entry of the node may be stored. Returns the number of these reads. */
static unsigned init_entry_buckets(dart_est *est, const dart_node *node, far_bytes prefix, dart_bucket_read *reads) {
    const dart_list *list = dart_est_list(est);
    unsigned count = 0;
    for (unsigned i = 0; i < list->active_count; i++)
        if (list->active[i] <= node->depth && node->depth - list->active[i] <= DART_EST_DELTA_MAX &&
            list->active[i] <= prefix.length)
            dart_bucket_read_init(est, &reads[count++], prefix.data, list->active[i]);
    return count;
}


int dart_est_remove(far_task *t, far_index *index, const dart_node *node, far_bytes prefix) {
    dart_est *est = dart_est_of(index);
    if (!est)
        return 0;
    far_scratch_mark mark = far_scratch_here(t);
    dart_bucket_read *reads = far_scratch(t, DART_LIST_MAX * sizeof(*reads));
    if (!reads)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for the upkeep of the skip table");
    unsigned count = init_entry_buckets(est, node, prefix, reads);
    int err = 0;
    while (count && err >= 0)
        err = remove_once(t, index, reads, &count, node->addr);
    if (err < 0)
        far_discard_batch(t);
    far_scratch_back(t, mark);
    return err < 0 ? err : 0;
}


struct dart_entry_buckets {
    unsigned count;
    dart_bucket_read reads[DART_LIST_MAX];
};


dart_entry_buckets *dart_est_entry_buckets_add_reads(far_task *t, far_index *index, const dart_node *node,
                                                     far_bytes prefix) {
    dart_est *est = dart_est_of(index);
    dart_entry_buckets *buckets = est ? far_scratch(t, sizeof(*buckets)) : NULL;
    if (!buckets)
        return NULL;
    buckets->count = init_entry_buckets(est, node, prefix, buckets->reads);
    for (unsigned i = 0; i < buckets->count; i++)
        dart_bucket_read_add_verbs(t, est, &buckets->reads[i]);
    return buckets;
}


bool dart_est_confirm_no_entry(far_task *t, far_index *index, const dart_node *node, dart_entry_buckets *buckets,
                               const dart_redirect *redirect) {
    for (unsigned i = 0; buckets && i < buckets->count; i++) {
        dart_bucket_read *r = &buckets->reads[i];
        if (dart_bucket_read_process(t, dart_est_of(index), r) != 0)
            return false;
        if (r->word && dart_est_any_frozen(r->slots, DART_EST_READ_SLOTS))
            return false;
        for (unsigned s = 0; r->word && s < DART_EST_READ_SLOTS; s++)
            if (dart_word_addr(r->slots[s]) == node->addr &&
                !(redirect && redirect->seen == redirect->expected && redirect->entry == dart_est_slot_addr(r, s)))
                return false;
    }
    return buckets != NULL;
}


void dart_est_choose_empty_slot(const far_index *index, const dart_entry_buckets *buckets,
                                dart_registration *registration) {
    const dart_est *est = dart_est_of(index);
    const dart_bucket_read *r = NULL;
    for (unsigned i = 0; buckets && registration->count == 1 && i < buckets->count; i++)
        if (buckets->reads[i].length == registration->lengths[0] && buckets->reads[i].done && buckets->reads[i].word)
            r = &buckets->reads[i];
    for (unsigned s = 0; r && s < DART_EST_READ_SLOTS; s++)
        if (dart_est_is_committed(r->slots[s]) &&
            dart_est_fingerprint(r->slots[s]) == dart_est_fingerprint_of(est, r->hash))
            /* The existing entry has the same fingerprint, so perhaps the same prefix. No empty slot is chosen here;
             * then the registration READs the buckets itself and examines that entry. */
            return;
    for (unsigned n = 0; r && !registration->entry && n < DART_EST_READ_SLOTS; n++) {
        unsigned s = nth_slot(r, n);
        if (r->slots[s] == 0) {
            registration->entry = dart_est_slot_addr(r, s);
            registration->slot = s;
        }
    }
}
