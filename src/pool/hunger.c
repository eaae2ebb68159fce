/* Operations that found no memory. FAR_ERR_NO_MEMORY is reported when nothing is left that will come back: until then
 * they wait, in line, over all sessions of the handle.
 *
 * The first in line goes round by round. A round: the epoch moves until all that is retired is past its time; every
 * other session gives to the pool all that it holds free (far_memory_leave_blocks), and the first looks again. While
 * somebody stands in line all others live from the objects that they hold: they neither cut slabs nor take blocks, and
 * stand in line themselves when they have none left. So what they hold beside live data only falls (deletes apart,
 * which make room), and the rounds come to an end: with memory, or when a round moved nothing, or when an attempt
 * failed that began with nothing held back (what it gave back itself, as a creation that fails does, is no reason to go
 * on).
 *
 * What a sweep covers is waited for too. When nothing else is left and sessions have died since the last full sweep,
 * the first in line makes one: what the dead had unlinked in blocks of others comes back. Nothing is waited for without
 * end: a pin, a sweep or an announcement may be that of a process which was stopped. Other handles are asked too:
 * announce.c. */
#include "pool/hunger.h"
#include "pool/sweep.h"

#define ROUNDS_MAX  64    /* whatever moves */
#define ASK_EPOCHS  4     /* so long a session that does not answer is waited for in any case ... */
#define ASK_TICKS   1000  /* ... and so long the first time: its thread, inside a call, does not get to run */
#define STUCK_TICKS 1000  /* how long the epoch is waited for while it does not move */
#define SWEEP_TICKS 10000 /* how long the end of a sweep is waited for: one whose owner died is finished by others */


bool far_may_take(far_task *t) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    uint64_t served = atomic_load_explicit(&q->served, memory_order_relaxed);
    bool heeds = served == 0 || !atomic_load_explicit(&q->heedless, memory_order_relaxed);
    if ((served == 0 || served == t->ticket) && (!heeds || !far_is_announced(far_task_pool(t))))
        return true;
    t->barred = true;
    return false;
}


void far_memory_moved(far_task *t) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    atomic_fetch_add_explicit(&q->moved, 1, memory_order_relaxed);
    t->moves++;
}


uint64_t far_memory_moved_by_others(far_task *t) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    return atomic_load_explicit(&q->moved, memory_order_relaxed) - t->moves;
}


bool far_memory_is_wanted(far_memory *m) {
    far_quarantine *q = m->session->pool->quarantine;
    pthread_mutex_lock(&q->lock);
    const far_hunger *first = q->hungry;
    bool wanted = first != NULL && first->task->session != m->session;
    pthread_mutex_unlock(&q->lock);
    return wanted || far_is_announced(m->session->pool);
}


/* The line. */

static void get_in_line(far_task *t, far_hunger *h) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    pthread_mutex_lock(&q->lock);
    *h = (far_hunger){.task = t, .ticket = ++q->tickets};
    far_hunger **last = &q->hungry;
    while (*last != NULL)
        last = &(*last)->next;
    *last = h;
    if (q->hungry == h)
        atomic_store_explicit(&q->served, h->ticket, memory_order_relaxed);
    pthread_mutex_unlock(&q->lock);
    t->ticket = h->ticket;
}


static void leave_line(far_task *t, far_hunger *h) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    t->ticket = 0;
    pthread_mutex_lock(&q->lock);
    far_hunger **at = &q->hungry;
    while (*at != h)
        at = &(*at)->next;
    *at = h->next;
    if (at == &q->hungry) {
        atomic_store_explicit(&q->heedless, false, memory_order_relaxed);
        atomic_store_explicit(&q->served, *at == NULL ? 0 : (*at)->ticket, memory_order_relaxed);
    }
    if (at == &q->hungry && *at != NULL)
        far_task_wake((*at)->task);
    pthread_mutex_unlock(&q->lock);
}


