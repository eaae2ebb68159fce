/* Public calls on indexes as a whole and on the pool. What the user's callbacks are told is collected by a task first
 * and told on the caller's own stack, with nothing pinned. */
#include "base/error.h"
#include "client/checksum.h"
#include "client/client.h"
#include "client/op.h"
#include "pool/blocker.h"
#include "pool/catalog.h"
#include "pool/catalog_layout.h"
#include "pool/options.h"
#include "pool/report.h"
#include "pool/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CREATE_TRIES   8      /* to open or create an index that others create and drop meanwhile */
#define SWEEP_TRIES    100000 /* to sweep while another client does, which may take seconds */
#define REPAIR_SWEEPS  16     /* of one repair, at most */
#define CLOSE_PAUSE_NS 10000


/* Names and kinds. */

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
            return far_fail(FAR_ERR_INVALID, "name: character %zu is none of printable ASCII without '/' and ','",
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


/* A name that is no kind: says which there are. */
static int refuse_kind(const char *kind) {
    char names[128] = "";
    size_t used = 0;
    for (unsigned i = 0; far_index_kinds[i] && used < sizeof(names); i++)
        if (far_index_kind_shown(far_index_kinds[i]))
            used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", used ? ", " : "",
                                     far_index_kinds[i]->name);
    return far_fail(FAR_ERR_INVALID, "kind: there is no '%.40s' in this build (there are: %s)", kind, names);
}


/* Creating, opening, closing, dropping. */

typedef struct naming {
    const char *name, *options;
    const far_index_kind *kind;
    far_index *index;
} naming;


static int try_create(far_task *t, void *arg) {
    naming *n = arg;
    return far_catalog_create(t, n->name, n->kind, n->options, &n->index);
}


static int run_create(far_task *t, void *arg) {
    t->label = "create";
    int err = try_create(t, arg);
    if (err == FAR_ERR_NO_MEMORY)
        err = far_run_short(t, try_create, arg);
    return err == FAR_ERR_NO_MEMORY ? far_tell_full(t, err) : err;
}


int far_index_create(far_session *s, const char *name, const char *kind, const char *options, far_index **index) {
    int64_t values[FAR_OPTIONS_MAX];
    naming n = {.name = name, .options = options};
    if (!index)
        return far_fail(FAR_ERR_INVALID, "index: is NULL");
    *index = NULL;
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    err = check_name(name);
    if (err >= 0 && !kind)
        err = far_fail(FAR_ERR_INVALID, "kind: is NULL");
    if (err >= 0 && !(n.kind = far_index_kind_named(kind)))
        err = refuse_kind(kind);
    if (err >= 0)
        err = far_index_options_parse(n.kind, options, values);
    if (err >= 0)
        err = far_session_call(s, FAR_STATS_OTHER, false, run_create, &n);
    if (err >= 0)
        *index = n.index;
    far_ops_deliver(s);
    far_call_leave(s);
    return err;
}


static int try_open(far_task *t, void *arg) {
    naming *n = arg;
    return far_catalog_open(t, n->name, &n->index);
}


static int run_open(far_task *t, void *arg) {
    t->label = "open";
    int err = try_open(t, arg);
    return err == FAR_ERR_NO_MEMORY ? far_run_short(t, try_open, arg) : err;
}


int far_index_open(far_session *s, const char *name, far_index **index) {
    naming n = {.name = name};
    if (!index)
        return far_fail(FAR_ERR_INVALID, "index: is NULL");
    *index = NULL;
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    if ((err = check_name(name)) >= 0)
        err = far_session_call(s, FAR_STATS_OTHER, false, run_open, &n);
    if (err >= 0)
        *index = n.index;
    far_ops_deliver(s);
    far_call_leave(s);
    return err;
}


