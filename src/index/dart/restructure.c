/* REPLACE: the one procedure that grows, shrinks, merges and removes nodes, purges TOMBs, and completes the
 * replacements of other clients. It freezes all slots of a node; the words are then final, so that every client can
 * build the replacement from them. One CAS of the parent's slot decides which client's replacement is installed. The
 * entry point is dart_replace_node. */
#include "base/error.h"
#include "index/common/rdwc.h"
#include "index/dart/dart.h"
#include "pool/alloc/alloc.h"

#include <string.h>

typedef struct new_node { /* the node that will be installed */
    far_object object;
    uint64_t size; /* size of the object; object.addr is 0 until the object is allocated */
    void *image;   /* contents of the node, which were written to the object or will be */
    uint64_t bytes;
    bool written;
} new_node;

typedef struct frozen_slots { /* the words of a frozen node, which never change again */
    uint64_t *words;
    unsigned count;
} frozen_slots;

typedef enum {                 /* the result of one attempt to replace a node */
               REPLACED,       /* the node is not linked any more, because this client or another client replaced it */
               PARENT_CHANGED, /* the parent's slot changed, so the parent must be searched again */
               PARENT_FROZEN   /* the parent's slot is frozen, so the parent must be replaced first */
} verdict;


static int fail_no_memory(void) {
    return far_fail(FAR_ERR_NO_MEMORY, "no local memory for an operation");
}


int dart_read_node(far_task *t, far_index *index, const dart_node *node, dart_view *view) {
    unsigned header = dart_header_bytes(node->depth),
             slots = dart_node_slots(node->type, node->depth, dart_of(index)->bucket);
    char *image = far_scratch(t, header + 8ull * slots);
    if (!image)
        return fail_no_memory();
    far_read(t, node->addr, image, header + 8ull * slots);
    int err = far_wait(t);
    *view = (dart_view){*node, 0, slots, (uint64_t *)(image + header), (const dart_header *)image, true};
    if (err >= 0 && !dart_header_matches(view->header, node))
        err = dart_fail_corrupt(index, "node", node->addr);
    return err;
}


/* ---- Finding the parent ---- */

/* The search for the slot that leads to a node. It is a descent from the root along the node's own prefix. */
typedef struct parent_search {
    const dart_node *node;
    far_bytes prefix;
    dart_node parent;
    dart_view view; /* the bucket of `parent` that is being read */
} parent_search;


static int add_parent_read(far_task *t, const far_index *index, parent_search *a) {
    a->view = (dart_view){.node = a->parent};
    dart_slot_range(dart_of(index), a->parent.type, a->parent.depth, dart_symbol(a->prefix, a->parent.depth),
                    &a->view.first, &a->view.count);
    if (!(a->view.slots = far_scratch(t, 8ull * a->view.count)))
        return fail_no_memory();
    far_read(t, dart_slot_addr(&a->parent, a->view.first), a->view.slots, 8ull * a->view.count);
    return 0;
}


static int start_parent_search(far_task *t, const far_index *index, const dart_node *node, far_bytes prefix,
                               parent_search *a) {
    *a = (parent_search){.node = node, .prefix = prefix, .parent = {dart_of(index)->root, DART_N256, 0}};
    return add_parent_read(t, index, a);
}


/* Continues the search when its first READ has completed. Returns 1 and the parent's step, 0 if the node is not linked
 * any more, or an error. */
static int finish_parent_search(far_task *t, far_index *index, parent_search *a, dart_step *parent) {
    for (;;) {
        int found = dart_view_search(dart_of(index), &a->view, dart_symbol(a->prefix, a->parent.depth)), err;
        uint64_t word = found < 0 ? 0 : a->view.slots[found];
        if (!dart_is_inner(word))
            return 0;
        if (dart_word_addr(word) == a->node->addr) {
            *parent = (dart_step){a->parent, dart_slot_addr(&a->parent, a->view.first + (unsigned)found), word, 0};
            return 1;
        }
        a->parent = (dart_node){dart_word_addr(word), dart_word_type(word), a->parent.depth + 1 + dart_word_len(word)};
        if (a->parent.depth >= a->node->depth)
            return 0;
        if ((err = add_parent_read(t, index, a)) < 0 || (err = far_wait(t)) < 0)
            return err;
    }
}


