/* Tests of repairs and of clients that live while the pool is damaged. The tests prove that a check with repair changes
 * a damaged word only if no other client has the pool open, that it names these clients otherwise, and that a handle
 * which other clients may not see any more stops all its operations within bounded work. */
#include "pool/alloc/blocks.h"
#include "pool/format/clients.h"
#include "pool/gc/collect.h"
#include "pool/gc/request.h"
#include "pool/handle.h"
#include "scene.h"
#include "task/session.h"
#include "test.h"
#include "trial.h"

#include <string.h>

typedef struct user { /* A client of the pool. */
    far_pool *pool;
    far_session *session;
    far_index *index;
    char said[800]; /* the problems that the last check has reported */
} user;

static scene pool_scene;


static int make_scene(void **state) {
    int err = rig_start(state);
    scene_make(&pool_scene, "dart", "", false, 1);
    return err;
}


static int free_scene(void **state) {
    scene_free(&pool_scene);
    return rig_end(state);
}


static void open_user(user *u) {
    *u = (user){0};
    assert_int_equal(far_pool_open(RIG_URI, &rig_options, &u->pool), 0);
    assert_int_equal(far_session_open(u->pool, &u->session), 0);
    assert_int_equal(far_index_open(u->session, "index", &u->index), 0);
}


static void close_user(user *u) {
    far_index_close(u->index);
    far_session_close(u->session);
    far_pool_close(u->pool);
}


static void restore_scene(void) {
    rig_seed(1);
    rig_restore_pool(pool_scene.image);
    rig_limit_verbs(UINT64_MAX);
}


static void poll_pool(void *pool) {
    far_pool_poll(pool);
}


static int save_problem(void *ctx, const char *what) {
    user *u = ctx;
    size_t used = strlen(u->said);
    snprintf(u->said + used, sizeof(u->said) - used, "%s\n", what);
    return 0;
}


static int run_check(user *u, int repair) {
    u->said[0] = 0;
    rig_limit_verbs(TRIAL_VERBS_OF_ALL);
    int count = far_pool_check(u->session, repair, save_problem, u);
    assert_false(rig_limit_is_exceeded());
    rig_limit_verbs(UINT64_MAX);
    return count;
}


static uint64_t *word_at(far_addr addr) {
    return (uint64_t *)(rig_memory(far_addr_node(addr)) + far_addr_offset(addr));
}


static int get_key(user *u, unsigned number) {
    char key[SCENE_KEY_BYTES], value[FAR_VALUE_MAX];
    size_t key_bytes = scene_key(&pool_scene, number, key), bytes = 0;
    return far_get(u->session, u->index, key, key_bytes, value, sizeof(value), &bytes);
}


static int put_key(user *u, unsigned number) {
    char key[SCENE_KEY_BYTES], value[SCENE_VALUE_MAX];
    size_t key_bytes = scene_key(&pool_scene, number, key), bytes = scene_value(&pool_scene, number, 1, value);
    return far_put(u->session, u->index, key, key_bytes, value, bytes);
}


static void assert_keys_are_present(user *u) {
    for (unsigned i = 0; i < SCENE_KEYS; i++)
        assert_int_equal(get_key(u, i), scene_is_deleted(i) ? FAR_ERR_NOT_FOUND : 0);
}


/* ---- Repairs ---- */

/* Returns the address of the bitmap word with the free bit of an object of the index. Sets *bit, and *entry to the address
 * of the entry of its block. */
static far_addr free_bit_of_object(uint64_t *bit, far_addr *entry) {
    const far_geometry *g = &pool_scene.geometry;
    for (size_t i = 0; i < pool_scene.place_count; i++) {
        far_block_id id;
        far_addr addr = pool_scene.places[i].objects[0].addr;
        if (!strstr(pool_scene.places[i].name, "dart type") || !far_block_of(g, addr, &id))
            continue;
        uint64_t granule = far_block_offset(g, addr) / FAR_GRANULE;
        *bit = 1ull << granule % FAR_WORD_GRANULES;
        *entry = far_block_entry(g, id);
        return far_block_bitmap(g, id) + granule / FAR_WORD_GRANULES * 8;
    }
    fail_msg("the index has no objects");
    return 0;
}


