/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/arena_scene.h"
#include "arena/arena.h"

#include <pthread.h>

/* Forks in a trainer that holds batches: what a child inherited stays as it was, for as long as it lives. */

enum { BATCH = 1 << 20, HELD = 3 };

struct room {
    struct scene scene;
    struct hr_worker_fds fds; /* to look at the memory from outside */
    struct {
        hr_lease *lease;
        unsigned char *data;
    } held[HELD];
    int talk[2]; /* a pipe pair: children wait on it, or say something */
    int descriptors;
};

static void round_trips(struct room *room, uint64_t first_task, int count) {
    for (uint64_t task = first_task; task < first_task + (uint64_t)count; task++) {
        must(order(&room->scene, 0, task, BATCH));
        hr_delivery_done(expect(&room->scene, 0, task, BATCH));
    }
}

static void hold_batches(struct room *room) {
    for (uint64_t i = 0; i < HELD; i++) {
        must(order(&room->scene, 0, i, BATCH));
        struct hr_delivery *delivery = expect(&room->scene, 0, i, BATCH);
        room->held[i].data = delivery->data;
        room->held[i].lease = lease_all(delivery);
        hr_delivery_done(delivery);
    }
}

static int open_room(void **state) {
    struct room *room = calloc(1, sizeof *room);
    room->descriptors = count_descriptors();
    set_scene_with_crew(&room->scene, 1, 2, UINT64_C(1) << 30);
    must(hr__arena_open_worker_fds(room->scene.arena, 0, &room->fds));
    check(pipe(room->talk) == 0);
    hold_batches(room);
    *state = room;
    return 0;
}

static void release(struct room *room) {
    for (int i = 0; i < HELD; i++) {
        hr_lease_release(room->held[i].lease);
        room->held[i].lease = NULL;
    }
}

static int close_room(void **state) {
    struct room *room = *state;
    if (room->scene.arena) clear_scene(&room->scene);
    release(room);
    hr_worker_fds_close(&room->fds);
    close(room->talk[0]);
    close(room->talk[1]);
    assert_int_equal(count_descriptors(), room->descriptors);
    free(room);
    return 0;
}

static bool all_held_are_right(struct room *room) {
    for (uint64_t i = 0; i < HELD; i++)
        if (!is_filled(room->held[i].data, BATCH, i)) return false;
    return true;
}

static pid_t fork_child(struct room *room, void (*life)(struct room *)) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        close(room->talk[1]);
        life(room);
        _exit(0);
    }
    return pid;
}

/* Until the test writes a byte, or ends. */
static void await_word(struct room *room) {
    char byte;
    (void)!read(room->talk[0], &byte, 1);
}

static void give_word(struct room *room, int count) {
    while (count-- > 0) check(write(room->talk[1], "x", 1) == 1);
}

static void read_then_read_again(struct room *room) {
    check(all_held_are_right(room));
    await_word(room);
    check(all_held_are_right(room));
}

static void a_child_reads_what_it_inherited_while_the_parent_goes_on_and_closes(void **state) {
    struct room *room = *state;
    pid_t child = fork_child(room, read_then_read_again);
    release(room);
    round_trips(room, 100, 100);
    clear_scene(&room->scene);
    give_word(room, 1);
    assert_child_succeeds(child);
}

static void write_and_release(struct room *room) {
    for (int i = 0; i < HELD; i++) memset(room->held[i].data, 0xEE, BATCH);
    release(room);
    hr_arena_close(room->scene.arena);
}

static void a_child_that_writes_releases_and_closes_does_not_disturb_the_parent(void **state) {
    struct room *room = *state;
    assert_child_succeeds(fork_child(room, write_and_release));
    assert_true(all_held_are_right(room));
    assert_int_equal(report_of(&room->scene).held_count, HELD);
    round_trips(room, 100, 20);
    release(room);
    round_trips(room, 200, 20);
    assert_int_equal(report_of(&room->scene).held_count, 0);
}

static void use_everything(struct room *room) {
    hr_arena *arena = room->scene.arena;
    struct hr_delivery *delivery;
    struct hr_worker_fds fds;
    check(hr__arena_grant(arena, 0, 0, 0, NULL, 0) == HR_E_STATE);
    check(strstr(hr_error_message(), "forked"));
    check(hr__arena_receive(arena, 0, 0, &delivery) == HR_E_STATE);
    check(hr__arena_receive(arena, HR_ANY_WORKER, 0, &delivery) == HR_E_STATE);
    check(hr__arena_open_worker_fds(arena, 0, &fds) == HR_E_STATE);
    check(hr__arena_watch(arena, 0, -1) == HR_E_STATE);
    check(hr__arena_take_back(arena, 0) == HR_E_STATE);
    check(hr_arena_count(arena, 1, 1) == HR_E_STATE);
    hr_arena_stop(arena);
    struct hr_arena_report report;
    hr_arena_report(arena, &report);
    check(report.worker_count == 1);
}

static void a_child_can_only_read_and_its_stop_does_not_reach_the_parent(void **state) {
    struct room *room = *state;
    assert_child_succeeds(fork_child(room, use_everything));
    round_trips(room, 100, 10);
}

static void have_a_child_that_reads(struct room *room) {
    check(all_held_are_right(room));
    pid_t grandchild = fork();
    if (grandchild == 0) {
        check(all_held_are_right(room));
        release(room);
        _exit(0);
    }
    int status;
    await_word(room);
    check(waitpid(grandchild, &status, 0) == grandchild && status == 0);
    check(all_held_are_right(room));
}

