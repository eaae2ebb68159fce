/* Waiting in vain: words that say that somebody is at work, while nobody is. Whoever waits for a change proves, by the
 * epochs that pass, that nobody alive will make it, and says FAR_ERR_CORRUPT after bounded work; check names it too. */
#include "index/chime/chime.h"
#include "index/dart/dart.h"
#include "index/dolphin/dolphin.h"
#include "index/shard/shard.h"
#include "index/smart/smart.h"
#include "pool/catalog_layout.h"
#include "pool/clients.h"
#include "pool/epoch.h"
#include "pool/handle.h"
#include "scene.h"
#include "task/patience.h"
#include "task/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define VERBS_MAX 20000 /* of one call */

typedef struct stage {
    scene scene;
    far_pool *pool;
    far_session *session;
    far_index *index;
} stage;


static void open_stage_again(stage *s) {
    rig_allow(UINT64_MAX);
    assert_int_equal(far_pool_open(RIG_URI, &rig_options, &s->pool), 0);
    assert_int_equal(far_session_open(s->pool, &s->session), 0);
    assert_int_equal(far_index_open(s->session, "index", &s->index), 0);
}


static void open_stage(stage *s, const char *kind, const char *options) {
    *s = (stage){0};
    scene_make(&s->scene, kind, options, false, 1);
    rig_restore(s->scene.image);
    open_stage_again(s);
}


static void close_stage(stage *s) {
    rig_allow(UINT64_MAX);
    far_index_close(s->index);
    far_session_close(s->session);
    far_pool_close(s->pool);
    scene_free(&s->scene);
}


static uint64_t *word_at(far_addr addr) {
    return (uint64_t *)(rig_memory(far_addr_node(addr)) + far_addr_offset(addr));
}


/* A word of every object of that sort; of large ones every `step` bytes. */
static void change_words_of(stage *s, const char *sort, uint64_t offset, uint64_t step, uint64_t clear, uint64_t set) {
    unsigned changed = 0;
    for (size_t i = 0; i < s->scene.place_count; i++)
        for (size_t k = 0; strcmp(s->scene.places[i].name, sort) == 0 && k < s->scene.places[i].count; k++) {
            const object *o = &s->scene.places[i].objects[k];
            for (uint64_t at = offset; at < o->bytes; at += step, changed++)
                *word_at(o->addr + at) = (*word_at(o->addr + at) & ~clear) | set;
        }
    assert_true(changed > 0);
}


static void change_words(stage *s, const char *sort, uint64_t offset, uint64_t clear, uint64_t set) {
    change_words_of(s, sort, offset, UINT64_MAX / 2, clear, set);
}


static int ignore_pair(void *ctx, const void *key, size_t key_bytes, const void *value, size_t bytes) {
    (void)ctx, (void)key, (void)key_bytes, (void)value, (void)bytes;
    return 0;
}


static int ignore_problem(void *ctx, const char *what) {
    (void)ctx, (void)what;
    return 0;
}


static void is_corrupt(int64_t result) {
    assert_false(rig_is_cut());
    assert_int_equal(result, FAR_ERR_CORRUPT);
    assert_true(far_last_error()[0] != 0);
}


static void get_in_vain(stage *s, unsigned number) {
    char key[SCENE_KEY_BYTES], value[SCENE_VALUE_MAX];
    size_t key_bytes = scene_key(&s->scene, number, key);
    rig_allow(VERBS_MAX);
    is_corrupt(far_get(s->session, s->index, key, key_bytes, value, sizeof(value), NULL));
}


static void scan_in_vain(stage *s) {
    rig_allow(VERBS_MAX);
    is_corrupt(far_scan(s->session, s->index, NULL, 0, NULL, 0, 0, ignore_pair, NULL));
}


static void update_in_vain(stage *s, unsigned number) {
    char key[SCENE_KEY_BYTES], value[SCENE_VALUE_MAX];
    size_t key_bytes = scene_key(&s->scene, number, key), bytes = scene_value(&s->scene, number, 1, value);
    rig_allow(VERBS_MAX);
    is_corrupt(far_put(s->session, s->index, key, key_bytes, value, bytes));
}


static void check_finds_it(stage *s) {
    rig_allow(10 * VERBS_MAX);
    assert_true(far_pool_check(s->session, 0, ignore_problem, NULL) != 0);
    assert_false(rig_is_cut());
}


static uint64_t tail_word(const stage *s, unsigned word) {
    return chime_tail_addr(chime_state_of(s->index), 0, word);
}


