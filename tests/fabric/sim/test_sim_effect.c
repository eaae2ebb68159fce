/* Tests of the effects of verbs in the simulator: atomics, order and tearing. Guarantees of the fabric contract always
 * hold, and results that the contract allows do occur under faults. */
#include "sim_rig.h"
#include "test.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SEEDS 400
#define X     0x1000 /* address of the word that the tests use */


/* ---- Atomics ---- */

typedef struct setup {
    rig r;
    far_sim_world *world;
    uint8_t *memory;
} setup;


static void set_up(setup *s, const char *options) {
    rig_connect(&s->r, rig_open("size=1M,%s", options));
    s->world = far_sim_world_of(s->r.fabric);
    s->memory = far_sim_memory(s->world, 0);
}


static void tear_down(setup *s) {
    if (far_sim_watch_errors(s->world))
        fail_msg("%s", far_sim_watch_error(s->world, 0));
    rig_disconnect(&s->r);
    s->r.fabric->ops->close(s->r.fabric);
}


static uint64_t word_at(const setup *s, uint64_t offset) {
    uint64_t word;
    memcpy(&word, s->memory + offset, 8);
    return word;
}


static void set_word(setup *s, uint64_t offset, uint64_t word) {
    memcpy(s->memory + offset, &word, 8);
}


/* CAS and FAA change the word and return the old word as the contract says, with and without faults. */
TEST(cas_and_faa_follow_the_contract) {
    const char *const options[] = {"faults=none", "faults=all"};
    for (int i = 0; i < 2; i++) {
        setup s;
        set_up(&s, options[i]);
        uint64_t old = 0;
        set_word(&s, X, 5);
        assert_int_equal(rig_run_verb(&s.r, rig_cas(X, 5, 6, &old)), 0);
        assert_int_equal(old, 5);
        assert_int_equal(word_at(&s, X), 6);
        assert_int_equal(rig_run_verb(&s.r, rig_cas(X, 5, 7, &old)), 0);
        assert_int_equal(old, 6);
        assert_int_equal(word_at(&s, X), 6);
        assert_int_equal(rig_run_verb(&s.r, rig_faa(X, UINT64_MAX, &old)), 0);
        assert_int_equal(old, 6);
        assert_int_equal(word_at(&s, X), 5);
        /* A CAS without a buffer for the old word is allowed. */
        assert_int_equal(rig_run_verb(&s.r, rig_cas(X, 5, 8, NULL)), 0);
        assert_int_equal(word_at(&s, X), 8);
        tear_down(&s);
    }
}


/* A masked CAS compares only the bits of its first mask and replaces only the bits of its second mask. Without the
 * capability it is refused. */
TEST(masked_cas_compares_and_swaps_under_its_masks) {
    setup s;
    set_up(&s, "masked_cas=on");
    uint64_t old = 0;
    set_word(&s, X, 0x1122334455667788);
    assert_int_equal(rig_run_verb(&s.r, rig_masked_cas(X, 0xff88, 0xff, 0xaaaaaaaaaaaaaaaa, 0xff00, &old)), 0);
    assert_int_equal(old, 0x1122334455667788);
    assert_int_equal(word_at(&s, X), 0x112233445566aa88);
    assert_int_equal(rig_run_verb(&s.r, rig_masked_cas(X, 0x89, 0xff, 0, UINT64_MAX, &old)), 0);
    assert_int_equal(old, 0x112233445566aa88);
    assert_int_equal(word_at(&s, X), 0x112233445566aa88); /* the comparison failed, so nothing was written */
    /* A masked CAS with an empty compare mask always succeeds. */
    assert_int_equal(rig_run_verb(&s.r, rig_masked_cas(X, 0, 0, 3, 0xff, &old)), 0);
    assert_int_equal(word_at(&s, X), 0x112233445566aa03);
    tear_down(&s);
    set_up(&s, "masked_cas=off");
    assert_false(s.r.fabric->capabilities.masked_cas);
    assert_int_equal(rig_run_verb(&s.r, rig_masked_cas(X, 0, 0, 3, 0xff, &old)), FAR_ERR_UNSUPPORTED);
    tear_down(&s);
}


