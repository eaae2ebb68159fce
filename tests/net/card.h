/* A network card of a test's own: the functions of the RDMA libraries that client and daemon call, both in this process.
 * The card runs verbs as soon as they are posted, or holds them until it is told to go on, so that every order of
 * posting, completing, waiting and cutting can be had without a device; and it fails where it is told to. It checks keys,
 * bounds and rights as a card does, and keeps no order that nobody promised: what rests on a fence that is missing goes
 * wrong. */
#ifndef TESTS_NET_CARD_H
#define TESTS_NET_CARD_H

#include "fabric/rdma.h"
#include "sim_rig.h"

#include <pthread.h>

#define CARD_NODES  2
#define CARD_BYTES  (32u << 20) /* of each */
#define CARD_WORD   (2u << 20)  /* offset of a word on each node */
#define CARD_INLINE 128

/* Of two READs of words that one doorbell posts, when both have been sampled: */
typedef enum card_retry { CARD_RETRIES_NONE, CARD_RETRIES_BOTH, CARD_RETRIES_THE_FIRST_ALONE } card_retry;

typedef struct card_id card_id;

typedef struct card_state {
    pthread_mutex_t lock;
    card_id *listeners;
    bool holds; /* verbs that are posted wait */
    bool refuses_requests, tells_nothing, wakes_nobody;
    unsigned inline_most; /* bytes of a WRITE that it takes with the request */
    unsigned bad;         /* the verb that fails, counted from 1 as posted is; 0: none */
    card_retry retry;
    bool (*retry_if)(uint64_t first, uint64_t second); /* only of words at such places; NULL: of all */
    bool tears;                                        /* READs inside of lines */
    unsigned pairs;                                    /* of READs that might have been sent again */
    unsigned posted, armed, destroyed;
    int depth_most;                         /* READs and atomics of a queue pair that it can have under way */
    struct rdma_conn_param asked, answered; /* of the last connection: by the client, by the node */
    uint8_t ack_timeout;
} card_state;

#define CARD_FRESH                                                                                                     \
    { .lock = PTHREAD_MUTEX_INITIALIZER, .inline_most = CARD_INLINE, .depth_most = 64 }

extern card_state card;
extern char card_uri[128];
extern far_fabric *card_fabric; /* of the nodes below */

void card_hold(bool holds);
void card_release(rig *r); /* what was held is run */

/* Two memory nodes with such a card, for the setup and teardown of a test. */
int card_open_nodes(void **state);
int card_close_nodes(void **state);
void card_join(rig *r, unsigned id); /* connects, and claims a session */
far_addr card_word_of(unsigned node);

#endif