/* S says that the node is being changed, and its lock is free. */
static void chime_is_busy_with_nobody(void **state) {
    stage s;
    open_stage(&s, "chime", *state);
    change_words(&s, "chime type 1", tail_word(&s, CHIME_TAIL_S), 0, 1);
    get_in_vain(&s, SCENE_KEYS + 1); /* a key that is not there */
    scan_in_vain(&s);
    check_finds_it(&s);
    close_stage(&s);
}


/* The lock names a client that lives, and does not hold it. */
static void chime_is_locked_by_nobody(void **state) {
    stage s;
    open_stage(&s, "chime", *state);
    uint64_t lock = chime_lock_make(scene_owner(s.pool->team.own->id, 0), 1, 0);
    change_words(&s, "chime type 1", tail_word(&s, CHIME_TAIL_S), 0, 1);
    change_words(&s, "chime type 1", tail_word(&s, CHIME_TAIL_L), UINT64_MAX, lock);
    get_in_vain(&s, SCENE_KEYS + 1);
    scan_in_vain(&s);
    update_in_vain(&s, 0);
    check_finds_it(&s);
    change_words(&s, "chime type 1", tail_word(&s, CHIME_TAIL_S), 1, 0); /* it died before it changed anything */
    update_in_vain(&s, 0);
    check_finds_it(&s);
    close_stage(&s);
}


/* ---- dolphin ---- */

static uint64_t dolphin_root_of(const stage *s) {
    return dolphin_entry_addr(dolphin_state_of(s->index)->root);
}


static uint64_t stranger(const stage *s) { /* a lock of a node: a client that lives has it, it says */
    return scene_owner(s->pool->team.own->id, 0) << DOLPHIN_OWNER_SHIFT;
}


/* Many new keys, so that some change the structure: at least one of them waits in vain. */
static void insert_many_in_vain(stage *s) {
    char key[SCENE_KEY_BYTES], value[SCENE_VALUE_MAX];
    int64_t result = 0;
    for (unsigned i = SCENE_KEYS; i < SCENE_KEYS + 2000 && result == 0; i++) {
        size_t key_bytes = scene_key(&s->scene, i, key), bytes = scene_value(&s->scene, i, 1, value);
        rig_allow(VERBS_MAX);
        result = far_put(s->session, s->index, key, key_bytes, value, bytes);
    }
    is_corrupt(result);
}


static void dolphin_root_is_locked_by_nobody(void **state) {
    stage s;
    open_stage(&s, "dolphin", *state);
    for (unsigned i = 0; i < 256; i++)
        *word_at(dolphin_root_of(&s) + DOLPHIN_ROOT_LOCKS + 8ull * i) |= stranger(&s);
    insert_many_in_vain(&s);
    check_finds_it(&s);
    close_stage(&s);
}


static void dolphin_nodes_are_locked_by_nobody(void **state) {
    stage s;
    open_stage(&s, "dolphin", *state);
    change_words(&s, "dolphin type 1", 0, 0, stranger(&s));
    insert_many_in_vain(&s);
    check_finds_it(&s);
    close_stage(&s);
}


/* sync=exclusive. */
static void dolphin_leaves_are_locked_by_nobody(void **state) {
    stage s;
    open_stage(&s, "dolphin", *state);
    change_words(&s, "dolphin type 2", DOLPHIN_LEAF_LOCK, UINT64_MAX, scene_owner(s.pool->team.own->id, 0));
    update_in_vain(&s, 0);
    check_finds_it(&s);
    close_stage(&s);
}


/* A change of them is under way, it says, and nobody has the lock of their node. */
static void dolphin_is_frozen_by_nobody(void **state) {
    stage s;
    open_stage(&s, "dolphin", *state);
    change_words(&s, "dolphin type 2", 0, 0, DOLPHIN_FROZEN);
    update_in_vain(&s, 0);
    check_finds_it(&s);
    close_stage(&s);
}


/* ---- shard ---- */

static void shard_is_locked_by_nobody(void **state) {
    stage s;
    open_stage(&s, "shard", *state);
    unsigned id = s.pool->team.own->id;
    bool inlined = shard_state_of(s.index)->inlined;
    change_words_of(&s, "shard type 2", 8ull * (inlined ? SHARD_I_K : SHARD_P_HEADER), SHARD_BUCKET_BYTES,
                    inlined ? UINT64_MAX : 0, inlined ? shard_k(id, 0) : shard_header_locked(0, id, SHARD_OP_SPLIT));
    insert_many_in_vain(&s);
    check_finds_it(&s);
    close_stage(&s);
}


