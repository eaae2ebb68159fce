/* Cursors of torture clients. A client has a cursor that stays open between its operations, so that its own operations
 * and those of other clients change the index between the moves.
 *
 * The history records each move that reaches a pair as a reverse or forward scan with limit 1: from the previous
 * position of the cursor in the direction of the move to the key of the pair. A move that finds the end of the range is
 * recorded as a scan of the rest of the range that returned nothing. The interval of the scan is the call that has
 * filled the buffer of the cursor, because all pairs of the buffer were read then. A call that fills the buffer counts
 * as a scan in the statistics of the session. */
#include "verify/torture_run.h"

#include <string.h>

#define MOVES_MAX 12 /* largest number of moves that a client makes one after another */

typedef far_torture_client client;
typedef far_torture_cursor cursor;


static uint64_t count_scans(const client *c) {
    far_stats stats;
    far_session_stats_of(c->session, FAR_OP_SCAN, &stats);
    return stats.ops[FAR_OP_SCAN];
}


/* ---- The part of the range that a move covers ---- */

typedef struct covered { /* keys >= from and < to */
    far_bytes from, to;
    bool bounded;
} covered;


static covered covered_from(const cursor *cur, far_bytes from) {
    far_bytes low = {cur->from, cur->from_len};
    return (covered){far_bytes_compare(from, low) < 0 ? low : from, {cur->to, cur->to_len}, cur->bounded};
}


static covered covered_up_to(const cursor *cur, far_bytes to) {
    far_bytes high = {cur->to, cur->to_len};
    bool inside = !cur->bounded || far_bytes_compare(to, high) < 0;
    return (covered){{cur->from, cur->from_len}, inside ? to : high, true};
}


/* Returns the part of the range that a move of this kind covers. `key` is the key of a seek, and `next` has room for
 * the smallest key that is greater than a given key. */
static covered covered_by_move(const cursor *cur, far_torture_move move, far_bytes key, uint8_t *next) {
    covered all = {{cur->from, cur->from_len}, {cur->to, cur->to_len}, cur->bounded};
    far_bytes position = {cur->key, cur->key_len}, of = move == FAR_MOVE_SEEK_BEFORE ? key : position;
    memcpy(next, of.data, of.length);
    next[of.length] = 0;
    far_bytes after = {next, of.length + 1};
    switch (move) {
    case FAR_MOVE_SEEK:
        return covered_from(cur, key);
    case FAR_MOVE_SEEK_BEFORE:
        return covered_up_to(cur, after);
    case FAR_MOVE_NEXT:
        return cur->place == FAR_PLACE_PAIR ? covered_from(cur, after) : all;
    case FAR_MOVE_PREV:
        return cur->place == FAR_PLACE_PAIR ? covered_up_to(cur, position) : all;
    default:
        return all;
    }
}


/* ---- One move ---- */

static int run_move(far_cursor *it, far_torture_move move, far_bytes key) {
    switch (move) {
    case FAR_MOVE_FIRST:
        return far_cursor_first(it);
    case FAR_MOVE_LAST:
        return far_cursor_last(it);
    case FAR_MOVE_SEEK:
        return far_cursor_seek(it, key.data, key.length);
    case FAR_MOVE_SEEK_BEFORE:
        return far_cursor_seek_before(it, key.data, key.length);
    case FAR_MOVE_NEXT:
        return far_cursor_next(it);
    default:
        return far_cursor_prev(it);
    }
}


static bool moves_down(far_torture_move move) {
    return move == FAR_MOVE_LAST || move == FAR_MOVE_SEEK_BEFORE || move == FAR_MOVE_PREV;
}


static void record_move(client *c, const covered *part, bool down, int result) {
    cursor *cur = &c->cursor;
    size_t record = far_history_begin_scan(c->run->history, c->number, part->from.data, part->from.length,
                                           part->bounded ? part->to.data : NULL, part->to.length, result == 0, down,
                                           cur->read_start);
    if (result == 0) {
        size_t key_len, value_len;
        const void *key = far_cursor_key(cur->open, &key_len), *value = far_cursor_value(cur->open, &value_len);
        far_history_pair_given(c->run->history, record, key, key_len, value, value_len);
    }
    far_history_end(c->run->history, record,
                    result == FAR_ERR_NOT_FOUND ? 0
                    : result == 0               ? 1
                                                : result,
                    NULL, 0, cur->read_end);
}


