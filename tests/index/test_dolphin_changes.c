/* Dolphin, named interleavings: changes of the structure against readers, writers, scans and each other, also between
 * memory nodes (T15 .. T22, T24, T25 of its design). What fails when the guarding line is taken out is said at each
 * test. */
#include "dolphin_rig.h"
#include "pool/epoch.h"
#include "task/session.h"


/* T15, A21. A node is replaced by a larger one; the reader knows the old one, and the old leaf below it, which is
 * replaced by way of the new node. Were the old node frozen only after the entry above it was changed, the reader would
 * find it as it was, naming the old leaf, and answer from that. */
static void get_through_grown_parent(void **state) {
    (void)state;
    up(SLOTS1, NULL);
    put_all(a, MANY);
    assert_true(stage_reads(b, "nb", V1) && stage_reads(b, "nv", V1));
    stand(a, "dolphin:switched", FAR_OP_INSERT, "nc", V1);
    assert_int_equal(stage_do(c, FAR_OP_PUT, "nba", V2), 0); /* the leaf of nb is replaced */
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "nb", V2), 0);
    assert_true(stage_reads(b, "nb", V2));
    stage_finish(a);
    assert_true(all_read(b, "nd nf nh nj nl nn np nr nt nv nx nc", V1));
    stage_close(&s);
}


/* The same, directly: when the entry above is about to change, the old node is frozen already, in memory, on whatever
 * memory nodes the two lie. Were it frozen only after the switch, whoever READs it in between would believe it. */
static void parent_is_frozen_before_the_switch(void **state) {
    (void)state;
    unsigned apart = 0, together = 0;
    for (char first = 'b'; first <= 'q' && !(apart && together); first++) {
        char key[3] = {first, 'a', 0};
        up(SLOTS1, "memory_nodes=2");
        for (char next = 'b'; next <= 'x'; next += 2) {
            key[1] = next;
            stage_write(a, key, V1);
        }
        dolphin_node root = node_at(key, 0), old = node_at(key, 1);
        far_addr entry = dolphin_entry_place(&root, (uint8_t)first + 1u);
        key[1] = 'c';
        stage_start(a, FAR_OP_INSERT, key, V2);
        far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_CAS, .from = entry, .to = entry + 8});
        assert_true(old.image[0] & DOLPHIN_FROZEN);
        assert_true(dolphin_entry_same(*memory_of(entry), old.word));
        bool near = far_addr_node(dolphin_entry_addr(old.word)) == far_addr_node(entry);
        apart += !near;
        together += near;
        key[1] = 'b';
        assert_true(stage_reads(b, key, V1));
        far_sim_release(hold);
        stage_finish(a);
        assert_true(a->result == 0 && stage_reads(b, key, V1));
        key[1] = 'c';
        assert_true(stage_reads(b, key, V2));
        stage_close(&s);
    }
    assert_true(apart && together);
}


/* Runs a client as far as it gets while that verb has no effect. */
static void run_without(stage_actor *by, far_sim_match match, far_sim_hold **hold) {
    *hold = stage_hold(by, match);
    for (unsigned i = 0; i < 20; i++)
        far_sim_run_client(by->client);
    assert_false(by->ended);
}


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


/* The memory of a node that was replaced is a node again, or nothing, whoever replaced it: here leaves are as large as
 * nodes. Retired as a leaf it would be one soon, under old pointers to the node; or, where it comes back to its owner,
 * be lost. */
static void memory_of_a_node_is_never_a_leaf(void **state) {
    (void)state;
    stage_actor *const who[] = {a, b};
    for (unsigned i = 0; i < 2; i++) {
        char key[4] = "n0";
        stage_open(&s, "dolphin", WORDS ",leaf_slots=4", NULL);
        put_all(a, "na nb nc nd ne");
        dolphin_node old = node_at("na", 1);
        assert_int_equal(dolphin_class_bytes(old.class), state_of(a)->leaf_bytes);
        for (unsigned n = 0; n < 75; n++, key[1]++)
            stage_write(who[i], key, V1);
        assert_int_not_equal(node_at("na", 1).word, old.word);
        stage_age(&s);
        for (unsigned n = 0; n < 100; n++) {
            snprintf(key, sizeof(key), "%c%c%c", 'o' + n % 8, 'a' + n / 8 % 4, 'a' + n / 32);
            stage_write(who[i], key, V1);
        }
        assert_int_equal(old.image[1] >> 40, DOLPHIN_NODE_MAGIC);
        far_pool_usage usage;
        assert_int_equal(far_pool_check(a->session, 0, fail_at_problem, NULL), 0);
        assert_int_equal(far_pool_stat(a->session, &usage), 0);
        assert_int_equal(usage.leaked, 0);
        stage_close(&s);
    }
}


