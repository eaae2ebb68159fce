/* Does a fabric do what it says? For each rule a few sessions run at once, each in a thread of the pool's host: some
 * change the memory, the others look. */
#include "verify/selftest.h"
#include "base/error.h"
#include "base/numa.h"
#include "base/parse.h"
#include "pool/alloc.h"
#include "pool/catalog_layout.h"
#include "pool/clients.h"
#include "pool/epoch.h"
#include "pool/handle.h"
#include "pool/refuted.h"
#include "task/session.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CROWD        16 /* sessions whose atomics meet on one word */
#define SIDES        (CROWD + 1)
#define LINE         64u
#define IMAGE        2048u /* bytes of what is written and read as a whole */
#define WORDS        (IMAGE / 8)
#define PAGE         4096u
#define ARENA        (LINE + 2 * PAGE) /* wherever its first line begins */
#define ARENAS_MOST  4096u             /* of a memory node's field; a 32nd of its memory, but at least: */
#define ARENAS_LEAST 256u
#define VICTIMS      8  /* sessions that are cut, at each node */
#define LAST_VERBS   64 /* of each */
#define TRIES_LEAST  64

typedef struct bout bout;

typedef struct side { /* one session, in its thread */
    bout *bout;
    far_session *session;
    far_thread *thread;
    int (*act)(far_task *t, struct side *side);
    bool looks; /* counts its tries; those who change go on as long as somebody looks */
    int result;
    uint64_t tries, broken, done;
} side;

/* How far the two words of a pair lie apart. */
typedef enum distance { ONE_LINE, TWO_LINES, TWO_PAGES, FAR_APART, TWO_NUMA_NODES } distance;

/* Memory of one memory node in which pairs of words lie, one arena beside the other. Its rules run one after the other
 * and count on, so that a pair never goes back: the first word of an arena is the first of a pair, and each rule has
 * a second word of its own, which always belongs to the same first one. */
typedef struct field {
    unsigned count, numa_pairs;
    far_addr arena[ARENAS_MOST];
    far_addr near[ARENAS_MOST / 2], elsewhere[ARENAS_MOST / 2]; /* by NUMA pair */
    const char *no_numa;                                        /* why there is no such pair */
    uint64_t counted;
} field;

struct bout { /* one rule at one memory node */
    far_pool *pool;
    far_addr memory; /* an arena of its own */
    field *field;
    distance apart;
    bool cold;
    atomic_uint_fast64_t turn; /* the number that is being written to its pair */
    uint64_t tries;            /* to be done by each who looks */
    atomic_uint looking;       /* sides */
    side sides[SIDES];
};

typedef struct rule {
    const char *what, *capability;
    unsigned refuted; /* goes on record, should it be broken */
    bool (*claimed)(const far_capabilities *can);
    int (*change)(far_task *t, side *side); /* NULL: nobody beside */
    int (*look)(far_task *t, side *side);
    unsigned lookers;
    int (*judge)(far_task *t, side *sides); /* when all have ended; NULL: nothing */
    distance apart;                         /* READ -> READ: the two words of a pair */
    bool cold;
} rule;


static far_addr line(const bout *b, unsigned number) {
    return b->memory + number * LINE;
}


static far_addr image_of(const bout *b) {
    return line(b, 16);
}


static bool goes_on(const side *s) {
    return atomic_load_explicit(&s->bout->looking, memory_order_relaxed) > 0;
}


/* ---- READ -> READ ---- */

static unsigned pairs_of(const bout *b) {
    if (!b->cold)
        return 1;
    return b->apart == FAR_APART        ? b->field->count / 2
           : b->apart == TWO_NUMA_NODES ? b->field->numa_pairs
                                        : b->field->count;
}


/* The pair that gets number n. Hot: always the same one, which stays in the caches of processor and card. Cold: one
 * after the other, so that none comes again before all others. */
