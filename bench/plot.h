/* Declarations for farindex plot. plot.c reads the results, plot_chart.c computes the curves from them, plot_draw.c
 * draws each chart with gnuplot, and plot_page.c writes the page. */
#ifndef FAR_BENCH_PLOT_H
#define FAR_BENCH_PLOT_H

#include "tools/common/cli.h"

#include <jansson.h>

#define PLOT_FILES_MAX  32
#define PLOT_LINES_MAX  16
#define PLOT_ROWS_MAX   256
#define PLOT_LABEL_MAX  128
#define PLOT_CHARTS_MAX 8 /* charts of one workload */

typedef struct plot_file {
    const char *name;
    json_t *results; /* an array of at least one object */
} plot_file;

typedef struct plot_input {
    plot_file files[PLOT_FILES_MAX];
    unsigned count;
    bool name_files; /* labels of lines contain the file name, because several files contain the same experiment */
} plot_input;

/* These read a field of a result. An absent number is NAN, and an absent text is "". */
double plot_number(const json_t *result, const char *name);
const char *plot_text(const json_t *result, const char *name);
const char *plot_base_name(const char *file);

typedef struct plot_row {
    double setting; /* value of the option that the experiment varied */
    double x, y;
    double second; /* value for a second, thinner curve; NAN for none */
} plot_row;

typedef struct plot_line {
    char label[PLOT_LABEL_MAX]; /* name of the kind, and the settings that distinguish this line from others */
    unsigned color;             /* number of the colour, the same for a line in all charts */
    plot_row rows[PLOT_ROWS_MAX];
    unsigned count;
} plot_line;

typedef struct plot_chart {
    const char *title, *y_label, *caption;
    char x_label[PLOT_LABEL_MAX], setting[PLOT_LABEL_MAX]; /* label of the axis; name of the varied option */
    bool log_x, log_y;
    bool pairs; /* x is a measured number too, so the table shows both */
    plot_line lines[PLOT_LINES_MAX];
    unsigned count;
} plot_chart;

/* Makes the charts of one workload, and omits charts without numbers. Returns the number of charts, or a negative
 * number after a message. */
int plot_charts(const plot_input *input, const char *workload, plot_chart *charts[PLOT_CHARTS_MAX]);

const char *plot_color(unsigned number); /* returns a colour as "#rrggbb" */
bool plot_can_draw(void);                /* true if gnuplot is installed */
/* Returns the chart as an SVG element, which the caller frees. Returns NULL after a message. */
char *plot_draw(const plot_chart *chart, unsigned number);

/* Writes the page. Returns 0, or CLI_FAILED after a message. */
int plot_page(const plot_input *input, FILE *file);

#endif
