/* What farindex bench is asked for, and the experiment that follows from it. */
#ifndef FAR_CLI_BENCH_CONFIG_H
#define FAR_CLI_BENCH_CONFIG_H

#include "cli/bench.h"

/* The flags as they were given. */
typedef struct bench_request {
    const char *pool, *index, *workload, *mix, *keys, *dist, *options, *json, *csv, *against;
    cli_texts sweeps;
    uint64_t records, ops, key_size, clients;
    bool micro;
    bool only_check;   /* nothing is to be started yet */
    char own_pool[64]; /* path of a pool that is only for this run; "": none */
    pid_t own_daemon;  /* the process of a memory node that was started for this run; 0: none */
    bench_config config;
} bench_request;

/* Fills in what follows from the flags. 0, or CLI_USAGE (told). config.keys is to be closed in any case. */
int bench_complete(bench_request *r);

/* The next word of a list with commas. False: that was the last. */
bool bench_next_word(const char **list, char *word, size_t size);

/* bench_sweep.c: calls `run` for every point that the sweeps make, with a request like `r` but for the values swept;
 * `options` sets flags of *r. 0, or what it or `run` returned. */
int bench_sweep(bench_request *r, const cli_option *options, int (*run)(void *ctx, bench_request *r), void *ctx);

#endif
