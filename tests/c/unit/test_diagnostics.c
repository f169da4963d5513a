/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/crew_scene.h"

/* The diagnostics file of a worker. In these tests this process writes it instead of a worker. */

static void the_end_of_a_workers_stderr_is_kept(void **state) {
    (void)state;
    enum { PIECE = 1000, PIECES = 100, ALL = PIECE * PIECES };
    struct room room;
    struct hr_worker_fds fds;
    static char said[ALL + HR_DIAGNOSTICS_STDERR_BYTES];
    open_room(&room);
    assert_said(&room, "", 0); /* no diagnostics file yet */
    must(hr_crew_open_worker_fds(room.crew, 0, &fds));
    assert_said(&room, "", 0);
    must(hr_diagnostics_log_stderr(fds.diagnostics_fd, "one\n", 4));
    must(hr_diagnostics_log_stderr(fds.diagnostics_fd, "two\n", 4));
    must(hr_diagnostics_log_stderr(fds.diagnostics_fd, "", 0));
    assert_said(&room, "one\ntwo\n", 8);
    must(hr_diagnostics_log_stderr(fds.diagnostics_fd, said, HR_DIAGNOSTICS_STDERR_BYTES - 8)); /* exactly full */
    for (int i = 0; i < ALL; i++) said[i] = (char)('a' + i % 26 + i / 5000);
    for (int i = 0; i < PIECES; i++) {
        must(hr_diagnostics_log_stderr(fds.diagnostics_fd, said + i * PIECE, PIECE));
        if (i >= 17)
            assert_said(&room, said + (i + 1) * PIECE - HR_DIAGNOSTICS_STDERR_BYTES, HR_DIAGNOSTICS_STDERR_BYTES);
    }
    must(hr_diagnostics_log_stderr(fds.diagnostics_fd, said, ALL)); /* more than there is room for, at once */
    assert_said(&room, said + ALL - HR_DIAGNOSTICS_STDERR_BYTES, HR_DIAGNOSTICS_STDERR_BYTES);
    must(hr_diagnostics_log_stderr(fds.diagnostics_fd, "end", 3));
    memcpy(said + ALL, "end", 3);
    assert_said(&room, said + ALL + 3 - HR_DIAGNOSTICS_STDERR_BYTES, HR_DIAGNOSTICS_STDERR_BYTES);
    hr_worker_fds_close(&fds);
    assert_said(&room, said + ALL + 3 - HR_DIAGNOSTICS_STDERR_BYTES, HR_DIAGNOSTICS_STDERR_BYTES);
    must(hr_crew_open_worker_fds(room.crew, 0, &fds)); /* a new diagnostics file */
    assert_said(&room, "", 0);
    hr_worker_fds_close(&fds);
    assert_int_equal(hr_diagnostics_log_stderr(-1, "x", 1), -EBADF);
    close_room(&room);
}

static void a_stack_dump_is_cut_at_64_kib_and_the_file_does_not_grow(void **state) {
    (void)state;
    struct room room;
    struct hr_worker_fds fds;
    struct stat info;
    const char *text;
    size_t bytes, written = 0;
    char line[100];
    open_room(&room);
    must(hr_crew_stack(room.crew, 0, &text, &bytes));
    assert_int_equal(bytes, 0);
    must(hr_crew_open_worker_fds(room.crew, 0, &fds));
    memset(line, 's', sizeof line);
    while (written < 2 * HR_DIAGNOSTICS_STACK_BYTES &&
           pwrite(fds.diagnostics_fd, line, sizeof line, (off_t)(HR_DIAGNOSTICS_STACK_AT + written)) ==
               (ssize_t)sizeof line)
        written += sizeof line;
    assert_in_range(written, HR_DIAGNOSTICS_STACK_BYTES - sizeof line, HR_DIAGNOSTICS_STACK_BYTES);
    assert_int_equal(fstat(fds.diagnostics_fd, &info), 0);
    assert_int_equal(info.st_size, HR_DIAGNOSTICS_BYTES);
    must(hr_crew_stack(room.crew, 0, &text, &bytes));
    assert_in_range(bytes, written, HR_DIAGNOSTICS_STACK_BYTES);
    for (size_t i = 0; i < bytes; i++) assert_int_equal(text[i], 's');
    assert_said(&room, "", 0);
    hr_worker_fds_close(&fds);
    close_room(&room);
}

