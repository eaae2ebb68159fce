/* The fabric `shm`: the file. It is made without a name, whole and with all its room, and then linked to its path:
 * whoever finds it finds it ready, and of two who make one at once one wins and both use that. */
#define _GNU_SOURCE
#include "base/error.h"
#include "base/parse.h"
#include "fabric/net/memory.h"
#include "fabric/shm.h"
#include "farindex.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <xxhash.h>

#define JOIN_TRIES 16 /* to join a file that comes and goes meanwhile */
#define FILE_MODE  0600
#define LOOK_NS    1000000u /* slices of housekeeping may follow each other much faster */

#define SHMEM_ENABLED "/sys/kernel/mm/transparent_hugepage/shmem_enabled"

static pthread_mutex_t worlds_lock = PTHREAD_MUTEX_INITIALIZER;
static shm_world *worlds;


/* ---- Fork: the child's copies of the descriptors would keep the parent's sessions alive, and its verbs would be
 * another's ---- */

static void before_fork(void) {
    pthread_mutex_lock(&worlds_lock);
}


static void after_fork(void) {
    pthread_mutex_unlock(&worlds_lock);
}


static void after_fork_in_child(void) {
    for (shm_world *world = worlds; world; world = world->next) {
        close(world->holder);
        close(world->asker);
        world->holder = world->asker = -1;
        pthread_mutex_init(&world->lock, NULL); /* its owner may be a thread that is not here */
        for (shm_conn *conn = world->conns; conn; conn = conn->next) {
            far_conn_fence(&conn->conn);
            conn->id = 0; /* the id is the parent's: nothing is to be written in its name */
        }
    }
    worlds = NULL;
    pthread_mutex_unlock(&worlds_lock);
}


static void watch_forks(void) {
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}


/* ---- What the system says ---- */

static int refuse_path(const char *path, const char *doing) {
    int error = errno;
    int code = error == ENOENT || error == ENOTDIR                                             ? FAR_ERR_NOT_FOUND
               : error == ENOSPC || error == EDQUOT || error == ENOMEM || error == EFBIG       ? FAR_ERR_NO_MEMORY
               : error == EISDIR || error == ENAMETOOLONG || error == ELOOP || error == EINVAL ? FAR_ERR_INVALID
                                                                                               : FAR_ERR_UNREACHABLE;
    return far_fail(code, "shm:%s: %s: %s", path, doing, strerror(error));
}


static uint64_t round_up(uint64_t bytes, uint64_t step) {
    return (bytes + step - 1) / step * step;
}


