/* Handles and sessions of torture clients. They are opened again after an outage of a memory node has ended them. */
#include "verify/torture_run.h"

#include "base/error.h"
#include "index/common/rdwc.h"
#include "pool/handle.h"

#define RENEW_PAUSE 20000u /* ns between two attempts to open the pool again */

typedef far_tortured run;
typedef far_torture_client client;
typedef far_torture_node node;


bool far_torture_is_killed(const node *n) {
    return (n->first && far_sim_killed(n->first->fabric)) || (n->pool && far_sim_killed(n->pool->fabric));
}


bool far_torture_client_has_failed(const client *c) {
    return far_torture_is_killed(c->node);
}


bool far_torture_session_is_lost(int result) {
    return result == FAR_ERR_FENCED || result == FAR_ERR_UNREACHABLE;
}


/* RDWC merges gets only if a handle is busy. With few clients it would not merge, so torture makes it merge always. */
static int make_rdwc_merge_all(far_pool *pool) {
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
    return err < 0 ? err : make_rdwc_merge_all(n->pool);
}


void far_torture_close_pool(node *n) {
    far_index_close(n->index);
    if (n->pool != n->first)
        far_pool_close(n->pool);
    n->index = NULL;
    n->pool = NULL;
}


static int reopen_pool(run *r, node *n) {
    far_session *session;
    int err = far_torture_open_pool(r, n);
    if (err < 0 || (err = far_session_open(n->pool, &session)) < 0)
        return err;
    err = far_index_open(session, FAR_TORTURED_INDEX, &n->index);
    far_session_close(session);
    return err;
}


/* Opens the pool again when no client has a session in it. One client does so while the others wait. */
int far_torture_reopen_pool(run *r, node *n) {
    int err = FAR_ERR_UNREACHABLE;
    if (n->users > 0 || n->renewing)
        return 0;
    n->renewing = true;
    while (far_torture_session_is_lost(err) && !far_torture_is_killed(n)) {
        far_torture_close_pool(n);
        far_sim_sleep(r->world, RENEW_PAUSE);
        err = reopen_pool(r, n);
    }
    n->renewing = false;
    return err;
}


static int open_session(client *c) {
    node *n = c->node;
    if (n->renewing)
        return FAR_ERR_UNREACHABLE;
    n->users++;
    /* From now on a planned failure can end the session that is being opened. */
    int err = far_session_open(n->pool, &c->session);
    if (err < 0) {
        c->session = NULL;
        n->users--;
    }
    return err;
}


int far_torture_open_session(client *c) {
    int err = open_session(c);
    while (far_torture_session_is_lost(err) && c->run->outage_count && !far_torture_client_has_failed(c)) {
        if ((err = far_torture_reopen_pool(c->run, c->node)) < 0)
            break;
        far_sim_sleep(c->run->world, RENEW_PAUSE);
        err = open_session(c);
    }
    return err;
}


void far_torture_close_session(client *c) {
    far_session *session = c->session;
    c->session = NULL;
    far_session_close(session);
    c->node->users--;
}
