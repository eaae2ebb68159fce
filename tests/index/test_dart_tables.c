/* DART's skip table: a segment that is full becomes a table of the directory. Who removes, registers, looks up or dies
 * beside that; without memory. The mutation that was tried, and made the test fail, stands in brackets. */
#include "dart_tables_rig.h"

#include "verify/explore.h"


/* ---- Remover and registrar ---- */

static void remover_meets_the_making(const char *sim, const char *point) {
    stage s;
    set_up(&s, sim, CALM);
    LOAD(&s.b, SEVEN("ab"));
    settle(&s);
    dart_node x = node_at(&s.c, "aba", 2);
    assert_int_equal(names_of(&s.c, x.addr), 1);
    fill_to(&s.a, point);
    assert_false(dart_is_table(top_word(&s)));
    busy_to(&s.b, "b", FAR_OP_INSERT, "abx", "b", "dart:retire", 1);
    assert_true(node_at(&s.c, "aba", 2).addr != x.addr);
    assert_true(dart_is_table(top_word(&s)));
    finish(&s.a, 0);
    assert_int_equal(names_of(&s.c, x.addr), 0);
    finish(&s.b, 0);
    settle(&s);
    assert_int_equal(names_of(&s.c, x.addr), 0);
    let_memory_go(&s, &s.c);
    holds_pairs(&s.c, 0, ENOUGH);
    reads(&s.c, "abx", "b");
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* a has frozen the segment, or has written the table with the entry of X too, when b must remove that entry: b makes
 * the table itself. (The remover passes over frozen slots.) */
EST_RACE(the_remover_finishes_the_table) {
    remover_meets_the_making(sim, "dart:est_frozen");
    remover_meets_the_making(sim, "dart:est_table");
}


/* The only segment is replaced by a larger one, or by a table. */
static int grow_task(far_task *t, void *arg) {
    far_index *index = arg;
    dart_spot spot = dart_spot_at(dart_est_of(index), 0);
    uint64_t word;
    int err = far_pin_take(t);
    if (err >= 0 && (err = far_read_word(t, spot.addr, &word)) >= 0)
        err = dart_est_grow(t, index, &spot, word, false);
    far_pin_drop(t);
    return err;
}


static void registrar_meets_the_making(const char *sim, const char *point) {
    stage s;
    set_up(&s, sim, CALM);
    LOAD(&s.b, "aaq", "aar", "aba");
    settle(&s);
    busy_to(&s.a, "a", FAR_OP_INSERT, "abb", "abb", point, 1);
    dart_node x = node_at(&s.c, "aba", 2);
    uint64_t old = top_word(&s);
    assert_true(x.addr && old && !dart_is_table(old));
    /* At once: in a bucket that is full another would take the place of a's word. */
    assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, true, grow_task, s.b.index), 0);
    assert_true(dart_is_table(top_word(&s)));
    resume_to(&s.a, "dart:est_committed", 1);
    for (unsigned i = 0; i < DART_EST_GROUP_SLOTS; i++) {
        uint64_t word = world_word(s.world, dart_word_addr(old) + 8 * i);
        assert_true(dart_is_frozen(word) && !(dart_est_is_committed(word) && dart_word_addr(word) == x.addr));
    }
    if (strcmp(point, "dart:est_chosen") == 0)
        assert_int_equal(names_of(&s.c, x.addr), 1); /* its first word went nowhere: it has tried again, in the table */
    finish(&s.a, 0);
    insert_pairs(&s.b, 0, ENOUGH);
    LOAD(&s.c, "abc", "abd", "abe", "abf", "abg", "abh", "abi", "abj", "abk", "abl", "abm", "abn");
    settle(&s);
    assert_true(node_at(&s.c, "aba", 2).addr != x.addr);
    assert_int_equal(names_of(&s.c, x.addr), 0);
    let_memory_go(&s, &s.c);
    holds_pairs(&s.c, 0, ENOUGH);
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* a has chosen a slot, or has its tentative word there, when the segment becomes a table: nothing of a's is committed
 * into the old one, where nobody would remove it; who has no word yet finds a slot in the table. (Tentative and empty
 * words are not frozen; a registrar whose bucket was replaced keeps the word that it knew.) */
