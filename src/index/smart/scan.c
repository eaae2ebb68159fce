/* The operation scan: a traversal (traversal.h) that gives the pairs of one chunk to the client. */
#include "base/error.h"
#include "index/common/results.h"
#include "index/smart/traversal.h"

typedef struct scan_traversal {
    smart_traversal traversal;
    far_scan_chunk *scan;
} scan_traversal;


/* Gives one pair to the scan. The traversal visits the leaves in key order, so only a leaf at a bound of the range must
 * be compared. The chunk ends with the last leaf that was READ in advance, so that the next chunk can read ahead from
 * there; but it must contain a pair, so that the next chunk begins at another key. */
static int give_pair(smart_traversal *p, const smart_item *item, const smart_spot *s) {
    far_scan_chunk *scan = ((scan_traversal *)p)->scan;
    bool last = p->readahead_leaves_left == 1;
    if (s->outcome == SMART_HIT) {
        bool at_bound = item->on_low || item->on_high;
        int err =
            at_bound ? far_scan_give(scan, s->leaf.key, s->leaf.value) : far_scan_add(scan, s->leaf.key, s->leaf.value);
        if (err != 0)
            return err;
    }
    return last && scan->buffer->pairs > 0;
}


/* Sets the bounds of a traversal that continues the chunk after the last pair that was given. */
static int continue_after_last_pair(scan_traversal *sp) {
    smart_traversal *p = &sp->traversal;
    if (sp->scan->buffer->pairs == 0)
        return smart_op_begin(&p->op, p->op.t, p->op.index, sp->scan->from);
    far_bytes last = far_scan_last_key(sp->scan->buffer);
    uint8_t *copy = far_scratch(p->op.t, last.length); /* the buffer may move while it grows */
    if (!copy)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    memcpy(copy, last.data, last.length);
    last.data = copy;
    p->bounded = p->bounded || p->backward;
    int err = smart_op_begin(&p->op, p->op.t, p->op.index, p->backward ? sp->scan->from : last);
    return err < 0 || !p->backward ? err : smart_op_begin(&p->high, p->op.t, p->op.index, last);
}


int smart_scan(far_task *t, far_index *index, far_scan_chunk *scan) {
    scan_traversal sp = {.scan = scan};
    smart_traversal *p = &sp.traversal;
    p->each_leaf = give_pair;
    /* The traversal also visits the leaf of a bound that is excluded. */
    bool skips_first = scan->backward ? scan->bounded && !scan->to_included : scan->after;
    p->wanted = scan->wanted + (skips_first && scan->wanted < SIZE_MAX);
    p->bounded = scan->bounded;
    p->backward = scan->backward;
    p->steps_singly = smart_state_of(index)->single_steps;
    p->reads_ahead = !p->steps_singly && smart_state_of(index)->cache;
    int err = smart_op_begin(&p->op, t, index, scan->from);
    if (err < 0 || (scan->bounded && (err = smart_op_begin(&p->high, t, index, scan->to)) < 0))
        return err;
    for (unsigned attempt = 0; (err = smart_traversal_run(p)) >= 0 && p->run_again; attempt++) {
        far_back_off(t, attempt);
        if ((err = continue_after_last_pair(&sp)) < 0)
            return err;
    }
    scan->end = err == 0;
    return err < 0 ? err : 0;
}
