/* Tests of the client registry (pool/format/clients.c): issuing ids and generations, confirming that a client failed,
 * and freeing its id. They run on the local fabric with sessions that are created directly, without housekeeping. */
#include "base/error.h"
#include "pool/handle.h"
#include "staged.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

typedef struct node { /* A handle: its system session and up to 64 further sessions. */
    far_pool pool;
    far_session *users[64];
} node;

static unsigned world;


static int open_superblock(far_task *t, void *arg) {
    return far_superblock_open(t, arg);
}


static int register_session(far_task *t, void *arg) {
    return far_client_register(t, *(unsigned *)arg);
}


static int unregister_session(far_task *t, void *arg) {
    (void)arg;
    return far_client_unregister(t);
}


static int call(far_session *s, int (*run)(far_task *, void *), void *arg) {
    return far_session_call(s, FAR_STATS_OTHER, true, run, arg);
}


static void begin_node(node *n, bool staged) {
    char uri[64];
    memset(n, 0, sizeof(*n));
    snprintf(uri, sizeof(uri), "local:2M?name=clients%u", world);
    assert_int_equal(far_fabric_open(uri, &n->pool.fabric), 0);
    if (staged)
        staged_install(n->pool.fabric);
    pthread_mutex_init(&n->pool.lock, NULL);
    assert_int_equal(far_pool_session_new(&n->pool, &n->pool.team.own), 0);
    assert_int_equal(call(n->pool.team.own, open_superblock, &n->pool.geometry), 0);
}


static void register_node(node *n) {
    unsigned none = 0;
    assert_int_equal(call(n->pool.team.own, register_session, &none), 0);
}


static int open_user(node *n, unsigned i) {
    assert_int_equal(far_pool_session_new(&n->pool, &n->users[i]), 0);
    return call(n->users[i], register_session, &n->pool.team.own->id);
}


/* Ends the session as if its process had been killed: its registry entry stays live. */
static void kill_session(far_session **s) {
    far_session_free(*s);
    *s = NULL;
}


static void end_node(node *n) {
    for (unsigned i = 0; i < 64; i++)
        if (n->users[i])
            far_session_free(n->users[i]);
    if (n->pool.team.own)
        far_session_free(n->pool.team.own);
    n->pool.fabric->ops->close(n->pool.fabric);
}


typedef struct failure_query {
    unsigned id, generation;
} failure_query;


static int run_confirm_failed(far_task *t, void *arg) {
    const failure_query *q = arg;
    return far_client_confirm_failed(t, q->id, q->generation);
}


static int confirm_failed(node *n, unsigned id, unsigned generation) {
    failure_query q = {id, generation};
    return call(n->pool.team.own, run_confirm_failed, &q);
}


typedef struct entry_access {
    unsigned id;
    far_client client;
} entry_access;


static int run_read_entry(far_task *t, void *arg) {
    entry_access *a = arg;
    far_read(t, far_client_entry(a->id), &a->client, sizeof(a->client));
    return far_wait(t);
}


static far_client read_client_entry(node *n, unsigned id) {
    entry_access a = {.id = id};
    assert_int_equal(call(n->pool.team.own, run_read_entry, &a), 0);
    return a.client;
}


static int run_write_entry(far_task *t, void *arg) {
    entry_access *a = arg;
    far_write(t, far_client_entry(a->id), &a->client, sizeof(a->client));
    return far_wait(t);
}


static void write_client_entry(node *n, unsigned id, far_client client) {
    entry_access a = {id, client};
    assert_int_equal(call(n->pool.team.own, run_write_entry, &a), 0);
}


static int read_loss_counter(far_task *t, void *arg) {
    return far_read_word(t, far_addr_make(0, FAR_SUPER_LOSSES), arg);
}


static int run_count_live(far_task *t, void *arg) {
    return far_clients_live(t, arg);
}


static unsigned count_live_sessions(node *n) {
    unsigned count;
    assert_int_equal(call(n->pool.team.own, run_count_live, &count), 0);
    return count;
}


static int free_client(far_task *t, void *arg) {
    return far_client_free(t, *(unsigned *)arg, FAR_ANY_GENERATION);
}


