/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_TESTS_ORDER_SCENE_H
#define HR_TESTS_ORDER_SCENE_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <headrace/face/face.h>
#include <headrace/headrace.h>

/* Checks that an order is a permutation, for tests of stream orders. */

#define assert_fails(call, text)                                                                                       \
    do {                                                                                                               \
        assert_int_equal(call, -EINVAL);                                                                               \
        assert_non_null(strstr(hr_error_message(), text));                                                             \
    } while (0)

/* Asserts that the indices are 0..n-1, each once. `seen` has room for n bytes. */
static inline void assert_permutation(const int64_t *indices, int64_t n, unsigned char *seen) {
    for (int64_t i = 0; i < n; i++) seen[i] = 0;
    for (int64_t i = 0; i < n; i++) {
        if (indices[i] < 0 || indices[i] >= n || seen[indices[i]])
            fail_msg("n = %lld: index %lld at position %lld is out of range or was there before", (long long)n,
                     (long long)indices[i], (long long)i);
        seen[indices[i]] = 1;
    }
}

/* Asserts that a stream order is a bijection. The arrays have room for n items. */
static inline void assert_bijection(int64_t n, uint64_t seed, uint64_t epoch, int64_t *indices, unsigned char *seen) {
    struct hr_order order;
    assert_int_equal(hr_order_stream(n, seed, epoch, &order), 0);
    assert_int_equal(hr_order_fill(&order, 0, 1, n, indices), 0);
    assert_permutation(indices, n, seen);
}

#endif
