/* The general search engine. At the end of a step that has not taken effect, it tries every sequence of open steps that
 * ends with this step. Reads take effect as soon as they can, because they change nothing. Of two open writes with the
 * same kind and value, the one that ends first takes effect first, because they are interchangeable. */
#include "verify/search.h"

#include <string.h>


static bool has_slot(const far_step *step) {
    (void)step;
    return true;
}


static void init_config(far_collect *sweep, far_config *config) {
    config->state = sweep->search->initial;
}


static bool step_is_satisfied(const far_step *step, uint64_t state) {
    switch (step->kind) {
    case FAR_STEP_ABSENT:
        return state == FAR_STATE_ABSENT;
    case FAR_STEP_PRESENT:
        return state != FAR_STATE_ABSENT;
    case FAR_STEP_VALUE:
        return state == step->value;
    default:
        return false;
    }
}


static void apply_satisfied_reads(far_collect *sweep, far_config *config) {
    for (size_t i = 0; i < sweep->open[0].count; i++) {
        size_t step = sweep->open[0].steps[i];
        if (step_is_satisfied(&sweep->search->steps[step], config->state))
            far_config_set(config, sweep->slot[step]);
    }
}


static void swap_frontiers(far_collect *sweep) {
    far_frontier f = sweep->current;
    sweep->current = sweep->next;
    sweep->next = f;
    far_frontier_clear(&sweep->next);
}


static void start_step(far_collect *sweep, size_t index) {
    const far_step *step = &sweep->search->steps[index];
    far_list_insert(sweep, &sweep->open[0], index);
    if (step->kind < FAR_STEP_ABSENT)
        return;
    far_config *copy = sweep->scratch[0];
    for (size_t i = 0; i < sweep->current.count; i++) {
        memcpy(copy, far_frontier_at(&sweep->current, i), sweep->current.stride);
        if (copy->state == FAR_CONFIG_REDUNDANT)
            continue;
        if (step_is_satisfied(step, copy->state))
            far_config_set(copy, sweep->slot[index]);
        far_frontier_add(&sweep->next, copy);
    }
    swap_frontiers(sweep);
}


static bool can_apply(const far_step *step, uint64_t state) {
    switch (step->kind) {
    case FAR_STEP_INSERT:
        return state == FAR_STATE_ABSENT;
    case FAR_STEP_PUT:
        return true;
    case FAR_STEP_DELETE:
    case FAR_STEP_UPDATE:
        return state != FAR_STATE_ABSENT;
    default:
        return false;
    }
}


/* Returns true if an interchangeable step (same kind and value) that ends earlier has not taken effect. Then the step
 * at `position` must wait for that step. */
static bool earlier_twin_is_open(const far_collect *sweep, const far_config *config, size_t position) {
    const far_step *steps = sweep->search->steps, *step = &steps[sweep->open[0].steps[position]];
    for (size_t i = 0; i < position; i++) {
        size_t other = sweep->open[0].steps[i];
        if (steps[other].kind == step->kind && steps[other].value == step->value &&
            !far_config_has(config, sweep->slot[other]))
            return true;
    }
    return false;
}


/* Adds a configuration that was derived from another configuration. If the ending step has taken effect in it, it is
 * added to `next`. Otherwise it is added to `closure`, from which it is expanded further. */
static void add_config(far_collect *sweep, far_config *config, uint32_t ending) {
    apply_satisfied_reads(sweep, config);
    if (far_config_has(config, ending)) {
        far_config_clear(config, ending);
        far_sweep_keep(sweep, &sweep->next, config);
    } else {
        far_sweep_keep(sweep, &sweep->closure, config);
    }
}


static void expand_config(far_collect *sweep, size_t position_in_closure, uint32_t ending) {
    far_config *from = sweep->scratch[1], *to = sweep->scratch[2];
    memcpy(from, far_frontier_at(&sweep->closure, position_in_closure), sweep->closure.stride);
    if (from->state == FAR_CONFIG_REDUNDANT)
        return;
    for (size_t i = 0; i < sweep->open[0].count; i++) {
        size_t step = sweep->open[0].steps[i];
        if (!can_apply(&sweep->search->steps[step], from->state) || far_config_has(from, sweep->slot[step]) ||
            earlier_twin_is_open(sweep, from, i))
            continue;
        memcpy(to, from, sweep->closure.stride);
        far_config_set(to, sweep->slot[step]);
        to->state = sweep->search->steps[step].value;
        add_config(sweep, to, ending);
    }
    memcpy(to, from, sweep->closure.stride);
    if (from->state == FAR_STATE_ABSENT && -from->better[FAR_BETTER_UPS] < sweep->ups) {
        to->better[FAR_BETTER_UPS]--;
        to->state = FAR_STATE_UNREAD;
        add_config(sweep, to, ending);
    } else if (from->state != FAR_STATE_ABSENT && -from->better[FAR_BETTER_DOWNS] < sweep->downs) {
        to->better[FAR_BETTER_DOWNS]--;
        to->state = FAR_STATE_ABSENT;
        add_config(sweep, to, ending);
    }
}


static void finish_step(far_collect *sweep, size_t index) {
    uint32_t ending = sweep->slot[index];
    for (size_t i = 0; i < sweep->current.count && !sweep->exhausted; i++) {
        const far_config *config = far_frontier_at(&sweep->current, i);
        if (config->state == FAR_CONFIG_REDUNDANT)
            continue;
        memcpy(sweep->scratch[0], config, sweep->current.stride);
        add_config(sweep, sweep->scratch[0], ending);
    }
    for (size_t i = 0; i < sweep->closure.count && !sweep->exhausted; i++)
        expand_config(sweep, i, ending);
    far_frontier_clear(&sweep->closure);
    far_list_remove(&sweep->open[0], index);
    swap_frontiers(sweep);
}

const far_engine far_engine_any = {has_slot, init_config, start_step, finish_step};
