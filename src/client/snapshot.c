/* Reads a statistics snapshot of a pool (snapshot.h): first the catalog, then the memory usage, then the registry with
 * the status records of the handles. */
#include "client/snapshot.h"
#include "base/error.h"
#include "base/grow.h"
#include "base/text.h"
#include "client/client.h"
#include "client/names.h"
#include "client/op.h"
#include "pool/catalog/layout.h"

#include <stdlib.h>
#include <string.h>

/* attempts of a handle that may only read: it has no pin, so it may read memory that was just reused, which looks damaged
 */
#define UNPINNED_TRIES 16


static void *grow_array(void *items, size_t count, size_t bytes) {
    void *larger = far_grow(items, count, bytes);
    if (!larger)
        far_fail(FAR_ERR_NO_MEMORY, "no memory for a statistics snapshot of the pool");
    return larger;
}


/* ---- Indexes ---- */

static int add_index(far_snapshot *survey, const far_index_record *record) {
    far_snapshot_index_info *items = grow_array(survey->indexes, survey->index_count, sizeof(*items));
    if (!items)
        return FAR_ERR_NO_MEMORY;
    survey->indexes = items;
    far_snapshot_index_info *index = &items[survey->index_count++];
    *index = (far_snapshot_index_info){.uid = (uint32_t)record->uid, .keys = record->keys};
    memcpy(index->name, record->name, sizeof(index->name));
    memcpy(index->kind, record->kind, sizeof(index->kind));
    memcpy(index->options, record->options, sizeof(index->options));
    far_make_printable(index->name); /* in a damaged pool, they may contain any bytes */
    far_make_printable(index->options);
    /* The number can be negative, because handles publish key counts independently: those published so far may contain
     * more removals than insertions. */
    if ((int64_t)index->keys < 0)
        index->keys = 0;
    return 0;
}


static int read_indexes(far_task *t, far_snapshot *survey) {
    far_catalog_view view;
    int err = far_catalog_read(t, &view);
    for (unsigned i = 0; err >= 0 && i < view.count; i++) {
        far_index_record record;
        err = far_catalog_read_record(t, &view.entries[i], &record);
        if (err >= 0)
            err = add_index(survey, &record);
    }
    far_catalog_unpin(t);
    return err < 0 ? err : 0;
}


static void add_index_bytes(void *ctx, uint32_t uid, uint64_t bytes) {
    far_snapshot *survey = ctx;
    for (size_t i = 0; i < survey->index_count; i++)
        if (survey->indexes[i].uid == uid)
            survey->indexes[i].bytes += bytes;
}


/* ---- Handles ---- */

static far_snapshot_handle_info *find_handle(const far_snapshot *survey, unsigned id) {
    for (size_t i = 0; i < survey->handle_count; i++)
        if (survey->handles[i].id == id)
            return &survey->handles[i];
    return NULL;
}


/* Reads the status record of a handle, and takes the list of its open indexes from it. `addr` is the address in its
 * registry entry, or 0. A record that does not name the handle counts as absent. */
static int read_status_record(far_task *t, far_snapshot_handle_info *handle, far_addr addr) {
    far_status_record *b = &handle->bulletin;
    if (addr == 0 || !far_may_be_object(t, addr, sizeof(*b)))
        return 0;
    far_read(t, addr, b, sizeof(*b));
    int err = far_wait(t);
    if (err < 0 || b->magic != FAR_STATUS_MAGIC || b->client != handle->id || b->generation != handle->generation) {
        *b = (far_status_record){0};
        return err;
    }
    b->host[FAR_HOST_MAX] = b->command[sizeof(b->command) - 1] = 0;
    if (b->open_count > FAR_STATUS_OPEN_MAX)
        b->open_count = FAR_STATUS_OPEN_MAX;
    return 0;
}


/* Sets the process name of a handle that has no status record, because it has opened no index. The fabric may still
 * know the name. */
static int read_handle_name(far_task *t, far_snapshot_handle_info *handle) {
    far_name name;
    far_status_record *b = &handle->bulletin;
    int err = far_client_name(t, handle->id, handle->generation, &name);
    handle->process = name.process ? name.process : (int64_t)b->process;
    if (b->process == 0) {
        memcpy(b->host, name.host, sizeof(b->host));
        memcpy(b->command, name.command, sizeof(b->command));
    }
    return err;
}


