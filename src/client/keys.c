/* Delivers all pairs of an index whose kind has no key order (far_index_pairs, used by `farindex dump` and copy). A
 * task of the kind traverses the index in slices and collects keys. Between slices, while the task waits without a pin,
 * the caller looks up each key and delivers the pair to the user. */
#include "base/error.h"
#include "client/client.h"
#include "client/op.h"
#include "index/common/results.h"

#include <stdlib.h>
#include <string.h>

typedef struct key_traversal {
    far_session *session;
    far_index *index;
    far_task *task;
    far_keys keys; /* state of the traversal and the keys collected in the current slice */
    bool over;
    int result;
    /* error message of `result`; stored here because the task's own message is lost when the task ends */
    char words[FAR_MESSAGE_BYTES];
} key_traversal;


static void run_traversal_task(far_task *t, void *arg) {
    key_traversal *traversal = arg;
    t->label = "keys";
    t->index_key = traversal->index->uid;
    traversal->result = traversal->index->kind->keys(t, traversal->index, &traversal->keys);
    if (traversal->result < 0)
        strcpy(traversal->words, far_last_error());
    traversal->over = traversal->keys.due = true;
}


/* Delivers the collected keys with their current values. Runs outside the session. A key that is absent by now is
 * skipped, because it was not present during the whole traversal. Returns the number of pairs, or an error. */
static int64_t deliver_pairs(key_traversal *traversal, far_pair_fn each, void *ctx, uint8_t *value) {
    int64_t given = 0;
    for (size_t at = 0; at < traversal->keys.used && !traversal->keys.stopped;) {
        uint32_t length;
        size_t value_len = 0;
        memcpy(&length, traversal->keys.data + at, sizeof(length));
        const char *key = traversal->keys.data + at + sizeof(length);
        at += sizeof(length) + length;
        int err = far_get(traversal->session, traversal->index, key, length, value, FAR_VALUE_MAX, &value_len);
        if (err == FAR_ERR_NOT_FOUND && !far_index_is_dropped(traversal->index))
            continue;
        if (err < 0)
            return err;
        given++;
        traversal->keys.stopped = each(ctx, key, length, value, value_len) != 0;
    }
    traversal->keys.used = 0;
    return given;
}


/* Starts or resumes the traversal task, and runs the session until the task has collected keys or has ended. */
static int run_until_keys_are_ready(key_traversal *traversal) {
    far_session *s = traversal->session;
    far_session_enter(s);
    traversal->keys.due = false;
    if (!traversal->task)
        traversal->task = far_task_new(s, FAR_STATS_OTHER, run_traversal_task, traversal);
    else if (traversal->keys.resting) {
        traversal->keys.resting = false;
        far_task_wake(traversal->task);
    }
    if (traversal->task)
        far_session_run_until(s, &traversal->keys.due);
    far_session_leave(s);
    return traversal->task ? 0 : far_fail(FAR_ERR_NO_MEMORY, "no memory for a coroutine");
}


static int64_t traverse_and_deliver(key_traversal *traversal, far_pair_fn each, void *ctx, uint8_t *value) {
    int64_t given = 0, more = 0;
    do {
        int err = run_until_keys_are_ready(traversal);
        if (err < 0)
            return err;
        if (more >= 0)
            more = deliver_pairs(traversal, each, ctx, value);
        /* After an error, the traversal is stopped and the loop continues until the task has ended, because the task
         * uses `traversal`. */
        traversal->keys.stopped |= more < 0;
        traversal->keys.used = 0;
        given += more > 0 ? more : 0;
    } while (!traversal->over);
    if (more < 0)
        return more;
    if (traversal->result >= 0 || traversal->keys.stopped)
        return given;
    /* This message is used if neither far_describe_error nor the session has a better text. */
    far_fail(traversal->result, "%s", traversal->words);
    return far_describe_error(traversal->session, traversal->result);
}


int64_t far_index_pairs(far_session *s, far_index *index, far_pair_fn each, void *ctx) {
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    int64_t result = far_check_index(s, index);
    bool ordered = result >= 0 && index->kind->scan, traverses = result >= 0 && !ordered && index->kind->keys;
    if (traverses) {
        key_traversal traversal = {.session = s, .index = index};
        uint8_t *value = malloc(FAR_VALUE_MAX);
        far_index_use(index);
        result = value ? traverse_and_deliver(&traversal, each, ctx, value)
                       : far_fail(FAR_ERR_NO_MEMORY, "no memory for a value");
        far_index_unuse(index);
        free(value);
        free(traversal.keys.data);
    }
    far_submitted_scans_deliver(s);
    far_call_leave(s);
    return result < 0 || traverses ? result : far_scan(s, index, NULL, 0, NULL, 0, 0, each, ctx);
}
