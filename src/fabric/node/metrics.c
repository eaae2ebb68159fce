/* Metrics of a running daemon (metrics.h). */
#define _GNU_SOURCE
#include "fabric/node/metrics.h"
#include "fabric/node/serving.h"
#include "farindex.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>


void net_times_add(net_times *times, uint64_t ns) {
    uint64_t us = ns / 1000;
    unsigned bucket = us == 0 ? 0 : 64 - (unsigned)__builtin_clzll(us);
    loop_count(&times->buckets[bucket < NET_TIME_BUCKETS ? bucket : NET_TIME_BUCKETS - 1], 1);
    loop_count(&times->sum_ns, ns);
}


static uint64_t load(atomic_uint_fast64_t *count) {
    return atomic_load_explicit(count, memory_order_relaxed);
}


static void print_head(FILE *out, const char *name, const char *type, const char *help) {
    fprintf(out, "# HELP farindex_node_%s %s\n# TYPE farindex_node_%s %s\n", name, help, name, type);
}


static void print_gauge(FILE *out, const char *name, const char *help, uint64_t value) {
    print_head(out, name, "gauge", help);
    fprintf(out, "farindex_node_%s %" PRIu64 "\n", name, value);
}


static void print_counter(FILE *out, const char *name, const char *help, uint64_t value) {
    print_head(out, name, "counter", help);
    fprintf(out, "farindex_node_%s %" PRIu64 "\n", name, value);
}


/* Prints the state that the lock of the server protects. */
static void print_state(FILE *out, net_server *server) {
    pthread_mutex_lock(&server->lock);
    net_file_header header = *server->memory->header;
    unsigned sessions = server->sessions, connections = server->admission.connections,
             half_open = server->admission.half_open;
    uint64_t evicted = server->admission.evicted, by_address = server->admission.refused_by_address,
             readers = server->admission.refused_readers;
    pthread_mutex_unlock(&server->lock);
    print_head(out, "info", "gauge", "version of the daemon, and its pool and number in the pool");
    fprintf(out, "farindex_node_info{version=\"%s\",pool=\"%016" PRIx64 "\",node=\"%u\",fabric=\"%s\"} 1\n",
            far_version(), header.pool, header.node, server->rdma ? "rdma" : "tcp");
    print_gauge(out, "memory_bytes", "size of the memory node", server->memory->size);
    print_gauge(out, "start_time_seconds", "start of the daemon in seconds since 1970", server->started);
    print_gauge(out, "threads", "threads that serve clients", server->loop_count);
    print_counter(out, "restarts_total", "restarts of the daemon with this memory", header.restarts);
    print_gauge(out, "refuted", "1 if a self-test found guarantees of the fabric violated", header.refuted != 0);
    print_gauge(out, "sessions", "sessions that hold a claim", sessions);
    print_gauge(out, "connections", "connections", connections);
    print_gauge(out, "half_open_connections", "connections that have sent no hello yet", half_open);
    print_counter(out, "evicted_connections_total", "connections without a hello that were closed for newer ones",
                  evicted);
    print_counter(out, "refused_by_address_total", "connections refused because their address had too many",
                  by_address);
    print_counter(out, "refused_readers_total", "connections with the read secret refused because there were too many",
                  readers);
}


static void print_counts(FILE *out, net_server *server) {
    uint64_t batches = 0, verbs = 0, received = load(&server->gate.counts.bytes_in),
             sent = load(&server->gate.counts.bytes_out);
    for (unsigned i = 0; i < server->loop_count; i++) {
        loop_counts *counts = &server->loops[i].counts;
        batches += load(&counts->batches);
        verbs += load(&counts->verbs);
        received += load(&counts->bytes_in);
        sent += load(&counts->bytes_out);
    }
    print_counter(out, "clients_total", "connections for sessions", load(&server->counts.comes));
    print_counter(out, "ended_sessions_total", "sessions that were fenced or whose connection has ended",
                  load(&server->counts.cuts));
    print_counter(out, "refused_connections_total", "connections that were refused", load(&server->counts.refused));
    print_counter(out, "batches_total", "batches of verbs", batches);
    print_counter(out, "verbs_total", "verbs", verbs);
    print_counter(out, "received_bytes_total", "bytes received from clients", received);
    print_counter(out, "sent_bytes_total", "bytes sent to clients", sent);
    print_counter(out, "dropped_log_lines_total", "lines of the log that were dropped", net_log_dropped(server->log));
}


/* Prints how long the daemon took to execute batches, summed over all loops. */
static void print_times(FILE *out, net_server *server) {
    uint64_t seen = 0, sum_ns = 0;
    print_head(out, "batch_seconds", "histogram", "time from the start of a batch of verbs until its answer is queued");
    for (unsigned bucket = 0; bucket < NET_TIME_BUCKETS; bucket++) {
        for (unsigned i = 0; i < server->loop_count; i++)
            seen += load(&server->loops[i].batch_times.buckets[bucket]);
        if (bucket + 1 < NET_TIME_BUCKETS)
            fprintf(out, "farindex_node_batch_seconds_bucket{le=\"%.6f\"} %" PRIu64 "\n", (double)(1u << bucket) / 1e6,
                    seen);
        else
            fprintf(out, "farindex_node_batch_seconds_bucket{le=\"+Inf\"} %" PRIu64 "\n", seen);
    }
    for (unsigned i = 0; i < server->loop_count; i++)
        sum_ns += load(&server->loops[i].batch_times.sum_ns);
    fprintf(out, "farindex_node_batch_seconds_sum %.9f\nfarindex_node_batch_seconds_count %" PRIu64 "\n",
            (double)sum_ns / 1e9, seen);
}


char *net_server_metrics(net_server *server, size_t *length) {
    char *text = NULL;
    FILE *out = open_memstream(&text, length);
    if (!out)
        return NULL;
    print_state(out, server);
    print_counts(out, server);
    print_times(out, server);
    bool failed = ferror(out) != 0;
    if (fclose(out) == 0 && !failed)
        return text;
    free(text);
    return NULL;
}
