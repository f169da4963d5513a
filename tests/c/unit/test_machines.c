/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/order_scene.h"

#include "base/alloc.h"

/* Orders in which each machine keeps its samples. */

enum { MOST = 60, LARGE = 100000 };

/* Returns the machine of a position that is dealt by stride. */
static int64_t machine_at(int64_t position, int64_t world, int64_t ranks) {
    return position % world / ranks;
}

/* Asserts that each machine has neighbouring samples, those of machine 0 first, and about equally many. */
static void assert_parts(const int64_t *order, int64_t n, int64_t world, int64_t ranks) {
    int64_t next = 0, least = n, most = 0;
    for (int64_t machine = 0; machine < world / ranks; machine++) {
        int64_t count = 0, first = n, last = -1;
        for (int64_t i = 0; i < n; i++) {
            if (machine_at(i, world, ranks) != machine) continue;
            count++;
            if (order[i] < first) first = order[i];
            if (order[i] > last) last = order[i];
        }
        if (count) assert_true(first == next && last == next + count - 1);
        next += count;
        if (count < least) least = count;
        if (count > most) most = count;
    }
    assert_true(next == n && most - least <= ranks);
}

static void each_machine_has_its_samples_in_every_epoch(void **state) {
    (void)state;
    unsigned char seen[MOST];
    int64_t indices[MOST];
    struct hr_order order;
    for (int64_t n = 0; n < MOST; n++)
        for (int64_t ranks = 1; ranks < 5; ranks++)
            for (int64_t machines = 1; machines < 14; machines += 2)
                for (uint64_t epoch = 0; epoch < 3; epoch++) {
                    assert_int_equal(hr_order_machines(n, machines * ranks, ranks, true, 7, epoch, &order), 0);
                    assert_int_equal(hr_order_fill(&order, 0, 1, n, indices), 0);
                    assert_permutation(indices, n, seen);
                    assert_parts(indices, n, machines * ranks, ranks);
                }
}

static void an_index_is_the_same_in_any_way_to_ask(void **state) {
    (void)state;
    static int64_t all[LARGE], some[LARGE];
    static unsigned char seen[LARGE];
    struct hr_order order;
    assert_int_equal(hr_order_machines(LARGE, 24, 8, true, 3, 1, &order), 0);
    assert_int_equal(hr_order_fill(&order, 0, 1, LARGE, all), 0);
    assert_permutation(all, LARGE, seen);
    assert_parts(all, LARGE, 24, 8);
    for (int64_t i = 0; i < LARGE; i += 997) assert_int_equal(hr_order_at(&order, i), all[i]);
    assert_int_equal(hr_order_find(&order, all[12345]), 12345);
    assert_int_equal(hr_order_fill(&order, 5, 24, 9000, some), 0);
    for (int64_t i = 0; i < 9000; i++) assert_int_equal(some[i], all[(5 + i * 24) % LARGE]);
}

/* The numbers are part of saved states. */
static void the_order_stays_what_it_is(void **state) {
    (void)state;
    static const int64_t of_ten[] = {0, 2, 9, 8, 1, 4, 7, 6, 3, 5},
                         of_large[] = {INT64_C(5994821293), INT64_C(5998004592), INT64_C(5994541304)};
    int64_t indices[10];
    struct hr_order order;
    assert_int_equal(hr_order_machines(10, 4, 2, true, 5, 2, &order), 0);
    assert_int_equal(hr_order_fill(&order, 0, 1, 10, indices), 0);
    assert_memory_equal(indices, of_ten, sizeof of_ten);
    assert_int_equal(hr_order_machines(INT64_C(6000000000), 4096, 8, true, 5, 2, &order), 0);
    assert_int_equal(hr_order_fill(&order, 4095, 4096, 3, indices), 0);
    assert_memory_equal(indices, of_large, sizeof of_large);
}

static void samples_that_are_not_shuffled_come_one_after_the_other(void **state) {
    (void)state;
    static const int64_t expected[] = {0, 1, 5, 6, 2, 3, 7, 8, 4};
    int64_t indices[9];
    struct hr_order order;
    assert_int_equal(hr_order_machines(9, 4, 2, false, 0, 0, &order), 0);
    assert_int_equal(hr_order_fill(&order, 0, 1, 9, indices), 0);
    assert_memory_equal(indices, expected, sizeof expected);
}

