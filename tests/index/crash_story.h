/* Stories of death: some keys are there, one of them is changed by a client that dies on the way. What others must find
 * then is the same for every kind. Values have the letter b before the change, a after it. */
#ifndef TESTS_INDEX_CRASH_STORY_H
#define TESTS_INDEX_CRASH_STORY_H

#include "verify/explore.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define STORY_VALUE_MAX 400

typedef enum { PUT, REMOVE } change;

typedef struct story {
    const char *name, *options, *present; /* keys that are there, with a space between; -key: deleted again */
    change change;
    const char *key;
    size_t before, after; /* bytes of values: of all keys, of the changed one */
    unsigned verbs;       /* at least so many: else it is not what it is called */
} story;


static inline int story_prepare(far_session *s, far_index *index, void *ctx) {
    const story *st = ctx;
    char copy[256], *next = copy, *key, value[STORY_VALUE_MAX];
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


static inline int story_change(far_session *s, far_index *index, void *ctx) {
    const story *st = ctx;
    char value[STORY_VALUE_MAX];
    memset(value, 'a', st->after);
    return st->change == REMOVE ? far_delete(s, index, st->key, strlen(st->key))
                                : far_put(s, index, st->key, strlen(st->key), value, st->after);
}


/* 1: as before, 2: as after, 4: absent; -1: something else. */
static inline int story_looks(far_session *s, far_index *index, const story *st, const char *key) {
    char value[STORY_VALUE_MAX], wanted[STORY_VALUE_MAX];
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


static inline bool story_was_there(const story *st, const char *key) {
    size_t length = strlen(key);
    bool there = false;
    for (const char *at = st->present; (at = strstr(at, key)); at++)
        if ((at == st->present || at[-1] == ' ' || at[-1] == '-') && (at[length] == 0 || at[length] == ' '))
            there = at == st->present || at[-1] != '-';
    return there;
}


/* The change is done or not, all else is as it was, and the key can be written. */
static inline bool story_is_well(far_session *s, far_index *index, const story *st) {
    char copy[256], *next = copy, *key, value[STORY_VALUE_MAX];
    snprintf(copy, sizeof(copy), "%s", st->present);
    int seen = story_looks(s, index, st, st->key);
    int may = (story_was_there(st, st->key) ? 1 : 4) | (st->change == REMOVE ? 4 : 2);
    if (seen < 0 || !(seen & may) || story_looks(s, index, st, st->key) != seen)
        return false;
    while ((key = strsep(&next, " ")))
        if (*key != '-' && strcmp(key, st->key) != 0 &&
            story_looks(s, index, st, key) != (story_was_there(st, key) ? 1 : 4))
            return false;
    memset(value, 'b', st->before);
    return far_put(s, index, st->key, strlen(st->key), value, st->before) >= 0 &&
           story_looks(s, index, st, st->key) == 1;
}


static inline bool story_can_delete(far_session *s, far_index *index, const story *st) {
    return far_delete(s, index, st->key, strlen(st->key)) == 0 && story_looks(s, index, st, st->key) == 4;
}


static inline void story_explore(const story *st, far_explore *e) {
    far_explore_result result;
    e->options = st->options;
    e->prepare = story_prepare;
    e->sweep = true;
    e->ctx = (void *)st;
    e->out = stderr;
    assert_int_equal(far_explore_run(e, &result), 0);
    print_message("%s, %s: %u verbs, %u deaths\n", st->name, e->sim, (unsigned)result.verbs, (unsigned)result.cuts);
    assert_int_equal(result.problems, 0);
    assert_true(result.verbs >= st->verbs);
}

#endif
