/* SPDX-License-Identifier: Apache-2.0 */
#include "os.h"

#include <sched.h>
#include <time.h>

#include "base/base.h"

int64_t hr__now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * HR_NS_PER_S + t.tv_nsec;
}

void hr__pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb");
#endif
}

void hr__yield(void) {
    sched_yield();
}
