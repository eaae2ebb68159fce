/* Runs verbs on memory that is mapped into this process, for the fabrics `local` and `shm`. Data is copied word by word
 * with C11 atomics, or by aligned pairs of words where the processor moves a pair atomically; memcpy is never used on
 * shared memory. Loads and read-modify-writes are sequentially consistent. The stores of a WRITE are releases in the
 * order of rising addresses, and a full fence follows them: without it, a later READ could overtake stores that are
 * still in the store buffer, and a completed WRITE would not yet be visible to other clients. Atomics of one word are
 * lock-free, so these rules hold between processes too. */
#ifndef FAR_FABRIC_WORDS_H
#define FAR_FABRIC_WORDS_H

#include "base/sanitizer.h"
#include "fabric/fabric.h"

#include <stdatomic.h>
#include <string.h>

#define FAR_LINE_WORDS 8
#define FAR_MANY_WORDS (4 * FAR_LINE_WORDS)

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && sizeof(_Atomic uint64_t) == 8,
               "atomics of one word work between processes");

typedef uint64_t far_word_pair __attribute__((vector_size(16)));


static inline void far_words_fence(atomic_uint *fence_word) {
#if FAR_TSAN
    /* a read-modify-write instead of a fence, because the thread sanitizer does not model fences */
    atomic_fetch_add_explicit(fence_word, 1, memory_order_seq_cst);
#else
    (void)fence_word;
    atomic_thread_fence(memory_order_seq_cst);
#endif
}


static inline void far_words_store(_Atomic uint64_t *to, const char *from) {
    uint64_t word;
    memcpy(&word, from, 8);
    atomic_store_explicit(to, word, memory_order_release);
}


/* Returns true if aligned pairs of words (16 bytes) are read and written atomically. Intel and AMD guarantee that for
 * aligned moves on processors with AVX. All processes that map a memory node run on one host, so they all get the same
 * answer. */
static inline bool far_words_are_paired(void) {
#if defined(__x86_64__) && !FAR_TSAN
    return __builtin_cpu_supports("avx");
#else
    return false;
#endif
}


static inline far_capabilities far_words_capabilities(void) {
    return (far_capabilities){.atomic_bytes = far_words_are_paired() ? 16 : 8,
                              .masked_cas = true,
                              .atomics_in_order = true,
                              .reads_in_order = true};
}


static inline void far_words_load(const _Atomic uint64_t *from, char *to) {
    uint64_t word = atomic_load_explicit(from, memory_order_seq_cst);
    memcpy(to, &word, 8);
}


/* Loads two words. With `paired`, the address is aligned to 16 bytes, and one instruction loads both words at the same
 * instant; on x86 such an aligned load is sequentially consistent. Otherwise two loads are made, the first word first.
 * The loads are written in assembler, because compilers move each word through a general register, which doubles the
 * instructions of a READ. */
static inline __attribute__((always_inline)) void far_words_load_pair(const _Atomic uint64_t *from, char *to,
                                                                      bool paired) {
#if defined(__x86_64__) && !FAR_TSAN
    far_word_pair pair;
    if (paired)
        __asm__ volatile("movaps %1, %0" : "=x"(pair) : "m"(*(const far_word_pair *)from) : "memory");
    else
        __asm__ volatile("movq %1, %0\n\tmovhps %2, %0" : "=x"(pair) : "m"(from[0]), "m"(from[1]) : "memory");
    memcpy(to, &pair, 16);
#else
    (void)paired;
    far_words_load(from, to);
    far_words_load(from + 1, to + 8);
#endif
}


static inline __attribute__((always_inline)) void far_words_store_pair(_Atomic uint64_t *to, const char *from,
                                                                       bool paired) {
#if defined(__x86_64__) && !FAR_TSAN
    if (paired) {
        far_word_pair pair;
        memcpy(&pair, from, 16);
        __asm__ volatile("movaps %1, %0" : "=m"(*(far_word_pair *)to) : "x"(pair) : "memory");
        return;
    }
#endif
    (void)paired;
    far_words_store(to, from);
    far_words_store(to + 1, from + 8);
}


/* Copies whole cache lines with as few stores as possible. A store that waits for a cache miss blocks all later stores,
 * and then the copy could not overlap with the next READ. */
