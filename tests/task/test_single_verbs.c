/* Single verbs, which need no batch on mapped memory (far_read_now and others in task/batch.c): their effect, their
 * round trips, and when they are refused. */
#include "session_rig.h"
#include "test.h"


/* Waits for single verbs of each kind, alone and after open verbs. */
static int use_single_verbs(far_task *t, void *arg) {
    (void)arg;
    uint64_t image[WORDS], back[WORDS] = {0}, old[2] = {0}, word = 0;
    for (unsigned i = 0; i < WORDS; i++)
        image[i] = 7 + i;
    assert_int_equal(far_write_now(t, A, image, sizeof(image)), 0);
    assert_int_equal(far_read_now(t, A, back, sizeof(back), 0), 0);
    assert_memory_equal(back, image, sizeof(image));
    assert_int_equal(far_cas_word(t, A, 7, 70, &old[0]) | far_cas_word(t, A, 7, 71, &old[1]), 0);
    assert_true(old[0] == 7 && old[1] == 70);
    assert_int_equal(far_write_word(t, B, 5) | far_read_word(t, A, &word), 0);
    assert_int_equal(word, 70);
    image[0] = 80;
    far_write(t, A, image, 8);
    assert_int_equal(far_read_now(t, A, back, sizeof(back), 0), 0);
    assert_memory_equal(back, image, sizeof(image));
    far_read(t, B, &word, 8);
    far_cas(t, A, 7, 72, &old[0]);
    assert_int_equal(far_write_now(t, B, image, 8), 0);
    assert_true(word == 5 && old[0] == 80);
    return 0;
}


/* A single verb takes one round trip together with the open verbs before it, and takes effect after them. The counters
 * are exact, for operations and for background work, with and without direct execution. */
TEST_FUNCTION(a_single_verb_and_the_open_verbs_are_one_round_trip) {
    ground *g = *state;
    for (unsigned background = 0; background < 2; background++) {
        far_op_kind kind = background ? FAR_OP_PUT : FAR_OP_GET;
        assert_int_equal(far_session_call(g->session, kind, background, use_single_verbs, NULL), 0);
        const far_stats *s = &g->session->stats[kind];
        assert_int_equal(s->round_trips, background ? 0 : 8);
        assert_int_equal(s->background_round_trips, background ? 8 : 0);
        assert_int_equal(s->background_verbs, background ? 11 : 0);
        assert_int_equal(s->reads, 4);
        assert_int_equal(s->writes, 4);
        assert_int_equal(s->cas, 3);
        assert_int_equal(s->cas_failed, 2);
        assert_int_equal(s->bytes_read, 16 + 2 * 8 * WORDS);
        assert_int_equal(s->bytes_written, 24 + 8 * WORDS);
    }
}


/* READs every length from aligned and unaligned pairs of words. */
static int read_all_ranges(far_task *t, void *arg) {
    (void)arg;
    uint64_t image[24], back[25];
    for (unsigned i = 0; i < 24; i++)
        image[i] = 7 * i + 1;
    assert_int_equal(far_write_now(t, A, image, sizeof(image)), 0);
    for (unsigned first = 0; first < 3; first++)
        for (unsigned words = 1; first + words <= 24; words++) {
            back[words] = 99;
            assert_int_equal(far_read_now(t, A + 8 * first, back, 8 * words, 0), 0);
            assert_memory_equal(back, image + first, 8 * words);
            assert_int_equal(back[words], 99);
        }
    return 0;
}


/* A READ returns exactly its bytes, for every length and start, although words are loaded in pairs. */
TEST_WITH(reads_of_any_length_from_any_word, set_up, tear_down) {
    ground *g = *state;
    assert_int_equal(far_session_call(g->session, FAR_OP_GET, false, read_all_ranges, NULL), 0);
}


/* A CAS with a READ after it: alone, after open verbs, and with an invalid address. In the last case neither of the two
 * is executed. */
static int cas_and_read(far_task *t, void *arg) {
    (void)arg;
    uint64_t image[3] = {1, 2, 3}, back[3] = {0}, old = 0, word = 9;
    assert_int_equal(far_write_now(t, A, image, sizeof(image)), 0);
    assert_int_equal(far_cas_and_read(t, A + 8, 2, 20, &old, A, back, sizeof(back)), 0);
    assert_true(old == 2 && back[0] == 1 && back[1] == 20 && back[2] == 3);
    far_write(t, A, &word, 8);
    assert_int_equal(far_cas_and_read(t, A + 8, 2, 30, &old, A, back, sizeof(back)), 0);
    assert_true(old == 20 && back[0] == 9 && back[1] == 20);
    const far_addr outside = far_addr_make(1, 1 << 20);
    assert_int_equal(far_cas_and_read(t, A + 8, 20, 40, &old, outside, back, 8), FAR_ERR_CORRUPT);
    assert_int_equal(far_cas_and_read(t, outside, 20, 40, &old, A, back, 8), FAR_ERR_CORRUPT);
    assert_int_equal(far_read_word(t, A + 8, &word), 0);
    assert_int_equal(word, 20);
    return 0;
}


/* far_cas_and_read takes one round trip, and its READ sees the result of its CAS. */
TEST_WITH(a_cas_and_a_read_after_it_are_one_round_trip, set_up, tear_down) {
    ground *g = *state;
    for (unsigned background = 0; background < 2; background++) {
        far_op_kind kind = background ? FAR_OP_PUT : FAR_OP_GET;
        assert_int_equal(far_session_call(g->session, kind, background, cas_and_read, NULL), 0);
        const far_stats *s = &g->session->stats[kind];
        assert_int_equal(s->round_trips, background ? 0 : 4);
        assert_int_equal(s->background_round_trips, background ? 4 : 0);
        assert_int_equal(s->background_verbs, background ? 7 : 0);
        assert_true(s->reads == 3 && s->writes == 2 && s->cas == 2 && s->cas_failed == 1);
        assert_int_equal(s->bytes_read, 24 + 24 + 8);
    }
}


