/* The slot cache: with it, a get or an update of a frequently used key takes one round trip. cache_slots.c describes
 * the entries and proves that their use is exact. find.c, write.c and remove.c call it. */
#ifndef FAR_INDEX_DART_CACHE_SLOTS_H
#define FAR_INDEX_DART_CACHE_SLOTS_H

#include "index/dart/dart.h"

struct dart_cache;

/* Returns true and, in *cached, the key's entry, if the slot cache has an entry that may be used under the task's pin.
 */
bool dart_slot_cache_get(far_task *t, const far_index *index, far_bytes key, dart_cached_slot *cached);
/* Stores in the slot cache that `word`, in the slot of the step, names the key's leaf. The caller read this word from
 * the slot, or wrote it there, in this operation, and the word was not frozen. */
void dart_slot_cache_put(far_task *t, const far_index *index, far_bytes key, const dart_step *step, uint64_t word);
/* Removes the key's entry from the slot cache. */
void dart_slot_cache_drop(const far_index *index, far_bytes key);
/* Called for each new epoch: drops old entries before their tags, which are stored modulo 4096, could look new. */
void dart_slot_cache_age(struct dart_cache *cache, uint64_t before, uint64_t epoch);

#endif
