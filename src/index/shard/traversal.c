/* The traversal of a shard index (traversal.h): follows every address from the descriptor down, and fails if an address
 * cannot be correct. */
#include "index/shard/traversal.h"
#include "base/error.h"
#include "pool/epoch/epoch.h"
#include "pool/format/clients.h"

#include <limits.h>

enum { BUCKETS_AT_ONCE = 8, LINES_AT_ONCE = 32, LOOKS = 32 };

/* A result besides 0, 1 and the error codes: the partition has another directory than when its traversal began. */
enum { DIRECTORY_REPLACED = INT_MIN };


/* Takes a pin. Returns DIRECTORY_REPLACED if the partition has another directory now, 0 if not, or an error. While the
 * pin is held, the memory of the directory that this handle has cached is not reused. */
static int pin_same_directory(shard_traversal *r) {
    int err = far_pin_take(r->t);
    return err < 0 ? err : shard_directory_number(r->part) == r->directory ? 0 : DIRECTORY_REPLACED;
}


/* Reports an object to the mark phase. The caller must hold the pin under which it read the object's address, because
 * the mark phase checks whether the object is free. Objects that live as long as the index need no pin. */
static int report_object(shard_traversal *r, unsigned type, far_addr addr, uint64_t size) {
    return r->walk ? far_walk_object(r->walk, r->index, type, addr, size) : 0;
}


/* Lets a salvage continue after a broken object; returns any other result unchanged. */
static int skip_damage(shard_traversal *r, int result) {
    return r->keys ? far_keys_skip_damage(r->t, r->keys, result) : result;
}


static int visit_entries(shard_traversal *r, far_addr at, const uint64_t *words, unsigned count, int level,
                         uint64_t bucket, unsigned v) {
    int err = 0;
    for (unsigned i = 0; err >= 0 && i < count; i++) {
        far_scratch_mark mark = far_scratch_here(r->t);
        if (shard_is_live(words[i]))
            err = skip_damage(r, r->each(r, at + 8 * i, words[i], level, bucket, v));
        far_scratch_back(r->t, mark);
    }
    return err;
}


/* Returns whether the address is inside the table that the word names, as its extents were last read. */
static bool is_inside_table(const shard_traversal *r, unsigned word, far_addr at) {
    far_addr table = r->table[word] & shard_mask(48);
    unsigned level = 2 + word / 2, generation = (unsigned)(r->table[word] >> 48);
    if (!table)
        return false;
    if (!r->extents[word])
        return at >= table && at < table + shard_table_bytes(r->st, level, generation);
    for (uint64_t i = 0; i < shard_extent_count(r->st, level, generation); i++)
        if (r->extents[word][i] && at >= r->extents[word][i] && at < r->extents[word][i] + r->st->extent)
            return true;
    return false;
}


/* Reports a chain node, which is an object of its own. Before that, the function verifies that the node is not inside a
 * level-2 or level-3 table, because the contents of a table look like nodes, so a corrupt link into a table would not
 * be detected otherwise. The caller is pinned. The table word is read again, because a table that this word no longer
 * names may have been freed, and the node may now use its memory. */
static int report_node(shard_traversal *r, far_addr at, uint64_t bytes) {
    for (unsigned i = 0; i < 4; i++) {
        uint64_t now = 0;
        if (!is_inside_table(r, i, at))
            continue;
        int err = far_read_word(r->t, r->directory_addr + 8 * (SHARD_DIR_L2 + i), &now);
        if (err < 0 || now == r->table[i])
            return err < 0 ? err
                           : far_fail(FAR_ERR_CORRUPT,
                                      "index '%s', partition %llu: a link of a chain points into a table, at %#llx",
                                      r->index->name, (unsigned long long)r->part->number, (unsigned long long)at);
    }
    return report_object(r, SHARD_TYPE_NODE, at, bytes);
}


