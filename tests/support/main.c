/* The `main` function of every test program. It collects the tests that test.h has registered, and runs them with
 * cmocka. */
#include "pool/catalog/private_options.h"
#include "test.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static test_entry *first_entry;
static size_t entry_count;
static test_fixture *group_set_up, *group_tear_down;
static void (*generate_tests)(void);
static int (*read_arguments)(int argc, char **argv);
static const char *name_pattern;
static bool lists_names;


void test_register(test_entry *entry) {
    test_entry **at = &first_entry;
    while (*at && (*at)->line <= entry->line)
        at = &(*at)->next;
    entry->next = *at;
    *at = entry;
    entry_count++;
}


void test_add(const char *name, test_function *run, test_fixture *set_up, test_fixture *tear_down,
              void *initial_state) {
    test_entry *entry = malloc(sizeof(*entry));
    char *copy = strdup(name);
    if (!entry || !copy) {
        fputs("no memory for the list of tests\n", stderr);
        exit(1);
    }
    *entry = (test_entry){copy, run, set_up, tear_down, initial_state, (unsigned)-1, NULL};
    test_register(entry);
}


void test_set_group(test_fixture *set_up, test_fixture *tear_down) {
    group_set_up = set_up;
    group_tear_down = tear_down;
}


void test_set_generator(void (*generator)(void)) {
    generate_tests = generator;
}


void test_set_arguments(int (*read)(int argc, char **argv)) {
    read_arguments = read;
}


void test_set_pattern(const char *pattern) {
    name_pattern = pattern;
}


void test_list_names(void) {
    lists_names = true;
}


bool test_runs_all_sizes(void) {
    return getenv("ALL") != NULL;
}


/* Returns the name of the program without its folder, for the report of cmocka. */
static const char *group_name(const char *program) {
    const char *slash = strrchr(program, '/');
    return slash ? slash + 1 : program;
}


int main(int argc, char **argv) {
    far_private_options_allow(true);
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        test_list_names();
    } else if (read_arguments) {
        int status = read_arguments(argc, argv);
        if (status != TEST_CONTINUE)
            return status;
    } else if (argc == 2) {
        test_set_pattern(argv[1]);
    } else if (argc > 2) {
        fprintf(stderr, "usage: %s [PATTERN | --list]\n", argv[0]);
        return 2;
    }
    if (generate_tests)
        generate_tests();
    if (entry_count == 0) {
        fprintf(stderr, "%s: no test applies here\n", argv[0]);
        return argc > 1 ? 2 : 0;
    }
    struct CMUnitTest *tests = calloc(entry_count, sizeof(*tests));
    if (!tests)
        return 1;
    size_t count = 0;
    for (test_entry *at = first_entry; at; at = at->next) {
        if (lists_names)
            puts(at->name);
        tests[count++] = (struct CMUnitTest){at->name, at->run, at->set_up, at->tear_down, at->initial_state};
    }
    int failed = 0;
    if (!lists_names) {
        if (name_pattern)
            cmocka_set_test_filter(name_pattern);
        failed = _cmocka_run_group_tests(group_name(argv[0]), tests, count, group_set_up, group_tear_down);
    }
    free(tests);
    return failed;
}
