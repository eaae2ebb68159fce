/* States that failed and slow clients of the shard index leave behind, and how walks, checks and other clients handle
 * them. Each test failed before the code was fixed. */
#include "client/op.h"
#include "pool/epoch/epoch.h"
#include "pool/gc/collect.h"
#include "shard_text_keys.h"
#include "task/session.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INLINE "key_size=8,value_size=8,narrow=on,"


static int do_number(stage_actor *a, far_op_kind kind, uint64_t n, uint64_t *value) {
    uint64_t key = __builtin_bswap64(n);
    size_t length;
    if (kind == FAR_OP_GET)
        return far_get(a->session, a->index, &key, 8, value, 8, &length);
    return far_put(a->session, a->index, &key, 8, value, 8);
}


/* Proves that an empty partition may be larger than an extent. */
TEST(an_empty_partition_of_several_extents) {
    stage s;
    char key[16];
    stage_open(&s, "shard", "partitions=1,bits=4,extent=2048,slots=2,l2_slots=1,load=60,afs=1", NULL);
    for (unsigned i = 0; i < 100; i++) {
        snprintf(key, sizeof(key), "n%u", i);
        stage_write(i % 2 ? &s.a : &s.b, key, "v");
        far_sim_sleep(s.world, 300000);
    }
    for (unsigned i = 0; i < 100; i++) {
        snprintf(key, sizeof(key), "n%u", i);
        assert_true(stage_reads(&s.c, key, "v"));
    }
    stage_close(&s);

    stage_open(&s, "shard", INLINE "partitions=1,bits=4,extent=2048,slots=2,l2_slots=1,load=60,afs=1", NULL);
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(do_number(i % 2 ? &s.a : &s.b, FAR_OP_PUT, i, &i), 0);
    for (uint64_t i = 0, value; i < 100; i++)
        assert_true(do_number(&s.c, FAR_OP_GET, i, &value) == 0 && value == i);
    stage_close(&s);
}


/* Proves that `extent` must be a power of two. Otherwise a bucket could extend over the end of an extent. */
TEST(an_extent_is_a_power_of_two) {
    stage s;
    far_index *index;
    stage_open(&s, "shard", NULL, NULL);
    assert_int_equal(far_index_create(s.a.session, "odd", "shard", "extent=1000", &index), FAR_ERR_INVALID);
    assert_int_equal(far_index_create(s.a.session, "odd", "shard", "extent=1536", &index), FAR_ERR_INVALID);
    assert_int_equal(far_index_create(s.a.session, "even", "shard", "extent=1024", &index), 0);
    far_index_close(index);
    stage_close(&s);
}


/* Proves that with narrow=on a key that is too large is absent, even if a key with the same low bits is present. */
TEST(a_key_that_is_too_wide_is_absent) {
    stage s;
    uint64_t value = 7;
    stage_open(&s, "shard", INLINE "partitions=1,bits=0", NULL);
    assert_int_equal(do_number(&s.a, FAR_OP_PUT, 5, &value), 0);
    assert_int_equal(do_number(&s.b, FAR_OP_GET, 5, &value), 0);
    assert_int_equal(do_number(&s.b, FAR_OP_GET, 5 | 1ull << 54, &value), FAR_ERR_NOT_FOUND);
    stage_close(&s);
}


/* Proves that with ordered_cas=off an insert succeeds if its bucket has room when it is read, and is full when it is
 * locked. */
TEST(a_bucket_fills_before_its_lock) {
    stage s;
    stage_open(&s, "shard", "partitions=1,bits=0,slots=2,l2_slots=1,afs=1000000,ordered_cas=off", NULL);
    stage_write(&s.a, "x", "0");
    stage_start(&s.a, FAR_OP_INSERT, "k", "a");
    stage_stop_at(&s.a, at("shard:main_bucket_read"));
    stage_write(&s.b, "y", "0");
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    assert_true(stage_reads(&s.c, "k", "a") && stage_reads(&s.c, "y", "0"));
    stage_close(&s);
}


