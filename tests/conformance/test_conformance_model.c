/* Compares each kind with an ordered reference model: runs random operations on both and compares every result and
 * every value, and sometimes the whole content by a scan. Runs for every kind, layout and shape of keys, on one fabric
 * in turn.
 *
 *     FARINDEX_STEPS  number of steps per run (default: few, so that all runs together take seconds)
 *     FARINDEX_SEED   seed of the run; a failure prints it
 *     --kind, --fabric, --filter, --all as for the other conformance tests */
#include "base/random.h"
#include "base/sanitizer.h"
#include "conform.h"
#include "verify/model.h"

#define STEPS_DEFAULT (FAR_TSAN ? 1200 : 4000)
#define DEEP          FAR_KEY_MAX

/* state of one run of the comparison */
typedef struct model_run {
    rig r;
    far_model *model;
    far_random random;
    uint64_t seed, step, steps;
    size_t key_size, value_size; /* sizes of keys and values in a fixed-size layout; 0: the size is variable */
    size_t (*make_key)(struct model_run *model_run, uint8_t key[FAR_KEY_MAX]);
    uint8_t *value, *buffer;
} model_run;


static uint64_t read_setting(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}


#define expect_same(model_run, got, wanted, what)                                                                      \
    do {                                                                                                               \
        int64_t got_ = (got), wanted_ = (wanted);                                                                      \
        if (got_ != wanted_)                                                                                           \
            fail_msg("FARINDEX_SEED=%llu, step %llu: %s gave %lld (%s), not %lld",                                     \
                     (unsigned long long)(model_run)->seed, (unsigned long long)(model_run)->step, what,               \
                     (long long)got_, far_last_error(), (long long)wanted_);                                           \
    } while (0)


/* ---- Shapes of keys ---- */

/* Makes a random key that consists mostly of the letters a and b. Keys of different lengths are often prefixes of each
 * other, in long chains. Returns the length of the key. */
static size_t key_of_prefixes(model_run *model_run, uint8_t key[FAR_KEY_MAX]) {
    size_t length = 1 + far_random_below(&model_run->random, far_random_chance(&model_run->random, 1, 20) ? DEEP : 8);
    for (size_t i = 0; i < length; i++)
        key[i] = i < 8 ? (uint8_t)('a' + far_random_below(&model_run->random, 2)) : 'a';
    if (far_random_chance(&model_run->random, 1, 8))
        key[length - 1] = 'c';
    return length;
}


/* Makes a key with bytes 0 and 0xff at positions where a comparison may go wrong. Returns its length. */
static size_t key_of_nuls(model_run *model_run, uint8_t key[FAR_KEY_MAX]) {
    static const uint8_t letters[] = {0x00, 0x00, 0x01, 0xff};
    size_t length = 1 + far_random_below(&model_run->random, 6);
    for (size_t i = 0; i < length; i++)
        key[i] = letters[far_random_below(&model_run->random, sizeof(letters))];
    return length;
}


/* Makes a long key that differs from the others in few positions. Returns its length. */
static size_t key_of_long(model_run *model_run, uint8_t key[FAR_KEY_MAX]) {
    size_t length = FAR_KEY_MAX - far_random_below(&model_run->random, 3);
    memset(key, 'l', length);
    for (unsigned i = 0; i < 2; i++)
        key[far_random_below(&model_run->random, 8) * 31] = (uint8_t)far_random_below(&model_run->random, 4);
    return length;
}


static size_t key_of_u64(model_run *model_run, uint8_t key[FAR_KEY_MAX]) {
    uint64_t number = far_random_below(&model_run->random, 500);
    uint64_t spread = far_splitmix(&number);
    number_key(spread, key);
    return 8;
}


/* Makes the key of a random number below 700, so that the keys are consecutive numbers. Returns the length of the key.
 */
static size_t key_of_sequence(model_run *model_run, uint8_t key[FAR_KEY_MAX]) {
    number_key(far_random_below(&model_run->random, 700), key);
    return 8;
}


/* Makes a key of any length with any bytes. A small set of these keys repeats, so that operations find present keys.
 * Returns the length of the key. */
