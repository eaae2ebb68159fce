/* The choice of the prefix lengths that a lookup tries first. Each possible choice is called an arm: either some
 * neighbouring lengths of the list (given by the position of the first length and their number), which the lookup tries
 * in one batch, or the root, which means no lookup. For each class of key lengths, each arm has a moving average of its
 * cost in round trips. Usually the cheapest arm is chosen; every 64th time another arm, in turn, to measure its cost.
 * The choice depends only on a counter, and not on a clock or on random numbers. lookup.c calls these functions. */
#include "index/dart/skiptable/skiptable.h"

#define ROOT_ARM        (DART_ARMS - 1)
#define ROUND_TRIP_COST 4096u
/* Assumed cost of one more READ in the batch: an eighth of a round trip. A READ that saves less than that is not worth
 * sending. */
#define PROBE_COST      512u
#define WARM_UP         64u
#define EXPLORE_EVERY   64u


unsigned dart_length_class_of(size_t key_length) {
    if (key_length <= 32)
        return (unsigned)key_length;
    size_t class = 33 + (key_length - 33) / 32;
    return class < DART_LENGTH_CLASSES ? (unsigned)class : DART_LENGTH_CLASSES - 1;
}


static dart_choice arm_choice(unsigned arm) {
    if (arm == ROOT_ARM)
        return (dart_choice){ROOT_ARM, 0, 0};
    return (dart_choice){arm, arm / DART_EST_WIDTH_MAX, arm % DART_EST_WIDTH_MAX + 1};
}


static bool arm_is_legal(unsigned arm, unsigned usable, unsigned width) {
    dart_choice choice = arm_choice(arm);
    return arm == ROOT_ARM || (choice.count <= width && choice.first + choice.count <= usable);
}


/* Returns the n-th legal arm, counted cyclically. An arm is legal if all its lengths are usable (shorter than the key)
 * and it has at most `width` lengths; the root is always legal. */
static unsigned nth_legal_arm(unsigned n, unsigned usable, unsigned width) {
    unsigned legal = 0;
    for (unsigned arm = 0; arm < DART_ARMS; arm++)
        legal += arm_is_legal(arm, usable, width);
    n %= legal;
    for (unsigned arm = 0;; arm++)
        if (arm_is_legal(arm, usable, width) && n-- == 0)
            return arm;
}


/* Returns the legal arm with the least cost. If several arms have the least cost, returns the first one. */
static unsigned cheapest_arm(dart_length_class *class, unsigned usable, unsigned width) {
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
    if (best == DART_ARMS) /* no arm was measured yet, so the arm with the longest lengths is chosen */
        best = (usable > width ? usable - width : 0) * DART_EST_WIDTH_MAX + (usable < width ? usable : width) - 1;
    return best;
}


dart_choice dart_choose_arm(dart_length_class *class, unsigned usable, unsigned width) {
    unsigned turn = dart_count_relaxed(&class->turns);
    unsigned every = turn < WARM_UP ? 2 : EXPLORE_EVERY;
    if (usable == 0)
        return arm_choice(ROOT_ARM);
    return arm_choice(turn % every == 0 ? nth_legal_arm(turn / every, usable, width)
                                        : cheapest_arm(class, usable, width));
}


/* Updates the moving average of an arm. A measurement of an arm other than the cheapest has more weight, because this
 * arm is measured rarely, and the tree may have changed since its last measurement. */
void dart_record_arm_cost(dart_length_class *class, unsigned arm, unsigned usable, unsigned width, unsigned trips,
                          unsigned probes) {
    unsigned cost = trips * ROUND_TRIP_COST + probes * PROBE_COST,
             old = atomic_load_explicit(&class->cost[arm], memory_order_relaxed);
    unsigned weight = usable && arm == cheapest_arm(class, usable, width) ? 32 : 4;
    unsigned new = old == 0 ? cost : (uint32_t)(((uint64_t)old * (weight - 1) + cost + weight / 2) / weight);
    atomic_store_explicit(&class->cost[arm], new, memory_order_relaxed);
}


void dart_length_class_reset(dart_length_class *class) {
    atomic_store_explicit(&class->turns, 0, memory_order_relaxed);
    for (unsigned arm = 0; arm < DART_ARMS; arm++)
        atomic_store_explicit(&class->cost[arm], 0, memory_order_relaxed);
}