/* A verb with an address, length or node that is not valid is refused before it is posted. */
TEST(a_verb_outside_the_nodes_is_refused) {
    setup s;
    set_up(&s, "memory_nodes=2");
    uint64_t word = 1;
    assert_int_equal(rig_run_verb(&s.r, rig_write((1 << 20) - 8, &word, 8)), 0);
    assert_int_equal(rig_run_verb(&s.r, rig_write(1 << 20, &word, 8)), FAR_ERR_INVALID);
    assert_int_equal(rig_run_verb(&s.r, rig_write(far_addr_make(2, 0), &word, 8)), FAR_ERR_INVALID);
    assert_int_equal(rig_run_verb(&s.r, rig_write(4, &word, 8)), FAR_ERR_INVALID);
    assert_int_equal(rig_run_verb(&s.r, rig_write(8, &word, 0)), FAR_ERR_INVALID);
    tear_down(&s);
}


/* ---- Order ---- */

typedef struct count_up {
    rig r;
    uint64_t until;
} count_up;


static void run_count_up(void *arg) {
    count_up *c = arg;
    for (uint64_t value = 1; far_host_now(c->r.fabric->host) < c->until; value++)
        rig_run_verb(&c->r, rig_write(X, &value, 8));
}


typedef struct pair {
    setup s;
    far_verb_kind first, second;
    unsigned flags; /* flags of the second verb */
    bool reversed;
} pair;


static far_verb pair_verb(far_verb_kind kind, uint64_t *word) {
    return kind == FAR_READ    ? rig_read(X, word, 8)
           : kind == FAR_WRITE ? rig_write(X, word, 8)
                               : rig_faa(X, 1000000, word);
}


/* Posts two verbs on one word and derives their order from the results. The word initially contains 5; a WRITE stores
 * 7, or 9 if it is the second verb. */
static void run_pair(void *arg) {
    pair *p = arg;
    uint64_t a = 7, b = 9;
    far_verb verbs[2] = {pair_verb(p->first, &a), pair_verb(p->second, &b)};
    verbs[1].flags = (uint8_t)p->flags;
    if (p->first != FAR_READ || p->second != FAR_READ)
        set_word(&p->s, X, 5);
    if (rig_run(&p->s.r, verbs, 2) != 0)
        abort();
    if (p->first == FAR_WRITE && p->second == FAR_WRITE)
        p->reversed = word_at(&p->s, X) == 7;
    else if (p->first == FAR_WRITE)
        p->reversed = b == 5; /* reversed if the READ did not observe the earlier WRITE */
    else if (p->second == FAR_WRITE)
        p->reversed = a == 9; /* reversed if the READ observed the later WRITE */
    else if (p->first == FAR_FAA && p->second == FAR_READ)
        p->reversed = b == 5;
    else
        p->reversed = p->first == p->second ? a > b : a != 5;
}


/* Returns in how many of SEEDS runs the pair was reversed. For READ and READ, another client increments the word
 * meanwhile. */
static unsigned count_reversals(far_verb_kind first, far_verb_kind second, unsigned flags, const char *options) {
    unsigned reversed = 0;
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        char text[128];
        snprintf(text, sizeof text, "seed=%u,%s", seed, options);
        pair p = {.first = first, .second = second, .flags = flags};
        set_up(&p.s, text);
        count_up other = {.until = 20000};
        far_sim_start(p.s.r.fabric, "pair", run_pair, &p);
        rig_connect(&other.r, p.s.r.fabric);
        if (first == FAR_READ && second == FAR_READ)
            far_sim_start(p.s.r.fabric, "count", run_count_up, &other);
        assert_int_equal(far_sim_run(p.s.world), FAR_SIM_ENDED);
        reversed += p.reversed;
        rig_disconnect(&other.r);
        tear_down(&p.s);
    }
    return reversed;
}


/* Two verbs that the contract orders take effect in this order under all faults. Fails without
 * `sim_classes_are_ordered` in `sim_fault_schedule`. */
