/* SMART, named interleavings: each race that the design rules out (H1-H31 there), driven by hand. What fails when the
 * guarding line is taken out is said at each test. Keys begin with 'n', so that all of a test lie below one slot of the
 * root. */
#include "actors.h"
#include "index/smart/layout.h"
#include "pool/handle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define EAGER "merge=eager"
#define V1    "value--1"
#define V2    "value--2"
#define V3    "value--3"
#define LONG  "a value of another length, for which a new leaf is made"

static actors s;
static actor *const a = &s.a[0], *const b = &s.a[1], *const c = &s.a[2];


static void put_all(actor *by, const char *keys) {
    char copy[256], *next = copy, *key;
    snprintf(copy, sizeof(copy), "%s", keys);
    while ((key = strsep(&next, " ")))
        assert_int_equal(actor_do(by, ACTOR_PUT, key, V1), 0);
}


/* The operation of `by` stands at the point. */
static void stand(actor *by, const char *point, actor_does does, const char *key, const char *value) {
    actor_start(by, "stands", does, key, value);
    actor_stop_at(by, point);
    actor_run_to_stop(by);
}


/* Slots and delete. */

/* H1. Without permanent binding (a delete that zeroes the slot) the second key gets two slots: check tells, or one is
 * lost. */
static void dup_partial_reuse(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", EAGER, "");
    put_all(a, "naa nba nca");
    stand(a, "smart:insert", ACTOR_PUT, "npa", V2);
    assert_int_equal(actor_do(b, ACTOR_DELETE, "nba", NULL), 0);
    assert_int_equal(actor_do(b, ACTOR_PUT, "npa", V3), 0);
    actor_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(actor_reads(b, "npa", V2)); /* it came last */
    assert_int_equal(actor_do(b, ACTOR_DELETE, "npa", NULL), 0);
    assert_true(actor_reads(a, "npa", NULL));
    actors_down(&s);
}


/* H2. A cached slot is never another partial key's. */
static void rebound_slot_stale_cache(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", EAGER, "");
    put_all(a, "naa nba nca");
    assert_true(actor_reads(b, "naa", V1));
    assert_int_equal(actor_do(a, ACTOR_DELETE, "naa", NULL), 0);
    put_all(a, "nda nea");
    assert_int_equal(actor_do(a, ACTOR_INSERT, "naa", V2), 0);
    assert_true(actor_reads(b, "naa", V2));
    assert_int_equal(actor_do(b, ACTOR_INSERT, "nab", V3), 0);
    assert_true(actor_reads(a, "nab", V3) && actor_reads(a, "naa", V2) && actor_reads(a, "nda", V1));
    actors_down(&s);
}


/* H3. Without the frozen frontier the insert succeeds in a node that was merged away. */
static void insert_vs_merge(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", EAGER, "");
    put_all(a, "naa nba");
    stand(a, "smart:insert", ACTOR_INSERT, "nca", V2);
    assert_int_equal(actor_do(b, ACTOR_DELETE, "naa", NULL), 0);
    actor_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(actor_reads(b, "nca", V2) && actor_reads(b, "nba", V1) && actor_reads(b, "naa", NULL));
    actors_down(&s);
}


static void insert_vs_empty_removal(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", EAGER, "");
    put_all(a, "naa nba");
    stand(a, "smart:insert", ACTOR_INSERT, "nca", V2);
    assert_int_equal(actor_do(b, ACTOR_DELETE, "naa", NULL), 0);
    assert_int_equal(actor_do(b, ACTOR_DELETE, "nba", NULL), 0);
    actor_finish(a);
    assert_true(actor_reads(b, "nca", V2));
    actors_down(&s);
}


/* A tombstone of a node that is being merged: the freeze of bound slots. Without it the re-insert is lost. */
static void reinsert_vs_merge(void **state) {
    (void)state;
    actors_up(&s, 3, "smart", EAGER, "");
    put_all(a, "naa nba nca");
    assert_int_equal(actor_do(a, ACTOR_DELETE, "naa", NULL), 0); /* a tombstone: two are left */
    stand(a, "smart:insert", ACTOR_INSERT, "nab", V2);
    assert_int_equal(actor_do(b, ACTOR_DELETE, "nba", NULL), 0);
    actor_finish(a);
    assert_true(actor_reads(c, "nab", V2) && actor_reads(c, "nca", V1));
    actors_down(&s);
}


