/* The search when every value that was read has one writer. Then the reads of a value only say when it must be current:
 * its writer takes effect before the first of them (and itself) ends, and nothing overwrites it before the last of them
 * starts, when it is "ripe". So reads of values are no steps here, and a key is in one of three phases: absent; present
 * with a ripe value, of which nothing more needs to be known; or locked by an unripe value.
 *
 * What makes it fast, each exact by an argument of exchange:
 * - Ripe writes of one kind are interchangeable: the one that must take effect first goes first.
 * - Reads of absence and presence only need some moment at which the key was so; a ripe put (or update) can be slipped
 * in at any moment at which the key was present and ripe, with no trace. So all these only ask for the last such
 * moment, which a config keeps (FAR_BETTER_*), and take effect without a choice if it is late enough.
 * - A delete and an insert (or put) that leave the phase as it was can wait for the next event, unless a lock comes
 * between: so only what is needed for the ending step is tried, and before a lock what ends under it ("urgent"). */
#include "verify/search.h"

#include <string.h>

enum { PHASE_ABSENT, PHASE_PRESENT, PHASE_LOCKED };
enum {
    WAY_STEP,
    WAY_PUT,
    WAY_CUT,
    WAYS
}; /* to change between absent and present: an insert or delete, a put, a cut write */


static bool has_slot(const far_step *step) {
    return step->kind < FAR_STEP_ABSENT;
}


static void init(far_sweep *sweep, far_config *config) {
    const far_search *search = sweep->search;
    for (int i = FAR_BETTER_ABSENT; i <= FAR_BETTER_UPDATE; i++)
        config->better[i] = FAR_TIME_BEFORE;
    config->state = search->initial == FAR_STATE_ABSENT ? PHASE_ABSENT : PHASE_PRESENT;
    if (config->state == PHASE_PRESENT && search->initial_ripe != FAR_TIME_BEFORE) {
        config->state = PHASE_LOCKED;
        config->lock = search->initial_ripe;
    }
}


static bool is_locking(const far_step *step) {
    return step->ripe > step->end;
}


/* Which last moment a step asks for, and from when on it may lie; -1 if none helps. */
static int need_of(const far_step *step, int64_t *from) {
    *from = step->kind < FAR_STEP_ABSENT ? step->ripe : step->start;
    switch (step->kind) {
    case FAR_STEP_ABSENT:
        return FAR_BETTER_ABSENT;
    case FAR_STEP_PRESENT:
        return FAR_BETTER_PRESENT;
    case FAR_STEP_PUT:
        return is_locking(step) ? -1 : FAR_BETTER_PUT;
    case FAR_STEP_UPDATE:
        return is_locking(step) ? -1 : FAR_BETTER_UPDATE;
    default:
        return -1;
    }
}


/* How many of the rising times are at most t. */
static size_t needs_until(const far_needs *needs, int64_t t) {
    size_t low = 0, high = needs->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (needs->times[middle] <= t)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}


static void start(far_sweep *sweep, size_t index) {
    const far_step *step = &sweep->search->steps[index];
    int64_t from;
    int need = need_of(step, &from);
    if (step->kind < FAR_STEP_ABSENT)
        far_list_insert(sweep, &sweep->open[step->kind], index);
    if (need >= 0) {
        far_needs *needs = &sweep->needs[need];
        size_t at = needs_until(needs, from);
        memmove(&needs->times[at + 1], &needs->times[at], (needs->count++ - at) * sizeof *needs->times);
        needs->times[at] = from;
    }
}


static void close_step(far_sweep *sweep, size_t index) {
    const far_step *step = &sweep->search->steps[index];
    int64_t from;
    int need = need_of(step, &from);
    if (step->kind < FAR_STEP_ABSENT)
        far_list_remove(&sweep->open[step->kind], index);
    if (need >= 0) {
        far_needs *needs = &sweep->needs[need];
        size_t after = needs_until(needs, from);
        memmove(&needs->times[after - 1], &needs->times[after], (needs->count - after) * sizeof *needs->times);
        needs->count--;
    }
}


/* Keeps a config for the next event. Its moments are lowered to what somebody still asks for, so that equals are seen
 * as equal. */
