/* The epoch protocol of a handle: pins, activation and quiescence, publishing the oldest pin, advancing the epoch, and
 * waiting for later epochs (epoch.h).
 *
 * Notation. G is the global epoch. For each handle, C is epochs.current, the epoch of new pins (0 if the handle is
 * quiescent), and P is the pin in its registry entry (0 if none). A task changes C or P only while it holds the lock
 * `epochs.waking`, and it waits for its WRITE of P before it releases the lock. So P has one writer at a time, although
 * tasks of several sessions write it.
 *
 * Advance: read G = e, then read the registry up to SLOTS_HIGH; CAS G from e to e+1 if no handle with a live session
 * has a published pin 0 < P < e.
 *
 * Claim: while a pin at e is held, G is e or e+1. A client breaks this only if it advances G from e+1 to e+2 while the
 * pin is held.
 *
 * - Activation. The handle writes P := x with x not above G, then reads G = e (on one connection, the WRITE takes
 *   effect before the READ), then sets C := e. A concurrent advance from e to e+1 may have read the registry before our
 *   WRITE, which is harmless. An advance from e+1 to e+2 read G = e+1 after that first advance, hence after our READ of
 *   G and our WRITE of P. It therefore reads 0 < P <= e < e+1 and does not advance. (A new entry is included in
 *   SLOTS_HIGH before it becomes live, so the scan does not miss it.)
 * - While the handle is active, P is at most every pin held, and P <= C. So no client advances G from C+1 to C+2; G is
 *   at most C+1, and C only takes values that G had before. The handle raises P to C only after it observed that no pin
 *   below C is left. It counts the pins at C-1 after C was set. A task that counts its pin at C-1 later than that finds
 *   C changed and undoes the count. (All these accesses are sequentially consistent, so one of the two observes the
 *   other.)
 * - Quiescence. The handle sets C := 0, then observes that no pin at all is counted, then writes P := 0. The same
 *   argument applies.
 *
 * At most two epochs are pinned at once in a handle: if the oldest pin is at e, G is at most e+1, and C, which follows
 * G, is e or e+1. So two counters per session, selected by the parity of the epoch, are sufficient.
 *
 * If a WRITE of P fails because its session was lost, it may take effect late, until that session is fenced at the
 * memory nodes. The handle does not touch P again until all its lost sessions are known to be fenced
 * (resolve_failed_write). For the same reason the pins of a lost session stay counted until it is fenced
 * (far_pins_release_fenced), although its operations have ended.
 *
 * P counts until all sessions of the handle are closed or fenced, because each session may hold pins. */
#include "pool/epoch/epoch.h"
#include "base/error.h"
#include "pool/catalog/catalog.h"
#include "pool/epoch/stalled.h"
#include "pool/gc/request.h"
#include "pool/handle.h"
#include "pool/kind.h"

#include <assert.h>

/* number of READs of the epoch with short pauses between them, before the pauses grow */
#define SHORT_WAITS 256
/* number of prevented advances after which the liveness of the handles that prevent them is checked */
#define ADVANCES_PER_LIVENESS_CHECK 8
/* Value of far_epochs.published if the content of our registry entry is unknown. It is neither 0 nor a valid epoch, so
 * the next tick writes the entry again. */
#define PUBLISHED_UNKNOWN 1
#define IDLE_TICKS        100 /* ticks without a pin after which the handle becomes quiescent */
#define THROTTLE_FACTOR   9   /* a throttled walk sleeps this many times as long as it worked */

/* number of words from REQUEST up to and excluding CATALOG */
#define WORDS_BEFORE_CATALOG ((FAR_SUPER_CATALOG - FAR_SUPER_REQUEST) / 8)

static const far_addr epoch_addr = FAR_SUPER_EPOCH, request_addr = FAR_SUPER_REQUEST, catalog_addr = FAR_SUPER_CATALOG;

typedef struct superblock_copy { /* The global epoch and the words from REQUEST, as one batch has read them. */
    uint64_t epoch;
    uint64_t words[FAR_SUPER_LINE_WORDS];
} superblock_copy;


static uint64_t load_seq_cst(const _Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_seq_cst);
}


static void store_seq_cst(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_seq_cst);
}


void far_epochs_open(far_epochs *epochs) {
    atomic_init(&epochs->known, FAR_EPOCH_FIRST);
}


void far_epochs_open_reader(far_epochs *epochs) {
    store_seq_cst(&epochs->current, FAR_EPOCH_FIRST);
}


