/* Random simulation of handles that open and close. Several compute nodes open and close handles, sessions and indexes,
 * create and drop indexes of the same names, and run checks, all at the same time. After all handles were closed in
 * order, nothing may be left: a check without repair finds no leak, no page belongs to a dropped index, and the used
 * bytes are exactly those of the empty pool. The same must hold while handles stay open and idle for a while. In the
 * second test handles also fail, and background collections must find what they leave.
 *
 * A seed determines the whole run. To repeat runs: test_open_close_sim first count [deaths]. */
#include "../support/world.h"
#include "base/random.h"
#include "pool/alloc/store.h"
#include "pool/catalog/layout.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES_MAX = 4, ACTORS_MAX = 2 * NODES_MAX, SESSIONS = 3, INDEXES = 3, FLIGHT = 4, VALUE_MAX = 60000 };

typedef struct story story;

/* a compute node of the simulation, which has one handle at a time; the two actors of the node share that handle */
typedef struct node {
    far_pool *pool;
    far_pool_options options;
    unsigned users; /* number of actors that have sessions or indexes of the handle open */
    bool killed;
} node;

typedef struct actor {
    story *story;
    node *node;
    far_pool *pool; /* handle in which the actor has sessions and indexes open */
    far_random random;
    unsigned steps;
    /* true if the actor may open a handle; the other actor of the node only uses a handle that is open */
    bool may_open;
    far_session *sessions[SESSIONS];
    far_index *indexes[INDEXES];
    far_op ops[FLIGHT];
    far_session *flying; /* the session to which the operations in `ops` were submitted */
    unsigned in_flight;
    far_sim_client *client;
} actor;

struct story {
    unsigned long long seed;
    char uri[192];
    far_random random;
    far_pool *root;
    far_session *session;
    far_sim_world *world;
    bool deaths, tight;
    node nodes[NODES_MAX];
    actor actors[ACTORS_MAX];
    unsigned actor_count, living;
    char bad[256]; /* text of the first problem that was found; empty: none */
};

static const char *const names[INDEXES] = {"x", "y", "z"};
static const char *const kinds[] = {"toy", "dart", "smart", "shard", "toy"};
static const char value[VALUE_MAX];


static void record_problem(story *s, const char *format, ...) {
    va_list list;
    if (s->bad[0])
        return;
    va_start(list, format);
    vsnprintf(s->bad, sizeof(s->bad), format, list);
    va_end(list);
}


/* Records a problem if the result is an error that is not allowed. Clients run on stacks of their own, so a problem is
 * reported at the end of the run. */
static void expect_result(actor *a, const char *what, int result, unsigned allowed) {
    if (result >= 0 || allowed >> -result & 1)
        return;
    /* The result is allowed, because the other actor of the node is closing the handle or has closed it. */
    if (result == FAR_ERR_INVALID && a->node->pool != a->pool)
        return;
    if (result == FAR_ERR_NO_MEMORY && a->story->tight)
        return;
    if ((result == FAR_ERR_FENCED || result == FAR_ERR_UNREACHABLE) && a->node->killed)
        return;
    record_problem(a->story, "%s: %s (%s)", what, far_strerror(result), far_last_error());
}

#define ALLOW(error) (1u << -(error))


static uint64_t below(actor *a, uint64_t bound) {
    return far_random_below(&a->random, bound);
}


static int count_problem(void *ctx, const char *what) {
    record_problem(ctx, "problem: %s", what);
    return 0;
}


/* Sleeps for `ns`. Polls the handle meanwhile if the handle has no housekeeping thread. */

static void rest_for(actor *a, uint64_t ns) {
    if (a->pool && a->node->options.no_thread)
        for (uint64_t slept = 0; slept < ns; slept += 100000) {
            far_sim_sleep(a->story->world, 100000);
            if (a->pool == a->node->pool)
                expect_result(a, "poll", far_pool_poll(a->pool), 0);
        }
    else
        far_sim_sleep(a->story->world, ns);
}


static void sleep_a_while(actor *a) {
    static const uint64_t lengths[] = {3000, 30000, 300000, 1000000, 12000000};
    rest_for(a, below(a, lengths[below(a, 5)]));
}


