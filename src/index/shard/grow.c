/* Growing. STABLE(d-1) -> GROW(d) -> DRAIN(d) -> STABLE(d): each arrow is one CAS on the root word, by anybody; nobody
 * holds a lock. GROW: buckets are split, by whoever writes to one and by the sweep. DRAIN: what lies at levels 2 and 3
 * of the generation before goes up. Every insert pays a share of both, and housekeeping goes on where nobody inserts.
 */
#include "index/shard/shard.h"
#include "pool/clients.h"
#include "pool/epoch.h"
#include "runtime/error.h"

enum { SHARE = 16, SHARE_INLINE = 12, GRACE = 2, IDLE_STEPS = 8, SAMPLES = 512, LEVEL_1_SHARE = 984 };


bool shard_is_graced(const far_task *t, const shard_state *st, uint64_t root) {
    return st->grace && shard_root_stamped(root) && far_epoch_safe(t) >= shard_root_stamp(root) + GRACE;
}


static far_addr root_addr(const shard_partition *part) {
    return part->pcb + 8 * SHARD_PCB_ROOT;
}


static int move_root(far_task *t, shard_partition *part, uint64_t from, uint64_t to) {
    uint64_t old;
    int err = far_cas_word(t, root_addr(part), from, to, &old);
    if (err >= 0)
        shard_learn_root(part, old == from ? to : old);
    return err < 0 ? err : old == from;
}


/* The epoch is read after the doubling is visible: whoever pins later than that, knows of it. */
static int set_stamp(far_task *t, shard_partition *part, uint64_t root) {
    uint64_t epoch;
    int err = far_epoch_read(t, &epoch);
    if (err < 0)
        return err;
    far_point(t, "shard:stamp");
    err = move_root(t, part, root, shard_root(shard_root_d(root), SHARD_GROW, true, epoch));
    far_epoch_request(far_task_pool(t));
    return err;
}


/* A doubling that is due; once it is there, by whomever, nothing is left of the wish. */
void shard_want(shard_partition *part, unsigned version) {
    uint32_t wanted = atomic_load_explicit(&part->wanted, memory_order_relaxed);
    while (wanted < version && !atomic_compare_exchange_weak_explicit(&part->wanted, &wanted, version,
                                                                      memory_order_relaxed, memory_order_relaxed))
        ;
}


static uint64_t slots_of(const shard_state *st, unsigned d) {
    return (uint64_t)(st->slots + st->l2_slots) << (st->b + d);
}


static bool may_double(const shard_state *st, unsigned d) {
    if (st->inlined)
        return d < SHARD_VERSIONS && st->p + st->b + d < st->hash_bits;
    return d < SHARD_VERSIONS && shard_tag_low(st->p, st->b, d) + SHARD_TAG_BITS <= 64;
}


int shard_try_grow(far_task *t, far_index *index, shard_partition *part) {
    shard_state *st = shard_state_of(index);
    uint64_t root = atomic_load_explicit(&part->root, memory_order_acquire);
    unsigned d = shard_root_d(root) + 1;
    if (shard_root_phase(root) != SHARD_STABLE || !may_double(st, d))
        return 0;
    if (far_epoch_safe(t) < shard_root_stamp(root) + GRACE && d > 1) { /* an operation sees one doubling at most */
        far_epoch_request(far_task_pool(t));
        return 0;
    }
    int err = shard_make_segment(t, index, part, d);
    if (err <= 0)
        return err;
    far_point(t, "shard:grow");
    root = atomic_load_explicit(&part->root, memory_order_acquire);
    if (shard_root_d(root) + 1 != d || shard_root_phase(root) != SHARD_STABLE)
        return 0;
    if ((err = move_root(t, part, root, shard_root(d, SHARD_GROW, false, 0))) <= 0)
        return err;
    shard_count(&st->counters.grows);
    return set_stamp(t, part, shard_root(d, SHARD_GROW, false, 0));
}


/* Sweep and drain, chunk by chunk. */

static uint64_t parents_of(const shard_state *st, unsigned d) {
    return 1ull << (st->b + d - 1);
}


/* The lock, then the split if nobody was faster. */
static int sweep_inlined(far_task *t, far_index *index, shard_partition *part, shard_image *image) {
    shard_state *st = shard_state_of(index);
    shard_try y = {.t = t, .index = index, .st = st, .part = part};
    unsigned v = shard_header_v(image->w[SHARD_I_H]);
    uint64_t seen;
    int err = shard_i_lock(&y, image, &seen);
    if (err == 0)
        err = shard_i_help(t, index, part, image, seen);
    else if (err == 1 && shard_header_v(image->w[SHARD_I_H]) == v)
        return shard_i_split(&y, image, NULL);
    else if (err == 1)
        return (err = shard_i_unlock(&y, image)) < 0 ? err : 1;
    return err < 0 ? err : 0;
}


