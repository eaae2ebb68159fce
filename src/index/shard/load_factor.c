/* The load of a partition, and the decision when the partition doubles. shard_after_change is called after every write,
 * and housekeeping calls shard_publish_counts.
 *
 * Each handle counts the keys that it adds and removes, and adds this number to the count in the control block (it
 * publishes the number) after some writes. The number of writes between two publications decreases as the partition
 * fills (adaptive frequency synchronization, AFS, of the paper). In addition, a handle takes a sample of the buckets
 * that its inserts have read, and publishes at once when the partition seems full.
 *
 * The count is advisory: changes that a handle has not published when it fails are missing from the count forever.
 * Therefore a client reads some buckets before it begins a doubling, and corrects the count if the count differs much
 * from the number of keys that these buckets indicate. */
#include "base/error.h"
#include "index/shard/shard.h"
#include "pool/epoch/epoch.h"

#include <string.h>

enum {
    MAX_PASSED_ON = 4, /* maximal number of consecutive inserts that leave a due doubling to the next insert */
    STEP_TRIPS = 5,    /* approximate round trips of a step of sweep or drain that an insert takes */
    LATE_TRIPS = 20,   /* approximate round trips of sweep and drain for an insert that placed its key at level 3 */
    NODE_TRIPS = 4,    /* additional round trips of sweep and drain for each chain node that the insert passed */
    LEAD = 16,         /* approximate number of keys that a client inserts while a doubling is prepared */
    MIN_SAMPLES = 8,
    MAX_SAMPLES = 512,
    LEVEL_1_SHARE = 984,   /* thousandths of the keys that are at level 1 when the load is at its bound */
    MAX_BACKOFF = 255,     /* maximal number of attempts to double that are skipped for lack of memory */
    ESTIMATE_BUCKETS = 16, /* number of buckets that are read to estimate the load before a doubling */
    CLAIM_SKIP = 8,        /* number of attempts that are skipped while another handle prepares the doubling */
};


/* limits d to the possible versions, because d may come from a corrupt root word */
static uint64_t slot_count(const shard_state *st, unsigned d) {
    return (uint64_t)(st->slots + st->l2_slots) << (st->b + (d < SHARD_VERSIONS ? d : SHARD_VERSIONS - 1));
}


static unsigned client_count(const shard_state *st) {
    unsigned clients = atomic_load_explicit(&st->clients, memory_order_relaxed);
    return clients ? clients : 1;
}


/* Returns the number of keys at which a partition must double. It follows from the maximal load. It is lower if there
 * are many clients per partition, because these clients continue to insert while the doubling is prepared and until the
 * next doubling may begin. With a fixed publication period (option `afs`) the bound is not lowered, because then the
 * user decides how often the load is checked. */
static uint64_t doubling_bound(const shard_state *st, unsigned d) {
    uint64_t bound = (slot_count(st, d) * st->load + 99) / 100;
    uint64_t lead = st->afs || st->sampling ? 0 : (uint64_t)(client_count(st) - 1) * LEAD >> st->p;
    return bound - (lead < bound / 2 ? lead : bound / 2);
}


int64_t shard_known_keys(const shard_partition *part) {
    return atomic_load_explicit(&part->count, memory_order_relaxed) +
           atomic_load_explicit(&part->delta, memory_order_relaxed);
}


/* Returns true if the count is so low that the partition may be empty. The count is advisory. If the index has no
 * count, or publishes it rarely, any partition may be empty, so the result is true. */
bool shard_has_few_keys(const shard_state *st, const shard_partition *part, unsigned d) {
    return st->sampling || st->afs || shard_known_keys(part) < (int64_t)(slot_count(st, d) / 4);
}


/* ---- Publishing ---- */

