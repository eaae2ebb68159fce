/* Public functions on whole indexes (create, open, close, drop, list, measure, check) and on the pool (stat, check).
 * Functions named run_* are task functions. A task first collects the items for a callback of the user. Then the
 * callback is called on the caller's stack, without a pin, so it may block and may use the session. */
#include "base/error.h"
#include "base/text.h"
#include "client/checksum.h"
#include "client/client.h"
#include "client/op.h"
#include "pool/catalog/catalog.h"
#include "pool/catalog/layout.h"
#include "pool/catalog/options.h"
#include "pool/epoch/stalled.h"
#include "pool/gc/request.h"
#include "pool/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* attempts to open or create an index that other clients create and drop at the same time */
#define CREATE_TRIES 8
/* attempts to run a collection while another client runs one, which may take seconds */
#define COLLECT_TRIES 100000
/* maximum number of collections of one repair */
#define REPAIR_COLLECTIONS 16
/* pause in ns between two checks of a close that is in progress */
#define CLOSE_PAUSE_NS 10000


/* ---- Names and kinds ---- */

static int check_name(const char *name) {
    if (!name)
        return far_fail(FAR_ERR_INVALID, "name: is NULL");
    size_t length = strnlen(name, FAR_NAME_MAX + 1);
    if (length == 0)
        return far_fail(FAR_ERR_INVALID, "name: is empty");
    if (length > FAR_NAME_MAX)
        return far_fail(FAR_ERR_INVALID, "name: '%.16s...' has more than %d characters", name, FAR_NAME_MAX);
    for (size_t i = 0; i < length; i++)
        if (name[i] < ' ' || name[i] > '~' || name[i] == '/' || name[i] == ',')
            return far_fail(FAR_ERR_INVALID, "name: character %zu is not a printable ASCII character, or is '/' or ','",
                            i + 1);
    return 0;
}


int far_kinds(int (*each)(void *ctx, const char *kind, const char *what_for, const char *options), void *ctx) {
    int count = 0;
    if (!each)
        return far_fail(FAR_ERR_INVALID, "each: is NULL");
    for (unsigned i = 0; far_index_kinds[i]; i++) {
        char text[FAR_OPTIONS_DESCRIPTION];
        if (!far_index_kind_shown(far_index_kinds[i]))
            continue;
        count++;
        far_index_options_describe(far_index_kinds[i], text, sizeof(text));
        if (each(ctx, far_index_kinds[i]->name, far_index_kinds[i]->what_for, text))
            break;
    }
    return count;
}


/* Reports an unknown kind, with a list of the kinds of this build. */
static int fail_unknown_kind(const char *kind) {
    char names[128] = "";
    size_t used = 0;
    for (unsigned i = 0; far_index_kinds[i] && used < sizeof(names); i++)
        if (far_index_kind_shown(far_index_kinds[i]))
            used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", used ? ", " : "",
                                     far_index_kinds[i]->name);
    return far_fail(FAR_ERR_INVALID, "kind: there is no '%.40s' in this build (there are: %s)", kind, names);
}


/* ---- Creating, opening, closing, dropping ---- */

typedef struct index_request {
    const char *name, *options;
    const far_index_kind *kind;
    far_index *index;
} index_request;


static int try_create(far_task *t, void *arg) {
    index_request *n = arg;
    return far_catalog_create(t, n->name, n->kind, n->options, &n->index);
}


static int run_create(far_task *t, void *arg) {
    t->label = "create";
    int err = try_create(t, arg);
    if (err == FAR_ERR_NO_MEMORY)
        err = far_run_out_of_memory(t, try_create, arg);
    return err == FAR_ERR_NO_MEMORY ? far_describe_full_pool(t, err) : err;
}


int far_index_create(far_session *s, const char *name, const char *kind, const char *options, far_index **index) {
    int64_t values[FAR_OPTIONS_MAX];
    index_request n = {.name = name, .options = options};
    if (!index)
        return far_fail(FAR_ERR_INVALID, "index: is NULL");
    *index = NULL;
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    err = check_name(name);
    if (err >= 0)
        err = far_check_may_write(s);
    if (err >= 0 && !kind)
        err = far_fail(FAR_ERR_INVALID, "kind: is NULL");
    if (err >= 0 && !(n.kind = far_index_kind_named(kind)))
        err = fail_unknown_kind(kind);
    if (err >= 0)
        err = far_index_options_parse(n.kind, options, values);
    if (err >= 0)
        err = far_index_options_check_public(n.kind, options);
    if (err >= 0)
        err = far_session_call(s, FAR_STATS_OTHER, false, run_create, &n);
    if (err >= 0)
        *index = n.index;
    far_submitted_scans_deliver(s);
    far_call_leave(s);
    return err;
}