int dart_find_parent(far_task *t, far_index *index, const dart_node *node, far_bytes prefix, dart_step *parent) {
    parent_search a;
    int err = start_parent_search(t, index, node, prefix, &a);
    if (err >= 0)
        err = far_wait(t);
    return err < 0 ? err : finish_parent_search(t, index, &a, parent);
}


/* ---- Freezing ---- */

static void add_masked_freezes(far_task *t, const dart_node *node, frozen_slots *f) {
    for (unsigned i = 0; i < f->count; i++)
        far_masked_cas(t, dart_slot_addr(node, i), 0, 0, DART_FROZEN, DART_FROZEN, &f->words[i]);
}


/* Freezes the slots by plain CAS, for a fabric that has no masked CAS. A slot that changed before its CAS is tried
 * again with its new word. Returns 0 and the final words in f->words, or an error. */
static int freeze_by_cas(far_task *t, const dart_node *node, frozen_slots *f) {
    uint64_t *seen = far_scratch(t, 8ull * f->count);
    if (!seen)
        return fail_no_memory();
    for (unsigned try_replace = 0;; try_replace++) {
        bool any = false;
        for (unsigned i = 0; i < f->count; i++) {
            seen[i] = f->words[i];
            if (dart_is_frozen(f->words[i]))
                continue;
            far_cas(t, dart_slot_addr(node, i), f->words[i], f->words[i] | DART_FROZEN, &seen[i]);
            any = true;
        }
        if (!any)
            return 0;
        int err = far_wait(t);
        if (err < 0)
            return err;
        for (unsigned i = 0; i < f->count; i++)
            f->words[i] = seen[i] == f->words[i] ? seen[i] | DART_FROZEN : seen[i];
        far_point(t, "dart:freezing");
    }
}


/* Freezes all slots of the node and reads the node's header. Returns 0 and the final slot words in *f, or an error.
 * Verbs that were added to the batch before are sent with the first batch of this function. */
static int freeze_node(far_task *t, far_index *index, const dart_replace *r, frozen_slots *f) {
    dart_index *dart = dart_of(index);
    uint64_t *first = far_scratch(t, 8);
    f->count = dart_node_slots(r->node.type, r->node.depth, dart->bucket);
    f->words = far_scratch(t, 8ull * f->count);
    if (!f->words || !first)
        return fail_no_memory();
    bool masked = dart->masked_freeze && far_task_capabilities(t)->masked_cas;
    bool at_hand = r->view && r->view->whole;
    int err = 0;
    far_point(t, "dart:freeze");
    if (r->view && r->view->header)
        memcpy(first, r->view->header, 8);
    else
        far_read(t, r->node.addr, first, 8);
    if (masked)
        add_masked_freezes(t, &r->node, f);
    else if (at_hand)
        memcpy(f->words, r->view->slots, 8ull * f->count);
    else
        far_read(t, dart_slot_addr(&r->node, 0), f->words, 8ull * f->count);
    if (masked || !at_hand)
        err = far_wait(t);
    if (err >= 0 && !masked)
        err = freeze_by_cas(t, &r->node, f);
    if (err >= 0 && !masked && at_hand)
        /* If all slots were frozen already, freeze_by_cas has sent no batch, and the READ of the header is still in the
         * open batch. */
        err = far_wait(t);
    if (err < 0)
        return err;
    far_point(t, "dart:frozen");
    if (!dart_header_matches((const dart_header *)first, &r->node))
        return dart_fail_corrupt(index, "node", r->node.addr);
    return 0;
}


/* ---- Contention at the same node ---- */

