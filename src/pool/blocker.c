/* See blocker.h. */
#include "pool/blocker.h"
#include "base/error.h"
#include "pool/epoch.h"
#include "pool/handle.h"
#include "task/patience.h"

#define HELD_TICKS 20 /* how long the epoch is waited for when it seems to be held up */
#define HELD_TRIES 4  /* ... for each that seems to be in the way and goes on */
/* How long at most one is watched that is ended for it. Who wakes up shows an old pin too, until it comes to its next
 * step: on a busy machine that may take a while. */
#define ENDED_TICKS 1000
/* How long an operation waits for what one that was refused waited for, while the same epoch stands. */
#define NEXT_TICKS 250

typedef struct search {
    uint64_t epoch;
    far_blocker *found;
} search;


/* Keeps the one that went furthest: who stopped in an operation is one epoch behind; who has just woken up shows an older
 * pin, but not for long. */
static int find_blocker(far_task *t, void *ctx, unsigned id, const far_client *client) {
    const search *s = ctx;
    if (far_client_state_of(client->word) == FAR_CLIENT_LIVE && far_client_handle_of(client->word) == id &&
        id != far_task_pool(t)->team.own->id && client->pin > s->found->pin && client->pin < s->epoch)
        *s->found = (far_blocker){id, far_client_generation_of(client->word), client->pin};
    return 0;
}


int far_blocker_find(far_task *t, uint64_t epoch, far_blocker *b) {
    search s = {epoch, b};
    *b = (far_blocker){0};
    return far_clients_each(t, find_blocker, &s);
}


int far_blocked(far_task *t, const char *what) {
    far_blocker b;
    char who[FAR_CLIENT_WORDS];
    uint64_t epoch;
    int err = far_epoch_read(t, &epoch);
    if (err < 0 || (err = far_blocker_find(t, epoch, &b)) < 0)
        return err;
    if (b.id == 0)
        return far_fail(FAR_ERR_BUSY, "%s waits for other clients, which do not get on", what);
    far_client_words(t, b.id, b.generation, who);
    return far_fail(FAR_ERR_BUSY, "%s waits for %s, which is stopped in the middle of an operation", what, who);
}


static uint64_t evict_after(const far_task *t) {
    return (uint64_t)far_task_pool(t)->options.evict_after_ms * 1000000;
}


static uint64_t watched_for(const far_task *t) {
    const uint64_t tick = far_tick(far_task_fabric(t)), least = HELD_TICKS * tick, most = ENDED_TICKS * tick;
    return evict_after(t) < least ? least : evict_after(t) < most ? evict_after(t) : most;
}


/* The blocker has not gone on, nor given its id to another, since it was found. */
static int is_still_there(far_task *t, const far_blocker *b) {
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


int far_blocker_stands(far_task *t, uint64_t epoch, far_blocker *b, int (*wait)(far_task *t, uint64_t time)) {
    int err, stands = 0;
    for (unsigned tries = 0; tries < HELD_TRIES && stands == 0; tries++) {
        if ((err = far_blocker_find(t, epoch, b)) < 0 || b->id == 0)
            return err;
        err = wait(t, far_now(t) + watched_for(t));
        if (err != 1)
            return err;
        stands = is_still_there(t, b);
    }
    return stands;
}


/* Where an eviction ends a process: never our own, which may have the pool open twice. */
bool far_blocker_may_be_ended(far_task *t, const far_blocker *b, uint64_t ns) {
    const far_pool *pool = far_task_pool(t);
    if (evict_after(t) == 0 || ns < evict_after(t) || (!pool->fabric->ops->evict && !pool->fabric->ops->ask))
        return false;
    int64_t process = far_client_process(t, b->id, b->generation);
    return process == 0 || process != far_client_process(t, pool->team.own->id, pool->team.own->generation);
}


static int end_one(far_task *t, unsigned id, unsigned generation) {
    int dead = far_is_dead(t, id, generation);
    if (dead == 0 && (dead = far_ask(t, FAR_ASK_EVICT, id, generation)) == 0)
        dead = far_is_dead(t, id, generation);
    return dead < 0 ? dead : 0;
}


/* A session of the handle that is in the way. */
static int end_session(far_task *t, void *ctx, unsigned id, const far_client *client) {
    const far_blocker *b = ctx;
    if (far_client_state_of(client->word) != FAR_CLIENT_LIVE || far_client_handle_of(client->word) != b->id)
        return 0;
    return end_one(t, id, far_client_generation_of(client->word));
}


/* The handle's own session first, by its generation: it may have left meanwhile, and the id be another's. Where it was
 * ended the id is nobody else's, and all sessions that name it are of that handle. */
int far_blocker_end(far_task *t, const far_blocker *b) {
    uint64_t word;
    int err = end_one(t, b->id, b->generation);
    if (err == 0)
        err = far_read_word(t, far_client_entry(b->id), &word);
    if (err < 0 || far_client_state_of(word) != FAR_CLIENT_DEAD || far_client_generation_of(word) != b->generation)
        return err;
    return far_clients_each(t, end_session, (void *)b);
}


uint64_t far_held_up_after(const far_task *t) {
    const uint64_t tick = far_tick(far_task_fabric(t)), usual = FAR_BLOCKED_TICKS * tick;
    if (atomic_load_explicit(&far_task_pool(t)->epochs.held_up, memory_order_relaxed) == far_epoch_known(t))
        return NEXT_TICKS * tick;
    return evict_after(t) && evict_after(t) < usual ? evict_after(t) : usual;
}


int far_held_up_by(far_task *t, const far_blocker *b, uint64_t ns) {
    char who[FAR_CLIENT_WORDS];
    if (far_blocker_may_be_ended(t, b, ns) && far_blocker_end(t, b) == 0)
        return 0;
    if (t->session->lost)
        return t->session->lost;
    atomic_store_explicit(&far_task_pool(t)->epochs.held_up, far_epoch_known(t), memory_order_relaxed);
    far_client_words(t, b->id, b->generation, who);
    return far_fail(FAR_ERR_BUSY, "the operation waits for %s, which is stopped in the middle of one", who);
}


/* What the search itself sees is no news for the operation. */
int far_held_up(far_task *t) {
    far_patience *patience = t->patience;
    uint64_t still = far_patience_still(t), epoch;
    bool background = t->background;
    far_blocker b;
    if (still < far_held_up_after(t))
        return 0;
    t->patience = NULL;
    t->background = true;
    int err = far_epoch_read(t, &epoch);
    if (err == 0 && (err = far_blocker_stands(t, epoch, &b, far_wait_for_next_epoch)) == 1)
        err = far_held_up_by(t, &b, still);
    t->background = background;
    far_patience_forget(t);
    t->patience = patience;
    far_patience_forget(t); /* if it goes on, the wait begins anew */
    return err < 0 ? err : 0;
}
