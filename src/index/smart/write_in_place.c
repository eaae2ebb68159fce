/* Updates in place of VI leaves, under a lock in the last word of the leaf. write_update.c calls smart_update_locked.
 *
 * An update posts three batches: READ leaf; {WRITE redo record, CAS lock}; {WRITE meta, chk, key, value, lock = 0}. A
 * WRITE takes effect in rising order of addresses, so the last WRITE ends with the unlock. The lock word names the redo
 * record, which contains the identity of the lock holder and the new bytes. If the holder fails, any other client can
 * complete the update from the redo record. If all written bytes are in one tearing granule, no reader can see the
 * update partly written; in that case no redo record is needed and the lock word names the holder itself. */
#include "base/error.h"
#include "base/spin.h"
#include "index/smart/smart.h"
#include "pool/format/owner.h"
#include "task/latch.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* A redo record in far memory that belongs to a session. While no task uses it, it is in the list of its
 * smart_redo_pool. */
typedef struct redo_record {
    struct redo_record *next;
    uint64_t owner; /* far_owner_of_session of the session that allocated it */
    far_addr addr;
    unsigned version;
} redo_record;

struct smart_redo_pool {
    far_spin lock;
    redo_record *free;
    uint64_t bytes; /* size of the redo record in far memory, in bytes */
};


smart_redo_pool *smart_redo_pool_new(const far_index *index) {
    smart_redo_pool *r = calloc(1, sizeof(*r));
    uint64_t longest = (uint64_t)index->options[FAR_OPTION_MAX_KEY] + (uint64_t)index->options[SMART_OPTION_IN_PLACE];
    if (r)
        r->bytes = sizeof(smart_redo) + smart_class_bytes(smart_class_for(smart_leaf_bytes(SMART_VI, longest, 0)));
    return r;
}


void smart_redo_pool_free(smart_redo_pool *records) {
    while (records && records->free) {
        redo_record *r = records->free;
        records->free = r->next;
        free(r);
    }
    free(records);
}


/* Takes a redo record of this session on that memory node from the pool of records, or allocates one. Only this task
 * uses the record until return_record. */
static int take_record(smart_op *op, unsigned node, redo_record **taken) {
    smart_redo_pool *all = op->st->redo_pool;
    far_spin_lock(&all->lock);
    redo_record **at = &all->free, *r = NULL;
    while (*at && ((*at)->owner != far_owner_of_session(op->t) || far_addr_node((*at)->addr) != node))
        at = &(*at)->next;
    if (*at) {
        r = *at;
        *at = r->next;
    }
    far_spin_unlock(&all->lock);
    *taken = r;
    if (r)
        return 0;
    if (!(r = calloc(1, sizeof(*r))))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a redo record");
    far_object object;
    int err =
        far_alloc(op->t, op->index, SMART_TYPE_REDO, all->bytes, node, FAR_ALLOC_SESSION_OWNED | FAR_ALLOC_ON_NODE, &object);
    if (err < 0) {
        free(r);
        return err;
    }
    r->owner = far_owner_of_session(op->t);
    r->addr = object.addr;
    r->version = (unsigned)far_task_random(op->t);
    *taken = r;
    return 0;
}


/* Returns the redo record to the pool of records. The verbs that use the record must have completed. */
static void return_record(smart_op *op, redo_record *r) {
    smart_redo_pool *all = op->st->redo_pool;
    far_spin_lock(&all->lock);
    r->next = all->free;
    all->free = r;
    far_spin_unlock(&all->lock);
}


static uint64_t redo_checksum(const smart_state *st, const smart_redo *redo) {
    smart_redo head = *redo;
    head.owner = 0;
    head.chk = XXH3_64bits_withSeed(redo + 1, redo->bytes, st->chk_seed);
    return XXH3_64bits_withSeed(&head, sizeof(head), st->chk_seed);
}


/* Adds {WRITE redo record, CAS lock} to the batch. The record is on the memory node of its leaf, so the WRITE takes
 * effect before the CAS. *mine is the new lock word; *seen receives the previous one. */
static int put_redo_and_lock(smart_op *op, redo_record *r, far_addr leaf, far_addr lock, const void *bytes,
                             uint64_t count, uint64_t *mine, uint64_t *seen) {
    smart_redo *redo = far_scratch(op->t, sizeof(*redo) + count);
    if (!redo)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a redo record");
    *mine = smart_lock_redo(r->addr, ++r->version);
    *redo = (smart_redo){.owner = r->owner, .lock = *mine, .leaf = leaf, .bytes = count};
    memcpy(redo + 1, bytes, count);
    redo->chk = redo_checksum(op->st, redo);
    far_write(op->t, r->addr, redo, sizeof(*redo) + count);
    far_cas(op->t, lock, 0, *mine, seen);
    return 0;
}


