/* farindex put, get, del, scan: pairs by hand. */
#include "cli/data.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define KEYS_NOTE "Keys and values are the bytes of the arguments; one that begins with '-' comes after '--'.\n"


/* The bytes that an argument means. 0, or CLI_USAGE (told). */
static int take_bytes(const char *command, const char *what, const char *text, size_t length, bool hex, cli_bytes *to) {
    if (!hex) {
        cli_bytes_add(to, text, length);
        return 0;
    }
    const char *wrong = cli_parse_hex(text, length, to);
    return wrong ? cli_wrong_usage(command, "%s: %s", what, wrong) : 0;
}


static int take_key(const char *command, const char *text, bool hex, cli_bytes *key) {
    int err = take_bytes(command, "KEY", text, strlen(text), hex, key);
    return err || key->length ? err : cli_wrong_usage(command, "KEY: is empty");
}


/* From the argument, or all of stdin; hex may end with a newline there. */
static int take_value(const char *text, bool hex, cli_bytes *value) {
    if (strcmp(text, "-") != 0)
        return take_bytes("put", "VALUE", text, strlen(text), hex, value);
    cli_bytes input = {0};
    char buffer[4096];
    for (size_t got; (got = fread(buffer, 1, sizeof(buffer), stdin)) > 0;)
        cli_bytes_add(&input, buffer, got);
    while (hex && input.length && strchr("\r\n", (char)input.bytes[input.length - 1]))
        input.length--;
    int err = ferror(stdin) ? cli_failed("stdin cannot be read")
                            : take_bytes("put", "VALUE", (const char *)input.bytes, input.length, hex, value);
    cli_bytes_free(&input);
    return err;
}


static void print_json_bytes(const char *name, const void *bytes, size_t length, bool hex) {
    if (!hex) {
        cli_json_bytes(stdout, name, bytes, length);
        return;
    }
    printf("\"%s\":\"", name);
    cli_print_hex(stdout, bytes, length);
    putchar('"');
}


static void print_json_pair(const void *key, size_t key_len, const void *value, size_t value_len, bool hex) {
    putchar('{');
    print_json_bytes("key", key, key_len, hex);
    putchar(',');
    if (value)
        print_json_bytes("value", value, value_len, hex);
    else
        fputs("\"value\":null", stdout);
    putchar('}');
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

static int put(cli_pool *p, const cli_bytes *key, const cli_bytes *value, bool insert, bool update) {
    int err = insert   ? far_insert(p->session, p->index, key->bytes, key->length, value->bytes, value->length)
              : update ? far_update(p->session, p->index, key->bytes, key->length, value->bytes, value->length)
                       : far_put(p->session, p->index, key->bytes, key->length, value->bytes, value->length);
    if (err == FAR_ERR_EXISTS)
        return cli_failed("the key is there already");
    if (err == FAR_ERR_NOT_FOUND)
        return cli_not_found("the key is not there");
    if (err < 0)
        return cli_pool_failed();
    if (p->json)
        puts("{\"done\":true}");
    return 0;
}


int cli_put(int argc, char **argv) {
    cli_pool p = {0};
    bool hex = false, insert = false, update = false;
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"hex", CLI_FLAG, &hex, NULL, "key and value are hex"},
        {"insert", CLI_FLAG, &insert, NULL, "only if the key is not there"},
        {"update", CLI_FLAG, &update, NULL, "only if the key is there"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(argc, argv, "put NAME KEY VALUE [--insert|--update]", options,
                     KEYS_NOTE "VALUE '-' is read from stdin.\n", 3, 3, &count, &status))
        return status;
    if (insert && update)
        return cli_wrong_usage("put", "--insert and --update exclude each other");
    cli_bytes key = {0}, value = {0};
    status = take_key("put", argv[1], hex, &key);
    if (!status)
        status = take_value(argv[2], hex, &value);
    if (!status && (status = cli_pool_open("put", &p, argv[0])) == 0)
        status = cli_pool_close(&p, put(&p, &key, &value, insert, update));
    cli_bytes_free(&key);
    cli_bytes_free(&value);
    return status;
}


/* ---- get, del ---- */

typedef struct by_key { /* what get and del are doing */
    cli_pool pool;
    bool hex, raw;
    int keys;    /* how many are asked for */
    int missing; /* how many of them were not there */
    int shown;   /* in the array */
} by_key;


/* One key: its value as it is. Several: a line for each that is there, or an array. */
static void print_value(by_key *g, const cli_bytes *key, const char *value, size_t length) {
    if (g->pool.json) {
        fputs(g->keys == 1 ? "" : g->shown ? ",\n " : "[\n ", stdout);
        g->shown++;
        print_json_pair(key->bytes, key->length, value, length, g->hex);
    } else if (!value) {
        return;
    } else if (g->keys > 1 && !g->raw) {
        print_text_pair(key->bytes, key->length, value, length, g->hex);
    } else if (g->hex) {
        cli_print_hex(stdout, value, length);
        putchar('\n');
    } else {
        fwrite(value, 1, length, stdout);
        fputs(g->raw ? "" : "\n", stdout);
    }
}


static int get(by_key *g, const cli_bytes *key) {
    size_t length = 0;
    char *value = malloc(FAR_VALUE_MAX);
    if (!value)
        return cli_failed("no memory for a value");
    int err = far_get(g->pool.session, g->pool.index, key->bytes, key->length, value, FAR_VALUE_MAX, &length);
    g->missing += err == FAR_ERR_NOT_FOUND;
    if (err == 0 || (err == FAR_ERR_NOT_FOUND && g->keys > 1))
        print_value(g, key, err ? NULL : value, length);
    free(value);
    return err < 0 && err != FAR_ERR_NOT_FOUND ? cli_pool_failed() : 0;
}


