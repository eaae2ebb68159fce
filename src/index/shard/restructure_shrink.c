/* Shrinking: a partition that has become empty returns to the size of a new partition and gets a new directory.
 *
 * - STABLE(d) -> SHRINK(d): housekeeping announces the shrink, after it has sampled some buckets and found no key.
 * - SHRINK(d) -> STABLE(d): the shrink is cancelled, by every insert before its first change, or by housekeeping if it
 *   finds a key.
 * - SHRINK(d) -> STABLE(0) with the next directory: after all buckets were seen to be empty.
 *
 * Why no key is lost and no client waits:
 *
 * S1. After the grace period (restructure.c), all pinned clients have read the root word SHRINK(d), so every insert
 * changes the root word before it inserts. No root word occurs twice, and in a partition that does not double no key is
 * moved. So a bucket that was read without a key has no key as long as the root word is unchanged. The proof that the
 * partition is empty may therefore extend over any number of pins, and any client may continue it.
 *
 * S2. It follows that the last CAS of the root word succeeds only if the partition has no key at that moment. Before
 * this CAS, the next directory is complete and the control block names it. The CAS is therefore safe even if the client
 * that prepared the next directory has failed.
 *
 * S3. A client that still relies on SHRINK(d) finds the old directory unchanged and empty, because its memory is not
 * reused under the client's pin. A miss in the old directory may be out of date, so the client reads the root word
 * again before it reports the miss (rule R7 in find.c). An insert detects the new directory because its CAS to cancel
 * the shrink fails.
 *
 * S4. The objects of the old directory are listed under the pin of the last CAS. The client whose CAS succeeds retires
 * these objects. If it fails before it has retired them, no word names them any more, and a collection frees them.
 *
 * No client waits for a shrink. If a client stops, or the pool has no memory, the partition only stays large. */
#include "base/error.h"
#include "index/shard/shard.h"
#include "pool/epoch/epoch.h"

#include <stdlib.h>

enum {
    BEGIN_TRIPS = 4,
    BUCKETS_AT_ONCE = 32,
    LINES_AT_ONCE = 128,
    /* approximate number of round trips to prepare the next directory, list the objects of the old directory, and
     * replace the old directory */
    REPLACE_TRIPS = 8,
    /* maximal number of calls of housekeeping during which an idle handle continues, to wait for the grace period */
    MAX_WAITS = 256,
    /* number of calls of housekeeping after which another handle continues a shrink that the announcing handle has not
     * finished */
    WAITS_FOR_ANNOUNCER = 32,
    MAX_BACKOFF = 255, /* maximal number of checks that are skipped after failed shrinks */
    /* number of calls of housekeeping before a positive count is verified for the first time; smaller than the number
     * of calls that an idle handle makes before it stops */
    FIRST_DOUBT = 16,
    MAX_DOUBT = 1 << 20, /* maximal number of calls of housekeeping between two verifications of the count */
};

typedef struct listed_object { /* an object that is retired together with its directory */
    struct listed_object *next;
    unsigned type;
    far_addr addr;
    uint64_t size;
} listed_object;

typedef struct shrink {
    far_task *t;
    far_index *index;
    const shard_state *st;
    shard_partition *part;
    uint64_t root;
    unsigned d, directory;
    listed_object *list;
    uint64_t listed;
} shrink;


/* ---- Cancelling ---- */

/* Cancels a shrink by a CAS of the root word. The new stamp must be later than the stamps of the cancelled root word
 * and of all earlier root words, so that handles learn the new root word. Returns 0 or an error. */
static int cancel_shrink(far_task *t, far_index *index, shard_partition *part, uint64_t root) {
    uint64_t stamp = shard_root_stamp(root), epoch = far_epoch(t);
    far_point(t, "shard:cancel_shrink");
    int err = shard_cas_root(
        t, part, root,
        shard_root_next(root, shard_root_d(root), SHARD_STABLE, true, (stamp > epoch ? stamp : epoch) + 1));
    if (err == 1)
        shard_count_event(&shard_state_of(index)->counters.cancelled);
    return err;
}


int shard_cancel_shrink(shard_op *op) {
    int err = cancel_shrink(op->t, op->index, op->part, op->root);
    if (err != 0)
        return err < 0 ? err : SHARD_AGAIN;
    /* the CAS found another root word, which is cached now (unless the root word is corrupt) */
    return shard_retry(op, false);
}


