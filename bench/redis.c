/* Redis as a rival: the benchmark starts its own redis-server on loopback without persistence, and each process has one
 * hiredis connection. Operations in flight are commands in one pipeline. */
#define _GNU_SOURCE
#include "bench/processes.h"

#ifdef FARINDEX_REDIS

#include <arpa/inet.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_TRIES 500 /* attempts to connect, 10 ms apart */

typedef struct redis_server {
    pid_t pid;
    int port;
} redis_server;

typedef struct redis_state { /* the state of one process */
    redisContext *context;
    far_op *flight[FAR_OPS_MAX]; /* a ring of the operations in flight, in the order of their commands */
    size_t first, count;
} redis_state;


/* ---- Operations ---- */

static void append_command(redis_state *state, const far_op *op) {
    const char *get[] = {"GET", op->key}, *set[] = {"SET", op->key, op->value, "NX"};
    size_t get_lengths[] = {3, op->key_len}, set_lengths[] = {3, op->key_len, op->value_len, 2};
    if (op->kind == FAR_OP_GET)
        redisAppendCommandArgv(state->context, 2, get, get_lengths);
    else
        redisAppendCommandArgv(state->context, op->kind == FAR_OP_INSERT ? 4 : 3, set, set_lengths);
}


static void take_value(far_op *op, const redisReply *reply) {
    op->value_len = reply->len;
    op->result = op->value_len > op->capacity ? FAR_ERR_TOO_SMALL : 0;
    if (op->result == 0)
        memcpy(op->value, reply->str, reply->len);
}


static void take_reply(redis_state *state, far_op *op) {
    redisReply *reply = NULL;
    if (redisGetReply(state->context, (void **)&reply) != REDIS_OK || reply->type == REDIS_REPLY_ERROR)
        op->result = FAR_ERR_UNREACHABLE;
    else if (op->kind == FAR_OP_GET && reply->type == REDIS_REPLY_STRING)
        take_value(op, reply);
    else if (op->kind == FAR_OP_GET)
        op->result = FAR_ERR_NOT_FOUND;
    else
        op->result = reply->type == REDIS_REPLY_NIL ? FAR_ERR_EXISTS : 0;
    if (reply)
        freeReplyObject(reply);
}


static void redis_call(bench_client *client, far_op *op) {
    append_command(client->engine_state, op);
    take_reply(client->engine_state, op);
}


static int redis_submit(bench_client *client, far_op *ops[], size_t count) {
    redis_state *state = client->engine_state;
    size_t taken = 0;
    for (; taken < count && state->count < FAR_OPS_MAX; taken++) {
        append_command(state, ops[taken]);
        state->flight[(state->first + state->count++) % FAR_OPS_MAX] = ops[taken];
    }
    return (int)taken;
}


/* Receives replies. Replies that arrived together with the first one are processed too, because they cost no further
 * round trip. */
static int redis_reap(bench_client *client, far_op *done[], size_t max, size_t wait_for) {
    redis_state *state = client->engine_state;
    size_t taken = 0;
    while (state->count > 0 && taken < max) {
        const redisReader *reader = state->context->reader;
        if (taken >= wait_for && reader->pos >= reader->len)
            break;
        far_op *op = state->flight[state->first];
        take_reply(state, op);
        done[taken++] = op;
        state->first = (state->first + 1) % FAR_OPS_MAX;
        state->count--;
    }
    return (int)taken;
}


static const bench_engine redis_engine = {redis_call, redis_submit, redis_reap};


/* ---- The store; `state` is the server ---- */

static int report_failure(bench_store *store, const char *what) {
    snprintf(store->error, sizeof(store->error), "redis: %s", what);
    return 1;
}


/* Returns a TCP port that is free at the moment. */
static int pick_port(void) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(here);
    int one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool bound = one >= 0 && bind(one, (struct sockaddr *)&here, sizeof(here)) == 0 &&
                 getsockname(one, (struct sockaddr *)&here, &length) == 0;
    if (one >= 0)
        close(one);
    return bound ? ntohs(here.sin_port) : -1;
}


static void become_server(int port) {
    char text[16];
    snprintf(text, sizeof(text), "%d", port);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!freopen("/dev/null", "w", stdout))
        _exit(127);
    execlp("redis-server", "redis-server", "--bind", "127.0.0.1", "--port", text, "--save", "", "--appendonly", "no",
           (char *)NULL);
    _exit(127);
}


static redisContext *try_connect(int port) {
    redisContext *context = redisConnect("127.0.0.1", port);
    if (context && !context->err)
        return context;
    if (context)
        redisFree(context);
    return NULL;
}


static int wait_for_server(bench_store *store, redis_server *server) {
    for (unsigned i = 0; i < START_TRIES; i++) {
        redisContext *context = try_connect(server->port);
        int status;
        if (context) {
            redisFree(context);
            return 0;
        }
        if (waitpid(server->pid, &status, WNOHANG) == server->pid) {
            server->pid = 0;
            return report_failure(store, WIFEXITED(status) && WEXITSTATUS(status) == 127
                                             ? "there is no redis-server (Debian: apt install redis-server)"
                                             : "redis-server ended at once");
        }
        usleep(10000);
    }
    return report_failure(store, "redis-server does not answer");
}


static int redis_finish(bench_store *store) {
    redis_server *server = store->state;
    if (server && server->pid > 0) {
        kill(server->pid, SIGTERM);
        waitpid(server->pid, NULL, 0);
    }
    free(server);
    store->state = NULL;
    return 0;
}


static int redis_prepare(bench_store *store) {
    redis_server *server = calloc(1, sizeof(*server));
    store->state = server;
    if (!server || (server->port = pick_port()) < 0)
        return report_failure(store, "no port for a redis-server");
    fflush(NULL);
    server->pid = fork();
    if (server->pid == 0)
        become_server(server->port);
    int err = server->pid < 0 ? report_failure(store, "no process for a redis-server") : wait_for_server(store, server);
    if (err)
        redis_finish(store);
    return err;
}


static int redis_open(bench_store *store, bench_client *client) {
    redis_state *state = calloc(1, sizeof(*state));
    const redis_server *server = store->state;
    client->engine = &redis_engine;
    client->engine_state = state;
    if (!state || !(state->context = try_connect(server->port)))
        return report_failure(store, "no connection");
    return 0;
}


static int redis_measure(bench_store *store, bench_client *client, far_usage *usage) {
    redis_state *state = client->engine_state;
    redisReply *reply = redisCommand(state->context, "DBSIZE");
    bool counted = reply && reply->type == REDIS_REPLY_INTEGER;
    usage->keys = counted ? (uint64_t)reply->integer : 0;
    if (reply)
        freeReplyObject(reply);
    return counted ? 0 : report_failure(store, "DBSIZE failed");
}


static void redis_close(bench_store *store, bench_client *client) {
    redis_state *state = client->engine_state;
    (void)store;
    redisFree(state->context);
    free(state);
}


bool bench_store_of_redis(bench_store *store, const bench_config *config) {
    *store = (bench_store){.name = "redis",
                           .prepare = redis_prepare,
                           .open = redis_open,
                           .measure = redis_measure,
                           .close = redis_close,
                           .finish = redis_finish,
                           .config = config,
                           .in_flight = true,
                           .no_scans = true};
    return true;
}

#else

bool bench_store_of_redis(bench_store *store, const bench_config *config) {
    (void)store, (void)config;
    return false;
}

#endif