/* ---- Walks ---- */

typedef struct recorder {
    far_walk walk; /* must be the first field, because the callback gets its address */
    far_index *index;
    far_addr blocks[64];
    unsigned count;
    int result;
} recorder;


static int record_object(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    recorder *r = (recorder *)walk;
    (void)index, (void)size;
    if (type == SHARD_TYPE_BLOCK) {
        assert_true(r->count < 64);
        r->blocks[r->count++] = addr;
    }
    return 0;
}


static int run_walk(far_task *t, void *arg) {
    recorder *r = arg;
    return r->index->kind->walk(t, r->index, &r->walk);
}


typedef struct walker {
    stage_actor *actor;
    recorder recorder;
} walker;


static void walk_all(void *arg) {
    walker *w = arg;
    w->recorder = (recorder){.walk = {.object = record_object}, .index = w->actor->index};
    w->recorder.result = far_session_call(w->actor->session, FAR_STATS_OTHER, false, run_walk, &w->recorder);
}


static bool was_reported(const recorder *r, far_addr addr) {
    for (unsigned i = 0; i < r->count; i++)
        if (r->blocks[i] == addr)
            return true;
    return false;
}


static int work_until_stable(far_task *t, void *arg) {
    far_index *index = arg;
    shard_partition *part = &shard_state_of(index)->part[0];
    int err = far_pin_take(t);
    for (unsigned i = 0; err >= 0 && i < 100 && shard_root_phase(part->root) != SHARD_STABLE; i++)
        err = shard_resize_step(t, index, part, &(int){5});
    return err < 0 ? err : 0;
}


/* Proves that a walk reports keys that a drain moves from level 2 of the old generation to level 2 of the new one,
 * although the new table did not exist when the walk read the table words. This matters because a collection frees
 * every object that its walk does not report. */
TEST(a_walk_finds_keys_that_a_drain_moves_down_again) {
    stage s;
    walker before = {.actor = &s.c}, beside = {.actor = &s.c};
    stage_open(&s, "shard", "partitions=1,bits=0,slots=2,l2_slots=1,afs=1000000,idle_sweep=off", NULL);
    /* There are two keys at level 1 and one each at levels 2 and 3. None of them moves to the child, so level 1 has no
     * more room after the doubling. */
    for (unsigned i = 0; i < 4; i++)
        stage_write(&s.b, key_with(&s.b, 0, i), "v");
    shard_partition *part = &shard_state_of(s.b.index)->part[0];
    assert_int_equal(shard_root_phase(part->root), SHARD_GROW);
    walk_all(&before);
    assert_int_equal(before.recorder.result, 0);
    assert_int_equal(before.recorder.count, 4);

    far_addr word = shard_cached_word(&part->directory, 0) + 8 * SHARD_DIR_L2;
    s.c.client = far_sim_start(s.c.pool->fabric, "walker", walk_all, &beside);
    stage_stop_at(&s.c, (far_sim_match){.kind = FAR_SIM_READ, .nth = 2, .from = word, .to = word + 8});
    assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, false, work_until_stable, s.b.index), 0);
    assert_int_equal(shard_root_phase(part->root), SHARD_STABLE);
    assert_int_equal(shard_state_of(s.b.index)->counters.drained, 2);
    stage_finish(&s.c);
    assert_int_equal(beside.recorder.result, 0);
    for (unsigned i = 0; i < before.recorder.count; i++)
        assert_true(was_reported(&beside.recorder, before.recorder.blocks[i]));
    stage_close(&s);
}


/* ---- A split that its owner did not finish ---- */

/* C begins a collection and stops, so that no other client runs one and completes the split. */

static int run_collection(far_task *t, void *arg) {
    far_collect_result result;
    (void)arg;
    return far_collect(t, FAR_COLLECT_REPAIR, &result);
}


static void collect_all(void *arg) {
    stage_actor *a = arg;
    a->result = far_session_call(a->session, FAR_STATS_OTHER, true, run_collection, NULL);
    a->ended = true;
}


