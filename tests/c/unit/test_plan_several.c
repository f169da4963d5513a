/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/several_scene.h"

#include "base/hash.h"

/* Plans of samples with several lengths. tests/python/sampling has states, and what plans are worth. */

static struct samples samples;

/* Gives limits of one kind to the drawn samples: 0: rows, 1: sums, 2: the first length padded, 3: all padded, 4: only
 * the number of samples. */
static struct hr_plan_settings limit(int way, int64_t width, int64_t most) {
    struct hr_plan_settings settings = {.width = width, .tail = HR_PLAN_EXACT, .max_batch = way == 4 ? 7 : 0};
    for (int64_t k = 0; k < samples.length_count; k++) {
        struct hr_plan_length *length = &samples.lengths[k];
        if (way == 0) length->pack = most + k;
        if (way == 1 || (way == 2 && k > 0)) length->max_sum = most + k;
        if (way == 3 || (way == 2 && k == 0)) length->max_padded = most + k;
        length->cost_linear = 1 + (uint64_t)k;
        length->cost_quadratic = k == 1;
    }
    return settings;
}

enum { WAYS = 5 };

static void each_sample_comes_once_and_limits_are_kept(void **state) {
    (void)state;
    static const int64_t counts[] = {0, 1, 2, 7, 63, 64, 65, 300, 1500}, windows[] = {0, 1, 40};
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 1);
    for (int i = 0; i < 3000; i++) {
        draw_samples(&generator, 2 + draw(&generator, 3), counts[draw(&generator, 9)], i % 3 ? 900 : 1200, &samples);
        int64_t ranks = 1 + draw(&generator, 3), most = 1 + draw(&generator, 5000);
        struct hr_plan_settings settings = limit((int)draw(&generator, WAYS), ranks * (1 + draw(&generator, 3)), most);
        if (i % 5 == 0) settings.max_batch = 1 + draw(&generator, 9);
        settings.window = windows[draw(&generator, 3)];
        settings.tail = (enum hr_plan_tail)draw(&generator, 3);
        settings.seed = draw(&generator, 5);
        settings.ranks = i % 2 ? ranks : 0;
        for (int64_t k = 0; i % 4 == 0 && k < samples.length_count; k++)
            samples.lengths[k].cost_linear = samples.lengths[k].cost_quadratic = 0;
        struct hr_plan *plan = plan_several(&samples, i % 4 ? NULL : samples.costs, &settings);
        assert_several(&samples, &settings, plan);
        hr_plan_free(plan);
    }
}

static void plans_are_the_same_on_every_machine(void **state) {
    (void)state;
    static const uint64_t expected[WAYS] = {UINT64_C(0x5BDC793D515A9E4E), UINT64_C(0x2F6E93BBD8E89162),
                                            UINT64_C(0xBA88E5A5C5C21C0D), UINT64_C(0x07FD25A6B32DF812),
                                            UINT64_C(0xA95917FB2BA2D534)};
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 35);
    draw_samples(&generator, 3, MOST_LENGTHS, 900, &samples);
    for (int way = 0; way < WAYS; way++) {
        for (int64_t k = 0; k < 3; k++) samples.lengths[k] = (struct hr_plan_length){.values = samples.values[k]};
        struct hr_plan_settings settings = limit(way, 4, 2000);
        settings.seed = 3;
        settings.epoch = 2;
        struct hr_plan *plan = plan_several(&samples, NULL, &settings);
        assert_several(&samples, &settings, plan);
        uint64_t hash = hr__hash(plan->entries, (uint64_t)plan->entry_count * sizeof *plan->entries, 0);
        hash = hr__hash(plan->starts, (uint64_t)(plan->batch_count + 1) * sizeof *plan->starts, hash);
        if (hash != expected[way]) fail_msg("way %d has 0x%016llX", way, (unsigned long long)hash);
        hr_plan_free(plan);
    }
}