static int visit_pointer_chain(shard_traversal *r, far_addr at, shard_p_node node, unsigned generation) {
    shard_chain chain = {0};
    int err = visit_entries(r, at, node.entry, SHARD_P_NODE_SLOTS, 3, 0, generation);
    for (at = node.next; err >= 0 && at; at = node.next) {
        if ((err = shard_chain_step(r->index, &chain, at)) < 0 || (err = report_node(r, at, sizeof(node))) < 0)
            return err;
        far_read(r->t, at, &node, sizeof(node));
        if ((err = far_wait(r->t)) >= 0)
            err = visit_entries(r, at, node.entry, SHARD_P_NODE_SLOTS, 3, 0, generation);
    }
    return err;
}


/* Inline layout: visits a live pair. During a mark phase it also frees a slot that a failed client has claimed (BUSY).
 */

static int visit_pair(shard_traversal *r, far_addr mark_at, uint64_t mark, bool live, bool busy, unsigned owner,
                      uint64_t open, uint64_t h, int level, uint64_t bucket, unsigned v) {
    uint64_t old;
    if (live)
        return r->each_pair(r, mark_at, mark, h, level, bucket, v);
    if (!busy || !r->walk)
        return 0;
    int dead = far_client_confirm_failed(r->t, owner, FAR_ANY_GENERATION);
    return dead <= 0 ? dead : far_cas_word(r->t, mark_at, mark, open, &old);
}


static int visit_l2_pairs(shard_traversal *r, far_addr at, const uint64_t *words, uint64_t bucket,
                          unsigned generation) {
    const shard_state *st = r->st;
    int err = 0;
    for (unsigned i = 0; err >= 0 && i < SHARD_L2_I_SLOTS; i++) {
        uint64_t kw = words[2 * i + 1],
                 level = shard_unquotient(shard_kw_rem(kw), bucket, r->part->number, st->p, st->implied);
        uint64_t h = shard_unrehash(level, st->level_seed[shard_kw_choice(kw)], st->p, st->hash_bits);
        err = visit_pair(r, at + 16 * i + 8, kw, kw & SHARD_V, shard_kw_is_busy(kw), shard_kw_owner(kw),
                         shard_kw_free(shard_kw_gen(kw)), h, 2, bucket, generation);
    }
    return err;
}


static int visit_inline_chain(shard_traversal *r, far_addr at, shard_i_node node, unsigned generation) {
    shard_chain chain = {0};
    for (;;) {
        int err = 0;
        for (unsigned i = 0; err >= 0 && i < SHARD_I_NODE_SLOTS; i++) {
            uint64_t state = node.slot[i].state, h = shard_hash(r->index, (far_bytes){&node.slot[i].key, 8});
            err = visit_pair(r, at + i * sizeof(shard_i_slot) + 16, state, state & SHARD_STATE_LIVE,
                             state & SHARD_STATE_BUSY, shard_state_owner(state),
                             shard_state_word(0, 0, shard_state_gen(state)), h, 3, 0, generation);
        }
        if (err < 0 || (at = node.next) == 0 || (err = shard_chain_step(r->index, &chain, at)) < 0 ||
            (err = report_node(r, at, sizeof(node))) < 0)
            return err;
        far_read(r->t, at, &node, sizeof(node));
        if ((err = far_wait(r->t)) < 0)
            return err;
    }
}


static int visit_line(shard_traversal *r, unsigned word, far_addr at, const void *line, uint64_t bucket,
                      unsigned generation) {
    if (word < 2 && r->st->inlined)
        return visit_l2_pairs(r, at, line, bucket, generation);
    if (word < 2)
        return visit_entries(r, at, line, 8, 2, bucket, generation);
    if (r->st->inlined)
        return visit_inline_chain(r, at, *(const shard_i_node *)line, generation);
    return visit_pointer_chain(r, at, *(const shard_p_node *)line, generation);
}


/* Visits a slice of a table, which is inside one extent. The table may be dropped between two slices, so the word that
 * names it is read under every pin. Returns 1 if the table was dropped, 0 if not, or an error. */
