/* The self-test of a fabric. Sessions work against each other on some memory of a pool and count results that the
 * fabric contract (docs/fabric.md) forbids. A violation that is observed proves that the fabric does not keep the rule.
 * Not observing one proves nothing. */
#ifndef FAR_VERIFY_SELFTEST_H
#define FAR_VERIFY_SELFTEST_H

#include "farindex.h"

#include <stdbool.h>
#include <stdint.h>

#define FAR_SELFTESTS           18
#define FAR_SELFTEST_NODE_LEAST (4u << 20) /* smallest memory node, in bytes, on which the self-test runs */

typedef struct far_selftest_result {
    const char *what;       /* text that describes the rule, for messages */
    const char *capability; /* name of the capability that promises the rule; NULL: every fabric must keep it */
    bool claimed; /* true if this fabric claims to keep the rule; otherwise a violation is no error of the fabric */
    uint64_t tries, broken;
    const char *left_out; /* reason why the rule could not be tested here; NULL: it was tested */
    /* A violation is recorded in the pool, by this self-test or an earlier one, so handles that open the pool do not
     * rely on the rule. */
    bool recorded;
} far_selftest_result;

/* Tests each rule about `tries` times over all memory nodes. Returns an error of the pool; violated rules are not
 * errors. `begins` (may be NULL) is called before each rule with the fraction (0..1) of the work that is done; if it
 * returns nonzero, the test ends.
 *
 * Violations are recorded in the pool (pool/format/fabric_record.h). The testing handle must not react to such a
 * record, so open it with ignore_refuted. After this call the handle does not rely on the order of READs. */
typedef int (*far_selftest_begins)(double done, const char *rule);
int far_selftest(far_pool *pool, uint64_t tries, far_selftest_begins begins,
                 far_selftest_result results[FAR_SELFTESTS]);

/* Clears the record of violations in the pool, so that handles trust the fabric's claims again. */
int far_selftest_forget(far_pool *pool);

#endif
