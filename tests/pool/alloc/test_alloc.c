/* Tests of far_alloc, far_free and far_retire on the local fabric and in the simulator. They prove what objects are
 * like, when memory is reused, and that sessions do not get the same memory. */
#include "alloc_rig.h"
#include "base/random.h"
#include "test.h"

#include <pthread.h>


/* ---- What objects are like ---- */

static int alloc_many_sizes(far_task *t, bench *b) {
    enum { COUNT = 3000 };
    far_object *objects = calloc(COUNT, sizeof(*objects));
    far_random r;
    far_random_seed(&r, 3);
    for (unsigned i = 0; i < COUNT; i++) {
        static const unsigned aligns[] = {[PLAIN] = 16, [WIDE] = 32, [LINE] = 64, [STABLE] = 16};
        unsigned type = (unsigned)far_random_below(&r, 4), node = (unsigned)far_random_below(&r, 3);
        uint64_t size = 1 + far_random_below(&r, i % 100 == 0 ? 200000 : i % 10 == 0 ? 9000 : 600);
        unsigned flags = node < 2 ? FAR_ALLOC_ON_NODE : 0;
        int err = far_alloc(t, &b->index, type, size, node < 2 ? node : FAR_NODE_ANY, flags, &objects[i]);
        assert_int_equal(err, 0);
        assert_true(objects[i].size >= size);
        assert_int_equal(objects[i].addr % aligns[type], 0);
        assert_false(objects[i].used);
        assert_int_equal(objects[i].epoch, far_epoch(t));
        if (node < 2)
            assert_int_equal(far_addr_node(objects[i].addr), node);
        far_block_id id;
        assert_true(far_block_of(&b->pool->geometry, objects[i].addr, &id));
        uint64_t word = 1;
        assert_int_equal(far_read_word(t, objects[i].addr + (objects[i].size - 8), &word), 0);
        assert_int_equal(word, 0);
        assert_int_equal(far_write_word(t, objects[i].addr + (objects[i].size - 8), UINT64_MAX), 0);
    }
    qsort(objects, COUNT, sizeof(*objects), by_address);
    for (unsigned i = 1; i < COUNT; i++)
        assert_true(objects[i - 1].addr + objects[i - 1].size <= objects[i].addr);
    free(objects);
    return 0;
}


/* Objects of many sizes and types are aligned as their type demands, are at least as large as requested, are on the
 * requested node, are zero when they are fresh, and do not overlap. */
TEST(objects_are_aligned_zero_where_asked_and_do_not_overlap) {
    bench b;
    open_bench(&b, "sim:seed=1,memory_nodes=2,size=64M", &kind);
    assert_int_equal(bench_call(&b, b.session, alloc_many_sizes, NULL), 0);
    close_bench(&b);
}


static int alloc_without_pin(far_task *t, void *arg) {
    far_object object;
    return far_alloc(t, arg, PLAIN, 64, FAR_NODE_ANY, 0, &object);
}


static int alloc_with_bad_arguments(far_task *t, bench *b) {
    far_object object;
    assert_int_equal(far_alloc(t, &b->index, TYPES, 64, FAR_NODE_ANY, 0, &object), FAR_ERR_INVALID);
    assert_int_equal(far_alloc(t, &b->index, PLAIN, 64, 7, 0, &object), FAR_ERR_INVALID);
    assert_int_equal(far_alloc(t, &b->index, PLAIN, 1ull << 50, FAR_NODE_ANY, 0, &object), FAR_ERR_INVALID);
    const uint64_t most = far_object_bytes_max(b->pool);
    assert_int_equal(far_alloc(t, &b->index, PLAIN, most + 1, FAR_NODE_ANY, 0, &object), FAR_ERR_INVALID);
    assert_non_null(strstr(far_last_error(), "larger than a block"));
    assert_int_equal(far_alloc(t, &b->index, PLAIN, most, FAR_NODE_ANY, 0, &object), 0);
    assert_int_equal(object.size, most);
    return 0;
}


/* far_alloc refuses callers without a pin, unknown types, unknown nodes and impossible sizes with an error. */
TEST(invalid_allocations_are_refused) {
    bench b;
    open_bench(&b, "sim:seed=1,size=8M", &kind);
    assert_int_equal(far_session_call(b.session, FAR_STATS_OTHER, false, alloc_without_pin, &b.index), FAR_ERR_INVALID);
    assert_int_equal(bench_call(&b, b.session, alloc_with_bad_arguments, NULL), 0);
    close_bench(&b);
}


