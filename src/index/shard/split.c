/* Layout P: a bucket at version d-1 becomes two at version d. The header is the lock; the child is complete before a
 * word of the parent changes, and the header of the parent comes last.
 *
 * Mode F (always): all words are frozen, so that a CAS of somebody who does not know of the doubling fails or is seen.
 * Mode C (grace: nobody is left who does not know): nobody changes a bucket that was not split, so the image that was
 * read is what there is. */
#include "base/error.h"
#include "index/shard/shard.h"
#include "pool/clients.h"

#include <string.h>

typedef struct split {
    far_task *t;
    shard_state *st;
    shard_partition *part;
    unsigned d;
    far_addr parent, child;
    uint64_t header;                 /* of the parent, unlocked, at d-1 */
    uint64_t w[SHARD_P_SLOTS];       /* of the parent */
    uint64_t h[SHARD_P_SLOTS];       /* hashes, when tags are made anew */
    shard_own *own;                  /* or NULL */
    uint64_t halves[2][SHARD_WORDS]; /* child, parent: made before the lock is taken, so that nothing fails after it */
} split;


/* Freezes every word: also a TOMB, which may have been used again, under the home lock, since the image was read. */
static int freeze(split *s) {
    bool masked = far_task_capabilities(s->t)->masked_cas;
    uint64_t old[SHARD_P_SLOTS];
    if (masked) {
        for (unsigned i = 0; i < SHARD_P_SLOTS; i++)
            far_masked_cas(s->t, s->parent + 8 * i, 0, 0, SHARD_FROZEN, SHARD_FROZEN, &old[i]);
        int err = far_wait(s->t);
        for (unsigned i = 0; err >= 0 && i < SHARD_P_SLOTS; i++)
            s->w[i] = old[i] | SHARD_FROZEN;
        return err;
    }
    for (bool all = false; !all;) {
        for (unsigned i = 0; i < SHARD_P_SLOTS; i++)
            if (!shard_is_frozen(s->w[i]))
                far_cas(s->t, s->parent + 8 * i, s->w[i], s->w[i] | SHARD_FROZEN, &old[i]);
        int err = far_wait(s->t);
        if (err < 0)
            return err;
        all = true;
        for (unsigned i = 0; i < SHARD_P_SLOTS; i++) {
            if (shard_is_frozen(s->w[i]))
                continue;
            bool done = old[i] == s->w[i];
            s->w[i] = done ? old[i] | SHARD_FROZEN : old[i];
            all &= done;
        }
    }
    return 0;
}


/* Whether its tag must be made anew. Not of a pair that is in a complete child: its block may be free by now. */
static bool needs_hash(const split *s, uint64_t word) {
    return shard_is_live(word) && !shard_stamp_is(word, s->d) && (s->child || !shard_tag_changes(word, s->d));
}


/* Every 7 versions the window of the tags moves on: the hashes stand at the head of the blocks. */
static int read_hashes(split *s) {
    if (s->d % SHARD_TAG_STEP)
        return 0;
    shard_count(&s->st->counters.retags);
    for (unsigned i = 0; i < SHARD_P_SLOTS; i++)
        if (needs_hash(s, s->w[i]))
            far_read(s->t, shard_entry_addr(s->w[i]), &s->h[i], 8);
    return far_wait(s->t);
}


/* The word at version d, for the half that it belongs to. Words that are at d already (of a split that was taken over)
 * stay. */
static uint64_t moved(const split *s, unsigned i, bool child) {
    uint64_t word = s->w[i];
    if (!shard_is_live(word))
        return shard_empty(s->d);
    if (shard_stamp_is(word, s->d))
        return child ? shard_empty(s->d) : word;
    if (shard_tag_changes(word, s->d) != child)
        return shard_empty(s->d);
    unsigned tag = s->d % SHARD_TAG_STEP ? shard_entry_tag(word) : shard_tag(s->h[i], s->st->p, s->st->b, s->d);
    return shard_entry(s->d, tag, shard_entry_class(word), shard_entry_addr(word));
}


/* The change that goes along is a CAS behind the WRITE of the half that it is for: from then on others change that
 * too. */
static void put_own(split *s, const uint64_t *child, const uint64_t *parent) {
    shard_own *own = s->own;
    const shard_try *y = own->y;
    const shard_state *st = s->st;
    bool leaves = shard_changes(y->h, st->p, st->b, s->d);
    const uint64_t *half = leaves ? child : parent;
    int slot = own->slot >= 0 ? own->slot : shard_p_first_empty(y, half);
    if (slot < 0)
        return;
    own->expected = half[slot];
    uint64_t desired =
        own->remove ? shard_tomb(s->d) : shard_entry(s->d, shard_tag(y->h, st->p, st->b, s->d), y->class, y->block);
    far_cas(s->t, (leaves ? s->child : s->parent) + 8ull * (unsigned)slot, own->expected, desired, &own->found);
    own->carried = true;
    shard_count(&s->st->counters.merged);
}


