/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <headrace/error.h>
#include <headrace/source.h>

/* Rows that are gathered from memory in several pieces and from lists. */

enum { INT = 0, UINT = 1, FLOAT = 2, WIDTH = 3 };

static const struct hr_dtype INT32 = {INT, 32, 1}, INT64 = {INT, 64, 1};

static struct hr_column column_of(struct hr_dtype dtype, const int64_t *shape, uint32_t ndim,
                                  const struct hr_piece *pieces, uint32_t count) {
    struct hr_column column = {
        .dtype = dtype, .to = dtype, .ndim = ndim, .shape = shape, .pieces = pieces, .piece_count = count};
    for (uint32_t i = 0; i < count; i++) column.row_count += pieces[i].row_count;
    return column;
}

static const int64_t width[] = {WIDTH};

static void rows_of_pieces_follow_each_other(void **state) {
    (void)state;
    static const int32_t first[2][WIDTH] = {{0, 1, 2}, {10, 11, 12}}, last[1][WIDTH] = {{20, 21, 22}};
    struct hr_piece pieces[] = {
        {.data = first, .row_count = 2, .stride_bytes = sizeof *first},
        {.data = NULL, .first_row = 2, .row_count = 0},
        {.data = last, .first_row = 2, .row_count = 1, .stride_bytes = sizeof *last},
    };
    struct hr_column column = column_of(INT32, width, 1, pieces, 3);
    const int64_t indices[] = {2, 0, 1, 2};
    int32_t found[4][WIDTH], expected[4][WIDTH] = {{20, 21, 22}, {0, 1, 2}, {10, 11, 12}, {20, 21, 22}};
    uint64_t row_bytes;
    assert_int_equal(hr_column_check(&column, &row_bytes), 0);
    assert_int_equal(row_bytes, sizeof *found);
    assert_int_equal(hr_gather(&column, indices, 4, 1, found), 0);
    assert_memory_equal(found, expected, sizeof found);
}

static void rows_may_be_transposed_reversed_and_repeated(void **state) {
    (void)state;
    static const int16_t grid[2][WIDTH] = {{0, 1, 2}, {3, 4, 5}};
    static const int64_t shape[] = {2}, strides[] = {WIDTH};
    struct hr_dtype dtype = {INT, 16, 1};
    struct hr_piece columns = {.data = grid, .row_count = WIDTH, .stride_bytes = 2, .strides = strides};
    struct hr_piece backwards = {.data = grid[1], .row_count = 2, .stride_bytes = -(int64_t)sizeof *grid};
    struct hr_piece same = {.data = grid[1], .row_count = 2, .stride_bytes = 0};
    const int64_t indices[] = {2, 0}, both[] = {0, 1};
    int16_t found[2][WIDTH];
    struct hr_column column = column_of(dtype, shape, 1, &columns, 1);
    assert_int_equal(hr_gather(&column, indices, 2, 1, found), 0);
    assert_memory_equal(found, ((int16_t[]){2, 5, 0, 3}), 8);
    column = column_of(dtype, width, 1, &backwards, 1);
    assert_int_equal(hr_gather(&column, both, 2, 1, found), 0);
    assert_memory_equal(found, ((int16_t[]){3, 4, 5, 0, 1, 2}), 12);
    column = column_of(dtype, width, 1, &same, 1);
    assert_int_equal(hr_gather(&column, both, 2, 1, found), 0);
    assert_memory_equal(found, ((int16_t[]){3, 4, 5, 3, 4, 5}), 12);
}