/* Its thread is inside the session: what others want of it, it must do itself meanwhile. */
int far_hunger_tick(far_task *t) {
    far_pool *pool = far_task_pool(t);
    uint64_t epoch;
    int err = far_epoch_read(t, &epoch); /* a session that was declared dead finds out */
    if (err == 0 && far_memory_is_asked(far_memory_of(t)))
        err = far_memory_tick(t);
    if (err == FAR_ERR_NO_MEMORY)
        err = 0;
    if (err == 0 && far_pool_is_unattended(pool)) {
        far_pool_tend(pool);
        err = far_epoch_tick(t);
    }
    if (err >= 0)
        far_task_block_until(t, far_now(t) + far_housekeeping_tick(pool));
    return err < 0 ? err : 0;
}


static int wait_for_turn(far_task *t, far_hunger *h) {
    far_pool *pool = far_task_pool(t);
    far_quarantine *q = pool->quarantine;
    int err = 0;
    while (err == 0 && (atomic_load_explicit(&q->served, memory_order_relaxed) != h->ticket || far_must_heed(t, h))) {
        far_epoch_request(pool); /* announcements grow old */
        err = far_hunger_tick(t);
    }
    return err < 0 ? err : 1;
}


/* What will come back. */

/* With the lock. Or it may have: objects that others gave back in its blocks it must look for. */
static bool has_room(const far_memory *m) {
    const far_quarantine *q = m->session->pool->quarantine;
    bool room =
        m->free_bytes > 0 || (m->blocks != NULL && m->looked != atomic_load_explicit(&q->given, memory_order_relaxed));
    for (const far_held *b = m->blocks; b != NULL && !room; b = b->next)
        room = !b->away && b->free_pages != 0;
    return room;
}


/* With the lock: the epoch at which all that it holds back is free; 0: nothing. Who frees some of it just now is
 * pinned.
 */
static uint64_t all_ready(far_memory *m, uint64_t epoch) {
    uint64_t ready = m->retired_bytes > 0 || m->reclaiming || far_drops_wait(m) ? epoch + FAR_RETIRE_EPOCHS + 1 : 0;
    for (size_t i = 0; i < m->late.count; i++) {
        uint64_t item = m->late.items[(m->late.first + i) % m->late.capacity].ready;
        ready = item > ready ? item : ready;
    }
    return ready;
}


/* Until every pin of anybody is k epochs later, as long as the epoch moves. 1: in vain. Who is first in line only. */
static int pass_epochs(far_task *t, unsigned k) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    uint64_t tick = far_housekeeping_tick(far_task_pool(t)), epoch;
    int err = far_epoch_read(t, &epoch);
    for (unsigned i = 0; i <= k && err == 0; i++) {
        bool stuck = q->stuck == far_epoch_known(t); /* that was waited for already */
        err = far_wait_epochs_until(t, 0, far_now(t) + (stuck ? 1 : STUCK_TICKS) * tick);
        if (err == 1)
            q->stuck = far_epoch_known(t);
    }
    return err;
}


/* 1: a sweep keeps blocks from everybody, or has only just let go of them. *word: which, and how far it is. */
static int is_swept(far_task *t, uint64_t *word) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    int err = far_read_word(t, far_addr_make(0, FAR_SUPER_SWEEP), word);
    if (err < 0)
        return err;
    return *word != q->slow_sweep && (far_sweep_owner(*word) != 0 || far_sweep_phase_of(*word) != FAR_SWEEP_NONE ||
                                      atomic_load_explicit(&q->blocks, memory_order_relaxed) > 0);
}


static int pass_sweep(far_task *t) {
    far_pool *pool = far_task_pool(t);
    far_quarantine *q = pool->quarantine;
    uint64_t until = far_now(t) + SWEEP_TICKS * far_housekeeping_tick(pool), word = 0;
    int err = 0, on = is_swept(t, &word);
    while (err == 0 && on > 0 && far_now(t) < until) {
        err = far_pin_take(t); /* a handle that sleeps does not hear that it is over */
        far_pin_drop(t);
        far_sleep(t, far_housekeeping_tick(pool));
        if (err == 0)
            err = pass_epochs(t, 0);
        if (err >= 0)
            on = is_swept(t, &word);
    }
    if (err >= 0 && on > 0)
        q->slow_sweep = word; /* it stands still: not to be waited for again */
    return on < 0 ? on : err;
}


