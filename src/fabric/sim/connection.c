/* Implements connections of the simulator, including posting batches, sending their verbs (at once, or later because of
 * a fence flag or of the limit of outstanding verbs), and delivering completions. This file implements the table of
 * operations `far_fabric_ops` of the simulator. Effects of verbs on memory are in effect.c. */
#include "base/error.h"
#include "fabric/sim/sim_internal.h"
#include "farindex.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define OBJECTS_PER_SLAB 64 /* number of verbs or posts in one allocation */
/* number of consecutive unsuccessful polls that take no time; each further poll takes EMPTY_POLL_NS, because otherwise
 * a client that polls in a loop would stop virtual time */
#define EMPTY_POLLS_MAX 64
#define EMPTY_POLL_NS   500
/* number of consecutive refused batches that take no time; each further one takes EMPTY_POLL_NS, because otherwise a
 * client that posts in a loop on a fenced connection would stop virtual time */
#define REFUSALS_MAX 1000


/* ---- Pools of verbs and posts ---- */

static void *allocate_slab(far_sim_world *world, size_t bytes) {
    if (world->slab_count == world->slab_capacity) {
        size_t capacity = world->slab_capacity ? world->slab_capacity * 2 : 16;
        void **slabs = sim_allocate(capacity * sizeof *slabs);
        if (world->slab_count)
            memcpy(slabs, world->slabs, world->slab_count * sizeof *slabs);
        free(world->slabs);
        world->slabs = slabs;
        world->slab_capacity = capacity;
    }
    return world->slabs[world->slab_count++] = sim_allocate(bytes);
}


static sim_verb *verb_new(far_sim_world *world) {
    if (!world->free_verbs) {
        sim_verb *slab = allocate_slab(world, OBJECTS_PER_SLAB * sizeof *slab);
        for (int i = OBJECTS_PER_SLAB - 1; i >= 0; i--) {
            slab[i].next = world->free_verbs;
            world->free_verbs = &slab[i];
        }
    }
    sim_verb *verb = world->free_verbs;
    world->free_verbs = verb->next;
    return verb;
}


static sim_post *post_new(far_sim_world *world) {
    if (!world->free_posts) {
        sim_post *slab = allocate_slab(world, OBJECTS_PER_SLAB * sizeof *slab);
        for (int i = OBJECTS_PER_SLAB - 1; i >= 0; i--) {
            slab[i].next = world->free_posts;
            world->free_posts = &slab[i];
        }
    }
    sim_post *post = world->free_posts;
    world->free_posts = post->next;
    return post;
}


static void remove_from_queue(sim_conn *conn, sim_verb *verb) {
    sim_qp *qp = &conn->qps[verb->node];
    sim_verb **at = &qp->queue, *before = NULL;
    while (*at != verb) {
        before = *at;
        at = &before->queue_next;
    }
    *at = verb->queue_next;
    if (qp->queue_last == verb)
        qp->queue_last = before;
    assert(conn->queued > 0);
    conn->queued--;
}


void sim_verb_free(far_sim_world *world, sim_verb *verb) {
    sim_conn *conn = verb->conn;
    if (verb->state == SIM_QUEUED)
        remove_from_queue(conn, verb);
    if (verb->state == SIM_HELD || verb->state == SIM_BLOCKED)
        conn->blocked--;
    if (verb->state == SIM_HELD || verb->state == SIM_DONE_HELD)
        verb->client->held--;
    if (verb->state == SIM_BEGUN && verb->class == SIM_CLASS_ATOMIC) {
        sim_word_of(world, verb->verb.addr)->owner = NULL;
        world->split_atomics--;
    }
    if (verb->prev)
        verb->prev->next = verb->next;
    else
        conn->first = verb->next;
    if (verb->next)
        verb->next->prev = verb->prev;
    else
        conn->last = verb->prev;
    if (!conn->first)
        conn->disturbed = false;
    if (verb->owns_payload)
        free(verb->verb.local);
    verb->generation++;
    verb->next = world->free_verbs;
    world->free_verbs = verb;
}


/* ---- Opening and closing ---- */

static int conn_open(far_fabric *fabric, far_parker *parker, far_conn **made) {
    sim_node *node = (sim_node *)fabric;
    far_sim_world *world = node->world;
    if (node->failed)
        return far_fail(FAR_ERR_FENCED, "sim: this compute node was killed");
    sim_conn *conn = sim_allocate(sizeof *conn + world->config.memory_nodes * sizeof conn->qps[0]);
    conn->conn = (far_conn){.fabric = fabric, .parker = parker};
    conn->node = node;
    conn->world = world;
    conn->client = world->running;
    conn->number = ++world->conns_made;
    conn->prev = world->conns_last;
    if (world->conns_last)
        world->conns_last->next = conn;
    else
        world->conns = conn;
    world->conns_last = conn;
    *made = &conn->conn;
    return 0;
}


