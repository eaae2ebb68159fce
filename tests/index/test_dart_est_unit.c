/* Parts of DART's skip table alone: what a handle keeps and its tags, the first choice of lengths, the greedy choice of
 * a list, words. */
#include "base/random.h"
#include "index/dart/est.h"
#include "pool/epoch.h"
#include "task/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { KIB = 1024 };


static void words_keep_what_was_packed(void **state) {
    (void)state;
    far_random random;
    far_random_seed(&random, 1);
    for (unsigned i = 0; i < 10000; i++) {
        far_addr addr = far_random_below(&random, 1ull << 44) * FAR_GRANULE;
        unsigned fp = (unsigned)far_random_below(&random, 256),
                 delta = (unsigned)far_random_below(&random, DART_EST_DELTA_MAX + 1);
        unsigned type = DART_N4 + (unsigned)far_random_below(&random, DART_N256),
                 client = 1 + (unsigned)far_random_below(&random, 16382);
        uint64_t word = dart_est_word(fp, delta, (dart_node_type)type, addr),
                 tentative = dart_est_tentative(client, 7, addr);
        addr = addr ? addr : FAR_GRANULE;
        assert_false(dart_is_frozen(word) || dart_is_frozen(tentative) || dart_est_is_tentative(word));
        assert_true(dart_est_is_tentative(tentative) && !dart_est_is_committed(tentative));
        assert_int_equal(dart_est_fingerprint(word), fp);
        assert_int_equal(dart_est_delta(word), delta);
        assert_int_equal(dart_est_type(word), type);
        assert_int_equal(dart_est_client(tentative), client);
        uint64_t directory = dart_directory_word(i % 16, addr);
        assert_true(dart_word_addr(directory) == addr && dart_directory_log_groups(directory) == i % 16);
    }
}


/* A group that is split in two keeps its entries in its two halves: growing by copies needs no other bits. */
static void groups_of_a_larger_segment_refine_those_of_a_smaller(void **state) {
    (void)state;
    far_random random;
    far_random_seed(&random, 2);
    for (unsigned i = 0; i < 10000; i++) {
        uint64_t hash = far_random_next(&random);
        for (unsigned q = 0; q < DART_LOG_GROUPS_MAX; q++) {
            assert_true(dart_hash_group(hash, 0, q) < 1ull << q);
            assert_int_equal(dart_hash_group(hash, 0, q + 1) >> 1, dart_hash_group(hash, 0, q));
        }
    }
}


/* ---- Tags ---- */

enum { FRESH = 1 + DART_EXTRA_EPOCHS, SEGMENT = 1 + DART_SEGMENT_EPOCHS }; /* epochs for which one may be used */


static void a_directory_word_is_fresh_for_some_epochs_more(void **state) {
    (void)state;
    for (uint64_t epoch = 4080; epoch < 4120; epoch++) { /* over the end of the stored tag */
        far_budget *budget = far_budget_new(64 * KIB);
        dart_directory directory = {0};
        bool fresh;
        uint64_t word = dart_directory_word(3, 4096);
        assert_int_equal(dart_cache_open(&directory.words, budget, "test", 4, DART_CHUNK_WORDS), 0);
        assert_int_equal(dart_directory_get(&directory, 700, epoch, &fresh), 0);
        dart_directory_set(&directory, 700, word, epoch);
        for (uint64_t at = epoch - 1; at < epoch + 1000; at++) {
            assert_int_equal(dart_directory_get(&directory, 700, at, &fresh), word);
            assert_int_equal(fresh, at <= epoch + SEGMENT);
        }
        dart_directory_set(&directory, 700, word, epoch - 1); /* the proof of an older operation */
        assert_int_equal(dart_directory_get(&directory, 700, epoch + SEGMENT, &fresh), word);
        assert_true(fresh);
        dart_directory_set(&directory, 700, 0, epoch);
        assert_int_equal(dart_directory_get(&directory, 700, epoch, &fresh), 0);
        dart_cache_close(&directory.words);
        assert_int_equal(far_budget_used(budget), 0);
        far_budget_free(budget);
    }
}


