/* Tests of far_index_salvage on damaged indexes. They prove that a salvage delivers every pair with an intact path,
 * although hundreds of other bytes of the index are damaged, and never a pair that was not written.
 *
 * test_salvage [--seeds FIRST..LAST] [--kind KIND]      with arguments, prints the numbers of each seed */
#include "client/op.h"
#include "damage_seeds.h"
#include "pool/alloc/blocks.h"
#include "pool/handle.h"
#include "task/session.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

#define URI           "local:2x16M?name=salvaged"
#define NODES         2
#define NODE_BYTES    (16u << 20)
#define PAIRS         5000
#define DAMAGED_BYTES 192
#define KEY_BYTES     40
#define VALUE_BYTES   64
/* Largest number of wrong bytes in one key or value; more would be an invented pair. A damaged value word of a dolphin
 * leaf may turn 8 bytes into a value. */
#define ADJACENT_DAMAGES 8

static damage_seeds seeds = {1, 3, NULL};
static bool verbose;

/* An index of PAIRS pairs, and the places of its objects. */
typedef struct library {
    const char *kind, *options;
    bool fixed;
    far_fabric *fabric; /* keeps the memory while no handle is open */
    char *image;
    object *objects;
    size_t object_count;
    uint64_t object_bytes;
} library;

typedef struct saved {
    const library *l;
    bool got[PAIRS];
    unsigned pairs, unknown, wrong, revived, skipped;
} saved;


/* ---- The pairs ---- */

static size_t make_key(const library *l, unsigned number, char key[KEY_BYTES]) {
    uint64_t mixed = (number + 1) * 0x9e3779b97f4a7c15ull;
    if (!l->fixed)
        return (size_t)snprintf(key, KEY_BYTES, "%s/%04x/%u", number % 3 ? "fruit" : "a tree with a long name",
                                (unsigned)(mixed >> 48), number);
    memcpy(key, &mixed, 8);
    return 8;
}


static size_t make_value(const library *l, unsigned number, char value[VALUE_BYTES]) {
    memset(value, (int)(number % 251), VALUE_BYTES);
    memcpy(value, &number, sizeof(number));
    return l->fixed ? 8 : 8 + number % 50;
}


/* Every tenth key is deleted after it was written, so its key stays in free memory. */
static bool is_deleted(unsigned number) {
    return number % 10 == 9;
}


/* Returns the number of the key, or PAIRS if no such key was written. */
static unsigned find_number(const library *l, const void *bytes, size_t length) {
    char key[KEY_BYTES], text[KEY_BYTES + 1] = "";
    unsigned number = PAIRS;
    if (l->fixed) {
        for (number = 0; number < PAIRS; number++)
            if (make_key(l, number, key) == length && memcmp(key, bytes, length) == 0)
                break;
        return number;
    }
    if (length > KEY_BYTES)
        return PAIRS;
    memcpy(text, bytes, length);
    const char *slash = strrchr(text, '/');
    number = slash ? (unsigned)strtoul(slash + 1, NULL, 10) : PAIRS;
    return number < PAIRS && make_key(l, number, key) == length && memcmp(key, bytes, length) == 0 ? number : PAIRS;
}


/* Returns the number of bytes in which the two strings differ, as far as both are present. */
static unsigned count_differences(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    unsigned differences = 0;
    for (size_t i = 0; i < a_bytes && i < b_bytes; i++)
        differences += ((const char *)a)[i] != ((const char *)b)[i];
    return differences;
}


/* Returns whether the key is a written key in which a damage has changed a few bytes. */
static bool was_written_apart_from_damage(const library *l, const void *key, size_t length) {
    char written[KEY_BYTES];
    for (unsigned i = 0; i < PAIRS; i++)
        /* the length of the key may be damaged, too */
        if (count_differences(written, make_key(l, i, written), key, length) <= ADJACENT_DAMAGES / 4)
            return true;
    return false;
}


/* ---- The index ---- */

typedef struct collecting {
    far_walk walk; /* must be the first member, because collect_object casts the pointer to it */
    far_index *index;
    library *l;
} collecting;


static void add_object(library *l, far_addr addr, uint64_t bytes) {
    l->objects = realloc(l->objects, (l->object_count + 1) * sizeof(object));
    assert_non_null(l->objects);
    l->objects[l->object_count++] = (object){addr, bytes};
    l->object_bytes += bytes;
}


/* The descriptor is left out, because without it the index cannot be opened at all. */
static int collect_object(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    collecting *c = (collecting *)walk;
    (void)type;
    if (index == c->index && addr != index->descriptor)
        add_object(c->l, addr, size);
    return 0;
}


