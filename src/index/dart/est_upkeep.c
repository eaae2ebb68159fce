/* Upkeep of the skip table, off the path of operations: entries come by tentative -> validate -> commit, and go before
 * their node is retired. Why E1 holds: a node is removed from the table only after all its slots are frozen, and
 * retired after that. A registrar commits only if it saw a slot unfrozen after its tentative word was in place: then
 * the remover looks later and finds that word, tentative or committed. The tentative word names its owner, and one
 * client has at most one task at work on a node, so nobody commits the word of another.
 *
 * Registrations wait for each other (est_queue.c): each batch here serves the nodes of many operations. */
#include "base/error.h"
#include "index/dart/est.h"
#include "pool/epoch.h"

#define TRIES 4u

typedef struct place { /* one length under which a node is being registered */
    const dart_node *node;
    const void *prefix;
    dart_est_read read;
    uint64_t tentative, committed; /* the words to be */
    unsigned slot;                 /* of the bucket pair */
    far_addr addr;                 /* of that slot */
    uint64_t expected, seen;
    uint64_t alive; /* a slot of the node */
    enum { PLACE_SEARCH, PLACE_CHOSEN, PLACE_TENTATIVE, PLACE_OVER } state;
} place;


/* ---- At most one task of a client works on a node ---- */