EST_RACE(the_registrar_goes_on_in_the_table) {
    registrar_meets_the_making(sim, "dart:est_chosen");
    registrar_meets_the_making(sim, "dart:est_tentative");
    registrar_meets_the_making(sim, "dart:est_validated");
}


/* A client dies with a table half made: others read on, and the next who needs the segment finishes it. (A walk does not
 * tell of tables.) */
EST_RACE(a_dead_clients_table_is_finished) {
    static const char *const points[] = {"dart:est_frozen", "dart:est_table"};
    for (unsigned i = 0; i < 2; i++) {
        stage s;
        set_up(&s, sim, CALM);
        LOAD(&s.b, SEVEN("ab"));
        settle(&s);
        fill_to(&s.a, points[i]);
        stage_kill(&s, &s.a);
        reads(&s.b, "abc", "abc");
        assert_false(dart_is_table(top_word(&s)));
        busy(&s.b, "b", FAR_OP_INSERT, "abx", "b");
        settle(&s);
        assert_true(dart_is_table(top_word(&s)));
        assert_int_equal(names_of(&s.b, node_at(&s.b, "aba", 2).addr), 1);
        is_sound(&s, &s.b);
        tear_down(&s);
    }
}


/* ---- What handles keep ---- */

typedef struct look {
    far_index *index;
    far_addr node; /* that an entry of "ab" should name */
    unsigned rounds, level;
    bool found;
} look;


static int look_task(far_task *t, void *arg) {
    look *l = arg;
    dart_est *est = dart_est_of(l->index);
    dart_est_read r;
    int err = far_pin_take(t);
    dart_est_read_init(est, &r, "ab", 2);
    for (l->rounds = 0; err >= 0 && dart_est_read_put(t, est, &r); l->rounds++)
        if ((err = far_wait(t)) >= 0)
            err = dart_est_read_take(t, est, &r);
    far_pin_drop(t);
    l->level = r.spot.level;
    l->found = false;
    for (unsigned i = 0; r.word && i < DART_EST_READ_SLOTS; i++)
        l->found |= dart_est_is_committed(r.slots[i]) && dart_word_addr(r.slots[i]) == l->node;
    return err < 0 ? err : 0;
}


/* Looks up "ab" in the table: found, in so many round trips. */
static void finds_in(actor *a, far_addr node, unsigned level, unsigned rounds) {
    look l = {.index = a->index, .node = node};
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, look_task, &l), 0);
    assert_true(l.found);
    assert_int_equal(l.level, level);
    assert_int_equal(l.rounds, rounds);
}


/* c knows the word of the segment, or has no cache at all, when a table comes: it goes the way down once, and then
 * knows it. That segment is free later, the table never. (Handles do not keep tables; a proof of the segment puts it in
 * the table's place; tags are not looked at.) */
static void keeps_an_old_word(const char *sim, bool cache, bool aged) {
    stage s;
    set_up(&s, sim, CALM ",express_cache=0,slot_cache=0");
    LOAD(&s.b, SEVEN("ab"));
    settle(&s);
    dart_node x = node_at(&s.b, "aba", 2);
    dart_directory *kept = &dart_est_of(s.c.index)->directory;
    if (!cache)
        dart_cache_close(&kept->words);
    finds_in(&s.c, x.addr, 0, 2); /* the word, the bucket */
    finds_in(&s.c, x.addr, 0, cache ? 1 : 2);
    uint64_t old = top_word(&s);
    fill_to(&s.a, NULL);
    uint64_t table = top_word(&s);
    assert_true(dart_is_table(table));
    if (aged) {
        let_memory_go(&s, &s.a);
        pass_epochs(&s, &s.a, 8 + DART_SEGMENT_EPOCHS);
        is_free(&s, dart_word_addr(old));
    }
    /* The bucket is frozen; the word; that in the table; the bucket there. Too old: not the first of these. */
    finds_in(&s.c, x.addr, 1, cache && !aged ? 4 : 3);
    finds_in(&s.c, x.addr, 1, cache ? 1 : 2);
    bool fresh;
    dart_directory_set(kept, 1, old, 1 << 20); /* a slow task's proof */
    assert_true(dart_directory_get(kept, 1, 1 << 20, &fresh) == table && fresh);
    finds_in(&s.c, x.addr, 1, cache ? 1 : 2);
    holds_pairs(&s.c, 0, ENOUGH);
    world_assert_watch_is_content(s.world);
    is_sound(&s, &s.c);
    tear_down(&s);
}


