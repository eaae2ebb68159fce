/* Check of one level-1 bucket: conditions that the words of the bucket must satisfy together. Images can be torn and
 * other clients are active, so a word that seems wrong is read again. */
#include "base/error.h"
#include "index/shard/shard.h"

#include <string.h>

typedef struct bucket_check {
    far_task *t;
    shard_state *st;
    shard_partition *part;
    const shard_image *image;
    unsigned v;
    far_report *report;
} bucket_check;


static void report_problem(const bucket_check *l, const char *what) {
    far_report_problem(l->report, "partition %llu, level 1, bucket %llu, version %u: %s",
                       (unsigned long long)l->part->number, (unsigned long long)l->image->bucket, l->v, what);
}


/* Returns true if no split of the bucket is in progress and all words have the version of the header. */
static bool is_uniform_and_unfrozen(const shard_state *st, const shard_image *image) {
    for (unsigned i = 0; !st->inlined && i < SHARD_P_SLOTS; i++)
        if (shard_is_frozen(image->w[i]))
            return false;
    return shard_is_uniform(st, image->w, shard_header_v(image->w[shard_header_at(st)]));
}


bool shard_is_unlocked(const shard_state *st, const shard_image *image) {
    return st->inlined ? image->w[SHARD_I_K] == SHARD_K_FREE : shard_header_owner(image->w[SHARD_P_HEADER]) == 0;
}


/* Reports words of another version than the header, or frozen words, in a bucket that no client has locked. Such words
 * are reported only if two consecutive READs return them. */
static int check_versions(const bucket_check *l) {
    shard_image before = *l->image, now = before;
    for (unsigned i = 0; i < 3; i++) {
        if (!shard_is_unlocked(l->st, &now) || is_uniform_and_unfrozen(l->st, &now))
            return 0;
        before = now;
        far_read(l->t, now.addr, now.w, SHARD_BUCKET_BYTES);
        int err = far_wait(l->t);
        if (err < 0)
            return err;
        if (memcmp(before.w, now.w, sizeof(now.w)) == 0) {
            report_problem(
                l, "the bucket has frozen words or words of another version, although no client is splitting it");
            return 0;
        }
    }
    return 0; /* the bucket changes too often for a verdict */
}


/* Reports that two words have the same key. The report is made only if neither word has changed since the image was
 * read, because a moved key is removed from its old word before it appears in the other word. */
static int check_duplicate_words(const bucket_check *l, unsigned i, unsigned j) {
    uint64_t now[2];
    far_read(l->t, l->image->addr + 8 * i, &now[0], 8);
    far_read(l->t, l->image->addr + 8 * j, &now[1], 8);
    int err = far_wait(l->t);
    if (err >= 0 && now[0] == l->image->w[i] && now[1] == l->image->w[j])
        report_problem(l, "a key occurs twice");
    return err < 0 ? err : 0;
}


/* Reports keys that occur twice in the bucket. what[i] identifies the key of word i, or is 0 if the word has no key. */
static int check_duplicate_keys(const bucket_check *l, const uint64_t *what) {
    int err = 0;
    for (unsigned i = 0; i < SHARD_WORDS; i++)
        for (unsigned j = i + 1; what[i] && j < SHARD_WORDS && err >= 0; j++)
            if (what[i] == what[j])
                err = check_duplicate_words(l, i, j);
    return err;
}


static int check_inline_keys(const bucket_check *l) {
    uint64_t what[SHARD_WORDS] = {0};
    for (unsigned i = 0; i < SHARD_I_SLOTS; i++)
        if (l->image->w[2 * i + 1] & SHARD_V)
            what[2 * i + 1] = SHARD_V | shard_kw_rem(l->image->w[2 * i + 1]);
    return check_duplicate_keys(l, what);
}


static int check_pointer_keys(const bucket_check *l) {
    uint64_t what[SHARD_WORDS] = {0};
    for (unsigned i = 0; i < SHARD_P_SLOTS; i++)
        if (shard_is_live(l->image->w[i]))
            far_read(l->t, shard_entry_addr(l->image->w[i]), &what[i], 8);
    int err = far_wait(l->t);
    if (err == FAR_ERR_CORRUPT)
        return 0; /* check_entry reports each entry that points outside the pool */
    return err < 0 ? err : check_duplicate_keys(l, what);
}


int shard_check_bucket(far_task *t, far_index *index, shard_partition *part, uint64_t root, const shard_image *image,
                       far_report *report) {
    shard_state *st = shard_state_of(index);
    unsigned d = shard_root_d(root), born = shard_segment(image->bucket, st->b);
    unsigned least = shard_root_phase(root) == SHARD_GROW ? d - 1 : d;
    bucket_check l = {t, st, part, image, shard_header_v(image->w[shard_header_at(st)]), report};
    if (shard_is_unwritten(st, image->w)) {
        if (born <= least)
            report_problem(&l, "the bucket was never written");
        return 0;
    }
    if (l.v < least || l.v < born)
        report_problem(&l, "the bucket has an older version than its partition");
    if (l.v > d + 1) /* one more doubling may have begun after the root word was read */
        report_problem(&l, "the bucket has a later version than its partition");
    int err = check_versions(&l);
    return err < 0 ? err : st->inlined ? check_inline_keys(&l) : check_pointer_keys(&l);
}
