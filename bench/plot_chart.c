/* Computes the charts of farindex plot from benchmark results: which option is the axis, which results form a line, and
 * which numbers each chart shows. */
#include "bench/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Describes one chart: its texts, and the numbers of a result that it shows. */
typedef struct chart_recipe {
    const char *title, *y_label, *caption;
    double (*y)(const json_t *result);
    double (*second)(const json_t *result); /* NULL for none */
    bool log_y;
    bool against_load; /* true if x is the measured throughput; otherwise x is the varied option */
} chart_recipe;


static double throughput_of(const json_t *result) {
    return plot_number(result, "mops");
}


static double tail_latency_of(const json_t *result) {
    return plot_number(result, "p99_us");
}


static double median_latency_of(const json_t *result) {
    return plot_number(result, "p50_us");
}


static double round_trips_of(const json_t *result) {
    return plot_number(result, "rtt_per_op");
}


static double bytes_moved_of(const json_t *result) {
    return plot_number(result, "read_bytes_per_op") + plot_number(result, "write_bytes_per_op");
}


static double cache_per_key_of(const json_t *result) {
    return plot_number(result, "cache_bytes_used") / plot_number(result, "records");
}


static double memory_per_key_of(const json_t *result) {
    return plot_number(result, "index_bytes_per_key");
}


static const chart_recipe recipes[] = {
    {"Throughput", "million operations / s", "Higher is better.", throughput_of, NULL, false, false},
    {"Latency against load", "latency, us",
     "Lines with points: p99; broken ones: p50. Lower and further right is better.", tail_latency_of, median_latency_of,
     true, true},
    {"Round trips", "round trips / operation", "Lower is better.", round_trips_of, NULL, false, false},
    {"Bytes moved", "bytes / operation", "Read and written, work in the background included. Lower is better.",
     bytes_moved_of, NULL, true, false},
    {"Cache", "cache bytes / key", "Of each compute node. Lower is better.", cache_per_key_of, NULL, true, false},
    {"Memory", "bytes / key", "Far memory beyond the keys and values. Lower is better.", memory_per_key_of, NULL, false,
     false},
};

_Static_assert(sizeof(recipes) / sizeof(recipes[0]) <= PLOT_CHARTS_MAX, "each has a place");


/* ---- The varied option ---- */

static const char *point_value(const json_t *result, const char *name) {
    return json_string_value(json_object_get(json_object_get(result, "point"), name));
}


/* Parses a value such as "16", "64K" or "1M" of an option of a kind; the suffixes are powers of 1024. Returns NAN if
 * the text is no number. */
static double parse_setting_value(const char *text) {
    static const char units[] = "KMGT";
    char *end;
    double value = text ? strtod(text, &end) : NAN;
    if (!text || end == text)
        return NAN;
    const char *unit = *end ? strchr(units, *end) : NULL;
    for (long power = unit ? unit - units + 1 : 0; power > 0; power--)
        value *= 1024;
    return value;
}


/* Writes the name of the result's field that contains the number of an option. */
static void write_field_name(const char *flag, char field[PLOT_LABEL_MAX]) {
    if (strcmp(flag, "rate") == 0)
        flag = "offered_mops";
    if (strcmp(flag, "cache") == 0)
        flag = "cache_bytes";
    snprintf(field, PLOT_LABEL_MAX, "%.100s", flag);
    for (char *at = field; (at = strchr(at, '-'));)
        *at = '_';
}


static double setting_of(const json_t *result, const char *name) {
    char field[PLOT_LABEL_MAX];
    write_field_name(name, field);
    double number = plot_number(result, field);
    return isfinite(number) ? number : parse_setting_value(point_value(result, name));
}


typedef bool (*visitor)(void *ctx, const plot_file *file, const json_t *result);


/* Calls `visit` with each result of the workload until it returns true. Returns whether it did. */
static bool visit_results(const plot_input *input, const char *workload, visitor visit, void *ctx) {
    size_t k;
    const json_t *result;
    for (unsigned i = 0; i < input->count; i++)
        json_array_foreach (input->files[i].results, k, result)
            if (strcmp(plot_text(result, "workload"), workload) == 0 && visit(ctx, &input->files[i], result))
                return true;
    return false;
}


typedef struct variation {
    const char *name;
    double first;
} variation;


static bool setting_differs(void *ctx, const plot_file *file, const json_t *result) {
    variation *v = ctx;
    double value = setting_of(result, v->name);
    (void)file;
    if (!isfinite(value))
        return false;
    if (!isfinite(v->first))
        v->first = value;
    return value != v->first;
}


static bool setting_varies(const plot_input *input, const char *workload, const char *name) {
    variation v = {name, NAN};
    return visit_results(input, workload, setting_differs, &v);
}


static bool option_sets_clients(const char *name) {
    return strcmp(name, "clients") == 0 || strcmp(name, "threads") == 0 || strcmp(name, "compute-nodes") == 0;
}


/* Returns the option for the x axis: the number of clients if it varies and no other option is swept, and otherwise the
 * first swept option that varies and has numbers. */
static const char *find_setting(const plot_input *input, const char *workload) {
    json_t *point = json_object_get(json_array_get(input->files[0].results, 0), "point");
    const char *swept = NULL, *name;
    json_t *value;
    json_object_foreach (point, name, value)
        if (!swept && setting_varies(input, workload, name))
            swept = name;
    bool by_clients = setting_varies(input, workload, "clients");
    if (by_clients && (!swept || option_sets_clients(swept)))
        return "clients";
    return swept ? swept : "clients";
}


