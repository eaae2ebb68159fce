/* `farindex top` prints the clients of a pool and their activity, from the counters that each handle publishes in the
 * pool. The handles take no part in that; a look costs this process some READs.
 *
 * A look is a survey of the pool at one moment. Rates are differences between two consecutive looks. */
#include "base/text.h"
#include "client/snapshot.h"
#include "tools/farindex/data.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const op_names[] = {"get", "insert", "update", "put", "delete", "scan"};

typedef struct look { /* the pool at one moment */
    far_snapshot survey;
    double seconds;
} look;

typedef struct view { /* two consecutive looks, from which the output is computed */
    look *before, *now;
    bool first_row;
} view;


static double clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}


static uint64_t sum_ops(const uint64_t ops[FAR_OP_SCAN + 1]) {
    uint64_t all = 0;
    for (unsigned kind = 0; kind <= FAR_OP_SCAN; kind++)
        all += ops[kind];
    return all;
}


/* ---- What happened between two looks ---- */

/* Returns the counters of a handle at the previous look. A handle that connected since then had counted nothing. */
static far_status_record bulletin_before(const view *v, const far_snapshot_handle_info *handle) {
    for (size_t i = 0; i < v->before->survey.handle_count; i++) {
        const far_snapshot_handle_info *old = &v->before->survey.handles[i];
        if (old->id == handle->id && old->generation == handle->generation)
            return old->bulletin;
    }
    return (far_status_record){0};
}


/* Returns the counters at `after` minus those at `before`. All other fields are those at `after`. */
static far_status_record subtract_counters(const far_status_record *after, const far_status_record *before) {
    far_status_record d = *after;
    for (unsigned kind = 0; kind <= FAR_OP_SCAN; kind++)
        d.ops[kind] -= before->ops[kind];
    d.round_trips -= before->round_trips;
    d.verbs -= before->verbs;
    d.retries -= before->retries;
    d.bytes_read -= before->bytes_read;
    d.bytes_written -= before->bytes_written;
    d.cache_hits -= before->cache_hits;
    d.cache_misses -= before->cache_misses;
    d.merged -= before->merged;
    for (unsigned i = 0; i < FAR_COUNTED_INDEXES; i++)
        for (unsigned kind = 0; kind <= FAR_OP_SCAN && d.indexes[i].uid == before->indexes[i].uid; kind++)
            d.indexes[i].ops[kind] -= before->indexes[i].ops[kind];
    return d;
}


static far_status_record recent_counters(const view *v, const far_snapshot_handle_info *handle) {
    far_status_record before = bulletin_before(v, handle);
    return subtract_counters(&handle->bulletin, &before);
}


static double per_second(const view *v, uint64_t count) {
    double seconds = v->now->seconds - v->before->seconds;
    return seconds > 0 ? (double)count / seconds : 0;
}


/* Returns part / whole, or 0 if `whole` is 0. */
static double divide_or_zero(uint64_t part, uint64_t whole) {
    return whole ? (double)part / (double)whole : 0;
}


/* Sums the operations on one index over all handles that publish them: those between the two looks, and all since the
 * handles connected. */
static void ops_of_index(const view *v, uint32_t uid, uint64_t recent_ops[FAR_OP_SCAN + 1],
                         uint64_t all_ops[FAR_OP_SCAN + 1]) {
    memset(recent_ops, 0, (FAR_OP_SCAN + 1) * sizeof(*recent_ops));
    memset(all_ops, 0, (FAR_OP_SCAN + 1) * sizeof(*all_ops));
    for (size_t i = 0; i < v->now->survey.handle_count; i++) {
        const far_snapshot_handle_info *handle = &v->now->survey.handles[i];
        far_status_record d = recent_counters(v, handle);
        for (unsigned k = 0; k < FAR_COUNTED_INDEXES; k++)
            for (unsigned kind = 0; kind <= FAR_OP_SCAN && d.indexes[k].uid == uid; kind++) {
                recent_ops[kind] += d.indexes[k].ops[kind];
                all_ops[kind] += handle->bulletin.indexes[k].ops[kind];
            }
    }
}


/* ---- Text ---- */

