/* Read delegation and write combining (RDWC). rdwc.h describes the interface; this comment describes the implementation
 * and proves that it is linearizable.
 *
 * The table has 4096 entries; the hash of a key selects its entry. An entry is free, or it has a round, which consists
 * of a leader, which runs the index code, and of a list of members, which wait. All operate on one key. An operation on
 * another key runs on its own if the entry is taken. Everything that a member contributes (key, value, buffer) is in
 * its own stack frame and stays there while it waits. So nothing is copied, because the leader reads a member's value
 * and fills a member's buffer directly.
 *
 *     first operation  ---> leader: runs the index code, serves members, hands over the entry
 *     later operation  ---> member: waits ---+--> is served
 *                                            +--> leads the next round with the members left over (join mark 0)
 *                                            +--> runs on its own, because the leader failed
 *
 * Why this is linearizable. Let p be the linearization point of the operation that the index code of the leader
 * performs, as the whole pool observes it. Several operations that are placed together at p, in some order, form a
 * correct history if (a) each was invoked before p and returns after p, and (b) each returns what it would return in
 * that order, and the state after them is the state of the index after p.
 *
 * (a) Every member returns after the leader's index code has returned, so after p. It joins after its invocation. A
 * mark is the number of the last batch that the leader has announced. The leader raises it under the entry's lock
 * before it posts that batch, and a member notes it under the same lock when it joins. So join_mark < m proves that the
 * member joined before the leader announced batch m, and hence that it was invoked before batch m was posted. The call
 * far_rdwc_done(m) asserts that p is at or after the posting of batch m. So the member was invoked before p. A member
 * with join_mark >= m has no such proof. Batch m may have READ the value; then a client on another machine may have
 * overwritten it and returned; and only then the member was invoked, which must not return the old value. The start of
 * the run counts as mark 1. Nothing more is known of an index that does not call the hooks, so its members must have
 * joined before the start.
 *
 * (b) In a round led by a GET, all operations are placed at p in any order and have one result. In a round led by a
 * PUT, the order is: the leader, then the writers in the order in which they joined, up to the sealed writer, then the
 * GETs. (The index code *seals* the round when it builds its payload, by far_rdwc_seal. The sealed writer is the last
 * writer that had joined by then, or the leader if none had; its value is written.) The state after that is the value
 * of the last writer, which is the value that was written. No other client can observe the values before it, because no
 * other operation takes place in between. The GETs return it. A writer is in this order only if it joined before the
 * seal, because the value of a later writer is not written. (That the writers which joined before the seal also satisfy
 * (a) is promised by the caller of far_rdwc_seal.) In a round led by an UPDATE the order is the same if the key was
 * present at p; then all updates succeed. If the key was absent, all UPDATEs and GETs with join_mark < m return
 * FAR_ERR_NOT_FOUND; nothing was written, so the seal does not matter. A PUT in an UPDATE round would have to create
 * the key, which the leader does not do. An UPDATE in a PUT round would be possible and is left out for simplicity.
 *
 * Each operation takes effect once. A value is written only on behalf of a member that this round serves. A member that
 * is not served runs later, on its own or in another round, and none of its bytes have left this process before. That
 * is why the seal, and not the end of the round, decides which value is written, and why the sealed value stays the
 * same when the leader retries, because verbs that were posted may still take effect.
 *
 * Failures. If the leader fails and is certain that nothing was changed, only the leader returns the error. The members
 * run on their own, and so does the leader if the sealed value was not its own. After FAR_ERR_UNREACHABLE or
 * FAR_ERR_FENCED the sealed value may have been written, or may still be written until the session is fenced. The
 * writer of that value must not write it again, because the value could then appear twice, so it returns
 * FAR_ERR_UNREACHABLE. No other member has left a trace in far memory, so they run on their own. */
#include "index/common/rdwc.h"
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

/* One operation that leads a round or has joined one. It is in the stack frame of far_rdwc_run. */
struct far_rdwc_member {
    far_task *task;
    entry *entry;
    far_index *index;
    far_op_kind kind;
    far_bytes key, value;
    far_out *out;
    far_rdwc_fn *run;

