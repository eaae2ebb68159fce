/* Updates in place of VI leaves. The lock is the last word of the leaf, so the WRITE of the new content ends with the
 * unlock: READ leaf; {WRITE redo record, CAS lock}; {WRITE meta, chk, key, value, lock = 0}. The lock word names the
 * redo record, which says who holds it and what it writes: when the holder is dead, anybody completes the update. Where
 * all that is written lies in one atomic unit nothing can be half done: then the lock word names the holder itself. */
#include "base/error.h"
#include "base/spin.h"
#include "index/smart/smart.h"
#include "pool/owner.h"
#include "task/latch.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* A redo record that belongs to a session, while no task of it uses it. */
typedef struct record {
    struct record *next;
    uint64_t owner; /* far_owner_of_session */
    far_addr addr;
    unsigned version;
} record;

struct smart_records {
    far_spin lock;
    record *free;
    uint64_t bytes; /* of a record */
};


smart_records *smart_records_new(const far_index *index) {
    smart_records *r = calloc(1, sizeof(*r));
    uint64_t longest = (uint64_t)index->options[FAR_OPTION_MAX_KEY] + (uint64_t)index->options[SMART_OPTION_IN_PLACE];
    if (r)
        r->bytes = sizeof(smart_redo) + smart_class_bytes(smart_class_for(smart_leaf_bytes(SMART_VI, longest, 0)));
    return r;
}


void smart_records_free(smart_records *records) {
    while (records && records->free) {
        record *r = records->free;
        records->free = r->next;
        free(r);
    }
    free(records);
}