/* Each conversion, of the least and the greatest values, from an odd address. */
static void numbers_are_widened(void **state) {
    (void)state;
    static const struct {
        struct hr_dtype from;
        int64_t values[2];
    } cases[] = {
        {{INT, 8, 1}, {INT8_MIN, INT8_MAX}},    {{INT, 16, 1}, {INT16_MIN, INT16_MAX}},
        {{INT, 32, 1}, {INT32_MIN, INT32_MAX}}, {{UINT, 8, 1}, {0, UINT8_MAX}},
        {{UINT, 16, 1}, {0, UINT16_MAX}},       {{UINT, 32, 1}, {0, UINT32_MAX}},
    };
    static const int64_t shape[] = {2}, indices[] = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char bytes[1 + 2 * sizeof(int64_t)];
        size_t size = cases[i].from.bits / 8;
        for (size_t k = 0; k < 2; k++) memcpy(bytes + 1 + k * size, &cases[i].values[k], size); /* little endian */
        struct hr_piece piece = {.data = bytes + 1, .row_count = 1, .stride_bytes = (int64_t)(2 * size)};
        struct hr_column column = column_of(cases[i].from, shape, 1, &piece, 1);
        column.to = INT64;
        int64_t found[2];
        assert_int_equal(hr_gather(&column, indices, 1, 1, found), 0);
        assert_memory_equal(found, cases[i].values, sizeof found);
    }
}

static void doubles_are_rounded_to_floats(void **state) {
    (void)state;
    static const double values[] = {0.1, 1e300, -1e-300, 16777217};
    static const int64_t indices[] = {3, 2, 1, 0};
    struct hr_piece piece = {.data = values, .row_count = 4, .stride_bytes = sizeof *values};
    struct hr_column column = column_of((struct hr_dtype){FLOAT, 64, 1}, NULL, 0, &piece, 1);
    column.to = (struct hr_dtype){FLOAT, 32, 1};
    float found[4];
    assert_int_equal(hr_gather(&column, indices, 4, 1, found), 0);
    for (int i = 0; i < 4; i++) assert_true(found[i] == (float)values[3 - i]);
}

static const int32_t list_values[] = {0, 1, 2, 3, 4, 5, 6};

static struct hr_piece lists_of(const void *offsets, uint32_t offset_bytes) {
    return (struct hr_piece){
        .data = list_values, .row_count = 3, .offsets = offsets, .offset_bytes = offset_bytes, .element_count = 7};
}

static void lists_of_one_length_are_rows(void **state) {
    (void)state;
    static const int32_t narrow[] = {0, 3, 4, 7};
    static const int64_t wide[] = {0, 3, 4, 7}, indices[] = {2, 0};
    struct hr_piece pieces[] = {lists_of(narrow, 4), lists_of(wide, 8)};
    for (int i = 0; i < 2; i++) {
        struct hr_column column = column_of(INT32, width, 1, &pieces[i], 1);
        int32_t found[2][WIDTH];
        int64_t length;
        assert_int_equal(hr_list_length(&column, 2, &length), 0);
        assert_int_equal(length, WIDTH);
        assert_int_equal(hr_gather(&column, indices, 2, 1, found), 0);
        assert_memory_equal(found, ((int32_t[]){4, 5, 6, 0, 1, 2}), sizeof found);
        assert_int_equal(hr_gather(&column, (int64_t[]){0, 1}, 2, 1, found), -EINVAL);
        assert_non_null(strstr(hr_error_message(), "the list of row 1 has 1 elements, not 3"));
    }
}

static void offsets_outside_of_the_data_are_refused(void **state) {
    (void)state;
    static const int32_t offsets[][4] = {{0, 8, 8, 8}, {-1, 2, 2, 2}, {3, 0, 0, 0}, {INT32_MAX, INT32_MIN, 0, 0}};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        struct hr_piece piece = lists_of(offsets[i], 4);
        struct hr_column column = column_of(INT32, width, 1, &piece, 1);
        int32_t found[WIDTH];
        int64_t length;
        assert_int_equal(hr_list_length(&column, 0, &length), HR_E_CORRUPT);
        assert_int_equal(hr_gather(&column, (int64_t[]){0}, 1, 1, found), HR_E_CORRUPT);
        assert_non_null(strstr(hr_error_message(), "the list of row 0 goes from element"));
    }
}

