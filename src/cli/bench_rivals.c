/* What --against can name. */
#include "cli/bench_processes.h"

#include <string.h>

static const bench_rival rivals[] = {
    {.name = "lmdb",
     .heading = "x LMDB",
     .absent = "this build has no LMDB (liblmdb-dev was not there)",
     .words = "lmdb: MDB_NOSYNC | MDB_WRITEMAP, a transaction for every operation, whose effect all processes see when "
              "it returns, as with ours;\n      it has nothing like operations in flight: depth 1\n",
     .processes = 2,
     .store = bench_store_of_lmdb},
    {.name = "redis",
     .heading = "x redis",
     .absent = "this build has no Redis (libhiredis-dev was not there)",
     .words = "redis: a redis-server of its own on loopback, hiredis, nothing on disk; operations in flight are one "
              "pipeline\n",
     .processes = 1,
     .remote = true,
     .store = bench_store_of_redis},
    {.name = "tkrzw",
     .heading = "x tkrzw",
     .absent = "this build has no tkrzw (libtkrzw-dev was not there)",
     .words = "tkrzw: a TinyDBM with two buckets for each record, in the memory of one process; depth 1\n",
     .processes = 1,
     .one_process = true,
     .store = bench_store_of_tkrzw},
    {.name = "kyotocabinet",
     .heading = "x kyoto",
     .absent = "this build has no Kyoto Cabinet (libkyotocabinet-dev was not there)",
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
