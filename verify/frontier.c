/* The frontier is a set of the configurations that a search has reached, without duplicates. The engines add
 * configurations with `far_frontier_add`; search.c reduces the set with `far_frontier_cut`. */
#include "verify/memory.h"
#include "verify/search.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define FIRST_CAPACITY 64


static void rebuild_table(far_frontier *f) {
    memset(f->table, 0, f->table_size * sizeof *f->table);
    for (size_t i = 0; i < f->count; i++) {
        uint32_t *head = &f->table[f->hashes[i] & (f->table_size - 1)];
        f->next[i] = *head;
        *head = (uint32_t)i + 1;
    }
}


static void resize_frontier(far_frontier *f, size_t capacity) {
    f->capacity = capacity;
    f->table_size = capacity * 2;
    f->configs = far_verify_grow(f->configs, capacity * f->stride);
    f->next = far_verify_grow(f->next, capacity * sizeof *f->next);
    f->hashes = far_verify_grow(f->hashes, capacity * sizeof *f->hashes);
    f->table = far_verify_grow(f->table, f->table_size * sizeof *f->table);
    rebuild_table(f);
}


void far_frontier_init(far_frontier *f, size_t words) {
    memset(f, 0, sizeof *f);
    f->words = words;
    f->stride = sizeof(far_config) + words * sizeof(uint64_t);
    resize_frontier(f, FIRST_CAPACITY);
}


void far_frontier_free(far_frontier *f) {
    free(f->configs);
    free(f->next);
    free(f->hashes);
    free(f->table);
}


void far_frontier_clear(far_frontier *f) {
    for (size_t i = 0; i < f->count; i++)
        f->table[f->hashes[i] & (f->table_size - 1)] = 0;
    f->count = 0;
}


static uint32_t hash_of(const far_frontier *f, const far_config *c) {
    uint64_t seed = c->state ^ (uint64_t)c->lock * 0x9e3779b97f4a7c15ull;
    return (uint32_t)XXH3_64bits_withSeed(c->bits, f->words * sizeof(uint64_t), seed);
}


/* Returns true if configuration a is at least as good as b in every element of `better`. If their states, locks and
 * bits are equal, b is redundant then. */
static bool config_covers(const far_config *a, const far_config *b) {
    for (int i = 0; i < FAR_BETTER_COUNT; i++) {
        if (a->better[i] < b->better[i])
            return false;
    }
    return true;
}


bool far_frontier_add(far_frontier *f, const far_config *c) {
    uint32_t hash = hash_of(f, c);
    for (uint32_t i = f->table[hash & (f->table_size - 1)]; i; i = f->next[i - 1]) {
        far_config *other = far_frontier_at(f, i - 1);
        if (f->hashes[i - 1] != hash || other->state != c->state || other->lock != c->lock ||
            memcmp(other->bits, c->bits, f->words * sizeof(uint64_t)) != 0)
            continue;
        if (config_covers(other, c))
            return false;
        if (config_covers(c, other))
            other->state = FAR_CONFIG_REDUNDANT;
    }
    if (f->count == f->capacity)
        resize_frontier(f, f->capacity * 2);
    size_t index = f->count++;
    memcpy(far_frontier_at(f, index), c, f->stride);
    f->hashes[index] = hash;
    uint32_t *head = &f->table[hash & (f->table_size - 1)];
    f->next[index] = *head;
    *head = (uint32_t)index + 1;
    return true;
}


typedef struct ranked {
    int64_t cost;
    size_t index;
} ranked;


static int compare_ranked(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->cost != y->cost)
        return x->cost < y->cost ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}


/* Keeps the `width` configurations with the lowest cost. The cost is the number of optional writes used plus the number
 * of open steps that have taken effect already. */
void far_frontier_cut(far_frontier *f, size_t width) {
    ranked *order = far_verify_alloc(f->count * sizeof *order);
    size_t alive = 0;
    for (size_t i = 0; i < f->count; i++) {
        const far_config *c = far_frontier_at(f, i);
        if (c->state == FAR_CONFIG_REDUNDANT)
            continue;
        int64_t cost = -c->better[FAR_BETTER_UPS] - c->better[FAR_BETTER_DOWNS];
        for (size_t w = 0; w < f->words; w++)
            cost += __builtin_popcountll(c->bits[w]);
        order[alive++] = (ranked){cost, i};
    }
    if (alive > width) {
        qsort(order, alive, sizeof *order, compare_ranked);
        for (size_t i = width; i < alive; i++)
            far_frontier_at(f, order[i].index)->state = FAR_CONFIG_REDUNDANT;
    }
    free(order);
}
