/* What curves results make. */
#include "cli/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a chart shows of a result. */
typedef struct recipe {
    const char *title, *y_label, *caption;
    double (*y)(const json *result);
    double (*second)(const json *result); /* NULL: none */
    bool log_y;
    bool against_load; /* x: what was done a second; else what was varied */
} recipe;


static double mops(const json *result) {
    return plot_number(result, "mops");
}


static double p99(const json *result) {
    return plot_number(result, "p99_us");
}


static double p50(const json *result) {
    return plot_number(result, "p50_us");
}


static double round_trips(const json *result) {
    return plot_number(result, "rtt_per_op");
}


static double bytes(const json *result) {
    return plot_number(result, "read_bytes_per_op") + plot_number(result, "write_bytes_per_op");
}


static double cache_per_key(const json *result) {
    return plot_number(result, "cache_bytes_used") / plot_number(result, "records");
}


static double memory_per_key(const json *result) {
    return plot_number(result, "index_bytes_per_key");
}


static const recipe recipes[] = {
    {"Throughput", "million operations / s", "Higher is better.", mops, NULL, false, false},
    {"Latency against load", "latency, us",
     "Lines with points: p99; broken ones: p50. Lower and further right is better.", p99, p50, true, true},
    {"Round trips", "round trips / operation", "Lower is better.", round_trips, NULL, false, false},
    {"Bytes moved", "bytes / operation", "Read and written, work in the background included. Lower is better.", bytes,
     NULL, true, false},
    {"Cache", "cache bytes / key", "Of each compute node. Lower is better.", cache_per_key, NULL, true, false},
    {"Memory", "bytes / key", "Far memory beyond the keys and values. Lower is better.", memory_per_key, NULL, false,
     false},
};

_Static_assert(sizeof(recipes) / sizeof(recipes[0]) <= PLOT_CHARTS_MAX, "each has a place");


/* What was varied. */

static const char *point_value(const json *result, const char *name) {
    const json *point = json_field(result, "point"), *value = point ? json_field(point, name) : NULL;
    return value && value->type == JSON_STRING ? value->text : NULL;
}


