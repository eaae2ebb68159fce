/* Operations beside checks and sweeps, one after the other without a pause, keep nine tenths of their throughput. In
 * virtual time, so that nothing but what clients do to each other counts. */
#include "../support/world.h"
#include "client/client.h"
#include "pool/request.h"

#include <stdio.h>
#include <stdlib.h>

#define HANDLES 2u
#define CLIENTS 8u /* of each handle */
#define KEYS    500u
#define ROUNDS  1500u

typedef struct scene scene;

typedef struct worker {
    scene *s;
    unsigned number;
    far_session *session;
    far_index *index;
} worker;

struct scene {
    far_sim_world *world;
    far_pool *pool[HANDLES + 1]; /* the last one sweeps */
    far_session *session[HANDLES + 1];
    far_index *index[HANDLES + 1];
    worker workers[HANDLES * CLIENTS];
    unsigned left;   /* workers at work */
    uint64_t ended;  /* when the last one was */
    unsigned sweeps; /* while they were */
};


static uint64_t now(const scene *s) {
    return far_host_now(s->pool[0]->fabric->host);
}


static uint64_t epoch_now(const scene *s) {
    return world_word(s->world, far_addr_make(0, FAR_SUPER_EPOCH));
}


static void open_scene(scene *s, const char *kind) {
    char uri[WORLD_URI];
    *s = (scene){0};
    world_uri(uri, "seed=1,size=4M,faults=none");
    for (unsigned i = 0; i <= HANDLES; i++) {
        s->world = world_join(uri, NULL, &s->pool[i], &s->session[i]);
        int err = i == 0 ? far_index_create(s->session[0], "x", kind, NULL, &s->index[0])
                         : far_index_open(s->session[i], "x", &s->index[i]);
        assert_int_equal(err, 0);
    }
    far_sim_limit(s->world, 0);
    for (uint64_t key = 0; key < KEYS; key++)
        assert_int_equal(far_put(s->session[0], s->index[0], &key, 8, &key, 8), 0);
    for (unsigned i = 0; i < HANDLES * CLIENTS; i++) {
        worker *w = &s->workers[i];
        *w = (worker){.s = s, .number = i, .index = s->index[i % HANDLES]};
        assert_int_equal(far_session_open(s->pool[i % HANDLES], &w->session), 0);
    }
}


static void close_scene(scene *s) {
    for (unsigned i = 0; i < HANDLES * CLIENTS; i++)
        far_session_close(s->workers[i].session);
    for (unsigned i = 0; i <= HANDLES; i++) {
        far_index_close(s->index[i]);
        far_session_close(s->session[i]);
        far_pool_close(s->pool[i]);
    }
}


/* Half gets, half updates. */
static void work_main(void *arg) {
    worker *w = arg;
    uint64_t value;
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint64_t key = (w->number * 1009u + i * 7919u) % KEYS;
        int err = i % 2 ? far_get(w->session, w->index, &key, 8, &value, 8, NULL)
                        : far_put(w->session, w->index, &key, 8, &key, 8);
        assert_int_equal(err, 0);
    }
    w->s->left--;
    w->s->ended = now(w->s);
}


static void check_main(void *arg) {
    scene *s = arg;
    for (; s->left > 0; s->sweeps++)
        assert_int_equal(far_pool_check(s->session[HANDLES], 0, NULL, NULL), 0);
}


static int want(far_task *t, void *arg) {
    (void)arg;
    return far_want_sweep(t);
}


static int is_wanted(far_task *t, void *arg) {
    (void)arg;
    return far_sweep_is_wanted(t);
}


/* As if one client died after the other: somebody's housekeeping sweeps. */
static void death_main(void *arg) {
    scene *s = arg;
    for (; s->left > 0; s->sweeps++) {
        assert_int_equal(far_session_call(s->session[HANDLES], FAR_STATS_OTHER, false, want, NULL), 0);
        while (s->left > 0 && far_session_call(s->session[HANDLES], FAR_STATS_OTHER, false, is_wanted, NULL) == 1)
            far_sim_sleep(s->world, far_tick(s->pool[0]->fabric));
    }
}


/* Virtual ns that all operations take, beside what the sweeper does. */
static uint64_t work(scene *s, void (*beside)(void *arg)) {
    uint64_t begin = now(s);
    s->left = HANDLES * CLIENTS;
    for (unsigned i = 0; i < HANDLES * CLIENTS; i++)
        world_start(s->pool[i % HANDLES], "worker", work_main, &s->workers[i]);
    if (beside)
        world_start(s->pool[HANDLES], "sweeper", beside, s);
    assert_int_equal(far_sim_run(s->world), FAR_SIM_ENDED);
    return s->ended - begin;
}


static void nine_tenths_beside(const char *kind, void (*beside)(void *arg)) {
    scene s;
    open_scene(&s, kind);
    work(&s, NULL); /* caches are warm */
    uint64_t alone = work(&s, NULL), together = work(&s, beside);
    print_message("%s: %.3f of the throughput beside %u sweeps\n", kind, (double)alone / (double)together, s.sweeps);
    assert_true(s.sweeps > 0);
    assert_true(10 * alone >= 9 * together);
    close_scene(&s);
}


static void beside_checks(void **state) {
    (void)state;
    static const char *const kinds[] = {"dart", "smart", "chime", "dolphin", "shard"};
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        nine_tenths_beside(kinds[i], check_main);
}


static void beside_sweeps_after_deaths(void **state) {
    (void)state;
    nine_tenths_beside("dart", death_main); /* its caches lose most when the epoch moves */
}


/* What was seen some epochs ago caches do not count on: so each move costs all handles round trips. */
static void a_check_moves_the_epoch_twice(void **state) {
    (void)state;
    scene s;
    open_scene(&s, "dart");
    work(&s, NULL);
    for (unsigned i = 0; i < 2; i++) { /* the first one waits for what was retired */
        uint64_t before = epoch_now(&s);
        assert_int_equal(far_pool_check(s.session[HANDLES], 0, NULL, NULL), 0);
        assert_true(i == 0 || epoch_now(&s) - before == 2);
    }
    close_scene(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beside_checks),
        cmocka_unit_test(beside_sweeps_after_deaths),
        cmocka_unit_test(a_check_moves_the_epoch_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