int shard_recheck_miss(shard_op *op) {
    far_point(op->t, "shard:recheck_miss");
    int err = shard_refresh_root(op->t, op->part);
    if (err < 0)
        return err;
    return shard_directory_number(op->part) == shard_root_directory(op->root) ? FAR_ERR_NOT_FOUND : SHARD_AGAIN;
}


/* ---- The proof that the partition is empty ---- */

/* Reads the next level-1 buckets. Returns 1 if they have no key, and 0 if one has a key or is not as expected. */
static int check_buckets_empty(shrink *s) {
    uint64_t left = (1ull << (s->st->b + s->d)) - s->part->empty_buckets,
             count = left < BUCKETS_AT_ONCE ? left : BUCKETS_AT_ONCE;
    uint64_t(*w)[SHARD_WORDS] = far_scratch(s->t, count * sizeof(*w));
    if (!w)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for buckets");
    for (uint64_t i = 0; i < count; i++) {
        far_addr at;
        int err = shard_bucket_addr(s->t, s->st, s->part, s->part->empty_buckets + i, &at);
        if (err < 0 || at == 0) {
            far_discard_batch(s->t);
            return err;
        }
        far_read(s->t, at, w[i], SHARD_BUCKET_BYTES);
    }
    int err = far_wait(s->t);
    for (uint64_t i = 0; err >= 0 && i < count; i++)
        if (shard_header_v(w[i][shard_header_at(s->st)]) != s->d || shard_is_unwritten(s->st, w[i]) ||
            shard_count_live(s->st, w[i]))
            return 0;
    s->part->empty_buckets += count;
    return err < 0 ? err : 1;
}


/* Checks a word that names a level-2 or level-3 table. */
static int check_table_word(const shrink *s, unsigned level, uint64_t word) {
    unsigned generation = (unsigned)(word >> 48);
    if (generation <= s->d + 1 &&
        far_may_be_object(s->t, word & shard_mask(48), shard_table_object_bytes(s->st, level, generation)))
        return 0;
    return far_fail(FAR_ERR_CORRUPT, "index '%s': the address of a level-2 or level-3 table is invalid",
                    s->index->name);
}


/* Reads the next level-2 buckets, of both generations that may have a table. Sets *through if no more level-2 buckets
 * remain. Returns 1 if the read buckets have no key, 0 if a key was found, or an error. */
static int check_level_2_empty(shrink *s, bool *through) {
    uint64_t table[2], line[LINES_AT_ONCE][SHARD_L2_BYTES / 8], first = s->part->empty_lines;
    far_addr at;
    int err = shard_directory_word_addr(s->t, s->part, SHARD_DIR_L2, &at);
    if (err < 0 || at == 0)
        return err;
    far_read(s->t, at, table, sizeof(table));
    err = far_wait(s->t);
    for (unsigned i = 0; err >= 0 && i < 2; i++) {
        unsigned generation = (unsigned)(table[i] >> 48);
        if (table[i] == 0)
            continue;
        if ((err = check_table_word(s, 2, table[i])) < 0)
            return err;
        uint64_t lines = shard_table_bytes(s->st, 2, generation) / SHARD_L2_BYTES;
        if (first >= lines) {
            first -= lines;
            continue;
        }
        uint64_t rest = shard_table_rest(s->st, 2, generation, SHARD_L2_BYTES * first) / SHARD_L2_BYTES,
                 count = rest < LINES_AT_ONCE ? rest : LINES_AT_ONCE;
        err = shard_table_place(s->t, s->st, s->part, 2, generation, SHARD_L2_BYTES * first, &at);
        if (err >= 0 && at) { /* an extent that was never made has no key */
            far_read(s->t, at, line, SHARD_L2_BYTES * count);
            err = far_wait(s->t);
        }
        for (uint64_t n = 0; err >= 0 && at && n < count; n++)
            if (!shard_line_is_empty(s->st, line[n]))
                return 0;
        s->part->empty_lines += count;
        return err < 0 ? err : 1;
    }
    *through = true;
    return err < 0 ? err : 1;
}


/* ---- The objects of a directory ---- */

static int list_object(shrink *s, unsigned type, far_addr addr, uint64_t size) {
    listed_object *g = far_scratch(s->t, sizeof(*g));
    if (!g)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to list the objects of a partition");
    if (!far_may_be_object(s->t, addr, size))
        return far_fail(FAR_ERR_CORRUPT, "index '%s': the address %#llx in a partition is invalid", s->index->name,
                        (unsigned long long)addr);
    *g = (listed_object){s->list, type, addr, size};
    s->list = g;
    s->listed++;
    return 0;
}


