/* The options of farindex bench as the user gave them, and how they become the configuration of a point (config.c,
 * sweep.c). */
#ifndef FAR_BENCH_CONFIG_H
#define FAR_BENCH_CONFIG_H

#include "bench/bench.h"

/* The options of the command line. */
typedef struct bench_request {
    const char *pool, *index, *workload, *mix, *keys, *dist, *options, *json, *csv, *against;
    cli_texts sweeps;
    uint64_t records, ops, key_size, clients;
    bool micro;
    bool only_check;   /* only check the options; start no daemon */
    char own_pool[64]; /* path of a pool file that this benchmark created and removes; "" for none */
    pid_t own_daemon;  /* process of a memory node's daemon that this benchmark started; 0 for none */
    bench_config config;
} bench_request;

/* Derives r->config from the options. Returns 0, or CLI_USAGE after a message. The caller closes config.keys in either
 * case. */
int bench_complete(bench_request *r);

/* Reads the next word of a list that is separated by commas. Returns false after the last word. */
bool bench_next_word(const char **list, char *word, size_t size);

/* Calls `run` for every point of the sweeps, with a copy of `r` in which the swept values are set through `options`.
 * Returns 0, or the first failure of `run` or of a value. In sweep.c. */
int bench_sweep(bench_request *r, const cli_option *options, int (*run)(void *ctx, bench_request *r), void *ctx);

#endif
