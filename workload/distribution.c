/* The distributions of record numbers, which are uniform, zipfian and latest. `far_distribution_next` draws the record
 * of the next operation. */
#include "workload/distribution.h"

#include "farindex.h"
#include "workload/power.h"

#include <string.h>

/* number of times at most that a rank is drawn again because it was scattered to a record that does not exist yet */
#define REDRAWS 64

static const char *const names[] = {"uniform", "zipfian", "latest"};


/* Returns the antiderivative of x^-theta at n plus the Euler-Maclaurin correction terms there; `power` is n^(1-theta).
 * zeta(n) is the difference of this function at n and at a start point, plus the direct sum up to the start point. The
 * first omitted term is below 1e-13 at 64. */
static double tail_at(double theta, double n, double power) {
    double value = power / n, inverse = 1.0 / n, square = inverse * inverse;
    double first = theta * value * inverse / 12.0;
    double third = theta * (theta + 1.0) * (theta + 2.0) * value * inverse * square / 720.0;
    return power / (1.0 - theta) + (value * 0.5 - (first - third));
}


static double zeta_from_power(const far_zipf *z, uint64_t n, double power) {
    if (n <= FAR_ZIPF_DIRECT)
        return z->direct[n];
    return z->direct[FAR_ZIPF_DIRECT] + (tail_at(z->theta, (double)n, power) - z->tail_start);
}


double far_zipf_zeta(const far_zipf *z, uint64_t n) {
    return zeta_from_power(z, n, far_pow((double)n, 1.0 - z->theta));
}


int far_zipf_init(far_zipf *z, double theta, uint64_t items) {
    if (!(theta >= 0.0 && theta <= FAR_ZIPF_THETA_MAX) || items == 0)
        return FAR_ERR_INVALID;
    memset(z, 0, sizeof *z);
    z->theta = theta;
    z->alpha = 1.0 / (1.0 - theta);
    for (int i = 1; i <= FAR_ZIPF_DIRECT; i++)
        z->direct[i] = z->direct[i - 1] + far_pow(i, -theta);
    z->tail_start = tail_at(theta, FAR_ZIPF_DIRECT, far_pow(FAR_ZIPF_DIRECT, 1.0 - theta));
    z->second = z->direct[2];
    z->two_power = far_pow(2.0, 1.0 - theta);
    far_zipf_resize(z, items);
    return FAR_OK;
}


void far_zipf_resize(far_zipf *z, uint64_t items) {
    double power = far_pow((double)items, 1.0 - z->theta);
    z->items = items;
    z->zeta = zeta_from_power(z, items, power);
    if (items > 2)
        z->eta = (1.0 - z->two_power / power) / (1.0 - z->second / z->zeta);
}


uint64_t far_zipf_rank(const far_zipf *z, far_random *random) {
    double u = (double)(far_random_next(random) >> 11) * 0x1p-53, scaled = u * z->zeta;
    if (scaled < 1.0 || z->items == 1)
        return 0;
    if (scaled < z->second || z->items == 2)
        return 1;
    uint64_t rank = (uint64_t)((double)z->items * far_pow(z->eta * u - z->eta + 1.0, z->alpha));
    return rank < z->items ? rank : z->items - 1;
}


uint64_t far_scramble(uint64_t rank) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (int i = 0; i < 8; i++)
        hash = (hash ^ (rank >> (8 * i) & 0xff)) * 0x100000001b3ull;
    return hash >> 63 ? -hash : hash;
}


int far_distribution_parse(const char *name, far_distribution_kind *kind) {
    for (int i = 0; name && i < 3; i++) {
        if (strcmp(name, names[i]) != 0)
            continue;
        *kind = (far_distribution_kind)i;
        return FAR_OK;
    }
    return FAR_ERR_INVALID;
}


const char *far_distribution_name(far_distribution_kind kind) {
    return names[kind];
}


int far_distribution_init(far_distribution *d, far_distribution_kind kind, double theta, uint64_t space) {
    d->kind = kind;
    d->space = space;
    return far_zipf_init(&d->zipf, theta, space);
}


/* Draws a rank and scatters it over all records that are planned, as YCSB does. If the record does not exist yet, the
 * rank is drawn again. */
static uint64_t next_scrambled(far_distribution *d, far_random *random, uint64_t count) {
    uint64_t hash = 0;
    /* More records were added than planned. The space is doubled, so that the hot records change rarely. */
    if (count > d->space) {
        d->space = count * 2;
        far_zipf_resize(&d->zipf, d->space);
    }
    for (int i = 0; i < REDRAWS; i++) {
        hash = far_scramble(far_zipf_rank(&d->zipf, random));
        if (hash % d->space < count)
            return hash % d->space;
    }
    return hash % count;
}


uint64_t far_distribution_next(far_distribution *d, far_random *random, uint64_t count) {
    switch (d->kind) {
    case FAR_DISTRIBUTION_ZIPFIAN:
        return next_scrambled(d, random, count);
    case FAR_DISTRIBUTION_LATEST:
        if (d->zipf.items != count)
            far_zipf_resize(&d->zipf, count);
        return count - 1 - far_zipf_rank(&d->zipf, random);
    default:
        return far_random_below(random, count);
    }
}