typedef struct outlook {
    uint64_t ready;  /* 0: nothing is retired */
    bool others;     /* have room, or will have */
    bool unanswered; /* some of these have not done what was asked last ... */
    bool slow;       /* ... and of some of these that is news */
} outlook;


static outlook look_out(far_task *t, unsigned asked) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    outlook o = {0};
    pthread_mutex_lock(&q->lock);
    for (far_memory *m = q->memories; m != NULL; m = m->next) {
        pthread_mutex_lock(&m->lock);
        uint64_t ready = all_ready(m, far_epoch_known(t));
        bool other = m->session != t->session && (ready > 0 || has_room(m) || m->inside != NULL);
        o.ready = ready > o.ready ? ready : o.ready;
        o.others |= other;
        bool unanswered = other && (int)(m->shared - asked) < 0;
        o.unanswered |= unanswered;
        o.slow |= unanswered && !m->mute;
        pthread_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return o;
}


/* Who did not answer will not be waited for so long again, until it does. */
static void note_mute(far_quarantine *q, unsigned asked) {
    pthread_mutex_lock(&q->lock);
    for (far_memory *m = q->memories; m != NULL; m = m->next) {
        pthread_mutex_lock(&m->lock);
        m->mute = (int)(m->shared - asked) < 0;
        pthread_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&q->lock);
}


static int ask_others(far_task *t) {
    far_pool *pool = far_task_pool(t);
    far_quarantine *q = pool->quarantine;
    uint64_t tick = far_housekeeping_tick(pool), until = far_now(t) + ASK_TICKS * tick;
    unsigned asked = atomic_fetch_add_explicit(&q->shortage, 1, memory_order_relaxed) + 1, epochs = 0;
    outlook o = look_out(t, asked);
    int err = 0;
    while (err >= 0 && o.unanswered && (epochs < ASK_EPOCHS || (o.slow && far_now(t) < until))) {
        far_epoch_request(pool); /* wakes housekeeping, which comes by all sessions that nobody is inside of */
        if (far_pool_is_unattended(pool))
            far_pool_tend(pool);
        if (epochs++ >= ASK_EPOCHS)
            far_sleep(t, tick);
        err = pass_epochs(t, 0);
        o = look_out(t, asked);
    }
    if (o.slow && far_now(t) >= until)
        note_mute(q, asked);
    return err;
}


/* 1: sessions have died since the last full sweep, and were swept themselves. */
static int have_some_died(far_task *t, uint64_t *died) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    uint64_t before;
    far_read(t, far_addr_make(0, FAR_SUPER_DIED), died, 8);
    far_read(t, far_addr_make(0, FAR_SUPER_SWEPT), &before, 8);
    int err = far_wait(t);
    return err < 0 ? err : *died != before && *died != q->swept_in_vain;
}


/* The last resort: what the dead had, and what they had unlinked or freed in blocks of others, comes back with a full
 * sweep. 1: try again. */
static int sweep_after_deaths(far_task *t, far_hunger *h, bool dead) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    uint64_t died;
    if (h->swept)
        return 0;
    int err = have_some_died(t, &died);
    if (err < 0 || (err == 0 && !dead))
        return err;
    h->swept = true;
    far_sweep_result result;
    err = far_sweep(t, true, true, &result);
    if (t->session->lost)
        return t->session->lost;
    if (err < 0 && err != FAR_ERR_BUSY) /* an index is broken, say: another sweep would not end better */
        q->swept_in_vain = died;
    err = pass_sweep(t);
    far_memory_look_again(far_memory_of(t));
    return err < 0 ? err : 1;
}


typedef struct round {
    outlook o;
    bool ask, swept; /* other handles are asked; a sweep is on */
} round;


