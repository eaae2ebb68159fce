/* The fabric `local` keeps the contract of fabric.h between threads: visibility of WRITEs, atomicity of atomics,
 * tearing granules, masks. It also refuses malformed URIs, and fences its connections in a forked child. */
#include "fabric/words.h"
#include "farindex.h"
#include "pool/handle.h"
#include "test.h"
#include "two_processors.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS   200000u
#define TOGETHER 1000 /* number of rounds between two meetings of the threads */

static atomic_ullong arrived;
/* saw[thread][i]: the last round of the other thread that this thread read after it had written its own round i */
static uint32_t saw[2][ROUNDS + 1];

typedef struct worker {
    far_fabric *fabric;
    far_conn *conn;
    far_parker parker;
    pthread_t thread;
    unsigned number;
    uint64_t seen, wrong;
} worker;


static uint64_t run_verb(far_conn *conn, far_verb verb) {
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


static uint64_t read_word(far_conn *conn, far_addr addr) {
    return run_verb(conn, (far_verb){.kind = FAR_READ, .addr = addr});
}


static void write_word(far_conn *conn, far_addr addr, uint64_t word) {
    run_verb(conn, (far_verb){.kind = FAR_WRITE, .addr = addr, .local = &word});
}


static void run_threads(unsigned count, void *(*body)(void *), worker *workers) {
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
    workers[0].seen = read_word(workers[0].conn, 4096);
    for (unsigned i = 0; i < count; i++)
        fabric->ops->disconnect(workers[i].conn);
    fabric->ops->close(fabric);
}


static void *write_mine_read_yours(void *arg) {
    worker *w = arg;
    uint64_t i, seen;
    far_verb verbs[] = {{.kind = FAR_WRITE, .addr = 8192 + 256 * w->number, .local = &i, .length = 8},
                        {.kind = FAR_READ, .addr = 8192 + 256 * !w->number, .local = &seen, .length = 8}};
    /* The WRITE and the READ are in one batch, so that little time passes between them. */
    far_batch batch = {.verbs = verbs, .count = 2};
    pin_to_processor(w->number);
    for (i = 1; i <= ROUNDS; i++) {
        if (i % TOGETHER == 1)
            wait_for_other_thread(&arrived, i / TOGETHER + 1);
        w->conn->fabric->ops->post(w->conn, &batch);
        saw[w->number][i] = (uint32_t)seen;
    }
    return NULL;
}


/* Thread A and thread B each WRITE the number of their round and then READ the round number of the other thread.
 * Suppose that A, after it has written round i, reads a number smaller than k from B. Then B has not written round k
 * yet. So when B has written round k, B's READ must return round i or a later one. Fails without the fence after every
 * WRITE (far_words_fence): a READ then overtakes the preceding WRITE, which is still in the store buffer. */
TEST(a_finished_write_is_seen_by_every_later_read) {
    worker workers[2];
    atomic_store_explicit(&arrived, 0, memory_order_relaxed);
    run_threads(2, write_mine_read_yours, workers);
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        uint32_t unseen = saw[0][i] + 1;
        if (unseen <= ROUNDS && saw[1][unseen] < i)
            fail_msg("neither of round %u and round %u was visible to the other", i, unseen);
    }
}


static unsigned first_way; /* how thread 0 counts: 0 by FAA, 1 by CAS, 2 by masked CAS; thread 1 counts the next way */


static void *count_up(void *arg) {
    worker *w = arg;
    unsigned way = (first_way + w->number) % 3;
    pin_to_processor(w->number);
    for (unsigned i = 0; i < ROUNDS; i++) {
        if (i % TOGETHER == 0)
            wait_for_other_thread(&arrived, i / TOGETHER + 1);
        if (way == 0) {
            run_verb(w->conn, (far_verb){.kind = FAR_FAA, .addr = 4096, .swap = 1});
            continue;
        }
        for (uint64_t old = read_word(w->conn, 4096), got;; old = got) {
            far_verb cas = {.kind = FAR_CAS, .addr = 4096, .compare = old, .swap = old + 1};
            far_verb masked = {.kind = FAR_MASKED_CAS,
                               .addr = 4096,
                               .compare = old,
                               .compare_mask = UINT64_MAX,
                               .swap = old + 1,
                               .swap_mask = UINT64_MAX};
            got = run_verb(w->conn, way == 1 ? cas : masked);
            if (got == old)
                break;
        }
    }
    return NULL;
}


/* Two threads increment one word at the same time, each in another way: by FAA, by CAS or by masked CAS. No increment
 * is lost. Fails if one of the three in fabric/words.h is not a single atomic operation. */
TEST(faa_cas_and_masked_cas_are_mutually_atomic) {
    worker workers[2];
    for (first_way = 0; first_way < 3; first_way++) {
        atomic_store_explicit(&arrived, 0, memory_order_relaxed);
        run_threads(2, count_up, workers);
        assert_int_equal(workers[0].seen, 2 * ROUNDS);
    }
}


enum { RISING_AT = 8192, RISING_WORDS = 64 };


