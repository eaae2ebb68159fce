/* The memory of a node: opens its file, replays redo slots after a kill, and executes verbs (memory.h). */
#define _GNU_SOURCE
#include "fabric/node/memory.h"
#include "base/error.h"
#include "base/parse.h"
#include "fabric/memory_file.h"
#include "fabric/shm/shm.h"
#include "farindex.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define FILE_MODE  0600
#define LOCK_AT    (1ll << 62) /* byte of the file that the serving daemon keeps locked */
#define LOCK_SPINS 200u
#define SIZE_STEP  4096u
#define MEMORY_MIN (1ull << 20)

#define OVERCOMMIT_REMEDY "; --overcommit skips this check"


/* ---- The memory file ---- */

static int fail_with_errno(const char *path, const char *what) {
    int error = errno;
    int code = error == ENOSPC || error == ENOMEM || error == EFBIG || error == EDQUOT ? FAR_ERR_NO_MEMORY
               : error == ENOENT || error == ENOTDIR                                   ? FAR_ERR_NOT_FOUND
                                                                                       : FAR_ERR_UNREACHABLE;
    return far_fail(code, "%s: %s: %s", path, what, strerror(error));
}


static uint64_t checksum_of_header(const net_file_header *header) {
    return XXH3_64bits(header, offsetof(net_file_header, check));
}


static void write_header(net_file_header *header, uint64_t size) {
    net_file_header made = {.magic = NET_FILE_MAGIC, .version = NET_FILE_VERSION, .bytes = size};
    while (made.instance == 0)
        if (getrandom(&made.instance, sizeof(made.instance), 0) < 0 && errno != EINTR)
            abort(); /* the kernel has no getrandom */
    made.check = checksum_of_header(&made);
    uint64_t magic = made.magic;
    made.magic = 0;
    memcpy(header, &made, sizeof(made));
    /* The magic number is stored last, so that a file without it identifies a daemon that was killed while it created
     * the file. */
    __atomic_store_n(&header->magic, magic, __ATOMIC_RELEASE);
}


static int check_header(const net_file_header *header, const char *path, uint64_t size, uint64_t there) {
    char is[FAR_SIZE_TEXT], wanted[FAR_SIZE_TEXT];
    if (header->magic == SHM_MAGIC)
        return far_fail(FAR_ERR_CORRUPT, "%s: this file is a pool of the fabric shm:, which a daemon cannot serve",
                        path);
    if (header->magic != NET_FILE_MAGIC)
        return far_fail(FAR_ERR_CORRUPT, "%s: the file is not the memory of a farindex node", path);
    if (header->version != NET_FILE_VERSION)
        return far_fail(FAR_ERR_CORRUPT, "%s: the file has format version %u, but this program supports version %u",
                        path, header->version, NET_FILE_VERSION);
    if (header->check != checksum_of_header(header) || there < NET_MEMORY_AT || header->bytes > there - NET_MEMORY_AT ||
        header->node >= FAR_NODES_MAX || header->nodes > FAR_NODES_MAX)
        return far_fail(FAR_ERR_CORRUPT, "%s: the file is damaged or was truncated", path);
    if (size && size != header->bytes)
        return far_fail(FAR_ERR_INVALID, "%s: the file exists, with a node of %s (%llu bytes), not %s", path,
                        far_format_size(header->bytes, is), (unsigned long long)header->bytes,
                        far_format_size(size, wanted));
    return 0;
}


/* Locks the file so that no second daemon serves it. The kernel drops the lock when the process ends, in whatever way.
 */
static int lock_file(int file, const char *path) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_AT, .l_len = 1};
    if (fcntl(file, F_OFD_SETLK, &lock) == 0)
        return 0;
    if (errno == EAGAIN || errno == EACCES)
        return far_fail(FAR_ERR_BUSY, "%s: another daemon serves this file", path);
    return fail_with_errno(path, "cannot be locked");
}


/* Returns true if a daemon was killed while it created the file. Such a file has its full size and perhaps a header
 * without the magic number. */
