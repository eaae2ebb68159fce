/* `farindex plot` draws benchmark results as an HTML page. This file reads the results; plot_page.c writes the page. */
#include "bench/plot.h"
#include "bench/bench.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>


double plot_number(const json_t *result, const char *name) {
    const json_t *field = json_object_get(result, name);
    return json_is_number(field) ? json_number_value(field) : NAN;
}


const char *plot_text(const json_t *result, const char *name) {
    const char *text = json_string_value(json_object_get(result, name));
    return text ? text : "";
}


const char *plot_base_name(const char *file) {
    const char *slash = strrchr(file, '/');
    return slash ? slash + 1 : file;
}


/* True if the results are an array of objects that each name a kind and a workload. */
static bool results_are_valid(const json_t *results) {
    size_t i;
    const json_t *result;
    json_array_foreach (results, i, result)
        if (!json_is_object(result) || !*plot_text(result, "index") || !*plot_text(result, "workload"))
            return false;
    return json_is_array(results);
}


static int read_results(const char *name, plot_file *into) {
    FILE *file = strcmp(name, "-") == 0 ? stdin : fopen(name, "re");
    if (!file)
        return cli_failed("'%s' cannot be read: %s", name, strerror(errno));
    into->name = name;
    into->results = json_loadf(file, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    if (file != stdin)
        fclose(file);
    if (!results_are_valid(into->results))
        return cli_failed("'%s' was not written by 'farindex bench --json'", name);
    if (json_array_size(into->results) == 0)
        return cli_failed("'%s' has no results", name);
    return 0;
}


/* True if two results have the same kind, workload, number of clients and settings of a sweep. */
static bool is_same_experiment(const json_t *a, const json_t *b) {
    const json_t *one = json_object_get(a, "point"), *other = json_object_get(b, "point");
    if (strcmp(plot_text(a, "index"), plot_text(b, "index")) != 0 ||
        strcmp(plot_text(a, "workload"), plot_text(b, "workload")) != 0 ||
        plot_number(a, "clients") != plot_number(b, "clients"))
        return false;
    if (json_object_size(one) == 0 && json_object_size(other) == 0)
        return true;
    return json_equal(one, other);
}


static bool files_share_experiment(const plot_input *input) {
    size_t k, l;
    const json_t *a, *b;
    for (unsigned i = 0; i < input->count; i++)
        for (unsigned j = i + 1; j < input->count; j++)
            json_array_foreach (input->files[i].results, k, a)
                json_array_foreach (input->files[j].results, l, b)
                    if (is_same_experiment(a, b))
                        return true;
    return false;
}


/* Writes the page to a temporary file, which is renamed when the page is complete. */
static int write_page(const plot_input *input, const char *name) {
    char temporary[4096];
    if (strcmp(name, "-") == 0)
        return plot_page(input, stdout);
    if (snprintf(temporary, sizeof(temporary), "%s.partial", name) >= (int)sizeof(temporary))
        return cli_failed("'%s': the name is too long", name);
    FILE *file = fopen(temporary, "we");
    if (!file)
        return cli_failed("'%s' cannot be written: %s", name, strerror(errno));
    int err = plot_page(input, file);
    if ((fclose(file) != 0 || (!err && rename(temporary, name) < 0)) && !err)
        err = cli_failed("'%s' cannot be written: %s", name, strerror(errno));
    if (err)
        unlink(temporary);
    return err;
}


int cli_plot(int argc, char **argv) {
    plot_input input = {0};
    const char *output = "report.html";
    const cli_option options[] = {
        {"output", CLI_TEXT, &output, "FILE|-", "file for the page (default: report.html); also -o"},
        {NULL, CLI_FLAG, NULL, NULL, NULL},
    };
    static const char notes[] = "The arguments are files that 'farindex bench --json FILE' has written. The page is "
                                "one file without references: "
                                "for\neach workload it shows throughput, latency against load, round trips, bytes, "
                                "cache and memory, with a line for "
                                "each kind\nand a table for each chart. The x axis is the number of clients, or else "
                                "the first --sweep that varies. "
                                "If several files\ncontain the same experiment, their names distinguish the lines. The "
                                "command needs gnuplot.\n";
    int count, err = 0;
    bool help;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "-o") == 0)
            argv[i] = "--output";
    err = cli_parse(argc, argv, "plot RESULTS.json.. [-o report.html]", options, notes, &count, &help);
    if (err || help)
        return err;
    if (count < 1 || count > PLOT_FILES_MAX)
        return cli_wrong_usage("plot", "give 1 to %d files with results of 'farindex bench --json FILE'",
                               PLOT_FILES_MAX);
    if (!plot_can_draw())
        return cli_failed(
            "plot needs gnuplot, which is not installed; 'make deps' or 'apt-get install gnuplot-nox' installs it");
    for (int i = 0; i < count && !err; i++)
        err = read_results(argv[i], &input.files[input.count++]);
    if (!err) {
        input.name_files = files_share_experiment(&input);
        err = write_page(&input, output);
    }
    for (unsigned i = 0; i < input.count; i++)
        json_decref(input.files[i].results);
    return err;
}
