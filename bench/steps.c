/* `farindex bench --micro` counts instructions by single steps (bench_steps_begin, bench_steps_end). Perf events need
 * counters of the processor and also count instructions of polling; single steps work in virtual machines too.
 *
 * A tracer process single-steps the thread. The thread raises a signal to mark where counting begins and ends; a
 * process that is not traced ignores that signal. */
#include "bench/network.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define MARK SIGURG /* ignored by default, so harmless without a tracer */

struct bench_steps {
    pid_t tracer;
    int counts; /* read end of a pipe, to which the tracer writes the counts */
};


/* The loop of the tracer. It ends with the traced process. */
static void trace_steps(pid_t traced, int counts) {
    uint64_t count = 0;
    bool counting = false;
    int status;
    while (waitpid(traced, &status, __WALL) == traced && WIFSTOPPED(status)) {
        int signal = WSTOPSIG(status);
        bool step = signal == SIGTRAP, mark = signal == MARK;
        if (step && counting)
            count++;
        if (mark && counting && write(counts, &count, sizeof(count)) != sizeof(count))
            break;
        if (mark) {
            counting = !counting;
            count = 0;
        }
        ptrace(counting ? PTRACE_SINGLESTEP : PTRACE_CONT, traced, NULL, (long)(step || mark ? 0 : signal));
    }
}


static void run_tracer(pid_t traced, int may_begin, int counts) {
    char byte;
    uint64_t ready = 1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (read(may_begin, &byte, 1) != 1 || ptrace(PTRACE_SEIZE, traced, NULL, NULL) < 0)
        _exit(1);
    if (write(counts, &ready, sizeof(ready)) == sizeof(ready))
        trace_steps(traced, counts);
    _exit(0);
}


bench_steps *bench_steps_open(void) {
    int begin[2] = {-1, -1}, counts[2] = {-1, -1};
    uint64_t ready = 0;
    pid_t traced = getpid(), tracer = pipe(begin) == 0 && pipe(counts) == 0 ? fork() : -1;
    bench_steps *steps = tracer < 0 ? NULL : malloc(sizeof(*steps));
    if (tracer == 0) {
        close(counts[0]);
        run_tracer(traced, begin[0], counts[1]);
    }
    close(begin[0]);
    close(counts[1]);
    if (steps) {
        *steps = (bench_steps){tracer, counts[0]};
        prctl(PR_SET_PTRACER, tracer); /* needed on systems that allow only ancestors to trace */
    }
    bool ok = steps && write(begin[1], "", 1) == 1 && read(counts[0], &ready, sizeof(ready)) == sizeof(ready);
    close(begin[1]);
    if (ok)
        return steps;
    bench_steps_close(steps);
    return NULL;
}


void bench_steps_begin(bench_steps *steps) {
    (void)steps;
    raise(MARK);
}


uint64_t bench_steps_end(bench_steps *steps) {
    uint64_t count = 0;
    raise(MARK);
    return read(steps->counts, &count, sizeof(count)) == sizeof(count) ? count : 0;
}


void bench_steps_close(bench_steps *steps) {
    if (!steps)
        return;
    kill(steps->tracer, SIGKILL); /* the traced process continues */
    waitpid(steps->tracer, NULL, 0);
    close(steps->counts);
    free(steps);
}
