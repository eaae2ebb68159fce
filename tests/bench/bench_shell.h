/* Helpers for tests that run `farindex bench` in a shell and read its results as JSON. */
#ifndef TESTS_CLI_BENCH_SHELL_H
#define TESTS_CLI_BENCH_SHELL_H

#include "parse_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct outcome {
    int status;
    char *out, *err;
    json_t *results; /* the parsed results of a benchmark with --json - */
} outcome;


static inline char *read_all(FILE *file) {
    size_t size = 1 << 16, used = 0;
    char *text = malloc(size);
    assert_non_null(text);
    for (size_t got; (got = fread(text + used, 1, size - used - 1, file)) > 0;) {
        used += got;
        if (used == size - 1)
            text = realloc(text, size *= 2);
        assert_non_null(text);
    }
    text[used] = 0;
    return text;
}


static inline outcome run(const char *arguments) {
    char errors[] = "/tmp/farindex-bench-XXXXXX", command[2048];
    int file = mkstemp(errors);
    assert_true(file >= 0);
    snprintf(command, sizeof(command), "%s bench %s 2>%s", FARINDEX_COMMAND, arguments, errors);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    outcome o = {.out = read_all(pipe)};
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    o.status = WEXITSTATUS(status);
    FILE *err = fdopen(file, "r");
    assert_non_null(err);
    o.err = read_all(err);
    fclose(err);
    unlink(errors);
    o.results = parse_json(o.out);
    return o;
}


static inline void done(outcome *o) {
    free(o->out);
    free(o->err);
    json_decref(o->results);
}


static inline outcome run_well(const char *arguments) {
    outcome o = run(arguments);
    if (o.status != 0)
        print_error("bench %s: %s", arguments, o.err);
    assert_int_equal(o.status, 0);
    assert_string_equal(o.err, ""); /* no progress is shown, because stderr is no terminal */
    return o;
}


static inline double number(const json_t *result, const char *name) {
    const json_t *field = json_object_get(result, name);
    if (!json_is_number(field))
        print_error("%s is no number\n", name);
    assert_non_null(field);
    assert_true(json_is_number(field));
    return json_number_value(field);
}


static inline const char *text(const json_t *result, const char *name) {
    const json_t *field = json_object_get(result, name);
    assert_non_null(field);
    assert_int_equal(json_typeof(field), JSON_STRING);
    return json_string_value(field);
}


static inline void assert_type(const json_t *result, const char *name, json_type type) {
    const json_t *field = json_object_get(result, name);
    assert_non_null(field);
    assert_int_equal(json_typeof(field), type);
}

#endif
