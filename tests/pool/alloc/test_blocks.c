/* Tests of pure functions: the packing of block entries, page words, the request word and stamps, and the sizes of
 * objects and slabs. */
#include "base/random.h"
#include "pool/alloc/alloc.h"
#include "pool/alloc/blocks.h"
#include "pool/format/clients.h"
#include "pool/gc/request.h"
#include "test.h"

#include <string.h>


/* The entry of a block that was never used is 0, so a formatted pool needs no initialization of the block table. */
TEST(a_block_that_was_never_used_is_all_zero) {
    far_block_state fresh = {.kind = FAR_BLOCK_FREE};
    assert_int_equal(far_block_pack(&fresh), 0);
    far_block_state s = far_block_unpack(0);
    assert_int_equal(s.kind, FAR_BLOCK_FREE);
    assert_false(s.used);
}


static void assert_same_block(far_block_state s) {
    far_block_state back = far_block_unpack(far_block_pack(&s));
    assert_int_equal(back.kind, s.kind);
    assert_int_equal(back.used, s.used);
    assert_int_equal(back.id, s.id);
    assert_int_equal(back.generation, s.generation);
}


/* far_block_unpack inverts far_block_pack for every kind of block and for the largest values of each field. */
TEST(every_block_state_round_trips_through_its_word) {
    for (int used = 0; used < 2; used++) {
        assert_same_block((far_block_state){.kind = FAR_BLOCK_FREE, .used = used});
        assert_same_block((far_block_state){.kind = FAR_BLOCK_ORPHAN, .used = used});
        assert_same_block((far_block_state){.kind = FAR_BLOCK_OWNED, .used = used, .id = 16382, .generation = 0xffff});
        assert_same_block((far_block_state){.kind = FAR_BLOCK_OWNED, .used = used, .id = 1, .generation = 0});
    }
}


/* far_page_unpack inverts far_page_pack for random states. */
TEST(every_page_state_round_trips_through_its_word) {
    far_random r;
    far_random_seed(&r, 1);
    for (int i = 0; i < 10000; i++) {
        far_page_state s = {.in_use = true,
                            .stable = far_random_chance(&r, 1, 2),
                            .uid = (uint32_t)far_random_below(&r, 1u << 24),
                            .type = (unsigned)far_random_below(&r, 64),
                            .pages = 1 + (unsigned)far_random_below(&r, 64),
                            .size = (1 + far_random_below(&r, (1u << 20) - 1)) * FAR_GRANULE};
        far_page_state back = far_page_unpack(far_page_pack(&s));
        assert_true(back.in_use);
        assert_int_equal(back.stable, s.stable);
        assert_int_equal(back.uid, s.uid);
        assert_int_equal(back.type, s.type);
        assert_int_equal(back.pages, s.pages);
        assert_int_equal(back.size, s.size);
    }
    assert_false(far_page_unpack(0).in_use);
}


/* The fields of the request word, of DONE and of the published sweep are packed without loss, and numbers of 24 bits
 * are compared correctly after they wrapped around. */
TEST(numbers_of_requests_and_collections_wrap_around) {
    far_request r = {
        .number = 0xffffff, .collection = 0xfffffe, .walk = true, .release_blocks = true, .collector = 16382};
    far_request back = far_request_unpack(far_request_pack(&r));
    assert_int_equal(back.number, r.number);
    assert_int_equal(back.collection, r.collection);
    assert_true(back.walk && back.release_blocks);
    assert_int_equal(back.collector, r.collector);
    assert_int_equal(far_number_next(0xffffff), 0);
    assert_true(far_number_is_newer(0, 0xffffff) && far_number_is_newer(5, 3) && far_number_is_newer(0x7fffff, 0));
    assert_false(far_number_is_newer(0xffffff, 0) || far_number_is_newer(3, 3) || far_number_is_newer(0x800000, 0));
    assert_int_equal(far_done_collection(far_done_pack(0xffffff, true)), 0xffffff);
    assert_true(far_done_count_only(far_done_pack(1, true)) && !far_done_count_only(far_done_pack(0xffffff, false)));
    assert_int_equal(far_swept_collection(far_swept_pack(0xffffff, 1600)), 0xffffff);
    assert_int_equal(far_swept_leaked_bytes(far_swept_pack(0xffffff, 1600)), 1600);
}


/* Sizes are rounded up to a multiple of 16 up to 4 KiB, and by at most 3 % above. A rounded size is rounded to itself.
 */
TEST(sizes_are_rounded_by_steps_of_16_and_then_by_at_most_3_percent) {
    const far_geometry g = {.block_bytes = FAR_BLOCK_BYTES_MAX};
    uint64_t before = 0;
    assert_int_equal(far_size_class(&g, FAR_BLOCK_BYTES_MAX + 1, 16), 0);
    for (uint64_t size = 1; size <= FAR_BLOCK_BYTES_MAX; size += 1 + size / 5000) {
        uint64_t rounded = far_alloc_round(size);
        assert_true(rounded >= size && rounded >= before);
        assert_int_equal(rounded % 16, 0);
        assert_int_equal(far_alloc_round(rounded), rounded);
        if (size <= 4096)
            assert_true(rounded - size < 16);
        else
            assert_true((rounded - size) * 100 <= size * 3);
        for (unsigned align = 16; align <= 64; align *= 2) {
            uint64_t class = far_size_class(&g, size, align);
            assert_int_equal(class % align, 0);
            assert_int_equal(far_size_class(&g, class, align), class);
        }
        before = rounded;
    }
}


