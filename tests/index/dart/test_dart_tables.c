/* Tables of DART's skip table: a full segment becomes a table of the directory, while other clients remove entries,
 * register nodes, look up entries, or fail, or while there is no memory. The comment of each test names the guard
 * without which the test was seen to fail. */
#include "dart_tables_rig.h"
#include "test.h"

#include "verify/explore.h"


/* ---- Removing and registering meanwhile ---- */

static void remove_while_table_is_made(const char *sim, const char *point) {
    stage s;
    set_up(&s, sim, CALM);
    INSERT_KEYS(&s.b, SEVEN_KEYS("ab"));
    finish_background(&s);
    dart_node x = node_at(&s.c, "aba", 2);
    assert_int_equal(count_entries_of(&s.c, x.addr), 1);
    fill_until(&s.a, point);
    assert_false(dart_is_table(top_word(&s)));
    start_with_background_until(&s.b, "b", FAR_OP_INSERT, "abx", "b", "dart:retire", 1);
    assert_true(node_at(&s.c, "aba", 2).addr != x.addr);
    assert_true(dart_is_table(top_word(&s)));
    expect_result(&s.a, 0);
    assert_int_equal(count_entries_of(&s.c, x.addr), 0);
    expect_result(&s.b, 0);
    finish_background(&s);
    assert_int_equal(count_entries_of(&s.c, x.addr), 0);
    let_memory_be_reused(&s, &s.c);
    expect_pairs(&s.c, 0, ENOUGH);
    expect_get(&s.c, "abx", "b");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* A replaces a segment by a table when B must remove the entry of X. A has frozen the segment, or has also written the
 * table with the entry of X. Proves that B completes the table itself and removes the entry. Fails if
 * skiptable/upkeep.c, add_removals ignores frozen slots. */
EST_RACE(the_remover_finishes_the_table) {
    remove_while_table_is_made(sim, "dart:est_frozen");
    remove_while_table_is_made(sim, "dart:est_install_table");
}


/* Replaces the only segment by a larger one or by a table. */
static int grow_task(far_task *t, void *arg) {
    far_index *index = arg;
    dart_dir_slot spot = dart_dir_slot_at(dart_est_of(index), 0);
    uint64_t word;
    int err = far_pin_take(t);
    if (err >= 0 && (err = far_read_word(t, spot.addr, &word)) >= 0)
        err = dart_est_grow(t, index, &spot, word, false);
    far_pin_drop(t);
    return err;
}


static void register_while_table_is_made(const char *sim, const char *point) {
    stage s;
    set_up(&s, sim, CALM);
    INSERT_KEYS(&s.b, "aaq", "aar", "aba");
    finish_background(&s);
    start_with_background_until(&s.a, "a", FAR_OP_INSERT, "abb", "abb", point, 1);
    dart_node x = node_at(&s.c, "aba", 2);
    uint64_t old = top_word(&s);
    assert_true(x.addr && old && !dart_is_table(old));
    /* B makes the table directly, without registrations in between, because in a full bucket another word would take
     * the place of A's tentative word. */
    assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, true, grow_task, s.b.index), 0);
    assert_true(dart_is_table(top_word(&s)));
    resume_until(&s.a, "dart:est_committed", 1);
    for (unsigned i = 0; i < DART_EST_GROUP_SLOTS; i++) {
        uint64_t word = world_word(s.world, dart_word_addr(old) + 8 * i);
        assert_true(dart_is_frozen(word) && !(dart_est_is_committed(word) && dart_word_addr(word) == x.addr));
    }
    if (strcmp(point, "dart:est_slots_chosen") == 0)
        assert_int_equal(count_entries_of(&s.c, x.addr), 1); /* A's first CAS failed, and A tried again in the table */
    expect_result(&s.a, 0);
    insert_pairs(&s.b, 0, ENOUGH);
    INSERT_KEYS(&s.c, "abc", "abd", "abe", "abf", "abg", "abh", "abi", "abj", "abk", "abl", "abm", "abn");
    finish_background(&s);
    assert_true(node_at(&s.c, "aba", 2).addr != x.addr);
    assert_int_equal(count_entries_of(&s.c, x.addr), 0);
    let_memory_be_reused(&s, &s.c);
    expect_pairs(&s.c, 0, ENOUGH);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* B replaces the segment by a table while A registers a node there: A has chosen a slot, or has written its tentative
 * word, or has validated the node. Proves that A's entry is not committed in the old segment, because no client would
 * remove it there. If A had only chosen a slot, A finds another one in a segment of the table. Fails if tentative or
 * empty words are not frozen (skiptable/grow.c, freeze_segment), or if A keeps the old directory word
 * (skiptable/upkeep.c, restart_search). */
