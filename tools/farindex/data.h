/* Declarations that the subcommands on a pool share: opening the pool (pool.c), keys and values as text (format.c), and
 * the header of a dump (header.c). Such a pool outlives the process, because every subcommand is a process of its own.
 */
#ifndef FAR_TOOLS_FARINDEX_DATA_H
#define FAR_TOOLS_FARINDEX_DATA_H

#include "tools/farindex/commands.h"

#include <stddef.h>

/* ---- The pool ---- */

typedef struct cli_pool {
    const char *uri; /* value of --pool or of the environment variable FARINDEX_POOL */
    uint64_t cache;
    bool json;
    bool creates;        /* a pool that does not exist is created */
    bool ignore_refuted; /* value for far_pool_options.ignore_refuted */
    bool repairs;        /* a superblock with one damaged word is repaired if that is possible */
    bool salvages;       /* a private copy of the pool is opened (far_pool_options.salvage) */
    const char *missing; /* why memory of that pool is missing, or "" */
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

/* Opens the pool and a session, and also the index if `index` is not NULL. Returns 0, or an exit status after a
 * message. */
int cli_pool_open(const char *command, cli_pool *p, const char *index);
/* Opens an index in `index`, in a pool that is open. Returns 0 or an error. */
int cli_index_open(cli_pool *p, const char *name);
/* Closes everything and flushes stdout. Returns `status`, or CLI_FAILED if the flush failed. */
int cli_pool_close(cli_pool *p, int status);
/* Shows progress until cli_progress_end() for a call that reads all used memory of the pool `times` times. */
void cli_pool_watch(cli_pool *p, const char *what, unsigned times);
/* Progress over the pairs of the open index. cli_pool_keys returns an estimate of their number, or 0 if progress is not
 * shown; cli_pairs_progress is called after each pair with the number of pairs so far. */
uint64_t cli_pool_keys(cli_pool *p);
void cli_pairs_progress(const char *what, uint64_t pairs, uint64_t keys);
int cli_pool_failed(void); /* prints the message of far_last_error() and returns CLI_FAILED */
/* ... with the exit status of the error: CLI_CONFLICT, CLI_EXISTS or CLI_FAILED. */
int cli_operation_failed(int err);
void cli_print_done(void); /* prints {"done":true}, the JSON result of a command without another result */
/* prints "COMMAND: N pairs", or {"pairs":N} with --json */
void cli_print_pairs(const cli_pool *p, const char *command, uint64_t pairs);
/* the same with the number of keys that a salvage has skipped */
void cli_print_salvaged(const cli_pool *p, const char *command, uint64_t pairs, uint64_t skipped);

/* The pool of the shell. After cli_shell_pool_open(), commands that name no other pool use this pool handle and its
 * session. cli_shell_pool() returns it, and opens it again if the handle was evicted. */
int cli_shell_pool_open(const cli_pool *p);
const cli_pool *cli_shell_pool(void);
bool cli_shell_is_running(void); /* true while the shell runs */
void cli_shell_pool_close(void);

/* Parses the arguments and checks that the number of operands is within min..max. Returns 0, or 1 if the command ends
 * here with *status (after a message, or after --help). */
int cli_operands(int argc, char **argv, const char *usage, const cli_option *options, const char *notes, int min,
                 int max, int *count, int *status);

/* Writes the names of a client's command and host, or "?" where they are unknown. */
struct far_snapshot_handle_info;
void cli_handle_names(const struct far_snapshot_handle_info *handle, char command[64], char host[64]);

/* Sets the fields of the pool's usage, from "total" to "epoch". */
void cli_json_set_pool_usage(json_t *pool, const far_pool_usage *usage);

/* ---- Bytes as text ---- */

typedef struct cli_bytes { /* an array of bytes that grows */
    uint8_t *bytes;
    size_t length, room;
} cli_bytes;

/* appends the bytes; ends the process if memory runs out */
void cli_bytes_add(cli_bytes *to, const void *bytes, size_t count);
void cli_bytes_free(cli_bytes *bytes);

/* appends the bytes that hex digits denote; returns NULL, or a description of the error */
const char *cli_parse_hex(const char *text, size_t length, cli_bytes *to);
void cli_print_hex(FILE *file, const void *bytes, size_t count);
void cli_print_escaped(FILE *file, const void *bytes, size_t count); /* escaped as in a line: \t, \n, \\ and \xHH */

/* Sets a field of a JSON object to the bytes. If they are not valid UTF-8, the field is their base64 text, and a second
 * field "NAME_encoding" is set to "base64". */
void cli_json_set_bytes(json_t *object, const char *name, const void *bytes, size_t count);

/* Parses a line without its newline: the escaped key, a TAB, the escaped value. Returns NULL, or a description of the
 * error. */
const char *cli_parse_line(const char *line, size_t length, cli_bytes *key, cli_bytes *value);
void cli_print_line(FILE *file, const void *key, size_t key_len, const void *value, size_t value_len);

/* The binary format of a pair: the length of the key and the length of the value as little-endian 32-bit numbers, then
 * the key, then the value. The header of a dump is a pair with an empty key. cli_read_binary returns 1 after a pair, 0
 * at the end of the input, 2 after a header (its text is in *value), and -1 after an error, which *wrong describes. */
/* largest accepted length of a key or value; a larger length is a sign of damaged input */
#define CLI_PAIR_MAX (1u << 20)
int cli_read_binary(FILE *file, cli_bytes *key, cli_bytes *value, const char **wrong);
void cli_binary_lengths(size_t key_len, size_t value_len, uint8_t lengths[8]); /* the lengths as the format has them */
void cli_print_binary(FILE *file, const void *key, size_t key_len, const void *value, size_t value_len);

typedef enum { CLI_LINES, CLI_BINARY } cli_format;
/* clang-format off */
#define CLI_FORMAT_OPTION(format)                                                                              \
    {"format", CLI_TEXT, &(format), "lines|binary", "how pairs are written (default: lines)"}
/* clang-format on */
#define CLI_FORMATS_NOTE                                                                                               \
    "lines: key TAB value, with \\t, \\n, \\\\ and \\xHH escapes. binary: u32 klen, u32 vlen (little-endian), key, "   \
    "value.\n"
/* A dump consists of one section for each index, which is a header and the pairs, and a trailer with the number of the
 * indexes and pairs and a checksum of everything before the trailer. A plain dump consists of pairs only. */
#define CLI_DUMP_VERSION 2u

typedef struct cli_header { /* the header of an index in a dump: all that is needed to create the index again */
    unsigned version;       /* version of the dump's format; 0: the header has no first line */
    char name[FAR_NAME_MAX + 1], kind[16], options[512];
} cli_header;

typedef struct cli_trailer {
    uint64_t indexes, pairs, checksum;
} cli_trailer;

void cli_header_print(FILE *file, cli_format format, const cli_header *header);
void cli_trailer_print(FILE *file, cli_format format, const cli_trailer *trailer);
/* Parses the line of a trailer, without its newline. Returns false if it is not a trailer. */
bool cli_trailer_parse(const char *line, size_t length, cli_trailer *trailer);
/* Parses lines of a header into *header. Returns NULL, or a description of the error. */
const char *cli_header_parse(const char *text, size_t length, cli_header *header);
bool cli_header_begins(const char *text, size_t length); /* true if the text begins with the first line of a header */

/* The names of all indexes of a pool. */
typedef struct cli_names {
    char (*names)[FAR_NAME_MAX + 1];
    size_t count;
} cli_names;
/* Fills the list, whose `names` the caller frees. Returns 0, or CLI_FAILED after a message. */
int cli_list_names(cli_pool *p, cli_names *list);
void cli_names_add(cli_names *list, const char *name); /* ends the process if memory runs out */

/* ---- Salvage ---- */

typedef struct cli_salvage { /* counts and reports the keys that a salvage cannot read (salvage.c) */
    far_pair_fn each;
    void *ctx;
    uint64_t skipped; /* number of keys that were skipped */
    unsigned lines;   /* number of lines printed about skipped keys */
    /* the adjacent keys that were skipped last: number, first and last key, and reason for the first */
    uint64_t run;
    cli_bytes first, last;
    char reason[256];
} cli_salvage;

/* Calls `each` for all pairs of the open index that can be read. Reports on stderr what is skipped. Returns whether the
 * index is sound, so that the pairs are complete. */
bool cli_salvage_pairs(const cli_pool *p, cli_salvage *s);

/* Like cli_pool_failed. If the error is a damaged index, the message names the command for a salvage. */
int cli_pairs_failed(int64_t err, const char *command);

/* parses the value of --format, or NULL; returns 0, or CLI_USAGE after a message */
int cli_parse_format(const char *command, const char *text, cli_format *format);

#endif
