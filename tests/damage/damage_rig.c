/* The implementation of damage_rig.h: virtual time, verbs that are counted and can be cut off, and evictions. */
#include "damage_rig.h"
#include "base/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERB_NS 1000 /* virtual time in ns that a verb takes */
/* Largest number of waits of one call. A call with more waits never ends, because it waits for an event that is not a
 * verb. */
#define PARKS_MAX 5000000

#define RIG_CLAIMS 16 /* number of client claims that the rig remembers, which is enough for the open connections */

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
    far_fabric *fabric; /* fabric that owns the memory of the pool */
    const far_fabric_ops *real;
    far_fabric_ops counted;
    const far_host_ops *threads;
} rig;


static void abort_test(const char *why) {
    fprintf(stderr, "damage_rig: %s\n", why);
    abort();
}


/* ---- Virtual time: a wait returns at once and advances the time ---- */

static uint64_t virtual_now(far_host *host) {
    (void)host;
    return rig.now += 10;
}


static void virtual_park(far_host *host, far_parker *parker, uint64_t until) {
    (void)host;
    if (++rig.parks > PARKS_MAX)
        abort_test("a call waits forever without posting a verb");
    if (atomic_exchange_explicit(&parker->token, 0, memory_order_relaxed))
        return;
    if (until == FAR_TIME_NEVER)
        abort_test("a call waits for another thread, and there is none");
    if (until > rig.now)
        rig.now = until;
    void (*meanwhile)(void *arg) = rig.meanwhile;
    rig.meanwhile = NULL; /* The function is not called again while it runs. */
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


static int refuse_thread(far_host *host, void (*run)(void *arg), void *arg, far_thread **thread) {
    (void)host, (void)run, (void)arg, (void)thread;
    return FAR_ERR_NO_MEMORY;
}


/* ---- Counted verbs ---- */

/* A place for a breakpoint: called by every post after the limit is exceeded. */
__attribute__((noinline)) void rig_break_here(void) {
    __asm__ volatile("");
}


static void counted_post(far_conn *conn, far_batch *batch) {
    if (rig.at_verbs)
        rig.at_verbs(rig.at_verbs_arg);
    rig.now += VERB_NS;
    rig.posted += batch->count;
    if (rig.image_at && rig.posted >= rig.image_at && !rig.taken)
        rig.taken = rig_copy_pool();
    if (rig.posted > rig.allowed) {
        rig_break_here();
        rig.real->fence_self(conn);
    }
    rig.real->post(conn, batch);
}


/* ---- Eviction. The `local` fabric has none, so the rig fences the connection of a client that is evicted ---- */

static int record_claim(far_conn *conn, unsigned id, unsigned generation) {
    for (unsigned i = 0; i < RIG_CLAIMS; i++) /* This loop forgets claims of pools that were closed. */
        if (rig.claims[i].id == id && rig.claims[i].generation == generation)
            rig.claims[i].conn = NULL;
    rig.claims[rig.claim_count++ % RIG_CLAIMS] = (claim){conn, id, generation};
    return rig.real->claim(conn, id, generation);
}


static int fence_client(far_conn *asker, const far_control *request) {
    (void)asker;
    if (rig.refuse)
        return FAR_ERR_UNREACHABLE;
    for (unsigned i = 0; i < RIG_CLAIMS; i++)
        if (rig.claims[i].conn && rig.claims[i].id == request->id && rig.claims[i].generation == request->generation)
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
    rig.counted.claim = record_claim;
    rig.counted.evict = fence_client;
    (*fabric)->ops = &rig.counted;
    return 0;
}


int rig_start(__attribute__((unused)) void **state) {
    static const far_host_ops virtual_ops = {.now = virtual_now,
                                             .park = virtual_park,
                                             .unpark = virtual_unpark,
                                             .start = refuse_thread,
                                             .secret = seeded_secret};
    rig.now = 1000000;
    rig.threads = far_host_threads.ops;
    far_host_threads.ops = &virtual_ops;
    rig_seed(1);
    rig_limit_verbs(UINT64_MAX);
    if (far_fabric_open(RIG_URI, &rig.fabric) < 0)
        abort_test(far_last_error());
    return 0;
}


int rig_end(__attribute__((unused)) void **state) {
    rig.real->close(rig.fabric);
    far_host_threads.ops = rig.threads;
    return 0;
}


char *rig_memory(unsigned node) {
    return rig.fabric->memory[node];
}


void rig_seed(uint64_t seed) {
    far_random_seed(&rig.secrets, seed);
}


char *rig_copy_pool(void) {
    char *image = malloc((size_t)RIG_NODES * RIG_BYTES);
    if (!image)
        abort_test("no memory for an image");
    for (unsigned n = 0; n < RIG_NODES; n++)
        memcpy(image + (size_t)n * RIG_BYTES, rig_memory(n), RIG_BYTES);
    return image;
}


void rig_restore_pool(const char *image) {
    rig.now = 1000000; /* Resetting the time makes each damage repeatable without the earlier ones. */
    for (unsigned n = 0; n < RIG_NODES; n++)
        memcpy(rig_memory(n), image + (size_t)n * RIG_BYTES, RIG_BYTES);
}


void rig_limit_verbs(uint64_t verbs) {
    rig.posted = rig.parks = 0;
    rig.allowed = verbs;
}


bool rig_limit_is_exceeded(void) {
    return rig.posted > rig.allowed;
}


uint64_t rig_posted_verbs(void) {
    return rig.posted;
}


void rig_refuse_evictions(bool refuse) {
    rig.refuse = refuse;
}


void rig_run_while_waiting(void (*run)(void *arg), void *arg) {
    rig.meanwhile = run;
    rig.meanwhile_arg = arg;
}


void rig_run_at_verbs(void (*run)(void *arg), void *arg) {
    rig.at_verbs = run;
    rig.at_verbs_arg = arg;
}


void rig_advance_time(uint64_t ns) {
    rig.now += ns;
}


void rig_copy_pool_after(uint64_t verbs) {
    rig.image_at = verbs ? rig.posted + verbs : 0;
    rig.taken = NULL;
}


char *rig_copied_pool(void) {
    return rig.taken;
}
