/* Walk, check, usage and load, all by one tour: levels 2 and 3, the older generation first, then level 1 in rising
 * order, then segments that were added meanwhile. Keys only ever move forward in this order, so what is linked
 * throughout is met. Each slice has its own pin. */
#include "base/error.h"
#include "index/shard/shard.h"
#include "pool/clients.h"
#include "pool/epoch.h"
#include "pool/owner.h"

#include <string.h>

enum { BUCKETS_AT_ONCE = 8, LINES_AT_ONCE = 32, LOOKS = 32, STUCK_MAX = 8 };

typedef struct tour tour;

/* Called for every live entry, pinned: at, its word; level 1..3. */
typedef int (*entry_fn)(tour *tour, far_addr at, uint64_t word, int level, uint64_t bucket, unsigned v);

/* I: for every live pair; mark: its kw or state, at mark_at. */
typedef int (*pair_fn)(tour *tour, far_addr mark_at, uint64_t mark, uint64_t h, int level, uint64_t bucket, unsigned v);

struct tour {
    far_task *t;
    far_index *index;
    shard_state *st;
    shard_partition *part;
    uint64_t root;         /* of the partition, before the buckets of a slice were read */
    far_walk *walk;        /* or NULL */
    far_report *report;    /* or NULL */
    unsigned stuck;        /* locks that nobody holds: epochs were waited for to see it, for some of them */
    far_usage *usage;      /* or NULL */
    far_load *load;        /* or NULL */
    shard_counted counted; /* of those two */
    far_keys *keys;        /* or NULL */
    entry_fn each;
    pair_fn each_pair;
};


static int tell_object(tour *r, unsigned type, far_addr addr, uint64_t size) {
    return r->walk ? far_walk_object(r->walk, r->index, type, addr, size) : 0;
}


static int each_word(tour *r, far_addr at, const uint64_t *words, unsigned count, int level, uint64_t bucket,
                     unsigned v) {
    int err = 0;
    for (unsigned i = 0; err >= 0 && i < count; i++) {
        far_scratch_mark mark = far_scratch_here(r->t);
        if (shard_is_live(words[i]))
            err = r->each(r, at + 8 * i, words[i], level, bucket, v);
        far_scratch_back(r->t, mark);
    }
    return err;
}


static int tour_chain(tour *r, far_addr at, shard_p_node node, unsigned generation) {
    int err = each_word(r, at, node.entry, SHARD_P_NODE_SLOTS, 3, 0, generation);
    for (at = node.next; err >= 0 && at; at = node.next) {
        if ((err = tell_object(r, SHARD_TYPE_NODE, at, sizeof(node))) < 0)
            return err;
        far_read(r->t, at, &node, sizeof(node));
        if ((err = far_wait(r->t)) >= 0)
            err = each_word(r, at, node.entry, SHARD_P_NODE_SLOTS, 3, 0, generation);
    }
    return err;
}


/* I: live pairs are counted and checked; claims of dead clients are taken back. */

static int tour_pair(tour *r, far_addr mark_at, uint64_t mark, bool live, bool busy, unsigned owner, uint64_t open,
                     uint64_t h, int level, uint64_t bucket, unsigned v) {
    uint64_t old;
    if (live)
        return r->each_pair(r, mark_at, mark, h, level, bucket, v);
    if (!busy || !r->walk)
        return 0;
    int dead = far_is_dead(r->t, owner, FAR_ANY_GENERATION);
    return dead <= 0 ? dead : far_cas_word(r->t, mark_at, mark, open, &old);
}


static int tour_l2_pairs(tour *r, far_addr at, const uint64_t *words, uint64_t bucket, unsigned generation) {
    const shard_state *st = r->st;
    int err = 0;
    for (unsigned i = 0; err >= 0 && i < SHARD_L2_I_SLOTS; i++) {
        uint64_t kw = words[2 * i + 1],
                 level = shard_unquotient(shard_kw_rem(kw), bucket, r->part->number, st->p, st->implied);
        uint64_t h = shard_unrehash(level, st->level_seed[shard_kw_choice(kw)], st->p, st->hash_bits);
        err = tour_pair(r, at + 16 * i + 8, kw, kw & SHARD_V, shard_kw_is_busy(kw), shard_kw_owner(kw),
                        shard_kw_free(shard_kw_gen(kw)), h, 2, bucket, generation);
    }
    return err;
}


