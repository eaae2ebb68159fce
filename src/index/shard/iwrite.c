/* Layout I, writing: lock the bucket (K) and read it in one round trip, decide, then WRITE what changes and free the
 * lock in the next. */
#include "base/error.h"
#include "index/rdwc.h"
#include "index/shard/shard.h"
#include "pool/clients.h"

#include <string.h>

typedef struct change { /* of one operation */
    far_op_kind how;
    far_bytes value;
    int delta;
    uint32_t mark;
    bool glimpsed;         /* the key was seen while another had the lock, */
    uint64_t glimpse;      /* with this value, */
    uint32_t glimpse_mark; /* by a batch of this mark, or a later one */
} change;


int shard_i_lock(shard_try *y, shard_image *image, uint64_t *seen, shard_beside *beside) {
    far_point(y->t, "shard:lock");
    far_latch(y->t, image->addr);
    y->latched = image->addr;
    return shard_lock_and_read(y, image, SHARD_I_K, SHARD_K_FREE, shard_k(far_task_client(y->t), far_task_number(y->t)),
                               seen, beside);
}


/* Frees the lock behind what is in the batch, and waits for all of it. */
int shard_i_unlock(shard_try *y, const shard_image *image) {
    int err = far_write_word(y->t, image->addr + 8 * SHARD_I_K, SHARD_K_FREE);
    shard_unlatch(y);
    return err;
}


int shard_i_free_slot(const shard_try *y, const uint64_t *w) {
    unsigned start = shard_start_line(y) * 4; /* four slots a line */
    for (unsigned i = 0; i < 32; i++) {
        unsigned slot = (start + i) % 32;
        if (slot < y->st->slots && shard_kw_is_empty(w[2 * slot + 1]))
            return (int)slot;
    }
    return -1;
}


/* Below level 1 slots are shared by the keys of many buckets: they are claimed by CAS. 1: claimed. */
static int claim(shard_try *y, far_addr at, uint64_t expected, uint64_t busy) {
    uint64_t old;
    int err = far_cas_word(y->t, at, expected, busy, &old);
    return err < 0 ? err : old == expected;
}


/* Whether the word can be claimed: free, or claimed by somebody who died (asked for only then). */
static int is_open(shard_try *y, bool free, bool busy, unsigned owner) {
    if (free || !busy)
        return free;
    return owner == far_task_client(y->t) ? 0 : far_is_dead(y->t, owner, FAR_ANY_GENERATION);
}


static int place_at_l2(shard_try *y, const shard_overflow *o, uint64_t value, far_addr *at, uint64_t slot[3]) {
    for (unsigned choice = 0; choice < 2; choice++)
        for (unsigned i = 0; i < y->st->l2_slots; i++) {
            uint64_t kw = o->l2[choice][2 * i + 1];
            int err = is_open(y, shard_kw_is_free(kw), shard_kw_is_busy(kw), shard_kw_owner(kw));
            *at = o->at[choice] + 16 * i;
            if (err > 0)
                err = claim(y, *at + 8, kw, shard_kw_busy(far_task_client(y->t), shard_kw_gen(kw)));
            if (err < 0)
                return err;
            if (err == 0)
                continue;
            slot[0] = value;
            slot[1] = shard_kw(0, choice, shard_kw_gen(kw) + 1, shard_rem(y, (int)choice));
            return 1;
        }
    return 0;
}


static int place_in_chain(shard_try *y, far_addr head, uint64_t value, far_addr *at, uint64_t slot[3],
                          unsigned *words) {
    shard_i_node node;
    shard_chain chain = {0};
    slot[0] = value;
    memcpy(&slot[1], y->key.data, 8);
    y->landed = 3;
    shard_want(y->part, shard_home_v(y) + 1);
    for (far_addr here = head;; here = node.next, y->walked++) {
        int err = shard_follow(y->index, &chain, here);
        if (err < 0)
            return err;
        far_read(y->t, here, &node, sizeof(node));
        err = far_wait(y->t);
        for (unsigned i = 0; err >= 0 && i < SHARD_I_NODE_SLOTS; i++) {
            uint64_t state = node.slot[i].state, gen = shard_state_gen(state);
            *at = here + i * sizeof(shard_i_slot);
            err = is_open(y, shard_state_is_free(state), state & SHARD_STATE_BUSY, shard_state_owner(state));
            if (err > 0)
                err = claim(y, *at + 16, state, shard_state_word(SHARD_STATE_BUSY, far_task_client(y->t), gen));
            if (err == 1) {
                slot[2] = shard_state_word(SHARD_STATE_LIVE, 0, gen + 1);
                *words = 3;
                return 1;
            }
        }
        if (err >= 0 && node.next == 0) {
            shard_i_node last = {.slot = {{slot[0], slot[1], shard_state_word(SHARD_STATE_LIVE, 0, 1)}}};
            err = shard_append_node(y, here, &last);
        }
        if (err == 1) {
            *words = 0;
            return 1;
        }
        if (err >= 0 && node.next == 0)
            err = far_read_word(y->t, here + offsetof(shard_i_node, next), &node.next);
        if (err < 0)
            return err;
    }
}