/* child 0: it is complete already. */
static int write_halves(split *s) {
    int err = read_hashes(s);
    uint64_t *child = s->halves[0], *parent = s->halves[1];
    if (err < 0)
        return err;
    for (unsigned i = 0; i < SHARD_P_SLOTS; i++) {
        child[i] = moved(s, i, true);
        parent[i] = moved(s, i, false);
    }
    child[SHARD_P_HEADER] = parent[SHARD_P_HEADER] = shard_header(s->d, 0, shard_header_fnew(s->header));
    far_point(s->t, "shard:write_halves");
    if (s->child)
        far_write(s->t, s->child, child, SHARD_BUCKET_BYTES);
    if (s->child && !s->st->combining && (err = far_wait(s->t)) < 0)
        return err;
    far_write(s->t, s->parent, parent, SHARD_BUCKET_BYTES);
    if (s->own)
        put_own(s, child, parent);
    return far_wait(s->t);
}


static int child_addr(split *s, uint64_t parent) {
    int err = shard_bucket_addr(s->t, s->st, s->part, parent + (1ull << (s->st->b + s->d - 1)), &s->child);
    if (err >= 0 && s->child == 0)
        return far_fail(FAR_ERR_CORRUPT, "a segment of a shard index is missing");
    return err;
}


static bool is_as_read(const split *s, const shard_image *parent) {
    for (unsigned i = 0; i < SHARD_P_SLOTS; i++)
        if ((s->w[i] | SHARD_FROZEN) != (parent->w[i] | SHARD_FROZEN))
            return false;
    return true;
}


/* 1: the bucket is at version d; 0: somebody has the lock. graced: known before the image was read. own: a change that
 * the image has shown to be right; or NULL. */
int shard_p_split(far_task *t, far_index *index, shard_partition *part, unsigned d, bool graced,
                  const shard_image *parent, shard_own *own) {
    uint64_t header = parent->w[SHARD_P_HEADER], old;
    split *s = far_scratch(t, sizeof(*s));
    if (!s)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for buckets");
    s->t = t;
    s->st = shard_state_of(index);
    s->part = part;
    s->d = d;
    s->parent = parent->addr;
    s->header = header;
    s->own = own;
    memcpy(s->w, parent->w, sizeof(s->w));
    int err = child_addr(s, parent->bucket);
    if (err < 0 || shard_header_owner(header))
        return err;
    far_point(t, "shard:split");
    err = far_cas_word(t, parent->addr + 8 * SHARD_P_HEADER, header,
                       shard_header_locked(header, far_task_client(t), SHARD_OP_SPLIT), &old);
    if (err < 0 || old != header)
        return err;
    shard_count(graced ? &s->st->counters.splits_graced : &s->st->counters.splits_frozen);
    far_point(t, "shard:split_locked");
    if (!graced && (err = freeze(s)) < 0)
        return err;
    if (!is_as_read(s, parent)) /* what the change goes by is no longer true */
        s->own = NULL;
    err = write_halves(s);
    return err < 0 ? err : 1;
}


/* The split of a dead client. What its child says decides: once complete, it may have been changed by others already.
 */
static int take_over(far_task *t, far_index *index, shard_partition *part, const shard_image *image) {
    uint64_t header = image->w[SHARD_P_HEADER], old;
    split *s = far_scratch(t, sizeof(*s));
    uint64_t *child = far_scratch(t, SHARD_BUCKET_BYTES);
    if (!s || !child)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for buckets");
    s->t = t;
    s->st = shard_state_of(index);
    s->part = part;
    s->own = NULL;
    s->d = shard_header_v(header) + 1;
    s->parent = image->addr;
    s->header = shard_header_unlocked(header);
    int err = child_addr(s, image->bucket);
    if (err < 0)
        return err;
    err = far_cas_word(t, image->addr + 8 * SHARD_P_HEADER, header,
                       shard_header_locked(header, far_task_client(t), SHARD_OP_SPLIT), &old);
    if (err < 0 || old != header)
        return err;
    shard_count(&s->st->counters.takeovers);
    far_point(t, "shard:taken_over");
    far_read(t, s->parent, s->w, sizeof(s->w));
    far_read(t, s->child, child, SHARD_BUCKET_BYTES);
    if ((err = far_wait(t)) < 0)
        return err;
    if (!shard_unwritten(s->st, child))
        s->child = 0;
    else if ((err = freeze(s)) < 0)
        return err;
    return write_halves(s);
}


int shard_p_help(far_task *t, far_index *index, shard_partition *part, const shard_image *image) {
    uint64_t header = image->w[SHARD_P_HEADER], old;
    if (shard_header_owner(header) == 0)
        return 0;
    int dead = far_is_dead_pinned(t, shard_header_owner(header), FAR_ANY_GENERATION);
    if (dead <= 0)
        return dead;
    if (shard_header_op(header) == SHARD_OP_SPLIT)
        return take_over(t, index, part, image);
    return far_cas_word(t, image->addr + 8 * SHARD_P_HEADER, header, shard_header_unlocked(header), &old);
}
