/* SMART: death at every verb of every kind of change, and after every unit of every WRITE. Survivors work on, check is
 * content, and a full sweep finds nothing lost. */
#include "verify/explore.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef enum { PUT, REMOVE } change;

typedef struct story {
    const char *name, *options, *present; /* keys that are there, with a space between */
    change change;
    const char *key;
    size_t before, after; /* bytes of values: of all keys, of the changed one */
} story;

static const story stories[] = {
    {"insert into a free slot", "", "naa nba", PUT, "nca", 8, 8},
    {"insert over a tombstone", "merge=eager", "naa nba nca -nba", PUT, "nbb", 8, 8},
    {"insert that parts a leaf", "", "naa nba", PUT, "nab", 8, 8},
    {"insert that parts a prefix", "", "nxaaa nxaab nba", PUT, "nxb", 8, 8},
    {"insert into a full node", "", "na nb nc nd ne nf ng nh ni nj nk nl", PUT, "nm", 8, 8},
    {"update of a word", "", "naa nba", PUT, "naa", 8, 8},
    {"update in place", "", "naa nba", PUT, "naa", 200, 190},
    {"update in place, one unit", "update=lock", "naa nba", PUT, "naa", 16, 16},
    {"update out of place", "update=rcu", "naa nba", PUT, "naa", 200, 190},
    {"update to another length", "", "naa nba", PUT, "naa", 8, 300},
    {"delete", "", "naa nba nca", REMOVE, "nba", 8, 8},
    {"delete with its slot", "value_size=8", "naa nba nca nda nea nfa", REMOVE, "nba", 8, 8},
    {"delete with its slot and a merge", "value_size=8,merge=eager", "naa nba", REMOVE, "nba", 8, 8},
    {"insert without path compression", "path_compression=off", "nxaaa", PUT, "nxaab", 8, 8},
    {"insert into a list of tombstones", "", "na nb nc nd ne nf ng nh ni nj nk nl -nb -nc -nd -ne -nf", PUT, "nm", 8,
     8},
    {"delete with a merge", "merge=eager", "naa nba", REMOVE, "naa", 8, 8},
    {"delete of all below", "merge=eager", "nxaa nxba nyaa -nxaa -nyaa", REMOVE, "nxba", 8, 8},
    {"delete in a node of three", "merge=eager", "nxa nxb nya -nxa", REMOVE, "nxb", 200, 200},
};


static void fill(char *value, size_t bytes, char letter) {
    memset(value, letter, bytes);
}


static int prepare(far_session *s, far_index *index, void *ctx) {
    const story *st = ctx;
    char copy[128], *next = copy, *key, value[400];
    snprintf(copy, sizeof(copy), "%s", st->present);
    fill(value, st->before, 'b');
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
    fill(value, st->after, 'a');
    if (st->change == REMOVE) {
        size_t length;
        int result = far_delete(s, index, st->key, strlen(st->key));
        for (unsigned i = 0; i < 12 && result == 0; i++) /* the tidying up runs beside these */
            far_get(s, index, "q", 1, value, sizeof(value), &length);
        return result;
    }
    return far_put(s, index, st->key, strlen(st->key), value, st->after);
}


/* 1: as before, 2: as after, 4: absent; -1: something else. */
static int looks(far_session *s, far_index *index, const story *st, const char *key) {
    char value[400], wanted[400];
    size_t length;
    int result = far_get(s, index, key, strlen(key), value, sizeof(value), &length);
    if (result == FAR_ERR_NOT_FOUND)
        return 4;
    fill(wanted, st->before, 'b');
    if (result == 0 && length == st->before && memcmp(value, wanted, length) == 0)
        return 1;
    fill(wanted, st->after, 'a');
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
    char copy[128], *next = copy, *key, value[400];
    snprintf(copy, sizeof(copy), "%s", st->present);
    int seen = looks(s, index, st, st->key);
    int may = (was_there(st, st->key) ? 1 : 4) | (st->change == REMOVE ? 4 : 2);
    if (seen < 0 || !(seen & may) || looks(s, index, st, st->key) != seen)
        return -1;
    while ((key = strsep(&next, " ")))
        if (*key != '-' && strcmp(key, st->key) != 0 && looks(s, index, st, key) != (was_there(st, key) ? 1 : 4))
            return -1;
    fill(value, st->before, 'b');
    if (far_put(s, index, st->key, strlen(st->key), value, st->before) < 0 || looks(s, index, st, st->key) != 1)
        return -1;
    if (far_put(s, index, "nzz", 3, value, st->before) < 0 || far_delete(s, index, st->key, strlen(st->key)) < 0)
        return -1;
    return looks(s, index, st, st->key) == 4 ? 0 : -1;
}


static void every_death_is_survived(void **state) {
    (void)state;
    static const char *const sims[] = {"atomic_bytes=64", "atomic_bytes=8"};
    for (size_t i = 0; i < sizeof(stories) / sizeof(stories[0]); i++)
        for (size_t k = 0; k < 2; k++) {
            far_explore e = {.kind = "smart",
                             .options = stories[i].options,
                             .sim = sims[k],
                             .prepare = prepare,
                             .victim = victim,
                             .survive = survive,
                             .every_unit = true,
                             .sweep = true,
                             .ctx = (void *)&stories[i],
                             .out = stderr};
            far_explore_result result;
            assert_int_equal(far_explore_run(&e, &result), 0);
            print_message("%s, %s: %u verbs, %u deaths\n", stories[i].name, sims[k], (unsigned)result.verbs,
                          (unsigned)result.cuts);
            assert_int_equal(result.problems, 0);
            assert_true(result.verbs >= 2);
        }
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_death_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
