/* Private to torture: the state of one run, and the functions that its files share. torture.c sets up a run and checks
 * it afterwards; torture_client.c and churn.c contain the code of its clients; torture_handles.c opens their pools and
 * sessions; torture_faults.c plans failures; torture_small.c chooses options of small indexes. */
#ifndef FAR_VERIFY_TORTURE_RUN_H
#define FAR_VERIFY_TORTURE_RUN_H

#include "base/random.h"
#include "fabric/sim/sim.h"
#include "verify/history.h"
#include "verify/torture.h"
#include "workload/keyset.h"

#define FAR_TORTURED_INDEX "tortured"

typedef struct far_tortured far_tortured;

typedef struct far_torture_slot { /* an operation in flight of a client */
    far_op op;
    size_t record; /* index of the operation in the history */
    bool busy;
    uint8_t key[FAR_KEY_MAX], to[FAR_KEY_MAX];
    uint8_t *value;
    far_tortured *owner;
} far_torture_slot;

typedef enum {
    FAR_MOVE_FIRST,
    FAR_MOVE_LAST,
    FAR_MOVE_SEEK,
    FAR_MOVE_SEEK_BEFORE,
    FAR_MOVE_NEXT,
    FAR_MOVE_PREV,
    FAR_MOVES
} far_torture_move;

typedef struct far_torture_cursor { /* the cursor of a client */
    far_cursor *open;               /* NULL: none is open */
    uint8_t from[FAR_KEY_MAX], to[FAR_KEY_MAX];
    size_t from_len, to_len; /* the range of the cursor */
    bool bounded;
    bool down; /* direction of most moves */
    enum { FAR_PLACE_NONE, FAR_PLACE_BEFORE, FAR_PLACE_PAIR, FAR_PLACE_AFTER } place;
    uint8_t key[FAR_KEY_MAX]; /* key of the pair at the position */
    size_t key_len;
    int64_t read_start, read_end; /* begin and end of the call that filled the buffer of the cursor */
    uint64_t writes;              /* value of the client's writes_ended at that time */
} far_torture_cursor;

typedef struct far_torture_node {
    /* The handle of the compute node on which the clients of this node run. It stays open after it is lost, because the
     * simulated clients belong to it. */
    far_pool *first;
    /* the handle that the clients use: `first`, or a later one that was opened after `first` was lost */
    far_pool *pool;
    far_index *index;
    uint64_t verbs_to_live; /* the node is killed when it has posted this many more verbs; 0: it survives */
    unsigned users;         /* number of clients that have a session in `pool` */
    bool renewing;          /* a client is opening the pool again; `pool` may be NULL meanwhile */
} far_torture_node;

typedef struct far_torture_outage { /* an outage of a memory node: it does not answer for some time */
    uint64_t verbs;                 /* the outage begins when all clients together have posted this many verbs */
    uint64_t ns;
    unsigned node;
    bool restart; /* the outage ends with a restart of the node's daemon */
    far_tortured *run;
} far_torture_outage;

#define FAR_TORTURE_OUTAGES 3

typedef struct far_torture_client {
    far_tortured *run;
    unsigned number;
    far_torture_node *node;
    uint64_t left, written;
    bool was_drained; /* true if the previous operation of this client belonged to a phase that deletes all keys */
    far_random random;
    far_session *session;
    far_pool *temporary_pool; /* handle of an additional compute node that this client runs at the moment; NULL: none */
    far_sim_client *sim;
    far_torture_slot *slots;
    far_torture_cursor cursor;
    uint64_t writes_ended;  /* number of writes of this client that have ended, if it has one operation in flight */
    uint64_t verbs_to_live; /* The session of this client fails when it has posted this many more verbs; 0: never. */
    /* how the session fails: true: its connection is lost; false: it is fenced although it is alive */
    bool loses;
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
    /* time of the last begin or end of an operation; all times differ, because one thread runs everything */
    int64_t stamp;
    /* if churn is on, the last node_count of these clients open and close handles and indexes instead (churn.c) */
    unsigned node_count, client_count;
    far_torture_node *nodes;
    far_torture_client *clients;
    far_torture_outage outages[FAR_TORTURE_OUTAGES];
    unsigned outage_count;
    uint64_t verbs;  /* number of verbs that all clients have posted */
    uint64_t chosen; /* number of operations that all clients have chosen */
    uint64_t crashes, outages_begun, restarts, problems, merged;
    FILE *out;
};

/* torture.c: reports a problem of the run with its seed. */
void far_torture_problem(far_tortured *r, const char *what);
int64_t far_torture_stamp(far_tortured *r); /* returns the virtual time, later than all earlier stamps */

/* torture_small.c: chooses the settings of this seed that the caller left open. */
void far_torture_choose_small(far_torture *torture, uint64_t seed);

/* Functions of torture_faults.c: */
void far_torture_set_faults(far_tortured *r); /* plans failures, and switches faults on */
void far_torture_kill(far_tortured *r, far_torture_node *n);

/* Functions of torture_handles.c: */
bool far_torture_is_killed(const far_torture_node *n);
/* returns whether the compute node of the client was killed */
bool far_torture_client_has_failed(const far_torture_client *c);
/* returns true if the result means that the session or its handle is lost */
bool far_torture_session_is_lost(int result);
int far_torture_open_pool(far_tortured *r, far_torture_node *n);
void far_torture_close_pool(far_torture_node *n);
/* opens the pool again, unless a client has a session in it */
int far_torture_reopen_pool(far_tortured *r, far_torture_node *n);

/* Opens a session. If the handle was lost in an outage of a memory node, one client of the compute node first opens the
 * pool again, while the other clients wait. */
int far_torture_open_session(far_torture_client *c);
void far_torture_close_session(far_torture_client *c);

/* Functions of torture_client.c: */
/* main function of a client: runs its operations, in one session after another */
void far_torture_client_main(void *client);
/* Runs c->left operations on the tortured index, one after the other. Returns false if the session was lost. */
bool far_torture_work(far_torture_client *c);

/* Stores a random key in `key` and returns its length. */
size_t far_torture_choose_key(far_torture_client *c, uint8_t *key);

/* Functions of torture_cursor.c: */
/* Makes some moves with the cursor of the client, and records them. Returns 0 or the error of a move. */
int far_torture_move_cursor(far_torture_client *c);
/* Closes the cursor of the client if one is open. */
void far_torture_close_cursor(far_torture_client *c);

/* churn.c: main function of a client that does everything except normal operations. The client opens and closes
 * sessions, indexes and compute nodes, checks the pool with and without repair, and stalls, until it has done c->left
 * steps. */
void far_torture_churn(void *client);

#endif
