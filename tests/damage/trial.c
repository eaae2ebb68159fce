/* The implementation of trial.h: the calls on a damaged pool, and the expected results. */
#define _GNU_SOURCE /* for memmem */
#include "trial.h"
#include "client/client.h"
#include "client/end_client.h"
#include "client/op.h"
#include "client/snapshot.h"

#include <string.h>

#define PROBLEMS_MAX 1000

bool trial_is_verbose, trial_has_sums;
static uint64_t most_verbs[2];

/* One damage of a pool and its consequences. */
typedef struct trial {
    const scene *scene;
    uint64_t seed;
    far_random random;
    damage damage;
    far_pool *pool;
    far_session *session;
    far_index *index;
    bool versions[SCENE_NUMBERS]; /* true for keys that this trial has written again, so they may have a second value */
    int problems;                 /* number of problems that the last check has reported */
    bool sound;                   /* true if the first check has reported no problem */
    bool hung;                    /* set when a call has exceeded its limit of verbs; the trial then ends */
    unsigned failures;
    char stumbled[256]; /* text of the first error FAR_ERR_CORRUPT of an operation since the last check */
} trial;


static void report_failure(trial *t, const char *what, const char *words) {
    printf("%s%s%s seed %llu: %s: %s [%s]\n", t->scene->kind, t->scene->fixed ? " 8/8" : "",
           t->scene->crashed ? " crashed" : "", (unsigned long long)t->seed, what, words, t->damage.words);
    t->failures++;
}


/* Checks the result of a call that began with rig_limit_verbs, and returns that result. */
static int64_t check_call_result(trial *t, int64_t result, const char *call) {
    bool all = result != FAR_ERR_CORRUPT && rig_posted_verbs() > TRIAL_VERBS_OF_OP;
    if (rig_posted_verbs() > most_verbs[all])
        most_verbs[all] = rig_posted_verbs();
    if (trial_is_verbose)
        printf("  %s: %lld %s (%llu verbs)\n", call, (long long)result, result < 0 ? far_last_error() : "",
               (unsigned long long)rig_posted_verbs());
    if (rig_limit_is_exceeded() && !t->hung) {
        t->hung = true;
        report_failure(t, "hangs", call);
    }
    if (result == FAR_ERR_CORRUPT && t->stumbled[0] == 0)
        snprintf(t->stumbled, sizeof(t->stumbled), "%s: %s", call, far_last_error());
    if (result == FAR_ERR_CORRUPT && far_last_error()[0] == 0)
        report_failure(t, "error without a message", call);
    if (!t->hung && (result == FAR_ERR_FENCED || result == FAR_ERR_UNREACHABLE) &&
        !strstr(far_last_error(), "declared dead") && !strstr(far_last_error(), "declared failed"))
        report_failure(t, "lost its session", call);
    return result;
}


#define OP(t, call)  (rig_limit_verbs(TRIAL_VERBS_OF_OP), check_call_result(t, call, #call))
#define ALL(t, call) (rig_limit_verbs(TRIAL_VERBS_OF_ALL), check_call_result(t, call, #call))


static int count_problem(void *ctx, const char *what) {
    trial *t = ctx;
    if (trial_is_verbose)
        printf("    problem: %s\n", what);
    return ++t->problems >= PROBLEMS_MAX;
}


/* ---- Values ---- */

static bool is_version(const trial *t, unsigned number, unsigned version, const char *value, size_t bytes) {
    char right[SCENE_VALUE_MAX];
    size_t right_bytes = scene_value(t->scene, number, version, right);
    return bytes == right_bytes && memcmp(value, right, bytes) == 0;
}


/* Returns whether the damage may have changed the bytes of this key or value, which only a checksum can detect. */
static bool value_may_be_damaged(const trial *t, unsigned number) {
    if (trial_has_sums)
        return false;
    char data[SCENE_VALUE_MAX], key[SCENE_KEY_BYTES];
    size_t key_bytes = scene_key(t->scene, number, key);
    bool hit = damage_overlaps(&t->damage, key, key_bytes);
    for (unsigned version = 0; version < 2; version++)
        hit |= damage_overlaps(&t->damage, data, scene_value(t->scene, number, version, data));
    return hit;
}


/* Returns true if the value belongs to another key than the one under which it was found, and the damage may have
 * changed that other key into this one. This is possible if the overwritten bytes contained the last three bytes of the
 * other key. They are searched for in reversed order, because indexes store parts of keys as little-endian numbers. */