static void a_grandchild_reads_and_releases_on_its_own(void **state) {
    struct room *room = *state;
    pid_t child = fork_child(room, have_a_child_that_reads);
    release(room);
    round_trips(room, 100, 20);
    give_word(room, 1);
    assert_child_succeeds(child);
}

static void several_children_at_different_times_keep_what_was_held_then(void **state) {
    struct room *room = *state;
    pid_t first = fork_child(room, read_then_read_again);
    round_trips(room, 100, 5);
    pid_t second = fork_child(room, read_then_read_again);
    release(room);
    round_trips(room, 200, 20);
    give_word(room, 2);
    assert_child_succeeds(first);
    assert_child_succeeds(second);
    assert_int_equal(report_of(&room->scene).held_count, 0);
}

static void a_child_forked_after_the_close_reads_on(void **state) {
    struct room *room = *state;
    clear_scene(&room->scene);
    pid_t child = fork_child(room, read_then_read_again);
    assert_true(all_held_are_right(room));
    release(room);
    give_word(room, 1);
    assert_child_succeeds(child);
}

static void the_memory_is_freed_at_the_close_though_a_child_lives(void **state) {
    struct room *room = *state;
    pid_t child = fork_child(room, read_then_read_again);
    release(room);
    assert_true(bytes_of(room->fds.memory_fd) >= HELD * BATCH);
    int64_t deadline = in_s(PATIENCE_S);
    while (report_of(&room->scene).held_count > 0) assert_true(now_ns() < deadline); /* until it has its copies */
    clear_scene(&room->scene);
    assert_true(bytes_of(room->fds.memory_fd) < MIB);
    give_word(room, 1);
    assert_child_succeeds(child);
}

static void leave(struct room *room) {
    (void)room;
}

static void a_child_that_exits_without_reading_frees_the_slots(void **state) {
    struct room *room = *state;
    assert_child_succeeds(fork_child(room, leave));
    release(room);
    assert_int_equal(report_of(&room->scene).held_count, 0);
}

static void a_fork_with_nothing_held_costs_no_descriptor(void **state) {
    struct room *room = *state;
    release(room);
    round_trips(room, 100, 1);
    int before = count_descriptors();
    for (int i = 0; i < 10; i++) assert_child_succeeds(fork_child(room, leave));
    assert_int_equal(count_descriptors(), before);
}

static void forks_one_after_another_do_not_pile_up_descriptors(void **state) {
    struct room *room = *state;
    int before = count_descriptors();
    for (int i = 0; i < 20; i++) assert_child_succeeds(fork_child(room, leave));
    assert_true(count_descriptors() <= before + 1);
}

/* ---- a child that stops before it has copies of its own ---- */

static bool children_stop;

static void stop_if_wanted(void) {
    if (children_stop) raise(SIGSTOP);
}

static void a_slot_is_not_used_again_before_the_child_has_copied_it_or_is_dead(void **state) {
    struct room *room = *state;
    int status;
    children_stop = true;
    pid_t child = fork_child(room, read_then_read_again);
    children_stop = false;
    check(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
    release(room);
    for (uint64_t task = 100; task < 150; task++) {
        must(order(&room->scene, 0, task, BATCH));
        struct hr_delivery *delivery = expect(&room->scene, 0, task, BATCH);
        for (int i = 0; i < HELD; i++) assert_ptr_not_equal(delivery->data, room->held[i].data);
        hr_delivery_done(delivery);
    }
    assert_int_equal(report_of(&room->scene).held_count, HELD);
    kill(child, SIGCONT);
    give_word(room, 1);
    assert_child_succeeds(child); /* it read what it inherited */
    assert_int_equal(report_of(&room->scene).held_count, 0);

    hold_batches(room);
    children_stop = true;
    child = fork_child(room, read_then_read_again);
    children_stop = false;
    check(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
    release(room);
    round_trips(room, 200, 20);
    assert_int_equal(report_of(&room->scene).held_count, HELD);
    kill(child, SIGKILL);
    assert_true(WIFSIGNALED(reap_pid(child)));
    assert_int_equal(report_of(&room->scene).held_count, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_room, close_room)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_child_reads_what_it_inherited_while_the_parent_goes_on_and_closes),
        TEST(a_child_that_writes_releases_and_closes_does_not_disturb_the_parent),
        TEST(a_child_can_only_read_and_its_stop_does_not_reach_the_parent),
        TEST(a_grandchild_reads_and_releases_on_its_own),
        TEST(several_children_at_different_times_keep_what_was_held_then),
        TEST(a_child_forked_after_the_close_reads_on),
        TEST(the_memory_is_freed_at_the_close_though_a_child_lives),
        TEST(a_child_that_exits_without_reading_frees_the_slots),
        TEST(a_fork_with_nothing_held_costs_no_descriptor),
        TEST(forks_one_after_another_do_not_pile_up_descriptors),
        TEST(a_slot_is_not_used_again_before_the_child_has_copied_it_or_is_dead),
    };
    pthread_atfork(NULL, NULL, stop_if_wanted); /* before the arena's, so it runs first in the child */
    return cmocka_run_group_tests_name("fork", tests, NULL, NULL);
}
