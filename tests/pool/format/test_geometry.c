/* Tests of the layout of a pool (far_geometry_make), which is pure arithmetic and needs no fabric. */
#include "test.h"
#include "base/error.h"
#include "base/random.h"
#include "pool/alloc/blocks.h"
#include "pool/format/clients.h"

#include <string.h>

static const far_capabilities usual_capabilities = {.atomic_bytes = 8, .masked_cas = true, .atomics_in_order = true};


static uint64_t end_of_bitmaps(const far_geometry *g, unsigned n) {
    return g->node[n].bitmaps + g->node[n].blocks * (g->block_bytes / FAR_GRANULE / 8);
}


static void check_layout_is_sound(const far_geometry *g) {
    assert_int_equal(g->block_bytes & (g->block_bytes - 1), 0);
    assert_true(g->block_bytes >= FAR_BLOCK_BYTES_MIN && g->block_bytes <= FAR_BLOCK_BYTES_MAX);
    assert_int_equal(g->page_bytes * FAR_BLOCK_PAGES, g->block_bytes);
    assert_true(g->session_slots >= 64 && g->session_slots <= FAR_CLIENT_ID_MAX);
    for (unsigned n = 0; n < g->nodes; n++) {
        uint64_t before = n == 0 ? FAR_SUPER_REGISTRY + (g->session_slots + 1ull) * FAR_CLIENT_BYTES : 64;
        uint64_t blocks = g->node[n].blocks;
        assert_true(blocks >= 4);
        assert_int_equal((g->node[n].entries | g->node[n].pages | g->node[n].bitmaps | g->node[n].marks) % 64, 0);
        assert_int_equal(g->node[n].first_block % 4096, 0);
        assert_true(before <= g->node[n].entries);
        assert_true(g->node[n].entries + FAR_BLOCK_ENTRY_BYTES * blocks <= g->node[n].pages);
        assert_true(g->node[n].pages + 8ull * FAR_BLOCK_PAGES * blocks <= g->node[n].bitmaps);
        assert_true(end_of_bitmaps(g, n) <= g->node[n].marks);
        assert_true(g->node[n].marks + blocks * (g->block_bytes / 128) <= g->node[n].first_block);
        uint64_t end = g->node[n].first_block + blocks * g->block_bytes;
        assert_true(end <= g->node_bytes[n]);
        /* The unused rest of a node is smaller than one block with its tables and the loss by rounding. */
        assert_true(g->node_bytes[n] - end < g->block_bytes + 544 + 2 * (g->block_bytes / 128) + 4096);
    }
}


/* In pools of 1 to 8 nodes with random sizes, the tables and blocks of each node do not overlap, and the unused rest is
 * smaller than one block. */
TEST(nothing_overlaps_and_nothing_is_wasted) {
    far_random random;
    far_random_seed(&random, 7);
    for (int round = 0; round < 3000; round++) {
        uint64_t bytes[8];
        unsigned nodes = 1 + (unsigned)far_random_below(&random, 8);
        for (unsigned n = 0; n < nodes; n++)
            bytes[n] = ((2ull << 20) + (far_random_next(&random) >> (24 + far_random_below(&random, 18)))) & ~7ull;
        far_geometry g;
        int err = far_geometry_make(nodes, bytes, &usual_capabilities, 5, &g);
        assert_int_equal(err, 0);
        check_layout_is_sound(&g);
    }
}


/* Pools of 1 to 256 equal nodes of 2 MiB to 1 TiB have a valid layout. */
TEST(equal_nodes_of_every_size_work) {
    for (unsigned nodes = 1; nodes <= FAR_NODES_MAX; nodes = nodes * 2 + (nodes == 1))
        for (uint64_t size = 2ull << 20; size <= FAR_NODE_BYTES_MAX; size *= 2) {
            uint64_t bytes[FAR_NODES_MAX];
            for (unsigned n = 0; n < nodes && n < FAR_NODES_MAX; n++)
                bytes[n] = size;
            far_geometry g;
            int err = far_geometry_make(nodes, bytes, &usual_capabilities, 5, &g);
            assert_int_equal(err, 0);
            check_layout_is_sound(&g);
        }
}