static void stop_the_collection(stage *s) {
    s->c.ended = false;
    s->c.client = far_sim_start(s->c.pool->fabric, "collector", collect_all, &s->c);
    stage_stop_at(&s->c, (far_sim_match){.kind = FAR_SIM_CAS, .from = FAR_SUPER_REQUEST, .to = FAR_SUPER_REQUEST + 8});
    stage_stop_at(&s->c, (far_sim_match){.kind = FAR_SIM_READ});
}


/* B splits the bucket with a put of `stays`, and fails when the child is complete and the parent is unchanged. Then A
 * changes the key `leaves`, which has moved to the child, and the pair block of its old value is reused for the key
 * `other` of the child. So the parent still has an entry that names a reused pair block. */
static void leave_an_old_word_in_the_parent(stage *s, far_addr parent, const char *stays, const char *leaves,
                                            const char *other) {
    char value[16];
    stage_start(&s->b, FAR_OP_PUT, stays, "b");
    far_sim_kill_at(s->b.client,
                    (far_sim_match){.kind = FAR_SIM_WRITE, .from = parent, .to = parent + SHARD_BUCKET_BYTES}, 0);
    far_sim_run(s->world);
    assert_true(far_sim_killed(s->b.pool->fabric));
    stage_write(&s->a, leaves, "new");
    for (unsigned i = 0; i < 40; i++) {
        snprintf(value, sizeof(value), "%u", i);
        stage_write(&s->a, other, value);
        far_epoch_request(s->a.pool);
        far_sim_sleep(s->world, 300000);
    }
    assert_int_equal(shard_state_of(s->a.index)->counters.takeovers, 0);
}


/* Proves that a check reports no problem for an entry that an unfinished split has left in the parent, although the key
 * has moved to the child and was changed there. */
TEST(a_check_during_an_unfinished_split) {
    stage s;
    stage_open(&s, "shard", "partitions=1,bits=0,slots=4,l2_slots=1,load=60,afs=1,idle_sweep=off", NULL);
    for (unsigned bit = 0; bit < 2; bit++)
        stage_write(&s.a, key_with(&s.a, bit, 0), "old");
    const char *k = key_with(&s.a, 1, 0), *stays = key_with(&s.a, 0, 0);
    stage_write(&s.b, "third", "0");
    stop_the_collection(&s);
    far_addr parent = atomic_load_explicit(&shard_state_of(s.a.index)->part[0].segment[0], memory_order_relaxed);
    leave_an_old_word_in_the_parent(&s, parent, stays, k, key_with(&s.a, 1, 1));
    assert_int_equal(far_index_check(s.a.session, s.a.index, fail_at_problem, NULL), 0);
    stage_finish(&s.c);
    assert_int_equal(s.c.result, 0);
    assert_true(stage_reads(&s.c, k, "new") && stage_reads(&s.c, stays, "old"));
    stage_close(&s);
}


static int grow_once(far_task *t, void *arg) {
    far_index *index = arg;
    int err = far_pin_take(t);
    return err < 0 ? err : shard_try_grow(t, index, &shard_state_of(index)->part[0]);
}


/* Returns the n-th key that belongs to this bucket at this version. */
static void find_key(const stage_actor *a, uint64_t bucket, unsigned version, unsigned n, char key[16]) {
    for (unsigned i = 0;; i++) {
        snprintf(key, 16, "k%u", i);
        uint64_t h = shard_hash(a->index, (far_bytes){key, strlen(key)});
        if (shard_bucket(h, 0, 0, version) == bucket && n-- == 0)
            return;
    }
}


/* At the seventh doubling, a split computes new tags from the hashes in the pair blocks of its keys. Proves that a
 * client that takes such a split over does not read the pair blocks of keys that have moved to the child, because these
 * pair blocks may be free. Fails if needs_new_tag (pointer/split.c) includes them. */
