/* All pairs of an index whose kind has no order: its hook walks over the keys, a slice at a time; between slices, with
 * nothing pinned, its task rests while the caller looks each key up and gives the pairs to the user. */
#include "pool/handle.h"
#include "runtime/error.h"
#include "runtime/op.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES (64 * 1024)

struct far_keys {
    far_session *session;
    far_index *index;
    far_task *task;
    char *data; /* for each key its length, then its bytes */
    size_t size, used;
    bool due;     /* there is something for the caller to do */
    bool resting; /* the task waits for that */
    bool over, stopped;
    int result;
};


int far_keys_give(far_keys *keys, far_bytes key) {
    uint32_t length = (uint32_t)key.length;
    if (keys->used + sizeof(length) + key.length > keys->size) {
        size_t size = 2 * keys->size + CHUNK_BYTES + sizeof(length) + key.length;
        char *data = realloc(keys->data, size);
        if (!data)
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for the keys of an index");
        keys->data = data;
        keys->size = size;
    }
    memcpy(keys->data + keys->used, &length, sizeof(length));
    memcpy(keys->data + keys->used + sizeof(length), key.data, key.length);
    keys->used += sizeof(length) + key.length;
    return 0;
}


int far_keys_rest(far_task *t, far_keys *keys) {
    if (keys->used >= CHUNK_BYTES) {
        keys->resting = keys->due = true;
        while (keys->resting)
            far_task_block(t);
    }
    return keys->stopped ? FAR_ERR_BUSY : 0;
}


static void run_keys(far_task *t, void *arg) {
    far_keys *keys = arg;
    t->label = "keys";
    t->index_key = keys->index->uid;
    keys->result = keys->index->kind->keys(t, keys->index, keys);
    keys->over = keys->due = true;
}


/* Outside the session. A key that is gone by now was not there throughout. */
static int64_t deliver(far_keys *keys, far_pair_fn each, void *ctx, uint8_t *value) {
    int64_t given = 0;
    for (size_t at = 0; at < keys->used && !keys->stopped;) {
        uint32_t length;
        size_t value_len = 0;
        memcpy(&length, keys->data + at, sizeof(length));
        const char *key = keys->data + at + sizeof(length);
        at += sizeof(length) + length;
        int err = far_get(keys->session, keys->index, key, length, value, FAR_VALUE_MAX, &value_len);
        if (err == FAR_ERR_NOT_FOUND)
            continue;
        if (err < 0)
            return err;
        given++;
        keys->stopped = each(ctx, key, length, value, value_len) != 0;
    }
    keys->used = 0;
    return given;
}


/* Inside, until there is something to deliver. */
static int run_until_due(far_keys *keys) {
    far_session *s = keys->session;
    far_session_enter(s);
    keys->due = false;
    if (!keys->task)
        keys->task = far_task_new(s, FAR_STATS_OTHER, run_keys, keys);
    else if (keys->resting) {
        keys->resting = false;
        far_task_wake(keys->task);
    }
    if (keys->task)
        far_session_run_until(s, &keys->due);
    far_session_leave(s);
    return keys->task ? 0 : far_fail(FAR_ERR_NO_MEMORY, "no memory for a coroutine");
}


static int64_t walk_keys(far_keys *keys, far_pair_fn each, void *ctx, uint8_t *value) {
    int64_t given = 0, more = 0;
    do {
        int err = run_until_due(keys);
        if (err < 0)
            return err;
        if (more >= 0)
            more = deliver(keys, each, ctx, value);
        keys->stopped |= more < 0; /* the task ends before we do */
        keys->used = 0;
        given += more > 0 ? more : 0;
    } while (!keys->over);
    if (more < 0)
        return more;
    return keys->result < 0 && !keys->stopped ? far_tell(keys->session, keys->result) : given;
}


int64_t far_index_pairs(far_session *s, far_index *index, far_pair_fn each, void *ctx) {
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    int64_t result = far_check_index(s, index);
    bool ordered = result >= 0 && index->kind->scan, walks = result >= 0 && !ordered && index->kind->keys;
    if (walks) {
        far_keys keys = {.session = s, .index = index};
        uint8_t *value = malloc(FAR_VALUE_MAX);
        far_index_use(index);
        result = value ? walk_keys(&keys, each, ctx, value) : far_fail(FAR_ERR_NO_MEMORY, "no memory for a value");
        far_index_unuse(index);
        free(value);
        free(keys.data);
    }
    far_ops_deliver(s);
    far_call_leave(s);
    return result < 0 || walks ? result : far_scan(s, index, NULL, 0, NULL, 0, 0, each, ctx);
}