static int visit_table_slice(shard_traversal *r, unsigned word, unsigned generation, uint64_t first, uint64_t count) {
    uint64_t lines[LINES_AT_ONCE * 16], table, size = word >= 2 && r->st->inlined ? sizeof(shard_i_node) : 64,
                                               at = size * first;
    int err = far_read_word(r->t, r->directory_addr + 8 * (SHARD_DIR_L2 + word), &table);
    far_addr addr = shard_table_addr(table, generation);
    if (err < 0 || !addr)
        return err < 0 ? err : 1;
    addr = !r->extents[word]                      ? addr + at
           : r->extents[word][at / r->st->extent] ? r->extents[word][at / r->st->extent] + at % r->st->extent
                                                  : 0;
    if (!addr) /* this extent was not made yet, so the table has no keys */
        return 0;
    far_read(r->t, addr, lines, size * count);
    err = far_wait(r->t);
    for (uint64_t i = 0; err >= 0 && i < count; i++)
        err = skip_damage(r, visit_line(r, word, addr + size * i, &lines[size / 8 * i], first + i, generation));
    return err < 0 ? err : 0;
}


static int visit_table(shard_traversal *r, unsigned word, uint64_t table) {
    unsigned generation = (unsigned)(table >> 48), level = 2 + word / 2;
    uint64_t size = word >= 2 && r->st->inlined ? sizeof(shard_i_node) : 64;
    uint64_t lines = shard_table_bytes(r->st, level, generation) / size, count;
    int err = 0;
    for (uint64_t first = 0; err == 0 && first < lines; first += count) {
        uint64_t rest = shard_table_rest(r->st, level, generation, size * first) / size;
        count = rest < LINES_AT_ONCE ? rest : LINES_AT_ONCE;
        if ((err = pin_same_directory(r)) >= 0)
            err = skip_damage(r, visit_table_slice(r, word, generation, first, count));
        far_pin_drop(r->t);
        if (err == 0 && r->keys)
            err = far_keys_throttle(r->t, r->keys);
    }
    return err < 0 ? err : 0;
}


typedef struct partition_view { /* local copies of a partition's control block and directory */
    uint64_t pcb[SHARD_PCB_WORDS], directory[SHARD_DIR_WORDS];
} partition_view;


static unsigned view_version(const partition_view *v) {
    return shard_root_d(v->pcb[SHARD_PCB_ROOT]);
}


/* Reports corruption if the directory names objects of versions that are too late, except to a salvage, which does not
 * use these objects. Objects are made for one version at a time. The root word may have been read before the directory,
 * so one doubling may have happened in between, and the next doubling may be in preparation. Objects of still later
 * versions are corruption. */
static int check_no_later_versions(const shard_traversal *r, const partition_view *v) {
    for (unsigned i = view_version(v) + 3; i < SHARD_VERSIONS && !far_keys_skips_damage(r->keys); i++)
        if (v->directory[SHARD_DIR_SEGMENT + i] || v->directory[SHARD_DIR_PROGRESS + i])
            return far_fail(FAR_ERR_CORRUPT,
                            "index '%s', partition %llu is at version %u, but has objects of version %u",
                            r->index->name, (unsigned long long)r->part->number, view_version(v), i);
    return 0;
}


/* Reads the control block and the directory. If the root word in the control block still names this directory, the
 * control block must contain its address, because the directory word is overwritten only for a directory that follows
 * the next one, and such a directory is prepared only when the root word names the next one. */
static int read_partition_view(shard_traversal *r, partition_view *v) {
    far_read(r->t, r->part->pcb, v->pcb, sizeof(v->pcb));
    far_read(r->t, r->directory_addr, v->directory, sizeof(v->directory));
    int err = far_wait(r->t);
    if (err < 0)
        return err;
    shard_learn_root(r->part, v->pcb[SHARD_PCB_ROOT]);
    if (shard_directory_number(r->part) != r->directory)
        return DIRECTORY_REPLACED;
    uint64_t word = v->pcb[SHARD_PCB_DIRECTORY + r->directory % 2];
    if (word == shard_directory_word(r->directory_addr, r->directory))
        return check_no_later_versions(r, v);
    return far_fail(FAR_ERR_CORRUPT,
                    "index '%s', partition %llu: its directory is at %#llx, but the control block contains %#llx",
                    r->index->name, (unsigned long long)r->part->number, (unsigned long long)r->directory_addr,
                    (unsigned long long)word);
}


/* Takes a pin and reads the partition. The pin is kept even after an error; the caller drops it after it has reported
 * the objects. */
