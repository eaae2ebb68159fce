/* Tests of evicting a client of `shm`, which kills the process of that client and no other process. The tests change
 * the situation at the critical moment between reading the pid and sending the signal: immediately after the pidfd was
 * opened. */
#define _GNU_SOURCE
#include "conform.h"
#include "fabric/shm/shm.h"
#include "left_out.h"
#include "test.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ID         5
#define GENERATION 70

static char path[64], uri[96];
static far_fabric *ours;
static far_conn *asker;

/* A process that executes orders for session ID and reports the results. */
typedef struct partner {
    pid_t pid;
    int orders, answers; /* ends of the two pipes for orders to the process and for its answers */
} partner;

static partner first, second;
/* function that is called once, immediately after the next call of pidfd_open; NULL: none */
static void (*meanwhile)(void);


/* Replaces the function of the C library, in order to call `meanwhile`. */
long syscall(long number, ...) {
    static _Atomic(long (*)(long, ...)) real;
    long words[6];
    va_list args;
    va_start(args, number);
    for (int i = 0; i < 6; i++)
        words[i] = va_arg(args, long);
    va_end(args);
    long (*run)(long, ...) = atomic_load_explicit(&real, memory_order_acquire);
    if (!run) {
        *(void **)&run = dlsym(RTLD_NEXT, "syscall");
        atomic_store_explicit(&real, run, memory_order_release);
    }
    long result = run(number, words[0], words[1], words[2], words[3], words[4], words[5]);
    if (number == SYS_pidfd_open && meanwhile) {
        void (*once)(void) = meanwhile;
        meanwhile = NULL;
        once();
    }
    return result;
}


static unsigned asked; /* number of calls of fstatat */


/* Replaces the function of the C library, in order to count its calls. */
int fstatat(int folder, const char *restrict name, struct stat *restrict status, int flags) {
    asked++;
    return (int)syscall(SYS_newfstatat, folder, name, status, flags);
}


#define ONLY_ANSWER 0x7fffffffu
/* order: start a child that inherits the lock and lives until the pipe of orders is closed */
#define HAVE_CHILD 0x7ffffffeu
/* order: unmap the pool, and keep the lock */
#define UNMAP 0x7ffffffdu
/* order: become a process of the user NOBODY */
#define CHANGE_USER 0x7ffffffcu
#define NOBODY      65534


static void connect_to_pool(far_fabric **joined, far_conn **conn) {
    static far_parker parker;
    if (far_fabric_open(uri, joined) < 0 || (*joined)->ops->connect(*joined, &parker, conn) < 0)
        _exit(9);
}


/* Starts a child without running fork handlers, so the library does not close its descriptors in the child. */
static int start_child_without_handlers(int orders) {
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        char any;
        alarm(60);
        _exit(read(orders, &any, 1) != 0);
    }
    return child > 0 ? 0 : -1;
}


static void be_partner(int orders, int answers) {
    far_fabric *own;
    far_conn *conn;
    unsigned generation;
    connect_to_pool(&own, &conn);
    /* Each order is a generation with which the partner claims ID; generation 0 releases the id. */
    while (read(orders, &generation, sizeof(generation)) == sizeof(generation)) {
        const shm_mapping *mapping = ((shm_fabric *)own)->mapping;
        int answer = generation == ONLY_ANSWER   ? 0
                     : generation == HAVE_CHILD  ? start_child_without_handlers(orders)
                     : generation == UNMAP       ? munmap(mapping->base, mapping->mapped)
                     : generation == CHANGE_USER ? setresuid(NOBODY, NOBODY, NOBODY)
                                                 : own->ops->claim(conn, generation ? ID : 0, generation);
        if (write(answers, &answer, sizeof(answer)) != sizeof(answer))
            break;
    }
    _exit(0);
}


static void start_partner(partner *p) {
    int orders[2], answers[2];
    assert_int_equal(pipe2(orders, O_CLOEXEC) + pipe2(answers, O_CLOEXEC), 0);
    fflush(NULL);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (p->pid == 0) {
        close(orders[1]);
        alarm(60);
        be_partner(orders[0], answers[1]);
    }
    close(orders[0]);
    close(answers[1]);
    p->orders = orders[1];
    p->answers = answers[0];
}


static void order_partner(partner *p, unsigned generation) {
    int answer = -1;
    assert_int_equal(write(p->orders, &generation, sizeof(generation)), sizeof(generation));
    assert_int_equal(read(p->answers, &answer, sizeof(answer)), sizeof(answer));
    assert_int_equal(answer, 0);
}


/* Checks that the partner was not killed. A process with a pending fatal signal returns from no system call, so it
 * cannot answer. */
static void assert_lives(partner *p) {
    order_partner(p, ONLY_ANSWER);
}


