/* Tests of false free bits: objects in use that the free bitmap marks as free, so that their owner would allocate them
 * again. The tests prove that check reports such an object, that a repair clears the bit, and that nothing is lost.
 * They do so for every sort of object of every kind and of the pool itself, in a closed pool and in a pool in use. They
 * prove too that check reports an object for which no page word names a slab. */
#include "index/chime/chime.h"
#include "index/dart/dart.h"
#include "index/dolphin/dolphin.h"
#include "index/shard/shard.h"
#include "index/smart/smart.h"
#include "index/toy/toy.h"
#include "pool/alloc/blocks.h"
#include "scene.h"
#include "task/session.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

#define OBJECTS 3 /* number of objects tested of each sort: the first one, a middle one, and the last one */

typedef struct user { /* A client of the pool. */
    const scene *scene;
    far_pool *pool;
    far_session *session;
    far_index *index;
    char said[256]; /* text of the first problem that the last check has reported */
} user;


static void open_session(user *u) {
    assert_int_equal(far_pool_open(RIG_URI, &rig_options, &u->pool), 0);
    assert_int_equal(far_session_open(u->pool, &u->session), 0);
}


static void open_index(user *u) {
    open_session(u);
    assert_int_equal(far_index_open(u->session, "index", &u->index), 0);
}


static void close_all(user *u) {
    far_index_close(u->index);
    far_session_close(u->session);
    far_pool_close(u->pool);
}


static int save_first_problem(void *ctx, const char *what) {
    user *u = ctx;
    if (u->said[0] == 0)
        snprintf(u->said, sizeof(u->said), "%s", what);
    return 0;
}


static int run_check(user *u, int repair) {
    u->said[0] = 0;
    return far_pool_check(u->session, repair, save_first_problem, u);
}


/* Inserts new keys, so many that any free object would be allocated. */
static void insert_more(user *u, far_index *index) {
    char key[SCENE_KEY_BYTES], value[SCENE_VALUE_MAX];
    for (unsigned i = SCENE_KEYS; i < SCENE_NUMBERS; i++) {
        size_t key_bytes = scene_key(u->scene, i, key), bytes = scene_value(u->scene, i, 0, value);
        assert_int_equal(far_put(u->session, index, key, key_bytes, value, bytes), 0);
    }
}


/* Creates another index and inserts keys there. Afterwards the handle owns blocks, and the objects of the first index
 * are unchanged. */
static void insert_into_another_index(user *u) {
    far_index *more;
    assert_int_equal(far_index_create(u->session, "more", u->scene->kind, u->scene->options, &more), 0);
    insert_more(u, more);
    far_index_close(more);
}


static void assert_keys_are_present(user *u) {
    char key[SCENE_KEY_BYTES], right[SCENE_VALUE_MAX], value[FAR_VALUE_MAX];
    for (unsigned i = 0; i < SCENE_KEYS; i++) {
        size_t key_bytes = scene_key(u->scene, i, key), bytes = scene_value(u->scene, i, 0, right), found = 0;
        int err = far_get(u->session, u->index, key, key_bytes, value, sizeof(value), &found);
        assert_int_equal(err, scene_is_deleted(i) ? FAR_ERR_NOT_FOUND : 0);
        if (err == 0 && (found != bytes || memcmp(value, right, bytes) != 0))
            fail_msg("%s: key %u has another value", u->scene->kind, i);
    }
}


static char *memory_at(far_addr addr) {
    return rig_memory(far_addr_node(addr)) + far_addr_offset(addr);
}


/* Marks the object as free in the bitmap. Returns false if its block has no slabs. */
static bool set_free_bit(const far_geometry *g, far_addr addr) {
    far_block_id id = {0, 0};
    uint64_t word;
    assert_true(far_block_of(g, addr, &id));
    memcpy(&word, memory_at(far_block_entry(g, id)), 8);
    far_block_kind kind = far_block_unpack(word).kind;
    if (kind != FAR_BLOCK_OWNED && kind != FAR_BLOCK_ORPHAN)
        return false;
    uint64_t granule = far_block_offset(g, addr) / FAR_GRANULE, bit = 1ull << granule % FAR_WORD_GRANULES;
    char *bits = memory_at(far_block_bitmap(g, id) + granule / FAR_WORD_GRANULES * 8);
    memcpy(&word, bits, 8);
    assert_true((word & bit) == 0);
    word |= bit;
    memcpy(bits, &word, 8);
    return true;
}


static void assert_free_bit_is_repaired(const scene *s, const char *sort, far_addr addr, bool in_use) {
    user u = {.scene = s};
    char where[32];
    rig_seed(addr);
    rig_restore_pool(s->image);
    rig_limit_verbs(UINT64_MAX);
    if (in_use) {
        open_index(&u);
        insert_into_another_index(&u);
    }
    if (set_free_bit(&s->geometry, addr)) {
        if (!in_use)
            open_index(&u);
        snprintf(where, sizeof(where), "at %#llx is in use", (unsigned long long)addr);
        if (run_check(&u, 0) != 1 || !strstr(u.said, where))
            fail_msg("%s: %s at %#llx is marked free, and check reports '%s'", s->kind, sort, (unsigned long long)addr,
                     u.said);
        assert_int_equal(run_check(&u, 1), 0);
        assert_int_equal(run_check(&u, 0), 0);
        insert_more(&u, u.index);
        assert_keys_are_present(&u);
        close_all(&u);
        u = (user){.scene = s};
        open_index(&u);
        assert_int_equal(run_check(&u, 0), 0);
        assert_keys_are_present(&u);
        close_all(&u);
    } else if (in_use) {
        close_all(&u);
    }
}


