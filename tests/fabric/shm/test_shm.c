/* Tests of the fabric `shm`: creating and finding the pool file, files and URIs that are refused, and the liveness of
 * sessions across processes. */
#define _GNU_SOURCE
#include "conform.h"
#include "fabric/shm/shm.h"
#include "left_out.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[64], uri[96], bare_uri[80];


TEST_FIXTURE(name_pool) {
    static unsigned serial;
    snprintf(path, sizeof(path), "/dev/shm/farindex-shm-%d-%u", (int)getpid(), ++serial);
    snprintf(uri, sizeof(uri), "shm:%s?size=8M", path);
    snprintf(bare_uri, sizeof(bare_uri), "shm:%s", path);
    return 0;
}


TEST_FIXTURE(remove_pool) {
    unlink(path);
    return 0;
}


static void expect_refusal(const char *what, int code, const char *word) {
    far_pool *pool = NULL;
    assert_code(code, far_pool_open(what, NULL, &pool));
    if (!strstr(far_last_error(), word))
        fail_msg("'%s' was refused with \"%s\", which does not contain '%s'", what, far_last_error(), word);
    assert_null(pool);
}


static bool pool_file_exists(void) {
    return access(path, F_OK) == 0;
}


/* Opens the pool in a new handle, creates or opens the index, and puts (when it creates it) and gets one pair. Returns
 * 0 or an error. */
static int use_pool(const char *where, const char *name, bool create) {
    far_pool *pool = NULL;
    far_session *session = NULL;
    far_index *index = NULL;
    char value[8];
    size_t length = 0;
    int err = far_pool_open(where, NULL, &pool);
    if (err == 0)
        err = far_session_open(pool, &session);
    if (err == 0)
        err =
            create ? far_index_create(session, name, "toy", "slots=16", &index) : far_index_open(session, name, &index);
    if (err == 0 && create)
        err = far_put(session, index, "k", 1, "v", 1);
    if (err == 0)
        err = far_get(session, index, "k", 1, value, sizeof(value), &length);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    return err == 0 && length != 1 ? -100 : err;
}


/* Runs a function in a child process. Returns its exit status, or -1 if it was killed. */
static int run_child(int (*run)(void *arg), void *arg) {
    int status;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(run(arg));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}


/* ---- Creating and finding the file ---- */

static int make_in_child(void *arg) {
    return use_pool(uri, arg, true) ? 1 : 0;
}


/* A pool that a child process has created contains the data after the child has ended. The file is readable only by its
 * owner. */
TEST_WITH(data_outlives_the_process, name_pool, remove_pool) {
    assert_int_equal(run_child(make_in_child, "a"), 0);
    assert_ok(use_pool(uri, "a", false));
    assert_ok(use_pool(bare_uri, "a", false)); /* The URI may omit the size of a pool that exists. */
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
}


/* Opening a pool that does not exist without size= is refused and creates nothing. */
TEST_WITH(an_absent_pool_is_not_made_without_a_size, name_pool, remove_pool) {
    expect_refusal(bare_uri, FAR_ERR_NOT_FOUND, "size=");
    assert_false(pool_file_exists());
    expect_refusal("shm:/dev/shm/no-such-folder/pool?size=8M", FAR_ERR_NOT_FOUND, "no-such-folder");
}


enum { STARTERS = 6, ROUNDS = 8, OTHER = 7 };


/* Starts processes that create the indexes i0, i1, ... in the pool at the same time. They use the two URIs in turn.
 * Each process exits with 0, with OTHER if it was refused because the pool exists with another size, or with 1. */
static void start_at_once(pid_t pids[STARTERS], const char *const uris[2], int round) {
    _Atomic int *go = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fflush(NULL);
    for (int i = 0; i < STARTERS; i++)
        if ((pids[i] = fork()) == 0) {
            char name[8];
            snprintf(name, sizeof(name), "i%d", i);
            while (!atomic_load_explicit(go, memory_order_relaxed))
                sched_yield();
            int err = use_pool(uris[(i + round) % 2], name, true);
            bool told = err == FAR_ERR_INVALID && strstr(far_last_error(), "the pool exists");
            _exit(err == 0 ? 0 : told ? OTHER : 1);
        }
    atomic_store_explicit(go, 1, memory_order_relaxed);
    munmap((void *)go, 4096);
}