/* The unlock is an atomic, like the changes of entries before it: it does not overtake them, as a WRITE would. */
static void unlock_comes_after_the_entries(void **state) {
    (void)state;
    up(SLOTS2, NULL);
    put_all(a, FIVE);
    dolphin_node node = node_at("na", 1);
    int at = dolphin_lookup(&node, dolphin_position((far_bytes){"nb", 2}, 1));
    far_addr place = dolphin_entry_place(&node, (unsigned)at);
    far_sim_hold *hold;
    stage_start(a, FAR_OP_INSERT, "nd", V2);
    stage_stop_at(a, (far_sim_match){.point = "dolphin:publish"});
    far_sim_resume(a->client);
    run_without(a, (far_sim_match){.kind = FAR_SIM_CAS, .from = place, .to = place + 8}, &hold);
    assert_int_equal(far_owner_client(dolphin_lock_owner(node.image[0])), a->session->id);
    far_sim_release(hold);
    stage_finish(a);
    assert_int_equal(dolphin_lock_owner(node.image[0]), 0);
    assert_true(stage_reads(b, "nd", V2) && all_read(b, FIVE, V1));
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


/* ... and before the switch the old node, frozen, still counts. */
static void reads_through_a_frozen_node(void **state) {
    (void)state;
    up(SLOTS1, NULL);
    put_all(a, MANY);
    assert_true(stage_reads(b, "nb", V1));
    stand(a, "dolphin:switch", FAR_OP_INSERT, "nc", V1);
    assert_true(all_read(b, MANY, V1) && all_read(c, MANY, V1));
    assert_true(stage_reads(c, "nc", NULL) && stage_scans(b, "n", MANY));
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "nb", V2), 0);
    stage_finish(a);
    assert_true(stage_reads(b, "nb", V2) && stage_reads(b, "nc", V1));
    stage_close(&s);
}


/* b looks for the key, by a READ of the node that shows its free entries as they were, and the others as they are when a
 * has put another key in. Its cache is empty. */
static void look_by_a_torn_node(far_op_kind does, const char *key, const char *meanwhile) {
    dolphin_node node = node_at("na", 1);
    uint32_t first_free = 0, units = dolphin_class_bytes(node.class) / 8, late[512], early[512], n = 0, m = 0;
    while (node.entries[first_free])
        first_free++;
    far_addr at = node_addr("na");
    stage_start(b, does, key, NULL);
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = at, .to = at + 8});
    for (uint32_t i = 0; i < units; i++)
        if (i >= (uint32_t)(node.entries - node.image) + first_free)
            early[n++] = i;
        else
            late[m++] = i;
    assert_int_equal(far_sim_release_units(hold, early, n), 0);
    put_all(a, meanwhile);
    assert_int_equal(far_sim_release_units(hold, late, m), 0);
    stage_finish(b);
}


static void get_by_a_torn_node(const char *key, const char *meanwhile) {
    look_by_a_torn_node(FAR_OP_GET, key, meanwhile);
    assert_int_equal(b->result, 0);
    assert_memory_equal(b->value, V1, 8);
}


/* T16. A READ of a node shows the lower half of a split, and not yet the upper one: the leaf says for which keys it is.
 * Without that look a key that is there is not found. */
static void torn_node_during_split(void **state) {
    (void)state;
    up(SLOTS2, "atomic_bytes=8");
    put_all(a, "na nb nc");         /* a node with two leaves: na; nb nc */
    get_by_a_torn_node("nc", "nd"); /* nb; nc nd */
    stage_close(&s);
}


