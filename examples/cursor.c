/* A table of scores, read in order by cursors. The key of a player is "GAME/SCORE/NAME", with a score of fixed width, so
 * that the order of the keys of a game is the order of the scores.
 *     ./cursor [URI] */
#include <farindex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void stop_on_error(int result) {
    if (result >= 0)
        return;
    fprintf(stderr, "%s: %s\n", far_strerror(result), far_last_error());
    exit(1);
}

static void add_player(far_session *session, far_index *index, const char *game, unsigned score, const char *name) {
    char key[64];
    int length = snprintf(key, sizeof key, "%s/%06u/%s", game, score, name);
    stop_on_error(far_put(session, index, key, (size_t)length, name, strlen(name)));
}

static void print_player(const char *what, const far_cursor *cursor) {
    size_t key_len, value_len;
    const char *key = far_cursor_key(cursor, &key_len), *name = far_cursor_value(cursor, &value_len);
    printf("%s %.*s (%.*s)\n", what, (int)value_len, name, (int)key_len, key);
}

/* Prints the best players of a game: a pass from the last key of the game downwards. */
static void print_best(far_cursor *cursor, const char *game, int count) {
    char prefix[32];
    int length = snprintf(prefix, sizeof prefix, "%s/", game);
    stop_on_error(far_cursor_prefix(cursor, prefix, (size_t)length));
    stop_on_error(far_cursor_expect(cursor, (size_t)count));
    int result = far_cursor_last(cursor);
    for (int rank = 0; rank < count && result == FAR_OK; rank++) {
        print_player("best:", cursor);
        result = far_cursor_prev(cursor);
    }
    if (result != FAR_ERR_NOT_FOUND) /* the game has fewer players */
        stop_on_error(result);
}

/* Prints the players directly above and below a score. */
static void print_neighbours(far_cursor *cursor, const char *game, unsigned score) {
    char key[64];
    int length = snprintf(key, sizeof key, "%s/%06u/", game, score);
    if (far_cursor_seek(cursor, key, (size_t)length) == FAR_OK)
        print_player("above:", cursor);
    if (far_cursor_prev(cursor) == FAR_OK)
        print_player("below:", cursor);
}

/* Deletes the players of the game with less than this score. A cursor may delete the pair at its position. */
static int delete_below(far_session *session, far_index *index, far_cursor *cursor, const char *game, unsigned score) {
    char from[32], to[64];
    int deleted = 0, from_len = snprintf(from, sizeof from, "%s/", game);
    int to_len = snprintf(to, sizeof to, "%s/%06u", game, score);
    stop_on_error(far_cursor_range(cursor, from, (size_t)from_len, to, (size_t)to_len));
    int result;
    while ((result = far_cursor_next(cursor)) == FAR_OK) {
        size_t key_len;
        const void *key = far_cursor_key(cursor, &key_len);
        stop_on_error(far_delete(session, index, key, key_len));
        deleted++;
    }
    if (result != FAR_ERR_NOT_FOUND)
        stop_on_error(result);
    return deleted;
}

int main(int argc, char **argv) {
    far_pool *pool = NULL;
    far_session *session = NULL;
    far_index *index = NULL;
    far_cursor *cursor = NULL;
    stop_on_error(far_pool_open(argc > 1 ? argv[1] : "local:64M", NULL, &pool));
    stop_on_error(far_session_open(pool, &session));
    stop_on_error(far_index_open_or_create(session, "scores", "dolphin", NULL, &index));
    add_player(session, index, "chess", 1850, "Ada");
    add_player(session, index, "chess", 2100, "Ben");
    add_player(session, index, "chess", 1420, "Cem");
    add_player(session, index, "chess", 2650, "Dea");
    add_player(session, index, "go", 3000, "Eli");

    stop_on_error(far_cursor_open(session, index, &cursor));
    print_best(cursor, "chess", 3);
    print_neighbours(cursor, "chess", 2000);
    printf("%d deleted\n", delete_below(session, index, cursor, "chess", 2000));

    far_cursor_close(cursor);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    return 0;
}
