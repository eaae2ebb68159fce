/* Dolphin, named interleavings: changes of the structure, stale caches, recycled memory, the dead (T12 .. T25, T30 ..
 * T32 of its design). What fails when the guarding line is taken out is said at each test. */
#include "dolphin_rig.h"

#define SLOTS2 WORDS ",leaf_slots=2"
#define SLOTS1 WORDS ",leaf_slots=1"
#define MANY   "nb nd nf nh nj nl nn np nr nt nv nx" /* with one key per leaf: the next one makes the node grow */
#define FIVE   "na nb nx ny nc"                      /* with two: na; nb nc; nx ny. So nd splits one leaf, nz another */


/* The node below the root. */
static far_addr node_addr(const char *key) {
    return dolphin_entry_addr(node_at(key, 1).word);
}


/* The memory of the leaf of "na" is free again, in a life that c's cache still knows. */
static uint64_t recycle(void) {
    up(SLOTS2, NULL);
    put_all(a, "na nb");
    assert_true(stage_reads(c, "na", V1));
    uint64_t old = leaf_entry("na", 0);
    put_all(a, "nc"); /* the leaf is replaced */
    stage_age(&s);
    return old;
}


/* Until the memory of the leaf is in use again: keys that begin with p lie on the same memory node as those with n. */
static void reuse(uint64_t old, const char *first) {
    char key[3] = {first[0], first[1], 0};
    uint64_t *spear = memory_of(dolphin_entry_addr(old));
    for (unsigned i = 0; i < 26 && dolphin_tag(*spear) == dolphin_entry_tag(old); i++, key[1]++)
        stage_write(a, key, V3);
    assert_int_not_equal(dolphin_tag(*spear), dolphin_entry_tag(old));
}


/* T12, A18. Who comes through an old pointer adds one to the count and takes it off, in whatever life: were the spear
 * word overwritten at birth, the count would be one too low afterwards. */
static void stray_enter_and_exit_over_recycling(void **state) {
    (void)state;
    uint64_t old = recycle();
    stand(c, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    reuse(old, "pd");
    stage_finish(c);
    assert_int_equal(dolphin_count(*memory_of(dolphin_entry_addr(old))), 0);
    assert_true(stage_reads(b, "na", V2) && stage_reads(b, "nc", V1));
    put_all(a, "pa pb pc pd pe pf pg");
    stage_close(&s);
}


/* T13, A19. A recycled leaf that is being built for other keys is not what the cache knew: the tag tells. */
static void stale_pointer_to_recycled_leaf(void **state) {
    (void)state;
    uint64_t old = recycle();
    reuse(old, "pd");
    assert_true(stage_reads(c, "na", V1) && stage_reads(c, "nx", NULL));
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", V2), 0);
    assert_true(stage_reads(b, "na", V2));
    stage_close(&s);
}


/* The same, when what is built there is for the very keys, and its builder dies before it links it. */
static void stale_pointer_to_unpublished_leaf(void **state) {
    (void)state;
    uint64_t old = recycle();
    far_addr leaf = dolphin_entry_addr(old);
    char key[3] = "nd";
    bool held = false;
    for (; key[1] <= 'z' && !held; key[1]++) {
        stage_start(a, FAR_OP_PUT, key, V3);
        far_sim_stop_before(a->client, (far_sim_match){.kind = FAR_SIM_WRITE, .from = leaf, .to = leaf + 96});
        held = far_sim_run_client(a->client) == FAR_SIM_STOPPED;
    }
    assert_true(held);
    far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_FAA, .from = leaf, .to = leaf + 8}, FAR_SIM_WHOLE);
    far_sim_resume(a->client);
    far_sim_run_client(a->client);
    assert_int_not_equal(dolphin_tag(*memory_of(leaf)), dolphin_entry_tag(old));
    stage_kill(&s, a);
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", V2), 0);
    assert_true(stage_reads(b, "na", V2) && stage_reads(c, "na", V2));
    stage_close(&s);
}


