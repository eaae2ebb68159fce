/* What a self-test has refuted (pool/refuted.h): the word of the superblock, and what a handle does about it. */
#include "pool/refuted.h"
#include "base/error.h"
#include "pool/handle.h"

#include <stdio.h>

static const far_addr refuted_word = FAR_SUPER_REFUTED; /* on node 0 */


static bool is_sound(uint64_t word) {
    return word == 0 || (word >> 32 == FAR_REFUTED_MARK && (word & UINT32_MAX & ~(uint64_t)FAR_REFUTED_ALL) == 0);
}


/* A damaged word refutes nothing: who opens the pool is told of it, who has it open goes on. */
static unsigned bits_of(uint64_t word) {
    return is_sound(word) ? (unsigned)word & FAR_REFUTED_ALL : 0;
}


const char *far_refuted_text(unsigned refuted, char text[FAR_REFUTED_TEXT]) {
    static const char *const names[] = {"reads_in_order", "atomics_in_order", "atomic_bytes=64",
                                        "a rule of every fabric", "atomic_bytes=16"};
    int length = 0;
    text[0] = 0;
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (refuted & 1u << i)
            length += snprintf(text + length, FAR_REFUTED_TEXT - (size_t)length, "%s%s", length ? ", " : "", names[i]);
    return text;
}


/* ---- Opening ---- */

int far_refuted_check(const far_pool *pool, uint64_t word) {
    if (is_sound(word) || pool->options.ignore_refuted)
        return 0;
    return far_fail(FAR_ERR_CORRUPT,
                    "%s: the record of what a self-test has refuted is damaged ('farindex selftest --forget' makes it "
                    "anew)",
                    pool->fabric->uri);
}


int far_refuted_apply(far_pool *pool, uint64_t word, far_capabilities *agreed) {
    const char *uri = pool->fabric->uri;
    unsigned refuted = bits_of(word);
    int err = far_refuted_check(pool, word);
    if (err < 0 || pool->options.ignore_refuted)
        return err;
    if (refuted & FAR_REFUTED_RULE)
        return far_fail(
            FAR_ERR_UNSUPPORTED,
            "%s: a self-test has refuted a rule that every fabric must keep: this one cannot be used "
            "('farindex dump --all --ignore-refuted' saves what it holds, 'farindex selftest --forget' tries again)",
            uri);
    if (refuted & FAR_REFUTED_UNITS && agreed->atomic_bytes > 16)
        return far_fail(FAR_ERR_UNSUPPORTED,
                        "%s: a self-test has refuted units of %u bytes, on which the pool relies: make a new pool with "
                        "atomic_bytes=8 ('farindex dump --all --ignore-refuted' saves what it holds, "
                        "'farindex selftest --forget' tries again)",
                        uri, agreed->atomic_bytes);
    if (refuted & FAR_REFUTED_PAIRS && agreed->atomic_bytes == 16)
        agreed->atomic_bytes = 8;
    if (refuted & FAR_REFUTED_ATOMICS_IN_ORDER)
        agreed->atomics_in_order = false;
    if (refuted & FAR_REFUTED_READS_IN_ORDER) {
        agreed->reads_in_order = false;
        far_fabric_give_up_order_of_reads(pool->fabric);
    }
    atomic_store_explicit(&pool->refuted, refuted, memory_order_relaxed);
    return 0;
}


/* ---- A handle that has the pool open ---- */

/* Why it cannot go on; NULL: it can. */
static const char *reason_to_end(const far_capabilities *relies, unsigned refuted) {
    if (refuted & FAR_REFUTED_RULE)
        return "a self-test has refuted a rule that every fabric must keep";
    if (refuted & FAR_REFUTED_UNITS && relies->atomic_bytes > 16)
        return "a self-test has refuted units of 64 bytes, on which the pool relies";
    if (refuted & FAR_REFUTED_PAIRS && relies->atomic_bytes == 16)
        return "a self-test has refuted units of 16 bytes: open the pool again, to do without";
    if (refuted & FAR_REFUTED_ATOMICS_IN_ORDER && relies->atomics_in_order)
        return "a self-test has refuted that atomics keep their order: open the pool again, to do without";
    return NULL;
}


void far_refuted_learn(far_pool *pool, uint64_t word) {
    unsigned refuted = bits_of(word);
    if ((refuted & ~atomic_load_explicit(&pool->refuted, memory_order_relaxed)) == 0 || pool->options.ignore_refuted)
        return;
    atomic_fetch_or_explicit(&pool->refuted, refuted, memory_order_relaxed);
    if (refuted & FAR_REFUTED_READS_IN_ORDER)
        far_fabric_give_up_order_of_reads(pool->fabric);
    const char *why = reason_to_end(&pool->geometry.capabilities, refuted);
    if (!why)
        return;
    atomic_store_explicit(&pool->fabric->gone, why, memory_order_release);
    atomic_store_explicit(&pool->team.dead, true, memory_order_release);
}


/* ---- The record ---- */

int far_refuted_record(far_task *t, unsigned refuted, unsigned *recorded) {
    uint64_t seen, old;
    int err = far_read_word(t, refuted_word, &seen);
    while (err == 0) {
        uint64_t wanted = FAR_REFUTED_MARK << 32 | bits_of(seen) | refuted;
        *recorded = (unsigned)wanted & FAR_REFUTED_ALL;
        if (refuted == 0 || wanted == seen)
            return 0;
        err = far_cas_word(t, refuted_word, seen, wanted, &old);
        if (err == 0 && old == seen)
            return 0;
        seen = old;
    }
    return err;
}


int far_refuted_forget(far_task *t) {
    return far_write_word(t, refuted_word, 0);
}
