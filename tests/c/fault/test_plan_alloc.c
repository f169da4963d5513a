/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/several_scene.h"

#include "base/alloc.h"

/* Each allocation of a plan fails in turn. */

enum { MOST_ALLOCATIONS = 100 };

static void assert_each_failure_is_reported(const struct lengths *lengths, const struct hr_plan_settings *settings) {
    for (int nth = 1; nth < MOST_ALLOCATIONS; nth++) {
        struct hr_plan *plan = NULL;
        hr__alloc_fail_at((uint64_t)nth);
        int r = hr_plan_new(lengths->at, lengths->count, settings, &plan);
        hr__alloc_fail_at(0);
        if (r == 0) {
            assert_true(nth > 4);
            assert_plan(lengths, settings, plan);
            hr_plan_free(plan);
            return;
        }
        assert_int_equal(r, -ENOMEM);
        assert_non_null(strstr(hr_error_message(), "no memory to plan 301 samples"));
        assert_null(plan);
    }
    fail_msg("the plan needs more than %d allocations", MOST_ALLOCATIONS);
}

static void a_failed_allocation_of_a_plan_is_reported(void **state) {
    (void)state;
    static const struct hr_bucket buckets[] = {{100, 16}, {900, 4}};
    static struct lengths lengths;
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 1);
    draw_lengths(&generator, 301, 900, &lengths); /* the last step of four batches is padded */
    struct hr_plan_settings settings = {.width = 4, .max_padded = 2000};
    assert_each_failure_is_reported(&lengths, &settings);
    settings.max_padded = 0;
    settings.pack = 900;
    assert_each_failure_is_reported(&lengths, &settings);
    settings.pack = 0;
    settings.buckets = buckets;
    settings.bucket_count = 2;
    assert_each_failure_is_reported(&lengths, &settings);
}

static void assert_each_failure_of_several_is_reported(const struct samples *samples,
                                                       const struct hr_plan_settings *settings) {
    for (int nth = 1; nth < MOST_ALLOCATIONS; nth++) {
        struct hr_plan *plan = NULL;
        hr__alloc_fail_at((uint64_t)nth);
        int r = hr_plan_new_several(samples->lengths, 2, NULL, samples->count, settings, &plan);
        hr__alloc_fail_at(0);
        if (r == 0) {
            assert_true(nth > 15);
            assert_several(samples, settings, plan);
            hr_plan_free(plan);
            return;
        }
        assert_int_equal(r, -ENOMEM);
        assert_non_null(strstr(hr_error_message(), "no memory to plan 301 samples"));
        assert_null(plan);
    }
    fail_msg("the plan needs more than %d allocations", MOST_ALLOCATIONS);
}

static void a_failed_allocation_of_several_lengths_is_reported(void **state) {
    (void)state;
    static struct samples samples;
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 2);
    draw_samples(&generator, 2, 301, 900, &samples);
    struct hr_plan_settings settings = {.width = 4, .ranks = 2};
    samples.lengths[0].pack = 900; /* the number of rows is no multiple of 4 */
    assert_each_failure_of_several_is_reported(&samples, &settings);
    samples.lengths[0].pack = 0;
    samples.lengths[0].max_padded = samples.lengths[1].max_sum = 3000;
    assert_each_failure_of_several_is_reported(&samples, &settings);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_allocation_of_a_plan_is_reported),
        cmocka_unit_test(a_failed_allocation_of_several_lengths_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
