/* Limits of connections (admission.h). */
#include "fabric/node/admission.h"

#include <assert.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#define CONNECTIONS_MIN 16u /* connections that are admitted even if the process may have very few descriptors */


static unsigned descriptors_for_connections(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > 1u << 30)
        return 1u << 30;
    unsigned all = (unsigned)limit.rlim_cur;
    return all < NET_RESERVED_DESCRIPTORS + CONNECTIONS_MIN ? CONNECTIONS_MIN : all - NET_RESERVED_DESCRIPTORS;
}


void net_admission_init(net_admission *admission, unsigned per_address) {
    *admission = (net_admission){.connections_max = descriptors_for_connections(),
                                 .per_address_max = per_address ? per_address : NET_PER_ADDRESS_DEFAULT};
    admission->readers_max = admission->connections_max / 2;
}


void net_admission_free(net_admission *admission) {
    for (unsigned i = 0; i < NET_SOURCE_BUCKETS; i++)
        while (admission->sources[i]) {
            net_source *source = admission->sources[i];
            admission->sources[i] = source->next;
            free(source);
        }
}


/* ---- Addresses ---- */

/* Returns the number by which connections from this address are counted: the address, or the first 64 bits of an IPv6
 * address. */
static uint64_t key_of(const net_endpoint *from) {
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)&from->address;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&from->address;
    uint32_t address;
    uint64_t network;
    if (from->address.ss_family == AF_INET)
        return 1ull << 32 | v4->sin_addr.s_addr;
    if (from->address.ss_family != AF_INET6)
        return 0;
    memcpy(&address, v6->sin6_addr.s6_addr + 12, sizeof(address));
    memcpy(&network, v6->sin6_addr.s6_addr, sizeof(network));
    return IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) ? 1ull << 32 | address : network;
}


static net_source **bucket_of(net_admission *admission, uint64_t key) {
    return &admission->sources[(key * 0x9e3779b97f4a7c15ull) >> 54];
}


static net_source *find_or_make_source(net_admission *admission, uint64_t key) {
    net_source **bucket = bucket_of(admission, key), *source = *bucket;
    while (source && source->key != key)
        source = source->next;
    if (source || !(source = calloc(1, sizeof(*source))))
        return source;
    source->key = key;
    source->next = *bucket;
    *bucket = source;
    return source;
}


static void free_unused_source(net_admission *admission, net_source *source) {
    net_source **at = bucket_of(admission, source->key);
    if (source->connections > 0 || source->half_open > 0)
        return;
    while (*at != source)
        at = &(*at)->next;
    *at = source->next;
    free(source);
}


/* ---- Half-open connections ---- */

static void unlink_half_open(net_admission *admission, net_half_open *peer) {
    if (!peer->linked)
        return;
    assert(admission->half_open > 0 && peer->source->half_open > 0);
    *(peer->newer ? &peer->newer->older : &admission->newest) = peer->older;
    *(peer->older ? &peer->older->newer : &admission->oldest) = peer->newer;
    peer->linked = false;
    admission->half_open--;
    peer->source->half_open--;
    free_unused_source(admission, peer->source);
    peer->source = NULL;
}


/* Closes the oldest half-open connection of the address with the most: the loop to which it belongs reads the
 * end of stream and frees it. The socket is still open, because net_admission_leave removes a connection from the list
 * before its socket is closed. Returns false if there is no half-open connection. */
static bool evict_half_open(net_admission *admission) {
    net_half_open *peer = admission->oldest;
    if (!peer)
        return false;
    for (net_half_open *one = peer->newer; one; one = one->newer)
        if (one->source->half_open > peer->source->half_open)
            peer = one;
    unlink_half_open(admission, peer);
    peer->evicted = true;
    admission->evicted++;
    shutdown(peer->socket, SHUT_RDWR);
    return true;
}


bool net_admission_enter(net_admission *admission, net_half_open *peer, const net_endpoint *from, int socket) {
    bool is_full = admission->connections >= admission->connections_max;
    if ((is_full || admission->half_open >= NET_HALF_OPEN_MAX) && !evict_half_open(admission))
        return false;
    /* An evicted connection keeps its descriptor until its loop closes it. Up to half of the reserved descriptors may
     * be in use for such connections; after that the new connection is refused. */
    if (is_full && admission->connections >= admission->connections_max + NET_RESERVED_DESCRIPTORS / 2)
        return false;
    net_source *source = find_or_make_source(admission, key_of(from));
    if (!source)
        return false;
    *peer = (net_half_open){.socket = socket, .linked = true, .source = source, .older = admission->newest};
    *(admission->newest ? &admission->newest->newer : &admission->oldest) = peer;
    admission->newest = peer;
    admission->half_open++;
    source->half_open++;
    admission->connections++;
    return true;
}


/* ---- Connections after their hello ---- */

net_admitted net_admission_accept(net_admission *admission, net_half_open *peer, bool reads_only, net_place *place) {
    net_source *source = peer->source;
    if (!source || source->connections >= admission->per_address_max) {
        admission->refused_by_address++;
        return NET_ADDRESS_IS_FULL;
    }
    if (reads_only && admission->readers >= admission->readers_max) {
        admission->refused_readers++;
        return NET_READERS_ARE_FULL;
    }
    source->connections++;
    admission->readers += reads_only;
    *place = (net_place){source, reads_only};
    unlink_half_open(admission, peer);
    return NET_ADMITTED;
}


void net_admission_leave(net_admission *admission, net_half_open *peer, const net_place *place) {
    assert(admission->connections > 0);
    unlink_half_open(admission, peer);
    if (place->source) {
        assert(place->source->connections > 0 && admission->readers >= place->of_reader);
        place->source->connections--;
        admission->readers -= place->of_reader;
        free_unused_source(admission, place->source);
    }
    admission->connections--;
}