static bool value_is_of_renamed_key(const trial *t, const char *value, size_t bytes) {
    for (unsigned i = 0; i < SCENE_NUMBERS && !trial_has_sums; i++) {
        char key[SCENE_KEY_BYTES], end[3];
        size_t key_bytes = scene_key(t->scene, i, key);
        if (!is_version(t, i, 0, value, bytes) && !is_version(t, i, 1, value, bytes))
            continue;
        for (unsigned k = 0; k < sizeof(end); k++)
            end[k] = key[key_bytes - 1 - k];
        return memmem(t->damage.before, t->damage.before_bytes, end, sizeof(end)) != NULL;
    }
    return false;
}


static void check_value(trial *t, unsigned number, const char *value, size_t bytes, const char *call) {
    bool ever = number < SCENE_KEYS || t->versions[number] || t->scene->crashed;
    if (ever && (is_version(t, number, 0, value, bytes) || is_version(t, number, 1, value, bytes)))
        return;
    if (!value_may_be_damaged(t, number) && !value_is_of_renamed_key(t, value, bytes))
        report_failure(t, "returns a value that the key never had", call);
}


static void get_and_check(trial *t, unsigned number) {
    char key[SCENE_KEY_BYTES], value[FAR_VALUE_MAX];
    size_t key_bytes = scene_key(t->scene, number, key), bytes = 0;
    if (!t->hung && OP(t, far_get(t->session, t->index, key, key_bytes, value, sizeof(value), &bytes)) == FAR_OK)
        check_value(t, number, value, bytes, "get");
}


static void write_one(trial *t, unsigned number, far_op_kind how) {
    char key[SCENE_KEY_BYTES], value[SCENE_VALUE_MAX];
    size_t key_bytes = scene_key(t->scene, number, key), bytes = scene_value(t->scene, number, 1, value);
    if (t->hung)
        return;
    t->versions[number] = true;
    switch (how) {
    case FAR_OP_INSERT:
        OP(t, far_insert(t->session, t->index, key, key_bytes, value, bytes));
        break;
    case FAR_OP_UPDATE:
        OP(t, far_update(t->session, t->index, key, key_bytes, value, bytes));
        break;
    case FAR_OP_PUT:
        OP(t, far_put(t->session, t->index, key, key_bytes, value, bytes));
        break;
    default:
        OP(t, far_delete(t->session, t->index, key, key_bytes));
    }
}


static int check_pair(void *ctx, const void *key, size_t key_bytes, const void *value, size_t bytes) {
    trial *t = ctx;
    for (unsigned i = 0; i < SCENE_NUMBERS; i++) {
        if (!scene_has_key(t->scene, i, key, key_bytes))
            continue;
        check_value(t, i, value, bytes, "scan");
        return 0;
    }
    if (trial_has_sums)
        report_failure(t, "returns a key that was never written", "scan");
    return 0; /* The damage has created this key, so any value is allowed. */
}


static void scan_and_check(trial *t) {
    char from[SCENE_KEY_BYTES];
    size_t from_bytes = scene_key(t->scene, 1, from);
    if (t->hung)
        return;
    /* The keys of shard have no order, so its pairs are listed without a scan. */
    if (strcmp(t->scene->kind, "shard") == 0) {
        ALL(t, far_index_pairs(t->session, t->index, check_pair, t));
        return;
    }
    ALL(t, far_scan(t->session, t->index, NULL, 0, NULL, 0, 0, check_pair, t));
    if (!t->hung)
        OP(t, far_scan(t->session, t->index, from, from_bytes, NULL, 0, 10, check_pair, t));
}


/* ---- Many operations in flight ---- */

enum { GETS = 8, SUBMITTED = GETS + 5 };

typedef struct flight {
    far_op op;
    unsigned number;
    char key[SCENE_KEY_BYTES], value[FAR_VALUE_MAX];
} flight;


static void prepare_operation(trial *t, flight *f, far_op_kind kind, unsigned number) {
    f->number = number;
    f->op = (far_op){.kind = kind, .index = t->index, .key = f->key, .value = f->value, .capacity = sizeof(f->value)};
    f->op.key_len = scene_key(t->scene, number, f->key);
    if (kind == FAR_OP_SCAN) {
        f->op.each = check_pair;
        f->op.each_ctx = t;
        f->op.limit = 30;
    } else if (kind != FAR_OP_GET) {
        t->versions[number] = true;
        f->op.value_len = scene_value(t->scene, number, 1, f->value);
    }
}