/* The bucket is full: a place at level 2 or 3, announced by the filter before. *words 0: it is there already. */
int shard_i_place(shard_try *y, uint64_t value, far_addr *at, uint64_t slot[3], unsigned *words) {
    shard_overflow o;
    uint64_t *header = &y->home->w[SHARD_I_H], before = *header;
    unsigned d = shard_header_v(before);
    int err = shard_make_overflow(y->t, y->index, y->part, d);
    if (err < 0 || (err = shard_put_overflow(y, d, &o)) < 0)
        return err;
    if (err == 1)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': a table of level 2 is missing", y->index->name);
    *header = shard_header_overflows(before, shard_bit(y->st, y->h));
    far_write(y->t, y->home->addr + 8 * SHARD_I_H, header, 8);
    if ((err = far_wait(y->t)) < 0)
        return err;
    shard_count(&y->st->counters.overflows);
    y->landed = 2;
    far_point(y->t, "shard:place_in_overflow");
    *words = 2;
    if ((err = place_at_l2(y, &o, value, at, slot)) == 0)
        err = place_in_chain(y, o.head, value, at, slot, words);
    if (err < 0 && !shard_is_lost(err)) { /* without memory for a node: nothing is there that was announced */
        *header = before;
        far_write(y->t, y->home->addr + 8 * SHARD_I_H, header, 8); /* with the unlock */
    }
    return err;
}


/* Puts WRITEs that free the copies below level 1. */
static int put_clear(shard_try *y, const shard_hit *hits, unsigned count) {
    uint64_t *words = far_scratch(y->t, 8 * SHARD_COPIES_MAX);
    if (!words)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for words");
    for (unsigned i = 0; i < count; i++) {
        bool l2 = hits[i].level == 2;
        words[i] =
            l2 ? shard_kw_free(shard_kw_gen(hits[i].word)) : shard_state_word(0, 0, shard_state_gen(hits[i].word));
        far_write(y->t, hits[i].addr + (l2 ? 8 : 16), &words[i], 8);
    }
    return 0;
}


static void seal(shard_try *y, change *c, uint64_t *value) {
    far_point(y->t, "shard:seal");
    far_rdwc_seal(y->t, &c->value);
    c->glimpsed = false; /* operations that have joined since the glimpse are in the round now */
    c->mark = far_rdwc_mark(y->t);
    memcpy(value, c->value.data, 8);
}


static int insert(shard_try *y, change *c) {
    int slot = shard_i_free_slot(y, y->home->w), err = 1;
    unsigned words = 2;
    uint64_t pair[3], value;
    far_addr at;
    seal(y, c, &value);
    if (slot < 0 && (err = shard_i_place(y, value, &at, pair, &words)) < 0)
        return err;
    if (slot >= 0) {
        at = y->home->addr + 16ull * (unsigned)slot;
        pair[0] = value;
        pair[1] = shard_kw(y->d, false, shard_kw_gen(y->home->w[2 * slot + 1]) + 1, shard_rem(y, -1));
    }
    far_point(y->t, "shard:insert");
    if (words)
        far_write_ahead(y->t, at, pair, 8 * words);
    err = shard_i_unlock(y, y->home);
    return err < 0 ? err : SHARD_DONE;
}


