/* Clients by name, and the end of one. */
#include "client/end_client.h"
#include "base/error.h"
#include "base/grow.h"
#include "client/client.h"
#include "client/names.h"
#include "client/op.h"

#include <stdlib.h>

typedef struct roll {
    far_client_info *items;
    size_t count;
    unsigned evicted;
    int64_t process; /* 0: any */
    far_client_info *killed;
} roll;


static int call_roll(far_task *t, void *ctx, unsigned id, const far_client *client) {
    roll *r = ctx;
    if (far_client_state_of(client->word) != FAR_CLIENT_LIVE)
        return 0;
    unsigned generation = far_client_generation_of(client->word), handle = far_client_handle_of(client->word);
    int dead = far_is_dead(t, id, generation);
    if (dead)
        return dead < 0 ? dead : 0;
    far_name name;
    int err = far_client_name(t, id, generation, &name);
    if (err < 0)
        return err;
    far_client_info *items = far_grow(r->items, r->count, sizeof(*items));
    if (!items)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for the list of clients");
    r->items = items;
    r->items[r->count++] = (far_client_info){.id = id,
                                             .generation = generation,
                                             .handle = handle,
                                             .process = name.process,
                                             .own = handle == far_task_pool(t)->team.own->id};
    return 0;
}


static int run_roll(far_task *t, void *arg) {
    t->label = "clients";
    return far_clients_each(t, call_roll, arg);
}


static int call(far_session *s, int (*run)(far_task *t, void *arg), roll *r) {
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    err = far_session_call(s, FAR_STATS_OTHER, false, run, r);
    far_ops_deliver(s);
    far_call_leave(s);
    return err;
}


int far_pool_clients(far_session *s, int (*each)(void *ctx, const far_client_info *client), void *ctx) {
    roll r = {0};
    int told = 0, err = call(s, run_roll, &r);
    for (size_t i = 0; err >= 0 && i < r.count; i++) {
        told++;
        if (each(ctx, &r.items[i]))
            break;
    }
    free(r.items);
    return err < 0 ? err : told;
}


/* The other sessions of that process are dead as well: nobody should have to find that out one by one. */
static int end_process(far_task *t, const roll *r, const far_client_info *found) {
    int err = far_ask(t, FAR_ASK_EVICT, found->id, found->generation);
    for (size_t i = 0; err >= 0 && i < r->count; i++)
        if (r->items[i].process == found->process)
            err = far_is_dead(t, r->items[i].id, r->items[i].generation);
    return err;
}


/* Over a network to evict is to cut: all sessions of the handle, because none of them can go on without the others. */
static int cut_handle(far_task *t, const roll *r, const far_client_info *found) {
    int err = found->own ? far_fail(FAR_ERR_INVALID, "session %u belongs to this very handle", found->id) : 0;
    for (size_t i = 0; err >= 0 && i < r->count; i++)
        if (r->items[i].handle == found->handle) {
            err = far_ask(t, FAR_ASK_EVICT, r->items[i].id, r->items[i].generation);
            if (err >= 0)
                err = far_is_dead(t, r->items[i].id, r->items[i].generation);
        }
    return err;
}


static int run_evict(far_task *t, void *arg) {
    roll *r = arg;
    const far_fabric_ops *ops = far_task_fabric(t)->ops;
    t->label = "evict";
    int err = far_clients_each(t, call_roll, r);
    if (err < 0)
        return err;
    const far_client_info *found = NULL;
    for (size_t i = 0; i < r->count; i++)
        if (r->items[i].id == r->evicted)
            found = &r->items[i];
    if (!found)
        return far_fail(FAR_ERR_NOT_FOUND, "no live client has the number %u", r->evicted);
    if (r->process && found->process != r->process)
        return far_fail(FAR_ERR_NOT_FOUND, "client %u is of process %lld, not %lld", found->id,
                        (long long)found->process, (long long)r->process);
    if (!ops->evict && !ops->ask)
        return far_fail(FAR_ERR_UNSUPPORTED, "%s: clients of this fabric cannot be ended from here",
                        far_task_fabric(t)->uri);
    err = ops->ask ? cut_handle(t, r, found) : end_process(t, r, found);
    *r->killed = *found;
    return err < 0 ? err : 0;
}


int far_pool_evict(far_session *s, unsigned id, int64_t process, far_client_info *killed) {
    roll r = {.evicted = id, .process = process, .killed = killed};
    int err = call(s, run_evict, &r);
    free(r.items);
    return err;
}
