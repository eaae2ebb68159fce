/* Counts the round trips and verbs of each operation on the key "apple", for one kind of index or for all kinds. The
 * pages in docs/guide show its output and explain the numbers.
 *     cc verbs.c $(pkg-config --cflags --libs farindex) -o verbs && ./verbs dart 'sim:seed=1' */
#include <farindex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static far_session *session;
static far_index *index_;
static far_stats before; /* counters when the operation that is measured began */

static void check_result(int64_t result) {
    if (result < 0 && result != FAR_ERR_NOT_FOUND && result != FAR_ERR_UNSUPPORTED) {
        fprintf(stderr, "%s: %s\n", far_strerror((int)result), far_last_error());
        exit(1);
    }
}

static void print_costs(const char *kind, const char *operation, int64_t result) {
    far_stats now, cost;
    check_result(result);
    far_session_stats(session, &now);
    cost = far_stats_diff(&now, &before);
    if (result != FAR_ERR_UNSUPPORTED)
        printf("%-8s%-23s%2d round trips: %3d READ, %2d WRITE, %2d CAS, %2d FAA; %5d bytes read, %4d written\n", kind,
               operation, (int)cost.round_trips, (int)cost.reads, (int)cost.writes, (int)(cost.cas + cost.masked_cas),
               (int)cost.faa, (int)cost.bytes_read, (int)cost.bytes_written);
    far_session_stats(session, &before);
}

static int count_pair(void *count, const void *key, size_t key_length, const void *value, size_t value_length) {
    (void)key, (void)key_length, (void)value, (void)value_length;
    ++*(int *)count;
    return 0; /* 0 continues the scan */
}

static int put(const char *key, const char *value) {
    return far_put(session, index_, key, strlen(key), value, strlen(value));
}

static int get(const char *key) {
    char value[16];
    size_t length;
    return far_get(session, index_, key, strlen(key), value, sizeof value, &length);
}

static void measure_kind(const char *kind) {
    char key[16];
    int pairs = 0;
    check_result(far_index_create(session, kind, kind, NULL, &index_));
    for (int i = 0; i < 1000; i++) { /* the neighbours of "apple" */
        snprintf(key, sizeof key, "fruit%03d", i);
        check_result(put(key, "green"));
    }
    check_result(put("apple", "green"));
    check_result(get("apricot")); /* a miss; the counters start after it */
    far_session_stats(session, &before);

    print_costs(kind, "get apple", get("apple"));
    print_costs(kind, "get apple again", get("apple"));
    print_costs(kind, "get banana (absent)", get("banana"));
    print_costs(kind, "put apple (update)", put("apple", "red"));
    print_costs(kind, "put banana (insert)", put("banana", "yellow"));
    print_costs(kind, "scan of 100 from apple",
                far_scan(session, index_, "apple", 5, NULL, 0, 100, count_pair, &pairs));
    print_costs(kind, "delete apple", far_delete(session, index_, "apple", 5));
    far_index_close(index_);
}

int main(int argc, char **argv) {
    static const char *const kinds[] = {"dart", "smart", "chime", "dolphin", "shard"};
    far_pool *pool;
    check_result(far_pool_open(argc > 2 ? argv[2] : "sim:seed=1", NULL, &pool));
    check_result(far_session_open(pool, &session));
    for (int i = 0; i < 5; i++)
        if (argc < 2 || strcmp(argv[1], "all") == 0 || strcmp(argv[1], kinds[i]) == 0)
            measure_kind(kinds[i]);
    far_session_close(session);
    far_pool_close(pool);
    return 0;
}
