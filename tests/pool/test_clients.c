/* The client registry: ids, generations, death, and what may be freed when. */
#include "base/error.h"
#include "pool/handle.h"
#include "staged.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct node { /* a compute node: its own session, and users of it */
    far_pool pool;
    far_session *users[64];
} node;

static unsigned world;


static int open_it(far_task *t, void *arg) {
    return far_superblock_open(t, arg);
}


static int register_it(far_task *t, void *arg) {
    return far_client_register(t, *(unsigned *)arg);
}


static int unregister_it(far_task *t, void *arg) {
    (void)arg;
    return far_client_unregister(t);
}


static int call(far_session *s, int (*run)(far_task *, void *), void *arg) {
    return far_session_call(s, FAR_STATS_OTHER, true, run, arg);
}


static void node_begin(node *n, bool staged) {
    char uri[64];
    memset(n, 0, sizeof(*n));
    snprintf(uri, sizeof(uri), "local:2M?name=clients%u", world);
    assert_int_equal(far_fabric_open(uri, &n->pool.fabric), 0);
    if (staged)
        staged_install(n->pool.fabric);
    pthread_mutex_init(&n->pool.lock, NULL);
    assert_int_equal(far_pool_session_new(&n->pool, &n->pool.team.own), 0);
    assert_int_equal(call(n->pool.team.own, open_it, &n->pool.geometry), 0);
}


static void node_register(node *n) {
    unsigned none = 0;
    assert_int_equal(call(n->pool.team.own, register_it, &none), 0);
}


static int user_open(node *n, unsigned i) {
    assert_int_equal(far_pool_session_new(&n->pool, &n->users[i]), 0);
    return call(n->users[i], register_it, &n->pool.team.own->id);
}


/* As if its process were gone. */
static void session_dies(far_session **s) {
    far_session_free(*s);
    *s = NULL;
}


static void node_end(node *n) {
    for (unsigned i = 0; i < 64; i++)
        if (n->users[i])
            far_session_free(n->users[i]);
    if (n->pool.team.own)
        far_session_free(n->pool.team.own);
    n->pool.fabric->ops->close(n->pool.fabric);
}


typedef struct question {
    unsigned id, generation;
} question;


static int ask_dead(far_task *t, void *arg) {
    const question *q = arg;
    return far_is_dead(t, q->id, q->generation);
}


static int is_dead(node *n, unsigned id, unsigned generation) {
    question q = {id, generation};
    return call(n->pool.team.own, ask_dead, &q);
}


typedef struct entry_access {
    unsigned id;
    far_client client;
} entry_access;


static int read_entry(far_task *t, void *arg) {
    entry_access *a = arg;
    far_read(t, far_client_entry(a->id), &a->client, sizeof(a->client));
    return far_wait(t);
}


static far_client entry(node *n, unsigned id) {
    entry_access a = {.id = id};
    assert_int_equal(call(n->pool.team.own, read_entry, &a), 0);
    return a.client;
}


static int write_entry(far_task *t, void *arg) {
    entry_access *a = arg;
    far_write(t, far_client_entry(a->id), &a->client, sizeof(a->client));
    return far_wait(t);
}


static void set_entry(node *n, unsigned id, far_client client) {
    entry_access a = {id, client};
    assert_int_equal(call(n->pool.team.own, write_entry, &a), 0);
}


static int read_wanted(far_task *t, void *arg) {
    return far_read_word(t, far_addr_make(0, FAR_SUPER_WANTED), arg);
}


static int count_them(far_task *t, void *arg) {
    return far_clients_live(t, arg);
}


static unsigned live(node *n) {
    unsigned count;
    assert_int_equal(call(n->pool.team.own, count_them, &count), 0);
    return count;
}


static int free_it(far_task *t, void *arg) {
    return far_client_free(t, *(unsigned *)arg, FAR_ANY_GENERATION);
}


static int new_world(void **state) {
    (void)state;
    world++;
    return 0;
}


static void ids_are_reused_with_a_new_generation_after_a_close(void **state) {
    (void)state;
    node n;
    node_begin(&n, false);
    node_register(&n);
    assert_int_equal(n.pool.team.own->id, 1);
    assert_int_equal(n.pool.team.own->generation, 1);
    assert_int_equal(user_open(&n, 0), 0);
    assert_int_equal(user_open(&n, 1), 0);
    assert_int_equal(n.users[0]->id, 2);
    assert_int_equal(n.users[1]->id, 3);
    assert_int_equal(far_client_handle_of(entry(&n, 3).word), 1);
    assert_int_equal(far_client_handle_of(entry(&n, 1).word), 1);
    assert_int_equal(live(&n), 3);
    assert_int_equal(call(n.users[0], unregister_it, NULL), 0);
    assert_int_equal(live(&n), 2);
    assert_int_equal(is_dead(&n, 2, 1), 1);
    assert_int_equal(user_open(&n, 2), 0);
    assert_int_equal(n.users[2]->id, 2);
    assert_int_equal(n.users[2]->generation, 2);
    assert_int_equal(is_dead(&n, 2, 1), 1);
    assert_int_equal(is_dead(&n, 2, 2), 0);
    assert_int_equal(is_dead(&n, 2, FAR_ANY_GENERATION), 0);
    node_end(&n);
}


