/* The fabric `shm`: decides which sessions are alive, by the locks of the pool file (shm.h explains them). It
 * implements the operations claim, has_failed, fence_self, evict and process_of. */
#define _GNU_SOURCE
#include "base/error.h"
#include "fabric/shm/shm.h"
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

/* longest wait for a killed process to leave the kernel; on a busy machine the process first has to be scheduled */
#define PROCESS_END_MS 60000
/* longest wait until a process that has just locked the byte of a session has also written its entry */
#define UNLOCK_MS 1000


static shm_mapping *mapping_of(const far_conn *conn) {
    return ((shm_fabric *)conn->fabric)->mapping;
}


/* Returns the start time of a process: field 22 of /proc/PID/stat. The search begins after the last ')', because field
 * 2, the command in parentheses, may contain any characters. */
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


static int set_lock_of_id(int descriptor, short type, unsigned id) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = SHM_LOCKS_AT + id, .l_len = 1};
    return fcntl(descriptor, F_OFD_SETLK, &lock);
}


/* Returns 1 if any other open file description holds the lock of the id, 0 if none does, or a negative error if the
 * kernel does not answer. */
static int query_lock_of_id(int descriptor, unsigned id) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SHM_LOCKS_AT + id, .l_len = 1};
    if (fcntl(descriptor, F_OFD_GETLK, &lock) < 0)
        return far_fail(FAR_ERR_UNREACHABLE, "the lock of session %u cannot be queried: %s", id, strerror(errno));
    return lock.l_type != F_UNLCK;
}


/* Releases the id that the connection holds. The entry is cleared before the lock is released. Otherwise the next
 * process that locks the byte would appear, until it writes its own entry, to be the session that has just ended, and
 * evicting that session would kill the wrong process. */
void shm_release_id(shm_conn *conn) {
    shm_mapping *mapping = mapping_of(&conn->conn);
    if (conn->id && shm_check_file(mapping) == 0)
        atomic_store_explicit(&mapping->clients[conn->id].owner, 0, memory_order_seq_cst);
    if (conn->id)
        set_lock_of_id(mapping->lock_descriptor, F_UNLCK, conn->id);
    conn->id = 0;
}


/* Returns true if a connection of this process holds the id. The locks cannot show that, because all sessions of a
 * process lock through one open file description and therefore never conflict. The caller holds the lock of the
 * mapping. */
static bool id_is_held_by_this_process(const shm_mapping *mapping, unsigned id) {
    for (const shm_conn *conn = mapping->conns; conn; conn = conn->next)
        if (conn->id == id)
            return true;
    return false;
}


/* Locks the byte of the id and writes its entry, which only the lock holder may write. `owner` is 0 while `started`
 * changes. So if a reader reads the same owner before and after it reads `started`, then the start time belongs to that
 * owner. Returns FAR_ERR_BUSY if another connection holds the id. */
static int claim_id(shm_mapping *mapping, shm_conn *conn, unsigned id, unsigned generation) {
    if (id_is_held_by_this_process(mapping, id))
        return FAR_ERR_BUSY;
    if (set_lock_of_id(mapping->lock_descriptor, F_WRLCK, id) < 0)
        return errno == EAGAIN || errno == EACCES
                   ? FAR_ERR_BUSY
                   : far_fail(FAR_ERR_UNREACHABLE, "session %u cannot be locked: %s", id, strerror(errno));
    conn->id = id;
    shm_client *client = &mapping->clients[id];
    atomic_store_explicit(&client->owner, 0, memory_order_seq_cst);
    atomic_store_explicit(&client->started, mapping->started, memory_order_seq_cst);
    atomic_store_explicit(&client->owner, shm_owner_pack((unsigned)getpid(), generation), memory_order_seq_cst);
    return 0;
}


int shm_claim(far_conn *base, unsigned id, unsigned generation) {
    shm_mapping *mapping = mapping_of(base);
    shm_conn *conn = (shm_conn *)base;
    int err = 0;
    pthread_mutex_lock(&mapping->lock);
    if (id >= SHM_IDS)
        err = far_fail(FAR_ERR_INVALID, "session id %u is larger than %u", id, SHM_IDS - 1);
    else if ((err = shm_check_file(mapping)) != 0)
        ;
    else if (atomic_load_explicit(&conn->conn.fenced, memory_order_acquire))
        err = far_fail(FAR_ERR_FENCED, "this session was lost");
    else
        shm_release_id(conn);
    if (!err && id)
        err = claim_id(mapping, conn, id, generation);
    pthread_mutex_unlock(&mapping->lock);
    return err;
}