/* For all classes and all block sizes, the unused end of a slab is at most 3 % of the slab, or slabs of no other length
 * give a block room for more objects. Slabs of small objects contain at least eight objects. Proves far_slab_pages
 * (blocks.c). */
TEST(a_slab_wastes_at_most_3_percent_if_possible) {
    for (uint64_t block = FAR_BLOCK_BYTES_MIN; block <= FAR_BLOCK_BYTES_MAX; block *= 2) {
        far_geometry g = {.block_bytes = block, .page_bytes = block / FAR_BLOCK_PAGES};
        for (uint64_t size = 16; size <= block; size = far_alloc_round(size + 1)) {
            unsigned pages = far_slab_pages(g.page_bytes, size);
            assert_in_range(pages, 1, FAR_BLOCK_PAGES);
            far_page_state s = {.in_use = true, .pages = pages, .size = size};
            uint64_t bytes = pages * g.page_bytes, objects = far_slab_objects(g.page_bytes, &s);
            assert_true(objects >= 1);
            if ((bytes - objects * size) * 100 > bytes * 3)
                for (unsigned n = 1; n <= FAR_BLOCK_PAGES; n++)
                    assert_true(FAR_BLOCK_PAGES / n * (n * g.page_bytes / size) <= FAR_BLOCK_PAGES / pages * objects);
            if (size * 8 <= g.page_bytes)
                assert_true(objects >= 8);
            uint64_t words[FAR_BLOCK_PAGES] = {far_page_pack(&s)};
            assert_true(far_pages_are_sound(&g, words));
        }
    }
}


/* far_pages_are_sound rejects page words with overlapping slabs, with slabs beyond the block, and with any single
 * changed bit. */
TEST(damaged_page_words_are_recognized) {
    far_geometry g = {.block_bytes = 64 << 10, .page_bytes = 1 << 10};
    far_page_state two = {.in_use = true, .pages = 2, .size = 256},
                   all = {.in_use = true, .pages = 64, .size = 48 << 10};
    uint64_t good[FAR_BLOCK_PAGES] = {far_page_pack(&two), 0, far_page_pack(&two)}, bad[FAR_BLOCK_PAGES];
    assert_true(far_pages_are_sound(&g, good));
    uint64_t whole[FAR_BLOCK_PAGES] = {far_page_pack(&all)};
    assert_true(far_pages_are_sound(&g, whole));

    memcpy(bad, good, sizeof(bad));
    bad[1] = far_page_pack(&two); /* The word at index 1 describes pages that overlap the first slab. */
    assert_false(far_pages_are_sound(&g, bad));
    memcpy(bad, good, sizeof(bad));
    bad[63] = far_page_pack(&two); /* The slab that begins at the last page extends beyond the end of the block. */
    assert_false(far_pages_are_sound(&g, bad));
    memcpy(bad, good, sizeof(bad));
    bad[2] &= ~(1ull << 63); /* The word is not 0 but its bit "in use" is not set. */
    assert_false(far_pages_are_sound(&g, bad));
    memcpy(bad, good, sizeof(bad));
    for (unsigned bit = 0; bit < 64; bit++) { /* The check code in a page word detects each single changed bit. */
        bad[0] = good[0] ^ 1ull << bit;
        assert_false(far_pages_are_sound(&g, bad));
    }
    far_page_state empty = {.in_use = true, .pages = 1, .size = 2048}; /* no object of this size fits into one page */
    memcpy(bad, good, sizeof(bad));
    bad[5] = far_page_pack(&empty);
    assert_false(far_pages_are_sound(&g, bad));
}


/* The functions that convert between blocks, numbers and addresses agree with each other for all blocks of three
 * nodes, and far_block_of rejects addresses outside of blocks. */
TEST(addresses_and_blocks_agree) {
    far_geometry g;
    uint64_t bytes[3] = {64ull << 20, 64ull << 20, 32ull << 20};
    far_capabilities c = {.atomic_bytes = 8, .masked_cas = true};
    assert_int_equal(far_geometry_make(3, bytes, &c, 7, &g), 0);
    uint64_t number = 0;
    for (unsigned node = 0; node < 3; node++)
        for (uint32_t i = 0; i < g.node[node].blocks; i++, number++) {
            far_block_id id = {node, i}, found;
            assert_int_equal(far_block_number(&g, id), number);
            far_addr base = far_block_base(&g, id);
            assert_int_equal(base % 64, 0);
            assert_true(far_block_of(&g, base, &found) && found.node == node && found.index == i);
            assert_true(far_block_of(&g, base + g.block_bytes - 1, &found) && found.node == node && found.index == i);
            assert_int_equal(far_block_offset(&g, base + 4711 % g.block_bytes), 4711 % g.block_bytes);
            assert_true(far_addr_offset(base) + g.block_bytes <= bytes[node]);
            assert_true(far_addr_offset(far_block_entry(&g, id)) + 16 <= g.node[node].first_block);
            assert_true(far_addr_offset(far_block_page(&g, id, 63)) + 8 <= g.node[node].first_block);
            assert_true(far_addr_offset(far_block_bitmap(&g, id)) + far_bitmap_bytes(&g) <= g.node[node].first_block);
        }
    assert_int_equal(far_block_total(&g), number);
    far_block_id found;
    assert_false(far_block_of(&g, far_addr_make(0, g.node[0].first_block - 8), &found));
    assert_false(far_block_of(&g, far_addr_make(0, bytes[0]), &found));
    assert_false(far_block_of(&g, far_addr_make(3, 1 << 20), &found));
    assert_false(far_block_of(&g, 1ull << 60, &found));
}
