/* Tests of the queues of retired objects (pool/alloc/retire.c): their chunks are freed when the objects become free,
 * and a session that closes hands its chunks over to the system session without copying them. The test program counts
 * the chunks, because it replaces the functions of base/pages.h. */
#include "alloc_rig.h"
#include "test.h"

#include "base/pages.h"

enum { OBJECTS = 20000 };

static unsigned chunks, allocations; /* number of chunks that exist, and of calls that allocated one */

void *__real_far_pages_alloc(size_t bytes);
void __real_far_pages_free(void *pages, size_t bytes);
void *__wrap_far_pages_alloc(size_t bytes);
void __wrap_far_pages_free(void *pages, size_t bytes);


void *__wrap_far_pages_alloc(size_t bytes) {
    chunks++;
    allocations++;
    return __real_far_pages_alloc(bytes);
}


void __wrap_far_pages_free(void *pages, size_t bytes) {
    assert_true(!pages || chunks > 0);
    chunks -= pages != NULL;
    __real_far_pages_free(pages, bytes);
}


/* Allocates and retires objects of 64 bytes of one type. */
static int retire_many(far_task *t, bench *b) {
    far_object object;
    for (unsigned i = 0; i < OBJECTS; i++) {
        assert_int_equal(far_alloc(t, &b->index, *(unsigned *)b->arg, 64, FAR_NODE_ANY, 0, &object), 0);
        far_retire(t, &b->index, *(unsigned *)b->arg, object.addr, 64);
    }
    return 0;
}


static unsigned chunks_for(unsigned objects) {
    return (objects + (unsigned)FAR_CHUNK_ITEMS - 1) / (unsigned)FAR_CHUNK_ITEMS;
}


/* Returns the addresses of the chunks in the queue of objects that wait for `extra` epochs more than usual, as a sum,
 * so that copied objects are noticed. */
static uintptr_t sum_of_chunks(const far_memory *m, unsigned extra, unsigned *count) {
    uintptr_t sum = 0;
    *count = 0;
    for (const far_retired_chunk *c = m->queues[extra].first; c; c = c->next, ++*count)
        sum += (uintptr_t)c;
    return sum;
}


/* A session retires many objects of two types, and its retire queues allocate many chunks of local memory for them.
 * When the epochs have passed after which these objects are free, at most one more chunk exists than before. Fails if
 * remove_chunk does not call far_pages_free. */
TEST(queues_return_their_memory) {
    bench b;
    open_bench(&b, "sim:seed=1,size=64M", &kind);
    unsigned before = chunks;
    for (unsigned round = 0; round < 3; round++) {
        assert_int_equal(bench_call(&b, b.session, retire_many, &(unsigned){PLAIN}), 0);
        assert_int_equal(bench_call(&b, b.session, retire_many, &(unsigned){SLOW}), 0);
        assert_true(chunks >= before + 2 * chunks_for(OBJECTS) - 2);
        bench_epochs(&b, 12);
        assert_int_equal(bench_stat(&b).retired, 0);
        assert_true(chunks <= before + 1);
    }
    close_bench(&b);
    assert_int_equal(chunks, 0);
}


/* A session with many retired objects is closed. The system session gets the same chunks, appended to the chunks that
 * it has, no chunk is allocated, and all objects become free after their epochs. Fails if far_queues_hand_over copies
 * the objects, or does not link the chunks. */
TEST(a_closed_session_hands_its_chunks_over) {
    bench b;
    open_bench(&b, "sim:seed=1,size=64M", &kind);
    unsigned own, moved, all;
    for (unsigned session = 0; session < 3; session++) {
        far_session *other;
        assert_int_equal(far_session_open(b.pool, &other), 0);
        assert_int_equal(bench_call(&b, other, retire_many, &(unsigned){PLAIN}), 0);
        const far_memory *system = b.pool->team.own->memory;
        uintptr_t sum = sum_of_chunks(system, 0, &own) + sum_of_chunks(other->memory, 0, &moved);
        uint64_t retired = system->retired_bytes + other->memory->retired_bytes;
        unsigned allocated = allocations;
        far_session_close(other);
        assert_true(moved >= chunks_for(OBJECTS) && allocations == allocated);
        assert_int_equal(sum_of_chunks(system, 0, &all), sum);
        assert_int_equal(all, own + moved);
        assert_int_equal(system->retired_bytes, retired);
    }
    assert_true(all >= 3 * chunks_for(OBJECTS));
    bench_epochs(&b, 12);
    assert_int_equal(bench_stat(&b).retired, 0);
    assert_true(chunks <= 3);
    close_bench(&b);
    assert_int_equal(chunks, 0);
}


static bool keep_some(far_store *s, const far_retired *item, void *ctx) {
    (void)s;
    (void)item;
    uint64_t number = (*(uint64_t *)ctx)++;
    return number >= FAR_CHUNK_ITEMS && number % 3 != 0;
}


/* A visitor removes all objects of the first chunk, and some of the others. The queue frees the empty chunk, keeps the
 * order of the other objects, and counts their bytes. */
TEST(a_visit_removes_objects_and_empty_chunks) {
    bench b;
    open_bench(&b, "sim:seed=1,size=64M", &kind);
    assert_int_equal(bench_call(&b, b.session, retire_many, &(unsigned){PLAIN}), 0);
    far_memory *m = b.session->memory;
    far_store *s = m->store;
    unsigned before, after;
    uint64_t visited = 0, objects = 0;
    sum_of_chunks(m, 0, &before);
    far_mutex_lock(&m->lock);
    pthread_mutex_lock(&s->lock);
    far_memory_visit(s, m, &(far_visit){.retired = keep_some, .ctx = &visited});
    pthread_mutex_unlock(&s->lock);
    far_mutex_unlock(&m->lock);
    sum_of_chunks(m, 0, &after);
    assert_int_equal(visited, OBJECTS);
    assert_int_equal(after, before - 1);
    for (const far_retired_chunk *c = m->queues[0].first; c; c = c->next)
        objects += c->end - c->begin;
    assert_int_equal(m->retired_bytes, 64 * objects);
    assert_int_equal(objects, OBJECTS - FAR_CHUNK_ITEMS - (OBJECTS / 3 - FAR_CHUNK_ITEMS / 3));
    close_bench(&b);
}
