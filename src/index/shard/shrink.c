/* A partition that has become empty goes back to the size of a new one, into a new body:
 *
 *   STABLE(d)  -> SHRINK(d)            announced by housekeeping, where a look at some buckets has met no key;
 *   SHRINK(d)  -> STABLE(d)            called off, by every insert that comes, before it does anything else, or by
 *                                      housekeeping that meets a key;
 *   SHRINK(d)  -> STABLE(0), next body when all of it was seen to be empty.
 *
 * S1  Once everybody knows of it (the grace of grow.c), whoever inserts changes the root word before. No root word comes
 *     twice, and in a partition that does not double keys are moved by nobody. So what was seen without a key has none as
 *     long as the root is the same word: the proof goes on under as many pins as it needs, and by anybody who likes.
 *
 * S2  So the last CAS proves by itself that no key is there at its moment. The next body stands in the control block
 *     before it, complete; who prepared it may be dead.
 *
 * S3  Who still goes by SHRINK(d) then finds the old body as it was, empty: it is not used again under his pin. A miss there
 *     may be late, so he looks at the root once more before he believes it (R7). An insert cannot call off what is over.
 *
 * S4  What the body has is listed under the pin of that CAS, and is his who wins it: he retires it. Should he die before,
 *     nothing names it any more, and a sweep frees it.
 *
 * Nobody waits for any of this: a client that stands still, or a pool without memory, only keeps the partition large. */
#include "base/error.h"
#include "index/shard/shard.h"
#include "pool/epoch.h"

#include <stdlib.h>

enum {
    BEGIN_TRIPS = 4,
    BUCKETS_AT_ONCE = 32,
    LINES_AT_ONCE = 128,
    SWING_TRIPS = 8,     /* to prepare a body, to list the other one, and to replace it, about */
    WAITS = 256,         /* calls of housekeeping for which a handle stays awake for the grace */
    PATIENCE = 32,       /* after which another handle does what the one who announced it has not done */
    RESTS_MAX = 255,     /* looks that are left out after others in vain */
    DOUBT_FIRST = 16,    /* looks left out before a count is doubted for the first time: before its handle sleeps */
    DOUBT_MAX = 1 << 20, /* and at most */
};

typedef struct gone { /* an object that goes with its body */
    struct gone *next;
    unsigned type;
    far_addr addr;
    uint64_t size;
} gone;

typedef struct shrink {
    far_task *t;
    far_index *index;
    const shard_state *st;
    shard_partition *part;
    uint64_t root;
    unsigned d, body;
    gone *list;
    uint64_t listed;
} shrink;


/* ---- Calling it off ---- */

/* The stamp is later than that of the root, so that handles learn it, and than anything that was stamped before. */
static int call_off(far_task *t, far_index *index, shard_partition *part, uint64_t root) {
    uint64_t stamp = shard_root_stamp(root), epoch = far_epoch(t);
    far_point(t, "shard:call_off");
    int err = shard_move_root(
        t, part, root,
        shard_root_next(root, shard_root_d(root), SHARD_STABLE, true, (stamp > epoch ? stamp : epoch) + 1));
    if (err == 1)
        shard_count(&shard_state_of(index)->counters.called_off);
    return err;
}


int shard_call_off(shard_try *y) {
    int err = call_off(y->t, y->index, y->part, y->root);
    if (err != 0)
        return err < 0 ? err : SHARD_AGAIN;
    return shard_retry(y, false); /* another root was learned, unless it is a broken one */
}


int shard_look_at_body(shard_try *y) {
    far_point(y->t, "shard:shrink_missed");
    int err = shard_refresh(y->t, y->part);
    if (err < 0)
        return err;
    return shard_body_of(y->part) == shard_root_body(y->root) ? FAR_ERR_NOT_FOUND : SHARD_AGAIN;
}


/* ---- The proof ---- */

