/* Small parts that all kinds use. */
#include "index/report.h"

#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES 512


int far_out_give(far_out *out, const void *value, size_t length) {
    out->length = length;
    if (length > out->capacity)
        return FAR_ERR_TOO_SMALL;
    if (length)
        memcpy(out->buffer, value, length);
    return 0;
}


/* A line that cannot be kept for want of memory is still counted. */
static void keep_line(far_report *report, const char *line) {
    if (report->kept == FAR_REPORT_KEPT)
        return;
    if (report->kept == report->size) {
        unsigned size = report->size ? 2 * report->size : 16;
        char **lines = realloc(report->lines, size * sizeof(*lines));
        if (!lines)
            return;
        report->lines = lines;
        report->size = size;
    }
    char *copy = strdup(line);
    if (copy)
        report->lines[report->kept++] = copy;
}


void far_report_problem(far_report *report, const char *format, ...) {
    char line[LINE_BYTES] = "";
    size_t used = 0;
    if (report->about) {
        snprintf(line, sizeof(line), "%s: ", report->about);
        used = strlen(line);
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + used, sizeof(line) - used, format, arguments);
    va_end(arguments);
    if (report->count < INT_MAX)
        report->count++;
    keep_line(report, line);
}


int far_report_tell(const far_report *report, int (*problem)(void *ctx, const char *what), void *ctx) {
    for (unsigned i = 0; problem && i < report->kept; i++)
        if (problem(ctx, report->lines[i]))
            break;
    return (int)report->count;
}


void far_report_free(far_report *report) {
    for (unsigned i = 0; i < report->kept; i++)
        free(report->lines[i]);
    free(report->lines);
    *report = (far_report){0};
}


/* Background work on an index. */

typedef struct index_work { /* the argument follows */
    far_index *index;
    void (*run)(far_task *t, far_index *index, void *arg);
} index_work;


static void run_index_work(far_task *t, void *arg) {
    index_work *work = arg;
    work->run(t, work->index, work + 1);
    atomic_fetch_sub_explicit(&work->index->uses, 1, memory_order_release);
}


bool far_index_spawn(far_task *t, far_index *index, void (*run)(far_task *t, far_index *index, void *arg),
                     const void *arg, size_t bytes) {
    far_scratch_mark mark = far_scratch_here(t);
    index_work *work = far_scratch(t, sizeof(*work) + bytes);
    if (!work)
        return false;
    *work = (index_work){index, run};
    if (bytes)
        memcpy(work + 1, arg, bytes);
    atomic_fetch_add_explicit(&index->uses, 1, memory_order_relaxed);
    bool spawned = far_spawn(t, run_index_work, work, sizeof(*work) + bytes);
    if (!spawned)
        atomic_fetch_sub_explicit(&index->uses, 1, memory_order_release);
    far_scratch_back(t, mark);
    return spawned;
}
