/* A full pool in words: what is free, and why it does not serve. */
#include "base/error.h"
#include "client/client.h"
#include "client/op.h"

#include <stdio.h>
#include <string.h>

#define FULL_LOOK_NS    1000000000u /* between two looks, at least ... */
#define FULL_LOOK_SHARE 10u         /* ... and so many times as long as the last look took */


/* The look takes a while, so it is taken once a second at most, and less often the longer it takes: a program that goes
 * on in a full pool fails as fast as before. */
static far_pool_usage look_at_full(far_task *t) {
    far_pool *pool = far_task_pool(t);
    uint64_t now = far_host_now(pool->fabric->host);
    far_pool_usage usage = {0};
    pthread_mutex_lock(&pool->lock);
    bool due = now >= pool->next_full_look || pool->full_usage.total == 0;
    if (due)
        pool->next_full_look = UINT64_MAX; /* nobody else looks meanwhile, but those who would know nothing else */
    pthread_mutex_unlock(&pool->lock);
    if (due && far_memory_stat(t, &usage, NULL, NULL) < 0)
        usage = (far_pool_usage){0};
    uint64_t end = far_host_now(pool->fabric->host), pause = FULL_LOOK_SHARE * (end - now);
    pthread_mutex_lock(&pool->lock);
    if (due)
        pool->next_full_look = end + (pause > FULL_LOOK_NS ? pause : FULL_LOOK_NS);
    if (usage.total)
        pool->full_usage = usage;
    usage = pool->full_usage;
    pthread_mutex_unlock(&pool->lock);
    return usage;
}


/* What is free, and why it does not serve. Memory of this process that is short has other words. */
int far_tell_full(far_task *t, int err) {
    char words[FAR_MESSAGE_BYTES];
    far_stats *stats = t->stats;
    snprintf(words, sizeof(words), "%s", far_last_error());
    if (strncmp(words, "the pool has no room", strlen("the pool has no room")) != 0)
        return err;
    t->stats = &t->session->stats[FAR_STATS_OTHER]; /* the look is none of the operation's round trips */
    far_pool_usage usage = look_at_full(t);
    t->stats = stats;
    if (usage.total == 0)
        return far_fail(err, "%s", words);
    return far_fail(
        err,
        "%s: %llu of its %llu bytes are free, but in pages that also hold objects in use, of other sizes or "
        "indexes (a page serves another size when it is empty), or held ready by other clients; %llu bytes "
        "are retired",
        words, (unsigned long long)usage.free, (unsigned long long)usage.total, (unsigned long long)usage.retired);
}
