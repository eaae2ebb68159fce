/* Tests that register themselves. Every file test_NAME.c below tests/ is one program; its tests are written as
 *
 *     TEST(a_deleted_key_is_absent) {
 *         ...
 *         assert_int_equal(far_get(...), FAR_ERR_NOT_FOUND);
 *     }
 *
 * and tests/support/main.c has the `main` function of all of them. It runs the tests in the order of the source,
 * prints one line for each, and exits with the number of failed tests. `PROGRAM PATTERN` runs the tests whose names
 * match the pattern (with * and ?), and `PROGRAM --list` prints the names.
 *
 * Inside of a test, `state` is the parameter `void **state` of cmocka. */
#ifndef FAR_TESTS_TEST_H
#define FAR_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

typedef void test_function(void **state);
typedef int test_fixture(void **state); /* set-up or tear-down function; returns 0 on success */

/* One test of the program. The macros below make such entries; each entry stays in the list of tests until the program
 * ends. */
typedef struct test_entry {
    const char *name;
    test_function *run;
    test_fixture *set_up, *tear_down; /* functions that run before and after the test; may be NULL */
    void *initial_state;              /* value of *state at the start of the test, unless set_up changes it */
    unsigned line;                    /* source line of the test; tests run in the order of their lines */
    struct test_entry *next;
} test_entry;

/* Adds a test to the program. Must be called before the first test runs, so only the macros below and a TEST_GENERATOR
 * call this function. */
void test_register(test_entry *entry);

/* Adds a test that a TEST_GENERATOR makes. Copies the name. */
void test_add(const char *name, test_function *run, test_fixture *set_up, test_fixture *tear_down, void *initial_state);


/* Defines a test. */
#define TEST(name) TEST_WITH(name, NULL, NULL)

/* Defines a test that runs between a set-up and a tear-down function; each may be NULL. */
#define TEST_WITH(name, set_up, tear_down)                                                                             \
    static void name(void **state);                                                                                    \
    TEST_REGISTER_(name, #name, name, set_up, tear_down, NULL)                                                         \
    static void name(__attribute__((unused)) void **state)

/* Defines a set-up or tear-down function. It returns 0 on success. */
#define TEST_FIXTURE(name) __attribute__((unused)) static int name(__attribute__((unused)) void **state)

/* Defines a test function that does not run by itself, but once for each TEST_CASE. */
#define TEST_FUNCTION(name) static void name(__attribute__((unused)) void **state)

/* Adds a run of a TEST_FUNCTION (or one more run of a TEST) under the name `case_name`, with an initial value of
 * *state. */
#define TEST_CASE(function, case_name, initial_state) TEST_CASE_WITH(function, case_name, initial_state, NULL, NULL)
#define TEST_CASE_WITH(function, case_name, initial_state, set_up, tear_down)                                          \
    TEST_CASE_NUMBERED_(function, case_name, initial_state, set_up, tear_down, __COUNTER__)

/* Adds one run of a TEST_FUNCTION for each of the five indexes, with the name of the kind in *state. */
#define TEST_CASE_OF_EACH_KIND(function)                                                                               \
    TEST_CASE(function, #function " chime", "chime");                                                                  \
    TEST_CASE(function, #function " dart", "dart");                                                                    \
    TEST_CASE(function, #function " dolphin", "dolphin");                                                              \
    TEST_CASE(function, #function " shard", "shard");                                                                  \
    TEST_CASE(function, #function " smart", "smart")

/* Declares functions that run before the first and after the last test of the program; each may be NULL. */
#define TEST_GROUP(set_up, tear_down)                                                                                  \
    __attribute__((constructor)) static void test_register_group_(void) {                                              \
        test_set_group(set_up, tear_down);                                                                             \
    }                                                                                                                  \
    _Static_assert(1, "a semicolon follows")
void test_set_group(test_fixture *set_up, test_fixture *tear_down);

/* Defines a function that runs first of all and may add tests with test_add, for tests whose number depends on a table
 * or on the kinds of the library. */
#define TEST_GENERATOR(name)                                                                                           \
    static void name(void);                                                                                            \
    __attribute__((constructor)) static void name##_register(void) {                                                   \
        test_set_generator(name);                                                                                      \
    }                                                                                                                  \
    static void name(void)
void test_set_generator(void (*generator)(void));

/* Defines a function that reads the arguments of the program before any test runs, for programs that start themselves
 * again in another role, or that have options of their own. It returns TEST_CONTINUE, or the exit status of a program
 * that runs no test. Such a program takes no PATTERN unless the function calls test_set_pattern. */
enum { TEST_CONTINUE = -1 };
#define TEST_ARGUMENTS(argc, argv)                                                                                     \
    static int test_read_arguments_(int argc, char **argv);                                                            \
    __attribute__((constructor)) static void test_register_arguments_(void) {                                          \
        test_set_arguments(test_read_arguments_);                                                                      \
    }                                                                                                                  \
    static int test_read_arguments_(__attribute__((unused)) int argc, __attribute__((unused)) char **argv)
void test_set_arguments(int (*read)(int argc, char **argv));
void test_set_pattern(const char *pattern); /* makes the program run only the tests with matching names */
void test_list_names(void);                 /* makes the program print the names of its tests instead of running them */

/* Returns whether the environment variable ALL is set, which `make test-all` does. Tests that repeat one proof at many
 * sizes then run all sizes, and otherwise only those that are necessary for the proof. */
bool test_runs_all_sizes(void);

/* TEST_REGISTER_ is a part of the macros above, which make a test_entry and register it before `main` starts. */
#define TEST_REGISTER_(id, entry_name, function, set_up, tear_down, initial_state)                                     \
    __attribute__((constructor)) static void id##_register(void) {                                                     \
        static test_entry entry = {entry_name, function, set_up, tear_down, (void *)(uintptr_t)(initial_state),        \
                                   __LINE__,   NULL};                                                                  \
        test_register(&entry);                                                                                         \
    }
#define TEST_CASE_NUMBERED_(function, case_name, initial_state, set_up, tear_down, number)                             \
    TEST_CASE_EXPANDED_(function, case_name, initial_state, set_up, tear_down, number)
#define TEST_CASE_EXPANDED_(function, case_name, initial_state, set_up, tear_down, number)                             \
    TEST_REGISTER_(function##_case_##number, case_name, function, set_up, tear_down, initial_state)                    \
    _Static_assert(1, "a semicolon follows")

#endif
