/* farindex bench --micro --pool tcp://... or rdma://...: compares a round trip of the fabric with a raw one. On tcp://
 * the raw round trip is eight bytes that another process on this host echoes. On rdma:// the raw round trip is the same
 * READs, posted directly with libibverbs.
 *
 * The two alternate in short turns, so that other load on the machine affects both equally. Both ends of the raw
 * connection poll before they block, as those of the fabric do (net/busy_poll.h); otherwise the ratio would mainly
 * measure how long the host takes to wake a process. */
#include "bench/network.h"
#include "base/host.h"
#include "bench/bench.h"
#include "fabric/net/busy_poll.h"
#include "pool/handle.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define TURNS     20
#define MIN_TURNS 3 /* smallest number of turns, even if they take longer than LONG_US */
#define LONG_US   10e6
#define ROUNDS    500
#define COUNTED   5 /* rounds in which instructions are counted; the smallest count is used */

enum { RAW, RAW_BATCH, READ, BATCH, NOTHING, MEASURED };

typedef struct samples {
    double us[TURNS * ROUNDS];
    unsigned count;
} samples;

typedef struct network_run {
    far_session *session;
    network_floor *floor;
    bench_steps *steps;              /* NULL if instructions are not counted */
    samples samples[NOTHING];        /* latencies, by measurement */
    uint64_t instructions[MEASURED]; /* instructions, by measurement; 0 if not counted */
    unsigned reads;                  /* READs in each batch of the current turn */
    samples *into;
} network_run;


static double now_us(void) {
    return (double)far_host_now(&far_host_threads) / 1e3;
}


static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}


static double median_of(samples *s) {
    qsort(s->us, s->count, sizeof(s->us[0]), compare_doubles);
    return s->us[s->count / 2];
}


/* ---- The raw round trip of tcp:// ---- */

typedef struct echo_floor {
    network_floor floor; /* must be the first field */
    int socket;
    pid_t child;
    net_busy_poll linger;
} echo_floor;

#define ECHO_BYTES 8


/* Receives an echo. Returns false if the connection has ended. */
static bool receive_echo(int socket, net_busy_poll *linger, char bytes[ECHO_BYTES]) {
    far_host *host = &far_host_threads;
    ssize_t got = -1;
    for (bool looks = net_busy_poll_begin(linger, far_host_now(host)); looks && got < 0;
         looks = net_busy_poll_continue(linger, far_host_now(host))) {
        got = recv(socket, bytes, ECHO_BYTES, MSG_DONTWAIT);
        if (got < 0)
            sched_yield();
    }
    bool by_look = got >= 0;
    if (!by_look)
        got = recv(socket, bytes, ECHO_BYTES, 0);
    net_busy_poll_end(linger, far_host_now(host), by_look);
    return got == ECHO_BYTES; /* an echo is small enough to arrive in one piece */
}


static bool send_echo(int socket, const char bytes[ECHO_BYTES]) {
    return send(socket, bytes, ECHO_BYTES, MSG_NOSIGNAL) == ECHO_BYTES;
}


