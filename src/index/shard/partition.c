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
#include <string.h>

enum {
    SHARD_LEVELS = 3,
    TABLE_WORDS = 4,      /* words of a directory that name level-2 and level-3 tables */
    EXTENTS_AT_ONCE = 64, /* addresses of extents that one READ returns */
};


static shard_state *state_of_partition(shard_partition *part) {
    return (shard_state *)((char *)(part - part->number) - offsetof(shard_state, part));
}


/* Returns the next cache of extent addresses of the partition after `extents` (NULL: the first one), or NULL. */
static shard_extents *next_extents(const shard_state *st, shard_partition *part, const shard_extents *extents,
                                   unsigned *level) {
    shard_extents *next = extents && *level > 1 ? extents->next : NULL;
    if (!extents)
        *level = 1;
    if (*level == 1)
        for (unsigned i = extents ? extents->version + 1 : st->single_extent_segments; !next && i < st->versions; i++)
            next = (shard_extents *)(uintptr_t)atomic_load_explicit(&part->segment[i], memory_order_acquire);
    while (!next && *level < SHARD_LEVELS)
        next = atomic_load_explicit(&part->extents[++*level - 2], memory_order_acquire);
    return next;
}


void shard_free_extent_caches(const shard_state *st, shard_partition *part) {
    unsigned level;
    shard_extents *extents = next_extents(st, part, NULL, &level);
    while (extents) {
        unsigned next_level = level;
        shard_extents *next = next_extents(st, part, extents, &next_level);
        free(extents);
        extents = next;
        level = next_level;
    }
}


size_t shard_extent_cache_bytes(const shard_state *st, shard_partition *part) {
    unsigned level;
    size_t bytes = 0;
    for (shard_extents *e = next_extents(st, part, NULL, &level); e; e = next_extents(st, part, e, &level))
        bytes += sizeof(*e) + shard_extent_count(st, level, e->version) * 8;
    return bytes;
}


/* Called when the partition has another directory than before: clears all cached words and hints of the old directory
 * and its versions. Other tasks may still add hints that they have read through the old directory. These hints are
 * harmless, because they carry the number of the old directory, and no key is inserted through it any more. */
