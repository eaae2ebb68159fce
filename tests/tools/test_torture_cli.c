/* farindex torture reports which named points of the code its seeds have reached, over all of its processes. */
#include "shell.h"
#include "test.h"


/* The last line of the output names the points that no seed has reached, and --coverage prints the counts. Both are
 * the same with one process and with two. Fails without far_coverage_collect in child_main (torture.c). */
TEST(reached_points_are_summed_over_processes) {
    outcome alone = run("farindex torture --index toy --seeds 1..6 --coverage");
    outcome both = run("farindex torture --index toy --seeds 1..6 --coverage --jobs 2");
    assert_int_equal(alone.status, 0);
    assert_int_equal(both.status, 0);
    assert_string_equal(alone.out, both.out);
    const char *last = strstr(alone.out, " of 8 points of its code were met; not met: ");
    assert_non_null(last);
    assert_non_null(strstr(last, "toy:locked (toy_lock_slot)"));
    assert_non_null(strstr(last, "toy:publish (write_locked)"));
    assert_null(strstr(last, "toy:slot_read (toy_get)")); /* the kind has three points with that name */
    assert_non_null(strstr(alone.out, "  toy:publish "));
    assert_null(strstr(alone.out, "  dart:"));
    assert_non_null(strstr(alone.out, "  catalog:")); /* code that all kinds share */
    done(&alone);
    done(&both);
}


/* With the option locks=on the seeds reach all points of the toy map. */
TEST(options_can_reach_all_points) {
    outcome o = run("farindex torture --index toy --seeds 1..6 --depth 4 --options locks=on");
    assert_int_equal(o.status, 0);
    assert_null(strstr(o.out, "toy:locked"));
    assert_null(strstr(o.out, "  toy:")); /* counts are printed with --coverage only */
    done(&o);
}


TEST_GROUP(make_folder, remove_folder);