static void emit(far_sweep *sweep, far_config *c) {
    for (int i = FAR_BETTER_ABSENT; i <= FAR_BETTER_UPDATE; i++) {
        bool is_now = i == FAR_BETTER_ABSENT    ? c->state == PHASE_ABSENT
                      : i == FAR_BETTER_PRESENT ? c->state != PHASE_ABSENT
                                                : c->state == PHASE_PRESENT;
        size_t until = is_now ? 0 : needs_until(&sweep->needs[i], c->better[i]);
        c->better[i] = until ? sweep->needs[i].times[until - 1] : FAR_TIME_BEFORE;
    }
    far_sweep_keep(sweep, &sweep->next, c);
}


static far_config *copy_to(far_sweep *sweep, int scratch, const far_config *c) {
    return memcpy(sweep->scratch[scratch], c, sweep->current.stride);
}


static void go_absent(const far_sweep *sweep, far_config *c) {
    c->better[FAR_BETTER_PRESENT] = c->better[FAR_BETTER_PUT] = c->better[FAR_BETTER_UPDATE] = sweep->now;
    c->state = PHASE_ABSENT;
}


static void go_present(const far_sweep *sweep, far_config *c) {
    c->better[FAR_BETTER_ABSENT] = sweep->now;
    c->state = PHASE_PRESENT;
}


/* An unripe write takes effect. If the key was present, others can be slipped in just before it. */
static void go_locked(const far_sweep *sweep, far_config *c, const far_step *step) {
    if (c->state == PHASE_ABSENT)
        c->better[FAR_BETTER_ABSENT] = sweep->now;
    else
        c->better[FAR_BETTER_PUT] = c->better[FAR_BETTER_UPDATE] = sweep->now;
    c->state = PHASE_LOCKED;
    c->lock = step->ripe;
}


/* The n-th ripe step of a kind, by end, that has not taken effect; SIZE_MAX: there is none. */
static size_t ripe_step(const far_sweep *sweep, const far_config *c, far_step_kind kind, size_t n) {
    const far_list *list = &sweep->open[kind];
    for (size_t i = 0; i < list->count; i++) {
        size_t step = list->steps[i];
        if (sweep->search->steps[step].ripe <= sweep->now && !far_config_has(c, sweep->slot[step]) && n-- == 0)
            return step;
    }
    return SIZE_MAX;
}


/* Changes between absent and present in the given way; false if there is nothing to do it with. */
static bool toggle(far_sweep *sweep, far_config *c, int way) {
    bool absent = c->state == PHASE_ABSENT;
    if (way == WAY_CUT) {
        int64_t *left = &c->better[absent ? FAR_BETTER_UPS : FAR_BETTER_DOWNS];
        if (-*left >= (absent ? sweep->ups : sweep->downs))
            return false;
        --*left;
    } else {
        if (way == WAY_PUT && !absent)
            return false;
        far_step_kind kind = way == WAY_PUT ? FAR_STEP_PUT : absent ? FAR_STEP_INSERT : FAR_STEP_DELETE;
        size_t step = ripe_step(sweep, c, kind, 0);
        if (step == SIZE_MAX)
            return false;
        far_config_set(c, sweep->slot[step]);
    }
    if (absent)
        go_present(sweep, c);
    else
        go_absent(sweep, c);
    return true;
}


/* Emits c after one toggle, and after a second by the ending step if `then_back`. */
static void emit_toggled(far_sweep *sweep, const far_config *c, bool then_back) {
    for (int way = 0; way < WAYS; way++) {
        far_config *changed = copy_to(sweep, 1, c);
        if (!toggle(sweep, changed, way))
            continue;
        if (then_back && changed->state == PHASE_ABSENT)
            go_present(sweep, changed);
        else if (then_back)
            go_absent(sweep, changed);
        emit(sweep, changed);
    }
}


