/* Dolphin, named interleavings: nothing orders verbs to two memory nodes, so what lies on another one is waited for before
 * it is named (T25, A23 of its design). What fails when the guarding line is taken out is said at each test. */
#include "dolphin_rig.h"
#include "pool/epoch.h"
#include "task/session.h"


/* A23. Nothing orders verbs to two memory nodes. The copy of a node is written, and the old one frozen, there, before
 * the entry that names them is changed elsewhere: each of the two is waited for. */
static void switch_waits_for_another_memory_node(void **state) {
    (void)state;
    for (unsigned freeze = 0; freeze < 2; freeze++) {
        char key[3] = "ba";
        bool near = true;
        for (; near; key[0]++) { /* a first byte whose node lies elsewhere than the root */
            up(SLOTS1, "memory_nodes=2");
            for (char next = 'b'; next <= 'x'; next += 2) {
                key[1] = next;
                stage_write(a, key, V1);
            }
            near = far_addr_node(node_addr(key)) == far_addr_node(dolphin_entry_addr(state_of(c)->root));
            if (!near)
                break;
            stage_close(&s);
        }
        dolphin_node root = node_at(key, 0), old = node_at(key, 1);
        far_addr entry = dolphin_entry_place(&root, (uint8_t)key[0] + 1u), at = dolphin_entry_addr(old.word);
        far_sim_hold *hold;
        key[1] = 'c';
        stage_start(a, FAR_OP_INSERT, key, V2);
        if (freeze) {
            stage_stop_at(a, (far_sim_match){.point = "dolphin:copy"});
            far_sim_resume(a->client);
            run_without(a, (far_sim_match){.kind = FAR_SIM_CAS, .from = at, .to = at + 8}, &hold);
        } else {
            stage_stop_at(a, (far_sim_match){.point = "dolphin:copy"});
            far_sim_resume(a->client);
            run_without(a, (far_sim_match){.kind = FAR_SIM_WRITE}, &hold);
        }
        assert_true(*memory_of(entry) == old.word);
        far_sim_release(hold);
        stage_finish(a);
        assert_true(a->result == 0 && stage_reads(b, key, V2));
        stage_close(&s);
    }
}


/* A node goes without a copy: it is frozen before the node above, on another memory node, forgets it. Else one who finds the
 * change half done after a death would let writers into a node that is named no more. (dolphin_switch_over waits for copies
 * only.) */
static void a_node_that_goes_is_frozen_before_its_entry(void **state) {
    (void)state;
    char key[3] = "ba";
    dolphin_node root, old;
    for (bool near = true; near; key[0] += near) { /* a first byte whose node lies elsewhere than the root */
        up(SLOTS1, "memory_nodes=2");
        for (char next = 'b'; next <= 'h'; next += 2) {
            key[1] = next;
            stage_write(a, key, V1);
        }
        root = node_at(key, 0);
        old = node_at(key, 1);
        near = far_addr_node(dolphin_entry_addr(old.word)) == far_addr_node(dolphin_entry_addr(root.word));
        if (near)
            stage_close(&s);
    }
    far_addr entry = dolphin_entry_place(&root, (uint8_t)key[0] + 1u), at = dolphin_entry_addr(old.word);
    bool goes = false;
    for (char next = 'b'; next <= 'h' && !goes; next += 2) {
        key[1] = next;
        stage_start(a, FAR_OP_DELETE, key, NULL);
        far_sim_stop_before(a->client, (far_sim_match){.point = "dolphin:copy"});
        goes = far_sim_run_client(a->client) == FAR_SIM_STOPPED;
    }
    assert_true(goes);
    uint64_t word = *memory_of(entry);
    far_sim_hold *hold;
    far_sim_resume(a->client);
    run_without(a, (far_sim_match){.kind = FAR_SIM_CAS, .from = at, .to = at + 8}, &hold);
    assert_true(*memory_of(entry) == word);
    far_sim_release(hold);
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(*memory_of(entry) != word);
    stage_close(&s);
}


