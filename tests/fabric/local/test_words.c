/* Single-steps a process that WRITEs mapped memory, and examines the memory after each instruction. A reader, or a
 * client that continues after the writer was killed, must find each granule either old or new. The test does not use
 * threads, because two concurrent threads would hardly ever observe a torn granule. */
#include "fabric/words.h"
#include "test.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 24, NEW = 77 };


/* Returns the number of words that differ from the first word of their granule, in all granules that are completely
 * between `first` and `end`. Granules that are only partly in this range may tear. */
static unsigned count_torn_words(const _Atomic uint64_t *memory, unsigned first, unsigned end, unsigned unit) {
    unsigned count = 0;
    for (unsigned at = 0; at < WORDS; at += unit)
        for (unsigned i = at; i < at + unit; i++)
            count += at >= first && at + unit <= end && atomic_load(&memory[i]) != atomic_load(&memory[at]);
    return count;
}


/* Lets a child process write `words` words, starting at `first`. Returns the number of torn granules that were found
 * after any of the child's instructions. */
static unsigned count_torn_words_during_write(_Atomic uint64_t *memory, unsigned first, unsigned words, unsigned unit) {
    char image[8 * WORDS];
    unsigned count = 0, changes = 0;
    uint64_t before = 0;
    int status;
    for (unsigned i = 0; i < WORDS; i++) {
        atomic_store(&memory[i], 0);
        memcpy(image + 8 * i, &(uint64_t){NEW}, 8);
    }
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
            _exit(1);
        raise(SIGSTOP);
        far_words_write(memory + first, image, words);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    /* The assertion fails if this host does not allow a process to trace its own child. */
    assert_true(WIFSTOPPED(status));
    while (WIFSTOPPED(status)) {
        uint64_t written = 0;
        count += count_torn_words(memory, first, first + words, unit);
        for (unsigned i = 0; i < WORDS; i++)
            written += atomic_load(&memory[i]) == NEW;
        changes += written != before;
        before = written;
        assert_int_equal(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(before, words);
    /* The memory must have changed in several steps, because otherwise no intermediate state was examined. */
    assert_true(changes >= words * 8 / 64);
    return count;
}


/* A process that writes mapped memory leaves no torn granule, after whichever instruction it is killed. Fails if
 * far_words_write stores an aligned pair of words with two instructions where the granule is 16 bytes. */
TEST(a_killed_write_leaves_whole_granules) {
    unsigned unit = far_words_capabilities().atomic_bytes / 8;
    _Atomic uint64_t *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    for (unsigned first = 0; first < 3; first++)
        for (unsigned words = 1; first + words <= WORDS; words += words < 6 ? 1 : 5)
            assert_int_equal(count_torn_words_during_write(memory, first, words, unit), 0);
    munmap(memory, 4096);
}
