/* Writes the HTML page of farindex plot. Each workload has its charts, and each chart has a table of its numbers. */
#include "bench/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NOTES_SHOWN 4 /* number of warnings shown at once; the reader can unfold the others */

#define WORKLOADS_MAX 16

static const char style[] =
    "body{font:15px/1.5 Helvetica,Arial,sans-serif;color:#1c242c;background:#fff;margin:0 auto;max-width:1240px;"
    "padding:24px}\n"
    "h1{font-size:26px;margin:0 0 4px}h2{font-size:20px;margin:40px 0 8px;padding-top:16px;border-top:1px solid "
    "#dde2e7}\n"
    "h3{font-size:16px;margin:0}p{margin:4px 0}.soft{color:#5b6670}nav a{margin-right:16px}a{color:#1f6fb4}\n"
    "figure{display:flex;flex-wrap:wrap;gap:24px;align-items:flex-start;margin:20px 0}\n"
    ".curve{flex:1 1 560px;max-width:700px}.curve svg{width:100%;height:auto}.numbers{flex:1 1 360px;overflow-x:auto}\n"
    "table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;white-space:nowrap}\n"
    "th,td{padding:3px 9px;text-align:right;border-bottom:1px solid #e8ecf0}th:first-child{text-align:left}\n"
    "thead th{border-bottom:2px solid #c6cdd4;vertical-align:bottom}dl{display:grid;grid-template-columns:max-content "
    "auto;gap:2px 16px;margin:12px 0}\n"
    "dt{color:#5b6670}dd{margin:0}.dot{display:inline-block;width:9px;height:9px;border-radius:50%;margin-right:6px}\n"
    ".notes{background:#fff7e6;border-left:4px solid #e0a100;padding:8px 16px;margin:16px 0}\n";


static void print_escaped(FILE *file, const char *text) {
    for (; *text; text++) {
        if (*text == '<')
            fputs("&lt;", file);
        else if (*text == '>')
            fputs("&gt;", file);
        else if (*text == '&')
            fputs("&amp;", file);
        else if (*text == '"')
            fputs("&quot;", file);
        else
            fputc(*text, file);
    }
}


/* ---- The circumstances of the measurement ---- */

static void print_fact(FILE *file, const char *name, const char *value) {
    if (!*value)
        return;
    fputs("<dt>", file);
    print_escaped(file, name);
    fputs("</dt><dd>", file);
    print_escaped(file, value);
    fputs("</dd>\n", file);
}


/* Prints the facts of the files `input->files[i]` for which `described[i]` is true. They are equal, except for the
 * command lines. */
static void print_facts(FILE *file, const plot_input *input, const bool described[], const char *names) {
    const json_t *one = NULL;
    char text[512];
    fputs("<dl>\n", file);
    print_fact(file, "results", names);
    for (unsigned i = 0; i < input->count; i++)
        if (described[i]) {
            one = json_array_get(input->files[i].results, 0);
            print_fact(file, "command", plot_text(one, "command"));
        }
    const json_t *host = json_object_get(one, "host");
    print_fact(file, "pool", plot_text(one, "pool"));
    snprintf(text, sizeof(text), "%.0f records, keys %.60s, values of %.0f bytes, cache %.0f MiB a compute node",
             plot_number(one, "records"), plot_text(one, "keys"), plot_number(one, "value_size"),
             plot_number(one, "cache_bytes") / (1 << 20));
    print_fact(file, "data", text);
    if (json_object_get(one, "virtual"))
        print_fact(file, "time", "virtual, of the simulator's model of NICs: the same on every machine");
    snprintf(text, sizeof(text), "%.60s %.120s%s%.60s", plot_text(one, "version"), plot_text(one, "commit"),
             *plot_text(one, "build") ? ", " : "", plot_text(one, "build"));
    print_fact(file, "farindex", text);
    print_fact(file, "compiler", plot_text(one, "compiler"));
    if (host) {
        snprintf(text, sizeof(text), "%.80s, %.0f cores, %.120s", plot_text(host, "name"), plot_number(host, "cores"),
                 plot_text(host, "cpu"));
        print_fact(file, "host", text);
    }
    print_fact(file, "date", plot_text(one, "date"));
    fputs("</dl>\n", file);
}