static int run_walk(far_task *t, void *arg) {
    collecting *c = arg;
    return c->index->kind->walk(t, c->index, &c->walk);
}


/* Adds the page words that are in use, because a salvage depends on them. */
static void add_page_words(library *l, const far_geometry *g) {
    for (unsigned node = 0; node < NODES; node++)
        for (uint32_t block = 0; block < g->node[node].blocks; block++)
            for (unsigned page = 0; page < FAR_BLOCK_PAGES; page++) {
                far_addr at = far_block_page(g, (far_block_id){node, block}, page);
                uint64_t word;
                memcpy(&word, l->fabric->memory[node] + far_addr_offset(at), 8);
                if (word)
                    add_object(l, at, 8);
            }
}


/* Opens the index. In a pool with damaged page words an attempt may fail, because the handle adopts such a block; the
 * next attempt adopts another one. */
static int open_damaged_index(far_session *session, far_index **index) {
    int err = FAR_ERR_CORRUPT;
    for (unsigned tries = 0; tries < 16 && err == FAR_ERR_CORRUPT; tries++)
        err = far_index_open(session, "index", index);
    if (err < 0)
        print_error("%s\n", far_last_error());
    return err;
}


static void open_index(far_pool **pool, far_session **session, const library *l, bool copy, far_index **index) {
    const far_pool_options salvages = {.salvage = 1};
    assert_int_equal(far_pool_open(URI, copy ? &salvages : &rig_options, pool), 0);
    assert_int_equal(far_session_open(*pool, session), 0);
    if (l->image)
        assert_int_equal(open_damaged_index(*session, index), 0);
    else
        assert_int_equal(far_index_create(*session, "index", l->kind, l->options, index), 0);
}


static void close_index(far_pool *pool, far_session *session, far_index *index) {
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
}


static void fill_index(library *l, const char *kind, const char *options) {
    char key[KEY_BYTES], value[VALUE_BYTES];
    far_pool *pool;
    far_session *session;
    far_index *index;
    *l = (library){.kind = kind, .options = options, .fixed = *options != 0};
    assert_int_equal(far_fabric_open(URI, &l->fabric), 0);
    open_index(&pool, &session, l, false, &index);
    for (unsigned i = 0; i < PAIRS; i++) {
        size_t length = make_key(l, i, key);
        assert_int_equal(far_put(session, index, key, length, value, make_value(l, i, value)), 0);
    }
    for (unsigned i = 0; i < PAIRS; i++)
        if (is_deleted(i))
            assert_int_equal(far_delete(session, index, key, make_key(l, i, key)), 0);
    collecting c = {{.object = collect_object, .once = true}, index, l};
    assert_int_equal(far_session_call(session, FAR_STATS_OTHER, false, run_walk, &c), 0);
    far_geometry geometry = pool->geometry;
    close_index(pool, session, index);
    add_page_words(l, &geometry);
    l->image = malloc(NODES * (size_t)NODE_BYTES);
    assert_non_null(l->image);
    for (unsigned n = 0; n < NODES; n++)
        memcpy(l->image + n * (size_t)NODE_BYTES, l->fabric->memory[n], NODE_BYTES);
}


static void free_library(library *l) {
    l->fabric->ops->close(l->fabric);
    free(l->image);
    free(l->objects);
}


/* Restores the index, and overwrites DAMAGED_BYTES bytes of its objects and page words with random bytes. */
static void damage_index(const library *l, uint64_t seed) {
    far_random random;
    far_random_seed(&random, seed);
    rig_limit_verbs(UINT64_MAX); /* also resets the number of waits */
    for (unsigned n = 0; n < NODES; n++)
        memcpy(l->fabric->memory[n], l->image + n * (size_t)NODE_BYTES, NODE_BYTES);
    for (unsigned i = 0; i < DAMAGED_BYTES; i++) {
        uint64_t at = far_random_below(&random, l->object_bytes);
        size_t o = 0;
        while (at >= l->objects[o].bytes)
            at -= l->objects[o++].bytes;
        far_addr addr = l->objects[o].addr + at;
        l->fabric->memory[far_addr_node(addr)][far_addr_offset(addr)] = (char)far_random_next(&random);
    }
}


/* ---- Salvages ---- */