/* T17. The same with a NULL that became smaller: it says itself where it ends. */
static void torn_null_during_deepen(void **state) {
    (void)state;
    up(SLOTS2, "atomic_bytes=8");
    put_all(a, "na nm nna"); /* na; nm nna */
    stage_delete(a, "nm");
    get_by_a_torn_node("nna", "nnb"); /* all go on with n: a node there, NULL before and behind it */
    stage_close(&s);
}


/* ... to a scan, which passes what is empty, as well: it goes as far as that NULL says, and looks again. Else it would not
 * come to an end. */
static void scan_passes_a_torn_null(void **state) {
    (void)state;
    up(SLOTS2, "atomic_bytes=8");
    put_all(a, "na nm nna");
    stage_delete(a, "nm");
    look_by_a_torn_node(FAR_OP_SCAN, "nm", "nnb");
    assert_int_equal(b->result, 2);
    assert_true(strcmp(b->keys[0], "nna") == 0 && strcmp(b->keys[1], "nnb") == 0);
    stage_close(&s);
}


/* T18. Two changes below one node: the second waits for the lock. */
static void two_splits_same_parent(void **state) {
    (void)state;
    up(SLOTS2, NULL);
    put_all(a, FIVE);
    assert_true(all_read(b, FIVE, V1));
    stand(a, "dolphin:publish", FAR_OP_INSERT, "nd", V2);
    start_and_wait(b, FAR_OP_INSERT, "nz", V2);
    stage_finish(a);
    stage_finish(b);
    assert_true(a->result == 0 && b->result == 0);
    assert_true(all_read(c, "nd nz", V2) && all_read(c, FIVE, V1));
    stage_close(&s);
}


/* T19, A27. An entry that is added after the node was copied would be lost: the lock of the old node is never free. */
static void grow_vs_split(void **state) {
    (void)state;
    static const char *const points[] = {"dolphin:copy", "dolphin:switch", "dolphin:switched"};
    for (unsigned i = 0; i < 3; i++) {
        up(SLOTS1, NULL);
        put_all(a, MANY);
        assert_true(all_read(b, MANY, V1));
        stage_start(b, FAR_OP_INSERT, "nu", V2);
        stage_stop_at(b, (far_sim_match){.kind = FAR_SIM_CAS}); /* before it locks the node */
        stand(a, points[i], FAR_OP_INSERT, "nc", V2);
        far_sim_resume(b->client);
        far_sim_run_for(s.world, 100000); /* it does not get it */
        assert_false(b->ended && i < 2);
        stage_finish(a);
        stage_finish(b);
        assert_true(a->result == 0 && b->result == 0 && all_read(c, "nc nu", V2) && all_read(c, MANY, V1));
        stage_close(&s);
    }
}


/* T20. A node is put above another one while leaves below that are split. */
static void path_parted_vs_split(void **state) {
    (void)state;
    up(SLOTS2, NULL);
    put_all(a, "nxaaa nxaab nxaac");
    stage_start(a, FAR_OP_INSERT, "nxb", V2);
    stage_stop_at(a, (far_sim_match){.kind = FAR_SIM_CAS});
    put_all(b, "nxaad nxaae");
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nxc", V2), 0); /* it parts the path first */
    stage_finish(a);
    assert_true(a->result == 0 && all_read(c, "nxb nxc", V2) && all_read(c, "nxaaa nxaab nxaac nxaad nxaae", V1));
    stage_close(&s);
}


/* T21, T22, A29. Whatever happens to leaves that a scan has READ, it gives each key once that is there all the time. */
static void scan_vs_changes(void **state) {
    (void)state;
    for (unsigned nth = 1; nth <= 2; nth++)
        for (unsigned merges = 0; merges < 2; merges++) {
            up(WORDS ",leaf_slots=4,scan_batch=2", NULL);
            put_all(a, "na nb nc nd ne nf ng nh ni nj");
            stand_at(b, "dolphin:scan_read", nth, FAR_OP_SCAN, "n", NULL);
            if (merges) {
                stage_delete(a, "nb");
                stage_delete(a, "nc");
                stage_delete(a, "nf");
                stage_delete(a, "ng");
                stage_delete(a, "nh");
            } else
                put_all(a, "naa nab nac nea neb nec ned");
            stage_finish(b);
            static const char *const stay[] = {"na", "nd", "ne", "ni", "nj"};
            for (unsigned i = 0; i < 5; i++) {
                unsigned times = 0;
                for (unsigned k = 0; k < b->pairs; k++)
                    times += strcmp(b->keys[k], stay[i]) == 0;
                assert_int_equal(times, 1);
            }
            stage_close(&s);
        }
}