/* A client that meets a full node with more slots than this first freezes slot 0 alone. The client that finds slot 0
 * unfrozen freezes the other slots at once; the other clients wait. */
#define LARGE_NODE_SLOTS     16u
#define POLLS_BEFORE_HELPING 8u

/* Reads whether the parent's slot still leads to the node. Returns 1 if so, 0 if not, or an error. */
static int check_linked(far_task *t, far_index *index, const dart_replace *r) {
    dart_step parent;
    uint64_t word;
    if (!r->has_parent)
        return dart_find_parent(t, index, &r->node, r->prefix, &parent);
    int err = far_read_word(t, r->parent.slot, &word);
    return err < 0 ? err : dart_thawed(word) == dart_thawed(r->parent.word);
}


/* Lets one of the clients that meet the same full node freeze its slots, so that the others need not repeat this work.
 * Each client first freezes slot 0. The word that the masked CAS of slot 0 returns shows whether this client is the
 * first. A client that is not the first polls the parent's slot for some round trips before it helps. Helping is always
 * safe, so no client depends on the first client. Returns 1 if the node was replaced in the meantime, 0 if the caller
 * must freeze the node itself, or an error. */
static int wait_for_first_freezer(far_task *t, far_index *index, const dart_replace *r) {
    const dart_index *dart = dart_of(index);
    bool begun = r->freeze_started;
    int err;
    if (!begun && dart_node_slots(r->node.type, r->node.depth, dart->bucket) > LARGE_NODE_SLOTS &&
        dart->masked_freeze && far_task_capabilities(t)->masked_cas) {
        uint64_t seen;
        far_masked_cas(t, dart_slot_addr(&r->node, 0), 0, 0, DART_FROZEN, DART_FROZEN, &seen);
        if ((err = far_wait(t)) < 0)
            return err;
        begun = dart_is_frozen(seen);
    }
    for (unsigned polls = 0; begun && polls < POLLS_BEFORE_HELPING; polls++) {
        far_back_off(t, polls / 2);
        if ((err = check_linked(t, index, r)) <= 0)
            return err < 0 ? err : 1;
    }
    return 0;
}


/* ---- The contents of the replacement ---- */

/* Collects the children from the frozen words, and applies the piggybacked write to them if the write is still valid.
 * Sets *purged if there were TOMBs, which are left out. Returns true if the piggybacked write was made. */
static bool collect_children(const uint64_t *words, unsigned count, const dart_piggyback *piggyback,
                             dart_children *children, bool *purged) {
    bool applies = piggyback->what == DART_PIGGYBACK_INSERT;
    children->count = 0;
    *purged = false;
    for (unsigned i = 0; i < count; i++) {
        uint64_t word = dart_thawed(words[i]);
        *purged |= dart_is_tomb(word);
        if (!dart_is_child(word))
            continue;
        if (piggyback->what != DART_PIGGYBACK_NONE && dart_word_symbol(word) == piggyback->symbol) {
            applies = piggyback->what != DART_PIGGYBACK_INSERT && word == piggyback->expected;
            if (applies && piggyback->what == DART_PIGGYBACK_DELETE)
                continue;
            if (applies)
                word = piggyback->word;
        }
        children->words[children->count++] = word;
    }
    if (applies && piggyback->what == DART_PIGGYBACK_INSERT)
        children->words[children->count++] = piggyback->word;
    return applies;
}


static void free_new_node(far_task *t, far_index *index, new_node *m) {
    if (m->object.addr)
        far_free(t, index, DART_TYPE_NODE, m->object.addr, m->size);
    m->object.addr = 0;
}


/* Allocates an object for a node of this type. `flags` is FAR_ALLOC_HEADROOM if other clients may wait for this
 * replacement, so that it must be completed in a full pool too, or 0. If an earlier attempt has allocated an object of the right size,
 * that object is used again. Returns 0 or an error. */
