/* LMDB as a store of the benchmark: MDB_NOSYNC | MDB_WRITEMAP, a transaction for each operation, as with ours every one
 * is seen by all when it returns. What can be kept is kept: the reader's slot, its transaction, its cursor. */
#include "cli/bench_processes.h"

#ifdef FARINDEX_LMDB

#include <errno.h>
#include <lmdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct lmdb_state { /* of a process */
    MDB_env *env;
    MDB_dbi table;
    MDB_txn *reader; /* reset between reads */
    MDB_cursor *cursor;
} lmdb_state;


/* ---- Operations ---- */

static int code_of(int err) {
    return err == 0                               ? 0
           : err == MDB_NOTFOUND                  ? FAR_ERR_NOT_FOUND
           : err == MDB_KEYEXIST                  ? FAR_ERR_EXISTS
           : err == MDB_MAP_FULL || err == ENOMEM ? FAR_ERR_NO_MEMORY
                                                  : FAR_ERR_CORRUPT;
}


static int get(lmdb_state *state, far_op *op) {
    MDB_val key = {op->key_len, (void *)op->key}, value;
    int err = mdb_txn_renew(state->reader);
    if (err)
        return code_of(err);
    err = mdb_get(state->reader, state->table, &key, &value);
    op->value_len = err ? 0 : value.mv_size;
    if (!err && value.mv_size <= op->capacity)
        memcpy(op->value, value.mv_data, value.mv_size);
    mdb_txn_reset(state->reader);
    return err ? code_of(err) : op->value_len > op->capacity ? FAR_ERR_TOO_SMALL : 0;
}


/* An update is a put: that it would not fail on an absent key saves LMDB a look. */
static int put(lmdb_state *state, const far_op *op) {
    MDB_val key = {op->key_len, (void *)op->key}, value = {op->value_len, op->value};
    MDB_txn *txn;
    int err = mdb_txn_begin(state->env, NULL, 0, &txn);
    if (err)
        return code_of(err);
    err = mdb_put(txn, state->table, &key, &value, op->kind == FAR_OP_INSERT ? MDB_NOOVERWRITE : 0);
    if (err)
        mdb_txn_abort(txn);
    else
        err = mdb_txn_commit(txn);
    return code_of(err);
}


static int scan(lmdb_state *state, const far_op *op) {
    MDB_val key = {op->key_len, (void *)op->key}, value;
    int pairs = 0, err = mdb_txn_renew(state->reader);
    if (!err)
        err = mdb_cursor_renew(state->reader, state->cursor);
    if (!err)
        err = mdb_cursor_get(state->cursor, &key, &value, MDB_SET_RANGE);
    while (!err && (size_t)pairs < op->limit) {
        pairs++;
        if (op->each(op->each_ctx, key.mv_data, key.mv_size, value.mv_data, value.mv_size))
            break;
        err = mdb_cursor_get(state->cursor, &key, &value, MDB_NEXT);
    }
    mdb_txn_reset(state->reader);
    return err && err != MDB_NOTFOUND ? code_of(err) : pairs;
}


static void lmdb_call(bench_client *client, far_op *op) {
    lmdb_state *state = client->engine_state;
    op->result = op->kind == FAR_OP_GET ? get(state, op) : op->kind == FAR_OP_SCAN ? scan(state, op) : put(state, op);
}


static const bench_engine lmdb_engine = {.call = lmdb_call};


/* ---- The store; its state is the path ---- */

static int failed(bench_store *store, const char *what, int err) {
    snprintf(store->error, sizeof(store->error), "lmdb: %s: %s", what, mdb_strerror(err));
    return 1;
}


/* A sparse file: too much costs nothing. */
static size_t map_bytes(const bench_config *config) {
    uint64_t inserts = (config->ops ? config->ops : 1000000) / 10 * config->workload_count;
    return ((config->records + inserts) * (config->value_size + 64) * 4 + (256u << 20)) & ~(size_t)4095;
}


static int open_env(const bench_store *store, lmdb_state *state) {
    MDB_txn *txn;
    int err = mdb_env_create(&state->env);
    if (!err)
        err = mdb_env_set_mapsize(state->env, map_bytes(store->config));
    if (!err)
        err = mdb_env_open(state->env, store->state, MDB_NOSUBDIR | MDB_NOSYNC | MDB_WRITEMAP, 0600);
    if (!err)
        err = mdb_txn_begin(state->env, NULL, 0, &txn);
    if (!err && (err = mdb_dbi_open(txn, NULL, MDB_CREATE, &state->table)) == 0)
        err = mdb_txn_commit(txn);
    if (!err && (err = mdb_txn_begin(state->env, NULL, MDB_RDONLY, &state->reader)) == 0) {
        err = mdb_cursor_open(state->reader, state->table, &state->cursor);
        mdb_txn_reset(state->reader);
    }
    return err;
}


static int lmdb_prepare(bench_store *store) {
    enum { PATH_BYTES = 96 };
    if (!(store->state = malloc(PATH_BYTES)))
        return failed(store, "prepare", ENOMEM);
    snprintf(store->state, PATH_BYTES, "%s/farindex-bench-lmdb-%d", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp",
             (int)getpid());
    return 0;
}


static int lmdb_open(bench_store *store, bench_client *client) {
    lmdb_state *state = calloc(1, sizeof(*state));
    client->engine = &lmdb_engine;
    client->engine_state = state;
    int err = state ? open_env(store, state) : ENOMEM;
    return err ? failed(store, "open", err) : 0;
}


static int lmdb_measure(bench_store *store, bench_client *client, far_usage *usage) {
    lmdb_state *state = client->engine_state;
    MDB_stat counted;
    int err = mdb_txn_renew(state->reader);
    if (!err) {
        err = mdb_stat(state->reader, state->table, &counted);
        mdb_txn_reset(state->reader);
    }
    if (err)
        return failed(store, "stat", err);
    usage->keys = counted.ms_entries;
    return 0;
}


static void lmdb_close(bench_store *store, bench_client *client) {
    lmdb_state *state = client->engine_state;
    (void)store;
    mdb_cursor_close(state->cursor);
    mdb_txn_abort(state->reader);
    mdb_env_close(state->env);
    free(state);
}


static int lmdb_finish(bench_store *store) {
    char lock[128];
    snprintf(lock, sizeof(lock), "%s-lock", (const char *)store->state);
    unlink(store->state);
    unlink(lock);
    free(store->state);
    return 0;
}


bool bench_store_of_lmdb(bench_store *store, const bench_config *config) {
    *store = (bench_store){.name = "lmdb",
                           .prepare = lmdb_prepare,
                           .open = lmdb_open,
                           .measure = lmdb_measure,
                           .close = lmdb_close,
                           .finish = lmdb_finish,
                           .config = config};
    return true;
}

#else

bool bench_store_of_lmdb(bench_store *store, const bench_config *config) {
    (void)store, (void)config;
    return false;
}

#endif