/* READs the redo record that a lock word names. Returns 1 if it belongs to this lock word and its checksum is correct,
 * else 0. */
static int read_redo_record(smart_op *op, uint64_t lock, smart_redo **redo) {
    uint64_t bytes = op->st->redo_pool->bytes;
    far_addr addr = smart_lock_record(lock);
    if (!far_task_reaches(op->t, addr, bytes))
        return 0;
    smart_redo *r = far_scratch(op->t, bytes);
    if (!r)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a redo record");
    far_read(op->t, addr, r, bytes);
    /* the lock may have been released and the redo record freed since the lock word was READ */
    far_mark(op->t, FAR_VERB_UNPROVEN);
    int err = smart_wait(op);
    *redo = r;
    if (err < 0)
        return err;
    return r->lock == lock && r->bytes <= bytes - sizeof(*r) && r->bytes % 8 == 0 && r->chk == redo_checksum(op->st, r);
}


/* Completes the update of a failed client. The CAS of the redo record's owner makes this session responsible for the
 * update; if this session fails too, the next client takes over in the same way. No memory has to be allocated. The
 * lock is READ after the CAS, because the failed client may have written everything and released the lock before it was
 * fenced. If the lock was released, the bytes must not be written again. */
static int complete_update(smart_op *op, far_addr lock_at, uint64_t lock, const smart_redo *redo) {
    far_addr record_addr = smart_lock_record(lock);
    uint64_t seen, now;
    uint8_t *body = far_scratch(op->t, redo->bytes + 8);
    if (redo->leaf + 8 + redo->bytes != lock_at)
        return smart_fail_corrupt(op->index, redo->leaf, "redo record of the leaf");
    if (!body)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
    memcpy(body, redo + 1, redo->bytes);
    memset(body + redo->bytes, 0, 8);
    int err =
        far_cas_word(op->t, record_addr + offsetof(smart_redo, owner), redo->owner, far_owner_of_session(op->t), &seen);
    if (err < 0 || seen != redo->owner)
        return err < 0 ? err : 1;
    far_point(op->t, "smart:taken_over");
    if ((err = far_read_word(op->t, lock_at, &now)) < 0)
        return err;
    if (now == lock) {
        far_write(op->t, redo->leaf + 8, body, redo->bytes + 8);
        err = smart_wait(op);
    }
    return err < 0 ? err : 1;
}


/* Like smart_recover_lock. Also sets *lives if the lock word names a redo record whose owner is alive. */
static int recover_lock(smart_op *op, far_addr lock_at, uint64_t lock, bool *lives) {
    smart_redo *redo = NULL;
    uint64_t owner = lock, seen;
    int err;
    if (!(lock & SMART_LOCK_OWNER)) {
        if ((err = read_redo_record(op, lock, &redo)) <= 0)
            return err;
        owner = redo->owner;
    }
    if ((err = far_holder_confirm_failed(op->t, owner)) <= 0) {
        *lives = err == 0 && redo;
        return err;
    }
    if (redo)
        return complete_update(op, lock_at, lock, redo);
    /* Without a redo record all bytes were written at once, so the lock can simply be released. */
    err = far_cas_word(op->t, lock_at, lock, 0, &seen);
    return err < 0 ? err : 1;
}


int smart_recover_lock(smart_op *op, far_addr lock_at, uint64_t lock) {
    bool lives = false;
    return recover_lock(op, lock_at, lock, &lives);
}


int smart_lock_holder(smart_op *op, uint64_t lock, uint64_t *owner) {
    smart_redo *redo = NULL;
    int err = 0;
    *owner = lock & SMART_LOCK_OWNER ? lock : 0;
    if (*owner == 0 && (err = read_redo_record(op, lock, &redo)) == 1)
        *owner = redo->owner;
    return err < 0 ? err : 0;
}


/* Like smart_recover_lock, but also reports the redo record of a live session. A live session may be completing the
 * update of a failed client with that client's redo record. The record must be reported because the live session may
 * fail before it has finished, and the next client will need the record. */
int smart_walk_lock(smart_op *op, far_addr lock_at, uint64_t lock, far_walk *walk) {
    bool lives = false;
    int err = recover_lock(op, lock_at, lock, &lives);
    if (err == 0 && lives)
        err = far_walk_object(walk, op->index, SMART_TYPE_REDO, smart_lock_record(lock), op->st->redo_pool->bytes);
    return err < 0 ? err : 0;
}


