/* Which prefix lengths are worth having: the greedy choice. */
#include "index/dart/est.h"


/* Nodes that a descent need not read when it starts from an entry of this length: those above the first node at least
 * that deep. 0: there is no such node, or the key is too short to ask. */
static unsigned saved(const dart_sample *sample, unsigned length) {
    if (length >= sample->key_length)
        return 0;
    for (unsigned i = 0; i < sample->count; i++)
        if (sample->depths[i] >= length)
            return sample->depths[i] - length <= DART_EST_DELTA_MAX ? i : 0;
    return 0;
}


static unsigned gain(const dart_sample *samples, unsigned count, const unsigned *best, unsigned length) {
    unsigned sum = 0;
    for (unsigned i = 0; i < count; i++) {
        unsigned now = saved(&samples[i], length);
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
            unsigned now = taken[l] ? 0 : gain(samples, count, best, l);
            if (now > most) {
                most = now;
                length = l;
            }
        }
        if (most == 0 || most * 50 < reads)
            break;
        taken[length] = true;
        chosen++;
        for (unsigned i = 0; i < count; i++) {
            unsigned now = saved(&samples[i], length);
            best[i] = now > best[i] ? now : best[i];
        }
    }
    unsigned n = 0;
    for (unsigned l = 2; l <= DART_EST_PREFIX_MAX; l++)
        if (taken[l])
            lengths[n++] = (uint8_t)l;
    return n;
}
