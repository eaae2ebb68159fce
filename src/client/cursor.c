/* Cursors. A cursor holds a chunk of pairs (range.h) and a position in it, and no pin. Moves inside the chunk cost no
 * verb. A move that leaves the chunk reads another chunk, which begins next to the current pair, into another buffer.
 * The cursor replaces its chunk only after the read has succeeded, so a move that fails leaves the position unchanged.
 *
 * A chunk is not used further if the session has written since the chunk was read, so that a session never finds older
 * pairs than those that it wrote itself. */
#include "client/cursor.h"
#include "base/error.h"
#include "client/client.h"
#include "client/op.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CHUNK   16 /* number of pairs of the first chunk after the cursor was placed or has turned round */
#define CHUNK_GROWTH  4  /* the chunk after a chunk that was used up is this many times as large */
#define LARGEST_CHUNK 256

typedef enum { CURSOR_UNPLACED, CURSOR_BEFORE_FIRST, CURSOR_AT_PAIR, CURSOR_AFTER_LAST } cursor_place;

struct far_cursor {
    far_session *session; /* NULL: the session was closed */
    far_index *index;
    far_cursor *next; /* next cursor of the session */
    cursor_place place;

    far_range *chunk;     /* chunk with the current pair; NULL if there is no current pair */
    far_bytes key, value; /* the current pair, in the buffer of the chunk */
    size_t at;            /* offset of the next pair in the buffer */
    unsigned left, used;  /* number of pairs in the chunk after the current one, and up to it */
    uint64_t writes;      /* value of session->writes before the chunk was read */

    size_t expected;   /* number of pairs that the user expects of a pass; 0: unknown */
    size_t rest;       /* number of expected pairs that were not read yet */
    size_t chunk_size; /* number of pairs of the next chunk if `rest` is 0 */

    /* the range of the cursor; the bounds are copies */
    far_bytes from, to;
    bool bounded;
    uint8_t bounds[];
};


/* ---- Moves inside the chunk ---- */

/* Returns whether the pairs of the chunk may still be returned. They may not be returned after a write of this session,
 * after the index was dropped, or if all calls on the session fail (in a child process, or after the pool was closed).
 */
static inline bool chunk_is_usable(const far_cursor *c) {
    const far_session *s = c->session;
    return s && atomic_load_explicit(&s->writes, memory_order_relaxed) == c->writes &&
           !far_index_is_dropped(c->index) && !atomic_load_explicit(&s->pool->closed, memory_order_relaxed) &&
           !far_pool_is_of_parent_process(s->pool);
}


static inline void step_in_chunk(far_cursor *c) {
    far_scan_pair(&c->chunk->buffer, &c->at, &c->key, &c->value);
    c->value.length -= far_sum_bytes(c->index);
    c->left--;
    c->used++;
}


/* ---- Reading a chunk ---- */

/* Replaces the chunk of the cursor. `chunk` may be NULL. */
static void set_chunk(far_cursor *c, far_range *chunk) {
    far_range_release(c->chunk);
    c->chunk = chunk;
    c->at = c->used = 0;
    c->left = chunk ? chunk->buffer.pairs : 0;
    c->key = c->value = (far_bytes){NULL, 0};
}


static size_t smaller_of(size_t a, size_t b) {
    return a < b ? a : b;
}


/* Returns the number of pairs to read. `placed` is true if a new pass begins. Otherwise the pass continues after the
 * current chunk. If that chunk was not used up, because the session writes between the moves, the next one is hardly
 * larger than the part that was used. */
static size_t choose_chunk_size(far_cursor *c, bool placed) {
    bool used_up = placed || c->left == 0;
    c->rest = placed ? c->expected : c->rest - smaller_of(c->rest, c->used);
    if (placed) /* the chunk after the expected pairs has the size of a first chunk */
        c->chunk_size = c->expected ? FIRST_CHUNK / CHUNK_GROWTH : FIRST_CHUNK;
    else
        c->chunk_size = used_up ? smaller_of(c->chunk_size * CHUNK_GROWTH, LARGEST_CHUNK) : c->used + 1;
    return c->rest && used_up ? smaller_of(c->rest, LARGEST_CHUNK) : c->chunk_size;
}


static int read_chunk(far_session *s, far_range *chunk) {
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    err = far_range_call(s, chunk->index, far_range_read, chunk);
    if (err < 0)
        err = far_describe_error(s, err);
    far_call_leave(s);
    return err;
}


