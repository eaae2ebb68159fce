/* Tests of the fabric `shm` on file systems that the test mounts in a mount namespace of its own: a full file system, a
 * tmpfs with huge pages, and hugetlbfs. Where mounts are not permitted, or there are no huge pages, the test reports
 * which part was left out. */
#define _GNU_SOURCE
#include "conform.h"
#include "fabric/shm/shm.h"
#include "left_out.h"
#include "pool/handle.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/farindex-mounts-XXXXXX";

enum { DONE = 0, FAILED = 1, NOT_PERMITTED = 2, NOT_THERE = 3 }; /* exit status of a process with its own mounts */


/* ---- Mounting a file system ---- */

static bool write_text(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    bool written = file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);
    if (file >= 0)
        close(file);
    return written;
}


/* Mounts a file system at `folder`: as root, or in a user namespace in which this user is root. */
static bool mount_file_system(const char *type, const char *options) {
    unsigned uid = getuid(), gid = getgid();
    char map[64];
    if (unshare(CLONE_NEWNS) < 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
            return false;
        snprintf(map, sizeof(map), "0 %u 1", uid);
        write_text("/proc/self/setgroups", "deny");
        bool mapped = write_text("/proc/self/uid_map", map);
        snprintf(map, sizeof(map), "0 %u 1", gid);
        if (!mapped || !write_text("/proc/self/gid_map", map))
            return false;
    }
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mount("none", folder, type, 0, options) == 0;
}


/* Runs a function in a process that has the file system mounted. The mount disappears with the process. */
static int run_with_file_system(const char *type, const char *options, int (*run)(void)) {
    int status;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(mount_file_system(type, options) ? run() : NOT_PERMITTED);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}


static int report_failure(const char *what) {
    print_error("%s: %s\n", what, far_last_error());
    fflush(NULL);
    return FAILED;
}


#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return report_failure(#condition);                                                                         \
    } while (0)


static const char *path_of(const char *name) {
    static char path[64];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}


static const char *uri_of(const char *name, const char *options) {
    static char uri[128];
    snprintf(uri, sizeof(uri), "shm:%s%s", path_of(name), options);
    return uri;
}


typedef struct handle {
    far_pool *pool;
    far_session *session;
    far_index *index;
} handle;


static int open_handle(handle *h, const char *uri, bool create) {
    *h = (handle){0};
    int err = far_pool_open(uri, NULL, &h->pool);
    if (err == 0)
        err = far_session_open(h->pool, &h->session);
    if (err == 0)
        err = create ? far_index_create(h->session, "i", "toy", "slots=256", &h->index)
                     : far_index_open(h->session, "i", &h->index);
    return err;
}


static void close_handle(handle *h) {
    far_index_close(h->index);
    far_session_close(h->session);
    far_pool_close(h->pool);
}


static int put_and_get(handle *h, unsigned first, unsigned count) {
    char value[1000], seen[1000];
    size_t length;
    int err = 0;
    memset(value, 'v', sizeof(value));
    for (unsigned i = first; i < first + count && err == 0; i++) {
        err = far_put(h->session, h->index, &i, sizeof(i), value, sizeof(value));
        if (err == 0)
            err = far_get(h->session, h->index, &i, sizeof(i), seen, sizeof(seen), &length);
        if (err == 0 && (length != sizeof(value) || memcmp(value, seen, length) != 0))
            err = -100;
    }
    return err;
}


/* ---- A full file system ---- */

