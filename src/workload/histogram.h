/* A latency histogram: 128 buckets to each power of two, so a value is known to better than 0.8 % from 1 to 2^40 (as
 * nanoseconds: over 1000 s), exactly below 256. Constant memory (34 KiB), constant time to add. One thread adds; merge
 * afterwards. */
#ifndef FAR_WORKLOAD_HISTOGRAM_H
#define FAR_WORKLOAD_HISTOGRAM_H

#include <stdint.h>

#define FAR_HISTOGRAM_MAX                                                                                              \
    ((1ull << 40) - 1) /* larger values are counted in the last bucket; mean and maximum stay exact */
#define FAR_HISTOGRAM_BUCKETS 4352

typedef struct far_histogram {
    uint64_t count, min, max;
    unsigned __int128 sum;
    uint64_t buckets[FAR_HISTOGRAM_BUCKETS];
} far_histogram;

void far_histogram_clear(far_histogram *h); /* zeroed memory is a cleared histogram too */
void far_histogram_add(far_histogram *h, uint64_t value);
void far_histogram_merge(far_histogram *into, const far_histogram *from);

/* The smallest value (to the precision of its bucket) that at least numerator/denominator of all values do not exceed:
 * 1/2 is the median, 999/1000 the p999; 0/1 gives the minimum, 1/1 the maximum. 0 when empty. */
uint64_t far_histogram_quantile(const far_histogram *h, uint64_t numerator, uint64_t denominator);
/* The values that occur, one after the other, in rising order: *bucket is 0 at first. 0: no more. */
int far_histogram_next(const far_histogram *h, unsigned *bucket, uint64_t *value, uint64_t *count);
double far_histogram_mean(const far_histogram *h); /* 0 when empty */

#endif
