/* A pool that is full: all of it comes back, wiped and as what it was; and what the reserve is for. */
#include "alloc_rig.h"


static void a_full_pool_says_so_and_all_of_it_comes_back(void **state) {
    (void)state;
    bench b;
    open_bench(&b, "sim:seed=1,memory_nodes=2,size=2M", &kind);
    uint64_t used = bench_stat(&b).used;
    static const uint64_t sizes[] = {100, 4000, 30000, 64, 50000, 200000, 16, 100};
    unsigned first = 0;
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        filling f = new_filling(PLAIN, sizes[i]);
        assert_int_equal(bench_call(&b, b.session, fill_pool, &f), FAR_ERR_NO_MEMORY);
        far_pool_usage now = bench_stat(&b);
        if (sizes[i] == 100 && first == 0) {
            first = f.count;
            assert_true(f.count * 112ull * 100 >= now.total * 85); /* little is lost to tables and waste */
        } else if (sizes[i] == 100) {
            assert_true(f.count >= first - 2); /* the pool as it was */
        }
        assert_int_equal(bench_call(&b, b.session, empty_pool, &f), 0);
        bench_epochs(&b, 6);
        assert_true(bench_stat(&b).used <= used + 4096); /* ends of slabs of which the session has something at hand */
        free(f.objects);
    }
    close_bench(&b);
}


static void stable_memory_is_never_used_for_another_type(void **state) {
    (void)state;
    bench b;
    open_bench(&b, "sim:seed=1,size=4M", &kind);
    filling stable = new_filling(STABLE, 512), other = new_filling(PLAIN, 512), third = new_filling(STABLE, 1024);
    stable.room = 2000;
    assert_int_equal(bench_call(&b, b.session, fill_pool, &stable), 0);
    unsigned count = stable.count;
    far_object *mine = malloc(count * sizeof(*mine));
    memcpy(mine, stable.objects, count * sizeof(*mine));
    qsort(mine, count, sizeof(*mine), by_address);
    assert_int_equal(bench_call(&b, b.session, empty_pool, &stable), 0);
    bench_epochs(&b, 6);
    assert_int_equal(bench_call(&b, b.session, fill_pool, &other), FAR_ERR_NO_MEMORY);
    assert_int_equal(bench_call(&b, b.session, fill_pool, &third), FAR_ERR_NO_MEMORY);
    for (unsigned i = 0; i < other.count + third.count; i++) {
        far_object *o = i < other.count ? &other.objects[i] : &third.objects[i - other.count];
        far_object *below = NULL;
        for (unsigned k = 0; k < count && mine[k].addr <= o->addr; k++)
            below = &mine[k];
        assert_true(!below || below->addr + below->size <= o->addr);
    }
    stable.room = count;
    assert_int_equal(bench_call(&b, b.session, fill_pool, &stable), 0); /* they are all still there */
    free(stable.objects);
    free(other.objects);
    free(third.objects);
    free(mine);
    close_bench(&b);
}


/* Blocks go back to the pool wiped, and are known as used. */

static int dirty_all(far_task *t, bench *b) {
    filling *f = b->arg;
    int err = fill_pool(t, b);
    char *dirt = far_scratch(t, f->size);
    memset(dirt, 0xee, f->size);
    for (unsigned i = 0; i < f->count && err == 0; i++) {
        assert_false(f->objects[i].used);
        far_write(t, f->objects[i].addr, dirt, f->size);
        err = far_wait(t);
    }
    return err;
}


static int look_for_dirt(far_task *t, bench *b) {
    const far_geometry *g = &b->pool->geometry;
    bool *free_used = b->arg; /* by block */
    uint64_t *bytes = far_scratch(t, g->block_bytes),
             *entries = far_scratch(t, g->node[0].blocks * FAR_BLOCK_ENTRY_BYTES);
    assert_int_equal(far_blocks_read(t, 0, 0, (uint32_t)g->node[0].blocks, entries), 0);
    for (uint32_t i = 0; i < g->node[0].blocks; i++) {
        far_block_state s = far_block_unpack(entries[FAR_BLOCK_ENTRY_WORDS * i]);
        if (s.kind != FAR_BLOCK_FREE)
            continue;
        free_used[i] = s.used;
        far_read(t, far_block_base(g, (far_block_id){0, i}), bytes, g->block_bytes);
        assert_int_equal(far_wait(t), 0);
        for (uint64_t w = 0; w < g->block_bytes / 8; w++)
            assert_int_equal(bytes[w], 0);
    }
    return 0;
}


