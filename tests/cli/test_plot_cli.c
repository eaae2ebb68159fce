/* farindex plot as users meet it: a page that needs nothing beside it. */
#include "left_out.h"
#include "shell.h"

#define BENCH                                                                                                          \
    "farindex bench --pool sim: --index toy,dart --records 300 --ops 200 --workload load,c --sweep clients=1,2,4 "     \
    "--json results.json >/dev/null"


/* There may be no gnuplot: one that draws what it was asked for stands in for it, first in the PATH. */
#define FAKE                                                                                                           \
    "mkdir -p bin && printf '#!/bin/sh\\n{ echo \"<?xml version=\\\\\"1.0\\\\\"?><svg>\"; cat \"$1\"; echo "           \
    "\"</svg>\"; "                                                                                                     \
    "}\\n' >bin/gnuplot && chmod +x bin/gnuplot && PATH=$PWD/bin:$PATH "


static bool has_gnuplot(void) {
    bool there = system("command -v gnuplot >/dev/null") == 0;
    if (!there)
        left_out("pages drawn by gnuplot", "it is not installed");
    return there;
}


static unsigned count_of(const char *text, const char *word) {
    unsigned count = 0;
    for (; (text = strstr(text, word)); text += strlen(word))
        count++;
    return count;
}


static char *read_page(void) {
    char name[128];
    snprintf(name, sizeof(name), "%s/report.html", folder);
    return read_file(name, NULL);
}


static void a_page_has_a_curve_and_a_table_for_each_number(void **state) {
    (void)state;
    works(BENCH, "");
    works(FAKE "farindex plot results.json -o report.html", "");
    char *page = read_page();
    assert_int_equal(count_of(page, "<svg"), 2 * 6); /* two workloads */
    assert_int_equal(count_of(page, "<table"), 2 * 6);
    assert_int_equal(count_of(page, "</svg>"), count_of(page, "<svg"));
    assert_null(strstr(page, "<?xml"));
    assert_null(strstr(page, "http://")); /* nothing is fetched */
    assert_non_null(strstr(page, "Latency against load"));
    assert_non_null(strstr(page, "title 'dart'"));
    assert_non_null(strstr(page, "set xlabel 'clients'"));
    assert_non_null(strstr(page, "<tr><th>4</th>"));
    assert_non_null(strstr(page, "too few")); /* the notes of results: some, and the others behind a fold */
    assert_int_equal(count_of(page, "<details><summary>more notes</summary>"), 1);
    assert_int_equal(count_of(page, "</details></div>"), 1);
    assert_int_equal(count_of(page, "$line1 << END"), 2 * 6); /* toy, then dart */
    free(page);
}


/* The same experiment before and after a change. */
static void files_alike_are_told_apart(void **state) {
    (void)state;
    works("farindex bench --pool sim: --index toy --records 300 --ops 200 --workload c --sweep depth=1,2 --json a.json "
          ">/dev/null && cp a.json b.json",
          "");
    works(FAKE "farindex plot a.json b.json", "");
    char *page = read_page();
    assert_non_null(strstr(page, "title 'toy (a.json)'"));
    assert_non_null(strstr(page, "title 'toy (b.json)'"));
    assert_non_null(strstr(page, "set xlabel 'depth'"));
    free(page);
}


/* What was swept is the axis, in the unit of the results. */
static void a_rate_is_an_axis(void **state) {
    (void)state;
    works("farindex bench --pool sim: --index toy --records 300 --workload c --duration 2ms --threads 2 --sweep "
          "rate=20K,100K,200K --json results.json >/dev/null",
          "");
    works(FAKE "farindex plot results.json", "");
    char *page = read_page();
    assert_non_null(strstr(page, "set xlabel 'offered mops'"));
    assert_non_null(strstr(page, "<tr><th>0.02</th>"));
    assert_non_null(strstr(page, "<tr><th>0.2</th>"));
    assert_int_equal(count_of(page, "$line1 << END"), 0); /* one line */
    free(page);
}


/* Nothing in a file becomes a command of gnuplot or a part of the page. */
static void strange_names_do_no_harm(void **state) {
    static const char evil[] = "[{\"index\":\"a'`touch harm`\\n<script>\",\"workload\":\"<b>\","
                               "\"clients\":1,\"mops\":1,\"p99_us\":2,\"p50_us\":1}]";
    (void)state;
    write_file("evil.json", evil, strlen(evil));
    works(FAKE "farindex plot evil.json", "");
    char *page = read_page();
    assert_non_null(strstr(page, "title 'a''`touch harm`<script>'"));
    assert_non_null(strstr(page, "&lt;script&gt;"));
    assert_non_null(strstr(page, "Workload &lt;b&gt;"));
    free(page);
    if (has_gnuplot())
        works("farindex plot evil.json && test ! -e harm && ! grep '<script' report.html", "");
}


static void gnuplot_draws_it(void **state) {
    (void)state;
    works(BENCH, "");
    if (has_gnuplot())
        works("farindex plot results.json && grep -q '<svg' report.html", "");
}


static void what_cannot_be_plotted_is_told(void **state) {
    (void)state;
    static const char good[] = "[{\"index\":\"a\",\"workload\":\"c\",\"clients\":1,\"mops\":1}]";
    write_file("no.json", "{}", 2);
    write_file("empty.json", "[]", 2);
    fails("PATH=/nowhere farindex plot no.json", 3, "needs gnuplot");
    fails(FAKE "farindex plot no.json", 3, "not what 'farindex bench --json' writes");
    fails(FAKE "farindex plot empty.json", 3, "no results");
    fails(FAKE "farindex plot absent.json", 3, "absent.json");
    fails("farindex plot", 2, "files");
    write_file("good.json", good, strlen(good));
    fails(
        "mkdir -p bin; printf '#!/bin/sh\\nexit 1\\n' >bin/gnuplot; chmod +x bin/gnuplot; PATH=$PWD/bin:$PATH farindex "
        "plot good.json",
        3, "did not draw");
    works("rm -rf bin; ls", "empty.json\nerr\ngood.json\nno.json\nout\n"); /* no half of a page */
}


static int fresh_folder(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s/*", folder);
    return system(command);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_page_has_a_curve_and_a_table_for_each_number, fresh_folder),
        cmocka_unit_test_setup(files_alike_are_told_apart, fresh_folder),
        cmocka_unit_test_setup(a_rate_is_an_axis, fresh_folder),
        cmocka_unit_test_setup(strange_names_do_no_harm, fresh_folder),
        cmocka_unit_test_setup(gnuplot_draws_it, fresh_folder),
        cmocka_unit_test_setup(what_cannot_be_plotted_is_told, fresh_folder),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