static inline __attribute__((always_inline)) void far_words_read_pairs(const _Atomic uint64_t *from, char *to,
                                                                       size_t words, bool paired) {
    for (size_t left = words / FAR_MANY_WORDS; left > 0; left--, from += FAR_MANY_WORDS, to += 8 * FAR_MANY_WORDS) {
#pragma GCC unroll 16
        for (int i = 0; i < FAR_MANY_WORDS; i += 2)
            far_words_load_pair(from + i, to + 8 * i, paired);
        __asm__("" : "+r"(from), "+r"(to)); /* keeps gcc from computing the end of the loop a second time */
    }
    for (size_t lines = words % FAR_MANY_WORDS / FAR_LINE_WORDS; lines > 0;
         lines--, from += FAR_LINE_WORDS, to += 8 * FAR_LINE_WORDS) {
#pragma GCC unroll 4
        for (int i = 0; i < FAR_LINE_WORDS; i += 2)
            far_words_load_pair(from + i, to + 8 * i, paired);
        __asm__("" : "+r"(from), "+r"(to));
    }
    if (words & 4) {
        far_words_load_pair(from, to, paired);
        far_words_load_pair(from + 2, to + 16, paired);
        from += 4;
        to += 32;
    }
    if (words & 2) {
        far_words_load_pair(from, to, paired);
        from += 2;
        to += 16;
    }
    if (words & 1)
        far_words_load(from, to);
}


static inline __attribute__((always_inline)) void far_words_write_pairs(_Atomic uint64_t *to, const char *from,
                                                                        size_t words, bool paired) {
    for (; words >= 4; words -= 4, to += 4, from += 32) {
        far_words_store_pair(to, from, paired);
        far_words_store_pair(to + 2, from + 16, paired);
        __asm__("" : "+r"(from), "+r"(to)); /* keeps gcc from computing the end of the loop a second time */
    }
    if (words & 2) {
        far_words_store_pair(to, from, paired);
        to += 2;
        from += 16;
    }
    if (words & 1)
        far_words_store(to, from);
}


/* Returns true if the first word is the second half of an aligned pair. */
static inline bool far_words_start_in_mid_pair(const _Atomic uint64_t *words) {
    return (uintptr_t)words % 16 != 0;
}


static inline __attribute__((always_inline)) void far_words_read(const _Atomic uint64_t *from, char *to, size_t words) {
    if (!far_words_are_paired()) {
        far_words_read_pairs(from, to, words, false);
        return;
    }
    if (far_words_start_in_mid_pair(from)) {
        far_words_load(from++, to);
        to += 8;
        words--;
    }
    far_words_read_pairs(from, to, words, true);
}


static inline void far_words_write(_Atomic uint64_t *to, const char *from, size_t words) {
    if (!far_words_are_paired()) {
        far_words_write_pairs(to, from, words, false);
        return;
    }
    if (far_words_start_in_mid_pair(to)) {
        far_words_store(to++, from);
        from += 8;
        words--;
    }
    far_words_write_pairs(to, from, words, true);
}


static inline uint64_t far_words_cas(_Atomic uint64_t *word, uint64_t expected, uint64_t desired) {
    atomic_compare_exchange_strong_explicit(word, &expected, desired, memory_order_seq_cst, memory_order_seq_cst);
    return expected;
}


static inline uint64_t far_words_masked_cas(_Atomic uint64_t *word, const far_verb *verb) {
    uint64_t old = atomic_load_explicit(word, memory_order_seq_cst);
    while (((old ^ verb->compare) & verb->compare_mask) == 0) {
        uint64_t new = (old & ~verb->swap_mask) | (verb->swap & verb->swap_mask);
        if (atomic_compare_exchange_weak_explicit(word, &old, new, memory_order_seq_cst, memory_order_seq_cst))
            break;
    }
    return old;
}


/* Runs one verb on the words of a memory node that begin at `word`. */
static inline void far_words_run(_Atomic uint64_t *word, far_verb *verb, atomic_uint *fence_word) {
    uint64_t old;
    if (verb->kind == FAR_READ) {
        far_words_read(word, verb->local, verb->length / 8);
        return;
    }
    switch (verb->kind) {
    case FAR_WRITE:
        far_words_write(word, verb->local, verb->length / 8);
        far_words_fence(fence_word);
        return;
    case FAR_CAS:
        old = far_words_cas(word, verb->compare, verb->swap);
        break;
    case FAR_FAA:
        old = atomic_fetch_add_explicit(word, verb->swap, memory_order_seq_cst);
        break;
    default:
        old = far_words_masked_cas(word, verb);
        break;
    }
    memcpy(verb->local, &old, 8);
}


static inline _Atomic uint64_t *far_words_at(char *const *memory, far_addr addr) {
    return (_Atomic uint64_t *)(memory[far_addr_node(addr)] + far_addr_offset(addr));
}


/* Runs all verbs of a batch. The caller has checked that the connection is not fenced. */
static inline void far_words_run_batch(far_conn *conn, far_batch *batch) {
    char *const *memory = conn->fabric->memory;
    far_verb *end = batch->verbs + batch->count;
    for (far_verb *verb = batch->verbs; verb < end; verb++)
        far_words_run(far_words_at(memory, verb->addr), verb, &conn->fence_word);
}

#endif
