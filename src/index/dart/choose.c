/* Which prefix lengths are tried first. For each class of key lengths, each choice (a first position in the list and
 * how many lengths, or the root) has a moving average of the round trips that it cost; the cheapest is taken. Now and
 * then another one is tried, all of them in turn. No clock and no chance: the turn of the class decides. */
#include "index/dart/est.h"

#define ROOT_ARM      (DART_ARMS - 1)
#define TRIP          4096u
#define PROBE_COST    512u /* of one more READ in the batch: it must save this much */
#define WARM_UP       64u
#define EXPLORE_EVERY 64u


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


/* All legal arms in turn. */
static unsigned nth_arm(unsigned n, unsigned usable, unsigned width) {
    unsigned legal = 0;
    for (unsigned arm = 0; arm < DART_ARMS; arm++)
        legal += is_legal(arm, usable, width);
    n %= legal;
    for (unsigned arm = 0;; arm++)
        if (is_legal(arm, usable, width) && n-- == 0)
            return arm;
}


/* The legal arms only, in rising order: of equals the first is taken. */
static unsigned cheapest(dart_class *class, unsigned usable, unsigned width) {
    unsigned best = DART_ARMS, least = UINT32_MAX;
    for (unsigned first = 0; first <= usable; first++) {
        unsigned most = usable - first < width ? usable - first : width;
        unsigned arm = first < usable ? first * DART_EST_WIDTH_MAX : ROOT_ARM,
                 end = first < usable ? arm + most : arm + 1;
        for (; arm < end; arm++) {
            unsigned cost = atomic_load_explicit(&class->cost[arm], memory_order_relaxed);
            if (cost && cost < least) {
                best = arm;
                least = cost;
            }
        }
    }
    if (best == DART_ARMS) /* nothing is known: the longest lengths */
        best = (usable > width ? usable - width : 0) * DART_EST_WIDTH_MAX + (usable < width ? usable : width) - 1;
    return best;
}


dart_choice dart_choose(dart_class *class, unsigned usable, unsigned width) {
    unsigned turn = dart_count_roughly(&class->turns);
    unsigned every = turn < WARM_UP ? 2 : EXPLORE_EVERY;
    if (usable == 0)
        return choice_of(ROOT_ARM);
    return choice_of(turn % every == 0 ? nth_arm(turn / every, usable, width) : cheapest(class, usable, width));
}


/* What is tried rarely counts more each time: it was measured when the tree was another. */
void dart_chosen_cost(dart_class *class, unsigned arm, unsigned usable, unsigned width, unsigned trips,
                      unsigned probes) {
    unsigned cost = trips * TRIP + probes * PROBE_COST,
             old = atomic_load_explicit(&class->cost[arm], memory_order_relaxed);
    unsigned weight = usable && arm == cheapest(class, usable, width) ? 32 : 4;
    unsigned new = old == 0 ? cost : (uint32_t)(((uint64_t)old * (weight - 1) + cost + weight / 2) / weight);
    atomic_store_explicit(&class->cost[arm], new, memory_order_relaxed);
}


void dart_class_reset(dart_class *class) {
    atomic_store_explicit(&class->turns, 0, memory_order_relaxed);
    for (unsigned arm = 0; arm < DART_ARMS; arm++)
        atomic_store_explicit(&class->cost[arm], 0, memory_order_relaxed);
}