static void insert_via_cached_removed_node(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", EAGER, "");
    put_all(a, "naa nba");
    assert_true(actor_reads(b, "naa", V1) && actor_reads(b, "nba", V1));
    assert_int_equal(actor_do(a, ACTOR_DELETE, "naa", NULL), 0);
    assert_int_equal(actor_do(b, ACTOR_INSERT, "nca", V2), 0);
    assert_true(actor_reads(a, "nca", V2));
    assert_int_equal(actor_do(b, ACTOR_DELETE, "nba", NULL), 0);
    assert_true(actor_reads(a, "nba", NULL) && actor_reads(a, "nca", V2));
    actors_down(&s);
}


/* H4. The merge decides from frozen words only: a child that changed since is not lost. */
static void merge_stale_child_split(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", EAGER, "");
    put_all(a, "naa nba");
    stand(a, "smart:merge", ACTOR_DELETE, "naa", NULL);
    assert_int_equal(actor_do(b, ACTOR_INSERT, "nbb", V2), 0);
    actor_finish(a);
    assert_true(actor_reads(b, "nbb", V2) && actor_reads(b, "nba", V1) && actor_reads(a, "naa", NULL));
    actors_down(&s);
}


static void merge_stale_child_rcu(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", EAGER ",update=rcu", "");
    put_all(a, "naa nba");
    stand(a, "smart:merge", ACTOR_DELETE, "naa", NULL);
    assert_int_equal(actor_do(b, ACTOR_UPDATE, "nba", LONG), 0);
    actor_finish(a);
    assert_true(actor_reads(b, "nba", LONG) && actor_reads(a, "nba", LONG));
    actors_down(&s);
}


static void cross_delete_merge(void **state) {
    (void)state;
    actors_up(&s, 3, "smart", EAGER, "");
    put_all(a, "naa nba");
    stand(a, "smart:removed", ACTOR_DELETE, "naa", NULL);
    stand(b, "smart:removed", ACTOR_DELETE, "nba", NULL);
    actor_finish(a);
    actor_finish(b);
    assert_true(actor_reads(c, "naa", NULL) && actor_reads(c, "nba", NULL));
    put_all(c, "naa nba nca");
    assert_true(actor_reads(a, "naa", V1) && actor_reads(b, "nba", V1));
    actors_down(&s);
}


/* H6, H31. DEAD is the delete: fresh and stale readers agree at once, and nobody waits for the slot. */
static void absent_then_present(void **state) {
    (void)state;
    actors_up(&s, 3, "smart", EAGER, "");
    put_all(a, "naa nba");
    assert_true(actor_reads(b, "naa", V1)); /* cached */
    stand(a, "smart:removed", ACTOR_DELETE, "naa", NULL);
    assert_true(actor_reads(c, "naa", NULL));
    assert_true(actor_reads(b, "naa", NULL));
    actor_finish(a);
    actors_down(&s);
}


static void dead_leaf_livelock(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", EAGER, "");
    put_all(a, "naa nba");
    stand(a, "smart:removed", ACTOR_DELETE, "naa", NULL);
    far_sim_kill(a->pool->fabric);
    assert_true(actor_reads(b, "naa", NULL));
    assert_int_equal(actor_do(b, ACTOR_INSERT, "naa", V2), 0);
    assert_true(actor_reads(b, "naa", V2));
    far_sim_resume(a->client);
    far_sim_run(s.world);
    actors_down(&s);
}


/* H7. The late WRITE of an update lands in a dead leaf. */
static void update_resurrect(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", EAGER, "");
    put_all(a, "naa nba");
    stand(a, "smart:write_word", ACTOR_UPDATE, "naa", V2);
    assert_int_equal(actor_do(b, ACTOR_DELETE, "naa", NULL), 0);
    actor_finish(a);
    assert_int_equal(a->result, 0); /* just before the delete */
    assert_true(actor_reads(b, "naa", NULL) && actor_reads(a, "naa", NULL));
    actors_down(&s);
}


static void w_update_vs_delete_vs_reinsert(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", EAGER, "");
    put_all(a, "naa nba");
    stand(a, "smart:write_word", ACTOR_UPDATE, "naa", V2);
    assert_int_equal(actor_do(b, ACTOR_DELETE, "naa", NULL), 0);
    assert_int_equal(actor_do(b, ACTOR_INSERT, "naa", V3), 0);
    actors_polled(&s, 50);
    actor_finish(a);
    assert_true(actor_reads(b, "naa", V3) && actor_reads(a, "naa", V3));
    actors_down(&s);
}


