/* Reader-writer locks of base/readers.h: no reader sees a change in progress, several readers of one lock can be
 * inside, and a writer of one lock does not wait for readers of another lock. */
#include "base/readers.h"
#include "test.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

enum { LOCKS = 2, READING = 4, WRITING = 2, TURNS = 5000 };

static far_readers readers;
static far_spin locks[LOCKS];
static uint64_t pairs[LOCKS][2]; /* the two numbers of a pair differ only while a writer changes them */
static atomic_uint wrong;


static void *read_pairs(void *arg) {
    unsigned which = *(unsigned *)arg;
    for (unsigned i = 0; i < TURNS; i++) {
        unsigned lock = (which + i) % LOCKS, place = far_readers_enter(&readers, &locks[lock], lock);
        if (pairs[lock][0] != pairs[lock][1])
            atomic_fetch_add_explicit(&wrong, 1, memory_order_relaxed);
        far_readers_leave(&readers, place);
    }
    return NULL;
}


static void *change_pairs(void *arg) {
    unsigned which = *(unsigned *)arg;
    for (unsigned i = 0; i < TURNS; i++) {
        unsigned lock = (which + i) % LOCKS;
        if (i % 3)
            far_writer_enter(&readers, &locks[lock], lock);
        else if (!far_writer_try(&readers, &locks[lock], lock))
            continue;
        pairs[lock][0]++;
        pairs[lock][1]++;
        far_writer_leave(&locks[lock]);
    }
    return NULL;
}


/* Four readers and two writers use two locks. A writer changes two numbers, and no reader may see them different. */
TEST(no_reader_sees_a_change_in_progress) {
    pthread_t threads[READING + WRITING];
    unsigned numbers[READING + WRITING];
    for (unsigned i = 0; i < READING + WRITING; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, i < READING ? read_pairs : change_pairs, &numbers[i]), 0);
    }
    for (unsigned i = 0; i < READING + WRITING; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(wrong, 0);
    assert_true(pairs[0][0] > 0 && pairs[0][0] == pairs[0][1] && pairs[1][0] == pairs[1][1]);
}


/* Many readers of one lock and a writer of another lock are inside at the same time. They are all in one thread, so
 * a wait would never end. */
TEST(readers_of_one_lock_and_writers_of_another_pass) {
    unsigned places[FAR_READERS - 1];
    for (unsigned i = 0; i < FAR_READERS - 1; i++) {
        places[i] = far_readers_enter(&readers, &locks[0], 0);
        for (unsigned k = 0; k < i; k++)
            assert_true(places[k] != places[i]);
    }
    far_writer_enter(&readers, &locks[1], 1);
    assert_false(far_writer_try(&readers, &locks[1], 1));
    far_writer_leave(&locks[1]);
    for (unsigned i = 0; i < FAR_READERS - 1; i++)
        far_readers_leave(&readers, places[i]);
    assert_true(far_writer_try(&readers, &locks[0], 0));
    far_writer_leave(&locks[0]);
}
