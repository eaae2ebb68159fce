/* `farindex load` puts many pairs into an index. One thread, the reader, parses the input; the others, the loaders, put
 * the pairs. All pairs with the same key are sent to the same loader in the order of the input, so the last of them
 * wins.
 *
 *                  chunks of pairs, chosen by the hash of the key
 *     input -> reader ---------------> loader 0 -> session 0 -> index
 *                     ---------------> loader 1 -> session 1 -> index
 *
 * A dump ends with a trailer, which the reader verifies. If the input is a file, it is read twice: a damaged or
 * truncated dump is then refused before anything is loaded. If the input is a pipe, the damage is found after pairs
 * were loaded. In any case a load that fails drops the indexes that it has created, so a new index contains all pairs
 * of the dump or does not exist. */
#include "client/op.h"
#include "tools/farindex/data.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#define CHUNK_BYTES (256u << 10)
#define QUEUE_MAX   4 /* largest number of chunks that wait for one loader; the reader then waits */
#define THREADS_MAX 256

typedef struct entry { /* precedes each pair in a chunk */
    uint64_t place;    /* number of the line, or of the pair in a binary input */
    uint64_t hash;
    uint32_t key_len, value_len;
} entry;

typedef struct chunk {
    struct chunk *next;
    size_t used, room;
    uint8_t bytes[];
} chunk;

typedef struct loading loading;

typedef enum { ITEM_NONE, ITEM_PAIR, ITEM_HEADER, ITEM_TRAILER, ITEM_BAD, ITEM_END } item;

/* The dump that is being read, to verify its trailer. Several dumps may follow each other in the input. */
typedef struct dump_check {
    unsigned version; /* version of the dump; 0: the input is no dump, but consists of pairs only */
    bool ended;       /* the trailer of the dump was read */
    uint64_t indexes, pairs;
    XXH3_state_t *state; /* the checksum of the bytes read so far; allocated with the first header */
} dump_check;

typedef struct loader {
    loading *all;
    pthread_t thread;
    far_session *session;
    chunk *filling;      /* the chunk that the reader is filling; only the reader uses it */
    chunk *first, *last; /* queue of full chunks; this field and those below are protected by the lock */
    unsigned waiting;
    bool closed; /* the reader will add no more chunks */
} loader;

struct loading {
    cli_pool *pool;
    cli_format format;
    uint64_t threads, depth;
    FILE *file;
    loader *loaders;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool all;        /* --all: the headers of the input name the indexes */
    uint64_t place;  /* number of the line or pair that was read last */
    uint64_t offset; /* number of bytes before the line or pair that was read last */
    uint64_t bytes;  /* number of bytes that the line or pair has */
    dump_check dump;
    bool warned;         /* the user was warned that a dump cannot be verified */
    cli_names created;   /* indexes that this command has created */
    uint64_t lost_pairs; /* number of loaded pairs that are lost if the created indexes are dropped */
    /* number of the last line or pair that was handed to a loader, so all before it are loaded or in progress */
    uint64_t read;
    uint64_t pairs;                 /* number of pairs that are loaded */
    _Atomic uint64_t refused_place; /* place of the first pair that was refused, or 0; changed under the lock */
    char refusal[512];
    /* type of the item that was read last and is not yet processed; its bytes are in `key` and `value` */
    item next_item;
    cli_bytes key, value;
    const char *item_error; /* description of the error, if `next_item` is ITEM_BAD */
    char mismatch[160];
    char *line;
    size_t line_room;
};


/* ---- The loaders ---- */

static void record_refusal(loading *l, uint64_t place, const char *what) {
    pthread_mutex_lock(&l->lock);
    uint64_t first = atomic_load_explicit(&l->refused_place, memory_order_relaxed);
    if (!first || place < first) {
        atomic_store_explicit(&l->refused_place, place, memory_order_relaxed);
        snprintf(l->refusal, sizeof(l->refusal), "%s", what);
    }
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}