static int note_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    saved *s = ctx;
    char written[VALUE_BYTES];
    unsigned number = find_number(s->l, key, key_len);
    s->pairs++;
    if (number == PAIRS) {
        /* the slot of an inline shard index contains a part of the hash of the key, from which the key is computed */
        bool hashed = strcmp(s->l->kind, "shard") == 0 && s->l->fixed;
        s->unknown++;
        assert_true(hashed || was_written_apart_from_damage(s->l, key, key_len));
        return 0;
    }
    s->revived += is_deleted(number);
    assert_false(s->got[number]); /* no pair is delivered twice */
    s->got[number] = true;
    size_t length = make_value(s->l, number, written);
    unsigned damaged = count_differences(written, length, value, value_len);
    s->wrong += damaged > 0 || length != value_len; /* the length is a byte of the pair that may be damaged, too */
    assert_true(damaged <= ADJACENT_DAMAGES);       /* all other bytes are those that were written */
    return 0;
}


static void note_skipped(void *ctx, const void *key, size_t key_len, bool adjacent, const char *message) {
    saved *s = ctx;
    (void)key, (void)key_len, (void)adjacent;
    s->skipped++;
    assert_true(*message != 0);
}


/* Gets every key of the damaged index. Sets readable[i] if a get returns a pair. */
static unsigned get_all(const library *l, bool readable[PAIRS]) {
    char key[KEY_BYTES], value[FAR_VALUE_MAX];
    far_pool *pool;
    far_session *session;
    far_index *index;
    unsigned count = 0;
    open_index(&pool, &session, l, true, &index);
    for (unsigned i = 0; i < PAIRS; i++) {
        readable[i] =
            !is_deleted(i) && far_get(session, index, key, make_key(l, i, key), value, sizeof(value), NULL) == 0;
        count += readable[i];
    }
    close_index(pool, session, index);
    return count;
}


/* Returns whether the first get of a client in the damaged index reads the pair. Then the path of the key is intact. */
static bool is_readable_alone(const library *l, unsigned number, uint64_t seed) {
    char key[KEY_BYTES], value[FAR_VALUE_MAX];
    far_pool *pool;
    far_session *session;
    far_index *index;
    damage_index(l, seed);
    open_index(&pool, &session, l, true, &index);
    int err = far_get(session, index, key, make_key(l, number, key), value, sizeof(value), NULL);
    close_index(pool, session, index);
    return err == 0;
}


static void salvage(const library *l, saved *s) {
    far_pool *pool;
    far_session *session;
    far_index *index;
    *s = (saved){.l = l};
    open_index(&pool, &session, l, true, &index);
    int damaged = far_index_salvage(session, index, &(far_salvage){note_pair, note_skipped, s});
    assert_true(damaged >= 0);
    s->skipped += (unsigned)damaged;
    close_index(pool, session, index);
}


static void damage_and_salvage(const library *l, uint64_t seed) {
    static bool readable[PAIRS];
    static saved s;
    unsigned lost = 0;
    damage_index(l, seed);
    unsigned count = get_all(l, readable);
    damage_index(l, seed);
    salvage(l, &s);
    for (unsigned i = 0; i < PAIRS; i++)
        lost += readable[i] && !s.got[i] && is_readable_alone(l, i, seed);
    if (verbose)
        printf("%s %s seed %llu: %u readable, %u saved, %u lost, %u unknown, %u wrong, %u revived, %u skipped\n",
               l->kind, l->options, (unsigned long long)seed, count, s.pairs, lost, s.unknown, s.wrong, s.revived,
               s.skipped);
    assert_int_equal(lost, 0);
    assert_true(s.unknown + s.wrong < DAMAGED_BYTES);
    assert_true(s.revived <= 2); /* damage of the bit that shows that a slot is free revives the deleted key */
    assert_true(s.skipped + s.unknown + s.wrong > 0);
}


static void salvage_with_seeds(const char *kind, const char *options) {
    library l;
    fill_index(&l, kind, options);
    for (uint64_t seed = seeds.first; seed <= seeds.last; seed++)
        damage_and_salvage(&l, seed);
    free_library(&l);
}


TEST(a_salvage_delivers_every_readable_pair) {
    for (unsigned i = 0; far_index_kinds[i]; i++) {
        const char *kind = far_index_kinds[i]->name;
        if (seeds.kind && strcmp(seeds.kind, kind) != 0)
            continue;
        salvage_with_seeds(kind, "");
        salvage_with_seeds(kind, "key_size=8,value_size=8");
    }
}


TEST_ARGUMENTS(argc, argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        int taken = damage_seeds_argument(&seeds, argc - i, argv + i);
        i += taken > 0 ? taken - 1 : 0;
        verbose |= taken > 0;
    }
    return TEST_CONTINUE;
}


TEST_GROUP(rig_start, rig_end);