/* T30, A20. One READ of two lives: the body before the new one is written, the spear word after its birth. */
static void read_spanning_two_lives(void **state) {
    (void)state;
    up(SLOTS2, "atomic_bytes=8");
    put_all(a, "na nb");
    assert_true(stage_reads(c, "na", V1));
    uint64_t old = leaf_entry("na", 0);
    far_addr leaf = dolphin_entry_addr(old);
    put_all(a, "nc");
    assert_int_equal(stage_do(a, FAR_OP_UPDATE, "na", V2), 0);
    stage_age(&s);
    stage_start(c, FAR_OP_GET, "na", NULL);
    far_sim_hold *hold = stage_hold(c, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf, .to = leaf + 96});
    static const uint32_t body[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    assert_int_equal(far_sim_release_units(hold, body, 11), 0);
    reuse(old, "pd");
    far_sim_release(hold);
    stage_finish(c);
    assert_int_equal(c->result, 0);
    assert_memory_equal(c->value, V2, 8);
    stage_close(&s);
}


/* T14. Pointers that are older than the tags are good for are not used, however well they look. */
static void old_pointers_are_not_used(void **state) {
    (void)state;
    _Static_assert(DOLPHIN_POINTER_LIFE / (4 + DOLPHIN_EXTRA_EPOCHS) < DOLPHIN_TAGS, "no tag comes twice");
    up(SLOTS2, NULL);
    put_all(a, "na nb nc");
    assert_true(stage_reads(a, "na", V1));
    dolphin_hint hint;
    far_bytes key = {"na", 2};
    uint64_t now = 0;
    while ((!dolphin_cache_probe(state_of(a)->cache, key, now, &hint) || hint.depth == 0) && now < 1000)
        now++;
    assert_true(now < 1000);
    uint64_t last = now;
    while (dolphin_cache_probe(state_of(a)->cache, key, last + 1, &hint) && hint.depth > 0)
        last++;
    assert_in_range(last - now, DOLPHIN_POINTER_LIFE - 100, DOLPHIN_POINTER_LIFE + 1);
    stage_close(&s);
}


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


/* T16. A READ of a node shows the lower half of a split, and not yet the upper one: the leaf says for which keys it is.
 * Without that look a key that is there is not found. */
static void torn_node_during_split(void **state) {
    (void)state;
    up(SLOTS2, "atomic_bytes=8");
    put_all(a, "na nb nc"); /* a node with two leaves: na; nb nc */
    dolphin_node node = node_at("na", 1);
    uint32_t first_free = 0, units = dolphin_class_bytes(node.class) / 8, late[512], early[512], n = 0, m = 0;
    while (node.entries[first_free])
        first_free++;
    far_addr at = node_addr("na");
    stage_start(b, FAR_OP_GET, "nc", NULL); /* its cache is empty */
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = at, .to = at + 8});
    for (uint32_t i = 0; i < units; i++)
        if (i >= (uint32_t)(node.entries - node.image) + first_free)
            early[n++] = i;
        else
            late[m++] = i;
    assert_int_equal(far_sim_release_units(hold, early, n), 0);
    put_all(a, "nd"); /* nb; nc nd */
    assert_int_equal(far_sim_release_units(hold, late, m), 0);
    stage_finish(b);
    assert_int_equal(b->result, 0);
    assert_memory_equal(b->value, V1, 8);
    stage_close(&s);
}


