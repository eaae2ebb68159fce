/* Handles the messages of clients at a memory node: claims, liveness queries, fencing, batches of verbs, status and
 * notifications. server.c calls server_serve_messages. */
#include "base/host.h"
#include "base/numa.h"
#include "fabric/node/serving.h"
#include "farindex.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#define READS_ONLY "this secret permits only reading"


/* ---- Notifications ---- */

/* Stores a notification for all subscribers and wakes all loops, which send it. The caller holds the lock of the
 * server. */
static void add_notification(net_server *server, unsigned id, unsigned generation) {
    server->notifications[server->notification_count++ % SERVING_NOTIFICATIONS] =
        (net_claim){.id = id, .generation = generation};
    uint64_t one = 1;
    for (unsigned i = 0; i < server->loop_count; i++)
        if (write(server->loops[i].event, &one, sizeof(one)) < 0)
            continue; /* The counter of the eventfd is full, so a wake-up is pending and the loop wakes anyway. */
}


/* Sends new notifications to a subscriber. If the output queue of the subscriber is full, the notifications are sent
 * later. If the subscriber has missed more than are stored, it only gets a request to check all clients. So
 * notifications do not accumulate. */
void server_send_notifications(server_peer *peer) {
    net_server *server = peer->server;
    peer->notifications_wait = net_channel_queued(&peer->channel) > SERVING_NOTIFY_QUEUED_MAX;
    if (peer->notifications_wait)
        return;
    pthread_mutex_lock(&server->lock);
    bool missed = server->notification_count - peer->notifications_sent > SERVING_NOTIFICATIONS / 2;
    uint64_t from = missed ? server->notification_count : peer->notifications_sent;
    if (peer->subscribed && missed) {
        net_claim all = {0};
        net_channel_send(&peer->channel, NET_NOTIFICATION, 0, 0, &all, sizeof(all));
    }
    for (; peer->subscribed && from < server->notification_count; from++) {
        net_claim *one = &server->notifications[from % SERVING_NOTIFICATIONS];
        net_channel_send(&peer->channel, NET_NOTIFICATION, 0, 0, one, sizeof(*one));
    }
    peer->notifications_sent = server->notification_count;
    pthread_mutex_unlock(&server->lock);
}


/* ---- Claims and fencing. All functions of this section need the lock of the server. ---- */

static bool is_node_0(const net_server *server) {
    return server->memory->header->pool != 0 && server->memory->header->node == 0;
}


/* Returns true if this is a later node, which accepts proofs of node 0. */
static bool is_later_node(const net_server *server) {
    const net_file_header *header = server->memory->header;
    return header->pool != 0 && header->node != 0 && net_key_exists(&header->key);
}


/* Returns true if node 0 has issued this claim, which is presented to this later node. */
static bool claim_was_issued(const net_server *server, const net_claim *claim) {
    return is_later_node(server) &&
           claim->proof == net_proof_of_claim(&server->memory->header->key, claim->id, claim->generation, claim->claim);
}


/* Returns true if the claim carries node 0's proof that this claim of the session id, and all claims of this id with
 * lower numbers, have ended. */
static bool claim_has_ended(const net_server *server, const net_claim *claim) {
    return claim->proof == net_proof_of_end(&server->memory->header->key, claim->id, claim->claim);
}


/* Stops a connection for good: when this returns, none of its verbs is running and none will run. A thread never stops
 * the connection that it is serving, because it would wait for the run_lock that it holds. */
static void stop_peer(server_peer *peer, const char *why) {
    if (!peer)
        return;
    snprintf(peer->fenced_reason, sizeof(peer->fenced_reason), "%s", why);
    atomic_store_explicit(&peer->fenced, true, memory_order_seq_cst);
    pthread_mutex_lock(&peer->run_lock);
    pthread_mutex_unlock(&peer->run_lock);
    net_queue_stop(peer->queue);
    /* the loop of the connection then reads the end of stream and closes the connection */
    shutdown(peer->channel.socket, SHUT_RDWR);
}


