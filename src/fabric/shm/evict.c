/* The fabric `shm`: ends the process of a session (shm_evict). The entry of a session in the pool file names a process,
 * but every process that can write the file can write that name. So the entry is only a proposal, and the kernel decides
 * by the folder /proc/PID of the proposed process:
 *
 * 1. One of its descriptors holds the lock of the session (fdinfo).
 * 2. It has mapped the pool file (maps). A process that only received such a descriptor from another one has not.
 * 3. It belongs to the user of the caller (status). Root can skip this check with `force`.
 *
 * These checks are made after a process descriptor (pidfd) was opened, and the signal is sent through the pidfd. A pidfd
 * names one process even after its pid is reused. If the pid was reused before the checks, they examine another process
 * than the pidfd names. The process of the pidfd has ended then, so the signal has no effect. */
#define _GNU_SOURCE
#include "base/error.h"
#include "fabric/shm/shm.h"
#include "farindex.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* longest wait for a killed process to leave the kernel; on a busy machine the process first has to be scheduled */
#define PROCESS_END_MS 60000
/* longest wait until a process that has just locked the byte of a session has also written its entry */
#define UNLOCK_MS 1000


static int fail_to_confirm(unsigned id, int64_t pid, const char *why) {
    return far_fail(FAR_ERR_UNREACHABLE, "session %u names process %" PRId64 ", which was not ended, because %s", id,
                    pid, why);
}


/* ---- The view of the kernel ---- */

/* Returns true if the text of a file in fdinfo shows that the open file description holds the lock of the id. Such a
 * line is "lock: 1: OFDLCK ADVISORY WRITE -1 DEVICE:INODE FIRST LAST". */
static bool shows_lock_of_id(FILE *info, unsigned id) {
    char line[256];
    uint64_t byte = (uint64_t)SHM_LOCKS_AT + id, first, last;
    while (fgets(line, sizeof(line), info))
        if (sscanf(line, "lock: %*s OFDLCK %*s WRITE %*s %*s %" SCNu64 " %" SCNu64, &first, &last) == 2 &&
            first <= byte && byte <= last)
            return true;
    return false;
}


/* Returns true if the descriptor with the number `name` of the process holds a lock of the id, on any file. */
static bool descriptor_shows_lock(int process, const char *name, unsigned id) {
    char path[sizeof(((struct dirent *)0)->d_name) + 8];
    snprintf(path, sizeof(path), "fdinfo/%s", name);
    int file = openat(process, path, O_RDONLY | O_CLOEXEC);
    FILE *info = file < 0 ? NULL : fdopen(file, "r");
    bool found = info && shows_lock_of_id(info, id);
    if (info)
        fclose(info);
    else if (file >= 0)
        close(file);
    return found;
}


/* Returns true if a descriptor of the process refers to the pool file and holds the lock of the id. Descriptors are
 * compared with the file by their status, because the device number in the text of a lock differs from that of the
 * status on some file systems. Only descriptors with such a lock are compared, because the status of a file on another
 * file system may never arrive. */
static bool process_holds_lock(const shm_mapping *mapping, int process, unsigned id) {
    int folder = openat(process, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *descriptors = folder < 0 ? NULL : fdopendir(folder);
    if (!descriptors && folder >= 0)
        close(folder);
    bool found = false;
    const struct dirent *entry;
    while (descriptors && !found && (entry = readdir(descriptors))) {
        struct stat status;
        found = descriptor_shows_lock(process, entry->d_name, id) && fstatat(folder, entry->d_name, &status, 0) == 0 &&
                status.st_dev == mapping->device && status.st_ino == mapping->inode;
    }
    if (descriptors)
        closedir(descriptors);
    return found;
}


/* A mapping of a file, as a line of /proc/PID/maps describes it: "BEGIN-END RIGHTS OFFSET DEVICE INODE PATH". */
typedef struct mapped_file {
    uint64_t begin, end, inode;
    unsigned device[2];
} mapped_file;


/* Reads the next mapping. Returns false at the end of the file. A line may be longer than the buffer because of its
 * path; the rest of such a line does not have the form of a mapping, except if the path imitates one, so it is
 * skipped. */
static bool next_mapped_file(FILE *maps, mapped_file *m) {
    char line[256];
    while (fgets(line, sizeof(line), maps)) {
        bool is_mapping = sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %x:%x %" SCNu64, &m->begin, &m->end,
                                 &m->device[0], &m->device[1], &m->inode) == 5;
        while (!strchr(line, '\n') && fgets(line, sizeof(line), maps))
            ;
        if (is_mapping)
            return true;
    }
    return false;
}


/* Returns true if the process maps the pool file. The device and the inode number of the file are taken from the mapping
 * of this process, because on some file systems they differ from those of the file's status. */
