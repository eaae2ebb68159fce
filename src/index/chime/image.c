/* CHIME: pure functions on images of nodes in local memory. They implement hopscotch hashing (finding, placing and
 * moving items), the occupancy map, and checks of headers. No function sends a verb. The functions are declared in
 * chime.h. */
#include "base/hash.h"
#include "index/chime/chime.h"

#include <assert.h>


uint64_t chime_key_number(const void *key, size_t length) {
    uint64_t number = 0;
    if (length)
        memcpy(&number, key, length < 8 ? length : 8);
    return __builtin_bswap64(number);
}


void chime_key_make(const chime_state *st, far_bytes bytes, chime_key *key) {
    key->bytes = bytes;
    key->before = false;
    key->first = chime_key_number(bytes.data, bytes.length);
    key->hash = far_hash(st->inline_items ? (far_bytes){&key->first, 8} : bytes, st->seed);
}


unsigned chime_home_slot(const chime_state *st, uint64_t hash) {
    return (unsigned)((unsigned __int128)hash * st->home_slots >> 64);
}


unsigned chime_item_home_slot(const chime_state *st, uint64_t *w, unsigned slot) {
    const uint64_t *words = chime_slot(st, w, slot);
    if (!st->inline_items) {
        unsigned home = chime_slot_after(st, slot, st->span - chime_value_distance(words[1]));
        return home < st->home_slots && chime_value_distance(words[1]) < st->hop ? home : st->span;
    }
    unsigned home = chime_home_slot(st, far_hash((far_bytes){&words[0], 8}, st->seed));
    return chime_distance(st, home, slot) < st->hop ? home : st->span;
}


uint64_t chime_map_with_group_of(const chime_state *st, uint64_t map, uint64_t *w, unsigned slot) {
    unsigned group = slot / st->group, first = group * st->group, end = first + st->group;
    end = end < st->span ? end : st->span;
    bool full = chime_find_free_slot(st, w, first, end - first) < 0;
    return full ? map | 1ull << group : map & ~(1ull << group);
}


static uint64_t occupancy_map_of_groups(const chime_state *st, uint64_t *w) {
    uint64_t map = 0;
    for (unsigned slot = 0; slot < st->span; slot += st->group)
        map = chime_map_with_group_of(st, map, w, slot);
    return map;
}


uint64_t chime_occupancy_map(const chime_state *st, uint64_t *w) {
    uint64_t map = 0;
    if (st->group > 1)
        return occupancy_map_of_groups(st, w);
    for (unsigned line = 0; line < st->lines; line++)
        map |= (uint64_t)chime_h1_occupied(*chime_h1(st, w, line)) << line * st->per_line;
    return map;
}


unsigned chime_count_items(const chime_state *st, uint64_t *w) {
    unsigned count = 0;
    for (unsigned line = 0; line < st->lines; line++)
        count += (unsigned)__builtin_popcount(chime_h1_occupied(*chime_h1(st, w, line)));
    return count;
}


static unsigned hop_bitmap_from_items(const chime_state *st, uint64_t *w, unsigned home) {
    unsigned map = 0;
    for (unsigned i = 0; i < st->hop && (st->wrap || home + i < st->span); i++) {
        unsigned slot = chime_slot_after(st, home, i);
        if (chime_slot_is_occupied(st, w, slot) && chime_item_home_slot(st, w, slot) == home)
            map |= 1u << i;
    }
    return map;
}


bool chime_hop_bitmap_agrees(const chime_state *st, uint64_t *w, unsigned home) {
    return chime_h0_hop_bitmap(*chime_h0(st, w, chime_line(st, home)), chime_slot_in_line(st->per_line, home)) ==
           hop_bitmap_from_items(st, w, home);
}


