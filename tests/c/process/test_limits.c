/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/arena_scene.h"
#include "arena/arena.h"

#include <sys/resource.h>

#include "base/base.h"
#include "os/os.h"

/* The trainer's loop: tasks dealt round robin, `keep` is told of each batch and owns it. */
static void run_epoch(struct scene *scene, uint64_t count, uint64_t prefetch, uint64_t bytes,
                      void (*keep)(struct hr_delivery *delivery, uint64_t task)) {
    uint64_t submitted = 0;
    for (uint64_t task = 0; task < count; task++) {
        for (; submitted < count && submitted < task + prefetch; submitted++)
            must(order(scene, (uint32_t)(submitted % scene->worker_count), submitted, bytes));
        keep(expect(scene, (uint32_t)(task % scene->worker_count), task, bytes), task);
    }
}

enum { KEPT = 1000 };
static struct {
    hr_lease *lease;
    void *data;
    uint64_t bytes;
} kept[KEPT];

static void keep_all(struct hr_delivery *delivery, uint64_t task) {
    kept[task].lease = lease_all(delivery);
    kept[task].data = delivery->data;
    kept[task].bytes = delivery->bytes;
    hr_delivery_done(delivery);
}

static void release_kept(uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        check(is_filled(kept[i].data, kept[i].bytes, i));
        hr_lease_release(kept[i].lease);
    }
}

static struct hr_delivery *previous;

static void hold_until_the_next(struct hr_delivery *delivery, uint64_t task) {
    if (previous) check(is_filled(previous->data, previous->bytes, task - 1));
    hr_delivery_done(previous);
    previous = delivery;
}

static void drop(struct hr_delivery *delivery, uint64_t task) {
    (void)task;
    hr_delivery_done(delivery);
}

static void a_consumer_that_keeps_everything_gets_copies_beyond_the_limit(void **state) {
    (void)state;
    struct scene scene;
    set_scene_with_crew(&scene, 2, 4, 32 * MIB);
    run_epoch(&scene, 100, 4, MIB, keep_all);
    struct hr_arena_report report = report_of(&scene);
    assert_in_range(report.copied_count, 50, 90);
    assert_true(report.used_bytes <= 32 * MIB);
    release_kept(100);
    assert_int_equal(report_of(&scene).held_count, 0);
    clear_scene(&scene);
}

static void a_limit_of_one_batch_but_not_two_simply_works(void **state) {
    (void)state;
    struct scene scene;
    set_scene_with_crew(&scene, 2, 4, 10 * MIB);
    run_epoch(&scene, 24, 4, 8 * MIB, hold_until_the_next);
    assert_true(report_of(&scene).used_bytes <= 10 * MIB);
    hr_delivery_done(previous);
    previous = NULL;
    clear_scene(&scene);
}

static void batches_that_grow_under_a_consumer_that_keeps_them_are_delivered_or_refused(void **state) {
    (void)state;
    struct scene scene;
    uint64_t refused = 0;
    set_scene_with_crew(&scene, 2, 4, 16 * MIB);
    for (uint64_t task = 0; task < 60; task++) {
        struct hr_delivery *delivery;
        must(order(&scene, (uint32_t)(task % 2), task, (task + 1) * 64 * KIB));
        must(hr__arena_receive(scene.arena, HR_ANY_WORKER, in_s(PATIENCE_S), &delivery));
        refused += delivery->status == TOO_BIG;
        keep_all(delivery, task);
        if (delivery->status == TOO_BIG) kept[task].bytes = 0;
    }
    assert_true(refused < 20);
    release_kept(60);
    run_epoch(&scene, 8, 4, 3 * MIB, drop); /* once released, all goes on */
    clear_scene(&scene);
}

static void be_precise_worker(struct hr_worker_fds *fds) {
    hr_port *port;
    struct hr_task task;
    void *data;
    check(hr_port_open(fds, &port) == 0);
    check(hr_port_take(port, in_s(PATIENCE_S), &task) == 0);
    check(hr_port_reserve(port, 9437184, &data) == HR_E_TOO_BIG);
    check(strstr(hr_error_message(), "9437184") && strstr(hr_error_message(), "8388608"));
    check(hr_port_reserve(port, UINT64_MAX, &data) == HR_E_TOO_BIG);
    check(hr_port_reserve(port, 8 * KIB, &data) == 0);
    fill(data, 8 * KIB, task.task);
    check(hr_port_publish(port, 0, 8 * KIB) == 0);
    hr_port_close(port);
}

