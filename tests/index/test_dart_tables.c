/* DART's skip table: a segment that is full becomes a table of the directory. Who removes, registers, looks up, walks
 * or dies beside that; without memory; with damaged words. The mutation that was tried, and made the test fail, stands
 * in brackets. */
#include "dart_est_rig.h"

#include "verify/explore.h"

/* One word is the whole directory at first, and a segment of one group becomes a table. */
#define TABLES "upkeep_batch=1,directory_bits=0,segment_log=0,"
#define CALM   TABLES "adjust=0"


/* ---- Many nodes of depth 2, each with one entry ---- */

enum { FIRST_BYTES = 90 };


static void name_of(unsigned i, char key[4]) {
    snprintf(key, 4, "%c%c1", (char)('!' + i % FIRST_BYTES), (char)('c' + i / FIRST_BYTES));
}


static void insert_pair(actor *a, unsigned i) {
    char key[4], byte;
    name_of(i, key);
    for (; key[2] < '3' && a->result >= 0; key[2]++)
        a->result = far_insert(a->session, a->index, key, 3, key, 3);
    for (unsigned j = 0; j < 8; j++) /* inside calls its background work runs */
        far_get(a->session, a->index, "~", 1, &byte, 1, NULL);
}


static void insert_pairs(actor *a, unsigned from, unsigned to) {
    a->result = 0;
    for (unsigned i = from; i < to; i++)
        insert_pair(a, i);
    assert_int_equal(a->result, 0);
}


enum { ENOUGH = 40 }; /* nodes, for one table */


static void run_fill(void *arg) {
    actor *a = arg;
    a->result = 0;
    for (unsigned i = 0; i < ENOUGH && a->result >= 0; i++)
        insert_pair(a, i);
    a->ended = true;
}


/* Nodes are registered until there is a table; point NULL: and all of them. */
static void fill_to(actor *a, const char *point) {
    stage_start_main(a, "fills", run_fill);
    if (point)
        resume_to(a, point, 1);
    else
        finish(a, 0);
}


static void holds_pairs(actor *a, unsigned from, unsigned to) {
    for (unsigned i = from; i < to; i++) {
        char key[4];
        name_of(i, key);
        reads(a, key, key);
    }
}


static uint64_t top_word(stage *s) {
    return world_word(s->world, dart_spot_at(dart_est_of(s->b.index), 0).addr);
}


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


static int make_table_task(far_task *t, void *arg) {
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
    assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, true, make_table_task, s.b.index), 0);
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


/* A client dies with a table half made: others read on, and the next who needs the segment finishes it. (Nobody
 * helps.) */
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


static int count_tables_task(far_task *t, void *arg) {
    glance *g = arg;
    dart_est_counts counts;
    int err = dart_est_count(t, g->index, &counts);
    g->entries = (unsigned)counts.tables;
    return err;
}


static unsigned count_tables(far_session *s, far_index *index) {
    glance g = {.index = index};
    return far_session_call(s, FAR_STATS_OTHER, true, count_tables_task, &g) < 0 ? 0 : g.entries;
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


/* ---- Walks ---- */

typedef struct tracker {
    far_index *index;
    unsigned grow_below; /* segments of lower levels become tables when the walk comes to them */
    unsigned place, slices;
    uint64_t entries, tables;
    uint8_t met[DART_NUMBERS]; /* how often the table, or segment, of this number was told */
    unsigned count;
    far_addr nodes[4096]; /* that entries name */
} tracker;


static int track(far_task *t, far_index *index, const dart_spot *spot, uint64_t word, const uint64_t *slots,
                 unsigned count, void *ctx) {
    tracker *w = ctx;
    if (!dart_is_table(word) && spot->level < w->grow_below) {
        int err = dart_est_grow(t, index, spot, word, false);
        return err < 0 ? err : 1;
    }
    w->met[spot->at]++;
    w->tables += dart_is_table(word);
    for (unsigned i = 0; i < count; i++)
        if (dart_est_is_committed(slots[i]))
            w->nodes[w->count++ % 4096] = dart_word_addr(slots[i]);
    return 0;
}


static int slice_task(far_task *t, void *arg) {
    tracker *w = arg;
    int err = far_pin_take(t);
    if (err >= 0)
        err = dart_est_each_segment(t, w->index, &w->place, track, w);
    far_pin_drop(t);
    return err;
}


/* False: the walk is over. */
static bool next_slice(actor *a, tracker *w) {
    if (w->place >= dart_est_places(dart_est_of(w->index)))
        return false;
    w->slices++;
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, slice_task, w), 0);
    return true;
}


