/* Behaviours of far memory: a full pool, reuse of freed memory, and the absence of leaks. */
#include "base/random.h"
#include "base/sanitizer.h"
#include "conform.h"
#include "pool/epoch/epoch.h"
#include "workload/value.h"

#include <unistd.h>

/* The pool is smaller under the thread sanitizer, which makes these tests ten times as slow. */
#define SMALL_POOL (FAR_TSAN ? "4M" : "8M")
#define MANY       100000


/* Returns the length of the value of pair `n`, which follows from the number. Tests identify pairs by numbers. */
static size_t value_length_of(uint64_t n) {
    return 2000 + n * 997 % 14000;
}


static int put_number(const rig *r, uint64_t n, uint64_t version) {
    uint8_t key[8];
    number_key(n, key);
    return put_proof(r->session, r->index, key, 8, value_length_of(n), version);
}


static void assert_number(const rig *r, uint64_t n, uint64_t version) {
    uint8_t key[8];
    number_key(n, key);
    assert_proof(r->session, r->index, key, 8, value_length_of(n), version);
}


static int delete_number(const rig *r, uint64_t n) {
    uint8_t key[8];
    number_key(n, key);
    return far_delete(r->session, r->index, key, 8);
}


/* Deletes the pairs with the numbers first to end - 1. In a full pool a delete may fail because it needs memory itself.
 * The delete must then succeed after other clients have returned memory, and until then the key must be present. */
static void delete_numbers(const rig *r, uint64_t first, uint64_t end) {
    bool *gone = calloc(end - first, sizeof(*gone));
    uint64_t left = end - first, before = 0;
    while (left > 0 && left != before) {
        before = left;
        for (uint64_t n = first; n < end; n++) {
            int result = gone[n - first] ? FAR_ERR_NOT_FOUND : delete_number(r, n);
            assert_true(result == FAR_OK || result == (gone[n - first] ? FAR_ERR_NOT_FOUND : FAR_ERR_NO_MEMORY));
            gone[n - first] |= result == FAR_OK;
            left -= result == FAR_OK;
        }
    }
    free(gone);
    if (left > 0)
        fail_msg("of %llu keys %llu cannot be deleted: %s", (unsigned long long)(end - first), (unsigned long long)left,
                 far_last_error());
}


/* Puts pairs from number `first` on until the pool is full. Returns the number of the first pair that did not fit. */
static uint64_t put_until_full(const rig *r, uint64_t first, uint64_t version) {
    for (uint64_t n = first; n < first + MANY; n++) {
        int result = put_number(r, n, version);
        if (result == FAR_ERR_NO_MEMORY)
            return n;
        assert_ok(result);
    }
    fail_msg("the pool is never full");
    return 0;
}


/* Writes to a full pool fail with FAR_ERR_NO_MEMORY and change nothing, and all pairs stored before remain readable. */
BEHAVIOUR(a_full_pool_returns_an_error_and_keeps_all_pairs) {
    rig r;
    rig_up_with(&r, c, SMALL_POOL, NULL, c->options);
    uint64_t end = put_until_full(&r, 0, 1);
    uint8_t key[8], large[60000]; /* a longer value does not fit into a block of a small pool */
    assert_true(end >= (FAR_TSAN ? 50 : 100)); /* The pairs fill at least about half of the pool. */
    assert_true(strlen(far_last_error()) > 0);
    number_key(end, key);
    /* The pair for which there was no memory was not stored partially. */
    assert_code(FAR_ERR_NOT_FOUND, far_get(r.session, r.index, key, 8, NULL, 0, NULL));
    memset(large, 0, sizeof(large));
    int failed = 0;
    for (uint64_t n = 0; n < 20; n++) { /* An update that finds no memory leaves the old value unchanged. */
        number_key(n, key);
        int result = far_update(r.session, r.index, key, 8, large, sizeof(large));
        assert_true(result == FAR_OK || result == FAR_ERR_NO_MEMORY);
        if (result == FAR_ERR_NO_MEMORY)
            assert_number(&r, n, 1);
        else
            assert_value(r.session, r.index, key, 8, large, sizeof(large));
        failed += result != FAR_OK;
    }
    assert_true(failed > 0);
    for (uint64_t n = 20; n < end; n++)
        assert_number(&r, n, 1);
    assert_index_is_sound(r.session, r.index);
    far_usage usage = {0};
    assert_ok(far_index_usage(r.session, r.index, &usage));
    assert_int_equal(usage.keys, end);
    rig_down(&r);
}


