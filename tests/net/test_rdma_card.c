/* The fabric `rdma` on a card of this program's own: the functions of the RDMA libraries that client and daemon call,
 * both in this process. The card runs verbs as soon as they are posted, or holds them until it is told to go on, so that
 * every order of posting, completing, waiting and cutting can be had without a device. */
#ifdef FARINDEX_RDMA
#include "cli/bench.h"
#include "fabric/net/server.h"
#include "fabric/rdma.h"
#include "sim_rig.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define NODES  2
#define SIZE   (32u << 20)
#define WORD   (2u << 20) /* offset of a word on each node */
#define WRS    256
#define EVENTS 64

typedef struct card_channel { /* of the connection manager */
    struct rdma_event_channel base;
    struct rdma_cm_event events[EVENTS];
    unsigned first, count;
} card_channel;

typedef struct card_cq {
    struct ibv_cq base;
    struct ibv_wc found[WRS];
    unsigned first, count;
    bool armed;
} card_cq;

typedef struct card_qp {
    struct ibv_qp base;
    card_cq *cq;
    struct card_id *id;
    struct ibv_send_wr wrs[WRS];
    struct ibv_sge places[WRS];
    char inlined[WRS][128];
    unsigned first, count;
} card_qp;

typedef struct card_id {
    struct rdma_cm_id base;
    struct card_id *peer, *next; /* next: of the listeners */
    in_port_t port;
    uint8_t token[64];
} card_id;

static struct ibv_context context;
static struct {
    pthread_mutex_t lock;
    card_id *listeners;
    bool holds; /* verbs that are posted wait */
    unsigned posted, armed, destroyed;
} card = {.lock = PTHREAD_MUTEX_INITIALIZER};


/* ---- Verbs ---- */

static void complete(card_qp *qp, enum ibv_wc_status status) {
    card_cq *cq = qp->cq;
    cq->found[(cq->first + cq->count++) % WRS] = (struct ibv_wc){.status = status};
    if (cq->armed && eventfd_write(cq->base.channel->fd, 1) == 0)
        cq->armed = false;
}


static void execute(const struct ibv_send_wr *wr) {
    char *local = (char *)(uintptr_t)wr->sg_list->addr;
    uint64_t *word = (uint64_t *)(uintptr_t)wr->wr.atomic.remote_addr, old = 0;
    switch (wr->opcode) {
    case IBV_WR_RDMA_READ:
        memcpy(local, (char *)(uintptr_t)wr->wr.rdma.remote_addr, wr->sg_list->length);
        return;
    case IBV_WR_RDMA_WRITE:
        memcpy((char *)(uintptr_t)wr->wr.rdma.remote_addr, local, wr->sg_list->length);
        return;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        old = *word;
        *word = old == wr->wr.atomic.compare_add ? wr->wr.atomic.swap : old;
        break;
    default:
        old = *word;
        *word = old + wr->wr.atomic.compare_add;
    }
    memcpy(local, &old, sizeof(old));
}


/* Under the lock. Without its other end nothing of it takes effect. */
static void run_queue(card_qp *qp) {
    for (; qp->count > 0; qp->count--, qp->first = (qp->first + 1) % WRS) {
        struct ibv_send_wr *wr = &qp->wrs[qp->first];
        bool alive = qp->id->peer && qp->id->peer->base.qp;
        if (alive)
            execute(wr);
        if (wr->send_flags & IBV_SEND_SIGNALED || !alive)
            complete(qp, alive ? IBV_WC_SUCCESS : IBV_WC_RETRY_EXC_ERR);
    }
}


static int post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    card_qp *qp = (card_qp *)base;
    (void)bad;
    pthread_mutex_lock(&card.lock);
    for (; wr; wr = wr->next) {
        unsigned at = (qp->first + qp->count++) % WRS;
        if (qp->count > RDMA_SLOTS) /* more than it was made for */
            abort();
        qp->wrs[at] = *wr;
        qp->places[at] = *wr->sg_list;
        qp->wrs[at].sg_list = &qp->places[at];
        if (wr->send_flags & IBV_SEND_INLINE) { /* it is taken now */
            memcpy(qp->inlined[at], (char *)(uintptr_t)wr->sg_list->addr, wr->sg_list->length);
            qp->places[at].addr = (uintptr_t)qp->inlined[at];
        }
        card.posted++;
    }
    if (!card.holds)
        run_queue(qp);
    pthread_mutex_unlock(&card.lock);
    return 0;
}


