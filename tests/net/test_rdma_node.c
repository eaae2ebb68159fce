/* The RDMA side of a memory node's daemon without a device: the functions of the RDMA libraries that it calls are those
 * of this program. Who gets a queue pair, that a stopped one is destroyed, and what must not happen at once. A build
 * without RDMA says that it has none. */
#include "base/host.h"
#include "fabric/net/rdma_node.h"
#include "farindex.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

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
    struct ibv_context *found; /* the card that has the address; NULL: none in particular */
    struct rdma_cm_event event;
    bool has_event;
    void (*inside_event)(void);
    unsigned accepted, rejected, made, destroyed, destroyed_in_error, ids_destroyed, in_error;
} fake;

static net_rdma *node;
static net_queue *queue;
static net_queued offer;
static char memory[4096];


/* ---- What the libraries would do ---- */

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
    fake.destroyed_in_error += fake.in_error > 0; /* so that nothing of it is taken any more */
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


static int open_node(void **state) {
    (void)state;
    assert_int_equal(open_with(&card, IBV_ATOMIC_HCA), 0);
    queue = net_queue_offer(node, &offer);
    return queue ? 0 : -1;
}


static int close_node(void **state) {
    (void)state;
    net_queue_free(queue);
    net_rdma_close(node);
    return 0;
}


/* Somebody connects by this card and shows this. */
static void connect_by(struct rdma_cm_id *id, struct ibv_context *verbs, const void *token, size_t bytes) {
    *id = (struct rdma_cm_id){.verbs = verbs};
    fake.event = (struct rdma_cm_event){.id = id, .event = RDMA_CM_EVENT_CONNECT_REQUEST};
    fake.event.param.conn.private_data = token;
    fake.event.param.conn.private_data_len = (uint8_t)bytes;
    fake.event.param.conn.responder_resources = 16;
    fake.has_event = true;
    net_rdma_run(node);
}


static void who_shows_the_token_gets_a_queue_pair_once(void **state) {
    (void)state;
    struct rdma_cm_id first, second;
    connect_by(&first, &card, offer.token, sizeof(offer.token));
    assert_int_equal(fake.accepted, 1);
    connect_by(&second, &card, offer.token, sizeof(offer.token));
    assert_int_equal(fake.accepted, 1);
    assert_int_equal(fake.rejected, 1);
    net_queue_stop(queue);
    net_queue_stop(queue); /* does no harm */
    assert_int_equal(fake.destroyed, 1);
    assert_int_equal(fake.destroyed_in_error, 1);
}


static void nobody_else_gets_one(void **state) {
    (void)state;
    uint8_t wrong[NET_TOKEN_BYTES];
    struct rdma_cm_id ids[3];
    memcpy(wrong, offer.token, sizeof(wrong));
    wrong[NET_TOKEN_BYTES - 1] ^= 1;
    connect_by(&ids[0], &card, wrong, sizeof(wrong));
    connect_by(&ids[1], &card, offer.token, sizeof(offer.token) - 1);
    net_queue_stop(queue); /* its session was cut before it connected */
    connect_by(&ids[2], &card, offer.token, sizeof(offer.token));
    assert_int_equal(fake.made + fake.accepted, 0);
    assert_int_equal(fake.rejected, 3);
    assert_int_equal(fake.ids_destroyed, 3);
}


/* Atomics of two cards on one memory do not see each other. */
static void a_second_card_on_the_same_memory_is_turned_away(void **state) {
    (void)state;
    struct rdma_cm_id id;
    connect_by(&id, &other_card, offer.token, sizeof(offer.token));
    assert_int_equal(fake.made + fake.accepted, 0);
    assert_int_equal(fake.rejected, 1);
    connect_by(&id, &card, offer.token, sizeof(offer.token));
    assert_int_equal(fake.accepted, 1);
}


static void an_address_of_several_cards_or_one_without_atomics_is_refused(void **state) {
    (void)state;
    assert_int_equal(open_with(NULL, IBV_ATOMIC_HCA), FAR_ERR_INVALID);
    assert_non_null(strstr(far_last_error(), "not the address of one RDMA device"));
    assert_int_equal(open_with(&card, IBV_ATOMIC_NONE), FAR_ERR_UNSUPPORTED);
    assert_non_null(strstr(far_last_error(), "has no atomics"));
}


/* ---- Threads ---- */

static atomic_int stopper_number;


static void *stop_queue(void *arg) {
    (void)arg;
    atomic_store(&stopper_number, (int)syscall(SYS_gettid));
    net_queue_stop(queue);
    return NULL;
}


static bool sleeps(int thread) {
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


/* Another thread of the daemon cuts the session now: it goes on when it has waited, or destroyed the queue pair. */
static void stop_meanwhile(void) {
    atomic_store(&stopper_number, 0);
    assert_int_equal(pthread_create(&stopper, NULL, stop_queue, NULL), 0);
    while (atomic_load(&stopper_number) == 0 ||
           (!sleeps(atomic_load(&stopper_number)) && __atomic_load_n(&fake.destroyed, __ATOMIC_SEQ_CST) == 0))
        usleep(100);
    assert_int_equal(__atomic_load_n(&fake.destroyed, __ATOMIC_SEQ_CST), 0);
}


/* The library looks at the queue pair of an event itself, before it gives the event out. */
static void no_queue_pair_is_destroyed_while_an_event_is_taken(void **state) {
    (void)state;
    struct rdma_cm_id id;
    connect_by(&id, &card, offer.token, sizeof(offer.token));
    fake.event.event = RDMA_CM_EVENT_DISCONNECTED;
    fake.has_event = true;
    fake.inside_event = stop_meanwhile;
    net_rdma_run(node);
    assert_int_equal(pthread_join(stopper, NULL), 0);
    assert_int_equal(fake.destroyed, 1);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(who_shows_the_token_gets_a_queue_pair_once, open_node, close_node),
        cmocka_unit_test_setup_teardown(nobody_else_gets_one, open_node, close_node),
        cmocka_unit_test_setup_teardown(a_second_card_on_the_same_memory_is_turned_away, open_node, close_node),
        cmocka_unit_test(an_address_of_several_cards_or_one_without_atomics_is_refused),
        cmocka_unit_test_setup_teardown(no_queue_pair_is_destroyed_while_an_event_is_taken, open_node, close_node),
    };
    return cmocka_run_group_tests_name("net/rdma_node", tests, NULL, NULL);
}

#else

static void a_build_without_rdma_says_so(void **state) {
    (void)state;
    net_endpoint endpoint = {0};
    net_rdma *node;
    char memory[64];
    assert_int_equal(net_rdma_open(&endpoint, "10.0.0.1:7000", memory, sizeof(memory), &node), FAR_ERR_UNSUPPORTED);
    assert_non_null(strstr(far_last_error(), "this build has no RDMA"));
}


int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_build_without_rdma_says_so)};
    return cmocka_run_group_tests_name("net/rdma_node", tests, NULL, NULL);
}

#endif
