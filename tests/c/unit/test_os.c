/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/arena_scene.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/base.h"
#include "os/os.h"

static void available_memory_is_between_zero_and_the_machines_memory(void **state) {
    (void)state;
    uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    assert_true(hr__available_memory() > 0);
    assert_true(hr__available_memory() <= total);
}

static void the_address_space_that_is_left_shrinks_with_what_is_mapped(void **state) {
    (void)state;
    if (IS_SANITIZED) skip(); /* a sanitizer's own address space is larger than the limit */
    struct rlimit old, limit;
    getrlimit(RLIMIT_AS, &old);
    limit = (struct rlimit){UINT64_C(1) << 34, old.rlim_max};
    if (old.rlim_max < limit.rlim_cur || setrlimit(RLIMIT_AS, &limit) < 0) skip();
    uint64_t before = hr__address_space_left();
    void *address = mmap(NULL, 64 * MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(address, MAP_FAILED);
    uint64_t after = hr__address_space_left();
    hr__unmap(address, 64 * MIB);
    setrlimit(RLIMIT_AS, &old);
    assert_in_range(before, UINT64_C(1) << 33, limit.rlim_cur);
    assert_in_range(before - after, 32 * MIB, 4096 * (uint64_t)MIB);
    assert_true(hr__address_space_left() >= before);
}

static void there_is_at_least_one_core_and_time_passes(void **state) {
    (void)state;
    assert_in_range(hr__core_count(), 1, sysconf(_SC_NPROCESSORS_CONF));
    int64_t start = hr__now_ns();
    while (hr__now_ns() == start) hr__pause();
    hr__yield();
    assert_int_equal(hr__pid(), getpid());
}

static void note_mask(void *context) {
    pthread_sigmask(SIG_SETMASK, NULL, context);
}

static void a_thread_has_all_signals_blocked_and_its_maker_none_more(void **state) {
    (void)state;
    struct hr__thread thread;
    sigset_t before, after, within;
    sigemptyset(&within);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    must(hr__thread_start(&thread, note_mask, &within));
    hr__thread_join(&thread);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGIO};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        assert_true(sigismember(&within, signals[i]));
        assert_int_equal(sigismember(&after, signals[i]), sigismember(&before, signals[i]));
    }
}

static void shared_memory_is_sparse_but_for_its_head(void **state) {
    (void)state;
    int fd;
    enum hr__memory_kind kind;
    uint64_t bytes;
    must(hr__memory_create("headrace-test", UINT64_C(1) << 40, 100000, &fd, &kind));
    must(hr__memory_bytes(fd, &bytes));
    assert_true(bytes == UINT64_C(1) << 40);
    assert_int_equal(bytes_of(fd), hr__round_up(100000, (uint64_t)sysconf(_SC_PAGESIZE)));
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    must(hr__commit(fd, UINT64_C(1) << 39, MIB));
    assert_true(bytes_of(fd) >= MIB + 100000);
    hr__close(&fd);
    assert_int_equal(fd, -1);
    hr__close(&fd);
}

static void punched_pages_are_released_and_read_as_zeros(void **state) {
    (void)state;
    int fd;
    enum hr__memory_kind kind;
    void *address;
    must(hr__memory_create("headrace-test", 8 * MIB, 8 * MIB, &fd, &kind));
    must(hr__map(fd, 8 * MIB, &address));
    assert_int_equal((uintptr_t)address % (2 * MIB), 0);
    unsigned char *bytes = address;
    memset(bytes, 0xAA, 8 * MIB);
    must(hr__punch(bytes + 2 * MIB, 4 * MIB));
    must(hr__punch(bytes, 0));
    assert_true(bytes_of(fd) <= 4 * MIB + 4096);
    assert_int_equal(bytes[2 * MIB - 1], 0xAA);
    assert_int_equal(bytes[2 * MIB], 0);
    assert_int_equal(bytes[6 * MIB - 1], 0);
    assert_int_equal(bytes[6 * MIB], 0xAA);
    hr__unmap(address, 8 * MIB);
    hr__unmap(NULL, 8 * MIB);
    hr__close(&fd);
}

static void pages_that_were_made_private_keep_their_contents_and_their_address(void **state) {
    (void)state;
    int fd;
    enum hr__memory_kind kind;
    void *address, *other;
    uint64_t page = hr__page_bytes(), words = page / sizeof(uint64_t);
    must(hr__memory_create("headrace-test", MIB, MIB, &fd, &kind));
    must(hr__map(fd, MIB, &address));
    must(hr__map(fd, MIB, &other));
    fill(address, MIB, 7);
    must(hr__make_private((unsigned char *)address + page, 2 * page));
    memset(other, 0, MIB);
    const uint64_t *found = address;
    assert_int_equal(found[words - 1], 0);
    assert_int_equal(found[words], word_of(7, words));
    assert_int_equal(found[3 * words - 1], word_of(7, 3 * words - 1));
    assert_int_equal(found[3 * words], 0);
    hr__unmap(address, MIB);
    hr__unmap(other, MIB);
    hr__close(&fd);
}

