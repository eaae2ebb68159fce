/* A full leaf is split: the upper part goes to a new node at the right, which is complete before the first line of the
 * old one changes, so that whoever finds the old one half changed can do the rest. The pivot is put in afterwards. */
#include "base/error.h"
#include "index/chime/chime.h"

#include <assert.h>
#include <stdlib.h>

typedef struct item {
    uint16_t slot;
    uint64_t first;
    far_bytes key; /* where the first word does not decide */
} item;

typedef struct splitting {
    item items[CHIME_SPAN_MAX];
    unsigned count, mine; /* items below the new key */
    unsigned left;        /* items that stay */
    bool right;           /* the new key goes to the new node */
    chime_ptr made;
    far_addr made_at;
    chime_fence fence;
    uint64_t *image; /* of the new node */
} splitting;


static int compare(const item *a, const item *b) {
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    return a->key.data && b->key.data ? far_bytes_compare(a->key, b->key) : 0;
}


static int compare_items(const void *a, const void *b) {
    return compare(a, b);
}


/* How many items (in order; slots[i]: where) stay on the left. k is the mine-th; if its neighbourhood is full it must
 * find an item of that on the other side, whose slot it takes there. The nearest to the middle; at the right end of the
 * tree a largest key goes alone: who appends leaves full nodes behind. */
int chime_choose_split(const chime_state *st, unsigned count, const uint16_t *slots, unsigned mine, unsigned home,
                       bool rightmost, bool *right) {
    int best = -1, best_off = 0;
    unsigned first_near = count, last_near = 0, near = 0;
    for (unsigned i = 0; i < count; i++)
        if (chime_distance(st, home, slots[i]) < st->hop) {
            first_near = i < first_near ? i : first_near;
            last_near = i;
            near++;
        }
    bool full = near == st->hop;
    if (rightmost && mine == count) {
        *right = true;
        return (int)count;
    }
    unsigned middle = count + 1; /* twice */
    if (st->paper_split)         /* the median of the neighbourhood's keys decides */
        for (unsigned i = 0, seen = 0; i < count; i++)
            if (chime_distance(st, home, slots[i]) < st->hop && seen++ == near / 2)
                middle = 2 * i;
    for (unsigned left = 0; left <= count; left++)
        for (unsigned to_right = 0; to_right < 2; to_right++) {
            bool fits =
                to_right ? left <= mine && (!full || first_near < left) : left >= mine && (!full || last_near >= left);
            int keys_left = (int)left + !to_right, off = 2 * keys_left - (int)middle;
            off = off < 0 ? -off : off;
            if (!fits || keys_left == 0 || (best >= 0 && off >= best_off))
                continue;
            best = (int)left;
            best_off = off;
            *right = to_right;
        }
    return best;
}


static int read_items(chime_op *op, chime_node *n, splitting *s) {
    const chime_state *st = op->st;
    chime_block *heads = st->exact ? NULL : far_scratch(op->t, st->span * sizeof(*heads));
    int err = 0;
    if (!heads && !st->exact)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a split");
    for (unsigned slot = 0; slot < st->span; slot++)
        if (chime_is_occupied(st, n->w, slot))
            s->items[s->count++] = (item){.slot = (uint16_t)slot, .first = chime_slot(st, n->w, slot)[0]};
    if (!st->fixed && !st->exact) {
        for (unsigned i = 0; i < s->count; i++)
            if ((err = chime_put_read_head(op, chime_slot(st, n->w, s->items[i].slot)[1], &heads[i])) < 0)
                return err;
        if ((err = chime_wait(op)) < 0)
            return err;
        for (unsigned i = 0; i < s->count; i++) {
            if ((err = chime_take_head(op, chime_slot(st, n->w, s->items[i].slot)[1], &heads[i])) < 0)
                return err;
            s->items[i].key = heads[i].key;
        }
    }
    assert(s->count <= CHIME_SPAN_MAX);
    qsort(s->items, s->count, sizeof(s->items[0]), compare_items);
    item mine = {.first = op->key.first, .key = st->exact ? (far_bytes){NULL, 0} : op->key.bytes};
    while (s->mine < s->count && compare(&s->items[s->mine], &mine) < 0)
        s->mine++;
    return 0;
}


static far_bytes key_of(const item *i, uint8_t bytes[8], size_t length) {
    if (i->key.data)
        return i->key;
    for (unsigned k = 0; k < 8; k++)
        bytes[k] = (uint8_t)(i->first >> (56 - 8 * k));
    return (far_bytes){bytes, length};
}


