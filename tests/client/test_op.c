/* Operations through the public API: synchronous, submitted, mixed; scans in chunks; arguments; counters. On the toy
 * map. */
#include "farindex.h"
#include "index/index.h"
#include "pool/handle.h"
#include "task/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct ground {
    far_pool *pool;
    far_session *session;
    far_index *index;
} ground;


static void open_ground(ground *g, const char *uri, const char *options) {
    assert_int_equal(far_pool_open(uri, NULL, &g->pool), 0);
    assert_int_equal(far_session_open(g->pool, &g->session), 0);
    assert_int_equal(far_index_create(g->session, "map", "toy", options, &g->index), 0);
}


static void close_ground(ground *g) {
    far_index_close(g->index);
    far_session_close(g->session);
    far_pool_close(g->pool);
}


static void says(const char *word) {
    if (!strstr(far_last_error(), word))
        fail_msg("the message '%s' does not say '%s'", far_last_error(), word);
}


#define REFUSED(call, word)                                                                                            \
    do {                                                                                                               \
        assert_int_equal(call, FAR_ERR_INVALID);                                                                       \
        says(word);                                                                                                    \
    } while (0)


static int ignore(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)ctx, (void)key, (void)key_len, (void)value, (void)value_len;
    return 0;
}


static int no_problem(void *ctx, const char *what) {
    (void)ctx, (void)what;
    return 0;
}


/* A full pool. */

static int put_numbered(ground *g, char group, unsigned number, size_t size) {
    static char value[4096];
    char key[16];
    int length = snprintf(key, sizeof(key), "%c%06u", group, number);
    return far_put(g->session, g->index, key, (size_t)length, value, size);
}


static unsigned fill_with(ground *g, char group, size_t size) {
    unsigned count = 0;
    int err;
    while ((err = put_numbered(g, group, count, size)) == 0)
        count++;
    assert_int_equal(err, FAR_ERR_NO_MEMORY);
    return count;
}


static unsigned delete_every(ground *g, char group, unsigned count, unsigned step) {
    unsigned deleted = 0;
    for (unsigned i = 0; i < count; i += step, deleted++) {
        char key[16];
        int length = snprintf(key, sizeof(key), "%c%06u", group, i);
        assert_int_equal(far_delete(g->session, g->index, key, (size_t)length), 0);
    }
    return deleted;
}


/* What was given back serves objects of any other size, smaller or larger, once its pages are empty. */
static void empty_pages_of_one_size_serve_another(void **state) {
    (void)state;
    static const size_t sizes[] = {100, 2000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        ground g;
        assert_int_equal(far_pool_open("local:4M", NULL, &g.pool), 0);
        assert_int_equal(far_session_open(g.pool, &g.session), 0);
        assert_int_equal(far_index_create(g.session, "map", "dart", NULL, &g.index), 0);
        unsigned count = fill_with(&g, 'a', 500);
        assert_int_equal(delete_every(&g, 'a', count, 1), count);
        assert_true(fill_with(&g, 'b', sizes[i]) * (sizes[i] + 64) > count * 500u / 10 * 8);
        close_ground(&g);
    }
}


static void a_full_pool_says_what_is_free_and_why_it_does_not_serve(void **state) {
    (void)state;
    ground g;
    unsigned long long room = 0, free_bytes = 0, total = 0;
    assert_int_equal(far_pool_open("local:4M", NULL, &g.pool), 0);
    assert_int_equal(far_session_open(g.pool, &g.session), 0);
    assert_int_equal(far_index_create(g.session, "map", "dart", NULL, &g.index), 0);
    unsigned count = fill_with(&g, 'a', 500);
    delete_every(&g, 'a', count, 3); /* in every page some objects stay */
    g.pool->next_full_look = 0;
    fill_with(&g, 'b', 2000);
    if (sscanf(far_last_error(), "the pool has no room for %llu bytes: %llu of its %llu bytes are free, but", &room,
               &free_bytes, &total) != 3)
        fail_msg("%s", far_last_error());
    assert_true(room >= 2000 && free_bytes > 100000 && total == 4 << 20);
    says("retired");
    close_ground(&g);
}


/* Arguments. */