static void print_text(const view *v) {
    const far_snapshot *s = &v->now->survey;
    printf("pool: %" PRIu64 " of %" PRIu64 " bytes free (%.1f %%), %" PRIu64 " retired, %" PRIu64
           " leaked, epoch %" PRIu64 ", %" PRIu64 " memory nodes\n\n",
           s->usage.free, s->usage.total, 100 * divide_or_zero(s->usage.free, s->usage.total), s->usage.retired,
           s->usage.leaked, s->usage.epoch, s->usage.memory_nodes);
    printf("%-6s %-8s %-16s %-16s %8s %12s %8s %10s %8s\n", "client", "process", "command", "host", "sessions", "ops/s",
           "rtt/op", "retries/s", "hits %");
    for (size_t i = 0; i < s->handle_count; i++) {
        const far_snapshot_handle_info *handle = &s->handles[i];
        far_status_record d = recent_counters(v, handle);
        char command[64], host[64];
        if (handle->own)
            continue;
        cli_handle_names(handle, command, host);
        far_shorten_text(command, 16);
        far_shorten_text(host, 16);
        printf("%-6u %-8" PRId64 " %-16s %-16s %8u %12.0f %8.2f %10.0f %8.1f\n", handle->id, handle->process, command,
               host, handle->sessions, per_second(v, sum_ops(d.ops)), divide_or_zero(d.round_trips, sum_ops(d.ops)),
               per_second(v, d.retries), 100 * divide_or_zero(d.cache_hits, d.cache_hits + d.cache_misses));
    }
    printf("\n%-24s %-8s %12s %14s", "index", "kind", "keys", "bytes");
    for (unsigned kind = 0; kind <= FAR_OP_SCAN; kind++)
        printf(" %8s/s", op_names[kind]);
    putchar('\n');
    for (size_t i = 0; i < s->index_count; i++) {
        const far_snapshot_index_info *index = &s->indexes[i];
        uint64_t ops[FAR_OP_SCAN + 1], all[FAR_OP_SCAN + 1];
        ops_of_index(v, index->uid, ops, all);
        printf("%-24.24s %-8s %12" PRIu64 " %14" PRIu64, index->name, index->kind, index->keys, index->bytes);
        for (unsigned kind = 0; kind <= FAR_OP_SCAN; kind++)
            printf(" %10.0f", per_second(v, ops[kind]));
        putchar('\n');
    }
}


/* ---- JSON ---- */

static void set_ops(json_t *object, const uint64_t ops[FAR_OP_SCAN + 1]) {
    json_t *counts = cli_json_object();
    for (unsigned kind = 0; kind <= FAR_OP_SCAN; kind++)
        cli_json_set_count(counts, op_names[kind], ops[kind]);
    cli_json_set(object, "ops", counts);
}


static void set_ops_per_second(json_t *object, const view *v, const uint64_t ops[FAR_OP_SCAN + 1]) {
    json_t *rates = cli_json_object();
    for (unsigned kind = 0; kind <= FAR_OP_SCAN; kind++)
        cli_json_set_number(rates, op_names[kind], per_second(v, ops[kind]));
    cli_json_set(object, "ops_per_second", rates);
}


static json_t *handle_as_json(const view *v, const far_snapshot_handle_info *handle) {
    const far_status_record *all = &handle->bulletin;
    far_status_record d = recent_counters(v, handle);
    char command[64], host[64];
    json_t *client = cli_json_object();
    cli_handle_names(handle, command, host);
    cli_json_set_count(client, "client", handle->id);
    cli_json_set(client, "process", json_integer(handle->process));
    cli_json_set_text(client, "command", command);
    cli_json_set_text(client, "host", host);
    cli_json_set_count(client, "sessions", handle->sessions);
    set_ops(client, all->ops);
    set_ops_per_second(client, v, d.ops);
    cli_json_set_count(client, "round_trips", all->round_trips);
    cli_json_set_count(client, "verbs", all->verbs);
    cli_json_set_count(client, "retries", all->retries);
    cli_json_set_count(client, "bytes_read", all->bytes_read);
    cli_json_set_count(client, "bytes_written", all->bytes_written);
    cli_json_set_count(client, "cache_hits", all->cache_hits);
    cli_json_set_count(client, "cache_misses", all->cache_misses);
    cli_json_set_count(client, "merged", all->merged);
    cli_json_set_number(client, "rtt_per_op", divide_or_zero(d.round_trips, sum_ops(d.ops)));
    return client;
}


static json_t *index_as_json(const view *v, const far_snapshot_index_info *surveyed) {
    uint64_t ops[FAR_OP_SCAN + 1], all[FAR_OP_SCAN + 1];
    json_t *index = cli_json_object();
    ops_of_index(v, surveyed->uid, ops, all);
    cli_json_set_text(index, "name", surveyed->name);
    cli_json_set_text(index, "kind", surveyed->kind);
    cli_json_set_count(index, "keys", surveyed->keys);
    cli_json_set_count(index, "bytes", surveyed->bytes);
    set_ops(index, all);
    set_ops_per_second(index, v, ops);
    return index;
}