static int tour_pair_chain(tour *r, far_addr at, shard_i_node node, unsigned generation) {
    for (;;) {
        int err = 0;
        for (unsigned i = 0; err >= 0 && i < SHARD_I_NODE_SLOTS; i++) {
            uint64_t state = node.slot[i].state, h = shard_hash(r->index, (far_bytes){&node.slot[i].key, 8});
            err = tour_pair(r, at + i * sizeof(shard_i_slot) + 16, state, state & SHARD_STATE_LIVE,
                            state & SHARD_STATE_BUSY, shard_state_owner(state),
                            shard_state_word(0, 0, shard_state_gen(state)), h, 3, 0, generation);
        }
        if (err < 0 || (at = node.next) == 0 || (err = tell_object(r, SHARD_TYPE_NODE, at, sizeof(node))) < 0)
            return err;
        far_read(r->t, at, &node, sizeof(node));
        if ((err = far_wait(r->t)) < 0)
            return err;
    }
}


static int tour_line(tour *r, unsigned word, far_addr at, const void *line, uint64_t bucket, unsigned generation) {
    if (word < 2 && r->st->inlined)
        return tour_l2_pairs(r, at, line, bucket, generation);
    if (word < 2)
        return each_word(r, at, line, 8, 2, bucket, generation);
    if (r->st->inlined)
        return tour_pair_chain(r, at, *(const shard_i_node *)line, generation);
    return tour_chain(r, at, *(const shard_p_node *)line, generation);
}


/* The table may go away between two slices: its word is looked at under every pin. 1: it is gone. */
static int tour_table_slice(tour *r, unsigned word, unsigned generation, uint64_t first, uint64_t count) {
    uint64_t lines[LINES_AT_ONCE * 16], table, size = word >= 2 && r->st->inlined ? sizeof(shard_i_node) : 64;
    int err = far_read_word(r->t, r->part->pcb + 8 * (SHARD_PCB_L2 + word), &table);
    far_addr addr = shard_table_addr(table, generation);
    if (err < 0 || !addr)
        return err < 0 ? err : 1;
    far_read(r->t, addr + size * first, lines, size * count);
    err = far_wait(r->t);
    for (uint64_t i = 0; err >= 0 && i < count; i++)
        err = tour_line(r, word, addr + size * (first + i), &lines[size / 8 * i], first + i, generation);
    return err < 0 ? err : 0;
}


static int tour_table(tour *r, unsigned word, uint64_t table) {
    unsigned generation = (unsigned)(table >> 48);
    uint64_t bytes = word < 2 ? shard_l2_bytes(r->st, generation) : shard_l3_bytes(r->st, generation);
    uint64_t lines = bytes / (word >= 2 && r->st->inlined ? sizeof(shard_i_node) : 64);
    int err = tell_object(r, SHARD_TYPE_OVERFLOW, table & shard_mask(48), bytes);
    for (uint64_t first = 0; err == 0 && first < lines; first += LINES_AT_ONCE) {
        uint64_t count = lines - first < LINES_AT_ONCE ? lines - first : LINES_AT_ONCE;
        if ((err = far_pin_take(r->t)) >= 0)
            err = tour_table_slice(r, word, generation, first, count);
        far_pin_drop(r->t);
        if (err == 0 && r->keys)
            err = far_keys_rest(r->t, r->keys);
    }
    return err < 0 ? err : 0;
}


static int read_pcb(tour *r, uint64_t *words) {
    int err = far_pin_take(r->t);
    if (err < 0)
        return err;
    far_read(r->t, r->part->pcb, words, 8 * SHARD_PCB_WORDS);
    err = far_wait(r->t);
    far_pin_drop(r->t);
    if (err >= 0)
        shard_learn_root(r->part, words[SHARD_PCB_ROOT]);
    return err;
}


/* Whether the word can name a table at all. The root was read before it, or long before: one doubling may have come in between,
 * and the next be prepared. */
