/* Verbs that go out alone, without a batch: what they do, what they cost, and who is refused. */
#include "session_rig.h"


static int single_verbs(far_task *t, void *arg) {
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


static void single_verbs_are_one_trip_each_with_what_is_open(void **state) {
    ground *g = *state;
    for (unsigned background = 0; background < 2; background++) {
        far_op_kind kind = background ? FAR_OP_PUT : FAR_OP_GET;
        assert_int_equal(far_session_call(g->session, kind, background, single_verbs, NULL), 0);
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


/* READs whose words are loaded in pairs, where these are aligned and where they are not. */
static int read_any(far_task *t, void *arg) {
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


static void reads_of_any_length_from_any_word(void **state) {
    ground *g = *state;
    assert_int_equal(far_session_call(g->session, FAR_OP_GET, false, read_any, NULL), 0);
}


/* Alone, behind open verbs, and with an address outside the pool: then neither of the two is run. */
static int locks_with_reads(far_task *t, void *arg) {
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


static void a_cas_and_a_read_behind_it_are_one_trip(void **state) {
    ground *g = *state;
    for (unsigned background = 0; background < 2; background++) {
        far_op_kind kind = background ? FAR_OP_PUT : FAR_OP_GET;
        assert_int_equal(far_session_call(g->session, kind, background, locks_with_reads, NULL), 0);
        const far_stats *s = &g->session->stats[kind];
        assert_int_equal(s->round_trips, background ? 0 : 4);
        assert_int_equal(s->background_round_trips, background ? 4 : 0);
        assert_int_equal(s->background_verbs, background ? 7 : 0);
        assert_true(s->reads == 3 && s->writes == 2 && s->cas == 2 && s->cas_failed == 1);
        assert_int_equal(s->bytes_read, 24 + 24 + 8);
    }
}


/* A WRITE of memory that nobody else knows of, then one that comes behind an open verb and keeps its place. */
static int hidden_writes(far_task *t, void *arg) {
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


static void hidden_writes_are_of_the_trip_that_follows(void **state) {
    ground *g = *state;
    for (unsigned background = 0; background < 2; background++) {
        far_op_kind kind = background ? FAR_OP_PUT : FAR_OP_GET;
        assert_int_equal(far_session_call(g->session, kind, background, hidden_writes, NULL), 0);
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


/* What a session does that must not do anything any more; *arg: by which call. */
enum { BY_BATCH, BY_WRITE_NOW, BY_WRITE_WORD, BY_CAS_WORD, BY_CAS_AND_READ, BEHIND_ANOTHER, HIDDEN, WAYS };


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
    case BEHIND_ANOTHER:
        far_write(t, B, &word, 8);
        return far_read_now(t, A, &word, 8, 0);
    case HIDDEN:
        far_write_ahead(t, B, &word, 8);
        return far_wait(t);
    default:
        far_write(t, B, &word, 8);
        return far_wait(t);
    }
}


/* Refused, and with it what is open. */
static int read_outside(far_task *t, void *arg) {
    (void)arg;
    uint64_t word = 99;
    far_write(t, B, &word, 8);
    return far_read_now(t, far_addr_make(1, 1 << 20), &word, 8, 0);
}


static void nothing_is_written_by_who_is_fenced_or_whose_handle_is_dead(void **state) {
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


/* The table of nodes ends behind the last one: the address sanitizer sees who looks there. */


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(single_verbs_are_one_trip_each_with_what_is_open, set_up, tear_down),
        cmocka_unit_test_setup_teardown(single_verbs_are_one_trip_each_with_what_is_open, set_up_slow, tear_down),
        cmocka_unit_test_setup_teardown(a_cas_and_a_read_behind_it_are_one_trip, set_up, tear_down),
        cmocka_unit_test_setup_teardown(hidden_writes_are_of_the_trip_that_follows, set_up, tear_down),
        cmocka_unit_test_setup_teardown(hidden_writes_are_of_the_trip_that_follows, set_up_slow, tear_down),
        cmocka_unit_test_setup_teardown(reads_of_any_length_from_any_word, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_is_written_by_who_is_fenced_or_whose_handle_is_dead, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