static int poll_cq(struct ibv_cq *base, int most, struct ibv_wc *found) {
    card_cq *cq = (card_cq *)base;
    int got = 0;
    pthread_mutex_lock(&card.lock);
    for (; got < most && cq->count > 0; cq->count--, cq->first = (cq->first + 1) % WRS)
        found[got++] = cq->found[cq->first];
    pthread_mutex_unlock(&card.lock);
    return got;
}


static int req_notify_cq(struct ibv_cq *base, int solicited) {
    (void)solicited;
    pthread_mutex_lock(&card.lock);
    ((card_cq *)base)->armed = true;
    card.armed++;
    pthread_mutex_unlock(&card.lock);
    return 0;
}


static void hold(bool holds) {
    pthread_mutex_lock(&card.lock);
    card.holds = holds;
    pthread_mutex_unlock(&card.lock);
}


/* ---- What the libraries would do ---- */

int ibv_fork_init(void) {
    return 0;
}


int ibv_query_device(struct ibv_context *of, struct ibv_device_attr *attributes) {
    (void)of;
    *attributes =
        (struct ibv_device_attr){.atomic_cap = IBV_ATOMIC_HCA, .max_qp_rd_atom = 16, .max_qp_init_rd_atom = 16};
    return 0;
}


struct ibv_pd *ibv_alloc_pd(struct ibv_context *of) {
    static struct ibv_pd domain;
    (void)of;
    return &domain;
}


int ibv_dealloc_pd(struct ibv_pd *domain) {
    (void)domain;
    return 0;
}


#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *domain, void *bytes, size_t size, int access) {
    (void)domain, (void)bytes, (void)size, (void)access;
    return calloc(1, sizeof(struct ibv_mr));
}


int ibv_dereg_mr(struct ibv_mr *region) {
    free(region);
    return 0;
}


struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *of) {
    struct ibv_comp_channel *channel = calloc(1, sizeof(*channel));
    (void)of;
    channel->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return channel;
}


int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
    close(channel->fd);
    free(channel);
    return 0;
}


struct ibv_cq *ibv_create_cq(struct ibv_context *of, int entries, void *cookie, struct ibv_comp_channel *channel,
                             int vector) {
    card_cq *cq = calloc(1, sizeof(*cq));
    (void)entries, (void)cookie, (void)vector;
    cq->base.context = of;
    cq->base.channel = channel;
    return &cq->base;
}


int ibv_destroy_cq(struct ibv_cq *cq) {
    free(cq);
    return 0;
}


int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cookie) {
    eventfd_t events;
    *cq = NULL;
    *cookie = NULL;
    return eventfd_read(channel->fd, &events);
}


void ibv_ack_cq_events(struct ibv_cq *cq, unsigned events) {
    (void)cq, (void)events;
}


int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask) {
    (void)qp, (void)attributes, (void)mask;
    return 0;
}


/* ---- The connection manager ---- */

static void push_event(card_id *id, enum rdma_cm_event_type type, const void *data, size_t bytes) {
    card_channel *channel = (card_channel *)id->base.channel;
    struct rdma_cm_event *event = &channel->events[(channel->first + channel->count++) % EVENTS];
    *event = (struct rdma_cm_event){.id = &id->base, .event = type};
    event->param.conn.private_data = data;
    event->param.conn.private_data_len = (uint8_t)bytes;
    event->param.conn.responder_resources = 16;
    if (channel->count > EVENTS || eventfd_write(channel->base.fd, 1) < 0)
        abort();
}


struct rdma_event_channel *rdma_create_event_channel(void) {
    card_channel *channel = calloc(1, sizeof(*channel));
    channel->base.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
    return &channel->base;
}


void rdma_destroy_event_channel(struct rdma_event_channel *channel) {
    close(channel->fd);
    free(channel);
}