static void free_blocks_go_back_wiped_and_marked_as_used(void **state) {
    (void)state;
    bench b;
    open_bench(&b, "sim:seed=1,size=4M", &kind);
    filling f = new_filling(PLAIN, 1000), runs = new_filling(PLAIN, 150000);
    f.room = 1000;
    runs.room = 5;
    assert_int_equal(bench_call(&b, b.session, dirty_all, &f), 0);
    assert_int_equal(bench_call(&b, b.session, dirty_all, &runs), 0);
    assert_int_equal(bench_call(&b, b.session, empty_pool, &f), 0);
    assert_int_equal(bench_call(&b, b.session, empty_pool, &runs), 0);
    bench_epochs(&b, 24);
    bool free_used[64] = {false};
    unsigned count = 0, met = 0;
    assert_true(b.pool->geometry.node[0].blocks <= 64);
    assert_int_equal(bench_call(&b, b.session, look_for_dirt, free_used), 0);
    for (unsigned i = 0; i < 64; i++)
        count += free_used[i];
    assert_in_range(count, 15 + 5 * 3 - 2, 64); /* some objects may lie in a magazine */
    assert_int_equal(bench_call(&b, b.session, fill_pool, &f), 0);
    for (unsigned i = 0; i < f.count; i++) {
        far_block_id id = {0, 0};
        assert_true(far_block_of(&b.pool->geometry, f.objects[i].addr, &id));
        met += free_used[id.index];
        assert_true(f.objects[i].used || !free_used[id.index]);
    }
    assert_true(met > 100);
    free(f.objects);
    free(runs.objects);
    close_bench(&b);
}


/* The reserve. */

static int write_something(far_task *t, bench *b) {
    far_object object;
    return far_alloc(t, &b->index, PLAIN, 64, FAR_NODE_ANY, 0, &object);
}


static int from_reserve(far_task *t, bench *b) {
    far_object object;
    uint64_t size = *(uint64_t *)b->arg;
    return far_alloc(t, &b->index, size == 64 ? STABLE : PLAIN, size, FAR_NODE_ANY, FAR_ALLOC_RESERVE | FAR_ALLOC_ZERO,
                     &object);
}


static void the_reserve_is_there_when_the_pool_is_full_and_is_filled_again(void **state) {
    (void)state;
    bench b;
    open_bench(&b, "sim:seed=1,size=4M", &frugal_kind);
    filling f = new_filling(PLAIN, 3000), g = new_filling(PLAIN, 4000), h = new_filling(STABLE, 64);
    assert_int_equal(bench_call(&b, b.session, write_something, NULL), 0);
    assert_int_equal(bench_call(&b, b.session, fill_pool, &f), FAR_ERR_NO_MEMORY);
    assert_int_equal(bench_call(&b, b.session, fill_pool, &g), FAR_ERR_NO_MEMORY);
    assert_int_equal(bench_call(&b, b.session, fill_pool, &h), FAR_ERR_NO_MEMORY);
    uint64_t large = 4000, small = 64;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(bench_call(&b, b.session, from_reserve, &large), 0);
    assert_int_equal(bench_call(&b, b.session, from_reserve, &large), FAR_ERR_NO_MEMORY);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(bench_call(&b, b.session, from_reserve, &small), 0);
    assert_int_equal(bench_call(&b, b.session, from_reserve, &small), FAR_ERR_NO_MEMORY);
    assert_int_equal(bench_call(&b, b.session, write_something, NULL), FAR_ERR_NO_MEMORY); /* first the reserve */
    assert_int_equal(bench_call(&b, b.session, empty_pool, &f), 0);
    assert_int_equal(bench_call(&b, b.session, write_something, NULL), 0);
    assert_int_equal(bench_call(&b, b.session, fill_pool, &f), FAR_ERR_NO_MEMORY);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(bench_call(&b, b.session, from_reserve, &large), 0);
    free(f.objects);
    free(g.objects);
    free(h.objects);
    close_bench(&b);
}


static void without_its_reserve_an_index_is_not_written(void **state) {
    (void)state;
    bench b;
    open_bench(&b, "sim:seed=1,size=4M", &kind);
    filling f = new_filling(PLAIN, 4000), small = new_filling(PLAIN, 1000);
    assert_int_equal(bench_call(&b, b.session, fill_pool, &f), FAR_ERR_NO_MEMORY);
    assert_int_equal(bench_call(&b, b.session, fill_pool, &small), FAR_ERR_NO_MEMORY);
    b.index.kind = &frugal_kind;
    b.index.uid = b.listed[1]->uid;
    uint64_t free_bytes = bench_stat(&b).free;
    assert_int_equal(bench_call(&b, b.session, write_something, NULL), FAR_ERR_NO_MEMORY);
    assert_true(bench_stat(&b).free + 4096 >= free_bytes); /* at most the table of kept objects */
    b.index.kind = &kind;
    b.index.uid = b.listed[0]->uid;
    assert_int_equal(bench_call(&b, b.session, empty_pool, &f), 0);
    b.index.kind = &frugal_kind;
    b.index.uid = b.listed[1]->uid;
    assert_int_equal(bench_call(&b, b.session, write_something, NULL), 0);
    free(f.objects);
    free(small.objects);
    close_bench(&b);
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_pool_says_so_and_all_of_it_comes_back),
        cmocka_unit_test(stable_memory_is_never_used_for_another_type),
        cmocka_unit_test(free_blocks_go_back_wiped_and_marked_as_used),
        cmocka_unit_test(the_reserve_is_there_when_the_pool_is_full_and_is_filled_again),
        cmocka_unit_test(without_its_reserve_an_index_is_not_written),
    };
    return cmocka_run_group_tests_name("alloc_full", tests, NULL, NULL);
}
