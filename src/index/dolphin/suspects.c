/* What check suspects: locks whose holder may not be there, and nodes and leaves that say that they are being replaced
 * while nobody may be at it. Only epochs tell (pool/owner.h), so they are looked at after each slice, without a pin. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"


void dolphin_suspect(dolphin_suspects *all, dolphin_suspected one) {
    if (all->count < DOLPHIN_SUSPECTS_MAX && all->found < DOLPHIN_SUSPECTS_MAX)
        all->list[all->count++] = one;
}


/* Where the lock is under which the object may be replaced. */
static far_addr lock_above(const dolphin_suspected *s) {
    far_addr above = dolphin_entry_addr(s->above);
    return s->at_root ? above + DOLPHIN_ROOT_LOCKS + 8ull * (dolphin_entry_lb(s->entry) - 1) : above;
}


/* 1: it is as it was seen, and still linked: the node above, which is not frozen, names it. Whoever freezes something
 * has the lock of the node above before, and for longer: if somebody has that one, it is suspected itself, or its holder
 * is dead, and whoever comes puts all right. */
static int look(far_task *t, void *arg) {
    const dolphin_suspected *s = arg;
    uint64_t words[3] = {0}, *now = far_scratch(t, s->bytes); /* entry, lock, control word of the node above */
    if (!now)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a check");
    far_read(t, s->addr, now, s->bytes);
    far_mark(t, FAR_VERB_UNPROVEN);
    if (s->above) {
        const far_addr at[3] = {s->place, lock_above(s), dolphin_entry_addr(s->above)};
        for (unsigned i = 0; i < 3; i++) {
            far_read(t, at[i], &words[i], 8);
            far_mark(t, FAR_VERB_UNPROVEN);
        }
    }
    int err = far_wait(t);
    if (err < 0 || memcmp(now, s->seen, s->bytes) != 0)
        return err < 0 ? err : 0;
    if (!s->above)
        return 1;
    bool linked = words[0] == s->entry && dolphin_is_life(words[2], s->above) && !(words[2] & DOLPHIN_FROZEN);
    return linked && (s->owner || !dolphin_lock_owner(words[1]));
}


int dolphin_suspects_check(far_task *t, dolphin_suspects *all, far_report *report) {
    int err = 0;
    for (; all->count > 0 && err >= 0; all->count--) {
        dolphin_suspected *s = &all->list[all->count - 1];
        err = far_is_stuck(t, far_owner_client(s->owner), far_owner_generation(s->owner), look, s);
        if (err <= 0)
            continue;
        all->found++;
        far_report_problem(report, "what stands at %#llx is %s, and nobody alive is at it", (unsigned long long)s->addr,
                           s->owner ? "locked" : "being replaced");
    }
    return err < 0 ? err : 0;
}
