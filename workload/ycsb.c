/* The YCSB workloads as streams of operations. Each thread calls `far_ycsb_next` for its next operation. */
#include "workload/ycsb.h"

#include "base/parse.h"
#include "farindex.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

typedef struct workload {
    const char *name;
    far_mix mix;
    far_distribution_kind distribution;
} workload;

static const workload workloads[] = {
    [FAR_YCSB_LOAD] = {"load", {{[FAR_YCSB_INSERT] = 100}}, FAR_DISTRIBUTION_UNIFORM},
    [FAR_YCSB_A] = {"a", {{[FAR_YCSB_GET] = 50, [FAR_YCSB_UPDATE] = 50}}, FAR_DISTRIBUTION_ZIPFIAN},
    [FAR_YCSB_B] = {"b", {{[FAR_YCSB_GET] = 95, [FAR_YCSB_UPDATE] = 5}}, FAR_DISTRIBUTION_ZIPFIAN},
    [FAR_YCSB_C] = {"c", {{[FAR_YCSB_GET] = 100}}, FAR_DISTRIBUTION_ZIPFIAN},
    [FAR_YCSB_D] = {"d", {{[FAR_YCSB_GET] = 95, [FAR_YCSB_INSERT] = 5}}, FAR_DISTRIBUTION_LATEST},
    [FAR_YCSB_E] = {"e", {{[FAR_YCSB_SCAN] = 95, [FAR_YCSB_INSERT] = 5}}, FAR_DISTRIBUTION_ZIPFIAN},
    [FAR_YCSB_F] = {"f", {{[FAR_YCSB_GET] = 50, [FAR_YCSB_READ_MODIFY_WRITE] = 50}}, FAR_DISTRIBUTION_ZIPFIAN},
    [FAR_YCSB_WRITES] = {"writes", {{[FAR_YCSB_UPDATE] = 100}}, FAR_DISTRIBUTION_ZIPFIAN},
    [FAR_YCSB_MIX] = {"mix", {{0}}, FAR_DISTRIBUTION_ZIPFIAN},
};

static const char *const kind_names[FAR_YCSB_KINDS] = {"get", "update", "insert", "scan", "rmw", "delete"};


static int find_kind(const char *name) {
    int kind = 0;
    while (kind < FAR_YCSB_KINDS && strcmp(name, kind_names[kind]) != 0)
        kind++;
    return kind;
}


int far_mix_parse(const char *text, far_mix *mix, char *error, size_t error_size) {
    far_option_list list;
    far_mix made = {{0}};
    uint64_t sum = 0, percent;
    int found;
    far_options_begin(&list, text, ',');
    while ((found = far_options_next(&list, error, error_size)) > 0) {
        int kind = find_kind(list.name);
        if (kind == FAR_YCSB_KINDS)
            return far_refuse(error, error_size, "'%s' is none of get, update, insert, delete, scan, rmw", list.name);
        if (far_parse_number(list.value, &percent, error, error_size) < 0)
            return FAR_ERR_INVALID;
        if (percent > 100)
            return far_refuse(error, error_size, "%s=%s is more than all", list.name, list.value);
        made.percent[kind] = (uint8_t)percent;
        sum += percent;
    }
    if (found < 0)
        return found;
    if (sum != 100)
        return far_refuse(error, error_size, "the parts add up to %llu, not to 100", (unsigned long long)sum);
    *mix = made;
    return FAR_OK;
}


const char *far_mix_text(const far_mix *mix, char *text) {
    size_t used = 0;
    for (int kind = 0; kind < FAR_YCSB_KINDS; kind++)
        if (mix->percent[kind])
            used += (size_t)snprintf(text + used, FAR_MIX_TEXT - used, "%s%s=%u", used ? "," : "", kind_names[kind],
                                     mix->percent[kind]);
    return text;
}


int far_ycsb_parse(const char *name, far_ycsb_workload *workload) {
    for (int i = FAR_YCSB_LOAD; name && i < FAR_YCSB_WORKLOADS; i++) {
        if (strcasecmp(name, workloads[i].name) != 0)
            continue;
        *workload = (far_ycsb_workload)i;
        return FAR_OK;
    }
    return FAR_ERR_INVALID;
}


const char *far_ycsb_name(far_ycsb_workload workload) {
    return workloads[workload].name;
}


