/* Damaged pools: every call on them ends within bounded work, counted in verbs; none returns a value that its key never
 * had; and check names what operations stumble over.
 *
 * test_damage [--kind KIND] [--seeds FIRST..LAST] [--owners] [--checksum] [--verbose]      `make fuzz` runs
 * more of them; with --owners every damage is a word that names a live client, as if it held a lock; --checksum: only of
 * indexes with checksum=on */
#define _GNU_SOURCE /* memmem */
#include "scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEED_FIRST   301 /* a range that has all sorts of hangs that were found */
#define SEED_LAST    700 /* of each kind */
#define SUM_SEEDS    60  /* of them, with checksums */
#define VERBS_OF_OP  20000
#define VERBS_OF_ALL 200000 /* of a call that looks at the whole pool */
#define PROBLEMS_MAX 1000

static const char *const kinds[] = {"chime", "dart", "dolphin", "shard", "smart"};
static const char *const layouts[][2] = {{"", "key_size=8,value_size=8"},
                                         {"checksum=on", "key_size=8,value_size=8,checksum=on"}};

static uint64_t first_seed = SEED_FIRST, last_seed = SEED_LAST;
static const char *only_kind;
static bool verbose, owners, sums;
static bool sums_only; /* all seeds, with checksums */
static uint64_t most_verbs[2];

/* One damage and what came of it. */
typedef struct trial {
    const scene *scene;
    uint64_t seed;
    far_random random;
    damage damage;
    far_pool *pool;
    far_session *session;
    far_index *index;
    bool versions[SCENE_KEYS + 64]; /* was put again by the trial */
    int problems;                   /* of the last check */
    bool sound;                     /* the first check found nothing */
    bool hung;                      /* ... and is over */
    unsigned failures;
    char stumbled[256]; /* what an operation said */
} trial;


static void complain(trial *t, const char *what, const char *words) {
    printf("%s%s%s seed %llu: %s: %s [%s]\n", t->scene->kind, t->scene->fixed ? " 8/8" : "",
           t->scene->crashed ? " crashed" : "", (unsigned long long)t->seed, what, words, t->damage.words);
    t->failures++;
}


/* After a call that began with rig_allow. */
static int64_t ended(trial *t, int64_t result, const char *call) {
    bool all = result != FAR_ERR_CORRUPT && rig_posted() > VERBS_OF_OP;
    if (rig_posted() > most_verbs[all])
        most_verbs[all] = rig_posted();
    if (verbose)
        printf("  %s: %lld %s (%llu verbs)\n", call, (long long)result, result < 0 ? far_last_error() : "",
               (unsigned long long)rig_posted());
    if (rig_is_cut() && !t->hung) {
        t->hung = true;
        complain(t, "hangs", call);
    }
    if (result == FAR_ERR_CORRUPT && t->stumbled[0] == 0)
        snprintf(t->stumbled, sizeof(t->stumbled), "%s: %s", call, far_last_error());
    if (result == FAR_ERR_CORRUPT && far_last_error()[0] == 0)
        complain(t, "no words", call);
    if (!t->hung && (result == FAR_ERR_FENCED || result == FAR_ERR_UNREACHABLE) &&
        !strstr(far_last_error(), "declared dead"))
        complain(t, "lost its session", call);
    return result;
}


#define OP(t, call)  (rig_allow(VERBS_OF_OP), ended(t, call, #call))
#define ALL(t, call) (rig_allow(VERBS_OF_ALL), ended(t, call, #call))


static int count_problem(void *ctx, const char *what) {
    trial *t = ctx;
    if (verbose)
        printf("    problem: %s\n", what);
    return ++t->problems >= PROBLEMS_MAX;
}


/* ---- Values ---- */

static bool is_version(const trial *t, unsigned number, unsigned version, const char *value, size_t bytes) {
    char right[SCENE_VALUE_MAX];
    size_t right_bytes = scene_value(t->scene, number, version, right);
    return bytes == right_bytes && memcmp(value, right, bytes) == 0;
}


/* The damage may have changed the value's or the key's own bytes, and no checksum tells. */
static bool is_hit(const trial *t, unsigned number) {
    if (sums)
        return false;
    char data[SCENE_VALUE_MAX], key[SCENE_KEY_BYTES];
    size_t key_bytes = scene_key(t->scene, number, key);
    bool hit = damage_hit(&t->damage, key, key_bytes);
    for (unsigned version = 0; version < 2; version++)
        hit |= damage_hit(&t->damage, data, scene_value(t->scene, number, version, data));
    return hit;
}


