/* No express skip table: every descent starts at the root. */
#include "index/dart/dart.h"


int dart_est_create(far_task *t, far_index *index, dart_super *super) {
    (void)t, (void)index, (void)super;
    return 0;
}


int dart_est_open(far_task *t, far_index *index) {
    (void)t, (void)index;
    return 0;
}


void dart_est_close(far_index *index) {
    (void)index;
}


int dart_est_ask(far_task *t, far_index *index, far_bytes key, dart_probe *probe) {
    (void)t, (void)index, (void)key;
    probe->count = 0;
    return 0;
}


int dart_est_answer(far_task *t, far_index *index, far_bytes key, dart_probe *probe) {
    (void)t, (void)index, (void)key, (void)probe;
    return 0;
}


int dart_est_lookup(far_task *t, far_index *index, far_bytes key, dart_start *starts, unsigned max) {
    (void)t, (void)index, (void)key, (void)starts, (void)max;
    return 0;
}


void dart_est_repair(far_task *t, far_index *index, const dart_find *f) {
    (void)t, (void)index, (void)f;
}


void dart_est_register(far_task *t, far_index *index, const dart_node *node, unsigned parent_depth, far_bytes prefix) {
    (void)t, (void)index, (void)node, (void)parent_depth, (void)prefix;
}


int dart_est_remove(far_task *t, far_index *index, const dart_node *node, far_bytes prefix) {
    (void)t, (void)index, (void)node, (void)prefix;
    return 0;
}


int dart_est_walk(far_task *t, far_index *index, far_walk *walk) {
    (void)t, (void)index, (void)walk;
    return 0;
}


int dart_est_check(far_task *t, far_index *index, far_report *report) {
    (void)t, (void)index, (void)report;
    return 0;
}


int dart_est_usage(far_task *t, far_index *index, far_usage *usage) {
    (void)t, (void)index, (void)usage;
    return 0;
}


int dart_est_epoch_hook(far_task *t, far_index *index, uint64_t epoch) {
    (void)t, (void)index, (void)epoch;
    return 0;
}


int dart_est_idle_hook(far_task *t, far_index *index) {
    (void)t, (void)index;
    return 0;
}


size_t dart_est_cache_bytes(far_index *index) {
    (void)index;
    return 0;
}