static void forget_directory(shard_partition *part) {
    const shard_state *st = state_of_partition(part);
    unsigned level;
    for (shard_extents *e = next_extents(st, part, NULL, &level); e; e = next_extents(st, part, e, &level)) {
        for (uint64_t n = 0; n < shard_extent_count(st, level, e->version); n++)
            atomic_store_explicit(&e->extent[n], 0, memory_order_relaxed);
        atomic_store_explicit(&e->word, 0, memory_order_relaxed);
    }
    for (unsigned i = 0; i < st->single_extent_segments; i++)
        atomic_store_explicit(&part->segment[i], 0, memory_order_relaxed);
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


uint64_t shard_table_bytes(const shard_state *st, unsigned level, unsigned version) {
    if (level == 1)
        return shard_segment_buckets(version, st->b) * SHARD_BUCKET_BYTES;
    if (level == 2)
        return (uint64_t)SHARD_L2_BYTES << (st->b + version);
    return shard_head_count(st->b, version) * shard_node_bytes(st);
}


uint64_t shard_extent_count(const shard_state *st, unsigned level, unsigned version) {
    uint64_t bytes = shard_table_bytes(st, level, version);
    return bytes <= st->extent ? 0 : bytes / st->extent;
}


uint64_t shard_table_object_bytes(const shard_state *st, unsigned level, unsigned version) {
    uint64_t count = shard_extent_count(st, level, version);
    return count ? (count * 8 + 15) & ~15ull : shard_table_bytes(st, level, version);
}


uint64_t shard_table_rest(const shard_state *st, unsigned level, unsigned version, uint64_t offset) {
    if (shard_extent_count(st, level, version))
        return st->extent - offset % st->extent;
    return shard_table_bytes(st, level, version) - offset;
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


static unsigned table_word_index(unsigned level, unsigned version) {
    return level == 1 ? SHARD_DIR_SEGMENT + version : (level == 2 ? SHARD_DIR_L2 : SHARD_DIR_L3) + (version & 1);
}


/* Returns the cached address of a table that is a single object, or 0. */
static far_addr cached_table(const shard_partition *part, unsigned level, unsigned version, unsigned directory) {
    if (level == 1)
        return shard_cached_word(&part->segment[version], directory);
    return shard_table_addr(shard_cached_word(&part->table[table_word_index(level, version)], directory), version);
}


/* Caches the words of the level-2 and level-3 tables that are single objects. Other words are not cached. */
static void cache_overflow_words(far_task *t, const shard_state *st, shard_partition *part, unsigned directory,
                                 const uint64_t words[TABLE_WORDS]) {
    for (unsigned i = 0; i < TABLE_WORDS; i++) {
        unsigned level = 2 + i / 2, generation = (unsigned)(words[i] >> 48);
        far_addr addr = words[i] & shard_mask(48);
        if (addr && generation < st->versions && shard_extent_count(st, level, generation) == 0 &&
            far_may_be_object(t, addr, shard_table_bytes(st, level, generation)))
            shard_cache_word(&part->table[i], directory, words[i]);
    }
}


/* Reads which object the directory names for a table. Sets *addr to its address, or to 0 if there is none or the
 * directory was replaced. One READ returns the words of all level-2 and level-3 tables. */
static int read_table_word(far_task *t, const shard_state *st, shard_partition *part, unsigned directory,
                           unsigned level, unsigned version, far_addr *addr) {
    uint64_t words[TABLE_WORDS], bytes = shard_table_object_bytes(st, level, version);
    if (level == 1)
        return read_directory_word(t, part, directory, table_word_index(level, version), bytes, addr);
    far_addr at;
    int err = find_directory_word(t, part, directory, SHARD_DIR_L2, &at);
    *addr = 0;
    if (err < 0 || at == 0)
        return err;
    far_read(t, at, words, sizeof(words));
    if ((err = far_wait(t)) < 0)
        return err;
    *addr = shard_table_addr(words[table_word_index(level, version)], version);
    cache_overflow_words(t, st, part, directory, words);
    return check_address(t, *addr, bytes);
}


/* Sets *addr to the address of a table that is a single object, or to 0. */
static int find_table(far_task *t, const shard_state *st, shard_partition *part, unsigned level, unsigned version,
                      far_addr *addr) {
    unsigned directory = shard_directory_number(part);
    *addr = cached_table(part, level, version, directory);
    if (*addr)
        return 0;
    int err = read_table_word(t, st, part, directory, level, version, addr);
    if (err >= 0 && *addr && level == 1)
        shard_cache_word(&part->segment[version], directory, *addr);
    return err;
}


static shard_extents *known_extents(shard_partition *part, unsigned level, unsigned version) {
    if (level == 1)
        return (shard_extents *)(uintptr_t)atomic_load_explicit(&part->segment[version], memory_order_acquire);
    shard_extents *extents = atomic_load_explicit(&part->extents[level - 2], memory_order_acquire);
    while (extents && extents->version != version)
        extents = extents->next;
    return extents;
}


/* Allocates the local memory in which this handle caches the addresses of a table's extents. The memory is allocated
 * once and used for all later directories. Returns 0 or an error. */
static int allocate_extent_cache(const shard_state *st, shard_partition *part, unsigned level, unsigned version,
                                 shard_extents **extents) {
    shard_extents *made = calloc(1, sizeof(*made) + shard_extent_count(st, level, version) * 8);
    uint64_t none = 0;
    bool added = false;
    if (!made)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for the addresses of a table");
    made->version = version;
    if (level == 1)
        added = atomic_compare_exchange_strong_explicit(&part->segment[version], &none, (uintptr_t)made,
                                                        memory_order_acq_rel, memory_order_acquire);
    else {
        made->next = atomic_load_explicit(&part->extents[level - 2], memory_order_acquire);
        while (!added && !known_extents(part, level, version))
            added = atomic_compare_exchange_strong_explicit(&part->extents[level - 2], &made->next, made,
                                                            memory_order_acq_rel, memory_order_acquire);
    }
    if (!added)
        free(made);
    *extents = added ? made : known_extents(part, level, version);
    return 0;
}


/* For a table that consists of extents: sets *array to the address of the array of extent addresses, and *extents to
 * the local cache of these addresses. Sets *extents to NULL if the table does not exist yet. *array is separate from
 * the cache, because another task may clear the cache at any time (shard_learn_root). */
static int find_extent_array(far_task *t, const shard_state *st, shard_partition *part, unsigned directory,
                             unsigned level, unsigned version, shard_extents **extents, far_addr *array) {
    shard_extents *known = known_extents(part, level, version);
    *extents = known;
    *array = known ? shard_cached_word(&known->word, directory) : 0;
    if (*array)
        return 0;
    int err = read_table_word(t, st, part, directory, level, version, array);
    *extents = *array ? known : NULL;
    if (err < 0 || *array == 0 || (!known && (err = allocate_extent_cache(st, part, level, version, extents)) < 0))
        return err;
    shard_cache_word(&(*extents)->word, directory, *array);
    return 0;
}


/* Sets *word to the address of extent n, or to 0. The READ also returns the addresses of the neighbours, and caches
 * them, so that a handle reads the array of a table in few round trips. */
static int find_extent(far_task *t, const shard_state *st, shard_extents *extents, far_addr array, unsigned directory,
                       uint64_t n, uint64_t count, uint64_t *word) {
    uint64_t words[EXTENTS_AT_ONCE], first = n / EXTENTS_AT_ONCE * EXTENTS_AT_ONCE,
                                     number = count - first < EXTENTS_AT_ONCE ? count - first : EXTENTS_AT_ONCE;
    *word = shard_cached_word(&extents->extent[n], directory);
    if (*word)
        return 0;
    far_read(t, array + 8 * first, words, 8 * number);
    int err = far_wait(t);
    for (uint64_t i = 0; err >= 0 && i < number; i++)
        if (words[i] && far_may_be_object(t, words[i], st->extent))
            shard_cache_word(&extents->extent[first + i], directory, words[i]);
    *word = err < 0 ? 0 : words[n - first];
    return err < 0 ? err : check_address(t, *word, st->extent);
}


static int fail_beyond_versions(void) {
    return far_fail(FAR_ERR_CORRUPT, "the version of a partition of a shard index is too large");
}


/* Returns 1 if the root word, which this function reads, uses the table, 0 if it does not, or an error. */
static int read_whether_table_is_used(far_task *t, shard_partition *part, unsigned directory, unsigned level,
                                      unsigned version) {
    int err = shard_refresh_root(t, part);
    const uint64_t root = atomic_load_explicit(&part->root, memory_order_acquire);
    const unsigned d = shard_root_d(root), oldest = level == 1 ? 0 : d - shard_root_doubles(root);
    return err < 0 ? err : shard_root_directory(root) == directory && version >= oldest && version <= d;
}


/* Called when an extent of a table is missing, which is right only while the version is being prepared: all extents of
 * a table are linked before the root word uses it. So the root word is read first, and then the extent once more,
 * because another client may have linked it after the first READ. Sets *word to the extent, or to 0 if the table is not
 * used. Returns FAR_ERR_CORRUPT if the extent of a used table is missing. */
static int read_missing_extent(far_task *t, const shard_state *st, shard_partition *part, shard_extents *extents,
                               far_addr array, unsigned directory, unsigned level, unsigned version, uint64_t n,
                               uint64_t count, uint64_t *word) {
    int err = read_whether_table_is_used(t, part, directory, level, version);
    if (err <= 0 || (err = find_extent(t, st, extents, array, directory, n, count, word)) < 0 || *word)
        return err;
    return far_fail(FAR_ERR_CORRUPT, "an extent of a level-%u table of a partition of a shard index is missing", level);
}


int shard_table_place(far_task *t, const shard_state *st, shard_partition *part, unsigned level, unsigned version,
                      uint64_t offset, far_addr *addr) {
    shard_extents *extents;
    far_addr array;
    uint64_t word = 0, count;
    unsigned directory = shard_directory_number(part);
    int err;
    *addr = 0;
    if (version >= st->versions)
        return fail_beyond_versions();
    if ((count = shard_extent_count(st, level, version)) == 0) {
        if ((err = find_table(t, st, part, level, version, &word)) >= 0 && word)
            *addr = word + offset;
        return err;
    }
    if ((err = find_extent_array(t, st, part, directory, level, version, &extents, &array)) < 0 || !extents)
        return err;
    if ((err = find_extent(t, st, extents, array, directory, offset / st->extent, count, &word)) < 0)
        return err;
    if (word == 0)
        err = read_missing_extent(t, st, part, extents, array, directory, level, version, offset / st->extent, count,
                                  &word);
    if (err >= 0 && word)
        *addr = word + offset % st->extent;
    return err < 0 ? err : 0;
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
                 : shard_table_place(t, st, part, 1, shard_segment(bucket, st->b),
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
    /* for an array that is linked together with all its extents: their number, type and addresses */
    uint64_t extents;
    unsigned extent_type;
    uint64_t *extent;
} piece;


static void free_piece(far_task *t, far_index *index, const piece *p) {
    for (uint64_t i = 0; i < p->extents; i++)
        if (p->extent[i])
            far_free(t, index, p->extent_type, p->extent[i], shard_state_of(index)->extent);
    if (p->made)
        far_free(t, index, p->type, p->made & shard_mask(48), p->size);
}


/* Allocates the object of a piece, zeroed. An array that is linked together with its extents is written. */
static int allocate_piece(far_task *t, far_index *index, piece *p) {
    const unsigned flags = FAR_ALLOC_ZERO | FAR_ALLOC_ON_NODE;
    far_object object;
    int err = far_alloc(t, index, p->type, p->size, far_addr_node(p->at), flags, &object);
    if (err < 0 || p->extents == 0) {
        p->made = err < 0 ? 0 : object.addr | p->add;
        return err;
    }
    p->made = object.addr | p->add;
    for (uint64_t i = 0; err >= 0 && i < p->extents; i++) {
        err = far_alloc(t, index, p->extent_type, shard_state_of(index)->extent, far_addr_node(p->at), flags, &object);
        p->extent[i] = err < 0 ? 0 : object.addr;
    }
    if (err < 0)
        return err;
    far_write(t, p->made & shard_mask(48), p->extent, 8 * p->extents);
    return far_wait(t);
}


/* Allocates the missing objects, zeroed, and links all of them by CAS in one batch. If one allocation fails, the
 * objects that were already allocated are freed and nothing is linked. Returns 0 or an error. */
static int allocate_and_link(far_task *t, far_index *index, piece *pieces, unsigned count) {
    int err = 0;
    for (unsigned i = 0; err >= 0 && i < count; i++) {
        piece *p = &pieces[i];
        p->made = 0;
        p->linked = false;
        if (p->missing)
            err = allocate_piece(t, index, p);
    }
    for (unsigned i = 0; i < count; i++)
        if (err < 0)
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


/* Returns true if `word` is 0 or can be the address of an object of this size, and if it is the address that this
 * handle has used (`known`; 0 = none). */
static bool is_plausible(const far_task *t, uint64_t known, uint64_t word, uint64_t bytes) {
    return (known == 0 || known == word) && (word == 0 || far_may_be_object(t, word, bytes));
}


/* Sets extent[] to the addresses of the extents of the table whose array is at `array`. Returns 1, 0 if one of them is
 * not plausible, or an error. */
static int read_extents(far_task *t, const shard_state *st, shard_partition *part, unsigned level, unsigned version,
                        far_addr array, uint64_t *extent) {
    const uint64_t count = shard_extent_count(st, level, version);
    const unsigned directory = shard_directory_number(part);
    const shard_extents *known = known_extents(part, level, version);
    far_read(t, array, extent, count * 8);
    int err = far_wait(t);
    if (err < 0)
        return err;
    for (uint64_t i = 0; i < count; i++)
        if (!is_plausible(t, known ? shard_cached_word(&known->extent[i], directory) : 0, extent[i], st->extent))
            return 0;
    return 1;
}


/* Retires a level-2 or level-3 table after it was unlinked. The table has no keys, and its chains have no nodes,
 * because the drain has unlinked them. `word` is the word that named the table. If that word or an extent's address is
 * damaged, or if there is no local memory, the objects are left to a collection, because acting on a damaged address
 * would free memory in use. Returns 0, or an error if the session is lost. */
static int retire_table(far_task *t, far_index *index, shard_partition *part, unsigned level, uint64_t word) {
    const shard_state *st = shard_state_of(index);
    const unsigned generation = (unsigned)(word >> 48), directory = shard_directory_number(part);
    const far_addr addr = word & shard_mask(48);
    if (generation >= st->versions) {
        far_memory_note_leak(far_task_pool(t));
        return 0;
    }
    const uint64_t count = shard_extent_count(st, level, generation),
                   bytes = shard_table_object_bytes(st, level, generation);
    const shard_extents *extents = count ? known_extents(part, level, generation) : NULL;
    const far_addr known = count == 0 ? cached_table(part, level, generation, directory)
                           : extents  ? shard_cached_word(&extents->word, directory)
                                      : 0;
    far_scratch_mark mark = far_scratch_here(t);
    uint64_t *extent = count ? far_scratch(t, count * 8) : NULL;
    int sound = addr != 0 && is_plausible(t, known, addr, bytes) && (count == 0 || extent);
    if (sound && count)
        sound = read_extents(t, st, part, level, generation, addr, extent);
    if (sound > 0) {
        for (uint64_t i = 0; i < count; i++)
            if (extent[i]) /* a client that was slow may have made the array only */
                far_retire(t, index, SHARD_TYPE_OVERFLOW, extent[i], st->extent);
        far_retire(t, index, shard_table_type(level, count), addr, bytes);
    } else
        far_memory_note_leak(far_task_pool(t));
    far_scratch_back(t, mark);
    return sound < 0 ? sound : 0;
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


/* Describes the object that the directory names for a table, for allocate_and_link. `word` is the word that names the
 * table now. If `word` names a level-2 or level-3 table of an older generation, the older table is replaced. Such a
 * table was left by a client that failed or was slow after the drain, or was made by a client that had not observed the
 * drain. */
static piece describe_table(const shard_state *st, far_addr directory, unsigned level, unsigned version,
                            uint64_t word) {
    return (piece){.type = shard_table_type(level, shard_extent_count(st, level, version)),
                   .size = shard_table_object_bytes(st, level, version),
                   .at = directory + 8ull * table_word_index(level, version),
                   .add = level == 1 ? 0 : shard_table_word(0, version),
                   .word = word,
                   .missing = word == 0 || (level > 1 && word >> 48 < version)};
}


/* Called after the level-2 and level-3 tables were linked. Retires the older tables that these tables have replaced
 * (`before` contains the previous words), and caches the new words. */
static int adopt_tables(far_task *t, far_index *index, shard_partition *part, const piece *pieces,
                        const uint64_t *before) {
    uint64_t words[TABLE_WORDS] = {0};
    int err = 0;
    for (unsigned i = 0; i < 2; i++) {
        if (pieces[i].linked && before[i] && err >= 0)
            err = retire_table(t, index, part, 2 + i, before[i]);
        words[2 * i + (pieces[i].word >> 48) % 2] = pieces[i].word;
    }
    cache_overflow_words(t, shard_state_of(index), part, shard_directory_number(part), words);
    return err;
}


enum { EXTENT_MADE, LAST_EXTENT_MADE, TABLE_IS_COMPLETE };


/* Makes the first missing extent of a table. Extents are made in this order by all clients, so a table with its last
 * extent is complete. Returns one of the values above or an error. */
static int make_extent(far_task *t, far_index *index, shard_partition *part, unsigned level, unsigned version) {
    const shard_state *st = shard_state_of(index);
    unsigned directory = shard_directory_number(part);
    uint64_t count = shard_extent_count(st, level, version), word;
    shard_extents *extents = NULL;
    far_addr array;
    if (count == 0)
        return TABLE_IS_COMPLETE;
    int err = find_extent_array(t, st, part, directory, level, version, &extents, &array);
    if (err < 0 || !extents)
        return err;
    for (uint64_t n = 0; n < count; n++) {
        if ((err = find_extent(t, st, extents, array, directory, n, count, &word)) < 0)
            return err;
        if (word)
            continue;
        piece p = {.type = shard_table_type(level, false), .size = st->extent, .at = array + 8 * n, .missing = true};
        if ((err = allocate_and_link(t, index, &p, 1)) < 0)
            return err;
        shard_cache_word(&extents->extent[n], directory, p.word);
        return n + 1 == count ? LAST_EXTENT_MADE : EXTENT_MADE;
    }
    return TABLE_IS_COMPLETE;
}


static bool table_is_known_complete(const shard_state *st, shard_partition *part, unsigned level, unsigned version) {
    const uint64_t count = shard_extent_count(st, level, version);
    const unsigned directory = shard_directory_number(part);
    if (count == 0)
        return cached_table(part, level, version, directory) != 0;
    const shard_extents *extents = known_extents(part, level, version);
    return extents && shard_cached_word(&extents->extent[count - 1], directory) != 0;
}


/* Reads the words that name the level-2 and level-3 tables of a generation, and describes these tables. */
static int read_and_describe_tables(far_task *t, const shard_state *st, far_addr directory, unsigned generation,
                                    piece *pieces, uint64_t *before) {
    for (unsigned i = 0; i < 2; i++)
        far_read(t, directory + 8ull * table_word_index(2 + i, generation), &before[i], 8);
    int err = far_wait(t);
    for (unsigned i = 0; err >= 0 && i < 2; i++)
        pieces[i] = describe_table(st, directory, 2 + i, generation, before[i]);
    return err;
}


int shard_make_overflow_tables(far_task *t, far_index *index, shard_partition *part, unsigned generation) {
    const shard_state *st = shard_state_of(index);
    far_addr directory;
    piece pieces[2];
    uint64_t before[2];
    int err;
    if (table_is_known_complete(st, part, 2, generation) && table_is_known_complete(st, part, 3, generation))
        return 0;
    if ((err = require_directory(t, part, &directory)) < 0 ||
        (err = read_and_describe_tables(t, st, directory, generation, pieces, before)) < 0)
        return err;
    far_scratch_mark mark = far_scratch_here(t);
    for (unsigned i = 0; i < 2; i++) {
        pieces[i].extents = shard_extent_count(st, 2 + i, generation);
        pieces[i].extent_type = shard_table_type(2 + i, false);
        pieces[i].extent = far_scratch(t, 8 * pieces[i].extents);
        if (!pieces[i].extent)
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for the extents of a table");
        memset(pieces[i].extent, 0, 8 * pieces[i].extents);
    }
    if ((err = allocate_and_link(t, index, pieces, 2)) >= 0)
        err = adopt_tables(t, index, part, pieces, before);
    far_scratch_back(t, mark);
    return err < 0 ? err : 0;
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
    for (unsigned i = 0; err >= 0 && i < 2; i++)
        if (shard_table_addr(word[i], generation) && old[i] == word[i])
            err = retire_table(t, index, part, 2 + i, word[i]);
    return err < 0 ? err : 0;
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
    if (version >= state_of_partition(part)->versions)
        return fail_beyond_versions();
    int err = read_directory_word(t, part, directory, SHARD_DIR_PROGRESS + version, FAR_GRANULE, addr);
    if (err >= 0 && *addr)
        shard_cache_word(&part->progress, directory, shard_table_word(*addr, version));
    return err;
}


/* Makes all objects that a version needs, before the root word announces the version. So no split, and therefore no
 * delete, ever waits for memory, and a drain always has tables to which it can move keys. A table of several extents is
 * made one extent per call, so that no single operation pays for more than one extent. Returns 1 if all objects exist,
 * 0 if the caller must call again, or an error. */
int shard_prepare_version(far_task *t, far_index *index, shard_partition *part, unsigned version) {
    shard_state *st = shard_state_of(index);
    uint64_t before[4];
    piece pieces[4];
    far_addr directory;
    int err = require_directory(t, part, &directory);
    if (err < 0)
        return err;
    pieces[3] = (piece){.type = SHARD_TYPE_PROGRESS,
                        .size = shard_progress_bytes(st, version),
                        .at = directory + 8ull * (SHARD_DIR_PROGRESS + version)};
    far_read(t, directory + 8ull * table_word_index(1, version), &before[2], 8);
    far_read(t, pieces[3].at, &before[3], 8);
    if ((err = read_and_describe_tables(t, st, directory, version, pieces, before)) < 0)
        return err;
    pieces[2] = describe_table(st, directory, 1, version, before[2]);
    pieces[3].word = before[3];
    pieces[3].missing = before[3] == 0;
    if ((err = allocate_and_link(t, index, pieces, 4)) < 0 || (err = adopt_tables(t, index, part, pieces, before)) < 0)
        return err;
    bool begun = false;
    for (unsigned i = 0; i < 3; i++)
        begun |= pieces[i].linked && pieces[i].type == SHARD_TYPE_PROGRESS;
    if (begun)
        return 0;
    /* if level 2 or 3 consists of extents, level 1 does so too */
    for (unsigned level = 2; level <= 3; level++)
        if ((err = make_extent(t, index, part, level, version)) != TABLE_IS_COMPLETE)
            return err < 0 ? err : 0;
    err = make_extent(t, index, part, 1, version);
    return err < 0 ? err : err != EXTENT_MADE;
}
