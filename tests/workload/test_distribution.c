/* Distributions of record numbers: their frequencies agree with theory and with YCSB, and are identical on every
 * machine. */
#include <stdint.h>

#include "farindex.h"
#include "test.h"
#include "workload/distribution.h"
#include "workload/power.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define DRAWS 10000000


static void assert_close(double got, double want, double relative, const char *what) {
    if (!(fabs(got - want) <= relative * fabs(want)))
        fail_msg("%s: %.17g instead of %.17g", what, got, want);
}


/* The own functions agree with libm up to rounding. */
TEST(power_agrees_with_libm) {
    far_random random;
    far_random_seed(&random, 1);
    for (int i = 0; i < 1000000; i++) {
        double fraction = (double)(far_random_next(&random) >> 11) * 0x1p-53 + 0x1p-54;
        double wide = fraction * pow(10, (double)far_random_below(&random, 18)),
               theta = (double)far_random_below(&random, 1000) / 1000;
        assert_close(far_log(wide), log(wide), fabs(log(wide)) < 1e-3 ? 1e-9 : 1e-13, "log");
        assert_close(far_exp(fraction * 600 - 300), exp(fraction * 600 - 300), 1e-12, "exp");
        assert_close(far_pow(wide, -theta), pow(wide, -theta), 1e-12, "n^-theta");
        assert_close(far_pow(0.5 + fraction / 2, 100), pow(0.5 + fraction / 2, 100), 1e-12, "x^100");
    }
}


/* Arguments at the edges of the domain give the documented results. */
TEST(power_handles_its_edges) {
    assert_true(far_log(1.0) == 0.0);
    assert_true(far_exp(0.0) == 1.0);
    assert_true(far_pow(0.0, 3.0) == 0.0);
    assert_true(far_pow(7.0, 0.0) == 1.0);
    assert_true(far_exp(-1e6) == 0.0);
    assert_true(far_exp(1e6) > 1e300);
    assert_close(far_pow(0x1p-1000, 0.5), 0x1p-500, 1e-12, "a tiny number's root");
}


/* Fails if the compiler fuses multiplications with additions. */
TEST(powers_are_the_same_to_the_last_bit_on_every_machine) {
    far_random random;
    uint64_t checksum = 0;
    far_random_seed(&random, 42);
    for (int i = 0; i < 1000; i++) {
        double x = (double)(far_random_next(&random) >> 11) * 0x1p-53, power = far_pow(x, 1 + (double)i / 10);
        checksum = XXH64(&power, sizeof power, checksum);
    }
    if (checksum != 0x69c938b3e4a5a44full)
        fail_msg("checksum 0x%llx", (unsigned long long)checksum);
}


/* The formula for zeta agrees with the sum of its terms. */
TEST(zeta_agrees_with_direct_summation) {
    static const double thetas[] = {0.0, 0.1, 0.5, 0.9, 0.99, 0.999};
    for (int t = 0; t < 6; t++) {
        far_zipf z;
        double sum = 0, lost = 0; /* compensated (Kahan) summation */
        assert_int_equal(far_zipf_init(&z, thetas[t], 1), FAR_OK);
        for (uint64_t n = 1; n <= 10000000; n++) {
            volatile double term = pow((double)n, -thetas[t]) - lost, next = sum + term;
            lost = (next - sum) - term;
            sum = next;
            if (n <= 200 || n == 1000 || n == 12345 || n == 1000000 || n == 10000000)
                assert_close(far_zipf_zeta(&z, n), sum, 1e-11, "zeta");
        }
    }
}


/* A generator that was resized draws the same ranks as one that was initialized with the new size. */
TEST(resizing_gives_the_same_generator_as_starting_at_that_size) {
    far_zipf grown, fresh;
    assert_int_equal(far_zipf_init(&grown, 0.99, 1), FAR_OK);
    for (uint64_t n = 2; n < 3000000; n = n * 3 / 2 + 1) {
        far_zipf_resize(&grown, n);
        assert_int_equal(far_zipf_init(&fresh, 0.99, n), FAR_OK);
        assert_true(grown.zeta == fresh.zeta && (n <= 2 || grown.eta == fresh.eta) && grown.items == fresh.items);
    }
}


/* Returns the share of ranks up to k by the formula of Gray et al.: the u at which the rank changes from k to k+1. */
static double share_up_to(double theta, double items, double zeta, double k) {
    double second = 1 + pow(0.5, theta);
    double eta = (1 - pow(2 / items, 1 - theta)) / (1 - second / zeta);
    if (k == 0)
        return 1 / zeta;
    if (k == 1)
        return second / zeta;
    return (pow((k + 1) / items, 1 - theta) - 1 + eta) / eta;
}