/* Clears the page words of the object's slab. Returns false if its block has no slabs. */
static bool clear_page_words(const far_geometry *g, far_addr addr) {
    far_block_id id = {0, 0};
    uint64_t word = 0;
    assert_true(far_block_of(g, addr, &id));
    for (int page = (int)(far_block_offset(g, addr) / g->page_bytes); page >= 0 && word == 0; page--) {
        memcpy(&word, memory_at(far_block_page(g, id, (unsigned)page)), 8);
        memset(memory_at(far_block_page(g, id, (unsigned)page)), 0, 8);
    }
    return word != 0;
}


/* Proves that check reports an object whose pages belong to no slab; the owner of the block would use these pages for
 * other objects. */
static void assert_missing_slab_is_reported(const scene *s, const char *sort, far_addr addr, bool in_use) {
    user u = {.scene = s};
    rig_seed(addr);
    rig_restore_pool(s->image);
    if (in_use)
        open_index(&u);
    bool forgotten = clear_page_words(&s->geometry, addr);
    if (!in_use)
        open_session(&u); /* The session opens no index, because that would allocate memory. */
    if (forgotten && (run_check(&u, 0) < 1 || run_check(&u, 1) < 1))
        fail_msg("%s: %s at %#llx is in no slab, and check reports no problem", s->kind, sort,
                 (unsigned long long)addr);
    close_all(&u);
}


static unsigned check_each_sort(const scene *s) {
    unsigned sorts = 0;
    for (size_t i = 0; i < s->place_count; i++) {
        const place *p = &s->places[i];
        if (!strstr(p->name, " type ") && strcmp(p->name, "catalog") != 0 && strcmp(p->name, "record") != 0)
            continue;
        sorts++;
        /* The catalog is not tested in use, because creating another index replaces the catalog. */
        bool can_be_in_use = strcmp(p->name, "catalog") != 0;
        for (unsigned k = 0; k < OBJECTS; k++)
            for (unsigned in_use = 0; in_use < 1u + can_be_in_use; in_use++)
                assert_free_bit_is_repaired(s, p->name, p->objects[k * (p->count - 1) / (OBJECTS - 1)].addr, in_use);
        for (unsigned in_use = 0; in_use < 2; in_use++)
            assert_missing_slab_is_reported(s, p->name, p->objects[0].addr, in_use);
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


TEST(objects_in_use_are_not_free) {
    for (size_t i = 0; i < sizeof(pools) / sizeof(pools[0]); i++) {
        static scene s;
        scene_make(&s, pools[i].kind, pools[i].options, false, 1);
        /* There are at least two sorts of the pool, the root of the index, and one sort below the root. */
        assert_true(check_each_sort(&s) >= 4);
        scene_free(&s);
    }
}


/* ---- Walks report objects ---- */

typedef struct telling {
    far_walk walk; /* This member must be the first one, because assert_pin_is_held casts the pointer to it. */
    far_task *task;
    far_index *index;
    unsigned pinned;
} telling;


/* Returns whether objects of this type exist as long as their index is listed, such as the root and objects that are
 * created with it. They may be reported without a pin. */
static bool object_lasts_as_long_as_index(const char *kind, unsigned type) {
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


static int assert_pin_is_held(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    telling *x = (telling *)walk;
    (void)addr, (void)size;
    if (x->task->pin.epoch == 0 && !object_lasts_as_long_as_index(index->kind->name, type))
        fail_msg("%s reports an object of type %u without a pin", index->kind->name, type);
    x->pinned += x->task->pin.epoch != 0;
    return 0;
}


static int run_walk(far_task *t, void *arg) {
    telling *x = arg;
    x->task = t;
    return x->index->kind->walk(t, x->index, &x->walk);
}


/* Proves that a walk reports an object only under the pin under which it has read it. After the pin is dropped the
 * object may be free, and its free bit would be correct. */
TEST(a_walk_reports_objects_under_a_pin) {
    for (size_t i = 0; i < sizeof(pools) / sizeof(pools[0]); i++) {
        static scene s;
        user u = {.scene = &s};
        scene_make(&s, pools[i].kind, pools[i].options, false, 1);
        rig_restore_pool(s.image);
        open_index(&u);
        insert_more(&u, u.index);
        telling x = {.walk = {.object = assert_pin_is_held}, .index = u.index};
        assert_int_equal(far_session_call(u.session, FAR_STATS_OTHER, false, run_walk, &x), 0);
        assert_true(x.pinned > 0);
        close_all(&u);
        scene_free(&s);
    }
}


TEST_GROUP(rig_start, rig_end);