void sim_conn_free_if_unused(sim_conn *conn) {
    far_sim_world *world = conn->world;
    if (!conn->closed || conn->first || conn->messages)
        return;
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        world->conns = conn->next;
    if (conn->next)
        conn->next->prev = conn->prev;
    else
        world->conns_last = conn->prev;
    free(conn);
}


static void conn_close(far_conn *base) {
    sim_conn *conn = (sim_conn *)base;
    /* Only a failed session may close with batches in flight. The fence drops them, because the fabric must not touch
     * the memory of the poster after this call. */
    if (conn->posts)
        sim_fence_conn(conn, FAR_ERR_FENCED);
    conn->fenced = conn->closed = true;
    conn->conn.parker = NULL;
    sim_announce_end(conn);
    sim_conn_free_if_unused(conn);
}


void sim_conns_free(far_sim_world *world) {
    while (world->conns) {
        sim_conn *conn = world->conns;
        world->conns = conn->next;
        for (sim_verb *verb = conn->first; verb; verb = verb->next)
            if (verb->owns_payload)
                free(verb->verb.local);
        free(conn);
    }
    for (size_t i = 0; i < world->slab_count; i++)
        free(world->slabs[i]);
    free(world->slabs);
}


static int conn_claim(far_conn *base, unsigned id, unsigned generation) {
    sim_conn *conn = (sim_conn *)base;
    if (conn->fenced)
        return far_fail(FAR_ERR_FENCED, "sim: the connection is fenced, because its session failed or was given up");
    conn->id = id;
    conn->generation = generation;
    conn->claimed = true;
    return 0;
}


/* ---- Sending ---- */

static void send_verb(far_sim_world *world, sim_verb *verb) {
    verb->state = SIM_SENT;
    if (verb->class != SIM_CLASS_WRITE)
        verb->conn->qps[verb->node].outstanding++;
    sim_push_event(world, sim_nic_send(world, verb), SIM_ARRIVE, verb, verb->generation);
}


static bool verb_may_be_sent(const sim_verb *verb) {
    const sim_conn *conn = verb->conn;
    if ((verb->verb.flags & FAR_VERB_FENCE) && conn->first != verb)
        return false;
    return verb->class == SIM_CLASS_WRITE || conn->qps[verb->node].outstanding < conn->world->config.nic.outstanding;
}


static void send_or_queue(far_sim_world *world, sim_verb *verb) {
    sim_conn *conn = verb->conn;
    sim_qp *qp = &conn->qps[verb->node];
    if (verb_may_be_sent(verb) && (!qp->queue || sim_fault_let_overtake(world, verb, qp))) {
        send_verb(world, verb);
        return;
    }
    verb->state = SIM_QUEUED;
    verb->queue_next = NULL;
    if (qp->queue)
        qp->queue_last->queue_next = verb;
    else
        qp->queue = verb;
    qp->queue_last = verb;
    conn->queued++;
}


static void send_queued(far_sim_world *world, sim_conn *conn) {
    for (unsigned node = 0; conn->queued && node < world->config.memory_nodes; node++) {
        sim_qp *qp = &conn->qps[node];
        while (qp->queue && verb_may_be_sent(qp->queue)) {
            sim_verb *verb = qp->queue;
            remove_from_queue(conn, verb);
            send_verb(world, verb);
        }
    }
}


static int check_verb(const far_fabric *fabric, const far_verb *verb) {
    uint64_t length = verb->kind <= FAR_WRITE ? verb->length : 8;
    if (verb->kind >= FAR_VERB_KINDS || length == 0 || length > FAR_VERB_BYTES_MAX ||
        !far_fabric_in_range(fabric, verb->addr, length))
        return far_fail(FAR_ERR_INVALID,
                        "sim: a verb of %llu bytes at %#llx is not inside a memory node or not aligned to 8 bytes",
                        (unsigned long long)length, (unsigned long long)verb->addr);
    if (verb->kind == FAR_MASKED_CAS && !fabric->capabilities.masked_cas)
        return far_fail(FAR_ERR_UNSUPPORTED, "sim: masked CAS is not available (option masked_cas=off)");
    return 0;
}


