/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the verdict: each rule, the order of the rules, and numbers at their limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include <headrace/face/verdict.h>

/* Four busy workers, of which the loop waits 30 % of its time, and eleven free cores: more workers would help. */
static const struct hr_waits BUSY = {
    .wait = 0.3, .workers = 4, .busy = 0.95, .cpu = 0.9, .cores = 16, .free = 11, .first_pass = 1};

static enum hr_verdict_kind kind_of(struct hr_waits waits) {
    return hr_judge(&waits).kind;
}

/* Each cause is added to those before it, and rules them out. */
static void an_earlier_cause_rules_out_later_ones(void **state) {
    struct hr_waits waits = BUSY;
    (void)state;
    waits.busy = 0.8;
    assert_int_equal(kind_of(waits), HR_VERDICT_UNKNOWN);
    waits.busy = 0.95;
    assert_int_equal(kind_of(waits), HR_VERDICT_TOO_FEW);
    waits.throttled = 0.1;
    assert_int_equal(kind_of(waits), HR_VERDICT_NO_CORES);
    waits.cpu = 0.2;
    assert_int_equal(kind_of(waits), HR_VERDICT_STORAGE);
    waits.collate = 0.41;
    assert_int_equal(kind_of(waits), HR_VERDICT_COLLATE);
    waits.network = 0.51;
    assert_int_equal(kind_of(waits), HR_VERDICT_NETWORK);
    waits.slow_samples = 0.51;
    assert_int_equal(kind_of(waits), HR_VERDICT_SLOW_SAMPLES);
    waits.workers = 0;
    assert_int_equal(kind_of(waits), HR_VERDICT_NO_WORKERS);
    waits.lag = 0.51;
    assert_int_equal(kind_of(waits), HR_VERDICT_RANK);
    waits.start = 0.31;
    assert_int_equal(kind_of(waits), HR_VERDICT_STARTING);
    waits.wait = 0.01, waits.start = 0.019;
    assert_int_equal(kind_of(waits), HR_VERDICT_TRAINER);
    waits.is_short = true;
    assert_int_equal(kind_of(waits), HR_VERDICT_SHORT);
}

static void a_rank_that_is_late_in_few_steps_counts_by_its_part_of_the_waiting(void **state) {
    struct hr_waits waits = BUSY;
    (void)state;
    waits.lag = 0.3, waits.lag_of_wait = 0.5;
    assert_int_equal(kind_of(waits), HR_VERDICT_TOO_FEW);
    waits.lag_of_wait = 0.51;
    assert_int_equal(kind_of(waits), HR_VERDICT_RANK);
    waits.lag = 0.25;
    assert_int_equal(kind_of(waits), HR_VERDICT_TOO_FEW);
}

static void a_rank_that_the_others_wait_for_has_a_cause_though_it_does_not_wait(void **state) {
    struct hr_waits waits = BUSY;
    (void)state;
    waits.wait = 0, waits.start = 0.2, waits.lag = 0.9, waits.is_cause = true;
    assert_int_equal(kind_of(waits), HR_VERDICT_TOO_FEW);
    waits.is_short = true;
    assert_int_equal(kind_of(waits), HR_VERDICT_SHORT);
}

static void storage_needs_a_known_delay(void **state) {
    struct hr_waits waits = BUSY;
    (void)state;
    waits.cpu = 0.2, waits.delay = -1;
    assert_int_equal(kind_of(waits), HR_VERDICT_TOO_FEW);
    waits.delay = 0.31;
    assert_int_equal(kind_of(waits), HR_VERDICT_TOO_FEW);
    waits.delay = 0.29;
    struct hr_verdict verdict = hr_judge(&waits);
    assert_int_equal(verdict.kind, HR_VERDICT_STORAGE);
    assert_false(verdict.is_cold);
    assert_int_equal(verdict.workers, 6); /* 4 / (1 - 0.3) */
    waits.first_pass = 1.5;
    verdict = hr_judge(&waits);
    assert_true(verdict.is_cold);
    assert_int_equal(verdict.workers, 0);
}

static void the_network_needs_busy_workers_that_mostly_wait_for_it(void **state) {
    struct hr_waits waits = BUSY;
    (void)state;
    waits.network = 0.51;
    struct hr_verdict verdict = hr_judge(&waits);
    assert_int_equal(verdict.kind, HR_VERDICT_NETWORK);
    assert_string_equal(hr_verdict_name(verdict.kind), "network");
    assert_false(verdict.is_cold);
    waits.first_pass = 1.5;
    assert_true(hr_judge(&waits).is_cold);
    waits.network = 0.5;
    assert_int_equal(kind_of(waits), HR_VERDICT_TOO_FEW);
    waits.network = 0.9, waits.busy = 0.8;
    assert_int_equal(kind_of(waits), HR_VERDICT_UNKNOWN);
    waits.workers = 0, waits.network = 0.16;
    verdict = hr_judge(&waits);
    assert_true(verdict.kind == HR_VERDICT_NO_WORKERS && verdict.is_network && verdict.workers == 8);
    waits.network = 0.14;
    assert_false(hr_judge(&waits).is_network);
}

