/* Operations that found no memory. FAR_ERR_NO_MEMORY is reported when nothing is left that will come back: until then
 * they wait, in line, over all sessions of the handle.
 *
 * The first in line goes round by round. A round: the epoch moves until all that is retired is past its time; every
 * other session gives to the pool all that it holds free (far_blocks_share), and the first looks again. While somebody
 * stands in line all others live from the objects that they hold: they neither cut slabs nor take blocks, and stand in
 * line themselves when they have none left. So what they hold beside live data only falls (deletes apart, which make
 * room), and the rounds come to an end: with memory, or when a round moved nothing, or nothing is left to wait for. */
#include "pool/memory.h"

#define ASK_EPOCHS 4 /* how long a session that does not answer is waited for: its thread is stuck inside a call */

typedef struct far_hunger {
    far_task *task;
    uint64_t ticket;
    uint64_t moved; /* q->moved when its last round began */
    unsigned rounds;
    struct far_hunger *next;
} hunger;


bool far_may_take(far_task *t) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    uint64_t served = atomic_load_explicit(&q->served, memory_order_relaxed);
    if (served == 0 || served == t->ticket)
        return true;
    t->barred = true;
    return false;
}


void far_memory_moved(far_task *t) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    atomic_fetch_add_explicit(&q->moved, 1, memory_order_relaxed);
}


bool far_memory_is_wanted(far_memory *m) {
    far_quarantine *q = m->session->pool->quarantine;
    pthread_mutex_lock(&q->lock);
    bool wanted = q->hungry != NULL && q->hungry->task->session != m->session;
    pthread_mutex_unlock(&q->lock);
    return wanted;
}


/* The line. */

static void get_in_line(far_task *t, hunger *h) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    pthread_mutex_lock(&q->lock);
    *h = (hunger){.task = t, .ticket = ++q->tickets};
    hunger **last = &q->hungry;
    while (*last != NULL)
        last = &(*last)->next;
    *last = h;
    if (q->hungry == h)
        atomic_store_explicit(&q->served, h->ticket, memory_order_relaxed);
    pthread_mutex_unlock(&q->lock);
    t->ticket = h->ticket;
}


static void leave_line(far_task *t, hunger *h) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    t->ticket = 0;
    pthread_mutex_lock(&q->lock);
    hunger **at = &q->hungry;
    while (*at != h)
        at = &(*at)->next;
    *at = h->next;
    if (at == &q->hungry)
        atomic_store_explicit(&q->served, *at == NULL ? 0 : (*at)->ticket, memory_order_relaxed);
    if (at == &q->hungry && *at != NULL)
        far_task_wake((*at)->task);
    pthread_mutex_unlock(&q->lock);
}


/* Its thread is inside the session: what others want of it, it must do itself meanwhile. */
static int wait_for_turn(far_task *t) {
    far_pool *pool = far_task_pool(t);
    far_quarantine *q = pool->quarantine;
    int err = 0;
    while (err >= 0 && atomic_load_explicit(&q->served, memory_order_relaxed) != t->ticket) {
        err = t->session->lost;
        if (err == 0 && far_memory_of(t)->shortage != atomic_load_explicit(&q->shortage, memory_order_relaxed))
            err = far_memory_tick(t);
        if (err == FAR_ERR_NO_MEMORY)
            err = 0;
        if (pool->options.no_thread)
            far_pool_tend(pool);
        if (err == 0)
            far_task_block_until(t, far_now(t) + far_housekeeping_tick(pool));
    }
    return err;
}


/* What will come back. */

/* With the lock. */
static bool has_room(const far_memory *m) {
    bool room = m->free_bytes > 0;
    for (const far_held *b = m->blocks; b != NULL && !room; b = b->next)
        room = !b->away && b->free_pages != 0;
    return room;
}


/* With the lock: the epoch at which all that it holds back is free; 0: nothing. */
static uint64_t all_ready(far_memory *m, uint64_t epoch) {
    uint64_t ready = m->retired_bytes > 0 || far_drops_wait(m) ? epoch + FAR_RETIRE_EPOCHS + 1 : 0;
    for (size_t i = 0; i < m->late.count; i++) {
        uint64_t item = m->late.items[(m->late.first + i) % m->late.capacity].ready;
        ready = item > ready ? item : ready;
    }
    return ready;
}


typedef struct outlook {
    uint64_t ready;  /* 0: nothing is retired */
    bool others;     /* have room, or will have */
    bool unanswered; /* some of these have not done what was asked last */
} outlook;


static outlook look_out(far_task *t, unsigned asked) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    outlook o = {0};
    pthread_mutex_lock(&q->lock);
    for (far_memory *m = q->memories; m != NULL; m = m->next) {
        pthread_mutex_lock(&m->lock);
        uint64_t ready = all_ready(m, far_epoch_known(t));
        bool other = m->session != t->session && (ready > 0 || has_room(m));
        o.ready = ready > o.ready ? ready : o.ready;
        o.others |= other;
        o.unanswered |= other && (int)(m->shared - asked) < 0;
        pthread_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return o;
}


static int ask_others(far_task *t) {
    far_pool *pool = far_task_pool(t);
    far_quarantine *q = pool->quarantine;
    unsigned asked = atomic_fetch_add_explicit(&q->shortage, 1, memory_order_relaxed) + 1;
    int err = 0;
    for (unsigned i = 0; i < ASK_EPOCHS && err == 0 && look_out(t, asked).unanswered; i++) {
        far_epoch_request(pool); /* wakes housekeeping, which comes by all sessions that nobody is inside of */
        if (pool->options.no_thread)
            far_pool_tend(pool);
        err = far_wait_epochs(t, 0);
    }
    return err;
}


/* 1: try again; 0: nothing will come back. */
static int wait_for_memory(far_task *t, hunger *h) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    bool barred = t->barred || atomic_load_explicit(&q->served, memory_order_relaxed) != h->ticket;
    far_task_wait_for(t, FAR_WAIT_ALL);
    far_pin_drop(t);
    t->barred = false;
    if (barred) {
        int err = wait_for_turn(t);
        return err < 0 ? err : 1;
    }
    uint64_t moved = atomic_load_explicit(&q->moved, memory_order_relaxed);
    outlook o = look_out(t, 0);
    if ((o.ready == 0 && !o.others) || (h->rounds > 0 && moved == h->moved))
        return 0;
    h->rounds++;
    h->moved = moved;
    uint64_t epoch = far_epoch_known(t);
    int err = o.ready > epoch ? far_wait_epochs(t, (unsigned)(o.ready - epoch - 1)) : 0;
    if (err >= 0 && o.others)
        err = ask_others(t);
    if (err >= 0)
        err = far_memory_tick(t); /* housekeeping cannot: this thread is inside the session */
    far_memory_look_again(far_memory_of(t));
    return err < 0 && err != FAR_ERR_NO_MEMORY ? err : 1;
}


int far_run_hungry(far_task *t, int (*run)(far_task *t, void *arg), void *arg) {
    hunger h;
    int err = FAR_ERR_NO_MEMORY, again = 1;
    get_in_line(t, &h);
    while (err == FAR_ERR_NO_MEMORY && (again = wait_for_memory(t, &h)) > 0) {
        far_point(t, "hunger:served");
        far_count_retry(t);
        err = run(t, arg);
    }
    leave_line(t, &h);
    return again < 0 ? again : err;
}