static void print_json(const view *v) {
    const far_snapshot *s = &v->now->survey;
    json_t *all = cli_json_object(), *pool = cli_json_object();
    json_t *clients = cli_json_array(), *indexes = cli_json_array();
    cli_json_set_pool_usage(pool, &s->usage);
    for (size_t i = 0; i < s->handle_count; i++)
        if (!s->handles[i].own)
            cli_json_append(clients, handle_as_json(v, &s->handles[i]));
    for (size_t i = 0; i < s->index_count; i++)
        cli_json_append(indexes, index_as_json(v, &s->indexes[i]));
    cli_json_set(all, "pool", pool);
    cli_json_set_number(all, "seconds", v->now->seconds - v->before->seconds);
    cli_json_set(all, "clients", clients);
    cli_json_set(all, "indexes", indexes);
    cli_json_print(stdout, all);
}


/* ---- Prometheus ---- */

static void begin_metric(const char *name, const char *type, const char *help) {
    printf("# HELP farindex_%s %s\n# TYPE farindex_%s %s\n", name, help, name, type);
}


/* Prints a label. As the text format of Prometheus requires, a backslash, a quote and a newline in its value are
 * escaped. */
static void print_label(const char *name, const char *value, const char *before) {
    printf("%s%s=\"", before, name);
    for (; *value; value++)
        if (*value == '\\' || *value == '"')
            printf("\\%c", *value);
        else if (*value == '\n')
            fputs("\\n", stdout);
        else
            putchar(*value);
    putchar('"');
}


static void print_gauge(const char *name, const char *help, uint64_t value) {
    begin_metric(name, "gauge", help);
    printf("farindex_%s %" PRIu64 "\n", name, value);
}


static void print_client_labels(const far_snapshot_handle_info *handle) {
    char command[64], host[64], text[32];
    cli_handle_names(handle, command, host);
    snprintf(text, sizeof(text), "%u", handle->id);
    print_label("client", text, "{");
    snprintf(text, sizeof(text), "%" PRId64, handle->process);
    print_label("process", text, ",");
    print_label("command", command, ",");
    print_label("host", host, ",");
}


/* Prints one counter of every client. `at` is the offset of the counter in far_status_record. */
static void print_counter(const far_snapshot *s, const char *name, const char *help, size_t at) {
    begin_metric(name, "counter", help);
    for (size_t i = 0; i < s->handle_count; i++) {
        if (s->handles[i].own)
            continue;
        uint64_t value;
        memcpy(&value, (const char *)&s->handles[i].bulletin + at, sizeof(value));
        printf("farindex_%s", name);
        print_client_labels(&s->handles[i]);
        printf("} %" PRIu64 "\n", value);
    }
}


static void print_ops(const view *v) {
    const far_snapshot *s = &v->now->survey;
    begin_metric("operations_total", "counter", "operations of a client, by kind of operation");
    for (size_t i = 0; i < s->handle_count; i++)
        for (unsigned kind = 0; kind <= FAR_OP_SCAN && !s->handles[i].own; kind++) {
            fputs("farindex_operations_total", stdout);
            print_client_labels(&s->handles[i]);
            printf(",operation=\"%s\"} %" PRIu64 "\n", op_names[kind], s->handles[i].bulletin.ops[kind]);
        }
    begin_metric("index_operations_total", "counter", "operations on an index by the clients that are connected");
    for (size_t i = 0; i < s->index_count; i++) {
        uint64_t ops[FAR_OP_SCAN + 1], all[FAR_OP_SCAN + 1];
        ops_of_index(v, s->indexes[i].uid, ops, all);
        for (unsigned kind = 0; kind <= FAR_OP_SCAN; kind++) {
            fputs("farindex_index_operations_total", stdout);
            print_label("index", s->indexes[i].name, "{");
            printf(",operation=\"%s\"} %" PRIu64 "\n", op_names[kind], all[kind]);
        }
    }
}


static void print_index_gauge(const far_snapshot *s, const char *name, const char *help, size_t at) {
    begin_metric(name, "gauge", help);
    for (size_t i = 0; i < s->index_count; i++) {
        uint64_t value;
        memcpy(&value, (const char *)&s->indexes[i] + at, sizeof(value));
        printf("farindex_%s", name);
        print_label("index", s->indexes[i].name, "{");
        print_label("kind", s->indexes[i].kind, ",");
        printf("} %" PRIu64 "\n", value);
    }
}


