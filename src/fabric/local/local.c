/* The fabric `local`: memory nodes inside the process, the default for embedded use. A verb runs during the call that
 * posts it (fabric/words.h). With the option rtt=, each result is delivered only after that time, as on a network.
 * far_local_open opens it.
 *
 * Examples of URIs:
 *
 *     local:4G   local:2x4G   local:1G?name=a&rtt=2us */
#define _GNU_SOURCE
#include "base/error.h"
#include "base/parse.h"
#include "fabric/words.h"
#include "farindex.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define NAME_MAX_BYTES 63

typedef struct local_conn local_conn;

/* The memory of a local pool. All handles of this process that give the same name share it. */
typedef struct local_pool {
    char name[NAME_MAX_BYTES + 1];
    unsigned handles, nodes;
    uint64_t node_bytes;
    char *memory[FAR_NODES_MAX];
    pthread_mutex_t lock; /* protects the list `conns` */
    local_conn *conns;
    struct local_pool *next;
} local_pool;

typedef struct local_fabric {
    far_fabric fabric; /* must be the first member, because pointers to it are cast to the whole struct */
    local_pool *pool;
    uint64_t rtt;
} local_fabric;

struct local_conn {
    far_conn conn; /* must be the first member, because pointers to it are cast to the whole struct */
    unsigned id, generation;
    far_batch *first, *last; /* batches that are pending because of rtt=, oldest first */
    local_conn *next;        /* next connection in the list of the pool */
};

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static local_pool *pools;


/* ---- Fork. The child process has a private copy of the memory, so its writes would be lost silently. Therefore all
 * connections that it inherited are fenced. ---- */

static void before_fork(void) {
    pthread_mutex_lock(&pools_lock);
}


static void after_fork(void) {
    pthread_mutex_unlock(&pools_lock);
}


static void after_fork_in_child(void) {
    for (local_pool *pool = pools; pool; pool = pool->next) {
        /* The lock is initialized again in the child, because a thread of the parent, which does not exist in the
         * child, may have held it at the fork. */
        pthread_mutex_init(&pool->lock, NULL);
        for (local_conn *conn = pool->conns; conn; conn = conn->next) {
            far_conn_fence(&conn->conn);
            atomic_store_explicit(&conn->conn.fabric->gone, "a local pool does not outlive a fork",
                                  memory_order_relaxed);
        }
    }
    pools = NULL;
    pthread_mutex_unlock(&pools_lock);
}


static void register_fork_handlers(void) {
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}


/* Delays the delivery of a batch by the time of its round trips: one, plus one for each fence. The verbs have already
 * taken effect. */
static void delay_completion(local_conn *conn, far_batch *batch, uint64_t rtt) {
    uint64_t trips = 1;
    for (uint32_t i = 1; i < batch->count; i++)
        trips += (batch->verbs[i].flags & FAR_VERB_FENCE) != 0;
    batch->posted_at = far_host_now(conn->conn.fabric->host);
    batch->completed_at = batch->posted_at + trips * rtt;
    batch->pending = true;
    batch->next = NULL;
    if (conn->last)
        conn->last->next = batch;
    else
        conn->first = batch;
    conn->last = batch;
}


static void local_post(far_conn *base, far_batch *batch) {
    batch->pending = false;
    batch->status = 0;
    if (atomic_load_explicit(&base->fenced, memory_order_acquire))
        batch->status = FAR_ERR_FENCED;
    else
        far_words_run_batch(base, batch);
}


static void local_post_with_delay(far_conn *base, far_batch *batch) {
    local_post(base, batch);
    if (batch->status == 0)
        delay_completion((local_conn *)base, batch, ((const local_fabric *)base->fabric)->rtt);
}


static int local_poll(far_conn *base) {
    local_conn *conn = (local_conn *)base;
    int delivered = 0;
    if (!conn->first)
        return 0;
    uint64_t now = far_host_now(base->fabric->host);
    while (conn->first && conn->first->completed_at <= now) {
        far_batch *batch = conn->first;
        conn->first = batch->next;
        if (!conn->first)
            conn->last = NULL;
        batch->pending = false;
        batch->done(batch);
        delivered++;
    }
    return delivered;
}


static void local_wait(far_conn *base, uint64_t until) {
    local_conn *conn = (local_conn *)base;
    if (conn->first && conn->first->completed_at < until)
        until = conn->first->completed_at;
    base->fabric->host->ops->park(base->fabric->host, base->parker, until);
}


