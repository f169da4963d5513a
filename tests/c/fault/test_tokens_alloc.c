/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../unit/tokens_scene.h"

#include "base/alloc.h"

/* Each allocation of opening and scanning token files fails in turn. */

enum { MOST_ALLOCATIONS = 100 };

static int open_and_scan(hr_tokens **ret_tokens) {
    struct hr_tokens_options options = {.unit = HR_TOKENS_SEPARATED, .separator = 2};
    int r = hr_tokens_open(put_numbered(6), 6, &options, ret_tokens);
    return r < 0 ? r : hr_tokens_scan(*ret_tokens, UINT64_MAX);
}

static void a_failed_allocation_is_reported_and_frees_all(void **state) {
    (void)state;
    for (int nth = 1; nth < MOST_ALLOCATIONS; nth++) {
        hr_tokens *tokens = NULL;
        hr__alloc_fail_at((uint64_t)nth);
        int r = open_and_scan(&tokens);
        hr__alloc_fail_at(0);
        if (r == 1) {
            assert_true(nth > 10);
            assert_sample(tokens, 12, 3);
            hr_tokens_close(tokens);
            return;
        }
        assert_refused(r, -ENOMEM, "no memory");
        hr_tokens_close(tokens);
    }
    fail_msg("opening needs more than %d allocations", MOST_ALLOCATIONS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_failed_allocation_is_reported_and_frees_all, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
