/* Tests of allocations that fail. For each n, the n-th allocation of a run fails, or all allocations from the n-th on.
 * The tests prove that every call then either fails with FAR_ERR_NO_MEMORY or succeeds, that the call ends and leaks no
 * memory of the process, and that the pool is sound afterwards.
 *
 * test_allocations [--kind KIND] [--every STEP]      with STEP 1 each allocation fails once */
#include "base/error.h"
#include "client/client.h"
#include "client/end_client.h"
#include "client/op.h"
#include "client/snapshot.h"
#include "scene.h"
#include "test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define EVERY_DEFAULT 5
#define VERBS_MAX     300000 /* largest number of verbs of one call */

static const char *const kinds[] = {"chime", "dart", "dolphin", "shard", "smart"};
static const char *only_kind;
static unsigned every = EVERY_DEFAULT;

static struct {
    /* `count`: number of allocations so far; `fail_at`: number of the allocation that fails; 0: none */
    uint64_t count, fail_at;
    bool from_then_on;
    int64_t live; /* number of blocks of the process's heap that are allocated and not freed */
} heap;


/* ---- The heap ---- */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
int __real_posix_memalign(void **block, size_t align, size_t bytes);
void __real_free(void *block);
void *__real_far_pages_alloc(size_t bytes);
void __real_far_pages_free(void *pages, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
int __wrap_posix_memalign(void **block, size_t align, size_t bytes);
char *__wrap_strdup(const char *text);
void __wrap_free(void *block);
void *__wrap_far_pages_alloc(size_t bytes);
void __wrap_far_pages_free(void *pages, size_t bytes);


static bool allocation_must_fail(void) {
    heap.count++;
    return heap.fail_at && (heap.from_then_on ? heap.count >= heap.fail_at : heap.count == heap.fail_at);
}


static void *count_live_block(void *block) {
    heap.live += block != NULL;
    return block;
}


void *__wrap_malloc(size_t bytes) {
    return allocation_must_fail() ? NULL : count_live_block(__real_malloc(bytes));
}


void *__wrap_calloc(size_t count, size_t bytes) {
    return allocation_must_fail() ? NULL : count_live_block(__real_calloc(count, bytes));
}


void *__wrap_aligned_alloc(size_t align, size_t bytes) {
    return allocation_must_fail() ? NULL : count_live_block(__real_aligned_alloc(align, bytes));
}


int __wrap_posix_memalign(void **block, size_t align, size_t bytes) {
    int err = allocation_must_fail() ? ENOMEM : __real_posix_memalign(block, align, bytes);
    heap.live += err == 0;
    return err;
}


char *__wrap_strdup(const char *text) {
    char *copy = __wrap_malloc(strlen(text) + 1);
    return copy ? strcpy(copy, text) : NULL;
}


void *__wrap_realloc(void *old, size_t bytes) {
    if (allocation_must_fail())
        return NULL;
    void *block = __real_realloc(old, bytes);
    heap.live += !old && block;
    return block;
}


void __wrap_free(void *block) {
    heap.live -= block != NULL;
    __real_free(block);
}


void *__wrap_far_pages_alloc(size_t bytes) {
    return allocation_must_fail() ? NULL : count_live_block(__real_far_pages_alloc(bytes));
}


void __wrap_far_pages_free(void *pages, size_t bytes) {
    heap.live -= pages != NULL;
    __real_far_pages_free(pages, bytes);
}


/* ---- The calls ---- */

typedef struct run {
    const scene *scene;
    far_pool *pool;
    far_session *session;
    far_index *index, *made;
    unsigned wrong;
} run;


static int64_t check_call_result(run *r, int64_t result, int also, const char *call) {
    const char *words = result < 0 ? far_last_error() : "";
    bool right = result >= 0 || result == also ||
                 (result == FAR_ERR_NO_MEMORY && (strstr(words, "memory") || strstr(words, "room")));
    if (right && !rig_limit_is_exceeded())
        return result;
    r->wrong++;
    print_error("%s, allocation %llu%s fails: %s returned %lld (%s)%s\n", r->scene->kind,
                (unsigned long long)heap.fail_at, heap.from_then_on ? " and all later" : "", call, (long long)result,
                result < 0 ? far_last_error() : "", rig_limit_is_exceeded() ? ", and did not end" : "");
    return result;
}

/* Runs a call and checks its result. `also` is a further error code that this call may return; 0: none. */
#define CALL(r, call, also) (far_fail_clear(), rig_limit_verbs(VERBS_MAX), check_call_result(r, call, also, #call))
#define CLOSE(r, call)      (rig_limit_verbs(VERBS_MAX), (call), check_call_result(r, 0, 0, #call))


static int ignore_problem(void *ctx, const char *what) {
    (void)ctx, (void)what;
    return 0;
}


static int ignore_pair(void *ctx, const void *key, size_t key_bytes, const void *value, size_t bytes) {
    (void)ctx, (void)key, (void)key_bytes, (void)value, (void)bytes;
    return 0;
}


static int ignore_name(void *ctx, const char *name, const char *kind) {
    (void)ctx, (void)name, (void)kind;
    return 0;
}


/* Submits operations of every kind on one key. */
static void submit_operations(run *r, const char *key, size_t key_bytes) {
    enum { SUBMITTED = FAR_OP_SCAN + 1 };
    char values[SUBMITTED][SCENE_VALUE_MAX];
    far_op ops[SUBMITTED], *taken[SUBMITTED], *done[SUBMITTED];
    for (unsigned i = 0; i < SUBMITTED; i++) {
        ops[i] = (far_op){.kind = (far_op_kind)i, .index = r->index, .key = key, .key_len = key_bytes};
        ops[i].value = values[i];
        ops[i].value_len = scene_value(r->scene, i, 0, values[i]);
        ops[i].capacity = SCENE_VALUE_MAX;
        ops[i].limit = 20;
        ops[i].each = ignore_pair;
        taken[i] = &ops[i];
    }
    int count = (int)CALL(r, far_submit(r->session, taken, SUBMITTED), 0);
    if (count > 0)
        CALL(r, far_reap(r->session, done, SUBMITTED, (size_t)count), 0);
    for (int i = 0; i < count; i++)
        /* Each submitted operation has an error message of its own, which is checked here. */
        if (ops[i].result == FAR_ERR_NO_MEMORY)
            assert_string_not_equal(far_op_error(r->session, &ops[i]), "");
        else if (ops[i].result != FAR_ERR_EXISTS && ops[i].result != FAR_ERR_NOT_FOUND)
            check_call_result(r, ops[i].result, FAR_ERR_UNSUPPORTED, "a submitted operation");
}


static void run_operations(run *r) {
    char key[SCENE_KEY_BYTES], value[SCENE_VALUE_MAX];
    for (unsigned i = 0; i < 3; i++) {
        size_t key_bytes = scene_key(r->scene, SCENE_KEYS + i, key), bytes = scene_value(r->scene, i, 0, value);
        CALL(r, far_insert(r->session, r->index, key, key_bytes, value, bytes), 0);
        CALL(r, far_delete(r->session, r->index, key, key_bytes), FAR_ERR_NOT_FOUND);
        key_bytes = scene_key(r->scene, 5 * i, key);
        CALL(r, far_put(r->session, r->index, key, key_bytes, value, bytes), 0);
        CALL(r, far_update(r->session, r->index, key, key_bytes, value, bytes), 0);
        CALL(r, far_get(r->session, r->index, key, key_bytes, value, sizeof(value), NULL), 0);
        submit_operations(r, key, key_bytes);
    }
    CALL(r, far_scan(r->session, r->index, NULL, 0, NULL, 0, 20, ignore_pair, NULL), FAR_ERR_UNSUPPORTED);
}


static int ignore_client(void *ctx, const far_client_info *client) {
    (void)ctx, (void)client;
    return 0;
}


static void call_survey(run *r) {
    far_snapshot all;
    CALL(r, far_snapshot_take(r->session, &all), 0);
    far_snapshot_free(&all);
}


static void run_inspections(run *r) {
    far_pool_usage pool_usage;
    far_usage usage;
    far_index *again = NULL;
    call_survey(r);
    CALL(r, far_pool_clients(r->session, ignore_client, NULL), 0);
    CALL(r, far_index_pairs(r->session, r->index, ignore_pair, NULL), 0);
    CALL(r, far_index_open_or_create(r->session, "index", r->scene->kind, NULL, &again), 0);
    CLOSE(r, far_index_close(again));
    CALL(r, far_index_list(r->session, ignore_name, NULL), 0);
    CALL(r, far_pool_stat(r->session, &pool_usage), 0);
    CALL(r, far_index_usage(r->session, r->index, &usage), 0);
    CALL(r, far_index_check(r->session, r->index, ignore_problem, NULL), 0);
    CALL(r, far_pool_check(r->session, 1, ignore_problem, NULL), 0);
}


/* Runs every call, as far as the earlier calls have provided its arguments. */
static void run_all_calls(run *r) {
    if (CALL(r, far_pool_open(RIG_URI, &rig_options, &r->pool), 0) >= 0 &&
        CALL(r, far_session_open(r->pool, &r->session), 0) >= 0) {
        CALL(r, far_index_open(r->session, "index", &r->index), 0);
        CALL(r, far_index_create(r->session, "other", r->scene->kind, NULL, &r->made), 0);
        if (r->index) {
            run_operations(r);
            run_inspections(r);
        }
        for (unsigned i = 0; i < 4; i++)
            CALL(r, far_pool_poll(r->pool), 0);
        CLOSE(r, far_index_close(r->made));
        if (r->made)
            CALL(r, far_index_drop(r->session, "other"), 0);
        CLOSE(r, far_index_close(r->index));
    }
    CLOSE(r, far_session_close(r->session));
    CLOSE(r, far_pool_close(r->pool));
}


static int print_problem(void *ctx, const char *what) {
    print_error("%s\n", what);
    ++*(unsigned *)ctx;
    return 0;
}


/* Repairs the pool after the failures. Returns the number of problems that remain, which must be 0. */
static unsigned repair_and_count_problems(void) {
    far_pool *pool = NULL;
    far_session *session = NULL;
    unsigned problems = 0;
    rig_limit_verbs(UINT64_MAX);
    if (far_pool_open(RIG_URI, &rig_options, &pool) < 0 || far_session_open(pool, &session) < 0 ||
        far_pool_check(session, 1, print_problem, &problems) < 0)
        problems++;
    far_session_close(session);
    far_pool_close(pool);
    return problems;
}


static unsigned run_with_failure(const scene *s, uint64_t n, bool from_then_on) {
    run r = {.scene = s};
    rig_seed(n);
    rig_restore_pool(s->image);
    int64_t live = heap.live;
    heap.count = 0;
    heap.from_then_on = from_then_on;
    heap.fail_at = n;
    run_all_calls(&r);
    uint64_t count = heap.count;
    heap.fail_at = 0;
    if (heap.live != live) {
        print_error("%s, allocation %llu%s fails: %lld blocks are leaked\n", s->kind, (unsigned long long)n,
                    from_then_on ? " and all later" : "", (long long)(heap.live - live));
        r.wrong++;
    }
    r.wrong += repair_and_count_problems();
    assert_true(n == 0 || n <= count); /* The run must have reached the allocation that was to fail. */
    return r.wrong;
}


static uint64_t count_allocations(const scene *s) {
    assert_int_equal(run_with_failure(s, 0, false), 0);
    run r = {.scene = s};
    rig_restore_pool(s->image);
    heap.count = 0;
    run_all_calls(&r);
    return heap.count;
}


static unsigned fail_each_allocation(const char *kind) {
    scene s;
    unsigned wrong = 0;
    scene_make(&s, kind, "", false, 1);
    uint64_t least = count_allocations(&s);
    /* The loop ends at nine tenths of the count, because random decisions make the number of allocations differ
     * slightly between runs. */
    for (uint64_t n = 1; n < least * 9 / 10; n += every) {
        wrong += run_with_failure(&s, n, false);
        wrong += run_with_failure(&s, n + every / 2, true);
    }
    scene_free(&s);
    return wrong;
}


TEST(calls_without_memory_report_it) {
    unsigned wrong = 0;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (!only_kind || strcmp(only_kind, kinds[i]) == 0)
            wrong += fail_each_allocation(kinds[i]);
    assert_int_equal(wrong, 0);
}


TEST_ARGUMENTS(argc, argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--kind") == 0)
            only_kind = argv[i + 1];
        else if (strcmp(argv[i], "--every") == 0)
            every = (unsigned)strtoul(argv[i + 1], NULL, 10);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    return TEST_CONTINUE;
}


TEST_GROUP(rig_start, rig_end);
