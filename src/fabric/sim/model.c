/* `far_sim_model_of` returns the parameters of the NICs of a world, for programs that print them together with results.
 */
#include "fabric/sim/model.h"
#include "fabric/sim/sim_internal.h"


void far_sim_model_of(const far_sim_world *world, far_sim_model *model) {
    const sim_nic_config *nic = &world->config.nic;
    *model = (far_sim_model){
        .preset = nic->preset == 0 ? "cx6" : "cx5",
        .read_mops = (double)nic->read_kops / 1000,
        .write_mops = (double)nic->write_kops / 1000,
        .atomic_mops = (double)nic->atomic_kops / 1000,
        .word_mops = (double)nic->word_kops / 1000,
        .bandwidth_gbps = (double)nic->milli_gbps / 1000,
        .rtt_read_us = (double)nic->rtt_read / 1000,
        .rtt_write_us = (double)nic->rtt_write / 1000,
        .rtt_atomic_us = (double)nic->rtt_atomic / 1000,
        .outstanding = nic->outstanding,
        .cpu_doorbell_ns = nic->cpu_doorbell,
        .cpu_verb_ns = nic->cpu_verb,
        .cpu_completion_ns = nic->cpu_completion,
    };
}
