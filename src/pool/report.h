/* Problems found by checks, kept until they can be told on the caller's own stack. */
#ifndef FAR_POOL_REPORT_H
#define FAR_POOL_REPORT_H

#include "pool/kind.h"

#define FAR_REPORT_KEPT 1000 /* lines; all are counted */

struct far_report {
    const char *about; /* put before every line; may be NULL */
    unsigned count, kept;
    char **lines;
};

void far_report_error(far_report *report); /* the last error of this thread is a problem */

/* Tells the lines that were kept, until `problem` (may be NULL) returns non-zero. Returns how many problems there were.
 */
int far_report_tell(const far_report *report, int (*problem)(void *ctx, const char *what), void *ctx);
void far_report_free(far_report *report);

#endif