bool dart_est_begin_work(dart_outstanding *o, unsigned client, far_addr node) {
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


void dart_est_end_work(dart_outstanding *o, unsigned client, far_addr node) {
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


/* The segment of this directory word was replaced: all that had to do with it look again, once. */
static void search_again(place *places, unsigned count, unsigned at) {
    for (unsigned i = 0; i < count; i++)
        if ((places[i].state == PLACE_SEARCH || places[i].state == PLACE_CHOSEN) && places[i].read.spot.at == at)
            read_again(&places[i]);
}


static int read_buckets(far_task *t, dart_est *est, place *places, unsigned count) {
    for (bool more = true; more;) {
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
    return 0;
}


/* Its segment is new. */
static void know_empty(dart_est_read *r, uint64_t word) {
    r->word = word;
    memset(r->slots, 0, sizeof(r->slots));
    r->known = r->sure_word = r->done = true;
}


/* Makes the segments that were missing when the buckets were read: all of them together. */
static int make_segments(far_task *t, far_index *index, place *places, unsigned count) {
    unsigned missing = 0;
    dart_spot *spots = far_scratch(t, count * sizeof(*spots) + 1);
    uint64_t *words = far_scratch(t, count * sizeof(*words) + 1);
    if (!spots || !words)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for upkeep");
    for (unsigned i = 0; i < count; i++) {
        unsigned known = 0;
        if (places[i].state != PLACE_SEARCH || places[i].read.word)
            continue;
        while (known < missing && spots[known].at != places[i].read.spot.at)
            known++;
        if (known == missing)
            spots[missing++] = places[i].read.spot;
        read_again(&places[i]);
    }
    int made = missing ? dart_est_make_segments(t, index, spots, missing, words) : 0;
    for (unsigned i = 0; i < count; i++)
        for (int m = 0; m < made && places[i].state == PLACE_SEARCH; m++)
            if (places[i].read.spot.at == spots[m].at && words[m])
                know_empty(&places[i].read, words[m]);
    return made;
}


/* Reads the buckets of all places that search; makes the segments that are missing, helps those that are frozen. */
static int read_places(far_task *t, far_index *index, place *places, unsigned count) {
    for (bool again = true; again;) {
        int err = read_buckets(t, dart_est_of(index), places, count);
        again = false;
        for (unsigned i = 0; err >= 0 && i < count; i++) {
            dart_est_read *r = &places[i].read;
            if (places[i].state != PLACE_SEARCH || !r->done || !r->word ||
                !dart_est_any_frozen(r->slots, DART_EST_READ_SLOTS))
                continue;
            err = dart_est_grow(t, index, &r->spot, r->word, true);
            search_again(places, count, r->spot.at);
            again = true;
        }
        if (err < 0 || ((err = make_segments(t, index, places, count)) < 0 && err != FAR_ERR_NO_MEMORY))
            return err;
        for (unsigned i = 0; err == FAR_ERR_NO_MEMORY && i < count; i++) /* those without a segment do without */
            if (places[i].state == PLACE_SEARCH && !places[i].read.word)
                places[i].state = PLACE_OVER;
        again |= err > 0;
    }
    return 0;
}


static bool is_taken(const place *places, unsigned before, far_addr slot) {
    for (unsigned i = 0; i < before; i++)
        if ((places[i].state == PLACE_CHOSEN || places[i].state == PLACE_TENTATIVE) && places[i].addr == slot)
            return true;
    return false;
}


static unsigned main_first(const dart_est_read *r,
                           unsigned i) { /* the overflow bucket comes after main 0 and before main 1 */
    return dart_hash_main(r->hash) ? (i + DART_EST_BUCKET) % DART_EST_READ_SLOTS : i;
}


/* Slots that hold an entry for this very prefix and length: of a lower or a dead node they are taken over; of a node as
 * high or higher that lives there is nothing to do. */
static int look_at_rivals(far_task *t, far_index *index, const place *p, int *slot) {
    const dart_est_read *r = &p->read;
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


typedef enum { SLOT_CHOSEN, SLOT_NOT_NEEDED, SLOT_NONE } slot_choice; /* NONE: the bucket is full */


/* A slot_choice, or an error. */
static int choose_slot(far_task *t, far_index *index, place *places, unsigned at) {
    place *p = &places[at];
    const dart_est_read *r = &p->read;
    int slot = -1, tentative = -1, result = look_at_rivals(t, index, p, &slot);
    if (result != 0)
        return result < 0 ? result : SLOT_NOT_NEEDED;
    for (unsigned i = 0; i < DART_EST_READ_SLOTS && slot < 0; i++) /* somebody has begun, and perhaps given up */
        if (dart_est_is_tentative(r->slots[i]) && dart_word_addr(r->slots[i]) == p->node->addr &&
            !is_taken(places, at, dart_est_slot_addr(r, i)))
            slot = (int)i;
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
        return SLOT_NONE;
    p->slot = (unsigned)slot;
    p->addr = dart_est_slot_addr(r, p->slot);
    p->expected = r->slots[slot];
    p->state = PLACE_CHOSEN;
    return SLOT_CHOSEN;
}


static int choose_slots(far_task *t, far_index *index, place *places, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        place *p = &places[i];
        if (p->state != PLACE_SEARCH || !p->read.done) /* its segment has just grown: it is to be read first */
            continue;
        int result = choose_slot(t, index, places, i);
        if (result == SLOT_NONE) {
            result = dart_est_grow(t, index, &p->read.spot, p->read.word, false);
            bool full = result == FAR_ERR_NO_MEMORY; /* those that found a slot in it stay; this one does without */
            if (result >= 0)
                search_again(places, count, p->read.spot.at);
            if (full) {
                p->state = PLACE_OVER;
                result = 0;
            }
        } else if (result == SLOT_NOT_NEEDED) {
            p->state = PLACE_OVER;
        }
        if (result < 0)
            return result;
    }
    return 0;
}


/* All places get their tentative words; those that found no slot after some tries do without. */
static int place_tentative(far_task *t, far_index *index, place *places, unsigned count) {
    bool missing = true;
    for (unsigned n = 0; n < TRIES && missing; n++) {
        int err = read_places(t, index, places, count);
        if (err < 0 || (err = choose_slots(t, index, places, count)) < 0)
            return err;
        far_point(t, "dart:est_chosen");
        for (unsigned i = 0; i < count; i++)
            if (places[i].state == PLACE_CHOSEN)
                far_cas(t, places[i].addr, places[i].expected, places[i].tentative, &places[i].seen);
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


/* Places whose tentative words are in place: of nodes that live now they become entries. */
static int commit(far_task *t, far_index *index, place *places, unsigned count) {
    dart_est *est = dart_est_of(index);
    for (unsigned i = 0; i < count; i++)
        if (places[i].state == PLACE_TENTATIVE)
            far_read(t, dart_slot_addr(places[i].node, 0), &places[i].alive, 8);
    far_point(t, "dart:est_tentative");
    int err = far_wait(t);
    if (err < 0)
        return err;
    far_point(t, "dart:est_validated");
    for (unsigned i = 0; i < count; i++)
        if (places[i].state == PLACE_TENTATIVE)
            far_cas(t, places[i].addr, places[i].tentative, dart_is_frozen(places[i].alive) ? 0 : places[i].committed,
                    &places[i].seen);
    if ((err = far_wait(t)) < 0)
        return err;
    for (unsigned i = 0; i < count; i++)
        if (places[i].state == PLACE_TENTATIVE && places[i].seen == places[i].tentative &&
            !dart_is_frozen(places[i].alive))
            dart_express_hint(&est->express, places[i].read.hash, places[i].committed, places[i].slot);
    far_point(t, "dart:est_committed");
    return 0;
}


static int register_places(far_task *t, far_index *index, place *places, unsigned count) {
    int err = place_tentative(t, index, places, count);
    bool any = false;
    for (unsigned i = 0; i < count; i++)
        any |= places[i].state == PLACE_TENTATIVE;
    return err < 0 || !any ? err : commit(t, index, places, count);
}


/* The places of one node. */
static unsigned add_places(far_task *t, const dart_est *est, const dart_node *node, const void *prefix,
                           const uint8_t *lengths, unsigned count, place *places) {
    unsigned used = 0;
    for (unsigned i = 0; i < count; i++) {
        if (lengths[i] > node->depth || node->depth - lengths[i] > DART_EST_DELTA_MAX)
            continue;
        place *p = &places[used++];
        p->node = node;
        p->prefix = prefix;
        p->state = PLACE_SEARCH;
        p->slot = 0;
        p->tentative = dart_est_tentative(far_task_client(t), far_task_generation(t), node->addr);
        dart_est_read_init(est, &p->read, prefix, lengths[i]);
        p->committed =
            dart_est_word(dart_est_fingerprint_of(est, p->read.hash), node->depth - lengths[i], node->type, node->addr);
    }
    return used;
}


int dart_est_register_now(far_task *t, far_index *index, const dart_node *node, const void *prefix,
                          const uint8_t *lengths, unsigned count) {
    dart_est *est = dart_est_of(index);
    unsigned client = far_task_client(t);
    if (count > DART_LIST_MAX || !dart_est_begin_work(&est->outstanding, client, node->addr))
        return 0;
    far_scratch_mark mark = far_scratch_here(t);
    place *places = far_scratch(t, count * sizeof(*places) + 1);
    int err = places ? 0 : FAR_ERR_NO_MEMORY;
    unsigned used = places ? add_places(t, est, node, prefix, lengths, count, places) : 0;
    if (used)
        err = register_places(t, index, places, used);
    far_scratch_back(t, mark);
    dart_est_end_work(&est->outstanding, client, node->addr);
    return err;
}


/* A node whose tentative word stands already where its entry is to be. */
static void add_renamed(const dart_wish *wish, place *p) {
    *p = (place){.node = &wish->node,
                 .state = PLACE_TENTATIVE,
                 .slot = wish->slot,
                 .addr = wish->entry,
                 .tentative = wish->tentative,
                 .committed = wish->committed,
                 .read.hash = wish->hash};
}


/* The slot that was empty when its node was linked. */
static void choose_empty(place *places, unsigned at, const dart_wish *wish) {
    place *p = &places[at];
    if (is_taken(places, at, wish->entry))
        return;
    p->slot = wish->slot;
    p->addr = wish->entry;
    p->expected = 0;
    p->state = PLACE_CHOSEN;
}


/* A length that was dropped since the wish gets no entry any more: the client that replaces the node would not look for it there,
 * and it would outlive the node. The pin under which the wish is granted is what the adjuster waits for. */
static unsigned still_looked_up(const dart_list *list, const dart_wish *wish, uint8_t lengths[DART_LIST_MAX]) {
    unsigned kept = 0;
    for (unsigned i = 0; i < wish->count; i++)
        if (dart_list_looks_up(list, wish->lengths[i]))
            lengths[kept++] = wish->lengths[i];
    return kept;
}


void dart_est_grant(far_task *t, far_index *index, const dart_wish *wishes, unsigned count) {
    dart_est *est = dart_est_of(index);
    const dart_list *list = dart_est_list(est);
    uint8_t lengths[DART_LIST_MAX];
    int err = 0;
    unsigned client = far_task_client(t), used = 0, most = 0;
    for (unsigned i = 0; i < count; i++)
        most += wishes[i].tentative ? 1 : wishes[i].count;
    far_scratch_mark mark = far_scratch_here(t);
    place *places = far_scratch(t, most * sizeof(*places) + 1);
    bool *mine = far_scratch(t, count);
    for (unsigned i = 0; places && mine && i < count; i++) {
        const dart_wish *wish = &wishes[i];
        bool fresh = far_epoch(t) <= wish->epoch + 1 + DART_EXTRA_EPOCHS; /* the tag rule, see express.c */
        mine[i] = fresh && !wish->tentative && dart_est_begin_work(&est->outstanding, client, wish->node.addr);
        unsigned first = used;
        if (wish->tentative && fresh && dart_list_looks_up(list, wish->node.depth - dart_est_delta(wish->committed)))
            add_renamed(wish, &places[used++]);
        else if (mine[i])
            used += add_places(t, est, &wish->node, wish->prefix, lengths, still_looked_up(list, wish, lengths),
                               &places[used]);
        if (mine[i] && wish->entry && used == first + 1)
            choose_empty(places, first, wish);
    }
    if (places && mine && used && (err = register_places(t, index, places, used)) < 0)
        far_forget(t); /* what is missing will be missed, and made again */
    for (unsigned i = 0; i < count; i++)
        if (wishes[i].tentative && dart_is_lost(err) && dart_est_client(wishes[i].tentative) != client)
            continue; /* our CAS of another's word may still land: that word must not come back. Its place stays taken */
        else if (wishes[i].tentative || (mine && places && mine[i]))
            dart_est_end_work(&est->outstanding, wishes[i].tentative ? dart_est_client(wishes[i].tentative) : client,
                              wishes[i].node.addr);
    far_scratch_back(t, mark);
}


/* ---- Remove ---- */

/* 1: the bucket is to be looked at again. */
static int remove_from(far_task *t, far_index *index, dart_est_read *r, far_addr node, uint64_t *seen) {
    if (r->word == 0)
        return 0;
    if (dart_est_any_frozen(r->slots, DART_EST_READ_SLOTS)) {
        int err = dart_est_grow(t, index, &r->spot, r->word, true);
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
            dart_est_note_empty(est, reads[i].spot.at);
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


bool dart_est_names_none(far_task *t, far_index *index, const dart_node *node, dart_names *names,
                         const dart_rename *rename) {
    for (unsigned i = 0; names && i < names->count; i++) {
        dart_est_read *r = &names->reads[i];
        if (dart_est_read_take(t, dart_est_of(index), r) != 0)
            return false;
        if (r->word && dart_est_any_frozen(r->slots, DART_EST_READ_SLOTS))
            return false;
        for (unsigned s = 0; r->word && s < DART_EST_READ_SLOTS; s++)
            if (dart_word_addr(r->slots[s]) == node->addr &&
                !(rename && rename->seen == rename->expected && rename->entry == dart_est_slot_addr(r, s)))
                return false;
    }
    return names != NULL;
}


void dart_est_names_empty(const far_index *index, const dart_names *names, dart_wish *wish) {
    const dart_est *est = dart_est_of(index);
    const dart_est_read *r = NULL;
    for (unsigned i = 0; names && wish->count == 1 && i < names->count; i++)
        if (names->reads[i].length == wish->lengths[0] && names->reads[i].done && names->reads[i].word)
            r = &names->reads[i];
    for (unsigned s = 0; r && s < DART_EST_READ_SLOTS; s++)
        if (dart_est_is_committed(r->slots[s]) &&
            dart_est_fingerprint(r->slots[s]) == dart_est_fingerprint_of(est, r->hash))
            return; /* perhaps of the same prefix */
    for (unsigned n = 0; r && !wish->entry && n < DART_EST_READ_SLOTS; n++) {
        unsigned s = main_first(r, n);
        if (r->slots[s] == 0) {
            wish->entry = dart_est_slot_addr(r, s);
            wish->slot = s;
        }
    }
}