static size_t key_of_anything(model_run *model_run, uint8_t key[FAR_KEY_MAX]) {
    far_random of_key;
    far_random_seed(&of_key, far_random_below(&model_run->random, 400));
    size_t length = 1 + far_random_below(&of_key, far_random_chance(&of_key, 1, 3) ? FAR_KEY_MAX : 16);
    for (size_t i = 0; i < length; i++)
        key[i] = (uint8_t)far_random_next(&of_key);
    return length;
}


/* ---- Steps ---- */

static size_t make_value(model_run *model_run) {
    far_random *random = &model_run->random;
    uint64_t dice = far_random_below(random, 100);
    size_t length = model_run->value_size             ? model_run->value_size
                    : dice < 10                       ? 0
                    : dice < 80                       ? far_random_below(random, 64)
                    : dice < 97                       ? far_random_below(random, 2000)
                    : far_random_chance(random, 1, 4) ? FAR_VALUE_MAX - far_random_below(random, 3)
                                                      : far_random_below(random, FAR_VALUE_MAX);
    uint64_t word = far_random_next(random);
    for (size_t i = 0; i < length; i++)
        model_run->value[i] = (uint8_t)(word >> (i % 8 * 8)) ^ (uint8_t)i;
    return length;
}


static void step_get(model_run *model_run, const uint8_t *key, size_t key_len) {
    const void *wanted = NULL;
    size_t wanted_len = 0, length = SIZE_MAX;
    int expected = far_model_get(model_run->model, key, key_len, &wanted, &wanted_len);
    size_t capacity = FAR_VALUE_MAX;
    if (expected == FAR_OK && wanted_len > 0 && far_random_chance(&model_run->random, 1, 16)) {
        capacity = far_random_below(&model_run->random, wanted_len);
        expected = FAR_ERR_TOO_SMALL;
    }
    int got = far_get(model_run->r.session, model_run->r.index, key, key_len, model_run->buffer, capacity, &length);
    expect_same(model_run, got, expected, "far_get");
    if (got == FAR_OK || got == FAR_ERR_TOO_SMALL)
        expect_same(model_run, (int64_t)length, (int64_t)wanted_len, "the length of a value");
    if (got == FAR_OK)
        expect_same(model_run, length ? memcmp(model_run->buffer, wanted, length) != 0 : 0, 0,
                    "a comparison of values");
}


static void step_write(model_run *model_run, uint64_t how, const uint8_t *key, size_t key_len) {
    far_session *s = model_run->r.session;
    far_index *index = model_run->r.index;
    size_t length = make_value(model_run);
    if (how == 0)
        expect_same(model_run, far_insert(s, index, key, key_len, model_run->value, length),
                    far_model_insert(model_run->model, key, key_len, model_run->value, length), "far_insert");
    else if (how == 1)
        expect_same(model_run, far_update(s, index, key, key_len, model_run->value, length),
                    far_model_update(model_run->model, key, key_len, model_run->value, length), "far_update");
    else
        expect_same(model_run, far_put(s, index, key, key_len, model_run->value, length),
                    far_model_put(model_run->model, key, key_len, model_run->value, length), "far_put");
}


static void compare_scans(model_run *model_run, const uint8_t *from, size_t from_len, const uint8_t *to, size_t to_len,
                          size_t limit, bool reverse) {
    pairs got = {0}, wanted = {0};
    int64_t count = (reverse ? far_scan_reverse : far_scan)(model_run->r.session, model_run->r.index, from, from_len,
                                                            to, to_len, limit, collect_pair, &got);
    expect_same(model_run, count,
                (reverse ? far_model_scan_reverse : far_model_scan)(model_run->model, from, from_len, to, to_len, limit,
                                                                    collect_pair, &wanted),
                reverse ? "far_scan_reverse" : "far_scan");
    for (size_t i = 0; i < wanted.count; i++) {
        const pair *a = &got.items[i], *b = &wanted.items[i];
        expect_same(model_run, compare_bytes(a->key, a->key_len, b->key, b->key_len) != 0, 0,
                    "a comparison of scanned keys");
        expect_same(model_run, (int64_t)a->value_len, (int64_t)b->value_len, "the length of a scanned value");
        expect_same(model_run, memcmp(a->value, b->value, b->value_len) != 0, 0, "a comparison of scanned values");
    }
    pairs_free(&got);
    pairs_free(&wanted);
}


