/* lazy_resize=off, the paper's baseline: a doubling blocks the writes of its partition. Who begins one moves all buckets
 * before its insert returns, and other writes wait for that; gets do not. What lies at levels 2 and 3 is moved by the
 * same client, but nobody waits for it: that may need memory, and in a full pool deletes are the way out. */
#include "index/shard/shard.h"

enum {
    ALL_TRIPS = 1 << 20, /* a step of the work is not to end for its cost */
    IN_VAIN = 64,        /* steps in a row that could do nothing: others hold locks, or there is no memory */
    PATIENCE = 16,       /* looks at the root, after which who waits takes a step: who began it may be dead */
};


bool shard_must_wait(const shard_try *y) {
    return !y->st->lazy && y->phase == SHARD_GROW;
}


int shard_wait_for_sweep(shard_try *y) {
    int trips = ALL_TRIPS, err = 0;
    if (y->attempt % PATIENCE == PATIENCE - 1)
        err = shard_work(y->t, y->index, y->part, &trips);
    return shard_is_lost(err) ? err : shard_retry(y, true);
}


/* After the operation that began the doubling: nothing here makes it fail. */
void shard_finish_doubling(far_task *t, far_index *index, shard_partition *part) {
    for (unsigned vain = 0; vain < IN_VAIN;) {
        int trips = ALL_TRIPS, did;
        if (shard_root_phase(atomic_load_explicit(&part->root, memory_order_acquire)) == SHARD_STABLE ||
            shard_is_lost(did = shard_work(t, index, part, &trips)))
            return;
        if (did == 1) {
            vain = 0;
            continue;
        }
        far_back_off(t, vain++);
        if (shard_refresh(t, part) < 0)
            return;
    }
}
