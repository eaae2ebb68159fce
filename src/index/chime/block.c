/* Blocks: a key and its value, immutable, where they do not fit into a slot. And finding an item in a neighbourhood. */
#include "base/error.h"
#include "index/chime/chime.h"


/* Makes room for what is READ of the block: `most` bytes, or all that it has. */
static int make_room(chime_op *op, uint64_t word, uint64_t most, chime_block *b, uint64_t *bytes) {
    unsigned class = chime_value_class(word);
    uint64_t all = class < CHIME_CLASSES ? chime_class_bytes(class) : 0;
    *bytes = all < most ? all : most;
    if (!*bytes || !far_task_reaches(op->t, chime_value_block(word), *bytes)) {
        far_forget(op->t);
        return far_fail(FAR_ERR_CORRUPT, "index '%s': a slot names a block at %#llx", op->index->name,
                        (unsigned long long)chime_value_block(word));
    }
    if (!(b->image = far_scratch(op->t, *bytes))) {
        far_forget(op->t);
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a block");
    }
    return 0;
}


static int put_read(chime_op *op, uint64_t word, uint64_t most, chime_block *b) {
    uint64_t bytes;
    int err = make_room(op, word, most, b, &bytes);
    if (err >= 0)
        far_read(op->t, chime_value_block(word), b->image, bytes);
    return err;
}


int chime_put_read_block(chime_op *op, uint64_t word, chime_block *b) {
    return put_read(op, word, UINT64_MAX, b);
}


static uint64_t head_bytes(const chime_op *op) {
    return CHIME_BLOCK_HEAD + ((uint64_t)op->index->options[FAR_OPTION_MAX_KEY] + 7) / 8 * 8;
}


int chime_put_read_head(chime_op *op, uint64_t word, chime_block *b) {
    return put_read(op, word, head_bytes(op), b);
}


static int take(chime_op *op, uint64_t word, chime_block *b) {
    uint64_t head;
    memcpy(&head, b->image, 8);
    size_t key = chime_block_key_length(head), value = chime_block_value_length(head);
    if (!key || key > (size_t)op->index->options[FAR_OPTION_MAX_KEY] ||
        CHIME_BLOCK_HEAD + key + value > chime_class_bytes(chime_value_class(word)))
        return far_fail(FAR_ERR_CORRUPT, "index '%s': the block at %#llx has no key and value", op->index->name,
                        (unsigned long long)chime_value_block(word));
    b->key = (far_bytes){b->image + CHIME_BLOCK_HEAD, key};
    b->value = (far_bytes){b->image + CHIME_BLOCK_HEAD + key, value};
    return 0;
}


int chime_take_block(chime_op *op, uint64_t word, chime_block *b) {
    return take(op, word, b);
}


int chime_read_block(chime_op *op, uint64_t word, chime_block *b) {
    uint64_t bytes;
    int err = make_room(op, word, UINT64_MAX, b, &bytes);
    if (err < 0 || (err = far_read_now(op->t, chime_value_block(word), b->image, bytes, 0)) < 0)
        return err;
    return take(op, word, b);
}


int chime_take_head(chime_op *op, uint64_t word, chime_block *b) {
    return take(op, word, b);
}


/* Blocks are READ when there are some to choose from, or when the value is wanted. */
static int choose(chime_op *op, chime_node *n, const unsigned *slots, unsigned count, int *slot, chime_block *b) {
    chime_block blocks[CHIME_HOP_MAX];
    int err;
    for (unsigned i = 0; i < count; i++)
        if ((err = chime_put_read_block(op, chime_slot(op->st, n->w, slots[i])[1], &blocks[i])) < 0)
            return err;
    if ((err = far_wait(op->t)) < 0) /* what they hold never changes: the batch before decides */
        return err;
    for (unsigned i = 0; i < count; i++) {
        if ((err = chime_take_block(op, chime_slot(op->st, n->w, slots[i])[1], &blocks[i])) < 0)
            return err;
        if (far_bytes_compare(blocks[i].key, op->key.bytes) == 0) {
            *slot = (int)slots[i];
            *b = blocks[i];
            return 0;
        }
    }
    return 0;
}


int chime_find_item(chime_op *op, chime_node *n, int *slot, chime_block *b) {
    const chime_state *st = op->st;
    unsigned found[CHIME_HOP_MAX], count = 0, tag = chime_ptr_tag(n->ptr);
    *slot = -1;
    for (unsigned i = 0; i < st->hop && (st->wrap || op->home + i < st->span); i++) {
        unsigned at = chime_step(st, op->home, i);
        const uint64_t *words = chime_slot(st, n->w, at);
        if (!chime_is_occupied(st, n->w, at) || words[0] != op->key.first ||
            !chime_line_is(st, n->w, chime_line(st, at), tag))
            continue;
        if (!st->fixed && (chime_value_print(words[1]) != (op->key.hash & 1023) || chime_value_distance(words[1]) != i))
            continue;
        found[count++] = at;
        if (st->exact)
            break;
    }
    if (count && (st->fixed || (st->exact && !b))) {
        *slot = (int)found[0];
        return 0;
    }
    return count ? choose(op, n, found, count, slot, b) : 0;
}