/* Is the open index what the caller asked for? */
static int check_same(const far_index *index, const char *kind, const int64_t wanted[FAR_OPTIONS_MAX]) {
    if (strcmp(index->kind->name, kind) != 0)
        return far_fail(FAR_ERR_EXISTS, "index '%s' exists and is of kind %s, not %s", index->name, index->kind->name,
                        kind);
    for (unsigned i = 0; i < far_index_option_count(index->kind); i++)
        if (index->options[i] != wanted[i])
            return far_fail(FAR_ERR_EXISTS, "index '%s' exists with another %s than was asked for (it has: %s)",
                            index->name, far_index_option_at(index->kind, i).name,
                            index->options_text[0] ? index->options_text : "the defaults");
    return 0;
}


int far_index_open_or_create(far_session *s, const char *name, const char *kind, const char *options,
                             far_index **index) {
    int64_t wanted[FAR_OPTIONS_MAX];
    const far_index_kind *known = kind ? far_index_kind_named(kind) : NULL;
    int err = FAR_ERR_NOT_FOUND;
    if (known) { /* a bad option is told also when there is an index */
        err = far_index_options_parse(known, options, wanted);
        if (err < 0)
            return err;
        err = far_index_open(s, name, index);
    }
    for (unsigned tries = 0; err == FAR_ERR_NOT_FOUND && tries < CREATE_TRIES; tries++) {
        err = far_index_create(s, name, kind, options, index);
        if (err != FAR_ERR_EXISTS)
            return err;
        err = far_index_open(s, name, index); /* another was first; it may have dropped it again */
    }
    if (err < 0)
        return err;
    err = check_same(*index, kind, wanted);
    if (err == 0)
        return 0;
    char words[FAR_MESSAGE_BYTES]; /* the close may fail with others */
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
    atomic_store_explicit(&c->done, true, memory_order_release); /* c is gone from here */
}


static bool start_close(far_pool *pool, closing *c) {
    far_session_enter(pool->team.own);
    bool started = far_task_new(pool->team.own, FAR_STATS_OTHER, run_close, c) != NULL;
    far_session_leave(pool->team.own);
    return started;
}


/* The close is a task of the handle's own session, and may have to wait for tasks of others (hooks, which use the
 * index). Whoever is inside the own session keeps housekeeping, which drives those, out: so the caller waits outside,
 * and lends a hand. */
void far_index_close(far_index *index) {
    if (!index || far_pool_is_parents(index->pool))
        return;
    far_pool *pool = index->pool;
    closing c = {.index = index};
    if (far_pool_enter(pool) < 0) {
        far_pool_await_close(pool); /* until then far_pool_close may be using the index */
        far_catalog_close_locally(index);
        return;
    }
    far_host *host = pool->fabric->host;
    bool started = false;
    far_pool_reference(pool); /* that of the index may be the last one */
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
    const naming *n = arg;
    return far_catalog_drop(t, n->name);
}


static int run_drop(far_task *t, void *arg) {
    t->label = "drop";
    int err = try_drop(t, arg);
    return err == FAR_ERR_NO_MEMORY ? far_run_short(t, try_drop, arg) : err;
}


int far_index_drop(far_session *s, const char *name) {
    naming n = {.name = name};
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    if ((err = check_name(name)) >= 0)
        err = far_session_call(s, FAR_STATS_OTHER, false, run_drop, &n);
    far_ops_deliver(s);
    far_call_leave(s);
    return err < 0 ? err : 0;
}


/* Listing. */

typedef struct listed {
    char name[FAR_NAME_MAX + 1], kind[16];
} listed;

typedef struct listing {
    listed *items;
    size_t count, size;
    int error;
} listing;


static int keep_listed(void *ctx, const char *name, const char *kind) {
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
    return 0;
}


static int run_list(far_task *t, void *arg) {
    listing *l = arg;
    t->label = "list";
    int err = far_catalog_list(t, keep_listed, l);
    return l->error ? l->error : err;
}


