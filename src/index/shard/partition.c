/* Finds, makes and caches the objects of a partition. The partition's directory names all of them except the control
 * block, and the root word contains the number of the current directory. Each handle caches the addresses. Every cached
 * word is valid by itself, for one directory; the value 0 means that the word must be read.
 *
 * An operation that relies on a root word of a phase other than SHRINK meets a single directory, because no directory
 * is replaced while a client may be pinned that uses such a root word (restructure_shrink.c). An operation in phase
 * SHRINK may read words of the next directory here. The next directory is at version 0, so the operation detects that
 * the buckets of this directory do not fit its root word. */
#include "base/error.h"
#include "index/shard/shard.h"

#include <stddef.h>
#include <stdlib.h>

enum { TABLE_WORDS = 4 };


static shard_state *state_of_partition(shard_partition *part) {
    return (shard_state *)((char *)(part - part->number) - offsetof(shard_state, part));
}


/* Called when the partition has another directory than before: clears all cached words and hints of the old directory
 * and its versions. Other tasks may still add hints that they have read through the old directory. These hints are
 * harmless, because they carry the number of the old directory, and no key is inserted through it any more. */
static void forget_directory(shard_partition *part) {
    const shard_state *st = state_of_partition(part);
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
    atomic_store_explicit(&part->directory, 0, memory_order_relaxed);
    atomic_store_explicit(&part->progress, 0, memory_order_relaxed);
    atomic_store_explicit(&part->sample, 0, memory_order_relaxed);
    atomic_store_explicit(&part->requested, 0, memory_order_relaxed);
    atomic_store_explicit(&part->suspected, 0, memory_order_relaxed);
    atomic_store_explicit(&part->reopened_at, 0, memory_order_relaxed);
    atomic_store_explicit(&part->known_due, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&part->directories_seen, 1, memory_order_relaxed);
}


/* Returns true if both root words name the same directory. Equal numbers are not enough, because directory numbers wrap
 * around. Some epochs pass between two shrinks, so after SHARD_DIRECTORIES shrinks the stamps of the two root words
 * differ by at least SHARD_DIRECTORIES epochs. */
static bool have_same_directory(uint64_t older, uint64_t newer) {
    return shard_root_directory(older) == shard_root_directory(newer) &&
           shard_root_stamp(newer) - shard_root_stamp(older) < SHARD_DIRECTORIES;
}


void shard_learn_root(shard_partition *part, uint64_t root) {
    uint64_t known = atomic_load_explicit(&part->root, memory_order_acquire);
    while (shard_root_order(root) > shard_root_order(known)) {
        if (!have_same_directory(known, root))
            forget_directory(part);
        if (atomic_compare_exchange_weak_explicit(&part->root, &known, root, memory_order_acq_rel,
                                                  memory_order_acquire))
            return;
    }
}


/* Caches the leading words of the control block. The newest root word selects which of the two directory words of the
 * control block is the current one. The selected word also contains the number of its directory, so a word of another
 * directory is not cached. */
void shard_learn_partition(far_task *t, shard_partition *part, const uint64_t words[SHARD_PCB_READ_WORDS]) {
    shard_learn_root(part, words[SHARD_PCB_ROOT]);
    unsigned directory = shard_directory_number(part);
    far_addr addr = shard_directory_addr(words[SHARD_PCB_DIRECTORY + directory % 2], directory);
    if (addr && far_may_be_object(t, addr, 8 * SHARD_DIR_WORDS))
        shard_cache_word(&part->directory, directory, addr);
}


int shard_refresh_root(far_task *t, shard_partition *part) {
    uint64_t root;
    int err = far_read_word(t, part->pcb + 8 * SHARD_PCB_ROOT, &root);
    if (err >= 0)
        shard_learn_root(part, root);
    return err;
}


static uint64_t segment_bytes(const shard_state *st, unsigned segment) {
    return shard_segment_buckets(segment, st->b) * SHARD_BUCKET_BYTES;
}


/* Returns the number of extents of a segment; 0 if the segment is a single object. Segment 0 is always a single object,
 * whatever its size, because it is made together with the directory. */
uint64_t shard_extent_count(const shard_state *st, unsigned segment) {
    uint64_t bytes = segment_bytes(st, segment);
    return segment == 0 || bytes <= st->extent ? 0 : bytes / st->extent;
}


size_t shard_extents_bytes(const shard_state *st, unsigned segment) {
    uint64_t count = shard_extent_count(st, segment);
    return count ? sizeof(shard_extents) + count * 8 : 0;
}


