/* Which prefix lengths are tried first. For each class of key lengths, each choice (a first position in the list and how many lengths, or
 * the root) has a moving average of the round trips that it cost; the cheapest is taken. Now and then another one is tried: all of them
 * in turn at first, later mostly neighbours of the best, rarely. No clock and no chance: the turn of the class decides. */
#include "index/dart/est.h"

#define ROOT_ARM (DART_ARMS - 1)
#define TRIP 4096u
#define PROBE_COST 256u /* what one more READ in a batch may cost, so that it is not put for nothing */
#define WARM_UP 128u
#define NEIGHBOUR_EVERY 128u
#define ANY_EVERY 1024u


unsigned dart_class_of(size_t key_length) {
    if (key_length <= 32)
        return (unsigned)key_length;
    size_t class = 33 + (key_length - 33) / 32;
    return class < DART_CLASSES ? (unsigned)class : DART_CLASSES - 1;
}


static dart_choice choice_of(unsigned arm) {
    if (arm == ROOT_ARM)
        return (dart_choice){ROOT_ARM, 0, 0};
    return (dart_choice){arm, arm / DART_EST_WIDTH_MAX, arm % DART_EST_WIDTH_MAX + 1};
}


static bool is_legal(unsigned arm, unsigned usable, unsigned width) {
    dart_choice choice = choice_of(arm);
    return arm == ROOT_ARM || (choice.count <= width && choice.first + choice.count <= usable);
}


/* The n-th legal arm, in turn. */
static unsigned nth_arm(unsigned n, unsigned usable, unsigned width) {
    for (unsigned i = 0; i < DART_ARMS; i++) {
        unsigned arm = (n + i) % DART_ARMS;
        if (is_legal(arm, usable, width))
            return arm;
    }
    return ROOT_ARM;
}


static unsigned neighbour(unsigned best, unsigned n, unsigned usable, unsigned width) {
    static const int step[] = {-(int)DART_EST_WIDTH_MAX, DART_EST_WIDTH_MAX, 1, -1, -(int)DART_EST_WIDTH_MAX + 1, DART_EST_WIDTH_MAX - 1};
    for (unsigned i = 0; best != ROOT_ARM && i < 6; i++) {
        int arm = (int)best + step[(n + i) % 6];
        if (arm >= 0 && arm < (int)ROOT_ARM && is_legal((unsigned)arm, usable, width))
            return (unsigned)arm;
    }
    return best;
}


dart_choice dart_choose(dart_class *class, unsigned usable, unsigned width) {
    unsigned turn = atomic_fetch_add_explicit(&class->turns, 1, memory_order_relaxed), best = ROOT_ARM, least = UINT32_MAX;
    if (usable == 0)
        return choice_of(ROOT_ARM);
    for (unsigned arm = 0; arm < DART_ARMS; arm++) {
        unsigned cost = atomic_load_explicit(&class->cost[arm], memory_order_relaxed);
        if (cost && cost < least && is_legal(arm, usable, width)) {
            best = arm;
            least = cost;
        }
    }
    if (turn < WARM_UP ? turn % 2 == 0 : turn % ANY_EVERY == 0)
        return choice_of(nth_arm(turn < WARM_UP ? turn / 2 * 3 : turn / ANY_EVERY, usable, width));
    if (turn % NEIGHBOUR_EVERY == 1)
        return choice_of(neighbour(best, turn / NEIGHBOUR_EVERY, usable, width));
    if (least == UINT32_MAX) /* nothing is known: the longest lengths */
        return choice_of((usable > width ? usable - width : 0) * DART_EST_WIDTH_MAX + (usable < width ? usable : width) - 1);
    return choice_of(best);
}


void dart_chosen_cost(dart_class *class, unsigned arm, unsigned trips, unsigned probes) {
    unsigned cost = trips * TRIP + probes * PROBE_COST, old = atomic_load_explicit(&class->cost[arm], memory_order_relaxed);
    unsigned new = old == 0 ? cost : (uint32_t)(((uint64_t)old * 31 + cost + 16) / 32);
    atomic_store_explicit(&class->cost[arm], new, memory_order_relaxed);
}


void dart_class_reset(dart_class *class) {
    atomic_store_explicit(&class->turns, 0, memory_order_relaxed);
    for (unsigned arm = 0; arm < DART_ARMS; arm++)
        atomic_store_explicit(&class->cost[arm], 0, memory_order_relaxed);
}
