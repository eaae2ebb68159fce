/* Records which record numbers of an index under load were given to inserts and deletes, and which inserts are
 * complete. */
#include "workload/records.h"

#include "farindex.h"


void far_records_init(far_records *records, uint64_t present, uint64_t limit) {
    atomic_store_explicit(&records->claimed, present, memory_order_relaxed);
    for (int i = 0; i < FAR_RECORDS_WINDOW; i++)
        atomic_store_explicit(&records->finished[i], 0, memory_order_relaxed);
    atomic_store_explicit(&records->gone, 0, memory_order_relaxed);
    atomic_store_explicit(&records->keep, (present + 1) / 2, memory_order_relaxed);
    records->limit = limit;
    atomic_store_explicit(&records->acknowledged, present, memory_order_release);
}


/* A number is given out only if the record that used its place in the window before is acknowledged, so that two
 * inserts never share a place. */
int far_records_claim(far_records *records, uint64_t bound, uint64_t *record) {
    uint64_t next = atomic_load_explicit(&records->claimed, memory_order_relaxed);
    do {
        if (next >= bound || next >= records->limit)
            return FAR_ERR_NOT_FOUND;
        uint64_t low = atomic_load_explicit(&records->acknowledged, memory_order_acquire);
        /* If next < low, another thread has claimed this number in the meantime, and the exchange below fails. */
        if (next >= low && next - low >= FAR_RECORDS_WINDOW)
            return FAR_ERR_BUSY;
    } while (!atomic_compare_exchange_weak_explicit(&records->claimed, &next, next + 1, memory_order_relaxed,
                                                    memory_order_relaxed));
    *record = next;
    return FAR_OK;
}


void far_records_keep_half(far_records *records) {
    uint64_t live = far_records_count(records) - far_records_gone(records);
    atomic_store_explicit(&records->keep, (live + 1) / 2, memory_order_relaxed);
}


int far_records_claim_oldest(far_records *records, uint64_t *record) {
    uint64_t next = atomic_load_explicit(&records->gone, memory_order_relaxed);
    do {
        if (far_records_count(records) - next <= atomic_load_explicit(&records->keep, memory_order_relaxed))
            return FAR_ERR_NOT_FOUND;
    } while (!atomic_compare_exchange_weak_explicit(&records->gone, &next, next + 1, memory_order_acq_rel,
                                                    memory_order_relaxed));
    *record = next;
    return FAR_OK;
}


/* A thread that advances `acknowledged` to a record then checks whether that record is finished too, and a thread that
 * finishes a record then checks `acknowledged`. At least one of the two threads observes the other's store, because all
 * four accesses are sequentially consistent. */
void far_records_acknowledge(far_records *records, uint64_t record) {
    atomic_store_explicit(&records->finished[record % FAR_RECORDS_WINDOW], record + 1, memory_order_seq_cst);
    uint64_t low = atomic_load_explicit(&records->acknowledged, memory_order_seq_cst);
    while (atomic_load_explicit(&records->finished[low % FAR_RECORDS_WINDOW], memory_order_seq_cst) == low + 1)
        if (atomic_compare_exchange_strong_explicit(&records->acknowledged, &low, low + 1, memory_order_seq_cst,
                                                    memory_order_seq_cst))
            low++;
}