static void reap_submitted(actor *a) {
    far_op *done[FLIGHT];
    if (a->in_flight) {
        int reaped = far_reap(a->flying, done, FLIGHT, a->in_flight);
        expect_result(a, "reap", reaped, 0);
        a->in_flight -= reaped > 0 ? (unsigned)reaped : a->in_flight;
    }
}


static void close_index(actor *a, unsigned i) {
    reap_submitted(a); /* After this, no operation of the actor uses the index. */
    far_index *index = a->indexes[i];
    a->indexes[i] = NULL;
    far_index_close(index);
}


static void close_session(actor *a, unsigned i) {
    far_session *session = a->sessions[i];
    a->sessions[i] = NULL;
    if (session == a->flying)
        a->in_flight = 0; /* Closing the session completes the operations in flight. */
    far_session_close(session);
}


/* Makes the actor leave a handle that the other actor of its node has closed, unless the actor still has sessions or
 * indexes of that handle open, which keep the handle's memory allocated. */
static void leave_closed_pool(actor *a) {
    bool open = !a->pool || a->pool == a->node->pool;
    for (unsigned i = 0; i < SESSIONS; i++)
        open |= a->sessions[i] != NULL;
    for (unsigned i = 0; i < INDEXES; i++)
        open |= a->indexes[i] != NULL;
    if (open)
        return;
    a->pool = NULL;
    a->node->users--;
}


/* Closes everything in random order, the handle first, last or in between. Two actors may close the same handle at the
 * same time. */
static void close_all(actor *a) {
    unsigned order[SESSIONS + INDEXES + 1], count = SESSIONS + INDEXES + 1;
    far_pool *pool = a->pool;
    if (!pool)
        return;
    for (unsigned i = 0; i < count; i++)
        order[i] = i;
    for (unsigned i = count; i-- > 1;) {
        unsigned j = (unsigned)below(a, i + 1), k = order[i];
        order[i] = order[j];
        order[j] = k;
    }
    for (unsigned i = 0; i < count; i++) {
        if (order[i] < SESSIONS)
            close_session(a, order[i]);
        else if (order[i] < SESSIONS + INDEXES)
            close_index(a, order[i] - SESSIONS);
        else if (a->node->pool == pool) {
            a->node->pool = NULL;
            far_pool_close(pool);
        }
        /* The pause is short, because a handle without a thread is not polled during the pause. */
        if (below(a, 4) == 0)
            far_sim_sleep(a->story->world, below(a, 300000));
    }
    leave_closed_pool(a);
}


static void open_pool(actor *a) {
    node *n = a->node;
    far_pool *pool;
    if (!n->pool) {
        if (!a->may_open || n->users)
            return; /* An actor still uses the last handle of this node, so no other handle is opened. */
        n->users++; /* Counting this actor now keeps the other actor from opening a handle at the same time. */
        n->options.no_thread = below(a, 4) == 0;
        n->options.rdwc = below(a, 4) != 0 ? 1 : -1;
        n->killed = false;
        int result = far_pool_open(a->story->uri, &n->options, &pool);
        n->users--;
        expect_result(a, "pool open", result, 0);
        if (result < 0)
            return;
        n->pool = pool;
    }
    a->pool = n->pool;
    n->users++;
}


static void open_session(actor *a, unsigned i) {
    if (a->sessions[i])
        close_session(a, i);
    else
        expect_result(a, "session open", far_session_open(a->pool, &a->sessions[i]), 0);
}


static void create_or_open(actor *a, far_session *s, unsigned i, bool create) {
    if (a->indexes[i]) {
        close_index(a, i);
        return;
    }
    if (create)
        expect_result(a, "create", far_index_create(s, names[i], kinds[below(a, 5)], NULL, &a->indexes[i]),
                      ALLOW(FAR_ERR_EXISTS));
    else
        expect_result(a, "open", far_index_open(s, names[i], &a->indexes[i]), ALLOW(FAR_ERR_NOT_FOUND));
}


static unsigned some_key(actor *a, unsigned *key) {
    *key = (unsigned)below(a, 60) * 2654435761u;
    return sizeof(*key);
}


static size_t some_length(actor *a) {
    static const size_t bounds[] = {1, 20, 20, 100, 100, 1000, 9000, VALUE_MAX};
    return below(a, bounds[below(a, a->story->tight ? 7 : 8)]);
}


