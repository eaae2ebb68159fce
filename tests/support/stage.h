/* A stage for named interleavings: three compute nodes on one simulated pool with one index. Actors do operations as
 * simulated clients that a test stops, holds, resumes and kills (fabric/sim/sim.h), or from outside, at once.
 *
 *     stage s;
 *     stage_open(&s, "toy", "slots=1", NULL);
 *     stage_write(&s.a, "z", "0");
 *     stage_start(&s.a, FAR_OP_PUT, "x", "1");                          a puts x ...
 *     stage_stop_at(&s.a, (far_sim_match){.point = "toy:publish"});     ... and stops before it publishes,
 *     stage_write(&s.b, "y", "2");                                      b puts y meanwhile,
 *     stage_finish(&s.a);                                               a goes on to its end
 *     assert_int_equal(s.a.result, 0);
 *     assert_true(stage_reads(&s.b, "x", "1") && stage_reads(&s.b, "y", "2"));
 *     stage_close(&s);                                     checks the index, the memory and the watch */
#ifndef FAR_TESTS_STAGE_H
#define FAR_TESTS_STAGE_H

#include "world.h"

#define STAGE_ACTORS    3
#define STAGE_VALUE_MAX 4096
#define STAGE_PAIRS_MAX 256

typedef struct stage_actor {
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_sim_client *client;
    /* The operation under way, or the last one. */
    far_op_kind kind;
    char key[FAR_KEY_MAX], value[STAGE_VALUE_MAX]; /* value: to write, or what a get, or a scan last, returned */
    size_t key_len, value_len;
    const char *to; /* where a scan ends; NULL: behind the last key */
    uint64_t limit; /* how many keys a scan gives at most; 0: all */
    int result;
    bool ended, died;
    char (*keys)[FAR_KEY_MAX + 1]; /* what a scan gave, NUL-terminated; STAGE_PAIRS_MAX of them */
    unsigned pairs;
} stage_actor;

typedef struct stage {
    far_sim_world *world;
    stage_actor a, b, c;
    bool by_hand;
    char uri[WORLD_URI];
} stage;

/* sim: more options of the simulator ("atomic_bytes=8,masked_cas=off"), NULL = none. RDWC is off. */
void stage_open(stage *s, const char *kind, const char *options, const char *sim);
/* The same without housekeeping: what an operation leaves to be done later it does itself, before it returns, so that a
 * test can stop it there. */
void stage_open_by_hand(stage *s, const char *kind, const char *options, const char *sim);
void stage_poll(stage *s, unsigned times); /* their housekeeping, of those who live */
void stage_age(stage *s);                  /* until all retired memory is free again */
void stage_close(stage *s);                /* after stage_check */
/* A living actor finds the index sound, nothing lost after a sweep, and the watch has no error. */
void stage_check(stage *s);
void stage_check_by(stage *s, stage_actor *a);
void stage_tear_down(stage *s); /* without a check: for stories that must go wrong */
stage_actor *stage_actor_at(stage *s, unsigned number);

/* An operation as a client: it runs when it is run. Keys and values as C strings, or bytes. */
void stage_start(stage_actor *a, far_op_kind kind, const char *key, const char *value);
void stage_start_bytes(stage_actor *a, far_op_kind kind, const void *key, size_t key_len, const void *value,
                       size_t value_len);
/* The same in two steps, for a client that does more than the operation: stage_set says what stage_run does. */
void stage_set(stage_actor *a, far_op_kind kind, const char *key, const char *value);
int stage_run(stage_actor *a);
void stage_start_main(stage_actor *a, const char *name, void (*run)(void *actor));
void stage_stop_at(stage_actor *a, far_sim_match match);       /* runs it up to there */
far_sim_hold *stage_hold(stage_actor *a, far_sim_match match); /* runs it until the effect of that verb is held back */
void stage_finish(stage_actor *a);                             /* resumes it and runs it to its end */
void stage_kill(stage *s, stage_actor *a);                     /* its compute node dies; its code comes to an end */

/* From outside, at once. */
int stage_do(stage_actor *a, far_op_kind kind, const char *key, const char *value);
void stage_write(stage_actor *a, const char *key, const char *value);  /* a put that must succeed */
void stage_delete(stage_actor *a, const char *key);                    /* must succeed */
bool stage_reads(stage_actor *a, const char *key, const char *value);  /* value NULL: is absent */
bool stage_scans(stage_actor *a, const char *from, const char *keys);  /* these, with a space between, and no other */
char *stage_scanned(const stage_actor *a, char text[STAGE_VALUE_MAX]); /* what its last scan gave, in that form */

#endif