EST_RACE(the_registrar_continues_in_the_table) {
    register_while_table_is_made(sim, "dart:est_slots_chosen");
    register_while_table_is_made(sim, "dart:est_tentative");
    register_while_table_is_made(sim, "dart:est_validated");
}


/* A fails after it has begun to make a table. Proves that B can still read, and completes the table when B needs the
 * segment. Fails if the walk does not report tables (skiptable/traverse.c, walk_segment). */
EST_RACE(a_failed_clients_table_is_finished) {
    static const char *const points[] = {"dart:est_frozen", "dart:est_install_table"};
    for (unsigned i = 0; i < 2; i++) {
        stage s;
        set_up(&s, sim, CALM);
        INSERT_KEYS(&s.b, SEVEN_KEYS("ab"));
        finish_background(&s);
        fill_until(&s.a, points[i]);
        stage_kill(&s, &s.a);
        expect_get(&s.b, "abc", "abc");
        assert_false(dart_is_table(top_word(&s)));
        run_with_background(&s.b, "b", FAR_OP_INSERT, "abx", "b");
        finish_background(&s);
        assert_true(dart_is_table(top_word(&s)));
        assert_int_equal(count_entries_of(&s.b, node_at(&s.b, "aba", 2).addr), 1);
        expect_sound(&s, &s.b);
        tear_down(&s);
    }
}


/* ---- What handles cache ---- */

typedef struct entry_query {
    far_index *index;
    far_addr node; /* the node that an entry of "ab" should name */
    unsigned rounds, level;
    bool found;
} entry_query;


static int entry_query_task(far_task *t, void *arg) {
    entry_query *l = arg;
    dart_est *est = dart_est_of(l->index);
    dart_bucket_read r;
    int err = far_pin_take(t);
    dart_bucket_read_init(est, &r, "ab", 2);
    for (l->rounds = 0; err >= 0 && dart_bucket_read_add_verbs(t, est, &r); l->rounds++)
        if ((err = far_wait(t)) >= 0)
            err = dart_bucket_read_process(t, est, &r);
    far_pin_drop(t);
    l->level = r.dir.level;
    l->found = false;
    for (unsigned i = 0; r.word && i < DART_EST_READ_SLOTS; i++)
        l->found |= dart_est_is_committed(r.slots[i]) && dart_word_addr(r.slots[i]) == l->node;
    return err < 0 ? err : 0;
}


/* Looks up "ab" in the table. Asserts that the entry is found at this level of the directory, in this number of round
 * trips. */
static void expect_entry_at(actor *a, far_addr node, unsigned level, unsigned rounds) {
    entry_query l = {.index = a->index, .node = node};
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, entry_query_task, &l), 0);
    assert_true(l.found);
    assert_int_equal(l.level, level);
    assert_int_equal(l.rounds, rounds);
}


/* A makes a table. If `cache` is set, C has cached the directory word of the segment before; otherwise C has no cache.
 * If `aged` is set, so many epochs pass that the old segment is free. Then C looks up entries. */
