/* farindex bench --micro on a network, inside: what a round trip of the fabric is compared with. */
#ifndef FAR_CLI_BENCH_NETWORK_H
#define FAR_CLI_BENCH_NETWORK_H

#include "fabric/fabric.h"

#include <stdbool.h>
#include <stdint.h>

#define NETWORK_BATCH 4    /* READs of the larger batch */
#define NETWORK_READ  64   /* bytes of each */
#define NETWORK_FROM  4096 /* their offset on node 0 */

typedef struct network_floor network_floor;
struct network_floor {                                   /* a raw round trip; its maker knows the rest */
    const char *what, *what_batch;                       /* what_batch NULL: there is one only */
    bool (*round)(network_floor *floor, unsigned reads); /* false: it failed */
    void (*close)(network_floor *floor);
};

/* bench_rdma.c: reads by plain verbs, on a queue pair of its own; told if it fails. A build without RDMA: always. */
network_floor *bench_rdma_floor(far_fabric *fabric);

/* bench_steps.c: counts instructions in user space of the thread that opened it, by single steps: another process traces
 * it. So nothing is counted for waiting: what it waits for is done meanwhile. */
typedef struct bench_steps bench_steps;
bench_steps *bench_steps_open(void); /* NULL: it is not allowed here. Before the process has other threads */
void bench_steps_begin(bench_steps *steps);
uint64_t bench_steps_end(bench_steps *steps); /* with what begin and end take themselves */
void bench_steps_close(bench_steps *steps);   /* NULL: nothing */

#endif