/* The number in (left, right] with the most zero bits at its end: what the caches keep of it is short. */
static uint64_t number_between(uint64_t left, uint64_t right) {
    for (unsigned bits = 63; bits > 0; bits--) {
        uint64_t number = right >> bits << bits;
        if (number > left)
            return number;
    }
    return right;
}


static int make_fence(chime_op *op, splitting *s) {
    const chime_state *st = op->st;
    item mine = {.first = op->key.first, .key = st->exact ? (far_bytes){NULL, 0} : op->key.bytes};
    const item *left = s->left ? &s->items[s->left - 1] : &mine,
               *right = s->left < s->count ? &s->items[s->left] : &mine;
    if (s->right && s->mine == s->left)
        right = &mine;
    if (!s->right && s->mine == s->left)
        left = &mine;
    uint8_t a[8], b[8];
    if (st->fixed) {
        uint64_t number = number_between(left->first, right->first);
        for (unsigned i = 0; i < 8; i++)
            a[i] = (uint8_t)(number >> (56 - 8 * i));
        return chime_make_fence(op, (far_bytes){a, 8}, &s->fence);
    }
    size_t length = op->key.bytes.length;
    far_bytes from = key_of(left, a, length), to = key_of(right, b, length);
    to.length = chime_separator(from, to);
    return chime_make_fence(op, to, &s->fence);
}


static int alloc_node(chime_op *op, chime_ptr left, chime_ptr right, far_object *object) {
    return far_alloc(op->t, op->index, CHIME_TYPE_NODE, op->st->node_bytes, chime_place_node(op, left, right), 0,
                     object);
}


void chime_take_spare(chime_op *op, chime_ptr leaf) {
    if (!op->spare.addr && alloc_node(op, leaf, 0, &op->spare) < 0)
        op->spare.addr = 0;
}


static int make_node(chime_op *op, chime_node *n, splitting *s) {
    far_object object = op->spare;
    chime_ptr right = chime_h1_sibling(chime_tail(op->st, n->w)[CHIME_TAIL_H1]);
    int err = 0;
    if (object.addr && chime_is_place(op, far_addr_node(object.addr), n->ptr, right))
        op->spare.addr = 0;
    else
        err = alloc_node(op, n->ptr, right, &object);
    if (err < 0)
        return err;
    s->made_at = object.addr;
    s->made = chime_ptr_make(object.addr, (unsigned)object.epoch, 0);
    if (!(s->image = chime_new_image(op)) || (err = make_fence(op, s)) < 0) {
        far_free(op->t, op->index, CHIME_TYPE_NODE, object.addr, op->st->node_bytes);
        return err < 0 ? err : FAR_ERR_NO_MEMORY;
    }
    return 0;
}


void chime_set_free(const chime_state *st, uint64_t *tail, uint64_t map) {
    tail[CHIME_TAIL_V] = st->masked ? 0 : chime_map_word(map);
    tail[CHIME_TAIL_L] = st->masked ? chime_map_word(map) : 0;
}


/* The upper items keep their slot numbers. */
static int build_right(chime_op *op, chime_node *n, splitting *s, const uint64_t *value, chime_insert **along) {
    const chime_state *st = op->st;
    const uint64_t *old = chime_tail(st, n->w);
    uint64_t *tail = chime_tail(st, s->image);
    chime_empty_node(st, s->image, chime_ptr_tag(s->made), 0);
    for (unsigned i = s->left; i < s->count; i++) {
        unsigned slot = s->items[i].slot;
        memcpy(chime_slot(st, s->image, slot), chime_slot(st, n->w, slot), chime_slot_bytes(st->per_line));
        chime_set_occupied(st, s->image, slot, true);
    }
    chime_set_shape(st, s->image, chime_h1_sibling(old[CHIME_TAIL_H1]), 0);
    chime_build_maps(st, s->image);
    if (s->right) {
        int slot = chime_free_near(st, s->image, op->home);
        if (slot < 0)
            return chime_broken(op->index, n->ptr, "it is full, and a split does not help");
        chime_place(st, s->image, (unsigned)slot, op->home, op->key.first, value);
    }
    tail[CHIME_TAIL_LOW] = s->fence.word;
    tail[CHIME_TAIL_HIGH] = old[CHIME_TAIL_HIGH];
    tail[CHIME_TAIL_S] = chime_fresh_s(op, false);
    chime_take_along(op, n->ptr, s->image, along);
    chime_set_free(st, tail, chime_occupied_map(st, s->image));
    return 0;
}


