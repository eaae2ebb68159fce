/* Tests of the catalog (pool/catalog) on the local fabric: create, open, close, drop and list indexes from several
 * handles and threads. */
#include "../support/problem.h"
#include "base/sanitizer.h"
#include "client/op.h"
#include "farindex.h"
#include "pool/catalog/catalog.h"
#include "pool/catalog/layout.h"
#include "pool/handle.h"
#include "task/session.h"
#include "test.h"

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


/* Calls a get until it reports that the index was dropped. A handle observes the drop with one of the next epochs. */
static void await_dropped(far_session *s, far_index *index) {
    int err = 0;
    while (err == 0)
        err = far_get(s, index, "k", 1, NULL, 0, NULL) == FAR_ERR_TOO_SMALL ? 0 : FAR_ERR_NOT_FOUND;
    assert_int_equal(far_get(s, index, "k", 1, NULL, 0, NULL), FAR_ERR_NOT_FOUND);
    assert_message_names("was dropped");
}


static int ignore_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)ctx, (void)key, (void)key_len, (void)value, (void)value_len;
    return 0;
}


/* Every call with an index that was dropped fails with FAR_ERR_NOT_FOUND and says why. */
static void assert_all_calls_fail(far_session *s, far_index *index) {
    far_usage usage;
    far_op op = {.kind = FAR_OP_PUT, .index = index, .key = "k", .key_len = 1, .value = "v", .value_len = 1};
    far_op many[2] = {{.kind = FAR_OP_GET, .index = index, .key = "k", .key_len = 1},
                      {.kind = FAR_OP_SCAN, .index = index, .each = ignore_pair}};
    far_op *ops[] = {&op, &many[0], &many[1]}, *done[3];
    const int results[] = {far_get(s, index, "k", 1, NULL, 0, NULL),
                           far_put(s, index, "k", 1, "v", 1),
                           far_insert(s, index, "k", 1, "v", 1),
                           far_update(s, index, "k", 1, "v", 1),
                           far_delete(s, index, "k", 1),
                           (int)far_scan(s, index, NULL, 0, NULL, 0, 0, ignore_pair, NULL),
                           far_index_usage(s, index, &usage),
                           far_index_check(s, index, fail_at_problem, NULL)};
    for (unsigned i = 0; i < sizeof(results) / sizeof(results[0]); i++)
        assert_int_equal(results[i], FAR_ERR_NOT_FOUND);
    assert_message_names("was dropped");
    assert_int_equal(far_scan(s, index, NULL, 0, NULL, 0, 0, ignore_pair, NULL), FAR_ERR_NOT_FOUND);
    assert_message_names("was dropped");
    assert_int_equal(far_submit(s, ops, 3), 3);
    for (int left = 3; left > 0;)
        left -= far_reap(s, done, 3, 1);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(ops[i]->result, FAR_ERR_NOT_FOUND);
        assert_non_null(strstr(far_op_error(s, ops[i]), "was dropped"));
    }
}


/* A drop succeeds while this handle and another one have the index open. This handle refuses later calls at once, the
 * other one after it has observed the drop. The name can be used again at once. */