/* Damages a word while clients A and B have the pool open. A check with repair by A reports the damage and names B, and
 * the word stays as it is. After B has closed the pool, A's check repairs the word. */
static void assert_repaired_only_alone(far_addr addr, uint64_t damaged) {
    user a, b;
    open_user(&a);
    open_user(&b);
    rig_run_while_waiting(poll_pool, b.pool);
    *word_at(addr) = damaged;
    assert_true(run_check(&a, 0) >= 1);
    assert_null(strstr(a.said, "no other client"));
    assert_true(run_check(&a, 1) >= 2);
    char name[32];
    snprintf(name, sizeof(name), "client %u", b.pool->team.own->id);
    assert_non_null(strstr(a.said, "only while no other client has the pool open"));
    assert_non_null(strstr(a.said, name));
    snprintf(name, sizeof(name), "client %u", a.pool->team.own->id);
    assert_null(strstr(a.said, name));
    assert_int_equal(*word_at(addr), damaged);
    rig_run_while_waiting(NULL, NULL);
    close_user(&b);
    assert_int_equal(run_check(&a, 1), 0);
    assert_int_not_equal(*word_at(addr), damaged);
    assert_int_equal(run_check(&a, 0), 0);
    assert_keys_are_present(&a);
    close_user(&a);
    open_user(&a);
    assert_keys_are_present(&a);
    close_user(&a);
}


/* Fails if run_pool_check (admin.c) sets `mends` without far_clients_find_others, or ignores its result, because A then
 * repairs the word while B is live. The last damage is not repaired if find_whether_owner_failed (collect.c) does not ask
 * the fabric. */
TEST(damaged_words_are_repaired_only_if_no_other_client_has_the_pool_open) {
    uint64_t bit = 0;
    far_addr entry = 0, bits = free_bit_of_object(&bit, &entry);
    /* no client has ever had this id */
    const far_block_state owned = {.kind = FAR_BLOCK_OWNED, .used = true, .id = 9, .generation = 3};
    restore_scene();
    const struct {
        far_addr addr;
        uint64_t damaged;
    } damages[] = {{FAR_SUPER_POOL_ID, 17},   {FAR_SUPER_SHAPE, 0},         {FAR_SUPER_CHECK, UINT64_MAX},
                   {FAR_SUPER_NODE_TABLE, 1}, {far_addr_make(1, 8), 3},     {FAR_SUPER_SLOTS_HIGH, UINT64_MAX},
                   {FAR_SUPER_NEXT_UID, 0},   {bits, *word_at(bits) | bit}, {entry, far_block_pack(&owned)}};
    for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
        restore_scene();
        assert_repaired_only_alone(damages[i].addr, damages[i].damaged);
    }
}


/* A client has failed and left its registry entry live. It does not count as another client. Fails without
 * far_client_confirm_failed in note_other_client (clients.c), because the repair is then refused. */
TEST(failed_clients_do_not_prevent_a_repair) {
    user a;
    restore_scene();
    *word_at(far_client_entry(3)) = far_client_pack(FAR_CLIENT_LIVE, 7, 3);
    *word_at(FAR_SUPER_SLOTS_HIGH) = 3;
    open_user(&a);
    *word_at(FAR_SUPER_CHECK) ^= 1;
    assert_int_equal(run_check(&a, 1), 0);
    assert_int_equal(run_check(&a, 0), 0);
    close_user(&a);
}


/* Client A has the pool open when a constant is damaged. B opens the pool with the option to restore, is refused, and
 * learns that A has the pool open. After A has closed the pool, B restores the word. Fails without check_is_alone
 * (superblock.c), because B then restores the word while A has the pool open. */