static int try_open(far_task *t, void *arg) {
    index_request *n = arg;
    return far_catalog_open(t, n->name, &n->index);
}


static int run_open(far_task *t, void *arg) {
    t->label = "open";
    int err = try_open(t, arg);
    return err == FAR_ERR_NO_MEMORY ? far_run_out_of_memory(t, try_open, arg) : err;
}


int far_index_open(far_session *s, const char *name, far_index **index) {
    index_request n = {.name = name};
    if (!index)
        return far_fail(FAR_ERR_INVALID, "index: is NULL");
    *index = NULL;
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    if ((err = check_name(name)) >= 0 && (err = far_check_may_write(s)) >= 0)
        err = far_session_call(s, FAR_STATS_OTHER, false, run_open, &n);
    if (err >= 0)
        *index = n.index;
    far_submitted_scans_deliver(s);
    far_call_leave(s);
    return err;
}


/* Returns 0 if the open index has the kind and the options that the caller requests, else FAR_ERR_EXISTS. */
static int check_same_kind_and_options(const far_index *index, const char *kind,
                                       const int64_t wanted[FAR_OPTIONS_MAX]) {
    if (strcmp(index->kind->name, kind) != 0)
        return far_fail(FAR_ERR_EXISTS, "index '%s' exists and is of kind %s, not %s", index->name, index->kind->name,
                        kind);
    for (unsigned i = 0; i < far_index_option_count(index->kind); i++)
        if (index->options[i] != wanted[i])
            return far_fail(FAR_ERR_EXISTS,
                            "index '%s' exists with another value of option %s than requested (its options: %s)",
                            index->name, far_index_option_at(index->kind, i).name,
                            index->options_text[0] ? index->options_text : "the defaults");
    return 0;
}


int far_index_open_or_create(far_session *s, const char *name, const char *kind, const char *options,
                             far_index **index) {
    int64_t wanted[FAR_OPTIONS_MAX];
    const far_index_kind *known = kind ? far_index_kind_named(kind) : NULL;
    int err = FAR_ERR_NOT_FOUND;
    if (known) { /* The options are parsed even if the index exists, so that a malformed option is always an error. */
        err = far_index_options_parse(known, options, wanted);
        if (err < 0)
            return err;
        err = far_index_open(s, name, index);
    }
    for (unsigned tries = 0; err == FAR_ERR_NOT_FOUND && tries < CREATE_TRIES; tries++) {
        err = far_index_create(s, name, kind, options, index);
        if (err != FAR_ERR_EXISTS)
            return err;
        /* Another client has created the index first. It may already have dropped it again; then the loop continues. */
        err = far_index_open(s, name, index);
    }
    if (err < 0)
        return err;
    err = check_same_kind_and_options(*index, kind, wanted);
    if (err == 0)
        return 0;
    char words[FAR_MESSAGE_BYTES]; /* The close may replace the error message, so the message is saved. */
    strcpy(words, far_last_error());
    far_index_close(*index);
    *index = NULL;
    return far_fail(err, "%s", words);
}


typedef struct closing {
    far_index *index;
    atomic_bool done;
} closing;


static void run_close(far_task *t, void *arg) {
    closing *c = arg;
    t->label = "close";
    t->background = true;
    far_catalog_close(t, c->index);
    atomic_store_explicit(&c->done, true, memory_order_release); /* The waiting thread may free `c` from here on. */
}


static bool start_close(far_pool *pool, closing *c) {
    far_session_enter(pool->team.own);
    bool started = far_task_new(pool->team.own, FAR_STATS_OTHER, run_close, c) != NULL;
    far_session_leave(pool->team.own);
    return started;
}


/* Closes the index in a task of the system session. The task may have to wait for other tasks that use the index, such
 * as idle hooks. Housekeeping drives those tasks, but only while no other thread is inside the system session.
 * Therefore this thread does not wait inside the session. It runs slices of housekeeping and pauses between them. */
