/* SMART, client failures. A client fails at every verb of every kind of change, and after every tearing granule of
 * every WRITE. Then the other clients must be able to continue, check must find no problem, and a full collection must
 * find no leaked memory. */
#include "crash_story.h"
#include "test.h"

static const story stories[] = {
    {"insert into a free slot", "", "naa nba", PUT, "nca", 8, 8, 2},
    {"insert over a tombstone", "merge=eager", "naa nba nca -nba", PUT, "nbb", 8, 8, 2},
    {"insert that parts a leaf", "", "naa nba", PUT, "nab", 8, 8, 2},
    {"insert that parts a prefix", "", "nxaaa nxaab nba", PUT, "nxb", 8, 8, 2},
    {"insert into a full node", "", "na nb nc nd ne nf ng nh ni nj nk nl", PUT, "nm", 8, 8, 2},
    {"update of a word", "", "naa nba", PUT, "naa", 8, 8, 2},
    {"update in place", "", "naa nba", PUT, "naa", 200, 190, 2},
    {"update in place, one unit", "update=lock", "naa nba", PUT, "naa", 16, 16, 2},
    {"update out of place", "update=rcu", "naa nba", PUT, "naa", 200, 190, 2},
    {"update to another length", "", "naa nba", PUT, "naa", 8, 300, 2},
    {"delete", "", "naa nba nca", REMOVE, "nba", 8, 8, 2},
    {"delete with its slot", "value_size=8", "naa nba nca nda nea nfa", REMOVE, "nba", 8, 8, 2},
    {"delete with its slot and a merge", "value_size=8,merge=eager", "naa nba", REMOVE, "nba", 8, 8, 2},
    {"insert without path compression", "path_compression=off", "nxaaa", PUT, "nxaab", 8, 8, 2},
    {"insert into a list of tombstones", "", "na nb nc nd ne nf ng nh ni nj nk nl -nb -nc -nd -ne -nf", PUT, "nm", 8, 8,
     2},
    {"delete with a merge", "merge=eager", "naa nba", REMOVE, "naa", 8, 8, 2},
    {"delete of all below", "merge=eager", "nxaa nxba nyaa -nxaa -nyaa", REMOVE, "nxba", 8, 8, 2},
    {"delete in a node of three", "merge=eager", "nxa nxb nya -nxa", REMOVE, "nxb", 200, 200, 2},
};


static int run_victim(far_session *s, far_index *index, void *ctx) {
    const story *st = ctx;
    char value[STORY_VALUE_MAX];
    size_t length;
    int result = story_change(s, index, ctx);
    /* The background work of the delete runs concurrently with these gets. */
    for (unsigned i = 0; i < 12 && result == 0 && st->change == REMOVE; i++)
        far_get(s, index, "q", 1, value, sizeof(value), &length);
    return result;
}


static int check_survivor(far_session *s, far_index *index, void *ctx) {
    const story *st = ctx;
    char value[STORY_VALUE_MAX];
    memset(value, 'b', st->before);
    bool well = story_outcome_is_valid(s, index, st) && far_put(s, index, "nzz", 3, value, st->before) >= 0;
    return well && story_can_delete(s, index, st) ? 0 : -1;
}


/* For each change in the table, a client fails at each of its verbs, and after each tearing granule of each WRITE. The
 * other clients must find a correct index, write and delete, and a collection must find nothing leaked. */
TEST(every_death_is_survived) {
    static const char *const sims[] = {"atomic_bytes=64", "atomic_bytes=8"};
    for (size_t i = 0; i < sizeof(stories) / sizeof(stories[0]); i++)
        for (size_t k = 0; k < 2; k++) {
            far_explore e = {
                .kind = "smart", .sim = sims[k], .victim = run_victim, .survive = check_survivor, .every_unit = true};
            story_explore(&stories[i], &e);
        }
}