static void one_length_has_the_plan_of_that_length(void **state) {
    (void)state;
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 2);
    draw_samples(&generator, 1, 700, 900, &samples);
    for (int way = 0; way < WAYS; way++) {
        samples.lengths[0] = (struct hr_plan_length){.values = samples.values[0]};
        struct hr_plan_settings settings = limit(way, 3, 2000), own = settings;
        struct hr_plan *several = plan_several(&samples, NULL, &settings), *one;
        own.max_sum = samples.lengths[0].max_sum;
        own.max_padded = samples.lengths[0].max_padded;
        own.pack = samples.lengths[0].pack;
        own.cost_linear = 1;
        assert_int_equal(hr_plan_new(samples.values[0], 700, &own, &one), 0);
        assert_int_equal(one->entry_count, several->entry_count);
        assert_memory_equal(one->entries, several->entries, (size_t)one->entry_count * sizeof *one->entries);
        hr_plan_free(one);
        hr_plan_free(several);
    }
}

/* All samples fit into one step, which gets only as many repeats as it needs for batches of equally many samples. */
static void a_step_is_padded_by_less_than_one_sample_for_each_batch(void **state) {
    (void)state;
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 3);
    for (int64_t count = 1; count < 60; count++) {
        for (int way = 1; way < 4; way++) {
            draw_samples(&generator, 2, count, 30, &samples);
            struct hr_plan_settings settings = limit(way, 1 + count % 7, 5000);
            settings.tail = HR_PLAN_PAD;
            struct hr_plan *plan = plan_several(&samples, NULL, &settings);
            assert_several(&samples, &settings, plan);
            assert_int_equal(plan->step_count, 1);
            assert_int_equal(plan->entry_count, (count + settings.width - 1) / settings.width * settings.width);
            for (int64_t i = 0; i < plan->batch_count; i++)
                assert_int_equal(plan->starts[i + 1] - plan->starts[i], plan->entry_count / settings.width);
            hr_plan_free(plan);
        }
    }
}

/* A repeat has room in each budget of its batch, and no other batch gets one. */
static void repeats_keep_all_limits(void **state) {
    (void)state;
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 9);
    for (int i = 0; i < 600; i++) {
        draw_samples(&generator, 2, 1 + draw(&generator, 90), 300, &samples);
        struct hr_plan_settings settings = limit(1 + i % 4, 1 + draw(&generator, 8), 100 + draw(&generator, 1500));
        settings.tail = HR_PLAN_PAD;
        struct hr_plan *plan = plan_several(&samples, NULL, &settings);
        assert_several(&samples, &settings, plan);
        hr_plan_free(plan);
    }
}

/* With HR_PLAN_DROP, what is missing does not suffice for a step. */
static void a_plan_drops_less_than_a_step(void **state) {
    (void)state;
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 4);
    draw_samples(&generator, 2, 1000, 300, &samples);
    struct hr_plan_settings settings = limit(4, 4, 0);
    settings.tail = HR_PLAN_DROP;
    struct hr_plan *plan = plan_several(&samples, NULL, &settings);
    assert_int_equal(assert_several(&samples, &settings, plan), 1000 % (4 * 7));
    for (int64_t i = 0; i < plan->batch_count; i++) assert_int_equal(plan->starts[i + 1] - plan->starts[i], 7);
    hr_plan_free(plan);
    settings = limit(0, 4, 900);
    settings.tail = HR_PLAN_DROP;
    settings.max_batch = 0;
    plan = plan_several(&samples, NULL, &settings);
    assert_int_equal(assert_several(&samples, &settings, plan), 0); /* rows are made until they suffice */
    hr_plan_free(plan);
}

static void fewer_samples_than_a_step_are_repeated_or_dropped(void **state) {
    (void)state;
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 5);
    for (int way = 0; way < WAYS; way++) {
        draw_samples(&generator, 2, 3, 9, &samples);
        struct hr_plan_settings settings = limit(way, 8, 100);
        struct hr_plan *plan = plan_several(&samples, NULL, &settings);
        assert_several(&samples, &settings, plan);
        assert_int_equal(plan->step_count, 1);
        assert_int_equal(plan->repeat_count, 5);
        hr_plan_free(plan);
        settings.tail = HR_PLAN_DROP;
        plan = plan_several(&samples, NULL, &settings);
        assert_int_equal(plan->step_count, 0);
        hr_plan_free(plan);
    }
}