static bool has_own_pages(int file) { /* hugetlbfs: addresses and sizes in its pages only */
    struct statfs fs;
    return fstatfs(file, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC;
}


static bool is_tmpfs(int file) {
    struct statfs fs;
    return fstatfs(file, &fs) == 0 && fs.f_type == TMPFS_MAGIC;
}


static bool is_device(const struct stat *status) {
    return S_ISCHR(status->st_mode);
}


/* Bytes of a file, or of a DAX device; 0: not known. */
static uint64_t bytes_of(const struct stat *status) {
    if (!is_device(status))
        return (uint64_t)status->st_size;
    char path[64];
    unsigned long long bytes = 0;
    snprintf(path, sizeof(path), "/sys/dev/char/%u:%u/size", major(status->st_rdev), minor(status->st_rdev));
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%llu", &bytes) != 1)
        bytes = 0;
    if (file)
        fclose(file);
    return bytes;
}


/* At a multiple of the huge page, so that those can be used. */
static void *map_file(int file, size_t bytes, bool any_address) {
    void *mapped = MAP_FAILED;
    if (any_address)
        return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    char *room = mmap(NULL, bytes + SHM_HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return MAP_FAILED;
    char *at = (char *)round_up((uintptr_t)room, SHM_HUGE_PAGE), *end = at + round_up(bytes, SHM_PAGE);
    mapped = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    int error = errno;
    if (mapped == MAP_FAILED) {
        munmap(room, bytes + SHM_HUGE_PAGE);
        errno = error;
        return MAP_FAILED;
    }
    if (at > room)
        munmap(room, (size_t)(at - room));
    if (end < room + round_up(bytes + SHM_HUGE_PAGE, SHM_PAGE))
        munmap(end, (size_t)(room + round_up(bytes + SHM_HUGE_PAGE, SHM_PAGE) - end));
    madvise(mapped, bytes, MADV_HUGEPAGE); /* a wish */
    return mapped;
}


/* ---- The header ---- */

static uint64_t check_of(const shm_header *header) {
    return XXH3_64bits(header, offsetof(shm_header, check));
}


static uint64_t bytes_for(uint64_t node_bytes, unsigned nodes) {
    return SHM_NODES_AT + nodes * shm_node_stride(node_bytes);
}


static void write_header(void *base, const shm_shape *shape) {
    shm_header header = {.version = SHM_VERSION,
                         .magic = SHM_MAGIC,
                         .nodes = shape->nodes ? shape->nodes : 1,
                         .node_bytes = shape->node_bytes};
    header.file_bytes = bytes_for(header.node_bytes, header.nodes);
    header.check = check_of(&header);
    uint64_t magic = header.magic;
    header.magic = 0;
    memcpy(base, &header, sizeof(header));
    atomic_store_explicit((_Atomic uint64_t *)base, magic, memory_order_release); /* last: on a device others look */
}


static int check_header(const shm_header *header, const char *path, uint64_t bytes) {
    if (header->magic == NET_FILE_MAGIC)
        return far_fail(FAR_ERR_CORRUPT, "shm:%s: this is the memory of a network node (farindex serve)", path);
    if (header->magic != SHM_MAGIC)
        return far_fail(FAR_ERR_CORRUPT, "shm:%s: not a farindex pool", path);
    if (header->version != SHM_VERSION)
        return far_fail(FAR_ERR_CORRUPT, "shm:%s: the file has format version %u, this library knows version %u", path,
                        header->version, SHM_VERSION);
    if (header->check != check_of(header) || header->nodes < 1 || header->nodes > FAR_NODES_MAX ||
        header->node_bytes == 0 || header->node_bytes > FAR_NODE_BYTES_MAX || header->node_bytes % SHM_PAGE != 0 ||
        header->file_bytes != bytes_for(header->node_bytes, header->nodes))
        return far_fail(FAR_ERR_CORRUPT, "shm:%s: the header of the file is damaged", path);
    if (bytes < header->file_bytes)
        return far_fail(FAR_ERR_CORRUPT, "shm:%s: the file was cut: it has %llu of its %llu bytes", path,
                        (unsigned long long)bytes, (unsigned long long)header->file_bytes);
    return 0;
}


static int check_shape(const shm_shape *shape, unsigned nodes, uint64_t node_bytes) {
    char there[FAR_SIZE_TEXT];
    if (shape->node_bytes && shape->node_bytes != node_bytes)
        return far_fail(FAR_ERR_INVALID,
                        "uri: shm:%s: the pool is there, with memory nodes of %s (%llu bytes), not %llu", shape->path,
                        far_format_size(node_bytes, there), (unsigned long long)node_bytes,
                        (unsigned long long)shape->node_bytes);
    if (shape->nodes && shape->nodes != nodes)
        return far_fail(FAR_ERR_INVALID, "uri: shm:%s: the pool is there, with %u memory nodes, not %u", shape->path,
                        nodes, shape->nodes);
    return 0;
}


/* ---- Making a file ---- */

/* What is chosen in a file of sysfs, as in "always [never]". */
static bool is_chosen(const char *path, const char *choice) {
    char text[128];
    FILE *file = fopen(path, "re");
    bool known = file && fgets(text, sizeof(text), file);
    if (file)
        fclose(file);
    return known && strstr(text, choice);
}


/* Whether tmpfs gives huge pages to a process that asks for them: each mount has an option for that, in the last field of its
 * line.
 */
static bool has_huge_pages(int file) {
    struct stat status;
    if (!is_tmpfs(file) || fstat(file, &status) < 0 || is_chosen(SHMEM_ENABLED, "[deny]"))
        return false;
    bool found = is_chosen(SHMEM_ENABLED, "[force]");
    char *line = NULL;
    size_t room = 0;
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    while (mounts && !found && getline(&line, &room, mounts) > 0) {
        unsigned device[2];
        const char *huge = strstr(line, ",huge=");
        found = sscanf(line, "%*u %*u %u:%u", &device[0], &device[1]) == 2 && device[0] == major(status.st_dev) &&
                device[1] == minor(status.st_dev) && huge && strncmp(huge, ",huge=never", 11) != 0;
    }
    free(line);
    if (mounts)
        fclose(mounts);
    return found;
}


/* A mount without huge= gives none to a process that touches its files, but the kernel makes one of what is there and the room
 * around it when it is asked to, as long as it finds memory in one piece: a wish. A page of each is enough, and faster
 * than to fill the file first: nothing is copied then. */
static void join_pages(int file, void *mapped, uint64_t bytes) {
    if (!is_tmpfs(file) || is_chosen(SHMEM_ENABLED, "[deny]"))
        return;
    for (uint64_t at = 0; at < bytes; at += SHM_HUGE_PAGE)
        if (fallocate(file, 0, (off_t)at, SHM_PAGE) < 0)
            return;
    madvise(mapped, bytes, SHM_MADV_COLLAPSE);
}


/* Takes all the room at once: a verb that finds none would end its process. Huge pages come when they are touched
 * through a mapping, so that is done first where they may be had. */
static int take_room(int file, const char *path, uint64_t bytes) {
    struct rlimit limit;
    struct statvfs fs;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes)
        return far_fail(FAR_ERR_NO_MEMORY,
                        "shm:%s: needs %llu bytes, and this process may write %llu to a file (ulimit -f)", path,
                        (unsigned long long)bytes, (unsigned long long)limit.rlim_cur);
    if (fstatvfs(file, &fs) == 0 && fs.f_blocks && fs.f_bavail * (uint64_t)fs.f_frsize < bytes)
        return far_fail(FAR_ERR_NO_MEMORY, "shm:%s: needs %llu bytes, its file system has %llu left", path,
                        (unsigned long long)bytes, (unsigned long long)fs.f_bavail * fs.f_frsize);
    if (ftruncate(file, (off_t)bytes) < 0)
        return refuse_path(path, "no room");
    void *mapped = map_file(file, bytes, has_own_pages(file));
    if (mapped == MAP_FAILED)
        return refuse_path(path, "cannot be mapped");
#ifdef MADV_POPULATE_WRITE
    if (has_huge_pages(file))
        madvise(mapped, bytes, MADV_POPULATE_WRITE); /* what fails here fails again below */
#endif
    join_pages(file, mapped, bytes);
    munmap(mapped, bytes);
    int err;
    do
        err = fallocate(file, 0, 0, (off_t)bytes);
    while (err < 0 && errno == EINTR);
    if (err < 0 && errno == EOPNOTSUPP)
        err = (errno = posix_fallocate(file, 0, (off_t)bytes)) ? -1 : 0;
    return err < 0 ? refuse_path(path, "no room") : 0;
}


static int fill_file(int file, const shm_shape *shape) {
    bool own_pages = has_own_pages(file);
    struct stat status;
    uint64_t bytes = bytes_for(shape->node_bytes, shape->nodes ? shape->nodes : 1);
    if (fstat(file, &status) < 0)
        return refuse_path(shape->path, "cannot be looked at");
    if (own_pages)
        bytes = round_up(bytes, (uint64_t)status.st_blksize);
    int err = take_room(file, shape->path, bytes);
    if (err)
        return err;
    void *base = map_file(file, bytes, own_pages);
    if (base == MAP_FAILED)
        return refuse_path(shape->path, "cannot be mapped");
    write_header(base, shape);
    munmap(base, bytes);
    return 0;
}


/* 0: it is there now, from us or from another. */
static int name_file(int file, const char *made, const char *path) {
    char proc[64];
    snprintf(proc, sizeof(proc), "/proc/self/fd/%d", file);
    int err = *made ? link(made, path) : linkat(AT_FDCWD, proc, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
    return err < 0 && errno != EEXIST ? refuse_path(path, "cannot be created") : 0;
}


/* A file without a name; where there is no such thing, one of a name of its own. */
static int open_nameless(const char *path, char *made, size_t made_size) {
    char folder[FAR_URI_MAX];
    snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    slash[slash == folder] = 0;
    *made = 0;
    int file = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, FILE_MODE);
    if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return file;
    snprintf(made, made_size, "%s.new.XXXXXX", path);
    return mkostemp(made, O_CLOEXEC);
}


static int create_file(const shm_shape *shape) {
    char made[FAR_URI_MAX + 16];
    int file = open_nameless(shape->path, made, sizeof(made));
    if (file < 0)
        return refuse_path(shape->path, "cannot be created");
    int err = fill_file(file, shape);
    if (!err)
        err = name_file(file, made, shape->path);
    if (*made)
        unlink(made);
    close(file);
    return err;
}


/* A device has no name to be given at the end: it is formatted under a lock, its header written last. */
static int format_device(int file, const shm_shape *shape, char *base, uint64_t bytes) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SHM_LOCKS_AT, .l_len = 1};
    uint64_t needed = bytes_for(shape->node_bytes, shape->nodes ? shape->nodes : 1);
    if (needed > bytes)
        return far_fail(FAR_ERR_NO_MEMORY, "shm:%s: needs %llu bytes, the device has %llu", shape->path,
                        (unsigned long long)needed, (unsigned long long)bytes);
    if (fcntl(file, F_OFD_SETLKW, &lock) < 0)
        return refuse_path(shape->path, "cannot be locked");
    const shm_header *header = (const shm_header *)base;
    if (header->magic == 0) {
        memset(base + SHM_PAGE, 0, needed - SHM_PAGE);
        write_header(base, shape);
    }
    lock.l_type = F_UNLCK;
    fcntl(file, F_OFD_SETLK, &lock);
    return 0;
}


