/* Dolphin: death at every verb of every kind of change, and after every unit of every WRITE; and death of who comes
 * next and takes over. Survivors work on, check is content, and a full sweep finds nothing lost. */
#include "verify/explore.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef enum { PUT, REMOVE } change;

typedef struct story {
    const char *name, *options, *present; /* keys that are there, with a space between; -key: deleted again */
    change change;
    const char *key;
    size_t before, after; /* bytes of values: of all keys, of the changed one */
    unsigned verbs;       /* at least so many: else it is not what it is called */
} story;

#define LONG_KEY "n-a-key-whose-rest-does-not-fit-into-a-word"
#define MANY     "nb nd nf nh nj nl nn np nr nt nv"

static const story stories[] = {
    {"first leaf", "leaf_slots=4", "maa", PUT, "naa", 8, 8, 6},
    {"first leaf, words", "leaf_slots=4,value_size=8", "maa", PUT, "naa", 8, 8, 6},
    {"first leaf below a node of its own", "leaf_slots=4,coverage=lastbyte", "maa", PUT, "nabc", 8, 8, 8},
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
    {"compact with a long key", "leaf_slots=4", "na nb " LONG_KEY " nd -nb -nd", PUT, "ne", 100, 100, 12},
    {"a node below the root", "leaf_slots=2", "na nb", PUT, "nc", 8, 100, 12},
    {"split", "leaf_slots=2,value_size=8", "na nc ne", PUT, "nf", 8, 8, 12},
    {"deepen", "leaf_slots=2", "na nca nxb", PUT, "ncc", 100, 100, 8},
    {"deepen, long", "leaf_slots=2", "na nx ncaaaaaaaaaaaaaaaaa ncaaaaaaaaaaaaaaaac", PUT, "ncaaaaaaaaaaaaaaaab", 100,
     100, 16},
    {"part a path", "leaf_slots=2", "nxaaa nxaab nxaac", PUT, "nxb", 8, 8, 8},
    {"grow", "leaf_slots=1", MANY, PUT, "nc", 8, 8, 16},
    {"remove a leaf", "leaf_slots=2", "na nb nc nd nx ny -nc", REMOVE, "nd", 8, 8, 16},
    {"merge", "leaf_slots=4,value_size=8", "na nb nc nd ne nf ng nh -ne -nf -ng -nc", REMOVE, "nd", 8, 8, 30},
    {"nothing is left of a node", "leaf_slots=2", "nxa nxb nxc nb -nxa -nxb", REMOVE, "nxc", 8, 8, 16},
};


static int prepare(far_session *s, far_index *index, void *ctx) {
    const story *st = ctx;
    char copy[256], *next = copy, *key, value[400];
    snprintf(copy, sizeof(copy), "%s", st->present);
    memset(value, 'b', st->before);
    while ((key = strsep(&next, " "))) {
        int result = *key == '-' ? far_delete(s, index, key + 1, strlen(key + 1))
                                 : far_put(s, index, key, strlen(key), value, st->before);
        if (result < 0)
            return -1;
    }
    return 0;
}


static int victim(far_session *s, far_index *index, void *ctx) {
    const story *st = ctx;
    char value[400];
    memset(value, 'a', st->after);
    return st->change == REMOVE ? far_delete(s, index, st->key, strlen(st->key))
                                : far_put(s, index, st->key, strlen(st->key), value, st->after);
}


/* 1: as before, 2: as after, 4: absent; -1: something else. */
static int looks(far_session *s, far_index *index, const story *st, const char *key) {
    char value[400], wanted[400];
    size_t length;
    int result = far_get(s, index, key, strlen(key), value, sizeof(value), &length);
    if (result == FAR_ERR_NOT_FOUND)
        return 4;
    memset(wanted, 'b', st->before);
    if (result == 0 && length == st->before && memcmp(value, wanted, length) == 0)
        return 1;
    memset(wanted, 'a', st->after);
    return result == 0 && length == st->after && memcmp(value, wanted, length) == 0 ? 2 : -1;
}


static bool was_there(const story *st, const char *key) {
    size_t length = strlen(key);
    bool there = false;
    for (const char *at = st->present; (at = strstr(at, key)); at++)
        if ((at == st->present || at[-1] == ' ' || at[-1] == '-') && (at[length] == 0 || at[length] == ' '))
            there = at == st->present || at[-1] != '-';
    return there;
}


static int survive(far_session *s, far_index *index, void *ctx) {
    const story *st = ctx;
    char copy[256], *next = copy, *key, value[400];
    snprintf(copy, sizeof(copy), "%s", st->present);
    int seen = looks(s, index, st, st->key);
    int may = (was_there(st, st->key) ? 1 : 4) | (st->change == REMOVE ? 4 : 2);
    if (seen < 0 || !(seen & may) || looks(s, index, st, st->key) != seen)
        return -1;
    while ((key = strsep(&next, " ")))
        if (*key != '-' && strcmp(key, st->key) != 0 && looks(s, index, st, key) != (was_there(st, key) ? 1 : 4))
            return -1;
    memset(value, 'b', st->before);
    if (far_put(s, index, st->key, strlen(st->key), value, st->before) < 0 || looks(s, index, st, st->key) != 1)
        return -1;
    for (char c = 'a'; c <= 'z'; c++) { /* whatever was left half done is in somebody's way */
        char more[2] = {'n', c};
        if (far_put(s, index, more, 2, value, st->before) < 0)
            return -1;
    }
    return far_delete(s, index, st->key, strlen(st->key)) == 0 && looks(s, index, st, st->key) == 4 ? 0 : -1;
}


static void explore(const story *st, const char *sim, bool twice) {
    far_explore e = {.kind = "dolphin",
                     .options = st->options,
                     .sim = sim,
                     .prepare = prepare,
                     .victim = victim,
                     .second = twice ? victim : NULL,
                     .stride = 11,
                     .survive = survive,
                     .every_unit = !twice,
                     .sweep = true,
                     .changes_only = true,
                     .ctx = (void *)st,
                     .out = stderr};
    far_explore_result result;
    assert_int_equal(far_explore_run(&e, &result), 0);
    print_message("%s, %s: %u verbs, %u deaths\n", st->name, sim, (unsigned)result.verbs, (unsigned)result.cuts);
    assert_int_equal(result.problems, 0);
    assert_true(result.verbs >= st->verbs);
}


static void every_death_is_survived(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(stories) / sizeof(stories[0]); i++) {
        explore(&stories[i], "atomic_bytes=64", false);
        explore(&stories[i], "atomic_bytes=8", false);
    }
}


static void every_second_death_is_survived(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(stories) / sizeof(stories[0]); i++)
        explore(&stories[i], "atomic_bytes=64", true);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_death_is_survived),
        cmocka_unit_test(every_second_death_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
