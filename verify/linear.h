/* Checks the operations on one key for linearizability: whether some order of atomic steps, each between the begin and
 * the end of its operation, explains all results. A key is a register that is absent or has a value.
 *
 *     get      0 with the value | FAR_ERR_NOT_FOUND: absent | FAR_ERR_TOO_SMALL: present, with the value if recorded
 *     insert   0: was absent, now the value | FAR_ERR_EXISTS: present
 *     update   0: was present, now the value | FAR_ERR_NOT_FOUND: absent
 *     put      0: now the value
 *     delete   0: was present, now absent | FAR_ERR_NOT_FOUND: absent
 *
 * A write that was cut, or that ended with FAR_ERR_UNREACHABLE or FAR_ERR_FENCED, is optional, that is, it takes effect
 * once, at any moment after its begin (also after its end), or never. An optional insert takes effect only while the
 * key is absent, and an optional update or delete only while it is present. Any other error of a write means that it
 * had no effect, and any other error of a get states nothing. Two operations of which one ends when the other begins
 * count as concurrent.
 *
 * The verdict is exact: OK means that a linearization was found, and VIOLATION that none exists. GAVE_UP means that the
 * budget of states was spent before the search ended; nothing is known then, and the caller must report that. In
 * practice this does not happen if all values written to a key differ (or all are the same). It may happen if values
 * that were read have several writers and many writes are concurrent. */
#ifndef FAR_VERIFY_LINEAR_H
#define FAR_VERIFY_LINEAR_H

#include "verify/history.h"

#define FAR_LINEAR_BUDGET 20000000 /* number of states that are explored per key if the caller passes 0 as the budget */

typedef enum { FAR_LINEAR_OK, FAR_LINEAR_VIOLATION, FAR_LINEAR_GAVE_UP } far_linear_verdict;

typedef struct far_linear_op { /* one operation on the key, not a scan; the bytes belong to the caller */
    far_op_kind op;
    bool has_value, of_scan; /* of_scan: this get represents the statement of a scan about the key (verify.h) */
    bool reverse;            /* the scan is reverse; only for the printed timeline */
    uint32_t client;
    int64_t result, start, end; /* `end` is FAR_HISTORY_NEVER if the operation was cut */
    far_bytes value;
} far_linear_op;

typedef struct far_linear_key { /* all operations on one key, in any order */
    far_bytes name;
    far_linear_op *ops;
    size_t count;
    const far_bytes *initial; /* value of the key before the first operation; NULL: the key was absent */
} far_linear_key;

/* Checks one key and returns the verdict. `budget` is the largest number of states to explore (0: FAR_LINEAR_BUDGET).
 * *states (if not NULL) receives the number of states explored. */
far_linear_verdict far_linear_check(const far_linear_key *key, uint64_t budget, uint64_t *states);

/* returns true if the operation changed the key, or may have done so */
bool far_linear_is_write(const far_linear_op *op);

/* Reduces the history of a key with the verdict VIOLATION. It moves a small set of operations that has no linearization
 * to the front of key->ops, in the order of begin, and sets key->count to its size. First it finds the shortest prefix
 * in time that fails. Then it removes the operations that are not needed for the failure. A write is removed only if
 * the remaining operations have no linearization even when this write may take effect at any moment or never. Therefore
 * the remaining operations alone prove the violation. */
void far_linear_shrink(far_linear_key *key, uint64_t budget);

/* Prints a timeline with one operation per line, in the order of begin. */
void far_linear_print(const far_linear_key *key, FILE *file);

#endif
