/* The tour over a shard index (tour.h): what leads to what, and what cannot be because it would lead astray. */
#include "index/shard/tour.h"
#include "base/error.h"
#include "pool/clients.h"
#include "pool/epoch.h"

#include <limits.h>

enum { BUCKETS_AT_ONCE = 8, LINES_AT_ONCE = 32, LOOKS = 32 };

enum { MOVED = INT_MIN }; /* beside errors: the partition has another body than at the beginning of its tour */


/* A pin. Under it the body that this handle knows of is not used again. */
static int take_pin(shard_tour *r) {
    int err = far_pin_take(r->t);
    return err < 0 ? err : shard_body_of(r->part) == r->body ? 0 : MOVED;
}


/* With the pin under which its address was READ, but for what lives as long as the index: who is told looks whether it
 * is free (false_home.h). */
static int tell_object(shard_tour *r, unsigned type, far_addr addr, uint64_t size) {
    return r->walk ? far_walk_object(r->walk, r->index, type, addr, size) : 0;
}


static int each_word(shard_tour *r, far_addr at, const uint64_t *words, unsigned count, int level, uint64_t bucket,
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


static uint64_t table_bytes(const shard_tour *r, unsigned word, unsigned generation) {
    return word < 2 ? shard_l2_bytes(r->st, generation) : shard_l3_bytes(r->st, generation);
}


/* A node of a chain is an object of its own. Lines of tables look like nodes: what is in them would be taken for a
 * chain's. Pinned: a table that is still named there is no memory that became a node meanwhile. */
static int tell_node(shard_tour *r, far_addr at, uint64_t bytes) {
    for (unsigned i = 0; i < 4; i++) {
        far_addr table = r->table[i] & shard_mask(48);
        uint64_t now = 0;
        if (!table || at < table || at >= table + table_bytes(r, i, (unsigned)(r->table[i] >> 48)))
            continue;
        int err = far_read_word(r->t, r->body_addr + 8 * (SHARD_BODY_L2 + i), &now);
        if (err < 0 || now == r->table[i])
            return err < 0
                       ? err
                       : far_fail(FAR_ERR_CORRUPT, "index '%s', partition %llu: a chain leads to %#llx, into a table",
                                  r->index->name, (unsigned long long)r->part->number, (unsigned long long)at);
    }
    return tell_object(r, SHARD_TYPE_NODE, at, bytes);
}


static int tour_chain(shard_tour *r, far_addr at, shard_p_node node, unsigned generation) {
    shard_chain chain = {0};
    int err = each_word(r, at, node.entry, SHARD_P_NODE_SLOTS, 3, 0, generation);
    for (at = node.next; err >= 0 && at; at = node.next) {
        if ((err = shard_follow(r->index, &chain, at)) < 0 || (err = tell_node(r, at, sizeof(node))) < 0)
            return err;
        far_read(r->t, at, &node, sizeof(node));
        if ((err = far_wait(r->t)) >= 0)
            err = each_word(r, at, node.entry, SHARD_P_NODE_SLOTS, 3, 0, generation);
    }
    return err;
}


/* I: live pairs are counted and checked; claims of dead clients are taken back. */

static int tour_pair(shard_tour *r, far_addr mark_at, uint64_t mark, bool live, bool busy, unsigned owner,
                     uint64_t open, uint64_t h, int level, uint64_t bucket, unsigned v) {
    uint64_t old;
    if (live)
        return r->each_pair(r, mark_at, mark, h, level, bucket, v);
    if (!busy || !r->walk)
        return 0;
    int dead = far_is_dead(r->t, owner, FAR_ANY_GENERATION);
    return dead <= 0 ? dead : far_cas_word(r->t, mark_at, mark, open, &old);
}


static int tour_l2_pairs(shard_tour *r, far_addr at, const uint64_t *words, uint64_t bucket, unsigned generation) {
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


static int tour_pair_chain(shard_tour *r, far_addr at, shard_i_node node, unsigned generation) {
    shard_chain chain = {0};
    for (;;) {
        int err = 0;
        for (unsigned i = 0; err >= 0 && i < SHARD_I_NODE_SLOTS; i++) {
            uint64_t state = node.slot[i].state, h = shard_hash(r->index, (far_bytes){&node.slot[i].key, 8});
            err = tour_pair(r, at + i * sizeof(shard_i_slot) + 16, state, state & SHARD_STATE_LIVE,
                            state & SHARD_STATE_BUSY, shard_state_owner(state),
                            shard_state_word(0, 0, shard_state_gen(state)), h, 3, 0, generation);
        }
        if (err < 0 || (at = node.next) == 0 || (err = shard_follow(r->index, &chain, at)) < 0 ||
            (err = tell_node(r, at, sizeof(node))) < 0)
            return err;
        far_read(r->t, at, &node, sizeof(node));
        if ((err = far_wait(r->t)) < 0)
            return err;
    }
}


static int tour_line(shard_tour *r, unsigned word, far_addr at, const void *line, uint64_t bucket,
                     unsigned generation) {
    if (word < 2 && r->st->inlined)
        return tour_l2_pairs(r, at, line, bucket, generation);
    if (word < 2)
        return each_word(r, at, line, 8, 2, bucket, generation);
    if (r->st->inlined)
        return tour_pair_chain(r, at, *(const shard_i_node *)line, generation);
    return tour_chain(r, at, *(const shard_p_node *)line, generation);
}


/* The table may go away between two slices: its word is looked at under every pin. 1: it is gone. */
static int tour_table_slice(shard_tour *r, unsigned word, unsigned generation, uint64_t first, uint64_t count) {
    uint64_t lines[LINES_AT_ONCE * 16], table, size = word >= 2 && r->st->inlined ? sizeof(shard_i_node) : 64;
    int err = far_read_word(r->t, r->body_addr + 8 * (SHARD_BODY_L2 + word), &table);
    far_addr addr = shard_table_addr(table, generation);
    if (err < 0 || !addr)
        return err < 0 ? err : 1;
    far_read(r->t, addr + size * first, lines, size * count);
    err = far_wait(r->t);
    for (uint64_t i = 0; err >= 0 && i < count; i++)
        err = tour_line(r, word, addr + size * (first + i), &lines[size / 8 * i], first + i, generation);
    return err < 0 ? err : 0;
}


static int tour_table(shard_tour *r, unsigned word, uint64_t table) {
    unsigned generation = (unsigned)(table >> 48);
    uint64_t bytes = table_bytes(r, word, generation);
    uint64_t lines = bytes / (word >= 2 && r->st->inlined ? sizeof(shard_i_node) : 64);
    int err = 0;
    for (uint64_t first = 0; err == 0 && first < lines; first += LINES_AT_ONCE) {
        uint64_t count = lines - first < LINES_AT_ONCE ? lines - first : LINES_AT_ONCE;
        if ((err = take_pin(r)) >= 0)
            err = tour_table_slice(r, word, generation, first, count);
        far_pin_drop(r->t);
        if (err == 0 && r->keys)
            err = far_keys_rest(r->t, r->keys);
    }
    return err < 0 ? err : 0;
}


typedef struct view { /* of a partition */
    uint64_t pcb[SHARD_PCB_WORDS], body[SHARD_BODY_WORDS];
} view;


static unsigned version_of(const view *v) {
    return shard_root_d(v->pcb[SHARD_PCB_ROOT]);
}


/* Nothing is made for a version before the one ahead of it is there. The root may have been read before the rest: one
 * doubling may have come in between, and the next be prepared. */
static int check_beyond(const shard_tour *r, const view *v) {
    for (unsigned i = version_of(v) + 3; i < SHARD_VERSIONS; i++)
        if (v->body[SHARD_BODY_SEGMENT + i] || v->body[SHARD_BODY_PROGRESS + i])
            return far_fail(FAR_ERR_CORRUPT, "index '%s', partition %llu is at version %u, and has something of %u",
                            r->index->name, (unsigned long long)r->part->number, version_of(v), i);
    return 0;
}


/* The control block names the body, and after the root has changed once more another. */
static int look_at_partition(shard_tour *r, view *v) {
    far_read(r->t, r->part->pcb, v->pcb, sizeof(v->pcb));
    far_read(r->t, r->body_addr, v->body, sizeof(v->body));
    int err = far_wait(r->t);
    if (err < 0)
        return err;
    shard_learn_root(r->part, v->pcb[SHARD_PCB_ROOT]);
    if (shard_body_of(r->part) != r->body)
        return MOVED;
    uint64_t word = v->pcb[SHARD_PCB_BODY + r->body % 2];
    if (word == shard_body(r->body_addr, r->body))
        return check_beyond(r, v);
    return far_fail(FAR_ERR_CORRUPT, "index '%s', partition %llu: its body is at %#llx, and said to be %#llx",
                    r->index->name, (unsigned long long)r->part->number, (unsigned long long)r->body_addr,
                    (unsigned long long)word);
}


/* The pin is kept, also with an error: who tells what was READ drops it then. */
static int read_partition(shard_tour *r, view *v) {
    int err = take_pin(r);
    return err < 0 ? err : look_at_partition(r, v);
}


/* Whether the word can name a table at all: as check_beyond. */
static bool names_a_table(const view *v, unsigned i) {
    uint64_t table = v->body[SHARD_BODY_L2 + i], generation = table >> 48;
    return table == 0 || (generation % 2 == i % 2 && generation <= version_of(v) + 2u);
}


/* What names no table is left out by a check, which tells of it; others would miss what is in the table. */
static int check_tables(const shard_tour *r, const view *v) {
    for (unsigned i = 0; i < 4; i++) {
        unsigned long long word = v->body[SHARD_BODY_L2 + i], number = r->part->number;
        if (names_a_table(v, i))
            continue;
        if (!r->report)
            return far_fail(FAR_ERR_CORRUPT, "index '%s', partition %llu: what should name a table is %#llx",
                            r->index->name, number, word);
        far_report_problem(r->report, "partition %llu: what should name a table of level %u is %#llx", number,
                           2 + i / 2, word);
    }
    return 0;
}


/* The oldest generation after `done` that has a table; SHARD_VERSIONS: none. */
static unsigned next_generation(const shard_tour *r, int done) {
    unsigned next = SHARD_VERSIONS;
    for (unsigned i = 0; i < 4; i++)
        if (r->table[i] && (int)(r->table[i] >> 48) > done && r->table[i] >> 48 < next)
            next = (unsigned)(r->table[i] >> 48);
    return next;
}


/* Reads what tables there are, and tells of the next generation that has some. */
static int next_tables(shard_tour *r, int done, unsigned *generation) {
    view v;
    int err = read_partition(r, &v);
    if (err >= 0 && done < 0)
        err = check_tables(r, &v);
    for (unsigned i = 0; i < 4; i++)
        r->table[i] = err >= 0 && names_a_table(&v, i) ? v.body[SHARD_BODY_L2 + i] : 0;
    *generation = next_generation(r, done);
    for (unsigned word = *generation & 1; word < 4 && err >= 0; word += 2) {
        far_addr table = shard_table_addr(r->table[word], *generation);
        if (table)
            err = tell_object(r, SHARD_TYPE_OVERFLOW, table, table_bytes(r, word, *generation));
    }
    far_pin_drop(r->t);
    return err;
}


/* A drain moves keys to the next generation, whose table may be made only then: each is looked for when the one before
 * it is through. */
static int tour_overflow(shard_tour *r) {
    for (int done = -1;;) {
        unsigned generation;
        int err = next_tables(r, done, &generation);
        if (generation == SHARD_VERSIONS)
            return err;
        for (unsigned word = generation & 1; word < 4 && err >= 0; word += 2)
            if (shard_table_addr(r->table[word], generation))
                err = tour_table(r, word, r->table[word]);
        if (err < 0)
            return err;
        done = (int)generation;
    }
}


/* Level 1. */

static int read_again(shard_tour *r, shard_image *image) {
    far_read(r->t, image->addr, image->w, SHARD_BUCKET_BYTES);
    return far_wait(r->t);
}


/* What a dead client has begun there is finished first. */
static int help_first(shard_tour *r, shard_image *image) {
    uint64_t lock = image->w[r->st->inlined ? SHARD_I_K : SHARD_P_HEADER];
    bool locked = r->st->inlined ? lock > SHARD_K_FREE : shard_header_owner(lock);
    if (!locked)
        return 0;
    int err = r->st->inlined ? shard_i_help(r->t, r->index, r->part, image, lock)
                             : shard_p_help(r->t, r->index, r->part, image);
    return err < 0 ? err : read_again(r, image);
}


/* An image of two versions is one of a split that will soon be through, or of one whose mover stands still. */
static int look_until_uniform(shard_tour *r, shard_image *image) {
    int err = 0;
    for (unsigned i = 0; err >= 0 && i < LOOKS; i++) {
        if (shard_uniform(r->st, image->w, shard_header_v(image->w[shard_header_at(r->st)])))
            break;
        far_back_off(r->t, 0);
        err = read_again(r, image);
    }
    return err;
}


static int tour_inlined(shard_tour *r, shard_image *image) {
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


static int tour_bucket(shard_tour *r, shard_image *image) {
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


static int tour_slice(shard_tour *r, uint64_t first, uint64_t count) {
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
    if (err >= 0 && shard_body_of(r->part) != r->body)
        return MOVED; /* some of these may be of the next body */
    for (uint64_t i = 0; err >= 0 && i < count; i++)
        far_read(r->t, images[i].addr, images[i].w, SHARD_BUCKET_BYTES);
    if (err >= 0)
        err = far_wait(r->t);
    for (uint64_t i = 0; err >= 0 && i < count; i++)
        err = tour_bucket(r, &images[i]);
    if (err < 0 || !r->report)
        return err;
    far_pin_drop(r->t);
    return shard_check_locks(r, images, count);
}


static int tell_extents(shard_tour *r, unsigned segment, uint64_t word, uint64_t count, bool whole) {
    const shard_extents *known =
        (shard_extents *)(uintptr_t)atomic_load_explicit(&r->part->segment[segment], memory_order_acquire);
    int err = shard_is_as_known(r->index, r->part, "segment", known ? shard_known(&known->word, r->body) : 0, word);
    for (uint64_t i = 0; err >= 0 && i < count; i++) {
        uint64_t extent = 0, used = known ? shard_known(&known->extent[i], r->body) : 0;
        if ((err = take_pin(r)) >= 0)
            err = far_read_word(r->t, word + 8 * i, &extent);
        if (err >= 0)
            err = shard_is_as_known(r->index, r->part, "piece of a segment", used, extent);
        if (err >= 0 && extent == 0 && whole)
            err = far_fail(FAR_ERR_CORRUPT, "index '%s', partition %llu: segment %u has a hole", r->index->name,
                           (unsigned long long)r->part->number, segment);
        if (err >= 0 && extent)
            err = tell_object(r, SHARD_TYPE_SEGMENT, extent, r->st->extent);
        far_pin_drop(r->t);
    }
    return err;
}


/* With the pin. Extents are told after it. */
static int tell_segment(shard_tour *r, unsigned segment, uint64_t word) {
    uint64_t bytes = shard_segment_buckets(segment, r->st->b) * SHARD_BUCKET_BYTES,
             count = shard_extent_count(r->st, segment);
    if (count == 0) {
        uint64_t known = shard_known(&r->part->segment[segment], r->body);
        int err = shard_is_as_known(r->index, r->part, "segment", known, word);
        return err < 0 ? err : tell_object(r, SHARD_TYPE_SEGMENT, word, bytes);
    }
    return tell_object(r, SHARD_TYPE_PROGRESS, word, (count * 8 + 15) & ~15ull);
}


/* whole: of a version that has begun. */
static int tour_segment(shard_tour *r, unsigned segment, uint64_t word, bool whole) {
    uint64_t buckets = shard_segment_buckets(segment, r->st->b), base = segment ? buckets : 0,
             extents = shard_extent_count(r->st, segment);
    int err = extents ? tell_extents(r, segment, word, extents, whole) : 0;
    for (uint64_t first = 0; err >= 0 && first < buckets; first += BUCKETS_AT_ONCE) {
        uint64_t count = buckets - first < BUCKETS_AT_ONCE ? buckets - first : BUCKETS_AT_ONCE;
        far_scratch_mark mark = far_scratch_here(r->t);
        if ((err = take_pin(r)) >= 0)
            err = tour_slice(r, base + first, count);
        far_pin_drop(r->t);
        far_scratch_back(r->t, mark);
        if (err >= 0 && r->keys)
            err = far_keys_rest(r->t, r->keys);
    }
    return err;
}


/* A partition has all segments of its version. The root may be newer than what was READ with it. */
static int check_segment(shard_tour *r, const view *v, unsigned segment) {
    uint64_t word = v->body[SHARD_BODY_SEGMENT + segment];
    if (word || segment > version_of(v))
        return 0;
    int err = far_read_word(r->t, r->body_addr + 8ull * (SHARD_BODY_SEGMENT + segment), &word);
    if (err < 0 || word)
        return err;
    return far_fail(FAR_ERR_CORRUPT, "index '%s', partition %llu, which is at version %u, has no segment %u",
                    r->index->name, (unsigned long long)r->part->number, version_of(v), segment);
}


/* The next body, if a shrink has prepared it: nobody uses it yet. */
static int tell_prepared(shard_tour *r, uint64_t word) {
    far_addr body = shard_body_addr(word, r->body + 1);
    uint64_t segment = 0;
    if (!body || !r->walk)
        return 0;
    int err = far_read_word(r->t, body + 8 * SHARD_BODY_SEGMENT, &segment);
    if (err < 0 || (err = tell_object(r, SHARD_TYPE_BODY, body, 8 * SHARD_BODY_WORDS)) < 0)
        return err;
    return tell_object(r, SHARD_TYPE_SEGMENT, segment, shard_segment_buckets(0, r->st->b) * SHARD_BUCKET_BYTES);
}


/* Reads what the partition has of that segment, and tells of it. */
static int next_segment(shard_tour *r, view *v, unsigned segment) {
    int err = read_partition(r, v);
    if (err >= 0)
        err = check_segment(r, v, segment);
    uint64_t progress = v->body[SHARD_BODY_PROGRESS + segment], word = v->body[SHARD_BODY_SEGMENT + segment];
    if (err >= 0 && progress && segment)
        err = tell_object(r, SHARD_TYPE_PROGRESS, progress, shard_progress_bytes(r->st, segment));
    if (err >= 0 && word)
        err = tell_segment(r, segment, word);
    far_pin_drop(r->t);
    return err;
}


static int tour_segments(shard_tour *r) {
    view v = {0};
    int err = 0;
    for (unsigned segment = 0; err >= 0 && segment < SHARD_VERSIONS; segment++) {
        err = next_segment(r, &v, segment);
        uint64_t word = v.body[SHARD_BODY_SEGMENT + segment];
        if (err < 0 || word == 0)
            break;
        if (r->load && segment <= version_of(&v))
            r->load->slots += shard_segment_buckets(segment, r->st->b) * (r->st->slots + r->st->l2_slots);
        err = tour_segment(r, segment, word, segment <= version_of(&v));
    }
    return err;
}


static int find_body(shard_tour *r) {
    int err = far_pin_take(r->t);
    if (err >= 0 && (err = shard_hear(r->t, r->index)) >= 0) {
        r->body = shard_body_of(r->part);
        err = shard_body_word(r->t, r->part, 0, &r->body_addr);
        if (err >= 0 && (r->body_addr == 0 || shard_body_of(r->part) != r->body))
            err = MOVED;
    }
    far_pin_drop(r->t);
    return err;
}


static int tour_partition(shard_tour *r) {
    view v;
    int err = find_body(r);
    if (err >= 0 && (err = read_partition(r, &v)) >= 0 &&
        (err = tell_object(r, SHARD_TYPE_BODY, r->body_addr, 8 * SHARD_BODY_WORDS)) >= 0)
        err = tell_prepared(r, v.pcb[SHARD_PCB_BODY + (r->body + 1) % 2]);
    far_pin_drop(r->t);
    if (err >= 0)
        err = tour_overflow(r);
    return err < 0 ? err : tour_segments(r);
}


/* What was counted of a body that is gone is forgotten. */
static int tour_last_body(shard_tour *r) {
    far_usage usage = r->usage ? *r->usage : (far_usage){0};
    far_load load = r->load ? *r->load : (far_load){0};
    int err;
    for (unsigned in_vain = 0; in_vain < LOOKS;) {
        unsigned body = r->body;
        shard_counted_begin(&r->counted);
        if ((err = tour_partition(r)) != MOVED)
            return err;
        in_vain = r->body == body ? in_vain + 1 : 0;
        if (r->usage)
            *r->usage = usage;
        if (r->load)
            *r->load = load;
    }
    return far_fail(FAR_ERR_CORRUPT, "index '%s', partition %llu: its root is broken", r->index->name,
                    (unsigned long long)r->part->number);
}


int shard_tour_all(shard_tour *r) {
    int err = tell_object(r, SHARD_TYPE_ROOT, r->index->descriptor,
                          (sizeof(shard_descriptor) + (8ull << r->st->p) + 15) & ~15ull);
    for (uint64_t i = 0; err >= 0 && i < 1ull << r->st->p; i++) {
        r->part = &r->st->part[i];
        if ((err = tell_object(r, SHARD_TYPE_PCB, r->part->pcb, 8 * SHARD_PCB_WORDS)) >= 0)
            err = tour_last_body(r);
    }
    shard_counted_end(&r->counted);
    return err < 0 ? err : 0;
}