int rdma_get_cm_event(struct rdma_event_channel *base, struct rdma_cm_event **event) {
    card_channel *channel = (card_channel *)base;
    eventfd_t one;
    if (eventfd_read(base->fd, &one) < 0)
        return -1;
    pthread_mutex_lock(&card.lock);
    *event = &channel->events[channel->first];
    channel->first = (channel->first + 1) % EVENTS;
    channel->count--;
    pthread_mutex_unlock(&card.lock);
    return 0;
}


int rdma_ack_cm_event(struct rdma_cm_event *event) {
    (void)event;
    return 0;
}


int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **made, void *cookie,
                   enum rdma_port_space ps) {
    card_id *id = calloc(1, sizeof(*id));
    (void)cookie, (void)ps;
    id->base.channel = channel;
    *made = &id->base;
    return 0;
}


int rdma_destroy_id(struct rdma_cm_id *base) {
    card_id *id = (card_id *)base;
    pthread_mutex_lock(&card.lock);
    for (card_id **at = &card.listeners; *at; at = &(*at)->next)
        if (*at == id) {
            *at = id->next;
            break;
        }
    if (id->peer)
        id->peer->peer = NULL;
    pthread_mutex_unlock(&card.lock);
    free(id);
    return 0;
}


int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *address) {
    id->verbs = &context;
    ((card_id *)id)->port = ((struct sockaddr_in *)address)->sin_port;
    return 0;
}


int rdma_listen(struct rdma_cm_id *id, int backlog) {
    (void)backlog;
    pthread_mutex_lock(&card.lock);
    ((card_id *)id)->next = card.listeners;
    card.listeners = (card_id *)id;
    pthread_mutex_unlock(&card.lock);
    return 0;
}


static int push(struct rdma_cm_id *id, enum rdma_cm_event_type type) {
    pthread_mutex_lock(&card.lock);
    push_event((card_id *)id, type, NULL, 0);
    pthread_mutex_unlock(&card.lock);
    return 0;
}


int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to, int timeout) {
    (void)from, (void)timeout;
    id->verbs = &context;
    ((card_id *)id)->port = ((struct sockaddr_in *)to)->sin_port;
    return push(id, RDMA_CM_EVENT_ADDR_RESOLVED);
}


int rdma_resolve_route(struct rdma_cm_id *id, int timeout) {
    (void)timeout;
    return push(id, RDMA_CM_EVENT_ROUTE_RESOLVED);
}


int rdma_set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t bytes) {
    (void)id, (void)level, (void)name, (void)value, (void)bytes;
    return 0;
}


int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *domain, struct ibv_qp_init_attr *attributes) {
    card_qp *qp = calloc(1, sizeof(*qp));
    (void)domain;
    qp->base.context = &context;
    qp->cq = (card_cq *)attributes->send_cq;
    qp->id = (card_id *)id;
    id->qp = &qp->base;
    return 0;
}


void rdma_destroy_qp(struct rdma_cm_id *id) {
    pthread_mutex_lock(&card.lock);
    free(id->qp);
    id->qp = NULL;
    card.destroyed++;
    pthread_mutex_unlock(&card.lock);
}


int rdma_connect(struct rdma_cm_id *base, struct rdma_conn_param *parameters) {
    card_id *id = (card_id *)base, *other = calloc(1, sizeof(*other));
    pthread_mutex_lock(&card.lock);
    card_id *listener = card.listeners;
    while (listener && listener->port != id->port)
        listener = listener->next;
    if (!listener || parameters->private_data_len > sizeof(other->token))
        abort();
    other->base.verbs = &context;
    other->base.channel = listener->base.channel;
    other->peer = id;
    id->peer = other;
    memcpy(other->token, parameters->private_data, parameters->private_data_len);
    push_event(other, RDMA_CM_EVENT_CONNECT_REQUEST, other->token, parameters->private_data_len);
    pthread_mutex_unlock(&card.lock);
    return 0;
}


int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *parameters) {
    (void)parameters;
    return push(&((card_id *)id)->peer->base, RDMA_CM_EVENT_ESTABLISHED);
}


int rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t bytes) {
    (void)data, (void)bytes;
    return push(&((card_id *)id)->peer->base, RDMA_CM_EVENT_REJECTED);
}


/* ---- Nodes and connections ---- */

static char uri[128];
static net_server *servers[NODES];
static pthread_t threads[NODES];
static far_fabric *fabric;


static void *serve(void *server) {
    net_server_run(server);
    return NULL;
}


static int open_nodes(void **state) {
    char error[128];
    (void)state;
    snprintf(uri, sizeof(uri), "rdma://");
    context.ops.post_send = post_send;
    context.ops.poll_cq = poll_cq;
    context.ops.req_notify_cq = req_notify_cq;
    for (unsigned i = 0; i < NODES; i++) {
        net_server_config config = {.size = SIZE, .lease_ms = 10000, .threads = 1, .rdma = true};
        assert_int_equal(net_address_parse("127.0.0.1:0", 11, &config.listen, error, sizeof(error)), 0);
        assert_int_equal(net_server_open(&config, &servers[i]), 0);
        assert_int_equal(pthread_create(&threads[i], NULL, serve, servers[i]), 0);
        snprintf(uri + strlen(uri), sizeof(uri) - strlen(uri), "%s%s", i ? "," : "", net_server_address(servers[i]));
    }
    if (far_fabric_open(uri, &fabric) != 0)
        fail_msg("%s", far_last_error());
    return 0;
}


static int close_nodes(void **state) {
    (void)state;
    fabric->ops->close(fabric);
    for (unsigned i = 0; i < NODES; i++) {
        net_server_stop(servers[i]);
        pthread_join(threads[i], NULL);
        net_server_close(servers[i]);
    }
    hold(false);
    return 0;
}


static void let_go(void) {
    hold(false);
}


/* What was held is run: by the next post, for want of anything better. */
static void release(rig *r) {
    tcp_conn *c = (tcp_conn *)r->conn;
    let_go();
    pthread_mutex_lock(&card.lock);
    for (unsigned i = 0; i < c->count; i++)
        if (c->queues[i].id->qp)
            run_queue((card_qp *)c->queues[i].id->qp);
    pthread_mutex_unlock(&card.lock);
}


static void join(rig *r, unsigned id) {
    rig_connect(r, fabric);
    assert_int_equal(rig_ask(r, FAR_ASK_CLAIM, id, 1), 0);
}


static far_addr word_of(unsigned node) {
    return far_addr_make(node, WORD);
}


/* ---- Tests ---- */

/* Of more than the rings and queues take: all that is posted is done, each once, in order. */
static void what_does_not_fit_waits(void **state) {
    (void)state;
    enum { BATCHES = 100, BYTES = 100000 };
    static far_verb verbs[BATCHES][3];
    static far_batch batches[BATCHES];
    static uint64_t old[BATCHES];
    char *out = malloc(BYTES), *in = malloc(BYTES);
    rig r;
    for (unsigned i = 0; i < BYTES; i++)
        out[i] = (char)(i * 7 + i / 251);
    join(&r, 1);
    hold(true);
    for (unsigned i = 0; i < BATCHES; i++) {
        verbs[i][0] = rig_write(far_addr_make(i % NODES, 4u << 20), out, BYTES);
        verbs[i][1] = rig_faa(word_of(0), 1, &old[i]);
        verbs[i][2] = rig_read(far_addr_make(i % NODES, 4u << 20), in, BYTES);
        batches[i] = rig_batch(verbs[i], 3);
        rig_post(&r, &batches[i]);
    }
    fabric->ops->poll(r.conn);
    assert_true(batches[0].pending);
    assert_in_range(card.posted, 4, NODES * RDMA_SLOTS); /* and the rest is stalled */
    release(&r);
    for (unsigned i = 0; i < BATCHES; i++) {
        assert_int_equal(rig_wait(&r, &batches[i]), 0);
        assert_int_equal(old[i], i);
    }
    assert_memory_equal(in, out, BYTES);
    free(out);
    free(in);
    rig_disconnect(&r);
}