    far_rdwc_member *next; /* next member in the order of joining */
    uint32_t join_mark; /* mark (number of the last announced batch) of the round at the time when this member joined */
    member_state state;    /* state of the member, protected by the lock of its entry */
    int result;            /* result of the operation, valid if the round served it */
};

struct entry {
    _Alignas(64) far_spin lock; /* lock of the entry; never held across a task switch */
    uint32_t mark;              /* number of the batch that was announced last; 0: the leader has not started */
    /* mark passed to far_rdwc_done: the linearization point is at or after the posting of this batch */
    uint32_t claimed;
    /* true after the index code has closed the round for writers (far_rdwc_seal); if it has not, the leader writes the
     * value that was chosen at the start */
    bool sealed;
    far_rdwc_member *leader; /* leader of the current round; NULL: the entry is free */
    far_rdwc_member *first, *last;
    /* The operation whose value is written. The round contains this operation and the writers that joined before it. */
    far_rdwc_member *writer;
};

_Static_assert(sizeof(entry) == 64, "an entry is a cache line");

struct far_rdwc {
    unsigned quiet_below;
    struct {
        _Alignas(64) atomic_uint operations; /* number of operations in progress in the sessions of this shard */
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


/* Returns whether few operations are in progress in the handle. Only an operation that meets another operation on its
 * key calls this function. */
static bool handle_is_quiet(far_rdwc *rdwc) {
    unsigned operations = 0;
    for (unsigned i = 0; i < LOAD_SHARDS && operations < rdwc->quiet_below; i++)
        operations += atomic_load_explicit(&rdwc->load[i].operations, memory_order_relaxed);
    return operations < rdwc->quiet_below;
}


/* Returns the entry for the member's key. A kind with gets_never_wait_for_writes has two neighbouring entries per key,
 * one for gets and one for writes. Their rounds do not interact, like rounds on two machines. */
static entry *entry_of(far_rdwc *rdwc, const far_rdwc_member *m) {
    uint64_t hash = far_hash(m->key, m->index->uid);
    return &rdwc->entries[(hash + (m->kind == FAR_OP_GET && m->index->kind->gets_never_wait_for_writes)) % FAR_RDWC_ENTRIES];
}


static bool is_same_key(const far_rdwc_member *a, const far_rdwc_member *b) {
    return a->index->uid == b->index->uid && a->key.length == b->key.length &&
           memcmp(a->key.data, b->key.data, a->key.length) == 0;
}


static int run_alone(const far_rdwc_member *me) {
    return me->run(me->task, me->index, me->kind, me->key, me->value, me->out);
}


/* The caller of the next four functions must hold the lock of the entry. */

/* Returns the last writer of the leader's kind that joined before batch `mark` was posted, or the leader if there is
 * none. */
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


static void append_member(entry *e, far_rdwc_member *m) {
    m->next = NULL;
    if (e->last)
        e->last->next = m;
    else
        e->first = m;
    e->last = m;
}


/* Ends the wait of a member. The caller holds the entry's lock, and the member takes that lock before it leaves. So the
 * member's task and session exist until the wake-up is complete. */
static void release_member(far_rdwc_member *m, member_state state) {
    far_task *task = m->task;
    m->state = state;
    far_task_wake(task);
}


/* Called when the leader has finished. The first member in the list becomes the leader of the next round. All other
 * members in the list belong to that round and have joined before it starts. */
static void hand_over_entry(entry *e) {
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
    release_member(next, LEADS);
}


/* The result of a round. */
typedef struct round_outcome {
    int result; /* result of the index code */
    /* true if the result also counts for the members that the round serves; false after an error of the leader, which
     * says nothing about them */
    bool definite;
    bool unknown;  /* true if the operation failed and the sealed value may have been written */
    uint32_t mark; /* number of a batch; the linearization point is at or after the posting of this batch */
    const far_rdwc_member *leader;
    const far_rdwc_member *writer; /* the operation that supplied the written value */
    far_bytes value;               /* the value that GETs of the round return */
} round_outcome;


static round_outcome outcome_of(const entry *e, int result) {
    const far_rdwc_member *leader = e->leader;
    round_outcome o = {.result = result, .leader = leader, .writer = e->writer, .mark = e->claimed};
    o.unknown = result == FAR_ERR_UNREACHABLE || result == FAR_ERR_FENCED;
    o.definite = result == 0 || (result == FAR_ERR_NOT_FOUND && leader->kind != FAR_OP_PUT) ||
                 (result == FAR_ERR_TOO_SMALL && leader->kind == FAR_OP_GET);
    if (leader->kind == FAR_OP_GET) {
        o.value = (far_bytes){leader->out->buffer, leader->out->length};
    } else {
        o.value = e->writer->value;
        if (result == 0 && e->writer != leader && e->writer->join_mark >= o.mark)
            /* The caller of far_rdwc_seal promises that its write takes effect at or after the posting of a batch with
             * a larger mark than the join mark of the sealed writer. */
            o.mark = e->writer->join_mark + 1;
    }
    return o;
}


/* Returns whether the round serves this member. `in_order` must be true if the member joined before the sealed writer
 * (the operation that supplied the written value), or is that writer. */
static bool is_served(const round_outcome *o, const far_rdwc_member *m, bool in_order) {
    if (m->kind == FAR_OP_GET) {
        /* The value did not fit into the leader's buffer. Members with smaller buffers get its length too; a member
         * with a larger buffer needs its bytes and must run on its own. */
        if (o->result == FAR_ERR_TOO_SMALL && m->out->capacity >= o->value.length)
            return false;
        return m->join_mark < o->mark;
    }
    if (m->kind != o->leader->kind)
        return false;
    return o->result == 0 ? in_order : m->join_mark < o->mark;
}


/* Removes the members that are finished with this round from the list and returns them. The others stay in the list, in
 * their order. */
static far_rdwc_member *remove_finished_members(entry *e, const round_outcome *o) {
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
            append_member(e, m);
        }
        if (m == o->writer)
            in_order = false;
        m = next;
    }
    return out;
}


