/* The subcommands put, get and del, which work on single pairs, and scan, which prints a range of pairs. */
#include "tools/farindex/data.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEYS_NOTE "Keys and values are the bytes of the arguments. An argument that begins with '-' must follow '--'.\n"


/* Appends the bytes that an argument denotes: the bytes of the text, or of hex digits with --hex. Returns 0, or
 * CLI_USAGE after a message. */
static int parse_bytes(const char *command, const char *what, const char *text, size_t length, bool hex,
                       cli_bytes *to) {
    if (!hex) {
        cli_bytes_add(to, text, length);
        return 0;
    }
    const char *wrong = cli_parse_hex(text, length, to);
    return wrong ? cli_wrong_usage(command, "%s: %s", what, wrong) : 0;
}


static int parse_key(const char *command, const char *text, bool hex, cli_bytes *key) {
    int err = parse_bytes(command, "KEY", text, strlen(text), hex, key);
    return err || key->length ? err : cli_wrong_usage(command, "KEY: is empty");
}


/* Takes the value from the argument, or from stdin if the argument is "-". Hex digits from stdin may end with a
 * newline. */
static int parse_value(const char *text, bool hex, cli_bytes *value) {
    if (strcmp(text, "-") != 0)
        return parse_bytes("put", "VALUE", text, strlen(text), hex, value);
    cli_bytes input = {0};
    char buffer[4096];
    for (size_t got; (got = fread(buffer, 1, sizeof(buffer), stdin)) > 0;)
        cli_bytes_add(&input, buffer, got);
    while (hex && input.length && strchr("\r\n", (char)input.bytes[input.length - 1]))
        input.length--;
    int err = ferror(stdin) ? cli_failed("stdin cannot be read")
                            : parse_bytes("put", "VALUE", (const char *)input.bytes, input.length, hex, value);
    cli_bytes_free(&input);
    return err;
}


static void set_bytes(json_t *object, const char *name, const void *bytes, size_t length, bool hex) {
    cli_bytes text = {0};
    if (!hex) {
        cli_json_set_bytes(object, name, bytes, length);
        return;
    }
    for (size_t i = 0; i < length; i++) {
        char digits[3];
        snprintf(digits, sizeof(digits), "%02x", ((const uint8_t *)bytes)[i]);
        cli_bytes_add(&text, digits, 2);
    }
    cli_json_set_bytes(object, name, text.bytes, text.length);
    cli_bytes_free(&text);
}


/* A pair as a JSON object; a value of NULL becomes null. */
static json_t *pair_as_json(const void *key, size_t key_len, const void *value, size_t value_len, bool hex) {
    json_t *pair = cli_json_object();
    set_bytes(pair, "key", key, key_len, hex);
    if (value)
        set_bytes(pair, "value", value, value_len, hex);
    else
        cli_json_set(pair, "value", json_null());
    return pair;
}


static void print_text_pair(const void *key, size_t key_len, const void *value, size_t value_len, bool hex) {
    if (!hex) {
        cli_print_line(stdout, key, key_len, value, value_len);
        return;
    }
    cli_print_hex(stdout, key, key_len);
    putchar('\t');
    cli_print_hex(stdout, value, value_len);
    putchar('\n');
}


/* ---- put ---- */

static int put_pair(cli_pool *p, const cli_bytes *key, const cli_bytes *value, bool insert, bool update) {
    int err = insert   ? far_insert(p->session, p->index, key->bytes, key->length, value->bytes, value->length)
              : update ? far_update(p->session, p->index, key->bytes, key->length, value->bytes, value->length)
                       : far_put(p->session, p->index, key->bytes, key->length, value->bytes, value->length);
    if (err == FAR_ERR_EXISTS)
        return cli_exists("the key exists already");
    if (err == FAR_ERR_NOT_FOUND)
        return cli_not_found("the key is not there");
    if (err < 0)
        return cli_operation_failed(err);
    if (p->json)
        cli_print_done();
    return 0;
}


int cli_put(int argc, char **argv) {
    cli_pool p = {0};
    bool hex = false, insert = false, update = false;
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"hex", CLI_FLAG, &hex, NULL, "key and value are hex digits"},
        {"insert", CLI_FLAG, &insert, NULL, "fails if the key exists"},
        {"update", CLI_FLAG, &update, NULL, "fails if the key does not exist"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(argc, argv, "put NAME KEY VALUE [--insert|--update]", options,
                     KEYS_NOTE "A VALUE of '-' is read from stdin.\n", 3, 3, &count, &status))
        return status;
    if (insert && update)
        return cli_wrong_usage("put", "--insert and --update exclude each other");
    cli_bytes key = {0}, value = {0};
    status = parse_key("put", argv[1], hex, &key);
    if (!status)
        status = parse_value(argv[2], hex, &value);
    if (!status && (status = cli_pool_open("put", &p, argv[0])) == 0)
        status = cli_pool_close(&p, put_pair(&p, &key, &value, insert, update));
    cli_bytes_free(&key);
    cli_bytes_free(&value);
    return status;
}