static void find_pair(const bout *b, uint64_t n, far_addr *first, far_addr *second) {
    static const unsigned within[] = {[ONE_LINE] = 8, [TWO_LINES] = LINE, [TWO_PAGES] = PAGE};
    const field *f = b->field;
    unsigned i = (unsigned)(n % pairs_of(b));
    *first = b->apart == TWO_NUMA_NODES ? f->near[i] : f->arena[i];
    *second = b->apart == TWO_NUMA_NODES ? f->elsewhere[i] + 3 * LINE
              : b->apart == FAR_APART    ? f->arena[f->count - 1 - i] + 2 * LINE
                                         : *first + within[b->apart];
}


/* One word after the other, always with the same number. */
static int count_pairs(far_task *t, side *s) {
    field *f = s->bout->field;
    far_addr first, second;
    int err = 0;
    while (goes_on(s) && err == 0) {
        uint64_t n = ++f->counted;
        find_pair(s->bout, n, &first, &second);
        atomic_store_explicit(&s->bout->turn, n, memory_order_relaxed);
        far_write(t, first, &n, 8);
        far_write(t, second, &n, 8);
        err = far_wait(t);
    }
    return err;
}


/* Looks at the pair that is being written, and every other time at the next one: where pairs are cold, nobody has
 * touched that for a whole round. */
static int look_at_pairs(far_task *t, side *s) {
    far_addr first_at, second_at;
    uint64_t first, second;
    int err = 0;
    for (; s->tries < s->bout->tries && err == 0; s->tries++) {
        uint64_t turn = atomic_load_explicit(&s->bout->turn, memory_order_relaxed);
        find_pair(s->bout, turn + s->tries % 2, &first_at, &second_at);
        far_read(t, second_at, &second, 8);
        far_read(t, first_at, &first, 8);
        far_mark(t, FAR_VERB_ANY_ORDER); /* no fence is to keep them in order */
        err = far_wait(t);
        s->broken += err == 0 && first < second;
    }
    return err;
}


/* ---- Units, and the order inside a WRITE ---- */

static int write_images(far_task *t, side *s) {
    uint64_t *image = far_scratch(t, IMAGE);
    int err = image ? 0 : FAR_ERR_NO_MEMORY;
    for (uint64_t n = 1; goes_on(s) && err == 0; n++) {
        for (unsigned i = 0; i < WORDS; i++)
            image[i] = n << 32 | (uint32_t)n;
        far_write(t, image_of(s->bout), image, IMAGE);
        err = far_wait(t);
    }
    return err;
}


static bool units_are_whole(const uint64_t *image, unsigned unit) {
    for (unsigned i = 0; i < WORDS; i++)
        if ((uint32_t)(image[i] >> 32) != (uint32_t)image[i] || image[i] != image[i / (unit / 8) * (unit / 8)])
            return false;
    return true;
}


static int look_at_units(far_task *t, side *s, unsigned unit) {
    uint64_t *image = far_scratch(t, IMAGE);
    int err = image ? 0 : FAR_ERR_NO_MEMORY;
    for (; s->tries < s->bout->tries && err == 0; s->tries++) {
        far_read(t, image_of(s->bout), image, IMAGE);
        err = far_wait(t);
        s->broken += err == 0 && !units_are_whole(image, unit);
    }
    return err;
}


static int look_at_words(far_task *t, side *s) {
    return look_at_units(t, s, 8);
}


static int look_at_lines(far_task *t, side *s) {
    return look_at_units(t, s, LINE);
}


/* The end was there, so the beginning is. */
static int look_backwards(far_task *t, side *s) {
    uint64_t first, last;
    int err = 0;
    for (; s->tries < s->bout->tries && err == 0; s->tries++) {
        err = far_read_word(t, image_of(s->bout) + IMAGE - 8, &last);
        if (err == 0)
            err = far_read_word(t, image_of(s->bout), &first);
        s->broken += err == 0 && first < last;
    }
    return err;
}


/* ---- WRITE before all that follows ---- */