/* Whatever the steps of the epoch: an old tag never looks new. (Without dart_cache_age it does, after 4096 epochs.) */
static void an_old_tag_never_looks_new(void **state) {
    (void)state;
    static const uint64_t steps[] = {1, 3, 500, 1023, 1024, 1025, 4095, 4096, 4097, 100000};
    for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        far_budget *budget = far_budget_new(64 * KIB);
        dart_directory directory = {0};
        dart_cache express;
        uint64_t epoch = 10, word = dart_directory_word(0, 4096), entry = dart_est_word(7, 1, DART_N8, 4096), got;
        bool fresh, current;
        assert_int_equal(dart_cache_open(&directory.words, budget, "directory", 1, DART_CHUNK_WORDS), 0);
        assert_int_equal(dart_cache_open(&express, budget, "express", 1, DART_EXPRESS_WORDS), 0);
        dart_directory_set(&directory, 5, word, epoch);
        dart_express_put(&express, 0x123456789abcdef0ull, entry, epoch);
        for (unsigned n = 0; n < 20000 && epoch < 60000; n++) {
            uint64_t next = epoch + steps[i];
            dart_cache_age(&directory.words, &express, epoch, next);
            epoch = next;
            dart_directory_get(&directory, 5, epoch, &fresh);
            bool kept = dart_express_get(&express, 0x123456789abcdef0ull, epoch, &got, &current);
            assert_int_equal(fresh, epoch <= 10 + SEGMENT);
            assert_int_equal(kept, epoch <= 10 + FRESH);
        }
        dart_cache_close(&directory.words);
        dart_cache_close(&express);
        far_budget_free(budget);
    }
}


/* The same over the edges of a period: kept once because it was young, then almost two periods are missed. */
static void an_old_tag_never_looks_new_after_a_long_sleep(void **state) {
    (void)state;
    for (uint64_t slept = 500; slept < 2 * DART_TAG_PERIOD; slept++) {
        far_budget *budget = far_budget_new(64 * KIB);
        dart_directory directory = {0};
        dart_cache express;
        uint64_t epoch = 3 * DART_TAG_PERIOD, entry = dart_est_word(7, 1, DART_N8, 4096), got;
        bool fresh, current;
        assert_int_equal(dart_cache_open(&directory.words, budget, "directory", 1, DART_CHUNK_WORDS), 0);
        assert_int_equal(dart_cache_open(&express, budget, "express", 1, DART_EXPRESS_WORDS), 0);
        dart_directory_set(&directory, 5, dart_directory_word(0, 4096), epoch - SEGMENT);
        dart_express_put(&express, 0x123456789abcdef0ull, entry, epoch - FRESH);
        dart_cache_age(&directory.words, &express, epoch - SEGMENT, epoch);
        uint64_t end = epoch + DART_TAG_PERIOD - 1;
        for (; epoch < end; epoch++)
            dart_cache_age(&directory.words, &express, epoch, epoch + 1);
        dart_cache_age(&directory.words, &express, end, end + slept);
        dart_directory_get(&directory, 5, end + slept, &fresh);
        assert_false(fresh);
        assert_false(dart_express_get(&express, 0x123456789abcdef0ull, end + slept, &got, &current));
        dart_cache_close(&directory.words);
        dart_cache_close(&express);
        far_budget_free(budget);
    }
}