TEST_FIXTURE(new_world) {
    world++;
    return 0;
}


/* After a session closes, its id is issued again, with the next generation, and the old pair {id, generation} counts as
 * failed. */
TEST_WITH(ids_are_reused_with_a_new_generation_after_a_close, new_world, NULL) {
    node n;
    begin_node(&n, false);
    register_node(&n);
    assert_int_equal(n.pool.team.own->id, 1);
    assert_int_equal(n.pool.team.own->generation, 1);
    assert_int_equal(open_user(&n, 0), 0);
    assert_int_equal(open_user(&n, 1), 0);
    assert_int_equal(n.users[0]->id, 2);
    assert_int_equal(n.users[1]->id, 3);
    assert_int_equal(far_client_handle_of(read_client_entry(&n, 3).word), 1);
    assert_int_equal(far_client_handle_of(read_client_entry(&n, 1).word), 1);
    assert_int_equal(count_live_sessions(&n), 3);
    assert_int_equal(call(n.users[0], unregister_session, NULL), 0);
    assert_int_equal(count_live_sessions(&n), 2);
    assert_int_equal(confirm_failed(&n, 2, 1), 1);
    assert_int_equal(open_user(&n, 2), 0);
    assert_int_equal(n.users[2]->id, 2);
    assert_int_equal(n.users[2]->generation, 2);
    assert_int_equal(confirm_failed(&n, 2, 1), 1);
    assert_int_equal(confirm_failed(&n, 2, 2), 0);
    assert_int_equal(confirm_failed(&n, 2, FAR_ANY_GENERATION), 0);
    end_node(&n);
}


/* A session that closes leaves a free entry in which words 1 to 7 are zero. Fails without the WRITE of zeros in
 * free_entry. */
TEST_WITH(a_close_leaves_an_entry_of_zeros, new_world, NULL) {
    node n;
    begin_node(&n, false);
    register_node(&n);
    assert_int_equal(open_user(&n, 0), 0);
    unsigned id = n.users[0]->id;
    far_client client = read_client_entry(&n, id);
    client.pin = 1, client.answered = 2, client.free_bytes = 3, client.retired_bytes = 4, client.status = 5;
    write_client_entry(&n, id, client);
    assert_int_equal(call(n.users[0], unregister_session, NULL), 0);
    far_client expected = {.word = far_client_pack(FAR_CLIENT_FREE, 1, 0)};
    client = read_client_entry(&n, id);
    assert_memory_equal(&client, &expected, sizeof(expected));
    end_node(&n);
}


/* All ids of the pool can be issued. The next registration fails with FAR_ERR_BUSY and a text that contains the number
 * of ids, until a session closes. */
TEST_WITH(registration_is_refused_when_all_ids_are_in_use, new_world, NULL) {
    node n, m;
    begin_node(&n, false);
    begin_node(&m, false);
    register_node(&n);
    unsigned slots = n.pool.geometry.session_slots;
    assert_int_equal(slots, 128);
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(open_user(&n, i), 0);
    register_node(&m);
    for (unsigned i = 0; i < slots - 66; i++)
        assert_int_equal(open_user(&m, i), 0);
    assert_int_equal(m.users[slots - 67]->id, slots);
    far_fail_clear();
    assert_int_equal(open_user(&m, 63), FAR_ERR_BUSY);
    assert_non_null(strstr(far_last_error(), "128"));
    assert_int_equal(call(n.users[17], unregister_session, NULL), 0);
    far_session_free(m.users[63]);
    assert_int_equal(open_user(&m, 63), 0);
    assert_int_equal(m.users[63]->id, 19);
    end_node(&n);
    end_node(&m);
}


/* An id is not issued after its last 16-bit generation, so that no pair {id, generation} is issued twice. Fails without
 * the check in is_claimable. */
