/* The tour over all of a shard index, by which walk, check, usage, load and keys go: levels 2 and 3, the older
 * generation first, then level 1 in rising order, then segments that were added meanwhile. Keys only ever move forward
 * in this order, so what is linked throughout is met. Each slice has its own pin. Of a partition that gets another
 * body meanwhile it begins anew: no key was there throughout. */
#ifndef FAR_INDEX_SHARD_TOUR_H
#define FAR_INDEX_SHARD_TOUR_H

#include "index/shard/shard.h"

typedef struct shard_tour shard_tour;

/* Called for every live entry, pinned: at, its word; level 1..3. */
typedef int (*shard_entry_fn)(shard_tour *tour, far_addr at, uint64_t word, int level, uint64_t bucket, unsigned v);

/* I: for every live pair; mark: its kw or state, at mark_at. */
typedef int (*shard_pair_fn)(shard_tour *tour, far_addr mark_at, uint64_t mark, uint64_t h, int level, uint64_t bucket,
                             unsigned v);

struct shard_tour {
    far_task *t;
    far_index *index;
    shard_state *st;
    shard_partition *part;
    unsigned body;         /* of the partition: its number, */
    far_addr body_addr;    /* and where it is */
    uint64_t root;         /* of the partition, before the buckets of a slice were read */
    uint64_t table[4];     /* of levels 2 and 3, as last read */
    far_walk *walk;        /* or NULL */
    far_report *report;    /* or NULL */
    unsigned stuck;        /* locks that nobody holds: epochs were waited for to see it, for some of them */
    far_usage *usage;      /* or NULL */
    far_load *load;        /* or NULL */
    shard_counted counted; /* for usage and load */
    far_keys *keys;        /* or NULL */
    shard_entry_fn each;
    shard_pair_fn each_pair;
};

int shard_tour_all(shard_tour *r);

/* check.c: locks that are held in these buckets, and whose holder is not there. Without a pin. */
int shard_check_locks(shard_tour *r, shard_image *images, uint64_t count);

#endif