static bool names_a_table(const uint64_t *pcb, unsigned i) {
    uint64_t table = pcb[SHARD_PCB_L2 + i], generation = table >> 48;
    return table == 0 || (generation % 2 == i % 2 && generation <= shard_root_d(pcb[SHARD_PCB_ROOT]) + 2u);
}


static void check_tables(const tour *r, const uint64_t *pcb) {
    for (unsigned i = 0; r->report && i < 4; i++)
        if (!names_a_table(pcb, i))
            far_report_problem(r->report, "partition %llu: what should name a table of level %u is %#llx",
                               (unsigned long long)r->part->number, 2 + i / 2,
                               (unsigned long long)pcb[SHARD_PCB_L2 + i]);
}


/* The oldest generation after `done` that has a table; SHARD_VERSIONS: none. */
static unsigned next_generation(const uint64_t *pcb, int done) {
    unsigned next = SHARD_VERSIONS;
    for (unsigned i = 0; i < 4; i++) {
        uint64_t table = pcb[SHARD_PCB_L2 + i];
        if (table && (int)(table >> 48) > done && table >> 48 < next)
            next = (unsigned)(table >> 48);
    }
    return next;
}


/* A drain moves keys to the next generation, whose table may be made only then: each is looked for when the one before
 * it is through. */
static int tour_overflow(tour *r) {
    uint64_t pcb[SHARD_PCB_WORDS];
    for (int done = -1;;) {
        int err = read_pcb(r, pcb);
        if (err >= 0 && done < 0)
            check_tables(r, pcb);
        unsigned generation = err < 0 ? SHARD_VERSIONS : next_generation(pcb, done);
        if (generation == SHARD_VERSIONS)
            return err;
        for (unsigned word = generation & 1; word < 4 && err >= 0; word += 2)
            if (shard_table_addr(pcb[SHARD_PCB_L2 + word], generation))
                err = tour_table(r, word, pcb[SHARD_PCB_L2 + word]);
        if (err < 0)
            return err;
        done = (int)generation;
    }
}


/* Level 1. */

static int read_again(tour *r, shard_image *image) {
    far_read(r->t, image->addr, image->w, SHARD_BUCKET_BYTES);
    return far_wait(r->t);
}


/* What a dead client has begun there is finished first. */
static int help_first(tour *r, shard_image *image) {
    uint64_t lock = image->w[r->st->inlined ? SHARD_I_K : SHARD_P_HEADER];
    bool locked = r->st->inlined ? lock > SHARD_K_FREE : shard_header_owner(lock);
    if (!locked)
        return 0;
    int err = r->st->inlined ? shard_i_help(r->t, r->index, r->part, image, lock)
                             : shard_p_help(r->t, r->index, r->part, image);
    return err < 0 ? err : read_again(r, image);
}


/* An image of two versions is one of a split that will soon be through, or of one whose mover stands still. */
static int look_until_uniform(tour *r, shard_image *image) {
    int err = 0;
    for (unsigned i = 0; err >= 0 && i < LOOKS; i++) {
        if (shard_uniform(r->st, image->w, shard_header_v(image->w[shard_header_at(r->st)])))
            break;
        far_back_off(r->t, 0);
        err = read_again(r, image);
    }
    return err;
}


