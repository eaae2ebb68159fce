/* In-memory hash tables of one process as rivals, with two buckets for each record: TinyDBM of tkrzw, and CacheDB of
 * Kyoto Cabinet. For each library the benchmark uses the table and the call with the fastest gets; no get allocates
 * memory, and the value is copied directly to its destination. The libraries are loaded on demand, so that the program
 * does not depend on them. */
#include "bench/processes.h"

#if defined(FARINDEX_TKRZW) || defined(FARINDEX_KYOTOCABINET)

#include <dlfcn.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct table {
    const char *library;
    bool (*find_calls)(void *library); /* returns false if the library lacks a function */
    void *(*open)(uint64_t buckets);   /* returns NULL if the table cannot be opened */
    int64_t (*count)(void *database);
    void (*close)(void *database);
    bench_engine engine; /* uses the database in `engine_state` of the client */
} table;


static bool find_call(void *library, const char *name, void *call) {
    void *found = dlsym(library, name);
    memcpy(call, &found, sizeof(found));
    return found;
}


/* ---- A store; `state` is the table ---- */

static int report_failure(bench_store *store, const char *what) {
    snprintf(store->error, sizeof(store->error), "%s: %s", store->name, what);
    return 1;
}


static int nothing_to_do(bench_store *store) {
    (void)store;
    return 0;
}


static int table_open(bench_store *store, bench_client *client) {
    const table *table = store->state;
    void *library = dlopen(table->library, RTLD_NOW | RTLD_LOCAL);
    if (!library || !table->find_calls(library))
        return report_failure(store, dlerror());
    client->engine = &table->engine;
    client->engine_state = table->open(2 * store->config->records);
    return client->engine_state ? 0 : report_failure(store, "the hash table cannot be created");
}


static int table_measure(bench_store *store, bench_client *client, far_usage *usage) {
    const table *table = store->state;
    int64_t count = table->count(client->engine_state);
    usage->keys = (uint64_t)count;
    return count < 0 ? report_failure(store, "it does not tell how many keys it has") : 0;
}


static void table_close(bench_store *store, bench_client *client) {
    const table *table = store->state;
    table->close(client->engine_state);
}


static bool store_of_table(bench_store *store, const bench_config *config, const char *name, const table *table) {
    *store = (bench_store){.name = name,
                           .open = table_open,
                           .measure = table_measure,
                           .close = table_close,
                           .finish = nothing_to_do,
                           .config = config,
                           .no_scans = true,
                           .state = (void *)table};
    return true;
}

#endif


/* ---- tkrzw ---- */

#ifdef FARINDEX_TKRZW

#include <tkrzw_langc.h>

static struct {
    __typeof__(tkrzw_dbm_open) *open;
    __typeof__(tkrzw_dbm_close) *close;
    __typeof__(tkrzw_dbm_process) *process;
    __typeof__(tkrzw_dbm_set) *set;
    __typeof__(tkrzw_dbm_count) *count;
    const char *const *no_change;
} tkrzw;


static bool tkrzw_find_calls(void *library) {
    return find_call(library, "tkrzw_dbm_open", &tkrzw.open) && find_call(library, "tkrzw_dbm_close", &tkrzw.close) &&
           find_call(library, "tkrzw_dbm_process", &tkrzw.process) && find_call(library, "tkrzw_dbm_set", &tkrzw.set) &&
           find_call(library, "tkrzw_dbm_count", &tkrzw.count) &&
           find_call(library, "TKRZW_REC_PROC_NOOP", &tkrzw.no_change);
}


static void *tkrzw_open(uint64_t buckets) {
    char parameters[64];
    snprintf(parameters, sizeof(parameters), "dbm=TinyDBM,num_buckets=%" PRIu64, buckets);
    return tkrzw.open("", true, parameters);
}


static const char *tkrzw_take(void *arg, const char *key, int32_t key_len, const char *value, int32_t value_len,
                              int32_t *new_len) {
    far_op *op = arg;
    (void)key, (void)key_len, (void)new_len;
    if (!value)
        return *tkrzw.no_change;
    op->value_len = (size_t)value_len;
    op->result = op->value_len > op->capacity ? FAR_ERR_TOO_SMALL : 0;
    if (op->result == 0)
        memcpy(op->value, value, op->value_len);
    return *tkrzw.no_change;
}