/* The value is that of another key, whose end stood, as a number, where the damage is: it has become this key. */
static bool is_renamed(const trial *t, const char *value, size_t bytes) {
    for (unsigned i = 0; i < SCENE_KEYS + 64 && !sums; i++) {
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
    if (!is_hit(t, number) && !is_renamed(t, value, bytes))
        complain(t, "gives a value that the key never had", call);
}


static void get(trial *t, unsigned number) {
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
    for (unsigned i = 0; i < SCENE_KEYS + 64; i++) {
        char right[SCENE_KEY_BYTES];
        if (scene_key(t->scene, i, right) != key_bytes || memcmp(right, key, key_bytes) != 0)
            continue;
        check_value(t, i, value, bytes, "scan");
        return 0;
    }
    if (sums)
        complain(t, "gives a key that nobody wrote", "scan");
    return 0; /* a key that the damage made */
}


static void scan(trial *t) {
    char from[SCENE_KEY_BYTES];
    size_t from_bytes = scene_key(t->scene, 1, from);
    if (t->hung || strcmp(t->scene->kind, "shard") == 0)
        return;
    ALL(t, far_scan(t->session, t->index, NULL, 0, NULL, 0, 0, check_pair, t));
    if (!t->hung)
        OP(t, far_scan(t->session, t->index, from, from_bytes, NULL, 0, 10, check_pair, t));
}


static void get_many(trial *t) {
    enum { MANY = 8 };
    static char keys[MANY][SCENE_KEY_BYTES], values[MANY][FAR_VALUE_MAX];
    far_op ops[MANY], *taken[MANY], *done[MANY];
    unsigned numbers[MANY];
    if (t->hung)
        return;
    for (unsigned i = 0; i < MANY; i++) {
        numbers[i] = (unsigned)far_random_below(&t->random, SCENE_KEYS + 8);
        ops[i] = (far_op){.kind = FAR_OP_GET,
                          .index = t->index,
                          .key = keys[i],
                          .key_len = scene_key(t->scene, numbers[i], keys[i]),
                          .value = values[i],
                          .capacity = sizeof(values[i])};
        taken[i] = &ops[i];
    }
    int count = (int)OP(t, far_submit(t->session, taken, MANY));
    if (count > 0)
        OP(t, far_reap(t->session, done, MANY, (size_t)count));
    for (int i = 0; i < count; i++)
        if (ops[i].result == FAR_OK)
            check_value(t, numbers[i], values[i], ops[i].value_len, "submitted get");
}


/* ---- The calls ---- */

static int nothing(void *ctx, const char *name, const char *kind) {
    (void)ctx, (void)name, (void)kind;
    return 0;
}


static bool open_all(trial *t) {
    if (ALL(t, far_pool_open(RIG_URI, &rig_options, &t->pool)) < 0 || OP(t, far_session_open(t->pool, &t->session)) < 0)
        return false;
    return OP(t, far_index_open(t->session, "index", &t->index)) >= 0;
}


static void poll_some(trial *t, unsigned count) {
    for (unsigned i = 0; i < count && !t->hung; i++)
        OP(t, far_pool_poll(t->pool));
}


static void check(trial *t, int repair) {
    t->problems = 0;
    if (t->hung)
        return;
    int64_t found = repair ? ALL(t, far_pool_check(t->session, 1, count_problem, t))
                           : ALL(t, far_pool_check(t->session, 0, count_problem, t));
    if (found < 0)
        t->problems++;
}


static void look(trial *t) {
    far_pool_usage pool_usage;
    far_usage usage;
    if (t->session && !t->hung)
        OP(t, far_index_list(t->session, nothing, NULL));
    if (t->session && !t->hung)
        ALL(t, far_pool_stat(t->session, &pool_usage));
    if (t->index && !t->hung)
        ALL(t, far_index_usage(t->session, t->index, &usage));
    if (t->index && !t->hung)
        ALL(t, far_index_check(t->session, t->index, count_problem, t));
}


static void operate(trial *t) {
    static const far_op_kind writes[] = {FAR_OP_UPDATE, FAR_OP_INSERT, FAR_OP_PUT, FAR_OP_DELETE};
    for (unsigned i = 0; i < 12; i++)
        get(t, (unsigned)far_random_below(&t->random, SCENE_KEYS + 8));
    get_many(t);
    scan(t);
    for (unsigned i = 0; i < 16; i++)
        write_one(t, (unsigned)far_random_below(&t->random, SCENE_KEYS + (i % 4 == 3 ? 0 : 32)), writes[i % 4]);
    poll_some(t, 4);
}


static void close_all(trial *t) {
    if (t->index) {
        rig_allow(VERBS_OF_ALL);
        far_index_close(t->index);
        ended(t, 0, "far_index_close");
    }
    t->index = NULL;
    if (t->session && !t->hung)
        ALL(t, far_index_drop(t->session, "index"));
    if (t->session && !t->hung)
        check(t, 0);
    rig_allow(VERBS_OF_ALL);
    far_session_close(t->session);
    ended(t, 0, "far_session_close");
    rig_allow(VERBS_OF_ALL);
    far_pool_close(t->pool);
    ended(t, 0, "far_pool_close");
}


/* Odd seeds damage a pool that is in use, whose handle has caches and free memory. */
static unsigned run_trial(const scene *s, uint64_t seed) {
    trial t = {.scene = s, .seed = seed};
    far_random_seed(&t.random, seed);
    rig_seed(seed);
    rig_restore(s->image);
    rig_allow(UINT64_MAX);
    bool opened = false, in_use = seed % 2;
    if (in_use && (opened = open_all(&t)))
        operate(&t);
    (owners ? scene_name_somebody : scene_damage)(s, &t.random, &t.damage);
    if (verbose)
        printf("%s seed %llu: %s\n", s->kind, (unsigned long long)seed, t.damage.words);
    t.stumbled[0] = 0;
    if (!in_use)
        opened = open_all(&t);
    if (t.session)
        check(&t, 0);
    t.sound = t.session && t.problems == 0;
    look(&t);
    if (opened) {
        operate(&t);
        if (t.sound && t.stumbled[0] && !t.hung)
            complain(&t, "check is content, but an operation says", t.stumbled);
        check(&t, 1);
        bool repaired = t.problems == 0;
        t.stumbled[0] = 0;
        operate(&t);
        if (repaired && t.stumbled[0] && !t.hung)
            complain(&t, "repaired, but an operation says", t.stumbled);
    }
    close_all(&t);
    return t.failures;
}


static unsigned run_kind(const char *kind) {
    enum { SCENES = 6 };
    scene scenes[SCENES] = {0};
    unsigned failures = 0;
    for (uint64_t seed = first_seed; seed <= last_seed; seed++) {
        unsigned i = seed / 2 % SCENES;
        if (!scenes[i].image)
            scene_make(&scenes[i], kind, layouts[sums][i % 2], i >= 2, i + 1);
        failures += run_trial(&scenes[i], seed);
    }
    for (unsigned i = 0; i < SCENES; i++)
        scene_free(&scenes[i]);
    return failures;
}


static void run_all(void) {
    unsigned failures = 0;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (!only_kind || strcmp(only_kind, kinds[i]) == 0)
            failures += run_kind(kinds[i]);
    printf("most verbs of one call: %llu, %llu\n", (unsigned long long)most_verbs[0],
           (unsigned long long)most_verbs[1]);
    assert_int_equal(failures, 0);
}


static void damages_of_every_kind_end_in_bounded_work(void **state) {
    (void)state;
    run_all();
}


/* The same, and whatever was damaged, no wrong value. */
static void checksums_find_damaged_values(void **state) {
    (void)state;
    sums = true;
    if (last_seed - first_seed > SUM_SEEDS && !sums_only)
        last_seed = first_seed + SUM_SEEDS;
    run_all();
}


/* Damages that once destroyed what was sound, or held up everybody: each is told, and check ends. */
static void what_was_found_before(void **state) {
    static const struct {
        const char *kind;
        bool owners, sums;
        uint64_t seed;
    } found[] = {
        {"chime", false, false, 1205}, /* a fence: a sweep passed leaves by, and freed what is in them */
        {"chime", true, false, 1389},    {"chime", false, false, 2644},
        {"chime", false, false, 2123},   /* a registry entry that names a dead handle as its own */
        {"dolphin", true, false, 1525},  /* a sweep that is done before it has begun */
        {"dolphin", false, false, 1011}, /* no entries in the root; then: no locks, a node with another's prefix */
        {"dolphin", false, false, 1314}, {"dolphin", false, false, 1660},
        {"dolphin", false, false, 2113}, /* a value word that leads to the block of another key */
        {"dolphin", true, false, 146},   /* an entry of the root that says another byte */
        {"smart", false, false, 981},    /* a word of the root: caches know what was below, which is free now */
        {"shard", false, false, 1738},   /* a control block that is none */
        {"shard", false, false, 2968},   /* a page that says another index: all that lies in it was freed */
        {"dart", false, true, 2959},     /* the entry of a block in use says that it is nobody's: it was held twice */
    };
    unsigned failures = 0;
    (void)state;
    for (size_t i = 0; i < sizeof(found) / sizeof(found[0]); i++) {
        sums = found[i].sums;
        owners = found[i].owners;
        first_seed = last_seed = found[i].seed;
        failures += run_kind(found[i].kind);
    }
    assert_int_equal(failures, 0);
}


static void read_arguments(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--kind") == 0 && i + 1 < argc) {
            only_kind = argv[++i];
        } else if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) {
            char *end;
            first_seed = last_seed = strtoull(argv[++i], &end, 10);
            if (strncmp(end, "..", 2) == 0)
                last_seed = strtoull(end + 2, NULL, 10);
        } else if (strcmp(argv[i], "--verbose") == 0) {
            verbose = true;
        } else if (strcmp(argv[i], "--checksum") == 0) {
            sums_only = true;
        } else if (strcmp(argv[i], "--owners") == 0) {
            owners = true;
        } else {
            fprintf(stderr, "usage: test_damage [--kind KIND] [--seeds FIRST..LAST] [--owners] [--checksum] "
                            "[--verbose]\n");
            exit(2);
        }
    }
}


int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(damages_of_every_kind_end_in_bounded_work),
                                              cmocka_unit_test(checksums_find_damaged_values),
                                              cmocka_unit_test(what_was_found_before)};
    setvbuf(stdout, NULL, _IOLBF, 0);
    read_arguments(argc, argv);
    rig_start();
    /* All; with arguments, what they ask for. */
    size_t first = sums_only, count = argc == 1 ? 3 : 1;
    int failed = _cmocka_run_group_tests("damages", tests + first, count, NULL, NULL);
    rig_end();
    return failed;
}
