/* The work of a doubling, shared out in chunks of buckets: the sweep (GROW) splits buckets, the drain (DRAIN, drain.c)
 * empties levels 2 and 3 of the generation before. A handle takes chunks by a cursor; when that is through, those that
 * are not marked done. Every insert pays a share, and housekeeping goes on where nobody inserts.
 *
 * Most buckets need nothing when the sweep comes: writers have split them. So a step looks at many headers in one batch
 * and works on the first bucket that needs it. That a header says d proves a finished split, however old the look is: a
 * version never goes back within a body, and the header is the last word that a split writes. */
#include "base/error.h"
#include "index/shard/shard.h"
#include "pool/epoch.h"

enum {
    SPLIT_TRIPS = 3,
    TAKE_TRIPS = 3, /* to take a chunk, or to go to the next phase */
    LOOK_TRIPS = 2,
    RESTS_MAX = 255,
};


static uint64_t parents_of(const shard_state *st, unsigned d) {
    return 1ull << (st->b + d - 1);
}


/* ---- Sweep ---- */

/* I: the lock, then the split if nobody was faster. 1: the bucket is split; 0: not now. Without a child there is nothing
 * to lock for: others that wait would take each other's locks for a change. */
static int split_inlined(far_task *t, far_index *index, shard_partition *part, shard_image *image, unsigned d) {
    shard_try y = {.t = t, .index = index, .st = shard_state_of(index), .part = part};
    far_addr child;
    uint64_t seen;
    int err = shard_i_child(t, y.st, part, image->bucket, d, &child);
    if (err < 0 || (err = shard_i_lock(&y, image, &seen, NULL)) < 0)
        return err;
    if (err == 0)
        err = shard_i_help(t, index, part, image, seen);
    else if (err == 1 && shard_header_v(image->w[SHARD_I_H]) + 1 == d)
        return shard_i_split(&y, image, NULL);
    else if (err == 1)
        return (err = shard_i_unlock(&y, image)) < 0 ? err : 1;
    return err < 0 ? err : 0;
}


static int split_pointers(far_task *t, far_index *index, shard_partition *part, shard_image *image, unsigned d,
                          bool graced) {
    far_read(t, image->addr, image->w, SHARD_BUCKET_BYTES);
    int err = far_wait(t);
    if (err < 0)
        return err;
    uint64_t header = image->w[SHARD_P_HEADER];
    if (shard_header_v(header) >= d)
        return 1;
    if (shard_header_owner(header)) {
        err = shard_p_help(t, index, part, image);
        return err < 0 ? err : 0;
    }
    return shard_p_split(t, index, part, d, graced, image, NULL);
}


/* A bucket that was seen at version d-1. 1: it is split; 0: somebody has its lock. */
static int sweep_bucket(far_task *t, far_index *index, shard_partition *part, uint64_t root, uint64_t bucket) {
    shard_state *st = shard_state_of(index);
    bool graced = shard_is_graced(t, st, root);
    shard_image *image = far_scratch(t, sizeof(*image));
    if (!image)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a bucket");
    image->bucket = bucket;
    int err = shard_bucket_addr(t, st, part, bucket, &image->addr);
    if (err < 0 || image->addr == 0)
        return err;
    return st->inlined ? split_inlined(t, index, part, image, shard_root_d(root))
                       : split_pointers(t, index, part, image, shard_root_d(root), graced);
}


/* The headers of the next buckets of the chunk, in one batch. */
static int look_at_headers(far_task *t, shard_state *st, shard_partition *part, uint64_t *header, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        far_addr addr;
        int err = shard_bucket_addr(t, st, part, part->next + i, &addr);
        if (err < 0)
            return err;
        if (addr == 0)
            return far_fail(FAR_ERR_CORRUPT, "a segment of a shard index is missing");
        far_read(t, addr + 8 * shard_header_at(st), &header[i], 8);
    }
    return far_wait(t);
}


