/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <headrace/headrace.h>

#include "base/alloc.h"

enum { MOST_ALLOCATIONS = 100 };

static int add_shapes(hr_builder *builder, hr_value *ret_record) {
    int r = 0;
    for (int i = 0; r >= 0 && i < 300; i++) {
        uint32_t shape;
        hr_value name;
        char text[8];
        int length = snprintf(text, sizeof text, "%d", i);
        r = hr_builder_bytes_of(builder, HR_KIND_TEXT, text, (uint64_t)length, &name);
        if (r == 0) r = hr_builder_shape(builder, HR_SHAPE_DICT, hr_value_none(), &name, 1, &shape);
        if (r == 0) r = hr_builder_record(builder, shape, ret_record);
    }
    return r;
}

static int build(const char *path, hr_frozen **ret_frozen) {
    hr_builder *builder = NULL;
    hr_value record;
    int r = hr_builder_open(path, &builder);
    if (r < 0) return r;
    r = add_shapes(builder, &record);
    if (r == 0) return hr_builder_finish(builder, record, ret_frozen);
    hr_builder_close(builder);
    return r;
}

static int count_files(const char *folder) {
    DIR *files = opendir(folder);
    int count = 0;
    while (readdir(files)) count++;
    closedir(files);
    return count - 2;
}

static void make_folder(char *folder, size_t room) {
    const char *parent = getenv("TMPDIR");
    snprintf(folder, room, "%s/headrace-store-XXXXXX", parent && *parent ? parent : "/tmp");
    assert_non_null(mkdtemp(folder));
}

static void each_allocation_that_fails_is_reported_and_leaves_nothing(void **state) {
    (void)state;
    char folder[256], path[300];
    make_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/image", folder);
    uint64_t nth = 1;
    int r = -ENOMEM;
    for (; r < 0 && nth < MOST_ALLOCATIONS; nth++) {
        hr_frozen *frozen = NULL;
        hr__alloc_fail_at(nth);
        r = build(path, &frozen);
        hr__alloc_fail_at(0);
        if (r < 0) assert_int_equal(r, -ENOMEM);
        hr_frozen_close(frozen);
        unlink(path); /* there when it was the reader that found no memory */
        assert_int_equal(count_files(folder), 0);
    }
    assert_in_range(nth, 8, MOST_ALLOCATIONS - 1);
    rmdir(folder);
}

static void named_temporary_files_are_removed_by_a_closed_builder(void **state) {
    (void)state;
    char folder[256], path[300];
    hr_builder *builder;
    hr_frozen *frozen;
    make_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/image", folder);
    setenv("HEADRACE_FAIL", "tmpfile:EOPNOTSUPP", 1);
    assert_int_equal(hr_builder_open(path, &builder), 0);
    assert_int_equal(count_files(folder), 1);
    hr_builder_close(builder);
    assert_int_equal(count_files(folder), 0);
    assert_int_equal(hr_builder_open(path, &builder), 0);
    assert_int_equal(hr_builder_finish(builder, hr_value_none(), &frozen), 0);
    assert_int_equal(count_files(folder), 1);
    unsetenv("HEADRACE_FAIL");
    hr_frozen_close(frozen);
    unlink(path);
    rmdir(folder);
}

static void a_full_disk_is_an_error_and_no_signal(void **state) {
    (void)state;
    hr_builder *builder;
    assert_int_equal(hr_builder_open(NULL, &builder), 0);
    setenv("HEADRACE_FAIL", "fallocate:ENOSPC", 1);
    hr_value value;
    char *bytes = calloc(1, 1 << 20);
    assert_int_equal(hr_builder_bytes_of(builder, HR_KIND_BYTES, bytes, 1 << 20, &value), -ENOSPC);
    unsetenv("HEADRACE_FAIL");
    assert_non_null(strstr(hr_error_message(), "no room for frozen data"));
    free(bytes);
    hr_builder_close(builder);
}

/* 6 MB: more than one huge page. */
static void build_large(unsigned char *ret_digest) {
    hr_builder *builder;
    hr_frozen *frozen;
    hr_value list;
    int64_t *items;
    struct hr_frozen_info info;
    assert_int_equal(hr_builder_open(NULL, &builder), 0);
    assert_int_equal(hr_builder_ints(builder, HR_KIND_LIST, 750000, &list, &items), 0);
    for (int64_t i = 0; i < 750000; i++) items[i] = i * i;
    assert_int_equal(hr_builder_finish(builder, list, &frozen), 0);
    assert_int_equal(hr_frozen_verify(frozen), 0);
    hr_frozen_look(frozen, &info);
    memcpy(ret_digest, info.digest, sizeof info.digest);
    hr_frozen_close(frozen);
}

static void without_huge_pages_the_image_is_the_same(void **state) {
    (void)state;
    unsigned char digest[16], other[16];
    build_large(digest);
    setenv("HEADRACE_FAIL", "collapse:EINVAL", 1);
    build_large(other);
    unsetenv("HEADRACE_FAIL");
    assert_memory_equal(digest, other, sizeof digest);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_allocation_that_fails_is_reported_and_leaves_nothing),
        cmocka_unit_test(named_temporary_files_are_removed_by_a_closed_builder),
        cmocka_unit_test(without_huge_pages_the_image_is_the_same),
        cmocka_unit_test(a_full_disk_is_an_error_and_no_signal),
    };
    return cmocka_run_group_tests_name("store_alloc", tests, NULL, NULL);
}
