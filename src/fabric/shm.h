/* The fabric `shm`, inside: the file (shm_file.c), the life of its clients (shm_life.c), verbs and URI (shm.c).
 *
 * The file:  0         header: what it is, written once before the file gets its name
 *            4096      clients: one entry per session id, written by the holder of that id's lock only
 *            2 MiB     memory node 0, then the others, each beginning at a multiple of 2 MiB (a huge page)
 *
 * A session lives as long as the byte LOCKS_AT + id of the file is locked, with a lock of the open file description:
 * the kernel drops it when the last thread of the process has left user mode for good, so none of its verbs can take
 * effect afterwards. A stopped process keeps it. Unlike a POSIX lock it is not lost when the process closes some other
 * descriptor of the file. Two descriptors of a process share one description only by inheritance: O_CLOEXEC takes care
 * of exec, a handler of fork closes the child's copies. */
#ifndef FAR_FABRIC_SHM_H
#define FAR_FABRIC_SHM_H

#include "fabric/fabric.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#define SHM_MAGIC         0x6d68732d72616600ull /* "\0far-shm" */
#define SHM_VERSION       1u
#define SHM_PAGE          4096u
#define SHM_HUGE_PAGE     (2u << 20)
#define SHM_IDS           16384u      /* far_client ids have 14 bits */
#define SHM_MADV_COLLAPSE 25          /* MADV_COLLAPSE: older headers do not have it, older kernels refuse it */
#define SHM_LOCKS_AT      (1ll << 62) /* byte n: the life of session n; byte 0: formatting a device */

typedef struct shm_header {
    uint64_t magic;
    uint32_t version, nodes;
    uint64_t node_bytes, file_bytes;
    uint64_t check; /* of all above */
} shm_header;

typedef struct shm_client {
    _Atomic uint64_t owner;   /* pid 32 | generation 16 << 32 */
    _Atomic uint64_t started; /* when that process started, in clock ticks since boot: a pid alone is given out again */
} shm_client;

#define SHM_CLIENTS_AT SHM_PAGE
#define SHM_NODES_AT   SHM_HUGE_PAGE

_Static_assert(sizeof(shm_header) <= SHM_PAGE, "the header has one page");
_Static_assert(SHM_CLIENTS_AT + SHM_IDS * sizeof(shm_client) <= SHM_NODES_AT,
               "the clients end before the memory nodes");


static inline uint64_t shm_owner_pack(unsigned pid, unsigned generation) {
    return (uint64_t)pid | (uint64_t)(generation & 0xffff) << 32;
}


static inline unsigned shm_owner_pid(uint64_t owner) {
    return (unsigned)owner;
}


static inline unsigned shm_owner_generation(uint64_t owner) {
    return (unsigned)(owner >> 32) & 0xffff;
}


static inline uint64_t shm_node_stride(uint64_t node_bytes) {
    return (node_bytes + SHM_HUGE_PAGE - 1) / SHM_HUGE_PAGE * SHM_HUGE_PAGE;
}


typedef struct shm_conn shm_conn;

/* A file as this process has it mapped; all handles on it share one. */
typedef struct shm_world {
    dev_t device;
    ino_t inode;
    unsigned handles, nodes;
    uint64_t node_bytes;
    uint64_t file_bytes;          /* what the file must have; 0: a device, which cannot be cut */
    _Atomic(const char *) broken; /* why it cannot be used any more; NULL: it can */
    _Atomic uint64_t next_look;   /* of housekeeping */
    char *base;
    size_t mapped;
    shm_client *clients;
    char *memory[FAR_NODES_MAX];
    int holder;           /* the descriptor whose description holds the locks of this process's sessions */
    int asker;            /* another description, so that those locks are in its way as well */
    uint64_t started;     /* this process */
    pthread_mutex_t lock; /* conns, and who of them holds what */
    shm_conn *conns;
    struct shm_world *next;
} shm_world;

typedef struct shm_fabric {
    far_fabric fabric; /* first */
    shm_world *world;
} shm_fabric;

struct shm_conn {
    far_conn conn;  /* first */
    unsigned id;    /* whose lock it holds; 0: none */
    shm_conn *next; /* in the world */
};

typedef struct shm_shape { /* as the URI says it; 0: not said */
    char path[FAR_URI_MAX];
    uint64_t node_bytes;
    unsigned nodes;
    bool existing; /* a file that is not there is not made */
} shm_shape;

/* shm_file.c: maps the file, or creates it first. */
int shm_join(const shm_shape *shape, shm_world **world);
void shm_leave(shm_world *world);

/* Whether the file is still whole, and ours: to touch what was cut off ends the process. Else FAR_ERR_UNREACHABLE, from
 * then on. */
int shm_look(shm_world *world);
int shm_renew(far_conn *conn); /* housekeeping looks; if it is not, all sessions of this process on it are lost */

/* shm_life.c */
uint64_t shm_process_start(pid_t pid); /* 0: there is no such process */
int shm_claim(far_conn *conn, unsigned id, unsigned generation);
int shm_is_dead(far_conn *asker, unsigned id, unsigned generation);
void shm_fence_self(far_conn *conn);
void shm_let_go(shm_conn *conn); /* of its id */
int shm_evict(far_conn *asker, unsigned id, unsigned generation);
int64_t shm_process_of(far_conn *asker, unsigned id, unsigned generation);

#endif
