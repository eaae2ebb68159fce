/* The fabrics on which the conformance suite runs. */
#include "conform.h"

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


const fabric conform_fabrics[] = {
    {"local:64M", true, make_named, NULL, "local:%s", "?name="},
    {"local:2x64M", true, make_named, NULL, "local:2x%s", "?name="},
    {"local:64M?rtt=1us", true, make_named, NULL, "local:%s?rtt=1us", "&name="},
    {"shm:size=64M", true, make_file, remove_file, NULL, ""},
    {"shm:size=64M&nodes=2", true, make_file, remove_file, NULL, "&nodes=2"},
    {"sim:seed=1,memory_nodes=2,size=64M", false, make_named, NULL, "sim:seed=1,memory_nodes=2,size=%s", ",name="},
    {"sim:seed=2,size=64M,atomic_bytes=8,masked_cas=off", false, make_named, NULL,
     "sim:seed=2,size=%s,atomic_bytes=8,masked_cas=off", ",name="},
};

const size_t conform_fabric_count = COUNT_OF(conform_fabrics);