static void *write_rising_read_falling(void *arg) {
    worker *w = arg;
    uint64_t image[RISING_WORDS], first = 0, last = 0;
    far_verb verbs[] = {{.kind = FAR_READ, .addr = RISING_AT + 8 * (RISING_WORDS - 1), .local = &last, .length = 8},
                        {.kind = FAR_READ, .addr = RISING_AT, .local = &first, .length = 8}};
    far_batch batch = {.verbs = verbs, .count = 2}; /* one batch, so that little time passes between the READs */
    pin_to_processor(w->number);
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        if (i % TOGETHER == 1)
            wait_for_other_thread(&arrived, i / TOGETHER + 1);
        if (w->number == 0) {
            for (unsigned k = 0; k < RISING_WORDS; k++)
                image[k] = i;
            run_verb(w->conn,
                     (far_verb){.kind = FAR_WRITE, .addr = RISING_AT, .local = image, .length = sizeof(image)});
        } else {
            w->conn->fabric->ops->post(w->conn, &batch);
            w->wrong += first < last;
        }
    }
    return NULL;
}


/* Thread A writes 64 words, all with the same number. Thread B reads the last word and then the first one. The
 * first word is never older than the last. Fails if far_words_write does not store in the order of rising addresses
 * with release order. */
TEST(a_write_becomes_visible_in_rising_order) {
    worker workers[2];
    atomic_store_explicit(&arrived, 0, memory_order_relaxed);
    run_threads(2, write_rising_read_falling, workers);
    assert_int_equal(workers[1].wrong, 0);
}


enum { PAIRS_AT = 16384, PAIRS_WORDS = 40 };


/* Writes or reads ranges that begin and end at any word of an area of 40 words. Counts pairs of words that were read
 * with different values. */
static void *write_and_read_stretches(void *arg) {
    worker *w = arg;
    pin_to_processor(w->number);
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        if (i % TOGETHER == 1)
            wait_for_other_thread(&arrived, i / TOGETHER + 1);
        uint64_t image[PAIRS_WORDS];
        uint32_t skip = (uint32_t)(i % 5), words = PAIRS_WORDS - skip - (uint32_t)(i / 5 % 3);
        far_verb verb = {.addr = PAIRS_AT + 8 * skip, .local = image, .length = 8 * words};
        for (unsigned k = 0; k < words; k++)
            image[k] = i;
        verb.kind = w->number == 0 ? FAR_WRITE : FAR_READ;
        run_verb(w->conn, verb);
        for (unsigned k = skip + skip % 2; w->number && k + 1 < skip + words; k += 2)
            w->wrong += k >= 4 && k < PAIRS_WORDS - 6 && image[k - skip] != image[k + 1 - skip];
    }
    return NULL;
}


/* Two words that are written as an aligned pair are always read as one, wherever the verbs begin and end, if the fabric
 * reports a tearing granule of 16 bytes. Fails if far_words_write or far_words_read copies a pair by two instructions.
 */
TEST(pairs_of_words_never_tear) {
    worker workers[2];
    far_capabilities can = far_words_capabilities();
    atomic_store_explicit(&arrived, 0, memory_order_relaxed);
    run_threads(2, write_and_read_stretches, workers);
    if (can.atomic_bytes == 16)
        assert_int_equal(workers[1].wrong, 0);
}


/* For every start and every length: a WRITE changes exactly the words of its range, and a READ returns exactly the
 * words of its range. Fails if the loops of far_words_read_pairs or far_words_write_pairs skip or repeat a word. */
TEST(stretches_are_written_and_read_whole) {
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
            run_verb(w->conn, (far_verb){.kind = FAR_WRITE, .addr = 4096, .local = clear, .length = sizeof(clear)});
            run_verb(w->conn,
                     (far_verb){.kind = FAR_WRITE, .addr = 4096 + 8 * skip, .local = image, .length = 8 * words});
            run_verb(w->conn, (far_verb){.kind = FAR_READ, .addr = 4096, .local = seen, .length = sizeof(seen)});
            for (unsigned i = 0; i < ROOM; i++)
                assert_int_equal(seen[i], i >= skip && i < skip + words ? image[i - skip] : 0);
            memset(seen, 0, sizeof(seen));
            run_verb(w->conn,
                     (far_verb){.kind = FAR_READ, .addr = 4096 + 8 * skip, .local = seen, .length = 8 * words});
            for (unsigned i = 0; i < ROOM; i++)
                assert_int_equal(seen[i], i < words ? image[i] : 0);
        }
    fabric->ops->disconnect(w->conn);
    fabric->ops->close(fabric);
}


/* A masked CAS compares only the bits of compare_mask and changes only the bits of swap_mask. With compare_mask 0 it
 * always succeeds. */
