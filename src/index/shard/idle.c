/* Housekeeping of a handle: what it learns with every epoch, and how partitions into which nobody inserts grow and
 * shrink. */
#include "base/error.h"
#include "index/shard/shard.h"
#include "pool/clients.h"
#include "pool/epoch.h"

enum {
    IDLE_TRIPS = 20, /* of one call, about: the epoch stands still meanwhile */
    GROW_TRIPS = 8,
};


int shard_epoch_hook(far_task *t, far_index *index, uint64_t epoch) {
    shard_state *st = shard_state_of(index);
    uint64_t count = 1ull << st->p;
    (void)epoch;
    far_scratch_mark mark = far_scratch_here(t);
    uint64_t(*words)[SHARD_PCB_KNOWN] = far_scratch(t, count * sizeof(*words));
    if (!words)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for the roots of a shard index");
    for (uint64_t i = 0; i < count; i++)
        far_read(t, st->part[i].pcb, words[i], sizeof(words[i]));
    int err = far_wait(t);
    for (uint64_t i = 0; err >= 0 && i < count; i++) {
        shard_learn_partition(t, &st->part[i], words[i]);
        atomic_store_explicit(&st->part[i].count, (int64_t)words[i][SHARD_PCB_COUNT], memory_order_relaxed);
    }
    unsigned clients;
    if (err >= 0 && (err = far_clients_live(t, &clients)) >= 0)
        atomic_store_explicit(&st->clients, clients, memory_order_relaxed);
    far_scratch_back(t, mark);
    return err < 0 ? err : 0;
}


/* What was read when the index was opened may be of an epoch that was over when it was listed: the hooks of the next
 * one have not met it then. From now on they do. */
int shard_hear_now(far_task *t, far_index *index) {
    shard_state *st = shard_state_of(index);
    far_point(t, "shard:hear");
    int err = shard_epoch_hook(t, index, far_epoch(t));
    if (err >= 0)
        atomic_store_explicit(&st->has_heard, true, memory_order_release);
    return err;
}


/* A partition that is too full doubles although nobody inserts: its chains are what gets pay for. One that is empty
 * shrinks. 1: there is more to do. */
static int tend(far_task *t, far_index *index, shard_partition *part, int *trips) {
    uint64_t root = atomic_load_explicit(&part->root, memory_order_acquire);
    const shard_state *st = shard_state_of(index);
    uint32_t inserts = atomic_load_explicit(&part->inserts, memory_order_relaxed);
    if (atomic_exchange_explicit(&part->idle_seen, inserts, memory_order_relaxed) != inserts)
        return 0; /* not idle: the inserts do it */
    int err = 1;
    while (shard_root_doubles(root) && err == 1 && *trips > 0)
        err = shard_work(t, index, part, trips);
    if (shard_root_doubles(root))
        return err;
    if (shard_root_phase(root) == SHARD_SHRINK || !shard_is_due(st, part, shard_root_d(root) + 1))
        return shard_shrink(t, index, part, trips);
    if (!st->lazy)
        return 0; /* a doubling that blocks is begun by who does all of it: an insert */
    *trips -= GROW_TRIPS;
    return shard_grow_if_full(t, index, part);
}


/* Goes on where the last call has ended. */
int shard_idle_hook(far_task *t, far_index *index) {
    shard_state *st = shard_state_of(index);
    uint64_t count = 1ull << st->p;
    unsigned first = atomic_load_explicit(&st->idle_next, memory_order_relaxed);
    far_scratch_mark mark = far_scratch_here(t);
    int trips = IDLE_TRIPS, more = 0, err = shard_hear(t, index);
    if (err < 0)
        return err;
    err = shard_tell_all(t, index);
    far_scratch_back(t, mark);
    if (shard_is_lost(err))
        return err;
    for (uint64_t i = 0; st->idle_sweep && i < count; i++) {
        uint64_t number = (first + i) % count;
        err = tend(t, index, &st->part[number], &trips);
        if (shard_is_lost(err))
            return err;
        more |= err == 1;
        if (trips <= 0) {
            atomic_store_explicit(&st->idle_next, (unsigned)((number + 1) % count), memory_order_relaxed);
            return more;
        }
    }
    return more;
}
