/* Steering by hand: what a test asked to happen at a certain verb or point of a client. */
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
    uint32_t units;
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


static bool label_fits(const far_sim_match *match, const char *label) {
    return !match->label || (label && strcmp(match->label, label) == 0);
}


static bool verb_fits(const far_sim_match *match, const far_verb *verb, const char *label) {
    uint64_t length = verb->kind <= FAR_WRITE ? verb->length : 8;
    if (match->point)
        return false;
    if (match->kind == FAR_SIM_ATOMIC ? verb->kind < FAR_CAS
                                      : match->kind && match->kind != (far_sim_kind)(verb->kind + 1))
        return false;
    if (match->to && (verb->addr >= match->to || verb->addr + length <= match->from))
        return false;
    return label_fits(match, label);
}


/* Counts one more verb or point that fits the rule. True: it is the one that the rule waits for. */
static bool rule_counts(sim_rule *rule) {
    return ++rule->seen >= (rule->match.nth ? rule->match.nth : 1);
}


static void rule_fires(far_sim_client *client, sim_rule **at) {
    sim_rule *rule = *at, **last = &client->fired;
    *at = rule->next;
    rule->next = NULL;
    while (*last)
        last = &(*last)->next;
    *last = rule;
}


/* Does what the fired rules say: stops, stalls or kills the client. Meanwhile rules may be added and removed, and a client that
 * is killed may not come back here. */
static void fire(far_sim_client *client, const char *where) {
    while (client->fired) {
        sim_rule rule = *client->fired;
        rule_free(client->fired);
        client->fired = rule.next;
        if (sim_is_outside(client) || sim_client_dead(client))
            continue; /* neither the outside nor the dead can be stopped */
        if (rule.action == RULE_STOP) {
            sim_stop(client, where);
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
            now = verb_fits(&rule->match, &batch->verbs[i], batch->label) && rule_counts(rule);
        if (now)
            rule_fires(client, at);
        else
            at = &rule->next;
    }
    fire(client, batch->label ? batch->label : "a verb");
}


void sim_steer_point(far_sim_client *client, const char *name, const char *label) {
    for (sim_rule **at = &client->rules; *at;) {
        sim_rule *rule = *at;
        if (rule->match.point && strcmp(rule->match.point, name) == 0 && label_fits(&rule->match, label) &&
            rule_counts(rule))
            rule_fires(client, at);
        else
            at = &rule->next;
    }
    fire(client, name);
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
                sim_ordered(world, later->class, earlier->class))
                return false;
        }
    return true;
}


static void apply_order(far_sim_world *world, const sim_rule *rule, sim_verb *first, uint32_t count) {
    sim_verb *verbs[256];
    for (uint32_t i = 0; i < count && i < 256; i++, first = first->next)
        verbs[i] = first;
    if (!order_is_possible(world, verbs, rule, count)) {
        sim_error(world, "far_sim_order: the order given is not one that a batch of %u verbs can take", count);
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
    hold->units = verb->units;
    if (hold->completion)
        verb->hold_done = hold;
    else
        verb->hold_effect = hold;
}


void sim_steer_posted(far_sim_client *client, sim_verb *first, uint32_t count) {
    far_sim_world *world = client->world;
    uint64_t kill_verbs = UINT64_MAX;
    uint32_t kill_units = 0;
    for (sim_rule **at = &client->rules; *at;) {
        sim_rule *rule = *at;
        sim_verb *verb = first;
        uint32_t i = 0;
        if (rule->action <= RULE_STALL)
            i = count;
        while (i < count && !(verb_fits(&rule->match, &verb->verb, verb->label) && rule_counts(rule))) {
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
            kill_units = rule->units;
        }
        rule_free(rule);
    }
    if (kill_verbs != UINT64_MAX)
        far_sim_kill_exact(client, kill_verbs, kill_units);
}


/* ---- Asking ---- */

void far_sim_stop_before(far_sim_client *client, far_sim_match match) {
    rule_new(client, match, RULE_STOP);
}


void far_sim_stall_at(far_sim_client *client, far_sim_match match, uint64_t ns) {
    rule_new(client, match, RULE_STALL)->ns = ns;
}


void far_sim_kill_at(far_sim_client *client, far_sim_match match, uint32_t units) {
    rule_new(client, match, RULE_KILL)->units = units;
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
        free(hold->given);
        free(hold);
    }
}


/* ---- Holds ---- */

void sim_hold_reach(sim_verb *verb, far_sim_hold *hold) {
    far_sim_world *world = hold->world;
    hold->reached = true;
    verb->client->held++;
    world->hold_client = verb->client;
    world->summary_due = true;
    sim_trace_verb(world, SIM_TRACE_HOLD, verb, hold->completion, 0, 0);
}


bool far_sim_reached(const far_sim_hold *hold) {
    return hold->reached;
}


uint32_t far_sim_hold_units(const far_sim_hold *hold) {
    return hold->units;
}


/* The verb of the hold; NULL: it was not posted yet, or has gone on. */
static sim_verb *held_verb(const far_sim_hold *hold) {
    sim_verb *verb = hold->verb;
    if (!hold->reached || hold->released || verb->generation != hold->generation)
        return NULL;
    return verb->state == SIM_HELD || verb->state == SIM_DONE_HELD ? verb : NULL;
}


static void let_go(sim_verb *verb, far_sim_hold *hold) {
    hold->released = true;
    verb->client->held--;
    if (verb->state == SIM_HELD)
        verb->conn->blocked--;
}


static void give_unit(far_sim_hold *hold, sim_verb *verb, uint32_t unit) {
    hold->given[unit] = 1;
    hold->given_count++;
    if (unit < verb->cut && !(verb->class == SIM_CLASS_READ && !verb->verb.local))
        sim_apply_unit(hold->world, verb, unit);
    if (hold->given_count == hold->units) {
        let_go(verb, hold);
        sim_effective(hold->world, verb);
    }
}


int far_sim_release_units(far_sim_hold *hold, const uint32_t *units, size_t count) {
    sim_verb *verb = held_verb(hold);
    if (!verb || hold->completion)
        return far_fail(FAR_ERR_INVALID, "sim: no effect is held here");
    if (!hold->given)
        hold->given = sim_allocate(hold->units);
    for (size_t i = 0; i < count; i++) {
        if (units[i] >= hold->units || hold->given[units[i]])
            return far_fail(FAR_ERR_INVALID, "sim: unit %u is not there or was given before", units[i]);
        if (verb->class == SIM_CLASS_WRITE && units[i] != hold->given_count)
            return far_fail(FAR_ERR_INVALID, "sim: a WRITE lands in rising order, unit %u would be next",
                            hold->given_count);
        if (verb->class == SIM_CLASS_ATOMIC)
            sim_settle_word(hold->world, verb);
        give_unit(hold, verb, units[i]);
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
        let_go(verb, hold);
        verb->state = SIM_EFFECTIVE;
        sim_push(world, world->now, SIM_DONE, verb, verb->generation);
    } else if (hold->given_count) {
        for (uint32_t unit = 0; unit < hold->units; unit++)
            if (!hold->given[unit])
                give_unit(hold, verb, unit);
    } else {
        let_go(verb, hold);
        verb->state = SIM_SCHEDULED;
        sim_push(world, world->now, SIM_EFFECT, verb, verb->generation);
    }
}


bool sim_client_stuck(const far_sim_client *client) {
    if (!client->held || client->state != SIM_PARKED || client->woken || client->ready)
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
