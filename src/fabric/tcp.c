/* The fabric `tcp`: memory nodes on the network, each served by a daemon (farindex serve).
 *
 * tcp://HOST:PORT,HOST:PORT?secret=FILE&timeout=10s   tcp://[::1]:7000?insecure=1   tcp://a:7000?cert=F&key=F&ca=F */
#include "fabric/tcp.h"
#include "base/error.h"
#include "base/numa.h"
#include "base/parse.h"
#include "farindex.h"

#include <stdlib.h>

#define TIMEOUT_MS   10000u
#define TIMEOUT_MOST 3600000000000ull
#define PINGS        16
#define RTT_LEAST    1000u /* ns */

typedef struct tcp_shape { /* as the URI says it */
    net_address *addresses;
    unsigned nodes;
    char secret[FAR_OPTION_VALUE_MAX + 1], cert[FAR_OPTION_VALUE_MAX + 1], key[FAR_OPTION_VALUE_MAX + 1],
        ca[FAR_OPTION_VALUE_MAX + 1];
    uint64_t timeout_ns;
    int insecure;
    /* What the fabric could do and is not to be relied upon: */
    int reads_in_order; /* off */
    uint32_t atomic_bytes;
} tcp_shape;


/* ---- The URI ---- */

static int parse_nodes(const char *text, size_t length, tcp_shape *shape, char *error, size_t error_size) {
    const char *end = text + length;
    for (unsigned i = 0;; i++) {
        const char *comma = memchr(text, ',', (size_t)(end - text)), *stop = comma ? comma : end;
        if (i == FAR_NODES_MAX)
            return far_refuse(error, error_size, "a pool has at most %d memory nodes", FAR_NODES_MAX);
        net_address *address = &shape->addresses[i];
        if (net_address_parse(text, (size_t)(stop - text), address, error, error_size) < 0)
            return FAR_ERR_INVALID;
        if (strcmp(address->port, "0") == 0)
            return far_refuse(error, error_size, "'%s': no daemon listens at port 0", address->text);
        for (unsigned j = 0; j < i; j++)
            if (strcmp(shape->addresses[j].text, address->text) == 0)
                return far_refuse(error, error_size, "'%s' is named twice", address->text);
        shape->nodes = i + 1;
        if (!comma)
            return 0;
        text = comma + 1;
    }
}


static int parse_timeout(const char *text, uint64_t *ns, char *error, size_t error_size) {
    if (far_parse_duration(text, ns, error, error_size) < 0)
        return FAR_ERR_INVALID;
    if (*ns < 100000000u || *ns > TIMEOUT_MOST)
        return far_refuse(error, error_size, "timeout: 100ms to 3600s, not %s", text);
    return 0;
}


static int parse_unit(const char *text, uint32_t *bytes, char *error, size_t error_size) {
    bool is_word = strcmp(text, "8") == 0;
    if (!is_word && strcmp(text, "64") != 0)
        return far_refuse(error, error_size, "atomic_bytes: 8 or 64, not %s", text);
    *bytes = is_word ? 8 : NET_UNIT;
    return 0;
}


static int set_option(const far_option_list *list, tcp_shape *shape, char *error, size_t error_size) {
    const struct {
        const char *name;
        char *to;
    } texts[] = {{"secret", shape->secret}, {"cert", shape->cert}, {"key", shape->key}, {"ca", shape->ca}};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (strcmp(list->name, texts[i].name) == 0) {
            memcpy(texts[i].to, list->value, strlen(list->value) + 1);
            return 0;
        }
    if (strcmp(list->name, "timeout") == 0)
        return parse_timeout(list->value, &shape->timeout_ns, error, error_size);
    if (strcmp(list->name, "insecure") == 0)
        return far_parse_switch(list->value, &shape->insecure, error, error_size);
    if (strcmp(list->name, "reads_in_order") == 0)
        return far_parse_switch(list->value, &shape->reads_in_order, error, error_size);
    if (strcmp(list->name, "atomic_bytes") == 0)
        return parse_unit(list->value, &shape->atomic_bytes, error, error_size);
    return far_refuse(error, error_size,
                      "unknown option '%s' (there are secret=, cert=, key=, ca=, insecure=, timeout=, reads_in_order=, "
                      "atomic_bytes=)",
                      list->name);
}