/* The frequencies of the most frequent ranks agree with the formula of the generator. */
TEST(top_ranks_have_the_frequencies_of_the_theory) {
    static const double thetas[] = {0.99, 0.5};
    enum { ITEMS = 1000000 };
    uint32_t *counts = malloc(ITEMS * sizeof *counts);
    assert_non_null(counts);
    for (int t = 0; t < 2; t++) {
        far_zipf z;
        far_random random;
        double theta = thetas[t], zeta = 0, got_sum = 0, zipf_sum = 0;
        for (int i = ITEMS; i >= 1; i--)
            zeta += pow(i, -theta);
        far_random_seed(&random, 7);
        assert_int_equal(far_zipf_init(&z, theta, ITEMS), FAR_OK);
        memset(counts, 0, ITEMS * sizeof *counts);
        for (int i = 0; i < DRAWS; i++)
            counts[far_zipf_rank(&z, &random)]++;
        for (int k = 0; k < 1000; k++) {
            double got = (double)counts[k] / DRAWS, zipf = pow(k + 1, -theta) / zeta;
            double want = share_up_to(theta, ITEMS, zeta, k) - (k == 0 ? 0 : share_up_to(theta, ITEMS, zeta, k - 1));
            if (want * DRAWS > 50000) /* below that, random variation alone reaches 2 % */
                assert_close(got, want, 0.02, "frequency by the generator's formula");
            if (k < 2 && theta == 0.99)
                assert_close(got, zipf, 0.02, "frequency by the zipf law");
            got_sum += got;
            zipf_sum += zipf;
        }
        assert_close(got_sum, zipf_sum, 0.02, "share of the top thousand by the zipf law");
    }
    free(counts);
}


/* With few items every rank occurs, and no rank outside of the range. */
TEST(small_item_counts_give_every_rank_and_no_other) {
    for (uint64_t items = 1; items <= 5; items++) {
        far_zipf z;
        far_random random;
        uint32_t counts[5] = {0};
        far_random_seed(&random, items);
        assert_int_equal(far_zipf_init(&z, 0.99, items), FAR_OK);
        for (int i = 0; i < 100000; i++) {
            uint64_t rank = far_zipf_rank(&z, &random);
            assert_true(rank < items);
            counts[rank]++;
        }
        for (uint64_t i = 0; i < items; i++)
            assert_true(counts[i] > 1000);
        assert_close(counts[0], 100000 / far_zipf_zeta(&z, items), 0.02, "rank 0");
    }
}


/* `far_scramble` returns the same numbers as YCSB. */
TEST(scrambling_is_ycsbs_hash) {
    /* FNV-1a of eight bytes, least significant first, and then the absolute value; computed independently. */
    assert_true(far_scramble(0) == 6284781860667377211ull);
    assert_true(far_scramble(1) == 8517097267634966620ull);
    assert_true(far_scramble(123456789) == 2350796791908741607ull);
}


/* The most frequent records are those to which the first ranks are scattered. */
TEST(scrambled_zipfian_puts_the_hot_ranks_at_their_hashes) {
    enum { ITEMS = 100000 };
    far_distribution d;
    far_random random;
    uint32_t *counts = calloc(ITEMS, sizeof *counts);
    double *want = calloc(ITEMS, sizeof *want);
    assert_true(counts && want);
    far_random_seed(&random, 3);
    assert_int_equal(far_distribution_init(&d, FAR_DISTRIBUTION_ZIPFIAN, 0.99, ITEMS), FAR_OK);
    for (int i = 0; i < DRAWS; i++) {
        uint64_t record = far_distribution_next(&d, &random, ITEMS);
        assert_true(record < ITEMS);
        counts[record]++;
    }
    for (int k = 0; k < ITEMS; k++) {
        double zeta = d.zipf.zeta;
        double share = share_up_to(0.99, ITEMS, zeta, k) - (k == 0 ? 0 : share_up_to(0.99, ITEMS, zeta, k - 1));
        want[far_scramble((uint64_t)k) % ITEMS] += share;
    }
    for (uint64_t k = 0; k < 10; k++) {
        uint64_t record = far_scramble(k) % ITEMS;
        assert_close((double)counts[record] / DRAWS, want[record], 0.02, "frequency of a hot record");
    }
    free(counts);
    free(want);
}


/* The most frequent record remains the same while records are added. */
TEST(hot_records_stay_while_records_are_added) {
    far_distribution d;
    far_random random;
    uint64_t hot = far_scramble(0) % 20000, hits[2] = {0};
    far_random_seed(&random, 3);
    assert_int_equal(far_distribution_init(&d, FAR_DISTRIBUTION_ZIPFIAN, 0.99, 20000), FAR_OK);
    for (int phase = 0; phase < 2; phase++) {
        uint64_t count = phase == 0 ? hot + 1 : 20000;
        for (int i = 0; i < 200000; i++) {
            uint64_t record = far_distribution_next(&d, &random, count);
            assert_true(record < count);
            hits[phase] += record == hot;
        }
    }
    assert_true(hits[0] > 16000 && hits[1] > 16000);
}


