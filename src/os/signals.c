/* SPDX-License-Identifier: Apache-2.0 */
/* Signals that are read from a descriptor. */
#define _GNU_SOURCE
#include "os.h"

#include <errno.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

static void write_set(uint64_t signals, sigset_t *ret_set) {
    sigemptyset(ret_set);
    for (int number = 1; number <= 64; number++)
        if (signals >> (number - 1) & 1) sigaddset(ret_set, number);
}

int hr__signals_open(uint64_t signals, int *ret_fd) {
    sigset_t set;
    int r = hr__fail_at("signalfd");
    if (r < 0) return r;
    write_set(signals, &set);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0) return -errno;
    return hr__own(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), ret_fd);
}

int hr__signals_take(int fd) {
    int sender;
    return hr__signals_take_from(fd, &sender);
}

int hr__signals_take_from(int fd, int *ret_sender) {
    struct signalfd_siginfo info;
    ssize_t bytes;
    do bytes = read(fd, &info, sizeof info);
    while (bytes < 0 && errno == EINTR);
    if (bytes < 0) return errno == EAGAIN ? 0 : -errno;
    if (bytes != sizeof info) return -EIO;
    *ret_sender = info.ssi_code > 0 ? -1 : (int)info.ssi_pid; /* as SI_FROMUSER in <signal.h> of the kernel */
    return (int)info.ssi_signo;
}

void hr__default_signal(int number) {
    signal(number, SIG_DFL);
}

void hr__block_signal(int number) {
    sigset_t set;
    write_set(UINT64_C(1) << (number - 1), &set);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

void hr__stop_self(void) {
    kill(getpid(), SIGSTOP);
}
