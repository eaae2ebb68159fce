/* `farindex bench --instructions` counts instructions with the counters of the processor, through perf events. */
#include "bench/bench.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>


static int ask_kernel(void) {
    struct perf_event_attr attributes = {.type = PERF_TYPE_HARDWARE,
                                         .size = sizeof(attributes),
                                         .config = PERF_COUNT_HW_INSTRUCTIONS,
                                         .exclude_kernel = 1,
                                         .exclude_hv = 1};
    return (int)syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

int (*bench_instructions_open)(void) = ask_kernel;


uint64_t bench_instructions_now(int counter) {
    uint64_t count = 0;
    return read(counter, &count, sizeof(count)) == sizeof(count) ? count : 0;
}


void bench_instructions_close(int counter) {
    if (counter >= 0)
        close(counter);
}


int bench_instructions_check(void) {
    int counter = bench_instructions_open(), why = errno;
    if (counter >= 0) {
        bench_instructions_close(counter);
        return 0;
    }
    const char *remedy =
        why == EACCES || why == EPERM
            ? "'sysctl kernel.perf_event_paranoid=2' or less permits it, but for containers that refuse the call"
            : "the machine, as many virtual ones, or its kernel has no such counter";
    return cli_failed("instructions cannot be counted here (perf_event_open: %s; %s). "
                      "Valgrind counts them: valgrind --tool=callgrind --toggle-collect=far_get farindex bench --index "
                      "dart --workload c --threads 1 --ops 10000 --warmup 1000; 'Collected' by 11000 is a get's",
                      strerror(why), remedy);
}
