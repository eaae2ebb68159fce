/* Starts, stops and queries memory-node daemons for tests (daemons.h). */
#define _GNU_SOURCE
#include "daemons.h"
#include "fabric/tcp/link.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define POOLS_MAX 64
#define NODES_MAX 8

static struct {
    char uri[256];
    daemon_node nodes[NODES_MAX];
} pools[POOLS_MAX];


static void become_daemon(const daemon_node *node, const char *log, int ready, pid_t parent) {
    char line[2048];
    const char *listen = node->address[0] ? node->address : "127.0.0.1:0";
    bool told = strstr(node->options, "--listen") != NULL;
    snprintf(line, sizeof(line), "exec %s serve %s%s %s", FARINDEX_COMMAND, told ? "" : "--listen ", told ? "" : listen,
             node->options);
    int out = open(log ? log : "/dev/null", O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(ready, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    close(out);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent)
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    _exit(127);
}


static bool start(daemon_node *node, const char *log) {
    int ready[2];
    char text[256];
    pid_t parent = getpid();
    if (pipe2(ready, O_CLOEXEC) < 0)
        return false;
    node->pid = fork();
    if (node->pid == 0)
        become_daemon(node, log, ready[1], parent);
    close(ready[1]);
    FILE *file = fdopen(ready[0], "r");
    bool told = fgets(text, sizeof(text), file) && sscanf(text, "ready: %63s", node->address) == 1;
    fclose(file);
    return told;
}


bool daemon_start(daemon_node *node, const char *log, const char *format, ...) {
    va_list args;
    memset(node, 0, sizeof(*node));
    va_start(args, format);
    vsnprintf(node->options, sizeof(node->options), format, args);
    va_end(args);
    return start(node, log);
}


bool daemon_restart(daemon_node *node) {
    return start(node, NULL);
}


int daemon_stop(daemon_node *node) {
    int status = 0;
    if (node->pid <= 0)
        return -1;
    /* The daemon may be stopped by SIGSTOP. It must continue before it gets SIGTERM, because at the end of a process
     * the leak sanitizer stops and examines that process, and a late SIGCONT would disturb the leak sanitizer. */
    kill(node->pid, SIGCONT);
    kill(node->pid, SIGTERM);
    waitpid(node->pid, &status, 0);
    node->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}


void daemon_kill(daemon_node *node) {
    if (node->pid <= 0)
        return;
    kill(node->pid, SIGKILL);
    waitpid(node->pid, NULL, 0);
    node->pid = 0;
}


double daemon_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}


net_state daemon_read_status(const char *where) {
    net_address address;
    net_link link;
    net_state state = {0};
    char error[128];
    net_dial_options dial = {.purpose = NET_FOR_INSPECTION, .timeout_ms = 60000};
    assert_int_equal(net_address_parse(where, strlen(where), &address, error, sizeof(error)), 0);
    assert_int_equal(net_links_open(&link, &address, 1, &dial), 0);
    assert_int_equal(
        net_link_call(&link, &address, NET_STATUS, NULL, 0, NET_STATE, &state, sizeof(state), dial.timeout_ms), 0);
    net_channel_close(&link.channel);
    return state;
}


void daemon_secret(const char *path, const char *text) {
    unlink(path);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, strlen(text)), strlen(text));
    close(file);
}


static void start_all(const char *scheme, unsigned count, const char *size, const char *options, char *uri,
                      size_t uri_size) {
    bool rdma = strcmp(scheme, "rdma") == 0;
    unsigned slot = 0;
    while (slot < POOLS_MAX && pools[slot].uri[0])
        slot++;
    assert_true(slot < POOLS_MAX && count <= NODES_MAX);
    size_t used = (size_t)snprintf(uri, uri_size, "%s://", scheme);
    for (unsigned i = 0; i < count; i++) {
        daemon_node *node = &pools[slot].nodes[i];
        char listen[64] = "";
        if (rdma) /* Each daemon gets its own address of the network card, as tests/rdma/vm sets them up. */
            snprintf(listen, sizeof(listen), "--fabric rdma --insecure --listen 10.9.0.%u:0", i + 1);
        assert_true(daemon_start(node, NULL, "--size %s %s %s", size, options, listen));
        used += (size_t)snprintf(uri + used, uri_size - used, "%s%s", i ? "," : "", node->address);
    }
    snprintf(uri + used, uri_size - used, "%s", rdma ? "?insecure=1" : "");
    snprintf(pools[slot].uri, sizeof(pools[slot].uri), "%s", uri);
}


void daemons_start(unsigned count, const char *size, const char *options, char *uri, size_t uri_size) {
    start_all("tcp", count, size, options, uri, uri_size);
}


void daemons_start_rdma(unsigned count, const char *size, const char *options, char *uri, size_t uri_size) {
    start_all("rdma", count, size, options, uri, uri_size);
}


long daemons_ticks(const char *uri, long (*ticks_of)(pid_t pid)) {
    long ticks = 0;
    for (unsigned slot = 0; slot < POOLS_MAX; slot++)
        for (unsigned i = 0; strcmp(pools[slot].uri, uri) == 0 && i < NODES_MAX; i++)
            ticks += pools[slot].nodes[i].pid ? ticks_of(pools[slot].nodes[i].pid) : 0;
    return ticks;
}


void daemons_end(const char *uri) {
    for (unsigned slot = 0; slot < POOLS_MAX; slot++)
        if (pools[slot].uri[0] && strncmp(pools[slot].uri, uri, strlen(pools[slot].uri)) == 0) {
            for (unsigned i = 0; i < NODES_MAX; i++)
                if (pools[slot].nodes[i].pid)
                    daemon_kill(&pools[slot].nodes[i]);
            memset(&pools[slot], 0, sizeof(pools[slot]));
            return;
        }
}
