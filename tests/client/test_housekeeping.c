/* Measures how many batches of verbs housekeeping posts for an active handle. Runs in virtual time, so that each slice
 * runs exactly when it is due. */
#include "client/client.h"
#include "test.h"
#include "world.h"

#define MS 1000000ull

static const far_fabric_ops *real_ops;
static unsigned batches;


/* Replaces the fabric's `post`: counts the batch and posts it. */
static void count_and_post(far_conn *conn, far_batch *batch) {
    batches++;
    real_ops->post(conn, batch);
}


/* A handle remains active for a while after an operation. Proves that each slice of housekeeping posts at most two
 * batches in that time. Two slices are excepted: before the handle becomes quiescent, it returns memory in one slice
 * and ends its pin in another. Virtual time makes each slice run exactly when it is due. Fails if a step of a slice in
 * client/housekeeping.c posts additional batches. */
TEST(an_active_handle_posts_at_most_two_batches_per_slice) {
    char uri[WORLD_URI];
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    unsigned slices = 0, slices_over_two = 0;
    options.no_thread = 1;
    world_uri(uri, "seed=1,size=16M");
    far_sim_world *world = world_join(uri, &options, &pool, &session);
    assert_int_equal(far_index_create(session, "i", "dart", NULL, &index), 0);
    assert_int_equal(far_put(session, index, "key", 3, "value", 5), 0);
    for (unsigned i = 0; i < 20; i++) /* finishes the work that creating the index has caused */
        assert_true(far_housekeeping(pool) >= 0);
    real_ops = pool->fabric->ops;
    far_fabric_ops counted = *real_ops;
    counted.post = count_and_post;
    pool->fabric->ops = &counted;
    for (; far_epoch_is_active(pool); slices++) {
        batches = 0;
        far_sim_sleep(world, MS);
        assert_true(far_housekeeping(pool) >= 0);
        slices_over_two += batches > 2;
    }
    pool->fabric->ops = real_ops;
    print_message("    %u slices, %u with more than two batches\n", slices, slices_over_two);
    assert_true(slices >= 10);
    assert_true(slices_over_two <= 2);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
}
