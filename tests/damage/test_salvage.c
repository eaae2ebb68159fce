/* Tests of far_index_salvage on damaged indexes. They prove that a salvage delivers every pair with an intact path,
 * although hundreds of other bytes of the index are damaged, and never a pair that was not written.
 *
 * test_salvage [--seeds FIRST..LAST] [--kind KIND]      with arguments, prints the numbers of each seed */
#include "client/op.h"
#include "damage_seeds.h"
#include "index/smart/smart.h"
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
#define HEADER_BYTES  64 /* most bytes of an object before its value, which are a header and the key */

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
    far_addr damaged[DAMAGED_BYTES];
    char *damaged_image; /* the memory after the damage */
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


/* ---- Damaged pairs ----
 *
 * A pair that was not written is allowed only if damage has hit the bytes of this pair: then the damaged memory contains
 * the salvaged bytes in a place where the memory before the damage contained the written bytes. */

typedef bool (*matches_fn)(const library *l, const char *before, size_t length, void *ctx);


/* Calls `matches` for the memory before the damage in each place where the damaged memory contains these bytes, and
 * where a damaged byte is among them or in the header or the key before them. Returns whether one of the calls returns true. */
static bool find_damaged_bytes(const library *l, const void *bytes, size_t length, matches_fn matches, void *ctx) {
    for (unsigned i = 0; i < DAMAGED_BYTES; i++) {
        size_t node = far_addr_node(l->damaged[i]) * (size_t)NODE_BYTES, at = far_addr_offset(l->damaged[i]);
        size_t first = at < length ? 0 : at - length + 1, last = at + HEADER_BYTES;
        for (size_t place = first; place <= last && place + FAR_VALUE_MAX < NODE_BYTES; place++)
            if (memcmp(l->damaged_image + node + place, bytes, length) == 0 &&
                matches(l, l->image + node + place, length, ctx))
                return true;
    }
    return false;
}


static bool find_written_key(const library *l, const char *before, size_t length, void *number) {
    (void)length; /* the length of the key may be damaged, too */
    for (size_t i = l->fixed ? 8 : 1; i <= (l->fixed ? 8 : KEY_BYTES); i++)
        if ((*(unsigned *)number = find_number(l, before, i)) < PAIRS)
            return true;
    return false;
}


static void reverse(const char from[8], char to[8]) {
    for (unsigned i = 0; i < 8; i++)
        to[i] = from[7 - i];
}


static bool find_reversed_key(const library *l, const char *before, size_t length, void *number) {
    char key[8];
    (void)length;
    reverse(before, key);
    return (*(unsigned *)number = find_number(l, key, 8)) < PAIRS;
}


/* Returns whether the key differs from a written key in at most this number of bytes, as far as both are present. */
static bool resembles_written_key(const library *l, const char *key, size_t length, unsigned most) {
    char written[KEY_BYTES];
    for (unsigned i = 0; i < PAIRS; i++) {
        unsigned differences = 0;
        size_t written_length = make_key(l, i, written);
        for (size_t at = 0; at < length && at < written_length; at++)
            differences += key[at] != written[at];
        if (differences <= most)
            return true;
    }
    return false;
}


/* Returns whether the key is a written key that damage has changed. Sets *number to the number of the written key, or
 * to PAIRS if it is not known. */
static bool is_damaged_key(const library *l, const char *key, size_t length, unsigned *number) {
    char reversed[8];
    *number = PAIRS;
    if (find_damaged_bytes(l, key, length, find_written_key, number))
        return true;
    if (strcmp(l->kind, "chime") == 0 && l->fixed) { /* the bytes of an inline key are reversed */
        reverse(key, reversed);
        return find_damaged_bytes(l, reversed, 8, find_reversed_key, number);
    }
    /* The end of the key is a part of a word of the leaf, and a node contains the beginning. */
    if (strcmp(l->kind, "dolphin") == 0)
        return resembles_written_key(l, key, length, 2);
    /* The slot contains a part of the hash of the key, from which the key is computed. */
    return strcmp(l->kind, "shard") == 0 && l->fixed;
}


static bool is_written_value(const library *l, const char *before, size_t length, void *number) {
    char value[VALUE_BYTES];
    size_t written = make_value(l, *(unsigned *)number, value);
    return memcmp(value, before, written < length ? written : length) == 0;
}


/* Returns whether the value is the value of this pair after damage. */
static bool is_damaged_value(const library *l, unsigned number, const char *value, size_t length) {
    if (find_damaged_bytes(l, value, length, is_written_value, &number))
        return true;
    /* Damage of a value word may turn the address of a value into a value of up to 8 bytes. */
    return strcmp(l->kind, "dolphin") == 0 && length <= 8;
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
    *l = (library){.kind = kind, .options = options, .fixed = strstr(options, "key_size=8") != NULL};
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
    l->damaged_image = malloc(NODES * (size_t)NODE_BYTES);
    assert_true(l->image && l->damaged_image);
    for (unsigned n = 0; n < NODES; n++)
        memcpy(l->image + n * (size_t)NODE_BYTES, l->fabric->memory[n], NODE_BYTES);
}


