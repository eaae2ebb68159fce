/* Finds, confirms and evicts clients that hold up the epoch (stalled.h). */
#include "pool/epoch/stalled.h"
#include "base/error.h"
#include "pool/epoch/epoch.h"
#include "pool/handle.h"
#include "task/progress.h"

#include <assert.h>

/* The clients that hold up the epoch are observed for OBSERVED_TICKS, but for at most a share of the bound, before one
 * is considered stalled. Before an eviction they are observed for half of evict_after_ms, but for at most a share of
 * the bound, because a handle that has just become active publishes an old pin too, until its next tick; on a busy
 * machine that may take a while. */
#define OBSERVED_TICKS       20u
#define OBSERVED_SHARE       20u
#define OBSERVED_SHARE_EVICT 10u
/* share of the bound that an operation waits for the stalled client if another operation was already refused at the
 * same epoch */
#define KNOWN_STALL_SHARE 40u
/* An operation is refused this share of the bound before its end, because it examines its waiting time only before it
 * takes a new pin. */
#define REFUSAL_SHARE        10u
#define CLIENTS_OBSERVED_MAX 16u

/* The handles that hold up an epoch, those with the newest pins if there are more of them. */
typedef struct stall_search {
    uint64_t epoch;
    unsigned count;
    far_stalled_client found[CLIENTS_OBSERVED_MAX];
} stall_search;


/* ---- Finding stalled clients ---- */

static void add_found_client(stall_search *s, far_stalled_client b) {
    far_stalled_client *oldest = &s->found[0];
    if (s->count < CLIENTS_OBSERVED_MAX) {
        s->found[s->count++] = b;
        return;
    }
    for (unsigned i = 1; i < s->count; i++)
        if (s->found[i].pin < oldest->pin)
            oldest = &s->found[i];
    if (b.pin > oldest->pin)
        *oldest = b;
}


/* Visitor of the registry that adds a handle of another process or pool handle with a published pin below the epoch. */
static int consider_client(far_task *t, void *ctx, unsigned id, const far_client *client) {
    stall_search *s = ctx;
    if (far_client_state_of(client->word) == FAR_CLIENT_LIVE && far_client_handle_of(client->word) == id &&
        id != far_task_pool(t)->team.own->id && client->pin != 0 && client->pin < s->epoch)
        add_found_client(s, (far_stalled_client){id, far_client_generation_of(client->word), client->pin});
    return 0;
}


static int search_clients(far_task *t, uint64_t epoch, stall_search *s) {
    *s = (stall_search){.epoch = epoch};
    return far_clients_each(t, consider_client, s);
}


static bool search_contains(const stall_search *s, const far_stalled_client *b) {
    for (unsigned i = 0; i < s->count; i++)
        if (s->found[i].id == b->id && s->found[i].generation == b->generation && s->found[i].pin == b->pin)
            return true;
    return false;
}


/* Returns the client with the newest pin of those that both searches found; its id is 0 if there is none. A handle that
 * stopped in an operation is exactly one epoch behind. A handle that has just become active publishes an older pin, but
 * only for a short time. */
static far_stalled_client newest_in_both(const stall_search *before, const stall_search *after) {
    far_stalled_client newest = {0};
    for (unsigned i = 0; i < before->count; i++)
        if (before->found[i].pin > newest.pin && search_contains(after, &before->found[i]))
            newest = before->found[i];
    return newest;
}


int far_stalled_client_find(far_task *t, uint64_t epoch, far_stalled_client *b) {
    stall_search s;
    int err = search_clients(t, epoch, &s);
    *b = newest_in_both(&s, &s);
    return err;
}


int far_fail_stalled(far_task *t, const char *what) {
    far_stalled_client b;
    char name[FAR_CLIENT_DESCRIPTION];
    uint64_t epoch;
    int err = far_epoch_read(t, &epoch);
    if (err < 0 || (err = far_stalled_client_find(t, epoch, &b)) < 0)
        return err;
    if (b.id == 0)
        return far_fail(FAR_ERR_BUSY, "%s waits for other clients, which make no progress", what);
    far_client_describe(t, b.id, b.generation, name);
    return far_fail(FAR_ERR_BUSY, "%s waits for %s, which is stopped in the middle of an operation", what, name);
}


static uint64_t eviction_delay(const far_task *t) {
    return (uint64_t)far_task_pool(t)->options.evict_after_ms * 1000000;
}


static uint64_t observation_time(const far_task *t) {
    const uint64_t bound = far_stall_bound(far_task_fabric(t)), ticks = OBSERVED_TICKS * far_tick(far_task_fabric(t)),
                   least = ticks < bound / OBSERVED_SHARE ? ticks : bound / OBSERVED_SHARE,
                   half = eviction_delay(t) / 2, most = bound / OBSERVED_SHARE_EVICT;
    return half < least ? least : half < most ? half : most;
}