/* T17. The same with a NULL that became smaller: it says itself where it ends. */
static void torn_null_during_deepen(void **state) {
    (void)state;
    up(SLOTS2, "atomic_bytes=8");
    put_all(a, "na nm nna"); /* na; nm nna */
    stage_delete(a, "nm");
    dolphin_node node = node_at("na", 1);
    uint32_t first_free = 0, units = dolphin_class_bytes(node.class) / 8, late[512], early[512], n = 0, m = 0;
    while (node.entries[first_free])
        first_free++;
    far_addr at = node_addr("na");
    stage_start(b, FAR_OP_GET, "nna", NULL);
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = at, .to = at + 8});
    for (uint32_t i = 0; i < units; i++)
        if (i >= (uint32_t)(node.entries - node.image) + first_free)
            early[n++] = i;
        else
            late[m++] = i;
    assert_int_equal(far_sim_release_units(hold, early, n), 0);
    put_all(a, "nnb"); /* all go on with n: a node there, NULL before and behind it */
    assert_int_equal(far_sim_release_units(hold, late, m), 0);
    stage_finish(b);
    assert_int_equal(b->result, 0);
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


/* T23, A16, A22. A client dies inside a leaf; its place is waited for until all pins are newer, by the one who replaces
 * the leaf without a pin, while others wait for him and renew theirs. */
static void dead_writer_inside(void **state) {
    (void)state;
    stage_open(&s, "dolphin", insert_by[0] == 'c' ? SLOTS2 ",insert=cas" : SLOTS2, NULL);
    put_all(a, "na nb");
    assert_true(stage_reads(b, "na", V1) && stage_reads(c, "na", V1));
    stand(c, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    stage_kill(&s, c);
    stage_start(a, FAR_OP_INSERT, "nc", V2);
    stage_start(b, FAR_OP_UPDATE, "nb", V2);
    assert_string_equal(far_sim_result_name(far_sim_run(s.world)), far_sim_result_name(FAR_SIM_ENDED));
    assert_true(a->result == 0 && b->result == 0);
    assert_true(stage_reads(a, "nb", V2) && stage_reads(b, "nc", V2) && stage_reads(b, "na", V1));
    stage_close(&s);
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


/* T31. The lock of a dead client is taken over, and what it left is put right, by a session that may have its number.
 */
static void lock_of_the_dead(void **state) {
    (void)state;
    static const char *const points[] = {"dolphin:locked", "dolphin:frozen", "dolphin:publish", "dolphin:replaced"};
    for (unsigned i = 0; i < 4; i++) {
        up(SLOTS2, NULL);
        put_all(a, FIVE);
        stand(a, points[i], FAR_OP_INSERT, "nd", V2);
        stage_kill(&s, a);
        assert_int_equal(stage_do(b, FAR_OP_PUT, "nca", V3), 0);
        assert_true(all_read(c, FIVE, V1) && stage_reads(c, "nca", V3));
        assert_int_equal(stage_do(c, FAR_OP_PUT, "nd", V3), 0);
        stage_close(&s);
    }
}


/* A client dies when the upper half of a leaf (nc nd of nb nc) is linked, and the lower one is not. nc is updated
 * since, in its new leaf. */
static far_addr half_replaced(const char *sim) {
    stage_open(&s, "dolphin", insert_by[0] == 'c' ? SLOTS2 ",insert=cas" : SLOTS2, sim);
    put_all(a, FIVE);
    assert_true(all_read(c, FIVE, V1));
    dolphin_node node = node_at("na", 1);
    far_addr leaf = dolphin_entry_addr(leaf_entry("nb", 1));
    int at = dolphin_lookup(&node, dolphin_position((far_bytes){"nb", 2}, 1));
    far_addr place = dolphin_entry_place(&node, (unsigned)at);
    stage_start(a, FAR_OP_INSERT, "nd", V1);
    far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_CAS, .from = place, .to = place + 8}, 0);
    far_sim_run_client(a->client);
    stage_kill(&s, a);
    assert_int_not_equal(leaf_entry("nb", 1), leaf_entry("nc", 1));
    assert_int_equal(dolphin_entry_addr(leaf_entry("nb", 1)), leaf);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nc", V2), 0);
    return leaf;
}


/* The frozen leaf speaks for nb alone: were all of it given, nc would be an old value, and nd would be missed. */
static void scan_of_a_half_replaced_leaf(void **state) {
    (void)state;
    half_replaced(NULL);
    assert_true(stage_scans(b, "n", "na nb nc nd nx ny") && stage_scans(c, "n", "na nb nc nd nx ny"));
    assert_true(stage_reads(c, "nc", V2) && stage_reads(c, "nd", V1) && stage_reads(c, "nb", V1));
    stage_close(&s);
}