TEST_WITH(an_id_whose_generations_are_used_up_is_never_issued, new_world, NULL) {
    node n;
    begin_node(&n, false);
    register_node(&n);
    write_client_entry(&n, 2, (far_client){.word = far_client_pack(FAR_CLIENT_FREE, 0xffff, 0)});
    write_client_entry(&n, 3, (far_client){.word = far_client_pack(FAR_CLIENT_FREE, 0xfffe, 0)});
    assert_int_equal(open_user(&n, 0), 0);
    assert_int_equal(n.users[0]->id, 3);
    assert_int_equal(n.users[0]->generation, 0xffff);
    assert_int_equal(call(n.users[0], unregister_session, NULL), 0);
    assert_int_equal(open_user(&n, 1), 0);
    assert_int_equal(n.users[1]->id, 4);
    end_node(&n);
}


/* far_client_confirm_failed returns 1 for ids and generations that were never issued, and 0 for the caller's own pair.
 */
TEST_WITH(pairs_that_were_never_issued_count_as_failed, new_world, NULL) {
    node n;
    begin_node(&n, false);
    register_node(&n);
    assert_int_equal(confirm_failed(&n, 0, 1), 1);
    assert_int_equal(confirm_failed(&n, 5, 0), 1);
    assert_int_equal(confirm_failed(&n, 5, FAR_ANY_GENERATION), 1);
    assert_int_equal(confirm_failed(&n, 16383, 1), 1);
    assert_int_equal(confirm_failed(&n, 1, 1), 0);
    assert_int_equal(confirm_failed(&n, 1, 2), 1);
    end_node(&n);
}


/* When client M confirms that a session of N has failed, the entry is marked and the loss counter is incremented. The
 * id is not issued again until the collector frees it (far_client_free), which also zeroes the other words. */
TEST_WITH(failed_clients_are_marked_and_their_ids_not_reused_before_a_collection, new_world, NULL) {
    node n, m;
    begin_node(&n, false);
    begin_node(&m, false);
    register_node(&n);
    register_node(&m);
    assert_int_equal(open_user(&n, 0), 0);
    unsigned id = n.users[0]->id;
    far_client client = read_client_entry(&n, id);
    client.settled = 77;
    write_client_entry(&n, id, client);
    assert_int_equal(confirm_failed(&m, id, 1), 0);
    kill_session(&n.users[0]);
    assert_int_equal(confirm_failed(&m, id, 1), 1);
    assert_int_equal(far_client_state_of(read_client_entry(&m, id).word), FAR_CLIENT_FENCED);
    uint64_t wanted = 0;
    assert_int_equal(call(m.pool.team.own, read_loss_counter, &wanted), 0);
    assert_int_equal(wanted, 1); /* The loss counter was incremented for the failure, so a collection is due. */
    assert_int_equal(confirm_failed(&n, id, FAR_ANY_GENERATION), 1);
    assert_int_equal(open_user(&n, 1), 0);
    assert_int_not_equal(n.users[1]->id, id);
    assert_int_equal(call(m.pool.team.own, free_client, &id), 1);
    assert_int_equal(read_client_entry(&m, id).settled, 0);
    assert_int_equal(open_user(&n, 2), 0);
    assert_int_equal(n.users[2]->id, id);
    assert_int_equal(n.users[2]->generation, 2);
    end_node(&n);
    end_node(&m);
}


/* The entry of a failed system session is not freed while another session of its handle lives, because the pin in that
 * entry protects this session. Fails without far_handle_confirm_failed in far_client_free. */
TEST_WITH(the_entry_of_a_handle_outlives_all_its_sessions, new_world, NULL) {
    node n, m;
    begin_node(&n, false);
    begin_node(&m, false);
    register_node(&n);
    register_node(&m);
    assert_int_equal(open_user(&n, 0), 0);
    unsigned own = n.pool.team.own->id, user = n.users[0]->id;
    kill_session(&n.pool.team.own);
    assert_int_equal(confirm_failed(&m, own, 1), 1);
    assert_int_equal(call(m.pool.team.own, free_client, &own), 0);
    assert_int_equal(far_client_state_of(read_client_entry(&m, own).word), FAR_CLIENT_FENCED);
    kill_session(&n.users[0]);
    /* freeing the system session's entry also confirms the failure of the handle's other session */
    assert_int_equal(call(m.pool.team.own, free_client, &own), 1);
    assert_int_equal(far_client_state_of(read_client_entry(&m, user).word), FAR_CLIENT_FENCED);
    assert_int_equal(far_client_state_of(read_client_entry(&m, own).word), FAR_CLIENT_FREE);
    end_node(&n);
    end_node(&m);
}


