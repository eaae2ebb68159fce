/* Pointer layout: splits a bucket at version d-1 into a parent and a child at version d, and finishes the splits of
 * failed clients. The header is the lock. The child is complete before any word of the parent changes, and the header
 * of the parent is written last.
 *
 * A client that has not read the new root word may still send a CAS to a word of the parent. There are two ways to make
 * such a late CAS harmless:
 *
 * - The split freezes all words of the parent first. A late CAS then either fails, or takes effect before the freeze,
 *   and then the freeze returns the new word. This is always safe (mode F in the paper's audit).
 * - If every pinned client has read the new root word (the grace period is over), no client changes a bucket before it
 *   is split. The image that was read is then still current, and freezing is not necessary (mode C). */
#include "base/error.h"
#include "index/shard/shard.h"
#include "pool/format/clients.h"

#include <string.h>

typedef struct split {
    far_task *t;
    shard_state *st;
    shard_partition *part;
    unsigned d;
    far_addr parent, child;
    uint64_t header;           /* unlocked header of the parent, at version d-1 */
    uint64_t w[SHARD_P_SLOTS]; /* entries of the parent */
    uint64_t h[SHARD_P_SLOTS]; /* hashes of the keys, read only if new tags are needed */
    shard_own_change *own;     /* the operation's own change that the split makes, or NULL */
    /* images of child and parent; allocated before the lock is taken, so that nothing can fail afterwards */
    uint64_t halves[2][SHARD_WORDS];
} split;


/* Freezes every word of the parent. TOMBs are included, because a client that held the lock may have reused them since
 * the image was read. */
