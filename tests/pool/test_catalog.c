/* Named indexes: create, open, close, drop, list; from several handles and threads, on the local fabric. */
#include "base/sanitizer.h"
#include "client/op.h"
#include "farindex.h"
#include "pool/catalog.h"
#include "pool/catalog_layout.h"
#include "pool/handle.h"
#include "task/session.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct node { /* one compute node */
    far_pool *pool;
    far_session *session;
} node;


static void open_node(node *n, const char *uri) {
    assert_int_equal(far_pool_open(uri, NULL, &n->pool), 0);
    assert_int_equal(far_session_open(n->pool, &n->session), 0);
}


static void close_node(node *n) {
    far_session_close(n->session);
    far_pool_close(n->pool);
}


static void says(const char *word) {
    if (!strstr(far_last_error(), word))
        fail_msg("the message '%s' does not say '%s'", far_last_error(), word);
}


static void an_index_is_found_again_with_its_kind_and_options(void **state) {
    (void)state;
    node a, b;
    far_index *made, *found;
    char value[8] = "";
    open_node(&a, "local:64M?name=again");
    open_node(&b, "local:64M?name=again");
    assert_int_equal(far_index_create(a.session, "fruit", "toy", "slots=16,value_size=3", &made), 0);
    assert_int_equal(far_put(a.session, made, "apple", 5, "red", 3), 0);
    assert_int_equal(far_index_open(b.session, "fruit", &found), 0);
    assert_int_equal(far_get(b.session, found, "apple", 5, value, sizeof(value), NULL), 0);
    assert_string_equal(value, "red");
    assert_int_equal(found->uid, made->uid);
    assert_memory_equal(found->secret, made->secret, sizeof(made->secret));
    assert_memory_equal(found->options, made->options, sizeof(made->options));
    assert_string_equal(found->options_text, "slots=16,value_size=3");
    assert_int_equal(far_put(b.session, found, "pear", 4, "long", 4), FAR_ERR_INVALID);
    far_index_close(found);
    far_index_close(made);
    close_node(&b);
    close_node(&a);
}


static void two_indexes_have_different_numbers_and_secrets(void **state) {
    (void)state;
    node a;
    far_index *one, *two;
    open_node(&a, "local:64M");
    assert_int_equal(far_index_create(a.session, "one", "toy", NULL, &one), 0);
    assert_int_equal(far_index_create(a.session, "two", "toy", NULL, &two), 0);
    assert_int_not_equal(one->uid, two->uid);
    assert_memory_not_equal(one->secret, two->secret, sizeof(one->secret));
    far_index_close(one);
    uint32_t uid = two->uid;
    far_index_close(two);
    assert_int_equal(far_index_drop(a.session, "two"), 0);
    assert_int_equal(far_index_create(a.session, "two", "toy", NULL, &two), 0);
    assert_true(two->uid > uid);
    far_index_close(two);
    close_node(&a);
}


static void bad_names_kinds_and_options_are_refused_in_words(void **state) {
    (void)state;
    node a;
    far_index *index = (far_index *)&a;
    char longest[FAR_NAME_MAX + 2];
    memset(longest, 'n', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    open_node(&a, "local:64M");
    const char *bad[] = {"", "a/b", "a,b", "a\nb", "caf\xc3\xa9", "\x7f", longest, NULL};
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(far_index_create(a.session, bad[i], "toy", NULL, &index), FAR_ERR_INVALID);
        says("name");
        assert_null(index);
        assert_int_equal(far_index_open(a.session, bad[i], &index), FAR_ERR_INVALID);
        says("name");
        assert_int_equal(far_index_drop(a.session, bad[i]), FAR_ERR_INVALID);
        says("name");
    }
    assert_int_equal(far_index_create(a.session, "x", "tree", NULL, &index), FAR_ERR_INVALID);
    says("tree");
    assert_int_equal(far_index_create(a.session, "x", NULL, NULL, &index), FAR_ERR_INVALID);
    says("kind");
    assert_int_equal(far_index_create(a.session, "x", "toy", "slots=0", &index), FAR_ERR_INVALID);
    says("slots");
    assert_int_equal(far_index_create(a.session, "x", "toy", NULL, NULL), FAR_ERR_INVALID);
    says("index");
    assert_int_equal(far_index_create(NULL, "x", "toy", NULL, &index), FAR_ERR_INVALID);
    says("session");
    assert_int_equal(far_index_open(a.session, "x", NULL), FAR_ERR_INVALID);
    assert_int_equal(far_index_list(a.session, NULL, NULL), FAR_ERR_INVALID);
    assert_int_equal(far_kinds(NULL, NULL), FAR_ERR_INVALID);
    longest[FAR_NAME_MAX] = '\0';
    assert_int_equal(far_index_create(a.session, longest, "toy", NULL, &index), 0);
    far_index_close(index);
    assert_int_equal(far_index_open(a.session, longest, &index), 0);
    far_index_close(index);
    far_index_close(NULL);
    close_node(&a);
}


