/* Steering of clients by tests. A test attaches rules to a client: stop, stall or kill it at a certain verb or named
 * point, choose the order of effects in a batch, or hold back an effect or a completion. The posting code calls
 * `sim_steer_before_post` and `sim_steer_posted`, and `far_point` calls `sim_steer_point`. */
#include "base/error.h"
#include "fabric/sim/sim_internal.h"
#include "farindex.h"

#include <stdlib.h>
#include <string.h>

typedef enum { RULE_STOP, RULE_STALL, RULE_KILL, RULE_ORDER, RULE_HOLD } rule_action;

struct sim_rule {
    far_sim_match match;
    rule_action action;
    unsigned seen;
    uint64_t ns;
    uint32_t granules;
    far_sim_hold *hold;
    uint32_t *order;
    size_t count;
    sim_rule *next;
};


/* ---- Rules ---- */

static sim_rule *rule_new(far_sim_client *client, far_sim_match match, rule_action action) {
    sim_rule *rule = sim_allocate(sizeof *rule), **last = &client->rules;
    rule->match = match;
    rule->action = action;
    while (*last)
        last = &(*last)->next;
    *last = rule;
    return rule;
}


static void rule_free(sim_rule *rule) {
    free(rule->order);
    free(rule);
}


static void rules_free(sim_rule **rules) {
    while (*rules) {
        sim_rule *rule = *rules;
        *rules = rule->next;
        rule_free(rule);
    }
}


void sim_rules_free(far_sim_client *client) {
    rules_free(&client->rules);
    rules_free(&client->fired);
}


static bool label_matches(const far_sim_match *match, const char *label) {
    return !match->label || (label && strcmp(match->label, label) == 0);
}


static bool verb_matches(const far_sim_match *match, const far_verb *verb, const char *label) {
    uint64_t length = verb->kind <= FAR_WRITE ? verb->length : 8;
    if (match->point)
        return false;
    if (match->kind == FAR_SIM_ATOMIC ? verb->kind < FAR_CAS
                                      : match->kind && match->kind != (far_sim_kind)(verb->kind + 1))
        return false;
    if (match->to && (verb->addr >= match->to || verb->addr + length <= match->from))
        return false;
    return label_matches(match, label);
}


/* Counts one more verb or point that matches the rule. Returns true if this is the occurrence that the rule waits for.
 */
static bool count_match(sim_rule *rule) {
    return ++rule->seen >= (rule->match.nth ? rule->match.nth : 1);
}


static void move_to_fired(far_sim_client *client, sim_rule **at) {
    sim_rule *rule = *at, **last = &client->fired;
    *at = rule->next;
    rule->next = NULL;
    while (*last)
        last = &(*last)->next;
    *last = rule;
}


/* Applies the rules that have fired, which stop, stall or kill the client. While the client is stopped, tests may add
 * and remove rules. If the client is killed, this function may never return. */
static void apply_fired_rules(far_sim_client *client, const char *where) {
    while (client->fired) {
        sim_rule rule = *client->fired;
        rule_free(client->fired);
        client->fired = rule.next;
        if (sim_is_outside(client) || sim_client_has_failed(client))
            continue; /* code outside of any client, and clients that have failed, cannot be stopped */
        if (rule.action == RULE_STOP) {
            sim_stop_client(client, where);
        } else if (rule.action == RULE_STALL) {
            sim_trace(client->world, SIM_TRACE_STALL, client, where, rule.ns);
            sim_sleep_until(client->world, client->world->now + rule.ns * SIM_PS);
        } else if (rule.action == RULE_KILL) {
            far_sim_kill(&client->node->fabric);
        }
    }
}


void sim_steer_before_post(far_sim_client *client, const far_batch *batch) {
    for (sim_rule **at = &client->rules; *at;) {
        sim_rule *rule = *at;
        bool now = false;
        for (uint32_t i = 0; rule->action <= RULE_STALL && !now && i < batch->count; i++)
            now = verb_matches(&rule->match, &batch->verbs[i], batch->label) && count_match(rule);
        if (now)
            move_to_fired(client, at);
        else
            at = &rule->next;
    }
    apply_fired_rules(client, batch->label ? batch->label : "a verb");
}


void sim_steer_point(far_sim_client *client, const char *name, const char *label) {
    for (sim_rule **at = &client->rules; *at;) {
        sim_rule *rule = *at;
        if (rule->match.point && strcmp(rule->match.point, name) == 0 && label_matches(&rule->match, label) &&
            count_match(rule))
            move_to_fired(client, at);
        else
            at = &rule->next;
    }
    apply_fired_rules(client, name);
}


