/* Waiting in vain (tests/damage/test_in_vain.c), where verbs run without a post: there, and in all tests that count posts,
 * no verb runs in place (runs_at_once in task/batch.c). A task that has begun to doubt must see those too. */
#include "index/chime/chime.h"
#include "pool/handle.h"
#include "pool/owner.h"
#include "task/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>


static _Atomic uint64_t *word_at(const far_pool *pool, far_addr addr) {
    return (_Atomic uint64_t *)(pool->fabric->memory[far_addr_node(addr)] + far_addr_offset(addr));
}


/* The lock of the only leaf names a session that lives, and does not hold it. (runs_at_once without `patience`: hangs.) */
static void a_lock_of_nobody_is_found_out(void **state) {
    (void)state;
    far_pool *pool;
    far_session *session;
    far_index *index;
    assert_int_equal(far_pool_open("local:16M", NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_create(session, "index", "chime", "key_size=8,value_size=8", &index), 0);
    assert_int_equal(far_put(session, index, "aaaaaaaa", 8, "bbbbbbbb", 8), 0);
    assert_ptr_equal(pool->fabric->ops->post, pool->fabric->runs_in_place);
    uint64_t root = *word_at(pool, index->descriptor + CHIME_ROOT_WORD);
    _Atomic uint64_t *lock = word_at(pool, chime_tail_addr(chime_state_of(index), root, CHIME_TAIL_L));
    uint64_t before = *lock, owner = far_owner_pack(pool->team.own->id, pool->team.own->generation, 0);
    *lock = chime_lock_make(owner, 1, 0);
    assert_int_equal(far_put(session, index, "aaaaaaaa", 8, "cccccccc", 8), FAR_ERR_CORRUPT);
    *lock = before;
    assert_int_equal(far_put(session, index, "aaaaaaaa", 8, "cccccccc", 8), 0);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
}


int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_lock_of_nobody_is_found_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
