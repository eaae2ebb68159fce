/* Pools to be damaged: an index with some keys, as its closed pool looks, or as a client leaves it that dies in the middle
 * of an operation; and where in it what lies. */
#ifndef TESTS_DAMAGE_SCENE_H
#define TESTS_DAMAGE_SCENE_H

#include "base/random.h"
#include "damage_rig.h"
#include "pool/superblock.h"

#include <stdio.h>

#define SCENE_KEYS      160               /* numbers below this were inserted; some were deleted again */
#define SCENE_NUMBERS   (SCENE_KEYS + 64) /* numbers that are ever used, most of the time */
#define SCENE_PLACES    24                /* sorts of places in a pool */
#define SCENE_KEY_BYTES 64
#define SCENE_VALUE_MAX 64

typedef struct object {
    far_addr addr;
    uint64_t bytes;
} object;

typedef struct place { /* all objects of one sort */
    char name[24];
    object *objects;
    size_t count, size;
} place;

typedef struct scene {
    const char *kind, *options;
    bool fixed, crashed;
    char *image;
    far_geometry geometry;
    struct { /* of the first numbers: made once */
        char key[SCENE_KEY_BYTES];
        size_t bytes;
    } keys[SCENE_NUMBERS];
    place places[SCENE_PLACES];
    size_t place_count;
} scene;

void scene_make(scene *s, const char *kind, const char *options, bool crashed, uint64_t seed);
void scene_free(scene *s);

size_t scene_key(const scene *s, unsigned number, char key[SCENE_KEY_BYTES]);
bool scene_has_key(const scene *s, unsigned number, const void *key,
                   size_t bytes); /* a number < SCENE_NUMBERS has it */
size_t scene_value(const scene *s, unsigned number, unsigned version, char value[SCENE_VALUE_MAX]);
bool scene_is_deleted(unsigned number); /* again, after it was inserted */

/* A damage of the memory as it stands now. */
typedef struct damage {
    far_addr addr;
    uint64_t bytes;
    char before[512]; /* what lay there, with what lies around it */
    size_t before_bytes;
    char words[160];
} damage;

#define DAMAGE_AROUND 8

void scene_damage(const scene *s, far_random *random, damage *d);
void scene_damage_tables(const scene *s, far_random *random, damage *d); /* marks, and tables of open indexes */
far_addr scene_open_table(void); /* of somebody, as it stands now; 0: there is none */
void scene_name_somebody(const scene *s, far_random *random, damage *d); /* in a word that may be a lock */
uint64_t scene_owner(unsigned id, unsigned task); /* of that id as it lives now, or would next (pool/owner.h) */

void damage_word(damage *d, far_addr addr, uint64_t word); /* this word is there now */

/* The damage may have hit these bytes: some of them lay there. */
bool damage_hit(const damage *d, const void *data, size_t bytes);

#endif