static void the_express_cache_gives_only_what_was_put(void **state) {
    (void)state;
    enum { ENTRIES = 20000 };
    far_budget *budget = far_budget_new(1088 * KIB);
    dart_cache cache;
    far_random random;
    far_random_seed(&random, 3);
    uint64_t *hashes = malloc(ENTRIES * sizeof(*hashes)), got;
    bool current;
    unsigned kept = 0;
    assert_int_equal(dart_cache_open(&cache, budget, "test", 256, DART_EXPRESS_WORDS), 0);
    for (unsigned i = 0; i < ENTRIES; i++) {
        hashes[i] = far_random_next(&random);
        dart_express_put(&cache, hashes[i], dart_est_word(1, 0, DART_N8, (i + 1) * 16ull), 50);
    }
    for (unsigned i = 0; i < ENTRIES; i++)
        if (dart_express_get(&cache, hashes[i], 51, &got, &current)) {
            assert_int_equal(dart_word_addr(got), (i + 1) * 16ull);
            kept++;
        }
    assert_true(kept > ENTRIES * 9 / 10);
    assert_false(dart_express_get(&cache, hashes[0], 51 + FRESH, &got, &current));
    dart_express_put(&cache, hashes[0], dart_est_word(1, 0, DART_N8, 999 * 16), 60);
    assert_true(dart_express_get(&cache, hashes[0], 60, &got, &current) && current);
    assert_true(dart_express_get(&cache, hashes[0], 60 + FRESH, &got, &current) && dart_word_addr(got) == 999 * 16);
    assert_false(current); /* it must be put again to be known in the next epoch */
    dart_express_drop(&cache, hashes[0]);
    assert_false(dart_express_get(&cache, hashes[0], 60, &got, &current));
    dart_cache_close(&cache);
    far_budget_free(budget);
    free(hashes);
}


/* Few entries take few chunks, wherever their hashes would fall; more of them take more, and none is lost or older or
 * newer for it. */
static void the_express_cache_uses_more_chunks_as_it_fills(void **state) {
    (void)state;
    enum { CHUNKS = 1000, FEW = 4000, MANY = 120000, CHUNK = DART_EXPRESS_WORDS * 8 };
    far_budget *budget = far_budget_new(2ull * CHUNKS * CHUNK);
    dart_cache cache;
    far_random random;
    far_random_seed(&random, 8);
    uint64_t *hashes = malloc(MANY * sizeof(*hashes)), got;
    bool current;
    unsigned kept = 0;
    assert_int_equal(dart_cache_open(&cache, budget, "test", CHUNKS, DART_EXPRESS_WORDS), 0);
    for (unsigned i = 0; i < MANY; i++) {
        if (i == FEW)
            assert_true(dart_cache_used(&cache) <= 64 * CHUNK);
        hashes[i] = far_random_next(&random);
        dart_express_put(&cache, hashes[i], dart_est_word(1, 0, DART_N8, (i + 1) * 16ull), i % 2 ? 50 : 51);
    }
    for (unsigned i = 0; i < MANY; i++) {
        bool found = dart_express_get(&cache, hashes[i], 51, &got, &current);
        kept += found;
        assert_true(!found || dart_word_addr(got) == (i + 1) * 16ull);
        assert_int_equal(dart_express_get(&cache, hashes[i], 51 + FRESH, &got, &current), found && i % 2 == 0);
    }
    print_message("%u of %u were kept, in %u chunks\n", kept, MANY, (unsigned)(dart_cache_used(&cache) / CHUNK));
    assert_true(kept > MANY * 9 / 10);
    assert_true(dart_cache_used(&cache) > 64 * CHUNK && dart_cache_used(&cache) <= CHUNKS * CHUNK);
    dart_cache_close(&cache);
    assert_int_equal(far_budget_used(budget), 0);
    far_budget_free(budget);
    free(hashes);
}


/* Room for 256 entries; 150 are asked for again and again, and for each of them three that come once. (Whoever comes is
 * let in.) */
static void entries_that_are_asked_for_often_stay(void **state) {
    (void)state;
    enum { OFTEN = 150, TURNS = 200000 };
    far_budget *budget = far_budget_new(64 * KIB);
    dart_cache cache;
    far_random random;
    uint64_t often[OFTEN], got;
    bool current;
    unsigned hits = 0, asked = 0;
    far_random_seed(&random, 6);
    assert_int_equal(dart_cache_open(&cache, budget, "test", 1, DART_EXPRESS_WORDS), 0);
    for (unsigned i = 0; i < OFTEN; i++)
        often[i] = far_random_next(&random);
    for (unsigned i = 0; i < TURNS; i++) {
        bool once = far_random_below(&random, 4) != 0;
        uint64_t hash = once ? far_random_next(&random) : often[far_random_below(&random, OFTEN)];
        bool hit = dart_express_get(&cache, hash, 9, &got, &current);
        asked += !once && i > TURNS / 2;
        hits += hit && i > TURNS / 2;
        dart_express_put(&cache, hash, dart_est_word(1, 0, DART_N8, 4096), 9);
    }
    print_message("%u of %u were kept\n", hits, asked);
    assert_true(hits * 10 > asked * 8);
    dart_cache_close(&cache);
    far_budget_free(budget);
}