/* ---- get, del ---- */

typedef struct key_command { /* the state of get and of del */
    cli_pool pool;
    bool hex, raw;
    int keys;           /* number of keys in the arguments */
    int missing;        /* number of those keys that the index does not contain */
    cli_json_list list; /* the array of values that get prints with --json and several keys */
} key_command;


/* Prints the result of one key. With one key the output is the value alone, with escapes on a terminal, which a value
 * must not control. With several keys it is a line for each key that the index contains, or an element of the JSON
 * array. */
static void print_value(key_command *g, const cli_bytes *key, const char *value, size_t length) {
    if (g->pool.json) {
        json_t *pair = pair_as_json(key->bytes, key->length, value, length, g->hex);
        if (g->keys == 1)
            cli_json_print_utf8(stdout, pair);
        else
            cli_json_list_add(&g->list, pair);
    } else if (!value) {
        return;
    } else if (g->keys > 1 && !g->raw) {
        print_text_pair(key->bytes, key->length, value, length, g->hex);
    } else if (g->hex) {
        cli_print_hex(stdout, value, length);
        putchar('\n');
    } else if (!g->raw && isatty(STDOUT_FILENO)) {
        cli_print_escaped(stdout, value, length);
        putchar('\n');
    } else {
        fwrite(value, 1, length, stdout);
        fputs(g->raw ? "" : "\n", stdout);
    }
}


static int get_value(key_command *g, const cli_bytes *key) {
    size_t length = 0;
    char *value = malloc(FAR_VALUE_MAX);
    if (!value)
        return cli_failed("no memory for a value");
    int err = far_get(g->pool.session, g->pool.index, key->bytes, key->length, value, FAR_VALUE_MAX, &length);
    g->missing += err == FAR_ERR_NOT_FOUND;
    if (err == 0 || (err == FAR_ERR_NOT_FOUND && g->keys > 1))
        print_value(g, key, err ? NULL : value, length);
    free(value);
    return err < 0 && err != FAR_ERR_NOT_FOUND ? cli_operation_failed(err) : 0;
}


static int delete_key(key_command *g, const cli_bytes *key) {
    int err = far_delete(g->pool.session, g->pool.index, key->bytes, key->length);
    g->missing += err == FAR_ERR_NOT_FOUND;
    return err < 0 && err != FAR_ERR_NOT_FOUND ? cli_operation_failed(err) : 0;
}


static int report_missing_keys(const key_command *g) {
    if (g->keys == 1)
        return cli_not_found("the key is not there");
    return cli_not_found("%d of %d keys are not there", g->missing, g->keys);
}


static void print_deleted(const key_command *g) {
    json_t *result = cli_json_object();
    cli_json_set_bool(result, "done", g->missing == 0);
    cli_json_set_count(result, "deleted", (uint64_t)(g->keys - g->missing));
    cli_json_print(stdout, result);
}


/* Parses all keys, so that an error in one of them is reported before the index changes. */
static int parse_keys(const char *command, char **texts, const key_command *g, cli_bytes *keys) {
    int status = 0;
    for (int i = 0; i < g->keys && !status; i++)
        status = parse_key(command, texts[i], g->hex, &keys[i]);
    return status;
}


/* Runs get or del: opens the pool, and calls `run` for each key of the arguments. */
static int run_on_keys(const char *command, char **words, key_command *g,
                       int (*run)(key_command *g, const cli_bytes *key)) {
    cli_bytes *keys = calloc((size_t)g->keys, sizeof(*keys));
    if (!keys)
        return cli_failed("no memory for %d keys", g->keys);
    int status = parse_keys(command, words + 1, g, keys);
    if (!status && (status = cli_pool_open(command, &g->pool, words[0])) == 0) {
        for (int i = 0; i < g->keys && !status && !cli_interrupted(); i++)
            status = run(g, &keys[i]);
        if (g->list.is_open)
            cli_json_list_end(&g->list);
        if (g->pool.json && run == delete_key && !status)
            print_deleted(g);
        if (!status && g->missing)
            status = report_missing_keys(g);
        status = cli_pool_close(&g->pool, status);
    }
    for (int i = 0; i < g->keys; i++)
        cli_bytes_free(&keys[i]);
    free(keys);
    return status;
}


int cli_get(int argc, char **argv) {
    key_command g = {.list = {.file = stdout, .utf8 = true}};
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&g.pool),
        {"hex", CLI_FLAG, &g.hex, NULL, "keys and values are hex digits"},
        {"raw", CLI_FLAG, &g.raw, NULL, "prints only the bytes of the value, without a newline"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(
            argc, argv, "get NAME KEY.. [--raw]", options,
            KEYS_NOTE
            "Prints the value and a newline. With several keys it prints a line 'key TAB value' for each key that "
            "exists, with the\nescapes \\t, \\n, \\\\ and \\xHH. On a terminal, a single value has these escapes too, "
            "except with "
            "--raw. Exit status 1 if\na key does not exist.\n",
            2, argc, &count, &status))
        return status;
    if (g.raw && (g.hex || g.pool.json))
        return cli_wrong_usage("get", "--raw excludes --hex and --json");
    g.keys = count - 1;
    return run_on_keys("get", argv, &g, get_value);
}