static void w_update_vs_rcu(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", "", "");
    put_all(a, "naa nba");
    stand(a, "smart:write_word", ACTOR_UPDATE, "naa", V2);
    assert_int_equal(actor_do(b, ACTOR_UPDATE, "naa", LONG), 0);
    actor_finish(a);
    assert_true(actor_reads(b, "naa", LONG) && actor_reads(a, "naa", LONG));
    actors_down(&s);
}


/* H22. Deleting through a chain of replaced leaves; the slot is moved once. */
static void rcu_chain_delete(void **state) {
    (void)state;
    actors_up(&s, 3, "smart", EAGER ",update=rcu", "");
    put_all(a, "naa nba");
    assert_true(actor_reads(c, "naa", V1));
    stand(a, "smart:leaf_replaced", ACTOR_UPDATE, "naa", LONG);
    stand(b, "smart:leaf_replaced", ACTOR_UPDATE, "naa", V2);
    assert_true(actor_reads(c, "naa", V2)); /* stale, by two hops */
    assert_int_equal(actor_do(c, ACTOR_DELETE, "naa", NULL), 0);
    actor_finish(a);
    actor_finish(b);
    assert_true(actor_reads(a, "naa", NULL) && actor_reads(b, "naa", NULL));
    actors_down(&s);
}


/* Structure and cache. */

/* H8. A leaf of another key, found through the cache, proves nothing. */
static void stale_negative_after_split(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", "", "");
    put_all(a, "naaa nbaa");
    assert_true(actor_reads(b, "naaa", V1));
    assert_int_equal(actor_do(a, ACTOR_INSERT, "naab", V2), 0);
    assert_true(actor_reads(b, "naab", V2));
    assert_int_equal(actor_do(a, ACTOR_INSERT, "nabb", V3), 0); /* above the node of the two */
    assert_true(actor_reads(b, "nabb", V3));
    actors_down(&s);
}


static void stale_negative_after_crashed_splitter(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", "", "");
    put_all(b, "naaa nbaa");
    assert_true(actor_reads(b, "naaa", V1));
    stand(a, "smart:branched", ACTOR_INSERT, "naab", V2);
    far_sim_kill(a->pool->fabric);
    assert_true(actor_reads(b, "naab", V2));
    far_sim_resume(a->client);
    far_sim_run(s.world);
    actors_down(&s);
}


/* H10. A slot behind the READ that the hint asks for is found before the hint is mended. */
static void append_invisible_same_partial(void **state) {
    (void)state;
    actors_up(&s, 3, "smart", "", "");
    put_all(a, "naa nba nca nda");
    stand(a, "smart:linked", ACTOR_INSERT, "nea", V2);
    assert_int_equal(actor_do(b, ACTOR_UPDATE, "nea", V3), 0);
    stand(b, "smart:linked", ACTOR_INSERT, "nfa", V2);
    assert_true(actor_reads(c, "nea", V3) && actor_reads(c, "nfa", V2));
    actor_finish(a);
    actor_finish(b);
    actors_down(&s);
}


/* H12, H13. */
static void two_helpers(void **state) {
    (void)state;
    actors_up(&s, 3, "smart", EAGER, "");
    put_all(a, "naa nba nca nda nea nfa nga nha nia nja nka nla"); /* full */
    stand(a, "smart:frozen", ACTOR_INSERT, "nma", V2);
    stand(b, "smart:frozen", ACTOR_INSERT, "nna", V3);
    assert_int_equal(actor_do(c, ACTOR_INSERT, "noa", V1), 0);
    actor_finish(b);
    actor_finish(a);
    assert_true(actor_reads(c, "nma", V2) && actor_reads(c, "nna", V3) && actor_reads(c, "noa", V1) &&
                actor_reads(c, "nla", V1));
    actors_down(&s);
}


static void branch_over_frozen(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", EAGER, "");
    put_all(a, "nxaaa nxaba nbaaa");
    stand(a, "smart:frozen", ACTOR_DELETE, "nxaaa", NULL);       /* node "nxa" is frozen */
    assert_int_equal(actor_do(b, ACTOR_INSERT, "nxbaa", V2), 0); /* between it and its parent */
    actor_finish(a);
    assert_true(actor_reads(b, "nxbaa", V2) && actor_reads(b, "nxaba", V1) && actor_reads(b, "nxaaa", NULL));
    actors_down(&s);
}


