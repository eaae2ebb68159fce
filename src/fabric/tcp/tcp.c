/* The fabric `tcp`: memory nodes on the network, each served by a daemon (farindex serve). This file parses the URI and
 * joins the nodes to a pool. far_tcp_open opens it; rdma.c calls tcp_open too.
 *
 * Examples of URIs:
 *
 *     tcp://HOST:PORT,HOST:PORT?secret=FILE&timeout=10s
 *     tcp://[::1]:7000?insecure=1
 *     tcp://a:7000?cert=F&key=F&ca=F */
#include "fabric/tcp/tcp.h"
#include "base/error.h"
#include "base/numa.h"
#include "base/parse.h"
#include "fabric/reader.h"
#include "farindex.h"

#include <stdio.h>
#include <stdlib.h>

#define TIMEOUT_MS  10000u
#define TIMEOUT_MAX 3600000000000ull
#define PINGS       16
/* smallest assumed round trip in ns; back-off times are multiples of the round trip, so it must not be 0 */
#define RTT_MIN 1000u

typedef struct tcp_options { /* the pool as the URI describes it */
    net_address *addresses;
    unsigned nodes;
    char secret[FAR_OPTION_VALUE_MAX + 1], cert[FAR_OPTION_VALUE_MAX + 1], key[FAR_OPTION_VALUE_MAX + 1],
        ca[FAR_OPTION_VALUE_MAX + 1];
    uint64_t timeout_ns;
    int insecure;
    /* Guarantees that the nodes offer and the user may switch off: */
    int reads_in_order; /* 0: the user has switched off that clients rely on the order of READs */
    uint32_t atomic_bytes;
} tcp_options;


/* ---- The URI ---- */

static int parse_nodes(const char *text, size_t length, tcp_options *options, char *error, size_t error_size) {
    const char *end = text + length;
    for (unsigned i = 0;; i++) {
        const char *comma = memchr(text, ',', (size_t)(end - text)), *stop = comma ? comma : end;
        if (i == FAR_NODES_MAX)
            return far_refuse(error, error_size, "a pool has at most %d memory nodes", FAR_NODES_MAX);
        net_address *address = &options->addresses[i];
        if (net_address_parse(text, (size_t)(stop - text), address, error, error_size) < 0)
            return FAR_ERR_INVALID;
        if (strcmp(address->port, "0") == 0)
            return far_refuse(error, error_size, "'%s': port 0 cannot be the port of a daemon", address->text);
        for (unsigned j = 0; j < i; j++)
            if (strcmp(options->addresses[j].text, address->text) == 0)
                return far_refuse(error, error_size, "'%s' is named twice", address->text);
        options->nodes = i + 1;
        if (!comma)
            return 0;
        text = comma + 1;
    }
}


static int parse_timeout(const char *text, uint64_t *ns, char *error, size_t error_size) {
    if (far_parse_duration(text, ns, error, error_size) < 0)
        return FAR_ERR_INVALID;
    if (*ns < 100000000u || *ns > TIMEOUT_MAX)
        return far_refuse(error, error_size, "timeout: 100ms to 3600s, not %s", text);
    return 0;
}


static int parse_atomic_bytes(const char *text, uint32_t *bytes, char *error, size_t error_size) {
    bool is_word = strcmp(text, "8") == 0;
    if (!is_word && strcmp(text, "64") != 0)
        return far_refuse(error, error_size, "atomic_bytes: 8 or 64, not %s", text);
    *bytes = is_word ? 8 : NET_GRANULE;
    return 0;
}


static int set_option(const far_option_list *list, tcp_options *options, char *error, size_t error_size) {
    const struct {
        const char *name;
        char *to;
    } texts[] = {{"secret", options->secret}, {"cert", options->cert}, {"key", options->key}, {"ca", options->ca}};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (strcmp(list->name, texts[i].name) == 0) {
            memcpy(texts[i].to, list->value, strlen(list->value) + 1);
            return 0;
        }
    if (strcmp(list->name, "timeout") == 0)
        return parse_timeout(list->value, &options->timeout_ns, error, error_size);
    if (strcmp(list->name, "insecure") == 0)
        return far_parse_switch(list->value, &options->insecure, error, error_size);
    if (strcmp(list->name, "reads_in_order") == 0)
        return far_parse_switch(list->value, &options->reads_in_order, error, error_size);
    if (strcmp(list->name, "atomic_bytes") == 0)
        return parse_atomic_bytes(list->value, &options->atomic_bytes, error, error_size);
    return far_refuse(error, error_size,
                      "unknown option '%s' (there are secret=, cert=, key=, ca=, insecure=, timeout=, reads_in_order=, "
                      "atomic_bytes=)",
                      list->name);
}