/* The key is there: at level 1 (slot >= 0), or below only (hits, the older generation first). */
static int replace(shard_try *y, change *c, const shard_hit *above, const shard_hit *hits, unsigned count) {
    const shard_hit *last = above ? above : &hits[count - 1];
    uint64_t value, kw;
    int err;
    if (c->how == FAR_OP_DELETE) {
        if ((err = put_clear(y, hits, count)) < 0)
            return err;
        kw = above ? shard_kw_empty(y->d, shard_kw_gen(above->word)) : 0;
        if (above)
            far_write(y->t, above->addr + 8, &kw, 8);
        if (count) { /* behind the WRITEs that freed them: who dies before it leaves a filter that says too much */
            shard_recover(y, &y->home->w[SHARD_I_H], hits, count);
            far_write(y->t, y->home->addr + 8 * SHARD_I_H, &y->home->w[SHARD_I_H], 8);
        }
    } else {
        seal(y, c, &value);
        if (!above && (err = put_clear(y, hits, count - 1)) < 0)
            return err;
        far_write_ahead(y->t, last->addr, &value, 8);
    }
    far_point(y->t, "shard:replace");
    err = shard_i_unlock(y, y->home);
    return err < 0 ? err : SHARD_DONE;
}


/* Under the lock, at the version that counts. An error: nothing was changed, and the lock is still held. */
static int apply(shard_try *y, change *c) {
    shard_hit above, hits[SHARD_COPIES_MAX];
    unsigned generation[2], count = 0;
    bool found = shard_i_find_l1(y, &above);
    int err = 0;
    if (shard_generations(y, y->home->w[SHARD_I_H], generation) &&
        (err = shard_find_overflow(y, y->home->w[SHARD_I_H], false, hits, &count)) < 0)
        return err;
    bool present = found || count;
    if ((err = shard_refusal(c->how, present)) < 0)
        return err;
    c->delta = c->how == FAR_OP_DELETE ? -1 : !present;
    return present ? replace(y, c, found ? &above : NULL, hits, count) : insert(y, c);
}


/* Another has the lock, but the bucket was read, as a get would: the key had this value within this operation. If it has
 * another one later, also within this operation, then somebody wrote or deleted the key in between, and found it there:
 * an update or put that comes immediately before that one, and is overwritten at once, has happened, and its value need
 * not be written. Who joined the round before the first of both looks is in it. */
static bool is_overtaken(shard_try *y, change *c, uint32_t mark) {
    shard_hit hit;
    uint64_t header = y->home->w[SHARD_I_H];
    if (!shard_home_is_right(y, header) || !shard_i_find_l1(y, &hit) || !shard_hit_counts(y, header, &hit))
        return false;
    if (!c->glimpsed) {
        c->glimpsed = true;
        c->glimpse = hit.value;
        c->glimpse_mark = mark;
    }
    if (hit.value == c->glimpse)
        return false;
    far_rdwc_seal_before(y->t, c->glimpse_mark, &c->value);
    shard_count(&y->st->counters.absorbed);
    c->mark = c->glimpse_mark;
    c->delta = 0;
    return true;
}


/* The bucket was read in a batch of that mark, and is locked: whether the operation is done by what its holder writes.
 * The first time it looks once more with a READ alone: where many want one key, the CASes on its lock take longest. */
static int watch(shard_try *y, change *c, uint32_t mark) {
    bool writes_over = c->how == FAR_OP_UPDATE || c->how == FAR_OP_PUT;
    if (!y->st->absorb || !writes_over || !y->st->whole_pairs) /* value and key may be of two moments */
        return 0;
    if (is_overtaken(y, c, mark))
        return 1;
    if (!c->glimpsed || y->attempt > 0)
        return 0;
    far_point(y->t, "shard:glimpsed");
    far_read(y->t, y->home->addr, y->home->w, SHARD_BUCKET_BYTES);
    int err = far_wait(y->t);
    return err < 0 ? err : is_overtaken(y, c, mark);
}


/* The bucket could not be locked: K was `seen`. */
static int wait_for(shard_try *y, const shard_image *image, uint64_t seen) {
    int err = 0;
    if (y->attempt % 4 == 3)
        err = shard_i_help(y->t, y->index, y->part, image, seen);
    return err < 0 ? err : shard_retry(y, seen == 0 || y->attempt % 4 == 3);
}


/* The lock of the home bucket, which is at d-1, is held: splits it. The change goes along, unless the key may lie
 * at levels 2 and 3. */