/* T24, A23. The READs of a locked node take effect before the CAS of its lock, and others change the node in between:
 * the second READ of the lock word shows it. Without that look entries are put where there are some already. */
static void node_read_before_the_lock(void **state) {
    (void)state;
    up(SLOTS2, NULL);
    put_all(a, FIVE);
    far_addr at = node_addr("na");
    assert_true(all_read(b, FIVE, V1));
    stage_start(b, FAR_OP_INSERT, "nd", V2);
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_CAS, .from = at, .to = at + 8});
    far_sim_run_client(b->client);
    put_all(a, "nz");
    far_sim_release(hold);
    stage_finish(b);
    assert_true(b->result == 0 && all_read(c, FIVE " nz", V1) && stage_reads(c, "nd", V2));
    stage_close(&s);
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


/* A merge looks at leaves without a lock; before it has it, others fill the hole between them, or change them. Without
 * the second look under the lock what came between is lost. */
static void merge_vs_fill(void **state) {
    (void)state;
    static const char *const meanwhile[] = {"nd", "nc", "na", "nha", "nz"};
    for (unsigned i = 0; i < 5; i++) {
        up(WORDS ",leaf_slots=4", NULL);
        put_all(a, "na nb nc nd ne nf ng nh"); /* na nb; nc nd; ne nf ng nh */
        for (const char *key = "efgc"; *key; key++)
            stage_delete(a, (char[]){'n', *key, 0});
        stand(a, "dolphin:merge_found", FAR_OP_DELETE, "nd", NULL);
        stage_write(b, meanwhile[i], V2);
        stage_finish(a);
        assert_true(a->result == 0 && stage_reads(c, meanwhile[i], V2) && stage_reads(b, meanwhile[i], V2));
        assert_true(all_read(c, "nb nh", V1) && stage_reads(c, "na", i == 2 ? V2 : V1));
        stage_close(&s);
    }
}


/* ... or put so many keys into the two that they do not fit into one any more. */
static void merge_vs_many_inserts(void **state) {
    (void)state;
    up(WORDS ",leaf_slots=4", NULL);
    put_all(a, "na nb nc nd ne nf ng nh"); /* na nb; nc nd; ne nf ng nh */
    for (const char *key = "efgc"; *key; key++)
        stage_delete(a, (char[]){'n', *key, 0});
    put_all(a, "nha"); /* the last one is copied, without dead slots */
    stage_delete(a, "nha");
    stand(a, "dolphin:merge_found", FAR_OP_DELETE, "nd", NULL);
    uint64_t low = leaf_entry("na", 1), high = leaf_entry("nh", 1);
    put_all(b, "naa nab nhb nhc");
    assert_true(leaf_entry("na", 1) == low && leaf_entry("nh", 1) == high);
    stage_finish(a);
    assert_true(a->result == 0 && all_read(c, "na naa nab nb nh nhb nhc", V1));
    put_all(c, "nac nhd"); /* they are not frozen any more */
    stage_close(&s);
}


/* All that is left of a node is one leaf. It takes the place of the node only if its keys can stand there: rests that are
 * short below it would need blocks. Else those keys are lost. */