static void hop_bitmaps_from_items(const chime_state *st, uint64_t *w, unsigned maps[CHIME_SPAN_MAX + 1]) {
    memset(maps, 0, (CHIME_SPAN_MAX + 1) * sizeof(maps[0]));
    for (unsigned slot = 0; slot < st->span; slot++)
        if (chime_slot_is_occupied(st, w, slot)) {
            unsigned home = chime_item_home_slot(st, w, slot);
            maps[home] |= home < st->span ? 1u << chime_distance(st, home, slot) : 1;
        }
}


void chime_build_hop_bitmaps(const chime_state *st, uint64_t *w) {
    unsigned maps[CHIME_SPAN_MAX + 1];
    hop_bitmaps_from_items(st, w, maps);
    for (unsigned home = 0; home < st->span; home++) {
        uint64_t *h0 = chime_h0(st, w, chime_line(st, home));
        *h0 = chime_h0_with_hop_bitmap(*h0, chime_slot_in_line(st->per_line, home), maps[home]);
    }
}


bool chime_hop_bitmaps_agree(const chime_state *st, uint64_t *w) {
    unsigned maps[CHIME_SPAN_MAX + 1];
    hop_bitmaps_from_items(st, w, maps);
    for (unsigned home = 0; home < st->span; home++)
        if (chime_h0_hop_bitmap(*chime_h0(st, w, chime_line(st, home)), chime_slot_in_line(st->per_line, home)) !=
            maps[home])
            return false;
    return maps[st->span] == 0;
}


bool chime_line_is_current(const chime_state *st, uint64_t *w, unsigned line, unsigned tag) {
    uint64_t h0 = *chime_h0(st, w, line);
    return chime_h0_valid(h0) && chime_h0_tag(h0) == tag;
}


bool chime_node_is_consistent(const chime_state *st, uint64_t *w, unsigned tag) {
    const uint64_t *tail = chime_tail(st, w);
    /* bits that are set in any line, and bits that are set in all lines */
    uint64_t any_h0 = tail[CHIME_TAIL_H0], all_h0 = any_h0, any_h1 = tail[CHIME_TAIL_H1], all_h1 = any_h1;
    for (const uint64_t *h0 = chime_h0(st, w, 0); h0 < tail; h0 += CHIME_LINE / 8) {
        any_h0 |= h0[0];
        all_h0 &= h0[0];
        any_h1 |= h0[1];
        all_h1 &= h0[1];
    }
    return chime_h0_valid(all_h0) && chime_h0_tag(all_h0) == tag && chime_h0_tag(any_h0) == tag &&
           chime_h1_sibling_nv(any_h1) == chime_h1_sibling_nv(all_h1);
}


/* Only groups that begin at or after the home slot are examined. The clear bit of a group that begins before the home
 * slot shows that one of its slots is free, but that free slot may precede the home slot. */
unsigned chime_slots_up_to_free(const chime_state *st, uint64_t map, unsigned home) {
    unsigned group = (home + st->group - 1) / st->group, slot = group * st->group, reach = slot - home;
    for (bool round = false; reach < st->span;) {
        if (slot >= st->span) {
            if (!st->wrap || round)
                return 0;
            round = true;
            group = slot = 0;
            reach = st->span - home;
        }
        unsigned size = st->group < st->span - slot ? st->group : st->span - slot;
        reach += size;
        if (!(map >> group++ & 1))
            return reach <= st->span ? reach : 0;
        slot += size;
    }
    return 0;
}


int chime_find_free_slot(const chime_state *st, uint64_t *w, unsigned first, unsigned count) {
    for (unsigned i = 0; i < count && (st->wrap || first + i < st->span); i++)
        if (!chime_slot_is_occupied(st, w, chime_slot_after(st, first, i)))
            return (int)chime_slot_after(st, first, i);
    return -1;
}


static void set_hop_bit(const chime_state *st, uint64_t *w, unsigned home, unsigned slot, bool set) {
    uint64_t *h0 = chime_h0(st, w, chime_line(st, home));
    unsigned which = chime_slot_in_line(st->per_line, home), map = chime_h0_hop_bitmap(*h0, which),
             bit = 1u << chime_distance(st, home, slot);
    *h0 = chime_h0_with_hop_bitmap(*h0, which, set ? map | bit : map & ~bit);
}