static int add_handle(far_task *t, far_snapshot *survey, unsigned id, const far_client *client) {
    unsigned generation = far_client_generation_of(client->word);
    far_snapshot_handle_info *items = grow_array(survey->handles, survey->handle_count, sizeof(*items));
    if (!items)
        return FAR_ERR_NO_MEMORY;
    survey->handles = items;
    far_snapshot_handle_info *handle = &items[survey->handle_count++];
    *handle =
        (far_snapshot_handle_info){.id = id, .generation = generation, .own = id == far_task_pool(t)->team.own->id};
    int err = read_status_record(t, handle, client->status);
    return err < 0 ? err : read_handle_name(t, handle);
}


/* Adds the client to the snapshot if it is the system session of a live handle. The caller holds a pin, so the
 * status record that the registry entry names is not reused meanwhile. */
static int read_client(far_task *t, void *ctx, unsigned id, const far_client *client) {
    far_snapshot *survey = ctx;
    if (far_client_state_of(client->word) != FAR_CLIENT_LIVE)
        return 0;
    int dead = far_client_confirm_failed(t, id, far_client_generation_of(client->word));
    if (dead != 0)
        return dead < 0 ? dead : 0;
    return far_client_handle_of(client->word) == id ? add_handle(t, survey, id, client) : 0;
}


static int count_session(far_task *t, void *ctx, unsigned id, const far_client *client) {
    unsigned owner = far_client_handle_of(client->word);
    far_snapshot_handle_info *handle = owner == id ? NULL : find_handle(ctx, owner);
    (void)t;
    if (handle && far_client_state_of(client->word) == FAR_CLIENT_LIVE)
        handle->sessions++;
    return 0;
}


static int read_handles(far_task *t, far_snapshot *survey) {
    int err = far_pin_take(t);
    if (err >= 0)
        err = far_clients_each(t, read_client, survey);
    far_catalog_unpin(t);
    return err < 0 ? err : far_clients_each(t, count_session, survey);
}


/* ---- The whole snapshot ---- */

static int run_snapshot(far_task *t, void *arg) {
    far_snapshot *survey = arg;
    t->label = "survey";
    int err = read_indexes(t, survey);
    if (err >= 0)
        err = far_memory_stat(t, &survey->usage, add_index_bytes, survey);
    if (err >= 0)
        err = read_handles(t, survey);
    if (err >= 0)
        err = far_epoch_read(t, &survey->usage.epoch);
    survey->usage.memory_nodes = far_task_fabric(t)->nodes;
    for (size_t i = 0; i < survey->handle_count; i++)
        survey->usage.sessions += 1 + survey->handles[i].sessions;
    return err < 0 ? err : 0;
}


static int compare_names(const void *a, const void *b) {
    return strcmp(((const far_snapshot_index_info *)a)->name, ((const far_snapshot_index_info *)b)->name);
}


int far_snapshot_take(far_session *s, far_snapshot *survey) {
    *survey = (far_snapshot){0};
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    err = far_session_call(s, FAR_STATS_OTHER, false, run_snapshot, survey);
    for (unsigned tries = 1; err == FAR_ERR_CORRUPT && s->pool->fabric->reads_only && tries < UNPINNED_TRIES; tries++) {
        far_snapshot_free(survey);
        err = far_session_call(s, FAR_STATS_OTHER, false, run_snapshot, survey);
    }
    far_submitted_scans_deliver(s);
    far_call_leave(s);
    if (survey->index_count)
        qsort(survey->indexes, survey->index_count, sizeof(*survey->indexes), compare_names);
    return err;
}


void far_snapshot_free(far_snapshot *survey) {
    free(survey->handles);
    free(survey->indexes);
    *survey = (far_snapshot){0};
}


const far_snapshot_index_info *far_snapshot_index_by_uid(const far_snapshot *survey, uint32_t uid) {
    for (size_t i = 0; i < survey->index_count; i++)
        if (survey->indexes[i].uid == uid)
            return &survey->indexes[i];
    return NULL;
}


const far_snapshot_index_info *far_snapshot_index_by_name(const far_snapshot *survey, const char *name) {
    for (size_t i = 0; i < survey->index_count; i++)
        if (strcmp(survey->indexes[i].name, name) == 0)
            return &survey->indexes[i];
    return NULL;
}
