/* A write builds the new bucket and then makes the slot name it by a CAS, or by a WRITE under the slot's lock. The kind
 * calls toy_put and toy_remove. */
#include "base/error.h"
#include "index/toy/toy.h"

#include <string.h>

typedef struct change { /* one write operation */
    far_op_kind how;
    far_bytes key;
    const far_bytes *value; /* NULL to remove the key */
} change;


/* Returns 0 if the operation may change the map, given whether the key is present, and otherwise its result. */
static int check_precondition(far_task *t, const change *c, bool present) {
    far_note_added(t, !present);
    if (c->how == FAR_OP_INSERT)
        return present ? FAR_ERR_EXISTS : 0;
    if (c->how == FAR_OP_UPDATE || c->how == FAR_OP_DELETE)
        return present ? 0 : FAR_ERR_NOT_FOUND;
    return 0;
}


static void put_bucket(far_task *t, far_addr addr, const toy_bucket *bucket) {
    for (uint64_t at = 0; at < bucket->bytes; at += FAR_VERB_BYTES_MAX)
        far_write(t, addr + at, (const char *)bucket + at,
                  bucket->bytes - at < FAR_VERB_BYTES_MAX ? bucket->bytes - at : FAR_VERB_BYTES_MAX);
}


/* Allocates the object for a new bucket and sets *word to the slot word that will name it. The slot's memory node is
 * preferred, but another one only costs one more round trip. A delete needs memory for the remaining pairs; in a full
 * pool it finds that memory in the headroom. */
static int alloc_bucket(far_task *t, far_index *index, far_addr slot, const toy_bucket *bucket, uint64_t *word) {
    far_object object;
    uint64_t bytes = toy_object_bytes(bucket->bytes);
    unsigned node = far_addr_node(slot);
    if (toy_state_of(index)->fault == TOY_UNORDERED)
        node = (node + 1) % far_task_nodes(t);
    int err = far_alloc(t, index, TOY_TYPE_BUCKET, bytes, node, 0, &object);
    if (err >= 0)
        *word = toy_word(object.addr, bytes);
    return err;
}


/* The fault TOY_TORN_READ: a reader may see a half-written value. */
static int write_in_place(far_task *t, const toy_image *image, far_bytes old, const far_bytes *value) {
    uint64_t bytes = toy_round(value->length, 8),
             offset = (uint64_t)((const char *)old.data - (const char *)image->bucket);
    char *padded = far_scratch(t, bytes);
    if (!padded)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a value");
    memset(padded, 0, bytes);
    memcpy(padded, value->data, value->length);
    far_write(t, toy_word_addr(image->word) + offset, padded, bytes);
    return far_wait(t);
}


static void retire_old(far_task *t, far_index *index, uint64_t word) {
    if (word == 0)
        return;
    if (toy_state_of(index)->fault == TOY_EARLY_FREE)
        far_free(t, index, TOY_TYPE_BUCKET, toy_word_addr(word), toy_word_bytes(word));
    else
        far_retire(t, index, TOY_TYPE_BUCKET, toy_word_addr(word), toy_word_bytes(word));
}


/* Writes the bucket, if there is one, and makes the slot name it. If both are on one memory node they are in one batch,
 * because a WRITE takes effect before the verbs that are posted after it to the same node. Returns 1 if the slot was
 * changed, and 0 if another client changed it first; then the new bucket is freed. */