static int allocate_node(far_task *t, far_index *index, const dart_replace *r, dart_node_type type, unsigned flags,
                         new_node *m) {
    uint64_t size = dart_node_bytes(type, r->node.depth, dart_of(index)->bucket);
    far_addr near = r->has_parent ? r->parent.slot : r->node.addr;
    unsigned where =
        dart_choose_memory_node(dart_of(index), far_task_nodes(t), r->prefix,
                                r->has_parent ? r->parent.node.depth : r->node.depth - 1, far_addr_node(near));
    if (m->object.addr && m->size == size)
        return 0;
    free_new_node(t, index, m);
    m->size = size;
    int err = far_alloc(t, index, DART_TYPE_NODE, m->size, where, flags, &m->object);
    if (err < 0)
        m->object.addr = 0;
    m->written = false;
    return err;
}


/* Builds the image of the node in m->image. m->written says whether the object in far memory already contains this
 * image; it stays set only if the new image equals the one that was written before. */
static int build_image(far_task *t, far_index *index, const dart_replace *r, dart_node_type type,
                       const dart_children *children, new_node *m) {
    uint64_t bytes = dart_node_bytes(type, r->node.depth, dart_of(index)->bucket);
    void *image = far_scratch(t, bytes);
    if (!image)
        return fail_no_memory();
    dart_build_node(dart_of(index), type, r->prefix, children, image);
    m->written = m->written && m->bytes == bytes && memcmp(m->image, image, bytes) == 0;
    m->image = image;
    m->bytes = bytes;
    return 0;
}


/* ---- Preparation before the first freeze ---- */

/* Chooses the type of the replacement. Under contention (r->lost_slots) the chosen type is larger than necessary,
 * because each growth of a node and each bucket that is full delays all clients that insert there. */
static dart_node_type choose_type(const dart_index *dart, const dart_replace *r, const dart_children *children,
                                  bool purged) {
    unsigned room = r->lost_slots == 0                     ? 0
                    : r->lost_slots < DART_CONTENDED_SLOTS ? 4 * children->count
                                                           : dart_capacity(DART_N256);
    dart_node_type type = dart_choose_type(dart, r->node.depth, children, purged);
    while (type < DART_N256 && (type == DART_N160 || dart_capacity(type) < room))
        type++;
    return type;
}


static dart_node_type guess_type(const dart_index *dart, const dart_replace *r, dart_children *children) {
    bool purged;
    if (!r->view || !r->view->whole) {
        bool grow = r->piggyback.what == DART_PIGGYBACK_INSERT && r->view;
        dart_node_type next = r->lost_slots >= DART_CONTENDED_SLOTS ? DART_N256
                              : r->node.type == DART_N144           ? DART_N192
                                                                    : r->node.type + 1;
        return grow && r->node.type < DART_N256 ? next : r->node.type;
    }
    collect_children(r->view->slots, r->view->count, &r->piggyback, children, &purged);
    return choose_type(dart, r, children, purged);
}


/* Allocates the memory of the replacement before the first slot is frozen, so that in a full pool the node stays
 * unchanged (unless another client has frozen the node already). Speculation: if all slots of the node were read
 * recently, the replacement is also built from these words and written in the batch that freezes the node. The
 * replacement is written again if the frozen words turn out to differ. */
static int prepare_new_node(far_task *t, far_index *index, const dart_replace *r, dart_children *children,
                            new_node *m) {
    const dart_index *dart = dart_of(index);
    bool whole = r->view && r->view->whole;
    dart_node_type type = guess_type(dart, r, children);
    if (whole ? children->count < 2 : r->freeze_started)
        return 0;
    int err = allocate_node(t, index, r, type, 0, m);
    if (err == FAR_ERR_NO_MEMORY && r->freeze_started)
        return 0;
    if (err < 0 || !whole || !dart->spec_write || !dart->rider)
        return err;
    if ((err = build_image(t, index, r, type, children, m)) < 0)
        return err;
    far_write(t, m->object.addr, m->image, m->bytes);
    m->written = true;
    return 0;
}


/* ---- The decision after the freeze ---- */