/* Small ones: the queue is full before the ring is. */
static void more_verbs_than_the_queue_has_room_for_wait(void **state) {
    (void)state;
    enum { VERBS = 3 * RDMA_SLOTS };
    static far_verb verbs[VERBS];
    static uint64_t old[VERBS];
    rig r;
    join(&r, 1);
    hold(true);
    card.posted = 0;
    for (unsigned i = 0; i < VERBS; i++)
        verbs[i] = rig_faa(word_of(1), 1, &old[i]);
    far_batch batch = rig_batch(verbs, VERBS);
    rig_post(&r, &batch);
    assert_int_equal(card.posted, RDMA_SLOTS);
    release(&r);
    assert_int_equal(rig_wait(&r, &batch), 0);
    for (unsigned i = 0; i < VERBS; i++)
        assert_int_equal(old[i], i);
    rig_disconnect(&r);
}


static void a_fence_over_nodes_waits_and_one_on_a_node_is_the_cards(void **state) {
    (void)state;
    uint64_t one = 1, got;
    rig r;
    join(&r, 1);
    hold(true);
    card.posted = 0;
    far_verb verbs[] = {rig_read(word_of(0), &got, 8), rig_read(word_of(0), &got, 8), rig_write(word_of(1), &one, 8)};
    verbs[1].flags = verbs[2].flags = FAR_VERB_FENCE;
    far_batch batch = rig_batch(verbs, 3);
    rig_post(&r, &batch);
    assert_int_equal(card.posted, 2);
    release(&r);
    assert_int_equal(rig_wait(&r, &batch), 0);
    assert_int_equal(card.posted, 3);
    rig_disconnect(&r);
}


static void nothing_of_a_cut_session_takes_effect(void **state) {
    (void)state;
    uint64_t one = 1, got = 9;
    rig victim, judge;
    join(&victim, 1);
    join(&judge, 2);
    hold(true);
    far_verb verbs[] = {rig_write(word_of(0), &one, 8), rig_write(word_of(1), &one, 8)};
    far_batch batch = rig_batch(verbs, 2);
    rig_post(&victim, &batch);
    assert_int_equal(rig_ask(&judge, FAR_ASK_EVICT, 1, 1), 0);
    release(&victim);
    assert_true(rig_wait(&victim, &batch) < 0);
    for (unsigned node = 0; node < NODES; node++) {
        assert_int_equal(rig_run1(&judge, rig_read(word_of(node), &got, 8)), 0);
        assert_int_equal(got, 0);
    }
    rig_disconnect(&victim);
    rig_disconnect(&judge);
}


static void *release_when_it_sleeps(void *arg) {
    for (bool armed = false; !armed; usleep(200)) {
        pthread_mutex_lock(&card.lock);
        armed = card.armed > 0;
        pthread_mutex_unlock(&card.lock);
    }
    usleep(2000);
    release(arg);
    return NULL;
}


static void a_completion_wakes_who_sleeps(void **state) {
    (void)state;
    uint64_t got;
    pthread_t other;
    rig r;
    join(&r, 1);
    hold(true);
    far_verb verb = rig_read(word_of(0), &got, 8);
    far_batch batch = rig_batch(&verb, 1);
    rig_post(&r, &batch);
    card.armed = 0;
    assert_int_equal(pthread_create(&other, NULL, release_when_it_sleeps, &r), 0);
    fabric->ops->wait(r.conn, FAR_TIME_NEVER);
    assert_int_equal(fabric->ops->poll(r.conn), 1);
    assert_false(batch.pending);
    pthread_join(other, NULL);
    rig_disconnect(&r);
}


/* A wait that ended by its time had asked to be woken by a completion, which a poll then finds. */
static void a_completion_that_a_poll_found_wakes_nobody_later(void **state) {
    (void)state;
    uint64_t got;
    unsigned wakes = 0;
    rig r;
    join(&r, 1);
    hold(true);
    far_verb verb = rig_read(word_of(0), &got, 8);
    far_batch batch = rig_batch(&verb, 1);
    rig_post(&r, &batch);
    card.armed = 0;
    fabric->ops->wait(r.conn, far_host_now(fabric->host));
    assert_true(card.armed > 0);
    release(&r);
    assert_int_equal(fabric->ops->poll(r.conn), 1);
    for (uint64_t until = far_host_now(fabric->host) + 20000000; far_host_now(fabric->host) < until; wakes++)
        fabric->ops->wait(r.conn, until);
    assert_int_equal(wakes, 1);
    rig_disconnect(&r);
}


