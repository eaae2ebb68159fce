/* Which fabric a URI names. */
#include "fabric/fabric.h"
#include "base/error.h"
#include "farindex.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *prefix;
    int (*open)(const char *rest, far_fabric **fabric);
} fabrics[] = {
    {"local:", far_local_open},
    {"shm:", far_shm_open},
    {"sim:", far_sim_open},
    {"tcp://", far_tcp_open},
    {"rdma://", far_rdma_open},
};


int far_fabric_open(const char *uri, far_fabric **fabric) {
    for (size_t i = 0; i < sizeof(fabrics) / sizeof(fabrics[0]); i++) {
        size_t length = strlen(fabrics[i].prefix);
        if (strncmp(uri, fabrics[i].prefix, length) != 0)
            continue;
        int err = fabrics[i].open(uri + length, fabric);
        if (!err)
            snprintf((*fabric)->uri, sizeof((*fabric)->uri), "%s", uri);
        return err;
    }
    return far_fail(FAR_ERR_INVALID, "uri: '%s' names no fabric (local:, shm:, sim:, tcp://, rdma://)", uri);
}