/* Computes *word, the new word of the parent's slot, from the frozen words. A replacement with several children is
 * built in *m. Sets *applies if the piggybacked write is part of the replacement. Sets *full if the piggybacked insert
 * had to be left out because the pool is full. */
static int choose_replacement(far_task *t, far_index *index, dart_replace *r, const frozen_slots *f,
                              dart_children *children, new_node *m, uint64_t *word, bool *applies, bool *full) {
    const dart_index *dart = dart_of(index);
    unsigned symbol = dart_word_symbol(r->parent.word), skip = dart_word_len(r->parent.word);
    bool purged;
    *applies = collect_children(f->words, f->count, &r->piggyback, children, &purged);
    dart_node_type type = choose_type(dart, r, children, purged);
    /* If piggybacking is switched off, the chosen type leaves room for the write, but the write itself is left out. */
    if (*applies && !dart->rider) {
        *applies = collect_children(f->words, f->count, &(dart_piggyback){0}, children, &purged);
        if (!dart_children_fit(dart, type, r->node.depth, children))
            type = choose_type(dart, r, children, purged);
    }
    if (children->count == 0) {
        *word = dart_tomb(symbol);
        return 0;
    }
    uint64_t only = children->words[0];
    unsigned lifted = dart_is_leaf(only) ? 0 : skip + 1 + dart_word_len(only);
    if (children->count == 1 && lifted <= dart->max_skip) {
        *word = dart_word_moved(only, symbol, lifted);
        return 0;
    }
    int err = allocate_node(t, index, r, type, 0, m);
    if (err == FAR_ERR_NO_MEMORY) { /* Without the insert, a node of the same type has room for all children. */
        *full = !dart_children_fit(dart, r->node.type, r->node.depth, children);
        if (*full)
            *applies = collect_children(f->words, f->count, &(dart_piggyback){0}, children, &purged);
        type = r->node.type;
        err = allocate_node(t, index, r, type, FAR_ALLOC_HEADROOM, m);
    }
    if (err < 0 || (err = build_image(t, index, r, type, children, m)) < 0)
        return err;
    *word = dart_word(symbol, skip, type, m->object.addr);
    return 0;
}


/* ---- Cleanup after the replacement was installed ---- */

/* The cleanup that the client performs after it installed a replacement: remove the entries of the old node, retire the
 * old node, and register the new node. The old node's prefix follows the struct in memory. The cleanup runs in the
 * background, unless no entry has to be removed. */
typedef struct cleanup_job {
    /* the replaced node and its replacement; new.addr 0: the replacement is the node's only child or a TOMB */
    dart_node old, new;
    bool no_entry; /* no skip table entry names the old node */
    bool soon;     /* queue the new node for registration now; else it is registered when a get misses its entry */
    unsigned parent_depth;
    /* if no_entry: images of the buckets in which no entry of the old node was found */
    const dart_entry_buckets *buckets;
} cleanup_job;


/* maximal number of tries when local memory is exhausted; the pauses between the tries grow */
#define CLEANUP_TRIES 16u


/* Removes the old node's entries from the skip table. The node may be retired only after that, and only under the pin
 * under which it was unlinked, because without this pin a collection may free it. So the pin is held while the removal
 * is repeated, and the number of tries is limited. Returns 0 or an error. */
static int remove_entries(far_task *t, far_index *index, const cleanup_job *job, far_bytes prefix) {
    int err = 0;
    for (unsigned tries = 0; tries < CLEANUP_TRIES; tries++) {
        if ((err = dart_est_remove(t, index, &job->old, prefix)) != FAR_ERR_NO_MEMORY)
            return err;
        far_back_off(t, tries);
    }
    return err;
}