static void keep_position(cursor *cur, int result, bool down) {
    cur->place = result == 0 ? FAR_PLACE_PAIR : down ? FAR_PLACE_BEFORE : FAR_PLACE_AFTER;
    if (result != 0)
        return;
    const void *key = far_cursor_key(cur->open, &cur->key_len);
    memcpy(cur->key, key, cur->key_len);
}


/* Makes one move and records it. Returns the result of the move. */
static int move_and_record(client *c, far_torture_move move, far_bytes key) {
    cursor *cur = &c->cursor;
    uint8_t next[FAR_KEY_MAX + 1];
    bool down = moves_down(move), was_at_end = cur->place == (down ? FAR_PLACE_BEFORE : FAR_PLACE_AFTER);
    covered part = covered_by_move(cur, move, key, next);
    uint64_t scans = count_scans(c);
    int64_t start = far_torture_stamp(c->run);
    int result = run_move(cur->open, move, key);
    if (far_torture_client_has_failed(c))
        return FAR_ERR_FENCED; /* The compute node was killed, so the result does not count. */
    bool has_read = count_scans(c) != scans;
    if (has_read) {
        cur->read_start = start;
        cur->read_end = far_torture_stamp(c->run);
    } else if (result == 0 && cur->writes != c->writes_ended) {
        far_torture_problem(c->run, "a cursor returned a pair that it had read before a write of its session");
    }
    if (has_read)
        cur->writes = c->writes_ended;
    if (result != 0 && result != FAR_ERR_NOT_FOUND)
        return result;
    bool states_nothing = was_at_end && (move == FAR_MOVE_NEXT || move == FAR_MOVE_PREV);
    if (!states_nothing)
        record_move(c, &part, down, result);
    keep_position(cur, result, down);
    return result;
}


/* ---- Passes ---- */

/* Opens a cursor with a random range and a random hint. */
static int open_cursor(client *c) {
    cursor *cur = &c->cursor;
    static const size_t hints[] = {0, 1, 3, 40};
    int err = far_cursor_open(c->session, c->node->index, &cur->open);
    if (err < 0)
        return err;
    cur->from_len = far_random_chance(&c->random, 1, 3) ? far_torture_choose_key(c, cur->from) : 0;
    cur->bounded = far_random_chance(&c->random, 1, 3);
    cur->to_len = cur->bounded ? far_torture_choose_key(c, cur->to) : 0;
    cur->place = FAR_PLACE_NONE;
    cur->key_len = 0;
    err = far_cursor_range(cur->open, cur->from_len ? cur->from : NULL, cur->from_len, cur->bounded ? cur->to : NULL,
                           cur->to_len);
    return err < 0 ? err : far_cursor_expect(cur->open, hints[far_random_below(&c->random, 4)]);
}


static far_torture_move choose_move(client *c, bool first_of_pass) {
    if (first_of_pass && (c->cursor.place == FAR_PLACE_NONE || far_random_chance(&c->random, 1, 3)))
        return (far_torture_move)far_random_below(&c->random, FAR_MOVES);
    return c->cursor.down ? FAR_MOVE_PREV : FAR_MOVE_NEXT;
}


void far_torture_close_cursor(client *c) {
    far_cursor_close(c->cursor.open);
    c->cursor.open = NULL;
}


int far_torture_move_cursor(client *c) {
    cursor *cur = &c->cursor;
    uint8_t key[FAR_KEY_MAX];
    int result = cur->open ? 0 : open_cursor(c);
    if (result >= 0 && far_random_chance(&c->random, 1, 4))
        cur->down = !cur->down;
    for (uint64_t left = 1 + far_random_below(&c->random, MOVES_MAX), i = 0; result >= 0 && i < left; i++) {
        far_bytes sought = {key, far_torture_choose_key(c, key)};
        result = move_and_record(c, choose_move(c, i == 0), sought);
    }
    if (result == FAR_ERR_NOT_FOUND)
        result = 0;
    if (result < 0 || far_random_chance(&c->random, 1, 6))
        far_torture_close_cursor(c);
    return result;
}