static void a_forked_child_leaves_its_parents_queue_pairs_alone(void **state) {
    (void)state;
    int status;
    uint64_t got;
    rig r;
    join(&r, 1);
    card.destroyed = 0;
    pid_t child = fork();
    if (child == 0) {
        far_verb verb = rig_read(word_of(0), &got, 8);
        bool failed = rig_run(&r, &verb, 1) < 0;
        rig_disconnect(&r);
        _exit(failed && card.destroyed == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(rig_run1(&r, rig_read(word_of(0), &got, 8)), 0);
    rig_disconnect(&r);
}


/* Units of a line, no masked CAS, atomics not in order, through rings and queue pairs. */
static void every_kind_works(void **state) {
    (void)state;
    static const char *const kinds[] = {"chime", "dart", "dolphin", "shard", "smart"};
    enum { KEYS = 200 };
    far_pool *pool;
    far_session *session;
    assert_int_equal(far_pool_open(uri, NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        far_index *index;
        assert_int_equal(far_index_create(session, kinds[k], kinds[k], NULL, &index), 0);
        for (uint64_t key = 0; key < KEYS; key++)
            assert_int_equal(far_put(session, index, &key, sizeof(key), &key, sizeof(key)), 0);
        for (uint64_t key = 0; key < KEYS; key += 2)
            assert_int_equal(far_delete(session, index, &key, sizeof(key)), 0);
        for (uint64_t key = 0; key < KEYS; key++) {
            uint64_t got = 0;
            int expected = key % 2 ? 0 : FAR_ERR_NOT_FOUND;
            assert_int_equal(far_get(session, index, &key, sizeof(key), &got, sizeof(got), NULL), expected);
            assert_int_equal(got, expected ? 0 : key);
        }
        far_index_close(index);
    }
    assert_int_equal(far_pool_check(session, 0, NULL, NULL), 0);
    far_session_close(session);
    far_pool_close(pool);
}


static void bench_compares_with_plain_verbs(void **state) {
    (void)state;
    char *text = NULL;
    size_t bytes;
    FILE *table = open_memstream(&text, &bytes);
    assert_int_equal(bench_network(uri, table, NULL), 0);
    fclose(table);
    assert_non_null(strstr(text, "raw READ: post and poll"));
    assert_non_null(strstr(text, "our software beside raw verbs"));
    print_message("%s", text);
    free(text);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_does_not_fit_waits, open_nodes, close_nodes),
        cmocka_unit_test_setup_teardown(more_verbs_than_the_queue_has_room_for_wait, open_nodes, close_nodes),
        cmocka_unit_test_setup_teardown(a_fence_over_nodes_waits_and_one_on_a_node_is_the_cards, open_nodes,
                                        close_nodes),
        cmocka_unit_test_setup_teardown(nothing_of_a_cut_session_takes_effect, open_nodes, close_nodes),
        cmocka_unit_test_setup_teardown(a_completion_wakes_who_sleeps, open_nodes, close_nodes),
        cmocka_unit_test_setup_teardown(a_completion_that_a_poll_found_wakes_nobody_later, open_nodes, close_nodes),
        cmocka_unit_test_setup_teardown(a_forked_child_leaves_its_parents_queue_pairs_alone, open_nodes, close_nodes),
        cmocka_unit_test_setup_teardown(every_kind_works, open_nodes, close_nodes),
        cmocka_unit_test_setup_teardown(bench_compares_with_plain_verbs, open_nodes, close_nodes),
    };
    return cmocka_run_group_tests_name("net/rdma_card", tests, NULL, NULL);
}

#else

int main(void) { /* there is nothing to run a card under: tests/net/test_rdma_node.c tells what such a build says */
    return 0;
}

#endif
