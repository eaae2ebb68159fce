/* Lists the clients of a pool and evicts one of them (end_client.h). Both functions first collect all live clients in a
 * task. */
#include "client/end_client.h"
#include "base/error.h"
#include "base/grow.h"
#include "client/client.h"
#include "client/names.h"
#include "client/op.h"

#include <stdlib.h>

typedef struct client_list {
    far_client_info *items;
    size_t count;
    unsigned evicted;
    int64_t process; /* the process that the evicted client must belong to; 0: any */
    bool force;
    far_client_info *killed;
} client_list;


static int add_live_client(far_task *t, void *ctx, unsigned id, const far_client *client) {
    client_list *r = ctx;
    if (far_client_state_of(client->word) != FAR_CLIENT_LIVE)
        return 0;
    unsigned generation = far_client_generation_of(client->word), handle = far_client_handle_of(client->word);
    int dead = far_client_confirm_failed(t, id, generation);
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


static int run_list_clients(far_task *t, void *arg) {
    t->label = "clients";
    return far_clients_each(t, add_live_client, arg);
}


static int call_in_session(far_session *s, int (*run)(far_task *t, void *arg), client_list *r) {
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    err = far_session_call(s, FAR_STATS_OTHER, false, run, r);
    far_submitted_scans_deliver(s);
    far_call_leave(s);
    return err;
}


int far_pool_clients(far_session *s, int (*each)(void *ctx, const far_client_info *client), void *ctx) {
    client_list r = {0};
    int calls = 0, err = call_in_session(s, run_list_clients, &r);
    for (size_t i = 0; err >= 0 && i < r.count; i++) {
        calls++;
        if (each(ctx, &r.items[i]))
            break;
    }
    free(r.items);
    return err < 0 ? err : calls;
}


/* Kills the process, and marks its other sessions as failed in the registry. Without that, other clients would detect
 * the failure of each session separately. */
static int evict_process(far_task *t, const client_list *r, const far_client_info *found) {
    far_control request = {.kind = FAR_CONTROL_EVICT,
                           .id = found->id,
                           .generation = found->generation,
                           .process = found->process,
                           .force = r->force};
    far_control_send_all(t, &request, 1);
    int err = request.answer;
    for (size_t i = 0; err >= 0 && i < r->count; i++)
        if (r->items[i].process == found->process)
            err = far_client_confirm_failed(t, r->items[i].id, r->items[i].generation);
    return err;
}


/* Fences all sessions of the client's handle. Used over a network, where the process itself cannot be killed. The
 * sessions of a handle depend on each other, so no session is left. */
static int evict_handle(far_task *t, const client_list *r, const far_client_info *found) {
    int err = found->own ? far_fail(FAR_ERR_INVALID, "session %u belongs to the calling handle", found->id) : 0;
    for (size_t i = 0; err >= 0 && i < r->count; i++)
        if (r->items[i].handle == found->handle) {
            err = far_control_send(t, FAR_CONTROL_EVICT, r->items[i].id, r->items[i].generation);
            if (err >= 0)
                err = far_client_confirm_failed(t, r->items[i].id, r->items[i].generation);
        }
    return err;
}


static int run_evict(far_task *t, void *arg) {
    client_list *r = arg;
    const far_fabric_ops *ops = far_task_fabric(t)->ops;
    t->label = "evict";
    int err = far_clients_each(t, add_live_client, r);
    if (err < 0)
        return err;
    const far_client_info *found = NULL;
    for (size_t i = 0; i < r->count; i++)
        if (r->items[i].id == r->evicted)
            found = &r->items[i];
    if (!found)
        return far_fail(FAR_ERR_NOT_FOUND, "there is no live client with the id %u", r->evicted);
    if (r->process && found->process != r->process)
        return far_fail(FAR_ERR_NOT_FOUND, "client %u belongs to process %lld, not %lld", found->id,
                        (long long)found->process, (long long)r->process);
    if (!ops->evict && !ops->ask)
        return far_fail(FAR_ERR_UNSUPPORTED, "%s: this fabric cannot evict clients", far_task_fabric(t)->uri);
    err = ops->ask ? evict_handle(t, r, found) : evict_process(t, r, found);
    *r->killed = *found;
    return err < 0 ? err : 0;
}


int far_pool_evict(far_session *s, unsigned id, int64_t process, bool force, far_client_info *killed) {
    client_list r = {.evicted = id, .process = process, .force = force, .killed = killed};
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    err = far_check_may_write(s);
    far_call_leave(s);
    if (err == 0)
        err = call_in_session(s, run_evict, &r);
    free(r.items);
    return err;
}