typedef struct content { /* of the memory itself */
    uint64_t tables, segments, deepest, count;
    far_addr nodes[4096];
} content;


static void look_below(stage *s, uint64_t word, unsigned level, content *c) {
    const uint64_t *slots = word ? world_bytes(s->world, dart_word_addr(word)) : NULL;
    c->deepest = level > c->deepest ? level : c->deepest;
    for (unsigned i = 0; dart_is_table(word) && i < DART_TABLE_WORDS; i++)
        look_below(s, slots[i], level + 1, c);
    c->tables += dart_is_table(word);
    c->segments += word && !dart_is_table(word);
    for (unsigned i = 0; word && !dart_is_table(word) && i < DART_EST_GROUP_SLOTS << dart_directory_log_groups(word);
         i++)
        if (dart_est_is_committed(slots[i]))
            c->nodes[c->count++ % 4096] = dart_word_addr(slots[i]);
}


static void look_at_all(stage *s, content *c) {
    const dart_est *est = dart_est_of(s->c.index);
    *c = (content){0};
    for (unsigned i = 0; i < 1u << est->bits; i++)
        look_below(s, world_word(s->world, dart_spot_at(est, i).addr), 0, c);
}


static unsigned times_met(const tracker *w, far_addr node) {
    unsigned times = 0;
    for (unsigned i = 0; i < w->count; i++)
        times += w->nodes[i] == node;
    return times;
}


static tracker walker;
static content before, after;


/* Everything becomes a table when the walk comes to it, also the first words of tables that it has just told of: each
 * table and each segment is met once, and each entry. */
