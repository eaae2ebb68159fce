/* farindex top: who is connected to a pool and what they do, from the counters that handles tell of themselves. Nothing
 * is asked of them: a look costs the watcher some READs. */
#include "cli/data.h"
#include "client/survey.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const op_names[] = {"get", "insert", "update", "put", "delete", "scan"};

typedef struct look { /* the pool at one moment */
    far_survey survey;
    double seconds;
} look;

typedef struct view { /* what is shown: the last look, and what happened since the one before */
    look *before, *now;
    bool first_row;
} view;


static double clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}


static uint64_t sum(const uint64_t ops[FAR_OP_SCAN + 1]) {
    uint64_t all = 0;
    for (unsigned kind = 0; kind <= FAR_OP_SCAN; kind++)
        all += ops[kind];
    return all;
}


/* ---- What happened between two looks ---- */

/* The bulletin of a handle at the look before; one that came since had done nothing. */
static far_bulletin bulletin_before(const view *v, const far_surveyed_handle *handle) {
    for (size_t i = 0; i < v->before->survey.handle_count; i++) {
        const far_surveyed_handle *old = &v->before->survey.handles[i];
        if (old->id == handle->id && old->generation == handle->generation)
            return old->bulletin;
    }
    return (far_bulletin){0};
}


/* Counters from `told` on are all words: their differences. */
static far_bulletin difference(const far_bulletin *after, const far_bulletin *before) {
    far_bulletin d = *after;
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


static far_bulletin recent(const view *v, const far_surveyed_handle *handle) {
    far_bulletin before = bulletin_before(v, handle);
    return difference(&handle->bulletin, &before);
}


static double per_second(const view *v, uint64_t count) {
    double seconds = v->now->seconds - v->before->seconds;
    return seconds > 0 ? (double)count / seconds : 0;
}


static double ratio(uint64_t part, uint64_t whole) {
    return whole ? (double)part / (double)whole : 0;
}


/* Operations on one index, by all handles that tell of it. */
static void ops_of_index(const view *v, uint32_t uid, uint64_t recent_ops[FAR_OP_SCAN + 1],
                         uint64_t all_ops[FAR_OP_SCAN + 1]) {
    memset(recent_ops, 0, (FAR_OP_SCAN + 1) * sizeof(*recent_ops));
    memset(all_ops, 0, (FAR_OP_SCAN + 1) * sizeof(*all_ops));
    for (size_t i = 0; i < v->now->survey.handle_count; i++) {
        const far_surveyed_handle *handle = &v->now->survey.handles[i];
        far_bulletin d = recent(v, handle);
        for (unsigned k = 0; k < FAR_COUNTED_INDEXES; k++)
            for (unsigned kind = 0; kind <= FAR_OP_SCAN && d.indexes[k].uid == uid; kind++) {
                recent_ops[kind] += d.indexes[k].ops[kind];
                all_ops[kind] += handle->bulletin.indexes[k].ops[kind];
            }
    }
}


/* ---- Text ---- */

static void print_text(const view *v) {
    const far_survey *s = &v->now->survey;
    printf("pool: %" PRIu64 " of %" PRIu64 " bytes free (%.1f %%), %" PRIu64 " retired, %" PRIu64
           " leaked, epoch %" PRIu64 ", %" PRIu64 " memory nodes\n\n",
           s->usage.free, s->usage.total, 100 * ratio(s->usage.free, s->usage.total), s->usage.retired, s->usage.leaked,
           s->usage.epoch, s->usage.memory_nodes);
    printf("%-6s %-8s %-16s %-16s %8s %12s %8s %10s %8s\n", "client", "process", "command", "host", "sessions", "ops/s",
           "rtt/op", "retries/s", "hits %");
    for (size_t i = 0; i < s->handle_count; i++) {
        const far_surveyed_handle *handle = &s->handles[i];
        far_bulletin d = recent(v, handle);
        char command[64], host[64];
        if (handle->own)
            continue;
        cli_handle_names(handle, command, host);
        printf("%-6u %-8" PRId64 " %-16.16s %-16.16s %8u %12.0f %8.2f %10.0f %8.1f\n", handle->id, handle->process,
               command, host, handle->sessions, per_second(v, sum(d.ops)), ratio(d.round_trips, sum(d.ops)),
               per_second(v, d.retries), 100 * ratio(d.cache_hits, d.cache_hits + d.cache_misses));
    }
    printf("\n%-24s %-8s %12s %14s", "index", "kind", "keys", "bytes");
    for (unsigned kind = 0; kind <= FAR_OP_SCAN; kind++)
        printf(" %8s/s", op_names[kind]);
    putchar('\n');
    for (size_t i = 0; i < s->index_count; i++) {
        const far_surveyed_index *index = &s->indexes[i];
        uint64_t ops[FAR_OP_SCAN + 1], all[FAR_OP_SCAN + 1];
        ops_of_index(v, index->uid, ops, all);
        printf("%-24.24s %-8s %12" PRIu64 " %14" PRIu64, index->name, index->kind, index->keys, index->bytes);
        for (unsigned kind = 0; kind <= FAR_OP_SCAN; kind++)
            printf(" %10.0f", per_second(v, ops[kind]));
        putchar('\n');
    }
}


/* ---- JSON ---- */

static void print_ops_json(const char *name, const view *v, const uint64_t ops[FAR_OP_SCAN + 1], bool rates) {
    printf(",\"%s\":{", name);
    for (unsigned kind = 0; kind <= FAR_OP_SCAN; kind++) {
        printf("%s\"%s\":", kind ? "," : "", op_names[kind]);
        if (rates)
            printf("%.6g", per_second(v, ops[kind]));
        else
            printf("%" PRIu64, ops[kind]);
    }
    putchar('}');
}


static void print_handle_json(const view *v, const far_surveyed_handle *handle, bool first) {
    const far_bulletin *all = &handle->bulletin;
    far_bulletin d = recent(v, handle);
    char command[64], host[64];
    cli_handle_names(handle, command, host);
    printf("%s{\"client\":%u,\"process\":%" PRId64 ",\"command\":", first ? "\n  " : ",\n  ", handle->id,
           handle->process);
    cli_json_string(stdout, command);
    fputs(",\"host\":", stdout);
    cli_json_string(stdout, host);
    printf(",\"sessions\":%u", handle->sessions);
    print_ops_json("ops", v, all->ops, false);
    print_ops_json("ops_per_second", v, d.ops, true);
    printf(",\"round_trips\":%" PRIu64 ",\"verbs\":%" PRIu64 ",\"retries\":%" PRIu64 ",\"bytes_read\":%" PRIu64
           ",\"bytes_written\":%" PRIu64 ",\"cache_hits\":%" PRIu64 ",\"cache_misses\":%" PRIu64 ",\"merged\":%" PRIu64,
           all->round_trips, all->verbs, all->retries, all->bytes_read, all->bytes_written, all->cache_hits,
           all->cache_misses, all->merged);
    printf(",\"rtt_per_op\":%.6g}", ratio(d.round_trips, sum(d.ops)));
}


static void print_json(const view *v) {
    const far_survey *s = &v->now->survey;
    bool first = true;
    printf("{\"pool\":{\"total\":%" PRIu64 ",\"used\":%" PRIu64 ",\"retired\":%" PRIu64 ",\"free\":%" PRIu64
           ",\"leaked\":%" PRIu64 ",\"memory_nodes\":%" PRIu64 ",\"sessions\":%" PRIu64 ",\"epoch\":%" PRIu64
           "},\n \"seconds\":%.3f,\n \"clients\":[",
           s->usage.total, s->usage.used, s->usage.retired, s->usage.free, s->usage.leaked, s->usage.memory_nodes,
           s->usage.sessions, s->usage.epoch, v->now->seconds - v->before->seconds);
    for (size_t i = 0; i < s->handle_count; i++)
        if (!s->handles[i].own) {
            print_handle_json(v, &s->handles[i], first);
            first = false;
        }
    fputs("],\n \"indexes\":[", stdout);
    for (size_t i = 0; i < s->index_count; i++) {
        uint64_t ops[FAR_OP_SCAN + 1], all[FAR_OP_SCAN + 1];
        ops_of_index(v, s->indexes[i].uid, ops, all);
        fputs(i ? ",\n  {\"name\":" : "\n  {\"name\":", stdout);
        cli_json_string(stdout, s->indexes[i].name);
        printf(",\"kind\":\"%s\",\"keys\":%" PRIu64 ",\"bytes\":%" PRIu64, s->indexes[i].kind, s->indexes[i].keys,
               s->indexes[i].bytes);
        print_ops_json("ops", v, all, false);
        print_ops_json("ops_per_second", v, ops, true);
        putchar('}');
    }
    puts("]}");
}


/* ---- Prometheus ---- */

static void begin_metric(const char *name, const char *type, const char *help) {
    printf("# HELP farindex_%s %s\n# TYPE farindex_%s %s\n", name, help, name, type);
}


/* A label's value: as in its text format, a backslash, a quote and a newline are escaped. */
static void print_label(const char *name, const char *value, const char *before) {
    printf("%s%s=\"", before, name);
    for (; *value; value++)
        if (*value == '\\' || *value == '"')
            printf("\\%c", *value);
        else
            putchar(*value);
    putchar('"');
}


static void gauge(const char *name, const char *help, uint64_t value) {
    begin_metric(name, "gauge", help);
    printf("farindex_%s %" PRIu64 "\n", name, value);
}


static void print_client_labels(const far_surveyed_handle *handle) {
    char command[64], host[64], text[32];
    cli_handle_names(handle, command, host);
    snprintf(text, sizeof(text), "%u", handle->id);
    print_label("client", text, "{");
    snprintf(text, sizeof(text), "%" PRId64, handle->process);
    print_label("process", text, ",");
    print_label("command", command, ",");
    print_label("host", host, ",");
}


/* One counter of every client; `at`: where it is in the bulletin. */
static void print_counter(const far_survey *s, const char *name, const char *help, size_t at) {
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
    const far_survey *s = &v->now->survey;
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


static void print_index_gauge(const far_survey *s, const char *name, const char *help, size_t at) {
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
    const far_survey *s = &v->now->survey;
    gauge("pool_bytes", "far memory of the pool", s->usage.total);
    gauge("pool_used_bytes", "in use", s->usage.used);
    gauge("pool_retired_bytes", "not yet reusable", s->usage.retired);
    gauge("pool_free_bytes", "room left", s->usage.free);
    gauge("pool_leaked_bytes", "lost, as the last check found", s->usage.leaked);
    gauge("pool_memory_nodes", "memory nodes", s->usage.memory_nodes);
    gauge("pool_sessions", "sessions that are alive", s->usage.sessions);
    gauge("pool_epoch", "the epoch", s->usage.epoch);
    print_index_gauge(s, "index_keys", "keys, as the clients have told", offsetof(far_surveyed_index, keys));
    print_index_gauge(s, "index_bytes", "far memory of an index", offsetof(far_surveyed_index, bytes));
    print_ops(v);
    print_counter(s, "round_trips_total", "round trips that operations waited for",
                  offsetof(far_bulletin, round_trips));
    print_counter(s, "verbs_total", "verbs posted", offsetof(far_bulletin, verbs));
    print_counter(s, "retries_total", "attempts that met others", offsetof(far_bulletin, retries));
    print_counter(s, "read_bytes_total", "bytes read", offsetof(far_bulletin, bytes_read));
    print_counter(s, "written_bytes_total", "bytes written", offsetof(far_bulletin, bytes_written));
    print_counter(s, "cache_hits_total", "cache hits", offsetof(far_bulletin, cache_hits));
    print_counter(s, "cache_misses_total", "cache misses", offsetof(far_bulletin, cache_misses));
    print_counter(s, "merged_total", "operations merged with others on one key", offsetof(far_bulletin, merged));
}


/* ---- The command ---- */

static int take_look(cli_pool *p, look *l) {
    l->seconds = clock_now();
    return far_pool_survey(p->session, &l->survey) < 0 ? cli_pool_failed() : 0;
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


/* Looks until it has shown as many as asked for; 0: until it is interrupted. */
static int watch(cli_pool *p, const watching *w) {
    look looks[2] = {0};
    bool screen = isatty(STDOUT_FILENO) && !p->json && !w->prometheus;
    int status = take_look(p, &looks[0]);
    for (uint64_t shown = 0; !status && !cli_interrupted() && (w->count == 0 || shown < w->count); shown++) {
        view v = {.before = &looks[shown % 2], .now = &looks[(shown + 1) % 2]};
        if (!w->prometheus)
            pause_for(w->interval_ms * 1000000);
        far_survey_free(&v.now->survey);
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
    far_survey_free(&looks[0].survey);
    far_survey_free(&looks[1].survey);
    return status;
}


int cli_top(int argc, char **argv) {
    cli_pool p = {0};
    watching w = {.interval_ms = 1000, .count = UINT64_MAX};
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"interval", CLI_NUMBER, &w.interval_ms, "MS", "milliseconds between two looks (default: 1000)"},
        {"count", CLI_NUMBER, &w.count, "N", "so many looks, then it ends (default: until interrupted; once as JSON)"},
        {"prometheus", CLI_FLAG, &w.prometheus, NULL, "once, in the text format of Prometheus"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(argc, argv, "top [--interval MS] [--count N] [--json | --prometheus]", options,
                     "Who is connected, operations per second by client and by index, round trips per operation, "
                     "retries, cache hits, and\nthe room left. Clients tell their counters about ten times a second, "
                     "off the way of their operations; those of an\nindex are told for the first 16 that a client "
                     "opened.\n",
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
    return cli_pool_close(&p, watch(&p, &w));
}
