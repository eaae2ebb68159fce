/* The table has 4096 entries. An entry is free, or has a leader and a list of members, all on one key; an operation on
 * another key that falls on a taken entry runs by itself. A member waits in its task; everything it brings (key, value,
 * buffer) lies in its own frame and stays there while it waits, so that nothing is copied or counted: the leader reads
 * a member's value and fills a member's buffer.
 *
 *     first come ---> leader: runs the index code, serves members, hands the entry to the first of the others
 *     later -------> member: waits ---+--> is served
 *                                     +--> leads the next round; those who were left over are in it, with join mark 0
 *                                     +--> runs alone: the leader failed
 *
 * Why this is linearizable. Let an operation of the index have its linearization point p, in the eyes of the whole
 * pool. Operations that are placed together at p, in some order, are a correct history if (a) each of them was invoked
 * before p and returns after p, and (b) each gets what it would get in that order, and the state after them is the one
 * that the index has after p.
 *
 * (a) All members return after the leader's index code did, so after p. Joining comes after the invocation. A mark is
 * the number of the last batch that the leader has announced; it is raised under the entry's lock before that batch is
 * posted, and a member notes it under the same lock. So join_mark < m says: this member's critical section came before
 * the one that announced batch m, hence it was invoked before batch m was posted. `done(m)` says: p is at or after the
 * posting of batch m. Together: invoked before p. A member with join_mark >= m has no such proof: batch m may have read
 * its value, another machine may have overwritten that and answered, and only then the member was invoked, which must
 * not see the old value. The start of the run counts as mark 1, which is all that is known of an index without hooks:
 * its members must have joined before.
 *
 * (b) GET round: all at p, any order, one result. PUT round: the leader, then the writers up to the sealed one in the
 * order in which they joined, then the GETs. The state after that is the value of the last writer, which is the one
 * that was written; nobody else can see the values before it, as nothing comes between. GETs return it. A writer is in
 * that order only if it joined before the seal: a later one's value is not written. (That those who joined before the
 * seal satisfy (a) is the promise of far_rdwc_seal.) UPDATE round: the same if the key was present at p; all of them
 * succeed. If it was absent, all updates and GETs with join_mark < m get FAR_ERR_NOT_FOUND; nothing was written for
 * anyone, so the seal plays no part. A PUT in an UPDATE round would have to create the key, which the leader does not;
 * an UPDATE in a PUT round is left out for plainness.
 *
 * Each operation happens once: a value is written only for a member that is served by this round. One that was not
 * taken in runs later, by itself or in another round, and none of its bytes left this process before. That is why the
 * seal, not the end of the round, decides whose value is written, and why it stays as it is when the leader retries:
 * what was posted may still take effect.
 *
 * Failures. A definite one (nothing was changed) is the leader's alone: members run by themselves, and so does the
 * leader if it was another's value that failed. After FAR_ERR_UNREACHABLE or _FENCED the sealed value may have been
 * written, or may yet be until the session is fenced: the one it belongs to must not write it again (it could then show
 * up twice), and is told FAR_ERR_UNREACHABLE. All others have no trace in far memory and run by themselves. */
#include "index/rdwc.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/spin.h"
#include "pool/handle.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LOAD_SHARDS 16

typedef struct far_rdwc_member far_rdwc_member;
typedef struct entry entry;

typedef enum { WAITS, SERVED, LEADS, ALONE } member_state;

/* One operation that leads or has joined; in the frame of far_rdwc_run. */
struct far_rdwc_member {
    far_task *task;
    entry *entry;
    far_index *index;
    far_op_kind kind;
    far_bytes key, value;
    far_out *out;
    far_rdwc_fn *run;

    far_rdwc_member *next; /* in the order of joining */
    uint32_t join_mark;    /* the round's mark when it joined */
    member_state state;    /* under the entry's lock */
    int result;            /* of one that was served */
};

struct entry {
    _Alignas(64) far_spin lock; /* never held across a switch */
    uint32_t mark;              /* of the batch announced last; 0: the leader has not started */
    uint32_t claimed;           /* the linearization point is at or after the posting of this one */
    bool sealed;                /* by the index; before that, the value taken at the start counts */
    far_rdwc_member *leader;    /* NULL: the entry is free */
    far_rdwc_member *first, *last;
    far_rdwc_member *writer; /* whose value is written; it and the writers before it are in the round */
};

_Static_assert(sizeof(entry) == 64, "an entry is a cache line");