static int local_connect(far_fabric *fabric, far_parker *parker, far_conn **conn) {
    local_conn *made = calloc(1, sizeof(*made));
    if (!made)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a connection");
    far_conn_init_mapped(&made->conn, fabric, parker);
    local_pool *pool = ((local_fabric *)fabric)->pool;
    pthread_mutex_lock(&pool->lock);
    made->next = pool->conns;
    pool->conns = made;
    pthread_mutex_unlock(&pool->lock);
    *conn = &made->conn;
    return 0;
}


static void local_disconnect(far_conn *conn) {
    local_pool *pool = ((local_fabric *)conn->fabric)->pool;
    pthread_mutex_lock(&pool->lock);
    local_conn **link = &pool->conns;
    while (*link != (local_conn *)conn)
        link = &(*link)->next;
    *link = (*link)->next;
    pthread_mutex_unlock(&pool->lock);
    free(conn);
}


static int local_claim(far_conn *base, unsigned id, unsigned generation) {
    local_conn *conn = (local_conn *)base;
    local_pool *pool = ((local_fabric *)base->fabric)->pool;
    pthread_mutex_lock(&pool->lock);
    conn->id = id;
    conn->generation = generation;
    pthread_mutex_unlock(&pool->lock);
    return 0;
}


/* Returns 1 if no connection in this process represents the session any more, else 0. Clients inside one process do not
 * fail one by one, but a session can give itself up, or can be closed without having left the registry. */
static int local_is_dead(far_conn *asker, unsigned id, unsigned generation) {
    local_pool *pool = ((local_fabric *)asker->fabric)->pool;
    int dead = 1;
    pthread_mutex_lock(&pool->lock);
    for (local_conn *conn = pool->conns; conn && dead; conn = conn->next)
        if (conn->id == id && conn->generation == generation &&
            !atomic_load_explicit(&conn->conn.fenced, memory_order_acquire))
            dead = 0;
    pthread_mutex_unlock(&pool->lock);
    return dead;
}


static void local_fence_self(far_conn *conn) {
    far_conn_fence(conn);
}


static void free_pool(local_pool *pool) {
    for (unsigned i = 0; i < pool->nodes; i++)
        if (pool->memory[i])
            munmap(pool->memory[i], pool->node_bytes);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}


static void local_close(far_fabric *base) {
    local_pool *pool = ((local_fabric *)base)->pool;
    pthread_mutex_lock(&pools_lock);
    assert(pool->handles > 0);
    bool last = --pool->handles == 0;
    for (local_pool **link = &pools; last && *link; link = &(*link)->next)
        if (*link == pool) {
            *link = pool->next;
            break;
        }
    pthread_mutex_unlock(&pools_lock);
    if (last)
        free_pool(pool);
    free(base);
}


#define LOCAL_OPS(how)                                                                                                 \
    {                                                                                                                  \
        .connect = local_connect, .disconnect = local_disconnect, .claim = local_claim, .post = how,                   \
        .poll = local_poll, .wait = local_wait, .has_failed = local_is_dead, .fence_self = local_fence_self,              \
        .close = local_close                                                                                           \
    }
static const far_fabric_ops local_ops = LOCAL_OPS(local_post), delayed_ops = LOCAL_OPS(local_post_with_delay);


static local_pool *make_pool(const char *name, unsigned nodes, uint64_t node_bytes) {
    local_pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        return NULL;
    snprintf(pool->name, sizeof(pool->name), "%s", name);
    pool->nodes = nodes;
    pool->node_bytes = node_bytes;
    pthread_mutex_init(&pool->lock, NULL);
    for (unsigned i = 0; i < nodes; i++) {
        void *memory =
            mmap(NULL, node_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            free_pool(pool);
            return NULL;
        }
        /* Huge pages reduce TLB misses. The kernel may ignore the advice. */
        madvise(memory, node_bytes, MADV_HUGEPAGE);
        pool->memory[i] = memory;
    }
    return pool;
}


/* Finds the pool of that name, or makes a new one, and counts one more handle on it. An empty name always makes a new
 * pool. */
static int join_pool(const char *name, unsigned nodes, uint64_t node_bytes, local_pool **joined) {
    int err = 0;
    pthread_mutex_lock(&pools_lock);
    local_pool *pool = *name ? pools : NULL;
    while (pool && strcmp(pool->name, name) != 0)
        pool = pool->next;
    if (pool && (pool->nodes != nodes || pool->node_bytes != node_bytes)) {
        err = far_fail(FAR_ERR_INVALID, "uri: the local pool '%s' is open with %u nodes of %llu bytes", name,
                       pool->nodes, (unsigned long long)pool->node_bytes);
    } else if (!pool) {
        pool = make_pool(name, nodes, node_bytes);
        if (!pool) {
            err = far_fail(FAR_ERR_NO_MEMORY, "uri: no memory for %u nodes of %llu bytes", nodes,
                           (unsigned long long)node_bytes);
        } else {
            pool->next = pools;
            pools = pool;
        }
    }
    if (!err) {
        pool->handles++;
        *joined = pool;
    }
    pthread_mutex_unlock(&pools_lock);
    return err;
}


