/* Tests of the daemon's log on a descriptor that accepts no data, and of its limits. */
#define _GNU_SOURCE
#include "fabric/node/log.h"
#include "test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>


/* Returns the whole content of the pipe. The write end must be closed. */
static char *read_all(int pipe_end) {
    char *text = calloc(1, 4 << 20);
    size_t length = 0;
    ssize_t got;
    while ((got = read(pipe_end, text + length, (4 << 20) - 1 - length)) > 0)
        length += (size_t)got;
    close(pipe_end);
    return text;
}


static unsigned count_lines(const char *text, const char *words) {
    unsigned count = 0;
    for (; (text = strstr(text, words)); text++)
        count++;
    return count;
}


/* The pipe is not read. Appending 10,000 lines and closing the log do not wait for it. Every line is either in the pipe
 * or counted as dropped. Fails if net_log_write writes to the descriptor itself. */
TEST(a_full_pipe_does_not_stop_the_log) {
    int ends[2];
    net_log *log;
    assert_int_equal(pipe(ends), 0);
    assert_true(fcntl(ends[1], F_SETPIPE_SZ, 4096) >= 4096);
    assert_int_equal(net_log_open(ends[1], NET_LOG_INFO, &log), 0);
    for (unsigned i = 0; i < 10000; i++)
        net_log_write(log, NET_LOG_INFO, "line %u", i);
    assert_in_range(net_log_dropped(log), 1, 10000);
    net_log_close(log);
    close(ends[1]);
    char *text = read_all(ends[0]);
    assert_int_equal(strncmp(strchr(text, ' '), " farindex serve: info: line 0\n", 30), 0);
    free(text);
}


/* If many lines of one level are logged at once, the log contains the first NET_LOG_BURST of them, and one line with
 * the number of dropped lines. Each level has its own limit. A newline in a text does not begin a new line. Lines above
 * the level of the log are left out, and do not count as dropped. */
TEST(lines_are_limited_and_counted) {
    int ends[2];
    net_log *log;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(net_log_open(ends[1], NET_LOG_WARNING, &log), 0);
    net_log_write(log, NET_LOG_INFO, "left out");
    for (unsigned i = 0; i < 10 * NET_LOG_BURST; i++)
        net_log_write(log, NET_LOG_WARNING, "often");
    uint64_t dropped = net_log_dropped(log);
    net_log_write(log, NET_LOG_ERROR, "two\nlines");
    net_log_close(log);
    close(ends[1]);
    char *text = read_all(ends[0]);
    assert_int_equal(count_lines(text, "often\n") + dropped, 10 * NET_LOG_BURST);
    /* On a slow machine some seconds may pass, so more lines may be within the rate. */
    assert_in_range(count_lines(text, "often\n"), NET_LOG_BURST, 5 * NET_LOG_BURST);
    assert_int_equal(count_lines(text, " lines were dropped\n"), 1);
    assert_int_equal(count_lines(text, "error: two?lines\n"), 1);
    assert_int_equal(count_lines(text, "left out"), 0);
    free(text);
}
