/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <headrace/batch.h>
#include <headrace/error.h>

#include "base/alloc.h"

enum { COLUMN = 3000, MOST_ALLOCATIONS = 1000 };

static const struct hr_dtype int64 = {0, 64, 1};

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        int r_ = (call);                                                                                               \
        if (r_ < 0) return r_;                                                                                         \
    } while (0)

/* A batch that needs every buffer, and each more than once. */
static int add_all(hr_batch *batch) {
    static const int64_t numbers[64];
    int64_t shape[] = {4, 8}, strides[] = {1, 8}, gaps[] = {16, 1}, column[] = {COLUMN};
    struct hr_array plain = {numbers, int64, 2, shape, NULL}, dense = plain, strided = plain, arrays[64];
    dense.strides = strides;
    strided.strides = gaps;
    TRY(hr_batch_open(batch, HR_NODE_LIST, 6 * 60));
    for (int i = 0; i < 60; i++) {
        uint32_t storage;
        uint64_t place;
        void *data;
        for (int j = 0; j < 64; j++) arrays[j] = j % 2 ? strided : plain;
        arrays[0].data = numbers;
        TRY(hr_batch_add_array(batch, HR_FLAVOR_TENSOR, &dense));
        TRY(hr_batch_add_stack(batch, HR_FLAVOR_TENSOR, arrays, 64));
        TRY(hr_batch_add_joined(batch, HR_FLAVOR_TENSOR, arrays, 64));
        TRY(hr_batch_add_filled(batch, HR_FLAVOR_TENSOR, int64, 1, column, &data));
        memset(data, 0, COLUMN * sizeof(int64_t));
        TRY(hr_batch_add_reserved(batch, HR_FLAVOR_TENSOR, int64, 1, column, &place));
        TRY(hr_batch_add_storage(batch, numbers, sizeof numbers, &storage));
        TRY(hr_batch_add_view(batch, HR_FLAVOR_TENSOR, storage, 0, &dense));
    }
    return 0;
}

static void each_allocation_that_fails_is_reported_and_leaves_a_usable_writer(void **state) {
    (void)state;
    uint64_t nth = 1, expected_bytes = 0, bytes = 0;
    int r = -ENOMEM;
    for (; r < 0 && nth < MOST_ALLOCATIONS; nth++) {
        hr_batch *batch = NULL;
        hr__alloc_fail_at(nth);
        r = hr_batch_new(&batch);
        if (r >= 0) r = add_all(batch);
        hr__alloc_fail_at(0);
        if (r < 0) {
            assert_int_equal(r, -ENOMEM);
            assert_non_null(strstr(hr_error_message(), "no memory"));
        }
        if (batch) {
            hr_batch_reset(batch);
            assert_int_equal(add_all(batch), 0);
            assert_int_equal(hr_batch_measure(batch, &bytes), 0);
            if (!expected_bytes) expected_bytes = bytes;
            assert_int_equal(bytes, expected_bytes);
        }
        hr_batch_free(batch);
    }
    assert_in_range(nth, 20, MOST_ALLOCATIONS - 1);
}

static void a_batch_like_the_last_needs_no_memory(void **state) {
    (void)state;
    hr_batch *batch = NULL;
    uint64_t bytes = 0;
    assert_int_equal(hr_batch_new(&batch), 0);
    assert_int_equal(add_all(batch), 0);
    hr_batch_reset(batch);
    hr__alloc_fail_at(1);
    assert_int_equal(add_all(batch), 0);
    assert_int_equal(hr_batch_measure(batch, &bytes), 0);
    hr__alloc_fail_at(0);
    hr_batch_free(batch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_allocation_that_fails_is_reported_and_leaves_a_usable_writer),
        cmocka_unit_test(a_batch_like_the_last_needs_no_memory),
    };
    return cmocka_run_group_tests_name("batch allocations", tests, NULL, NULL);
}
