/* farindex plot, inside: the results that are read (plot.c), what curves they make (plot_chart.c), a picture of each by
 * gnuplot (plot_draw.c), and the page (plot_page.c). */
#ifndef FAR_CLI_PLOT_H
#define FAR_CLI_PLOT_H

#include "cli/cli.h"
#include "cli/json.h"

#define PLOT_FILES_MAX  32
#define PLOT_LINES_MAX  16
#define PLOT_ROWS_MAX   256
#define PLOT_LABEL_MAX  128
#define PLOT_CHARTS_MAX 8 /* of one workload */

typedef struct plot_file {
    const char *name;
    json *results;
} plot_file;

typedef struct plot_input {
    plot_file files[PLOT_FILES_MAX];
    unsigned count;
    bool name_files; /* lines are told apart by their files: an experiment is in several */
} plot_input;

/* What is read of a result. A number that is not there is NAN, a text "". */
double plot_number(const json *result, const char *name);
const char *plot_text(const json *result, const char *name);
const char *plot_base_name(const char *file);

typedef struct plot_row {
    double setting; /* what the experiment varied */
    double x, y;
    double second; /* of a second, thinner curve; NAN: there is none */
} plot_row;

typedef struct plot_line {
    char label[PLOT_LABEL_MAX]; /* the kind, and what tells it apart */
    unsigned color;             /* one colour for a line in all charts */
    plot_row rows[PLOT_ROWS_MAX];
    unsigned count;
} plot_line;

typedef struct plot_chart {
    const char *title, *y_label, *caption;
    char x_label[PLOT_LABEL_MAX], setting[PLOT_LABEL_MAX]; /* of the axis; of what was varied */
    bool log_x, log_y;
    bool pairs; /* x is a result too: both numbers are shown in the table */
    plot_line lines[PLOT_LINES_MAX];
    unsigned count;
} plot_chart;

/* The charts of one workload; those without a number are left out. Returns how many, negative: told. */
int plot_charts(const plot_input *input, const char *workload, plot_chart *charts[PLOT_CHARTS_MAX]);

const char *plot_color(unsigned number); /* "#rrggbb" */
bool plot_can_draw(void);                /* there is a gnuplot */
/* An SVG, without the head of an XML file; to be freed. NULL: told. */
char *plot_draw(const plot_chart *chart, unsigned number);

/* 0, or CLI_FAILED (told). */
int plot_page(const plot_input *input, FILE *file);

#endif
