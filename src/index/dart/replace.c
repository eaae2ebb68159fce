/* REPLACE: grow, shrink, purge, merge, remove and help, all one procedure. A node is frozen slot by slot; from its
 * final contents anybody can build what comes in its place; one CAS of the parent's slot decides whose version counts.
 */
#include "base/error.h"
#include "index/dart/dart.h"
#include "index/rdwc.h"
#include "pool/alloc.h"

#include <string.h>

typedef struct made { /* what takes the node's place */
    far_object object;
    unsigned type; /* of the object: DART_TYPE_NODE or _SPARE; addr 0: there is none */
    uint64_t size;
    void *image; /* as written, or to be */
    uint64_t bytes;
    bool written;
} made;

typedef struct frozen { /* the final contents */
    uint64_t *words;
    unsigned count;
    bool spare; /* the node lies in an object of the reserve */
} frozen;

typedef enum {
    REPLACED,
    AGAIN,
    ABOVE
} verdict; /* done, by us or others; look for the parent again; the parent is frozen: it first */


static int no_memory(void) {
    return far_fail(FAR_ERR_NO_MEMORY, "no memory for an operation");
}


int dart_read_node(far_task *t, far_index *index, const dart_node *node, dart_view *view) {
    unsigned header = dart_header_bytes(node->depth),
             slots = dart_node_slots(node->type, node->depth, dart_of(index)->bucket);
    char *image = far_scratch(t, header + 8ull * slots);
    if (!image)
        return no_memory();
    far_read(t, node->addr, image, header + 8ull * slots);
    int err = far_wait(t);
    *view = (dart_view){*node, 0, slots, (uint64_t *)(image + header), (const dart_header *)image, true};
    if (err >= 0 && !dart_header_is(view->header, node))
        err = dart_corrupt(index, "node", node->addr);
    return err;
}


/* ---- The parent ---- */

typedef struct ascent { /* the search for the slot above a node: a descent along the node's own prefix */
    const dart_node *node;
    far_bytes prefix;
    dart_node above;
    dart_view view; /* the bucket of above that is being read */
} ascent;


static int put_parent(far_task *t, const far_index *index, ascent *a) {
    a->view = (dart_view){.node = a->above};
    dart_slot_range(dart_of(index), a->above.type, a->above.depth, dart_symbol(a->prefix, a->above.depth),
                    &a->view.first, &a->view.count);
    if (!(a->view.slots = far_scratch(t, 8ull * a->view.count)))
        return no_memory();
    far_read(t, dart_slot_addr(&a->above, a->view.first), a->view.slots, 8ull * a->view.count);
    return 0;
}


static int put_first_parent(far_task *t, const far_index *index, const dart_node *node, far_bytes prefix, ascent *a) {
    *a = (ascent){.node = node, .prefix = prefix, .above = {dart_of(index)->root, DART_N256, 0}};
    return put_parent(t, index, a);
}


/* The READ put first has come. */
static int take_parent(far_task *t, far_index *index, ascent *a, dart_step *parent) {
    for (;;) {
        int found = dart_view_search(dart_of(index), &a->view, dart_symbol(a->prefix, a->above.depth)), err;
        uint64_t word = found < 0 ? 0 : a->view.slots[found];
        if (!dart_is_inner(word))
            return 0;
        if (dart_word_addr(word) == a->node->addr) {
            *parent = (dart_step){a->above, dart_slot_addr(&a->above, a->view.first + (unsigned)found), word, 0};
            return 1;
        }
        a->above = (dart_node){dart_word_addr(word), dart_word_type(word), a->above.depth + 1 + dart_word_len(word)};
        if (a->above.depth >= a->node->depth)
            return 0;
        if ((err = put_parent(t, index, a)) < 0 || (err = far_wait(t)) < 0)
            return err;
    }
}


int dart_find_parent(far_task *t, far_index *index, const dart_node *node, far_bytes prefix, dart_step *parent) {
    ascent a;
    int err = put_first_parent(t, index, node, prefix, &a);
    if (err >= 0)
        err = far_wait(t);
    return err < 0 ? err : take_parent(t, index, &a, parent);
}


/* ---- Freezing ---- */

static void put_freeze_masked(far_task *t, const dart_node *node, frozen *f) {
    for (unsigned i = 0; i < f->count; i++)
        far_masked_cas(t, dart_slot_addr(node, i), 0, 0, DART_FROZEN, DART_FROZEN, &f->words[i]);
}


