/* The end of a session: everything it holds goes back to the pool, or to the handle's own session, which waits for it.
 */
#include "pool/memory.h"
#include "pool/sweep.h"

/* How long the last session of a handle waits for the epoch to move on; and for what is not back when so many have
 * passed: a sweep whose owner died holds it. */
#define CLOSE_ROUNDS 3072
#define CLOSE_EPOCHS 64
#define CLOSE_SWEPT  65536 /* rounds for a sweep that goes on; it may be waiting for others that sleep */
#define CLOSE_QUICK  64    /* of these at short intervals; others may not get to run for long */


/* What must still wait goes to the handle's own session. */
static int hand_over(far_task *t, far_memory *heir) {
    far_memory *m = far_memory_of(t);
    for (;;) {
        far_retired item;
        pthread_mutex_lock(&m->lock);
        bool any = far_queue_take(&m->retired, &item) || far_queue_take(&m->late, &item);
        if (any) { /* both locks: whoever closes the index makes us forget it first, then the heir */
            pthread_mutex_lock(&heir->lock);
            far_class *from = item.class, *class = far_class_get(heir, from->uid, from->type, from->size, from->stable);
            bool put = true;
            if (class != NULL) {
                if (class->info == NULL)
                    class->info = from->info;
                if (class->index == NULL)
                    class->index = from->index;
                item.class = class;
                put = far_put_retired(heir, item);
            }
            pthread_mutex_unlock(&heir->lock);
            if (!put)
                far_gives_add(&m->pending, from, item.addr);
        }
        pthread_mutex_unlock(&m->lock);
        if (!any)
            break;
    }
    m->retired_bytes = 0;
    return far_give_pending(t);
}


static int drops_tick(far_task *t) {
    far_memory_enter(t);
    int err = far_drops_tick(t);
    far_memory_leave(t);
    return err;
}


/* 1: a live client sweeps, and will let go of what it covers. */
static int is_being_swept(far_task *t) {
    uint64_t word;
    int err = far_read_word(t, far_addr_make(0, FAR_SUPER_SWEEP), &word);
    if (err < 0 || far_sweep_owner(word) == 0)
        return err;
    int dead = far_is_dead(t, far_sweep_owner(word), far_sweep_generation(word));
    return dead < 0 ? dead : !dead;
}


/* The last one waits, but not for ever beside a pin that stays, or a sweep: what is left then, a sweep finds. */
static int wait_for_retired(far_task *t) {
    far_memory *m = far_memory_of(t);
    uint64_t first = far_epoch_known(t), epoch = first;
    int err = 0, swept = 1; /* one may have ended just now: as many epochs again to hear of that */
    for (unsigned round = 0, all = 0; round < CLOSE_ROUNDS && err >= 0; round++, all++) {
        if (far_epoch_known(t) != epoch)
            round = 0;
        epoch = far_epoch_known(t);
        if (epoch - first >= CLOSE_EPOCHS) {
            int before = swept;
            err = swept = is_being_swept(t);
            if (swept + before <= 0 || all >= CLOSE_SWEPT)
                break;
            first = epoch;
        }
        pthread_mutex_lock(&m->lock);
        bool waits = m->retired.count > 0 || m->late.count > 0 || far_drops_are_due(m) || far_some_are_away(m);
        pthread_mutex_unlock(&m->lock);
        if (!waits)
            break;
        far_pin_drop(t);
        far_epoch_request(far_task_pool(t));
        err = far_epoch_tick(t);
        if (err >= 0)
            far_sleep(t, far_housekeeping_tick(far_task_pool(t)) /
                             (round < CLOSE_QUICK ? 8 : 1)); /* others move on with their ticks */
        if (err >= 0)
            err = far_pin_take(t);
        far_point(t, "memory:wait");
        if (err >= 0)
            err = far_reclaim(t);
        if (err >= 0)
            err = drops_tick(t);
    }
    return err < 0 ? err : 0;
}


/* Which indexes are gone is found under the pin that is held until the blocks are nobody's: who drops one later, cleans
 * up later. And only then the heir is told: it looks at blocks that are nobody's. */
static int give_all_back(far_task *t) {
    far_memory *m = far_memory_of(t);
    far_session *own = far_task_pool(t)->own;
    far_memory *heir = own != NULL && own != t->session ? own->memory : NULL;
    int err = far_keep_close(t);
    if (err == 0)
        err = far_reclaim(t);
    if (err == 0)
        err = drops_tick(t);
    if (err == 0)
        err = heir != NULL ? hand_over(t, heir) : wait_for_retired(t);
    if (err == 0) {
        far_memory_enter(t);
        far_point(t, "memory:leave");
        err = far_memory_leave_blocks(t, true);
        if (err == 0)
            err = far_give_foreign(t, true);
        far_memory_leave(t);
    }
    if (heir != NULL)
        far_drops_hand_over(m, heir);
    return err < 0 ? err : far_give_pending(t);
}


int far_memory_close(far_task *t) {
    if (t->session->memory == NULL)
        return 0;
    t->session->memory->helping = t->session->memory->closing = true;
    int err = t->session->lost;
    if (err == 0)
        err = far_pin_take(t);
    if (err == 0)
        err = give_all_back(t);
    far_pin_drop(t);
    far_memory_free(t->session);
    return err;
}
