/* The traversal of a whole shard index, used by the index walk, check, usage, load and keys. It visits levels 2 and 3
 * first (the tables of the older version before those of the newer one), then level 1 in ascending order of buckets,
 * and then segments that were added meanwhile. Splits and drains move keys only forward in this order, so the traversal
 * visits every key that is present throughout. Each slice of the traversal has its own pin. If a partition gets another
 * directory meanwhile, the traversal of this partition begins again. This is safe, because a directory is replaced only
 * when the partition has no key. */
#ifndef FAR_INDEX_SHARD_TRAVERSAL_H
#define FAR_INDEX_SHARD_TRAVERSAL_H

#include "index/shard/shard.h"

typedef struct shard_traversal shard_traversal;

/* Called, pinned, for every live entry. `at` is the address of the entry and `word` its contents; level is 1 to 3. */
typedef int (*shard_entry_fn)(shard_traversal *r, far_addr at, uint64_t word, int level, uint64_t bucket, unsigned v);

/* inline layout: called for every live pair. `mark` is the key word (kw) or the state of the pair, at address mark_at.
 */
typedef int (*shard_pair_fn)(shard_traversal *r, far_addr mark_at, uint64_t mark, uint64_t h, int level,
                             uint64_t bucket, unsigned v);

struct shard_traversal {
    far_task *t;
    far_index *index;
    shard_state *st;
    shard_partition *part;
    unsigned directory;      /* number of the partition's directory */
    far_addr directory_addr; /* address of the partition's directory */
    uint64_t root;           /* root word of the partition, read before the buckets of the current slice */
    uint64_t table[4];       /* table words of levels 2 and 3, as last read */
    unsigned version;        /* version of the partition, read before `table` and `extents` */
    uint64_t *extents[4];    /* for each table of several extents their addresses, as last read; else NULL */
    far_walk *walk;          /* the mark phase to which objects are reported; NULL: none */
    far_report *report;      /* the check to which problems are reported; NULL: none */
    /* number of abandoned locks reported so far; limited, because a check waits for some epochs before it reports a
     * lock */
    unsigned stuck;
    far_usage *usage;      /* result of usage; NULL = not wanted */
    far_load *load;        /* result of load; NULL = not wanted */
    shard_counted counted; /* keys counted so far, for usage and load */
    far_keys *keys;        /* receives the keys; NULL = not wanted */
    shard_entry_fn each;
    shard_pair_fn each_pair;
};

int shard_traverse(shard_traversal *r);

/* Reports locks in these buckets that are held although no live client holds them. The caller has no pin. Implemented
 * in check.c. */
int shard_check_locks(shard_traversal *r, shard_image *images, uint64_t count);

#endif
