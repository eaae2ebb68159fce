/* The progress detector (progress.h). It is a hash table that contains, for each place in far memory that a retrying
 * task has READ, a hash of the content found at the last READ. */
#include "task/progress.h"
#include "base/error.h"
#include "task/session.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define SEEN_MAX   768u  /* limit of recorded places; a task that has READ more places is making progress */
#define SEEN_SLOTS 1024u /* size of the hash table; must be a power of two */
#define OWN_WORDS  8u    /* number of words that the task has changed itself most recently */
/* A task that has not waited for this share of the bound has made progress, so its next wait is a new one. The second
 * share is for tasks with many waits. */
#define WAITS_APART_SHARE      10u
#define WAITS_APART_SHARE_MANY 20u

/* A word in far memory that this task has changed. When the task later READs its own value `put`, the detector uses the
 * value `found`, which the word had before the change, so that the task's own change does not count as progress. */
typedef struct own_word {
    far_addr addr; /* address of the word; 0: this element is not in use */
    uint64_t found, put;
} own_word;

struct far_progress {
    uint64_t epoch;    /* the epoch of the pin that began the current period */
    /* looked: in the current period the task has READ something; news: one of these READs returned something new */
    bool looked, news;
    unsigned quiet;    /* number of consecutive periods without a new observation */
    far_addr last; /* the address that was READ last, for the error message */
    own_word own[OWN_WORDS];
    unsigned own_next;
    unsigned seen_count;
    struct {
        uint64_t place, content; /* hash of the place, and hash of the content READ there last; place 0: unused */
    } seen[SEEN_SLOTS];
};


void far_progress_reset(far_task *t) {
    free(t->patience);
    t->patience = NULL;
    t->retries = 0;
}


uint64_t far_waits_since(const far_task *t) {
    const uint64_t now = far_now(t) | 1, share = t->many_waits ? WAITS_APART_SHARE_MANY : WAITS_APART_SHARE;
    bool over = t->waits_since == 0 || now > t->waits_until + far_stall_bound(far_task_fabric(t)) / share;
    return over ? now : t->waits_since;
}


void far_note_wait(far_task *t) {
    t->waits_since = far_waits_since(t);
    t->waits_until = far_now(t) | 1;
    t->has_waited = true;
}


void far_note_wait_end(far_task *t) {
    t->waits_until = far_now(t) | 1;
}


void far_count_retry(far_task *t) {
    t->stats->retries++;
    far_note_wait(t);
    if (++t->retries < FAR_PROGRESS_RETRIES || t->patience)
        return;
    /* if memory is short, `patience` stays NULL and the next retry tries again */
    t->patience = calloc(1, sizeof(*t->patience));
    if (t->patience)
        t->patience->epoch = t->pin.epoch;
}


/* Records the hash of the content that was READ at a place. Returns false if the place had the same content at the
 * previous READ, otherwise true. Therefore a word that alternates between two values counts as a change each time. */
static bool record_observation(far_progress *p, uint64_t place, uint64_t content) {
    unsigned at = (unsigned)(place >> 32) % SEEN_SLOTS;
    place |= 1;
    assert(p->seen_count < SEEN_SLOTS); /* the table is never full, so the search for a free element ends */
    while (p->seen[at].place != 0 && p->seen[at].place != place)
        at = (at + 1) % SEEN_SLOTS;
    if (p->seen[at].place == place && p->seen[at].content == content)
        return false;
    p->seen_count += p->seen[at].place == 0;
    p->seen[at].place = place;
    p->seen[at].content = content;
    return true;
}


/* Returns true if the result of the verb says something about progress. Words of the pool itself, for example the epoch
 * and the registry, change all the time. The result of an FAA may have been changed by this task itself, because an
 * attempt may increment a counter by FAA and decrement it again, as writers of a Dolphin leaf do. */
static bool verb_is_evidence(const far_task *t, const far_verb *verb) {
    return verb->kind != FAR_WRITE && verb->kind != FAR_FAA && verb->addr >= t->session->team->own_words;
}


