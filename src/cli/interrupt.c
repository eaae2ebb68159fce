/* Signals. An interrupt lets a command tidy up: the half of a dump is removed, the index or the file of a benchmark
 * too, what was read is loaded. A second one ends it at once; the pool bears that, as any death. When nobody reads the
 * output any more (as with head) the command takes its leave of the pool first, else its memory would have to be swept.
 */
#include "cli/cli.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int caught;


static void note(int signal_number) {
    atomic_store_explicit(&caught, signal_number, memory_order_relaxed);
}


/* Not one that is ignored, as under nohup. Calls that wait return: no SA_RESTART. */
static void catch_signal(int signal_number) {
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESETHAND}, before;
    if (sigaction(signal_number, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(signal_number, &action, NULL);
}


void cli_catch_interrupts(void) {
    catch_signal(SIGINT);
    catch_signal(SIGTERM);
    catch_signal(SIGHUP);
    catch_signal(SIGPIPE);
}


void cli_catch_closed_output(void) {
    catch_signal(SIGPIPE);
}


bool cli_output_is_closed(void) {
    return cli_interrupted() == SIGPIPE;
}


int cli_interrupted(void) {
    return atomic_load_explicit(&caught, memory_order_relaxed);
}


/* Who started us sees that it was a signal, as if nobody had caught it. Whatever is printed must get there. */
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
