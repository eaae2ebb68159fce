/* LMDB as a rival, opened with MDB_NOSYNC | MDB_WRITEMAP. Each operation is a transaction, because an operation of
 * farindex is also visible to all processes when it returns. Reader slot, read transaction and cursor are reused. */
#include "bench/processes.h"

#ifdef FARINDEX_LMDB

#include <errno.h>
#include <lmdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct lmdb_state { /* the state of one process */
    MDB_env *env;
    MDB_dbi table;
    MDB_txn *reader; /* the read transaction, which is reset between reads */
    MDB_cursor *cursor;
} lmdb_state;


/* ---- Operations ---- */

static int error_code_of(int err) {
    return err == 0                               ? 0
           : err == MDB_NOTFOUND                  ? FAR_ERR_NOT_FOUND
           : err == MDB_KEYEXIST                  ? FAR_ERR_EXISTS
           : err == MDB_MAP_FULL || err == ENOMEM ? FAR_ERR_NO_MEMORY
                                                  : FAR_ERR_CORRUPT;
}


static int get_value(lmdb_state *state, far_op *op) {
    MDB_val key = {op->key_len, (void *)op->key}, value;
    int err = mdb_txn_renew(state->reader);
    if (err)
        return error_code_of(err);
    err = mdb_get(state->reader, state->table, &key, &value);
    op->value_len = err ? 0 : value.mv_size;
    if (!err && value.mv_size <= op->capacity)
        memcpy(op->value, value.mv_data, value.mv_size);
    mdb_txn_reset(state->reader);
    return err ? error_code_of(err) : op->value_len > op->capacity ? FAR_ERR_TOO_SMALL : 0;
}


/* Puts a pair. An update is a put too; LMDB thus saves the lookup that would detect an absent key. */
static int put_pair(lmdb_state *state, const far_op *op) {
    MDB_val key = {op->key_len, (void *)op->key}, value = {op->value_len, op->value};
    MDB_txn *txn;
    int err = mdb_txn_begin(state->env, NULL, 0, &txn);
    if (err)
        return error_code_of(err);
    err = mdb_put(txn, state->table, &key, &value, op->kind == FAR_OP_INSERT ? MDB_NOOVERWRITE : 0);
    if (err)
        mdb_txn_abort(txn);
    else
        err = mdb_txn_commit(txn);
    return error_code_of(err);
}


static int scan_pairs(lmdb_state *state, const far_op *op) {
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
    return err && err != MDB_NOTFOUND ? error_code_of(err) : pairs;
}


static void lmdb_call(bench_client *client, far_op *op) {
    lmdb_state *state = client->engine_state;
    op->result = op->kind == FAR_OP_GET    ? get_value(state, op)
                 : op->kind == FAR_OP_SCAN ? scan_pairs(state, op)
                                           : put_pair(state, op);
}


static const bench_engine lmdb_engine = {.call = lmdb_call};


/* ---- The store; `state` is the path ---- */

static int report_failure(bench_store *store, const char *what, int err) {
    snprintf(store->error, sizeof(store->error), "lmdb: %s: %s", what, mdb_strerror(err));
    return 1;
}


/* Returns the size of the map. The file is sparse, so a generous size costs nothing. */
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
        return report_failure(store, "prepare", ENOMEM);
    snprintf(store->state, PATH_BYTES, "%s/farindex-bench-lmdb-%d", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp",
             (int)getpid());
    return 0;
}


static int lmdb_open(bench_store *store, bench_client *client) {
    lmdb_state *state = calloc(1, sizeof(*state));
    client->engine = &lmdb_engine;
    client->engine_state = state;
    int err = state ? open_env(store, state) : ENOMEM;
    return err ? report_failure(store, "open", err) : 0;
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
        return report_failure(store, "stat", err);
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
