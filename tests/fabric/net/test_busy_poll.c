/* Tests of how long a wait polls before it sleeps (fabric/net/busy_poll.c), in simulated time. They prove that short
 * waits do not sleep, and that polling without success takes only a small part of the time. */
#include "conform.h"
#include "fabric/net/busy_poll.h"
#include "test.h"

#define LOOK 1000u /* duration of one poll in ns */


/* Simulates one wait. The event for which it waits occurs `comes_after` ns after the start of the wait. A thread that
 * sleeps wakes up `late` ns after the event. After the first poll another thread has the processor for `gap` ns.
 * Returns the time spent polling; *now is the end of the wait. */
static uint64_t wait_once(net_busy_poll *busy_poll, uint64_t *now, uint64_t comes_after, uint64_t late, uint64_t gap) {
    uint64_t begun = *now, looked;
    bool found = false;
    for (bool looks = net_busy_poll_begin(busy_poll, *now); looks && !found;
         looks = net_busy_poll_continue(busy_poll, *now)) {
        *now += LOOK + gap;
        found = *now >= begun + comes_after;
        gap = 0;
        if (found)
            break;
    }
    looked = *now - begun;
    if (!found)
        *now = (*now > begun + comes_after ? *now : begun + comes_after) + late;
    net_busy_poll_end(busy_poll, *now, found);
    return looked;
}


/* A thread whose waits take 12 us polls and does not sleep. In the first 20 waits the peer's thread sleeps as well, so
 * these waits take 60 us. After at most 30 waits the average is short enough that this thread only polls. Fails if
 * polling_time is always NET_BUSY_POLL_MIN. */
TEST(short_waits_do_not_sleep) {
    net_busy_poll busy_poll = {0};
    uint64_t now = 0;
    unsigned slept = 0;
    for (unsigned i = 0; i < 1000; i++) {
        uint64_t begun = now;
        bool other_sleeps = i < 20;
        uint64_t took = other_sleeps ? 60000 : 12000;
        wait_once(&busy_poll, &now, took, 40000, 0);
        slept += now - begun >= took + 40000;
    }
    print_message("%u of 1000 waits slept\n", slept);
    assert_in_range(slept, 0, 30);
    uint64_t begun = now;
    /* a single wait that takes three times as long does not sleep either */
    wait_once(&busy_poll, &now, 40000, 40000, 0);
    assert_in_range(now - begun, 40000, 40000 + LOOK);
}


/* Whatever the length of the waits is, unsuccessful polling costs at most one part in NET_BUSY_POLL_PAUSE_FACTOR of the
 * time. Fails if neither net_busy_poll_continue nor net_busy_poll_end pauses polling after an unsuccessful poll. */
TEST(unsuccessful_polling_costs_little) {
    const uint64_t waits[] = {30000, 150000, 250000, 1000000, 1000000000};
    for (unsigned k = 0; k < sizeof(waits) / sizeof(waits[0]); k++) {
        net_busy_poll busy_poll = {0};
        uint64_t now = 0, looked = 0;
        for (unsigned i = 0; i < 1000; i++) {
            uint64_t begun = now, so_long = wait_once(&busy_poll, &now, waits[k], 0, 0);
            looked += now - begun > so_long ? so_long : 0; /* The time of a poll that succeeded is not counted. */
        }
        print_message("waits of %llu us: %.2f %% of the time spent on unsuccessful polling\n",
                      (unsigned long long)waits[k] / 1000, 100.0 * (double)looked / (double)now);
        assert_true(looked * NET_BUSY_POLL_PAUSE_FACTOR <= now + NET_BUSY_POLL_PAUSE_FACTOR * NET_BUSY_POLL_MAX);
    }
}


/* A session waits for a node that does not answer, while each of its other tasks sleeps for a moment. So each wait ends
 * early, when the time of the next task is reached, before the wait has polled for long. Such polling counts as
 * unsuccessful, too. Fails without the case `cut_short` in net_busy_poll_end. */
TEST(polling_that_ends_early_counts) {
    const uint64_t span = 15000; /* duration of each wait in ns; shorter than the shortest polling */
    net_busy_poll busy_poll = {0};
    uint64_t now = 0, looked = 0;
    for (unsigned i = 0; i < 1000; i++) {
        uint64_t begun = now, until = now + span;
        for (bool looks = net_busy_poll_begin(&busy_poll, now); looks && now < until;
             looks = net_busy_poll_continue(&busy_poll, now))
            now += LOOK;
        looked += now - begun;
        now = until;
        net_busy_poll_end(&busy_poll, now, false);
    }
    print_message("%.2f %% of the time spent on unsuccessful polling\n", 100.0 * (double)looked / (double)now);
    assert_true(looked * NET_BUSY_POLL_PAUSE_FACTOR <= now + NET_BUSY_POLL_PAUSE_FACTOR * NET_BUSY_POLL_MAX);
}


/* A thread had short waits and becomes idle. Its first long wait polls only for a moment and then sleeps, and the
 * following waits sleep at once. */
TEST(an_idle_thread_polls_once) {
    net_busy_poll busy_poll = {0};
    uint64_t now = 0;
    for (unsigned i = 0; i < 100; i++)
        wait_once(&busy_poll, &now, 12000, 40000, 0);
    assert_in_range(wait_once(&busy_poll, &now, 60000000000, 40000, 0), 1, NET_BUSY_POLL_MAX + LOOK);
    wait_once(&busy_poll, &now, 12000, 40000, 0); /* a minute later, the average is still short enough for polling */
    assert_in_range(busy_poll.average_wait, 0, NET_BUSY_POLL_MAX);
}


/* A thread that loses the processor while it polls stops polling, whether its event has occurred meanwhile or not.
 * Polling is then paused for a multiple of the lost time. Fails without pause_if_preempted. */
TEST(losing_the_processor_stops_polling) {
    const uint64_t gaps[] = {3000000, 30000000000, 60000}, comes_after[] = {12000, 12000, 80000};
    for (unsigned k = 0; k < 3; k++) {
        net_busy_poll busy_poll = {0};
        uint64_t now = 0;
        for (unsigned i = 0; i < 100; i++)
            wait_once(&busy_poll, &now, 12000, 40000, 0);
        uint64_t looked = wait_once(&busy_poll, &now, comes_after[k], 0, gaps[k]);
        assert_int_equal(looked, gaps[k] + LOOK); /* The wait polled once. */
        uint64_t rests = NET_BUSY_POLL_PAUSE_FACTOR * (gaps[k] + LOOK), begun = busy_poll.last_poll;
        rests = rests < NET_BUSY_POLL_PAUSE_MAX
                    ? rests
                    : NET_BUSY_POLL_PAUSE_MAX / NET_BUSY_POLL_PAUSE_FACTOR * NET_BUSY_POLL_PAUSE_FACTOR;
        while (now + 100000 < begun + rests)
            assert_int_equal(wait_once(&busy_poll, &now, 12000, 40000, 0), 0);
        now = begun + rests;
        assert_true(wait_once(&busy_poll, &now, 12000, 40000, 0) > 0);
    }
}


/* Another thread of the host uses the processor for only 20 us, as the daemon does to serve the request. This does not
 * pause polling, because the event has occurred and nothing was lost. */
TEST(a_short_loss_of_the_processor_does_not_pause_polling) {
    net_busy_poll busy_poll = {0};
    uint64_t now = 0;
    for (unsigned i = 0; i < 100; i++)
        wait_once(&busy_poll, &now, 12000, 40000, 20000);
    for (unsigned i = 0; i < 100; i++)
        assert_true(wait_once(&busy_poll, &now, 12000, 40000, 20000) > 0);
}