static bool circumstances_are_equal(const plot_file *a, const plot_file *b) {
    static const char *const texts[] = {"pool", "keys", "version", "commit", "build", "compiler"};
    static const char *const numbers[] = {"records", "value_size", "cache_bytes"};
    const json_t *one = json_array_get(a->results, 0), *other = json_array_get(b->results, 0);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (strcmp(plot_text(one, texts[i]), plot_text(other, texts[i])) != 0)
            return false;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (plot_number(one, numbers[i]) != plot_number(other, numbers[i]))
            return false;
    return true;
}


/* Describes files whose results have the same circumstances once. */
static void print_all_facts(FILE *file, const plot_input *input) {
    bool printed[PLOT_FILES_MAX] = {false};
    for (unsigned i = 0; i < input->count; i++) {
        char names[1024];
        size_t used = 0;
        bool described[PLOT_FILES_MAX] = {false};
        if (printed[i])
            continue;
        for (unsigned j = i; j < input->count; j++)
            if (!printed[j] && circumstances_are_equal(&input->files[i], &input->files[j])) {
                printed[j] = described[j] = true;
                if (used < sizeof(names))
                    used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", used ? ", " : "",
                                             plot_base_name(input->files[j].name));
            }
        print_facts(file, input, described, names);
    }
}


static void print_point(FILE *file, json_t *point) {
    const char *name;
    json_t *value;
    json_object_foreach (point, name, value) {
        fputs(", ", file);
        print_escaped(file, name);
        fputc('=', file);
        print_escaped(file, json_is_string(value) ? json_string_value(value) : "");
    }
}


/* Prints the warnings of one result. `printed` is the number of warnings printed so far; returns the new number. */
static unsigned print_notes_of(FILE *file, const json_t *result, unsigned printed) {
    size_t i;
    const json_t *note;
    json_array_foreach (json_object_get(result, "notes"), i, note) {
        if (!json_is_string(note))
            continue;
        if (printed == NOTES_SHOWN)
            fputs("<details><summary>more notes</summary>\n", file);
        fputs(printed++ ? "<p>" : "<div class=\"notes\"><p>", file);
        print_escaped(file, plot_text(result, "index"));
        fputs(", ", file);
        print_escaped(file, plot_text(result, "workload"));
        print_point(file, json_object_get(result, "point"));
        fputs(": ", file);
        print_escaped(file, json_string_value(note));
        fputs("</p>\n", file);
    }
    return printed;
}


static void print_notes(FILE *file, const plot_input *input) {
    unsigned printed = 0;
    size_t k;
    const json_t *result;
    for (unsigned i = 0; i < input->count; i++)
        json_array_foreach (input->files[i].results, k, result)
            printed = print_notes_of(file, result, printed);
    if (printed)
        fputs(printed > NOTES_SHOWN ? "</details></div>\n" : "</div>\n", file);
}


/* ---- Tables ---- */

static const plot_row *row_at(const plot_line *line, double setting) {
    for (unsigned i = 0; i < line->count; i++)
        if (line->rows[i].setting == setting)
            return &line->rows[i];
    return NULL;
}


/* Sets *setting to the next larger value of the varied option in any line. Returns false if there is none. */
static bool next_setting(const plot_chart *chart, double *setting) {
    double least = INFINITY;
    for (unsigned i = 0; i < chart->count; i++)
        for (unsigned j = 0; j < chart->lines[i].count; j++) {
            double here = chart->lines[i].rows[j].setting;
            if (here > *setting && here < least)
                least = here;
        }
    *setting = least;
    return isfinite(least);
}


static void print_value(FILE *file, double value) {
    fprintf(file, value >= 100 ? "%.0f" : value >= 10 ? "%.1f" : value >= 0.1 ? "%.2f" : "%.4f", value);
}


static void print_cell(FILE *file, const plot_chart *chart, const plot_row *row) {
    fputs("<td>", file);
    if (!row) {
        fputs("&ndash;</td>", file);
        return;
    }
    if (chart->pairs) {
        print_value(file, row->x);
        fputs("<br><small>", file);
        print_value(file, row->second);
        fputs(" / ", file);
    }
    print_value(file, row->y);
    fputs(chart->pairs ? "</small></td>" : "</td>", file);
}


