/* Verbs that take effect one by one (staged.h). */
#include "staged.h"

#include "base/random.h"
#include "farindex.h"

#include <stdlib.h>
#include <string.h>

#define CONNS 64

typedef struct lane {
    far_conn *conn; /* NULL: not in use */
    far_batch *first;
    uint32_t done; /* verbs of the first batch that took effect */
    unsigned count;
    bool dead;
} lane;

static lane lanes[CONNS];
static const far_fabric_ops *under; /* the wrapped fabric's; the same for all of one kind */
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


bool staged_effect(far_conn *conn) {
    lane *l = lane_of(conn);
    if (!l->first || l->dead || l->done == l->first->count)
        return false;
    far_batch one = {.verbs = &l->first->verbs[l->done], .count = 1};
    under->post(conn, &one);
    l->done++;
    l->count++;
    return true;
}


/* Nobody is to be waited for in such a test but the test itself: a wait lets things happen. */
static void staged_wait(far_conn *conn, uint64_t until) {
    if (staged_effect(conn))
        return;
    if (until == FAR_TIME_NEVER)
        abort(); /* nothing will ever happen */
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


void staged_pass(uint64_t ns) {
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