static void bad_arguments_are_refused_by_name(void **state) {
    (void)state;
    ground g, other;
    static char big[FAR_VALUE_MAX + 1];
    char value[8];
    size_t length;
    open_ground(&g, "local:64M", NULL);
    open_ground(&other, "local:64M", NULL);
    far_session *s = g.session;
    REFUSED(far_get(NULL, g.index, "k", 1, value, 8, &length), "session");
    REFUSED(far_get(s, NULL, "k", 1, value, 8, &length), "index");
    REFUSED(far_get(s, other.index, "k", 1, value, 8, &length), "another pool handle");
    REFUSED(far_get(s, g.index, NULL, 1, value, 8, &length), "key");
    REFUSED(far_get(s, g.index, "k", 0, value, 8, &length), "key");
    REFUSED(far_get(s, g.index, big, FAR_KEY_MAX + 1, value, 8, &length), "key");
    REFUSED(far_get(s, g.index, "k", 1, NULL, 8, &length), "value");
    REFUSED(far_insert(s, g.index, "k", 1, NULL, 1), "value");
    REFUSED(far_update(s, g.index, "k", 1, big, FAR_VALUE_MAX + 1), "value");
    REFUSED(far_put(s, g.index, "k", 0, "v", 1), "key");
    REFUSED(far_delete(s, g.index, NULL, 0), "key");
    REFUSED((int)far_scan(s, NULL, NULL, 0, NULL, 0, 0, ignore, NULL), "index");
    REFUSED((int)far_scan(s, g.index, NULL, 0, NULL, 0, 0, NULL, NULL), "each");
    REFUSED((int)far_scan(s, g.index, NULL, 1, NULL, 0, 0, ignore, NULL), "from");
    REFUSED((int)far_scan(s, g.index, NULL, 0, NULL, 1, 0, ignore, NULL), "to");
    REFUSED((int)far_scan(s, g.index, big, FAR_KEY_MAX + 1, NULL, 0, 0, ignore, NULL), "from");
    REFUSED(far_submit(s, NULL, 1), "ops");
    far_op *none[1] = {NULL};
    REFUSED(far_submit(s, none, 1), "ops[0]");
    REFUSED(far_reap(s, NULL, 1, 1), "done");
    REFUSED(far_session_stats_of(s, (far_op_kind)9, &(far_stats){.reads = 0}), "kind");
    REFUSED(far_session_stats_of(NULL, FAR_OP_GET, &(far_stats){.reads = 0}), "session");
    REFUSED(far_index_usage(s, g.index, NULL), "usage");
    REFUSED(far_index_usage(s, other.index, &(far_usage){0}), "another");
    REFUSED(far_index_check(s, NULL, no_problem, NULL), "index");
    assert_int_equal(far_index_check(s, g.index, NULL, NULL), 0); /* the words are not wanted, the count is */
    assert_int_equal(far_pool_check(s, 0, NULL, NULL), 0);
    REFUSED(far_pool_stat(s, NULL), "usage");
    REFUSED(far_pool_check(s, 2, no_problem, NULL), "repair");
    assert_int_equal(far_put(s, g.index, big, FAR_KEY_MAX, big, FAR_VALUE_MAX), 0);
    assert_int_equal(far_put(s, g.index, "k", 1, NULL, 0), 0);
    close_ground(&other);
    close_ground(&g);
}


static void a_closed_pool_refuses_its_sessions(void **state) {
    (void)state;
    ground g;
    char value[8];
    far_op op = {.kind = FAR_OP_GET, .key = "k", .key_len = 1}, *one = &op;
    open_ground(&g, "local:64M", NULL);
    op.index = g.index;
    far_pool_close(g.pool);
    REFUSED(far_get(g.session, g.index, "k", 1, value, 8, NULL), "closed");
    REFUSED(far_submit(g.session, &one, 1), "closed");
    REFUSED(far_reap(g.session, &one, 1, 1), "closed");
    REFUSED((int)far_scan(g.session, g.index, NULL, 0, NULL, 0, 0, ignore, NULL), "closed");
    REFUSED(far_index_list(g.session, NULL, NULL), "closed");
    far_index_close(g.index);
    far_session_close(g.session);
}


