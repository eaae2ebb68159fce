/* torture tells which points of the code its seeds have met, over all the processes in which they ran. */
#include "shell.h"


/* The last line names what was not met; --coverage counts. (child_main without far_coverage_take: two processes meet nothing.) */
static void what_was_met_is_told_and_summed_over_processes(void **state) {
    (void)state;
    outcome alone = run("farindex torture --index toy --seeds 1..6 --coverage");
    outcome both = run("farindex torture --index toy --seeds 1..6 --coverage --jobs 2");
    assert_int_equal(alone.status, 0);
    assert_int_equal(both.status, 0);
    assert_string_equal(alone.out, both.out);
    const char *last = strstr(alone.out, " of 8 points of its code were met; not met: ");
    assert_non_null(last);
    assert_non_null(strstr(last, "toy:locked (toy_lock_slot)"));
    assert_non_null(strstr(last, "toy:publish (write_locked)"));
    assert_null(strstr(last, "toy:slot_read (toy_get)")); /* one of three with that name */
    assert_non_null(strstr(alone.out, "  toy:publish "));
    assert_null(strstr(alone.out, "  dart:"));
    assert_non_null(strstr(alone.out, "  catalog:")); /* what all kinds stand on */
    done(&alone);
    done(&both);
}


static void all_are_met_with_the_options_that_take_one_there(void **state) {
    (void)state;
    outcome o = run("farindex torture --index toy --seeds 1..6 --depth 4 --options locks=on");
    assert_int_equal(o.status, 0);
    assert_null(strstr(o.out, "toy:locked"));
    assert_null(strstr(o.out, "  toy:")); /* the counts were not asked for */
    done(&o);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_met_is_told_and_summed_over_processes),
        cmocka_unit_test(all_are_met_with_the_options_that_take_one_there),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
