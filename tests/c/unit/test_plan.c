/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/plan_scene.h"

#include "base/hash.h"

/* Plans of batches. tests/python/sampling has more settings, and states. */

static const struct hr_bucket buckets[] = {{100, 16}, {220, 9}, {INT32_MAX, 4}};

static struct hr_plan_settings settings_of(int way, int64_t width) {
    struct hr_plan_settings settings = {.width = width, .cost_linear = 1, .tail = HR_PLAN_EXACT};
    if (way == 0) settings.max_sum = 900;
    if (way == 1) settings.max_padded = 900;
    if (way == 2) settings.max_batch = 7;
    if (way == 3) settings.pack = 900;
    if (way == 4) settings.buckets = buckets, settings.bucket_count = 3;
    return settings;
}

enum { WAYS = 5 };

static struct hr_plan *plan_of(const struct lengths *lengths, const struct hr_plan_settings *settings) {
    struct hr_plan *plan;
    assert_int_equal(hr_plan_new(lengths->at, lengths->count, settings, &plan), 0);
    return plan;
}

static void each_sample_comes_once_and_limits_are_kept(void **state) {
    (void)state;
    static const int64_t counts[] = {0, 1, 2, 7, 63, 64, 65, 300, 1000}, windows[] = {0, 1, 40};
    static struct lengths lengths;
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 1);
    for (int i = 0; i < 3000; i++) {
        struct hr_plan_settings settings = settings_of((int)draw(&generator, WAYS), 1 + draw(&generator, 9));
        settings.window = windows[draw(&generator, 3)];
        settings.tail = (enum hr_plan_tail)draw(&generator, 3);
        settings.seed = draw(&generator, 5);
        draw_lengths(&generator, counts[draw(&generator, 9)], i % 3 ? 900 : 1200, &lengths);
        struct hr_plan *plan = plan_of(&lengths, &settings);
        assert_plan(&lengths, &settings, plan);
        hr_plan_free(plan);
    }
}

static void plans_are_the_same_on_every_machine(void **state) {
    (void)state;
    static const uint64_t expected[WAYS] = {UINT64_C(0xD67214F3F8203D22), UINT64_C(0xFA7AE8A954215B00),
                                            UINT64_C(0x405EE41FC3BEEA13), UINT64_C(0x50437096E6D2A56A),
                                            UINT64_C(0xCCB11100CC4A42C5)};
    static struct lengths lengths;
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 35);
    draw_lengths(&generator, MOST_LENGTHS, 900, &lengths);
    for (int way = 0; way < WAYS; way++) {
        struct hr_plan_settings settings = settings_of(way, 4);
        settings.seed = 3;
        settings.epoch = 2;
        settings.cost_quadratic = 1;
        struct hr_plan *plan = plan_of(&lengths, &settings);
        uint64_t hash = hr__hash(plan->entries, (uint64_t)plan->entry_count * sizeof *plan->entries, 0);
        hash = hr__hash(plan->starts, (uint64_t)(plan->batch_count + 1) * sizeof *plan->starts, hash);
        if (hash != expected[way]) fail_msg("way %d has 0x%016llx", way, (unsigned long long)hash);
        hr_plan_free(plan);
    }
}

static void seed_and_epoch_give_other_plans(void **state) {
    (void)state;
    static struct lengths lengths;
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 2);
    draw_lengths(&generator, 500, 900, &lengths);
    for (int way = 0; way < WAYS; way++) {
        struct hr_plan_settings settings = settings_of(way, 2);
        struct hr_plan *one = plan_of(&lengths, &settings);
        settings.epoch = 1;
        struct hr_plan *other = plan_of(&lengths, &settings);
        settings.epoch = 0;
        struct hr_plan *again = plan_of(&lengths, &settings);
        int64_t bytes = one->entry_count * (int64_t)sizeof *one->entries;
        assert_memory_equal(one->entries, again->entries, (size_t)bytes);
        assert_true(one->entry_count != other->entry_count || memcmp(one->entries, other->entries, (size_t)bytes) != 0);
        hr_plan_free(one);
        hr_plan_free(other);
        hr_plan_free(again);
    }
}

