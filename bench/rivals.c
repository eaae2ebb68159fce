/* The table of the stores that --against can name. */
#include "bench/processes.h"

#include <string.h>

static const bench_rival rivals[] = {
    {.name = "lmdb",
     .heading = "x LMDB",
     .absent = "this build has no LMDB (liblmdb-dev was not installed)",
     .words = "lmdb: MDB_NOSYNC | MDB_WRITEMAP, one transaction for each operation, so that it is visible to all "
              "processes when it returns, as with farindex;\n      LMDB runs operations one by one (depth 1)\n",
     .processes = 2,
     .store = bench_store_of_lmdb},
    {.name = "redis",
     .heading = "x redis",
     .absent = "this build has no Redis (libhiredis-dev was not installed)",
     .words = "redis: a redis-server on loopback without persistence, accessed with hiredis; operations in flight are "
              "pipelined\n",
     .processes = 1,
     .remote = true,
     .store = bench_store_of_redis},
    {.name = "tkrzw",
     .heading = "x tkrzw",
     .absent = "this build has no tkrzw (libtkrzw-dev was not installed)",
     .words = "tkrzw: a TinyDBM with two buckets for each record, in the memory of one process; depth 1\n",
     .processes = 1,
     .one_process = true,
     .store = bench_store_of_tkrzw},
    {.name = "kyotocabinet",
     .heading = "x kyoto",
     .absent = "this build has no Kyoto Cabinet (libkyotocabinet-dev was not installed)",
     .words = "kyotocabinet: a CacheDB with two buckets for each record, in the memory of one process; depth 1\n",
     .processes = 1,
     .one_process = true,
     .store = bench_store_of_kyotocabinet},
};


const bench_rival *bench_rival_named(const char *name) {
    for (size_t i = 0; i < sizeof(rivals) / sizeof(*rivals); i++)
        if (strcmp(rivals[i].name, name) == 0)
            return &rivals[i];
    return NULL;
}
