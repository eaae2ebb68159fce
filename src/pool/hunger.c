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
 * end: a pin, a sweep or an announcement may be that of a process which was stopped.
 *
 * Other handles are asked by an announcement in a word of the superblock (far_short_pack), of which there is one at a
 * time. They read it with the epoch, or, asleep, from time to time. As long as it stands and is not old their sessions
 * share too, and take nothing; each tells in the registry the number of the announcement for which it has given up all
 * it could. A round abroad has two: one at its beginning, then the epochs pass after which what was retired by then can
 * be given up, then another one, whose answers are waited for. So when the attempt that follows fails, and the word
 * still stands, there was not enough in the whole pool when the round began. Who sleeps and has told that it holds
 * nothing is not waited for; who does not answer, once, and not again before it does. */
#include "pool/memory.h"
#include "pool/sweep.h"

#define ROUNDS_MAX    64    /* whatever moves */
#define ASK_EPOCHS    4     /* so long a session that does not answer is waited for in any case ... */
#define ASK_TICKS     1000  /* ... and so long the first time: its thread, inside a call, does not get to run */
#define RECENT_EPOCHS 16    /* so old an announcement still counts: it is renewed before, or the announcer is gone */
#define ABROAD_TICKS  10000 /* how long the answers of other handles are waited for: one may not get to run for long */
#define ABROAD_ROUNDS 8     /* beside busy handles there is always something that may come back */
#define STUCK_TICKS   1000  /* how long the epoch is waited for while it does not move */
#define SWEEP_TICKS   10000 /* how long the end of a sweep is waited for: one whose owner died is finished by others */
#define HEED_TICKS    2000  /* how long announcements of others hold up an operation, however many come */

typedef struct far_hunger {
    far_task *task;
    uint64_t ticket;
    uint64_t moved; /* q->moved when its last round began */
    unsigned rounds;
    bool all_free;        /* when its last attempt began nothing was held back in this handle */
    bool swept;           /* it has made a full sweep */
    bool all_given;       /* the same of other handles, as long as its announcement stands */
    uint64_t announced;   /* the word, 0: not */
    uint64_t heeds_until; /* how long it lets others go first whose announcements it hears; 0: not known yet */
    struct far_hunger *next;
} hunger;


/* Another handle is short of memory, or was a short time ago. */
static bool is_announced(far_pool *pool) {
    far_quarantine *q = pool->quarantine;
    uint64_t word = atomic_load_explicit(&q->announced, memory_order_relaxed);
    uint64_t known = atomic_load_explicit(&pool->epochs.known, memory_order_relaxed);
    return far_short_handle(word) != 0 && far_short_handle(word) != pool->own->id &&
           far_short_is_near(word, known, RECENT_EPOCHS) &&
           word != atomic_load_explicit(&q->overheard, memory_order_relaxed);
}


/* Those who read it do not come here in order. */
bool far_memory_hear(far_pool *pool, uint64_t word) {
    far_quarantine *q = pool->quarantine;
    if (q == NULL)
        return false;
    uint64_t before = atomic_load_explicit(&q->announced, memory_order_relaxed);
    int32_t newer;
    do {
        newer = (int32_t)(far_short_number(word) - far_short_number(before));
        if (newer < 0 || (newer == 0 && far_short_handle(word) != 0))
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&q->announced, &before, word, memory_order_relaxed,
                                                    memory_order_relaxed));
    return newer > 0;
}


bool far_memory_is_asked(far_memory *m) {
    far_quarantine *q = m->session->pool->quarantine;
    return m->shortage != atomic_load_explicit(&q->shortage, memory_order_relaxed) ||
           m->answered != far_short_number(atomic_load_explicit(&q->announced, memory_order_relaxed));
}


bool far_may_take(far_task *t) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    uint64_t served = atomic_load_explicit(&q->served, memory_order_relaxed);
    bool heeds = served == 0 || !atomic_load_explicit(&q->heedless, memory_order_relaxed);
    if ((served == 0 || served == t->ticket) && (!heeds || !is_announced(far_task_pool(t))))
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
    const hunger *first = q->hungry;
    bool wanted = first != NULL && first->task->session != m->session;
    pthread_mutex_unlock(&q->lock);
    return wanted || is_announced(m->session->pool);
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
    if (at == &q->hungry) {
        atomic_store_explicit(&q->heedless, false, memory_order_relaxed);
        atomic_store_explicit(&q->served, *at == NULL ? 0 : (*at)->ticket, memory_order_relaxed);
    }
    if (at == &q->hungry && *at != NULL)
        far_task_wake((*at)->task);
    pthread_mutex_unlock(&q->lock);
}


