/* Checks that the fabric `shm` and the daemon of a memory node make before they use or create the file with their
 * memory. Each function that returns an int returns 0, or an error with a text that begins with `name`, the name of the
 * file in messages. */
#ifndef FAR_FABRIC_MEMORY_FILE_H
#define FAR_FABRIC_MEMORY_FILE_H

#include <stdbool.h>
#include <stdint.h>

/* Refuses an open file or device that another user owns, or that other users can write or read. A writer could change the
 * memory, and truncate the file, which ends every process that uses it. A reader could lock the bytes that show which
 * sessions are alive and which daemon serves the file. `remedy` names the option that permits such a file. */
int far_memory_file_check_owner(int file, const char *name, const char *remedy);

/* Explains why a path cannot be opened although it exists: it is a symbolic link to a file that does not exist. Returns
 * 0 if that is not the reason. */
int far_memory_file_check_link(const char *path, const char *name);

/* Refuses to make a file of `bytes` bytes if the process may not write so large a file (ulimit -f; the kernel would end
 * the process with SIGXFSZ) or if its file system has less space. */
int far_memory_file_check_space(int file, const char *name, uint64_t bytes);

/* Refuses `bytes` bytes of memory if the host, or the control group of this process, has less. `remedy` is added to the
 * text. */
int far_memory_check_available(const char *name, uint64_t bytes, const char *remedy);
bool far_memory_file_is_tmpfs(int file);

/* Returns true if systemd-logind removes the file at the path when the last session of the user ends: it is in /dev/shm,
 * the user is not a system user, and logind runs without RemoveIPC=no. `root` precedes the paths of logind's files; it
 * is "" except in tests. */
bool far_memory_file_ends_at_logout(const char *path, unsigned user, const char *root);
#define FAR_ENDS_AT_LOGOUT                                                                                             \
    "systemd-logind deletes this file when its user logs out; RemoveIPC=no in logind.conf, a system user, or a "       \
    "folder "                                                                                                          \
    "outside of /dev/shm prevents that"

#endif