static void fixed_sizes_are_enforced(void **state) {
    (void)state;
    ground g;
    char value[8];
    open_ground(&g, "local:64M", "key_size=4,value_size=2");
    assert_int_equal(far_put(g.session, g.index, "abcd", 4, "12", 2), 0);
    REFUSED(far_put(g.session, g.index, "abc", 3, "12", 2), "key");
    REFUSED(far_put(g.session, g.index, "abcd", 4, "1", 1), "value");
    REFUSED(far_get(g.session, g.index, "abcde", 5, value, 8, NULL), "key");
    REFUSED(far_delete(g.session, g.index, "abcde", 5), "key");
    close_ground(&g);
}


static void a_small_buffer_is_told_the_size_and_not_written(void **state) {
    (void)state;
    ground g;
    char value[8] = "xxxxxxx";
    size_t length = 0;
    open_ground(&g, "local:64M", NULL);
    assert_int_equal(far_put(g.session, g.index, "k", 1, "12345", 5), 0);
    assert_int_equal(far_get(g.session, g.index, "k", 1, value, 4, &length), FAR_ERR_TOO_SMALL);
    says("value");
    assert_int_equal(length, 5);
    assert_string_equal(value, "xxxxxxx");
    assert_int_equal(far_get(g.session, g.index, "k", 1, NULL, 0, &length), FAR_ERR_TOO_SMALL);
    assert_int_equal(far_get(g.session, g.index, "k", 1, value, 5, NULL), 0);
    assert_memory_equal(value, "12345xx", 8);
    assert_int_equal(far_get(g.session, g.index, "q", 1, value, 8, NULL), FAR_ERR_NOT_FOUND);
    says("no such key");
    close_ground(&g);
}


/* Submitting and reaping. */

enum { MANY = 500 };

typedef struct crowd {
    far_op ops[MANY];
    char keys[MANY][8], values[MANY][8];
} crowd;


static void fill(crowd *c, far_index *index, far_op_kind kind) {
    memset(c, 0, sizeof(*c));
    for (int i = 0; i < MANY; i++) {
        far_op *op = &c->ops[i];
        op->kind = kind;
        op->index = index;
        op->key = c->keys[i];
        op->key_len = (size_t)snprintf(c->keys[i], sizeof(c->keys[i]), "%d", i);
        op->value = c->values[i];
        op->user = c->keys[i];
        op->result = 77;
        if (kind == FAR_OP_GET)
            op->capacity = sizeof(c->values[i]);
        else
            op->value_len = (size_t)snprintf(c->values[i], sizeof(c->values[i]), "v%d", i);
    }
}


/* Submits all, reaping when the session is full. Returns how often it was. */
static unsigned run_all(far_session *s, crowd *c) {
    far_op *ops[MANY], *done[16];
    unsigned full = 0;
    size_t submitted = 0, reaped = 0;
    for (int i = 0; i < MANY; i++)
        ops[i] = &c->ops[i];
    while (reaped < MANY) {
        int taken = submitted < MANY ? far_submit(s, ops + submitted, MANY - submitted) : 0;
        assert_true(taken >= 0);
        submitted += (size_t)taken;
        full += submitted < MANY;
        assert_true(submitted - reaped <= FAR_OPS_MAX);
        int count = far_reap(s, done, 16, 16);
        assert_int_equal(count, submitted - reaped < 16 ? submitted - reaped : 16);
        for (int i = 0; i < count; i++)
            assert_ptr_equal(done[i]->user, done[i]->key);
        reaped += (size_t)count;
    }
    assert_int_equal(far_reap(s, done, 16, 16), 0);
    return full;
}


