/* The checks of memory files that depend on the host (fabric/memory_file.h): the configuration of systemd-logind. */
#define _GNU_SOURCE
#include "fabric/memory_file.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define USER 1000u

static char root[] = "/tmp/farindex-logind-XXXXXX";


static void run_shell(const char *command) {
    char line[512];
    snprintf(line, sizeof(line), "cd %s && %s", root, command);
    assert_int_equal(system(line), 0);
}


TEST_FIXTURE(make_root) {
    memcpy(root + strlen(root) - 6, "XXXXXX", 6);
    assert_non_null(mkdtemp(root));
    return 0;
}


TEST_FIXTURE(remove_root) {
    run_shell("rm -r \"$PWD\"");
    return 0;
}


static bool ends(const char *path, unsigned user) {
    return far_memory_file_ends_at_logout(path, user, root);
}


/* logind removes files in /dev/shm of users other than system users, unless it is configured otherwise; the last
 * assignment in its files decides. */
TEST_WITH(files_that_logind_removes_are_recognized, make_root, remove_root) {
    assert_false(ends("/dev/shm/pool", USER)); /* logind does not run */
    run_shell("mkdir -p run/systemd/users etc/systemd/logind.conf.d");
    assert_true(ends("/dev/shm/pool", USER));
    assert_false(ends("/dev/shm/pool", 0));
    assert_false(ends("/dev/shm/pool", 999));
    assert_false(ends("/var/lib/pool", USER));
    run_shell("printf '[Login]\\n#RemoveIPC=no\\n' >etc/systemd/logind.conf");
    assert_true(ends("/dev/shm/pool", USER));
    run_shell("printf '[Login]\\nRemoveIPC=no\\n' >etc/systemd/logind.conf");
    assert_false(ends("/dev/shm/pool", USER));
    run_shell("printf '[Login]\\nRemoveIPC = yes\\n' >etc/systemd/logind.conf.d/50-own.conf");
    assert_true(ends("/dev/shm/pool", USER));
    /* The path may contain a symbolic link. */
    char path[64], file[64];
    snprintf(file, sizeof(file), "/dev/shm/farindex-logind-%d", (int)getpid());
    snprintf(path, sizeof(path), "%s/link", root);
    fclose(fopen(file, "w"));
    assert_int_equal(symlink(file, path), 0);
    bool through_link = ends(path, USER);
    unlink(file);
    assert_true(through_link);
}
