/* Measures how long a busy machine delays the processes of a test (stalls.h). */
#include "stalls.h"
#include "conform.h"
#include "crew.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SAMPLE_NS 20000000ll
#define LOOKS_MAX 100000
#define TASKS_MAX 8
/* The threads of a new process are searched in its first NEW_SAMPLES samples, and then every FIND_EVERY samples. */
#define NEW_SAMPLES 3
#define FIND_EVERY  50

typedef struct look {
    int64_t at, stalled; /* `at`: time at the end of the sample; `stalled`: delay in ns since the previous sample */
} look;

struct stalls_book {
    _Atomic int watched[STALLS_WATCHED];
    atomic_uint count;
    look looks[LOOKS_MAX];
};

typedef struct task {
    int tid, file;
    int64_t delay;
} task;

typedef struct process {
    int pid;
    unsigned looks, count;
    task tasks[TASKS_MAX];
} process;

typedef struct observer {
    process processes[STALLS_WATCHED];
    int64_t stolen;
} observer;


static bool read_text(const char *path, char *text, size_t size) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file >= 0 ? read(file, text, size - 1) : -1;
    if (file >= 0)
        close(file);
    text[length > 0 ? length : 0] = 0;
    return length > 0;
}


/* Finds new threads of the process and keeps their files open. Looking up names below /proc for every sample would
 * disturb the end of these processes, because the kernel then has to remove directory entries that are being used. */
static void find_threads(process *p) {
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/task", p->pid);
    DIR *threads = opendir(path);
    for (const struct dirent *one; threads && (one = readdir(threads)) && p->count < TASKS_MAX;) {
        int tid = atoi(one->d_name);
        unsigned i = 0;
        while (i < p->count && p->tasks[i].tid != tid)
            i++;
        if (tid == 0 || i < p->count)
            continue;
        snprintf(path, sizeof(path), "/proc/%d/task/%d/schedstat", p->pid, tid);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file >= 0)
            p->tasks[p->count++] = (task){.tid = tid, .file = file};
    }
    if (threads)
        closedir(threads);
}


static void close_threads(process *p) {
    for (unsigned i = 0; i < p->count; i++)
        close(p->tasks[i].file);
    *p = (process){0};
}


/* Returns how long the thread has waited for a processor since the previous sample. */
static int64_t delay_of(task *t) {
    char text[128];
    int64_t delay = 0;
    ssize_t length = pread(t->file, text, sizeof(text) - 1, 0);
    text[length > 0 ? length : 0] = 0;
    if (sscanf(text, "%*d %" SCNd64, &delay) != 1)
        return 0;
    int64_t more = delay - t->delay;
    t->delay = delay;
    return more > 0 ? more : 0;
}


static int64_t delay_of_process(process *p, int pid) {
    int64_t sum = 0;
    if (p->pid != pid) {
        close_threads(p);
        p->pid = pid;
    }
    if (p->looks < NEW_SAMPLES || p->looks % FIND_EVERY == 0)
        find_threads(p);
    p->looks++;
    for (unsigned i = 0; i < p->count; i++)
        sum += delay_of(&p->tasks[i]);
    return sum;
}


/* Returns the time that the host of a virtual machine has taken from its processors since the previous sample. */
static int64_t stolen_since_last_sample(observer *l) {
    char text[512];
    long long stolen = 0;
    if (read_text("/proc/stat", text, sizeof(text)) &&
        sscanf(text, "cpu %*u %*u %*u %*u %*u %*u %*u %lld", &stolen) != 1)
        stolen = 0;
    int64_t ns = stolen * (1000000000ll / sysconf(_SC_CLK_TCK)), more = ns - l->stolen;
    l->stolen = ns;
    return more;
}


static void run_observer(stalls_book *book) {
    observer *l = calloc(1, sizeof(*l));
    stolen_since_last_sample(l);
    for (int64_t last = crew_now();;) {
        nanosleep(&(struct timespec){.tv_nsec = SAMPLE_NS}, NULL);
        int64_t stolen = stolen_since_last_sample(l), waited = 0;
        for (unsigned i = 0; i < STALLS_WATCHED; i++) {
            int pid = atomic_load_explicit(&book->watched[i], memory_order_relaxed);
            int64_t delay = pid ? delay_of_process(&l->processes[i], pid) : 0;
            waited = delay > waited ? delay : waited;
        }
        waited += stolen;
        int64_t now = crew_now(), passed = now - last, missed = passed - SAMPLE_NS;
        int64_t stalled = waited > missed ? waited : missed;
        unsigned count = atomic_load_explicit(&book->count, memory_order_relaxed);
        if (count == LOOKS_MAX)
            _exit(1);
        book->looks[count] = (look){now, stalled < passed ? stalled : passed};
        atomic_store_explicit(&book->count, count + 1, memory_order_release);
        last = now;
    }
}


void stalls_begin(stalls *s) {
    s->book = mmap(NULL, sizeof(*s->book), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(s->book != MAP_FAILED);
    fflush(NULL);
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run_observer(s->book);
    }
}


void stalls_watch(stalls *s, unsigned place, pid_t pid) {
    atomic_store_explicit(&s->book->watched[place], pid, memory_order_relaxed);
}


void stalls_end(stalls *s) {
    int status;
    assert_int_equal(kill(s->pid, SIGKILL), 0);
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    assert_true(WIFSIGNALED(status)); /* The observer was running until it was killed here. */
}


void stalls_free(stalls *s) {
    munmap(s->book, sizeof(*s->book));
}


int64_t stalls_fair_time(const stalls *s, int64_t from, int64_t to) {
    unsigned count = atomic_load_explicit(&s->book->count, memory_order_acquire);
    int64_t sum = 0;
    for (unsigned i = 0; i < count; i++) {
        int64_t begin = i ? s->book->looks[i - 1].at : 0;
        if (begin < to && s->book->looks[i].at > from)
            sum += s->book->looks[i].stalled;
    }
    return sum < to - from ? to - from - sum : 0;
}