static int parse_uri(const char *rest, tcp_options *options, char *error, size_t error_size) {
    const char *question = strchr(rest, '?');
    size_t length = question ? (size_t)(question - rest) : strlen(rest);
    options->timeout_ns = TIMEOUT_MS * 1000000ull;
    options->reads_in_order = 1;
    options->atomic_bytes = NET_GRANULE;
    int got = parse_nodes(rest, length, options, error, error_size);
    if (got < 0)
        return got;
    if (question && question[1] == 0)
        return far_refuse(error, error_size, "nothing follows '?'");
    far_option_list list;
    far_options_begin(&list, question ? question + 1 : NULL, '&');
    while ((got = far_options_next(&list, error, error_size)) > 0)
        if ((got = set_option(&list, options, error, error_size)) < 0)
            return got;
    return got;
}


static int open_tls(const tcp_options *options, net_tls_context **tls) {
    const char *secret = *options->secret ? options->secret : NULL;
    if (!secret && !*options->cert && !*options->key && !*options->ca && !options->insecure)
        secret = getenv("FARINDEX_SECRET");
    net_tls_config config = {.secret = secret && *secret ? secret : NULL,
                             .cert = *options->cert ? options->cert : NULL,
                             .key = *options->key ? options->key : NULL,
                             .ca = *options->ca ? options->ca : NULL};
    return net_tls_open(&config, false, tls);
}


/* ---- Joining nodes to a pool ---- */

typedef struct join_state {
    tcp_fabric *fabric;
    net_link *links;
    const net_address *addresses; /* addresses of the nodes in the order of the URI */
    unsigned count;
    net_key key; /* key of the pool that the nodes get; 0 if the pool is complete */
    /* positions in the URI, sorted by instance; the same order for all clients that name the same nodes */
    unsigned order[FAR_NODES_MAX];
} join_state;


/* Sorts the nodes by instance number. Several clients may join the same nodes at once. All go through the nodes in this
 * order, so the client that is first at the first node determines the pool, and the others follow it. */
static int order_nodes(join_state *j) {
    for (unsigned i = 0; i < j->count; i++) {
        unsigned at = i;
        for (; at > 0 && j->links[j->order[at - 1]].welcome.instance > j->links[i].welcome.instance; at--)
            j->order[at] = j->order[at - 1];
        j->order[at] = i;
    }
    for (unsigned i = 1; i < j->count; i++)
        if (j->links[j->order[i]].welcome.instance == j->links[j->order[i - 1]].welcome.instance)
            return far_fail(FAR_ERR_INVALID, "uri: %s and %s are the same memory node",
                            j->addresses[j->order[i - 1]].text, j->addresses[j->order[i]].text);
    return 0;
}


/* Checks, before any node is joined, that all nodes use the transport that the URI names. A pool uses one transport,
 * because atomics of a network card and atomics of a processor are not atomic towards each other. */
static int check_carriers(const join_state *j) {
    const tcp_transport *transport = j->fabric->transport;
    for (unsigned i = 0; i < j->count; i++)
        if (j->links[i].welcome.carrier != (uint32_t)transport->carrier)
            return far_fail(FAR_ERR_UNSUPPORTED, "the memory node at %s is served by %s://, not by %s://",
                            j->addresses[i].text, transport->carrier == NET_BY_TCP ? "rdma" : "tcp", transport->scheme);
    return 0;
}


static int fail_wrong_pool(const join_state *j, unsigned i) {
    const net_welcome *w = &j->links[i].welcome;
    return far_fail(FAR_ERR_CORRUPT,
                    "the memory node at %s belongs to another pool: it is node %u of %u of pool %016llx",
                    j->addresses[i].text, w->node, w->nodes, (unsigned long long)w->pool);
}


