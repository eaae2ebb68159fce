/* Code that the programs `farindex` and `farindex-bench` share: parsing of options, error messages, the progress line,
 * signals, and opening a pool.
 *
 * Every program calls cli_handle_file_signals() first, parses its arguments with cli_parse(), reports each failure
 * with one of cli_wrong_usage(), cli_failed() and cli_not_found(), and returns cli_end(status) from main. */
#ifndef FAR_TOOLS_COMMON_CLI_H
#define FAR_TOOLS_COMMON_CLI_H

#include "farindex.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Exit statuses. CLI_NOT_FOUND also means that a check, a benchmark or a torture run found an error. CLI_CONFLICT means
 * that another client prevents the operation: it uses the index, or is stopped in the middle of an operation.
 * CLI_SALVAGED means that a salvage has kept all pairs that it could read, but not all pairs of the index. */
enum {
    CLI_DONE = 0,
    CLI_NOT_FOUND = 1,
    CLI_USAGE = 2,
    CLI_FAILED = 3,
    CLI_EXISTS = 4,
    CLI_CONFLICT = 5,
    CLI_SALVAGED = 6
};

/* ---- Options ---- */

/* The type of a long option. It decides how the text of the value is parsed and which C type receives the value. */
typedef enum {
    CLI_FLAG,        /* bool: the option has no value and sets true */
    CLI_TEXT,        /* const char *: the text itself */
    CLI_NUMBER,      /* uint64_t: a decimal number */
    CLI_BYTES,       /* uint64_t: a size such as 64M, in bytes */
    CLI_SWITCH,      /* int: "on" or "off" */
    CLI_RANGE,       /* uint64_t[2]: "A..B", or one number, which is both ends */
    CLI_DECIMAL,     /* double: a decimal fraction */
    CLI_RANGE_BYTES, /* uint64_t[2]: a range of sizes, in bytes */
    CLI_COUNT,       /* uint64_t: a number with an optional suffix K, M or G, which are powers of 1000 */
    CLI_DURATION,    /* uint64_t: a time such as 5ms, in nanoseconds */
    CLI_TEXTS        /* cli_texts: the option may be given several times */
} cli_option_type;

#define CLI_TEXTS_MAX 8
typedef struct cli_texts { /* the values of an option of the type CLI_TEXTS, in the order of the arguments */
    const char *text[CLI_TEXTS_MAX];
    unsigned count;
} cli_texts;

typedef struct cli_option {
    const char *name;
    cli_option_type type;
    void *value;          /* receives the value; points to the C type that belongs to `type` */
    const char *argument; /* name of the value in --help; NULL for a flag */
    const char *help;
} cli_option;

/* Parses the options "--name value" and "--name=value" of a subcommand (argv[0]); the array of options ends with a NULL
 * name. Operands are moved to the front of argv, and *operands is set to their number. If `operands` is NULL, an
 * operand is an error. The option --help prints `usage`, the options and `notes`, and sets *help; the caller then exits
 * with status 0. Returns 0, or CLI_USAGE after a message about the first error. */
int cli_parse(int argc, char **argv, const char *usage, const cli_option *options, const char *notes, int *operands,
              bool *help);

/* Sets one option to a value, as cli_parse() does. `from` names the origin of the value in messages, for example
 * "--sweep". Returns 0, or CLI_USAGE after a message. */
int cli_set_option(const char *command, const char *from, const cli_option *options, const char *name,
                   const char *value);
bool cli_has_option(const cli_option *options, const char *name);

/* ---- Messages ---- */

/* Each prints one message on stderr and returns its exit status: CLI_USAGE, CLI_FAILED, CLI_NOT_FOUND, CLI_EXISTS or
 * CLI_CONFLICT. */
int cli_wrong_usage(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
int cli_failed(const char *format, ...) __attribute__((format(printf, 1, 2)));
int cli_not_found(const char *format, ...) __attribute__((format(printf, 1, 2)));
int cli_exists(const char *format, ...) __attribute__((format(printf, 1, 2)));
int cli_conflict(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints a remark on stderr, which does not count as a failure. */
void cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The names that a word is compared with: returns the i-th name, or NULL after the last one. */
typedef const char *cli_name_at(const void *ctx, size_t i);
#define CLI_HINT 64
/* Returns the name that is most similar to a mistyped word, or NULL if none is similar. */
const char *cli_closest(const char *word, cli_name_at *name_at, const void *ctx);
/* Writes "; did you mean 'NAME'?" to `hint`, or "" if no name is similar. Returns `hint`. */
const char *cli_suggest(const char *word, cli_name_at *name_at, const void *ctx, char hint[CLI_HINT]);

/* The same for kinds of indexes and for the options of a kind. cli_list_kinds writes the names of all kinds, separated by
 * commas. */
const char *cli_suggest_kind(const char *word, char hint[CLI_HINT]);
const char *cli_suggest_index_option(const char *kind_name, const char *word, char hint[CLI_HINT]);
#define CLI_KINDS 128
const char *cli_list_kinds(char list[CLI_KINDS]);

/* ---- Progress ---- */

/* Shows a progress line on stderr if that is a terminal, and does nothing otherwise. The line appears two seconds after
 * the first call (the environment variable FARINDEX_PROGRESS sets another duration), and each call rewrites it. `done`
 * is the completed fraction of the work, from 0 to 1, from which the remaining time is computed; a negative value means
 * that the total is unknown. Only one thread may call these functions. */
void cli_progress(double done, const char *format, ...) __attribute__((format(printf, 2, 3)));
void cli_progress_end(void);      /* removes the line, and ends cli_progress_watch */
bool cli_progress_is_shown(void); /* true if stderr is a terminal, so that progress lines can appear */
/* Shows progress during one long library call without a callback. Until cli_progress_end() is called, a thread rewrites
 * the line with the number of bytes that the session has read so far. `bytes` is the expected total, or 0 if it is
 * unknown. */
void cli_progress_watch(const char *what, const far_session *session, uint64_t bytes);

/* ---- Signals ---- */

/* After this call the first interrupt only sets the value that cli_interrupted() returns: the number of the signal, or
 * 0 before any. A second interrupt ends the process. */
void cli_catch_interrupts(void);
/* Catches interrupts like cli_catch_interrupts, for a command that needs no cleaning up except closing its pool. A
 * running library call cannot be cancelled, so the process is ended if the command does not finish within some seconds
 * after the signal. */
void cli_catch_briefly(void);
int cli_interrupted(void);
void cli_forget_interrupt(void); /* called by the shell when the interrupted command has ended */
bool cli_output_is_closed(void); /* true after SIGPIPE: the reader of a pipe has closed it, which needs no message */
/* Returns the exit status for main. If the command was interrupted, the process ends here by that signal instead. */
int cli_end(int status);
/* Turns SIGBUS, which an access beyond the end of a truncated pool file causes, into a message and CLI_FAILED. Ignores
 * SIGXFSZ, so that a write beyond the limit of a file's size (ulimit -f) fails with an error. */
void cli_handle_file_signals(void);

/* ---- Pools ---- */

/* True if the URI names a pool in the memory of this process. Such a pool ends with the process. */
bool cli_pool_ends_with_process(const char *uri);
/* Opens a pool. If the pool does not exist and `creates` is true, the pool is created; a note reports that if `reports`
 * is true. Only commands that create pools set `creates`, because with any other command a mistyped URI would create an
 * unwanted pool. */
int cli_pool_open_or_create(const char *uri, far_pool_options *options, bool creates, bool reports, far_pool **pool);

#endif