static void print_prometheus(const view *v) {
    const far_snapshot *s = &v->now->survey;
    print_gauge("pool_bytes", "far memory of the pool", s->usage.total);
    print_gauge("pool_used_bytes", "far memory in use", s->usage.used);
    print_gauge("pool_retired_bytes", "retired memory that is not reusable yet", s->usage.retired);
    print_gauge("pool_free_bytes", "free memory", s->usage.free);
    print_gauge("pool_leaked_bytes", "leaked memory that the last check found", s->usage.leaked);
    print_gauge("pool_memory_nodes", "memory nodes", s->usage.memory_nodes);
    print_gauge("pool_sessions", "open sessions", s->usage.sessions);
    print_gauge("pool_epoch", "the current epoch", s->usage.epoch);
    print_index_gauge(s, "index_keys", "keys, as reported by clients", offsetof(far_snapshot_index_info, keys));
    print_index_gauge(s, "index_bytes", "far memory of an index", offsetof(far_snapshot_index_info, bytes));
    print_ops(v);
    print_counter(s, "round_trips_total", "round trips that operations waited for",
                  offsetof(far_status_record, round_trips));
    print_counter(s, "verbs_total", "verbs posted", offsetof(far_status_record, verbs));
    print_counter(s, "retries_total", "attempts that failed because of a concurrent client",
                  offsetof(far_status_record, retries));
    print_counter(s, "read_bytes_total", "bytes read", offsetof(far_status_record, bytes_read));
    print_counter(s, "written_bytes_total", "bytes written", offsetof(far_status_record, bytes_written));
    print_counter(s, "cache_hits_total", "cache hits", offsetof(far_status_record, cache_hits));
    print_counter(s, "cache_misses_total", "cache misses", offsetof(far_status_record, cache_misses));
    print_counter(s, "merged_total", "operations merged with concurrent operations on the same key",
                  offsetof(far_status_record, merged));
}


/* ---- The command ---- */

static int take_look(cli_pool *p, look *l) {
    l->seconds = clock_now();
    int err = far_snapshot_take(p->session, &l->survey);
    return err < 0 ? cli_operation_failed(err) : 0;
}


static void pause_for(uint64_t ns) {
    struct timespec left = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    while (!cli_interrupted() && nanosleep(&left, &left) < 0)
        ;
}


typedef struct watching {
    uint64_t interval_ms, count;
    bool prometheus;
} watching;


/* Looks at the pool and prints, `count` times, or until it is interrupted if `count` is 0. */
static int run_looks(cli_pool *p, const watching *w) {
    look looks[2] = {0};
    bool screen = isatty(STDOUT_FILENO) && !p->json && !w->prometheus;
    int status = take_look(p, &looks[0]);
    for (uint64_t shown = 0; !status && !cli_interrupted() && (w->count == 0 || shown < w->count); shown++) {
        view v = {.before = &looks[shown % 2], .now = &looks[(shown + 1) % 2]};
        if (!w->prometheus)
            pause_for(w->interval_ms * 1000000);
        far_snapshot_free(&v.now->survey);
        if ((status = take_look(p, v.now)) != 0)
            break;
        fputs(screen ? "\033[H\033[J" : "", stdout);
        if (p->json)
            print_json(&v);
        else if (w->prometheus)
            print_prometheus(&v);
        else
            print_text(&v);
        fflush(stdout);
    }
    far_snapshot_free(&looks[0].survey);
    far_snapshot_free(&looks[1].survey);
    return status;
}


int cli_top(int argc, char **argv) {
    cli_pool p = {0};
    watching w = {.interval_ms = 1000, .count = UINT64_MAX};
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"interval", CLI_NUMBER, &w.interval_ms, "MS", "milliseconds between two outputs (default: 1000)"},
        {"count", CLI_NUMBER, &w.count, "N", "number of outputs (default: until interrupted; 1 with --json)"},
        {"prometheus", CLI_FLAG, &w.prometheus, NULL, "prints once, in the text format of Prometheus"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(
            argc, argv, "top [--interval MS] [--count N] [--json | --prometheus]", options,
            "Prints the connected clients, operations per second by client and by index, round trips per operation, "
            "retries, "
            "cache hits, and free\nmemory. Clients publish their counters about ten times a second without delaying "
            "operations. A client publishes counters for the\nfirst 16 indexes that it opened.\n",
            0, 0, &count, &status))
        return status;
    if (p.json && w.prometheus)
        return cli_wrong_usage("top", "--json and --prometheus exclude each other");
    if (w.count == UINT64_MAX)
        w.count = p.json || w.prometheus ? 1 : 0;
    if (w.interval_ms < 10 || w.interval_ms > 3600000)
        return cli_wrong_usage("top", "--interval: must be within 10..3600000");
    if ((status = cli_pool_open("top", &p, NULL)) != 0)
        return status;
    return cli_pool_close(&p, run_looks(&p, &w));
}
