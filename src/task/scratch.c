/* The scratch memory of a task is a stack of chunks. Memory is freed back to a mark, or as a whole when the task ends.
 */
#include "task/session.h"

#include <assert.h>
#include <stdlib.h>

static far_scratch_chunk *acquire_chunk(far_session *s, size_t bytes) {
    far_scratch_chunk *chunk = s->free_chunks;
    if (chunk && bytes <= chunk->size) {
        s->free_chunks = chunk->below;
    } else {
        size_t size = bytes < FAR_SCRATCH_BYTES ? FAR_SCRATCH_BYTES : bytes;
        chunk = aligned_alloc(64, (sizeof(*chunk) + size + 63) / 64 * 64);
        if (!chunk)
            return NULL;
        chunk->size = size;
    }
    return chunk;
}


static void release_chunk(far_session *s, far_scratch_chunk *chunk) {
    if (chunk->size != FAR_SCRATCH_BYTES) {
        free(chunk);
        return;
    }
    chunk->below = s->free_chunks;
    s->free_chunks = chunk;
}


/* Starts a new chunk and allocates `bytes` bytes from it, because the current chunk has too little room. Returns NULL
 * if the process is out of memory. */
static __attribute__((noinline)) void *scratch_in_new_chunk(far_task *t, size_t bytes) {
    far_scratch_chunk *chunk = acquire_chunk(t->session, bytes);
    if (!chunk) {
        /* A caller that knows more about the failure replaces this message with a more specific one. */
        far_fail(FAR_ERR_NO_MEMORY, "this process has no memory for an operation");
        return NULL;
    }
    chunk->below = t->chunk;
    chunk->used = bytes;
    t->chunk = chunk;
    return chunk->data;
}


void *far_scratch(far_task *t, size_t bytes) {
    bytes = (bytes + 15) & ~(size_t)15;
    far_scratch_chunk *chunk = t->chunk;
    if (!chunk || chunk->size - chunk->used < bytes)
        return scratch_in_new_chunk(t, bytes);
    void *memory = chunk->data + chunk->used;
    chunk->used += bytes;
    assert(chunk->used <= chunk->size);
    return memory;
}


far_scratch_mark far_scratch_here(far_task *t) {
    return (far_scratch_mark){t->chunk, t->chunk ? t->chunk->used : 0};
}


void far_scratch_back(far_task *t, far_scratch_mark mark) {
    while (t->chunk && t->chunk != mark.chunk) {
        far_scratch_chunk *chunk = t->chunk;
        t->chunk = chunk->below;
        release_chunk(t->session, chunk);
    }
    assert(t->chunk == mark.chunk || !mark.chunk);
    /* Marks must be released in the reverse order of their creation. */
    assert(!t->chunk || mark.used <= t->chunk->used);
    if (t->chunk)
        t->chunk->used = mark.used;
}


void far_scratch_shrink(far_task *t) {
    far_scratch_chunk *chunk = t->chunk;
    while (chunk && (chunk->below || chunk->size != FAR_SCRATCH_BYTES)) {
        t->chunk = chunk->below;
        release_chunk(t->session, chunk);
        chunk = t->chunk;
    }
    if (chunk)
        chunk->used = 0;
}


void far_scratch_free(far_session *s) {
    while (s->free_chunks) {
        far_scratch_chunk *chunk = s->free_chunks;
        s->free_chunks = chunk->below;
        free(chunk);
    }
}