static void store_join(net_welcome *welcome, const net_join *join) {
    welcome->pool = join->pool;
    welcome->node = join->node;
    welcome->nodes = join->nodes;
    welcome->complete = join->complete;
}


/* Reads the state of a node again. The welcomes of the nodes were sent at different moments, and another client may
 * have joined this node since. */
static int refresh_welcome(join_state *j, unsigned i) {
    net_state state = {0};
    int err = net_link_call(&j->links[i], &j->addresses[i], NET_STATUS, NULL, 0, NET_STATE, &state, sizeof(state),
                            j->fabric->timeout_ms);
    net_join now = {.pool = state.pool, .node = state.node, .nodes = state.nodes, .complete = state.complete};
    if (err == 0)
        store_join(&j->links[i].welcome, &now);
    return err;
}


/* Checks a node that named no pool in its welcome, although another node reports that all nodes have joined. Either the
 * node has joined since its welcome, or it is the wrong node. Returns 0 in the first case, else an error. */
static int check_node_joined(join_state *j, unsigned i) {
    int err = j->links[i].welcome.pool == 0 ? refresh_welcome(j, i) : 0;
    if (err == 0 && j->links[i].welcome.pool == 0)
        err = far_fail(FAR_ERR_CORRUPT,
                       "the memory node at %s belongs to no pool, but the others do: it was restarted without its "
                       "memory, or it is the wrong node",
                       j->addresses[i].text);
    return err;
}


/* Finds the pool to which the nodes belong. Sets *pool to its number, or to 0 if no node belongs to a pool. Sets
 * *complete if at least one node reports that its pool is complete. */
static int find_pool(join_state *j, uint64_t *pool, bool *complete) {
    *pool = 0;
    *complete = false;
    for (unsigned i = 0; i < j->count; i++) {
        const net_welcome *w = &j->links[i].welcome;
        if (w->pool == 0)
            continue;
        if (*pool != 0 && *pool != w->pool)
            return fail_wrong_pool(j, i);
        if (w->nodes != j->count)
            return far_fail(FAR_ERR_CORRUPT,
                            "the memory node at %s belongs to a pool with %u memory nodes, but the URI names %u",
                            j->addresses[i].text, w->nodes, j->count);
        *pool = w->pool;
        *complete |= w->complete;
    }
    int err = 0;
    for (unsigned i = 0; *complete && i < j->count && err == 0; i++)
        err = check_node_joined(j, i);
    return err;
}


static int join_one(join_state *j, unsigned i, uint64_t *pool, unsigned number, bool complete) {
    net_join join = {.pool = *pool, .node = number, .nodes = j->count, .complete = complete, .key = j->key};
    int err = net_link_call(&j->links[i], &j->addresses[i], NET_JOIN, &join, sizeof(join), NET_JOINED, &join,
                            sizeof(join), j->fabric->timeout_ms);
    if (err < 0)
        return err;
    store_join(&j->links[i].welcome, &join);
    if (number == 0 && !complete) { /* if another client was first at this node, its pool and its key are used */
        *pool = join.pool;
        j->key = join.key;
    }
    return join.pool == *pool && join.node == number && join.nodes == j->count ? 0 : fail_wrong_pool(j, i);
}


/* Returns true if at least one node permits this client only READs. */
static bool may_only_read(const join_state *j) {
    for (unsigned i = 0; i < j->count; i++)
        if (j->links[i].welcome.reads_only)
            return true;
    return false;
}


static bool all_are_complete(const join_state *j) {
    for (unsigned i = 0; i < j->count; i++)
        if (!j->links[i].welcome.complete)
            return false;
    return true;
}