EST_RACE(a_handle_that_kept_the_word_of_the_segment) {
    for (unsigned i = 0; i < 4; i++)
        keeps_an_old_word(sim, i & 1, i & 2);
}


/* Tables beyond the lowest numbers are kept in the cache only: there too a segment does not come in their place. (It
 * does.) */
static void a_table_is_not_forgotten_for_a_segment(void **state) {
    (void)state;
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


/* ---- Where entries are ---- */

enum { PLACES_MAX = 64 };

typedef struct places {
    far_index *index;
    unsigned count, beyond; /* beyond: entries with an empty slot before them in their bucket */
    struct {
        uint64_t word;
        unsigned slot; /* of its group */
    } at[PLACES_MAX];
} places;


static int note_places(far_task *t, far_index *index, const dart_spot *spot, uint64_t word, const uint64_t *slots,
                       unsigned count, void *ctx) {
    (void)t, (void)index, (void)spot, (void)word;
    places *p = ctx;
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
    places *p = arg;
    int err = far_pin_take(t);
    for (unsigned place = 0; err >= 0 && place < dart_est_places(dart_est_of(p->index));)
        err = dart_est_each_segment(t, p->index, &place, note_places, p);
    far_pin_drop(t);
    return err < 0 ? err : 0;
}


static places places_in(actor *a) {
    places p = {.index = a->index};
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, places_task, &p), 0);
    return p;
}


static void are_where_they_were(const places *before, const places *after) {
    assert_int_equal(after->count, before->count);
    for (unsigned i = 0; i < before->count; i++) {
        unsigned j = 0;
        while (j < after->count && after->at[j].word != before->at[i].word)
            j++;
        assert_true(j < after->count);
        assert_int_equal(after->at[j].slot, before->at[i].slot);
    }
}


/* The only segment is replaced by one of two groups, then of four, then by a table. Groups have ever fewer entries, and
 * these stay in the slots that handles know. (An entry takes the first free slot of its bucket.) */
EST_RACE(entries_keep_their_slots) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,directory_bits=0,adjust=0,segment_log=2");
    insert_pairs(&s.a, 0, 14);
    settle(&s);
    places before = places_in(&s.c);
    assert_int_equal(before.count, 14);
    assert_int_equal(dart_directory_log_groups(top_word(&s)), 0);
    for (unsigned log_groups = 1; log_groups <= 3; log_groups++) {
        assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, true, grow_task, s.b.index), 0);
        if (log_groups < 3)
            assert_int_equal(dart_directory_log_groups(top_word(&s)), log_groups);
        else
            assert_true(dart_is_table(top_word(&s)));
        places after = places_in(&s.c);
        are_where_they_were(&before, &after);
        assert_true(after.beyond > 0);
    }
    holds_pairs(&s.c, 0, 14);
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* ---- A death at every verb ---- */

enum { BEFORE = 24, DURING = 2 }; /* nodes: with the victim's, the only segment is full */

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


static int some_pairs(far_session *s, far_index *index, void *ctx) {
    (void)ctx;
    for (unsigned i = 0; i < BEFORE; i++)
        for (char last = '1'; last <= '2'; last++)
            if (put_pair(s, index, i, last) < 0)
                return -1;
    return 0;
}


static int pairs_for_a_table(far_session *s, far_index *index, void *ctx) {
    (void)ctx;
    for (unsigned i = BEFORE; i < BEFORE + DURING; i++)
        for (char last = '1'; last <= '2'; last++)
            put_pair(s, index, i, last);
    return 0;
}