static int tour_inlined(tour *r, shard_image *image) {
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


static int tour_bucket(tour *r, shard_image *image) {
    const shard_state *st = r->st;
    bool counts = r->usage || r->load;
    int err = 0, left;
    if (shard_unwritten(st, image->w)) /* what belongs here is still in the parent */
        return r->report ? shard_check_bucket(r->t, r->index, r->part, r->root, image, r->report) : 0;
    if (!r->report && (err = help_first(r, image)) < 0)
        return err;
    if (counts && (err = look_until_uniform(r, image)) < 0)
        return err;
    unsigned v = shard_header_v(image->w[shard_header_at(st)]);
    if ((left = shard_has_left(r->t, r->st, r->part, image)) < 0)
        return left;
    left |= counts && !shard_uniform(st, image->w, v);
    if (left)
        shard_forget_what_left(st, image->w, v);
    if (r->report && (err = shard_check_bucket(r->t, r->index, r->part, r->root, image, r->report)) < 0)
        return err;
    if (counts && (err = shard_counted_bucket(&r->counted, st, image->bucket, v + left)) <= 0)
        return err;
    if (st->inlined)
        return tour_inlined(r, image);
    return each_word(r, image->addr, image->w, SHARD_P_SLOTS, 1, image->bucket, v);
}


static int is_unchanged(far_task *t, void *arg) {
    const shard_image *image = arg;
    uint64_t now[SHARD_WORDS];
    far_read(t, image->addr, now, sizeof(now));
    int err = far_wait(t);
    return err < 0 ? err : memcmp(now, image->w, sizeof(now)) == 0;
}


/* A lock is held, and its holder is not there. Without a pin. */
static int check_locks(tour *r, shard_image *images, uint64_t count) {
    int err = 0;
    for (uint64_t i = 0; err >= 0 && i < count && r->stuck < STUCK_MAX; i++) {
        uint64_t lock = images[i].w[r->st->inlined ? SHARD_I_K : SHARD_P_HEADER];
        if (shard_unwritten(r->st, images[i].w) || shard_is_unlocked(r->st, &images[i]))
            continue;
        err = far_is_stuck(r->t, r->st->inlined ? shard_k_owner(lock) : shard_header_owner(lock), FAR_ANY_GENERATION,
                           is_unchanged, &images[i]);
        if (err <= 0)
            continue;
        r->stuck++;
        far_report_problem(r->report, "partition %llu, level 1, bucket %llu: it is locked, and nobody alive holds it",
                           (unsigned long long)r->part->number, (unsigned long long)images[i].bucket);
    }
    return err < 0 ? err : 0;
}


static int tour_slice(tour *r, uint64_t first, uint64_t count) {
    shard_image *images = far_scratch(r->t, count * sizeof(*images));
    if (!images)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for buckets");
    int err = 0;
    r->root = atomic_load_explicit(&r->part->root, memory_order_acquire);
    for (uint64_t i = 0; err >= 0 && i < count; i++) {
        images[i].bucket = first + i;
        err = shard_bucket_addr(r->t, r->st, r->part, first + i, &images[i].addr);
        if (err >= 0 && images[i].addr == 0)
            return 0; /* of a doubling that has not begun */
    }
    for (uint64_t i = 0; err >= 0 && i < count; i++)
        far_read(r->t, images[i].addr, images[i].w, SHARD_BUCKET_BYTES);
    if (err >= 0)
        err = far_wait(r->t);
    for (uint64_t i = 0; err >= 0 && i < count; i++)
        err = tour_bucket(r, &images[i]);
    if (err < 0 || !r->report)
        return err;
    far_pin_drop(r->t);
    return check_locks(r, images, count);
}


static int tell_segment(tour *r, unsigned segment, uint64_t word) {
    uint64_t bytes = shard_segment_buckets(segment, r->st->b) * SHARD_BUCKET_BYTES,
             count = shard_extent_count(r->st, segment);
    if (count == 0)
        return tell_object(r, SHARD_TYPE_SEGMENT, word, bytes);
    int err = tell_object(r, SHARD_TYPE_PROGRESS, word, (count * 8 + 15) & ~15ull);
    for (uint64_t i = 0; err >= 0 && i < count; i++) {
        uint64_t extent = 0;
        if ((err = far_pin_take(r->t)) >= 0)
            err = far_read_word(r->t, word + 8 * i, &extent);
        far_pin_drop(r->t);
        if (err >= 0 && extent)
            err = tell_object(r, SHARD_TYPE_SEGMENT, extent, r->st->extent);
    }
    return err;
}


static int tour_segment(tour *r, unsigned segment, uint64_t word) {
    uint64_t buckets = shard_segment_buckets(segment, r->st->b), base = segment ? buckets : 0;
    int err = tell_segment(r, segment, word);
    for (uint64_t first = 0; err >= 0 && first < buckets; first += BUCKETS_AT_ONCE) {
        uint64_t count = buckets - first < BUCKETS_AT_ONCE ? buckets - first : BUCKETS_AT_ONCE;
        far_scratch_mark mark = far_scratch_here(r->t);
        if ((err = far_pin_take(r->t)) >= 0)
            err = tour_slice(r, base + first, count);
        far_pin_drop(r->t);
        far_scratch_back(r->t, mark);
        if (err >= 0 && r->keys)
            err = far_keys_rest(r->t, r->keys);
    }
    return err;
}


/* A partition has all segments of its version. The root may be newer than what was READ with it. */
static int check_segment(tour *r, const uint64_t *pcb, unsigned segment) {
    uint64_t word = pcb[SHARD_PCB_SEGMENT + segment];
    if (!r->report || word || segment > shard_root_d(pcb[SHARD_PCB_ROOT]))
        return 0;
    int err = far_pin_take(r->t);
    if (err >= 0)
        err = far_read_word(r->t, r->part->pcb + 8ull * (SHARD_PCB_SEGMENT + segment), &word);
    far_pin_drop(r->t);
    if (err >= 0 && word == 0)
        far_report_problem(r->report, "partition %llu, which is at version %u, has no segment %u",
                           (unsigned long long)r->part->number, shard_root_d(pcb[SHARD_PCB_ROOT]), segment);
    return err;
}


static int tour_partition(tour *r) {
    uint64_t pcb[SHARD_PCB_WORDS];
    int err = tell_object(r, SHARD_TYPE_PCB, r->part->pcb, 8 * SHARD_PCB_WORDS);
    if (err < 0 || (err = tour_overflow(r)) < 0)
        return err;
    for (unsigned segment = 0; err >= 0 && segment < SHARD_VERSIONS; segment++) {
        if ((err = read_pcb(r, pcb)) < 0 || (err = check_segment(r, pcb, segment)) < 0)
            return err;
        if (pcb[SHARD_PCB_PROGRESS + segment] && segment)
            err = tell_object(r, SHARD_TYPE_PROGRESS, pcb[SHARD_PCB_PROGRESS + segment],
                              shard_progress_bytes(r->st, segment));
        if (pcb[SHARD_PCB_SEGMENT + segment] == 0)
            break;
        if (r->load && segment <= shard_root_d(pcb[SHARD_PCB_ROOT]))
            r->load->slots += shard_segment_buckets(segment, r->st->b) * (r->st->slots + r->st->l2_slots);
        if (err >= 0)
            err = tour_segment(r, segment, pcb[SHARD_PCB_SEGMENT + segment]);
    }
    return err;
}


static int tour_all(tour *r) {
    int err = tell_object(r, SHARD_TYPE_ROOT, r->index->descriptor,
                          (sizeof(shard_descriptor) + (8ull << r->st->p) + 15) & ~15ull);
    for (uint64_t i = 0; err >= 0 && i < 1ull << r->st->p; i++) {
        r->part = &r->st->part[i];
        shard_counted_begin(&r->counted);
        err = tour_partition(r);
    }
    shard_counted_end(&r->counted);
    return err < 0 ? err : 0;
}


static int walk_entry(tour *r, far_addr at, uint64_t word, int level, uint64_t bucket, unsigned v) {
    (void)at, (void)level, (void)bucket, (void)v;
    return tell_object(r, SHARD_TYPE_BLOCK, shard_entry_addr(word), shard_class_bytes(shard_entry_class(word)));
}


static int walk_pair(tour *r, far_addr mark_at, uint64_t mark, uint64_t h, int level, uint64_t bucket, unsigned v) {
    (void)r, (void)mark_at, (void)mark, (void)h, (void)level, (void)bucket, (void)v;
    return 0; /* no object of its own */
}


int shard_walk(far_task *t, far_index *index, far_walk *walk) {
    return tour_all(&(tour){
        .t = t, .index = index, .st = shard_state_of(index), .walk = walk, .each = walk_entry, .each_pair = walk_pair});
}


/* what: the same wherever the key is moved to. 1: it was not counted yet. */
static int count_once(tour *r, uint64_t what, int level) {
    return level > 1 ? shard_counted_in_overflow(&r->counted, what) : !shard_counted_knows(&r->counted, what);
}


static int count_entry(tour *r, far_addr at, uint64_t word, int level, uint64_t bucket, unsigned v) {
    (void)at, (void)bucket, (void)v;
    int err = count_once(r, shard_entry_block(word), level);
    if (err <= 0)
        return err;
    if (r->load) {
        r->load->keys[level - 1]++;
        return 0;
    }
    shard_block block;
    far_read(r->t, shard_entry_addr(word), &block, sizeof(block));
    err = far_wait(r->t);
    r->usage->keys++;
    r->usage->key_bytes += block.key_length;
    r->usage->value_bytes += block.value_length;
    return err;
}


static int count_pair(tour *r, far_addr mark_at, uint64_t mark, uint64_t h, int level, uint64_t bucket, unsigned v) {
    (void)mark_at, (void)mark, (void)bucket, (void)v;
    int err = count_once(r, h, level);
    if (err <= 0)
        return err;
    if (r->load) {
        r->load->keys[level - 1]++;
        return 0;
    }
    r->usage->keys++;
    r->usage->key_bytes += 8;
    r->usage->value_bytes += 8;
    return 0;
}


int shard_usage(far_task *t, far_index *index, far_usage *usage) {
    return tour_all(&(tour){.t = t,
                            .index = index,
                            .st = shard_state_of(index),
                            .usage = usage,
                            .each = count_entry,
                            .each_pair = count_pair});
}


int shard_load_factor(far_task *t, far_index *index, far_load *load) {
    load->local_bytes = shard_local_bytes(index);
    return tour_all(&(tour){.t = t,
                            .index = index,
                            .st = shard_state_of(index),
                            .load = load,
                            .each = count_entry,
                            .each_pair = count_pair});
}


/* Keys. */

static int give_entry(tour *r, far_addr at, uint64_t word, int level, uint64_t bucket, unsigned v) {
    (void)at, (void)level, (void)bucket, (void)v;
    uint64_t most = sizeof(shard_block) + ((uint64_t)r->index->options[FAR_OPTION_MAX_KEY] + 7) / 8 * 8,
             bytes = shard_class_bytes(shard_entry_class(word));
    bytes = bytes < most ? bytes : most;
    shard_block *block = far_scratch(r->t, bytes);
    if (!block)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a block");
    far_read(r->t, shard_entry_addr(word), block, bytes);
    int err = far_wait(r->t);
    if (err < 0)
        return err;
    if (sizeof(*block) + block->key_length > bytes || block->key_length == 0)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': the block at %#llx is broken", r->index->name,
                        (unsigned long long)shard_entry_addr(word));
    return far_keys_give(r->keys, (far_bytes){block->bytes, block->key_length});
}