static void print_table(FILE *file, const plot_chart *chart) {
    fputs("<table><thead><tr><th>", file);
    print_escaped(file, chart->setting);
    fputs("</th>", file);
    for (unsigned i = 0; i < chart->count; i++) {
        fprintf(file, "<th><span class=\"dot\" style=\"background:%s\"></span>", plot_color(chart->lines[i].color));
        print_escaped(file, chart->lines[i].label);
        fputs("</th>", file);
    }
    fputs("</tr></thead><tbody>\n", file);
    for (double setting = -INFINITY; next_setting(chart, &setting);) {
        fprintf(file, "<tr><th>%.10g</th>", setting);
        for (unsigned i = 0; i < chart->count; i++)
            print_cell(file, chart, row_at(&chart->lines[i], setting));
        fputs("</tr>\n", file);
    }
    fputs("</tbody></table>\n", file);
}


/* ---- Workloads ---- */

static int print_chart(FILE *file, const plot_chart *chart, unsigned number) {
    char *svg = plot_draw(chart, number);
    if (!svg)
        return CLI_FAILED;
    fputs("<figure><div class=\"curve\"><h3>", file);
    print_escaped(file, chart->title);
    fputs("</h3>\n", file);
    fputs(svg, file);
    fprintf(file, "<p class=\"soft\">%s</p></div>\n<div class=\"numbers\"><p class=\"soft\">%s%s</p>\n", chart->caption,
            chart->pairs ? "million operations / s; " : "", chart->pairs ? "p50 / p99 in us" : chart->y_label);
    print_table(file, chart);
    fputs("</div></figure>\n", file);
    free(svg);
    return 0;
}


static const json_t *first_of(const plot_input *input, const char *workload) {
    size_t k;
    const json_t *result;
    for (unsigned i = 0; i < input->count; i++)
        json_array_foreach (input->files[i].results, k, result)
            if (strcmp(plot_text(result, "workload"), workload) == 0)
                return result;
    return NULL;
}


static int print_workload(FILE *file, const plot_input *input, const char *workload, unsigned *number) {
    plot_chart *charts[PLOT_CHARTS_MAX];
    const json_t *first = first_of(input, workload);
    int count = plot_charts(input, workload, charts), err = count < 0 ? CLI_FAILED : 0;
    fputs("<h2 id=\"", file);
    print_escaped(file, workload);
    fputs("\">Workload ", file);
    print_escaped(file, workload);
    fputs("</h2>\n<p class=\"soft\">", file);
    print_escaped(file, plot_text(first, "mix"));
    if (*plot_text(first, "dist"))
        fprintf(file, "; %.20s", plot_text(first, "dist"));
    if (isfinite(plot_number(first, "theta")))
        fprintf(file, " %.3g", plot_number(first, "theta"));
    fputs("</p>\n", file);
    for (int i = 0; i < count; i++) {
        if (!err)
            err = print_chart(file, charts[i], (*number)++);
        free(charts[i]);
    }
    return err;
}


static unsigned list_workloads(const plot_input *input, const char *names[WORKLOADS_MAX]) {
    unsigned count = 0;
    size_t k;
    const json_t *result;
    for (unsigned i = 0; i < input->count; i++)
        json_array_foreach (input->files[i].results, k, result) {
            unsigned known = 0;
            while (known < count && strcmp(names[known], plot_text(result, "workload")) != 0)
                known++;
            if (known == count && count < WORKLOADS_MAX)
                names[count++] = plot_text(result, "workload");
        }
    return count;
}


int plot_page(const plot_input *input, FILE *file) {
    const char *names[WORKLOADS_MAX];
    unsigned count = list_workloads(input, names), number = 0;
    int err = 0;
    fprintf(file,
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
            "content=\"width=device-width\">\n<title>farindex: curves</title>\n<style>\n%s</style></head>\n<body>\n"
            "<h1>farindex: indexes on far memory</h1>\n",
            style);
    print_all_facts(file, input);
    fputs("<nav>", file);
    for (unsigned i = 0; i < count; i++) {
        fputs("<a href=\"#", file);
        print_escaped(file, names[i]);
        fputs("\">workload ", file);
        print_escaped(file, names[i]);
        fputs("</a>", file);
    }
    fputs("</nav>\n", file);
    print_notes(file, input);
    for (unsigned i = 0; i < count && !err; i++)
        err = print_workload(file, input, names[i], &number);
    fputs("</body></html>\n", file);
    return !err && (fflush(file) || ferror(file)) ? cli_failed("the page could not be written") : err;
}