/* Six processes create the same pool at the same time. All use the same file, and all their indexes exist afterwards.
 * Fails if the file gets its name before it is initialized. */
TEST_WITH(simultaneous_creators_use_one_file, name_pool, remove_pool) {
    const char *uris[2] = {uri, uri};
    for (int round = 0; round < ROUNDS; round++) {
        pid_t pids[STARTERS];
        start_at_once(pids, uris, round);
        for (int i = 0; i < STARTERS; i++) {
            int status;
            assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
            assert_int_equal(status, 0);
        }
        for (int i = 0; i < STARTERS; i++) {
            char name[8];
            snprintf(name, sizeof(name), "i%d", i);
            assert_ok(use_pool(bare_uri, name, false));
        }
        assert_int_equal(unlink(path), 0);
    }
}


/* Six processes create the pool at the same time, three of them with another size. One size wins; the processes with
 * the other size are refused, and nothing of theirs remains. */
TEST_WITH(of_creators_with_different_sizes_one_wins, name_pool, remove_pool) {
    char sizes[2][128];
    const char *uris[2] = {sizes[0], sizes[1]};
    unsigned won_by[2] = {0};
    for (int i = 0; i < 2; i++)
        snprintf(sizes[i], sizeof(sizes[i]), "shm:%s?size=%dM", path, i ? 16 : 8);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t pids[STARTERS];
        start_at_once(pids, uris, round);
        unsigned done[2] = {0};
        for (int i = 0; i < STARTERS; i++) {
            int status;
            assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
            assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == OTHER));
            done[(i + round) % 2] += WEXITSTATUS(status) == 0;
        }
        assert_true((done[0] == STARTERS / 2 && done[1] == 0) || (done[1] == STARTERS / 2 && done[0] == 0));
        int winner = done[1] > 0;
        won_by[winner]++;
        for (int i = 0; i < STARTERS; i++) {
            char name[8];
            snprintf(name, sizeof(name), "i%d", i);
            assert_code((i + round) % 2 == winner ? 0 : FAR_ERR_NOT_FOUND, use_pool(bare_uri, name, false));
        }
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(won_by[0] + won_by[1], ROUNDS);
}


/* A URI with another size or number of nodes than that of the pool is refused, whether or not this process has the pool
 * open. */
TEST_WITH(another_size_than_that_of_the_pool_is_refused, name_pool, remove_pool) {
    char other[128];
    assert_ok(use_pool(uri, "a", true));
    snprintf(other, sizeof(other), "shm:%s?size=16M", path);
    expect_refusal(other, FAR_ERR_INVALID, "8M");
    snprintf(other, sizeof(other), "shm:%s?nodes=2", path);
    expect_refusal(other, FAR_ERR_INVALID, "1 memory nodes");
    far_pool *pool = NULL;
    assert_ok(far_pool_open(uri, NULL, &pool)); /* The refusals are the same while this process has the pool open. */
    expect_refusal(other, FAR_ERR_INVALID, "1 memory nodes");
    far_pool_close(pool);
    snprintf(other, sizeof(other), "shm:%s?size=8192K&nodes=1", path);
    assert_ok(use_pool(other, "a", false));
}


/* Memory nodes begin at multiples of a huge page, do not overlap, and are inside the mapping. */
TEST_WITH(memory_nodes_do_not_overlap, name_pool, remove_pool) {
    char many[128];
    far_fabric *fabric = NULL;
    snprintf(many, sizeof(many), "shm:%s?size=1028K&nodes=5", path);
    assert_ok(far_fabric_open(many, &fabric));
    assert_int_equal(fabric->nodes, 5);
    const shm_mapping *mapping = ((shm_fabric *)fabric)->mapping;
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(fabric->node_bytes[i], 1028 << 10);
        assert_int_equal((uintptr_t)mapping->memory[i] % SHM_HUGE_PAGE, 0);
        assert_true(i == 0 || mapping->memory[i] >= mapping->memory[i - 1] + fabric->node_bytes[i - 1]);
    }
    assert_true(mapping->memory[4] + fabric->node_bytes[4] <= mapping->base + mapping->mapped);
    fabric->ops->close(fabric);
}