/* The express cache lacks a few chunks, because another cache has taken their room: those entries are not kept, all others
 * are. (When chunks pushed out each other, most of what was kept was lost again and again.) */
static void what_does_not_fit_pushes_out_nothing(void **state) {
    (void)state;
    enum { CHUNKS = 64, LACKING = 4, ENTRIES = CHUNKS * 100 };
    far_budget *budget = far_budget_new((CHUNKS - LACKING) * DART_EXPRESS_WORDS * 8);
    dart_cache express;
    unsigned kept = 0;
    assert_int_equal(dart_cache_open(&express, budget, "express", CHUNKS, DART_EXPRESS_WORDS), 0);
    for (unsigned i = 0; i < 20 * ENTRIES; i++) {
        uint64_t hash = (i % ENTRIES + 1) * 0x9e3779b97f4a7c15ull, word = dart_est_word(0, 0, DART_N8, 4096), got;
        bool current;
        if (dart_express_get(&express, hash, 9, &got, &current))
            kept += i >= 19 * ENTRIES;
        else
            dart_express_put(&express, hash, word, 9);
    }
    print_message("%u of %u are kept\n", kept, ENTRIES);
    assert_true(kept >= ENTRIES * 9 / 10);
    dart_cache_close(&express);
    far_budget_free(budget);
}


/* Two caches in a budget that holds neither: they share it, and never take more. */
static void the_byte_budget_is_kept(void **state) {
    (void)state;
    far_budget *budget = far_budget_new(64 * KIB);
    dart_directory directory = {0};
    dart_cache express;
    far_random random;
    far_random_seed(&random, 4);
    assert_int_equal(dart_cache_open(&directory.words, budget, "directory", 128, DART_CHUNK_WORDS), 0);
    assert_int_equal(dart_cache_open(&express, budget, "express", 128, DART_EXPRESS_WORDS), 0);
    for (unsigned i = 0; i < 100000; i++) {
        dart_directory_set(&directory, (unsigned)far_random_below(&random, 65536), dart_directory_word(0, 4096), 9);
        dart_express_put(&express, far_random_next(&random), dart_est_word(1, 0, DART_N8, 4096), 9);
        assert_true(far_budget_used(budget) <= 64 * KIB);
    }
    assert_true(dart_cache_used(&directory.words) >= 16 * KIB && dart_cache_used(&express) >= 16 * KIB);
    dart_cache_close(&directory.words);
    dart_cache_close(&express);
    assert_int_equal(far_budget_used(budget), 0);
    far_budget_free(budget);
}


/* ---- Choices ---- */

static unsigned chosen_in(dart_class *class, unsigned turns, const unsigned *costs, unsigned usable, unsigned width,
                          unsigned first) {
    unsigned count = 0;
    for (unsigned i = 0; i < turns; i++) {
        dart_choice choice = dart_choose(class, usable, width);
        assert_true(choice.count <= width && choice.first + choice.count <= usable);
        unsigned cost = choice.count ? costs[choice.first + choice.count - 1] : 9;
        dart_chosen_cost(class, choice.arm, usable, width, cost, choice.count ? choice.count - 1 : 0);
        count += choice.count == 1 && choice.first == first;
    }
    return count;
}


/* The cheapest length is taken nearly always; when another becomes cheaper, that one. (Without exploring, never.) */
static void the_cheapest_length_is_found_and_found_again(void **state) {
    (void)state;
    dart_class *class = calloc(1, sizeof(*class));
    static const unsigned first[] = {5, 3, 6, 6}, then[] = {5, 6, 2, 6};
    chosen_in(class, 200, first, 4, 2, 1);
    assert_true(chosen_in(class, 1000, first, 4, 2, 1) > 950);
    chosen_in(class, 10000, then, 4, 2, 2);
    assert_true(chosen_in(class, 1000, then, 4, 2, 2) > 950);
    assert_int_equal(dart_choose(class, 0, 2).count, 0);
    free(class);
}