static int publish_bucket(far_task *t, far_index *index, far_addr slot, uint64_t old, const toy_bucket *bucket) {
    toy_fault fault = toy_state_of(index)->fault;
    uint64_t word = 0, seen = old;
    int err;
    if (bucket) {
        if ((err = alloc_bucket(t, index, slot, bucket, &word)) < 0)
            return err;
        put_bucket(t, toy_word_addr(word), bucket);
        if (far_addr_node(toy_word_addr(word)) != far_addr_node(slot) && fault != TOY_UNORDERED &&
            (err = far_wait(t)) < 0)
            return err;
    }
    far_point(t, "toy:publish");
    if (fault == TOY_LOST_UPDATE)
        far_write(t, slot, &word, 8);
    else
        far_cas(t, slot, old, word, &seen);
    if ((err = far_wait(t)) < 0)
        return err;
    if (seen == old) {
        far_point(t, "toy:published");
        retire_old(t, index, old);
        return 1;
    }
    if (bucket)
        far_free(t, index, TOY_TYPE_BUCKET, toy_word_addr(word), toy_word_bytes(word));
    return fault == TOY_DROPPED_WRITE ? 1 : 0;
}


static int write_lock_free(far_task *t, far_index *index, uint64_t slot, const change *c) {
    far_addr addr = toy_slot_addr(toy_state_of(index), slot);
    for (unsigned attempt = 0;; attempt++) {
        far_scratch_mark mark = far_scratch_here(t);
        toy_image image;
        toy_bucket *made;
        far_bytes old;
        int err = toy_read_slot(t, index, slot, &image);
        if (err < 0)
            return err;
        bool present = toy_find(image.bucket, c->key, &old);
        if ((err = check_precondition(t, c, present)) < 0)
            return err;
        if (toy_state_of(index)->fault == TOY_TORN_READ && present && c->value && c->value->length &&
            old.length == c->value->length)
            return write_in_place(t, &image, old, c->value);
        if ((err = toy_rebuild(t, image.bucket, c->key, c->value, &made)) < 0)
            return err;
        if ((err = publish_bucket(t, index, addr, image.word, made)) != 0)
            return err < 0 ? err : 0;

        far_count_retry(t);
        far_scratch_back(t, mark);
        far_back_off(t, attempt);
    }
}


/* While this client holds the lock, no other client writes the slot. So the slot is changed by a WRITE, and the unlock
 * follows in the same batch. Returns 1 if the slot was changed and unlocked, or an error. */
static int write_locked(far_task *t, far_index *index, uint64_t slot, const change *c) {
    far_addr addr = toy_slot_addr(toy_state_of(index), slot);
    uint64_t word = 0, unlocked = 0;
    toy_image image;
    toy_bucket *made;
    far_bytes old;
    int err = toy_read_slot(t, index, slot, &image);
    if (err < 0 || (err = check_precondition(t, c, toy_find(image.bucket, c->key, &old))) < 0)
        return err;
    if ((err = toy_rebuild(t, image.bucket, c->key, c->value, &made)) < 0)
        return err;
    if (made) {
        if ((err = alloc_bucket(t, index, addr, made, &word)) < 0)
            return err;
        put_bucket(t, toy_word_addr(word), made);
        if (far_addr_node(toy_word_addr(word)) != far_addr_node(addr) && (err = far_wait(t)) < 0)
            return err;
    }
    far_point(t, "toy:publish");
    far_write(t, addr, &word, 8);
    far_write(t, addr + 8, &unlocked, 8);
    if ((err = far_wait(t)) < 0)
        return err;
    far_point(t, "toy:published");
    retire_old(t, index, image.word);
    return 1;
}


static int write_slot(far_task *t, far_index *index, const change *c) {
    uint64_t slot = toy_slot_of(index, c->key);
    if (!toy_state_of(index)->locks)
        return write_lock_free(t, index, slot, c);
    int err = toy_lock_slot(t, index, slot);
    if (err < 0)
        return err;
    if ((err = write_locked(t, index, slot, c)) > 0)
        return 0;
    /* an error means that the slot was not changed, so the lock is still held */
    int unlocked = toy_unlock_slot(t, index, slot);
    return unlocked < 0 ? unlocked : err;
}


int toy_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value) {
    return write_slot(t, index, &(change){how, key, &value});
}


int toy_remove(far_task *t, far_index *index, far_bytes key) {
    return write_slot(t, index, &(change){FAR_OP_DELETE, key, NULL});
}
