/* Parses the options of a `sim:` URI, and defines the presets of NIC parameters. `sim_parse_options` fills a
 * sim_config. */
#include "base/error.h"
#include "fabric/sim/sim_internal.h"
#include "farindex.h"

#include <stdio.h>
#include <string.h>

typedef enum { OPT_NUMBER, OPT_SIZE, OPT_DURATION, OPT_MILLI, OPT_SWITCH, OPT_NIC, OPT_FAULTS, OPT_NAME } option_type;

typedef struct {
    const char *name;
    option_type type;
    size_t offset;
    uint64_t min, max;
} option;

#define FIELD(field) offsetof(sim_config, field)

static const option options[] = {
    {"nic", OPT_NIC, FIELD(nic), 0, 0},
    {"seed", OPT_NUMBER, FIELD(seed), 0, UINT64_MAX},
    {"memory_nodes", OPT_NUMBER, FIELD(memory_nodes), 1, FAR_NODES_MAX},
    {"size", OPT_SIZE, FIELD(size), 4096, FAR_NODE_BYTES_MAX},
    {"atomic_bytes", OPT_NUMBER, FIELD(atomic_bytes), 8, 64},
    {"masked_cas", OPT_SWITCH, FIELD(masked_cas), 0, 1},
    {"atomics_in_order", OPT_SWITCH, FIELD(atomics_in_order), 0, 1},
    {"reads_in_order", OPT_SWITCH, FIELD(reads_in_order), 0, 1},
    {"questions", OPT_SWITCH, FIELD(questions), 0, 1},
    {"name", OPT_NAME, FIELD(name), 0, 0},
    {"faults", OPT_FAULTS, FIELD(faults), 0, 0},
    {"watch", OPT_SWITCH, FIELD(watch), 0, 1},
    {"limit", OPT_DURATION, FIELD(limit), 0, 1000000000000000ull},
    {"unreachable", OPT_DURATION, FIELD(unreachable), 1, 1000000000000ull},
    {"read_mops", OPT_MILLI, FIELD(nic.read_kops), 1, 1000000000},
    {"write_mops", OPT_MILLI, FIELD(nic.write_kops), 1, 1000000000},
    {"atomic_mops", OPT_MILLI, FIELD(nic.atomic_kops), 1, 1000000000},
    {"word_mops", OPT_MILLI, FIELD(nic.word_kops), 1, 1000000000},
    {"bandwidth", OPT_MILLI, FIELD(nic.milli_gbps), 1, 1000000000},
    {"rtt_read", OPT_DURATION, FIELD(nic.rtt_read), 1, 1000000000},
    {"rtt_write", OPT_DURATION, FIELD(nic.rtt_write), 1, 1000000000},
    {"rtt_atomic", OPT_DURATION, FIELD(nic.rtt_atomic), 1, 1000000000},
    {"wire", OPT_DURATION, FIELD(nic.wire), 0, 1000000000},
    {"outstanding", OPT_NUMBER, FIELD(nic.outstanding), 1, 1u << 20},
    {"cpu_doorbell", OPT_DURATION, FIELD(nic.cpu_doorbell), 0, 1000000000},
    {"cpu_verb", OPT_DURATION, FIELD(nic.cpu_verb), 0, 1000000000},
    {"cpu_completion", OPT_DURATION, FIELD(nic.cpu_completion), 0, 1000000000},
};

static const struct {
    const char *name;
    sim_nic_config nic;
} presets[] = {
    {"cx6", {0, 45000, 45000, 45000, 2000, 12500, 2350, 2400, 2750, 1000, 16, 100, 80, 60}},
    {"cx5", {1, 84500, 103600, 50600, 2900, 12500, 2700, 2180, 2760, 1000, 16, 100, 80, 60}},
};

