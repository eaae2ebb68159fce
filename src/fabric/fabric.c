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
};

static const char *const absent[] = {"rdma://"}; /* agreed names that this build does not have */


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
    for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++)
        if (strncmp(uri, absent[i], strlen(absent[i])) == 0)
            return far_fail(FAR_ERR_UNSUPPORTED, "uri: '%s': this build has no fabric '%s'", uri, absent[i]);
    return far_fail(FAR_ERR_INVALID, "uri: '%s' names no fabric (local:, shm:, sim:, tcp://)", uri);
}