far_distribution_kind far_ycsb_distribution(far_ycsb_workload workload) {
    return workloads[workload].distribution;
}


const far_mix *far_ycsb_mix(const far_ycsb_config *config) {
    return config->workload == FAR_YCSB_MIX ? &config->mix : &workloads[config->workload].mix;
}


/* Returns the number of records that the zipfian distribution plans for, which are those present plus twice the
 * expected inserts, as in YCSB, so that random variation does not exceed the space before the end of the run. */
static uint64_t planned_space(const far_ycsb_config *config, uint64_t present) {
    uint64_t inserts = far_ycsb_mix(config)->percent[FAR_YCSB_INSERT], space;
    if (__builtin_add_overflow(present, config->ops / 50 * inserts + inserts, &space))
        return UINT64_MAX;
    return space;
}


int far_ycsb_init(far_ycsb *ycsb, const far_ycsb_config *config, far_records *records, char *error, size_t error_size) {
    uint64_t present = far_records_count(records);
    far_distribution trial;
    if (config->workload != FAR_YCSB_LOAD && present == 0)
        return far_refuse(error, error_size, "workload %s needs at least one record", far_ycsb_name(config->workload));
    ycsb->config = *config;
    ycsb->records = records;
    far_records_keep_half(records);
    ycsb->space = config->workload == FAR_YCSB_LOAD ? 1 : planned_space(config, present);
    if (far_distribution_init(&trial, config->distribution, config->theta, ycsb->space) != FAR_OK)
        return far_refuse(error, error_size, "theta must be between 0 and %.3f", FAR_ZIPF_THETA_MAX);
    return FAR_OK;
}


void far_ycsb_stream_init(far_ycsb_stream *stream, far_ycsb *ycsb, unsigned thread) {
    uint64_t seed = ycsb->config.seed;
    seed = far_splitmix(&seed) + ycsb->config.workload;
    seed = far_splitmix(&seed) + thread;
    stream->ycsb = ycsb;
    far_random_seed(&stream->random, far_splitmix(&seed));
    far_distribution_init(&stream->distribution, ycsb->config.distribution, ycsb->config.theta, ycsb->space);
}


static far_ycsb_kind draw_kind(far_ycsb_stream *stream) {
    const uint8_t *percent = far_ycsb_mix(&stream->ycsb->config)->percent;
    uint64_t draw = far_random_below(&stream->random, 100);
    int kind = FAR_YCSB_GET;
    while (draw >= percent[kind])
        draw -= percent[kind++];
    return (far_ycsb_kind)kind;
}


/* Draws a record number. A deleted record is replaced by one that is present. */
static uint64_t draw_record(far_ycsb_stream *stream) {
    uint64_t count = far_records_count(stream->ycsb->records), gone = far_records_gone(stream->ycsb->records);
    uint64_t record = far_distribution_next(&stream->distribution, &stream->random, count);
    return record >= gone ? record : gone + record % (count - gone);
}


static uint32_t draw_length(far_ycsb_stream *stream) {
    const uint32_t *range = stream->ycsb->config.scan_length;
    uint32_t least = range[1] ? range[0] : 1, most = range[1] ? range[1] : FAR_YCSB_SCAN_MAX;
    return least + (uint32_t)far_random_below(&stream->random, most - least + 1);
}


int far_ycsb_next(far_ycsb_stream *stream, far_ycsb_op *op) {
    far_ycsb *ycsb = stream->ycsb;
    far_random before = stream->random;
    op->kind = draw_kind(stream);
    op->scan_len = 0;
    if (op->kind == FAR_YCSB_INSERT) {
        uint64_t bound = ycsb->config.workload == FAR_YCSB_LOAD ? ycsb->config.records : UINT64_MAX;
        int result = far_records_claim(ycsb->records, bound, &op->record);
        if (result == FAR_ERR_BUSY)
            stream->random = before;
        return result;
    }
    if (op->kind == FAR_YCSB_DELETE) {
        if (far_records_claim_oldest(ycsb->records, &op->record) == FAR_OK)
            return FAR_OK;
        op->kind = FAR_YCSB_GET;
    }
    op->record = draw_record(stream);
    if (op->kind == FAR_YCSB_SCAN)
        op->scan_len = draw_length(stream);
    return FAR_OK;
}