struct far_rdwc {
    unsigned quiet_below;
    struct {
        _Alignas(64) atomic_uint operations; /* under way */
    } load[LOAD_SHARDS];
    entry entries[FAR_RDWC_ENTRIES];
};


far_rdwc *far_rdwc_new(unsigned quiet_below) {
    far_rdwc *rdwc = aligned_alloc(64, sizeof(*rdwc));
    if (!rdwc)
        return NULL;
    memset(rdwc, 0, sizeof(*rdwc));
    rdwc->quiet_below = quiet_below;
    return rdwc;
}


void far_rdwc_free(far_rdwc *rdwc) {
    for (unsigned i = 0; rdwc && i < FAR_RDWC_ENTRIES; i++)
        assert(!rdwc->entries[i].leader);
    free(rdwc);
}


/* How much is going on: looked at only by an operation that meets another one on its key. */
static bool is_quiet(far_rdwc *rdwc) {
    unsigned operations = 0;
    for (unsigned i = 0; i < LOAD_SHARDS && operations < rdwc->quiet_below; i++)
        operations += atomic_load_explicit(&rdwc->load[i].operations, memory_order_relaxed);
    return operations < rdwc->quiet_below;
}


/* The gets of a kind that keeps them apart have the entry behind: a key has one for its gets and one for its writes, two rounds that
 * know nothing of each other, as if they were of two machines. */
static entry *entry_of(far_rdwc *rdwc, const far_rdwc_member *m) {
    uint64_t hash = far_hash(m->key, m->index->uid);
    return &rdwc->entries[(hash + (m->kind == FAR_OP_GET && m->index->kind->gets_apart)) % FAR_RDWC_ENTRIES];
}


static bool same_key(const far_rdwc_member *a, const far_rdwc_member *b) {
    return a->index->uid == b->index->uid && a->key.length == b->key.length &&
           memcmp(a->key.data, b->key.data, a->key.length) == 0;
}


static int run_alone(const far_rdwc_member *me) {
    return me->run(me->task, me->index, me->kind, me->key, me->value, me->out);
}


/* Under the entry's lock, the next four. */

/* The last writer of the leader's kind that joined before batch `mark` was posted; the leader itself if there is none.
 */
static far_rdwc_member *last_writer_before(const entry *e, uint32_t mark) {
    far_rdwc_member *writer = e->leader;
    for (far_rdwc_member *m = e->first; m && m->join_mark < mark; m = m->next)
        if (m->kind == e->leader->kind)
            writer = m;
    return writer;
}


static void start_round(entry *e) {
    e->writer = last_writer_before(e, 1);
    e->sealed = false;
    e->claimed = 1;
    e->mark = 1;
}


static void append(entry *e, far_rdwc_member *m) {
    m->next = NULL;
    if (e->last)
        e->last->next = m;
    else
        e->first = m;
    e->last = m;
}


/* The waker holds the lock, and the woken one takes it before it leaves: so its task and session live until the wake-up
 * is through. */
static void release(far_rdwc_member *m, member_state state) {
    far_task *task = m->task;
    m->state = state;
    far_task_wake(task);
}


/* The leader leaves: the first of those in the list leads the next round, which all of them have joined before it
 * starts. */
static void pass_on(entry *e) {
    far_rdwc_member *next = e->first;
    assert(e->leader && !e->first == !e->last);
    e->mark = 0;
    e->leader = next;
    if (!next)
        return;
    e->first = next->next;
    if (!e->first)
        e->last = NULL;
    for (far_rdwc_member *m = e->first; m; m = m->next)
        m->join_mark = 0;
    release(next, LEADS);
}


/* What a round came to. */
typedef struct outcome {
    int result;    /* of the index code */
    bool definite; /* result can be shared; otherwise it failed */
    bool unknown;  /* failed, and the sealed value may have been written */
    uint32_t mark; /* the linearization point is at or after the posting of this batch */
    const far_rdwc_member *leader;
    const far_rdwc_member *writer; /* whose value was written */
    far_bytes value;               /* what GETs see */
} outcome;


static outcome outcome_of(const entry *e, int result) {
    const far_rdwc_member *leader = e->leader;
    outcome o = {.result = result, .leader = leader, .writer = e->writer, .mark = e->claimed};
    o.unknown = result == FAR_ERR_UNREACHABLE || result == FAR_ERR_FENCED;
    o.definite = result == 0 || (result == FAR_ERR_NOT_FOUND && leader->kind != FAR_OP_PUT) ||
                 (result == FAR_ERR_TOO_SMALL && leader->kind == FAR_OP_GET);
    if (leader->kind == FAR_OP_GET) {
        o.value = (far_bytes){leader->out->buffer, leader->out->length};
    } else {
        o.value = e->writer->value;
        if (result == 0 && e->writer != leader && e->writer->join_mark >= o.mark)
            o.mark = e->writer->join_mark + 1; /* the promise of far_rdwc_seal */
    }
    return o;
}