static int publish(chime_op *op, chime_node *n, splitting *s, const uint64_t *value, chime_insert **along) {
    const chime_state *st = op->st;
    uint64_t *tail = chime_tail(st, n->w), *before = chime_new_image(op);
    chime_node with = {.ptr = n->ptr, .w = chime_new_image(op)};
    int err = 0, slot = -1;
    if (!before || !with.w)
        return FAR_ERR_NO_MEMORY;
    memcpy(before, n->w, st->node_bytes);
    for (unsigned i = s->left; i < s->count; i++)
        chime_set_occupied(st, n->w, s->items[i].slot, false);
    chime_set_shape(st, n->w, s->made, chime_h1_nv(tail[CHIME_TAIL_H1]) + 1);
    chime_build_maps(st, n->w);
    tail[CHIME_TAIL_HIGH] = s->fence.word;
    memcpy(with.w, n->w, st->node_bytes);
    if (!s->right && (slot = chime_free_near(st, n->w, op->home)) < 0)
        return chime_broken(op->index, n->ptr, "it is full, and a split does not help");
    if (!s->right)
        chime_place(st, with.w, (unsigned)slot, op->home, op->key.first, value);
    chime_take_along(op, n->ptr, with.w, along);
    far_point(op->t, "chime:split");
    if ((err = chime_put_busy(op, n->ptr)) < 0 || (err = chime_put_image(op, n, before)) < 0)
        return err;
    if (!s->right && st->words)
        err = chime_put_moves(op, &with, n->w, NULL, 0, (unsigned)slot);
    else
        chime_put_lines(op, &with, n->w, chime_line(st, op->home));
    return err < 0 ? err : chime_put_unlock(op, n->ptr, chime_occupied_map(st, with.w));
}


static void give_up(chime_op *op, splitting *s) {
    far_forget(op->t);
    chime_free_fence(op, s->fence.word);
    far_free(op->t, op->index, CHIME_TYPE_NODE, s->made_at, op->st->node_bytes);
}


int chime_split_leaf(chime_op *op, chime_node *n, const uint64_t *value, bool early, chime_insert **along) {
    const chime_state *st = op->st;
    splitting *s = far_scratch(op->t, sizeof(*s));
    uint16_t slots[CHIME_SPAN_MAX];
    if (!s)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a split");
    memset(s, 0, sizeof(*s));
    int err = read_items(op, n, s);
    if (err < 0)
        return err;
    for (unsigned i = 0; i < s->count; i++)
        slots[i] = s->items[i].slot;
    bool rightmost = !early && chime_h1_sibling(chime_tail(st, n->w)[CHIME_TAIL_H1]) == 0;
    int left = chime_choose_split(st, s->count, slots, s->mine, op->home, rightmost, &s->right);
    if (left < 0)
        return chime_broken(op->index, n->ptr, "it is full, and a split does not help");
    s->left = (unsigned)left;
    if ((err = make_node(op, n, s)) < 0)
        return err;
    if ((err = build_right(op, n, s, value, along)) < 0) {
        give_up(op, s);
        return err;
    }
    /* The new node is whole before any line of the old one names it. */
    far_point(op->t, "chime:split_begin");
    far_write(op->t, s->made_at, s->image, st->node_bytes);
    if ((err = chime_wait(op)) < 0)
        return err;
    far_point(op->t, "chime:split_made");
    if ((err = publish(op, n, s, value, along)) < 0) {
        give_up(op, s);
        return err;
    }
    if ((err = chime_wait(op)) < 0)
        return err;
    if (early)
        atomic_fetch_add_explicit(&op->st->counts.early_splits, 1, memory_order_relaxed);
    else {
        atomic_fetch_add_explicit(&op->st->counts.splits, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&op->st->counts.split_items, s->count, memory_order_relaxed);
    }
    far_point(op->t, "chime:split_done");
    chime_note_own_split(op, n->ptr, &s->fence, s->made);
    if (st->cache && op->path[1])
        chime_cache_add(st->cache, st, op->path[1], &s->fence, s->made);
    if (!chime_add_pivot_later(op, 1,
                               s->made)) { /* then by the operation itself, when it has left the latch of the leaf */
        op->help = s->made;
        op->help_level = 0;
    }
    return 0;
}
