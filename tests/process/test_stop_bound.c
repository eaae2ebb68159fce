/* Measures, with real processes and a real clock, how long a stopped client holds up the calls of live clients. Four
 * processes with two sessions each, and a fifth process, change a few keys all the time. The fifth process is stopped
 * (SIGSTOP) for two and a half times the bound (far_stall_bound), again and again at random moments, in most cases in
 * the middle of an operation. Prints the longest call of the four processes for each kind and pool. Fails if a call
 * takes longer than 1.1 times the bound.
 *
 * test_stop_bound [KIND [POOL [STOPS]]]: POOL is shm, tcp (three daemons on this host), or tcp-1ms (the same with a
 * relay that delays all data, so that a round trip takes 1 ms). `make stop-bound` runs all kinds and pools. Because the
 * result depends on the clock, `make test` does not run this program; tests/index/test_bounded_wait.c and
 * tests/pool/epoch/test_bounded_waits.c prove the same in virtual time. */
#define _GNU_SOURCE /* ppoll */
#include "conform.h"
#include "daemons.h"
#include "test.h"

#include "base/random.h"
#include "pool/handle.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORKERS  4
#define SESSIONS 2
#define KEYS     6
#define NODES    3
#define PAIRS    32
#define DELAY_NS 480000 /* of a relay in each direction; with the round trip of the loopback interface that is 1 ms */

typedef struct board { /* shared by all processes */
    _Atomic uint64_t longest, calls, refused;
    _Atomic int longest_result, longest_kind;
    atomic_bool end, measuring;
} board;

static board *shared;
static const char *only_kind, *only_pool;
static unsigned stops = 3;
static char path[64], uri[256], daemons_uri[256];


static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}


/* ---- A relay that delays all data ---- */

typedef struct piece { /* data that the relay has received and not yet sent */
    struct piece *next;
    uint64_t due;
    size_t length;
    char data[];
} piece;

typedef struct relay_end {
    piece *first, *last; /* data for this end */
} relay_end;

typedef struct relay {
    struct pollfd polled[1 + 2 * PAIRS]; /* the listener, then pairs of connected sockets */
    relay_end ends[1 + 2 * PAIRS];
    unsigned count, port;
} relay;

static pid_t relays[NODES];


static int dial(unsigned port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    return connect(one, (struct sockaddr *)&to, sizeof(to)) == 0 ? one : -1;
}


static unsigned other_end(unsigned at) {
    return at % 2 ? at + 1 : at - 1;
}


static void close_pair(relay *r, unsigned at) {
    unsigned pair[2] = {at, other_end(at)};
    for (unsigned i = 0; i < 2; i++) {
        close(r->polled[pair[i]].fd);
        r->polled[pair[i]].fd = -1; /* poll ignores this entry; accept_pair uses it again */
        for (piece *p; (p = r->ends[pair[i]].first);) {
            r->ends[pair[i]].first = p->next;
            free(p);
        }
    }
}


static void accept_pair(relay *r) {
    int on = 1, sockets[2] = {accept(r->polled[0].fd, NULL, NULL), dial(r->port)};
    unsigned at = 1;
    while (at < r->count && r->polled[at].fd >= 0)
        at += 2;
    if (sockets[0] < 0 || sockets[1] < 0 || at >= 1 + 2 * PAIRS)
        _exit(1);
    r->count = at + 2 > r->count ? at + 2 : r->count;
    for (unsigned i = 0; i < 2; i++) {
        setsockopt(sockets[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        r->polled[at + i] = (struct pollfd){.fd = sockets[i], .events = POLLIN};
        r->ends[at + i] = (relay_end){NULL, NULL};
    }
}


/* Receives data from one end, and queues it for the other end. */
static void receive_piece(relay *r, unsigned at) {
    piece *p = malloc(sizeof(*p) + 65536);
    ssize_t got = recv(r->polled[at].fd, p->data, 65536, 0);
    relay_end *to = &r->ends[other_end(at)];
    if (got <= 0) {
        free(p);
        close_pair(r, at);
        return;
    }
    p->next = NULL;
    p->due = now_ns() + DELAY_NS;
    p->length = (size_t)got;
    *(to->first ? &to->last->next : &to->first) = p;
    to->last = p;
}


/* Sends all data that is due. Returns the time at which other data is due. */
static uint64_t send_due_pieces(relay *r) {
    uint64_t next = UINT64_MAX, now = now_ns();
    for (unsigned at = 1; at < r->count; at++) {
        piece *p;
        while (r->polled[at].fd >= 0 && (p = r->ends[at].first) && p->due <= now) {
            size_t sent = 0;
            while (sent < p->length) {
                ssize_t some = send(r->polled[at].fd, p->data + sent, p->length - sent, MSG_NOSIGNAL);
                if (some <= 0)
                    break;
                sent += (size_t)some;
            }
            r->ends[at].first = p->next;
            free(p);
        }
        if (r->polled[at].fd >= 0 && r->ends[at].first && r->ends[at].first->due < next)
            next = r->ends[at].first->due;
    }
    return next;
}


static void be_relay(relay *r) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_TIMERSLACK, 1000);
    for (;;) {
        uint64_t next = send_due_pieces(r), now = now_ns(), pause = next <= now ? 0 : next - now;
        struct timespec timeout = {.tv_sec = 0, .tv_nsec = pause < 50000000 ? (long)pause : 50000000};
        int ready = ppoll(r->polled, r->count, &timeout, NULL);
        for (unsigned at = 1; ready > 0 && at < r->count; at++)
            if (r->polled[at].fd >= 0 && r->polled[at].revents)
                receive_piece(r, at);
        if (ready > 0 && r->polled[0].revents)
            accept_pair(r);
    }
}