static int compare_addresses(const void *a, const void *b) {
    far_addr first = (*(listed_object *const *)a)->addr, second = (*(listed_object *const *)b)->addr;
    return (first > second) - (first < second);
}


/* Reports corruption if the same object is listed twice, or if two listed objects overlap, because then the word that
 * names one of them is corrupt. */
static int check_no_overlap(const shrink *s) {
    listed_object **all = far_scratch(s->t, s->listed * sizeof(*all));
    uint64_t count = 0;
    if (!all)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to list the objects of a partition");
    for (listed_object *g = s->list; g; g = g->next)
        all[count++] = g;
    qsort(all, count, sizeof(*all), compare_addresses);
    for (uint64_t i = 1; i < count; i++)
        if (all[i - 1]->addr + all[i - 1]->size > all[i]->addr)
            return far_fail(FAR_ERR_CORRUPT, "index '%s', partition %llu: two objects overlap at %#llx", s->index->name,
                            (unsigned long long)s->part->number, (unsigned long long)all[i]->addr);
    return 1;
}


typedef struct chain_position { /* the position up to which a chain was followed */
    shard_chain chain;
    far_addr at;
    shard_node node;
} chain_position;


/* Lists the nodes of the chains whose `count` heads begin at `heads`. Reads one node of each chain per round trip.
 * Returns 1 if no chain has a key, 0 if a key was found, or an error. */
static int list_chains(shrink *s, far_addr heads, uint64_t count) {
    uint64_t size = shard_node_bytes(s->st);
    chain_position *links = far_scratch(s->t, count * sizeof(*links));
    if (!links)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for chains");
    for (uint64_t i = 0; i < count; i++) {
        links[i].chain = (shard_chain){0};
        far_read(s->t, heads + size * i, &links[i].node, size);
    }
    int err = far_wait(s->t);
    while (err >= 0 && count > 0) {
        uint64_t next = 0;
        for (uint64_t i = 0; i < count; i++)
            if (!shard_node_is_empty(s->st, &links[i].node))
                return 0;
        for (uint64_t i = 0; err >= 0 && i < count; i++) {
            far_addr at = *shard_next_of(s->st, &links[i].node);
            if (!at)
                continue;
            if ((err = shard_chain_step(s->index, &links[i].chain, at)) >= 0)
                err = list_object(s, SHARD_TYPE_NODE, at, size);
            links[next].chain = links[i].chain;
            links[next++].at = at;
        }
        for (uint64_t i = 0; err >= 0 && i < next; i++)
            far_read(s->t, links[i].at, &links[i].node, size);
        err = err < 0 ? err : far_wait(s->t);
        count = next;
    }
    return err < 0 ? err : 1;
}


/* Reads the addresses of the extents of a table. Returns NULL after an error, which is set in *err. */
static uint64_t *read_extents(shrink *s, far_addr array, uint64_t count, int *err) {
    uint64_t *extent = far_scratch(s->t, count * 8);
    if (!extent) {
        *err = far_fail(FAR_ERR_NO_MEMORY, "no memory for the extents of a table");
        return NULL;
    }
    far_read(s->t, array, extent, count * 8);
    *err = far_wait(s->t);
    return *err < 0 ? NULL : extent;
}


/* Adds a level-2 or level-3 table to the list of objects to retire, with its extents and, at level 3, the nodes of its
 * chains. Returns 1 if the chains have no key, 0 if a key was found, or an error. */
static int list_table(shrink *s, unsigned level, uint64_t word) {
    unsigned generation = (unsigned)(word >> 48);
    far_addr table = word & shard_mask(48);
    int err = check_table_word(s, level, word);
    if (err < 0)
        return err;
    uint64_t count = shard_extent_count(s->st, level, generation), *extent = &table,
             bytes = count ? s->st->extent : shard_table_bytes(s->st, level, generation);
    if (count && ((err = list_object(s, shard_table_type(level, true), table, (count * 8 + 15) & ~15ull)) < 0 ||
                  !(extent = read_extents(s, table, count, &err))))
        return err;
    for (uint64_t i = 0; i < (count ? count : 1); i++) {
        if (extent[i] == 0)
            continue;
        if ((err = list_object(s, SHARD_TYPE_OVERFLOW, extent[i], bytes)) < 0 ||
            (level == 3 && (err = list_chains(s, extent[i], bytes / shard_node_bytes(s->st))) <= 0))
            return err;
    }
    return 1;
}


