/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/shared_scene.h"

#include <math.h>
#include <sys/resource.h>

/* Shared arrays in one process: what can be made, what is refused, and atomic changes of elements. */

static struct hr_shared_plan plan_of(const char *dtype, uint32_t count, uint64_t first, uint64_t second) {
    struct hr_shared_plan plan = {.dimension_count = count, .dimensions = {first, second}};
    snprintf(plan.dtype, sizeof plan.dtype, "%s", dtype);
    return plan;
}

static void an_array_has_its_fill_and_its_plan(void **state) {
    static const struct {
        const char *dtype;
        uint64_t bytes;
    } cases[] = {{"|b1", 1}, {"|u1", 1}, {"<i2", 2}, {"<f2", 2}, {"<f4", 4}, {"<u8", 8}, {"<c8", 8}, {"<c16", 16}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hr_shared_plan plan = plan_of(cases[i].dtype, 2, 300, 700), found;
        struct hr_shared_info info;
        struct hr_cached_info object;
        unsigned char fill[16];
        memset(fill, (int)i + 1, sizeof fill);
        open_scene(state);
        must(try_to_open_array(&plan, fill));
        hr_shared_look(shared, &info);
        assert_int_equal(info.bytes, 300 * 700 * cases[i].bytes);
        assert_int_equal(info.row_count, 300);
        assert_int_equal(info.stripe_count, 64);
        for (uint64_t at = 0; at < info.bytes; at++) check(((unsigned char *)info.data)[at] == i + 1);
        hr_cached_look(cached, &object);
        must(hr_shared_read_plan(object.path, &found));
        assert_memory_equal(&found, &plan, sizeof plan);
        must(hr_cached_verify(cached));
        must(hr_shared_flush(shared));
        close_shared_scene(state);
    }
}

static void bad_plans_are_refused(void **state) {
    const struct {
        struct hr_shared_plan plan;
        int code;
        const char *text;
    } cases[] = {
        {plan_of("|O", 1, 1, 0), -EINVAL, "the dtype '|O'"},
        {plan_of("<f3", 1, 1, 0), -EINVAL, "the dtype '<f3'"},
        {plan_of(">f4", 1, 1, 0), -EINVAL, "byte order"},
        {plan_of("", 1, 1, 0), -EINVAL, "the dtype ''"},
        {plan_of("<f4", 2, 3, 0), -EINVAL, "dimension 1"},
        {plan_of("<f4", 33, 1, 1), -EINVAL, "33 dimensions"},
        {plan_of("<f4", 2, UINT64_C(1) << 40, UINT64_C(1) << 40), -EINVAL, "larger than any machine"},
        {plan_of("<f4", 1, UINT64_C(1) << 55, 0), -EINVAL, "larger than any machine"},
        {plan_of("<f4", 1, UINT64_C(1) << 40, 0), -ENOSPC, "no room for 'counters'"},
    };
    open_scene(state);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(try_to_open_array(&cases[i].plan, NULL), cases[i].code, cases[i].text);
    struct hr_shared_plan endless = counters;
    memset(endless.dtype, 'i', sizeof endless.dtype);
    assert_refused(try_to_open_array(&endless, NULL), -EINVAL, "the dtype");
    assert_int_equal(count_in("objects"), 0);
    open_array();
    close_shared_scene(state);
}

/* If memory is short, making the array is an error, and a later write cannot be. */
static void without_room_nothing_is_made(void **state) {
#ifdef HR_FAILPOINTS
    static const char *const failures[] = {"fallocate:ENOSPC", "statfs_full:ENOSPC", "shared_write:ENOSPC",
                                           "write_record:ENOSPC"};
    open_scene(state);
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        setenv("HEADRACE_FAIL", failures[i], 1);
        check(try_to_open_array(&counters, NULL) == -ENOSPC);
    }
    setenv("HEADRACE_FAIL", "statfs_btrfs:EIO", 1);
    assert_refused(try_to_open_array(&counters, NULL), -EOPNOTSUPP, "copies on write");
    unsetenv("HEADRACE_FAIL");
    assert_int_equal(count_in("objects"), 0);
    open_array();
    close_shared_scene(state);
#else
    (void)state;
    skip();
#endif
}

