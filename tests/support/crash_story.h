/* Stories for crash tests of the index kinds. In a story some keys are present, and a client fails while it changes one
 * of them. The crash explorer (verify/explore.h) lets the client fail after every verb of the change. Afterwards the
 * other clients must find a state that is the same for every kind: the change has taken effect or not, and all other
 * keys are unchanged. Values consist of the letter 'b' before the change and of 'a' after it. */
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
    /* keys present before the change, separated by spaces. A key written as "-key" was inserted and deleted again. */
    const char *name, *options, *present;
    change change;
    const char *key;
    /* lengths in bytes: `before` of all values before the change, `after` of the changed value after the change */
    size_t before, after;
    /* the change needs at least this many verbs; fewer mean that the story does not test what its name says */
    unsigned verbs;
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


/* Reads a key and returns its state: 1 if the key has its value from before the change, 2 if it has the value from
 * after the change, 4 if the key is absent, and -1 for anything else. */
static inline int story_state_of_key(far_session *s, far_index *index, const story *st, const char *key) {
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


/* Returns true if the change has taken effect completely or not at all, all other keys are unchanged, and the changed
 * key can be written. */
static inline bool story_outcome_is_valid(far_session *s, far_index *index, const story *st) {
    char copy[256], *next = copy, *key, value[STORY_VALUE_MAX];
    snprintf(copy, sizeof(copy), "%s", st->present);
    int seen = story_state_of_key(s, index, st, st->key);
    int may = (story_was_there(st, st->key) ? 1 : 4) | (st->change == REMOVE ? 4 : 2);
    if (seen < 0 || !(seen & may) || story_state_of_key(s, index, st, st->key) != seen)
        return false;
    while ((key = strsep(&next, " ")))
        if (*key != '-' && strcmp(key, st->key) != 0 &&
            story_state_of_key(s, index, st, key) != (story_was_there(st, key) ? 1 : 4))
            return false;
    memset(value, 'b', st->before);
    return far_put(s, index, st->key, strlen(st->key), value, st->before) >= 0 &&
           story_state_of_key(s, index, st, st->key) == 1;
}


static inline bool story_can_delete(far_session *s, far_index *index, const story *st) {
    return far_delete(s, index, st->key, strlen(st->key)) == 0 && story_state_of_key(s, index, st, st->key) == 4;
}


static inline void story_explore(const story *st, far_explore *e) {
    far_explore_result result;
    e->options = st->options;
    e->prepare = story_prepare;
    e->collect = true;
    e->ctx = (void *)st;
    e->out = stderr;
    assert_int_equal(far_explore_run(e, &result), 0);
    print_message("%s, %s: %u verbs, %u deaths\n", st->name, e->sim, (unsigned)result.verbs, (unsigned)result.cuts);
    assert_int_equal(result.problems, 0);
    assert_true(result.verbs >= st->verbs);
}

#endif