static void a_close_leaves_an_entry_of_zeros(void **state) {
    (void)state;
    node n;
    node_begin(&n, false);
    node_register(&n);
    assert_int_equal(user_open(&n, 0), 0);
    unsigned id = n.users[0]->id;
    far_client client = entry(&n, id);
    client.pin = 1, client.answered = 2, client.free_bytes = 3, client.retired_bytes = 4, client.opened = 5;
    set_entry(&n, id, client);
    assert_int_equal(call(n.users[0], unregister_it, NULL), 0);
    far_client expected = {.word = far_client_pack(FAR_CLIENT_FREE, 1, 0)};
    client = entry(&n, id);
    assert_memory_equal(&client, &expected, sizeof(expected));
    node_end(&n);
}


static void all_ids_can_be_taken_and_then_it_is_busy(void **state) {
    (void)state;
    node n, m;
    node_begin(&n, false);
    node_begin(&m, false);
    node_register(&n);
    unsigned slots = n.pool.geometry.session_slots;
    assert_int_equal(slots, 128);
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(user_open(&n, i), 0);
    node_register(&m);
    for (unsigned i = 0; i < slots - 66; i++)
        assert_int_equal(user_open(&m, i), 0);
    assert_int_equal(m.users[slots - 67]->id, slots);
    far_fail_clear();
    assert_int_equal(user_open(&m, 63), FAR_ERR_BUSY);
    assert_non_null(strstr(far_last_error(), "128"));
    assert_int_equal(call(n.users[17], unregister_it, NULL), 0);
    far_session_free(m.users[63]);
    assert_int_equal(user_open(&m, 63), 0);
    assert_int_equal(m.users[63]->id, 19);
    node_end(&n);
    node_end(&m);
}


static void an_id_whose_generations_are_used_up_is_never_given_out(void **state) {
    (void)state;
    node n;
    node_begin(&n, false);
    node_register(&n);
    set_entry(&n, 2, (far_client){.word = far_client_pack(FAR_CLIENT_FREE, 0xffff, 0)});
    set_entry(&n, 3, (far_client){.word = far_client_pack(FAR_CLIENT_FREE, 0xfffe, 0)});
    assert_int_equal(user_open(&n, 0), 0);
    assert_int_equal(n.users[0]->id, 3);
    assert_int_equal(n.users[0]->generation, 0xffff);
    assert_int_equal(call(n.users[0], unregister_it, NULL), 0);
    assert_int_equal(user_open(&n, 1), 0);
    assert_int_equal(n.users[1]->id, 4);
    node_end(&n);
}


static void pairs_that_were_never_given_out_are_dead(void **state) {
    (void)state;
    node n;
    node_begin(&n, false);
    node_register(&n);
    assert_int_equal(is_dead(&n, 0, 1), 1);
    assert_int_equal(is_dead(&n, 5, 0), 1);
    assert_int_equal(is_dead(&n, 5, FAR_ANY_GENERATION), 1);
    assert_int_equal(is_dead(&n, 16383, 1), 1);
    assert_int_equal(is_dead(&n, 1, 1), 0);
    assert_int_equal(is_dead(&n, 1, 2), 1);
    node_end(&n);
}


static void the_dead_are_marked_and_their_ids_not_reused_before_a_sweep(void **state) {
    (void)state;
    node n, m;
    node_begin(&n, false);
    node_begin(&m, false);
    node_register(&n);
    node_register(&m);
    assert_int_equal(user_open(&n, 0), 0);
    unsigned id = n.users[0]->id;
    far_client client = entry(&n, id);
    client.settled = 77;
    set_entry(&n, id, client);
    assert_int_equal(is_dead(&m, id, 1), 0);
    session_dies(&n.users[0]);
    assert_int_equal(is_dead(&m, id, 1), 1);
    assert_int_equal(far_client_state_of(entry(&m, id).word), FAR_CLIENT_DEAD);
    uint64_t wanted = 0;
    assert_int_equal(call(m.pool.team.own, read_wanted, &wanted), 0);
    assert_int_equal(wanted, 1); /* a sweep */
    assert_int_equal(is_dead(&n, id, FAR_ANY_GENERATION), 1);
    assert_int_equal(user_open(&n, 1), 0);
    assert_int_not_equal(n.users[1]->id, id);
    assert_int_equal(call(m.pool.team.own, free_it, &id), 1);
    assert_int_equal(entry(&m, id).settled, 0);
    assert_int_equal(user_open(&n, 2), 0);
    assert_int_equal(n.users[2]->id, id);
    assert_int_equal(n.users[2]->generation, 2);
    node_end(&n);
    node_end(&m);
}