static void free_library(library *l) {
    l->fabric->ops->close(l->fabric);
    free(l->image);
    free(l->damaged_image);
    free(l->objects);
}


/* Restores the index, and overwrites DAMAGED_BYTES bytes of its objects and page words with random bytes. */
static void damage_index(library *l, uint64_t seed) {
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
        l->damaged[i] = addr;
    }
    for (unsigned n = 0; n < NODES; n++)
        memcpy(l->damaged_image + n * (size_t)NODE_BYTES, l->fabric->memory[n], NODE_BYTES);
}


/* Proves that nothing was written to the memory nodes. */
static void expect_unchanged_nodes(const library *l) {
    for (unsigned n = 0; n < NODES; n++)
        assert_int_equal(memcmp(l->fabric->memory[n], l->damaged_image + n * (size_t)NODE_BYTES, NODE_BYTES), 0);
}


/* ---- Salvages ---- */

static int note_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    saved *s = ctx;
    char written[VALUE_BYTES];
    unsigned number = find_number(s->l, key, key_len);
    s->pairs++;
    if (number == PAIRS) {
        s->unknown++;
        assert_true(is_damaged_key(s->l, key, key_len, &number));
        if (number == PAIRS)
            return 0;
    } else {
        s->revived += is_deleted(number);
        assert_false(s->got[number]); /* no pair is delivered twice */
        s->got[number] = true;
    }
    size_t length = make_value(s->l, number, written);
    if (length != value_len || memcmp(written, value, length) != 0) {
        s->wrong++;
        /* the checksum of a smart leaf covers the value, unless the value has 8 bytes */
        assert_true(strcmp(s->l->kind, "smart") != 0 || length == 8);
        assert_true(is_damaged_value(s->l, number, value, value_len));
    }
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
static bool is_readable_alone(library *l, unsigned number, uint64_t seed) {
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
    expect_unchanged_nodes(l);
}


static void damage_and_salvage(library *l, uint64_t seed) {
    static bool readable[PAIRS];
    static saved s;
    unsigned lost = 0;
    damage_index(l, seed);
    unsigned count = get_all(l, readable);
    damage_index(l, seed);
    salvage(l, &s);
    for (unsigned i = 0; i < PAIRS && lost < 10; i++) /* a few lost pairs suffice for a failure */
        lost += readable[i] && !s.got[i] && is_readable_alone(l, i, seed);
    if (verbose)
        printf("%s %s seed %llu: %u readable, %u saved, %u lost, %u unknown, %u wrong, %u revived, %u skipped\n",
               l->kind, l->options, (unsigned long long)seed, count, s.pairs, lost, s.unknown, s.wrong, s.revived,
               s.skipped);
    assert_int_equal(lost, 0);
    assert_true(s.unknown + s.wrong < DAMAGED_BYTES);
    if (strcmp(l->options, "checksum=on") == 0) /* the checksum covers the whole pair */
        assert_int_equal(s.unknown + s.wrong, 0);
    if (strcmp(l->kind, "smart") == 0) /* the checksum of a leaf covers the key */
        assert_int_equal(s.unknown, 0);
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
        salvage_with_seeds(kind, "checksum=on");
        if (strcmp(kind, "shard") == 0) /* tables of many extents */
            salvage_with_seeds(kind, "key_size=8,value_size=8,extent=4096");
    }
}


/* Damages the hints that show how much of a smart node a READ should fetch, so that each shows only the header. */
static unsigned damage_read_types(const library *l) {
    unsigned damaged = 0;
    for (size_t i = 0; i < l->object_count; i++) {
        char *place = l->fabric->memory[far_addr_node(l->objects[i].addr)] + far_addr_offset(l->objects[i].addr);
        uint64_t word;
        memcpy(&word, place, 8);
        if (smart_ctl_kind(word) != SMART_INTERNAL_NODE)
            continue;
        for (uint64_t at = SMART_HEADER; at + 8 <= l->objects[i].bytes; at += 8) {
            memcpy(&word, place + at, 8);
            if (!(word & SMART_BOUND) || !smart_word_is_sound(word) || smart_word_kind_of(word) != SMART_NODE)
                continue;
            word = smart_word_with_read_type(word, SMART_READ_DIR);
            memcpy(place + at, &word, 8);
            damaged++;
        }
    }
    return damaged;
}


/* Proves that a get ends although the hints in slots are damaged, in the pool as in a private copy. Fails (does not end)
 * if smart_put_read_more reads no slots of a list of which only the header was read. */
TEST(a_get_ends_although_the_hints_of_slots_are_damaged) {
    char key[KEY_BYTES], value[FAR_VALUE_MAX];
    far_pool *pool;
    far_session *session;
    far_index *index;
    library l;
    fill_index(&l, "smart", "");
    assert_true(damage_read_types(&l) > 0);
    rig_limit_verbs(UINT64_MAX);
    for (int copy = 1; copy >= 0; copy--) {
        open_index(&pool, &session, &l, copy, &index);
        for (unsigned i = 0; i < PAIRS; i++)
            (void)far_get(session, index, key, make_key(&l, i, key), value, sizeof(value), NULL);
        close_index(pool, session, index);
    }
    free_library(&l);
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