static chunk *take_chunk(loader *own) {
    loading *l = own->all;
    pthread_mutex_lock(&l->lock);
    while (!own->first && !own->closed)
        pthread_cond_wait(&l->changed, &l->lock);
    chunk *got = own->first;
    if (got) {
        own->first = got->next;
        own->waiting--;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return got;
}


typedef struct flight { /* the operations that one loader has in flight */
    far_op ops[FAR_OPS_MAX];
    const entry *entries[FAR_OPS_MAX];
    unsigned idle[FAR_OPS_MAX], idle_count;
    uint64_t done;
} flight;


static void reap_operations(loader *own, flight *f, unsigned wait_for) {
    far_op *done[FAR_OPS_MAX];
    int count = far_reap(own->session, done, FAR_OPS_MAX, wait_for);
    if (count < 0) {
        record_refusal(own->all, UINT64_MAX, far_last_error());
        memset(f->entries, 0, sizeof(f->entries));
        f->idle_count = (unsigned)own->all->depth;
    }
    for (int i = 0; i < count; i++) {
        unsigned number = (unsigned)(done[i] - f->ops);
        const entry *e = f->entries[number];
        if (done[i]->result == 0) {
            f->done++;
        } else {
            char what[sizeof(own->all->refusal)];
            snprintf(what, sizeof(what), "a key of %u bytes, a value of %u: %s", e->key_len, e->value_len,
                     far_op_error(own->session, done[i]));
            record_refusal(own->all, e->place, what);
        }
        f->entries[number] = NULL;
        f->idle[f->idle_count++] = number;
    }
}


/* True if an operation on a key with this hash is in flight. Operations in flight are not ordered, so the next
 * operation on that key must wait. */
static bool is_in_flight(const loader *own, const flight *f, uint64_t hash) {
    for (unsigned i = 0; i < own->all->depth; i++)
        if (f->entries[i] && f->entries[i]->hash == hash)
            return true;
    return false;
}


/* True if the pair precedes the first refused pair. Pairs after that are skipped, because in a full pool each attempt
 * would search for memory in vain and take long. */
static bool precedes_refused_pair(const loading *l, const entry *e) {
    uint64_t bad = atomic_load_explicit(&l->refused_place, memory_order_relaxed);
    return !bad || e->place < bad;
}


static void load_chunk(loader *own, flight *f, const chunk *c) {
    unsigned depth = (unsigned)own->all->depth;
    for (size_t at = 0; at < c->used;) {
        const entry *e = (const entry *)(c->bytes + at);
        size_t size = sizeof(*e) + (e->key_len + e->value_len + 7) / 8 * 8;
        const uint8_t *key = c->bytes + at + sizeof(*e);
        while (f->idle_count == 0 || is_in_flight(own, f, e->hash))
            reap_operations(own, f, 1);
        if (!precedes_refused_pair(own->all, e)) {
            at += size;
            continue;
        }
        unsigned number = f->idle[--f->idle_count];
        far_op *op = &f->ops[number];
        *op = (far_op){.kind = FAR_OP_PUT,
                       .index = own->all->pool->index,
                       .key = key,
                       .key_len = e->key_len,
                       .value = (void *)(key + e->key_len),
                       .value_len = e->value_len};
        f->entries[number] = e;
        if (far_submit(own->session, &op, 1) != 1) {
            record_refusal(own->all, e->place, far_last_error());
            f->entries[number] = NULL;
            f->idle[f->idle_count++] = number;
            break;
        }
        at += size;
    }
    /* wait for all operations, because the caller frees the chunk with their keys and values */
    while (f->idle_count < depth)
        reap_operations(own, f, depth - f->idle_count);
}


static void *run_loader(void *arg) {
    loader *own = arg;
    loading *l = own->all;
    flight *f = calloc(1, sizeof(*f));
    if (!f)
        exit(cli_failed("no memory for a loader"));
    for (unsigned i = 0; i < l->depth; i++)
        f->idle[f->idle_count++] = i;
    for (chunk *c; (c = take_chunk(own)); free(c)) {
        load_chunk(own, f, c);
        pthread_mutex_lock(&l->lock);
        l->pairs += f->done;
        pthread_mutex_unlock(&l->lock);
        f->done = 0;
    }
    free(f);
    return NULL;
}


/* ---- The reader ---- */

/* Returns the fraction of the input that has been read, or a negative number if its size is unknown, as for a pipe. */
static double fraction_read(const loading *l) {
    struct stat file;
    if (fstat(fileno(l->file), &file) < 0 || !S_ISREG(file.st_mode) || file.st_size == 0)
        return -1;
    return (double)ftello(l->file) / (double)file.st_size;
}


/* Appends the chunk that the reader has filled to the queue of the loader, and waits while the queue is full. Returns
 * false after a pair was refused, because reading further would be useless. */
static bool hand_over_chunk(loader *to) {
    loading *l = to->all;
    chunk *c = to->filling;
    to->filling = NULL;
    pthread_mutex_lock(&l->lock);
    while (to->waiting >= QUEUE_MAX)
        pthread_cond_wait(&l->changed, &l->lock);
    if (c) {
        if (to->first)
            to->last->next = c;
        else
            to->first = c;
        to->last = c;
        to->waiting++;
    }
    bool another_index_follows = !atomic_load_explicit(&l->refused_place, memory_order_relaxed);
    uint64_t pairs = l->pairs;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    cli_progress(fraction_read(l), "load: %" PRIu64 " pairs", pairs);
    return another_index_follows;
}


static chunk *new_chunk(size_t at_least) {
    size_t room = at_least > CHUNK_BYTES ? at_least : CHUNK_BYTES;
    chunk *c = malloc(sizeof(*c) + room);
    if (!c)
        exit(cli_failed("no memory for %zu bytes", room));
    c->next = NULL;
    c->used = 0;
    c->room = room;
    return c;
}


static bool add_pair(loading *l, uint64_t place, const cli_bytes *key, const cli_bytes *value) {
    entry e = {place, XXH3_64bits(key->bytes, key->length), (uint32_t)key->length, (uint32_t)value->length};
    size_t payload = (key->length + value->length + 7) / 8 * 8;
    loader *to = &l->loaders[(e.hash >> 32) % l->threads];
    if (to->filling && to->filling->room - to->filling->used < sizeof(e) + payload && !hand_over_chunk(to))
        return false;
    if (!to->filling)
        to->filling = new_chunk(sizeof(e) + payload);
    uint8_t *at = to->filling->bytes + to->filling->used;
    memcpy(at, &e, sizeof(e));
    memcpy(at + sizeof(e), key->bytes, key->length);
    if (value->length)
        memcpy(at + sizeof(e) + key->length, value->bytes, value->length);
    to->filling->used += sizeof(e) + payload;
    return true;
}


static bool is_trailer(const loading *l) {
    return l->value.length > 5 && memcmp(l->value.bytes, "%end ", 5) == 0;
}


static item read_line_item(loading *l) {
    ssize_t length = getline(&l->line, &l->line_room, l->file);
    if (length < 0)
        return ITEM_END;
    l->bytes = (uint64_t)length;
    bool whole = length > 0 && l->line[length - 1] == '\n';
    length -= whole;
    if (l->line[0] == '%' && !memchr(l->line, '\t', (size_t)length)) {
        l->value.length = 0;
        cli_bytes_add(&l->value, l->line, (size_t)length);
        if (!is_trailer(l))
            return ITEM_HEADER;
        l->item_error = "the dump is truncated: its last line is incomplete";
        return whole ? ITEM_TRAILER : ITEM_BAD;
    }
    l->item_error = cli_parse_line(l->line, (size_t)length, &l->key, &l->value);
    return l->item_error ? ITEM_BAD : ITEM_PAIR;
}


static item read_binary_item(loading *l) {
    static const item items[] = {ITEM_BAD, ITEM_END, ITEM_PAIR, ITEM_HEADER};
    item got = items[cli_read_binary(l->file, &l->key, &l->value, &l->item_error) + 1];
    l->bytes = 8 + l->key.length + l->value.length;
    if (got == ITEM_HEADER && is_trailer(l)) {
        l->value.length--; /* without the newline */
        return ITEM_TRAILER;
    }
    return got;
}


/* Begins a new dump if this header begins one. Returns NULL, or a description of the error. */
static const char *note_header(loading *l) {
    dump_check *d = &l->dump;
    const char *text = (const char *)l->value.bytes;
    cli_header header = {0};
    if (!cli_header_begins(text, l->value.length))
        return d->ended ? "this does not belong to a dump, which ended before" : NULL;
    const char *wrong = cli_header_parse(text, l->value.length, &header);
    if (wrong)
        return wrong;
    if (d->version == 0 || d->ended) {
        *d = (dump_check){.version = header.version, .state = d->state ? d->state : XXH3_createState()};
        if (!d->state)
            exit(cli_failed("no memory for a checksum"));
        XXH3_64bits_reset(d->state);
    }
    if (header.version != d->version)
        return "the version of the dump changes here";
    if (d->version == 1 && !l->warned)
        cli_note("this dump has version 1, which has no checksum: it cannot be verified that it is complete");
    l->warned |= d->version == 1;
    d->indexes++;
    return NULL;
}


/* Adds the item to the checksum of the dump. */
static void hash_item(loading *l) {
    if (l->dump.version < 2)
        return;
    if (l->format == CLI_LINES) {
        XXH3_64bits_update(l->dump.state, l->line, l->bytes);
        return;
    }
    uint8_t lengths[8];
    cli_binary_lengths(l->key.length, l->value.length, lengths);
    XXH3_64bits_update(l->dump.state, lengths, sizeof(lengths));
    if (l->key.length)
        XXH3_64bits_update(l->dump.state, l->key.bytes, l->key.length);
    if (l->value.length)
        XXH3_64bits_update(l->dump.state, l->value.bytes, l->value.length);
}


/* Compares the trailer with the dump that was read. Returns NULL, or a description of the error. */
static const char *verify_trailer(loading *l) {
    dump_check *d = &l->dump;
    cli_trailer trailer;
    if (d->version < 2 || d->ended)
        return "an end of a dump without its beginning";
    if (!cli_trailer_parse((const char *)l->value.bytes, l->value.length, &trailer))
        return "the last line of the dump is damaged";
    d->ended = true;
    if (trailer.indexes == d->indexes && trailer.pairs == d->pairs && trailer.checksum == XXH3_64bits_digest(d->state))
        return NULL;
    snprintf(l->mismatch, sizeof(l->mismatch),
             "the dump is damaged: %" PRIu64 " pairs of %" PRIu64 " were read, and their checksum is %s", d->pairs,
             trailer.pairs, trailer.checksum == XXH3_64bits_digest(d->state) ? "right" : "wrong");
    return l->mismatch;
}


/* Verifies that the item belongs to a complete and undamaged dump, or to no dump at all. Returns NULL, or a description
 * of the error. */
static const char *check_item(loading *l) {
    dump_check *d = &l->dump;
    const char *wrong = NULL;
    if (l->next_item == ITEM_TRAILER)
        return verify_trailer(l);
    if (l->next_item == ITEM_END)
        return d->version >= 2 && !d->ended ? "the dump is truncated: it ends here without its last line" : NULL;
    if (l->next_item == ITEM_HEADER && (wrong = note_header(l)) != NULL)
        return wrong;
    if (l->next_item == ITEM_PAIR && d->ended)
        return "this does not belong to a dump, which ended before";
    hash_item(l);
    d->pairs += l->next_item == ITEM_PAIR;
    return NULL;
}


/* Reads an item of the input into `next_item`. After an interrupt the input counts as ended. */
static void read_item(loading *l) {
    char words[sizeof(l->refusal)];
    l->offset += l->bytes;
    l->bytes = 0;
    l->next_item = cli_interrupted() ? ITEM_END : l->format == CLI_BINARY ? read_binary_item(l) : read_line_item(l);
    if (cli_interrupted()) {
        l->next_item = ITEM_END;
        return;
    }
    const char *wrong = l->next_item == ITEM_BAD ? l->item_error : ferror(l->file) ? NULL : check_item(l);
    if (l->next_item != ITEM_END || wrong)
        l->place++;
    if (!wrong)
        return;
    snprintf(words, sizeof(words), "at byte %" PRIu64 ": %s", l->offset, wrong);
    record_refusal(l, l->place, l->format == CLI_BINARY ? words : wrong);
    l->next_item = ITEM_BAD;
}


/* Reads the next pair or header of the input, or its end, into `next_item`. */
static void read_next_item(loading *l) {
    do
        read_item(l);
    while (l->next_item == ITEM_TRAILER);
}


/* Reads the lines of one header. If an index has no pairs, the next header follows directly; its lines are left for the
 * next call. */
static void read_header(loading *l, cli_header *header) {
    for (bool first = true; l->next_item == ITEM_HEADER; first = false) {
        if (!first && cli_header_begins((const char *)l->value.bytes, l->value.length))
            return;
        const char *wrong = cli_header_parse((const char *)l->value.bytes, l->value.length, header);
        if (wrong) {
            record_refusal(l, l->place, wrong);
            l->next_item = ITEM_BAD;
            return;
        }
        l->read = l->place;
        read_next_item(l);
    }
}


static void read_pairs(loading *l) {
    for (; l->next_item == ITEM_PAIR; read_next_item(l)) {
        if (!add_pair(l, l->place, &l->key, &l->value)) {
            l->next_item = ITEM_END;
            break;
        }
        l->read = l->place;
    }
}


/* ---- The command ---- */

static int start_loaders(loading *l) {
    l->loaders = calloc(l->threads, sizeof(*l->loaders));
    if (!l->loaders)
        return cli_failed("no memory for %" PRIu64 " threads", l->threads);
    for (uint64_t i = 0; i < l->threads; i++) {
        l->loaders[i].all = l;
        if (far_session_open(l->pool->pool, &l->loaders[i].session) < 0)
            return cli_pool_failed();
    }
    for (uint64_t i = 0; i < l->threads; i++)
        if (pthread_create(&l->loaders[i].thread, NULL, run_loader, &l->loaders[i]) != 0)
            exit(cli_failed("only %" PRIu64 " of %" PRIu64 " threads could be started", i, l->threads));
    return 0;
}


/* Hands the last chunks over and waits until all pairs that were read are loaded, also those that precede a bad line.
 */
static void end_loaders(loading *l) {
    for (uint64_t i = 0; i < l->threads; i++)
        hand_over_chunk(&l->loaders[i]);
    pthread_mutex_lock(&l->lock);
    for (uint64_t i = 0; i < l->threads; i++)
        l->loaders[i].closed = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    for (uint64_t i = 0; i < l->threads; i++)
        pthread_join(l->loaders[i].thread, NULL);
    cli_progress_end();
}


static int report_result(const loading *l, int unreadable) {
    const char *unit = l->format == CLI_BINARY ? "pair" : "line";
    const char *rest = l->created.count > 1   ? "; the new indexes are removed again"
                       : l->created.count > 0 ? "; the new index is removed again"
                                              : "";
    uint64_t bad = atomic_load_explicit(&l->refused_place, memory_order_relaxed);
    if (bad == UINT64_MAX)
        return cli_failed("%s%s", l->refusal, rest);
    if (bad)
        return cli_failed("%s %" PRIu64 ": %s%s", unit, bad, l->refusal, rest);
    if (cli_interrupted())
        return cli_failed("interrupted after %s %" PRIu64 "%s", unit, l->read,
                          *rest ? rest : "; everything up to it is loaded");
    return unreadable ? cli_failed("the input cannot be read: %s%s", strerror(unreadable), rest) : 0;
}


static void free_loaders(loading *l) {
    for (uint64_t i = 0; l->loaders && i < l->threads; i++)
        far_session_close(l->loaders[i].session);
    free(l->loaders);
    l->loaders = NULL;
}


/* Opens the index for the pairs: the index of the argument, or else the index of the header. An index that does not
 * exist is created from the header. */
static int open_index(loading *l, const char *name, const cli_header *header, bool *created) {
    cli_pool *p = l->pool;
    if (!name && !*header->name)
        return cli_failed("the input does not name an index; give the name with 'load NAME'");
    int err = far_index_open(p->session, name ? name : header->name, &p->index);
    if (err == FAR_ERR_NOT_FOUND && !*header->kind)
        return cli_not_found(
            "there is no index '%s', and the input does not name a kind; create the index with 'farindex create "
            "%s KIND'",
            name, name);
    *created = err == FAR_ERR_NOT_FOUND;
    if (*created)
        err = far_index_create(p->session, name ? name : header->name, header->kind, header->options, &p->index);
    if (err < 0)
        return cli_pool_failed();
    if (*created)
        cli_names_add(&l->created, p->index->name);
    return 0;
}


/* Loads the pairs of one index. */
static int load_index(loading *l, const char *name) {
    cli_header header = {0};
    bool created = false;
    uint64_t before = l->pairs;
    read_header(l, &header);
    if (l->next_item == ITEM_BAD)
        return 0; /* report_result reports it */
    int status = open_index(l, name, &header, &created);
    if (!status)
        status = start_loaders(l);
    if (!status) {
        read_pairs(l);
        end_loaders(l);
    }
    free_loaders(l);
    l->lost_pairs += created ? l->pairs - before : 0;
    far_index_close(l->pool->index);
    l->pool->index = NULL;
    return status;
}


static int report_unreadable(const loading *l) {
    int unreadable = ferror(l->file) ? (errno ? errno : EIO) : 0;
    return report_result(l, unreadable);
}


/* If the input is a dump in a file, reads the whole dump and verifies it, and returns to its beginning. So nothing is
 * loaded from a dump that is damaged or truncated. Returns 0, or an exit status after a message. */
static int verify_file(loading *l) {
    struct stat file;
    off_t start = ftello(l->file);
    if (fstat(fileno(l->file), &file) < 0 || !S_ISREG(file.st_mode) || start < 0)
        return 0;
    for (read_next_item(l); l->next_item == ITEM_PAIR || l->next_item == ITEM_HEADER; read_next_item(l)) {
        if (l->dump.version < 2)
            break;
        if (l->place % 4096 == 0)
            cli_progress(fraction_read(l), "load: verifying the dump");
    }
    cli_progress_end();
    int status = l->dump.version >= 2 || ferror(l->file) ? report_unreadable(l) : 0;
    if (status)
        return status;
    if (fseeko(l->file, start, SEEK_SET) < 0)
        return cli_failed("the input cannot be read again: %s", strerror(errno));
    l->dump.version = 0;
    l->place = l->offset = l->bytes = 0;
    l->next_item = ITEM_NONE;
    atomic_store_explicit(&l->refused_place, 0, memory_order_relaxed);
    return 0;
}


/* Drops the indexes that this command has created, because it has failed. */
static void drop_created(loading *l) {
    for (size_t i = 0; i < l->created.count; i++)
        far_index_drop(l->pool->session, l->created.names[i]);
    l->pairs -= l->lost_pairs;
}


static bool another_index_follows(const loading *l) {
    return l->next_item == ITEM_HEADER && !atomic_load_explicit(&l->refused_place, memory_order_relaxed);
}


static int load_indexes(loading *l, const char *name) {
    int status = verify_file(l);
    if (status)
        return status;
    read_next_item(l);
    status = load_index(l, name);
    while (!status && another_index_follows(l) && l->all)
        status = load_index(l, NULL);
    if (!status && another_index_follows(l))
        record_refusal(l, l->place, "another index begins here; 'load --all' loads all indexes");
    return status ? status : report_unreadable(l);
}


static int load_input(loading *l, const char *name) {
    cli_catch_interrupts();
    errno = 0;
    int status = load_indexes(l, name);
    if (status)
        drop_created(l);
    if (!status || l->pairs)
        cli_print_pairs(l->pool, "load", l->pairs);
    free(l->created.names);
    XXH3_freeState(l->dump.state);
    free(l->line);
    cli_bytes_free(&l->key);
    cli_bytes_free(&l->value);
    return status;
}


int cli_load(int argc, char **argv) {
    cli_pool p = {.creates = true};
    loading l = {.pool = &p, .threads = 1, .depth = 16, .file = stdin};
    const char *format = NULL;
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        CLI_FORMAT_OPTION(format),
        {"threads", CLI_NUMBER, &l.threads, "N", "number of loading threads (default: 1)"},
        {"depth", CLI_NUMBER, &l.depth, "N", "operations in flight per thread (default: 16)"},
        {"all", CLI_FLAG, &l.all, NULL, "loads all indexes of the input under their names"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(
            argc, argv, "load NAME [FILE] [--format lines|binary] [--threads N] [--depth N] | load --all [FILE]",
            options,
            CLI_FORMATS_NOTE
            "If several pairs have the same key, the last of them wins. An index that does not exist is created with "
            "the kind and the\noptions in the dump; if the load fails, it is removed again. A dump in a file is "
            "verified "
            "before anything is loaded. If a\npipe or a list of pairs without a header has a bad line, the pairs "
            "before it "
            "are loaded into an index that existed before.\nA pool that does not exist is created if its URI has a "
            "size, "
            "and a message reports that.\n",
            0, 2, &count, &status))
        return status;
    if ((status = cli_parse_format("load", format, &l.format)) != 0)
        return status;
    if (l.threads < 1 || l.threads > THREADS_MAX)
        return cli_wrong_usage("load", "--threads: must be within 1..%d", THREADS_MAX);
    if (l.depth < 1 || l.depth > FAR_OPS_MAX)
        return cli_wrong_usage("load", "--depth: must be within 1..%d", FAR_OPS_MAX);
    if (count != (l.all ? 0 : 1) && count != (l.all ? 1 : 2))
        return cli_wrong_usage("load", "give either NAME or --all, and after that at most one FILE");
    const char *file = count == (l.all ? 1 : 2) ? argv[count - 1] : "-";
    if (strcmp(file, "-") != 0 && !(l.file = fopen(file, "re")))
        return cli_failed("'%s' cannot be read: %s", file, strerror(errno));
    if ((status = cli_pool_open("load", &p, NULL)) == 0) {
        pthread_mutex_init(&l.lock, NULL);
        pthread_cond_init(&l.changed, NULL);
        status = cli_pool_close(&p, load_input(&l, l.all ? NULL : argv[0]));
    }
    if (l.file != stdin)
        fclose(l.file);
    return status;
}