static const struct {
    const char *name;
    unsigned faults;
} fault_names[] = {
    {"none", 0},
    {"all", FAR_SIM_ALL_FAULTS},
    {"tear", FAR_SIM_TEAR},
    {"reorder", FAR_SIM_REORDER | FAR_SIM_LATE | FAR_SIM_SWALLOW},
    {"late", FAR_SIM_LATE},
    {"swallow", FAR_SIM_SWALLOW},
    {"stall", FAR_SIM_STALL},
};


void sim_config_defaults(sim_config *config) {
    memset(config, 0, sizeof *config);
    config->seed = 1;
    config->memory_nodes = 1;
    config->size = 64u << 20;
    config->atomic_bytes = 64;
    config->masked_cas = 1;
    config->reads_in_order = 1;
    config->watch = 1;
    config->limit = 20000000000ull;
    config->unreachable = 100000;
    config->nic = presets[0].nic;
}


/* Parses a decimal number with up to three digits after the point, and returns it in thousandths. Sets *end to the
 * first character after the number. */
static bool parse_milli(const char *text, const char *stop, uint64_t *milli, const char **end) {
    uint64_t value = 0, scale = 1000;
    const char *at = text;
    for (; at < stop && *at >= '0' && *at <= '9'; at++) {
        if (value > UINT64_MAX / 100000)
            return false;
        value = value * 10 + (uint64_t)(*at - '0');
    }
    if (at == text)
        return false;
    value *= 1000;
    if (at < stop && *at == '.')
        for (at++; at < stop && *at >= '0' && *at <= '9' && scale > 1; at++)
            value += (uint64_t)(*at - '0') * (scale /= 10);
    *milli = value;
    *end = at;
    return true;
}


static bool parse_number(const char *text, const char *stop, uint64_t *value) {
    if (text == stop)
        return false;
    for (*value = 0; text < stop; text++) {
        unsigned digit = (unsigned)(*text - '0');
        if (digit > 9 || *value > (UINT64_MAX - digit) / 10)
            return false;
        *value = *value * 10 + digit;
    }
    return true;
}


static bool text_is(const char *at, const char *stop, const char *unit) {
    return (size_t)(stop - at) == strlen(unit) && memcmp(at, unit, (size_t)(stop - at)) == 0;
}


