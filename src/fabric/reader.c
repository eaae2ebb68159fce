/* Opens readers (reader.h) by the scheme of a URI. The memory of a `local` pool is in this process, so its reader
 * copies it from there. */
#include "fabric/reader.h"
#include "base/error.h"
#include "farindex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct mapped_reader {
    far_reader reader;  /* must be the first member, because pointers to it are cast to the whole struct */
    far_fabric *fabric; /* a fabric that maps its memory */
} mapped_reader;


static int read_mapped(far_reader *reader, unsigned node, uint64_t offset, void *to, uint64_t bytes) {
    memcpy(to, ((mapped_reader *)reader)->fabric->memory[node] + offset, bytes);
    return 0;
}


static void close_mapped(far_reader *reader) {
    far_fabric *fabric = ((mapped_reader *)reader)->fabric;
    fabric->ops->close(fabric);
    free(reader);
}


static int open_local(const char *rest, far_reader **opened) {
    mapped_reader *made = calloc(1, sizeof(*made));
    if (!made)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a handle");
    int err = far_local_open(rest, &made->fabric);
    if (err < 0) {
        free(made);
        return err;
    }
    made->reader.nodes = made->fabric->nodes;
    memcpy(made->reader.node_bytes, made->fabric->node_bytes, sizeof(made->reader.node_bytes));
    made->reader.read = read_mapped;
    made->reader.close = close_mapped;
    *opened = &made->reader;
    return 0;
}


static const struct {
    const char *prefix;
    int (*open)(const char *rest, far_reader **opened);
} readers[] = {{"local:", open_local}, {"shm:", far_shm_reader_open}, {"tcp://", far_tcp_reader_open}};


int far_reader_open(const char *uri, far_reader **reader) {
    for (size_t i = 0; i < sizeof(readers) / sizeof(readers[0]); i++)
        if (strncmp(uri, readers[i].prefix, strlen(readers[i].prefix)) == 0)
            return readers[i].open(uri + strlen(readers[i].prefix), reader);
    return far_fail(FAR_ERR_UNSUPPORTED, "uri: '%s': only pools of shm: and tcp:// can be salvaged", uri);
}