static int count_round_trips_of_allocs(far_task *t, bench *b) {
    far_object object;
    uint64_t trips = 0;
    for (unsigned i = 0; i < 2000; i++) {
        uint64_t before = t->stats->round_trips + t->stats->background_round_trips;
        assert_int_equal(far_alloc(t, &b->index, PLAIN, 48, FAR_NODE_ANY, 0, &object), 0);
        trips += t->stats->round_trips + t->stats->background_round_trips - before;
    }
    assert_int_equal(t->stats->round_trips, 0);
    assert_true(trips < 2000 / 5);
    return 0;
}


/* 2000 allocations of a session need no round trip of the operation, and less than one background round trip in five
 * allocations. The others are served from the magazine and the store. */
TEST(most_allocations_need_no_verb) {
    bench b;
    open_bench(&b, "sim:seed=1,size=8M", &kind);
    assert_int_equal(bench_call(&b, b.session, count_round_trips_of_allocs, NULL), 0);
    close_bench(&b);
}


/* ---- Returned objects ---- */

enum { RETURNED = 4000, RETURNED_BYTES = 512 };


/* Allocates RETURNED objects, and lists them as returns in random order. */
static void list_returns(far_task *t, bench *b, far_pending_return *returns) {
    far_random random;
    far_random_seed(&random, 1);
    for (unsigned i = 0; i < RETURNED; i++) {
        far_object object;
        unsigned at = (unsigned)far_random_below(&random, i + 1);
        assert_int_equal(far_alloc(t, &b->index, PLAIN, RETURNED_BYTES, 0, 0, &object), 0);
        returns[i] = returns[at];
        returns[at].addr = object.addr;
    }
}


/* Returns the capacity of the largest batch that the session has posted. */
static uint32_t largest_batch(const far_task *t) {
    uint32_t most = t->open ? t->open->capacity : 0;
    for (const far_batch_box *box = t->session->free_boxes; box; box = box->next)
        most = box->capacity > most ? box->capacity : most;
    return most;
}


static int return_and_take_back(far_task *t, bench *b) {
    const unsigned words = RETURNED * RETURNED_BYTES / (FAR_GRANULE * FAR_WORD_GRANULES);
    far_pending_return *returns = calloc(RETURNED, sizeof(*returns));
    list_returns(t, b, returns);
    uint64_t faas = t->stats->faa;
    assert_true(words > 4 * FAR_BIT_VERBS);
    assert_int_equal(far_free_bits_add(t, returns, RETURNED), 0);
    assert_true(t->stats->faa - faas <= words + words / 10);
    far_store_enter(t);
    far_store *s = far_store_of(t);
    uint64_t stored = s->lists.store_bytes;
    assert_int_equal(far_slabs_take_all_returned(t), 0);
    assert_int_equal(s->lists.store_bytes - stored, RETURNED * RETURNED_BYTES);
    far_store_leave(t);
    assert_true(largest_batch(t) <= FAR_BIT_VERBS);
    free(returns);
    return 0;
}


/* Many objects are returned in random order, and then taken back by their owner. The returns need one FAA for each word of the
 * free bitmaps, and no batch has more than FAR_BIT_VERBS verbs, because a session keeps the memory of its largest batch.
 * Fails without far_sort in far_free_bits_add, or without far_wait_if_full there or in post_bit_takes. */
TEST(many_returned_objects_need_only_small_batches) {
    bench b;
    open_bench(&b, "local:8M", &kind);
    assert_int_equal(bench_call(&b, b.session, return_and_take_back, NULL), 0);
    close_bench(&b);
}


/* ---- Reuse ---- */

enum { MAGAZINE = 33 }; /* more objects than a magazine takes from the store at once */


static int free_and_alloc_again(far_task *t, bench *b) {
    far_object a, again;
    assert_int_equal(far_alloc(t, &b->index, PLAIN, 100, 0, 0, &a), 0);
    assert_false(a.used);
    assert_int_equal(far_write_word(t, a.addr, 4711), 0);
    far_free(t, &b->index, PLAIN, a.addr, 100);
    unsigned tries = 0;
    do {
        assert_true(++tries <= MAGAZINE);
        /* An object of 110 bytes belongs to the same class as one of 100 bytes, so it may reuse the freed memory. */
        assert_int_equal(far_alloc(t, &b->index, PLAIN, 110, 0, FAR_ALLOC_ZERO, &again), 0);
    } while (again.addr != a.addr);
    assert_true(again.used);
    uint64_t word = 1;
    assert_int_equal(far_read_word(t, again.addr, &word), 0);
    assert_int_equal(word, 0);
    return 0;
}


