/* The reader of a pool file (fabric/reader.h). It also reads a file that was truncated: the part that is gone counts as
 * missing nodes, or as zeros in the last node. */
#define _GNU_SOURCE
#include "fabric/reader.h"
#include "base/error.h"
#include "fabric/shm/shm.h"
#include "farindex.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct shm_reader {
    far_reader reader; /* must be the first member, because pointers to it are cast to the whole struct */
    int file;
    uint64_t node_stride;
} shm_reader;


static int read_file(far_reader *base, unsigned node, uint64_t offset, void *to, uint64_t bytes) {
    shm_reader *reader = (shm_reader *)base;
    uint64_t at = SHM_NODES_AT + node * reader->node_stride + offset;
    ssize_t got = pread(reader->file, to, bytes, (off_t)at);
    if (got < 0)
        return far_fail(FAR_ERR_UNREACHABLE, "the pool file cannot be read: %s", strerror(errno));
    memset((char *)to + got, 0, bytes - (uint64_t)got);
    return 0;
}


static void close_reader(far_reader *base) {
    close(((shm_reader *)base)->file);
    free(base);
}


/* Reads the shape of the pool from the header of the file. A node that begins after the end of the file is missing. */
static int read_shape(shm_reader *reader, const char *path) {
    shm_header header;
    struct stat status;
    far_reader *base = &reader->reader;
    if (fstat(reader->file, &status) < 0 || pread(reader->file, &header, sizeof(header), 0) != sizeof(header))
        return far_fail(FAR_ERR_UNREACHABLE, "shm:%s: cannot be read", path);
    int err = shm_check_header(&header, path);
    if (err < 0)
        return err;
    base->nodes = header.nodes;
    reader->node_stride = shm_node_stride(header.node_bytes);
    for (unsigned i = 0; i < header.nodes; i++)
        if (S_ISCHR(status.st_mode) || (uint64_t)status.st_size > SHM_NODES_AT + i * reader->node_stride)
            base->node_bytes[i] = header.node_bytes;
    if (!S_ISCHR(status.st_mode) && (uint64_t)status.st_size < header.file_bytes)
        snprintf(base->missing, sizeof(base->missing), "the file was truncated: it has %llu of its %llu bytes",
                 (unsigned long long)status.st_size, (unsigned long long)header.file_bytes);
    return 0;
}


int far_shm_reader_open(const char *rest, far_reader **opened) {
    shm_options options;
    int err = shm_parse_uri(rest, &options);
    if (err < 0)
        return err;
    shm_reader *made = calloc(1, sizeof(*made));
    if (!made)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a handle");
    made->reader.read = read_file;
    made->reader.close = close_reader;
    made->file = open(options.path, O_RDONLY | O_CLOEXEC);
    if (made->file < 0) {
        err = far_fail(errno == ENOENT ? FAR_ERR_NOT_FOUND : FAR_ERR_UNREACHABLE, "shm:%s: %s", options.path,
                       strerror(errno));
        free(made);
        return err;
    }
    if ((err = read_shape(made, options.path)) < 0)
        close_reader(&made->reader);
    else
        *opened = &made->reader;
    return err;
}
