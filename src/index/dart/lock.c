/* lock_free=0 emulates a design with a lock per node, to measure what its absence saves: writers take a lock word that
 * belongs to the node, and give it back. What is written is still published by CAS, so nothing rests on the lock, and
 * that of a dead client is simply taken over. */
#include "index/dart/lock.h"
#include "base/error.h"
#include "index/dart/write.h"
#include "pool/epoch.h"
#include "pool/owner.h"

#define ASK_EVERY 4    /* attempts between two looks at the holder */
#define ATTEMPTS  16u  /* at a lock; then the search begins anew, and takes a new pin now and then */
#define AT_ONCE   512u /* lock words read together */


int dart_write_locked(far_task *t, far_index *index, dart_write *w,
                      int (*apply_one)(far_task *t, far_index *index, dart_write *w)) {
    const dart_index *dart = dart_of(index);
    if (dart->lock_free || w->find.path.count == 0)
        return apply_one(t, index, w);
    const dart_find *f = &w->find;
    unsigned at = f->outcome == DART_DIVERGED ? f->at : f->path.count - 1;
    uint64_t old;
    far_addr lock = dart->locks + dart_granule(f->path.steps[at].node.addr) * 0x9e3779b1u % DART_LOCKS * 8;
    int err = far_lock_take(t, lock, ATTEMPTS, ASK_EVERY);
    if (err <= 0)
        return err < 0 ? err : DART_WRITE_AGAIN;
    int result = apply_one(t, index, w);
    err = far_cas_word(t, lock, far_owner_of_task(t), 0, &old);
    return err < 0 && (result >= 0 || err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE) ? err : result;
}


int dart_locks_walk(far_task *t, far_index *index, far_walk *walk) {
    far_addr locks = dart_of(index)->locks;
    uint64_t words[AT_ONCE];
    if (locks == 0)
        return 0;
    int err = far_walk_object(walk, index, DART_TYPE_LOCKS, locks, DART_LOCKS * 8);
    if (err >= 0)
        err = far_pin_take(t);
    for (unsigned first = 0; err >= 0 && first < DART_LOCKS; first += AT_ONCE) {
        far_read(t, locks + 8ull * first, words, sizeof(words));
        err = far_wait(t);
        if (err >= 0)
            err = far_locks_free_dead(t, locks + 8ull * first, words, AT_ONCE);
    }
    far_pin_drop(t);
    return err < 0 ? err : 0;
}
