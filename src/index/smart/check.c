/* Walk, check and usage. Each is a series of traversals (traversal.h) that cover the tree in slices of walk_slice
 * leaves. Every slice has its own pin, so that long runs do not hold back the reuse of memory. The kind calls
 * smart_walk, smart_check and smart_usage. */
#include "base/error.h"
#include "index/smart/traversal.h"
#include "pool/epoch/epoch.h"
#include "pool/format/owner.h"

#include <stdlib.h>
#include <string.h>

typedef struct sliced_traversal {
    smart_traversal traversal;
    void *ctx; /* argument of the function `each`: a far_walk, far_report or far_usage */
    int (*each)(smart_traversal *p, const smart_item *item, const smart_spot *s, void *ctx);
    unsigned left; /* number of leaves that this slice may still visit */
    bool any;      /* true if this slice visited a leaf */
    size_t length; /* length in bytes of the last key that was visited, which `last` contains; 0: no key was visited */
    uint8_t last[SMART_KEY_MAX + 1];
    far_suspects locks; /* locks that were found held in this slice; used only by a check */
} sliced_traversal;


static int visit_leaf(smart_traversal *p, const smart_item *item, const smart_spot *s) {
    sliced_traversal *sl = (sliced_traversal *)p;
    int err = sl->each(p, item, s, sl->ctx);
    if (err < 0)
        return err;
    memcpy(sl->last, s->leaf.key.data, s->leaf.key.length);
    sl->length = s->leaf.key.length;
    sl->any = true;
    return --sl->left == 0;
}


/* Runs one slice. It begins with the last key of the previous slice, so the leaf of that key is visited twice. Returns
 * 0 or an error. */
static int run_slice(far_task *t, far_index *index, sliced_traversal *sl, uint8_t *from) {
    far_bytes key = {from, sl->length};
    memcpy(from, sl->last, sl->length);
    sl->left = smart_state_of(index)->walk_slice;
    sl->any = false;
    int err = smart_op_begin(&sl->traversal.op, t, index, key);
    return err < 0 ? err : smart_traversal_run(&sl->traversal);
}


static int run_slices(far_task *t, far_index *index, sliced_traversal *sl) {
    uint8_t *from = malloc(SMART_KEY_MAX + 1);
    int err = from ? SMART_TRAVERSAL_STOPS : far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
    sl->traversal.each_leaf = visit_leaf;
    for (unsigned attempt = 0; err == SMART_TRAVERSAL_STOPS; attempt++) {
        far_scratch_mark here = far_scratch_here(t);
        if ((err = far_pin_take(t)) >= 0)
            err = run_slice(t, index, sl, from);
        far_pin_drop(t);
        int locks = err >= 0 && sl->locks.count ? far_suspects_check(t, &sl->locks, sl->ctx) : 0;
        if (locks < 0)
            err = locks;
        if (err == SMART_TRAVERSAL_STOPS && sl->traversal.run_again)
            far_back_off(t, sl->any ? 0 : attempt);
        far_scratch_back(t, here);
    }
    free(from);
    return err;
}


static sliced_traversal *new_sliced_traversal(void *ctx, int (*each)(smart_traversal *p, const smart_item *item,
                                                                     const smart_spot *s, void *ctx)) {
    sliced_traversal *sl = calloc(1, sizeof(*sl));
    if (!sl)
        far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
    else {
        sl->ctx = ctx;
        sl->each = each;
    }
    return sl;
}


static int run_and_free(far_task *t, far_index *index, sliced_traversal *sl) {
    int err = sl ? run_slices(t, index, sl) : far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
    free(sl);
    return err;
}


/* Walk: reports all linked objects, and completes the unfinished work of failed clients. */

static int walk_node(smart_traversal *p, far_addr node, unsigned layout) {
    return far_walk_object(((sliced_traversal *)p)->ctx, p->op.index, SMART_TYPE_NODE, node,
                           smart_layout_bytes(layout));
}


/* Reports all leaves of a chain (a leaf and its successors, see smart.h), however long the chain is. */
static int walk_chain(smart_traversal *p, uint64_t word, far_walk *walk) {
    far_addr addr = smart_word_addr(word);
    unsigned class = smart_leaf_class(p->op.st, word);
    uint64_t ctl;
    for (;;) {
        if (class >= SMART_CLASSES)
            return smart_fail_corrupt(p->op.index, addr, "leaf");
        int err = far_walk_object(walk, p->op.index, SMART_TYPE_LEAF, addr, smart_class_bytes(class));
        if (err < 0 || (err = far_read_word(p->op.t, addr, &ctl)) < 0)
            return err;
        if (smart_ctl_state(ctl) != SMART_REPLACED)
            return 0;
        addr = smart_ctl_forward(ctl);
        class = smart_ctl_forward_class(ctl);
    }
}


