/* An object that is in use, and home by its bit in the free bitmap: its owner would hand it out again. Check names it, a repair
 * takes the bit away, and nothing is lost; for every sort of object of every kind, and for those of the pool itself; in a pool
 * that is closed, and in one that is in use. So does check name an object whose slab the page words do not know. */
#include "index/chime/chime.h"
#include "index/dart/dart.h"
#include "index/dolphin/dolphin.h"
#include "index/shard/shard.h"
#include "index/smart/smart.h"
#include "index/toy/toy.h"
#include "pool/blocks.h"
#include "scene.h"
#include "task/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OBJECTS 3 /* of each sort: the first, one in the middle, the last */

typedef struct user { /* of a pool */
    const scene *scene;
    far_pool *pool;
    far_session *session;
    far_index *index;
    char said[256]; /* by the last check: its first problem */
} user;


static void begin_session(user *u) {
    assert_int_equal(far_pool_open(RIG_URI, &rig_options, &u->pool), 0);
    assert_int_equal(far_session_open(u->pool, &u->session), 0);
}


static void begin(user *u) {
    begin_session(u);
    assert_int_equal(far_index_open(u->session, "index", &u->index), 0);
}


static void end(user *u) {
    far_index_close(u->index);
    far_session_close(u->session);
    far_pool_close(u->pool);
}


static int keep_first(void *ctx, const char *what) {
    user *u = ctx;
    if (u->said[0] == 0)
        snprintf(u->said, sizeof(u->said), "%s", what);
    return 0;
}


static int check(user *u, int repair) {
    u->said[0] = 0;
    return far_pool_check(u->session, repair, keep_first, u);
}


/* New keys: whatever is free is used. */
static void insert_more(user *u, far_index *index) {
    char key[SCENE_KEY_BYTES], value[SCENE_VALUE_MAX];
    for (unsigned i = SCENE_KEYS; i < SCENE_NUMBERS; i++) {
        size_t key_bytes = scene_key(u->scene, i, key), bytes = scene_value(u->scene, i, 0, value);
        assert_int_equal(far_put(u->session, index, key, key_bytes, value, bytes), 0);
    }
}


/* The handle has blocks then, and the objects of the index are as they were. */
static void insert_elsewhere(user *u) {
    far_index *more;
    assert_int_equal(far_index_create(u->session, "more", u->scene->kind, u->scene->options, &more), 0);
    insert_more(u, more);
    far_index_close(more);
}


static void all_keys_are_there(user *u) {
    char key[SCENE_KEY_BYTES], right[SCENE_VALUE_MAX], value[FAR_VALUE_MAX];
    for (unsigned i = 0; i < SCENE_KEYS; i++) {
        size_t key_bytes = scene_key(u->scene, i, key), bytes = scene_value(u->scene, i, 0, right), found = 0;
        int err = far_get(u->session, u->index, key, key_bytes, value, sizeof(value), &found);
        assert_int_equal(err, scene_is_deleted(i) ? FAR_ERR_NOT_FOUND : 0);
        if (err == 0 && (found != bytes || memcmp(value, right, bytes) != 0))
            fail_msg("%s: key %u has another value", u->scene->kind, i);
    }
}


static char *at(far_addr addr) {
    return rig_memory(far_addr_node(addr)) + far_addr_offset(addr);
}


/* False: it is a run of blocks, which has no bit. */
static bool say_free(const far_geometry *g, far_addr addr) {
    far_block_id id = {0, 0};
    uint64_t word;
    assert_true(far_block_of(g, addr, &id));
    memcpy(&word, at(far_block_entry(g, id)), 8);
    far_block_kind kind = far_block_unpack(word).kind;
    if (kind != FAR_BLOCK_OWNED && kind != FAR_BLOCK_ORPHAN)
        return false;
    uint64_t granule = far_block_inner(g, addr) / FAR_GRANULE, bit = 1ull << granule % FAR_WORD_GRANULES;
    char *bits = at(far_block_bitmap(g, id) + granule / FAR_WORD_GRANULES * 8);
    memcpy(&word, bits, 8);
    assert_true((word & bit) == 0);
    word |= bit;
    memcpy(bits, &word, 8);
    return true;
}


static void named_and_put_right(const scene *s, const char *sort, far_addr addr, bool in_use) {
    user u = {.scene = s};
    char where[32];
    rig_seed(addr);
    rig_restore(s->image);
    rig_allow(UINT64_MAX);
    if (in_use) {
        begin(&u);
        insert_elsewhere(&u);
    }
    if (say_free(&s->geometry, addr)) {
        if (!in_use)
            begin(&u);
        snprintf(where, sizeof(where), "at %#llx in use", (unsigned long long)addr);
        if (check(&u, 0) != 1 || !strstr(u.said, where))
            fail_msg("%s: %s at %#llx is said to be free, and check says '%s'", s->kind, sort, (unsigned long long)addr,
                     u.said);
        assert_int_equal(check(&u, 1), 0);
        assert_int_equal(check(&u, 0), 0);
        insert_more(&u, u.index);
        all_keys_are_there(&u);
        end(&u);
        u = (user){.scene = s};
        begin(&u);
        assert_int_equal(check(&u, 0), 0);
        all_keys_are_there(&u);
        end(&u);
    } else if (in_use) {
        end(&u);
    }
}


