/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/order_scene.h"

/* Orders: random access, the inverse, strides; stream orders are bijections, and well mixed. */

enum { MOST = 1 << 18, CELLS = 256 };

static int64_t indices[MOST + 2];
static unsigned char seen[MOST + 2];

static struct hr_order stream_of(int64_t n, uint64_t seed, uint64_t epoch) {
    struct hr_order order;
    assert_int_equal(hr_order_stream(n, seed, epoch, &order), 0);
    return order;
}

static void stream_orders_are_bijections(void **state) {
    (void)state;
    static const int64_t sizes[] = {0,    1,    2,       3,       59,          4095,  4096,
                                    4097, 4098, 65 * 64, 65 * 65, 65 * 65 + 1, 65536, 131071};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (uint64_t seed = 0; seed < 3; seed++) assert_bijection(sizes[i], seed, seed * seed, indices, seen);
    for (int64_t power = 4; power <= MOST; power *= 4)
        for (int64_t n = power - 1; n <= power + 1; n++) assert_bijection(n, (uint64_t)-1, 5, indices, seen);
}

static void the_inverse_finds_each_position(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 59, 4096, 4097, 70001};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct hr_order order = stream_of(sizes[i], 3, 1);
        int64_t step = sizes[i] > 4096 ? 1 : 7;
        for (int64_t p = 0; p < sizes[i]; p += step) assert_int_equal(hr_order_find(&order, hr_order_at(&order, p)), p);
    }
}

static void the_largest_orders_have_random_access(void **state) {
    (void)state;
    static const int64_t sizes[] = {INT64_MAX, INT64_MAX - 1, INT64_C(1) << 62, (INT64_C(1) << 32) + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct hr_order order = stream_of(sizes[i], i, 0);
        for (int64_t k = 0; k < 1000; k++) {
            int64_t position = k % 2 ? sizes[i] - 1 - k : k * (sizes[i] / 1000);
            int64_t index = hr_order_at(&order, position);
            assert_true(index >= 0 && index < sizes[i]);
            assert_true(hr_order_find(&order, index) == position);
        }
    }
}

static void assert_strides(const struct hr_order *order) {
    static const int64_t steps[] = {0, 1, -1, 2, 3, -7, 64, 65, 4096, INT64_MAX, INT64_MIN};
    int64_t found[300], n = order->n;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        for (int64_t first = 0; first < n; first += n / 5 + 1) {
            assert_int_equal(hr_order_fill(order, first, steps[i], 300, found), 0);
            int64_t step = (steps[i] % n + n) % n;
            for (int64_t k = 0, position = first; k < 300; k++, position = (position + step) % n)
                assert_int_equal(found[k], hr_order_at(order, position));
        }
}

static void strides_continue_at_the_other_end(void **state) {
    (void)state;
    static int32_t narrow[5000];
    static const int64_t sizes[] = {1, 2, 59, 257, 4096, 4097, 5000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct hr_order order = stream_of(sizes[i], 1, 2);
        assert_strides(&order);
        assert_int_equal(hr_order_fill(&order, 0, 1, sizes[i], indices), 0);
        for (int64_t k = 0; k < sizes[i]; k++) narrow[k] = (int32_t)indices[k];
        assert_int_equal(hr_order_int64(sizes[i], indices, &order), 0);
        assert_strides(&order);
        assert_int_equal(hr_order_int32(sizes[i], narrow, &order), 0);
        assert_strides(&order);
        assert_int_equal(hr_order_find(&order, narrow[sizes[i] / 2]), sizes[i] / 2);
        assert_int_equal(hr_order_sequential(sizes[i], &order), 0);
        assert_strides(&order);
        assert_int_equal(hr_order_find(&order, sizes[i] / 2), sizes[i] / 2);
    }
}

/* States that were saved with these orders must be resumed with them. */
static void stream_orders_stay_what_they_were(void **state) {
    (void)state;
    static const struct {
        int64_t n;
        uint64_t seed, epoch;
        int64_t wanted[4];
    } table[] = {
        {10, 0, 0, {1, 4, 5, 0}},
        {4096, 1, 2, {1697, 405, 3103, 1578}},
        {4097, 0, 0, {2884, 2667, 1558, 1749}},
        {1000000000, 5, 7, {531970709, 600885490, 189766832, 516863572}},
        {INT64_MAX,
         5,
         7,
         {INT64_C(2195585459730526950), INT64_C(8115917344212135420), INT64_C(9181603405430040059),
          INT64_C(6223101176960507623)}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct hr_order order = stream_of(table[i].n, table[i].seed, table[i].epoch);
        for (int64_t k = 0; k < 4; k++) assert_int_equal(hr_order_at(&order, k), table[i].wanted[k]);
    }
}

/* ---- randomness: the seeds are fixed, so that a result never changes ---- */

/* Asserts that chi-square for equal cells is below its mean + 5 standard deviations. */
static void assert_uniform(const int64_t *counts, int64_t total, const char *what) {
    double wanted = (double)total / CELLS, chi = 0;
    for (int i = 0; i < CELLS; i++) chi += ((double)counts[i] - wanted) * ((double)counts[i] - wanted) / wanted;
    if (chi > CELLS - 1 + 5 * 22.6) fail_msg("%s: chi-square %.0f with %d cells", what, chi, CELLS);
}

static int64_t cell_of(int64_t number, int64_t n, int64_t cells) {
    return number * cells / n;
}

static void each_index_comes_first_equally_often(void **state) {
    (void)state;
    static const int64_t sizes[] = {1024, 4096, 4097, 65537};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t of_seeds[CELLS] = {0}, of_epochs[CELLS] = {0}, last[CELLS] = {0},
                most = sizes[i] <= 4096 ? 6400 : 64000;
        for (int64_t k = 0; k < most; k++) {
            struct hr_order order = stream_of(sizes[i], (uint64_t)k, 0);
            of_seeds[cell_of(hr_order_at(&order, 0), sizes[i], CELLS)]++;
            order = stream_of(sizes[i], 3, (uint64_t)k);
            of_epochs[cell_of(hr_order_at(&order, 0), sizes[i], CELLS)]++;
            last[cell_of(hr_order_at(&order, sizes[i] - 1), sizes[i], CELLS)]++;
        }
        assert_uniform(of_seeds, most, "first index of seeds");
        assert_uniform(of_epochs, most, "first index of epochs");
        assert_uniform(last, most, "last index of epochs");
    }
}