/* Whoever takes over takes from the leaf what is elsewhere, and lets it thaw: when nobody can still hold a READ of it
 * that shows what it was for before. Without that wait nc is not found, or an old value. */
static void narrowed_leaf_vs_late_read(void **state) {
    (void)state;
    far_addr leaf = half_replaced("atomic_bytes=8");
    static const uint32_t ident = 1;
    stage_start(c, FAR_OP_GET, "nc", NULL); /* by what it knew */
    far_sim_hold *hold = stage_hold(c, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf, .to = leaf + 96});
    assert_int_equal(far_sim_release_units(hold, &ident, 1), 0);
    stage_start(b, FAR_OP_PUT, "nba", V3);
    stage_stop_at(b, (far_sim_match){.point = "dolphin:narrowed"});
    assert_true((*memory_of(leaf) & DOLPHIN_FROZEN) && (memory_of(leaf)[1] & DOLPHIN_NARROWED));
    far_sim_resume(b->client);
    far_sim_run_for(s.world, 1000000);
    assert_true(!b->ended && (*memory_of(leaf) & DOLPHIN_FROZEN));
    far_sim_release(hold);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(c->result == 0 && b->result == 0);
    assert_memory_equal(c->value, V2, 8);
    assert_true(stage_reads(c, "nba", V3) && stage_reads(c, "nc", V2) && stage_scans(c, "n", "na nb nba nc nd nx ny"));
    stage_close(&s);
}


/* Who takes over dies between the two: the next one waits as well. */
static void narrowed_leaf_of_two_dead(void **state) {
    (void)state;
    far_addr leaf = half_replaced("atomic_bytes=8");
    static const uint32_t ident = 1;
    stage_start(c, FAR_OP_GET, "nc", NULL);
    far_sim_hold *hold = stage_hold(c, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf, .to = leaf + 96});
    assert_int_equal(far_sim_release_units(hold, &ident, 1), 0);
    stand(b, "dolphin:narrowed", FAR_OP_PUT, "nba", V3);
    far_session *session;
    assert_int_equal(far_session_open(c->pool, &session), 0);
    stage_actor d = {.pool = c->pool, .index = c->index, .session = session};
    far_sim_kill(b->pool->fabric);
    stage_start(&d, FAR_OP_PUT, "nba", V3);
    far_sim_run_for(s.world, 3000000);
    assert_true(!d.ended && (*memory_of(leaf) & DOLPHIN_FROZEN));
    far_sim_release(hold);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(c->result == 0 && d.result == 0);
    assert_memory_equal(c->value, V2, 8);
    far_session_close(session);
    stage_close(&s);
}


/* A client dies when the old node is frozen, and the entry above it not yet changed: whoever takes over the lock above
 * lets it thaw. */
static void frozen_node_of_the_dead(void **state) {
    (void)state;
    up(SLOTS1, NULL);
    put_all(a, MANY);
    stand(a, "dolphin:switch", FAR_OP_INSERT, "nc", V2);
    uint64_t *lock = node_at("nb", 1).image;
    stage_kill(&s, a);
    *lock |= DOLPHIN_FROZEN; /* where the CAS was not waited for it may not have taken effect */
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nc", V3), 0);
    assert_true(stage_reads(c, "nc", V3) && all_read(c, MANY, V1));
    stage_close(&s);
}


/* T31. The number of a dead client is used again, by one that lives: a lock with the old generation is a dead one's.
 * Without the generation in the lock word it would be waited for for ever. */
