/* The implementation of scene.h: creates a pool with an index, lists its objects, and damages it. */
#include "scene.h"
#include "pool/alloc/blocks.h"
#include "pool/catalog/layout.h"
#include "pool/format/clients.h"
#include "pool/format/owner.h"
#include "pool/handle.h"
#include "task/session.h"

#include <stdlib.h>
#include <string.h>

#define CRASH_VERBS 90 /* The client of a scene fails at a random verb among this number of verbs. */


static void abort_unless_ok(int64_t result, const char *what) {
    if (result >= 0)
        return;
    fprintf(stderr, "%s: %s\n", what, far_last_error());
    abort();
}


/* ---- Keys and values. Each is computed from its number, so a test can recognise it ---- */

static uint64_t mix_number(uint64_t number, uint64_t salt) {
    uint64_t state = number * 1000003 + salt;
    return far_splitmix(&state);
}


static size_t make_key(const scene *s, unsigned number, char key[SCENE_KEY_BYTES]) {
    uint64_t word = mix_number(number, 7);
    if (s->fixed) {
        memcpy(key, &word, 8);
        return 8;
    }
    /* Prefixes of keys. Some keys share a long prefix, and some keys have a short prefix or none. */
    static const char *const fronts[] = {"", "a", "the same way for many of them/", "the same way/"};
    return (size_t)snprintf(key, SCENE_KEY_BYTES, "%s%04x", fronts[number % 4], (unsigned)(word & 0xffff) ^ number);
}


size_t scene_key(const scene *s, unsigned number, char key[SCENE_KEY_BYTES]) {
    if (number >= SCENE_NUMBERS)
        return make_key(s, number, key);
    memcpy(key, s->keys[number].key, s->keys[number].bytes);
    return s->keys[number].bytes;
}


bool scene_has_key(const scene *s, unsigned number, const void *key, size_t bytes) {
    return s->keys[number].bytes == bytes && memcmp(s->keys[number].key, key, bytes) == 0;
}


size_t scene_value(const scene *s, unsigned number, unsigned version, char value[SCENE_VALUE_MAX]) {
    size_t bytes = s->fixed ? 8 : 9 + mix_number(number, 3) % 40;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = mix_number(number, 1000 * version + i);
        memcpy(value + i, &word, 8);
    }
    return bytes;
}


bool scene_is_deleted(unsigned number) {
    return number % 5 == 4;
}


/* ---- The objects of a pool ---- */

static place *find_place(scene *s, const char *name) {
    for (size_t i = 0; i < s->place_count; i++)
        if (strcmp(s->places[i].name, name) == 0)
            return &s->places[i];
    if (s->place_count == SCENE_PLACES)
        abort();
    place *p = &s->places[s->place_count++];
    snprintf(p->name, sizeof(p->name), "%s", name);
    return p;
}


static void add_object(scene *s, const char *name, far_addr addr, uint64_t bytes) {
    place *p = find_place(s, name);
    if (p->count == p->size) {
        p->size = p->size ? 2 * p->size : 16;
        p->objects = realloc(p->objects, p->size * sizeof(object));
        if (!p->objects)
            abort();
    }
    p->objects[p->count++] = (object){addr, bytes & ~7ull};
}


typedef struct collecting {
    far_walk walk; /* This member must be the first one, because collect_object casts the pointer to it. */
    far_index *index;
    scene *scene;
} collecting;


static int collect_object(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    collecting *c = (collecting *)walk;
    char name[24];
    snprintf(name, sizeof(name), "%s type %u", index ? index->kind->name : "pool", type);
    add_object(c->scene, name, addr, size);
    return 0;
}


static int run_walk(far_task *t, void *arg) {
    collecting *c = arg;
    return c->index->kind->walk(t, c->index, &c->walk);
}


/* Adds the catalog, the record of the index, and the tables of the pool. */
static void add_pool_objects(scene *s, const far_pool *pool, const far_index *index) {
    const far_geometry *g = &pool->geometry;
    uint64_t word;
    memcpy(&word, rig_memory(0) + FAR_SUPER_CATALOG, 8);
    add_object(s, "superblock", far_addr_make(0, 0), 64);
    add_object(s, "pool words", far_addr_make(0, FAR_SUPER_EPOCH), 128);
    for (unsigned id = 1; id <= 4; id++)
        add_object(s, "registry", far_client_entry(id), FAR_CLIENT_BYTES);
    add_object(s, "catalog", far_catalog_word_addr(word), far_catalog_bytes(word >> 48));
    add_object(s, "record", index->record, sizeof(far_index_record));
    for (unsigned n = 0; n < g->nodes; n++) {
        uint64_t used = g->node[n].blocks < 8 ? g->node[n].blocks : 8;
        add_object(s, "block entries", far_addr_make(n, g->node[n].entries), used * 32);
        add_object(s, "page words", far_addr_make(n, g->node[n].pages), used * FAR_BLOCK_PAGES * 8);
        add_object(s, "bitmaps", far_addr_make(n, g->node[n].bitmaps), 1024);
    }
}