void far_index_close(far_index *index) {
    if (!index || far_pool_is_of_parent_process(index->pool))
        return;
    far_pool *pool = index->pool;
    closing c = {.index = index};
    if (far_pool_enter(pool) < 0) {
        /* far_pool_close may be using the index, so the index must not be freed before the close of the pool has ended.
         */
        far_pool_await_close(pool);
        far_catalog_close_locally(index);
        return;
    }
    far_host *host = pool->fabric->host;
    bool started = false;
    /* The index holds a reference to the handle, which may be the last one. This function needs the handle after the
     * index is freed, so it takes its own reference. */
    far_pool_reference(pool);
    for (;;) {
        started = started || start_close(pool, &c);
        far_housekeeping(pool);
        if (atomic_load_explicit(&c.done, memory_order_acquire))
            break;
        far_parker parker = {0};
        host->ops->park(host, &parker, far_host_now(host) + CLOSE_PAUSE_NS);
    }
    far_pool_leave(pool);
    far_pool_release(pool);
}


static int try_drop(far_task *t, void *arg) {
    const index_request *n = arg;
    return far_catalog_drop(t, n->name);
}


static int run_drop(far_task *t, void *arg) {
    t->label = "drop";
    int err = try_drop(t, arg);
    return err == FAR_ERR_NO_MEMORY ? far_run_out_of_memory(t, try_drop, arg) : err;
}


int far_index_drop(far_session *s, const char *name) {
    index_request n = {.name = name};
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    if ((err = check_name(name)) >= 0 && (err = far_check_may_write(s)) >= 0)
        err = far_session_call(s, FAR_STATS_OTHER, false, run_drop, &n);
    far_submitted_scans_deliver(s);
    far_call_leave(s);
    return err < 0 ? err : 0;
}


/* ---- Listing ---- */

typedef struct listed {
    char name[FAR_NAME_MAX + 1], kind[16];
} listed;

typedef struct listing {
    listed *items;
    size_t count, size;
    int error;
} listing;


static int add_listed(void *ctx, const char *name, const char *kind) {
    listing *l = ctx;
    if (l->count == l->size) {
        size_t size = l->size ? 2 * l->size : 16;
        listed *items = realloc(l->items, size * sizeof(*items));
        if (!items)
            return l->error = far_fail(FAR_ERR_NO_MEMORY, "no memory for the list of indexes");
        l->items = items;
        l->size = size;
    }
    listed *item = &l->items[l->count++];
    memset(item, 0, sizeof(*item));
    strncpy(item->name, name, FAR_NAME_MAX);
    strncpy(item->kind, kind, sizeof(item->kind) - 1);
    far_make_printable(item->name); /* in a damaged pool, they may contain any bytes */
    far_make_printable(item->kind);
    return 0;
}


static int run_list(far_task *t, void *arg) {
    listing *l = arg;
    t->label = "list";
    int err = far_catalog_list(t, add_listed, l);
    return l->error ? l->error : err;
}


static int compare_listed(const void *a, const void *b) {
    return strcmp(((const listed *)a)->name, ((const listed *)b)->name);
}


int far_index_list(far_session *s, int (*each)(void *ctx, const char *name, const char *kind), void *ctx) {
    listing l = {0};
    int calls = 0, err = far_call_enter(s);
    if (err < 0)
        return err;
    if (!each)
        err = far_fail(FAR_ERR_INVALID, "each: is NULL");
    else
        err = far_session_call(s, FAR_STATS_OTHER, false, run_list, &l);
    far_submitted_scans_deliver(s);
    far_call_leave(s);
    if (l.count)
        qsort(l.items, l.count, sizeof(listed), compare_listed);
    for (size_t i = 0; err >= 0 && i < l.count; i++) {
        calls++;
        if (each(ctx, l.items[i].name, l.items[i].kind))
            break;
    }
    free(l.items);
    return err < 0 ? err : calls;
}


/* ---- Usage and checks of one index ---- */

typedef struct index_measurement {
    far_walk walk; /* must be the first member: the callbacks cast its address to index_measurement */
    far_index *index;
    far_usage *usage;
    far_report *report;
} index_measurement;


static int count_object(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    (void)index, (void)type, (void)addr;
    index_measurement *m = (index_measurement *)walk;
    m->usage->pool_bytes += far_alloc_round(size);
    return 0;
}


