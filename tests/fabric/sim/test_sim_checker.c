/* Tests of the memory checker of the simulator: which verbs may access which memory. */
#include "sim_rig.h"
#include "test.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define AT   0x10000
#define SIZE 256
#define KEY  5

typedef struct setup {
    rig r;
    far_sim_world *world;
    const far_memory_checker_ops *watch;
    uint8_t *memory;
} setup;


static void set_up(setup *s, const char *options) {
    rig_connect(&s->r, rig_open("size=1M,%s", options));
    s->world = far_sim_world_of(s->r.fabric);
    s->watch = s->r.fabric->watch;
    s->memory = far_sim_memory(s->world, 0);
}


static void tear_down(setup *s) {
    rig_disconnect(&s->r);
    s->r.fabric->ops->close(s->r.fabric);
}


/* Returns the number of errors that this verb causes. */
static uint64_t count_errors(setup *s, far_verb verb, unsigned flags, uint64_t pin_clock, uint32_t index_key) {
    uint64_t before = far_sim_watch_errors(s->world);
    verb.flags = (uint8_t)flags;
    far_batch batch = rig_batch(&verb, 1);
    batch.pin_clock = pin_clock;
    batch.index_key = index_key;
    rig_post(&s->r, &batch);
    assert_int_equal(rig_wait(&s->r, &batch), 0);
    return far_sim_watch_errors(s->world) - before;
}


static uint64_t words[SIZE / 8];

static far_verb read_all(void) {
    return rig_read(AT, words, SIZE);
}


static far_verb write_one(void) {
    return rig_write(AT + 16, words, 8);
}


static far_verb cas_one(void) {
    return rig_cas(AT + 32, 1, 1, NULL);
}


/* Verbs on memory that the allocator does not manage, or has released, cause no error. */
TEST(unmanaged_memory_is_not_checked) {
    setup s;
    set_up(&s, "faults=none");
    assert_int_equal(count_errors(&s, read_all(), 0, 0, KEY), 0);
    assert_int_equal(count_errors(&s, write_one(), FAR_VERB_UNPROVEN, 0, KEY), 0);
    s.watch->allocated(s.r.fabric, AT, SIZE, KEY, false);
    s.watch->freed(s.r.fabric, AT, SIZE, false);
    assert_int_equal(count_errors(&s, read_all(), 0, 0, KEY), 1);
    s.watch->released(s.r.fabric, AT, SIZE);
    assert_int_equal(count_errors(&s, read_all(), 0, 0, KEY), 0);
    tear_down(&s);
}


/* A verb on free memory is an error, with and without a pin. Retired memory may be touched under a pin, and verbs of
 * the pool itself may touch free memory. */
TEST(free_memory_must_not_be_touched) {
    setup s;
    set_up(&s, "faults=none");
    s.watch->allocated(s.r.fabric, AT, SIZE, KEY, false);
    uint64_t pin = s.watch->clock(s.r.fabric);
    assert_int_equal(count_errors(&s, read_all(), 0, pin, KEY), 0);
    assert_int_equal(count_errors(&s, write_one(), 0, pin, KEY), 0);
    s.watch->retired(s.r.fabric, AT, SIZE);
    assert_int_equal(count_errors(&s, read_all(), 0, pin, KEY), 0); /* the pin protects retired memory */
    assert_int_equal(count_errors(&s, cas_one(), 0, pin, KEY), 0);
    s.watch->freed(s.r.fabric, AT, SIZE, false);
    assert_int_equal(count_errors(&s, read_all(), 0, pin, KEY), 1);
    assert_int_equal(count_errors(&s, write_one(), 0, pin, KEY), 1);
    assert_int_equal(count_errors(&s, cas_one(), 0, pin, KEY), 1);
    /* A verb without a pin must not touch free memory, either. */
    assert_int_equal(count_errors(&s, read_all(), 0, UINT64_MAX, KEY), 1);
    assert_int_equal(count_errors(&s, write_one(), FAR_VERB_SYSTEM, pin, KEY), 0);
    /* Memory next to the freed memory is not affected. */
    assert_int_equal(count_errors(&s, rig_read(AT - 64, words, 64), 0, pin, KEY), 0);
    assert_int_equal(count_errors(&s, rig_read(AT + SIZE, words, 64), 0, pin, KEY), 0);
    assert_int_equal(count_errors(&s, rig_read(AT + SIZE - 8, words, 64), 0, pin, KEY), 1);
    const char *text = far_sim_watch_error(s.world, 0);
    assert_non_null(strstr(text, "touches free memory"));
    assert_non_null(strstr(text, "READ of 256 bytes at 0:0x10000"));
    assert_non_null(strstr(text, "post")); /* the text contains the last events */
    tear_down(&s);
}