/* Parses the first part of the URI: a size ("4G"), or a number of nodes and the size of each ("2x4G"). */
static int parse_shape(const char *text, unsigned *nodes, uint64_t *node_bytes, char *error, size_t error_size) {
    uint64_t count = 1;
    const char *cross = strchr(text, 'x');
    if (cross) {
        char number[24];
        if (cross - text >= (ptrdiff_t)sizeof(number))
            return far_refuse(error, error_size, "'%s' is not of the form 2x4G (number of nodes, size of each)", text);
        memcpy(number, text, (size_t)(cross - text));
        number[cross - text] = 0;
        if (far_parse_number(number, &count, error, error_size) < 0)
            return FAR_ERR_INVALID;
        text = cross + 1;
    }
    if (far_parse_size(text, node_bytes, error, error_size) < 0)
        return FAR_ERR_INVALID;
    if (count < 1 || count > FAR_NODES_MAX)
        return far_refuse(error, error_size, "a pool has 1 to %d memory nodes, not %llu", FAR_NODES_MAX,
                          (unsigned long long)count);
    if (*node_bytes == 0 || *node_bytes > FAR_NODE_BYTES_MAX || *node_bytes % 4096 != 0)
        return far_refuse(error, error_size, "a memory node has at most 1T, in steps of 4K, not '%s'", text);
    *nodes = (unsigned)count;
    return 0;
}


typedef struct local_options {
    unsigned nodes;
    uint64_t node_bytes, rtt;
    char name[NAME_MAX_BYTES + 1];
} local_options;


static int parse_uri(const char *rest, local_options *options, char *error, size_t error_size) {
    char shape[64];
    const char *question = strchr(rest, '?');
    size_t length = question ? (size_t)(question - rest) : strlen(rest);
    if (length >= sizeof(shape))
        return far_refuse(error, error_size, "'%s' is not a size", rest);
    memcpy(shape, rest, length);
    shape[length] = 0;
    memset(options, 0, sizeof(*options));
    if (parse_shape(shape, &options->nodes, &options->node_bytes, error, error_size) < 0)
        return FAR_ERR_INVALID;
    far_option_list list;
    far_options_begin(&list, question ? question + 1 : NULL, '&');
    int got;
    while ((got = far_options_next(&list, error, error_size)) > 0) {
        if (strcmp(list.name, "rtt") == 0) {
            if (far_parse_duration(list.value, &options->rtt, error, error_size) < 0)
                return FAR_ERR_INVALID;
        } else if (strcmp(list.name, "name") == 0) {
            if (!*list.value || strlen(list.value) > NAME_MAX_BYTES)
                return far_refuse(error, error_size, "name= takes 1 to %d characters", NAME_MAX_BYTES);
            strcpy(options->name, list.value);
        } else {
            return far_refuse(error, error_size, "unknown option '%s' (there are rtt= and name=)", list.name);
        }
    }
    return got;
}


int far_local_open(const char *rest, far_fabric **opened) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char error[256];
    pthread_once(&once, register_fork_handlers);
    local_options options;
    if (parse_uri(rest, &options, error, sizeof(error)) < 0)
        return far_fail(FAR_ERR_INVALID, "uri: local:%s: %s", rest, error);
    local_fabric *fabric = calloc(1, sizeof(*fabric));
    if (!fabric)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a handle");
    int err = join_pool(options.name, options.nodes, options.node_bytes, &fabric->pool);
    if (err) {
        free(fabric);
        return err;
    }
    fabric->rtt = options.rtt;
    fabric->fabric.ops = options.rtt ? &delayed_ops : &local_ops;
    fabric->fabric.host = &far_host_threads;
    fabric->fabric.capabilities = far_words_capabilities();
    fabric->fabric.rtt = options.rtt ? options.rtt : 1000;
    fabric->fabric.at_once = options.rtt == 0;
    fabric->fabric.post_in_place = local_post;
    fabric->fabric.nodes = options.nodes;
    fabric->fabric.memory = fabric->pool->memory;
    for (unsigned i = 0; i < options.nodes; i++)
        fabric->fabric.node_bytes[i] = options.node_bytes;
    *opened = &fabric->fabric;
    return 0;
}