static int fail_at_end(far_cursor *c, bool backward) {
    set_chunk(c, NULL);
    c->place = backward ? CURSOR_BEFORE_FIRST : CURSOR_AFTER_LAST;
    return far_fail(FAR_ERR_NOT_FOUND, backward ? "the range of the cursor has no key before this position"
                                                : "the range of the cursor has no key after this position");
}


/* Moves the cursor to the first pair of `part` in the direction of `part`, a part of the range of the cursor. */
static int move_to(far_cursor *c, const far_scan_chunk *part, bool placed) {
    far_range *chunk;
    int err = far_range_take(c->session, c->index, &chunk);
    if (err < 0)
        return err;
    far_range_set(chunk, part);
    chunk->scan.wanted = choose_chunk_size(c, placed);
    uint64_t writes = atomic_load_explicit(&c->session->writes, memory_order_relaxed);
    if ((err = read_chunk(c->session, chunk)) < 0 || chunk->buffer.pairs == 0) {
        far_range_release(chunk);
        return err < 0 ? err : fail_at_end(c, part->backward);
    }
    set_chunk(c, chunk);
    c->writes = writes;
    c->place = CURSOR_AT_PAIR;
    step_in_chunk(c);
    return 0;
}


/* ---- Parts of the range ---- */

/* The part of the range from `key` on. */
static far_scan_chunk part_from(const far_cursor *c, far_bytes key, bool without_key) {
    far_scan_chunk part = {.from = c->from, .bounded = c->bounded, .to = c->to};
    if (far_bytes_compare(key, c->from) >= 0) {
        part.from = key;
        part.after = without_key;
    }
    return part;
}


/* The part of the range up to `key`, in descending order. */
static far_scan_chunk part_up_to(const far_cursor *c, far_bytes key, bool with_key) {
    far_scan_chunk part = {.from = c->from, .bounded = c->bounded, .to = c->to, .backward = true};
    if (!c->bounded || far_bytes_compare(key, c->to) < 0) {
        part.bounded = true;
        part.to = key;
        part.to_included = with_key;
    }
    return part;
}


/* The whole range, in one of the two directions. */
static far_scan_chunk whole_range(const far_cursor *c, bool backward) {
    return (far_scan_chunk){.from = c->from, .bounded = c->bounded, .to = c->to, .backward = backward};
}


/* ---- Public functions: moves ---- */

static int check_cursor(const far_cursor *c) {
    if (!c)
        return far_fail(FAR_ERR_INVALID, "cursor: is NULL");
    return c->session ? 0 : far_fail(FAR_ERR_INVALID, "cursor: its session was closed");
}


static int check_seek_key(const far_cursor *c, const void *key, size_t key_len) {
    int err = check_cursor(c);
    if (err < 0)
        return err;
    return key ? far_range_check_bound(c->index, "key", key, key_len) : far_fail(FAR_ERR_INVALID, "key: is NULL");
}


static int move_to_end_of_range(far_cursor *c, bool backward) {
    int err = check_cursor(c);
    if (err < 0)
        return err;
    far_scan_chunk part = whole_range(c, backward);
    return move_to(c, &part, true);
}


/* Moves the cursor by one pair, if the chunk does not contain this pair. */
static int leave_chunk(far_cursor *c, bool backward) {
    int err = check_cursor(c);
    if (err < 0)
        return err;
    if (c->place != CURSOR_AT_PAIR)
        return c->place == (backward ? CURSOR_BEFORE_FIRST : CURSOR_AFTER_LAST) ? fail_at_end(c, backward)
                                                                                : move_to_end_of_range(c, backward);
    bool turned = c->chunk->scan.backward != backward;
    if (!turned && c->left == 0 && c->chunk->over && chunk_is_usable(c))
        return fail_at_end(c, backward);
    far_scan_chunk part = backward ? part_up_to(c, c->key, false) : part_from(c, c->key, true);
    return move_to(c, &part, turned);
}


int far_cursor_first(far_cursor *c) {
    return move_to_end_of_range(c, false);
}


int far_cursor_last(far_cursor *c) {
    return move_to_end_of_range(c, true);
}


int far_cursor_seek(far_cursor *c, const void *key, size_t key_len) {
    int err = check_seek_key(c, key, key_len);
    if (err < 0)
        return err;
    far_scan_chunk part = part_from(c, (far_bytes){key, key_len}, false);
    return move_to(c, &part, true);
}


int far_cursor_seek_before(far_cursor *c, const void *key, size_t key_len) {
    int err = check_seek_key(c, key, key_len);
    if (err < 0)
        return err;
    far_scan_chunk part = part_up_to(c, (far_bytes){key, key_len}, true);
    return move_to(c, &part, true);
}