static int sweep_step(far_task *t, far_index *index, shard_partition *part, uint64_t root, int *trips) {
    shard_state *st = shard_state_of(index);
    unsigned d = shard_root_d(root);
    uint64_t header[SHARD_LOOK], left = part->end - part->next, count = left < SHARD_LOOK ? left : SHARD_LOOK, i = 0;
    int err = look_at_headers(t, st, part, header, count);
    if (err < 0) {
        part->next = part->end; /* nothing is known of this chunk: on with another one */
        return err;
    }
    while (i < count && shard_header_v(header[i]) >= d && header[i] != 0)
        i++;
    part->next += i;
    if (i == count)
        return 1;
    far_point(t, "shard:sweep_looked");
    uint64_t bucket = part->next++;
    if (header[i] == 0 || shard_header_v(header[i]) + 1 != d)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': a bucket is two versions behind", index->name);
    *trips -= SPLIT_TRIPS;
    return sweep_bucket(t, index, part, root, bucket);
}


/* ---- A split after a get ---- */

typedef struct to_move {
    shard_partition *part;
    uint64_t bucket;
} to_move;


static void move_bucket(far_task *t, far_index *index, void *arg) {
    const to_move *m = arg;
    uint64_t root = atomic_load_explicit(&m->part->root, memory_order_acquire);
    if (shard_root_phase(root) == SHARD_GROW)
        sweep_bucket(t, index, m->part, root, m->bucket);
}


void shard_move_after_read(shard_try *y) {
    if (y->st->move_on_read && y->phase == SHARD_GROW && shard_home_v(y) + 1 == y->d)
        far_index_spawn(y->t, y->index, move_bucket, &(to_move){y->part, y->home->bucket}, sizeof(to_move));
}


/* ---- Chunks ---- */

static void begin_chunk(const shard_state *st, shard_partition *part, unsigned d, uint64_t chunk) {
    uint64_t parents = parents_of(st, d);
    part->chunk = chunk;
    part->has_chunk = true;
    part->chunk_failed = false;
    part->next = chunk * shard_chunk(parents);
    part->end = part->next + shard_chunk(parents);
    if (part->end > parents)
        part->end = parents;
}


/* The cursor is through: a chunk that is not marked done. 0: there is none, and the phase went on. */
static int take_left_over(far_task *t, far_index *index, shard_partition *part, uint64_t root, far_addr progress) {
    const shard_state *st = shard_state_of(index);
    unsigned d = shard_root_d(root);
    bool drain = shard_root_phase(root) == SHARD_DRAIN;
    uint64_t chunks = shard_chunks(parents_of(st, d));
    uint64_t *done = far_scratch(t, 8 * chunks), first = far_task_client(t) % chunks, i = 0;
    if (!done)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a progress table");
    far_read(t, progress + 8 * (SHARD_PROGRESS_DONE + (drain ? chunks : 0)), done, 8 * chunks);
    int err = far_wait(t);
    if (err < 0)
        return err;
    for (uint64_t n = 0; !drain && n < chunks; n++)
        if (done[n] == d)
            shard_learn_done(part, d, n);
    while (i < chunks && done[(first + i) % chunks] == d)
        i++;
    if (i == chunks) {
        err = shard_next_phase(t, index, part, root);
        return err < 0 ? err : 0;
    }
    begin_chunk(st, part, d, (first + i) % chunks);
    return 1;
}


/* 1: a chunk is taken; 0: none is left, and the phase went on. */
static int take_chunk(far_task *t, far_index *index, shard_partition *part, uint64_t root, far_addr progress) {
    const shard_state *st = shard_state_of(index);
    uint64_t chunk;
    if (!part->cursor_through) {
        bool drain = shard_root_phase(root) == SHARD_DRAIN;
        far_faa(t, progress + 8 * (drain ? SHARD_PROGRESS_DRAIN : SHARD_PROGRESS_SWEEP), 1, &chunk);
        int err = far_wait(t);
        if (err < 0)
            return err;
        if (chunk < shard_chunks(parents_of(st, shard_root_d(root)))) {
            begin_chunk(st, part, shard_root_d(root), chunk);
            return 1;
        }
        part->cursor_through = true;
    }
    return take_left_over(t, index, part, root, progress);
}


/* If there was a chunk, it is through: it is marked, and the next one taken with the same round trip. 1: that is taken.
 */