static void operate(actor *a, far_session *s, far_index *index) {
    unsigned count = 1 + (unsigned)below(a, 12), key;
    for (unsigned i = 0; i < count && !a->story->bad[0]; i++) {
        size_t length = some_key(a, &key);
        if (below(a, 3) == 0)
            expect_result(a, "delete", far_delete(s, index, &key, length), ALLOW(FAR_ERR_NOT_FOUND));
        else
            expect_result(a, "put", far_put(s, index, &key, length, value, some_length(a)),
                          ALLOW(FAR_ERR_NOT_FOUND)); /* another actor has dropped the index */
    }
}


/* Submits some operations and leaves them in flight. */
static void submit(actor *a, far_session *s, far_index *index) {
    static const unsigned keys[FLIGHT] = {5, 6, 7, 8};
    far_op *ops[FLIGHT];
    reap_submitted(a);
    for (unsigned i = 0; i < FLIGHT; i++) {
        a->ops[i] = (far_op){.kind = i % 2 ? FAR_OP_DELETE : FAR_OP_PUT,
                             .index = index,
                             .key = &keys[i],
                             .key_len = sizeof(keys[i]),
                             .value = (void *)value,
                             .value_len = some_length(a)};
        ops[i] = &a->ops[i];
    }
    int taken = far_submit(s, ops, FLIGHT);
    expect_result(a, "submit", taken, 0);
    a->flying = s;
    a->in_flight = taken > 0 ? (unsigned)taken : 0;
}


static void read_statistics(actor *a, far_session *s) {
    far_pool_usage usage;
    if (below(a, 3))
        expect_result(a, "stat", far_pool_stat(s, &usage), 0);
    else
        expect_result(a, "check", far_pool_check(s, 0, count_problem, a->story), 0);
}


static void do_random_step(actor *a) {
    unsigned session = (unsigned)below(a, SESSIONS), index = (unsigned)below(a, INDEXES), what = (unsigned)below(a, 40);
    far_session *s = a->sessions[session];
    leave_closed_pool(a);
    if (!a->pool)
        open_pool(a);
    if (!a->pool || what < 8)
        sleep_a_while(a);
    else if (what == 8)
        close_all(a);
    else if (!s || what < 11)
        open_session(a, session);
    else if (what < 15)
        create_or_open(a, s, index, true);
    else if (what < 18)
        create_or_open(a, s, index, false);
    else if (what < 22)
        expect_result(a, "drop", far_index_drop(s, names[index]), ALLOW(FAR_ERR_NOT_FOUND));
    else if (what < 24)
        read_statistics(a, s);
    else if (what < 25 && a->story->deaths && !a->node->killed && a->node->pool == a->pool) {
        a->node->killed = true;
        far_sim_kill(a->pool->fabric);
    } else if (what < 28 && a->indexes[index])
        submit(a, s, a->indexes[index]);
    else if (a->indexes[index])
        operate(a, s, a->indexes[index]);
    else if (what < 38)
        create_or_open(a, s, index, what % 2);
}


static void live_main(void *arg) {
    actor *a = arg;
    for (unsigned i = 0; i < a->steps && !a->story->bad[0]; i++)
        do_random_step(a);
    reap_submitted(a);
    a->story->living--;
    /* While other actors work they may wait for this handle, which makes progress only when it is polled. */
    while (a->story->living > 0 && a->pool && a->pool == a->node->pool && a->node->options.no_thread)
        rest_for(a, 100000);
}


static void close_main(void *arg) {
    actor *a = arg;
    far_sim_sleep(a->story->world, below(a, 2000000));
    close_all(a);
}


/* ---- Checks at the end ---- */

static bool is_listed(story *s, uint32_t uid) {
    uint64_t word = world_word(s->world, FAR_SUPER_CATALOG);
    far_addr at = far_catalog_word_addr(word);
    const far_catalog_head *head = world_bytes(s->world, at);
    const far_catalog_entry *entries = (const void *)(head + 1);
    bool found = uid == 0;
    for (unsigned i = 0; word != 0 && i < head->entries && !found; i++)
        found = entries[i].uid == uid && entries[i].record < FAR_CATALOG_DROPPED;
    return found;
}


typedef struct tables { /* summary of the allocator's tables */
    uint64_t ends;      /* bytes of slabs after their last object */
    unsigned gone; /* number of slabs that belong to indexes that are not listed */
} tables;


