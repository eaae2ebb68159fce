/* The local fabric keeps the contract between threads. */
#include "fabric/words.h"
#include "farindex.h"
#include "pool/handle.h"
#include "two_processors.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define ROUNDS   200000u
#define TOGETHER 1000 /* rounds between two meetings */

static atomic_ullong arrived;
static uint32_t saw[2][ROUNDS + 1]; /* the last round of the other that each had seen after its own */

typedef struct worker {
    far_fabric *fabric;
    far_conn *conn;
    far_parker parker;
    pthread_t thread;
    unsigned number;
    uint64_t seen, wrong;
} worker;


static uint64_t run(far_conn *conn, far_verb verb) {
    uint64_t word = 0;
    if (!verb.local)
        verb.local = &word;
    if (!verb.length)
        verb.length = 8;
    far_batch batch = {.verbs = &verb, .count = 1};
    conn->fabric->ops->post(conn, &batch);
    assert_int_equal(batch.status, 0);
    assert_false(batch.pending);
    return word;
}


static uint64_t load(far_conn *conn, far_addr addr) {
    return run(conn, (far_verb){.kind = FAR_READ, .addr = addr});
}


static void store(far_conn *conn, far_addr addr, uint64_t word) {
    run(conn, (far_verb){.kind = FAR_WRITE, .addr = addr, .local = &word});
}


static void with_threads(unsigned count, void *(*body)(void *), worker *workers) {
    far_fabric *fabric;
    assert_int_equal(far_local_open("2x1M", &fabric), 0);
    for (unsigned i = 0; i < count; i++) {
        workers[i] = (worker){.fabric = fabric, .number = i};
        assert_int_equal(fabric->ops->connect(fabric, &workers[i].parker, &workers[i].conn), 0);
    }
    for (unsigned i = 0; i < count; i++)
        pthread_create(&workers[i].thread, NULL, body, &workers[i]);
    for (unsigned i = 0; i < count; i++)
        pthread_join(workers[i].thread, NULL);
    workers[0].seen = load(workers[0].conn, 4096);
    for (unsigned i = 0; i < count; i++)
        fabric->ops->disconnect(workers[i].conn);
    fabric->ops->close(fabric);
}


static void *write_mine_read_yours(void *arg) {
    worker *w = arg;
    uint64_t i, seen;
    far_verb verbs[] = {{.kind = FAR_WRITE, .addr = 8192 + 256 * w->number, .local = &i, .length = 8},
                        {.kind = FAR_READ, .addr = 8192 + 256 * !w->number, .local = &seen, .length = 8}};
    far_batch batch = {.verbs = verbs, .count = 2}; /* with little between the two */
    pin_to_processor(w->number);
    for (i = 1; i <= ROUNDS; i++) {
        if (i % TOGETHER == 1)
            meet_other(&arrived, i / TOGETHER + 1);
        w->conn->fabric->ops->post(w->conn, &batch);
        saw[w->number][i] = (uint32_t)seen;
    }
    return NULL;
}


/* Each WRITEs its rounds and READs the other's. If the first did not see round k of the second when its own round i was
 * written, round k was not written yet, and so the second must see round i from round k on. Fails without the fence
 * after every WRITE (far_words_fence): a READ then overtakes the WRITE before it, which waits in the store buffer. */
static void a_finished_write_is_seen_by_every_later_read(void **state) {
    (void)state;
    worker workers[2];
    atomic_store_explicit(&arrived, 0, memory_order_relaxed);
    with_threads(2, write_mine_read_yours, workers);
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        uint32_t unseen = saw[0][i] + 1;
        if (unseen <= ROUNDS && saw[1][unseen] < i)
            fail_msg("round %u did not see round %u, nor the other way round", i, unseen);
    }
}


