/* The work of a doubling, divided into chunks of buckets. In GROW the sweep splits buckets, and in DRAIN the drain
 * empties levels 2 and 3 of the previous generation (restructure_drain.c). A handle takes chunks by incrementing a
 * shared cursor. After the cursor has given out all chunks, handles take the chunks that are not marked done, because
 * their clients may have failed. Inserts take steps of this work, and housekeeping continues it where no client
 * inserts.
 *
 * Most buckets need no work when the sweep reaches them, because writers have already split them. A step therefore
 * reads many headers in one batch and works on the first bucket that needs work. A header at version d proves that the
 * split is finished, even if the header was read long ago: a bucket's version never decreases under one directory, and
 * the header is the last word that a split writes. */
#include "base/error.h"
#include "index/shard/shard.h"
#include "pool/epoch/epoch.h"

enum {
    SPLIT_TRIPS = 3,
    TAKE_TRIPS = 3, /* round trips to take a chunk, or to enter the next phase */
    LOOK_TRIPS = 2,
    MAX_BACKOFF = 255,
};


static uint64_t parent_count(const shard_state *st, unsigned d) {
    return 1ull << (st->b + d - 1);
}


/* ---- Sweep ---- */

/* Sweeps one bucket of the inline layout: takes the lock and splits the bucket unless another client has split it.
 * Returns 1 if the bucket is split, and 0 if it could not be locked. The child's address is determined before the lock
 * is taken: without a child the split would fail, and the lock would delay other clients for nothing. */
static int sweep_inline_bucket(far_task *t, far_index *index, shard_partition *part, shard_image *image, unsigned d) {
    shard_op op = {.t = t, .index = index, .st = shard_state_of(index), .part = part};
    far_addr child;
    uint64_t seen;
    int err = shard_i_child_addr(t, op.st, part, image->bucket, d, &child);
    if (err < 0 || (err = shard_i_lock(&op, image, &seen, NULL)) < 0)
        return err;
    if (err == 0)
        err = shard_i_recover_lock(t, index, part, image, seen);
    else if (err == 1 && shard_header_v(image->w[SHARD_I_H]) + 1 == d)
        return shard_i_split(&op, image, NULL);
    else if (err == 1)
        return (err = shard_i_unlock(&op, image)) < 0 ? err : 1;
    return err < 0 ? err : 0;
}


static int sweep_pointer_bucket(far_task *t, far_index *index, shard_partition *part, shard_image *image, unsigned d,
                                bool graced) {
    far_read(t, image->addr, image->w, SHARD_BUCKET_BYTES);
    int err = far_wait(t);
    if (err < 0)
        return err;
    uint64_t header = image->w[SHARD_P_HEADER];
    if (shard_header_v(header) >= d)
        return 1;
    if (shard_header_owner(header)) {
        err = shard_p_recover_lock(t, index, part, image);
        return err < 0 ? err : 0;
    }
    return shard_p_split(t, index, part, d, graced, image, NULL);
}


/* Splits a bucket that was seen at version d-1. Returns 1 if the bucket is split, and 0 if another client holds the
 * lock of the bucket. */
static int sweep_bucket(far_task *t, far_index *index, shard_partition *part, uint64_t root, uint64_t bucket) {
    shard_state *st = shard_state_of(index);
    bool graced = shard_grace_is_over(t, st, root);
    shard_image *image = far_scratch(t, sizeof(*image));
    if (!image)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a bucket");
    image->bucket = bucket;
    int err = shard_bucket_addr(t, st, part, bucket, &image->addr);
    if (err < 0 || image->addr == 0)
        return err;
    return st->inlined ? sweep_inline_bucket(t, index, part, image, shard_root_d(root))
                       : sweep_pointer_bucket(t, index, part, image, shard_root_d(root), graced);
}


