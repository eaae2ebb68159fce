/* Walk, check and usage. Each visits all slots of the table in slices, and each slice has its own pin, so that a long
 * run does not hold back the reuse of memory. */
#include "base/error.h"
#include "index/toy/toy.h"
#include "pool/epoch/epoch.h"

#define SLOTS_AT_ONCE 256

/* Called for every slot, with a pin. `words` contains the slot's word, and its lock word if the index has locks. */
typedef int (*slot_fn)(far_task *t, far_index *index, uint64_t slot, const uint64_t words[2], void *ctx);


static int visit_slice(far_task *t, far_index *index, uint64_t first, unsigned count, slot_fn each, void *ctx) {
    const toy_state *state = toy_state_of(index);
    uint64_t words[SLOTS_AT_ONCE][2] = {{0}};
    for (unsigned i = 0; i < count; i++)
        far_read(t, toy_slot_addr(state, first + i), words[i], state->slot_bytes);
    int err = far_wait(t);
    for (unsigned i = 0; err >= 0 && i < count; i++) {
        far_scratch_mark mark = far_scratch_here(t);
        err = each(t, index, first + i, words[i], ctx);
        far_scratch_back(t, mark);
    }
    return err;
}


static int visit_all_slots(far_task *t, far_index *index, slot_fn each, void *ctx) {
    uint64_t slots = toy_state_of(index)->slots;
    int err = 0;
    for (uint64_t first = 0; err >= 0 && first < slots; first += SLOTS_AT_ONCE) {
        unsigned count = slots - first < SLOTS_AT_ONCE ? (unsigned)(slots - first) : SLOTS_AT_ONCE;
        if ((err = far_pin_take(t)) >= 0)
            err = visit_slice(t, index, first, count, each, ctx);
        far_pin_drop(t);
    }
    return err < 0 ? err : 0;
}


static int walk_slot(far_task *t, far_index *index, uint64_t slot, const uint64_t words[2], void *walk) {
    int err = words[1] ? toy_free_dead_lock(t, index, slot, words[1]) : 0;
    if (err < 0 || words[0] == 0)
        return err;
    return far_walk_object(walk, index, TOY_TYPE_BUCKET, toy_word_addr(words[0]), toy_word_bytes(words[0]));
}


int toy_walk(far_task *t, far_index *index, far_walk *walk) {
    const toy_state *state = toy_state_of(index);
    uint64_t stripe_bytes = (state->slots + state->stripes - 1) / state->stripes * state->slot_bytes;
    int err = far_walk_object(walk, index, TOY_TYPE_ROOT, index->descriptor,
                              toy_round(sizeof(toy_root) + state->stripes * 8ull, 16));
    for (unsigned i = 0; err >= 0 && i < state->stripes; i++)
        err = far_walk_object(walk, index, TOY_TYPE_STRIPE, state->stripe[i], stripe_bytes);
    return err < 0 ? err : visit_all_slots(t, index, walk_slot, walk);
}


static int check_slot(far_task *t, far_index *index, uint64_t slot, const uint64_t words[2], void *ctx) {
    far_report *report = ctx;
    toy_image image;
    int err = toy_read_bucket(t, index, words[0], &image);
    if (err == FAR_ERR_CORRUPT) {
        far_report_problem(report, "slot %llu: the bucket at %#llx is corrupt", (unsigned long long)slot,
                           (unsigned long long)toy_word_addr(words[0]));
        return 0;
    }
    toy_cursor cursor = {.bucket = image.bucket};
    far_bytes last = {NULL, 0};
    while (err >= 0 && toy_next(&cursor)) {
        if (toy_slot_of(index, cursor.key) != slot)
            far_report_problem(report, "slot %llu: contains a key that belongs to slot %llu", (unsigned long long)slot,
                               (unsigned long long)toy_slot_of(index, cursor.key));
        if (far_bytes_compare(cursor.key, last) <= 0)
            far_report_problem(report, "slot %llu: its keys are not in order", (unsigned long long)slot);
        if (cursor.key.length > (size_t)index->options[FAR_OPTION_MAX_KEY])
            far_report_problem(report, "slot %llu: a key is %zu bytes long, more than max_key allows",
                               (unsigned long long)slot, cursor.key.length);
        last = cursor.key;
    }
    return err;
}


int toy_check(far_task *t, far_index *index, far_report *report) {
    return visit_all_slots(t, index, check_slot, report);
}


int toy_object_keys(far_task *t, far_index *index, unsigned type, const void *object, uint64_t bytes, far_keys *keys) {
    toy_cursor cursor = {.bucket = object};
    int err = 0;
    (void)t, (void)index;
    if (type != TOY_TYPE_BUCKET || !toy_bucket_is_sound(object, bytes))
        return 0;
    while (err >= 0 && toy_next(&cursor))
        err = far_keys_give(keys, cursor.key);
    return err;
}


static int count_slot(far_task *t, far_index *index, uint64_t slot, const uint64_t words[2], void *ctx) {
    (void)slot;
    far_usage *usage = ctx;
    toy_image image;
    int err = toy_read_bucket(t, index, words[0], &image);
    toy_cursor cursor = {.bucket = image.bucket};
    while (err >= 0 && toy_next(&cursor)) {
        usage->keys++;
        usage->key_bytes += cursor.key.length;
        usage->value_bytes += cursor.value.length;
    }
    return err;
}


int toy_usage(far_task *t, far_index *index, far_usage *usage) {
    return visit_all_slots(t, index, count_slot, usage);
}