static void a_batch_over_the_limit_is_refused_with_both_numbers_and_the_epoch_goes_on(void **state) {
    (void)state;
    struct scene scene;
    set_scene(&scene, 1, 2, 8 * MIB);
    start_as(&scene, 0, NULL, be_precise_worker);
    must(order(&scene, 0, 3, 0));
    hr_delivery_done(expect(&scene, 0, 3, 8 * KIB));
    clear_scene(&scene);

    set_scene_with_crew(&scene, 2, 4, 8 * MIB);
    struct hr_delivery *delivery;
    for (uint64_t task = 0; task < 30; task++) {
        bool is_large = task % 3 == 1;
        must(order(&scene, (uint32_t)(task % 2), task, is_large ? 9 * MIB : MIB));
        must(hr__arena_receive(scene.arena, (uint32_t)(task % 2), in_s(PATIENCE_S), &delivery));
        assert_int_equal(delivery->status, is_large ? TOO_BIG : HR_STATUS_BATCH);
        assert_int_equal(*(uint64_t *)delivery->data, is_large ? 9 * MIB : word_of(task, 0));
        hr_delivery_done(delivery);
    }
    clear_scene(&scene);
}

static void a_limit_below_a_task_is_an_error_with_numbers(void **state) {
    (void)state;
    struct scene scene;
    set_scene(&scene, 1, 2, 1);
    assert_int_equal(order(&scene, 0, 0, 8), HR_E_TOO_BIG);
    assert_non_null(strstr(hr_error_message(), "limit of 1 bytes"));
    clear_scene(&scene);
}

static void a_task_is_not_refused_because_workers_have_all_the_memory(void **state) {
    (void)state;
    struct scene scene;
    set_scene_with_crew(&scene, 2, 64, 4 * MIB);
    run_epoch(&scene, 500, 64, 64 * KIB, drop); /* 64 tasks of a step each are the limit */
    clear_scene(&scene);
}

static void be_silent_worker(struct hr_worker_fds *fds) {
    hr_port *port;
    struct hr_task task;
    check(hr_port_open(fds, &port) == 0);
    check(hr_port_take(port, HR_NO_DEADLINE, &task) == 0);
    check(hr_port_take(port, HR_NO_DEADLINE, &task) == HR_E_STATE);
    while (hr_port_take(port, HR_NO_DEADLINE, &task) == HR_E_STATE) poll(NULL, 0, 1); /* until the arena is stopped */
    hr_port_close(port);
}

static int64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void a_trainer_that_waits_for_one_worker_sleeps_while_another_lacks_memory(void **state) {
    (void)state;
    struct scene scene;
    struct hr_delivery *delivery;
    set_scene(&scene, 3, 4, 10 * MIB);
    start_as(&scene, 0, NULL, be_silent_worker);
    for (uint32_t worker = 1; worker < 3; worker++) start(&scene, worker);
    for (uint32_t worker = 0; worker < 3; worker++) must(order(&scene, worker, worker, 8 * MIB));
    int64_t cpu_start = cpu_ns();
    assert_int_equal(hr__arena_receive(scene.arena, 0, now_ns() + 300000000, &delivery), -ETIMEDOUT);
    assert_true(cpu_ns() - cpu_start < 100000000);
    hr_delivery_done(expect(&scene, 1, 1, 8 * MIB));
    hr_delivery_done(expect(&scene, 2, 2, 8 * MIB));
    clear_scene(&scene);
}

/* ---- several windows ---- */

/* Address space for about 20 windows of 8 MiB. */
static void limit_address_space(void) {
    rlim_t bytes = mapped_bytes() + 4 * UINT64_C(20) * 9 * MIB;
    setrlimit(RLIMIT_AS, &(struct rlimit){bytes, bytes});
}

static void run_in_narrow_child(void (*run)(void)) {
    if (IS_SANITIZED) skip(); /* a sanitizer's own address space is larger than the limit */
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        limit_address_space();
        run();
        _exit(0);
    }
    assert_child_succeeds(pid);
}

