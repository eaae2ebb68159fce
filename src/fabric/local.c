/* The fabric `local`: memory nodes inside the process. A verb runs at the call (fabric/words.h). With rtt= the
 * result is shown only after that time.
 *
 * local:4G   local:2x4G   local:1G?name=a&rtt=2us */
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

/* The memory itself, shared by all handles that give its name. */
typedef struct local_world {
    char name[NAME_MAX_BYTES + 1];
    unsigned handles, nodes;
    uint64_t node_bytes;
    char *memory[FAR_NODES_MAX];
    pthread_mutex_t lock; /* conns */
    local_conn *conns;
    struct local_world *next;
} local_world;

typedef struct local_fabric {
    far_fabric fabric; /* first */
    local_world *world;
    uint64_t rtt;
} local_fabric;

struct local_conn {
    far_conn conn; /* first */
    unsigned id, generation;
    far_batch *first, *last; /* pending, oldest first */
    local_conn *next;        /* in the world */
};

static pthread_mutex_t worlds_lock = PTHREAD_MUTEX_INITIALIZER;
static local_world *worlds;


/* ---- Fork: the child has a copy of the memory, not the pool; what it wrote there would be lost without a word ---- */

static void before_fork(void) {
    pthread_mutex_lock(&worlds_lock);
}


static void after_fork(void) {
    pthread_mutex_unlock(&worlds_lock);
}


static void after_fork_in_child(void) {
    for (local_world *world = worlds; world; world = world->next) {
        pthread_mutex_init(&world->lock, NULL); /* its owner may be a thread that is not here */
        for (local_conn *conn = world->conns; conn; conn = conn->next) {
            far_conn_fence(&conn->conn);
            atomic_store_explicit(&conn->conn.fabric->gone, "a local pool does not outlive a fork",
                                  memory_order_relaxed);
        }
    }
    worlds = NULL;
    pthread_mutex_unlock(&worlds_lock);
}


static void watch_forks(void) {
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}


/* The verbs have taken effect; the result is shown only after the time of the round trips. */
static void delay(local_conn *conn, far_batch *batch, uint64_t rtt) {
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
        far_words_run_all(base, batch);
}


static void local_post_with_delay(far_conn *base, far_batch *batch) {
    local_post(base, batch);
    if (batch->status == 0)
        delay((local_conn *)base, batch, ((const local_fabric *)base->fabric)->rtt);
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
    far_conn_begin(&made->conn, fabric, parker);
    local_world *world = ((local_fabric *)fabric)->world;
    pthread_mutex_lock(&world->lock);
    made->next = world->conns;
    world->conns = made;
    pthread_mutex_unlock(&world->lock);
    *conn = &made->conn;
    return 0;
}


static void local_disconnect(far_conn *conn) {
    local_world *world = ((local_fabric *)conn->fabric)->world;
    pthread_mutex_lock(&world->lock);
    local_conn **link = &world->conns;
    while (*link != (local_conn *)conn)
        link = &(*link)->next;
    *link = (*link)->next;
    pthread_mutex_unlock(&world->lock);
    free(conn);
}


static int local_claim(far_conn *base, unsigned id, unsigned generation) {
    local_conn *conn = (local_conn *)base;
    local_world *world = ((local_fabric *)base->fabric)->world;
    pthread_mutex_lock(&world->lock);
    conn->id = id;
    conn->generation = generation;
    pthread_mutex_unlock(&world->lock);
    return 0;
}


/* Nobody dies inside the process; but a session can be lost, or closed without being unregistered. */
static int local_is_dead(far_conn *asker, unsigned id, unsigned generation) {
    local_world *world = ((local_fabric *)asker->fabric)->world;
    int dead = 1;
    pthread_mutex_lock(&world->lock);
    for (local_conn *conn = world->conns; conn && dead; conn = conn->next)
        if (conn->id == id && conn->generation == generation &&
            !atomic_load_explicit(&conn->conn.fenced, memory_order_acquire))
            dead = 0;
    pthread_mutex_unlock(&world->lock);
    return dead;
}


static void local_fence_self(far_conn *conn) {
    far_conn_fence(conn);
}


static void free_world(local_world *world) {
    for (unsigned i = 0; i < world->nodes; i++)
        if (world->memory[i])
            munmap(world->memory[i], world->node_bytes);
    pthread_mutex_destroy(&world->lock);
    free(world);
}