/* After half of the pairs of a full pool are deleted, new pairs can be stored in the freed memory. */
BEHAVIOUR(deletes_make_room_in_a_full_pool) {
    rig r;
    rig_up_with(&r, c, SMALL_POOL, NULL, c->options);
    uint64_t first = 0, end = put_until_full(&r, 0, 1);
    /* The part of the freed memory that must be usable at once: 1/2, or 1/8 for the kind toy. Toy rewrites all pairs of
     * a slot as one object, and there may be no room for such a large object. */
    const unsigned part = strcmp(c->kind, "toy") == 0 ? 8 : 2;
    for (int round = 0; round < 3; round++) {
        uint64_t half = (end - first) / 2;
        delete_numbers(&r, first, first + half);
        first += half;
        for (uint64_t n = 0; n < half / part; n++)
            assert_ok(put_number(&r, end++, 1));
    }
    for (uint64_t n = first; n < end; n++)
        assert_number(&r, n, 1);
    assert_code(FAR_ERR_NOT_FOUND, delete_number(&r, first - 1));
    rig_down(&r);
}


/* A full pool serves gets, scans and deletes, also to a new session. */
BEHAVIOUR(a_full_pool_still_serves_reads_scans_and_deletes) {
    rig r;
    rig_up_with(&r, c, SMALL_POOL, NULL, c->options);
    uint64_t end = put_until_full(&r, 0, 1);
    pairs found = {0};
    if (c->ordered) {
        assert_code((int64_t)end, far_scan(r.session, r.index, NULL, 0, NULL, 0, 0, collect_pair, &found));
        for (uint64_t n = 0; n < end; n++)
            assert_true(far_value_check(found.items[n].value, found.items[n].value_len, found.items[n].key, 8, NULL));
    }
    pairs_free(&found);
    far_session *second = NULL;
    if (far_session_open(r.pool, &second) == FAR_OK) { /* The session may fail to open in a full pool. */
        uint8_t key[8];
        number_key(end / 2, key);
        assert_proof(second, r.index, key, 8, value_length_of(end / 2), 1);
    }
    delete_numbers(&r, 0, end);
    far_session_close(second);
    rig_down(&r);
}


/* Number of keys whose long values together have 7.2 MB, which is more than fits in a pool of 8 MiB. */
#define BRIM_KEYS 800

/* Puts all keys with short values. This creates all inner nodes while there is memory for them. Otherwise, an inner
 * node that cannot grow in a full pool would keep out all keys below it, even if there is memory for their values. */
static void put_short_values(const rig *r, uint64_t version) {
    uint8_t key[8];
    for (uint64_t n = 0; n < BRIM_KEYS; n++) {
        number_key(n, key);
        assert_ok(put_proof(r->session, r->index, key, 8, 16, version));
    }
}


/* Puts long values until many puts in a row have failed, or each key was tried. The first failed put does not prove
 * that the pool is full, because it may need a larger object than most puts. */
static void put_long_values(const rig *r, uint64_t version) {
    enum { IN_A_ROW = 12 };
    for (uint64_t n = 0, failed = 0; n < BRIM_KEYS && failed < IN_A_ROW; n++) {
        int result = put_number(r, n, version);
        assert_true(result == FAR_OK || result == FAR_ERR_NO_MEMORY);
        failed = result == FAR_OK ? 0 : failed + 1;
    }
}


