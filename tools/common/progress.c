/* The progress line of long commands on a terminal (cli_progress). For library calls that have no callback, a thread of
 * its own redraws the line from the counters of the session (cli_progress_watch). */
#include "base/host.h"
#include "base/parse.h"
#include "base/sanitizer.h"
#include "task/session.h"
#include "tools/common/cli.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#define QUIET_NS  2000000000u /* time before the line appears; a shorter command shows none */
#define REDRAW_NS 100000000u  /* shortest time between two redraws */
#define WATCH_NS  200000000u  /* time between two redraws by the thread of cli_progress_watch */

static uint64_t first_call, last_redraw; /* times of the first call and of the last redraw; 0 before them */
static bool line_is_shown;

static struct watch { /* the state of cli_progress_watch */
    pthread_t thread;
    pthread_mutex_t lock; /* protects `over` */
    pthread_cond_t ended; /* signalled when `over` is set */
    bool running;         /* the thread exists */
    bool over;            /* the call has returned, so the thread must end */
    const char *what;     /* text before the figure */
    const far_session *session;
    uint64_t bytes;       /* expected number of bytes, or 0 if it is unknown */
    uint64_t read_before; /* bytes that the session had read before the call */
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};


bool cli_progress_is_shown(void) {
    static int is_terminal = -1;
    if (is_terminal < 0)
        is_terminal = isatty(STDERR_FILENO);
    return is_terminal;
}


static uint64_t quiet_time(void) {
    static uint64_t time = UINT64_MAX;
    const char *text = getenv("FARINDEX_PROGRESS");
    if (time == UINT64_MAX && (!text || far_parse_duration(text, &time, NULL, 0) < 0))
        time = QUIET_NS;
    return time;
}


static void print_time(uint64_t ns) {
    uint64_t seconds = ns / 1000000000u;
    if (seconds < 60)
        fprintf(stderr, "%u s", (unsigned)seconds);
    else if (seconds < 3600)
        fprintf(stderr, "%u min %u s", (unsigned)(seconds / 60), (unsigned)(seconds % 60));
    else
        fprintf(stderr, "%u h %u min", (unsigned)(seconds / 3600), (unsigned)(seconds / 60 % 60));
}


static void print_time_left(uint64_t passed, double done) {
    if (done <= 0) {
        fputs(", ", stderr);
        print_time(passed);
        fputs(" so far", stderr);
        return;
    }
    if (done > 1)
        done = 1;
    fprintf(stderr, ", %u %%, ", (unsigned)(done * 100));
    print_time((uint64_t)((double)passed * (1 - done) / done));
    fputs(" left", stderr);
}


void cli_progress(double done, const char *format, ...) {
    if (!cli_progress_is_shown())
        return;
    uint64_t now = far_host_now(&far_host_threads);
    if (!first_call)
        first_call = now;
    bool every_step = quiet_time() == 0; /* FARINDEX_PROGRESS=0 asks for every step */
    if (now - first_call < quiet_time() || (now - last_redraw < REDRAW_NS && !watch.over && !every_step))
        return;
    last_redraw = now;
    va_list args;
    fputs("\r\033[K", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    print_time_left(now - first_call, done);
    fflush(stderr);
    line_is_shown = true;
}


/* ---- Progress of a library call without a callback ---- */

/* Sums the bytes that the session has read. The session belongs to another thread, so the values may be slightly out of
 * date; reading an aligned word is never torn. */
#if defined(__clang__) || FAR_TSAN
__attribute__((no_sanitize("thread")))
#endif
static uint64_t
bytes_read(const far_session *s) {
    uint64_t sum = 0;
    for (unsigned kind = 0; kind < FAR_STATS_KINDS; kind++)
        sum += *(const volatile uint64_t *)&s->stats[kind].bytes_read;
    return sum;
}


static void show_bytes_read(void) {
    uint64_t read = bytes_read(watch.session) - watch.read_before;
    cli_progress(watch.bytes ? (double)read / (double)watch.bytes : -1, "%s: %.1f MB", watch.what, (double)read / 1e6);
}


/* The thread redraws the line every WATCH_NS until cli_progress_end() sets `over`, and once more after that with the
 * final figure. */
static void *run_watch_thread(void *arg) {
    (void)arg;
    pthread_mutex_lock(&watch.lock);
    while (!watch.over) {
        struct timespec until;
        show_bytes_read();
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += WATCH_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&watch.ended, &watch.lock, &until);
    }
    show_bytes_read();
    pthread_mutex_unlock(&watch.lock);
    return NULL;
}


void cli_progress_watch(const char *what, const far_session *session, uint64_t bytes) {
    cli_progress_end();
    if (!cli_progress_is_shown())
        return;
    watch.what = what;
    watch.session = session;
    watch.bytes = bytes;
    watch.read_before = bytes_read(session);
    watch.over = false;
    watch.running = pthread_create(&watch.thread, NULL, run_watch_thread, NULL) == 0;
}


void cli_progress_end(void) {
    if (watch.running) {
        pthread_mutex_lock(&watch.lock);
        watch.over = true;
        pthread_cond_signal(&watch.ended);
        pthread_mutex_unlock(&watch.lock);
        pthread_join(watch.thread, NULL);
        watch.running = watch.over = false;
        first_call = 0;
    }
    if (line_is_shown)
        fputs("\r\033[K", stderr);
    line_is_shown = false;
}