static int pin_and_read_partition(shard_traversal *r, partition_view *v) {
    int err = pin_same_directory(r);
    return err < 0 ? err : read_partition_view(r, v);
}


/* Returns true if the word can name a level-2 or level-3 table. The words of even and odd generations alternate, so the
 * generation must have the parity of the word's position. A generation may be at most two above the version in the root
 * word: one doubling may have happened after the root word was read, and the next may be in preparation. */
static bool table_word_is_valid(const partition_view *v, unsigned i) {
    uint64_t table = v->directory[SHARD_DIR_L2 + i], generation = table >> 48;
    return table == 0 || (generation % 2 == i % 2 && generation <= view_version(v) + 2u);
}


/* Handles invalid table words. A check reports an invalid table word and skips the table, and a salvage skips the
 * table. Any other traversal fails, because it would miss the keys in the table. */
static int check_tables(const shard_traversal *r, const partition_view *v) {
    for (unsigned i = 0; i < 4; i++) {
        unsigned long long word = v->directory[SHARD_DIR_L2 + i], number = r->part->number;
        if (table_word_is_valid(v, i) || far_keys_skips_damage(r->keys))
            continue;
        if (!r->report)
            return far_fail(FAR_ERR_CORRUPT, "index '%s', partition %llu: invalid table address %#llx", r->index->name,
                            number, word);
        far_report_problem(r->report, "partition %llu: invalid address of a level-%u table: %#llx", number, 2 + i / 2,
                           word);
    }
    return 0;
}


/* Returns the oldest generation after `done` that has a table, or SHARD_VERSIONS if there is none. */
static unsigned next_generation(const shard_traversal *r, int done) {
    unsigned next = SHARD_VERSIONS;
    for (unsigned i = 0; i < 4; i++)
        if (r->table[i] && (int)(r->table[i] >> 48) > done && r->table[i] >> 48 < next)
            next = (unsigned)(r->table[i] >> 48);
    return next;
}


/* Returns the number of extents of the table that a word names, or 0 if the table is one object or does not exist. */
static uint64_t count_extents(const shard_traversal *r, unsigned word) {
    return r->table[word] ? shard_extent_count(r->st, 2 + word / 2, (unsigned)(r->table[word] >> 48)) : 0;
}


/* Reads the addresses of the extents of the table that a word names, if it has several. The caller is pinned. */
static int read_extents(shard_traversal *r, unsigned word) {
    uint64_t count = count_extents(r, word);
    far_addr array = r->table[word] & shard_mask(48);
    r->extents[word] = NULL;
    if (count == 0)
        return 0;
    if (!far_may_be_object(r->t, array, 8 * count))
        return far_fail(FAR_ERR_CORRUPT, "index '%s', partition %llu: invalid table address %#llx", r->index->name,
                        (unsigned long long)r->part->number, (unsigned long long)r->table[word]);
    uint64_t *extents = far_scratch(r->t, 8 * count);
    if (!extents)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for the extents of a table");
    far_read(r->t, array, extents, 8 * count);
    r->extents[word] = extents;
    return far_wait(r->t);
}


/* Reads which tables exist, and reports to the mark phase the objects that the directory names for the tables of the
 * next generation. */
static int read_next_tables(shard_traversal *r, int done, unsigned *generation) {
    partition_view v = {0};
    int err = pin_and_read_partition(r, &v);
    if (err >= 0 && done < 0)
        err = check_tables(r, &v);
    for (unsigned i = 0; i < 4; i++) {
        r->table[i] = err >= 0 && table_word_is_valid(&v, i) ? v.directory[SHARD_DIR_L2 + i] : 0;
        r->extents[i] = NULL;
    }
    for (unsigned i = 0; i < 4 && err >= 0; i++)
        if ((err = skip_damage(r, read_extents(r, i))) >= 0 && !r->extents[i] && count_extents(r, i))
            r->table[i] = 0; /* a salvage skips this table */
    r->version = view_version(&v);
    *generation = next_generation(r, done);
    for (unsigned word = *generation & 1; word < 4 && err >= 0; word += 2) {
        far_addr table = shard_table_addr(r->table[word], *generation);
        if (table)
            err = report_object(r, shard_table_type(2 + word / 2, r->extents[word] != NULL), table,
                                shard_table_object_bytes(r->st, 2 + word / 2, *generation));
    }
    far_pin_drop(r->t);
    return err;
}