/* A verb under a pin that is older than the reuse of the memory is an error. READs with the flag FAR_VERB_UNPROVEN are
 * exempt, because the index checks their result. */
TEST(memory_reused_after_the_pin_must_not_be_touched) {
    setup s;
    set_up(&s, "faults=none");
    s.watch->allocated(s.r.fabric, AT, SIZE, KEY, false);
    uint64_t old_pin = s.watch->clock(s.r.fabric);
    s.watch->retired(s.r.fabric, AT, SIZE);
    uint64_t new_pin = s.watch->clock(s.r.fabric);
    s.watch->freed(s.r.fabric, AT, SIZE, false);
    s.watch->allocated(s.r.fabric, AT, SIZE, KEY + 1, false);
    assert_int_equal(count_errors(&s, read_all(), 0, old_pin, KEY), 1);
    assert_int_equal(count_errors(&s, write_one(), 0, old_pin, KEY), 1);
    assert_int_equal(count_errors(&s, read_all(), 0, new_pin, KEY), 0);
    assert_int_equal(count_errors(&s, read_all(), 0, UINT64_MAX, KEY), 0);
    assert_int_equal(count_errors(&s, read_all(), FAR_VERB_UNPROVEN, old_pin, KEY), 0);
    assert_int_equal(count_errors(&s, cas_one(), FAR_VERB_UNPROVEN, old_pin, KEY), 1);
    assert_int_equal(count_errors(&s, write_one(), FAR_VERB_UNPROVEN, old_pin, KEY), 1);
    s.watch->retired(s.r.fabric, AT,
                     /* Even after the next retirement of the memory, and after its slab is gone, an old pin does not
                      * protect the memory. */
                     SIZE);
    assert_int_equal(count_errors(&s, read_all(), 0, old_pin, KEY), 1);
    assert_int_equal(count_errors(&s, read_all(), 0, new_pin, KEY), 0);
    s.watch->released(s.r.fabric, AT, SIZE);
    assert_int_equal(count_errors(&s, read_all(), 0, new_pin, KEY), 1);
    assert_int_equal(count_errors(&s, read_all(), 0, s.watch->clock(s.r.fabric), KEY), 0);
    /* Memory that its allocator frees at once and allocates again was never visible to other clients, so an older pin
     * may touch it. */
    uint64_t pin = s.watch->clock(s.r.fabric);
    s.watch->allocated(s.r.fabric, AT + 0x1000, SIZE, KEY, false);
    s.watch->freed(s.r.fabric, AT + 0x1000, SIZE, false);
    s.watch->allocated(s.r.fabric, AT + 0x1000, SIZE, KEY, false);
    assert_int_equal(count_errors(&s, rig_write(AT + 0x1000, words, 64), 0, pin, KEY), 0);
    tear_down(&s);
}


/* An unproven atomic may touch free or reused memory only if it has a stable type of the same index. */
TEST(unproven_atomics_stay_in_a_stable_type_of_their_index) {
    setup s;
    set_up(&s, "faults=none");
    s.watch->allocated(s.r.fabric, AT, SIZE, KEY, true);
    s.watch->retired(s.r.fabric, AT, SIZE);
    s.watch->freed(s.r.fabric, AT, SIZE, true);
    assert_int_equal(count_errors(&s, cas_one(), FAR_VERB_UNPROVEN, UINT64_MAX, KEY), 0);
    assert_int_equal(count_errors(&s, cas_one(), FAR_VERB_UNPROVEN, UINT64_MAX, KEY + 1), 1);
    assert_int_equal(count_errors(&s, cas_one(), 0, UINT64_MAX, KEY), 1);
    assert_int_equal(count_errors(&s, read_all(), FAR_VERB_UNPROVEN, UINT64_MAX, KEY + 1), 0);
    assert_int_equal(count_errors(&s, write_one(), FAR_VERB_UNPROVEN, UINT64_MAX, KEY), 1);
    s.watch->allocated(s.r.fabric, AT, SIZE, KEY, true);
    /* The memory was reused, but still has the same stable type. */
    assert_int_equal(count_errors(&s, cas_one(), FAR_VERB_UNPROVEN, 1, KEY), 0);
    assert_int_equal(count_errors(&s, cas_one(), FAR_VERB_UNPROVEN, 1, KEY + 1), 1);
    tear_down(&s);
}


