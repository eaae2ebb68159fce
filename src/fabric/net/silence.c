/* Whether a peer's kernel is silent. */
#define _GNU_SOURCE
#include "fabric/net/silence.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>


/* A socket that cannot be asked has failed: its owner finds that out by its events. */
net_heard net_silence_ask(int socket) {
    struct tcp_info info = {0};
    socklen_t length = sizeof(info);
    int bytes = 0;
    if (ioctl(socket, SIOCOUTQ, &bytes) < 0 || bytes == 0 ||
        getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) < 0)
        return (net_heard){.all_taken = true};
    return (net_heard){.asked = info.tcpi_unacked > 0 || info.tcpi_probes > 0, .ago = info.tcpi_last_ack_recv};
}


uint64_t net_silence_of(net_silence *silence, const net_heard *heard, uint64_t now) {
    bool answered = silence->waits && now - silence->since > heard->ago;
    if (!heard->asked || heard->all_taken) {
        silence->waits = false;
        return 0;
    }
    if (!silence->waits || answered)
        *silence = (net_silence){.waits = true, .since = now};
    return now - silence->since;
}
