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


static void print_bytes(FILE *file, const void *bytes, size_t length, bool hex) {
    if (hex)
        cli_print_hex(file, bytes, length);
    else
        fwrite(bytes, 1, length, file);
}


static void print_json_bytes(const void *bytes, size_t length, bool hex) {
    if (!hex) {
        cli_json_bytes(stdout, bytes, length);
        return;
    }
    putchar('"');
    cli_print_hex(stdout, bytes, length);
    putchar('"');
}


static void print_json_pair(const void *key, size_t key_len, const void *value, size_t value_len, bool hex) {
    fputs("{\"key\":", stdout);
    print_json_bytes(key, key_len, hex);
    fputs(",\"value\":", stdout);
    print_json_bytes(value, value_len, hex);
    putchar('}');
}


/* ---- put ---- */

static int put(cli_pool *p, const cli_bytes *key, const cli_bytes *value, bool insert, bool update) {
    int err = insert   ? far_insert(p->session, p->index, key->bytes, key->length, value->bytes, value->length)
              : update ? far_update(p->session, p->index, key->bytes, key->length, value->bytes, value->length)
                       : far_put(p->session, p->index, key->bytes, key->length, value->bytes, value->length);
    if (err == FAR_ERR_EXISTS)
        return cli_failed("the key is there already");
    if (err == FAR_ERR_NOT_FOUND)
        return cli_failed("the key is not there");
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

static int get(cli_pool *p, const cli_bytes *key, bool hex) {
    size_t capacity = FAR_VALUE_MAX, length = 0;
    char *value = malloc(capacity);
    int err =
        value ? far_get(p->session, p->index, key->bytes, key->length, value, capacity, &length) : FAR_ERR_NO_MEMORY;
    if (err == FAR_ERR_NOT_FOUND) {
        err = cli_failed("the key is not there");
    } else if (err < 0) {
        err = value ? cli_pool_failed() : cli_failed("no memory for a value");
    } else if (p->json) {
        print_json_pair(key->bytes, key->length, value, length, hex);
        putchar('\n');
    } else {
        print_bytes(stdout, value, length, hex);
        putchar('\n');
    }
    free(value);
    return err;
}


static int del(cli_pool *p, const cli_bytes *key, bool hex) {
    (void)hex;
    int err = far_delete(p->session, p->index, key->bytes, key->length);
    if (err == FAR_ERR_NOT_FOUND)
        return cli_failed("the key is not there");
    if (err < 0)
        return cli_pool_failed();
    if (p->json)
        puts("{\"done\":true}");
    return 0;
}


/* A command that takes a name and a key. */
static int on_key(int argc, char **argv, const char *command, const char *usage, const char *hex_note,
                  int (*run)(cli_pool *p, const cli_bytes *key, bool hex)) {
    cli_pool p = {0};
    bool hex = false;
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"hex", CLI_FLAG, &hex, NULL, hex_note},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(argc, argv, usage, options, KEYS_NOTE, 2, 2, &count, &status))
        return status;
    cli_bytes key = {0};
    status = take_key(command, argv[1], hex, &key);
    if (!status && (status = cli_pool_open(command, &p, argv[0])) == 0)
        status = cli_pool_close(&p, run(&p, &key, hex));
    cli_bytes_free(&key);
    return status;
}


int cli_get(int argc, char **argv) {
    return on_key(argc, argv, "get", "get NAME KEY", "key and value are hex", get);
}


int cli_del(int argc, char **argv) {
    return on_key(argc, argv, "del", "del NAME KEY", "the key is hex", del);
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
        print_json_pair(key, key_len, value, value_len, s->hex);
    } else if (s->hex) {
        cli_print_hex(stdout, key, key_len);
        putchar('\t');
        cli_print_hex(stdout, value, value_len);
        putchar('\n');
    } else {
        cli_print_line(stdout, key, key_len, value, value_len);
    }
    return ferror(stdout);
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