static int split_and_change(shard_try *y, change *c) {
    shard_own own = {.y = y, .slot = -1, .remove = c->how == FAR_OP_DELETE};
    shard_hit hit;
    bool along = y->st->combining && !(shard_header_fnew(y->home->w[SHARD_I_H]) & shard_bit(y->st, y->h));
    if (along && shard_i_find_l1(y, &hit))
        own.slot = hit.slot;
    int refused = along ? shard_refusal(c->how, own.slot >= 0) : 0;
    if (along && refused == 0 && !own.remove)
        seal(y, c, &own.value);
    y->had_more_to_do = true;
    int err = shard_i_split(y, y->home, along && refused == 0 ? &own : NULL);
    if (err < 0 || refused < 0)
        return err < 0 ? err : refused;
    c->delta = own.remove ? -1 : own.slot < 0;
    return own.carried ? SHARD_DONE : SHARD_AGAIN;
}


/* The child is not there yet: split its parent. */
static int split_parent(shard_try *y, change *c) {
    uint64_t seen;
    y->spare->bucket = shard_parent(y->home->bucket, y->st->b, y->d);
    int err = shard_bucket_addr(y->t, y->st, y->part, y->spare->bucket, &y->spare->addr);
    if (err < 0 || (err = shard_i_lock(y, y->spare, &seen, NULL)) < 0)
        return err;
    if (err == 0)
        return wait_for(y, y->spare, seen);
    if (shard_header_v(y->spare->w[SHARD_I_H]) + 1 == y->d) {
        shard_image *child = y->home;
        y->home = y->spare;
        y->spare = child;
        return split_and_change(y, c);
    }
    err = shard_i_unlock(y, y->spare);
    return err < 0 ? err : shard_retry(y, true);
}


static int attempt(shard_try *y, change *c) {
    const shard_state *st = y->st;
    uint64_t seen;
    shard_attempt(y);
    if (shard_must_wait(y))
        return shard_wait_for_sweep(y);
    if (shard_must_call_off(y, c->how))
        return shard_call_off(y);
    y->home->bucket = y->bucket;
    int err = shard_bucket_addr(y->t, y->st, y->part, y->home->bucket, &y->home->addr);
    if (err < 0 || y->home->addr == 0)
        return err < 0 ? err : shard_retry(y, true);
    uint32_t mark = far_rdwc_mark(y->t);
    if ((err = shard_i_lock(y, y->home, &seen, NULL)) < 0)
        return err;
    if (err == 0 && (err = watch(y, c, mark)) != 0)
        return err < 0 ? err : SHARD_DONE;
    if (err == 0 && seen == 0 && y->phase == SHARD_GROW && shard_changes(y->h, st->p, st->b, y->d))
        return split_parent(y, c);
    if (err == 0)
        return wait_for(y, y->home, seen);

    unsigned v = shard_header_v(y->home->w[SHARD_I_H]);
    if (v + 1 == y->d && y->phase == SHARD_GROW)
        return split_and_change(y, c);
    if (v == y->d) {
        err = apply(y, c);
        if (err == SHARD_DONE || shard_is_lost(err))
            return err;
        int unlocked = shard_i_unlock(y, y->home);
        return unlocked < 0 ? unlocked : err;
    }
    err = shard_i_unlock(y, y->home);
    return err < 0 ? err : shard_retry(y, true);
}


static int write_key(far_task *t, far_index *index, change *c, far_bytes key) {
    shard_try y;
    int err = shard_begin(&y, t, index, key);
    if (err >= 0 && shard_i_too_wide(y.st, key))
        return far_fail(FAR_ERR_INVALID, "index '%s': with narrow=on a key is a number below 2^%u", index->name,
                        y.st->hash_bits);
    far_scratch_mark scratch = far_scratch_here(t);
    while (err == SHARD_AGAIN) {
        err = shard_believe_miss(&y, attempt(&y, c));
        far_scratch_back(t, scratch);
    }
    shard_unlatch(&y); /* the session was lost */
    if (err < 0)
        return err;
    far_rdwc_done(t, c->mark);
    if (c->delta)
        shard_after_change(&y, c->delta);
    return 0;
}


int shard_i_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value) {
    return write_key(t, index, &(change){.how = how, .value = value}, key);
}


int shard_i_remove(far_task *t, far_index *index, far_bytes key) {
    return write_key(t, index, &(change){.how = FAR_OP_DELETE}, key);
}
