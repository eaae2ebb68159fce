/* The search engine for histories in which each value that was read has one writer. Then the reads of a value only
 * restrict when it is current. Its writer takes effect before the first of these reads ends (and before it ends
 * itself), and no other write overwrites the value before the last of these reads has started. From that moment on the
 * value is called ripe. So reads of values are not steps of their own, and a key is in one of three phases: absent;
 * present with a ripe value, about which nothing else needs to be recorded; or locked by a value that is not ripe.
 *
 * Three simplifications make the search fast. Each is exact, because any linearization can be transformed into one that
 * has the simplified form by exchanging steps:
 * - Ripe writes of one kind are interchangeable, so the one with the earliest end takes effect first.
 * - A read of absence or presence only requires that the key was absent or present at some moment. A ripe put or update
 *   can be inserted at any moment at which the key was present and ripe, without a visible effect. So each of these
 *   steps only requires a late enough moment of that sort. A configuration records the last one (FAR_BETTER_*), and if
 *   it is late enough, the step takes effect without a choice.
 * - A delete and an insert (or put) that together leave the phase unchanged can wait for the next event, unless a lock
 *   comes between. So the engine tries only the steps that the ending step needs, and before a lock also the steps that
 *   end while it lasts (called urgent). */
#include "verify/search.h"

#include <string.h>

enum { PHASE_ABSENT, PHASE_PRESENT, PHASE_LOCKED };
/* The ways in which change_presence makes an absent key present, or a present key absent. WAY_STEP uses an insert or a
 * delete, and WAY_PUT uses a put. WAY_CUT uses an optional write of the lists `ups` and `downs`: a write whose result
 * its client never got, so that the write takes effect once, at any moment after its start, or never (linear.h). */
enum { WAY_STEP, WAY_PUT, WAY_CUT, WAYS };


static bool has_slot(const far_step *step) {
    return step->kind < FAR_STEP_ABSENT;
}


