/* What a memory node does for a message. */
#include "base/numa.h"
#include "fabric/net/serving.h"
#include "farindex.h"

#include <assert.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>


void server_say(const net_server *server, const char *format, ...) {
    char text[512];
    va_list args;
    if (!server->config.log)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fprintf(server->config.log, "farindex serve: %s\n", text);
    fflush(server->config.log);
}


/* ---- Notes ---- */

/* Under the server's lock. */
static void note(net_server *server, unsigned id, unsigned generation) {
    server->notes[server->noted++ % SERVING_NOTES] = (net_claim){.id = id, .generation = generation};
    uint64_t one = 1;
    for (unsigned i = 0; i < server->loop_count; i++)
        if (write(server->loops[i].event, &one, sizeof(one)) < 0)
            continue; /* the event's count is full: the loop wakes anyway */
}


/* A peer that does not take what is sent is told later, and, if it missed many notes, only that it missed some: so notes do
 * not pile up. */
void server_send_notes(server_peer *peer) {
    net_server *server = peer->server;
    peer->notes_wait = net_channel_queued(&peer->channel) > SERVING_NOTES_MOST;
    if (peer->notes_wait)
        return;
    pthread_mutex_lock(&server->lock);
    bool missed = server->noted - peer->told > SERVING_NOTES / 2;
    uint64_t from = missed ? server->noted : peer->told;
    if (peer->listens && missed) {
        net_claim all = {0};
        net_channel_send(&peer->channel, NET_NOTE, 0, 0, &all, sizeof(all));
    }
    for (; peer->listens && from < server->noted; from++) {
        net_claim *one = &server->notes[from % SERVING_NOTES];
        net_channel_send(&peer->channel, NET_NOTE, 0, 0, one, sizeof(*one));
    }
    peer->told = server->noted;
    pthread_mutex_unlock(&server->lock);
}


/* ---- Who speaks for whom: all under the server's lock ---- */

static bool is_first(const net_server *server) {
    return server->memory->header->pool != 0 && server->memory->header->node == 0;
}


static bool is_other(const net_server *server) {
    return server->memory->header->pool != 0 && server->memory->header->node != 0;
}


/* Stops a connection for good: when this returns none of its verbs is under way, and none will be. A connection never stops
 * itself: it would wait for its own `run`. */
static void stop(server_peer *peer, const char *why) {
    if (!peer)
        return;
    snprintf(peer->cut_why, sizeof(peer->cut_why), "%s", why);
    atomic_store_explicit(&peer->cut, true, memory_order_seq_cst);
    pthread_mutex_lock(&peer->run);
    pthread_mutex_unlock(&peer->run);
    net_queue_stop(peer->queue);
    shutdown(peer->channel.socket, SHUT_RDWR); /* its loop sees that, and closes it */
}


static void count_cut(net_server *server, server_peer *peer) {
    atomic_fetch_add_explicit(&server->counts.cuts, 1, memory_order_relaxed);
    if (is_first(server) && !peer->bye)
        note(server, peer->id, peer->generation);
    peer->claim = 0;
    server->sessions--;
}


static void displace(net_server *server, net_holder holder, const char *why) {
    server_peer *peer = (server_peer *)(uintptr_t)holder;
    if (!peer)
        return;
    stop(peer, why);
    count_cut(server, peer);
}


static void let_go(server_peer *peer) {
    peer->speaks = false;
    if (peer->claim == 0)
        return;
    net_table_leave(&peer->server->table, peer->id, (net_holder)(uintptr_t)peer);
    peer->claim = 0;
    peer->server->sessions--;
}


/* A connection has ended: its session, if it spoke for one, is cut here. */
void server_leave(server_peer *peer) {
    net_queue_stop(peer->queue);
    if (peer->claim == 0)
        return;
    net_table_leave(&peer->server->table, peer->id, (net_holder)(uintptr_t)peer);
    count_cut(peer->server, peer);
}