/* Reads the headers of the next buckets of the chunk in one batch. Returns 0 or an error. */
static int read_headers(far_task *t, shard_state *st, shard_partition *part, uint64_t *header, uint64_t count) {
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
    uint64_t header[SHARD_BATCH_BUCKETS], left = part->end - part->next,
                                          count = left < SHARD_BATCH_BUCKETS ? left : SHARD_BATCH_BUCKETS, i = 0;
    int err = read_headers(t, st, part, header, count);
    if (err < 0) {
        part->next = part->end; /* the READ failed, so the rest of this chunk is skipped and not marked done */
        return err;
    }
    while (i < count && shard_header_v(header[i]) >= d && header[i] != 0)
        i++;
    part->next += i;
    if (i == count)
        return 1;
    far_point(t, "shard:migrate_bucket");
    uint64_t bucket = part->next++;
    if (header[i] == 0 || shard_header_v(header[i]) + 1 != d)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': a bucket is two versions older than its partition", index->name);
    *trips -= SPLIT_TRIPS;
    return sweep_bucket(t, index, part, root, bucket);
}


/* ---- A split after a get ---- */

typedef struct split_request {
    shard_partition *part;
    uint64_t bucket;
} split_request;


static void split_in_background(far_task *t, far_index *index, void *arg) {
    const split_request *m = arg;
    uint64_t root = atomic_load_explicit(&m->part->root, memory_order_acquire);
    if (shard_root_phase(root) == SHARD_GROW)
        sweep_bucket(t, index, m->part, root, m->bucket);
}


void shard_split_after_read(shard_op *op) {
    if (op->st->move_on_read && op->phase == SHARD_GROW && shard_main_version(op) + 1 == op->d)
        far_index_spawn(op->t, op->index, split_in_background, &(split_request){op->part, op->main->bucket},
                        sizeof(split_request));
}


/* ---- Chunks ---- */

static void begin_chunk(const shard_state *st, shard_partition *part, unsigned d, uint64_t chunk) {
    uint64_t parents = parent_count(st, d);
    part->chunk = chunk;
    part->has_chunk = true;
    part->chunk_failed = false;
    part->next = chunk * shard_chunk_size(parents);
    part->end = part->next + shard_chunk_size(parents);
    if (part->end > parents)
        part->end = parents;
}


/* Called after the cursor has given out all chunks: takes a chunk that is not marked done. Returns 1 if a chunk was
 * taken. If all chunks are done, enters the next phase and returns 0. */
static int take_unfinished_chunk(far_task *t, far_index *index, shard_partition *part, uint64_t root,
                                 far_addr progress) {
    const shard_state *st = shard_state_of(index);
    unsigned d = shard_root_d(root);
    bool drain = shard_root_phase(root) == SHARD_DRAIN;
    uint64_t chunks = shard_chunk_count(parent_count(st, d));
    uint64_t *done = far_scratch(t, 8 * chunks), first = far_task_client(t) % chunks, i = 0;
    if (!done)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a progress table");
    far_read(t, progress + 8 * (SHARD_PROGRESS_DONE + (drain ? chunks : 0)), done, 8 * chunks);
    int err = far_wait(t);
    if (err < 0)
        return err;
    for (uint64_t n = 0; !drain && n < chunks; n++)
        if (done[n] == d)
            shard_note_chunk_done(part, d, n);
    while (i < chunks && done[(first + i) % chunks] == d)
        i++;
    if (i == chunks) {
        err = shard_enter_next_phase(t, index, part, root);
        return err < 0 ? err : 0;
    }
    begin_chunk(st, part, d, (first + i) % chunks);
    return 1;
}


/* Takes a chunk from the cursor, or an unfinished chunk of another handle. Returns 1 if a chunk was taken, and 0 if all
 * chunks are done and the next phase was entered. */
static int take_chunk(far_task *t, far_index *index, shard_partition *part, uint64_t root, far_addr progress) {
    const shard_state *st = shard_state_of(index);
    uint64_t chunk;
    if (!part->cursor_through) {
        bool drain = shard_root_phase(root) == SHARD_DRAIN;
        far_faa(t, progress + 8 * (drain ? SHARD_PROGRESS_DRAIN : SHARD_PROGRESS_SWEEP), 1, &chunk);
        int err = far_wait(t);
        if (err < 0)
            return err;
        if (chunk < shard_chunk_count(parent_count(st, shard_root_d(root)))) {
            begin_chunk(st, part, shard_root_d(root), chunk);
            return 1;
        }
        part->cursor_through = true;
    }
    return take_unfinished_chunk(t, index, part, root, progress);
}


