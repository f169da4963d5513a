/* SPDX-License-Identifier: Apache-2.0 */
/* Clocks and deadlines. */
#include "os.h"

#include <sched.h>
#include <time.h>

#include "base/base.h"

static int64_t read_clock(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * HR_NS_PER_S + t.tv_nsec;
}

int64_t hr__now_ns(void) {
    return read_clock(CLOCK_MONOTONIC);
}

int64_t hr__wall_ns(void) {
    return read_clock(CLOCK_REALTIME);
}

int64_t hr__coarse_now_ns(void) {
    return read_clock(CLOCK_MONOTONIC_COARSE);
}

void hr__sleep_until(int64_t deadline_ns) {
    struct timespec until = {deadline_ns / HR_NS_PER_S, deadline_ns % HR_NS_PER_S};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
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

int64_t hr__wall_s(void) {
    return time(NULL);
}
