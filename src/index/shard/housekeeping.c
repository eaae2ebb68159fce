/* Housekeeping of a handle: the READs at every epoch (shard_epoch_hook), and the growth and shrinking of partitions
 * that receive no inserts (shard_idle_hook). */
#include "base/error.h"
#include "index/shard/shard.h"
#include "pool/epoch/epoch.h"
#include "pool/format/clients.h"

enum {
    /* approximate round trips of one call; the epoch cannot advance meanwhile, because the call is pinned */
    IDLE_TRIPS = 20,
    GROW_TRIPS = 8,
};


int shard_epoch_hook(far_task *t, far_index *index, uint64_t epoch) {
    shard_state *st = shard_state_of(index);
    uint64_t count = 1ull << st->p;
    (void)epoch;
    far_scratch_mark mark = far_scratch_here(t);
    uint64_t(*words)[SHARD_PCB_READ_WORDS] = far_scratch(t, count * sizeof(*words));
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


/* Reads all roots once more after the index was opened. The roots that were read at open may belong to an epoch that
 * was already over when the index was added to the handle's list of indexes, so the epoch hook of the next epoch may
 * not have included this index. All later epoch hooks include it, so one more READ of the roots is enough. */
int shard_read_roots_again(far_task *t, far_index *index) {
    shard_state *st = shard_state_of(index);
    far_point(t, "shard:read_roots_again");
    int err = shard_epoch_hook(t, index, far_epoch(t));
    if (err >= 0)
        atomic_store_explicit(&st->has_read_roots, true, memory_order_release);
    return err;
}


/* Grows or shrinks one partition. A partition that is too full doubles even if no client inserts, because its long
 * chains make gets slow. An empty partition shrinks. Returns 1 if more work remains, 0 if not, or an error. */
static int tend_partition(far_task *t, far_index *index, shard_partition *part, int *trips) {
    uint64_t root = atomic_load_explicit(&part->root, memory_order_acquire);
    const shard_state *st = shard_state_of(index);
    uint32_t inserts = atomic_load_explicit(&part->inserts, memory_order_relaxed);
    if (atomic_exchange_explicit(&part->inserts_at_idle, inserts, memory_order_relaxed) != inserts)
        return 0; /* the partition receives inserts, and these inserts do the work */
    int err = 1;
    while (shard_root_doubles(root) && err == 1 && *trips > 0)
        err = shard_resize_step(t, index, part, trips);
    if (shard_root_doubles(root))
        return err;
    if (shard_root_phase(root) == SHARD_SHRINK || !shard_doubling_is_due(st, part, shard_root_d(root) + 1))
        return shard_shrink_step(t, index, part, trips);
    if (!st->lazy)
        /* With lazy_resize=off the client that begins a doubling must complete it, so only an insert may begin a
         * doubling. */
        return 0;
    *trips -= GROW_TRIPS;
    return shard_grow_if_full(t, index, part);
}


/* Called when the handle is idle. Each call begins with the partition after the partition at which the previous call
 * ended. */
int shard_idle_hook(far_task *t, far_index *index) {
    shard_state *st = shard_state_of(index);
    uint64_t count = 1ull << st->p;
    unsigned first = atomic_load_explicit(&st->idle_next, memory_order_relaxed);
    far_scratch_mark mark = far_scratch_here(t);
    int trips = IDLE_TRIPS, more = 0, err = shard_ensure_roots_read(t, index);
    if (err < 0)
        return err;
    err = shard_publish_counts(t, index);
    far_scratch_back(t, mark);
    if (shard_session_is_lost(err))
        return err;
    for (uint64_t i = 0; st->idle_sweep && i < count; i++) {
        uint64_t number = (first + i) % count;
        err = tend_partition(t, index, &st->part[number], &trips);
        if (shard_session_is_lost(err))
            return err;
        more |= err == 1;
        if (trips <= 0) {
            atomic_store_explicit(&st->idle_next, (unsigned)((number + 1) % count), memory_order_relaxed);
            return more;
        }
    }
    return more;
}
