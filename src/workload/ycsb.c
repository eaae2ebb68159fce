/* The YCSB workloads. */
#include "workload/ycsb.h"

#include "base/parse.h"
#include "farindex.h"

#include <strings.h>

typedef struct mix {
    const char *name;
    uint8_t percent[5]; /* by far_ycsb_kind */
    far_distribution_kind distribution;
} mix;

static const mix mixes[] = {
    [FAR_YCSB_LOAD] = {"load", {[FAR_YCSB_INSERT] = 100}, FAR_DISTRIBUTION_UNIFORM},
    [FAR_YCSB_A] = {"a", {[FAR_YCSB_GET] = 50, [FAR_YCSB_UPDATE] = 50}, FAR_DISTRIBUTION_ZIPFIAN},
    [FAR_YCSB_B] = {"b", {[FAR_YCSB_GET] = 95, [FAR_YCSB_UPDATE] = 5}, FAR_DISTRIBUTION_ZIPFIAN},
    [FAR_YCSB_C] = {"c", {[FAR_YCSB_GET] = 100}, FAR_DISTRIBUTION_ZIPFIAN},
    [FAR_YCSB_D] = {"d", {[FAR_YCSB_GET] = 95, [FAR_YCSB_INSERT] = 5}, FAR_DISTRIBUTION_LATEST},
    [FAR_YCSB_E] = {"e", {[FAR_YCSB_SCAN] = 95, [FAR_YCSB_INSERT] = 5}, FAR_DISTRIBUTION_ZIPFIAN},
    [FAR_YCSB_F] = {"f", {[FAR_YCSB_GET] = 50, [FAR_YCSB_READ_MODIFY_WRITE] = 50}, FAR_DISTRIBUTION_ZIPFIAN},
    [FAR_YCSB_WRITES] = {"writes", {[FAR_YCSB_UPDATE] = 100}, FAR_DISTRIBUTION_ZIPFIAN},
};


int far_ycsb_parse(const char *name, far_ycsb_workload *workload) {
    for (int i = FAR_YCSB_LOAD; name != NULL && i < FAR_YCSB_WORKLOADS; i++) {
        if (strcasecmp(name, mixes[i].name) != 0)
            continue;
        *workload = (far_ycsb_workload)i;
        return FAR_OK;
    }
    return FAR_ERR_INVALID;
}


const char *far_ycsb_name(far_ycsb_workload workload) {
    return mixes[workload].name;
}


far_distribution_kind far_ycsb_distribution(far_ycsb_workload workload) {
    return mixes[workload].distribution;
}


int far_ycsb_inserts(far_ycsb_workload workload) {
    return mixes[workload].percent[FAR_YCSB_INSERT];
}


/* Twice the inserts to expect, as YCSB does: chance must not fill the space before the end. */
static uint64_t planned_space(const far_ycsb_config *config, uint64_t present) {
    uint64_t inserts = (uint64_t)far_ycsb_inserts(config->workload), space;
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
    const uint8_t *percent = mixes[stream->ycsb->config.workload].percent;
    uint64_t draw = far_random_below(&stream->random, 100);
    int kind = FAR_YCSB_GET;
    while (draw >= percent[kind])
        draw -= percent[kind++];
    return (far_ycsb_kind)kind;
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
    op->record = far_distribution_next(&stream->distribution, &stream->random, far_records_count(ycsb->records));
    if (op->kind == FAR_YCSB_SCAN)
        op->scan_len = 1 + (uint32_t)far_random_below(&stream->random, FAR_YCSB_SCAN_MAX);
    return FAR_OK;
}
