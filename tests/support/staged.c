/* A fabric whose verbs take effect one at a time (staged.h). */
#include "staged.h"

#include "base/random.h"
#include "farindex.h"

#include <stdlib.h>
#include <string.h>

#define CONNS 64

typedef struct lane {
    far_conn *conn; /* connection of this entry; NULL: the entry is not in use */
    far_batch *first;
    uint32_t done; /* number of verbs of the first posted batch that have taken effect */
    unsigned count;
    bool dead;
} lane;

static lane lanes[CONNS];
static const far_fabric_ops *under; /* operations of the wrapped fabric; the same for all fabrics of one kind */
static far_fabric_ops over;
static uint64_t now;
static far_random secrets;


static lane *lane_of(const far_conn *conn) {
    for (int i = 0; i < CONNS; i++)
        if (lanes[i].conn == conn)
            return &lanes[i];
    abort();
}


static int staged_connect(far_fabric *fabric, far_parker *parker, far_conn **conn) {
    int err = under->connect(fabric, parker, conn);
    if (err < 0)
        return err;
    *lane_of(NULL) = (lane){.conn = *conn};
    return 0;
}


static void staged_disconnect(far_conn *conn) {
    lane_of(conn)->conn = NULL;
    under->disconnect(conn);
}


static void staged_post(far_conn *conn, far_batch *batch) {
    lane *l = lane_of(conn);
    batch->pending = !l->dead;
    batch->status = l->dead ? FAR_ERR_FENCED : 0;
    batch->next = NULL;
    far_batch **link = &l->first;
    while (*link)
        link = &(*link)->next;
    if (!l->dead)
        *link = batch;
}


static int deliver(lane *l, int status) {
    far_batch *batch = l->first;
    l->first = batch->next;
    l->done = 0;
    batch->status = status;
    batch->pending = false;
    batch->done(batch);
    return 1;
}


static int staged_poll(far_conn *conn) {
    lane *l = lane_of(conn);
    int delivered = 0;
    while (l->first && (l->dead || l->done == l->first->count))
        delivered += deliver(l, l->dead ? FAR_ERR_FENCED : 0);
    return delivered;
}


bool staged_apply_next_verb(far_conn *conn) {
    lane *l = lane_of(conn);
    if (!l->first || l->dead || l->done == l->first->count)
        return false;
    far_batch one = {.verbs = &l->first->verbs[l->done], .count = 1};
    under->post(conn, &one);
    l->done++;
    l->count++;
    return true;
}


/* In a staged test nothing happens concurrently. Therefore a wait lets the next verb of the connection take effect or,
 * if the connection has no posted verb, advances the time to the end of the wait. */
static void staged_wait(far_conn *conn, uint64_t until) {
    if (staged_apply_next_verb(conn))
        return;
    if (until == FAR_TIME_NEVER)
        abort(); /* No verb is posted and the wait has no time limit, so the wait would never end. */
    now = until;
}


static uint64_t staged_now(far_host *host) {
    (void)host;
    return now;
}


static void staged_park(far_host *host, far_parker *parker, uint64_t until) {
    (void)host;
    if (atomic_exchange_explicit(&parker->token, 0, memory_order_relaxed) == 0)
        now = until;
}


static void staged_unpark(far_host *host, far_parker *parker) {
    (void)host;
    atomic_store_explicit(&parker->token, 1, memory_order_relaxed);
}


static void staged_secret(far_host *host, void *bytes, size_t count) {
    (void)host;
    for (size_t done = 0; done < count; done += 8) {
        uint64_t word = far_random_next(&secrets);
        memcpy((char *)bytes + done, &word, count - done < 8 ? count - done : 8);
    }
}


static const far_host_ops host_ops = {
    .now = staged_now, .park = staged_park, .unpark = staged_unpark, .secret = staged_secret};
static far_host host = {&host_ops};


void staged_seed(uint64_t seed) {
    far_random_seed(&secrets, seed);
}


void staged_advance_time(uint64_t ns) {
    now += ns;
}


static void staged_fence_self(far_conn *conn) {
    staged_kill(conn);
}


void staged_kill(far_conn *conn) {
    lane_of(conn)->dead = true;
    under->fence_self(conn);
}


unsigned staged_count(const far_conn *conn) {
    return lane_of(conn)->count;
}


void staged_install(far_fabric *fabric) {
    if (secrets.s[0] == 0)
        staged_seed(1);
    fabric->host = &host;
    under = fabric->ops;
    over = *under;
    over.connect = staged_connect;
    over.disconnect = staged_disconnect;
    over.post = staged_post;
    over.poll = staged_poll;
    over.wait = staged_wait;
    over.fence_self = staged_fence_self;
    fabric->ops = &over;
}
