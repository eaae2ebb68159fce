/* Who is silent: a host that does not answer for the lease, not a process that takes nothing. */
#include "fabric/net/silence.h"
#include "wire.h"

#include <poll.h>
#include <unistd.h>


static uint64_t silent_at(net_silence *silence, uint64_t now, bool asked, uint64_t ago) {
    net_heard heard = {.asked = asked, .ago = ago};
    return net_silence_of(silence, &heard, now);
}


/* It counts from when it was first seen that something is unanswered: the peer may have been idle for long before. */
static void silence_begins_with_a_question(void **state) {
    (void)state;
    net_silence silence = {0};
    assert_int_equal(silent_at(&silence, 100000, true, 60000), 0);
    assert_int_equal(silent_at(&silence, 100500, true, 60500), 500);
    assert_int_equal(silent_at(&silence, 102000, true, 62000), 2000);
}


static void an_answer_ends_it(void **state) {
    (void)state;
    net_silence silence = {0};
    silent_at(&silence, 1000, true, 10);
    assert_int_equal(silent_at(&silence, 2000, true, 300), 0); /* more was asked since */
    assert_int_equal(silent_at(&silence, 2500, true, 800), 500);
    assert_int_equal(silent_at(&silence, 3000, false, 100), 0); /* it has no room, and says so */
    assert_int_equal(silent_at(&silence, 90000, true, 87000), 0);
    assert_int_equal(silent_at(&silence, 90500, true, 87500), 500);
}


static void who_has_taken_all_owes_nothing(void **state) {
    (void)state;
    net_silence silence = {0};
    net_heard all = {.all_taken = true};
    silent_at(&silence, 1000, true, 10);
    assert_int_equal(net_silence_of(&silence, &all, 5000), 0);
    assert_int_equal(silent_at(&silence, 9000, true, 8000), 0);
}


/* Its host answers for it: it lives, also when there is no room left for what it asked for. */
static void who_takes_nothing_is_not_dead(void **state) {
    (void)state;
    daemon_node node;
    net_head head;
    const char *body;
    int got = 0;
    assert_true(daemon_start(&node, NULL, "--size 1M --lease 1s"));
    net_link link = wire_dial(node.address, NET_FOR_SESSION);
    uint64_t asked = wire_ask_for_too_much(&link.channel), answers = 0;
    usleep(3500000); /* three times the lease */
    while (answers < asked && got >= 0) {
        struct pollfd one = {.fd = link.channel.socket, .events = POLLIN};
        assert_int_equal(poll(&one, 1, -1), 1);
        got = net_channel_fill(&link.channel);
        while (net_channel_next(&link.channel, true, &head, &body) > 0)
            answers++;
    }
    assert_int_equal(answers, asked);
    net_channel_close(&link.channel);
    assert_int_equal(daemon_stop(&node), 0);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silence_begins_with_a_question),
        cmocka_unit_test(an_answer_ends_it),
        cmocka_unit_test(who_has_taken_all_owes_nothing),
        cmocka_unit_test(who_takes_nothing_is_not_dead),
    };
    return cmocka_run_group_tests_name("net/silence", tests, NULL, NULL);
}
