/* The plain search: at the end of a step that has not taken effect, every sequence of open steps that ends with it is
 * tried. Reads take effect as soon as they can, for they change nothing. Two open writes of one kind and value are
 * interchangeable: the one that ends first goes first. */
#include "verify/search.h"

#include <string.h>


static bool has_slot(const far_step *step) {
    (void)step;
    return true;
}


static void init(far_sweep *sweep, far_config *config) {
    config->state = sweep->search->initial;
}


static bool sees(const far_step *step, uint64_t state) {
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


static void read_all(far_sweep *sweep, far_config *config) {
    for (size_t i = 0; i < sweep->open[0].count; i++) {
        size_t step = sweep->open[0].steps[i];
        if (sees(&sweep->search->steps[step], config->state))
            far_config_set(config, sweep->slot[step]);
    }
}


static void swap(far_sweep *sweep) {
    far_frontier f = sweep->current;
    sweep->current = sweep->next;
    sweep->next = f;
    far_frontier_clear(&sweep->next);
}


static void start(far_sweep *sweep, size_t index) {
    const far_step *step = &sweep->search->steps[index];
    far_list_insert(sweep, &sweep->open[0], index);
    if (step->kind < FAR_STEP_ABSENT)
        return;
    far_config *copy = sweep->scratch[0];
    for (size_t i = 0; i < sweep->current.count; i++) {
        memcpy(copy, far_frontier_at(&sweep->current, i), sweep->current.stride);
        if (copy->state == FAR_CONFIG_DEAD)
            continue;
        if (sees(step, copy->state))
            far_config_set(copy, sweep->slot[index]);
        far_frontier_add(&sweep->next, copy);
    }
    swap(sweep);
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


/* An interchangeable step that ends earlier has not been taken: this one must wait. */
static bool has_better_twin(const far_sweep *sweep, const far_config *config, size_t position) {
    const far_step *steps = sweep->search->steps, *step = &steps[sweep->open[0].steps[position]];
    for (size_t i = 0; i < position; i++) {
        size_t other = sweep->open[0].steps[i];
        if (steps[other].kind == step->kind && steps[other].value == step->value &&
            !far_config_has(config, sweep->slot[other]))
            return true;
    }
    return false;
}


/* Takes in a config that followed another at this moment: to next if the ending step has taken effect, else to the
 * closure. */
static void take_in(far_sweep *sweep, far_config *config, uint32_t ending) {
    read_all(sweep, config);
    if (far_config_has(config, ending)) {
        far_config_clear(config, ending);
        far_sweep_keep(sweep, &sweep->next, config);
    } else {
        far_sweep_keep(sweep, &sweep->closure, config);
    }
}


static void expand(far_sweep *sweep, size_t position_in_closure, uint32_t ending) {
    far_config *from = sweep->scratch[1], *to = sweep->scratch[2];
    memcpy(from, far_frontier_at(&sweep->closure, position_in_closure), sweep->closure.stride);
    if (from->state == FAR_CONFIG_DEAD)
        return;
    for (size_t i = 0; i < sweep->open[0].count; i++) {
        size_t step = sweep->open[0].steps[i];
        if (!can_apply(&sweep->search->steps[step], from->state) || far_config_has(from, sweep->slot[step]) ||
            has_better_twin(sweep, from, i))
            continue;
        memcpy(to, from, sweep->closure.stride);
        far_config_set(to, sweep->slot[step]);
        to->state = sweep->search->steps[step].value;
        take_in(sweep, to, ending);
    }
    memcpy(to, from, sweep->closure.stride);
    if (from->state == FAR_STATE_ABSENT && -from->better[FAR_BETTER_UPS] < sweep->ups) {
        to->better[FAR_BETTER_UPS]--;
        to->state = FAR_STATE_UNREAD;
        take_in(sweep, to, ending);
    } else if (from->state != FAR_STATE_ABSENT && -from->better[FAR_BETTER_DOWNS] < sweep->downs) {
        to->better[FAR_BETTER_DOWNS]--;
        to->state = FAR_STATE_ABSENT;
        take_in(sweep, to, ending);
    }
}


static void finish(far_sweep *sweep, size_t index) {
    uint32_t ending = sweep->slot[index];
    for (size_t i = 0; i < sweep->current.count && !sweep->exhausted; i++) {
        const far_config *config = far_frontier_at(&sweep->current, i);
        if (config->state == FAR_CONFIG_DEAD)
            continue;
        memcpy(sweep->scratch[0], config, sweep->current.stride);
        take_in(sweep, sweep->scratch[0], ending);
    }
    for (size_t i = 0; i < sweep->closure.count && !sweep->exhausted; i++)
        expand(sweep, i, ending);
    far_frontier_clear(&sweep->closure);
    far_list_remove(&sweep->open[0], index);
    swap(sweep);
}

const far_engine far_engine_any = {has_slot, init, start, finish};
