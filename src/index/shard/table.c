/* Where the parts of a partition are: all but its control block belong to a body, of which the root word says the
 * number. Addresses are remembered per handle; each word is valid by itself, for one body, and 0 means: look again.
 *
 * Who goes by a root that is not SHRINK meets one body: none is replaced before nobody is left who took such a root
 * (shrink.c). Others may find here what belongs to the next body, which is at version 0: it does not fit their root. */
#include "base/error.h"
#include "index/shard/shard.h"

#include <stddef.h>
#include <stdlib.h>

enum { TABLE_WORDS = 4 };


static shard_state *state_of(shard_partition *part) {
    return (shard_state *)((char *)(part - part->number) - offsetof(shard_state, part));
}


/* Another body: of it, and of its versions, nothing is known. Hints that others still add meanwhile, by what they have
 * read of the body before, are of that body by their numbers; and into that one nobody inserts. */
static void forget_body(shard_partition *part) {
    const shard_state *st = state_of(part);
    for (unsigned i = 0; i < SHARD_VERSIONS; i++) {
        uint64_t count = shard_extent_count(st, i);
        if (count == 0) {
            atomic_store_explicit(&part->segment[i], 0, memory_order_relaxed);
            continue;
        }
        shard_extents *extents =
            (shard_extents *)(uintptr_t)atomic_load_explicit(&part->segment[i], memory_order_acquire);
        for (uint64_t n = 0; extents && n < count; n++)
            atomic_store_explicit(&extents->extent[n], 0, memory_order_relaxed);
        if (extents)
            atomic_store_explicit(&extents->word, 0, memory_order_relaxed);
    }
    for (unsigned i = 0; i < TABLE_WORDS; i++)
        atomic_store_explicit(&part->table[i], 0, memory_order_relaxed);
    for (unsigned i = 0; i < SHARD_DONE_WORDS; i++)
        atomic_store_explicit(&part->done[i], 0, memory_order_relaxed);
    atomic_store_explicit(&part->body, 0, memory_order_relaxed);
    atomic_store_explicit(&part->progress, 0, memory_order_relaxed);
    atomic_store_explicit(&part->sample, 0, memory_order_relaxed);
    atomic_store_explicit(&part->wanted, 0, memory_order_relaxed);
    atomic_store_explicit(&part->suspected, 0, memory_order_relaxed);
    atomic_store_explicit(&part->eras, 0, memory_order_relaxed);
    atomic_store_explicit(&part->proved, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&part->bodies, 1, memory_order_relaxed);
}


/* Whether both are states of one body. Between two shrinks some epochs pass: numbers of bodies come again after more
 * of them than there are numbers. */
static bool is_of_one_body(uint64_t older, uint64_t newer) {
    return shard_root_body(older) == shard_root_body(newer) &&
           shard_root_stamp(newer) - shard_root_stamp(older) < SHARD_BODIES;
}


void shard_learn_root(shard_partition *part, uint64_t root) {
    uint64_t known = atomic_load_explicit(&part->root, memory_order_acquire);
    while (shard_root_order(root) > shard_root_order(known)) {
        if (!is_of_one_body(known, root))
            forget_body(part);
        if (atomic_compare_exchange_weak_explicit(&part->root, &known, root, memory_order_acq_rel,
                                                  memory_order_acquire))
            return;
    }
}


/* The body goes by what is known of the root then: its word says of which number it is. */
void shard_learn_partition(far_task *t, shard_partition *part, const uint64_t words[SHARD_PCB_KNOWN]) {
    shard_learn_root(part, words[SHARD_PCB_ROOT]);
    unsigned body = shard_body_of(part);
    far_addr addr = shard_body_addr(words[SHARD_PCB_BODY + body % 2], body);
    if (addr && far_may_be_object(t, addr, 8 * SHARD_BODY_WORDS))
        shard_know(&part->body, body, addr);
}


