/* Behaviours of named indexes: create, open, close, drop, list, and several handles on one pool. */
#include "conform.h"

#include <ctype.h>


static void reopen_index(rig *r) {
    far_index_close(r->index);
    r->index = NULL;
    assert_ok(far_index_open(r->session, "index", &r->index));
}


/* Creating an index with a name that exists fails with FAR_ERR_EXISTS, whether the index is open or not, and leaves it
 * unchanged. */
BEHAVIOUR(a_name_can_be_created_once) {
    rig r;
    rig_up(&r, c);
    far_index *again = NULL;
    assert_ok(put_text(&r, "k", "v"));
    assert_code(FAR_ERR_EXISTS, far_index_create(r.session, "index", c->kind, c->options, &again));
    assert_null(again);
    assert_code(FAR_ERR_EXISTS, far_index_create(r.session, "index", "toy", "key_size=8", &again));
    assert_text(&r, "k", "v");
    far_index_close(r.index);
    r.index = NULL;
    assert_code(FAR_ERR_EXISTS, far_index_create(r.session, "index", c->kind, c->options, &again));
    assert_ok(far_index_open(r.session, "index", &r.index));
    assert_text(&r, "k", "v");
    rig_down(&r);
}


/* far_index_open_or_create opens an existing index and creates a missing one. It fails if the existing index has
 * another kind or another option, with a message that names the difference. */
BEHAVIOUR(open_or_create_does_either) {
    rig r;
    rig_up(&r, c);
    far_index *index = NULL;
    char other[256];
    assert_ok(put_text(&r, "k", "v"));
    /* The index exists and is opened. */
    assert_ok(far_index_open_or_create(r.session, "index", c->kind, c->options, &index));
    assert_ok(far_get(r.session, index, "k", 1, other, sizeof(other), NULL));
    far_index_close(index);
    /* The index does not exist and is created. */
    assert_ok(far_index_open_or_create(r.session, "new", c->kind, c->options, &index));
    assert_code(FAR_ERR_NOT_FOUND, far_get(r.session, index, "k", 1, other, sizeof(other), NULL));
    far_index_close(index);
    assert_ok(far_index_drop(r.session, "new"));

    const char *another = strcmp(c->kind, "toy") == 0 ? "dart" : "toy";
    assert_code(FAR_ERR_EXISTS, far_index_open_or_create(r.session, "index", another, NULL, &index));
    assert_null(index);
    assert_non_null(strstr(far_last_error(), c->kind));
    snprintf(other, sizeof(other), "%s%skey_size=16", c->options ? c->options : "", c->options ? "," : "");
    assert_code(FAR_ERR_EXISTS, far_index_open_or_create(r.session, "index", c->kind, other, &index));
    assert_null(index);
    assert_non_null(strstr(far_last_error(), "key_size"));
    assert_code(FAR_ERR_INVALID, far_index_open_or_create(r.session, "index", c->kind, "no_such=1", &index));
    assert_code(FAR_ERR_INVALID, far_index_open_or_create(r.session, "index", "no_such", NULL, &index));
    assert_code(FAR_ERR_INVALID, far_index_open_or_create(r.session, "index", NULL, NULL, &index));
    assert_code(FAR_ERR_INVALID, far_index_open_or_create(r.session, "", c->kind, c->options, &index));
    assert_text(&r, "k", "v");
    rig_down(&r);
}


/* Opening or dropping an index that does not exist fails with FAR_ERR_NOT_FOUND. */
BEHAVIOUR(an_absent_index_is_not_found) {
    rig r;
    rig_up(&r, c);
    static const char *const absent[] = {"indexes", "inde", "Index", "index ", "no_such_index", "x"};
    for (size_t i = 0; i < COUNT_OF(absent); i++) {
        far_index *index = NULL;
        assert_code(FAR_ERR_NOT_FOUND, far_index_open(r.session, absent[i], &index));
        assert_null(index);
        assert_code(FAR_ERR_NOT_FOUND, far_index_drop(r.session, absent[i]));
    }
    rig_down(&r);
}