static int work_on(far_session *s, far_index *index, void *ctx) {
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


/* Survivors work on, the table is sound, and a sweep leaves nothing lost: neither a table that was not shown, nor is one
 * freed that was. (A walk does not tell of tables.) */
static void dies_while_it_makes_a_table(void **state) {
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        far_explore e = {.kind = "dart",
                         .options = CALM,
                         .sim = i ? "masked_cas=off,atomic_bytes=8" : "masked_cas=on",
                         .prepare = some_pairs,
                         .victim = pairs_for_a_table,
                         .survive = work_on,
                         .sweep = true,
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
    unsigned segments; /* so many can still be had */
    bool tables;       /* one can */
    bool help;
    int result;
    unsigned left[2]; /* segments and tables that can be had afterwards */
    unsigned taken[2];
    far_addr addrs[2][HOG_MAX];
} shortage;

static const struct {
    unsigned type;
    uint64_t bytes;
} hogged[2] = {{DART_TYPE_EST_SEGMENT, DART_EST_GROUP_BYTES}, {DART_TYPE_EST_DIRECTORY, DART_TABLE_BYTES}};


static int take_some(far_task *t, shortage *h, unsigned kind, unsigned most) {
    far_object object;
    int err = 0;
    while (h->taken[kind] < most &&
           (err = far_alloc(t, h->index, hogged[kind].type, hogged[kind].bytes, FAR_NODE_ANY, 0, &object)) >= 0)
        h->addrs[kind][h->taken[kind]++] = object.addr;
    return err == FAR_ERR_NO_MEMORY ? 0 : err;
}


static void give_some(far_task *t, shortage *h, unsigned kind, unsigned count) {
    for (; count > 0 && h->taken[kind] > 0; count--)
        far_free(t, h->index, hogged[kind].type, h->addrs[kind][--h->taken[kind]], hogged[kind].bytes);
}


/* The only segment is to become a table, with nearly all memory of the pool in hand. */
static int grow_short_task(far_task *t, void *arg) {
    shortage *h = arg;
    dart_spot spot = dart_spot_at(dart_est_of(h->index), 0);
    uint64_t word;
    int err = far_pin_take(t);
    if (err >= 0 && (err = take_some(t, h, 1, 1)) >= 0 && (err = take_some(t, h, 0, HOG_MAX)) >= 0)
        err = take_some(t, h, 1, HOG_MAX);
    assert_true(err < 0 || (h->taken[0] < HOG_MAX && h->taken[1] < HOG_MAX));
    if (h->tables)
        give_some(t, h, 1, 1);
    give_some(t, h, 0, h->segments);
    if (err >= 0 && (err = far_read_word(t, spot.addr, &word)) >= 0)
        h->result = dart_est_grow(t, h->index, &spot, word, h->help);
    unsigned before[2] = {h->taken[0], h->taken[1]};
    for (unsigned kind = 0; err >= 0 && kind < 2; kind++) {
        err = take_some(t, h, kind, HOG_MAX);
        h->left[kind] = h->taken[kind] - before[kind];
    }
    give_some(t, h, 0, HOG_MAX);
    give_some(t, h, 1, HOG_MAX);
    far_pin_drop(t);
    return err < 0 ? err : 0;
}


/* a has frozen the segment: b helps; or b begins itself. */
static void grows_short(const char *sim, bool help, bool tables, unsigned segments) {
    static shortage h;
    stage s;
    bool enough = tables && segments == DART_TABLE_WORDS;
    set_up(&s, sim, CALM);
    LOAD(&s.b, SEVEN("ab"));
    settle(&s);
    fill_to(&s.a, help ? "dart:est_frozen" : "dart:est_chosen");
    uint64_t old = top_word(&s);
    h = (shortage){.index = s.b.index, .tables = tables, .segments = segments, .help = help};
    assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, false, grow_short_task, &h), 0);
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
    finish(&s.a, 0);
    busy(&s.b, "b", FAR_OP_INSERT, "abx", "b"); /* now there is memory */
    insert_pairs(&s.b, 100, 140);
    assert_true(dart_is_table(top_word(&s)));
    settle(&s);
    is_sound(&s, &s.b);
    tear_down(&s);
}