static void classes_cover_every_key_length(void **state) {
    (void)state;
    unsigned last = 0;
    for (size_t length = 1; length <= 4096; length++) {
        unsigned class = dart_class_of(length);
        assert_true(class < DART_CLASSES && class >= last);
        last = class;
    }
}


static dart_sample sample(unsigned length, unsigned count, const unsigned *depths) {
    dart_sample s = {.key_length = length, .count = count};
    for (unsigned i = 0; i < count; i++)
        s.depths[i] = (uint16_t)depths[i];
    return s;
}


static void the_greedy_choice_saves_most_reads(void **state) {
    (void)state;
    dart_sample samples[DART_SAMPLES];
    uint8_t lengths[DART_LIST_MAX];
    for (unsigned i = 0; i < DART_SAMPLES; i++) /* random integers: nearly all leaves hang at depth 3 */
        samples[i] = i % 200 ? sample(8, 4, (unsigned[]){0, 1, 2, 3}) : sample(8, 3, (unsigned[]){0, 1, 2});
    assert_int_equal(dart_choose_lengths(samples, DART_SAMPLES, 8, lengths), 1);
    assert_int_equal(lengths[0], 3);
    for (unsigned i = 0; i < DART_SAMPLES; i++)
        samples[i] = i % 2 ? sample(8, 4, (unsigned[]){0, 1, 2, 3}) : sample(30, 3, (unsigned[]){0, 7, 20});
    assert_int_equal(dart_choose_lengths(samples, DART_SAMPLES, 8, lengths),
                     2); /* 8..20 are as good as each other: the shortest */
    assert_int_equal(lengths[0], 3);
    assert_int_equal(lengths[1], 8);
    assert_int_equal(dart_choose_lengths(samples, DART_SAMPLES, 1, lengths), 1);
    for (unsigned i = 0; i < DART_SAMPLES; i++) /* no length is shorter than the key */
        samples[i] = sample(2, 3, (unsigned[]){0, 1, 2});
    assert_int_equal(dart_choose_lengths(samples, DART_SAMPLES, 8, lengths), 0);
    samples[0] =
        sample(200, 2, (unsigned[]){0, 140}); /* more than 63 bytes between the prefix and the node are not kept */
    assert_true(dart_choose_lengths(samples, 1, 8, lengths) == 1 && lengths[0] >= 77);
}


/* So many of the keys hang at depth 3, the others at depth 2. */
static bool is_worth(unsigned deep, const dart_list *now) {
    dart_sample samples[DART_SAMPLES];
    uint8_t lengths[DART_LIST_MAX];
    for (unsigned i = 0; i < DART_SAMPLES; i++)
        samples[i] = i < deep ? sample(8, 4, (unsigned[]){0, 1, 2, 3}) : sample(8, 3, (unsigned[]){0, 1, 2});
    unsigned count = dart_choose_lengths(samples, DART_SAMPLES, 8, lengths);
    return dart_lengths_are_worth(samples, DART_SAMPLES, now, lengths, count);
}


/* Where the greedy choice is now this, now that list, because a length is just worth it or just not, the one that is
 * there stays. */
static void a_list_stays_until_another_is_much_better(void **state) {
    (void)state;
    const dart_list two = {.lookup_count = 1, .lookup = {2}}, both = {.lookup_count = 2, .lookup = {2, 3}},
                    more = {.lookup_count = 2, .lookup = {2, 4}}, none = {0};
    for (unsigned deep = 10; deep < 22; deep++) { /* 16 and more: length 3 saves 2 % */
        assert_false(is_worth(deep, &two));
        assert_false(is_worth(deep, &both));
        assert_true(is_worth(deep, &more)); /* length 4 is of no use */
        assert_true(is_worth(deep, &none));
    }
    assert_true(is_worth(60, &two));
    assert_true(is_worth(2, &both));
}


