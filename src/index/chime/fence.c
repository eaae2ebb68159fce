/* CHIME: fences and pivots, the keys that separate nodes, and the decoding of inner nodes. A key of up to 8 bytes is
 * stored in the word of the fence. A longer key is stored in a key block, which belongs to the leaf whose low fence it
 * is; all other fences and pivots with this key refer to the same key block. */
#include "base/error.h"
#include "index/chime/chime.h"

#include <stdlib.h>


static far_bytes fence_full_bytes(const chime_fence *f, uint8_t small[8]) {
    if (!chime_ref_is_inline(f->word))
        return f->bytes;
    for (unsigned i = 0; i < 7; i++)
        small[i] = (uint8_t)(f->word >> (56 - 8 * i));
    return (far_bytes){small, f->word ? chime_ref_length(f->word) : 0};
}


bool chime_decode_inline_fence(const chime_state *st, chime_fence *f) {
    if (st->inline_items)
        f->first = f->word;
    else if (chime_ref_is_inline(f->word))
        f->first = f->word & ~0xffull;
    else
        return false;
    f->bytes = (far_bytes){NULL, 0};
    return true;
}


/* Returns whether the key of a fence is inline, or the fence refers to memory of the pool. */
static bool fence_is_possible(const chime_op *op, uint64_t word) {
    chime_fence fence = {.word = word};
    size_t length = chime_ref_length(word);
    return chime_decode_inline_fence(op->st, &fence) ||
           (length > 0 && length <= CHIME_KEY_MAX &&
            far_task_reaches(op->t, chime_ref_addr(word), chime_key_block_bytes(length)));
}


int chime_read_fences(chime_op *op, chime_fence *fences[], unsigned count) {
    unsigned unknown = 0;
    for (unsigned i = 0; i < count; i++) {
        chime_fence *f = fences[i];
        if (chime_decode_inline_fence(op->st, f))
            continue;
        size_t length = chime_ref_length(f->word);
        uint64_t bytes = chime_key_block_bytes(length);
        if (!fence_is_possible(op, f->word)) {
            far_discard_batch(op->t);
            return far_fail(FAR_ERR_CORRUPT, "index '%s': a fence refers to an invalid key of %zu bytes at %#llx",
                            op->index->name, length, (unsigned long long)chime_ref_addr(f->word));
        }
        void *room = far_scratch(op->t, bytes);
        if (!room) {
            far_discard_batch(op->t);
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for fences");
        }
        far_read(op->t, chime_ref_addr(f->word), room, bytes);
        f->bytes = (far_bytes){room, length};
        unknown++;
    }
    /* This batch is posted by far_wait instead of chime_wait, so it gets no RDWC mark: fences are immutable, so the
     * earlier READ of the node is the linearization point. */
    int err = unknown ? far_wait(op->t) : 0;
    for (unsigned i = 0; err >= 0 && unknown && i < count; i++)
        if (fences[i]->bytes.data)
            fences[i]->first = chime_key_number(fences[i]->bytes.data, fences[i]->bytes.length);
    return err;
}


int chime_compare_fence_to_key(const chime_state *st, const chime_fence *f, const chime_key *key) {
    uint8_t small[8];
    if (f->first != key->first)
        return f->first < key->first ? -1 : 1;
    return st->inline_items ? 0 : far_bytes_compare(fence_full_bytes(f, small), key->bytes);
}


size_t chime_separator_length(far_bytes left, far_bytes right) {
    const uint8_t *a = left.data, *b = right.data;
    size_t i = 0;
    while (i < left.length && i < right.length && a[i] == b[i])
        i++;
    return i + 1 < right.length ? i + 1 : right.length;
}


int chime_make_fence(chime_op *op, far_bytes key, chime_fence *f) {
    *f = (chime_fence){.first = chime_key_number(key.data, key.length)};
    if (op->st->inline_items) {
        f->word = f->first;
        return 0;
    }
    if (key.length <= 7) {
        f->word = chime_ref_inline(key.data, key.length);
        return 0;
    }
    uint64_t bytes = chime_key_block_bytes(key.length);
    uint8_t *image = far_scratch(op->t, bytes);
    far_object object;
    if (!image)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a fence");
    int err = far_alloc(op->t, op->index, CHIME_TYPE_KEY, bytes, FAR_NODE_ANY, 0, &object);
    if (err < 0)
        return err;
    memset(image, 0, bytes);
    memcpy(image, key.data, key.length);
    far_write(op->t, object.addr, image, bytes);
    f->word = chime_ref_block(object.addr, key.length);
    f->bytes = (far_bytes){image, key.length};
    return 0;
}


