/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_TESTS_SEVERAL_SCENE_H
#define HR_TESTS_SEVERAL_SCENE_H

#include "plan_scene.h"

/* Makes samples with several lengths, and checks plans of them. */

struct samples {
    int32_t values[HR_PLAN_LENGTHS_MAX][MOST_LENGTHS];
    uint32_t costs[MOST_LENGTHS];
    struct hr_plan_length lengths[HR_PLAN_LENGTHS_MAX]; /* with the limits and costs of a test */
    int64_t length_count, count;
};

/* Draws `count` samples. Every fourth one lacks the second length, as texts without an image do. */
static inline void draw_samples(struct hr_mt19937 *generator, int64_t length_count, int64_t count, uint32_t longest,
                                struct samples *samples) {
    struct lengths drawn;
    memset(samples->lengths, 0, sizeof samples->lengths);
    samples->length_count = length_count;
    samples->count = count;
    for (int64_t k = 0; k < length_count; k++) {
        draw_lengths(generator, count, longest, &drawn);
        for (int64_t i = 0; i < count; i++) samples->values[k][i] = k == 1 && i % 4 == 0 ? 0 : drawn.at[i];
        samples->lengths[k].values = samples->values[k];
    }
    for (int64_t i = 0; i < count; i++) samples->costs[i] = 1 + draw(generator, HR_PLAN_COST_MAX);
}

static inline uint64_t cost_of_sample(const struct samples *samples, const uint32_t *costs, int64_t i) {
    uint64_t cost = costs ? costs[i] : 1;
    for (int64_t k = 0; k < samples->length_count; k++) {
        uint64_t value = (uint64_t)samples->values[k][i];
        cost += samples->lengths[k].cost_linear * value + samples->lengths[k].cost_quadratic * value * value;
    }
    return cost;
}

static inline uint64_t cost_of_batch(const struct samples *samples, const struct hr_plan *plan, int64_t batch) {
    uint64_t cost = 0;
    for (int64_t i = plan->starts[batch]; i < plan->starts[batch + 1]; i++)
        cost += cost_of_sample(samples, NULL, position_of(plan, i));
    return cost;
}

static inline void assert_length_keeps_limits(const struct hr_plan_length *length, const struct hr_plan *plan,
                                              int64_t batch) {
    int64_t start = plan->starts[batch], count = plan->starts[batch + 1] - start, sum = 0, longest = 0;
    if (count == 1) return;
    for (int64_t i = start; i < start + count; i++) {
        int64_t value = length->values[position_of(plan, i)];
        sum += value;
        if (value > longest) longest = value;
    }
    assert_true(!length->max_sum || sum <= length->max_sum);
    assert_true(!length->pack || sum <= length->pack);
    assert_true(!length->max_padded || count * longest <= length->max_padded);
}

/* Asserts what assert_plan of plan_scene.h does, for all lengths. Returns how many samples are missing. */
static inline int64_t assert_several(const struct samples *samples, const struct hr_plan_settings *settings,
                                     const struct hr_plan *plan) {
    struct lengths lengths = {.count = samples->count}; /* of 0, for the checks that do not depend on them */
    struct hr_plan_settings own = *settings;
    for (int64_t batch = 0; batch < plan->batch_count; batch++)
        for (int64_t k = 0; k < samples->length_count; k++)
            assert_length_keeps_limits(&samples->lengths[k], plan, batch);
    return assert_plan(&lengths, &own, plan);
}

static inline struct hr_plan *plan_several(const struct samples *samples, const uint32_t *costs,
                                           const struct hr_plan_settings *settings) {
    struct hr_plan *plan = NULL;
    int r = hr_plan_new_several(samples->lengths, samples->length_count, costs, samples->count, settings, &plan);
    if (r < 0) fail_msg("%s", hr_error_message());
    return plan;
}

#endif
