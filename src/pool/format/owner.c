/* Plain locks in far memory, which a client takes over from a failed holder, and the detection of locks and marks that
 * no running operation works on (owner.h). */
#include "pool/format/owner.h"
#include "pool/epoch/epoch.h"
#include "pool/epoch/stalled.h"
#include "pool/handle.h"
#include "pool/report.h"
#include "task/progress.h"

#include <assert.h>


int far_lock_take(far_task *t, far_addr lock, unsigned attempts, unsigned ask_every) {
    uint64_t mine = far_owner_of_task(t), expected = 0, old;
    for (unsigned attempt = 0; attempt < attempts; attempt++) {
        int err = far_cas_word(t, lock, expected, mine, &old);
        if (err < 0 || old == expected)
            return err < 0 ? err : 1;
        far_count_lock_retry(t);
        expected = 0;
        if (old && ask_every && attempt % ask_every == ask_every - 1) {
            int dead = far_holder_confirm_failed(t, old);
            if (dead < 0)
                return dead;
            expected = dead ? old : 0;
        }
        if (old && !expected)
            far_back_off(t, attempt);
    }
    return 0;
}


int far_locks_release_failed(far_task *t, far_addr first, const uint64_t *words, unsigned count) {
    uint64_t old;
    int err = 0;
    for (unsigned i = 0; err >= 0 && i < count; i++)
        if (words[i] && (err = far_owner_confirm_failed(t, words[i])) > 0)
            err = far_cas_word(t, first + 8ull * i, words[i], 0, &old);
    return err < 0 ? err : 0;
}


enum { READS_PER_WAIT = 8 }; /* number of calls of `look` after each wait */

/* Waits for each epoch separately, because the waiting time of a check begins again with each epoch. */
static int wait_two_epochs(far_task *t) {
    int late = 0;
    for (unsigned i = 0; i <= 2 && late == 0; i++)
        late = far_wait_epochs_until(t, 0, far_stall_deadline(t));
    return late <= 0 ? late : far_fail_stalled(t, "the check of locks");
}


/* Decides whether a lock or mark is abandoned; owner.h describes the result. The first call of `look` is made without
 * waiting, because in most cases the word has changed by then. Each wait is followed by several calls. The reason is a
 * client that acquires and releases a lock repeatedly and changes nothing else. Such a client may hold the lock at some
 * of these moments, but hardly at all of them. */
int far_confirm_abandoned(far_task *t, unsigned id, unsigned generation, int (*look)(far_task *t, void *arg),
                          void *arg) {
    assert(t->pin.epoch == 0);
    int dead = id == 0 ? 0 : far_client_confirm_failed(t, id, generation), same = 1;
    if (dead != 0)
        /* the owner failed, so the lock does not count as abandoned, because the next client that needs the lock takes
         * it over from the failed owner */
        return dead < 0 ? dead : 0;
    for (unsigned i = 0; i <= FAR_PROGRESS_PERIODS && same == 1; i++) {
        far_scratch_mark here = far_scratch_here(t);
        int err = i > 0 ? wait_two_epochs(t) : 0;
        if (err < 0 || (err = far_pin_take(t)) < 0)
            return err;
        for (unsigned n = 0; n < READS_PER_WAIT && same == 1; n++) {
            if (n)
                far_back_off(t, 0);
            same = look(t, arg);
            far_scratch_back(t, here);
        }
        far_pin_drop(t);
    }
    if (same == 1 && id != 0 && (dead = far_client_confirm_failed(t, id, generation)) != 0)
        return dead < 0 ? dead : 0; /* the owner was at work on the lock or mark and has failed in the meantime */
    return same;
}


void far_suspects_add(far_suspects *all, far_addr at, uint64_t word, uint64_t owner) {
    assert(all->count + all->found <= FAR_SUSPECTS_MAX);
    if (all->count + all->found == FAR_SUSPECTS_MAX)
        return;
    all->list[all->count].at = at;
    all->list[all->count].word = word;
    all->list[all->count++].owner = owner;
}


typedef struct lock_sighting {
    far_addr at;
    uint64_t word;
} lock_sighting;


static int check_lock_unchanged(far_task *t, void *arg) {
    const lock_sighting *before = arg;
    uint64_t now;
    far_read(t, before->at, &now, 8);
    /* the verb is marked as unproven, because the object that contains the lock may have been freed in the meantime */
    far_mark(t, FAR_VERB_UNPROVEN);
    int err = far_wait(t);
    return err < 0 ? err : now == before->word;
}


int far_suspects_check(far_task *t, far_suspects *all, far_report *report) {
    int err = 0;
    for (; all->count > 0 && err >= 0; all->count--) {
        uint64_t owner = all->list[all->count - 1].owner;
        lock_sighting before = {all->list[all->count - 1].at, all->list[all->count - 1].word};
        err = far_confirm_abandoned(t, far_owner_client(owner), far_owner_generation(owner), check_lock_unchanged,
                                    &before);
        if (err <= 0)
            continue;
        all->found++;
        far_report_problem(report, "the lock at %#llx is held, but no running operation holds it",
                           (unsigned long long)before.at);
    }
    return err < 0 ? err : 0;
}
