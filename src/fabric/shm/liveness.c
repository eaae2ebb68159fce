/* The fabric `shm`: decides which sessions are alive, by the locks of the pool file (shm.h explains them). It
 * implements the operations claim, has_failed, fence_self and process_of. */
#define _GNU_SOURCE
#include "base/error.h"
#include "fabric/shm/shm.h"
#include "farindex.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>


static shm_mapping *mapping_of(const far_conn *conn) {
    return ((shm_fabric *)conn->fabric)->mapping;
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
 * that session would count as alive. */
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


/* Locks the byte of the id and writes its entry, which only the lock holder may write. Returns FAR_ERR_BUSY if another
 * connection holds the id. */
static int claim_id(shm_mapping *mapping, shm_conn *conn, unsigned id, unsigned generation) {
    if (id_is_held_by_this_process(mapping, id))
        return FAR_ERR_BUSY;
    if (set_lock_of_id(mapping->lock_descriptor, F_WRLCK, id) < 0)
        return errno == EAGAIN || errno == EACCES
                   ? FAR_ERR_BUSY
                   : far_fail(FAR_ERR_UNREACHABLE, "session %u cannot be locked: %s", id, strerror(errno));
    conn->id = id;
    atomic_store_explicit(&mapping->clients[id].owner, shm_owner_pack((unsigned)getpid(), generation),
                          memory_order_seq_cst);
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
