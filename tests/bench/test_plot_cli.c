/* farindex plot as users run it: the page must be complete in one file, and must show all results. */
#include "left_out.h"
#include "shell.h"
#include "test.h"

#define BENCH                                                                                                          \
    "farindex bench --pool sim: --index toy,dart --records 300 --ops 200 --workload load,c --sweep clients=1,2,4 "     \
    "--json results.json >/dev/null"


/* A fake gnuplot for machines without gnuplot: it prints its script. It is the first program of that name in PATH. */
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


TEST_FIXTURE(fresh_folder) {
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s/*", folder);
    return system(command);
}


/* The page has six charts for each of the two workloads, and a table for each chart. It shows the warnings of the
 * results, and refers to no other file. */
TEST_WITH(a_page_has_a_curve_and_a_table_for_each_number, fresh_folder, NULL) {
    works(BENCH, "");
    works(FAKE "farindex plot results.json -o report.html", "");
    char *page = read_page();
    assert_int_equal(count_of(page, "<svg"), 2 * 6); /* two workloads with six charts each */
    assert_int_equal(count_of(page, "<table"), 2 * 6);
    assert_int_equal(count_of(page, "</svg>"), count_of(page, "<svg"));
    assert_null(strstr(page, "<?xml"));
    assert_null(strstr(page, "http://")); /* the page fetches nothing */
    assert_non_null(strstr(page, "<dt>command</dt><dd>farindex bench --pool sim: "));
    assert_non_null(strstr(page, "Latency against load"));
    assert_non_null(strstr(page, "title 'dart'"));
    assert_non_null(strstr(page, "set xlabel 'clients'"));
    assert_non_null(strstr(page, "<tr><th>4</th>"));
    /* the warnings of the results: some are shown, and the reader can unfold the others */
    assert_non_null(strstr(page, "too few"));
    assert_int_equal(count_of(page, "<details><summary>more notes</summary>"), 1);
    assert_int_equal(count_of(page, "</details></div>"), 1);
    assert_int_equal(count_of(page, "$line1 << END"), 2 * 6); /* the lines of toy and of dart */
    free(page);
}


/* The labels of lines contain the file name if two files have the same experiment. */
TEST_WITH(files_with_equal_experiments_are_distinguished, fresh_folder, NULL) {
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


/* If the rate was swept, it is the x axis, in the unit of the results. */
TEST_WITH(a_rate_is_an_axis, fresh_folder, NULL) {
    works("farindex bench --pool sim: --index toy --records 300 --workload c --duration 2ms --threads 2 --sweep "
          "rate=20K,100K,200K --json results.json >/dev/null",
          "");
    works(FAKE "farindex plot results.json", "");
    char *page = read_page();
    assert_non_null(strstr(page, "set xlabel 'offered mops'"));
    assert_non_null(strstr(page, "<tr><th>0.02</th>"));
    assert_non_null(strstr(page, "<tr><th>0.2</th>"));
    assert_int_equal(count_of(page, "$line1 << END"), 0); /* there is only one line */
    free(page);
}


/* Text in a result file becomes neither a command of gnuplot nor an element of the page. Fails without print_quoted
 * (plot_draw.c) or print_escaped (plot_page.c). */
TEST_WITH(strange_names_do_no_harm, fresh_folder, NULL) {
    static const char evil[] = "[{\"index\":\"a'`touch harm`\\n<script>\",\"workload\":\"<b>\","
                               "\"clients\":1,\"mops\":1,\"p99_us\":2,\"p50_us\":1}]";
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


/* If gnuplot is installed, it draws the charts. */
TEST_WITH(gnuplot_accepts_the_script, fresh_folder, NULL) {
    works(BENCH, "");
    if (has_gnuplot())
        works("farindex plot results.json && grep -q '<svg' report.html", "");
}


/* Files that are no results, empty results, missing files, and a missing or failing gnuplot are reported, and no
 * incomplete page is left. */
TEST_WITH(invalid_results_are_refused, fresh_folder, NULL) {
    static const char good[] = "[{\"index\":\"a\",\"workload\":\"c\",\"clients\":1,\"mops\":1}]";
    write_file("no.json", "{}", 2);
    write_file("empty.json", "[]", 2);
    fails("PATH=/nowhere farindex plot no.json", 3, "needs gnuplot");
    fails(FAKE "farindex plot no.json", 3, "was not written by 'farindex bench --json'");
    fails(FAKE "farindex plot empty.json", 3, "no results");
    fails(FAKE "farindex plot absent.json", 3, "absent.json");
    fails("farindex plot", 2, "files");
    write_file("good.json", good, strlen(good));
    fails(
        "mkdir -p bin; printf '#!/bin/sh\\nexit 1\\n' >bin/gnuplot; chmod +x bin/gnuplot; PATH=$PWD/bin:$PATH farindex "
        "plot good.json",
        3, "did not draw");
    works("rm -rf bin; ls", "empty.json\nerr\ngood.json\nno.json\nout\n"); /* no incomplete page */
}


TEST_GROUP(make_folder, remove_folder);
