/* The cost of the allocator with many sessions, counted in verbs and bytes, and the share of a full pool that is data.
 */
#include "alloc_rig.h"
#include "test.h"

enum { HANDLES = 64, SESSIONS = 8 };


/* ---- Many sessions ---- */

typedef struct crowd {
    far_pool *pools[HANDLES];
    far_session *sessions[HANDLES][SESSIONS];
    /* `indexes`: the listed indexes; `plain`: indexes with the same uids and the types of the rig */
    far_index *indexes[HANDLES], plain[HANDLES];
    far_sim_world *world;
    /* `verbs`: number of verbs on the allocator's tables; `swaps`: number of CASes of block entries among them */
    uint64_t verbs, swaps;
} crowd;


static bool is_table(const far_geometry *g, far_addr addr) {
    unsigned node = far_addr_node(addr);
    return node < g->nodes && far_addr_offset(addr) >= g->node[node].entries &&
           far_addr_offset(addr) < g->node[node].first_block;
}


static void count_verbs(void *ctx, const far_sim_posted *posted) {
    crowd *c = ctx;
    c->verbs += is_table(&c->pools[0]->geometry, posted->verb->addr);
    c->swaps += posted->verb->kind == FAR_CAS && is_table(&c->pools[0]->geometry, posted->verb->addr);
}


typedef struct member {
    crowd *crowd;
    unsigned handle, session;
    int result;
} member;


/* Allocates and retires objects of four sizes, like an index with a few types. */
static int use_some(far_task *t, void *arg) {
    member *m = arg;
    far_index *index = &m->crowd->plain[m->handle];
    static const uint64_t sizes[] = {64, 256, 512, 1024};
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 16 && err == 0; i++) {
        far_object object;
        err = far_alloc(t, index, PLAIN, sizes[i % 4], FAR_NODE_ANY, 0, &object);
        if (err == 0)
            far_retire(t, index, PLAIN, object.addr, sizes[i % 4]);
    }
    far_pin_drop(t);
    return err;
}


/* Allocates so much that every handle needs some blocks; all sessions do this at the same time. */
static int use_many(far_task *t, void *arg) {
    member *m = arg;
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 100 && err == 0; i++) {
        far_object object;
        err = far_alloc(t, &m->crowd->plain[m->handle], PLAIN, 4096, FAR_NODE_ANY, 0, &object);
        if (err == 0)
            far_retire(t, &m->crowd->plain[m->handle], PLAIN, object.addr, 4096);
    }
    far_pin_drop(t);
    return err;
}


static void many_main(void *arg) {
    member *m = arg;
    m->result = far_session_call(m->crowd->sessions[m->handle][m->session], FAR_STATS_OTHER, true, use_many, m);
}


static void member_main(void *arg) {
    member *m = arg;
    m->result = far_session_call(m->crowd->sessions[m->handle][m->session], FAR_STATS_OTHER, true, use_some, m);
}


static unsigned owned_blocks(const crowd *c) {
    const far_geometry *g = &c->pools[0]->geometry;
    unsigned count = 0;
    for (uint32_t i = 0; i < g->node[0].blocks; i++) {
        uint64_t word;
        memcpy(&word, (const char *)far_sim_memory(c->world, 0) + far_block_entry(g, (far_block_id){0, i}), 8);
        count += far_block_unpack(word).kind != FAR_BLOCK_FREE;
    }
    return count;
}


static void run_members(crowd *c, member *members, void (*run)(void *arg)) {
    c->verbs = c->swaps = 0;
    far_sim_on_verb(c->world, count_verbs, c);
    for (unsigned i = 0; i < HANDLES * SESSIONS; i++) {
        members[i] = (member){c, i % HANDLES, i / HANDLES, 77};
        assert_non_null(far_sim_start(c->pools[i % HANDLES]->fabric, "member", run, &members[i]));
    }
    assert_int_equal(far_sim_run(c->world), FAR_SIM_ENDED);
    far_sim_on_verb(c->world, NULL, NULL);
    for (unsigned i = 0; i < HANDLES * SESSIONS; i++)
        assert_int_equal(members[i].result, 0);
}


/* 512 sessions of 64 handles use a pool of 1 GiB at the same time. Their first objects cost at most four verbs per
 * session on the allocator's tables, at most 5 % of the pool are held in blocks, and at most one of five CASes of block
 * entries fails. The last of these three limits is exceeded without the random choice in take_random_blocks
 * (exchange.c). */