static void a_damaged_array_is_refused_and_not_replaced(void **state) {
    struct hr_cached_info info;
    char path[HR__PATH_BYTES];
    (void)state;
    hr_cached_look(cached, &info);
    snprintf(path, sizeof path, "%s", info.path);
    struct hr__shared_head whole = *shared->head;
    hr_shared *none = NULL;
    shared->head->version = 99;
    assert_refused(hr_shared_open(cached, &none), HR_E_VERSION, "has format 99");
    shared->head->version = whole.version;
    shared->head->magic = 1;
    assert_refused(hr_shared_open(cached, &none), HR_E_CORRUPT, "is not a shared array");
    shared->head->magic = whole.magic;
    uint64_t *fields[] = {&shared->head->locks_at, &shared->head->members_at, &shared->head->data_at,
                          &shared->head->bytes, &shared->head->plan.dimensions[0]};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        uint64_t kept = *fields[i];
        *fields[i] = UINT64_MAX - 63;
        assert_refused(hr_shared_open(cached, &none), HR_E_CORRUPT, "is damaged");
        *fields[i] = kept;
    }
    uint64_t bytes = shared->file_bytes;
    shared = hr_shared_close(shared);
    check(truncate(path, (off_t)bytes - 1) == 0); /* after it was attached */
    assert_refused(hr_shared_open(cached, &none), HR_E_CORRUPT, "is truncated");
    assert_refused(hr_cached_verify(cached), HR_E_CORRUPT, "is damaged");
    cached = hr_cached_detach(cached);
    check(truncate(path, 5000) == 0);
    assert_refused(hr_cache_attach(cache, "counters", "0", &cached), HR_E_CORRUPT, "it was truncated");
    assert_refused(try_to_open_array(&counters, NULL), HR_E_CORRUPT, "truncated or has a damaged record");
    struct hr_cache_request request = request_for("counters", "a stamp");
    hr_cache_build *build;
    assert_refused(ask(&request, &cached, &build), -EBUSY, "is not replaced by other data");
    must(hr_cache_remove(cache, "counters", "0", 0));
    open_array();
}

static void other_data_does_not_take_its_name(void **state) {
    struct hr_cache_request request = request_for("counters", "a stamp"), raw = request_for("raw", "s");
    hr_cached *other = NULL;
    hr_cache_build *build;
    hr_shared *none = NULL;
    (void)state;
    assert_refused(ask(&request, &other, &build), -EBUSY, "is not replaced by other data");
    other = put_object(&raw, 1);
    assert_refused(hr_shared_open(other, &none), -EINVAL, "is not a shared array");
    hr_cached_detach(other);
    assert_null(hr_shared_close(NULL));
}

static void a_file_that_cannot_be_written_is_refused(void **state) {
    struct hr_cached_info info;
    hr_shared *none = NULL;
    (void)state;
    hr_cached_look(cached, &info);
    if (geteuid() == 0) {
        check(chown(info.path, 12345, 12345) == 0);
        assert_refused(hr_shared_open(cached, &none), -EPERM, "belongs to user 12345");
        must(hr_cached_verify(cached));
        check(chown(info.path, 0, 0) == 0);
        return;
    }
    check(chmod(info.path, 0400) == 0);
    assert_refused(hr_shared_open(cached, &none), -EACCES, "to write");
    must(hr_cached_verify(cached));
}

/* ---- elements ---- */

static void elements_are_added_to_and_raised(void **state) {
    static const char *const dtypes[] = {"<i4", "<i8", "<f4", "<f8"};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        struct hr_shared_plan plan = plan_of(dtypes[i], 1, 5, 0);
        union {
            int32_t i4[3];
            int64_t i8[3];
            float f4[3];
            double f8[3];
        } values, before;
        const uint64_t places[] = {4, 0, 4};
        for (int k = 0; k < 3; k++) switch (i) {
            case 0:
                values.i4[k] = k - 7;
                break;
            case 1:
                values.i8[k] = k - 7;
                break;
            case 2:
                values.f4[k] = (float)(k - 7);
                break;
            default:
                values.f8[k] = k - 7;
                break;
            }
        open_scene(state);
        must(try_to_open_array(&plan, NULL));
        must(hr_shared_add(shared, places, 3, &values, 0, &before));
        must(hr_shared_add(shared, places, 2, &values, 1, NULL));
        must(hr_shared_maximum(shared, places, 2, &values, 0, NULL));
        struct hr_shared_info info;
        hr_shared_look(shared, &info);
        double first = i == 0   ? ((int32_t *)info.data)[0]
                       : i == 1 ? (double)((int64_t *)info.data)[0]
                       : i == 2 ? ((float *)info.data)[0]
                                : ((double *)info.data)[0];
        double last = i == 0   ? ((int32_t *)info.data)[4]
                      : i == 1 ? (double)((int64_t *)info.data)[4]
                      : i == 2 ? ((float *)info.data)[4]
                               : ((double *)info.data)[4];
        double third = i == 0 ? before.i4[2] : i == 1 ? (double)before.i8[2] : i == 2 ? before.f4[2] : before.f8[2];
        assert_true(first == -6); /* -6, then -13, then the larger one of that and -6 */
        assert_true(last == -7);  /* -7 - 5, then -19, then the larger one of that and -7 */
        assert_true(third == -7); /* in front of the second change of element 4 */
        close_shared_scene(state);
    }
}

