/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/arena_scene.h"

#include <headrace/look.h>

#include "board/board.h"
#include "board/look.h"

/* The layout of a board, and a board with one process. Several processes are in tests/c/process/test_board_ranks.c. */

static const struct hr_board_options two = {.key = "unit", .world_size = 2, .local_size = 2, .fd = -1};
static const struct hr_board_facts facts = {.length = 9984, .steps = 78, .seed = 5, .epoch = 3, .digest = -7};

/* ---- facts ---- */

static struct hr__shared_entry *new_entry(void) {
    struct hr__shared_entry *entry = aligned_alloc(HR_CACHE_LINE, sizeof *entry);
    memset(entry, 0, sizeof *entry);
    atomic_store(&entry->key, 99);
    atomic_store(&entry->rank, 1);
    return entry;
}

static void facts_arrive_as_they_were_written(void **state) {
    struct hr__shared_entry *entry = new_entry();
    struct hr_board_facts read;
    uint64_t number;
    (void)state;
    assert_false(hr__facts_read(entry, 1, &number, &read));
    hr__facts_write(entry, 7, &facts);
    assert_true(hr__facts_read(entry, 1, &number, &read));
    assert_int_equal(number, 7);
    assert_memory_equal(&read, &facts, sizeof facts);
    assert_false(hr__facts_read(entry, 0, &number, &read));
    free(entry);
}

/* A writer that is at work, or has died: any of the words is still the old one. */
static void torn_facts_are_not_read(void **state) {
    struct hr__shared_entry *entry = new_entry();
    struct hr_board_facts read, next = {10000, 79, 6, 5, 8, 20000};
    uint64_t old[HR__FACTS_WORDS], number;
    (void)state;
    hr__facts_write(entry, 7, &facts);
    for (int i = 0; i < HR__FACTS_WORDS; i++) old[i] = atomic_load(&entry->facts[1].words[i]);
    for (int i = 0; i < HR__FACTS_WORDS; i++) {
        hr__facts_write(entry, 9, &next);
        atomic_store(&entry->facts[1].words[i], old[i]);
        assert_false(hr__facts_read(entry, 1, &number, &read));
    }
    free(entry);
}

static void facts_of_another_loader_or_rank_are_not_read(void **state) {
    struct hr__shared_entry *entry = new_entry();
    struct hr_board_facts read;
    uint64_t number;
    (void)state;
    hr__facts_write(entry, 7, &facts);
    atomic_store(&entry->key, 98);
    assert_false(hr__facts_read(entry, 1, &number, &read));
    atomic_store(&entry->key, 99);
    atomic_store(&entry->rank, 2);
    assert_false(hr__facts_read(entry, 1, &number, &read));
    free(entry);
}

/* ---- the memory ---- */

static int open_inherited(int fd, const struct hr_board_options *like, hr_board **ret_board) {
    struct hr_board_options options = *like;
    options.fd = fd;
    return hr_board_open(&options, in_s(PATIENCE_S), ret_board);
}

static void inherited_memory_is_checked(void **state) {
    static const struct hr_board_options others[] = {{.key = "another", .world_size = 2, .local_size = 2},
                                                     {.key = "unit", .world_size = 3, .local_size = 2},
                                                     {.key = "unit", .world_size = 2},
                                                     {.key = "unit", .world_size = 2, .local_size = 1}};
    static const int codes[] = {-EINVAL, -EINVAL, 0, -EINVAL};
    int fd = -1, descriptors = count_descriptors();
    (void)state;
    must(hr__board_create(&two, &fd));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        hr_board *board = NULL;
        assert_int_equal(open_inherited(fd, &others[i], &board), codes[i]);
        hr_board_close(board);
    }
    close(fd);
    assert_int_equal(count_descriptors(), descriptors);
}

static void damaged_memory_is_refused(void **state) {
    static const struct {
        uint64_t offset;
        int code;
    } damages[] = {{0, HR_E_CORRUPT},
                   {offsetof(struct hr__board_header, version), HR_E_VERSION},
                   {offsetof(struct hr__board_header, page_count), -EINVAL},
                   {offsetof(struct hr__board_header, world_size), -EINVAL},
                   {offsetof(struct hr__board_header, key_hash), -EINVAL}};
    (void)state;
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        hr_board *board = NULL;
        int fd = -1;
        must(hr__board_create(&two, &fd));
        must(hr__write_at(fd, damages[i].offset, "?", 1));
        assert_int_equal(open_inherited(fd, &two, &board), damages[i].code);
        close(fd);
    }
}

static void memory_that_is_no_board_is_refused(void **state) {
    hr_board *board = NULL;
    enum hr__memory_kind kind;
    int fd = -1;
    (void)state;
    must(hr__memory_create("headrace-test", 100, 100, &fd, &kind));
    assert_int_equal(open_inherited(fd, &two, &board), HR_E_CORRUPT);
    close(fd);
    must(hr__memory_create("headrace-test", 8, 8, &fd, &kind));
    assert_int_equal(open_inherited(fd, &two, &board), -EIO);
    close(fd);
    assert_int_equal(open_inherited(1000000, &two, &board), -EBADF);
}