static int look_behind_writes(far_task *t, side *s) {
    int err = 0;
    for (; s->tries < s->bout->tries && err == 0; s->tries++) {
        uint64_t n = s->tries + 1, read = 0, old = 0;
        far_write(t, line(s->bout, 2), &n, 8);
        far_read(t, line(s->bout, 2), &read, 8);
        far_write(t, line(s->bout, 3), &n, 8);
        far_faa(t, line(s->bout, 3), 1, &old);
        err = far_wait(t);
        s->broken += err == 0 && (read != n || old != n);
    }
    return err;
}


static int write_and_count(far_task *t, side *s) {
    int err = 0;
    for (uint64_t n = 1; goes_on(s) && err == 0; n++) {
        far_write(t, line(s->bout, 4), &n, 8);
        far_faa(t, line(s->bout, 5), 1, NULL);
        err = far_wait(t);
    }
    return err;
}


static int look_for_what_was_counted(far_task *t, side *s) {
    uint64_t written, counted;
    int err = 0;
    for (; s->tries < s->bout->tries && err == 0; s->tries++) {
        err = far_read_word(t, line(s->bout, 5), &counted);
        if (err == 0)
            err = far_read_word(t, line(s->bout, 4), &written);
        s->broken += err == 0 && written < counted;
    }
    return err;
}


/* ---- Atomics ---- */

/* A word by each kind of atomic; done: how often the CAS won. */
static int count_together(far_task *t, side *s) {
    bool masked = far_task_fabric(t)->capabilities.masked_cas;
    uint64_t added = 0, swapped = 0, upper = 0, seen = 0;
    int err = 0;
    for (; s->tries < s->bout->tries && err == 0; s->tries++) {
        uint64_t before = added, expected = swapped;
        far_faa(t, line(s->bout, 6), 1, &added);
        far_cas(t, line(s->bout, 7), expected, expected + 1, &swapped);
        if (masked) /* the lower half counts; the upper half must not notice */
            far_masked_cas(t, line(s->bout, 8), seen, 0xffffffff, (seen + 1) & 0xffffffff, 0xffffffff, &upper);
        err = far_wait(t);
        s->broken += err == 0 && s->tries > 0 && added <= before;
        s->done += err == 0 && swapped == expected;
        swapped += swapped == expected;
        s->broken += err == 0 && upper >> 32 != 0;
        seen = ((upper & 0xffffffff) == seen ? seen + 1 : upper) & 0xffffffff;
    }
    return err;
}


static int judge_counts(far_task *t, side *sides) {
    const bout *b = sides[0].bout;
    uint64_t added, swapped, all = 0, won = 0;
    for (unsigned i = 0; i < CROWD; i++) {
        all += sides[i].tries;
        won += sides[i].done;
    }
    int err = far_read_word(t, line(b, 6), &added);
    if (err == 0)
        err = far_read_word(t, line(b, 7), &swapped);
    sides[0].broken += err == 0 && (added != all || swapped != won);
    return err;
}


static int look_behind_atomics(far_task *t, side *s) {
    int err = 0;
    for (; s->tries < s->bout->tries && err == 0; s->tries++) {
        uint64_t old = 0, read = 0;
        far_faa(t, line(s->bout, 9), 1, &old);
        far_read(t, line(s->bout, 9), &read, 8);
        err = far_wait(t);
        s->broken += err == 0 && read < old + 1;
    }
    return err;
}


/* ---- Death ---- */

/* Posts, and is lost with all of it under way. */
static int work_and_die(far_task *t, side *s) {
    int err = 0;
    for (unsigned i = 0; i < LAST_VERBS && err == 0; i++) {
        far_faa(t, line(s->bout, 10), 1, NULL);
        err = far_post(t);
    }
    far_session_lose(t->session, FAR_ERR_FENCED);
    return 0;
}