static void run_echo_server(int listener) {
    char bytes[ECHO_BYTES];
    net_busy_poll linger = {0};
    int on = 1, one = accept(listener, NULL, NULL);
    setsockopt(one, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    while (receive_echo(one, &linger, bytes) && send_echo(one, bytes))
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
        run_echo_server(listener);
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


static bool send_and_receive(network_floor *floor, unsigned reads) {
    echo_floor *e = (echo_floor *)floor;
    char bytes[ECHO_BYTES] = "1234567";
    (void)reads;
    return send_echo(e->socket, bytes) && receive_echo(e->socket, &e->linger, bytes);
}


static void end_echo(network_floor *floor) {
    echo_floor *e = (echo_floor *)floor;
    if (e->socket >= 0)
        close(e->socket);
    if (e->child > 0)
        waitpid(e->child, NULL, 0);
    free(e);
}


static network_floor *echo_open(void) {
    echo_floor *e = calloc(1, sizeof(*e));
    if (e) {
        e->floor = (network_floor){"raw, 8 bytes", NULL, send_and_receive, end_echo};
        e->socket = start_echo(&e->child);
    }
    if (e && e->socket >= 0)
        return &e->floor;
    cli_failed("bench: the raw round trip cannot be measured");
    if (e)
        end_echo(&e->floor);
    return NULL;
}


/* ---- Times ---- */

static int run_batch(far_task *t, unsigned reads) {
    char bytes[NETWORK_BATCH][NETWORK_READ];
    for (unsigned k = 0; k < reads; k++)
        far_read(t, far_addr_make(0, NETWORK_FROM + NETWORK_READ * k), bytes[k], NETWORK_READ);
    return far_wait(t);
}


static int measure_batches(far_task *t, void *arg) {
    network_run *run = arg;
    int err = 0;
    for (unsigned i = 0; i < ROUNDS && err == 0; i++) {
        double begun = now_us();
        err = run_batch(t, run->reads);
        run->into->us[run->into->count++] = now_us() - begun;
    }
    return err;
}


static int measure_raw(network_run *run) {
    for (unsigned i = 0; i < ROUNDS; i++) {
        double begun = now_us();
        if (!run->floor->round(run->floor, run->reads))
            return far_fail(FAR_ERR_UNREACHABLE, "a raw round trip failed");
        run->into->us[run->into->count++] = now_us() - begun;
    }
    return 0;
}


static int run_turns(network_run *run) {
    int err = 0;
    double end = now_us() + LONG_US;
    for (unsigned turn = 0; turn < TURNS && (turn < MIN_TURNS || now_us() < end) && err == 0; turn++)
        for (unsigned what = RAW; what < NOTHING && err == 0; what++) {
            bool raw = what == RAW || what == RAW_BATCH;
            if (what == RAW_BATCH && !run->floor->what_batch)
                continue;
            run->reads = what == RAW || what == READ ? 1 : NETWORK_BATCH;
            run->into = &run->samples[what];
            err = raw ? measure_raw(run) : far_session_call(run->session, FAR_STATS_OTHER, false, measure_batches, run);
        }
    return err;
}


/* ---- Instructions ---- */

static void keep_smaller(uint64_t *least, uint64_t count) {
    *least = *least == 0 || count < *least ? count : *least;
}


static int count_instructions(far_task *t, void *arg) {
    network_run *run = arg;
    int err = 0;
    for (unsigned i = 0; i < COUNTED && err == 0; i++) {
        bench_steps_begin(run->steps);
        keep_smaller(&run->instructions[NOTHING], bench_steps_end(run->steps));
        for (unsigned batch = 0; batch < 2 && err == 0; batch++) {
            unsigned reads = batch ? NETWORK_BATCH : 1;
            bench_steps_begin(run->steps);
            bool ok = run->floor->round(run->floor, reads);
            keep_smaller(&run->instructions[batch ? RAW_BATCH : RAW], bench_steps_end(run->steps));
            bench_steps_begin(run->steps);
            err = ok ? run_batch(t, reads) : FAR_ERR_UNREACHABLE;
            keep_smaller(&run->instructions[batch ? BATCH : READ], bench_steps_end(run->steps));
        }
    }
    return err;
}


/* ---- Reporting ---- */

static long instruction_difference(const network_run *run, unsigned what, unsigned floor) {
    return (long)run->instructions[what] - (long)run->instructions[floor];
}


static void report_time(FILE *table, const char *what, double us, double floor) {
    fprintf(table, "%-40s %8.1f us", what, us);
    fprintf(table, us == floor ? "\n" : "  %5.2f\n", us / floor);
}


static void report_cost(FILE *table, const network_run *run, const double p50[NOTHING]) {
    fprintf(table, "%-40s %8.0f ns for one READ, %.0f ns for a batch of four\n", "our software beside raw verbs",
            (p50[READ] - p50[RAW]) * 1e3, (p50[BATCH] - p50[RAW_BATCH]) * 1e3);
    if (run->instructions[NOTHING] == 0)
        fprintf(table, "%-40s %8s (tracing a process is not permitted here)\n", "... in instructions", "-");
    else
        fprintf(table, "%-40s %8ld for one READ, %ld for a batch of four (raw: %ld, %ld)\n", "... in instructions",
                instruction_difference(run, READ, RAW), instruction_difference(run, BATCH, RAW_BATCH),
                instruction_difference(run, RAW, NOTHING), instruction_difference(run, RAW_BATCH, NOTHING));
}


static void report_json(FILE *json, const network_run *run, const double p50[NOTHING]) {
    json_t *object = cli_json_object();
    cli_json_set_number(object, "raw_us", p50[RAW]);
    cli_json_set_number(object, "raw_4_us", p50[RAW_BATCH]);
    cli_json_set_number(object, "read_us", p50[READ]);
    cli_json_set_number(object, "batch_4_us", p50[BATCH]);
    cli_json_set_number(object, "read_ratio", p50[READ] / p50[RAW]);
    cli_json_set_number(object, "ratio", p50[BATCH] / p50[RAW_BATCH]);
    if (run->instructions[NOTHING] > 0) {
        json_t *instructions = cli_json_object();
        cli_json_set(instructions, "read", json_integer(instruction_difference(run, READ, NOTHING)));
        cli_json_set(instructions, "batch_4", json_integer(instruction_difference(run, BATCH, NOTHING)));
        cli_json_set(instructions, "raw", json_integer(instruction_difference(run, RAW, NOTHING)));
        cli_json_set(instructions, "raw_4", json_integer(instruction_difference(run, RAW_BATCH, NOTHING)));
        cli_json_set(object, "instructions", instructions);
    }
    cli_json_print(json, object);
}


static void print_report(network_run *run, FILE *table, FILE *json) {
    const char *batch = run->floor->what_batch;
    double p50[NOTHING];
    for (unsigned what = RAW; what < NOTHING; what++)
        p50[what] = what == RAW_BATCH && !batch ? p50[RAW] : median_of(&run->samples[what]);
    if (table) {
        report_time(table, run->floor->what, p50[RAW], p50[RAW]);
        report_time(table, "READ of 64 bytes (p50)", p50[READ], p50[RAW]);
        if (batch)
            report_time(table, batch, p50[RAW_BATCH], p50[RAW_BATCH]);
        report_time(table, "four READs of 64 bytes, one batch", p50[BATCH], p50[RAW_BATCH]);
        if (batch)
            report_cost(table, run, p50);
    }
    if (json)
        report_json(json, run, p50);
}


static int run_all(network_run *run, const char *uri) {
    int err = run_turns(run);
    if (err == 0 && run->steps)
        err = far_session_call(run->session, FAR_STATS_OTHER, false, count_instructions, run);
    return err < 0 ? cli_failed("%s: %s", uri, far_last_error()) : CLI_DONE;
}


int bench_network(const char *uri, FILE *table, FILE *json) {
    bool rdma = strncmp(uri, "rdma://", 7) == 0;
    far_pool *pool = NULL;
    network_run *run = calloc(1, sizeof(*run));
    int status = CLI_FAILED;
    if (!run)
        return cli_failed("no memory to measure with");
    /* Both functions start a process, which must be forked before the pool has threads. */
    if (rdma)
        run->steps = bench_steps_open();
    else
        run->floor = echo_open();
    if (far_pool_open(uri, NULL, &pool) < 0 || far_session_open(pool, &run->session) < 0)
        cli_failed("%s: %s", uri, far_last_error());
    else if (run->floor || (rdma && (run->floor = bench_rdma_floor(pool->fabric))))
        status = run_all(run, uri);
    if (status == CLI_DONE)
        print_report(run, table, json);
    if (run->floor)
        run->floor->close(run->floor);
    far_session_close(run->session);
    far_pool_close(pool);
    bench_steps_close(run->steps);
    free(run);
    return status;
}