/* Starts a relay to the port. Returns the port of the relay. */
static unsigned start_relay(unsigned number, unsigned port) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(here);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&here, sizeof(here)), 0);
    assert_int_equal(listen(listener, 16), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&here, &length), 0);
    fflush(NULL);
    if ((relays[number] = fork()) == 0) {
        relay *r = calloc(1, sizeof(*r));
        r->count = 1;
        r->port = port;
        r->polled[0] = (struct pollfd){.fd = listener, .events = POLLIN};
        be_relay(r);
    }
    close(listener);
    return ntohs(here.sin_port);
}


/* Starts a relay for each daemon, and replaces the ports in the URI by theirs. */
static void start_relays(void) {
    unsigned number = 0;
    char *to = uri;
    for (const char *from = daemons_uri; *from;) {
        char *end;
        *to++ = *from++;
        if (to[-1] != ':' || *from < '0' || *from > '9')
            continue;
        to += sprintf(to, "%u", start_relay(number++, (unsigned)strtoul(from, &end, 10)));
        from = end;
    }
    *to = '\0';
}


/* ---- The processes ---- */

static void exit_unless_ok(int err, const char *operation) {
    if (err >= 0)
        return;
    fprintf(stderr, "%s: %s: %s\n", operation, far_strerror(err), far_last_error());
    _exit(1);
}


/* Without new epochs, retired memory cannot be reused, so the memory of the pool may be exhausted. */
static bool is_refusal(int result) {
    return result == FAR_ERR_BUSY || result == FAR_ERR_NO_MEMORY;
}


static void record_call(uint64_t took, int kind, int result) {
    uint64_t longest = atomic_load(&shared->longest);
    if (!atomic_load(&shared->measuring))
        return;
    atomic_fetch_add(&shared->calls, 1);
    atomic_fetch_add(&shared->refused, is_refusal(result));
    while (took > longest && !atomic_compare_exchange_weak(&shared->longest, &longest, took))
        ;
    if (took > longest) {
        atomic_store(&shared->longest_kind, kind);
        atomic_store(&shared->longest_result, result);
    }
}


typedef struct worker {
    far_session *session;
    far_index *index;
    uint64_t seed;
    bool recorded;
} worker;

static void *run_calls(void *arg) {
    worker *w = arg;
    far_random random;
    char value[64] = "", key[16];
    size_t length;
    far_random_seed(&random, w->seed);
    while (!atomic_load(&shared->end)) {
        int kind = (int)far_random_below(&random, 5), err;
        snprintf(key, sizeof(key), "key %04u", (unsigned)far_random_below(&random, KEYS));
        uint64_t began = now_ns();
        if (kind < 2)
            err = far_put(w->session, w->index, key, 8, value, 1 + far_random_below(&random, sizeof(value)));
        else if (kind == 2)
            err = far_delete(w->session, w->index, key, 8);
        else if (kind == 3)
            err = far_insert(w->session, w->index, key, 8, value, 8);
        else
            err = far_get(w->session, w->index, key, 8, value, sizeof(value), &length);
        if (err < 0 && !is_refusal(err) && err != FAR_ERR_NOT_FOUND && err != FAR_ERR_EXISTS)
            exit_unless_ok(err, "a call");
        if (w->recorded)
            record_call(now_ns() - began, kind, err);
    }
    return NULL;
}


static void run_process(uint64_t seed, bool recorded) {
    rig r = {0};
    pthread_t threads[SESSIONS];
    worker workers[SESSIONS];
    exit_unless_ok(far_pool_open(uri, NULL, &r.pool), "open");
    for (unsigned i = 0; i < SESSIONS; i++) {
        exit_unless_ok(far_session_open(r.pool, &workers[i].session), "session");
        if (i == 0)
            exit_unless_ok(far_index_open(workers[0].session, "i", &r.index), "index");
        workers[i].index = r.index;
        workers[i].seed = seed + i;
        workers[i].recorded = recorded;
    }
    for (unsigned i = 0; i < SESSIONS; i++)
        pthread_create(&threads[i], NULL, run_calls, &workers[i]);
    for (unsigned i = 0; i < SESSIONS; i++)
        pthread_join(threads[i], NULL);
    far_index_close(r.index);
    for (unsigned i = 0; i < SESSIONS; i++)
        far_session_close(workers[i].session);
    far_pool_close(r.pool);
    _exit(0);
}