static void neighbours_are_independent(void **state) {
    (void)state;
    static const int64_t sizes[] = {4097, 9999, 65537, MOST};
    static const int64_t distances[] = {1, 2, 65, 257};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t j = 0; j < sizeof distances / sizeof *distances; j++) {
            int64_t n = sizes[i], pairs[CELLS] = {0}, gaps[CELLS] = {0}, total = 0;
            for (uint64_t seed = 0; seed < 4; seed++) {
                struct hr_order order = stream_of(n, seed, 1);
                assert_int_equal(hr_order_fill(&order, 0, 1, n, indices), 0);
                for (int64_t p = 0; p + distances[j] < n; p++, total++) {
                    int64_t one = indices[p], other = indices[p + distances[j]];
                    pairs[cell_of(one, n, 16) * 16 + cell_of(other, n, 16)]++;
                    gaps[cell_of((other - one + n) % n, n, CELLS)]++;
                }
            }
            assert_uniform(pairs, total, "pairs");
            assert_uniform(gaps, total, "gaps");
        }
}

static void orders_of_other_seeds_and_epochs_are_unrelated(void **state) {
    (void)state;
    static int64_t other[65537];
    const int64_t n = 65537;
    for (uint64_t k = 1; k < 9; k++) {
        struct hr_order order = stream_of(n, 0, 0), changed = k % 2 ? stream_of(n, k, 0) : stream_of(n, 0, k);
        int64_t pairs[CELLS] = {0}, fixed = 0;
        assert_int_equal(hr_order_fill(&order, 0, 1, n, indices), 0);
        assert_int_equal(hr_order_fill(&changed, 0, 1, n, other), 0);
        for (int64_t p = 0; p < n; p++) {
            pairs[cell_of(indices[p], n, 16) * 16 + cell_of(other[p], n, 16)]++;
            fixed += indices[p] == other[p];
        }
        assert_uniform(pairs, n, "the same position in two orders");
        assert_true(fixed < 10); /* one is expected */
    }
}

static void bad_arguments_are_refused(void **state) {
    (void)state;
    struct hr_order order = stream_of(5000, 1, 1), before = order;
    int64_t kept = 7;
    assert_fails(hr_order_stream(-1, 0, 0, &order), "n is -1; give 0 or more");
    assert_fails(hr_order_sequential(-2, &order), "n is -2");
    assert_fails(hr_order_int32(-3, NULL, &order), "n is -3");
    assert_fails(hr_order_int64(-4, NULL, &order), "n is -4");
    assert_fails((int)hr_order_at(&order, 5000), "position 5000 is not in an order of 5000 samples");
    assert_fails((int)hr_order_at(&order, -1), "position -1 is not");
    assert_fails((int)hr_order_find(&order, 5000), "index 5000 is not in an order of 5000 samples");
    assert_fails(hr_order_fill(&order, 5000, 1, 1, &kept), "position 5000 is not");
    assert_fails(hr_order_fill(&order, 0, 1, -1, &kept), "the count is -1");
    assert_memory_equal(&order, &before, sizeof before);
    order = stream_of(0, 1, 1);
    assert_int_equal(hr_order_fill(&order, 0, 1, 0, NULL), 0);
    assert_fails(hr_order_fill(&order, 0, 1, 1, &kept), "position 0 is not in an order of 0 samples");
    assert_int_equal(hr_order_int64(1, (const int64_t[]){5}, &order), 0);
    assert_fails((int)hr_order_find(&order, 0), "index 0 is not in an order");
    assert_int_equal(kept, 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stream_orders_are_bijections),
        cmocka_unit_test(the_inverse_finds_each_position),
        cmocka_unit_test(the_largest_orders_have_random_access),
        cmocka_unit_test(strides_continue_at_the_other_end),
        cmocka_unit_test(stream_orders_stay_what_they_were),
        cmocka_unit_test(each_index_comes_first_equally_often),
        cmocka_unit_test(neighbours_are_independent),
        cmocka_unit_test(orders_of_other_seeds_and_epochs_are_unrelated),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests_name("sampler_stream", tests, NULL, NULL);
}