static void lock_of_the_dead_whose_number_lives(void **state) {
    (void)state;
    stage_open(&s, "dolphin", SLOTS2, NULL);
    put_all(a, FIVE);
    stand(a, "dolphin:locked", FAR_OP_INSERT, "nd", V2);
    unsigned id = a->session->id, generation = a->session->generation;
    uint64_t *lock = memory_of(node_addr("na")), held = *lock;
    assert_int_equal(far_owner_client(dolphin_lock_owner(held)), id);
    stage_kill(&s, a);
    far_session *sessions[64];
    unsigned count = 0;
    bool again = false;
    for (unsigned tries = 0; tries < 8 && !again; tries++) { /* the sweep takes the lock over, and frees the number */
        assert_int_equal(far_pool_check(b->session, 1, stage_fail_at_problem, NULL), 0);
        assert_int_equal(dolphin_lock_owner(*lock), 0);
        for (unsigned i = 0; i < 8 && !again; i++) {
            assert_int_equal(far_session_open(c->pool, &sessions[count]), 0);
            again = sessions[count]->id == id && sessions[count]->generation != generation;
            count++;
        }
    }
    assert_true(again);
    *lock = held;
    assert_int_equal(stage_do(b, FAR_OP_PUT, "nd", V3), 0);
    assert_true(stage_reads(c, "nd", V3) && all_read(c, FIVE, V1));
    while (count)
        far_session_close(sessions[--count]);
    stage_close(&s);
}


/* T32. A client that is declared dead, and goes on, changes nothing any more. */
static void zombie_after_takeover(void **state) {
    (void)state;
    static const char *const points[] = {"dolphin:locked", "dolphin:publish"};
    for (unsigned i = 0; i < 2; i++) {
        up(SLOTS2, NULL);
        put_all(a, FIVE);
        stand(a, points[i], FAR_OP_INSERT, "nd", V2);
        assert_int_equal(far_sim_declare_dead(s.world, a->session->id, a->session->generation), 1);
        assert_int_equal(stage_do(b, FAR_OP_PUT, "nd", V3), 0);
        stage_finish(a);
        assert_true(a->result < 0 && stage_reads(c, "nd", V3) && all_read(c, FIVE, V1));
        stage_kill(&s, a);
        stage_close(&s);
    }
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


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stray_enter_and_exit_over_recycling),
        cmocka_unit_test(stale_pointer_to_recycled_leaf),
        cmocka_unit_test(stale_pointer_to_unpublished_leaf),
        cmocka_unit_test(read_spanning_two_lives),
        cmocka_unit_test(old_pointers_are_not_used),
        cmocka_unit_test(get_through_grown_parent),
        cmocka_unit_test(parent_is_frozen_before_the_switch),
        cmocka_unit_test(switch_waits_for_another_memory_node),
        cmocka_unit_test(unlock_comes_after_the_entries),
        cmocka_unit_test(block_on_another_memory_node),
        cmocka_unit_test(reads_through_a_frozen_node),
        cmocka_unit_test(torn_node_during_split),
        cmocka_unit_test(torn_null_during_deepen),
        cmocka_unit_test(two_splits_same_parent),
        cmocka_unit_test(grow_vs_split),
        cmocka_unit_test(path_parted_vs_split),
        cmocka_unit_test(scan_vs_changes),
        cmocka_unit_test(dead_writer_inside),
        cmocka_unit_test(node_read_before_the_lock),
        cmocka_unit_test(leaf_on_another_memory_node),
        cmocka_unit_test(lock_of_the_dead),
        cmocka_unit_test(frozen_node_of_the_dead),
        cmocka_unit_test(scan_of_a_half_replaced_leaf),
        cmocka_unit_test(narrowed_leaf_vs_late_read),
        cmocka_unit_test(narrowed_leaf_of_two_dead),
        cmocka_unit_test(lock_of_the_dead_whose_number_lives),
        cmocka_unit_test(zombie_after_takeover),
        cmocka_unit_test(merge_vs_fill),
        cmocka_unit_test(merge_vs_write),
    };
    int failed = cmocka_run_group_tests(tests, inserts_by_ticket, NULL);
    return failed + cmocka_run_group_tests(tests, inserts_by_cas, NULL);
}