static int join_all(join_state *j) {
    uint64_t pool;
    bool complete;
    int err = find_pool(j, &pool, &complete);
    if (err < 0)
        return err;
    far_fabric *fabric = &j->fabric->fabric;
    fabric->reads_only = may_only_read(j);
    if (fabric->reads_only && j->fabric->transport->carrier == NET_BY_RDMA)
        return far_fail(
            FAR_ERR_UNSUPPORTED,
            "uri: the secret permits only reading, which rdma:// does not support: a queue pair could write");
    if (pool != 0 && fabric->reads_only && !all_are_complete(j))
        return far_fail(FAR_ERR_NOT_FOUND, "the pool is not complete: a client that may write must open it first");
    if (pool == 0 && (j->fabric->existing || fabric->reads_only))
        return far_fail(FAR_ERR_NOT_FOUND, "there is no pool: the memory node at %s belongs to none",
                        j->addresses[0].text);
    far_host *host = j->fabric->fabric.host;
    while (pool == 0)
        host->ops->secret(host, &pool, sizeof(pool));
    while (!net_key_exists(&j->key))
        host->ops->secret(host, &j->key, sizeof(j->key));
    for (unsigned n = 0; n < j->count && err == 0 && !complete; n++)
        err = join_one(j, j->order[n], &pool, n, false);
    /* Informs each node that all nodes have joined. Each node records this. So if a node loses its memory later, the
     * other nodes still show that the pool was complete. */
    for (unsigned i = 0; i < j->count && err == 0; i++)
        if (!j->links[i].welcome.complete)
            err = join_one(j, i, &pool, j->links[i].welcome.node, true);
    j->fabric->pool = pool;
    return err;
}


static int assign_node_numbers(join_state *j) {
    tcp_fabric *fabric = j->fabric;
    bool taken[FAR_NODES_MAX] = {false};
    for (unsigned i = 0; i < j->count; i++) {
        const net_welcome *w = &j->links[i].welcome;
        if (w->pool != fabric->pool || w->node >= j->count || taken[w->node])
            return fail_wrong_pool(j, i);
        taken[w->node] = true;
        fabric->addresses[w->node] = j->addresses[i];
        fabric->instances[w->node] = w->instance;
        fabric->fabric.node_bytes[w->node] = w->bytes;
    }
    return 0;
}


static int measure_rtt(join_state *j) {
    far_host *host = j->fabric->fabric.host;
    uint64_t best = UINT64_MAX;
    int err = 0;
    for (unsigned i = 0; i < PINGS && err == 0; i++) {
        uint64_t before = far_host_now(host);
        err =
            net_link_call(&j->links[0], &j->addresses[0], NET_PING, NULL, 0, NET_PONG, NULL, 0, j->fabric->timeout_ms);
        uint64_t span = far_host_now(host) - before;
        best = span < best ? span : best;
    }
    j->fabric->fabric.rtt = best < RTT_MIN ? RTT_MIN : best;
    return err;
}


static int join_nodes(tcp_fabric *fabric, const net_address *addresses, unsigned count) {
    net_dial_options dial = {fabric->tls, fabric->insecure, NET_FOR_INSPECTION, fabric->timeout_ms};
    join_state j = {.fabric = fabric, .addresses = addresses, .count = count, .links = calloc(count, sizeof(net_link))};
    if (!j.links)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a handle");
    int err = net_links_open(j.links, addresses, count, &dial);
    if (err == 0)
        err = check_carriers(&j);
    if (err == 0 && (err = order_nodes(&j)) == 0 && (err = join_all(&j)) == 0 && (err = assign_node_numbers(&j)) == 0)
        err = measure_rtt(&j);
    for (unsigned i = 0; i < count; i++)
        net_channel_close(&j.links[i].channel);
    free(j.links);
    return err;
}


/* ---- Requests outside of sessions ---- */

static int query_numa_nodes(net_link *link, const tcp_fabric *fabric, unsigned node, const uint64_t *offsets,
                            unsigned count, int *numa) {
    net_numa_query asked = {.count = count};
    net_numa_nodes answer;
    memcpy(asked.offsets, offsets, count * sizeof(*offsets));
    int err = net_link_call(link, &fabric->addresses[node], NET_NUMA_QUERY, &asked, sizeof(asked), NET_NUMA_NODES,
                            &answer, sizeof(answer), fabric->timeout_ms);
    for (unsigned i = 0; i < count && err == 0; i++)
        numa[i] = answer.numa[i] < 0 ? FAR_NUMA_UNKNOWN : answer.numa[i];
    return err;
}


/* Opens a separate connection for inspection. */
static int open_inspection(tcp_fabric *fabric, unsigned node, net_link *link) {
    net_dial_options dial = {fabric->tls, fabric->insecure, NET_FOR_INSPECTION, fabric->timeout_ms};
    return net_links_open(link, &fabric->addresses[node], 1, &dial);
}


