/* A task waits for a change that no client makes, as in tests/damage/test_abandoned_locks.c, but on a fabric that
 * executes verbs immediately in the memory of the process, without posting them (runs_at_once in task/batch.c). The
 * progress detector, which ends such a wait with an error, must count these verbs, too. In test_abandoned_locks, and in
 * all tests that count posts, verbs are posted. */
#include "index/chime/chime.h"
#include "pool/format/owner.h"
#include "pool/handle.h"
#include "task/session.h"
#include "test.h"

#include <string.h>


static _Atomic uint64_t *word_at(const far_pool *pool, far_addr addr) {
    return (_Atomic uint64_t *)(pool->fabric->memory[far_addr_node(addr)] + far_addr_offset(addr));
}


/* The lock of the only leaf names a live session that does not hold it. Proves that a put fails with FAR_ERR_CORRUPT.
 * Hangs if runs_at_once does not check `patience`, the state of the progress detector. */
TEST(a_lock_without_a_holder_is_corrupt) {
    far_pool *pool;
    far_session *session;
    far_index *index;
    assert_int_equal(far_pool_open("local:16M", NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_create(session, "index", "chime", "key_size=8,value_size=8", &index), 0);
    assert_int_equal(far_put(session, index, "aaaaaaaa", 8, "bbbbbbbb", 8), 0);
    assert_ptr_equal(pool->fabric->ops->post, pool->fabric->post_in_place);
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
