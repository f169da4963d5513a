/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/several_scene.h"

/* How the batches of a plan with several lengths form steps: balanced by cost, one by one or by rank. */

static struct samples samples;

static uint64_t cost_at(const struct hr_plan *plan, int64_t batch) {
    return cost_of_batch(&samples, plan, batch);
}

/* Returns the cost of the most expensive batch of a step divided by the mean, in thousandths. */
static uint64_t ratio_of(const struct hr_plan *plan, int64_t width, int64_t step) {
    uint64_t sum = 0, most = 0;
    for (int64_t i = step * width; i < (step + 1) * width; i++) {
        uint64_t cost = cost_at(plan, i);
        sum += cost;
        if (cost > most) most = cost;
    }
    return sum ? 1000 * most * (uint64_t)width / sum : 0;
}

static uint64_t worst_ratio(const struct hr_plan *plan, int64_t width) {
    uint64_t worst = 0;
    for (int64_t step = 0; step < plan->step_count; step++) {
        uint64_t ratio = ratio_of(plan, width, step);
        if (ratio > worst) worst = ratio;
    }
    return worst;
}

/* Makes `count` samples that fill a row each: their first length is the capacity, and the second one is their cost. */
static struct hr_plan_settings rows_of(int64_t count, int64_t width, const int32_t *costs) {
    memset(&samples, 0, sizeof samples);
    samples.length_count = 2;
    samples.count = count;
    for (int64_t i = 0; i < count; i++) {
        samples.values[0][i] = 100;
        samples.values[1][i] = costs[i];
    }
    for (int k = 0; k < 2; k++) samples.lengths[k].values = samples.values[k];
    samples.lengths[0].pack = 100;
    samples.lengths[1].cost_linear = 1;
    return (struct hr_plan_settings){.width = width, .tail = HR_PLAN_EXACT};
}

static void rows_of_similar_cost_form_a_step(void **state) {
    (void)state;
    int32_t costs[400];
    for (int i = 0; i < 400; i++) costs[i] = 1000 + (i * 7919 % 400) * 10;
    struct hr_plan_settings settings = rows_of(400, 4, costs);
    struct hr_plan *plan = plan_several(&samples, NULL, &settings);
    assert_several(&samples, &settings, plan);
    assert_in_range(worst_ratio(plan, 4), 1000, 1015);
    for (int64_t i = 1; i < plan->batch_count; i++)
        if (i % 4) assert_true(cost_at(plan, i - 1) >= cost_at(plan, i));
    hr_plan_free(plan);
}

/* Four rows of nearly no cost would make the last step cost twice its mean. Each is put into another step. */
static void cheap_rows_are_spread_over_steps(void **state) {
    (void)state;
    int32_t costs[800];
    for (int i = 0; i < 800; i++) costs[i] = i % 200 ? 100000 : 1;
    struct hr_plan_settings settings = rows_of(800, 8, costs);
    struct hr_plan *plan = plan_several(&samples, NULL, &settings);
    assert_several(&samples, &settings, plan);
    assert_in_range(worst_ratio(plan, 8), 1140, 1150);
    hr_plan_free(plan);
}

/* In a short epoch that would cost more time than it is worth: the steps stay those of similar cost. */
static void cheap_rows_are_not_spread_where_that_takes_long(void **state) {
    (void)state;
    int32_t costs[32];
    for (int i = 0; i < 32; i++) costs[i] = i < 4 ? 1 : 100000 - 3000 * i;
    struct hr_plan_settings settings = rows_of(32, 8, costs);
    struct hr_plan *plan = plan_several(&samples, NULL, &settings);
    assert_several(&samples, &settings, plan);
    int cheap = 0, mixed = 0;
    for (int64_t step = 0; step < 4; step++) {
        int found = 0;
        for (int64_t i = 8 * step; i < 8 * step + 8; i++) found += cost_at(plan, i) == 2;
        cheap += found;
        mixed += found > 0;
    }
    assert_int_equal(cheap, 4);
    assert_int_equal(mixed, 1);
    hr_plan_free(plan);
}

/* 41 full rows are no multiple of 8: samples are dealt to seven more, which cost about as much as others. */
static void missing_rows_get_samples_of_the_cheapest_ones(void **state) {
    (void)state;
    memset(&samples, 0, sizeof samples);
    samples.length_count = 2;
    samples.count = 410;
    for (int64_t i = 0; i < samples.count; i++) samples.values[0][i] = samples.values[1][i] = 10;
    for (int k = 0; k < 2; k++) {
        samples.lengths[k].values = samples.values[k];
        samples.lengths[k].pack = 100;
    }
    samples.lengths[1].cost_linear = 1;
    for (int tail = 0; tail < 3; tail++) {
        struct hr_plan_settings settings = {.width = 8, .tail = (enum hr_plan_tail)tail};
        struct hr_plan *plan = plan_several(&samples, NULL, &settings);
        assert_int_equal(assert_several(&samples, &settings, plan), 0);
        assert_int_equal(plan->repeat_count, 0);
        assert_int_equal(plan->batch_count, 48);
        assert_in_range(worst_ratio(plan, 8), 1000, 1150);
        hr_plan_free(plan);
    }
}