TEST(ordered_pairs_are_never_reversed) {
    static const far_verb_kind ordered[][2] = {
        {FAR_WRITE, FAR_WRITE}, {FAR_WRITE, FAR_READ}, {FAR_WRITE, FAR_FAA}, {FAR_READ, FAR_READ}, {FAR_FAA, FAR_FAA}};
    for (unsigned i = 0; i < sizeof ordered / sizeof ordered[0]; i++) {
        assert_int_equal(count_reversals(ordered[i][0], ordered[i][1], 0, "faults=all"), 0);
        assert_int_equal(count_reversals(ordered[i][0], ordered[i][1], 0, "faults=reorder,atomic_bytes=8"), 0);
    }
}


/* Two verbs without an order take effect in both orders under the fault `reorder`, and in the order of posting without
 * faults or with a fence flag. */
TEST(unordered_pairs_are_reversed_under_faults_only) {
    static const far_verb_kind unordered[][2] = {
        {FAR_READ, FAR_WRITE}, {FAR_FAA, FAR_WRITE}, {FAR_READ, FAR_FAA}, {FAR_FAA, FAR_READ}};
    for (unsigned i = 0; i < sizeof unordered / sizeof unordered[0]; i++) {
        assert_in_range(count_reversals(unordered[i][0], unordered[i][1], 0, "faults=reorder"), SEEDS / 50,
                        SEEDS * 9 / 10);
        assert_int_equal(count_reversals(unordered[i][0], unordered[i][1], 0, "faults=none"), 0);
        assert_int_equal(count_reversals(unordered[i][0], unordered[i][1], FAR_VERB_FENCE, "faults=all"), 0);
    }
}


/* With the capability atomics_in_order, an atomic takes effect before all later verbs. */
TEST(with_atomics_in_order_later_verbs_do_not_overtake_an_atomic) {
    assert_int_equal(count_reversals(FAR_FAA, FAR_WRITE, 0, "faults=all,atomics_in_order=on"), 0);
    assert_int_equal(count_reversals(FAR_FAA, FAR_READ, 0, "faults=all,atomics_in_order=on"), 0);
    assert_true(count_reversals(FAR_READ, FAR_FAA, 0, "faults=all,atomics_in_order=on") > 0);
}


/* Without the capability reads_in_order, READs overtake each other; a fence flag prevents it. All other rules still
 * hold. */
TEST(reads_are_reordered_only_without_reads_in_order) {
    const char *off = "faults=all,reads_in_order=off";
    assert_in_range(count_reversals(FAR_READ, FAR_READ, 0, off), SEEDS / 50, SEEDS * 9 / 10);
    assert_int_equal(count_reversals(FAR_READ, FAR_READ, FAR_VERB_FENCE, off), 0);
    assert_int_equal(count_reversals(FAR_WRITE, FAR_READ, 0, off), 0); /* All other rules of order still hold. */
    assert_int_equal(count_reversals(FAR_FAA, FAR_FAA, 0, off), 0);
}


typedef struct behind_fence {
    setup s;
    far_verb_kind kind; /* kind of the fenced verb */
    uint64_t seen;
} behind_fence;


/* Posts a READ of another word, a fenced verb on x, and a WRITE of x. */
static void run_behind_fence(void *arg) {
    behind_fence *f = arg;
    uint64_t seven = 7, nine = 9, elsewhere;
    far_verb verbs[3] = {rig_read(X + 4096, &elsewhere, 8), rig_write(X, &seven, 8), rig_write(X, &nine, 8)};
    if (f->kind == FAR_READ)
        verbs[1] = rig_read(X, &f->seen, 8);
    verbs[1].flags = FAR_VERB_FENCE;
    if (rig_run(&f->s.r, verbs, 3) != 0)
        abort();
}


/* A verb that waits because of its fence flag is overtaken by verbs that have no order to it, and by no others. */
TEST(only_unordered_verbs_overtake_a_fenced_one) {
    unsigned overtaken = 0;
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        char text[64];
        snprintf(text, sizeof text, "seed=%u,faults=%s", seed, seed % 2 ? "reorder" : "all");
        behind_fence f = {.kind = seed % 4 < 2 ? FAR_READ : FAR_WRITE};
        set_up(&f.s, text);
        far_sim_start(f.s.r.fabric, "fence", run_behind_fence, &f);
        assert_int_equal(far_sim_run(f.s.world), FAR_SIM_ENDED);
        assert_int_equal(word_at(&f.s, X), 9);
        overtaken += f.kind == FAR_READ && f.seen == 9;
        tear_down(&f.s);
    }
    assert_in_range(overtaken, SEEDS / 20, SEEDS / 2);
}