static void cores_are_full_at_nine_tenths(void **state) {
    struct hr_waits waits = BUSY;
    (void)state;
    waits.free = 1.5;
    assert_int_equal(kind_of(waits), HR_VERDICT_NO_CORES);
    waits.free = 1.7;
    assert_int_equal(kind_of(waits), HR_VERDICT_TOO_FEW);
    waits.cores = 1, waits.free = 0.5;
    assert_int_equal(kind_of(waits), HR_VERDICT_UNKNOWN); /* less is free than one more worker needs */
    waits.cpu = 0.45, waits.delay = 0.45;
    assert_int_equal(kind_of(waits), HR_VERDICT_TOO_FEW);
}

static void the_advice_is_what_the_workers_do(void **state) {
    struct hr_waits waits = BUSY;
    (void)state;
    struct hr_verdict verdict = hr_judge(&waits);
    assert_int_equal(verdict.workers, 6);
    assert_int_equal(verdict.room, 4 + 12);
    waits.wait = 0.99; /* at most ten times as many */
    assert_int_equal(hr_judge(&waits).workers, 40);
    waits.wait = 0.04;
    assert_int_equal(hr_judge(&waits).workers, 5); /* at least one more */
    waits.wait = 0.01;
    assert_int_equal(hr_judge(&waits).workers, 0); /* all four are needed */
    waits.workers = 8, waits.busy = 0.2;
    assert_int_equal(hr_judge(&waits).workers, 2); /* 1.2 * 1.6, rounded up */
    waits.busy = 0;
    assert_int_equal(hr_judge(&waits).workers, 1);
}

static void without_workers_the_free_cores_say_how_many(void **state) {
    struct hr_waits waits = {.wait = 0.5, .delay = -1, .cores = 16, .free = 11, .first_pass = 1};
    (void)state;
    assert_int_equal(hr_judge(&waits).kind, HR_VERDICT_NO_WORKERS);
    assert_int_equal(hr_judge(&waits).workers, 8);
    waits.free = 3.9;
    assert_int_equal(hr_judge(&waits).workers, 3);
    waits.free = 1.5;
    assert_int_equal(hr_judge(&waits).workers, 0);
    waits.cpu = 0.2, waits.delay = 0.05;
    assert_false(hr_judge(&waits).is_storage);
    waits.delay = 0.04; /* it waits, and so would workers, which need no core for that */
    assert_true(hr_judge(&waits).is_storage);
    assert_int_equal(hr_judge(&waits).workers, 8);
}

static void any_numbers_give_a_verdict(void **state) {
    const double numbers[] = {0, -1, 0.5, 1e300, INFINITY, NAN};
    enum { COUNT = sizeof numbers / sizeof *numbers };
    (void)state;
    for (unsigned i = 0; i < COUNT * COUNT * COUNT; i++) {
        double one = numbers[i % COUNT], other = numbers[i / COUNT % COUNT], third = numbers[i / COUNT / COUNT];
        struct hr_waits waits = {.wait = one,
                                 .workers = UINT32_MAX - i % 2 * (UINT32_MAX - 2),
                                 .busy = other,
                                 .cpu = third,
                                 .delay = third,
                                 .cores = other,
                                 .free = third,
                                 .first_pass = one};
        struct hr_verdict verdict = hr_judge(&waits);
        assert_in_range(verdict.kind, HR_VERDICT_SHORT, HR_VERDICT_UNKNOWN);
    }
}

static void each_kind_has_a_name(void **state) {
    (void)state;
    assert_string_equal(hr_verdict_name(HR_VERDICT_SHORT), "short");
    assert_string_equal(hr_verdict_name(HR_VERDICT_SLOW_SAMPLES), "slow samples");
    assert_string_equal(hr_verdict_name(HR_VERDICT_UNKNOWN), "unknown");
    assert_string_equal(hr_verdict_name((enum hr_verdict_kind)99), "unknown");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_earlier_cause_rules_out_later_ones),
        cmocka_unit_test(a_rank_that_is_late_in_few_steps_counts_by_its_part_of_the_waiting),
        cmocka_unit_test(a_rank_that_the_others_wait_for_has_a_cause_though_it_does_not_wait),
        cmocka_unit_test(storage_needs_a_known_delay),
        cmocka_unit_test(the_network_needs_busy_workers_that_mostly_wait_for_it),
        cmocka_unit_test(cores_are_full_at_nine_tenths),
        cmocka_unit_test(the_advice_is_what_the_workers_do),
        cmocka_unit_test(without_workers_the_free_cores_say_how_many),
        cmocka_unit_test(any_numbers_give_a_verdict),
        cmocka_unit_test(each_kind_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