static int look_after_death(far_task *t, side *s, unsigned id, unsigned generation) {
    uint64_t before, after;
    int dead = 0, err;
    for (unsigned attempt = 0; (dead = far_is_dead(t, id, generation)) == 0; attempt++)
        far_back_off(t, attempt);
    if (dead < 0 || (err = far_read_word(t, line(s->bout, 10), &before)) < 0)
        return dead < 0 ? dead : err;
    far_sleep(t, 20 * far_rtt(t));
    err = far_read_word(t, line(s->bout, 10), &after);
    s->tries++;
    s->broken += err == 0 && after != before;
    return err;
}


/* ---- Running ---- */

typedef struct call {
    side *side;
    unsigned id, generation;
    int (*judge)(far_task *t, side *sides);
} call;


static int run_act(far_task *t, void *arg) {
    side *s = ((call *)arg)->side;
    return s->act(t, s);
}


static int run_judge(far_task *t, void *arg) {
    call *c = arg;
    return c->judge(t, c->side);
}


static int run_look_after_death(far_task *t, void *arg) {
    call *c = arg;
    return look_after_death(t, c->side, c->id, c->generation);
}


static void run_side(void *arg) {
    side *s = arg;
    call c = {.side = s};
    s->result = far_session_call(s->session, FAR_STATS_OTHER, false, run_act, &c);
    if (s->looks)
        atomic_fetch_sub_explicit(&s->bout->looking, 1, memory_order_relaxed);
}


static int start_side(bout *b, unsigned number, int (*act)(far_task *t, side *s), bool looks) {
    side *s = &b->sides[number];
    far_host *host = b->pool->fabric->host;
    *s = (side){.bout = b, .act = act, .looks = looks};
    int err = far_session_open(b->pool, &s->session);
    if (looks)
        atomic_fetch_add_explicit(&b->looking, 1, memory_order_relaxed);
    if (err == 0)
        err = host->ops->start(host, run_side, s, &s->thread);
    if (err < 0 && looks)
        atomic_fetch_sub_explicit(&b->looking, 1, memory_order_relaxed);
    return err;
}


static int end_sides(bout *b) {
    far_host *host = b->pool->fabric->host;
    int err = 0;
    for (unsigned i = 0; i < SIDES; i++) {
        side *s = &b->sides[i];
        if (s->thread)
            host->ops->join(host, s->thread);
        if (s->session)
            far_session_close(s->session);
        err = s->thread && s->result < 0 ? s->result : err;
    }
    return err;
}


static int run_bout(bout *b, const rule *r, far_session *own, far_selftest_result *result) {
    int err = 0;
    unsigned sides = 0;
    for (; sides < r->lookers && err == 0; sides++)
        err = start_side(b, sides, r->look, true);
    if (r->change && err == 0)
        err = start_side(b, sides, r->change, false);
    int ended = end_sides(b);
    err = err < 0 ? err : ended;
    call c = {.side = b->sides, .judge = r->judge};
    if (err == 0 && r->judge)
        err = far_session_call(own, FAR_STATS_OTHER, false, run_judge, &c);
    for (unsigned i = 0; i < r->lookers; i++) {
        result->tries += b->sides[i].tries;
        result->broken += b->sides[i].broken;
    }
    return err;
}


static int run_deaths(bout *b, far_session *own, far_selftest_result *result) {
    int err = 0;
    for (unsigned i = 0; i < VICTIMS && err == 0; i++) {
        err = start_side(b, 0, work_and_die, true);
        if (err < 0)
            break;
        call c = {.side = &b->sides[0], .id = b->sides[0].session->id, .generation = b->sides[0].session->generation};
        far_host *host = b->pool->fabric->host;
        host->ops->join(host, b->sides[0].thread);
        err = far_session_call(own, FAR_STATS_OTHER, false, run_look_after_death, &c);
        far_session_close(b->sides[0].session);
        result->tries += b->sides[0].tries;
        result->broken += b->sides[0].broken;
    }
    return err;
}


static bool always(const far_capabilities *can) {
    return can->atomic_bytes > 0;
}


static bool has_lines(const far_capabilities *can) {
    return can->atomic_bytes >= LINE;
}


static bool has_order_of_reads(const far_capabilities *can) {
    return can->reads_in_order;
}