static void record_fenced_session(net_server *server, server_peer *peer) {
    atomic_fetch_add_explicit(&server->counts.cuts, 1, memory_order_relaxed);
    if (is_node_0(server) && !peer->left_pool)
        add_notification(server, peer->id, peer->generation);
    peer->claim = 0;
    server->sessions--;
}


static void fence_displaced(net_server *server, net_connection holder, const char *why) {
    server_peer *peer = (server_peer *)(uintptr_t)holder;
    if (!peer)
        return;
    stop_peer(peer, why);
    record_fenced_session(server, peer);
}


static void release_claim(server_peer *peer) {
    peer->may_change_memory = false;
    if (peer->claim == 0)
        return;
    net_table_release(&peer->server->table, peer->id, (net_connection)(uintptr_t)peer);
    peer->claim = 0;
    peer->server->sessions--;
}


/* Called when a connection has ended: its session, if it has one, is fenced here. */
void server_end_session(server_peer *peer) {
    net_queue_stop(peer->queue);
    if (peer->claim == 0)
        return;
    net_table_release(&peer->server->table, peer->id, (net_connection)(uintptr_t)peer);
    record_fenced_session(peer->server, peer);
}


static void grant_claim(server_peer *peer, const net_claim *wanted, net_claimed *answer) {
    net_server *server = peer->server;
    net_connection displaced = 0, self = (net_connection)(uintptr_t)peer;
    uint64_t claim = wanted->claim;
    release_claim(peer);
    if (is_node_0(server))
        answer->verdict = net_table_issue(&server->table, wanted->id, wanted->generation, self, &claim);
    else
        answer->verdict = net_table_present(&server->table, wanted->id, wanted->generation, claim, self, &displaced);
    fence_displaced(server, displaced, "another connection has claimed its id");
    if (answer->verdict != NET_GRANTED)
        return;
    answer->claim = peer->claim = claim;
    answer->proof = net_proof_of_claim(&server->memory->header->key, wanted->id, wanted->generation, claim);
    peer->may_change_memory = true;
    peer->id = wanted->id;
    peer->generation = wanted->generation;
    server->sessions++;
}


/* ---- Messages ---- */

