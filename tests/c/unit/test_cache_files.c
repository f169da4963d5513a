/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/cache_scene.h"

#include <headrace/face/cache_files.h>

#include "cache_npz.h"

/* Array files as objects of the cache: headers, compressed archives, the index, and all of them damaged. */

static char folder[96];

static int open_files(void **state) {
    open_scene(state);
    snprintf(folder, sizeof folder, "%s/files", root);
    return mkdir(folder, 0700);
}

static void put_file(const char *name, const void *bytes, size_t count) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    check(file && fwrite(bytes, 1, count, file) == count && fclose(file) == 0);
}

/* Makes a .npy file of version 1 with this header and `count` bytes of data. Returns its size. */
static size_t make_npy(unsigned char *file, const char *header, const void *data, size_t count) {
    size_t length = strlen(header);
    memcpy(file, "\x93NUMPY\x01\x00", 8);
    file[8] = (unsigned char)length;
    file[9] = (unsigned char)(length >> 8);
    memcpy(file + 10, header, length);
    memcpy(file + 10 + length, data, count);
    return 10 + length + count;
}

static void put_npy(const char *name, const char *header, const void *data, size_t count) {
    unsigned char file[4096];
    put_file(name, file, make_npy(file, header, data, count));
}

static int plan_folder(hr_files_plan **ret_plan) {
    const char *paths[] = {folder};
    return hr_files_plan_new(paths, 1, ret_plan);
}

/* Plans and fills, and returns the first error. */
static int warm(hr_cached **ret_cached) {
    struct hr_cache_request request = request_for("files", NULL);
    hr_files_plan *plan;
    int r = plan_folder(&plan);
    if (r < 0) return r;
    hr_cache_build *build = begin(&request);
    r = hr_files_fill(plan, build, 2, NULL, NULL);
    if (r >= 0) r = hr_cache_build_finish(build, NULL, ret_cached);
    if (r < 0) hr_cache_build_fail(build, "", 0, 0);
    hr_files_plan_free(plan);
    return r;
}

/* ---- headers ---- */

static void headers_of_all_versions_are_read(void **state) {
    static const int32_t numbers[6] = {1, 2, 3, 4, 5, 6};
    unsigned char file[256];
    struct hr_cached_info info;
    struct hr_files_array array;
    hr_cached *cached;
    uint64_t count, first;
    (void)state;
    put_npy("c.npy", "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }          \n", numbers,
            sizeof numbers);
    put_npy("f.npy", "{\"shape\": (6,), 'fortran_order': True, 'descr':'|u1'}\n", numbers, 6);
    put_npy("scalar.npy", "{'descr': '<f8', 'fortran_order': False, 'shape': (), }\n", numbers, 8);
    put_npy("two.npy", "{'descr': '<i4', 'fortran_order': False, 'shape': (1L, 6L), }\n", numbers, sizeof numbers);
    size_t size = make_npy(file, "{'descr': '>U1', 'fortran_order': False, 'shape': (1,), }\n", numbers, 4);
    memmove(file + 12, file + 10, size - 10);
    file[6] = 3;
    file[10] = file[11] = 0;
    put_file("v3.npy", file, size + 2);
    must(warm(&cached));
    hr_cached_look(cached, &info);
    must(hr_files_count(info.data, info.bytes, &count));
    assert_int_equal(count, 5);
    check(hr_files_find(info.data, info.bytes, "c", 1, &first, &count) == 1 && count == 1);
    must(hr_files_read(info.data, info.bytes, first, &array));
    check(array.dimension_count == 2 && array.dimensions[0] == 2 && array.dimensions[1] == 3 && !array.is_fortran);
    check(array.bytes == sizeof numbers && memcmp(array.data, numbers, sizeof numbers) == 0);
    check((uintptr_t)array.data % 64 == 0 && array.dtype_bytes == 3 && memcmp(array.dtype, "<i4", 3) == 0);
    check(hr_files_find(info.data, info.bytes, "f", 1, &first, &count) == 1);
    must(hr_files_read(info.data, info.bytes, first, &array));
    check(array.is_fortran && array.bytes == 6);
    check(hr_files_find(info.data, info.bytes, "d", 1, &first, &count) == 0);
    check(hr_files_read(info.data, info.bytes, 5, &array) == -ERANGE);
    hr_cached_detach(cached);
}

static void headers_that_cannot_be_cached_are_named(void **state) {
    static const struct {
        const char *header, *text;
    } cases[] = {
        {"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", "Python objects cannot be shared"},
        {"{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,), }\n", "records"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (4,), }\n", "is truncated"},
        {"{'descr': '<i4', 'fortran_order': Maybe, 'shape': (1,), }\n", "is not a .npy file"},
        {"{'descr': '<i4', 'shape': (1,), }\n", "is not a .npy file"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999, 99999999999999), }\n",
         "is not a .npy file"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999999999999,), }\n", "is not a .npy file"},
        {"{'descr': '<i4", "is not a .npy file"},
        {"", "is not a .npy file"},
    };
    hr_files_plan *plan;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_npy("bad.npy", cases[i].header, "1234", 4);
        assert_refused(plan_folder(&plan), -EINVAL, cases[i].text);
        check(strstr(hr_error_message(), "bad.npy") != NULL);
    }
}