TEST_FIXTURE(set_up) {
    static unsigned serial;
    snprintf(path, sizeof(path), "/dev/shm/farindex-evict-%d-%u", (int)getpid(), ++serial);
    snprintf(uri, sizeof(uri), "shm:%s?size=8M", path);
    start_partner(&first);
    start_partner(&second);
    connect_to_pool(&ours, &asker);
    order_partner(&first, GENERATION);
    return 0;
}


static void end_partner(partner *p) {
    int status;
    close(p->orders);
    close(p->answers);
    kill(p->pid, SIGKILL);
    waitpid(p->pid, &status, 0);
}


TEST_FIXTURE(tear_down) {
    meanwhile = NULL;
    ours->ops->disconnect(asker);
    ours->ops->close(ours);
    end_partner(&first);
    end_partner(&second);
    unlink(path);
    return 0;
}


static void name_process_in_entry(pid_t pid) {
    atomic_store_explicit(&((shm_fabric *)ours)->mapping->clients[ID].owner, shm_owner_pack((unsigned)pid, GENERATION),
                          memory_order_relaxed);
}


/* Evicts the session with the process and the force of the request. */
static int evict(const far_control *how) {
    far_control request = *how;
    request.kind = FAR_CONTROL_EVICT;
    request.id = ID;
    request.generation = GENERATION;
    return ours->ops->evict(asker, &request);
}


/* Evicting the client of the first partner kills this partner. The session has failed, and the second partner is alive.
 */
TEST_WITH(the_process_of_the_client_is_killed, set_up, tear_down) {
    int status;
    asked = 0;
    assert_ok(evict(&(far_control){0}));
    assert_int_equal(asked, 1); /* no status of a file without the lock, which may be on a file system that hangs */
    assert_int_equal(ours->ops->has_failed(asker, ID, GENERATION), 1);
    assert_int_equal(waitpid(first.pid, &status, 0), first.pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_lives(&second);
}


static void first_closes(void) {
    order_partner(&first, 0);
}


/* A: reads the pid of client B and opens a pidfd. B: closes its session. A: must not kill B, and reports success. Fails
 * if kill_process_of_session does not check the lock after the pidfd was opened. */
TEST_WITH(a_process_that_closed_the_client_meanwhile_lives_on, set_up, tear_down) {
    meanwhile = first_closes;
    assert_ok(evict(&(far_control){0}));
    assert_null(meanwhile);
    assert_lives(&first);
}


static void second_takes_the_id(void) {
    order_partner(&first, 0);
    order_partner(&second, GENERATION + 1);
}


/* A: reads the pid of client B and opens a pidfd. B: closes its session. C: claims the same id with the next
 * generation. A: kills neither B nor C. Fails if the generation is not compared after the pidfd was opened. */
TEST_WITH(a_client_that_was_replaced_meanwhile_is_not_killed, set_up, tear_down) {
    meanwhile = second_takes_the_id;
    assert_ok(evict(&(far_control){0}));
    assert_null(meanwhile);
    assert_lives(&first);
    assert_lives(&second);
    assert_int_equal(ours->ops->has_failed(asker, ID, GENERATION + 1), 0);
}


static int locked_by_another;


static void another_locks_and_is_slow(void) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SHM_LOCKS_AT + ID, .l_len = 1};
    order_partner(&first, 0);
    locked_by_another = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(fcntl(locked_by_another, F_OFD_SETLK, &lock), 0);
}


/* A: reads the pid of client B and opens a pidfd. B: closes its session. C: locks the byte of the id and has not
 * written its entry yet. A: must not conclude from C's lock that B still holds the id, and does not kill B. Fails if
 * shm_release_id releases the lock before it clears the entry. */
TEST_WITH(a_lock_of_the_next_client_is_not_taken_for_the_old_one, set_up, tear_down) {
    meanwhile = another_locks_and_is_slow;
    assert_ok(evict(&(far_control){0}));
    assert_null(meanwhile);
    assert_lives(&first);
    close(locked_by_another);
}


/* An attacker that can write the file names another process of the pool in the entry of a session. This process does not
 * hold the lock of the session, so it is not killed. Fails if confirm_process does not ask the kernel for the lock. */
TEST_WITH(a_process_without_the_lock_is_not_killed, set_up, tear_down) {
    name_process_in_entry(second.pid);
    assert_code(FAR_ERR_UNREACHABLE, evict(&(far_control){0}));
    assert_non_null(strstr(far_last_error(), "lock of the session"));
    assert_lives(&first);
    assert_lives(&second);
}


/* A process that holds the lock but has not mapped the pool may have received the descriptor from an attacker, and is
 * not killed. Fails if confirm_process does not ask the kernel for the mapping. */
TEST_WITH(a_process_that_has_not_mapped_the_pool_is_not_killed, set_up, tear_down) {
    order_partner(&first, UNMAP);
    assert_code(FAR_ERR_UNREACHABLE, evict(&(far_control){0}));
    assert_non_null(strstr(far_last_error(), "mapped the pool"));
    assert_lives(&first);
}