int shard_refresh(far_task *t, shard_partition *part) {
    uint64_t root;
    int err = far_read_word(t, part->pcb + 8 * SHARD_PCB_ROOT, &root);
    if (err >= 0)
        shard_learn_root(part, root);
    return err;
}


static uint64_t segment_bytes(const shard_state *st, unsigned segment) {
    return shard_segment_buckets(segment, st->b) * SHARD_BUCKET_BYTES;
}


/* The first segment is one piece, however large: it is there before anything else. */
uint64_t shard_extent_count(const shard_state *st, unsigned segment) {
    uint64_t bytes = segment_bytes(st, segment);
    return segment == 0 || bytes <= st->extent ? 0 : bytes / st->extent;
}


size_t shard_extents_bytes(const shard_state *st, unsigned segment) {
    uint64_t count = shard_extent_count(st, segment);
    return count ? sizeof(shard_extents) + count * 8 : 0;
}


void shard_learn_done(shard_partition *part, unsigned version, uint64_t chunk) {
    if (chunk / SHARD_DONE_CHUNKS >= SHARD_DONE_WORDS)
        return;
    _Atomic uint64_t *word = &part->done[chunk / SHARD_DONE_CHUNKS];
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed), bit = 1ull << chunk % SHARD_DONE_CHUNKS, now;
    do {
        unsigned about = (unsigned)(old >> SHARD_DONE_CHUNKS);
        if (about > version)
            return;
        now = (about == version ? old : (uint64_t)version << SHARD_DONE_CHUNKS) | bit;
    } while (!atomic_compare_exchange_weak_explicit(word, &old, now, memory_order_relaxed, memory_order_relaxed));
}


bool shard_knows_done(const shard_partition *part, unsigned version, uint64_t chunk) {
    if (chunk / SHARD_DONE_CHUNKS >= SHARD_DONE_WORDS)
        return false;
    uint64_t word = atomic_load_explicit(&part->done[chunk / SHARD_DONE_CHUNKS], memory_order_relaxed);
    return word >> SHARD_DONE_CHUNKS == version && word >> chunk % SHARD_DONE_CHUNKS & 1;
}


/* The address of something so large, or 0. Zeroes are sound in all of it: nothing that stands there would tell that the
 * address is wrong. */
static int check_address(far_task *t, far_addr addr, uint64_t bytes) {
    if (addr == 0 || far_may_be_object(t, addr, bytes))
        return 0;
    return far_fail(FAR_ERR_CORRUPT, "the address %#llx in a partition of a shard index is broken",
                    (unsigned long long)addr);
}


static int read_address(far_task *t, far_addr at, uint64_t bytes, uint64_t *word) {
    int err = far_read_word(t, at, word);
    return err < 0 ? err : check_address(t, *word, bytes);
}


/* Of the body of that number; 0: it is no longer there. The word of a body stands as long as the root, read behind it,
 * says its number. */
static int find_body(far_task *t, shard_partition *part, unsigned body, far_addr *addr) {
    uint64_t word, root;
    *addr = shard_known(&part->body, body);
    if (*addr)
        return 0;
    far_read(t, part->pcb + 8 * (SHARD_PCB_BODY + body % 2), &word, 8);
    far_read(t, part->pcb + 8 * SHARD_PCB_ROOT, &root, 8);
    int err = far_wait(t);
    if (err < 0)
        return err;
    *addr = shard_body_addr(word, body);
    if (*addr == 0 && shard_root_body(root) == body)
        return far_fail(FAR_ERR_CORRUPT, "a partition of a shard index has no body");
    shard_learn_root(part, root);
    if ((err = check_address(t, *addr, 8 * SHARD_BODY_WORDS)) >= 0 && *addr)
        shard_know(&part->body, body, *addr);
    return err;
}


static int body_word(far_task *t, shard_partition *part, unsigned body, unsigned word, far_addr *at) {
    int err = find_body(t, part, body, at);
    if (err >= 0 && *at)
        *at += 8ull * word;
    return err;
}


