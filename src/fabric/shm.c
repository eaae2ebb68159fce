/* The fabric `shm`: a file (on /dev/shm, a hugetlbfs mount, a DAX file system or device) that every process of one host
 * maps. Verbs run at the call, as in `local`; fabric/shm.h says how the file looks and how its clients die.
 *
 * shm:/dev/shm/p?size=4G   shm:/dev/shm/p?size=4G&nodes=2   shm:/dev/shm/p */
#include "fabric/shm.h"
#include "base/error.h"
#include "base/parse.h"
#include "fabric/words.h"
#include "farindex.h"

#include <stdlib.h>
#include <string.h>

#define NODE_BYTES_MIN (1ull << 20)
#define MANY_NODES     128 /* their sessions need more room on the first */


static void shm_post(far_conn *base, far_batch *batch) {
    batch->pending = false;
    batch->status = 0;
    if (atomic_load_explicit(&base->fenced, memory_order_acquire)) {
        const char *gone = atomic_load_explicit(&base->fabric->gone, memory_order_acquire);
        batch->status = gone ? far_fail(FAR_ERR_UNREACHABLE, "%s: %s", base->fabric->uri, gone) : FAR_ERR_FENCED;
        return;
    }
    far_words_run_all(base, batch);
}


static int shm_poll(far_conn *conn) {
    (void)conn;
    return 0;
}


static void shm_wait(far_conn *conn, uint64_t until) {
    conn->fabric->host->ops->park(conn->fabric->host, conn->parker, until);
}


static int shm_connect(far_fabric *fabric, far_parker *parker, far_conn **conn) {
    shm_world *world = ((shm_fabric *)fabric)->world;
    int err = shm_look(world);
    if (err)
        return err;
    shm_conn *made = calloc(1, sizeof(*made));
    if (!made)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a connection");
    far_conn_begin(&made->conn, fabric, parker);
    pthread_mutex_lock(&world->lock);
    made->next = world->conns;
    world->conns = made;
    pthread_mutex_unlock(&world->lock);
    *conn = &made->conn;
    return 0;
}


static void shm_disconnect(far_conn *conn) {
    shm_world *world = ((shm_fabric *)conn->fabric)->world;
    pthread_mutex_lock(&world->lock);
    shm_let_go((shm_conn *)conn);
    shm_conn **link = &world->conns;
    while (*link != (shm_conn *)conn)
        link = &(*link)->next;
    *link = (*link)->next;
    pthread_mutex_unlock(&world->lock);
    free(conn);
}


static void shm_close(far_fabric *fabric) {
    shm_leave(((shm_fabric *)fabric)->world);
    free(fabric);
}


static const far_fabric_ops shm_ops = {
    .connect = shm_connect,
    .disconnect = shm_disconnect,
    .claim = shm_claim,
    .post = shm_post,
    .poll = shm_poll,
    .wait = shm_wait,
    .is_dead = shm_is_dead,
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


static int parse_shm(const char *rest, shm_shape *shape, char *error, size_t error_size) {
    const char *question = strchr(rest, '?');
    size_t length = question ? (size_t)(question - rest) : strlen(rest);
    memset(shape, 0, sizeof(*shape));
    if (rest[0] != '/' || length < 2 || rest[length - 1] == '/')
        return far_refuse(error, error_size, "a pool is a file with an absolute path");
    if (length >= sizeof(shape->path))
        return far_refuse(error, error_size, "the path is longer than %zu characters", sizeof(shape->path) - 1);
    memcpy(shape->path, rest, length);
    if (question && question[1] == 0)
        return far_refuse(error, error_size, "nothing follows '?'");
    far_option_list list;
    far_options_begin(&list, question ? question + 1 : NULL, '&');
    int got;
    while ((got = far_options_next(&list, error, error_size)) > 0) {
        int err;
        if (strcmp(list.name, "size") == 0)
            err = parse_size(list.value, &shape->node_bytes, error, error_size);
        else if (strcmp(list.name, "nodes") == 0)
            err = parse_nodes(list.value, &shape->nodes, error, error_size);
        else
            err = far_refuse(error, error_size, "unknown option '%s' (there are size= and nodes=)", list.name);
        if (err < 0)
            return err;
    }
    if (got == 0 && shape->node_bytes && shape->nodes > MANY_NODES && shape->node_bytes < 2 * NODE_BYTES_MIN)
        return far_refuse(error, error_size, "memory nodes of a pool with %u of them have at least 2M", shape->nodes);
    return got;
}


static int open_file(const char *rest, bool existing, far_fabric **opened) {
    char error[256];
    shm_shape shape;
    if (parse_shm(rest, &shape, error, sizeof(error)) < 0)
        return far_fail(FAR_ERR_INVALID, "uri: shm:%s: %s", rest, error);
    shape.existing = existing;
    shm_fabric *fabric = calloc(1, sizeof(*fabric));
    if (!fabric)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a handle");
    int err = shm_join(&shape, &fabric->world);
    if (err) {
        free(fabric);
        return err;
    }
    fabric->fabric.ops = &shm_ops;
    fabric->fabric.host = &far_host_threads;
    fabric->fabric.capabilities = far_words_capabilities();
    fabric->fabric.rtt = 1000;
    fabric->fabric.at_once = true;
    fabric->fabric.runs_in_place = shm_post;
    fabric->fabric.nodes = fabric->world->nodes;
    fabric->fabric.memory = fabric->world->memory;
    for (unsigned i = 0; i < fabric->world->nodes; i++)
        fabric->fabric.node_bytes[i] = fabric->world->node_bytes;
    *opened = &fabric->fabric;
    return 0;
}


int far_shm_open(const char *rest, far_fabric **opened) {
    return open_file(rest, false, opened);
}


int far_shm_open_existing(const char *rest, far_fabric **opened) {
    return open_file(rest, true, opened);
}
