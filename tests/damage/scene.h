/* Scenes: pools that tests damage. A scene is an index with some keys, and the memory of its pool either after it was
 * closed, or after a client failed in the middle of an operation. The scene also lists the objects of the pool. */
#ifndef TESTS_DAMAGE_SCENE_H
#define TESTS_DAMAGE_SCENE_H

#include "base/random.h"
#include "damage_rig.h"
#include "pool/format/superblock.h"

#include <stdio.h>

/* number of keys that were inserted: those with smaller numbers; some were deleted again */
#define SCENE_KEYS      160
#define SCENE_NUMBERS   (SCENE_KEYS + 64) /* upper bound of the numbers of almost all keys of the tests */
#define SCENE_PLACES    24                /* largest number of sorts of objects in a pool */
#define SCENE_KEY_BYTES 64
#define SCENE_VALUE_MAX 64

typedef struct object {
    far_addr addr;
    uint64_t bytes;
} object;

/* A sort of objects, and all objects of this sort. Names of sorts are "registry" or "chime type 1", for example. */
typedef struct place {
    char name[24];
    object *objects;
    size_t count, size;
} place;

typedef struct scene {
    const char *kind, *options;
    bool fixed, crashed;
    char *image;
    far_geometry geometry;
    struct { /* keys with the numbers below SCENE_NUMBERS */
        char key[SCENE_KEY_BYTES];
        size_t bytes;
    } keys[SCENE_NUMBERS];
    place places[SCENE_PLACES];
    size_t place_count;
} scene;

void scene_make(scene *s, const char *kind, const char *options, bool crashed, uint64_t seed);
void scene_free(scene *s);

size_t scene_key(const scene *s, unsigned number, char key[SCENE_KEY_BYTES]);
/* Returns whether these bytes are the key with that number. The number must be below SCENE_NUMBERS. */
bool scene_has_key(const scene *s, unsigned number, const void *key, size_t bytes);
size_t scene_value(const scene *s, unsigned number, unsigned version, char value[SCENE_VALUE_MAX]);
/* returns whether scene_make deletes the key with this number after inserting it */
bool scene_is_deleted(unsigned number);

/* A damage of the pool's memory. */
typedef struct damage {
    far_addr addr;
    uint64_t bytes;
    /* bytes that the damage has overwritten, with DAMAGE_AROUND further bytes before and after them */
    char before[512];
    size_t before_bytes;
    char words[160];
} damage;

#define DAMAGE_AROUND 8

void scene_damage(const scene *s, far_random *random, damage *d);
/* damages mark bitmaps */
void scene_damage_marks(const scene *s, far_random *random, damage *d);
/* damages a word that may be a lock, so that the word names a client that does not hold the lock */
void scene_damage_owner(const scene *s, far_random *random, damage *d);
/* returns the owner word of the client that has this id now, or that will get it next (pool/format/owner.h) */
uint64_t scene_owner(unsigned id, unsigned task);

void damage_word(damage *d, far_addr addr, uint64_t word); /* overwrites one word with this value */

/* Returns true if the damage may have changed an object of whose content `data` is a copy: 4 consecutive bytes of
 * `data` also occur in d->before, which contains the overwritten bytes and DAMAGE_AROUND bytes on each side. */
bool damage_overlaps(const damage *d, const void *data, size_t bytes);

#endif
