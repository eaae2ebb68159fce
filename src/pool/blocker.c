/* See blocker.h. */
#include "pool/blocker.h"
#include "base/error.h"
#include "pool/epoch.h"
#include "pool/handle.h"

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
