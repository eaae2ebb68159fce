/* Declarations for farindex bench --micro on a network: the raw round trip that the fabric is compared with, and the
 * instruction counter by single steps. */
#ifndef FAR_BENCH_NETWORK_H
#define FAR_BENCH_NETWORK_H

#include "fabric/fabric.h"

#include <stdbool.h>
#include <stdint.h>

#define NETWORK_BATCH 4    /* READs of the larger batch */
#define NETWORK_READ  64   /* bytes of each READ */
#define NETWORK_FROM  4096 /* offset of the first READ on node 0 */

typedef struct network_floor network_floor;
struct network_floor {             /* a raw round trip; the file that makes it appends its own fields */
    const char *what, *what_batch; /* `what_batch` is NULL if a batch is not measured separately */
    bool (*round)(network_floor *floor, unsigned reads); /* executes one round trip; returns false on failure */
    void (*close)(network_floor *floor);
};

/* rdma.c: READs by plain verbs on a queue pair of its own. Returns NULL after a message if that fails, and always in a
 * build without RDMA. */
network_floor *bench_rdma_floor(far_fabric *fabric);

/* steps.c: counts the instructions that the thread which opened it executes in user space, by single steps. Another
 * process traces the thread. Waiting costs no instructions, because a result has already arrived when the slowed-down
 * thread polls for it. */
typedef struct bench_steps bench_steps;
/* returns NULL if tracing is not permitted; must be called before the process has other threads */
bench_steps *bench_steps_open(void);
void bench_steps_begin(bench_steps *steps);
uint64_t bench_steps_end(bench_steps *steps); /* returns the count, which includes some instructions of begin and end */
void bench_steps_close(bench_steps *steps);   /* NULL is allowed */

#endif
