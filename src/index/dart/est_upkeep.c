/* Upkeep of the skip table, off the path of operations: entries come by tentative -> validate -> commit, and go before
 * their node is retired. Why E1 holds: a node is removed from the table only after all its slots are frozen, and
 * retired after that. A registrar commits only if it saw a slot unfrozen after its tentative word was in place: then
 * the remover looks later and finds that word, tentative or committed. The tentative word names its owner, and one
 * client has at most one task at work on a node, so nobody commits the word of another. */
#include "base/error.h"
#include "index/dart/est.h"
#include "pool/epoch.h"

#define TRIES 4u

typedef struct place { /* one length under which a node is being registered */
    dart_est_read read;
    uint64_t committed; /* the word to be */
    unsigned slot;
    uint64_t expected, seen;
    enum { PLACE_SEARCH, PLACE_CHOSEN, PLACE_TENTATIVE, PLACE_OVER } state;
} place;


/* ---- At most one task of a client works on a node ---- */

static bool begin_work(dart_outstanding *o, unsigned client, far_addr node) {
    int empty = -1;
    far_spin_lock(&o->lock);
    for (int i = 0; i < (int)DART_OUTSTANDING; i++) {
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


static void end_work(dart_outstanding *o, unsigned client, far_addr node) {
    far_spin_lock(&o->lock);
    for (unsigned i = 0; i < DART_OUTSTANDING; i++)
        if (o->entry[i].node == node && o->entry[i].client == client)
            o->entry[i].node = 0;
    far_spin_unlock(&o->lock);
}


/* ---- Register ---- */

/* The bucket is to be read again, perhaps of another segment. */
static void read_again(place *p) {
    p->read.done = p->read.known = p->read.fresh = p->read.sure_word = false;
    p->state = PLACE_SEARCH;
}


/* Reads the buckets of all places that search; makes the segments that are missing, helps those that are frozen. */
static int read_places(far_task *t, far_index *index, place *places, unsigned count) {
    dart_est *est = dart_est_of(index);
    for (bool again = true; again;) {
        again = false;
        bool more = true;
        while (more) {
            more = false;
            for (unsigned i = 0; i < count; i++)
                more |= places[i].state == PLACE_SEARCH && dart_est_read_put(t, est, &places[i].read);
            int err = more ? far_wait(t) : 0;
            for (unsigned i = 0; err >= 0 && i < count; i++) {
                dart_est_read *r = &places[i].read;
                if (places[i].state == PLACE_SEARCH && (r->asked_word || r->asked_slots))
                    err = dart_est_read_take(t, est, r);
            }
            if (err < 0)
                return err;
        }
        for (unsigned i = 0; i < count; i++) {
            dart_est_read *r = &places[i].read;
            if (places[i].state != PLACE_SEARCH || (r->word && !dart_est_any_frozen(r->slots, DART_EST_READ_SLOTS)))
                continue;
            int err = r->word ? dart_est_grow(t, index, r->at, r->word, true) : dart_est_make_segment(t, index, r->at);
            if (err < 0)
                return err;
            read_again(&places[i]);
            again = true;
        }
    }
    return 0;
}


static bool is_taken(const place *places, unsigned before, far_addr slot) {
    for (unsigned i = 0; i < before; i++)
        if ((places[i].state == PLACE_CHOSEN || places[i].state == PLACE_TENTATIVE) &&
            dart_est_slot_addr(&places[i].read, places[i].slot) == slot)
            return true;
    return false;
}


static unsigned main_first(const dart_est_read *r,
                           unsigned i) { /* the overflow bucket comes after main 0 and before main 1 */
    return dart_hash_main(r->hash) ? (i + DART_EST_BUCKET) % DART_EST_READ_SLOTS : i;
}


/* Slots that hold an entry for this very prefix and length: of a lower or a dead node they are taken over; of a node as
 * high or higher that lives there is nothing to do. */
static int look_at_rivals(far_task *t, far_index *index, const dart_node *node, place *p, const void *prefix,
                          int *slot) {
    const dart_est_read *r = &p->read;
    dart_target targets[DART_EST_READ_SLOTS] = {0};
    bool any = false;
    for (unsigned i = 0; i < DART_EST_READ_SLOTS; i++) {
        uint64_t word = r->slots[i];
        bool rival = dart_est_is_committed(word) && dart_est_fingerprint(word) == dart_est_fingerprint(p->committed);
        if (rival && dart_word_addr(word) == node->addr)
            return 1;
        targets[i].addr = rival ? dart_word_addr(word) : 0;
        any |= rival;
    }
    int err = any ? dart_est_read_targets(t, index, targets, DART_EST_READ_SLOTS) : 0;
    for (unsigned i = 0; err >= 0 && any && i < DART_EST_READ_SLOTS; i++) {
        const dart_target *target = &targets[i];
        if (!target->addr || !target->sound || target->depth != r->length + dart_est_delta(r->slots[i]) ||
            memcmp(target->prefix, prefix, r->length) != 0)
            continue;
        if (!target->frozen && target->depth < node->depth)
            return 1;
        *slot = (int)i;
    }
    return err < 0 ? err : 0;
}


/* 0: chosen; 1: there is nothing to do; 2: the bucket is full. */
static int choose_slot(far_task *t, far_index *index, const dart_node *node, place *places, unsigned at,
                       const void *prefix) {
    place *p = &places[at];
    const dart_est_read *r = &p->read;
    int slot = -1, tentative = -1, result = look_at_rivals(t, index, node, p, prefix, &slot);
    if (result != 0)
        return result;
    for (unsigned n = 0; n < DART_EST_READ_SLOTS && slot < 0; n++) {
        unsigned i = main_first(r, n);
        if (is_taken(places, at, dart_est_slot_addr(r, i)))
            continue;
        if (r->slots[i] == 0)
            slot = (int)i;
        else if (dart_est_is_tentative(r->slots[i]) && tentative < 0)
            tentative = (int)i;
    }
    slot = slot < 0 ? tentative : slot;
    if (slot < 0)
        return 2;
    p->slot = (unsigned)slot;
    p->expected = r->slots[slot];
    p->state = PLACE_CHOSEN;
    return 0;
}


static int choose_slots(far_task *t, far_index *index, const dart_node *node, place *places, unsigned count,
                        const void *prefix) {
    for (unsigned i = 0; i < count; i++) {
        place *p = &places[i];
        if (p->state != PLACE_SEARCH)
            continue;
        int result = choose_slot(t, index, node, places, i, prefix);
        if (result == 2) {
            unsigned at = p->read.at;
            uint64_t word = p->read.word;
            if ((result = dart_est_grow(t, index, at, word, false)) >= 0)
                for (unsigned j = 0; j < count; j++)
                    if ((places[j].state == PLACE_SEARCH || places[j].state == PLACE_CHOSEN) && places[j].read.at == at)
                        read_again(&places[j]);
        } else if (result == 1) {
            p->state = PLACE_OVER;
        }
        if (result < 0)
            return result;
    }
    return 0;
}


/* All places get their tentative words; those that found no slot after some tries do without. */
static int place_tentative(far_task *t, far_index *index, const dart_node *node, place *places, unsigned count,
                           const void *prefix) {
    uint64_t tentative = dart_est_tentative(far_task_client(t), far_task_generation(t), node->addr);
    bool missing = true;
    for (unsigned n = 0; n < TRIES && missing; n++) {
        int err = read_places(t, index, places, count);
        if (err < 0 || (err = choose_slots(t, index, node, places, count, prefix)) < 0)
            return err;
        far_point(t, "dart:est_chosen");
        for (unsigned i = 0; i < count; i++)
            if (places[i].state == PLACE_CHOSEN)
                far_cas(t, dart_est_slot_addr(&places[i].read, places[i].slot), places[i].expected, tentative,
                        &places[i].seen);
        if ((err = far_wait(t)) < 0)
            return err;
        missing = false;
        for (unsigned i = 0; i < count; i++) {
            if (places[i].state == PLACE_CHOSEN && places[i].seen == places[i].expected)
                places[i].state = PLACE_TENTATIVE;
            else if (places[i].state == PLACE_CHOSEN)
                read_again(&places[i]);
            missing |= places[i].state == PLACE_SEARCH;
        }
    }
    return 0;
}


static int register_places(far_task *t, far_index *index, const dart_node *node, place *places, unsigned count,
                           const void *prefix) {
    uint64_t tentative = dart_est_tentative(far_task_client(t), far_task_generation(t), node->addr);
    int err = place_tentative(t, index, node, places, count, prefix);
    if (err < 0)
        return err;

    bool any = false;
    for (unsigned i = 0; i < count; i++)
        any |= places[i].state == PLACE_TENTATIVE;
    if (!any)
        return 0;

    far_point(t, "dart:est_tentative");
    int live = dart_is_live(t, index, node);
    if (live < 0)
        return live;

    far_point(t, "dart:est_validated");
    for (unsigned i = 0; i < count; i++)
        if (places[i].state == PLACE_TENTATIVE)
            far_cas(t, dart_est_slot_addr(&places[i].read, places[i].slot), tentative, live ? places[i].committed : 0,
                    NULL);
    if ((err = far_wait(t)) < 0)
        return err;
    far_point(t, "dart:est_committed");
    return 0;
}


int dart_est_register_now(far_task *t, far_index *index, const dart_node *node, const void *prefix,
                          const uint8_t *lengths, unsigned count) {
    dart_est *est = dart_est_of(index);
    unsigned client = far_task_client(t), used = 0;
    if (count > DART_LIST_MAX || !begin_work(&est->outstanding, client, node->addr))
        return 0;
    far_scratch_mark mark = far_scratch_here(t);
    place *places = far_scratch(t, count * sizeof(*places) + 1);
    int err = places ? 0 : FAR_ERR_NO_MEMORY;
    for (unsigned i = 0; places && i < count; i++) {
        if (lengths[i] > node->depth || node->depth - lengths[i] > DART_EST_DELTA_MAX)
            continue;
        place *p = &places[used++];
        p->state = PLACE_SEARCH;
        p->slot = 0;
        dart_est_read_init(est, &p->read, prefix, lengths[i]);
        p->committed =
            dart_est_word(dart_est_fingerprint_of(est, p->read.hash), node->depth - lengths[i], node->type, node->addr);
    }
    if (used)
        err = register_places(t, index, node, places, used, prefix);
    far_scratch_back(t, mark);
    end_work(&est->outstanding, client, node->addr);
    return err;
}


/* ---- In the background ---- */

typedef struct upkeep {
    dart_node node;
    far_addr slot; /* of a stale entry: to be cleared */
    uint64_t word;
    unsigned count;
    uint8_t lengths[DART_LIST_MAX];
    uint8_t prefix[DART_EST_PREFIX_MAX + 1];
} upkeep;


static void run_upkeep(far_task *t, far_index *index, void *arg) {
    const upkeep *work = arg;
    far_point(t, "dart:est_upkeep");
    if (work->slot) {
        far_cas(t, work->slot, work->word, 0, NULL);
        far_wait(t);
    } else {
        dart_est_register_now(t, index, &work->node, work->prefix, work->lengths, work->count);
    }
}


void dart_est_spawn_register(far_task *t, far_index *index, const dart_node *node, unsigned parent_depth,
                             const void *prefix, unsigned length) {
    const dart_list *list = dart_est_list(dart_est_of(index));
    upkeep work = {.node = *node};
    for (unsigned i = 0; i < list->lookup_count; i++) {
        unsigned l = list->lookup[i];
        bool wanted = length ? l == length : l > parent_depth;
        if (wanted && l <= node->depth && node->depth - l <= DART_EST_DELTA_MAX)
            work.lengths[work.count++] = (uint8_t)l;
    }
    if (work.count == 0)
        return;
    memcpy(work.prefix, prefix, work.lengths[work.count - 1]);
    /* Nothing is lost when there is no room for another task: the entry is missing, and the next who misses it makes
     * it. */
    far_index_spawn(t, index, run_upkeep, &work, sizeof(work));
}


void dart_est_register(far_task *t, far_index *index, const dart_node *node, unsigned parent_depth, far_bytes prefix) {
    dart_est *est = dart_est_of(index);
    if (est && est->update && prefix.length >= node->depth)
        dart_est_spawn_register(t, index, node, parent_depth, prefix.data, 0);
}


void dart_est_spawn_clear(far_task *t, far_index *index, far_addr slot, uint64_t word) {
    upkeep work = {.slot = slot, .word = word};
    far_index_spawn(t, index, run_upkeep, &work, sizeof(work));
}


/* ---- Remove ---- */

/* 1: the bucket is to be looked at again. */
static int remove_from(far_task *t, far_index *index, dart_est_read *r, far_addr node, uint64_t *seen) {
    if (r->word == 0)
        return 0;
    if (dart_est_any_frozen(r->slots, DART_EST_READ_SLOTS)) {
        int err = dart_est_grow(t, index, r->at, r->word, true);
        return err < 0 ? err : 1;
    }
    for (unsigned i = 0; i < DART_EST_READ_SLOTS; i++)
        if (dart_word_addr(r->slots[i]) == node)
            far_cas(t, dart_est_slot_addr(r, i), r->slots[i], 0, &seen[i]);
        else
            seen[i] = r->slots[i];
    return 0;
}


static int remove_pass(far_task *t, far_index *index, dart_est_read *reads, unsigned *count, far_addr node) {
    dart_est *est = dart_est_of(index);
    int err = dart_est_read_all(t, est, reads, *count);
    if (err < 0)
        return err;
    far_point(t, "dart:est_remove");
    uint64_t(*seen)[DART_EST_READ_SLOTS] = far_scratch(t, *count * sizeof(*seen));
    bool again[DART_LIST_MAX] = {0};
    if (!seen)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for upkeep");
    for (unsigned i = 0; i < *count; i++) {
        if ((err = remove_from(t, index, &reads[i], node, seen[i])) < 0)
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
            dart_est_note_empty(est, reads[i].at);
        if (again[i]) {
            reads[left] = reads[i];
            reads[left].done = reads[left].known = reads[left].fresh = reads[left].sure_word = false;
            left++;
        }
    }
    *count = left;
    return 0;
}


/* The buckets in which an entry of the node may lie. */
static unsigned places_of(dart_est *est, const dart_node *node, far_bytes prefix, dart_est_read *reads) {
    const dart_list *list = dart_est_list(est);
    unsigned count = 0;
    for (unsigned i = 0; i < list->active_count; i++)
        if (list->active[i] <= node->depth && node->depth - list->active[i] <= DART_EST_DELTA_MAX &&
            list->active[i] <= prefix.length)
            dart_est_read_init(est, &reads[count++], prefix.data, list->active[i]);
    return count;
}


int dart_est_remove(far_task *t, far_index *index, const dart_node *node, far_bytes prefix) {
    dart_est *est = dart_est_of(index);
    if (!est)
        return 0;
    far_scratch_mark mark = far_scratch_here(t);
    dart_est_read *reads = far_scratch(t, DART_LIST_MAX * sizeof(*reads));
    if (!reads)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for upkeep");
    unsigned count = places_of(est, node, prefix, reads);
    int err = 0;
    while (count && err >= 0)
        err = remove_pass(t, index, reads, &count, node->addr);
    if (err < 0)
        far_forget(t);
    far_scratch_back(t, mark);
    return err < 0 ? err : 0;
}


struct dart_names {
    unsigned count;
    dart_est_read reads[DART_LIST_MAX];
};


dart_names *dart_est_names_put(far_task *t, far_index *index, const dart_node *node, far_bytes prefix) {
    dart_est *est = dart_est_of(index);
    dart_names *names = est ? far_scratch(t, sizeof(*names)) : NULL;
    if (!names)
        return NULL;
    names->count = places_of(est, node, prefix, names->reads);
    for (unsigned i = 0; i < names->count; i++)
        dart_est_read_put(t, est, &names->reads[i]);
    return names;
}


bool dart_est_names_none(far_task *t, far_index *index, const dart_node *node, dart_names *names) {
    for (unsigned i = 0; names && i < names->count; i++) {
        dart_est_read *r = &names->reads[i];
        if (dart_est_read_take(t, dart_est_of(index), r) != 0)
            return false;
        if (r->word && dart_est_any_frozen(r->slots, DART_EST_READ_SLOTS))
            return false;
        for (unsigned s = 0; r->word && s < DART_EST_READ_SLOTS; s++)
            if (dart_word_addr(r->slots[s]) == node->addr)
                return false;
    }
    return names != NULL;
}