/* Reports the extents of a level-2 or level-3 table to the mark phase. Each is reported under a pin under which the
 * table is still linked. An extent may be missing only if the table belongs to a version that is in preparation. */
static int report_table_extents(shard_traversal *r, unsigned word) {
    unsigned generation = (unsigned)(r->table[word] >> 48);
    uint64_t count = r->extents[word] ? shard_extent_count(r->st, 2 + word / 2, generation) : 0;
    int err = 0;
    for (uint64_t i = 0; i < count; i++)
        if (r->extents[word][i] == 0 && generation <= r->version)
            return far_fail(FAR_ERR_CORRUPT, "index '%s', partition %llu: an extent of a level-%u table is missing",
                            r->index->name, (unsigned long long)r->part->number, 2 + word / 2);
    for (uint64_t i = 0; err >= 0 && i < count; i++) {
        uint64_t now = 0;
        if ((err = pin_same_directory(r)) >= 0)
            err = far_read_word(r->t, r->directory_addr + 8 * (SHARD_DIR_L2 + word), &now);
        if (err >= 0 && now == r->table[word] && r->extents[word][i])
            err = report_object(r, SHARD_TYPE_OVERFLOW, r->extents[word][i], r->st->extent);
        far_pin_drop(r->t);
    }
    return err;
}


static int visit_next_generation(shard_traversal *r, int done, unsigned *generation) {
    int err = read_next_tables(r, done, generation);
    for (unsigned word = *generation & 1; *generation < SHARD_VERSIONS && word < 4 && err >= 0; word += 2)
        if (shard_table_addr(r->table[word], *generation) && (err = skip_damage(r, report_table_extents(r, word))) >= 0)
            err = visit_table(r, word, r->table[word]);
    return err;
}


/* Visits levels 2 and 3. A drain moves keys to the next generation, and the tables of the next generation may be made
 * only at that time. Therefore the next generation is determined after the previous generation was visited. */
static int visit_overflow(shard_traversal *r) {
    for (int done = -1;;) {
        unsigned generation;
        far_scratch_mark mark = far_scratch_here(r->t);
        int err = visit_next_generation(r, done, &generation);
        far_scratch_back(r->t, mark);
        if (err < 0 || generation == SHARD_VERSIONS)
            return err;
        done = (int)generation;
    }
}


/* ---- Level 1 ---- */

static int reread_bucket(shard_traversal *r, shard_image *image) {
    far_read(r->t, image->addr, image->w, SHARD_BUCKET_BYTES);
    return far_wait(r->t);
}


/* If the owner of the bucket's lock has failed, finishes the owner's work, and then reads the bucket again. */
static int recover_lock_first(shard_traversal *r, shard_image *image) {
    uint64_t lock = image->w[r->st->inlined ? SHARD_I_K : SHARD_P_HEADER];
    bool locked = r->st->inlined ? lock > SHARD_K_FREE : shard_header_owner(lock);
    if (!locked)
        return 0;
    int err = r->st->inlined ? shard_i_recover_lock(r->t, r->index, r->part, image, lock)
                             : shard_p_recover_lock(r->t, r->index, r->part, image);
    return err < 0 ? err : reread_bucket(r, image);
}


/* Reads a bucket again until all of its words have one version. An image with words of two versions was read during a
 * split. The split will soon be finished, unless its client is stopped. */
static int reread_until_uniform(shard_traversal *r, shard_image *image) {
    int err = 0;
    for (unsigned i = 0; err >= 0 && i < LOOKS; i++) {
        if (shard_is_uniform(r->st, image->w, shard_header_v(image->w[shard_header_at(r->st)])))
            break;
        far_back_off(r->t, 0);
        err = reread_bucket(r, image);
    }
    return err;
}