typedef struct taken { /* all memory of the first memory node, as far as small objects can lie in it */
    far_object object[4096];
    unsigned type[4096];
    unsigned count;
} taken;


static int take_all_of_node_0(far_task *t, void *arg) {
    static const unsigned types[] = {DOLPHIN_TYPE_NODE, DOLPHIN_TYPE_NODE, DOLPHIN_TYPE_NODE, DOLPHIN_TYPE_KEY};
    static const uint64_t bytes[] = {4096, 1024, 256, 48};
    taken *all = arg;
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 4 && err == 0; i++)
        for (bool here = true; here && err == 0;) {
            far_object *object = &all->object[all->count];
            all->type[all->count] = types[i];
            err = all->count == 4095 ? -1 : far_alloc(t, a->index, types[i], bytes[i], 0, 0, object);
            here = err == 0 && far_addr_node(object->addr) == 0;
            if (here)
                all->count++;
            else if (err == 0)
                far_free(t, a->index, types[i], object->addr, object->size);
        }
    far_pin_drop(t);
    return err;
}


static int give_all_back(far_task *t, void *arg) {
    taken *all = arg;
    while (all->count-- > 0)
        far_free(t, a->index, all->type[all->count], all->object[all->count].addr, all->object[all->count].size);
    return 0;
}


static int call_by_a(int (*what)(far_task *t, void *arg), taken *all) {
    return far_session_call(a->session, FAR_STATS_OTHER, true, what, all);
}


/* The same when the node and the one above lie on one memory node, which is full: the copy alone lies elsewhere. */
static void switch_waits_for_a_copy_elsewhere(void **state) {
    (void)state;
    static taken all;
    char key[3] = "ba";
    all.count = 0;
    up(SLOTS1, "size=2M");
    for (;; key[0]++) { /* a first byte whose node lies where the root does */
        for (char next = 'b'; next <= 'x'; next += 2) {
            key[1] = next;
            stage_write(a, key, V1);
        }
        if (far_addr_node(node_addr(key)) == 0)
            break;
    }
    dolphin_node root = node_at(key, 0), old = node_at(key, 1);
    assert_int_equal(far_addr_node(dolphin_entry_addr(root.word)), 0);
    far_addr entry = dolphin_entry_place(&root, (uint8_t)key[0] + 1u);
    assert_int_equal(call_by_a(take_all_of_node_0, &all), 0);
    key[1] = 'c';
    stage_start(a, FAR_OP_INSERT, key, V2);
    stage_stop_at(a, (far_sim_match){.point = "dolphin:copy"});
    far_sim_resume(a->client);
    far_sim_hold *hold;
    run_without(a, (far_sim_match){.kind = FAR_SIM_WRITE, .from = far_addr_make(1, 0), .to = far_addr_make(1, 1 << 20)},
                &hold);
    assert_true((old.image[0] & DOLPHIN_FROZEN) && *memory_of(entry) == old.word);
    far_sim_release(hold);
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(b, key, V2));
    assert_int_equal(far_addr_node(node_addr(key)), 1);
    assert_int_equal(call_by_a(give_all_back, &all), 0);
    stage_close(&s);
}


/* Until the memory node of the leaf is full, so that blocks of its values come to lie on the other one. */
static unsigned fill_node_of(far_addr leaf, const char *value) {
    char key[8];
    for (unsigned i = 0; i < 2000; i++) {
        snprintf(key, sizeof(key), "%c%03u", "prtv"[i % 4], i); /* their leaves lie where those of n do */
        if (far_put(b->session, b->index, key, 4, value, strlen(value)) < 0)
            break;
        stage_write(a, "na", value);
        unsigned there = far_addr_node(dolphin_value_block(*memory_of(dolphin_value_at(leaf, 64, 0))));
        if (there != far_addr_node(leaf)) {
            for (unsigned k = 0; k < 3; k++) /* a slab is made there: the next ones come without a verb */
                stage_write(a, "na", value);
            return there;
        }
    }
    fail_msg("the memory node does not get full");
    return 0;
}