static int make_round(far_task *t, far_hunger *h, const round *r) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    int err = far_memory_tell(t); /* others, who look at that, may be as short */
    far_point(t, "hunger:waits");
    uint64_t epoch = far_epoch_known(t), ready = r->ask ? epoch + FAR_RETIRE_EPOCHS + 1 : 0;
    if (r->o.ready > ready)
        ready = r->o.ready;
    if (err >= 0 && ready > epoch)
        err = pass_epochs(t, (unsigned)(ready - epoch - 1));
    if (err >= 0 && r->swept)
        err = pass_sweep(t);
    if (err >= 0)
        err = far_memory_tick(t); /* housekeeping cannot: this thread is inside the session */
    if (err >= 0 && r->o.others)
        err = ask_others(t);
    if (err >= 0 && r->ask) { /* what some give back in the blocks of others these find the second time */
        err = far_wait_for_answers(t, h);
        atomic_fetch_add_explicit(&q->given, 1, memory_order_relaxed);
        if (err >= 0)
            err = ask_others(t);
        if (err >= 0)
            err = far_wait_for_answers(t, h);
    }
    far_memory_look_again(far_memory_of(t));
    return err;
}


/* 1: try again; 0: nothing will come back. */
static int wait_for_memory(far_task *t, far_hunger *h) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    bool barred = t->barred || atomic_load_explicit(&q->served, memory_order_relaxed) != h->ticket, dead = false;
    t->refused = FAR_ERR_NO_MEMORY; /* what the attempt had put and not posted must not go out with our verbs */
    far_start(t);
    far_task_wait_for(t, FAR_WAIT_ALL);
    far_pin_drop(t);
    t->barred = false;
    if (barred || far_must_heed(t, h))
        return wait_for_turn(t, h);
    uint64_t sweep;
    int ask = far_is_worth_asking(t, h, &dead), swept = ask < 0 ? ask : is_swept(t, &sweep);
    if (swept < 0)
        return swept;
    uint64_t moved = atomic_load_explicit(&q->moved, memory_order_relaxed);
    round r = {look_out(t, 0), ask, swept};
    bool more = h->rounds == 0 || (moved != h->moved && !h->all_free),
         came = h->rounds == 0 && far_memory_moved_by_others(t) != t->searched, /* after it had looked */
        here = h->rounds < ROUNDS_MAX && (swept || came || (more && (r.o.ready > 0 || r.o.others)));
    if (!here && !ask)
        return sweep_after_deaths(t, h, dead);
    int err = ask ? far_announce(t, h) : 0;
    if (err == 1)
        return wait_for_turn(t, h);
    h->rounds++;
    h->moved = moved;
    if (err >= 0)
        err = make_round(t, h, &r);
    outlook left = look_out(t, 0);
    h->all_free = left.ready == 0 && !left.others;
    return err < 0 && err != FAR_ERR_NO_MEMORY ? err : 1;
}


bool far_memory_has_some(far_pool *pool, bool all) {
    far_quarantine *q = pool->quarantine;
    bool some = false;
    pthread_mutex_lock(&q->lock);
    for (far_memory *m = q->memories; m != NULL && !some; m = m->next) {
        pthread_mutex_lock(&m->lock);
        some = far_drops_wait(m) || far_some_are_away(m) || (all && (m->retired_bytes > 0 || has_room(m)));
        pthread_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return some;
}


bool far_memory_is_untold(far_pool *pool) {
    far_quarantine *q = pool->quarantine;
    bool untold = false;
    if (q == NULL)
        return false;
    pthread_mutex_lock(&q->lock);
    for (far_memory *m = q->memories; m != NULL && !untold; m = m->next) {
        pthread_mutex_lock(&m->lock);
        untold = m->free_bytes != m->told[0] || m->retired_bytes != m->told[1];
        pthread_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return untold;
}


int far_run_hungry(far_task *t, int (*run)(far_task *t, void *arg), void *arg) {
    far_hunger h;
    int err = FAR_ERR_NO_MEMORY, again = 1;
    far_point(t, "hunger:short");
    get_in_line(t, &h);
    while (err == FAR_ERR_NO_MEMORY) {
        bool background = t->background;
        t->background = true;
        again = wait_for_memory(t, &h);
        t->background = background;
        if (again <= 0)
            break;
        far_point(t, "hunger:served");
        far_count_retry(t);
        err = run(t, arg);
    }
    leave_line(t, &h);
    if (again >= 0)
        again = far_take_back(t, &h);
    return again < 0 ? again : err;
}
