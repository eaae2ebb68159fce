/* Several processes share out the numbers from 0 to NUMBERS - 1. To take a number, a process inserts it as a key. An
 * insert of a key succeeds in one process only, so each number is taken exactly once. At the end the program counts the
 * keys.
 *     ./counter 'shm:/dev/shm/example?size=64M' PROCESSES NUMBERS */
#include <farindex.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int fail(int result) {
    fprintf(stderr, "%s: %s\n", far_strerror(result), far_last_error());
    return 1;
}

/* Opens a pool, a session and the index. Every process calls this after fork, because handles do not survive fork. */
static int open_all(const char *uri, far_pool **pool, far_session **session, far_index **index) {
    int result = far_pool_open(uri, NULL, pool);
    if (result == FAR_OK)
        result = far_session_open(*pool, session);
    if (result == FAR_OK)
        result = far_index_create(*session, "numbers", "dart", NULL, index);
    if (result == FAR_ERR_EXISTS)
        result = far_index_open(*session, "numbers", index);
    return result;
}

static int take_numbers(const char *uri, int process, int numbers) {
    far_pool *pool = NULL;
    far_session *session = NULL;
    far_index *index = NULL;
    char key[16], owner[16];
    int taken = 0;
    int result = open_all(uri, &pool, &session, &index);
    int owner_length = snprintf(owner, sizeof owner, "%d", process);
    for (int i = 0; i < numbers && result == FAR_OK; i++) {
        int length = snprintf(key, sizeof key, "%08d", i);
        result = far_insert(session, index, key, (size_t)length, owner, (size_t)owner_length);
        if (result == FAR_OK)
            taken++;
        if (result == FAR_ERR_EXISTS)
            result = FAR_OK;
    }
    if (result != FAR_OK)
        return fail(result);
    printf("process %d took %d\n", process, taken);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    return 0;
}

static int count_pair(void *count, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)key, (void)key_len, (void)value, (void)value_len;
    ++*(int *)count;
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 4)
        return fprintf(stderr, "usage: counter URI PROCESSES NUMBERS\n"), 2;
    int processes = atoi(argv[2]), numbers = atoi(argv[3]), failed = 0, status, count = 0;
    for (int i = 0; i < processes; i++) {
        pid_t child = fork();
        if (child == 0)
            return take_numbers(argv[1], i, numbers);
        failed |= child < 0;
    }
    while (wait(&status) > 0)
        failed |= status != 0;

    far_pool *pool = NULL;
    far_session *session = NULL;
    far_index *index = NULL;
    int result = open_all(argv[1], &pool, &session, &index);
    int64_t pairs = result == FAR_OK ? far_scan(session, index, NULL, 0, NULL, 0, 0, count_pair, &count) : result;
    if (pairs < 0)
        return fail((int)pairs);
    printf("all: %d\n", count);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    return failed || count != numbers;
}