/* Pairs remain in the pool after the index is closed, and are found after it is opened again. */
BEHAVIOUR(data_stays_when_the_index_is_closed) {
    rig r;
    rig_up(&r, c);
    uint8_t key[8];
    for (uint64_t i = 0; i < 100; i++) {
        number_key(i, key);
        assert_ok(put_proof(r.session, r.index, key, 8, i, i));
        if (i % 10 == 9)
            reopen_index(&r);
    }
    for (uint64_t i = 0; i < 100; i++) {
        number_key(i, key);
        assert_proof(r.session, r.index, key, 8, i, i);
    }
    rig_down(&r);
}


/* An index that is open several times has the same content through each far_index, and each close ends one open. */
BEHAVIOUR(an_index_can_be_opened_several_times) {
    rig r;
    rig_up(&r, c);
    far_index *second = NULL;
    assert_ok(far_index_open(r.session, "index", &second));
    assert_ok(far_put(r.session, second, "k", 1, "v", 1));
    assert_text(&r, "k", "v");
    far_index_close(r.index);
    r.index = NULL;
    assert_value(r.session, second, "k", 1, "v", 1);
    far_index_close(second);
    assert_ok(far_index_drop(r.session, "index"));
    rig_down(&r);
}


/* An index stays open, and its handle can use it, after the session that created it was closed. */
BEHAVIOUR(an_index_outlives_the_session_that_opened_it) {
    rig r;
    rig_up_bare(&r, c, RIG_SIZE, NULL);
    far_session *first = NULL;
    assert_ok(far_session_open(r.pool, &first));
    assert_ok(far_index_create(first, "index", c->kind, c->options, &r.index));
    assert_ok(far_put(first, r.index, "k", 1, "by the first", 12));
    far_session_close(first);
    assert_text(&r, "k", "by the first");
    assert_ok(put_text(&r, "k", "by the second"));
    assert_text(&r, "k", "by the second");
    rig_down(&r);
}


/* Dropping an index succeeds while this and another handle have it open. Both handles learn of it, this one at once and
 * the other one with one of the next epochs, and find no index from then on. The name is free at once. */
BEHAVIOUR(an_open_index_is_dropped) {
    rig r, other;
    rig_up(&r, c);
    assert_ok(put_text(&r, "k", "v"));
    rig_join(&other, &r);
    assert_text(&other, "k", "v");
    assert_ok(far_index_drop(r.session, "index"));
    assert_code(FAR_ERR_NOT_FOUND, get_code(&r, "k"));
    assert_code(FAR_ERR_NOT_FOUND, put_text(&r, "k", "w"));
    assert_code(FAR_ERR_NOT_FOUND, far_index_drop(other.session, "index"));
    far_index *fresh = NULL;
    assert_code(FAR_ERR_NOT_FOUND, far_index_open(other.session, "index", &fresh));
    assert_ok(far_index_create(other.session, "index", c->kind, c->options, &fresh));
    int err;
    while ((err = put_text(&other, "k", "old")) == FAR_OK)
        ; /* the other handle has not observed the drop yet */
    assert_code(FAR_ERR_NOT_FOUND, err);
    assert_non_null(strstr(far_last_error(), "was dropped"));
    assert_code(FAR_ERR_NOT_FOUND, far_get(other.session, fresh, "k", 1, NULL, 0, NULL));
    assert_ok(far_put(other.session, fresh, "k", 1, "new", 3));
    assert_value(other.session, fresh, "k", 1, "new", 3);
    far_index_close(fresh);
    far_index_close(other.index);
    far_index_close(r.index);
    r.index = other.index = NULL;
    rig_close(&other);
    rig_down(&r);
}


/* After a drop, an index of the same name can be created, and it is empty. */
BEHAVIOUR(a_dropped_name_is_free_and_starts_empty) {
    rig r;
    rig_up(&r, c);
    for (int round = 0; round < 4; round++) {
        far_usage usage = {0};
        assert_ok(far_index_usage(r.session, r.index, &usage));
        assert_int_equal(usage.keys, 0);
        assert_code(FAR_ERR_NOT_FOUND, get_code(&r, "k"));
        for (uint64_t i = 0; i < 100; i++) {
            uint8_t key[8];
            number_key(i, key);
            assert_ok(put_proof(r.session, r.index, key, 8, 100, i));
        }
        assert_ok(put_text(&r, "k", "v"));
        far_index_close(r.index);
        r.index = NULL;
        assert_ok(far_index_drop(r.session, "index"));
        assert_ok(far_index_create(r.session, "index", c->kind, round % 2 ? "key_size=0" : NULL, &r.index));
    }
    rig_down(&r);
}