static void retire_old_node(far_task *t, far_index *index, void *arg) {
    const cleanup_job *job = arg;
    const dart_index *dart = dart_of(index);
    far_bytes prefix = {job + 1, job->old.depth};
    if (!job->no_entry && remove_entries(t, index, job, prefix) < 0) {
        far_memory_note_failed_session(far_task_pool(t)); /* A collection will remove the entries and free the node. */
        return;
    }
    far_point(t, "dart:retire");
    far_retire(t, index, DART_TYPE_NODE, job->old.addr, dart_node_size(dart, &job->old));
    if (dart->est && job->new.addr)
        dart_est_register(t, index, &job->new, job->parent_depth, prefix, job->soon, job->buckets);
}


static size_t cleanup_job_bytes(const dart_replace *r) {
    return sizeof(cleanup_job) + r->node.depth;
}


/* Does the cleanup, or spawns a task that does it. job: memory for the cleanup_job, which was allocated before the node
 * was unlinked. */
static void start_cleanup(far_task *t, far_index *index, const dart_replace *r, uint64_t word, const new_node *m,
                          const dart_entry_buckets *buckets, bool no_entry, bool renamed, cleanup_job *job) {
    *job = (cleanup_job){r->node, {0}, no_entry, false, r->parent.node.depth, no_entry ? buckets : NULL};
    if (m->object.addr) {
        job->new = (dart_node){m->object.addr, dart_word_type(word), r->node.depth};
        job->soon = !renamed && (!no_entry || job->new.type > DART_N4);
    }
    memcpy(job + 1, r->prefix.data, r->node.depth);
    if (no_entry || !far_index_spawn(t, index, retire_old_node, job, cleanup_job_bytes(r)))
        retire_old_node(t, index, job);
}


/* Installs the replacement: one CAS changes the parent's slot to `word`. The same batch reads the buckets in which the
 * old node may have entries, and redirects the entry through which the node was reached. */
static int install_replacement(far_task *t, far_index *index, dart_replace *r, uint64_t word, new_node *m,
                               verdict *verdict) {
    uint64_t seen, expected = r->parent.word;
    int err;
    cleanup_job *job = far_scratch(t, cleanup_job_bytes(r));
    if (!job)
        return fail_no_memory();
    bool uses = m->object.addr && dart_is_inner(word) && dart_word_addr(word) == m->object.addr;
    if (!uses)
        free_new_node(t, index, m);
    if (uses && !m->written) {
        far_write(t, m->object.addr, m->image, m->bytes);
        if ((far_addr_node(m->object.addr) != far_addr_node(r->parent.slot) || !dart_of(index)->colocate) &&
            (err = far_wait(t)) < 0)
            return err;
    }
    far_point(t, "dart:install");
    /* Reads the buckets in which the node may have entries. These READs find all entries of the node, because the node
     * is frozen, so no client registers it any more. */
    dart_entry_buckets *buckets = dart_est_entry_buckets_add_reads(t, index, &r->node, r->prefix);
    dart_redirect redirect;
    dart_node new = {m->object.addr, dart_word_type(word), r->node.depth};
    bool renamed =
        uses && r->known_entry &&
        dart_est_redirect_add_cas(t, index, r->known_entry, &new, r->parent.node.depth, r->prefix, &redirect);
    bool tried = renamed;
    far_cas(t, r->parent.slot, expected, word, &seen);
    r->batch_mark = far_rdwc_mark(t);
    err = far_wait(t);
    r->known_entry = NULL;
    if (renamed)
        renamed = dart_est_redirect_finish(t, index, &redirect, err >= 0 && seen == expected);
    if (err < 0)
        return err;
    if (seen != expected) {
        r->parent.word = seen;
        *verdict = dart_thawed(seen) == expected ? PARENT_FROZEN : PARENT_CHANGED;
        m->written = uses;
        return 0;
    }
    far_point(t, "dart:installed");
    r->became_tomb = dart_is_tomb(word);
    *verdict = REPLACED;
    bool no_entry =
        !dart_of(index)->est || dart_est_confirm_no_entry(t, index, &r->node, buckets, tried ? &redirect : NULL);
    start_cleanup(t, index, r, word, m, buckets, no_entry, renamed, job);
    return 0;
}


