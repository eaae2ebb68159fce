/* SMART on the local fabric: tests of threads with many operations in flight on few keys, of the budget of the cache,
 * of cached gets that are submitted together, and of the sizes of nodes. */
#include "../support/problem.h"
#include "base/budget.h"
#include "base/random.h"
#include "farindex.h"
#include "index/smart/cache.h"
#include "pool/handle.h"
#include "test.h"
#include "workload/value.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 8, FLYING = 64, ROUNDS = 400, HOT = 100 };

typedef struct worker {
    far_pool *pool;
    far_index *index;
    unsigned number, wrong;
    uint64_t done;
} worker;

typedef struct operation_in_flight {
    far_op op;
    char key[16], value[512];
    bool busy;
} operation_in_flight;


/* Submits a random operation. The value contains its key and a checksum, so a torn value or a value of another key is
 * noticed. */
static void submit_random_operation(operation_in_flight *f, far_index *index, far_random *random) {
    static const size_t sizes[] = {8, 8, 8, 40, 40, 200, 500};
    unsigned n = (unsigned)far_random_below(random, HOT);
    memset(&f->op, 0, sizeof(f->op));
    f->op.index = index;
    f->op.key = f->key;
    f->op.key_len = (size_t)snprintf(f->key, sizeof(f->key), n % 3 ? "k%u" : "k/%u/long", n);
    f->op.value = f->value;
    f->op.user = f;
    uint64_t what = far_random_below(random, 10);
    f->op.kind = what < 4   ? FAR_OP_GET
                 : what < 7 ? FAR_OP_PUT
                 : what < 8 ? FAR_OP_UPDATE
                 : what < 9 ? FAR_OP_INSERT
                            : FAR_OP_DELETE;
    if (f->op.kind == FAR_OP_GET)
        f->op.capacity = sizeof(f->value);
    else if (f->op.kind != FAR_OP_DELETE) {
        f->op.value_len = sizes[far_random_below(random, 7)];
        far_value_fill(f->value, f->op.value_len, f->key, f->op.key_len, far_random_next(random));
    }
}


static void check_completed_operation(worker *w, const far_op *op) {
    w->done++;
    if (op->result == 0 && op->kind == FAR_OP_GET)
        w->wrong += !far_value_check(op->value, op->value_len, op->key, op->key_len, NULL);
    else if (op->result < 0 && op->result != FAR_ERR_NOT_FOUND && op->result != FAR_ERR_EXISTS)
        w->wrong++;
}


static void *run_worker(void *arg) {
    worker *w = arg;
    static _Thread_local operation_in_flight flights[FLYING];
    far_session *session;
    far_op *done[FLYING];
    far_random random;
    unsigned flying = 0;
    far_random_seed(&random, w->number + 1);
    if (far_session_open(w->pool, &session) < 0) {
        w->wrong++;
        return NULL;
    }
    for (unsigned round = 0; round < ROUNDS || flying;) {
        for (unsigned i = 0; i < FLYING && round < ROUNDS; i++)
            if (!flights[i].busy) {
                far_op *op = &flights[i].op;
                submit_random_operation(&flights[i], w->index, &random);
                if (far_submit(session, &op, 1) != 1) {
                    w->wrong++;
                    break;
                }
                flights[i].busy = true;
                flying++;
                round++;
            }
        int count = far_reap(session, done, FLYING, 1);
        for (int i = 0; i < count; i++) {
            check_completed_operation(w, done[i]);
            ((operation_in_flight *)done[i]->user)->busy = false;
            flying--;
        }
        if (count < 0) {
            w->wrong++;
            break;
        }
    }
    far_session_close(session);
    return NULL;
}