static int parse_tcp(const char *rest, tcp_shape *shape, char *error, size_t error_size) {
    const char *question = strchr(rest, '?');
    size_t length = question ? (size_t)(question - rest) : strlen(rest);
    shape->timeout_ns = TIMEOUT_MS * 1000000ull;
    shape->reads_in_order = 1;
    shape->atomic_bytes = NET_UNIT;
    int got = parse_nodes(rest, length, shape, error, error_size);
    if (got < 0)
        return got;
    if (question && question[1] == 0)
        return far_refuse(error, error_size, "nothing follows '?'");
    far_option_list list;
    far_options_begin(&list, question ? question + 1 : NULL, '&');
    while ((got = far_options_next(&list, error, error_size)) > 0)
        if ((got = set_option(&list, shape, error, error_size)) < 0)
            return got;
    return got;
}


static int open_tls(const tcp_shape *shape, net_tls_context **tls) {
    const char *secret = *shape->secret ? shape->secret : NULL;
    if (!secret && !*shape->cert && !*shape->key && !*shape->ca && !shape->insecure)
        secret = getenv("FARINDEX_SECRET");
    net_tls_config config = {secret && *secret ? secret : NULL, *shape->cert ? shape->cert : NULL,
                             *shape->key ? shape->key : NULL, *shape->ca ? shape->ca : NULL};
    return net_tls_open(&config, false, tls);
}


/* ---- Joining: which node is which ---- */

typedef struct joining {
    tcp_fabric *fabric;
    net_link *links;
    const net_address *addresses; /* as in the URI */
    unsigned count;
    unsigned order[FAR_NODES_MAX]; /* by instance: the same for all who name the same nodes */
} joining;


/* Several openers may join the same nodes at once. All go through them in one order, so that whoever is first at the first
 * node is first everywhere. */
