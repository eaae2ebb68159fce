/* farindex plot: curves of benchmark results, as one page for browsers. */
#include "cli/plot.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>


double plot_number(const json *result, const char *name) {
    const json *field = json_field(result, name);
    return field && field->type == JSON_NUMBER ? field->number : NAN;
}


const char *plot_text(const json *result, const char *name) {
    const json *field = json_field(result, name);
    return field && field->type == JSON_STRING ? field->text : "";
}


const char *plot_base_name(const char *file) {
    const char *slash = strrchr(file, '/');
    return slash ? slash + 1 : file;
}


static char *read_all(FILE *file) {
    size_t room = 1 << 16, used = 0;
    char *text = malloc(room);
    for (size_t got; text && (got = fread(text + used, 1, room - used - 1, file)) > 0;) {
        used += got;
        if (used + 1 < room)
            continue;
        char *larger = realloc(text, room *= 2);
        if (!larger)
            free(text);
        text = larger;
    }
    if (text)
        text[used] = 0;
    return text;
}


/* An array of objects that each have a kind and a workload. */
static bool is_sound(const json *results) {
    if (!results || results->type != JSON_ARRAY)
        return false;
    for (const json *one = results->first; one; one = one->next)
        if (one->type != JSON_OBJECT || !*plot_text(one, "index") || !*plot_text(one, "workload"))
            return false;
    return true;
}


static int read_results(const char *name, plot_file *into) {
    FILE *file = strcmp(name, "-") == 0 ? stdin : fopen(name, "re");
    if (!file)
        return cli_failed("'%s' cannot be read: %s", name, strerror(errno));
    char *text = read_all(file);
    if (file != stdin)
        fclose(file);
    into->name = name;
    into->results = text ? json_read(text) : NULL;
    free(text);
    if (!is_sound(into->results))
        return cli_failed("'%s' is not what 'farindex bench --json' writes", name);
    if (into->results->count == 0)
        return cli_failed("'%s' has no results", name);
    return 0;
}


static bool is_same_experiment(const json *a, const json *b) {
    const json *here = json_field(a, "point"), *there = json_field(b, "point");
    if (strcmp(plot_text(a, "index"), plot_text(b, "index")) != 0 ||
        strcmp(plot_text(a, "workload"), plot_text(b, "workload")) != 0 ||
        plot_number(a, "clients") != plot_number(b, "clients"))
        return false;
    const json *one = here ? here->first : NULL, *other = there ? there->first : NULL;
    for (; one && other; one = one->next, other = other->next)
        if (strcmp(one->name, other->name) != 0 || strcmp(one->text, other->text) != 0)
            return false;
    return !one && !other;
}


static bool are_files_alike(const plot_input *input) {
    for (unsigned i = 0; i < input->count; i++)
        for (unsigned j = i + 1; j < input->count; j++)
            for (const json *a = input->files[i].results->first; a; a = a->next)
                for (const json *b = input->files[j].results->first; b; b = b->next)
                    if (is_same_experiment(a, b))
                        return true;
    return false;
}


/* A page gets its name when it is whole. */
static int write_page(const plot_input *input, const char *name) {
    char made[4096];
    if (strcmp(name, "-") == 0)
        return plot_page(input, stdout);
    if (snprintf(made, sizeof(made), "%s.partial", name) >= (int)sizeof(made))
        return cli_failed("'%s': the name is too long", name);
    FILE *file = fopen(made, "we");
    if (!file)
        return cli_failed("'%s' cannot be written: %s", name, strerror(errno));
    int err = plot_page(input, file);
    if ((fclose(file) != 0 || (!err && rename(made, name) < 0)) && !err)
        err = cli_failed("'%s' cannot be written: %s", name, strerror(errno));
    if (err)
        unlink(made);
    return err;
}


int cli_plot(int argc, char **argv) {
    plot_input input = {0};
    const char *output = "report.html";
    const cli_option options[] = {
        {"output", CLI_TEXT, &output, "FILE|-", "the page (default: report.html); also -o"},
        {NULL, CLI_FLAG, NULL, NULL, NULL},
    };
    static const char notes[] =
        "Results are what 'farindex bench --json FILE' writes. The page needs nothing beside it: curves of "
        "throughput,\n"
        "latency against load, round trips, bytes, cache and memory for each workload, a line for each kind, and a "
        "table\n"
        "beside each. What was swept is the axis: the number of clients, or else the first --sweep that varies.\n"
        "Files with the same experiment are told apart by their names. It needs gnuplot.\n";
    int count, err = 0;
    bool help;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "-o") == 0)
            argv[i] = "--output";
    err = cli_parse(argc, argv, "plot RESULTS.json.. [-o report.html]", options, notes, &count, &help);
    if (err || help)
        return err;
    if (count < 1 || count > PLOT_FILES_MAX)
        return cli_wrong_usage("plot", "1..%d files with results are needed: farindex bench --json FILE",
                               PLOT_FILES_MAX);
    if (!plot_can_draw())
        return cli_failed(
            "plot needs gnuplot, which is not here: 'make deps' or 'apt-get install gnuplot-nox' installs it");
    for (int i = 0; i < count && !err; i++)
        err = read_results(argv[i], &input.files[input.count++]);
    if (!err) {
        input.name_files = are_files_alike(&input);
        err = write_page(&input, output);
    }
    for (unsigned i = 0; i < input.count; i++)
        json_free(input.files[i].results);
    return err;
}
