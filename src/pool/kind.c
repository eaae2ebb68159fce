/* Use counts of open indexes, and the lookup of a kind by name (kind.h). */
#include "pool/kind.h"
#include "pool/handle.h"

#include <stdatomic.h>
#include <string.h>


struct far_budget *far_index_budget(const far_index *index) {
    return index->budget ? index->budget : index->pool->budget;
}


int64_t far_index_take_key_count(far_index *index) {
    int64_t keys = 0;
    for (unsigned i = 0; i < FAR_KEY_COUNT_DELTAS; i++)
        if (atomic_load_explicit(&index->key_count_deltas[i].keys, memory_order_relaxed) != 0)
            keys += atomic_exchange_explicit(&index->key_count_deltas[i].keys, 0, memory_order_relaxed);
    return keys;
}


void far_index_use(far_index *index) {
    atomic_fetch_add_explicit(&index->uses, 1, memory_order_relaxed);
}


void far_index_unuse(far_index *index) {
    atomic_fetch_sub_explicit(&index->uses, 1, memory_order_release);
}


const far_index_kind *far_kind_in(const far_index_kind *const kinds[], const char *name) {
    for (unsigned i = 0; kinds[i]; i++)
        if (strcmp(kinds[i]->name, name) == 0)
            return kinds[i];
    return NULL;
}
