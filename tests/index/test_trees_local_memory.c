/* DART and SMART in a process without memory: for every n, the n-th request of an operation for scratch memory fails.
 * Proves that the operation fails with FAR_ERR_NO_MEMORY or tries again, and that verbs which it has added to a batch
 * before are not posted, neither by the next attempt nor at the end of the operation, because the local memory for
 * those verbs, and in walks their pin, no longer exist. Fails without far_discard_batch in dart's traversal, in smart's
 * traversal, or in smart's accept_node. */
#include "../support/world.h"
#include "fabric/sim/sim.h"
#include "farindex.h"
#include "pool/handle.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS     120
#define LONG_KEY 4095 /* the hashes of such a key fill a chunk of scratch memory */
#define KNOWN    4096

static unsigned requests_until_failure; /* number of requests until one fails; 0: none fails */
static bool failed;
static far_addr known_addresses[KNOWN]; /* addresses that the operation READs */
static unsigned known_count, posted_late;
static far_sim_world *world;
static far_pool *pool;
static far_index *map;
static char value[4000], long_key[LONG_KEY];


/* Replaces the function of the C library, from which the library gets its scratch memory. */
void *aligned_alloc(size_t alignment, size_t size) {
    void *memory;
    if (requests_until_failure && --requests_until_failure == 0) {
        failed = true;
        return NULL;
    }
    return posix_memalign(&memory, alignment, size) ? NULL : memory;
}


/* Returns whether verbs of a failed attempt are in the same batch as those of the next attempt. */
static bool verb_is_in_batch_twice(const far_sim_posted *posted) {
    unsigned times = 0;
    for (uint32_t i = 0; i < posted->batch->count; i++) {
        const far_verb *verb = &posted->batch->verbs[i];
        times += verb->addr == posted->verb->addr && verb->length == posted->verb->length;
    }
    return times > 1;
}


static void record_verb(void *ctx, const far_sim_posted *posted) {
    (void)ctx;
    bool is_known = false;
    for (unsigned i = 0; i < known_count && !is_known; i++)
        is_known = known_addresses[i] == posted->verb->addr;
    bool pinned = posted->batch->pin_clock != UINT64_MAX;
    if (failed)
        posted_late += is_known && (!pinned || verb_is_in_batch_twice(posted));
    else if (!requests_until_failure && pinned && !is_known && known_count < KNOWN)
        known_addresses[known_count++] = posted->verb->addr;
}


static int count_pair(void *ctx, const void *key, size_t key_len, const void *bytes, size_t length) {
    (void)key, (void)key_len;
    *(unsigned *)ctx += length == sizeof(value) && memcmp(bytes, value, length) == 0;
    return 0;
}


static int get_long_key(far_session *session) {
    char back[sizeof(value)];
    size_t length;
    int err = far_get(session, map, long_key, LONG_KEY, back, sizeof(back), &length);
    assert_true(err < 0 || length == 8);
    return err;
}


/* Gets a key of which not even the slot in the last node exists. */
static int get_absent_key(far_session *session) {
    char back[8], other[LONG_KEY];
    memcpy(other, long_key, LONG_KEY);
    other[LONG_KEY - 1] = 'x';
    int err = far_get(session, map, other, LONG_KEY, back, sizeof(back), NULL);
    return err == FAR_ERR_NOT_FOUND ? 0 : err;
}


static int scan_all(far_session *session) {
    unsigned pairs = 0;
    int64_t count = far_scan(session, map, NULL, 0, NULL, 0, 0, count_pair, &pairs);
    assert_true(count < 0 || (count == KEYS + 2 && pairs == KEYS));
    return count < 0 ? (int)count : 0;
}


static int check_index(far_session *session) {
    return far_index_check(session, map, fail_at_problem, NULL);
}


static void open_kind(const char *kind) {
    far_session *session;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    char uri[WORLD_URI], key[16];
    world_uri(uri, "seed=1,size=32M,faults=none");
    options.rdwc = -1;
    options.no_thread = 1; /* no other thread may allocate memory */
    world = world_join(uri, &options, &pool, &session);
    assert_int_equal(far_index_create(session, "map", kind, "max_key=4095", &map), 0);
    memset(value, 'v', sizeof(value));
    memset(long_key, 'k', sizeof(long_key));
    for (unsigned i = 0; i < KEYS; i++)
        assert_int_equal(
            far_insert(session, map, key, (size_t)snprintf(key, sizeof(key), "key%04u", i * 7), value, sizeof(value)),
            0);
    assert_int_equal(far_insert(session, map, long_key, LONG_KEY, "8 bytes!", 8), 0);
    assert_int_equal(far_insert(session, map, long_key, LONG_KEY - 1, "8 bytes!", 8), 0);
    far_session_close(session);
    far_sim_on_verb(world, record_verb, NULL);
}


static void close_pool(void) {
    far_sim_on_verb(world, NULL, NULL);
    world_assert_no_checker_error(world);
    far_index_close(map);
    far_pool_close(pool);
}


/* Runs the operation in new sessions, which have no scratch memory, and lets each request for memory fail once. Returns
 * the number of failures. */
static unsigned fail_each_request(int (*operation)(far_session *session)) {
    unsigned times = 0;
    far_session *session;
    known_count = 0;
    failed = false;
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(operation(session), 0);
    far_session_close(session);
    for (bool more = true; more; times += more) {
        assert_int_equal(far_session_open(pool, &session), 0);
        posted_late = 0;
        requests_until_failure = times + 1;
        int result = operation(session);
        requests_until_failure = 0;
        more = failed;
        failed = false;
        assert_true(result == 0 || (more && result == FAR_ERR_NO_MEMORY));
        assert_int_equal(posted_late, 0);
        assert_int_equal(operation(session), 0);
        far_session_close(session);
    }
    return times;
}


TEST(trees_survive_lack_of_memory) {
    static const char *const kinds[] = {"dart", "smart"};
    for (unsigned i = 0; i < 2; i++) {
        open_kind(kinds[i]);
        unsigned gets = fail_each_request(get_long_key) + fail_each_request(get_absent_key),
                 scans = fail_each_request(scan_all), checks = fail_each_request(check_index);
        assert_true(gets > 1 && scans > 10 && checks > 1);
        close_pool();
    }
}
