/* Tests of the catalog (pool/catalog) on the local fabric: create, open, close, drop and list indexes from several
 * handles and threads. */
#include "base/sanitizer.h"
#include "client/op.h"
#include "farindex.h"
#include "test.h"
#include "pool/catalog/catalog.h"
#include "pool/catalog/layout.h"
#include "pool/handle.h"
#include "task/session.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

typedef struct node { /* a handle and one session */
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


static void assert_message_names(const char *word) {
    if (!strstr(far_last_error(), word))
        fail_msg("the message '%s' does not contain '%s'", far_last_error(), word);
}


/* An index that handle A created is opened by handle B with the same uid, secret, options and content. */
TEST(an_index_is_found_again_with_its_kind_and_options) {
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


/* Two indexes have different uids and secrets, and the uid of a dropped index is not issued again. */
TEST(two_indexes_have_different_numbers_and_secrets) {
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


/* Invalid names, kinds, options and pointers are refused with FAR_ERR_INVALID and a text that names the bad argument.
 * The longest valid name works. */
TEST(bad_names_kinds_and_options_are_refused_with_a_reason) {
    node a;
    far_index *index = (far_index *)&a;
    char longest[FAR_NAME_MAX + 2];
    memset(longest, 'n', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    open_node(&a, "local:64M");
    const char *bad[] = {"", "a/b", "a,b", "a\nb", "caf\xc3\xa9", "\x7f", longest, NULL};
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(far_index_create(a.session, bad[i], "toy", NULL, &index), FAR_ERR_INVALID);
        assert_message_names("name");
        assert_null(index);
        assert_int_equal(far_index_open(a.session, bad[i], &index), FAR_ERR_INVALID);
        assert_message_names("name");
        assert_int_equal(far_index_drop(a.session, bad[i]), FAR_ERR_INVALID);
        assert_message_names("name");
    }
    assert_int_equal(far_index_create(a.session, "x", "tree", NULL, &index), FAR_ERR_INVALID);
    assert_message_names("tree");
    assert_int_equal(far_index_create(a.session, "x", NULL, NULL, &index), FAR_ERR_INVALID);
    assert_message_names("kind");
    assert_int_equal(far_index_create(a.session, "x", "toy", "slots=0", &index), FAR_ERR_INVALID);
    assert_message_names("slots");
    assert_int_equal(far_index_create(a.session, "x", "toy", NULL, NULL), FAR_ERR_INVALID);
    assert_message_names("index");
    assert_int_equal(far_index_create(NULL, "x", "toy", NULL, &index), FAR_ERR_INVALID);
    assert_message_names("session");
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


/* Creating an index under an existing name fails with FAR_ERR_EXISTS in every handle, whether or not the index is open.
 */
TEST(a_name_is_used_once) {
    node a, b;
    far_index *index, *other;
    open_node(&a, "local:64M?name=once");
    open_node(&b, "local:64M?name=once");
    assert_int_equal(far_index_create(a.session, "x", "toy", NULL, &index), 0);
    assert_int_equal(far_index_create(a.session, "x", "toy", NULL, &other), FAR_ERR_EXISTS);
    assert_int_equal(far_index_create(b.session, "x", "toy", NULL, &other), FAR_ERR_EXISTS);
    assert_message_names("'x'");
    assert_null(other);
    far_index_close(index);
    assert_int_equal(far_index_create(b.session, "x", "toy", NULL, &other), FAR_ERR_EXISTS);
    close_node(&b);
    close_node(&a);
}


/* Opening or dropping an index that does not exist fails with FAR_ERR_NOT_FOUND and a text that contains the name. */
TEST(absent_indexes_are_not_found) {
    node a;
    far_index *index;
    open_node(&a, "local:64M");
    assert_int_equal(far_index_open(a.session, "x", &index), FAR_ERR_NOT_FOUND);
    assert_message_names("'x'");
    assert_int_equal(far_index_drop(a.session, "x"), FAR_ERR_NOT_FOUND);
    close_node(&a);
}


/* A drop fails with FAR_ERR_BUSY while any handle has the index open, and until every open has been closed. Fails
 * without far_open_table_find_users in a drop. */
TEST(an_open_index_is_not_dropped) {
    node a, b;
    far_index *first, *second, *third;
    open_node(&a, "local:64M?name=busy");
    open_node(&b, "local:64M?name=busy");
    assert_int_equal(far_index_create(a.session, "x", "toy", NULL, &first), 0);
    assert_int_equal(far_index_drop(a.session, "x"), FAR_ERR_BUSY);
    assert_int_equal(far_index_drop(b.session, "x"), FAR_ERR_BUSY);
    assert_int_equal(far_index_open(a.session, "x", &second), 0);
    assert_ptr_equal(first, second); /* A handle has one far_index object for each index that is open in it. */
    far_index_close(first);
    /* the index stays open until each of the two opens has been closed */
    assert_int_equal(far_index_drop(b.session, "x"), FAR_ERR_BUSY);
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


/* A handle that closes with an open index does not block drops of it. Later calls with its index are refused. */
TEST(a_closed_handle_has_nothing_open) {
    node a, b;
    far_index *index;
    open_node(&a, "local:64M?name=closed");
    open_node(&b, "local:64M?name=closed");
    assert_int_equal(far_index_create(b.session, "x", "toy", NULL, &index), 0);
    far_pool_close(b.pool); /* the index is still open in this handle */
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


/* far_index_list calls its visitor for every index in order of names, until the visitor returns non-zero. */
TEST(the_list_shows_all_indexes_and_stops_on_request) {
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


/* A catalog with 300 indexes works, and still does after half the indexes are dropped. */
TEST(many_indexes_can_be_listed) {
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


/* FAR_OPEN_TABLE_MAX indexes can be open in one handle. The next create fails with FAR_ERR_BUSY and leaves no index. */
TEST(more_open_indexes_than_the_table_has_slots_are_refused) {
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


/* Threads of two handles create, open and drop the same three names. */

enum { THREADS = 4, ROUNDS = FAR_TSAN ? 50 : 200 };

typedef struct worker {
    far_pool *pool;
    unsigned number, created, dropped;
    const char *bad;
} worker;


static void run_one_round(worker *w, far_session *s, unsigned round) {
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


static void *run_worker(void *arg) {
    worker *w = arg;
    far_session *s;
    if (far_session_open(w->pool, &s) < 0)
        return w->bad = "no session", NULL;
    for (unsigned round = 0; round < ROUNDS && !w->bad; round++)
        run_one_round(w, s, round);
    far_session_close(s);
    return NULL;
}


/* Four threads of two handles create, open and drop the same names. An open index always works and cannot be dropped,
 * and at the end the catalog contains as many indexes as were created and not dropped. */
TEST(creators_openers_and_droppers_do_not_miss_each_other) {
    node a, b;
    pthread_t threads[THREADS];
    worker workers[THREADS];
    names n = {0};
    open_node(&a, "local:512M?name=race");
    open_node(&b, "local:512M?name=race");
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (worker){.pool = i % 2 ? a.pool : b.pool, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, run_worker, &workers[i]), 0);
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


/* An index walk that has an index open in a thread of its own. */

typedef struct walker {
    node *node;
    uint32_t uid;
    /* state of the index walk; 1: has opened the index; 2: may close the index; 3: is closing the index */
    atomic_int state;
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


static void *run_walk(void *arg) {
    walker *w = arg;
    far_session_call(w->node->session, FAR_STATS_OTHER, false, hold_open, w);
    return NULL;
}


static void *end_walk_later(void *arg) {
    walker *w = arg;
    far_host *host = w->node->pool->fabric->host;
    far_parker parker = {0};
    host->ops->park(host, &parker, far_host_now(host) + 20000000);
    atomic_store_explicit(&w->state, 2, memory_order_release);
    return NULL;
}


/* Handle B's index walk has x open. A user of B can open x too, and then a drop by A fails with FAR_ERR_BUSY. After the
 * user has closed it, the drop waits until the walk ends. */
TEST(a_drop_waits_for_a_walk_and_a_user_may_join_it) {
    node a, b;
    far_index *index;
    open_node(&a, "local:64M?name=walk");
    open_node(&b, "local:64M?name=walk");
    assert_int_equal(far_index_create(a.session, "x", "toy", NULL, &index), 0);
    walker w = {.node = &b, .uid = index->uid};
    far_index_close(index);
    pthread_t walking, waking;
    assert_int_equal(pthread_create(&walking, NULL, run_walk, &w), 0);
    while (atomic_load_explicit(&w.state, memory_order_acquire) == 0)
        ;
    far_session *other; /* session of the handle that runs the index walk */
    assert_int_equal(far_session_open(b.pool, &other), 0);
    assert_int_equal(far_index_open(other, "x", &index), 0);
    assert_int_equal(far_index_drop(a.session, "x"), FAR_ERR_BUSY);
    far_index_close(index);
    assert_int_equal(pthread_create(&waking, NULL, end_walk_later, &w), 0);
    assert_int_equal(far_index_drop(a.session, "x"), 0);
    assert_int_equal(atomic_load_explicit(&w.state, memory_order_acquire), 3);
    pthread_join(walking, NULL);
    pthread_join(waking, NULL);
    far_session_close(other);
    close_node(&b);
    close_node(&a);
}


/* Maximum number of READs of the request word while the index is held open. A waiting drop needs fewer READs until it
 * makes a request. */
#define READS_UNTIL_REQUEST 100000u


/* Keeps the index open until any client makes a request. */
static int hold_open_until_request(far_task *t, void *arg) {
    walker *w = arg;
    const far_addr request = far_addr_make(0, FAR_SUPER_REQUEST);
    far_index *index;
    uint64_t before = 0, now;
    int err = far_catalog_open_uid(t, w->uid, &index);
    if (err == 0)
        err = far_read_word(t, request, &before);
    atomic_store_explicit(&w->state, 1, memory_order_release);
    now = before;
    for (unsigned look = 0; err == 0 && now == before && look < READS_UNTIL_REQUEST; look++) {
        far_sleep(t, 100000);
        err = far_read_word(t, request, &now);
    }
    w->asked = now != before;
    far_catalog_close_uid(t, index);
    return err;
}


static void *run_walk_until_request(void *arg) {
    walker *w = arg;
    far_session_call(w->node->session, FAR_STATS_OTHER, false, hold_open_until_request, w);
    return NULL;
}


/* A drop that waits long for an index walk makes a request, because a background walk stops throttling when it observes
 * one. Fails without far_request_publish_empty in wait_for_walks_to_close. */
TEST(a_drop_that_waits_for_a_walk_makes_a_request) {
    node a, b;
    far_index *index;
    open_node(&a, "local:64M?name=walk");
    open_node(&b, "local:64M?name=walk");
    assert_int_equal(far_index_create(a.session, "x", "toy", NULL, &index), 0);
    walker w = {.node = &b, .uid = index->uid};
    far_index_close(index);
    pthread_t walking;
    assert_int_equal(pthread_create(&walking, NULL, run_walk_until_request, &w), 0);
    while (atomic_load_explicit(&w.state, memory_order_acquire) == 0)
        ;
    assert_int_equal(far_index_drop(a.session, "x"), 0);
    pthread_join(walking, NULL);
    assert_true(w.asked);
    close_node(&b);
    close_node(&a);
}


/* Background work in a session that no thread of the program has entered. */
static void use_for_a_while(far_task *t, void *arg) {
    far_index_use(arg);
    far_sleep(t, 5000000);
    far_index_unuse(arg);
}


/* Closing an index waits until background tasks that use it have ended, even if their session is driven only by
 * housekeeping or by the close itself. Fails without the loop over `uses` in close_reference. */
TEST(a_close_waits_for_background_work_that_housekeeping_drives) {
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


/* ---- Damage ---- */

static int damage_catalog(far_task *t, void *arg) {
    uint64_t word;
    int err = far_read_word(t, far_addr_make(0, FAR_SUPER_CATALOG), &word);
    return err < 0 ? err : far_write_word(t, far_catalog_word_addr(word) + *(uint64_t *)arg, 0x1234567812345678ull);
}


static int count_problem(void *ctx, const char *what) {
    assert_non_null(strstr(what, "catalog"));
    ++*(int *)ctx;
    return 0;
}


/* For each word of the catalog object: after it is damaged, open, drop and list fail with FAR_ERR_CORRUPT, and a check
 * reports the catalog. */
TEST(a_broken_catalog_is_an_error_not_a_crash) {
    for (uint64_t offset = 0; offset < sizeof(far_catalog_head) + sizeof(far_catalog_entry); offset += 8) {
        node a;
        far_index *index;
        open_node(&a, "local:64M");
        assert_int_equal(far_index_create(a.session, "x", "toy", NULL, &index), 0);
        far_index_close(index);
        assert_int_equal(far_session_call(a.session, FAR_STATS_OTHER, false, damage_catalog, &offset), 0);
        assert_int_equal(far_index_open(a.session, "x", &index), FAR_ERR_CORRUPT);
        assert_int_equal(far_index_drop(a.session, "x"), FAR_ERR_CORRUPT);
        assert_int_equal(far_index_list(a.session, add_name, NULL), FAR_ERR_CORRUPT);
        int problems = 0;
        assert_true(far_pool_check(a.session, 0, count_problem, &problems) > 0);
        assert_true(problems > 0);
        close_node(&a);
    }
}


typedef struct chain_length {
    unsigned objects, listed;
} chain_length;


static int measure_chain(far_task *t, void *ctx) {
    chain_length *length = ctx;
    far_catalog_view view;
    int err = far_catalog_read_unpinned(t, &view);
    *length = (chain_length){view.objects, view.count};
    return err;
}


static chain_length chain_of(node *n) {
    chain_length length = {0};
    assert_int_equal(far_session_call(n->session, FAR_STATS_OTHER, false, measure_chain, &length), 0);
    return length;
}


static int fail_for_problem(void *ctx, const char *what) {
    (void)ctx;
    fail_msg("%s", what);
    return 0;
}


/* A list of more indexes than a catalog object holds is a chain of two objects. Indexes in both objects can be opened
 * and dropped, a check accepts the chain, and a create after drops writes a shorter chain. Fails if a reader stops
 * after the first object, or if a walk does not report the second one. */
TEST(the_catalog_continues_in_further_objects) {
    node a, b;
    char name[FAR_NAME_MAX];
    far_index *index;
    open_node(&a, "local:64M?name=chain");
    for (unsigned i = 0; i < FAR_CATALOG_ENTRIES_MAX + 2; i++) {
        snprintf(name, sizeof(name), "index%u", i);
        assert_int_equal(far_index_create(a.session, name, "toy", "slots=1", &index), 0);
        far_index_close(index);
        assert_int_equal(chain_of(&a).objects, i < FAR_CATALOG_ENTRIES_MAX ? 1 : 2);
    }
    open_node(&b, "local:64M?name=chain");
    const unsigned last[] = {0, FAR_CATALOG_ENTRIES_MAX - 1, FAR_CATALOG_ENTRIES_MAX, FAR_CATALOG_ENTRIES_MAX + 1};
    for (unsigned i = 0; i < 4; i++) {
        snprintf(name, sizeof(name), "index%u", last[i]);
        assert_int_equal(far_index_open(b.session, name, &index), 0);
        far_index_close(index);
        assert_int_equal(far_index_create(b.session, name, "toy", NULL, &index), FAR_ERR_EXISTS);
    }
    assert_int_equal(far_pool_check(b.session, 0, fail_for_problem, NULL), 0);
    for (unsigned i = 0; i < 3; i++) {
        snprintf(name, sizeof(name), "index%u", last[i]);
        assert_int_equal(far_index_drop(b.session, name), 0);
        assert_int_equal(far_index_open(a.session, name, &index), FAR_ERR_NOT_FOUND);
    }
    assert_int_equal(chain_of(&a).objects, 2);
    assert_int_equal(chain_of(&a).listed, FAR_CATALOG_ENTRIES_MAX - 1);
    assert_int_equal(far_index_create(b.session, "new", "toy", NULL, &index), 0);
    far_index_close(index);
    assert_int_equal(chain_of(&a).objects, 1);
    assert_int_equal(far_pool_check(b.session, 0, fail_for_problem, NULL), 0);
    close_node(&b);
    close_node(&a);
}


static char pair_bytes[FAR_VALUE_MAX];


/* Every object fits into a block. A pool with blocks of 64 KiB refuses larger pairs at the put, which changes nothing,
 * and fixed sizes of such pairs at the creation. A pool of 64 MiB stores the largest pair of every kind. */
TEST(pairs_that_do_not_fit_into_a_block_are_refused) {
    static const char *const kinds[] = {"dart", "smart", "chime", "dolphin", "shard"};
    for (unsigned i = 0; i < 5; i++) {
        node small, large;
        far_index *index;
        size_t length = 0;
        static char got[FAR_VALUE_MAX], key[65536], options[32];
        const size_t key_max = far_index_kind_named(kinds[i])->max_key;
        snprintf(options, sizeof(options), "max_key=%zu", key_max);
        open_node(&small, "local:8M");
        open_node(&large, "local:64M");
        assert_int_equal(far_index_create(small.session, "x", kinds[i], "value_size=65000", &index), FAR_ERR_INVALID);
        assert_message_names("value_size");
        assert_int_equal(far_index_create(small.session, "x", kinds[i], NULL, &index), 0);
        assert_int_equal(far_put(small.session, index, "k", 1, pair_bytes, 61439), 0);
        int result = far_put(small.session, index, "k", 1, pair_bytes, FAR_VALUE_MAX);
        assert_true(result == FAR_ERR_INVALID || (result == 0 && strcmp(kinds[i], "dolphin") == 0));
        assert_int_equal(far_get(small.session, index, "k", 1, got, sizeof(got), &length), 0);
        assert_int_equal(length, result == 0 ? FAR_VALUE_MAX : 61439);
        far_index_close(index);
        assert_int_equal(far_index_create(large.session, "x", kinds[i], options, &index), 0);
        assert_int_equal(far_put(large.session, index, key, key_max, pair_bytes, FAR_VALUE_MAX), 0);
        assert_int_equal(far_get(large.session, index, key, key_max, got, sizeof(got), &length), 0);
        assert_int_equal(length, FAR_VALUE_MAX);
        far_index_close(index);
        close_node(&large);
        close_node(&small);
    }
}


static int count_kind(void *ctx, const char *kind, const char *what_for, const char *options) {
    assert_non_null(far_index_kind_named(kind));
    assert_true(strlen(what_for) > 0);
    assert_non_null(strstr(options, "key_size=0"));
    ++*(int *)ctx;
    return 0;
}


/* far_kinds lists every kind with its purpose and its options. */
TEST(kinds_are_listed_with_their_options) {
    int count = 0;
    assert_true(far_kinds(count_kind, &count) > 0);
    assert_true(count > 0);
}