static void a_sample_above_one_limit_has_a_batch_for_itself(void **state) {
    (void)state;
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 6);
    for (int way = 0; way < 4; way++) {
        draw_samples(&generator, 2, 400, 300, &samples);
        for (int i = 0; i < 20; i++) samples.values[0][i] = samples.values[1][i] = 0;
        samples.values[0][77] = INT32_MAX;
        samples.values[1][78] = 5001;
        struct hr_plan_settings settings = limit(way, 3, 4000);
        struct hr_plan *plan = plan_several(&samples, NULL, &settings);
        assert_several(&samples, &settings, plan);
        for (int64_t i = 0; i < plan->batch_count; i++)
            for (int64_t k = plan->starts[i]; k < plan->starts[i + 1]; k++)
                if (plan->entries[k] == 77 || plan->entries[k] == 78)
                    assert_int_equal(plan->starts[i + 1] - plan->starts[i], 1);
        hr_plan_free(plan);
    }
}

/* A third of a capacity is no whole share of it, and a row still takes three such samples. */
static void rows_are_filled_exactly(void **state) {
    (void)state;
    static const int32_t thirds[] = {1, 5461, 5462, 21846, 2796202};
    for (int i = 0; i < 5; i++) {
        memset(&samples, 0, sizeof samples);
        samples.length_count = 2;
        samples.count = 300;
        for (int k = 0; k < 300; k++) samples.values[0][k] = samples.values[1][k] = thirds[i];
        for (int k = 0; k < 2; k++) samples.lengths[k].values = samples.values[k];
        struct hr_plan_settings settings = limit(0, 2, 3 * thirds[i]);
        samples.lengths[1].pack = 3 * thirds[i];
        struct hr_plan *plan = plan_several(&samples, NULL, &settings);
        assert_several(&samples, &settings, plan);
        assert_int_equal(plan->batch_count, 100);
        hr_plan_free(plan);
    }
}

/* Sums of more than 32 bits are compared with limits of more than 32 bits. */
static void sums_may_exceed_32_bits(void **state) {
    (void)state;
    memset(&samples, 0, sizeof samples);
    samples.length_count = 2;
    samples.count = 40;
    for (int k = 0; k < 40; k++) samples.values[0][k] = samples.values[1][k] = INT32_MAX;
    for (int k = 0; k < 2; k++) samples.lengths[k].values = samples.values[k];
    for (int way = 1; way < 4; way++) {
        for (int k = 0; k < 2; k++) samples.lengths[k] = (struct hr_plan_length){.values = samples.values[k]};
        struct hr_plan_settings settings = limit(way, 2, 4 * (int64_t)INT32_MAX);
        samples.lengths[1].cost_quadratic = 0;
        struct hr_plan *plan = plan_several(&samples, NULL, &settings);
        assert_several(&samples, &settings, plan);
        assert_int_equal(plan->batch_count, 10);
        hr_plan_free(plan);
    }
}

/* Without a limit, a length only costs; a length of 0 counts as a sample all the same. */
static void lengths_of_zero_are_dealt(void **state) {
    (void)state;
    for (int way = 0; way < WAYS; way++) {
        memset(&samples, 0, sizeof samples);
        samples.length_count = 2;
        samples.count = 100;
        for (int k = 0; k < 2; k++) samples.lengths[k].values = samples.values[k];
        struct hr_plan_settings settings = limit(way, 4, 10);
        struct hr_plan *plan = plan_several(&samples, NULL, &settings);
        assert_int_equal(assert_several(&samples, &settings, plan), 0);
        assert_int_equal(plan->repeat_count, 0);
        hr_plan_free(plan);
    }
}

