/* Objects that check found locked or frozen. If their owner is alive and working on them, this is normal; otherwise it
 * is damage. While an owner works it holds a pin, so the epoch decides (pool/format/owner.h): check drops its own pin
 * after each slice, waits for epochs, and examines these objects again. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"


void dolphin_recheck_add(dolphin_recheck_list *all, dolphin_recheck one) {
    if (all->count < DOLPHIN_RECHECKS_MAX && all->problem_count < DOLPHIN_RECHECKS_MAX)
        all->list[all->count++] = one;
}


/* Returns the address of the lock that a client must hold to replace the object. */
static far_addr addr_of_lock_above(const dolphin_recheck *s) {
    far_addr above = dolphin_entry_addr(s->above);
    return s->at_root ? above + DOLPHIN_ROOT_LOCKS + 8ull * (dolphin_entry_lb(s->entry) - 1) : above;
}


/* Returns 1 if the object has not changed since check READ it, and is still linked, which means that its parent is not
 * frozen and names it. A client that freezes an object holds the lock of the parent from before the freeze until after
 * the thaw. So an object that is frozen while the parent is locked is not a problem of its own. Check examines the
 * parent's lock separately, and if its holder has failed, recovery repairs the object. */
static int object_is_unchanged(far_task *t, void *arg) {
    const dolphin_recheck *s = arg;
    /* The three words are READ from the parent: its entry for the object, its lock, and its control word. */
    uint64_t words[3] = {0}, *now = far_scratch(t, s->bytes);
    if (!now)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a check");
    far_read(t, s->addr, now, s->bytes);
    far_mark(t, FAR_VERB_UNPROVEN);
    if (s->above) {
        const far_addr at[3] = {s->entry_addr, addr_of_lock_above(s), dolphin_entry_addr(s->above)};
        for (unsigned i = 0; i < 3; i++) {
            far_read(t, at[i], &words[i], 8);
            far_mark(t, FAR_VERB_UNPROVEN);
        }
    }
    int err = far_wait(t);
    if (err < 0 || memcmp(now, s->image, s->bytes) != 0)
        return err < 0 ? err : 0;
    if (!s->above)
        return 1;
    bool linked = words[0] == s->entry && dolphin_control_matches(words[2], s->above) && !(words[2] & DOLPHIN_FROZEN);
    return linked && (s->owner || !dolphin_lock_owner(words[1]));
}


int dolphin_recheck_all(far_task *t, dolphin_recheck_list *all, far_report *report) {
    int err = 0;
    for (; all->count > 0 && err >= 0; all->count--) {
        dolphin_recheck *s = &all->list[all->count - 1];
        err = far_confirm_abandoned(t, far_owner_client(s->owner), far_owner_generation(s->owner), object_is_unchanged, s);
        if (err <= 0)
            continue;
        all->problem_count++;
        far_report_problem(report, "the object at %#llx is %s, but no live client is working on it",
                           (unsigned long long)s->addr, s->owner ? "locked" : "frozen for replacement");
    }
    return err < 0 ? err : 0;
}