static void walk_makes_tables(const char *sim, unsigned bits, unsigned walk_slice) {
    stage s;
    char options[128];
    unsigned levels = (DART_DIRECTORY_BITS_MAX - bits) / DART_TABLE_LOG;
    snprintf(options, sizeof(options), "upkeep_batch=1,adjust=0,segment_log=0,directory_bits=%u,walk_slice=%u", bits,
             walk_slice);
    set_up(&s, sim, options);
    insert_pairs(&s.a, 0, 20);
    settle(&s);
    look_at_all(&s, &before);
    assert_true(before.count >= 20 && before.deepest == 0);
    walker = (tracker){.index = s.c.index, .grow_below = levels < 2 ? levels : 2};
    while (next_slice(&s.c, &walker))
        ;
    look_at_all(&s, &after);
    assert_int_equal(after.deepest, walker.grow_below);
    assert_int_equal(walker.tables, after.tables);
    for (unsigned i = 0; i < DART_NUMBERS; i++)
        assert_true(walker.met[i] <= 1);
    assert_int_equal(walker.count, before.count);
    for (unsigned i = 0; i < before.count; i++)
        assert_int_equal(times_met(&walker, before.nodes[i]), 1);
    settle(&s);
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* (The walk tells again of the table whose first word became one; it goes on behind a segment that became a table; it
 * begins a table at its first word always.) */
static void a_walk_meets_what_becomes_a_table_under_it_once(void **state) {
    (void)state;
    static const unsigned bits[] = {0, 1, 2, 3, 4, 7, 8, 9, 11, 12, 13, 16}, slices[] = {1, 6, 2048};
    for (unsigned i = 0; i < 12; i++)
        for (unsigned j = 0; j < 3; j++)
            walk_makes_tables(j == 1 ? "size=16M,memory_nodes=1"
                              : j    ? "size=16M"
                                     : "size=24M,memory_nodes=3",
                              bits[i], slices[j]);
}


enum { MANY = 900 };


static void run_fill_many(void *arg) {
    actor *a = arg;
    a->result = 0;
    for (unsigned i = ENOUGH; i < MANY && a->result >= 0; i++)
        insert_pair(a, i);
    a->ended = true;
}


/* a makes tables below tables while c walks, a slice for each table: what was there before is met once. */
static void a_walk_beside_one_who_makes_nested_tables(void **state) {
    (void)state;
    static const unsigned slices[] = {1, 8, 2048};
    for (unsigned i = 0; i < 3; i++) {
        stage s;
        set_up(&s, "size=16M", CALM);
        dart_of(s.b.index)->walk_slice = dart_of(s.c.index)->walk_slice = slices[i];
        insert_pairs(&s.a, 0, ENOUGH);
        settle(&s);
        look_at_all(&s, &before);
        walker = (tracker){.index = s.c.index};
        stage_start_main(&s.a, "fills", run_fill_many);
        far_sim_stop_before(s.a.client, (far_sim_match){.point = "dart:est_table"});
        bool more = true;
        while (far_sim_run_client(s.a.client) == FAR_SIM_STOPPED) {
            more = more && next_slice(&s.c, &walker);
            far_sim_resume(s.a.client);
            far_sim_stop_before(s.a.client, (far_sim_match){.point = "dart:est_table"});
        }
        assert_true(s.a.ended && s.a.result == 0);
        while (next_slice(&s.c, &walker))
            ;
        for (unsigned n = 0; n < DART_NUMBERS; n++)
            assert_true(walker.met[n] <= 1);
        for (unsigned n = 0; n < before.count; n++)
            assert_int_equal(times_met(&walker, before.nodes[n]), 1);
        settle(&s);
        look_at_all(&s, &after);
        assert_true(after.deepest >= 2 && after.tables > 4);
        assert_int_equal(count_tables(s.c.session, s.c.index), after.tables);
        holds_pairs(&s.c, 0, MANY);
        is_sound(&s, &s.c);
        tear_down(&s);
    }
}


/* a died with the segment frozen: the walk of a sweep makes the table, and goes on in it. (The walk leaves a frozen
 * segment alone.) */
EST_RACE(a_sweep_finishes_a_dead_clients_table) {
    static const char *const points[] = {"dart:est_frozen", "dart:est_table"};
    for (unsigned i = 0; i < 2; i++) {
        stage s;
        set_up(&s, sim, CALM ",walk_slice=1");
        LOAD(&s.b, SEVEN("ab"));
        settle(&s);
        fill_to(&s.a, points[i]);
        stage_kill(&s, &s.a);
        is_sound(&s, &s.b);
        assert_true(dart_is_table(top_word(&s)));
        assert_int_equal(names_of(&s.b, node_at(&s.b, "aba", 2).addr), 1);
        tear_down(&s);
    }
}


static int set_out_task(far_task *t, void *arg) {
    static const uint8_t lengths[] = {3};
    int err = far_pin_take(t);
    if (err >= 0)
        err = dart_est_adjust_to(t, arg, lengths, 1);
    far_pin_drop(t);
    return err;
}


static unsigned length_of(stage *s, uint64_t entry) {
    return dart_header_depth(world_bytes(s->world, dart_word_addr(entry))) - dart_est_delta(entry);
}


static unsigned entries_of_length(stage *s, uint64_t word, unsigned length) {
    const uint64_t *slots = word ? world_bytes(s->world, dart_word_addr(word)) : NULL;
    unsigned count = 0;
    for (unsigned i = 0; dart_is_table(word) && i < DART_TABLE_WORDS; i++)
        count += entries_of_length(s, slots[i], length);
    for (unsigned i = 0; word && !dart_is_table(word) && i < DART_EST_GROUP_SLOTS << dart_directory_log_groups(word);
         i++)
        count += dart_est_is_committed(slots[i]) && length_of(s, slots[i]) == length;
    return count;
}


/* A node of depth 3. */
static void insert_triple(actor *a, unsigned i) {
    for (char last = '1'; last <= '2'; last++) {
        char key[] = {(char)('A' + i % 50), (char)('0' + i / 50), 'x', last};
        assert_int_equal(far_insert(a->session, a->index, key, 4, key, 4), 0);
    }
}


/* The adjuster takes entries of a length out, in slices of one segment, while b's nodes of another length make tables
 * of segments: nothing of that length is left. (The cursor of the sweep goes on by words of the directory.) */
static void a_length_is_dropped_from_nested_tables(void **state) {
    (void)state;
    stage s;
    set_up(&s, "size=16M", TABLES "adjust=1,walk_slice=1");
    insert_pairs(&s.a, 0, 400);
    settle(&s);
    assert_true(entries_of_length(&s, top_word(&s), 2) >= 390);
    assert_int_equal(far_session_call(s.a.pool->team.own, FAR_STATS_OTHER, true, set_out_task, s.a.index), 1);
    unsigned made = 0, sweeping = 0;
    for (unsigned n = 0; n < 3000 && dart_est_of(s.a.index)->adjust.phase != DART_ADJUST_IDLE; n++) {
        bool sweeps = dart_est_of(s.a.index)->adjust.phase == DART_ADJUST_SWEEP;
        if (sweeps && sweeping++ == 0)
            look_at_all(&s, &before);
        for (unsigned i = 0; sweeps && i < 20 && made < 500; i++, made++)
            insert_triple(&s.b, made);
        reads(&s.a, "!c1", "!c1");
        far_sim_sleep(s.world, 300000);
    }
    assert_int_equal(dart_est_of(s.a.index)->adjust.phase, DART_ADJUST_IDLE);
    look_at_all(&s, &after);
    assert_true(sweeping > 3 && after.tables > before.tables);
    assert_int_equal(entries_of_length(&s, top_word(&s), 2), 0);
    assert_true(entries_of_length(&s, top_word(&s), 3) > 100);
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* b died with the segment frozen, and nobody needs it: the adjuster makes the table, and takes the entries out of it.
 * (It does not help: its CASes lose for ever.) */
EST_RACE(a_length_is_dropped_from_a_dead_clients_table) {
    static const char *const points[] = {"dart:est_frozen", "dart:est_table"};
    for (unsigned i = 0; i < 2; i++) {
        stage s;
        char byte;
        set_up(&s, sim, TABLES "adjust=1");
        fill_to(&s.b, points[i]);
        stage_kill(&s, &s.b);
        assert_int_equal(far_session_call(s.a.pool->team.own, FAR_STATS_OTHER, true, set_out_task, s.a.index), 1);
        assert_false(dart_is_table(top_word(&s)));
        for (unsigned n = 0; n < 300 && dart_est_of(s.a.index)->adjust.phase != DART_ADJUST_IDLE; n++) {
            far_get(s.a.session, s.a.index, "~", 1, &byte, 1, NULL);
            far_sim_sleep(s.world, 1000000);
        }
        assert_int_equal(dart_est_of(s.a.index)->adjust.phase, DART_ADJUST_IDLE);
        assert_true(dart_is_table(top_word(&s)));
        assert_int_equal(entries_of_length(&s, top_word(&s), 2), 0);
        is_sound(&s, &s.a);
        tear_down(&s);
    }
}


/* ---- Damage ---- */

static int count_problem(void *ctx, const char *what) {
    (void)what;
    ++*(unsigned *)ctx;
    return 0;
}


/* The word at addr is damaged: operations come to an end, of handles that knew the table and of one that did not, and a
 * check finds it. */
static void damage(uint64_t (*word_of)(stage *s, far_addr *addr)) {
    stage s;
    far_addr addr;
    unsigned problems = 0;
    char value[8];
    set_up(&s, "masked_cas=on", CALM ",express_cache=0,slot_cache=0");
    LOAD(&s.b, SEVEN("ab"));
    fill_to(&s.a, NULL);
    settle(&s);
    assert_true(dart_is_table(top_word(&s)));
    uint64_t bad = word_of(&s, &addr);
    memcpy(world_bytes(s.world, addr), &bad, 8);
    int result = far_index_check(s.c.session, s.c.index, count_problem, &problems);
    assert_true(result != 0 || problems > 0);
    for (unsigned n = 0; n < 2; n++) {
        actor *a = n ? &s.c : &s.a;
        for (unsigned i = 0; i < ENOUGH; i++) {
            char key[4];
            name_of(i, key);
            result = far_get(a->session, a->index, key, 3, value, sizeof(value), NULL);
            assert_true(result == 0 || result == FAR_ERR_CORRUPT);
            key[2] = (char)('5' + n);
            result = far_put(a->session, a->index, key, 3, "v", 1);
            assert_true(result == 0 || result == FAR_ERR_CORRUPT);
        }
    }
    settle(&s);
    tear_down(&s);
}


static uint64_t names_itself(stage *s, far_addr *addr) {
    *addr = dart_spot_at(dart_est_of(s->c.index), 0).addr;
    return dart_table_word(*addr);
}


static uint64_t names_the_table_above(stage *s, far_addr *addr) {
    *addr = dart_word_addr(top_word(s)) + 24;
    return top_word(s);
}


static uint64_t names_a_segment(stage *s, far_addr *addr) {
    *addr = dart_spot_at(dart_est_of(s->c.index), 0).addr;
    return dart_table_word(dart_word_addr(world_word(s->world, dart_word_addr(top_word(s)) + 8)));
}


static uint64_t names_nothing(stage *s, far_addr *addr) {
    *addr = dart_spot_at(dart_est_of(s->c.index), 0).addr;
    return dart_table_word(far_addr_make(0, 1ull << 30));
}


static uint64_t names_no_memory_node(stage *s, far_addr *addr) {
    *addr = dart_word_addr(top_word(s)) + 40;
    return dart_table_word(far_addr_make(9, 4096));
}


static uint64_t has_more_bits(stage *s, far_addr *addr) {
    *addr = dart_spot_at(dart_est_of(s->c.index), 0).addr;
    return top_word(s) | 1ull << 50;
}


static uint64_t is_a_segment_with_more_bits(stage *s, far_addr *addr) {
    *addr = dart_word_addr(top_word(s)) + 16;
    return world_word(s->world, *addr) | 1ull << 50;
}


static uint64_t is_too_large(stage *s, far_addr *addr) {
    *addr = dart_word_addr(top_word(s)) + 16;
    return world_word(s->world, *addr) | (DART_LOG_GROUPS_MAX + 1ull) << 56;
}


/* An index whose directory is as large as it may be has no tables. (A table may stand at any level.) */
static void a_table_below_the_last_level_is_damage(void **state) {
    (void)state;
    for (unsigned bits = DART_DIRECTORY_BITS_MAX - DART_TABLE_LOG + 1; bits <= DART_DIRECTORY_BITS_MAX; bits++) {
        stage s;
        char options[64];
        unsigned problems = 0;
        snprintf(options, sizeof(options), "adjust=0,upkeep_batch=1,directory_bits=%u", bits);
        set_up(&s, "masked_cas=on,memory_nodes=1", options);
        far_addr directory = dart_spot_at(dart_est_of(s.c.index), 0).addr;
        for (unsigned i = 0; i < DART_TABLE_WORDS; i++) /* itself would be a sound table */
            assert_int_equal(world_word(s.world, directory + 1024 + 8 * i), 0);
        assert_int_equal(far_index_check(s.c.session, s.c.index, count_problem, &problems), 0);
        uint64_t bad = dart_table_word(directory + 1024);
        memcpy(world_bytes(s.world, directory + 8 * 7), &bad, 8);
        assert_int_equal(far_index_check(s.c.session, s.c.index, count_problem, &problems), 1);
        tear_down(&s);
    }
}


/* (A word is not looked at; bits that mean nothing are passed over.) */
static void damaged_words_are_found(void **state) {
    (void)state;
    damage(names_itself);
    damage(names_the_table_above);
    damage(names_a_segment);
    damage(names_nothing);
    damage(names_no_memory_node);
    damage(has_more_bits);
    damage(is_a_segment_with_more_bits);
    damage(is_too_large);
}


/* ---- Dropping ---- */

static uint64_t used_now(far_session *s, far_pool *pool) {
    far_pool_usage usage;
    for (unsigned i = 0; i < 4000; i++) {
        assert_int_equal(far_pool_stat(s, &usage), 0);
        if (i > 100 && usage.retired == 0)
            break;
        far_pool_poll(pool);
        far_epoch_request(pool);
    }
    assert_int_equal(usage.retired, 0);
    return usage.used;
}


/* An index with nested tables is dropped, and made again under its name, three times: its memory comes back each time,
 * and the new one's directory is empty. (Tables are taken from the pool's own memory.) */
static void a_dropped_index_gives_its_tables_back(void **state) {
    (void)state;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    far_pool *pool;
    far_session *s;
    far_index *index;
    uint64_t used[3], full = 0;
    options.no_thread = 1;
    assert_int_equal(far_pool_open("local:64M", &options, &pool), 0);
    assert_int_equal(far_session_open(pool, &s), 0);
    for (unsigned n = 0; n < 3; n++) {
        assert_int_equal(far_index_create(s, "map", "dart", CALM, &index), 0);
        assert_int_equal(count_tables(s, index), 0);
        actor a = {.session = s, .index = index};
        insert_pairs(&a, 0, MANY);
        assert_true(count_tables(s, index) > 4);
        holds_pairs(&a, 0, MANY);
        assert_int_equal(far_index_check(s, index, fail_at_problem, NULL), 0);
        full = used_now(s, pool);
        far_index_close(index);
        assert_int_equal(far_index_drop(s, "map"), 0);
        used[n] = used_now(s, pool);
        world_assert_nothing_leaked(s);
    }
    assert_true(used[1] == used[0] && used[2] == used[0] && used[0] + 100000 < full);
    far_session_close(s);
    far_pool_close(pool);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_remover_finishes_the_table),
        cmocka_unit_test(the_registrar_goes_on_in_the_table),
        cmocka_unit_test(a_dead_clients_table_is_finished),
        cmocka_unit_test(a_handle_that_kept_the_word_of_the_segment),
        cmocka_unit_test(a_table_is_not_forgotten_for_a_segment),
        cmocka_unit_test(dies_while_it_makes_a_table),
        cmocka_unit_test(a_table_without_memory),
        cmocka_unit_test(a_table_elsewhere_is_written_before_it_is_named),
        cmocka_unit_test(a_walk_meets_what_becomes_a_table_under_it_once),
        cmocka_unit_test(a_walk_beside_one_who_makes_nested_tables),
        cmocka_unit_test(a_sweep_finishes_a_dead_clients_table),
        cmocka_unit_test(a_length_is_dropped_from_nested_tables),
        cmocka_unit_test(a_length_is_dropped_from_a_dead_clients_table),
        cmocka_unit_test(damaged_words_are_found),
        cmocka_unit_test(a_table_below_the_last_level_is_damage),
        cmocka_unit_test(a_dropped_index_gives_its_tables_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
