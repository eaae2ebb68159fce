/* A time series of a workload: the number and the latency of the operations that ended in each interval. */
#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>

#define MOMENTS_MAX 1000000


static bool make_room(bench_series *series, size_t count) {
    if (count <= series->room)
        return true;
    size_t room = series->room ? series->room : 64;
    while (room < count)
        room *= 2;
    bench_moment *more = count <= MOMENTS_MAX ? realloc(series->moments, room * sizeof(*more)) : NULL;
    if (!more)
        return false;
    memset(more + series->room, 0, (room - series->room) * sizeof(*more));
    series->moments = more;
    series->room = room;
    return true;
}


static bench_moment *moment_at(bench_series *series, size_t number) {
    if (!make_room(series, number + 1)) {
        series->cut = true;
        return NULL;
    }
    if (number >= series->count)
        series->count = number + 1;
    return &series->moments[number];
}


static void add_operation(bench_moment *to, uint64_t ops, uint64_t sum_ns, uint64_t max_ns) {
    to->ops += ops;
    to->sum_ns += sum_ns;
    if (max_ns > to->max_ns)
        to->max_ns = max_ns;
}


void bench_series_add(bench_series *series, uint64_t interval, uint64_t since_begin, uint64_t latency) {
    bench_moment *moment = moment_at(series, since_begin / interval);
    if (moment)
        add_operation(moment, 1, latency, latency);
}


void bench_series_merge(bench_series *into, const bench_series *from) {
    for (size_t i = 0; i < from->count; i++) {
        bench_moment *moment = moment_at(into, i);
        if (moment)
            add_operation(moment, from->moments[i].ops, from->moments[i].sum_ns, from->moments[i].max_ns);
    }
    into->cut |= from->cut;
}


void bench_series_clear(bench_series *series) {
    if (series->room)
        memset(series->moments, 0, series->room * sizeof(*series->moments));
    series->count = 0;
    series->cut = false;
}


void bench_series_free(bench_series *series) {
    free(series->moments);
    *series = (bench_series){0};
}