static void parent_frozen(void **state) {
    (void)state;
    actors_up(&s, 3, "smart", EAGER, "");
    put_all(a, "nxaa nxba nbaa");
    stand(a, "smart:frozen", ACTOR_DELETE, "nxaa", NULL); /* node "nx" is frozen */
    stand(b, "smart:frozen", ACTOR_DELETE, "nbaa", NULL); /* its parent, too */
    actor_finish(a);
    actor_finish(b);
    assert_true(actor_reads(c, "nxba", V1) && actor_reads(c, "nbaa", NULL) && actor_reads(c, "nxaa", NULL));
    actors_down(&s);
}


/* Memory that is used again. */

static far_addr leaf_written;


static void note_leaf(void *ctx, const far_sim_posted *posted) {
    if (posted->verb->kind == FAR_WRITE && posted->verb->length == *(uint32_t *)ctx)
        leaf_written = posted->verb->addr;
}


/* The leaf of "naa" is deleted, and its memory comes back to the same client. */
static far_addr recycle_leaf(uint32_t *bytes) {
    far_sim_on_verb(s.world, note_leaf, bytes);
    assert_int_equal(actor_do(a, ACTOR_INSERT, "naa", V1), 0);
    far_addr first = leaf_written;
    assert_true(actor_reads(b, "naa", V1)); /* b knows the address */
    assert_int_equal(actor_do(a, ACTOR_DELETE, "naa", NULL), 0);
    actors_age(&s);
    return first;
}


/* H14. A recycled leaf is not LIVE before it is linked: written for the same key, and not there yet, it is not found.
 * Fails when new leaves in used memory are written LIVE. */
static void pending_leaf_recycled(void **state) {
    (void)state;
    uint32_t bytes = 40;
    actors_up(&s, 2, "smart", "", "");
    put_all(a, "nba nca");
    far_addr first = recycle_leaf(&bytes);
    actor_start(a, "a", ACTOR_INSERT, "naa", V2);
    far_sim_hold *hold = far_sim_hold_effect(a->client, (far_sim_match){.kind = FAR_SIM_CAS});
    while (!far_sim_reached(hold))
        far_sim_run_client(a->client);
    assert_int_equal(leaf_written, first);
    assert_true(actor_reads(b, "naa", NULL));
    far_sim_release(hold);
    actor_finish(a);
    assert_true(actor_reads(b, "naa", V2));
    far_sim_on_verb(s.world, NULL, NULL);
    actors_down(&s);
}


/* H14. A READ that sees a word from before the leaf was written, and the rest of its second life. Fails when recycled
 * leaves are believed at once (may_mix_lives). With units of 64 bytes the words that matter are seen together. */
static void torn_over_lives(void **state) {
    (void)state;
    static const char *const sims[] = {"atomic_bytes=8", "atomic_bytes=64"};
    for (unsigned i = 0; i < 2; i++) {
        uint32_t bytes = 40;
        actors_up(&s, 2, "smart", "", sims[i]);
        put_all(a, "nba nca");
        far_addr first = recycle_leaf(&bytes);
        actor_start(b, "b", ACTOR_GET, "naa", NULL);
        far_sim_hold *hold =
            far_sim_hold_effect(b->client, (far_sim_match){.kind = FAR_SIM_READ, .from = first, .to = first + 40});
        while (!far_sim_reached(hold))
            far_sim_run_client(b->client);
        uint32_t early = i == 0 ? 2 : far_sim_hold_units(hold) - 1; /* the value; the end of the key */
        if (far_sim_hold_units(hold) > 1)
            assert_int_equal(far_sim_release_units(hold, &early, 1), 0);
        assert_int_equal(actor_do(a, ACTOR_INSERT, "naa", V2), 0);
        assert_int_equal(leaf_written, first);
        far_sim_sleep(s.world, 100000); /* it is LIVE now */
        far_sim_release(hold);
        actor_finish(b);
        assert_true(b->result == 0 && b->length == 8 && memcmp(b->value, V2, 8) == 0);
        far_sim_on_verb(s.world, NULL, NULL);
        actors_down(&s);
    }
}


