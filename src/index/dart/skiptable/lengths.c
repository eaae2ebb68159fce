/* The choice of the prefix lengths that the skip table supports: a greedy algorithm on the paths of sampled keys.
 * adjust.c calls it. */
#include "index/dart/skiptable/skiptable.h"

#define CHOSEN_SHARE 50u /* A length is chosen if it saves at least 1/50 of the node READs. */
/* The list is replaced if the new list saves at least 1/25 more node READs, because the replacement costs a traversal
 * of the tree. */
#define CHANGE_SHARE 25u
/* A length of the current list counts as useful if it saves at least 1/200 of the node READs. */
#define USED_SHARE   200u


/* Returns the number of nodes that a descent to the sampled key need not read if the descent starts at an entry of this
 * length. These are the nodes above the first node whose depth is at least `length`. Returns 0 if there is no such
 * node, if it is too deep to be registered under this length, or if the key is too short for this length. */
static unsigned saved_reads(const dart_sample *sample, unsigned length) {
    if (length >= sample->key_length)
        return 0;
    for (unsigned i = 0; i < sample->count; i++)
        if (sample->depths[i] >= length)
            return sample->depths[i] - length <= DART_EST_DELTA_MAX ? i : 0;
    return 0;
}


static unsigned total_gain(const dart_sample *samples, unsigned count, const unsigned *best, unsigned length) {
    unsigned sum = 0;
    for (unsigned i = 0; i < count; i++) {
        unsigned now = saved_reads(&samples[i], length);
        sum += now > best[i] ? now - best[i] : 0;
    }
    return sum;
}


unsigned dart_choose_lengths(const dart_sample *samples, unsigned count, unsigned max, uint8_t lengths[DART_LIST_MAX]) {
    unsigned best[DART_SAMPLES] = {0}, reads = 0, chosen = 0;
    bool taken[DART_EST_PREFIX_MAX + 1] = {false};
    count = count < DART_SAMPLES ? count : DART_SAMPLES;
    for (unsigned i = 0; i < count; i++)
        reads += samples[i].count;
    while (chosen < max && chosen < DART_LIST_MAX) {
        unsigned most = 0, length = 0;
        for (unsigned l = 2; l <= DART_EST_PREFIX_MAX; l++) {
            unsigned now = taken[l] ? 0 : total_gain(samples, count, best, l);
            if (now > most) {
                most = now;
                length = l;
            }
        }
        if (most == 0 || most * CHOSEN_SHARE < reads)
            break;
        taken[length] = true;
        chosen++;
        for (unsigned i = 0; i < count; i++) {
            unsigned now = saved_reads(&samples[i], length);
            best[i] = now > best[i] ? now : best[i];
        }
    }
    unsigned n = 0;
    for (unsigned l = 2; l <= DART_EST_PREFIX_MAX; l++)
        if (taken[l])
            lengths[n++] = (uint8_t)l;
    return n;
}


/* Returns the number of node READs that the given lengths save together when the length with the index `without` is
 * left out (no length is left out if `without` is length_count). */
static unsigned saved_without(const dart_sample *samples, unsigned count, const uint8_t *lengths, unsigned length_count,
                              unsigned without) {
    unsigned sum = 0;
    for (unsigned i = 0; i < count; i++) {
        unsigned best = 0;
        for (unsigned l = 0; l < length_count; l++) {
            unsigned now = l == without ? 0 : saved_reads(&samples[i], lengths[l]);
            best = now > best ? now : best;
        }
        sum += best;
    }
    return sum;
}


bool dart_lengths_are_worth(const dart_sample *samples, unsigned count, const dart_list *now, const uint8_t *lengths,
                            unsigned length_count) {
    unsigned reads = 0, all = now->lookup_count;
    for (unsigned i = 0; i < count; i++)
        reads += samples[i].count;
    unsigned saves = saved_without(samples, count, now->lookup, all, all);
    for (unsigned l = 0; l < all; l++)
        if ((saves - saved_without(samples, count, now->lookup, all, l)) * USED_SHARE < reads)
            return true;
    unsigned would = saved_without(samples, count, lengths, length_count, length_count);
    return would > saves && (would - saves) * CHANGE_SHARE >= reads;
}