/* Returns 1 if the session (id, generation) has ended, 0 if it is alive, or a negative error. A session claims its id
 * before it writes the pair into the registry, where the asking client has read the pair. So if another generation
 * holds the lock of the id now, the session has ended. */
int shm_is_dead(far_conn *asker, unsigned id, unsigned generation) {
    shm_mapping *mapping = mapping_of(asker);
    if (id == 0 || id >= SHM_IDS)
        return 1;
    int err = shm_check_file(mapping), locked = err ? err : query_lock_of_id(mapping->query_descriptor, id);
    if (locked <= 0)
        return locked < 0 ? locked : 1;
    return shm_owner_generation(atomic_load_explicit(&mapping->clients[id].owner, memory_order_seq_cst)) !=
           (generation & 0xffff);
}


void shm_fence_self(far_conn *base) {
    shm_conn *conn = (shm_conn *)base;
    pthread_mutex_lock(&mapping_of(base)->lock);
    far_conn_fence(&conn->conn);
    shm_release_id(conn);
    pthread_mutex_unlock(&mapping_of(base)->lock);
}


int64_t shm_process_of(far_conn *asker, unsigned id, unsigned generation) {
    uint64_t owner =
        id < SHM_IDS ? atomic_load_explicit(&mapping_of(asker)->clients[id].owner, memory_order_seq_cst) : 0;
    return shm_owner_generation(owner) == (generation & 0xffff) ? shm_owner_pid(owner) : 0;
}


/* Waits until the killed process has ended and its lock is free. The lock may remain held after the process has ended,
 * if a process that it started has inherited the descriptor. */
static int wait_for_process_end(far_conn *asker, unsigned id, unsigned generation, int descriptor) {
    struct pollfd process = {.fd = descriptor, .events = POLLIN};
    int ended;
    while ((ended = poll(&process, 1, PROCESS_END_MS)) < 0 && errno == EINTR)
        ;
    if (ended == 0)
        return far_fail(FAR_ERR_BUSY, "session %u was killed, but its process does not end", id);
    for (int ms = 0; ms < UNLOCK_MS; ms++) {
        int dead = shm_is_dead(asker, id, generation);
        if (dead)
            return dead < 0 ? dead : 0;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return far_fail(FAR_ERR_BUSY, "session %u was killed, but a process that it started still holds its lock", id);
}


/* Kills the process of a session through a process descriptor (pidfd), which names one process even after the pid is
 * reused. All checks are made after the descriptor was opened. If the session is alive then, its process has lived
 * since it claimed the session, so this process had the pid when the descriptor was opened. There is one exception: a
 * new process may have just locked the byte of the session without having written its entry yet. Then the process that
 * the entry names has ended, and the start time in the entry reveals whether another process has received its pid. */
static int kill_process_of_session(far_conn *asker, unsigned id, unsigned generation, int64_t pid, int descriptor) {
    uint64_t started = atomic_load_explicit(&mapping_of(asker)->clients[id].started, memory_order_seq_cst);
    int dead = shm_is_dead(asker, id, generation);
    if (dead)
        return dead < 0 ? dead : 0;
    if (started == 0 || shm_process_start((pid_t)pid) != started)
        return far_fail(FAR_ERR_UNREACHABLE,
                        "session %u belongs to process %lld, which is not visible from this process", id,
                        (long long)pid);
    if (syscall(SYS_pidfd_send_signal, descriptor, SIGKILL, NULL, 0) < 0 && errno != ESRCH)
        return far_fail(FAR_ERR_UNREACHABLE, "process %lld of session %u cannot be killed: %s", (long long)pid, id,
                        strerror(errno));
    return wait_for_process_end(asker, id, generation, descriptor);
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
                    : far_fail(FAR_ERR_UNREACHABLE,
                               "session %u belongs to process %lld, which is not visible from this process: %s", id,
                               (long long)pid, strerror(error));
    }
    int err = kill_process_of_session(asker, id, generation, pid, descriptor);
    close(descriptor);
    return err;
}