static void merged_leaf_stays_below_its_node(void **state) {
    (void)state;
    char key[] = "nx-a-long-prefix-?";
    up(WORDS ",leaf_slots=4", NULL);
    for (const char *last = "abcdefgh"; *last; last++) { /* a b; c d; e f g h */
        key[sizeof(key) - 2] = *last;
        stage_write(a, key, V1);
    }
    for (const char *last = "efgcd"; *last; last++) {
        key[sizeof(key) - 2] = *last;
        stage_delete(a, key);
    }
    assert_int_equal(leaf_entry("nx-a-long-prefix-a", 1), leaf_entry("nx-a-long-prefix-h", 1));
    assert_true(all_read(c, "nx-a-long-prefix-a nx-a-long-prefix-b nx-a-long-prefix-h", V1));
    stage_close(&s);
}


/* coverage=lastbyte: a key gets a node of its own, which takes two entries of the node above, and others put one there
 * between the look and the lock. i = 0: those were the last two. Without a second look entries would be written behind the
 * node. i = 1: they took a part of the same NULL. Taken for the one that was seen, it would be there twice. */
static void fill_vs_fill(void **state) {
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        up(WORDS ",coverage=lastbyte", NULL);
        put_all(a, "na1 nc1 ne1");
        if (i == 0)
            put_all(a, "ng1 ni1");
        dolphin_node node = node_at("na1", 1);
        if (i == 0)
            assert_int_equal(dolphin_free_entries(&node), 2);
        stage_start(a, FAR_OP_INSERT, "nz1", V1);
        stage_stop_at(a, (far_sim_match){.kind = FAR_SIM_CAS});
        put_all(b, i == 0 ? "nA1" : "nx1");
        stage_finish(a);
        assert_true(a->result == 0 && all_read(c, "na1 nc1 ne1 nz1", V1));
        assert_true(stage_reads(c, i == 0 ? "nA1" : "nx1", V1));
        stage_close(&s);
    }
}


/* Who writes into a leaf that is being merged waits, or is waited for. */
static void merge_vs_write(void **state) {
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        up(WORDS ",leaf_slots=4", NULL);
        put_all(a, "na nb nc nd ne nf ng nh");
        for (const char *key = "efgc"; *key; key++)
            stage_delete(a, (char[]){'n', *key, 0});
        assert_true(all_read(b, "na nh", V1));
        if (i == 0) {
            stand(b, "dolphin:entered", FAR_OP_UPDATE, "nh", V2);
            stand_at(a, "dolphin:frozen", 4, FAR_OP_DELETE, "nd", NULL);
        } else {
            stand(a, "dolphin:copy", FAR_OP_DELETE, "nd", NULL);
            start_and_wait(b, FAR_OP_UPDATE, "nh", V2);
        }
        stage_finish(i ? a : b);
        stage_finish(i ? b : a);
        assert_true(a->result == 0 && b->result == 0);
        assert_true(stage_reads(c, "nh", V2) && all_read(c, "na nb", V1) && stage_reads(c, "nd", NULL));
        stage_close(&s);
    }
}


/* A writer stays inside, and the wait for epochs fails: the epoch is damaged. What was frozen thaws, in a merge, which
 * nobody hears of, and where a leaf is replaced. Left frozen, no one could write it any more. */
static void leaf_that_cannot_be_drained(void **state) {
    (void)state;
    for (unsigned merge = 0; merge < 2; merge++) {
        up(WORDS ",leaf_slots=4", NULL);
        put_all(a, "na nb nc nd ne nf ng nh"); /* na nb; nc nd; ne nf ng nh */
        for (const char *key = merge ? "efgc" : ""; *key; key++)
            stage_delete(a, (char[]){'n', *key, 0});
        stage_age(&s);
        uint64_t *epoch = memory_of(FAR_SUPER_EPOCH), was, *leaf = memory_of(dolphin_entry_addr(leaf_entry("nh", 1)));
        stand(b, "dolphin:entered", FAR_OP_UPDATE, "nh", V2);
        stand(a, "dolphin:drain", merge ? FAR_OP_DELETE : FAR_OP_INSERT, merge ? "nd" : "ni", V1);
        assert_true(*leaf & DOLPHIN_FROZEN);
        was = *epoch;
        *epoch = 0;
        stage_finish(a);
        *epoch = was;
        assert_int_equal(a->result, merge ? 0 : FAR_ERR_CORRUPT);
        assert_false(*leaf & DOLPHIN_FROZEN);
        assert_false(*memory_of(dolphin_entry_addr(leaf_entry("na", 1))) & DOLPHIN_FROZEN);
        stage_finish(b);
        assert_true(b->result == 0 && stage_reads(c, "nh", V2) && all_read(c, "na nb", V1));
        stage_write(c, "nh", V3);
        stage_close(&s);
    }
}


