/* SPDX-License-Identifier: Apache-2.0 */
/* Doorbells, pipes, polling, and the signal that ends a worker with its trainer. */
#define _GNU_SOURCE
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"

int hr__eventfd(int *ret_fd) {
    int r = hr__fail_at("eventfd");
    if (r < 0) return r;
    return hr__own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), ret_fd);
}

int hr__eventfd_ring(int fd) {
    hr__stop_at(HR__AT_BELL_RING);
    while (write(fd, &(uint64_t){1}, sizeof(uint64_t)) < 0)
        if (errno != EINTR) return errno == EAGAIN ? 0 : -errno; /* EAGAIN: rung 2^64-2 times already */
    hr__stop_at(HR__AT_BELL_RUNG);
    return 0;
}

void hr__eventfd_drain(int fd) {
    uint64_t rings;
    while (read(fd, &rings, sizeof rings) < 0 && errno == EINTR) {
    }
    hr__stop_at(HR__AT_BELL_DRAINED);
}

int hr__pipe(int *ret_read_fd, int *ret_write_fd) {
    int fds[2], read_fd = -1;
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0) return -errno;
    int r = hr__own(fds[0], &read_fd);
    if (r < 0) {
        hr__close(&fds[1]);
        return r;
    }
    r = hr__own(fds[1], ret_write_fd);
    if (r < 0) {
        hr__close(&read_fd);
        return r;
    }
    *ret_read_fd = read_fd;
    return 0;
}

int hr__dup(int fd, int *ret_fd) {
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (copy < 0) return -errno;
    *ret_fd = copy;
    return 0;
}

int hr__own(int fd, int *ret_fd) {
    if (fd < 0) return -errno;
    if (fd > STDERR_FILENO) {
        *ret_fd = fd;
        return 0;
    }
    int r = hr__dup(fd, ret_fd);
    close(fd);
    return r;
}

void hr__close(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

bool hr__is_readable(int fd) {
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    return poll(&poller, 1, 0) > 0;
}

static int poll_until(struct pollfd *fds, size_t count, int64_t deadline_ns) {
    struct timespec left, *timeout = NULL;
    if (deadline_ns != INT64_MAX) {
        int64_t left_ns = deadline_ns - hr__now_ns();
        if (left_ns <= 0) left_ns = 0;
        left = (struct timespec){.tv_sec = left_ns / HR_NS_PER_S, .tv_nsec = left_ns % HR_NS_PER_S};
        timeout = &left;
    }
    int ready = ppoll(fds, count, timeout, NULL);
    if (ready < 0) return -errno;
    return ready == 0 ? -ETIMEDOUT : ready;
}

int hr__poll(const int *fds, bool *ret_ready, size_t count, int64_t deadline_ns) {
    enum { ON_STACK = 64 };
    struct pollfd small[ON_STACK], *pollers = small;
    if (count > ON_STACK) {
        pollers = calloc(count, sizeof *pollers);
        if (!pollers) return -ENOMEM;
    }
    for (size_t i = 0; i < count; i++) pollers[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    int ready = poll_until(pollers, count, deadline_ns);
    for (size_t i = 0; ready > 0 && i < count; i++) ret_ready[i] = fds[i] >= 0 && pollers[i].revents != 0;
    if (pollers != small) free(pollers);
    return ready;
}

/* The owner and the signal are set on the open file description, which a dup'ed or inherited descriptor would share
 * with the other workers. So the pipe is opened again through /proc, which makes a new description. */
int hr__open_anew(int read_fd, int *ret_fd) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", read_fd);
    return hr__own(open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), ret_fd);
}

/* This asks for the kernel version, because a test would have to send signals to this process, while another thread may
 * fork or wait for them. */
int hr__ends_are_signalled(void) {
    enum { FIRST_MAJOR = 5, FIRST_MINOR = 6 }; /* pipe_release in fs/pipe.c: !readers != !writers */
    struct utsname system;
    int r = hr__fail_at("async");
    if (r < 0) return r;
    if (uname(&system) < 0) return -errno;
    char *rest;
    unsigned long major = strtoul(system.release, &rest, 10);
    unsigned long minor = *rest == '.' ? strtoul(rest + 1, NULL, 10) : 0;
    return major > FIRST_MAJOR || (major == FIRST_MAJOR && minor >= FIRST_MINOR) ? 0 : -EOPNOTSUPP;
}

int hr__kill_with(int read_fd, int pid) {
    int r = hr__ends_are_signalled();
    if (r < 0) return r;
    bool is_set = fcntl(read_fd, F_SETSIG, SIGKILL) == 0 && fcntl(read_fd, F_SETOWN, pid) == 0 &&
                  fcntl(read_fd, F_SETFL, O_ASYNC | O_NONBLOCK) == 0;
    if (!is_set) return -errno;
    if (hr__is_readable(read_fd)) kill(pid, SIGKILL); /* the other end was closed before the signal was set up */
    return 0;
}

int hr__die_with(int read_fd, int *ret_own_fd) {
    int fd = -1;
    int r = hr__open_anew(read_fd, &fd);
    if (r < 0) return r;
    r = hr__kill_with(fd, getpid());
    if (r < 0) {
        close(fd);
        return r;
    }
    *ret_own_fd = fd;
    return 0;
}
