/* LMDB as a store of the benchmark: MDB_NOSYNC | MDB_WRITEMAP, a transaction for each operation, as every put is seen
 * by all at once. */
#include "cli/bench_processes.h"

#ifdef FARINDEX_LMDB

#include <errno.h>
#include <lmdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct lmdb_state {
    char path[96];
    MDB_env *env;
    MDB_dbi table;
    MDB_txn *reader; /* reset between gets */
} lmdb_state;


static int failed(bench_store *store, const char *what, int err) {
    snprintf(store->error, sizeof(store->error), "lmdb: %s: %s", what, mdb_strerror(err));
    return 1;
}


static size_t map_bytes(const bench_config *config) {
    return (config->records * (config->value_size + 64) * 4 + (256u << 20)) & ~(size_t)4095;
}


static int open_env(bench_store *store) {
    lmdb_state *state = store->state;
    MDB_txn *txn;
    int err = mdb_env_create(&state->env);
    if (!err)
        err = mdb_env_set_mapsize(state->env, map_bytes(store->config));
    if (!err)
        err = mdb_env_open(state->env, state->path, MDB_NOSUBDIR | MDB_NOSYNC | MDB_WRITEMAP, 0600);
    if (!err)
        err = mdb_txn_begin(state->env, NULL, 0, &txn);
    if (!err && (err = mdb_dbi_open(txn, NULL, MDB_CREATE, &state->table)) == 0)
        err = mdb_txn_commit(txn);
    return err;
}


static int lmdb_prepare(bench_store *store) {
    lmdb_state *state = calloc(1, sizeof(*state));
    if (!state)
        return failed(store, "prepare", ENOMEM);
    store->state = state;
    snprintf(state->path, sizeof(state->path), "%s/farindex-bench-lmdb-%d",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (int)getpid());
    return 0;
}


static int lmdb_open(bench_store *store) {
    lmdb_state *state = store->state;
    int err = open_env(store);
    if (!err && (err = mdb_txn_begin(state->env, NULL, MDB_RDONLY, &state->reader)) == 0)
        mdb_txn_reset(state->reader);
    return err ? failed(store, "open", err) : 0;
}


static int lmdb_get(bench_store *store, far_bytes key, uint8_t *value, size_t capacity, size_t *length) {
    lmdb_state *state = store->state;
    MDB_val name = {key.length, (void *)key.data}, found = {0, NULL};
    int err = mdb_txn_renew(state->reader);
    if (err)
        return failed(store, "renew", err);
    err = mdb_get(state->reader, state->table, &name, &found);
    if (!err && found.mv_size <= capacity)
        memcpy(value, found.mv_data, found.mv_size);
    *length = found.mv_size;
    mdb_txn_reset(state->reader);
    return err ? failed(store, "get", err) : 0;
}


static int lmdb_put(bench_store *store, far_bytes key, const uint8_t *value, size_t length) {
    lmdb_state *state = store->state;
    MDB_val name = {key.length, (void *)key.data}, data = {length, (void *)value};
    MDB_txn *txn;
    int err = mdb_txn_begin(state->env, NULL, 0, &txn);
    if (err)
        return failed(store, "begin", err);
    err = mdb_put(txn, state->table, &name, &data, 0);
    if (err)
        mdb_txn_abort(txn);
    else
        err = mdb_txn_commit(txn);
    return err ? failed(store, "put", err) : 0;
}


static void lmdb_close(bench_store *store) {
    lmdb_state *state = store->state;
    if (state->reader)
        mdb_txn_abort(state->reader);
    if (state->env)
        mdb_env_close(state->env);
}


static int lmdb_finish(bench_store *store) {
    lmdb_state *state = store->state;
    char lock[128];
    snprintf(lock, sizeof(lock), "%s-lock", state->path);
    unlink(state->path);
    unlink(lock);
    free(state);
    return 0;
}


bool bench_store_of_lmdb(bench_store *store, const bench_config *config, unsigned processes) {
    *store = (bench_store){"lmdb",      lmdb_prepare, lmdb_open, lmdb_get,  lmdb_put, lmdb_close,
                           lmdb_finish, config,       NULL,      processes, NULL,     ""};
    return true;
}

#else

bool bench_store_of_lmdb(bench_store *store, const bench_config *config, unsigned processes) {
    (void)store, (void)config, (void)processes;
    return false;
}

#endif
