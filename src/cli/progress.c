/* The progress of a command that takes long, on a terminal. */
#include "base/host.h"
#include "base/parse.h"
#include "base/sanitizer.h"
#include "cli/cli.h"
#include "task/session.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#define QUIET_NS  2000000000u /* what is over by then needs no words */
#define REDRAW_NS 100000000u
#define WATCH_NS  200000000u

static uint64_t begun, drawn; /* 0: not yet */
static bool line_is_there;

static struct watch {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool running, over;
    const char *what;
    const far_session *session;
    uint64_t bytes, read_before;
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


static void print_left(uint64_t passed, double done) {
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
    if (!begun)
        begun = now;
    bool every_step = quiet_time() == 0; /* somebody wants to see them all */
    if (now - begun < quiet_time() || (now - drawn < REDRAW_NS && !watch.over && !every_step))
        return;
    drawn = now;
    va_list args;
    fputs("\r\033[K", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    print_left(now - begun, done);
    fflush(stderr);
    line_is_there = true;
}


/* ---- A call that gives no sign ---- */

/* The session is another thread's: what is read here may be a little old, and a word is never torn. */
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


static void show_watched(void) {
    uint64_t read = bytes_read(watch.session) - watch.read_before;
    cli_progress(watch.bytes ? (double)read / (double)watch.bytes : -1, "%s: %.1f MB", watch.what, (double)read / 1e6);
}


/* The last line shows all of it. */
static void *be_watch(void *arg) {
    (void)arg;
    pthread_mutex_lock(&watch.lock);
    while (!watch.over) {
        struct timespec until;
        show_watched();
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += WATCH_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&watch.ended, &watch.lock, &until);
    }
    show_watched();
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
    watch.running = pthread_create(&watch.thread, NULL, be_watch, NULL) == 0;
}


void cli_progress_end(void) {
    if (watch.running) {
        pthread_mutex_lock(&watch.lock);
        watch.over = true;
        pthread_cond_signal(&watch.ended);
        pthread_mutex_unlock(&watch.lock);
        pthread_join(watch.thread, NULL);
        watch.running = watch.over = false;
        begun = 0;
    }
    if (line_is_there)
        fputs("\r\033[K", stderr);
    line_is_there = false;
}
