/* farindex bench --micro on a network: what it prints, and that its steps count instructions. */
#include "cli/bench.h"
#include "cli/bench_network.h"
#include "daemons.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>


static uint64_t count_loop(bench_steps *steps, unsigned times) {
    bench_steps_begin(steps);
    for (volatile unsigned i = 0; i < times; i++)
        continue;
    return bench_steps_end(steps);
}


static void steps_count_instructions(void **state) {
    (void)state;
    bench_steps *steps = bench_steps_open();
    assert_non_null(steps);
    uint64_t few = count_loop(steps, 100), some = count_loop(steps, 200), more = count_loop(steps, 300);
    bench_steps_close(steps);
    assert_true(some >= few + 100);
    assert_int_equal(more - some, some - few);
}


static double field(const char *json, const char *name) {
    const char *at = strstr(json, name);
    if (!at)
        fail_msg("no %s in %s", name, json);
    return strtod(at + strlen(name) + strlen("\": "), NULL);
}


static void round_trips_are_compared_with_raw_ones(void **state) {
    (void)state;
    char uri[256], *text = NULL;
    size_t bytes;
    FILE *json = open_memstream(&text, &bytes);
    daemons_start(1, "16M", "", uri, sizeof(uri));
    assert_int_equal(bench_network(uri, NULL, json), 0);
    fclose(json);
    assert_true(field(text, "raw_us") > 0);
    assert_true(field(text, "read_ratio") > 0);
    assert_true(field(text, "batch_4_us") > 0);
    free(text);
    daemons_end(uri);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_count_instructions),
        cmocka_unit_test(round_trips_are_compared_with_raw_ones),
    };
    return cmocka_run_group_tests_name("cli/bench_network", tests, NULL, NULL);
}