/* Tables of levels 2 and 3 are said to be among free entries of the registry: zeroes are sound in both. What is put there
 * would make clients of it. */
static void shard_is_led_into_the_registry(void **state) {
    stage s;
    (void)state;
    open_stage(&s, "shard", "partitions=1,bits=1,slots=2,l2_slots=1");
    far_addr tables = shard_known(&shard_state_of(s.index)->part[0].body, 0) + 8 * SHARD_BODY_L2,
             entry = far_client_entry(s.pool->geometry.session_slots / 2);
    char *registry = rig_memory(0) + far_addr_offset(entry), before[4096];
    memcpy(before, registry, sizeof(before));
    far_index_close(s.index);
    for (unsigned i = 0; i < 4; i++)
        *word_at(tables + 8 * i) = entry | (*word_at(tables + 8 * i) & ~shard_mask(48));
    assert_int_equal(far_index_open(s.session, "index", &s.index), 0);
    insert_many_in_vain(&s);
    assert_memory_equal(registry, before, sizeof(before));
    check_finds_it(&s);
    close_stage(&s);
}


/* ---- smart ---- */

/* The lock is the last word of a leaf. */
static void lock_leaves(stage *s, uint64_t lock) {
    for (size_t i = 0; i < s->scene.place_count; i++)
        for (size_t k = 0; strcmp(s->scene.places[i].name, "smart type 3") == 0 && k < s->scene.places[i].count; k++) {
            const object *o = &s->scene.places[i].objects[k];
            *word_at(o->addr + o->bytes - 8) = lock;
        }
}


/* It names a client that lives, and does not hold it; it names no record at all. */
static void smart_is_locked_by_nobody(void **state) {
    stage s;
    open_stage(&s, "smart", *state);
    lock_leaves(&s, SMART_LOCK_OWNER | scene_owner(s.pool->team.own->id, 0));
    update_in_vain(&s, 0);
    check_finds_it(&s);
    lock_leaves(&s, 1);
    update_in_vain(&s, 0);
    check_finds_it(&s);
    close_stage(&s);
}


/* ---- The rest ---- */

static void dart_is_locked_by_nobody(void **state) {
    stage s;
    (void)state;
    open_stage(&s, "dart", "lock_free=off");
    for (unsigned i = 0; i < DART_LOCKS; i++)
        change_words(&s, "dart type 4", 8ull * i, UINT64_MAX, scene_owner(s.pool->team.own->id, 0));
    update_in_vain(&s, 0);
    check_finds_it(&s);
    close_stage(&s);
}


/* ---- Whoever holds a lock has a pin ---- */

static void has_a_pin(void *arg) {
    const far_session_pins *pins = &((far_session *)arg)->pins;
    assert_true(pins->held[0] + pins->held[1] > 0);
}


static int wait_for_epochs(far_task *t, void *arg) {
    stage *s = arg;
    uint64_t before, after;
    assert_int_equal(far_pin_take(t), 0);
    assert_int_equal(far_epoch_read(t, &before), 0);
    rig_meanwhile(has_a_pin, s->session);
    rig_at_verbs(has_a_pin, s->session);
    int err = far_pin_after_epochs(t, 2);
    rig_meanwhile(NULL, NULL);
    rig_at_verbs(NULL, NULL);
    assert_int_equal(err, 0);
    assert_int_equal(far_epoch_read(t, &after), 0);
    assert_true(far_epoch(t) >= before + 2 && after > before + 2);
    return 0;
}


static int wait_for_epochs_patiently(far_task *t, void *arg) {
    for (unsigned i = 0; i < FAR_PATIENCE_RETRIES; i++)
        far_count_retry(t);
    assert_non_null(t->patience);
    return wait_for_epochs(t, arg);
}


/* Also while it waits until all pins are newer, and moves the epoch itself meanwhile, also to see whether what it retries
 * for ever comes: else its handle might fall asleep, epochs would pass while it is stopped, and others would take its lock
 * for damage. */
static void who_waits_for_epochs_keeps_a_pin(void **state) {
    stage s;
    (void)state;
    open_stage(&s, "dolphin", "");
    assert_int_equal(far_session_call(s.session, FAR_STATS_OTHER, false, wait_for_epochs, &s), 0);
    assert_int_equal(far_session_call(s.session, FAR_STATS_OTHER, false, wait_for_epochs_patiently, &s), 0);
    close_stage(&s);
}


/* ---- Looking again and again ---- */

