/* The driver of the search for an order of the operations on one key. It visits the starts and ends of the steps in the
 * order of time, calls one of the two engines for each, and repeats the search with a wider frontier if necessary. */
#include "verify/search.h"

#include "verify/memory.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_WIDTH 64
#define WIDER       8

typedef struct event {
    int64_t time;
    size_t step;
    bool is_end;
} event;


/* Orders events by time. At the same time, starts precede ends, so that two operations count as concurrent if one ends
 * at the time when the other starts. */
static int compare_events(const void *a, const void *b) {
    const event *x = a, *y = b;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    if (x->is_end != y->is_end)
        return x->is_end ? 1 : -1;
    return (x->step > y->step) - (x->step < y->step);
}


static event *sort_events(const far_search *search, size_t *count) {
    event *events = far_verify_alloc(2 * search->count * sizeof *events);
    *count = 0;
    for (size_t i = 0; i < search->count; i++) {
        events[(*count)++] = (event){search->steps[i].start, i, false};
        if (search->steps[i].end != FAR_HISTORY_NEVER)
            events[(*count)++] = (event){search->steps[i].end, i, true};
    }
    qsort(events, *count, sizeof *events, compare_events);
    return events;
}


static size_t count_slots(const far_search *search, const far_engine *engine, const event *events, size_t count) {
    size_t open = 0, most = 0;
    for (size_t e = 0; e < count; e++) {
        if (!engine->has_slot(&search->steps[events[e].step]))
            continue;
        open = events[e].is_end ? open - 1 : open + 1;
        most = open > most ? open : most;
    }
    return most;
}


static bool ends_before(const far_search *search, size_t a, size_t b) {
    int64_t x = search->steps[a].end, y = search->steps[b].end;
    return x != y ? x < y : a < b;
}


void far_list_insert(far_collect *sweep, far_list *list, size_t step) {
    size_t at = list->count++;
    for (; at > 0 && ends_before(sweep->search, step, list->steps[at - 1]); at--)
        list->steps[at] = list->steps[at - 1];
    list->steps[at] = step;
}


void far_list_remove(far_list *list, size_t step) {
    size_t at = 0;
    while (list->steps[at] != step)
        at++;
    memmove(&list->steps[at], &list->steps[at + 1], (--list->count - at) * sizeof *list->steps);
}


bool far_sweep_keep(far_collect *sweep, far_frontier *frontier, const far_config *config) {
    if (sweep->exhausted || !far_frontier_add(frontier, config))
        return false;
    if (++sweep->search->states >= sweep->search->budget)
        sweep->exhausted = true;
    return true;
}


static void sweep_init(far_collect *sweep, far_search *search, const far_engine *engine, const event *events,
                       size_t count) {
    size_t slots = count_slots(search, engine, events, count), most_open = 0, open = 0;
    for (size_t e = 0; e < count; e++) {
        open = events[e].is_end ? open - 1 : open + 1;
        most_open = open > most_open ? open : most_open;
    }
    *sweep = (far_collect){.search = search, .words = slots / 64 + 1};
    far_frontier_init(&sweep->current, sweep->words);
    far_frontier_init(&sweep->next, sweep->words);
    far_frontier_init(&sweep->closure, sweep->words);
    sweep->slot = far_verify_alloc(search->count * sizeof *sweep->slot);
    sweep->free_slots = far_verify_alloc(slots * sizeof *sweep->free_slots);
    for (size_t i = 0; i <= FAR_STEP_VALUE; i++)
        sweep->open[i].steps = far_verify_alloc(most_open * sizeof(size_t));
    for (size_t i = 0; i < 4; i++) {
        sweep->needs[i].times = far_verify_alloc(most_open * sizeof(int64_t));
        sweep->scratch[i] = far_verify_alloc(sweep->current.stride);
    }
    sweep->free_count = slots;
    for (size_t i = 0; i < slots; i++)
        sweep->free_slots[i] = (uint32_t)(slots - 1 - i);
}


static void sweep_free(far_collect *sweep) {
    far_frontier_free(&sweep->current);
    far_frontier_free(&sweep->next);
    far_frontier_free(&sweep->closure);
    free(sweep->slot);
    free(sweep->free_slots);
    for (size_t i = 0; i <= FAR_STEP_VALUE; i++)
        free(sweep->open[i].steps);
    for (size_t i = 0; i < 4; i++) {
        free(sweep->needs[i].times);
        free(sweep->scratch[i]);
    }
}


/* Handles one event (the start or end of a step). Returns false if no configuration is left, that is, if no
 * linearization exists within this width. */
static bool handle_event(far_collect *sweep, const far_engine *engine, const event *e) {
    far_search *search = sweep->search;
    bool has_slot = engine->has_slot(&search->steps[e->step]);
    sweep->now = e->time;
    while ((size_t)sweep->ups < search->up_count && search->ups[sweep->ups] <= e->time)
        sweep->ups++;
    while ((size_t)sweep->downs < search->down_count && search->downs[sweep->downs] <= e->time)
        sweep->downs++;
    if (!e->is_end) {
        if (has_slot)
            sweep->slot[e->step] = sweep->free_slots[--sweep->free_count];
        engine->start(sweep, e->step);
        return true;
    }
    engine->finish(sweep, e->step);
    if (has_slot)
        sweep->free_slots[sweep->free_count++] = sweep->slot[e->step];
    if (sweep->current.count > sweep->width) {
        far_frontier_cut(&sweep->current, sweep->width);
        sweep->was_cut = true;
    }
    return sweep->current.count > 0;
}


far_linear_verdict far_search_run(far_search *search, const far_engine *engine) {
    size_t count;
    event *events = sort_events(search, &count);
    far_linear_verdict verdict = FAR_LINEAR_GAVE_UP;
    bool exhausted = false;
    for (size_t width = FIRST_WIDTH; verdict == FAR_LINEAR_GAVE_UP && !exhausted; width *= WIDER) {
        far_collect sweep;
        sweep_init(&sweep, search, engine, events, count);
        sweep.width = width;
        memset(sweep.scratch[0], 0, sweep.current.stride);
        engine->init(&sweep, sweep.scratch[0]);
        far_frontier_add(&sweep.current, sweep.scratch[0]);
        bool alive = true;
        for (size_t e = 0; e < count && alive && !sweep.exhausted; e++)
            alive = handle_event(&sweep, engine, &events[e]);
        exhausted = sweep.exhausted;
        if (!exhausted && alive)
            verdict = FAR_LINEAR_OK;
        else if (!exhausted && !sweep.was_cut)
            verdict = FAR_LINEAR_VIOLATION;
        sweep_free(&sweep);
    }
    free(events);
    return verdict;
}
