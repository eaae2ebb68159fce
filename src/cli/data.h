/* The commands on a pool that outlives the process, inside: opening it (pool.c), keys and values as text (format.c),
 * pairs one by one (data.c), many of them (dump.c, load.c, copy.c; header.c), indexes and clients (manage.c, stat.c,
 * top.c), many commands (shell.c). */
#ifndef FAR_CLI_DATA_H
#define FAR_CLI_DATA_H

#include "cli/cli.h"

#include <stddef.h>

/* ---- The pool ---- */

typedef struct cli_pool {
    const char *uri; /* --pool, or FARINDEX_POOL */
    uint64_t cache;
    bool json;
    bool makes;          /* a pool that is not there is made */
    bool ignore_refuted; /* as far_pool_options.ignore_refuted */
    bool restores;       /* a superblock of which a word is damaged is written anew */
    far_pool *pool;
    far_session *session;
    far_index *index;
} cli_pool;

/* clang-format off */
#define CLI_POOL_OPTIONS(p)                                                                                    \
    {"pool", CLI_TEXT, &(p)->uri, "URI", "the pool (default: the environment variable FARINDEX_POOL)"},        \
    {"cache", CLI_BYTES, &(p)->cache, "SIZE", "cache of this process (default: 64M)"},                         \
    {"json", CLI_FLAG, &(p)->json, NULL, "the result as JSON"}
#define CLI_OPTIONS_END {NULL, CLI_FLAG, NULL, NULL, NULL}
/* clang-format on */

/* Opens the pool, a session, and the index if a name is given. 0, or what to exit with (told). */
int cli_pool_open(const char *command, cli_pool *p, const char *index);
bool cli_pool_ends_with_process(const char *uri);
int cli_pool_open_or_make(const char *uri, far_pool_options *options, bool makes, bool tells, far_pool **pool);
int cli_pool_close(cli_pool *p, int status); /* flushes stdout; returns status, or CLI_FAILED if that failed */
/* Progress, until cli_progress_end: the session goes over all that is used so many times. */
void cli_pool_watch(cli_pool *p, const char *what, unsigned times);
/* Progress over the pairs of the open index, of which there are about cli_pool_keys (0: it is not shown). */
uint64_t cli_pool_keys(cli_pool *p);
void cli_pairs_progress(const char *what, uint64_t pairs, uint64_t keys);
int cli_pool_failed(void); /* tells far_last_error; CLI_FAILED */

/* The shell: from then on commands that name no other pool use this one. kept: opened again if it was lost. */
int cli_pool_keep(const cli_pool *p);
const cli_pool *cli_pool_kept(void);
void cli_pool_let_go(void);

/* Parses; the count of operands must be within min..max. 0; else exit with *status. */
int cli_operands(int argc, char **argv, const char *usage, const cli_option *options, const char *notes, int min,
                 int max, int *count, int *status);

/* What to call the process of a client: its command and its host, "?" if they are not known. */
struct far_surveyed_handle;
void cli_handle_names(const struct far_surveyed_handle *handle, char command[64], char host[64]);

/* ---- Bytes as text ---- */

typedef struct cli_bytes { /* grows */
    uint8_t *bytes;
    size_t length, room;
} cli_bytes;

void cli_bytes_add(cli_bytes *to, const void *bytes, size_t count); /* ends the process when there is no memory */
void cli_bytes_free(cli_bytes *bytes);

const char *cli_parse_hex(const char *text, size_t length, cli_bytes *to); /* NULL, or what is wrong */
void cli_print_hex(FILE *file, const void *bytes, size_t count);
void cli_print_escaped(FILE *file, const void *bytes, size_t count); /* as in a line: \t, \n, \\ and \xHH */

/* Members of a JSON object: "name":"text" where the bytes are UTF-8, else "name":"AAE=","name_encoding":"base64". */
void cli_json_bytes(FILE *file, const char *name, const void *bytes, size_t count);

/* A line (without its newline) is key TAB value, escaped. NULL, or what is wrong. */
const char *cli_parse_line(const char *line, size_t length, cli_bytes *key, cli_bytes *value);
void cli_print_line(FILE *file, const void *key, size_t key_len, const void *value, size_t value_len);

/* The binary format: u32 klen, u32 vlen (little-endian), key, value. 1: a pair; 0: the end; 2: a header, which is the
 * value; -1: *wrong says what is wrong. */
#define CLI_PAIR_MAX (1u << 20) /* more in a key or value cannot be meant */
int cli_read_binary(FILE *file, cli_bytes *key, cli_bytes *value, const char **wrong);
void cli_print_binary(FILE *file, const void *key, size_t key_len, const void *value, size_t value_len);

typedef enum { CLI_LINES, CLI_BINARY } cli_format;
/* clang-format off */
#define CLI_FORMAT_OPTION(format)                                                                              \
    {"format", CLI_TEXT, &(format), "lines|binary", "how pairs are written (default: lines)"}
/* clang-format on */
#define CLI_FORMATS_NOTE                                                                                               \
    "lines: key TAB value, with \\t, \\n, \\\\ and \\xHH escapes. binary: u32 klen, u32 vlen (little-endian), key, "   \
    "value.\n"
typedef struct cli_header { /* of the pairs of an index in a dump */
    char name[FAR_NAME_MAX + 1], kind[16], options[512];
} cli_header;

void cli_header_print(FILE *file, cli_format format, const cli_header *header);
const char *cli_header_parse(const char *text, size_t length,
                             cli_header *header);        /* lines of it; NULL, or what is wrong */
bool cli_header_begins(const char *text, size_t length); /* with the first line of one */

/* The names of all indexes, as far_index_list gives them. 0, or CLI_FAILED (told). */
typedef struct cli_names {
    char (*names)[FAR_NAME_MAX + 1];
    size_t count;
} cli_names;
int cli_list_names(cli_pool *p, cli_names *list); /* its names are freed by the caller */

int cli_parse_format(const char *command, const char *text, cli_format *format); /* 0, or CLI_USAGE (told) */

#endif