/* Returns whether the chunk contains the next pair in this direction. */
static inline bool chunk_has_next(const far_cursor *c, bool backward) {
    return c && c->left && c->chunk->scan.backward == backward && chunk_is_usable(c);
}


int far_cursor_next(far_cursor *c) {
    if (!chunk_has_next(c, false))
        return leave_chunk(c, false);
    step_in_chunk(c);
    return 0;
}


int far_cursor_prev(far_cursor *c) {
    if (!chunk_has_next(c, true))
        return leave_chunk(c, true);
    step_in_chunk(c);
    return 0;
}


const void *far_cursor_key(const far_cursor *c, size_t *key_len) {
    if (key_len)
        *key_len = c ? c->key.length : 0;
    return c ? c->key.data : NULL;
}


const void *far_cursor_value(const far_cursor *c, size_t *value_len) {
    if (value_len)
        *value_len = c ? c->value.length : 0;
    return c ? c->value.data : NULL;
}


/* ---- Public functions: opening, range and closing ---- */

int far_cursor_open(far_session *s, far_index *index, far_cursor **cursor) {
    if (!cursor)
        return far_fail(FAR_ERR_INVALID, "cursor: is NULL");
    *cursor = NULL;
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    if ((err = far_check_index(s, index)) >= 0)
        err = far_range_check_order(index);
    far_call_leave(s);
    if (err < 0)
        return err;
    far_cursor *c = calloc(1, sizeof(*c) + 2 * (size_t)index->options[FAR_OPTION_MAX_KEY]);
    if (!c)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a cursor");
    c->session = s;
    c->index = index;
    c->from.data = c->bounds;
    c->to.data = c->bounds + index->options[FAR_OPTION_MAX_KEY];
    c->next = s->cursors;
    s->cursors = c;
    *cursor = c;
    return 0;
}


/* Sets the bounds, which were checked. `to` is NULL if the range has no upper bound. The cursor has no position
 * afterwards. */
static void set_range(far_cursor *c, far_bytes from, const far_bytes *to) {
    far_bytes_copy((void *)c->from.data, from);
    c->from.length = from.length;
    c->bounded = to != NULL;
    c->to.length = to ? to->length : 0;
    if (to)
        far_bytes_copy((void *)c->to.data, *to);
    /* The chunk is released after the bounds were copied, because a bound may be the current key. */
    set_chunk(c, NULL);
    c->place = CURSOR_UNPLACED;
}


int far_cursor_range(far_cursor *c, const void *from, size_t from_len, const void *to, size_t to_len) {
    int err = check_cursor(c);
    if (err >= 0)
        err = far_range_check_bound(c->index, "from", from, from_len);
    if (err >= 0)
        err = far_range_check_bound(c->index, "to", to, to_len);
    if (err >= 0)
        set_range(c, (far_bytes){from, from_len}, to ? &(far_bytes){to, to_len} : NULL);
    return err;
}


/* Changes the key to the first key that is greater than all keys with this prefix, which may be shorter. Returns false
 * if there is no such key. */
static bool increment_prefix(uint8_t *key, size_t *length) {
    while (*length && key[*length - 1] == 0xff)
        --*length;
    if (*length == 0)
        return false;
    key[*length - 1]++;
    return true;
}


int far_cursor_prefix(far_cursor *c, const void *prefix, size_t prefix_len) {
    int err = check_cursor(c);
    if (err >= 0)
        err = far_range_check_bound(c->index, "prefix", prefix, prefix_len);
    if (err < 0)
        return err;
    far_bytes bytes = {prefix, prefix_len};
    set_range(c, bytes, &bytes);
    c->bounded = increment_prefix((uint8_t *)c->to.data, &c->to.length);
    return 0;
}


int far_cursor_expect(far_cursor *c, size_t pairs) {
    int err = check_cursor(c);
    if (err >= 0)
        c->expected = c->rest = pairs;
    return err;
}


static void unlink_cursor(far_cursor *c) {
    far_cursor **at = &c->session->cursors;
    while (*at != c) {
        assert(*at);
        at = &(*at)->next;
    }
    *at = c->next;
}


void far_cursor_close(far_cursor *c) {
    if (!c || (c->session && far_pool_is_of_parent_process(c->session->pool)))
        return;
    if (c->session)
        unlink_cursor(c);
    set_chunk(c, NULL);
    free(c);
}


void far_cursors_detach(far_session *s) {
    for (far_cursor *c = s->cursors; c; c = c->next) {
        set_chunk(c, NULL);
        c->place = CURSOR_UNPLACED;
        c->session = NULL;
    }
    s->cursors = NULL;
}