/* One word, so that the client and its pin always belong together. */
static uint64_t pack_stalled_client(const far_stalled_client *b) {
    assert(b->id != 0 && b->id < 1u << 16 && b->generation < 1u << 16);
    return (uint64_t)b->generation << 48 | (uint64_t)b->id << 32 | (uint32_t)b->pin;
}


void far_stalled_client_record(far_task *t, const far_stalled_client *b) {
    atomic_store_explicit(&far_task_pool(t)->epochs.stalled_client, pack_stalled_client(b), memory_order_relaxed);
}


/* Returns whether one of these clients, with this pin, is recorded as stalled. Sets *b to that client. */
static bool find_known_client(far_task *t, const stall_search *s, far_stalled_client *b) {
    const uint64_t known = atomic_load_explicit(&far_task_pool(t)->epochs.stalled_client, memory_order_relaxed);
    for (unsigned i = 0; i < s->count; i++)
        if (pack_stalled_client(&s->found[i]) == known) {
            *b = s->found[i];
            return true;
        }
    return false;
}


int far_wait_for_next_epoch(far_task *t, uint64_t time) {
    return far_wait_epochs_until(t, 0, time);
}


int far_stalled_client_confirm(far_task *t, uint64_t epoch, far_stalled_client *b,
                               int (*wait)(far_task *t, uint64_t time)) {
    stall_search before, after;
    *b = (far_stalled_client){0};
    int err = search_clients(t, epoch, &before);
    if (err < 0 || before.count == 0)
        return err;
    if (find_known_client(t, &before, b))
        return 1;
    err = wait(t, far_now(t) + observation_time(t));
    if (err != 1)
        return err;
    if ((err = search_clients(t, epoch, &after)) < 0)
        return err;
    *b = newest_in_both(&before, &after);
    return b->id != 0;
}


/* ---- Evicting clients ---- */

/* Returns whether this handle may evict the client. On some fabrics an eviction ends a process. Our own process must
 * not be ended, even if it has the pool open twice. */
bool far_stalled_client_may_be_evicted(far_task *t, const far_stalled_client *b, uint64_t ns) {
    const far_pool *pool = far_task_pool(t);
    if (eviction_delay(t) == 0 || ns < eviction_delay(t) || (!pool->fabric->ops->evict && !pool->fabric->ops->ask))
        return false;
    int64_t process = far_client_process(t, b->id, b->generation);
    return process == 0 || process != far_client_process(t, pool->team.own->id, pool->team.own->generation);
}


static int evict_session(far_task *t, unsigned id, unsigned generation) {
    int dead = far_client_confirm_failed(t, id, generation);
    if (dead == 0 && (dead = far_control_send(t, FAR_CONTROL_EVICT, id, generation)) == 0)
        dead = far_client_confirm_failed(t, id, generation);
    return dead < 0 ? dead : 0;
}


/* Visitor of the registry that evicts one session of the stalled handle. */
static int evict_session_of_handle(far_task *t, void *ctx, unsigned id, const far_client *client) {
    const far_stalled_client *b = ctx;
    if (far_client_state_of(client->word) != FAR_CLIENT_LIVE || far_client_handle_of(client->word) != b->id)
        return 0;
    return evict_session(t, id, far_client_generation_of(client->word));
}


/* Evicts all sessions of the stalled handle. The system session is evicted first, with its generation, because the
 * handle may have closed meanwhile and the id may belong to another client. Once the system session is fenced, its id
 * is not issued again, so all sessions that name this id belong to the stalled handle. */
int far_stalled_client_evict(far_task *t, const far_stalled_client *b) {
    uint64_t word;
    int err = evict_session(t, b->id, b->generation);
    if (err == 0)
        err = far_read_word(t, far_client_entry(b->id), &word);
    if (err < 0 || far_client_state_of(word) != FAR_CLIENT_FENCED || far_client_generation_of(word) != b->generation)
        return err;
    return far_clients_each(t, evict_session_of_handle, (void *)b);
}


/* ---- The waiting time of an operation ---- */

bool far_stall_has_refused(const far_task *t) {
    return atomic_load_explicit(&far_task_pool(t)->epochs.refused_epoch, memory_order_relaxed) == far_epoch_known(t);
}


/* Returns how long an operation waits until it is refused or evicts the stalled client. */
static uint64_t stall_timeout(const far_task *t) {
    const uint64_t bound = far_stall_bound(far_task_fabric(t)), shorter = bound / KNOWN_STALL_SHARE,
                   least = 2 * observation_time(t);
    if (far_stall_has_refused(t))
        return shorter > least ? shorter : least;
    return eviction_delay(t) && eviction_delay(t) < bound ? eviction_delay(t) : bound - bound / REFUSAL_SHARE;
}