static uint32_t publish_period(const shard_state *st, const shard_partition *part, unsigned d) {
    uint64_t slots = slot_count(st, d), least = slots / 16 < 1 ? 1 : slots / 16 > 64 ? 64 : slots / 16;
    int64_t count = atomic_load_explicit(&part->count, memory_order_relaxed), bound = (int64_t)doubling_bound(st, d);
    if (st->afs)
        return st->afs;
    uint64_t room = count < 0 ? (uint64_t)bound : count < bound ? (uint64_t)(bound - count) : 0;
    uint64_t writes = room * st->alpha / 1000 / client_count(st);
    return writes < least ? (uint32_t)least : writes > 1u << 20 ? 1u << 20 : (uint32_t)writes;
}


/* Returns true if the partition may have reached its bound when the unpublished changes of other clients are included.
 * With few clients per partition the result is false, because then the count is accurate enough, and at any time some
 * buckets are fuller than the mean. */
static bool partition_may_be_full(const shard_state *st, const shard_partition *part, unsigned d) {
    int64_t known = shard_known_keys(part);
    int64_t unpublished = (int64_t)(client_count(st) - 1) * publish_period(st, part, d);
    uint32_t inserts = atomic_load_explicit(&part->inserts, memory_order_relaxed),
             trusted = atomic_load_explicit(&part->no_suspicion_until, memory_order_relaxed);
    return client_count(st) >> st->p && (int32_t)(inserts - trusted) >= 0 &&
           known + unpublished >= (int64_t)doubling_bound(st, d);
}


static int publish_and_read_count(far_task *t, shard_partition *part) {
    int64_t delta = atomic_exchange_explicit(&part->delta, 0, memory_order_relaxed);
    uint64_t count, root;
    far_faa(t, part->pcb + 8 * SHARD_PCB_COUNT, (uint64_t)delta, &count);
    far_read(t, part->pcb + 8 * SHARD_PCB_ROOT, &root, 8);
    int err = far_wait(t);
    if (err < 0)
        return err;
    shard_learn_root(part, root);
    atomic_store_explicit(&part->count, (int64_t)count + delta, memory_order_relaxed);
    return 0;
}


/* Publishes the counts that have not changed since the previous call, in one batch, so that a handle that stops writing
 * has published everything. With a fixed period nothing is published here, because the period decides. */
int shard_publish_counts(far_task *t, far_index *index) {
    shard_state *st = shard_state_of(index);
    uint64_t count = 1ull << st->p, put = 0;
    struct pending_count {
        shard_partition *part;
        int64_t delta;
        uint64_t old;
    } *pending_count = far_scratch(t, sizeof(*pending_count) * count);
    if (!pending_count)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for counts");
    for (uint64_t i = 0; i < count; i++) {
        shard_partition *part = &st->part[i];
        uint32_t writes = atomic_load_explicit(&part->writes, memory_order_relaxed);
        part->quiet = writes == part->writes_at_idle;
        part->writes_at_idle = writes;
        if (!part->quiet || st->afs || atomic_load_explicit(&part->delta, memory_order_relaxed) == 0)
            continue;
        struct pending_count *published = &pending_count[put++];
        published->part = part;
        published->delta = atomic_exchange_explicit(&part->delta, 0, memory_order_relaxed);
        far_faa(t, part->pcb + 8 * SHARD_PCB_COUNT, (uint64_t)published->delta, &published->old);
    }
    int err = put ? far_wait(t) : 0;
    for (uint64_t i = 0; err >= 0 && i < put; i++)
        atomic_store_explicit(&pending_count[i].part->count, (int64_t)pending_count[i].old + pending_count[i].delta,
                              memory_order_relaxed);
    return err;
}


/* ---- Samples ---- */

/* Adds the bucket that an insert has read to the sample. The mean number of keys in these buckets indicates the load.
 * Level 2 is not sampled: the function assumes that level 2 has the same share of the keys as when the load is at its
 * bound (LEVEL_1_SHARE). Returns true if the sample is large enough and the partition seems full. */
