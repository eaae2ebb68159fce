/* Sessions, tasks and indexes that end in an unlucky order. */
#include "fabric/sim/sim.h"
#include "index/index.h"
#include "pool/handle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define SLOW 2000000u /* ns */

static bool tidied;


static void tidy(far_task *t, void *arg) {
    far_index *index = *(far_index **)arg;
    far_sleep(t, SLOW);
    assert_int_equal(far_pin_take(t), 0);
    assert_string_equal(index->name, "x");
    tidied = true;
}


static int operate(far_task *t, void *arg) {
    far_index *index = arg;
    t->index = index; /* as the runtime does for an operation */
    int err = far_pin_take(t);
    return err < 0 ? err : !far_spawn(t, tidy, &index, sizeof(index));
}


static void an_index_is_not_closed_before_background_work_on_it_ends(void **state) {
    (void)state;
    far_pool *pool;
    far_session *session;
    far_index *index;
    assert_int_equal(far_pool_open("sim:seed=1,name=spawned,size=4M", NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_create(session, "x", "toy", NULL, &index), 0);
    tidied = false;
    assert_int_equal(far_session_call(session, FAR_STATS_OTHER, false, operate, index), 0);
    assert_false(tidied);
    far_index_close(index);
    assert_true(tidied);
    far_session_close(session);
    far_pool_close(pool);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_index_is_not_closed_before_background_work_on_it_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
