/* The log of the daemon: a buffer, and a thread that writes it (log.h). */
#define _GNU_SOURCE
#include "fabric/node/log.h"
#include "base/error.h"
#include "base/host.h"
#include "base/text.h"
#include "farindex.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 640
#define CLOSE_SECONDS  1
#define NS_PER_LINE    (1000000000u / NET_LOG_PER_SECOND)

struct net_log {
    int descriptor;
    int stop; /* an eventfd that ends the thread while the descriptor accepts no data */
    net_log_level level;
    pthread_t thread;
    pthread_mutex_t lock;  /* protects all fields below */
    pthread_cond_t events; /* a line was appended, the buffer became empty, or the log is being closed */
    bool closing, finished;
    char bytes[NET_LOG_BYTES];
    size_t begin, used;           /* the lines that are not written yet: `used` bytes from `begin` on, in a ring */
    uint64_t dropped, unreported; /* number of dropped lines; those whose number was not written yet */
    /* For each level, the time in ns up to which its lines are paid for: each line adds NS_PER_LINE to this time. A
     * line is dropped if the time would be more than NET_LOG_BURST lines ahead of the clock. */
    uint64_t paid_until[NET_LOG_LEVELS];
};


/* ---- Appending lines ---- */

/* Returns true if there were not too many lines of this level recently, and counts the line. */
static bool is_within_rate(net_log *log, net_log_level level, uint64_t now) {
    uint64_t *paid = &log->paid_until[level];
    if (*paid < now)
        *paid = now;
    if (*paid + NS_PER_LINE > now + (uint64_t)NET_LOG_BURST * NS_PER_LINE)
        return false;
    *paid += NS_PER_LINE;
    return true;
}


static bool append_bytes(net_log *log, const char *line, size_t length) {
    if (NET_LOG_BYTES - log->used < length)
        return false;
    size_t at = (log->begin + log->used) % NET_LOG_BYTES,
           first = NET_LOG_BYTES - at < length ? NET_LOG_BYTES - at : length;
    memcpy(log->bytes + at, line, first);
    memcpy(log->bytes, line + first, length - first);
    log->used += length;
    return true;
}


