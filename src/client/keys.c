/* All pairs of an index whose kind has no order: its hook walks over the keys, a slice at a time; between slices, with
 * nothing pinned, its task rests while the caller looks each key up and gives the pairs to the user. */
#include "base/error.h"
#include "client/client.h"
#include "client/op.h"
#include "index/results.h"

#include <stdlib.h>
#include <string.h>

typedef struct keys_run {
    far_session *session;
    far_index *index;
    far_task *task;
    far_keys keys; /* as far as it has come */
    bool over;
    int result;
    char words[FAR_MESSAGE_BYTES]; /* of result: those of the task end with it */
} keys_run;


static void run_keys(far_task *t, void *arg) {
    keys_run *run = arg;
    t->label = "keys";
    t->index_key = run->index->uid;
    run->result = run->index->kind->keys(t, run->index, &run->keys);
    if (run->result < 0)
        strcpy(run->words, far_last_error());
    run->over = run->keys.due = true;
}


/* Outside the session. A key that is gone by now was not there throughout. */
static int64_t deliver(keys_run *run, far_pair_fn each, void *ctx, uint8_t *value) {
    int64_t given = 0;
    for (size_t at = 0; at < run->keys.used && !run->keys.stopped;) {
        uint32_t length;
        size_t value_len = 0;
        memcpy(&length, run->keys.data + at, sizeof(length));
        const char *key = run->keys.data + at + sizeof(length);
        at += sizeof(length) + length;
        int err = far_get(run->session, run->index, key, length, value, FAR_VALUE_MAX, &value_len);
        if (err == FAR_ERR_NOT_FOUND)
            continue;
        if (err < 0)
            return err;
        given++;
        run->keys.stopped = each(ctx, key, length, value, value_len) != 0;
    }
    run->keys.used = 0;
    return given;
}


/* Inside, until there is something to deliver. */
static int run_until_due(keys_run *run) {
    far_session *s = run->session;
    far_session_enter(s);
    run->keys.due = false;
    if (!run->task)
        run->task = far_task_new(s, FAR_STATS_OTHER, run_keys, run);
    else if (run->keys.resting) {
        run->keys.resting = false;
        far_task_wake(run->task);
    }
    if (run->task)
        far_session_run_until(s, &run->keys.due);
    far_session_leave(s);
    return run->task ? 0 : far_fail(FAR_ERR_NO_MEMORY, "no memory for a coroutine");
}


static int64_t walk_keys(keys_run *run, far_pair_fn each, void *ctx, uint8_t *value) {
    int64_t given = 0, more = 0;
    do {
        int err = run_until_due(run);
        if (err < 0)
            return err;
        if (more >= 0)
            more = deliver(run, each, ctx, value);
        run->keys.stopped |= more < 0; /* the task ends before we do */
        run->keys.used = 0;
        given += more > 0 ? more : 0;
    } while (!run->over);
    if (more < 0)
        return more;
    if (run->result >= 0 || run->keys.stopped)
        return given;
    far_fail(run->result, "%s", run->words); /* unless there are better words */
    return far_tell(run->session, run->result);
}


int64_t far_index_pairs(far_session *s, far_index *index, far_pair_fn each, void *ctx) {
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    int64_t result = far_check_index(s, index);
    bool ordered = result >= 0 && index->kind->scan, walks = result >= 0 && !ordered && index->kind->keys;
    if (walks) {
        keys_run run = {.session = s, .index = index};
        uint8_t *value = malloc(FAR_VALUE_MAX);
        far_index_use(index);
        result = value ? walk_keys(&run, each, ctx, value) : far_fail(FAR_ERR_NO_MEMORY, "no memory for a value");
        far_index_unuse(index);
        free(value);
        free(run.keys.data);
    }
    far_ops_deliver(s);
    far_call_leave(s);
    return result < 0 || walks ? result : far_scan(s, index, NULL, 0, NULL, 0, 0, each, ctx);
}