static bool process_maps_file(const shm_mapping *mapping, int process) {
    mapped_file own = {0}, other = {0};
    FILE *maps = fopen("/proc/self/maps", "re");
    bool found = false;
    while (maps && !found && next_mapped_file(maps, &own))
        found = own.begin <= (uintptr_t)mapping->base && (uintptr_t)mapping->base < own.end;
    if (maps)
        fclose(maps);
    if (!found)
        return false;
    int file = openat(process, "maps", O_RDONLY | O_CLOEXEC);
    maps = file < 0 ? NULL : fdopen(file, "r");
    if (!maps && file >= 0)
        close(file);
    for (found = false; maps && !found && next_mapped_file(maps, &other);)
        found = other.inode == own.inode && memcmp(other.device, own.device, sizeof(own.device)) == 0;
    if (maps)
        fclose(maps);
    return found;
}


/* Returns true if the real, the effective and the saved user of the process are the user of the caller. `user` receives
 * the effective user. */
static bool process_belongs_to_caller(int process, unsigned *user) {
    char line[256];
    unsigned real = 0, saved = 0;
    bool known = false;
    int file = openat(process, "status", O_RDONLY | O_CLOEXEC);
    FILE *status = file < 0 ? NULL : fdopen(file, "r");
    *user = 0;
    while (status && !known && fgets(line, sizeof(line), status))
        known = sscanf(line, "Uid: %u %u %u", &real, user, &saved) == 3;
    if (status)
        fclose(status);
    else if (file >= 0)
        close(file);
    return known && real == geteuid() && *user == geteuid() && saved == geteuid();
}


static int confirm_process(const shm_mapping *mapping, int64_t pid, const far_control *request) {
    char path[32], why[128];
    unsigned user;
    snprintf(path, sizeof(path), "/proc/%" PRId64, pid);
    int process = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), err = 0;
    if (process < 0)
        return fail_to_confirm(request->id, pid, "it is not visible from this process");
    if (!process_belongs_to_caller(process, &user) && !(request->force && geteuid() == 0)) {
        snprintf(why, sizeof(why), "it belongs to user %u%s", user,
                 geteuid() == 0 ? "; 'farindex evict --force' ends it" : ", not to the calling user");
        err = fail_to_confirm(request->id, pid, why);
    } else if (!process_holds_lock(mapping, process, request->id)) {
        err = fail_to_confirm(request->id, pid, "the kernel does not show that it holds the lock of the session");
    } else if (!process_maps_file(mapping, process)) {
        err = fail_to_confirm(request->id, pid, "the kernel does not show that it has mapped the pool");
    }
    close(process);
    return err;
}


/* ---- Ending the process ---- */

/* Waits until the killed process has ended and its lock is free. The lock may remain held after the process has ended,
 * if a process that it started has inherited the descriptor. */
static int wait_for_process_end(far_conn *asker, const far_control *request, int descriptor) {
    struct pollfd process = {.fd = descriptor, .events = POLLIN};
    int ended;
    while ((ended = poll(&process, 1, PROCESS_END_MS)) < 0 && errno == EINTR)
        ;
    if (ended == 0)
        return far_fail(FAR_ERR_BUSY, "session %u was killed, but its process does not end", request->id);
    for (int ms = 0; ms < UNLOCK_MS; ms++) {
        int dead = shm_is_dead(asker, request->id, request->generation);
        if (dead)
            return dead < 0 ? dead : 0;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return far_fail(FAR_ERR_BUSY, "session %u was killed, but a process that it started still holds its lock",
                    request->id);
}


/* Kills the process that the descriptor names, after the checks that the top of this file describes. The session may
 * have ended since its entry was read; then no process is killed. */
static int kill_process_of_session(far_conn *asker, const far_control *request, int64_t pid, int descriptor) {
    int err = confirm_process(((shm_fabric *)asker->fabric)->mapping, pid, request);
    int dead = shm_is_dead(asker, request->id, request->generation);
    if (dead)
        return dead < 0 ? dead : 0;
    if (err)
        return err;
    if (syscall(SYS_pidfd_send_signal, descriptor, SIGKILL, NULL, 0) < 0 && errno != ESRCH)
        return far_fail(FAR_ERR_UNREACHABLE, "process %" PRId64 " of session %u cannot be killed: %s", pid, request->id,
                        strerror(errno));
    return wait_for_process_end(asker, request, descriptor);
}


int shm_evict(far_conn *asker, const far_control *request) {
    int dead = shm_is_dead(asker, request->id, request->generation);
    int64_t pid = dead ? 0 : shm_process_of(asker, request->id, request->generation);
    if (!dead && pid == 0) /* the session has ended since, or its entry is damaged */
        dead = shm_is_dead(asker, request->id, request->generation);
    if (dead)
        return dead < 0 ? dead : 0;
    if (request->process && pid != request->process)
        return far_fail(FAR_ERR_NOT_FOUND, "session %u names process %" PRId64 " now, not %" PRId64, request->id, pid,
                        request->process);
    if (pid == getpid())
        return far_fail(FAR_ERR_INVALID, "session %u belongs to this process", request->id);
    int descriptor = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0), error = errno; /* fails for the pid 0 */
    if (descriptor < 0) {
        dead = shm_is_dead(asker, request->id, request->generation);
        return dead ? (dead < 0 ? dead : 0) : fail_to_confirm(request->id, pid, strerror(error));
    }
    int err = kill_process_of_session(asker, request, pid, descriptor);
    close(descriptor);
    return err;
}
