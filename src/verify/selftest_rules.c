/* The rules that a self-test tries: for each what those who change the memory do, and what those who look may never
 * see. */
#include "verify/selftest_rules.h"
#include "pool/clients.h"
#include "pool/refuted.h"


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


static int look_at_two_words(far_task *t, side *s) {
    return look_at_units(t, s, 16);
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
int far_selftest_work_and_die(far_task *t, side *s) {
    int err = 0;
    for (unsigned i = 0; i < LAST_VERBS && err == 0; i++) {
        far_faa(t, line(s->bout, 10), 1, NULL);
        err = far_post(t);
    }
    far_session_lose(t->session, FAR_ERR_FENCED);
    return 0;
}


int far_selftest_look_after_death(far_task *t, side *s, unsigned id, unsigned generation) {
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


/* ---- The list ---- */

static bool always(const far_capabilities *can) {
    return can->atomic_bytes > 0;
}


static bool has_pairs(const far_capabilities *can) {
    return can->atomic_bytes == 16;
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

const rule far_selftest_rules[FAR_SELFTESTS - 1] = {
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
    {"units of 16 bytes never tear", "atomic_bytes=16", FAR_REFUTED_PAIRS, has_pairs, write_images, look_at_two_words,
     2, NULL, 0, false},
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