static void the_entry_of_a_handle_outlives_all_its_sessions(void **state) {
    (void)state;
    node n, m;
    node_begin(&n, false);
    node_begin(&m, false);
    node_register(&n);
    node_register(&m);
    assert_int_equal(user_open(&n, 0), 0);
    unsigned own = n.pool.team.own->id, user = n.users[0]->id;
    session_dies(&n.pool.team.own);
    assert_int_equal(is_dead(&m, own, 1), 1);
    assert_int_equal(call(m.pool.team.own, free_it, &own), 0);
    assert_int_equal(far_client_state_of(entry(&m, own).word), FAR_CLIENT_DEAD);
    session_dies(&n.users[0]);
    assert_int_equal(call(m.pool.team.own, free_it, &own), 1); /* it asks for the user's session too */
    assert_int_equal(far_client_state_of(entry(&m, user).word), FAR_CLIENT_DEAD);
    assert_int_equal(far_client_state_of(entry(&m, own).word), FAR_CLIENT_FREE);
    node_end(&n);
    node_end(&m);
}


static void a_handle_that_was_declared_dead_gets_no_new_sessions(void **state) {
    (void)state;
    node n;
    node_begin(&n, false);
    node_register(&n);
    set_entry(&n, 1, (far_client){.word = far_client_pack(FAR_CLIENT_DEAD, 1, 1)});
    assert_int_equal(user_open(&n, 0), FAR_ERR_FENCED);
    assert_int_equal(far_client_state_of(entry(&n, 2).word), FAR_CLIENT_FREE);
    set_entry(&n, 1,
              (far_client){.word = far_client_pack(FAR_CLIENT_LIVE, 2, 1)}); /* swept, and given to another handle */
    assert_int_equal(user_open(&n, 1), FAR_ERR_FENCED);
    node_end(&n);
}


/* Claimants in any interleaving: no pair twice, no live entry above SLOTS_HIGH. */
typedef struct claimant {
    far_session *session;
    unsigned handle;
    int result;
    bool done;
} claimant;


static void run_claim(far_task *t, void *arg) {
    claimant *c = arg;
    c->result = far_client_register(t, c->handle);
    c->done = true;
}


static int check_entries(far_task *t, void *arg) {
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


static void claimants_at_once_get_different_ids(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        far_random random;
        far_random_seed(&random, seed);
        node watcher, n;
        world++;
        node_begin(&watcher, false);
        node_begin(&n, true);
        claimant c[4] = {{0}};
        unsigned running = 4;
        if (seed % 2) /* a free entry with a generation for all of them */
            set_entry(&watcher, 1, (far_client){.word = far_client_pack(FAR_CLIENT_FREE, 6, 0)});
        for (unsigned i = 0; i < 4; i++) {
            assert_int_equal(far_pool_session_new(&n.pool, &n.users[i]), 0);
            c[i].session = n.users[i];
            far_session_try_enter(c[i].session);
            assert_non_null(far_task_new(c[i].session, FAR_STATS_OTHER, run_claim, &c[i]));
        }
        while (running > 0) {
            claimant *next = &c[far_random_below(&random, 4)];
            bool was_done = next->done;
            if (!far_random_chance(&random, 1, 2))
                far_session_step(next->session);
            else if (staged_effect(next->session->conn))
                call(watcher.pool.team.own, check_entries, NULL);
            running -= next->done && !was_done;
        }
        unsigned taken = 0;
        for (unsigned i = 0; i < 4; i++) {
            assert_int_equal(c[i].result, 0);
            assert_false(taken >> c[i].session->id & 1);
            taken |= 1u << c[i].session->id;
            assert_int_equal(is_dead(&watcher, c[i].session->id, c[i].session->generation), 0);
        }
        assert_int_equal(live(&watcher), 4);
        node_end(&n);
        node_end(&watcher);
    }
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(ids_are_reused_with_a_new_generation_after_a_close, new_world),
        cmocka_unit_test_setup(a_close_leaves_an_entry_of_zeros, new_world),
        cmocka_unit_test_setup(all_ids_can_be_taken_and_then_it_is_busy, new_world),
        cmocka_unit_test_setup(an_id_whose_generations_are_used_up_is_never_given_out, new_world),
        cmocka_unit_test_setup(pairs_that_were_never_given_out_are_dead, new_world),
        cmocka_unit_test_setup(the_dead_are_marked_and_their_ids_not_reused_before_a_sweep, new_world),
        cmocka_unit_test_setup(the_entry_of_a_handle_outlives_all_its_sessions, new_world),
        cmocka_unit_test_setup(a_handle_that_was_declared_dead_gets_no_new_sessions, new_world),
        cmocka_unit_test_setup(claimants_at_once_get_different_ids, new_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
