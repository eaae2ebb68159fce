/* Distributions of record numbers decide which record the next operation uses. They are uniform, YCSB's scrambled
 * zipfian, and latest. They decide the course of a run, so they do not use libm (see power.h): the same seed gives the
 * same records on every machine. */
#ifndef FAR_WORKLOAD_DISTRIBUTION_H
#define FAR_WORKLOAD_DISTRIBUTION_H

#include "base/random.h"

#include <stdint.h>

#define FAR_ZIPF_THETA     0.99  /* the value that YCSB uses */
#define FAR_ZIPF_THETA_MAX 0.999 /* the generator requires theta < 1 */
#define FAR_ZIPF_DIRECT    64

/* Draws ranks 0..items-1; rank k has a probability proportional to (k+1)^-theta. This is the generator of Gray et al.,
 * "Quickly Generating Billion-Record Synthetic Databases" (SIGMOD '94), which YCSB uses. Ranks 0 and 1 are exact. The
 * others follow a continuous approximation, in which the next ranks are too frequent (rank 2 by a fifth, rank 9 by 3
 * %). It is kept so that results can be compared with YCSB's. */
typedef struct far_zipf {
    uint64_t items;
    double theta, alpha, eta; /* alpha and eta: constants of the generator, which depend on theta and items */
    double zeta;              /* zeta(items); zeta(n) is the sum of i^-theta for i = 1..n */
    double second, two_power; /* second: zeta(2); two_power: 2^(1-theta) */
    /* zeta(0..FAR_ZIPF_DIRECT), computed as a sum. For a larger n, zeta(n) is direct[FAR_ZIPF_DIRECT] plus the
     * difference of an antiderivative at n and at FAR_ZIPF_DIRECT, with the correction terms of the Euler-Maclaurin
     * formula. */
    double direct[FAR_ZIPF_DIRECT + 1];
    double tail_start; /* that antiderivative, with its correction terms, at FAR_ZIPF_DIRECT */
} far_zipf;

/* returns FAR_ERR_INVALID if theta is outside 0..FAR_ZIPF_THETA_MAX or items is 0 */
int far_zipf_init(far_zipf *z, double theta, uint64_t items);
void far_zipf_resize(far_zipf *z, uint64_t items); /* takes constant time; items > 0 */
uint64_t far_zipf_rank(const far_zipf *z, far_random *random);
/* returns the sum of i^-theta for i = 1..n with an error below 1e-12; takes constant time */
double far_zipf_zeta(const far_zipf *z, uint64_t n);

/* Returns YCSB's hash of a rank: FNV-1a over its 8 bytes, and then the absolute value of the signed result. */
uint64_t far_scramble(uint64_t rank);

typedef enum { FAR_DISTRIBUTION_UNIFORM, FAR_DISTRIBUTION_ZIPFIAN, FAR_DISTRIBUTION_LATEST } far_distribution_kind;

/* returns FAR_ERR_INVALID if there is no distribution of this name */
int far_distribution_parse(const char *name, far_distribution_kind *kind);
const char *far_distribution_name(far_distribution_kind kind);

typedef struct far_distribution {
    far_distribution_kind kind;
    uint64_t space; /* zipfian: the ranks are scattered over this many records, some of which may not exist yet */
    far_zipf zipf;
} far_distribution;

/* Initializes a distribution. `space` is the number of records that are planned for the end of the run. While records
 * are added, the hot records of a zipfian distribution remain the same. */
int far_distribution_init(far_distribution *d, far_distribution_kind kind, double theta, uint64_t space);

/* Draws a record number below `count` (> 0), the number of records that exist now. With `latest`, count-1 is the newest
 * record and the most frequent one. */
uint64_t far_distribution_next(far_distribution *d, far_random *random, uint64_t count);

#endif