static int compare_listed(const void *a, const void *b) {
    return strcmp(((const listed *)a)->name, ((const listed *)b)->name);
}


int far_index_list(far_session *s, int (*each)(void *ctx, const char *name, const char *kind), void *ctx) {
    listing l = {0};
    int told = 0, err = far_call_enter(s);
    if (err < 0)
        return err;
    if (!each)
        err = far_fail(FAR_ERR_INVALID, "each: is NULL");
    else
        err = far_session_call(s, FAR_STATS_OTHER, false, run_list, &l);
    far_ops_deliver(s);
    far_call_leave(s);
    if (l.count)
        qsort(l.items, l.count, sizeof(listed), compare_listed);
    for (size_t i = 0; err >= 0 && i < l.count; i++) {
        told++;
        if (each(ctx, l.items[i].name, l.items[i].kind))
            break;
    }
    free(l.items);
    return err < 0 ? err : told;
}


/* Usage and checks of one index. */

typedef struct measuring {
    far_walk walk; /* first */
    far_index *index;
    far_usage *usage;
    far_report *report;
} measuring;


static int add_object(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    (void)index, (void)type, (void)addr;
    measuring *m = (measuring *)walk;
    m->usage->pool_bytes += far_alloc_round(size);
    return 0;
}


static int run_usage(far_task *t, void *arg) {
    measuring *m = arg;
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


/* First what this handle has read long ago, when it opened the index: others will read it. */
static int check_structure(far_task *t, far_index *index, far_report *report) {
    int err = far_catalog_try_open(t, index->uid);
    if (err == FAR_ERR_CORRUPT)
        far_report_error(report);
    return err < 0 && err != FAR_ERR_CORRUPT ? err : index->kind->check(t, index, report);
}


/* What ends the check is a problem too. */
static int check_whole(far_task *t, far_index *index, far_report *report, index_check check) {
    int err = check(t, index, report);
    if (err != FAR_ERR_CORRUPT)
        return err;
    far_report_error(report);
    return 0;
}


static int run_check(far_task *t, void *arg) {
    measuring *m = arg;
    t->label = "check";
    t->index_key = m->index->uid;
    int err = check_whole(t, m->index, m->report, check_structure);
    return err < 0 || m->report->count ? err : check_whole(t, m->index, m->report, far_sum_check_all);
}


/* Measures or checks an index by `run`, with all that such a call needs before and after. */
static int measure(far_session *s, measuring *m, int (*run)(far_task *t, void *arg)) {
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    if ((err = far_check_index(s, m->index)) >= 0) {
        far_index_use(m->index);
        err = far_session_call(s, FAR_STATS_OTHER, false, run, m);
        far_index_unuse(m->index);
    }
    far_ops_deliver(s);
    far_call_leave(s);
    return err < 0 ? far_tell(s, err) : 0;
}


int far_index_usage(far_session *s, far_index *index, far_usage *usage) {
    far_usage measured;
    measuring m = {{.object = add_object, .once = true}, index, &measured, NULL};
    if (!usage)
        return far_fail(FAR_ERR_INVALID, "usage: is NULL");
    int err = measure(s, &m, run_usage);
    if (err >= 0)
        *usage = measured;
    return err;
}


typedef struct loading {
    measuring m; /* first */
    far_load *load;
} loading;


static int run_load(far_task *t, void *arg) {
    loading *l = arg;
    t->label = "load";
    t->index_key = l->m.index->uid;
    memset(l->load, 0, sizeof(*l->load));
    if (!l->m.index->kind->load_factor)
        return far_fail(FAR_ERR_UNSUPPORTED, "an index of kind '%s' has no slots to fill", l->m.index->kind->name);
    return l->m.index->kind->load_factor(t, l->m.index, l->load);
}


int far_index_load(far_session *s, far_index *index, far_load *load) {
    loading l = {{.index = index}, load};
    return measure(s, &l.m, run_load);
}


int far_index_check(far_session *s, far_index *index, int (*problem)(void *ctx, const char *what), void *ctx) {
    far_report report = {0};
    measuring m = {.index = index, .report = &report};
    int err = measure(s, &m, run_check);
    if (err >= 0)
        err = far_report_tell(&report, problem, ctx);
    far_report_free(&report);
    return err;
}


/* The pool. */

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
    far_ops_deliver(s);
    far_call_leave(s);
    if (err >= 0)
        *usage = measured;
    return err;
}


