/* Tests of waiting for a change that no client is making: damaged words claim that a change is in progress. The tests
 * prove that a client which waits for such a change concludes, because epochs pass, that no live client makes the
 * change, and fails with FAR_ERR_CORRUPT after bounded work; and that check reports the damage. */
#include "index/chime/chime.h"
#include "index/dart/dart.h"
#include "index/dolphin/dolphin.h"
#include "index/shard/shard.h"
#include "index/smart/smart.h"
#include "pool/catalog/layout.h"
#include "pool/epoch/epoch.h"
#include "pool/format/clients.h"
#include "pool/handle.h"
#include "scene.h"
#include "task/progress.h"
#include "task/session.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

#define VERBS_MAX 20000 /* largest number of verbs of one call */

typedef struct stage {
    scene scene;
    far_pool *pool;
    far_session *session;
    far_index *index;
} stage;


static void reopen_stage(stage *s) {
    rig_limit_verbs(UINT64_MAX);
    assert_int_equal(far_pool_open(RIG_URI, &rig_options, &s->pool), 0);
    assert_int_equal(far_session_open(s->pool, &s->session), 0);
    assert_int_equal(far_index_open(s->session, "index", &s->index), 0);
}


static void open_stage(stage *s, const char *kind, const char *options) {
    *s = (stage){0};
    scene_make(&s->scene, kind, options, false, 1);
    rig_restore_pool(s->scene.image);
    reopen_stage(s);
}


static void close_stage(stage *s) {
    rig_limit_verbs(UINT64_MAX);
    far_index_close(s->index);
    far_session_close(s->session);
    far_pool_close(s->pool);
    scene_free(&s->scene);
}


static uint64_t *word_at(far_addr addr) {
    return (uint64_t *)(rig_memory(far_addr_node(addr)) + far_addr_offset(addr));
}


/* Changes the word at `offset` in every object of the sort. In large objects, the words at distances of `step` bytes
 * after it are changed, too. */
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


static void assert_corrupt(int64_t result) {
    assert_false(rig_limit_is_exceeded());
    assert_int_equal(result, FAR_ERR_CORRUPT);
    assert_true(far_last_error()[0] != 0);
}


static void assert_get_is_corrupt(stage *s, unsigned number) {
    char key[SCENE_KEY_BYTES], value[SCENE_VALUE_MAX];
    size_t key_bytes = scene_key(&s->scene, number, key);
    rig_limit_verbs(VERBS_MAX);
    assert_corrupt(far_get(s->session, s->index, key, key_bytes, value, sizeof(value), NULL));
}


static void assert_scan_is_corrupt(stage *s) {
    rig_limit_verbs(VERBS_MAX);
    assert_corrupt(far_scan(s->session, s->index, NULL, 0, NULL, 0, 0, ignore_pair, NULL));
}


static void assert_update_is_corrupt(stage *s, unsigned number) {
    char key[SCENE_KEY_BYTES], value[SCENE_VALUE_MAX];
    size_t key_bytes = scene_key(&s->scene, number, key), bytes = scene_value(&s->scene, number, 1, value);
    rig_limit_verbs(VERBS_MAX);
    assert_corrupt(far_put(s->session, s->index, key, key_bytes, value, bytes));
}


static void assert_check_reports(stage *s) {
    rig_limit_verbs(10 * VERBS_MAX);
    assert_true(far_pool_check(s->session, 0, ignore_problem, NULL) != 0);
    assert_false(rig_limit_is_exceeded());
}


static uint64_t chime_tail_offset_of(const stage *s, unsigned word) {
    return chime_tail_addr(chime_state_of(s->index), 0, word);
}


/* S, the structure word of the node, says that the node is being changed, although the node's lock is free. */
TEST_FUNCTION(chime_node_is_busy_without_a_client) {
    stage s;
    open_stage(&s, "chime", *state);
    change_words(&s, "chime type 1", chime_tail_offset_of(&s, CHIME_TAIL_S), 0, 1);
    assert_get_is_corrupt(&s, SCENE_KEYS + 1); /* The get is for an absent key. */
    assert_scan_is_corrupt(&s);
    assert_check_reports(&s);
    close_stage(&s);
}