int tcp_numa_nodes(far_fabric *base, unsigned node, const uint64_t *offsets, unsigned count, int *numa) {
    tcp_fabric *fabric = (tcp_fabric *)base;
    net_link link;
    int err = open_inspection(fabric, node, &link);
    if (err < 0)
        return err;
    for (unsigned done = 0; done < count && err == 0; done += NET_NUMA_QUERY_MAX) {
        unsigned some = count - done < NET_NUMA_QUERY_MAX ? count - done : NET_NUMA_QUERY_MAX;
        err = query_numa_nodes(&link, fabric, node, offsets + done, some, numa + done);
    }
    net_channel_close(&link.channel);
    return err;
}


int tcp_record(far_fabric *base, unsigned refuted) {
    tcp_fabric *fabric = (tcp_fabric *)base;
    net_record record = {refuted};
    int err = 0;
    for (unsigned i = 0; i < base->nodes && err == 0; i++) {
        net_link link;
        err = open_inspection(fabric, i, &link);
        if (err < 0)
            break;
        err = net_link_call(&link, &fabric->addresses[i], NET_RECORD, &record, sizeof(record), NET_RECORDED, NULL, 0,
                            fabric->timeout_ms);
        net_channel_close(&link.channel);
    }
    return err;
}


/* ---- Opening and closing ---- */

void tcp_close(far_fabric *base) {
    tcp_fabric *fabric = (tcp_fabric *)base;
    net_tls_close(fabric->tls);
    free(fabric->addresses);
    free(fabric);
}


static const far_fabric_ops tcp_ops = {TCP_SHARED_OPS, .connect = tcp_connect, .post = tcp_post, .poll = tcp_poll,
                                       .wait = tcp_wait};


static const tcp_transport tcp = {
    .scheme = "tcp",
    .carrier = NET_BY_TCP,
    .ops = &tcp_ops,
    .resume_stalled = tcp_resume_stalled,
    .capabilities = {.atomic_bytes = NET_GRANULE, .masked_cas = true, .atomics_in_order = true, .reads_in_order = true},
};


static int make_fabric(const tcp_transport *transport, const tcp_options *options, bool existing, tcp_fabric **made) {
    tcp_fabric *fabric = calloc(1, sizeof(*fabric));
    if (!fabric || !(fabric->addresses = calloc(options->nodes, sizeof(*fabric->addresses)))) {
        free(fabric);
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a handle");
    }
    fabric->transport = transport;
    fabric->fabric.ops = transport->ops;
    fabric->fabric.host = &far_host_threads;
    fabric->fabric.capabilities = transport->capabilities;
    fabric->fabric.capabilities.reads_in_order &= options->reads_in_order;
    fabric->fabric.capabilities.atomic_bytes = options->atomic_bytes;
    fabric->fabric.nodes = options->nodes;
    fabric->insecure = options->insecure;
    fabric->existing = existing;
    fabric->timeout_ms = (unsigned)(options->timeout_ns / 1000000u);
    int err = open_tls(options, &fabric->tls);
    if (err == 0)
        err = join_nodes(fabric, options->addresses, options->nodes);
    if (err < 0) {
        tcp_close(&fabric->fabric);
        return err;
    }
    *made = fabric;
    return 0;
}


int tcp_open(const tcp_transport *transport, const char *rest, bool existing, far_fabric **opened) {
    char error[256];
    tcp_fabric *fabric = NULL;
    tcp_options *options = calloc(1, sizeof(*options));
    if (!options || !(options->addresses = calloc(FAR_NODES_MAX, sizeof(*options->addresses)))) {
        free(options);
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a handle");
    }
    int err = parse_uri(rest, options, error, sizeof(error));
    if (err < 0)
        far_fail(err, "uri: %s://%.200s: %s", transport->scheme, rest, error);
    else if ((err = make_fabric(transport, options, existing, &fabric)) == 0)
        *opened = &fabric->fabric;
    free(options->addresses);
    free(options);
    return err;
}


int far_tcp_open(const char *rest, far_fabric **opened) {
    return tcp_open(&tcp, rest, false, opened);
}


int far_tcp_open_existing(const char *rest, far_fabric **opened) {
    return tcp_open(&tcp, rest, true, opened);
}