/* A block that lies on another memory node than its leaf is written before a slot names it. */
static void block_on_another_memory_node(void **state) {
    (void)state;
    static char large[1000];
    static const char *const keys[] = {"na", "nz", "n-and-a-rest-of-more-than-7-bytes"};
    memset(large, 'x', sizeof(large) - 1);
    for (unsigned i = 0; i < 3; i++) {
        up("hints=off", "size=1M");
        stage_write(a, "na", "1");
        far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
        unsigned other = fill_node_of(leaf, large);
        uint64_t old = *memory_of(dolphin_value_at(leaf, 64, 0));
        far_sim_hold *hold;
        stage_start(a, i ? FAR_OP_INSERT : FAR_OP_UPDATE, keys[i], large);
        run_without(a,
                    (far_sim_match){
                        .kind = FAR_SIM_WRITE, .from = far_addr_make(other, 0), .to = far_addr_make(other, 1 << 20)},
                    &hold);
        assert_int_equal(*memory_of(dolphin_value_at(leaf, 64, 0)), old);
        assert_int_not_equal(dolphin_state_of_slot(*memory_of(dolphin_key_at(leaf, 1))), DOLPHIN_HELD);
        far_sim_release(hold);
        stage_finish(a);
        assert_true(a->result == 0 && stage_reads(c, keys[i], large));
        stage_close(&s);
    }
}


/* The same for the block of a key whose value lies in the leaf: it alone is elsewhere. */
static void key_block_alone_on_another_memory_node(void **state) {
    (void)state;
    static taken all;
    char key[] = "b-and-a-rest-of-more-than-7-bytes", near[] = "ba";
    all.count = 0;
    up("hints=off", "size=2M");
    for (stage_write(a, near, "1"); far_addr_node(dolphin_entry_addr(leaf_entry(near, 0))) != 0;
         stage_write(a, near, "1"))
        near[0]++;
    key[0] = near[0];
    far_addr leaf = dolphin_entry_addr(leaf_entry(near, 0));
    assert_int_equal(call_by_a(take_all_of_node_0, &all), 0);
    far_sim_hold *hold;
    stage_start(a, FAR_OP_INSERT, key, "2");
    run_without(a, (far_sim_match){.kind = FAR_SIM_WRITE, .from = far_addr_make(1, 0), .to = far_addr_make(1, 2 << 20)},
                &hold);
    assert_int_not_equal(dolphin_state_of_slot(*memory_of(dolphin_key_at(leaf, 1))), DOLPHIN_HELD);
    far_sim_release(hold);
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(c, key, "2"));
    assert_int_equal(far_addr_node(dolphin_kword_block(*memory_of(dolphin_key_at(leaf, 1)))), 1);
    assert_int_equal(call_by_a(give_all_back, &all), 0);
    stage_close(&s);
}


/* A node that lies where the root does, with leaves elsewhere: those are waited for too. */
static void leaves_elsewhere_than_their_node(void **state) {
    (void)state;
    bool found = false;
    for (char first = 'b'; first <= 'q' && !found; first++) {
        char key[4] = {first, 'a', 'a', 0};
        up(SLOTS2, NULL);
        stage_write(a, key, V1);
        key[2] = 'b';
        stage_write(a, key, V1);
        if (far_addr_node(dolphin_entry_addr(leaf_entry(key, 0))) == 1) {
            dolphin_node root = node_at(key, 0);
            far_addr entry = dolphin_entry_place(&root, (uint8_t)first + 1u);
            uint64_t old = *memory_of(entry);
            far_sim_hold *hold;
            key[2] = 'c';
            stand(a, "dolphin:publish", FAR_OP_INSERT, key, V1);
            far_sim_resume(a->client);
            run_without(
                a,
                (far_sim_match){.kind = FAR_SIM_WRITE, .from = far_addr_make(1, 0), .to = far_addr_make(1, 32 << 20)},
                &hold);
            assert_int_equal(*memory_of(entry), old);
            far_sim_release(hold);
            stage_finish(a);
            assert_true(a->result == 0 && stage_reads(b, key, V1));
            found = far_addr_node(node_addr(key)) == 0;
        }
        stage_close(&s);
    }
    assert_true(found);
}


