/* The rules of the self-test: for each rule the code of the participants that change memory, and of the readers, which
 * count results that the contract forbids. selftest.c runs them. */
#include "verify/selftest_rules.h"
#include "pool/format/clients.h"
#include "pool/format/fabric_record.h"


static far_addr line_address(const trial *b, unsigned number) {
    return b->memory + number * LINE;
}


static far_addr image_address(const trial *b) {
    return line_address(b, 16);
}


static bool readers_are_active(const participant *s) {
    return atomic_load_explicit(&s->trial->active_readers, memory_order_relaxed) > 0;
}


/* ---- Order of READs ---- */

static unsigned number_of_pairs(const trial *b) {
    if (!b->cold)
        return 1;
    return b->apart == FAR_APART        ? b->field->count / 2
           : b->apart == TWO_NUMA_NODES ? b->field->numa_pairs
                                        : b->field->count;
}


/* Returns the addresses of the pair that gets the number n. A hot rule always uses the same pair, which stays in the
 * caches of the processor and the NIC. A cold rule uses all pairs in turn, so each pair was not accessed for a whole
 * round. */
static void find_pair(const trial *b, uint64_t n, far_addr *first, far_addr *second) {
    static const unsigned within[] = {[ONE_LINE] = 8, [TWO_LINES] = LINE, [TWO_PAGES] = PAGE};
    const field *f = b->field;
    unsigned i = (unsigned)(n % number_of_pairs(b));
    *first = b->apart == TWO_NUMA_NODES ? f->near[i] : f->arena[i];
    *second = b->apart == TWO_NUMA_NODES ? f->elsewhere[i] + 3 * LINE
              : b->apart == FAR_APART    ? f->arena[f->count - 1 - i] + 2 * LINE
                                         : *first + within[b->apart];
}


/* Writes the same number to the two words of one pair after another, the first word first. */
static int write_pairs(far_task *t, participant *s) {
    field *f = s->trial->field;
    far_addr first, second;
    int err = 0;
    while (readers_are_active(s) && err == 0) {
        uint64_t n = ++f->counted;
        find_pair(s->trial, n, &first, &second);
        atomic_store_explicit(&s->trial->number_written, n, memory_order_relaxed);
        far_write(t, first, &n, 8);
        far_write(t, second, &n, 8);
        err = far_wait(t);
    }
    return err;
}


/* Reads the pair that is being written, and in every other try the pair after it, which in a cold rule was not accessed
 * for a whole round. The second word is read first, so with ordered READs the first word is never older. */
static int read_pairs(far_task *t, participant *s) {
    far_addr first_at, second_at;
    uint64_t first, second;
    int err = 0;
    for (; s->tries < s->trial->tries && err == 0; s->tries++) {
        uint64_t number_written = atomic_load_explicit(&s->trial->number_written, memory_order_relaxed);
        find_pair(s->trial, number_written + s->tries % 2, &first_at, &second_at);
        far_read(t, second_at, &second, 8);
        far_read(t, first_at, &first, 8);
        far_mark(t, FAR_VERB_ANY_ORDER); /* prevents the library from adding a fence between the READs */
        err = far_wait(t);
        s->broken += err == 0 && first < second;
    }
    return err;
}


/* ---- Tearing granules, and the order inside a WRITE ---- */

static int write_images(far_task *t, participant *s) {
    uint64_t *image = far_scratch(t, IMAGE);
    int err = image ? 0 : FAR_ERR_NO_MEMORY;
    for (uint64_t n = 1; readers_are_active(s) && err == 0; n++) {
        for (unsigned i = 0; i < WORDS; i++)
            image[i] = n << 32 | (uint32_t)n;
        far_write(t, image_address(s->trial), image, IMAGE);
        err = far_wait(t);
    }
    return err;
}


static bool granules_are_whole(const uint64_t *image, unsigned unit) {
    for (unsigned i = 0; i < WORDS; i++)
        if ((uint32_t)(image[i] >> 32) != (uint32_t)image[i] || image[i] != image[i / (unit / 8) * (unit / 8)])
            return false;
    return true;
}