/* ---- Tearing ---- */

enum { BYTES = 512 };

typedef struct tearing {
    setup s;
    rig other;
    uint64_t unit;
    /* `torn`: number of READs that mixed versions; `split`: number of granules that contained two versions */
    unsigned torn, split;
    unsigned rising, falling;
    bool done;
} tearing;


static void run_versions(void *arg) {
    tearing *t = arg;
    for (uint64_t version = 1; !t->done; version++) {
        uint64_t words[BYTES / 8];
        for (unsigned i = 0; i < BYTES / 8; i++)
            words[i] = version;
        if (rig_run_verb(&t->other, rig_write(X, words, BYTES)) != 0)
            abort();
    }
}


static void run_reader(void *arg) {
    tearing *t = arg;
    for (unsigned round = 0; round < 60; round++) {
        uint64_t words[BYTES / 8], first, last;
        rig_run_verb(&t->s.r, rig_read(X, words, BYTES));
        bool torn = false;
        for (unsigned i = 1; i < BYTES / 8; i++) {
            torn |= words[i] != words[0];
            t->split += words[i] != words[i - 1] && i * 8 % t->unit != 0;
        }
        t->torn += torn;
        far_verb up[2] = {rig_read(X, &first, 8), rig_read(X + BYTES - 8, &last, 8)};
        rig_run(&t->s.r, up, 2);
        t->rising += first > last;
        far_verb down[2] = {rig_read(X + BYTES - 8, &last, 8), rig_read(X, &first, 8)};
        rig_run(&t->s.r, down, 2);
        /* A falling READ: the last word was new, and the first word, which was read later, was old. */
        t->falling += last > first;
    }
    t->done = true;
}


static tearing count_torn(const char *options, uint64_t unit) {
    tearing sum = {.unit = unit};
    for (unsigned seed = 1; seed <= 40; seed++) {
        char text[128];
        snprintf(text, sizeof text, "seed=%u,%s,atomic_bytes=%u", seed, options, (unsigned)unit);
        tearing t = {.unit = unit};
        set_up(&t.s, text);
        assert_int_equal(t.s.r.fabric->capabilities.atomic_bytes, unit);
        rig_connect(&t.other, t.s.r.fabric);
        far_sim_start(t.s.r.fabric, "writer", run_versions, &t);
        far_sim_start(t.s.r.fabric, "reader", run_reader, &t);
        assert_int_equal(far_sim_run(t.s.world), FAR_SIM_ENDED);
        sum.torn += t.torn;
        sum.split += t.split;
        sum.rising += t.rising;
        sum.falling += t.falling;
        rig_disconnect(&t.other);
        tear_down(&t.s);
    }
    return sum;
}


/* READs concurrent with WRITEs return mixtures of versions under the fault `tear`, but a granule never contains two
 * versions. */
TEST(reads_and_writes_tear_between_granules_never_inside) {
    static const uint64_t units[] = {64, 8};
    for (unsigned i = 0; i < 2; i++) {
        tearing t = count_torn("faults=tear", units[i]);
        assert_true(t.torn > 200);
        assert_int_equal(t.split, 0);
        t = count_torn("faults=all", units[i]);
        assert_true(t.torn > 200);
        assert_int_equal(t.split, 0);
    }
}


/* Increments the first and the last word of the block in turn, so that at every moment the last is equal to the first,
 * or one less. */
static void run_turns(void *arg) {
    tearing *t = arg;
    for (uint64_t version = 1; !t->done; version++) {
        rig_run_verb(&t->other, rig_write(X, &version, 8));
        rig_run_verb(&t->other, rig_write(X + BYTES - 8, &version, 8));
    }
}