static void set_result(const round_outcome *o, far_rdwc_member *m) {
    m->result = o->result;
    if (m->kind != FAR_OP_GET || o->result == FAR_ERR_NOT_FOUND)
        return;
    if (o->result == FAR_ERR_TOO_SMALL)
        m->out->length = o->value.length;
    else
        m->result = far_out_give(m->out, o->value.data, o->value.length);
}


/* Ends the round after the leader's index code has returned. Returns true if the result is also the leader's own.
 * Returns false if the write of another operation's value failed, so that the leader must run its own operation. */
static bool finish_round(far_rdwc_member *me, int result) {
    entry *e = me->entry;
    far_spin_lock(&e->lock);
    round_outcome o = outcome_of(e, result);
    far_rdwc_member *out = remove_finished_members(e, &o);
    hand_over_entry(e);
    far_spin_unlock(&e->lock);

    /* All results are set before the first wake-up, because the value may be in the memory of one of the members. */
    for (far_rdwc_member *m = out; m && o.definite; m = m->next)
        set_result(&o, m);
    while (out) {
        far_rdwc_member *m = out;
        out = m->next;
        bool lost = o.unknown && m == o.writer;
        far_spin_lock(&e->lock);
        if (lost)
            m->result = FAR_ERR_UNREACHABLE;
        release_member(m, o.definite || lost ? SERVED : ALONE);
        far_spin_unlock(&e->lock);
    }
    return o.definite || o.unknown || o.writer == me;
}


/* Runs the index code as leader of a round that has started. */
static int lead_round(far_rdwc_member *me) {
    entry *e = me->entry;
    far_bytes value = e->writer->value;
    bool pinned = me->task->pin.epoch != 0;
    assert(!me->task->rdwc); /* a task leads at most one round at a time */
    me->task->rdwc = me;
    int result = me->run(me->task, me->index, me->kind, me->key, value, me->out);
    me->task->rdwc = NULL;
    if (finish_round(me, result))
        return result;
    /* an operation that was refused a pin has none */
    int err = pinned ? far_pin_take(me->task) : 0;
    return err ? err : run_alone(me);
}


