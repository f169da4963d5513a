/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/order_scene.h"

#include "base/alloc.h"

/* Each allocation of a mixture fails in turn. */

enum { MOST_ALLOCATIONS = 10 };

static void a_failed_allocation_of_a_mixture_is_reported(void **state) {
    (void)state;
    const struct hr_mixture_source sources[] = {{"a", 40, 5}, {"b", 5000, 2}};
    const struct hr_mixture_settings settings = {HR_MIXTURE_FIRST, 0, 0, 0};
    for (int nth = 1; nth < MOST_ALLOCATIONS; nth++) {
        hr_mixture *mixture = NULL;
        hr__alloc_fail_at((uint64_t)nth);
        int r = hr_mixture_new(sources, 2, &settings, &mixture);
        hr__alloc_fail_at(0);
        if (r == 0) {
            assert_true(nth > 4);
            hr_mixture_free(mixture);
            return;
        }
        assert_int_equal(r, -ENOMEM);
        assert_non_null(strstr(hr_error_message(), "sampler: no memory for"));
        assert_null(mixture);
    }
    fail_msg("the mixture needs more than %d allocations", MOST_ALLOCATIONS);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_failed_allocation_of_a_mixture_is_reported)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
