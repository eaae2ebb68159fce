/* Random pauses of the daemon's threads, for tests (chaos.h). */
#define _GNU_SOURCE
#include "fabric/node/chaos.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>


void net_chaos_init(net_chaos *chaos, unsigned thread) {
    *chaos = (net_chaos){.state = thread * 0x9e3779b97f4a7c15ull + 1};
}


net_chaos_pause net_chaos_draw(net_chaos *chaos, unsigned *us) {
    chaos->state = chaos->state * 6364136223846793005ull + 1442695040888963407ull;
    unsigned draw = (unsigned)(chaos->state >> 40);
    *us = draw / 256 % 200;
    return draw % 256 == 0 ? CHAOS_SLEEP : draw % 4 == 0 ? CHAOS_YIELD : CHAOS_NONE;
}


bool net_chaos_is_suspended(const net_chaos *chaos, uint64_t now) {
    return now < chaos->suspended_until;
}


void net_chaos_record_pause(net_chaos *chaos, uint64_t begun, uint64_t ended) {
    uint64_t took = ended - begun;
    if (took >= CHAOS_LONG_PAUSE_NS)
        chaos->suspended_until =
            ended +
            (took < CHAOS_SUSPEND_MAX_NS / CHAOS_SUSPEND_FACTOR ? CHAOS_SUSPEND_FACTOR * took : CHAOS_SUSPEND_MAX_NS);
}


static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}


void net_chaos_pause_sometimes(net_chaos *chaos) {
    unsigned us;
    net_chaos_pause pause = net_chaos_draw(chaos, &us);
    if (pause == CHAOS_NONE)
        return;
    uint64_t begun = now_ns();
    if (net_chaos_is_suspended(chaos, begun))
        return;
    if (pause == CHAOS_SLEEP)
        usleep(us);
    else
        sched_yield();
    net_chaos_record_pause(chaos, begun, now_ns());
}