static int del(by_key *g, const cli_bytes *key) {
    int err = far_delete(g->pool.session, g->pool.index, key->bytes, key->length);
    g->missing += err == FAR_ERR_NOT_FOUND;
    return err < 0 && err != FAR_ERR_NOT_FOUND ? cli_pool_failed() : 0;
}


static int tell_missing(const by_key *g) {
    if (g->keys == 1)
        return cli_not_found("the key is not there");
    return cli_not_found("%d of %d keys are not there", g->missing, g->keys);
}


/* All keys are looked at before the first is worked on. */
static int take_keys(const char *command, char **texts, const by_key *g, cli_bytes *keys) {
    int status = 0;
    for (int i = 0; i < g->keys && !status; i++)
        status = take_key(command, texts[i], g->hex, &keys[i]);
    return status;
}


/* A command that takes a name and keys. */
static int on_keys(const char *command, char **words, by_key *g, int (*run)(by_key *g, const cli_bytes *key)) {
    cli_bytes *keys = calloc((size_t)g->keys, sizeof(*keys));
    if (!keys)
        return cli_failed("no memory for %d keys", g->keys);
    int status = take_keys(command, words + 1, g, keys);
    if (!status && (status = cli_pool_open(command, &g->pool, words[0])) == 0) {
        for (int i = 0; i < g->keys && !status && !cli_interrupted(); i++)
            status = run(g, &keys[i]);
        if (g->shown)
            puts(g->keys == 1 ? "" : "\n]");
        if (g->pool.json && run == del && !status)
            printf("{\"done\":%s,\"deleted\":%d}\n", g->missing ? "false" : "true", g->keys - g->missing);
        if (!status && g->missing)
            status = tell_missing(g);
        status = cli_pool_close(&g->pool, status);
    }
    for (int i = 0; i < g->keys; i++)
        cli_bytes_free(&keys[i]);
    free(keys);
    return status;
}


int cli_get(int argc, char **argv) {
    by_key g = {0};
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&g.pool),
        {"hex", CLI_FLAG, &g.hex, NULL, "keys and values are hex"},
        {"raw", CLI_FLAG, &g.raw, NULL, "the bytes of the value and nothing else: no newline"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(argc, argv, "get NAME KEY.. [--raw]", options,
                     KEYS_NOTE "Prints the value and a newline; of several keys a line 'key TAB value' for each that "
                               "is there, with \\t, \\n,\n\\\\ and \\xHH escapes. Exit status 1: some are not there.\n",
                     2, argc, &count, &status))
        return status;
    if (g.raw && (g.hex || g.pool.json))
        return cli_wrong_usage("get", "--raw excludes --hex and --json");
    g.keys = count - 1;
    return on_keys("get", argv, &g, get);
}


int cli_del(int argc, char **argv) {
    by_key g = {0};
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&g.pool),
        {"hex", CLI_FLAG, &g.hex, NULL, "the keys are hex"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(argc, argv, "del NAME KEY..", options, KEYS_NOTE "Exit status 1: some were not there.\n", 2, argc,
                     &count, &status))
        return status;
    g.keys = count - 1;
    return on_keys("del", argv, &g, del);
}


/* ---- scan ---- */

typedef struct scanning {
    bool hex, json;
    uint64_t pairs;
} scanning;


static int print_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    scanning *s = ctx;
    if (s->json) {
        fputs(s->pairs++ ? ",\n " : "[\n ", stdout);
        print_json_pair(key, key_len, value ? value : "", value_len, s->hex);
    } else {
        print_text_pair(key, key_len, value, value_len, s->hex);
    }
    return ferror(stdout) || cli_interrupted();
}


int cli_scan(int argc, char **argv) {
    cli_pool p = {0};
    scanning s = {0};
    const char *from_text = NULL, *to_text = NULL;
    uint64_t limit = UINT64_MAX;
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"from", CLI_TEXT, &from_text, "KEY", "the first key (default: that of the index)"},
        {"to", CLI_TEXT, &to_text, "KEY", "the end, which is not part of it (default: none)"},
        {"limit", CLI_NUMBER, &limit, "N", "at most so many pairs"},
        {"hex", CLI_FLAG, &s.hex, NULL, "keys and values are hex"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(argc, argv, "scan NAME [--from KEY] [--to KEY] [--limit N]", options,
                     "Prints a line 'key TAB value' for each pair, with \\t, \\n, \\\\ and \\xHH escapes.\n", 1, 1,
                     &count, &status))
        return status;
    if (limit == 0)
        return cli_wrong_usage("scan", "--limit: must be at least 1");
    cli_bytes from = {0}, to = {0};
    status = from_text ? take_key("scan", from_text, s.hex, &from) : 0;
    if (!status && to_text)
        status = take_key("scan", to_text, s.hex, &to);
    if (!status && (status = cli_pool_open("scan", &p, argv[0])) == 0) {
        s.json = p.json;
        int64_t pairs = far_scan(p.session, p.index, from.bytes, from.length, to.bytes, to.length,
                                 limit == UINT64_MAX ? 0 : (size_t)limit, print_pair, &s);
        if (s.json && (pairs >= 0 || s.pairs))
            puts(s.pairs ? "\n]" : "[\n]");
        status = cli_pool_close(&p, pairs < 0 ? cli_pool_failed() : 0);
    }
    cli_bytes_free(&from);
    cli_bytes_free(&to);
    return status;
}
