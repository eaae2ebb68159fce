/* Checks the whole history of a run: each key by itself (linear.h), and the scans.
 *
 * A scan returns keys in strictly rising order (a reverse scan in strictly falling order), inside its bounds, at most
 * as many as its limit, and the result is their number. The statement of a scan about one key is checked as a get of
 * that key over the whole duration of the scan: a returned pair counts as a get that returned this value, and a key
 * that was not returned although the scan covered it counts as a get that returned FAR_ERR_NOT_FOUND. So each value was
 * current at some moment during the scan, and a key that was present throughout is returned. A scan covers its whole
 * range. If it returned as many pairs as its limit, it covers its range up to its last pair: the keys <= the last pair,
 * or the keys >= the last pair if the scan is reverse. A scan that ended with an error, or that was cut by a failure of
 * its client, covers nothing; only its pairs count. */
#ifndef FAR_VERIFY_VERIFY_H
#define FAR_VERIFY_VERIFY_H

#include "verify/history.h"
#include "verify/linear.h"
#include "verify/model.h"

typedef struct far_verify_report {
    uint64_t ops, scans, keys; /* numbers of operations, scans and keys that were checked */
    uint64_t states;           /* number of states that the searches explored */
    uint64_t violations;       /* keys without a linearization, and scans that broke one of the rules above */
    /* keys for which the search spent its budget; for these nothing is known, so the check is not a success */
    uint64_t gave_up;
} far_verify_report;

/* Checks the history. `initial` is the content of the index before the history (NULL: empty). `budget` is the number of
 * states per key (0: FAR_LINEAR_BUDGET). Each violation is printed to `out` (NULL: not printed) with the shortest
 * failing history that was found. Returns true if there was no violation and no search gave up. */
bool far_verify_history(const far_history *history, const far_model *initial, uint64_t budget, FILE *out,
                        far_verify_report *report);

/* Checks the rules that concern the scan alone. Returns NULL if the scan keeps them, otherwise a text that names the
 * violation. */
const char *far_verify_scan(const far_history_op *scan);

/* Returns the statement of a scan about a key as a get in *as_get, or false if it makes no statement about this key. */
bool far_verify_scan_as_get(const far_history_op *scan, far_bytes key, far_linear_op *as_get);

#endif
