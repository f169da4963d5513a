/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/order_scene.h"
#include "sampler/permute.h"

/* torch's generator and permutations, and the parts of ranks. The numbers are torch 2.13's;
 * tests/python/sampling compares with torch itself. */

enum { MOST = 4100 };

static struct hr_mt19937 seeded(uint64_t seed) {
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, seed);
    return generator;
}

static void the_generator_gives_the_published_numbers(void **state) {
    (void)state;
    struct hr_mt19937 generator = seeded(5489);
    for (int i = 1; i < 10000; i++) hr__mt19937_next32(&generator);
    assert_int_equal(hr__mt19937_next32(&generator), 4123659995U); /* of C++'s std::mt19937: [rand.predef] */
}

static void only_the_low_bits_of_a_seed_count(void **state) {
    (void)state;
    struct hr_mt19937 one = seeded(7), other = seeded((UINT64_C(9) << 32) + 7);
    for (int i = 0; i < 2000; i++) assert_int_equal(hr__mt19937_next32(&one), hr__mt19937_next32(&other));
}

static void the_first_of_two_words_is_the_high_one(void **state) {
    (void)state;
    struct hr_mt19937 one = seeded(1), other = one;
    uint64_t high = hr__mt19937_next32(&one), low = hr__mt19937_next32(&one);
    assert_int_equal(hr__mt19937_next64(&other), high << 32 | low);
}

static void permutations_are_torchs(void **state) {
    (void)state;
    static const int32_t of_seed_5[] = {1, 4, 9, 6, 3, 5, 0, 2, 8, 7}, of_minus_1[] = {1, 4, 6, 2, 0, 5, 8, 7, 9, 3};
    int32_t order[1000];
    struct hr_mt19937 generator = seeded(5);
    assert_int_equal(hr_mt19937_permute_int32(&generator, 10, order), 0);
    assert_memory_equal(order, of_seed_5, sizeof of_seed_5);
    generator = seeded(UINT64_MAX);
    assert_int_equal(hr_mt19937_permute_int32(&generator, 10, order), 0);
    assert_memory_equal(order, of_minus_1, sizeof of_minus_1);
    generator = seeded(42);
    assert_int_equal(hr_mt19937_permute_int32(&generator, 1000, order), 0);
    int64_t sum = 0;
    for (int i = 0; i < 1000; i++) sum += (int64_t)(i + 1) * order[i];
    assert_int_equal(sum, 251382058);
}

static void both_widths_give_one_permutation_and_leave_one_state(void **state) {
    (void)state;
    static const int64_t sizes[] = {0, 1, 2, 3, 59, 63, 64, 65, 66, 129, 1000, MOST};
    int32_t narrow[MOST];
    int64_t wide[MOST];
    unsigned char seen[MOST];
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        struct hr_mt19937 one = seeded(k), other = one;
        assert_int_equal(hr_mt19937_permute_int32(&one, sizes[k], narrow), 0);
        assert_int_equal(hr_mt19937_permute_int64(&other, sizes[k], wide), 0);
        for (int64_t i = 0; i < sizes[k]; i++) assert_int_equal(narrow[i], wide[i]);
        assert_permutation(wide, sizes[k], seen);
        assert_int_equal(hr__mt19937_next32(&one), hr__mt19937_next32(&other));
        other = seeded(k);
        for (int64_t i = 0; i < sizes[k]; i++) hr__mt19937_next32(&other); /* n - 1 draws, and the one above */
        if (sizes[k]) assert_int_equal(hr__mt19937_next32(&one), hr__mt19937_next32(&other));
    }
}

/* The algorithm of torch for n from 214,748,364 on, written as in its source. */
static void shuffle_inside_out(struct hr_mt19937 *generator, int64_t n, int64_t *order) {
    for (int64_t i = 0; i < n; i++) {
        int64_t z = (int64_t)(hr__mt19937_next64(generator) % (uint64_t)(i + 1));
        order[i] = i;
        order[i] = order[z];
        order[z] = i;
    }
}

static void the_wide_permutation_is_the_inside_out_shuffle(void **state) {
    (void)state;
    static const int64_t sizes[] = {0, 1, 2, 63, 64, 65, 1000, MOST};
    int64_t model[MOST], wide[MOST];
    int32_t narrow[MOST];
    unsigned char seen[MOST];
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        struct hr_mt19937 one = seeded(k), two = one, three = one;
        shuffle_inside_out(&one, sizes[k], model);
        hr__permute_wide_int64(&two, sizes[k], wide);
        hr__permute_wide_int32(&three, sizes[k], narrow);
        assert_permutation(model, sizes[k], seen);
        for (int64_t i = 0; i < sizes[k]; i++) assert_true(model[i] == wide[i] && model[i] == narrow[i]);
        assert_int_equal(hr__mt19937_next32(&one), hr__mt19937_next32(&two));
    }
    assert_int_equal(HR_PERMUTE_WIDE_FROM, 214748364);
}

static void bad_sizes_of_permutations_are_refused(void **state) {
    (void)state;
    struct hr_mt19937 generator = seeded(1), before = generator;
    assert_fails(hr_mt19937_permute_int32(&generator, -1, NULL), "n is -1; give 0 or more");
    assert_fails(hr_mt19937_permute_int64(&generator, -3, NULL), "n is -3; give 0 or more");
    assert_fails(hr_mt19937_permute_int32(&generator, (INT64_C(1) << 31) + 1, NULL), "use int64");
    assert_memory_equal(&generator, &before, sizeof before);
}

