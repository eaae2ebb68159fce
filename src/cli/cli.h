/* The command `farindex`: one file per subcommand, and what they share. */
#ifndef FAR_CLI_CLI_H
#define FAR_CLI_CLI_H

#include "farindex.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Exit status. CLI_NOT_FOUND also when a check, a benchmark or a torture found something wrong. */
enum { CLI_DONE = 0, CLI_NOT_FOUND = 1, CLI_USAGE = 2, CLI_FAILED = 3 };

typedef struct cli_command {
    const char *name, *summary;
    int (*run)(int argc, char **argv); /* argv[0] is the subcommand */
} cli_command;

/* commands.c. Runs the one that argv[0] names, or helps; what it is to exit with. */
int cli_run(int argc, char **argv);
const char *cli_command_name(size_t position); /* NULL: beyond the last */

int cli_bench(int argc, char **argv);
int cli_check(int argc, char **argv);
int cli_copy(int argc, char **argv);
int cli_create(int argc, char **argv);
int cli_del(int argc, char **argv);
int cli_drop(int argc, char **argv);
int cli_dump(int argc, char **argv);
int cli_evict(int argc, char **argv);
int cli_get(int argc, char **argv);
int cli_kinds(int argc, char **argv);
int cli_list(int argc, char **argv);
int cli_load(int argc, char **argv);
int cli_plot(int argc, char **argv);
int cli_put(int argc, char **argv);
int cli_scan(int argc, char **argv);
int cli_selftest(int argc, char **argv);
int cli_serve(int argc, char **argv);
int cli_shell(int argc, char **argv);
int cli_stat(int argc, char **argv);
int cli_top(int argc, char **argv);
int cli_torture(int argc, char **argv);

/* One long option of a subcommand, and where its value goes. */
typedef enum {
    CLI_FLAG,
    CLI_TEXT,
    CLI_NUMBER,
    CLI_BYTES,
    CLI_SWITCH,
    CLI_RANGE,
    CLI_DECIMAL,
    CLI_RANGE_BYTES,
    CLI_COUNT,
    CLI_DURATION,
    CLI_TEXTS
} cli_option_type;

#define CLI_TEXTS_MAX 8
typedef struct cli_texts { /* of an option that may be given several times */
    const char *text[CLI_TEXTS_MAX];
    unsigned count;
} cli_texts;

typedef struct cli_option {
    const char *name;
    cli_option_type type;
    void *value;          /* bool, const char *, uint64_t, uint64_t, int, uint64_t[2], double, uint64_t[2] (sizes),
                             uint64_t (with K, M, G: thousands), uint64_t (ns), cli_texts */
    const char *argument; /* its name in --help; NULL for a flag */
    const char *help;
} cli_option;

/* Parses "--name value" and "--name=value"; the options end with a NULL name. Operands stay in argv (moved to its
 * front), their count goes to *operands (NULL: none are allowed). --help prints `usage`, the options and `notes`, and
 * sets *help: exit 0. Wrong usage: one line on stderr, returns CLI_USAGE. */
int cli_parse(int argc, char **argv, const char *usage, const cli_option *options, const char *notes, int *operands,
              bool *help);

/* As cli_parse, for one option by its name. CLI_USAGE: told; `from` names what it came from ("--sweep"). */
int cli_set_option(const char *command, const char *from, const cli_option *options, const char *name,
                   const char *value);
bool cli_has_option(const cli_option *options, const char *name);

int cli_wrong_usage(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
int cli_failed(const char *format, ...) __attribute__((format(printf, 1, 2)));
int cli_not_found(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cli_note(const char *format, ...) __attribute__((format(printf, 1, 2))); /* on stderr; no failure */

/* progress.c: a line that is rewritten on a terminal (stderr), nothing elsewhere. It appears after two seconds (the
 * environment variable FARINDEX_PROGRESS has another time), and tells the time left from what was done so far: a part
 * of all, 0..1; negative: nobody knows how much there is. By one thread. */
void cli_progress(double done, const char *format, ...) __attribute__((format(printf, 2, 3)));
void cli_progress_end(void);
bool cli_progress_is_shown(void); /* would be: stderr is a terminal */
/* The line of a call that gives no sign: it shows what the session has read, of about so many bytes (0: nobody knows).
 * Until cli_progress_end. */
void cli_progress_watch(const char *what, const far_session *session, uint64_t bytes);

/* From then on an interrupt only sets what cli_interrupted tells (the signal, or 0); a second one ends the process. */
void cli_catch_interrupts(void);
/* As cli_catch_interrupts, for a command that has nothing to tidy up but its pool. What the library is in the middle of cannot be cut
 * short: a command that does not end by itself within some seconds is ended. */
void cli_catch_briefly(void);
int cli_interrupted(void);
void cli_forget_interrupt(void); /* the shell: the command that it was meant for has ended */
bool cli_output_is_closed(void); /* no word of it: that is how pipes end */
int cli_end(int status);         /* what main returns; an interrupted command dies of its signal here */
void cli_watch_for_cuts(void);   /* SIGBUS, when the file of a pool was cut, becomes a message and CLI_FAILED */

/* JSON strings, escaped. */
void cli_json_string(FILE *file, const char *text);

#endif
