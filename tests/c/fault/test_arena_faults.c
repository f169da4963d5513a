/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/arena_scene.h"
#include "arena/arena.h"

#include <sys/resource.h>

/* System calls that fail: the named fallback or an error that says what to do, and nothing is left behind. */

static int descriptors;

static int note_descriptors(void **state) {
    (void)state;
    descriptors = count_descriptors();
    return 0;
}

static int count_again(void **state) {
    (void)state;
    unsetenv("HEADRACE_FAIL");
    unsetenv("HEADRACE_PAGE");
    assert_int_equal(count_descriptors(), descriptors);
    return 0;
}

static int try_to_open(uint32_t workers) {
    hr_arena *arena = NULL;
    struct hr__arena_options options = {.worker_count = workers, .prefetch_count = 4, .limit_bytes = UINT64_C(1) << 30};
    int r = hr__arena_open(&options, &arena);
    if (r < 0) assert_null(arena);
    hr_arena_close(arena);
    return r;
}

static void assert_batches_cross(enum hr_memory_kind memory) {
    struct scene scene;
    set_scene_with_crew(&scene, 2, 4, UINT64_C(1) << 30);
    assert_int_equal(report_of(&scene).memory, memory);
    for (uint64_t task = 0; task < 8; task++) {
        must(order(&scene, (uint32_t)(task % 2), task, 100000));
        hr_delivery_done(expect(&scene, (uint32_t)(task % 2), task, 100000));
    }
    clear_scene(&scene);
}

static void without_memfd_an_unlinked_file_in_dev_shm_serves(void **state) {
    (void)state;
    setenv("HEADRACE_FAIL", "memfd_create:EPERM", 1);
    assert_batches_cross(HR_MEMORY_SHM);
}

static void without_dev_shm_too_an_unlinked_file_in_tmpdir_serves(void **state) {
    (void)state;
    setenv("HEADRACE_FAIL", "memfd_create:ENOSYS,shm_open:EACCES", 1);
    assert_batches_cross(HR_MEMORY_TMP);
    setenv("TMPDIR", "/var/tmp", 1);
    assert_batches_cross(HR_MEMORY_TMP);
    unsetenv("TMPDIR");
}

static void without_any_memory_the_error_names_all_three_ways(void **state) {
    (void)state;
    setenv("HEADRACE_FAIL", "memfd_create:EPERM,shm_open:EACCES,tmp_open:EACCES", 1);
    assert_int_equal(try_to_open(2), -EACCES);
    assert_non_null(strstr(hr_error_message(), "memfd_create"));
    assert_non_null(strstr(hr_error_message(), "/dev/shm"));
    assert_non_null(strstr(hr_error_message(), "TMPDIR"));
    setenv("HEADRACE_FAIL", "memfd_create:EPERM,shm_open:EACCES", 1);
    setenv("TMPDIR", "/no/such/folder", 1);
    assert_int_equal(try_to_open(2), -ENOENT);
    unsetenv("TMPDIR");
}

static void a_head_that_cannot_be_committed_is_an_error(void **state) {
    (void)state;
    setenv("HEADRACE_FAIL", "fallocate:ENOSPC", 1);
    assert_int_equal(try_to_open(2), -ENOSPC);
}

static void without_eventfd_the_error_says_what_to_raise(void **state) {
    (void)state;
    setenv("HEADRACE_FAIL", "eventfd:EMFILE", 1);
    assert_int_equal(try_to_open(2), -EMFILE);
    assert_non_null(strstr(hr_error_message(), "ulimit -n"));
}

static void without_pidfd_an_error_is_returned(void **state) {
    (void)state;
    int fd = 99;
    setenv("HEADRACE_FAIL", "pidfd_open:EPERM", 1);
    assert_int_equal(hr__pidfd(getpid(), &fd), -EPERM);
    assert_int_equal(fd, 99);
}

static void without_populate_pages_are_touched(void **state) {
    (void)state;
    setenv("HEADRACE_FAIL", "populate:EINVAL", 1);
    assert_batches_cross(HR_MEMORY_MEMFD);
}

static void a_commit_that_fails_is_an_error_with_numbers_and_can_be_tried_again(void **state) {
    (void)state;
    struct scene scene;
    struct hr_task task;
    struct hr_delivery *delivery;
    void *data = NULL;
    set_scene(&scene, 1, 2, UINT64_C(1) << 30);
    hr_port *port = open_port_here(&scene, 0);
    must(order(&scene, 0, 0, 8));
    must(hr_port_take(port, in_s(PATIENCE_S), &task));
    uint64_t used = report_of(&scene).used_bytes;
    setenv("HEADRACE_FAIL", "fallocate:ENOSPC", 1);
    assert_int_equal(hr_port_reserve(port, 3000000, &data), -ENOSPC);
    assert_non_null(strstr(hr_error_message(), "3000000"));
    assert_non_null(strstr(hr_error_message(), "batch_size"));
    assert_null(data);
    assert_int_equal(order(&scene, 0, 1, 8), -ENOSPC); /* a second slot cannot be committed, either */
    assert_int_equal(report_of(&scene).used_bytes, used);
    unsetenv("HEADRACE_FAIL");
    must(order(&scene, 0, 1, 8));
    must(hr_port_reserve(port, 3000000, &data));
    fill(data, 3000000, 0);
    must(hr_port_publish(port, 0, 3000000));
    must(hr__arena_receive(scene.arena, 0, in_s(PATIENCE_S), &delivery));
    assert_true(is_filled(delivery->data, 3000000, 0));
    hr_delivery_done(delivery);
    hr_port_close(port);
    hr_arena_close(scene.arena);
}

