/* Coverage counts how often simulated runs have reached each named point (far_point) in the code of a kind. If no run
 * reaches a point, the mechanism around it was not verified. */
#ifndef FAR_VERIFY_COVERAGE_H
#define FAR_VERIFY_COVERAGE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

size_t far_coverage_points(void); /* number of points in the whole program, which is the size of a coverage array */

/* Adds the counts of this process since the last call to `met`, which may be memory shared by processes. */
void far_coverage_collect(_Atomic uint64_t *met);

/* Prints one line with the number of points of the kind that were reached, and the names of the others. Returns the
 * number of points that were not reached. */
size_t far_coverage_print_missed(const _Atomic uint64_t *met, const char *kind, FILE *out);

/* Prints one line for each point of the kind, and for each point in code that all kinds share. */
void far_coverage_print_points(const _Atomic uint64_t *met, const char *kind, FILE *out);

#endif