static bool add_sample(shard_op *op) {
    const shard_state *st = op->st;
    uint64_t share = slot_count(st, op->d) / 64 / (st->sampling ? 1 : client_count(st));
    uint64_t wanted = share < MIN_SAMPLES ? MIN_SAMPLES : share > MAX_SAMPLES ? MAX_SAMPLES : share;
    if (op->phase != SHARD_STABLE || shard_main_version(op) != op->d)
        return false;
    /* The sample counts half keys: two for each key, and one for the insert itself. The latter accounts for keys that
     * were added since the sample began. */
    uint64_t live = 1 + 2 * shard_count_live(st, op->main->w);
    uint64_t old = atomic_load_explicit(&op->part->sample, memory_order_relaxed), sum, seen;
    do { /* Samples from before the last doubling do not describe the current load, so the sample begins again then. */
        sum = (old >> 56 == op->d ? old : (uint64_t)op->d << 56) + (1ull << 32 | live);
        seen = shard_bits(sum, 32, 24);
    } while (!atomic_compare_exchange_weak_explicit(&op->part->sample, &old, seen < wanted ? sum : 0,
                                                    memory_order_relaxed, memory_order_relaxed));
    if (seen < wanted)
        return false;
    return ((sum & UINT32_MAX) << (st->b + op->d)) * 500 >= seen * doubling_bound(st, op->d) * LEVEL_1_SHARE;
}


/* ---- Doubling ---- */

/* Records that the partition must double to `version`, even if the count is below the bound. The request has no effect
 * after the partition has reached that version. */
void shard_request_doubling(shard_partition *part, unsigned version) {
    uint32_t wanted = atomic_load_explicit(&part->requested, memory_order_relaxed);
    while (wanted < version && !atomic_compare_exchange_weak_explicit(&part->requested, &wanted, version,
                                                                      memory_order_relaxed, memory_order_relaxed))
        ;
}


static bool doubling_is_suspected(const shard_partition *part, unsigned version) {
    return atomic_load_explicit(&part->suspected, memory_order_relaxed) == version;
}


static bool doubling_is_requested(const shard_partition *part, unsigned version) {
    return atomic_load_explicit(&part->requested, memory_order_relaxed) >= version;
}


/* Returns true if a doubling to `version` is due, either because the count that this handle last read has reached the
 * bound, or because the doubling was requested or is suspected to be due. The function uses the newest count, so
 * deletes can withdraw a doubling that has not begun. */
bool shard_doubling_is_due(const shard_state *st, const shard_partition *part, unsigned version) {
    int64_t keys = atomic_load_explicit(&part->count, memory_order_relaxed);
    return doubling_is_requested(part, version) || doubling_is_suspected(part, version) ||
           (!st->sampling && keys > 0 && (uint64_t)keys >= doubling_bound(st, version - 1));
}


typedef struct sampled_bucket { /* a level-1 bucket, and the level-2 bucket with the same number */
    uint64_t w[SHARD_WORDS], line[SHARD_L2_BYTES / 8];
} sampled_bucket;


static uint64_t count_live_words(const shard_state *st, const uint64_t *w, unsigned count) {
    uint64_t live = 0;
    for (unsigned i = st->inlined; i < count; i += 1 + st->inlined)
        live += shard_is_live(w[i]);
    return live;
}


/* Estimates the number of keys by reading some buckets, or all buckets of a small partition, in one round trip. Returns
 * 0 or an error. */