/* ---- Lines ---- */

static bool is_axis(const char *name, const char *setting) {
    if (strcmp(name, setting) == 0)
        return true;
    return strcmp(setting, "clients") == 0 && option_sets_clients(name);
}


static void write_label(const plot_input *input, const plot_file *file, const json_t *result, const char *setting,
                        char label[PLOT_LABEL_MAX]) {
    json_t *point = json_object_get(result, "point"), *value;
    const char *name;
    size_t used = (size_t)snprintf(label, PLOT_LABEL_MAX, "%.40s", plot_text(result, "index"));
    json_object_foreach (point, name, value)
        if (used < PLOT_LABEL_MAX && json_is_string(value) && !is_axis(name, setting))
            used +=
                (size_t)snprintf(label + used, PLOT_LABEL_MAX - used, " %.24s=%.24s", name, json_string_value(value));
    if (input->name_files && used < PLOT_LABEL_MAX)
        snprintf(label + used, PLOT_LABEL_MAX - used, " (%.40s)", plot_base_name(file->name));
}


typedef struct filling {
    const plot_input *input;
    const char *setting;
    const chart_recipe *chart_recipe;
    plot_chart *chart;
    bool crowded;
} filling;


static plot_line *find_or_add_line(plot_chart *chart, const char *label) {
    for (unsigned i = 0; i < chart->count; i++)
        if (strcmp(chart->lines[i].label, label) == 0)
            return &chart->lines[i];
    if (chart->count == PLOT_LINES_MAX)
        return NULL;
    plot_line *line = &chart->lines[chart->count];
    line->color = chart->count++;
    snprintf(line->label, sizeof(line->label), "%s", label);
    return line;
}


static bool add_result(void *ctx, const plot_file *file, const json_t *result) {
    filling *f = ctx;
    char label[PLOT_LABEL_MAX];
    write_label(f->input, file, result, f->setting, label);
    plot_line *line = find_or_add_line(f->chart, label);
    if (!line || line->count == PLOT_ROWS_MAX) {
        f->crowded = true;
        return true;
    }
    plot_row row = {.setting = setting_of(result, f->setting), .y = f->chart_recipe->y(result), .second = NAN};
    row.x = f->chart_recipe->against_load ? throughput_of(result) : row.setting;
    if (f->chart_recipe->second)
        row.second = f->chart_recipe->second(result);
    if (isfinite(row.setting) && isfinite(row.x) && isfinite(row.y))
        line->rows[line->count++] = row;
    return false;
}


static int compare_settings(const void *a, const void *b) {
    double left = ((const plot_row *)a)->setting, right = ((const plot_row *)b)->setting;
    return left < right ? -1 : left > right;
}


/* True if the largest x is many times the smallest. Then a logarithmic axis shows doublings at equal distances. */
static bool has_wide_range(const plot_chart *chart) {
    double least = INFINITY, most = -INFINITY;
    for (unsigned i = 0; i < chart->count; i++)
        for (unsigned j = 0; j < chart->lines[i].count; j++) {
            least = fmin(least, chart->lines[i].rows[j].x);
            most = fmax(most, chart->lines[i].rows[j].x);
        }
    return least > 0 && most >= 8 * least;
}


static bool has_positive_numbers_only(const plot_chart *chart) {
    for (unsigned i = 0; i < chart->count; i++)
        for (unsigned j = 0; j < chart->lines[i].count; j++)
            if (!(chart->lines[i].rows[j].y > 0))
                return false;
    return true;
}


static bool has_no_points(const plot_chart *chart) {
    for (unsigned i = 0; i < chart->count; i++)
        if (chart->lines[i].count)
            return false;
    return true;
}


static void complete_chart(plot_chart *chart, const chart_recipe *chart_recipe, const char *setting) {
    for (unsigned i = 0; i < chart->count; i++)
        qsort(chart->lines[i].rows, chart->lines[i].count, sizeof(plot_row), compare_settings);
    chart->title = chart_recipe->title;
    chart->y_label = chart_recipe->y_label;
    chart->caption = chart_recipe->caption;
    chart->pairs = chart_recipe->against_load;
    chart->log_x = !chart_recipe->against_load && has_wide_range(chart);
    chart->log_y = chart_recipe->log_y && has_positive_numbers_only(chart);
    write_field_name(setting, chart->setting);
    for (char *at = chart->setting; (at = strchr(at, '_'));)
        *at = ' ';
    snprintf(chart->x_label, sizeof(chart->x_label), "%s",
             chart_recipe->against_load ? "million operations / s" : chart->setting);
}


int plot_charts(const plot_input *input, const char *workload, plot_chart *charts[PLOT_CHARTS_MAX]) {
    int count = 0;
    const char *setting = find_setting(input, workload);
    for (size_t i = 0; i < sizeof(recipes) / sizeof(recipes[0]); i++) {
        plot_chart *chart = calloc(1, sizeof(*chart));
        filling f = {.input = input, .setting = setting, .chart_recipe = &recipes[i], .chart = chart};
        if (!chart)
            return cli_failed("no memory for a chart"), -1;
        visit_results(input, workload, add_result, &f);
        if (f.crowded) {
            free(chart);
            cli_failed("workload %s has more than %d lines, or more than %d points of one: plot fewer files", workload,
                       PLOT_LINES_MAX, PLOT_ROWS_MAX);
            return -1;
        }
        complete_chart(chart, &recipes[i], setting);
        if (has_no_points(chart))
            free(chart);
        else
            charts[count++] = chart;
    }
    return count;
}