static void indices_out_of_range_are_refused(void **state) {
    (void)state;
    struct hr_piece piece = {.data = list_values, .row_count = 7, .stride_bytes = 4};
    struct hr_column column = column_of(INT32, NULL, 0, &piece, 1);
    const int64_t bad[] = {7, -1, INT64_MAX, INT64_MIN};
    int32_t found[40];
    for (size_t i = 0; i < 4; i++) {
        int64_t indices[40] = {0};
        indices[39] = bad[i];
        assert_int_equal(hr_gather(&column, indices, 40, 1, found), -ERANGE);
    }
    assert_int_equal(hr_gather(&column, NULL, 0, 1, NULL), 0);
}

/* Batches above 8 MiB are shared by threads, and above 14 MiB written past the caches. */
static void large_batches_are_gathered_by_threads(void **state) {
    (void)state;
    enum { ELEMENTS = 3001, LARGE = 1500 };
    static const int64_t shape[] = {ELEMENTS};
    int32_t *rows = malloc(100 * ELEMENTS * sizeof *rows), *found = malloc((size_t)LARGE * ELEMENTS * sizeof *found);
    int64_t *indices = malloc(LARGE * sizeof *indices);
    for (int i = 0; i < 100 * ELEMENTS; i++) rows[i] = i;
    struct hr_piece piece = {.data = rows, .row_count = 100, .stride_bytes = ELEMENTS * sizeof *rows};
    struct hr_column column = column_of(INT32, shape, 1, &piece, 1);
    for (uint64_t count = 700; count <= LARGE; count += 800) {
        for (int i = 0; i < LARGE; i++) indices[i] = i * 37 % 100;
        assert_int_equal(hr_gather(&column, indices, count, 3, found), 0);
        for (uint64_t i = 0; i < count; i++)
            assert_memory_equal(found + i * ELEMENTS, rows + indices[i] * ELEMENTS, ELEMENTS * sizeof *rows);
        indices[count - 1] = 100;
        assert_int_equal(hr_gather(&column, indices, count, 3, found), -ERANGE);
        assert_non_null(strstr(hr_error_message(), "index 100 is out of range"));
    }
    free(rows);
    free(found);
    free(indices);
}

static void columns_that_cannot_be_gathered_are_refused(void **state) {
    (void)state;
    static const int64_t huge[] = {INT64_MAX, 4}, negative[] = {-1}, strides[] = {1};
    struct hr_piece piece = {.data = list_values, .row_count = 7, .stride_bytes = 4};
    struct hr_piece strided = piece, late = piece, wrong = lists_of(list_values, 2);
    strided.strides = strides;
    late.first_row = 1;
    struct hr_column good = column_of(INT32, NULL, 0, &piece, 1), bad[8];
    for (int i = 0; i < 8; i++) bad[i] = good;
    bad[0].to = (struct hr_dtype){FLOAT, 16, 1};
    bad[1] = column_of(INT32, huge, 2, &piece, 1);
    bad[2] = column_of(INT32, negative, 1, &piece, 1);
    bad[3] = column_of(INT32, width, 1, &strided, 1);
    bad[3].to = INT64;
    bad[4].pieces = &late;
    bad[5] = column_of(INT32, width, 1, &wrong, 1);
    bad[6].row_count = 8;
    bad[7].dtype = bad[7].to = (struct hr_dtype){INT, 4, 1};
    uint64_t row_bytes = 1;
    assert_int_equal(hr_column_check(&good, &row_bytes), 0);
    assert_int_equal(row_bytes, 4);
    for (int i = 0; i < 8; i++) assert_int_equal(hr_column_check(&bad[i], &row_bytes), -EINVAL);
    int64_t length;
    assert_int_equal(hr_list_length(&good, 0, &length), -EINVAL);
    assert_int_equal(hr_list_length(&good, 7, &length), -ERANGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_pieces_follow_each_other),
        cmocka_unit_test(rows_may_be_transposed_reversed_and_repeated),
        cmocka_unit_test(numbers_are_widened),
        cmocka_unit_test(doubles_are_rounded_to_floats),
        cmocka_unit_test(lists_of_one_length_are_rows),
        cmocka_unit_test(offsets_outside_of_the_data_are_refused),
        cmocka_unit_test(indices_out_of_range_are_refused),
        cmocka_unit_test(large_batches_are_gathered_by_threads),
        cmocka_unit_test(columns_that_cannot_be_gathered_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