static void wait_for_release(far_rdwc_member *me) {
    entry *e = me->entry;
    far_spin_lock(&e->lock);
    while (me->state == WAITS) {
        far_spin_unlock(&e->lock);
        far_note_wait(me->task);
        far_task_await_other(me->task);
        far_note_wait_end(me->task);
        far_spin_lock(&e->lock);
    }
    far_spin_unlock(&e->lock);
}


static int take_served_result(far_rdwc_member *me) {
    if (me->result == FAR_ERR_UNREACHABLE)
        return far_fail(FAR_ERR_UNREACHABLE,
                        "the session that wrote this value together with others lost its connection");
    far_count_combined(me->task, me->kind != FAR_OP_GET);
    return me->result;
}


/* Waits as a member, without a pin because the leader may take long. Then returns the result, leads the next round, or
 * runs on its own. */
static int wait_as_member(far_rdwc_member *me) {
    far_task *t = me->task;
    bool pinned = t->pin.epoch != 0;
    far_pin_drop(t);
    wait_for_release(me);
    if (me->state == SERVED)
        return take_served_result(me);
    int err = pinned ? far_pin_take(t) : 0;
    if (me->state == ALONE)
        return err ? err : run_alone(me);
    bool fit = !err && !t->session->lost;
    far_spin_lock(&me->entry->lock);
    if (fit)
        start_round(me->entry);
    else
        /* The round has not begun, so no member depends on this task yet. The next member leads the round instead. */
        hand_over_entry(me->entry);
    far_spin_unlock(&me->entry->lock);
    return fit ? lead_round(me) : err ? err : run_alone(me);
}


/* Returns whether both operations are writes of the same kind. Two such writes would compete with each other, so
 * waiting is worthwhile even if few operations are in progress. */
static bool is_write_of_same_kind(const far_rdwc_member *leader, const far_rdwc_member *me) {
    return me->kind == leader->kind && me->kind != FAR_OP_GET;
}


typedef enum { LEAD, FOLLOW, BYPASS } role;


static role lead_or_join(far_rdwc *rdwc, far_rdwc_member *me) {
    entry *e = me->entry;
    role as = BYPASS;
    far_spin_lock(&e->lock);
    if (!e->leader) {
        e->leader = me;
        start_round(e);
        as = LEAD;
    } else if (is_same_key(e->leader, me) && (is_write_of_same_kind(e->leader, me) || !handle_is_quiet(rdwc))) {
        me->join_mark = e->mark;
        append_member(e, me);
        as = FOLLOW;
    }
    far_spin_unlock(&e->lock);
    return as;
}


/* Returns whether there is no other operation of this session, and no other session in the handle, with which the
 * operation could be merged. An operation that starts meanwhile runs concurrently, as if it were on another machine. */
static bool session_is_alone(const far_task *t) {
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
    role as = lead_or_join(rdwc, &me);
    int result = as == LEAD ? lead_round(&me) : as == FOLLOW ? wait_as_member(&me) : run_alone(&me);
    atomic_fetch_sub_explicit(operations, 1, memory_order_relaxed);
    return result;
}


bool far_rdwc_may_merge(const far_task *t, far_op_kind kind) {
    if (!t->session->pool->rdwc || session_is_alone(t))
        return false;
    bool merges = kind == FAR_OP_GET ? far_rdwc_saves_reads(t) : kind == FAR_OP_PUT || kind == FAR_OP_UPDATE;
    return merges && !t->rdwc && !t->session->lost;
}


int far_rdwc_run(far_task *t, far_index *index, far_op_kind kind, far_bytes key, far_bytes value, far_out *out,
                 far_rdwc_fn *run) {
    if (!far_rdwc_may_merge(t, kind))
        return run(t, index, kind, key, value, out);
    return run_with_others(t, index, kind, key, value, out, run);
}


bool far_rdwc_saves_reads(const far_task *t) {
    return t->session->pool->rdwc && !far_task_fabric(t)->at_once;
}


/* The hooks. Only the task of the leader calls them. Fields that only the leader changes are read without the lock. */

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
    assert(mark > 1); /* The start of the run has mark 1, so its batches have larger marks. */
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