static void *count_up(void *arg) {
    worker *w = arg;
    for (unsigned i = 0; i < ROUNDS; i++) {
        if (w->number % 3 == 0) {
            run(w->conn, (far_verb){.kind = FAR_FAA, .addr = 4096, .swap = 1});
            continue;
        }
        for (uint64_t old = load(w->conn, 4096), got;; old = got) {
            far_verb cas = {.kind = FAR_CAS, .addr = 4096, .compare = old, .swap = old + 1};
            far_verb masked = {.kind = FAR_MASKED_CAS,
                               .addr = 4096,
                               .compare = old,
                               .compare_mask = UINT64_MAX,
                               .swap = old + 1,
                               .swap_mask = UINT64_MAX};
            got = run(w->conn, w->number % 3 == 1 ? cas : masked);
            if (got == old)
                break;
        }
    }
    return NULL;
}


static void faa_cas_and_masked_cas_are_mutually_atomic(void **state) {
    (void)state;
    worker workers[3];
    with_threads(3, count_up, workers);
    assert_int_equal(workers[0].seen, 3 * ROUNDS);
}


static void *write_rising_read_falling(void *arg) {
    worker *w = arg;
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        uint64_t image[8] = {i, i, i, i, i, i, i, i};
        if (w->number == 0) {
            run(w->conn, (far_verb){.kind = FAR_WRITE, .addr = 8192, .local = image, .length = 64});
        } else {
            uint64_t last = load(w->conn, 8192 + 56), first = load(w->conn, 8192);
            w->wrong += first < last;
        }
    }
    return NULL;
}


static void a_write_becomes_visible_in_rising_order(void **state) {
    (void)state;
    worker workers[2];
    with_threads(2, write_rising_read_falling, workers);
    assert_int_equal(workers[1].wrong, 0);
}


enum { PAIRS_AT = 16384, PAIRS_WORDS = 40 };


/* Stretches that begin and end at any word. */
static void *write_and_read_stretches(void *arg) {
    worker *w = arg;
    pin_to_processor(w->number);
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        uint64_t image[PAIRS_WORDS];
        uint32_t skip = (uint32_t)(i % 5), words = PAIRS_WORDS - skip - (uint32_t)(i / 5 % 3);
        far_verb verb = {.addr = PAIRS_AT + 8 * skip, .local = image, .length = 8 * words};
        for (unsigned k = 0; k < words; k++)
            image[k] = i;
        verb.kind = w->number == 0 ? FAR_WRITE : FAR_READ;
        run(w->conn, verb);
        for (unsigned k = skip + skip % 2; w->number && k + 1 < skip + words; k += 2)
            w->wrong += k >= 4 && k < PAIRS_WORDS - 6 && image[k - skip] != image[k + 1 - skip];
    }
    return NULL;
}


/* Where the fabric says so: words that are written as a pair are read as one, wherever the verbs begin. */
static void pairs_of_words_never_tear(void **state) {
    (void)state;
    worker workers[2];
    far_capabilities can = far_words_capabilities();
    with_threads(2, write_and_read_stretches, workers);
    if (can.atomic_bytes == 16)
        assert_int_equal(workers[1].wrong, 0);
}


/* Every beginning and every length: what is written is there, and nothing beside it. */
static void stretches_are_written_and_read_whole(void **state) {
    (void)state;
    enum { ROOM = 90 };
    worker w[1];
    far_fabric *fabric;
    assert_int_equal(far_local_open("1M", &fabric), 0);
    memset(w, 0, sizeof(w));
    assert_int_equal(fabric->ops->connect(fabric, &w->parker, &w->conn), 0);
    for (uint32_t skip = 0; skip < 5; skip++)
        for (uint32_t words = 1; words <= 80; words++) {
            uint64_t clear[ROOM] = {0}, image[ROOM], seen[ROOM];
            for (unsigned i = 0; i < ROOM; i++)
                image[i] = 1000 * skip + i + 1;
            run(w->conn, (far_verb){.kind = FAR_WRITE, .addr = 4096, .local = clear, .length = sizeof(clear)});
            run(w->conn, (far_verb){.kind = FAR_WRITE, .addr = 4096 + 8 * skip, .local = image, .length = 8 * words});
            run(w->conn, (far_verb){.kind = FAR_READ, .addr = 4096, .local = seen, .length = sizeof(seen)});
            for (unsigned i = 0; i < ROOM; i++)
                assert_int_equal(seen[i], i >= skip && i < skip + words ? image[i - skip] : 0);
            memset(seen, 0, sizeof(seen));
            run(w->conn, (far_verb){.kind = FAR_READ, .addr = 4096 + 8 * skip, .local = seen, .length = 8 * words});
            for (unsigned i = 0; i < ROOM; i++)
                assert_int_equal(seen[i], i < words ? image[i] : 0);
        }
    fabric->ops->disconnect(w->conn);
    fabric->ops->close(fabric);
}