static void assert_told(struct room *room, const char *expected) {
    const char *text;
    size_t bytes;
    must(hr_crew_posted_status(room->crew, 0, &text, &bytes));
    assert_int_equal(bytes, strlen(expected));
    assert_memory_equal(text, expected, bytes);
}

static void the_trainer_reads_the_last_status_of_a_worker(void **state) {
    (void)state;
    struct room room;
    struct hr_worker_fds fds;
    char most[HR_DIAGNOSTICS_STATUS_BYTES + 1];
    open_room(&room);
    assert_told(&room, ""); /* no diagnostics file yet */
    must(hr_crew_open_worker_fds(room.crew, 0, &fds));
    assert_told(&room, "");
    must(hr_diagnostics_post_status(fds.diagnostics_fd, "a long text", 11));
    assert_told(&room, "a long text");
    must(hr_diagnostics_post_status(fds.diagnostics_fd, "short", 5));
    assert_told(&room, "short");
    must(hr_diagnostics_log_stderr(fds.diagnostics_fd, "words", 5)); /* neither disturbs the other */
    assert_told(&room, "short");
    assert_said(&room, "words", 5);
    memset(most, 'm', sizeof most);
    assert_int_equal(hr_diagnostics_post_status(fds.diagnostics_fd, most, HR_DIAGNOSTICS_STATUS_BYTES + 1), -EMSGSIZE);
    assert_told(&room, "short");
    must(hr_diagnostics_post_status(fds.diagnostics_fd, most, HR_DIAGNOSTICS_STATUS_BYTES));
    most[HR_DIAGNOSTICS_STATUS_BYTES] = '\0';
    assert_told(&room, most);
    uint64_t length = HR_DIAGNOSTICS_STATUS_BYTES + 1; /* a worker may write anything, here at both places of a text */
    for (off_t at = 64; at < 8192; at += 4096)
        assert_int_equal(pwrite(fds.diagnostics_fd, &length, sizeof length, at), sizeof length);
    assert_told(&room, "");
    must(hr_diagnostics_post_status(fds.diagnostics_fd, "", 0));
    assert_told(&room, "");
    hr_worker_fds_close(&fds);
    assert_int_equal(hr_diagnostics_post_status(-1, "x", 1), -EBADF);
    close_room(&room);
}

#ifdef HR_FAILPOINTS
static void the_old_status_is_read_until_the_new_one_is_complete(void **state) {
    (void)state;
    struct room room;
    struct hr_worker_fds fds;
    open_room(&room);
    must(hr_crew_open_worker_fds(room.crew, 0, &fds));
    for (int i = 0; i < 3; i++) {
        const char *const texts[] = {"", "first", "the second"};
        if (i > 0) must(hr_diagnostics_post_status(fds.diagnostics_fd, texts[i], strlen(texts[i])));
        pid_t pid = fork();
        if (pid == 0) {
            setenv("HEADRACE_STOP", "status.written:9:1", 1);
            hr_diagnostics_post_status(fds.diagnostics_fd, "never posted", 10);
            _exit(0);
        }
        assert_true(WIFSIGNALED(reap_pid(pid)));
        assert_told(&room, texts[i]);
    }
    hr_worker_fds_close(&fds);
    close_room(&room);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_of_a_workers_stderr_is_kept),
        cmocka_unit_test(the_trainer_reads_the_last_status_of_a_worker),
#ifdef HR_FAILPOINTS
        cmocka_unit_test(the_old_status_is_read_until_the_new_one_is_complete),
#endif
        cmocka_unit_test(a_stack_dump_is_cut_at_64_kib_and_the_file_does_not_grow),
    };
    set_board();
    return cmocka_run_group_tests_name("diagnostics", tests, NULL, NULL);
}
