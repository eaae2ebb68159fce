/* Walk, check and usage: passes over the tree in slices, each under its own pin. */
#include "base/error.h"
#include "index/smart/pass.h"
#include "pool/epoch.h"
#include "pool/owner.h"

#include <stdlib.h>
#include <string.h>

typedef struct slices {
    smart_pass pass;
    void *ctx; /* far_walk, far_report or far_usage */
    int (*each)(smart_pass *p, const smart_item *item, const smart_spot *s, void *ctx);
    unsigned left; /* leaves of this slice */
    bool any;      /* a key was seen in this slice */
    size_t length; /* of the last key */
    uint8_t last[SMART_KEY_MAX + 1];
    far_suspects locks; /* of this slice, for check */
} slices;


static int one_leaf(smart_pass *p, const smart_item *item, const smart_spot *s) {
    slices *sl = (slices *)p;
    int err = sl->each(p, item, s, sl->ctx);
    if (err < 0)
        return err;
    memcpy(sl->last, s->leaf.key.data, s->leaf.key.length);
    sl->length = s->leaf.key.length;
    sl->any = true;
    return --sl->left == 0;
}


/* A slice begins at the last key of the one before: that leaf is seen twice. */
static int one_slice(far_task *t, far_index *index, slices *sl, uint8_t *from) {
    far_bytes key = {from, sl->length};
    memcpy(from, sl->last, sl->length);
    sl->left = smart_state_of(index)->walk_slice;
    sl->any = false;
    int err = smart_begin(&sl->pass.op, t, index, key);
    return err < 0 ? err : smart_pass_run(&sl->pass);
}


static int in_slices(far_task *t, far_index *index, slices *sl) {
    uint8_t *from = malloc(SMART_KEY_MAX + 1);
    int err = from ? SMART_PASS_STOPS : far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
    sl->pass.leaf = one_leaf;
    for (unsigned attempt = 0; err == SMART_PASS_STOPS; attempt++) {
        far_scratch_mark here = far_scratch_here(t);
        if ((err = far_pin_take(t)) >= 0)
            err = one_slice(t, index, sl, from);
        far_pin_drop(t);
        int locks = err >= 0 && sl->locks.count ? far_suspects_check(t, &sl->locks, sl->ctx) : 0;
        if (locks < 0)
            err = locks;
        if (err == SMART_PASS_STOPS && sl->pass.again)
            far_back_off(t, sl->any ? 0 : attempt);
        far_scratch_back(t, here);
    }
    free(from);
    return err;
}


static slices *new_slices(void *ctx,
                          int (*each)(smart_pass *p, const smart_item *item, const smart_spot *s, void *ctx)) {
    slices *sl = calloc(1, sizeof(*sl));
    if (!sl)
        far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
    else {
        sl->ctx = ctx;
        sl->each = each;
    }
    return sl;
}


static int run(far_task *t, far_index *index, slices *sl) {
    int err = sl ? in_slices(t, index, sl) : far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
    free(sl);
    return err;
}


/* Walk. */

static int walk_node(smart_pass *p, far_addr node, unsigned layout) {
    return far_walk_object(((slices *)p)->ctx, p->op.index, SMART_TYPE_NODE, node, smart_layout_bytes(layout));
}


/* All leaves of a chain, however long. */
static int walk_chain(smart_pass *p, uint64_t word, far_walk *walk) {
    far_addr addr = smart_word_addr(word);
    unsigned class = smart_leaf_class(p->op.st, word);
    uint64_t ctl;
    for (;;) {
        if (class >= SMART_CLASSES)
            return smart_broken(p->op.index, addr, "leaf");
        int err = far_walk_object(walk, p->op.index, SMART_TYPE_LEAF, addr, smart_class_bytes(class));
        if (err < 0 || (err = far_read_word(p->op.t, addr, &ctl)) < 0)
            return err;
        if (smart_ctl_state(ctl) != SMART_REPLACED)
            return 0;
        addr = smart_ctl_forward(ctl);
        class = smart_ctl_forward_class(ctl);
    }
}


/* 0: it has none, or nobody holds it. */
static uint64_t lock_of(const smart_leaf *leaf, far_addr *lock_at) {
    uint64_t lock = 0;
    unsigned at = smart_class_bytes(leaf->class) - 8;
    if (leaf->kind == SMART_VI)
        memcpy(&lock, leaf->image + at, 8);
    *lock_at = leaf->addr + at;
    return lock;
}


/* What the dead left: a lock, an update half written, a slot that names replaced or dead leaves. */
static int walk_leaf(smart_pass *p, const smart_item *item, const smart_spot *s, void *ctx) {
    int err = 0;
    slices *sl = (slices *)p;
    if (sl->length && far_bytes_compare(s->leaf.key, (far_bytes){sl->last, sl->length}) <= 0)
        return 0; /* the slice before ended with it */
    far_addr lock_at;
    uint64_t lock = lock_of(&s->leaf, &lock_at);
    if (lock && (err = smart_walk_lock(&p->op, lock_at, lock, ctx)) < 0)
        return err;
    if (smart_ctl_state(s->leaf.ctl) == SMART_PENDING)
        smart_flip(&p->op, s->leaf.addr, s->leaf.ctl);
    if (s->chain == 0 && s->outcome == SMART_HIT)
        return far_walk_object(ctx, p->op.index, SMART_TYPE_LEAF, s->leaf.addr, smart_class_bytes(s->leaf.class));
    if ((err = walk_chain(p, item->word, ctx)) < 0)
        return err;
    return smart_fix_slot(&p->op, s);
}


