/* See damage_rig.h. */
#include "damage_rig.h"
#include "base/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERB_NS   1000    /* how long a verb takes, in virtual time */
#define PARKS_MAX 5000000 /* of one call: it waits for something that is no verb, and would for ever */

#define RIG_CLAIMS 16 /* the last ones: of connections that are open */

typedef struct claim {
    far_conn *conn;
    unsigned id, generation;
} claim;

const far_pool_options rig_options = {.rdwc = 1, .no_thread = 1};

static struct {
    uint64_t now, posted, allowed, parks, image_at;
    char *taken;
    bool refuse;
    void (*meanwhile)(void *arg), (*at_verbs)(void *arg);
    void *meanwhile_arg, *at_verbs_arg;
    claim claims[RIG_CLAIMS];
    unsigned claim_count;
    far_random secrets;
    far_fabric *fabric; /* keeps the memory */
    const far_fabric_ops *real;
    far_fabric_ops counted;
    const far_host_ops *threads;
} rig;


static void give_up(const char *why) {
    fprintf(stderr, "damage_rig: %s\n", why);
    abort();
}


/* ---- Virtual time: whoever waits has waited ---- */

static uint64_t virtual_now(far_host *host) {
    (void)host;
    return rig.now += 10;
}


static void virtual_park(far_host *host, far_parker *parker, uint64_t until) {
    (void)host;
    if (++rig.parks > PARKS_MAX)
        give_up("a call waits for ever, without a verb");
    if (atomic_exchange_explicit(&parker->token, 0, memory_order_relaxed))
        return;
    if (until == FAR_TIME_NEVER)
        give_up("a call waits for somebody who is not there");
    if (until > rig.now)
        rig.now = until;
    void (*meanwhile)(void *arg) = rig.meanwhile;
    rig.meanwhile = NULL; /* not while it runs */
    if (meanwhile) {
        meanwhile(rig.meanwhile_arg);
        rig.meanwhile = meanwhile;
    }
}


static void virtual_unpark(far_host *host, far_parker *parker) {
    (void)host;
    atomic_store_explicit(&parker->token, 1, memory_order_relaxed);
}


static void seeded_secret(far_host *host, void *bytes, size_t count) {
    (void)host;
    for (size_t i = 0; i < count; i++)
        ((uint8_t *)bytes)[i] = (uint8_t)far_random_next(&rig.secrets);
}


static int no_thread(far_host *host, void (*run)(void *arg), void *arg, far_thread **thread) {
    (void)host, (void)run, (void)arg, (void)thread;
    return FAR_ERR_NO_MEMORY;
}


/* ---- Counted verbs ---- */

/* For a debugger: who posts too much. */
__attribute__((noinline)) void rig_cut_here(void) {
    __asm__ volatile("");
}


static void counted_post(far_conn *conn, far_batch *batch) {
    if (rig.at_verbs)
        rig.at_verbs(rig.at_verbs_arg);
    rig.now += VERB_NS;
    rig.posted += batch->count;
    if (rig.image_at && rig.posted >= rig.image_at && !rig.taken)
        rig.taken = rig_image();
    if (rig.posted > rig.allowed) {
        rig_cut_here();
        rig.real->fence_self(conn);
    }
    rig.real->post(conn, batch);
}


/* ---- Eviction: the local fabric has none, so a client that is stopped here is cut off by the rig ---- */

static int noted_claim(far_conn *conn, unsigned id, unsigned generation) {
    for (unsigned i = 0; i < RIG_CLAIMS; i++) /* of a pool that is gone */
        if (rig.claims[i].id == id && rig.claims[i].generation == generation)
            rig.claims[i].conn = NULL;
    rig.claims[rig.claim_count++ % RIG_CLAIMS] = (claim){conn, id, generation};
    return rig.real->claim(conn, id, generation);
}


static int evict(far_conn *asker, unsigned id, unsigned generation) {
    (void)asker;
    if (rig.refuse)
        return FAR_ERR_UNREACHABLE;
    for (unsigned i = 0; i < RIG_CLAIMS; i++)
        if (rig.claims[i].conn && rig.claims[i].id == id && rig.claims[i].generation == generation)
            rig.real->fence_self(rig.claims[i].conn);
    return 0;
}


int __real_far_local_open(const char *rest, far_fabric **fabric);
int __wrap_far_local_open(const char *rest, far_fabric **fabric);


int __wrap_far_local_open(const char *rest, far_fabric **fabric) {
    int err = __real_far_local_open(rest, fabric);
    if (err)
        return err;
    rig.real = (*fabric)->ops;
    rig.counted = *rig.real;
    rig.counted.post = counted_post;
    rig.counted.claim = noted_claim;
    rig.counted.evict = evict;
    (*fabric)->ops = &rig.counted;
    return 0;
}


void rig_start(void) {
    static const far_host_ops virtual_ops = {.now = virtual_now,
                                             .park = virtual_park,
                                             .unpark = virtual_unpark,
                                             .start = no_thread,
                                             .secret = seeded_secret};
    rig.now = 1000000;
    rig.threads = far_host_threads.ops;
    far_host_threads.ops = &virtual_ops;
    rig_seed(1);
    rig_allow(UINT64_MAX);
    if (far_fabric_open(RIG_URI, &rig.fabric) < 0)
        give_up(far_last_error());
}


void rig_end(void) {
    rig.real->close(rig.fabric);
    far_host_threads.ops = rig.threads;
}


char *rig_memory(unsigned node) {
    return rig.fabric->memory[node];
}


void rig_seed(uint64_t seed) {
    far_random_seed(&rig.secrets, seed);
}


char *rig_image(void) {
    char *image = malloc((size_t)RIG_NODES * RIG_BYTES);
    if (!image)
        give_up("no memory for an image");
    for (unsigned n = 0; n < RIG_NODES; n++)
        memcpy(image + (size_t)n * RIG_BYTES, rig_memory(n), RIG_BYTES);
    return image;
}


void rig_restore(const char *image) {
    rig.now = 1000000; /* so that a damage can be replayed by itself */
    for (unsigned n = 0; n < RIG_NODES; n++)
        memcpy(rig_memory(n), image + (size_t)n * RIG_BYTES, RIG_BYTES);
}


void rig_allow(uint64_t verbs) {
    rig.posted = rig.parks = 0;
    rig.allowed = verbs;
}


bool rig_is_cut(void) {
    return rig.posted > rig.allowed;
}


uint64_t rig_posted(void) {
    return rig.posted;
}


void rig_refuse_evictions(bool refuse) {
    rig.refuse = refuse;
}


void rig_meanwhile(void (*run)(void *arg), void *arg) {
    rig.meanwhile = run;
    rig.meanwhile_arg = arg;
}


void rig_at_verbs(void (*run)(void *arg), void *arg) {
    rig.at_verbs = run;
    rig.at_verbs_arg = arg;
}


void rig_pass_time(uint64_t ns) {
    rig.now += ns;
}


void rig_image_at(uint64_t verbs) {
    rig.image_at = verbs ? rig.posted + verbs : 0;
    rig.taken = NULL;
}


char *rig_taken(void) {
    return rig.taken;
}