static int sweep_bucket(far_task *t, far_index *index, shard_partition *part, uint64_t root, uint64_t bucket) {
    shard_state *st = shard_state_of(index);
    unsigned d = shard_root_d(root);
    bool graced = shard_is_graced(t, st, root);
    shard_image *image = far_scratch(t, sizeof(*image));
    if (!image)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a bucket");
    image->bucket = bucket;
    int err = shard_bucket_addr(t, st, part, bucket, &image->addr);
    if (err < 0 || image->addr == 0)
        return err;
    far_read(t, image->addr, image->w, SHARD_BUCKET_BYTES);
    if ((err = far_wait(t)) < 0)
        return err;
    unsigned v = shard_header_v(image->w[shard_header_at(st)]);
    if (v >= d)
        return 1;
    if (v + 1 != d)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': a bucket is two versions behind", index->name);
    if (st->inlined)
        return sweep_inlined(t, index, part, image);
    if (shard_header_owner(image->w[SHARD_P_HEADER])) {
        err = shard_p_help(t, index, part, image);
        return err < 0 ? err : 0;
    }
    return shard_p_split(t, index, part, d, graced, image, NULL);
}


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


/* All chunks of the phase are done. */
static int next_phase(far_task *t, far_index *index, shard_partition *part, uint64_t root) {
    unsigned d = shard_root_d(root);
    bool drain = shard_root_phase(root) == SHARD_DRAIN;
    far_point(t, drain ? "shard:to_stable" : "shard:to_drain");
    int err = move_root(t, part, root, shard_root(d, drain ? SHARD_STABLE : SHARD_DRAIN, true, shard_root_stamp(root)));
    if (err == 1 && drain) {
        far_point(t, "shard:drop");
        err = shard_drop_overflow(t, index, part, d - 1);
    }
    return err;
}


/* The next chunk by the cursor; when that is through, one that is not done yet. 0: none is left, and the phase went on.
 */
static int take_chunk(far_task *t, far_index *index, shard_partition *part, uint64_t root) {
    const shard_state *st = shard_state_of(index);
    unsigned d = shard_root_d(root);
    bool drain = shard_root_phase(root) == SHARD_DRAIN;
    uint64_t chunks = shard_chunks(parents_of(st, d)), chunk;
    far_addr progress;
    int err = shard_progress_addr(t, part, d, &progress);
    if (err < 0 || progress == 0)
        return err < 0 ? err : far_fail(FAR_ERR_CORRUPT, "index '%s': a progress table is missing", index->name);
    far_faa(t, progress + 8 * (drain ? SHARD_PROGRESS_DRAIN : SHARD_PROGRESS_SWEEP), 1, &chunk);
    if ((err = far_wait(t)) < 0)
        return err;
    if (chunk >= chunks) {
        uint64_t *done = far_scratch(t, 8 * chunks), first = far_task_client(t) % chunks, i = 0;
        if (!done)
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for a progress table");
        far_read(t, progress + 8 * (SHARD_PROGRESS_DONE + (drain ? chunks : 0)), done, 8 * chunks);
        if ((err = far_wait(t)) < 0)
            return err;
        for (uint64_t n = 0; !drain && n < chunks; n++)
            if (done[n] == d)
                shard_learn_done(part, d, n);
        while (i < chunks && done[(first + i) % chunks] == d)
            i++;
        if (i == chunks) {
            err = next_phase(t, index, part, root);
            return err < 0 ? err : 0;
        }
        chunk = (first + i) % chunks;
    }
    part->chunk = chunk;
    part->chunk_failed = false;
    part->next = chunk * shard_chunk(parents_of(st, d));
    part->end = part->next + shard_chunk(parents_of(st, d));
    if (part->end > parents_of(st, d))
        part->end = parents_of(st, d);
    return 1;
}


static int finish_chunk(far_task *t, far_index *index, shard_partition *part, uint64_t root) {
    const shard_state *st = shard_state_of(index);
    unsigned d = shard_root_d(root);
    uint64_t chunks = shard_chunks(parents_of(st, d)),
             at = part->chunk + (shard_root_phase(root) == SHARD_DRAIN ? chunks : 0);
    far_addr progress;
    int err = shard_progress_addr(t, part, d, &progress);
    if (err < 0 || progress == 0 || part->chunk_failed)
        return err;
    if (shard_root_phase(root) == SHARD_GROW)
        shard_learn_done(part, d, part->chunk);
    return far_write_word(t, progress + 8 * (SHARD_PROGRESS_DONE + at), d);
}


