/* The rig of the conformance suite: a pool with a session and an index, assertions with detailed messages, and
 * callbacks that collect the pairs of a scan. */
#include "conform.h"
#include "workload/value.h"


void check_code(int64_t got, int64_t expected, const char *call, const char *file, int line) {
    if (got == expected)
        return;
    print_error("%s\n    gave %lld (%s: %s), not %lld (%s)\n", call, (long long)got,
                got < 0 ? far_strerror((int)got) : "", got < 0 ? far_last_error() : "", (long long)expected,
                expected < 0 ? far_strerror((int)expected) : "");
    _fail(file, line);
}


static bool has_word(const char *text, const char *word) {
    size_t length = strlen(word);
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) {
        bool begins = at == text || !strchr("abcdefghijklmnopqrstuvwxyz_", at[-1]);
        if (begins && (at[length] == '\0' || !strchr("abcdefghijklmnopqrstuvwxyz_", at[length])))
            return true;
    }
    return false;
}


void check_refused(int64_t got, const char *word, const char *call, const char *file, int line) {
    check_code(got, FAR_ERR_INVALID, call, file, line);
    if (has_word(far_last_error(), word))
        return;
    print_error("%s\n    was refused with the words \"%s\", which do not name \"%s\"\n", call, far_last_error(), word);
    _fail(file, line);
}


void rig_up_bare(rig *r, const conform *c, const char *size, const far_pool_options *options) {
    static unsigned serial;
    *r = (rig){.c = c, .owner = true};
    c->fabric->make(c->fabric, size, ++serial, r->uri);
    assert_ok(far_pool_open(r->uri, options, &r->pool));
    assert_non_null(r->pool);
    assert_ok(far_session_open(r->pool, &r->session));
    assert_non_null(r->session);
}


void rig_up_with(rig *r, const conform *c, const char *size, const far_pool_options *pool_options,
                 const char *index_options) {
    rig_up_bare(r, c, size, pool_options);
    assert_ok(far_index_create(r->session, "index", c->kind, index_options, &r->index));
    assert_non_null(r->index);
}


void rig_up(rig *r, const conform *c) {
    rig_up_with(r, c, RIG_SIZE, NULL, c->options);
}


void rig_join(rig *r, const rig *first) {
    *r = (rig){.c = first->c};
    memcpy(r->uri, first->uri, sizeof(r->uri));
    assert_ok(far_pool_open(r->uri, NULL, &r->pool));
    assert_ok(far_session_open(r->pool, &r->session));
    if (first->index)
        assert_ok(far_index_open(r->session, "index", &r->index));
}


void rig_close(rig *r) {
    far_index_close(r->index);
    far_session_close(r->session);
    far_pool_close(r->pool);
    if (r->owner && r->c->fabric->remove)
        r->c->fabric->remove(r->uri);
    *r = (rig){.c = r->c};
}


void rig_down(rig *r) {
    if (r->index)
        assert_index_is_sound(r->session, r->index);
    assert_pool_is_sound(r->session);
    rig_close(r);
}


void rig_create(const rig *r, const char *name, far_index **index) {
    assert_ok(far_index_create(r->session, name, r->c->kind, r->c->options, index));
}


int count_problem(void *ctx, const char *what) {
    print_error("problem: %s\n", what);
    ++*(int *)ctx;
    return 0;
}


void assert_index_is_sound(far_session *session, far_index *index) {
    int told = 0;
    assert_ok(far_index_check(session, index, count_problem, &told));
    assert_int_equal(told, 0);
}


void assert_pool_is_sound(far_session *session) {
    int told = 0;
    far_pool_usage usage = {0};
    assert_ok(far_pool_check(session, 0, count_problem, &told));
    assert_int_equal(told, 0);
    assert_ok(far_pool_stat(session, &usage));
    assert_int_equal(usage.leaked, 0);
}


int put_text(const rig *r, const char *key, const char *value) {
    return far_put(r->session, r->index, key, strlen(key), value, strlen(value));
}


int insert_text(const rig *r, const char *key, const char *value) {
    return far_insert(r->session, r->index, key, strlen(key), value, strlen(value));
}


int update_text(const rig *r, const char *key, const char *value) {
    return far_update(r->session, r->index, key, strlen(key), value, strlen(value));
}


int delete_text(const rig *r, const char *key) {
    return far_delete(r->session, r->index, key, strlen(key));
}


int get_code(const rig *r, const char *key) {
    static uint8_t buffer[FAR_VALUE_MAX];
    return far_get(r->session, r->index, key, strlen(key), buffer, sizeof(buffer), NULL);
}


void check_value(far_session *session, far_index *index, const void *key, size_t key_len, const void *value,
                 size_t value_len, const char *file, int line) {
    uint8_t *buffer = malloc(FAR_VALUE_MAX + 1);
    size_t length = SIZE_MAX;
    memset(buffer, 0xa5, FAR_VALUE_MAX + 1);
    check_code(far_get(session, index, key, key_len, buffer, FAR_VALUE_MAX, &length), FAR_OK, "far_get", file, line);
    if (length != value_len || (value_len && memcmp(buffer, value, value_len) != 0)) {
        print_error("the value has %zu bytes and is not the one expected (%zu bytes)\n", length, value_len);
        _fail(file, line);
    }
    if (buffer[value_len] != 0xa5) {
        print_error("bytes behind the value were written\n");
        _fail(file, line);
    }
    free(buffer);
}


void number_key(uint64_t n, uint8_t key[8]) {
    for (int i = 0; i < 8; i++)
        key[i] = (uint8_t)(n >> (56 - 8 * i));
}


int put_proof(far_session *session, far_index *index, const void *key, size_t key_len, size_t value_len,
              uint64_t version) {
    uint8_t *value = malloc(value_len + 1);
    far_value_fill(value, value_len, key, key_len, version);
    int result = far_put(session, index, key, key_len, value, value_len);
    free(value);
    return result;
}


void assert_proof(far_session *session, far_index *index, const void *key, size_t key_len, size_t value_len,
                  uint64_t version) {
    uint8_t *value = malloc(value_len + 1);
    far_value_fill(value, value_len, key, key_len, version);
    assert_value(session, index, key, key_len, value, value_len);
    free(value);
}


static uint8_t *copy_bytes(const void *data, size_t length) {
    uint8_t *copy = malloc(length + 1);
    if (length)
        memcpy(copy, data, length);
    return copy;
}


/* This callback of a scan never asserts, because a failed assertion would jump out of the library, which called the
 * callback. */
int collect_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    pairs *p = ctx;
    if (p->count == p->room) {
        p->room = p->room ? 2 * p->room : 64;
        p->items = realloc(p->items, p->room * sizeof(*p->items));
    }
    p->items[p->count++] = (pair){copy_bytes(key, key_len), copy_bytes(value, value_len), key_len, value_len};
    return p->stop_at != 0 && p->count >= p->stop_at;
}


void pairs_free(pairs *p) {
    for (size_t i = 0; i < p->count; i++) {
        free(p->items[i].key);
        free(p->items[i].value);
    }
    free(p->items);
    *p = (pairs){0};
}


int compare_bytes(const void *a, size_t a_len, const void *b, size_t b_len) {
    int order = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return order ? order : (a_len > b_len) - (a_len < b_len);
}