TEST(a_constant_is_restored_only_if_no_other_client_has_the_pool_open) {
    far_pool_options options = rig_options;
    user a;
    far_pool *pool;
    options.restore = 1;
    restore_scene();
    open_user(&a);
    const uint64_t right = *word_at(FAR_SUPER_SHAPE);
    char name[32];
    snprintf(name, sizeof(name), "client %u", a.pool->team.own->id);
    *word_at(FAR_SUPER_SHAPE) = right ^ 2;
    assert_int_equal(far_pool_open(RIG_URI, &options, &pool), FAR_ERR_CORRUPT);
    assert_non_null(strstr(far_last_error(), name));
    assert_int_equal(*word_at(FAR_SUPER_SHAPE), right ^ 2);
    close_user(&a);
    assert_int_equal(far_pool_open(RIG_URI, &options, &pool), 0);
    assert_int_equal(*word_at(FAR_SUPER_SHAPE), right);
    far_pool_close(pool);
}


/* The number of used session ids is too small for ids that new clients take later. A repair raises it to the last id
 * that was used, but a number that is too large becomes the number of all ids, so that it never excludes an id that a
 * new client is claiming at this moment. */
TEST(a_repair_excludes_no_session_id) {
    static const uint64_t damaged[] = {0, 1, 100000};
    for (unsigned i = 0; i < 3; i++) {
        user a;
        restore_scene();
        *word_at(far_client_entry(9)) = far_client_pack(FAR_CLIENT_FREE, 7, 0);
        open_user(&a);
        *word_at(FAR_SUPER_SLOTS_HIGH) = damaged[i] ? damaged[i] : 9;
        if (damaged[i] == 1)
            *word_at(FAR_SUPER_SLOTS_HIGH) = a.session->id;
        run_check(&a, 1);
        uint64_t repaired = *word_at(FAR_SUPER_SLOTS_HIGH);
        assert_int_equal(repaired, damaged[i] == 100000 ? a.pool->geometry.session_slots : 9);
        assert_int_equal(run_check(&a, 0), 0);
        close_user(&a);
    }
}


/* ---- Live clients ---- */

static int request_and_wait(far_task *t, void *arg) {
    (void)arg;
    return far_wait_epochs_until(t, 1, far_now(t) + 1000 * far_tick(far_task_fabric(t)));
}


/* Damages a word while clients A and B have the pool open. A must find this damage when it next advances the epoch, or
 * with `by_check` when it checks the pool. Then all operations of A fail, and nothing is repaired. B continues to work.
 * After A has closed the pool, nothing is leaked and no pair is lost. */
static void assert_client_stops(uint64_t *word, uint64_t damaged, bool by_check, user *a) {
    user b;
    open_user(&b);
    assert_int_equal(put_key(a, 1), 0);
    assert_int_equal(get_key(a, 0), 0);
    const uint64_t right = *word;
    assert_int_not_equal(right, damaged);
    *word = damaged;
    rig_limit_verbs(TRIAL_VERBS_OF_ALL);
    if (by_check)
        assert_true(run_check(a, 0) >= 1);
    else
        assert_int_equal(far_session_call(a->session, FAR_OP_GET, false, request_and_wait, NULL), FAR_ERR_CORRUPT);
    rig_limit_verbs(TRIAL_VERBS_OF_ALL);
    assert_int_equal(get_key(a, 0), FAR_ERR_CORRUPT);
    assert_non_null(strstr(far_last_error(), "close the handle and open the pool again"));
    assert_int_equal(put_key(a, 2), FAR_ERR_CORRUPT);
    assert_true(run_check(a, 0) >= 1);
    assert_true(run_check(a, 1) >= 1);
    assert_int_equal(*word, damaged);
    assert_int_equal(get_key(&b, 0), 0);
    close_user(a);
    assert_false(rig_limit_is_exceeded());
    close_user(&b);
    open_user(&b);
    assert_int_equal(run_check(&b, 1), 0);
    assert_int_equal(run_check(&b, 0), 0);
    assert_keys_are_present(&b);
    close_user(&b);
}