/* The block size and the number of session ids grow with the pool, up to 4 MiB and 16382. */
TEST(sizes_grow_with_the_pool_up_to_their_bounds) {
    far_geometry g;
    uint64_t small = 4ull << 20, middle = 1ull << 30, large = 1ull << 40;
    assert_int_equal(far_geometry_make(1, &small, &usual_capabilities, 1, &g), 0);
    assert_int_equal(g.block_bytes, 64 << 10);
    assert_int_equal(g.session_slots, 256);
    for (uint64_t size = 16ull << 20; size <= 2ull << 30; size *= 2) {
        assert_int_equal(far_geometry_make(1, &size, &usual_capabilities, 1, &g), 0);
        assert_int_equal(g.block_bytes, size <= 16 << 20 ? 64 << 10 : size == 32 << 20 ? 128 << 10 : 256 << 10);
    }
    assert_int_equal(far_geometry_make(1, &middle, &usual_capabilities, 1, &g), 0);
    assert_int_equal(g.block_bytes, 256 << 10);
    assert_int_equal(g.session_slots, 16382);
    assert_int_equal(far_geometry_make(1, &large, &usual_capabilities, 1, &g), 0);
    assert_int_equal(g.block_bytes, 4 << 20);
    assert_int_equal(g.session_slots, 16382);
}


/* Nodes that are too small, too large or not a multiple of 8 bytes are refused, and so are 0 and 257 nodes. The text
 * names the node. */
TEST(nodes_of_impossible_sizes_are_refused_with_a_reason) {
    far_geometry g;
    uint64_t bytes[2] = {1 << 20, 128 << 10};
    far_fail_clear();
    assert_int_equal(far_geometry_make(2, bytes, &usual_capabilities, 1, &g), FAR_ERR_INVALID);
    assert_non_null(strstr(far_last_error(), "node 1"));
    bytes[0] = 0;
    assert_int_equal(far_geometry_make(1, bytes, &usual_capabilities, 1, &g), FAR_ERR_INVALID);
    bytes[0] = FAR_NODE_BYTES_MAX + 8;
    assert_int_equal(far_geometry_make(1, bytes, &usual_capabilities, 1, &g), FAR_ERR_INVALID);
    bytes[0] = (64 << 20) + 4;
    assert_int_equal(far_geometry_make(1, bytes, &usual_capabilities, 1, &g), FAR_ERR_INVALID);
    bytes[0] = 64 << 20;
    assert_int_equal(far_geometry_make(0, bytes, &usual_capabilities, 1, &g), FAR_ERR_INVALID);
    assert_int_equal(far_geometry_make(257, bytes, &usual_capabilities, 1, &g), FAR_ERR_INVALID);
}


/* The layout is part of the on-disk format, because pools exist longer than programs. These numbers must not change
 * unless the format version does. src/pool/README.md contains the same numbers. */
TEST(the_layout_of_a_pool_never_changes) {
    far_geometry g;
    const uint64_t bytes = 512ull << 20;
    assert_int_equal(far_geometry_make(1, &bytes, &usual_capabilities, 1, &g), 0);
    assert_int_equal(g.session_slots, 16382);
    assert_int_equal(g.node[0].blocks, 2008);
    assert_int_equal(g.page_bytes, 4096);
    assert_int_equal(g.node[0].entries, 0x100fc0);
    assert_int_equal(g.node[0].pages, 0x110ac0);
    assert_int_equal(g.node[0].bitmaps, 0x20bac0);
    assert_int_equal(g.node[0].marks, 0x5f7ac0);
    assert_int_equal(g.node[0].first_block, 0x9e4000);
}