static bool refuse_peer(server_peer *peer, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse_peer(server_peer *peer, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(peer->why, sizeof(peer->why), format, args);
    va_end(args);
    atomic_fetch_add_explicit(&peer->server->counts.refused, 1, memory_order_relaxed);
    net_channel_send(&peer->channel, NET_REFUSED, 0, 0, peer->why, strlen(peer->why));
    return false;
}


/* Counts the connection at its address. Returns false if it was refused. */
static bool admit_peer(server_peer *peer) {
    net_server *server = peer->server;
    pthread_mutex_lock(&server->lock);
    net_admitted admitted = net_admission_accept(&server->admission, &peer->half_open, peer->reads_only, &peer->place);
    pthread_mutex_unlock(&server->lock);
    if (admitted == NET_ADDRESS_IS_FULL)
        refuse_peer(peer, "there are too many connections from its address (at most %u, see --connections-per-address)",
                    server->admission.per_address_max);
    if (admitted == NET_READERS_ARE_FULL)
        refuse_peer(peer, "there are too many connections with the read secret (at most %u)",
                    server->admission.readers_max);
    return admitted == NET_ADMITTED;
}


static bool on_hello(server_peer *peer, const net_head *head, const char *body) {
    net_server *server = peer->server;
    const net_file_header *header = server->memory->header;
    net_hello hello;
    memcpy(&hello, body, sizeof(hello));
    if (hello.magic != NET_MAGIC)
        return refuse_peer(peer, "not a farindex client");
    if (hello.protocol != NET_PROTOCOL)
        return refuse_peer(peer, "this node uses protocol %u, not %u (farindex %s)", NET_PROTOCOL, hello.protocol,
                           far_version());
    if (hello.purpose > NET_FOR_INSPECTION)
        return refuse_peer(peer, "the purpose of a client is a session or an inspection");
    peer->reads_only = peer->channel.tls && net_tls_peer_reads_only(peer->channel.tls);
    if (!admit_peer(peer))
        return false;
    peer->hello_done = true;
    peer->inspects = hello.purpose == NET_FOR_INSPECTION;
    assert(peer->loop == &server->gate && peer->loop->handshaking > 0);
    peer->loop->handshaking--;
    atomic_fetch_add_explicit(&server->counts.comes, !peer->inspects, memory_order_relaxed);
    net_welcome welcome = {
        .magic = NET_MAGIC, .protocol = NET_PROTOCOL, .granule = NET_GRANULE, .bytes = server->memory->size};
    snprintf(welcome.library, sizeof(welcome.library), "%s", far_version());
    pthread_mutex_lock(&server->lock);
    welcome.instance = header->instance;
    welcome.restarts = header->restarts;
    welcome.pool = header->pool;
    welcome.node = header->node;
    welcome.nodes = header->nodes;
    welcome.complete = header->complete;
    welcome.carrier = server->rdma ? NET_BY_RDMA : NET_BY_TCP;
    welcome.reads_only = peer->reads_only;
    peer->notifications_sent = server->notification_count;
    pthread_mutex_unlock(&server->lock);
    net_channel_send(&peer->channel, NET_WELCOME, 0, head->tag, &welcome, sizeof(welcome));
    if (!peer->inspects)
        net_log_write(server->log, NET_LOG_INFO, "client %s has connected", peer->name);
    return true;
}


static bool on_join(server_peer *peer, const net_head *head, const char *body) {
    net_join join;
    memcpy(&join, body, sizeof(join));
    if (join.pool == 0 || join.nodes == 0 || join.nodes > FAR_NODES_MAX || join.node >= join.nodes || join.complete > 1)
        return refuse_peer(peer, "the description of the pool is invalid");
    pthread_mutex_lock(&peer->server->lock);
    net_memory_join(peer->server->memory, &join);
    pthread_mutex_unlock(&peer->server->lock);
    net_channel_send(&peer->channel, NET_JOINED, 0, head->tag, &join, sizeof(join));
    return true;
}


static bool on_claim(server_peer *peer, const net_head *head, const char *body) {
    net_claim wanted;
    net_claimed answer = {0};
    memcpy(&wanted, body, sizeof(wanted));
    if (!net_id_is_valid(wanted.id) || wanted.generation > 0xffff)
        return refuse_peer(peer, "the session id or its generation is invalid");
    pthread_mutex_lock(&peer->server->lock);
    bool valid = wanted.claim == 0 ? is_node_0(peer->server) : claim_was_issued(peer->server, &wanted);
    bool fenced = atomic_load_explicit(&peer->fenced, memory_order_relaxed);
    if (valid && !fenced)
        grant_claim(peer, &wanted, &answer);
    pthread_mutex_unlock(&peer->server->lock);
    if (!valid)
        return refuse_peer(peer, "node 0 issues claims; they are presented to the other nodes with its proof");
    if (fenced)
        return false;
    if (wanted.claim == 0 && answer.verdict == NET_STALE)
        return refuse_peer(peer, "no claim number is left, so the memory file is damaged");
    net_channel_send(&peer->channel, NET_CLAIMED, 0, head->tag, &answer, sizeof(answer));
    return true;
}


static bool on_release(server_peer *peer, const net_head *head) {
    pthread_mutex_lock(&peer->server->lock);
    release_claim(peer);
    pthread_mutex_unlock(&peer->server->lock);
    net_channel_send(&peer->channel, NET_RELEASED, 0, head->tag, NULL, 0);
    return true;
}


static bool claims_are_valid(const net_head *head, const char *body) {
    for (unsigned i = 0; i < head->count; i++) {
        net_claim one;
        memcpy(&one, body + i * sizeof(one), sizeof(one));
        if (!net_id_is_valid(one.id) || one.generation > 0xffff)
            return false;
    }
    return true;
}


static bool claims_have_ended(const net_server *server, const net_head *head, const char *body) {
    for (unsigned i = 0; i < head->count; i++) {
        net_claim one;
        memcpy(&one, body + i * sizeof(one), sizeof(one));
        if (!claim_has_ended(server, &one))
            return false;
    }
    return true;
}


static bool on_query(server_peer *peer, const net_head *head, const char *body) {
    net_liveness answers[NET_LISTED_MAX];
    memset(answers, 0, head->count * sizeof(answers[0]));
    pthread_mutex_lock(&peer->server->lock);
    bool valid = is_node_0(peer->server) && claims_are_valid(head, body);
    for (unsigned i = 0; valid && i < head->count; i++) {
        net_claim one;
        memcpy(&one, body + i * sizeof(one), sizeof(one));
        answers[i].lives = net_table_is_live(&peer->server->table, one.id, one.generation, &answers[i].over);
        if (!answers[i].lives)
            answers[i].proof = net_proof_of_end(&peer->server->memory->header->key, one.id, answers[i].over);
    }
    pthread_mutex_unlock(&peer->server->lock);
    if (!valid)
        return refuse_peer(peer, "only node 0 answers queries, and only for valid session ids");
    net_channel_send(&peer->channel, NET_LIVENESS, head->count, head->tag, answers, head->count * sizeof(answers[0]));
    return true;
}


static bool on_fence(server_peer *peer, const net_head *head, const char *body) {
    pthread_mutex_lock(&peer->server->lock);
    bool valid =
        is_later_node(peer->server) && claims_are_valid(head, body) && claims_have_ended(peer->server, head, body);
    for (unsigned i = 0; valid && i < head->count; i++) {
        net_claim one;
        net_connection displaced;
        memcpy(&one, body + i * sizeof(one), sizeof(one));
        net_table_fence(&peer->server->table, one.id, one.claim, &displaced);
        fence_displaced(peer->server, displaced, "node 0 has fenced its session");
    }
    pthread_mutex_unlock(&peer->server->lock);
    if (!valid)
        return refuse_peer(peer, "only claims that node 0 reports as ended can be fenced, at the other nodes");
    net_channel_send(&peer->channel, NET_FENCED, 0, head->tag, NULL, 0);
    return true;
}


static bool on_evict(server_peer *peer, const net_head *head, const char *body) {
    net_claim one;
    net_liveness answer = {0};
    net_connection displaced = 0;
    memcpy(&one, body, sizeof(one));
    pthread_mutex_lock(&peer->server->lock);
    bool valid = is_node_0(peer->server) && net_id_is_valid(one.id) && one.generation <= 0xffff;
    if (valid) {
        net_table_evict(&peer->server->table, one.id, one.generation, &answer.over, &displaced);
        answer.proof = net_proof_of_end(&peer->server->memory->header->key, one.id, answer.over);
    }
    fence_displaced(peer->server, displaced, "it was evicted");
    pthread_mutex_unlock(&peer->server->lock);
    if (!valid)
        return refuse_peer(peer, "only node 0 evicts sessions, and only those with a valid id");
    net_channel_send(&peer->channel, NET_EVICTED, 0, head->tag, &answer, sizeof(answer));
    return true;
}


static bool on_name(server_peer *peer, const net_head *head, const char *body) {
    net_claim one;
    far_name name = {0};
    memcpy(&one, body, sizeof(one));
    pthread_mutex_lock(&peer->server->lock);
    bool valid = is_node_0(peer->server) && net_id_is_valid(one.id);
    const server_peer *named =
        valid ? (const server_peer *)(uintptr_t)net_table_holder(&peer->server->table, one.id, one.generation) : NULL;
    if (named)
        name = named->identity;
    pthread_mutex_unlock(&peer->server->lock);
    if (!valid)
        return refuse_peer(peer, "only node 0 answers queries, and only for valid session ids");
    net_channel_send(&peer->channel, NET_NAMED, 0, head->tag, &name, sizeof(name));
    return true;
}


/* Runs the verbs of a batch. The caller holds run_lock. If the peer is fenced while verbs remain, they are not run, and
 * this returns false. If it is fenced later, all verbs have taken effect, and this returns true. */
static bool run_verbs(server_peer *peer, const char *at, const char *end, char *results) {
    net_memory *memory = peer->server->memory;
    net_verb verb;
    while (net_verb_get(&at, end, memory->size, &verb) > 0) {
        if (atomic_load_explicit(&peer->fenced, memory_order_seq_cst))
            return false;
        net_memory_run(memory, peer->loop->number, &verb, results);
        results += net_result_bytes(verb.kind, verb.length);
    }
    return true;
}


static bool on_batch(server_peer *peer, const net_head *head, const char *body) {
    size_t length = head->length - NET_HEAD_BYTES;
    net_changes changes;
    if (peer->server->rdma) /* atomics of a network card and of a processor are not atomic towards each other */
        return refuse_peer(peer, "verbs reach this node through queue pairs only");
    int64_t results = net_batch_check(body, length, head->count, peer->server->memory->size, &changes);
    if (results < 0)
        return refuse_peer(peer, "a batch is malformed");
    if (changes != NET_CHANGES_NOTHING && peer->reads_only)
        return refuse_peer(peer, READS_ONLY);
    if (changes == NET_CHANGES_MEMORY && !peer->may_change_memory)
        return refuse_peer(peer, "a client without a claim must not change memory");
    net_head answer = {(uint32_t)(NET_HEAD_BYTES + results), NET_RESULTS, 0, head->tag};
    char *room = net_channel_reserve(&peer->channel, answer.length);
    if (!room)
        return refuse_peer(peer, "no memory");
    memcpy(room, &answer, sizeof(answer));
    uint64_t begun = far_host_now(&far_host_threads);
    pthread_mutex_lock(&peer->run_lock);
    bool whole = run_verbs(peer, body, body + length, room + NET_HEAD_BYTES);
    pthread_mutex_unlock(&peer->run_lock);
    if (!whole)
        return false;
    net_channel_commit(&peer->channel, answer.length);
    net_times_add(&peer->loop->batch_times, far_host_now(&far_host_threads) - begun);
    loop_count(&peer->loop->counts.batches, 1);
    loop_count(&peer->loop->counts.verbs, head->count);
    return true;
}


static bool on_queue_pair(server_peer *peer, const net_head *head) {
    net_server *server = peer->server;
    net_queue_pair_offer offer = {{0}, 0, 0, 0};
    if (!server->rdma || peer->inspects || peer->queue)
        return refuse_peer(peer, "only a session of rdma:// may request a queue pair, and only one");
    pthread_mutex_lock(&server->lock);
    bool fenced = atomic_load_explicit(&peer->fenced, memory_order_relaxed);
    if (!fenced)
        peer->queue = net_queue_prepare(server->rdma, &offer);
    pthread_mutex_unlock(&server->lock);
    if (fenced)
        return false;
    if (!peer->queue)
        return refuse_peer(peer, "no memory for a queue pair");
    net_channel_send(&peer->channel, NET_QUEUE_PAIR_OFFER, 0, head->tag, &offer, sizeof(offer));
    return true;
}


static void add_counts(net_state *state, loop_counts *counts) {
    state->batches += atomic_load_explicit(&counts->batches, memory_order_relaxed);
    state->verbs += atomic_load_explicit(&counts->verbs, memory_order_relaxed);
    state->bytes_in += atomic_load_explicit(&counts->bytes_in, memory_order_relaxed);
    state->bytes_out += atomic_load_explicit(&counts->bytes_out, memory_order_relaxed);
}


static bool on_status(server_peer *peer, const net_head *head) {
    net_server *server = peer->server;
    const net_file_header *header = server->memory->header;
    server_counts *counts = &server->counts;
    net_state state = {.bytes = server->memory->size, .threads = server->loop_count, .started = server->started};
    snprintf(state.library, sizeof(state.library), "%s", far_version());
    pthread_mutex_lock(&server->lock);
    state.pool = header->pool;
    state.instance = header->instance;
    state.restarts = header->restarts;
    state.node = header->node;
    state.nodes = header->nodes;
    state.complete = header->complete;
    state.refuted = header->refuted;
    state.sessions = server->sessions;
    state.connections = server->admission.connections;
    pthread_mutex_unlock(&server->lock);
    state.comes = atomic_load_explicit(&counts->comes, memory_order_relaxed);
    state.cuts = atomic_load_explicit(&counts->cuts, memory_order_relaxed);
    for (unsigned i = 0; i < server->loop_count; i++)
        add_counts(&state, &server->loops[i].counts);
    add_counts(&state, &server->gate.counts);
    state.refused = atomic_load_explicit(&counts->refused, memory_order_relaxed);
    net_channel_send(&peer->channel, NET_STATE, 0, head->tag, &state, sizeof(state));
    return true;
}


/* Asks the kernel for the NUMA nodes of pages. The daemon does not touch the pages. */
static bool on_numa_query(server_peer *peer, const net_head *head, const char *body) {
    const net_memory *memory = peer->server->memory;
    net_numa_query asked;
    net_numa_nodes answer;
    void *pages[NET_NUMA_QUERY_MAX];
    memcpy(&asked, body, sizeof(asked));
    memset(&answer, 0xff, sizeof(answer)); /* sets all bytes to 0xff, so that every entry is FAR_NUMA_UNKNOWN (-1) */
    if (asked.count > NET_NUMA_QUERY_MAX)
        return refuse_peer(peer, "too many offsets in one query");
    for (unsigned i = 0; i < asked.count; i++) {
        if (asked.offsets[i] >= memory->size)
            return refuse_peer(peer, "an offset is outside the memory");
        pages[i] = memory->bytes + asked.offsets[i];
    }
    far_numa_of(pages, (unsigned)asked.count, answer.numa);
    net_channel_send(&peer->channel, NET_NUMA_NODES, 0, head->tag, &answer, sizeof(answer));
    return true;
}


static bool on_record(server_peer *peer, const net_head *head, const char *body) {
    net_record record;
    memcpy(&record, body, sizeof(record));
    net_file_header *header = peer->server->memory->header;
    pthread_mutex_lock(&peer->server->lock);
    bool news = header->refuted != (uint32_t)record.refuted;
    header->refuted = (uint32_t)record.refuted;
    pthread_mutex_unlock(&peer->server->lock);
    if (news)
        net_log_write(peer->server->log, NET_LOG_WARNING, "%s",
                      record.refuted
                          ? "a self-test has found guarantees of this fabric violated: see 'farindex selftest'"
                          : "the record of violated guarantees was cleared");
    net_channel_send(&peer->channel, NET_RECORDED, 0, head->tag, NULL, 0);
    return true;
}


static void subscribe_peer(server_peer *peer) {
    pthread_mutex_lock(&peer->server->lock);
    peer->subscribed = true;
    peer->notifications_sent = peer->server->notification_count;
    pthread_mutex_unlock(&peer->server->lock);
}


static void notify_all_subscribers(server_peer *peer) {
    pthread_mutex_lock(&peer->server->lock);
    add_notification(peer->server, 0, 0);
    pthread_mutex_unlock(&peer->server->lock);
}


static void store_identity(server_peer *peer, const char *body) {
    pthread_mutex_lock(&peer->server->lock);
    memcpy(&peer->identity, body, sizeof(peer->identity));
    pthread_mutex_unlock(&peer->server->lock);
}


static void mark_left_pool(server_peer *peer) {
    pthread_mutex_lock(&peer->server->lock);
    peer->left_pool = true;
    pthread_mutex_unlock(&peer->server->lock);
}


/* Which peers may send a message. docs/network.md explains the table. A connection for inspection must not change the
 * state of any session or cause notifications; joining a pool and storing the record of the self-test change only the
 * state of the node. A peer that may only read changes nothing. */
enum { BY_SESSION = 1, BY_INSPECTION = 2, BY_READER = 4 };

static const uint8_t senders[NET_TYPES] = {
    [NET_BATCH] = BY_SESSION | BY_READER, /* on_batch checks the verbs */
    [NET_JOIN] = BY_INSPECTION,
    [NET_CLAIM] = BY_SESSION,
    [NET_RELEASE] = BY_SESSION,
    [NET_QUERY] = BY_SESSION | BY_READER,
    [NET_FENCE] = BY_SESSION,
    [NET_EVICT] = BY_SESSION,
    [NET_IDENTITY] = BY_SESSION | BY_READER,
    [NET_NAME] = BY_SESSION | BY_READER,
    [NET_PING] = BY_SESSION | BY_INSPECTION | BY_READER,
    [NET_SUBSCRIBE] = BY_SESSION,
    [NET_NOTIFY_ALL] = BY_SESSION,
    [NET_BYE] = BY_SESSION | BY_INSPECTION | BY_READER,
    [NET_STATUS] = BY_SESSION | BY_INSPECTION | BY_READER,
    [NET_QUEUE_PAIR] = BY_SESSION,
    [NET_RECORD] = BY_INSPECTION,
    [NET_NUMA_QUERY] = BY_SESSION | BY_INSPECTION | BY_READER,
};


/* Checks that the peer may send this message. If not, refuses the peer and returns false. */
static bool check_sender(server_peer *peer, unsigned type) {
    uint8_t allowed = senders[type];
    if (allowed == 0)
        return refuse_peer(peer, "this message is not a request to a node");
    if (!(allowed & (peer->inspects ? BY_INSPECTION : BY_SESSION)))
        return refuse_peer(peer, peer->inspects ? "a connection for inspection cannot send this message"
                                                : "only a connection for inspection can send this message");
    if (peer->reads_only && !(allowed & BY_READER))
        return refuse_peer(peer, READS_ONLY);
    return true;
}


static bool dispatch_message(server_peer *peer, const net_head *head, const char *body) {
    if (!check_sender(peer, head->type))
        return false;
    switch ((net_type)head->type) {
    case NET_BATCH:
        return on_batch(peer, head, body);
    case NET_JOIN:
        return on_join(peer, head, body);
    case NET_CLAIM:
        return on_claim(peer, head, body);
    case NET_RELEASE:
        return on_release(peer, head);
    case NET_QUERY:
        return on_query(peer, head, body);
    case NET_FENCE:
        return on_fence(peer, head, body);
    case NET_EVICT:
        return on_evict(peer, head, body);
    case NET_IDENTITY:
        store_identity(peer, body);
        return true;
    case NET_NAME:
        return on_name(peer, head, body);
    case NET_PING:
        net_channel_send(&peer->channel, NET_PONG, 0, head->tag, NULL, 0);
        return true;
    case NET_SUBSCRIBE:
        subscribe_peer(peer);
        return true;
    case NET_NOTIFY_ALL:
        notify_all_subscribers(peer);
        return true;
    case NET_BYE:
        mark_left_pool(peer);
        return true;
    case NET_STATUS:
        return on_status(peer, head);
    case NET_QUEUE_PAIR:
        return on_queue_pair(peer, head);
    case NET_RECORD:
        return on_record(peer, head, body);
    case NET_NUMA_QUERY:
        return on_numa_query(peer, head, body);
    default:
        return refuse_peer(peer, "this message is not a request to a node");
    }
}


bool server_serve_messages(server_peer *peer) {
    net_head head;
    const char *body;
    int got = 0;
    /* With --chaos a message takes long, so each message is answered separately. */
    size_t work = 0, most = peer->server->config.chaos ? 1 : SERVING_WORK_MAX;
    while (work < most && net_channel_queued(&peer->channel) < SERVING_QUEUED_MAX &&
           (got = net_channel_next(&peer->channel, false, &head, &body)) > 0) {
        size_t queued = net_channel_queued(&peer->channel);
        if (atomic_load_explicit(&peer->fenced, memory_order_seq_cst))
            return false;
        if (!peer->hello_done ? head.type != NET_HELLO : head.type == NET_HELLO)
            return refuse_peer(peer, "hello must be the first message and must not be repeated");
        if (!peer->hello_done)
            return on_hello(peer, &head, body);
        if (!dispatch_message(peer, &head, body))
            return false;
        work += head.length + net_channel_queued(&peer->channel) - queued;
    }
    if (got == 0 && !peer->hello_done && net_channel_next_length(&peer->channel) > NET_HEAD_BYTES + sizeof(net_hello))
        /* The connection is refused before the whole message has arrived, so that a peer that has not authenticated
         * itself cannot make the node store a long message. */
        return refuse_peer(peer, "hello must be the first message");
    return got < 0 ? refuse_peer(peer, "it sent data that is no message of this protocol") : true;
}
