/* The states of a partition: STABLE(d-1) -> GROW(d) -> DRAIN(d) -> STABLE(d), and from there to SHRINK(d) and back, or
 * to STABLE(0) of another body (shrink.c). Each arrow is one CAS on the root word, by anybody; nobody holds a lock.
 * GROW: buckets are split, by whoever writes to one and by the sweep (sweep.c). DRAIN: what lies at levels 2 and 3 of
 * the generation before goes up (drain.c). When a doubling is due: load.c. */
#include "base/error.h"
#include "index/shard/shard.h"
#include "pool/epoch.h"

enum { GRACE = 1 }; /* epochs after that of the stamp */


/* A stamp is the epoch, read after the root was visible, or one more than that of the pin under which the root is
 * changed: never before the epoch at that moment. A handle takes its first pin at a later epoch after its hook has read
 * all roots at that epoch (idle.c); and an index that was listed after that reads them once more (shard_hear). So
 * whoever is pinned later than the stamp knows of the root, or of a later one. */
bool shard_all_know(const far_task *t, uint64_t root) {
    return shard_root_stamped(root) && far_epoch_safe(t) >= shard_root_stamp(root) + GRACE;
}


bool shard_is_graced(const far_task *t, const shard_state *st, uint64_t root) {
    return st->grace && shard_all_know(t, root);
}


int shard_move_root(far_task *t, shard_partition *part, uint64_t from, uint64_t to) {
    uint64_t old;
    int err = far_cas_word(t, part->pcb + 8 * SHARD_PCB_ROOT, from, to, &old);
    if (err >= 0)
        shard_learn_root(part, old == from ? to : old);
    return err < 0 ? err : old == from;
}


/* The epoch is read after the doubling, or shrink, is visible: whoever pins later than that, knows of it. */
int shard_set_stamp(far_task *t, shard_partition *part, uint64_t root) {
    uint64_t epoch;
    int err = far_epoch_read(t, &epoch);
    if (err < 0)
        return err;
    far_point(t, "shard:stamp");
    err =
        shard_move_root(t, part, root, shard_root_next(root, shard_root_d(root), shard_root_phase(root), true, epoch));
    far_epoch_request(far_task_pool(t));
    return err;
}


static bool may_double(const shard_state *st, unsigned d) {
    if (st->inlined)
        return d < SHARD_VERSIONS && st->p + st->b + d < st->hash_bits;
    return d < SHARD_VERSIONS && shard_tag_low(st->p, st->b, d) + SHARD_TAG_BITS <= 64;
}


/* Whether the next doubling may begin. An operation sees one of them at most: everybody must know of the last one. */
bool shard_may_grow(const far_task *t, const shard_state *st, uint64_t root) {
    unsigned d = shard_root_d(root) + 1;
    if (shard_root_phase(root) != SHARD_STABLE || !may_double(st, d))
        return false;
    if (shard_all_know(t, root) || shard_root_stamp(root) == 0)
        return true;
    far_epoch_request(far_task_pool(t));
    return false;
}


int shard_try_grow(far_task *t, far_index *index, shard_partition *part) {
    shard_state *st = shard_state_of(index);
    uint64_t root = atomic_load_explicit(&part->root, memory_order_acquire);
    unsigned d = shard_root_d(root) + 1;
    if (!shard_may_grow(t, st, root))
        return 0;
    int err = shard_make_segment(t, index, part, d);
    if (err <= 0)
        return err;
    far_point(t, "shard:grow");
    root = atomic_load_explicit(&part->root, memory_order_acquire);
    if (shard_root_d(root) + 1 != d || !shard_may_grow(t, st, root)) /* it may have been about to shrink meanwhile */
        return 0;
    uint64_t grow = shard_root_next(root, d, SHARD_GROW, false, shard_root_stamp(root));
    if ((err = shard_move_root(t, part, root, grow)) <= 0)
        return err;
    shard_count(&st->counters.grows);
    err = shard_set_stamp(t, part, grow); /* another one may have been faster with it */
    return err < 0 ? err : 1;
}


/* All chunks of the phase are done. */
int shard_next_phase(far_task *t, far_index *index, shard_partition *part, uint64_t root) {
    unsigned d = shard_root_d(root);
    bool drain = shard_root_phase(root) == SHARD_DRAIN;
    if (drain)
        far_point(t, "shard:to_stable");
    else
        far_point(t, "shard:to_drain");
    int err = shard_move_root(
        t, part, root, shard_root_next(root, d, drain ? SHARD_STABLE : SHARD_DRAIN, true, shard_root_stamp(root)));
    if (err == 1 && drain) {
        far_point(t, "shard:drop");
        err = shard_drop_overflow(t, index, part, d - 1);
    }
    return err;
}