static bool parse_duration(const char *text, const char *stop, uint64_t *ns) {
    static const struct {
        const char *unit;
        uint64_t ns;
    } units[] = {{"", 1}, {"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}};
    uint64_t milli;
    const char *at;
    if (!parse_milli(text, stop, &milli, &at))
        return false;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (text_is(at, stop, units[i].unit)) {
            if (milli > UINT64_MAX / units[i].ns)
                return false;
            *ns = milli * units[i].ns / 1000;
            return true;
        }
    return false;
}


static bool parse_size(const char *text, const char *stop, uint64_t *bytes) {
    unsigned shift = 0;
    if (stop > text && stop[-1] > '9') {
        char unit = *--stop;
        shift = unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 64;
    }
    if (shift == 64 || !parse_number(text, stop, bytes) || *bytes > UINT64_MAX >> shift)
        return false;
    *bytes <<= shift;
    return true;
}


static bool parse_switch(const char *text, const char *stop, uint64_t *value) {
    *value = text_is(text, stop, "on") || text_is(text, stop, "1");
    return *value || text_is(text, stop, "off") || text_is(text, stop, "0");
}


static bool parse_faults(const char *text, const char *stop, uint64_t *faults) {
    const size_t names = sizeof fault_names / sizeof fault_names[0];
    *faults = 0;
    for (;;) {
        const char *plus = memchr(text, '+', (size_t)(stop - text)), *end = plus ? plus : stop;
        size_t i = 0;
        while (i < names && !text_is(text, end, fault_names[i].name))
            i++;
        if (i == names)
            return false;
        *faults |= fault_names[i].faults;
        if (!plus)
            return true;
        text = plus + 1;
    }
}


/* Loads the NIC preset of that name, unless it is the current preset. Otherwise a handle that joins a world and repeats
 * the name of the preset would reset the parameters that the first handle set one by one. */
static bool parse_nic(const char *text, const char *stop, sim_nic_config *nic) {
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++)
        if (text_is(text, stop, presets[i].name)) {
            if (nic->preset != i)
                *nic = presets[i].nic;
            return true;
        }
    return false;
}


static bool parse_value(const option *option, const char *text, const char *stop, sim_config *config) {
    uint64_t *field = (uint64_t *)((char *)config + option->offset), value = 0;
    const char *end = stop;
    bool good = false;
    switch (option->type) {
    case OPT_NIC:
        return parse_nic(text, stop, &config->nic);
    case OPT_NAME:
        if (stop == text || (size_t)(stop - text) >= sizeof config->name)
            return false;
        memset(config->name, 0, sizeof config->name);
        memcpy(config->name, text, (size_t)(stop - text));
        return true;
    case OPT_FAULTS:
        return parse_faults(text, stop, field);
    case OPT_NUMBER:
        good = parse_number(text, stop, &value);
        break;
    case OPT_SIZE:
        good = parse_size(text, stop, &value);
        break;
    case OPT_DURATION:
        good = parse_duration(text, stop, &value);
        break;
    case OPT_MILLI:
        good = parse_milli(text, stop, &value, &end) && end == stop;
        break;
    case OPT_SWITCH:
        good = parse_switch(text, stop, &value);
        break;
    }
    if (!good || value < option->min || value > option->max)
        return false;
    *field = value;
    return true;
}


static const option *find_option(const char *name, size_t length) {
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (strlen(options[i].name) == length && memcmp(options[i].name, name, length) == 0)
            return &options[i];
    return NULL;
}


/* Reports a value that the option cannot have, with the names that it can have. `text` is "name=value". */
static int fail_with_value(const option *option, const char *text, size_t length) {
    char names[128] = "";
    size_t used = 0;
    for (size_t i = 0; option->type == OPT_NIC && i < sizeof presets / sizeof presets[0]; i++)
        used +=
            (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : " (there are: ", presets[i].name);
    for (size_t i = 0; option->type == OPT_FAULTS && i < sizeof fault_names / sizeof fault_names[0]; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
                                 used ? ", " : " (there are: ", fault_names[i].name);
    return far_fail(FAR_ERR_INVALID, "sim: the value of the option '%.*s' is not valid%s%s", (int)length, text, names,
                    used ? ")" : "");
}


static int parse_list(const char *rest, sim_config *config, bool presets_only) {
    while (*rest) {
        size_t length = strcspn(rest, ",");
        const char *stop = rest + length, *equals = memchr(rest, '=', length);
        if (!equals)
            return far_fail(FAR_ERR_INVALID, "sim: the option '%.*s' does not have the form name=value", (int)length,
                            rest);
        const option *option = find_option(rest, (size_t)(equals - rest));
        if (!option)
            return far_fail(FAR_ERR_INVALID, "sim: unknown option '%.*s'", (int)(equals - rest), rest);
        if ((option->type == OPT_NIC) == presets_only && !parse_value(option, equals + 1, stop, config))
            return fail_with_value(option, rest, length);
        if (*stop == ',' && stop[1] == 0)
            return far_fail(FAR_ERR_INVALID, "sim: the list of options ends with a comma");
        rest = *stop ? stop + 1 : stop;
    }
    return 0;
}


int sim_parse_options(const char *rest, sim_config *config) {
    int error = parse_list(rest, config, true);
    if (error == 0)
        error = parse_list(rest, config, false);
    if (error)
        return error;
    if (config->atomic_bytes != 8 && config->atomic_bytes != 16 && config->atomic_bytes != 64)
        return far_fail(FAR_ERR_INVALID, "sim: atomic_bytes must be 8, 16 or 64");
    if (config->size % 4096)
        return far_fail(FAR_ERR_INVALID, "sim: size must be a multiple of 4096");
    return 0;
}
