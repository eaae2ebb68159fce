/* Two threads that run at the same time, each pinned to a processor. Used to test memory orders, because two threads on
 * one processor do not show effects of store buffers. */
#ifndef TESTS_TWO_PROCESSORS_H
#define TESTS_TWO_PROCESSORS_H

#include <stdatomic.h>
#include <stdint.h>

/* Pins the calling thread to a processor, if there are at least two. */
void pin_to_processor(unsigned number);

/* Waits until each of the two threads has called the function for this meeting, so that both threads continue at the
 * same moment. The threads yield seldom while they wait, so that each keeps its processor. `meeting` counts the calls
 * and begins with 1. */
void wait_for_other_thread(atomic_ullong *arrived, uint64_t meeting);

#endif
