/* Epochs: pins, waking and sleeping of a handle, publishing, advancing.
 *
 * Words: G the global epoch; for each handle C = epochs.current (the epoch of new pins, 0 = asleep) and P, its word in
 * the registry (0 = none). Everything that changes C or P runs under the handle's flag `waking`, and its WRITEs of P
 * are waited for before the flag is let go, so P has one writer at a time although tasks of several sessions write it.
 *
 * Advance: read G = e, then the registry up to SLOTS_HIGH; CAS e -> e+1 if no word P of a handle with a living session
 * has 0 < P < e.
 *
 * Claim: while a pin at e is held, G is e or e+1.
 *
 * - Waking: P := something not above G, then READ of G = e (the WRITE takes effect first), C := e. A move e -> e+1 may
 *   have looked at the registry before our WRITE. A move e+1 -> e+2 read G = e+1 after that CAS, which came after our
 *   READ, which came after our WRITE: it sees 0 < P <= e < e+1 and stays. (A new entry lies below SLOTS_HIGH before it
 *   is live, so it is not missed either.)
 *
 * - Awake: P <= every pin held, and P <= C: a move C+1 -> C+2 is forbidden, so G <= C+1, and C only ever follows G. P
 * is raised to C only after no pin below C is left: the pins at C-1 are counted after C was set, and a pin that was
 *   counted later finds C changed and is undone (all seq_cst: one of the two sees the other).
 *
 * - Falling asleep: C := 0, then no pin at all is counted, then P := 0: the same argument.
 *
 * Two epochs at most are pinned at once: the oldest pin is at e, so G <= e+1, and C, which follows G, is e or e+1. So
 * two counters per session, by parity, do.
 *
 * A WRITE of P that failed (its session was lost) may take effect late, until that session is fenced at the memory
 * nodes: nothing else is done with P before no session of the handle is stuck (settle). For the same reason the pins
 * of a lost session stay counted, although its operations have ended, until it is fenced (far_pins_settle).
 *
 * The word counts until all sessions of the handle are closed or dead: any of them may hold pins. */
#include "pool/epoch.h"
#include "base/error.h"
#include "pool/blocker.h"
#include "pool/catalog_layout.h"
#include "pool/handle.h"
#include "pool/kind.h"
#include "pool/request.h"

#include <assert.h>

#define WAIT_BRIEFLY          256 /* looks at the epoch, before the pauses between them get long */
#define BLOCKED_BEFORE_ASKING 8   /* attempts to advance, before the one in the way is asked for */
#define PUBLISHED_UNKNOWN     1   /* not 0 and below every epoch: to be written anew */
#define IDLE_TICKS            100 /* without a pin, until the handle sleeps */
#define REST_SHARE            9   /* a background walk rests so many times as long as it worked */

static const far_addr epoch_word = FAR_SUPER_EPOCH, line_words = FAR_SUPER_REQUEST;


static uint64_t load(const _Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_seq_cst);
}


static void store(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_seq_cst);
}