/* Filling the pool and deleting all pairs repeatedly stores the same amount each time, so no memory is lost. */
BEHAVIOUR_FOR(memory_of_deleted_pairs_is_reused, IN_TURN) {
    rig r;
    rig_up_with(&r, c, "8M", NULL, c->options);
    uint64_t first_time = 0;
    for (uint64_t round = 0; round <= 2; round++) {
        far_usage usage = {0};
        put_short_values(&r, round);
        /* On a busy host the memory of deleted pairs may be returned too late for a put, which then fails with
         * FAR_ERR_NO_MEMORY. */
        for (unsigned pass = 0; pass < 4 && (pass == 0 || usage.value_bytes < first_time / 100 * 90); pass++) {
            put_long_values(&r, round);
            assert_ok(far_index_usage(r.session, r.index, &usage));
        }
        if (round == 0)
            first_time = usage.value_bytes;
        if (usage.value_bytes < first_time / 100 * 90)
            fail_msg("there was room for %llu bytes, and later for %llu", (unsigned long long)first_time,
                     (unsigned long long)usage.value_bytes);
        delete_numbers(&r, 0, BRIM_KEYS);
        assert_ok(far_index_usage(r.session, r.index, &usage));
        assert_int_equal(usage.keys, 0);
        assert_int_equal(usage.key_bytes + usage.value_bytes, 0);
        assert_true(usage.pool_bytes <
                    (1u << 20)); /* The values had several MiB; almost none of their memory is still in use. */
    }
    rig_down(&r);
}


/* Writes, in total, several times as much data as fits into the pool. All writes succeed because the memory of replaced
 * values is reused. */
BEHAVIOUR(memory_is_reused_while_work_goes_on) {
    rig r;
    rig_up_with(&r, c, SMALL_POOL, NULL, c->options);
    enum { KEYS = 60, WRITES = 2500 };
    for (uint64_t i = 0; i < WRITES; i++)
        assert_ok(put_number(&r, i * 7 % KEYS, i));
    for (uint64_t i = WRITES - KEYS; i < WRITES; i++)
        assert_number(&r, i * 7 % KEYS, i);
    assert_pool_is_sound(r.session);
    far_usage usage = {0};
    assert_ok(far_index_usage(r.session, r.index, &usage));
    assert_int_equal(usage.keys, KEYS);
    assert_true(usage.pool_bytes < 2 * (usage.key_bytes + usage.value_bytes) + (1u << 20));
    rig_down(&r);
}


/* Puts and deletes of keys and values of many sizes leave no leaked memory. */
BEHAVIOUR(churn_of_all_sizes_leaks_nothing) {
    rig r;
    rig_up(&r, c);
    uint8_t key[FAR_KEY_MAX];
    memset(key, 'c', sizeof(key));
    for (uint64_t i = 0; i < 1500; i++) {
        size_t key_len = 1 + i * 31 % 97, value_len = i % 50 ? i * 53 % 700 : i * 53 % 50000;
        if (i % 4 == 3) {
            int result = far_delete(r.session, r.index, key, key_len);
            assert_true(result == FAR_OK || result == FAR_ERR_NOT_FOUND);
        } else {
            assert_ok(put_proof(r.session, r.index, key, key_len, value_len, i));
        }
    }
    assert_pool_is_sound(r.session);
    for (size_t length = 1; length <= 97; length++)
        far_delete(r.session, r.index, key, length);
    far_usage usage = {0};
    assert_ok(far_index_usage(r.session, r.index, &usage));
    assert_int_equal(usage.keys, 0);
    rig_down(&r);
}


/* Waits until less than `bound` bytes are in use. Housekeeping frees dropped and retired memory after no operation can
 * read that memory any more. The epoch advances only on demand, so this function requests its advance. */
static void wait_until_used_is_below(const rig *r, uint64_t bound) {
    far_pool_usage usage = {.used = UINT64_MAX};
    for (int i = 0; i < 60000 && (usage.used > bound || usage.retired > 0); i++) {
        far_epoch_request(r->pool);
        assert_true(far_pool_poll(r->pool) >= 0);
        if (r->c->fabric->threads)
            usleep(1000);
        assert_ok(far_pool_stat(r->session, &usage));
    }
    if (usage.used > bound || usage.retired > 0)
        fail_msg("%llu bytes are still used, not %llu, and %llu retired", (unsigned long long)usage.used,
                 (unsigned long long)bound, (unsigned long long)usage.retired);
}


/* After 20000 pairs are deleted, at most 2 percent of their memory remains in use. This includes the inner structure
 * of the index. */