static void submitted_operations_all_finish_with_their_results(void **state) {
    (void)state;
    static crowd c;
    const char *uris[] = {"local:2x256M", "local:2x256M?rtt=20us"};
    for (unsigned u = 0; u < 2; u++) {
        ground g;
        open_ground(&g, uris[u], "slots=64");
        far_op_kind kinds[] = {FAR_OP_UPDATE, FAR_OP_INSERT, FAR_OP_INSERT, FAR_OP_GET,
                               FAR_OP_PUT,    FAR_OP_DELETE, FAR_OP_GET};
        int expected[] = {FAR_ERR_NOT_FOUND, 0, FAR_ERR_EXISTS, 0, 0, 0, FAR_ERR_NOT_FOUND};
        for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
            fill(&c, g.index, kinds[k]);
            assert_true(run_all(g.session, &c) > 0);
            for (int i = 0; i < MANY; i++) {
                char value[8];
                assert_int_equal(c.ops[i].result, expected[k]);
                if (kinds[k] != FAR_OP_GET || expected[k] != 0)
                    continue;
                assert_int_equal(c.ops[i].value_len, snprintf(value, sizeof(value), "v%d", i));
                assert_memory_equal(c.values[i], value, c.ops[i].value_len);
            }
            far_stats stats;
            assert_int_equal(far_session_stats_of(g.session, kinds[k], &stats), 0);
            assert_int_equal(stats.ops[kinds[k]], kinds[k] == FAR_OP_INSERT && k == 2 ? 2 * MANY
                                                  : k == 6                            ? 2 * MANY
                                                                                      : MANY);
        }
        close_ground(&g);
    }
}


static void a_bad_operation_is_taken_and_finishes_with_its_error(void **state) {
    (void)state;
    ground g;
    open_ground(&g, "local:64M", NULL);
    far_op good = {.kind = FAR_OP_PUT, .index = g.index, .key = "k", .key_len = 1, .value = "v", .value_len = 1};
    far_op no_key = {.kind = FAR_OP_PUT, .index = g.index, .value = "v", .value_len = 1};
    far_op no_index = {.kind = FAR_OP_GET, .key = "k", .key_len = 1};
    far_op no_kind = {.kind = (far_op_kind)17, .index = g.index, .key = "k", .key_len = 1};
    far_op no_each = {.kind = FAR_OP_SCAN, .index = g.index};
    far_op *ops[] = {&no_key, &good, &no_index, &no_kind, &no_each}, *done[5];
    assert_int_equal(far_submit(g.session, ops, 5), 5);
    assert_int_equal(far_reap(g.session, done, 5, 5), 5);
    assert_int_equal(good.result, 0);
    assert_int_equal(no_key.result, FAR_ERR_INVALID);
    assert_int_equal(no_index.result, FAR_ERR_INVALID);
    assert_int_equal(no_kind.result, FAR_ERR_INVALID);
    assert_int_equal(no_each.result, FAR_ERR_INVALID);
    close_ground(&g);
}


static void op_says(ground *g, const far_op *op, const char *word) {
    if (!strstr(far_op_error(g->session, op), word))
        fail_msg("the operation's words '%s' do not say '%s'", far_op_error(g->session, op), word);
}


static void every_operation_has_words_of_its_own(void **state) {
    (void)state;
    ground g;
    open_ground(&g, "local:8M?rtt=20us", NULL);
    char value[8];
    far_op ops[4] = {{.kind = FAR_OP_PUT, .index = g.index, .key = "", .key_len = 0},
                     {.kind = (far_op_kind)77, .index = g.index, .key = "k", .key_len = 1},
                     {.kind = FAR_OP_GET, .index = g.index, .key = "k", .key_len = 1, .value = value, .capacity = 8},
                     {.kind = FAR_OP_PUT, .index = g.index, .key = "k", .key_len = 1, .value = value, .value_len = 8}};
    far_op *all[4] = {&ops[0], &ops[1], &ops[2], &ops[3]}, *done[4];
    assert_int_equal(far_submit(g.session, all, 3), 3);
    assert_int_equal(far_reap(g.session, done, 4, 3), 3);
    assert_int_equal(far_submit(g.session, all + 3, 1), 1);
    assert_int_equal(far_reap(g.session, done, 4, 1), 1);
    op_says(&g, &ops[0], "key: is empty");
    op_says(&g, &ops[1], "77 is no kind");
    op_says(&g, &ops[2], "no such key");
    assert_string_equal(far_op_error(g.session, &ops[3]), "");
    op_says(&g, &ops[0], "key: is empty"); /* until it is submitted again */
    ops[0].key = "k", ops[0].key_len = 1, ops[0].value_len = FAR_VALUE_MAX + 1, ops[0].value = value;
    assert_int_equal(far_submit(g.session, all, 1), 1);
    assert_int_equal(far_reap(g.session, done, 4, 1), 1);
    op_says(&g, &ops[0], "value");
    for (unsigned i = 0; i < 3000; i++) { /* words of old failures are forgotten, not gathered */
        far_op bad = ops[1], *one = &bad;
        assert_int_equal(far_submit(g.session, &one, 1), 1);
        assert_int_equal(far_reap(g.session, done, 4, 1), 1);
        op_says(&g, &bad, "77 is no kind");
    }
    assert_non_null(strstr(far_op_error(NULL, &ops[0]), "session"));
    close_ground(&g);
}


