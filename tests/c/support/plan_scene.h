/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_TESTS_PLAN_SCENE_H
#define HR_TESTS_PLAN_SCENE_H

#include "order_scene.h"

#include "sampler/permute.h"

/* Makes lengths and checks plans of them. */

enum { MOST_LENGTHS = 4000 };

struct lengths {
    int32_t at[MOST_LENGTHS];
    int64_t count;
};

static inline uint32_t draw(struct hr_mt19937 *generator, uint32_t below) {
    return below ? hr__mt19937_next32(generator) % below : 0;
}

/* Lengths from 0 to `longest`, of which short ones are more frequent. */
static inline void draw_lengths(struct hr_mt19937 *generator, int64_t count, uint32_t longest,
                                struct lengths *lengths) {
    lengths->count = count;
    for (int64_t i = 0; i < count; i++) lengths->at[i] = (int32_t)draw(generator, 1 + draw(generator, longest + 1));
}

static inline int64_t position_of(const struct hr_plan *plan, int64_t i) {
    return plan->entries[i] < 0 ? -1 - plan->entries[i] : plan->entries[i];
}

static inline void assert_batch_keeps_limits(const struct lengths *lengths, const struct hr_plan_settings *settings,
                                             const struct hr_plan *plan, int64_t batch) {
    int64_t start = plan->starts[batch], count = plan->starts[batch + 1] - start, sum = 0, longest = 0;
    assert_true(count > 0);
    for (int64_t i = start; i < start + count; i++) {
        for (int64_t k = start; plan->entries[i] < 0 && k < start + count; k++)
            assert_true(k == i || position_of(plan, k) != position_of(plan, i));
        int64_t length = lengths->at[position_of(plan, i)];
        sum += length;
        if (length > longest) longest = length;
    }
    if (count == 1) return;
    int64_t most = settings->bucket_count ? 1 : count;
    for (int64_t i = settings->bucket_count - 1; i >= 0 && longest <= settings->buckets[i].longest; i--)
        most = settings->buckets[i].batch_size;
    assert_true(count <= most);
    assert_true(!settings->max_batch || count <= settings->max_batch);
    assert_true(!settings->max_padded || count * longest <= settings->max_padded);
    assert_true(!settings->max_sum || sum <= settings->max_sum);
    assert_true(!settings->pack || sum <= settings->pack);
}

/* Asserts that each sample comes once, or at most once with HR_PLAN_DROP, that all steps have a batch for each rank,
 * and that each batch keeps the limits. Returns how many samples are missing. */
static inline int64_t assert_plan(const struct lengths *lengths, const struct hr_plan_settings *settings,
                                  const struct hr_plan *plan) {
    static unsigned char seen[MOST_LENGTHS];
    int64_t repeats = 0, count = 0;
    memset(seen, 0, sizeof seen);
    assert_int_equal(plan->batch_count, plan->step_count * settings->width);
    assert_int_equal(plan->starts[0], 0);
    assert_int_equal(plan->starts[plan->batch_count], plan->entry_count);
    for (int64_t i = 0; i < plan->entry_count; i++) {
        assert_in_range(position_of(plan, i), 0, lengths->count - 1);
        repeats += plan->entries[i] < 0;
        if (plan->entries[i] < 0) continue;
        assert_int_equal(seen[plan->entries[i]], 0);
        seen[plan->entries[i]] = 1;
        count++;
    }
    assert_int_equal(repeats, plan->repeat_count);
    assert_true(repeats < settings->width);
    for (int64_t i = 0; i < plan->batch_count; i++) assert_batch_keeps_limits(lengths, settings, plan, i);
    if (settings->tail != HR_PLAN_DROP) assert_int_equal(count, lengths->count);
    return lengths->count - count;
}

#endif