/* Builds the new content of the leaf from leaf + 8 on, with a released lock as its last word. Returns NULL if there is
 * no memory. */
static uint8_t *build_new_content(smart_op *op, const smart_leaf *leaf, far_bytes value) {
    unsigned bytes = smart_class_bytes(leaf->class);
    uint8_t *image = far_scratch(op->t, bytes);
    if (!image)
        return NULL;
    smart_leaf next = *leaf;
    memset(image, 0, bytes);
    next.image = image;
    next.meta = smart_meta((unsigned)leaf->key.length, leaf->class, value.length, smart_meta_version(leaf->meta) + 1);
    next.value = value;
    next.ctl = smart_ctl_with_state(leaf->ctl, SMART_LIVE);
    uint64_t chk = smart_leaf_chk(op->st, &next);
    memcpy(image + smart_meta_offset(SMART_VI), &next.meta, 8);
    memcpy(image + smart_chk_offset(SMART_VI), &chk, 8);
    memcpy(image + smart_key_offset(SMART_VI), leaf->key.data, leaf->key.length);
    if (value.length)
        memcpy(image + smart_value_offset(SMART_VI, (unsigned)leaf->key.length), value.data, value.length);
    return image + 8;
}


enum { TRY_AGAIN = 1 }; /* result of wait_for_lock if the caller should try to take the lock again */


/* Called when another task holds the lock. Waits before the next attempt. Returns TRY_AGAIN, SMART_LOST if the pin was
 * renewed, or an error. */
static int wait_for_lock(smart_op *op, far_addr lock_at, uint64_t lock, unsigned attempt) {
    far_count_lock_retry(op->t);
    if (attempt >= op->st->attempts_per_pin) {
        int err = smart_renew_pin(op);
        return err < 0 ? err : SMART_LOST;
    }
    if (smart_liveness_check_is_due(op->st, attempt)) {
        int err = smart_recover_lock(op, lock_at, lock);
        if (err != 0)
            return err;
    }
    far_back_off(op->t, attempt);
    return TRY_AGAIN;
}


static int lock_and_write(smart_op *op, const smart_spot *s, const uint8_t *body, redo_record *r) {
    const smart_leaf *leaf = &s->leaf;
    unsigned bytes = smart_class_bytes(leaf->class);
    far_addr lock_at = leaf->addr + bytes - 8;
    uint64_t mine = SMART_LOCK_OWNER | far_owner_of_task(op->t), seen;
    for (unsigned attempt = 0;; attempt++) {
        int err = 0;
        if (r)
            err = put_redo_and_lock(op, r, leaf->addr, lock_at, body, bytes - 16, &mine, &seen);
        else
            far_cas(op->t, lock_at, 0, mine, &seen);
        if (err < 0 || (err = smart_wait(op)) < 0)
            return err;
        if (seen == 0)
            break;
        if ((err = wait_for_lock(op, lock_at, seen, attempt)) != TRY_AGAIN)
            return err;
    }
    far_point(op->t, "smart:locked");
    unsigned with_lock = op->st->rear_lock ? 8 : 0;
    far_write(op->t, leaf->addr + 8, body, bytes - 16 + with_lock);
    int err = smart_wait(op);
    if (err >= 0 && !with_lock)
        err = far_write_word(op->t, lock_at, 0);
    if (err < 0)
        return err;
    far_rdwc_done(op->t, s->mark);
    return SMART_DONE;
}


int smart_update_locked(smart_op *op, const smart_spot *s, far_bytes value) {
    const smart_leaf *leaf = &s->leaf;
    unsigned unit = far_task_capabilities(op->t)->atomic_bytes;
    bool whole = (leaf->addr + 8) / unit == (leaf->addr + smart_class_bytes(leaf->class) - 1) / unit;
    redo_record *r = NULL;
    const uint8_t *body = build_new_content(op, leaf, value);
    if (!body)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
    int err = whole ? 0 : take_record(op, far_addr_node(leaf->addr), &r);
    if (err < 0)
        return err;
    far_latch(op->t, leaf->addr); /* The latch lets only one task of this handle at a time compete for the lock. */
    err = lock_and_write(op, s, body, r);
    far_unlatch(op->t, leaf->addr);
    if (r && (err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE))
        free(r); /* The local structure is freed; the redo record in far memory is freed together with the session. */
    else if (r)
        return_record(op, r);
    return err;
}