/* What the old leaf says of the blocks that go is there before an entry changes, when the leaf alone lies elsewhere. */
static void old_leaf_elsewhere_than_its_node(void **state) {
    (void)state;
    bool found = false;
    for (char first = 'b'; first <= 'q' && !found; first++) {
        char key[] = "na?-and-a-long-tail";
        key[0] = first;
        up("leaf_slots=2", NULL);
        for (key[2] = 'a'; key[2] < 'd'; key[2]++) /* a; b c */
            stage_write(a, key, V1);
        dolphin_node node = node_at(key, 1);
        unsigned at = (unsigned)dolphin_lookup(&node, dolphin_position((far_bytes){key, strlen(key)}, 2));
        uint64_t old = node.entries[at];
        far_addr leaf = dolphin_entry_addr(old), cut = leaf + DOLPHIN_LEAF_CUT;
        found = far_addr_node(leaf) != far_addr_node(dolphin_entry_addr(node.word));
        if (found) {
            unsigned room = dolphin_free_entries(&node);
            far_sim_hold *hold;
            stage_start(a, FAR_OP_INSERT, key, V1);
            run_without(a, (far_sim_match){.kind = FAR_SIM_WRITE, .from = cut, .to = cut + 16}, &hold);
            assert_true(dolphin_free_entries(&node) == room && node.entries[at] == old);
            far_sim_release(hold);
            stage_finish(a);
            assert_true(a->result == 0 && stage_reads(b, key, V1) && node.entries[at] != old);
        }
        stage_close(&s);
    }
    assert_true(found);
}


/* T25, A23. Nothing orders verbs to two memory nodes: a leaf is there before the entry that names it. */
static void leaf_on_another_memory_node(void **state) {
    (void)state;
    char key[3] = "Aa";
    up(WORDS, NULL);
    unsigned home = far_addr_node(dolphin_entry_addr(state_of(c)->root)), there;
    do { /* a first byte whose leaves lie elsewhere than the root */
        key[0]++;
        stage_write(a, key, V1);
        there = far_addr_node(dolphin_entry_addr(leaf_entry(key, 0)));
        stage_delete(a, key);
    } while (there == home);
    stage_start(a, FAR_OP_INSERT, key, V2);
    far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_WRITE});
    for (unsigned i = 0; i < 20; i++)
        far_sim_run_client(a->client);
    assert_false(a->ended);
    dolphin_node root = node_at(key, 0);
    assert_int_equal(dolphin_entry_kind(root.entries[(uint8_t)key[0] + 1]), DOLPHIN_NULL);
    assert_true(stage_reads(b, key, NULL));
    far_sim_release(hold);
    stage_finish(a);
    assert_true(stage_reads(b, key, V2));
    stage_close(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(switch_waits_for_another_memory_node),
        cmocka_unit_test(a_node_that_goes_is_frozen_before_its_entry),
        cmocka_unit_test(switch_waits_for_a_copy_elsewhere),
        cmocka_unit_test(block_on_another_memory_node),
        cmocka_unit_test(key_block_alone_on_another_memory_node),
        cmocka_unit_test(leaves_elsewhere_than_their_node),
        cmocka_unit_test(old_leaf_elsewhere_than_its_node),
        cmocka_unit_test(leaf_on_another_memory_node),
    };
    int failed = cmocka_run_group_tests(tests, inserts_by_ticket, NULL);
    return failed + cmocka_run_group_tests(tests, inserts_by_cas, NULL);
}
