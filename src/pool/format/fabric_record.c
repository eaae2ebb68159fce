/* The word of the superblock that records violated guarantees of the fabric, and how a handle reacts to it
 * (fabric_record.h). */
#include "pool/format/fabric_record.h"
#include "base/error.h"
#include "pool/handle.h"

#include <stdio.h>

static const far_addr record_addr = FAR_SUPER_FABRIC_RECORD; /* the address of the record is on node 0 */


static bool record_is_sound(uint64_t word) {
    return word == 0 ||
           (word >> 32 == FAR_FABRIC_RECORD_MAGIC && (word & UINT32_MAX & ~(uint64_t)FAR_VIOLATED_ALL) == 0);
}


/* Returns the violations that the word records. A damaged word counts as no violation; opening the pool reports the
 * damage, while a handle that has the pool open continues. */
static unsigned violations_in(uint64_t word) {
    return record_is_sound(word) ? (unsigned)word & FAR_VIOLATED_ALL : 0;
}


const char *far_violations_text(unsigned refuted, char text[FAR_VIOLATIONS_TEXT]) {
    static const char *const names[] = {"reads_in_order", "atomics_in_order", "atomic_bytes=64",
                                        "a rule of every fabric", "atomic_bytes=16"};
    int length = 0;
    text[0] = 0;
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (refuted & 1u << i)
            length +=
                snprintf(text + length, FAR_VIOLATIONS_TEXT - (size_t)length, "%s%s", length ? ", " : "", names[i]);
    return text;
}


/* ---- Opening the pool ---- */

int far_fabric_record_check(const far_pool *pool, uint64_t word) {
    if (record_is_sound(word) || pool->options.ignore_refuted)
        return 0;
    return far_fail(FAR_ERR_CORRUPT,
                    "%s: the record of violated fabric guarantees is damaged ('farindex selftest --forget' clears "
                    "it)",
                    pool->fabric->uri);
}


int far_fabric_record_apply(far_pool *pool, uint64_t word, far_capabilities *agreed) {
    const char *uri = pool->fabric->uri;
    unsigned refuted = violations_in(word);
    int err = far_fabric_record_check(pool, word);
    if (err < 0 || pool->options.ignore_refuted)
        return err;
    if (refuted & FAR_VIOLATED_RULE)
        return far_fail(
            FAR_ERR_UNSUPPORTED,
            "%s: a self-test found that this fabric violates a rule that every fabric must keep, so the pool cannot be "
            "used ('farindex dump --all --ignore-refuted' saves its content, 'farindex selftest --forget' clears the "
            "record and tests again)",
            uri);
    if (refuted & FAR_VIOLATED_LINES && agreed->atomic_bytes > 16)
        return far_fail(
            FAR_ERR_UNSUPPORTED,
            "%s: a self-test found that accesses of %u bytes tear on this fabric, but the pool relies on them: "
            "create a new pool with atomic_bytes=8 ('farindex dump --all --ignore-refuted' saves the "
            "content of this one, 'farindex selftest --forget' clears the record and tests again)",
            uri, agreed->atomic_bytes);
    if (refuted & FAR_VIOLATED_PAIRS && agreed->atomic_bytes == 16)
        agreed->atomic_bytes = 8;
    if (refuted & FAR_VIOLATED_ATOMICS_IN_ORDER)
        agreed->atomics_in_order = false;
    if (refuted & FAR_VIOLATED_READS_IN_ORDER) {
        agreed->reads_in_order = false;
        far_fabric_give_up_order_of_reads(pool->fabric);
    }
    atomic_store_explicit(&pool->refuted, refuted, memory_order_relaxed);
    return 0;
}


/* ---- Handles that have the pool open ---- */

/* Returns the reason why the handle must close itself, NULL if it can continue. */
static const char *reason_to_close(const far_capabilities *relies, unsigned refuted) {
    if (refuted & FAR_VIOLATED_RULE)
        return "a self-test found that this fabric violates a rule that every fabric must keep";
    if (refuted & FAR_VIOLATED_LINES && relies->atomic_bytes > 16)
        return "a self-test found that accesses of 64 bytes tear on this fabric, but the pool relies on them";
    if (refuted & FAR_VIOLATED_PAIRS && relies->atomic_bytes == 16)
        return "a self-test found that accesses of 16 bytes tear on this fabric: open the pool again to continue "
               "without "
               "this guarantee";
    if (refuted & FAR_VIOLATED_ATOMICS_IN_ORDER && relies->atomics_in_order)
        return "a self-test found that this fabric does not execute atomics in order: open the pool again to continue "
               "without this guarantee";
    return NULL;
}


void far_fabric_record_observe(far_pool *pool, uint64_t word) {
    unsigned refuted = violations_in(word);
    if ((refuted & ~atomic_load_explicit(&pool->refuted, memory_order_relaxed)) == 0 || pool->options.ignore_refuted)
        return;
    atomic_fetch_or_explicit(&pool->refuted, refuted, memory_order_relaxed);
    if (refuted & FAR_VIOLATED_READS_IN_ORDER)
        far_fabric_give_up_order_of_reads(pool->fabric);
    const char *why = reason_to_close(&pool->geometry.capabilities, refuted);
    if (!why)
        return;
    atomic_store_explicit(&pool->fabric->gone, why, memory_order_release);
    atomic_store_explicit(&pool->team.dead, true, memory_order_release);
}


/* ---- Changing the record ---- */

int far_fabric_record_add(far_task *t, unsigned refuted, unsigned *recorded) {
    uint64_t seen, old;
    int err = far_read_word(t, record_addr, &seen);
    while (err == 0) {
        uint64_t wanted = FAR_FABRIC_RECORD_MAGIC << 32 | violations_in(seen) | refuted;
        *recorded = (unsigned)wanted & FAR_VIOLATED_ALL;
        if (refuted == 0 || wanted == seen)
            return 0;
        err = far_cas_word(t, record_addr, seen, wanted, &old);
        if (err == 0 && old == seen)
            return 0;
        seen = old;
    }
    return err;
}


int far_fabric_record_clear(far_task *t) {
    return far_write_word(t, record_addr, 0);
}