/* Returns the lock word of a leaf, or 0 if the leaf has no lock or the lock is free. */
static uint64_t leaf_lock_word(const smart_leaf *leaf, far_addr *lock_at) {
    uint64_t lock = 0;
    unsigned at = smart_class_bytes(leaf->class) - 8;
    if (leaf->kind == SMART_VI)
        memcpy(&lock, leaf->image + at, 8);
    *lock_at = leaf->addr + at;
    return lock;
}


/* Reports a leaf, and completes unfinished work of failed clients there: a held lock, a half-written update, a PENDING
 * leaf, and a slot that names replaced or DEAD leaves. */
static int walk_leaf(smart_traversal *p, const smart_item *item, const smart_spot *s, void *ctx) {
    int err = 0;
    sliced_traversal *sl = (sliced_traversal *)p;
    if (sl->length && far_bytes_compare(s->leaf.key, (far_bytes){sl->last, sl->length}) <= 0)
        return 0; /* the previous slice has already reported this leaf */
    far_addr lock_at;
    uint64_t lock = leaf_lock_word(&s->leaf, &lock_at);
    if (lock && (err = smart_walk_lock(&p->op, lock_at, lock, ctx)) < 0)
        return err;
    if (smart_ctl_state(s->leaf.ctl) == SMART_PENDING)
        smart_mark_live(&p->op, s->leaf.addr, s->leaf.ctl);
    if (s->chain == 0 && s->outcome == SMART_HIT)
        return far_walk_object(ctx, p->op.index, SMART_TYPE_LEAF, s->leaf.addr, smart_class_bytes(s->leaf.class));
    if ((err = walk_chain(p, item->word, ctx)) < 0)
        return err;
    return smart_unlink_old_leaves(&p->op, s);
}


int smart_walk(far_task *t, far_index *index, far_walk *walk) {
    const smart_state *st = smart_state_of(index);
    uint64_t root = (sizeof(smart_root) + st->stripes * 8ull + 15) / 16 * 16;
    int err = far_walk_object(walk, index, SMART_TYPE_ROOT, index->descriptor, root);
    for (unsigned i = 0; err >= 0 && i < st->stripes; i++)
        err = far_walk_object(walk, index, SMART_TYPE_STRIPE, st->stripe[i], smart_stripe_bytes(st->stripes));
    if (err < 0 || (err = smart_free_dead_node_locks(t, index)) < 0)
        return err;
    sliced_traversal *sl = new_sliced_traversal(walk, walk_leaf);
    if (sl)
        sl->traversal.each_node_once = walk_node;
    return run_and_free(t, index, sl);
}


/* Checks for a gap: an unbound slot of a list before a bound one. A READ of a list may return slot i as it was before
 * other clients bound slots i and i + 1, and slot i + 1 as it was after that. Such a gap is no problem unless a second
 * READ shows it too. */

static int check_gap(smart_traversal *p, const smart_node *node, unsigned slot, far_report *report) {
    uint64_t before;
    int err = far_read_word(p->op.t, smart_slot_addr(node->addr, slot - 1), &before);
    if (err >= 0 && !(before & SMART_BOUND))
        far_report_problem(report, "node at %#llx: slot %u is bound, although the slot before it is not",
                           (unsigned long long)node->addr, slot);
    return err < 0 ? err : 0;
}


static int check_node(smart_traversal *p, const smart_item *item, const smart_node *node) {
    far_report *report = ((sliced_traversal *)p)->ctx;
    unsigned long long addr = node->addr;
    bool seen[SMART_PARTS] = {false};
    (void)item;
    for (unsigned i = 0; i < node->words; i++) {
        uint64_t word = smart_slots(node)[i];
        if (!(word & SMART_BOUND))
            continue;
        unsigned part = smart_word_part(word);
        if (seen[part])
            far_report_problem(report, "node at %#llx: two slots are bound to partial key %u", addr, part);
        seen[part] = true;
        if (node->layout == SMART_DIR && part != i)
            far_report_problem(report, "node at %#llx: slot %u is bound to partial key %u", addr, i, part);
    }
    for (unsigned i = 1; node->layout != SMART_DIR && i < node->words; i++)
        if ((smart_slots(node)[i] & SMART_BOUND) && !(smart_slots(node)[i - 1] & SMART_BOUND)) {
            int err = check_gap(p, node, i, report);
            if (err < 0)
                return err;
        }
    return 0;
}


