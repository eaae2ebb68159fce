/* Which record an operation is about: uniform, YCSB's scrambled zipfian, or latest. Runs are decided here, so nothing
 * comes from libm (power.h): the same seed gives the same records on every machine. */
#ifndef FAR_WORKLOAD_DISTRIBUTION_H
#define FAR_WORKLOAD_DISTRIBUTION_H

#include "base/random.h"

#include <stdint.h>

#define FAR_ZIPF_THETA     0.99  /* YCSB's */
#define FAR_ZIPF_THETA_MAX 0.999 /* the generator needs theta < 1 */
#define FAR_ZIPF_DIRECT    64

/* Ranks 0..items-1, rank k with a probability proportional to (k+1)^-theta: the generator of Gray et al., "Quickly
 * Generating Billion-Record Synthetic Databases" (SIGMOD '94), that YCSB uses. Ranks 0 and 1 are exact; the others
 * follow a continuous approximation, which gives the next ranks too much (rank 2 a fifth, rank 9 3 %). Kept as it is,
 * so that results compare. */
typedef struct far_zipf {
    uint64_t items;
    double theta, alpha, zeta, eta, second, two_power; /* second: zeta(2); two_power: 2^(1-theta) */
    double direct[FAR_ZIPF_DIRECT + 1];                /* zeta(0..FAR_ZIPF_DIRECT), by summing */
    double tail_start;                                 /* the Euler-Maclaurin terms at FAR_ZIPF_DIRECT */
} far_zipf;

int far_zipf_init(far_zipf *z, double theta,
                  uint64_t items);                 /* FAR_ERR_INVALID: theta outside 0..FAR_ZIPF_THETA_MAX, no items */
void far_zipf_resize(far_zipf *z, uint64_t items); /* constant time; items > 0 */
uint64_t far_zipf_rank(const far_zipf *z, far_random *random);
double far_zipf_zeta(const far_zipf *z, uint64_t n); /* the sum of i^-theta for i = 1..n, to 1e-12; constant time */

/* YCSB's hash of a rank: FNV-1a over its 8 bytes, the absolute value of the signed result. */
uint64_t far_scramble(uint64_t rank);

typedef enum { FAR_DISTRIBUTION_UNIFORM, FAR_DISTRIBUTION_ZIPFIAN, FAR_DISTRIBUTION_LATEST } far_distribution_kind;

int far_distribution_parse(const char *name, far_distribution_kind *kind); /* FAR_ERR_INVALID: no such name */
const char *far_distribution_name(far_distribution_kind kind);

typedef struct far_distribution {
    far_distribution_kind kind;
    uint64_t space; /* zipfian: the ranks are scattered over this many records, some of which may not exist yet */
    far_zipf zipf;
} far_distribution;

/* space: how many records there will be at the end. The hot records of a zipfian stay where they are while records are
 * added. */
int far_distribution_init(far_distribution *d, far_distribution_kind kind, double theta, uint64_t space);

/* A record number below count (> 0), the number of records that exist now. latest: count-1 is the newest and the most
 * wanted. */
uint64_t far_distribution_next(far_distribution *d, far_random *random, uint64_t count);

#endif