/* A put finds the leaf full, and its key there when the leaf is final: the block that it made for the key is not needed.
 * Forgotten, it would be lost. */
static void key_that_came_meanwhile_has_its_block(void **state) {
    (void)state;
    static const char key[] = "n-and-a-rest-of-more-than-7-bytes";
    up("hints=off,leaf_slots=2", NULL);
    put_all(a, "na");
    assert_true(stage_reads(a, "na", V1) && stage_reads(b, "na", V1));
    stand(b, "dolphin:ticket", FAR_OP_INSERT, key, V2);
    stand_at(a, "dolphin:frozen", 2, FAR_OP_PUT, key, V3);
    stage_finish(b);
    stage_finish(a);
    assert_true(a->result == 0 && b->result == 0 && stage_reads(c, key, V3) && stage_reads(c, "na", V1));
    stage_close(&s);
}


/* Keys that are short below a new node need no block any more: those that were there, and the one that came now. */
static void short_rests_need_no_block(void **state) {
    (void)state;
    up("leaf_slots=2", NULL);
    put_all(a, "nx-a-long-prefix-1 nx-a-long-prefix-2 nx-a-long-prefix-3");
    uint64_t leaf = leaf_entry("nx-a-long-prefix-3", 1);
    assert_false(dolphin_kword_is_block(*memory_of(dolphin_key_at(dolphin_entry_addr(leaf), 0))));
    put_all(b, "nx-b-long-prefix-1 nx-b-long-prefix-2 nx-b-long-prefix-3");
    stage_delete(b, "nx-b-long-prefix-2");
    put_all(b, "nx-b-long-prefix-4 nx-b-long-prefix-and-more");
    stage_close(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(get_through_grown_parent),
        cmocka_unit_test(parent_is_frozen_before_the_switch),
        cmocka_unit_test(switch_waits_for_another_memory_node),
        cmocka_unit_test(switch_waits_for_a_copy_elsewhere),
        cmocka_unit_test(memory_of_a_node_is_never_a_leaf),
        cmocka_unit_test(unlock_comes_after_the_entries),
        cmocka_unit_test(block_on_another_memory_node),
        cmocka_unit_test(key_block_alone_on_another_memory_node),
        cmocka_unit_test(leaves_elsewhere_than_their_node),
        cmocka_unit_test(old_leaf_elsewhere_than_its_node),
        cmocka_unit_test(reads_through_a_frozen_node),
        cmocka_unit_test(torn_node_during_split),
        cmocka_unit_test(torn_null_during_deepen),
        cmocka_unit_test(scan_passes_a_torn_null),
        cmocka_unit_test(two_splits_same_parent),
        cmocka_unit_test(grow_vs_split),
        cmocka_unit_test(path_parted_vs_split),
        cmocka_unit_test(scan_vs_changes),
        cmocka_unit_test(node_read_before_the_lock),
        cmocka_unit_test(leaf_on_another_memory_node),
        cmocka_unit_test(merge_vs_fill),
        cmocka_unit_test(merge_vs_many_inserts),
        cmocka_unit_test(merged_leaf_stays_below_its_node),
        cmocka_unit_test(fill_vs_fill),
        cmocka_unit_test(merge_vs_write),
        cmocka_unit_test(leaf_that_cannot_be_drained),
    };
    const struct CMUnitTest of_blocks[] = {
        cmocka_unit_test(short_rests_need_no_block), cmocka_unit_test(key_that_came_meanwhile_has_its_block),
        cmocka_unit_test(merge_vs_write), /* both old leaves become free again */
    };
    int failed = cmocka_run_group_tests(tests, inserts_by_ticket, NULL);
    failed += cmocka_run_group_tests(tests, inserts_by_cas, NULL);
    return failed + cmocka_run_group_tests(of_blocks, beside_housekeeping, NULL);
}