/* Only the last step may be shorter, and with "drop" fewer samples are missing than a full step has. */
static void buckets_have_full_batches_except_in_the_last_step(void **state) {
    (void)state;
    static struct lengths lengths;
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 3);
    draw_lengths(&generator, 2000, 400, &lengths);
    lengths.at[0] = lengths.at[1] = 100; /* the longest sample of a bucket */
    for (int tail = 0; tail < 3; tail++) {
        struct hr_plan_settings settings = settings_of(4, 2);
        settings.tail = (enum hr_plan_tail)tail;
        struct hr_plan *plan = plan_of(&lengths, &settings);
        int64_t missing = assert_plan(&lengths, &settings, plan), full = plan->batch_count;
        assert_in_range(missing, 0, tail == HR_PLAN_DROP ? 31 : 0);
        if (tail != HR_PLAN_DROP) full -= settings.width;
        for (int64_t i = 0; i < full; i++) {
            int64_t count = plan->starts[i + 1] - plan->starts[i];
            assert_true(count == 16 || count == 9 || count == 4);
        }
        hr_plan_free(plan);
    }
}

static void a_sample_above_the_limit_has_a_batch_for_itself(void **state) {
    (void)state;
    static struct lengths lengths;
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 4);
    draw_lengths(&generator, 400, 300, &lengths);
    for (int i = 0; i < 20; i++) lengths.at[i] = 0;
    lengths.at[77] = INT32_MAX;
    for (int way = 0; way < WAYS; way++) {
        struct hr_plan_settings settings = settings_of(way, 3);
        if (way == 2) continue; /* max_batch has no limit of lengths */
        if (way == 4) settings.bucket_count = 2;
        struct hr_plan *plan = plan_of(&lengths, &settings);
        assert_plan(&lengths, &settings, plan);
        for (int64_t i = 0; i < plan->batch_count; i++)
            for (int64_t k = plan->starts[i]; k < plan->starts[i + 1]; k++)
                if (plan->entries[k] == 77) assert_int_equal(plan->starts[i + 1] - plan->starts[i], 1);
        hr_plan_free(plan);
    }
}

static void a_sample_is_repeated_only_where_a_batch_would_be_empty(void **state) {
    (void)state;
    static struct lengths lengths = {{5, 6, 7}, 3};
    for (int way = 0; way < WAYS; way++) {
        struct hr_plan_settings settings = settings_of(way, 8);
        struct hr_plan *plan = plan_of(&lengths, &settings);
        assert_int_equal(plan->step_count, 1);
        assert_int_equal(plan->repeat_count, 5);
        assert_plan(&lengths, &settings, plan);
        hr_plan_free(plan);
        settings.tail = HR_PLAN_DROP;
        plan = plan_of(&lengths, &settings);
        assert_int_equal(plan->step_count, 0);
        hr_plan_free(plan);
    }
}

/* All samples fit into one step, which gets only as many repeats as it needs for batches of equally many samples. */
static void a_step_is_padded_by_less_than_one_sample_for_each_batch(void **state) {
    (void)state;
    static struct lengths lengths;
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 7);
    for (int64_t count = 1; count < 60; count++) {
        draw_lengths(&generator, count, 30, &lengths);
        for (int way = 0; way < 3; way++) {
            struct hr_plan_settings settings = settings_of(0, 1 + count % 7);
            settings.max_sum = settings.max_padded = settings.max_batch = 0;
            *(way == 0 ? &settings.max_sum : way == 1 ? &settings.max_padded : &settings.max_batch) = 5000;
            settings.tail = HR_PLAN_PAD;
            struct hr_plan *plan = plan_of(&lengths, &settings);
            assert_plan(&lengths, &settings, plan);
            assert_int_equal(plan->step_count, 1);
            assert_int_equal(plan->entry_count, (count + settings.width - 1) / settings.width * settings.width);
            for (int64_t i = 0; i < plan->batch_count; i++)
                assert_int_equal(plan->starts[i + 1] - plan->starts[i], plan->entry_count / settings.width);
            hr_plan_free(plan);
        }
    }
}