/* The lock of the node names a live client that does not hold the lock. */
TEST_FUNCTION(chime_node_is_locked_by_no_client) {
    stage s;
    open_stage(&s, "chime", *state);
    uint64_t lock = chime_lock_make(scene_owner(s.pool->team.own->id, 0), 1, 0);
    change_words(&s, "chime type 1", chime_tail_offset_of(&s, CHIME_TAIL_S), 0, 1);
    change_words(&s, "chime type 1", chime_tail_offset_of(&s, CHIME_TAIL_L), UINT64_MAX, lock);
    assert_get_is_corrupt(&s, SCENE_KEYS + 1);
    assert_scan_is_corrupt(&s);
    assert_update_is_corrupt(&s, 0);
    assert_check_reports(&s);
    change_words(&s, "chime type 1", chime_tail_offset_of(&s, CHIME_TAIL_S), 1,
                 0); /* The node is as if the client had failed before its first change. */
    assert_update_is_corrupt(&s, 0);
    assert_check_reports(&s);
    close_stage(&s);
}


/* ---- dolphin ---- */

static uint64_t dolphin_root_of(const stage *s) {
    return dolphin_entry_addr(dolphin_state_of(s->index)->root);
}


static uint64_t
dolphin_lock_of_living_client(const stage *s) { /* Returns a node's lock word that names a live client. */
    return scene_owner(s->pool->team.own->id, 0) << DOLPHIN_OWNER_SHIFT;
}


/* Inserts many new keys; some inserts change the structure. At least one insert must fail as corrupt. */
static void assert_inserts_end_corrupt(stage *s) {
    char key[SCENE_KEY_BYTES], value[SCENE_VALUE_MAX];
    int64_t result = 0;
    for (unsigned i = SCENE_KEYS; i < SCENE_KEYS + 2000 && result == 0; i++) {
        size_t key_bytes = scene_key(&s->scene, i, key), bytes = scene_value(&s->scene, i, 1, value);
        rig_limit_verbs(VERBS_MAX);
        result = far_put(s->session, s->index, key, key_bytes, value, bytes);
    }
    assert_corrupt(result);
}


TEST_FUNCTION(dolphin_root_is_locked_by_no_client) {
    stage s;
    open_stage(&s, "dolphin", *state);
    for (unsigned i = 0; i < 256; i++)
        *word_at(dolphin_root_of(&s) + DOLPHIN_ROOT_LOCKS + 8ull * i) |= dolphin_lock_of_living_client(&s);
    assert_inserts_end_corrupt(&s);
    assert_check_reports(&s);
    close_stage(&s);
}


TEST_FUNCTION(dolphin_nodes_are_locked_by_no_client) {
    stage s;
    open_stage(&s, "dolphin", *state);
    change_words(&s, "dolphin type 1", 0, 0, dolphin_lock_of_living_client(&s));
    assert_inserts_end_corrupt(&s);
    assert_check_reports(&s);
    close_stage(&s);
}


/* With the option sync=exclusive, each leaf has a lock of its own. */
TEST_FUNCTION(dolphin_leaves_are_locked_by_no_client) {
    stage s;
    open_stage(&s, "dolphin", *state);
    change_words(&s, "dolphin type 2", DOLPHIN_LEAF_LOCK, UINT64_MAX, scene_owner(s.pool->team.own->id, 0));
    assert_update_is_corrupt(&s, 0);
    assert_check_reports(&s);
    close_stage(&s);
}


/* The leaves are marked as frozen for a change, although the lock of their node is free. */
TEST_FUNCTION(dolphin_leaf_is_frozen_by_no_client) {
    stage s;
    open_stage(&s, "dolphin", *state);
    change_words(&s, "dolphin type 2", 0, 0, DOLPHIN_FROZEN);
    assert_update_is_corrupt(&s, 0);
    assert_check_reports(&s);
    close_stage(&s);
}


/* ---- shard ---- */