/* A read of presence ends, the key is absent: an unripe write may be what it saw. */
static void emit_early_locks(far_sweep *sweep, const far_config *c) {
    static const far_step_kind kinds[] = {FAR_STEP_INSERT, FAR_STEP_PUT};
    for (size_t k = 0; k < 2; k++) {
        const far_list *list = &sweep->open[kinds[k]];
        for (size_t i = 0; i < list->count; i++) {
            const far_step *step = &sweep->search->steps[list->steps[i]];
            if (step->ripe <= sweep->now || far_config_has(c, sweep->slot[list->steps[i]]))
                continue;
            far_config *locked = copy_to(sweep, 1, c);
            far_config_set(locked, sweep->slot[list->steps[i]]);
            go_locked(sweep, locked, step);
            emit(sweep, locked);
        }
    }
}


/* How many steps of a kind can be taken now, and how many of them end before the lock does. */
static size_t count_ripe(const far_sweep *sweep, const far_config *c, far_step_kind kind, int64_t lock,
                         size_t *urgent) {
    size_t count = 0;
    *urgent = 0;
    for (size_t i = 0; i < sweep->open[kind].count; i++) {
        size_t step = sweep->open[kind].steps[i];
        if (sweep->search->steps[step].ripe > sweep->now || far_config_has(c, sweep->slot[step]))
            continue;
        count++;
        *urgent += sweep->search->steps[step].end < lock;
    }
    return count;
}


typedef struct counts {
    size_t inserts, puts, deletes, cut_ups, cut_downs;
} counts;


static void take_ripe(const far_sweep *sweep, far_config *c, far_step_kind kind, size_t count) {
    for (size_t i = 0; i < count; i++)
        far_config_set(c, sweep->slot[ripe_step(sweep, c, kind, 0)]);
}


/* Emits c after the counted changes (in any order that alternates) and the locking step. */
static void emit_locked(far_sweep *sweep, const far_config *c, const far_step *step, const counts *n,
                        bool ends_absent) {
    far_config *locked = copy_to(sweep, 1, c);
    locked->better[FAR_BETTER_UPS] -= (int64_t)n->cut_ups;
    locked->better[FAR_BETTER_DOWNS] -= (int64_t)n->cut_downs;
    if (-locked->better[FAR_BETTER_UPS] > sweep->ups || -locked->better[FAR_BETTER_DOWNS] > sweep->downs)
        return;
    take_ripe(sweep, locked, FAR_STEP_INSERT, n->inserts);
    take_ripe(sweep, locked, FAR_STEP_PUT, n->puts);
    take_ripe(sweep, locked, FAR_STEP_DELETE, n->deletes);
    if (n->inserts + n->puts + n->deletes + n->cut_ups + n->cut_downs >
        0) { /* the key was absent and present at this moment */
        go_absent(sweep, locked);
        go_present(sweep, locked);
        locked->state = ends_absent ? PHASE_ABSENT : PHASE_PRESENT;
    }
    go_locked(sweep, locked, step);
    emit(sweep, locked);
}


/* All that may come before a lock, for one phase to start it from. Changes that are not urgent and cancel each other
 * can wait. */
static void emit_before_lock(far_sweep *sweep, const far_config *c, const far_step *step, bool ends_absent) {
    size_t urgent_inserts, urgent_puts, urgent_deletes;
    size_t inserts = count_ripe(sweep, c, FAR_STEP_INSERT, step->ripe, &urgent_inserts);
    size_t puts = count_ripe(sweep, c, FAR_STEP_PUT, step->ripe, &urgent_puts);
    size_t deletes = count_ripe(sweep, c, FAR_STEP_DELETE, step->ripe, &urgent_deletes);
    int64_t rise = (c->state == PHASE_ABSENT) - (int64_t)ends_absent; /* ups - downs */
    counts n = {0};
    for (n.inserts = urgent_inserts; n.inserts <= inserts; n.inserts++) {
        for (n.puts = 0; n.puts <= puts; n.puts++) {
            for (n.deletes = urgent_deletes; n.deletes <= deletes && !sweep->exhausted; n.deletes++) {
                int64_t surplus = (int64_t)(n.inserts + n.puts) - (int64_t)n.deletes - rise;
                n.cut_ups = surplus < 0 ? (size_t)-surplus : 0;
                n.cut_downs = surplus > 0 ? (size_t)surplus : 0;
                size_t idle_puts = n.puts > urgent_puts ? n.puts - urgent_puts : 0;
                size_t idle_ups = n.inserts - urgent_inserts + idle_puts + n.cut_ups;
                size_t idle_downs = n.deletes - urgent_deletes + n.cut_downs;
                size_t length = n.inserts + n.puts + n.deletes + n.cut_ups + n.cut_downs;
                if (length > 2 && idle_ups && idle_downs)
                    continue;
                emit_locked(sweep, c, step, &n, ends_absent);
                if (length == 0) {
                    n.cut_ups = n.cut_downs = 1;
                    emit_locked(sweep, c, step, &n, ends_absent);
                }
            }
        }
    }
}