static bool has_order_of_atomics(const far_capabilities *can) {
    return can->atomics_in_order;
}


#define ORDER_OF_READS(words, distance, is_cold)                                                                       \
    {                                                                                                                  \
        words, "reads_in_order", FAR_REFUTED_READS_IN_ORDER, has_order_of_reads, count_pairs, look_at_pairs, 2, NULL,  \
            distance, is_cold                                                                                          \
    }

static const rule rules[FAR_SELFTESTS - 1] = {
    ORDER_OF_READS("a READ samples before the READs behind it", TWO_LINES, false),
    ORDER_OF_READS("... words of one line", ONE_LINE, false),
    ORDER_OF_READS("... words of two pages", TWO_PAGES, false),
    ORDER_OF_READS("... words on two NUMA nodes", TWO_NUMA_NODES, false),
    ORDER_OF_READS("... of one line, cold", ONE_LINE, true),
    ORDER_OF_READS("... of two lines, cold", TWO_LINES, true),
    ORDER_OF_READS("... of two pages, cold", TWO_PAGES, true),
    ORDER_OF_READS("... far apart, cold", FAR_APART, true),
    ORDER_OF_READS("... on two NUMA nodes, cold", TWO_NUMA_NODES, true),
    {"words of 8 bytes never tear", NULL, FAR_REFUTED_RULE, always, write_images, look_at_words, 2, NULL, 0, false},
    {"units of 64 bytes never tear", "atomic_bytes=64", FAR_REFUTED_UNITS, has_lines, write_images, look_at_lines, 2,
     NULL, 0, false},
    {"a WRITE becomes visible in rising order", NULL, FAR_REFUTED_RULE, always, write_images, look_backwards, 2, NULL,
     0, false},
    {"a WRITE comes before all verbs behind it", NULL, FAR_REFUTED_RULE, always, NULL, look_behind_writes, 1, NULL, 0,
     false},
    {"... as others see it", NULL, FAR_REFUTED_RULE, always, write_and_count, look_for_what_was_counted, 2, NULL, 0,
     false},
    {"atomics of many sessions on one word", NULL, FAR_REFUTED_RULE, always, NULL, count_together, CROWD, judge_counts,
     0, false},
    {"an atomic comes before the READs behind it", "atomics_in_order", FAR_REFUTED_ATOMICS_IN_ORDER,
     has_order_of_atomics, NULL, look_behind_atomics, 3, NULL, 0, false},
};


static unsigned refuted_by(unsigned i) {
    return i < FAR_SELFTESTS - 1 ? rules[i].refuted : FAR_REFUTED_RULE;
}


/* ---- Memory ---- */

typedef struct place {
    unsigned node;
    far_addr addr;
} place;


/* The session's own: no sweep takes it, and it goes with the session. */
static int take_memory(far_task *t, void *arg) {
    place *p = arg;
    far_object object;
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, NULL, FAR_POOL_TYPE_RECORD, ARENA, p->node,
                        FAR_ALLOC_ZERO | FAR_ALLOC_ON_NODE | FAR_ALLOC_KEEP, &object);
    far_pin_drop(t);
    p->addr = err < 0 ? 0 : (object.addr + LINE - 1) / LINE * LINE;
    return err < 0 ? err : far_write_word(t, p->addr, 0); /* a page that nobody has touched lies nowhere yet */
}


static int take_arena(far_session *own, unsigned node, far_addr *arena) {
    place p = {node, 0};
    int err = far_session_call(own, FAR_STATS_OTHER, false, take_memory, &p);
    *arena = p.addr;
    return err;
}


/* Pairs up arenas of the first one's NUMA node with those of others; every other pair begins elsewhere. */
static void pair_numa_nodes(field *f, const int *numa) {
    unsigned here = 0, there = 0;
    while (f->numa_pairs < ARENAS_MOST / 2) {
        while (here < f->count && numa[here] != numa[0])
            here++;
        while (there < f->count && numa[there] == numa[0])
            there++;
        if (here == f->count || there == f->count)
            return;
        bool turned = f->numa_pairs % 2 == 1;
        f->near[f->numa_pairs] = f->arena[turned ? there : here];
        f->elsewhere[f->numa_pairs++] = f->arena[turned ? here : there];
        here++;
        there++;
    }
}