static void a_name_is_given_once(void **state) {
    (void)state;
    node a, b;
    far_index *index, *other;
    open_node(&a, "local:64M?name=once");
    open_node(&b, "local:64M?name=once");
    assert_int_equal(far_index_create(a.session, "x", "toy", NULL, &index), 0);
    assert_int_equal(far_index_create(a.session, "x", "toy", NULL, &other), FAR_ERR_EXISTS);
    assert_int_equal(far_index_create(b.session, "x", "toy", NULL, &other), FAR_ERR_EXISTS);
    says("'x'");
    assert_null(other);
    far_index_close(index);
    assert_int_equal(far_index_create(b.session, "x", "toy", NULL, &other), FAR_ERR_EXISTS);
    close_node(&b);
    close_node(&a);
}


static void absent_indexes_are_not_found(void **state) {
    (void)state;
    node a;
    far_index *index;
    open_node(&a, "local:64M");
    assert_int_equal(far_index_open(a.session, "x", &index), FAR_ERR_NOT_FOUND);
    says("'x'");
    assert_int_equal(far_index_drop(a.session, "x"), FAR_ERR_NOT_FOUND);
    close_node(&a);
}


static void an_open_index_is_not_dropped(void **state) {
    (void)state;
    node a, b;
    far_index *first, *second, *third;
    open_node(&a, "local:64M?name=busy");
    open_node(&b, "local:64M?name=busy");
    assert_int_equal(far_index_create(a.session, "x", "toy", NULL, &first), 0);
    assert_int_equal(far_index_drop(a.session, "x"), FAR_ERR_BUSY);
    assert_int_equal(far_index_drop(b.session, "x"), FAR_ERR_BUSY);
    assert_int_equal(far_index_open(a.session, "x", &second), 0);
    assert_ptr_equal(first, second); /* one object per handle */
    far_index_close(first);
    assert_int_equal(far_index_drop(b.session, "x"), FAR_ERR_BUSY); /* every open needs its close */
    assert_int_equal(far_index_open(b.session, "x", &third), 0);
    far_index_close(second);
    assert_int_equal(far_index_drop(a.session, "x"), FAR_ERR_BUSY);
    far_index_close(third);
    assert_int_equal(far_index_drop(a.session, "x"), 0);
    assert_int_equal(far_index_open(b.session, "x", &third), FAR_ERR_NOT_FOUND);
    assert_int_equal(far_index_drop(b.session, "x"), FAR_ERR_NOT_FOUND);
    close_node(&b);
    close_node(&a);
}


static void a_closed_handle_has_nothing_open(void **state) {
    (void)state;
    node a, b;
    far_index *index;
    open_node(&a, "local:64M?name=closed");
    open_node(&b, "local:64M?name=closed");
    assert_int_equal(far_index_create(b.session, "x", "toy", NULL, &index), 0);
    far_pool_close(b.pool); /* with the index open */
    assert_int_equal(far_index_drop(a.session, "x"), 0);
    assert_int_equal(far_put(b.session, index, "a", 1, "b", 1), FAR_ERR_INVALID);
    far_index_close(index);
    far_session_close(b.session);
    close_node(&a);
}


typedef struct names {
    char text[256];
    unsigned count, stop_at;
} names;


static int add_name(void *ctx, const char *name, const char *kind) {
    names *n = ctx;
    size_t used = strlen(n->text);
    snprintf(n->text + used, sizeof(n->text) - used, "%s:%s ", name, kind);
    return ++n->count == n->stop_at;
}


static void the_list_shows_all_and_stops_when_told(void **state) {
    (void)state;
    node a;
    names n = {0};
    open_node(&a, "local:64M");
    assert_int_equal(far_index_list(a.session, add_name, &n), 0);
    for (const char *const *name = (const char *const[]){"c", "a", "b", NULL}; *name; name++) {
        far_index *index;
        assert_int_equal(far_index_create(a.session, *name, "toy", NULL, &index), 0);
        far_index_close(index);
    }
    assert_int_equal(far_index_list(a.session, add_name, &n), 3);
    assert_string_equal(n.text, "a:toy b:toy c:toy ");
    assert_int_equal(far_index_drop(a.session, "a"), 0);
    n = (names){0};
    assert_int_equal(far_index_list(a.session, add_name, &n), 2);
    assert_string_equal(n.text, "b:toy c:toy ");
    n = (names){.stop_at = 1};
    assert_int_equal(far_index_list(a.session, add_name, &n), 1);
    close_node(&a);
}


