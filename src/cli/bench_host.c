/* Where and when it was measured: the host, the compiler, the commit, the date. */
#include "cli/bench.h"

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


static void field(FILE *file, const char *name, const char *text) {
    fprintf(file, ",\"%s\":", name);
    cli_json_string(file, text);
}


/* As /proc/cpuinfo calls it; "": it does not. */
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


void bench_host_json(FILE *file) {
    struct utsname system = {0};
    char cpu[200], date[32];
    time_t now = time(NULL);
    struct tm utc;
    read_cpu(cpu, sizeof(cpu));
    uname(&system);
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    fputs(",\"host\":{\"name\":", file);
    cli_json_string(file, system.nodename);
    field(file, "cpu", cpu);
    field(file, "system", system.sysname);
    field(file, "release", system.release);
    field(file, "machine", system.machine);
    fprintf(file, ",\"cores\":%ld}", sysconf(_SC_NPROCESSORS_ONLN));
    field(file, "compiler", COMPILER);
    field(file, "build", FARINDEX_BUILD);
    field(file, "commit", FARINDEX_COMMIT);
    field(file, "date", date);
}