TEST(an_open_index_is_dropped_at_once) {
    node a, b;
    far_index *first, *second, *third, *fresh;
    open_node(&a, "local:64M?name=busy");
    open_node(&b, "local:64M?name=busy");
    assert_int_equal(far_index_create(a.session, "x", "toy", NULL, &first), 0);
    assert_int_equal(far_put(a.session, first, "k", 1, "v", 1), 0);
    assert_int_equal(far_index_open(a.session, "x", &second), 0);
    assert_ptr_equal(first, second); /* A handle has one far_index object for each index that is open in it. */
    assert_int_equal(far_index_open(b.session, "x", &third), 0);
    assert_int_equal(far_index_drop(a.session, "x"), 0);
    assert_all_calls_fail(a.session, first);
    assert_int_equal(far_index_drop(b.session, "x"), FAR_ERR_NOT_FOUND);
    assert_int_equal(far_index_open(b.session, "x", &fresh), FAR_ERR_NOT_FOUND);
    assert_int_equal(far_index_create(b.session, "x", "toy", NULL, &fresh), 0);
    assert_int_not_equal(fresh->uid, first->uid);
    await_dropped(b.session, third);
    assert_all_calls_fail(b.session, third);
    assert_int_equal(far_put(b.session, fresh, "k", 1, "w", 1), 0);
    far_index_close(first);
    assert_int_equal(far_index_open(a.session, "x", &first),
                     0); /* the new index, while the old one is still open here */
    assert_int_equal(far_get(a.session, first, "k", 1, NULL, 0, NULL), FAR_ERR_TOO_SMALL);
    far_index_close(first);
    far_index_close(second);
    far_index_close(third);
    far_index_close(fresh);
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


/* The number of indexes that a handle can have open has no limit of its own. */
TEST(many_indexes_can_be_open) {
    enum { OPEN = 400 };
    node a;
    static far_index *open[OPEN];
    open_node(&a, "local:256M");
    for (int i = 0; i < OPEN; i++) {
        char name[16];
        snprintf(name, sizeof(name), "i%d", i);
        assert_int_equal(far_index_create(a.session, name, "toy", "slots=1", &open[i]), 0);
    }
    for (int i = 0; i < OPEN; i++)
        far_index_close(open[i]);
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
        for (unsigned i = 0; i < 20 && err == 0; i++) /* until another worker drops the index */
            if ((err = far_put(s, index, "k", 1, name, 2)) == 0 &&
                (err = far_get(s, index, "k", 1, value, 8, NULL)) == 0 && memcmp(value, name, 2))
                w->bad = "an open index does not work";
        if (err < 0 && (err != FAR_ERR_NOT_FOUND || !strstr(far_last_error(), "was dropped")))
            w->bad = "an operation failed";
        far_index_close(index);
    } else if (err != FAR_ERR_NOT_FOUND && err != FAR_ERR_EXISTS) {
        w->bad = "create or open failed";
    }
    err = far_index_drop(s, name);
    w->dropped += err == 0;
    if (err != 0 && err != FAR_ERR_NOT_FOUND)
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


/* Four threads of two handles create, open and drop the same names. An open index works until it is dropped, and at the
 * end the catalog contains as many indexes as were created and not dropped. */
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


/* Background work in a session that no thread of the program has entered. */
static void use_for_a_while(far_task *t, void *arg) {
    far_index_use(arg);
    far_sleep(t, 5000000);
    far_index_unuse(arg);
}


/* Closing an index waits until background tasks that use it have ended, even if their session is driven only by
 * housekeeping or by the close itself. Fails without the loop over `uses` in close_unreferenced. */
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
    uint64_t word;
    far_addr second;
} chain_length;


static int measure_chain(far_task *t, void *ctx) {
    chain_length *length = ctx;
    far_catalog_view view;
    int err = far_catalog_read_unpinned(t, &view);
    *length = (chain_length){view.objects, view.count, view.word, view.chain[1].addr};
    return err;
}


static chain_length chain_of(node *n) {
    chain_length length = {0};
    assert_int_equal(far_session_call(n->session, FAR_STATS_OTHER, false, measure_chain, &length), 0);
    return length;
}


static int write_catalog_word(far_task *t, void *word) {
    return far_write_word(t, far_addr_make(0, FAR_SUPER_CATALOG), *(uint64_t *)word);
}


static int read_catalog_word(far_task *t, void *word) {
    return far_read_word(t, far_addr_make(0, FAR_SUPER_CATALOG), word);
}


/* Verifies that a catalog word with the address of the second object of the chain is corruption, and that it causes no
 * change of the catalog. */
static void check_that_the_chain_is_read_from_its_start(node *n) {
    chain_length chain = chain_of(n);
    uint64_t damaged = far_catalog_word(chain.second, chain.listed), word;
    far_index *index;
    assert_int_equal(far_session_call(n->session, FAR_STATS_OTHER, false, write_catalog_word, &damaged), 0);
    assert_int_equal(far_index_open(n->session, "index0", &index), FAR_ERR_CORRUPT);
    assert_int_equal(far_session_call(n->session, FAR_STATS_OTHER, false, read_catalog_word, &word), 0);
    assert_int_equal(word, damaged);
    assert_int_equal(far_session_call(n->session, FAR_STATS_OTHER, false, write_catalog_word, &chain.word), 0);
}


static int fail_for_problem(void *ctx, const char *what) {
    (void)ctx;
    fail_msg("%s", what);
    return 0;
}


/* A list of more indexes than a catalog object holds is a chain of two objects. Indexes in both objects can be opened
 * and dropped, a check accepts the chain, and a create after drops writes a shorter chain. Fails if a reader stops
 * after the first object, if a walk does not report the second one, or if a reader accepts the second object as the first
 * one: then the indexes of the first object would be taken for dropped ones. */
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
    check_that_the_chain_is_read_from_its_start(&a);
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
