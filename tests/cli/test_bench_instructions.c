/* bench --instructions with a counter of the test's own, since many machines have none: what it counts is what is told,
 * and where there is none the words say why, and how it goes without. */
#include "cli/bench.h"
#include "cli/json.h"
#include "shell.h"

#include <errno.h>

enum { OPS = 50, SPENT = 7, BETWEEN = 1000 };

static int refusal;


/* A counter that moves by SPENT inside each call and by BETWEEN outside. */
static int open_fake(void) {
    int ends[2];
    uint64_t count = 0;
    assert_int_equal(pipe(ends), 0);
    for (unsigned i = 0; i < 2 * OPS; i++) {
        assert_int_equal(write(ends[1], &count, sizeof(count)), sizeof(count));
        count += i % 2 ? BETWEEN : SPENT;
    }
    close(ends[1]);
    return ends[0];
}


static int refuse(void) {
    errno = refusal;
    return -1;
}


static int bench(const char *results) {
    char *words[] = {"bench",     "--index", "toy",        "--records", "100",    "--ops",         "50",
                     "--threads", "1",       "--workload", "c",         "--json", (char *)results, "--instructions"};
    return cli_bench(sizeof(words) / sizeof(words[0]), words);
}


static void what_is_counted_inside_calls_is_told(void **state) {
    (void)state;
    char name[128];
    snprintf(name, sizeof(name), "%s/results", folder);
    bench_instructions_open = open_fake;
    assert_int_equal(bench(name), 0);
    char *text = read_file(name, NULL);
    json *rows = json_read(text);
    const json *row = json_item(rows, 0);
    assert_true(json_field(row, "instructions_per_op")->number == SPENT);
    assert_true(json_field(json_field(json_field(row, "by_op"), "get"), "instructions_per_op")->number == SPENT);
    json_free(rows);
    free(text);
}


/* The words go to stderr of a child. */
static void refused_with(int why, const char *words) {
    int status;
    char name[128];
    snprintf(name, sizeof(name), "%s/said", folder);
    refusal = why;
    bench_instructions_open = refuse;
    pid_t child = fork();
    if (child == 0) {
        FILE *said = freopen(name, "w", stderr);
        int end = said ? bench("-") : 127;
        fflush(stderr);
        _exit(end);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == CLI_FAILED);
    char *said = read_file(name, NULL);
    if (!strstr(said, words))
        fail_msg("'%s' does not say '%s'", said, words);
    assert_non_null(strstr(said, "valgrind --tool=callgrind --toggle-collect=far_get farindex bench"));
    free(said);
}


static void without_a_counter_it_says_why_and_what_else_counts(void **state) {
    (void)state;
    refused_with(EACCES, "Permission denied; 'sysctl kernel.perf_event_paranoid=2' or less permits it");
    refused_with(EPERM, "kernel.perf_event_paranoid");
    refused_with(ENOENT, "No such file or directory; the machine, as many virtual ones, or its kernel has no such");
    refused_with(ENOSYS, "has no such counter");
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_counted_inside_calls_is_told),
        cmocka_unit_test(without_a_counter_it_says_why_and_what_else_counts),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