TEST(a_failed_split_with_new_tags) {
    stage s;
    char stays[16], leaves[16], other[16];
    stage_open(&s, "shard", "partitions=1,bits=0,slots=4,l2_slots=1,afs=1000000,idle_sweep=off", NULL);
    find_key(&s.a, 0, 7, 0, stays);
    find_key(&s.a, 64, 7, 0, leaves);
    find_key(&s.a, 64, 7, 1, other);
    stage_write(&s.a, stays, "old");
    stage_write(&s.a, leaves, "old");
    const shard_partition *part = &shard_state_of(s.a.index)->part[0];
    for (unsigned i = 0; i < 200 && shard_root_d(part->root) < 7; i++) {
        assert_true(far_session_call(s.a.session, FAR_STATS_OTHER, false, grow_once, s.a.index) >= 0);
        if (shard_root_d(part->root) < 7)
            assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, false, work_until_stable, s.a.index), 0);
        far_epoch_request(s.a.pool);
        far_sim_sleep(s.world, 1000000);
    }
    assert_int_equal(shard_root_d(part->root), 7);
    assert_true(stage_reads(&s.b, stays, "old"));
    stop_the_collection(&s);
    leave_an_old_word_in_the_parent(&s, part->segment[0], stays, leaves, other);
    stage_delete(&s.a, other);
    for (unsigned i = 0; i < 10; i++) { /* lets epochs pass until the pair block is free */
        far_epoch_request(s.a.pool);
        far_sim_sleep(s.world, 300000);
    }
    stage_write(&s.a, stays, "a");
    assert_int_equal(shard_state_of(s.a.index)->counters.takeovers, 1);
    stage_finish(&s.c);
    assert_true(stage_reads(&s.c, stays, "a") && stage_reads(&s.c, leaves, "new") && stage_reads(&s.c, other, NULL));
    stage_close(&s);
}


static int count_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)key, (void)key_len, (void)value, (void)value_len;
    ++*(unsigned *)ctx;
    return 0;
}


/* Proves that counts, walks and checks ignore the entries of moved keys in an unfinished parent. B's split has failed,
 * and A stops while it takes the split over. The parent still has entries of keys that have moved to the child, and
 * these entries name pair blocks that are free. Fails if shard_child_is_complete (count_once.c) always returns 0. */
TEST(a_traversal_during_a_stopped_takeover) {
    stage s;
    far_usage usage;
    far_load load;
    unsigned pairs = 0;
    stage_open(&s, "shard", "partitions=1,bits=0,slots=4,l2_slots=1,load=60,afs=1,idle_sweep=off", NULL);
    for (unsigned bit = 0; bit < 2; bit++)
        stage_write(&s.a, key_with(&s.a, bit, 0), "old");
    const char *leaves = key_with(&s.a, 1, 0), *stays = key_with(&s.a, 0, 0), *other = key_with(&s.a, 1, 1);
    stage_write(&s.b, "third", "0");
    stop_the_collection(&s);
    far_addr parent = atomic_load_explicit(&shard_state_of(s.a.index)->part[0].segment[0], memory_order_relaxed);
    leave_an_old_word_in_the_parent(&s, parent, stays, leaves, other);
    stage_delete(&s.a, other);
    for (unsigned i = 0; i < 10; i++) { /* lets epochs pass until the pair block is free */
        far_epoch_request(s.a.pool);
        far_sim_sleep(s.world, 300000);
    }
    stage_start(&s.a, FAR_OP_PUT, stays, "a");
    stage_stop_at(&s.a, at("shard:taken_over"));
    walker beside = {.actor = &(stage_actor){.index = s.a.index}};
    assert_int_equal(far_session_open(s.a.pool, &beside.actor->session), 0);
    far_session *session = beside.actor->session;
    walk_all(&beside);
    assert_int_equal(beside.recorder.result, 0);
    assert_int_equal(beside.recorder.count, 3);
    assert_int_equal(far_index_usage(session, s.a.index, &usage), 0);
    assert_int_equal(usage.keys, 3);
    assert_int_equal(far_index_load(session, s.a.index, &load), 0);
    assert_int_equal(load.keys[0] + load.keys[1] + load.keys[2], 3);
    assert_int_equal(far_index_pairs(session, s.a.index, count_pair, &pairs), 3);
    assert_int_equal(far_index_check(session, s.a.index, fail_at_problem, NULL), 0);
    assert_int_equal(far_sim_watch_errors(s.world), 0);
    far_session_close(session);
    stage_finish(&s.a);
    stage_finish(&s.c);
    assert_true(stage_reads(&s.c, stays, "a") && stage_reads(&s.c, leaves, "new") && stage_reads(&s.c, other, NULL));
    stage_close(&s);
}