BEHAVIOUR_FOR(deleting_everything_gives_the_memory_back, IN_TURN) {
    enum { KEYS = 20000 };
    rig r;
    rig_up_with(&r, c, "32M", NULL, c->options);
    uint8_t key[8];
    far_pool_usage empty = {0}, full = {0};
    /* The first writes create parts of the index and fill the magazines of the session. They must precede the first
     * measurement. */
    for (uint64_t n = 0; n < 50; n++) {
        number_key(n, key);
        assert_ok(put_proof(r.session, r.index, key, 8, 64, 0));
        assert_ok(far_delete(r.session, r.index, key, 8));
    }
    for (unsigned same = 0; same < 20;) { /* Slabs that are completely free are released with a delay. */
        uint64_t before = empty.used;
        wait_until_used_is_below(&r, UINT64_MAX - 1);
        assert_ok(far_pool_stat(r.session, &empty));
        same = empty.used == before ? same + 1 : 0;
    }
    for (uint64_t n = 0; n < KEYS; n++) {
        number_key(n * 0x9e3779b97f4a7c15ull, key);
        assert_ok(put_proof(r.session, r.index, key, 8, 64, 0));
    }
    /* Statistics of free memory are published with a delay. */
    for (int i = 0; i < 60000 && full.used <= empty.used + KEYS * 64; i++) {
        assert_true(far_pool_poll(r.pool) >= 0);
        if (c->fabric->threads)
            usleep(1000);
        assert_ok(far_pool_stat(r.session, &full));
    }
    assert_true(full.used > empty.used + KEYS * 64);
    for (uint64_t n = 0; n < KEYS; n++) {
        number_key(n * 0x9e3779b97f4a7c15ull, key);
        assert_ok(far_delete(r.session, r.index, key, 8));
    }
    wait_until_used_is_below(&r, empty.used + (full.used - empty.used) / 50);
    rig_down(&r);
}


/* Creates, fills and drops an index repeatedly, with many times the size of the pool in total. */
BEHAVIOUR(a_dropped_index_gives_its_memory_back) {
    rig r;
    rig_up_bare(&r, c, SMALL_POOL, NULL);
    far_pool_usage before = {0};
    assert_ok(far_pool_stat(r.session, &before));
    for (int round = 0; round < 12; round++) {
        rig_create(&r, "index", &r.index);
        for (uint64_t n = 0; n < 150; n++)
            assert_ok(put_number(&r, n, (uint64_t)round));
        assert_number(&r, 149, (uint64_t)round);
        far_index_close(r.index);
        r.index = NULL;
        assert_ok(far_index_drop(r.session, "index"));
    }
    wait_until_used_is_below(&r, before.used + (64u << 10));
    rig_down(&r);
}


/* The memory of a closed session is reused by later sessions. */
BEHAVIOUR(a_closed_session_leaves_its_memory_to_the_pool) {
    rig r;
    rig_up_with(&r, c, SMALL_POOL, NULL, c->options);
    for (uint64_t round = 0; round < 20; round++) {
        rig worker = r;
        worker.session = NULL;
        assert_ok(far_session_open(r.pool, &worker.session));
        for (uint64_t n = 0; n < 50; n++)
            assert_ok(put_number(&worker, n, round));
        far_session_close(worker.session);
        assert_number(&r, 49, round);
    }
    rig_down(&r);
}


/* Each session leaves blocks that contain objects. Later sessions must find the free memory in these blocks. */
BEHAVIOUR(sessions_that_come_and_go_do_not_use_up_the_pool) {
    rig r;
    rig_up_with(&r, c, SMALL_POOL, NULL, c->options);
    far_random random;
    far_random_seed(&random, 7);
    for (int session = 0; session < 120; session++) {
        rig worker = r;
        worker.session = NULL;
        assert_ok(far_session_open(r.pool, &worker.session));
        for (int i = 0; i < 60; i++) {
            uint8_t key[8];
            number_key(far_random_below(&random, 60), key);
            size_t length = far_random_below(&random, far_random_chance(&random, 1, 20) ? 20000 : 1000);
            if (far_random_chance(&random, 1, 2))
                assert_ok(put_proof(worker.session, r.index, key, 8, length, 0));
            else
                far_delete(worker.session, r.index, key, 8);
        }
        far_session_close(worker.session);
    }
    rig_down(&r);
}