int smart_walk(far_task *t, far_index *index, far_walk *walk) {
    const smart_state *st = smart_state_of(index);
    uint64_t root = (sizeof(smart_root) + st->stripes * 8ull + 15) / 16 * 16;
    int err = far_walk_object(walk, index, SMART_TYPE_ROOT, index->descriptor, root);
    for (unsigned i = 0; err >= 0 && i < st->stripes; i++)
        err = far_walk_object(walk, index, SMART_TYPE_STRIPE, st->stripe[i], smart_stripe_bytes(st->stripes));
    if (err < 0 || (err = smart_free_dead_node_locks(t, index)) < 0)
        return err;
    slices *sl = new_slices(walk, walk_leaf);
    if (sl)
        sl->pass.found = walk_node;
    return run(t, index, sl);
}


/* Check. */

/* One READ of a list may show a slot as it was before it and the next one were bound. A second look cannot. */
static int check_gap(smart_pass *p, const smart_node *node, unsigned slot, far_report *report) {
    uint64_t before;
    int err = far_read_word(p->op.t, smart_slot_addr(node->addr, slot - 1), &before);
    if (err >= 0 && !(before & SMART_BOUND))
        far_report_problem(report, "node at %#llx: slot %u is bound, the one before it is not",
                           (unsigned long long)node->addr, slot);
    return err < 0 ? err : 0;
}


static int check_node(smart_pass *p, const smart_item *item, const smart_node *node) {
    far_report *report = ((slices *)p)->ctx;
    unsigned long long addr = node->addr;
    bool seen[SMART_PARTS] = {false};
    (void)item;
    for (unsigned i = 0; i < node->words; i++) {
        uint64_t word = smart_slots(node)[i];
        if (!(word & SMART_BOUND))
            continue;
        unsigned part = smart_word_part(word);
        if (seen[part])
            far_report_problem(report, "node at %#llx: two slots for partial key %u", addr, part);
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


/* It is looked at again after the slice. */
static int note_lock(smart_pass *p, const smart_leaf *leaf) {
    far_addr at;
    uint64_t lock = lock_of(leaf, &at), owner;
    int err = lock ? smart_lock_holder(&p->op, lock, &owner) : 0;
    if (lock && err == 0)
        far_suspect(&((slices *)p)->locks, at, lock, owner);
    return err;
}


static int check_leaf(smart_pass *p, const smart_item *item, const smart_spot *s, void *ctx) {
    slices *sl = (slices *)p;
    unsigned long long addr = s->leaf.addr;
    far_bytes last = {sl->last, sl->length};
    uint64_t chk, hash = 0;
    memcpy(&chk, s->leaf.image + smart_chk_at(s->leaf.kind), 8);
    if (smart_ctl_state(s->leaf.ctl) <= SMART_LIVE && chk != smart_leaf_chk(p->op.st, &s->leaf))
        far_report_problem(ctx, "leaf at %#llx: its checksum does not hold", addr);
    if (sl->any && far_bytes_compare(s->leaf.key, last) <= 0)
        far_report_problem(ctx, "leaf at %#llx: its key is out of order", addr);
    if (s->leaf.key.length > (size_t)p->op.index->options[FAR_OPTION_MAX_KEY])
        far_report_problem(ctx, "leaf at %#llx: a key of %zu bytes", addr, s->leaf.key.length);
    for (unsigned i = 0; i < item->depth && i < s->leaf.key.length; i++)
        hash = smart_hash_step(hash, ((const uint8_t *)s->leaf.key.data)[i], p->op.st->hash_base);
    if (item->depth > s->leaf.key.length || hash != item->fp ||
        smart_part(s->leaf.key, item->depth) != smart_word_part(item->word))
        far_report_problem(ctx, "leaf at %#llx: its key has no business in that slot", addr);
    if (p->op.st->prints && smart_word_hint(item->word) != smart_fingerprint(p->op.st, s->leaf.key))
        far_report_problem(ctx, "leaf at %#llx: the fingerprint in its slot is another key's", addr);
    return note_lock(p, &s->leaf);
}


int smart_check(far_task *t, far_index *index, far_report *report) {
    slices *sl = new_slices(report, check_leaf);
    if (sl)
        sl->pass.node = check_node;
    int err = run(t, index, sl);
    if (err == FAR_ERR_CORRUPT) {
        far_report_problem(report, "%s", far_last_error());
        return 0;
    }
    return err;
}


/* Usage. */

static int count_leaf(smart_pass *p, const smart_item *item, const smart_spot *s, void *ctx) {
    slices *sl = (slices *)p;
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
    return run(t, index, new_slices(usage, count_leaf));
}
