/* farindex dump: all pairs of an index, to a file or to stdout. */
#define _GNU_SOURCE
#include "cli/data.h"
#include "client/op.h"
#include "index/index.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct dumping {
    FILE *file;
    cli_format format;
    bool all, plain;
    uint64_t pairs, keys; /* of all indexes; of this one, about */
    uint64_t before;      /* of the indexes before it */
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


static int dump(cli_pool *p, dumping *d) {
    d->keys = cli_pool_keys(p);
    d->before = d->pairs;
    if (!d->plain) {
        cli_header header = {0};
        memcpy(header.name, p->index->name, sizeof(header.name));
        snprintf(header.kind, sizeof(header.kind), "%s", p->index->kind->name);
        memcpy(header.options, p->index->options_text, sizeof(header.options));
        cli_header_print(d->file, d->format, &header);
    }
    int64_t pairs = far_index_pairs(p->session, p->index, write_pair, d);
    cli_progress_end();
    if (pairs < 0)
        return cli_pool_failed();
    if (cli_output_is_closed())
        return CLI_FAILED;
    if (cli_interrupted())
        return cli_failed("interrupted after %" PRIu64 " pairs", d->pairs);
    return fflush(d->file) == 0 && !ferror(d->file) ? 0
                                                    : cli_failed("the dump could not be written: %s", strerror(errno));
}


/* Index by index; one that was dropped meanwhile is left out. */
static int dump_all(cli_pool *p, dumping *d) {
    cli_names list = {0};
    int status = cli_list_names(p, &list);
    for (size_t i = 0; i < list.count && !status; i++) {
        int err = far_index_open(p->session, list.names[i], &p->index);
        if (err == 0)
            status = dump(p, d);
        else if (err != FAR_ERR_NOT_FOUND)
            status = cli_pool_failed();
        far_index_close(p->index);
        p->index = NULL;
    }
    free(list.names);
    return status;
}


/* A file of a name of its own, with the rights of the one whose place it takes. */
static FILE *open_beside(char *made, const struct stat *old) {
    int descriptor = mkostemp(made, O_CLOEXEC);
    mode_t mask = umask(0);
    umask(mask);
    if (descriptor >= 0 && fchmod(descriptor, old ? old->st_mode & 0777 : 0666 & ~mask) == 0)
        return fdopen(descriptor, "w");
    if (descriptor >= 0) {
        close(descriptor);
        unlink(made);
    }
    return NULL;
}


/* A file gets its name when it is whole: a dump that fails, or another beside it, never takes the place of an older one
 * with a half. */
static int dump_to_file(cli_pool *p, dumping *d, const char *name) {
    struct stat status;
    char made[4096];
    bool there = stat(name, &status) == 0, plain = !there || S_ISREG(status.st_mode);
    int length = snprintf(made, sizeof(made), plain ? "%s.partial-XXXXXX" : "%s", name);
    if (length >= (int)sizeof(made))
        return cli_failed("'%s': the name is too long", name);
    cli_catch_interrupts();
    d->file = plain ? open_beside(made, there ? &status : NULL) : fopen(made, "we");
    if (!d->file)
        return cli_failed("'%s' cannot be written: %s", name, strerror(errno));
    int err = d->all ? dump_all(p, d) : dump(p, d);
    if (fclose(d->file) != 0 && !err)
        err = cli_failed("'%s' cannot be written: %s", name, strerror(errno));
    if (plain && !err && rename(made, name) < 0)
        err = cli_failed("'%s' cannot be written: %s", name, strerror(errno));
    if (plain && err)
        unlink(made);
    return err;
}


int cli_dump(int argc, char **argv) {
    cli_pool p = {0};
    dumping d = {.file = stdout};
    const char *format = NULL;
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        CLI_FORMAT_OPTION(format),
        {"all", CLI_FLAG, &d.all, NULL, "all indexes of the pool"},
        {"ignore-refuted", CLI_FLAG, &p.ignore_refuted, NULL,
         "reads a pool that is refused because of a self-test, to save what it holds"},
        {"plain", CLI_FLAG, &d.plain, NULL, "only pairs, without the kind and the options"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(
            argc, argv, "dump NAME [FILE] [--format lines|binary] [--plain] | dump --all [FILE]", options,
            CLI_FORMATS_NOTE
            "Before the pairs stand lines '%index NAME', '%kind KIND' and '%options OPTIONS' (in binary: in a record "
            "with an empty\nkey), by which load makes the index anew; --plain leaves them out.\n"
            "Beside live clients: a key that is there throughout is written once, one that comes or goes at "
            "most once.\n"
            "An index without order (shard) is written in no order; if it grows meanwhile a key may come twice, "
            "the newer\nvalue last, as load takes it.\n",
            0, 2, &count, &status))
        return status;
    if (count != (d.all ? 0 : 1) && count != (d.all ? 1 : 2))
        return cli_wrong_usage("dump", "either NAME or --all, and then a FILE or none");
    if (d.all && d.plain)
        return cli_wrong_usage("dump", "--plain does not tell which pair is of which index: not with --all");
    const char *file = count == (d.all ? 1 : 2) ? argv[count - 1] : "-";
    if ((status = cli_parse_format("dump", format, &d.format)) != 0 ||
        (status = cli_pool_open("dump", &p, d.all ? NULL : argv[0])) != 0)
        return status;
    bool to_file = strcmp(file, "-") != 0;
    status = to_file ? dump_to_file(&p, &d, file) : d.all ? dump_all(&p, &d) : dump(&p, &d);
    if (!status && to_file && p.json)
        printf("{\"pairs\":%" PRIu64 "}\n", d.pairs);
    else if (!status && to_file)
        printf("dump: %" PRIu64 " pairs\n", d.pairs);
    return cli_pool_close(&p, status);
}
