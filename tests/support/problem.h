/* Callback for far_index_check and far_pool_check in tests that expect no problem: the first problem fails the test. */
#ifndef TESTS_SUPPORT_PROBLEM_H
#define TESTS_SUPPORT_PROBLEM_H

int fail_at_problem(void *ctx, const char *what);

#endif
