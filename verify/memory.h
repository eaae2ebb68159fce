/* Memory of the verification code. A check of an incomplete history would prove nothing, so if memory runs out, the
 * process ends with a message; the functions never return an error. */
#ifndef FAR_VERIFY_MEMORY_H
#define FAR_VERIFY_MEMORY_H

#include <stddef.h>

void *far_verify_alloc(size_t size);              /* returns zeroed memory; size 0 is allowed */
void *far_verify_grow(void *memory, size_t size); /* resizes memory like realloc; the added bytes are not zeroed */

/* An arena is memory that is freed all at once. {NULL, 0, 0} is an empty arena. */
typedef struct far_verify_arena {
    void *chunks; /* the newest chunk; each chunk begins with a pointer to the previous one */
    size_t used, size;
} far_verify_arena;
/* allocates from the arena; the memory is aligned to 16 bytes and not zeroed */
void *far_verify_arena_alloc(far_verify_arena *arena, size_t size);
/* returns a copy of the bytes in the arena, or NULL if `size` is 0 */
void *far_verify_arena_copy(far_verify_arena *arena, const void *bytes, size_t size);
void far_verify_arena_free(far_verify_arena *arena);

#endif