/* ---- Files that are no valid pool ---- */

static void write_at(off_t offset, const void *bytes, size_t count) {
    int file = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(file >= 0);
    assert_int_equal(pwrite(file, bytes, count, offset), count);
    close(file);
}


static uint64_t word_at(off_t offset) {
    uint64_t word = 0;
    int file = open(path, O_RDONLY);
    assert_true(file >= 0);
    assert_int_equal(pread(file, &word, 8, offset), 8);
    close(file);
    return word;
}


/* Files with other content, empty files and folders are refused and stay unchanged. */
TEST_WITH(a_file_that_is_no_pool_is_left_alone, name_pool, remove_pool) {
    struct stat status;
    write_at(0, "hello", 5);
    expect_refusal(uri, FAR_ERR_CORRUPT, "not a farindex pool");
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_size, 5);
    assert_int_equal(truncate(path, 0), 0);
    expect_refusal(uri, FAR_ERR_CORRUPT, "not a farindex pool");
    assert_int_equal(truncate(path, 32 << 20), 0); /* Now the file contains only zeros. */
    expect_refusal(uri, FAR_ERR_CORRUPT, "not a farindex pool");
    assert_int_equal(word_at(0), 0);
    expect_refusal("shm:/dev/shm?size=8M", FAR_ERR_INVALID, "directory");
    expect_refusal("shm:/dev/null/x?size=8M", FAR_ERR_NOT_FOUND, "/dev/null/x");
}


/* A file with another format version, or with a pool of another version, is refused and stays unchanged. */
TEST_WITH(another_version_is_refused_and_left_alone, name_pool, remove_pool) {
    assert_ok(use_pool(uri, "a", true));
    uint32_t version = SHM_VERSION + 1;
    write_at(offsetof(shm_header, version), &version, sizeof(version));
    expect_refusal(uri, FAR_ERR_CORRUPT, "version 2");
    version = SHM_VERSION;
    write_at(offsetof(shm_header, version), &version, sizeof(version));
    uint64_t magic = word_at(SHM_NODES_AT), other = magic + 1;
    write_at(SHM_NODES_AT, &other, 8); /* This changes the first word of the pool's superblock in the file. */
    expect_refusal(uri, FAR_ERR_CORRUPT, "version");
    assert_int_equal(word_at(SHM_NODES_AT), other);
    write_at(SHM_NODES_AT, &magic, 8);
    assert_ok(use_pool(uri, "a", false));
}


/* A pool file is refused if any byte of the header changes, the checksum included. Fails without the comparison of the
 * checksum in check_header. */
TEST_WITH(a_damaged_header_is_refused, name_pool, remove_pool) {
    assert_ok(use_pool(uri, "a", true));
    for (size_t offset = offsetof(shm_header, nodes); offset < offsetof(shm_header, check) + sizeof(uint64_t);
         offset++) {
        uint8_t byte = (uint8_t)word_at((off_t)offset), flipped = byte ^ 0x10;
        write_at((off_t)offset, &flipped, 1);
        expect_refusal(bare_uri, FAR_ERR_CORRUPT, "damaged");
        write_at((off_t)offset, &byte, 1);
    }
    assert_ok(use_pool(uri, "a", false));
}


/* A pool file that was truncated is refused, however short it is. */
TEST_WITH(a_truncated_file_is_refused, name_pool, remove_pool) {
    struct stat status;
    assert_ok(use_pool(uri, "a", true));
    assert_int_equal(stat(path, &status), 0);
    const off_t sizes[] = {status.st_size - 1, status.st_size / 2, SHM_NODES_AT, 100, 0};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        assert_int_equal(truncate(path, sizes[i]), 0);
        expect_refusal(uri, FAR_ERR_CORRUPT, sizes[i] < SHM_NODES_AT ? "not a farindex pool" : "truncated");
    }
}


