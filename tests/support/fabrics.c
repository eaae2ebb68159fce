/* The fabrics on which the conformance suite runs. */
#include "conform.h"


static void make_named(const fabric *fabric, const char *size, unsigned serial, char uri[CONFORM_URI]) {
    int length = snprintf(uri, CONFORM_URI, fabric->format, size);
    snprintf(uri + length, CONFORM_URI - (size_t)length, "%sconform-%u", fabric->mark, serial);
}


const fabric conform_fabrics[] = {
    {"local:64M", true, make_named, NULL, "local:%s", "?name="},
    {"local:2x64M", true, make_named, NULL, "local:2x%s", "?name="},
    {"local:64M?rtt=1us", true, make_named, NULL, "local:%s?rtt=1us", "&name="},
    {"sim:seed=1,memory_nodes=2,size=64M", false, make_named, NULL, "sim:seed=1,memory_nodes=2,size=%s", ",name="},
    {"sim:seed=2,size=64M,atomic_bytes=8,masked_cas=off", false, make_named, NULL,
     "sim:seed=2,size=%s,atomic_bytes=8,masked_cas=off", ",name="},
};

const size_t conform_fabric_count = COUNT_OF(conform_fabrics);