/* ---- Creating a scene ---- */

static void insert_and_delete(const scene *s, far_session *session, far_index *index) {
    char key[SCENE_KEY_BYTES], value[SCENE_VALUE_MAX];
    for (unsigned i = 0; i < SCENE_KEYS; i++) {
        size_t key_bytes = scene_key(s, i, key), value_bytes = scene_value(s, i, 0, value);
        abort_unless_ok(far_insert(session, index, key, key_bytes, value, value_bytes), "insert");
        if (scene_is_deleted(i))
            abort_unless_ok(far_delete(session, index, key, key_bytes), "delete");
    }
}


/* Runs operations until the copy of the pool is taken, in the middle of an operation. */
static void work_until_crash(scene *s, far_session *session, far_index *index, far_random *random) {
    char key[SCENE_KEY_BYTES], value[SCENE_VALUE_MAX];
    rig_copy_pool_after(1 + far_random_below(random, CRASH_VERBS));
    for (unsigned i = SCENE_KEYS; !rig_copied_pool(); i++) {
        size_t key_bytes = scene_key(s, i, key), value_bytes = scene_value(s, i, 0, value);
        abort_unless_ok(far_put(session, index, key, key_bytes, value, value_bytes), "put");
        key_bytes = scene_key(s, 4 * (i % 32), key);
        value_bytes = scene_value(s, 4 * (i % 32), 0, value);
        abort_unless_ok(far_put(session, index, key, key_bytes, value, value_bytes), "put");
    }
    s->image = rig_copied_pool();
    rig_copy_pool_after(0);
}


void scene_make(scene *s, const char *kind, const char *options, bool crashed, uint64_t seed) {
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_random random;
    *s = (scene){.kind = kind, .options = options, .fixed = strstr(options, "key_size=8") != NULL, .crashed = crashed};
    for (unsigned i = 0; i < SCENE_NUMBERS; i++)
        s->keys[i].bytes = make_key(s, i, s->keys[i].key);
    for (unsigned n = 0; n < RIG_NODES; n++)
        memset(rig_memory(n), 0, RIG_BYTES);
    rig_seed(seed);
    far_random_seed(&random, seed);
    rig_limit_verbs(UINT64_MAX);
    abort_unless_ok(far_pool_open(RIG_URI, &rig_options, &pool), "open");
    abort_unless_ok(far_session_open(pool, &session), "session");
    abort_unless_ok(far_index_create(session, "index", kind, options, &index), "create");
    insert_and_delete(s, session, index);
    collecting c = {{.object = collect_object, .once = true}, index, s};
    abort_unless_ok(far_session_call(session, FAR_STATS_OTHER, false, run_walk, &c), "walk");
    add_pool_objects(s, pool, index);
    s->geometry = pool->geometry;
    if (crashed)
        work_until_crash(s, session, index, &random);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    if (!crashed)
        s->image = rig_copy_pool();
}


void scene_free(scene *s) {
    for (size_t i = 0; i < s->place_count; i++)
        free(s->places[i].objects);
    free(s->image);
    *s = (scene){0};
}


/* ---- Damages ---- */

static char *memory_at(far_addr addr) {
    return rig_memory(far_addr_node(addr)) + far_addr_offset(addr);
}


static const object *choose_object(const scene *s, far_random *random, const char **name) {
    const place *p = &s->places[far_random_below(random, s->place_count)];
    *name = p->name;
    return &p->objects[far_random_below(random, p->count)];
}


/* Saves the bytes that the damage will overwrite, and some bytes before and after them. */
static void save_bytes_before(damage *d) {
    uint64_t offset = far_addr_offset(d->addr), from = offset > DAMAGE_AROUND ? offset - DAMAGE_AROUND : 0;
    uint64_t to = offset + d->bytes + DAMAGE_AROUND;
    if (to > RIG_BYTES)
        to = RIG_BYTES;
    d->before_bytes = to - from;
    memcpy(d->before, rig_memory(far_addr_node(d->addr)) + from, d->before_bytes);
}


static uint64_t choose_range_bytes(far_random *random, uint64_t room) {
    uint64_t bytes = 8 * (1 + far_random_below(random, 1ull << far_random_below(random, 6)));
    return bytes < room ? bytes : room;
}