/* ---- Refusals of the operating system ---- */

static int open_as_nobody(void *arg) {
    far_pool *pool = NULL;
    if (getuid() == 0 && setuid(65534) != 0)
        return 2;
    int err = far_pool_open(arg, NULL, &pool);
    return err == FAR_ERR_UNREACHABLE && strstr(far_last_error(), "denied") ? 0 : 1;
}


/* Without permission for the file or its folder, the pool is refused with the reason. */
TEST_WITH(a_path_without_permission_is_refused, name_pool, remove_pool) {
    char inside[128], folder[96];
    assert_ok(use_pool(uri, "a", true));
    assert_int_equal(chmod(path, 0), 0);
    assert_int_equal(run_child(open_as_nobody, uri), 0);
    assert_int_equal(chmod(path, 0600), 0);
    assert_ok(use_pool(uri, "a", false));
    snprintf(folder, sizeof(folder), "%s-folder", path);
    snprintf(inside, sizeof(inside), "shm:%s/p?size=8M", folder);
    assert_int_equal(mkdir(folder, 0500), 0);
    assert_int_equal(run_child(open_as_nobody, inside), 0);
    assert_int_equal(rmdir(folder), 0); /* The folder must be empty, because rmdir succeeds only then. */
}


static void assert_only_shared(const char *word) {
    char shared_uri[96];
    snprintf(shared_uri, sizeof(shared_uri), "%s?shared=1", bare_uri);
    expect_refusal(bare_uri, FAR_ERR_UNREACHABLE, word);
    assert_ok(use_pool(shared_uri, "a", false));
}


/* A pool file that other users own, can write or can read is refused, unless the URI contains shared=1. Fails without
 * far_memory_file_check_owner in attach_mapping. */
TEST_WITH(a_pool_of_others_is_refused, name_pool, remove_pool) {
    assert_ok(use_pool(uri, "a", true));
    assert_int_equal(chmod(path, 0660), 0);
    assert_only_shared("other users can write the file (mode 0660); shared=1 in the URI permits that");
    assert_int_equal(chmod(path, 0602), 0);
    assert_only_shared("mode 0602");
    assert_int_equal(chmod(path, 0640), 0);
    assert_only_shared("other users can read, and so lock, the file (mode 0640)");
    assert_int_equal(chmod(path, 0604), 0);
    assert_only_shared("mode 0604");
    assert_int_equal(chmod(path, 0600), 0);
    assert_ok(use_pool(bare_uri, "a", false));
    if (geteuid() != 0) {
        left_out("pools of other users", "the test does not run as root");
        return;
    }
    assert_int_equal(chown(path, 65534, 65534), 0);
    assert_only_shared("belongs to user 65534");
}


/* A symbolic link to a file that does not exist is an error that names this file, and no pool is made. */
TEST_WITH(a_dangling_link_is_refused, name_pool, remove_pool) {
    assert_int_equal(symlink("nowhere/pool", path), 0);
    expect_refusal(uri, FAR_ERR_INVALID, "is a symbolic link to 'nowhere/pool', which does not exist");
    expect_refusal(bare_uri, FAR_ERR_INVALID, "is a symbolic link to 'nowhere/pool', which does not exist");
}


static int open_with_limit(void *arg) {
    (void)arg;
    far_pool *pool = NULL;
    struct rlimit limit = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    int err = far_pool_open(uri, NULL, &pool);
    return err == FAR_ERR_NO_MEMORY && strstr(far_last_error(), "ulimit") ? 0 : 1;
}


/* A pool that exceeds the file system or the file size limit of the process is refused, and no file remains. */
TEST_WITH(a_pool_that_does_not_fit_is_refused_and_leaves_nothing, name_pool, remove_pool) {
    char large[128];
    snprintf(large, sizeof(large), "shm:%s?size=1024G&nodes=64", path);
    expect_refusal(large, FAR_ERR_NO_MEMORY, "left");
    assert_false(pool_file_exists());
    assert_int_equal(run_child(open_with_limit, NULL), 0);
    assert_false(pool_file_exists());
    assert_ok(use_pool(uri, "a", true)); /* a pool that fits can be created afterwards */
}