/* ---- Wishes ---- */

typedef struct wishing {
    far_index *index;
    unsigned age;    /* in epochs, of the wish */
    unsigned length; /* that it is for */
    uint64_t entries;
} wishing;


static int grant_task(far_task *t, void *arg) {
    wishing *w = arg;
    dart_est_counts counts;
    dart_find f = {0};
    int err = far_pin_take(t);
    dart_find_init(&f, (far_bytes){"abc", 3}, DART_SEEK_VALUE);
    f.to_root = true;
    if (err < 0 || (err = dart_find_run(t, w->index, &f)) < 0)
        return err;
    dart_wish wish = {.node = f.path.steps[f.path.count - 1].node, .epoch = far_epoch(t) - w->age, .count = 1};
    wish.lengths[0] = (uint8_t)w->length;
    memcpy(wish.prefix, "ab", 2);
    dart_est_grant(t, w->index, &wish, 1);
    far_pin_drop(t);
    err = dart_est_count(t, w->index, &counts);
    w->entries = counts.entries;
    return err;
}


/* A node that was seen linked too long ago may be other memory by now. (The tag of a wish not looked at.) */
static void a_wish_is_granted_for_some_epochs_only(void **state) {
    (void)state;
    for (unsigned old = 0; old < 2; old++) {
        far_pool *pool;
        far_session *session;
        wishing w = {.age = FRESH + old, .length = 2};
        assert_int_equal(far_pool_open("local:16M", NULL, &pool), 0);
        assert_int_equal(far_session_open(pool, &session), 0);
        assert_int_equal(far_index_create(session, "map", "dart", "adjust=0,upkeep_batch=64", &w.index), 0);
        assert_int_equal(far_insert(session, w.index, "abc", 3, "v", 1), 0);
        assert_int_equal(far_insert(session, w.index, "abd", 3, "v", 1), 0);
        assert_int_equal(far_session_call(session, FAR_STATS_OTHER, true, grant_task, &w), 0);
        assert_int_equal(w.entries, old ? 0 : 1);
        far_index_close(w.index);
        far_session_close(session);
        far_pool_close(pool);
    }
}


/* The adjuster has dropped a length since the wish: an entry of it would not be looked for when the node is replaced, and
 * would outlive it. (Lengths taken as they were when the wish was made.) */
static void a_wish_for_a_dropped_length_is_not_granted(void **state) {
    (void)state;
    static const unsigned lengths[] = {2, 1}; /* looked up; not */
    for (unsigned i = 0; i < 2; i++) {
        far_pool *pool;
        far_session *session;
        wishing w = {.age = 0, .length = lengths[i]};
        assert_int_equal(far_pool_open("local:16M", NULL, &pool), 0);
        assert_int_equal(far_session_open(pool, &session), 0);
        assert_int_equal(far_index_create(session, "map", "dart", "adjust=0,upkeep_batch=64", &w.index), 0);
        assert_int_equal(dart_list_looks_up(dart_est_list(dart_est_of(w.index)), lengths[i]), i == 0);
        assert_int_equal(far_insert(session, w.index, "abc", 3, "v", 1), 0);
        assert_int_equal(far_insert(session, w.index, "abd", 3, "v", 1), 0);
        assert_int_equal(far_session_call(session, FAR_STATS_OTHER, true, grant_task, &w), 0);
        assert_int_equal(w.entries, i == 0 ? 1 : 0);
        far_index_close(w.index);
        far_session_close(session);
        far_pool_close(pool);
    }
}


/* The node above a key's leaf. */
static int node_above(far_task *t, far_index *index, const char *key, dart_node *node) {
    dart_find f = {0};
    dart_find_init(&f, (far_bytes){key, strlen(key)}, DART_SEEK_VALUE);
    f.to_root = true;
    int err = dart_find_run(t, index, &f);
    *node = f.path.steps[f.path.count - 1].node;
    return err;
}


