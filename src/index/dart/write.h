/* The state and the loop that all writing operations share. write.c implements insert, update and put, and remove.c
 * implements delete. Each operation passes a function to dart_write_run, which applies the write after the key was
 * located. */
#ifndef FAR_INDEX_DART_WRITE_H
#define FAR_INDEX_DART_WRITE_H

#include "index/dart/dart.h"

#include <string.h>

/* Results of an attempt to apply a write. */
enum {
    DART_WRITE_DONE,
    /* another write replaced the same leaf first: this write is complete, but its leaf was never linked */
    DART_WRITE_SUPERSEDED,
    DART_WRITE_RESUME,     /* the descent must continue from a newer word of the slot */
    DART_WRITE_RESTART,    /* the write must start again with a new descent */
};

typedef struct dart_write {
    far_op_kind how;
    far_bytes key, value;
    /* Address of the new leaf, which is private until it is linked; 0: no leaf. */
    far_addr leaf;
    unsigned code; /* size code of the new leaf */
    uint64_t leaf_bytes;
    /* Address of the leaf that the new leaf or the TOMB replaced; 0: no leaf. */
    far_addr old;
    uint64_t old_bytes;
    unsigned lost_slots; /* number of slots of the current node that other inserts won from this one */
    dart_find find;
} dart_write;

/* Initializes all fields except the descent `find`, which dart_find_init initializes. */
static inline void dart_write_init(dart_write *w, far_op_kind how, far_bytes key, far_bytes value) {
    memset(w, 0, offsetof(dart_write, find));
    w->find.path = (dart_path){0};
    w->how = how;
    w->key = key;
    w->value = value;
}


/* Locates the key and applies the write, repeatedly until it is complete. Returns DART_WRITE_DONE,
 * DART_WRITE_SUPERSEDED, or an error. */
int dart_write_run(far_task *t, far_index *index, dart_write *w,
                   int (*apply_one)(far_task *t, far_index *index, dart_write *w));
/* Calls apply_one. With the option lock_free=0, holds the lock word of the concerned node during the call (baseline.c).
 */
int dart_write_apply_locked(far_task *t, far_index *index, dart_write *w,
                            int (*apply_one)(far_task *t, far_index *index, dart_write *w));

/* Sends one CAS of a slot, together with the verbs that were added to the batch before. Returns 0, with the word that
 * the CAS found in *seen, or an error. One round trip. */
int dart_write_cas(far_task *t, dart_write *w, far_addr slot, uint64_t expected, uint64_t desired, uint64_t *seen);
/* Replaces the node of step `at`, because the node is full, or frozen (freeze_started). `piggyback` is a write that is
 * made as part of the replacement, if it is still valid. Returns DART_WRITE_DONE if this write was made,
 * DART_WRITE_RESTART if not, or an error. */
int dart_write_replace_node(far_task *t, far_index *index, dart_write *w, unsigned at, bool freeze_started,
                            dart_piggyback piggyback);
/* Continues the descent from the word that a lost CAS returned. Returns DART_WRITE_RESUME or an error. */
int dart_write_resume(far_task *t, far_index *index, dart_write *w, unsigned at, uint64_t word);

#endif