/* Writes the time, the level and the text as one line. Returns its length. */
static size_t make_line(char line[LINE_MAX_BYTES], net_log_level level, const char *text) {
    static const char *const names[] = {"error", "warning", "info"};
    struct timespec now;
    struct tm parts;
    char seconds[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(seconds, sizeof(seconds), "%Y-%m-%dT%H:%M:%S", &parts);
    int length = snprintf(line, LINE_MAX_BYTES, "%s.%03ldZ farindex serve: %s: %s", seconds, now.tv_nsec / 1000000,
                          names[level], text);
    size_t end = length < LINE_MAX_BYTES - 1 ? (size_t)length : LINE_MAX_BYTES - 2;
    line[end] = '\n';
    return end + 1;
}


/* Appends the number of the lines that were dropped since the last such line. Returns false if there is no room. */
static bool append_unreported(net_log *log) {
    char text[64], line[LINE_MAX_BYTES];
    if (log->unreported == 0)
        return true;
    snprintf(text, sizeof(text), "%llu lines were dropped", (unsigned long long)log->unreported);
    if (!append_bytes(log, line, make_line(line, NET_LOG_WARNING, text)))
        return false;
    log->unreported = 0;
    return true;
}


void net_log_write(net_log *log, net_log_level level, const char *format, ...) {
    char text[512], line[LINE_MAX_BYTES];
    va_list args;
    if (!log || level > log->level)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    far_make_printable(text); /* a text of a client must not begin a new line, or control a terminal */
    size_t length = make_line(line, level, text);
    uint64_t now = far_host_now(&far_host_threads);
    pthread_mutex_lock(&log->lock);
    if (is_within_rate(log, level, now) && append_unreported(log) && append_bytes(log, line, length)) {
        pthread_cond_broadcast(&log->events);
    } else {
        log->dropped++;
        log->unreported++;
    }
    pthread_mutex_unlock(&log->lock);
}


uint64_t net_log_dropped(net_log *log) {
    if (!log)
        return 0;
    pthread_mutex_lock(&log->lock);
    uint64_t dropped = log->dropped;
    pthread_mutex_unlock(&log->lock);
    return dropped;
}


/* ---- The thread that writes ---- */

/* Waits until the descriptor accepts data, and writes to it. At most PIPE_BUF bytes are written, because a pipe that is
 * ready accepts as many without blocking. Returns the number of bytes that need not be written again, because they were
 * written, or are lost because the descriptor has failed; -1 if the thread must end. */
static ssize_t write_bytes(const net_log *log, const char *bytes, size_t count) {
    struct pollfd waits[] = {{.fd = log->descriptor, .events = POLLOUT}, {.fd = log->stop, .events = POLLIN}};
    if (poll(waits, 2, -1) < 0)
        return 0;
    if (waits[1].revents)
        return -1;
    ssize_t put = write(log->descriptor, bytes, count < PIPE_BUF ? count : PIPE_BUF);
    return put >= 0 ? put : errno == EINTR || errno == EAGAIN ? 0 : (ssize_t)count;
}


static void *write_lines(void *arg) {
    net_log *log = arg;
    ssize_t done = 0;
    pthread_mutex_lock(&log->lock);
    while (done >= 0 && (!log->closing || log->used > 0)) {
        if (log->used == 0) {
            pthread_cond_wait(&log->events, &log->lock);
            continue;
        }
        size_t begin = log->begin, count = log->used < NET_LOG_BYTES - begin ? log->used : NET_LOG_BYTES - begin;
        pthread_mutex_unlock(&log->lock); /* Other threads only append after these bytes. */
        done = write_bytes(log, log->bytes + begin, count);
        pthread_mutex_lock(&log->lock);
        log->begin = (begin + (done > 0 ? (size_t)done : 0)) % NET_LOG_BYTES;
        log->used -= done > 0 ? (size_t)done : 0;
    }
    log->finished = true;
    pthread_cond_broadcast(&log->events);
    pthread_mutex_unlock(&log->lock);
    return NULL;
}


/* ---- Opening and closing ---- */

static void free_log(net_log *log) {
    if (log->stop >= 0)
        close(log->stop);
    pthread_cond_destroy(&log->events);
    pthread_mutex_destroy(&log->lock);
    free(log);
}


int net_log_open(int descriptor, net_log_level level, net_log **opened) {
    net_log *log = calloc(1, sizeof(*log));
    pthread_condattr_t attributes;
    if (!log)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for the log");
    log->descriptor = descriptor;
    log->level = level;
    log->stop = eventfd(0, EFD_CLOEXEC);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&log->lock, NULL);
    pthread_cond_init(&log->events, &attributes);
    pthread_condattr_destroy(&attributes);
    if (log->stop < 0 || pthread_create(&log->thread, NULL, write_lines, log) != 0) {
        free_log(log);
        return far_fail(FAR_ERR_NO_MEMORY, "the thread of the log cannot be started");
    }
    *opened = log;
    return 0;
}


/* Waits until the thread has finished, but at most CLOSE_SECONDS. The caller holds the lock. */
static bool await_finish(net_log *log) {
    struct timespec until;
    int err = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += CLOSE_SECONDS;
    while (!log->finished && err == 0)
        err = pthread_cond_timedwait(&log->events, &log->lock, &until);
    return log->finished;
}


void net_log_close(net_log *log) {
    uint64_t one = 1;
    if (!log)
        return;
    pthread_mutex_lock(&log->lock);
    append_unreported(log);
    log->closing = true;
    pthread_cond_broadcast(&log->events);
    bool finished = await_finish(log);
    if (!finished && write(log->stop, &one, sizeof(one)) == sizeof(one))
        finished = await_finish(log);
    pthread_mutex_unlock(&log->lock);
    if (finished) {
        pthread_join(log->thread, NULL);
        free_log(log);
    } else {
        /* If the thread has not finished, its write to the log itself blocks, because another process has filled the
         * pipe after the poll, or a file system hangs. The thread still uses the log, so the log is not freed; the
         * process is about to end. */
        pthread_detach(log->thread);
    }
}