static int read_granules(far_task *t, participant *s, unsigned unit) {
    uint64_t *image = far_scratch(t, IMAGE);
    int err = image ? 0 : FAR_ERR_NO_MEMORY;
    for (; s->tries < s->trial->tries && err == 0; s->tries++) {
        far_read(t, image_address(s->trial), image, IMAGE);
        err = far_wait(t);
        s->broken += err == 0 && !granules_are_whole(image, unit);
    }
    return err;
}


static int read_words(far_task *t, participant *s) {
    return read_granules(t, s, 8);
}


static int read_two_words(far_task *t, participant *s) {
    return read_granules(t, s, 16);
}


static int read_lines(far_task *t, participant *s) {
    return read_granules(t, s, LINE);
}


/* Reads the last word of the image and then the first one. Since a WRITE becomes visible in rising order, the first
 * word must not be older. */
static int read_end_then_beginning(far_task *t, participant *s) {
    uint64_t first, last;
    int err = 0;
    for (; s->tries < s->trial->tries && err == 0; s->tries++) {
        err = far_read_word(t, image_address(s->trial) + IMAGE - 8, &last);
        if (err == 0)
            err = far_read_word(t, image_address(s->trial), &first);
        s->broken += err == 0 && first < last;
    }
    return err;
}


/* ---- A WRITE takes effect before all later verbs ---- */

static int use_word_after_write(far_task *t, participant *s) {
    int err = 0;
    for (; s->tries < s->trial->tries && err == 0; s->tries++) {
        uint64_t n = s->tries + 1, read = 0, old = 0;
        far_write(t, line_address(s->trial, 2), &n, 8);
        far_read(t, line_address(s->trial, 2), &read, 8);
        far_write(t, line_address(s->trial, 3), &n, 8);
        far_faa(t, line_address(s->trial, 3), 1, &old);
        err = far_wait(t);
        s->broken += err == 0 && (read != n || old != n);
    }
    return err;
}


static int write_and_count(far_task *t, participant *s) {
    int err = 0;
    for (uint64_t n = 1; readers_are_active(s) && err == 0; n++) {
        far_write(t, line_address(s->trial, 4), &n, 8);
        far_faa(t, line_address(s->trial, 5), 1, NULL);
        err = far_wait(t);
    }
    return err;
}


static int read_counter_then_word(far_task *t, participant *s) {
    uint64_t written, counted;
    int err = 0;
    for (; s->tries < s->trial->tries && err == 0; s->tries++) {
        err = far_read_word(t, line_address(s->trial, 5), &counted);
        if (err == 0)
            err = far_read_word(t, line_address(s->trial, 4), &written);
        s->broken += err == 0 && written < counted;
    }
    return err;
}


/* ---- Atomics ---- */

/* Changes one word with each kind of atomic. `done` counts how often the CAS succeeded. */
static int count_with_atomics(far_task *t, participant *s) {
    bool masked = far_task_fabric(t)->capabilities.masked_cas;
    uint64_t added = 0, swapped = 0, upper = 0, seen = 0;
    int err = 0;
    for (; s->tries < s->trial->tries && err == 0; s->tries++) {
        uint64_t before = added, expected = swapped;
        far_faa(t, line_address(s->trial, 6), 1, &added);
        far_cas(t, line_address(s->trial, 7), expected, expected + 1, &swapped);
        if (masked) /* The masked CAS counts in the lower half of the word; the upper half must not change. */
            far_masked_cas(t, line_address(s->trial, 8), seen, 0xffffffff, (seen + 1) & 0xffffffff, 0xffffffff, &upper);
        err = far_wait(t);
        s->broken += err == 0 && s->tries > 0 && added <= before;
        s->done += err == 0 && swapped == expected;
        swapped += swapped == expected;
        s->broken += err == 0 && upper >> 32 != 0;
        seen = ((upper & 0xffffffff) == seen ? seen + 1 : upper) & 0xffffffff;
    }
    return err;
}


static int check_counts(far_task *t, participant *participants) {
    const trial *b = participants[0].trial;
    uint64_t added, swapped, all = 0, won = 0;
    for (unsigned i = 0; i < CONTENDERS; i++) {
        all += participants[i].tries;
        won += participants[i].done;
    }
    int err = far_read_word(t, line_address(b, 6), &added);
    if (err == 0)
        err = far_read_word(t, line_address(b, 7), &swapped);
    participants[0].broken += err == 0 && (added != all || swapped != won);
    return err;
}