static void use_many_windows(void) {
    struct scene scene;
    set_scene_with_crew(&scene, 2, 4, 128 * MIB);
    struct hr_arena_report report = report_of(&scene);
    check(report.window_bytes <= 10 * MIB && report.window_bytes >= 4 * MIB);
    uint64_t three = 5 * report.window_bytes / 2 / 8 * 8;
    run_epoch(&scene, 12, 4, three, drop);
    run_epoch(&scene, 12, 4, 1000, drop);
    run_epoch(&scene, 12, 4, three, hold_until_the_next);
    hr_delivery_done(previous);
    run_epoch(&scene, 12, 4, 5 * MIB, drop);
    run_epoch(&scene, 20, 4, 5 * MIB, keep_all);
    release_kept(20);
    check(report_of(&scene).used_bytes <= 128 * MIB);
    clear_scene(&scene);
}

static void a_batch_may_span_three_windows(void **state) {
    (void)state;
    run_in_narrow_child(use_many_windows);
}

static void refuse_after_moving(void) {
    struct scene scene;
    set_scene_with_crew(&scene, 1, 1, 26 * MIB);
    check(report_of(&scene).window_bytes <= 10 * MIB);
    run_epoch(&scene, 2, 1, 6 * MIB, keep_all);
    check(report_of(&scene).held_count == 2);
    struct hr_delivery *delivery;
    for (uint64_t task = 2; task < 5; task++) {
        must(order(&scene, 0, task, 24 * MIB)); /* there are windows for it, but not the memory */
        must(hr__arena_receive(scene.arena, 0, in_s(PATIENCE_S), &delivery));
        check(delivery->status == TOO_BIG && *(uint64_t *)delivery->data == 24 * MIB);
        hr_delivery_done(delivery);
    }
    release_kept(2);
    must(order(&scene, 0, 5, 24 * MIB));
    hr_delivery_done(expect(&scene, 0, 5, 24 * MIB));
    clear_scene(&scene);
}

static void a_batch_refused_after_its_grant_moved_leaves_a_slot_to_say_so(void **state) {
    (void)state;
    run_in_narrow_child(refuse_after_moving);
}

static void be_hasty_worker(struct hr_worker_fds *fds) {
    hr_port *port;
    struct hr_task task;
    void *data;
    check(hr_port_open(fds, &port) == 0);
    for (int i = 0; i < 2; i++) {
        check(hr_port_take(port, in_s(PATIENCE_S), &task) == 0);
        check(hr_port_reserve(port, 6 * MIB, &data) == 0);
        fill(data, 6 * MIB, task.task);
        check(hr_port_publish(port, 0, 6 * MIB) == 0);
    }
    check(hr_port_take(port, in_s(PATIENCE_S), &task) == 0);
    check(hr_port_reserve(port, 8 * KIB, &data) == 0);
    check(hr_port_reserve(port, 24 * MIB, &data) == HR_E_TOO_BIG);
    check(hr_port_publish(port, 0, 8 * KIB) == -EINVAL);
    check(hr_port_reserve(port, 8 * KIB, &data) == 0);
    fill(data, 8 * KIB, task.task);
    check(hr_port_publish(port, 0, 8 * KIB) == 0);
    hr_port_close(port);
}

static void publish_after_moving(void) {
    struct scene scene;
    set_scene(&scene, 1, 1, 26 * MIB);
    check(report_of(&scene).window_bytes <= 10 * MIB);
    start_as(&scene, 0, NULL, be_hasty_worker);
    run_epoch(&scene, 2, 1, 6 * MIB, keep_all);
    must(order(&scene, 0, 2, 8 * KIB));
    hr_delivery_done(expect(&scene, 0, 2, 8 * KIB));
    release_kept(2);
    clear_scene(&scene);
}

static void memory_reserved_before_a_grant_moved_cannot_be_published(void **state) {
    (void)state;
    run_in_narrow_child(publish_after_moving);
}

/* ---- ulimit -f ---- */

/* SIGXFSZ stays as it is, so that it would kill the child. */
static void run_with_small_files(rlim_t bytes, void (*run)(void)) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){bytes, bytes});
        run();
        _exit(0);
    }
    assert_child_succeeds(pid);
}

static void use_small_files(void) {
    struct scene scene;
    set_scene_with_crew(&scene, 2, 8, 128 * MIB);
    struct hr_arena_report report = report_of(&scene);
    check(report.window_bytes >= 512 * KIB && report.window_bytes < 2 * MIB);
    check(report.window_bytes * report.slot_count <= 16 * MIB);
    run_epoch(&scene, 40, 4, MIB / 4, drop);
    run_epoch(&scene, 40, 4, 7 * MIB, hold_until_the_next); /* about half of the file */
    hr_delivery_done(previous);
    previous = NULL;
    run_epoch(&scene, 40, 4, MIB, keep_all);
    release_kept(40);
    for (uint64_t i = 1; i < 12; i++) run_epoch(&scene, 16, 4, i * MIB, drop);
    clear_scene(&scene);
}