static void reap_waits_for_as_many_as_asked_and_no_more(void **state) {
    (void)state;
    ground g;
    open_ground(&g, "local:64M?rtt=2ms", NULL);
    far_op ops[3], *all[3] = {&ops[0], &ops[1], &ops[2]}, *done[3];
    for (int i = 0; i < 3; i++)
        ops[i] = (far_op){
            .kind = FAR_OP_PUT, .index = g.index, .key = &"abc"[i], .key_len = 1, .value = "v", .value_len = 1};
    assert_int_equal(far_reap(g.session, done, 3, 3), 0); /* nothing is in flight */
    assert_int_equal(far_submit(g.session, all, 3), 3);
    assert_int_equal(far_reap(g.session, done, 3, 0), 0); /* only looks: nothing can be ready */
    int count = far_reap(g.session, done, 3, 1);
    assert_true(count >= 1);
    assert_int_equal(far_reap(g.session, done, 0, 3), 0); /* no room: no wait */
    assert_int_equal(far_reap(g.session, done, 3, 100), 3 - count);
    close_ground(&g);
}


static void a_synchronous_call_lets_the_others_go_on(void **state) {
    (void)state;
    ground g;
    char value[8];
    open_ground(&g, "local:64M?rtt=1ms", NULL);
    far_op op = {.kind = FAR_OP_PUT, .index = g.index, .key = "a", .key_len = 1, .value = "1", .value_len = 1},
           *one = &op, *done;
    assert_int_equal(far_put(g.session, g.index, "b", 1, "2", 1), 0);
    assert_int_equal(far_submit(g.session, &one, 1), 1);
    for (int i = 0; i < 3; i++) /* two round trips each, the put needs three */
        assert_int_equal(far_get(g.session, g.index, "b", 1, value, 8, NULL), 0);
    assert_int_equal(far_reap(g.session, &done, 1, 0), 1);
    assert_int_equal(op.result, 0);
    close_ground(&g);
}


static void operations_finish_while_their_thread_stays_away(void **state) {
    (void)state;
    ground g, h;
    char value[8];
    open_ground(&g, "local:64M?rtt=1ms&name=away", NULL);
    assert_int_equal(far_pool_open("local:64M?rtt=1ms&name=away", NULL, &h.pool), 0);
    assert_int_equal(far_session_open(h.pool, &h.session), 0);
    assert_int_equal(far_index_open(h.session, "map", &h.index), 0);
    far_op op = {.kind = FAR_OP_PUT, .index = g.index, .key = "a", .key_len = 1, .value = "1", .value_len = 1},
           *one = &op;
    assert_int_equal(far_submit(g.session, &one, 1), 1);
    int tries = 0;
    while (far_get(h.session, h.index, "a", 1, value, 8, NULL) != 0)
        assert_true(++tries < 2000);
    assert_int_equal(far_reap(g.session, &one, 1, 0), 1);
    far_index_close(h.index);
    far_session_close(h.session);
    far_pool_close(h.pool);
    close_ground(&g);
}


static void gets_of_one_call_share_their_round_trips(void **state) {
    (void)state;
    ground g;
    enum { GETS = 20 };
    static crowd c;
    far_op *ops[GETS], *done[GETS];
    far_stats before, after, diff;
    open_ground(&g, "local:2x64M", "slots=1024");
    fill(&c, g.index, FAR_OP_PUT);
    run_all(g.session, &c);
    fill(&c, g.index, FAR_OP_GET);
    for (int i = 0; i < GETS; i++)
        ops[i] = &c.ops[i];
    c.ops[7].key = "absent", c.ops[7].key_len = 6;
    c.ops[8].capacity = 1;
    far_session_stats_of(g.session, FAR_OP_GET, &before);
    assert_int_equal(far_submit(g.session, ops, GETS), GETS);
    assert_int_equal(far_reap(g.session, done, GETS, GETS), GETS);
    far_session_stats_of(g.session, FAR_OP_GET, &after);
    diff = far_stats_diff(&after, &before);
    assert_int_equal(diff.round_trips, 2);
    assert_int_equal(diff.ops[FAR_OP_GET], GETS);
    for (int i = 0; i < GETS; i++)
        assert_int_equal(c.ops[i].result, i == 7 ? FAR_ERR_NOT_FOUND : i == 8 ? FAR_ERR_TOO_SMALL : 0);
    assert_int_equal(c.ops[8].value_len, 2);
    assert_memory_equal(c.values[12], "v12", 3);
    close_ground(&g);
}


