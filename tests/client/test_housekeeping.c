/* What housekeeping costs a handle that is awake, in batches that it posts: in virtual time, so that each slice comes when it
 * is due. */
#include "client/client.h"
#include "world.h"

#define MS 1000000ull

static const far_fabric_ops *real;
static unsigned batches;


static void count_and_post(far_conn *conn, far_batch *batch) {
    batches++;
    real->post(conn, batch);
}


/* A handle is awake for a while after an operation: it posts at most two batches in each of its slices, but for two before it
 * sleeps, in which memory goes home and its pin ends. */
static void an_awake_handle_posts_two_batches_a_slice_at_most(void **state) {
    (void)state;
    char uri[WORLD_URI];
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    unsigned slices = 0, many = 0;
    options.no_thread = 1;
    world_uri(uri, "seed=1,size=16M");
    far_sim_world *world = world_join(uri, &options, &pool, &session);
    assert_int_equal(far_index_create(session, "i", "dart", NULL, &index), 0);
    assert_int_equal(far_put(session, index, "key", 3, "value", 5), 0);
    for (unsigned i = 0; i < 20; i++) /* what making an index has left */
        assert_true(far_housekeeping(pool) >= 0);
    real = pool->fabric->ops;
    far_fabric_ops counted = *real;
    counted.post = count_and_post;
    pool->fabric->ops = &counted;
    for (; far_epoch_is_awake(pool); slices++) {
        batches = 0;
        far_sim_sleep(world, MS);
        assert_true(far_housekeeping(pool) >= 0);
        many += batches > 2;
    }
    pool->fabric->ops = real;
    print_message("    %u slices, %u with more than two batches\n", slices, many);
    assert_true(slices >= 10);
    assert_true(many <= 2);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
}


int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_awake_handle_posts_two_batches_a_slice_at_most)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