static bool is_half_made(const net_file_header *header, uint64_t there, uint64_t size) {
    net_file_header whole = *header;
    whole.magic = NET_FILE_MAGIC;
    return header->magic == 0 && there == NET_MEMORY_AT + size &&
           (header->instance == 0 || header->check == checksum_of_header(&whole));
}


static int refuse_without_size(const char *path) {
    return far_fail(FAR_ERR_INVALID, "%s: the file does not exist, and --size is needed to create it", path);
}


/* Allocates the space of a new file, or of one that a daemon did not finish; that one has `allocated` bytes already. */
static int allocate_file(const net_memory *m, const net_memory_options *options, uint64_t allocated) {
    uint64_t bytes = NET_MEMORY_AT + options->size;
    int err = far_memory_file_check_space(m->file, options->path, bytes);
    if (!err && !options->overcommit && allocated < bytes && far_memory_file_is_tmpfs(m->file))
        err = far_memory_check_available(options->path, bytes - allocated, OVERCOMMIT_REMEDY);
    if (err)
        return err;
    if (ftruncate(m->file, (off_t)bytes) < 0 || (errno = posix_fallocate(m->file, 0, (off_t)bytes)) != 0)
        return fail_with_errno(options->path, "no space for the memory");
    return 0;
}


static int prepare_file(net_memory *m, const net_memory_options *options, bool *fresh) {
    const char *path = options->path;
    uint64_t size = options->size;
    struct stat status;
    net_file_header header = {0};
    if (fstat(m->file, &status) < 0)
        return fail_with_errno(path, "its status cannot be read");
    if (!S_ISREG(status.st_mode))
        return far_fail(FAR_ERR_INVALID, "%s: not a regular file", path);
    if (!options->shared) {
        int err = far_memory_file_check_owner(m->file, path, "--shared");
        if (err)
            return err;
    }
    if (status.st_size > 0 && pread(m->file, &header, sizeof(header), 0) < 0)
        return fail_with_errno(path, "cannot be read");
    *fresh = status.st_size == 0 || is_half_made(&header, (uint64_t)status.st_size, size);
    if (!*fresh && (uint64_t)status.st_size < NET_MEMORY_AT && header.magic == NET_FILE_MAGIC)
        return far_fail(FAR_ERR_CORRUPT, "%s: the file is damaged or was truncated", path);
    if (!*fresh) {
        int err = check_header(&header, path, size, (uint64_t)status.st_size);
        m->size = header.bytes;
        return err;
    }
    if (size == 0)
        return refuse_without_size(path);
    m->size = size;
    int err = allocate_file(m, options, (uint64_t)status.st_blocks * 512);
    if (err && m->created)
        unlink(path);
    else if (err && status.st_size == 0 && ftruncate(m->file, 0) < 0)
        return fail_with_errno(path, "cannot be truncated");
    return err;
}


static void replay_redo_slot(net_memory *m, net_redo *slot) {
    bool sound = slot->words > 0 && slot->words <= NET_GRANULE / 8 && slot->offset % 8 == 0 && slot->offset < m->size &&
                 slot->words * 8 <= m->size - slot->offset;
    if (slot->valid == 1 && sound)
        memcpy(m->bytes + slot->offset, slot->data, slot->words * 8);
    slot->valid = 0;
}


static void locate_regions(net_memory *m) {
    m->header = (net_file_header *)m->base;
    m->redo = (net_redo *)(m->base + NET_REDO_AT);
    m->ledger = (net_ledger *)(m->base + NET_LEDGER_AT);
    m->bytes = m->base + NET_MEMORY_AT;
}


static void count_restart(net_file_header *header) {
    header->restarts++;
    if (!net_key_exists(&header->key))
        header->complete = 0;
}


/* Opens the file, and creates it if there is a size. O_EXCL prevents that the file is created at the end of a symbolic
 * link. If another daemon creates the file at the same time, this daemon opens that file. */
