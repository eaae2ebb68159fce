/* The memory of a node: its file, and the verbs on it. */
#define _GNU_SOURCE
#include "fabric/net/memory.h"
#include "base/error.h"
#include "base/parse.h"
#include "fabric/shm.h"
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

#define FILE_MODE    0600
#define LOCK_AT      (1ll << 62) /* held by the daemon that serves the file */
#define LOCK_SPINS   200u
#define STEP         4096u
#define MEMORY_LEAST (1ull << 20)


/* ---- The file ---- */

static int refuse_file(const char *path, const char *what) {
    int error = errno;
    int code = error == ENOSPC || error == ENOMEM || error == EFBIG || error == EDQUOT ? FAR_ERR_NO_MEMORY
               : error == ENOENT || error == ENOTDIR                                   ? FAR_ERR_NOT_FOUND
                                                                                       : FAR_ERR_UNREACHABLE;
    return far_fail(code, "%s: %s: %s", path, what, strerror(error));
}


static uint64_t check_of(const net_file_header *header) {
    return XXH3_64bits(header, offsetof(net_file_header, check));
}


static void write_header(net_file_header *header, uint64_t size) {
    net_file_header made = {.magic = NET_FILE_MAGIC, .version = NET_FILE_VERSION, .bytes = size};
    while (made.instance == 0)
        if (getrandom(&made.instance, sizeof(made.instance), 0) < 0 && errno != EINTR)
            abort(); /* a kernel without getrandom */
    made.check = check_of(&made);
    uint64_t magic = made.magic;
    made.magic = 0;
    memcpy(header, &made, sizeof(made));
    __atomic_store_n(&header->magic, magic, __ATOMIC_RELEASE); /* last: a kill before leaves an empty file */
}


static int check_header(const net_file_header *header, const char *path, uint64_t size, uint64_t there) {
    char is[FAR_SIZE_TEXT], wanted[FAR_SIZE_TEXT];
    if (header->magic == SHM_MAGIC)
        return far_fail(FAR_ERR_CORRUPT, "%s: this is a pool of the fabric shm:, which cannot be served", path);
    if (header->magic != NET_FILE_MAGIC)
        return far_fail(FAR_ERR_CORRUPT, "%s: not the memory of a farindex node", path);
    if (header->version != NET_FILE_VERSION)
        return far_fail(FAR_ERR_CORRUPT, "%s: the file has format version %u, this program knows version %u", path,
                        header->version, NET_FILE_VERSION);
    if (header->check != check_of(header) || there < NET_MEMORY_AT || header->bytes > there - NET_MEMORY_AT ||
        header->node >= FAR_NODES_MAX || header->nodes > FAR_NODES_MAX)
        return far_fail(FAR_ERR_CORRUPT, "%s: the file is damaged or was cut", path);
    if (size && size != header->bytes)
        return far_fail(FAR_ERR_INVALID, "%s: the file is there, with a node of %s (%llu bytes), not %s", path,
                        far_format_size(header->bytes, is), (unsigned long long)header->bytes,
                        far_format_size(size, wanted));
    return 0;
}


/* So that no second daemon serves the file: the kernel drops the lock when the process ends, however it does. */
static int lock_file(int file, const char *path) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_AT, .l_len = 1};
    if (fcntl(file, F_OFD_SETLK, &lock) == 0)
        return 0;
    if (errno == EAGAIN || errno == EACCES)
        return far_fail(FAR_ERR_BUSY, "%s: another daemon serves this file", path);
    return refuse_file(path, "cannot be locked");
}


/* A daemon that was killed while it made the file leaves room, and perhaps a header without its magic word. */
static bool is_half_made(const net_file_header *header, uint64_t there, uint64_t size) {
    net_file_header whole = *header;
    whole.magic = NET_FILE_MAGIC;
    return header->magic == 0 && there == NET_MEMORY_AT + size &&
           (header->instance == 0 || header->check == check_of(&whole));
}


static int refuse_without_size(const char *path) {
    return far_fail(FAR_ERR_INVALID, "%s: there is no memory yet, and no --size to make it", path);
}


static int make_or_check(net_memory *m, const char *path, uint64_t size, bool *fresh) {
    struct stat status;
    net_file_header header = {0};
    if (fstat(m->file, &status) < 0)
        return refuse_file(path, "cannot be looked at");
    if (!S_ISREG(status.st_mode))
        return far_fail(FAR_ERR_INVALID, "%s: not a file", path);
    if (status.st_size > 0 && pread(m->file, &header, sizeof(header), 0) < 0)
        return refuse_file(path, "cannot be read");
    *fresh = status.st_size == 0 || is_half_made(&header, (uint64_t)status.st_size, size);
    if (!*fresh && (uint64_t)status.st_size < NET_MEMORY_AT && header.magic == NET_FILE_MAGIC)
        return far_fail(FAR_ERR_CORRUPT, "%s: the file is damaged or was cut", path);
    if (!*fresh) {
        int err = check_header(&header, path, size, (uint64_t)status.st_size);
        m->size = header.bytes;
        return err;
    }
    if (size == 0)
        return refuse_without_size(path);
    m->size = size;
    int error = ftruncate(m->file, (off_t)(NET_MEMORY_AT + size)) < 0 ? errno : 0;
    if (error == 0)
        error = posix_fallocate(m->file, 0, (off_t)(NET_MEMORY_AT + size));
    if (error == 0)
        return 0;
    if (status.st_size == 0)
        unlink(path);
    errno = error;
    return refuse_file(path, "no room for the memory");
}