int shard_body_word(far_task *t, shard_partition *part, unsigned word, far_addr *at) {
    return body_word(t, part, shard_body_of(part), word, at);
}


/* What stands in a word of the body; 0: nothing, or that body is no longer there. */
static int read_body_word(far_task *t, shard_partition *part, unsigned body, unsigned word, uint64_t bytes,
                          uint64_t *value) {
    far_addr at;
    int err = body_word(t, part, body, word, &at);
    *value = 0;
    return err < 0 || at == 0 ? err : read_address(t, at, bytes, value);
}


/* Of a segment that is one extent: its address. */
static int segment_word(far_task *t, const shard_state *st, shard_partition *part, unsigned segment, uint64_t *word) {
    unsigned body = shard_body_of(part);
    *word = shard_known(&part->segment[segment], body);
    if (*word)
        return 0;
    int err = read_body_word(t, part, body, SHARD_BODY_SEGMENT + segment, segment_bytes(st, segment), word);
    if (err >= 0 && *word)
        shard_know(&part->segment[segment], body, *word);
    return err;
}


/* The place where this handle notes what it knows of the extents of a segment, once and for all bodies. */
static int make_extents(const shard_state *st, shard_partition *part, unsigned segment, shard_extents **extents) {
    uint64_t known = 0;
    shard_extents *made = calloc(1, shard_extents_bytes(st, segment));
    if (!made)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for the addresses of a segment");
    *extents = made;
    if (!atomic_compare_exchange_strong_explicit(&part->segment[segment], &known, (uintptr_t)made, memory_order_acq_rel,
                                                 memory_order_acquire)) {
        free(made);
        *extents = (shard_extents *)(uintptr_t)known;
    }
    return 0;
}


/* Of a larger one: the array of its extents, and what this handle knows of them; NULL: there is none yet. The address
 * goes along: another task may forget the body at any time (shard_learn_root). */
static int segment_extents(far_task *t, const shard_state *st, shard_partition *part, unsigned body, unsigned segment,
                           shard_extents **extents, far_addr *array) {
    shard_extents *known =
        (shard_extents *)(uintptr_t)atomic_load_explicit(&part->segment[segment], memory_order_acquire);
    *extents = known;
    *array = known ? shard_known(&known->word, body) : 0;
    if (*array)
        return 0;
    int err = read_body_word(t, part, body, SHARD_BODY_SEGMENT + segment, 8 * shard_extent_count(st, segment), array);
    *extents = *array ? known : NULL;
    if (err < 0 || *array == 0 || (!known && (err = make_extents(st, part, segment, extents)) < 0))
        return err;
    shard_know(&(*extents)->word, body, *array);
    return 0;
}


static int extent_word(far_task *t, const shard_state *st, shard_extents *extents, far_addr array, unsigned body,
                       uint64_t n, uint64_t *word) {
    *word = shard_known(&extents->extent[n], body);
    if (*word)
        return 0;
    int err = read_address(t, array + 8 * n, st->extent, word);
    if (err >= 0 && *word)
        shard_know(&extents->extent[n], body, *word);
    return err;
}


static int beyond_versions(void) {
    return far_fail(FAR_ERR_CORRUPT, "a partition of a shard index is beyond its largest version");
}


/* Of a segment that this handle does not know yet, or that has extents. */
static __attribute__((noinline)) int find_bucket(far_task *t, const shard_state *st, shard_partition *part,
                                                 unsigned segment, uint64_t at, far_addr *addr) {
    shard_extents *extents;
    far_addr array;
    uint64_t word = 0;
    unsigned body = shard_body_of(part);
    int err;
    *addr = 0;
    if (segment >= SHARD_VERSIONS)
        return beyond_versions();
    if (shard_extent_count(st, segment) == 0) {
        if ((err = segment_word(t, st, part, segment, &word)) >= 0 && word)
            *addr = word + at;
        return err;
    }
    if ((err = segment_extents(t, st, part, body, segment, &extents, &array)) < 0 || !extents)
        return err;
    if ((err = extent_word(t, st, extents, array, body, at / st->extent, &word)) >= 0 && word)
        *addr = word + at % st->extent;
    return err;
}