static void many_indexes_can_be_listed(void **state) {
    (void)state;
    node a;
    enum { MANY = 300 };
    names n = {0};
    open_node(&a, "local:256M");
    for (int i = 0; i < MANY; i++) {
        char name[16];
        far_index *index;
        snprintf(name, sizeof(name), "i%d", i);
        assert_int_equal(far_index_create(a.session, name, "toy", "slots=1", &index), 0);
        far_index_close(index);
    }
    assert_int_equal(far_index_list(a.session, add_name, &n), MANY);
    for (int i = 0; i < MANY; i += 2) {
        char name[16];
        snprintf(name, sizeof(name), "i%d", i);
        assert_int_equal(far_index_drop(a.session, name), 0);
    }
    assert_int_equal(far_index_list(a.session, add_name, &n), MANY / 2);
    close_node(&a);
}


static void too_many_open_at_once_are_refused(void **state) {
    (void)state;
    node a;
    static far_index *open[FAR_OPEN_TABLE_MAX + 1];
    open_node(&a, "local:256M");
    for (int i = 0; i <= FAR_OPEN_TABLE_MAX; i++) {
        char name[16];
        snprintf(name, sizeof(name), "i%d", i);
        int err = far_index_create(a.session, name, "toy", "slots=1", &open[i]);
        assert_int_equal(err, i < FAR_OPEN_TABLE_MAX ? 0 : FAR_ERR_BUSY);
    }
    for (int i = 0; i < FAR_OPEN_TABLE_MAX; i++)
        far_index_close(open[i]);
    far_index *index;
    assert_int_equal(far_index_open(a.session, "i512", &index), FAR_ERR_NOT_FOUND);
    assert_int_equal(far_index_create(a.session, "i512", "toy", "slots=1", &index), 0);
    far_index_close(index);
    close_node(&a);
}


/* Threads of two handles create, open and drop the same few names. */

enum { THREADS = 4, ROUNDS = FAR_TSAN ? 50 : 200 };

typedef struct worker {
    far_pool *pool;
    unsigned number, created, dropped;
    const char *bad;
} worker;


static void one_round(worker *w, far_session *s, unsigned round) {
    char name[8] = {'n', (char)('0' + (round + w->number) % 3)}, value[8];
    far_index *index = NULL;
    int err = round % 3 == 0 ? far_index_create(s, name, "toy", "slots=4", &index) : far_index_open(s, name, &index);
    w->created += round % 3 == 0 && err == 0;
    if (err == 0) {
        if (far_put(s, index, "k", 1, name, 2) < 0 || far_get(s, index, "k", 1, value, 8, NULL) < 0 ||
            memcmp(value, name, 2))
            w->bad = "an open index does not work";
        if (far_index_drop(s, name) != FAR_ERR_BUSY)
            w->bad = "an open index was dropped";
        far_index_close(index);
    } else if (err != FAR_ERR_NOT_FOUND && err != FAR_ERR_EXISTS) {
        w->bad = "create or open failed";
    }
    err = far_index_drop(s, name);
    w->dropped += err == 0;
    if (err != 0 && err != FAR_ERR_BUSY && err != FAR_ERR_NOT_FOUND)
        w->bad = "drop failed";
}


static void *work(void *arg) {
    worker *w = arg;
    far_session *s;
    if (far_session_open(w->pool, &s) < 0)
        return w->bad = "no session", NULL;
    for (unsigned round = 0; round < ROUNDS && !w->bad; round++)
        one_round(w, s, round);
    far_session_close(s);
    return NULL;
}


static void creators_openers_and_droppers_do_not_miss_each_other(void **state) {
    (void)state;
    node a, b;
    pthread_t threads[THREADS];
    worker workers[THREADS];
    names n = {0};
    open_node(&a, "local:512M?name=race");
    open_node(&b, "local:512M?name=race");
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (worker){.pool = i % 2 ? a.pool : b.pool, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    unsigned created = 0, dropped = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        if (workers[i].bad)
            fail_msg("%s", workers[i].bad);
        created += workers[i].created;
        dropped += workers[i].dropped;
    }
    assert_int_equal(far_index_list(a.session, add_name, &n), created - dropped);
    close_node(&b);
    close_node(&a);
}