static void integers_wrap_and_nan_is_the_largest(void **state) {
    struct hr_shared_plan plan = plan_of("<i4", 1, 1, 0), floats = plan_of("<f4", 1, 2, 0);
    const uint64_t place = 0, other = 1;
    int32_t largest = INT32_MAX, one = 1, before = 0;
    float nan = NAN, number = 3;
    struct hr_shared_info info;
    open_scene(state);
    must(try_to_open_array(&plan, &largest));
    must(hr_shared_add(shared, &place, 1, &one, 1, &before));
    hr_shared_look(shared, &info);
    assert_int_equal(before, INT32_MAX);
    assert_int_equal(*(int32_t *)info.data, INT32_MIN);
    close_array();
    must(hr_cache_remove(cache, "counters", "0", 0));
    must(try_to_open_array(&floats, &number));
    hr_shared_look(shared, &info);
    must(hr_shared_maximum(shared, &place, 1, &nan, 1, NULL));
    must(hr_shared_maximum(shared, &place, 1, &number, 1, NULL));
    assert_true(isnan(((float *)info.data)[place]) && ((float *)info.data)[other] == number);
    close_shared_scene(state);
}

static void bad_elements_change_nothing(void **state) {
    const uint64_t places[] = {0, ROWS};
    int64_t one = 1;
    (void)state;
    assert_refused(hr_shared_add(shared, places, 2, &one, 1, NULL), -ERANGE, "no element 128");
    assert_int_equal(elements()[0], 0);
    close_array();
    must(hr_cache_remove(cache, "counters", "0", 0));
    struct hr_shared_plan plan = plan_of("<u8", 1, 2, 0);
    must(try_to_open_array(&plan, NULL));
    assert_refused(hr_shared_maximum(shared, places, 1, &one, 1, NULL), -EINVAL, "without a lock");
}

/* ---- locks, as far as one process has to do with them ---- */

static void a_lock_is_not_taken_twice_by_a_thread(void **state) {
    struct hr_shared_hold hold, none;
    (void)state;
    lock_all(&hold);
    assert_int_equal(hold.dead_count, 0);
    assert_refused(lock_rows(0, HR_SHARED_ALL, in_s(PATIENCE_S), &none), -EDEADLK, "would wait for itself");
    assert_refused(lock_rows(5, 1, in_s(PATIENCE_S), &none), -EDEADLK, "would wait for itself");
    must(hr_shared_unlock(shared, &hold));
    assert_refused(hr_shared_unlock(shared, &hold), HR_E_STATE, "it was ended already");
    must(lock_rows(5, 1, in_s(PATIENCE_S), &hold));
    assert_refused(lock_rows(100, 1, in_s(PATIENCE_S), &none), -EDEADLK, "with one lock");
    must(hr_shared_unlock(shared, &hold));
    lock_all(&hold); /* now as all stripes */
    assert_int_equal(hold.count, HR_SHARED_STRIPES);
    must(hr_shared_unlock(shared, &hold));
}

/* The same thread has the lock again, so neither the process nor the thread tells the two holds apart. */
static void an_ended_hold_does_not_end_another(void **state) {
    (void)state;
    for (int is_of_rows = 0; is_of_rows < 2; is_of_rows++) {
        struct hr_shared_hold ended, hold, next;
        uint64_t count = is_of_rows ? ROWS / 2 : HR_SHARED_ALL;
        must(lock_rows(0, count, in_s(PATIENCE_S), &ended));
        must(hr_shared_unlock(shared, &ended));
        must(lock_rows(0, count, in_s(PATIENCE_S), &hold));
        assert_refused(hr_shared_unlock(shared, &ended), HR_E_STATE, "it was ended already");
        assert_refused(hr_shared_give_back(shared, &ended), HR_E_STATE, "it was ended already");
        assert_refused(lock_rows(0, count, in_s(PATIENCE_S), &next), -EDEADLK, "would wait for itself");
        must(hr_shared_unlock(shared, &hold));
        must(lock_rows(0, count, in_s(PATIENCE_S), &next));
        must(hr_shared_unlock(shared, &next));
    }
}

