/* The parameters of the NICs of a simulated world (the cost model), for programs that print them together with results.
 */
#ifndef FAR_FABRIC_SIM_MODEL_H
#define FAR_FABRIC_SIM_MODEL_H

#include "fabric/sim/sim.h"

typedef struct far_sim_model {
    const char *preset;
    double read_mops, write_mops, atomic_mops, word_mops;
    double bandwidth_gbps; /* gigabytes per second in each direction */
    double rtt_read_us, rtt_write_us, rtt_atomic_us;
    uint64_t outstanding, cpu_doorbell_ns, cpu_verb_ns, cpu_completion_ns;
} far_sim_model;

void far_sim_model_of(const far_sim_world *world, far_sim_model *model);

#endif