static void assert_all_space_is_allocated(const char *file) {
    struct stat status;
    assert_int_equal(stat(file, &status), 0);
    assert_true((off_t)status.st_blocks * 512 >= status.st_size);
}


/* All space of the file is allocated when it is created, on /dev/shm and on the file system of the working directory.
 * Fails without fallocate in allocate_file; on /dev/shm the huge pages may have the same effect, but not on a disk. */
TEST_WITH(all_space_is_allocated_at_creation, name_pool, remove_pool) {
    char folder[256], file[300], there[320];
    assert_ok(use_pool(uri, "a", true));
    assert_all_space_is_allocated(path);
    assert_non_null(getcwd(folder, sizeof(folder)));
    snprintf(file, sizeof(file), "%s/farindex-shm-%d", folder, (int)getpid());
    snprintf(there, sizeof(there), "shm:%s?size=8M", file);
    assert_ok(use_pool(there, "a", true));
    assert_all_space_is_allocated(file);
    unlink(file);
}


/* ---- Liveness of sessions ---- */

/* A process that claims session PARTNER_ID and then does what `behaviour_of_partner` names. The parent waits until it
 * is ready. */
typedef struct partner {
    pid_t pid;
    /* Ends of two pipes. The partner writes to `ready` when it is ready. No process writes to `go`; the partner ends
     * when `go` is closed. */
    int ready, go;
} partner;

typedef enum { PLAIN, CLOSES_ANOTHER, FORKS, SPAWNS, LOSES_ITSELF } behaviour_of_partner;

#define CHILD_SECONDS 60 /* the child of a partner ends by itself after this time */
/* longest wait for a child that was not scheduled yet; it keeps the lock until its fork handler has run */
#define CHILD_SCHEDULED_MS 20000
#define PARTNER_ID         5
#define PARTNER_GENERATION 70


static void join_fabric(far_fabric **fabric, far_conn **conn) {
    static far_parker parker;
    if (far_fabric_open(uri, fabric) < 0 || (*fabric)->ops->connect(*fabric, &parker, conn) < 0)
        _exit(9);
}


static void sleep_until_killed(void) {
    for (;;)
        pause();
}


static void be_partner(behaviour_of_partner what, int ready, int go) {
    far_fabric *fabric;
    far_conn *conn;
    char byte = 1, seconds[12], *sleep_arguments[] = {"sleep", seconds, NULL};
    pid_t child = 0;
    snprintf(seconds, sizeof(seconds), "%d", CHILD_SECONDS);
    join_fabric(&fabric, &conn);
    if (fabric->ops->claim(conn, PARTNER_ID, PARTNER_GENERATION) < 0)
        _exit(8);
    if (what == CLOSES_ANOTHER)
        close(open(path, O_RDWR));
    if (what == LOSES_ITSELF)
        fabric->ops->fence_self(conn);
    if (what == FORKS && (child = fork()) == 0) {
        alarm(CHILD_SECONDS);
        sleep_until_killed();
    }
    if (what == SPAWNS && posix_spawnp(&child, "sleep", NULL, NULL, sleep_arguments, environ) != 0)
        _exit(6);
    if (write(ready, &child, sizeof(child)) != sizeof(child) || read(go, &byte, 1) < 0)
        _exit(7);
    sleep_until_killed();
}


static pid_t start_partner(partner *p, behaviour_of_partner what) {
    int ready[2], go[2];
    pid_t child = -1;
    assert_int_equal(pipe2(ready, O_CLOEXEC) + pipe2(go, O_CLOEXEC), 0);
    fflush(NULL);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (p->pid == 0)
        be_partner(what, ready[1], go[0]);
    close(ready[1]);
    close(go[0]);
    p->ready = ready[0];
    p->go = go[1];
    assert_int_equal(read(p->ready, &child, sizeof(child)), sizeof(child));
    return child;
}


static void kill_partner(partner *p) {
    int status;
    assert_int_equal(kill(p->pid, SIGKILL), 0);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    close(p->ready);
    close(p->go);
}


