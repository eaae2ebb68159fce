/* Judges the whole history of one run: every key for itself (linear.h), and the scans.
 *
 * A scan gives its keys in strictly rising order, inside its bounds, no more than its limit, and returns their number.
 * What it says about one key is checked as a get of that key over the whole call: a pair given is a get that returned
 * the value; a key that was not given although the scan covered it is a get that found nothing. So every value was
 * current at some moment of the call, and a key that was present throughout is given. A scan covers its range up to
 * `to`, or up to the last pair if it gave as many as its limit. One that ended with an error, or was cut, covers
 * nothing: only its pairs count. */
#ifndef FAR_VERIFY_VERIFY_H
#define FAR_VERIFY_VERIFY_H

#include "verify/history.h"
#include "verify/linear.h"
#include "verify/model.h"

typedef struct far_verify_report {
    uint64_t ops, scans, keys; /* judged */
    uint64_t states;           /* explored */
    uint64_t violations;       /* keys without a linearization, and scans that broke a rule of their own */
    uint64_t gave_up;          /* keys of which nothing is known: not a success */
} far_verify_report;

/* initial: what the index held before the history; NULL: nothing. budget: states per key, 0 = FAR_LINEAR_BUDGET. Each
 * violation is printed to `out` (NULL: nowhere) with the shortest failing history found. Returns true if there is
 * nothing to report. */
bool far_verify_history(const far_history *history, const far_model *initial, uint64_t budget, FILE *out,
                        far_verify_report *report);

/* The rules that a scan breaks or keeps by itself. NULL: none broken; else what is wrong. */
const char *far_verify_scan(const far_history_op *scan);

/* What a scan says about a key: false if nothing; else *as_get is the get it amounts to. */
bool far_verify_scan_as_get(const far_history_op *scan, far_bytes key, far_linear_op *as_get);

#endif
