/* WRITEs of mapped memory, instruction by instruction: whoever looks meanwhile, or comes after a kill -9, finds every unit
 * as it was or as it is to be. Another thread beside a WRITE hardly ever sees a unit that is torn. */
#include "fabric/words.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORDS = 24, NEW = 77 };


/* The number of units that are torn in what lies between first and end; those that are not whole there may be. */
static unsigned torn(const _Atomic uint64_t *memory, unsigned first, unsigned end, unsigned unit) {
    unsigned count = 0;
    for (unsigned at = 0; at < WORDS; at += unit)
        for (unsigned i = at; i < at + unit; i++)
            count += at >= first && at + unit <= end && atomic_load(&memory[i]) != atomic_load(&memory[at]);
    return count;
}


/* A child writes these words; the number of torn units that are to be seen after any of its instructions. */
static unsigned torn_while_written(_Atomic uint64_t *memory, unsigned first, unsigned words, unsigned unit) {
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
    assert_true(WIFSTOPPED(status)); /* else this host lets nobody trace a child of its own */
    while (WIFSTOPPED(status)) {
        uint64_t written = 0;
        count += torn(memory, first, first + words, unit);
        for (unsigned i = 0; i < WORDS; i++)
            written += atomic_load(&memory[i]) == NEW;
        changes += written != before;
        before = written;
        assert_int_equal(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(before, words);
    assert_true(changes >= words * 8 / 64); /* it was seen at work */
    return count;
}


static void a_write_that_is_cut_leaves_whole_units(void **state) {
    (void)state;
    unsigned unit = far_words_capabilities().atomic_bytes / 8;
    _Atomic uint64_t *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    for (unsigned first = 0; first < 3; first++)
        for (unsigned words = 1; first + words <= WORDS; words += words < 6 ? 1 : 5)
            assert_int_equal(torn_while_written(memory, first, words, unit), 0);
    munmap(memory, 4096);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_write_that_is_cut_leaves_whole_units),
    };
    return cmocka_run_group_tests_name("fabric/words", tests, NULL, NULL);
}