/* Its thread is inside the session: what others want of it, it must do itself meanwhile. */
static int wait_a_tick(far_task *t) {
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


/* The first in line lets other handles that have announced themselves go first, for a time. */
static bool must_heed(far_task *t, hunger *h) {
    far_pool *pool = far_task_pool(t);
    far_quarantine *q = pool->quarantine;
    if (!is_announced(pool))
        return false;
    if (h->heeds_until == 0)
        h->heeds_until = far_now(t) + HEED_TICKS * far_housekeeping_tick(pool);
    if (far_now(t) < h->heeds_until)
        return true;
    atomic_store_explicit(&q->heedless, true, memory_order_relaxed);
    atomic_store_explicit(&q->overheard, atomic_load_explicit(&q->announced, memory_order_relaxed),
                          memory_order_relaxed);
    return false;
}


static int wait_for_turn(far_task *t, hunger *h) {
    far_pool *pool = far_task_pool(t);
    far_quarantine *q = pool->quarantine;
    int err = 0;
    while (err == 0 && (atomic_load_explicit(&q->served, memory_order_relaxed) != h->ticket || must_heed(t, h))) {
        far_epoch_request(pool); /* announcements grow old */
        err = wait_a_tick(t);
    }
    return err < 0 ? err : 1;
}


/* What will come back. */

/* With the lock. Or it may have: objects that others gave back in its blocks it must look for. */
static bool has_room(const far_memory *m) {
    const far_quarantine *q = m->session->pool->quarantine;
    bool room = m->free_bytes > 0 ||
                (m->blocks != NULL && m->looked != atomic_load_explicit(&q->given, memory_order_relaxed));
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


static unsigned shortage_of(far_quarantine *q) {
    return atomic_load_explicit(&q->shortage, memory_order_relaxed);
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
        bool answered = (int)(m->shared - asked) >= 0;
        bool other = m->session != t->session && (ready > 0 || has_room(m) || (!answered && m->inside != NULL));
        o.ready = ready > o.ready ? ready : o.ready;
        o.others |= other;
        o.unanswered |= other && !answered;
        o.slow |= other && !answered && !m->mute;
        pthread_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return o;
}


typedef struct abroad {
    uint32_t asked; /* the number whose answers are looked for */
    uint64_t held;  /* what sessions of other handles hold beside live data, as they told last */
    unsigned count; /* of them */
    bool awake;     /* some of the handles are */
    bool dead;      /* some are, and nobody has swept what they left */
    uint64_t due[FAR_CLIENT_ID_MAX / 64 + 1];     /* bit per handle that is awake, or holds something */
    uint64_t pending[FAR_CLIENT_ID_MAX / 64 + 1]; /* bit per handle of which not all sessions have answered */
} abroad;


static void add_told(abroad *a, far_quarantine *q, unsigned id, const far_client *client) {
    unsigned handle = far_client_handle_of(client->word), at = handle / 64;
    uint64_t bit = 1ull << handle % 64;
    bool awake = id == handle && client->pin != 0;
    uint64_t held = client->free_bytes + client->retired_bytes + far_client_pages(client->answer);
    if (awake || held > 0)
        a->due[at] |= bit;
    if ((int32_t)(far_client_answered(client->answer) - a->asked) < 0)
        a->pending[at] |= bit;
    a->count++;
    if (q->deaf[at] & bit)
        return;
    a->awake |= awake;
    a->held += held;
}


static int look_at_client(far_task *t, void *ctx, unsigned id, const far_client *client) {
    abroad *a = ctx;
    far_conn *conn = t->session->conn;
    far_client_state state = far_client_state_of(client->word);
    if (state == FAR_CLIENT_FREE || far_client_handle_of(client->word) == far_task_pool(t)->own->id)
        return 0;
    /* Of processes that live too short to look after each other nobody may have noticed. */
    if (state == FAR_CLIENT_DEAD || conn->fabric->ops->is_dead(conn, id, far_client_generation_of(client->word)) > 0)
        a->dead = true;
    else
        add_told(a, far_task_pool(t)->quarantine, id, client);
    return 0;
}


/* 1: some have not answered. Who has, is not deaf. */
static int look_abroad(far_task *t, abroad *a, uint32_t asked) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    *a = (abroad){.asked = asked};
    int err = far_clients_each(t, look_at_client, a);
    for (unsigned i = 0; err >= 0 && i < FAR_CLIENT_ID_MAX / 64 + 1; i++) {
        q->deaf[i] &= a->pending[i];
        if (a->due[i] & a->pending[i] & ~q->deaf[i])
            err = 1;
    }
    return err;
}


static void note_deaf(far_quarantine *q, const abroad *a) {
    for (unsigned i = 0; i < FAR_CLIENT_ID_MAX / 64 + 1; i++)
        q->deaf[i] |= a->due[i] & a->pending[i];
}


/* 1: another handle has announced itself, and goes first. */
static int announce(far_task *t, hunger *h) {
    far_pool *pool = far_task_pool(t);
    far_quarantine *q = pool->quarantine;
    uint64_t epoch, before, word = atomic_load_explicit(&q->announced, memory_order_relaxed);
    for (;;) {
        int err = far_epoch_read(t, &epoch);
        if (err < 0)
            return err;
        if (must_heed(t, h))
            return 1;
        uint64_t mine = far_short_pack(far_short_number(word) + 1, epoch, pool->own->id);
        if ((err = far_cas_word(t, far_addr_make(0, FAR_SUPER_SHORT), word, mine, &before)) < 0)
            return err;
        far_memory_hear(pool, before == word ? mine : before);
        if (before == word) {
            h->announced = mine;
            h->all_given = false;
            return 0;
        }
        word = before;
    }
}


/* 1: our announcement has stood since it was made: whoever answered it has taken nothing since. */
static int still_stands(far_task *t, const hunger *h) {
    uint64_t word, epoch;
    int err = far_read_word(t, far_addr_make(0, FAR_SUPER_SHORT), &word);
    if (err == 0)
        err = far_epoch_read(t, &epoch);
    if (err < 0)
        return err;
    far_memory_hear(far_task_pool(t), word);
    return h->announced != 0 && word == h->announced && far_short_is_near(word, epoch, RECENT_EPOCHS);
}


/* Until all have given up what they can. It is announced anew before it grows old; those that took the last one for old
 * answer without giving. */
static int wait_for_answers(far_task *t, hunger *h) {
    far_pool *pool = far_task_pool(t);
    far_quarantine *q = pool->quarantine;
    uint64_t until = far_now(t) + ABROAD_TICKS * far_housekeeping_tick(pool);
    far_scratch_mark mark = far_scratch_here(t);
    abroad *a = far_scratch(t, sizeof(*a));
    int stands = a == NULL ? FAR_ERR_NO_MEMORY : still_stands(t, h), err = stands < 0 ? stands : announce(t, h);
    uint32_t asked = far_short_number(h->announced);
    while (err == 0 && (err = look_abroad(t, a, asked)) == 1) {
        if (far_now(t) >= until)
            note_deaf(q, a);
        err = wait_a_tick(t);
        if (err == 0 && !far_short_is_near(h->announced, far_epoch_known(t), RECENT_EPOCHS / 2)) {
            stands = stands > 0 ? still_stands(t, h) : stands;
            err = stands < 0 ? stands : announce(t, h);
        }
    }
    if (err == 0 && stands > 0)
        stands = still_stands(t, h);
    if (err == 0 && stands >= 0) {
        q->in_vain = a->held;
        h->all_given = stands && a->held == 0;
    }
    far_scratch_back(t, mark);
    return err < 0 ? err : stands < 0 ? stands : 0;
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
static int sweep_after_deaths(far_task *t, hunger *h, bool dead) {
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


/* 1: other handles may have something that they do not need. Not when all that they have left is that which they had
 * when they were asked last, and they sleep. dead: what dead sessions had is not swept yet. */
static int is_worth_asking(far_task *t, const hunger *h, bool *dead) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    far_scratch_mark mark = far_scratch_here(t);
    abroad *a = far_scratch(t, sizeof(*a));
    int err = a == NULL ? FAR_ERR_NO_MEMORY
                        : look_abroad(t, a, far_short_number(atomic_load_explicit(&q->announced, memory_order_relaxed)));
    int given = err >= 0 && h->all_given ? still_stands(t, h) : 0;
    bool worth = false;
    if (err >= 0) {
        worth = h->rounds < ABROAD_ROUNDS && given == 0 && a->count > 0 && (a->awake || a->held != q->in_vain);
        *dead = a->dead;
    }
    far_scratch_back(t, mark);
    return err < 0 ? err : given < 0 ? given : worth;
}


/* 1: try again; 0: nothing will come back. */
static int wait_for_memory(far_task *t, hunger *h) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    bool barred = t->barred || atomic_load_explicit(&q->served, memory_order_relaxed) != h->ticket;
    t->refused = FAR_ERR_NO_MEMORY; /* what the attempt had put and not posted must not go out with our verbs */
    far_start(t);
    far_task_wait_for(t, FAR_WAIT_ALL);
    far_pin_drop(t);
    t->barred = false;
    if (barred || must_heed(t, h))
        return wait_for_turn(t, h);
    uint64_t moved = atomic_load_explicit(&q->moved, memory_order_relaxed);
    outlook o = look_out(t, shortage_of(q) + 1);
    bool dead = false;
    uint64_t sweep;
    int ask = is_worth_asking(t, h, &dead), swept = ask < 0 ? ask : is_swept(t, &sweep);
    if (swept < 0)
        return swept;
    bool more = h->rounds == 0 || (moved != h->moved && !h->all_free),
         came = h->rounds == 0 && far_memory_moved_by_others(t) != t->searched, /* after it had looked */
        here = h->rounds < ROUNDS_MAX && (swept || came || (more && (o.ready > 0 || o.others)));
    if (!here && !ask)
        return sweep_after_deaths(t, h, dead);
    int err = ask ? announce(t, h) : 0;
    if (err == 1)
        return wait_for_turn(t, h);
    h->rounds++;
    h->moved = moved;
    if (err >= 0)
        err = far_memory_tell(t); /* others, who look at that, may be as short */
    far_point(t, "hunger:waits");
    uint64_t epoch = far_epoch_known(t), ready = ask ? epoch + FAR_RETIRE_EPOCHS + 1 : 0;
    if (o.ready > ready)
        ready = o.ready;
    if (err >= 0 && ready > epoch)
        err = pass_epochs(t, (unsigned)(ready - epoch - 1));
    if (err >= 0 && swept)
        err = pass_sweep(t);
    if (err >= 0)
        err = far_memory_tick(t); /* housekeeping cannot: this thread is inside the session */
    /* What some give back in the blocks of others these find the second time. */
    for (unsigned i = 0; err >= 0 && i < (ask ? 2 : 1); i++) {
        if (o.others || i > 0)
            err = ask_others(t);
        if (err >= 0 && ask)
            err = wait_for_answers(t, h);
        if (ask && i == 0)
            atomic_fetch_add_explicit(&q->given, 1, memory_order_relaxed); /* in blocks of this handle too */
    }
    far_memory_look_again(far_memory_of(t));
    o = look_out(t, shortage_of(q));
    h->all_free = o.ready == 0 && !o.others;
    return err < 0 && err != FAR_ERR_NO_MEMORY ? err : 1;
}


bool far_memory_has_some(far_pool *pool, bool all) {
    far_quarantine *q = pool->quarantine;
    bool some = false;
    pthread_mutex_lock(&q->lock);
    for (far_memory *m = q->memories; m != NULL && !some; m = m->next) {
        pthread_mutex_lock(&m->lock);
        some = far_drops_wait(m) || (all && (m->retired_bytes > 0 || has_room(m)));
        pthread_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return some;
}


/* The others need not wait until it is old. */
static int take_back(far_task *t, const hunger *h) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    if (h->announced == 0 || atomic_load_explicit(&q->announced, memory_order_relaxed) != h->announced ||
        t->session->lost)
        return 0;
    far_point(t, "hunger:take_back");
    uint64_t nobody = far_short_pack(far_short_number(h->announced), 0, 0), before;
    far_aside aside = far_aside_begin(t);
    int err = far_cas_word(t, far_addr_make(0, FAR_SUPER_SHORT), h->announced, nobody, &before);
    far_aside_end(t, aside);
    if (err >= 0)
        far_memory_hear(far_task_pool(t), before == h->announced ? nobody : before);
    return err;
}


int far_run_hungry(far_task *t, int (*run)(far_task *t, void *arg), void *arg) {
    hunger h;
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
        again = take_back(t, &h);
    return again < 0 ? again : err;
}
