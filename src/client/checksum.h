/* checksum=on: a hash of key and value lies behind every value, as its last bytes. It is put there and taken away here,
 * above the kinds, which see a value that is longer: so that it is the same for all of them, and for RDWC. What was
 * damaged in far memory, be it the value, its key, or the way that leads to another's value, is FAR_ERR_CORRUPT. */
#ifndef FAR_CLIENT_CHECKSUM_H
#define FAR_CLIENT_CHECKSUM_H

#include "index/index.h"

/* The value as it is stored, in scratch memory of the task. */
int far_sum_add(far_task *t, const far_index *index, far_bytes key, far_bytes *value);

/* What is stored, without its hash: 0, or FAR_ERR_CORRUPT. */
int far_sum_check(const far_index *index, far_bytes key, far_bytes *stored);
/* As far_sum_check; with a report, damage is noted there as a problem, and is no error. */
int far_sum_report(const far_index *index, far_bytes key, far_bytes *stored, far_report *report);

/* A get: room for what is stored; then, of that, the value for the caller. */
int far_sum_room(far_task *t, const far_out *out, far_out *stored);
int far_sum_give(const far_index *index, far_bytes key, const far_out *stored, int result, far_out *out);

/* For check: every value of the index, if it has such; each that is damaged is reported. Not pinned. */
int far_sum_check_all(far_task *t, far_index *index, far_report *report);

#endif
