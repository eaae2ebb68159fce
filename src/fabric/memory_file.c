/* Checks of the files that contain memory (memory_file.h). */
#define _GNU_SOURCE
#include "fabric/memory_file.h"
#include "base/error.h"
#include "base/parse.h"
#include "farindex.h"

#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#define CGROUPS         "/sys/fs/cgroup"
#define SYSTEM_USER_MAX 999u /* largest number of a system user, whose files logind does not remove */


int far_memory_file_check_owner(int file, const char *name, const char *remedy) {
    struct stat status;
    if (fstat(file, &status) < 0)
        return far_fail(FAR_ERR_UNREACHABLE, "%s: its status cannot be read: %s", name, strerror(errno));
    if (status.st_uid != geteuid())
        return far_fail(FAR_ERR_UNREACHABLE, "%s: the file belongs to user %u, not to user %u; %s permits that", name,
                        (unsigned)status.st_uid, (unsigned)geteuid(), remedy);
    if (status.st_mode & (S_IRWXG | S_IRWXO)) /* a user that can only read the file can lock it */
        return far_fail(FAR_ERR_UNREACHABLE, "%s: other users can %s the file (mode %04o); %s permits that", name,
                        status.st_mode & (S_IWGRP | S_IWOTH) ? "write" : "read, and so lock,",
                        (unsigned)status.st_mode & 07777, remedy);
    return 0;
}


int far_memory_file_check_link(const char *path, const char *name) {
    char target[256];
    struct stat status;
    if (stat(path, &status) == 0 || errno != ENOENT)
        return 0;
    ssize_t length = readlink(path, target, sizeof(target) - 1);
    if (length < 0) /* not a symbolic link */
        return 0;
    target[length] = 0;
    return far_fail(FAR_ERR_INVALID, "%s: the path is a symbolic link to '%s', which does not exist", name, target);
}


int far_memory_file_check_space(int file, const char *name, uint64_t bytes) {
    struct rlimit limit;
    struct statvfs fs;
    struct stat status;
    char needed[FAR_SIZE_TEXT], there[FAR_SIZE_TEXT];
    far_format_size(bytes, needed);
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes)
        return far_fail(FAR_ERR_NO_MEMORY,
                        "%s: the file needs %s, but this process may write only %s to a file (ulimit -f)", name, needed,
                        far_format_size(limit.rlim_cur, there));
    uint64_t allocated = fstat(file, &status) == 0 ? (uint64_t)status.st_blocks * 512 : 0;
    if (fstatvfs(file, &fs) == 0 && fs.f_blocks && fs.f_bavail * (uint64_t)fs.f_frsize + allocated < bytes)
        return far_fail(FAR_ERR_NO_MEMORY, "%s: the file needs %s, but its file system has only %s left", name, needed,
                        far_format_size((uint64_t)fs.f_bavail * fs.f_frsize, there));
    return 0;
}


bool far_memory_file_is_tmpfs(int file) {
    struct statfs fs;
    return fstatfs(file, &fs) == 0 && fs.f_type == TMPFS_MAGIC;
}


/* ---- Memory of the host ---- */

/* Returns the bytes that programs can still allocate, in memory and in swap; UINT64_MAX if the kernel does not report
 * that. */
static uint64_t bytes_of_host(void) {
    char line[128];
    uint64_t kib, available = UINT64_MAX, swap = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            available = kib << 10;
        if (sscanf(line, "SwapFree: %" SCNu64, &kib) == 1)
            swap = kib << 10;
    }
    if (file)
        fclose(file);
    return available == UINT64_MAX ? available : available + swap;
}


/* Returns the smallest limit of memory that applies to the control group of this process (version 2), or UINT64_MAX. */
static uint64_t limit_of_control_group(void) {
    char line[2048] = "", path[sizeof(line) + sizeof(CGROUPS) + 16];
    uint64_t least = UINT64_MAX, limit;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && fgets(line, sizeof(line), file) && strncmp(line, "0::/", 4) != 0)
        line[0] = 0;
    if (file)
        fclose(file);
    if (!line[0])
        return UINT64_MAX;
    line[strcspn(line, "\n")] = 0;
    for (char *slash; (slash = strrchr(line + 3, '/')); *slash = 0) {
        snprintf(path, sizeof(path), CGROUPS "%s/memory.max", line + 3);
        file = fopen(path, "re");
        if (file && fscanf(file, "%" SCNu64, &limit) == 1 && limit < least)
            least = limit;
        if (file)
            fclose(file);
    }
    return least;
}


int far_memory_check_available(const char *name, uint64_t bytes, const char *remedy) {
    char wanted[FAR_SIZE_TEXT], there[FAR_SIZE_TEXT];
    uint64_t host = bytes_of_host(), group = limit_of_control_group();
    if (bytes > host)
        return far_fail(FAR_ERR_NO_MEMORY, "%s: %s of memory are not there: the host has %s available%s", name,
                        far_format_size(bytes, wanted), far_format_size(host, there), remedy);
    if (bytes > group)
        return far_fail(FAR_ERR_NO_MEMORY,
                        "%s: %s of memory are not there: the control group of this process is limited to %s%s", name,
                        far_format_size(bytes, wanted), far_format_size(group, there), remedy);
    return 0;
}


/* ---- Logout ---- */

/* Reads the last assignment to RemoveIPC in the file into *removes. A file that is absent changes nothing. */
static void read_logind_file(const char *path, bool *removes) {
    char line[256], value[32];
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, " RemoveIPC = %31s", value) == 1)
            *removes = !(strcasecmp(value, "no") == 0 || strcasecmp(value, "false") == 0 ||
                         strcasecmp(value, "off") == 0 || strcmp(value, "0") == 0);
    if (file)
        fclose(file);
}


static bool logind_removes_files(const char *root) {
    static const char *const patterns[] = {
        "%s/usr/lib/systemd/logind.conf",
        "%s/etc/systemd/logind.conf",
        "%s/usr/lib/systemd/logind.conf.d/*.conf",
        "%s/etc/systemd/logind.conf.d/*.conf",
    };
    char path[512];
    bool removes = true; /* the default of logind */
    snprintf(path, sizeof(path), "%s/run/systemd/users", root);
    if (access(path, F_OK) < 0)
        return false; /* logind does not run */
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        glob_t found;
        snprintf(path, sizeof(path), patterns[i], root);
        if (glob(path, 0, NULL, &found) != 0)
            continue;
        for (size_t j = 0; j < found.gl_pathc; j++)
            read_logind_file(found.gl_pathv[j], &removes);
        globfree(&found);
    }
    return removes;
}


bool far_memory_file_ends_at_logout(const char *path, unsigned user, const char *root) {
    char *real = realpath(path, NULL);
    bool is_shared_memory = strncmp(real ? real : path, "/dev/shm/", strlen("/dev/shm/")) == 0;
    free(real);
    return is_shared_memory && user > SYSTEM_USER_MAX && logind_removes_files(root);
}
