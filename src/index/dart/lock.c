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


/* Shows all lock words, some at a time, with a pin. */
static int each_locks(far_task *t, far_addr locks, void *ctx,
                      int (*each)(far_task *t, void *ctx, far_addr first, const uint64_t *words)) {
    uint64_t words[AT_ONCE];
    int err = far_pin_take(t);
    for (unsigned first = 0; err >= 0 && first < DART_LOCKS; first += AT_ONCE) {
        far_read(t, locks + 8ull * first, words, sizeof(words));
        err = far_wait(t);
        if (err >= 0)
            err = each(t, ctx, locks + 8ull * first, words);
    }
    far_pin_drop(t);
    return err < 0 ? err : 0;
}


static int free_dead(far_task *t, void *ctx, far_addr first, const uint64_t *words) {
    (void)ctx;
    return far_locks_free_dead(t, first, words, AT_ONCE);
}


int dart_locks_walk(far_task *t, far_index *index, far_walk *walk) {
    far_addr locks = dart_of(index)->locks;
    if (locks == 0)
        return 0;
    int err = far_walk_object(walk, index, DART_TYPE_LOCKS, locks, DART_LOCKS * 8);
    return err < 0 ? err : each_locks(t, locks, NULL, free_dead);
}


static int suspect_held(far_task *t, void *ctx, far_addr first, const uint64_t *words) {
    (void)t;
    for (unsigned i = 0; i < AT_ONCE; i++)
        if (words[i])
            far_suspect(ctx, first + 8ull * i, words[i], words[i]);
    return 0;
}


int dart_locks_check(far_task *t, far_index *index, far_report *report) {
    far_addr locks = dart_of(index)->locks;
    far_suspects held = {0};
    int err = locks ? each_locks(t, locks, &held, suspect_held) : 0;
    return err < 0 ? err : far_suspects_check(t, &held, report);
}
