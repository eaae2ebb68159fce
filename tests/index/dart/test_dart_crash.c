/* Client failures in the writes of DART. A client fails at every verb, and after every tearing granule of every WRITE,
 * of each kind of write and of the background work that follows. The tests prove that each completed operation took
 * effect, nothing else has changed, the other clients can use every key, and a collection leaves no leaked byte. */
#include "test.h"
#include "verify/explore.h"

#include <stdio.h>
#include <string.h>

enum { KEYS_MAX = 20 };

typedef struct scenario {
    const char *name, *options;
    far_op_kind kind;
    const char *key;            /* key of the operation of the client that fails */
    const char *keys[KEYS_MAX]; /* keys that exist before that operation; NULL-terminated */
    const char *deleted[4];     /* existing keys that are deleted before that operation */
} scenario;


static int prepare(far_session *s, far_index *index, void *ctx) {
    const scenario *st = ctx;
    for (unsigned i = 0; i < KEYS_MAX && st->keys[i]; i++)
        if (far_insert(s, index, st->keys[i], strlen(st->keys[i]), "old", 3) < 0)
            return -1;
    for (unsigned i = 0; i < 4 && st->deleted[i]; i++)
        if (far_delete(s, index, st->deleted[i], strlen(st->deleted[i])) < 0)
            return -1;
    return 0;
}


static int victim(far_session *s, far_index *index, void *ctx) {
    const scenario *st = ctx;
    size_t length = strlen(st->key);
    char byte;
    int result;
    if (st->kind == FAR_OP_INSERT)
        result = far_insert(s, index, st->key, length, "new value", 9);
    else if (st->kind == FAR_OP_DELETE)
        result = far_delete(s, index, st->key, length);
    else
        result = far_update(s, index, st->key, length, "new value", 9);
    for (unsigned i = 0; i < 16; i++) /* the background work runs in these calls, so that the client fails there, too */
        far_get(s, index, "~", 1, &byte, 1, NULL);
    return result;
}


static bool was_deleted(const scenario *st, const char *key) {
    for (unsigned i = 0; i < 4 && st->deleted[i]; i++)
        if (strcmp(st->deleted[i], key) == 0)
            return true;
    return false;
}


/* True if the key has the value `want` (NULL: the key is absent). */
static bool has_value(far_session *s, far_index *index, const char *key, const char *want) {
    char value[16];
    size_t length;
    int result = far_get(s, index, key, strlen(key), value, sizeof(value), &length);
    return want ? result == 0 && length == strlen(want) && memcmp(value, want, length) == 0
                : result == FAR_ERR_NOT_FOUND;
}


static int survive(far_session *s, far_index *index, void *ctx) {
    const scenario *st = ctx;
    const char *before = st->kind == FAR_OP_INSERT ? NULL : "old",
               *after = st->kind == FAR_OP_DELETE ? NULL : "new value";
    if (!has_value(s, index, st->key, before) && !has_value(s, index, st->key, after))
        return -1;
    for (unsigned i = 0; i < KEYS_MAX && st->keys[i]; i++)
        if (strcmp(st->keys[i], st->key) != 0 &&
            !has_value(s, index, st->keys[i], was_deleted(st, st->keys[i]) ? NULL : "old"))
            return -1;
    if (far_put(s, index, st->key, strlen(st->key), "then", 4) < 0 || !has_value(s, index, st->key, "then"))
        return -1;
    for (unsigned i = 0; i < KEYS_MAX && st->keys[i]; i++)
        if (far_put(s, index, st->keys[i], strlen(st->keys[i]), "later", 5) < 0 ||
            !has_value(s, index, st->keys[i], "later"))
            return -1;
    for (unsigned i = 0; i < KEYS_MAX && st->keys[i]; i++)
        if (far_delete(s, index, st->keys[i], strlen(st->keys[i])) < 0 || !has_value(s, index, st->keys[i], NULL))
            return -1;
    return 0;
}