static int run_usage(far_task *t, void *arg) {
    index_measurement *m = arg;
    far_usage *usage = m->usage;
    t->label = "usage";
    t->index_key = m->index->uid;
    memset(usage, 0, sizeof(*usage));
    int err = m->index->kind->usage(t, m->index, usage);
    if (err >= 0)
        err = m->index->kind->walk(t, m->index, &m->walk);
    usage->value_bytes -= usage->keys * far_sum_bytes(m->index);
    uint64_t stored = usage->key_bytes + usage->value_bytes;
    usage->pool_index_bytes = usage->pool_bytes > stored ? usage->pool_bytes - stored : 0;
    if (m->index->kind->cache_bytes)
        usage->cache_bytes = m->index->kind->cache_bytes(m->index);
    return err;
}


typedef int (*index_check)(far_task *t, far_index *index, far_report *report);


/* Checks the structure of an index. First checks its record in far memory. This handle read the record when it opened
 * the index and would not notice later damage, but other handles still have to read it. */
static int check_structure(far_task *t, far_index *index, far_report *report) {
    int err = far_catalog_test_open(t, index->uid);
    if (err == FAR_ERR_CORRUPT)
        far_report_error(report);
    if (err == FAR_ERR_NOT_FOUND)
        return far_index_fail_dropped(index);
    return err < 0 && err != FAR_ERR_CORRUPT ? err : index->kind->check(t, index, report);
}


/* Runs a check. If damage stops the check, that is added to the report as a problem, and the result is 0. */
static int check_whole(far_task *t, far_index *index, far_report *report, index_check check) {
    int err = check(t, index, report);
    if (err != FAR_ERR_CORRUPT)
        return err;
    far_report_error(report);
    return 0;
}


static int run_check(far_task *t, void *arg) {
    index_measurement *m = arg;
    t->label = "check";
    t->many_waits = true;
    t->index_key = m->index->uid;
    int err = check_whole(t, m->index, m->report, check_structure);
    return err < 0 || m->report->count ? err : check_whole(t, m->index, m->report, far_sum_check_all);
}


/* Runs a task function that measures or checks an index, and performs the steps that all such calls have in common.
 * Returns the result of the function, or the error that prevented the call. */
static int run_on_index(far_session *s, index_measurement *m, int (*run)(far_task *t, void *arg)) {
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    if ((err = far_check_index(s, m->index)) >= 0) {
        far_index_use(m->index);
        err = far_session_call(s, FAR_STATS_OTHER, false, run, m);
        far_index_unuse(m->index);
    }
    far_submitted_scans_deliver(s);
    far_call_leave(s);
    return err < 0 ? far_describe_error(s, err) : 0;
}


int far_index_usage(far_session *s, far_index *index, far_usage *usage) {
    far_usage measured;
    index_measurement m = {{.object = count_object, .once = true}, index, &measured, NULL};
    if (!usage)
        return far_fail(FAR_ERR_INVALID, "usage: is NULL");
    int err = run_on_index(s, &m, run_usage);
    if (err >= 0)
        *usage = measured;
    return err;
}


typedef struct load_measurement {
    index_measurement m; /* must be the first member, because callbacks cast its address to the whole struct */
    far_load *load;
} load_measurement;


static int run_load(far_task *t, void *arg) {
    load_measurement *l = arg;
    t->label = "load";
    t->index_key = l->m.index->uid;
    memset(l->load, 0, sizeof(*l->load));
    if (!l->m.index->kind->load_factor)
        return far_fail(FAR_ERR_UNSUPPORTED, "an index of kind '%s' has no slots to fill", l->m.index->kind->name);
    return l->m.index->kind->load_factor(t, l->m.index, l->load);
}


int far_index_load(far_session *s, far_index *index, far_load *load) {
    load_measurement l = {{.index = index}, load};
    return run_on_index(s, &l.m, run_load);
}


int far_index_check(far_session *s, far_index *index, int (*problem)(void *ctx, const char *what), void *ctx) {
    far_report report = {0};
    index_measurement m = {.index = index, .report = &report};
    int err = run_on_index(s, &m, run_check);
    if (err >= 0)
        err = far_report_deliver(&report, problem, ctx);
    far_report_free(&report);
    return err;
}


/* ---- The pool ---- */

static int run_stat(far_task *t, void *arg) {
    far_pool_usage *usage = arg;
    unsigned live;
    t->label = "stat";
    int err = far_memory_stat(t, usage, NULL, NULL);
    if (err >= 0)
        err = far_clients_live(t, &live);
    if (err >= 0)
        err = far_epoch_read(t, &usage->epoch);
    if (err < 0)
        return err;
    usage->memory_nodes = far_task_fabric(t)->nodes;
    usage->sessions = live;
    return 0;
}