/* The page word of its slab. False: it is a run of blocks. */
static bool forget_slab(const far_geometry *g, far_addr addr) {
    far_block_id id = {0, 0};
    uint64_t word = 0;
    assert_true(far_block_of(g, addr, &id));
    for (int page = (int)(far_block_inner(g, addr) / g->page_bytes); page >= 0 && word == 0; page--) {
        memcpy(&word, at(far_block_page(g, id, (unsigned)page)), 8);
        memset(at(far_block_page(g, id, (unsigned)page)), 0, 8);
    }
    return word != 0;
}


/* ... and whoever has the block would cut other objects from those pages. */
static void named_in_no_slab(const scene *s, const char *sort, far_addr addr, bool in_use) {
    user u = {.scene = s};
    rig_seed(addr);
    rig_restore(s->image);
    if (in_use)
        begin(&u);
    bool forgotten = forget_slab(&s->geometry, addr);
    if (!in_use)
        begin_session(&u); /* who opens the index needs memory */
    if (forgotten && (check(&u, 0) < 1 || check(&u, 1) < 1))
        fail_msg("%s: %s at %#llx is in no slab, and check is content", s->kind, sort, (unsigned long long)addr);
    end(&u);
}


static unsigned each_sort(const scene *s) {
    unsigned sorts = 0;
    for (size_t i = 0; i < s->place_count; i++) {
        const place *p = &s->places[i];
        if (!strstr(p->name, " type ") && strcmp(p->name, "catalog") != 0 && strcmp(p->name, "record") != 0)
            continue;
        sorts++;
        bool stays = strcmp(p->name, "catalog") != 0; /* another index needs another one */
        for (unsigned k = 0; k < OBJECTS; k++)
            for (unsigned in_use = 0; in_use < 1u + stays; in_use++)
                named_and_put_right(s, p->name, p->objects[k * (p->count - 1) / (OBJECTS - 1)].addr, in_use);
        for (unsigned in_use = 0; in_use < 2; in_use++)
            named_in_no_slab(s, p->name, p->objects[0].addr, in_use);
    }
    return sorts;
}


static const struct {
    const char *kind, *options;
} pools[] = {
    {"chime", ""},
    {"chime", "key_size=8,value_size=8"},
    {"dart", ""},
    {"dolphin", ""},
    {"smart", ""},
    {"shard", "partitions=2"},
    {"toy", ""},
    {"dolphin", "key_size=8,value_size=8"},
    {"shard", "partitions=1,bits=10,slots=1,l2_slots=1,load=95,key_size=8,value_size=8"},
};


static void what_is_in_use_is_not_free(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(pools) / sizeof(pools[0]); i++) {
        static scene s;
        scene_make(&s, pools[i].kind, pools[i].options, false, 1);
        assert_true(each_sort(&s) >= 4); /* the pool's two, a root, and what lies below it */
        scene_free(&s);
    }
}


/* ---- Who tells of objects ---- */

typedef struct telling {
    far_walk walk; /* first */
    far_task *task;
    far_index *index;
    unsigned pinned;
} telling;


/* A root, and what is made with it, is there as long as its index is listed. */
static bool stays(const char *kind, unsigned type) {
    static const struct {
        const char *kind;
        unsigned type;
    } all[] = {
        {"chime", CHIME_TYPE_ROOT}, {"dart", DART_TYPE_SUPER},      {"dart", DART_TYPE_EST_DIRECTORY},
        {"dart", DART_TYPE_LOCKS},  {"dolphin", DOLPHIN_TYPE_ROOT}, {"shard", SHARD_TYPE_ROOT},
        {"shard", SHARD_TYPE_PCB},  {"smart", SMART_TYPE_ROOT},     {"smart", SMART_TYPE_STRIPE},
        {"toy", TOY_TYPE_ROOT},     {"toy", TOY_TYPE_STRIPE},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strcmp(all[i].kind, kind) == 0 && all[i].type == type)
            return true;
    return false;
}


static int note_pin(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    telling *x = (telling *)walk;
    (void)addr, (void)size;
    if (x->task->pin.epoch == 0 && !stays(index->kind->name, type))
        fail_msg("%s tells of an object of type %u without a pin", index->kind->name, type);
    x->pinned += x->task->pin.epoch != 0;
    return 0;
}


static int run_walk(far_task *t, void *arg) {
    telling *x = arg;
    x->task = t;
    return x->index->kind->walk(t, x->index, &x->walk);
}


/* An object that is told of when the pin is gone, under which it was seen, may be free by then, and its bit right. */
static void who_tells_of_an_object_has_a_pin(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(pools) / sizeof(pools[0]); i++) {
        static scene s;
        user u = {.scene = &s};
        scene_make(&s, pools[i].kind, pools[i].options, false, 1);
        rig_restore(s.image);
        begin(&u);
        insert_more(&u, u.index);
        telling x = {.walk = {.object = note_pin}, .index = u.index};
        assert_int_equal(far_session_call(u.session, FAR_STATS_OTHER, false, run_walk, &x), 0);
        assert_true(x.pinned > 0);
        end(&u);
        scene_free(&s);
    }
}


int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_in_use_is_not_free),
                                       cmocka_unit_test(who_tells_of_an_object_has_a_pin)};
    rig_start();
    int failed = cmocka_run_group_tests_name("false homes", tests, NULL, NULL);
    rig_end();
    return failed;
}
