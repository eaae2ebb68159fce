/* The handles and sessions of tortured clients: opened again when the memory nodes have lost them. */
#include "verify/torture_run.h"

#include "base/error.h"
#include "index/rdwc.h"
#include "pool/handle.h"

#define RENEW_PAUSE 20000u /* ns between two tries to open the pool again */

typedef far_tortured run;
typedef far_torture_client client;
typedef far_torture_node node;


bool far_torture_is_killed(const node *n) {
    return (n->first && far_sim_killed(n->first->fabric)) || (n->pool && far_sim_killed(n->pool->fabric));
}


bool far_torture_is_dead(const client *c) {
    return far_torture_is_killed(c->node);
}


bool far_torture_is_lost(int result) {
    return result == FAR_ERR_FENCED || result == FAR_ERR_UNREACHABLE;
}


/* Few clients make a quiet handle, in which RDWC leaves gets alone: here it merges whatever it can. */
static int merge_all(far_pool *pool) {
    if (!pool->rdwc)
        return 0;
    far_rdwc *rdwc = far_rdwc_new(0);
    if (!rdwc)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for RDWC");
    far_rdwc_free(pool->rdwc);
    pool->rdwc = rdwc;
    return 0;
}


int far_torture_open_pool(run *r, node *n) {
    int err = far_pool_open(r->uri, &r->options, &n->pool);
    return err < 0 ? err : merge_all(n->pool);
}


void far_torture_close_pool(node *n) {
    far_index_close(n->index);
    if (n->pool != n->first)
        far_pool_close(n->pool);
    n->index = NULL;
    n->pool = NULL;
}


static int open_again(run *r, node *n) {
    far_session *session;
    int err = far_torture_open_pool(r, n);
    if (err < 0 || (err = far_session_open(n->pool, &session)) < 0)
        return err;
    err = far_index_open(session, FAR_TORTURED_INDEX, &n->index);
    far_session_close(session);
    return err;
}


/* When nobody uses it any more, one client does it; the others wait. */
int far_torture_renew(run *r, node *n) {
    int err = FAR_ERR_UNREACHABLE;
    if (n->users > 0 || n->renewing)
        return 0;
    n->renewing = true;
    while (far_torture_is_lost(err) && !far_torture_is_killed(n)) {
        far_torture_close_pool(n);
        far_sim_sleep(r->world, RENEW_PAUSE);
        err = open_again(r, n);
    }
    n->renewing = false;
    return err;
}


static int open_session(client *c) {
    node *n = c->node;
    if (n->renewing)
        return FAR_ERR_UNREACHABLE;
    n->users++;
    int err = far_session_open(n->pool, &c->session); /* from then on it can be declared dead */
    if (err < 0) {
        c->session = NULL;
        n->users--;
    }
    return err;
}


int far_torture_enter(client *c) {
    int err = open_session(c);
    while (far_torture_is_lost(err) && c->run->silence_count && !far_torture_is_dead(c)) {
        if ((err = far_torture_renew(c->run, c->node)) < 0)
            break;
        far_sim_sleep(c->run->world, RENEW_PAUSE);
        err = open_session(c);
    }
    return err;
}


void far_torture_leave(client *c) {
    far_session *session = c->session;
    c->session = NULL;
    far_session_close(session);
    c->node->users--;
}
