/* Tests of owner words (pool/format/owner.h): all fields are unpacked as they were packed. */
#include "test.h"
#include "base/random.h"
#include "pool/format/owner.h"


/* Client, generation and task of an owner word are unpacked correctly whatever an index stores in the upper 26 bits. */
TEST(fields_are_unpacked_whatever_the_upper_bits) {
    far_random random;
    far_random_seed(&random, 1);
    for (unsigned i = 0; i < 10000; i++) {
        unsigned client = 1 + (unsigned)far_random_below(&random, FAR_CLIENT_ID_MAX);
        unsigned generation = (unsigned)far_random_below(&random, 0x10000),
                 task = (unsigned)far_random_below(&random, 256);
        uint64_t owner = far_owner_pack(client, generation, task);
        uint64_t word = owner | far_random_next(&random) << FAR_OWNER_BITS;
        assert_true(owner != 0 && (owner & ~FAR_OWNER_MASK) == 0);
        assert_int_equal(far_owner_client(word), client);
        assert_int_equal(far_owner_generation(word), generation);
        assert_int_equal(word >> 30 & 0xff, task);
    }
}