int shard_is_as_known(const far_index *index, const shard_partition *part, const char *what, uint64_t known,
                      uint64_t word) {
    if (known == 0 || known == word)
        return 0;
    return far_fail(FAR_ERR_CORRUPT, "index '%s', partition %llu: a %s is at %#llx, and said to be at %#llx",
                    index->name, (unsigned long long)part->number, what, (unsigned long long)known,
                    (unsigned long long)word);
}


int shard_bucket_addr(far_task *t, const shard_state *st, shard_partition *part, uint64_t bucket, far_addr *addr) {
    *addr = shard_known_addr(st, part, bucket);
    return *addr ? 0
                 : find_bucket(t, st, part, shard_segment(bucket, st->b),
                               shard_in_segment(bucket, st->b) * SHARD_BUCKET_BYTES, addr);
}


/* An object that a word is to name. Who comes second gives his own back and knows the word then. */
typedef struct piece {
    unsigned type;
    uint64_t size;
    far_addr at;   /* of the word */
    uint64_t add;  /* to the address */
    uint64_t word; /* what was read there, then what is there */
    bool missing, linked;
    uint64_t made, old;
} piece;


static void give_back(far_task *t, far_index *index, const piece *p) {
    far_free(t, index, p->type, p->made & shard_mask(48), p->size);
}


/* Makes what is missing, zeroed, and links all of it in one batch. Without memory for one none is made. */
static int provide(far_task *t, far_index *index, piece *pieces, unsigned count) {
    far_object object;
    int err = 0;
    for (unsigned i = 0; err >= 0 && i < count; i++) {
        piece *p = &pieces[i];
        p->made = 0;
        p->linked = false;
        if (!p->missing)
            continue;
        err = far_alloc(t, index, p->type, p->size, far_addr_node(p->at), FAR_ALLOC_ZERO | FAR_ALLOC_ON_NODE, &object);
        if (err >= 0)
            p->made = object.addr | p->add;
    }
    for (unsigned i = 0; i < count; i++)
        if (err < 0 && pieces[i].made)
            give_back(t, index, &pieces[i]);
        else if (pieces[i].made)
            far_cas(t, pieces[i].at, pieces[i].word, pieces[i].made, &pieces[i].old);
    if (err < 0 || (err = far_wait(t)) < 0)
        return err;
    for (unsigned i = 0; i < count; i++) {
        piece *p = &pieces[i];
        if (!p->made)
            continue;
        p->linked = p->old == p->word;
        if (!p->linked)
            give_back(t, index, p);
        p->word = p->linked ? p->made : p->old;
    }
    return 0;
}


uint64_t shard_l2_bytes(const shard_state *st, unsigned generation) {
    return (uint64_t)SHARD_L2_BYTES << (st->b + generation);
}


uint64_t shard_l3_bytes(const shard_state *st, unsigned generation) {
    return shard_heads(st->b, generation) * shard_node_bytes(st);
}


int shard_overflow_addrs(far_task *t, shard_partition *part, unsigned generation, far_addr *l2, far_addr *l3) {
    unsigned odd = generation & 1, body = shard_body_of(part);
    *l2 = shard_table_addr(shard_known(&part->table[odd], body), generation);
    *l3 = shard_table_addr(shard_known(&part->table[2 + odd], body), generation);
    if (*l2 && *l3)
        return 0;
    uint64_t words[TABLE_WORDS];
    far_addr at;
    int err = body_word(t, part, body, SHARD_BODY_L2, &at);
    if (err < 0 || at == 0)
        return err;
    far_read(t, at, words, sizeof(words));
    if ((err = far_wait(t)) < 0)
        return err;
    *l2 = shard_table_addr(words[odd], generation);
    *l3 = shard_table_addr(words[2 + odd], generation);
    if ((err = check_address(t, *l2, FAR_GRANULE)) < 0 || (err = check_address(t, *l3, FAR_GRANULE)) < 0)
        return err;
    for (unsigned i = 0; i < TABLE_WORDS; i++)
        shard_know(&part->table[i], body, words[i]);
    return 0;
}