static void local_close(far_fabric *base) {
    local_world *world = ((local_fabric *)base)->world;
    pthread_mutex_lock(&worlds_lock);
    assert(world->handles > 0);
    bool last = --world->handles == 0;
    for (local_world **link = &worlds; last && *link; link = &(*link)->next)
        if (*link == world) {
            *link = world->next;
            break;
        }
    pthread_mutex_unlock(&worlds_lock);
    if (last)
        free_world(world);
    free(base);
}


#define LOCAL_OPS(how)                                                                                                 \
    {                                                                                                                  \
        .connect = local_connect, .disconnect = local_disconnect, .claim = local_claim, .post = how,                   \
        .poll = local_poll, .wait = local_wait, .is_dead = local_is_dead, .fence_self = local_fence_self,              \
        .close = local_close                                                                                           \
    }
static const far_fabric_ops local_ops = LOCAL_OPS(local_post), delayed_ops = LOCAL_OPS(local_post_with_delay);


static local_world *make_world(const char *name, unsigned nodes, uint64_t node_bytes) {
    local_world *world = calloc(1, sizeof(*world));
    if (!world)
        return NULL;
    snprintf(world->name, sizeof(world->name), "%s", name);
    world->nodes = nodes;
    world->node_bytes = node_bytes;
    pthread_mutex_init(&world->lock, NULL);
    for (unsigned i = 0; i < nodes; i++) {
        void *memory =
            mmap(NULL, node_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            free_world(world);
            return NULL;
        }
        madvise(memory, node_bytes, MADV_HUGEPAGE); /* fewer TLB misses; a wish */
        world->memory[i] = memory;
    }
    return world;
}


/* The world of that name, or a new one; holds one handle more. */
static int join_world(const char *name, unsigned nodes, uint64_t node_bytes, local_world **joined) {
    int err = 0;
    pthread_mutex_lock(&worlds_lock);
    local_world *world = *name ? worlds : NULL;
    while (world && strcmp(world->name, name) != 0)
        world = world->next;
    if (world && (world->nodes != nodes || world->node_bytes != node_bytes)) {
        err = far_fail(FAR_ERR_INVALID, "uri: the local pool '%s' is open with %u nodes of %llu bytes", name,
                       world->nodes, (unsigned long long)world->node_bytes);
    } else if (!world) {
        world = make_world(name, nodes, node_bytes);
        if (!world) {
            err = far_fail(FAR_ERR_NO_MEMORY, "uri: no memory for %u nodes of %llu bytes", nodes,
                           (unsigned long long)node_bytes);
        } else {
            world->next = worlds;
            worlds = world;
        }
    }
    if (!err) {
        world->handles++;
        *joined = world;
    }
    pthread_mutex_unlock(&worlds_lock);
    return err;
}


/* "4G" or "2x4G". */
static int parse_shape(const char *text, unsigned *nodes, uint64_t *node_bytes, char *error, size_t error_size) {
    uint64_t count = 1;
    const char *cross = strchr(text, 'x');
    if (cross) {
        char number[24];
        if (cross - text >= (ptrdiff_t)sizeof(number))
            return far_refuse(error, error_size, "'%s' is not a number of nodes and a size", text);
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
        return far_refuse(error, error_size, "a memory node has up to 1T, in steps of 4K, not '%s'", text);
    *nodes = (unsigned)count;
    return 0;
}


typedef struct local_options {
    unsigned nodes;
    uint64_t node_bytes, rtt;
    char name[NAME_MAX_BYTES + 1];
} local_options;


static int parse_local(const char *rest, local_options *options, char *error, size_t error_size) {
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
    pthread_once(&once, watch_forks);
    local_options options;
    if (parse_local(rest, &options, error, sizeof(error)) < 0)
        return far_fail(FAR_ERR_INVALID, "uri: local:%s: %s", rest, error);
    local_fabric *fabric = calloc(1, sizeof(*fabric));
    if (!fabric)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a handle");
    int err = join_world(options.name, options.nodes, options.node_bytes, &fabric->world);
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
    fabric->fabric.runs_in_place = local_post;
    fabric->fabric.nodes = options.nodes;
    fabric->fabric.memory = fabric->world->memory;
    for (unsigned i = 0; i < options.nodes; i++)
        fabric->fabric.node_bytes[i] = options.node_bytes;
    *opened = &fabric->fabric;
    return 0;
}