/* ---- Still there? ---- */

static bool is_same_file(int file, const shm_world *world, struct stat *status) {
    return fstat(file, status) == 0 && status->st_dev == world->device && status->st_ino == world->inode;
}


int shm_look(shm_world *world) {
    struct stat status;
    if (world->asker < 0) /* a forked child, where all is fenced */
        return 0;
    if (!is_same_file(world->holder, world, &status) || !is_same_file(world->asker, world, &status))
        atomic_store_explicit(&world->broken, "a descriptor of its file was closed by the program",
                              memory_order_relaxed);
    else if ((uint64_t)status.st_size < world->file_bytes)
        atomic_store_explicit(&world->broken, "the file was cut while it was in use", memory_order_relaxed);
    const char *words = atomic_load_explicit(&world->broken, memory_order_relaxed);
    return words ? far_fail(FAR_ERR_UNREACHABLE, "shm: %s", words) : 0;
}


/* Whoever posts next is told. */
int shm_renew(far_conn *conn) {
    shm_world *world = ((shm_fabric *)conn->fabric)->world;
    uint64_t now = far_host_now(conn->fabric->host);
    if (now < atomic_load_explicit(&world->next_look, memory_order_relaxed))
        return 0;
    atomic_store_explicit(&world->next_look, now + LOOK_NS, memory_order_relaxed);
    if (shm_look(world) == 0)
        return 0;
    const char *words = atomic_load_explicit(&world->broken, memory_order_relaxed);
    pthread_mutex_lock(&world->lock);
    for (shm_conn *one = world->conns; one; one = one->next) {
        atomic_store_explicit(&one->conn.fabric->gone, words, memory_order_release);
        far_conn_fence(&one->conn);
    }
    pthread_mutex_unlock(&world->lock);
    return 0;
}