TEST_FUNCTION(shard_bucket_is_locked_by_no_client) {
    stage s;
    open_stage(&s, "shard", *state);
    unsigned id = s.pool->team.own->id;
    bool inlined = shard_state_of(s.index)->inlined;
    change_words_of(&s, "shard type 2", 8ull * (inlined ? SHARD_I_K : SHARD_P_HEADER), SHARD_BUCKET_BYTES,
                    inlined ? UINT64_MAX : 0, inlined ? shard_k(id, 0) : shard_header_locked(0, id, SHARD_OP_SPLIT));
    assert_inserts_end_corrupt(&s);
    assert_check_reports(&s);
    close_stage(&s);
}


/* The addresses of the tables of levels 2 and 3 are damaged and point to unused registry entries, whose zeroes are
 * valid as table words. Proves that no insert writes there, which would create clients. */
TEST(shard_tables_point_into_the_registry) {
    stage s;
    open_stage(&s, "shard", "partitions=1,bits=1,slots=2,l2_slots=1");
    far_addr tables = shard_cached_word(&shard_state_of(s.index)->part[0].directory, 0) + 8 * SHARD_DIR_L2,
             entry = far_client_entry(s.pool->geometry.session_slots / 2);
    char *registry = rig_memory(0) + far_addr_offset(entry), before[4096];
    memcpy(before, registry, sizeof(before));
    far_index_close(s.index);
    for (unsigned i = 0; i < 4; i++)
        *word_at(tables + 8 * i) = entry | (*word_at(tables + 8 * i) & ~shard_mask(48));
    assert_int_equal(far_index_open(s.session, "index", &s.index), 0);
    assert_inserts_end_corrupt(&s);
    assert_memory_equal(registry, before, sizeof(before));
    assert_check_reports(&s);
    close_stage(&s);
}


/* ---- smart ---- */

/* Sets the lock word of every leaf, which is the last word of the leaf. */
static void lock_leaves(stage *s, uint64_t lock) {
    for (size_t i = 0; i < s->scene.place_count; i++)
        for (size_t k = 0; strcmp(s->scene.places[i].name, "smart type 3") == 0 && k < s->scene.places[i].count; k++) {
            const object *o = &s->scene.places[i].objects[k];
            *word_at(o->addr + o->bytes - 8) = lock;
        }
}


/* The lock of each leaf names first a live client that does not hold the lock, and then no log record at all. */
TEST_FUNCTION(smart_leaf_is_locked_by_no_client) {
    stage s;
    open_stage(&s, "smart", *state);
    lock_leaves(&s, SMART_LOCK_OWNER | scene_owner(s.pool->team.own->id, 0));
    assert_update_is_corrupt(&s, 0);
    assert_check_reports(&s);
    lock_leaves(&s, 1);
    assert_update_is_corrupt(&s, 0);
    assert_check_reports(&s);
    close_stage(&s);
}


/* ---- dart ---- */

TEST(dart_is_locked_by_no_client) {
    stage s;
    open_stage(&s, "dart", "lock_free=off");
    for (unsigned i = 0; i < DART_LOCKS; i++)
        change_words(&s, "dart type 3", 8ull * i, UINT64_MAX, scene_owner(s.pool->team.own->id, 0));
    assert_update_is_corrupt(&s, 0);
    assert_check_reports(&s);
    close_stage(&s);
}


/* ---- A lock holder has a pin ---- */

static void assert_session_has_pin(void *arg) {
    const far_session_pins *pins = &((far_session *)arg)->pins;
    assert_true(pins->held[0] + pins->held[1] > 0);
}


static int wait_for_epochs(far_task *t, void *arg) {
    stage *s = arg;
    uint64_t before, after;
    assert_int_equal(far_pin_take(t), 0);
    assert_int_equal(far_epoch_read(t, &before), 0);
    rig_run_while_waiting(assert_session_has_pin, s->session);
    rig_run_at_verbs(assert_session_has_pin, s->session);
    int err = far_pin_after_epochs(t, 2);
    rig_run_while_waiting(NULL, NULL);
    rig_run_at_verbs(NULL, NULL);
    assert_int_equal(err, 0);
    assert_int_equal(far_epoch_read(t, &after), 0);
    assert_true(far_epoch(t) >= before + 2 && after > before + 2);
    return 0;
}