static void sizes_out_of_range_are_refused(void **state) {
    static const uint32_t sizes[][2] = {{0, 0}, {1, 0}, {1, 1}, {4, 5}};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct hr_board_options options = {.key = "unit", .world_size = sizes[i][0], .local_size = sizes[i][1]};
        hr_board *board = NULL;
        assert_int_equal(hr_board_open(&options, in_s(PATIENCE_S), &board), -EINVAL);
    }
}

/* ---- a board with one process ---- */

static hr_board *open_alone(void) {
    hr_board *board = NULL;
    int fd = -1;
    must(hr__board_create(&two, &fd));
    must(open_inherited(fd, &two, &board));
    close(fd); /* the board has a descriptor of its own; this takes its lock away, which no other process asks for */
    return board;
}

static void a_process_has_one_board(void **state) {
    hr_board *board = open_alone(), *second = NULL;
    (void)state;
    assert_int_equal(hr_board_open(&two, in_s(PATIENCE_S), &second), -EBUSY);
    board = hr_board_close(board);
    board = open_alone();
    hr_board_close(board);
}

static void looking_checks_the_memory(void **state) {
    enum hr__memory_kind kind;
    struct hr__board_position positions[4];
    hr_board *board = open_alone();
    int fd = -1;
    (void)state;
    assert_int_equal(hr__board_look(board->fd, positions, 4), 0); /* its own process does not count */
    must(hr__memory_create("headrace-test", 8, 8, &fd, &kind));
    assert_int_equal(hr__board_look(fd, positions, 4), HR_E_CORRUPT);
    close(fd);
    must(hr__memory_create("headrace-test", 8192, 8192, &fd, &kind));
    assert_true(hr__board_look(fd, positions, 4) < 0);
    close(fd);
    assert_true(hr__board_look(-1, positions, 4) < 0);
    hr_board_close(board);
}

static void a_process_alone_waits_until_the_deadline(void **state) {
    hr_board *board = open_alone();
    hr_board_entry *entry = NULL;
    struct hr_board_peer peers[HR_BOARD_MAX_PROCESSES];
    struct hr_board_ended ended;
    (void)state;
    must(hr_board_enter(board, "train.py:12", 0, 0, 2, &entry));
    must(hr_board_publish(entry, &facts));
    int64_t deadline = now_ns() + 20000000;
    assert_int_equal(hr_board_await(entry, 2, deadline), -ETIMEDOUT);
    assert_true(now_ns() >= deadline);
    assert_int_equal(hr_board_await(entry, 0, deadline), 0);
    assert_int_equal(hr_board_peers(entry, peers), 0);
    assert_int_equal(hr_board_step(entry, 1, &ended), 0);
    assert_int_equal(hr_board_end(entry, 1, &ended), 0);
    hr_board_close(board);
}

/* Entries that were given back are taken again, the one that is free for the longest time first. */
static void entries_are_limited_and_taken_again(void **state) {
    hr_board *board = open_alone();
    hr_board_entry *entries[HR_BOARD_MAX_ENTRIES], *more = NULL;
    (void)state;
    for (uint64_t i = 0; i < HR_BOARD_MAX_ENTRIES; i++) must(hr_board_enter(board, "a:1", i, 0, 2, &entries[i]));
    assert_int_equal(hr_board_enter(board, "a:1", 99, 0, 2, &more), -ENOSPC);
    hr_board_leave(entries[5]);
    hr_board_leave(entries[2]);
    must(hr_board_enter(board, "a:1", 99, 0, 2, &more));
    assert_ptr_equal(more, entries[5]);
    hr_board_leave(NULL);
    hr_board_close(board);
}

#ifdef HR_FAILPOINTS
static void every_refused_call_turns_the_board_off(void **state) {
    static const char *const plans[] = {
        "board:EPERM",   "socket:EACCES",    "memfd_create:EPERM,shm_open:EPERM,tmp_open:EPERM",
        "thread:EAGAIN", "fallocate:ENOSPC", "eventfd:EMFILE"};
    int descriptors = count_descriptors();
    (void)state;
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        hr_board *board = NULL;
        setenv("HEADRACE_FAIL", plans[i], 1);
        assert_true(hr_board_open(&two, in_s(PATIENCE_S), &board) < 0);
        assert_non_null(strstr(hr_error_message(), "board: "));
        unsetenv("HEADRACE_FAIL");
        assert_null(board);
        assert_int_equal(count_descriptors(), descriptors);
    }
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(facts_arrive_as_they_were_written),
        cmocka_unit_test(torn_facts_are_not_read),
        cmocka_unit_test(facts_of_another_loader_or_rank_are_not_read),
        cmocka_unit_test(inherited_memory_is_checked),
        cmocka_unit_test(damaged_memory_is_refused),
        cmocka_unit_test(memory_that_is_no_board_is_refused),
        cmocka_unit_test(sizes_out_of_range_are_refused),
        cmocka_unit_test(a_process_has_one_board),
        cmocka_unit_test(looking_checks_the_memory),
        cmocka_unit_test(a_process_alone_waits_until_the_deadline),
        cmocka_unit_test(entries_are_limited_and_taken_again),
#ifdef HR_FAILPOINTS
        cmocka_unit_test(every_refused_call_turns_the_board_off),
#endif
    };
    return cmocka_run_group_tests_name("board", tests, NULL, NULL);
}