/* ---- The counter of a slot has 7 bits ---- */

enum { GENERATIONS = 128 };


static void insert_number(stage_actor *a, uint64_t n, uint64_t value) {
    uint64_t key = __builtin_bswap64(n);
    assert_int_equal(far_insert(a->session, a->index, &key, 8, &value, 8), 0);
}


static void delete_number(stage_actor *a, uint64_t n) {
    uint64_t key = __builtin_bswap64(n);
    assert_int_equal(far_delete(a->session, a->index, &key, 8), 0);
}


/* Proves that a get is correct even if the 7-bit counter of its slot wraps around. C's get has found its key in a slot
 * and is delayed while the slot is used 127 times for another key, and then for C's key again. In the second round C is
 * delayed once more, between its READs of the value and of the key word. C must return a value that its key had, or
 * report that the key is absent. */
TEST(a_reader_is_delayed_for_all_generations_of_a_slot) {
    for (unsigned look = 1; look <= 2; look++) {
        stage s;
        uint64_t key = __builtin_bswap64(1), value;
        stage_open(&s, "shard", INLINE "partitions=1,bits=0,slots=1,l2_slots=1,afs=1000000", "atomic_bytes=8");
        insert_number(&s.a, 1, 100);
        far_addr slot = atomic_load_explicit(&shard_state_of(s.a.index)->part[0].segment[0], memory_order_relaxed);
        stage_start_bytes(&s.c, FAR_OP_GET, &key, 8, NULL, 0);
        stage_stop_at(&s.c, (far_sim_match){.kind = FAR_SIM_READ, .nth = 2, .from = slot, .to = slot + 8});
        delete_number(&s.b, 1);
        for (unsigned i = 1; i < GENERATIONS; i++) {
            insert_number(&s.b, 2, 200);
            if (i + 1 < GENERATIONS)
                delete_number(&s.b, 2);
        }
        far_sim_hold *hold = far_sim_hold_effect(
            s.c.client, (far_sim_match){.kind = FAR_SIM_READ, .nth = look, .from = slot + 8, .to = slot + 16});
        far_sim_resume(s.c.client);
        while (!far_sim_reached(hold) && !s.c.ended)
            far_sim_run_client(s.c.client);
        delete_number(&s.b, 2);
        insert_number(&s.b, 1, 101);
        far_sim_release(hold);
        if (!s.c.ended)
            stage_finish(&s.c);
        memcpy(&value, s.c.value, 8);
        assert_true(s.c.result == FAR_ERR_NOT_FOUND || (s.c.result == 0 && (value == 100 || value == 101)));
        stage_close(&s);
    }
}


static void check_without_problems(void *arg) {
    stage_actor *by = arg;
    assert_int_equal(far_index_check(by->session, by->index, fail_at_problem, NULL), 0);
    by->ended = true;
}


/* Proves that a check does not report a lock whose holder fails during the check. The check waits for epochs to decide
 * whether the holder, A, is alive, and A fails meanwhile. Fails if the check queries the state of the holder only once.
 */
