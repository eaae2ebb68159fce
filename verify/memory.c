/* Memory of the verification code. Without memory the process ends, because a check of a part of the history proves
 * nothing. */
#include "verify/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES  ((size_t)1 << 16)
#define CHUNK_HEADER 16


static void *abort_if_null(void *memory, size_t size) {
    if (!memory) {
        fprintf(stderr, "verify: out of memory (%zu bytes)\n", size);
        abort();
    }
    return memory;
}


void *far_verify_alloc(size_t size) {
    return abort_if_null(calloc(1, size ? size : 1), size);
}


void *far_verify_grow(void *memory, size_t size) {
    return abort_if_null(realloc(memory, size ? size : 1), size);
}


void *far_verify_arena_alloc(far_verify_arena *arena, size_t size) {
    size = (size + 15) & ~(size_t)15;
    if (!arena->chunks || arena->size - arena->used < size) {
        size_t chunk_size = CHUNK_HEADER + (size > CHUNK_BYTES ? size : CHUNK_BYTES);
        void *chunk = abort_if_null(malloc(chunk_size), chunk_size);
        *(void **)chunk = arena->chunks;
        arena->chunks = chunk;
        arena->used = CHUNK_HEADER;
        arena->size = chunk_size;
    }
    void *memory = (char *)arena->chunks + arena->used;
    arena->used += size;
    return memory;
}


void *far_verify_arena_copy(far_verify_arena *arena, const void *bytes, size_t size) {
    return size ? memcpy(far_verify_arena_alloc(arena, size), bytes, size) : NULL;
}


void far_verify_arena_free(far_verify_arena *arena) {
    while (arena->chunks) {
        void *before = *(void **)arena->chunks;
        free(arena->chunks);
        arena->chunks = before;
    }
    arena->used = arena->size = 0;
}