static int find_numa_pairs(far_pool *pool, unsigned node, field *f) {
    uint64_t *offsets = malloc(f->count * sizeof(*offsets));
    int *numa = malloc(f->count * sizeof(*numa));
    int err = offsets && numa ? 0 : far_fail(FAR_ERR_NO_MEMORY, "no memory for a self-test");
    for (unsigned i = 0; i < f->count && err == 0; i++)
        offsets[i] = far_addr_offset(f->arena[i]);
    if (err == 0)
        err = far_fabric_places(pool->fabric, node, offsets, f->count, numa);
    bool known = err == 0;
    for (unsigned i = 0; i < f->count && known; i++)
        known = numa[i] != FAR_NUMA_UNKNOWN;
    if (known)
        pair_numa_nodes(f, numa);
    if (f->numa_pairs == 0)
        f->no_numa = known ? "the memory lies on one NUMA node" : "nobody tells on which NUMA nodes the memory lies";
    free(offsets);
    free(numa);
    return err;
}


/* Nodes of FAR_SELFTEST_NODE_LEAST have room for the fewest arenas, and for some small indexes. */
static int fail_without_room(unsigned node, unsigned arenas) {
    char needed[FAR_SIZE_TEXT], least[FAR_SIZE_TEXT];
    return far_fail(
        FAR_ERR_NO_MEMORY,
        "a self-test needs %s of free memory at each memory node, and nodes of %s at least: node %u has no room",
        far_format_size((uint64_t)arenas * ARENA, needed), far_format_size(FAR_SELFTEST_NODE_LEAST, least), node);
}


static int take_field(far_pool *pool, far_session *own, unsigned node, field *f) {
    uint64_t wanted = pool->fabric->node_bytes[node] / 32 / ARENA;
    unsigned count = wanted < ARENAS_LEAST ? ARENAS_LEAST : wanted > ARENAS_MOST ? ARENAS_MOST : (unsigned)wanted;
    int err = 0;
    for (f->count = 0; f->count < count && err == 0; f->count += err == 0)
        err = take_arena(own, node, &f->arena[f->count]);
    if (err == FAR_ERR_NO_MEMORY)
        return fail_without_room(node, count);
    return err < 0 ? err : find_numa_pairs(pool, node, f);
}


/* ---- All rules ---- */

static int run_rule_at(far_pool *pool, far_session *own, unsigned node, unsigned number, field *f, uint64_t tries,
                       far_selftest_result *result) {
    bool dies = number == FAR_SELFTESTS - 1;
    const rule *r = dies ? NULL : &rules[number];
    bout b = {.pool = pool, .tries = tries, .field = f};
    if (r) {
        b.apart = r->apart;
        b.cold = r->cold;
        b.tries = r->lookers == CROWD ? tries * 4 / CROWD : tries;
        atomic_init(&b.turn, f->counted);
    }
    if (r && r->apart == TWO_NUMA_NODES && f->no_numa) {
        result->left_out = f->no_numa;
        return 0;
    }
    int err = take_arena(own, node, &b.memory);
    if (err == 0)
        err = dies ? run_deaths(&b, own, result) : run_bout(&b, r, own, result);
    return err;
}


static int run_rules_at(far_pool *pool, far_session *own, unsigned node, uint64_t tries, far_selftest_begins begins,
                        far_selftest_result results[FAR_SELFTESTS]) {
    field *f = calloc(1, sizeof(*f));
    int err = f ? take_field(pool, own, node, f) : far_fail(FAR_ERR_NO_MEMORY, "no memory for a self-test");
    for (unsigned i = 0; i < FAR_SELFTESTS && err == 0; i++) {
        double done = (double)(node * FAR_SELFTESTS + i) / (pool->fabric->nodes * FAR_SELFTESTS);
        err = begins && begins(done, results[i].what) ? 1 : run_rule_at(pool, own, node, i, f, tries, &results[i]);
    }
    free(f);
    return err;
}


