/* Opens the fabric that a URI names, by its scheme, and finds the NUMA nodes of its memory. */
#include "fabric/fabric.h"
#include "base/error.h"
#include "base/numa.h"
#include "farindex.h"

#include <stdio.h>
#include <string.h>

atomic_bool far_is_simulated;

static const struct {
    const char *prefix;
    int (*open)(const char *rest, far_fabric **fabric);
    /* Opens a pool like `open`, but creates no memory that would outlive the process. NULL if `open` creates no such
     * memory either. */
    int (*open_existing)(const char *rest, far_fabric **fabric);
} fabrics[] = {
    {"local:", far_local_open, NULL},
    {"shm:", far_shm_open, far_shm_open_existing},
    {"sim:", far_sim_open, NULL},
    {"tcp://", far_tcp_open, far_tcp_open_existing},
    {"rdma://", far_rdma_open, far_rdma_open_existing},
};


static int open_uri(const char *uri, bool existing, far_fabric **fabric) {
    for (size_t i = 0; i < sizeof(fabrics) / sizeof(fabrics[0]); i++) {
        size_t length = strlen(fabrics[i].prefix);
        if (strncmp(uri, fabrics[i].prefix, length) != 0)
            continue;
        bool differs = existing && fabrics[i].open_existing;
        int err = (differs ? fabrics[i].open_existing : fabrics[i].open)(uri + length, fabric);
        if (!err)
            snprintf((*fabric)->uri, sizeof((*fabric)->uri), "%s", uri);
        return err;
    }
    return far_fail(FAR_ERR_INVALID, "uri: '%s' names no fabric (local:, shm:, sim:, tcp://, rdma://)", uri);
}


static void find_numa_of_mapped(const far_fabric *fabric, unsigned node, const uint64_t *offsets, unsigned count,
                                int *numa) {
    for (unsigned i = 0; i < count; i++) {
        void *page = fabric->memory ? fabric->memory[node] + offsets[i] : NULL;
        numa[i] = FAR_NUMA_UNKNOWN;
        if (page)
            far_numa_of(&page, 1, &numa[i]);
    }
}


int far_fabric_places(far_fabric *fabric, unsigned node, const uint64_t *offsets, unsigned count, int *numa) {
    if (fabric->ops->places)
        return fabric->ops->places(fabric, node, offsets, count, numa);
    find_numa_of_mapped(fabric, node, offsets, count, numa);
    return 0;
}


int far_fabric_open(const char *uri, far_fabric **fabric) {
    return open_uri(uri, false, fabric);
}


int far_fabric_open_existing(const char *uri, far_fabric **fabric) {
    return open_uri(uri, true, fabric);
}