/* Where the entry of a node under a prefix of two bytes stands. */
static int find_entry(far_task *t, far_index *index, const char *prefix, const dart_node *node, far_addr *entry) {
    dart_est_read read;
    dart_est_read_init(dart_est_of(index), &read, prefix, 2);
    int err = dart_est_read_all(t, dart_est_of(index), &read, 1);
    for (unsigned i = 0; err >= 0 && i < DART_EST_READ_SLOTS; i++)
        if (read.word && dart_word_addr(read.slots[i]) == node->addr)
            *entry = dart_est_slot_addr(&read, i);
    return err;
}


static dart_wish wish_of_two(far_task *t, const dart_node *node, const char *prefix) {
    dart_wish wish = {.node = *node, .epoch = far_epoch(t), .count = 1, .lengths = {2}};
    memcpy(wish.prefix, prefix, 2);
    return wish;
}


/* An entry of "ab" becomes tentative, as by a replacement, and is to be committed under the length that is asked for. */
static int rename_task(far_task *t, void *arg) {
    wishing *w = arg;
    dart_est_counts counts;
    dart_node node;
    far_addr entry = 0;
    uint64_t seen;
    int err = far_pin_take(t);
    if (err < 0 || (err = node_above(t, w->index, "abc", &node)) < 0)
        return err;
    dart_wish wish = wish_of_two(t, &node, "ab");
    dart_est_grant(t, w->index, &wish, 1);
    if ((err = find_entry(t, w->index, "ab", &node, &entry)) < 0)
        return err;
    assert_true(entry != 0);
    uint64_t tentative = dart_est_tentative(far_task_client(t), far_task_generation(t), node.addr), word;
    if ((err = far_read_word(t, entry, &word)) < 0 || (err = far_cas_word(t, entry, word, tentative, &seen)) < 0)
        return err;
    uint64_t committed = dart_est_word(dart_est_fingerprint(word), node.depth - w->length, node.type, node.addr);
    wish = (dart_wish){.node = node, .epoch = far_epoch(t), .entry = entry, .tentative = tentative};
    wish.committed = committed;
    dart_est_grant(t, w->index, &wish, 1);
    far_pin_drop(t);
    err = dart_est_count(t, w->index, &counts);
    w->entries = counts.entries;
    return err;
}


/* The same of an entry that changes its node in place. (It is committed whatever the list says.) */
static void a_renamed_entry_of_a_dropped_length_is_not_committed(void **state) {
    (void)state;
    for (unsigned length = 1; length <= 2; length++) { /* 1 is not looked up */
        far_pool *pool;
        far_session *session;
        wishing w = {.length = length};
        assert_int_equal(far_pool_open("local:16M", NULL, &pool), 0);
        assert_int_equal(far_session_open(pool, &session), 0);
        assert_int_equal(far_index_create(session, "map", "dart", "adjust=0,upkeep_batch=64", &w.index), 0);
        assert_int_equal(far_insert(session, w.index, "abc", 3, "v", 1), 0);
        assert_int_equal(far_insert(session, w.index, "abd", 3, "v", 1), 0);
        assert_int_equal(far_session_call(session, FAR_STATS_OTHER, true, rename_task, &w), 0);
        assert_int_equal(w.entries, length == 2 ? 1 : 0);
        far_index_close(w.index);
        far_session_close(session);
        far_pool_close(pool);
    }
}


/* Wishes of two nodes, of which one has a segment for its entry and the other would need memory that is not there. */
static int grant_in_full_pool_task(far_task *t, void *arg) {
    wishing *w = arg;
    dart_est_counts counts;
    dart_node nodes[2];
    far_object object;
    far_addr entry = 0;
    int err = far_pin_take(t);
    if (err < 0 || (err = node_above(t, w->index, "abc", &nodes[0])) < 0 ||
        (err = node_above(t, w->index, "cdc", &nodes[1])) < 0)
        return err;
    dart_wish wishes[2] = {wish_of_two(t, &nodes[1], "cd"), wish_of_two(t, &nodes[0], "ab")};
    dart_est_grant(t, w->index, &wishes[1], 1);
    if ((err = find_entry(t, w->index, "ab", &nodes[0], &entry)) < 0 || (err = far_write_word(t, entry, 0)) < 0)
        return err;
    while (far_alloc(t, w->index, DART_TYPE_EST_SEGMENT, dart_segment_bytes(0), FAR_NODE_ANY, 0, &object) >= 0)
        ;
    dart_est_grant(t, w->index, wishes, 2);
    far_pin_drop(t);
    err = dart_est_count(t, w->index, &counts);
    w->entries = counts.entries;
    return err;
}