static void a_session_is_closed_with_operations_in_flight(void **state) {
    (void)state;
    ground g;
    far_session *s;
    static crowd c;
    far_op *ops[MANY];
    char value[8];
    open_ground(&g, "local:64M?rtt=100us", NULL);
    assert_int_equal(far_session_open(g.pool, &s), 0);
    fill(&c, g.index, FAR_OP_PUT);
    for (int i = 0; i < MANY; i++)
        ops[i] = &c.ops[i];
    far_op scan = {.kind = FAR_OP_SCAN, .index = g.index, .each = ignore}, *one = &scan;
    assert_int_equal(far_submit(s, &one, 1), 1);
    assert_true(far_submit(s, ops, 100) == 100);
    far_session_close(s);
    assert_int_equal(far_get(g.session, g.index, "99", 2, value, 8, NULL), 0);
    close_ground(&g);
}


/* Scans. */

typedef struct watcher {
    ground *ground;
    unsigned count;
    char last[8];
    size_t last_len;
    bool uses_session, bad;
    unsigned stop_at;
} watcher;


static int watch(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    watcher *w = ctx;
    (void)value, (void)value_len;
    if (w->count && far_bytes_compare((far_bytes){w->last, w->last_len}, (far_bytes){key, key_len}) >= 0)
        w->bad = true;
    memcpy(w->last, key, key_len);
    w->last_len = key_len;
    if (w->uses_session) {
        char back[8];
        watcher inner = {0};
        w->bad |= far_get(w->ground->session, w->ground->index, key, key_len, back, sizeof(back), NULL) != 0;
        w->bad |= far_put(w->ground->session, w->ground->index, key, key_len, "new", 3) != 0;
        if (w->count % 100 == 0)
            w->bad |= far_scan(w->ground->session, w->ground->index, key, key_len, NULL, 0, 3, watch, &inner) < 0;
    }
    return ++w->count == w->stop_at;
}


static void load(ground *g) {
    static crowd c;
    fill(&c, g->index, FAR_OP_PUT);
    run_all(g->session, &c);
}


static void a_scan_over_many_chunks_gives_every_key_once_in_order(void **state) {
    (void)state;
    ground g;
    open_ground(&g, "local:2x64M", "slots=32");
    load(&g);
    for (unsigned uses = 0; uses < 2; uses++) {
        watcher w = {.ground = &g, .uses_session = uses};
        assert_int_equal(far_scan(g.session, g.index, NULL, 0, NULL, 0, 0, watch, &w), MANY);
        assert_int_equal(w.count, MANY);
        assert_false(w.bad);
    }
    for (size_t limit = 255; limit <= 258; limit++) {
        watcher w = {.ground = &g};
        assert_int_equal(far_scan(g.session, g.index, NULL, 0, NULL, 0, limit, watch, &w), limit);
        assert_int_equal(w.count, limit);
    }
    watcher w = {.ground = &g, .stop_at = 300};
    assert_int_equal(far_scan(g.session, g.index, NULL, 0, NULL, 0, 0, watch, &w), 300);
    far_stats stats;
    assert_int_equal(far_session_stats_of(g.session, FAR_OP_SCAN, &stats), 0);
    assert_int_equal(stats.ops[FAR_OP_SCAN], 2 + 5 + 4 + 1); /* chunks are not counted */
    close_ground(&g);
}


static int add_length(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)key, (void)key_len;
    const char *bytes = value;
    if (value_len && bytes[0] != bytes[value_len - 1])
        return 1;
    *(size_t *)ctx += value_len;
    return 0;
}


