/* `farindex bench --sweep` runs the experiment with each value of an option of the benchmark, or of an option of a
 * kind. Several sweeps are combined with each other. */
#include "base/parse.h"
#include "bench/config.h"

#include <string.h>

#define KINDS_OWN "options." /* prefix of an option of a kind that has the same name as an option of the benchmark */

/* Options that cannot be swept. */
static const char *const fixed[] = {"pool", "index",     "workload", "mix",     "sweep", "json",
                                    "csv",  "processes", "keep",     "against", "micro", "instructions",
                                    "runs", "ideal",     "interval", "options"};

typedef struct sweep {
    char name[64];
    const char *values; /* list of values, separated by commas */
    bool of_kinds;      /* an option of the indexes instead of the benchmark */
    bool is_prefixed;   /* it was given with KINDS_OWN */
} sweep;

typedef struct sweeping {
    bench_request *r;
    const bench_request *base;
    const cli_option *options;
    int (*run)(void *ctx, bench_request *r);
    void *ctx;
    sweep sweeps[BENCH_SWEEPS_MAX];
    unsigned count;
    char value[BENCH_SWEEPS_MAX][64]; /* the current value of each sweep */
} sweeping;

_Static_assert(BENCH_SWEEPS_MAX == CLI_TEXTS_MAX, "each --sweep that is taken has a place");


static bool is_fixed(const char *name) {
    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
        if (strcmp(name, fixed[i]) == 0)
            return true;
    return false;
}


static int parse_sweep(sweeping *s, const char *text) {
    const char *equals = strchr(text, '=');
    sweep *added = &s->sweeps[s->count];
    if (!equals || equals == text || !equals[1] || equals - text >= (ptrdiff_t)sizeof(added->name))
        return cli_wrong_usage("bench", "--sweep: '%s' is not NAME=VALUE,VALUE,..", text);
    snprintf(added->name, sizeof(added->name), "%.*s", (int)(equals - text), text);
    added->values = equals + 1;
    added->of_kinds = !cli_has_option(s->options, added->name);
    if (strncmp(added->name, KINDS_OWN, strlen(KINDS_OWN)) == 0) {
        memmove(added->name, added->name + strlen(KINDS_OWN), strlen(added->name + strlen(KINDS_OWN)) + 1);
        added->of_kinds = added->is_prefixed = true;
    }
    if (!added->of_kinds && is_fixed(added->name))
        return cli_wrong_usage("bench", "--sweep: --%s cannot be swept", added->name);
    for (unsigned i = 0; i < s->count; i++)
        if (strcmp(s->sweeps[i].name, added->name) == 0 && s->sweeps[i].of_kinds == added->of_kinds)
            return cli_wrong_usage("bench", "--sweep: '%s' is given twice", added->name);
    s->count++;
    return 0;
}


/* Appends a setting to a point such as "a=1,b=2". */
static int append_setting(char *text, size_t size, const char *prefix, const char *name, const char *value) {
    size_t used = strlen(text);
    int more = snprintf(text + used, size - used, "%s%s%s=%s", used ? "," : "", prefix, name, value);
    return more < (int)(size - used) ? 0 : cli_wrong_usage("bench", "--sweep: the settings of one point are too long");
}


static int run_here(sweeping *s) {
    char kind_options[FAR_OPTIONS_TEXT_MAX + 1], point[BENCH_POINT_MAX] = "";
    int err = 0;
    *s->r = *s->base;
    snprintf(kind_options, sizeof(kind_options), "%s", s->base->options ? s->base->options : "");
    for (unsigned i = 0; i < s->count && !err; i++) {
        const sweep *one = &s->sweeps[i];
        err = one->of_kinds ? append_setting(kind_options, sizeof(kind_options), "", one->name, s->value[i])
                            : cli_set_option("bench", "--sweep", s->options, one->name, s->value[i]);
        if (!err)
            err = append_setting(point, sizeof(point), one->is_prefixed ? KINDS_OWN : "", one->name, s->value[i]);
    }
    if (err)
        return err;
    memcpy(s->r->config.point, point, sizeof(point));
    s->r->options = *kind_options ? kind_options : NULL;
    return s->run(s->ctx, s->r);
}


/* Runs all points of the sweeps from `first` on. The first sweep changes most slowly. */
static int run_from(sweeping *s, unsigned first) {
    if (first == s->count)
        return run_here(s);
    const char *rest = s->sweeps[first].values;
    bool more = true;
    int err = 0;
    while (more && !err) {
        more = bench_next_word(&rest, s->value[first], sizeof(s->value[first]));
        err = run_from(s, first + 1);
    }
    return err;
}


int bench_sweep(bench_request *r, const cli_option *options, int (*run)(void *ctx, bench_request *r), void *ctx) {
    const bench_request base = *r;
    sweeping s = {.r = r, .base = &base, .options = options, .run = run, .ctx = ctx};
    int err = 0;
    for (unsigned i = 0; i < base.sweeps.count && !err; i++)
        err = parse_sweep(&s, base.sweeps.text[i]);
    if (!err)
        err = run_from(&s, 0);
    *r = base;
    return err;
}