static const scenario scenarios[] = {
    {"insert into a free slot", "", FAR_OP_INSERT, "px", {"pa", "pb"}, {0}},
    {"insert into the slot of a deleted key", "", FAR_OP_INSERT, "pa", {"pa", "pb", "pc"}, {"pa"}},
    {"leaf split", "", FAR_OP_INSERT, "pass", {"path"}, {0}},
    {"split of a path", "", FAR_OP_INSERT, "long_way", {"long_path_a", "long_path_b"}, {0}},
    {"split that leaves a chain of nodes", "max_skip=2", FAR_OP_INSERT, "long_path_xyz", {"long_path_a"}, {0}},
    {"key that is the beginning of another", "", FAR_OP_INSERT, "pa", {"path", "q"}, {0}},
    {"insert into a full node", "", FAR_OP_INSERT, "ph", {"pa", "pb", "pc", "pd", "pe", "pf", "pg"}, {0}},
    {"insert into a full node without rider and speculation",
     "rider=0,spec_write=0,colocate=0",
     FAR_OP_INSERT,
     "ph",
     {"pa", "pb", "pc", "pd", "pe", "pf", "pg"},
     {0}},
    {"insert into a node full of deleted keys",
     "",
     FAR_OP_INSERT,
     "ph",
     {"pa", "pb", "pc", "pd", "pe", "pf", "pg"},
     {"pb", "pc", "pd"}},
    {"insert into a full bucket of many",
     "bucket=8",
     FAR_OP_INSERT,
     "pp",
     {"p\x10", "p\x12", "p\x14", "p\x16", "p\x18", "p\x1a", "p\x1c", "p\x1e", "pq", "ps"},
     {0}},
    {"update", "", FAR_OP_UPDATE, "pa", {"pa", "pb"}, {0}},
    {"delete", "", FAR_OP_DELETE, "pa", {"pa", "pb", "pc"}, {0}},
    {"delete that merges a node into its parent", "", FAR_OP_DELETE, "pa", {"pa", "pb", "q"}, {0}},
    {"delete that merges an inner child", "", FAR_OP_DELETE, "pa", {"pa", "pxa", "pxb"}, {0}},
    {"delete that removes nodes up to the root", "shrink=1", FAR_OP_DELETE, "pxb", {"pa", "pxa", "pxb"}, {"pa"}},
    {"update under a lock", "lock_free=0", FAR_OP_UPDATE, "pa", {"pa", "pb"}, {0}},
};


static void explore_all(const char *sim, const char *est) {
    for (unsigned i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        scenario st = scenarios[i];
        char options[128];
        snprintf(options, sizeof(options), "%s%s%s", est, *st.options ? "," : "", st.options);
        far_explore e = {.kind = "dart",
                         .options = options,
                         .sim = sim,
                         .prepare = prepare,
                         .victim = victim,
                         .survive = survive,
                         .every_unit = true,
                         .collect = true,
                         .ctx = &st,
                         .out = stderr};
        far_explore_result result;
        assert_int_equal(far_explore_run(&e, &result), 0);
        if (result.problems)
            fail_msg("%s (%s, %s): %llu problems", st.name, options, sim, (unsigned long long)result.problems);
        assert_true(result.cuts >= 3);
    }
}


/* Runs all scenarios without the skip table. */
TEST(failure_at_every_verb_of_every_write) {
    explore_all("memory_nodes=2", "est=0");
}


/* Runs all scenarios on a fabric without masked CAS, on which only 8 bytes are written atomically. */
TEST(failure_at_every_verb_without_masked_cas_and_small_units) {
    explore_all("memory_nodes=2,masked_cas=off,atomic_bytes=8", "est=0");
}


/* Runs all scenarios with the skip table. */
TEST(failure_at_every_verb_with_the_skip_table) {
    explore_all("memory_nodes=2", "est=1,directory_bits=2");
}