/* Several indexes in one pool with the same keys keep separate pairs, and dropping one index does not change the
 * others. */
BEHAVIOUR(indexes_do_not_disturb_each_other) {
    enum { INDEXES = 6 };
    rig r;
    rig_up_bare(&r, c, RIG_SIZE, NULL);
    far_index *indexes[INDEXES] = {0};
    char name[INDEXES + 1] = {0};
    uint8_t key[8];
    for (unsigned i = 0; i < INDEXES; i++) {
        name[i] = 'a'; /* The names are prefixes of each other. */
        rig_create(&r, name, &indexes[i]);
    }
    for (uint64_t k = 0; k < 50; k++)
        for (unsigned i = 0; i < INDEXES; i++) {
            number_key(k, key);
            assert_ok(put_proof(r.session, indexes[i], key, 8, 16 + i, k * INDEXES + i));
        }
    for (uint64_t k = 0; k < 50; k += 2) {
        number_key(k, key);
        assert_ok(far_delete(r.session, indexes[k % INDEXES], key, 8));
    }
    far_index_close(indexes[1]);
    assert_ok(far_index_drop(r.session, "aa"));
    for (unsigned i = 0; i < INDEXES; i++) {
        for (uint64_t k = 0; k < 50 && i != 1; k++) {
            number_key(k, key);
            if (k % 2 == 0 && k % INDEXES == i)
                assert_code(FAR_ERR_NOT_FOUND, far_get(r.session, indexes[i], key, 8, NULL, 0, NULL));
            else
                assert_proof(r.session, indexes[i], key, 8, 16 + i, k * INDEXES + i);
        }
        if (i != 1)
            assert_index_is_sound(r.session, indexes[i]);
    }
    for (unsigned i = 0; i < INDEXES; i++)
        if (i != 1)
            far_index_close(indexes[i]);
    rig_down(&r);
}


/* Names and kinds that far_index_list or far_kinds has delivered. */
typedef struct name_list {
    int calls, stop_at;
    unsigned seen[8];
    const char *kind;
    int wrong;
} name_list;


static int record_index(void *ctx, const char *name, const char *kind) {
    name_list *t = ctx;
    t->calls++;
    if (strlen(name) == 2 && name[0] == 'n' && name[1] >= '0' && name[1] < '8')
        t->seen[name[1] - '0']++;
    else
        t->wrong++;
    t->wrong += strcmp(kind, t->kind) != 0;
    return t->calls == t->stop_at ? -5 : 0;
}


/* far_index_list delivers every index once, with its kind, and stops when its callback returns non-zero. */
BEHAVIOUR(all_indexes_are_listed) {
    rig r;
    rig_up_bare(&r, c, RIG_SIZE, NULL);
    name_list none = {.kind = c->kind};
    assert_code(0, far_index_list(r.session, record_index, &none));
    assert_int_equal(none.calls, 0);
    for (int i = 0; i < 8; i++) {
        char name[] = {'n', (char)('0' + i), '\0'};
        far_index *index = NULL;
        rig_create(&r, name, &index);
        far_index_close(index);
    }
    name_list all = {.kind = c->kind};
    assert_code(8, far_index_list(r.session, record_index, &all));
    assert_int_equal(all.wrong, 0);
    for (int i = 0; i < 8; i++)
        assert_int_equal(all.seen[i], 1);
    for (int stop = 1; stop <= 8; stop += 3) {
        name_list some = {.kind = c->kind, .stop_at = stop};
        assert_code(stop, far_index_list(r.session, record_index, &some));
        assert_int_equal(some.calls, stop);
    }
    assert_ok(far_index_drop(r.session, "n3"));
    name_list rest = {.kind = c->kind};
    assert_code(7, far_index_list(r.session, record_index, &rest));
    assert_int_equal(rest.seen[3], 0);
    rig_down(&r);
}