/* Returns the position in the verb's local memory that corresponds to the far word at `addr`, or NULL if the verb does
 * not cover the whole word. */
static char *local_copy_of_word(const far_verb *verb, far_addr addr) {
    bool touches = addr != 0 && addr >= verb->addr && addr + 8 <= verb->addr + verb->length;
    return touches ? (char *)verb->local + (addr - verb->addr) : NULL;
}


/* Returns a hash of the result of a verb. If each attempt of this task takes a lock and releases it in vain, its READs
 * observe the lock alternately as free and as held by the task itself. This must not count as progress. Therefore,
 * words that the task has changed are hashed with the value that they had before the change. The local memory of the
 * verb is restored afterwards. */
static uint64_t hash_without_own_changes(const far_progress *p, const far_verb *verb) {
    char *changed[OWN_WORDS] = {NULL};
    for (unsigned i = 0; i < OWN_WORDS; i++) {
        char *word = local_copy_of_word(verb, p->own[i].addr);
        if (word && memcmp(word, &p->own[i].put, 8) == 0)
            changed[i] = memcpy(word, &p->own[i].found, 8);
    }
    uint64_t hash = XXH3_64bits(verb->local, verb->length);
    for (unsigned i = 0; i < OWN_WORDS; i++)
        if (changed[i])
            memcpy(changed[i], &p->own[i].put, 8);
    return hash;
}


static void record_own_change(far_progress *p, far_addr addr, uint64_t found, uint64_t put) {
    unsigned i = 0;
    while (i < OWN_WORDS && p->own[i].addr != addr)
        i++;
    if (i == OWN_WORDS)
        i = p->own_next++ % OWN_WORDS;
    else if (p->own[i].put == found)
        found = p->own[i].found;
    p->own[i] = (own_word){addr, found, put};
}


/* Records the change that this task's verb has made, in the list of changed words. A WRITE only updates words that are
 * in the list already; usually such a WRITE releases a lock. */
static void track_own_changes(far_progress *p, const far_verb *verb) {
    uint64_t found;
    for (unsigned i = 0; verb->kind == FAR_WRITE && i < OWN_WORDS; i++) {
        const char *word = local_copy_of_word(verb, p->own[i].addr);
        if (word)
            memcpy(&p->own[i].put, word, 8);
    }
    if (verb->kind != FAR_CAS && verb->kind != FAR_MASKED_CAS)
        return;
    memcpy(&found, verb->local, 8);
    uint64_t compared = verb->kind == FAR_CAS ? UINT64_MAX : verb->compare_mask;
    uint64_t swapped = verb->kind == FAR_CAS ? UINT64_MAX : verb->swap_mask;
    if (((found ^ verb->compare) & compared) == 0)
        record_own_change(p, verb->addr, found, (found & ~swapped) | (verb->swap & swapped));
}


void far_progress_observe(far_task *t, const far_batch *batch) {
    far_progress *p = t->patience;
    for (uint32_t i = 0; i < batch->count; i++) {
        const far_verb *verb = &batch->verbs[i];
        if (verb_is_evidence(t, verb)) {
            p->looked = true;
            p->last = verb->addr;
            p->news |= record_observation(p, XXH3_64bits_withSeed(&verb->addr, 8, verb->length),
                                          hash_without_own_changes(p, verb));
        }
        track_own_changes(p, verb);
        if (p->seen_count < SEEN_MAX)
            continue;
        far_progress_reset(t);
        return;
    }
}


int far_progress_check(far_task *t) {
    far_progress *p = t->patience;
    if (p->epoch == 0)
        p->epoch = t->pin.epoch;
    if (t->pin.epoch < p->epoch + 2)
        return 0;
    p->quiet = p->looked && !p->news ? p->quiet + 1 : 0;
    p->epoch = t->pin.epoch;
    p->looked = p->news = false;
    if (p->quiet < FAR_PROGRESS_PERIODS)
        return 0;
    return far_fail(FAR_ERR_CORRUPT,
                    "the object at %#llx, or a word that leads to it, is damaged: no live client is going to change it",
                    (unsigned long long)p->last);
}
