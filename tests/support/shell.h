/* Runs the built command `farindex` in a shell, in a temporary folder and with a separate shm: pool. Used by the tests
 * of the commands. */
#ifndef TESTS_CLI_SHELL_H
#define TESTS_CLI_SHELL_H

#include "conform.h"
#include "made_pools.h"
#include "test.h"

#include <sys/wait.h>
#include <unistd.h>

static char path[64], folder[] = "/tmp/farindex-shell-XXXXXX";

typedef struct outcome {
    int status;
    char *out, *err;
    size_t out_size;
} outcome;


static inline char *read_file(const char *name, size_t *size) {
    FILE *file = fopen(name, "r");
    assert_non_null(file);
    size_t room = 1 << 16, used = 0;
    char *text = malloc(room);
    for (size_t got; (got = fread(text + used, 1, room - used - 1, file)) > 0;) {
        used += got;
        if (used == room - 1)
            text = realloc(text, room *= 2);
        assert_non_null(text);
    }
    fclose(file);
    text[used] = 0;
    if (size)
        *size = used;
    return text;
}


static inline void write_file(const char *name, const void *bytes, size_t count) {
    char full[128];
    snprintf(full, sizeof(full), "%s/%s", folder, name);
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}


/* Runs a command line in the test's folder, with FARINDEX_POOL set. The word "farindex" in it runs the built command.
 */
static inline outcome run(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline outcome run(const char *format, ...) {
    char words[2048], line[4096], name[128];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof(words), format, args);
    va_end(args);
    snprintf(line, sizeof(line), "cd %s; farindex() { %s \"$@\"; }; { %s ; } >out 2>err", folder, FARINDEX_COMMAND,
             words);
    int status = system(line);
    assert_true(WIFEXITED(status));
    outcome o = {.status = WEXITSTATUS(status)};
    snprintf(name, sizeof(name), "%s/out", folder);
    o.out = read_file(name, &o.out_size);
    snprintf(name, sizeof(name), "%s/err", folder);
    o.err = read_file(name, NULL);
    return o;
}


static inline void done(outcome *o) {
    free(o->out);
    free(o->err);
}


static inline void check_run(const char *words, int status, const char *out, const char *err, int line) {
    outcome o = run("%s", words);
    remove_pool_creation_messages(o.err);
    bool fine =
        o.status == status && (!out || strcmp(o.out, out) == 0) && (err ? strstr(o.err, err) != NULL : *o.err == 0);
    if (status != 0 && (!*o.err || strchr(o.err, '\n') != o.err + strlen(o.err) - 1))
        /* A command that fails must exit with status 1 and print exactly one line on stderr. */
        fine = fine && status == 1 && !err;
    if (!fine) {
        print_error("%s\n  status %d, not %d\n  stdout: %s\n  stderr: %s\n", words, o.status, status, o.out, o.err);
        _fail(__FILE__, line);
    }
    done(&o);
}

#define works(words, out)          check_run(words, 0, out, NULL, __LINE__)
#define fails(words, status, word) check_run(words, status, NULL, word, __LINE__)


TEST_FIXTURE(name_pool) {
    static unsigned serial;
    char uri[96];
    snprintf(path, sizeof(path), "/dev/shm/farindex-data-%d-%u", (int)getpid(), ++serial);
    snprintf(uri, sizeof(uri), "shm:%s?size=64M", path);
    return setenv("FARINDEX_POOL", uri, 1);
}


TEST_FIXTURE(remove_pool) {
    unlink(path);
    return 0;
}


TEST_FIXTURE(make_folder) {
    return setenv("LC_ALL", "C", 1) || !mkdtemp(folder);
}


TEST_FIXTURE(remove_folder) {
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command);
}


TEST_FIXTURE(fresh) {
    char command[128];
    snprintf(command, sizeof(command), "rm -f %s/*", folder);
    return system(command) || name_pool(state);
}

#endif