/* An object that was freed with far_free is handed out again at once, as a used one. With FAR_ALLOC_ZERO its old
 * contents are wiped. */
TEST(an_unpublished_object_is_reused_at_once_and_zeroed_on_request) {
    bench b;
    open_bench(&b, "sim:seed=1,size=8M", &kind);
    assert_int_equal(bench_call(&b, b.session, free_and_alloc_again, NULL), 0);
    close_bench(&b);
}


typedef struct retiring {
    unsigned type;
    far_addr addr;
    /* first the epoch of the pin under which the object was retired; later the epoch in which the object was reused */
    uint64_t epoch;
    bool back;
} retiring;


static int retire_one(far_task *t, bench *b) {
    retiring *r = b->arg;
    far_object object;
    int err = far_alloc(t, &b->index, r->type, 256, 0, 0, &object);
    far_retire(t, &b->index, r->type, object.addr, 256);
    r->addr = object.addr;
    r->epoch = far_epoch(t);
    return err;
}


static int alloc_until_back(far_task *t, bench *b) {
    retiring *r = b->arg;
    far_object objects[2 * MAGAZINE];
    for (unsigned i = 0; i < 2 * MAGAZINE; i++) {
        assert_int_equal(far_alloc(t, &b->index, r->type, 256, 0, 0, &objects[i]), 0);
        if (objects[i].addr == r->addr) {
            r->back = true;
            r->epoch = far_epoch_known(t);
        }
    }
    for (unsigned i = 0; i < 2 * MAGAZINE; i++)
        if (objects[i].addr != r->addr)
            far_free(t, &b->index, r->type, objects[i].addr, 256);
    return 0;
}


/* Returns the number of epochs from the pin under which the object was retired until it was allocated again. */
static uint64_t count_epochs_until_reuse(bench *b, retiring *r) {
    assert_int_equal(bench_call(b, b->session, retire_one, r), 0);
    uint64_t from = r->epoch;
    for (unsigned i = 0; i < 40 && !r->back; i++) {
        assert_int_equal(bench_call(b, b->session, alloc_until_back, r), 0);
        if (!r->back)
            bench_epochs(b, 1);
    }
    assert_true(r->back);
    return r->epoch - from;
}


/* A retired object is reused when the epoch is 4 higher than the pin of the retirement, or 7 higher for a type with
 * three extra epochs, and not earlier. Fails with a smaller RETIRE_EPOCHS (retire.c). */
TEST(retired_memory_comes_back_after_its_epochs_and_not_before) {
    bench b;
    open_bench(&b, "sim:seed=1,size=8M", &kind);
    retiring plain = {.type = PLAIN}, slow = {.type = SLOW};
    uint64_t waited = count_epochs_until_reuse(&b, &plain);
    /* The object is reused in epoch pin + 4. The measured number may be higher, because one wait for an epoch may
     * advance the epoch by two. */
    assert_in_range(waited, 4, 7);
    waited = count_epochs_until_reuse(&b, &slow);
    assert_in_range(waited, 7, 10);
    close_bench(&b);
}


/* The address of an object and a type of another class. */
static int free_as_wide(far_task *t, bench *b) {
    const far_object *object = b->arg;
    far_free(t, &b->index, WIDE, object->addr, 512);
    return 0;
}


static int count_wide_at(far_task *t, bench *b) {
    const far_object *used = b->arg;
    far_object object;
    int count = 0, err = 0;
    for (unsigned i = 0; i < 50 && err == 0; i++) {
        err = far_alloc(t, &b->index, WIDE, 512, FAR_NODE_ANY, 0, &object);
        count += err == 0 && object.addr == used->addr;
    }
    return err < 0 ? err : count;
}


static int alloc_plain(far_task *t, bench *b) {
    return far_alloc(t, &b->index, PLAIN, 512, FAR_NODE_ANY, 0, b->arg);
}


