/* A stage for tests of interleavings: three handles on one simulated pool with one index. Each actor (a, b, c) has one
 * handle with one session. An actor runs an operation either as a simulated client, which the test stops, holds back,
 * resumes and kills (fabric/sim/sim.h), or at once, in the test function itself.
 *
 *     stage s;
 *     stage_open(&s, "toy", "slots=1", NULL);
 *     stage_write(&s.a, "z", "0");
 *     stage_start(&s.a, FAR_OP_PUT, "x", "1");                          A puts x ...
 *     stage_stop_at(&s.a, (far_sim_match){.point = "toy:publish"});     ... and stops before it publishes.
 *     stage_write(&s.b, "y", "2");                                      B puts y meanwhile.
 *     stage_finish(&s.a);                                               A continues to its end.
 *     assert_int_equal(s.a.result, 0);
 *     assert_true(stage_reads(&s.b, "x", "1") && stage_reads(&s.b, "y", "2"));
 *     stage_close(&s);                                     checks the index, the memory and the memory checker */
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
    /* kind of the operation in progress, or of the last one */
    far_op_kind kind;
    /* key and value of the operation. `value` is the value to write, the value that a get returned, or the value of the
     * last pair of a scan. */
    char key[FAR_KEY_MAX], value[STAGE_VALUE_MAX];
    size_t key_len, value_len;
    const char *to; /* upper bound of a scan; NULL: the scan runs to the end of the index */
    uint64_t limit; /* maximum number of pairs of a scan; 0: no limit */
    bool backward;  /* a scan returns the pairs in descending key order */
    int result;
    bool ended, died;
    /* keys that a scan returned, each terminated by NUL; there is room for STAGE_PAIRS_MAX keys */
    char (*keys)[FAR_KEY_MAX + 1];
    unsigned pairs;
} stage_actor;

typedef struct stage {
    far_sim_world *world;
    stage_actor a, b, c;
    bool by_hand;
    char uri[WORLD_URI];
} stage;

/* Opens the stage. `sim` contains additional options of the simulator ("atomic_bytes=8,masked_cas=off"), or is NULL.
 * RDWC is switched off. */
void stage_open(stage *s, const char *kind, const char *options, const char *sim);
/* Opens the stage without housekeeping threads. Work that an operation would leave to housekeeping is then done by the
 * operation itself before it returns, so that a test can stop it there. */
void stage_open_without_housekeeping(stage *s, const char *kind, const char *options, const char *sim);
void stage_poll(stage *s, unsigned times); /* runs this many slices of housekeeping in each live handle */
void stage_free_retired(stage *s);                  /* lets epochs pass until all retired memory is free again */
void stage_close(stage *s);                /* runs stage_check, then closes everything */
/* Asserts, by a live actor, that the index is sound, that no memory is leaked after a collection, and that the memory
 * checker has found no error. */
void stage_check(stage *s);
void stage_check_by(stage *s, stage_actor *a);
void stage_tear_down(stage *s); /* closes everything without a check, for tests that damage the index */
stage_actor *stage_actor_at(stage *s, unsigned number);

/* Makes a simulated client that runs an operation. The client does not run before the test calls stage_stop_at,
 * stage_hold or stage_finish. Keys and values are C strings, or bytes. */
void stage_start(stage_actor *a, far_op_kind kind, const char *key, const char *value);
void stage_start_bytes(stage_actor *a, far_op_kind kind, const void *key, size_t key_len, const void *value,
                       size_t value_len);
/* stage_set and stage_run split an operation into two steps, for a client that does more than the operation: stage_set
 * stores the operation, and stage_run, which the client calls, runs it. */
void stage_set(stage_actor *a, far_op_kind kind, const char *key, const char *value);
int stage_run(stage_actor *a);
void stage_start_main(stage_actor *a, const char *name, void (*run)(void *actor));
/* runs the client until it reaches this point or verb, and stops it there */
void stage_stop_at(stage_actor *a, far_sim_match match);
/* Runs the client until it posts a matching verb. Returns a hold on the effect of that verb, which stays held back
 * until the test releases it. */
far_sim_hold *stage_hold(stage_actor *a, far_sim_match match);
void stage_finish(stage_actor *a); /* resumes the client and runs it to the end of its code */
/* kills the handle; the code of the client then runs to its end with errors */
void stage_kill(stage *s, stage_actor *a);

/* Runs an operation to its end in the calling test function, without a simulated client. Returns the result of the
 * operation. */
int stage_do(stage_actor *a, far_op_kind kind, const char *key, const char *value);
void stage_write(stage_actor *a, const char *key, const char *value); /* puts a key; must succeed */
void stage_delete(stage_actor *a, const char *key);                   /* deletes a key; must succeed */
/* returns whether a get finds this value under the key, or finds no key if `value` is NULL */
bool stage_reads(stage_actor *a, const char *key, const char *value);
/* returns whether a scan from `from` gives exactly these keys, which are separated by spaces */
bool stage_scans(stage_actor *a, const char *from, const char *keys);
/* returns the keys of the actor's last scan, separated by spaces, in `text` */
char *stage_scanned(const stage_actor *a, char text[STAGE_VALUE_MAX]);

#endif
