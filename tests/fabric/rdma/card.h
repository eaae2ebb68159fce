/* A simulated network card for tests without a device. It replaces the functions of the RDMA libraries that client and
 * daemon call; both run in this process. The card runs verbs as soon as they are posted, or holds them until the test
 * releases them. So a test can produce every order of posting, completing, waiting and fencing. A test can also make
 * the card fail. It checks keys, bounds and access rights like a real card. It keeps no order that is not guaranteed,
 * so code with a missing fence fails. */
#ifndef TESTS_NET_CARD_H
#define TESTS_NET_CARD_H

#include "fabric/rdma/rdma.h"
#include "sim_rig.h"

#include <pthread.h>

#define CARD_NODES  2
#define CARD_BYTES  (32u << 20) /* bytes of each memory node */
#define CARD_WORD   (2u << 20)  /* offset of a word on each node that tests use */
#define CARD_INLINE 128

/* Says which of two READs of words, posted with one doorbell, are retransmitted. After both READs have sampled the
 * memory, the retransmitted READs sample it again. */
typedef enum card_retry { CARD_RETRIES_NONE, CARD_RETRIES_BOTH, CARD_RETRIES_THE_FIRST_ALONE } card_retry;

typedef struct card_id card_id;

typedef struct card_state {
    pthread_mutex_t lock;
    card_id *listeners;
    bool holds; /* true while posted verbs wait for card_release */
    bool refuses_requests, reports_no_completions, sends_no_events;
    unsigned inline_max; /* longest WRITE in bytes whose data the card accepts inside the request (inline) */
    unsigned bad;        /* number of the verb that fails, in the order of posting, counted from 1; 0: none */
    card_retry retry;
    /* only pairs of READs at places for which this returns true are candidates for a retransmission; NULL: all */
    bool (*retry_if)(uint64_t first, uint64_t second);
    bool tears;     /* true if READs tear inside of cache lines */
    unsigned pairs; /* number of candidates for a retransmission so far; one of every eight is retransmitted */
    unsigned posted, armed, destroyed;
    int depth_most; /* number of READs and atomics that a queue pair can have under way */
    /* parameters of the last connection: those of the client, and those of the node */
    struct rdma_conn_param asked, answered;
    uint8_t ack_timeout;
} card_state;

#define CARD_FRESH                                                                                                     \
    { .lock = PTHREAD_MUTEX_INITIALIZER, .inline_max = CARD_INLINE, .depth_most = 64 }

extern card_state card;
extern char card_uri[128];
extern far_fabric *card_fabric; /* fabric of the two nodes */

void card_hold(bool holds);
void card_release(rig *r); /* lets the card run all held verbs */

/* Set-up and tear-down functions of a test with two memory nodes that use this card. */
int card_open_nodes(void **state);
int card_close_nodes(void **state);
void card_join(rig *r, unsigned id); /* connects, and claims session `id` */
far_addr card_word_of(unsigned node);

#endif