static bool refuse_invalid_batch(sim_conn *conn, far_batch *batch) {
    batch->pending = false;
    batch->status = conn->fenced ? FAR_ERR_FENCED : 0;
    for (uint32_t i = 0; i < batch->count && batch->status == 0; i++)
        batch->status = check_verb(conn->conn.fabric, &batch->verbs[i]);
    return batch->status != 0 || batch->count == 0;
}


static sim_verb *record_verb(sim_conn *conn, sim_post *post, const far_verb *posted) {
    far_sim_world *world = conn->world;
    sim_verb *verb = verb_new(world);
    uint32_t generation = verb->generation;
    *verb = (sim_verb){.verb = *posted, .conn = conn, .post = post, .client = world->running, .generation = generation};
    verb->index = ++verb->client->verbs;
    verb->node = (uint8_t)far_addr_node(posted->addr);
    verb->class = posted->kind == FAR_READ    ? SIM_CLASS_READ
                  : posted->kind == FAR_WRITE ? SIM_CLASS_WRITE
                                              : SIM_CLASS_ATOMIC;
    if (verb->class == SIM_CLASS_ATOMIC)
        verb->verb.length = 8;
    verb->granules = verb->granule_limit = sim_count_granules(world, &verb->verb);
    verb->parts = 1;
    verb->pin_clock = post->batch->pin_clock;
    verb->index_key = post->batch->index_key;
    verb->label = post->batch->label;
    verb->prev = conn->last;
    if (conn->last)
        conn->last->next = verb;
    else
        conn->first = verb;
    conn->last = verb;
    return verb;
}


/* Calls the test's observer (far_sim_on_verb) for each of the `count` verbs posted last. The observer may kill the
 * poster; then the connection is fenced and the remaining verbs are not shown. */
static void show_posted_verbs(sim_conn *conn, uint32_t count) {
    far_sim_world *world = conn->world;
    uint64_t last = world->running->verbs;
    for (uint64_t index = last - count + 1; world->on_verb && !conn->fenced && index <= last; index++) {
        const sim_verb *verb = conn->last;
        while (verb->index != index)
            verb = verb->prev;
        far_sim_posted posted = {.client = verb->client,
                                 .conn = &conn->conn,
                                 .batch = verb->post->batch,
                                 .verb = &verb->verb,
                                 .index = verb->index,
                                 .units = verb->granules,
                                 .label = verb->label};
        world->on_verb(world->on_verb_ctx, &posted);
    }
}


/* Creates a sim_verb for each verb of the batch, and sends those that need not wait for others. */
static void record_and_send_batch(sim_conn *conn, far_batch *batch) {
    far_sim_world *world = conn->world;
    far_sim_client *client = world->running;
    sim_post *post = post_new(world);
    uint64_t nodes[FAR_NODES_MAX / 64] = {0};
    *post = (sim_post){.batch = batch, .conn = conn, .remaining = batch->count, .prev = conn->posts_last};
    if (conn->posts_last)
        conn->posts_last->next = post;
    else
        conn->posts = post;
    conn->posts_last = post;
    batch->pending = true;
    sim_verb *first = NULL;
    for (uint32_t i = 0; i < batch->count; i++) {
        sim_verb *verb = record_verb(conn, post, &batch->verbs[i]);
        first = first ? first : verb;
        nodes[verb->node / 64] |= 1ull << (verb->node % 64);
        if (world->faults)
            sim_fault_mark_buffers(world, verb);
        sim_trace_post(world, verb);
        send_or_queue(world, verb);
    }
    for (unsigned i = 0; i < FAR_NODES_MAX / 64; i++)
        post->completions += (uint32_t)__builtin_popcountll(nodes[i]);
    batch->fabric_data = (void *)(uintptr_t)post->completions;
    show_posted_verbs(conn, batch->count);
    if (client->rules && !conn->fenced)
        sim_steer_posted(client, first, batch->count);
}


static void conn_post(far_conn *base, far_batch *batch) {
    sim_conn *conn = (sim_conn *)base;
    far_sim_world *world = conn->world;
    far_sim_client *client = world->running;
    const sim_nic_config *nic = &world->config.nic;
    if (client->rules)
        sim_steer_before_post(client, batch);
    sim_fault_maybe_stall(client);
    conn->client = client;
    client->empty_polls = 0;
    batch->posted_at = batch->completed_at = far_sim_now(world);
    batch->next = NULL;
    if (refuse_invalid_batch(conn, batch)) {
        if (++client->refusals > REFUSALS_MAX)
            sim_sleep_until(world, world->now + EMPTY_POLL_NS * SIM_PS);
        return;
    }
    client->refusals = 0;
    sim_sleep_until(world, world->now + (nic->cpu_doorbell + nic->cpu_verb * batch->count) * SIM_PS);
    if (refuse_invalid_batch(conn, batch))
        return;
    record_and_send_batch(conn, batch);
}


