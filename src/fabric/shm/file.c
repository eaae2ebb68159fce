/* The pool file of the fabric `shm`: creates, maps and checks it. The file is created without a name, completely
 * initialized and with all its space allocated, and is then linked to its path. So a process that finds the file finds
 * it ready. If two processes create it at the same time, one link succeeds and both use that file. shm_attach and
 * shm_detach are called by shm.c. */
#define _GNU_SOURCE
#include "base/error.h"
#include "base/parse.h"
#include "fabric/memory_file.h"
#include "fabric/node/memory.h"
#include "fabric/shm/shm.h"
#include "farindex.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <xxhash.h>

#define ATTACH_TRIES 16 /* attempts to attach to a file that other processes remove or replace meanwhile */
#define FILE_MODE    0600
#define CHECK_NS     1000000u /* minimum time between two checks of the file; housekeeping may run much more often */

#define SHMEM_ENABLED "/sys/kernel/mm/transparent_hugepage/shmem_enabled"

static pthread_mutex_t mappings_lock = PTHREAD_MUTEX_INITIALIZER;
static shm_mapping *mappings;


/* ---- Fork. Descriptors that a child inherits would keep the sessions of its parent alive, and verbs of the child
 * would run in the name of those sessions. Therefore the child closes its copies and fences these connections. ---- */

static void before_fork(void) {
    pthread_mutex_lock(&mappings_lock);
}


static void after_fork(void) {
    pthread_mutex_unlock(&mappings_lock);
}


static void after_fork_in_child(void) {
    for (shm_mapping *mapping = mappings; mapping; mapping = mapping->next) {
        close(mapping->lock_descriptor);
        close(mapping->query_descriptor);
        mapping->lock_descriptor = mapping->query_descriptor = -1;
        /* The lock is initialized again in the child, because a thread of the parent, which does not exist in the
         * child, may have held it at the fork. */
        pthread_mutex_init(&mapping->lock, NULL);
        for (shm_conn *conn = mapping->conns; conn; conn = conn->next) {
            far_conn_fence(&conn->conn);
            conn->id = 0; /* the id belongs to the parent, so the child must not release it */
        }
    }
    mappings = NULL;
    pthread_mutex_unlock(&mappings_lock);
}


static void register_fork_handlers(void) {
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}


/* ---- Properties of files and file systems ---- */