static void take_claim(server_peer *peer, const net_claim *wanted, net_claimed *answer) {
    net_server *server = peer->server;
    net_holder displaced = 0, self = (net_holder)(uintptr_t)peer;
    uint64_t claim = wanted->claim;
    let_go(peer);
    if (is_first(server))
        answer->verdict = net_table_draw(&server->table, wanted->id, wanted->generation, self, &claim);
    else
        answer->verdict = net_table_show(&server->table, wanted->id, wanted->generation, claim, self, &displaced);
    displace(server, displaced, "its id is another's now");
    if (answer->verdict != NET_TAKEN)
        return;
    answer->claim = peer->claim = claim;
    peer->speaks = true;
    peer->id = wanted->id;
    peer->generation = wanted->generation;
    server->sessions++;
}


/* ---- Messages ---- */

static bool refuse(server_peer *peer, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(server_peer *peer, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(peer->why, sizeof(peer->why), format, args);
    va_end(args);
    atomic_fetch_add_explicit(&peer->server->counts.refused, 1, memory_order_relaxed);
    net_channel_send(&peer->channel, NET_REFUSED, 0, 0, peer->why, strlen(peer->why));
    return false;
}


static bool on_hello(server_peer *peer, const net_head *head, const char *body) {
    net_server *server = peer->server;
    const net_file_header *header = server->memory->header;
    net_hello hello;
    memcpy(&hello, body, sizeof(hello));
    if (hello.magic != NET_MAGIC)
        return refuse(peer, "not a farindex client");
    if (hello.protocol != NET_PROTOCOL)
        return refuse(peer, "this node speaks protocol %u, not %u (farindex %s)", NET_PROTOCOL, hello.protocol,
                      far_version());
    if (hello.purpose > NET_FOR_LOOK)
        return refuse(peer, "a client comes for a session or a look");
    peer->greeted = true;
    peer->looks = hello.purpose == NET_FOR_LOOK;
    assert(peer->loop->strangers > 0);
    peer->loop->strangers--;
    atomic_fetch_sub_explicit(&server->strangers, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&server->counts.comes, !peer->looks, memory_order_relaxed);
    net_welcome welcome = {
        .magic = NET_MAGIC, .protocol = NET_PROTOCOL, .unit = NET_UNIT, .bytes = server->memory->size};
    snprintf(welcome.library, sizeof(welcome.library), "%s", far_version());
    pthread_mutex_lock(&server->lock);
    welcome.instance = header->instance;
    welcome.restarts = header->restarts;
    welcome.pool = header->pool;
    welcome.node = header->node;
    welcome.nodes = header->nodes;
    welcome.complete = header->complete;
    welcome.carrier = server->rdma ? NET_BY_RDMA : NET_BY_TCP;
    peer->told = server->noted;
    pthread_mutex_unlock(&server->lock);
    net_channel_send(&peer->channel, NET_WELCOME, 0, head->tag, &welcome, sizeof(welcome));
    if (!peer->looks)
        server_say(server, "client %s came", peer->name);
    return true;
}


static bool on_join(server_peer *peer, const net_head *head, const char *body) {
    net_join join;
    memcpy(&join, body, sizeof(join));
    if (join.pool == 0 || join.nodes == 0 || join.nodes > FAR_NODES_MAX || join.node >= join.nodes || join.complete > 1)
        return refuse(peer, "no pool is like this");
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
    if (!net_id_is_sound(wanted.id) || wanted.generation > 0xffff)
        return refuse(peer, "no session is like this");
    pthread_mutex_lock(&peer->server->lock);
    bool sound = wanted.claim == 0 ? is_first(peer->server) : is_other(peer->server);
    bool cut = atomic_load_explicit(&peer->cut, memory_order_relaxed);
    if (sound && !cut)
        take_claim(peer, &wanted, &answer);
    pthread_mutex_unlock(&peer->server->lock);
    if (!sound)
        return refuse(peer, "node 0 draws claims, the others are shown them");
    if (cut)
        return false;
    if (wanted.claim == 0 && answer.verdict == NET_OVER)
        return refuse(peer, "no claim number is left: its memory file is damaged");
    net_channel_send(&peer->channel, NET_CLAIMED, 0, head->tag, &answer, sizeof(answer));
    return true;
}


static bool on_release(server_peer *peer, const net_head *head) {
    pthread_mutex_lock(&peer->server->lock);
    let_go(peer);
    pthread_mutex_unlock(&peer->server->lock);
    net_channel_send(&peer->channel, NET_RELEASED, 0, head->tag, NULL, 0);
    return true;
}


static bool list_is_sound(const net_head *head, const char *body) {
    for (unsigned i = 0; i < head->count; i++) {
        net_claim one;
        memcpy(&one, body + i * sizeof(one), sizeof(one));
        if (!net_id_is_sound(one.id) || one.generation > 0xffff)
            return false;
    }
    return true;
}


static bool on_ask(server_peer *peer, const net_head *head, const char *body) {
    net_told told[NET_LISTED_MAX];
    memset(told, 0, head->count * sizeof(told[0]));
    pthread_mutex_lock(&peer->server->lock);
    bool sound = is_first(peer->server) && list_is_sound(head, body);
    for (unsigned i = 0; sound && i < head->count; i++) {
        net_claim one;
        memcpy(&one, body + i * sizeof(one), sizeof(one));
        told[i].lives = net_table_ask(&peer->server->table, one.id, one.generation, &told[i].over);
    }
    pthread_mutex_unlock(&peer->server->lock);
    if (!sound)
        return refuse(peer, "node 0 is asked, for sessions that can be");
    net_channel_send(&peer->channel, NET_TOLD, head->count, head->tag, told, head->count * sizeof(told[0]));
    return true;
}


static bool on_cut(server_peer *peer, const net_head *head, const char *body) {
    pthread_mutex_lock(&peer->server->lock);
    bool sound = is_other(peer->server) && list_is_sound(head, body);
    for (unsigned i = 0; sound && i < head->count; i++) {
        net_claim one;
        net_holder displaced;
        memcpy(&one, body + i * sizeof(one), sizeof(one));
        net_table_cut(&peer->server->table, one.id, one.claim, &displaced);
        displace(peer->server, displaced, "node 0 has cut its session");
    }
    pthread_mutex_unlock(&peer->server->lock);
    if (!sound)
        return refuse(peer, "node 0 cuts for itself");
    net_channel_send(&peer->channel, NET_IS_CUT, 0, head->tag, NULL, 0);
    return true;
}


static bool on_evict(server_peer *peer, const net_head *head, const char *body) {
    net_claim one;
    net_told told = {0};
    net_holder displaced = 0;
    memcpy(&one, body, sizeof(one));
    pthread_mutex_lock(&peer->server->lock);
    bool sound = is_first(peer->server) && net_id_is_sound(one.id) && one.generation <= 0xffff;
    if (sound)
        net_table_evict(&peer->server->table, one.id, one.generation, &told.over, &displaced);
    displace(peer->server, displaced, "it was evicted");
    pthread_mutex_unlock(&peer->server->lock);
    if (!sound)
        return refuse(peer, "node 0 evicts, sessions that can be");
    net_channel_send(&peer->channel, NET_EVICTED, 0, head->tag, &told, sizeof(told));
    return true;
}


static bool on_name(server_peer *peer, const net_head *head, const char *body) {
    net_claim one;
    far_name name = {0};
    memcpy(&one, body, sizeof(one));
    pthread_mutex_lock(&peer->server->lock);
    bool sound = is_first(peer->server) && net_id_is_sound(one.id);
    const server_peer *named =
        sound ? (const server_peer *)(uintptr_t)net_table_holder(&peer->server->table, one.id, one.generation) : NULL;
    if (named)
        name = named->who;
    pthread_mutex_unlock(&peer->server->lock);
    if (!sound)
        return refuse(peer, "node 0 is asked, for sessions that can be");
    net_channel_send(&peer->channel, NET_NAMED, 0, head->tag, &name, sizeof(name));
    return true;
}


/* Under peer->run: a cut comes between two verbs, or after the last. */
static bool run_verbs(server_peer *peer, const char *at, const char *end, char *results) {
    net_memory *memory = peer->server->memory;
    net_verb verb;
    while (net_verb_get(&at, end, memory->size, &verb) > 0) {
        if (atomic_load_explicit(&peer->cut, memory_order_seq_cst))
            return false;
        net_memory_run(memory, peer->loop->number, &verb, results);
        results += net_result_bytes(verb.kind, verb.length);
    }
    return true;
}


static bool on_batch(server_peer *peer, const net_head *head, const char *body) {
    size_t length = head->length - NET_HEAD_BYTES;
    bool changes;
    if (peer->server->rdma) /* atomics of a network card and of a processor do not see each other */
        return refuse(peer, "verbs come to this node by queue pairs");
    int64_t results = net_batch_check(body, length, head->count, peer->server->memory->size, &changes);
    if (results < 0 || (changes && !peer->speaks))
        return refuse(peer, results < 0 ? "a batch is malformed" : "verbs of nobody change nothing");
    net_head answer = {(uint32_t)(NET_HEAD_BYTES + results), NET_RESULTS, 0, head->tag};
    char *room = net_channel_reserve(&peer->channel, answer.length);
    if (!room)
        return refuse(peer, "no memory");
    memcpy(room, &answer, sizeof(answer));
    pthread_mutex_lock(&peer->run);
    bool whole = run_verbs(peer, body, body + length, room + NET_HEAD_BYTES);
    pthread_mutex_unlock(&peer->run);
    if (!whole)
        return false;
    net_channel_commit(&peer->channel, answer.length);
    loop_count(&peer->loop->counts.batches, 1);
    loop_count(&peer->loop->counts.verbs, head->count);
    return true;
}


static bool on_queue(server_peer *peer, const net_head *head) {
    net_server *server = peer->server;
    net_queued offer = {{0}, 0, 0, 0};
    if (!server->rdma || peer->looks || peer->queue)
        return refuse(peer, "one queue pair for a session, of a node that has them");
    pthread_mutex_lock(&server->lock);
    bool cut = atomic_load_explicit(&peer->cut, memory_order_relaxed);
    if (!cut)
        peer->queue = net_queue_offer(server->rdma, &offer);
    pthread_mutex_unlock(&server->lock);
    if (cut)
        return false;
    if (!peer->queue)
        return refuse(peer, "no memory for a queue pair");
    net_channel_send(&peer->channel, NET_QUEUED, 0, head->tag, &offer, sizeof(offer));
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
    state.connections = server->connections;
    pthread_mutex_unlock(&server->lock);
    state.comes = atomic_load_explicit(&counts->comes, memory_order_relaxed);
    state.cuts = atomic_load_explicit(&counts->cuts, memory_order_relaxed);
    for (unsigned i = 0; i < server->loop_count; i++)
        add_counts(&state, &server->loops[i].counts);
    state.refused = atomic_load_explicit(&counts->refused, memory_order_relaxed);
    net_channel_send(&peer->channel, NET_STATE, 0, head->tag, &state, sizeof(state));
    return true;
}


/* The kernel is asked where the pages lie: the daemon does not touch them. */
static bool on_places(server_peer *peer, const net_head *head, const char *body) {
    const net_memory *memory = peer->server->memory;
    net_places asked;
    net_placed answer;
    void *pages[NET_PLACES_MAX];
    memcpy(&asked, body, sizeof(asked));
    memset(&answer, 0xff, sizeof(answer)); /* FAR_NUMA_UNKNOWN */
    if (asked.count > NET_PLACES_MAX)
        return refuse(peer, "too many places");
    for (unsigned i = 0; i < asked.count; i++) {
        if (asked.offsets[i] >= memory->size)
            return refuse(peer, "a place outside the memory");
        pages[i] = memory->bytes + asked.offsets[i];
    }
    far_numa_of(pages, (unsigned)asked.count, answer.numa);
    net_channel_send(&peer->channel, NET_PLACED, 0, head->tag, &answer, sizeof(answer));
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
        server_say(peer->server, record.refuted
                                     ? "a self-test has refuted what the pool could do: see 'farindex selftest'"
                                     : "what a self-test had refuted is forgotten");
    net_channel_send(&peer->channel, NET_RECORDED, 0, head->tag, NULL, 0);
    return true;
}


static void set_listening(server_peer *peer) {
    pthread_mutex_lock(&peer->server->lock);
    peer->listens = true;
    peer->told = peer->server->noted;
    pthread_mutex_unlock(&peer->server->lock);
}


static void ring(server_peer *peer) {
    pthread_mutex_lock(&peer->server->lock);
    note(peer->server, 0, 0);
    pthread_mutex_unlock(&peer->server->lock);
}


static void take_name(server_peer *peer, const char *body) {
    pthread_mutex_lock(&peer->server->lock);
    memcpy(&peer->who, body, sizeof(peer->who));
    pthread_mutex_unlock(&peer->server->lock);
}


static void say_bye(server_peer *peer) {
    pthread_mutex_lock(&peer->server->lock);
    peer->bye = true;
    pthread_mutex_unlock(&peer->server->lock);
}


/* A peer that came for a look is no client: it changes nothing of any session (what it joins or records is the node's), and
 * nobody is told because of it. */
static bool is_for_clients(net_type type) {
    return type != NET_JOIN && type != NET_PING && type != NET_STATUS && type != NET_PLACES && type != NET_RECORD &&
           type != NET_BYE;
}


static bool dispatch(server_peer *peer, const net_head *head, const char *body) {
    if (peer->looks && is_for_clients((net_type)head->type))
        return refuse(peer, "a look is no client");
    switch ((net_type)head->type) {
    case NET_BATCH:
        return on_batch(peer, head, body);
    case NET_JOIN:
        return on_join(peer, head, body);
    case NET_CLAIM:
        return on_claim(peer, head, body);
    case NET_RELEASE:
        return on_release(peer, head);
    case NET_ASK:
        return on_ask(peer, head, body);
    case NET_CUT:
        return on_cut(peer, head, body);
    case NET_EVICT:
        return on_evict(peer, head, body);
    case NET_I_AM:
        take_name(peer, body);
        return true;
    case NET_NAME:
        return on_name(peer, head, body);
    case NET_PING:
        net_channel_send(&peer->channel, NET_PONG, 0, head->tag, NULL, 0);
        return true;
    case NET_LISTEN:
        set_listening(peer);
        return true;
    case NET_RING:
        ring(peer);
        return true;
    case NET_BYE:
        say_bye(peer);
        return true;
    case NET_STATUS:
        return on_status(peer, head);
    case NET_QUEUE:
        return on_queue(peer, head);
    case NET_RECORD:
        return on_record(peer, head, body);
    case NET_PLACES:
        return on_places(peer, head, body);
    default:
        return refuse(peer, "one hello is enough");
    }
}


bool server_serve(server_peer *peer) {
    net_head head;
    const char *body;
    int got = 0;
    /* With chaos each message takes long, so each is answered by itself. */
    size_t work = 0, most = peer->server->config.chaos ? 1 : SERVING_WORK_MOST;
    while (work < most && net_channel_queued(&peer->channel) < SERVING_QUEUED_MOST &&
           (got = net_channel_next(&peer->channel, false, &head, &body)) > 0) {
        size_t queued = net_channel_queued(&peer->channel);
        if (atomic_load_explicit(&peer->cut, memory_order_seq_cst))
            return false;
        if (!peer->greeted ? head.type != NET_HELLO : head.type == NET_HELLO)
            return refuse(peer, "a hello comes first, and once");
        if (!(peer->greeted ? dispatch(peer, &head, body) : on_hello(peer, &head, body)))
            return false;
        work += head.length + net_channel_queued(&peer->channel) - queued;
    }
    return got < 0 ? refuse(peer, "what it sent is no message of this protocol") : true;
}