/* Batches of ten samples whose costs are far apart: what they are dealt is exchanged until they cost about the same. */
static void batches_of_a_step_exchange_samples(void **state) {
    (void)state;
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 3);
    draw_samples(&generator, 2, 160, 1000, &samples);
    for (int i = 0; i < 160; i++) samples.values[0][i] = 10;
    samples.lengths[0].max_padded = 100;
    samples.lengths[1].cost_quadratic = 1;
    struct hr_plan_settings settings = {.width = 16, .tail = HR_PLAN_EXACT};
    struct hr_plan *plan = plan_several(&samples, NULL, &settings);
    assert_int_equal(assert_several(&samples, &settings, plan), 0);
    assert_int_equal(plan->batch_count, 16);
    for (int i = 0; i < 16; i++) assert_int_equal(plan->starts[i + 1] - plan->starts[i], 10);
    assert_in_range(worst_ratio(plan, 16), 1000, 1050); /* as they are dealt it is 2535 */
    hr_plan_free(plan);
}

static uint64_t cost_of_rank(const struct hr_plan *plan, int64_t width, int64_t ranks, int64_t step, int64_t rank) {
    uint64_t cost = 0;
    for (int64_t i = rank; i < width; i += ranks) cost += cost_at(plan, step * width + i);
    return cost;
}

static int compare(const void *one, const void *other) {
    int32_t a = *(const int32_t *)one, b = *(const int32_t *)other;
    return (a > b) - (a < b);
}

/* With `ranks`, the sums of the ranks are balanced, and each step keeps its samples for any number of ranks. */
static void sums_of_ranks_are_balanced_and_steps_keep_their_samples(void **state) {
    (void)state;
    static int32_t expected[MOST_LENGTHS], found[MOST_LENGTHS];
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 4);
    draw_samples(&generator, 2, MOST_LENGTHS, 900, &samples);
    for (int k = 0; k < 2; k++) samples.lengths[k].pack = 2000;
    samples.lengths[1].cost_quadratic = 1;
    for (int64_t ranks = 0; ranks <= 16; ranks = ranks ? 2 * ranks : 1) {
        struct hr_plan_settings settings = {.width = 16, .tail = HR_PLAN_EXACT, .ranks = ranks};
        struct hr_plan *plan = plan_several(&samples, NULL, &settings);
        assert_int_equal(assert_several(&samples, &settings, plan), 0);
        for (int64_t step = 0; step < plan->step_count; step++) {
            int64_t first = plan->starts[16 * step], count = plan->starts[16 * step + 16] - first;
            memcpy(found + first, plan->entries + first, (size_t)count * sizeof *found);
            qsort(found + first, (size_t)count, sizeof *found, compare);
        }
        if (ranks == 0) memcpy(expected, found, sizeof found);
        assert_memory_equal(expected, found, sizeof found);
        for (int64_t step = 0; ranks == 4 && step < plan->step_count - 1; step++)
            for (int64_t rank = 1; rank < 4; rank++) {
                uint64_t one = cost_of_rank(plan, 16, 4, step, 0), other = cost_of_rank(plan, 16, 4, step, rank);
                assert_in_range(1000 * other / one, 960, 1040);
            }
        hr_plan_free(plan);
    }
}

/* The same for plans of one length. */
static void sums_of_ranks_are_balanced_with_one_length(void **state) {
    (void)state;
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, 5);
    draw_samples(&generator, 1, 2000, 900, &samples);
    samples.lengths[0].pack = 2000;
    samples.lengths[0].cost_quadratic = 1;
    struct hr_plan_settings settings = {.width = 8, .tail = HR_PLAN_EXACT, .ranks = 2};
    struct hr_plan *plan = plan_several(&samples, NULL, &settings);
    assert_int_equal(assert_several(&samples, &settings, plan), 0);
    for (int64_t step = 0; step < plan->step_count; step++) {
        uint64_t one = cost_of_rank(plan, 8, 2, step, 0), other = cost_of_rank(plan, 8, 2, step, 1);
        assert_in_range(1000 * other / one, 990, 1010);
    }
    hr_plan_free(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_similar_cost_form_a_step),
        cmocka_unit_test(cheap_rows_are_spread_over_steps),
        cmocka_unit_test(cheap_rows_are_not_spread_where_that_takes_long),
        cmocka_unit_test(missing_rows_get_samples_of_the_cheapest_ones),
        cmocka_unit_test(batches_of_a_step_exchange_samples),
        cmocka_unit_test(sums_of_ranks_are_balanced_and_steps_keep_their_samples),
        cmocka_unit_test(sums_of_ranks_are_balanced_with_one_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