/* H14. The same for a node: written in the memory of a removed one with the same prefix, but not linked (its CAS will
 * lose), it is no place for an insert. Fails when nodes in used memory are written LIVE. */
static void pending_node_recycled(void **state) {
    (void)state;
    uint32_t bytes = 128;
    actors_up(&s, 3, "smart", EAGER, "");
    put_all(a, "nba");
    far_sim_on_verb(s.world, note_leaf, &bytes);
    put_all(a, "nxaa nxba");
    far_addr first = leaf_written;
    assert_true(actor_reads(b, "nxaa", V1) && actor_reads(b, "nxba", V1));
    assert_int_equal(actor_do(a, ACTOR_DELETE, "nxaa", NULL), 0);
    assert_int_equal(actor_do(a, ACTOR_DELETE, "nxba", NULL), 0);
    actors_age(&s);
    put_all(a, "nxaa");
    actor_start(a, "a", ACTOR_INSERT, "nxba", V2);
    far_sim_hold *hold = far_sim_hold_effect(a->client, (far_sim_match){.kind = FAR_SIM_CAS});
    while (!far_sim_reached(hold))
        far_sim_run_client(a->client);
    assert_int_equal(leaf_written, first);
    assert_int_equal(actor_do(b, ACTOR_INSERT, "nxca", V3), 0); /* b's cache knows the old node */
    assert_int_equal(actor_do(c, ACTOR_DELETE, "nxaa", NULL), 0);
    far_sim_release(hold);
    actor_finish(a);
    assert_true(actor_reads(c, "nxca", V3) && actor_reads(c, "nxba", V2) && actor_reads(c, "nxaa", NULL));
    far_sim_on_verb(s.world, NULL, NULL);
    actors_down(&s);
}


/* H15, H16. The slot address of a removed node is never written through the cache. */
static void cas_recycled_slot(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", EAGER, "");
    put_all(a, "nxaa nxba nbaa");
    assert_true(actor_reads(b, "nxaa", V1) && actor_reads(b, "nxba", V1));
    assert_int_equal(actor_do(a, ACTOR_DELETE, "nxaa", NULL), 0);
    assert_int_equal(actor_do(a, ACTOR_DELETE, "nxba", NULL), 0);
    actors_age(&s);
    put_all(a, "nyaa nyba nzaa nzba"); /* nodes in the memory of the removed ones */
    assert_int_equal(actor_do(b, ACTOR_INSERT, "nxca", V2), 0);
    assert_true(actor_reads(a, "nxca", V2) && actor_reads(a, "nyaa", V1) && actor_reads(a, "nzba", V1));
    actors_down(&s);
}


/* Scans. */

static void scan_cached_incomplete(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", "", "");
    put_all(a, "naa nba nxaa nxba");
    assert_true(actor_reads(b, "naa", V1) && actor_reads(b, "nxaa", V1));
    put_all(a, "nca nxca n");
    assert_int_equal(actor_do(b, ACTOR_SCAN, "n", NULL), 7);
    assert_string_equal(b->seen, "n naa nba nca nxaa nxba nxca ");
    actors_down(&s);
}


static void scan_during_replace(void **state) {
    (void)state;
    actors_up(&s, 3, "smart", EAGER, "");
    put_all(a, "naa nxaa nxba nza");
    stand(a, "smart:frozen", ACTOR_DELETE, "nxaa", NULL);
    assert_int_equal(actor_do(b, ACTOR_SCAN, "n", NULL), 3);
    assert_string_equal(b->seen, "naa nxba nza ");
    actor_finish(a);
    assert_int_equal(actor_do(c, ACTOR_SCAN, "nb", NULL), 2);
    actors_down(&s);
}


static void scan_deleted_tail(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", EAGER, "");
    put_all(a, "naa nba nca");
    stand(a, "smart:removed", ACTOR_DELETE, "nca", NULL);
    assert_int_equal(actor_do(b, ACTOR_SCAN, "n", NULL), 2);
    assert_string_equal(b->seen, "naa nba ");
    actor_finish(a);
    actors_down(&s);
}