static int give_pair(tour *r, far_addr mark_at, uint64_t mark, uint64_t h, int level, uint64_t bucket, unsigned v) {
    (void)mark_at, (void)mark, (void)level, (void)bucket, (void)v;
    uint64_t key = shard_i_key(r->st, h);
    return far_keys_give(r->keys, (far_bytes){&key, sizeof(key)});
}


int shard_keys(far_task *t, far_index *index, far_keys *keys) {
    return tour_all(&(tour){
        .t = t, .index = index, .st = shard_state_of(index), .keys = keys, .each = give_entry, .each_pair = give_pair});
}


/* Check. What it finds wrong is looked at again: a word that changed meanwhile is no problem. */

static bool lies_right(tour *r, uint64_t word, const shard_block *block, int level, uint64_t bucket, unsigned v) {
    const shard_state *st = r->st;
    uint64_t level_hash[3];
    if ((block->h & shard_mask(st->p)) != r->part->number)
        return false;
    shard_levels(st, block->h, level_hash);
    if (level == 1)
        return !shard_stamp_is(word, v) || (bucket == shard_bucket(block->h, st->p, st->b, v) &&
                                            shard_entry_tag(word) == shard_tag(block->h, st->p, st->b, v));
    if (shard_entry_tag(word) != shard_top_tag(block->h))
        return false;
    return level == 3 || bucket == shard_bucket(level_hash[0], st->p, st->b, v) ||
           bucket == shard_bucket(level_hash[1], st->p, st->b, v);
}