static void describe_damage(damage *d, const object *o, const char *how, const char *name) {
    snprintf(d->words, sizeof(d->words), "%s %s + %llu, %llu bytes (at %#llx)", how, name,
             (unsigned long long)(d->addr - o->addr), (unsigned long long)d->bytes, (unsigned long long)d->addr);
}


/* Returns an owner word for a lock that is damaged: the word that the lock would contain if the client with this id
 * held it. The client is alive, or the next client with this id will have this owner word; in both cases no client
 * holds the lock. */
uint64_t scene_owner(unsigned id, unsigned task) {
    uint64_t state;
    memcpy(&state, memory_at(far_client_entry(id)), 8);
    unsigned generation = far_client_generation_of(state) + (far_client_state_of(state) == FAR_CLIENT_FREE);
    return far_owner_pack(id, generation, task);
}


void scene_damage_owner(const scene *s, far_random *random, damage *d) {
    const char *name;
    const object *o = choose_object(s, random, &name);
    unsigned shift = (unsigned)far_random_below(random, 64 - FAR_OWNER_BITS + 1);
    uint64_t owner = scene_owner(1 + (unsigned)far_random_below(random, 3), (unsigned)far_random_below(random, 2)),
             word;
    if (far_random_chance(random, 1, 2))
        shift %= 2;
    d->bytes = 8;
    d->addr = o->addr + 8 * far_random_below(random, o->bytes / 8);
    save_bytes_before(d);
    memcpy(&word, memory_at(d->addr), 8);
    word = (word & ~(FAR_OWNER_MASK << shift)) | owner << shift | (shift > 0);
    memcpy(memory_at(d->addr), &word, 8);
    describe_damage(d, o, "a client's name at", name);
}


static void damage_object(const scene *s, const object *o, const char *name, far_random *random, damage *d) {
    const char *from_name;
    uint64_t kind = far_random_below(random, 8), word;
    d->bytes = kind == 5 || kind == 6 ? choose_range_bytes(random, o->bytes) : 8;
    d->addr = o->addr + 8 * far_random_below(random, (o->bytes - d->bytes) / 8 + 1);
    save_bytes_before(d);
    memcpy(&word, memory_at(d->addr), 8);
    const char *how;
    switch (kind) {
    case 0:
    case 1:
        word ^= 1ull << far_random_below(random, 64);
        how = "a bit of";
        break;
    case 2:
        word ^= (1 + far_random_below(random, 255)) << 8 * far_random_below(random, 8);
        how = "a byte of";
        break;
    case 3:
        word = far_random_next(random);
        how = "a random word at";
        break;
    case 4:
        word = far_random_chance(random, 1, 2) ? word + 1 : word - 1;
        how = "one more or less at";
        break;
    case 5:
        memset(memory_at(d->addr), 0, d->bytes);
        how = "zeroes at";
        break;
    case 6: {
        const object *from = choose_object(s, random, &from_name);
        uint64_t bytes = d->bytes < from->bytes ? d->bytes : from->bytes;
        d->bytes = bytes;
        memmove(memory_at(d->addr), memory_at(from->addr), bytes);
        how = "another's beginning over";
        break;
    }
    default:
        word = far_random_chance(random, 1, 2) ? 0 : UINT64_MAX;
        how = "all bits alike at";
    }
    if (kind != 5 && kind != 6)
        memcpy(memory_at(d->addr), &word, 8);
    describe_damage(d, o, how, name);
}


void scene_damage(const scene *s, far_random *random, damage *d) {
    const char *name;
    const object *o = choose_object(s, random, &name);
    damage_object(s, o, name, random, d);
}


void scene_damage_marks(const scene *s, far_random *random, damage *d) {
    const far_geometry *g = &s->geometry;
    unsigned node = (unsigned)far_random_below(random, g->nodes);
    object marks = {far_addr_make(node, g->node[node].marks), 8 * far_bitmap_bytes(g)};
    damage_object(s, &marks, "marks", random, d);
}


void damage_word(damage *d, far_addr addr, uint64_t word) {
    d->addr = addr;
    d->bytes = 8;
    save_bytes_before(d);
    memcpy(memory_at(addr), &word, 8);
    snprintf(d->words, sizeof(d->words), "%#llx at %#llx", (unsigned long long)word, (unsigned long long)addr);
}


bool damage_overlaps(const damage *d, const void *data, size_t bytes) {
    for (size_t i = 0; i + 4 <= bytes; i++)
        for (size_t k = 0; k + 4 <= d->before_bytes; k++)
            if (memcmp((const char *)data + i, d->before + k, 4) == 0)
                return true;
    return false;
}
