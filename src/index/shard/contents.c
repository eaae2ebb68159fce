/* The contents of a shard index, found by a traversal (traversal.h): its objects for the mark phase, its size, its load
 * and its keys. */
#include "base/error.h"
#include "index/shard/traversal.h"


static int report_entry_block(shard_traversal *r, far_addr at, uint64_t word, int level, uint64_t bucket, unsigned v) {
    (void)at, (void)level, (void)bucket, (void)v;
    return far_walk_object(r->walk, r->index, SHARD_TYPE_BLOCK, shard_entry_addr(word),
                           shard_class_bytes(shard_entry_class(word)));
}


static int skip_pair(shard_traversal *r, far_addr mark_at, uint64_t mark, uint64_t h, int level, uint64_t bucket,
                     unsigned v) {
    (void)r, (void)mark_at, (void)mark, (void)h, (void)level, (void)bucket, (void)v;
    return 0; /* an inline pair is not an object of its own */
}


int shard_walk(far_task *t, far_index *index, far_walk *walk) {
    return shard_traverse(&(shard_traversal){.t = t,
                                             .index = index,
                                             .st = shard_state_of(index),
                                             .walk = walk,
                                             .each = report_entry_block,
                                             .each_pair = skip_pair});
}


/* Counts a key at most once. `what` identifies the key and stays the same when the key is moved. Returns 1 if the key
 * was not counted yet, 0 if it was, or an error. */
static int count_key_once(shard_traversal *r, uint64_t what, int level) {
    return level > 1 ? shard_count_overflow_once(&r->counted, what) : !shard_counted_contains(&r->counted, what);
}


static int count_entry(shard_traversal *r, far_addr at, uint64_t word, int level, uint64_t bucket, unsigned v) {
    (void)at, (void)bucket, (void)v;
    int err = count_key_once(r, shard_entry_block(word), level);
    if (err <= 0)
        return err;
    if (r->load) {
        r->load->keys[level - 1]++;
        return 0;
    }
    shard_block block;
    far_read(r->t, shard_entry_addr(word), &block, sizeof(block));
    err = far_wait(r->t);
    r->usage->keys++;
    r->usage->key_bytes += block.key_length;
    r->usage->value_bytes += block.value_length;
    return err;
}


static int count_pair(shard_traversal *r, far_addr mark_at, uint64_t mark, uint64_t h, int level, uint64_t bucket,
                      unsigned v) {
    (void)mark_at, (void)mark, (void)bucket, (void)v;
    int err = count_key_once(r, h, level);
    if (err <= 0)
        return err;
    if (r->load) {
        r->load->keys[level - 1]++;
        return 0;
    }
    r->usage->keys++;
    r->usage->key_bytes += 8;
    r->usage->value_bytes += 8;
    return 0;
}


int shard_usage(far_task *t, far_index *index, far_usage *usage) {
    return shard_traverse(&(shard_traversal){.t = t,
                                             .index = index,
                                             .st = shard_state_of(index),
                                             .usage = usage,
                                             .each = count_entry,
                                             .each_pair = count_pair});
}


int shard_load_factor(far_task *t, far_index *index, far_load *load) {
    load->local_bytes = shard_local_bytes(index);
    return shard_traverse(&(shard_traversal){.t = t,
                                             .index = index,
                                             .st = shard_state_of(index),
                                             .load = load,
                                             .each = count_entry,
                                             .each_pair = count_pair});
}


/* ---- Keys ---- */

static int emit_entry_key(shard_traversal *r, far_addr at, uint64_t word, int level, uint64_t bucket, unsigned v) {
    (void)at, (void)level, (void)bucket, (void)v;
    uint64_t most = sizeof(shard_block) + ((uint64_t)r->index->options[FAR_OPTION_MAX_KEY] + 7) / 8 * 8,
             bytes = shard_class_bytes(shard_entry_class(word));
    bytes = bytes < most ? bytes : most;
    shard_block *block = far_scratch(r->t, bytes);
    if (!block)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a pair block");
    far_read(r->t, shard_entry_addr(word), block, bytes);
    int err = far_wait(r->t);
    if (err < 0)
        return err;
    if (sizeof(*block) + block->key_length > bytes || block->key_length == 0)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': the pair block at %#llx is corrupt", r->index->name,
                        (unsigned long long)shard_entry_addr(word));
    return far_keys_give(r->keys, (far_bytes){block->bytes, block->key_length});
}


static int emit_pair_key(shard_traversal *r, far_addr mark_at, uint64_t mark, uint64_t h, int level, uint64_t bucket,
                         unsigned v) {
    (void)mark_at, (void)mark, (void)level, (void)bucket, (void)v;
    uint64_t key = shard_i_key(r->st, h);
    return far_keys_give(r->keys, (far_bytes){&key, sizeof(key)});
}


int shard_object_keys(far_task *t, far_index *index, unsigned type, const void *object, uint64_t bytes,
                      far_keys *keys) {
    const shard_block *block = object;
    (void)t, (void)index;
    if (type != SHARD_TYPE_BLOCK || bytes < sizeof(*block) || block->key_length == 0 ||
        sizeof(*block) + block->key_length > bytes)
        return 0;
    return far_keys_give(keys, (far_bytes){block->bytes, block->key_length});
}


int shard_keys(far_task *t, far_index *index, far_keys *keys) {
    return shard_traverse(&(shard_traversal){.t = t,
                                             .index = index,
                                             .st = shard_state_of(index),
                                             .keys = keys,
                                             .each = emit_entry_key,
                                             .each_pair = emit_pair_key});
}