/* A table that `word` named, and that nobody finds any more. No key lies in it, and its chains have no nodes: the drain
 * has unlinked them. */
static void retire_table(far_task *t, far_index *index, unsigned level, uint64_t word) {
    const shard_state *st = shard_state_of(index);
    unsigned generation = (unsigned)(word >> 48);
    uint64_t bytes = level == 2 ? shard_l2_bytes(st, generation) : shard_l3_bytes(st, generation);
    far_retire(t, index, SHARD_TYPE_OVERFLOW, shard_table_addr(word, generation), bytes);
}


static unsigned table_word(unsigned level, unsigned generation) {
    return (level == 2 ? SHARD_BODY_L2 : SHARD_BODY_L3) + (generation & 1);
}


/* The body, for somebody who adds to it or takes from it: of a partition that does not shrink, so that it is there. */
static int need_body(far_task *t, shard_partition *part, far_addr *body) {
    int err = shard_body_word(t, part, 0, body);
    if (err >= 0 && *body == 0)
        return far_fail(FAR_ERR_CORRUPT, "a partition of a shard index has no body");
    return err;
}


/* The table of that level and generation; word: what stands where it is named. A word that still names an older
 * generation was left by a client that died, or is slow, after the drain, or made by one that did not know of it. */
static piece table_piece(const shard_state *st, far_addr body, unsigned level, unsigned generation, uint64_t word) {
    return (piece){.type = SHARD_TYPE_OVERFLOW,
                   .size = level == 2 ? shard_l2_bytes(st, generation) : shard_l3_bytes(st, generation),
                   .at = body + 8ull * table_word(level, generation),
                   .add = shard_table(0, generation),
                   .word = word,
                   .missing = word == 0 || word >> 48 < generation};
}


/* After tables were provided: pieces[i] was `before[i]`. */
static void settle_tables(far_task *t, far_index *index, shard_partition *part, const piece *pieces,
                          const uint64_t *before, unsigned generation) {
    for (unsigned i = 0; i < 2; i++) {
        if (pieces[i].linked && before[i])
            retire_table(t, index, 2 + i, before[i]);
        shard_know(&part->table[2 * i + (generation & 1)], shard_body_of(part), pieces[i].word);
    }
}


int shard_make_overflow(far_task *t, far_index *index, shard_partition *part, unsigned generation) {
    const shard_state *st = shard_state_of(index);
    far_addr l2, l3, body;
    piece pieces[2];
    uint64_t before[2];
    int err = shard_overflow_addrs(t, part, generation, &l2, &l3);
    if (err < 0 || (l2 && l3) || (err = need_body(t, part, &body)) < 0)
        return err;
    for (unsigned i = 0; i < 2; i++) {
        before[i] = shard_known(&part->table[2 * i + (generation & 1)], shard_body_of(part));
        pieces[i] = table_piece(st, body, 2 + i, generation, before[i]);
    }
    if ((err = provide(t, index, pieces, 2)) < 0)
        return err;
    settle_tables(t, index, part, pieces, before, generation);
    return 0;
}


int shard_drop_overflow(far_task *t, far_index *index, shard_partition *part, unsigned generation) {
    uint64_t word[2], old[2] = {0, 0};
    far_addr body;
    int err = need_body(t, part, &body);
    if (err < 0)
        return err;
    for (unsigned i = 0; i < 2; i++)
        far_read(t, body + 8ull * table_word(2 + i, generation), &word[i], 8);
    err = far_wait(t);
    for (unsigned i = 0; err >= 0 && i < 2; i++)
        if (shard_table_addr(word[i], generation))
            far_cas(t, body + 8ull * table_word(2 + i, generation), word[i], 0, &old[i]);
    if (err < 0 || (err = far_wait(t)) < 0)
        return err;
    for (unsigned i = 0; i < 2; i++)
        if (shard_table_addr(word[i], generation) && old[i] == word[i])
            retire_table(t, index, 2 + i, word[i]);
    return 0;
}


