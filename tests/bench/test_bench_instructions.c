/* bench --instructions with a fake counter, because many machines have no counter: the benchmark must report the
 * counted instructions, and explain itself where the counter cannot be opened. */
#include "bench/bench.h"
#include "parse_json.h"
#include "shell.h"
#include "test.h"

#include <errno.h>

enum { OPS = 50, SPENT = 7, BETWEEN = 1000 };

static int refusal;


/* Opens a fake counter, which advances by SPENT inside each call and by BETWEEN outside of calls. */
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


static int fail_to_open(void) {
    errno = refusal;
    return -1;
}


static int run_bench(const char *results) {
    char *words[] = {"bench",     "--index", "toy",        "--records", "100",    "--ops",         "50",
                     "--threads", "1",       "--workload", "c",         "--json", (char *)results, "--instructions"};
    return cli_bench(sizeof(words) / sizeof(words[0]), words);
}


/* The results contain the instructions inside calls, and not those between calls. */
TEST(instructions_inside_calls_are_reported) {
    char name[128];
    snprintf(name, sizeof(name), "%s/results", folder);
    bench_instructions_open = open_fake;
    assert_int_equal(run_bench(name), 0);
    char *text = read_file(name, NULL);
    json_t *rows = parse_json(text);
    const json_t *row = json_array_get(rows, 0);
    assert_true(json_number_value(json_object_get(row, "instructions_per_op")) == SPENT);
    assert_true(json_number_value(json_object_get(json_object_get(json_object_get(row, "by_op"), "get"),
                                                  "instructions_per_op")) == SPENT);
    json_decref(rows);
    free(text);
}


/* Runs the benchmark in a child process with a counter that cannot be opened, and checks its message on stderr. */
static void assert_refused_with(int why, const char *words) {
    int status;
    char name[128];
    snprintf(name, sizeof(name), "%s/said", folder);
    refusal = why;
    bench_instructions_open = fail_to_open;
    pid_t child = fork();
    if (child == 0) {
        FILE *said = freopen(name, "w", stderr);
        int end = said ? run_bench("-") : 127;
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


/* If the counter cannot be opened, the message contains the reason, what permits it, and how valgrind counts
 * instructions instead. */
TEST(a_missing_counter_is_explained) {
    assert_refused_with(EACCES, "Permission denied; 'sysctl kernel.perf_event_paranoid=2' or less permits it");
    assert_refused_with(EPERM, "kernel.perf_event_paranoid");
    assert_refused_with(ENOENT,
                        "No such file or directory; the machine, as many virtual ones, or its kernel has no such");
    assert_refused_with(ENOSYS, "has no such counter");
}


TEST_GROUP(make_folder, remove_folder);
