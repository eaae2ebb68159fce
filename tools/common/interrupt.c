/* Signals of the programs. An interrupted command cleans up and closes its pool before the process ends by the signal,
 * because otherwise a collection must reclaim the memory of the failed client. SIGPIPE is handled the same way; it
 * arrives when the reader of the output has closed the pipe, as `head` does.
 *
 * Cleaning up means: `dump` removes its unfinished file, `bench` removes its index or pool file, and `load` loads the
 * pairs that it has read. A second signal ends the process at once. The pool survives that, because it survives every
 * client failure. */
#include "tools/common/cli.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* seconds that an interrupted command gets to finish; it may be waiting for another client's lock */
#define GRACE_SECONDS 3

static atomic_int caught;


static void record_signal(int signal_number) {
    atomic_store_explicit(&caught, signal_number, memory_order_relaxed);
}


static void record_signal_and_set_alarm(int signal_number) {
    record_signal(signal_number);
    alarm(GRACE_SECONDS);
}


/* Handler of SIGALRM: ends the process by the first signal that it caught. */
static void end_by_first_signal(int signal_number) {
    (void)signal_number;
    int number = atomic_load_explicit(&caught, memory_order_relaxed);
    signal(number, SIG_DFL);
    raise(number);
}


/* Installs a handler unless the signal is ignored, as SIGHUP is under nohup. Without SA_RESTART, blocking system calls
 * return when the signal arrives. */
static void catch_signal(int signal_number, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESETHAND}, before;
    if (sigaction(signal_number, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(signal_number, &action, NULL);
}


static void catch_all_signals(void (*handler)(int)) {
    catch_signal(SIGINT, handler);
    catch_signal(SIGTERM, handler);
    catch_signal(SIGHUP, handler);
    catch_signal(SIGPIPE, handler);
}


void cli_catch_interrupts(void) {
    catch_all_signals(record_signal);
}


void cli_catch_briefly(void) {
    signal(SIGALRM, end_by_first_signal);
    catch_all_signals(record_signal_and_set_alarm);
}


void cli_forget_interrupt(void) {
    alarm(0);
    atomic_store_explicit(&caught, 0, memory_order_relaxed);
}


bool cli_output_is_closed(void) {
    return cli_interrupted() == SIGPIPE;
}


int cli_interrupted(void) {
    return atomic_load_explicit(&caught, memory_order_relaxed);
}


/* If a signal was caught, the process ends here by that signal, so that a parent process observes the same as without a
 * handler. Output that is still buffered is written first, and a failure to write it becomes the exit status. */
int cli_end(int status) {
    bool written = fflush(stdout) == 0 && !ferror(stdout);
    int number = cli_interrupted();
    if (number) {
        fflush(NULL);
        signal(number, SIG_DFL);
        raise(number);
    }
    return written || status ? status : cli_failed("the output could not be written");
}


/* Handler of SIGBUS. Only pool files are mapped into memory, so the faulting access was to a pool. */
static void report_truncation(int signal_number) {
    static const char words[] = "farindex: the file of the pool was truncated, or cannot be read\n";
    ssize_t result = write(STDERR_FILENO, words, strlen(words));
    (void)signal_number, (void)result;
    _exit(CLI_FAILED);
}


void cli_handle_file_signals(void) {
    struct sigaction action = {.sa_handler = report_truncation};
    sigaction(SIGBUS, &action, NULL);
    signal(SIGXFSZ, SIG_IGN);
}