/* ---- kernels with larger pages ---- */

enum { PAGE = 64 << 10, ROUNDS = 40 };

static hr_port *open_scene_with_large_pages(struct scene *scene) {
    setenv("HEADRACE_PAGE", "65536", 1);
    set_scene(scene, 1, 4, UINT64_C(1) << 30);
    return open_port_here(scene, 0);
}

static void a_sweep_leaves_whole_what_shares_a_large_page_with_what_it_frees(void **state) {
    (void)state;
    enum { EACH = PAGE * 7 / 4, FREED = PAGE, BYTES = 3 * EACH };
    struct scene scene;
    hr_lease *leases[3];
    static unsigned char expected[EACH];
    hr_port *port = open_scene_with_large_pages(&scene);
    struct hr_delivery *delivery = hand_over(&scene, port, 0, BYTES);
    unsigned char *data = delivery->data;
    for (int i = 0; i < 3; i++) must(hr_delivery_lease(delivery, (uint64_t)i * EACH, EACH, &leases[i]));
    memcpy(expected, data + EACH, EACH);
    hr_delivery_done(delivery);
    hr_lease_release(leases[0]);
    hr_lease_release(leases[2]);
    for (uint64_t task = 1; task < ROUNDS; task++) hr_delivery_done(hand_over(&scene, port, task, BYTES));
    assert_int_equal(*(uint64_t *)data + *(uint64_t *)(data + FREED - sizeof(uint64_t)), 0); /* it was swept */
    assert_memory_equal(data + EACH, expected, EACH);
    hr_lease_release(leases[1]);
    hr_port_close(port);
    hr_arena_close(scene.arena);
}

static void a_close_frees_and_unmaps_what_lies_behind_a_held_batch_in_a_large_page(void **state) {
    (void)state;
    struct scene scene;
    struct hr_worker_fds fds;
    uint64_t before = mapped_bytes();
    hr_port *port = open_scene_with_large_pages(&scene);
    must(hr__arena_open_worker_fds(scene.arena, 0, &fds));
    struct hr_delivery *kept = hand_over(&scene, port, 0, 5000), *dropped = hand_over(&scene, port, 1, 16 * MIB);
    hr_lease *lease = lease_all(kept);
    hr_delivery_done(kept);
    hr_delivery_done(dropped);
    hr_port_close(port);
    hr_arena_close(scene.arena);
    assert_true(bytes_of(fds.memory_fd) <= MIB);
    assert_true(mapped_bytes() < before + 4 * MIB);
    hr_lease_release(lease);
    hr_worker_fds_close(&fds);
}

/* ---- few descriptors ---- */

static void few_descriptors_are_an_error_that_says_so_at_each_number(void **state) {
    (void)state;
    struct rlimit old, few;
    int errors = 0;
    getrlimit(RLIMIT_NOFILE, &old);
    for (rlim_t spare = 0; spare < 16; spare++) {
        few = (struct rlimit){(rlim_t)descriptors + spare, old.rlim_max};
        setrlimit(RLIMIT_NOFILE, &few);
        hr_arena *arena = NULL;
        struct hr_worker_fds fds = {.memory_fd = -1};
        struct hr__arena_options options = {.worker_count = 4, .prefetch_count = 4};
        int r = hr__arena_open(&options, &arena);
        if (r == 0) r = hr__arena_open_worker_fds(arena, 3, &fds);
        if (r == 0) hr_worker_fds_close(&fds);
        hr_arena_close(arena);
        setrlimit(RLIMIT_NOFILE, &old);
        assert_int_equal(count_descriptors(), descriptors);
        if (r == 0) continue;
        errors++;
        assert_int_equal(r, -EMFILE);
        assert_non_null(strstr(hr_error_message(), "ulimit -n"));
    }
    assert_in_range(errors, 10, 14); /* an arena of 4 workers takes 8, worker descriptors take 4 */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, note_descriptors, count_again)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(without_memfd_an_unlinked_file_in_dev_shm_serves),
        TEST(without_dev_shm_too_an_unlinked_file_in_tmpdir_serves),
        TEST(without_any_memory_the_error_names_all_three_ways),
        TEST(a_head_that_cannot_be_committed_is_an_error),
        TEST(without_eventfd_the_error_says_what_to_raise),
        TEST(without_pidfd_an_error_is_returned),
        TEST(without_populate_pages_are_touched),
        TEST(a_commit_that_fails_is_an_error_with_numbers_and_can_be_tried_again),
        TEST(a_sweep_leaves_whole_what_shares_a_large_page_with_what_it_frees),
        TEST(a_close_frees_and_unmaps_what_lies_behind_a_held_batch_in_a_large_page),
        TEST(few_descriptors_are_an_error_that_says_so_at_each_number),
    };
#ifndef HR_FAILPOINTS
    fputs("skipped: built without failpoints\n", stderr);
    return SKIP_CODE;
#endif
    return cmocka_run_group_tests_name("arena_faults", tests, NULL, NULL);
}