static void lookup_with_an_old_word(const char *sim, bool cache, bool aged) {
    stage s;
    set_up(&s, sim, CALM ",express_cache=0,slot_cache=0");
    INSERT_KEYS(&s.b, SEVEN_KEYS("ab"));
    finish_background(&s);
    dart_node x = node_at(&s.b, "aba", 2);
    dart_directory *kept = &dart_est_of(s.c.index)->directory;
    if (!cache)
        dart_cache_close(&kept->words);
    expect_entry_at(&s.c, x.addr, 0, 2); /* the directory word, the bucket */
    expect_entry_at(&s.c, x.addr, 0, cache ? 1 : 2);
    uint64_t old = top_word(&s);
    fill_until(&s.a, NULL);
    uint64_t table = top_word(&s);
    assert_true(dart_is_table(table));
    if (aged) {
        let_memory_be_reused(&s, &s.a);
        advance_epochs(&s, &s.a, 8 + DART_SEGMENT_EPOCHS);
        expect_free(&s, dart_word_addr(old));
    }
    /* The READs are: the old bucket, which is frozen; the directory word; the word in the table; the bucket there. If
     * the cached word is too old, the first READ is left out. */
    expect_entry_at(&s.c, x.addr, 1, cache && !aged ? 4 : 3);
    expect_entry_at(&s.c, x.addr, 1, cache ? 1 : 2);
    bool fresh;
    /* A slow task may still have seen an unfrozen slot of the old segment. It would then store the old directory word
     * in the cache, as this call does. The cache must keep the newer word, which names the table. */
    dart_directory_set(kept, 1, old, 1 << 20);
    assert_true(dart_directory_get(kept, 1, 1 << 20, &fresh) == table && fresh);
    expect_entry_at(&s.c, x.addr, 1, cache ? 1 : 2);
    expect_pairs(&s.c, 0, ENOUGH);
    world_assert_no_checker_error(s.world);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* Proves that C reads the directory words on the way to the new segment once, and then knows the table without a limit
 * of time. Fails if handles do not cache tables, if a segment replaces a table in the cache, or if tags are ignored
 * (skiptable/cache_express.c, dart_directory_set and dart_directory_get). */
EST_RACE(a_handle_that_cached_the_word_of_the_segment) {
    for (unsigned i = 0; i < 4; i++)
        lookup_with_an_old_word(sim, i & 1, i & 2);
}


/* A handle always remembers the first DART_TABLES_CACHED tables; tables with higher numbers are only in its cache of
 * directory words. Proves that a word which names a segment does not replace a word which names a table in this cache.
 * Fails if skiptable/cache_express.c, dart_directory_set permits such a replacement. */
TEST(a_table_is_not_forgotten_for_a_segment) {
    far_budget *budget = far_budget_new(64 << 10);
    dart_directory directory = {0};
    bool fresh;
    uint64_t table = dart_table_word(4096), segment = dart_directory_word(0, 8192);
    assert_int_equal(dart_cache_open(&directory.words, budget, "test", 4, DART_CHUNK_WORDS), 0);
    for (unsigned at = 1; at < 4 * DART_CHUNK_WORDS; at += DART_CHUNK_WORDS) {
        dart_directory_set(&directory, at, segment, 5);
        dart_directory_set(&directory, at, table, 5);
        dart_directory_set(&directory, at, segment, 6);
        dart_directory_set(&directory, at, 0, 7);
        assert_true(dart_directory_get(&directory, at, 2000, &fresh) == table && fresh);
    }
    dart_cache_close(&directory.words);
    far_budget_free(budget);
}


/* ---- The slots of entries ---- */

enum { PLACES_MAX = 64 };

typedef struct entry_slots {
    far_index *index;
    /* count: number of entries; beyond: number of entries that are preceded by an empty slot of their bucket */
    unsigned count, beyond;
    struct {
        uint64_t word;
        unsigned slot; /* number of the slot in its group */
    } at[PLACES_MAX];
} entry_slots;


static int note_places(far_task *t, far_index *index, const dart_dir_slot *spot, uint64_t word, const uint64_t *slots,
                       unsigned count, void *ctx) {
    (void)t, (void)index, (void)spot, (void)word;
    entry_slots *p = ctx;
    for (unsigned i = 0; i < count; i++)
        if (dart_est_is_committed(slots[i])) {
            assert_true(p->count < PLACES_MAX);
            p->at[p->count].word = slots[i];
            p->at[p->count++].slot = i % DART_EST_GROUP_SLOTS;
            p->beyond += i % DART_EST_BUCKET > 0 && slots[i - 1] == 0;
        }
    return 0;
}


static int places_task(far_task *t, void *arg) {
    entry_slots *p = arg;
    int err = far_pin_take(t);
    for (unsigned place = 0; err >= 0 && place < dart_est_places(dart_est_of(p->index));)
        err = dart_est_visit_segments(t, p->index, &place, note_places, p);
    far_pin_drop(t);
    return err < 0 ? err : 0;
}


static entry_slots entry_slots_of(actor *a) {
    entry_slots p = {.index = a->index};
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, places_task, &p), 0);
    return p;
}