static void init_config(far_collect *sweep, far_config *config) {
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


/* Returns the index in `better` of the recorded moment that the step requires, or -1 if no recorded moment helps.
 * Stores the earliest moment that the step accepts in *from. */
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


/* Returns how many of the rising times in `needs` are at most t. */
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


static void start_step(far_collect *sweep, size_t index) {
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


static void close_step(far_collect *sweep, size_t index) {
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


/* Adds a configuration to `next`. Its recorded moments are first lowered to the latest ones that an open step still
 * requires, so that configurations that differ only in irrelevant moments become equal. */
static void keep_config(far_collect *sweep, far_config *c) {
    for (int i = FAR_BETTER_ABSENT; i <= FAR_BETTER_UPDATE; i++) {
        bool is_now = i == FAR_BETTER_ABSENT    ? c->state == PHASE_ABSENT
                      : i == FAR_BETTER_PRESENT ? c->state != PHASE_ABSENT
                                                : c->state == PHASE_PRESENT;
        size_t until = is_now ? 0 : needs_until(&sweep->needs[i], c->better[i]);
        c->better[i] = until ? sweep->needs[i].times[until - 1] : FAR_TIME_BEFORE;
    }
    far_sweep_keep(sweep, &sweep->next, c);
}


static far_config *copy_to(far_collect *sweep, int scratch, const far_config *c) {
    return memcpy(sweep->scratch[scratch], c, sweep->current.stride);
}


static void become_absent(const far_collect *sweep, far_config *c) {
    c->better[FAR_BETTER_PRESENT] = c->better[FAR_BETTER_PUT] = c->better[FAR_BETTER_UPDATE] = sweep->now;
    c->state = PHASE_ABSENT;
}


static void become_present(const far_collect *sweep, far_config *c) {
    c->better[FAR_BETTER_ABSENT] = sweep->now;
    c->state = PHASE_PRESENT;
}


/* Lets an unripe write take effect, which locks the key until the written value is ripe. If the key was present before,
 * puts and updates can be inserted just before the write. */
static void become_locked(const far_collect *sweep, far_config *c, const far_step *step) {
    if (c->state == PHASE_ABSENT)
        c->better[FAR_BETTER_ABSENT] = sweep->now;
    else
        c->better[FAR_BETTER_PUT] = c->better[FAR_BETTER_UPDATE] = sweep->now;
    c->state = PHASE_LOCKED;
    c->lock = step->ripe;
}


/* Returns the n-th ripe step of a kind, in the order of their ends, that has not taken effect, or SIZE_MAX. */
static size_t ripe_step(const far_collect *sweep, const far_config *c, far_step_kind kind, size_t n) {
    const far_list *list = &sweep->open[kind];
    for (size_t i = 0; i < list->count; i++) {
        size_t step = list->steps[i];
        if (sweep->search->steps[step].ripe <= sweep->now && !far_config_has(c, sweep->slot[step]) && n-- == 0)
            return step;
    }
    return SIZE_MAX;
}


/* Changes the key between absent and present in the given way. Returns false if no step can do so. */
static bool change_presence(far_collect *sweep, far_config *c, int way) {
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
        become_present(sweep, c);
    else
        become_absent(sweep, c);
    return true;
}


/* Adds the configurations that follow c by one change between absent and present. If `then_back`, the ending step
 * changes the key back. */
static void keep_changed(far_collect *sweep, const far_config *c, bool then_back) {
    for (int way = 0; way < WAYS; way++) {
        far_config *changed = copy_to(sweep, 1, c);
        if (!change_presence(sweep, changed, way))
            continue;
        if (then_back && changed->state == PHASE_ABSENT)
            become_present(sweep, changed);
        else if (then_back)
            become_absent(sweep, changed);
        keep_config(sweep, changed);
    }
}


/* Called when a read of presence ends while the key is absent. The read may have observed an unripe write, which takes
 * effect now. */
static void keep_early_locks(far_collect *sweep, const far_config *c) {
    static const far_step_kind kinds[] = {FAR_STEP_INSERT, FAR_STEP_PUT};
    for (size_t k = 0; k < 2; k++) {
        const far_list *list = &sweep->open[kinds[k]];
        for (size_t i = 0; i < list->count; i++) {
            const far_step *step = &sweep->search->steps[list->steps[i]];
            if (step->ripe <= sweep->now || far_config_has(c, sweep->slot[list->steps[i]]))
                continue;
            far_config *locked = copy_to(sweep, 1, c);
            far_config_set(locked, sweep->slot[list->steps[i]]);
            become_locked(sweep, locked, step);
            keep_config(sweep, locked);
        }
    }
}


/* Counts the ripe steps of a kind that can take effect now. *urgent receives the number of those that end before the
 * lock ends. */
static size_t count_ripe(const far_collect *sweep, const far_config *c, far_step_kind kind, int64_t lock,
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


static void apply_ripe_steps(const far_collect *sweep, far_config *c, far_step_kind kind, size_t count) {
    for (size_t i = 0; i < count; i++)
        far_config_set(c, sweep->slot[ripe_step(sweep, c, kind, 0)]);
}


/* Adds the configuration that follows c by the counted changes, in any alternating order, and then the locking step. */
static void keep_locked(far_collect *sweep, const far_config *c, const far_step *step, const counts *n,
                        bool ends_absent) {
    far_config *locked = copy_to(sweep, 1, c);
    locked->better[FAR_BETTER_UPS] -= (int64_t)n->cut_ups;
    locked->better[FAR_BETTER_DOWNS] -= (int64_t)n->cut_downs;
    if (-locked->better[FAR_BETTER_UPS] > sweep->ups || -locked->better[FAR_BETTER_DOWNS] > sweep->downs)
        return;
    apply_ripe_steps(sweep, locked, FAR_STEP_INSERT, n->inserts);
    apply_ripe_steps(sweep, locked, FAR_STEP_PUT, n->puts);
    apply_ripe_steps(sweep, locked, FAR_STEP_DELETE, n->deletes);
    if (n->inserts + n->puts + n->deletes + n->cut_ups + n->cut_downs > 0) {
        /* Between these changes the key was both absent and present at this moment, so both moments are recorded. */
        become_absent(sweep, locked);
        become_present(sweep, locked);
        locked->state = ends_absent ? PHASE_ABSENT : PHASE_PRESENT;
    }
    become_locked(sweep, locked, step);
    keep_config(sweep, locked);
}


/* Adds the configurations for all changes between absent and present that may precede a lock, for one phase (absent or
 * present) from which the lock starts. Two changes that are not urgent and cancel each other are omitted, because they
 * can happen later. */
static void keep_all_before_lock(far_collect *sweep, const far_config *c, const far_step *step, bool ends_absent) {
    size_t urgent_inserts, urgent_puts, urgent_deletes;
    size_t inserts = count_ripe(sweep, c, FAR_STEP_INSERT, step->ripe, &urgent_inserts);
    size_t puts = count_ripe(sweep, c, FAR_STEP_PUT, step->ripe, &urgent_puts);
    size_t deletes = count_ripe(sweep, c, FAR_STEP_DELETE, step->ripe, &urgent_deletes);
    /* number of changes to present minus number of changes to absent */
    int64_t rise = (c->state == PHASE_ABSENT) - (int64_t)ends_absent;
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
                keep_locked(sweep, c, step, &n, ends_absent);
                if (length == 0) {
                    n.cut_ups = n.cut_downs = 1;
                    keep_locked(sweep, c, step, &n, ends_absent);
                }
            }
        }
    }
}


static void finish_locking(far_collect *sweep, const far_config *c, const far_step *step) {
    if (c->state == PHASE_LOCKED)
        return;
    if (step->kind != FAR_STEP_UPDATE)
        keep_all_before_lock(sweep, c, step, true);
    if (step->kind != FAR_STEP_INSERT)
        keep_all_before_lock(sweep, c, step, false);
}


/* Handles the end of a put that has not taken effect. `takes_past_moment` means that the put may take effect at a
 * moment that c has recorded. */
static void finish_put(far_collect *sweep, const far_config *c, bool takes_past_moment) {
    if (c->state == PHASE_PRESENT) {
        keep_changed(sweep, c, true);
    } else if (c->state == PHASE_ABSENT) {
        far_config *changed = copy_to(sweep, 1, c);
        become_present(sweep, changed);
        keep_config(sweep, changed);
        changed = copy_to(sweep, 1, c);
        if (!takes_past_moment && change_presence(sweep, changed, WAY_STEP))
            keep_config(sweep, changed);
    }
}


/* Called at the end of a step that has not taken effect in c. Adds all configurations in which the step takes effect
 * now. */
static void finish_config(far_collect *sweep, const far_config *c, const far_step *step) {
    int64_t from;
    int need = need_of(step, &from);
    bool present = c->state == PHASE_PRESENT, absent = c->state == PHASE_ABSENT;
    bool takes_past_moment = need >= 0 && c->better[need] >= from;
    if ((need == FAR_BETTER_ABSENT && absent) || (need == FAR_BETTER_PRESENT && !absent) ||
        (need >= FAR_BETTER_PUT && present))
        takes_past_moment = true;
    if (takes_past_moment)
        keep_config(sweep, copy_to(sweep, 1, c));
    if (is_locking(step) && step->kind < FAR_STEP_ABSENT) {
        finish_locking(sweep, c, step);
        return;
    }
    switch (step->kind) {
    case FAR_STEP_PUT:
        finish_put(sweep, c, takes_past_moment);
        break;
    case FAR_STEP_INSERT:
    case FAR_STEP_DELETE:
        if (absent == (step->kind == FAR_STEP_INSERT) && c->state != PHASE_LOCKED) {
            far_config *changed = copy_to(sweep, 1, c);
            if (absent)
                become_present(sweep, changed);
            else
                become_absent(sweep, changed);
            keep_config(sweep, changed);
        } else if (c->state != PHASE_LOCKED) {
            keep_changed(sweep, c, true);
        }
        break;
    default: /* an update or a read */
        if (!takes_past_moment && c->state != PHASE_LOCKED)
            keep_changed(sweep, c, false);
        if (!takes_past_moment && step->kind == FAR_STEP_PRESENT)
            keep_early_locks(sweep, c);
        break;
    }
}


static void finish_step(far_collect *sweep, size_t index) {
    const far_step *step = &sweep->search->steps[index];
    close_step(sweep, index);
    for (size_t i = 0; i < sweep->current.count && !sweep->exhausted; i++) {
        far_config *c = copy_to(sweep, 0, far_frontier_at(&sweep->current, i));
        if (c->state == FAR_CONFIG_REDUNDANT)
            continue;
        if (c->state == PHASE_LOCKED && c->lock <= sweep->now) {
            c->state = PHASE_PRESENT;
            c->lock = 0;
        }
        if (has_slot(step) && far_config_has(c, sweep->slot[index])) {
            far_config_clear(c, sweep->slot[index]);
            keep_config(sweep, c);
        } else {
            finish_config(sweep, c, step);
        }
    }
    far_frontier done = sweep->current;
    sweep->current = sweep->next;
    sweep->next = done;
    far_frontier_clear(&sweep->next);
}

const far_engine far_engine_unique = {has_slot, init_config, start_step, finish_step};