/* An entry without a process is an error, and no success. */
TEST_WITH(a_live_session_without_a_process_is_not_reported_as_evicted, set_up, tear_down) {
    name_process_in_entry(0);
    assert_code(FAR_ERR_UNREACHABLE, evict(&(far_control){0}));
    assert_lives(&first);
}


/* The caller names a process, and the entry names another one by now. Fails if shm_evict does not compare them. */
TEST_WITH(only_the_named_process_is_killed, set_up, tear_down) {
    assert_code(FAR_ERR_NOT_FOUND, evict(&(far_control){.process = second.pid}));
    assert_lives(&first);
    assert_ok(evict(&(far_control){.process = first.pid}));
}


/* Root evicts a process of another user only with `force`, although the kernel permits root to kill it. Fails if
 * confirm_process does not compare the users. */
TEST_WITH(a_process_of_another_user_is_killed_only_by_force, set_up, tear_down) {
    if (geteuid() != 0) {
        left_out("eviction of a process of another user", "the test does not run as root");
        return;
    }
    order_partner(&first, CHANGE_USER);
    assert_code(FAR_ERR_UNREACHABLE, evict(&(far_control){0}));
    assert_non_null(strstr(far_last_error(), "belongs to user 65534"));
    assert_lives(&first);
    assert_ok(evict(&(far_control){.force = true}));
}


/* A user who is not root cannot force an eviction. */
TEST_WITH(force_is_only_for_root, set_up, tear_down) {
    if (geteuid() != 0) {
        left_out("eviction of a process of another user", "the test does not run as root");
        return;
    }
    assert_int_equal(setresuid(NOBODY, NOBODY, 0), 0);
    int err = evict(&(far_control){.force = true});
    assert_int_equal(setresuid(0, 0, 0), 0);
    assert_code(FAR_ERR_UNREACHABLE, err);
    assert_non_null(strstr(far_last_error(), "not to the calling user"));
    assert_lives(&first);
}


static bool pid_was_reused;


/* Ends the first partner, and starts a process with the same pid, which holds the same session. */
static void another_process_gets_the_pid(void) {
    int orders[2], answers[2], status, answer = -1;
    unsigned generation = GENERATION;
    pid_t pid = first.pid;
    kill(first.pid, SIGKILL);
    assert_int_equal(waitpid(first.pid, &status, 0), first.pid);
    close(first.orders);
    close(first.answers);
    assert_int_equal(pipe2(orders, O_CLOEXEC) + pipe2(answers, O_CLOEXEC), 0);
    struct clone_args args = {.exit_signal = SIGCHLD, .set_tid = (uintptr_t)&pid, .set_tid_size = 1};
    fflush(NULL);
    pid_t made = (pid_t)syscall(SYS_clone3, &args, sizeof(args), 0, 0, 0, 0);
    if (made == 0) {
        char one_byte;
        alarm(60);
        /* The child must not use the mapping of its parent, so it makes one of its own. */
        int file = open(path, O_RDWR | O_CLOEXEC);
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SHM_LOCKS_AT + ID, .l_len = 1};
        answer = fcntl(file, F_OFD_SETLK, &lock);
        name_process_in_entry(getpid());
        while (write(answers[1], &answer, sizeof(answer)) == sizeof(answer) &&
               read(orders[0], &generation, sizeof(generation)) == sizeof(generation))
            ;
        _exit(read(orders[0], &one_byte, 1) != 0);
    }
    close(orders[0]);
    close(answers[1]);
    pid_was_reused = made == first.pid;
    first.orders = orders[1];
    first.answers = answers[0];
    if (pid_was_reused) {
        assert_int_equal(read(first.answers, &answer, sizeof(answer)), sizeof(answer));
        assert_int_equal(answer, 0);
    }
}


/* A: reads the pid of client B and opens a pidfd. B: ends. C: a new process gets the pid of B and passes all checks. A:
 * must not kill C. Fails if shm_evict sends the signal to the pid. */
TEST_WITH(a_process_that_got_the_pid_of_the_client_is_not_killed, set_up, tear_down) {
    pid_was_reused = false;
    meanwhile = another_process_gets_the_pid;
    int err = evict(&(far_control){0});
    if (!pid_was_reused) {
        left_out("eviction while a pid is reused", "a process cannot choose its pid here");
        return;
    }
    assert_code(FAR_ERR_BUSY, err);
    assert_lives(&first);
}


/* The partner is killed, but its child has inherited the open file description and so the lock. The session is still
 * alive, and evicting it returns FAR_ERR_BUSY with an explanation. */
TEST_WITH(a_lock_that_a_child_inherited_outlives_the_process, set_up, tear_down) {
    int status;
    order_partner(&first, HAVE_CHILD);
    assert_code(FAR_ERR_BUSY, evict(&(far_control){0}));
    assert_non_null(strstr(far_last_error(), "a process that it started still holds its lock"));
    assert_int_equal(waitpid(first.pid, &status, 0), first.pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}
