/* Starts and ends a memory node's daemon that serves only this benchmark, for comparisons with a server (--against
 * redis). */
#include "bench/bench.h"
#include "fabric/node/server.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>


static void run_daemon(uint64_t bytes, int address_pipe) {
    net_server_options config = {.memory = {.size = bytes, .overcommit = true}, .lease_ms = 10000, .threads = 1};
    net_server *server;
    char error[128];
    const char *where = "127.0.0.1:0";
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (net_address_parse(where, strlen(where), &config.listen, error, sizeof(error)) < 0 ||
        net_server_open(&config, &server) < 0)
        _exit(1);
    const char *address = net_server_address(server);
    if (write(address_pipe, address, strlen(address)) < 0)
        _exit(1);
    close(address_pipe);
    net_server_run(server);
    _exit(0);
}


int bench_start_daemon(uint64_t bytes, char *uri, size_t room, pid_t *child) {
    int ends[2];
    char address[NET_ADDRESS_MAX] = "";
    if (pipe(ends) < 0 || (*child = fork()) < 0)
        return cli_failed("bench: a process for the memory node could not be started");
    if (*child == 0)
        run_daemon(bytes, ends[1]);
    close(ends[1]);
    ssize_t length = read(ends[0], address, sizeof(address) - 1);
    close(ends[0]);
    if (length <= 0)
        return cli_failed("bench: the memory node could not be started");
    snprintf(uri, room, "tcp://%s", address);
    return 0;
}


void bench_end_daemon(pid_t child) {
    if (child <= 0)
        return;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}
