/* The fabric `shm`: a pool file that all processes of one host map. The file is on /dev/shm, on a hugetlbfs mount, on a
 * file system with DAX, or is a DAX device. A verb runs during the call that posts it, as in `local`; shm.h describes
 * the file and the liveness of its clients. far_shm_open opens it.
 *
 * Examples of URIs:
 *
 *     shm:/dev/shm/p?size=4G   shm:/dev/shm/p?size=4G&nodes=2   shm:/dev/shm/p   shm:/dev/shm/p?shared=1 */
#include "fabric/shm/shm.h"
#include "base/error.h"
#include "base/parse.h"
#include "fabric/words.h"
#include "farindex.h"

#include <stdlib.h>
#include <string.h>

#define NODE_BYTES_MIN (1ull << 20)
#define MANY_NODES     128 /* above this number of nodes, the tables on node 0 need nodes of at least 2 MiB */


static void shm_post(far_conn *base, far_batch *batch) {
    batch->pending = false;
    batch->status = 0;
    if (atomic_load_explicit(&base->fenced, memory_order_acquire)) {
        const char *gone = atomic_load_explicit(&base->fabric->gone, memory_order_acquire);
        batch->status = gone ? far_fail(FAR_ERR_UNREACHABLE, "%s: %s", base->fabric->uri, gone) : FAR_ERR_FENCED;
        return;
    }
    far_words_run_batch(base, batch);
}


static int shm_poll(far_conn *conn) {
    (void)conn;
    return 0;
}


static void shm_wait(far_conn *conn, uint64_t until) {
    conn->fabric->host->ops->park(conn->fabric->host, conn->parker, until);
}


static int shm_connect(far_fabric *fabric, far_parker *parker, far_conn **conn) {
    shm_mapping *mapping = ((shm_fabric *)fabric)->mapping;
    int err = shm_check_file(mapping);
    if (err)
        return err;
    shm_conn *made = calloc(1, sizeof(*made));
    if (!made)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a connection");
    far_conn_init_mapped(&made->conn, fabric, parker);
    pthread_mutex_lock(&mapping->lock);
    made->next = mapping->conns;
    mapping->conns = made;
    pthread_mutex_unlock(&mapping->lock);
    *conn = &made->conn;
    return 0;
}


static void shm_disconnect(far_conn *conn) {
    shm_mapping *mapping = ((shm_fabric *)conn->fabric)->mapping;
    pthread_mutex_lock(&mapping->lock);
    shm_release_id((shm_conn *)conn);
    shm_conn **link = &mapping->conns;
    while (*link != (shm_conn *)conn)
        link = &(*link)->next;
    *link = (*link)->next;
    pthread_mutex_unlock(&mapping->lock);
    free(conn);
}


static void shm_close(far_fabric *fabric) {
    shm_detach(((shm_fabric *)fabric)->mapping);
    free(fabric);
}


static const far_fabric_ops shm_ops = {
    .connect = shm_connect,
    .disconnect = shm_disconnect,
    .claim = shm_claim,
    .post = shm_post,
    .poll = shm_poll,
    .wait = shm_wait,
    .has_failed = shm_is_dead,
    .fence_self = shm_fence_self,
    .renew = shm_renew,
    .evict = shm_evict,
    .process_of = shm_process_of,
    .close = shm_close,
};


static int parse_size(const char *text, uint64_t *bytes, char *error, size_t error_size) {
    if (far_parse_size(text, bytes, error, error_size) < 0)
        return FAR_ERR_INVALID;
    if (*bytes < NODE_BYTES_MIN || *bytes > FAR_NODE_BYTES_MAX || *bytes % SHM_PAGE != 0)
        return far_refuse(error, error_size, "a memory node has 1M to 1T, in steps of 4K, not '%s'", text);
    return 0;
}


static int parse_nodes(const char *text, unsigned *nodes, char *error, size_t error_size) {
    uint64_t count;
    if (far_parse_number(text, &count, error, error_size) < 0)
        return FAR_ERR_INVALID;
    if (count < 1 || count > FAR_NODES_MAX)
        return far_refuse(error, error_size, "a pool has 1 to %d memory nodes, not %s", FAR_NODES_MAX, text);
    *nodes = (unsigned)count;
    return 0;
}


static int parse_uri(const char *rest, shm_options *options, char *error, size_t error_size) {
    const char *question = strchr(rest, '?');
    size_t length = question ? (size_t)(question - rest) : strlen(rest);
    memset(options, 0, sizeof(*options));
    if (rest[0] != '/' || length < 2 || rest[length - 1] == '/')
        return far_refuse(error, error_size, "a pool is a file with an absolute path");
    if (length >= sizeof(options->path))
        return far_refuse(error, error_size, "the path is longer than %zu characters", sizeof(options->path) - 1);
    memcpy(options->path, rest, length);
    if (question && question[1] == 0)
        return far_refuse(error, error_size, "nothing follows '?'");
    far_option_list list;
    far_options_begin(&list, question ? question + 1 : NULL, '&');
    int got;
    while ((got = far_options_next(&list, error, error_size)) > 0) {
        int err;
        if (strcmp(list.name, "size") == 0)
            err = parse_size(list.value, &options->node_bytes, error, error_size);
        else if (strcmp(list.name, "nodes") == 0)
            err = parse_nodes(list.value, &options->nodes, error, error_size);
        else if (strcmp(list.name, "shared") == 0)
            err = far_parse_switch(list.value, &options->shared, error, error_size);
        else
            err = far_refuse(error, error_size, "unknown option '%s' (there are size=, nodes= and shared=)", list.name);
        if (err < 0)
            return err;
    }
    if (got == 0 && options->node_bytes && options->nodes > MANY_NODES && options->node_bytes < 2 * NODE_BYTES_MIN)
        return far_refuse(error, error_size, "each memory node of a pool with %u nodes needs at least 2M",
                          options->nodes);
    return got;
}


int shm_parse_uri(const char *rest, shm_options *options) {
    char error[256];
    if (parse_uri(rest, options, error, sizeof(error)) < 0)
        return far_fail(FAR_ERR_INVALID, "uri: shm:%s: %s", rest, error);
    return 0;
}


static int open_pool(const char *rest, bool existing, far_fabric **opened) {
    shm_options options;
    int err = shm_parse_uri(rest, &options);
    if (err < 0)
        return err;
    options.existing = existing;
    shm_fabric *fabric = calloc(1, sizeof(*fabric));
    if (!fabric)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a handle");
    err = shm_attach(&options, &fabric->mapping);
    if (err) {
        free(fabric);
        return err;
    }
    fabric->fabric.ops = &shm_ops;
    fabric->fabric.host = &far_host_threads;
    fabric->fabric.capabilities = far_words_capabilities();
    fabric->fabric.rtt = 1000;
    fabric->fabric.at_once = true;
    fabric->fabric.post_in_place = shm_post;
    fabric->fabric.nodes = fabric->mapping->nodes;
    fabric->fabric.memory = fabric->mapping->memory;
    for (unsigned i = 0; i < fabric->mapping->nodes; i++)
        fabric->fabric.node_bytes[i] = fabric->mapping->node_bytes;
    *opened = &fabric->fabric;
    return 0;
}


int far_shm_open(const char *rest, far_fabric **opened) {
    return open_pool(rest, false, opened);
}


int far_shm_open_existing(const char *rest, far_fabric **opened) {
    return open_pool(rest, true, opened);
}