/* A walk has an index open: a drop waits for it. */

typedef struct walker {
    node *node;
    uint32_t uid;
    atomic_int state; /* 1: opened; 2: may close; 3: closed */
    bool asked;
} walker;


static int hold_open(far_task *t, void *arg) {
    walker *w = arg;
    far_index *index;
    int err = far_catalog_open_uid(t, w->uid, &index);
    if (err < 0)
        return err;
    atomic_store_explicit(&w->state, 1, memory_order_release);
    while (atomic_load_explicit(&w->state, memory_order_acquire) == 1)
        far_sleep(t, 100000);
    atomic_store_explicit(&w->state, 3, memory_order_release);
    far_catalog_close_uid(t, index);
    return 0;
}


static void *walk_slowly(void *arg) {
    walker *w = arg;
    far_session_call(w->node->session, FAR_STATS_OTHER, false, hold_open, w);
    return NULL;
}


static void *let_go(void *arg) {
    walker *w = arg;
    far_host *host = w->node->pool->fabric->host;
    far_parker parker = {0};
    host->ops->park(host, &parker, far_host_now(host) + 20000000);
    atomic_store_explicit(&w->state, 2, memory_order_release);
    return NULL;
}


static void a_drop_waits_for_a_walk_and_a_user_may_join_it(void **state) {
    (void)state;
    node a, b;
    far_index *index;
    open_node(&a, "local:64M?name=walk");
    open_node(&b, "local:64M?name=walk");
    assert_int_equal(far_index_create(a.session, "x", "toy", NULL, &index), 0);
    walker w = {.node = &b, .uid = index->uid};
    far_index_close(index);
    pthread_t walking, waking;
    assert_int_equal(pthread_create(&walking, NULL, walk_slowly, &w), 0);
    while (atomic_load_explicit(&w.state, memory_order_acquire) == 0)
        ;
    far_session *other; /* of the walking handle */
    assert_int_equal(far_session_open(b.pool, &other), 0);
    assert_int_equal(far_index_open(other, "x", &index), 0);
    assert_int_equal(far_index_drop(a.session, "x"), FAR_ERR_BUSY);
    far_index_close(index);
    assert_int_equal(pthread_create(&waking, NULL, let_go, &w), 0);
    assert_int_equal(far_index_drop(a.session, "x"), 0);
    assert_int_equal(atomic_load_explicit(&w.state, memory_order_acquire), 3);
    pthread_join(walking, NULL);
    pthread_join(waking, NULL);
    far_session_close(other);
    close_node(&b);
    close_node(&a);
}


#define HEARS_WITHIN 100000u /* looks: more than a drop makes before it asks */


/* It has the index open until somebody makes a request. */
static int hold_open_until_asked(far_task *t, void *arg) {
    walker *w = arg;
    const far_addr request = far_addr_make(0, FAR_SUPER_REQUEST);
    far_index *index;
    uint64_t before = 0, now;
    int err = far_catalog_open_uid(t, w->uid, &index);
    if (err == 0)
        err = far_read_word(t, request, &before);
    atomic_store_explicit(&w->state, 1, memory_order_release);
    now = before;
    for (unsigned look = 0; err == 0 && now == before && look < HEARS_WITHIN; look++) {
        far_sleep(t, 100000);
        err = far_read_word(t, request, &now);
    }
    w->asked = now != before;
    far_catalog_close_uid(t, index);
    return err;
}


static void *walk_until_asked(void *arg) {
    walker *w = arg;
    far_session_call(w->node->session, FAR_STATS_OTHER, false, hold_open_until_asked, w);
    return NULL;
}


/* Walks in the background take their time, until they hear that somebody waits: a drop says so. */
static void a_drop_that_waits_for_a_walk_says_so(void **state) {
    (void)state;
    node a, b;
    far_index *index;
    open_node(&a, "local:64M?name=walk");
    open_node(&b, "local:64M?name=walk");
    assert_int_equal(far_index_create(a.session, "x", "toy", NULL, &index), 0);
    walker w = {.node = &b, .uid = index->uid};
    far_index_close(index);
    pthread_t walking;
    assert_int_equal(pthread_create(&walking, NULL, walk_until_asked, &w), 0);
    while (atomic_load_explicit(&w.state, memory_order_acquire) == 0)
        ;
    assert_int_equal(far_index_drop(a.session, "x"), 0);
    pthread_join(walking, NULL);
    assert_true(w.asked);
    close_node(&b);
    close_node(&a);
}