static int finish_chunk(far_task *t, far_index *index, shard_partition *part, uint64_t root, far_addr progress) {
    const shard_state *st = shard_state_of(index);
    unsigned d = shard_root_d(root);
    bool drain = shard_root_phase(root) == SHARD_DRAIN;
    uint64_t chunks = shard_chunks(parents_of(st, d)), done = d, chunk = chunks;
    bool whole = part->has_chunk && !part->chunk_failed;
    part->has_chunk = false;
    if (!whole)
        return 0;
    part->rests = 0;
    if (!drain)
        shard_learn_done(part, d, part->chunk);
    far_point(t, "shard:chunk_done");
    far_write(t, progress + 8 * (SHARD_PROGRESS_DONE + part->chunk + (drain ? chunks : 0)), &done, 8);
    if (!part->cursor_through)
        far_faa(t, progress + 8 * (drain ? SHARD_PROGRESS_DRAIN : SHARD_PROGRESS_SWEEP), 1, &chunk);
    int err = far_wait(t);
    if (err < 0 || part->cursor_through)
        return err < 0 ? err : 0;
    part->cursor_through = chunk >= chunks;
    if (chunk < chunks)
        begin_chunk(st, part, d, chunk);
    return chunk < chunks;
}


/* Of which version, phase and body a chunk is. */
static uint64_t work_of(uint64_t root) {
    return shard_root_next(root, shard_root_d(root), shard_root_phase(root), false, 0);
}


static void forget_chunk(shard_partition *part, uint64_t root, uint32_t bodies) {
    part->work = work_of(root);
    part->work_body = bodies;
    part->next = part->end = part->ends = 0;
    part->has_chunk = part->cursor_through = false;
    part->rest = part->rests = 0;
}


/* *trips: round trips that it may take, about; what it took is subtracted. 1: something was done; 0: nothing to do, or
 * it must wait. */
static int work_step(far_task *t, far_index *index, shard_partition *part, int *trips) {
    uint64_t root = atomic_load_explicit(&part->root, memory_order_acquire);
    far_addr progress;
    int err;
    if (!shard_root_doubles(root))
        return 0;
    if (!shard_root_stamped(root))
        return shard_set_stamp(t, part, root);
    if (!shard_is_graced(t, shard_state_of(index), root))
        far_epoch_request(far_task_pool(t));
    uint32_t bodies = atomic_load_explicit(&part->bodies, memory_order_relaxed);
    if (part->work != work_of(root) || part->work_body != bodies)
        forget_chunk(part, root, bodies);
    if (part->rest > 0) {
        part->rest--;
        return 0;
    }
    if ((err = shard_progress_addr(t, part, shard_root_d(root), &progress)) < 0)
        return err;
    if (progress == 0)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': a progress table is missing", index->name);
    if (part->next == part->end) {
        *trips -= TAKE_TRIPS;
        if ((err = finish_chunk(t, index, part, root, progress)) == 0)
            err = take_chunk(t, index, part, root, progress);
        if (err <= 0 || *trips <= LOOK_TRIPS)
            return err < 0 ? err : 1;
    }
    far_point(t, "shard:work");
    *trips -= LOOK_TRIPS;
    int did = shard_root_phase(root) == SHARD_GROW ? sweep_step(t, index, part, root, trips)
                                                   : shard_drain_step(t, index, part, shard_root_d(root), trips);
    if (did <= 0)
        part->chunk_failed = true;
    return did;
}


/* Without memory the work cannot go on: the more often in a row, the longer it rests. Deletes, and other indexes, may
 * give some back at any time. */
static void rest(shard_partition *part) {
    part->rests = part->rests < RESTS_MAX / 2 ? 2 * part->rests + 1 : RESTS_MAX;
    part->rest = part->rests;
}


int shard_work(far_task *t, far_index *index, shard_partition *part, int *trips) {
    if (atomic_flag_test_and_set_explicit(&part->working, memory_order_acquire))
        return 0;
    far_scratch_mark mark = far_scratch_here(t);
    int err = work_step(t, index, part, trips);
    if (err == FAR_ERR_NO_MEMORY)
        rest(part);
    far_scratch_back(t, mark);
    atomic_flag_clear_explicit(&part->working, memory_order_release);
    return err;
}
