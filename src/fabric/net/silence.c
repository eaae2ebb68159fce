/* Detects silent peers (silence.h). */
#define _GNU_SOURCE
#include "fabric/net/silence.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>


/* Reads the state of a connection from the kernel. If the query fails, the socket itself has failed, which epoll
 * reports to the socket's owner. Therefore the result is then the same as for a connection without unacknowledged data.
 */
net_peer_acks net_peer_acks_read(int socket) {
    struct tcp_info info = {0};
    socklen_t length = sizeof(info);
    int bytes = 0;
    if (ioctl(socket, SIOCOUTQ, &bytes) < 0 || bytes == 0 ||
        getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) < 0)
        return (net_peer_acks){.all_acknowledged = true};
    return (net_peer_acks){.awaits_ack = info.tcpi_unacked > 0 || info.tcpi_probes > 0,
                           .ms_since_ack = info.tcpi_last_ack_recv};
}


uint64_t net_silence_update(net_silence *silence, const net_peer_acks *acks, uint64_t now) {
    bool answered = silence->is_running && now - silence->since > acks->ms_since_ack;
    if (!acks->awaits_ack || acks->all_acknowledged) {
        silence->is_running = false;
        return 0;
    }
    if (!silence->is_running || answered)
        *silence = (net_silence){.is_running = true, .since = now};
    return now - silence->since;
}
