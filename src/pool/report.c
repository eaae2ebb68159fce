/* Stores the problem lines of checks (report.h). */
#include "pool/report.h"
#include "base/error.h"
#include "base/grow.h"
#include "base/text.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES_MAX 512


/* Stores a copy of the line if there is room. If there is no local memory the line is dropped, but the problem is
 * counted in any case. */
static void store_line(far_report *report, const char *line) {
    if (report->line_count == FAR_REPORT_LINES_MAX)
        return;
    char **lines = far_grow(report->lines, report->line_count, sizeof(*lines)), *copy = lines ? strdup(line) : NULL;
    report->lines = lines ? lines : report->lines;
    if (copy)
        report->lines[report->line_count++] = copy;
}


void far_report_problem(far_report *report, const char *format, ...) {
    char line[LINE_BYTES_MAX] = "";
    size_t used = 0;
    if (report->about) {
        snprintf(line, sizeof(line), "%s: ", report->about);
        used = strlen(line);
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + used, sizeof(line) - used, format, arguments);
    va_end(arguments);
    far_make_printable(line); /* it may contain names from far memory, or be cut inside a character */
    if (report->count < INT_MAX)
        report->count++;
    store_line(report, line);
}


void far_report_error(far_report *report) {
    const char *words = far_last_error();
    char about[FAR_NAME_MAX + 16];
    snprintf(about, sizeof(about), "index '%s': ", report->about ? report->about : "");
    far_report_problem(report, "%s", strncmp(words, about, strlen(about)) == 0 ? words + strlen(about) : words);
}


int far_report_deliver(const far_report *report, int (*problem)(void *ctx, const char *what), void *ctx) {
    for (unsigned i = 0; problem && i < report->line_count; i++)
        if (problem(ctx, report->lines[i]))
            break;
    return (int)report->count;
}


void far_report_free(far_report *report) {
    for (unsigned i = 0; i < report->line_count; i++)
        free(report->lines[i]);
    free(report->lines);
    *report = (far_report){0};
}
