/* Memory of the verifier. A proof with a part of its history missing proves nothing, so running out of memory ends the
 * process with a message instead of travelling up as an error. */
#ifndef FAR_VERIFY_MEMORY_H
#define FAR_VERIFY_MEMORY_H

#include <stddef.h>

void *far_verify_alloc(size_t size);              /* zeroed; a size of 0 is fine */
void *far_verify_grow(void *memory, size_t size); /* as realloc: new bytes are not zeroed */

/* An arena: memory that is freed all at once. {NULL, 0, 0} is an empty one. */
typedef struct far_verify_arena {
    void *chunks; /* the newest; each starts with a pointer to the one before */
    size_t used, size;
} far_verify_arena;
void *far_verify_arena_alloc(far_verify_arena *arena, size_t size);                   /* aligned to 16; not zeroed */
void *far_verify_arena_copy(far_verify_arena *arena, const void *bytes, size_t size); /* NULL if size is 0 */
void far_verify_arena_free(far_verify_arena *arena);

#endif
