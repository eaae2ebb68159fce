/* A latency histogram with 128 buckets for each power of two. */
#include "workload/histogram.h"

#include <string.h>

#define SUB_BITS 7 /* 2^7 buckets for each power of two */

_Static_assert(FAR_HISTOGRAM_BUCKETS == (40 - SUB_BITS + 1) << SUB_BITS,
               "one bucket for every value up to FAR_HISTOGRAM_MAX");


/* Returns the bucket of a value. Each value below 2^(SUB_BITS+1) has its own bucket. A larger value is shifted right
 * until SUB_BITS+1 bits remain. The shift selects the row of buckets, and the remaining bits (the highest one is always
 * set) select the bucket in the row. Rows follow each other without a gap. */
static unsigned bucket_of(uint64_t value) {
    if (value > FAR_HISTOGRAM_MAX)
        value = FAR_HISTOGRAM_MAX;
    unsigned shift = 63 - SUB_BITS - (unsigned)__builtin_clzll(value | 1ull << SUB_BITS);
    return (shift << SUB_BITS) + (unsigned)(value >> shift);
}


static uint64_t middle_of_bucket(unsigned bucket) {
    unsigned shift = bucket >> SUB_BITS;
    if (shift <= 1)
        return bucket;
    shift--;
    uint64_t low = (uint64_t)(bucket - (shift << SUB_BITS)) << shift;
    return low + (1ull << shift >> 1);
}


void far_histogram_clear(far_histogram *h) {
    memset(h, 0, sizeof *h);
}


void far_histogram_add(far_histogram *h, uint64_t value) {
    if (h->count == 0 || value < h->min)
        h->min = value;
    if (value > h->max)
        h->max = value;
    h->count++;
    h->sum += value;
    h->buckets[bucket_of(value)]++;
}


void far_histogram_merge(far_histogram *into, const far_histogram *from) {
    if (from->count == 0)
        return;
    if (into->count == 0 || from->min < into->min)
        into->min = from->min;
    if (from->max > into->max)
        into->max = from->max;
    into->count += from->count;
    into->sum += from->sum;
    for (unsigned i = 0; i < FAR_HISTOGRAM_BUCKETS; i++)
        into->buckets[i] += from->buckets[i];
}


uint64_t far_histogram_quantile(const far_histogram *h, uint64_t numerator, uint64_t denominator) {
    if (h->count == 0 || denominator == 0)
        return 0;
    unsigned __int128 wanted = ((unsigned __int128)h->count * numerator + denominator - 1) / denominator;
    if (wanted == 0)
        return h->min;
    if (wanted >= h->count)
        return h->max;
    uint64_t seen = 0;
    unsigned bucket = 0;
    while ((seen += h->buckets[bucket]) < wanted)
        bucket++;
    uint64_t value = middle_of_bucket(bucket);
    return value < h->min ? h->min : value > h->max ? h->max : value;
}


int far_histogram_next(const far_histogram *h, unsigned *bucket, uint64_t *value, uint64_t *count) {
    while (*bucket < FAR_HISTOGRAM_BUCKETS && h->buckets[*bucket] == 0)
        ++*bucket;
    if (*bucket == FAR_HISTOGRAM_BUCKETS)
        return 0;
    *value = middle_of_bucket(*bucket);
    *count = h->buckets[(*bucket)++];
    return 1;
}


double far_histogram_mean(const far_histogram *h) {
    return h->count == 0 ? 0 : (double)h->sum / (double)h->count;
}