int shard_estimate_keys(far_task *t, far_index *index, shard_partition *part, unsigned d, uint64_t *keys,
                        uint64_t *published) {
    shard_state *st = shard_state_of(index);
    uint64_t buckets = 1ull << (st->b + d), sampled = buckets < ESTIMATE_BUCKETS ? buckets : ESTIMATE_BUCKETS,
             stride = buckets / sampled, offset = far_task_random(t) % stride;
    sampled_bucket *seen = far_scratch(t, sampled * sizeof(*seen));
    far_addr at, line;
    if (!seen)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for buckets");
    int err = 0;
    line = 1; /* not 0: the first level-2 bucket shows whether there is a table */
    for (uint64_t i = 0; err >= 0 && i < sampled; i++) {
        uint64_t bucket = i * stride + offset;
        if (line && (err = shard_table_place(t, st, part, 2, d, SHARD_L2_BYTES * bucket, &line)) < 0)
            return err;
        if ((err = shard_bucket_addr(t, st, part, bucket, &at)) < 0)
            return err;
        memset(&seen[i], 0, sizeof(seen[i]));
        if (at)
            far_read(t, at, seen[i].w, SHARD_BUCKET_BYTES);
        if (line)
            far_read(t, line, seen[i].line, SHARD_L2_BYTES);
    }
    far_read(t, part->pcb + 8 * SHARD_PCB_COUNT, published, 8);
    if (err < 0 || (err = far_wait(t)) < 0)
        return err;
    *keys = 0;
    for (uint64_t i = 0; i < sampled; i++)
        *keys +=
            count_live_words(st, seen[i].w, SHARD_P_SLOTS) + count_live_words(st, seen[i].line, SHARD_L2_BYTES / 8);
    *keys *= stride;
    return 0;
}


/* Called when the partition was suspected to be full but has `missing` keys fewer than its bound. This handle then
 * ignores suspicions until it has inserted its share of the missing keys. */
static void suppress_suspicion(const shard_state *st, shard_partition *part, uint64_t missing) {
    uint32_t inserts = atomic_load_explicit(&part->inserts, memory_order_relaxed);
    atomic_store_explicit(&part->no_suspicion_until, inserts + (uint32_t)(missing / client_count(st)),
                          memory_order_relaxed);
}


/* Changes the count by CAS. If two clients find the same error, only the first CAS succeeds, so the error is corrected
 * only once. */
int shard_correct_count(far_task *t, far_index *index, shard_partition *part, uint64_t published, uint64_t keys) {
    uint64_t old;
    far_point(t, "shard:correct_count");
    int err = far_cas_word(t, part->pcb + 8 * SHARD_PCB_COUNT, published, keys, &old);
    if (err < 0)
        return err;
    shard_count_event(&shard_state_of(index)->counters.rebased);
    atomic_store_explicit(&part->count, (int64_t)keys, memory_order_relaxed);
    return 0;
}


/* Returns 1 if the partition, at version d, is as full as its count says, 0 if not, or an error. A sample of buckets
 * decides; if it shows that the count is wrong, the function corrects the count. A doubling that an insert has
 * requested, because it reached level 3, needs no such proof. */
static int verify_full(far_task *t, far_index *index, shard_partition *part, unsigned d) {
    const shard_state *st = shard_state_of(index);
    uint64_t keys = 0, published = 0, bound = doubling_bound(st, d), margin = bound / 8 + 1;
    if (atomic_load_explicit(&part->known_due, memory_order_relaxed) == d + 1)
        return 1;
    int err = shard_estimate_keys(t, index, part, d, &keys, &published);
    if (err < 0)
        return err;
    bool wrong = (int64_t)published < 0 || keys + margin < published || (keys > published + margin);
    if (wrong && !st->sampling && (err = shard_correct_count(t, index, part, published, keys)) < 0)
        return err;
    /* if the count is below the bound, the doubling was only suspected, and the sampled buckets must confirm it */
    bool count_reached_bound = !wrong && published >= bound;
    if (keys + (count_reached_bound ? margin : 0) < bound && !doubling_is_requested(part, d + 1)) {
        suppress_suspicion(st, part, bound - keys);
        return 0;
    }
    atomic_store_explicit(&part->known_due, d + 1, memory_order_relaxed);
    return 1;
}


/* Called after a doubling failed for lack of memory: the next attempts are skipped. The number of skipped attempts
 * doubles with each consecutive failure. */