static void tkrzw_call(bench_client *client, far_op *op) {
    bool insert = op->kind == FAR_OP_INSERT;
    op->result = FAR_ERR_NOT_FOUND; /* stays so unless the callback receives a value */
    if (op->kind == FAR_OP_GET)
        tkrzw.process(client->engine_state, op->key, (int32_t)op->key_len, tkrzw_take, op, false);
    else
        op->result =
            tkrzw.set(client->engine_state, op->key, (int32_t)op->key_len, op->value, (int32_t)op->value_len, !insert)
                ? 0
            : insert ? FAR_ERR_EXISTS
                     : FAR_ERR_NO_MEMORY;
}


static int64_t tkrzw_count(void *database) {
    return tkrzw.count(database);
}


static void tkrzw_close(void *database) {
    tkrzw.close(database);
}


bool bench_store_of_tkrzw(bench_store *store, const bench_config *config) {
    static const table tiny = {.library = "libtkrzw.so.1",
                               .find_calls = tkrzw_find_calls,
                               .open = tkrzw_open,
                               .count = tkrzw_count,
                               .close = tkrzw_close,
                               .engine = {.call = tkrzw_call}};
    return store_of_table(store, config, "tkrzw", &tiny);
}

#else

bool bench_store_of_tkrzw(bench_store *store, const bench_config *config) {
    (void)store, (void)config;
    return false;
}

#endif


/* ---- Kyoto Cabinet ---- */

#ifdef FARINDEX_KYOTOCABINET

#include <kclangc.h>

static struct {
    __typeof__(kcdbnew) *make;
    __typeof__(kcdbdel) *destroy;
    __typeof__(kcdbopen) *open;
    __typeof__(kcdbgetbuf) *get;
    __typeof__(kcdbadd) *add;
    __typeof__(kcdbset) *set;
    __typeof__(kcdbcount) *count;
} kyoto;


static bool kyoto_find_calls(void *library) {
    return find_call(library, "kcdbnew", &kyoto.make) && find_call(library, "kcdbdel", &kyoto.destroy) &&
           find_call(library, "kcdbopen", &kyoto.open) && find_call(library, "kcdbgetbuf", &kyoto.get) &&
           find_call(library, "kcdbadd", &kyoto.add) && find_call(library, "kcdbset", &kyoto.set) &&
           find_call(library, "kcdbcount", &kyoto.count);
}


static void *kyoto_open(uint64_t buckets) {
    char path[64];
    KCDB *database = kyoto.make();
    /* '*' denotes a CacheDB, which evicts no records unless it has a limit */
    snprintf(path, sizeof(path), "*#bnum=%" PRIu64, buckets);
    if (kyoto.open(database, path, KCOWRITER | KCOCREATE))
        return database;
    kyoto.destroy(database);
    return NULL;
}


static int kyoto_get(KCDB *database, far_op *op) {
    int32_t length = kyoto.get(database, op->key, op->key_len, op->value, op->capacity);
    op->value_len = length < 0 ? 0 : (size_t)length;
    return length < 0 ? FAR_ERR_NOT_FOUND : op->value_len > op->capacity ? FAR_ERR_TOO_SMALL : 0;
}


static void kyoto_call(bench_client *client, far_op *op) {
    KCDB *database = client->engine_state;
    if (op->kind == FAR_OP_GET)
        op->result = kyoto_get(database, op);
    else if (op->kind == FAR_OP_INSERT)
        op->result = kyoto.add(database, op->key, op->key_len, op->value, op->value_len) ? 0 : FAR_ERR_EXISTS;
    else
        op->result = kyoto.set(database, op->key, op->key_len, op->value, op->value_len) ? 0 : FAR_ERR_NO_MEMORY;
}


static int64_t kyoto_count(void *database) {
    return kyoto.count(database);
}


static void kyoto_close(void *database) {
    kyoto.destroy(database);
}


bool bench_store_of_kyotocabinet(bench_store *store, const bench_config *config) {
    static const table cache = {.library = "libkyotocabinet.so.16",
                                .find_calls = kyoto_find_calls,
                                .open = kyoto_open,
                                .count = kyoto_count,
                                .close = kyoto_close,
                                .engine = {.call = kyoto_call}};
    return store_of_table(store, config, "kyotocabinet", &cache);
}

#else

bool bench_store_of_kyotocabinet(bench_store *store, const bench_config *config) {
    (void)store, (void)config;
    return false;
}

#endif