static void masks_select_bits(void **state) {
    (void)state;
    worker w[1];
    far_fabric *fabric;
    assert_int_equal(far_local_open("1M", &fabric), 0);
    memset(w, 0, sizeof(w));
    assert_int_equal(fabric->ops->connect(fabric, &w->parker, &w->conn), 0);
    store(w->conn, 4096, 0x1234);
    far_verb fails = {
        .kind = FAR_MASKED_CAS, .addr = 4096, .compare = 0x35, .compare_mask = 0xff, .swap = 0, .swap_mask = ~0ull};
    assert_int_equal(run(w->conn, fails), 0x1234);
    assert_int_equal(load(w->conn, 4096), 0x1234);
    far_verb always = {.kind = FAR_MASKED_CAS, .addr = 4096, .swap = ~0ull, .swap_mask = 0xff00};
    assert_int_equal(run(w->conn, always), 0x1234);
    assert_int_equal(load(w->conn, 4096), 0xff34);
    fabric->ops->disconnect(w->conn);
    fabric->ops->close(fabric);
}


static void the_same_name_is_the_same_memory_until_the_last_handle(void **state) {
    (void)state;
    far_fabric *a, *b;
    worker w[2];
    memset(w, 0, sizeof(w));
    assert_int_equal(far_fabric_open("local:1M?name=shared", &a), 0);
    assert_int_equal(far_fabric_open("local:1M?name=shared", &b), 0);
    assert_int_equal(a->ops->connect(a, &w[0].parker, &w[0].conn), 0);
    assert_int_equal(b->ops->connect(b, &w[1].parker, &w[1].conn), 0);
    store(w[0].conn, 4096, 5);
    assert_int_equal(load(w[1].conn, 4096), 5);
    far_fabric *other;
    assert_int_equal(far_fabric_open("local:2M?name=shared", &other), FAR_ERR_INVALID);
    assert_int_equal(a->ops->claim(w[0].conn, 3, 1), 0);
    assert_int_equal(b->ops->is_dead(w[1].conn, 3, 1), 0);
    a->ops->fence_self(w[0].conn);
    assert_int_equal(b->ops->is_dead(w[1].conn, 3, 1), 1);
    a->ops->disconnect(w[0].conn);
    a->ops->close(a);
    assert_int_equal(load(w[1].conn, 4096), 5);
    b->ops->disconnect(w[1].conn);
    b->ops->close(b);
    assert_int_equal(far_fabric_open("local:1M?name=shared", &a), 0);
    assert_int_equal(a->ops->connect(a, &w[0].parker, &w[0].conn), 0);
    assert_int_equal(load(w[0].conn, 4096), 0);
    a->ops->disconnect(w[0].conn);
    a->ops->close(a);
}


static void malformed_uris_are_refused_with_words(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      "local",
                                      "local:",
                                      "local:0",
                                      "local:x1M",
                                      "local:0x1M",
                                      "local:257x1M",
                                      "local:1M?rtt",
                                      "local:1M?rtt=abc",
                                      "local:1M?x=1",
                                      "local:1M?name=",
                                      "local:-1M",
                                      "local:2T",
                                      "local:1000",
                                      "nosuch:1M",
                                      "local:1M?name=a&name=b"};
    far_fabric *fabric;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(far_fabric_open(bad[i], &fabric), FAR_ERR_INVALID);
        assert_non_null(strstr(far_last_error(), "uri"));
    }
}


