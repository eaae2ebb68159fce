/* Two threads that run at the same time, each on a processor of its own. */
#ifndef TESTS_TWO_PROCESSORS_H
#define TESTS_TWO_PROCESSORS_H

#include <stdatomic.h>
#include <stdint.h>

/* Where there are two: only then have the store buffers their chance. */
void pin_to_processor(unsigned number);

/* Both leave at the same moment. They wait without yielding for a while: so that both have a processor then. meeting: 1
 * for the first. */
void meet_other(atomic_ullong *arrived, uint64_t meeting);

#endif
