/* The log of the daemon. Threads that serve clients append lines to a buffer of fixed size; a thread of the log writes
 * them to a descriptor. So a descriptor that accepts no data, such as a full pipe, never stops the daemon.
 * A line is dropped if the buffer is full, or if there were too many lines of its level recently. The log counts the
 * dropped lines, and writes their number before the next line.
 *
 *     2026-01-31T12:00:00.000Z farindex serve: info: client 10.0.0.7:40122 has connected */
#ifndef FAR_FABRIC_NODE_LOG_H
#define FAR_FABRIC_NODE_LOG_H

#include <stdint.h>

#define NET_LOG_BYTES      (64u << 10) /* size of the buffer */
#define NET_LOG_BURST      200u        /* largest number of lines of one level that are written at once */
#define NET_LOG_PER_SECOND 20u         /* number of lines of one level in a second, after such a burst */

typedef enum { NET_LOG_ERROR, NET_LOG_WARNING, NET_LOG_INFO, NET_LOG_LEVELS } net_log_level;

typedef struct net_log net_log;

/* Opens a log that writes lines up to `level` to the descriptor, which stays open when the log is closed. Returns
 * FAR_ERR_NO_MEMORY if the thread cannot be started. */
int net_log_open(int descriptor, net_log_level level, net_log **log);
/* Appends a line; never blocks. Does nothing if `log` is NULL. */
void net_log_write(net_log *log, net_log_level level, const char *format, ...) __attribute__((format(printf, 3, 4)));
uint64_t net_log_dropped(net_log *log); /* returns the number of dropped lines; 0 if `log` is NULL */
/* Writes the remaining lines, but waits at most a second for the descriptor to accept them. Accepts NULL. */
void net_log_close(net_log *log);

#endif