static void bad_arguments_are_refused(void **state) {
    (void)state;
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 8);
    draw_samples(&generator, 2, 3, 30, &samples);
    samples.values[1][2] = INT32_MAX;
    struct hr_plan_settings good = limit(1, 2, 1000), bad;
    struct hr_plan_length lengths[2], own[2] = {samples.lengths[0], samples.lengths[1]};
    struct hr_plan *plan;
    uint32_t costs[3] = {1, HR_PLAN_COST_MAX, 1};
#define assert_refused(text, length_count, given, ...)                                                                 \
    memcpy(lengths, own, sizeof lengths), bad = good, __VA_ARGS__;                                                     \
    assert_fails(hr_plan_new_several(lengths, length_count, given, 3, &bad, &plan), text)
    own[1].cost_quadratic = 0;
    assert_refused("0 lengths of a sample; give 1 to 4", 0, NULL, (void)0);
    assert_refused("5 lengths of a sample", 5, NULL, (void)0);
    assert_refused("length 1 has no values", 2, NULL, lengths[1].values = NULL);
    assert_refused("max_sum of length 1 is -1", 2, NULL, lengths[1].max_sum = -1);
    assert_refused("max_padded of length 0 is -2", 2, NULL, lengths[0].max_padded = -2);
    assert_refused("pack of length 0 is 16777217", 2, NULL, lengths[0].pack = HR_PLAN_PACK_MAX + 1);
    assert_refused("length 0 has pack and another limit", 2, NULL, lengths[0].pack = 5);
    assert_refused("length 1 has a limit, but others have pack", 2, NULL, lengths[0].pack = 5, lengths[0].max_sum = 0);
    assert_refused("give max_sum, max_padded or pack of a length", 2, NULL,
                   lengths[0].max_sum = lengths[1].max_sum = 0);
    assert_refused("buckets are for one length only", 2, NULL, bad.bucket_count = 1);
    assert_refused("belong to a length here", 2, NULL, bad.max_sum = 5);
    assert_refused("cost_linear and cost_quadratic belong to a length", 2, NULL, bad.cost_linear = 1);
    assert_refused("a step of 0 batches", 2, NULL, bad.width = 0);
    assert_refused("a step of 2 batches for 4 ranks", 2, NULL, bad.ranks = 4);
    assert_refused("for -1 ranks", 2, NULL, bad.ranks = -1);
    assert_refused("max_batch is -1", 2, NULL, bad.max_batch = -1);
    assert_refused("window is -1", 2, NULL, bad.window = -1);
    assert_refused("tail is 3", 2, NULL, bad.tail = (enum hr_plan_tail)3);
    assert_refused("does not fit into 63 bits", 2, NULL, lengths[1].cost_quadratic = 2);
    assert_refused("does not fit into 63 bits", 2, NULL, lengths[1].cost_linear = UINT64_MAX);
    assert_refused("length 0 has a cost, but the costs of the samples are given", 2, costs, (void)0);
    own[0].cost_linear = own[1].cost_linear = 0;
    assert_refused("the cost at position 2 is 0; give 1 to 16777216", 2, costs, costs[2] = 0);
    assert_refused("the cost at position 0 is 16777217", 2, costs, costs[0] = HR_PLAN_COST_MAX + 1);
    samples.values[0][1] = -7;
    assert_refused("length 0 at position 1 is -7", 2, NULL, (void)0);
    assert_fails(hr_plan_new_several(own, 2, NULL, -1, &good, &plan), "-1 samples");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_sample_comes_once_and_limits_are_kept),
        cmocka_unit_test(plans_are_the_same_on_every_machine),
        cmocka_unit_test(one_length_has_the_plan_of_that_length),
        cmocka_unit_test(a_step_is_padded_by_less_than_one_sample_for_each_batch),
        cmocka_unit_test(repeats_keep_all_limits),
        cmocka_unit_test(a_plan_drops_less_than_a_step),
        cmocka_unit_test(fewer_samples_than_a_step_are_repeated_or_dropped),
        cmocka_unit_test(a_sample_above_one_limit_has_a_batch_for_itself),
        cmocka_unit_test(rows_are_filled_exactly),
        cmocka_unit_test(sums_may_exceed_32_bits),
        cmocka_unit_test(lengths_of_zero_are_dealt),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
