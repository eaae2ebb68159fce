#include "actors.h"
#include "pool/handle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>


void actors_up(actors *s, unsigned count, const char *kind, const char *options, const char *sim) {
    static unsigned serial; /* a test that failed leaves its world behind */
    char uri[256];
    snprintf(uri, sizeof(uri), "sim:name=actors%u,seed=1,size=32M,memory_nodes=2,faults=none%s%s", ++serial,
             *sim ? "," : "", sim);
    memset(s, 0, sizeof(*s));
    s->count = count;
    for (unsigned i = 0; i < count; i++) {
        actor *a = &s->a[i];
        far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
        pool_options.rdwc = 0;
        pool_options.no_thread = 1;
        assert_int_equal(far_pool_open(uri, &pool_options, &a->pool), 0);
        assert_int_equal(far_session_open(a->pool, &a->session), 0);
        if (i == 0)
            assert_int_equal(far_index_create(a->session, "index", kind, options, &a->index), 0);
        else
            assert_int_equal(far_index_open(a->session, "index", &a->index), 0);
    }
    s->world = far_sim_world_of(s->a[0].pool->fabric);
}


static int fail_at_problem(void *ctx, const char *what) {
    (void)ctx;
    fail_msg("%s", what);
    return 1;
}


static void no_watch_errors(actors *s) {
    if (far_sim_watch_errors(s->world))
        fail_msg("%s", far_sim_watch_error(s->world, 0));
}


void actors_sound(actors *s, actor *by) {
    assert_int_equal(far_index_check(by->session, by->index, fail_at_problem, NULL), 0);
    no_watch_errors(s);
}


void actors_down(actors *s) {
    actor *last = &s->a[s->count - 1];
    actors_sound(s, last);
    for (unsigned i = 0; i < s->count; i++) {
        actor *a = &s->a[i];
        far_index_close(a->index);
        far_session_close(a->session);
        far_pool_close(a->pool);
    }
}


static int note_key(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    actor *a = ctx;
    (void)value, (void)value_len;
    size_t used = strlen(a->seen);
    snprintf(a->seen + used, sizeof(a->seen) - used, "%.*s ", (int)key_len, (const char *)key);
    return 0;
}


static void perform(void *arg) {
    actor *a = arg;
    size_t key_len = strlen(a->key);
    switch (a->does) {
    case ACTOR_GET:
        a->result = far_get(a->session, a->index, a->key, key_len, a->value, sizeof(a->value), &a->length);
        break;
    case ACTOR_INSERT:
        a->result = far_insert(a->session, a->index, a->key, key_len, a->value, a->length);
        break;
    case ACTOR_UPDATE:
        a->result = far_update(a->session, a->index, a->key, key_len, a->value, a->length);
        break;
    case ACTOR_PUT:
        a->result = far_put(a->session, a->index, a->key, key_len, a->value, a->length);
        break;
    case ACTOR_DELETE:
        a->result = far_delete(a->session, a->index, a->key, key_len);
        break;
    case ACTOR_SCAN:
        a->seen[0] = 0;
        a->result = (int)far_scan(a->session, a->index, a->key, key_len, NULL, 0, 1000, note_key, a);
        break;
    }
    a->ended = true;
}


static void prepare(actor *a, actor_does does, const char *key, const char *value) {
    a->does = does;
    a->key = key;
    a->length = value ? strlen(value) : 0;
    if (value)
        memcpy(a->value, value, a->length);
    a->ended = false;
}


int actor_do(actor *a, actor_does does, const char *key, const char *value) {
    prepare(a, does, key, value);
    perform(a);
    return a->result;
}


bool actor_reads(actor *a, const char *key, const char *value) {
    int result = actor_do(a, ACTOR_GET, key, NULL);
    if (!value)
        return result == FAR_ERR_NOT_FOUND;
    return result == 0 && a->length == strlen(value) && memcmp(a->value, value, a->length) == 0;
}


void actor_start(actor *a, const char *name, actor_does does, const char *key, const char *value) {
    prepare(a, does, key, value);
    a->client = far_sim_start(a->pool->fabric, name, perform, a);
    assert_non_null(a->client);
}


void actor_stop_at(actor *a, const char *point) {
    far_sim_stop_before(a->client, (far_sim_match){.point = point});
}


void actor_run_to_stop(actor *a) {
    assert_int_equal(far_sim_run_client(a->client), FAR_SIM_STOPPED);
}


void actor_finish(actor *a) {
    far_sim_resume(a->client);
    far_sim_result result = far_sim_run_client(a->client);
    while (result == FAR_SIM_HELD)
        result = far_sim_run_client(a->client);
    assert_int_equal(result, FAR_SIM_ENDED);
    assert_true(a->ended);
}


void actors_polled(actors *s, unsigned times) {
    for (unsigned n = 0; n < times; n++)
        for (unsigned i = 0; i < s->count; i++)
            if (!far_sim_killed(s->a[i].pool->fabric))
                far_pool_poll(s->a[i].pool);
}


void actors_age(actors *s) {
    for (unsigned n = 0; n < 40; n++) {
        far_epoch_request(s->a[0].pool);
        far_sim_sleep(s->world, 100000);
        actors_polled(s, 1);
    }
}