int cli_del(int argc, char **argv) {
    key_command g = {0};
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&g.pool),
        {"hex", CLI_FLAG, &g.hex, NULL, "the keys are hex digits"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(argc, argv, "del NAME KEY..", options, KEYS_NOTE "Exit status 1 if a key did not exist.\n", 2,
                     argc, &count, &status))
        return status;
    g.keys = count - 1;
    return run_on_keys("del", argv, &g, delete_key);
}


/* ---- scan ---- */

typedef struct scanning {
    bool hex, json, reverse;
    cli_json_list list; /* the array of pairs with --json */
    /* the range of keys: >= from and < to; `to` is empty if there is no upper bound */
    cli_bytes from, to;
} scanning;


static int print_scanned_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    scanning *s = ctx;
    if (s->json)
        cli_json_list_add(&s->list, pair_as_json(key, key_len, value ? value : "", value_len, s->hex));
    else
        print_text_pair(key, key_len, value, value_len, s->hex);
    return ferror(stdout) || cli_interrupted();
}


static int compare_keys(const cli_bytes *a, const cli_bytes *b) {
    size_t common = a->length < b->length ? a->length : b->length;
    int order = common ? memcmp(a->bytes, b->bytes, common) : 0;
    return order ? order : (a->length > b->length) - (a->length < b->length);
}


static void copy_key(cli_bytes *to, const cli_bytes *key) {
    to->length = 0;
    cli_bytes_add(to, key->bytes, key->length);
}


/* Restricts the range to the keys that begin with the prefix. */
static void restrict_to_prefix(scanning *s, cli_bytes *prefix) {
    if (compare_keys(&s->from, prefix) < 0)
        copy_key(&s->from, prefix);
    /* The prefix becomes the first key after all keys with the prefix. If it is empty then, there is no such key. */
    while (prefix->length && (uint8_t)prefix->bytes[prefix->length - 1] == 0xff)
        prefix->length--;
    if (prefix->length == 0)
        return;
    prefix->bytes[prefix->length - 1]++;
    if (s->to.length == 0 || compare_keys(prefix, &s->to) < 0)
        copy_key(&s->to, prefix);
}


static int parse_range(scanning *s, const char *from, const char *to, const char *prefix) {
    cli_bytes bytes = {0};
    int status = from ? parse_key("scan", from, s->hex, &s->from) : 0;
    if (!status && to)
        status = parse_key("scan", to, s->hex, &s->to);
    if (!status && prefix)
        status = parse_key("scan", prefix, s->hex, &bytes);
    if (!status && prefix)
        restrict_to_prefix(s, &bytes);
    cli_bytes_free(&bytes);
    return status;
}


static int print_range(cli_pool *p, scanning *s, uint64_t limit) {
    int64_t pairs = (s->reverse ? far_scan_reverse : far_scan)(
        p->session, p->index, s->from.bytes, s->from.length, s->to.length ? s->to.bytes : NULL, s->to.length,
        limit == UINT64_MAX ? 0 : (size_t)limit, print_scanned_pair, s);
    if (s->json && (pairs >= 0 || s->list.is_open))
        cli_json_list_end(&s->list);
    return pairs < 0 ? cli_operation_failed((int)pairs) : 0;
}


int cli_scan(int argc, char **argv) {
    cli_pool p = {0};
    scanning s = {.list = {.file = stdout, .utf8 = true}};
    const char *from = NULL, *to = NULL, *prefix = NULL;
    uint64_t limit = UINT64_MAX;
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"from", CLI_TEXT, &from, "KEY", "first key to print (default: the first key of the index)"},
        {"to", CLI_TEXT, &to, "KEY", "end of the range, which is not printed (default: none)"},
        {"prefix", CLI_TEXT, &prefix, "KEY", "prints only keys that begin with these bytes"},
        {"limit", CLI_NUMBER, &limit, "N", "largest number of pairs to print"},
        {"reverse", CLI_FLAG, &s.reverse, NULL, "prints the keys in descending order"},
        {"hex", CLI_FLAG, &s.hex, NULL, "keys and values are hex digits"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(argc, argv, "scan NAME [--from KEY] [--to KEY] [--prefix KEY] [--limit N] [--reverse]", options,
                     "Prints a line 'key TAB value' for each pair, with the escapes \\t, \\n, \\\\ and \\xHH.\n", 1, 1,
                     &count, &status))
        return status;
    if (limit == 0)
        return cli_wrong_usage("scan", "--limit: must be at least 1");
    status = parse_range(&s, from, to, prefix);
    if (!status && (status = cli_pool_open("scan", &p, argv[0])) == 0) {
        s.json = p.json;
        status = cli_pool_close(&p, print_range(&p, &s, limit));
    }
    cli_bytes_free(&s.from);
    cli_bytes_free(&s.to);
    return status;
}
