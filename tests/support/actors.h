/* Named interleavings of an index in the simulator: a few clients, each on a compute node of its own, that are stopped
 * and run by hand. Their handles have no housekeeping: what an operation leaves to be done later it does itself, before
 * it returns. */
#ifndef TESTS_SUPPORT_ACTORS_H
#define TESTS_SUPPORT_ACTORS_H

#include "fabric/sim/sim.h"
#include "farindex.h"

#include <stdbool.h>

#define ACTORS_MAX  4
#define ACTOR_VALUE 4096

typedef enum actor_does { ACTOR_GET, ACTOR_INSERT, ACTOR_UPDATE, ACTOR_PUT, ACTOR_DELETE, ACTOR_SCAN } actor_does;

typedef struct actor {
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_sim_client *client; /* of the operation started last */
    actor_does does;
    const char *key;
    char value[ACTOR_VALUE];
    size_t length;
    int result;
    bool ended;
    char seen[ACTOR_VALUE]; /* the keys of a scan, with a space after each */
} actor;

typedef struct actors {
    far_sim_world *world;
    actor a[ACTORS_MAX];
    unsigned count;
} actors;

/* sim: more options of the simulator, "" for none. */
void actors_up(actors *s, unsigned count, const char *kind, const char *options, const char *sim);
void actors_down(actors *s);             /* the index is sound, nothing is lost, the watch saw nothing */
void actors_sound(actors *s, actor *by); /* the same without the end */

/* At once, from outside. */
int actor_do(actor *a, actor_does does, const char *key, const char *value);
bool actor_reads(actor *a, const char *key, const char *value); /* NULL: it is absent */

/* As a client: started, then run to a point of the index code, or to its end. */
void actor_start(actor *a, const char *name, actor_does does, const char *key, const char *value);
void actor_stop_at(actor *a, const char *point);
void actor_run_to_stop(actor *a);
void actor_finish(actor *a);
void actors_polled(actors *s, unsigned times); /* housekeeping of all handles, by hand */
void actors_age(actors *s);                    /* the epoch moves on until all retired memory is free again */

#endif
