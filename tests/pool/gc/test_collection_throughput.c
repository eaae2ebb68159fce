/* Operations keep nine tenths of their throughput during checks and background collections that run one after the other
 * without a pause. Measured in virtual time, so that only what clients do to each other counts. */
#include "../support/world.h"
#include "client/client.h"
#include "pool/gc/request.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>

#define HANDLES 2u
#define CLIENTS 8u /* clients of each handle */
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
    far_pool *pool[HANDLES + 1]; /* the last handle runs the collections */
    far_session *session[HANDLES + 1];
    far_index *index[HANDLES + 1];
    worker workers[HANDLES * CLIENTS];
    unsigned left;   /* number of workers that are still working */
    uint64_t ended;  /* virtual time when the last worker ended */
    unsigned sweeps; /* number of collections or checks that ran while workers were working */
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


/* Half of the operations are gets, the other half updates. */
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


static int request_collection(far_task *t, void *arg) {
    (void)arg;
    return far_collection_request(t);
}


static int read_whether_requested(far_task *t, void *arg) {
    (void)arg;
    return far_collection_is_requested(t);
}


/* Requests one collection after the other, as if clients failed all the time. Housekeeping of some handle runs them. */
static void request_collections_main(void *arg) {
    scene *s = arg;
    for (; s->left > 0; s->sweeps++) {
        assert_int_equal(far_session_call(s->session[HANDLES], FAR_STATS_OTHER, false, request_collection, NULL), 0);
        while (s->left > 0 &&
               far_session_call(s->session[HANDLES], FAR_STATS_OTHER, false, read_whether_requested, NULL) == 1)
            far_sim_sleep(s->world, far_tick(s->pool[0]->fabric));
    }
}


/* Runs all workers, and `beside` concurrently with them if it is not NULL. Returns the virtual time in ns until the
 * last worker has completed. */
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


static void assert_nine_tenths(const char *kind, void (*beside)(void *arg)) {
    scene s;
    open_scene(&s, kind);
    work(&s, NULL); /* The first run fills the caches, so that they do not affect the measured runs. */
    uint64_t alone = work(&s, NULL), together = work(&s, beside);
    print_message("%s: %.3f of the throughput during %u collections\n", kind, (double)alone / (double)together,
                  s.sweeps);
    assert_true(s.sweeps > 0);
    assert_true(10 * alone >= 9 * together);
    close_scene(&s);
}


/* All kinds keep nine tenths of their throughput during checks. */
TEST(throughput_during_checks) {
    static const char *const kinds[] = {"dart", "smart", "chime", "dolphin", "shard"};
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        assert_nine_tenths(kinds[i], check_main);
}


/* dart keeps nine tenths of its throughput while housekeeping runs one collection after the other. */
TEST(throughput_during_background_collections) {
    /* dart is the kind whose caches discard most entries when the epoch advances. */
    assert_nine_tenths("dart", request_collections_main);
}


/* A check makes two requests, and each request advances the epoch once. No further epoch is requested. Caches of
 * indexes trust their entries only for some epochs, so each advance costs all handles round trips. Fails if
 * far_request_advance (request.c) requests an epoch although no retired object needs one. */
TEST(a_check_advances_the_epoch_twice) {
    scene s;
    open_scene(&s, "dart");
    work(&s, NULL);
    /* Only the requests of the second check are counted, because the first check also waits for retired objects. */
    for (unsigned i = 0; i < 2; i++) {
        uint64_t before = epoch_now(&s);
        assert_int_equal(far_pool_check(s.session[HANDLES], 0, NULL, NULL), 0);
        assert_true(i == 0 || epoch_now(&s) - before == 2);
    }
    close_scene(&s);
}
