/* Problems found by checks. */
#include "pool/report.h"
#include "base/error.h"
#include "base/grow.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES 512


/* A line that cannot be kept for want of memory is still counted. */
static void keep_line(far_report *report, const char *line) {
    if (report->kept == FAR_REPORT_KEPT)
        return;
    char **lines = far_grow(report->lines, report->kept, sizeof(*lines)), *copy = lines ? strdup(line) : NULL;
    report->lines = lines ? lines : report->lines;
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


void far_report_error(far_report *report) {
    const char *words = far_last_error();
    char about[FAR_NAME_MAX + 16];
    snprintf(about, sizeof(about), "index '%s': ", report->about ? report->about : "");
    far_report_problem(report, "%s", strncmp(words, about, strlen(about)) == 0 ? words + strlen(about) : words);
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