static bool take_flag(far_epochs *epochs) {
    unsigned off = 0;
    return atomic_compare_exchange_strong_explicit(&epochs->waking, &off, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}


static void drop_flag(far_epochs *epochs) {
    assert(atomic_load_explicit(&epochs->waking, memory_order_relaxed) == 1);
    atomic_store_explicit(&epochs->waking, 0, memory_order_release);
}


static void learn(far_epochs *epochs, uint64_t epoch) {
    uint64_t known = load(&epochs->known);
    while (known < epoch && !atomic_compare_exchange_weak_explicit(&epochs->known, &known, epoch, memory_order_seq_cst,
                                                                   memory_order_seq_cst))
        ;
}


/* ---- Pins ---- */

/* Before the first pin at the epoch: the request, then the hooks of the open indexes. The task is pinned. heard: pins
 * up to this epoch may have been held before. */
static int enter_epoch(far_task *t, uint64_t epoch, uint64_t heard, uint64_t request) {
    far_pool *pool = far_task_pool(t);
    int err = 0;
    far_request_hear(pool, request, heard);
    for (far_index *index = far_pool_use_index(pool, NULL); index; index = far_pool_use_index(pool, index))
        if (err >= 0 && index->kind->epoch_hook)
            err = index->kind->epoch_hook(t, index, epoch);
    return err < 0 ? err : 0;
}


/* The epoch's word was read. known: what it was known to be before. */
static int take_epoch(far_task *t, uint64_t word, uint64_t known, uint64_t *epoch) {
    *epoch = word + FAR_EPOCH_FIRST;
    if (*epoch < known)
        return far_fail(FAR_ERR_CORRUPT, "the epoch went back from %llu to %llu", (unsigned long long)known,
                        (unsigned long long)*epoch);
    learn(&far_task_pool(t)->epochs, *epoch);
    return 0;
}


/* The request and what stands beside it are read after the epoch (READs keep their order; one READ of all could tear
 * the wrong way): who sees an epoch that was reached after a request was made sees that request. */
static int read_epoch_and_request(far_task *t, uint64_t *epoch, uint64_t *request) {
    uint64_t known = far_epoch_known(t), word, words[FAR_SUPER_LINE_WORDS];
    far_read(t, epoch_word, &word, 8);
    far_read(t, line_words, words, sizeof(words));
    int err = far_wait(t);
    if (err < 0)
        return err;
    *request = words[0];
    far_line_learn(far_task_pool(t), words);
    return take_epoch(t, word, known, epoch);
}


/* Under the flag, before anything is done with our word. */
static int settle(far_task *t) {
    far_pool *pool = far_task_pool(t);
    assert(atomic_load_explicit(&pool->epochs.waking, memory_order_relaxed) == 1);
    if (!pool->epochs.unsure)
        return 0;
    int err = far_pins_settle(t);
    for (unsigned attempt = 0; err == 0 && far_pins_are_stuck(pool) && pool->fabric->ops->ask; attempt++) {
        far_back_off(t, attempt); /* its sockets are closed: node 0 will see that */
        err = far_pins_settle(t);
    }
    if (err < 0 || far_pins_are_stuck(pool))
        return err < 0 ? err : far_fail(FAR_ERR_BUSY, "a session lost its connection and is not yet dead");
    pool->epochs.unsure = false;
    store(&pool->epochs.published, PUBLISHED_UNKNOWN);
    return 0;
}


/* Shows others our pin, and the request that we have answered. */
static int publish(far_task *t, uint64_t epoch, uint32_t answer) {
    far_epochs *epochs = &far_task_pool(t)->epochs;
    const uint64_t words[] = {epoch, answer};
    assert(atomic_load_explicit(&epochs->waking, memory_order_relaxed) == 1);
    _Static_assert(offsetof(far_client, pin) == 8 && offsetof(far_client, answered) == 16, "written together");
    far_write(t, far_client_entry(far_task_pool(t)->team.own->id) + offsetof(far_client, pin), words, sizeof(words));
    int err = far_wait(t);
    if (err == 0) {
        store(&epochs->published, epoch);
        epochs->answered = answer;
    }
    epochs->unsure = err < 0;
    return err;
}


/* Under the flag, asleep. The word goes out with the newest epoch that we know of: not above the real one, and so only
 * too careful. The next tick brings it up to date. */
static int wake_up(far_task *t) {
    far_pool *pool = far_task_pool(t);
    far_epochs *epochs = &pool->epochs;
    uint64_t word = load(&epochs->known), epoch, request;
    assert(t->pin.epoch == 0 && load(&epochs->current) == 0);
    int err = settle(t);
    if (err < 0)
        return err;
    store(&epochs->published, word); /* before it is: should this fail, a tick takes it back */
    far_write(t, far_client_entry(pool->team.own->id) + 8, &word, 8);
    err = read_epoch_and_request(t, &epoch, &request);
    epochs->unsure = err < 0 && t->session->lost;
    uint32_t number = err < 0 ? 0 : far_request_unpack(request).number;
    if (err == 0 && number != epochs->answered && !far_number_is_newer(number, epochs->answered))
        err =
            publish(t, word, number); /* numbers went round while it slept: its last answer would count for new ones */
    if (err < 0)
        return err;
    far_pin_count(t, epoch);
    err = enter_epoch(t, epoch, epoch - 1, request);
    if (err < 0) {
        far_pin_drop(t);
        return err;
    }
    store(&epochs->used_at, far_now(t));
    store(&epochs->current, epoch);
    far_pool_wake(pool);
    return 0;
}


/* 0: pinned; 1: somebody else is at it, or the handle is awake; an error. */
static int try_wake(far_task *t) {
    far_epochs *epochs = &far_task_pool(t)->epochs;
    if (!take_flag(epochs))
        return 1;
    int result = 1;
    if (load(&epochs->current) == 0) {
        bool background = t->background;
        t->background = true;
        result = wake_up(t);
        t->background = background;
    }
    drop_flag(epochs);
    return result;
}


/* A walk in the background leaves others nine tenths of the time, unless somebody has made another request since it
 * began, who may be waiting for it. */
static void rest(far_task *t) {
    uint64_t worked = far_now(t) - t->rest_since, epoch;
    if (far_request_heard(far_task_pool(t), &epoch) != t->rest_request)
        t->rest_since = 0;
    else if (worked > 0)
        far_sleep(t, REST_SHARE * worked);
    if (t->rest_since != 0)
        t->rest_since = far_now(t) | 1;
}


void far_task_rest_between_pins(far_task *t, bool rests) {
    uint64_t epoch;
    t->rest_request = far_request_heard(far_task_pool(t), &epoch);
    t->rest_since = rests && far_task_fabric(t)->at_once ? far_now(t) | 1 : 0;
}


/* One step on the way to a later epoch, where nobody else may be there to tick and to drive. */
static int drive_epochs(far_task *t) {
    far_pool *pool = far_task_pool(t);
    if (t->session != pool->team.own && !far_team_is_unattended(&pool->team))
        return 0;
    int err = far_epoch_tick(t);
    far_team_drive(&pool->team);
    return err;
}


/* A task that retries, and holds no pin just now, wants to see epochs pass (task/patience.h). Where it drives them
 * itself it may ask whether who is in the way lives: for how long it has waited is not forgotten over that
 * (far_is_dead). */
static int move_epochs(far_task *t) {
    far_pool *pool = far_task_pool(t);
    far_patience *patience = t->patience;
    unsigned retries = t->retries;
    t->patience = NULL;
    far_epoch_request(pool);
    int err = drive_epochs(t);
    far_patience_forget(t);
    t->patience = patience;
    t->retries = retries;
    return err < 0 && t->session->lost ? err : 0; /* else the trouble is another session's, or another index's */
}


int far_pin_take_slowly(far_task *t) {
    far_pool *pool = far_task_pool(t);
    if (t->session->lost)
        return t->lost ? t->lost : t->session->lost;
    if (t->rest_since)
        rest(t);
    int err = t->patience ? move_epochs(t) : 0;
    if (err < 0 || (t->patience && (err = far_held_up(t)) < 0))
        return err;
    for (unsigned attempt = 0;;) {
        uint64_t epoch = load(&pool->epochs.current);
        if (epoch != 0) {
            if (!far_pin_at(t, epoch))
                continue;
            if (t->patience && (err = far_patience_renew(t)) < 0)
                far_pin_drop(t);
            return err;
        }
        if (t->session->lost)
            return t->session->lost;
        int result = try_wake(t);
        if (result <= 0)
            return result;
        if (load(&pool->epochs.current) != 0)
            continue;
        if (t->session == pool->team.own || far_team_is_unattended(&pool->team))
            far_team_drive(&pool->team); /* the one who wakes the handle may be a session that only we can drive */
        far_back_off(t, attempt++);
    }
}


int far_pin_take(far_task *t) {
    return far_pin_take_inline(t);
}


/* ---- Lost sessions ---- */

static far_session *find_stuck(far_pool *pool, const far_session *asker, unsigned id) {
    far_session *s = pool->team.first;
    while (s && (s == asker || s->id == 0 || (id != 0 && s->id != id) ||
                 !atomic_load_explicit(&s->pins.stuck, memory_order_seq_cst)))
        s = s->next;
    return s;
}


bool far_pins_are_stuck(far_pool *pool) {
    pthread_mutex_lock(&pool->team.lock);
    bool stuck = find_stuck(pool, NULL, 0) != NULL;
    pthread_mutex_unlock(&pool->team.lock);
    return stuck;
}


/* A session that is lost itself would wait for itself; and that the handle's own one is fenced nobody finds out: then the
 * handle is dead, and will be told. */
int far_pins_settle(far_task *t) {
    far_pool *pool = far_task_pool(t);
    const far_session *own = pool->team.own;
    if (t->session->lost)
        return far_session_tell(t->session, t->session->lost);
    if (atomic_load_explicit(&own->pins.stuck, memory_order_seq_cst))
        return far_fail(FAR_ERR_FENCED, "this pool handle was declared dead: close it and open the pool again");
    for (;;) {
        unsigned id = 0, generation = 0;
        pthread_mutex_lock(&pool->team.lock);
        far_session *s = find_stuck(pool, t->session, 0);
        if (s) {
            id = s->id;
            generation = s->generation;
        }
        pthread_mutex_unlock(&pool->team.lock);
        int dead = id == 0 ? 0 : far_is_dead(t, id, generation);
        if (dead <= 0)
            return dead;
        pthread_mutex_lock(&pool->team.lock);
        s = find_stuck(pool, t->session, id); /* the session may have been closed meanwhile */
        for (int i = 0; s && i < 2; i++)
            atomic_store_explicit(&s->pins.held[i], 0, memory_order_seq_cst);
        if (s)
            atomic_store_explicit(&s->pins.stuck, false, memory_order_seq_cst);
        pthread_mutex_unlock(&pool->team.lock);
        far_memory_lost_some(pool); /* what its operations had in hand */
    }
}


/* ---- Asking ---- */

uint64_t far_epoch(const far_task *t) {
    return t->pin.epoch;
}


uint64_t far_epoch_known(const far_task *t) {
    return load(&far_task_pool(t)->epochs.known);
}


uint64_t far_epoch_safe(const far_task *t) {
    return far_epoch_known(t) - 1;
}


int far_epoch_read(far_task *t, uint64_t *epoch) {
    uint64_t word, known = far_epoch_known(t);
    int err = far_read_word(t, epoch_word, &word);
    return err < 0 ? err : take_epoch(t, word, known, epoch);
}


void far_epoch_request(far_pool *pool) {
    if (atomic_fetch_add_explicit(&pool->epochs.requests, 1, memory_order_relaxed) == 0)
        far_pool_wake(pool);
}


bool far_epoch_is_awake(const far_pool *pool) {
    return load(&pool->epochs.current) != 0 || load(&pool->epochs.published) != 0 ||
           atomic_load_explicit(&pool->epochs.requests, memory_order_relaxed) != 0;
}


/* drive_epochs for a task that holds a lock. Its pin follows the epoch, and the old one counts until there is a new one:
 * whoever waits for the lock sees by the epoch whether its holder is at work (task/patience.h). */
static int drive_epochs_pinned(far_task *t) {
    far_pin old = t->pin;
    t->pin = (far_pin){0, 0};
    int err = drive_epochs(t), taken = far_pin_take(t);
    far_pin now = t->pin;
    t->pin = old;
    far_pin_drop(t);
    t->pin = now;
    return taken < 0 ? taken : err;
}


/* From this epoch, the newest that is known. 1: not by that time. */
static int wait_for_epoch(far_task *t, uint64_t epoch, uint64_t target, uint64_t time, int (*drive)(far_task *t)) {
    far_pool *pool = far_task_pool(t);
    bool own = t->session == pool->team.own;
    const uint64_t began = far_now(t);
    for (unsigned attempt = 0; epoch < target; attempt++) {
        if (far_now(t) >= time)
            return 1;
        if (own && atomic_load_explicit(&pool->stopping, memory_order_relaxed))
            return far_fail(FAR_ERR_BUSY, "the pool handle is being closed");
        if (atomic_load_explicit(&pool->epochs.requests, memory_order_relaxed) == 0)
            far_epoch_request(pool);
        int err = drive(t);
        if (err == 0 && attempt < WAIT_BRIEFLY)
            far_back_off(t, attempt);
        else if (err == 0)
            far_back_off_for(t, far_wait_pause(far_now(t) - began, far_tick(pool->fabric)));
        if (err >= 0)
            err = far_epoch_read(t, &epoch);
        if (err < 0)
            return err;
    }
    return 0;
}


/* A pin taken before this call is at e0 or earlier, e0 being the epoch read now. When the epoch is E every pin is at
 * E-1 or later: so at E = e0 + k + 1 every pin is at e0 + k or later, k epochs after any that existed. */
static uint64_t epoch_after(uint64_t epoch, unsigned k) {
    return epoch + k + 1;
}


int far_wait_epochs_until(far_task *t, unsigned k, uint64_t time) {
    uint64_t epoch;
    if (t->pin.epoch != 0)
        return far_fail(FAR_ERR_INVALID, "a pinned task cannot wait for epochs: it would wait for itself");
    int err = far_epoch_read(t, &epoch);
    return err < 0 ? err : wait_for_epoch(t, epoch, epoch_after(epoch, k), time, drive_epochs);
}


static int wait_for_next_pinned(far_task *t, uint64_t time) {
    uint64_t epoch = far_epoch_known(t);
    return wait_for_epoch(t, epoch, epoch + 1, time, drive_epochs_pinned);
}


/* The epoch has stood for so long. 0: the one in the way was ended, or goes on: it may be waited for again. */
static int held_up_pinned(far_task *t, uint64_t ns) {
    far_blocker b;
    int err = far_blocker_stands(t, far_epoch_known(t), &b, wait_for_next_pinned);
    return err == 1 ? far_held_up_by(t, &b, ns) : err;
}


/* One by one: who is in the way of an epoch was perhaps not in that of the one before. */
static int wait_pinned(far_task *t, uint64_t target) {
    int err = 0;
    while (err == 0 && far_epoch_known(t) < target) {
        uint64_t since = far_now(t);
        err = wait_for_next_pinned(t, since + far_held_up_after(t));
        if (err == 1)
            err = held_up_pinned(t, far_now(t) - since);
    }
    return err;
}


/* Its pins are not refused for want of patience: it may hold a lock. */
int far_pin_after_epochs(far_task *t, unsigned k) {
    uint64_t rest_since = t->rest_since, began = far_now(t), epoch;
    far_patience *patience = t->patience;
    unsigned retries = t->retries;
    t->rest_since = 0;
    t->patience = NULL;
    int err = far_epoch_read(t, &epoch);
    if (err == 0)
        err = wait_pinned(t, epoch_after(epoch, k));
    far_patience_forget(t); /* what the wait for epochs noted itself */
    t->patience = patience;
    t->retries = retries;
    if (rest_since) /* to wait was no work */
        t->rest_since = (rest_since + far_now(t) - began) | 1;
    return err;
}


/* ---- Ticks ---- */

typedef struct held_pins {
    unsigned at[2]; /* by parity */
    bool used;
} held_pins;


static void add_held(held_pins *sum, far_session *s) {
    for (int i = 0; i < 2; i++)
        sum->at[i] += atomic_load_explicit(&s->pins.held[i], memory_order_seq_cst);
}


/* Pins that housekeeping itself takes from time to time do not keep the handle awake. */
static held_pins count_held(far_pool *pool) {
    held_pins sum = {{0, 0}, false};
    pthread_mutex_lock(&pool->team.lock);
    add_held(&sum, pool->team.own);
    for (far_session *s = pool->team.first; s; s = s->next) {
        add_held(&sum, s);
        if (atomic_load_explicit(&s->pins.used, memory_order_relaxed))
            sum.used |= atomic_exchange_explicit(&s->pins.used, false, memory_order_relaxed);
    }
    pthread_mutex_unlock(&pool->team.lock);
    sum.used |= atomic_exchange_explicit(&pool->epochs.keep_awake, false, memory_order_relaxed);
    sum.used |= sum.at[0] + sum.at[1] > 0;
    return sum;
}


/* The hooks run under the old word, then new pins are taken at the new epoch. */
static int move_on(far_task *t, uint64_t epoch, uint64_t request) {
    far_epochs *epochs = &far_task_pool(t)->epochs;
    uint64_t current = load(&epochs->current);
    if (epoch != current + 1) /* our word forbids it, unless it counts no more */
        return far_fail(FAR_ERR_FENCED, "the epoch went on without this handle: it was declared dead");
    far_pin_count(t, current);
    int err = enter_epoch(t, epoch, current, request);
    if (err == 0)
        store(&epochs->current, epoch);
    far_pin_drop(t);
    return err;
}


/* What the handle holds is looked at after no pin is left that could add to it. */
static int fall_asleep(far_task *t, uint64_t current) {
    far_pool *pool = far_task_pool(t);
    far_epochs *epochs = &pool->epochs;
    assert(atomic_load_explicit(&epochs->waking, memory_order_relaxed) == 1);
    store(&epochs->current, 0);
    held_pins held = count_held(pool);
    if (held.at[0] + held.at[1] > 0 || (current != 0 && !far_memory_may_sleep(pool))) {
        store(&epochs->current, current);
        return 0;
    }
    return publish(t, 0, epochs->answered);
}


bool far_epoch_is_idle(const far_task *t) {
    const far_pool *pool = far_task_pool(t);
    return far_now(t) - load(&pool->epochs.used_at) >= IDLE_TICKS * far_tick(pool->fabric);
}


static int publish_oldest(far_task *t) {
    far_pool *pool = far_task_pool(t);
    far_epochs *epochs = &pool->epochs;
    uint64_t current = load(&epochs->current), published = load(&epochs->published), heard_epoch = 0;
    if (current == 0)
        return published == 0 ? 0 : fall_asleep(t, 0); /* an attempt to wake failed */
    held_pins held = count_held(pool);
    uint32_t heard = far_request_heard(pool, &heard_epoch), answer = epochs->answered;
    uint64_t oldest = held.at[(current - 1) & 1] ? current - 1 : current;
    assert(published <= current); /* pins are never older than what others see */
    if (heard != answer && far_request_is_met(pool) && oldest > heard_epoch) /* met, after the last pin had ended */
        answer = heard;
    if (held.used)
        store(&epochs->used_at, far_now(t));
    else if (answer == heard && far_epoch_is_idle(t)) {
        int err = fall_asleep(t, current);
        if (err < 0 || load(&epochs->current) == 0)
            return err;
    }
    return oldest > published || answer != epochs->answered
               ? publish(t, oldest > published ? oldest : published, answer)
               : 0;
}


typedef struct move {
    uint64_t epoch;
    bool ask; /* for those that are in the way whether they live */
} move;


/* Only this handle writes its pin and its answer: whatever else stands there was put there by damage. */
static bool is_changed(far_task *t, const far_client *client) {
    const far_epochs *epochs = &far_task_pool(t)->epochs;
    return client->pin != load(&epochs->published) || client->answered != epochs->answered;
}


/* Writes our words again. 1: the epoch is not moved now. */
static int write_anew(far_task *t) {
    const far_epochs *epochs = &far_task_pool(t)->epochs;
    int err = publish(t, load(&epochs->published), epochs->answered);
    return err < 0 ? err : 1;
}


/* The word says that this session is dead, or that somebody else has its id by now: it will be told. */
static bool is_no_more(const far_session *s, uint64_t word) {
    far_client_state state = far_client_state_of(word);
    return state == FAR_CLIENT_DEAD || (state == FAR_CLIENT_LIVE && far_client_generation_of(word) != s->generation);
}


/* The word of a session that lives says so, and names its handle: one that names another keeps that one alive for ever,
 * and the id of one that seems to be free is given out again. 1: it was put right, not now. */
static int mend_word(far_task *t, unsigned id, const far_client *client) {
    const far_session *own = far_task_pool(t)->team.own, *s = id == own->id ? own : t->session;
    uint64_t right = far_client_pack(FAR_CLIENT_LIVE, s->generation, own->id), old;
    if (id != s->id || client->word == right || is_no_more(s, client->word))
        return 0;
    int err = far_cas_word(t, far_client_entry(id), client->word, right, &old);
    return err < 0 ? err : 1;
}


/* 1: the word of this entry forbids the move. A handle of which nobody lives has no say. */
static int is_in_the_way(far_task *t, void *ctx, unsigned id, const far_client *client) {
    const move *m = ctx;
    if (id == far_task_pool(t)->team.own->id && is_changed(t, client))
        return write_anew(t);
    int mended = mend_word(t, id, client);
    if (mended == 0 && id == far_task_pool(t)->team.own->id)
        mended = far_open_table_mend(t, client->opened);
    if (mended != 0)
        return mended;
    if (client->pin == 0 || client->pin >= m->epoch || far_client_handle_of(client->word) != id)
        return 0;
    if (far_client_state_of(client->word) == FAR_CLIENT_LIVE && !m->ask)
        return 1;
    int gone = far_client_handle_gone(t, id);
    return gone < 0 ? gone : !gone;
}


static int advance(far_task *t, uint64_t epoch) {
    far_epochs *epochs = &far_task_pool(t)->epochs;
    unsigned requests = atomic_load_explicit(&epochs->requests, memory_order_relaxed);
    if (requests == 0)
        return 0;
    move m = {epoch, (epochs->blocked + 1) % BLOCKED_BEFORE_ASKING == 0};
    int err = far_clients_each(t, is_in_the_way, &m);
    if (err != 0) {
        epochs->blocked++;
        return err < 0 ? err : 0;
    }
    uint64_t old;
    err = far_cas_word(t, epoch_word, epoch - FAR_EPOCH_FIRST, epoch + 1 - FAR_EPOCH_FIRST, &old);
    if (err < 0)
        return err;
    learn(epochs, old + FAR_EPOCH_FIRST + (old + FAR_EPOCH_FIRST == epoch));
    atomic_fetch_sub_explicit(&epochs->requests, requests, memory_order_relaxed);
    epochs->blocked = 0;
    return 1;
}


static int tick(far_task *t) {
    far_epochs *epochs = &far_task_pool(t)->epochs;
    uint64_t epoch, request;
    int err = settle(t);
    if (err == 0)
        err = far_pins_settle(t);
    if (err == 0)
        err = read_epoch_and_request(t, &epoch, &request);
    uint64_t current = load(&epochs->current);
    if (err == 0 && current != 0 && epoch > current)
        err = move_on(t, epoch, request);
    if (err == 0)
        err = publish_oldest(t);
    return err < 0 ? err : advance(t, epoch);
}


int far_epoch_tick(far_task *t) {
    far_epochs *epochs = &far_task_pool(t)->epochs;
    if (!far_epoch_is_awake(far_task_pool(t)) || !take_flag(epochs))
        return 0;
    bool background = t->background;
    t->background = true;
    int result = tick(t);
    t->background = background;
    drop_flag(epochs);
    return result;
}