/* H20. A long common prefix is no chain of nodes. */
static void prefix_chain(void **state) {
    (void)state;
    char one[220], two[220], three[220];
    far_stats before, after;
    actors_up(&s, 2, "smart", "cache=off", "");
    memset(one, 'n', sizeof(one));
    one[210] = 0;
    memcpy(two, one, sizeof(one));
    memcpy(three, one, sizeof(one));
    two[209] = 'o';
    three[100] = 'o'; /* parts in the middle of a gap that no tail covers */
    assert_int_equal(actor_do(a, ACTOR_PUT, one, V1), 0);
    assert_int_equal(actor_do(a, ACTOR_PUT, two, V2), 0);
    assert_int_equal(actor_do(a, ACTOR_PUT, three, V3), 0);
    far_session_stats(b->session, &before);
    assert_true(actor_reads(b, one, V1));
    far_session_stats(b->session, &after);
    assert_true(after.round_trips - before.round_trips <= 4);
    assert_true(actor_reads(b, two, V2) && actor_reads(b, three, V3));
    one[100] = 'a';
    assert_int_equal(actor_do(b, ACTOR_SCAN, one, NULL), 3);
    actors_down(&s);
}


/* Locks and crashes. */

/* H23. Without the takeover b waits for ever. */
static void lock_owner_dies(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", "update=lock", "");
    assert_int_equal(actor_do(b, ACTOR_PUT, "naa", LONG), 0);
    stand(a, "smart:locked", ACTOR_UPDATE, "naa", "another value, in place, which is never seen or else whole");
    far_sim_kill(a->pool->fabric);
    actor_start(b, "b", ACTOR_UPDATE, "naa", V2);
    far_sim_resume(a->client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_int_equal(b->result, 0);
    assert_true(actor_reads(b, "naa", V2));
    actors_down(&s);
}


/* A live holder is waited for. */
static void lock_owner_lives(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", "update=lock", "");
    assert_int_equal(actor_do(b, ACTOR_PUT, "naa", LONG), 0);
    stand(a, "smart:locked", ACTOR_UPDATE, "naa", V1);
    actor_start(b, "b", ACTOR_UPDATE, "naa", V2);
    far_sim_run_for(s.world, 20000000);
    assert_false(b->ended);
    far_sim_resume(a->client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(actor_reads(a, "naa", V2));
    actors_down(&s);
}


/* H24. The WRITE of an update in place is cut: the redo record completes it. Fails when it is not (the leaf stays
 * torn). */
static void inplace_write_cut(void **state) {
    (void)state;
    char old[400], new[400];
    memset(old, 'o', sizeof(old));
    memset(new, 'w', sizeof(new));
    old[399] = new[399] = 0;
    for (uint32_t units = 0; units < 7; units++) {
        actors_up(&s, 2, "smart", "", "");
        assert_int_equal(actor_do(b, ACTOR_PUT, "naa", old), 0);
        actor_start(a, "a", ACTOR_UPDATE, "naa", new);
        far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_WRITE, .nth = 2}, units);
        far_sim_run(s.world);
        assert_true(far_sim_killed(a->pool->fabric));
        bool is_old = actor_reads(b, "naa", old), is_new = actor_reads(b, "naa", new);
        assert_true(is_old != is_new);
        assert_int_equal(actor_do(b, ACTOR_UPDATE, "naa", old), 0);
        assert_true(actor_reads(b, "naa", old));
        actors_down(&s);
    }
}


/* H25. A client that was declared dead while it held the lock writes nothing afterwards. */
static void zombie_write(void **state) {
    (void)state;
    actors_up(&s, 2, "smart", "update=lock", "");
    assert_int_equal(actor_do(b, ACTOR_PUT, "naa", LONG), 0);
    stand(a, "smart:locked", ACTOR_UPDATE, "naa", "what a zombie writes: it must not be seen once b has written");
    assert_true(far_sim_declare_dead(s.world, a->session->id, a->session->generation) > 0);
    assert_int_equal(actor_do(b, ACTOR_UPDATE, "naa", V2), 0);
    far_sim_resume(a->client);
    far_sim_run_client(a->client);
    assert_true(a->result < 0);
    assert_true(actor_reads(b, "naa", V2));
    actors_down(&s);
}


