/* How long a wait looks before it sleeps, in a time of the test's own: looking pays, or it stops. */
#include "conform.h"
#include "fabric/net/linger.h"

#define LOOK 1000u /* ns that one look takes */


/* One wait for something that comes after so long; whoever sleeps is woken `late` after that. Returns the ns for which it
 * has looked; *now is when it is over. `gap`: another thread has the processor for so long after the first look. */
static uint64_t wait_once(net_linger *linger, uint64_t *now, uint64_t comes_after, uint64_t late, uint64_t gap) {
    uint64_t begun = *now, looked;
    bool found = false;
    for (bool looks = net_linger_begin(linger, *now); looks && !found; looks = net_linger_goes_on(linger, *now)) {
        *now += LOOK + gap;
        found = *now >= begun + comes_after;
        gap = 0;
        if (found)
            break;
    }
    looked = *now - begun;
    if (!found)
        *now = (*now > begun + comes_after ? *now : begun + comes_after) + late;
    net_linger_end(linger, *now, found);
    return looked;
}


/* Both ends sleep at first, and each has to be woken: that takes longer than the round trip itself. */
static void short_waits_do_not_sleep(void **state) {
    (void)state;
    net_linger linger = {0};
    uint64_t now = 0;
    unsigned slept = 0;
    for (unsigned i = 0; i < 1000; i++) {
        uint64_t begun = now;
        bool other_sleeps = i < 20;
        uint64_t took = other_sleeps ? 60000 : 12000;
        wait_once(&linger, &now, took, 40000, 0);
        slept += now - begun >= took + 40000;
    }
    print_message("%u of 1000 waits slept\n", slept);
    assert_in_range(slept, 0, 30);
    uint64_t begun = now;
    wait_once(&linger, &now, 40000, 40000, 0); /* nor does a wait that takes three times as long for once */
    assert_in_range(now - begun, 40000, 40000 + LOOK);
}


/* Whatever is waited for, and however long: what looking in vain costs is bounded. */
static void looking_in_vain_costs_little(void **state) {
    (void)state;
    const uint64_t waits[] = {30000, 150000, 250000, 1000000, 1000000000};
    for (unsigned k = 0; k < sizeof(waits) / sizeof(waits[0]); k++) {
        net_linger linger = {0};
        uint64_t now = 0, looked = 0;
        for (unsigned i = 0; i < 1000; i++) {
            uint64_t begun = now, so_long = wait_once(&linger, &now, waits[k], 0, 0);
            looked += now - begun > so_long ? so_long : 0; /* the others found what they looked for */
        }
        print_message("waits of %llu us: %.2f %% of the time looked in vain\n", (unsigned long long)waits[k] / 1000,
                      100.0 * (double)looked / (double)now);
        assert_true(looked * NET_LINGER_REST <= now + NET_LINGER_REST * NET_LINGER_MOST);
    }
}


/* A session waits for a node that does not answer, and its other tasks sleep for a moment each, again and again: waits end
 * by the time until which they wait, before they have looked for long. That is in vain too. */
static void looks_that_are_cut_short_count(void **state) {
    (void)state;
    const uint64_t span = 15000; /* shorter than any look */
    net_linger linger = {0};
    uint64_t now = 0, looked = 0;
    for (unsigned i = 0; i < 1000; i++) {
        uint64_t begun = now, until = now + span;
        for (bool looks = net_linger_begin(&linger, now); looks && now < until;
             looks = net_linger_goes_on(&linger, now))
            now += LOOK;
        looked += now - begun;
        now = until;
        net_linger_end(&linger, now, false);
    }
    print_message("%.2f %% of the time looked in vain\n", 100.0 * (double)looked / (double)now);
    assert_true(looked * NET_LINGER_REST <= now + NET_LINGER_REST * NET_LINGER_MOST);
}


/* The first wait of a thread that was idle looks for a moment only, and those after it sleep. */
static void who_becomes_idle_looks_once(void **state) {
    (void)state;
    net_linger linger = {0};
    uint64_t now = 0;
    for (unsigned i = 0; i < 100; i++)
        wait_once(&linger, &now, 12000, 40000, 0);
    assert_in_range(wait_once(&linger, &now, 60000000000, 40000, 0), 1, NET_LINGER_MOST + LOOK);
    wait_once(&linger, &now, 12000, 40000, 0); /* a minute later: it knows by now that it is worth looking */
    assert_in_range(linger.usual, 0, NET_LINGER_MOST);
}


/* Whether what it looked for is there when it comes back, or not. */
static void who_loses_the_processor_while_it_looks_stops(void **state) {
    (void)state;
    const uint64_t gaps[] = {3000000, 30000000000, 60000}, comes_after[] = {12000, 12000, 80000};
    for (unsigned k = 0; k < 3; k++) {
        net_linger linger = {0};
        uint64_t now = 0;
        for (unsigned i = 0; i < 100; i++)
            wait_once(&linger, &now, 12000, 40000, 0);
        uint64_t looked = wait_once(&linger, &now, comes_after[k], 0, gaps[k]);
        assert_int_equal(looked, gaps[k] + LOOK); /* once */
        uint64_t rests = NET_LINGER_REST * (gaps[k] + LOOK), begun = linger.seen;
        rests = rests < NET_LINGER_LONG ? rests : NET_LINGER_LONG / NET_LINGER_REST * NET_LINGER_REST;
        while (now + 100000 < begun + rests)
            assert_int_equal(wait_once(&linger, &now, 12000, 40000, 0), 0);
        now = begun + rests;
        assert_true(wait_once(&linger, &now, 12000, 40000, 0) > 0);
    }
}


/* The daemon did its work on this processor: what was looked for is there, and nothing was lost. */
static void a_short_absence_does_no_harm(void **state) {
    (void)state;
    net_linger linger = {0};
    uint64_t now = 0;
    for (unsigned i = 0; i < 100; i++)
        wait_once(&linger, &now, 12000, 40000, 20000);
    for (unsigned i = 0; i < 100; i++)
        assert_true(wait_once(&linger, &now, 12000, 40000, 20000) > 0);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_waits_do_not_sleep),     cmocka_unit_test(looking_in_vain_costs_little),
        cmocka_unit_test(who_becomes_idle_looks_once),  cmocka_unit_test(who_loses_the_processor_while_it_looks_stops),
        cmocka_unit_test(a_short_absence_does_no_harm), cmocka_unit_test(looks_that_are_cut_short_count),
    };
    return cmocka_run_group_tests_name("net/linger", tests, NULL, NULL);
}
