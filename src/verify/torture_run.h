/* The parts of a torture run: the whole (torture.c), its clients (torture_client.c, churn.c), their handles
 * (torture_handles.c), faults (torture_faults.c), options of small indexes (torture_small.c). */
#ifndef FAR_VERIFY_TORTURING_H
#define FAR_VERIFY_TORTURING_H

#include "base/random.h"
#include "fabric/sim/sim.h"
#include "verify/history.h"
#include "verify/torture.h"
#include "workload/keyset.h"

#define FAR_TORTURED_INDEX "tortured"

typedef struct far_tortured far_tortured;

typedef struct far_torture_slot { /* an operation in flight */
    far_op op;
    size_t record; /* in the history */
    bool busy;
    uint8_t key[FAR_KEY_MAX], to[FAR_KEY_MAX];
    uint8_t *value;
    far_tortured *owner;
} far_torture_slot;

typedef struct far_torture_node {
    far_pool *first; /* its clients are of this one's compute node: it stays open, also when it is lost */
    far_pool *pool;  /* that they work with: the first, or one that was opened when that was lost */
    far_index *index;
    uint64_t verbs_to_live; /* the node is killed with this verb; 0 = survives */
    unsigned users;         /* clients that have it open */
    bool renewing;          /* one client opens the pool again; `pool` may be NULL */
} far_torture_node;

typedef struct far_torture_silence { /* a memory node does not answer for a while */
    uint64_t verbs;                  /* the silence begins with so many verbs of all clients together */
    uint64_t ns;
    unsigned node;
    bool restart; /* the silence ends because the node was started again */
    far_tortured *run;
} far_torture_silence;

#define FAR_TORTURE_SILENCES 3
#define FAR_TORTURE_SIDES    3

typedef struct far_torture_side { /* an index beside the tortured one, which comes and goes */
    unsigned users;               /* who open it, have it open or close it */
    uint64_t uses;                /* so far */
} far_torture_side;

typedef struct far_torture_client {
    far_tortured *run;
    unsigned number;
    far_torture_node *node;
    uint64_t left, written;
    bool ebbed; /* its last operation was one of an ebb */
    far_random random;
    far_session *session;
    far_pool *guest; /* one more compute node that it runs just now */
    far_sim_client *sim;
    far_torture_slot *slots;
    uint64_t verbs_to_live; /* of its session; then it is declared dead while it works: a zombie */
    bool loses;             /* or else it loses its connection */
} far_torture_client;

struct far_tortured {
    const far_torture *torture;
    uint64_t seed, key_space;
    far_random random;
    far_keyset *keyset;
    far_history *history;
    far_sim_world *world;
    char uri[256];
    far_pool_options options;
    int64_t stamp;                     /* of the last begin or end: a total order, because one thread runs everything */
    unsigned node_count, client_count; /* of the clients the last node_count churn, if that is asked for */
    far_torture_node *nodes;
    far_torture_client *clients;
    far_torture_silence silences[FAR_TORTURE_SILENCES];
    unsigned silence_count;
    far_torture_side sides[FAR_TORTURE_SIDES];
    uint64_t verbs;  /* of all clients */
    uint64_t chosen; /* operations, of all clients */
    uint64_t crashes, silent, restarts, problems, merged;
    FILE *out;
};

/* torture.c */
void far_torture_problem(far_tortured *r, const char *what);
int64_t far_torture_stamp(far_tortured *r); /* the time, later than all before */

/* torture_small.c: for this seed, where the caller has asked for nothing else. */
void far_torture_choose_small(far_torture *torture, uint64_t seed);

/* torture_faults.c */
void far_torture_set_faults(far_tortured *r); /* from now on */
void far_torture_kill(far_tortured *r, far_torture_node *n);

/* torture_handles.c */
bool far_torture_is_killed(const far_torture_node *n);
bool far_torture_is_dead(const far_torture_client *c); /* its compute node is */
bool far_torture_is_lost(int result);                  /* the session or the handle that said so is */
int far_torture_open_pool(far_tortured *r, far_torture_node *n);
void far_torture_close_pool(far_torture_node *n);
int far_torture_renew(far_tortured *r, far_torture_node *n); /* opens the pool again, unless somebody uses it */

/* Opens a session; when the memory nodes have lost the handle, the pool is opened again first, once for all clients of
 * the compute node. */
int far_torture_enter(far_torture_client *c);
void far_torture_leave(far_torture_client *c);

/* torture_client.c */
void far_torture_client_main(void *client); /* all its operations, in sessions that come and go */
/* Runs c->left operations on the tortured index, one after the other; false: the session is lost. */
bool far_torture_work(far_torture_client *c);

/* churn.c: the client that does all that operations do not: sessions, indexes and compute nodes come and go, the pool is checked
 * and swept, long stalls. Until c->left things are done. */
void far_torture_churn(void *client);

#endif