static void a_bell_wakes_a_poll_and_is_drained(void **state) {
    (void)state;
    int bell;
    bool ready[2] = {true, false};
    must(hr__eventfd(&bell));
    int fds[] = {-1, bell};
    hr__eventfd_drain(bell); /* does not block */
    assert_int_equal(hr__poll(fds, ready, 2, 0), -ETIMEDOUT);
    must(hr__eventfd_ring(bell));
    must(hr__eventfd_ring(bell));
    assert_int_equal(hr__poll(fds, ready, 2, HR_NO_DEADLINE), 1);
    assert_false(ready[0]);
    assert_true(ready[1]);
    hr__eventfd_drain(bell);
    assert_false(hr__is_readable(bell));
    hr__close(&bell);
}

static void a_poll_of_hundreds_of_descriptors_finds_the_one(void **state) {
    (void)state;
    enum { COUNT = 500 };
    int bell, fds[COUNT];
    bool ready[COUNT];
    must(hr__eventfd(&bell));
    for (int i = 0; i < COUNT; i++) fds[i] = i == 333 ? bell : -1;
    assert_int_equal(hr__poll(fds, ready, COUNT, now_ns() + 1000000), -ETIMEDOUT);
    must(hr__eventfd_ring(bell));
    assert_int_equal(hr__poll(fds, ready, COUNT, HR_NO_DEADLINE), 1);
    for (int i = 0; i < COUNT; i++) assert_int_equal(ready[i], i == 333);
    hr__close(&bell);
}

static void ignore(int signal) {
    (void)signal;
}

static void a_signal_interrupts_a_poll(void **state) {
    (void)state;
    struct sigaction action = {.sa_handler = ignore}, old;
    int read_fd, write_fd;
    must(hr__pipe(&read_fd, &write_fd));
    sigaction(SIGALRM, &action, &old);
    bool ready[1];
    ualarm(1000, 1000); /* again and again: the first may come before the poll */
    assert_int_equal(hr__poll(&read_fd, ready, 1, in_s(PATIENCE_S)), -EINTR);
    ualarm(0, 0);
    sigaction(SIGALRM, &old, NULL);
    hr__close(&write_fd);
    assert_true(hr__is_readable(read_fd)); /* at its end */
    hr__close(&read_fd);
}

static pid_t fork_bound_child(int read_fd, int write_fd, int ready_fd) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid) return pid;
    int own_fd;
    close(write_fd);
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    must(hr__die_with(read_fd, &own_fd));
    must(hr__eventfd_ring(ready_fd));
    for (;;) pause();
}

static void a_process_dies_with_the_other_end_of_its_pipe_and_not_before(void **state) {
    (void)state;
    int read_fd, write_fd, ready_fd, status;
    bool ready[1];
    pid_t children[3];
    must(hr__pipe(&read_fd, &write_fd));
    for (int i = 0; i < 3; i++) {
        must(hr__eventfd(&ready_fd));
        children[i] = fork_bound_child(read_fd, write_fd, ready_fd);
        assert_int_equal(hr__poll(&ready_fd, ready, 1, in_s(PATIENCE_S)), 1);
        hr__close(&ready_fd);
    }
    for (int i = 0; i < 3; i++) assert_int_equal(waitpid(children[i], &status, WNOHANG), 0);
    hr__close(&write_fd);
    for (int i = 0; i < 3; i++) {
        status = reap_pid(children[i]);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    pid_t late = fork();
    if (late == 0) {
        int own_fd;
        hr__die_with(read_fd, &own_fd); /* it is too late already */
        _exit(0);
    }
    assert_true(WIFSIGNALED(reap_pid(late)));
    hr__close(&read_fd);
}

static void a_pidfd_of_no_process_is_refused(void **state) {
    (void)state;
    int fd = 99;
    assert_int_equal(hr__pidfd(-1, &fd), -EINVAL);
    assert_int_equal(hr__pidfd(INT32_MAX, &fd), -ESRCH);
    assert_int_equal(fd, 99);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(available_memory_is_between_zero_and_the_machines_memory),
        cmocka_unit_test(the_address_space_that_is_left_shrinks_with_what_is_mapped),
        cmocka_unit_test(there_is_at_least_one_core_and_time_passes),
        cmocka_unit_test(a_thread_has_all_signals_blocked_and_its_maker_none_more),
        cmocka_unit_test(shared_memory_is_sparse_but_for_its_head),
        cmocka_unit_test(punched_pages_are_released_and_read_as_zeros),
        cmocka_unit_test(pages_that_were_made_private_keep_their_contents_and_their_address),
        cmocka_unit_test(a_bell_wakes_a_poll_and_is_drained),
        cmocka_unit_test(a_poll_of_hundreds_of_descriptors_finds_the_one),
        cmocka_unit_test(a_signal_interrupts_a_poll),
        cmocka_unit_test(a_process_dies_with_the_other_end_of_its_pipe_and_not_before),
        cmocka_unit_test(a_pidfd_of_no_process_is_refused),
    };
    return cmocka_run_group_tests_name("os", tests, NULL, NULL);
}