/* Does the round serve this member? in_order: the writers up to the sealed one have not all been met yet. */
static bool is_served(const outcome *o, const far_rdwc_member *m, bool in_order) {
    if (m->kind == FAR_OP_GET) {
        /* The leader's buffer was too small for the value: others know its length, but only from one of theirs its
         * bytes. */
        if (o->result == FAR_ERR_TOO_SMALL && m->out->capacity >= o->value.length)
            return false;
        return m->join_mark < o->mark;
    }
    if (m->kind != o->leader->kind)
        return false;
    return o->result == 0 ? in_order : m->join_mark < o->mark;
}


/* Takes those that are through with this round out of the list; the others stay in it, in their order. */
static far_rdwc_member *take_out(entry *e, const outcome *o) {
    far_rdwc_member *out = NULL, **out_end = &out, *m = e->first;
    bool in_order = o->writer != o->leader;
    e->first = e->last = NULL;
    while (m) {
        far_rdwc_member *next = m->next;
        if (!o->definite || is_served(o, m, in_order)) {
            m->next = NULL;
            *out_end = m;
            out_end = &m->next;
        } else {
            append(e, m);
        }
        if (m == o->writer)
            in_order = false;
        m = next;
    }
    return out;
}


static void set_result(const outcome *o, far_rdwc_member *m) {
    m->result = o->result;
    if (m->kind != FAR_OP_GET || o->result == FAR_ERR_NOT_FOUND)
        return;
    if (o->result == FAR_ERR_TOO_SMALL)
        m->out->length = o->value.length;
    else
        m->result = far_out_give(m->out, o->value.data, o->value.length);
}


/* The leader's index code has returned. True: what it returned holds for the leader; false: another's value failed, not
 * its own. */
static bool finish(far_rdwc_member *me, int result) {
    entry *e = me->entry;
    far_spin_lock(&e->lock);
    outcome o = outcome_of(e, result);
    far_rdwc_member *out = take_out(e, &o);
    pass_on(e);
    far_spin_unlock(&e->lock);

    /* First all results, then the wake-ups: the value may lie in the memory of one of them. */
    for (far_rdwc_member *m = out; m && o.definite; m = m->next)
        set_result(&o, m);
    while (out) {
        far_rdwc_member *m = out;
        out = m->next;
        bool lost = o.unknown && m == o.writer;
        far_spin_lock(&e->lock);
        if (lost)
            m->result = FAR_ERR_UNREACHABLE;
        release(m, o.definite || lost ? SERVED : ALONE);
        far_spin_unlock(&e->lock);
    }
    return o.definite || o.unknown || o.writer == me;
}


/* The round has started. */
static int lead(far_rdwc_member *me) {
    entry *e = me->entry;
    far_bytes value = e->writer->value;
    assert(!me->task->rdwc); /* a task leads one round at a time */
    me->task->rdwc = me;
    int result = me->run(me->task, me->index, me->kind, me->key, value, me->out);
    me->task->rdwc = NULL;
    return finish(me, result) ? result : run_alone(me);
}


static void wait_for_release(far_rdwc_member *me) {
    entry *e = me->entry;
    far_spin_lock(&e->lock);
    while (me->state == WAITS) {
        far_spin_unlock(&e->lock);
        far_task_await_other(me->task);
        far_spin_lock(&e->lock);
    }
    far_spin_unlock(&e->lock);
}


static int served(far_rdwc_member *me) {
    if (me->result == FAR_ERR_UNREACHABLE)
        return far_fail(FAR_ERR_UNREACHABLE,
                        "the session that wrote this value together with others lost its connection");
    far_count_combined(me->task, me->kind != FAR_OP_GET);
    return me->result;
}


/* A member. While it waits it holds no pin: the leader may wait long. */
static int follow(far_rdwc_member *me) {
    far_task *t = me->task;
    bool pinned = t->pin.epoch != 0;
    far_pin_drop(t);
    wait_for_release(me);
    if (me->state == SERVED)
        return served(me);
    int err = pinned ? far_pin_take(t) : 0;
    if (me->state == ALONE)
        return err ? err : run_alone(me);
    bool fit = !err && !t->session->lost;
    far_spin_lock(&me->entry->lock);
    if (fit)
        start_round(me->entry);
    else
        pass_on(me->entry); /* nobody has been promised anything yet */
    far_spin_unlock(&me->entry->lock);
    return fit ? lead(me) : err ? err : run_alone(me);
}


