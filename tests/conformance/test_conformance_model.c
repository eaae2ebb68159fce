/* Random operations against the ordered reference model: every result, every value and now and then everything by a
 * scan is compared. Runs for every kind, layout and shape of keys, on a fabric in turn.
 *
 * FARINDEX_STEPS  steps per run (default: few, so that all runs together take seconds)
 * FARINDEX_SEED   the seed that a failure prints
 * --kind, --fabric, --filter, --all as for the conformance tests */
#include "base/random.h"
#include "base/sanitizer.h"
#include "conform.h"
#include "verify/model.h"

#define STEPS_DEFAULT (FAR_TSAN ? 1200 : 4000)
#define DEEP          FAR_KEY_MAX

/* One run. */
typedef struct run {
    rig r;
    far_model *model;
    far_random random;
    uint64_t seed, step, steps;
    size_t key_size, value_size; /* of a fixed layout; 0 = any */
    size_t (*make_key)(struct run *run, uint8_t key[FAR_KEY_MAX]);
    uint8_t *value, *buffer;
} run;


static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}


#define expect_same(run, got, wanted, what)                                                                            \
    do {                                                                                                               \
        int64_t got_ = (got), wanted_ = (wanted);                                                                      \
        if (got_ != wanted_)                                                                                           \
            fail_msg("FARINDEX_SEED=%llu, step %llu: %s gave %lld (%s), not %lld", (unsigned long long)(run)->seed,    \
                     (unsigned long long)(run)->step, what, (long long)got_, far_last_error(), (long long)wanted_);    \
    } while (0)


/* ---- Shapes of keys ---- */

/* Two letters, lengths that grow: deep chains of prefixes. */
static size_t key_of_prefixes(run *run, uint8_t key[FAR_KEY_MAX]) {
    size_t length = 1 + far_random_below(&run->random, far_random_chance(&run->random, 1, 20) ? DEEP : 8);
    for (size_t i = 0; i < length; i++)
        key[i] = i < 8 ? (uint8_t)('a' + far_random_below(&run->random, 2)) : 'a';
    if (far_random_chance(&run->random, 1, 8))
        key[length - 1] = 'c';
    return length;
}


/* NULs and 0xff wherever they hurt. */
static size_t key_of_nuls(run *run, uint8_t key[FAR_KEY_MAX]) {
    static const uint8_t letters[] = {0x00, 0x00, 0x01, 0xff};
    size_t length = 1 + far_random_below(&run->random, 6);
    for (size_t i = 0; i < length; i++)
        key[i] = letters[far_random_below(&run->random, sizeof(letters))];
    return length;
}


/* Long keys that differ in few places. */
static size_t key_of_long(run *run, uint8_t key[FAR_KEY_MAX]) {
    size_t length = FAR_KEY_MAX - far_random_below(&run->random, 3);
    memset(key, 'l', length);
    for (unsigned i = 0; i < 2; i++)
        key[far_random_below(&run->random, 8) * 31] = (uint8_t)far_random_below(&run->random, 4);
    return length;
}


static size_t key_of_u64(run *run, uint8_t key[FAR_KEY_MAX]) {
    uint64_t number = far_random_below(&run->random, 500);
    uint64_t spread = far_splitmix(&number);
    number_key(spread, key);
    return 8;
}


/* Neighbours: 0, 1, 2 ... */
static size_t key_of_sequence(run *run, uint8_t key[FAR_KEY_MAX]) {
    number_key(far_random_below(&run->random, 700), key);
    return 8;
}


/* All lengths, all bytes, so that hits come from a few keys only. */
static size_t key_of_anything(run *run, uint8_t key[FAR_KEY_MAX]) {
    far_random of_key;
    far_random_seed(&of_key, far_random_below(&run->random, 400));
    size_t length = 1 + far_random_below(&of_key, far_random_chance(&of_key, 1, 3) ? FAR_KEY_MAX : 16);
    for (size_t i = 0; i < length; i++)
        key[i] = (uint8_t)far_random_next(&of_key);
    return length;
}


/* ---- Steps ---- */

static size_t make_value(run *run) {
    far_random *random = &run->random;
    uint64_t dice = far_random_below(random, 100);
    size_t length = run->value_size                   ? run->value_size
                    : dice < 10                       ? 0
                    : dice < 80                       ? far_random_below(random, 64)
                    : dice < 97                       ? far_random_below(random, 2000)
                    : far_random_chance(random, 1, 4) ? FAR_VALUE_MAX - far_random_below(random, 3)
                                                      : far_random_below(random, FAR_VALUE_MAX);
    uint64_t word = far_random_next(random);
    for (size_t i = 0; i < length; i++)
        run->value[i] = (uint8_t)(word >> (i % 8 * 8)) ^ (uint8_t)i;
    return length;
}


