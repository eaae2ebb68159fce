/* Dolphin: a client fails at every verb of every kind of structure change and write, and after every atomic unit of
 * every WRITE. In a second test the client that takes over fails too. The other clients must continue, check must find
 * no damage, and a full collection must find no leaked memory. */
#include "crash_story.h"
#include "test.h"

#define LONG_KEY  "n-a-key-whose-rest-does-not-fit-into-a-word"
#define LONG_TAIL "-does-not-fit-either"
#define MANY      "nb nd nf nh nj nl nn np nr nt nv"

static const story stories[] = {
    {"first leaf", "leaf_slots=4", "maa", PUT, "naa", 8, 8, 6},
    {"first leaf, words", "leaf_slots=4,value_size=8", "maa", PUT, "naa", 8, 8, 6},
    {"first leaf below a node of its own", "leaf_slots=4,coverage=lastbyte", "maa", PUT, "nabc", 8, 8, 8},
    {"a node of its own inside of a NULL", "leaf_slots=4,coverage=lastbyte", "na1 nc1", PUT, "nm1", 8, 8, 10},
    {"insert", "value_size=8,insert=cas", "naa nba", PUT, "nca", 8, 8, 6},
    {"insert of a long key", "insert=cas", "naa nba", PUT, LONG_KEY, 8, 100, 7},
    {"insert, exclusive", "sync=exclusive,insert=cas", "naa nba", PUT, "nca", 8, 100, 8},
    {"insert by ticket", "value_size=8,insert=ticket", "naa nba", PUT, "nca", 8, 8, 7},
    {"insert by ticket of a long key", "insert=ticket", "naa nba", PUT, LONG_KEY, 8, 100, 7},
    {"update of a word", "value_size=8", "naa nba", PUT, "naa", 8, 8, 4},
    {"update of a block", "", "naa nba", PUT, "naa", 100, 120, 5},
    {"delete of a word", "value_size=8", "naa nba", REMOVE, "naa", 8, 8, 4},
    {"delete of a block", "", "naa nba " LONG_KEY, REMOVE, LONG_KEY, 100, 100, 5},
    {"compact", "leaf_slots=4", "na nb nc nd -nb -nc", PUT, "ne", 100, 100, 12},
    {"compact with a long key", "leaf_slots=4,hot_updates=on", "na nb " LONG_KEY " nd -nb -nd", PUT, "ne", 100, 100,
     12},
    {"a node below the root", "leaf_slots=2,hot_updates=on", "na nb", PUT, "nc", 8, 100, 12},
    {"split", "leaf_slots=2,value_size=8", "na nc ne", PUT, "nf", 8, 8, 12},
    {"split with long keys", "leaf_slots=2", "na" LONG_TAIL " nc" LONG_TAIL " ne" LONG_TAIL, PUT, "nf" LONG_TAIL, 8,
     100, 13},
    {"deepen", "leaf_slots=2", "na nca nxb", PUT, "ncc", 100, 100, 8},
    {"deepen, long", "leaf_slots=2,hot_updates=on", "na nx ncaaaaaaaaaaaaaaaaa ncaaaaaaaaaaaaaaaac", PUT,
     "ncaaaaaaaaaaaaaaaab", 100, 100, 16},
    {"part a path", "leaf_slots=2", "nxaaa nxaab nxaac", PUT, "nxb", 8, 8, 8},
    {"grow", "leaf_slots=1", MANY, PUT, "nc", 8, 8, 16},
    {"remove a leaf", "leaf_slots=2,hot_updates=on", "na nb nc nd nx ny -nc", REMOVE, "nd", 8, 8, 16},
    {"merge", "leaf_slots=4,value_size=8", "na nb nc nd ne nf ng nh -ne -nf -ng -nc", REMOVE, "nd", 8, 8, 30},
    {"nothing is left of a node", "leaf_slots=2", "nxa nxb nxc nb -nxa -nxb", REMOVE, "nxc", 8, 8, 16},
};


static int survive(far_session *s, far_index *index, void *ctx) {
    const story *st = ctx;
    char value[STORY_VALUE_MAX];
    if (!story_outcome_is_valid(s, index, st))
        return -1;
    memset(value, 'b', st->before);
    for (char c = 'a'; c <= 'z'; c++) { /* These puts reach every object that the failed client left incomplete. */
        char more[2] = {'n', c};
        if (far_put(s, index, more, 2, value, st->before) < 0)
            return -1;
    }
    return story_can_delete(s, index, st) ? 0 : -1;
}


static void explore(const story *st, const char *sim, bool twice) {
    far_explore e = {.kind = "dolphin",
                     .sim = sim,
                     .victim = story_change,
                     .second = twice ? story_change : NULL,
                     .stride = 11,
                     .survive = survive,
                     .every_unit = !twice,
                     .changes_only = true};
    story_explore(st, &e);
}


/* The client fails at every verb of each story, with atomic units of 64 and of 8 bytes. */
TEST(every_client_failure_is_survived) {
    for (size_t i = 0; i < sizeof(stories) / sizeof(stories[0]); i++) {
        explore(&stories[i], "atomic_bytes=64", false);
        explore(&stories[i], "atomic_bytes=8", false);
    }
}


/* The client fails at every verb of each story, and then the client that takes over fails at every eleventh verb. */
TEST(every_second_failure_is_survived) {
    for (size_t i = 0; i < sizeof(stories) / sizeof(stories[0]); i++)
        explore(&stories[i], "atomic_bytes=64", true);
}
