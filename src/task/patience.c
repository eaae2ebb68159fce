/* What a task that retries has seen, and where, as hashes (patience.h). */
#include "task/patience.h"
#include "base/error.h"
#include "task/session.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define SEEN_MAX   768u  /* more than that: it gets on */
#define SEEN_SLOTS 1024u /* a power of two */
#define OWN_WORDS  8u    /* that the task itself changed last */

typedef struct own_word { /* what the task put there stands for what it found there: it is no news to itself */
    far_addr addr;        /* 0: none */
    uint64_t found, put;
} own_word;

struct far_patience {
    uint64_t epoch;    /* of the pin with which the time began ... */
    bool looked, news; /* ... in which it has seen something, something new */
    unsigned quiet;    /* times in a row without anything new */
    struct {
        uint64_t epoch, since, until; /* the epoch that stands; times of pins */
        bool news;                    /* something new was seen since */
    } still;
    far_addr last; /* that it looked at */
    own_word own[OWN_WORDS];
    unsigned own_next;
    unsigned seen_count;
    struct {
        uint64_t place, content; /* what it saw last there; place 0: empty */
    } seen[SEEN_SLOTS];
};


void far_patience_forget(far_task *t) {
    free(t->patience);
    t->patience = NULL;
    t->retries = 0;
}


void far_count_retry(far_task *t) {
    t->stats->retries++;
    if (++t->retries < FAR_PATIENCE_RETRIES || t->patience)
        return;
    t->patience = calloc(1, sizeof(*t->patience)); /* without memory for it: at the next retry */
    if (t->patience)
        t->patience->epoch = t->pin.epoch;
}


/* True: the task did not look at the place before, or found something else there. (Not: something that was never there.
 * Two values that take turns are a change.) */
static bool note(far_patience *p, uint64_t place, uint64_t content) {
    unsigned at = (unsigned)(place >> 32) % SEEN_SLOTS;
    place |= 1;
    assert(p->seen_count < SEEN_SLOTS); /* the search for a free slot ends */
    while (p->seen[at].place != 0 && p->seen[at].place != place)
        at = (at + 1) % SEEN_SLOTS;
    if (p->seen[at].place == place && p->seen[at].content == content)
        return false;
    p->seen_count += p->seen[at].place == 0;
    p->seen[at].place = place;
    p->seen[at].content = content;
    return true;
}


/* The pool's own words, the epoch and the registry among them, change all the time and tell nothing; and what an FAA
 * gives was made by the task's own ones, it may be: each attempt counts itself in and out again. */
static bool counts(const far_task *t, const far_verb *verb) {
    return verb->kind != FAR_WRITE && verb->kind != FAR_FAA && verb->addr >= t->session->team->own_words;
}


/* Where in the verb's local memory that far word is; NULL: the verb does not touch it, or not all of it. */
static char *word_of(const far_verb *verb, far_addr addr) {
    bool touches = addr != 0 && addr >= verb->addr && addr + 8 <= verb->addr + verb->length;
    return touches ? (char *)verb->local + (addr - verb->addr) : NULL;
}


/* A lock that an attempt takes and gives back in vain shows now free and now its own: it is hashed as it was found. Then
 * the verb's memory is as it was. */
static uint64_t hash_of_others(const far_patience *p, const far_verb *verb) {
    char *changed[OWN_WORDS] = {NULL};
    for (unsigned i = 0; i < OWN_WORDS; i++) {
        char *word = word_of(verb, p->own[i].addr);
        if (word && memcmp(word, &p->own[i].put, 8) == 0)
            changed[i] = memcpy(word, &p->own[i].found, 8);
    }
    uint64_t hash = XXH3_64bits(verb->local, verb->length);
    for (unsigned i = 0; i < OWN_WORDS; i++)
        if (changed[i])
            memcpy(changed[i], &p->own[i].put, 8);
    return hash;
}


static void put_own(far_patience *p, far_addr addr, uint64_t found, uint64_t put) {
    unsigned i = 0;
    while (i < OWN_WORDS && p->own[i].addr != addr)
        i++;
    if (i == OWN_WORDS)
        i = p->own_next++ % OWN_WORDS;
    else if (p->own[i].put == found)
        found = p->own[i].found;
    p->own[i] = (own_word){addr, found, put};
}


/* What the verb has changed. A WRITE goes on with a word that the task had changed before, most often a lock that it frees. */
static void see_own(far_patience *p, const far_verb *verb) {
    uint64_t found;
    for (unsigned i = 0; verb->kind == FAR_WRITE && i < OWN_WORDS; i++) {
        const char *word = word_of(verb, p->own[i].addr);
        if (word)
            memcpy(&p->own[i].put, word, 8);
    }
    if (verb->kind != FAR_CAS && verb->kind != FAR_MASKED_CAS)
        return;
    memcpy(&found, verb->local, 8);
    uint64_t compared = verb->kind == FAR_CAS ? UINT64_MAX : verb->compare_mask;
    uint64_t swapped = verb->kind == FAR_CAS ? UINT64_MAX : verb->swap_mask;
    if (((found ^ verb->compare) & compared) == 0)
        put_own(p, verb->addr, found, (found & ~swapped) | (verb->swap & swapped));
}


void far_patience_see(far_task *t, const far_batch *batch) {
    far_patience *p = t->patience;
    for (uint32_t i = 0; i < batch->count; i++) {
        const far_verb *verb = &batch->verbs[i];
        if (counts(t, verb)) {
            p->looked = true;
            p->last = verb->addr;
            bool new = note(p, XXH3_64bits_withSeed(&verb->addr, 8, verb->length), hash_of_others(p, verb));
            p->news |= new;
            p->still.news |= new;
        }
        see_own(p, verb);
        if (p->seen_count < SEEN_MAX)
            continue;
        far_patience_forget(t);
        return;
    }
}


static void note_time(far_patience *p, uint64_t epoch, uint64_t now) {
    if (p->still.epoch != epoch || p->still.news)
        p->still.since = now;
    p->still.epoch = epoch;
    p->still.until = now;
    p->still.news = false;
}


uint64_t far_patience_still(const far_task *t) {
    return t->patience ? t->patience->still.until - t->patience->still.since : 0;
}


int far_patience_renew(far_task *t) {
    far_patience *p = t->patience;
    note_time(p, t->pin.epoch, far_now(t));
    if (p->epoch == 0)
        p->epoch = t->pin.epoch;
    if (t->pin.epoch < p->epoch + 2)
        return 0;
    p->quiet = p->looked && !p->news ? p->quiet + 1 : 0;
    p->epoch = t->pin.epoch;
    p->looked = p->news = false;
    if (p->quiet < FAR_PATIENCE_TIMES)
        return 0;
    return far_fail(FAR_ERR_CORRUPT,
                    "what stands at %#llx, or what leads there, is broken: nobody alive will change it",
                    (unsigned long long)p->last);
}
