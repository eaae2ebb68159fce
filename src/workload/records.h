/* The records of an index under load: how many numbers were given out to inserts, and up to which one all inserts are
 * complete. Shared by all threads, lock-free. Like YCSB's AcknowledgedCounterGenerator, but it never overflows: when
 * the oldest insert under way is FAR_RECORDS_WINDOW behind, no more numbers are given out until it completes. */
#ifndef FAR_WORKLOAD_RECORDS_H
#define FAR_WORKLOAD_RECORDS_H

#include <stdatomic.h>
#include <stdint.h>

#define FAR_RECORDS_WINDOW 65536

typedef struct far_records {
    _Atomic uint64_t claimed;      /* the next number to give out */
    _Atomic uint64_t acknowledged; /* the inserts of all records below are complete */
    _Atomic uint64_t gone;         /* the records below were given out to deletes */
    _Atomic uint64_t keep;         /* how many records are never given out to deletes */
    uint64_t limit;
    _Atomic uint64_t finished[FAR_RECORDS_WINDOW]; /* at record % window: the record + 1, when its insert completed */
} far_records;

/* present: records 0..present-1 exist already. limit: how many there can be (far_keyset_count_limit). */
void far_records_init(far_records *records, uint64_t present, uint64_t limit);

/* Gives out the next record number below bound. FAR_ERR_NOT_FOUND: there is none; FAR_ERR_BUSY: too many inserts are
 * under way. */
int far_records_claim(far_records *records, uint64_t bound, uint64_t *record);

/* Half of those that are there now is kept from deletes, so that readers always find some. */
void far_records_keep_half(far_records *records);

/* Gives out the oldest record, for a delete. FAR_ERR_NOT_FOUND: no more than is kept is left. */
int far_records_claim_oldest(far_records *records, uint64_t *record);

/* The insert of a claimed record completed. An insert that failed is acknowledged too (else it holds back all later
 * records); the readers of that record then miss it, as they should. */
void far_records_acknowledge(far_records *records, uint64_t record);

/* How many records, from 0 on, are known to be complete. */
static inline uint64_t far_records_count(far_records *records) {
    return atomic_load_explicit(&records->acknowledged, memory_order_acquire);
}

/* How many of them were deleted, or are about to be: 0.. */
static inline uint64_t far_records_gone(far_records *records) {
    return atomic_load_explicit(&records->gone, memory_order_acquire);
}

#endif