/* ---- Completing ---- */

void sim_post_complete(sim_post *post, int status) {
    sim_conn *conn = post->conn;
    far_batch *batch = post->batch;
    batch->status = status;
    batch->next = NULL;
    if (conn->completed)
        conn->completed_last->next = batch;
    else
        conn->completed = batch;
    conn->completed_last = batch;
    if (post->prev)
        post->prev->next = post->next;
    else
        conn->posts = post->next;
    if (post->next)
        post->next->prev = post->prev;
    else
        conn->posts_last = post->prev;
    post->next = conn->world->free_posts;
    conn->world->free_posts = post;
    if (conn->conn.parker)
        sim_unpark(conn->world, conn->conn.parker);
}


void sim_verb_done(far_sim_world *world, sim_verb *verb) {
    sim_conn *conn = verb->conn;
    sim_post *post = verb->post;
    if (verb->hold_done && !verb->hold_done->released) {
        verb->state = SIM_DONE_HELD;
        sim_mark_hold_reached(verb, verb->hold_done);
        return;
    }
    sim_trace_verb(world, SIM_TRACE_DONE, verb, verb->failed, 0, 0);
    assert(verb->class == SIM_CLASS_WRITE || conn->qps[verb->node].outstanding > 0);
    if (verb->class != SIM_CLASS_WRITE)
        conn->qps[verb->node].outstanding--;
    if (verb->failed)
        post->status = FAR_ERR_UNREACHABLE;
    sim_verb_free(world, verb);
    assert(post->remaining > 0);
    if (--post->remaining == 0)
        sim_post_complete(post, post->status);
    if (conn->queued)
        send_queued(world, conn);
}


static int conn_poll(far_conn *base) {
    sim_conn *conn = (sim_conn *)base;
    far_sim_world *world = conn->world;
    far_sim_client *client = world->running;
    int delivered = conn->answers ? sim_deliver_answers(conn) : 0;
    for (far_batch *batch = conn->completed; batch; batch = conn->completed) {
        conn->completed = batch->next;
        if (!conn->fenced)
            sim_sleep_until(world,
                            world->now + world->config.nic.cpu_completion * (uintptr_t)batch->fabric_data * SIM_PS);
        batch->completed_at = far_sim_now(world);
        batch->pending = false;
        batch->next = NULL;
        delivered++;
        if (batch->done)
            batch->done(batch);
    }
    if (delivered)
        client->empty_polls = 0;
    else if (++client->empty_polls > EMPTY_POLLS_MAX)
        sim_sleep_until(world, world->now + EMPTY_POLL_NS * SIM_PS);
    return delivered;
}


static void conn_wait(far_conn *base, uint64_t until) {
    sim_conn *conn = (sim_conn *)base;
    if (!conn->completed && !conn->answers)
        sim_park(conn->world, conn->conn.parker, until);
}


static void conn_fence_self(far_conn *base) {
    sim_conn *conn = (sim_conn *)base;
    if (!conn->fenced)
        sim_give_up_session(conn);
}


void far_sim_on_point(far_sim_world *world, void (*fn)(void *ctx, const far_sim_client *client, const char *name),
                      void *ctx) {
    world->on_point = fn;
    world->on_point_ctx = ctx;
}


void far_sim_on_verb(far_sim_world *world, void (*fn)(void *ctx, const far_sim_posted *posted), void *ctx) {
    world->on_verb = fn;
    world->on_verb_ctx = ctx;
}


const far_fabric_ops sim_fabric_ops = {
    .connect = conn_open,
    .disconnect = conn_close,
    .claim = conn_claim,
    .post = conn_post,
    .poll = conn_poll,
    .wait = conn_wait,
    .has_failed = sim_session_has_failed,
    .fence_self = conn_fence_self,
    .renew = NULL,
    .close = sim_close_fabric,
};

/* The operations of the simulator with the option `questions=on`, in which claims and checks of liveness are control
 * messages that take round trips. */
const far_fabric_ops sim_fabric_ops_with_control = {
    .connect = conn_open,
    .disconnect = conn_close,
    .ask = sim_submit_control,
    .post = conn_post,
    .poll = conn_poll,
    .wait = conn_wait,
    .fence_self = conn_fence_self,
    .close = sim_close_fabric,
};