static int visit_inline_bucket(shard_traversal *r, shard_image *image) {
    const shard_state *st = r->st;
    int err = 0;
    unsigned v = shard_header_v(image->w[SHARD_I_H]);
    for (unsigned i = 0; err >= 0 && i < SHARD_I_SLOTS; i++) {
        uint64_t kw = image->w[2 * i + 1],
                 h = shard_unquotient(shard_kw_rem(kw), image->bucket, r->part->number, st->p, st->implied);
        if (kw & SHARD_V)
            err = r->each_pair(r, image->addr + 16 * i + 8, kw, h, 1, image->bucket, v);
    }
    return err;
}


static int visit_bucket(shard_traversal *r, shard_image *image) {
    const shard_state *st = r->st;
    bool counts = r->usage || r->load;
    int err = 0, left;
    if (far_keys_skips_damage(r->keys) && st->inlined) /* the lookup of each key decides which slots are valid */
        return visit_inline_bucket(r, image);
    if (shard_is_unwritten(st, image->w)) /* the keys of this bucket are still in its parent */
        return r->report ? shard_check_bucket(r->t, r->index, r->part, r->root, image, r->report) : 0;
    if (!r->report && (err = recover_lock_first(r, image)) < 0)
        return err;
    if (counts && (err = reread_until_uniform(r, image)) < 0)
        return err;
    unsigned v = shard_header_v(image->w[shard_header_at(st)]);
    if ((left = shard_child_is_complete(r->t, r->st, r->part, image)) < 0)
        return left;
    left |= counts && !shard_is_uniform(st, image->w, v);
    if (left)
        shard_clear_moved_words(st, image->w, v);
    if (r->report && (err = shard_check_bucket(r->t, r->index, r->part, r->root, image, r->report)) < 0)
        return err;
    if (counts && (err = shard_count_bucket_once(&r->counted, st, image->bucket, v + left)) <= 0)
        return err;
    if (st->inlined)
        return visit_inline_bucket(r, image);
    return visit_entries(r, image->addr, image->w, SHARD_P_SLOTS, 1, image->bucket, v);
}


static int visit_slice(shard_traversal *r, uint64_t first, uint64_t count) {
    shard_image *images = far_scratch(r->t, count * sizeof(*images));
    if (!images)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for buckets");
    int err = 0;
    r->root = atomic_load_explicit(&r->part->root, memory_order_acquire);
    for (uint64_t i = 0; err >= 0 && i < count; i++) {
        images[i].bucket = first + i;
        err = shard_bucket_addr(r->t, r->st, r->part, first + i, &images[i].addr);
        if (err >= 0 && images[i].addr == 0)
            return 0; /* There is no segment, because it belongs to a doubling that has not begun. */
    }
    if (err >= 0 && shard_directory_number(r->part) != r->directory)
        return DIRECTORY_REPLACED; /* some of the addresses that were read may belong to the next directory */
    for (uint64_t i = 0; err >= 0 && i < count; i++)
        far_read(r->t, images[i].addr, images[i].w, SHARD_BUCKET_BYTES);
    if (err >= 0)
        err = far_wait(r->t);
    for (uint64_t i = 0; err >= 0 && i < count; i++)
        err = skip_damage(r, visit_bucket(r, &images[i]));
    if (err < 0 || !r->report)
        return err;
    far_pin_drop(r->t);
    return shard_check_locks(r, images, count);
}


static int report_extents(shard_traversal *r, unsigned segment, uint64_t word, uint64_t count, bool whole) {
    const shard_extents *known =
        (shard_extents *)(uintptr_t)atomic_load_explicit(&r->part->segment[segment], memory_order_acquire);
    int err = shard_check_unchanged(r->index, r->part, "segment",
                                    known ? shard_cached_word(&known->word, r->directory) : 0, word);
    for (uint64_t i = 0; err >= 0 && i < count; i++) {
        uint64_t extent = 0, used = known ? shard_cached_word(&known->extent[i], r->directory) : 0;
        if ((err = pin_same_directory(r)) >= 0)
            err = far_read_word(r->t, word + 8 * i, &extent);
        if (err >= 0)
            err = shard_check_unchanged(r->index, r->part, "extent of a segment", used, extent);
        if (err >= 0 && extent == 0 && whole)
            err = far_fail(FAR_ERR_CORRUPT, "index '%s', partition %llu: an extent of segment %u is missing",
                           r->index->name, (unsigned long long)r->part->number, segment);
        if (err >= 0 && extent)
            err = report_object(r, SHARD_TYPE_SEGMENT, extent, r->st->extent);
        far_pin_drop(r->t);
    }
    return err;
}