static void back_off_doubling(shard_partition *part) {
    atomic_store_explicit(&part->requested, 0, memory_order_relaxed);
    part->grow_backoff = part->grow_backoff < MAX_BACKOFF / 2 ? 2 * part->grow_backoff + 1 : MAX_BACKOFF;
    part->grow_skip = part->grow_backoff;
}


/* Claims the preparation of a doubling for this handle. Without the claim, all handles would read buckets and allocate
 * memory at the same time, and only one of them would use the result. The claim blocks no client, because a handle that
 * finds the claim taken skips some attempts and then takes the claim over. Returns 1 if this handle has the claim and
 * the root word is still `root`, 0 if not, or an error. */
static int claim_doubling(far_task *t, shard_partition *part, uint64_t root) {
    unsigned version = shard_root_d(root) + 1;
    uint64_t mine = shard_claim(version, far_task_client(t)), old, now;
    for (;;) { /* The loop ends, because a claim word for an older version is found at most once. */
        far_cas(t, part->pcb + 8 * SHARD_PCB_CLAIM, part->claim_seen, mine, &old);
        far_read(t, part->pcb + 8 * SHARD_PCB_ROOT, &now, 8);
        int err = far_wait(t);
        if (err < 0)
            return err;
        shard_learn_root(part, now);
        bool won = old == part->claim_seen || old == mine;
        part->claim_seen = won ? mine : old;
        if (now != root)
            return 0;
        if (won)
            return 1;
        if (shard_claim_version(old) >= version) {
            part->grow_skip = CLAIM_SKIP;
            return 0;
        }
    }
}


/* Clears the claim of this handle, because the doubling is not due. Another client that suspects a doubling can then
 * check at once. */
static int withdraw_claim(far_task *t, shard_partition *part) {
    /* static, because the code does not wait for this WRITE, and scratch memory may be reused before the WRITE
     * completes */
    static const uint64_t none = 0;
    part->claim_seen = none;
    atomic_store_explicit(&part->suspected, 0, memory_order_relaxed);
    far_write(t, part->pcb + 8 * SHARD_PCB_CLAIM, &none, sizeof(none));
    return far_post(t);
}


/* Only one task of a handle at a time begins a doubling, because further tasks would only repeat the same work. */
int shard_grow_if_full(far_task *t, far_index *index, shard_partition *part) {
    uint64_t root = atomic_load_explicit(&part->root, memory_order_acquire);
    if (!shard_may_grow(t, shard_state_of(index), root) ||
        atomic_flag_test_and_set_explicit(&part->growing, memory_order_acquire))
        return 0;
    far_scratch_mark mark = far_scratch_here(t);
    int err = 0;
    if (part->grow_skip > 0)
        part->grow_skip--;
    else if ((err = claim_doubling(t, part, root)) == 1) {
        if ((err = verify_full(t, index, part, shard_root_d(root))) == 1)
            err = shard_try_grow(t, index, part);
        else if (err == 0)
            err = withdraw_claim(t, part);
    }
    if (err == FAR_ERR_NO_MEMORY)
        back_off_doubling(part);
    else if (err == 1)
        part->grow_backoff = 0;
    far_scratch_back(t, mark);
    atomic_flag_clear_explicit(&part->growing, memory_order_release);
    return err;
}


/* ---- After an operation has taken effect; nothing here can make it fail ---- */

/* Returns the number of round trips that this insert spends on sweep and drain. Sweep and drain together need about two
 * steps for each of the 2^(b+d-1) parents. The load grows by 56.8 keys per parent until the next doubling is due
 * (inline layout: 26.2 keys). The regular share of the inserts is large enough to finish the steps before that.
 *
 * An insert that found no room at level 1 adds one step to the owed steps, and a later insert that had less work takes
 * this step, so that no single insert takes long. An insert that reached level 3 takes steps at once, and the number of
 * its steps grows with the number of chain nodes that it passed. In this way the work speeds up if a doubling is late.
 */