static int fill_up(void) {
    handle a, b;
    static char page[4096];
    MUST(open_handle(&a, uri_of("a", "?size=8M"), true) == 0);
    MUST(put_and_get(&a, 0, 100) == 0);

    /* The pool must be refused before any file is created. */
    MUST(open_handle(&b, uri_of("b", "?size=8M"), true) == FAR_ERR_NO_MEMORY);
    MUST(strstr(far_last_error(), "left"));
    MUST(access(path_of("b"), F_OK) < 0 && errno == ENOENT);
    close_handle(&b);

    int file = open(path_of("filler"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    MUST(file >= 0);
    while (write(file, page, sizeof(page)) > 0)
        ;
    MUST(errno == ENOSPC);
    /* The put succeeds, because the space of the pool was allocated when the pool was created. */
    MUST(put_and_get(&a, 100, 500) == 0);
    MUST(open_handle(&b, uri_of("a", ""), false) == 0);
    MUST(put_and_get(&b, 0, 100) == 0);
    close_handle(&b);
    MUST(open_handle(&b, uri_of("c", "?size=1M"), true) == FAR_ERR_NO_MEMORY);
    MUST(access(path_of("c"), F_OK) < 0 && errno == ENOENT);
    close_handle(&b);
    MUST(far_index_check(a.session, a.index, count_problem, &(int){0}) == 0);
    close(file);
    unlink(path_of("filler"));
    MUST(put_and_get(&a, 0, 600) == 0);
    close_handle(&a);
    return DONE;
}


/* When the file system is full, existing pools continue to work, and creating another pool returns FAR_ERR_NO_MEMORY
 * and leaves no file. */
TEST(a_full_file_system_is_an_error_and_nothing_is_lost) {
    int result = run_with_file_system("tmpfs", "size=16m", fill_up);
    if (result == NOT_PERMITTED)
        left_out("a full file system", "mounts are not permitted here; test_shm fills a limit of the process instead");
    else
        assert_int_equal(result, DONE);
}


/* ---- Huge pages ---- */

/* Returns whether the mapping that contains `at` may have huge pages. The number of its huge pages depends on the
 * fragmentation of the memory, and is only printed. */
static bool huge_pages_eligible(const void *at, uint64_t *mapped_kb) {
    char line[512];
    bool inside = false, eligible = false;
    FILE *maps = fopen("/proc/self/smaps", "re");
    *mapped_kb = 0;
    while (maps && fgets(line, sizeof(line), maps)) {
        unsigned long from, to, found;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = from <= (uintptr_t)at && (uintptr_t)at < to;
        else if (inside && sscanf(line, "ShmemPmdMapped: %lu kB", &found) == 1)
            *mapped_kb += found;
        else if (inside && sscanf(line, "THPeligible: %lu", &found) == 1)
            eligible = found == 1;
    }
    if (maps)
        fclose(maps);
    return eligible;
}


static bool kernel_refuses_huge_pages(void) {
    char text[128] = "";
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "re");
    bool known = file && fgets(text, sizeof(text), file);
    if (file)
        fclose(file);
    return !known || strstr(text, "[deny]");
}


static int use_huge_tmpfs(void) {
    handle h;
    uint64_t kb;
    MUST(open_handle(&h, uri_of("p", "?size=16M"), true) == 0);
    const shm_mapping *mapping = ((shm_fabric *)h.pool->fabric)->mapping;
    MUST(put_and_get(&h, 0, 3000) == 0);
    MUST(huge_pages_eligible(mapping->memory[0], &kb));
    print_message("huge pages map %llu kB\n", (unsigned long long)kb);
    fflush(NULL);
    close_handle(&h);
    return DONE;
}


/* Returns true if the kernel currently combines 2 MiB of a file in this file system into a huge page. */
static bool kernel_joins_pages(void) {
    enum { PAGE = SHM_HUGE_PAGE };
    char path[256];
    snprintf(path, sizeof(path), "%s/probe", folder);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    char *room = mmap(NULL, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *page = (char *)(((uintptr_t)room + PAGE - 1) / PAGE * PAGE);
    bool joined = file >= 0 && room != MAP_FAILED && posix_fallocate(file, 0, PAGE) == 0 &&
                  mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == page &&
                  madvise(page, PAGE, SHM_MADV_COLLAPSE) == 0;
    if (room != MAP_FAILED)
        munmap(room, 2 * PAGE);
    if (file >= 0)
        close(file);
    unlink(path);
    return joined;
}


/* Checks that a pool has huge pages. The check is skipped if the kernel finds no huge page before or after the creation
 * of the pool, because the memory is too fragmented then. */
static int use_plain_tmpfs(void) {
    for (unsigned tries = 0; tries < 3; tries++) {
        handle h;
        uint64_t kb;
        bool before = kernel_joins_pages();
        MUST(open_handle(&h, uri_of("p", "?size=16M"), true) == 0);
        const shm_mapping *mapping = ((shm_fabric *)h.pool->fabric)->mapping;
        MUST(put_and_get(&h, 0, 3000) == 0);
        for (uint64_t at = 0; at < mapping->node_bytes; at += 4096)
            (void)atomic_load_explicit((_Atomic uint64_t *)(mapping->memory[0] + at), memory_order_relaxed);
        huge_pages_eligible(mapping->memory[0], &kb);
        close_handle(&h);
        char path[256];
        snprintf(path, sizeof(path), "%s/p", folder);
        unlink(path);
        print_message("huge pages map %llu kB\n", (unsigned long long)kb);
        fflush(NULL);
        if (kb > 0 || !before || !kernel_joins_pages())
            return DONE;
    }
    return report_failure("a pool has no huge page where others get them");
}


/* On a tmpfs without the option huge=, a new pool has huge pages, because the kernel was asked to build them. Fails
 * without collapse_into_huge_pages. */
TEST(huge_pages_are_used_where_tmpfs_gives_none_by_itself) {
    if (kernel_refuses_huge_pages()) {
        left_out("huge pages of tmpfs", "this kernel offers none");
        return;
    }
    int result = run_with_file_system("tmpfs", "size=64m", use_plain_tmpfs);
    if (result == NOT_PERMITTED)
        left_out("huge pages of tmpfs", "mounts are not permitted here");
    else
        assert_int_equal(result, DONE);
}


/* On a tmpfs with huge=advise, the mapping of a pool may have huge pages. Fails without madvise(MADV_HUGEPAGE), or if
 * map_file does not align the mapping to huge pages. */
TEST(huge_pages_are_used_where_tmpfs_gives_them) {
    if (kernel_refuses_huge_pages()) {
        left_out("huge pages of tmpfs", "this kernel offers none");
        return;
    }
    int result = run_with_file_system("tmpfs", "size=64m,huge=advise", use_huge_tmpfs);
    if (result == NOT_PERMITTED)
        left_out("huge pages of tmpfs", "mounts are not permitted here");
    else
        assert_int_equal(result, DONE);
}


static unsigned long huge_pages_left(void) {
    char line[128];
    unsigned long free_pages = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && fgets(line, sizeof(line), file) && sscanf(line, "HugePages_Free: %lu", &free_pages) != 1)
        ;
    if (file)
        fclose(file);
    return free_pages;
}


enum { PAGES = 6 }; /* number of huge pages for 8M of memory and for the part of the file before the memory */


static int use_hugetlbfs(void) {
    handle h;
    struct stat status;
    if (huge_pages_left() < PAGES) { /* Without enough huge pages, only the error can be tested. */
        MUST(open_handle(&h, uri_of("p", "?size=8M"), true) == FAR_ERR_NO_MEMORY);
        MUST(access(path_of("p"), F_OK) < 0 && errno == ENOENT);
        close_handle(&h);
        return NOT_THERE;
    }
    MUST(open_handle(&h, uri_of("p", "?size=8M"), true) == 0);
    MUST(put_and_get(&h, 0, 2000) == 0);
    close_handle(&h);
    MUST(open_handle(&h, uri_of("p", ""), false) == 0); /* The pool must still exist after its creator has closed it. */
    MUST(put_and_get(&h, 1000, 2000) == 0);
    MUST(far_index_check(h.session, h.index, count_problem, &(int){0}) == 0);
    close_handle(&h);
    MUST(stat(path_of("p"), &status) == 0 && status.st_blksize >= 2 << 20);
    MUST(open_handle(&h, uri_of("q", "?size=1024G"), true) == FAR_ERR_NO_MEMORY);
    MUST(access(path_of("q"), F_OK) < 0 && errno == ENOENT);
    close_handle(&h);
    unlink(path_of("p"));
    return DONE;
}


/* A pool on hugetlbfs works and keeps its data. If there are not enough huge pages, creating it returns
 * FAR_ERR_NO_MEMORY and leaves no file. */
TEST(a_pool_lives_on_hugetlbfs) {
    int result = run_with_file_system("hugetlbfs", "", use_hugetlbfs);
    if (result == NOT_PERMITTED)
        left_out("hugetlbfs", "it cannot be mounted here");
    else if (result == NOT_THERE)
        left_out("hugetlbfs", "there are no huge pages (vm.nr_hugepages): only the error was tested");
    else
        assert_int_equal(result, DONE);
}


/* ---- Fixtures ---- */

TEST_FIXTURE(make_folder) {
    return !mkdtemp(folder);
}


TEST_FIXTURE(remove_folder) {
    return rmdir(folder);
}


TEST_GROUP(make_folder, remove_folder);
