/* Checksums of values (index option checksum=on). The last 4 bytes of each stored value are a hash of key and value.
 * The functions below add the hash before the value reaches the index code and remove it after a read. Index kinds and
 * RDWC treat it as a part of the value, so the option works in the same way for all kinds. A read returns
 * FAR_ERR_CORRUPT if the value, its key, or a pointer on the path to it was damaged in far memory. */
#ifndef FAR_CLIENT_CHECKSUM_H
#define FAR_CLIENT_CHECKSUM_H

#include "index/index.h"

/* Replaces *value by a copy in scratch memory of the task, with the hash appended. */
int far_sum_add(far_task *t, const far_index *index, far_bytes key, far_bytes *value);

/* Checks the hash of a stored value, and removes it from *stored. Returns 0 or FAR_ERR_CORRUPT. */
int far_sum_check(const far_index *index, far_bytes key, far_bytes *stored);
/* Like far_sum_check, but if `report` is not NULL, a wrong hash is added to the report as a problem, and the result is
 * 0. */
int far_sum_check_or_report(const far_index *index, far_bytes key, far_bytes *stored, far_report *report);

/* These two functions are for a get. far_sum_prepare_buffer allocates a scratch buffer for the stored value with its
 * hash. After the get, far_sum_strip_value checks the hash, copies the value without the hash to the caller's buffer,
 * and returns the result of the get. */
int far_sum_prepare_buffer(far_task *t, const far_out *out, far_out *stored);
int far_sum_strip_value(const far_index *index, far_bytes key, const far_out *stored, int result, far_out *out);

/* Checks every value of an index with checksums, and adds damaged values to the report. Does nothing for other indexes.
 * The caller must not hold a pin. */
int far_sum_check_all(far_task *t, far_index *index, far_report *report);

#endif