static void run_turns_reader(void *arg) {
    tearing *t = arg;
    for (unsigned round = 0; round < 100; round++) {
        uint64_t words[BYTES / 8];
        rig_run_verb(&t->s.r, rig_read(X, words, BYTES));
        t->rising += words[BYTES / 8 - 1] > words[0];      /* the last word was sampled later than the first */
        t->falling += words[BYTES / 8 - 1] + 1 < words[0]; /* the last word was sampled earlier than the first */
    }
    t->done = true;
}


/* A READ of a large block may sample its last word before or after its first one. Both occur. */
TEST(a_read_samples_its_granules_in_any_order) {
    unsigned rising[2] = {0}, falling[2] = {0};
    for (unsigned seed = 1; seed <= 20; seed++) {
        char text[64];
        tearing t = {0};
        snprintf(text, sizeof text, "seed=%u,faults=tear,atomic_bytes=%u", seed, seed % 2 ? 64 : 8);
        set_up(&t.s, text);
        rig_connect(&t.other, t.s.r.fabric);
        far_sim_start(t.s.r.fabric, "writer", run_turns, &t);
        far_sim_start(t.s.r.fabric, "reader", run_turns_reader, &t);
        assert_int_equal(far_sim_run(t.s.world), FAR_SIM_ENDED);
        rising[seed % 2] += t.rising;
        falling[seed % 2] += t.falling;
        rig_disconnect(&t.other);
        tear_down(&t.s);
    }
    for (unsigned i = 0; i < 2; i++)
        assert_true(rising[i] > 10 && falling[i] > 10);
}


/* Without faults a READ or WRITE takes effect at one instant. */
TEST(nothing_tears_without_faults) {
    tearing t = count_torn("faults=none", 64);
    assert_int_equal(t.torn, 0);
    assert_int_equal(t.rising, 0);
}


/* A READ of the last word followed by a READ of the first word never returns a newer last word, because a WRITE takes
 * effect in rising order. The opposite does occur. */
TEST(a_write_becomes_visible_in_rising_order) {
    static const uint64_t units[] = {64, 8};
    for (unsigned i = 0; i < 2; i++) {
        tearing t = count_torn("faults=all", units[i]);
        assert_true(t.rising > 0);
        assert_int_equal(t.falling, 0);
    }
}


/* ---- Atomics that overwrite concurrent WRITEs (fault swallow) ---- */

typedef struct overwriting {
    setup s;
    rig other;
    uint64_t compare; /* value with which the CAS compares; with 5 the comparison may succeed */
    bool apart;
    uint64_t old;
} overwriting;


static void run_cas(void *arg) {
    overwriting *w = arg;
    rig_run_verb(&w->s.r, rig_cas(X, w->compare, 6, &w->old));
}


static void run_write(void *arg) {
    overwriting *w = arg;
    uint64_t value = 7;
    far_sim_sleep(w->s.world, w->apart ? 500000 : far_sim_seed(w->s.world) % 40 * 50);
    rig_run_verb(&w->other, rig_write(X, &value, 8));
}


/* Returns in how many runs the CAS 5 -> 6 overwrote a concurrent WRITE of 7: the word is 6, and the CAS returned 5. A
 * run in which the CAS takes effect after the WRITE does not count, because the CAS then returns 7 and changes nothing.
 */
static unsigned count_overwritten(const char *options, uint64_t compare, bool apart, unsigned *cas_first) {
    unsigned lost = 0;
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        char text[128];
        snprintf(text, sizeof text, "seed=%u,%s", seed, options);
        overwriting w = {.compare = compare, .apart = apart};
        set_up(&w.s, text);
        set_word(&w.s, X, 5);
        rig_connect(&w.other, w.s.r.fabric);
        far_sim_start(w.s.r.fabric, "cas", run_cas, &w);
        far_sim_start(w.s.r.fabric, "write", run_write, &w);
        assert_int_equal(far_sim_run(w.s.world), FAR_SIM_ENDED);
        lost += word_at(&w.s, X) == 6;
        *cas_first += word_at(&w.s, X) == 7 && w.old == 5;
        assert_true(word_at(&w.s, X) == 6 || word_at(&w.s, X) == 7);
        rig_disconnect(&w.other);
        tear_down(&w.s);
    }
    return lost;
}