/* A record of this session on that memory node, for this task alone until it is put back. */
static int take_record(smart_op *op, unsigned node, record **taken) {
    smart_records *all = op->st->records;
    far_spin_lock(&all->lock);
    record **at = &all->free, *r = NULL;
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
        far_alloc(op->t, op->index, SMART_TYPE_REDO, all->bytes, node, FAR_ALLOC_KEEP | FAR_ALLOC_ON_NODE, &object);
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


/* After its verbs completed. */
static void put_back(smart_op *op, record *r) {
    smart_records *all = op->st->records;
    far_spin_lock(&all->lock);
    r->next = all->free;
    all->free = r;
    far_spin_unlock(&all->lock);
}


static uint64_t redo_chk(const smart_state *st, const smart_redo *redo) {
    smart_redo head = *redo;
    head.owner = 0;
    head.chk = XXH3_64bits_withSeed(redo + 1, redo->bytes, st->chk_seed);
    return XXH3_64bits_withSeed(&head, sizeof(head), st->chk_seed);
}


/* Puts {WRITE record, CAS lock} into the batch; a record lies on the node of its leaf. */
static int put_lock(smart_op *op, record *r, far_addr leaf, far_addr lock, const void *bytes, uint64_t count,
                    uint64_t *mine, uint64_t *seen) {
    smart_redo *redo = far_scratch(op->t, sizeof(*redo) + count);
    if (!redo)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a redo record");
    *mine = smart_lock_redo(r->addr, ++r->version);
    *redo = (smart_redo){.owner = r->owner, .lock = *mine, .leaf = leaf, .bytes = count};
    memcpy(redo + 1, bytes, count);
    redo->chk = redo_chk(op->st, redo);
    far_write(op->t, r->addr, redo, sizeof(*redo) + count);
    far_cas(op->t, lock, 0, *mine, seen);
    return 0;
}


/* The whole record that a lock word names. 1: it is that record. */
static int read_record(smart_op *op, uint64_t lock, smart_redo **redo) {
    uint64_t bytes = op->st->records->bytes;
    far_addr addr = smart_lock_record(lock);
    if (!far_task_reaches(op->t, addr, bytes))
        return 0;
    smart_redo *r = far_scratch(op->t, bytes);
    if (!r)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a redo record");
    far_read(op->t, addr, r, bytes);
    far_mark(op->t, FAR_VERB_UNPROVEN); /* the lock may be free by now, and its holder gone */
    int err = smart_wait(op);
    *redo = r;
    if (err < 0)
        return err;
    return r->lock == lock && r->bytes <= bytes - sizeof(*r) && r->bytes % 8 == 0 && r->chk == redo_chk(op->st, r);
}


/* The update of a dead client is completed, by the one that makes the record its own: it needs no memory for that, and
 * when that one dies too, the next one does the same. The lock is looked at afterwards: the dead may have written all, and
 * given it free. */
static int complete(smart_op *op, far_addr lock_at, uint64_t lock, const smart_redo *redo) {
    far_addr record = smart_lock_record(lock);
    uint64_t seen, now;
    uint8_t *body = far_scratch(op->t, redo->bytes + 8);
    if (redo->leaf + 8 + redo->bytes != lock_at)
        return smart_broken(op->index, redo->leaf, "redo record of the leaf");
    if (!body)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
    memcpy(body, redo + 1, redo->bytes);
    memset(body + redo->bytes, 0, 8);
    int err =
        far_cas_word(op->t, record + offsetof(smart_redo, owner), redo->owner, far_owner_of_session(op->t), &seen);
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


/* *lives: whether the lock names a record, whose owner lives. */
static int redo_dead(smart_op *op, far_addr lock_at, uint64_t lock, bool *lives) {
    smart_redo *redo = NULL;
    uint64_t owner = lock, seen;
    int err;
    if (!(lock & SMART_LOCK_OWNER)) {
        if ((err = read_record(op, lock, &redo)) <= 0)
            return err;
        owner = redo->owner;
    }
    if ((err = far_holder_is_dead(op->t, owner)) <= 0) {
        *lives = err == 0 && redo;
        return err;
    }
    if (redo)
        return complete(op, lock_at, lock, redo);
    err = far_cas_word(op->t, lock_at, lock, 0, &seen); /* nothing can be half done */
    return err < 0 ? err : 1;
}


int smart_redo_dead(smart_op *op, far_addr lock_at, uint64_t lock) {
    bool lives = false;
    return redo_dead(op, lock_at, lock, &lives);
}


int smart_lock_holder(smart_op *op, uint64_t lock, uint64_t *owner) {
    smart_redo *redo = NULL;
    int err = 0;
    *owner = lock & SMART_LOCK_OWNER ? lock : 0;
    if (*owner == 0 && (err = read_record(op, lock, &redo)) == 1)
        *owner = redo->owner;
    return err < 0 ? err : 0;
}


/* The record of a dead client may be in use by a living one, which may die before it is through. */
int smart_walk_lock(smart_op *op, far_addr lock_at, uint64_t lock, far_walk *walk) {
    bool lives = false;
    int err = redo_dead(op, lock_at, lock, &lives);
    if (err == 0 && lives)
        err = far_walk_object(walk, op->index, SMART_TYPE_REDO, smart_lock_record(lock), op->st->records->bytes);
    return err < 0 ? err : 0;
}


/* The new content from leaf + 8 on, with the unlocked lock at its end. */
static uint8_t *new_body(smart_op *op, const smart_leaf *leaf, far_bytes value) {
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
    memcpy(image + smart_meta_at(SMART_VI), &next.meta, 8);
    memcpy(image + smart_chk_at(SMART_VI), &chk, 8);
    memcpy(image + smart_key_at(SMART_VI), leaf->key.data, leaf->key.length);
    if (value.length)
        memcpy(image + smart_value_at(SMART_VI, (unsigned)leaf->key.length), value.data, value.length);
    return image + 8;
}


enum { TRY_AGAIN = 1 }; /* of waiting for a lock; SMART_LOST: find again */


/* Somebody holds the lock. */
static int wait_for_lock(smart_op *op, far_addr lock_at, uint64_t lock, unsigned attempt) {
    far_count_lock_retry(op->t);
    if (attempt >= op->st->patience) {
        int err = smart_renew_pin(op);
        return err < 0 ? err : SMART_LOST;
    }
    if (smart_is_time_to_ask(op->st, attempt)) {
        int err = smart_redo_dead(op, lock_at, lock);
        if (err != 0)
            return err;
    }
    far_back_off(op->t, attempt);
    return TRY_AGAIN;
}


static int lock_and_write(smart_op *op, const smart_spot *s, const uint8_t *body, record *r) {
    const smart_leaf *leaf = &s->leaf;
    unsigned bytes = smart_class_bytes(leaf->class);
    far_addr lock_at = leaf->addr + bytes - 8;
    uint64_t mine = SMART_LOCK_OWNER | far_owner_of_task(op->t), seen;
    for (unsigned attempt = 0;; attempt++) {
        int err = 0;
        if (r)
            err = put_lock(op, r, leaf->addr, lock_at, body, bytes - 16, &mine, &seen);
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
    record *r = NULL;
    const uint8_t *body = new_body(op, leaf, value);
    if (!body)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
    int err = whole ? 0 : take_record(op, far_addr_node(leaf->addr), &r);
    if (err < 0)
        return err;
    far_latch(op->t, leaf->addr); /* of the tasks of this compute node one at a time */
    err = lock_and_write(op, s, body, r);
    far_unlatch(op->t, leaf->addr);
    if (r && (err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE))
        free(r); /* it is lost with the session */
    else if (r)
        put_back(op, r);
    return err;
}