/* Returns how long an operation waits until it searches for a stalled client. The observation of the client is a part
 * of the timeout. */
static uint64_t search_delay(const far_task *t) {
    const uint64_t timeout = stall_timeout(t), observed = observation_time(t);
    return timeout > 2 * observed ? timeout - observed : timeout / 2;
}


/* Returns since when the handle observes that the epoch does not advance although an advance is requested; now if none
 * is requested. */
static uint64_t epoch_stands_since(const far_task *t) {
    const far_epochs *epochs = &far_task_pool(t)->epochs;
    const uint64_t known = atomic_load_explicit(&epochs->known_since, memory_order_relaxed),
                   requested = atomic_load_explicit(&epochs->requested_since, memory_order_relaxed);
    if (atomic_load_explicit(&epochs->requests, memory_order_relaxed) == 0)
        return far_now(t);
    return known > requested ? known : requested;
}


/* Returns for how long the epoch must not have advanced before a client may be considered stalled. Half of the timeout
 * is enough to refuse an operation. An eviction demands the whole time. */
static uint64_t standing_delay(const far_task *t) {
    return eviction_delay(t) ? search_delay(t) : search_delay(t) / 2;
}


/* Returns since when the waiting time of the task counts. */
static uint64_t waiting_since(const far_task *t) {
    const uint64_t waits = far_waits_since(t), stands = t->many_waits ? epoch_stands_since(t) : 0;
    return waits > stands ? waits : stands;
}


uint64_t far_stall_deadline(const far_task *t) {
    const uint64_t bound = far_stall_bound(far_task_fabric(t)), end = waiting_since(t) + bound,
                   least = far_now(t) + bound / OBSERVED_SHARE;
    return end > least ? end : least;
}


bool far_stall_is_due(const far_task *t) {
    if (!t->has_waited)
        return false;
    const uint64_t search = search_delay(t), early = far_stall_bound(far_task_fabric(t)) / KNOWN_STALL_SHARE;
    return far_now(t) >= waiting_since(t) + (search < early ? search : early);
}


uint64_t far_stall_search_time(const far_task *t) {
    const uint64_t waited = waiting_since(t) + search_delay(t), stood = epoch_stands_since(t) + standing_delay(t);
    return waited > stood ? waited : stood;
}


/* Evicts the client if that is allowed, and returns 0 then. Otherwise refuses the operation. */
static int evict_or_refuse(far_task *t, const far_stalled_client *b) {
    far_epochs *epochs = &far_task_pool(t)->epochs;
    const uint64_t waits = waiting_since(t), stands = epoch_stands_since(t), since = waits > stands ? waits : stands,
                   now = far_now(t) | 1;
    char name[FAR_CLIENT_DESCRIPTION];
    if (far_stalled_client_may_be_evicted(t, b, now - since) && far_stalled_client_evict(t, b) == 0)
        return 0;
    if (t->session->lost)
        return t->session->lost;
    far_stalled_client_record(t, b);
    atomic_store_explicit(&epochs->refused_epoch, far_epoch_known(t), memory_order_relaxed);
    far_client_describe(t, b->id, b->generation, name);
    return far_fail(FAR_ERR_BUSY, "the operation waits for %s, which is stopped in the middle of an operation", name);
}


int far_stall_resolve(far_task *t, int (*wait)(far_task *t, uint64_t time)) {
    uint64_t epoch;
    far_stalled_client b;
    int err = far_epoch_read(t, &epoch);
    if (err < 0 || far_now(t) < far_stall_search_time(t)) /* the epoch may have advanced in the meantime */
        return err;
    err = far_stalled_client_confirm(t, epoch, &b, wait);
    if (err == 1)
        err = evict_or_refuse(t, &b);
    if (err == 0) /* no stalled client holds up the operation, so its waiting time begins again */
        t->waits_since = 0;
    return err;
}


/* The progress detector is set aside while this function reads the registry, because those READs are not observations
 * of the operation. */
int far_stall_check(far_task *t) {
    far_progress *patience = t->patience;
    unsigned retries = t->retries;
    bool background = t->background;
    if (far_now(t) < far_stall_search_time(t))
        return 0;
    t->patience = NULL;
    t->background = true;
    int err = far_stall_resolve(t, far_wait_for_next_epoch);
    t->background = background;
    far_progress_reset(t);
    t->patience = patience;
    t->retries = retries;
    return err;
}


int far_stall_wait(far_task *t) {
    far_note_wait(t);
    if (!far_stall_is_due(t))
        return 0;
    far_epoch_request(far_task_pool(t));
    return far_stall_check(t);
}