void shard_note_chunk_done(shard_partition *part, unsigned version, uint64_t chunk) {
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


bool shard_chunk_is_known_done(const shard_partition *part, unsigned version, uint64_t chunk) {
    if (chunk / SHARD_DONE_CHUNKS >= SHARD_DONE_WORDS)
        return false;
    uint64_t word = atomic_load_explicit(&part->done[chunk / SHARD_DONE_CHUNKS], memory_order_relaxed);
    return word >> SHARD_DONE_CHUNKS == version && word >> chunk % SHARD_DONE_CHUNKS & 1;
}


/* Fails if the address cannot be that of an object of this size. The check is necessary because the contents of an
 * object do not reveal a wrong address: zeroes are valid contents everywhere in a segment or table. */
static int check_address(far_task *t, far_addr addr, uint64_t bytes) {
    if (addr == 0 || far_may_be_object(t, addr, bytes))
        return 0;
    return far_fail(FAR_ERR_CORRUPT, "the address %#llx in a partition of a shard index is invalid",
                    (unsigned long long)addr);
}


static int read_address(far_task *t, far_addr at, uint64_t bytes, uint64_t *word) {
    int err = far_read_word(t, at, word);
    return err < 0 ? err : check_address(t, *word, bytes);
}


/* Sets *addr to the address of the directory with this number, or to 0 if the directory was replaced. The control block
 * contains the word of a directory as long as the root word names the directory's number. This function reads the root
 * word after the directory word. Therefore a missing directory word under an unchanged root word is corruption. */
static int find_directory(far_task *t, shard_partition *part, unsigned directory, far_addr *addr) {
    uint64_t word, root;
    *addr = shard_cached_word(&part->directory, directory);
    if (*addr)
        return 0;
    far_read(t, part->pcb + 8 * (SHARD_PCB_DIRECTORY + directory % 2), &word, 8);
    far_read(t, part->pcb + 8 * SHARD_PCB_ROOT, &root, 8);
    int err = far_wait(t);
    if (err < 0)
        return err;
    *addr = shard_directory_addr(word, directory);
    if (*addr == 0 && shard_root_directory(root) == directory)
        return far_fail(FAR_ERR_CORRUPT, "a partition of a shard index has no directory");
    shard_learn_root(part, root);
    if ((err = check_address(t, *addr, 8 * SHARD_DIR_WORDS)) >= 0 && *addr)
        shard_cache_word(&part->directory, directory, *addr);
    return err;
}


static int find_directory_word(far_task *t, shard_partition *part, unsigned directory, unsigned word, far_addr *at) {
    int err = find_directory(t, part, directory, at);
    if (err >= 0 && *at)
        *at += 8ull * word;
    return err;
}


int shard_directory_word_addr(far_task *t, shard_partition *part, unsigned word, far_addr *at) {
    return find_directory_word(t, part, shard_directory_number(part), word, at);
}


/* Reads the word of a directory that contains the address of an object of `bytes` bytes. Sets *value to this word, or
 * to 0 if the directory was replaced. Returns 0 or an error. */
static int read_directory_word(far_task *t, shard_partition *part, unsigned directory, unsigned word, uint64_t bytes,
                               uint64_t *value) {
    far_addr at;
    int err = find_directory_word(t, part, directory, word, &at);
    *value = 0;
    return err < 0 || at == 0 ? err : read_address(t, at, bytes, value);
}


/* Sets *word to the address of a segment that is a single object, or to 0. */
static int find_segment(far_task *t, const shard_state *st, shard_partition *part, unsigned segment, uint64_t *word) {
    unsigned directory = shard_directory_number(part);
    *word = shard_cached_word(&part->segment[segment], directory);
    if (*word)
        return 0;
    int err = read_directory_word(t, part, directory, SHARD_DIR_SEGMENT + segment, segment_bytes(st, segment), word);
    if (err >= 0 && *word)
        shard_cache_word(&part->segment[segment], directory, *word);
    return err;
}


/* Allocates the local memory in which this handle caches the addresses of a segment's extents. The memory is allocated
 * once and used for all later directories. Returns 0 or an error. */
static int allocate_extent_cache(const shard_state *st, shard_partition *part, unsigned segment,
                                 shard_extents **extents) {
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


/* For a segment that consists of extents: sets *array to the address of the array of extent addresses, and *extents to
 * the local cache of these addresses. Sets *extents to NULL if the segment does not exist yet. *array is separate from
 * the cache, because another task may clear the cache at any time (shard_learn_root). */
static int find_extent_array(far_task *t, const shard_state *st, shard_partition *part, unsigned directory,
                             unsigned segment, shard_extents **extents, far_addr *array) {
    shard_extents *known =
        (shard_extents *)(uintptr_t)atomic_load_explicit(&part->segment[segment], memory_order_acquire);
    *extents = known;
    *array = known ? shard_cached_word(&known->word, directory) : 0;
    if (*array)
        return 0;
    int err = read_directory_word(t, part, directory, SHARD_DIR_SEGMENT + segment, 8 * shard_extent_count(st, segment),
                                  array);
    *extents = *array ? known : NULL;
    if (err < 0 || *array == 0 || (!known && (err = allocate_extent_cache(st, part, segment, extents)) < 0))
        return err;
    shard_cache_word(&(*extents)->word, directory, *array);
    return 0;
}


static int find_extent(far_task *t, const shard_state *st, shard_extents *extents, far_addr array, unsigned directory,
                       uint64_t n, uint64_t *word) {
    *word = shard_cached_word(&extents->extent[n], directory);
    if (*word)
        return 0;
    int err = read_address(t, array + 8 * n, st->extent, word);
    if (err >= 0 && *word)
        shard_cache_word(&extents->extent[n], directory, *word);
    return err;
}


static int fail_beyond_versions(void) {
    return far_fail(FAR_ERR_CORRUPT, "the version of a partition of a shard index is too large");
}


/* Finds the address of a bucket whose segment is not cached or consists of extents. Returns 0 or an error. */
static __attribute__((noinline)) int find_bucket_addr(far_task *t, const shard_state *st, shard_partition *part,
                                                      unsigned segment, uint64_t at, far_addr *addr) {
    shard_extents *extents;
    far_addr array;
    uint64_t word = 0;
    unsigned directory = shard_directory_number(part);
    int err;
    *addr = 0;
    if (segment >= SHARD_VERSIONS)
        return fail_beyond_versions();
    if (shard_extent_count(st, segment) == 0) {
        if ((err = find_segment(t, st, part, segment, &word)) >= 0 && word)
            *addr = word + at;
        return err;
    }
    if ((err = find_extent_array(t, st, part, directory, segment, &extents, &array)) < 0 || !extents)
        return err;
    if ((err = find_extent(t, st, extents, array, directory, at / st->extent, &word)) >= 0 && word)
        *addr = word + at % st->extent;
    return err;
}


int shard_check_unchanged(const far_index *index, const shard_partition *part, const char *what, uint64_t known,
                          uint64_t word) {
    if (known == 0 || known == word)
        return 0;
    return far_fail(FAR_ERR_CORRUPT,
                    "index '%s', partition %llu: %s at %#llx, but the word that names it contains %#llx", index->name,
                    (unsigned long long)part->number, what, (unsigned long long)known, (unsigned long long)word);
}


int shard_bucket_addr(far_task *t, const shard_state *st, shard_partition *part, uint64_t bucket, far_addr *addr) {
    *addr = shard_cached_bucket_addr(st, part, bucket);
    return *addr ? 0
                 : find_bucket_addr(t, st, part, shard_segment(bucket, st->b),
                                    shard_in_segment(bucket, st->b) * SHARD_BUCKET_BYTES, addr);
}


/* An object to be allocated and linked into a word. If another client links its own object first, this client frees its
 * object, and `word` is set to the word of the other client. */
typedef struct piece {
    unsigned type;
    uint64_t size;
    far_addr at;   /* address of the word in which the object will be linked */
    uint64_t add;  /* bits that are added to the object's address in that word */
    uint64_t word; /* input: the linking word as it was read; output: this word after the CAS */
    bool missing, linked;
    uint64_t made, old;
} piece;


static void free_piece(far_task *t, far_index *index, const piece *p) {
    far_free(t, index, p->type, p->made & shard_mask(48), p->size);
}


/* Allocates the missing objects, zeroed, and links all of them by CAS in one batch. If one allocation fails, the
 * objects that were already allocated are freed and nothing is linked. Returns 0 or an error. */
static int allocate_and_link(far_task *t, far_index *index, piece *pieces, unsigned count) {
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
            free_piece(t, index, &pieces[i]);
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
            free_piece(t, index, p);
        p->word = p->linked ? p->made : p->old;
    }
    return 0;
}


uint64_t shard_l2_bytes(const shard_state *st, unsigned generation) {
    return (uint64_t)SHARD_L2_BYTES << (st->b + generation);
}


uint64_t shard_l3_bytes(const shard_state *st, unsigned generation) {
    return shard_head_count(st->b, generation) * shard_node_bytes(st);
}


int shard_overflow_addrs(far_task *t, shard_partition *part, unsigned generation, far_addr *l2, far_addr *l3) {
    unsigned odd = generation & 1, directory = shard_directory_number(part);
    *l2 = shard_table_addr(shard_cached_word(&part->table[odd], directory), generation);
    *l3 = shard_table_addr(shard_cached_word(&part->table[2 + odd], directory), generation);
    if (*l2 && *l3)
        return 0;
    uint64_t words[TABLE_WORDS];
    far_addr at;
    int err = find_directory_word(t, part, directory, SHARD_DIR_L2, &at);
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
        shard_cache_word(&part->table[i], directory, words[i]);
    return 0;
}


/* Retires a level-2 or level-3 table after it was unlinked. The table has no keys, and its chains have no nodes,
 * because the drain has unlinked them. */
static void retire_table(far_task *t, far_index *index, unsigned level, uint64_t word) {
    const shard_state *st = shard_state_of(index);
    unsigned generation = (unsigned)(word >> 48);
    uint64_t bytes = level == 2 ? shard_l2_bytes(st, generation) : shard_l3_bytes(st, generation);
    far_retire(t, index, SHARD_TYPE_OVERFLOW, shard_table_addr(word, generation), bytes);
}


static unsigned table_word_index(unsigned level, unsigned generation) {
    return (level == 2 ? SHARD_DIR_L2 : SHARD_DIR_L3) + (generation & 1);
}


/* Sets *directory to the address of the directory, for a caller that adds objects to the directory or removes objects
 * from it. The root word of such a caller is not in phase SHRINK, so a missing directory is an error. Returns 0 or an
 * error. */
static int require_directory(far_task *t, shard_partition *part, far_addr *directory) {
    int err = shard_directory_word_addr(t, part, 0, directory);
    if (err >= 0 && *directory == 0)
        return far_fail(FAR_ERR_CORRUPT, "a partition of a shard index has no directory");
    return err;
}


/* Describes the table of a level and generation, for allocate_and_link. `word` is the word that names the table now. If
 * `word` names a table of an older generation, the older table is replaced. Such a table was left by a client that
 * failed or was slow after the drain, or was made by a client that had not observed the drain. */
static piece describe_table(const shard_state *st, far_addr directory, unsigned level, unsigned generation,
                            uint64_t word) {
    return (piece){.type = SHARD_TYPE_OVERFLOW,
                   .size = level == 2 ? shard_l2_bytes(st, generation) : shard_l3_bytes(st, generation),
                   .at = directory + 8ull * table_word_index(level, generation),
                   .add = shard_table_word(0, generation),
                   .word = word,
                   .missing = word == 0 || word >> 48 < generation};
}


/* Called after the tables were linked. Retires the older tables that these tables have replaced (`before` contains the
 * previous words), and caches the new words. */
static void adopt_tables(far_task *t, far_index *index, shard_partition *part, const piece *pieces,
                         const uint64_t *before, unsigned generation) {
    for (unsigned i = 0; i < 2; i++) {
        if (pieces[i].linked && before[i])
            retire_table(t, index, 2 + i, before[i]);
        shard_cache_word(&part->table[2 * i + (generation & 1)], shard_directory_number(part), pieces[i].word);
    }
}


int shard_make_overflow_tables(far_task *t, far_index *index, shard_partition *part, unsigned generation) {
    const shard_state *st = shard_state_of(index);
    far_addr l2, l3, directory;
    piece pieces[2];
    uint64_t before[2];
    int err = shard_overflow_addrs(t, part, generation, &l2, &l3);
    if (err < 0 || (l2 && l3) || (err = require_directory(t, part, &directory)) < 0)
        return err;
    for (unsigned i = 0; i < 2; i++) {
        before[i] = shard_cached_word(&part->table[2 * i + (generation & 1)], shard_directory_number(part));
        pieces[i] = describe_table(st, directory, 2 + i, generation, before[i]);
    }
    if ((err = allocate_and_link(t, index, pieces, 2)) < 0)
        return err;
    adopt_tables(t, index, part, pieces, before, generation);
    return 0;
}


int shard_drop_overflow_tables(far_task *t, far_index *index, shard_partition *part, unsigned generation) {
    uint64_t word[2], old[2] = {0, 0};
    far_addr directory;
    int err = require_directory(t, part, &directory);
    if (err < 0)
        return err;
    for (unsigned i = 0; i < 2; i++)
        far_read(t, directory + 8ull * table_word_index(2 + i, generation), &word[i], 8);
    err = far_wait(t);
    for (unsigned i = 0; err >= 0 && i < 2; i++)
        if (shard_table_addr(word[i], generation))
            far_cas(t, directory + 8ull * table_word_index(2 + i, generation), word[i], 0, &old[i]);
    if (err < 0 || (err = far_wait(t)) < 0)
        return err;
    for (unsigned i = 0; i < 2; i++)
        if (shard_table_addr(word[i], generation) && old[i] == word[i])
            retire_table(t, index, 2 + i, word[i]);
    return 0;
}


uint64_t shard_progress_bytes(const shard_state *st, unsigned version) {
    uint64_t chunks = shard_chunk_count(1ull << (st->b + version - 1));
    return (8 * (SHARD_PROGRESS_DONE + 2 * chunks) + 15) & ~15ull;
}


int shard_progress_addr(far_task *t, shard_partition *part, unsigned version, far_addr *addr) {
    unsigned directory = shard_directory_number(part);
    *addr = shard_table_addr(shard_cached_word(&part->progress, directory), version);
    if (*addr)
        return 0;
    if (version >= SHARD_VERSIONS)
        return fail_beyond_versions();
    int err = read_directory_word(t, part, directory, SHARD_DIR_PROGRESS + version, FAR_GRANULE, addr);
    if (err >= 0 && *addr)
        shard_cache_word(&part->progress, directory, shard_table_word(*addr, version));
    return err;
}


/* Makes one extent of a large segment: the first extent whose address this handle has not cached. Returns 1 if it was
 * the last extent of the segment, 0 if not, or an error. */
static int make_extent(far_task *t, far_index *index, shard_extents *extents, far_addr array, unsigned directory,
                       uint64_t count) {
    uint64_t n = 0, word;
    while (n < count && shard_cached_word(&extents->extent[n], directory))
        n++;
    if (n == count)
        return 1;
    int err = find_extent(t, shard_state_of(index), extents, array, directory, n, &word);
    if (err < 0 || word)
        return err < 0 ? err : n + 1 == count;
    piece p = {.type = SHARD_TYPE_SEGMENT, .size = shard_state_of(index)->extent, .at = array + 8 * n, .missing = true};
    if ((err = allocate_and_link(t, index, &p, 1)) < 0)
        return err;
    shard_cache_word(&extents->extent[n], directory, p.word);
    return n + 1 == count;
}


/* Makes all objects that a version needs, before the root word announces the version. So no split, and therefore no
 * delete, ever waits for memory, and a drain always has tables to which it can move keys. A large segment is made one
 * extent per call, so that no single operation pays for more than one extent. Returns 1 if all objects exist, 0 if the
 * caller must call again, or an error. */
int shard_prepare_version(far_task *t, far_index *index, shard_partition *part, unsigned version) {
    shard_state *st = shard_state_of(index);
    uint64_t count = shard_extent_count(st, version), before[2];
    piece pieces[4];
    shard_extents *extents = NULL;
    far_addr directory, array;
    int err = require_directory(t, part, &directory);
    if (err < 0)
        return err;
    /* a large segment (count > 0) begins with an array of extent addresses */
    pieces[2] = (piece){.type = count ? SHARD_TYPE_PROGRESS : SHARD_TYPE_SEGMENT,
                        .size = count ? (count * 8 + 15) & ~15ull : segment_bytes(st, version),
                        .at = directory + 8ull * (SHARD_DIR_SEGMENT + version)};
    pieces[3] = (piece){.type = SHARD_TYPE_PROGRESS,
                        .size = shard_progress_bytes(st, version),
                        .at = directory + 8ull * (SHARD_DIR_PROGRESS + version)};
    for (unsigned i = 0; i < 2; i++) {
        far_read(t, directory + 8ull * table_word_index(2 + i, version), &before[i], 8);
        far_read(t, pieces[2 + i].at, &pieces[2 + i].word, 8);
    }
    if ((err = far_wait(t)) < 0)
        return err;
    for (unsigned i = 0; i < 2; i++) {
        pieces[i] = describe_table(st, directory, 2 + i, version, before[i]);
        pieces[2 + i].missing = pieces[2 + i].word == 0;
    }
    if ((err = allocate_and_link(t, index, pieces, 4)) < 0)
        return err;
    adopt_tables(t, index, part, pieces, before, version);
    if (count == 0)
        return 1;
    bool fresh = pieces[2].linked;
    unsigned number = shard_directory_number(part);
    if ((err = find_extent_array(t, st, part, number, version, &extents, &array)) < 0)
        return err;
    return extents && !fresh ? make_extent(t, index, extents, array, number, count) : 0;
}
