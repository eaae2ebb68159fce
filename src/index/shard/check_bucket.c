/* Check of one level-1 bucket: what must hold of its words together. Images are torn, and others are at work: what
 * looks wrong is looked at again. */
#include "base/error.h"
#include "index/shard/shard.h"

#include <string.h>

typedef struct look {
    far_task *t;
    shard_state *st;
    shard_partition *part;
    const shard_image *image;
    unsigned v;
    far_report *report;
} look;


static void tell(const look *l, const char *what) {
    far_report_problem(l->report, "partition %llu, level 1, bucket %llu, version %u: %s",
                       (unsigned long long)l->part->number, (unsigned long long)l->image->bucket, l->v, what);
}


/* Nobody splits the bucket, and all words are of its version. */
static bool is_calm(const shard_state *st, const shard_image *image) {
    for (unsigned i = 0; !st->inlined && i < SHARD_P_SLOTS; i++)
        if (shard_is_frozen(image->w[i]))
            return false;
    return shard_uniform(st, image->w, shard_header_v(image->w[shard_header_at(st)]));
}


bool shard_is_unlocked(const shard_state *st, const shard_image *image) {
    return st->inlined ? image->w[SHARD_I_K] == SHARD_K_FREE : shard_header_owner(image->w[SHARD_P_HEADER]) == 0;
}


/* Words of another version, or frozen ones, in a bucket that nobody has locked. What two READs show is so. */
static int check_calm(const look *l) {
    shard_image before = *l->image, now = before;
    for (unsigned i = 0; i < 3; i++) {
        if (!shard_is_unlocked(l->st, &now) || is_calm(l->st, &now))
            return 0;
        before = now;
        far_read(l->t, now.addr, now.w, SHARD_BUCKET_BYTES);
        int err = far_wait(l->t);
        if (err < 0)
            return err;
        if (memcmp(before.w, now.w, sizeof(now.w)) == 0) {
            tell(l, "nobody splits the bucket, and not all of its words are of its version");
            return 0;
        }
    }
    return 0; /* much goes on there */
}


/* Two words hold one key. They do if neither has changed since: a key leaves the one before it comes to the other. */
static int check_twice(const look *l, unsigned i, unsigned j) {
    uint64_t now[2];
    far_read(l->t, l->image->addr + 8 * i, &now[0], 8);
    far_read(l->t, l->image->addr + 8 * j, &now[1], 8);
    int err = far_wait(l->t);
    if (err >= 0 && now[0] == l->image->w[i] && now[1] == l->image->w[j])
        tell(l, "a key is there twice");
    return err < 0 ? err : 0;
}


/* what[i]: what word i says of its key, 0 = it has none. */
static int check_keys(const look *l, const uint64_t *what) {
    int err = 0;
    for (unsigned i = 0; i < SHARD_WORDS; i++)
        for (unsigned j = i + 1; what[i] && j < SHARD_WORDS && err >= 0; j++)
            if (what[i] == what[j])
                err = check_twice(l, i, j);
    return err;
}


static int check_inlined_keys(const look *l) {
    uint64_t what[SHARD_WORDS] = {0};
    for (unsigned i = 0; i < SHARD_I_SLOTS; i++)
        if (l->image->w[2 * i + 1] & SHARD_V)
            what[2 * i + 1] = SHARD_V | shard_kw_rem(l->image->w[2 * i + 1]);
    return check_keys(l, what);
}


static int check_hashes(const look *l) {
    uint64_t what[SHARD_WORDS] = {0};
    for (unsigned i = 0; i < SHARD_P_SLOTS; i++)
        if (shard_is_live(l->image->w[i]))
            far_read(l->t, shard_entry_addr(l->image->w[i]), &what[i], 8);
    int err = far_wait(l->t);
    if (err == FAR_ERR_CORRUPT)
        return 0; /* told entry by entry */
    return err < 0 ? err : check_keys(l, what);
}


/* root: as it was before the image was read. */
int shard_check_bucket(far_task *t, far_index *index, shard_partition *part, uint64_t root, const shard_image *image,
                       far_report *report) {
    shard_state *st = shard_state_of(index);
    unsigned d = shard_root_d(root), born = shard_segment(image->bucket, st->b);
    unsigned least = shard_root_phase(root) == SHARD_GROW ? d - 1 : d;
    look l = {t, st, part, image, shard_header_v(image->w[shard_header_at(st)]), report};
    if (shard_unwritten(st, image->w)) {
        if (born <= least)
            tell(&l, "the bucket was never written");
        return 0;
    }
    if (l.v < least || l.v < born)
        tell(&l, "the bucket is behind its partition");
    if (l.v > d + 1) /* one doubling may have begun since the root was read */
        tell(&l, "the bucket is ahead of its partition");
    int err = check_calm(&l);
    return err < 0 ? err : st->inlined ? check_inlined_keys(&l) : check_hashes(&l);
}