static void step_scan(model_run *model_run) {
    uint8_t from[FAR_KEY_MAX], to[FAR_KEY_MAX];
    size_t from_len = model_run->make_key(model_run, from), to_len = model_run->make_key(model_run, to);
    far_random *random = &model_run->random;
    bool has_from = !far_random_chance(random, 1, 8), has_to = far_random_chance(random, 1, 2);
    size_t limit = far_random_chance(random, 1, 8) ? 0 : 1 + far_random_below(random, 40);
    compare_scans(model_run, has_from ? from : NULL, has_from ? from_len : 0, has_to ? to : NULL, has_to ? to_len : 0,
                  limit, far_random_chance(random, 1, 2));
}


/* Compares the result of a move, and the pair that it reached, with the first pair that a scan of the model returns for
 * the keys >= low and < high, in ascending or descending order. */
static void compare_move(model_run *model_run, const far_cursor *cursor, int result, const pair *low, const pair *high,
                         bool down) {
    pairs wanted = {0};
    size_t key_len, value_len;
    (down ? far_model_scan_reverse : far_model_scan)(model_run->model, low->key, low->key_len, high->key, high->key_len,
                                                     1, collect_pair, &wanted);
    expect_same(model_run, result, wanted.count ? FAR_OK : FAR_ERR_NOT_FOUND, "a move of a cursor");
    const void *key = far_cursor_key(cursor, &key_len), *value = far_cursor_value(cursor, &value_len);
    expect_same(model_run, key != NULL, wanted.count != 0, "the presence of a pair at a cursor");
    if (wanted.count) {
        const pair *pair = &wanted.items[0];
        expect_same(model_run, compare_bytes(key, key_len, pair->key, pair->key_len), 0, "a comparison of keys");
        expect_same(model_run, (int64_t)value_len, (int64_t)pair->value_len, "the length of a value at a cursor");
        expect_same(model_run, memcmp(value, pair->value, value_len) != 0, 0, "a comparison of values");
    }
    pairs_free(&wanted);
}


/* Makes some moves in both directions with a cursor over the whole index, from a random key on. Writes of the session
 * are done between the moves. */
static void step_cursor(model_run *model_run) {
    uint8_t sought[FAR_KEY_MAX + 1], at[FAR_KEY_MAX + 1], other[FAR_KEY_MAX];
    size_t sought_len = model_run->make_key(model_run, sought), at_len;
    far_random *random = &model_run->random;
    bool down = far_random_chance(random, 1, 2);
    far_cursor *cursor;
    assert_ok(far_cursor_open(model_run->r.session, model_run->r.index, &cursor));
    int result = (down ? far_cursor_seek_before : far_cursor_seek)(cursor, sought, sought_len);
    sought[sought_len] = 0;
    const pair none = {0}, key = {sought, NULL, sought_len, 0}, after_key = {sought, NULL, sought_len + 1, 0};
    compare_move(model_run, cursor, result, down ? &none : &key, down ? &after_key : &none, down);
    for (uint64_t left = far_random_below(random, 60); left > 0 && result == FAR_OK; left--) {
        const void *now = far_cursor_key(cursor, &at_len);
        memcpy(at, now, at_len);
        at[at_len] = 0;
        if (far_random_chance(random, 1, 6))
            step_write(model_run, far_random_below(random, 3), other, model_run->make_key(model_run, other));
        down ^= far_random_chance(random, 1, 10);
        result = (down ? far_cursor_prev : far_cursor_next)(cursor);
        const pair position = {at, NULL, at_len, 0}, after = {at, NULL, at_len + 1, 0};
        compare_move(model_run, cursor, result, down ? &none : &after, down ? &position : &none, down);
    }
    far_cursor_close(cursor);
}


static int compare_get(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    model_run *model_run = ctx;
    size_t length = SIZE_MAX;
    int got =
        far_get(model_run->r.session, model_run->r.index, key, key_len, model_run->buffer, FAR_VALUE_MAX, &length);
    expect_same(model_run, got, FAR_OK, "far_get of a stored key");
    expect_same(model_run, (int64_t)length, (int64_t)value_len, "the length of a stored value");
    expect_same(model_run, memcmp(model_run->buffer, value, value_len) != 0, 0, "a comparison of stored values");
    return 0;
}


