/* The fabric `shm`: who lives. */
#define _GNU_SOURCE
#include "base/error.h"
#include "fabric/shm.h"
#include "farindex.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define KILLED_MS                                                                                                      \
    60000 /* until a killed process has left the kernel: on a busy machine it waits for its turn to do that */
#define LOCKED_MS 1000 /* until whoever locked the byte of one that is gone has said so */


static shm_world *world_of(const far_conn *conn) {
    return ((shm_fabric *)conn->fabric)->world;
}


/* The 22nd field of /proc/PID/stat; the second, the command in brackets, may hold anything. */
uint64_t shm_process_start(pid_t pid) {
    char path[32], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t length = read(file, text, sizeof(text) - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    const char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}


static int lock_byte(int descriptor, short type, unsigned id) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = SHM_LOCKS_AT + id, .l_len = 1};
    return fcntl(descriptor, F_OFD_SETLK, &lock);
}


/* 1: somebody holds it; 0: nobody; negative: the kernel cannot tell. */
static int is_locked(int descriptor, unsigned id) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SHM_LOCKS_AT + id, .l_len = 1};
    if (fcntl(descriptor, F_OFD_GETLK, &lock) < 0)
        return far_fail(FAR_ERR_UNREACHABLE, "the lock of session %u cannot be asked for: %s", id, strerror(errno));
    return lock.l_type != F_UNLCK;
}


/* The entry names nobody before the lock is free: else the next who locks it would seem to be the one who left, and who
 * evicts would kill that one. */
void shm_let_go(shm_conn *conn) {
    shm_world *world = world_of(&conn->conn);
    if (conn->id && shm_look(world) == 0)
        atomic_store_explicit(&world->clients[conn->id].owner, 0, memory_order_seq_cst);
    if (conn->id)
        lock_byte(world->holder, F_UNLCK, conn->id);
    conn->id = 0;
}


/* Sessions of one process lock through one description, so they are not in each other's way: those are looked through.
 */
static bool is_held_here(const shm_world *world, unsigned id) {
    for (const shm_conn *conn = world->conns; conn; conn = conn->next)
        if (conn->id == id)
            return true;
    return false;
}


/* Only the holder of the lock writes the entry. While it is written it names nobody: so whoever reads one owner before
 * and after `started` knows that `started` is that owner's. */
static int claim_id(shm_world *world, shm_conn *conn, unsigned id, unsigned generation) {
    if (is_held_here(world, id))
        return FAR_ERR_BUSY;
    if (lock_byte(world->holder, F_WRLCK, id) < 0)
        return errno == EAGAIN || errno == EACCES
                   ? FAR_ERR_BUSY
                   : far_fail(FAR_ERR_UNREACHABLE, "session %u cannot be locked: %s", id, strerror(errno));
    conn->id = id;
    shm_client *client = &world->clients[id];
    atomic_store_explicit(&client->owner, 0, memory_order_seq_cst);
    atomic_store_explicit(&client->started, world->started, memory_order_seq_cst);
    atomic_store_explicit(&client->owner, shm_owner_pack((unsigned)getpid(), generation), memory_order_seq_cst);
    return 0;
}


int shm_claim(far_conn *base, unsigned id, unsigned generation) {
    shm_world *world = world_of(base);
    shm_conn *conn = (shm_conn *)base;
    int err = 0;
    pthread_mutex_lock(&world->lock);
    if (id >= SHM_IDS)
        err = far_fail(FAR_ERR_INVALID, "session id %u is more than %u", id, SHM_IDS - 1);
    else if ((err = shm_look(world)) != 0)
        ;
    else if (atomic_load_explicit(&conn->conn.fenced, memory_order_acquire))
        err = far_fail(FAR_ERR_FENCED, "this session was lost");
    else
        shm_let_go(conn);
    if (!err && id)
        err = claim_id(world, conn, id, generation);
    pthread_mutex_unlock(&world->lock);
    return err;
}


/* The pair was claimed before it was written into the registry, where the asker has it from: if another generation has
 * the lock by now, this one is over. */
