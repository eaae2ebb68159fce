/* Unit tests of DART's skip table: the caches and their tags, the choice of prefix lengths for a lookup and for the
 * list, the encoding of words, and queued registrations. */
#include "base/random.h"
#include "index/dart/skiptable/skiptable.h"
#include "pool/epoch/epoch.h"
#include "task/session.h"
#include "test.h"

#include <stdlib.h>

enum { KIB = 1024 };


/* Proves that the encodings of entries, directory words and list words return the fields that were packed. */
TEST(table_words_return_the_packed_fields) {
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


/* Proves that when a group is split into two, each of its entries belongs to one of its two halves. So the entries of a
 * group can be copied into a larger segment without the bits of the hash that select the group. */
TEST(groups_of_a_larger_segment_refine_those_of_a_smaller) {
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

/* numbers of epochs for which a node or a segment may be used */
enum { FRESH = 1 + DART_EXTRA_EPOCHS, SEGMENT = 1 + DART_SEGMENT_EPOCHS };


/* Proves that a cached directory word may be used exactly for the epochs that the tag rule permits, also when the
 * stored tag wraps. The guard is skiptable/cache_express.c, segment_is_fresh. */
TEST(a_directory_word_is_fresh_for_some_epochs_more) {
    for (uint64_t epoch = 4080; epoch < 4120; epoch++) { /* these epochs wrap the stored tag */
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
        /* store the word with an older epoch, as an older operation does */
        dart_directory_set(&directory, 700, word, epoch - 1);
        assert_int_equal(dart_directory_get(&directory, 700, epoch + SEGMENT, &fresh), word);
        assert_true(fresh);
        dart_directory_set(&directory, 700, 0, epoch);
        assert_int_equal(dart_directory_get(&directory, 700, epoch, &fresh), 0);
        dart_cache_close(&directory.words);
        assert_int_equal(far_budget_used(budget), 0);
        far_budget_free(budget);
    }
}


/* Proves that an old tag never looks new, whatever the steps of the epoch are. Fails without dart_cache_age after 4096
 * epochs. */
TEST(an_old_tag_never_looks_new) {
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


/* Proves that an old tag never looks new, also in the worst case: dart_cache_age keeps an entry because its tag is
 * recent, and then almost two periods of the tag pass before the next call of dart_cache_age. */
TEST(an_old_tag_never_looks_new_after_a_long_sleep) {
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


/* Proves that the express cache returns only stored entries, only while their tags permit it, and that it does not
 * return an entry after dart_express_drop has removed it. */
TEST(the_express_cache_gives_only_what_was_put) {
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
    assert_false(current); /* the entry must be stored again, because its tag is too old for the next epoch */
    dart_express_drop(&cache, hashes[0]);
    assert_false(dart_express_get(&cache, hashes[0], 60, &got, &current));
    dart_cache_close(&cache);
    far_budget_free(budget);
    free(hashes);
}


/* Proves that few entries use few chunks, whatever their hashes are. As the number of entries grows, more chunks are
 * used, and no entry is lost or gets another tag when the number of chunks doubles. */
TEST(the_express_cache_uses_more_chunks_as_it_fills) {
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


/* The cache has room for 256 entries. 150 entries are requested again and again, and between these requests three other
 * entries are requested once each. Proves that the 150 entries stay. Fails if every entry is admitted
 * (skiptable/cache_express.c, dart_cache_admit). */
TEST(entries_that_are_used_often_stay) {
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


/* The express cache lacks a few chunks, because another cache has taken their share of the budget. Proves that entries
 * of these chunks are not stored, and all others stay. Fails if chunks may evict each other (skiptable/cache_express.c,
 * fill_and_lock). */
TEST(entries_that_do_not_fit_evict_none) {
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


/* Two caches share a budget in which neither fits completely. Proves that together they never take more than the
 * budget. */
TEST(the_byte_budget_is_kept) {
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


/* ---- The choice of prefix lengths ---- */

static unsigned chosen_in(dart_length_class *class, unsigned turns, const unsigned *costs, unsigned usable,
                          unsigned width, unsigned first) {
    unsigned count = 0;
    for (unsigned i = 0; i < turns; i++) {
        dart_choice choice = dart_choose_arm(class, usable, width);
        assert_true(choice.count <= width && choice.first + choice.count <= usable);
        unsigned cost = choice.count ? costs[choice.first + choice.count - 1] : 9;
        dart_record_arm_cost(class, choice.arm, usable, width, cost, choice.count ? choice.count - 1 : 0);
        count += choice.count == 1 && choice.first == first;
    }
    return count;
}


/* Proves that the cheapest length is chosen nearly always, and that the choice changes after another length has become
 * the cheapest. Fails without exploration (choose.c, dart_choose_arm). */
TEST(the_cheapest_length_is_found_after_costs_change) {
    dart_length_class *class = calloc(1, sizeof(*class));
    static const unsigned first[] = {5, 3, 6, 6}, then[] = {5, 6, 2, 6};
    chosen_in(class, 200, first, 4, 2, 1);
    assert_true(chosen_in(class, 1000, first, 4, 2, 1) > 950);
    chosen_in(class, 10000, then, 4, 2, 2);
    assert_true(chosen_in(class, 1000, then, 4, 2, 2) > 950);
    assert_int_equal(dart_choose_arm(class, 0, 2).count, 0);
    free(class);
}


/* Proves that each key length has a valid class, and that longer keys never have a lower class. */
TEST(classes_cover_every_key_length) {
    unsigned last = 0;
    for (size_t length = 1; length <= 4096; length++) {
        unsigned class = dart_length_class_of(length);
        assert_true(class < DART_LENGTH_CLASSES && class >= last);
        last = class;
    }
}


static dart_sample make_sample(unsigned length, unsigned count, const unsigned *depths) {
    dart_sample s = {.key_length = length, .count = count};
    for (unsigned i = 0; i < count; i++)
        s.depths[i] = (uint16_t)depths[i];
    return s;
}


/* Proves that the greedy algorithm chooses the best lengths, for samples with a known best choice. */
TEST(the_greedy_choice_saves_most_reads) {
    dart_sample samples[DART_SAMPLES];
    uint8_t lengths[DART_LIST_MAX];
    for (unsigned i = 0; i < DART_SAMPLES; i++) /* random integers: nearly all leaves are at depth 3 */
        samples[i] = i % 200 ? make_sample(8, 4, (unsigned[]){0, 1, 2, 3}) : make_sample(8, 3, (unsigned[]){0, 1, 2});
    assert_int_equal(dart_choose_lengths(samples, DART_SAMPLES, 8, lengths), 1);
    assert_int_equal(lengths[0], 3);
    for (unsigned i = 0; i < DART_SAMPLES; i++)
        samples[i] = i % 2 ? make_sample(8, 4, (unsigned[]){0, 1, 2, 3}) : make_sample(30, 3, (unsigned[]){0, 7, 20});
    assert_int_equal(dart_choose_lengths(samples, DART_SAMPLES, 8, lengths),
                     2); /* 8 to 20 save the same, so the shortest is chosen */
    assert_int_equal(lengths[0], 3);
    assert_int_equal(lengths[1], 8);
    assert_int_equal(dart_choose_lengths(samples, DART_SAMPLES, 1, lengths), 1);
    for (unsigned i = 0; i < DART_SAMPLES; i++) /* no length is shorter than the key */
        samples[i] = make_sample(2, 3, (unsigned[]){0, 1, 2});
    assert_int_equal(dart_choose_lengths(samples, DART_SAMPLES, 8, lengths), 0);
    /* a node that is more than 63 bytes deeper than the prefix cannot be registered */
    samples[0] = make_sample(200, 2, (unsigned[]){0, 140});
    assert_true(dart_choose_lengths(samples, 1, 8, lengths) == 1 && lengths[0] >= 77);
}


/* Returns whether a newly chosen list would replace the list `now`. deep: number of sampled keys with leaves at depth
 * 3; the leaves of the other keys are at depth 2. */
static bool is_worth(unsigned deep, const dart_list *now) {
    dart_sample samples[DART_SAMPLES];
    uint8_t lengths[DART_LIST_MAX];
    for (unsigned i = 0; i < DART_SAMPLES; i++)
        samples[i] = i < deep ? make_sample(8, 4, (unsigned[]){0, 1, 2, 3}) : make_sample(8, 3, (unsigned[]){0, 1, 2});
    unsigned count = dart_choose_lengths(samples, DART_SAMPLES, 8, lengths);
    return dart_lengths_are_worth(samples, DART_SAMPLES, now, lengths, count);
}


/* Proves that the current list is kept if the new choice would differ only because a length saves a little more, or a
 * little less, than the threshold. */
TEST(a_list_stays_until_another_is_much_better) {
    const dart_list two = {.lookup_count = 1, .lookup = {2}}, both = {.lookup_count = 2, .lookup = {2, 3}},
                    more = {.lookup_count = 2, .lookup = {2, 4}}, none = {0};
    for (unsigned deep = 10; deep < 22; deep++) { /* from 16 keys on, length 3 saves 2 % */
        assert_false(is_worth(deep, &two));
        assert_false(is_worth(deep, &both));
        assert_true(is_worth(deep, &more)); /* length 4 saves nothing */
        assert_true(is_worth(deep, &none));
    }
    assert_true(is_worth(60, &two));
    assert_true(is_worth(2, &both));
}


/* ---- Queued registrations ---- */

typedef struct registration_query {
    far_index *index;
    unsigned age;    /* epochs since the registration was queued */
    unsigned length; /* prefix length of the registration */
    uint64_t entries;
} registration_query;


static int grant_task(far_task *t, void *arg) {
    registration_query *w = arg;
    dart_est_counts counts;
    dart_find f = {0};
    int err = far_pin_take(t);
    dart_find_init(&f, (far_bytes){"abc", 3}, DART_SEEK_VALUE);
    f.from_root = true;
    if (err < 0 || (err = dart_find_run(t, w->index, &f)) < 0)
        return err;
    dart_registration wish = {.node = f.path.steps[f.path.count - 1].node, .epoch = far_epoch(t) - w->age, .count = 1};
    wish.lengths[0] = (uint8_t)w->length;
    memcpy(wish.prefix, "ab", 2);
    dart_est_register_batch(t, w->index, &wish, 1);
    far_pin_drop(t);
    err = dart_est_count(t, w->index, &counts);
    w->entries = counts.entries;
    return err;
}


/* Proves that a registration is not executed after the tag rule's limit, because the node's memory may have been
 * reused. Fails if skiptable/upkeep.c, dart_est_register_batch ignores the epoch. */
TEST(a_queued_registration_expires_after_some_epochs) {
    for (unsigned old = 0; old < 2; old++) {
        far_pool *pool;
        far_session *session;
        registration_query w = {.age = FRESH + old, .length = 2};
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


/* The list drops a length after a registration under this length was queued. Proves that no entry is made under the
 * length: a client that replaces the node would not search for this entry, so the entry would remain after the node is
 * retired. Fails without skiptable/upkeep.c, lengths_still_listed. */
TEST(a_registration_for_a_dropped_length_is_not_executed) {
    static const unsigned lengths[] = {2, 1}; /* the first is a lookup length, the second is not */
    for (unsigned i = 0; i < 2; i++) {
        far_pool *pool;
        far_session *session;
        registration_query w = {.age = 0, .length = lengths[i]};
        assert_int_equal(far_pool_open("local:16M", NULL, &pool), 0);
        assert_int_equal(far_session_open(pool, &session), 0);
        assert_int_equal(far_index_create(session, "map", "dart", "adjust=0,upkeep_batch=64", &w.index), 0);
        assert_int_equal(dart_list_has_lookup(dart_est_list(dart_est_of(w.index)), lengths[i]), i == 0);
        assert_int_equal(far_insert(session, w.index, "abc", 3, "v", 1), 0);
        assert_int_equal(far_insert(session, w.index, "abd", 3, "v", 1), 0);
        assert_int_equal(far_session_call(session, FAR_STATS_OTHER, true, grant_task, &w), 0);
        assert_int_equal(w.entries, i == 0 ? 1 : 0);
        far_index_close(w.index);
        far_session_close(session);
        far_pool_close(pool);
    }
}


/* Returns the node that contains the key's leaf. */
static int node_above(far_task *t, far_index *index, const char *key, dart_node *node) {
    dart_find f = {0};
    dart_find_init(&f, (far_bytes){key, strlen(key)}, DART_SEEK_VALUE);
    f.from_root = true;
    int err = dart_find_run(t, index, &f);
    *node = f.path.steps[f.path.count - 1].node;
    return err;
}


/* Finds the address of a node's entry under a prefix of two bytes. */
static int find_entry(far_task *t, far_index *index, const char *prefix, const dart_node *node, far_addr *entry) {
    dart_bucket_read read;
    dart_bucket_read_init(dart_est_of(index), &read, prefix, 2);
    int err = dart_bucket_reads_run(t, dart_est_of(index), &read, 1);
    for (unsigned i = 0; err >= 0 && i < DART_EST_READ_SLOTS; i++)
        if (read.word && dart_word_addr(read.slots[i]) == node->addr)
            *entry = dart_est_slot_addr(&read, i);
    return err;
}


static dart_registration wish_of_two(far_task *t, const dart_node *node, const char *prefix) {
    dart_registration wish = {.node = *node, .epoch = far_epoch(t), .count = 1, .lengths = {2}};
    memcpy(wish.prefix, prefix, 2);
    return wish;
}


/* Stores a tentative word in an entry of "ab", as a redirect does, and executes the commit under the requested length.
 */
static int redirect_task(far_task *t, void *arg) {
    registration_query *w = arg;
    dart_est_counts counts;
    dart_node node;
    far_addr entry = 0;
    uint64_t seen;
    int err = far_pin_take(t);
    if (err < 0 || (err = node_above(t, w->index, "abc", &node)) < 0)
        return err;
    dart_registration wish = wish_of_two(t, &node, "ab");
    dart_est_register_batch(t, w->index, &wish, 1);
    if ((err = find_entry(t, w->index, "ab", &node, &entry)) < 0)
        return err;
    assert_true(entry != 0);
    uint64_t tentative = dart_est_tentative(far_task_client(t), far_task_generation(t), node.addr), word;
    if ((err = far_read_word(t, entry, &word)) < 0 || (err = far_cas_word(t, entry, word, tentative, &seen)) < 0)
        return err;
    uint64_t committed = dart_est_word(dart_est_fingerprint(word), node.depth - w->length, node.type, node.addr);
    wish = (dart_registration){.node = node, .epoch = far_epoch(t), .entry = entry, .tentative = tentative};
    wish.committed = committed;
    dart_est_register_batch(t, w->index, &wish, 1);
    far_pin_drop(t);
    err = dart_est_count(t, w->index, &counts);
    w->entries = counts.entries;
    return err;
}


/* A redirect has stored a tentative word under a length that the list then drops. Proves that this word is not
 * committed. Fails if skiptable/upkeep.c, dart_est_register_batch commits the word without checking the list. */
TEST(a_redirected_entry_of_a_dropped_length_is_not_committed) {
    for (unsigned length = 1; length <= 2; length++) { /* 1 is not a lookup length */
        far_pool *pool;
        far_session *session;
        registration_query w = {.length = length};
        assert_int_equal(far_pool_open("local:16M", NULL, &pool), 0);
        assert_int_equal(far_session_open(pool, &session), 0);
        assert_int_equal(far_index_create(session, "map", "dart", "adjust=0,upkeep_batch=64", &w.index), 0);
        assert_int_equal(far_insert(session, w.index, "abc", 3, "v", 1), 0);
        assert_int_equal(far_insert(session, w.index, "abd", 3, "v", 1), 0);
        assert_int_equal(far_session_call(session, FAR_STATS_OTHER, true, redirect_task, &w), 0);
        assert_int_equal(w.entries, length == 2 ? 1 : 0);
        far_index_close(w.index);
        far_session_close(session);
        far_pool_close(pool);
    }
}


/* Registers two nodes in one batch in a full pool. The segment for the entry of node "ab" exists; the segment for node
 * "cd" does not, and there is no memory to make it. */
static int register_in_full_pool_task(far_task *t, void *arg) {
    registration_query *w = arg;
    dart_est_counts counts;
    dart_node nodes[2];
    far_object object;
    far_addr entry = 0;
    int err = far_pin_take(t);
    if (err < 0 || (err = node_above(t, w->index, "abc", &nodes[0])) < 0 ||
        (err = node_above(t, w->index, "cdc", &nodes[1])) < 0)
        return err;
    dart_registration wishes[2] = {wish_of_two(t, &nodes[1], "cd"), wish_of_two(t, &nodes[0], "ab")};
    dart_est_register_batch(t, w->index, &wishes[1], 1);
    if ((err = find_entry(t, w->index, "ab", &nodes[0], &entry)) < 0 || (err = far_write_word(t, entry, 0)) < 0)
        return err;
    while (far_alloc(t, w->index, DART_TYPE_EST_SEGMENT, dart_segment_bytes(0), FAR_NODE_ANY, 0, &object) >= 0)
        ;
    dart_est_register_batch(t, w->index, wishes, 2);
    far_pin_drop(t);
    err = dart_est_count(t, w->index, &counts);
    w->entries = counts.entries;
    return err;
}


/* Proves that node "ab" gets its entry although node "cd" gets none for lack of memory. Fails if skiptable/upkeep.c,
 * read_current_buckets abandons all registrations of the batch. */
TEST(a_registration_without_memory_is_given_up_alone) {
    /* No housekeeping thread, which could free memory, or register a node, between two steps. */
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    far_pool *pool;
    far_session *session;
    registration_query w = {0};
    options.no_thread = 1;
    assert_int_equal(far_pool_open("local:8M", &options, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_create(session, "map", "dart", "adjust=0,upkeep_batch=64", &w.index), 0);
    for (const char *keys[] = {"abc", "abd", "cdc", "cdd", NULL}, **key = keys; *key; key++)
        assert_int_equal(far_insert(session, w.index, *key, 3, "v", 1), 0);
    assert_int_equal(far_session_call(session, FAR_STATS_OTHER, true, register_in_full_pool_task, &w), 0);
    assert_int_equal(w.entries, 1);
    far_index_close(w.index);
    far_session_close(session);
    far_pool_close(pool);
}


/* Reads a bucket of a segment on each of two memory nodes, with a directory word that is too old to be trusted. */
static int put_old_words_task(far_task *t, void *arg) {
    const far_index *index = arg;
    dart_est *est = dart_est_of(index);
    unsigned at_once = 0;
    for (unsigned node = 0; node < 2; node++) {
        dart_bucket_read r;
        dart_bucket_read_init(est, &r, "ab", 2);
        r.cache_consulted = true;
        r.word = dart_directory_word(0, far_addr_make(node, 1 << 20));
        assert_true(dart_bucket_read_add_verbs(t, est, &r) && r.reads_word);
        bool near = node == far_addr_node(r.dir.addr);
        assert_int_equal(r.reads_slots, near);
        at_once += near;
    }
    far_discard_batch(t);
    assert_int_equal(at_once, 1);
    return 0;
}


/* Proves that the directory word and the bucket are read in one batch only if they are on the same memory node, because
 * only then the order of the two READs proves that the bucket belongs to the segment. Fails if skiptable/lookup.c,
 * dart_bucket_read_add_verbs always reads both in one batch. */
TEST(a_bucket_elsewhere_is_read_after_its_directory_word) {
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