static void step_get(run *run, const uint8_t *key, size_t key_len) {
    const void *wanted = NULL;
    size_t wanted_len = 0, length = SIZE_MAX;
    int expected = far_model_get(run->model, key, key_len, &wanted, &wanted_len);
    size_t capacity = FAR_VALUE_MAX;
    if (expected == FAR_OK && wanted_len > 0 && far_random_chance(&run->random, 1, 16)) {
        capacity = far_random_below(&run->random, wanted_len);
        expected = FAR_ERR_TOO_SMALL;
    }
    int got = far_get(run->r.session, run->r.index, key, key_len, run->buffer, capacity, &length);
    expect_same(run, got, expected, "far_get");
    if (got == FAR_OK || got == FAR_ERR_TOO_SMALL)
        expect_same(run, (int64_t)length, (int64_t)wanted_len, "the length of a value");
    if (got == FAR_OK)
        expect_same(run, length ? memcmp(run->buffer, wanted, length) != 0 : 0, 0, "a comparison of values");
}


static void step_write(run *run, uint64_t how, const uint8_t *key, size_t key_len) {
    far_session *s = run->r.session;
    far_index *index = run->r.index;
    size_t length = make_value(run);
    if (how == 0)
        expect_same(run, far_insert(s, index, key, key_len, run->value, length),
                    far_model_insert(run->model, key, key_len, run->value, length), "far_insert");
    else if (how == 1)
        expect_same(run, far_update(s, index, key, key_len, run->value, length),
                    far_model_update(run->model, key, key_len, run->value, length), "far_update");
    else
        expect_same(run, far_put(s, index, key, key_len, run->value, length),
                    far_model_put(run->model, key, key_len, run->value, length), "far_put");
}


static void compare_scans(run *run, const uint8_t *from, size_t from_len, const uint8_t *to, size_t to_len,
                          size_t limit) {
    pairs got = {0}, wanted = {0};
    int64_t count = far_scan(run->r.session, run->r.index, from, from_len, to, to_len, limit, collect_pair, &got);
    expect_same(run, count, far_model_scan(run->model, from, from_len, to, to_len, limit, collect_pair, &wanted),
                "far_scan");
    for (size_t i = 0; i < wanted.count; i++) {
        const pair *a = &got.items[i], *b = &wanted.items[i];
        expect_same(run, compare_bytes(a->key, a->key_len, b->key, b->key_len) != 0, 0, "a comparison of scanned keys");
        expect_same(run, (int64_t)a->value_len, (int64_t)b->value_len, "the length of a scanned value");
        expect_same(run, memcmp(a->value, b->value, b->value_len) != 0, 0, "a comparison of scanned values");
    }
    pairs_free(&got);
    pairs_free(&wanted);
}


static void step_scan(run *run) {
    uint8_t from[FAR_KEY_MAX], to[FAR_KEY_MAX];
    size_t from_len = run->make_key(run, from), to_len = run->make_key(run, to);
    far_random *random = &run->random;
    bool has_from = !far_random_chance(random, 1, 8), has_to = far_random_chance(random, 1, 2);
    size_t limit = far_random_chance(random, 1, 8) ? 0 : 1 + far_random_below(random, 40);
    compare_scans(run, has_from ? from : NULL, has_from ? from_len : 0, has_to ? to : NULL, has_to ? to_len : 0, limit);
}


static int compare_get(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    run *run = ctx;
    size_t length = SIZE_MAX;
    int got = far_get(run->r.session, run->r.index, key, key_len, run->buffer, FAR_VALUE_MAX, &length);
    expect_same(run, got, FAR_OK, "far_get of a stored key");
    expect_same(run, (int64_t)length, (int64_t)value_len, "the length of a stored value");
    expect_same(run, memcmp(run->buffer, value, value_len) != 0, 0, "a comparison of stored values");
    return 0;
}


/* Everything: by a scan where there are any, else key by key; and the counts. */
static void compare_all(run *run) {
    far_usage usage = {0};
    if (run->r.c->ordered)
        compare_scans(run, NULL, 0, NULL, 0, 0);
    else
        far_model_scan(run->model, NULL, 0, NULL, 0, 0, compare_get, run);
    expect_same(run, far_index_usage(run->r.session, run->r.index, &usage), FAR_OK, "far_index_usage");
    expect_same(run, (int64_t)usage.keys, (int64_t)far_model_count(run->model), "the number of keys");
}