int shm_is_dead(far_conn *asker, unsigned id, unsigned generation) {
    shm_world *world = world_of(asker);
    if (id == 0 || id >= SHM_IDS)
        return 1;
    int err = shm_look(world), locked = err ? err : is_locked(world->asker, id);
    if (locked <= 0)
        return locked < 0 ? locked : 1;
    return shm_owner_generation(atomic_load_explicit(&world->clients[id].owner, memory_order_seq_cst)) !=
           (generation & 0xffff);
}


void shm_fence_self(far_conn *base) {
    shm_conn *conn = (shm_conn *)base;
    pthread_mutex_lock(&world_of(base)->lock);
    far_conn_fence(&conn->conn);
    shm_let_go(conn);
    pthread_mutex_unlock(&world_of(base)->lock);
}


int64_t shm_process_of(far_conn *asker, unsigned id, unsigned generation) {
    uint64_t owner = id < SHM_IDS ? atomic_load_explicit(&world_of(asker)->clients[id].owner, memory_order_seq_cst) : 0;
    return shm_owner_generation(owner) == (generation & 0xffff) ? shm_owner_pid(owner) : 0;
}


/* A process that is gone holds no lock, but one that it started may have inherited it. */
static int wait_for_death(far_conn *asker, unsigned id, unsigned generation, int descriptor) {
    struct pollfd process = {.fd = descriptor, .events = POLLIN};
    int ended;
    while ((ended = poll(&process, 1, KILLED_MS)) < 0 && errno == EINTR)
        ;
    if (ended == 0)
        return far_fail(FAR_ERR_BUSY, "session %u was killed, but its process does not end", id);
    for (int ms = 0; ms < LOCKED_MS; ms++) {
        int dead = shm_is_dead(asker, id, generation);
        if (dead)
            return dead < 0 ? dead : 0;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return far_fail(FAR_ERR_BUSY, "session %u was killed, but a process that it started still holds its lock", id);
}


/* The descriptor stands for the process that had this pid when it was opened: what is found out after that is true of
 * the one it kills. The session lives, so its process has lived all the time since it claimed the session, and had the
 * pid when the descriptor was opened. Or another has just locked the session's byte and not yet said so: then the
 * process is dead, and if somebody has its pid by now the start time tells. */
static int kill_owner(far_conn *asker, unsigned id, unsigned generation, int64_t pid, int descriptor) {
    uint64_t started = atomic_load_explicit(&world_of(asker)->clients[id].started, memory_order_seq_cst);
    int dead = shm_is_dead(asker, id, generation);
    if (dead)
        return dead < 0 ? dead : 0;
    if (started == 0 || shm_process_start((pid_t)pid) != started)
        return far_fail(FAR_ERR_UNREACHABLE, "session %u lives in process %lld, which is not seen from here", id,
                        (long long)pid);
    if (syscall(SYS_pidfd_send_signal, descriptor, SIGKILL, NULL, 0) < 0 && errno != ESRCH)
        return far_fail(FAR_ERR_UNREACHABLE, "process %lld of session %u cannot be killed: %s", (long long)pid, id,
                        strerror(errno));
    return wait_for_death(asker, id, generation, descriptor);
}


int shm_evict(far_conn *asker, unsigned id, unsigned generation) {
    int dead = shm_is_dead(asker, id, generation);
    int64_t pid = dead ? 0 : shm_process_of(asker, id, generation);
    if (dead || pid == 0)
        return dead < 0 ? dead : 0;
    if (pid == getpid())
        return far_fail(FAR_ERR_INVALID, "session %u belongs to this process", id);
    int descriptor = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0), error = errno;
    if (descriptor < 0) {
        dead = shm_is_dead(asker, id, generation);
        return dead ? (dead < 0 ? dead : 0)
                    : far_fail(FAR_ERR_UNREACHABLE, "session %u lives in process %lld, which is not seen from here: %s",
                               id, (long long)pid, strerror(error));
    }
    int err = kill_owner(asker, id, generation, pid, descriptor);
    close(descriptor);
    return err;
}