static void expect_same_slots(const entry_slots *before, const entry_slots *after) {
    assert_int_equal(after->count, before->count);
    for (unsigned i = 0; i < before->count; i++) {
        unsigned j = 0;
        while (j < after->count && after->at[j].word != before->at[i].word)
            j++;
        assert_true(j < after->count);
        assert_int_equal(after->at[j].slot, before->at[i].slot);
    }
}


/* The only segment is replaced by a segment of two groups, then of four groups, then by a table. Proves that entries
 * keep the number of their slot in the group. They must, because handles have cached these numbers. Fails if
 * skiptable/grow.c, copy_entry uses the first free slot. */
EST_RACE(entries_keep_their_slots) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,directory_bits=0,adjust=0,segment_log=2");
    insert_pairs(&s.a, 0, 14);
    finish_background(&s);
    entry_slots before = entry_slots_of(&s.c);
    assert_int_equal(before.count, 14);
    assert_int_equal(dart_directory_log_groups(top_word(&s)), 0);
    for (unsigned log_groups = 1; log_groups <= 3; log_groups++) {
        assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, true, grow_task, s.b.index), 0);
        if (log_groups < 3)
            assert_int_equal(dart_directory_log_groups(top_word(&s)), log_groups);
        else
            assert_true(dart_is_table(top_word(&s)));
        entry_slots after = entry_slots_of(&s.c);
        expect_same_slots(&before, &after);
        assert_true(after.beyond > 0);
    }
    expect_pairs(&s.c, 0, 14);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* ---- A failure at every verb ---- */

/* BEFORE: number of nodes that are registered before the failing client begins; DURING: number that this client
 * registers. Together their entries fill the only segment. */
enum { BEFORE = 24, DURING = 2 };

static unsigned tables_of_victims;


static int put_pair(far_session *s, far_index *index, unsigned i, char last) {
    char key[4], byte;
    name_of(i, key);
    key[2] = last;
    int err = far_put(s, index, key, 3, "value", 5);
    for (unsigned j = 0; j < 12; j++)
        far_get(s, index, "~", 1, &byte, 1, NULL);
    return err;
}


static int prepare_pairs(far_session *s, far_index *index, void *ctx) {
    (void)ctx;
    for (unsigned i = 0; i < BEFORE; i++)
        for (char last = '1'; last <= '2'; last++)
            if (put_pair(s, index, i, last) < 0)
                return -1;
    return 0;
}


static int make_a_table(far_session *s, far_index *index, void *ctx) {
    (void)ctx;
    for (unsigned i = BEFORE; i < BEFORE + DURING; i++)
        for (char last = '1'; last <= '2'; last++)
            put_pair(s, index, i, last);
    return 0;
}


static int use_all_pairs(far_session *s, far_index *index, void *ctx) {
    (void)ctx;
    char value[8], key[4];
    tables_of_victims += count_tables(s, index) > 0;
    for (unsigned i = 0; i < BEFORE + DURING + 12; i++)
        for (char last = '1'; last <= '2'; last++) {
            name_of(i, key);
            key[2] = last;
            if (i < BEFORE && far_get(s, index, key, 3, value, sizeof(value), NULL) != 0)
                return -1;
            if (put_pair(s, index, i, last) < 0)
                return -1;
        }
    return count_tables(s, index) == 1 ? 0 : -1;
}


/* A client fails at every verb while a table is made. Proves that the other clients can use the index, the table is
 * sound, and a collection leaves no leaked byte: it frees a table that was not published, and does not free a published
 * table. Fails if the walk does not report tables. */
TEST(failure_while_making_a_table) {
    for (unsigned i = 0; i < 2; i++) {
        far_explore e = {.kind = "dart",
                         .options = CALM,
                         .sim = i ? "masked_cas=off,atomic_bytes=8" : "masked_cas=on",
                         .prepare = prepare_pairs,
                         .victim = make_a_table,
                         .survive = use_all_pairs,
                         .collect = true,
                         .out = stderr};
        far_explore_result result;
        tables_of_victims = 0;
        assert_int_equal(far_explore_run(&e, &result), 0);
        assert_int_equal(result.problems, 0);
        assert_true(result.cuts >= 60 && tables_of_victims >= 1 && tables_of_victims < result.cuts);
    }
}