typedef struct pool_check {
    far_report *report;
    bool repair;
} pool_check;


static int check_uid(far_task *t, uint32_t uid, far_report *report, index_check check) {
    far_index *index;
    int err = far_catalog_open_uid(t, uid, &index);
    if (err == FAR_ERR_NOT_FOUND)
        return 0; /* dropped meanwhile */
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
    far_catalog_close_uid(t, index);
    return err;
}


static bool has_uid(const uint32_t *uids, size_t count, uint32_t uid) {
    size_t i = 0;
    while (i < count && uids[i] != uid)
        i++;
    return i < count;
}


static size_t open_uids(far_pool *pool, uint32_t uids[FAR_OPEN_TABLE_MAX]) {
    size_t count = 0;
    pthread_mutex_lock(&pool->lock);
    for (const far_index *index = pool->indexes; index && count < FAR_OPEN_TABLE_MAX; index = index->next)
        if (index->opens)
            uids[count++] = index->uid;
    pthread_mutex_unlock(&pool->lock);
    return count;
}


/* What is open cannot be dropped: an index that was open before the catalog was read, and is still, is listed. */
static void check_listed(far_pool *pool, const uint32_t *before, size_t open, const far_catalog_view *listed,
                         far_report *report) {
    pthread_mutex_lock(&pool->lock);
    for (const far_index *index = pool->indexes; index; index = index->next)
        if (index->opens && has_uid(before, open, index->uid) && !far_catalog_find_uid(listed, index->uid))
            far_report_problem(report, "index '%s' is open here, but the catalog does not list it", index->name);
    pthread_mutex_unlock(&pool->lock);
}


static int check_indexes(far_task *t, far_report *report, index_check check) {
    uint32_t before[FAR_OPEN_TABLE_MAX];
    size_t open = open_uids(far_task_pool(t), before);
    far_catalog_view view;
    int err = far_catalog_listed(t, &view);
    if (err == FAR_ERR_CORRUPT)
        far_report_problem(report, "%s", far_last_error());
    if (err >= 0)
        check_listed(far_task_pool(t), before, open, &view, report);
    for (unsigned i = 0; err >= 0 && i < view.count; i++)
        err = check_uid(t, view.entries[i].uid, report, check);
    return err == FAR_ERR_CORRUPT ? 0 : err;
}


/* One client sweeps at a time. While another one does, this call waits: the other sweep ends sooner when it hears that
 * somebody waits. It waits for epochs, and for what this handle gives back: where no housekeeping thread does that, this
 * task does. */
static int sweep_all(far_task *t, bool repair, far_sweep_result *result) {
    const uint64_t patience = FAR_BLOCKED_TICKS * far_tick(far_task_fabric(t));
    uint64_t look = far_now(t) + patience;
    for (unsigned attempt = 0;; attempt++) {
        int err = far_sweep(t, repair ? FAR_SWEEP_REPAIR : FAR_SWEEP_COUNT, result);
        if (err == 1)
            return far_blocked(t, "the search for lost memory");
        if (err != FAR_ERR_BUSY || attempt == SWEEP_TRIES)
            return err;
        if (attempt == 0 && (err = far_request_attention(t)) < 0)
            return err;
        if (attempt == 0)
            far_ring(t); /* the client that is said to sweep may sleep, and know nothing of it */
        err = far_task_is_unattended(t) ? far_pin_take(t) : 0; /* a handle that sleeps does not hear of requests */
        far_pin_drop(t);
        if (err < 0 || (err = far_attend(t)) < 0)
            return err;
        far_back_off(t, attempt);
        if (far_now(t) < look)
            continue;
        int late = far_wait_epochs_until(t, 0, far_now(t) + patience); /* or the other one waits for it, for ever */
        if (late != 0)
            return late < 0 ? late : far_blocked(t, "the search for lost memory");
        look = far_now(t) + patience;
    }
}