/* Submits operations of every kind at once. */
static void submit_many(trial *t) {
    static flight flights[SUBMITTED];
    static const far_op_kind others[] = {FAR_OP_UPDATE, FAR_OP_INSERT, FAR_OP_PUT, FAR_OP_DELETE, FAR_OP_SCAN};
    far_op *taken[SUBMITTED], *done[SUBMITTED];
    if (t->hung)
        return;
    for (unsigned i = 0; i < GETS; i++)
        prepare_operation(t, &flights[i], FAR_OP_GET, (unsigned)far_random_below(&t->random, SCENE_KEYS + 8));
    for (unsigned i = GETS; i < SUBMITTED; i++)
        prepare_operation(t, &flights[i], others[i - GETS], (unsigned)((t->seed + 37 * i) % (SCENE_KEYS + 8)));
    for (unsigned i = 0; i < SUBMITTED; i++)
        taken[i] = &flights[i].op;
    int count = (int)OP(t, far_submit(t->session, taken, SUBMITTED));
    if (count > 0)
        ALL(t, far_reap(t->session, done, SUBMITTED, (size_t)count));
    for (int i = 0; i < count; i++) {
        const far_op *op = &flights[i].op;
        if (op->result == FAR_ERR_CORRUPT && t->stumbled[0] == 0)
            snprintf(t->stumbled, sizeof(t->stumbled), "submitted: %s", far_op_error(t->session, op));
        if (op->kind == FAR_OP_GET && op->result == FAR_OK)
            check_value(t, flights[i].number, op->value, op->value_len, "submitted get");
    }
}


/* ---- The calls ---- */

static int ignore_index(void *ctx, const char *name, const char *kind) {
    (void)ctx, (void)name, (void)kind;
    return 0;
}


static bool open_pool_and_index(trial *t) {
    if (ALL(t, far_pool_open(RIG_URI, &rig_options, &t->pool)) < 0 || OP(t, far_session_open(t->pool, &t->session)) < 0)
        return false;
    return OP(t, far_index_open(t->session, "index", &t->index)) >= 0;
}


static void poll_some(trial *t, unsigned count) {
    for (unsigned i = 0; i < count && !t->hung; i++)
        OP(t, far_pool_poll(t->pool));
}


static void run_check(trial *t, int repair) {
    t->problems = 0;
    if (t->hung)
        return;
    int64_t found = repair ? ALL(t, far_pool_check(t->session, 1, count_problem, t))
                           : ALL(t, far_pool_check(t->session, 0, count_problem, t));
    if (found < 0)
        t->problems++;
}


static int ignore_client(void *ctx, const far_client_info *client) {
    (void)ctx, (void)client;
    return 0;
}


static void run_inspections(trial *t) {
    far_pool_usage pool_usage;
    far_usage usage;
    far_snapshot survey;
    if (t->session && !t->hung)
        OP(t, far_index_list(t->session, ignore_index, NULL));
    if (t->session && !t->hung)
        ALL(t, far_pool_stat(t->session, &pool_usage));
    if (t->session && !t->hung) {
        ALL(t, far_snapshot_take(t->session, &survey));
        far_snapshot_free(&survey);
    }
    if (t->session && !t->hung)
        OP(t, far_pool_clients(t->session, ignore_client, NULL));
    if (t->index && !t->hung)
        ALL(t, far_index_usage(t->session, t->index, &usage));
    if (t->index && !t->hung)
        ALL(t, far_index_check(t->session, t->index, count_problem, t));
}


static void run_operations(trial *t) {
    static const far_op_kind writes[] = {FAR_OP_UPDATE, FAR_OP_INSERT, FAR_OP_PUT, FAR_OP_DELETE};
    for (unsigned i = 0; i < 12; i++)
        get_and_check(t, (unsigned)far_random_below(&t->random, SCENE_KEYS + 8));
    submit_many(t);
    scan_and_check(t);
    for (unsigned i = 0; i < 16; i++)
        write_one(t, (unsigned)far_random_below(&t->random, SCENE_KEYS + (i % 4 == 3 ? 0 : 32)), writes[i % 4]);
    poll_some(t, 4);
}


/* Reports a failure if check has found the pool sound, or has repaired it, and an operation has failed with
 * FAR_ERR_CORRUPT since. */
static void expect_no_corruption(trial *t, bool sound, const char *since) {
    if (sound && t->stumbled[0] && !t->hung)
        report_failure(t, since, t->stumbled);
    t->stumbled[0] = 0;
}