static void small_files_hold_batches_that_fit_them(void **state) {
    (void)state;
    run_with_small_files(16 * MIB, use_small_files);
}

static void use_tiny_files(void) {
    struct scene scene;
    set_scene_with_crew(&scene, 2, 8, 128 * MIB);
    run_epoch(&scene, 40, 4, 200 * KIB, drop);
    run_epoch(&scene, 40, 4, 50 * KIB, keep_all);
    release_kept(40);
    clear_scene(&scene);
}

static void files_of_one_mib_hold_small_batches(void **state) {
    (void)state;
    run_with_small_files(MIB, use_tiny_files);
}

static void be_refused_an_arena(void) {
    struct hr__arena_options options = {.worker_count = 2, .prefetch_count = 8};
    hr_arena *arena;
    check(hr__arena_open(&options, &arena) == -EFBIG);
    check(strstr(hr_error_message(), "(ulimit -f)"));
}

static void files_too_small_for_an_arena_are_an_error_not_a_signal(void **state) {
    (void)state;
    run_with_small_files(64 * KIB, be_refused_an_arena);
}

static void be_refused_an_image(const char *path) {
    static char bytes[MIB];
    hr_builder *builder;
    hr_value value;
    int r = 0;
    must(hr_builder_open(path, &builder));
    for (int i = 0; r == 0 && i < 4; i++) r = hr_builder_bytes_of(builder, HR_KIND_BYTES, bytes, sizeof bytes, &value);
    check(r == -EFBIG);
    check(strstr(hr_error_message(), "(ulimit -f)"));
    check(hr_builder_bytes(builder) > 2 * MIB); /* it used all that the limit allows */
    hr_builder_close(builder);
}

static void be_refused_images(void) {
    be_refused_an_image(NULL);
    be_refused_an_image("image-over-the-limit");
}

static void images_over_the_file_limit_are_an_error_not_a_signal(void **state) {
    (void)state;
    run_with_small_files(5 * MIB / 2, be_refused_images);
}

/* ---- memory that comes back ---- */

static void a_slot_of_which_one_leaf_is_held_gives_the_rest_back(void **state) {
    (void)state;
    struct scene scene;
    struct hr_worker_fds fds;
    hr_lease *leases[2], *dead;
    set_scene_with_crew(&scene, 1, 2, UINT64_C(1) << 30);
    must(hr__arena_open_worker_fds(scene.arena, 0, &fds));
    must(order(&scene, 0, 0, 32 * MIB));
    struct hr_delivery *delivery = expect(&scene, 0, 0, 32 * MIB);
    unsigned char *data = delivery->data;
    must(hr_delivery_lease(delivery, 0, 16 * MIB, &dead));
    must(hr_delivery_lease(delivery, 16 * MIB + 100, 64 * KIB, &leases[0]));
    must(hr_delivery_lease(delivery, 16 * MIB + 64 * KIB, 64 * KIB, &leases[1])); /* overlaps */
    hr_lease_release(dead);
    uint64_t before = bytes_of(fds.memory_fd);
    for (uint64_t task = 1; task < 40; task++) { /* while the receiver has it, nothing is given back */
        must(order(&scene, 0, task, 1000));
        hr_delivery_done(expect(&scene, 0, task, 1000));
    }
    assert_true(bytes_of(fds.memory_fd) >= before && is_filled(data, 32 * MIB, 0));
    hr_delivery_done(delivery);
    hr_lease_release(leases[1]);
    for (uint64_t task = 1; task < 40; task++) {
        must(order(&scene, 0, task, 1000));
        hr_delivery_done(expect(&scene, 0, task, 1000));
    }
    uint64_t after = bytes_of(fds.memory_fd);
    print_message("one leaf of 64 KiB held: %llu KiB, with all of the batch %llu KiB\n",
                  (unsigned long long)after / KIB, (unsigned long long)before / KIB);
    assert_true(after + 31 * MIB < before);
    uint64_t first = (16 * MIB + 100) / 8 + 1;
    for (uint64_t i = first; i < first + 8000; i++) assert_true(((uint64_t *)data)[i] == word_of(0, i));
    assert_true(report_of(&scene).held_bytes < MIB);
    hr_lease_release(leases[0]);
    must(order(&scene, 0, 99, 32 * MIB)); /* the slot with holes is whole again */
    hr_delivery_done(expect(&scene, 0, 99, 32 * MIB));
    assert_true(report_of(&scene).used_bytes <= bytes_of(fds.memory_fd));
    hr_worker_fds_close(&fds);
    clear_scene(&scene);
}

