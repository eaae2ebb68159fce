/* The table of fabrics on which the conformance suite runs, and functions that make and remove their pools. */
#include "conform.h"
#include "daemons.h"

#include <unistd.h>


static void make_named(const fabric *fabric, const char *size, unsigned serial, char uri[CONFORM_URI]) {
    int length = snprintf(uri, CONFORM_URI, fabric->format, size);
    snprintf(uri + length, CONFORM_URI - (size_t)length, "%sconform-%u", fabric->mark, serial);
}


static void make_file(const fabric *fabric, const char *size, unsigned serial, char uri[CONFORM_URI]) {
    snprintf(uri, CONFORM_URI, "shm:/dev/shm/farindex-conform-%d-%u?size=%s%s", (int)getpid(), serial, size,
             fabric->mark);
}


static void remove_file(const char *uri) {
    char path[CONFORM_URI];
    snprintf(path, sizeof(path), "%s", uri + strlen("shm:"));
    path[strcspn(path, "?")] = 0;
    unlink(path);
}


/* Starts one daemon per memory node. `format` of the fabric is the number of nodes, `mark` the options of the daemons.
 */
static void make_daemons(const fabric *fabric, const char *size, unsigned serial, char uri[CONFORM_URI]) {
    (void)serial;
    daemons_start((unsigned)atoi(fabric->format), size, fabric->mark, uri, CONFORM_URI);
}


/* Starts the daemons as make_daemons does, but with TLS and a pre-shared key. */
static void make_secret_daemons(const fabric *fabric, const char *size, unsigned serial, char uri[CONFORM_URI]) {
    static char path[64], options[128];
    (void)serial;
    snprintf(path, sizeof(path), "/tmp/farindex-secret-%d", (int)getpid());
    daemon_secret(path, "a secret for tests, long enough to be one");
    snprintf(options, sizeof(options), "--secret %s %s", path, fabric->mark);
    daemons_start((unsigned)atoi(fabric->format), size, options, uri, CONFORM_URI);
    size_t used = strlen(uri);
    snprintf(uri + used, CONFORM_URI - used, "?secret=%s", path);
}


static void make_rdma_daemons(const fabric *fabric, const char *size, unsigned serial, char uri[CONFORM_URI]) {
    (void)serial;
    daemons_start_rdma((unsigned)atoi(fabric->format), size, fabric->mark, uri, CONFORM_URI);
}


const fabric conform_fabrics[] = {
    {"local:64M", true, make_named, NULL, "local:%s", "?name=", EVERY_TIME},
    {"local:2x64M", true, make_named, NULL, "local:2x%s", "?name=", EVERY_TIME},
    {"local:64M?rtt=1us", true, make_named, NULL, "local:%s?rtt=1us", "&name=", EVERY_TIME},
    {"shm:size=64M", true, make_file, remove_file, NULL, "", EVERY_TIME},
    {"shm:size=64M&nodes=2", true, make_file, remove_file, NULL, "&nodes=2", EVERY_TIME},
    {"sim:seed=1,memory_nodes=2,size=64M", false, make_named, NULL, "sim:seed=1,memory_nodes=2,size=%s",
     ",name=", EVERY_TIME},
    {"sim:seed=2,size=64M,atomic_bytes=8,masked_cas=off,reads_in_order=off", false, make_named, NULL,
     "sim:seed=2,size=%s,atomic_bytes=8,masked_cas=off,reads_in_order=off", ",name=", EVERY_TIME},
    {"tcp:1x64M", true, make_daemons, daemons_end, "1", "", IN_ROTATION},
    {"tcp:3x64M", true, make_daemons, daemons_end, "3", "--threads 2", WHEN_ASKED},
    {"tcp:2x64M,chaos", true, make_daemons, daemons_end, "2", "--threads 3 --chaos", WHEN_ASKED},
    /* only tests/rdma/vm selects this fabric, because it needs an RDMA card */
    {"rdma:1x64M", true, make_rdma_daemons, daemons_end, "1", "", WHEN_ASKED},
    {"rdma:3x64M", true, make_rdma_daemons, daemons_end, "3", "--threads 2", WHEN_ASKED},
    {"tcp:2x64M,secret", true, make_secret_daemons, daemons_end, "2", "", WHEN_ASKED},
    {"tcp:3x64M,secret,chaos", true, make_secret_daemons, daemons_end, "3", "--threads 2 --chaos", WHEN_ASKED},
};

const size_t conform_fabric_count = COUNT_OF(conform_fabrics);