/* One bucket. 1: something was done; 0: nothing to do, or it must wait. */
static int work_step(far_task *t, far_index *index, shard_partition *part) {
    uint64_t root = atomic_load_explicit(&part->root, memory_order_acquire);
    int err;
    if (shard_root_phase(root) == SHARD_STABLE)
        return 0;
    if (!shard_root_stamped(root))
        return set_stamp(t, part, root);
    if (!shard_is_graced(t, shard_state_of(index), root))
        far_epoch_request(far_task_pool(t));
    if (part->work_version != shard_root_d(root) || part->work_phase != shard_root_phase(root)) {
        part->work_version = shard_root_d(root);
        part->work_phase = shard_root_phase(root);
        part->next = part->end = 0;
    }
    if (part->next == part->end && (err = take_chunk(t, index, part, root)) <= 0)
        return err < 0 ? err : 1;
    far_point(t, "shard:work");
    uint64_t bucket = part->next++;
    if (shard_root_phase(root) == SHARD_GROW)
        err = sweep_bucket(t, index, part, root, bucket);
    else
        err = shard_drain(t, index, part, shard_root_d(root), bucket);
    if (err <= 0)
        part->chunk_failed = true;
    bool progress = err == 1;
    if (err >= 0 && part->next == part->end)
        err = finish_chunk(t, index, part, root);
    return err < 0 ? err : progress;
}


int shard_work(far_task *t, far_index *index, shard_partition *part) {
    if (atomic_flag_test_and_set_explicit(&part->working, memory_order_acquire))
        return 0;
    far_scratch_mark mark = far_scratch_here(t);
    int err = work_step(t, index, part);
    far_scratch_back(t, mark);
    atomic_flag_clear_explicit(&part->working, memory_order_release);
    return err;
}


/* Load: told and looked at every so many writes, the fewer the closer it is to the bound (AFS). */

static uint32_t period(const shard_state *st, const shard_partition *part, unsigned d) {
    uint64_t slots = slots_of(st, d), least = slots / 16 < 1 ? 1 : slots / 16 > 64 ? 64 : slots / 16;
    int64_t count = atomic_load_explicit(&part->count, memory_order_relaxed);
    if (st->afs)
        return st->afs;
    uint64_t bound = slots * st->load / 100, room = count < 0                 ? bound
                                                    : (uint64_t)count < bound ? bound - (uint64_t)count
                                                                              : 0;
    unsigned clients = atomic_load_explicit(&st->clients, memory_order_relaxed);
    uint64_t writes = room * st->alpha / 1000 / (clients ? clients : 1);
    return writes < least ? (uint32_t)least : writes > 1u << 20 ? 1u << 20 : (uint32_t)writes;
}


static int look_at_load(far_task *t, shard_partition *part) {
    int64_t delta = atomic_exchange_explicit(&part->delta, 0, memory_order_relaxed);
    uint64_t count, root;
    far_faa(t, part->pcb + 8 * SHARD_PCB_COUNT, (uint64_t)delta, &count);
    far_read(t, root_addr(part), &root, 8);
    int err = far_wait(t);
    if (err < 0)
        return err;
    shard_learn_root(part, root);
    atomic_store_explicit(&part->count, (int64_t)count + delta, memory_order_relaxed);
    return 0;
}


/* By the load as it was looked at last, so that keys which are deleted before the doubling could begin take the wish
 * back; or because somebody asked for it. */
bool shard_is_due(const shard_state *st, const shard_partition *part, unsigned version) {
    int64_t keys = atomic_load_explicit(&part->count, memory_order_relaxed);
    return atomic_load_explicit(&part->wanted, memory_order_relaxed) >= version ||
           (!st->sampling && keys > 0 && (uint64_t)keys * 100 >= slots_of(st, version - 1) * st->load);
}


/* No memory: not again before somebody asks for it, or the load is looked at. */
static void put_off(shard_partition *part) {
    atomic_store_explicit(&part->wanted, 0, memory_order_relaxed);
    atomic_store_explicit(&part->count, 0, memory_order_relaxed);
}


/* load_by=sample: the mean over the buckets that inserts have read says how full the partition is; nothing is counted,
 * nothing is told. Level 2 is not seen: it has as large a share of the keys as when the load is at its bound. */