/* ---- Rules for verbs that are posted ---- */

static bool order_is_possible(const far_sim_world *world, sim_verb *const *verbs, const sim_rule *rule,
                              uint32_t count) {
    uint8_t seen[256] = {0};
    if (rule->count != count || count > sizeof seen)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (rule->order[i] >= count || seen[rule->order[i]]++)
            return false;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = i + 1; j < count; j++) {
            const sim_verb *earlier = verbs[rule->order[i]], *later = verbs[rule->order[j]];
            if (rule->order[i] > rule->order[j] && earlier->node == later->node &&
                sim_classes_are_ordered(world, later->class, earlier->class))
                return false;
        }
    return true;
}


static void apply_order(far_sim_world *world, const sim_rule *rule, sim_verb *first, uint32_t count) {
    sim_verb *verbs[256];
    for (uint32_t i = 0; i < count && i < 256; i++, first = first->next)
        verbs[i] = first;
    if (!order_is_possible(world, verbs, rule, count)) {
        sim_report_error(world, "far_sim_order: this order is not allowed for this batch of %u verbs", count);
        return;
    }
    for (uint32_t i = 1; i < count; i++) {
        verbs[rule->order[i]]->after = verbs[rule->order[i - 1]];
        verbs[rule->order[i]]->after_generation = verbs[rule->order[i - 1]]->generation;
    }
}


static void attach_hold(sim_verb *verb, far_sim_hold *hold) {
    hold->verb = verb;
    hold->generation = verb->generation;
    hold->granules = verb->granules;
    if (hold->completion)
        verb->hold_done = hold;
    else
        verb->hold_effect = hold;
}


void sim_steer_posted(far_sim_client *client, sim_verb *first, uint32_t count) {
    far_sim_world *world = client->world;
    uint64_t kill_verbs = UINT64_MAX;
    uint32_t kill_granules = 0;
    for (sim_rule **at = &client->rules; *at;) {
        sim_rule *rule = *at;
        sim_verb *verb = first;
        uint32_t i = 0;
        if (rule->action <= RULE_STALL)
            i = count;
        while (i < count && !(verb_matches(&rule->match, &verb->verb, verb->label) && count_match(rule))) {
            verb = verb->next;
            i++;
        }
        if (i == count) {
            at = &rule->next;
            continue;
        }
        *at = rule->next;
        if (rule->action == RULE_HOLD) {
            attach_hold(verb, rule->hold);
        } else if (rule->action == RULE_ORDER) {
            apply_order(world, rule, first, count);
        } else if (verb->index - 1 < kill_verbs) {
            kill_verbs = verb->index - 1;
            kill_granules = rule->granules;
        }
        rule_free(rule);
    }
    if (kill_verbs != UINT64_MAX)
        far_sim_kill_exact(client, kill_verbs, kill_granules);
}


/* ---- Functions by which tests add rules ---- */

void far_sim_stop_before(far_sim_client *client, far_sim_match match) {
    rule_new(client, match, RULE_STOP);
}


void far_sim_stall_at(far_sim_client *client, far_sim_match match, uint64_t ns) {
    rule_new(client, match, RULE_STALL)->ns = ns;
}


void far_sim_kill_at(far_sim_client *client, far_sim_match match, uint32_t granules) {
    rule_new(client, match, RULE_KILL)->granules = granules;
}


void far_sim_order(far_sim_client *client, far_sim_match match, const uint32_t *order, size_t count) {
    sim_rule *rule = rule_new(client, match, RULE_ORDER);
    rule->order = sim_allocate((count + 1) * sizeof *order);
    memcpy(rule->order, order, count * sizeof *order);
    rule->count = count;
}


static far_sim_hold *hold_new(far_sim_client *client, far_sim_match match, bool completion) {
    far_sim_hold *hold = sim_allocate(sizeof *hold);
    hold->world = client->world;
    hold->completion = completion;
    hold->next = client->world->holds;
    client->world->holds = hold;
    rule_new(client, match, RULE_HOLD)->hold = hold;
    return hold;
}


far_sim_hold *far_sim_hold_effect(far_sim_client *client, far_sim_match match) {
    return hold_new(client, match, false);
}


