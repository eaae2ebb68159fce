/* Does a fabric do what it says? For each rule a few sessions run at once, each in a thread of the pool's host: some
 * change the memory, the others look. */
#include "verify/selftest.h"
#include "base/error.h"
#include "pool/alloc.h"
#include "pool/catalog_layout.h"
#include "pool/clients.h"
#include "pool/epoch.h"
#include "pool/handle.h"
#include "task/session.h"

#include <stdatomic.h>
#include <string.h>

#define SIDES        4
#define LINE         64u
#define IMAGE        2048u /* bytes of what is written and read as a whole */
#define WORDS        (IMAGE / 8)
#define PAGE         4096u
#define ARENA        (LINE + 2 * PAGE) /* wherever its first line begins */
#define SPREAD       256               /* arenas: 2 MiB and more */
#define EVER_FURTHER UINT64_MAX
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

struct bout { /* one rule at one memory node */
    far_pool *pool;
    far_addr memory;
    far_addr spread[SPREAD];
    uint64_t apart;      /* as the rule says */
    uint64_t tries;      /* to be done by each who looks */
    atomic_uint looking; /* sides */
    side sides[SIDES];
};

typedef struct rule {
    const char *what, *capability;
    bool (*claimed)(const far_capabilities *can);
    int (*change)(far_task *t, side *side); /* NULL: nobody beside */
    int (*look)(far_task *t, side *side);
    unsigned lookers;
    int (*judge)(far_task *t, side *sides); /* when all have ended; NULL: nothing */
    uint64_t apart;                         /* READ -> READ: the two words of a pair; EVER_FURTHER: many pairs */
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

/* Pairs of words, used in turn. One pair in one arena gets hot: it stays in the caches of processor and card. Of many the
 * words lie from 8 KiB to 2 MiB apart: in pages, huge pages and, where a node's memory lies on several, NUMA nodes of
 * their own. */
static far_addr first_word(const bout *b, uint64_t n) {
    return b->apart == EVER_FURTHER ? b->spread[n % (SPREAD / 2)] : b->memory;
}


static far_addr second_word(const bout *b, uint64_t n) {
    return b->apart == EVER_FURTHER ? b->spread[SPREAD - 1 - n % (SPREAD / 2)] : b->memory + b->apart;
}


/* One word after the other, always with the same number. */
static int count_pairs(far_task *t, side *s) {
    int err = 0;
    for (uint64_t n = 1; goes_on(s) && err == 0; n++) {
        far_write(t, first_word(s->bout, n), &n, 8);
        far_write(t, second_word(s->bout, n), &n, 8);
        err = far_wait(t);
    }
    return err;
}


static int look_at_pairs(far_task *t, side *s) {
    uint64_t first, second;
    int err = 0;
    for (; s->tries < s->bout->tries && err == 0; s->tries++) {
        far_read(t, second_word(s->bout, s->tries), &second, 8);
        far_read(t, first_word(s->bout, s->tries), &first, 8);
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
    for (unsigned i = 0; i < SIDES; i++) {
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


static const rule rules[FAR_SELFTESTS - 1] = {
    {"a READ samples before the READs behind it", "reads_in_order", has_order_of_reads, count_pairs, look_at_pairs, 2,
     NULL, LINE},
    {"... words of one line", "reads_in_order", has_order_of_reads, count_pairs, look_at_pairs, 2, NULL, 8},
    {"... words of two pages", "reads_in_order", has_order_of_reads, count_pairs, look_at_pairs, 2, NULL, PAGE},
    {"... far apart, other pages each time", "reads_in_order", has_order_of_reads, count_pairs, look_at_pairs, 2, NULL,
     EVER_FURTHER},
    {"words of 8 bytes never tear", NULL, always, write_images, look_at_words, 2, NULL, 0},
    {"units of 64 bytes never tear", "atomic_bytes=64", has_lines, write_images, look_at_lines, 2, NULL, 0},
    {"a WRITE becomes visible in rising order", NULL, always, write_images, look_backwards, 2, NULL, 0},
    {"a WRITE comes before all verbs behind it", NULL, always, NULL, look_behind_writes, 1, NULL, 0},
    {"... as others see it", NULL, always, write_and_count, look_for_what_was_counted, 2, NULL, 0},
    {"atomics of many sessions on one word", NULL, always, NULL, count_together, SIDES, judge_counts, 0},
    {"an atomic comes before the READs behind it", "atomics_in_order", has_order_of_atomics, NULL, look_behind_atomics,
     3, NULL, 0},
};


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
    return err;
}


static int take_arenas(far_session *own, unsigned node, bout *b) {
    int err = 0;
    for (unsigned i = 0; i < (b->apart == EVER_FURTHER ? SPREAD : 1) && err == 0; i++) {
        place p = {node, 0};
        err = far_session_call(own, FAR_STATS_OTHER, false, take_memory, &p);
        b->spread[i] = p.addr;
    }
    b->memory = b->spread[0];
    return err;
}


static int run_rules_at(far_pool *pool, far_session *own, unsigned node, uint64_t tries, far_selftest_begins begins,
                        far_selftest_result results[FAR_SELFTESTS]) {
    int err = 0;
    for (unsigned i = 0; i < FAR_SELFTESTS && err == 0; i++) {
        bool dies = i == FAR_SELFTESTS - 1;
        double done = (double)(node * FAR_SELFTESTS + i) / (pool->fabric->nodes * FAR_SELFTESTS);
        if (begins && begins(done, results[i].what))
            return 1;
        bout b = {.pool = pool, .tries = tries, .apart = dies ? 0 : rules[i].apart};
        err = take_arenas(own, node, &b);
        if (err == 0)
            err = dies ? run_deaths(&b, own, &results[i]) : run_bout(&b, &rules[i], own, &results[i]);
    }
    return err;
}


int far_selftest(far_pool *pool, uint64_t tries, far_selftest_begins begins,
                 far_selftest_result results[FAR_SELFTESTS]) {
    const far_fabric *fabric = pool->fabric;
    far_session *own;
    uint64_t each = tries / fabric->nodes < TRIES_LEAST ? TRIES_LEAST : tries / fabric->nodes;
    for (unsigned i = 0; i < FAR_SELFTESTS - 1; i++)
        results[i] = (far_selftest_result){.what = rules[i].what,
                                           .capability = rules[i].capability,
                                           .claimed = rules[i].claimed(&fabric->capabilities)};
    results[FAR_SELFTESTS - 1] = (far_selftest_result){.what = "no effect after a cut", .claimed = true};
    int err = far_session_open(pool, &own);
    if (err < 0)
        return err;
    for (unsigned node = 0; node < fabric->nodes && err == 0; node++)
        err = run_rules_at(pool, own, node, each, begins, results);
    far_session_close(own);
    return err < 0 ? err : 0;
}