/* A key below level 1 is announced by the filter of its home. */
static int is_announced(tour *r, uint64_t h, unsigned generation) {
    int err = shard_refresh(r->t, r->part); /* the key may be one of a doubling that came after the root was read */
    uint64_t root = atomic_load_explicit(&r->part->root, memory_order_acquire), header;
    for (unsigned d = shard_root_d(root) + 1; err >= 0 && d-- > 0;) {
        far_addr addr;
        err = shard_bucket_addr(r->t, r->st, r->part, shard_bucket(h, r->st->p, r->st->b, d), &addr);
        if (err < 0 || (err = far_read_word(r->t, addr + 8 * (shard_header_at(r->st)), &header)) < 0)
            return err;
        if (header == 0)
            continue;
        unsigned v = shard_header_v(header), bit = shard_bit(r->st, h);
        return (v == generation && shard_header_fnew(header) & bit) ||
               (v == generation + 1 && shard_header_fold(header) & bit);
    }
    return err;
}


static int check_entry(tour *r, far_addr at, uint64_t word, int level, uint64_t bucket, unsigned v) {
    uint64_t bytes = shard_class_bytes(shard_entry_class(word)), now;
    shard_block *block = far_scratch(r->t, bytes);
    if (!block)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a block");
    far_read(r->t, shard_entry_addr(word), block, bytes < 4096 ? bytes : 4096);
    int err = far_wait(r->t);
    if (err == FAR_ERR_CORRUPT) {
        far_report_problem(r->report, "partition %llu: an entry points outside the pool",
                           (unsigned long long)r->part->number);
        return 0;
    }
    if (err < 0)
        return err;
    const char *what = NULL;
    uint64_t used = sizeof(*block) + block->key_length + (uint64_t)block->value_length;
    if (used > bytes || shard_class_of(used) != shard_entry_class(word))
        what = "the lengths in a block do not fit its class";
    else if (used <= 4096 && shard_hash(r->index, (far_bytes){block->bytes, block->key_length}) != block->h)
        what = "a block's hash is not that of its key";
    else if (!lies_right(r, word, block, level, bucket, v))
        what = "an entry lies in another bucket than its key";
    else if (level > 1) {
        if ((err = is_announced(r, block->h, v)) < 0)
            return err;
        what = err ? NULL : "a key of level 2 or 3 is not in the filter of its bucket";
    }
    if (!what)
        return 0;
    if ((err = far_read_word(r->t, at, &now)) < 0)
        return err;
    if (now == word)
        far_report_problem(r->report, "partition %llu, level %d, bucket %llu, version %u: %s",
                           (unsigned long long)r->part->number, level, (unsigned long long)bucket, v, what);
    return 0;
}