typedef struct looking {
    unsigned looks, changes_at,
        result;     /* changes_at: which of the looks after each wait sees something else; 0: none */
    uint64_t last;  /* epoch of the last look */
    unsigned since; /* looks at that epoch */
} looking;


static int look_at_it(far_task *t, void *arg) {
    looking *l = arg;
    uint64_t epoch;
    assert_int_equal(far_epoch_read(t, &epoch), 0);
    l->since = epoch == l->last ? l->since + 1 : 1;
    l->last = epoch;
    l->looks++;
    return l->since != l->changes_at;
}


static int ask_whether_stuck(far_task *t, void *arg) {
    looking *l = arg;
    int stuck = far_is_stuck(t, 0, 0, look_at_it, l);
    assert_true(stuck >= 0);
    l->result = (unsigned)stuck;
    return 0;
}


/* Who takes a lock again and again, and changes nothing, has it when somebody looks, most of the time: it is looked for
 * several times before each wait. What is the same at every look is stuck, after a bounded number of them. */
static void who_is_seen_to_let_go_once_is_not_stuck(void **state) {
    stage s;
    looking busy = {.changes_at = 5}, stuck = {0};
    (void)state;
    open_stage(&s, "dart", "");
    rig_allow(VERBS_MAX);
    assert_int_equal(far_session_call(s.session, FAR_STATS_OTHER, false, ask_whether_stuck, &busy), 0);
    assert_int_equal(busy.result, 0);
    assert_int_equal(busy.looks, 5);
    assert_int_equal(far_session_call(s.session, FAR_STATS_OTHER, false, ask_whether_stuck, &stuck), 0);
    assert_int_equal(stuck.result, 1);
    assert_in_range(stuck.looks, 7, 100);
    assert_false(rig_is_cut());
    close_stage(&s);
}


/* Somebody who locks and looks, changes nothing, and tries again. */
typedef struct trying {
    far_addr lock;
    bool masked;       /* the way in which it locks; a WRITE frees the lock, or the same way back */
    bool counts;       /* each time it frees the lock its number rises */
    bool others_too;   /* somebody else has it in between, now and then */
    unsigned attempts; /* done */
} trying;

#define TRIES_MAX 3000


static int lock_and_look(far_task *t, trying *w, uint64_t free, uint64_t mine, uint64_t then) {
    uint64_t old, seen, all[4];
    far_read(t, w->lock - 16, all, sizeof(all)); /* without the lock, and with it */
    int err = far_wait(t);
    if (w->masked)
        far_masked_cas(t, w->lock, free, UINT64_MAX, mine, UINT64_MAX, &old);
    else
        far_cas(t, w->lock, free, mine, &old);
    if (err < 0 || (err = far_wait(t)) < 0)
        return err;
    assert_int_equal(old, free);
    far_read(t, w->lock, &seen, 8);
    far_read(t, w->lock - 16, all, sizeof(all));
    if ((err = far_wait(t)) < 0)
        return err;
    assert_int_equal(seen, mine);
    assert_int_equal(all[2], mine); /* it sees its own lock, whatever it makes of it */
    if (w->masked)
        return far_cas_word(t, w->lock, mine, then, &old);
    return far_write_word(t, w->lock, then);
}


static int try_again_and_again(far_task *t, void *arg) {
    trying *w = arg;
    int err = far_pin_take(t);
    for (; err >= 0 && w->attempts < TRIES_MAX; w->attempts++) {
        uint64_t free = *word_at(w->lock), mine = far_owner_of_task(t) | 1ull << 63;
        err = lock_and_look(t, w, free, mine, free + w->counts);
        far_count_retry(t);
        far_back_off(t, 1);
        far_pin_drop(t);
        if (err >= 0)
            err = far_pin_take(t);
        if (w->others_too)
            ++*word_at(w->lock);
    }
    if (err >= 0)
        far_pin_drop(t);
    return err;
}


/* A lock that is taken and given back in vain is no change to the one who does it, however often: it learns that nobody
 * else makes one. What another one does to the lock is a change, and it goes on. */
static void an_own_lock_is_no_news(void **state) {
    (void)state;
    for (unsigned how = 0; how < 8; how++) {
        stage s;
        open_stage(&s, "dart", "");
        const object *o = &s.scene.places[0].objects[0];
        trying w = {.lock = o->addr + 16, .masked = how & 1, .counts = how & 2, .others_too = how & 4};
        assert_true(o->bytes >= 32);
        int result = far_session_call(s.session, FAR_STATS_OTHER, false, try_again_and_again, &w);
        assert_int_equal(result, w.others_too ? 0 : FAR_ERR_CORRUPT);
        assert_true(w.others_too == (w.attempts == TRIES_MAX));
        close_stage(&s);
    }
}


