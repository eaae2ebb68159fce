/* The RDMA side of the daemon (fabric/node/rdma_node.c) without a device: this program replaces the functions of the
 * RDMA libraries that it calls. The tests check which clients get a queue pair, that a stopped queue pair is destroyed,
 * and one race of two threads. A build without RDMA must refuse with a message. */
#include "base/host.h"
#include "fabric/node/rdma_node.h"
#include "farindex.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

#ifdef FARINDEX_RDMA
#include <errno.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct ibv_context card, other_card;
static struct {
    struct rdma_event_channel channel;
    struct rdma_cm_id listener;
    struct ibv_pd domain;
    struct ibv_cq completions;
    struct ibv_mr region;
    struct ibv_qp pair;
    enum ibv_atomic_cap atomics;
    struct ibv_context *found; /* card that has the address of the daemon; NULL: the address belongs to several cards */
    struct rdma_cm_event event;
    bool has_event;
    void (*inside_event)(void);
    unsigned accepted, rejected, made, destroyed, destroyed_in_error, ids_destroyed, in_error;
} fake;

static net_rdma *node;
static net_queue *queue;
static net_queue_pair_offer offer;
static char memory[4096];


/* ---- Replacements of the RDMA libraries ---- */

struct rdma_event_channel *rdma_create_event_channel(void) {
    return &fake.channel;
}


void rdma_destroy_event_channel(struct rdma_event_channel *channel) {
    close(channel->fd);
}


int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, enum rdma_port_space ps) {
    (void)channel, (void)context, (void)ps;
    *id = &fake.listener;
    return 0;
}


int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *address) {
    (void)address;
    id->verbs = fake.found;
    return 0;
}


int rdma_listen(struct rdma_cm_id *id, int backlog) {
    (void)id, (void)backlog;
    return 0;
}


int rdma_destroy_id(struct rdma_cm_id *id) {
    fake.ids_destroyed += id != &fake.listener;
    return 0;
}


int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes) {
    (void)context;
    *attributes = (struct ibv_device_attr){.atomic_cap = fake.atomics, .max_qp_rd_atom = 16};
    return 0;
}


struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    (void)context;
    return &fake.domain;
}


int ibv_dealloc_pd(struct ibv_pd *domain) {
    (void)domain;
    return 0;
}


struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *cookie, struct ibv_comp_channel *channel,
                             int vector) {
    (void)context, (void)entries, (void)cookie, (void)channel, (void)vector;
    return &fake.completions;
}


int ibv_destroy_cq(struct ibv_cq *completions) {
    (void)completions;
    return 0;
}


#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *domain, void *bytes, size_t size, int access) {
    (void)domain, (void)bytes, (void)size, (void)access;
    return &fake.region;
}


int ibv_dereg_mr(struct ibv_mr *region) {
    (void)region;
    return 0;
}


int ibv_modify_qp(struct ibv_qp *pair, struct ibv_qp_attr *attributes, int mask) {
    (void)pair, (void)mask;
    fake.in_error += attributes->qp_state == IBV_QPS_ERR;
    return 0;
}


int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *domain, struct ibv_qp_init_attr *attributes) {
    (void)domain, (void)attributes;
    id->qp = &fake.pair;
    fake.made++;
    return 0;
}


void rdma_destroy_qp(struct rdma_cm_id *id) {
    /* A queue pair must be in the error state before it is destroyed, because in that state the card accepts nothing
     * more from it. */
    fake.destroyed_in_error += fake.in_error > 0;
    id->qp = NULL;
    __atomic_add_fetch(&fake.destroyed, 1, __ATOMIC_SEQ_CST);
}


int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *parameters) {
    (void)id, (void)parameters;
    fake.accepted++;
    return 0;
}


int rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t length) {
    (void)id, (void)data, (void)length;
    fake.rejected++;
    return 0;
}


int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event) {
    (void)channel;
    if (fake.inside_event)
        fake.inside_event();
    fake.inside_event = NULL;
    if (!fake.has_event) {
        errno = EAGAIN;
        return -1;
    }
    fake.has_event = false;
    *event = &fake.event;
    return 0;
}


int rdma_ack_cm_event(struct rdma_cm_event *event) {
    (void)event;
    return 0;
}


/* ---- Queue pairs ---- */

static int open_with(struct ibv_context *found, enum ibv_atomic_cap atomics) {
    net_endpoint endpoint = {0};
    memset(&fake, 0, sizeof(fake));
    fake.channel.fd = eventfd(0, EFD_CLOEXEC);
    fake.found = found;
    fake.atomics = atomics;
    return net_rdma_open(&endpoint, "10.0.0.1:7000", memory, sizeof(memory), &node);
}


TEST_FIXTURE(open_node) {
    assert_int_equal(open_with(&card, IBV_ATOMIC_HCA), 0);
    queue = net_queue_prepare(node, &offer);
    return queue ? 0 : -1;
}


TEST_FIXTURE(close_node) {
    net_queue_free(queue);
    net_rdma_close(node);
    return 0;
}


/* Simulates a client that connects through this card and presents these bytes. */
static void connect_by(struct rdma_cm_id *id, struct ibv_context *verbs, const void *token, size_t bytes) {
    *id = (struct rdma_cm_id){.verbs = verbs};
    fake.event = (struct rdma_cm_event){.id = id, .event = RDMA_CM_EVENT_CONNECT_REQUEST};
    fake.event.param.conn.private_data = token;
    fake.event.param.conn.private_data_len = (uint8_t)bytes;
    fake.event.param.conn.responder_resources = 16;
    fake.has_event = true;
    net_rdma_run(node);
}


