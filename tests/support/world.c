/* Basic functions for tests with simulated handles (world.h). */
#include "world.h"

#include <stdio.h>
#include <string.h>


void world_uri(char uri[WORLD_URI], const char *format, ...) {
    static unsigned serial;
    int used = snprintf(uri, WORLD_URI, "sim:name=world%u,", ++serial);
    va_list args;
    va_start(args, format);
    int more = vsnprintf(uri + used, (size_t)(WORLD_URI - used), format, args);
    va_end(args);
    assert_true(more >= 0 && used + more < WORLD_URI);
}


far_sim_world *world_join(const char *uri, const far_pool_options *options, far_pool **pool, far_session **session) {
    assert_int_equal(far_pool_open(uri, options, pool), 0);
    assert_int_equal(far_session_open(*pool, session), 0);
    return far_sim_world_of((*pool)->fabric);
}


void world_await_status_record(far_sim_world *world, far_pool *pool) {
    for (unsigned i = 0; i < 1000 && pool->status == 0; i++) {
        assert_true(far_pool_poll(pool) >= 0);
        far_sim_sleep(world, 1000000);
    }
    assert_int_not_equal(pool->status, 0);
}


far_sim_client *world_start(far_pool *pool, const char *name, void (*run)(void *arg), void *arg) {
    far_sim_client *client = far_sim_start(pool->fabric, name, run, arg);
    assert_non_null(client);
    return client;
}


static void run_until(far_sim_client *client, far_sim_result expected) {
    far_sim_resume(client);
    assert_string_equal(far_sim_result_name(far_sim_run_client(client)), far_sim_result_name(expected));
}


void world_stop_at(far_sim_client *client, far_sim_match match) {
    far_sim_stop_before(client, match);
    run_until(client, FAR_SIM_STOPPED);
}


void world_finish(far_sim_client *client) {
    run_until(client, FAR_SIM_ENDED);
}


void *world_bytes(far_sim_world *world, far_addr addr) {
    return (char *)far_sim_memory(world, far_addr_node(addr)) + far_addr_offset(addr);
}


uint64_t world_word(far_sim_world *world, far_addr addr) {
    uint64_t word;
    memcpy(&word, world_bytes(world, addr), sizeof(word));
    return word;
}


void world_assert_no_checker_error(far_sim_world *world) {
    if (far_sim_watch_errors(world))
        fail_msg("seed %llu: %s", (unsigned long long)far_sim_seed(world), far_sim_watch_error(world, 0));
}


void world_assert_nothing_leaked(far_session *session) {
    far_pool_usage usage;
    assert_int_equal(far_pool_check(session, 0, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_stat(session, &usage), 0);
    assert_int_equal(usage.leaked, 0);
}


void world_assert_nothing_leaked_after_collection(far_session *session) {
    assert_int_equal(far_pool_check(session, 1, fail_at_problem, NULL), 0);
    world_assert_nothing_leaked(session);
}