/* Worth waiting for even when little is going on: two writes that would get into each other's way. */
static bool can_combine(const far_rdwc_member *leader, const far_rdwc_member *me) {
    return me->kind == leader->kind && me->kind != FAR_OP_GET;
}


typedef enum { LEAD, FOLLOW, BYPASS } role;


static role enter(far_rdwc *rdwc, far_rdwc_member *me) {
    entry *e = me->entry;
    role as = BYPASS;
    far_spin_lock(&e->lock);
    if (!e->leader) {
        e->leader = me;
        start_round(e);
        as = LEAD;
    } else if (same_key(e->leader, me) && (can_combine(e->leader, me) || !is_quiet(rdwc))) {
        me->join_mark = e->mark;
        append(e, me);
        as = FOLLOW;
    }
    far_spin_unlock(&e->lock);
    return as;
}


/* Nobody is there to merge with: no other operation of this session, and no other session. One that comes meanwhile
 * runs beside it, as beside one on another machine. */
static bool is_alone(const far_task *t) {
    const far_session *s = t->session;
    return atomic_load_explicit(&s->active, memory_order_relaxed) == 1 &&
           atomic_load_explicit(&s->team->count, memory_order_relaxed) == 1;
}


static int run_with_others(far_task *t, far_index *index, far_op_kind kind, far_bytes key, far_bytes value,
                           far_out *out, far_rdwc_fn *run) {
    far_rdwc *rdwc = t->session->pool->rdwc;
    far_rdwc_member me = {.task = t, .index = index, .kind = kind, .key = key, .value = value, .out = out, .run = run};
    me.entry = entry_of(rdwc, &me);
    atomic_uint *operations = &rdwc->load[t->session->id % LOAD_SHARDS].operations;
    atomic_fetch_add_explicit(operations, 1, memory_order_relaxed);
    role as = enter(rdwc, &me);
    int result = as == LEAD ? lead(&me) : as == FOLLOW ? follow(&me) : run_alone(&me);
    atomic_fetch_sub_explicit(operations, 1, memory_order_relaxed);
    return result;
}


bool far_rdwc_may_merge(const far_task *t, far_op_kind kind) {
    if (!t->session->pool->rdwc || is_alone(t))
        return false;
    bool merges = kind == FAR_OP_GET ? far_rdwc_spares_reads(t) : kind == FAR_OP_PUT || kind == FAR_OP_UPDATE;
    return merges && !t->rdwc && !t->session->lost;
}


int far_rdwc_run(far_task *t, far_index *index, far_op_kind kind, far_bytes key, far_bytes value, far_out *out,
                 far_rdwc_fn *run) {
    if (!far_rdwc_may_merge(t, kind))
        return run(t, index, kind, key, value, out);
    return run_with_others(t, index, kind, key, value, out, run);
}


bool far_rdwc_spares_reads(const far_task *t) {
    return t->session->pool->rdwc && !far_task_fabric(t)->at_once;
}


/* The hooks. Only the leader's task comes here: what only it writes, it reads without the lock. */

uint32_t far_rdwc_mark(far_task *t) {
    if (!t->rdwc)
        return 0;
    entry *e = t->rdwc->entry;
    far_spin_lock(&e->lock);
    uint32_t mark = ++e->mark;
    far_spin_unlock(&e->lock);
    return mark;
}


uint32_t far_rdwc_seal_before(far_task *t, uint32_t mark, far_bytes *value) {
    if (!t->rdwc || t->rdwc->kind == FAR_OP_GET)
        return 0;
    entry *e = t->rdwc->entry;
    assert(mark > 1); /* the start of the run is 1: a batch of it has a larger mark */
    far_spin_lock(&e->lock);
    if (!e->sealed) {
        e->writer = last_writer_before(e, mark);
        e->sealed = true;
    }
    far_rdwc_member *writer = e->writer;
    far_spin_unlock(&e->lock);
    *value = writer->value;
    return writer == t->rdwc ? 0 : writer->join_mark;
}


uint32_t far_rdwc_seal(far_task *t, far_bytes *value) {
    return far_rdwc_seal_before(t, UINT32_MAX, value);
}


void far_rdwc_done(far_task *t, uint32_t mark) {
    if (!t->rdwc)
        return;
    entry *e = t->rdwc->entry;
    assert(mark <= e->mark);
    e->claimed = mark ? mark : 1;
}