/* An index frees an address that it read from a damaged word: another object is there, of the same size and of another
 * type. That object stays in use. Fails without the class check in find_counting_slab (store.c). */
TEST(an_object_is_freed_only_with_its_own_class) {
    bench b;
    far_object used;
    open_bench(&b, "local:8M", &kind);
    assert_int_equal(bench_call(&b, b.session, alloc_plain, &used), 0);
    assert_int_equal(bench_call(&b, b.session, free_as_wide, &used), 0);
    assert_int_equal(bench_call(&b, b.session, count_wide_at, &used), 0);
    close_bench(&b);
}


static int write_and_free_stable(far_task *t, bench *b) {
    far_object *object = b->arg;
    int err = far_alloc(t, &b->index, STABLE, 256, 0, 0, object);
    if (err == 0)
        err = far_write_word(t, object->addr, 76);
    far_free(t, &b->index, STABLE, object->addr, 256);
    return err;
}


static int find_stable(far_task *t, bench *b) {
    far_object *wanted = b->arg, object;
    for (unsigned i = 0; i < 4000; i++) {
        assert_int_equal(far_alloc(t, &b->index, STABLE, 256, 0, 0, &object), 0);
        if (object.addr == wanted->addr) {
            uint64_t word = 0;
            assert_true(object.used);
            assert_int_equal(far_read_word(t, object.addr, &word), 0);
            assert_int_equal(word, 76); /* memory of a stable type keeps its contents */
            return 0;
        }
    }
    return FAR_ERR_NOT_FOUND;
}


/* A session frees an object of a stable type and is closed. Another session of the handle gets the object with its old
 * contents. */
TEST(stable_memory_of_a_closed_session_keeps_its_contents) {
    bench b;
    open_bench(&b, "sim:seed=1,size=8M", &kind);
    far_session *other;
    far_object object;
    uint64_t used = bench_stat(&b).used;
    assert_int_equal(far_session_open(b.pool, &other), 0);
    assert_int_equal(bench_call(&b, other, write_and_free_stable, &object), 0);
    far_session_close(other);
    /* The 64 bytes allow for the end of the slab, which no object uses. */
    assert_true(bench_stat(&b).used <= used + 64);
    assert_int_equal(bench_call(&b, b.session, find_stable, &object), 0);
    close_bench(&b);
}


/* ---- Several sessions ---- */

typedef struct swap {
    far_object objects[200];
} swap;


static int alloc_swap(far_task *t, bench *b) {
    swap *s = b->arg;
    for (unsigned i = 0; i < 200; i++)
        assert_int_equal(far_alloc(t, &b->index, PLAIN, 512, FAR_NODE_ANY, 0, &s->objects[i]), 0);
    return 0;
}


static int retire_swap(far_task *t, bench *b) {
    swap *s = b->arg;
    for (unsigned i = 0; i < 200; i++)
        far_retire(t, &b->index, PLAIN, s->objects[i].addr, 512);
    return 0;
}


/* One session allocates, a second one retires the objects and is closed. After many rounds all memory has been reused,
 * and nothing is left retired. */
TEST(objects_retired_by_other_sessions_are_reused) {
    bench b;
    open_bench(&b, "sim:seed=1,size=4M", &kind);
    uint64_t used = bench_stat(&b).used;
    far_session *other;
    swap s;
    /* The rounds together allocate several times the size of the pool, so they succeed only if retired memory is
     * reused. */
    for (unsigned round = 0; round < 100; round++) {
        assert_int_equal(bench_call(&b, b.session, alloc_swap, &s), 0);
        assert_int_equal(far_session_open(b.pool, &other), 0);
        assert_int_equal(bench_call(&b, other, retire_swap, &s), 0);
        far_session_close(other);
        if (round % 4 == 3)
            bench_epochs(&b, 6);
    }
    bench_epochs(&b, 12);
    far_pool_usage now = bench_stat(&b);
    assert_int_equal(now.retired, 0);
    assert_int_equal(now.used, used);
    close_bench(&b);
}


typedef struct worker {
    bench *b;
    unsigned number;
    uint64_t problems;
} worker;

enum { HELD = 64, ROUNDS = 60, STEPS = 100 };

typedef struct holding {
    worker *w;
    far_random random;
    struct {
        far_object object;
        unsigned type;
        uint64_t size;
        bool there;
    } held[HELD];
} holding;