/* In the child: what it wrote would be in a copy of the memory, and lost. */
static int use_after_fork(far_session *s, far_index *index) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    far_pool *own;
    options.no_thread = 1; /* the thread sanitizer allows none in a child of a process with threads */
    if (far_put(s, index, "k", 1, "w", 1) != FAR_ERR_FENCED || !strstr(far_last_error(), "fork"))
        return 1;
    if (far_pool_open("local:4M?name=forked", &options, &own) <
        0) /* a new one, though the parent has one of that name */
        return 2;
    far_pool_close(own);
    return 0;
}


static void a_forked_child_is_refused_and_can_open_its_own(void **state) {
    (void)state;
    for (int named = 0; named < 2; named++) {
        far_pool *pool;
        far_session *s;
        far_index *index;
        int status = -1;
        char value;
        assert_int_equal(far_pool_open(named ? "local:4M?name=forked" : "local:4M", NULL, &pool), 0);
        assert_int_equal(far_session_open(pool, &s), 0);
        assert_int_equal(far_index_create(s, "map", "toy", NULL, &index), 0);
        assert_int_equal(far_put(s, index, "k", 1, "v", 1), 0);
        pid_t pid = fork();
        if (pid == 0)
            _exit(use_after_fork(s, index));
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        assert_int_equal(far_get(s, index, "k", 1, &value, 1, NULL), 0);
        assert_int_equal(value, 'v');
        far_index_close(index);
        far_session_close(s);
        far_pool_close(pool);
    }
}


/* A thread of the parent may have been anywhere when the child came to be: what it held is held for ever there. */
static int use_what_another_holds(far_pool *pool, far_session *s, far_index *index) {
    char value;
    far_session *second;
    alarm(30); /* instead of waiting for ever */
    bool refused = far_put(s, index, "k", 1, "w", 1) == FAR_ERR_FENCED &&
                   far_get(s, index, "k", 1, &value, 1, NULL) == FAR_ERR_FENCED &&
                   far_session_open(pool, &second) == FAR_ERR_FENCED && far_pool_poll(pool) == FAR_ERR_FENCED;
    far_index_close(index);
    far_session_close(s);
    far_pool_close(pool);
    return refused ? 0 : 1;
}


static void a_forked_child_waits_for_nobody(void **state) {
    (void)state;
    far_pool *pool;
    far_session *s;
    far_index *index;
    int status = -1;
    assert_int_equal(far_pool_open("local:4M", NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &s), 0);
    assert_int_equal(far_index_create(s, "map", "toy", NULL, &index), 0);
    pthread_mutex_lock(&pool->lock);
    pthread_mutex_lock(&pool->team.lock);
    while (atomic_exchange(&pool->epochs.waking, 1) != 0)
        sched_yield();
    pid_t pid = fork();
    if (pid == 0)
        _exit(use_what_another_holds(pool, s, index));
    atomic_store(&pool->epochs.waking, 0);
    pthread_mutex_unlock(&pool->team.lock);
    pthread_mutex_unlock(&pool->lock);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    far_index_close(index);
    far_session_close(s);
    far_pool_close(pool);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_forked_child_waits_for_nobody),
        cmocka_unit_test(a_finished_write_is_seen_by_every_later_read),
        cmocka_unit_test(faa_cas_and_masked_cas_are_mutually_atomic),
        cmocka_unit_test(a_write_becomes_visible_in_rising_order),
        cmocka_unit_test(pairs_of_words_never_tear),
        cmocka_unit_test(stretches_are_written_and_read_whole),
        cmocka_unit_test(masks_select_bits),
        cmocka_unit_test(the_same_name_is_the_same_memory_until_the_last_handle),
        cmocka_unit_test(malformed_uris_are_refused_with_words),
        cmocka_unit_test(a_forked_child_is_refused_and_can_open_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
