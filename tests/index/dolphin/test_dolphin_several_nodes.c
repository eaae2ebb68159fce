/* Dolphin, named interleavings on several memory nodes (test T25, race A23 of docs/races/dolphin.md). Verbs to two
 * memory nodes have no order, so a client must wait for a WRITE to another memory node before it publishes an entry
 * that depends on this WRITE. Each test holds such a verb back, and fails if the wait that its comment names is
 * removed. */
#include "dolphin_rig.h"
#include "pool/epoch/epoch.h"
#include "task/session.h"
#include "test.h"


/* A replaces a node on another memory node than the root. The WRITE of the copy, or the CAS that freezes the old node,
 * is held back. The entry of the root must not change meanwhile. Fails without the wait in dolphin_install_copy
 * (restructure_node.c). */
TEST_OF_BOTH_INSERTS(switch_waits_for_another_memory_node) {
    for (unsigned freeze = 0; freeze < 2; freeze++) {
        char key[3] = "ba";
        bool near = true;
        for (; near; key[0]++) { /* search for a first byte with its node on another memory node than the root */
            open_stage(SLOTS1, "memory_nodes=2");
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
        far_addr entry = dolphin_entry_word_addr(&root, (uint8_t)key[0] + 1u), at = dolphin_entry_addr(old.word);
        far_sim_hold *hold;
        key[1] = 'c';
        stage_start(a, FAR_OP_INSERT, key, V2);
        if (freeze) {
            stage_stop_at(a, (far_sim_match){.point = "dolphin:freeze_node"});
            far_sim_resume(a->client);
            run_while_held(a, (far_sim_match){.kind = FAR_SIM_CAS, .from = at, .to = at + 8}, &hold);
        } else {
            stage_stop_at(a, (far_sim_match){.point = "dolphin:freeze_node"});
            far_sim_resume(a->client);
            run_while_held(a, (far_sim_match){.kind = FAR_SIM_WRITE}, &hold);
        }
        assert_true(*memory_at(entry) == old.word);
        far_sim_release(hold);
        stage_finish(a);
        assert_true(a->result == 0 && stage_reads(b, key, V2));
        stage_close(&s);
    }
}


/* A delete removes a node without a copy. The CAS that freezes the node is held back. The entry of the root is on
 * another memory node and must not change meanwhile. Fails if dolphin_install_copy (restructure_node.c) waits only when
 * there is a copy: after a failure of A, recovery would let writers into a node that no entry names. */
TEST_OF_BOTH_INSERTS(removed_node_is_frozen_before_its_entry) {
    char key[3] = "ba";
    dolphin_node root, old;
    /* search for a first byte with its node on another memory node than the root */
    for (bool near = true; near; key[0] += near) {
        open_stage(SLOTS1, "memory_nodes=2");
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
    far_addr entry = dolphin_entry_word_addr(&root, (uint8_t)key[0] + 1u), at = dolphin_entry_addr(old.word);
    bool goes = false;
    for (char next = 'b'; next <= 'h' && !goes; next += 2) {
        key[1] = next;
        stage_start(a, FAR_OP_DELETE, key, NULL);
        far_sim_stop_before(a->client, (far_sim_match){.point = "dolphin:freeze_node"});
        goes = far_sim_run_client(a->client) == FAR_SIM_STOPPED;
    }
    assert_true(goes);
    uint64_t word = *memory_at(entry);
    far_sim_hold *hold;
    far_sim_resume(a->client);
    run_while_held(a, (far_sim_match){.kind = FAR_SIM_CAS, .from = at, .to = at + 8}, &hold);
    assert_true(*memory_at(entry) == word);
    far_sim_release(hold);
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(*memory_at(entry) != word);
    stage_close(&s);
}


typedef struct taken { /* All free memory of memory node 0, allocated in small objects by the test. */
    far_object object[4096];
    unsigned type[4096];
    unsigned count;
} taken;


static int fill_memory_node_0(far_task *t, void *arg) {
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


static int free_all_taken(far_task *t, void *arg) {
    taken *all = arg;
    while (all->count-- > 0)
        far_free(t, a->index, all->type[all->count], all->object[all->count].addr, all->object[all->count].size);
    return 0;
}


static int call_as_a(int (*what)(far_task *t, void *arg), taken *all) {
    return far_session_call(a->session, FAR_STATS_OTHER, true, what, all);
}


/* A replaces a node. The node and its parent are on one memory node that is full, so only the copy is on another one.
 * The WRITE of the copy is held back; the entry of the parent must not change meanwhile. Fails if the result of
 * dolphin_batch_activations is ignored (dolphin_install_copy). */
TEST_OF_BOTH_INSERTS(switch_waits_for_a_copy_elsewhere) {
    static taken all;
    char key[3] = "ba";
    all.count = 0;
    open_stage(SLOTS1, "size=2M");
    for (;; key[0]++) { /* search for a first byte with its node on the memory node of the root */
        for (char next = 'b'; next <= 'x'; next += 2) {
            key[1] = next;
            stage_write(a, key, V1);
        }
        if (far_addr_node(node_addr(key)) == 0)
            break;
    }
    dolphin_node root = node_at(key, 0), old = node_at(key, 1);
    assert_int_equal(far_addr_node(dolphin_entry_addr(root.word)), 0);
    far_addr entry = dolphin_entry_word_addr(&root, (uint8_t)key[0] + 1u);
    assert_int_equal(call_as_a(fill_memory_node_0, &all), 0);
    key[1] = 'c';
    stage_start(a, FAR_OP_INSERT, key, V2);
    stage_stop_at(a, (far_sim_match){.point = "dolphin:freeze_node"});
    far_sim_resume(a->client);
    far_sim_hold *hold;
    run_while_held(
        a, (far_sim_match){.kind = FAR_SIM_WRITE, .from = far_addr_make(1, 0), .to = far_addr_make(1, 1 << 20)}, &hold);
    assert_true((old.image[0] & DOLPHIN_FROZEN) && *memory_at(entry) == old.word);
    far_sim_release(hold);
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(b, key, V2));
    assert_int_equal(far_addr_node(node_addr(key)), 1);
    assert_int_equal(call_as_a(free_all_taken, &all), 0);
    stage_close(&s);
}


/* Fills the memory node of the leaf, until its value blocks are allocated on the other memory node. Returns the number
 * of that node. */
static unsigned fill_memory_node_of(far_addr leaf, const char *value) {
    char key[8];
    for (unsigned i = 0; i < 2000; i++) {
        /* These keys have leaves on the same memory node as the keys that begin with "n". */
        snprintf(key, sizeof(key), "%c%03u", "prtv"[i % 4], i);
        if (far_put(b->session, b->index, key, 4, value, strlen(value)) < 0)
            break;
        stage_write(a, "na", value);
        unsigned there = far_addr_node(dolphin_value_block(*memory_at(dolphin_vword_addr(leaf, 64, 0))));
        if (there != far_addr_node(leaf)) {
            /* allocate a slab on that node now, so that the next value blocks need no verbs for it */
            for (unsigned k = 0; k < 3; k++)
                stage_write(a, "na", value);
            return there;
        }
    }
    fail_msg("the memory node does not get full");
    return 0;
}


/* The WRITE of a value block or key block on another memory node is held back; no slot may name the block meanwhile.
 * Fails without the wait in dolphin_write_block (write.c) or build_item (write_ticket.c). */
TEST_OF_BOTH_INSERTS(block_on_another_memory_node) {
    static char large[1000];
    static const char *const keys[] = {"na", "nz", "n-and-a-rest-of-more-than-7-bytes"};
    memset(large, 'x', sizeof(large) - 1);
    for (unsigned i = 0; i < 3; i++) {
        open_stage("hints=off", "size=1M");
        stage_write(a, "na", "1");
        far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
        unsigned other = fill_memory_node_of(leaf, large);
        uint64_t old = *memory_at(dolphin_vword_addr(leaf, 64, 0));
        far_sim_hold *hold;
        stage_start(a, i ? FAR_OP_INSERT : FAR_OP_UPDATE, keys[i], large);
        run_while_held(a,
                       (far_sim_match){
                           .kind = FAR_SIM_WRITE, .from = far_addr_make(other, 0), .to = far_addr_make(other, 1 << 20)},
                       &hold);
        assert_int_equal(*memory_at(dolphin_vword_addr(leaf, 64, 0)), old);
        assert_int_not_equal(dolphin_slot_state_of(*memory_at(dolphin_kword_addr(leaf, 1))), DOLPHIN_SLOT_LIVE);
        far_sim_release(hold);
        stage_finish(a);
        assert_true(a->result == 0 && stage_reads(c, keys[i], large));
        stage_close(&s);
    }
}


/* The WRITE of a key block on another memory node is held back; no slot may name the block meanwhile. The value is
 * stored inline, so only the key block is on another memory node. */
TEST_OF_BOTH_INSERTS(key_block_alone_on_another_memory_node) {
    static taken all;
    char key[] = "b-and-a-rest-of-more-than-7-bytes", near[] = "ba";
    all.count = 0;
    open_stage("hints=off", "size=2M");
    for (stage_write(a, near, "1"); far_addr_node(dolphin_entry_addr(leaf_entry(near, 0))) != 0;
         stage_write(a, near, "1"))
        near[0]++;
    key[0] = near[0];
    far_addr leaf = dolphin_entry_addr(leaf_entry(near, 0));
    assert_int_equal(call_as_a(fill_memory_node_0, &all), 0);
    far_sim_hold *hold;
    stage_start(a, FAR_OP_INSERT, key, "2");
    run_while_held(
        a, (far_sim_match){.kind = FAR_SIM_WRITE, .from = far_addr_make(1, 0), .to = far_addr_make(1, 2 << 20)}, &hold);
    assert_int_not_equal(dolphin_slot_state_of(*memory_at(dolphin_kword_addr(leaf, 1))), DOLPHIN_SLOT_LIVE);
    far_sim_release(hold);
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(c, key, "2"));
    assert_int_equal(far_addr_node(dolphin_kword_block(*memory_at(dolphin_kword_addr(leaf, 1)))), 1);
    assert_int_equal(call_as_a(free_all_taken, &all), 0);
    stage_close(&s);
}


/* A deepens a leaf of the root, that is, puts a new node with new leaves in its place. The new node is on the memory
 * node of the root, the new leaves are not. Their WRITEs are held back; the entry must not change meanwhile. Fails
 * without the wait in dolphin_publish_change (restructure.c). */
TEST_OF_BOTH_INSERTS(leaves_elsewhere_than_their_node) {
    bool found = false;
    for (char first = 'b'; first <= 'q' && !found; first++) {
        char key[4] = {first, 'a', 'a', 0};
        open_stage(SLOTS2, NULL);
        stage_write(a, key, V1);
        key[2] = 'b';
        stage_write(a, key, V1);
        if (far_addr_node(dolphin_entry_addr(leaf_entry(key, 0))) == 1) {
            dolphin_node root = node_at(key, 0);
            far_addr entry = dolphin_entry_word_addr(&root, (uint8_t)first + 1u);
            uint64_t old = *memory_at(entry);
            far_sim_hold *hold;
            key[2] = 'c';
            run_to_point(a, "dolphin:publish", FAR_OP_INSERT, key, V1);
            far_sim_resume(a->client);
            run_while_held(
                a,
                (far_sim_match){.kind = FAR_SIM_WRITE, .from = far_addr_make(1, 0), .to = far_addr_make(1, 32 << 20)},
                &hold);
            assert_int_equal(*memory_at(entry), old);
            far_sim_release(hold);
            stage_finish(a);
            assert_true(a->result == 0 && stage_reads(b, key, V1));
            found = far_addr_node(node_addr(key)) == 0;
        }
        stage_close(&s);
    }
    assert_true(found);
}


/* Race A34. The WRITE of `cut` and `moved` to the old leaf, which is on another memory node than its node, is held
 * back. No entry may change meanwhile. Fails if batch_write_cut (restructure_leaf.c) does not set entries_must_wait. */
TEST_OF_BOTH_INSERTS(old_leaf_on_another_memory_node) {
    bool found = false;
    for (char first = 'b'; first <= 'q' && !found; first++) {
        char key[] = "na?-and-a-long-tail";
        key[0] = first;
        open_stage("leaf_slots=2", NULL);
        for (key[2] = 'a'; key[2] < 'd'; key[2]++) /* The leaves then contain a; b c, after the common prefix. */
            stage_write(a, key, V1);
        dolphin_node node = node_at(key, 1);
        unsigned at = (unsigned)dolphin_find_entry(&node, dolphin_position((far_bytes){key, strlen(key)}, 2));
        uint64_t old = node.entries[at];
        far_addr leaf = dolphin_entry_addr(old), cut = leaf + DOLPHIN_LEAF_CUT;
        found = far_addr_node(leaf) != far_addr_node(dolphin_entry_addr(node.word));
        if (found) {
            unsigned room = dolphin_count_free_entries(&node);
            far_sim_hold *hold;
            stage_start(a, FAR_OP_INSERT, key, V1);
            run_while_held(a, (far_sim_match){.kind = FAR_SIM_WRITE, .from = cut, .to = cut + 16}, &hold);
            assert_true(dolphin_count_free_entries(&node) == room && node.entries[at] == old);
            far_sim_release(hold);
            stage_finish(a);
            assert_true(a->result == 0 && stage_reads(b, key, V1) && node.entries[at] != old);
        }
        stage_close(&s);
    }
    assert_true(found);
}


/* Test T25. The WRITE of the first leaf below an entry is held back; the entry must stay NULL meanwhile. Fails without
 * the wait in dolphin_publish_change (restructure.c). */
TEST_OF_BOTH_INSERTS(leaf_on_another_memory_node) {
    char key[3] = "Aa";
    open_stage(WORDS, NULL);
    unsigned home = far_addr_node(dolphin_entry_addr(state_of(c)->root)), there;
    do { /* search for a first byte with its leaves on another memory node than the root */
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
    assert_int_equal(dolphin_entry_kind(root.entries[(uint8_t)key[0] + 1]), DOLPHIN_KIND_NULL);
    assert_true(stage_reads(b, key, NULL));
    far_sim_release(hold);
    stage_finish(a);
    assert_true(stage_reads(b, key, V2));
    stage_close(&s);
}
