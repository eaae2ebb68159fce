/* CHIME: splitting a leaf. The upper items move to a new right node, which is complete in far memory before the first
 * line of the old leaf changes. A client that finds the old leaf partly written can therefore finish the split
 * (recover.c). The pivot for the new node is inserted into the parent afterwards, in the background. write.c calls
 * chime_split_leaf. */
#include "base/error.h"
#include "index/chime/chime.h"

#include <assert.h>
#include <stdlib.h>

typedef struct item {
    uint16_t slot;
    uint64_t first;
    far_bytes key; /* whole key; set only if the first 8 bytes do not decide the order */
} item;

typedef struct split_plan {
    item items[CHIME_SPAN_MAX];
    unsigned count, mine; /* number of items, and number of items below the new key */
    unsigned left;        /* number of items that stay in the left node */
    bool right;           /* the new key belongs to the right node */
    chime_ptr made;
    far_addr made_at;
    chime_fence fence;
    uint64_t *image; /* image of the right node */
} split_plan;


static int compare_item_keys(const item *a, const item *b) {
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    return a->key.data && b->key.data ? far_bytes_compare(a->key, b->key) : 0;
}


static int compare_items(const void *a, const void *b) {
    return compare_item_keys(a, b);
}


/* Returns how many of the items (in key order; slots[i] is the slot of item i) stay in the left node, and sets *right
 * if the new key belongs to the right one. `mine` is the number of items that are smaller than the new key.
 *
 * If the neighbourhood of the new key is full, the split must move one of its items to the other side, so that the new
 * key can take that slot. Among these splits the function chooses the one nearest to the middle. A key that is larger
 * than all others at the right end of the tree gets a new node alone, so that ascending inserts leave full nodes.
 * Returns -1 if no split helps. */
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
    unsigned middle = count + 1; /* twice the number of keys that belong to the left node in an even split */
    /* With the option split=paper, the median of the keys in the neighbourhood decides where to split. */
    if (st->paper_split)
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


static int read_items(chime_op *op, chime_node *n, split_plan *s) {
    const chime_state *st = op->st;
    chime_block *heads = st->key_fits_word ? NULL : far_scratch(op->t, st->span * sizeof(*heads));
    int err = 0;
    if (!heads && !st->key_fits_word)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a split");
    for (unsigned slot = 0; slot < st->span; slot++)
        if (chime_slot_is_occupied(st, n->w, slot))
            s->items[s->count++] = (item){.slot = (uint16_t)slot, .first = chime_slot(st, n->w, slot)[0]};
    if (!st->inline_items && !st->key_fits_word) {
        for (unsigned i = 0; i < s->count; i++)
            if ((err = chime_batch_read_block_head(op, chime_slot(st, n->w, s->items[i].slot)[1], &heads[i])) < 0)
                return err;
        if ((err = chime_wait(op)) < 0)
            return err;
        for (unsigned i = 0; i < s->count; i++) {
            if ((err = chime_parse_block_head(op, chime_slot(st, n->w, s->items[i].slot)[1], &heads[i])) < 0)
                return err;
            s->items[i].key = heads[i].key;
        }
    }
    assert(s->count <= CHIME_SPAN_MAX);
    qsort(s->items, s->count, sizeof(s->items[0]), compare_items);
    item mine = {.first = op->key.first, .key = st->key_fits_word ? (far_bytes){NULL, 0} : op->key.bytes};
    while (s->mine < s->count && compare_item_keys(&s->items[s->mine], &mine) < 0)
        s->mine++;
    return 0;
}


static far_bytes item_key(const item *i, uint8_t bytes[8], size_t length) {
    if (i->key.data)
        return i->key;
    for (unsigned k = 0; k < 8; k++)
        bytes[k] = (uint8_t)(i->first >> (56 - 8 * k));
    return (far_bytes){bytes, length};
}


/* Returns the number in (left, right] with the most trailing zero bits, because the node cache does not store the
 * trailing zero bits of pivots. */
static uint64_t number_between(uint64_t left, uint64_t right) {
    for (unsigned bits = 63; bits > 0; bits--) {
        uint64_t number = right >> bits << bits;
        if (number > left)
            return number;
    }
    return right;
}