static void threads_on_few_keys(const char *options, size_t cache_bytes) {
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    pool_options.cache_bytes = cache_bytes;
    assert_int_equal(far_pool_open("local:2x128M", &pool_options, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_create(session, "index", "smart", options, &index), 0);
    pthread_t threads[THREADS];
    worker workers[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (worker){pool, index, i, 0, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, run_worker, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].wrong, 0);
        assert_true(workers[i].done >= ROUNDS);
    }
    assert_int_equal(far_index_check(session, index, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_check(session, 1, fail_at_problem, NULL), 0);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
}


/* Threads with many operations in flight on few keys, with several options and cache sizes: every get returns a value
 * that some put wrote as a whole. */
TEST(threads_with_many_operations_in_flight) {
    threads_on_few_keys("merge=eager", 1 << 20);
    threads_on_few_keys("update=lock", 64 << 10);
    threads_on_few_keys("update=rcu,eviction=fifo", 64 << 10);
}


/* The cache never uses more bytes than its budget, whatever is inserted, and returns all bytes when the index is
 * closed. */
TEST(the_cache_keeps_to_its_budget) {
    static const char *const options[] = {"eviction=clock", "eviction=fifo"};
    for (unsigned i = 0; i < 2; i++) {
        far_pool *pool;
        far_session *session;
        far_index *index;
        far_random random;
        far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
        pool_options.cache_bytes = 100000;
        assert_int_equal(far_pool_open("local:256M", &pool_options, &pool), 0);
        assert_int_equal(far_session_open(pool, &session), 0);
        assert_int_equal(far_index_create(session, "index", "smart", options[i], &index), 0);
        far_random_seed(&random, 5);
        size_t most = 0;
        for (unsigned n = 0; n < 60000; n++) {
            char key[64], value[8];
            size_t length;
            uint64_t x = far_random_below(&random, 20000);
            int bytes = snprintf(key, sizeof(key), "%s%llu", x % 2 ? "a long common prefix of many keys/" : "",
                                 (unsigned long long)x);
            if (n % 3 == 0)
                assert_int_equal(far_put(session, index, key, (size_t)bytes, "12345678", 8), 0);
            else
                assert_true(far_get(session, index, key, (size_t)bytes, value, 8, &length) <= 0);
            size_t used = far_budget_used(pool->budget);
            assert_true(used <= 100000);
            most = used > most ? used : most;
        }
        assert_true(most > 50000);
        assert_int_equal(far_index_check(session, index, fail_at_problem, NULL), 0);
        far_budget *budget = pool->budget;
        far_index_close(index);
        assert_int_equal(far_budget_used(budget), 0);
        far_session_close(session);
        far_pool_close(pool);
    }
}


typedef struct plain { /* one session in a handle without housekeeping */
    far_pool *pool;
    far_session *session;
    far_index *index;
} plain;


static void open_plain_with(plain *p, const char *options, bool rdwc) {
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    pool_options.no_thread = 1;
    pool_options.rdwc = rdwc ? 1 : -1;
    assert_int_equal(far_pool_open("local:64M", &pool_options, &p->pool), 0);
    assert_int_equal(far_session_open(p->pool, &p->session), 0);
    assert_int_equal(far_index_create(p->session, "index", "smart", options, &p->index), 0);
}


static void open_plain(plain *p, const char *options) {
    open_plain_with(p, options, false);
}


static void close_plain(plain *p) {
    assert_int_equal(far_index_check(p->session, p->index, fail_at_problem, NULL), 0);
    far_index_close(p->index);
    far_session_close(p->session);
    far_pool_close(p->pool);
}


static void put_text(plain *p, const char *key) {
    assert_int_equal(far_put(p->session, p->index, key, strlen(key), "12345678", 8), 0);
}


/* Returns the round trips of a get that finds its key. */
static unsigned trips_of_get(plain *p, const char *key) {
    far_stats before, after;
    char value[8];
    size_t length;
    far_session_stats(p->session, &before);
    assert_int_equal(far_get(p->session, p->index, key, strlen(key), value, 8, &length), 0);
    far_session_stats(p->session, &after);
    return (unsigned)(after.round_trips - before.round_trips);
}


/* The cache is divided into parts (shards) with a reader-writer lock each. While one reader stays in a shard for ever,
 * the gets of other tasks finish. Does not end if readers take an exclusive lock. */
TEST(probes_of_the_cache_do_not_wait_for_each_other) {
    plain p;
    open_plain(&p, "");
    put_text(&p, "kaa");
    put_text(&p, "kba");
    trips_of_get(&p, "kaa");
    smart_cache *cache = smart_state_of(p.index)->cache;
    unsigned place = far_readers_enter(&cache->readers, &cache->shard['k'].lock, 'k');
    assert_int_equal(trips_of_get(&p, "kaa"), 1);
    put_text(&p, "kba"); /* This update changes no cached word. */
    far_readers_leave(&cache->readers, place);
    put_text(&p, "kca");
    assert_int_equal(trips_of_get(&p, "kca"), 1);
    close_plain(&p);
}


enum { TOGETHER = 12 };


/* Submits gets of k00 to k11 together (with `twice`: k00 to k05, each two times). `absent` is the number of keys among
 * them that do not exist. Returns their round trips and sets *reads. */
static unsigned trips_of_gets(plain *p, unsigned absent, bool twice, unsigned *reads) {
    far_op ops[TOGETHER], *given[TOGETHER], *done[TOGETHER];
    char keys[TOGETHER][4], values[TOGETHER][8];
    far_stats before, after;
    memset(ops, 0, sizeof(ops));
    for (unsigned i = 0; i < TOGETHER; i++) {
        snprintf(keys[i], sizeof(keys[i]), "k%02u", twice ? i / 2 : i);
        given[i] = &ops[i];
        ops[i] = (far_op){
            .kind = FAR_OP_GET, .index = p->index, .key = keys[i], .key_len = 3, .value = values[i], .capacity = 8};
    }
    far_session_stats(p->session, &before);
    assert_int_equal(far_submit(p->session, given, TOGETHER), TOGETHER);
    for (int got = 0; got < TOGETHER;) {
        int count = far_reap(p->session, done, TOGETHER, 1);
        assert_true(count > 0);
        got += count;
    }
    far_session_stats(p->session, &after);
    for (unsigned i = 0; i < TOGETHER; i++) {
        assert_int_equal(ops[i].result, i == absent ? FAR_ERR_NOT_FOUND : 0);
        if (i != absent)
            assert_memory_equal(values[i], "12345678", 8);
    }
    assert_int_equal(after.ops[FAR_OP_GET] - before.ops[FAR_OP_GET], TOGETHER);
    *reads = (unsigned)(after.reads - before.reads);
    return (unsigned)(after.round_trips - before.round_trips);
}


/* Gets that are submitted together READ the leaves that the cache names in one batch, and each leaf once. This is also
 * so if RDWC merges operations. Fails without smart_get_many (find.c). */
TEST(gets_of_cached_leaves_share_one_round_trip) {
    for (int rdwc = 0; rdwc < 2; rdwc++) {
        plain p;
        char key[4];
        unsigned reads;
        open_plain_with(&p, "", rdwc);
        for (unsigned i = 0; i < TOGETHER; i++) {
            snprintf(key, sizeof(key), "k%02u", i);
            put_text(&p, key);
        }
        trips_of_gets(&p, TOGETHER, false, &reads);
        assert_int_equal(trips_of_gets(&p, TOGETHER, false, &reads), 1);
        assert_int_equal(reads, TOGETHER);
        assert_int_equal(trips_of_gets(&p, TOGETHER, true, &reads), 1);
        assert_int_equal(reads, TOGETHER / 2);
        assert_int_equal(far_delete(p.session, p.index, "k05", 3), 0);
        unsigned trips = trips_of_gets(&p, 5, false, &reads); /* the get of the absent key runs again on its own */
        assert_true(trips >= 2 && trips <= 4);
        close_plain(&p);
    }
}


/* With path_compression=off every byte of a common prefix has a node, which costs a round trip each. */
TEST(without_path_compression_every_byte_has_its_node) {
    plain p;
    open_plain(&p, "cache=off,merge=eager");
    put_text(&p, "commonprefix/1");
    put_text(&p, "commonprefix/2");
    assert_int_equal(trips_of_get(&p, "commonprefix/1"), 3); /* root, node, leaf */
    close_plain(&p);
    open_plain(&p, "cache=off,merge=eager,path_compression=off");
    put_text(&p, "commonprefix/1");
    put_text(&p, "commonprefix/2");
    assert_int_equal(trips_of_get(&p, "commonprefix/2"), 2 + 13);
    put_text(&p, "comma");
    put_text(&p, "common");
    assert_int_equal(trips_of_get(&p, "common"), 2 + 6);
    assert_int_equal(trips_of_get(&p, "commonprefix/2"), 2 + 13);
    assert_int_equal(far_delete(p.session, p.index, "commonprefix/1", 14), 0);
    /* The get READs all nodes of the common prefix above the leaf. */
    assert_int_equal(trips_of_get(&p, "commonprefix/2"), 2 + 6);
    assert_int_equal(far_delete(p.session, p.index, "common", 6), 0);
    assert_int_equal(trips_of_get(&p, "commonprefix/2"), 2 + 4);
    assert_int_equal(far_delete(p.session, p.index, "comma", 5), 0);
    assert_int_equal(trips_of_get(&p, "commonprefix/2"), 2);
    close_plain(&p);
}


/* Keys are inserted and deleted, each with another byte, so that a list becomes full of tombstones. Proves that the
 * copy which replaces the list has the size that its live children need (smart_replace in restructure.c). */
TEST(a_node_of_few_children_stays_small) {
    plain p;
    far_stats before, after;
    open_plain(&p, "cache=off,node_types=1");
    put_text(&p, "k/fixed");
    for (unsigned n = 0; n < 1000; n++) {
        char key[] = "k?";
        key[1] = (char)('0' + n % 70);
        put_text(&p, key);
        assert_int_equal(far_delete(p.session, p.index, key, 2), 0);
    }
    far_session_stats(p.session, &before);
    trips_of_get(&p, "k/fixed");
    far_session_stats(p.session, &after);
    assert_true(after.bytes_read - before.bytes_read <= 8 + 128 + 40);
    close_plain(&p);
}


/* A list of 13 slots has 11 live children, and its other slots fill with tombstones. A copy of the same size would have
 * two free slots, so every second insert would copy the list again. Proves that the full list is replaced by a larger
 * one instead (smart_replace in restructure.c). */
TEST(a_node_that_is_nearly_full_has_room) {
    plain p;
    far_stats before, after;
    open_plain(&p, "");
    for (char key[] = "ka"; key[1] < 'l'; key[1]++)
        put_text(&p, key);
    far_session_stats(p.session, &before);
    for (unsigned n = 0; n < 500; n++) {
        char key[] = "k?";
        key[1] = (char)('0' + n % 40);
        put_text(&p, key);
        assert_int_equal(far_delete(p.session, p.index, key, 2), 0);
    }
    far_session_stats(p.session, &after);
    /* The leaf has 40 bytes, so less than 40 bytes per insert are left for copies. */
    assert_true((after.bytes_written - before.bytes_written) / 500 < 80);
    close_plain(&p);
}