static void another_handle_of_the_process_is_named(void **state) {
    struct hr_shared_hold hold, none;
    struct hr_shared_wait wait = wait_until(0);
    hr_shared *other = NULL;
    (void)state;
    must(hr_shared_open(cached, &other));
    lock_all(&hold);
    assert_refused(hr_shared_lock(other, 0, HR_SHARED_ALL, &wait, &none), -ETIMEDOUT, "another handle of this process");
    must(hr_shared_unlock(shared, &hold));
    hr_shared_close(other);
}

static void bad_rows_are_refused(void **state) {
    struct hr_shared_hold hold;
    (void)state;
    assert_refused(lock_rows(ROWS, 1, 0, &hold), -ERANGE, "has 128 rows");
    assert_refused(lock_rows(1, ROWS, 0, &hold), -ERANGE, "no 128 rows from row 1");
    assert_refused(lock_rows(0, 0, 0, &hold), -ERANGE, "no 0 rows");
    assert_refused(lock_rows(2, UINT64_MAX - 1, 0, &hold), -ERANGE, "has 128 rows");
    hold = (struct hr_shared_hold){.first = UINT32_MAX, .count = 2};
    assert_refused(hr_shared_unlock(shared, &hold), -EINVAL, "not a hold");
    hold = (struct hr_shared_hold){.first = 1};
    assert_refused(hr_shared_unlock(shared, &hold), -EINVAL, "not a hold");
}

static void more_members_than_slots_are_refused(void **state) {
    struct hr_shared_hold hold;
    static hr_shared *others[HR_SHARED_MEMBERS];
    struct rlimit limit;
    (void)state;
    check(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    check(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (limit.rlim_cur < 2 * HR_SHARED_MEMBERS) skip();
    for (int i = 0; i < HR_SHARED_MEMBERS; i++) {
        must(hr_shared_open(cached, &others[i]));
        must(hr_shared_lock(others[i], 0, HR_SHARED_ALL, NULL, &hold));
        must(hr_shared_unlock(others[i], &hold));
    }
    assert_refused(lock_rows(0, 1, 0, &hold), -EUSERS, "1024 processes take part");
    others[7] = hr_shared_close(others[7]);
    must(lock_rows(0, 1, 0, &hold));
    must(hr_shared_unlock(shared, &hold));
    for (int i = 0; i < HR_SHARED_MEMBERS; i++) hr_shared_close(others[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_array_has_its_fill_and_its_plan),
        cmocka_unit_test(bad_plans_are_refused),
        cmocka_unit_test(without_room_nothing_is_made),
        cmocka_unit_test_setup_teardown(a_damaged_array_is_refused_and_not_replaced, open_shared_scene,
                                        close_shared_scene),
        cmocka_unit_test_setup_teardown(other_data_does_not_take_its_name, open_shared_scene, close_shared_scene),
        cmocka_unit_test_setup_teardown(a_file_that_cannot_be_written_is_refused, open_shared_scene,
                                        close_shared_scene),
        cmocka_unit_test(elements_are_added_to_and_raised),
        cmocka_unit_test(integers_wrap_and_nan_is_the_largest),
        cmocka_unit_test_setup_teardown(bad_elements_change_nothing, open_shared_scene, close_shared_scene),
        cmocka_unit_test_setup_teardown(a_lock_is_not_taken_twice_by_a_thread, open_shared_scene, close_shared_scene),
        cmocka_unit_test_setup_teardown(an_ended_hold_does_not_end_another, open_shared_scene, close_shared_scene),
        cmocka_unit_test_setup_teardown(another_handle_of_the_process_is_named, open_shared_scene, close_shared_scene),
        cmocka_unit_test_setup_teardown(bad_rows_are_refused, open_shared_scene, close_shared_scene),
        cmocka_unit_test_setup_teardown(more_members_than_slots_are_refused, open_shared_scene, close_shared_scene),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