static int make_split_fence(chime_op *op, split_plan *s) {
    const chime_state *st = op->st;
    item mine = {.first = op->key.first, .key = st->key_fits_word ? (far_bytes){NULL, 0} : op->key.bytes};
    const item *left = s->left ? &s->items[s->left - 1] : &mine,
               *right = s->left < s->count ? &s->items[s->left] : &mine;
    if (s->right && s->mine == s->left)
        right = &mine;
    if (!s->right && s->mine == s->left)
        left = &mine;
    uint8_t a[8], b[8];
    if (st->inline_items) {
        uint64_t number = number_between(left->first, right->first);
        for (unsigned i = 0; i < 8; i++)
            a[i] = (uint8_t)(number >> (56 - 8 * i));
        return chime_make_fence(op, (far_bytes){a, 8}, &s->fence);
    }
    size_t length = op->key.bytes.length;
    far_bytes from = item_key(left, a, length), to = item_key(right, b, length);
    to.length = chime_separator_length(from, to);
    return chime_make_fence(op, to, &s->fence);
}


static int alloc_node(chime_op *op, chime_ptr left, chime_ptr right, far_object *object) {
    return far_alloc(op->t, op->index, CHIME_TYPE_NODE, op->st->node_bytes, chime_choose_memory_node(op, left, right),
                     0, object);
}


void chime_prealloc_node(chime_op *op, chime_ptr leaf) {
    if (!op->new_node.addr && alloc_node(op, leaf, 0, &op->new_node) < 0)
        op->new_node.addr = 0;
}


static int make_right_node(chime_op *op, chime_node *n, split_plan *s) {
    far_object object = op->new_node;
    chime_ptr right = chime_h1_sibling(chime_tail(op->st, n->w)[CHIME_TAIL_H1]);
    int err = 0;
    if (object.addr && chime_memory_node_is_allowed(op, far_addr_node(object.addr), n->ptr, right))
        op->new_node.addr = 0;
    else
        err = alloc_node(op, n->ptr, right, &object);
    if (err < 0)
        return err;
    s->made_at = object.addr;
    s->made = chime_ptr_make(object.addr, (unsigned)object.epoch, 0);
    if (!(s->image = chime_alloc_image(op)) || (err = make_split_fence(op, s)) < 0) {
        far_free(op->t, op->index, CHIME_TYPE_NODE, object.addr, op->st->node_bytes);
        return err < 0 ? err : FAR_ERR_NO_MEMORY;
    }
    return 0;
}


void chime_set_unlocked_words(const chime_state *st, uint64_t *tail, uint64_t map) {
    tail[CHIME_TAIL_V] = st->masked_cas ? 0 : chime_map_to_word(map);
    tail[CHIME_TAIL_L] = st->masked_cas ? chime_map_to_word(map) : 0;
}


/* Builds the image of the right node. Its items keep their slot numbers. */
static int build_right(chime_op *op, chime_node *n, split_plan *s, const uint64_t *value, chime_insert **combined) {
    const chime_state *st = op->st;
    const uint64_t *old = chime_tail(st, n->w);
    uint64_t *tail = chime_tail(st, s->image);
    chime_init_node(st, s->image, chime_ptr_tag(s->made), 0);
    for (unsigned i = s->left; i < s->count; i++) {
        unsigned slot = s->items[i].slot;
        memcpy(chime_slot(st, s->image, slot), chime_slot(st, n->w, slot), chime_slot_bytes(st->per_line));
        chime_set_slot_occupied(st, s->image, slot, true);
    }
    chime_set_sibling_nv(st, s->image, chime_h1_sibling(old[CHIME_TAIL_H1]), 0);
    chime_build_hop_bitmaps(st, s->image);
    if (s->right) {
        int slot = chime_find_free_near_home(st, s->image, op->home_slot);
        if (slot < 0)
            return chime_report_corrupt(op->index, n->ptr, "it is full, and no split makes room for the key");
        chime_place_item(st, s->image, (unsigned)slot, op->home_slot, op->key.first, value);
    }
    tail[CHIME_TAIL_LOW] = s->fence.word;
    tail[CHIME_TAIL_HIGH] = old[CHIME_TAIL_HIGH];
    tail[CHIME_TAIL_S] = chime_new_s(op, false);
    chime_combine_inserts(op, n->ptr, s->image, combined);
    chime_set_unlocked_words(st, tail, chime_occupancy_map(st, s->image));
    return 0;
}