uint64_t shard_progress_bytes(const shard_state *st, unsigned version) {
    uint64_t chunks = shard_chunks(1ull << (st->b + version - 1));
    return (8 * (SHARD_PROGRESS_DONE + 2 * chunks) + 15) & ~15ull;
}


int shard_progress_addr(far_task *t, shard_partition *part, unsigned version, far_addr *addr) {
    unsigned body = shard_body_of(part);
    *addr = shard_table_addr(shard_known(&part->progress, body), version);
    if (*addr)
        return 0;
    if (version >= SHARD_VERSIONS)
        return beyond_versions();
    int err = read_body_word(t, part, body, SHARD_BODY_PROGRESS + version, FAR_GRANULE, addr);
    if (err >= 0 && *addr)
        shard_know(&part->progress, body, shard_table(*addr, version));
    return err;
}


/* One extent of a large segment, the first that this handle does not know of. 1: it was the last. */
static int make_extent(far_task *t, far_index *index, shard_extents *extents, far_addr array, unsigned body,
                       uint64_t count) {
    uint64_t n = 0, word;
    while (n < count && shard_known(&extents->extent[n], body))
        n++;
    if (n == count)
        return 1;
    int err = extent_word(t, shard_state_of(index), extents, array, body, n, &word);
    if (err < 0 || word)
        return err < 0 ? err : n + 1 == count;
    piece p = {.type = SHARD_TYPE_SEGMENT, .size = shard_state_of(index)->extent, .at = array + 8 * n, .missing = true};
    if ((err = provide(t, index, &p, 1)) < 0)
        return err;
    shard_know(&extents->extent[n], body, p.word);
    return n + 1 == count;
}


/* All that a version needs, before anybody can know of it: then no split, and so no delete, ever waits for memory, and
 * a drain has tables to move keys to. 1: all is there; 0: call again: of a large segment one extent a call, so that no
 * operation pays for more. */
int shard_make_segment(far_task *t, far_index *index, shard_partition *part, unsigned version) {
    shard_state *st = shard_state_of(index);
    uint64_t count = shard_extent_count(st, version), before[2];
    piece pieces[4];
    shard_extents *extents = NULL;
    far_addr body, array;
    int err = need_body(t, part, &body);
    if (err < 0)
        return err;
    pieces[2] = (piece){.type = count ? SHARD_TYPE_PROGRESS : SHARD_TYPE_SEGMENT, /* large: addresses of extents */
                        .size = count ? (count * 8 + 15) & ~15ull : segment_bytes(st, version),
                        .at = body + 8ull * (SHARD_BODY_SEGMENT + version)};
    pieces[3] = (piece){.type = SHARD_TYPE_PROGRESS,
                        .size = shard_progress_bytes(st, version),
                        .at = body + 8ull * (SHARD_BODY_PROGRESS + version)};
    for (unsigned i = 0; i < 2; i++) {
        far_read(t, body + 8ull * table_word(2 + i, version), &before[i], 8);
        far_read(t, pieces[2 + i].at, &pieces[2 + i].word, 8);
    }
    if ((err = far_wait(t)) < 0)
        return err;
    for (unsigned i = 0; i < 2; i++) {
        pieces[i] = table_piece(st, body, 2 + i, version, before[i]);
        pieces[2 + i].missing = pieces[2 + i].word == 0;
    }
    if ((err = provide(t, index, pieces, 4)) < 0)
        return err;
    settle_tables(t, index, part, pieces, before, version);
    if (count == 0)
        return 1;
    bool fresh = pieces[2].linked;
    unsigned number = shard_body_of(part);
    if ((err = segment_extents(t, st, part, number, version, &extents, &array)) < 0)
        return err;
    return extents && !fresh ? make_extent(t, index, extents, array, number, count) : 0;
}
