/* The slot cache: one round trip for a key that is asked for often. slots.c tells why that is exact. */
#ifndef FAR_INDEX_DART_SLOTS_H
#define FAR_INDEX_DART_SLOTS_H

#include "index/dart/dart.h"

struct dart_cache;

/* What is kept of the key; false: nothing that may be used under the task's pin. */
bool dart_slots_get(far_task *t, const far_index *index, far_bytes key, dart_kept *kept);
/* In this operation the word of the key's leaf stood in the slot of the step, unfrozen. */
void dart_slots_put(far_task *t, const far_index *index, far_bytes key, const dart_step *step, uint64_t word);
void dart_slots_drop(const far_index *index, far_bytes key);
/* Before tags could be mistaken, old ones are forgotten. Called for every new epoch. */
void dart_slots_age(struct dart_cache *cache, uint64_t before, uint64_t epoch);

#endif
