/* The block tables as bits, and the geometry of slabs: pure functions. */
#include "base/random.h"
#include "pool/alloc.h"
#include "pool/blocks.h"
#include "pool/clients.h"
#include "pool/request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>


static void a_block_that_was_never_used_is_all_zero(void **state) {
    (void)state;
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
    assert_int_equal(back.stable, s.stable);
    assert_int_equal(back.id, s.id);
    assert_int_equal(back.generation, s.generation);
    assert_int_equal(back.uid, s.uid);
    assert_int_equal(back.type, s.type);
    assert_int_equal(back.length, s.length);
}


static void every_state_of_a_block_comes_back_from_its_word(void **state) {
    (void)state;
    for (int used = 0; used < 2; used++) {
        assert_same_block((far_block_state){.kind = FAR_BLOCK_FREE, .used = used});
        assert_same_block((far_block_state){.kind = FAR_BLOCK_ORPHAN, .used = used});
        assert_same_block((far_block_state){.kind = FAR_BLOCK_OWNED, .used = used, .id = 16382, .generation = 0xffff});
        assert_same_block((far_block_state){.kind = FAR_BLOCK_OWNED, .used = used, .id = 1, .generation = 0});
        assert_same_block((far_block_state){.kind = FAR_BLOCK_BODY, .used = used, .length = 65535});
        assert_same_block((far_block_state){
            .kind = FAR_BLOCK_WIPING, .used = used, .id = 16382, .generation = 0xffff, .length = 65536});
        assert_same_block((far_block_state){
            .kind = FAR_BLOCK_RUN, .used = used, .stable = used, .uid = 0xffffff, .type = 63, .length = 65536});
    }
}


