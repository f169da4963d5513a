/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "base/error.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <headrace/face/error.h>
#include <headrace/version.h>

static void a_sum_that_overflows_leaves_the_result_untouched(void **state) {
    (void)state;
    uint64_t sum = 7;
    assert_true(hr__add(1, 2, &sum));
    assert_int_equal(sum, 3);
    assert_false(hr__add(UINT64_MAX, 1, &sum));
    assert_int_equal(sum, 3);
}

static void a_product_that_overflows_leaves_the_result_untouched(void **state) {
    (void)state;
    uint64_t product = 7;
    assert_true(hr__mul(UINT64_C(1) << 32, 1 << 16, &product));
    assert_int_equal(product, UINT64_C(1) << 48);
    assert_false(hr__mul(UINT64_C(1) << 32, UINT64_C(1) << 32, &product));
    assert_int_equal(product, UINT64_C(1) << 48);
}

static void rounding_up_reaches_the_next_step_and_stays_on_one(void **state) {
    (void)state;
    assert_int_equal(hr__round_up(0, 64), 0);
    assert_int_equal(hr__round_up(1, 64), 64);
    assert_int_equal(hr__round_up(64, 64), 64);
    assert_int_equal(hr__round_up(65, 64), 128);
}

static void free_variable(void *pointer_to_variable) {
    void **variable = pointer_to_variable;
    free(*variable);
}

static char *keep(void) {
    hr_cleanup(free_variable) char *text = malloc(6);
    memcpy(text, "taken", 6);
    return hr_take(text);
}

static void a_pointer_taken_out_of_a_scope_survives_it(void **state) {
    (void)state;
    char *text = keep();
    assert_string_equal(text, "taken");
    free(text);
}

static void a_message_gains_a_line_per_layer(void **state) {
    (void)state;
    assert_int_equal(hr__fail(-EINVAL, "arena: %d slots", 0), -EINVAL);
    assert_int_equal(hr__fail_more(-EINVAL, "loader: cannot start"), -EINVAL);
    assert_string_equal(hr_error_message(), "arena: 0 slots\nloader: cannot start");
    hr__fail(-EINVAL, "another");
    assert_string_equal(hr_error_message(), "another");
}

static void a_message_that_is_too_long_is_cut_and_stays_a_string(void **state) {
    (void)state;
    char line[1000];
    memset(line, 'x', sizeof line - 1);
    line[sizeof line - 1] = '\0';
    hr__fail(-EINVAL, "%s", line);
    for (int i = 0; i < 5; i++) hr__fail_more(-EINVAL, "%s", line);
    size_t length = strlen(hr_error_message());
    assert_true(length > 2000 && length < 2048);
}

static void each_code_has_a_text_and_an_exception(void **state) {
    (void)state;
    assert_string_equal(hr_error_text(HR_E_END), "no more batches");
    assert_string_equal(hr_error_exception(HR_E_END), "StopIteration");
    assert_string_equal(hr_error_text(-ENOMEM), strerror(ENOMEM));
    assert_string_equal(hr_error_exception(-ENOMEM), "OSError");
    assert_string_equal(hr_error_text(-5999), "unknown error");
}

static void the_version_is_three_numbers(void **state) {
    (void)state;
    int dots = 0;
    for (const char *c = hr_version(); *c; c++) {
        if (*c == '.')
            dots++;
        else
            assert_in_range(*c, '0', '9');
    }
    assert_int_equal(dots, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sum_that_overflows_leaves_the_result_untouched),
        cmocka_unit_test(a_product_that_overflows_leaves_the_result_untouched),
        cmocka_unit_test(rounding_up_reaches_the_next_step_and_stays_on_one),
        cmocka_unit_test(a_pointer_taken_out_of_a_scope_survives_it),
        cmocka_unit_test(a_message_gains_a_line_per_layer),
        cmocka_unit_test(a_message_that_is_too_long_is_cut_and_stays_a_string),
        cmocka_unit_test(each_code_has_a_text_and_an_exception),
        cmocka_unit_test(the_version_is_three_numbers),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