/* ---- Joining ---- */

static void free_world(shm_world *world) {
    if (world->base)
        munmap(world->base, world->mapped);
    if (world->holder >= 0)
        close(world->holder);
    if (world->asker >= 0)
        close(world->asker);
    pthread_mutex_destroy(&world->lock);
    free(world);
}


static int map_world(shm_world *world, const shm_shape *shape, const struct stat *status) {
    uint64_t bytes = bytes_of(status);
    shm_header header;
    int err = 0;
    if (bytes < SHM_NODES_AT)
        return far_fail(FAR_ERR_CORRUPT, "shm:%s: not a farindex pool: it has %llu bytes", shape->path,
                        (unsigned long long)bytes);
    if (!is_device(status)) /* before it is mapped: what is shorter than it should be is not touched */
        err = pread(world->asker, &header, sizeof(header), 0) == sizeof(header)
                  ? check_header(&header, shape->path, bytes)
                  : refuse_path(shape->path, "cannot be read");
    if (err)
        return err;
    /* Not through the holder: a mapping keeps the description that it was made with, in a forked child too. */
    char *base = map_file(world->asker, bytes, is_device(status) || has_own_pages(world->asker));
    if (base == MAP_FAILED)
        return refuse_path(shape->path, "cannot be mapped");
    world->base = base;
    world->mapped = bytes;
    bool is_empty = atomic_load_explicit((_Atomic uint64_t *)base, memory_order_acquire) == 0;
    if (is_device(status) && is_empty && shape->existing)
        return far_fail(FAR_ERR_NOT_FOUND, "shm:%s: there is no pool on the device", shape->path);
    if (is_device(status) && is_empty && shape->node_bytes)
        err = format_device(world->asker, shape, base, bytes);
    memcpy(&header, base, sizeof(header));
    if (!err)
        err = check_header(&header, shape->path, bytes);
    if (!err)
        err = check_shape(shape, header.nodes, header.node_bytes);
    if (err)
        return err;
    world->nodes = header.nodes;
    world->node_bytes = header.node_bytes;
    world->file_bytes = is_device(status) ? 0 : header.file_bytes;
    world->clients = (shm_client *)(base + SHM_CLIENTS_AT);
    for (unsigned i = 0; i < header.nodes; i++)
        world->memory[i] = base + SHM_NODES_AT + i * shm_node_stride(header.node_bytes);
    return 0;
}