void far_epoch_keep_active(far_pool *pool) {
    atomic_store_explicit(&pool->epochs.keep_active, true, memory_order_relaxed);
}


static bool try_lock_state(far_epochs *epochs) {
    unsigned off = 0;
    return atomic_compare_exchange_strong_explicit(&epochs->waking, &off, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}


static void unlock_state(far_epochs *epochs) {
    assert(atomic_load_explicit(&epochs->waking, memory_order_relaxed) == 1);
    atomic_store_explicit(&epochs->waking, 0, memory_order_release);
}


static void raise_known_epoch(far_task *t, uint64_t epoch) {
    far_epochs *epochs = &far_task_pool(t)->epochs;
    uint64_t known = load_seq_cst(&epochs->known);
    while (known < epoch)
        if (atomic_compare_exchange_weak_explicit(&epochs->known, &known, epoch, memory_order_seq_cst,
                                                  memory_order_seq_cst)) {
            atomic_store_explicit(&epochs->known_since, far_now(t), memory_order_relaxed);
            return;
        }
}


/* ---- Pins ---- */

/* Prepares the handle for its first pin at the epoch that was read, while the task is pinned. It observes the request
 * and the catalog, and then runs the epoch hooks of the open indexes. Pins up to `observed_up_to` may have been held
 * before the request and the catalog were observed. Returns 0 or an error. */
static int prepare_for_epoch(far_task *t, const superblock_copy *c, uint64_t observed_up_to) {
    far_pool *pool = far_task_pool(t);
    const uint64_t epoch = c->epoch, *catalog = c->words + WORDS_BEFORE_CATALOG;
    int err = far_catalog_observe(t, catalog[0], catalog[1]);
    if (err < 0)
        return err;
    /* after the catalog, because the handle acknowledges the request only if it has observed both */
    far_request_observe(pool, c->words[0], observed_up_to);
    for (far_index *index = far_pool_use_index(pool, NULL); index; index = far_pool_use_index(pool, index))
        if (err >= 0 && index->kind->epoch_hook)
            err = index->kind->epoch_hook(t, index, epoch);
    return err < 0 ? err : 0;
}


/* Takes the epoch from the word that was read, and fails if this epoch is lower than `known`, an epoch observed before.
 */
static int accept_epoch_word(far_task *t, uint64_t word, uint64_t known, uint64_t *epoch) {
    *epoch = word + FAR_EPOCH_FIRST;
    if (*epoch < known)
        return far_fail(FAR_ERR_CORRUPT, "the global epoch decreased from %llu to %llu, so the superblock is damaged",
                        (unsigned long long)known, (unsigned long long)*epoch);
    raise_known_epoch(t, *epoch);
    return 0;
}


/* Reads the epoch first, then the request, and then the catalog word, each with the words that follow it. READs on one
 * connection are ordered. So a client that observes an epoch reached after a request was made also observes the
 * request, and a client that observes a request made after an index was dropped also observes the drop. A single READ of
 * all words could tear and return the new epoch with the old request, or the new request with the old catalog word. */
static int read_superblock(far_task *t, superblock_copy *c) {
    uint64_t known = far_epoch_known(t), word;
    far_read(t, epoch_addr, &word, 8);
    far_read(t, request_addr, c->words, WORDS_BEFORE_CATALOG * 8);
    far_read(t, catalog_addr, c->words + WORDS_BEFORE_CATALOG, sizeof(c->words) - WORDS_BEFORE_CATALOG * 8);
    int err = far_wait(t);
    if (err < 0)
        return err;
    far_superblock_copy_store(far_task_pool(t), c->words);
    return accept_epoch_word(t, word, known, &c->epoch);
}


/* Waits, with the lock `epochs.waking` held, until no failed WRITE of our registry entry can take effect any more.
 * Called before the entry is written or the epoch state changes. */
static int resolve_failed_write(far_task *t) {
    far_pool *pool = far_task_pool(t);
    assert(atomic_load_explicit(&pool->epochs.waking, memory_order_relaxed) == 1);
    if (!pool->epochs.write_unconfirmed)
        return 0;
    int err = far_pins_release_fenced(t);
    for (unsigned attempt = 0; err == 0 && far_pins_are_unfenced(pool) && pool->fabric->ops->ask; attempt++) {
        far_back_off(t, attempt); /* the lost session's connection is closed, so node 0 will detect its failure soon */
        err = far_pins_release_fenced(t);
    }
    if (err < 0 || far_pins_are_unfenced(pool))
        return err < 0
                   ? err
                   : far_fail(FAR_ERR_BUSY,
                              "a session of this handle lost its connection and is not fenced yet: try again later");
    pool->epochs.write_unconfirmed = false;
    store_seq_cst(&pool->epochs.published, PUBLISHED_UNKNOWN);
    return 0;
}


/* Writes the epoch of our oldest pin and the number of the request that we acknowledge to our registry entry, in one
 * WRITE. */
static int publish_pin(far_task *t, uint64_t epoch, uint32_t acknowledged) {
    far_epochs *epochs = &far_task_pool(t)->epochs;
    const uint64_t words[] = {epoch, acknowledged};
    assert(atomic_load_explicit(&epochs->waking, memory_order_relaxed) == 1);
    _Static_assert(offsetof(far_client, pin) == 8 && offsetof(far_client, answered) == 16, "written together");
    far_write(t, far_client_entry(far_task_pool(t)->team.own->id) + offsetof(far_client, pin), words, sizeof(words));
    int err = far_wait(t);
    if (err == 0) {
        store_seq_cst(&epochs->published, epoch);
        epochs->answered = acknowledged;
    }
    epochs->write_unconfirmed = err < 0;
    return err;
}


static int fail_unprotected(const far_task *t) {
    return far_fail(
        FAR_ERR_CORRUPT,
        "the registry entry of this pool handle (client %u) is damaged, so other clients may reuse memory that "
        "it reads: close the handle and open the pool again",
        far_task_pool(t)->team.own->id);
}


/* Activates a quiescent handle; the caller holds the lock `epochs.waking`. The function publishes, as the handle's pin,
 * the newest epoch that this handle has observed before. That epoch is at most the current epoch, so the published pin
 * can only be too old, which is safe; the next tick raises it. */
static int activate_handle(far_task *t) {
    far_pool *pool = far_task_pool(t);
    far_epochs *epochs = &pool->epochs;
    const uint64_t word = load_seq_cst(&epochs->known), words[] = {word, epochs->answered};
    superblock_copy c;
    assert(t->pin.epoch == 0 && load_seq_cst(&epochs->current) == 0);
    int err = epochs->unprotected ? fail_unprotected(t) : resolve_failed_write(t);
    if (err < 0)
        return err;
    /* until the WRITE has succeeded, it is unknown which pin is published; if it fails, a tick withdraws the pin */
    store_seq_cst(&epochs->published, PUBLISHED_UNKNOWN);
    far_write(t, far_client_entry(pool->team.own->id) + offsetof(far_client, pin), words, sizeof(words));
    err = read_superblock(t, &c);
    epochs->write_unconfirmed = err < 0 && t->session->lost;
    if (err == 0)
        store_seq_cst(&epochs->published, word);
    uint32_t number = err < 0 ? 0 : far_request_unpack(c.words[0]).number;
    if (err == 0 && number != epochs->answered && !far_number_is_newer(number, epochs->answered))
        /* request numbers wrapped around while the handle was quiescent; without this WRITE, its last acknowledgement
         * would look newer than the current request */
        err = publish_pin(t, word, number);
    if (err < 0)
        return err;
    far_pin_count(t, c.epoch);
    err = prepare_for_epoch(t, &c, c.epoch - 1);
    if (err < 0) {
        far_pin_drop(t);
        return err;
    }
    store_seq_cst(&epochs->pins_used_at, far_now(t));
    store_seq_cst(&epochs->current, c.epoch);
    far_pool_wake(pool);
    return 0;
}


/* Activates the handle unless another task does so. Returns 0 if the task is pinned now. Returns 1 if another task
 * holds the lock `epochs.waking` or the handle is active already; the caller then tries again. Otherwise returns an
 * error. */
static int try_activate(far_task *t) {
    far_epochs *epochs = &far_task_pool(t)->epochs;
    if (!try_lock_state(epochs))
        return 1;
    int result = 1;
    if (load_seq_cst(&epochs->current) == 0) {
        bool background = t->background;
        t->background = true;
        result = activate_handle(t);
        t->background = background;
    }
    unlock_state(epochs);
    return result;
}


/* Sleeps in a background walk, so that other tasks get nine tenths of the time. The walk is no longer throttled after
 * any client has made another request, because that client may wait for the end of the walk. */
static void throttle_walk(far_task *t) {
    uint64_t worked = far_now(t) - t->rest_since, epoch;
    if (far_request_observed(far_task_pool(t), &epoch) != t->rest_request)
        t->rest_since = 0;
    else if (worked > 0)
        far_sleep(t, THROTTLE_FACTOR * worked);
    if (t->rest_since != 0)
        t->rest_since = far_now(t) | 1;
}


void far_task_throttle(far_task *t, bool rests) {
    uint64_t epoch;
    t->rest_request = far_request_observed(far_task_pool(t), &epoch);
    t->rest_since = rests && far_task_fabric(t)->at_once ? far_now(t) | 1 : 0;
}


/* Runs one tick and drives the other sessions, if this task belongs to the system session or if no housekeeping thread
 * exists that would do so. */
static int drive_epochs(far_task *t) {
    far_pool *pool = far_task_pool(t);
    if (t->session != pool->team.own && !far_session_list_is_unattended(&pool->team))
        return 0;
    int err = far_epoch_tick(t);
    far_session_list_drive(&pool->team);
    return err;
}


/* Requests the next epoch for a task that retries, because its progress detector compares observations across epochs
 * (task/progress.h). The detector is set aside during the tick, because the tick may check the liveness of a client
 * (far_client_confirm_failed), and that call would reset the time that the task has waited. */
static int advance_for_retry(far_task *t) {
    far_pool *pool = far_task_pool(t);
    far_progress *patience = t->patience;
    unsigned retries = t->retries;
    t->patience = NULL;
    far_epoch_request(pool);
    int err = drive_epochs(t);
    far_progress_reset(t);
    t->patience = patience;
    t->retries = retries;
    /* errors of other sessions or of other indexes do not concern this task */
    return err < 0 && t->session->lost ? err : 0;
}


int far_pin_take_slow(far_task *t) {
    far_pool *pool = far_task_pool(t);
    if (t->session->lost)
        return t->lost ? t->lost : t->session->lost;
    if (t->rest_since)
        throttle_walk(t);
    bool waits = (t->patience || far_stall_is_due(t)) && t->pin_sparing == FAR_SPARE_NO_PIN;
    if (t->pin_sparing == FAR_SPARE_NEXT_PIN)
        t->pin_sparing = FAR_SPARE_NO_PIN;
    int err = waits ? advance_for_retry(t) : 0;
    if (err < 0 || (waits && (err = far_stall_check(t)) < 0))
        return err;
    t->has_waited = false;
    for (unsigned attempt = 0;;) {
        uint64_t epoch = load_seq_cst(&pool->epochs.current);
        if (epoch != 0) {
            if (!far_pin_at(t, epoch))
                continue;
            if (t->patience && (err = far_progress_check(t)) < 0)
                far_pin_drop(t);
            return err;
        }
        if (t->session->lost)
            return t->session->lost;
        int result = try_activate(t);
        if (result <= 0)
            return result;
        if (load_seq_cst(&pool->epochs.current) != 0)
            continue;
        if (t->session == pool->team.own || far_session_list_is_unattended(&pool->team))
            /* the task that activates the handle may run in a session that only this thread can drive */
            far_session_list_drive(&pool->team);
        far_back_off(t, attempt++);
    }
}


/* An operation calls far_pin_take_inline for its first pin, and then finds no functions to run if its index was dropped
 * (far_index.operations). A task with a new pin in the middle of its work is refused here. */
int far_pin_take(far_task *t) {
    bool has_pin = t->pin.epoch != 0;
    int err = far_pin_take_inline(t);
    if (err < 0 || has_pin || atomic_load_explicit(&far_task_pool(t)->dropped_open, memory_order_relaxed) == 0)
        return err;
    if ((err = far_index_refuse_if_dropped(t, t->index_key)) < 0)
        far_pin_drop(t);
    return err;
}


/* ---- Lost sessions ---- */

static far_session *find_unfenced(far_pool *pool, const far_session *asker, unsigned id) {
    far_session *s = pool->team.first;
    while (s && (s == asker || s->id == 0 || (id != 0 && s->id != id) ||
                 !atomic_load_explicit(&s->pins.stuck, memory_order_seq_cst)))
        s = s->next;
    return s;
}


bool far_pins_are_unfenced(far_pool *pool) {
    pthread_mutex_lock(&pool->team.lock);
    bool stuck = find_unfenced(pool, NULL, 0) != NULL;
    pthread_mutex_unlock(&pool->team.lock);
    return stuck;
}


/* Releases the pins of lost sessions that are fenced. A lost session cannot wait for its own fence, so the call fails
 * in a task of one. Nor can the handle confirm the fence of its system session, because then the handle itself has
 * failed, and all its sessions end. */
int far_pins_release_fenced(far_task *t) {
    far_pool *pool = far_task_pool(t);
    const far_session *own = pool->team.own;
    if (t->session->lost)
        return far_fail_session_lost(t->session, t->session->lost);
    if (atomic_load_explicit(&own->pins.stuck, memory_order_seq_cst))
        return far_fail(FAR_ERR_FENCED,
                        "this pool handle was declared failed by another client: close it and open the pool again");
    for (;;) {
        unsigned id = 0, generation = 0;
        pthread_mutex_lock(&pool->team.lock);
        far_session *s = find_unfenced(pool, t->session, 0);
        if (s) {
            id = s->id;
            generation = s->generation;
        }
        pthread_mutex_unlock(&pool->team.lock);
        int dead = id == 0 ? 0 : far_client_confirm_failed(t, id, generation);
        if (dead <= 0)
            return dead;
        pthread_mutex_lock(&pool->team.lock);
        s = find_unfenced(pool, t->session, id); /* the session may have been removed from the list in the meantime */
        for (int i = 0; s && i < 2; i++)
            atomic_store_explicit(&s->pins.held[i], 0, memory_order_seq_cst);
        if (s)
            atomic_store_explicit(&s->pins.stuck, false, memory_order_seq_cst);
        pthread_mutex_unlock(&pool->team.lock);
        /* the operations of the lost session may have left objects that no index links */
        far_memory_note_failed_session(pool);
    }
}


/* ---- Reading and requesting epochs ---- */

uint64_t far_epoch(const far_task *t) {
    return t->pin.epoch;
}


uint64_t far_epoch_known(const far_task *t) {
    return load_seq_cst(&far_task_pool(t)->epochs.known);
}


uint64_t far_epoch_safe(const far_task *t) {
    return far_epoch_known(t) - 1;
}


int far_epoch_read(far_task *t, uint64_t *epoch) {
    uint64_t word, known = far_epoch_known(t);
    int err = far_read_word(t, epoch_addr, &word);
    return err < 0 ? err : accept_epoch_word(t, word, known, epoch);
}


void far_epoch_request(far_pool *pool) {
    if (atomic_fetch_add_explicit(&pool->epochs.requests, 1, memory_order_relaxed) != 0)
        return;
    atomic_store_explicit(&pool->epochs.requested_since, far_host_now(pool->fabric->host), memory_order_relaxed);
    far_pool_wake(pool);
}


bool far_epoch_is_active(const far_pool *pool) {
    return load_seq_cst(&pool->epochs.current) != 0 || load_seq_cst(&pool->epochs.published) != 0 ||
           atomic_load_explicit(&pool->epochs.requests, memory_order_relaxed) != 0;
}


/* Like drive_epochs, for a task that holds a pin and perhaps a lock. The pin of the task follows the epoch, and the old
 * pin counts until the new one is taken; if that is refused, the task keeps the old pin, because it may have to post
 * verbs before it ends. Tasks that wait for a lock rely on the advance of the epoch to detect whether
 * the lock's holder is running (task/progress.h). */
static int drive_epochs_pinned(far_task *t) {
    far_pin old = t->pin;
    uint64_t waits_since = t->waits_since;
    t->pin = (far_pin){0, 0};
    t->waits_since = 0; /* the new pin must not be refused, because the task may hold a lock */
    int err = drive_epochs(t), taken = far_pin_take(t);
    far_pin now = t->pin;
    t->waits_since = waits_since;
    t->pin = old;
    if (taken < 0)
        return taken;
    far_pin_drop(t);
    t->pin = now;
    return err;
}


/* Waits until the global epoch is at least `target`, starting from `epoch`, the newest observed one. Returns 0 then,
 * and 1 if `time` was reached first. `drive` runs one tick. */
static int wait_for_epoch(far_task *t, uint64_t epoch, uint64_t target, uint64_t time, int (*drive)(far_task *t)) {
    far_pool *pool = far_task_pool(t);
    bool own = t->session == pool->team.own;
    const uint64_t began = far_now(t);
    for (unsigned attempt = 0; epoch < target; attempt++) {
        far_note_wait(t);
        if (far_now(t) >= time)
            return 1;
        if (own && atomic_load_explicit(&pool->stopping, memory_order_relaxed))
            return far_fail(FAR_ERR_BUSY, "the pool handle is being closed");
        if (atomic_load_explicit(&pool->epochs.requests, memory_order_relaxed) == 0)
            far_epoch_request(pool);
        int err = drive(t);
        if (err == 0 && attempt < SHORT_WAITS)
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


/* Returns the epoch to wait for so that every pin is at least k epochs younger than the pins that exist now. If e0 is
 * the current epoch, a pin taken before this call is at e0 or earlier. When the epoch is E, every pin is at E-1 or
 * later. So at E = e0 + k + 1 every pin is at e0 + k or later. */
static uint64_t epoch_after(uint64_t epoch, unsigned k) {
    return epoch + k + 1;
}


int far_wait_epochs_until(far_task *t, unsigned k, uint64_t time) {
    uint64_t epoch;
    if (t->pin.epoch != 0)
        return far_fail(FAR_ERR_INVALID,
                        "a task with a pin cannot wait for epochs, because its own pin holds up the epoch");
    int err = far_epoch_read(t, &epoch);
    return err < 0 ? err : wait_for_epoch(t, epoch, epoch_after(epoch, k), time, drive_epochs);
}


static int wait_for_next_pinned(far_task *t, uint64_t time) {
    uint64_t epoch = far_epoch_known(t);
    return wait_for_epoch(t, epoch, epoch + 1, time, drive_epochs_pinned);
}


/* Waits for each epoch separately, because each epoch may be held up by a different client. */
static int wait_epochs_pinned(far_task *t, uint64_t target) {
    int err = 0;
    while (err == 0 && far_epoch_known(t) < target) {
        far_epoch_request(far_task_pool(t));
        err = wait_for_next_pinned(t, far_stall_search_time(t));
        if (err == 1)
            err = far_stall_resolve(t, wait_for_next_pinned);
    }
    return err;
}


/* The progress detector of the operation is set aside during the wait, so the detector does not refuse the pins of this
 * task. They must not be refused, because the task may hold a lock. */
int far_pin_after_epochs(far_task *t, unsigned k) {
    uint64_t rest_since = t->rest_since, began = far_now(t), epoch;
    far_progress *patience = t->patience;
    unsigned retries = t->retries;
    t->rest_since = 0;
    t->patience = NULL;
    int err = far_epoch_read(t, &epoch);
    if (err == 0)
        err = wait_epochs_pinned(t, epoch_after(epoch, k));
    far_progress_reset(t); /* discards the observations that the progress detector recorded during the wait */
    t->patience = patience;
    t->retries = retries;
    if (rest_since) /* time spent waiting does not count as work of a throttled walk */
        t->rest_since = (rest_since + far_now(t) - began) | 1;
    return err;
}


/* ---- Ticks ---- */

typedef struct pin_counts {
    unsigned at[2]; /* number of pins at even and at odd epochs */
    bool used;
} pin_counts;


static void add_session_pins(pin_counts *sum, far_session *s) {
    for (int i = 0; i < 2; i++)
        sum->at[i] += atomic_load_explicit(&s->pins.held[i], memory_order_seq_cst);
}


/* Counts the pins of all sessions. Pins that only the system session took since the last tick do not keep the handle
 * active. */
static pin_counts count_pins(far_pool *pool) {
    pin_counts sum = {{0, 0}, false};
    pthread_mutex_lock(&pool->team.lock);
    add_session_pins(&sum, pool->team.own);
    for (far_session *s = pool->team.first; s; s = s->next) {
        add_session_pins(&sum, s);
        if (atomic_load_explicit(&s->pins.used, memory_order_relaxed))
            sum.used |= atomic_exchange_explicit(&s->pins.used, false, memory_order_relaxed);
    }
    pthread_mutex_unlock(&pool->team.lock);
    sum.used |= atomic_exchange_explicit(&pool->epochs.keep_active, false, memory_order_relaxed);
    sum.used |= sum.at[0] + sum.at[1] > 0;
    return sum;
}


/* Enters the next epoch. The epoch hooks run while the published pin still protects the old epoch; then new pins are
 * taken at the new one. */
static int enter_next_epoch(far_task *t, const superblock_copy *c) {
    far_epochs *epochs = &far_task_pool(t)->epochs;
    uint64_t current = load_seq_cst(&epochs->current);
    /* our published pin prevents a larger step, unless the handle was declared failed and its entry no longer counts */
    if (c->epoch != current + 1)
        return far_fail(
            FAR_ERR_FENCED,
            "this pool handle was declared failed, and the epoch advanced past its pin: close it and open the "
            "pool again");
    far_pin_count(t, current);
    int err = prepare_for_epoch(t, c, current);
    if (err == 0)
        store_seq_cst(&epochs->current, c->epoch);
    far_pin_drop(t);
    return err;
}


/* Makes the handle quiescent unless it holds pins or memory that other clients may wait for. C is set to 0 first, so
 * that no new pin can add to what the handle holds while it is examined. */
static int become_quiescent(far_task *t, uint64_t current) {
    far_pool *pool = far_task_pool(t);
    far_epochs *epochs = &pool->epochs;
    assert(atomic_load_explicit(&epochs->waking, memory_order_relaxed) == 1);
    store_seq_cst(&epochs->current, 0);
    pin_counts held = count_pins(pool);
    if (held.at[0] + held.at[1] > 0 || (current != 0 && !far_memory_prepare_quiescence(pool))) {
        store_seq_cst(&epochs->current, current);
        return 0;
    }
    return publish_pin(t, 0, epochs->answered);
}


bool far_epoch_is_idle(const far_task *t) {
    const far_pool *pool = far_task_pool(t);
    return far_now(t) - load_seq_cst(&pool->epochs.pins_used_at) >= IDLE_TICKS * far_tick(pool->fabric);
}


static int publish_oldest_pin(far_task *t) {
    far_pool *pool = far_task_pool(t);
    far_epochs *epochs = &pool->epochs;
    uint64_t current = load_seq_cst(&epochs->current), published = load_seq_cst(&epochs->published), observed_epoch = 0;
    if (current == 0)
        /* an earlier attempt to activate the handle failed, so the published pin is withdrawn */
        return published == 0 ? 0 : become_quiescent(t, 0);
    pin_counts held = count_pins(pool);
    uint32_t observed = far_request_observed(pool, &observed_epoch), acknowledged = epochs->answered;
    uint64_t oldest = held.at[(current - 1) & 1] ? current - 1 : current;
    assert(published <= current); /* the published pin is never newer than a pin held */
    /* The request is acknowledged when the handle has done everything that the request demands, and no pin is left that
     * was taken before the handle observed the request. */
    if (observed != acknowledged && far_request_advance(pool) && oldest > observed_epoch)
        acknowledged = observed;
    if (held.used)
        store_seq_cst(&epochs->pins_used_at, far_now(t));
    else if (acknowledged == observed && far_epoch_is_idle(t)) {
        int err = become_quiescent(t, current);
        if (err < 0 || load_seq_cst(&epochs->current) == 0)
            return err;
    }
    return oldest > published || acknowledged != epochs->answered
               ? publish_pin(t, oldest > published ? oldest : published, acknowledged)
               : 0;
}


typedef struct advance_attempt {
    uint64_t epoch;
    bool check_liveness; /* true if the liveness of handles that prevent the advance must be checked */
} advance_attempt;


/* Returns whether the state word shows that this session was fenced, or that its id was issued again. That is no damage;
 * the next verb of the session reports that it was fenced. */
static bool session_was_ended(const far_session *s, uint64_t word) {
    far_client_state state = far_client_state_of(word);
    return state == FAR_CLIENT_FENCED || (state == FAR_CLIENT_LIVE && far_client_generation_of(word) != s->generation);
}


/* Returns whether an entry of this handle is damaged. Only this handle writes its pin and its acknowledged request, and
 * the state word of a live session does not change, so any other value is damage. */
static bool own_entry_is_damaged(far_task *t, unsigned id, const far_client *client) {
    const far_epochs *epochs = &far_task_pool(t)->epochs;
    const far_session *own = far_task_pool(t)->team.own, *s = id == own->id ? own : t->session;
    if (id != s->id || session_was_ended(s, client->word))
        return false;
    uint64_t published = load_seq_cst(&epochs->published);
    bool is_ours = client->word == far_client_pack(FAR_CLIENT_LIVE, s->generation, own->id);
    return !is_ours || (s == own && published != PUBLISHED_UNKNOWN &&
                        (client->pin != published || client->answered != epochs->answered));
}


/* Ends the use of this handle, because other clients may not see its pins and may reuse memory that its operations read.
 * The handle takes no new pin, and its published pin stays. So if the entry still contains that pin, the epoch does not
 * advance past operations that are running. The objects in its lists stay there, because other clients may take them
 * for leaked and free them; they are found by a collection after the handle is closed. */
static void stop_taking_pins(far_epochs *epochs) {
    assert(atomic_load_explicit(&epochs->waking, memory_order_relaxed) == 1);
    epochs->unprotected = true;
    store_seq_cst(&epochs->current, 0);
}


/* Visitor of the registry scan before an advance. Returns 1 if the entry prevents the advance, and FAR_ERR_CORRUPT if it
 * is a damaged entry of this handle. An entry does not count if its handle has no live session. */
static int check_entry_for_advance(far_task *t, void *ctx, unsigned id, const far_client *client) {
    const advance_attempt *attempt = ctx;
    if (own_entry_is_damaged(t, id, client))
        return fail_unprotected(t);
    if (client->pin == 0 || client->pin >= attempt->epoch || far_client_handle_of(client->word) != id)
        return 0;
    if (far_client_state_of(client->word) == FAR_CLIENT_LIVE && !attempt->check_liveness)
        return 1;
    int gone = far_handle_confirm_failed(t, id);
    return gone < 0 ? gone : !gone;
}


static int try_advance(far_task *t, uint64_t epoch) {
    far_epochs *epochs = &far_task_pool(t)->epochs;
    unsigned requests = atomic_load_explicit(&epochs->requests, memory_order_relaxed);
    if (requests == 0)
        return 0;
    advance_attempt attempt = {epoch, (epochs->failed_advances + 1) % ADVANCES_PER_LIVENESS_CHECK == 0};
    int err = far_clients_each(t, check_entry_for_advance, &attempt);
    if (err == FAR_ERR_CORRUPT)
        stop_taking_pins(epochs);
    if (err != 0) {
        epochs->failed_advances++;
        return err < 0 ? err : 0;
    }
    uint64_t old;
    err = far_cas_word(t, epoch_addr, epoch - FAR_EPOCH_FIRST, epoch + 1 - FAR_EPOCH_FIRST, &old);
    if (err < 0)
        return err;
    raise_known_epoch(t, old + FAR_EPOCH_FIRST + (old + FAR_EPOCH_FIRST == epoch));
    atomic_fetch_sub_explicit(&epochs->requests, requests, memory_order_relaxed);
    epochs->failed_advances = 0;
    return 1;
}


static int tick_locked(far_task *t) {
    far_epochs *epochs = &far_task_pool(t)->epochs;
    superblock_copy c;
    int err = epochs->unprotected ? fail_unprotected(t) : resolve_failed_write(t);
    if (err == 0)
        err = far_pins_release_fenced(t);
    if (err == 0)
        err = read_superblock(t, &c);
    uint64_t current = load_seq_cst(&epochs->current);
    if (err == 0 && current != 0 && c.epoch > current)
        err = enter_next_epoch(t, &c);
    if (err == 0)
        err = publish_oldest_pin(t);
    return err < 0 ? err : try_advance(t, c.epoch);
}


/* Visitor of the registry scan of a check. */
static int check_own_entry(far_task *t, void *ctx, unsigned id, const far_client *client) {
    (void)ctx;
    return own_entry_is_damaged(t, id, client) ? fail_unprotected(t) : 0;
}


int far_epoch_check_entries(far_task *t) {
    far_epochs *epochs = &far_task_pool(t)->epochs;
    far_session_list *team = &far_task_pool(t)->team;
    for (unsigned attempt = 0; !try_lock_state(epochs); attempt++) {
        if (t->session == team->own || far_session_list_is_unattended(team))
            /* the task that holds the lock may run in a session that only this thread can drive */
            far_session_list_drive(team);
        far_back_off(t, attempt);
    }
    int err = epochs->unprotected ? fail_unprotected(t) : resolve_failed_write(t);
    if (err == 0)
        err = far_clients_each(t, check_own_entry, NULL);
    if (err == FAR_ERR_CORRUPT)
        stop_taking_pins(epochs);
    unlock_state(epochs);
    return err;
}


int far_epoch_tick(far_task *t) {
    far_epochs *epochs = &far_task_pool(t)->epochs;
    if (!far_epoch_is_active(far_task_pool(t)) || !try_lock_state(epochs))
        return 0;
    bool background = t->background;
    t->background = true;
    int result = tick_locked(t);
    t->background = background;
    unlock_state(epochs);
    return result;
}
