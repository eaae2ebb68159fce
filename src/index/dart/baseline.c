/* The option lock_free=0 emulates a design with one lock per node, to measure the time that lock-free writes save. A
 * writer takes a lock word that belongs to the node, and releases the lock word after the write. The write is still
 * published by a CAS, so correctness does not depend on the lock, and the lock of a failed client can simply be taken
 * over. */
#include "index/dart/baseline.h"
#include "base/error.h"
#include "index/dart/write.h"
#include "pool/epoch/epoch.h"
#include "pool/format/owner.h"

#define CHECK_HOLDER_EVERY 4 /* number of attempts to take a lock between two checks whether the lock holder is alive */
/* Number of attempts to take a lock. If all of them fail, the whole write starts again (dart_write_run), because the
 * pin is renewed only there. */
#define ATTEMPTS       16u
#define LOCKS_PER_READ 512u /* lock words that are read by one READ, into an array of 4 KiB on the stack */


int dart_write_apply_locked(far_task *t, far_index *index, dart_write *w,
                            int (*apply_one)(far_task *t, far_index *index, dart_write *w)) {
    const dart_index *dart = dart_of(index);
    if (dart->lock_free || w->find.path.count == 0)
        return apply_one(t, index, w);
    const dart_find *f = &w->find;
    unsigned at = f->outcome == DART_DIVERGED ? f->diverged_step : f->path.count - 1;
    uint64_t old;
    far_addr lock = dart->locks + dart_granule(f->path.steps[at].node.addr) * 0x9e3779b1u % DART_LOCKS * 8;
    int err = far_lock_take(t, lock, ATTEMPTS, CHECK_HOLDER_EVERY);
    if (err <= 0)
        return err < 0 ? err : DART_WRITE_RESTART;
    int result = apply_one(t, index, w);
    err = far_cas_word(t, lock, far_owner_of_task(t), 0, &old);
    return err < 0 && (result >= 0 || err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE) ? err : result;
}


/* Reads the table of lock words, several words at a time, under a pin, and calls `each` for every lock word. Returns 0
 * or an error. */
static int visit_locks(far_task *t, far_addr locks, void *ctx,
                       int (*each)(far_task *t, void *ctx, far_addr first, const uint64_t *words)) {
    uint64_t words[LOCKS_PER_READ];
    int err = far_pin_take(t);
    for (unsigned first = 0; err >= 0 && first < DART_LOCKS; first += LOCKS_PER_READ) {
        far_read(t, locks + 8ull * first, words, sizeof(words));
        err = far_wait(t);
        if (err >= 0)
            err = each(t, ctx, locks + 8ull * first, words);
    }
    far_pin_drop(t);
    return err < 0 ? err : 0;
}


static int free_failed_locks(far_task *t, void *ctx, far_addr first, const uint64_t *words) {
    (void)ctx;
    return far_locks_release_failed(t, first, words, LOCKS_PER_READ);
}


int dart_locks_walk(far_task *t, far_index *index, far_walk *walk) {
    far_addr locks = dart_of(index)->locks;
    if (locks == 0)
        return 0;
    int err = far_walk_object(walk, index, DART_TYPE_LOCKS, locks, DART_LOCKS * 8);
    return err < 0 ? err : visit_locks(t, locks, NULL, free_failed_locks);
}


static int suspect_held_locks(far_task *t, void *ctx, far_addr first, const uint64_t *words) {
    (void)t;
    for (unsigned i = 0; i < LOCKS_PER_READ; i++)
        if (words[i])
            far_suspects_add(ctx, first + 8ull * i, words[i], words[i]);
    return 0;
}


int dart_locks_check(far_task *t, far_index *index, far_report *report) {
    far_addr locks = dart_of(index)->locks;
    far_suspects held = {0};
    int err = locks ? visit_locks(t, locks, &held, suspect_held_locks) : 0;
    return err < 0 ? err : far_suspects_check(t, &held, report);
}