static pid_t start_process(uint64_t seed, bool recorded) {
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run_process(seed, recorded);
    }
    return pid;
}


/* ---- The measurement ---- */

typedef struct trial {
    const char *kind, *pool;
} trial;


static void sleep_ns(uint64_t ns) {
    nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)}, NULL);
}


static void start_pool(const char *pool) {
    if (strcmp(pool, "shm") == 0) {
        snprintf(uri, sizeof(uri), "shm:%s?size=256M", path);
        return;
    }
    daemons_start(NODES, "128M", "", daemons_uri, sizeof(daemons_uri));
    if (strcmp(pool, "tcp-1ms") == 0)
        start_relays();
    else
        strcpy(uri, daemons_uri);
}


TEST_FIXTURE(remove_pool) {
    for (unsigned i = 0; i < NODES; i++)
        if (relays[i]) {
            kill(relays[i], SIGKILL);
            waitpid(relays[i], NULL, 0);
            relays[i] = 0;
        }
    if (daemons_uri[0])
        daemons_end(daemons_uri);
    daemons_uri[0] = '\0';
    unlink(path);
    return 0;
}


TEST_FUNCTION(a_stopped_client_holds_up_no_call_longer_than_the_bound) {
    const trial *of = *state;
    const char *seed = getenv("FARINDEX_SEED");
    rig r = {0};
    pid_t pids[WORKERS + 1];
    far_random random;
    int status, problems = 0;
    far_random_seed(&random, seed ? strtoull(seed, NULL, 10) : 1);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    start_pool(of->pool);
    assert_ok(far_pool_open(uri, NULL, &r.pool));
    assert_ok(far_session_open(r.pool, &r.session));
    assert_ok(far_index_create(r.session, "i", of->kind, NULL, &r.index));
    const uint64_t bound = far_stall_bound(r.pool->fabric), round_trip = r.pool->fabric->rtt;
    far_index_close(r.index);
    far_session_close(r.session);
    far_pool_close(r.pool);
    for (unsigned i = 0; i <= WORKERS; i++)
        pids[i] = start_process(far_random_next(&random), i < WORKERS);
    sleep(1);
    atomic_store(&shared->measuring, true);
    for (unsigned i = 0; i < stops; i++) {
        sleep_ns(500000000 + far_random_below(&random, 500000000));
        assert_int_equal(kill(pids[WORKERS], SIGSTOP), 0);
        sleep_ns(bound * 5 / 2);
        assert_int_equal(kill(pids[WORKERS], SIGCONT), 0);
    }
    sleep(1);
    atomic_store(&shared->end, true);
    for (unsigned i = 0; i <= WORKERS; i++) {
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    double longest = (double)atomic_load(&shared->longest) / (double)bound;
    print_message("    %s, %s, round trip %.0f us: the longest call took %.1f s, %.2f of the bound (call %d returned "
                  "%d); %llu of %llu calls were refused\n",
                  of->kind, of->pool, (double)round_trip / 1e3, longest * (double)bound / 1e9, longest,
                  atomic_load(&shared->longest_kind), atomic_load(&shared->longest_result),
                  (unsigned long long)atomic_load(&shared->refused), (unsigned long long)atomic_load(&shared->calls));
    assert_ok(far_pool_open(uri, NULL, &r.pool));
    assert_ok(far_session_open(r.pool, &r.session));
    assert_ok(far_pool_check(r.session, 0, count_problem, &problems));
    far_session_close(r.session);
    far_pool_close(r.pool);
    munmap(shared, sizeof(*shared));
    assert_int_equal(problems, 0);
    assert_true(longest <= 1.1);
}


TEST_ARGUMENTS(argc, argv) {
    only_kind = argc > 1 ? argv[1] : NULL;
    only_pool = argc > 2 ? argv[2] : NULL;
    stops = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : stops;
    snprintf(path, sizeof(path), "/dev/shm/farindex-stop-bound-%d", (int)getpid());
    return TEST_CONTINUE;
}


TEST_GENERATOR(add_trials) {
    static const char *pools[] = {"shm", "tcp", "tcp-1ms"};
    static trial trials[CONFORM_KINDS * COUNT_OF(pools)];
    const char *kinds[CONFORM_KINDS];
    char name[64];
    size_t count = conform_kinds(kinds), used = 0;
    for (size_t i = 0; i < count * COUNT_OF(pools); i++) {
        trial of = {kinds[i / COUNT_OF(pools)], pools[i % COUNT_OF(pools)]};
        if ((only_kind ? strcmp(of.kind, only_kind) : strcmp(of.kind, "toy") == 0) ||
            (only_pool && strcmp(of.pool, only_pool) != 0))
            continue;
        trials[used] = of;
        snprintf(name, sizeof(name), "%s %s", of.kind, of.pool);
        test_add(name, a_stopped_client_holds_up_no_call_longer_than_the_bound, NULL, remove_pool, &trials[used++]);
    }
}
