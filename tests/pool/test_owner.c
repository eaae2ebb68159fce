/* The packing of an owner: what is packed comes back, and the bits above belong to whoever embeds it. */
#include "base/random.h"
#include "pool/owner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>


static void fields_come_back_whatever_the_bits_above(void **state) {
    (void)state;
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


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_come_back_whatever_the_bits_above),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