static int record_kind(void *ctx, const char *kind, const char *what_for, const char *options) {
    name_list *t = ctx;
    t->calls++;
    t->wrong += strlen(kind) == 0 || strlen(what_for) == 0;
    for (const char *at = kind; *at; at++)
        t->wrong += !islower((unsigned char)*at);
    t->wrong += !strstr(options, "key_size") || !strstr(options, "value_size") || !strstr(options, "max_key");
    return t->calls == t->stop_at;
}


/* far_kinds delivers every kind once, with a description and its options. */
BEHAVIOUR(all_kinds_are_listed) {
    (void)c;
    name_list all = {0}, first = {.stop_at = 1};
    int count = far_kinds(record_kind, &all);
    assert_true(count >= 1);
    assert_int_equal(count, all.calls);
    assert_int_equal(all.wrong, 0);
    assert_code(1, far_kinds(record_kind, &first));
    assert_int_equal(first.calls, 1);
}


/* A write through one handle is visible through another handle of the same pool, in both directions. */
BEHAVIOUR(handles_of_one_pool_see_each_others_writes) {
    rig a, b;
    rig_up(&a, c);
    rig_join(&b, &a);
    for (uint64_t i = 0; i < 60; i++) {
        const rig *writer = i % 2 ? &a : &b, *reader = i % 2 ? &b : &a;
        uint8_t key[8];
        number_key(i / 2, key);
        assert_ok(put_proof(writer->session, writer->index, key, 8, 50 + i, i));
        assert_proof(reader->session, reader->index, key, 8, 50 + i, i);
        if (i % 10 == 9) {
            assert_ok(far_delete(reader->session, reader->index, key, 8));
            assert_code(FAR_ERR_NOT_FOUND, far_get(writer->session, writer->index, key, 8, NULL, 0, NULL));
            assert_code(FAR_ERR_NOT_FOUND, far_update(writer->session, writer->index, key, 8, "v", 1));
        }
    }
    far_pool_usage usage = {0};
    assert_ok(far_pool_stat(a.session, &usage));
    assert_true(usage.sessions >= 2);
    a.owner = false;
    b.owner = true;
    rig_close(&a); /* The pool continues to exist, because another handle has it open. */
    uint8_t key[8];
    number_key(0, key);
    assert_proof(b.session, b.index, key, 8, 51, 1);
    rig_down(&b);
}


/* A pool that exists only inside the process is destroyed when its last handle is closed. */
BEHAVIOUR(a_pool_ends_with_its_last_handle) {
    if (c->fabric->remove) /* The fabric has pools that outlive their handles. */
        return;
    rig r;
    rig_up(&r, c);
    assert_ok(put_text(&r, "k", "v"));
    char uri[CONFORM_URI];
    memcpy(uri, r.uri, sizeof(uri));
    rig_down(&r);
    far_pool *pool = NULL;
    far_session *session = NULL;
    far_index *index = NULL;
    assert_ok(far_pool_open(uri, NULL, &pool));
    assert_ok(far_session_open(pool, &session));
    assert_code(FAR_ERR_NOT_FOUND, far_index_open(session, "index", &index));
    far_session_close(session);
    far_pool_close(pool);
}


/* A session cannot use an index that was opened through another handle. */
BEHAVIOUR(an_index_is_for_sessions_of_its_handle) {
    rig a, b;
    rig_up(&a, c);
    rig_join(&b, &a);
    char buffer[8];
    pairs found = {0};
    far_usage usage = {0};
    int problems = 0;
    assert_ok(put_text(&a, "k", "v"));
    assert_refused("index", far_get(b.session, a.index, "k", 1, buffer, 8, NULL));
    assert_refused("index", far_put(b.session, a.index, "k", 1, "w", 1));
    assert_refused("index", far_insert(a.session, b.index, "l", 1, "w", 1));
    assert_refused("index", far_update(a.session, b.index, "k", 1, "w", 1));
    assert_refused("index", far_delete(a.session, b.index, "k", 1));
    assert_refused("index", far_scan(a.session, b.index, NULL, 0, NULL, 0, 0, collect_pair, &found));
    assert_refused("index", far_index_usage(a.session, b.index, &usage));
    assert_refused("index", far_index_check(a.session, b.index, count_problem, &problems));
    assert_text(&a, "k", "v");
    assert_text(&b, "k", "v");
    rig_close(&b);
    rig_down(&a);
}