/* ---- No memory ---- */

enum { HOG_MAX = 1 << 16 };

typedef struct shortage {
    far_index *index;
    unsigned segments; /* number of segments that can still be allocated */
    bool tables;       /* one table can still be allocated */
    bool help;
    int result;
    unsigned left[2]; /* number of segments and tables that can be allocated afterwards */
    unsigned taken[2];
    far_addr addrs[2][HOG_MAX];
} shortage;

static const struct {
    unsigned type;
    uint64_t bytes;
} hogged[2] = {{DART_TYPE_EST_SEGMENT, DART_EST_GROUP_BYTES}, {DART_TYPE_EST_DIRECTORY, DART_TABLE_BYTES}};


static int take_objects(far_task *t, shortage *h, unsigned kind, unsigned most) {
    far_object object;
    int err = 0;
    while (h->taken[kind] < most &&
           (err = far_alloc(t, h->index, hogged[kind].type, hogged[kind].bytes, FAR_NODE_ANY, 0, &object)) >= 0)
        h->addrs[kind][h->taken[kind]++] = object.addr;
    return err == FAR_ERR_NO_MEMORY ? 0 : err;
}


static void free_objects(far_task *t, shortage *h, unsigned kind, unsigned count) {
    for (; count > 0 && h->taken[kind] > 0; count--)
        far_free(t, h->index, hogged[kind].type, h->addrs[kind][--h->taken[kind]], hogged[kind].bytes);
}


/* Replaces the only segment by a table, while this task holds nearly all memory of the pool. */
static int grow_without_memory_task(far_task *t, void *arg) {
    shortage *h = arg;
    dart_dir_slot spot = dart_dir_slot_at(dart_est_of(h->index), 0);
    uint64_t word;
    int err = far_pin_take(t);
    if (err >= 0 && (err = take_objects(t, h, 1, 1)) >= 0 && (err = take_objects(t, h, 0, HOG_MAX)) >= 0)
        err = take_objects(t, h, 1, HOG_MAX);
    assert_true(err < 0 || (h->taken[0] < HOG_MAX && h->taken[1] < HOG_MAX));
    if (h->tables)
        free_objects(t, h, 1, 1);
    free_objects(t, h, 0, h->segments);
    if (err >= 0 && (err = far_read_word(t, spot.addr, &word)) >= 0)
        h->result = dart_est_grow(t, h->index, &spot, word, h->help);
    unsigned before[2] = {h->taken[0], h->taken[1]};
    for (unsigned kind = 0; err >= 0 && kind < 2; kind++) {
        err = take_objects(t, h, kind, HOG_MAX);
        h->left[kind] = h->taken[kind] - before[kind];
    }
    free_objects(t, h, 0, HOG_MAX);
    free_objects(t, h, 1, HOG_MAX);
    far_pin_drop(t);
    return err < 0 ? err : 0;
}


/* Replaces the segment by a table in a pool with little memory. If `help` is set, A has frozen the segment, and B
 * helps; otherwise B begins the replacement itself. */
static void grow_without_memory(const char *sim, bool help, bool tables, unsigned segments) {
    static shortage h;
    stage s;
    bool enough = tables && segments == DART_TABLE_WORDS;
    set_up(&s, sim, CALM);
    INSERT_KEYS(&s.b, SEVEN_KEYS("ab"));
    finish_background(&s);
    fill_until(&s.a, help ? "dart:est_frozen" : "dart:est_slots_chosen");
    uint64_t old = top_word(&s);
    h = (shortage){.index = s.b.index, .tables = tables, .segments = segments, .help = help};
    assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, false, grow_without_memory_task, &h), 0);
    assert_int_equal(h.result, enough || help ? 0 : FAR_ERR_NO_MEMORY);
    assert_int_equal(h.left[0], enough ? 0 : segments);
    assert_int_equal(h.left[1], tables && !enough);
    uint64_t now = top_word(&s);
    if (enough)
        assert_true(dart_is_table(now));
    else
        assert_true(now == (help ? 0 : old));
    for (unsigned i = 0; now && !enough && i < DART_EST_GROUP_SLOTS; i++)
        assert_false(dart_is_frozen(world_word(s.world, dart_word_addr(now) + 8 * i)));
    expect_result(&s.a, 0);
    run_with_background(&s.b, "b", FAR_OP_INSERT, "abx", "b"); /* now the pool has memory */
    insert_pairs(&s.b, 100, 140);
    assert_true(dart_is_table(top_word(&s)));
    finish_background(&s);
    expect_sound(&s, &s.b);
    tear_down(&s);
}