enum { LABELS_BYTES = 32 * KIB };

static void keep_labels(struct hr_delivery *delivery, uint64_t task) {
    hr_lease *image;
    must(hr_delivery_lease(delivery, 0, MIB - LABELS_BYTES, &image));
    must(hr_delivery_lease(delivery, MIB - LABELS_BYTES, LABELS_BYTES, &kept[task].lease));
    kept[task].data = delivery->data;
    hr_delivery_done(delivery);
    hr_lease_release(image);
}

static void labels_that_are_kept_do_not_pin_the_images(void **state) {
    (void)state;
    struct scene scene;
    struct hr_worker_fds fds;
    set_scene_with_crew(&scene, 2, 4, UINT64_C(1) << 30);
    must(hr__arena_open_worker_fds(scene.arena, 0, &fds));
    run_epoch(&scene, KEPT, 4, MIB, keep_labels);
    uint64_t bytes = bytes_of(fds.memory_fd), labels = KEPT * hr__round_up(LABELS_BYTES, hr__page_bytes());
    print_message("%d labels of %d KiB kept: %llu MiB\n", KEPT, LABELS_BYTES / KIB, (unsigned long long)bytes / MIB);
    assert_true(bytes < labels + 2 * 16 * MIB); /* a sweep each 16 batches */
    assert_int_equal(report_of(&scene).copied_count, 0);
    for (uint64_t task = 0; task < KEPT; task++) {
        const uint64_t *words = kept[task].data;
        for (uint64_t i = (MIB - LABELS_BYTES) / 8; i < MIB / 8; i++) assert_true(words[i] == word_of(task, i));
        hr_lease_release(kept[task].lease);
    }
    hr_worker_fds_close(&fds);
    clear_scene(&scene);
}

static void slots_far_larger_than_recent_batches_are_trimmed(void **state) {
    (void)state;
    struct scene scene;
    struct hr_worker_fds fds;
    set_scene_with_crew(&scene, 2, 4, UINT64_C(1) << 30);
    must(hr__arena_open_worker_fds(scene.arena, 0, &fds));
    run_epoch(&scene, 8, 4, 32 * MIB, drop);
    assert_true(bytes_of(fds.memory_fd) >= 64 * MIB);
    run_epoch(&scene, 2000, 4, 64 * KIB, drop);
    assert_true(bytes_of(fds.memory_fd) < 32 * MIB);
    assert_true(report_of(&scene).trimmed_count > 0);
    hr_worker_fds_close(&fds);
    clear_scene(&scene);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_consumer_that_keeps_everything_gets_copies_beyond_the_limit),
        cmocka_unit_test(a_limit_of_one_batch_but_not_two_simply_works),
        cmocka_unit_test(batches_that_grow_under_a_consumer_that_keeps_them_are_delivered_or_refused),
        cmocka_unit_test(a_batch_over_the_limit_is_refused_with_both_numbers_and_the_epoch_goes_on),
        cmocka_unit_test(a_limit_below_a_task_is_an_error_with_numbers),
        cmocka_unit_test(a_task_is_not_refused_because_workers_have_all_the_memory),
        cmocka_unit_test(a_trainer_that_waits_for_one_worker_sleeps_while_another_lacks_memory),
        cmocka_unit_test(a_batch_may_span_three_windows),
        cmocka_unit_test(a_batch_refused_after_its_grant_moved_leaves_a_slot_to_say_so),
        cmocka_unit_test(memory_reserved_before_a_grant_moved_cannot_be_published),
        cmocka_unit_test(small_files_hold_batches_that_fit_them),
        cmocka_unit_test(files_of_one_mib_hold_small_batches),
        cmocka_unit_test(files_too_small_for_an_arena_are_an_error_not_a_signal),
        cmocka_unit_test(images_over_the_file_limit_are_an_error_not_a_signal),
        cmocka_unit_test(a_slot_of_which_one_leaf_is_held_gives_the_rest_back),
        cmocka_unit_test(labels_that_are_kept_do_not_pin_the_images),
        cmocka_unit_test(slots_far_larger_than_recent_batches_are_trimmed),
    };
    return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