/* Reports a segment that is one object, or the array of extents of a large segment. The extents are reported
 * afterwards. The caller is pinned. */
static int report_segment(shard_traversal *r, unsigned segment, uint64_t word) {
    uint64_t count = shard_extent_count(r->st, 1, segment);
    if (count == 0) {
        uint64_t known = shard_cached_word(&r->part->segment[segment], r->directory);
        int err = shard_check_unchanged(r->index, r->part, "segment", known, word);
        if (err < 0)
            return err;
    }
    return report_object(r, shard_table_type(1, count), word, shard_table_object_bytes(r->st, 1, segment));
}


/* Visits the buckets of a segment. `whole` is true if the version that has added this segment has begun, so that the
 * segment is complete. */
static int visit_segment(shard_traversal *r, unsigned segment, uint64_t word, bool whole) {
    uint64_t buckets = shard_segment_buckets(segment, r->st->b), base = segment ? buckets : 0,
             extents = shard_extent_count(r->st, 1, segment);
    int err = extents ? skip_damage(r, report_extents(r, segment, word, extents, whole)) : 0;
    for (uint64_t first = 0; err >= 0 && first < buckets; first += BUCKETS_AT_ONCE) {
        uint64_t count = buckets - first < BUCKETS_AT_ONCE ? buckets - first : BUCKETS_AT_ONCE;
        far_scratch_mark mark = far_scratch_here(r->t);
        if ((err = pin_same_directory(r)) >= 0)
            err = skip_damage(r, visit_slice(r, base + first, count));
        far_pin_drop(r->t);
        far_scratch_back(r->t, mark);
        if (err >= 0 && r->keys)
            err = far_keys_throttle(r->t, r->keys);
    }
    return err;
}


/* Verifies that a segment exists. A partition at version d has the segments 0 to d, because each doubling adds the
 * segment with the number of the new version. A missing word is read again, because the root word may be newer than the
 * directory's words. Returns 0 or an error. */
static int check_segment_exists(shard_traversal *r, const partition_view *v, unsigned segment) {
    uint64_t word = v->directory[SHARD_DIR_SEGMENT + segment];
    if (word || segment > view_version(v))
        return 0;
    int err = far_read_word(r->t, r->directory_addr + 8ull * (SHARD_DIR_SEGMENT + segment), &word);
    if (err < 0 || word)
        return err;
    return far_fail(FAR_ERR_CORRUPT, "index '%s', partition %llu is at version %u, but has no segment %u",
                    r->index->name, (unsigned long long)r->part->number, view_version(v), segment);
}


/* Reports the next directory to the mark phase, if a shrink has prepared one. No client uses the next directory yet. */
static int report_prepared_directory(shard_traversal *r, uint64_t word) {
    far_addr directory = shard_directory_addr(word, r->directory + 1);
    uint64_t segment = 0;
    if (!directory || !r->walk)
        return 0;
    int err = far_read_word(r->t, directory + 8 * SHARD_DIR_SEGMENT, &segment);
    if (err < 0 || (err = report_object(r, SHARD_TYPE_DIRECTORY, directory, 8 * SHARD_DIR_WORDS)) < 0)
        return err;
    uint64_t count = shard_extent_count(r->st, 1, 0), extent;
    err = report_object(r, shard_table_type(1, count), segment, shard_table_object_bytes(r->st, 1, 0));
    for (uint64_t i = 0; err >= 0 && i < count; i++)
        if ((err = far_read_word(r->t, segment + 8 * i, &extent)) >= 0)
            err = report_object(r, SHARD_TYPE_SEGMENT, extent, r->st->extent);
    return err;
}