/* A table or one of its segments cannot be allocated. Proves that the parts that were allocated are freed. If B began
 * the replacement, B must not freeze any slot of the old segment. If A has frozen the old segment before, B must
 * replace the directory word by 0, which drops the old segment. Fails if the parts are not freed (skiptable/grow.c,
 * allocate_new), if the table is allocated after the freeze, or if a client that helps ends without replacing the
 * directory word. */
EST_RACE(a_table_without_memory) {
    for (unsigned help = 0; help < 2; help++) {
        grow_without_memory(sim, help, false, DART_TABLE_WORDS);
        grow_without_memory(sim, help, true, 0);
        grow_without_memory(sim, help, true, DART_TABLE_WORDS - 1);
        grow_without_memory(sim, help, true, DART_TABLE_WORDS);
    }
}


/* ---- A table on another memory node than the word that will name it ---- */

typedef struct table_write {
    far_addr addr; /* address of the table; 0 while it is not written */
} table_write;


static void note_table(void *ctx, const far_sim_posted *posted) {
    table_write *w = ctx;
    if (!w->addr && posted->verb->kind == FAR_WRITE && posted->verb->length == DART_TABLE_BYTES)
        w->addr = posted->verb->addr;
}


/* Holds back the WRITE of the table, if a former run has found its address. */
static void write_table(table_write *w) {
    stage s;
    bool known = w->addr != 0;
    set_up(&s, "masked_cas=on", CALM);
    unsigned node = far_addr_node(dart_dir_slot_at(dart_est_of(s.a.index), 0).addr);
    fill_memory_node(s.a.session, (node_to_fill){s.a.index, node, DART_TYPE_EST_DIRECTORY, DART_TABLE_BYTES});
    far_sim_on_verb(s.world, note_table, w);
    stage_start_main(&s.a, "fills", fill_table);
    if (known) {
        far_sim_hold *hold = far_sim_hold_effect(
            s.a.client, (far_sim_match){.kind = FAR_SIM_WRITE, .from = w->addr, .to = w->addr + DART_TABLE_BYTES});
        while (!far_sim_reached(hold))
            assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_HELD);
        /* the client continues as far as it can without the WRITE */
        assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_HELD);
        assert_false(dart_is_table(top_word(&s)));
        far_sim_release(hold);
    }
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    far_sim_on_verb(s.world, NULL, NULL);
    assert_true(dart_is_table(top_word(&s)) && dart_word_addr(top_word(&s)) == w->addr);
    assert_true(far_addr_node(w->addr) != node);
    expect_pairs(&s.c, 0, ENOUGH);
    tear_down(&s);
}


/* Proves that a table on another memory node is written before the word names it. Fails if the CAS is in the batch of
 * the WRITE (skiptable/grow.c, publish_new). */
TEST(a_table_elsewhere_is_written_before_it_is_named) {
    table_write w = {0};
    write_table(&w);
    write_table(&w);
}


/* ---- An index of a version without tables ---- */

/* Proves that an index that was created by a version without tables gets no tables, because programs of the old version
 * may have it open. */
TEST(an_index_of_an_old_version_gets_no_tables) {
    stage s;
    set_up(&s, "masked_cas=on", CALM);
    uint64_t magic = DART_MAGIC_OLD;
    memcpy(world_bytes(s.world, s.a.index->descriptor), &magic, 8);
    far_index_close(s.a.index);
    assert_int_equal(far_index_open(s.a.session, "map", &s.a.index), 0);
    insert_pairs(&s.a, 0, 4 * ENOUGH);
    finish_background(&s);
    assert_int_equal(count_tables(s.a.session, s.a.index), 0);
    assert_true(dart_directory_log_groups(world_word(s.world, dart_dir_slot_at(dart_est_of(s.a.index), 0).addr)) > 0);
    expect_pairs(&s.c, 0, 4 * ENOUGH);
    expect_sound(&s, &s.a);
    tear_down(&s);
}
