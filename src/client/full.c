/* Explains FAR_ERR_NO_MEMORY: measures how much memory of a full pool is free, and adds to the error message why an
 * operation could not use it. */
#include "base/error.h"
#include "client/client.h"
#include "client/op.h"

#include <stdio.h>
#include <string.h>

#define MEASURE_PAUSE_NS 1000000000u /* shortest time in ns between two measurements */
/* the time between two measurements is also at least this multiple of the duration of the last measurement */
#define MEASURE_PAUSE_FACTOR 10u


/* Returns the memory usage of the pool. Measuring takes time, so a handle measures at most once a second, and more
 * seldom if a measurement takes longer. Other calls return the previous result, so a program that continues in a full
 * pool is not slowed down. */
static far_pool_usage measure_full_pool(far_task *t) {
    far_pool *pool = far_task_pool(t);
    uint64_t now = far_host_now(pool->fabric->host);
    far_pool_usage usage = {0};
    pthread_mutex_lock(&pool->lock);
    bool due = now >= pool->next_full_look || pool->full_usage.total == 0;
    if (due)
        /* While this task measures, other operations return the result of the previous measurement. If there is no
         * previous result, they measure, too. */
        pool->next_full_look = UINT64_MAX;
    pthread_mutex_unlock(&pool->lock);
    if (due && far_memory_stat(t, &usage, NULL, NULL) < 0)
        usage = (far_pool_usage){0};
    uint64_t end = far_host_now(pool->fabric->host), pause = MEASURE_PAUSE_FACTOR * (end - now);
    pthread_mutex_lock(&pool->lock);
    if (due)
        pool->next_full_look = end + (pause > MEASURE_PAUSE_NS ? pause : MEASURE_PAUSE_NS);
    if (usage.total)
        pool->full_usage = usage;
    usage = pool->full_usage;
    pthread_mutex_unlock(&pool->lock);
    return usage;
}


/* Adds the memory usage of the pool to the error message of an operation that found the pool full. Messages about
 * missing local memory stay unchanged, because the usage of the pool does not explain them. Returns err. */
int far_describe_full_pool(far_task *t, int err) {
    char words[FAR_MESSAGE_BYTES];
    far_stats *stats = t->stats;
    snprintf(words, sizeof(words), "%s", far_last_error());
    if (strncmp(words, "the pool has no room", strlen("the pool has no room")) != 0)
        return err;
    /* The round trips of the measurement must not count as round trips of the operation. */
    t->stats = &t->session->stats[FAR_STATS_OTHER];
    far_pool_usage usage = measure_full_pool(t);
    t->stats = stats;
    if (usage.total == 0)
        return far_fail(err, "%s", words);
    return far_fail(
        err,
        "%s: %llu of its %llu bytes are free, but in pages that also hold objects in use, of other sizes or other "
        "indexes (a page can serve another size only when it is empty), or reserved by other clients; %llu bytes "
        "are retired and not yet reusable",
        words, (unsigned long long)usage.free, (unsigned long long)usage.total, (unsigned long long)usage.retired);
}