int far_pool_stat(far_session *s, far_pool_usage *usage) {
    far_pool_usage measured = {0};
    if (!usage)
        return far_fail(FAR_ERR_INVALID, "usage: is NULL");
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    err = far_session_call(s, FAR_STATS_OTHER, false, run_stat, &measured);
    far_submitted_scans_deliver(s);
    far_call_leave(s);
    if (err >= 0)
        *usage = measured;
    return err;
}


typedef struct pool_check {
    far_report *report;
    bool repair;
    bool mends; /* the check also repairs damaged words, because no other client has the pool open */
    far_other_clients others;
} pool_check;


static int check_index_by_uid(far_task *t, uint32_t uid, far_report *report, index_check check) {
    far_index *index;
    int err = far_catalog_open_uid(t, uid, &index);
    if (err == FAR_ERR_NOT_FOUND)
        return 0; /* The index was dropped after the catalog was read, so there is nothing to report. */
    if (err == FAR_ERR_CORRUPT || err == FAR_ERR_UNSUPPORTED) {
        far_report_problem(report, "index number %u: %s", (unsigned)uid, far_last_error());
        return 0;
    }
    if (err < 0)
        return err;
    report->about = index->name;
    t->index_key = uid;
    err = check_whole(t, index, report, check);
    t->index_key = 0;
    report->about = NULL;
    far_catalog_close(t, index);
    return err == FAR_ERR_DROPPED ? 0 : err;
}


static int check_indexes(far_task *t, far_report *report, index_check check) {
    far_catalog_view view;
    int err = far_catalog_read_unpinned(t, &view);
    if (err == FAR_ERR_CORRUPT)
        far_report_problem(report, "%s", far_last_error());
    for (unsigned i = 0; err >= 0 && i < view.count; i++)
        err = check_index_by_uid(t, view.entries[i].uid, report, check);
    return err == FAR_ERR_CORRUPT ? 0 : err;
}


/* Runs a collection, and waits while another client runs one, because only one client can collect at a time. The other
 * collection ends sooner after it observes a request, so this function publishes one. The other collection may also
 * wait for epochs and for memory that this handle must return. If no housekeeping thread does that work, this task does
 * it. */
static int collect_alone(far_task *t, far_collect_mode mode, far_collect_result *result) {
    uint64_t next_check = far_now(t) + far_stall_bound(far_task_fabric(t));
    for (unsigned attempt = 0;; attempt++) {
        int err = far_collect(t, mode, result);
        if (err == 1)
            return far_fail_stalled(t, "the search for leaked memory");
        if (err != FAR_ERR_BUSY || attempt == COLLECT_TRIES)
            return err;
        if (attempt == 0 && (err = far_request_publish_empty(t)) < 0)
            return err;
        if (attempt == 0)
            /* The client that is recorded as collector may be quiescent, and must become active to observe the
             * request. */
            far_wake_quiescent_handles(t);
        /* Without a housekeeping thread this task must observe requests itself. A quiescent handle does not observe
         * them. Taking a pin makes the handle active, even if the pin is dropped at once. */
        err = far_task_is_unattended(t) ? far_pin_take(t) : 0;
        far_pin_drop(t);
        if (err < 0 || (err = far_housekeeping_step(t)) < 0)
            return err;
        far_back_off(t, attempt);
        if (far_now(t) < next_check)
            continue;
        /* A stalled client may block the other collection for ever. far_wait_epochs_until reports that client. */
        int late = far_wait_epochs_until(t, 0, far_stall_deadline(t));
        if (late != 0)
            return late < 0 ? late : far_fail_stalled(t, "the search for leaked memory");
        next_check = far_now(t) + far_stall_bound(far_task_fabric(t));
    }
}


/* Reports the objects in use that had their free bit set in the last collection, unless the collection cleared the bits.
 */
static void report_false_free_bits(const pool_check *check, const far_collect_result *result) {
    if (check->mends || result->false_free_bits == 0)
        return;
    if (result->false_free_bits == 1)
        far_report_problem(check->report, "%s", result->false_free_text);
    else
        far_report_problem(check->report, "%s; so are %u more", result->false_free_text, result->false_free_bits - 1);
}


/* Runs collections until no known loss is left. Memory of clients that are known to have failed is not reported as
 * leaked, because housekeeping would have collected it soon. */
