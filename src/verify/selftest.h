/* Does a fabric do what it says? Sessions work against each other on some memory of a pool, and count what the contract
 * (docs/fabric.md) rules out. What they do not see is not proved; what they see is refuted. */
#ifndef FAR_VERIFY_SELFTEST_H
#define FAR_VERIFY_SELFTEST_H

#include "farindex.h"

#include <stdbool.h>
#include <stdint.h>

#define FAR_SELFTESTS           18
#define FAR_SELFTEST_NODE_LEAST (4u << 20) /* bytes of a memory node */

typedef struct far_selftest_result {
    const char *what;       /* the rule */
    const char *capability; /* that says it; NULL: every fabric must keep it */
    bool claimed;           /* this fabric says that it keeps it */
    uint64_t tries, broken;
    const char *left_out; /* why it could not be tried here; NULL: it was */
    bool recorded;        /* refuted, by this self-test or an earlier one: handles that open the pool do without it */
} far_selftest_result;

/* Each rule is tried about so often, over all memory nodes. An error is one of the pool; broken rules are none. `begins`
 * hears what comes next, and the part of all (0..1) that is done; nonzero: that is enough. NULL: nobody listens.
 *
 * What is refuted goes on record at the pool (pool/refuted.h). The handle that tests should not give up what it is to
 * test, so open it with ignore_refuted. From then on it does not rely on the order of READs itself. */
typedef int (*far_selftest_begins)(double done, const char *rule);
int far_selftest(far_pool *pool, uint64_t tries, far_selftest_begins begins,
                 far_selftest_result results[FAR_SELFTESTS]);

/* What earlier self-tests have refuted is trusted again. */
int far_selftest_forget(far_pool *pool);

#endif
