/* Draws a chart as SVG with gnuplot. Text from result files enters the gnuplot script only as numbers or inside single
 * quotes, so it cannot inject commands. */
#include "bench/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SVG_MAX (16u << 20)


const char *plot_color(unsigned number) {
    static const char *const colors[] = {"#1f6fb4", "#d95f02", "#1b9e77", "#b8336a", "#7a5cc2", "#8c6d31",
                                         "#4a4a4a", "#17becf", "#e0a100", "#5d8a26", "#a14b00", "#3c5488",
                                         "#c44e52", "#64b5cd", "#8172b3", "#55a868"};
    return colors[number % (sizeof(colors) / sizeof(colors[0]))];
}


bool plot_can_draw(void) {
    int status = system("command -v gnuplot >/dev/null 2>&1");
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}


/* Prints text in single quotes, where only the quote itself has a meaning. */
static void print_quoted(FILE *script, const char *text) {
    fputc('\'', script);
    for (; *text; text++) {
        if (*text == '\'')
            fputc('\'', script);
        if ((unsigned char)*text >= ' ')
            fputc(*text, script);
    }
    fputc('\'', script);
}


static void print_data(FILE *script, const plot_chart *chart) {
    for (unsigned i = 0; i < chart->count; i++) {
        const plot_line *line = &chart->lines[i];
        fprintf(script, "$line%u << END\n", i);
        for (unsigned j = 0; j < line->count; j++)
            fprintf(script, "%.9g %.9g %.9g\n", line->rows[j].x, line->rows[j].y, line->rows[j].second);
        fputs("END\n", script);
    }
}


/* Sets a logarithmic range slightly larger than the values. gnuplot would extend it to the next powers of ten. */
static void print_log_range(FILE *script, const plot_chart *chart) {
    double least = INFINITY, most = 0;
    for (unsigned i = 0; i < chart->count; i++)
        for (unsigned j = 0; j < chart->lines[i].count; j++) {
            const plot_row *row = &chart->lines[i].rows[j];
            least = fmin(least, row->second > 0 ? fmin(row->y, row->second) : row->y);
            most = fmax(most, row->y);
        }
    fprintf(script, "set logscale y\nset yrange [%.9g:%.9g]\n", least / 1.3, most * 1.3);
    if (most < 2000 * least) /* with a larger range, these labels would overlap */
        fputs("set ytics add (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)\n", script);
}


static void print_axes(FILE *script, const plot_chart *chart) {
    fputs("set xlabel ", script);
    print_quoted(script, chart->x_label);
    fputs("\nset ylabel ", script);
    print_quoted(script, chart->y_label);
    fputs("\nset border 3 lc rgb '#9aa4ae'\nset tics nomirror out scale 0.6 tc rgb '#404850'\n"
          "set grid lc rgb '#e3e7eb' lt 1 lw 1\nset offsets graph 0.02, graph 0.02, graph 0.05, 0\n"
          "set key outside top center horizontal Left reverse samplen 1.5 tc rgb '#404850'\n",
          script);
    if (chart->log_x)
        fputs("set logscale x 2\n", script);
    else
        fputs("set xrange [0:*]\n", script);
    if (chart->log_y)
        print_log_range(script, chart);
    else
        fputs("set yrange [0:*]\n", script);
}


static void print_lines(FILE *script, const plot_chart *chart) {
    const char *separator = "plot ";
    for (unsigned i = 0; i < chart->count; i++) {
        const plot_line *line = &chart->lines[i];
        if (line->count == 0)
            continue;
        fprintf(script, "%s$line%u using 1:2 with linespoints lw 2 pt 7 ps 0.55 lc rgb '%s' title ", separator, i,
                plot_color(line->color));
        print_quoted(script, line->label);
        if (isfinite(line->rows[0].second))
            fprintf(script, ", $line%u using 1:3 with lines lw 1.3 dt 2 lc rgb '%s' notitle", i,
                    plot_color(line->color));
        separator = ", ";
    }
    fputc('\n', script);
}


static int write_script(const plot_chart *chart, unsigned number, char *path) {
    int descriptor = mkstemp(path);
    FILE *script = descriptor >= 0 ? fdopen(descriptor, "w") : NULL;
    if (!script)
        return cli_failed("no file for gnuplot's script in /tmp");
    fprintf(script,
            "set terminal svg noenhanced size 660,400 dynamic font 'Helvetica,Arial,sans-serif,13' name 'chart%u'\n",
            number);
    print_data(script, chart);
    print_axes(script, chart);
    print_lines(script, chart);
    return fclose(script) == 0 ? 0 : cli_failed("gnuplot's script cannot be written to /tmp");
}


/* Removes the XML header, so that the text begins with the <svg> element. */
static char *extract_svg(char *text) {
    char *svg = strstr(text, "<svg");
    if (!svg || !strstr(svg, "</svg>"))
        return NULL;
    memmove(text, svg, strlen(svg) + 1);
    return text;
}


static char *read_output(FILE *pipe) {
    char *text = malloc(SVG_MAX);
    size_t got = text ? fread(text, 1, SVG_MAX - 1, pipe) : 0;
    if (text)
        text[got] = 0;
    return text;
}


char *plot_draw(const plot_chart *chart, unsigned number) {
    char path[] = "/tmp/farindex-plot-XXXXXX", command[64];
    char *svg = NULL;
    if (write_script(chart, number, path))
        return NULL;
    snprintf(command, sizeof(command), "gnuplot %s 2>/dev/null", path);
    fflush(NULL);
    FILE *pipe = popen(command, "r");
    char *text = pipe ? read_output(pipe) : NULL;
    int status = pipe ? pclose(pipe) : -1;
    unlink(path);
    if (status == 0 && text)
        svg = extract_svg(text);
    if (!svg) {
        cli_failed("gnuplot did not draw '%s'", chart->title);
        free(text);
    }
    return svg;
}