static int wait_for_epochs_after_retries(far_task *t, void *arg) {
    for (unsigned i = 0; i < FAR_PROGRESS_RETRIES; i++)
        far_count_retry(t);
    assert_non_null(t->patience);
    return wait_for_epochs(t, arg);
}


/* Proves that a task which waits for epochs keeps a pin all the time. The task also keeps a pin while it waits until
 * all pins are newer and advances the epoch itself, and while it checks whether its retries make progress. Without a
 * pin the task's handle could become quiescent. Then epochs would pass while the task is stopped, and other clients
 * would take its lock for corruption. */
TEST(a_wait_for_epochs_keeps_a_pin) {
    stage s;
    open_stage(&s, "dolphin", "");
    assert_int_equal(far_session_call(s.session, FAR_STATS_OTHER, false, wait_for_epochs, &s), 0);
    assert_int_equal(far_session_call(s.session, FAR_STATS_OTHER, false, wait_for_epochs_after_retries, &s), 0);
    close_stage(&s);
}


/* ---- Observing a lock repeatedly ---- */

typedef struct looking {
    unsigned looks;      /* number of observations */
    unsigned changes_at; /* number of the observation within one epoch that finds the word changed; 0: none does */
    unsigned result;     /* 1 if the lock counts as stuck */
    uint64_t last;  /* epoch of the last observation */
    unsigned since; /* number of observations in the epoch `last` */
} looking;


static int observe_once(far_task *t, void *arg) {
    looking *l = arg;
    uint64_t epoch;
    assert_int_equal(far_epoch_read(t, &epoch), 0);
    l->since = epoch == l->last ? l->since + 1 : 1;
    l->last = epoch;
    l->looks++;
    return l->since != l->changes_at;
}


static int run_stuck_check(far_task *t, void *arg) {
    looking *l = arg;
    int stuck = far_confirm_abandoned(t, 0, 0, observe_once, l);
    assert_true(stuck >= 0);
    l->result = (unsigned)stuck;
    return 0;
}


/* Proves that a client which takes a lock repeatedly without changing anything does not count as stuck. The client
 * holds the lock at most observations, so the lock is observed several times before each wait; one observation of the
 * free lock suffices. A word that is equal in all observations counts as stuck after a bounded number of observations.
 */
TEST(a_holder_that_frees_its_lock_is_not_stuck) {
    stage s;
    looking busy = {.changes_at = 5}, stuck = {0};
    open_stage(&s, "dart", "");
    rig_limit_verbs(VERBS_MAX);
    assert_int_equal(far_session_call(s.session, FAR_STATS_OTHER, false, run_stuck_check, &busy), 0);
    assert_int_equal(busy.result, 0);
    assert_int_equal(busy.looks, 5);
    assert_int_equal(far_session_call(s.session, FAR_STATS_OTHER, false, run_stuck_check, &stuck), 0);
    assert_int_equal(stuck.result, 1);
    assert_in_range(stuck.looks, 7, 100);
    assert_false(rig_limit_is_exceeded());
    close_stage(&s);
}


/* A task that takes a lock, reads, changes nothing, frees the lock, and repeats this. */
typedef struct trying {
    far_addr lock;
    /* true: the task locks by masked CAS and unlocks by CAS; false: the task locks by CAS and unlocks by a WRITE */
    bool masked;
    bool counts;       /* true if the task increments the number in the lock word each time it frees the lock */
    bool others_too;   /* true if another client changes the lock in between, from time to time */
    unsigned attempts; /* number of attempts that the task has made */
} trying;

#define TRIES_MAX 3000


static int lock_read_unlock(far_task *t, trying *w, uint64_t free, uint64_t mine, uint64_t then) {
    uint64_t old, seen, all[4];
    far_read(t, w->lock - 16, all, sizeof(all)); /* The task reads before it takes the lock, and again afterwards. */
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
    assert_int_equal(all[2], mine); /* The task reads the lock word that it has written itself. */
    if (w->masked)
        return far_cas_word(t, w->lock, mine, then, &old);
    return far_write_word(t, w->lock, then);
}


