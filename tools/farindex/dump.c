/* `farindex dump` writes all pairs of one index, or of all indexes, to a file or to stdout. */
#define _GNU_SOURCE
#include "client/op.h"
#include "index/index.h"
#include "tools/farindex/data.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* A stream that computes the checksum of the bytes that pass through it on their way to the output. */
typedef struct checksum_file {
    FILE *stream, *output;
    XXH3_state_t *state;
} checksum_file;


static ssize_t write_and_hash(void *cookie, const char *bytes, size_t count) {
    checksum_file *sum = cookie;
    size_t written = fwrite(bytes, 1, count, sum->output);
    XXH3_64bits_update(sum->state, bytes, written);
    return (ssize_t)written;
}


static bool open_checksum_file(checksum_file *sum, FILE *output) {
    sum->state = XXH3_createState();
    sum->output = output;
    sum->stream = sum->state ? fopencookie(sum, "w", (cookie_io_functions_t){.write = write_and_hash}) : NULL;
    if (!sum->stream)
        XXH3_freeState(sum->state);
    else
        XXH3_64bits_reset(sum->state);
    return sum->stream != NULL;
}


typedef struct dumping {
    FILE *file;
    cli_format format;
    bool all, plain, salvages;
    /* number of pairs written so far, of all indexes; estimated number of pairs of the current index */
    uint64_t pairs, keys;
    uint64_t before;           /* value of `pairs` when the current index began */
    uint64_t indexes, skipped; /* number of indexes written, and of keys that a salvage has skipped */
    bool incomplete;           /* a salvage has not read all pairs */
    checksum_file sum;
} dumping;


static int write_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    dumping *d = ctx;
    if (d->format == CLI_BINARY)
        cli_print_binary(d->file, key, key_len, value, value_len);
    else
        cli_print_line(d->file, key, key_len, value, value_len);
    d->pairs++;
    cli_pairs_progress("dump", d->pairs - d->before, d->keys);
    return ferror(d->file) || cli_interrupted();
}


/* Writes the pairs that can be read. A salvage that ends early counts as incomplete, not as a failure. */
static void salvage_pairs(cli_pool *p, dumping *d) {
    cli_salvage s = {.each = write_pair, .ctx = d};
    d->incomplete |= !cli_salvage_pairs(p, &s);
    d->skipped += s.skipped;
}


static int dump_index(cli_pool *p, dumping *d) {
    int64_t pairs = 0;
    d->keys = cli_pool_keys(p);
    d->before = d->pairs;
    if (!d->plain) {
        cli_header header = {0};
        memcpy(header.name, p->index->name, sizeof(header.name));
        snprintf(header.kind, sizeof(header.kind), "%s", p->index->kind->name);
        memcpy(header.options, p->index->options_text, sizeof(header.options));
        cli_header_print(d->file, d->format, &header);
        d->indexes++;
    }
    if (d->salvages)
        salvage_pairs(p, d);
    else
        pairs = far_index_pairs(p->session, p->index, write_pair, d);
    cli_progress_end();
    if (pairs < 0)
        return cli_pairs_failed(pairs, "dump");
    if (cli_output_is_closed())
        return CLI_FAILED;
    if (cli_interrupted())
        return cli_failed("interrupted after %" PRIu64 " pairs", d->pairs);
    return 0;
}


/* Dumps all indexes one after the other. An index that another client drops in the meantime is left out. A salvage also
 * leaves out an index that cannot be opened. */
static int dump_all(cli_pool *p, dumping *d) {
    cli_names list = {0};
    int status = cli_list_names(p, &list);
    for (size_t i = 0; i < list.count && !status; i++) {
        int err = cli_index_open(p, list.names[i]);
        if (err == 0)
            status = dump_index(p, d);
        else if (err != FAR_ERR_NOT_FOUND && d->salvages && (d->incomplete = true))
            cli_note("skipped index '%s': %s", list.names[i], far_last_error());
        else if (err != FAR_ERR_NOT_FOUND)
            status = cli_pool_failed();
        far_index_close(p->index);
        p->index = NULL;
    }
    free(list.names);
    return status;
}


/* Writes a whole dump to d->file. Everything except the trailer is written through a stream that computes the checksum.
 */
static int write_dump(cli_pool *p, dumping *d) {
    FILE *output = d->file;
    if (!open_checksum_file(&d->sum, output))
        return cli_failed("no memory for a dump");
    d->file = d->sum.stream;
    int status = d->all ? dump_all(p, d) : dump_index(p, d);
    bool written = fclose(d->file) == 0;
    d->file = output;
    if (!status && written && d->indexes)
        cli_trailer_print(output, d->format, &(cli_trailer){d->indexes, d->pairs, XXH3_64bits_digest(d->sum.state)});
    XXH3_freeState(d->sum.state);
    if (!status && (!written || fflush(output) != 0 || ferror(output)))
        status = cli_failed("the dump could not be written: %s", strerror(errno));
    return status;
}


/* Creates a file with a unique name, which replaces the last characters of `temporary`, in the folder of the file that
 * it will replace. The new file gets the access rights of the old one; if there is none, only its owner can read it. */