/* Another session, the index closed and opened, or a whole other handle: what was stored stays. */
static void step_reopen(run *run) {
    rig *r = &run->r;
    uint64_t how = far_random_below(&run->random, 3);
    if (how == 2) {
        rig next;
        rig_join(&next, r);
        next.owner = r->owner;
        r->owner = false;
        rig_close(r);
        *r = next;
        return;
    }
    far_index_close(r->index);
    r->index = NULL;
    if (how == 1) {
        far_session_close(r->session);
        r->session = NULL;
        assert_ok(far_session_open(r->pool, &r->session));
    }
    assert_ok(far_index_open(r->session, "index", &r->index));
}


static void take_step(run *run) {
    uint8_t key[FAR_KEY_MAX];
    size_t key_len = run->make_key(run, key);
    uint64_t dice = far_random_below(&run->random, 1000), growth = run->step * 4 / run->steps % 2 ? 450 : 250;
    if (dice < 250)
        step_get(run, key, key_len);
    else if (dice < 250 + growth)
        step_write(run, dice % 3, key, key_len);
    else if (dice < 960 || !run->r.c->ordered)
        expect_same(run, far_delete(run->r.session, run->r.index, key, key_len),
                    far_model_delete(run->model, key, key_len), "far_delete");
    else
        step_scan(run);
}


static void run_model(const conform *c, const char *options, size_t key_size, size_t value_size,
                      size_t (*make_key)(run *run, uint8_t key[FAR_KEY_MAX])) {
    run run = {.seed = setting("FARINDEX_SEED", 1),
               .steps = setting("FARINDEX_STEPS", STEPS_DEFAULT),
               .key_size = key_size,
               .value_size = value_size,
               .make_key = make_key,
               .value = malloc(FAR_VALUE_MAX),
               .buffer = malloc(FAR_VALUE_MAX)};
    run.model = far_model_new();
    far_random_seed(&run.random, run.seed);
    rig_up_with(&run.r, c, RIG_SIZE, NULL, options ? options : c->options);
    for (run.step = 0; run.step < run.steps; run.step++) {
        take_step(&run);
        if (run.step % 500 == 499)
            compare_all(&run);
        if (run.step % 300 == 299)
            step_reopen(&run);
    }
    compare_all(&run);
    rig_down(&run.r);
    far_model_free(run.model);
    free(run.value);
    free(run.buffer);
}


static void model_with_prefixes(const conform *c) {
    run_model(c, NULL, 0, 0, key_of_prefixes);
}


static void model_with_nuls(const conform *c) {
    run_model(c, NULL, 0, 0, key_of_nuls);
}


static void model_with_long_keys(const conform *c) {
    run_model(c, NULL, 0, 0, key_of_long);
}


static void model_with_any_keys(const conform *c) {
    run_model(c, NULL, 0, 0, key_of_anything);
}


static void model_with_u64_keys(const conform *c) {
    run_model(c, NULL, 0, 0, key_of_u64);
}


static void model_with_fixed_u64_keys_and_values(const conform *c) {
    run_model(c, "key_size=8,value_size=8", 8, 8, key_of_u64);
}


static void model_with_fixed_sequential_keys(const conform *c) {
    run_model(c, "key_size=8,value_size=100", 8, 100, key_of_sequence);
}


static void model_with_fixed_keys_and_free_values(const conform *c) {
    run_model(c, "key_size=8", 8, 0, key_of_u64);
}


static const behaviour behaviours[] = {
    BEHAVIOUR_FOR(model_with_prefixes, IN_TURN),
    BEHAVIOUR_FOR(model_with_nuls, IN_TURN),
    BEHAVIOUR_FOR(model_with_long_keys, IN_TURN),
    BEHAVIOUR_FOR(model_with_any_keys, IN_TURN),
    BEHAVIOUR_FOR(model_with_u64_keys, IN_TURN),
    BEHAVIOUR_FOR(model_with_fixed_u64_keys_and_values, IN_TURN),
    BEHAVIOUR_FOR(model_with_fixed_sequential_keys, IN_TURN),
    BEHAVIOUR_FOR(model_with_fixed_keys_and_free_values, IN_TURN),
};


int main(int argc, char **argv) {
    printf("FARINDEX_SEED=%llu FARINDEX_STEPS=%llu\n", (unsigned long long)setting("FARINDEX_SEED", 1),
           (unsigned long long)setting("FARINDEX_STEPS", STEPS_DEFAULT));
    return conform_main(argc, argv, "model", behaviours, COUNT_OF(behaviours));
}