/* "16", "64K", "1M", of options of kinds: powers of 1024. NAN: no number. */
static double value_of(const char *text) {
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


/* Where a result has the number of a flag. */
static void field_of(const char *flag, char field[PLOT_LABEL_MAX]) {
    if (strcmp(flag, "rate") == 0)
        flag = "offered_mops";
    if (strcmp(flag, "cache") == 0)
        flag = "cache_bytes";
    snprintf(field, PLOT_LABEL_MAX, "%.100s", flag);
    for (char *at = field; (at = strchr(at, '-'));)
        *at = '_';
}


static double setting_of(const json *result, const char *name) {
    char field[PLOT_LABEL_MAX];
    field_of(name, field);
    double number = plot_number(result, field);
    return isfinite(number) ? number : value_of(point_value(result, name));
}


typedef bool (*visitor)(void *ctx, const plot_file *file, const json *result);


/* Calls `visit` with each result of the workload until it says so. */
static bool any(const plot_input *input, const char *workload, visitor visit, void *ctx) {
    for (unsigned i = 0; i < input->count; i++)
        for (const json *one = input->files[i].results->first; one; one = one->next)
            if (strcmp(plot_text(one, "workload"), workload) == 0 && visit(ctx, &input->files[i], one))
                return true;
    return false;
}


typedef struct variation {
    const char *name;
    double first;
} variation;


static bool differs(void *ctx, const plot_file *file, const json *result) {
    variation *v = ctx;
    double value = setting_of(result, v->name);
    (void)file;
    if (!isfinite(value))
        return false;
    if (!isfinite(v->first))
        v->first = value;
    return value != v->first;
}


static bool varies(const plot_input *input, const char *workload, const char *name) {
    variation v = {name, NAN};
    return any(input, workload, differs, &v);
}


static bool makes_clients(const char *name) {
    return strcmp(name, "clients") == 0 || strcmp(name, "threads") == 0 || strcmp(name, "compute-nodes") == 0;
}


/* The number of clients, if it varies and no rate does; else what was swept and has numbers. */
static const char *find_setting(const plot_input *input, const char *workload) {
    const json *point = json_field(input->files[0].results->first, "point");
    const char *swept = NULL;
    for (const json *one = point ? point->first : NULL; one && !swept; one = one->next)
        if (varies(input, workload, one->name))
            swept = one->name;
    bool by_clients = varies(input, workload, "clients");
    if (by_clients && (!swept || makes_clients(swept)))
        return "clients";
    return swept ? swept : "clients";
}


/* Lines. */

static bool is_axis(const char *name, const char *setting) {
    if (strcmp(name, setting) == 0)
        return true;
    return strcmp(setting, "clients") == 0 && makes_clients(name);
}


static void label_of(const plot_input *input, const plot_file *file, const json *result, const char *setting,
                     char label[PLOT_LABEL_MAX]) {
    const json *point = json_field(result, "point");
    size_t used = (size_t)snprintf(label, PLOT_LABEL_MAX, "%.40s", plot_text(result, "index"));
    for (const json *one = point ? point->first : NULL; one && used < PLOT_LABEL_MAX; one = one->next)
        if (one->type == JSON_STRING && !is_axis(one->name, setting))
            used += (size_t)snprintf(label + used, PLOT_LABEL_MAX - used, " %.24s=%.24s", one->name, one->text);
    if (input->name_files && used < PLOT_LABEL_MAX)
        snprintf(label + used, PLOT_LABEL_MAX - used, " (%.40s)", plot_base_name(file->name));
}


typedef struct filling {
    const plot_input *input;
    const char *setting;
    const recipe *recipe;
    plot_chart *chart;
    bool crowded;
} filling;


static plot_line *line_of(plot_chart *chart, const char *label) {
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


static bool add_result(void *ctx, const plot_file *file, const json *result) {
    filling *f = ctx;
    char label[PLOT_LABEL_MAX];
    label_of(f->input, file, result, f->setting, label);
    plot_line *line = line_of(f->chart, label);
    if (!line || line->count == PLOT_ROWS_MAX) {
        f->crowded = true;
        return true;
    }
    plot_row row = {.setting = setting_of(result, f->setting), .y = f->recipe->y(result), .second = NAN};
    row.x = f->recipe->against_load ? mops(result) : row.setting;
    if (f->recipe->second)
        row.second = f->recipe->second(result);
    if (isfinite(row.setting) && isfinite(row.x) && isfinite(row.y))
        line->rows[line->count++] = row;
    return false;
}


static int by_setting(const void *a, const void *b) {
    double left = ((const plot_row *)a)->setting, right = ((const plot_row *)b)->setting;
    return left < right ? -1 : left > right;
}


/* Axes whose values double have ticks at even distances. */
static bool is_wide(const plot_chart *chart) {
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


static bool is_empty(const plot_chart *chart) {
    for (unsigned i = 0; i < chart->count; i++)
        if (chart->lines[i].count)
            return false;
    return true;
}


static void finish(plot_chart *chart, const recipe *recipe, const char *setting) {
    for (unsigned i = 0; i < chart->count; i++)
        qsort(chart->lines[i].rows, chart->lines[i].count, sizeof(plot_row), by_setting);
    chart->title = recipe->title;
    chart->y_label = recipe->y_label;
    chart->caption = recipe->caption;
    chart->pairs = recipe->against_load;
    chart->log_x = !recipe->against_load && is_wide(chart);
    chart->log_y = recipe->log_y && has_positive_numbers_only(chart);
    field_of(setting, chart->setting);
    for (char *at = chart->setting; (at = strchr(at, '_'));)
        *at = ' ';
    snprintf(chart->x_label, sizeof(chart->x_label), "%s",
             recipe->against_load ? "million operations / s" : chart->setting);
}


int plot_charts(const plot_input *input, const char *workload, plot_chart *charts[PLOT_CHARTS_MAX]) {
    int count = 0;
    const char *setting = find_setting(input, workload);
    for (size_t i = 0; i < sizeof(recipes) / sizeof(recipes[0]); i++) {
        plot_chart *chart = calloc(1, sizeof(*chart));
        filling f = {.input = input, .setting = setting, .recipe = &recipes[i], .chart = chart};
        if (!chart)
            return cli_failed("no memory for a chart"), -1;
        any(input, workload, add_result, &f);
        if (f.crowded) {
            free(chart);
            cli_failed("workload %s has more than %d lines, or more than %d points of one: plot fewer files", workload,
                       PLOT_LINES_MAX, PLOT_ROWS_MAX);
            return -1;
        }
        finish(chart, &recipes[i], setting);
        if (is_empty(chart))
            free(chart);
        else
            charts[count++] = chart;
    }
    return count;
}