static FILE *create_temporary_file(char *temporary, const struct stat *old) {
    int descriptor = mkostemp(temporary, O_CLOEXEC);
    if (descriptor >= 0 && fchmod(descriptor, old ? old->st_mode & 0777 : 0600) == 0)
        return fdopen(descriptor, "w");
    if (descriptor >= 0) {
        close(descriptor);
        unlink(temporary);
    }
    return NULL;
}


/* Gives the file its final name, so that it also survives a power failure: first the contents of the file reach the
 * disk, then its name. Returns 0, or -1 with errno. */
static int rename_durably(FILE *file, const char *temporary, const char *name) {
    char folder[4096];
    if (fsync(fileno(file)) < 0 || rename(temporary, name) < 0)
        return -1;
    const char *slash = strrchr(name, '/');
    snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - name) + 1 : 1, slash ? name : ".");
    int descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* A file system without fsync of folders, or a folder that may not be read, is no reason to refuse the dump. */
    if (descriptor >= 0) {
        fsync(descriptor);
        close(descriptor);
    }
    return 0;
}


/* Writes the dump to a temporary file, and renames that file when the dump is complete. A dump that fails therefore
 * never replaces an older file, and two concurrent dumps never mix. */
static int dump_to_file(cli_pool *p, dumping *d, const char *name) {
    struct stat status;
    char temporary[4096];
    bool exists = stat(name, &status) == 0, plain = !exists || S_ISREG(status.st_mode);
    int length = snprintf(temporary, sizeof(temporary), plain ? "%s.partial-XXXXXX" : "%s", name);
    if (length >= (int)sizeof(temporary))
        return cli_failed("'%s': the name is too long", name);
    cli_catch_interrupts();
    d->file = plain ? create_temporary_file(temporary, exists ? &status : NULL) : fopen(temporary, "we");
    if (!d->file)
        return cli_failed("'%s' cannot be written: %s", name, strerror(errno));
    int err = write_dump(p, d);
    if (plain && !err && rename_durably(d->file, temporary, name) < 0)
        err = cli_failed("'%s' cannot be written: %s", name, strerror(errno));
    if (fclose(d->file) != 0 && !err)
        err = cli_failed("'%s' cannot be written: %s", name, strerror(errno));
    if (plain && err)
        unlink(temporary);
    return err;
}


int cli_dump(int argc, char **argv) {
    cli_pool p = {0};
    dumping d = {.file = stdout};
    const char *format = NULL;
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        CLI_FORMAT_OPTION(format),
        {"all", CLI_FLAG, &d.all, NULL, "dumps all indexes of the pool"},
        {"ignore-refuted", CLI_FLAG, &p.ignore_refuted, NULL,
         "reads a pool that is refused because its fabric failed a self-test"},
        {"plain", CLI_FLAG, &d.plain, NULL, "writes only pairs, without name, kind and options of the index"},
        {"salvage", CLI_FLAG, &d.salvages, NULL, "skips what is broken in a damaged pool, and reports it"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(
            argc, argv, "dump NAME [FILE] [--format lines|binary] [--plain] [--salvage] | dump --all [FILE]", options,
            CLI_FORMATS_NOTE
            "The pairs follow lines '%index NAME', '%kind KIND' and '%options OPTIONS' (in the binary format a record "
            "with an empty\nkey), from which 'load' creates the index again. A line '%end' with a count and "
            "a\nchecksum follows, which 'load' verifies. --plain omits these lines. A new FILE can only be read by its "
            "owner.\n"
            "While other clients change the index, a key that exists throughout is written once, any other key at "
            "most once.\n"
            "An index without key order (shard) is written in no order. If it grows meanwhile, a key may be written "
            "twice, its newer\nvalue last, and 'load' keeps the last.\n"
            "If an object of the index is damaged, a dump fails and writes no FILE. With --salvage it writes the pairs "
            "that "
            "can\nbe read, reports the other keys on stderr, and exits with status 6. A pool of which memory nodes are "
            "missing is then\nread too, as far as its nodes are there; only the first node is indispensable.\n",
            0, 2, &count, &status))
        return status;
    if (count != (d.all ? 0 : 1) && count != (d.all ? 1 : 2))
        return cli_wrong_usage("dump", "give either NAME or --all, and after that at most one FILE");
    if (d.all && d.plain)
        return cli_wrong_usage(
            "dump", "--plain excludes --all, because the output would not show which index a pair belongs to");
    const char *file = count == (d.all ? 1 : 2) ? argv[count - 1] : "-";
    p.salvages = d.salvages;
    if ((status = cli_parse_format("dump", format, &d.format)) != 0 ||
        (status = cli_pool_open("dump", &p, d.all ? NULL : argv[0])) != 0)
        return status;
    bool to_file = strcmp(file, "-") != 0;
    status = to_file ? dump_to_file(&p, &d, file) : write_dump(&p, &d);
    if (!status && to_file && !d.salvages)
        cli_print_pairs(&p, "dump", d.pairs);
    if (!status && to_file && d.salvages)
        cli_print_salvaged(&p, "dump", d.pairs, d.skipped);
    if (!status && d.incomplete)
        status = CLI_SALVAGED;
    return cli_pool_close(&p, status);
}