/* Reads the directory words of this segment and reports the objects that they name. */
static int read_next_segment(shard_traversal *r, partition_view *v, unsigned segment) {
    int err = pin_and_read_partition(r, v);
    if (err >= 0)
        err = check_segment_exists(r, v, segment);
    uint64_t progress = v->directory[SHARD_DIR_PROGRESS + segment], word = v->directory[SHARD_DIR_SEGMENT + segment];
    if (err >= 0 && progress && segment)
        err = report_object(r, SHARD_TYPE_PROGRESS, progress, shard_progress_bytes(r->st, segment));
    if (err >= 0 && word)
        err = report_segment(r, segment, word);
    far_pin_drop(r->t);
    return err;
}


static int visit_segments(shard_traversal *r) {
    partition_view v = {0};
    int err = 0;
    for (unsigned segment = 0; err >= 0 && segment < SHARD_VERSIONS; segment++) {
        err = skip_damage(r, read_next_segment(r, &v, segment));
        uint64_t word = v.directory[SHARD_DIR_SEGMENT + segment];
        if (err >= 0 && word == 0 && segment <= view_version(&v) && far_keys_skips_damage(r->keys))
            continue; /* this segment is lost, but the next ones are not */
        if (err < 0 || word == 0)
            break;
        if (r->load && segment <= view_version(&v))
            r->load->slots += shard_segment_buckets(segment, r->st->b) * (r->st->slots + r->st->l2_slots);
        err = skip_damage(r, visit_segment(r, segment, word, segment <= view_version(&v)));
    }
    return err;
}


static int find_directory(shard_traversal *r) {
    int err = far_pin_take(r->t);
    if (err >= 0 && (err = shard_ensure_roots_read(r->t, r->index)) >= 0) {
        r->directory = shard_directory_number(r->part);
        err = shard_directory_word_addr(r->t, r->part, 0, &r->directory_addr);
        if (err >= 0 && (r->directory_addr == 0 || shard_directory_number(r->part) != r->directory))
            err = DIRECTORY_REPLACED;
    }
    far_pin_drop(r->t);
    return err;
}


static int visit_partition(shard_traversal *r) {
    partition_view v;
    int err = find_directory(r);
    if (err >= 0 && (err = pin_and_read_partition(r, &v)) >= 0 &&
        (err = report_object(r, SHARD_TYPE_DIRECTORY, r->directory_addr, 8 * SHARD_DIR_WORDS)) >= 0)
        err = report_prepared_directory(r, v.pcb[SHARD_PCB_DIRECTORY + (r->directory + 1) % 2]);
    far_pin_drop(r->t);
    if (err >= 0)
        err = visit_overflow(r);
    return err < 0 ? err : visit_segments(r);
}


/* Visits a partition, again if its directory was replaced. Counts that were made under a replaced directory are
 * discarded. */
static int visit_partition_until_stable(shard_traversal *r) {
    far_usage usage = r->usage ? *r->usage : (far_usage){0};
    far_load load = r->load ? *r->load : (far_load){0};
    int err;
    for (unsigned failed = 0; failed < LOOKS;) {
        unsigned directory = r->directory;
        shard_counted_begin(&r->counted);
        if ((err = visit_partition(r)) != DIRECTORY_REPLACED)
            return err;
        failed = r->directory == directory ? failed + 1 : 0;
        if (r->usage)
            *r->usage = usage;
        if (r->load)
            *r->load = load;
    }
    return far_fail(FAR_ERR_CORRUPT, "index '%s', partition %llu: its root word is corrupt", r->index->name,
                    (unsigned long long)r->part->number);
}


int shard_traverse(shard_traversal *r) {
    int err = report_object(r, SHARD_TYPE_ROOT, r->index->descriptor,
                            (sizeof(shard_descriptor) + (8ull << r->st->p) + 15) & ~15ull);
    for (uint64_t i = 0; err >= 0 && i < 1ull << r->st->p; i++) {
        r->part = &r->st->part[i];
        if ((err = report_object(r, SHARD_TYPE_PCB, r->part->pcb, 8 * SHARD_PCB_WORDS)) >= 0)
            err = skip_damage(r, visit_partition_until_stable(r));
    }
    shard_counted_end(&r->counted);
    return err < 0 ? err : 0;
}