/* If the handle has completed its chunk, marks this chunk done and, in the same round trip, takes the next chunk by the
 * cursor. Returns 1 if a chunk was taken, 0 if not, or an error. */
static int mark_chunk_done(far_task *t, far_index *index, shard_partition *part, uint64_t root, far_addr progress) {
    const shard_state *st = shard_state_of(index);
    unsigned d = shard_root_d(root);
    bool drain = shard_root_phase(root) == SHARD_DRAIN;
    uint64_t chunks = shard_chunk_count(parent_count(st, d)), done = d, chunk = chunks;
    bool whole = part->has_chunk && !part->chunk_failed;
    part->has_chunk = false;
    if (!whole)
        return 0;
    part->work_backoff = 0;
    if (!drain)
        shard_note_chunk_done(part, d, part->chunk);
    far_point(t, "shard:record_chunk_done");
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


/* Returns the root word without its stamp. The rest is version, phase and directory, which identify the work that a
 * chunk belongs to. */
static uint64_t root_without_stamp(uint64_t root) {
    return shard_root_next(root, shard_root_d(root), shard_root_phase(root), false, 0);
}


static void forget_chunk(shard_partition *part, uint64_t root, uint32_t directories_seen) {
    part->chunk_state = root_without_stamp(root);
    part->chunk_directory = directories_seen;
    part->next = part->end = part->finite_chain = 0;
    part->has_chunk = part->cursor_through = false;
    part->work_skip = part->work_backoff = 0;
}


/* Takes one step. *trips is the approximate number of round trips that the step may take; the function subtracts the
 * number that the step took. Returns 1 if the step made progress, and 0 if there was no work or the step must wait. */
static int run_step(far_task *t, far_index *index, shard_partition *part, int *trips) {
    uint64_t root = atomic_load_explicit(&part->root, memory_order_acquire);
    far_addr progress;
    int err;
    if (!shard_root_doubles(root))
        return 0;
    if (!shard_root_stamped(root))
        return shard_set_stamp(t, part, root);
    if (!shard_grace_is_over(t, shard_state_of(index), root))
        far_epoch_request(far_task_pool(t));
    uint32_t directories_seen = atomic_load_explicit(&part->directories_seen, memory_order_relaxed);
    if (part->chunk_state != root_without_stamp(root) || part->chunk_directory != directories_seen)
        forget_chunk(part, root, directories_seen);
    if (part->work_skip > 0) {
        part->work_skip--;
        return 0;
    }
    if ((err = shard_progress_addr(t, part, shard_root_d(root), &progress)) < 0)
        return err;
    if (progress == 0)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': a progress table is missing", index->name);
    if (part->next == part->end) {
        *trips -= TAKE_TRIPS;
        if ((err = mark_chunk_done(t, index, part, root, progress)) == 0)
            err = take_chunk(t, index, part, root, progress);
        if (err <= 0 || *trips <= LOOK_TRIPS)
            return err < 0 ? err : 1;
    }
    far_point(t, "shard:work_on_chunk");
    *trips -= LOOK_TRIPS;
    int did = shard_root_phase(root) == SHARD_GROW ? sweep_step(t, index, part, root, trips)
                                                   : shard_drain_step(t, index, part, shard_root_d(root), trips);
    if (did <= 0)
        part->chunk_failed = true;
    return did;
}


/* Called when the work cannot continue for lack of memory: the next steps are skipped. The number of skipped steps
 * doubles with each consecutive failure. Meanwhile, deletes and other indexes may free memory. */
static void back_off_work(shard_partition *part) {
    part->work_backoff = part->work_backoff < MAX_BACKOFF / 2 ? 2 * part->work_backoff + 1 : MAX_BACKOFF;
    part->work_skip = part->work_backoff;
}


int shard_resize_step(far_task *t, far_index *index, shard_partition *part, int *trips) {
    if (atomic_flag_test_and_set_explicit(&part->working, memory_order_acquire))
        return 0;
    far_scratch_mark mark = far_scratch_here(t);
    int err = run_step(t, index, part, trips);
    if (err == FAR_ERR_NO_MEMORY)
        back_off_work(part);
    far_scratch_back(t, mark);
    atomic_flag_clear_explicit(&part->working, memory_order_release);
    return err;
}
