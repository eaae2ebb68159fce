/* What a scan will read next, as scans before it have seen it: the inner nodes below one. ahead.c tells why what is read
 * that way counts. */
#ifndef FAR_INDEX_DART_AHEAD_H
#define FAR_INDEX_DART_AHEAD_H

#include "index/dart/dart.h"

#define DART_AHEAD_NODES 128u

typedef struct dart_sight {
    dart_node node;
    uint64_t *image;
} dart_sight;

typedef struct dart_ahead { /* of one batch */
    unsigned count, put;    /* sights; those whose READs are put */
    size_t leaves, enough;  /* that are promised; when they are enough no more is looked for */
    dart_sight sights[DART_AHEAD_NODES];
    uint8_t place[4 * DART_AHEAD_NODES]; /* number of a sight + 1, by its address; 0: none */
} dart_ahead;

/* In scratch memory; NULL: there is none, or nothing is kept. */
dart_ahead *dart_ahead_new(far_task *t, const far_index *index, size_t enough);
/* A node that is read in this batch: what is below it, in the order of keys. from, to (NULL: unbounded): keys that begin
 * with the node's prefix, between which it is wanted. */
void dart_ahead_gather(far_task *t, const far_index *index, dart_ahead *ahead, const dart_node *node,
                       const far_bytes *from, const far_bytes *to);
/* Puts the READs of what was gathered. */
int dart_ahead_put(far_task *t, const far_index *index, dart_ahead *ahead);
/* After the batch: all of a node that a word of this operation names; NULL: it was not read. */
uint64_t *dart_ahead_find(const dart_ahead *ahead, const dart_node *node);
/* In this operation these words of inner children, in order, stood in the node, which was linked. */
void dart_ahead_keep(far_task *t, const far_index *index, const dart_node *node, const uint64_t *words, unsigned count);
/* Children that a node of a type usually has. */
unsigned dart_usual_children(dart_node_type type);

#endif