/* Of the next buckets of level 1. 1: they have no key; 0: one was met, or a bucket is not as it should be. */
static int prove_buckets(shrink *s) {
    uint64_t left = (1ull << (s->st->b + s->d)) - s->part->empty_buckets,
             count = left < BUCKETS_AT_ONCE ? left : BUCKETS_AT_ONCE;
    uint64_t(*w)[SHARD_WORDS] = far_scratch(s->t, count * sizeof(*w));
    if (!w)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for buckets");
    for (uint64_t i = 0; i < count; i++) {
        far_addr at;
        int err = shard_bucket_addr(s->t, s->st, s->part, s->part->empty_buckets + i, &at);
        if (err < 0 || at == 0) {
            far_forget(s->t);
            return err;
        }
        far_read(s->t, at, w[i], SHARD_BUCKET_BYTES);
    }
    int err = far_wait(s->t);
    for (uint64_t i = 0; err >= 0 && i < count; i++)
        if (shard_header_v(w[i][shard_header_at(s->st)]) != s->d || shard_unwritten(s->st, w[i]) ||
            shard_count_live(s->st, w[i]))
            return 0;
    s->part->empty_buckets += count;
    return err < 0 ? err : 1;
}


/* A table of that level, which the word names: how large it is. */
static int check_table(const shrink *s, unsigned level, uint64_t word, uint64_t *bytes) {
    unsigned generation = (unsigned)(word >> 48);
    *bytes = 0;
    if (generation <= s->d + 1)
        *bytes = level == 2 ? shard_l2_bytes(s->st, generation) : shard_l3_bytes(s->st, generation);
    if (*bytes && far_may_be_object(s->t, word & shard_mask(48), *bytes))
        return 0;
    return far_fail(FAR_ERR_CORRUPT, "index '%s': a table of a partition is broken", s->index->name);
}


/* Of the next lines of level 2, of both generations that may have a table. *through: there are no more. */
static int prove_lines(shrink *s, bool *through) {
    uint64_t table[2], line[LINES_AT_ONCE][SHARD_L2_BYTES / 8], first = s->part->empty_lines;
    far_addr at;
    int err = shard_body_word(s->t, s->part, SHARD_BODY_L2, &at);
    if (err < 0 || at == 0)
        return err;
    far_read(s->t, at, table, sizeof(table));
    err = far_wait(s->t);
    for (unsigned i = 0; err >= 0 && i < 2; i++) {
        uint64_t bytes = 0, lines;
        if (table[i] && (err = check_table(s, 2, table[i], &bytes)) < 0)
            return err;
        lines = bytes / SHARD_L2_BYTES;
        if (first >= lines) {
            first -= lines;
            continue;
        }
        uint64_t count = lines - first < LINES_AT_ONCE ? lines - first : LINES_AT_ONCE;
        far_read(s->t, (table[i] & shard_mask(48)) + SHARD_L2_BYTES * first, line, SHARD_L2_BYTES * count);
        err = far_wait(s->t);
        for (uint64_t n = 0; err >= 0 && n < count; n++)
            if (!shard_line_is_empty(s->st, line[n]))
                return 0;
        s->part->empty_lines += count;
        return err < 0 ? err : 1;
    }
    *through = true;
    return err < 0 ? err : 1;
}


/* ---- What the body has ---- */

static int add(shrink *s, unsigned type, far_addr addr, uint64_t size) {
    gone *g = far_scratch(s->t, sizeof(*g));
    if (!g)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to list what a partition has");
    if (!far_may_be_object(s->t, addr, size))
        return far_fail(FAR_ERR_CORRUPT, "index '%s': the address %#llx in a partition is broken", s->index->name,
                        (unsigned long long)addr);
    *g = (gone){s->list, type, addr, size};
    s->list = g;
    s->listed++;
    return 0;
}


static int by_address(const void *a, const void *b) {
    far_addr x = (*(gone *const *)a)->addr, y = (*(gone *const *)b)->addr;
    return (x > y) - (x < y);
}


/* What is listed twice, or lies in something else that is, is named by a broken word. */
static int check_list(const shrink *s) {
    gone **all = far_scratch(s->t, s->listed * sizeof(*all));
    uint64_t count = 0;
    if (!all)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to list what a partition has");
    for (gone *g = s->list; g; g = g->next)
        all[count++] = g;
    qsort(all, count, sizeof(*all), by_address);
    for (uint64_t i = 1; i < count; i++)
        if (all[i - 1]->addr + all[i - 1]->size > all[i]->addr)
            return far_fail(FAR_ERR_CORRUPT, "index '%s', partition %llu has %#llx twice", s->index->name,
                            (unsigned long long)s->part->number, (unsigned long long)all[i]->addr);
    return 1;
}


typedef struct link { /* of a chain: how far it was followed */
    shard_chain chain;
    far_addr at;
    shard_node node;
} link;


