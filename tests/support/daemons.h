/* Memory nodes on the network for tests: real daemons (farindex serve) on loopback, which end with the test. */
#ifndef TESTS_DAEMONS_H
#define TESTS_DAEMONS_H

#include "fabric/net/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define DAEMON_ADDRESS 64

typedef struct daemon_node {
    pid_t pid; /* 0: it does not run */
    char address[DAEMON_ADDRESS];
    char options[512];
} daemon_node;

/* Starts one: `options` of farindex serve, with --listen 127.0.0.1:0 unless they say where. Waits until it is ready.
 * False: it ended instead. Its log goes to `log` (NULL: nowhere). */
bool daemon_start(daemon_node *node, const char *log, const char *format, ...) __attribute__((format(printf, 3, 4)));
bool daemon_again(daemon_node *node); /* the same, at the same address */
int daemon_stop(daemon_node *node);   /* SIGTERM; its exit status, -1: it died otherwise */
void daemon_kill(daemon_node *node);  /* SIGKILL */

net_state daemon_look(const char *address); /* as farindex serve --status sees it */
double daemon_seconds(void);                /* a clock for deadlines */

/* A file with this secret, which only its owner can read. */
void daemon_secret(const char *path, const char *text);

/* Some with anonymous memory, and the URI of the pool that they make. */
void daemons_start(unsigned count, const char *size, const char *options, char *uri, size_t uri_size);
void daemons_start_rdma(unsigned count, const char *size, const char *options, char *uri, size_t uri_size);
long daemons_ticks(const char *uri, long (*ticks_of)(pid_t pid)); /* of all its nodes */
void daemons_end(const char *uri);

#endif
