/* Keeps up to WINDOW operations of one session in flight, first puts and then gets, so that their round trips overlap.
 *     ./pipeline [URI] [PAIRS] */
#include <farindex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW 64

/* Memory of one operation in flight. It must stay valid until the operation is reaped. */
typedef struct slot {
    far_op op;
    char key[16], value[16];
} slot;

static int fail(int result) {
    fprintf(stderr, "%s: %s\n", far_strerror(result), far_last_error());
    return 1;
}

static void prepare(slot *s, far_index *index, far_op_kind kind, int number) {
    memset(&s->op, 0, sizeof s->op);
    s->op.kind = kind;
    s->op.index = index;
    s->op.key = s->key;
    s->op.key_len = (size_t)snprintf(s->key, sizeof s->key, "key-%d", number);
    s->op.value = s->value;
    s->op.capacity = sizeof s->value;
    if (kind == FAR_OP_PUT)
        s->op.value_len = (size_t)snprintf(s->value, sizeof s->value, "%d", number * 2);
    s->op.user = s;
}

/* Returns whether the operation succeeded and the value is twice the number in the key. */
static int is_right(const slot *s) {
    char expected[16];
    int length = snprintf(expected, sizeof expected, "%d", atoi(s->key + 4) * 2);
    return s->op.result == FAR_OK && s->op.value_len == (size_t)length &&
           memcmp(s->value, expected, (size_t)length) == 0;
}

/* Runs one operation of this kind for each pair. Returns the number of operations with the expected result, or an
 * error. */
static int run_all(far_session *session, far_index *index, far_op_kind kind, int pairs) {
    static slot slots[WINDOW];
    slot *idle[WINDOW];
    far_op *done[WINDOW];
    int idle_count = WINDOW, next = 0, right = 0;
    for (int i = 0; i < WINDOW; i++)
        idle[i] = &slots[i];
    while (next < pairs || idle_count < WINDOW) {
        while (idle_count > 0 && next < pairs) {
            far_op *op = &idle[--idle_count]->op;
            prepare(idle[idle_count], index, kind, next++);
            if (far_submit(session, &op, 1) != 1)
                return -1;
        }
        int count = far_reap(session, done, WINDOW, 1);
        if (count < 0)
            return count;
        for (int i = 0; i < count; i++) {
            if (done[i]->result < 0) /* far_last_error describes only one failure */
                fprintf(stderr, "%s\n", far_op_error(session, done[i]));
            right += is_right(done[i]->user);
            idle[idle_count++] = done[i]->user;
        }
    }
    return right;
}

int main(int argc, char **argv) {
    far_pool *pool = NULL;
    far_session *session = NULL;
    far_index *index = NULL;
    int pairs = argc > 2 ? atoi(argv[2]) : 10000;
    int result = far_pool_open(argc > 1 ? argv[1] : "local:256M", NULL, &pool);
    if (result == FAR_OK)
        result = far_session_open(pool, &session);
    if (result == FAR_OK)
        result = far_index_create(session, "pairs", "dart", NULL, &index);
    if (result != FAR_OK)
        return fail(result);
    int put = run_all(session, index, FAR_OP_PUT, pairs), got = run_all(session, index, FAR_OP_GET, pairs);
    printf("%d put, %d got\n", put, got);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    return put != pairs || got != pairs;
}