static int read_after_atomic(far_task *t, participant *s) {
    int err = 0;
    for (; s->tries < s->trial->tries && err == 0; s->tries++) {
        uint64_t old = 0, read = 0;
        far_faa(t, line_address(s->trial, 9), 1, &old);
        far_read(t, line_address(s->trial, 9), &read, 8);
        err = far_wait(t);
        s->broken += err == 0 && read < old + 1;
    }
    return err;
}


/* ---- Client failures ---- */

/* Posts verbs and gives up its session while they are in flight. */
int far_selftest_post_and_fail(far_task *t, participant *s) {
    int err = 0;
    for (unsigned i = 0; i < LAST_VERBS && err == 0; i++) {
        far_faa(t, line_address(s->trial, 10), 1, NULL);
        err = far_post(t);
    }
    far_session_lose(t->session, FAR_ERR_FENCED);
    return 0;
}


int far_selftest_check_after_failure(far_task *t, participant *s, unsigned id, unsigned generation) {
    uint64_t before, after;
    int dead = 0, err;
    for (unsigned attempt = 0; (dead = far_client_confirm_failed(t, id, generation)) == 0; attempt++)
        far_back_off(t, attempt);
    if (dead < 0 || (err = far_read_word(t, line_address(s->trial, 10), &before)) < 0)
        return dead < 0 ? dead : err;
    far_sleep(t, 20 * far_rtt(t));
    err = far_read_word(t, line_address(s->trial, 10), &after);
    s->tries++;
    s->broken += err == 0 && after != before;
    return err;
}


/* ---- The list of rules ---- */

static bool is_always_claimed(const far_capabilities *can) {
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
        words, "reads_in_order", FAR_VIOLATED_READS_IN_ORDER, has_order_of_reads, write_pairs, read_pairs, 2, NULL,     \
            distance, is_cold                                                                                          \
    }

const rule far_selftest_rules[FAR_SELFTESTS - 1] = {
    ORDER_OF_READS("a READ takes effect before later READs", TWO_LINES, false),
    ORDER_OF_READS("... words of one line", ONE_LINE, false),
    ORDER_OF_READS("... words of two pages", TWO_PAGES, false),
    ORDER_OF_READS("... words on two NUMA nodes", TWO_NUMA_NODES, false),
    ORDER_OF_READS("... of one line, cold", ONE_LINE, true),
    ORDER_OF_READS("... of two lines, cold", TWO_LINES, true),
    ORDER_OF_READS("... of two pages, cold", TWO_PAGES, true),
    ORDER_OF_READS("... far apart, cold", FAR_APART, true),
    ORDER_OF_READS("... on two NUMA nodes, cold", TWO_NUMA_NODES, true),
    {"words of 8 bytes never tear", NULL, FAR_VIOLATED_RULE, is_always_claimed, write_images, read_words, 2, NULL, 0,
     false},
    {"granules of 16 bytes never tear", "atomic_bytes=16", FAR_VIOLATED_PAIRS, has_pairs, write_images, read_two_words,
     2, NULL, 0, false},
    {"granules of 64 bytes never tear", "atomic_bytes=64", FAR_VIOLATED_LINES, has_lines, write_images, read_lines, 2,
     NULL, 0, false},
    {"a WRITE becomes visible in rising order", NULL, FAR_VIOLATED_RULE, is_always_claimed, write_images,
     read_end_then_beginning, 2, NULL, 0, false},
    {"a WRITE takes effect before all later verbs", NULL, FAR_VIOLATED_RULE, is_always_claimed, NULL,
     use_word_after_write, 1, NULL, 0, false},
    {"... as other sessions observe it", NULL, FAR_VIOLATED_RULE, is_always_claimed, write_and_count,
     read_counter_then_word, 2, NULL, 0, false},
    {"atomics of many sessions on one word are atomic", NULL, FAR_VIOLATED_RULE, is_always_claimed, NULL,
     count_with_atomics, CONTENDERS, check_counts, 0, false},
    {"an atomic takes effect before later READs", "atomics_in_order", FAR_VIOLATED_ATOMICS_IN_ORDER,
     has_order_of_atomics, NULL, read_after_atomic, 3, NULL, 0, false},
};
