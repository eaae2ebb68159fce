/* Linearizability of one key: a register that is absent or holds a value.
 *
 *   get      0 with the value | FAR_ERR_NOT_FOUND: absent | FAR_ERR_TOO_SMALL: present, with the value if recorded
 *   insert   0: was absent, now the value | FAR_ERR_EXISTS: present
 *   update   0: was present, now the value | FAR_ERR_NOT_FOUND: absent
 *   put      0: now the value
 *   delete   0: was present, now absent | FAR_ERR_NOT_FOUND: absent
 *
 * A write that was cut, or ended with FAR_ERR_UNREACHABLE or FAR_ERR_FENCED, may take effect once, at any moment after
 * its start (also after its end), or never; an insert, update or delete of these only when the key is absent, present,
 * present. Any other error means no effect. A get that failed otherwise tells nothing. Operations that touch in time
 * count as concurrent.
 *
 * The verdict is exact for every history: OK means that a linearization was found, VIOLATION that there is none.
 * GAVE_UP means that the budget of explored states was spent first: nothing is known then, and it must be reported as
 * such. It does not happen in practice if the values written to a key differ (or are all the same); it may if values
 * that are read have several writers and many writes are concurrent. */
#ifndef FAR_VERIFY_LINEAR_H
#define FAR_VERIFY_LINEAR_H

#include "verify/history.h"

#define FAR_LINEAR_BUDGET 20000000 /* states per key, if 0 is given */

typedef enum { FAR_LINEAR_OK, FAR_LINEAR_VIOLATION, FAR_LINEAR_GAVE_UP } far_linear_verdict;

typedef struct far_linear_op { /* one operation on the key, not a scan; the bytes stay the caller's */
    far_op_kind op;
    bool has_value, of_scan; /* of_scan: a get that stands for what a scan said about the key (see verify.h) */
    uint32_t client;
    int64_t result, start, end; /* end FAR_HISTORY_NEVER: cut */
    far_bytes value;
} far_linear_op;

typedef struct far_linear_key { /* all operations on one key, in any order */
    far_bytes name;
    far_linear_op *ops;
    size_t count;
    const far_bytes *initial; /* the value before all; NULL: absent */
} far_linear_key;

/* budget: of states, 0 = FAR_LINEAR_BUDGET; states, if wanted: how many were explored. */
far_linear_verdict far_linear_check(const far_linear_key *key, uint64_t budget, uint64_t *states);

bool far_linear_is_write(const far_linear_op *op); /* the operation had, or may have had, an effect */

/* Of a key whose verdict is VIOLATION: moves a small illegal history to the front of key->ops, by start, and sets
 * key->count to its size: the shortest prefix in time that is illegal, without all that is not needed for that. A write
 * is only left out if the rest is illegal even if that write had taken effect at any moment or never, so what is left
 * is a proof by itself. */
void far_linear_shrink(far_linear_key *key, uint64_t budget);

/* A timeline, one operation per line, by start. */
void far_linear_print(const far_linear_key *key, FILE *file);

#endif
