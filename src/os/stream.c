/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes streams; terminals for ranks. */
#define _GNU_SOURCE
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

int hr__read(int fd, void *data, size_t bytes) {
    ssize_t length;
    do length = read(fd, data, bytes);
    while (length < 0 && errno == EINTR);
    return length < 0 ? -errno : (int)length;
}

size_t hr__readable_bytes(int fd) {
    int bytes = 0;
    return fd >= 0 && ioctl(fd, FIONREAD, &bytes) == 0 && bytes > 0 ? (size_t)bytes : 0;
}

static void await_room(int fd) {
    struct pollfd poller = {.fd = fd, .events = POLLOUT};
    poll(&poller, 1, -1);
}

int hr__write_all(int fd, const void *data, size_t bytes) {
    const char *at = data;
    while (bytes) {
        ssize_t written = write(fd, at, bytes);
        if (written < 0 && errno == EAGAIN) await_room(fd); /* another program has made it non-blocking */
        if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (written < 0) return -errno;
        at += written;
        bytes -= (size_t)written;
    }
    return 0;
}

int hr__stream_pair(int ret_fds[2]) {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0) return -errno;
    int r = hr__own(fds[0], &ret_fds[0]);
    if (r < 0) {
        hr__close(&fds[1]);
        return r;
    }
    r = hr__own(fds[1], &ret_fds[1]);
    if (r < 0) hr__close(&ret_fds[0]);
    return r;
}

int hr__output_pipe(int *ret_read_fd, int *ret_write_fd) {
    int r = hr__pipe(ret_read_fd, ret_write_fd);
    if (r == 0) fcntl(*ret_write_fd, F_SETFL, 0); /* programs do not expect that a write would block */
    return r;
}

bool hr__is_same_file(int first, int second) {
    struct stat a, b;
    return fstat(first, &a) == 0 && fstat(second, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

bool hr__has_file(int pid, int fd) {
    char path[64];
    struct stat own, theirs;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    return fstat(fd, &own) == 0 && stat(path, &theirs) == 0 && own.st_dev == theirs.st_dev &&
           own.st_ino == theirs.st_ino;
}

bool hr__is_terminal(int fd) {
    return isatty(fd) == 1;
}

bool hr__is_foreground(int fd) {
    return tcgetpgrp(fd) == getpgrp();
}

void hr__replace_fd(int fd, int number) {
    dup2(fd, number);
}

int hr__open_null(int *ret_fd) {
    return hr__own(open("/dev/null", O_RDWR | O_CLOEXEC), ret_fd);
}

/* ---- a terminal for a rank ---- */

int hr__terminal_open(int like_fd, int *ret_master_fd, int *ret_rank_fd) {
    struct termios modes;
    struct winsize size;
    int master, slave;
    if (tcgetattr(like_fd, &modes) < 0) return -errno;
    bool has_size = ioctl(like_fd, TIOCGWINSZ, &size) == 0;
    if (openpty(&master, &slave, NULL, &modes, has_size ? &size : NULL) < 0) return -errno;
    fcntl(master, F_SETFD, FD_CLOEXEC);
    fcntl(slave, F_SETFD, FD_CLOEXEC);
    int r = hr__own(master, ret_master_fd);
    if (r < 0) {
        close(slave);
        return r;
    }
    r = hr__own(slave, ret_rank_fd);
    if (r < 0) {
        hr__close(ret_master_fd);
        return r;
    }
    fcntl(*ret_master_fd, F_SETFL, O_NONBLOCK);
    return 0;
}

void hr__terminal_copy_size(int from_fd, int to_fd) {
    struct winsize size;
    if (ioctl(from_fd, TIOCGWINSZ, &size) == 0) ioctl(to_fd, TIOCSWINSZ, &size);
}

int hr__terminal_modes(int fd, struct hr__terminal_modes *ret_modes) {
    return tcgetattr(fd, &ret_modes->modes) < 0 ? -errno : 0;
}

/* Keys arrive one by one and are not shown, because the terminal of the rank shows them. Output is still processed, so
 * that lines of other ranks begin at the left. */
int hr__terminal_pass_keys(int fd, const struct hr__terminal_modes *before) {
    struct termios modes = before->modes;
    modes.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG | IEXTEN);
    modes.c_iflag &= ~(tcflag_t)(IXON | ICRNL | INLCR);
    modes.c_cc[VMIN] = 1;
    modes.c_cc[VTIME] = 0;
    return tcsetattr(fd, TCSADRAIN, &modes) < 0 ? -errno : 0;
}

void hr__terminal_restore(int fd, const struct hr__terminal_modes *modes) {
    tcsetattr(fd, TCSADRAIN, &modes->modes);
}

enum hr__key hr__terminal_key(int rank_terminal_fd, unsigned char key) {
    struct termios modes;
    if (tcgetattr(rank_terminal_fd, &modes) < 0 || !(modes.c_lflag & ISIG)) return HR__KEY_OTHER;
    if (key == modes.c_cc[VINTR]) return HR__KEY_INTERRUPT;
    if (key == modes.c_cc[VQUIT]) return HR__KEY_QUIT;
    return key == modes.c_cc[VSUSP] ? HR__KEY_SUSPEND : HR__KEY_OTHER;
}