/* Adds the level-2 and level-3 tables that the directory names to the list of objects to retire. `words` are the words
 * of the directory. Returns 1 if the chains have no key, 0 if a key was found at level 3, or an error. */
static int list_tables(shrink *s, const uint64_t *words) {
    int err = 1;
    for (unsigned i = 0; err > 0 && i < 4; i++)
        if (words[SHARD_DIR_L2 + i])
            err = list_table(s, 2 + i / 2, words[SHARD_DIR_L2 + i]);
    return err;
}


/* Adds an extent to the list. An extent may be retired only if its address is the address from which the proof has read
 * its buckets. */
static int list_extent(shrink *s, const _Atomic uint64_t *known, far_addr addr, uint64_t size) {
    int err = shard_check_unchanged(s->index, s->part, "extent of a segment",
                                    known ? shard_cached_word(known, s->directory) : 0, addr);
    return err < 0 || addr == 0 ? err : list_object(s, SHARD_TYPE_SEGMENT, addr, size);
}


static int list_segment(shrink *s, unsigned segment, far_addr addr) {
    uint64_t count = shard_extent_count(s->st, 1, segment);
    _Atomic uint64_t *known = &s->part->segment[segment];
    if (count == 0)
        return list_extent(s, known, addr, shard_table_bytes(s->st, 1, segment));
    shard_extents *extents = (shard_extents *)(uintptr_t)atomic_load_explicit(known, memory_order_acquire);
    if (addr == 0)
        return 0;
    int err = list_object(s, SHARD_TYPE_PROGRESS, addr, shard_table_object_bytes(s->st, 1, segment));
    uint64_t *extent = err < 0 ? NULL : read_extents(s, addr, count, &err);
    for (uint64_t i = 0; err >= 0 && i < count; i++)
        err = list_extent(s, extents ? &extents->extent[i] : NULL, extent[i], s->st->extent);
    return err;
}


/* Lists all objects that the directory names, including objects that were made for a doubling that has not begun.
 * Returns 1 if all were listed, 0 if a key was found at level 3, or an error. */
static int list_directory(shrink *s) {
    uint64_t words[SHARD_DIR_WORDS];
    far_addr directory;
    int err = shard_directory_word_addr(s->t, s->part, 0, &directory);
    if (err < 0 || directory == 0)
        return err;
    far_read(s->t, directory, words, sizeof(words));
    if ((err = far_wait(s->t)) < 0 || (err = list_object(s, SHARD_TYPE_DIRECTORY, directory, sizeof(words))) < 0 ||
        (err = list_tables(s, words)) <= 0)
        return err;
    for (unsigned i = 0; err >= 0 && i < SHARD_VERSIONS; i++) {
        err = list_segment(s, i, words[SHARD_DIR_SEGMENT + i]);
        if (err >= 0 && i > 0 && words[SHARD_DIR_PROGRESS + i])
            err = list_object(s, SHARD_TYPE_PROGRESS, words[SHARD_DIR_PROGRESS + i], shard_progress_bytes(s->st, i));
    }
    return err < 0 ? err : check_no_overlap(s);
}


/* ---- The next directory ---- */

/* Returns 1 if the next directory still has the contents with which it was prepared, 0 if not, or an error. If it has
 * other contents, either another client has made it current and uses it, or it is the previous directory and the number
 * in its word is damaged. In both cases the root word must not be changed to name this directory. */
static int check_prepared_directory(shrink *s, far_addr directory) {
    uint64_t words[SHARD_DIR_WORDS];
    if (!far_may_be_object(s->t, directory, sizeof(words)))
        return 0;
    far_read(s->t, directory, words, sizeof(words));
    int err = far_wait(s->t);
    for (unsigned i = 0; err >= 0 && i < SHARD_DIR_WORDS; i++)
        if (i != SHARD_DIR_SEGMENT && words[i])
            return 0;
    return err < 0 ? err : far_may_be_object(s->t, words[SHARD_DIR_SEGMENT], shard_table_object_bytes(s->st, 1, 0));
}


/* Prepares the next directory. The other directory word of the control block names the previous directory, or the next
 * directory if a client has prepared it and failed. Returns 1 if the next directory exists, 0 if not, or an error. */