void chime_free_fence(chime_op *op, uint64_t word) {
    if (!op->st->inline_items && !chime_ref_is_inline(word))
        far_free(op->t, op->index, CHIME_TYPE_KEY, chime_ref_addr(word), chime_key_block_bytes(chime_ref_length(word)));
}


void chime_retire_fence(chime_op *op, uint64_t word) {
    if (!op->st->inline_items && !chime_ref_is_inline(word))
        far_retire(op->t, op->index, CHIME_TYPE_KEY, chime_ref_addr(word),
                   chime_key_block_bytes(chime_ref_length(word)));
}


int chime_check_range(chime_op *op, const uint64_t *tail) {
    chime_fence low = {.word = tail[CHIME_TAIL_LOW]}, high = {.word = tail[CHIME_TAIL_HIGH]};
    chime_fence *both[2] = {&low, &high};
    bool bounded = chime_h1_sibling(tail[CHIME_TAIL_H1]) != 0;
    int err = chime_read_fences(op, both, bounded ? 2 : 1);
    if (err < 0)
        return err;
    if (bounded && chime_compare_fence_to_key(op->st, &high, &op->key) <= 0) {
        op->right_fence = high;
        op->right_node = chime_h1_sibling(tail[CHIME_TAIL_H1]);
        return CHIME_RIGHT;
    }
    return chime_compare_fence_to_key(op->st, &low, &op->key) <= 0 ? 0 : CHIME_STALE;
}


/* Decoding inner nodes, which are unsorted in far memory. */

int chime_compare_fences(const chime_state *st, const chime_fence *a, const chime_fence *b) {
    uint8_t small[2][8];
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    return st->inline_items ? 0 : far_bytes_compare(fence_full_bytes(a, small[0]), fence_full_bytes(b, small[1]));
}


static void sort_children(const chime_state *st, chime_inner *inner) {
    for (unsigned i = 1; i < inner->count; i++) {
        chime_fence pivot = inner->pivot[i];
        chime_ptr child = inner->child[i];
        unsigned at = i;
        for (; at > 0 && chime_compare_fences(st, &inner->pivot[at - 1], &pivot) > 0; at--) {
            inner->pivot[at] = inner->pivot[at - 1];
            inner->child[at] = inner->child[at - 1];
        }
        inner->pivot[at] = pivot;
        inner->child[at] = child;
    }
}


int chime_decode_inner(chime_op *op, chime_node *n, chime_inner *inner) {
    const chime_state *st = op->st;
    const uint64_t *tail = chime_tail(st, n->w);
    chime_fence *all[CHIME_SPAN_MAX + 2];
    unsigned fences = 0;
    inner->ptr = n->ptr;
    inner->sibling = chime_h1_sibling(tail[CHIME_TAIL_H1]);
    inner->bounded = inner->sibling != 0;
    inner->level = chime_h0_level(tail[CHIME_TAIL_H0]);
    inner->low = (chime_fence){.word = tail[CHIME_TAIL_LOW]};
    inner->high = (chime_fence){.word = tail[CHIME_TAIL_HIGH]};
    inner->count = 0;
    all[fences++] = &inner->low;
    if (inner->bounded)
        all[fences++] = &inner->high;
    for (unsigned slot = 0; slot < st->span; slot++)
        if (chime_slot_is_occupied(st, n->w, slot)) {
            const uint64_t *words = chime_slot(st, n->w, slot);
            if (op->index->lenient && (!fence_is_possible(op, words[0]) || !chime_ptr_is_in_pool(op, words[1])))
                continue;
            inner->pivot[inner->count] = (chime_fence){.word = words[0]};
            inner->child[inner->count] = words[1];
            all[fences++] = &inner->pivot[inner->count++];
        }
    if (inner->level == 0 || inner->level >= CHIME_LEVELS || inner->count == 0)
        return chime_report_corrupt(op->index, n->ptr, "this inner node has an invalid level or no children");
    int err = chime_read_fences(op, all, fences);
    if (err < 0)
        return err;
    sort_children(st, inner);
    if (!op->index->lenient && chime_compare_fences(st, &inner->low, &inner->pivot[0]) != 0)
        return chime_report_corrupt(op->index, n->ptr, "its first pivot differs from its low fence");
    return 0;
}
