/* Three handles on one simulated pool, for tests of interleavings (stage.h). */
#include "stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>


stage_actor *stage_actor_at(stage *s, unsigned i) {
    return i == 0 ? &s->a : i == 1 ? &s->b : &s->c;
}


static void open_actor(stage *s, stage_actor *a, bool by_hand) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.rdwc = -1;
    options.no_thread = by_hand;
    s->world = world_join(s->uri, &options, &a->pool, &a->session);
    a->keys = calloc(STAGE_PAIRS_MAX, sizeof(*a->keys));
    assert_non_null(a->keys);
}


static void set_up(stage *s, const char *kind, const char *options, const char *sim, bool by_hand) {
    memset(s, 0, sizeof(*s));
    s->by_hand = by_hand;
    world_uri(s->uri, "seed=1,size=4M,memory_nodes=2,faults=none%s%s", sim ? "," : "", sim ? sim : "");
    for (unsigned i = 0; i < STAGE_ACTORS; i++)
        open_actor(s, stage_actor_at(s, i), by_hand);
    assert_int_equal(far_index_create(s->a.session, "map", kind, options, &s->a.index), 0);
    assert_int_equal(far_index_open(s->b.session, "map", &s->b.index), 0);
    assert_int_equal(far_index_open(s->c.session, "map", &s->c.index), 0);
}


void stage_open(stage *s, const char *kind, const char *options, const char *sim) {
    set_up(s, kind, options, sim, false);
}


void stage_open_without_housekeeping(stage *s, const char *kind, const char *options, const char *sim) {
    set_up(s, kind, options, sim, true);
}


void stage_poll(stage *s, unsigned times) {
    for (unsigned n = 0; n < times; n++)
        for (unsigned i = 0; i < STAGE_ACTORS; i++)
            if (!far_sim_killed(stage_actor_at(s, i)->pool->fabric))
                far_pool_poll(stage_actor_at(s, i)->pool);
}


void stage_free_retired(stage *s) {
    for (unsigned n = 0; n < 40; n++) {
        far_epoch_request(s->a.pool);
        far_sim_sleep(s->world, 100000);
        stage_poll(s, 1);
    }
}


/* Returns whether no actor was killed. Live clients free all memory that they no longer need, so nothing may be leaked
 * then. */
static bool no_actor_was_killed(stage *s) {
    for (unsigned i = 0; i < 3; i++)
        if (stage_actor_at(s, i)->died)
            return false;
    return true;
}


void stage_check_by(stage *s, stage_actor *a) {
    far_pool_usage usage;
    assert_int_equal(far_index_check(a->session, a->index, fail_at_problem, NULL), 0);
    if (no_actor_was_killed(s)) {
        assert_int_equal(far_pool_check(a->session, 0, fail_at_problem, NULL), 0);
        assert_int_equal(far_pool_stat(a->session, &usage), 0);
        assert_int_equal(usage.leaked, 0);
    }
    world_assert_nothing_leaked_after_collection(a->session);
    world_assert_no_checker_error(s->world);
}


static void close_actor(stage_actor *a) {
    far_index_close(a->index);
    far_session_close(a->session);
    far_pool_close(a->pool);
    free(a->keys);
}


void stage_check(stage *s) {
    unsigned i = 0;
    while (i < STAGE_ACTORS - 1 && far_sim_killed(stage_actor_at(s, i)->pool->fabric))
        i++;
    stage_check_by(s, stage_actor_at(s, i));
}


void stage_tear_down(stage *s) {
    for (unsigned i = 0; i < STAGE_ACTORS; i++)
        close_actor(stage_actor_at(s, i));
}


/* A collection waits for all handles. Handles without housekeeping would not acknowledge its requests, so they are
 * closed first, and a new handle with housekeeping does the checks. */
void stage_close(stage *s) {
    if (!s->by_hand) {
        stage_check(s);
        stage_tear_down(s);
        return;
    }
    stage_actor last = {0};
    open_actor(s, &last, false);
    assert_int_equal(far_index_open(last.session, "map", &last.index), 0);
    stage_tear_down(s);
    stage_check_by(s, &last);
    close_actor(&last);
}


static int keep_key(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    stage_actor *a = ctx;
    a->value_len = value_len < STAGE_VALUE_MAX ? value_len : STAGE_VALUE_MAX;
    memcpy(a->value, value, a->value_len);
    memcpy(a->keys[a->pairs], key, key_len);
    a->keys[a->pairs][key_len] = 0;
    return ++a->pairs == STAGE_PAIRS_MAX;
}