/* Freed memory is filled with a fixed byte, exactly in its bounds. Memory of a stable type keeps its contents. */
TEST(freed_memory_is_poisoned_unless_stable) {
    setup s;
    set_up(&s, "faults=none");
    memset(s.memory + AT - 16, 0x11, SIZE + 32);
    s.watch->allocated(s.r.fabric, AT, SIZE, KEY, true);
    s.watch->freed(s.r.fabric, AT, SIZE, true);
    for (unsigned i = 0; i < SIZE; i++)
        assert_int_equal(s.memory[AT + i], 0x11);
    s.watch->allocated(s.r.fabric, AT, SIZE, KEY, false);
    s.watch->freed(s.r.fabric, AT, SIZE, false);
    for (unsigned i = 0; i < SIZE; i++)
        assert_int_equal(s.memory[AT + i], FAR_SIM_POISON);
    assert_int_equal(s.memory[AT - 1], 0x11);
    assert_int_equal(s.memory[AT + SIZE], 0x11);
    tear_down(&s);
}


/* The checker stores one state for a chunk (64 KiB) that an object covers completely, and one state per cell (16 bytes)
 * for a chunk that it covers partly. Both detect the same errors. */
TEST(large_objects_are_checked_like_small_ones) {
    setup s;
    set_up(&s, "faults=none");
    far_addr at = 0x18000;
    /* The object covers several chunks of 64 KiB, and begins and ends in the middle of a chunk. */
    uint64_t size = 0x40000;
    static uint8_t bytes[0x80000];
    s.watch->allocated(s.r.fabric, at, size, KEY, false);
    assert_int_equal(count_errors(&s, rig_read(at, bytes, (uint32_t)size), 0, UINT64_MAX, KEY), 0);
    s.watch->freed(s.r.fabric, at, size, false);
    assert_int_equal(count_errors(&s, rig_read(at - 8, bytes, 8), 0, UINT64_MAX, KEY), 0);
    assert_int_equal(count_errors(&s, rig_read(at, bytes, 8), 0, UINT64_MAX, KEY), 1);
    assert_int_equal(count_errors(&s, rig_read(at + size - 8, bytes, 8), 0, UINT64_MAX, KEY), 1);
    assert_int_equal(count_errors(&s, rig_read(at + size, bytes, 8), 0, UINT64_MAX, KEY), 0);
    assert_int_equal(count_errors(&s, rig_read(0x28000, bytes, 8), 0, UINT64_MAX, KEY), 1);
    s.watch->allocated(s.r.fabric, 0x28000, 64, KEY, false); /* a part of the object is allocated again */
    assert_int_equal(count_errors(&s, rig_read(0x28000, bytes, 64), 0, UINT64_MAX, KEY), 0);
    assert_int_equal(count_errors(&s, rig_read(0x28000, bytes, 72), 0, UINT64_MAX, KEY), 1);
    assert_int_equal(count_errors(&s, rig_read(0x28000 - 8, bytes, 8), 0, UINT64_MAX, KEY), 1);
    s.watch->released(s.r.fabric, at, size);
    assert_int_equal(count_errors(&s, rig_read(0, bytes, sizeof bytes), 0, UINT64_MAX, KEY), 0);
    tear_down(&s);
}


/* A READ samples two granules before they are freed and another one after it was freed. Only the latter is an error. */
TEST(only_granules_touched_after_the_free_are_errors) {
    setup s;
    set_up(&s, "faults=none");
    s.watch->allocated(s.r.fabric, AT, SIZE, KEY, false);
    far_verb verb = read_all();
    far_batch batch = rig_batch(&verb, 1);
    far_sim_hold *hold = far_sim_hold_effect(far_sim_current(s.world), (far_sim_match){.kind = FAR_SIM_READ});
    rig_post(&s.r, &batch);
    far_sim_sleep(s.world, 5000);
    assert_true(far_sim_reached(hold));
    assert_int_equal(far_sim_release_units(hold, (uint32_t[]){0, 1}, 2), 0);
    /* This frees the first two granules, which the READ has sampled already. */
    s.watch->freed(s.r.fabric, AT, 128, false);
    assert_int_equal(far_sim_release_units(hold, (uint32_t[]){2}, 1), 0);
    assert_int_equal(far_sim_watch_errors(s.world), 0);
    s.watch->freed(s.r.fabric, AT + 192, 64, false);
    assert_int_equal(far_sim_release_units(hold, (uint32_t[]){3}, 1), 0);
    assert_int_equal(far_sim_watch_errors(s.world), 1);
    assert_int_equal(rig_wait(&s.r, &batch), 0);
    tear_down(&s);
}


/* With watch=off nothing is checked, and freed memory is not poisoned. */
TEST(the_memory_checker_can_be_switched_off) {
    setup s;
    set_up(&s, "watch=off");
    s.watch->allocated(s.r.fabric, AT, SIZE, KEY, false);
    memset(s.memory + AT, 0x11, SIZE);
    s.watch->freed(s.r.fabric, AT, SIZE, false);
    assert_int_equal(s.memory[AT], 0x11);
    assert_int_equal(count_errors(&s, read_all(), 0, 0, KEY), 0);
    tear_down(&s);
}
