/* lock_free=0 emulates a design with a lock per node, to measure what its absence saves: writers take a lock word that
 * belongs to the node, and give it back. What is written is still published by CAS, so nothing rests on the lock, and
 * that of a dead client is simply taken over. */
#include "index/dart/lock.h"
#include "index/dart/write.h"
#include "pool/clients.h"
#include "pool/epoch.h"
#include "runtime/error.h"

#define ASK_EVERY 4    /* attempts between two looks at the holder */
#define AT_ONCE   512u /* lock words read together */


static uint64_t lock_word(far_task *t) {
    return (uint64_t)far_task_client(t) | (uint64_t)far_task_generation(t) << 14 | (uint64_t)far_task_number(t) << 30 |
           1ull << 63;
}


static int holder_is_dead(far_task *t, uint64_t word) {
    return far_is_dead(t, (unsigned)word & 0x3fff, (unsigned)(word >> 14) & 0xffff);
}


static int take_lock(far_task *t, far_addr addr, uint64_t mine) {
    uint64_t expected = 0, old;
    for (unsigned attempt = 0;; attempt++) {
        int err = far_cas_word(t, addr, expected, mine, &old);
        if (err < 0 || old == expected)
            return err;
        expected = 0;
        far_count_retry(t);
        if (old && attempt % ASK_EVERY == ASK_EVERY - 1) {
            int dead = holder_is_dead(t, old);
            if (dead < 0)
                return dead;
            if (dead) {
                expected = old;
                continue;
            }
        }
        far_back_off(t, attempt);
    }
}


int dart_write_locked(far_task *t, far_index *index, dart_write *w,
                      int (*apply_one)(far_task *t, far_index *index, dart_write *w)) {
    const dart_index *dart = dart_of(index);
    if (dart->lock_free || w->find.path.count == 0)
        return apply_one(t, index, w);
    const dart_find *f = &w->find;
    unsigned at = f->outcome == DART_DIVERGED ? f->at : f->path.count - 1;
    uint64_t mine = lock_word(t), old;
    far_addr lock = dart->locks + dart_granule(f->path.steps[at].node.addr) * 0x9e3779b1u % DART_LOCKS * 8;
    int err = take_lock(t, lock, mine);
    if (err < 0)
        return err;
    int result = apply_one(t, index, w);
    err = far_cas_word(t, lock, mine, 0, &old);
    return err < 0 && (result >= 0 || err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE) ? err : result;
}


int dart_locks_walk(far_task *t, far_index *index, far_walk *walk) {
    far_addr locks = dart_of(index)->locks;
    uint64_t words[AT_ONCE], old;
    if (locks == 0)
        return 0;
    int err = far_walk_object(walk, index, DART_TYPE_LOCKS, locks, DART_LOCKS * 8);
    if (err >= 0)
        err = far_pin_take(t);
    for (unsigned first = 0; err >= 0 && first < DART_LOCKS; first += AT_ONCE) {
        far_read(t, locks + 8ull * first, words, sizeof(words));
        err = far_wait(t);
        for (unsigned i = 0; err >= 0 && i < AT_ONCE; i++)
            if (words[i] && (err = holder_is_dead(t, words[i])) > 0)
                err = far_cas_word(t, locks + 8ull * (first + i), words[i], 0, &old);
    }
    far_pin_drop(t);
    return err < 0 ? err : 0;
}