static void finish_locking(far_sweep *sweep, const far_config *c, const far_step *step) {
    if (c->state == PHASE_LOCKED)
        return;
    if (step->kind != FAR_STEP_UPDATE)
        emit_before_lock(sweep, c, step, true);
    if (step->kind != FAR_STEP_INSERT)
        emit_before_lock(sweep, c, step, false);
}


/* A put that took no effect yet and cannot be slipped in somewhere. */
static void finish_put(far_sweep *sweep, const far_config *c, bool slips_in) {
    if (c->state == PHASE_PRESENT) {
        emit_toggled(sweep, c, true);
    } else if (c->state == PHASE_ABSENT) {
        far_config *changed = copy_to(sweep, 1, c);
        go_present(sweep, changed);
        emit(sweep, changed);
        changed = copy_to(sweep, 1, c);
        if (!slips_in && toggle(sweep, changed, WAY_STEP))
            emit(sweep, changed);
    }
}


/* All ways in which a step that took no effect yet does so now, at its end. */
static void finish_config(far_sweep *sweep, const far_config *c, const far_step *step) {
    int64_t from;
    int need = need_of(step, &from);
    bool present = c->state == PHASE_PRESENT, absent = c->state == PHASE_ABSENT;
    bool slips_in = need >= 0 && c->better[need] >= from;
    if ((need == FAR_BETTER_ABSENT && absent) || (need == FAR_BETTER_PRESENT && !absent) ||
        (need >= FAR_BETTER_PUT && present))
        slips_in = true;
    if (slips_in)
        emit(sweep, copy_to(sweep, 1, c));
    if (is_locking(step) && step->kind < FAR_STEP_ABSENT) {
        finish_locking(sweep, c, step);
        return;
    }
    switch (step->kind) {
    case FAR_STEP_PUT:
        finish_put(sweep, c, slips_in);
        break;
    case FAR_STEP_INSERT:
    case FAR_STEP_DELETE:
        if (absent == (step->kind == FAR_STEP_INSERT) && c->state != PHASE_LOCKED) {
            far_config *changed = copy_to(sweep, 1, c);
            if (absent)
                go_present(sweep, changed);
            else
                go_absent(sweep, changed);
            emit(sweep, changed);
        } else if (c->state != PHASE_LOCKED) {
            emit_toggled(sweep, c, true);
        }
        break;
    default: /* an update or a read */
        if (!slips_in && c->state != PHASE_LOCKED)
            emit_toggled(sweep, c, false);
        if (!slips_in && step->kind == FAR_STEP_PRESENT)
            emit_early_locks(sweep, c);
        break;
    }
}


static void finish(far_sweep *sweep, size_t index) {
    const far_step *step = &sweep->search->steps[index];
    close_step(sweep, index);
    for (size_t i = 0; i < sweep->current.count && !sweep->exhausted; i++) {
        far_config *c = copy_to(sweep, 0, far_frontier_at(&sweep->current, i));
        if (c->state == FAR_CONFIG_DEAD)
            continue;
        if (c->state == PHASE_LOCKED && c->lock <= sweep->now) {
            c->state = PHASE_PRESENT;
            c->lock = 0;
        }
        if (has_slot(step) && far_config_has(c, sweep->slot[index])) {
            far_config_clear(c, sweep->slot[index]);
            emit(sweep, c);
        } else {
            finish_config(sweep, c, step);
        }
    }
    far_frontier done = sweep->current;
    sweep->current = sweep->next;
    sweep->next = done;
    far_frontier_clear(&sweep->next);
}

const far_engine far_engine_unique = {has_slot, init, start, finish};