/* Starts a partner with this behaviour and kills it. While it lives, its session is alive, and another connection
 * cannot claim the id. After the kill the session has failed, and the id can be claimed. */
static void check_that_kill_ends_session(behaviour_of_partner what) {
    partner p;
    far_fabric *fabric;
    far_conn *conn;
    pid_t child = start_partner(&p, what);
    join_fabric(&fabric, &conn);
    assert_int_equal(fabric->ops->has_failed(conn, PARTNER_ID, PARTNER_GENERATION), 0);
    /* no session has this generation */
    assert_int_equal(fabric->ops->has_failed(conn, PARTNER_ID, PARTNER_GENERATION + 1), 1);
    assert_int_equal(fabric->ops->has_failed(conn, PARTNER_ID + 1, PARTNER_GENERATION), 1);
    assert_int_equal(fabric->ops->process_of(conn, PARTNER_ID, PARTNER_GENERATION), p.pid);
    assert_code(FAR_ERR_BUSY, fabric->ops->claim(conn, PARTNER_ID, PARTNER_GENERATION + 1));
    assert_int_equal(fabric->ops->has_failed(conn, PARTNER_ID, PARTNER_GENERATION), 0);
    kill_partner(&p);
    for (unsigned ms = 0; child > 0 && ms < CHILD_SCHEDULED_MS; ms++) {
        if (fabric->ops->has_failed(conn, PARTNER_ID, PARTNER_GENERATION))
            break;
        usleep(1000);
    }
    assert_int_equal(fabric->ops->has_failed(conn, PARTNER_ID, PARTNER_GENERATION), 1);
    assert_ok(fabric->ops->claim(conn, PARTNER_ID, PARTNER_GENERATION + 1));
    assert_int_equal(fabric->ops->has_failed(conn, PARTNER_ID, PARTNER_GENERATION), 1);
    assert_int_equal(fabric->ops->has_failed(conn, PARTNER_ID, PARTNER_GENERATION + 1), 0);
    if (child > 0)
        kill(child, SIGKILL);
    fabric->ops->disconnect(conn);
    fabric->ops->close(fabric);
}


/* A session fails when its process is killed. Fails if the lock of the id is not released with the process. */
TEST_WITH(a_session_fails_with_its_process, name_pool, remove_pool) {
    check_that_kill_ends_session(PLAIN);
}


/* A process opens the pool file again and closes it. Its session stays alive. Fails if POSIX locks are used, because
 * they are lost then. */
TEST_WITH(closing_another_descriptor_keeps_the_session_alive, name_pool, remove_pool) {
    check_that_kill_ends_session(CLOSES_ANOTHER);
}


/* A process forks and is killed, while its child lives on. Its session has failed. Fails without after_fork_in_child in
 * file.c. */
TEST_WITH(a_forked_child_does_not_keep_a_session_alive, name_pool, remove_pool) {
    check_that_kill_ends_session(FORKS);
}


/* A process starts another program by posix_spawn, which calls no fork handlers, and is killed. Its session has failed,
 * although the program lives on. Fails if lock_descriptor stays open when a program starts (make_mapping in file.c). */
TEST_WITH(a_program_that_was_started_does_not_keep_a_session_alive, name_pool, remove_pool) {
    check_that_kill_ends_session(SPAWNS);
}


/* The session of a stopped process is alive. It fails when the process is evicted, which kills it. */
TEST_WITH(a_stopped_process_is_alive, name_pool, remove_pool) {
    far_control request = {.kind = FAR_CONTROL_EVICT, .id = PARTNER_ID, .generation = PARTNER_GENERATION};
    partner p;
    far_fabric *fabric;
    far_conn *conn;
    int status;
    start_partner(&p, PLAIN);
    join_fabric(&fabric, &conn);
    assert_int_equal(kill(p.pid, SIGSTOP), 0);
    assert_int_equal(waitpid(p.pid, &status, WUNTRACED), p.pid);
    assert_int_equal(fabric->ops->has_failed(conn, PARTNER_ID, PARTNER_GENERATION), 0);
    assert_ok(fabric->ops->evict(conn, &request));
    assert_int_equal(fabric->ops->has_failed(conn, PARTNER_ID, PARTNER_GENERATION), 1);
    assert_int_equal(waitpid(p.pid, &status, 0), p.pid);
    assert_true(WIFSIGNALED(status));
    fabric->ops->disconnect(conn);
    fabric->ops->close(fabric);
}


