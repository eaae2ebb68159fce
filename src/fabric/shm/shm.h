/* The fabric `shm`, internal interface. file.c creates and maps the pool file, liveness.c decides which sessions are
 * alive, evict.c kills the process of a session, and shm.c parses the URI and runs verbs.
 *
 * Layout of the pool file:
 *
 *     0         header: describes the pool, written once before the file gets its name
 *     4096      clients: one entry for each session id, written only by the holder of that id's lock
 *     2 MiB     memory node 0, then the other nodes, each at a multiple of 2 MiB (a huge page)
 *
 * A session is alive while byte SHM_LOCKS_AT + id of the file is locked with an open file description lock
 * (F_OFD_SETLK). The kernel drops such a lock when the last thread of the process has left user mode for good, so no
 * verb of the session can take effect after its lock is free. A stopped process keeps its locks. Unlike a POSIX lock,
 * this lock is not lost when the process closes another descriptor of the same file. Descriptors share an open file
 * description only by inheritance. O_CLOEXEC prevents that across exec, and a fork handler closes the copies in the
 * child. */
#ifndef FAR_FABRIC_SHM_SHM_H
#define FAR_FABRIC_SHM_SHM_H

#include "fabric/fabric.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#define SHM_MAGIC         0x6d68732d72616600ull /* the bytes "\0far-shm" */
#define SHM_VERSION       1u
#define SHM_PAGE          4096u
#define SHM_HUGE_PAGE     (2u << 20)
#define SHM_IDS           16384u /* number of session ids; an id has 14 bits */
#define SHM_MADV_COLLAPSE 25 /* value of MADV_COLLAPSE, which older headers do not define and older kernels refuse */
/* first byte of the lock range: byte n is locked while session n is alive; byte 0 is locked while a device is being
 * formatted */
#define SHM_LOCKS_AT (1ll << 62)

typedef struct shm_header {
    uint64_t magic;
    uint32_t version, nodes;
    uint64_t node_bytes, file_bytes;
    uint64_t check; /* checksum of all fields above */
} shm_header;

typedef struct shm_client {
    _Atomic uint64_t owner; /* process id in the low 32 bits, generation in the next 16 bits; 0: no session */
    uint64_t unused;
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

/* A pool file as this process has mapped it. All handles of the process on one file share it. */
typedef struct shm_mapping {
    dev_t device;
    ino_t inode;
    unsigned handles, nodes;
    uint64_t node_bytes;
    uint64_t file_bytes;           /* size that the file must have; 0: a device, which cannot change its size */
    _Atomic(const char *) failure; /* why the file cannot be used any more; NULL: it can be used */
    _Atomic uint64_t next_check;   /* time in ns of the next check by housekeeping */
    char *base;
    size_t mapped;
    shm_client *clients;
    char *memory[FAR_NODES_MAX];
    /* Descriptor with which this process locks the ids of its sessions; its open file description holds all these
     * locks. */
    int lock_descriptor;
    /* Descriptor with another open file description of the same file, used to query locks. A query through it also
     * finds the locks of this process. */
    int query_descriptor;
    pthread_mutex_t lock; /* protects the list `conns` and the ids that its connections hold */
    shm_conn *conns;
    struct shm_mapping *next;
} shm_mapping;

typedef struct shm_fabric {
    far_fabric fabric; /* must be the first member, because pointers to it are cast to the whole struct */
    shm_mapping *mapping;
} shm_fabric;

struct shm_conn {
    far_conn conn;  /* must be the first member, because pointers to it are cast to the whole struct */
    unsigned id;    /* id of the session whose lock the connection holds; 0: it holds no lock */
    shm_conn *next; /* next connection in the list of the mapping */
};

typedef struct shm_options { /* The pool as the URI describes it. Members that the URI does not mention are 0. */
    char path[FAR_URI_MAX];
    uint64_t node_bytes;
    unsigned nodes;
    int shared;    /* 1: use the file even if other users own, can write or can read it */
    bool existing; /* fail instead of creating a missing file */
} shm_options;

/* Parses the part of the URI after "shm:". Returns 0, or FAR_ERR_INVALID with a message. */
int shm_parse_uri(const char *rest, shm_options *options);
/* Checks the header of a pool file. Returns 0, or FAR_ERR_CORRUPT with a message that names the path. */
int shm_check_header(const shm_header *header, const char *path);

/* Attaches the calling handle to this process's mapping of the pool file. If the process has no mapping yet, the file
 * is mapped first. If the file does not exist and the options allow it, the file is created first. Returns 0 or an
 * error. */
int shm_attach(const shm_options *options, shm_mapping **mapping);
void shm_detach(shm_mapping *mapping);

/* Checks that the file still has its full size and that its descriptors are still open. Returns FAR_ERR_UNREACHABLE
 * from the first failed check on, because accessing the missing part of a truncated file would kill the process with
 * SIGBUS. */
int shm_check_file(shm_mapping *mapping);
/* called by housekeeping: checks the file, and fences all sessions of this process on it if the check fails */
int shm_renew(far_conn *conn);

int shm_claim(far_conn *conn, unsigned id, unsigned generation);
int shm_is_dead(far_conn *asker, unsigned id, unsigned generation);
void shm_fence_self(far_conn *conn);
void shm_release_id(shm_conn *conn); /* releases the id that the connection holds */
/* Kills the process of a session, if the kernel confirms that the process holds the session and if the caller may kill
 * it (evict.c). */
int shm_evict(far_conn *asker, const far_control *request);
int64_t shm_process_of(far_conn *asker, unsigned id, unsigned generation);

#endif