/* Background work of a session that nobody is inside of. */
static void use_for_a_while(far_task *t, void *arg) {
    far_index_use(arg);
    far_sleep(t, 5000000);
    far_index_unuse(arg);
}


static void a_close_waits_for_what_housekeeping_drives(void **state) {
    (void)state;
    for (int no_thread = 0; no_thread < 2; no_thread++) {
        node a;
        far_index *index;
        far_pool_options options = {.no_thread = no_thread};
        assert_int_equal(far_pool_open("local:64M", &options, &a.pool), 0);
        assert_int_equal(far_session_open(a.pool, &a.session), 0);
        assert_int_equal(far_index_create(a.session, "x", "toy", NULL, &index), 0);
        far_session_enter(a.session);
        assert_non_null(far_task_new(a.session, FAR_STATS_OTHER, use_for_a_while, index));
        far_session_step(a.session);
        far_session_leave(a.session);
        uint64_t begun = far_host_now(a.pool->fabric->host);
        far_index_close(index);
        assert_true(far_host_now(a.pool->fabric->host) - begun >= 5000000);
        assert_int_equal(far_index_drop(a.session, "x"), 0);
        close_node(&a);
    }
}


/* Damage. */

static int spoil_catalog(far_task *t, void *arg) {
    uint64_t word;
    int err = far_read_word(t, far_addr_make(0, FAR_SUPER_CATALOG), &word);
    return err < 0 ? err : far_write_word(t, far_catalog_word_addr(word) + *(uint64_t *)arg, 0x1234567812345678ull);
}


static int count_problem(void *ctx, const char *what) {
    assert_non_null(strstr(what, "catalog"));
    ++*(int *)ctx;
    return 0;
}


static void a_broken_catalog_is_an_error_not_a_crash(void **state) {
    (void)state;
    for (uint64_t offset = 0; offset < sizeof(far_catalog_head) + sizeof(far_catalog_entry); offset += 8) {
        if (offset == offsetof(far_catalog_head, unused))
            continue;
        node a;
        far_index *index;
        open_node(&a, "local:64M");
        assert_int_equal(far_index_create(a.session, "x", "toy", NULL, &index), 0);
        far_index_close(index);
        assert_int_equal(far_session_call(a.session, FAR_STATS_OTHER, false, spoil_catalog, &offset), 0);
        assert_int_equal(far_index_open(a.session, "x", &index), FAR_ERR_CORRUPT);
        assert_int_equal(far_index_drop(a.session, "x"), FAR_ERR_CORRUPT);
        assert_int_equal(far_index_list(a.session, add_name, NULL), FAR_ERR_CORRUPT);
        int problems = 0;
        assert_true(far_pool_check(a.session, 0, count_problem, &problems) > 0);
        assert_true(problems > 0);
        close_node(&a);
    }
}


static int count_kind(void *ctx, const char *kind, const char *what_for, const char *options) {
    assert_non_null(far_index_kind_named(kind));
    assert_true(strlen(what_for) > 0);
    assert_non_null(strstr(options, "key_size=0"));
    ++*(int *)ctx;
    return 0;
}


static void kinds_are_listed_with_their_options(void **state) {
    (void)state;
    int count = 0;
    assert_true(far_kinds(count_kind, &count) > 0);
    assert_true(count > 0);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_index_is_found_again_with_its_kind_and_options),
        cmocka_unit_test(two_indexes_have_different_numbers_and_secrets),
        cmocka_unit_test(bad_names_kinds_and_options_are_refused_in_words),
        cmocka_unit_test(a_name_is_given_once),
        cmocka_unit_test(absent_indexes_are_not_found),
        cmocka_unit_test(an_open_index_is_not_dropped),
        cmocka_unit_test(a_closed_handle_has_nothing_open),
        cmocka_unit_test(the_list_shows_all_and_stops_when_told),
        cmocka_unit_test(many_indexes_can_be_listed),
        cmocka_unit_test(too_many_open_at_once_are_refused),
        cmocka_unit_test(creators_openers_and_droppers_do_not_miss_each_other),
        cmocka_unit_test(a_drop_waits_for_a_walk_and_a_user_may_join_it),
        cmocka_unit_test(a_drop_that_waits_for_a_walk_says_so),
        cmocka_unit_test(a_close_waits_for_what_housekeeping_drives),
        cmocka_unit_test(a_broken_catalog_is_an_error_not_a_crash),
        cmocka_unit_test(kinds_are_listed_with_their_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