/* After a session has fenced itself (fence_self), `has_failed` returns 1 for it in other processes, although its
 * process is alive. */
TEST_WITH(a_session_that_gave_itself_up_has_failed, name_pool, remove_pool) {
    partner p;
    far_fabric *fabric;
    far_conn *conn;
    start_partner(&p, LOSES_ITSELF);
    join_fabric(&fabric, &conn);
    assert_int_equal(fabric->ops->has_failed(conn, PARTNER_ID, PARTNER_GENERATION), 1);
    kill_partner(&p);
    fabric->ops->disconnect(conn);
    fabric->ops->close(fabric);
}


static int post_read(far_conn *conn) {
    uint64_t word = 0;
    far_verb verb = {.kind = FAR_READ, .length = 8, .addr = 64, .local = &word};
    far_batch batch = {.verbs = &verb, .count = 1};
    conn->fabric->ops->post(conn, &batch);
    bool in_place = atomic_load_explicit(&conn->in_place, memory_order_acquire) != NULL;
    /* A fenced connection must neither post verbs nor run verbs in place. */
    return in_place == (batch.status == 0) ? batch.status : FAR_ERR_CORRUPT;
}


/* Three connections of one process: an id is held by one connection, each can be fenced and closed separately, and
 * `has_failed` is right for each, although the locks of one process do not conflict. Fails without
 * id_is_held_by_this_process. */
TEST_WITH(sessions_of_one_process_are_separate, name_pool, remove_pool) {
    far_fabric *first, *second, *third;
    far_conn *a, *b, *c;
    join_fabric(&first, &a);
    join_fabric(&second, &b);
    join_fabric(&third, &c);
    assert_ok(first->ops->claim(a, 1, 1));
    assert_code(FAR_ERR_BUSY, second->ops->claim(b, 1, 2));
    assert_ok(second->ops->claim(b, 2, 1));
    assert_int_equal(second->ops->has_failed(c, 1, 1), 0);
    assert_int_equal(second->ops->has_failed(b, 1, 1), 0);
    first->ops->fence_self(a);
    assert_int_equal(post_read(a), FAR_ERR_FENCED);
    assert_int_equal(post_read(b), 0);
    assert_int_equal(second->ops->has_failed(b, 1, 1), 1);
    assert_int_equal(second->ops->has_failed(c, 2, 1), 0);
    assert_ok(second->ops->claim(b, 0, 0)); /* Generation 0 releases the id. */
    assert_int_equal(second->ops->has_failed(c, 2, 1), 1);
    assert_ok(second->ops->claim(b, 1, 2));
    second->ops->disconnect(b);
    assert_int_equal(second->ops->has_failed(c, 1, 2), 1);
    first->ops->disconnect(a);
    first->ops->close(first);
    second->ops->close(second);
    third->ops->disconnect(c);
    third->ops->close(third);
}


static int post_in_child(void *conn) {
    return post_read(conn) == FAR_ERR_FENCED ? 0 : 1;
}


/* In a forked child, inherited sessions are fenced, and the child can open the pool itself. The end of the child does
 * not affect the sessions of the parent. */
TEST_WITH(inherited_sessions_are_fenced_in_a_forked_child, name_pool, remove_pool) {
    far_fabric *fabric;
    far_conn *conn;
    join_fabric(&fabric, &conn);
    assert_ok(fabric->ops->claim(conn, 1, 1));
    assert_int_equal(run_child(post_in_child, conn), 0);
    assert_int_equal(run_child(make_in_child, "of_child"), 0); /* the child can open the pool itself */
    assert_int_equal(post_read(conn), 0);
    /* the end of the child has not released the parent's lock */
    assert_int_equal(fabric->ops->has_failed(conn, 1, 1), 0);
    fabric->ops->disconnect(conn);
    fabric->ops->close(fabric);
}