/* (All of them are given up.) */
static void a_wish_without_memory_is_given_up_alone(void **state) {
    (void)state;
    far_pool *pool;
    far_session *session;
    wishing w = {0};
    assert_int_equal(far_pool_open("local:8M", NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_create(session, "map", "dart", "adjust=0,upkeep_batch=64", &w.index), 0);
    for (const char *keys[] = {"abc", "abd", "cdc", "cdd", NULL}, **key = keys; *key; key++)
        assert_int_equal(far_insert(session, w.index, *key, 3, "v", 1), 0);
    assert_int_equal(far_session_call(session, FAR_STATS_OTHER, true, grant_in_full_pool_task, &w), 0);
    assert_int_equal(w.entries, 1);
    far_index_close(w.index);
    far_session_close(session);
    far_pool_close(pool);
}


/* A bucket of a segment of each of two memory nodes, by a directory word that is too old to be trusted. */
static int put_old_words_task(far_task *t, void *arg) {
    const far_index *index = arg;
    dart_est *est = dart_est_of(index);
    unsigned at_once = 0;
    for (unsigned node = 0; node < 2; node++) {
        dart_est_read r;
        dart_est_read_init(est, &r, "ab", 2);
        r.known = true;
        r.word = dart_directory_word(0, far_addr_make(node, 1 << 20));
        assert_true(dart_est_read_put(t, est, &r) && r.asked_word);
        bool near = node == far_addr_node(r.spot.addr);
        assert_int_equal(r.asked_slots, near);
        at_once += near;
    }
    far_forget(t);
    assert_int_equal(at_once, 1);
    return 0;
}


/* Only one memory node keeps the order of the two READs, which tells that the bucket is of that segment. (Always at
 * once.) */
static void a_bucket_elsewhere_is_read_behind_its_directory_word(void **state) {
    (void)state;
    far_pool *pool;
    far_session *session;
    far_index *index;
    assert_int_equal(far_pool_open("local:2x16M", NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_create(session, "map", "dart", "adjust=0", &index), 0);
    assert_int_equal(far_session_call(session, FAR_STATS_OTHER, true, put_old_words_task, index), 0);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_renamed_entry_of_a_dropped_length_is_not_committed),
        cmocka_unit_test(a_wish_without_memory_is_given_up_alone),
        cmocka_unit_test(a_bucket_elsewhere_is_read_behind_its_directory_word),
        cmocka_unit_test(a_wish_for_a_dropped_length_is_not_granted),
        cmocka_unit_test(a_wish_is_granted_for_some_epochs_only),
        cmocka_unit_test(words_keep_what_was_packed),
        cmocka_unit_test(groups_of_a_larger_segment_refine_those_of_a_smaller),
        cmocka_unit_test(a_directory_word_is_fresh_for_some_epochs_more),
        cmocka_unit_test(an_old_tag_never_looks_new),
        cmocka_unit_test(an_old_tag_never_looks_new_after_a_long_sleep),
        cmocka_unit_test(the_express_cache_gives_only_what_was_put),
        cmocka_unit_test(the_express_cache_uses_more_chunks_as_it_fills),
        cmocka_unit_test(entries_that_are_asked_for_often_stay),
        cmocka_unit_test(what_does_not_fit_pushes_out_nothing),
        cmocka_unit_test(the_byte_budget_is_kept),
        cmocka_unit_test(the_cheapest_length_is_found_and_found_again),
        cmocka_unit_test(classes_cover_every_key_length),
        cmocka_unit_test(the_greedy_choice_saves_most_reads),
        cmocka_unit_test(a_list_stays_until_another_is_much_better),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