TEST(many_sessions_cost_little) {
    static crowd c;
    static member members[HANDLES * SESSIONS];
    c = (crowd){0};
    for (unsigned h = 0; h < HANDLES; h++) {
        far_pool_options options = FAR_POOL_OPTIONS_INIT;
        assert_int_equal(far_pool_open("sim:name=crowd,seed=1,size=1G,limit=200s", &options, &c.pools[h]), 0);
        for (unsigned s = 0; s < SESSIONS; s++)
            assert_int_equal(far_session_open(c.pools[h], &c.sessions[h][s]), 0);
        if (h == 0)
            assert_int_equal(far_index_create(c.sessions[0][0], "x", "toy", "slots=16", &c.indexes[0]), 0);
        else
            assert_int_equal(far_index_open(c.sessions[h][0], "x", &c.indexes[h]), 0);
        c.plain[h] = (far_index){.kind = &kind, .pool = c.pools[h], .uid = c.indexes[h]->uid};
    }
    c.world = far_sim_world_of(c.pools[0]->fabric);
    far_sim_sleep(c.world, 1000000);
    run_members(&c, members, member_main);
    print_message("%llu verbs on tables for the first objects of %d sessions, %llu KiB in their blocks\n",
                  (unsigned long long)c.verbs, HANDLES * SESSIONS,
                  (unsigned long long)(owned_blocks(&c) * c.pools[0]->geometry.block_bytes >> 10));
    assert_true(c.verbs <= 4ull * HANDLES * SESSIONS);
    assert_true(owned_blocks(&c) * c.pools[0]->geometry.block_bytes * 20 <= c.pools[0]->geometry.node_bytes[0]);
    unsigned before = owned_blocks(&c);
    run_members(&c, members, many_main);
    unsigned taken = owned_blocks(&c) - before;
    uint64_t failed = c.swaps - taken;
    print_message("%u blocks taken, %llu failed CASes\n", taken, (unsigned long long)failed);
    assert_true(taken > HANDLES);
    assert_true(failed * 5 <= taken);
    assert_int_equal(far_sim_watch_errors(c.world), 0);
    for (unsigned h = 0; h < HANDLES; h++) {
        far_index_close(c.indexes[h]);
        for (unsigned s = 0; s < SESSIONS; s++)
            far_session_close(c.sessions[h][s]);
    }
    for (unsigned h = 0; h < HANDLES; h++)
        far_pool_close(c.pools[h]);
}


/* ---- A full pool ---- */

static void fill_one_size(void *arg) {
    actor *a = arg;
    char key[32];
    a->result = 0;
    for (a->puts = 0; a->result == 0; a->puts += a->result == 0) {
        snprintf(key, sizeof(key), "%u-%u", a->number, a->puts);
        a->result = put(a, key, a->bytes);
    }
}


/* Six handles fill a pool together. When the first of them gets FAR_ERR_NO_MEMORY, values occupy at least 90 % of the
 * bytes in blocks. */
TEST(live_data_fills_the_pool) {
    static const size_t sizes[] = {980, 200, 3900};
    for (unsigned k = 0; k < 3; k++) {
        rig r;
        open_rig_with(&r, 100 + k, 6, 0, "size=16M", 65536);
        uint64_t total = far_block_total(&r.actors[0].pool->geometry) * r.actors[0].pool->geometry.block_bytes;
        uint64_t fixed = 0, live = 0;
        far_pool_usage usage;
        assert_int_equal(far_session_open(r.actors[0].pool, &r.actors[0].other), 0);
        assert_int_equal(far_pool_stat(r.actors[0].other, &usage), 0);
        fixed = usage.used;
        for (unsigned i = 0; i < r.count; i++) {
            r.actors[i].bytes = sizes[k];
            start(&r.actors[i], "filler", fill_one_size);
        }
        bool full = false;
        while (!full) {
            far_sim_run_for(r.world, 1000000);
            for (unsigned i = 0; i < r.count; i++)
                full |= far_sim_ended(r.actors[i].client);
        }
        assert_int_equal(far_pool_stat(r.actors[0].other, &usage), 0);
        live = usage.used;
        print_message("values of %zu bytes: %llu of %llu KiB in use\n", sizes[k], (unsigned long long)live >> 10,
                      (unsigned long long)usage.total >> 10);
        assert_true(live > fixed && live <= usage.total);
        assert_true(live * 10 >= total * 9);
        run_all(&r);
        close_rig(&r);
    }
}
