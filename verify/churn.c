/* Churn means clients of a torture run that open and close sessions, side indexes and compute nodes, and check the
 * pool, while other clients run operations. Churn must not have any visible effect on the tortured index, and a check
 * of the pool with repair must find all memory that a failing churn client leaks. `far_torture_churn` is the main
 * function of such a client. */
#include "verify/torture_run.h"

#include "index/index.h"
#include "pool/handle.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SIDE_OPS  12
#define SIDE_KEYS 6
#define SIDE_INDEXES 3 /* indexes that churning clients create and drop while the tortured index is in use */
#define STALL_MAX 3000000u /* longest stall of a churn client in ns */
#define LATE_OPS  8

typedef far_torture_client client;
typedef far_torture_node node;


static uint64_t random_below(client *c, uint64_t bound) {
    return far_random_below(&c->random, bound);
}


/* Classifies a result. Returns 0 for success and for errors that are expected here, otherwise the error, after which
 * the session is lost. FAR_ERR_BUSY is never expected, because no client stalls for long. */
static int report_unexpected(client *c, const char *what, int err) {
    char text[320];
    switch (err) {
    case FAR_ERR_NOT_FOUND:
    case FAR_ERR_EXISTS:
    case FAR_ERR_NO_MEMORY:
        return 0;
    case FAR_ERR_FENCED:
    case FAR_ERR_UNREACHABLE:
        return err;
    default:
        if (err >= 0)
            return 0;
        snprintf(text, sizeof(text), "client %u, which churns: %s returned %d (%s: %s)", c->number, what, err,
                 far_strerror(err), far_last_error());
        far_torture_problem(c->run, text);
        return err;
    }
}


static int report_problem(void *ctx, const char *what) {
    far_torture_problem(ctx, what);
    return 0;
}


static int check_pool(client *c) {
    int repair = (int)random_below(c, 2);
    return report_unexpected(c, "a check of the pool", far_pool_check(c->session, repair, report_problem, c->run));
}


/* Checks the index concurrently with other clients. Their unfinished operations must not be reported as problems. */
static int check_index(client *c) {
    int err = 0;
    for (unsigned i = 0; i < c->run->torture->checks && err == 0; i++)
        err = report_unexpected(c, "a check of the index",
                                far_index_check(c->session, c->node->index, report_problem, c->run));
    return err;
}


/* Runs operations on a side index. All values of one key have the same size and consist of equal bytes, so a get can
 * check that the value is not torn. */
static int use_side_index(client *c, far_index *index) {
    uint8_t value[2048], key[8];
    size_t fixed = far_value_size(index);
    int err = fixed > sizeof(value) ? 1 : 0;
    for (unsigned i = 0; i < SIDE_OPS && err == 0; i++) {
        unsigned k = (unsigned)random_below(c, SIDE_KEYS);
        size_t length = fixed ? fixed : 40 + 300 * (size_t)k, got = 0;
        memset(key, 'a' + (int)k, sizeof(key));
        if (fixed)
            /* The first two key bytes are 0, because kinds that store pairs inline may require small numbers. */
            key[0] = key[1] = 0;
        switch (random_below(c, 4)) {
        case 0:
            err = report_unexpected(c, "a delete", far_delete(c->session, index, key, sizeof(key)));
            break;
        case 1:
            err = far_get(c->session, index, key, sizeof(key), value, sizeof(value), &got);
            if (err == 0 && (got != length || memcmp(value, value + 1, length - 1) != 0))
                far_torture_problem(c->run, "a get of a side index returned a torn value");
            err = report_unexpected(c, "a get", err);
            break;
        default:
            memset(value, 1 + (int)random_below(c, 200), length);
            err = report_unexpected(c, "a put", far_put(c->session, index, key, sizeof(key), value, length));
        }
    }
    return err == 1 ? 0 : err;
}


/* Creates or opens a side index and runs operations on it. In half of the calls it also drops the index, while it and
 * perhaps other clients have the index open; the later operations then find nothing. */
static int churn_side_index(client *c) {
    char name[16];
    snprintf(name, sizeof(name), "side.%u", (unsigned)random_below(c, SIDE_INDEXES));
    far_index *index = NULL;
    int err = far_index_create(c->session, name, c->run->torture->kind, c->run->torture->options, &index);
    if (err == FAR_ERR_EXISTS)
        err = far_index_open(c->session, name, &index);
    err = report_unexpected(c, "opening a side index", err);
    if (!index)
        return err;
    err = use_side_index(c, index);
    if (err == 0 && random_below(c, 2) == 0) {
        err = report_unexpected(c, "a drop", far_index_drop(c->session, name));
        if (err == 0)
            err = use_side_index(c, index);
    }
    far_index_close(index);
    return err;
}


/* Runs an additional compute node, which opens the pool, runs operations, and then closes the pool or is killed. */
static void run_temporary_node(client *c) {
    node late = {0};
    client guest = *c;
    guest.node = &late;
    guest.session = NULL;
    guest.left = LATE_OPS;
    if (report_unexpected(c, "opening the pool", far_pool_open(c->run->uri, &c->run->options, &late.pool)) < 0 ||
        !late.pool)
        return;
    c->temporary_pool = late.pool;
    if (report_unexpected(c, "opening a session", far_session_open(late.pool, &guest.session)) == 0 && guest.session &&
        report_unexpected(c, "opening the index", far_index_open(guest.session, FAR_TORTURED_INDEX, &late.index)) ==
            0 &&
        late.index) {
        bool well = far_torture_work(&guest);
        if (well && random_below(c, 2) == 0)
            churn_side_index(&guest);
    }
    c->written = guest.written;
    if (random_below(c, 3) == 0) {
        c->run->crashes++;
        far_sim_kill(late.pool->fabric);
    }
    c->temporary_pool = NULL;
    far_torture_close_cursor(&guest);
    far_index_close(late.index);
    if (random_below(c, 2) == 0)
        far_session_close(guest.session);
    else
        late.pool = (far_pool_close(late.pool), far_session_close(guest.session), NULL);
    far_pool_close(late.pool);
}


static int run_random_step(client *c) {
    switch (random_below(c, 6)) {
    case 0:
        return check_pool(c);
    case 1:
    case 2:
        return churn_side_index(c);
    case 3:
        far_sim_sleep(c->run->world, 1 + random_below(c, STALL_MAX));
        return 0;
    case 4:
        run_temporary_node(c);
        return 0;
    default:
        return 1; /* the result 1 ends the session of this client, which then opens another session */
    }
}


void far_torture_churn(void *arg) {
    client *c = arg;
    while (c->left > 0 && !far_torture_client_has_failed(c)) {
        int err = far_torture_open_session(c);
        if (err < 0) {
            if (!far_torture_client_has_failed(c))
                report_unexpected(c, "opening a session", err == FAR_ERR_FENCED ? FAR_ERR_INVALID : err);
            return;
        }
        for (err = 0; err == 0 && c->left > 0 && !far_torture_client_has_failed(c); c->left--)
            if ((err = check_index(c)) == 0)
                err = run_random_step(c);
        far_torture_close_session(c);
    }
}