/* Records a held lock. After the slice the lock word is READ again, without a pin, to determine whether its holder
 * still works. */
static int note_held_lock(smart_traversal *p, const smart_leaf *leaf) {
    far_addr at;
    uint64_t lock = leaf_lock_word(leaf, &at), owner;
    int err = lock ? smart_lock_holder(&p->op, lock, &owner) : 0;
    if (lock && err == 0)
        far_suspects_add(&((sliced_traversal *)p)->locks, at, lock, owner);
    return err;
}


static int check_leaf(smart_traversal *p, const smart_item *item, const smart_spot *s, void *ctx) {
    sliced_traversal *sl = (sliced_traversal *)p;
    unsigned long long addr = s->leaf.addr;
    far_bytes last = {sl->last, sl->length};
    uint64_t chk, hash = 0;
    memcpy(&chk, s->leaf.image + smart_chk_offset(s->leaf.kind), 8);
    if (smart_ctl_state(s->leaf.ctl) <= SMART_LIVE && chk != smart_leaf_chk(p->op.st, &s->leaf))
        far_report_problem(ctx, "leaf at %#llx: its checksum is wrong", addr);
    if (sl->any && far_bytes_compare(s->leaf.key, last) <= 0)
        far_report_problem(ctx, "leaf at %#llx: its key does not follow the key of the leaf before it", addr);
    if (s->leaf.key.length > (size_t)p->op.index->options[FAR_OPTION_MAX_KEY])
        far_report_problem(ctx, "leaf at %#llx: its key is %zu bytes long, more than max_key allows", addr,
                           s->leaf.key.length);
    for (unsigned i = 0; i < item->depth && i < s->leaf.key.length; i++)
        hash = smart_hash_step(hash, ((const uint8_t *)s->leaf.key.data)[i], p->op.st->hash_base);
    if (item->depth > s->leaf.key.length || hash != item->fp ||
        smart_part(s->leaf.key, item->depth) != smart_word_part(item->word))
        far_report_problem(ctx, "leaf at %#llx: its key does not belong into the slot that names it", addr);
    if (p->op.st->has_fingerprints && smart_word_hint(item->word) != smart_fingerprint(p->op.st, s->leaf.key))
        far_report_problem(ctx, "leaf at %#llx: the fingerprint in its slot does not match its key", addr);
    return note_held_lock(p, &s->leaf);
}


int smart_check(far_task *t, far_index *index, far_report *report) {
    sliced_traversal *sl = new_sliced_traversal(report, check_leaf);
    if (sl)
        sl->traversal.each_node = check_node;
    int err = run_and_free(t, index, sl);
    if (err == FAR_ERR_CORRUPT) {
        far_report_problem(report, "%s", far_last_error());
        return 0;
    }
    return err;
}


/* Salvage: the key of a leaf. */

int smart_object_keys(far_task *t, far_index *index, unsigned type, const void *object, uint64_t bytes,
                      far_keys *keys) {
    uint64_t ctl, meta = smart_meta(8, 0, 8, 0);
    (void)t, (void)index;
    memcpy(&ctl, object, sizeof(ctl));
    unsigned kind = smart_ctl_kind(ctl);
    if (type != SMART_TYPE_LEAF || kind < SMART_C8 || kind > SMART_VR || smart_meta_offset(kind) + sizeof(meta) > bytes)
        return 0;
    if (kind != SMART_C8)
        memcpy(&meta, (const char *)object + smart_meta_offset(kind), sizeof(meta));
    unsigned length = smart_meta_key(meta), at = smart_key_offset(kind);
    if (length == 0 || at + length > bytes)
        return 0;
    return far_keys_give(keys, (far_bytes){(const char *)object + at, length});
}


/* Usage, which counts leaves and bytes. */

static int count_leaf(smart_traversal *p, const smart_item *item, const smart_spot *s, void *ctx) {
    sliced_traversal *sl = (sliced_traversal *)p;
    far_usage *usage = ctx;
    (void)item;
    if (s->outcome != SMART_HIT ||
        (sl->length && far_bytes_compare(s->leaf.key, (far_bytes){sl->last, sl->length}) <= 0))
        return 0;
    usage->keys++;
    usage->key_bytes += s->leaf.key.length;
    usage->value_bytes += s->leaf.value.length;
    return 0;
}


int smart_usage(far_task *t, far_index *index, far_usage *usage) {
    return run_and_free(t, index, new_sliced_traversal(usage, count_leaf));
}