static int check_pair(tour *r, far_addr mark_at, uint64_t mark, uint64_t h, int level, uint64_t bucket, unsigned v) {
    const shard_state *st = r->st;
    const char *what = NULL;
    uint64_t level_hash[3], now;
    int err;
    shard_levels(st, h, level_hash);
    if ((h & shard_mask(st->p)) != r->part->number)
        what = "a pair lies in another partition than its key";
    else if (level == 1 && shard_kw_stamp_is(mark, v) && bucket != shard_bucket(h, st->p, st->b, v))
        what = "a pair lies in another bucket than its key";
    else if (level == 2 && bucket != shard_bucket(level_hash[shard_kw_choice(mark)], st->p, st->b, v))
        what = "a pair lies in another bucket than its key";
    else if (level > 1) {
        if ((err = is_announced(r, h, v)) < 0)
            return err;
        what = err ? NULL : "a key of level 2 or 3 is not in the filter of its bucket";
    }
    if (!what)
        return 0;
    uint64_t key;
    far_read(r->t, mark_at - 8, &key, 8); /* level 3: the key, which may have been read before its state */
    far_read(r->t, mark_at, &now, 8);
    if ((err = far_wait(r->t)) < 0)
        return err;
    if (now == mark && (level < 3 || shard_hash(r->index, (far_bytes){&key, 8}) == h))
        far_report_problem(r->report, "partition %llu, level %d, bucket %llu, version %u: %s",
                           (unsigned long long)r->part->number, level, (unsigned long long)bucket, v, what);
    return 0;
}


int shard_check(far_task *t, far_index *index, far_report *report) {
    return tour_all(&(tour){.t = t,
                            .index = index,
                            .st = shard_state_of(index),
                            .report = report,
                            .each = check_entry,
                            .each_pair = check_pair});
}