/* Compares the whole content of the index with the model, by a scan if the kind has an order, and otherwise key by key.
 * Compares the number of keys, too. */
static void compare_all(model_run *model_run) {
    far_usage usage = {0};
    if (model_run->r.c->ordered)
        for (int reverse = 0; reverse < 2; reverse++)
            compare_scans(model_run, NULL, 0, NULL, 0, 0, reverse);
    else
        far_model_scan(model_run->model, NULL, 0, NULL, 0, 0, compare_get, model_run);
    expect_same(model_run, far_index_usage(model_run->r.session, model_run->r.index, &usage), FAR_OK,
                "far_index_usage");
    expect_same(model_run, (int64_t)usage.keys, (int64_t)far_model_count(model_run->model), "the number of keys");
}


/* Opens another session, or closes and opens the index, or opens another handle. The content must stay the same. */
static void step_reopen(model_run *model_run) {
    rig *r = &model_run->r;
    uint64_t how = far_random_below(&model_run->random, 3);
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


static void take_step(model_run *model_run) {
    uint8_t key[FAR_KEY_MAX];
    size_t key_len = model_run->make_key(model_run, key);
    uint64_t dice = far_random_below(&model_run->random, 1000),
             growth = model_run->step * 4 / model_run->steps % 2 ? 450 : 250;
    if (dice < 250)
        step_get(model_run, key, key_len);
    else if (dice < 250 + growth)
        step_write(model_run, dice % 3, key, key_len);
    else if (dice < 960 || !model_run->r.c->ordered)
        expect_same(model_run, far_delete(model_run->r.session, model_run->r.index, key, key_len),
                    far_model_delete(model_run->model, key, key_len), "far_delete");
    else if (dice < 980)
        step_scan(model_run);
    else
        step_cursor(model_run);
}


static void run_model(const conform *c, const char *options, size_t key_size, size_t value_size,
                      size_t (*make_key)(model_run *model_run, uint8_t key[FAR_KEY_MAX])) {
    model_run model_run = {.seed = read_setting("FARINDEX_SEED", 1),
                           .steps = read_setting("FARINDEX_STEPS", STEPS_DEFAULT),
                           .key_size = key_size,
                           .value_size = value_size,
                           .make_key = make_key,
                           .value = malloc(FAR_VALUE_MAX),
                           .buffer = malloc(FAR_VALUE_MAX)};
    model_run.model = far_model_new();
    far_random_seed(&model_run.random, model_run.seed);
    rig_up_with(&model_run.r, c, RIG_SIZE, NULL, options ? options : c->options);
    for (model_run.step = 0; model_run.step < model_run.steps; model_run.step++) {
        take_step(&model_run);
        if (model_run.step % 500 == 499)
            compare_all(&model_run);
        if (model_run.step % 300 == 299)
            step_reopen(&model_run);
    }
    compare_all(&model_run);
    rig_down(&model_run.r);
    far_model_free(model_run.model);
    free(model_run.value);
    free(model_run.buffer);
}


BEHAVIOUR_FOR(model_with_prefixes, IN_TURN) {
    run_model(c, NULL, 0, 0, key_of_prefixes);
}


BEHAVIOUR_FOR(model_with_nuls, IN_TURN) {
    run_model(c, NULL, 0, 0, key_of_nuls);
}


BEHAVIOUR_FOR(model_with_long_keys, IN_TURN) {
    run_model(c, NULL, 0, 0, key_of_long);
}


BEHAVIOUR_FOR(model_with_any_keys, IN_TURN) {
    run_model(c, NULL, 0, 0, key_of_anything);
}


BEHAVIOUR_FOR(model_with_u64_keys, IN_TURN) {
    run_model(c, NULL, 0, 0, key_of_u64);
}


BEHAVIOUR_FOR(model_with_fixed_u64_keys_and_values, IN_TURN) {
    run_model(c, "key_size=8,value_size=8", 8, 8, key_of_u64);
}


BEHAVIOUR_FOR(model_with_fixed_sequential_keys, IN_TURN) {
    run_model(c, "key_size=8,value_size=100", 8, 100, key_of_sequence);
}


BEHAVIOUR_FOR(model_with_fixed_keys_and_free_values, IN_TURN) {
    run_model(c, "key_size=8", 8, 0, key_of_u64);
}
