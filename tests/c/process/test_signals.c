/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <headrace/error.h>
#include <headrace/face/crew.h>

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* A worker that ignores signals of others than its trainer, which is this process. */

typedef void act(void);

static int pipe_fds[2];

static void report_ready(void) {
    if (write(pipe_fds[1], "", 1) != 1) _exit(9);
}

static void await_ready(void) {
    char ready;
    assert_int_equal(read(pipe_fds[0], &ready, 1), 1);
}

static int start(act *work) {
    assert_int_equal(pipe(pipe_fds), 0);
    int pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(100); /* the end of a worker that a failed test leaves */
        work();
        _exit(0);
    }
    close(pipe_fds[1]); /* so that the read ends if the worker does */
    await_ready();
    return pid;
}

static int status_of(int pid) {
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    close(pipe_fds[0]);
    return status;
}

/* Sends it from another process, and waits until that has ended. */
static void send_as_other(int pid, int number) {
    int status, other = fork(), ended;
    if (other == 0) _exit(kill(pid, number) < 0);
    do ended = waitpid(other, &status, 0);
    while (ended < 0 && errno == EINTR); /* by the signal itself, if this process is the one that gets it */
    assert_int_equal(ended, other);
    assert_int_equal(status, 0);
}

/* Signals are blocked except while it waits: one between report_ready and pause() would end no pause. */
static void wait_for_trainer(void) {
    sigset_t blocked, none;
    sigfillset(&blocked);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &blocked, NULL);
    if (hr_worker_ignore_others(getppid(), true) < 0) _exit(8);
    report_ready();
    for (;;) {
        sigsuspend(&none);
        report_ready();
    }
}

static void a_worker_ignores_signals_of_other_processes(void **state) {
    (void)state;
    const int numbers[] = {SIGTERM, SIGUSR1, SIGUSR2, SIGINT};
    for (size_t i = 0; i < 4; i++) {
        int pid = start(wait_for_trainer);
        for (size_t j = 0; j < 4; j++) {
            send_as_other(pid, numbers[j]);
            await_ready(); /* a second signal is dropped while the first is pending */
        }
        assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
        assert_int_equal(kill(pid, numbers[i]), 0); /* the trainer's own ends it */
        int status = status_of(pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == numbers[i]);
    }
}

static int terminal;

/* Makes the terminal its own, as a shell does for the job in the foreground. */
static void wait_at_terminal(void) {
    if (setsid() < 0) _exit(6);
    int fd = open(ptsname(terminal), O_RDWR);
    if (fd < 0 || ioctl(fd, TIOCSCTTY, 0) < 0) _exit(6);
    wait_for_trainer();
}

static void a_worker_ignores_ctrl_c_of_a_terminal(void **state) {
    (void)state;
    terminal = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    int pid = start(wait_at_terminal);
    assert_int_equal(write(terminal, "\003", 1), 1);
    await_ready();
    assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
    assert_int_equal(kill(pid, SIGINT), 0);
    int status = status_of(pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
    close(terminal);
}

static void raise_in_worker(void) {
    if (hr_worker_ignore_others(getppid(), true) < 0) _exit(8);
    report_ready();
    raise(SIGUSR2);
}

static void a_worker_ends_by_its_own_signal(void **state) {
    (void)state;
    int status = status_of(start(raise_in_worker));
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR2);
}

static void wait_in_a_child(void) {
    if (hr_worker_ignore_others(getppid(), true) < 0) _exit(8);
    int child = fork(), status;
    if (child == 0)
        for (;;) pause();
    send_as_other(child, SIGTERM);
    report_ready();
    _exit(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM ? 0 : 7);
}

static void a_process_that_a_worker_forks_ends_by_signals(void **state) {
    (void)state;
    assert_int_equal(status_of(start(wait_in_a_child)), 0);
}

static volatile sig_atomic_t own_count;

static void count(int number) {
    (void)number;
    own_count++;
}

static void count_and_ask(int number, siginfo_t *info, void *context) {
    (void)context;
    own_count += number == SIGINT && info->si_pid == getpid();
}

static void handle_interrupts(void) {
    signal(SIGINT, count);
    if (hr_worker_ignore_others(getppid(), true) < 0) _exit(8);
    send_as_other(getpid(), SIGINT);
    raise(SIGINT);
    raise(SIGINT);
    if (own_count != 2) _exit(7);
    struct sigaction action = {.sa_sigaction = count_and_ask, .sa_flags = SA_SIGINFO};
    sigaction(SIGINT, &action, NULL);
    send_as_other(getpid(), SIGINT); /* the handler is the worker's own */
    if (hr_worker_ignore_others(getppid(), false) < 0 || hr_worker_ignore_others(getppid(), true) < 0) _exit(8);
    if (hr_worker_ignore_others(getppid(), true) < 0) _exit(8); /* wraps nothing twice */
    send_as_other(getpid(), SIGINT);
    raise(SIGINT);
    if (own_count != 3) _exit(7);
    signal(SIGINT, SIG_IGN);
    if (hr_worker_ignore_others(getppid(), true) < 0) _exit(8);
    raise(SIGINT);
    report_ready();
    _exit(own_count == 3 ? 0 : 7);
}

static void a_worker_handles_its_own_interrupts(void **state) {
    (void)state;
    assert_int_equal(status_of(start(handle_interrupts)), 0);
}

static void handle_and_ignore(void) {
    signal(SIGTERM, count);
    signal(SIGUSR1, SIG_IGN);
    if (hr_worker_ignore_others(getppid(), true) < 0) _exit(8);
    signal(SIGUSR2, count); /* replaces the handler */
    send_as_other(getpid(), SIGTERM);
    send_as_other(getpid(), SIGUSR1);
    send_as_other(getpid(), SIGUSR2);
    report_ready();
    _exit(own_count == 2 ? 0 : 7);
}

static void a_worker_keeps_handlers_of_its_own(void **state) {
    (void)state;
    assert_int_equal(status_of(start(handle_and_ignore)), 0);
}

static void no_process_cannot_be_the_trainer(void **state) {
    (void)state;
    assert_int_equal(hr_worker_ignore_others(0, true), -EINVAL);
    assert_non_null(strstr(hr_error_message(), "crew: cannot ignore signals of other processes than 0: "));
    assert_int_equal(hr_worker_ignore_others(-1, true), -EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_ignores_signals_of_other_processes),
        cmocka_unit_test(a_worker_ends_by_its_own_signal),
        cmocka_unit_test(a_process_that_a_worker_forks_ends_by_signals),
        cmocka_unit_test(a_worker_keeps_handlers_of_its_own),
        cmocka_unit_test(a_worker_handles_its_own_interrupts),
        cmocka_unit_test(a_worker_ignores_ctrl_c_of_a_terminal),
        cmocka_unit_test(no_process_cannot_be_the_trainer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
