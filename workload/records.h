/* The records of an index under load. A far_records counts how many record numbers were given to inserts, and up to
 * which number all inserts are complete. All threads share one far_records, without locks. It works like YCSB's
 * AcknowledgedCounterGenerator, except that it never overflows, because if the oldest unfinished insert is
 * FAR_RECORDS_WINDOW numbers behind, no more numbers are given out until it completes. */
#ifndef FAR_WORKLOAD_RECORDS_H
#define FAR_WORKLOAD_RECORDS_H

#include <stdatomic.h>
#include <stdint.h>

#define FAR_RECORDS_WINDOW 65536

typedef struct far_records {
    _Atomic uint64_t claimed;      /* the next number for an insert */
    _Atomic uint64_t acknowledged; /* the inserts of all records below this number are complete */
    _Atomic uint64_t gone;         /* the records below this number were given to deletes */
    _Atomic uint64_t keep;         /* number of records that are never given to deletes */
    uint64_t limit;
    /* the element record % window contains record + 1 after the insert of the record has completed */
    _Atomic uint64_t finished[FAR_RECORDS_WINDOW];
} far_records;

/* present: records 0..present-1 exist already. limit: largest number of records (far_keyset_count_limit). */
void far_records_init(far_records *records, uint64_t present, uint64_t limit);

/* Returns the next record number below `bound` in *record. Returns FAR_ERR_NOT_FOUND if there is none, or FAR_ERR_BUSY
 * if too many inserts are unfinished. */
int far_records_claim(far_records *records, uint64_t bound, uint64_t *record);

/* Excludes half of the present records from deletes, so that operations on random records always find some. */
void far_records_keep_half(far_records *records);

/* Returns the oldest record in *record, for a delete. Returns FAR_ERR_NOT_FOUND if only excluded records are left. */
int far_records_claim_oldest(far_records *records, uint64_t *record);

/* Reports that the insert of a claimed record has ended. An insert that failed must be reported too, because otherwise
 * all later records would remain unacknowledged; readers of that record will not find it. */
void far_records_acknowledge(far_records *records, uint64_t record);

/* Returns n if records 0..n-1 are known to be complete. */
static inline uint64_t far_records_count(far_records *records) {
    return atomic_load_explicit(&records->acknowledged, memory_order_acquire);
}

/* Returns n if records 0..n-1 were deleted or given to deletes. */
static inline uint64_t far_records_gone(far_records *records) {
    return atomic_load_explicit(&records->gone, memory_order_acquire);
}

#endif