static int fail_with_errno(const char *path, const char *doing) {
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


static bool is_hugetlbfs(int file) { /* hugetlbfs: addresses and sizes must be multiples of its page size */
    struct statfs fs;
    return fstatfs(file, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC;
}


static bool is_device(const struct stat *status) {
    return S_ISCHR(status->st_mode);
}


/* Returns the size of a file or of a DAX device; 0 if it cannot be determined. */
static uint64_t bytes_of_file_or_device(const struct stat *status) {
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


/* Maps the file at a multiple of 2 MiB, so that the kernel can use huge pages. With `any_address` the kernel chooses
 * the address. */
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
    madvise(mapped, bytes, MADV_HUGEPAGE); /* advice that the kernel may ignore */
    return mapped;
}


/* ---- Header of the pool file ---- */

static uint64_t checksum_of_header(const shm_header *header) {
    return XXH3_64bits(header, offsetof(shm_header, check));
}


static uint64_t bytes_of_pool(uint64_t node_bytes, unsigned nodes) {
    return SHM_NODES_AT + nodes * shm_node_stride(node_bytes);
}


static void write_header(void *base, const shm_options *options) {
    shm_header header = {.version = SHM_VERSION,
                         .magic = SHM_MAGIC,
                         .nodes = options->nodes ? options->nodes : 1,
                         .node_bytes = options->node_bytes};
    header.file_bytes = bytes_of_pool(header.node_bytes, header.nodes);
    header.check = checksum_of_header(&header);
    uint64_t magic = header.magic;
    header.magic = 0;
    memcpy(base, &header, sizeof(header));
    /* The magic number is stored last, because on a device other processes may read the header while it is being
     * written. */
    atomic_store_explicit((_Atomic uint64_t *)base, magic, memory_order_release);
}


int shm_check_header(const shm_header *header, const char *path) {
    if (header->magic == NET_FILE_MAGIC)
        return far_fail(FAR_ERR_CORRUPT, "shm:%s: this file is the memory of a network node (farindex serve)", path);
    if (header->magic != SHM_MAGIC)
        return far_fail(FAR_ERR_CORRUPT, "shm:%s: the file is not a farindex pool", path);
    if (header->version != SHM_VERSION)
        return far_fail(FAR_ERR_CORRUPT, "shm:%s: the file has format version %u, but this library supports version %u",
                        path, header->version, SHM_VERSION);
    if (header->check != checksum_of_header(header) || header->nodes < 1 || header->nodes > FAR_NODES_MAX ||
        header->node_bytes == 0 || header->node_bytes > FAR_NODE_BYTES_MAX || header->node_bytes % SHM_PAGE != 0 ||
        header->file_bytes != bytes_of_pool(header->node_bytes, header->nodes))
        return far_fail(FAR_ERR_CORRUPT, "shm:%s: the header of the file is damaged", path);
    return 0;
}


static int check_header(const shm_header *header, const char *path, uint64_t bytes) {
    int err = shm_check_header(header, path);
    if (err < 0)
        return err;
    if (bytes < header->file_bytes)
        return far_fail(FAR_ERR_CORRUPT, "shm:%s: the file was truncated: it has %llu of its %llu bytes", path,
                        (unsigned long long)bytes, (unsigned long long)header->file_bytes);
    return 0;
}


static int check_options(const shm_options *options, unsigned nodes, uint64_t node_bytes) {
    char there[FAR_SIZE_TEXT];
    if (options->node_bytes && options->node_bytes != node_bytes)
        return far_fail(FAR_ERR_INVALID, "uri: shm:%s: the pool exists, with memory nodes of %s (%llu bytes), not %llu",
                        options->path, far_format_size(node_bytes, there), (unsigned long long)node_bytes,
                        (unsigned long long)options->node_bytes);
    if (options->nodes && options->nodes != nodes)
        return far_fail(FAR_ERR_INVALID, "uri: shm:%s: the pool exists, with %u memory nodes, not %u", options->path,
                        nodes, options->nodes);
    return 0;
}


/* ---- Creating a pool file ---- */

/* Returns true if `choice` is the active choice in the sysfs file at `path`. In such a file the active choice has
 * brackets, for example "always [never]". */
static bool sysfs_choice_is_active(const char *path, const char *choice) {
    char text[128];
    FILE *file = fopen(path, "re");
    bool known = file && fgets(text, sizeof(text), file);
    if (file)
        fclose(file);
    return known && strstr(text, choice);
}


/* Returns true if tmpfs gives huge pages to a process that touches the file, as the mount option huge= allows. The
 * options of a mount are in the last field of its line in mountinfo. */
static bool mount_offers_huge_pages(int file) {
    struct stat status;
    if (!far_memory_file_is_tmpfs(file) || fstat(file, &status) < 0 || sysfs_choice_is_active(SHMEM_ENABLED, "[deny]"))
        return false;
    bool found = sysfs_choice_is_active(SHMEM_ENABLED, "[force]");
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


/* Asks the kernel to build huge pages, on a mount without the option huge=, where touching the file gives none.
 * MADV_COLLAPSE replaces an existing page and the empty space around it by one huge page, as long as the kernel finds
 * contiguous memory. So one page is allocated in each range of 2 MiB first. That is faster than filling the file,
 * because the kernel then has nothing to copy. Failure is no error. */
static void collapse_into_huge_pages(int file, void *mapped, uint64_t bytes) {
    if (!far_memory_file_is_tmpfs(file) || sysfs_choice_is_active(SHMEM_ENABLED, "[deny]"))
        return;
    for (uint64_t at = 0; at < bytes; at += SHM_HUGE_PAGE)
        if (fallocate(file, 0, (off_t)at, SHM_PAGE) < 0)
            return;
    madvise(mapped, bytes, SHM_MADV_COLLAPSE);
}


/* Allocates all the space of the file at once, because a verb that touches a page without space would kill its process.
 * Huge pages are created when the file is touched through a mapping, so that is done first where the mount offers them.
 */
static int allocate_file(int file, const char *path, uint64_t bytes) {
    char name[FAR_URI_MAX + 8];
    snprintf(name, sizeof(name), "shm:%s", path);
    int err = far_memory_file_check_space(file, name, bytes);
    if (!err && far_memory_file_is_tmpfs(file))
        err = far_memory_check_available(name, bytes, "");
    if (err)
        return err;
    if (ftruncate(file, (off_t)bytes) < 0)
        return fail_with_errno(path, "no space");
    void *mapped = map_file(file, bytes, is_hugetlbfs(file));
    if (mapped == MAP_FAILED)
        return fail_with_errno(path, "cannot be mapped");
#ifdef MADV_POPULATE_WRITE
    if (mount_offers_huge_pages(file))
        /* A failure of this call occurs again in fallocate below, and is reported there. */
        madvise(mapped, bytes, MADV_POPULATE_WRITE);
#endif
    collapse_into_huge_pages(file, mapped, bytes);
    munmap(mapped, bytes);
    do
        err = fallocate(file, 0, 0, (off_t)bytes);
    while (err < 0 && errno == EINTR);
    if (err < 0 && errno == EOPNOTSUPP)
        err = (errno = posix_fallocate(file, 0, (off_t)bytes)) ? -1 : 0;
    return err < 0 ? fail_with_errno(path, "no space") : 0;
}


static int fill_file(int file, const shm_options *options) {
    bool own_pages = is_hugetlbfs(file);
    struct stat status;
    uint64_t bytes = bytes_of_pool(options->node_bytes, options->nodes ? options->nodes : 1);
    if (fstat(file, &status) < 0)
        return fail_with_errno(options->path, "its status cannot be read");
    if (own_pages)
        bytes = round_up(bytes, (uint64_t)status.st_blksize);
    int err = allocate_file(file, options->path, bytes);
    if (err)
        return err;
    void *base = map_file(file, bytes, own_pages);
    if (base == MAP_FAILED)
        return fail_with_errno(options->path, "cannot be mapped");
    write_header(base, options);
    munmap(base, bytes);
    return 0;
}


/* Gives the file its path. Returns 0 if the path exists now, created by this process or by another one. */
static int link_file_to_path(int file, const char *made, const char *path) {
    char proc[64];
    snprintf(proc, sizeof(proc), "/proc/self/fd/%d", file);
    int err = *made ? link(made, path) : linkat(AT_FDCWD, proc, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
    return err < 0 && errno != EEXIST ? fail_with_errno(path, "cannot be created") : 0;
}


/* Opens a file without a name in the folder of the path. Where the file system does not support that, it opens a file
 * with a temporary name, which is returned in `made`. */
static int open_unnamed_file(const char *path, char *made, size_t made_size) {
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


static int create_file(const shm_options *options) {
    char made[FAR_URI_MAX + 16];
    int file = open_unnamed_file(options->path, made, sizeof(made));
    if (file < 0)
        return fail_with_errno(options->path, "cannot be created");
    int err = fill_file(file, options);
    if (!err)
        err = link_file_to_path(file, made, options->path);
    if (*made)
        unlink(made);
    close(file);
    return err;
}


/* Formats a DAX device. A device cannot be prepared under another name and then linked, so a lock keeps other processes
 * out, and the header is written last. */
static int format_device(int file, const shm_options *options, char *base, uint64_t bytes) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SHM_LOCKS_AT, .l_len = 1};
    uint64_t needed = bytes_of_pool(options->node_bytes, options->nodes ? options->nodes : 1);
    if (needed > bytes)
        return far_fail(FAR_ERR_NO_MEMORY, "shm:%s: the pool needs %llu bytes, but the device has only %llu",
                        options->path, (unsigned long long)needed, (unsigned long long)bytes);
    if (fcntl(file, F_OFD_SETLKW, &lock) < 0)
        return fail_with_errno(options->path, "cannot be locked");
    const shm_header *header = (const shm_header *)base;
    if (header->magic == 0) {
        memset(base + SHM_PAGE, 0, needed - SHM_PAGE);
        write_header(base, options);
    }
    lock.l_type = F_UNLCK;
    fcntl(file, F_OFD_SETLK, &lock);
    return 0;
}


/* ---- Checking the file while it is in use ---- */

static bool is_same_file(int file, const shm_mapping *mapping, struct stat *status) {
    return fstat(file, status) == 0 && status->st_dev == mapping->device && status->st_ino == mapping->inode;
}


int shm_check_file(shm_mapping *mapping) {
    struct stat status;
    /* The descriptor is closed only in a forked child, where all connections are fenced already. */
    if (mapping->query_descriptor < 0)
        return 0;
    if (!is_same_file(mapping->lock_descriptor, mapping, &status) ||
        !is_same_file(mapping->query_descriptor, mapping, &status))
        atomic_store_explicit(&mapping->failure, "a descriptor of its file was closed by the program",
                              memory_order_relaxed);
    else if ((uint64_t)status.st_size < mapping->file_bytes)
        atomic_store_explicit(&mapping->failure, "the file was truncated while it was in use", memory_order_relaxed);
    const char *words = atomic_load_explicit(&mapping->failure, memory_order_relaxed);
    return words ? far_fail(FAR_ERR_UNREACHABLE, "shm: %s", words) : 0;
}


/* Checks the file, and fences all connections of this process on it if the check fails. Each fenced connection reports
 * the reason at its next post. */
int shm_renew(far_conn *conn) {
    shm_mapping *mapping = ((shm_fabric *)conn->fabric)->mapping;
    uint64_t now = far_host_now(conn->fabric->host);
    if (now < atomic_load_explicit(&mapping->next_check, memory_order_relaxed))
        return 0;
    atomic_store_explicit(&mapping->next_check, now + CHECK_NS, memory_order_relaxed);
    if (shm_check_file(mapping) == 0)
        return 0;
    const char *words = atomic_load_explicit(&mapping->failure, memory_order_relaxed);
    pthread_mutex_lock(&mapping->lock);
    for (shm_conn *one = mapping->conns; one; one = one->next) {
        atomic_store_explicit(&one->conn.fabric->gone, words, memory_order_release);
        far_conn_fence(&one->conn);
    }
    pthread_mutex_unlock(&mapping->lock);
    return 0;
}


/* ---- Attaching to a pool file ---- */

static void free_mapping(shm_mapping *mapping) {
    if (mapping->base)
        munmap(mapping->base, mapping->mapped);
    if (mapping->lock_descriptor >= 0)
        close(mapping->lock_descriptor);
    if (mapping->query_descriptor >= 0)
        close(mapping->query_descriptor);
    pthread_mutex_destroy(&mapping->lock);
    free(mapping);
}


static int map_pool_file(shm_mapping *mapping, const shm_options *options, const struct stat *status) {
    uint64_t bytes = bytes_of_file_or_device(status);
    shm_header header;
    int err = 0;
    if (bytes < SHM_NODES_AT)
        return far_fail(FAR_ERR_CORRUPT, "shm:%s: the file is not a farindex pool: it has %llu bytes", options->path,
                        (unsigned long long)bytes);
    /* The size is checked before the file is mapped, because accessing a part that a short file does not have would
     * kill the process. */
    if (!is_device(status))
        err = pread(mapping->query_descriptor, &header, sizeof(header), 0) == sizeof(header)
                  ? check_header(&header, options->path, bytes)
                  : fail_with_errno(options->path, "cannot be read");
    if (err)
        return err;
    /* The file is mapped through `query_descriptor`: a mapping keeps the open file description with which it was made,
     * in a forked child too, and so would keep the locks of `lock_descriptor`. */
    char *base =
        map_file(mapping->query_descriptor, bytes, is_device(status) || is_hugetlbfs(mapping->query_descriptor));
    if (base == MAP_FAILED)
        return fail_with_errno(options->path, "cannot be mapped");
    mapping->base = base;
    mapping->mapped = bytes;
    bool is_empty = atomic_load_explicit((_Atomic uint64_t *)base, memory_order_acquire) == 0;
    if (is_device(status) && is_empty && options->existing)
        return far_fail(FAR_ERR_NOT_FOUND, "shm:%s: there is no pool on the device", options->path);
    if (is_device(status) && is_empty && options->node_bytes)
        err = format_device(mapping->query_descriptor, options, base, bytes);
    memcpy(&header, base, sizeof(header));
    if (!err)
        err = check_header(&header, options->path, bytes);
    if (!err)
        err = check_options(options, header.nodes, header.node_bytes);
    if (err)
        return err;
    mapping->nodes = header.nodes;
    mapping->node_bytes = header.node_bytes;
    mapping->file_bytes = is_device(status) ? 0 : header.file_bytes;
    mapping->clients = (shm_client *)(base + SHM_CLIENTS_AT);
    for (unsigned i = 0; i < header.nodes; i++)
        mapping->memory[i] = base + SHM_NODES_AT + i * shm_node_stride(header.node_bytes);
    return 0;
}


/* Makes the mapping of an open file. Returns FAR_ERR_BUSY if the path names another file by now; the caller then tries
 * again. */
static int make_mapping(const shm_options *options, int file, const struct stat *status, shm_mapping **made) {
    struct stat again;
    shm_mapping *mapping = calloc(1, sizeof(*mapping));
    if (!mapping)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a handle");
    pthread_mutex_init(&mapping->lock, NULL);
    mapping->device = status->st_dev;
    mapping->inode = status->st_ino;
    mapping->lock_descriptor = fcntl(file, F_DUPFD_CLOEXEC, 0);
    mapping->query_descriptor = open(options->path, O_RDWR | O_CLOEXEC);
    int err = 0;
    if (mapping->lock_descriptor < 0 || mapping->query_descriptor < 0 || fstat(mapping->query_descriptor, &again) < 0)
        err = fail_with_errno(options->path, "cannot be opened");
    else if (again.st_dev != status->st_dev || again.st_ino != status->st_ino)
        err = far_fail(FAR_ERR_BUSY, "shm:%s: the file is being replaced", options->path);
    else
        err = map_pool_file(mapping, options, status);
    if (err) {
        free_mapping(mapping);
        return err == FAR_ERR_NOT_FOUND && !is_device(status) ? FAR_ERR_BUSY : err;
    }
    *made = mapping;
    return 0;
}


/* Attaches the caller to the mapping of the file; makes the mapping if this process has none. The caller holds
 * `mappings_lock`. */
static int attach_mapping(const shm_options *options, shm_mapping **joined) {
    struct stat status;
    char name[FAR_URI_MAX + 8];
    int file = open(options->path, O_RDWR | O_CLOEXEC), error = errno, err = 0;
    snprintf(name, sizeof(name), "shm:%s", options->path);
    if (file < 0 && (err = far_memory_file_check_link(options->path, name)) < 0)
        return err;
    errno = error;
    if (file < 0)
        return fail_with_errno(options->path, errno != ENOENT     ? "cannot be opened"
                                              : options->existing ? "there is no pool"
                                                                  : "there is no pool, and no size= to create it");
    if (fstat(file, &status) < 0)
        err = fail_with_errno(options->path, "its status cannot be read");
    else if (!S_ISREG(status.st_mode) && !is_device(&status))
        err = far_fail(FAR_ERR_INVALID, "shm:%s: neither a file nor a DAX device", options->path);
    else if (!options->shared)
        err = far_memory_file_check_owner(file, name, "shared=1 in the URI");
    shm_mapping *mapping = mappings;
    while (!err && mapping && (mapping->device != status.st_dev || mapping->inode != status.st_ino))
        mapping = mapping->next;
    if (!err && mapping && (err = shm_check_file(mapping)) == 0)
        err = check_options(options, mapping->nodes, mapping->node_bytes);
    else if (!err && !mapping && (err = make_mapping(options, file, &status, &mapping)) == 0) {
        mapping->next = mappings;
        mappings = mapping;
    }
    close(file);
    if (err)
        return err;
    mapping->handles++;
    *joined = mapping;
    return 0;
}


int shm_attach(const shm_options *options, shm_mapping **joined) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int err = FAR_ERR_BUSY;
    pthread_once(&once, register_fork_handlers);
    pthread_mutex_lock(&mappings_lock);
    for (unsigned tries = 0; err == FAR_ERR_BUSY && tries < ATTACH_TRIES; tries++) {
        err = attach_mapping(options, joined);
        bool may_make = options->node_bytes && !options->existing;
        if (err == FAR_ERR_NOT_FOUND && may_make && (err = create_file(options)) == 0)
            /* The file exists now, so FAR_ERR_BUSY makes the loop attach once more. */
            err = FAR_ERR_BUSY;
    }
    pthread_mutex_unlock(&mappings_lock);
    return err;
}


void shm_detach(shm_mapping *mapping) {
    pthread_mutex_lock(&mappings_lock);
    assert(mapping->handles > 0);
    bool last = --mapping->handles == 0;
    for (shm_mapping **link = &mappings; last && *link; link = &(*link)->next)
        if (*link == mapping) {
            *link = mapping->next;
            break;
        }
    pthread_mutex_unlock(&mappings_lock);
    if (last)
        free_mapping(mapping);
}