static int freeze_words(split *s) {
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


/* Returns true if the entry belongs to a half that is written now and needs a new tag. If the child is complete
 * (s->child is 0), the entries of the child are left out, because their pair blocks may have been freed. */
static bool needs_new_tag(const split *s, uint64_t word) {
    return shard_is_live(word) && !shard_stamp_is(word, s->d) && (s->child || !shard_tag_moves(word, s->d));
}


/* At every 7th version (SHARD_TAG_STEP), the tags of the entries are made from other bits of the keys' hashes. Then
 * this function READs the hashes, which are at the beginning of the pair blocks. At other versions it does nothing.
 * Returns 0 or an error. */
static int read_hashes(split *s) {
    if (s->d % SHARD_TAG_STEP)
        return 0;
    shard_count_event(&s->st->counters.retags);
    for (unsigned i = 0; i < SHARD_P_SLOTS; i++)
        if (needs_new_tag(s, s->w[i]))
            far_read(s->t, shard_entry_addr(s->w[i]), &s->h[i], 8);
    return far_wait(s->t);
}


/* Returns word i at version d for the child or for the parent. Words that have version d already, from the split of a
 * failed client, stay in the parent. */
static uint64_t word_after_split(const split *s, unsigned i, bool child) {
    uint64_t word = s->w[i];
    if (!shard_is_live(word))
        return shard_empty(s->d);
    if (shard_stamp_is(word, s->d))
        return child ? shard_empty(s->d) : word;
    if (shard_tag_moves(word, s->d) != child)
        return shard_empty(s->d);
    unsigned tag = s->d % SHARD_TAG_STEP ? shard_entry_tag(word) : shard_tag(s->h[i], s->st->p, s->st->b, s->d);
    return shard_entry(s->d, tag, shard_entry_class(word), shard_entry_addr(word));
}


/* Adds the operation's own change to the split. The change is a CAS that follows the WRITE of its half in the same
 * batch. The change is not part of the WRITE, because as soon as the half is written other clients may change the words
 * of the half, too. */
static void add_own_change(split *s, const uint64_t *child, const uint64_t *parent) {
    shard_own_change *own = s->own;
    const shard_op *op = own->op;
    const shard_state *st = s->st;
    bool leaves = shard_key_moves(op->h, st->p, st->b, s->d);
    const uint64_t *half = leaves ? child : parent;
    int slot = own->slot >= 0 ? own->slot : shard_p_first_empty(op, half);
    if (slot < 0)
        return;
    own->expected = half[slot];
    uint64_t desired =
        own->remove ? shard_tomb(s->d) : shard_entry(s->d, shard_tag(op->h, st->p, st->b, s->d), op->class, op->block);
    far_cas(s->t, (leaves ? s->child : s->parent) + 8ull * (unsigned)slot, own->expected, desired, &own->found);
    own->carried = true;
    shard_count_event(&s->st->counters.merged);
}


/* Writes child and parent. s->child is 0 if the child is complete already. Returns 0 or an error. */
static int write_halves(split *s) {
    int err = read_hashes(s);
    uint64_t *child = s->halves[0], *parent = s->halves[1];
    if (err < 0)
        return err;
    for (unsigned i = 0; i < SHARD_P_SLOTS; i++) {
        child[i] = word_after_split(s, i, true);
        parent[i] = word_after_split(s, i, false);
    }
    child[SHARD_P_HEADER] = parent[SHARD_P_HEADER] = shard_header(s->d, 0, shard_header_fnew(s->header));
    far_point(s->t, "shard:write_halves");
    if (s->child)
        far_write(s->t, s->child, child, SHARD_BUCKET_BYTES);
    if (s->child && !s->st->combining && (err = far_wait(s->t)) < 0)
        return err;
    far_write(s->t, s->parent, parent, SHARD_BUCKET_BYTES);
    if (s->own)
        add_own_change(s, child, parent);
    return far_wait(s->t);
}


static int find_child_addr(split *s, uint64_t parent) {
    if (s->d >= SHARD_VERSIONS) /* the version in the bucket's header is damaged */
        return far_fail(FAR_ERR_CORRUPT, "the version of a bucket of a shard index is corrupt");
    int err = shard_bucket_addr(s->t, s->st, s->part, parent + (1ull << (s->st->b + s->d - 1)), &s->child);
    if (err >= 0 && s->child == 0)
        return far_fail(FAR_ERR_CORRUPT, "a segment of a shard index is missing");
    return err;
}


static bool words_are_as_read(const split *s, const shard_image *parent) {
    for (unsigned i = 0; i < SHARD_P_SLOTS; i++)
        if ((s->w[i] | SHARD_FROZEN) != (parent->w[i] | SHARD_FROZEN))
            return false;
    return true;
}


/* Splits a bucket. `graced` is true if the grace period of the doubling is over, so that the words need not be frozen;
 * the caller must have determined it before it read the image `parent`. `own` is the operation's own change, which this
 * image must have shown to be correct; or NULL. Returns 1 if the bucket is at version d, 0 if another client has the
 * lock, or an error. */
int shard_p_split(far_task *t, far_index *index, shard_partition *part, unsigned d, bool graced,
                  const shard_image *parent, shard_own_change *own) {
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
    int err = find_child_addr(s, parent->bucket);
    if (err < 0 || shard_header_owner(header))
        return err;
    far_point(t, "shard:split");
    err = far_cas_word(t, parent->addr + 8 * SHARD_P_HEADER, header,
                       shard_header_locked(header, far_task_client(t), SHARD_OP_SPLIT), &old);
    if (err < 0 || old != header)
        return err;
    shard_count_event(graced ? &s->st->counters.splits_graced : &s->st->counters.splits_frozen);
    far_point(t, "shard:split_locked");
    if (!graced && (err = freeze_words(s)) < 0)
        return err;
    /* The bucket has changed since the image was read. The operation derived its own change from that image, so the
     * split must not make this change. */
    if (!words_are_as_read(s, parent))
        s->own = NULL;
    err = write_halves(s);
    return err < 0 ? err : 1;
}


/* Finishes the split of a failed client. If the child is complete, other clients may have changed it after the client
 * failed, so the child is not written again, and only the parent is finished. */
static int take_over_split(far_task *t, far_index *index, shard_partition *part, const shard_image *image) {
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
    int err = find_child_addr(s, image->bucket);
    if (err < 0)
        return err;
    err = far_cas_word(t, image->addr + 8 * SHARD_P_HEADER, header,
                       shard_header_locked(header, far_task_client(t), SHARD_OP_SPLIT), &old);
    if (err < 0 || old != header)
        return err;
    shard_count_event(&s->st->counters.takeovers);
    far_point(t, "shard:taken_over");
    far_read(t, s->parent, s->w, sizeof(s->w));
    far_read(t, s->child, child, SHARD_BUCKET_BYTES);
    if ((err = far_wait(t)) < 0)
        return err;
    if (!shard_is_unwritten(s->st, child))
        s->child = 0;
    else if ((err = freeze_words(s)) < 0)
        return err;
    return write_halves(s);
}


int shard_p_recover_lock(far_task *t, far_index *index, shard_partition *part, const shard_image *image) {
    uint64_t header = image->w[SHARD_P_HEADER], old;
    if (shard_header_owner(header) == 0)
        return 0;
    int dead = far_client_confirm_failed_pinned(t, shard_header_owner(header), FAR_ANY_GENERATION);
    if (dead <= 0)
        return dead;
    if (shard_header_op(header) == SHARD_OP_SPLIT)
        return take_over_split(t, index, part, image);
    return far_cas_word(t, image->addr + 8 * SHARD_P_HEADER, header, shard_header_unlocked(header), &old);
}