/* The nodes of all chains of a table of level 3, from its heads on, one of each chain in a round trip. 0: a key was
 * met. */
static int add_chains(shrink *s, far_addr table, unsigned generation) {
    uint64_t count = shard_heads(s->st->b, generation), size = shard_node_bytes(s->st);
    link *links = far_scratch(s->t, count * sizeof(*links));
    if (!links)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for chains");
    for (uint64_t i = 0; i < count; i++) {
        links[i].chain = (shard_chain){0};
        far_read(s->t, table + size * i, &links[i].node, size);
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
            if ((err = shard_follow(s->index, &links[i].chain, at)) >= 0)
                err = add(s, SHARD_TYPE_NODE, at, size);
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


/* 0: a key was met. */
static int add_tables(shrink *s, const uint64_t *words) {
    int err = 1;
    for (unsigned i = 0; err > 0 && i < 4; i++) {
        uint64_t word = words[SHARD_BODY_L2 + i], bytes;
        far_addr table = word & shard_mask(48);
        if (word == 0)
            continue;
        if ((err = check_table(s, 2 + i / 2, word, &bytes)) < 0 ||
            (err = add(s, SHARD_TYPE_OVERFLOW, table, bytes)) < 0)
            return err;
        err = i < 2 ? 1 : add_chains(s, table, (unsigned)(word >> 48));
    }
    return err;
}


/* What goes is what was seen to be empty. */
static int add_piece(shrink *s, const _Atomic uint64_t *known, far_addr addr, uint64_t size) {
    int err = shard_is_as_known(s->index, s->part, "piece of a segment", known ? shard_known(known, s->body) : 0, addr);
    return err < 0 || addr == 0 ? err : add(s, SHARD_TYPE_SEGMENT, addr, size);
}


static int add_segment(shrink *s, unsigned segment, far_addr addr) {
    uint64_t count = shard_extent_count(s->st, segment), bytes = (count * 8 + 15) & ~15ull;
    _Atomic uint64_t *known = &s->part->segment[segment];
    if (count == 0)
        return add_piece(s, known, addr, shard_segment_buckets(segment, s->st->b) * SHARD_BUCKET_BYTES);
    shard_extents *extents = (shard_extents *)(uintptr_t)atomic_load_explicit(known, memory_order_acquire);
    if (addr == 0)
        return 0;
    int err = add(s, SHARD_TYPE_PROGRESS, addr, bytes);
    uint64_t *extent = err < 0 ? NULL : far_scratch(s->t, bytes);
    if (!extent)
        return err < 0 ? err : far_fail(FAR_ERR_NO_MEMORY, "no memory for the extents of a segment");
    far_read(s->t, addr, extent, count * 8);
    err = far_wait(s->t);
    for (uint64_t i = 0; err >= 0 && i < count; i++)
        err = add_piece(s, extents ? &extents->extent[i] : NULL, extent[i], s->st->extent);
    return err;
}


/* All of it, also what was made for a doubling that did not begin. 1: listed; 0: a key was met at level 3. */
static int list_body(shrink *s) {
    uint64_t words[SHARD_BODY_WORDS];
    far_addr body;
    int err = shard_body_word(s->t, s->part, 0, &body);
    if (err < 0 || body == 0)
        return err;
    far_read(s->t, body, words, sizeof(words));
    if ((err = far_wait(s->t)) < 0 || (err = add(s, SHARD_TYPE_BODY, body, sizeof(words))) < 0 ||
        (err = add_tables(s, words)) <= 0)
        return err;
    for (unsigned i = 0; err >= 0 && i < SHARD_VERSIONS; i++) {
        err = add_segment(s, i, words[SHARD_BODY_SEGMENT + i]);
        if (err >= 0 && i > 0 && words[SHARD_BODY_PROGRESS + i])
            err = add(s, SHARD_TYPE_PROGRESS, words[SHARD_BODY_PROGRESS + i], shard_progress_bytes(s->st, i));
    }
    return err < 0 ? err : check_list(s);
}


/* ---- The next body ---- */

/* Whether the next body is as it was prepared. Else another one has begun to use it, or it is the body before, whose
 * number was damaged: in both cases nobody goes there by this root. */
static int is_new(shrink *s, far_addr body) {
    uint64_t words[SHARD_BODY_WORDS];
    if (!far_may_be_object(s->t, body, sizeof(words)))
        return 0;
    far_read(s->t, body, words, sizeof(words));
    int err = far_wait(s->t);
    for (unsigned i = 0; err >= 0 && i < SHARD_BODY_WORDS; i++)
        if (i != SHARD_BODY_SEGMENT && words[i])
            return 0;
    return err < 0 ? err : far_may_be_object(s->t, words[SHARD_BODY_SEGMENT], (uint64_t)SHARD_BUCKET_BYTES << s->st->b);
}


/* What stands in the other word of the control block is the body before this one, or the next, left by one who could
 * not finish. 1: the next one is there. */
static int prepare(shrink *s) {
    unsigned number = (s->body + 1) % SHARD_BODIES;
    far_addr at = s->part->pcb + 8 * (SHARD_PCB_BODY + number % 2), body, segment;
    uint64_t word, old;
    int err = far_read_word(s->t, at, &word);
    if (err < 0 || shard_body_addr(word, number))
        return err < 0 ? err : is_new(s, shard_body_addr(word, number));
    if ((err = shard_make_body(s->t, s->index, far_addr_node(s->part->pcb), s->st->b, &body, &segment)) < 0)
        return err;
    far_point(s->t, "shard:prepared");
    if ((err = far_cas_word(s->t, at, word, shard_body(body, number), &old)) < 0 || old == word)
        return err < 0 ? err : 1;
    far_free(s->t, s->index, SHARD_TYPE_BODY, body, SHARD_BODY_WORDS * 8);
    far_free(s->t, s->index, SHARD_TYPE_SEGMENT, segment, (uint64_t)SHARD_BUCKET_BYTES << s->st->b);
    return shard_body_addr(old, number) != 0;
}


/* Everything was seen to be empty but level 3, which is looked at with the nodes of its chains. 1: replaced; 0: not. */
static int swing(shrink *s) {
    static const uint64_t none = 0;
    int err = prepare(s);
    if (err <= 0 || (err = list_body(s)) <= 0)
        return err;
    far_point(s->t, "shard:swing");
    uint64_t epoch = far_epoch(s->t) + 1; /* it may have gone on by one since this pin was taken */
    uint64_t fresh = shard_root_of_body(shard_root(0, SHARD_STABLE, true, epoch), s->body + 1);
    if ((err = shard_move_root(s->t, s->part, s->root, fresh)) <= 0)
        return err;
    far_point(s->t, "shard:swung");
    for (const gone *g = s->list; g; g = g->next)
        far_retire(s->t, s->index, g->type, g->addr, g->size);
    shard_count(&shard_state_of(s->index)->counters.shrunk);
    far_write(s->t, s->part->pcb + 8 * SHARD_PCB_CLAIM, &none, sizeof(none)); /* of a version that is no more */
    err = far_wait(s->t);
    return err < 0 ? err : 1;
}


/* ---- Housekeeping ---- */

/* In vain: the more often, the more looks are left out. */
static void rest(shard_partition *part) {
    part->shrink_rests = part->shrink_rests < RESTS_MAX / 2 ? 2 * part->shrink_rests + 1 : RESTS_MAX;
    part->shrink_rest = part->shrink_rests;
    part->shrink_count = shard_keys_known(part);
}


/* The count says that there are keys. A client that was killed may not have told what it deleted, so the count is doubted now and
 * then: the longer it stays as it is, the more seldom. */
static bool is_doubted(shard_partition *part) {
    int64_t count = shard_keys_known(part);
    if (count != part->doubted_count) {
        part->doubted_count = count;
        part->doubt_rest = part->doubt_rests = DOUBT_FIRST;
    }
    if (part->doubt_rest > 0) {
        part->doubt_rest--;
        return false;
    }
    part->doubt_rests = part->doubt_rests < DOUBT_MAX ? 2 * part->doubt_rests : DOUBT_MAX;
    part->doubt_rest = part->doubt_rests;
    return true;
}


/* Of a partition that is stable. One that was about to shrink when this handle looked last, and has its body still,
 * was needed after all. While the count says that it is empty the handle stays awake for some more looks. */
static int begin(shrink *s, int *trips) {
    shard_partition *part = s->part;
    uint64_t keys, told;
    bool called_off = part->proved_empty && shard_root_body(part->proved_empty) == s->body;
    part->proved_empty = 0;
    if (called_off)
        rest(part);
    if (s->d == 0)
        part->shrink_rest = part->shrink_rests = 0;
    bool few = shard_has_few(s->st, part, s->d), none = shard_keys_known(part) <= 0;
    if (s->d == 0 || !part->quiet || (!few && !is_doubted(part)))
        return 0;
    if (few && part->shrink_rest > 0 && !(none && shard_keys_known(part) != part->shrink_count)) {
        part->shrink_rest--;
        return none && part->shrink_rests < RESTS_MAX; /* a count may be wrong for ever */
    }
    if (!shard_all_know(s->t, s->root)) {
        far_epoch_request(far_task_pool(s->t));
        return 0;
    }
    *trips -= BEGIN_TRIPS;
    int err = shard_estimate(s->t, s->index, part, s->d, &keys, &told);
    if (err < 0)
        return err;
    if (keys > 0) {
        if (few)
            rest(part);
        return 0;
    }
    if (!few && (err = shard_put_count_right(s->t, s->index, part, told, 0)) < 0)
        return err;
    far_point(s->t, "shard:shrink");
    uint64_t announced = shard_root_next(s->root, s->d, SHARD_SHRINK, false, shard_root_stamp(s->root));
    if ((err = shard_move_root(s->t, part, s->root, announced)) <= 0)
        return err;
    part->shrink_waits = PATIENCE; /* for nobody but the grace */
    err = shard_set_stamp(s->t, part, announced);
    return err < 0 ? err : 1;
}


/* 1: everything was seen to be empty, and the body is replaced, or the trips are used up; 0: not so. */
static int prove(shrink *s, int *trips) {
    shard_partition *part = s->part;
    for (bool through = false; *trips > 0;) {
        far_scratch_mark mark = far_scratch_here(s->t);
        int err;
        if (part->empty_buckets < 1ull << (s->st->b + s->d)) {
            --*trips;
            err = prove_buckets(s);
        } else if (!through) {
            *trips -= 2;
            err = prove_lines(s, &through);
        } else {
            *trips -= SWING_TRIPS;
            return swing(s);
        }
        far_scratch_back(s->t, mark);
        if (err <= 0)
            return err;
    }
    return 1;
}


/* Of a partition that is about to shrink. */
static int go_on(shrink *s, int *trips) {
    shard_partition *part = s->part;
    int err;
    if (part->proved_empty != s->root) { /* nothing that was seen under another root counts */
        part->proved_empty = s->root;
        part->empty_buckets = part->empty_lines = 0;
    }
    if (!shard_root_stamped(s->root)) {
        --*trips;
        err = shard_set_stamp(s->t, part, s->root);
        return err < 0 ? err : 1;
    }
    if (part->shrink_waits < PATIENCE) { /* another one has announced it, who will do it */
        part->shrink_waits++;
        return 0;
    }
    if (!shard_all_know(s->t, s->root)) {
        far_epoch_request(far_task_pool(s->t));
        return ++part->shrink_waits < WAITS;
    }
    if ((err = prove(s, trips)) > 0 || shard_is_lost(err))
        return err;
    rest(part); /* it is not empty, or there is no memory */
    int off = call_off(s->t, s->index, part, s->root);
    return off < 0 ? off : err;
}


static int step(shrink *s, int *trips) {
    unsigned phase = shard_root_phase(s->root);
    if (s->d >= SHARD_VERSIONS)
        return far_fail(FAR_ERR_CORRUPT, "index '%s', partition %llu is beyond its largest version", s->index->name,
                        (unsigned long long)s->part->number);
    if (phase == SHARD_SHRINK)
        return go_on(s, trips);
    s->part->shrink_waits = 0;
    return phase == SHARD_STABLE ? begin(s, trips) : 0;
}


int shard_shrink(far_task *t, far_index *index, shard_partition *part, int *trips) {
    if (atomic_flag_test_and_set_explicit(&part->working, memory_order_acquire))
        return 0;
    uint64_t root = atomic_load_explicit(&part->root, memory_order_acquire);
    shrink s = {.t = t,
                .index = index,
                .st = shard_state_of(index),
                .part = part,
                .root = root,
                .d = shard_root_d(root),
                .body = shard_root_body(root)};
    far_scratch_mark mark = far_scratch_here(t);
    int err = step(&s, trips);
    far_scratch_back(t, mark);
    atomic_flag_clear_explicit(&part->working, memory_order_release);
    return err;
}
