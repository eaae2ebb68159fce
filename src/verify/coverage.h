/* Coverage: how often simulated runs came to each named point (far_point) of a kind's code. A point that no run comes to is a
 * mechanism that nothing has been verified of. */
#ifndef FAR_VERIFY_COVERAGE_H
#define FAR_VERIFY_COVERAGE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

size_t far_coverage_points(void); /* of all code: how many numbers a coverage has */

/* Adds what this process has met since it last did so. `met` may be memory that processes share. */
void far_coverage_take(_Atomic uint64_t *met);

/* One line: how many points of the kind were met, and which were not. Gives how many were not. */
size_t far_coverage_tell(const _Atomic uint64_t *met, const char *kind, FILE *out);

/* A line for each point of the kind, and of the code that all kinds stand on. */
void far_coverage_show(const _Atomic uint64_t *met, const char *kind, FILE *out);

#endif