/* A client with the token gets a queue pair. The token is valid once. Stopping the queue pair destroys it in the error
 * state, and may be repeated. */
TEST_WITH(a_token_gives_one_queue_pair, open_node, close_node) {
    struct rdma_cm_id first, second;
    connect_by(&first, &card, offer.token, sizeof(offer.token));
    assert_int_equal(fake.accepted, 1);
    connect_by(&second, &card, offer.token, sizeof(offer.token));
    assert_int_equal(fake.accepted, 1);
    assert_int_equal(fake.rejected, 1);
    net_queue_stop(queue);
    net_queue_stop(queue); /* A second stop of the queue pair has no effect. */
    assert_int_equal(fake.destroyed, 1);
    assert_int_equal(fake.destroyed_in_error, 1);
}


/* A client with a wrong or too short token, or with a token of a fenced session, is rejected without a queue pair. */
TEST_WITH(no_queue_pair_without_a_valid_token, open_node, close_node) {
    uint8_t wrong[NET_TOKEN_BYTES];
    struct rdma_cm_id ids[3];
    memcpy(wrong, offer.token, sizeof(wrong));
    wrong[NET_TOKEN_BYTES - 1] ^= 1;
    connect_by(&ids[0], &card, wrong, sizeof(wrong));
    connect_by(&ids[1], &card, offer.token, sizeof(offer.token) - 1);
    net_queue_stop(queue); /* The session is fenced before it has connected its queue pair. */
    connect_by(&ids[2], &card, offer.token, sizeof(offer.token));
    assert_int_equal(fake.made + fake.accepted, 0);
    assert_int_equal(fake.rejected, 3);
    assert_int_equal(fake.ids_destroyed, 3);
}


/* A client that connects through another card on the same memory is rejected, because atomics of two cards are not
 * atomic towards each other. The token stays valid. */
TEST_WITH(a_second_card_on_the_same_memory_is_rejected, open_node, close_node) {
    struct rdma_cm_id id;
    connect_by(&id, &other_card, offer.token, sizeof(offer.token));
    assert_int_equal(fake.made + fake.accepted, 0);
    assert_int_equal(fake.rejected, 1);
    connect_by(&id, &card, offer.token, sizeof(offer.token));
    assert_int_equal(fake.accepted, 1);
}


/* The daemon does not start on an address that belongs to no single card, or with a card that has no atomics. */
TEST(an_address_of_several_cards_or_one_without_atomics_is_refused) {
    assert_int_equal(open_with(NULL, IBV_ATOMIC_HCA), FAR_ERR_INVALID);
    assert_non_null(strstr(far_last_error(), "not the address of exactly one RDMA device"));
    assert_int_equal(open_with(&card, IBV_ATOMIC_NONE), FAR_ERR_UNSUPPORTED);
    assert_non_null(strstr(far_last_error(), "does not support atomics"));
}


/* ---- Threads ---- */

static atomic_int stopper_number;


static void *stop_queue(void *arg) {
    (void)arg;
    atomic_store(&stopper_number, (int)syscall(SYS_gettid));
    net_queue_stop(queue);
    return NULL;
}


static bool thread_is_sleeping(int thread) {
    char path[64], state = 0;
    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", thread);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    int got = fscanf(file, "%*d (%*[^)]) %c", &state);
    fclose(file);
    return got == 1 && state == 'S';
}


static pthread_t stopper;


/* Lets another thread stop the queue pair, and returns when that thread is waiting for the lock. Asserts that the other
 * thread has not destroyed the queue pair yet. */
static void stop_meanwhile(void) {
    atomic_store(&stopper_number, 0);
    assert_int_equal(pthread_create(&stopper, NULL, stop_queue, NULL), 0);
    while (atomic_load(&stopper_number) == 0 || (!thread_is_sleeping(atomic_load(&stopper_number)) &&
                                                 __atomic_load_n(&fake.destroyed, __ATOMIC_SEQ_CST) == 0))
        usleep(100);
    assert_int_equal(__atomic_load_n(&fake.destroyed, __ATOMIC_SEQ_CST), 0);
}


/* Thread A fetches an event, and inside of that call the library accesses the queue pair of the event. Thread B stops
 * this queue pair at the same time. B must wait until A has the event. Fails without the lock in next_event. */
TEST_WITH(no_queue_pair_is_destroyed_while_an_event_is_fetched, open_node, close_node) {
    struct rdma_cm_id id;
    connect_by(&id, &card, offer.token, sizeof(offer.token));
    fake.event.event = RDMA_CM_EVENT_DISCONNECTED;
    fake.has_event = true;
    fake.inside_event = stop_meanwhile;
    net_rdma_run(node);
    assert_int_equal(pthread_join(stopper, NULL), 0);
    assert_int_equal(fake.destroyed, 1);
}

#else

TEST(a_build_without_rdma_says_so) {
    net_endpoint endpoint = {0};
    net_rdma *node;
    char memory[64];
    assert_int_equal(net_rdma_open(&endpoint, "10.0.0.1:7000", memory, sizeof(memory), &node), FAR_ERR_UNSUPPORTED);
    assert_non_null(strstr(far_last_error(), "this build has no RDMA"));
}

#endif
