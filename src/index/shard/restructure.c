/* The states of a partition. A doubling takes the steps STABLE(d-1) -> GROW(d) -> DRAIN(d) -> STABLE(d). A shrink takes
 * a partition from STABLE(d) to SHRINK(d), and from there back, or to STABLE(0) of another directory
 * (restructure_shrink.c). Each step is one CAS of the root word, which any client may do without holding a lock.
 *
 * In GROW the buckets are split, by the clients that write to them and by the sweep (restructure_chunks.c). In DRAIN
 * the keys at levels 2 and 3 of the previous generation are moved up (restructure_drain.c). load_factor.c decides when
 * a doubling is due. */
#include "base/error.h"
#include "index/shard/shard.h"
#include "pool/epoch/epoch.h"

enum { GRACE = 1 }; /* number of epochs that must follow the epoch of the stamp */


/* Returns true if every pinned client has read `root` or a later root word. The function compares the pins with the
 * stamp in the root word, and is correct for the following reason. A stamp is either the epoch that was read after the
 * root word became visible, or one more than the epoch of the pin under which the root word was changed. In both cases
 * the stamp is not earlier than the epoch at the moment of the change. Before a handle takes its first pin at a later
 * epoch, its epoch hook reads all roots (housekeeping.c). If an index was opened too late for that hook, its roots are
 * read before its first operation (shard_ensure_roots_read). Therefore every client that is pinned at a later epoch
 * than the stamp has read this root word or a later one. */
bool shard_all_clients_know(const far_task *t, uint64_t root) {
    return shard_root_stamped(root) && far_epoch_safe(t) >= shard_root_stamp(root) + GRACE;
}


bool shard_grace_is_over(const far_task *t, const shard_state *st, uint64_t root) {
    return st->grace && shard_all_clients_know(t, root);
}


int shard_cas_root(far_task *t, shard_partition *part, uint64_t from, uint64_t to) {
    uint64_t old;
    int err = far_cas_word(t, part->pcb + 8 * SHARD_PCB_ROOT, from, to, &old);
    if (err >= 0)
        shard_learn_root(part, old == from ? to : old);
    return err < 0 ? err : old == from;
}


/* Writes the current epoch into the root word as its stamp. The epoch is read after the root word became visible. Every
 * handle reads all roots before its first pin at a later epoch (see shard_all_clients_know), so a client that is pinned
 * at a later epoch has read this root word or a later one. Returns 0 or an error. */
int shard_set_stamp(far_task *t, shard_partition *part, uint64_t root) {
    uint64_t epoch;
    int err = far_epoch_read(t, &epoch);
    if (err < 0)
        return err;
    far_point(t, "shard:stamp");
    err = shard_cas_root(t, part, root, shard_root_next(root, shard_root_d(root), shard_root_phase(root), true, epoch));
    far_epoch_request(far_task_pool(t));
    return err;
}


/* Returns true if the next doubling may begin. An operation must not meet more than one doubling, because the parity
 * bit of a word distinguishes only two adjacent versions. Therefore all clients must have read the root word of the
 * previous doubling first. */
bool shard_may_grow(const far_task *t, const shard_state *st, uint64_t root) {
    unsigned d = shard_root_d(root) + 1;
    if (shard_root_phase(root) != SHARD_STABLE || d >= st->versions)
        return false;
    if (shard_all_clients_know(t, root) || shard_root_stamp(root) == 0)
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
    int err = shard_prepare_version(t, index, part, d);
    if (err <= 0)
        return err;
    far_point(t, "shard:grow");
    root = atomic_load_explicit(&part->root, memory_order_acquire);
    if (shard_root_d(root) + 1 != d || !shard_may_grow(t, st, root)) /* a shrink may have been announced meanwhile */
        return 0;
    uint64_t grow = shard_root_next(root, d, SHARD_GROW, false, shard_root_stamp(root));
    if ((err = shard_cas_root(t, part, root, grow)) <= 0)
        return err;
    shard_count_event(&st->counters.grows);
    err = shard_set_stamp(t, part, grow); /* another client may have set the stamp already */
    return err < 0 ? err : 1;
}


int shard_enter_next_phase(far_task *t, far_index *index, shard_partition *part, uint64_t root) {
    unsigned d = shard_root_d(root);
    bool drain = shard_root_phase(root) == SHARD_DRAIN;
    if (drain)
        far_point(t, "shard:to_stable");
    else
        far_point(t, "shard:to_drain");
    int err = shard_cas_root(
        t, part, root, shard_root_next(root, d, drain ? SHARD_STABLE : SHARD_DRAIN, true, shard_root_stamp(root)));
    if (err == 1 && drain) {
        far_point(t, "shard:drop_overflow_tables");
        err = shard_drop_overflow_tables(t, index, part, d - 1);
    }
    return err;
}