/* By CAS: those whose words moved meanwhile once more. */
static int freeze_by_cas(far_task *t, const dart_node *node, frozen *f) {
    uint64_t *seen = far_scratch(t, 8ull * f->count);
    if (!seen)
        return no_memory();
    for (unsigned attempt = 0;; attempt++) {
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


/* What was put into the batch before goes with it. */
static int freeze(far_task *t, far_index *index, const dart_replace *r, frozen *f) {
    dart_index *dart = dart_of(index);
    uint64_t *first = far_scratch(t, 8);
    f->count = dart_node_slots(r->node.type, r->node.depth, dart->bucket);
    f->words = far_scratch(t, 8ull * f->count);
    if (!f->words || !first)
        return no_memory();
    bool masked = dart->masked_freeze && far_task_capabilities(t)->masked_cas;
    bool at_hand = r->view && r->view->whole;
    int err = 0;
    far_point(t, "dart:freeze");
    if (r->view && r->view->header)
        memcpy(first, r->view->header, 8);
    else
        far_read(t, r->node.addr, first, 8);
    if (masked)
        put_freeze_masked(t, &r->node, f);
    else if (at_hand)
        memcpy(f->words, r->view->slots, 8ull * f->count);
    else
        far_read(t, dart_slot_addr(&r->node, 0), f->words, 8ull * f->count);
    if (masked || !at_hand)
        err = far_wait(t);
    if (err >= 0 && !masked)
        err = freeze_by_cas(t, &r->node, f);
    if (err >= 0 && !masked && at_hand)
        err = far_wait(t); /* all of them were frozen already: the header is still to come */
    if (err < 0)
        return err;
    far_point(t, "dart:frozen");
    if (!dart_header_is((const dart_header *)first, &r->node))
        return dart_corrupt(index, "node", r->node.addr);
    f->spare = dart_header_spare((const dart_header *)first);
    return 0;
}


/* ---- Others at the same node ---- */

#define CROWD_SLOTS 16u /* of a larger node, not everybody who meets it freezes all slots */
#define CROWD_POLLS 8u

/* Whether the slot above still leads to the node: 1, 0, or an error. */
static int is_linked(far_task *t, far_index *index, const dart_replace *r) {
    dart_step parent;
    uint64_t word;
    if (!r->has_parent)
        return dart_find_parent(t, index, &r->node, r->prefix, &parent);
    int err = far_read_word(t, r->parent.slot, &word);
    return err < 0 ? err : dart_thawed(word) == dart_thawed(r->parent.word);
}


/* Many clients may meet a full node at once. The first slot tells them who came first; the others give that one some round
 * trips before they help, which is always safe. 1: the node was replaced meanwhile. */
static int let_others_finish(far_task *t, far_index *index, const dart_replace *r) {
    const dart_index *dart = dart_of(index);
    bool begun = r->begun;
    int err;
    if (!begun && dart_node_slots(r->node.type, r->node.depth, dart->bucket) > CROWD_SLOTS && dart->masked_freeze &&
        far_task_capabilities(t)->masked_cas) {
        uint64_t seen;
        far_masked_cas(t, dart_slot_addr(&r->node, 0), 0, 0, DART_FROZEN, DART_FROZEN, &seen);
        if ((err = far_wait(t)) < 0)
            return err;
        begun = dart_is_frozen(seen);
    }
    for (unsigned polls = 0; begun && polls < CROWD_POLLS; polls++) {
        far_back_off(t, polls / 2);
        if ((err = is_linked(t, index, r)) <= 0)
            return err < 0 ? err : 1;
    }
    return 0;
}


/* ---- Contents ---- */

/* The children, with the rider's change if it still applies. *purged: there were TOMBs. Returns whether the rider
 * applies. */
static bool gather(const uint64_t *words, unsigned count, const dart_rider *rider, dart_children *children,
                   bool *purged) {
    bool applies = rider->what == DART_RIDE_INSERT;
    children->count = 0;
    *purged = false;
    for (unsigned i = 0; i < count; i++) {
        uint64_t word = dart_thawed(words[i]);
        *purged |= dart_is_tomb(word);
        if (!dart_is_child(word))
            continue;
        if (rider->what != DART_RIDE_NONE && dart_word_symbol(word) == rider->symbol) {
            applies = rider->what != DART_RIDE_INSERT && word == rider->expected;
            if (applies && rider->what == DART_RIDE_DELETE)
                continue;
            if (applies)
                word = rider->word;
        }
        children->words[children->count++] = word;
    }
    if (applies && rider->what == DART_RIDE_INSERT)
        children->words[children->count++] = rider->word;
    return applies;
}


static void drop_made(far_task *t, far_index *index, made *m) {
    if (m->object.addr)
        far_free(t, index, m->type, m->object.addr, m->size);
    m->object.addr = 0;
}


static uint64_t spare_size(void) {
    return dart_node_bytes(DART_N256, DART_KEY_MAX, 16);
}


/* Memory for a node of that type. For a node that others may be waiting for, the reserve helps. */
static int make_room(far_task *t, far_index *index, const dart_replace *r, dart_node_type type, bool reserve, made *m) {
    uint64_t size = dart_node_bytes(type, r->node.depth, dart_of(index)->bucket);
    far_addr near = r->has_parent ? r->parent.slot : r->node.addr;
    unsigned where = dart_place(dart_of(index), far_task_nodes(t), r->prefix,
                                r->has_parent ? r->parent.node.depth : r->node.depth - 1, far_addr_node(near));
    int err;
    if (m->object.addr && m->type == DART_TYPE_NODE && m->size == size)
        return 0;
    drop_made(t, index, m);
    m->type = DART_TYPE_NODE;
    m->size = size;
    err = far_alloc(t, index, m->type, m->size, where, 0, &m->object);
    if (err == FAR_ERR_NO_MEMORY && reserve) {
        m->type = DART_TYPE_SPARE;
        m->size = spare_size();
        err = far_alloc(t, index, m->type, m->size, FAR_NODE_ANY, FAR_ALLOC_RESERVE, &m->object);
    }
    if (err < 0)
        m->object.addr = 0;
    m->written = false;
    return err;
}


/* Builds the image; what was written before is good when it is the same. */
static int build(far_task *t, far_index *index, const dart_replace *r, dart_node_type type,
                 const dart_children *children, made *m) {
    uint64_t bytes = dart_node_bytes(type, r->node.depth, dart_of(index)->bucket);
    void *image = far_scratch(t, bytes);
    if (!image)
        return no_memory();
    dart_build(dart_of(index), type, r->prefix, m->type == DART_TYPE_SPARE, children, image);
    m->written = m->written && m->bytes == bytes && memcmp(m->image, image, bytes) == 0;
    m->image = image;
    m->bytes = bytes;
    return 0;
}


/* ---- Before the freeze ---- */

/* Each growth of a node, and each bucket that is filled in order, holds up all who insert there at once. */
static dart_node_type choose_type(const dart_index *dart, const dart_replace *r, const dart_children *children,
                                  bool purged) {
    unsigned room = r->lost == 0 ? 0 : r->lost < DART_CROWD ? 4 * children->count : dart_capacity(DART_N256);
    dart_node_type type = dart_choose_type(dart, r->node.depth, children, purged);
    while (type < DART_N256 && (type == DART_N160 || dart_capacity(type) < room))
        type++;
    return type;
}


static dart_node_type guess_type(const dart_index *dart, const dart_replace *r, dart_children *children) {
    bool purged;
    if (!r->view || !r->view->whole) {
        bool grow = r->rider.what == DART_RIDE_INSERT && r->view;
        dart_node_type next = r->lost >= DART_CROWD       ? DART_N256
                              : r->node.type == DART_N144 ? DART_N192
                                                          : r->node.type + 1;
        return grow && r->node.type < DART_N256 ? next : r->node.type;
    }
    gather(r->view->slots, r->view->count, &r->rider, children, &purged);
    return choose_type(dart, r, children, purged);
}


/* Memory before the first freeze: in a full pool nothing is begun, unless somebody has frozen the node already.
 * Speculation: all slots were seen lately, so the new node is written in the batch that freezes the old one. */
static int prepare(far_task *t, far_index *index, const dart_replace *r, dart_children *children, made *m) {
    const dart_index *dart = dart_of(index);
    bool whole = r->view && r->view->whole;
    dart_node_type type = guess_type(dart, r, children);
    if (whole ? children->count < 2 : r->begun)
        return 0;
    int err = make_room(t, index, r, type, false, m);
    if (err == FAR_ERR_NO_MEMORY && r->begun)
        return 0;
    if (err < 0 || !whole || !dart->spec_write || !dart->rider)
        return err;
    if ((err = build(t, index, r, type, children, m)) < 0)
        return err;
    far_write(t, m->object.addr, m->image, m->bytes);
    m->written = true;
    return 0;
}


/* ---- After it ---- */

/* The parent's slot will say this. A node of several children is built in *m. */
static int decide(far_task *t, far_index *index, dart_replace *r, const frozen *f, dart_children *children, made *m,
                  uint64_t *word, bool *applies, bool *full) {
    const dart_index *dart = dart_of(index);
    unsigned symbol = dart_word_symbol(r->parent.word), skip = dart_word_len(r->parent.word);
    bool purged;
    *applies = gather(f->words, f->count, &r->rider, children, &purged);
    dart_node_type type = choose_type(dart, r, children, purged);
    if (*applies && !dart->rider) { /* room is made for it, but it does not ride */
        *applies = gather(f->words, f->count, &(dart_rider){0}, children, &purged);
        if (!dart_fits(dart, type, r->node.depth, children))
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
    int err = make_room(t, index, r, type, false, m);
    if (err == FAR_ERR_NO_MEMORY) { /* a copy of the same type always holds what is there */
        *full = !dart_fits(dart, r->node.type, r->node.depth, children);
        if (*full)
            *applies = gather(f->words, f->count, &(dart_rider){0}, children, &purged);
        type = r->node.type;
        err = make_room(t, index, r, type, true, m);
    }
    if (err < 0 || (err = build(t, index, r, type, children, m)) < 0)
        return err;
    *word = dart_word(symbol, skip, type, m->object.addr);
    return 0;
}


/* ---- Afterwards ---- */

typedef struct tidy {    /* what the winner does in the background; the prefix follows */
    dart_node old, new;  /* new.addr 0: none */
    bool spare, unnamed; /* unnamed: no entry of the skip table names the old one */
    bool soon;           /* the new one is to be registered */
    unsigned parent_depth;
    const dart_names *names; /* unnamed: the buckets that were looked at */
} tidy;


#define TIDY_TRIES 16u /* without local memory; the waits between them grow */


/* The old node is retired only when no entry of the skip table names it, and only under the pin under which it was
 * unlinked: a sweep may take it from then on. So the pin is held while the removal is tried again, and not for ever. */
static int remove_entries(far_task *t, far_index *index, const tidy *job, far_bytes prefix) {
    int err = 0;
    for (unsigned tries = 0; tries < TIDY_TRIES; tries++) {
        if ((err = dart_est_remove(t, index, &job->old, prefix)) != FAR_ERR_NO_MEMORY)
            return err;
        far_back_off(t, tries);
    }
    return err;
}


static void run_tidy(far_task *t, far_index *index, void *arg) {
    const tidy *job = arg;
    const dart_index *dart = dart_of(index);
    far_bytes prefix = {job + 1, job->old.depth};
    if (!job->unnamed && remove_entries(t, index, job, prefix) < 0) {
        far_memory_lost_some(far_task_pool(t)); /* a sweep takes the entries away, then the node */
        return;
    }
    far_point(t, "dart:retire");
    if (job->spare)
        far_retire(t, index, DART_TYPE_SPARE, job->old.addr, spare_size());
    else
        far_retire(t, index, DART_TYPE_NODE, job->old.addr, dart_node_size(dart, &job->old));
    if (dart->est && job->new.addr)
        dart_est_register(t, index, &job->new, job->parent_depth, prefix, job->soon, job->names);
}


static size_t tidy_bytes(const dart_replace *r) {
    return sizeof(tidy) + r->node.depth;
}


/* job: room for it, taken before the node was unlinked. */
static void tidy_up(far_task *t, far_index *index, const dart_replace *r, const frozen *f, uint64_t word, const made *m,
                    const dart_names *names, bool unnamed, bool renamed, tidy *job) {
    *job = (tidy){r->node, {0}, f->spare, unnamed, false, r->parent.node.depth, unnamed ? names : NULL};
    if (m->object.addr) {
        job->new = (dart_node){m->object.addr, dart_word_type(word), r->node.depth};
        job->soon = !renamed && (!unnamed || job->new.type > DART_N4);
    }
    memcpy(job + 1, r->prefix.data, r->node.depth);
    if (unnamed || !far_index_spawn(t, index, run_tidy, job, tidy_bytes(r)))
        run_tidy(t, index, job);
}


/* Puts what was decided into the parent's slot. */
static int install(far_task *t, far_index *index, dart_replace *r, const frozen *f, uint64_t word, made *m,
                   verdict *verdict) {
    uint64_t seen, expected = r->parent.word;
    int err;
    tidy *job = far_scratch(t, tidy_bytes(r));
    if (!job)
        return no_memory();
    bool uses = m->object.addr && dart_is_inner(word) && dart_word_addr(word) == m->object.addr;
    if (!uses)
        drop_made(t, index, m);
    if (uses && !m->written) {
        far_write(t, m->object.addr, m->image, m->bytes);
        if ((far_addr_node(m->object.addr) != far_addr_node(r->parent.slot) || !dart_of(index)->colocate) &&
            (err = far_wait(t)) < 0)
            return err;
    }
    far_point(t, "dart:install");
    dart_names *names = dart_est_names_put(t, index, &r->node, r->prefix); /* a frozen node: nobody will register it */
    dart_rename rename;
    dart_node new = {m->object.addr, dart_word_type(word), r->node.depth};
    bool renamed =
        uses && r->named && dart_est_rename_put(t, index, r->named, &new, r->parent.node.depth, r->prefix, &rename);
    bool tried = renamed;
    far_cas(t, r->parent.slot, expected, word, &seen);
    r->mark = far_rdwc_mark(t);
    err = far_wait(t);
    r->named = NULL;
    if (renamed)
        renamed = dart_est_rename_end(t, index, &rename, err >= 0 && seen == expected);
    if (err < 0)
        return err;
    if (seen != expected) {
        r->parent.word = seen;
        *verdict = dart_thawed(seen) == expected ? ABOVE : AGAIN;
        m->written = uses;
        return 0;
    }
    far_point(t, "dart:installed");
    r->removed = dart_is_tomb(word);
    *verdict = REPLACED;
    bool unnamed = !dart_of(index)->est || dart_est_names_none(t, index, &r->node, names, tried ? &rename : NULL);
    tidy_up(t, index, r, f, word, m, names, unnamed, renamed, job);
    return 0;
}


/* One attempt. m keeps the memory for the new node from one to the next. */
static int attempt(far_task *t, far_index *index, dart_replace *r, made *m, verdict *verdict) {
    dart_children *children = far_scratch(t, sizeof(*children));
    frozen f = {0};
    ascent a;
    uint64_t word = 0;
    bool applies = false, full = false;
    int err;
    if (!children)
        return no_memory();
    children->count = 0;
    if ((err = prepare(t, index, r, children, m)) < 0)
        return err;
    if ((err = let_others_finish(t, index, r)) != 0) {
        *verdict = REPLACED;
        return err < 0 ? err : 0;
    }
    if (!r->has_parent && (err = put_first_parent(t, index, &r->node, r->prefix, &a)) < 0) /* goes with the freeze */
        return err;
    if ((err = freeze(t, index, r, &f)) < 0)
        return err;
    if (!r->has_parent) {
        if ((err = take_parent(t, index, &a, &r->parent)) <= 0) {
            *verdict = REPLACED;
            return err;
        }
        r->has_parent = true;
    }
    *verdict = ABOVE;
    if (dart_is_frozen(r->parent.word))
        return 0;
    if ((err = decide(t, index, r, &f, children, m, &word, &applies, &full)) < 0)
        return err;
    if ((err = install(t, index, r, &f, word, m, verdict)) < 0)
        return err;
    if (*verdict != REPLACED)
        return 0;
    m->object.addr = 0;
    r->carried = applies;
    return full ? far_fail(FAR_ERR_NO_MEMORY, "the pool is full") : 0;
}


#define TRIES_MAX 256u /* of one replacement; after them its operation begins anew, with another pin now and then */


/* The node is replaced; when the one above is frozen, that comes first, and so on up (the root never is). */
int dart_replace_node(far_task *t, far_index *index, dart_replace *r) {
    dart_replace up = {0};
    made mine = {0}, theirs = {0};
    bool upwards = false;
    verdict verdict = AGAIN;
    int err = 0;
    if (r->node.depth == 0)
        return dart_corrupt(index, "root", r->node.addr);
    for (unsigned tries = 0; tries < TRIES_MAX; tries++) {
        dart_replace *now = upwards ? &up : r;
        far_scratch_mark mark = far_scratch_here(t);
        if ((err = attempt(t, index, now, upwards ? &theirs : &mine, &verdict)) < 0 ||
            (verdict == REPLACED && !upwards))
            break;
        if (verdict == ABOVE) {
            if (now->parent.node.depth == 0) {
                err = dart_corrupt(index, "root", now->parent.node.addr);
                break;
            }
            up = (dart_replace){
                .node = now->parent.node, .prefix = {r->prefix.data, now->parent.node.depth}, .begun = true};
            drop_made(t, index, &theirs);
            upwards = true;
        } else if (upwards && verdict == REPLACED) {
            upwards = false;
            r->has_parent = false;
        } else {
            now->has_parent = false;
        }
        r->has_parent = r->has_parent && !upwards;
        r->view = NULL;
        r->begun = true;
        mine.written = theirs.written = false; /* its image was scratch memory of this attempt */
        far_count_retry(t);
        if (tries >= 2)
            far_back_off(t, tries - 2);
        far_scratch_back(t, mark);
    }
    if (!dart_is_lost(err)) {
        if (err < 0)
            far_forget(t);
        drop_made(t, index, &mine);
        drop_made(t, index, &theirs);
    }
    return err < 0 ? err : 0;
}