int stage_run(stage_actor *a) {
    switch (a->kind) {
    case FAR_OP_GET:
        return far_get(a->session, a->index, a->key, a->key_len, a->value, sizeof(a->value), &a->value_len);
    case FAR_OP_INSERT:
        return far_insert(a->session, a->index, a->key, a->key_len, a->value, a->value_len);
    case FAR_OP_UPDATE:
        return far_update(a->session, a->index, a->key, a->key_len, a->value, a->value_len);
    case FAR_OP_PUT:
        return far_put(a->session, a->index, a->key, a->key_len, a->value, a->value_len);
    case FAR_OP_DELETE:
        return far_delete(a->session, a->index, a->key, a->key_len);
    default:
        a->pairs = 0;
        return (int)(a->backward ? far_scan_reverse : far_scan)(a->session, a->index, a->key_len ? a->key : NULL,
                                                                a->key_len, a->to, a->to ? strlen(a->to) : 0, a->limit,
                                                                keep_key, a);
    }
}


static void client_main(void *arg) {
    stage_actor *a = arg;
    a->result = stage_run(a);
    a->ended = true;
}


static void set_op(stage_actor *a, far_op_kind kind, const void *key, size_t key_len, const void *value,
                   size_t value_len) {
    assert_true(key_len <= sizeof(a->key) && value_len <= sizeof(a->value));
    a->kind = kind;
    a->key_len = key_len;
    a->value_len = value_len;
    if (key_len)
        memcpy(a->key, key, key_len);
    if (value_len)
        memcpy(a->value, value, value_len);
    a->ended = false;
}


void stage_set(stage_actor *a, far_op_kind kind, const char *key, const char *value) {
    set_op(a, kind, key, key ? strlen(key) : 0, value, value ? strlen(value) : 0);
}


void stage_start_main(stage_actor *a, const char *name, void (*run)(void *actor)) {
    a->client = world_start(a->pool, name, run, a);
}


void stage_start_bytes(stage_actor *a, far_op_kind kind, const void *key, size_t key_len, const void *value,
                       size_t value_len) {
    set_op(a, kind, key, key_len, value, value_len);
    stage_start_main(a, "actor", client_main);
}


void stage_start(stage_actor *a, far_op_kind kind, const char *key, const char *value) {
    stage_start_bytes(a, kind, key, key ? strlen(key) : 0, value, value ? strlen(value) : 0);
}


void stage_stop_at(stage_actor *a, far_sim_match match) {
    world_stop_at(a->client, match);
}


far_sim_hold *stage_hold(stage_actor *a, far_sim_match match) {
    far_sim_hold *hold = far_sim_hold_effect(a->client, match);
    while (!far_sim_reached(hold) && !a->ended)
        far_sim_run_client(a->client);
    assert_true(far_sim_reached(hold));
    return hold;
}


void stage_finish(stage_actor *a) {
    world_finish(a->client);
}


void stage_kill(stage *s, stage_actor *a) {
    a->died = true;
    far_sim_kill(a->pool->fabric);
    if (a->client && !a->ended)
        far_sim_resume(a->client);
    far_sim_run(s->world);
}


int stage_do(stage_actor *a, far_op_kind kind, const char *key, const char *value) {
    stage_set(a, kind, key, value);
    a->result = stage_run(a);
    a->ended = true;
    return a->result;
}


/* Uses buffers of its own, because the buffers in the actor belong to the operation of the actor that may be in
 * progress. */
void stage_write(stage_actor *a, const char *key, const char *value) {
    assert_int_equal(far_put(a->session, a->index, key, strlen(key), value, strlen(value)), 0);
}


void stage_delete(stage_actor *a, const char *key) {
    assert_int_equal(far_delete(a->session, a->index, key, strlen(key)), 0);
}


bool stage_reads(stage_actor *a, const char *key, const char *value) {
    char back[STAGE_VALUE_MAX];
    size_t length = 0;
    int result = far_get(a->session, a->index, key, strlen(key), back, sizeof(back), &length);
    if (!value)
        return result == FAR_ERR_NOT_FOUND;
    return result == 0 && length == strlen(value) && memcmp(back, value, length) == 0;
}


char *stage_scanned(const stage_actor *a, char text[STAGE_VALUE_MAX]) {
    size_t used = 0;
    text[0] = '\0';
    for (unsigned i = 0; i < a->pairs && used < STAGE_VALUE_MAX; i++)
        used += (size_t)snprintf(text + used, STAGE_VALUE_MAX - used, "%s%s", i ? " " : "", a->keys[i]);
    return text;
}


bool stage_scans(stage_actor *a, const char *from, const char *keys) {
    char text[STAGE_VALUE_MAX];
    return stage_do(a, FAR_OP_SCAN, from, NULL) >= 0 && strcmp(stage_scanned(a, text), keys) == 0;
}