TEST(masks_select_bits) {
    worker w[1];
    far_fabric *fabric;
    assert_int_equal(far_local_open("1M", &fabric), 0);
    memset(w, 0, sizeof(w));
    assert_int_equal(fabric->ops->connect(fabric, &w->parker, &w->conn), 0);
    write_word(w->conn, 4096, 0x1234);
    far_verb fails = {
        .kind = FAR_MASKED_CAS, .addr = 4096, .compare = 0x35, .compare_mask = 0xff, .swap = 0, .swap_mask = ~0ull};
    assert_int_equal(run_verb(w->conn, fails), 0x1234);
    assert_int_equal(read_word(w->conn, 4096), 0x1234);
    far_verb always = {.kind = FAR_MASKED_CAS, .addr = 4096, .swap = ~0ull, .swap_mask = 0xff00};
    assert_int_equal(run_verb(w->conn, always), 0x1234);
    assert_int_equal(read_word(w->conn, 4096), 0xff34);
    fabric->ops->disconnect(w->conn);
    fabric->ops->close(fabric);
}


/* Handles that give the same name share the memory and see each other's sessions. Another size is refused. After the
 * last handle is closed, the name refers to new memory. */
TEST(the_same_name_is_the_same_memory_until_the_last_handle) {
    far_fabric *a, *b;
    worker w[2];
    memset(w, 0, sizeof(w));
    assert_int_equal(far_fabric_open("local:1M?name=shared", &a), 0);
    assert_int_equal(far_fabric_open("local:1M?name=shared", &b), 0);
    assert_int_equal(a->ops->connect(a, &w[0].parker, &w[0].conn), 0);
    assert_int_equal(b->ops->connect(b, &w[1].parker, &w[1].conn), 0);
    write_word(w[0].conn, 4096, 5);
    assert_int_equal(read_word(w[1].conn, 4096), 5);
    far_fabric *other;
    assert_int_equal(far_fabric_open("local:2M?name=shared", &other), FAR_ERR_INVALID);
    assert_int_equal(a->ops->claim(w[0].conn, 3, 1), 0);
    assert_int_equal(b->ops->has_failed(w[1].conn, 3, 1), 0);
    a->ops->fence_self(w[0].conn);
    assert_int_equal(b->ops->has_failed(w[1].conn, 3, 1), 1);
    a->ops->disconnect(w[0].conn);
    a->ops->close(a);
    assert_int_equal(read_word(w[1].conn, 4096), 5);
    b->ops->disconnect(w[1].conn);
    b->ops->close(b);
    assert_int_equal(far_fabric_open("local:1M?name=shared", &a), 0);
    assert_int_equal(a->ops->connect(a, &w[0].parker, &w[0].conn), 0);
    assert_int_equal(read_word(w[0].conn, 4096), 0);
    a->ops->disconnect(w[0].conn);
    a->ops->close(a);
}


/* Each malformed URI is refused with FAR_ERR_INVALID and a message. */
TEST(malformed_uris_are_refused_with_words) {
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


/* Runs in the child: uses the session of the parent, which must be refused, and then opens a pool of its own. Writes of
 * the child would change only its private copy of the memory and would be lost. */
static int use_after_fork(far_session *s, far_index *index) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    far_pool *own;
    /* The thread sanitizer allows no new thread in a child of a process with threads, so this handle has none. */
    options.no_thread = 1;
    if (far_put(s, index, "k", 1, "w", 1) != FAR_ERR_FENCED || !strstr(far_last_error(), "fork"))
        return 1;
    if (far_pool_open("local:4M?name=forked", &options, &own) < 0 || far_session_open(own, &s) < 0)
        return 2;
    /* this is a new pool, although the parent has one of that name */
    int found = far_index_open(s, "map", &index);
    far_session_close(s);
    far_pool_close(own);
    return found == FAR_ERR_NOT_FOUND ? 0 : 3;
}


/* A forked child gets FAR_ERR_FENCED from the pool of its parent, and can open a pool of its own, even with the same
 * name, which does not contain the indexes of the parent. The parent continues to work. Fails without
 * after_fork_in_child in local.c. */
TEST(a_forked_child_is_refused_and_can_open_its_own) {
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


/* Runs in the child of a fork. Other threads of the parent held locks at the moment of the fork, and in the child these
 * locks stay locked for ever. All calls must be refused without waiting for them. */
static int use_inherited_locks(far_pool *pool, far_session *s, far_index *index) {
    char value;
    far_session *second;
    alarm(30); /* The signal ends the child if it waits for a lock. */
    bool refused = far_put(s, index, "k", 1, "w", 1) == FAR_ERR_FENCED &&
                   far_get(s, index, "k", 1, &value, 1, NULL) == FAR_ERR_FENCED &&
                   far_session_open(pool, &second) == FAR_ERR_FENCED && far_pool_poll(pool) == FAR_ERR_FENCED;
    far_index_close(index);
    far_session_close(s);
    far_pool_close(pool);
    return refused ? 0 : 1;
}


/* The parent forks while it holds the locks of the pool, of its session list, and of its pin. Calls in the child return
 * FAR_ERR_FENCED, and closing the handles does not wait for these locks. */
TEST(a_forked_child_does_not_wait_for_inherited_locks) {
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
        _exit(use_inherited_locks(pool, s, index));
    atomic_store(&pool->epochs.waking, 0);
    pthread_mutex_unlock(&pool->team.lock);
    pthread_mutex_unlock(&pool->lock);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    far_index_close(index);
    far_session_close(s);
    far_pool_close(pool);
}