static void large_values_pass_through_small_chunks(void **state) {
    (void)state;
    ground g;
    static char value[FAR_VALUE_MAX];
    size_t sum = 0, expected = 0;
    open_ground(&g, "local:2x64M", "slots=32");
    for (int i = 0; i < 20; i++) {
        char key = (char)('a' + i);
        size_t length = i % 3 == 0 ? FAR_VALUE_MAX : (size_t)i * 100;
        memset(value, key, sizeof(value));
        assert_int_equal(far_put(g.session, g.index, &key, 1, value, length), 0);
        expected += length;
    }
    assert_int_equal(far_scan(g.session, g.index, NULL, 0, NULL, 0, 0, add_length, &sum), 20);
    assert_int_equal(sum, expected);
    close_ground(&g);
}


static int count_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)key, (void)key_len, (void)value, (void)value_len;
    ++*(unsigned *)ctx;
    return 0;
}


static int64_t count_between(ground *g, const char *from, size_t from_len, const char *to, size_t to_len) {
    unsigned count = 0;
    int64_t result = far_scan(g->session, g->index, from, from_len, to, to_len, 0, count_pair, &count);
    assert_int_equal(result, count);
    return result;
}


/* The bounds of a scan need not have the size of the keys. */
static void bounds_of_any_length_hold_for_fixed_keys(void **state) {
    (void)state;
    for (unsigned fixed = 0; fixed < 2; fixed++) {
        ground g;
        open_ground(&g, "local:64M", fixed ? "key_size=2" : NULL);
        for (const char *const *key = (const char *const[]){"aa", "ab", "ba", "bb", "\xff\xff", NULL}; *key; key++)
            assert_int_equal(far_put(g.session, g.index, *key, 2, "v", 1), 0);
        assert_int_equal(count_between(&g, NULL, 0, NULL, 0), 5);
        assert_int_equal(count_between(&g, "", 0, NULL, 0), 5);
        assert_int_equal(count_between(&g, "b", 1, NULL, 0), 3);
        assert_int_equal(count_between(&g, "ba", 2, NULL, 0), 3);
        assert_int_equal(count_between(&g, "baa", 3, NULL, 0), 2);
        assert_int_equal(count_between(&g, NULL, 0, "b", 1), 2);
        assert_int_equal(count_between(&g, NULL, 0, "ba", 2), 2);
        assert_int_equal(count_between(&g, NULL, 0, "baa", 3), 3);
        assert_int_equal(count_between(&g, NULL, 0, "\xff\xff", 2), 4);
        assert_int_equal(count_between(&g, NULL, 0, "\xff\xff\x01", 3), 5);
        assert_int_equal(count_between(&g, NULL, 0, "", 0), 0);
        assert_int_equal(count_between(&g, "\xff\xff\x01", 3, NULL, 0), 0);
        assert_int_equal(count_between(&g, "ab", 2, "ab", 2), 0);
        assert_int_equal(count_between(&g, "ab", 2, "ab\0", 3), 1);
        close_ground(&g);
    }
}


static void submitted_scans_run_beside_other_operations(void **state) {
    (void)state;
    const char *uris[] = {"local:2x64M", "local:2x64M?rtt=20us"};
    for (unsigned u = 0; u < 2; u++) {
        ground g;
        enum { SCANS = 5 };
        far_op scans[SCANS], *ops[SCANS], *done[SCANS];
        watcher watchers[SCANS];
        char value[8];
        open_ground(&g, uris[u], "slots=32");
        load(&g);
        for (unsigned i = 0; i < SCANS; i++) {
            watchers[i] = (watcher){.ground = &g, .stop_at = i == 3 ? 290 : 0};
            scans[i] = (far_op){.kind = FAR_OP_SCAN, .index = g.index, .each = watch, .each_ctx = &watchers[i]};
            ops[i] = &scans[i];
        }
        scans[1].limit = 260;
        scans[2].key = "3", scans[2].key_len = 1, scans[2].to = "3", scans[2].to_len = 1;
        assert_int_equal(far_submit(g.session, ops, SCANS), SCANS);
        for (int i = 0; i < 10; i++) /* these deliver, too */
            assert_int_equal(far_get(g.session, g.index, "7", 1, value, 8, NULL), 0);
        assert_int_equal(far_reap(g.session, done, SCANS, SCANS), SCANS);
        int expected[SCANS] = {MANY, 260, 0, 290, MANY};
        for (unsigned i = 0; i < SCANS; i++) {
            assert_int_equal(scans[i].result, expected[i]);
            assert_int_equal(watchers[i].count, expected[i]);
            assert_false(watchers[i].bad);
        }
        close_ground(&g);
    }
}


