/* lazy_resize=off, the paper's baseline: a doubling blocks the writes of its partition. The insert that begins a
 * doubling splits all buckets before it returns, and other writes wait for that. Gets do not wait. The same client
 * moves the keys at levels 2 and 3, but no operation waits for this part, because it may need memory, and in a full
 * pool deletes are the only way to free some. */
#include "index/shard/shard.h"
#include "pool/epoch/epoch.h"
#include "pool/format/clients.h"

enum {
    ALL_TRIPS = 1 << 20, /* so large that no step ends because it used too many round trips */
    /* consecutive steps that made no progress, because of locks or lack of memory, after which the client gives up */
    MAX_FAILED_STEPS = 64,
    /* number of times that a waiting write reads the root word before it checks whether the client that began the
     * doubling has failed */
    READS_BEFORE_TAKEOVER = 16,
};


/* Returns 1 if the client that began the doubling has probably failed, 0 if not, or an error. The claim word names the
 * client that prepared the doubling; in most cases this client also began the doubling. */
static int doubling_client_has_failed(shard_op *op) {
    uint64_t claim;
    int err = far_read_word(op->t, op->part->pcb + 8 * SHARD_PCB_CLAIM, &claim);
    if (err < 0 || shard_claim_version(claim) != op->d)
        return err;
    return far_client_confirm_failed_pinned(op->t, shard_claim_client(claim), FAR_ANY_GENERATION);
}


/* Makes a write wait until the buckets of its partition are split. If the client that began the doubling has failed,
 * the waiting write splits the remaining buckets itself. If that client seems to be alive, the waiting write takes one
 * step of the splitting nevertheless, because the claim word may name another client than the one that began the
 * doubling. */
int shard_wait_for_sweep(shard_op *op) {
    int trips = ALL_TRIPS, err = 0;
    if (op->attempt % READS_BEFORE_TAKEOVER == READS_BEFORE_TAKEOVER - 1) {
        shard_drop_block(op);
        if (!op->took_over && (err = doubling_client_has_failed(op)) == 1) {
            /* Take over only once in an operation: if the partition is corrupt, the doubling cannot be finished. The
             * progress detector reports that when a later pin is taken. */
            op->took_over = true;
            if ((err = shard_finish_doubling(op->t, op->index, op->part)) < 0)
                return err;
        } else if (err == 0)
            err = shard_resize_step(op->t, op->index, op->part, &trips);
    }
    return shard_session_is_lost(err) ? err : shard_retry(op, true);
}


/* Returns a bound on the steps of a doubling. Each step that makes progress splits at least one bucket or drains at
 * least one chain head. More steps mean that the same corrupt bucket is processed again and again. */
static uint64_t max_steps(const shard_state *st, const shard_partition *part) {
    uint64_t root = atomic_load_explicit(&part->root, memory_order_acquire);
    return MAX_FAILED_STEPS + (4ull << (st->b + shard_root_d(root)));
}


/* Completes a doubling. Called after the operation that began the doubling, or by an operation that waits for the
 * doubling. Errors of this work do not fail the operation. Every step has its own pin: under a single pin the epoch
 * could not advance, so no memory would be freed, the grace period would not end, and every bucket would have to be
 * frozen. Returns 1 when it has done all steps that were possible. An error means that no pin could be taken or that
 * the session is lost. */
int shard_finish_doubling(far_task *t, far_index *index, shard_partition *part) {
    uint64_t steps = max_steps(shard_state_of(index), part);
    /* Wait for the posted WRITEs while the operation still has its pin. One of them may free a lock in a segment that
     * is retired after the pin ends. */
    far_wait_for_posted(t);
    for (unsigned failed = 0; failed < MAX_FAILED_STEPS && steps > 0; steps--) {
        int trips = ALL_TRIPS, did, err;
        far_pin_drop(t);
        if ((err = far_pin_take(t)) < 0)
            return err;
        if (!shard_root_doubles(atomic_load_explicit(&part->root, memory_order_acquire)))
            return 1;
        if (shard_session_is_lost(did = shard_resize_step(t, index, part, &trips)))
            return did;
        if (did == 1) {
            failed = 0;
            continue;
        }
        far_back_off(t, failed++);
        if ((err = shard_refresh_root(t, part)) < 0)
            return err;
    }
    return 1;
}
