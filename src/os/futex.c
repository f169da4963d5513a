/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "os.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"

/* Waiting for a word in shared memory. The locks of shared arrays call it. */

int hr__futex_wait(_Atomic uint32_t *word, uint32_t value, int64_t deadline_ns) {
    struct timespec deadline = {.tv_sec = deadline_ns / HR_NS_PER_S, .tv_nsec = deadline_ns % HR_NS_PER_S};
    long r = syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, &deadline, NULL, FUTEX_BITSET_MATCH_ANY);
    return r < 0 ? -errno : 0;
}

void hr__futex_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}