/* Damages, one after the other, each word of A's registry entry that protects A, and the number of used entries. A
 * publishes its pin and the acknowledged request again before it advances the epoch, so only a check finds damage of
 * these two words. Fails without own_entry_is_damaged or stop_taking_pins (epoch.c), or if read_slots_high (clients.c)
 * accepts every number, because A's operations then continue although its entry no longer protects A. */
TEST(a_client_whose_registry_entry_is_damaged_stops) {
    for (unsigned which = 0; which < 6; which++) {
        user a;
        restore_scene();
        open_user(&a);
        unsigned id = which == 1 ? a.session->id : a.pool->team.own->id;
        const struct {
            far_addr addr;
            uint64_t damaged;
        } damages[] = {{far_client_entry(id), 0},
                       {far_client_entry(id), 0},
                       {far_client_entry(id), far_client_pack(FAR_CLIENT_LIVE, a.pool->team.own->generation, 5)},
                       {far_client_entry(id) + 8, 0},
                       {far_client_entry(id) + 16, 1234567},
                       {FAR_SUPER_SLOTS_HIGH, 0}};
        assert_client_stops(word_at(damages[which].addr), damages[which].damaged, which == 3 || which == 4, &a);
    }
}


/* Damage marks the registry entry of handle A free, and another client takes the entry and publishes a pin in it. After A
 * has found the damage, A must not write to the entry, neither in its ticks nor when it is closed. Fails without
 * `unprotected` in tick_locked (epoch.c). */
TEST(a_stopped_client_does_not_write_to_its_registry_entry) {
    user a;
    restore_scene();
    open_user(&a);
    assert_int_equal(get_key(&a, 0), 0);
    const far_addr entry = far_client_entry(a.pool->team.own->id);
    *word_at(entry) = 0;
    assert_true(run_check(&a, 0) >= 1);
    *word_at(entry) = far_client_pack(FAR_CLIENT_LIVE, a.pool->team.own->generation + 1, a.pool->team.own->id);
    for (unsigned i = 1; i < 7; i++)
        *word_at(entry + 8 * i) = 1000 + i;
    for (unsigned i = 0; i < 20; i++) {
        far_pool_poll(a.pool);
        assert_int_equal(get_key(&a, 0), FAR_ERR_CORRUPT);
    }
    close_user(&a);
    for (unsigned i = 1; i < 7; i++)
        assert_int_equal(*word_at(entry + 8 * i), 1000 + i);
}


/* Damage makes the request word name a client as the collector that runs no collection. If the id is that of no handle,
 * a collection takes over. If it is that of a live handle B, B clears the name in its tick, and a check by A succeeds.
 * While B does no tick, a check by A ends, and its message names B and says what to do. Fails without
 * find_whether_collector_is_gone or far_collector_name_clear (collect.c). */
TEST(a_wrongly_named_collector_does_not_prevent_collections) {
    uint64_t *request = word_at(FAR_SUPER_REQUEST);
    user a, b;
    char name[32];
    restore_scene();
    open_user(&a);
    open_user(&b);
    rig_run_while_waiting(poll_pool, b.pool);
    const unsigned ids[] = {a.session->id, b.session->id, a.pool->team.own->id, b.pool->team.own->id, 16000};
    for (unsigned i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        *request |= (uint64_t)ids[i] << 50;
        assert_int_equal(run_check(&a, 0), 0);
        assert_int_equal(far_request_unpack(*request).collector, 0);
    }
    rig_run_while_waiting(NULL, NULL);
    *request |= (uint64_t)b.pool->team.own->id << 50;
    a.said[0] = 0;
    assert_int_equal(far_pool_check(a.session, 0, save_problem, &a), FAR_ERR_BUSY);
    snprintf(name, sizeof(name), "client %u", b.pool->team.own->id);
    assert_non_null(strstr(far_last_error(), name));
    assert_non_null(strstr(far_last_error(), "close it and repeat this"));
    close_user(&b);
    assert_int_equal(run_check(&a, 0), 0);
    assert_int_equal(far_request_unpack(*request).collector, 0);
    close_user(&a);
}


TEST_GROUP(make_scene, free_scene);