static int prepare_directory(shrink *s) {
    unsigned number = (s->directory + 1) % SHARD_DIRECTORIES;
    shard_new_directory made;
    far_addr at = s->part->pcb + 8 * (SHARD_PCB_DIRECTORY + number % 2);
    uint64_t word, old;
    int err = far_read_word(s->t, at, &word);
    if (err < 0 || shard_directory_addr(word, number))
        return err < 0 ? err : check_prepared_directory(s, shard_directory_addr(word, number));
    if ((err = shard_make_directory(s->t, s->index, far_addr_node(s->part->pcb), s->st->b, &made)) < 0)
        return err;
    far_point(s->t, "shard:install_directory");
    if ((err = far_cas_word(s->t, at, word, shard_directory_word(made.directory, number), &old)) < 0 || old == word)
        return err < 0 ? err : 1;
    shard_free_directory(s->t, s->index, &made);
    return shard_directory_addr(old, number) != 0;
}


/* Replaces the directory, after all buckets of levels 1 and 2 were seen to be empty. Level 3 is checked here, when the
 * nodes of its chains are listed. Returns 1 if the directory was replaced, 0 if not, or an error. */
static int replace_directory(shrink *s) {
    static const uint64_t none = 0;
    int err = prepare_directory(s);
    if (err <= 0 || (err = list_directory(s)) <= 0)
        return err;
    far_point(s->t, "shard:switch_root");
    /* The stamp must not be earlier than the epoch at the moment of the CAS (shard_all_clients_know), and the epoch may
     * have advanced by one since this pin was taken. */
    uint64_t epoch = far_epoch(s->t) + 1;
    uint64_t fresh = shard_root_with_directory(shard_root(0, SHARD_STABLE, true, epoch), s->directory + 1);
    if ((err = shard_cas_root(s->t, s->part, s->root, fresh)) <= 0)
        return err;
    far_point(s->t, "shard:root_switched");
    for (const listed_object *g = s->list; g; g = g->next)
        far_retire(s->t, s->index, g->type, g->addr, g->size);
    shard_count_event(&shard_state_of(s->index)->counters.shrunk);
    /* clears the claim word, because it names a version of the old directory */
    far_write(s->t, s->part->pcb + 8 * SHARD_PCB_CLAIM, &none, sizeof(none));
    err = far_wait(s->t);
    return err < 0 ? err : 1;
}


/* ---- Housekeeping ---- */

/* Called after a failed shrink: the next checks are skipped. The number of skipped checks doubles with each failure. */
static void back_off_shrink(shard_partition *part) {
    part->shrink_backoff = part->shrink_backoff < MAX_BACKOFF / 2 ? 2 * part->shrink_backoff + 1 : MAX_BACKOFF;
    part->shrink_skip = part->shrink_backoff;
    part->shrink_count = shard_known_keys(part);
}


/* Called when the count is positive. The count may be wrong, because a client that failed may not have published its
 * deletes. Returns true if the count should be verified now. As long as the count does not change, the verifications
 * become less frequent. */
static bool decide_to_doubt_count(shard_partition *part) {
    int64_t count = shard_known_keys(part);
    if (count != part->doubted_count) {
        part->doubted_count = count;
        part->doubt_skip = part->doubt_backoff = FIRST_DOUBT;
    }
    if (part->doubt_skip > 0) {
        part->doubt_skip--;
        return false;
    }
    part->doubt_backoff = part->doubt_backoff < MAX_DOUBT ? 2 * part->doubt_backoff : MAX_DOUBT;
    part->doubt_skip = part->doubt_backoff;
    return true;
}


/* Announces a shrink of a stable partition if a sample of buckets finds no key. First looks for a sign that the
 * partition is in use: if this handle was proving the partition empty when it last visited it, and the partition still
 * has the same directory, another client has cancelled that shrink; then the next checks are skipped. Returns 1 if the
 * shrink was announced, or if the handle should stay active because the count says that the partition is empty;
 * otherwise 0, or an error. */