void chime_place_item(const chime_state *st, uint64_t *w, unsigned slot, unsigned home, uint64_t key,
                      const uint64_t *value) {
    uint64_t *words = chime_slot(st, w, slot);
    assert(slot < st->span && home < st->home_slots && chime_distance(st, home, slot) < st->hop);
    words[0] = key;
    if (st->inline_items)
        memcpy(words + 1, value, st->value_words * 8);
    else
        words[1] = chime_value_with_distance(*value, chime_distance(st, home, slot));
    chime_set_slot_occupied(st, w, slot, true);
    set_hop_bit(st, w, home, slot, true);
}


void chime_clear_item(const chime_state *st, uint64_t *w, unsigned slot, unsigned home) {
    chime_set_slot_occupied(st, w, slot, false);
    set_hop_bit(st, w, home, slot, false);
}


/* Each step moves the item that can move farthest towards the slot `free` while it stays in its own neighbourhood; the
 * item's old slot becomes the free one. The steps end when the free slot is in the neighbourhood of home_slot. Moves
 * that reach around the whole node would write one line twice, once as the highest and once as the lowest line, so the
 * node counts as full in that case. */
int chime_move_free_slot(const chime_state *st, uint64_t *w, unsigned home, unsigned free, chime_move *moves,
                         unsigned *at) {
    int count = 0;
    if (chime_distance(st, home, free) > st->span - st->per_line)
        return -1;
    while (chime_distance(st, home, free) >= st->hop) {
        unsigned by = st->hop - 1;
        for (; by > 0; by--) {
            unsigned from = chime_slot_after(st, free, st->span - by), its_home = chime_item_home_slot(st, w, from);
            if (its_home < st->span && chime_distance(st, its_home, free) < st->hop) {
                const uint64_t *words = chime_slot(st, w, from);
                chime_clear_item(st, w, from, its_home);
                chime_place_item(st, w, free, its_home, words[0], words + 1);
                moves[count++] = (chime_move){(uint16_t)from, (uint16_t)free};
                free = from;
                break;
            }
        }
        if (by == 0)
            return -1;
    }
    *at = free;
    assert(!chime_slot_is_occupied(st, w, free) && chime_distance(st, home, free) < st->hop);
    return count;
}


int chime_find_free_near_home(const chime_state *st, uint64_t *w, unsigned home) {
    return chime_find_free_slot(st, w, home, st->hop);
}


void chime_init_node(const chime_state *st, uint64_t *w, unsigned tag, unsigned level) {
    assert(st->span <= CHIME_SPAN_MAX && st->lines * st->per_line == st->span);
    memset(w, 0, st->node_bytes);
    for (unsigned line = 0; line < st->lines; line++)
        *chime_h0(st, w, line) = chime_h0_make(0, tag, true);
    chime_tail(st, w)[CHIME_TAIL_H0] = chime_h0_make(level, tag, true);
}


void chime_set_sibling_nv(const chime_state *st, uint64_t *w, chime_ptr sibling, unsigned nv) {
    for (unsigned line = 0; line < st->lines; line++) {
        uint64_t *h1 = chime_h1(st, w, line);
        *h1 = chime_h1_make(sibling, nv, chime_h1_occupied(*h1));
    }
    chime_tail(st, w)[CHIME_TAIL_H1] = chime_h1_make(sibling, nv, 0);
}


void chime_set_valid(const chime_state *st, uint64_t *w, bool valid) {
    for (unsigned line = 0; line <= st->lines; line++) {
        uint64_t *h0 = line < st->lines ? chime_h0(st, w, line) : &chime_tail(st, w)[CHIME_TAIL_H0];
        *h0 = valid ? *h0 | CHIME_VALID : *h0 & ~CHIME_VALID;
    }
}