static int take_work_share(shard_op *op) {
    const shard_state *st = op->st;
    shard_partition *part = op->part;
    uint32_t inserts = atomic_fetch_add_explicit(&part->inserts, 1, memory_order_relaxed);
    uint32_t steps_owed = atomic_load_explicit(&part->steps_owed, memory_order_relaxed);
    steps_owed += (inserts % st->share == 0) + (op->insert_level == 2);
    bool pays = steps_owed > 0 && ((op->insert_level == 0 && !op->did_extra_work) || st->share == 1);
    atomic_store_explicit(&part->steps_owed, steps_owed - pays, memory_order_relaxed);
    return (pays ? STEP_TRIPS : 0) + (op->insert_level == 3 ? LATE_TRIPS + NODE_TRIPS * (int)op->nodes_passed : 0);
}


/* Decides whether this insert begins the doubling that is due. An insert that found no room at level 1 leaves the
 * doubling to the next insert, because it has already done much work. An insert with other additional work does the
 * same, but only for a few consecutive inserts. An insert that passed nodes of a level-3 chain always begins the
 * doubling, because many other inserts may be leaving it to the next insert. */
static bool decide_to_double(shard_partition *part, const shard_op *op, bool did_extra_work) {
    if (op->st->afs || op->nodes_passed > 0)
        return true;
    if (op->insert_level > 0)
        return false;
    uint32_t times_passed_on = atomic_load_explicit(&part->times_passed_on, memory_order_relaxed);
    bool passes = did_extra_work && times_passed_on < MAX_PASSED_ON;
    atomic_store_explicit(&part->times_passed_on, passes ? times_passed_on + 1 : 0, memory_order_relaxed);
    return !passes;
}


void shard_after_change(shard_op *op, int delta) {
    shard_state *st = op->st;
    far_note_added(op->t, delta > 0);
    shard_partition *part = op->part;
    unsigned d = shard_root_d(atomic_load_explicit(&part->root, memory_order_relaxed));
    bool seems_full = delta > 0 && add_sample(op), stable = op->phase == SHARD_STABLE;
    bool did_extra_work = op->did_extra_work;
    if (seems_full && st->sampling)
        shard_request_doubling(part, op->d + 1);
    else if ((seems_full || (op->insert_level == 2 && stable)) && !st->afs && partition_may_be_full(st, part, d))
        atomic_store_explicit(&part->suspected, op->d + 1, memory_order_relaxed);
    if (!st->sampling) {
        atomic_fetch_add_explicit(&part->delta, delta, memory_order_relaxed);
        uint32_t writes = atomic_fetch_add_explicit(&part->writes, 1, memory_order_relaxed) + 1;
        bool early = !st->afs && (seems_full || (op->insert_level == 2 && stable)) &&
                     atomic_load_explicit(&part->count, memory_order_relaxed) < (int64_t)doubling_bound(st, d);
        if (early || writes >= publish_period(st, part, d)) {
            atomic_store_explicit(&part->writes, 0, memory_order_relaxed);
            op->did_extra_work = true;
            if (publish_and_read_count(op->t, part) < 0)
                return;
        }
    }
    if (delta <= 0)
        return;
    uint64_t root = atomic_load_explicit(&part->root, memory_order_acquire);
    int trips = take_work_share(op);
    if (!shard_root_doubles(root)) {
        atomic_store_explicit(&part->steps_owed, 0, memory_order_relaxed);
        if (shard_doubling_is_due(st, part, shard_root_d(root) + 1) && decide_to_double(part, op, did_extra_work) &&
            shard_grow_if_full(op->t, op->index, part) == 1 && !st->lazy)
            (void)shard_finish_doubling(op->t, op->index, part);
        return;
    }
    while (trips > 0 && shard_resize_step(op->t, op->index, part, &trips) == 1)
        ;
}
