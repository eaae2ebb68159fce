/* Churn: what goes on in a pool beside the operations. Nothing it does may be seen in the tortured index; everything it
 * leaves behind, or is cut off in, must be found by a sweep. */
#include "verify/torture_run.h"

#include "index/index.h"
#include "pool/catalog_layout.h"
#include "pool/handle.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SIDE_OPS  12
#define SIDE_KEYS 6
#define STALL_MAX 3000000u /* ns */
#define LATE_OPS  8

typedef far_torture_client client;
typedef far_torture_node node;


static uint64_t below(client *c, uint64_t bound) {
    return far_random_below(&c->random, bound);
}


/* 0: fine or to be expected here; else the session is lost. Nothing may be refused as busy but the drop of an index that
 * somebody has open (drop_side_index): no client stands still for long. */
static int judge(client *c, const char *what, int err) {
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
        snprintf(text, sizeof(text), "churning client %u: %s gave %d (%s: %s)", c->number, what, err, far_strerror(err),
                 far_last_error());
        far_torture_problem(c->run, text);
        return err;
    }
}


static int tell(void *ctx, const char *what) {
    far_torture_problem(ctx, what);
    return 0;
}


static int check_pool(client *c) {
    int repair = (int)below(c, 2);
    return judge(c, "a check of the pool", far_pool_check(c->session, repair, tell, c->run));
}


/* Beside live clients: what it sees of their work is no problem. */
static int check_index(client *c) {
    int err = 0;
    for (unsigned i = 0; i < c->run->torture->checks && err == 0; i++)
        err = judge(c, "a check of the index", far_index_check(c->session, c->node->index, tell, c->run));
    return err;
}


/* Operations on an index that comes and goes. Values of one key have one size: what is read must be whole. */
static int use_side_index(client *c, far_index *index) {
    uint8_t value[2048], key[8];
    size_t fixed = far_value_size(index);
    int err = fixed > sizeof(value) ? 1 : 0;
    for (unsigned i = 0; i < SIDE_OPS && err == 0; i++) {
        unsigned k = (unsigned)below(c, SIDE_KEYS);
        size_t length = fixed ? fixed : 40 + 300 * (size_t)k, got = 0;
        memset(key, 'a' + (int)k, sizeof(key));
        if (fixed)
            key[0] = key[1] = 0; /* kinds that lay pairs out inline may want small numbers */
        switch (below(c, 4)) {
        case 0:
            err = judge(c, "a delete", far_delete(c->session, index, key, sizeof(key)));
            break;
        case 1:
            err = far_get(c->session, index, key, sizeof(key), value, sizeof(value), &got);
            if (err == 0 && (got != length || memcmp(value, value + 1, length - 1) != 0))
                far_torture_problem(c->run, "a value of a side index is broken");
            err = judge(c, "a get", err);
            break;
        default:
            memset(value, 1 + (int)below(c, 200), length);
            err = judge(c, "a put", far_put(c->session, index, key, sizeof(key), value, length));
        }
    }
    return err == 1 ? 0 : err;
}


/* A session was lost while it wrote which indexes its handle has open: what stands there counts until nothing can come late,
 * and the handle has put it right. */
static bool is_unsure(const far_pool *pool) {
    return pool && far_open_table_is_unsure(pool);
}


static bool seems_open(const client *c, const far_torture_side *side) {
    const far_tortured *r = c->run;
    bool open = side->users > 0;
    for (unsigned i = 0; i < r->node_count; i++)
        open |= is_unsure(r->nodes[i].pool);
    for (unsigned i = 0; i < r->client_count; i++)
        open |= is_unsure(r->clients[i].guest);
    return open;
}


static int drop_side_index(client *c, const far_torture_side *side, const char *name) {
    bool open = seems_open(c, side);
    uint64_t uses = side->uses;
    int err = far_index_drop(c->session, name);
    return err == FAR_ERR_BUSY && (open || side->uses != uses) ? 0 : judge(c, "a drop", err);
}


static int churn_side_index(client *c) {
    char name[16];
    unsigned number = (unsigned)below(c, FAR_TORTURE_SIDES);
    far_torture_side *side = &c->run->sides[number];
    snprintf(name, sizeof(name), "side.%u", number);
    far_index *index = NULL;
    side->users++;
    side->uses++;
    int err = far_index_create(c->session, name, c->run->torture->kind, c->run->torture->options, &index);
    if (err == FAR_ERR_EXISTS)
        err = far_index_open(c->session, name, &index);
    err = judge(c, "opening a side index", err);
    if (index) {
        err = use_side_index(c, index);
        far_index_close(index);
    }
    side->users--;
    return err == 0 && below(c, 2) == 0 ? drop_side_index(c, side, name) : err;
}


/* One more compute node: joins, works, and leaves or dies. */
static void come_and_go(client *c) {
    node late = {0};
    client guest = *c;
    guest.node = &late;
    guest.session = NULL;
    guest.left = LATE_OPS;
    if (judge(c, "opening the pool", far_pool_open(c->run->uri, &c->run->options, &late.pool)) < 0 || !late.pool)
        return;
    c->guest = late.pool;
    if (judge(c, "opening a session", far_session_open(late.pool, &guest.session)) == 0 && guest.session &&
        judge(c, "opening the index", far_index_open(guest.session, FAR_TORTURED_INDEX, &late.index)) == 0 &&
        late.index) {
        bool well = far_torture_work(&guest);
        if (well && below(c, 2) == 0)
            churn_side_index(&guest);
    }
    c->written = guest.written;
    if (below(c, 3) == 0) {
        c->run->crashes++;
        far_sim_kill(late.pool->fabric);
    }
    c->guest = NULL;
    far_index_close(late.index);
    if (below(c, 2) == 0)
        far_session_close(guest.session);
    else
        late.pool = (far_pool_close(late.pool), far_session_close(guest.session), NULL);
    far_pool_close(late.pool);
}


static int step(client *c) {
    switch (below(c, 6)) {
    case 0:
        return check_pool(c);
    case 1:
    case 2:
        return churn_side_index(c);
    case 3:
        far_sim_sleep(c->run->world, 1 + below(c, STALL_MAX));
        return 0;
    case 4:
        come_and_go(c);
        return 0;
    default:
        return 1; /* another session */
    }
}


void far_torture_churn(void *arg) {
    client *c = arg;
    while (c->left > 0 && !far_torture_is_dead(c)) {
        int err = far_torture_enter(c);
        if (err < 0) {
            if (!far_torture_is_dead(c))
                judge(c, "opening a session", err == FAR_ERR_FENCED ? FAR_ERR_INVALID : err);
            return;
        }
        for (err = 0; err == 0 && c->left > 0 && !far_torture_is_dead(c); c->left--)
            if ((err = check_index(c)) == 0)
                err = step(c);
        far_torture_leave(c);
    }
}