/* Records are in range if their number is far below or above the plan, and added records are drawn too. */
TEST(zipfian_works_with_more_or_far_fewer_records_than_planned) {
    far_distribution d;
    far_random random;
    int newest = 0;
    far_random_seed(&random, 3);
    assert_int_equal(far_distribution_init(&d, FAR_DISTRIBUTION_ZIPFIAN, 0.99, 1000000), FAR_OK);
    for (int i = 0; i < 1000; i++)
        assert_true(far_distribution_next(&d, &random, 1) == 0);
    assert_int_equal(far_distribution_init(&d, FAR_DISTRIBUTION_ZIPFIAN, 0.99, 10), FAR_OK);
    for (int i = 0; i < 100000; i++) {
        uint64_t record = far_distribution_next(&d, &random, 1000);
        assert_true(record < 1000);
        newest += record >= 10;
    }
    assert_true(newest > 50000);
}


/* With the distribution `latest` the newest record is the most frequent one, also while records are added. */
TEST(latest_prefers_the_newest_record) {
    far_distribution d;
    far_random random;
    uint32_t by_distance[3] = {0}, draws = 1000000;
    far_random_seed(&random, 5);
    assert_int_equal(far_distribution_init(&d, FAR_DISTRIBUTION_LATEST, 0.99, 1000), FAR_OK);
    for (uint32_t i = 0; i < draws; i++) {
        uint64_t count = 1000 + i / 1000, record = far_distribution_next(&d, &random, count);
        assert_true(record < count);
        if (count - 1 - record < 3)
            by_distance[count - 1 - record]++;
    }
    double zeta = far_zipf_zeta(&d.zipf, 1500); /* the number of items grows from 1000 to 2000 meanwhile */
    assert_close(by_distance[0], draws / zeta, 0.02, "newest");
    assert_close(by_distance[1], draws * pow(2, -0.99) / zeta, 0.02, "second newest");
}


/* With the uniform distribution all records are equally frequent. */
TEST(uniform_is_flat) {
    far_distribution d;
    far_random random;
    uint32_t counts[100] = {0};
    far_random_seed(&random, 5);
    assert_int_equal(far_distribution_init(&d, FAR_DISTRIBUTION_UNIFORM, 0.99, 100), FAR_OK);
    for (int i = 0; i < 1000000; i++)
        counts[far_distribution_next(&d, &random, 100)]++;
    for (int i = 0; i < 100; i++)
        assert_in_range(counts[i], 9500, 10500);
}


/* Parameters out of range and unknown names return FAR_ERR_INVALID. */
TEST(bad_parameters_and_names_are_refused) {
    far_zipf z;
    far_distribution_kind kind;
    assert_int_equal(far_zipf_init(&z, -0.1, 10), FAR_ERR_INVALID);
    assert_int_equal(far_zipf_init(&z, 1.0, 10), FAR_ERR_INVALID);
    assert_int_equal(far_zipf_init(&z, NAN, 10), FAR_ERR_INVALID);
    assert_int_equal(far_zipf_init(&z, 0.5, 0), FAR_ERR_INVALID);
    assert_int_equal(far_distribution_parse("zipf", &kind), FAR_ERR_INVALID);
    assert_int_equal(far_distribution_parse(NULL, &kind), FAR_ERR_INVALID);
    for (int i = FAR_DISTRIBUTION_UNIFORM; i <= FAR_DISTRIBUTION_LATEST; i++) {
        assert_int_equal(far_distribution_parse(far_distribution_name((far_distribution_kind)i), &kind), FAR_OK);
        assert_int_equal(kind, i);
    }
}


/* A hash of the first thousand draws equals a constant. */
TEST(first_thousand_draws_are_the_same_on_every_machine) {
    static const uint64_t golden[] = {0x21f3f6bcc6b25accull, 0x9c13d38ea4e8de29ull, 0xf9dc18d298b5327bull};
    for (int kind = FAR_DISTRIBUTION_UNIFORM; kind <= FAR_DISTRIBUTION_LATEST; kind++) {
        far_distribution d;
        far_random random;
        uint64_t checksum = 0;
        far_random_seed(&random, 42);
        assert_int_equal(far_distribution_init(&d, (far_distribution_kind)kind, 0.99, 10000000), FAR_OK);
        for (uint64_t i = 0; i < 1000; i++) {
            uint64_t record = far_distribution_next(&d, &random, 9000000 + i);
            checksum = XXH64(&record, sizeof record, checksum);
        }
        uint64_t bits[2];
        memcpy(&bits[0], &d.zipf.zeta, 8); /* compares all bits */
        memcpy(&bits[1], &d.zipf.eta, 8);
        checksum = XXH64(bits, sizeof bits, checksum);
        if (checksum != golden[kind])
            fail_msg("%s: checksum 0x%llx", far_distribution_name((far_distribution_kind)kind),
                     (unsigned long long)checksum);
    }
}