static int open_file(net_memory *m, const net_memory_options *options) {
    const char *path = options->path;
    do {
        m->file = open(path, O_RDWR | O_CLOEXEC);
        if (m->file >= 0)
            return 0;
        int error = errno, err = far_memory_file_check_link(path, path);
        if (err)
            return err;
        if (error == ENOENT && options->size == 0)
            return refuse_without_size(path);
        errno = error;
        if (error == ENOENT)
            m->file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, FILE_MODE);
        m->created = m->file >= 0;
    } while (m->file < 0 && errno == EEXIST);
    return m->file < 0 ? fail_with_errno(path, "cannot be opened") : 0;
}


static int map_memory(net_memory *m, const net_memory_options *options) {
    const char *path = options->path;
    bool fresh = true;
    int err = 0;
    m->size = options->size;
    if (path)
        err = open_file(m, options);
    else if (!options->overcommit)
        err = far_memory_check_available("anonymous memory", m->size, OVERCOMMIT_REMEDY);
    if (path && !err && (err = lock_file(m->file, path)) == 0)
        err = prepare_file(m, options, &fresh);
    if (err)
        return err;
    m->mapped = NET_MEMORY_AT + m->size;
    m->base = mmap(NULL, m->mapped, PROT_READ | PROT_WRITE,
                   path ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, m->file, 0);
    if (m->base == MAP_FAILED) {
        m->base = NULL;
        return fail_with_errno(path ? path : "anonymous memory", "cannot be mapped");
    }
    madvise(m->base, m->mapped, MADV_HUGEPAGE); /* huge pages are optional */
    locate_regions(m);
    if (fresh)
        write_header(m->header, m->size);
    else
        count_restart(m->header);
    for (unsigned i = 0; i < NET_THREADS_MAX; i++)
        replay_redo_slot(m, &m->redo[i]);
    return 0;
}


bool net_memory_size_is_valid(uint64_t size) {
    return size >= MEMORY_MIN && size <= FAR_NODE_BYTES_MAX && size % SIZE_STEP == 0;
}


int net_memory_open(const net_memory_options *options, net_memory **memory) {
    if (!(options->path && options->size == 0) && !net_memory_size_is_valid(options->size))
        return far_fail(FAR_ERR_INVALID, NET_MEMORY_SIZES);
    net_memory *m = aligned_alloc(64, sizeof(*m));
    if (!m)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    memset(m, 0, sizeof(*m));
    m->file = -1;
    int err = map_memory(m, options);
    if (err < 0) {
        net_memory_close(m);
        return err;
    }
    *memory = m;
    return 0;
}


void net_memory_close(net_memory *m) {
    if (m->base)
        munmap(m->base, m->mapped);
    if (m->file >= 0)
        close(m->file);
    free(m);
}


/* Stores the key unless the node has one. The first word is stored last, so that a daemon that is killed in between
 * leaves no half of a key. */
static void store_key(net_file_header *header, const net_key *key) {
    if (net_key_exists(&header->key) || !net_key_exists(key))
        return;
    header->key.words[1] = key->words[1];
    __atomic_store_n(&header->key.words[0], key->words[0], __ATOMIC_RELEASE);
}


void net_memory_join(net_memory *m, net_join *join) {
    net_file_header *header = m->header;
    if (header->pool == 0) {
        header->node = join->node;
        header->nodes = join->nodes;
        __atomic_store_n(&header->pool, join->pool, __ATOMIC_RELEASE);
    }
    if (header->pool == join->pool && header->node == join->node && header->nodes == join->nodes) {
        store_key(header, &join->key);
        if (join->complete && net_key_exists(&header->key))
            __atomic_store_n(&header->complete, 1u, __ATOMIC_RELEASE);
    }
    *join =
        (net_join){.pool = header->pool, .node = header->node, .nodes = header->nodes, .complete = header->complete};
    if (!header->complete)
        join->key = header->key;
}


/* ---- Verbs ---- */

static atomic_uchar *lock_line(net_memory *m, uint64_t offset) {
    atomic_uchar *lock = &m->locks[offset / NET_GRANULE % NET_LINE_LOCKS];
    for (unsigned spins = 0; atomic_exchange_explicit(lock, 1, memory_order_acquire) != 0; spins++)
        if (spins >= LOCK_SPINS)
            sched_yield();
    return lock;
}