/* Allocates and frees at random. The first and the last word of every object contain a value of the task that holds the
 * object, so that a second holder of the same memory is noticed. */
static int churn(far_task *t, void *arg) {
    holding *h = arg;
    far_index *index = &h->w->b->index;
    int err = far_pin_take(t);
    for (unsigned i = 0; i < STEPS && err == 0; i++) {
        unsigned k = (unsigned)far_random_below(&h->random, HELD);
        if (h->held[k].there) {
            uint64_t words[2];
            far_object *o = &h->held[k].object;
            far_read(t, o->addr, &words[0], 8);
            far_read(t, o->addr + o->size - 8, &words[1], 8);
            err = far_wait(t);
            h->w->problems += words[0] != (o->addr ^ h->w->number) || words[1] != (o->addr ^ h->w->number);
            h->held[k].there = false;
            if (far_random_chance(&h->random, 1, 2))
                far_retire(t, index, h->held[k].type, o->addr, h->held[k].size);
            else
                far_free(t, index, h->held[k].type, o->addr, h->held[k].size);
            continue;
        }
        unsigned type = (unsigned)far_random_below(&h->random, 4);
        uint64_t size = 16 + 16 * far_random_below(&h->random, far_random_chance(&h->random, 1, 20) ? 3000 : 40);
        err = far_alloc(t, index, type, size, FAR_NODE_ANY, 0, &h->held[k].object);
        if (err == FAR_ERR_NO_MEMORY) {
            err = 0;
            continue;
        }
        if (err < 0)
            break;
        h->held[k].there = true;
        h->held[k].type = type;
        h->held[k].size = size;
        uint64_t mark = h->held[k].object.addr ^ h->w->number;
        far_write(t, h->held[k].object.addr, &mark, 8);
        far_write(t, h->held[k].object.addr + h->held[k].object.size - 8, &mark, 8);
        err = far_wait(t);
    }
    far_pin_drop(t);
    return err;
}


static int retire_all_held(far_task *t, void *arg) {
    holding *h = arg;
    int err = far_pin_take(t);
    for (unsigned k = 0; k < HELD && err == 0; k++)
        if (h->held[k].there)
            far_retire(t, &h->w->b->index, h->held[k].type, h->held[k].object.addr, h->held[k].size);
    far_pin_drop(t);
    return err;
}


static void *work_thread(void *arg) {
    worker *w = arg;
    holding *h = calloc(1, sizeof(*h));
    h->w = w;
    far_random_seed(&h->random, w->number);
    far_session *s = NULL;
    for (unsigned round = 0; round < ROUNDS; round++) {
        if (!s && far_session_open(w->b->pool, &s) < 0) {
            w->problems++;
            break;
        }
        w->problems += far_session_call(s, FAR_STATS_OTHER, false, churn, h) < 0;
        if (round % 10 == 9) {
            far_session_close(s);
            s = NULL;
        }
    }
    if (!s && far_session_open(w->b->pool, &s) < 0)
        w->problems++;
    else
        w->problems += far_session_call(s, FAR_STATS_OTHER, false, retire_all_held, h) < 0;
    far_session_close(s);
    free(h);
    return NULL;
}


/* Four threads allocate and free at random in sessions that they open and close. No object has two holders at a time,
 * and at the end the used bytes are as at the beginning. */
TEST(threads_never_get_the_same_memory_and_nothing_leaks) {
    bench b;
    open_bench(&b, "local:2x8M", &kind);
    uint64_t used = bench_stat(&b).used;
    enum { WORKERS = 4 };
    pthread_t threads[WORKERS];
    worker workers[WORKERS];
    for (unsigned i = 0; i < WORKERS; i++) {
        workers[i] = (worker){&b, i + 1, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, work_thread, &workers[i]), 0);
    }
    for (unsigned i = 0; i < WORKERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].problems, 0);
    }
    far_pool_usage now = bench_stat(&b);
    /* The margin of 5 % is for the ends of slabs of stable types, which are not released. */
    const uint64_t most = used + now.total / 20;
    /* Housekeeping frees the retired objects while this loop waits. */
    for (unsigned i = 0; i < 10000 && (now.retired > 0 || now.used > most); i++) {
        bench_epochs(&b, 1);
        now = bench_stat(&b);
    }
    assert_int_equal(now.retired, 0);
    assert_true(now.used <= most);
    close_bench(&b);
}
