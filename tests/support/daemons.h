/* Memory-node daemons for tests: real processes (farindex serve) on the loopback interface. They end when the test
 * ends. */
#ifndef TESTS_DAEMONS_H
#define TESTS_DAEMONS_H

#include "fabric/net/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define DAEMON_ADDRESS 64

typedef struct daemon_node {
    pid_t pid; /* process id of the daemon; 0: the daemon is not running */
    char address[DAEMON_ADDRESS];
    char options[512];
} daemon_node;

/* Starts a daemon with these options of farindex serve, and with --listen 127.0.0.1:0 unless the options contain an
 * address. Returns true when the daemon is ready, and false if the daemon ended instead. The daemon writes its log to
 * the file `log`, or nowhere if `log` is NULL. */
bool daemon_start(daemon_node *node, const char *log, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* starts the daemon again with the same options at the same address; returns as daemon_start does */
bool daemon_restart(daemon_node *node);
/* Sends SIGTERM to the daemon and waits for its end. Returns its exit status, or -1 if a signal killed it. */
int daemon_stop(daemon_node *node);
void daemon_kill(daemon_node *node); /* kills the daemon by SIGKILL */

/* returns the state of the daemon at this address, as farindex serve --status reports it */
net_state daemon_read_status(const char *address);
double daemon_seconds(void);                /* returns the current time in seconds, for deadlines */

/* Writes a secret into a file that only its owner can read. */
void daemon_secret(const char *path, const char *text);

/* Starts several daemons with anonymous memory. Stores the URI of their pool in `uri`. */
void daemons_start(unsigned count, const char *size, const char *options, char *uri, size_t uri_size);
void daemons_start_rdma(unsigned count, const char *size, const char *options, char *uri, size_t uri_size);
/* returns the sum of ticks_of over all daemons of the pool */
long daemons_ticks(const char *uri, long (*ticks_of)(pid_t pid));
void daemons_end(const char *uri);

#endif