static void the_pairs_of_a_submitted_scan_wait_for_their_thread(void **state) {
    (void)state;
    ground g;
    open_ground(&g, "local:64M?rtt=100us", "slots=4");
    load(&g);
    watcher w = {.ground = &g};
    far_op scan = {.kind = FAR_OP_SCAN, .index = g.index, .each = watch, .each_ctx = &w}, *one = &scan;
    assert_int_equal(far_submit(g.session, &one, 1), 1);
    far_pool_usage usage; /* of another session: housekeeping has time to drive ours */
    far_session *other;
    assert_int_equal(far_session_open(g.pool, &other), 0);
    for (int i = 0; i < 50; i++)
        assert_int_equal(far_pool_stat(other, &usage), 0);
    assert_int_equal(w.count, 0);
    assert_int_equal(far_reap(g.session, &one, 1, 1), 1);
    assert_int_equal(w.count, MANY);
    far_session_close(other);
    close_ground(&g);
}


/* Counters. */

static void counters_add_up_over_the_kinds(void **state) {
    (void)state;
    ground g;
    far_stats all, part, sum = {.reads = 0};
    char value[8];
    open_ground(&g, "local:64M", NULL);
    far_session_stats(g.session, &all);
    assert_int_equal(far_put(g.session, g.index, "k", 1, "v", 1), 0);
    assert_int_equal(far_get(g.session, g.index, "k", 1, value, 8, NULL), 0);
    assert_int_equal(far_get(g.session, g.index, "q", 1, value, 8, NULL), FAR_ERR_NOT_FOUND);
    far_stats before = all;
    far_session_stats(g.session, &all);
    far_stats diff = far_stats_diff(&all, &before);
    for (int kind = FAR_OP_GET; kind <= FAR_OP_SCAN; kind++) {
        assert_int_equal(far_session_stats_of(g.session, (far_op_kind)kind, &part), 0);
        sum.round_trips += part.round_trips;
        sum.reads += part.reads;
        sum.ops[kind] += part.ops[kind];
    }
    assert_int_equal(diff.round_trips, sum.round_trips);
    assert_int_equal(diff.reads, sum.reads);
    assert_int_equal(sum.ops[FAR_OP_GET], 2);
    assert_int_equal(sum.ops[FAR_OP_PUT], 1);
    assert_int_equal(diff.ops[FAR_OP_GET], 2);
    close_ground(&g);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_arguments_are_refused_by_name),
        cmocka_unit_test(empty_pages_of_one_size_serve_another),
        cmocka_unit_test(a_full_pool_says_what_is_free_and_why_it_does_not_serve),
        cmocka_unit_test(a_closed_pool_refuses_its_sessions),
        cmocka_unit_test(fixed_sizes_are_enforced),
        cmocka_unit_test(a_small_buffer_is_told_the_size_and_not_written),
        cmocka_unit_test(submitted_operations_all_finish_with_their_results),
        cmocka_unit_test(a_bad_operation_is_taken_and_finishes_with_its_error),
        cmocka_unit_test(every_operation_has_words_of_its_own),
        cmocka_unit_test(reap_waits_for_as_many_as_asked_and_no_more),
        cmocka_unit_test(a_synchronous_call_lets_the_others_go_on),
        cmocka_unit_test(operations_finish_while_their_thread_stays_away),
        cmocka_unit_test(gets_of_one_call_share_their_round_trips),
        cmocka_unit_test(a_session_is_closed_with_operations_in_flight),
        cmocka_unit_test(a_scan_over_many_chunks_gives_every_key_once_in_order),
        cmocka_unit_test(large_values_pass_through_small_chunks),
        cmocka_unit_test(bounds_of_any_length_hold_for_fixed_keys),
        cmocka_unit_test(submitted_scans_run_beside_other_operations),
        cmocka_unit_test(the_pairs_of_a_submitted_scan_wait_for_their_thread),
        cmocka_unit_test(counters_add_up_over_the_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