static void every_page_word_comes_back(void **state) {
    (void)state;
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


static void numbers_of_requests_and_sweeps_go_round(void **state) {
    (void)state;
    far_request r = {.number = 0xffffff, .sweep = 0xfffffe, .walk = true, .spare = true, .sweeper = 16382};
    far_request back = far_request_unpack(far_request_pack(&r));
    assert_int_equal(back.number, r.number);
    assert_int_equal(back.sweep, r.sweep);
    assert_true(back.walk && back.spare);
    assert_int_equal(back.sweeper, r.sweeper);
    assert_int_equal(far_number_next(0xffffff), 0);
    assert_true(far_number_is_newer(0, 0xffffff) && far_number_is_newer(5, 3) && far_number_is_newer(0x7fffff, 0));
    assert_false(far_number_is_newer(0xffffff, 0) || far_number_is_newer(3, 3) || far_number_is_newer(0x800000, 0));
    assert_int_equal(far_done_sweep(far_done_pack(0xffffff, true)), 0xffffff);
    assert_true(far_done_count_only(far_done_pack(1, true)) && !far_done_count_only(far_done_pack(0xffffff, false)));
    assert_int_equal(far_settled_sweep(far_settled_pack(0xffffff, 1600)), 0xffffff);
    assert_int_equal(far_settled_bytes(far_settled_pack(0xffffff, 1600)), 1600);
}


static void sizes_are_rounded_by_steps_of_16_and_then_by_at_most_3_percent(void **state) {
    (void)state;
    uint64_t before = 0;
    for (uint64_t size = 1; size <= 16ull << 20; size += 1 + size / 5000) {
        uint64_t rounded = far_alloc_round(size);
        assert_true(rounded >= size && rounded >= before);
        assert_int_equal(rounded % 16, 0);
        assert_int_equal(far_alloc_round(rounded), rounded);
        if (size <= 4096)
            assert_true(rounded - size < 16);
        else
            assert_true((rounded - size) * 100 <= size * 3);
        for (unsigned align = 16; align <= 64; align *= 2) {
            uint64_t class = far_size_class(size, align);
            assert_int_equal(class % align, 0);
            assert_int_equal(far_size_class(class, align), class);
        }
        before = rounded;
    }
}


/* All classes, all block sizes: what a slab does not use is at most 3 % of it, and small objects come in numbers. */
static void a_slab_wastes_at_most_3_percent(void **state) {
    (void)state;
    for (uint64_t block = FAR_BLOCK_BYTES_MIN; block <= FAR_BLOCK_BYTES_MAX; block *= 2) {
        far_geometry g = {.block_bytes = block, .page_bytes = block / FAR_BLOCK_PAGES};
        for (uint64_t size = 16; !far_size_is_run(&g, size); size = far_alloc_round(size + 1)) {
            unsigned pages = far_slab_pages(g.page_bytes, size);
            assert_in_range(pages, 1, FAR_BLOCK_PAGES);
            far_page_state s = {.in_use = true, .pages = pages, .size = size};
            uint64_t bytes = pages * g.page_bytes, objects = far_slab_objects(g.page_bytes, &s);
            assert_true(objects >= 1);
            assert_true((bytes - objects * size) * 100 <= bytes * 3);
            if (size * 8 <= g.page_bytes)
                assert_true(objects >= 8);
            uint64_t words[FAR_BLOCK_PAGES] = {far_page_pack(&s)};
            assert_true(far_pages_sound(&g, words));
        }
    }
}


static void broken_page_words_are_recognized(void **state) {
    (void)state;
    far_geometry g = {.block_bytes = 64 << 10, .page_bytes = 1 << 10};
    far_page_state two = {.in_use = true, .pages = 2, .size = 256},
                   all = {.in_use = true, .pages = 64, .size = 48 << 10};
    uint64_t good[FAR_BLOCK_PAGES] = {far_page_pack(&two), 0, far_page_pack(&two)}, bad[FAR_BLOCK_PAGES];
    assert_true(far_pages_sound(&g, good));
    uint64_t whole[FAR_BLOCK_PAGES] = {far_page_pack(&all)};
    assert_true(far_pages_sound(&g, whole));

    memcpy(bad, good, sizeof(bad));
    bad[1] = far_page_pack(&two); /* overlaps the first */
    assert_false(far_pages_sound(&g, bad));
    memcpy(bad, good, sizeof(bad));
    bad[63] = far_page_pack(&two); /* reaches beyond the block */
    assert_false(far_pages_sound(&g, bad));
    memcpy(bad, good, sizeof(bad));
    bad[2] &= ~(1ull << 63); /* not in use, and yet something */
    assert_false(far_pages_sound(&g, bad));
    memcpy(bad, good, sizeof(bad));
    for (unsigned bit = 0; bit < 64; bit++) { /* any bit: the check in the word tells */
        bad[0] = good[0] ^ 1ull << bit;
        assert_false(far_pages_sound(&g, bad));
    }
    far_page_state empty = {.in_use = true, .pages = 1, .size = 2048}; /* no object fits */
    memcpy(bad, good, sizeof(bad));
    bad[5] = far_page_pack(&empty);
    assert_false(far_pages_sound(&g, bad));
}


static void addresses_and_blocks_agree(void **state) {
    (void)state;
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
            assert_int_equal(far_block_inner(&g, base + 4711 % g.block_bytes), 4711 % g.block_bytes);
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


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_that_was_never_used_is_all_zero),
        cmocka_unit_test(every_state_of_a_block_comes_back_from_its_word),
        cmocka_unit_test(every_page_word_comes_back),
        cmocka_unit_test(numbers_of_requests_and_sweeps_go_round),
        cmocka_unit_test(sizes_are_rounded_by_steps_of_16_and_then_by_at_most_3_percent),
        cmocka_unit_test(a_slab_wastes_at_most_3_percent),
        cmocka_unit_test(broken_page_words_are_recognized),
        cmocka_unit_test(addresses_and_blocks_agree),
    };
    return cmocka_run_group_tests_name("blocks", tests, NULL, NULL);
}