/* The path may lead to another file by now: then FAR_ERR_BUSY. */
static int make_world(const shm_shape *shape, int file, const struct stat *status, shm_world **made) {
    struct stat again;
    shm_world *world = calloc(1, sizeof(*world));
    if (!world)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a handle");
    pthread_mutex_init(&world->lock, NULL);
    world->device = status->st_dev;
    world->inode = status->st_ino;
    world->started = shm_process_start(getpid());
    world->holder = fcntl(file, F_DUPFD_CLOEXEC, 0);
    world->asker = open(shape->path, O_RDWR | O_CLOEXEC);
    int err = 0;
    if (world->holder < 0 || world->asker < 0 || fstat(world->asker, &again) < 0)
        err = refuse_path(shape->path, "cannot be opened");
    else if (again.st_dev != status->st_dev || again.st_ino != status->st_ino)
        err = far_fail(FAR_ERR_BUSY, "shm:%s: the file is being replaced", shape->path);
    else
        err = map_world(world, shape, status);
    if (err) {
        free_world(world);
        return err == FAR_ERR_NOT_FOUND && !is_device(status) ? FAR_ERR_BUSY : err;
    }
    *made = world;
    return 0;
}


/* Under worlds_lock. */
static int attach(const shm_shape *shape, shm_world **joined) {
    struct stat status;
    int file = open(shape->path, O_RDWR | O_CLOEXEC), err = 0;
    if (file < 0)
        return refuse_path(shape->path, errno != ENOENT   ? "cannot be opened"
                                        : shape->existing ? "there is no pool"
                                                          : "there is no pool, and no size= to create it");
    if (fstat(file, &status) < 0)
        err = refuse_path(shape->path, "cannot be looked at");
    else if (!S_ISREG(status.st_mode) && !is_device(&status))
        err = far_fail(FAR_ERR_INVALID, "shm:%s: neither a file nor a DAX device", shape->path);
    shm_world *world = worlds;
    while (!err && world && (world->device != status.st_dev || world->inode != status.st_ino))
        world = world->next;
    if (!err && world && (err = shm_look(world)) == 0)
        err = check_shape(shape, world->nodes, world->node_bytes);
    else if (!err && !world && (err = make_world(shape, file, &status, &world)) == 0) {
        world->next = worlds;
        worlds = world;
    }
    close(file);
    if (err)
        return err;
    world->handles++;
    *joined = world;
    return 0;
}


int shm_join(const shm_shape *shape, shm_world **joined) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int err = FAR_ERR_BUSY;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&worlds_lock);
    for (unsigned tries = 0; err == FAR_ERR_BUSY && tries < JOIN_TRIES; tries++) {
        err = attach(shape, joined);
        bool may_make = shape->node_bytes && !shape->existing;
        if (err == FAR_ERR_NOT_FOUND && may_make && (err = create_file(shape)) == 0)
            err = FAR_ERR_BUSY; /* once more, with it there */
    }
    pthread_mutex_unlock(&worlds_lock);
    return err;
}


void shm_leave(shm_world *world) {
    pthread_mutex_lock(&worlds_lock);
    assert(world->handles > 0);
    bool last = --world->handles == 0;
    for (shm_world **link = &worlds; last && *link; link = &(*link)->next)
        if (*link == world) {
            *link = world->next;
            break;
        }
    pthread_mutex_unlock(&worlds_lock);
    if (last)
        free_world(world);
}