/* A session cannot register for a handle if the handle's system session was fenced, not even if its id was issued again
 * meanwhile. Fails without check_handle_is_live. */
TEST_WITH(a_handle_that_was_declared_failed_gets_no_new_sessions, new_world, NULL) {
    node n;
    begin_node(&n, false);
    register_node(&n);
    write_client_entry(&n, 1, (far_client){.word = far_client_pack(FAR_CLIENT_FENCED, 1, 1)});
    assert_int_equal(open_user(&n, 0), FAR_ERR_FENCED);
    assert_int_equal(far_client_state_of(read_client_entry(&n, 2).word), FAR_CLIENT_FREE);
    /* Meanwhile a collection freed the entry, and the id was issued to another handle. */
    write_client_entry(&n, 1, (far_client){.word = far_client_pack(FAR_CLIENT_LIVE, 2, 1)});
    assert_int_equal(open_user(&n, 1), FAR_ERR_FENCED);
    end_node(&n);
}


/* A session that registers in a task, verb by verb. */
typedef struct registrant {
    far_session *session;
    unsigned handle;
    int result;
    bool done;
} registrant;


static void run_registration(far_task *t, void *arg) {
    registrant *c = arg;
    c->result = far_client_register(t, c->handle);
    c->done = true;
}


static int check_used_entries_are_scanned(far_task *t, void *arg) {
    (void)arg;
    uint64_t high;
    far_client all[16];
    far_read(t, far_client_entry(1), all, sizeof(all));
    far_read(t, FAR_SUPER_SLOTS_HIGH, &high, 8);
    assert_int_equal(far_wait(t), 0);
    for (unsigned i = 0; i < 16; i++)
        if (far_client_state_of(all[i].word) != FAR_CLIENT_FREE)
            assert_true(i + 1 <= high);
    return 0;
}


/* Four sessions register in random interleavings of single verbs (300 seeds). They get different ids, and no used entry
 * is above SLOTS_HIGH at any time. Fails if claim_entry makes an entry live before it raises SLOTS_HIGH. */
TEST_WITH(concurrent_registrations_get_different_ids, new_world, NULL) {
    for (uint64_t seed = 1; seed <= 300; seed++) {
        far_random random;
        far_random_seed(&random, seed);
        node watcher, n;
        world++;
        begin_node(&watcher, false);
        begin_node(&n, true);
        registrant c[4] = {{0}};
        unsigned running = 4;
        if (seed % 2) /* a free entry that all four sessions will try to claim with the same generation */
            write_client_entry(&watcher, 1, (far_client){.word = far_client_pack(FAR_CLIENT_FREE, 6, 0)});
        for (unsigned i = 0; i < 4; i++) {
            assert_int_equal(far_pool_session_new(&n.pool, &n.users[i]), 0);
            c[i].session = n.users[i];
            far_session_try_enter(c[i].session);
            assert_non_null(far_task_new(c[i].session, FAR_STATS_OTHER, run_registration, &c[i]));
        }
        while (running > 0) {
            registrant *next = &c[far_random_below(&random, 4)];
            bool was_done = next->done;
            if (!far_random_chance(&random, 1, 2))
                far_session_step(next->session);
            else if (staged_apply_next_verb(next->session->conn))
                call(watcher.pool.team.own, check_used_entries_are_scanned, NULL);
            running -= next->done && !was_done;
        }
        unsigned taken = 0;
        for (unsigned i = 0; i < 4; i++) {
            assert_int_equal(c[i].result, 0);
            assert_false(taken >> c[i].session->id & 1);
            taken |= 1u << c[i].session->id;
            assert_int_equal(confirm_failed(&watcher, c[i].session->id, c[i].session->generation), 0);
        }
        assert_int_equal(count_live_sessions(&watcher), 4);
        end_node(&n);
        end_node(&watcher);
    }
}