/* The table, or one of its segments, finds no room: what it had is given back; nothing is frozen, or, when it was, the
 * segment goes. (What was taken is not given back; the table is made after the freeze; a helper gives up.) */
EST_RACE(a_table_without_memory) {
    for (unsigned help = 0; help < 2; help++) {
        grows_short(sim, help, false, DART_TABLE_WORDS);
        grows_short(sim, help, true, 0);
        grows_short(sim, help, true, DART_TABLE_WORDS - 1);
        grows_short(sim, help, true, DART_TABLE_WORDS);
    }
}


/* ---- A table that lies on another memory node than the word that is to name it ---- */

typedef struct table_write {
    far_addr addr; /* 0: not written yet */
} table_write;


static void note_table(void *ctx, const far_sim_posted *posted) {
    table_write *w = ctx;
    if (!w->addr && posted->verb->kind == FAR_WRITE && posted->verb->length == DART_TABLE_BYTES)
        w->addr = posted->verb->addr;
}


/* The WRITE of the table, once it is known where that goes, is held back. */
static void write_table(table_write *w) {
    stage s;
    bool known = w->addr != 0;
    set_up(&s, "masked_cas=on", CALM);
    unsigned node = far_addr_node(dart_spot_at(dart_est_of(s.a.index), 0).addr);
    fill_for(s.a.session, (full_node){s.a.index, node, DART_TYPE_EST_DIRECTORY, DART_TABLE_BYTES});
    far_sim_on_verb(s.world, note_table, w);
    stage_start_main(&s.a, "fills", run_fill);
    if (known) {
        far_sim_hold *hold = far_sim_hold_effect(
            s.a.client, (far_sim_match){.kind = FAR_SIM_WRITE, .from = w->addr, .to = w->addr + DART_TABLE_BYTES});
        while (!far_sim_reached(hold))
            assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_HELD);
        assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_HELD); /* it does what it can */
        assert_false(dart_is_table(top_word(&s)));
        far_sim_release(hold);
    }
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    far_sim_on_verb(s.world, NULL, NULL);
    assert_true(dart_is_table(top_word(&s)) && dart_word_addr(top_word(&s)) == w->addr);
    assert_true(far_addr_node(w->addr) != node);
    holds_pairs(&s.c, 0, ENOUGH);
    tear_down(&s);
}


/* (The CAS of the word is posted with the WRITE.) */
static void a_table_elsewhere_is_written_before_it_is_named(void **state) {
    (void)state;
    table_write w = {0};
    write_table(&w);
    write_table(&w);
}


/* ---- An index that was made before there were tables ---- */

/* Others that know of none may have it open. */
static void an_index_of_before_gets_no_tables(void **state) {
    (void)state;
    stage s;
    set_up(&s, "masked_cas=on", CALM);
    uint64_t magic = DART_MAGIC_OLD;
    memcpy(world_bytes(s.world, s.a.index->descriptor), &magic, 8);
    far_index_close(s.a.index);
    assert_int_equal(far_index_open(s.a.session, "map", &s.a.index), 0);
    insert_pairs(&s.a, 0, 4 * ENOUGH);
    settle(&s);
    assert_int_equal(count_tables(s.a.session, s.a.index), 0);
    assert_true(dart_directory_log_groups(world_word(s.world, dart_spot_at(dart_est_of(s.a.index), 0).addr)) > 0);
    holds_pairs(&s.c, 0, 4 * ENOUGH);
    is_sound(&s, &s.a);
    tear_down(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_remover_finishes_the_table),
        cmocka_unit_test(the_registrar_goes_on_in_the_table),
        cmocka_unit_test(a_dead_clients_table_is_finished),
        cmocka_unit_test(a_handle_that_kept_the_word_of_the_segment),
        cmocka_unit_test(a_table_is_not_forgotten_for_a_segment),
        cmocka_unit_test(entries_keep_their_slots),
        cmocka_unit_test(dies_while_it_makes_a_table),
        cmocka_unit_test(a_table_without_memory),
        cmocka_unit_test(a_table_elsewhere_is_written_before_it_is_named),
        cmocka_unit_test(an_index_of_before_gets_no_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
