/* Signals. A command that is interrupted, or whose output nobody reads any more (as with head), tidies up and takes its
 * leave of the pool before it dies of the signal; else its memory would have to be swept. The half of a dump is removed,
 * the index or the file of a benchmark too, what was read is loaded. A second signal ends it at once; the pool bears
 * that, as any death. */
#include "cli/cli.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATIENCE_S 3 /* for a command that may be waiting for another's lock */

static atomic_int caught;


static void note(int signal_number) {
    atomic_store_explicit(&caught, signal_number, memory_order_relaxed);
}


static void note_and_hurry(int signal_number) {
    note(signal_number);
    alarm(PATIENCE_S);
}


/* The process dies of the signal that came first. */
static void give_up(int signal_number) {
    (void)signal_number;
    int number = atomic_load_explicit(&caught, memory_order_relaxed);
    signal(number, SIG_DFL);
    raise(number);
}


/* Not one that is ignored, as under nohup. Calls that wait return: no SA_RESTART. */
static void catch_signal(int signal_number, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESETHAND}, before;
    if (sigaction(signal_number, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(signal_number, &action, NULL);
}


static void catch_all(void (*handler)(int)) {
    catch_signal(SIGINT, handler);
    catch_signal(SIGTERM, handler);
    catch_signal(SIGHUP, handler);
    catch_signal(SIGPIPE, handler);
}


void cli_catch_interrupts(void) {
    catch_all(note);
}


void cli_catch_briefly(void) {
    signal(SIGALRM, give_up);
    catch_all(note_and_hurry);
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


/* Whoever started the process sees that it ended by a signal, as if nobody had caught it. Whatever is printed must get there. */
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


/* Nothing else of ours lies in files. */
static void tell_of_a_cut(int signal_number) {
    static const char words[] = "farindex: the file of the pool was cut, or cannot be read\n";
    ssize_t told = write(STDERR_FILENO, words, strlen(words));
    (void)signal_number, (void)told;
    _exit(CLI_FAILED);
}


void cli_watch_for_cuts(void) {
    struct sigaction action = {.sa_handler = tell_of_a_cut};
    sigaction(SIGBUS, &action, NULL);
}
