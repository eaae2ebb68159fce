/* Implements latches (latch.h) with a hash table by far address. A bucket lists the latches that are held, and each
 * latch has a queue of the tasks that wait for it. */
#include "task/latch.h"
#include "base/spin.h"
#include "task/session.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 1024

typedef struct bucket {
    _Alignas(64) far_spin lock;
    far_latch_hold *first; /* list of the latches in this bucket that tasks hold */
} bucket;

struct far_latches {
    bucket buckets[BUCKETS];
};


far_latches *far_latches_new(void) {
    far_latches *latches = aligned_alloc(64, sizeof(*latches));
    for (unsigned i = 0; latches && i < BUCKETS; i++) {
        atomic_init(&latches->buckets[i].lock, 0);
        latches->buckets[i].first = NULL;
    }
    return latches;
}


void far_latches_free(far_latches *latches) {
    for (unsigned i = 0; latches && i < BUCKETS; i++)
        assert(!latches->buckets[i].first);
    free(latches);
}


static bucket *bucket_for(const far_task *t, far_addr addr) {
    uint64_t mixed = (addr >> 3) * 0x9e3779b97f4a7c15ull;
    return &t->session->team->latches->buckets[mixed >> 54];
}

_Static_assert(BUCKETS == 1u << (64 - 54), "the top bits of the mixed address choose the bucket");


static far_latch_hold *find_unused_hold(far_task *t) {
    far_latch_hold *hold = t->latches;
    while (hold < t->latches + FAR_LATCHES_HELD_MAX && hold->addr)
        hold++;
    assert(hold < t->latches + FAR_LATCHES_HELD_MAX);
    return hold;
}


/* Returns the link that points to the holder of the latch, or to NULL if no task holds it. The lock of the bucket must
 * be held. */
static far_latch_hold **find_holder(bucket *b, far_addr addr) {
    far_latch_hold **link = &b->first;
    while (*link && (*link)->addr != addr)
        link = &(*link)->next;
    return link;
}


static void become_holder(bucket *b, far_latch_hold *hold) {
    hold->granted = true;
    hold->next = b->first;
    b->first = hold;
}


static void join_queue(far_latch_hold *holder, far_latch_hold *hold) {
    assert(holder->task != hold->task);
    if (holder->last_waiting)
        holder->last_waiting->next = hold;
    else
        holder->first_waiting = hold;
    holder->last_waiting = hold;
}


static bool take_latch(far_task *t, far_addr addr, bool wait) {
    bucket *b = bucket_for(t, addr);
    far_latch_hold *hold = find_unused_hold(t);
    far_spin_lock(&b->lock);
    far_latch_hold *holder = *find_holder(b, addr);
    bool taken = !holder || wait;
    if (taken) {
        *hold = (far_latch_hold){.addr = addr, .task = t};
        t->latched++;
    }
    if (!holder)
        become_holder(b, hold);
    else if (wait)
        join_queue(holder, hold);
    while (taken && !hold->granted) {
        far_spin_unlock(&b->lock);
        far_note_wait(t);
        far_task_await_other(t);
        far_note_wait_end(t);
        far_spin_lock(&b->lock);
    }
    far_spin_unlock(&b->lock);
    return taken;
}


void far_latch(far_task *t, far_addr addr) {
    take_latch(t, addr, true);
}


bool far_latch_try(far_task *t, far_addr addr) {
    return take_latch(t, addr, false);
}


far_task *far_latch_next(far_task *t, far_addr addr) {
    bucket *b = bucket_for(t, addr);
    far_spin_lock(&b->lock);
    const far_latch_hold *hold = *find_holder(b, addr);
    assert(hold && hold->task == t);
    far_task *next = hold->first_waiting ? hold->first_waiting->task : NULL;
    far_spin_unlock(&b->lock);
    return next;
}


unsigned far_latch_waiting(far_task *t, far_addr addr, unsigned most) {
    bucket *b = bucket_for(t, addr);
    unsigned count = 0;
    far_spin_lock(&b->lock);
    const far_latch_hold *hold = *find_holder(b, addr);
    assert(hold && hold->task == t);
    for (const far_latch_hold *w = hold->first_waiting; w && count < most; w = w->next)
        count++;
    far_spin_unlock(&b->lock);
    return count;
}


bool far_latch_take_handover(far_task *t, far_addr addr, uint64_t gift[FAR_HANDOVER_WORDS]) {
    bucket *b = bucket_for(t, addr);
    far_spin_lock(&b->lock);
    const far_latch_hold *hold = *find_holder(b, addr);
    assert(hold && hold->task == t);
    bool has_handover = hold->has_handover;
    memcpy(gift, hold->handover, sizeof(hold->handover));
    far_spin_unlock(&b->lock);
    return has_handover;
}


static void release_latch(far_task *t, far_addr addr, const uint64_t *gift) {
    bucket *b = bucket_for(t, addr);
    far_spin_lock(&b->lock);
    far_latch_hold **link = find_holder(b, addr), *hold = *link;
    assert(hold && hold->task == t);
    *link = hold->next;
    hold->addr = 0;
    t->latched--;
    far_latch_hold *next_holder = hold->first_waiting;
    assert(next_holder || !gift);
    if (next_holder) {
        next_holder->has_handover = gift != NULL;
        if (gift)
            memcpy(next_holder->handover, gift, sizeof(next_holder->handover));
        next_holder->first_waiting = next_holder->next;
        next_holder->last_waiting = next_holder->next ? hold->last_waiting : NULL;
        become_holder(b, next_holder);
        /* The wake-up is done while the bucket is locked. The woken task needs this lock to leave far_latch, so its
         * session cannot be freed before the wake-up is complete. */
        far_task_wake(next_holder->task);
    }
    far_spin_unlock(&b->lock);
}


void far_unlatch(far_task *t, far_addr addr) {
    release_latch(t, addr, NULL);
}


void far_unlatch_handover(far_task *t, far_addr addr, const uint64_t gift[FAR_HANDOVER_WORDS]) {
    release_latch(t, addr, gift);
}


void far_unlatch_all(far_task *t) {
    for (unsigned i = 0; t->latched && i < FAR_LATCHES_HELD_MAX; i++)
        if (t->latches[i].addr) {
            assert(!"a task ended while it held a latch");
            far_unlatch(t, t->latches[i].addr);
        }
}