static int collect_known_losses(far_task *t, far_collect_mode mode, far_collect_result *result) {
    /* First checks the liveness of all clients, because a failure may not have been detected yet. */
    int err = far_clients_check_liveness(t), wanted = err < 0 ? err : far_collection_is_requested(t);
    for (unsigned round = 0; round < REPAIR_COLLECTIONS && wanted == 1 && err == 0; round++) {
        err = collect_alone(t, mode, result);
        wanted = err < 0 ? err : far_collection_is_requested(t);
    }
    return wanted < 0 ? wanted : err;
}


static int repair_pool(far_task *t, const pool_check *check, far_collect_result *result) {
    far_collect_mode mode = check->mends ? FAR_COLLECT_MEND : FAR_COLLECT_REPAIR;
    int err = collect_alone(t, mode, result);
    return err < 0 ? err : collect_known_losses(t, mode, result);
}


/* Counts the leaked memory. Memory that changes its owner during a collection may appear leaked although it is not, and
 * in that case another collection is requested. So if leaked memory was found and such a request exists, the check
 * counts again. */
static int count_leaked(far_task *t, far_collect_result *result) {
    int err = 0, again = 1;
    for (unsigned round = 0; err == 0 && again == 1 && round < REPAIR_COLLECTIONS; round++) {
        err = collect_known_losses(t, FAR_COLLECT_REPAIR, result);
        if (err == 0)
            err = collect_alone(t, FAR_COLLECT_COUNT, result);
        again =
            err == 0 && result->leaked_bytes > 0 && result->false_free_bits == 0 ? far_collection_is_requested(t) : 0;
    }
    return again < 0 ? again : err;
}


static int collect_pool(far_task *t, const pool_check *check) {
    far_collect_result result = {0};
    int err = check->repair ? repair_pool(t, check, &result) : count_leaked(t, &result);
    report_false_free_bits(check, &result);
    return err;
}


/* Checks the words of the pool itself, and repairs them if the check mends damage. */
static int check_pool_words(far_task *t, const pool_check *check) {
    int err = far_superblock_check(t, check->mends, check->report);
    if (err >= 0)
        err = far_clients_check_used(t, check->mends, check->report);
    return err < 0 ? err : far_epoch_check_entries(t);
}


static int check_all_parts(far_task *t, const pool_check *check) {
    int err = check_pool_words(t, check);
    if (err >= 0)
        err = check_indexes(t, check->report, check_structure);
    if (err >= 0)
        err = far_catalog_check_numbers(t, check->mends, check->report);
    if (err >= 0)
        err = far_memory_check(t, check->mends, check->report);
    /* The collection runs only if the indexes are undamaged, because a collection over a damaged index could free
     * memory that is in use. */
    if (err >= 0 && check->report->count == 0)
        err = collect_pool(t, check);
    if (err >= 0)
        far_memory_check_invalid_free(t, check->report);
    /* Values are checked after the collection, because a damaged value does not prevent a collection. */
    if (err >= 0 && check->report->count == 0)
        err = check_indexes(t, check->report, far_sum_check_all);
    return err;
}


/* Damaged words are repaired only if no other client has the pool open. Otherwise another client may have acted on such
 * a word already, or may keep a copy of it. The README of the pool explains why a repair is safe even if another client
 * opens the pool meanwhile. */
static int run_pool_check(far_task *t, void *arg) {
    pool_check *check = arg;
    t->label = "check";
    t->many_waits = true;
    int err = check->repair ? far_clients_find_others(t, &check->others) : 0;
    check->mends = check->repair && err == 0 && check->others.count == 0;
    if (err >= 0)
        err = check_all_parts(t, check);
    if (err == FAR_ERR_CORRUPT)
        far_report_problem(check->report, "%s", far_last_error());
    if (check->report->count > 0 && check->others.count > 0)
        far_report_problem(check->report, "damage is repaired only while no other client has the pool open, but %s has",
                           check->others.names);
    return err == FAR_ERR_CORRUPT ? 0 : err;
}


int far_pool_check(far_session *s, int repair, int (*problem)(void *ctx, const char *what), void *ctx) {
    far_report report = {0};
    pool_check check = {.report = &report, .repair = repair != 0};
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    if (repair != 0 && repair != 1)
        err = far_fail(FAR_ERR_INVALID, "repair: %d is neither 0 nor 1", repair);
    else if ((err = far_check_may_write(s)) >= 0)
        err = far_session_call(s, FAR_STATS_OTHER, false, run_pool_check, &check);
    far_submitted_scans_deliver(s);
    far_call_leave(s);
    if (err >= 0)
        err = far_report_deliver(&report, problem, ctx);
    far_report_free(&report);
    return err;
}
