/* lazy_resize=off, the paper's baseline: a doubling blocks the writes of its partition. Who begins one moves all
 * buckets before its insert returns, and other writes wait for that; gets do not. What lies at levels 2 and 3 is moved
 * by the same client, but nobody waits for it: that may need memory, and in a full pool deletes are the way out. */
#include "index/shard/shard.h"
#include "pool/clients.h"
#include "pool/epoch.h"

enum {
    ALL_TRIPS = 1 << 20, /* a step of the work is not to end for its cost */
    IN_VAIN = 64,        /* steps in a row that could do nothing: others hold locks, or there is no memory */
    PATIENCE = 16,       /* looks at the root; then a write that waits asks whether the client that began it is dead */
};


/* The claim says who prepared the doubling: most often it is he who began it. */
static int is_left_alone(shard_try *y) {
    uint64_t claim;
    int err = far_read_word(y->t, y->part->pcb + 8 * SHARD_PCB_CLAIM, &claim);
    if (err < 0 || shard_claim_version(claim) != y->d)
        return err;
    return far_is_dead_pinned(y->t, shard_claim_client(claim), FAR_ANY_GENERATION);
}


/* Who finds that nobody moves the buckets does it. A step is taken in any case: the claim may be of somebody else. */
int shard_wait_for_sweep(shard_try *y) {
    int trips = ALL_TRIPS, err = 0;
    if (y->attempt % PATIENCE == PATIENCE - 1) {
        shard_drop_block(y);
        if (!y->took_over && (err = is_left_alone(y)) == 1) {
            y->took_over = true; /* once: what it cannot bring to its end may be broken, which a refused pin tells */
            if ((err = shard_finish_doubling(y->t, y->index, y->part)) < 0)
                return err;
        } else if (err == 0)
            err = shard_work(y->t, y->index, y->part, &trips);
    }
    return shard_is_lost(err) ? err : shard_retry(y, true);
}


/* Each step that did something moved a bucket at least, or a head of level 3: more say that it is done again and
 * again, of a bucket that is broken. */
static uint64_t most_steps(const shard_state *st, const shard_partition *part) {
    uint64_t root = atomic_load_explicit(&part->root, memory_order_acquire);
    return IN_VAIN + (4ull << (st->b + shard_root_d(root)));
}


/* After the operation that began the doubling, or of one that waits for it: what is in the way of the work makes
 * neither fail. Every step has a pin of its own. Under one pin the epoch would stand still: no memory would come back,
 * and nobody could know that the others know of the doubling, so that each bucket would have to be frozen. 1: it has
 * done what it could; an error: there is no pin, or no session. */
int shard_finish_doubling(far_task *t, far_index *index, shard_partition *part) {
    uint64_t steps = most_steps(shard_state_of(index), part);
    far_wait_for_posted(
        t); /* under the pin of the operation: the segment that a lock is freed in may go when it ends */
    for (unsigned vain = 0; vain < IN_VAIN && steps > 0; steps--) {
        int trips = ALL_TRIPS, did, err;
        far_pin_drop(t);
        if ((err = far_pin_take(t)) < 0)
            return err;
        if (!shard_root_doubles(atomic_load_explicit(&part->root, memory_order_acquire)))
            return 1;
        if (shard_is_lost(did = shard_work(t, index, part, &trips)))
            return did;
        if (did == 1) {
            vain = 0;
            continue;
        }
        far_back_off(t, vain++);
        if ((err = shard_refresh(t, part)) < 0)
            return err;
    }
    return 1;
}