static void paths_that_name_no_arrays_are_refused(void **state) {
    const char *missing[] = {"/does/not/exist"}, *pattern[] = {"/does/not/*.npy"}, *other[] = {"/etc/passwd"};
    hr_files_plan *plan;
    (void)state;
    assert_refused(plan_folder(&plan), -ENOENT, "no .npy or .npz file in");
    assert_refused(hr_files_plan_new(missing, 1, &plan), -ENOENT, "/does/not/exist");
    assert_refused(hr_files_plan_new(pattern, 1, &plan), -ENOENT, "no file matches");
    assert_refused(hr_files_plan_new(other, 1, &plan), -EINVAL, "is not a .npy or .npz file");
    assert_refused(hr_files_plan_new(other, 0, &plan), -EINVAL, "give files");
}

static void two_files_of_one_stem_are_named(void **state) {
    static const char header[] = "{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }\n";
    char path[160];
    hr_files_plan *plan;
    (void)state;
    snprintf(path, sizeof path, "%s/a", folder);
    mkdir(path, 0700);
    put_npy("x.npy", header, "1", 1);
    put_npy("a/x.npy", header, "2", 1);
    assert_refused(plan_folder(&plan), -EEXIST, "would both be found as 'x'");
}

/* ---- archives, made by numpy.savez_compressed ---- */

static void compressed_members_are_unpacked(void **state) {
    struct hr_cached_info info;
    struct hr_files_array array;
    hr_cached *cached;
    uint64_t first, count;
    (void)state;
    put_file("scene.npz", npz, sizeof npz);
    must(warm(&cached));
    hr_cached_look(cached, &info);
    check(hr_files_find(info.data, info.bytes, "scene", 5, &first, &count) == 1 && count == 2);
    must(hr_files_read(info.data, info.bytes, first, &array));
    check(array.is_member && array.member_bytes == 1 && *array.member == 'a' && array.bytes == 1000);
    for (int i = 0; i < 1000; i++) check(((const unsigned char *)array.data)[i] == (unsigned char)(i / 5));
    must(hr_files_read(info.data, info.bytes, first + 1, &array));
    check(array.bytes == 8 && *(const double *)array.data == 1.5);
    must(hr_cached_verify(cached));
    hr_cached_detach(cached);
}

/* Each byte of an archive changed, and each length: an error or the right data, no crash and no endless loop. */
static void damaged_archives_are_errors(void **state) {
    unsigned char changed[sizeof npz];
    hr_cached *cached;
    (void)state;
    for (size_t i = 0; i < sizeof npz; i++) {
        memcpy(changed, npz, sizeof npz);
        changed[i] ^= 0xFF;
        put_file("scene.npz", changed, sizeof npz);
        if (warm(&cached) < 0) continue;
        hr_cached_detach(cached);
        must(hr_cache_remove(cache, "files", "0", 0));
    }
    for (size_t length = 0; length < sizeof npz; length++) {
        put_file("scene.npz", npz, length);
        check(warm(&cached) == -EINVAL);
    }
}

static void damaged_indexes_are_errors(void **state) {
    struct hr_cached_info info;
    struct hr_files_array array;
    hr_cached *cached;
    uint64_t count, first;
    (void)state;
    put_file("scene.npz", npz, sizeof npz);
    must(warm(&cached));
    hr_cached_look(cached, &info);
    unsigned char *copy = malloc(info.bytes);
    for (uint64_t i = 1024; i < info.bytes; i++) {
        memcpy(copy, info.data, info.bytes);
        copy[i] ^= 0xFF;
        if (hr_files_count(copy, info.bytes, &count) < 0) continue;
        for (uint64_t k = 0; k < count && k < 4; k++) {
            if (hr_files_read(copy, info.bytes, k, &array) < 0) continue;
            const unsigned char *data = array.data;
            check(data >= copy && data + array.bytes <= copy + info.bytes);
        }
        int r = hr_files_find(copy, info.bytes, "scene", 5, &first, &count);
        check(r == 0 || r == 1 || r == HR_E_CORRUPT);
    }
    check(hr_files_count(copy, 10, &count) == HR_E_CORRUPT);
    free(copy);
    hr_cached_detach(cached);
}

/* ---- keys ---- */

static char found[512];

static void note_missing(void *context, const char *scene, const char *missing) {
    (void)context;
    snprintf(found + strlen(found), sizeof found - strlen(found), "%s:%s ", scene, missing);
}

static void scenes_that_lack_keys_are_listed(void **state) {
    static const char *const names[] = {"s1_feat", "s1_obj_feat", "s2_feat", "s3_obj_feat", "s4"};
    hr_files_plan *plan;
    char name[64];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(name, sizeof name, "%s.npy", names[i]);
        put_npy(name, "{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }\n", "1", 1);
    }
    put_file("z.npz", npz, sizeof npz);
    must(plan_folder(&plan));
    found[0] = '\0';
    assert_int_equal(hr_files_check_keys(plan, "feat,obj_feat", note_missing, NULL), 4);
    assert_string_equal(found, "s2:obj_feat s3:feat s4:feat,obj_feat z:feat,obj_feat ");
    assert_refused(hr_files_check_keys(plan, " , ", note_missing, NULL), -EINVAL, "no keys are given");
    hr_files_plan_free(plan);
}

#define T(test) cmocka_unit_test_setup_teardown(test, open_files, close_scene)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(headers_of_all_versions_are_read),
        T(headers_that_cannot_be_cached_are_named),
        T(paths_that_name_no_arrays_are_refused),
        T(two_files_of_one_stem_are_named),
        T(compressed_members_are_unpacked),
        T(damaged_archives_are_errors),
        T(damaged_indexes_are_errors),
        T(scenes_that_lack_keys_are_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