static tables read_tables(story *s) {
    const far_geometry *g = &s->root->geometry;
    tables t = {0};
    for (unsigned n = 0; n < g->nodes; n++)
        for (uint32_t i = 0; i < g->node[n].blocks; i++) {
            far_block_id id = {n, i};
            for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++) {
                far_page_state page = far_page_unpack(world_word(s->world, far_block_page(g, id, p)));
                if (!page.in_use)
                    continue;
                t.gone += !is_listed(s, page.uid);
                t.ends += page.pages * g->page_bytes - far_slab_objects(g->page_bytes, &page) * page.size;
            }
        }
    return t;
}


static far_pool_usage check(story *s, const char *when) {
    far_pool_usage usage = {0};
    int result = far_pool_check(s->session, 0, count_problem, s);
    if (result == 0)
        result = far_pool_stat(s->session, &usage);
    if (result < 0)
        record_problem(s, "%s: check: %s", when, far_last_error());
    if (usage.leaked)
        record_problem(s, "%s: %llu bytes leaked", when, (unsigned long long)usage.leaked);
    return usage;
}


static void run_until_ended(story *s, const char *when) {
    far_sim_result result = far_sim_run(s->world);
    if (result != FAR_SIM_ENDED)
        record_problem(s, "%s: the simulation ended as %s", when, far_sim_result_name(result));
}


/* Waits until no collection is requested any more, so that background collections have found all leaked memory. `when`
 * is a text for the report. */
static void wait_for_sweeps(story *s, const char *when) {
    for (unsigned i = 0; i < 500 && world_word(s->world, FAR_SUPER_LOSSES) != world_word(s->world, FAR_SUPER_LOSSES_COLLECTED);
         i++)
        far_sim_sleep(s->world, 20000000);
    if (world_word(s->world, FAR_SUPER_LOSSES) != world_word(s->world, FAR_SUPER_LOSSES_COLLECTED))
        record_problem(s, "%s: %llu losses were counted, but only %llu were collected", when,
                       (unsigned long long)world_word(s->world, FAR_SUPER_LOSSES),
                       (unsigned long long)world_word(s->world, FAR_SUPER_LOSSES_COLLECTED));
}


/* Lets some time pass without operations, then checks the tables. If all handles have housekeeping threads, no memory
 * of dropped indexes may be left after that time. */
static void rest_and_check(story *s) {
    bool polled = true;
    /* The pause is longer in runs with failures, because clients detect a failure only after some time. */
    far_sim_sleep(s->world, s->deaths ? 500000000 : 60000000);
    for (unsigned i = 0; i < NODES_MAX; i++)
        polled &= !s->nodes[i].pool || !s->nodes[i].options.no_thread;
    if (!polled || s->bad[0])
        return;
    wait_for_sweeps(s, "at rest");
    far_sim_sleep(s->world, 60000000);
    check(s, "at rest");
    unsigned gone = read_tables(s).gone;
    if (gone)
        record_problem(s, "at rest: %u slabs of dropped indexes", gone);
}


static void check_pool_is_as_before(story *s, const far_pool_usage *before) {
    far_pool_usage after = check(s, "at the end");
    for (unsigned i = 0; i < INDEXES && !s->bad[0]; i++) {
        int result = far_index_drop(s->session, names[i]);
        if (result < 0 && result != FAR_ERR_NOT_FOUND)
            record_problem(s, "the last drop: %s", far_last_error());
    }
    far_sim_sleep(s->world, 60000000);
    wait_for_sweeps(s, "after the last drop");
    after = check(s, "after the last drop");
    tables t = read_tables(s);
    if (t.gone)
        record_problem(s, "at the end: %u slabs of dropped indexes", t.gone);
    /* the catalog object stays after the last index was dropped */
    far_addr catalog = far_catalog_word_addr(world_word(s->world, FAR_SUPER_CATALOG));
    uint64_t entries = catalog ? world_word(s->world, catalog + offsetof(far_catalog_head, entries)) : 0;
    const far_geometry *g = &s->root->geometry;
    uint64_t status = world_word(s->world, far_status_word_of(s->root->team.own->id)), used = before->used + t.ends;
    used += catalog ? far_size_class(g, far_catalog_bytes(entries), far_pool_type.align) : 0;
    used += status ? far_size_class(g, sizeof(far_status_record), far_pool_type.align) : 0;
    if (after.used != used || after.retired || after.sessions != before->sessions)
        record_problem(s, "at the end: %llu bytes used instead of %llu, %llu retired, %llu sessions",
                       (unsigned long long)after.used, (unsigned long long)used, (unsigned long long)after.retired,
                       (unsigned long long)after.sessions);
    if (far_sim_watch_errors(s->world))
        record_problem(s, "watch: %s", far_sim_watch_error(s->world, 0));
}


