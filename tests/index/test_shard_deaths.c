/* Two deaths in a row: a client dies somewhere in a doubling of the shard index (splits, drain, overflow), a second one
 * while it works on what the first has left, taking over its locks. The third finds every change that was answered, can
 * change all, and nothing is lost. FARINDEX_STEP=1 tries every pair of verbs. */
#include "../support/stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS_MAX 16

typedef struct story {
    const char *options, *sim;
    unsigned before, keys; /* of a at first; of all */
} story;

typedef struct worker {
    stage_actor *actor;
    const story *story;
    unsigned version, answered;
} worker;


static int put(stage_actor *a, unsigned n, uint64_t version) {
    uint64_t key = __builtin_bswap64(n + 1), value = n * 1000ull + version;
    return far_put(a->session, a->index, &key, 8, &value, 8);
}


/* 0: absent. */
static unsigned version_of(stage_actor *a, unsigned n) {
    uint64_t key = __builtin_bswap64(n + 1), value = 0;
    size_t length = 0;
    int err = far_get(a->session, a->index, &key, 8, &value, 8, &length);
    assert_true(err == 0 || err == FAR_ERR_NOT_FOUND);
    assert_true(err != 0 || (length == 8 && value / 1000 == n));
    return err == 0 ? (unsigned)(value % 1000) : 0;
}


static void work(void *arg) {
    worker *w = arg;
    while (w->answered < w->story->keys && put(w->actor, w->answered, w->version) == 0)
        w->answered++;
    w->actor->ended = true;
}


/* Runs it until it dies at that verb, or to its end. Returns how many verbs it posted. */
static uint64_t run_and_kill(stage *s, worker *w, uint64_t verb) {
    stage_actor *a = w->actor;
    a->client = far_sim_start(a->pool->fabric, "worker", work, w);
    if (verb)
        far_sim_kill_at(a->client, (far_sim_match){.nth = (unsigned)verb}, verb % 2 ? FAR_SIM_WHOLE : verb / 2 % 3);
    far_sim_run(s->world);
    assert_true(far_sim_ended(a->client));
    return far_sim_verbs(a->client);
}


static void run_story(const story *story, uint64_t first, uint64_t second, uint64_t verbs[2]) {
    stage s;
    stage_open(&s, "shard", story->options, story->sim);
    worker b = {&s.b, story, 2, 0}, c = {&s.c, story, 3, 0};
    for (unsigned n = 0; n < story->before; n++)
        assert_int_equal(put(&s.a, n, 1), 0);
    verbs[0] = run_and_kill(&s, &b, first);
    verbs[1] = run_and_kill(&s, &c, second);
    for (unsigned n = 0; n < story->keys; n++) {
        unsigned version = version_of(&s.a, n), least = n < c.answered ? 3 : n < b.answered ? 2 : n < story->before;
        if (version < least || version > 3)
            fail_msg("deaths at verbs %llu and %llu: key %u has version %u, not %u", (unsigned long long)first,
                     (unsigned long long)second, n, version, least);
    }
    for (unsigned n = 0; n < story->keys; n++)
        assert_int_equal(put(&s.a, n, 4), 0);
    for (unsigned n = 0; n < story->keys; n++)
        assert_int_equal(version_of(&s.a, n), 4);
    stage_close(&s);
}


static void die_twice(const story *story) {
    const char *text = getenv("FARINDEX_STEP");
    uint64_t verbs[2], step = text ? strtoull(text, NULL, 10) : 17, runs = 0;
    run_story(story, 0, 0, verbs);
    uint64_t most = verbs[0];
    for (uint64_t first = 1; first <= most; first += step / 4 + 1) {
        run_story(story, first, 0, verbs);
        uint64_t last = verbs[1];
        for (uint64_t second = 1 + first % step; second <= last; second += step, runs++)
            run_story(story, first, second, verbs);
    }
    print_message("    %llu pairs of deaths\n", (unsigned long long)runs);
}

#define TINY   "partitions=1,bits=0,slots=2,l2_slots=1,load=30,afs=1,lazy_resize=off"
#define INLINE "key_size=8,value_size=8,narrow=on," TINY


static void pointers(void **state) {
    (void)state;
    die_twice(&(story){TINY ",layout=pointer", NULL, 3, 9});
    die_twice(&(story){TINY ",layout=pointer,grace=off", "masked_cas=off,atomic_bytes=8", 3, 9});
}


static void inlined(void **state) {
    (void)state;
    die_twice(&(story){INLINE, NULL, 3, 9});
    die_twice(&(story){INLINE, "atomic_bytes=8", 3, 9});
}


int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(pointers), cmocka_unit_test(inlined)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
