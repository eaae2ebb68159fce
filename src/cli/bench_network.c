/* farindex bench --micro --pool tcp://...: what a round trip of the fabric costs beside a raw one, eight bytes that a
 * process on this host sends back. Both alternate in short turns, so that a busy machine disturbs both alike. */
#include "cli/bench.h"
#include "pool/handle.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TURNS  20
#define ROUNDS 500

typedef struct samples {
    double us[TURNS * ROUNDS];
    unsigned count;
} samples;

typedef struct network_run {
    unsigned verbs; /* of a batch */
    samples *samples;
} network_run;


static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}


static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}


static double median(samples *s) {
    qsort(s->us, s->count, sizeof(s->us[0]), compare);
    return s->us[s->count / 2];
}


/* ---- The raw round trip ---- */

static void echo(int listener) {
    char bytes[8];
    int on = 1, one = accept(listener, NULL, NULL);
    setsockopt(one, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    while (recv(one, bytes, sizeof(bytes), MSG_WAITALL) == sizeof(bytes) &&
           send(one, bytes, sizeof(bytes), MSG_NOSIGNAL) == sizeof(bytes))
        ;
    _exit(0);
}


static int start_echo(pid_t *child) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(here);
    int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = -1;
    if (listener < 0 || bind(listener, (struct sockaddr *)&here, sizeof(here)) < 0 || listen(listener, 1) < 0 ||
        getsockname(listener, (struct sockaddr *)&here, &length) < 0 || (*child = fork()) < 0)
        return -1;
    if (*child == 0)
        echo(listener);
    one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (one >= 0 && connect(one, (struct sockaddr *)&here, sizeof(here)) < 0) {
        close(one);
        one = -1;
    }
    if (one >= 0)
        setsockopt(one, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    close(listener);
    return one;
}


static bool measure_raw(int one, samples *s) {
    char bytes[8] = "12345678";
    for (unsigned i = 0; i < ROUNDS; i++) {
        double begun = now_us();
        if (send(one, bytes, sizeof(bytes), MSG_NOSIGNAL) != sizeof(bytes) ||
            recv(one, bytes, sizeof(bytes), MSG_WAITALL) != sizeof(bytes))
            return false;
        s->us[s->count++] = now_us() - begun;
    }
    return true;
}


/* ---- The fabric ---- */

static int measure_batches(far_task *t, void *arg) {
    network_run *run = arg;
    char bytes[4][64];
    int err = 0;
    for (unsigned i = 0; i < ROUNDS && err == 0; i++) {
        double begun = now_us();
        for (unsigned k = 0; k < run->verbs; k++)
            far_read(t, far_addr_make(0, 4096 + 64 * k), bytes[k], 64);
        err = far_wait(t);
        run->samples->us[run->samples->count++] = now_us() - begun;
    }
    return err;
}


static void report(samples *raw, samples *single, samples *four, FILE *table, FILE *json) {
    double floor = median(raw), one = median(single), batch = median(four);
    if (table) {
        fprintf(table, "%-36s %8.1f us\n", "raw, 8 bytes (p50)", floor);
        fprintf(table, "%-36s %8.1f us  %5.2f\n", "READ of 64 bytes", one, one / floor);
        fprintf(table, "%-36s %8.1f us  %5.2f\n", "four READs of 64 bytes, one batch", batch, batch / floor);
    }
    if (json)
        fprintf(json, "{\"raw_us\": %.2f, \"read_us\": %.2f, \"batch_4_us\": %.2f, \"ratio\": %.3f}\n", floor, one,
                batch, batch / floor);
}


static int run_turns(far_session *session, int one, samples s[3]) {
    bool raw = true;
    int err = 0;
    for (unsigned turn = 0; turn < TURNS && raw && err == 0; turn++) {
        network_run single = {1, &s[1]}, four = {4, &s[2]};
        raw = measure_raw(one, &s[0]);
        err = far_session_call(session, FAR_STATS_OTHER, false, measure_batches, &single);
        if (err == 0)
            err = far_session_call(session, FAR_STATS_OTHER, false, measure_batches, &four);
    }
    return raw ? err : FAR_ERR_UNREACHABLE;
}


int bench_network(const char *uri, FILE *table, FILE *json) {
    far_pool *pool = NULL;
    far_session *session = NULL;
    pid_t child = 0;
    int one = start_echo(&child), status = CLI_DONE; /* before the pool has threads */
    samples *s = calloc(3, sizeof(*s));
    if (one < 0 || !s)
        status = cli_failed("bench: no raw round trip can be measured");
    else if (far_pool_open(uri, NULL, &pool) < 0 || far_session_open(pool, &session) < 0 ||
             run_turns(session, one, s) < 0)
        status = cli_failed("%s: %s", uri, far_last_error());
    else
        report(&s[0], &s[1], &s[2], table, json);
    if (session)
        far_session_close(session);
    if (pool)
        far_pool_close(pool);
    if (one >= 0)
        close(one);
    if (child > 0)
        waitpid(child, NULL, 0);
    free(s);
    return status;
}
