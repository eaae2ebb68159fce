/* How full a partition is, and when it doubles. Handles count the keys that they add and take away, and tell the count
 * of the partition every so many writes, the fewer the closer it is to the bound (AFS); samples of the buckets that
 * inserts have read make a handle tell at once when it seems time. What was not told when a handle was closed or died
 * is missing from the count for ever: so whoever would double looks at some buckets first, and puts the count right if
 * it is far from what is there. */
#include "base/error.h"
#include "index/shard/shard.h"
#include "pool/epoch.h"

#include <string.h>

enum {
    PASSED_ON_MOST = 4, /* inserts that leave a doubling to the next one, in a row */
    STEP_TRIPS = 5,     /* round trips of the step of sweep or drain that an insert takes, about */
    LATE_TRIPS = 20,    /* of an insert that had to go to level 3, */
    NODE_TRIPS = 4,     /* and more for each node of the chain that it walked over */
    LEAD = 16,          /* keys that a client inserts while a doubling is prepared, about */
    SAMPLES_LEAST = 8,
    SAMPLES = 512,
    LEVEL_1_SHARE = 984, /* thousandths of the keys, when the load is at its bound */
    RESTS_MAX = 255,     /* attempts to double that are left out without memory */
    PROBES = 16,         /* buckets that are looked at before a doubling */
    CLAIM_REST = 8,      /* attempts that are left out while another handle prepares the doubling */
};


static uint64_t slots_of(const shard_state *st, unsigned d) { /* d: of a root that may be broken */
    return (uint64_t)(st->slots + st->l2_slots) << (st->b + (d < SHARD_VERSIONS ? d : SHARD_VERSIONS - 1));
}


static unsigned clients_of(const shard_state *st) {
    unsigned clients = atomic_load_explicit(&st->clients, memory_order_relaxed);
    return clients ? clients : 1;
}


/* Keys at which a partition is to double: by the load, and the earlier the more clients there are for each partition.
 * They all go on inserting while the doubling is prepared, and until the one after it may begin. (Not with a fixed
 * period: that leaves it to its user when the load is looked at.) */
static uint64_t bound_of(const shard_state *st, unsigned d) {
    uint64_t bound = (slots_of(st, d) * st->load + 99) / 100;
    uint64_t lead = st->afs || st->sampling ? 0 : (uint64_t)(clients_of(st) - 1) * LEAD >> st->p;
    return bound - (lead < bound / 2 ? lead : bound / 2);
}


int64_t shard_keys_known(const shard_partition *part) {
    return atomic_load_explicit(&part->count, memory_order_relaxed) +
           atomic_load_explicit(&part->delta, memory_order_relaxed);
}


/* So few that the partition may be empty: the count is advisory. Without a count, or one that is told seldom, it always
 * may. */
bool shard_has_few(const shard_state *st, const shard_partition *part, unsigned d) {
    return st->sampling || st->afs || shard_keys_known(part) < (int64_t)(slots_of(st, d) / 4);
}


/* ---- Telling ---- */

static uint32_t period(const shard_state *st, const shard_partition *part, unsigned d) {
    uint64_t slots = slots_of(st, d), least = slots / 16 < 1 ? 1 : slots / 16 > 64 ? 64 : slots / 16;
    int64_t count = atomic_load_explicit(&part->count, memory_order_relaxed), bound = (int64_t)bound_of(st, d);
    if (st->afs)
        return st->afs;
    uint64_t room = count < 0 ? (uint64_t)bound : count < bound ? (uint64_t)(bound - count) : 0;
    uint64_t writes = room * st->alpha / 1000 / clients_of(st);
    return writes < least ? (uint32_t)least : writes > 1u << 20 ? 1u << 20 : (uint32_t)writes;
}


/* Whether the partition can have come to its bound with what others have not told yet. With few clients the count alone
 * decides: it is good enough, and some buckets are above the mean at any time. */
