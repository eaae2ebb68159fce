/* Counts its own runs. The count is stored in a pool that outlives the program, so each run prints the next number.
 *     cc quick.c $(pkg-config --cflags --libs farindex) -o quick && ./quick 'shm:/dev/shm/example?size=64M' */
#include <farindex.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(int result) {
    fprintf(stderr, "%s: %s\n", far_strerror(result), far_last_error());
    return 1;
}

int main(int argc, char **argv) {
    far_pool *pool = NULL;
    far_session *session = NULL;
    far_index *index = NULL;
    char text[32] = "0";
    size_t length = 0;

    int result = far_pool_open(argc > 1 ? argv[1] : "local:64M", NULL, &pool);
    if (result < 0 || (result = far_session_open(pool, &session)) < 0)
        return fail(result);
    result = far_index_create(session, "runs", "dart", NULL, &index);
    if (result == FAR_ERR_EXISTS)
        result = far_index_open(session, "runs", &index);
    if (result < 0)
        return fail(result);

    result = far_get(session, index, "count", 5, text, sizeof text - 1, &length);
    if (result < 0 && result != FAR_ERR_NOT_FOUND) /* in the first run the key is absent */
        return fail(result);
    int digits = snprintf(text, sizeof text, "%d", atoi(text) + 1);
    if ((result = far_put(session, index, "count", 5, text, (size_t)digits)) < 0)
        return fail(result);
    printf("run %s\n", text);

    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    return 0;
}