static int sort_nodes(joining *j) {
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


/* Before any node is joined: atomics of a network card and of a processor do not see each other, so a pool has one carrier. */
static int check_carriers(const joining *j) {
    const tcp_kind *kind = j->fabric->kind;
    for (unsigned i = 0; i < j->count; i++)
        if (j->links[i].welcome.carrier != (uint32_t)kind->carrier)
            return far_fail(FAR_ERR_UNSUPPORTED, "the memory node at %s is served by %s://, not by %s://",
                            j->addresses[i].text, kind->carrier == NET_BY_TCP ? "rdma" : "tcp", kind->scheme);
    return 0;
}


static int fail_foreign(const joining *j, unsigned i) {
    const net_welcome *w = &j->links[i].welcome;
    return far_fail(FAR_ERR_CORRUPT, "the memory node at %s is of another pool: node %u of %u of pool %016llx",
                    j->addresses[i].text, w->node, w->nodes, (unsigned long long)w->pool);
}


static void note_join(net_welcome *welcome, const net_join *join) {
    welcome->pool = join->pool;
    welcome->node = join->node;
    welcome->nodes = join->nodes;
    welcome->complete = join->complete;
}


/* Welcomes were said at different moments: another opener may have joined this node since. */
static int look_again(joining *j, unsigned i) {
    net_state state = {0};
    int err = net_link_call(&j->links[i], &j->addresses[i], NET_STATUS, NULL, 0, NET_STATE, &state, sizeof(state),
                            j->fabric->timeout_ms);
    net_join now = {.pool = state.pool, .node = state.node, .nodes = state.nodes, .complete = state.complete};
    if (err == 0)
        note_join(&j->links[i].welcome, &now);
    return err;
}


/* A node says that all have joined, this one said that it belongs to no pool: it has joined since, or it is another. */
static int find_missing(joining *j, unsigned i) {
    int err = j->links[i].welcome.pool == 0 ? look_again(j, i) : 0;
    if (err == 0 && j->links[i].welcome.pool == 0)
        err = far_fail(FAR_ERR_CORRUPT,
                       "the memory node at %s belongs to no pool, the others do: it was restarted without its "
                       "memory, or is not meant",
                       j->addresses[i].text);
    return err;
}


/* The pool that they belong to; 0: none of them belongs to one. */
static int find_pool(joining *j, uint64_t *pool, bool *complete) {
    *pool = 0;
    *complete = false;
    for (unsigned i = 0; i < j->count; i++) {
        const net_welcome *w = &j->links[i].welcome;
        if (w->pool == 0)
            continue;
        if (*pool != 0 && *pool != w->pool)
            return fail_foreign(j, i);
        if (w->nodes != j->count)
            return far_fail(FAR_ERR_CORRUPT,
                            "the memory node at %s is of a pool with %u memory nodes, the URI names %u",
                            j->addresses[i].text, w->nodes, j->count);
        *pool = w->pool;
        *complete |= w->complete;
    }
    int err = 0;
    for (unsigned i = 0; *complete && i < j->count && err == 0; i++)
        err = find_missing(j, i);
    return err;
}


static int join_one(joining *j, unsigned i, uint64_t *pool, unsigned number, bool complete) {
    net_join join = {.pool = *pool, .node = number, .nodes = j->count, .complete = complete};
    int err = net_link_call(&j->links[i], &j->addresses[i], NET_JOIN, &join, sizeof(join), NET_JOINED, &join,
                            sizeof(join), j->fabric->timeout_ms);
    if (err < 0)
        return err;
    note_join(&j->links[i].welcome, &join);
    if (number == 0 && !complete) /* another opener was first: it is that one's pool */
        *pool = join.pool;
    return join.pool == *pool && join.node == number && join.nodes == j->count ? 0 : fail_foreign(j, i);
}


static int join_all(joining *j) {
    uint64_t pool;
    bool complete;
    int err = find_pool(j, &pool, &complete);
    if (err < 0)
        return err;
    if (pool == 0 && j->fabric->existing)
        return far_fail(FAR_ERR_NOT_FOUND, "there is no pool: the memory node at %s belongs to none",
                        j->addresses[0].text);
    far_host *host = j->fabric->fabric.host;
    while (pool == 0)
        host->ops->secret(host, &pool, sizeof(pool));
    for (unsigned n = 0; n < j->count && err == 0 && !complete; n++)
        err = join_one(j, j->order[n], &pool, n, false);
    for (unsigned i = 0; i < j->count && err == 0; i++) /* all have joined: all know it, whichever is lost later */
        if (!j->links[i].welcome.complete)
            err = join_one(j, i, &pool, j->links[i].welcome.node, true);
    j->fabric->pool = pool;
    return err;
}


static int place_nodes(joining *j) {
    tcp_fabric *fabric = j->fabric;
    bool there[FAR_NODES_MAX] = {false};
    for (unsigned i = 0; i < j->count; i++) {
        const net_welcome *w = &j->links[i].welcome;
        if (w->pool != fabric->pool || w->node >= j->count || there[w->node])
            return fail_foreign(j, i);
        there[w->node] = true;
        fabric->addresses[w->node] = j->addresses[i];
        fabric->instances[w->node] = w->instance;
        fabric->fabric.node_bytes[w->node] = w->bytes;
    }
    return 0;
}


static int measure_rtt(joining *j) {
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
    j->fabric->fabric.rtt = best < RTT_LEAST ? RTT_LEAST : best;
    return err;
}


static int meet_nodes(tcp_fabric *fabric, const net_address *addresses, unsigned count) {
    net_dial dial = {fabric->tls, fabric->insecure, NET_FOR_LOOK, fabric->timeout_ms};
    joining j = {.fabric = fabric, .addresses = addresses, .count = count, .links = calloc(count, sizeof(net_link))};
    if (!j.links)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a handle");
    int err = net_links_open(j.links, addresses, count, &dial);
    if (err == 0)
        err = check_carriers(&j);
    if (err == 0 && (err = sort_nodes(&j)) == 0 && (err = join_all(&j)) == 0 && (err = place_nodes(&j)) == 0)
        err = measure_rtt(&j);
    for (unsigned i = 0; i < count; i++)
        net_channel_close(&j.links[i].channel);
    free(j.links);
    return err;
}


/* ---- Questions and news beside the sessions ---- */

static int ask_places(net_link *link, const tcp_fabric *fabric, unsigned node, const uint64_t *offsets, unsigned count,
                      int *numa) {
    net_places asked = {.count = count};
    net_placed answer;
    memcpy(asked.offsets, offsets, count * sizeof(*offsets));
    int err = net_link_call(link, &fabric->addresses[node], NET_PLACES, &asked, sizeof(asked), NET_PLACED, &answer,
                            sizeof(answer), fabric->timeout_ms);
    for (unsigned i = 0; i < count && err == 0; i++)
        numa[i] = answer.numa[i] < 0 ? FAR_NUMA_UNKNOWN : answer.numa[i];
    return err;
}


/* A connection of its own. */
static int look_at_node(tcp_fabric *fabric, unsigned node, net_link *link) {
    net_dial dial = {fabric->tls, fabric->insecure, NET_FOR_LOOK, fabric->timeout_ms};
    return net_links_open(link, &fabric->addresses[node], 1, &dial);
}


int tcp_places(far_fabric *base, unsigned node, const uint64_t *offsets, unsigned count, int *numa) {
    tcp_fabric *fabric = (tcp_fabric *)base;
    net_link link;
    int err = look_at_node(fabric, node, &link);
    if (err < 0)
        return err;
    for (unsigned done = 0; done < count && err == 0; done += NET_PLACES_MAX) {
        unsigned some = count - done < NET_PLACES_MAX ? count - done : NET_PLACES_MAX;
        err = ask_places(&link, fabric, node, offsets + done, some, numa + done);
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
        err = look_at_node(fabric, i, &link);
        if (err < 0)
            break;
        err = net_link_call(&link, &fabric->addresses[i], NET_RECORD, &record, sizeof(record), NET_RECORDED, NULL, 0,
                            fabric->timeout_ms);
        net_channel_close(&link.channel);
    }
    return err;
}


/* ---- Opening ---- */

void tcp_close(far_fabric *base) {
    tcp_fabric *fabric = (tcp_fabric *)base;
    net_tls_close(fabric->tls);
    free(fabric->addresses);
    free(fabric);
}


static const far_fabric_ops tcp_ops = {TCP_SHARED_OPS, .connect = tcp_connect, .post = tcp_post, .poll = tcp_poll,
                                       .wait = tcp_wait};


static const tcp_kind tcp = {
    .scheme = "tcp",
    .carrier = NET_BY_TCP,
    .ops = &tcp_ops,
    .go_on = tcp_go_on,
    .capabilities = {.atomic_bytes = NET_UNIT, .masked_cas = true, .atomics_in_order = true, .reads_in_order = true},
};


static int make_fabric(const tcp_kind *kind, const tcp_shape *shape, bool existing, tcp_fabric **made) {
    tcp_fabric *fabric = calloc(1, sizeof(*fabric));
    if (!fabric || !(fabric->addresses = calloc(shape->nodes, sizeof(*fabric->addresses)))) {
        free(fabric);
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a handle");
    }
    fabric->kind = kind;
    fabric->fabric.ops = kind->ops;
    fabric->fabric.host = &far_host_threads;
    fabric->fabric.capabilities = kind->capabilities;
    fabric->fabric.capabilities.reads_in_order &= shape->reads_in_order;
    fabric->fabric.capabilities.atomic_bytes = shape->atomic_bytes;
    fabric->fabric.nodes = shape->nodes;
    fabric->insecure = shape->insecure;
    fabric->existing = existing;
    fabric->timeout_ms = (unsigned)(shape->timeout_ns / 1000000u);
    int err = open_tls(shape, &fabric->tls);
    if (err == 0)
        err = meet_nodes(fabric, shape->addresses, shape->nodes);
    if (err < 0) {
        tcp_close(&fabric->fabric);
        return err;
    }
    *made = fabric;
    return 0;
}


int tcp_open(const tcp_kind *kind, const char *rest, bool existing, far_fabric **opened) {
    char error[256];
    tcp_fabric *fabric = NULL;
    tcp_shape *shape = calloc(1, sizeof(*shape));
    if (!shape || !(shape->addresses = calloc(FAR_NODES_MAX, sizeof(*shape->addresses)))) {
        free(shape);
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a handle");
    }
    int err = parse_tcp(rest, shape, error, sizeof(error));
    if (err < 0)
        far_fail(err, "uri: %s://%.200s: %s", kind->scheme, rest, error);
    else if ((err = make_fabric(kind, shape, existing, &fabric)) == 0)
        *opened = &fabric->fabric;
    free(shape->addresses);
    free(shape);
    return err;
}


int far_tcp_open(const char *rest, far_fabric **opened) {
    return tcp_open(&tcp, rest, false, opened);
}


int far_tcp_open_existing(const char *rest, far_fabric **opened) {
    return tcp_open(&tcp, rest, true, opened);
}