/* Makes one attempt to replace the node. *m keeps the memory of the new node for the next attempt. Sets *verdict to the
 * result. Returns 0 or an error. */
static int try_replace(far_task *t, far_index *index, dart_replace *r, new_node *m, verdict *verdict) {
    dart_children *children = far_scratch(t, sizeof(*children));
    frozen_slots f = {0};
    parent_search a;
    uint64_t word = 0;
    bool applies = false, full = false;
    int err;
    if (!children)
        return fail_no_memory();
    children->count = 0;
    if ((err = prepare_new_node(t, index, r, children, m)) < 0)
        return err;
    if ((err = wait_for_first_freezer(t, index, r)) != 0) {
        *verdict = REPLACED;
        return err < 0 ? err : 0;
    }
    /* The first READ of the search is sent in the batch of the freeze. */
    if (!r->has_parent && (err = start_parent_search(t, index, &r->node, r->prefix, &a)) < 0)
        return err;
    if ((err = freeze_node(t, index, r, &f)) < 0)
        return err;
    if (!r->has_parent) {
        if ((err = finish_parent_search(t, index, &a, &r->parent)) <= 0) {
            *verdict = REPLACED;
            return err;
        }
        r->has_parent = true;
    }
    *verdict = PARENT_FROZEN;
    if (dart_is_frozen(r->parent.word))
        return 0;
    if ((err = choose_replacement(t, index, r, &f, children, m, &word, &applies, &full)) < 0)
        return err;
    if ((err = install_replacement(t, index, r, word, m, verdict)) < 0)
        return err;
    if (*verdict != REPLACED)
        return 0;
    m->object.addr = 0;
    r->piggyback_done = applies;
    return full ? far_fail(FAR_ERR_NO_MEMORY, "the pool is full: delete keys or add memory nodes") : 0;
}


/* Maximal number of attempts of one replacement. If all of them fail, the whole operation starts again, because only
 * the operation can renew its pin. */
#define TRIES_MAX 256u


/* Replaces the node. If the parent is frozen, the parent is replaced first, and so on upwards. The recursion ends,
 * because the root is never frozen. */
int dart_replace_node(far_task *t, far_index *index, dart_replace *r) {
    dart_replace up = {0};
    new_node own = {0}, parents = {0};
    bool upwards = false;
    verdict verdict = PARENT_CHANGED;
    int err = 0;
    if (r->node.depth == 0)
        return dart_fail_corrupt(index, "root", r->node.addr);
    for (unsigned tries = 0; tries < TRIES_MAX; tries++) {
        dart_replace *now = upwards ? &up : r;
        far_scratch_mark mark = far_scratch_here(t);
        if ((err = try_replace(t, index, now, upwards ? &parents : &own, &verdict)) < 0 ||
            (verdict == REPLACED && !upwards))
            break;
        if (verdict == PARENT_FROZEN) {
            if (now->parent.node.depth == 0) {
                err = dart_fail_corrupt(index, "root", now->parent.node.addr);
                break;
            }
            up = (dart_replace){
                .node = now->parent.node, .prefix = {r->prefix.data, now->parent.node.depth}, .freeze_started = true};
            free_new_node(t, index, &parents);
            upwards = true;
        } else if (upwards && verdict == REPLACED) {
            upwards = false;
            r->has_parent = false;
        } else {
            now->has_parent = false;
        }
        r->has_parent = r->has_parent && !upwards;
        r->view = NULL;
        r->freeze_started = true;
        /* `written` means that the image of the new node was written to its object. The image is in scratch memory that
         * is released below, so the next attempt builds and writes it again. */
        own.written = parents.written = false;
        far_count_retry(t);
        if (tries >= 2)
            far_back_off(t, tries - 2);
        far_scratch_back(t, mark);
    }
    if (!dart_session_is_lost(err)) {
        if (err < 0)
            far_discard_batch(t);
        free_new_node(t, index, &own);
        free_new_node(t, index, &parents);
    }
    return err < 0 ? err : 0;
}