static void unlock_line(atomic_uchar *lock) {
    atomic_store_explicit(lock, 0, memory_order_release);
}


static void copy_words(const net_memory *m, unsigned thread, char *to, const char *from, unsigned words) {
    if (!m->between_words) {
        /* The usual case is a whole granule. Its constant size lets the compiler copy it without a call of memcpy. */
        if (words == NET_GRANULE / 8)
            memcpy(to, from, NET_GRANULE);
        else
            memcpy(to, from, words * 8);
        return;
    }
    for (unsigned i = 0; i < words; i++) {
        memcpy(to + i * 8, from + i * 8, 8);
        m->between_words(thread, i);
    }
}


/* Writes words inside one granule. When the daemon is killed, all stores before the kill in program order stay in the
 * file. The signal fences therefore keep the compiler from reordering the stores to the redo slot and to the granule.
 */
static void write_granule(net_memory *m, unsigned thread, uint64_t offset, const char *from, unsigned words) {
    net_redo *slot = &m->redo[thread];
    bool redo = m->file >= 0 && words > 1; /* a single word is written by one store and needs no redo */
    atomic_uchar *lock = lock_line(m, offset);
    if (redo) {
        slot->offset = offset;
        slot->words = words;
        memcpy(slot->data, from, words * 8);
        __atomic_store_n(&slot->valid, 1, __ATOMIC_RELEASE);
        atomic_signal_fence(memory_order_seq_cst);
    }
    copy_words(m, thread, m->bytes + offset, from, words);
    atomic_signal_fence(memory_order_seq_cst);
    if (redo)
        __atomic_store_n(&slot->valid, 0, __ATOMIC_RELEASE);
    unlock_line(lock);
}


static void read_granule(net_memory *m, unsigned thread, uint64_t offset, char *to, unsigned words) {
    atomic_uchar *lock = lock_line(m, offset);
    copy_words(m, thread, to, m->bytes + offset, words);
    unlock_line(lock);
}


static void copy_granules(net_memory *m, unsigned thread, const net_verb *verb, char *results) {
    for (uint64_t done = 0; done < verb->length;) {
        uint64_t at = verb->offset + done, piece = NET_GRANULE - at % NET_GRANULE;
        if (piece > verb->length - done)
            piece = verb->length - done;
        if (verb->kind == FAR_READ)
            read_granule(m, thread, at, results + done, (unsigned)piece / 8);
        else
            write_granule(m, thread, at, verb->operands + done, (unsigned)piece / 8);
        done += piece;
        if (m->between_granules)
            m->between_granules(thread);
    }
}


static uint64_t apply_atomic(uint64_t old, const net_verb *verb) {
    uint64_t compare = net_word(verb->operands), swap, compare_mask = UINT64_MAX, swap_mask = UINT64_MAX;
    if (verb->kind == FAR_FAA)
        return old + compare;
    swap = net_word(verb->operands + 8);
    if (verb->kind == FAR_MASKED_CAS) {
        compare_mask = net_word(verb->operands + 16);
        swap_mask = net_word(verb->operands + 24);
    }
    return ((old ^ compare) & compare_mask) == 0 ? (old & ~swap_mask) | (swap & swap_mask) : old;
}


void net_memory_run(net_memory *m, unsigned thread, const net_verb *verb, char *results) {
    if (verb->kind == FAR_READ || verb->kind == FAR_WRITE) {
        copy_granules(m, thread, verb, results);
        return;
    }
    atomic_uchar *lock = lock_line(m, verb->offset);
    uint64_t old = net_word(m->bytes + verb->offset), new = apply_atomic(old, verb);
    __atomic_store_n((uint64_t *)(m->bytes + verb->offset), new, __ATOMIC_RELAXED);
    unlock_line(lock);
    memcpy(results, &old, 8);
    if (m->between_granules)
        m->between_granules(thread);
}
