/* Plain locks in far memory, taken over from dead holders; and words that name somebody who is not there. */
#include "pool/owner.h"
#include "pool/blocker.h"
#include "pool/epoch.h"
#include "pool/handle.h"
#include "pool/report.h"
#include "task/patience.h"

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
            int dead = far_holder_is_dead(t, old);
            if (dead < 0)
                return dead;
            expected = dead ? old : 0;
        }
        if (old && !expected)
            far_back_off(t, attempt);
    }
    return 0;
}


int far_locks_free_dead(far_task *t, far_addr first, const uint64_t *words, unsigned count) {
    uint64_t old;
    int err = 0;
    for (unsigned i = 0; err >= 0 && i < count; i++)
        if (words[i] && (err = far_owner_is_dead(t, words[i])) > 0)
            err = far_cas_word(t, first + 8ull * i, words[i], 0, &old);
    return err < 0 ? err : 0;
}


enum { LOOKS = 8 }; /* after each wait */

static int wait_epochs(far_task *t) {
    int late = far_wait_epochs_until(t, 2, far_now(t) + FAR_BLOCKED_TICKS * far_tick(far_task_fabric(t)));
    return late <= 0 ? late : far_blocked(t, "a check of locks");
}


/* The first look comes at once: what somebody works at has changed by then, most of the time. A client that takes a lock
 * again and again, and changes nothing, looks as if it held it all the time at some looks, but not at every one of many. */
int far_is_stuck(far_task *t, unsigned id, unsigned generation, int (*look)(far_task *t, void *arg), void *arg) {
    assert(t->pin.epoch == 0);
    int dead = id == 0 ? 0 : far_is_dead(t, id, generation), same = 1;
    if (dead != 0)
        return dead < 0 ? dead : 0; /* whoever comes takes over */
    for (unsigned i = 0; i <= FAR_PATIENCE_TIMES && same == 1; i++) {
        far_scratch_mark here = far_scratch_here(t);
        int err = i > 0 ? wait_epochs(t) : 0;
        if (err < 0 || (err = far_pin_take(t)) < 0)
            return err;
        for (unsigned n = 0; n < LOOKS && same == 1; n++) {
            if (n)
                far_back_off(t, 0);
            same = look(t, arg);
            far_scratch_back(t, here);
        }
        far_pin_drop(t);
    }
    if (same == 1 && id != 0 && (dead = far_is_dead(t, id, generation)) != 0)
        return dead < 0 ? dead : 0; /* the owner was at work, and died */
    return same;
}


void far_suspect(far_suspects *all, far_addr at, uint64_t word, uint64_t owner) {
    assert(all->count + all->found <= FAR_SUSPECTS_MAX);
    if (all->count + all->found == FAR_SUSPECTS_MAX)
        return;
    all->list[all->count].at = at;
    all->list[all->count].word = word;
    all->list[all->count++].owner = owner;
}


typedef struct seen {
    far_addr at;
    uint64_t word;
} seen;


static int is_unchanged(far_task *t, void *arg) {
    const seen *before = arg;
    uint64_t now;
    far_read(t, before->at, &now, 8);
    far_mark(t, FAR_VERB_UNPROVEN); /* what it is the lock of may be gone by now */
    int err = far_wait(t);
    return err < 0 ? err : now == before->word;
}


int far_suspects_check(far_task *t, far_suspects *all, far_report *report) {
    int err = 0;
    for (; all->count > 0 && err >= 0; all->count--) {
        uint64_t owner = all->list[all->count - 1].owner;
        seen before = {all->list[all->count - 1].at, all->list[all->count - 1].word};
        err = far_is_stuck(t, far_owner_client(owner), far_owner_generation(owner), is_unchanged, &before);
        if (err <= 0)
            continue;
        all->found++;
        far_report_problem(report, "the lock at %#llx is held, and nobody alive holds it",
                           (unsigned long long)before.at);
    }
    return err < 0 ? err : 0;
}
