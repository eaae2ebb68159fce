/* Error messages of submitted operations that failed (failures.h), as a linked list that begins with the newest
 * message. */
#include "client/failures.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define FAILURES_MAX 1024u /* number of messages that are stored; the next one replaces the oldest */

struct far_failure {
    const far_op *op; /* used as a key only, because the user may have freed a reaped operation */
    far_failure *older, *newer;
    char words[];
};


void far_failures_open(far_failures *failures) {
    pthread_mutex_init(&failures->lock, NULL);
    failures->newest = failures->oldest = NULL;
    failures->count = 0;
}


/* Removes the message from the list and frees it. The caller holds the lock. */
static void remove_failure(far_failures *failures, far_failure *f) {
    *(f->older ? &f->older->newer : &failures->oldest) = f->newer;
    *(f->newer ? &f->newer->older : &failures->newest) = f->older;
    assert(failures->count > 0);
    failures->count--;
    free(f);
}


void far_failures_close(far_failures *failures) {
    while (failures->newest)
        remove_failure(failures, failures->newest);
    pthread_mutex_destroy(&failures->lock);
}


/* Returns the message of the operation, or NULL. The caller holds the lock. */
static far_failure *find_failure(const far_failures *failures, const far_op *op) {
    far_failure *f = failures->newest;
    while (f && f->op != op)
        f = f->older;
    return f;
}


void far_failures_add(far_failures *failures, const far_op *op, const char *words) {
    far_failure *f = malloc(sizeof(*f) + strlen(words) + 1);
    if (!f)
        return;
    strcpy(f->words, words);
    f->op = op;
    f->newer = NULL;
    pthread_mutex_lock(&failures->lock);
    if (failures->count == FAILURES_MAX)
        remove_failure(failures, failures->oldest);
    f->older = failures->newest;
    *(f->older ? &f->older->newer : &failures->oldest) = f;
    failures->newest = f;
    failures->count++;
    pthread_mutex_unlock(&failures->lock);
}


void far_failures_remove(far_failures *failures, const far_op *op) {
    if (failures->count == 0)
        return;
    pthread_mutex_lock(&failures->lock);
    far_failure *f = find_failure(failures, op);
    if (f)
        remove_failure(failures, f);
    pthread_mutex_unlock(&failures->lock);
}


const char *far_failures_find(far_failures *failures, const far_op *op) {
    pthread_mutex_lock(&failures->lock);
    const far_failure *f = find_failure(failures, op);
    pthread_mutex_unlock(&failures->lock);
    return f ? f->words : "";
}