/* ---- Stories ---- */

static void open_story(story *s, unsigned long long seed, bool deaths) {
    memset(s, 0, sizeof(*s));
    s->seed = seed;
    s->deaths = deaths;
    far_random_seed(&s->random, seed);
    unsigned shape = (unsigned)far_random_below(&s->random, 4), nodes = 2 + (unsigned)far_random_below(&s->random, 3);
    s->tight = shape == 3;
    snprintf(s->uri, sizeof(s->uri), "sim:seed=%llu,name=lives%llu%s,limit=30s,%s%s", seed, seed, deaths ? "d" : "",
             shape == 0   ? "size=16M"
             : shape == 1 ? "size=8M,memory_nodes=2"
             : shape == 2 ? "size=64M"
                          : "size=1M,memory_nodes=2",
             far_random_below(&s->random, 2) ? ",faults=all" : "");
    s->world = world_join(s->uri, NULL, &s->root, &s->session);
    for (unsigned i = 0; i < nodes; i++)
        for (unsigned j = 0; j < 2; j++) {
            if (j == 1 && far_random_below(&s->random, 2))
                break;
            actor *a = &s->actors[s->actor_count++];
            *a = (actor){.story = s, .node = &s->nodes[i], .may_open = j == 0};
            a->steps = 5 + (unsigned)far_random_below(&s->random, 40);
            far_random_seed(&a->random, far_random_next(&s->random));
        }
}


static void start_all(story *s, const char *name, void (*main)(void *arg)) {
    for (unsigned i = 0; i < s->actor_count; i++)
        s->actors[i].client = far_sim_start(s->root->fabric, name, main, &s->actors[i]);
}


static void run_story(unsigned long long seed, bool deaths) {
    static story s;
    far_pool_usage before;
    open_story(&s, seed, deaths);
    assert_int_equal(far_pool_stat(s.session, &before), 0);
    s.living = s.actor_count;
    start_all(&s, "life", live_main);
    run_until_ended(&s, "lives");
    if (!s.bad[0] && far_random_below(&s.random, 2))
        rest_and_check(&s);
    if (!s.bad[0]) {
        start_all(&s, "end", close_main);
        run_until_ended(&s, "ends");
    }
    if (!s.bad[0])
        far_sim_sleep(s.world, deaths ? 500000000 : far_random_below(&s.random, 2) ? 60000000 : 0);
    if (!s.bad[0])
        wait_for_sweeps(&s, "at the end");
    if (!s.bad[0])
        check_pool_is_as_before(&s, &before);
    if (s.bad[0]) /* the simulated world is not closed after a failure */
        fail_msg("seed %llu%s: %s", seed, deaths ? " deaths" : "", s.bad);
    far_session_close(s.session);
    far_pool_close(s.root);
}


static unsigned long long first = 1, count = 30;


/* Runs the simulation without failures. */
TEST(handles_that_close_in_order_leave_nothing_behind) {
    for (unsigned long long seed = first; seed < first + count; seed++)
        run_story(seed, false);
}


/* Runs the simulation with failures of handles. */
TEST(failed_handles_are_collected_and_leave_nothing_behind) {
    for (unsigned long long seed = first; seed < first + count; seed++)
        run_story(seed, true);
}


TEST_ARGUMENTS(argc, argv) {
    if (argc < 3)
        return TEST_CONTINUE;
    first = strtoull(argv[1], NULL, 10);
    count = strtoull(argv[2], NULL, 10);
    test_set_pattern(argc > 3 ? "failed_handles_are_collected_and_leave_nothing_behind"
                              : "handles_that_close_in_order_leave_nothing_behind");
    return TEST_CONTINUE;
}
