/* DART and SMART when the process has no memory left: for every n there is none the n-th time that an operation needs
 * more scratch memory. It says so, or tries again, and what it had put until then is not posted, neither with what it
 * puts when it tries again nor at its end: the memory of those verbs, and in walks the pin, are gone. (Without
 * far_forget in dart's tour, smart's passes or smart's accept_node it is.) */
#include "../support/world.h"
#include "fabric/sim/sim.h"
#include "farindex.h"
#include "pool/handle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define KEYS     120
#define LONG_KEY 4095 /* its hashes fill a chunk of scratch memory */
#define KNOWN    4096

static unsigned fails_in; /* 0: never */
static bool failed;
static far_addr known[KNOWN]; /* what the operation READs */
static unsigned known_count, posted_late;
static far_sim_world *world;
static far_pool *pool;
static far_index *map;
static char value[4000], long_key[LONG_KEY];


/* In the place of the library's: scratch memory comes from here. */
void *aligned_alloc(size_t alignment, size_t size) {
    void *memory;
    if (fails_in && --fails_in == 0) {
        failed = true;
        return NULL;
    }
    return posix_memalign(&memory, alignment, size) ? NULL : memory;
}


/* What one attempt had put goes with what another puts. */
static bool is_there_twice(const far_sim_posted *posted) {
    unsigned times = 0;
    for (uint32_t i = 0; i < posted->batch->count; i++) {
        const far_verb *verb = &posted->batch->verbs[i];
        times += verb->addr == posted->verb->addr && verb->length == posted->verb->length;
    }
    return times > 1;
}


static void note(void *ctx, const far_sim_posted *posted) {
    (void)ctx;
    bool is_known = false;
    for (unsigned i = 0; i < known_count && !is_known; i++)
        is_known = known[i] == posted->verb->addr;
    bool pinned = posted->batch->pin_clock != UINT64_MAX;
    if (failed)
        posted_late += is_known && (!pinned || is_there_twice(posted));
    else if (!fails_in && pinned && !is_known && known_count < KNOWN)
        known[known_count++] = posted->verb->addr;
}


static int count_pair(void *ctx, const void *key, size_t key_len, const void *bytes, size_t length) {
    (void)key, (void)key_len;
    *(unsigned *)ctx += length == sizeof(value) && memcmp(bytes, value, length) == 0;
    return 0;
}


static int get(far_session *session) {
    char back[sizeof(value)];
    size_t length;
    int err = far_get(session, map, long_key, LONG_KEY, back, sizeof(back), &length);
    assert_true(err < 0 || length == 8);
    return err;
}


/* Not even a slot of the last node is known. */
static int get_none(far_session *session) {
    char back[8], other[LONG_KEY];
    memcpy(other, long_key, LONG_KEY);
    other[LONG_KEY - 1] = 'x';
    int err = far_get(session, map, other, LONG_KEY, back, sizeof(back), NULL);
    return err == FAR_ERR_NOT_FOUND ? 0 : err;
}


static int scan(far_session *session) {
    unsigned pairs = 0;
    int64_t count = far_scan(session, map, NULL, 0, NULL, 0, 0, count_pair, &pairs);
    assert_true(count < 0 || (count == KEYS + 2 && pairs == KEYS));
    return count < 0 ? (int)count : 0;
}


static int check(far_session *session) {
    return far_index_check(session, map, fail_at_problem, NULL);
}


static void set_up(const char *kind) {
    far_session *session;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    char uri[WORLD_URI], key[16];
    world_uri(uri, "seed=1,size=32M,faults=none");
    options.rdwc = -1;
    options.no_thread = 1; /* nobody else asks for memory meanwhile */
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
    far_sim_on_verb(world, note, NULL);
}


static void tear_down(void) {
    far_sim_on_verb(world, NULL, NULL);
    world_assert_watch_is_content(world);
    far_index_close(map);
    far_pool_close(pool);
}


/* Every session begins without scratch memory. Returns how often it failed. */
static unsigned at_every_place(int (*operation)(far_session *session)) {
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
        fails_in = times + 1;
        int result = operation(session);
        fails_in = 0;
        more = failed;
        failed = false;
        assert_true(result == 0 || (more && result == FAR_ERR_NO_MEMORY));
        assert_int_equal(posted_late, 0);
        assert_int_equal(operation(session), 0);
        far_session_close(session);
    }
    return times;
}


static void trees_do_without_memory(void **state) {
    (void)state;
    static const char *const kinds[] = {"dart", "smart"};
    for (unsigned i = 0; i < 2; i++) {
        set_up(kinds[i]);
        unsigned gets = at_every_place(get) + at_every_place(get_none), scans = at_every_place(scan),
                 checks = at_every_place(check);
        assert_true(gets > 1 && scans > 10 && checks > 1);
        tear_down();
    }
}


int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(trees_do_without_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
