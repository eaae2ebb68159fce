/* Whether a peer's kernel is silent. A daemon ends a connection whose peer's kernel has not answered for the lease; a process
 * that is only stopped lives, and its kernel answers for it.
 *
 * While a connection is idle, keepalive finds that out (net_socket_prepare). While there are bytes that the peer has not
 * taken, it does not. TCP_USER_TIMEOUT would, but it also ends the connection of a stopped process that has no room left
 * for what is sent to it, though its kernel answers every question whether there is room again. So the daemon looks
 * itself, now and then, at connections with such bytes: something of it is unanswered, and nothing was heard since that
 * was first seen.
 *
 * No clock in here: the caller tells the time (ms), so that tests can tell it too. */
#ifndef FAR_FABRIC_NET_SILENCE_H
#define FAR_FABRIC_NET_SILENCE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct net_heard { /* what the kernel knows of a connection */
    bool all_taken;        /* the peer's kernel has all bytes that were sent */
    bool asked;            /* bytes, or a question whether there is room for them, are unanswered */
    uint64_t ago;          /* ms since the peer's kernel was last heard of */
} net_heard;

typedef struct net_silence { /* zeroed: nothing is unanswered */
    bool waits;
    uint64_t since; /* ms: when it was first seen that it waits */
} net_silence;

net_heard net_silence_ask(int socket);

/* For how many ms the peer has been silent. */
uint64_t net_silence_of(net_silence *silence, const net_heard *heard, uint64_t now);

#endif