/* A WRITE ahead, which is executed at once on mapped memory; then one after an open verb, which keeps its place in the
 * order. */
static int write_ahead(far_task *t, void *arg) {
    (void)arg;
    uint64_t image[4] = {1, 2, 3, 4}, back[4] = {0}, old = 0;
    bool mapped = far_task_fabric(t)->at_once && !t->background;
    far_write_ahead(t, A, image, sizeof(image));
    assert_int_equal(!t->open || t->open->batch.count == 0, mapped);
    assert_int_equal(far_read_now(t, A, back, sizeof(back), 0), 0);
    assert_memory_equal(back, image, sizeof(image));
    far_cas(t, A, 1, 10, &old);
    image[0] = 20;
    far_write_ahead(t, A, image, sizeof(image));
    assert_int_equal(far_read_now(t, A, back, sizeof(back), 0), 0);
    assert_memory_equal(back, image, sizeof(image));
    assert_int_equal(old, 1);
    far_write_ahead(t, B, image, sizeof(image));
    return far_cas_word(t, A, 20, 21, &old);
}


/* far_write_ahead costs no round trip of its own. It keeps its place in the order if other verbs are open. */
TEST_FUNCTION(writes_ahead_belong_to_the_next_round_trip) {
    ground *g = *state;
    for (unsigned background = 0; background < 2; background++) {
        far_op_kind kind = background ? FAR_OP_PUT : FAR_OP_GET;
        assert_int_equal(far_session_call(g->session, kind, background, write_ahead, NULL), 0);
        const far_stats *s = &g->session->stats[kind];
        assert_int_equal(s->round_trips, background ? 0 : 3);
        assert_int_equal(s->background_round_trips, background ? 3 : 0);
        assert_int_equal(s->background_verbs, background ? 7 : 0);
        assert_int_equal(s->reads, 2);
        assert_int_equal(s->writes, 3);
        assert_int_equal(s->cas, 2);
        assert_int_equal(s->cas_failed, 0);
        assert_int_equal(s->bytes_read, 64);
        assert_int_equal(s->bytes_written, 96);
    }
}


/* The ways in which write_too_late writes. */
enum { BY_BATCH, BY_WRITE_NOW, BY_WRITE_WORD, BY_CAS_WORD, BY_CAS_AND_READ, AFTER_ANOTHER, BY_WRITE_AHEAD, WAYS };


/* Writes in the way that *arg selects. The session is lost, so no WRITE may take effect. */
static int write_too_late(far_task *t, void *arg) {
    uint64_t word = 99, old;
    switch (*(unsigned *)arg) {
    case BY_WRITE_NOW:
        return far_write_now(t, B, &word, 8);
    case BY_WRITE_WORD:
        return far_write_word(t, B, word);
    case BY_CAS_WORD:
        return far_cas_word(t, B, 0, word, &old);
    case BY_CAS_AND_READ:
        return far_cas_and_read(t, B, 0, word, &old, A, &word, 8);
    case AFTER_ANOTHER:
        far_write(t, B, &word, 8);
        return far_read_now(t, A, &word, 8, 0);
    case BY_WRITE_AHEAD:
        far_write_ahead(t, B, &word, 8);
        return far_wait(t);
    default:
        far_write(t, B, &word, 8);
        return far_wait(t);
    }
}


/* A READ of an invalid address. It is refused together with the open WRITE. */
static int read_outside(far_task *t, void *arg) {
    (void)arg;
    uint64_t word = 99;
    far_write(t, B, &word, 8);
    return far_read_now(t, far_addr_make(1, 1 << 20), &word, 8, 0);
}


/* After a session was fenced, or its handle has failed, no verb of the session takes effect, in whichever way it is
 * posted. Fails without the check in memory_to_run_at_once (batch.c). */
TEST_WITH(a_fenced_session_or_failed_handle_writes_nothing, set_up, tear_down) {
    ground *g = *state;
    for (unsigned i = 0; i < 2 * WAYS; i++) {
        unsigned way = i % WAYS;
        assert_int_equal(far_session_call(g->session, FAR_OP_GET, false, read_outside, NULL), FAR_ERR_CORRUPT);
        assert_int_equal(*(const uint64_t *)(g->pool.fabric->memory[0] + B), 0);
        if (i < WAYS)
            g->session->conn->fabric->ops->fence_self(g->session->conn);
        else
            atomic_store(&g->session->team->dead, true);
        assert_int_equal(far_session_call(g->session, FAR_OP_GET, false, write_too_late, &way), FAR_ERR_FENCED);
        assert_int_equal(*(const uint64_t *)(g->pool.fabric->memory[0] + B), 0);
        if (i < 2 * WAYS - 1)
            assert_int_equal(tear_down(state) | set_up(state), 0);
    }
}


TEST_CASE_WITH(a_single_verb_and_the_open_verbs_are_one_round_trip,
               "a_single_verb_and_the_open_verbs_are_one_round_trip", NULL, set_up, tear_down);
TEST_CASE_WITH(a_single_verb_and_the_open_verbs_are_one_round_trip,
               "a_single_verb_and_the_open_verbs_are_one_round_trip", NULL, set_up_slow, tear_down);
TEST_CASE_WITH(writes_ahead_belong_to_the_next_round_trip, "writes_ahead_belong_to_the_next_round_trip", NULL, set_up,
               tear_down);
TEST_CASE_WITH(writes_ahead_belong_to_the_next_round_trip, "writes_ahead_belong_to_the_next_round_trip", NULL,
               set_up_slow, tear_down);