static void shuffles_differ_by_seed_epoch_and_machine(void **state) {
    (void)state;
    static int64_t one[LARGE], other[LARGE];
    const uint64_t seeds[][2] = {{1, 0}, {0, 1}};
    struct hr_order order;
    assert_int_equal(hr_order_machines(LARGE, 2, 1, true, 0, 0, &order), 0);
    assert_int_equal(hr_order_fill(&order, 0, 1, LARGE, one), 0);
    int64_t same = 0;
    for (int64_t i = 0; i < LARGE; i += 2) same += one[i] == one[i + 1] - LARGE / 2;
    assert_true(same < 10);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(hr_order_machines(LARGE, 2, 1, true, seeds[k][0], seeds[k][1], &order), 0);
        assert_int_equal(hr_order_fill(&order, 0, 1, LARGE, other), 0);
        same = 0;
        for (int64_t i = 0; i < LARGE; i++) same += one[i] == other[i];
        assert_true(same < 10);
    }
}

/* ---- tables ---- */

static void a_table_is_dealt_in_its_order(void **state) {
    (void)state;
    int64_t table[MOST], dealt[MOST], last[MOST];
    unsigned char seen[MOST];
    struct hr_mt19937 generator;
    for (int64_t n = 0; n < MOST; n++)
        for (int64_t ranks = 1; ranks < 5; ranks++) {
            int64_t world = 3 * ranks;
            hr_mt19937_seed(&generator, (uint64_t)n);
            assert_int_equal(hr_mt19937_permute_int64(&generator, n, table), 0);
            assert_int_equal(hr_deal_machines(table, n, world, ranks, dealt), 0);
            assert_permutation(dealt, n, seen);
            assert_parts(dealt, n, world, ranks);
            for (int64_t i = 0; i < n; i++) last[table[i]] = i; /* the place of a sample in the table */
            for (int64_t machine = 0; machine < 3; machine++)
                for (int64_t i = 0, before = -1; i < n; i++) {
                    if (machine_at(i, world, ranks) != machine) continue;
                    assert_true(last[dealt[i]] > before);
                    before = last[dealt[i]];
                }
        }
}

static void bad_arguments_are_refused(void **state) {
    (void)state;
    const int64_t again[] = {0, 2, 0}, outside[] = {0, 3, 1}, negative[] = {0, -1, 1};
    int64_t dealt[3];
    struct hr_order order;
    assert_fails(hr_order_machines(-1, 4, 2, true, 0, 0, &order), "n is -1");
    assert_fails(hr_order_machines(9, 4, 3, true, 0, 0, &order), "4 ranks cannot be on machines with 3 ranks each");
    assert_fails(hr_order_machines(9, 0, 1, true, 0, 0, &order), "0 ranks cannot be on machines");
    assert_fails(hr_order_machines(9, 4, 0, true, 0, 0, &order), "machines with 0 ranks each");
    assert_fails(hr_order_machines(INT64_MAX, 4, 2, true, 0, 0, &order), "are too many for 4 ranks");
    assert_fails(hr_deal_machines(again, 3, 4, 2, dealt), "index 0, at position 2, comes again");
    assert_fails(hr_deal_machines(outside, 3, 4, 2, dealt), "index 3, at position 1, is not one of them");
    assert_fails(hr_deal_machines(negative, 3, 4, 2, dealt), "index -1, at position 1, is not one of them");
    assert_fails(hr_deal_machines(again, 3, 4, 3, dealt), "4 ranks cannot be on machines with 3 ranks each");
}

static void a_failed_allocation_is_reported(void **state) {
    (void)state;
    const int64_t table[] = {2, 0, 1};
    int64_t dealt[3];
    for (uint64_t nth = 1; nth < 3; nth++) {
        hr__alloc_fail_at(nth);
        int r = hr_deal_machines(table, 3, 2, 1, dealt);
        hr__alloc_fail_at(0);
        assert_int_equal(r, -ENOMEM);
        assert_non_null(strstr(hr_error_message(), "no memory to deal 3 samples to machines"));
    }
    assert_int_equal(hr_deal_machines(table, 3, 2, 1, dealt), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_machine_has_its_samples_in_every_epoch),
        cmocka_unit_test(an_index_is_the_same_in_any_way_to_ask),
        cmocka_unit_test(the_order_stays_what_it_is),
        cmocka_unit_test(samples_that_are_not_shuffled_come_one_after_the_other),
        cmocka_unit_test(shuffles_differ_by_seed_epoch_and_machine),
        cmocka_unit_test(a_table_is_dealt_in_its_order),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(a_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests_name("machines", tests, NULL, NULL);
}