static void expect_success(trial *t, int64_t result, const char *call) {
    char words[320];
    snprintf(words, sizeof(words), "%s: %s", call, far_last_error());
    if (result < 0 && !t->hung)
        report_failure(t, "check reports no problem, but a call fails", words);
}


#define MUST(t, call) (rig_limit_verbs(TRIAL_VERBS_OF_ALL), expect_success(t, check_call_result(t, call, #call), #call))


/* A sound pool must accept a new index. */
static void use_new_index(trial *t) {
    far_index *index = NULL;
    char value[8];
    MUST(t, far_index_create(t->session, "another", t->scene->kind, t->scene->options, &index));
    if (!index)
        return;
    MUST(t, far_put(t->session, index, "some key", 8, "a value.", 8));
    MUST(t, far_get(t->session, index, "some key", 8, value, sizeof(value), NULL));
    far_index_close(index);
    MUST(t, far_index_drop(t->session, "another"));
}


static void drop_index_and_check(trial *t, bool repaired) {
    if (repaired)
        use_new_index(t);
    if (!t->hung)
        ALL(t, far_index_drop(t->session, "index"));
    expect_no_corruption(t, repaired, "repaired, but");
    run_check(t, 1);
    t->sound = t->problems == 0;
    if (t->sound && !repaired && !t->hung)
        use_new_index(t);
}


static void close_index(trial *t) {
    if (!t->index)
        return;
    rig_limit_verbs(TRIAL_VERBS_OF_ALL);
    far_index_close(t->index);
    check_call_result(t, 0, "far_index_close");
    t->index = NULL;
}


static void close_pool(trial *t) {
    rig_limit_verbs(TRIAL_VERBS_OF_ALL);
    far_session_close(t->session);
    check_call_result(t, 0, "far_session_close");
    rig_limit_verbs(TRIAL_VERBS_OF_ALL);
    far_pool_close(t->pool);
    check_call_result(t, 0, "far_pool_close");
    t->session = NULL;
    t->pool = NULL;
}


/* Closes and opens the index again, because the damage may have hit words that are read only when an index is opened.
 */
static void reopen_index(trial *t) {
    close_index(t);
    if (!t->hung)
        OP(t, far_index_open(t->session, "index", &t->index));
}


/* Opens and closes another handle, which must succeed on a sound pool. */
static void reopen_pool(trial *t) {
    MUST(t, far_pool_open(RIG_URI, &rig_options, &t->pool));
    if (t->pool)
        MUST(t, far_session_open(t->pool, &t->session));
    close_pool(t);
}


/* Runs every call, then a repair, then the operations again. Returns whether check reports that everything is repaired.
 */
static bool use_and_repair(trial *t, bool opened) {
    run_inspections(t);
    if (opened)
        run_operations(t);
    if (opened && t->seed % 4 == 1)
        reopen_index(t);
    expect_no_corruption(t, t->sound, "check reports no problem, but");
    if (t->session)
        run_check(t, 1);
    bool repaired = t->session && t->problems == 0;
    t->stumbled[0] = 0;
    if (opened)
        run_operations(t);
    expect_no_corruption(t, repaired, "repaired, but");
    return repaired;
}


unsigned trial_run(const scene *s, uint64_t seed, trial_harm harm, const void *arg) {
    trial t = {.scene = s, .seed = seed};
    far_random_seed(&t.random, seed);
    rig_seed(seed);
    rig_restore_pool(s->image);
    rig_limit_verbs(UINT64_MAX);
    bool opened = false, in_use = seed % 2;
    if (in_use && (opened = open_pool_and_index(&t)))
        run_operations(&t);
    harm(s, &t.random, &t.damage, arg);
    if (trial_is_verbose)
        printf("%s seed %llu: %s\n", s->kind, (unsigned long long)seed, t.damage.words);
    t.stumbled[0] = 0;
    if (!in_use)
        opened = open_pool_and_index(&t);
    if (t.session)
        run_check(&t, 0);
    t.sound = t.session && t.problems == 0;
    bool repaired = use_and_repair(&t, opened);
    close_index(&t);
    t.sound = false;
    if (t.session && !t.hung)
        drop_index_and_check(&t, repaired);
    close_pool(&t);
    if (t.sound && !t.hung)
        reopen_pool(&t);
    return t.failures;
}


uint64_t trial_most_verbs(bool of_all) {
    return most_verbs[of_all];
}