/* Under the fault `swallow`, a successful CAS may overwrite a concurrent WRITE. A CAS that fails never does, and
 * neither does a CAS that is not concurrent. */
TEST(only_a_successful_atomic_overwrites_a_concurrent_write) {
    unsigned first = 0;
    assert_in_range(count_overwritten("faults=swallow", 5, false, &first), SEEDS / 50, SEEDS * 9 / 10);
    assert_true(first > 0);
    assert_int_equal(count_overwritten("faults=swallow", 4, false, &first), 0); /* the CAS fails */
    assert_int_equal(count_overwritten("faults=swallow", 5, true, &first), 0);  /* the WRITE is not concurrent */
    assert_int_equal(count_overwritten("faults=tear+stall+late", 5, false, &first), 0);
    assert_int_equal(count_overwritten("faults=none", 5, false, &first), 0);
}


typedef struct adder {
    rig r;
} adder;


static void run_adder(void *arg) {
    adder *a = arg;
    uint64_t old = 0, seen = 0;
    for (unsigned i = 0; i < 25; i++) {
        rig_run_verb(&a->r, rig_faa(X, 1, &old));
        do
            seen = old, rig_run_verb(&a->r, rig_cas(X, seen, seen + 1, &old));
        while (old != seen);
        rig_run_verb(&a->r, rig_masked_cas(X, 0, 0, 0, 0, &old));
    }
}


/* Clients increment one word with FAA and CAS under all faults, and no increment is lost. Fails if `verb_must_wait`
 * (src/fabric/sim/effect.c) does not make an atomic wait while another atomic on its word is half done (`owner`). */
TEST(atomics_on_one_word_are_mutually_atomic) {
    for (unsigned seed = 1; seed <= 50; seed++) {
        char text[64];
        snprintf(text, sizeof text, "seed=%u,faults=all", seed);
        setup s;
        set_up(&s, text);
        adder adders[4];
        for (unsigned i = 0; i < 4; i++) {
            rig_connect(&adders[i].r, s.r.fabric);
            far_sim_start(s.r.fabric, "adder", run_adder, &adders[i]);
        }
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        assert_int_equal(word_at(&s, X), 4 * 25 * 2);
        for (unsigned i = 0; i < 4; i++)
            rig_disconnect(&adders[i].r);
        tear_down(&s);
    }
}


/* ---- Payloads ---- */

/* A client that changes the payload of a WRITE before it has completed is reported. */
TEST(a_payload_changed_in_flight_is_an_error) {
    setup s;
    set_up(&s, "faults=late");
    uint64_t word = 1;
    far_verb verb = rig_write(X, &word, 8);
    far_batch batch = rig_batch(&verb, 1);
    rig_post(&s.r, &batch);
    assert_true(batch.pending);
    word = 2;
    rig_wait(&s.r, &batch);
    assert_int_equal(far_sim_watch_errors(s.world), 1);
    assert_non_null(strstr(far_sim_watch_error(s.world, 0), "changed the payload"));
    rig_disconnect(&s.r);
    s.r.fabric->ops->close(s.r.fabric);
}


/* No verb completes earlier than the guaranteed lower bound of a round trip, under all faults. */
TEST(no_verb_is_faster_than_min_rtt) {
    for (unsigned seed = 1; seed <= 20; seed++) {
        char text[64];
        snprintf(text, sizeof text, "seed=%u,faults=all", seed);
        setup s;
        set_up(&s, text);
        for (unsigned i = 0; i < 50; i++) {
            uint64_t word = 0;
            far_verb verb = i % 3 == 0   ? rig_read(X, &word, 8)
                            : i % 3 == 1 ? rig_write(X, &word, 8)
                                         : rig_faa(X, 1, &word);
            far_batch batch = rig_batch(&verb, 1);
            rig_post(&s.r, &batch);
            rig_wait(&s.r, &batch);
            assert_true(batch.completed_at - batch.posted_at >= s.r.fabric->capabilities.min_rtt);
        }
        tear_down(&s);
    }
}