/* A check names what is said to be free and is in use; a repair has put it right. */
static int sweep_once(far_task *t, const pool_check *check, bool repair, far_sweep_result *result) {
    int err = sweep_all(t, repair, result);
    if (!check->repair && result->false_homes > 1)
        far_report_problem(check->report, "%s; so are %u more", result->false_home, result->false_homes - 1);
    else if (!check->repair && result->false_homes == 1)
        far_report_problem(check->report, "%s", result->false_home);
    return err;
}


/* What is known to be lost is not told as a leak: the sweep that finds it would have come by itself. */
static int heal(far_task *t, const pool_check *check, far_sweep_result *result) {
    int err = far_clients_ask(t),
        wanted = err < 0 ? err : far_sweep_is_wanted(t); /* nobody may have noticed a death yet */
    for (unsigned round = 0; round < REPAIR_SWEEPS && wanted == 1 && err == 0; round++) {
        err = sweep_once(t, check, true, result);
        wanted = err < 0 ? err : far_sweep_is_wanted(t);
    }
    return wanted < 0 ? wanted : err;
}


/* What changes hands while a sweep runs, the next one finds: a count that met such is taken again. */
static int sweep_pool(far_task *t, const pool_check *check, far_sweep_result *result) {
    int err = check->repair ? sweep_once(t, check, true, result) : 0, again = 1;
    for (unsigned round = 0; err == 0 && again == 1 && round < REPAIR_SWEEPS; round++) {
        if ((err = heal(t, check, result)) < 0 || check->repair)
            return err;
        err = sweep_once(t, check, false, result);
        again = err == 0 && result->leaked_bytes > 0 && result->false_homes == 0 ? far_sweep_is_wanted(t) : 0;
    }
    return again < 0 ? again : err;
}


static int run_pool_check(far_task *t, void *arg) {
    const pool_check *check = arg;
    far_sweep_result swept = {0};
    t->label = "check";
    int err = far_superblock_check(t, check->repair, check->report);
    if (err >= 0)
        err = check_indexes(t, check->report, check_structure);
    if (err >= 0)
        err = far_catalog_check_numbers(t, check->repair, check->report);
    if (err >= 0)
        err = far_memory_check(t, check->report);
    if (err >= 0 && check->report->count == 0) /* a sweep over broken structures would free what it must not */
        err = sweep_pool(t, check, &swept);
    if (err >= 0)
        far_memory_check_freed(t, check->report);
    if (err >= 0 && check->report->count == 0) /* a value that is damaged does not keep a sweep from what it does */
        err = check_indexes(t, check->report, far_sum_check_all);
    if (err == FAR_ERR_CORRUPT) {
        far_report_problem(check->report, "%s", far_last_error());
        return 0;
    }
    return err;
}


int far_pool_check(far_session *s, int repair, int (*problem)(void *ctx, const char *what), void *ctx) {
    far_report report = {0};
    pool_check check = {&report, repair != 0};
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    if (repair != 0 && repair != 1)
        err = far_fail(FAR_ERR_INVALID, "repair: %d is neither 0 nor 1", repair);
    else
        err = far_session_call(s, FAR_STATS_OTHER, false, run_pool_check, &check);
    far_ops_deliver(s);
    far_call_leave(s);
    if (err >= 0)
        err = far_report_tell(&report, problem, ctx);
    far_report_free(&report);
    return err;
}