static int announce_shrink(shrink *s, int *trips) {
    shard_partition *part = s->part;
    uint64_t keys, published;
    bool called_off = part->proof_root && shard_root_directory(part->proof_root) == s->directory;
    part->proof_root = 0;
    if (called_off)
        back_off_shrink(part);
    if (s->d == 0)
        part->shrink_skip = part->shrink_backoff = 0;
    bool few = shard_has_few_keys(s->st, part, s->d), none = shard_known_keys(part) <= 0;
    if (s->d == 0 || !part->quiet || (!few && !decide_to_doubt_count(part)))
        return 0;
    if (few && part->shrink_skip > 0 && !(none && shard_known_keys(part) != part->shrink_count)) {
        part->shrink_skip--;
        /* While the count says that the partition is empty, return 1, so that this handle stays active and checks
         * again. After the longest backoff return 0, because the count may be wrong and may never be corrected. */
        return none && part->shrink_backoff < MAX_BACKOFF;
    }
    if (!shard_all_clients_know(s->t, s->root)) {
        far_epoch_request(far_task_pool(s->t));
        return 0;
    }
    *trips -= BEGIN_TRIPS;
    int err = shard_estimate_keys(s->t, s->index, part, s->d, &keys, &published);
    if (err < 0)
        return err;
    if (keys > 0) {
        if (few)
            back_off_shrink(part);
        return 0;
    }
    if (!few && (err = shard_correct_count(s->t, s->index, part, published, 0)) < 0)
        return err;
    far_point(s->t, "shard:shrink");
    uint64_t announced = shard_root_next(s->root, s->d, SHARD_SHRINK, false, shard_root_stamp(s->root));
    if ((err = shard_cas_root(s->t, part, s->root, announced)) <= 0)
        return err;
    /* This handle announced the shrink itself, so it waits only for the grace period and not for another handle. */
    part->shrink_waits = WAITS_FOR_ANNOUNCER;
    err = shard_set_stamp(s->t, part, announced);
    return err < 0 ? err : 1;
}


/* Continues the proof that the partition is empty, and replaces the directory when the proof is complete. Returns 1 if
 * the directory was replaced or the round trips are used up, 0 if the partition is not empty, or an error. */
static int prove_and_replace(shrink *s, int *trips) {
    shard_partition *part = s->part;
    for (bool through = false; *trips > 0;) {
        far_scratch_mark mark = far_scratch_here(s->t);
        int err;
        if (part->empty_buckets < 1ull << (s->st->b + s->d)) {
            --*trips;
            err = check_buckets_empty(s);
        } else if (!through) {
            *trips -= 2;
            err = check_level_2_empty(s, &through);
        } else {
            *trips -= REPLACE_TRIPS;
            return replace_directory(s);
        }
        far_scratch_back(s->t, mark);
        if (err <= 0)
            return err;
    }
    return 1;
}


/* Continues an announced shrink. */
static int continue_shrink(shrink *s, int *trips) {
    shard_partition *part = s->part;
    int err;
    if (part->proof_root != s->root) { /* a proof is valid only under the root word for which it was begun */
        part->proof_root = s->root;
        part->empty_buckets = part->empty_lines = 0;
    }
    if (!shard_root_stamped(s->root)) {
        --*trips;
        err = shard_set_stamp(s->t, part, s->root);
        return err < 0 ? err : 1;
    }
    /* wait, because the handle that announced the shrink is expected to continue it */
    if (part->shrink_waits < WAITS_FOR_ANNOUNCER) {
        part->shrink_waits++;
        return 0;
    }
    if (!shard_all_clients_know(s->t, s->root)) {
        far_epoch_request(far_task_pool(s->t));
        return ++part->shrink_waits < MAX_WAITS;
    }
    if ((err = prove_and_replace(s, trips)) > 0 || shard_session_is_lost(err))
        return err;
    back_off_shrink(part); /* the partition is not empty, or there is no memory */
    int off = cancel_shrink(s->t, s->index, part, s->root);
    return off < 0 ? off : err;
}


static int run_shrink_step(shrink *s, int *trips) {
    unsigned phase = shard_root_phase(s->root);
    if (s->d >= SHARD_VERSIONS)
        return far_fail(FAR_ERR_CORRUPT, "index '%s', partition %llu: its version is too large", s->index->name,
                        (unsigned long long)s->part->number);
    if (phase == SHARD_SHRINK)
        return continue_shrink(s, trips);
    s->part->shrink_waits = 0;
    return phase == SHARD_STABLE ? announce_shrink(s, trips) : 0;
}


int shard_shrink_step(far_task *t, far_index *index, shard_partition *part, int *trips) {
    if (atomic_flag_test_and_set_explicit(&part->working, memory_order_acquire))
        return 0;
    uint64_t root = atomic_load_explicit(&part->root, memory_order_acquire);
    shrink s = {.t = t,
                .index = index,
                .st = shard_state_of(index),
                .part = part,
                .root = root,
                .d = shard_root_d(root),
                .directory = shard_root_directory(root)};
    far_scratch_mark mark = far_scratch_here(t);
    int err = run_shrink_step(&s, trips);
    far_scratch_back(t, mark);
    atomic_flag_clear_explicit(&part->working, memory_order_release);
    return err;
}