far_sim_hold *far_sim_hold_completion(far_sim_client *client, far_sim_match match) {
    return hold_new(client, match, true);
}


void sim_holds_free(far_sim_world *world) {
    while (world->holds) {
        far_sim_hold *hold = world->holds;
        world->holds = hold->next;
        free(hold->released_granules);
        free(hold);
    }
}


/* ---- Holds ---- */

void sim_mark_hold_reached(sim_verb *verb, far_sim_hold *hold) {
    far_sim_world *world = hold->world;
    hold->reached = true;
    verb->client->held++;
    world->hold_client = verb->client;
    world->states_changed = true;
    sim_trace_verb(world, SIM_TRACE_HOLD, verb, hold->completion, 0, 0);
}


bool far_sim_reached(const far_sim_hold *hold) {
    return hold->reached;
}


uint32_t far_sim_hold_units(const far_sim_hold *hold) {
    return hold->granules;
}


/* Returns the verb that the hold holds back now, or NULL if it was not posted yet or has continued. */
static sim_verb *held_verb(const far_sim_hold *hold) {
    sim_verb *verb = hold->verb;
    if (!hold->reached || hold->released || verb->generation != hold->generation)
        return NULL;
    return verb->state == SIM_HELD || verb->state == SIM_DONE_HELD ? verb : NULL;
}


static void end_hold(sim_verb *verb, far_sim_hold *hold) {
    hold->released = true;
    verb->client->held--;
    if (verb->state == SIM_HELD)
        verb->conn->blocked--;
}


static void apply_held_granule(far_sim_hold *hold, sim_verb *verb, uint32_t granule) {
    hold->released_granules[granule] = 1;
    hold->released_count++;
    if (granule < verb->granule_limit && !(verb->class == SIM_CLASS_READ && !verb->verb.local))
        sim_apply_granule(hold->world, verb, granule);
    if (hold->released_count == hold->granules) {
        end_hold(verb, hold);
        sim_finish_effect(hold->world, verb);
    }
}


int far_sim_release_units(far_sim_hold *hold, const uint32_t *granules, size_t count) {
    sim_verb *verb = held_verb(hold);
    if (!verb || hold->completion)
        return far_fail(FAR_ERR_INVALID, "sim: this hold does not hold back an effect now");
    if (!hold->released_granules)
        hold->released_granules = sim_allocate(hold->granules);
    for (size_t i = 0; i < count; i++) {
        if (granules[i] >= hold->granules || hold->released_granules[granules[i]])
            return far_fail(FAR_ERR_INVALID, "sim: granule %u does not exist or was released before", granules[i]);
        if (verb->class == SIM_CLASS_WRITE && granules[i] != hold->released_count)
            return far_fail(FAR_ERR_INVALID,
                            "sim: granules of a WRITE are released in rising order; granule %u is next",
                            hold->released_count);
        if (verb->class == SIM_CLASS_ATOMIC)
            sim_finish_split_atomic(hold->world, verb);
        apply_held_granule(hold, verb, granules[i]);
    }
    return 0;
}


void far_sim_release(far_sim_hold *hold) {
    far_sim_world *world = hold->world;
    sim_verb *verb = held_verb(hold);
    if (!verb) {
        hold->released = true;
        return;
    }
    if (verb->state == SIM_DONE_HELD) {
        end_hold(verb, hold);
        verb->state = SIM_EFFECTIVE;
        sim_push_event(world, world->now, SIM_DONE, verb, verb->generation);
    } else if (hold->released_count) {
        for (uint32_t granule = 0; granule < hold->granules; granule++)
            if (!hold->released_granules[granule])
                apply_held_granule(hold, verb, granule);
    } else {
        end_hold(verb, hold);
        verb->state = SIM_SCHEDULED;
        sim_push_event(world, world->now, SIM_EFFECT, verb, verb->generation);
    }
}


bool sim_client_waits_for_holds(const far_sim_client *client) {
    if (!client->held || client->state != SIM_PARKED || client->woken || client->skipped)
        return false;
    for (const sim_conn *conn = client->world->conns; conn; conn = conn->next) {
        if (conn->client == client && conn->completed)
            return false;
        for (const sim_verb *verb = conn->first; verb; verb = verb->next)
            if (verb->client == client && (verb->state == SIM_SENT || verb->state == SIM_SCHEDULED ||
                                           verb->state == SIM_BEGUN || verb->state == SIM_EFFECTIVE))
                return false;
    }
    return true;
}