/* Capacity 2^k + 1: the largest room is in a word of the bitmap of its own. Best fit decreasing fills pairs exactly. */
static void rows_are_filled_exactly_where_that_is_possible(void **state) {
    (void)state;
    static struct lengths lengths;
    static const int64_t capacities[] = {63, 64, 65, 4095, 4096, 4097, 262145};
    for (int k = 0; k < 7; k++) {
        int64_t capacity = capacities[k];
        struct hr_plan_settings settings = {.width = 2, .pack = capacity, .cost_linear = 1, .tail = HR_PLAN_EXACT};
        lengths.count = 40;
        for (int i = 0; i < 20; i++) {
            lengths.at[2 * i] = (int32_t)(1 + i * 17 % (capacity - 1));
            lengths.at[2 * i + 1] = (int32_t)capacity - lengths.at[2 * i];
        }
        struct hr_plan *plan = plan_of(&lengths, &settings);
        assert_plan(&lengths, &settings, plan);
        assert_int_equal(plan->batch_count, 20);
        hr_plan_free(plan);
    }
}

static void max_batch_holds_in_rows(void **state) {
    (void)state;
    static struct lengths lengths;
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 6);
    draw_lengths(&generator, 1000, 30, &lengths);
    struct hr_plan_settings settings = {.width = 2, .pack = 1000, .max_batch = 5, .tail = HR_PLAN_EXACT};
    struct hr_plan *plan = plan_of(&lengths, &settings);
    assert_plan(&lengths, &settings, plan);
    assert_int_equal(plan->batch_count, 200);
    hr_plan_free(plan);
}

static void bad_arguments_are_refused(void **state) {
    (void)state;
    static const struct hr_bucket falling[] = {{200, 4}, {100, 4}}, rising[] = {{100, 4}, {200, 5}},
                                  none[] = {{100, 0}};
    int32_t lengths[] = {3, -1, INT32_MAX};
    struct hr_plan *plan;
    struct hr_plan_settings good = settings_of(0, 2), bad;
    assert_fails(hr_plan_new(lengths, 3, &good, &plan), "the length at position 1 is -1");
    assert_fails(hr_plan_new(lengths, -1, &good, &plan), "-1 samples");
    lengths[1] = 1;
#define assert_refused(text, ...)                                                                                      \
    bad = good, __VA_ARGS__;                                                                                           \
    assert_fails(hr_plan_new(lengths, 3, &bad, &plan), text)
    assert_refused("a step of 0 batches", bad.width = 0);
    assert_refused("a step of", bad.width = HR_PLAN_WIDTH_MAX + 1);
    assert_refused("max_sum is -1", bad.max_sum = -1);
    assert_refused("window is -2", bad.window = -2);
    assert_refused("give max_sum, max_padded, max_batch, buckets or pack", bad.max_sum = 0);
    assert_refused("give either limits", bad.pack = 5);
    assert_refused("pack is", bad.max_sum = 0, bad.pack = HR_PLAN_PACK_MAX + 1);
    assert_refused("give either limits", bad.buckets = buckets, bad.bucket_count = 3);
    assert_refused("rising lengths", bad.max_sum = 0, bad.buckets = falling, bad.bucket_count = 2);
    assert_refused("more than the bucket", bad.max_sum = 0, bad.buckets = rising, bad.bucket_count = 2);
    assert_refused("batch size of bucket 0 is 0", bad.max_sum = 0, bad.buckets = none, bad.bucket_count = 1);
    assert_refused("tail is 3", bad.tail = (enum hr_plan_tail)3);
    assert_refused("does not fit into 63 bits", bad.cost_quadratic = 2);
    assert_null(hr_plan_free(NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_sample_comes_once_and_limits_are_kept),
        cmocka_unit_test(plans_are_the_same_on_every_machine),
        cmocka_unit_test(seed_and_epoch_give_other_plans),
        cmocka_unit_test(buckets_have_full_batches_except_in_the_last_step),
        cmocka_unit_test(a_sample_above_the_limit_has_a_batch_for_itself),
        cmocka_unit_test(a_sample_is_repeated_only_where_a_batch_would_be_empty),
        cmocka_unit_test(a_step_is_padded_by_less_than_one_sample_for_each_batch),
        cmocka_unit_test(rows_are_filled_exactly_where_that_is_possible),
        cmocka_unit_test(max_batch_holds_in_rows),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
