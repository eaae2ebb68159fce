/* To evict a client of shm is to kill the process that has it, and never another: what happens to the client between
 * the look at its pid and the signal is done here in exactly that moment, right after the descriptor of the process was
 * opened. */
#define _GNU_SOURCE
#include "conform.h"
#include "fabric/shm.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ID         5
#define GENERATION 70

static char path[64], uri[96];
static far_fabric *ours;
static far_conn *asker;

/* A process that does with session ID what it is told, and answers. */
typedef struct partner {
    pid_t pid;
    int orders, answers; /* pipes */
} partner;

static partner first, second;
static void (*meanwhile)(void); /* once, after the next pidfd_open */


/* In place of libc's. */
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


#define ONLY_ANSWER 0x7fffffffu
#define HAVE_CHILD  0x7ffffffeu /* that inherits the lock, and lives as long as somebody may give orders */


static void join(far_fabric **joined, far_conn **conn) {
    static far_parker parker;
    if (far_fabric_open(uri, joined) < 0 || (*joined)->ops->connect(*joined, &parker, conn) < 0)
        _exit(9);
}


/* Without the handlers of a fork, in which the library closes what its children are not to have. */
static int have_child(int orders) {
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
    join(&own, &conn);
    while (read(orders, &generation, sizeof(generation)) == sizeof(generation)) { /* 0: let go */
        int answer = generation == ONLY_ANSWER  ? 0
                     : generation == HAVE_CHILD ? have_child(orders)
                                                : own->ops->claim(conn, generation ? ID : 0, generation);
        if (write(answers, &answer, sizeof(answer)) != sizeof(answer))
            break;
    }
    _exit(0);
}


static void start(partner *p) {
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


static void order(partner *p, unsigned generation) {
    int answer = -1;
    assert_int_equal(write(p->orders, &generation, sizeof(generation)), sizeof(generation));
    assert_int_equal(read(p->answers, &answer, sizeof(answer)), sizeof(answer));
    assert_int_equal(answer, 0);
}


/* A process to which a fatal signal was sent returns from no system call: who answers was not sent one. */
static void assert_lives(partner *p) {
    order(p, ONLY_ANSWER);
}


static int set_up(void **state) {
    static unsigned serial;
    (void)state;
    snprintf(path, sizeof(path), "/dev/shm/farindex-evict-%d-%u", (int)getpid(), ++serial);
    snprintf(uri, sizeof(uri), "shm:%s?size=8M", path);
    start(&first);
    start(&second);
    join(&ours, &asker);
    order(&first, GENERATION);
    return 0;
}


static void end(partner *p) {
    int status;
    close(p->orders);
    close(p->answers);
    kill(p->pid, SIGKILL);
    waitpid(p->pid, &status, 0);
}


static int tear_down(void **state) {
    (void)state;
    meanwhile = NULL;
    ours->ops->disconnect(asker);
    ours->ops->close(ours);
    end(&first);
    end(&second);
    unlink(path);
    return 0;
}


static shm_client *entry(void) {
    return &((shm_fabric *)ours)->world->clients[ID];
}


static void the_process_of_the_client_is_killed(void **state) {
    int status;
    (void)state;
    assert_ok(ours->ops->evict(asker, ID, GENERATION));
    assert_int_equal(ours->ops->is_dead(asker, ID, GENERATION), 1);
    assert_int_equal(waitpid(first.pid, &status, 0), first.pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_lives(&second);
}


static void first_closes(void) {
    order(&first, 0);
}


static void a_process_that_closed_the_client_meanwhile_lives_on(void **state) {
    (void)state;
    meanwhile = first_closes;
    assert_ok(ours->ops->evict(asker, ID, GENERATION));
    assert_null(meanwhile);
    assert_lives(&first);
}


static void second_takes_the_id(void) {
    uint64_t started = atomic_load_explicit(&entry()->started, memory_order_relaxed);
    order(&first, 0);
    order(&second, GENERATION + 1);
    atomic_store_explicit(&entry()->started, started, memory_order_relaxed); /* both in the same tick of the clock */
}


/* Neither the one that had the id, nor the one that has it now. */
static void a_client_that_was_replaced_meanwhile_is_over_and_nobody_is_killed(void **state) {
    (void)state;
    meanwhile = second_takes_the_id;
    assert_ok(ours->ops->evict(asker, ID, GENERATION));
    assert_null(meanwhile);
    assert_lives(&first);
    assert_lives(&second);
    assert_int_equal(ours->ops->is_dead(asker, ID, GENERATION + 1), 0);
}


static int locked_by_another;


static void another_locks_and_is_slow(void) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SHM_LOCKS_AT + ID, .l_len = 1};
    order(&first, 0);
    locked_by_another = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(fcntl(locked_by_another, F_OFD_SETLK, &lock), 0);
}


/* The next one has the lock, and has not written its name yet. */
static void a_lock_that_changed_hands_does_not_stand_for_the_one_who_left(void **state) {
    (void)state;
    meanwhile = another_locks_and_is_slow;
    assert_ok(ours->ops->evict(asker, ID, GENERATION));
    assert_null(meanwhile);
    assert_lives(&first);
    close(locked_by_another);
}


static void a_client_whose_start_is_not_known_is_not_killed(void **state) {
    (void)state;
    atomic_store_explicit(&entry()->started, 0, memory_order_relaxed);
    assert_code(FAR_ERR_UNREACHABLE, ours->ops->evict(asker, ID, GENERATION));
    assert_lives(&first);
}


/* The lock is that of the open file, which both have. */
static void a_lock_that_a_child_inherited_outlives_the_process(void **state) {
    int status;
    (void)state;
    order(&first, HAVE_CHILD);
    assert_code(FAR_ERR_BUSY, ours->ops->evict(asker, ID, GENERATION));
    assert_non_null(strstr(far_last_error(), "a process that it started still holds its lock"));
    assert_int_equal(waitpid(first.pid, &status, 0), first.pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}


#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(the_process_of_the_client_is_killed),
        TEST(a_process_that_closed_the_client_meanwhile_lives_on),
        TEST(a_client_that_was_replaced_meanwhile_is_over_and_nobody_is_killed),
        TEST(a_lock_that_changed_hands_does_not_stand_for_the_one_who_left),
        TEST(a_lock_that_a_child_inherited_outlives_the_process),
        TEST(a_client_whose_start_is_not_known_is_not_killed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