/* H27. What lies on another memory node than the slot is written, and waited for, before the slot names it. */
static void batch_cross_node(void **state) {
    (void)state;
    for (char second = 'a'; second < 'i'; second++) { /* new nodes are spread: some lie elsewhere */
        char one[] = "n?aa", two[] = "n?ab";
        actors_up(&s, 2, "smart", "", "");
        one[1] = two[1] = second;
        put_all(a, "nzaa");
        assert_int_equal(actor_do(a, ACTOR_PUT, one, V1), 0);
        actor_start(a, "a", ACTOR_INSERT, two, V2);
        far_sim_hold *hold = far_sim_hold_effect(a->client, (far_sim_match){.kind = FAR_SIM_WRITE});
        while (!far_sim_reached(hold))
            far_sim_run_client(a->client);
        far_sim_run_client(a->client);
        assert_true(actor_reads(b, one, V1));
        assert_true(actor_reads(b, two, NULL));
        far_sim_release(hold);
        actor_finish(a);
        assert_true(actor_reads(b, two, V2));
        actors_down(&s);
    }
}


/* Damage done by hand. */

static int count_problem(void *ctx, const char *what) {
    (void)what;
    (*(int *)ctx)++;
    return 0;
}


static int problems(void) {
    int count = 0;
    assert_true(far_index_check(b->session, b->index, count_problem, &count) >= 0);
    return count;
}


static uint64_t *memory_of(far_addr addr) {
    return (uint64_t *)((char *)far_sim_memory(s.world, far_addr_node(addr)) + far_addr_offset(addr));
}


static void check_finds_damage(void **state) {
    (void)state;
    uint32_t leaf_bytes = 40, node_bytes = 128;
    actors_up(&s, 2, "smart", "", "");
    put_all(a, "naa");
    far_sim_on_verb(s.world, note_leaf, &node_bytes);
    put_all(a, "nba");
    uint64_t *node = memory_of(leaf_written);
    far_sim_on_verb(s.world, note_leaf, &leaf_bytes);
    put_all(a, "nca");
    uint64_t *leaf = memory_of(leaf_written);
    far_sim_on_verb(s.world, NULL, NULL);
    assert_int_equal(problems(), 0);
    leaf[4] ^= 1 << 16; /* the key */
    assert_true(problems() > 0);
    leaf[4] ^= 1 << 16;
    leaf[1] ^= 1; /* the checksum */
    assert_true(problems() > 0);
    leaf[1] ^= 1;
    node[6] = node[5]; /* a partial key twice */
    assert_true(problems() > 0);
    node[6] = 0;
    node[5] |= 1ull << 63; /* no word at all */
    assert_true(problems() > 0);
    node[5] &= ~(1ull << 63);
    node[2] ^= 3; /* the depth */
    assert_true(problems() > 0);
    node[2] ^= 3;
    actors_down(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dup_partial_reuse),
        cmocka_unit_test(rebound_slot_stale_cache),
        cmocka_unit_test(insert_vs_merge),
        cmocka_unit_test(insert_vs_empty_removal),
        cmocka_unit_test(reinsert_vs_merge),
        cmocka_unit_test(insert_via_cached_removed_node),
        cmocka_unit_test(merge_stale_child_split),
        cmocka_unit_test(merge_stale_child_rcu),
        cmocka_unit_test(cross_delete_merge),
        cmocka_unit_test(absent_then_present),
        cmocka_unit_test(dead_leaf_livelock),
        cmocka_unit_test(update_resurrect),
        cmocka_unit_test(w_update_vs_delete_vs_reinsert),
        cmocka_unit_test(w_update_vs_rcu),
        cmocka_unit_test(rcu_chain_delete),
        cmocka_unit_test(stale_negative_after_split),
        cmocka_unit_test(stale_negative_after_crashed_splitter),
        cmocka_unit_test(append_invisible_same_partial),
        cmocka_unit_test(two_helpers),
        cmocka_unit_test(branch_over_frozen),
        cmocka_unit_test(parent_frozen),
        cmocka_unit_test(pending_leaf_recycled),
        cmocka_unit_test(pending_node_recycled),
        cmocka_unit_test(torn_over_lives),
        cmocka_unit_test(cas_recycled_slot),
        cmocka_unit_test(scan_cached_incomplete),
        cmocka_unit_test(scan_during_replace),
        cmocka_unit_test(scan_deleted_tail),
        cmocka_unit_test(prefix_chain),
        cmocka_unit_test(lock_owner_dies),
        cmocka_unit_test(lock_owner_lives),
        cmocka_unit_test(inplace_write_cut),
        cmocka_unit_test(zombie_write),
        cmocka_unit_test(batch_cross_node),
        cmocka_unit_test(check_finds_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
