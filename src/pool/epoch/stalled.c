/* Finds, confirms and evicts clients that hold up the epoch (stalled.h). */
#include "pool/epoch/stalled.h"
#include "base/error.h"
#include "pool/epoch/epoch.h"
#include "pool/handle.h"
#include "task/progress.h"

#define OBSERVED_TICKS_MIN 20 /* least number of ticks for which a client is observed before it is considered stalled */
/* largest number of clients that are observed one after the other, if each of them makes progress */
#define OBSERVATIONS_MAX   4
/* Largest number of ticks for which a client is observed before it is evicted. A handle that has just become active
 * publishes an old pin too, until its next tick; on a busy machine that may take a while. */
#define OBSERVED_TICKS_MAX 1000
/* number of ticks for which an operation waits for the stalled client if another operation was already refused at the
 * same epoch */
#define KNOWN_STALL_TICKS 250

typedef struct stall_search {
    uint64_t epoch;
    far_stalled_client *found;
} stall_search;


/* Visitor of the registry that keeps, of all handles with a published pin below the epoch, the one with the newest pin.
 * A handle that stopped in an operation is exactly one epoch behind. A handle that has just become active publishes an
 * older pin, but only for a short time. */
static int consider_client(far_task *t, void *ctx, unsigned id, const far_client *client) {
    const stall_search *s = ctx;
    if (far_client_state_of(client->word) == FAR_CLIENT_LIVE && far_client_handle_of(client->word) == id &&
        id != far_task_pool(t)->team.own->id && client->pin > s->found->pin && client->pin < s->epoch)
        *s->found = (far_stalled_client){id, far_client_generation_of(client->word), client->pin};
    return 0;
}


int far_stalled_client_find(far_task *t, uint64_t epoch, far_stalled_client *b) {
    stall_search s = {epoch, b};
    *b = (far_stalled_client){0};
    return far_clients_each(t, consider_client, &s);
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
    const uint64_t tick = far_tick(far_task_fabric(t)), least = OBSERVED_TICKS_MIN * tick,
                   most = OBSERVED_TICKS_MAX * tick;
    return eviction_delay(t) < least ? least : eviction_delay(t) < most ? eviction_delay(t) : most;
}


/* Returns 1 if the client is still live under the same generation and has not changed its published pin. */
static int check_still_stalled(far_task *t, const far_stalled_client *b) {
    far_client client;
    far_read(t, far_client_entry(b->id), &client, sizeof(client));
    int err = far_wait(t);
    return err < 0 ? err
                   : far_client_state_of(client.word) == FAR_CLIENT_LIVE &&
                         far_client_generation_of(client.word) == b->generation && client.pin == b->pin;
}


int far_wait_for_next_epoch(far_task *t, uint64_t time) {
    return far_wait_epochs_until(t, 0, time);
}


int far_stalled_client_confirm(far_task *t, uint64_t epoch, far_stalled_client *b, int (*wait)(far_task *t, uint64_t time)) {
    int err, stands = 0;
    for (unsigned tries = 0; tries < OBSERVATIONS_MAX && stands == 0; tries++) {
        if ((err = far_stalled_client_find(t, epoch, b)) < 0 || b->id == 0)
            return err;
        err = wait(t, far_now(t) + observation_time(t));
        if (err != 1)
            return err;
        stands = check_still_stalled(t, b);
    }
    return stands;
}


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


uint64_t far_stall_timeout(const far_task *t) {
    const uint64_t tick = far_tick(far_task_fabric(t)), usual = FAR_STALL_TICKS * tick;
    if (atomic_load_explicit(&far_task_pool(t)->epochs.stalled_epoch, memory_order_relaxed) == far_epoch_known(t))
        return KNOWN_STALL_TICKS * tick;
    return eviction_delay(t) && eviction_delay(t) < usual ? eviction_delay(t) : usual;
}


int far_stall_resolve(far_task *t, const far_stalled_client *b, uint64_t ns) {
    char name[FAR_CLIENT_DESCRIPTION];
    if (far_stalled_client_may_be_evicted(t, b, ns) && far_stalled_client_evict(t, b) == 0)
        return 0;
    if (t->session->lost)
        return t->session->lost;
    atomic_store_explicit(&far_task_pool(t)->epochs.stalled_epoch, far_epoch_known(t), memory_order_relaxed);
    far_client_describe(t, b->id, b->generation, name);
    return far_fail(FAR_ERR_BUSY, "the operation waits for %s, which is stopped in the middle of an operation", name);
}


/* The progress detector is set aside while this function reads the registry, because those READs are not observations
 * of the operation. */
int far_stall_check(far_task *t) {
    far_progress *patience = t->patience;
    uint64_t still = far_progress_quiet_time(t), epoch;
    bool background = t->background;
    far_stalled_client b;
    if (still < far_stall_timeout(t))
        return 0;
    t->patience = NULL;
    t->background = true;
    int err = far_epoch_read(t, &epoch);
    if (err == 0 && (err = far_stalled_client_confirm(t, epoch, &b, far_wait_for_next_epoch)) == 1)
        err = far_stall_resolve(t, &b, still);
    t->background = background;
    far_progress_reset(t);
    t->patience = patience;
    far_progress_reset(t); /* the operation may continue, so the time that it waited no longer counts */
    return err < 0 ? err : 0;
}
