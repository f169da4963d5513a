/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../unit/lines_scene.h"

#include "base/alloc.h"

/* Each allocation of indexing and opening text files fails in turn. */

enum { MOST_ALLOCATIONS = 100 };

static int make(const char *const *paths, hr_index **ret_index) {
    hr_indexing *indexing = NULL;
    int r = hr_indexing_start(HR_INDEX_LINES, paths, 2, false, &indexing);
    if (r == 0) r = hr_indexing_wait(indexing, in_s(PATIENCE_S));
    if (r == 1) r = hr_indexing_take(indexing, ret_index);
    hr_indexing_free(indexing);
    return r;
}

static void a_failed_allocation_is_reported_and_frees_all(void **state) {
    (void)state;
    puts_at("a", "one\ntwo\n");
    puts_at("b", "three\n");
    const char *paths[] = {path_of("a"), path_of("b")};
    for (int nth = 1; nth < MOST_ALLOCATIONS; nth++) {
        struct text text = {NULL, NULL};
        hr__alloc_fail_at((uint64_t)nth);
        int r = make(paths, &text.index);
        if (r == 0) r = hr_lines_open(paths, 2, text.index, &text.lines);
        hr__alloc_fail_at(0);
        if (r == 0) {
            assert_true(nth > 10);
            assert_line(text.lines, 2, "three");
            close_text(&text);
            return;
        }
        assert_refused(r, -ENOMEM, "memory");
        close_text(&text);
    }
    fail_msg("opening needs more than %d allocations", MOST_ALLOCATIONS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_failed_allocation_is_reported_and_frees_all, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
