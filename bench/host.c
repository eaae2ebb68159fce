/* The circumstances of a measurement for the JSON report: host, compiler, commit and date. */
#include "bench/bench.h"

#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#ifndef FARINDEX_COMMIT
#define FARINDEX_COMMIT "unknown"
#endif
#ifndef FARINDEX_BUILD
#define FARINDEX_BUILD "unknown"
#endif
#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif


/* Reads the name of the processor from /proc/cpuinfo, or "" if it has none. */
static void read_cpu(char *name, size_t size) {
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "re");
    *name = 0;
    while (file && !*name && fgets(line, sizeof(line), file)) {
        char *colon = strchr(line, ':');
        line[strcspn(line, "\n")] = 0;
        if (colon && strncmp(line, "model name", 10) == 0)
            snprintf(name, size, "%s", colon + 1 + (colon[1] == ' '));
    }
    if (file)
        fclose(file);
}


void bench_set_host(json_t *object) {
    json_t *host = cli_json_object();
    struct utsname system = {0};
    char cpu[200], date[32];
    time_t now = time(NULL);
    struct tm utc;
    read_cpu(cpu, sizeof(cpu));
    uname(&system);
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    cli_json_set_text(host, "name", system.nodename);
    cli_json_set_text(host, "cpu", cpu);
    cli_json_set_text(host, "system", system.sysname);
    cli_json_set_text(host, "release", system.release);
    cli_json_set_text(host, "machine", system.machine);
    cli_json_set(host, "cores", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    cli_json_set(object, "host", host);
    cli_json_set_text(object, "compiler", COMPILER);
    cli_json_set_text(object, "build", FARINDEX_BUILD);
    cli_json_set_text(object, "commit", FARINDEX_COMMIT);
    cli_json_set_text(object, "date", date);
}