/* ---- The reader ---- */

typedef struct tcp_reader {
    far_reader reader;             /* must be the first member, because pointers to it are cast to the whole struct */
    net_link links[FAR_NODES_MAX]; /* indexed by node number, like the addresses */
    net_address addresses[FAR_NODES_MAX];
    net_tls_context *tls;
    unsigned timeout_ms;
    uint64_t pool;
} tcp_reader;


static int read_from_node(far_reader *base, unsigned node, uint64_t offset, void *to, uint64_t bytes) {
    tcp_reader *reader = (tcp_reader *)base;
    return net_link_read(&reader->links[node], &reader->addresses[node], far_addr_make(node, offset), to,
                         (uint32_t)bytes, reader->timeout_ms);
}


static void close_reader(far_reader *base) {
    tcp_reader *reader = (tcp_reader *)base;
    for (unsigned i = 0; i < FAR_NODES_MAX; i++)
        if (base->node_bytes[i])
            net_channel_close(&reader->links[i].channel);
    net_tls_close(reader->tls);
    free(reader);
}


/* Adds a node that has answered to the reader, under its number. A node without a pool has lost its memory, so it
 * counts as missing. */
static int add_to_reader(tcp_reader *reader, net_link *link, const net_address *address) {
    const net_welcome *w = &link->welcome;
    far_reader *base = &reader->reader;
    if (w->pool == 0) {
        snprintf(base->missing, sizeof(base->missing), "the memory node at %.150s has lost its memory", address->text);
        net_channel_close(&link->channel);
        return 0;
    }
    if ((reader->pool && w->pool != reader->pool) || w->nodes != base->nodes || w->node >= base->nodes ||
        base->node_bytes[w->node] || w->bytes == 0) {
        net_channel_close(&link->channel);
        return far_fail(FAR_ERR_CORRUPT, "the memory node at %s is node %u of %u of pool %016llx, not of this pool",
                        address->text, w->node, w->nodes, (unsigned long long)w->pool);
    }
    reader->pool = w->pool;
    reader->links[w->node] = *link;
    reader->addresses[w->node] = *address;
    base->node_bytes[w->node] = w->bytes;
    return 0;
}


/* Connects to the nodes one after the other. A node that does not answer is missing. */
static int connect_reader(tcp_reader *reader, const tcp_options *options) {
    net_dial_options dial = {reader->tls, options->insecure, NET_FOR_SESSION, reader->timeout_ms};
    far_reader *base = &reader->reader;
    for (unsigned i = 0; i < options->nodes; i++) {
        net_link link;
        int err = net_links_open(&link, &options->addresses[i], 1, &dial);
        if (err == FAR_ERR_UNREACHABLE)
            snprintf(base->missing, sizeof(base->missing), "%.*s", FAR_REASON_MAX - 1, far_last_error());
        else if (err < 0 || (err = add_to_reader(reader, &link, &options->addresses[i])) < 0)
            return err;
    }
    return reader->pool ? 0 : far_fail(FAR_ERR_UNREACHABLE, "no memory node of the pool is there: %s", base->missing);
}


int far_tcp_reader_open(const char *rest, far_reader **opened) {
    char error[256];
    tcp_reader *made = calloc(1, sizeof(*made));
    tcp_options *options = calloc(1, sizeof(*options));
    if (options)
        options->addresses = calloc(FAR_NODES_MAX, sizeof(*options->addresses));
    int err = made && options && options->addresses ? 0 : far_fail(FAR_ERR_NO_MEMORY, "no memory for a handle");
    if (err == 0 && (err = parse_uri(rest, options, error, sizeof(error))) < 0)
        far_fail(err, "uri: tcp://%.200s: %s", rest, error);
    if (err == 0)
        err = open_tls(options, &made->tls);
    if (err == 0) {
        made->reader.nodes = options->nodes;
        made->reader.read = read_from_node;
        made->reader.close = close_reader;
        made->timeout_ms = (unsigned)(options->timeout_ns / 1000000u);
        err = connect_reader(made, options);
    }
    if (err == 0)
        *opened = &made->reader;
    else if (made)
        close_reader(&made->reader);
    if (options)
        free(options->addresses);
    free(options);
    return err;
}