static void write_unit_again(net_memory *m, net_redo *slot) {
    bool sound = slot->words > 0 && slot->words <= NET_UNIT / 8 && slot->offset % 8 == 0 && slot->offset < m->size &&
                 slot->words * 8 <= m->size - slot->offset;
    if (slot->valid == 1 && sound)
        memcpy(m->bytes + slot->offset, slot->data, slot->words * 8);
    slot->valid = 0;
}


static void place_parts(net_memory *m) {
    m->header = (net_file_header *)m->base;
    m->redo = (net_redo *)(m->base + NET_REDO_AT);
    m->ledger = (net_ledger *)(m->base + NET_LEDGER_AT);
    m->bytes = m->base + NET_MEMORY_AT;
}


static int map_memory(net_memory *m, const char *path, uint64_t size) {
    bool fresh = true;
    int err = 0;
    m->size = size;
    if (path && (m->file = open(path, O_RDWR | (size ? O_CREAT : 0) | O_CLOEXEC, FILE_MODE)) < 0)
        return size == 0 && errno == ENOENT ? refuse_without_size(path) : refuse_file(path, "cannot be opened");
    if (path && ((err = lock_file(m->file, path)) < 0 || (err = make_or_check(m, path, size, &fresh)) < 0))
        return err;
    m->mapped = NET_MEMORY_AT + m->size;
    m->base = mmap(NULL, m->mapped, PROT_READ | PROT_WRITE,
                   path ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, m->file, 0);
    if (m->base == MAP_FAILED) {
        m->base = NULL;
        return refuse_file(path ? path : "anonymous memory", "cannot be mapped");
    }
    madvise(m->base, m->mapped, MADV_HUGEPAGE); /* huge pages may be refused: ordinary ones do */
    place_parts(m);
    if (fresh)
        write_header(m->header, m->size);
    else
        m->header->restarts++;
    for (unsigned i = 0; i < NET_THREADS_MAX; i++)
        write_unit_again(m, &m->redo[i]);
    return 0;
}


bool net_memory_may_have(uint64_t size) {
    return size >= MEMORY_LEAST && size <= FAR_NODE_BYTES_MAX && size % STEP == 0;
}


int net_memory_open(const char *path, uint64_t size, net_memory **memory) {
    if (!(path && size == 0) && !net_memory_may_have(size))
        return far_fail(FAR_ERR_INVALID, NET_MEMORY_SIZES);
    net_memory *m = aligned_alloc(64, sizeof(*m));
    if (!m)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    memset(m, 0, sizeof(*m));
    m->file = -1;
    int err = map_memory(m, path, size);
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


void net_memory_join(net_memory *m, net_join *join) {
    net_file_header *header = m->header;
    if (header->pool == 0) {
        header->node = join->node;
        header->nodes = join->nodes;
        __atomic_store_n(&header->pool, join->pool, __ATOMIC_RELEASE);
    }
    if (header->pool == join->pool && header->node == join->node && header->nodes == join->nodes && join->complete)
        __atomic_store_n(&header->complete, 1u, __ATOMIC_RELEASE);
    *join =
        (net_join){.pool = header->pool, .node = header->node, .nodes = header->nodes, .complete = header->complete};
}


/* ---- Verbs ---- */

static atomic_uchar *lock_line(net_memory *m, uint64_t offset) {
    atomic_uchar *lock = &m->locks[offset / NET_UNIT % NET_LINES];
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
        if (words == NET_UNIT / 8) /* most are: no call */
            memcpy(to, from, NET_UNIT);
        else
            memcpy(to, from, words * 8);
        return;
    }
    for (unsigned i = 0; i < words; i++) {
        memcpy(to + i * 8, from + i * 8, 8);
        m->between_words(thread, i);
    }
}


/* A kill keeps all stores before it, in program order: so the compiler must keep that order too. */
static void write_unit(net_memory *m, unsigned thread, uint64_t offset, const char *from, unsigned words) {
    net_redo *slot = &m->redo[thread];
    bool redo = m->file >= 0 && words > 1; /* one word is one store */
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


static void read_unit(net_memory *m, unsigned thread, uint64_t offset, char *to, unsigned words) {
    atomic_uchar *lock = lock_line(m, offset);
    copy_words(m, thread, to, m->bytes + offset, words);
    unlock_line(lock);
}


static void copy_units(net_memory *m, unsigned thread, const net_verb *verb, char *results) {
    for (uint64_t done = 0; done < verb->length;) {
        uint64_t at = verb->offset + done, piece = NET_UNIT - at % NET_UNIT;
        if (piece > verb->length - done)
            piece = verb->length - done;
        if (verb->kind == FAR_READ)
            read_unit(m, thread, at, results + done, (unsigned)piece / 8);
        else
            write_unit(m, thread, at, verb->operands + done, (unsigned)piece / 8);
        done += piece;
        if (m->between_units)
            m->between_units(thread);
    }
}


static uint64_t change_word(uint64_t old, const net_verb *verb) {
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
        copy_units(m, thread, verb, results);
        return;
    }
    atomic_uchar *lock = lock_line(m, verb->offset);
    uint64_t old = net_word(m->bytes + verb->offset), new = change_word(old, verb);
    __atomic_store_n((uint64_t *)(m->bytes + verb->offset), new, __ATOMIC_RELAXED);
    unlock_line(lock);
    memcpy(results, &old, 8);
    if (m->between_units)
        m->between_units(thread);
}