/* Words that stray in an entry of the registry that nobody has: whoever gets it clears them, and all that others would
 * wait for is as it should be. */
static void an_entry_of_nobody_says_something(void **state) {
    stage s = {0};
    (void)state;
    scene_make(&s.scene, "dart", "", false, 1);
    rig_restore(s.scene.image);
    for (unsigned id = 1; id <= 3; id++) {
        far_addr entry = far_client_entry(id);
        memset(rig_memory(far_addr_node(entry)) + far_addr_offset(entry) + 8, 0x11, FAR_CLIENT_BYTES - 8);
    }
    open_stage_again(&s);
    for (unsigned id = s.session->id; id <= 2; id++) { /* that of a session has no such words at all */
        far_addr entry = far_client_entry(id);
        const far_client *client = (const far_client *)(rig_memory(0) + far_addr_offset(entry));
        assert_int_equal(client->pin, 0);
        assert_int_equal(client->retired_bytes, 0);
    }
    far_index_close(s.index);
    s.index = NULL;
    rig_allow(10 * VERBS_MAX);
    assert_int_equal(far_index_drop(s.session, "index"), 0);
    assert_int_equal(far_pool_check(s.session, 0, ignore_problem, NULL), 0);
    assert_false(rig_is_cut());
    close_stage(&s);
}


/* A drop mark that names a client which lives and drops nothing: that of the handle, and that of the caller itself. It is
 * proved that nobody works under it, by whoever meets it, and it is gone. */
static void a_drop_mark_of_nobody_goes(void **state) {
    stage s;
    (void)state;
    open_stage(&s, "dart", "");
    const far_addr mark = s.index->record + offsetof(far_index_record, mark);
    for (unsigned how = 0; how < 4; how++) {
        bool drops = how == 3;
        unsigned id = how % 2 ? s.session->id : s.pool->team.own->id;
        far_index_close(s.index);
        s.index = NULL;
        *word_at(mark) = scene_owner(id, 0) | (uint64_t)how << FAR_OWNER_BITS;
        rig_allow(VERBS_MAX);
        if (how < 2)
            assert_int_equal(far_index_open(s.session, "index", &s.index), 0);
        else if (drops)
            assert_int_equal(far_index_drop(s.session, "index"), 0);
        else
            assert_int_equal(far_pool_check(s.session, 0, ignore_problem, NULL), 0);
        assert_false(rig_is_cut());
        assert_true(drops || *word_at(mark) == 0);
    }
    close_stage(&s);
}


int main(void) {
    static const struct CMUnitTest tests[] = {
        {"chime, busy", chime_is_busy_with_nobody, NULL, NULL, ""},
        {"chime, busy, 8/8", chime_is_busy_with_nobody, NULL, NULL, "key_size=8,value_size=8"},
        {"chime, locked", chime_is_locked_by_nobody, NULL, NULL, ""},
        {"chime, locked, 8/8", chime_is_locked_by_nobody, NULL, NULL, "key_size=8,value_size=8"},
        {"dolphin, root", dolphin_root_is_locked_by_nobody, NULL, NULL, ""},
        {"dolphin, nodes", dolphin_nodes_are_locked_by_nobody, NULL, NULL, ""},
        {"dolphin, leaves", dolphin_leaves_are_locked_by_nobody, NULL, NULL, "sync=exclusive"},
        {"dolphin, frozen", dolphin_is_frozen_by_nobody, NULL, NULL, ""},
        {"dolphin, frozen, 8/8", dolphin_is_frozen_by_nobody, NULL, NULL, "key_size=8,value_size=8"},
        {"shard", shard_is_locked_by_nobody, NULL, NULL, ""},
        {"shard, 8/8", shard_is_locked_by_nobody, NULL, NULL, "key_size=8,value_size=8"},
        {"smart", smart_is_locked_by_nobody, NULL, NULL, ""},
        cmocka_unit_test(shard_is_led_into_the_registry),
        cmocka_unit_test(dart_is_locked_by_nobody),
        cmocka_unit_test(who_waits_for_epochs_keeps_a_pin),
        cmocka_unit_test(who_is_seen_to_let_go_once_is_not_stuck),
        cmocka_unit_test(an_own_lock_is_no_news),
        cmocka_unit_test(an_entry_of_nobody_says_something),
        cmocka_unit_test(a_drop_mark_of_nobody_goes),
    };
    rig_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rig_end();
    return failed;
}
