/* Collects the problems that a check finds. Checks run in tasks with small stacks; the caller delivers the lines to the
 * user afterwards, on its own stack, with far_report_deliver. */
#ifndef FAR_POOL_REPORT_H
#define FAR_POOL_REPORT_H

#include "pool/kind.h"

#define FAR_REPORT_LINES_MAX 1000 /* number of lines that are stored; further problems are only counted */

struct far_report {
    const char *about; /* prefix of every line, usually the name of the index; may be NULL */
    unsigned count, line_count;
    char **lines;
};

void far_report_error(far_report *report); /* adds the text of far_last_error as a problem */

/* Passes the stored lines to `problem` (may be NULL) until it returns non-zero. Returns the number of problems found,
 * including those without a stored line. */
int far_report_deliver(const far_report *report, int (*problem)(void *ctx, const char *what), void *ctx);
void far_report_free(far_report *report);

#endif