static int batch_left_node(chime_op *op, chime_node *n, split_plan *s, const uint64_t *value, chime_insert **combined) {
    const chime_state *st = op->st;
    uint64_t *tail = chime_tail(st, n->w), *before = chime_alloc_image(op);
    chime_node with = {.ptr = n->ptr, .w = chime_alloc_image(op)};
    int err = 0, slot = -1;
    if (!before || !with.w)
        return FAR_ERR_NO_MEMORY;
    memcpy(before, n->w, st->node_bytes);
    for (unsigned i = s->left; i < s->count; i++)
        chime_set_slot_occupied(st, n->w, s->items[i].slot, false);
    chime_set_sibling_nv(st, n->w, s->made, chime_h1_nv(tail[CHIME_TAIL_H1]) + 1);
    chime_build_hop_bitmaps(st, n->w);
    tail[CHIME_TAIL_HIGH] = s->fence.word;
    memcpy(with.w, n->w, st->node_bytes);
    if (!s->right && (slot = chime_find_free_near_home(st, n->w, op->home_slot)) < 0)
        return chime_report_corrupt(op->index, n->ptr, "it is full, and no split makes room for the key");
    if (!s->right)
        chime_place_item(st, with.w, (unsigned)slot, op->home_slot, op->key.first, value);
    chime_combine_inserts(op, n->ptr, with.w, combined);
    far_point(op->t, "chime:split");
    if ((err = chime_batch_set_busy(op, n->ptr)) < 0 || (err = chime_batch_image(op, n, before)) < 0)
        return err;
    if (!s->right && st->lines_can_tear)
        err = chime_batch_moves(op, &with, n->w, NULL, 0, (unsigned)slot);
    else
        chime_batch_changed_lines(op, &with, n->w, chime_line(st, op->home_slot));
    return err < 0 ? err : chime_batch_unlock(op, n->ptr, chime_occupancy_map(st, with.w));
}


static void free_right_node(chime_op *op, split_plan *s) {
    far_discard_batch(op->t);
    chime_free_fence(op, s->fence.word);
    far_free(op->t, op->index, CHIME_TYPE_NODE, s->made_at, op->st->node_bytes);
}


int chime_split_leaf(chime_op *op, chime_node *n, const uint64_t *value, bool early, chime_insert **combined) {
    const chime_state *st = op->st;
    split_plan *s = far_scratch(op->t, sizeof(*s));
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
    int left = chime_choose_split(st, s->count, slots, s->mine, op->home_slot, rightmost, &s->right);
    if (left < 0)
        return chime_report_corrupt(op->index, n->ptr, "it is full, and no split makes room for the key");
    s->left = (unsigned)left;
    if ((err = make_right_node(op, n, s)) < 0)
        return err;
    if ((err = build_right(op, n, s, value, combined)) < 0) {
        free_right_node(op, s);
        return err;
    }
    /* The right node must be complete in far memory before a line of the left node refers to it. */
    far_point(op->t, "chime:split_begin");
    far_write(op->t, s->made_at, s->image, st->node_bytes);
    if ((err = chime_wait(op)) < 0)
        return err;
    far_point(op->t, "chime:split_made");
    if ((err = batch_left_node(op, n, s, value, combined)) < 0) {
        free_right_node(op, s);
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
        chime_cache_add_child(st->cache, st, op->path[1], &s->fence, s->made);
    if (!chime_add_pivot_in_background(op, 1, s->made)) {
        /* No task could be started, so the operation itself inserts the pivot after it has left the latch of the leaf.
         */
        op->help_node = s->made;
        op->help_level = 0;
    }
    return 0;
}