/* ---- ranks ---- */

/* Compares a rank's part with torch's padded list: what is left of the order from `position` on, and then the order
 * again, as often as necessary. */
static void assert_rank(int64_t n, int64_t position, int64_t world, int64_t rank, bool drop_last) {
    struct hr_deal deal;
    int64_t table[40];
    int32_t narrow[40];
    assert_int_equal(hr_deal_rank(n, position, world, rank, drop_last, &deal), 0);
    int64_t left = n - position, count = drop_last ? left / world : (left + world - 1) / world;
    assert_true(deal.count == count && deal.total == count * world);
    for (int64_t i = 0; i < n; i++) narrow[i] = (int32_t)(table[i] = 100 + i);
    hr_deal_keep_int64(&deal, n, table);
    hr_deal_keep_int32(&deal, n, narrow);
    for (int64_t k = 0; k < count; k++) {
        int64_t place = position + rank + k * world;
        assert_int_equal((deal.first + k * deal.step) % n, place % n);
        assert_int_equal(table[k], 100 + place % n);
        assert_int_equal(narrow[k], 100 + place % n);
        assert_true((place < n) == (k < deal.once));
    }
}

static void ranks_get_every_nth_index_and_the_padding(void **state) {
    (void)state;
    for (int64_t n = 0; n < 40; n++)
        for (int64_t world = 1; world < 45; world++)
            for (int64_t rank = 0; rank < world; rank++)
                for (int64_t position = 0; position <= n; position += position < 3 ? 1 : 5) {
                    assert_rank(n, position, world, rank, false);
                    assert_rank(n, position, world, rank, true);
                }
}

/* Ranks that take batches have taken a beginning of the order after each step, and hr_deal_advance says which. */
static void after_each_step_a_beginning_of_the_order_is_used(void **state) {
    (void)state;
    enum { N = 31, WORLD = 4, BATCH = 3 };
    for (int64_t steps = 0; steps <= N; steps++) {
        bool used[N] = {false};
        int64_t end = hr_deal_advance(N, 2, WORLD, BATCH, steps);
        for (int64_t rank = 0; rank < WORLD; rank++) {
            struct hr_deal deal;
            assert_int_equal(hr_deal_rank(N, 2, WORLD, rank, false, &deal), 0);
            for (int64_t k = 0; k < steps * BATCH && k < deal.once; k++) used[deal.first + k * deal.step] = true;
        }
        for (int64_t i = 0; i < N; i++) assert_true(used[i] == (i >= 2 && i < end));
    }
    assert_int_equal(hr_deal_advance(N, 2, INT64_MAX, INT64_MAX, 1), N);
    assert_int_equal(hr_deal_advance(N, 2, INT64_MAX, INT64_MAX, 0), 2);
}

static void bad_ranks_are_refused(void **state) {
    (void)state;
    struct hr_deal deal = {7, 7, 7, 7, 7};
    assert_fails(hr_deal_rank(-1, 0, 2, 0, false, &deal), "n is -1");
    assert_fails(hr_deal_rank(5, 0, 0, 0, false, &deal), "world_size is 0");
    assert_fails(hr_deal_rank(5, 0, 2, 2, false, &deal), "rank is 2; with world_size 2 it must be from 0 to 1");
    assert_fails(hr_deal_rank(5, 0, 2, -1, false, &deal), "rank is -1");
    assert_fails(hr_deal_rank(INT64_MAX, 0, 2, 1, false, &deal), "cannot be padded");
    assert_fails(hr_deal_rank(5, 6, 2, 0, false, &deal), "position is 6; of 5 samples it must be from 0 to 5");
    assert_fails(hr_deal_rank(5, -1, 2, 0, false, &deal), "position is -1");
    assert_fails((int)hr_deal_advance(5, 6, 1, 1, 1), "position is 6");
    assert_fails((int)hr_deal_advance(5, 0, 0, 1, 1), "world_size is 0");
    assert_fails((int)hr_deal_advance(5, 0, 1, 0, 1), "batch_size is 0");
    assert_fails((int)hr_deal_advance(5, 0, 1, 1, -1), "steps is -1");
    assert_true(deal.first == 7 && deal.step == 7 && deal.count == 7 && deal.total == 7);
    assert_int_equal(hr_deal_rank(INT64_MAX, 0, 2, 1, true, &deal), 0);
    assert_true(deal.total == INT64_MAX - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_generator_gives_the_published_numbers),
        cmocka_unit_test(only_the_low_bits_of_a_seed_count),
        cmocka_unit_test(the_first_of_two_words_is_the_high_one),
        cmocka_unit_test(permutations_are_torchs),
        cmocka_unit_test(both_widths_give_one_permutation_and_leave_one_state),
        cmocka_unit_test(the_wide_permutation_is_the_inside_out_shuffle),
        cmocka_unit_test(bad_sizes_of_permutations_are_refused),
        cmocka_unit_test(ranks_get_every_nth_index_and_the_padding),
        cmocka_unit_test(after_each_step_a_beginning_of_the_order_is_used),
        cmocka_unit_test(bad_ranks_are_refused),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