void shard_sample(shard_try *y) {
    const shard_state *st = y->st;
    uint64_t slots = slots_of(st, y->d), wanted = slots / 64 < 8 ? 8 : slots / 64 > SAMPLES ? SAMPLES : slots / 64;
    if (!st->sampling || y->phase != SHARD_STABLE || shard_home_v(y) != y->d)
        return;
    uint64_t live = 1; /* the one that was inserted */
    for (unsigned i = st->inlined; i < SHARD_P_SLOTS; i += 1 + st->inlined)
        live += shard_is_live(y->home->w[i]);
    uint64_t old = atomic_load_explicit(&y->part->sample, memory_order_relaxed), sum, seen;
    do { /* what was seen before the last doubling says nothing of the load now */
        sum = (old >> 56 == y->d ? old : (uint64_t)y->d << 56) + (1ull << 32 | live);
        seen = shard_bits(sum, 32, 24);
    } while (!atomic_compare_exchange_weak_explicit(&y->part->sample, &old, seen < wanted ? sum : 0,
                                                    memory_order_relaxed, memory_order_relaxed));
    if (seen < wanted)
        return;
    if ((sum & UINT32_MAX) * 1000 >= seen * (st->slots + st->l2_slots) * st->load * LEVEL_1_SHARE / 100)
        shard_want(y->part, y->d + 1);
}


/* Sweep and drain take two shares of each of the 2^(b+d-1) parents: they end before the load, which grows by 56.8 keys
 * a parent (I: 26.2), asks for the next doubling. After an operation has taken effect:
 * nothing here can make it fail. */
void shard_after_write(far_task *t, far_index *index, shard_partition *part, int delta) {
    shard_state *st = shard_state_of(index);
    unsigned d = shard_root_d(atomic_load_explicit(&part->root, memory_order_relaxed));
    if (delta && !st->sampling)
        atomic_fetch_add_explicit(&part->delta, delta, memory_order_relaxed);
    uint32_t writes =
        delta && !st->sampling ? atomic_fetch_add_explicit(&part->writes, 1, memory_order_relaxed) + 1 : 0;
    if (writes && writes >= period(st, part, d)) {
        atomic_store_explicit(&part->writes, 0, memory_order_relaxed);
        if (look_at_load(t, part) < 0)
            return;
    }
    if (delta <= 0)
        return;
    uint64_t root = atomic_load_explicit(&part->root, memory_order_acquire);
    uint32_t inserts = atomic_fetch_add_explicit(&part->inserts, 1, memory_order_relaxed);
    if (shard_root_phase(root) != SHARD_STABLE) {
        if (inserts % (!st->lazy ? 1 : st->inlined ? SHARE_INLINE : SHARE) == 0)
            shard_work(t, index, part);
    } else if (shard_is_due(st, part, shard_root_d(root) + 1)) {
        far_scratch_mark mark = far_scratch_here(t);
        if (shard_try_grow(t, index, part) == FAR_ERR_NO_MEMORY)
            put_off(part);
        far_scratch_back(t, mark);
    }
}


int shard_epoch_hook(far_task *t, far_index *index, uint64_t epoch) {
    shard_state *st = shard_state_of(index);
    uint64_t count = 1ull << st->p;
    (void)epoch;
    far_scratch_mark mark = far_scratch_here(t);
    uint64_t *words = far_scratch(t, count * 16);
    if (!words)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for the roots of a shard index");
    for (uint64_t i = 0; i < count; i++)
        far_read(t, root_addr(&st->part[i]), &words[2 * i], 16);
    int err = far_wait(t);
    for (uint64_t i = 0; err >= 0 && i < count; i++) {
        shard_learn_root(&st->part[i], words[2 * i]);
        atomic_store_explicit(&st->part[i].count, (int64_t)words[2 * i + 1], memory_order_relaxed);
    }
    unsigned clients;
    if (err >= 0 && (err = far_clients_live(t, &clients)) >= 0)
        atomic_store_explicit(&st->clients, clients, memory_order_relaxed);
    far_scratch_back(t, mark);
    return err < 0 ? err : 0;
}


int shard_idle_hook(far_task *t, far_index *index) {
    shard_state *st = shard_state_of(index);
    int more = 0;
    for (uint64_t i = 0; st->idle_sweep && i < 1ull << st->p; i++) {
        shard_partition *part = &st->part[i];
        if (shard_root_phase(atomic_load_explicit(&part->root, memory_order_acquire)) == SHARD_STABLE)
            continue;
        uint32_t inserts = atomic_load_explicit(&part->inserts, memory_order_relaxed);
        if (atomic_exchange_explicit(&part->idle_seen, inserts, memory_order_relaxed) != inserts)
            continue; /* not idle: the inserts do it */
        int err = 1;
        for (unsigned step = 0; err == 1 && step < IDLE_STEPS; step++)
            err = shard_work(t, index, part);
        if (err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE)
            return err;
        more |= err == 1;
    }
    return more;
}
