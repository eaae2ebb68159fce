/* farindex bench run by a shell, with its results as JSON: what the tests of it share. */
#ifndef TESTS_CLI_BENCH_SHELL_H
#define TESTS_CLI_BENCH_SHELL_H

#include "cli/json.h"

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
    json *results; /* of a run with --json - */
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
    o.results = json_read(o.out);
    return o;
}


static inline void done(outcome *o) {
    free(o->out);
    free(o->err);
    json_free(o->results);
}


static inline outcome run_well(const char *arguments) {
    outcome o = run(arguments);
    if (o.status != 0)
        print_error("bench %s: %s", arguments, o.err);
    assert_int_equal(o.status, 0);
    assert_string_equal(o.err, ""); /* nothing is shown of the progress when stderr is no terminal */
    return o;
}


static inline double number(const json *result, const char *name) {
    const json *field = json_field(result, name);
    if (!field || field->type != JSON_NUMBER)
        print_error("%s is no number\n", name);
    assert_non_null(field);
    assert_int_equal(field->type, JSON_NUMBER);
    return field->number;
}


static inline const char *text(const json *result, const char *name) {
    const json *field = json_field(result, name);
    assert_non_null(field);
    assert_int_equal(field->type, JSON_STRING);
    return field->text;
}


static inline void assert_type(const json *result, const char *name, json_type type) {
    const json *field = json_field(result, name);
    assert_non_null(field);
    assert_int_equal(field->type, type);
}

#endif
