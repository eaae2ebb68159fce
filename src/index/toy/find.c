/* Finding a key: READ the slot, then the bucket. The kind calls toy_get and toy_get_many; write.c, scan.c and check.c
 * use the functions that READ slots and buckets. */
#include "base/error.h"
#include "index/toy/toy.h"

#include <stdatomic.h>
#include <xxhash.h>


uint64_t toy_slot_of(const far_index *index, far_bytes key) {
    const toy_state *state = toy_state_of(index);
    return XXH3_64bits_withSeed(key.data, key.length, state->seed) & (state->slots - 1);
}


far_addr toy_slot_addr(const toy_state *state, uint64_t slot) {
    return state->stripe[slot % state->stripes] + slot / state->stripes * state->slot_bytes;
}


static int fail_corrupt_bucket(const far_index *index, uint64_t word) {
    return far_fail(FAR_ERR_CORRUPT, "index '%s': the bucket at %#llx is corrupt", index->name,
                    (unsigned long long)toy_word_addr(word));
}


/* Adds the READs of a bucket to the batch; one verb moves at most FAR_VERB_BYTES_MAX bytes. */
static int put_read_bucket(far_task *t, uint64_t word, toy_image *image) {
    uint64_t bytes = toy_word_bytes(word);
    *image = (toy_image){word, NULL};
    if (word == 0)
        return 0;
    image->bucket = far_scratch(t, bytes ? bytes : FAR_GRANULE);
    if (!image->bucket)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a bucket");
    for (uint64_t at = 0; at < bytes; at += FAR_VERB_BYTES_MAX)
        far_read(t, toy_word_addr(word) + at, (char *)image->bucket + at,
                 bytes - at < FAR_VERB_BYTES_MAX ? bytes - at : FAR_VERB_BYTES_MAX);
    return 0;
}


static int check_bucket(const far_index *index, const toy_image *image) {
    if (image->bucket && !toy_bucket_is_sound(image->bucket, toy_word_bytes(image->word)))
        return fail_corrupt_bucket(index, image->word);
    return 0;
}


int toy_read_bucket(far_task *t, far_index *index, uint64_t word, toy_image *image) {
    int err = put_read_bucket(t, word, image);
    if (err < 0 || (err = far_wait(t)) < 0)
        return err;
    return check_bucket(index, image);
}


static int read_word(far_task *t, far_index *index, uint64_t slot, uint64_t *word) {
    toy_state *state = toy_state_of(index);
    if (state->cache) { /* the fault TOY_STALE_CACHE: a slot word that was READ once is used for ever */
        *word = atomic_load_explicit(&state->cache[slot], memory_order_relaxed);
        far_count_cache(t, *word != 0);
        if (*word)
            return 0;
    }
    int err = far_read_word(t, toy_slot_addr(state, slot), word);
    if (err >= 0 && state->cache)
        atomic_store_explicit(&state->cache[slot], *word, memory_order_relaxed);
    return err;
}


int toy_read_slot(far_task *t, far_index *index, uint64_t slot, toy_image *image) {
    uint64_t word;
    int err = far_read_word(t, toy_slot_addr(toy_state_of(index), slot), &word);
    if (err < 0)
        return err;
    far_point(t, "toy:slot_read");
    return toy_read_bucket(t, index, word, image);
}


int toy_get(far_task *t, far_index *index, far_bytes key, far_out *out) {
    uint64_t word;
    int err = read_word(t, index, toy_slot_of(index, key), &word);
    if (err < 0)
        return err;

    far_point(t, "toy:slot_read");
    toy_image image;
    if ((err = toy_read_bucket(t, index, word, &image)) < 0)
        return err;

    far_bytes value;
    if (!toy_find(image.bucket, key, &value))
        return FAR_ERR_NOT_FOUND;
    return far_out_give(out, value.data, value.length);
}


/* READs all slots in one round trip and all buckets in another. */
int toy_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[], int results[]) {
    const toy_state *state = toy_state_of(index);
    uint64_t *words = far_scratch(t, count * sizeof(*words));
    toy_image *images = far_scratch(t, count * sizeof(*images));
    if (!words || !images)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for buckets");
    for (size_t i = 0; i < count; i++)
        far_read(t, toy_slot_addr(state, toy_slot_of(index, keys[i])), &words[i], 8);
    int err = far_wait(t);
    if (err < 0)
        return err;

    far_point(t, "toy:slot_read");
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        if ((err = put_read_bucket(t, words[i], &images[i])) < 0) {
            far_wait(t);
            return err;
        }
        any |= words[i] != 0;
    }
    if (any && (err = far_wait(t)) < 0)
        return err;

    for (size_t i = 0; i < count; i++) {
        far_bytes value;
        if ((results[i] = check_bucket(index, &images[i])) < 0)
            continue;
        results[i] = toy_find(images[i].bucket, keys[i], &value) ? far_out_give(outs[i], value.data, value.length)
                                                                 : FAR_ERR_NOT_FOUND;
    }
    return 0;
}