TEST(a_lock_holder_fails_during_a_check) {
    stage s;
    char key[16];
    stage_open(&s, "shard", "partitions=1,bits=0,slots=2,l2_slots=1,load=90,afs=1000", NULL);
    for (unsigned i = 0; i == 0 || s.a.ended; i++) {
        snprintf(key, sizeof(key), "n%u", i);
        stage_start(&s.a, FAR_OP_INSERT, key, "v");
        far_sim_stop_before(s.a.client, at("shard:place_in_overflow"));
        far_sim_run_client(s.a.client);
    }
    stage_start_main(&s.c, "c", check_without_problems);
    far_sim_run_for(s.world, 5000000); /* the check waits for epochs, which A's pin delays */
    assert_false(s.c.ended);
    stage_kill(&s, &s.a);
    stage_finish(&s.c);
    stage_close(&s);
}


/* ---- What a check finds ---- */

typedef struct damage {
    far_index *index;
    unsigned from, to; /* words of the first bucket: `from` is copied to `to` and changed */
    uint64_t change;   /* bits to invert; UINT64_MAX = write 0 */
} damage;


static int damage_bucket(far_task *t, void *arg) {
    const damage *d = arg;
    far_addr bucket = shard_state_of(d->index)->part[0].segment[0];
    uint64_t word;
    int err = far_read_word(t, bucket + 8 * d->from, &word);
    return err < 0 ? err : far_write_word(t, bucket + 8 * d->to, d->change == UINT64_MAX ? 0 : word ^ d->change);
}


static int keep_problem(void *ctx, const char *what) {
    snprintf(ctx, 256, "%s", what);
    return 0;
}


static void expect_problem(const char *options, damage d, const char *expected) {
    stage s;
    char what[256] = "";
    uint64_t value = 1, key = __builtin_bswap64(5);
    stage_open(&s, "shard", options, NULL);
    assert_int_equal(far_put(s.a.session, s.a.index, &key, 8, &value, 8), 0);
    assert_int_equal(far_index_check(s.a.session, s.a.index, keep_problem, what), 0);
    d.index = s.a.index;
    assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, false, damage_bucket, &d), 0);
    assert_true(far_index_check(s.b.session, s.b.index, keep_problem, what) > 0);
    if (!strstr(what, expected))
        fail_msg("'%s' is not in '%s'", expected, what);
    stage_tear_down(&s);
}


/* Returns the word of key 5. The only key of a table is in the first slot of the line at which its probe order begins.
 */
static unsigned find_slot_of_key_five(const char *options, bool inlined) {
    stage s;
    uint64_t value = 1, key = __builtin_bswap64(5);
    stage_open(&s, "shard", options, NULL);
    assert_int_equal(far_put(s.a.session, s.a.index, &key, 8, &value, 8), 0);
    shard_op y = {.st = shard_state_of(s.a.index), .h = shard_hash(s.a.index, (far_bytes){&key, 8})};
    unsigned word = shard_start_line(&y) * SHARD_LINE + inlined;
    stage_close(&s);
    return word;
}


TEST(a_check_finds_corrupt_buckets) {
    const char *pointer = "partitions=1,bits=0", *inlined = INLINE "partitions=1,bits=0";
    unsigned p = find_slot_of_key_five(pointer, false), i = find_slot_of_key_five(inlined, true);
    expect_problem(pointer, (damage){.from = 63, .to = 63, .change = UINT64_MAX}, "never written");
    expect_problem(pointer, (damage){.from = 3, .to = 3, .change = UINT64_MAX}, "never written");
    expect_problem(pointer, (damage){.from = p, .to = p, .change = SHARD_FROZEN}, "words of another version");
    expect_problem(pointer, (damage){.from = p, .to = p, .change = SHARD_PARITY}, "words of another version");
    expect_problem(pointer, (damage){.from = p, .to = (p + 3) % 63}, "twice");
    expect_problem(inlined, (damage){.from = SHARD_I_H, .to = SHARD_I_H, .change = UINT64_MAX}, "never written");
    expect_problem(inlined, (damage){.from = i, .to = i, .change = SHARD_I_PARITY}, "words of another version");
    expect_problem(inlined, (damage){.from = i, .to = (i + 4) % 62}, "twice");
}