static int lock_repeatedly(far_task *t, void *arg) {
    trying *w = arg;
    int err = far_pin_take(t);
    for (; err >= 0 && w->attempts < TRIES_MAX; w->attempts++) {
        uint64_t free = *word_at(w->lock), mine = far_owner_of_task(t) | 1ull << 63;
        err = lock_read_unlock(t, w, free, mine, free + w->counts);
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


/* Proves that a task's own lock and unlock do not count as progress, however often they occur, so the task finds out
 * that no other client makes progress. If another client changes the lock, that is progress, and the task continues. */
TEST(own_lock_changes_are_no_progress) {
    for (unsigned how = 0; how < 8; how++) {
        stage s;
        open_stage(&s, "dart", "");
        const object *o = &s.scene.places[0].objects[0];
        trying w = {.lock = o->addr + 16, .masked = how & 1, .counts = how & 2, .others_too = how & 4};
        assert_true(o->bytes >= 32);
        int result = far_session_call(s.session, FAR_STATS_OTHER, false, lock_repeatedly, &w);
        assert_int_equal(result, w.others_too ? 0 : FAR_ERR_CORRUPT);
        assert_true(w.others_too == (w.attempts == TRIES_MAX));
        close_stage(&s);
    }
}


/* Unused registry entries contain arbitrary words. The test proves that a client which gets such an entry clears these
 * words, so that they make no other client wait. */
TEST(an_unused_registry_entry_contains_words) {
    stage s = {0};
    scene_make(&s.scene, "dart", "", false, 1);
    rig_restore_pool(s.scene.image);
    for (unsigned id = 1; id <= 3; id++) {
        far_addr entry = far_client_entry(id);
        memset(rig_memory(far_addr_node(entry)) + far_addr_offset(entry) + 8, 0x11, FAR_CLIENT_BYTES - 8);
    }
    reopen_stage(&s);
    /* The registry entry of a user's session does not use these words, so they must be 0. */
    for (unsigned id = s.session->id; id <= 2; id++) {
        far_addr entry = far_client_entry(id);
        const far_client *client = (const far_client *)(rig_memory(0) + far_addr_offset(entry));
        assert_int_equal(client->pin, 0);
        assert_int_equal(client->retired_bytes, 0);
    }
    far_index_close(s.index);
    s.index = NULL;
    rig_limit_verbs(10 * VERBS_MAX);
    assert_int_equal(far_index_drop(s.session, "index"), 0);
    assert_int_equal(far_pool_check(s.session, 0, ignore_problem, NULL), 0);
    assert_false(rig_limit_is_exceeded());
    close_stage(&s);
}


TEST_CASE(chime_node_is_busy_without_a_client, "chime, busy", "");
TEST_CASE(chime_node_is_busy_without_a_client, "chime, busy, 8/8", "key_size=8,value_size=8");
TEST_CASE(chime_node_is_locked_by_no_client, "chime, locked", "");
TEST_CASE(chime_node_is_locked_by_no_client, "chime, locked, 8/8", "key_size=8,value_size=8");
TEST_CASE(dolphin_root_is_locked_by_no_client, "dolphin, root", "");
TEST_CASE(dolphin_nodes_are_locked_by_no_client, "dolphin, nodes", "");
TEST_CASE(dolphin_leaves_are_locked_by_no_client, "dolphin, leaves", "sync=exclusive");
TEST_CASE(dolphin_leaf_is_frozen_by_no_client, "dolphin, frozen", "");
TEST_CASE(dolphin_leaf_is_frozen_by_no_client, "dolphin, frozen, 8/8", "key_size=8,value_size=8");
TEST_CASE(shard_bucket_is_locked_by_no_client, "shard", "");
TEST_CASE(shard_bucket_is_locked_by_no_client, "shard, 8/8", "key_size=8,value_size=8");
TEST_CASE(smart_leaf_is_locked_by_no_client, "smart", "");
TEST_GROUP(rig_start, rig_end);