static bool may_be_full(const shard_state *st, const shard_partition *part, unsigned d) {
    int64_t known = shard_keys_known(part);
    int64_t untold = (int64_t)(clients_of(st) - 1) * period(st, part, d);
    uint32_t inserts = atomic_load_explicit(&part->inserts, memory_order_relaxed),
             until = atomic_load_explicit(&part->trusted_until, memory_order_relaxed);
    return clients_of(st) >> st->p && (int32_t)(inserts - until) >= 0 && known + untold >= (int64_t)bound_of(st, d);
}


static int look_at_load(far_task *t, shard_partition *part) {
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


/* Counts that nobody has added to since the last call, all in one batch: a handle that goes quiet has told everything.
 * Not with a fixed period, which says when to tell. */
int shard_tell_all(far_task *t, far_index *index) {
    shard_state *st = shard_state_of(index);
    uint64_t count = 1ull << st->p, put = 0;
    struct telling {
        shard_partition *part;
        int64_t delta;
        uint64_t old;
    } *telling = far_scratch(t, sizeof(*telling) * count);
    if (!telling)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for counts");
    for (uint64_t i = 0; i < count; i++) {
        shard_partition *part = &st->part[i];
        uint32_t writes = atomic_load_explicit(&part->writes, memory_order_relaxed);
        part->quiet = writes == part->idle_writes;
        part->idle_writes = writes;
        if (!part->quiet || st->afs || atomic_load_explicit(&part->delta, memory_order_relaxed) == 0)
            continue;
        struct telling *told = &telling[put++];
        told->part = part;
        told->delta = atomic_exchange_explicit(&part->delta, 0, memory_order_relaxed);
        far_faa(t, part->pcb + 8 * SHARD_PCB_COUNT, (uint64_t)told->delta, &told->old);
    }
    int err = put ? far_wait(t) : 0;
    for (uint64_t i = 0; err >= 0 && i < put; i++)
        atomic_store_explicit(&telling[i].part->count, (int64_t)telling[i].old + telling[i].delta,
                              memory_order_relaxed);
    return err;
}


/* ---- Samples ---- */

/* The mean over the buckets that inserts have read. Level 2 is not seen: it has as large a share of the keys as when
 * the load is at its bound. True: enough were seen, and the partition seems full. */
static bool sample(shard_try *y) {
    const shard_state *st = y->st;
    uint64_t share = slots_of(st, y->d) / 64 / (st->sampling ? 1 : clients_of(st));
    uint64_t wanted = share < SAMPLES_LEAST ? SAMPLES_LEAST : share > SAMPLES ? SAMPLES : share;
    if (y->phase != SHARD_STABLE || shard_home_v(y) != y->d)
        return false;
    /* In halves. Half of the one that was inserted makes up for what came since the first look. */
    uint64_t live = 1 + 2 * shard_count_live(st, y->home->w);
    uint64_t old = atomic_load_explicit(&y->part->sample, memory_order_relaxed), sum, seen;
    do { /* what was seen before the last doubling says nothing of the load now */
        sum = (old >> 56 == y->d ? old : (uint64_t)y->d << 56) + (1ull << 32 | live);
        seen = shard_bits(sum, 32, 24);
    } while (!atomic_compare_exchange_weak_explicit(&y->part->sample, &old, seen < wanted ? sum : 0,
                                                    memory_order_relaxed, memory_order_relaxed));
    if (seen < wanted)
        return false;
    return ((sum & UINT32_MAX) << (st->b + y->d)) * 500 >= seen * bound_of(st, y->d) * LEVEL_1_SHARE;
}


/* ---- Doubling ---- */

/* A doubling that is due; once it is there, by whomever, nothing is left of the wish. */
void shard_want(shard_partition *part, unsigned version) {
    uint32_t wanted = atomic_load_explicit(&part->wanted, memory_order_relaxed);
    while (wanted < version && !atomic_compare_exchange_weak_explicit(&part->wanted, &wanted, version,
                                                                      memory_order_relaxed, memory_order_relaxed))
        ;
}


static bool is_suspected(const shard_partition *part, unsigned version) {
    return atomic_load_explicit(&part->suspected, memory_order_relaxed) == version;
}


static bool is_wanted(const shard_partition *part, unsigned version) {
    return atomic_load_explicit(&part->wanted, memory_order_relaxed) >= version;
}


/* By the load as it was looked at last, so that keys which are deleted before the doubling could begin take the wish
 * back; or because somebody asked for it. */
bool shard_is_due(const shard_state *st, const shard_partition *part, unsigned version) {
    int64_t keys = atomic_load_explicit(&part->count, memory_order_relaxed);
    return is_wanted(part, version) || is_suspected(part, version) ||
           (!st->sampling && keys > 0 && (uint64_t)keys >= bound_of(st, version - 1));
}


typedef struct probe { /* a bucket of level 1 and the bucket of level 2 that has its number */
    uint64_t w[SHARD_WORDS], line[SHARD_L2_BYTES / 8];
} probe;


static uint64_t live_words(const shard_state *st, const uint64_t *w, unsigned count) {
    uint64_t live = 0;
    for (unsigned i = st->inlined; i < count; i += 1 + st->inlined)
        live += shard_is_live(w[i]);
    return live;
}


/* About how many keys there are at levels 1 and 2, by some buckets; of a small partition by all of them. *told: what
 * the count says. One round trip. */
int shard_estimate(far_task *t, far_index *index, shard_partition *part, unsigned d, uint64_t *keys, uint64_t *told) {
    shard_state *st = shard_state_of(index);
    uint64_t buckets = 1ull << (st->b + d), probes = buckets < PROBES ? buckets : PROBES, stride = buckets / probes,
             offset = far_task_random(t) % stride;
    probe *seen = far_scratch(t, probes * sizeof(*seen));
    far_addr at, l2, l3;
    if (!seen)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for buckets");
    int err = shard_overflow_addrs(t, part, d, &l2, &l3);
    for (uint64_t i = 0; err >= 0 && i < probes; i++) {
        uint64_t bucket = i * stride + offset;
        if ((err = shard_bucket_addr(t, st, part, bucket, &at)) < 0)
            return err;
        memset(&seen[i], 0, sizeof(seen[i]));
        if (at)
            far_read(t, at, seen[i].w, SHARD_BUCKET_BYTES);
        if (l2)
            far_read(t, l2 + SHARD_L2_BYTES * bucket, seen[i].line, SHARD_L2_BYTES);
    }
    far_read(t, part->pcb + 8 * SHARD_PCB_COUNT, told, 8);
    if (err < 0 || (err = far_wait(t)) < 0)
        return err;
    *keys = 0;
    for (uint64_t i = 0; i < probes; i++)
        *keys += live_words(st, seen[i].w, SHARD_P_SLOTS) + live_words(st, seen[i].line, SHARD_L2_BYTES / 8);
    *keys *= stride;
    return 0;
}


/* So many keys are missing from the bound: until this handle has inserted its share of them it suspects nothing. */
static void trust(const shard_state *st, shard_partition *part, uint64_t missing) {
    uint32_t inserts = atomic_load_explicit(&part->inserts, memory_order_relaxed);
    atomic_store_explicit(&part->trusted_until, inserts + (uint32_t)(missing / clients_of(st)), memory_order_relaxed);
}


/* By CAS: of two who find the same error one corrects it. */
int shard_put_count_right(far_task *t, far_index *index, shard_partition *part, uint64_t told, uint64_t keys) {
    uint64_t old;
    far_point(t, "shard:rebase");
    int err = far_cas_word(t, part->pcb + 8 * SHARD_PCB_COUNT, told, keys, &old);
    if (err < 0)
        return err;
    shard_count(&shard_state_of(index)->counters.rebased);
    atomic_store_explicit(&part->count, (int64_t)keys, memory_order_relaxed);
    return 0;
}


/* Whether the partition, at version d, is as full as its count says; if not, the count is put right. An insert that found
 * no room at level 2 is proof enough. */
static int is_full(far_task *t, far_index *index, shard_partition *part, unsigned d) {
    const shard_state *st = shard_state_of(index);
    uint64_t keys = 0, told = 0, bound = bound_of(st, d), margin = bound / 8 + 1;
    if (atomic_load_explicit(&part->proved, memory_order_relaxed) == d + 1)
        return 1;
    int err = shard_estimate(t, index, part, d, &keys, &told);
    if (err < 0)
        return err;
    bool wrong = (int64_t)told < 0 || keys + margin < told || (keys > told + margin);
    if (wrong && !st->sampling && (err = shard_put_count_right(t, index, part, told, keys)) < 0)
        return err;
    bool is_told = !wrong && told >= bound; /* else it was a suspicion: then what is there must say the same */
    if (keys + (is_told ? margin : 0) < bound && !is_wanted(part, d + 1)) {
        trust(st, part, bound - keys);
        return 0;
    }
    atomic_store_explicit(&part->proved, d + 1, memory_order_relaxed);
    return 1;
}


/* Without memory the next attempts are left out, the more the more often that happens. */
static void put_off(shard_partition *part) {
    atomic_store_explicit(&part->wanted, 0, memory_order_relaxed);
    part->grow_rests = part->grow_rests < RESTS_MAX / 2 ? 2 * part->grow_rests + 1 : RESTS_MAX;
    part->grow_rest = part->grow_rests;
}


/* One handle prepares a doubling: if all did, all would look and allocate at the same moment, and all but one for
 * nothing. The claim holds nobody up: who finds it taken leaves out some attempts, and takes it then. 1: it is ours,
 * and the partition is still at `root`. */
static int claim_doubling(far_task *t, shard_partition *part, uint64_t root) {
    unsigned version = shard_root_d(root) + 1;
    uint64_t mine = shard_claim(version, far_task_client(t)), old, now;
    for (;;) { /* ends: what was seen of an older version is not seen again */
        far_cas(t, part->pcb + 8 * SHARD_PCB_CLAIM, part->claim, mine, &old);
        far_read(t, part->pcb + 8 * SHARD_PCB_ROOT, &now, 8);
        int err = far_wait(t);
        if (err < 0)
            return err;
        shard_learn_root(part, now);
        bool won = old == part->claim || old == mine;
        part->claim = won ? mine : old;
        if (now != root)
            return 0;
        if (won)
            return 1;
        if (shard_claim_version(old) >= version) {
            part->grow_rest = CLAIM_REST;
            return 0;
        }
    }
}


/* A doubling is not due after all: whoever thinks so next may look at once. */
static int unclaim_doubling(far_task *t, shard_partition *part) {
    static const uint64_t none = 0; /* nobody waits for the WRITE: scratch memory may be given back before it */
    part->claim = none;
    atomic_store_explicit(&part->suspected, 0, memory_order_relaxed);
    far_write(t, part->pcb + 8 * SHARD_PCB_CLAIM, &none, sizeof(none));
    return far_post(t);
}


/* One task of a handle at a time: others would only do the same. */
int shard_grow_if_full(far_task *t, far_index *index, shard_partition *part) {
    uint64_t root = atomic_load_explicit(&part->root, memory_order_acquire);
    if (!shard_may_grow(t, shard_state_of(index), root) ||
        atomic_flag_test_and_set_explicit(&part->growing, memory_order_acquire))
        return 0;
    far_scratch_mark mark = far_scratch_here(t);
    int err = 0;
    if (part->grow_rest > 0)
        part->grow_rest--;
    else if ((err = claim_doubling(t, part, root)) == 1) {
        if ((err = is_full(t, index, part, shard_root_d(root))) == 1)
            err = shard_try_grow(t, index, part);
        else if (err == 0)
            err = unclaim_doubling(t, part);
    }
    if (err == FAR_ERR_NO_MEMORY)
        put_off(part);
    else if (err == 1)
        part->grow_rests = 0;
    far_scratch_back(t, mark);
    atomic_flag_clear_explicit(&part->growing, memory_order_release);
    return err;
}


/* ---- After an operation has taken effect: nothing here can make it fail ---- */

/* Round trips that an insert spends on sweep and drain. These take about two steps for each of the 2^(b+d-1) parents:
 * by their share alone inserts end them before the load, which grows by 56.8 keys a parent (I: 26.2), asks for the next
 * doubling. An insert that found no room at level 1 asks for one more step, which the next insert takes that had an
 * easier time: so no single one waits for long. Who had to go to level 3 takes steps at once, the more the further he
 * went: the later the doubling is, the more is done. */
static int share_of(shard_try *y) {
    const shard_state *st = y->st;
    shard_partition *part = y->part;
    uint32_t inserts = atomic_fetch_add_explicit(&part->inserts, 1, memory_order_relaxed);
    uint32_t owed = atomic_load_explicit(&part->owed, memory_order_relaxed);
    owed += (inserts % st->share == 0) + (y->landed == 2);
    bool pays = owed > 0 && ((y->landed == 0 && !y->had_more_to_do) || st->share == 1);
    atomic_store_explicit(&part->owed, owed - pays, memory_order_relaxed);
    return (pays ? STEP_TRIPS : 0) + (y->landed == 3 ? LATE_TRIPS + NODE_TRIPS * (int)y->walked : 0);
}


/* Whether this insert is to begin the doubling that is due. One that found no room at level 1 has done enough: the next
 * one does it; so has one that had to look elsewhere, as long as not all of them had to. But one that walked along a
 * chain of level 3 may be one of many. */
static bool is_its_turn(shard_partition *part, const shard_try *y, bool had_more_to_do) {
    if (y->st->afs || y->walked > 0)
        return true;
    if (y->landed > 0)
        return false;
    uint32_t passed_on = atomic_load_explicit(&part->passed_on, memory_order_relaxed);
    bool passes = had_more_to_do && passed_on < PASSED_ON_MOST;
    atomic_store_explicit(&part->passed_on, passes ? passed_on + 1 : 0, memory_order_relaxed);
    return !passes;
}


void shard_after_change(shard_try *y, int delta) {
    shard_state *st = y->st;
    far_note_added(y->t, delta > 0);
    shard_partition *part = y->part;
    unsigned d = shard_root_d(atomic_load_explicit(&part->root, memory_order_relaxed));
    bool seems_full = delta > 0 && sample(y), stable = y->phase == SHARD_STABLE;
    bool had_more_to_do = y->had_more_to_do;
    if (seems_full && st->sampling)
        shard_want(part, y->d + 1);
    else if ((seems_full || (y->landed == 2 && stable)) && !st->afs && may_be_full(st, part, d))
        atomic_store_explicit(&part->suspected, y->d + 1, memory_order_relaxed);
    if (!st->sampling) {
        atomic_fetch_add_explicit(&part->delta, delta, memory_order_relaxed);
        uint32_t writes = atomic_fetch_add_explicit(&part->writes, 1, memory_order_relaxed) + 1;
        bool early = !st->afs && (seems_full || (y->landed == 2 && stable)) &&
                     atomic_load_explicit(&part->count, memory_order_relaxed) < (int64_t)bound_of(st, d);
        if (early || writes >= period(st, part, d)) {
            atomic_store_explicit(&part->writes, 0, memory_order_relaxed);
            y->had_more_to_do = true;
            if (look_at_load(y->t, part) < 0)
                return;
        }
    }
    if (delta <= 0)
        return;
    uint64_t root = atomic_load_explicit(&part->root, memory_order_acquire);
    int trips = share_of(y);
    if (!shard_root_doubles(root)) {
        atomic_store_explicit(&part->owed, 0, memory_order_relaxed);
        if (shard_is_due(st, part, shard_root_d(root) + 1) && is_its_turn(part, y, had_more_to_do) &&
            shard_grow_if_full(y->t, y->index, part) == 1 && !st->lazy)
            (void)shard_finish_doubling(y->t, y->index, part);
        return;
    }
    while (trips > 0 && shard_work(y->t, y->index, part, &trips) == 1)
        ;
}