static void begin_results(const far_pool *pool, far_selftest_result results[FAR_SELFTESTS]) {
    for (unsigned i = 0; i < FAR_SELFTESTS - 1; i++)
        results[i] = (far_selftest_result){.what = rules[i].what,
                                           .capability = rules[i].capability,
                                           .claimed = rules[i].claimed(&pool->geometry.capabilities)};
    results[FAR_SELFTESTS - 1] = (far_selftest_result){.what = "no effect after a cut", .claimed = true};
}


/* ---- The record ---- */

typedef struct recording {
    unsigned refuted, recorded;
} recording;


static int record(far_task *t, void *arg) {
    recording *r = arg;
    return far_refuted_record(t, r->refuted, &r->recorded);
}


static int forget(far_task *t, void *arg) {
    (void)arg;
    return far_refuted_forget(t);
}


/* The pool's word is what counts; the nodes tell it to who looks at them. Another self-test may change the word and tell the
 * nodes first: so whoever has told them looks at the word again. */
static int change_record(far_session *own, int (*change)(far_task *t, void *arg), recording *r) {
    far_fabric *fabric = own->pool->fabric;
    int err = far_session_call(own, FAR_STATS_OTHER, false, change, r);
    for (bool told = !fabric->ops->record; err == 0 && !told;) {
        recording now = {0};
        err = fabric->ops->record(fabric, r->recorded);
        if (err == 0)
            err = far_session_call(own, FAR_STATS_OTHER, false, record, &now);
        told = now.recorded == r->recorded;
        r->recorded = err == 0 ? now.recorded : r->recorded;
    }
    return err;
}


static int record_results(far_session *own, far_selftest_result results[FAR_SELFTESTS]) {
    recording r = {0};
    for (unsigned i = 0; i < FAR_SELFTESTS; i++)
        if (results[i].claimed && results[i].broken > 0)
            r.refuted |= refuted_by(i);
    int err = change_record(own, record, &r);
    for (unsigned i = 0; i < FAR_SELFTESTS; i++) {
        results[i].recorded = (r.recorded & refuted_by(i)) != 0;
        if (results[i].tries > 0) /* at another memory node */
            results[i].left_out = NULL;
    }
    return err;
}


/* What was seen is refuted, also by a self-test that was ended, or failed, before it had tried everything. */
static int record_all(far_session *own, far_selftest_result results[FAR_SELFTESTS], int ended) {
    char why[FAR_MESSAGE_BYTES] = "";
    if (ended < 0)
        snprintf(why, sizeof(why), "%s", far_last_error());
    int err = record_results(own, results);
    return ended < 0 ? far_fail(ended, "%s", why) : err;
}


int far_selftest_forget(far_pool *pool) {
    far_session *own;
    recording r = {0};
    int err = far_session_open(pool, &own);
    if (err < 0)
        return err;
    err = change_record(own, forget, &r);
    far_session_close(own);
    return err;
}


int far_selftest(far_pool *pool, uint64_t tries, far_selftest_begins begins,
                 far_selftest_result results[FAR_SELFTESTS]) {
    far_fabric *fabric = pool->fabric;
    far_session *own;
    uint64_t each = tries / fabric->nodes < TRIES_LEAST ? TRIES_LEAST : tries / fabric->nodes;
    begin_results(pool, results);
    far_fabric_give_up_order_of_reads(fabric); /* the pool's own verbs do not rest on what is being tried */
    int err = far_session_open(pool, &own);
    if (err < 0)
        return err;
    for (unsigned node = 0; node < fabric->nodes && err == 0; node++)
        err = run_rules_at(pool, own, node, each, begins, results);
    err = record_all(own, results, err);
    far_session_close(own);
    return err;
}
