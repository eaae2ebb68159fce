/* farindex bench --micro on a network: its results, and the instruction counter by single steps (bench/steps.c). */
#include "bench/bench.h"
#include "bench/network.h"
#include "daemons.h"
#include "parse_json.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>


static uint64_t count_loop(bench_steps *steps, unsigned times) {
    bench_steps_begin(steps);
    for (volatile unsigned i = 0; i < times; i++)
        continue;
    return bench_steps_end(steps);
}


/* Counts by single steps are exact: a loop with 100 more iterations has a constant number of additional instructions.
 */
TEST(steps_count_instructions) {
    bench_steps *steps = bench_steps_open();
    assert_non_null(steps);
    uint64_t few = count_loop(steps, 100), some = count_loop(steps, 200), more = count_loop(steps, 300);
    bench_steps_close(steps);
    assert_true(some >= few + 100);
    assert_int_equal(more - some, some - few);
}


static double number_field(const json_t *object, const char *name) {
    return json_number_value(json_object_get(object, name));
}


/* --micro on a tcp pool reports raw round trips, those of the fabric, and their ratio. */
TEST(round_trips_are_compared_with_raw_ones) {
    char uri[256], *text = NULL;
    size_t bytes;
    FILE *json = open_memstream(&text, &bytes);
    daemons_start(1, "16M", "", uri, sizeof(uri));
    assert_int_equal(bench_network(uri, NULL, json), 0);
    fclose(json);
    json_t *result = parse_json(text);
    assert_true(number_field(result, "raw_us") > 0);
    assert_true(number_field(result, "read_ratio") > 0);
    assert_true(number_field(result, "batch_4_us") > 0);
    json_decref(result);
    free(text);
    daemons_end(uri);
}
