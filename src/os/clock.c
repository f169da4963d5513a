/* SPDX-License-Identifier: Apache-2.0 */
/* Clocks and deadlines. */
#include "os.h"

#include <sched.h>
#include <stdatomic.h>
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

int64_t hr__thread_cpu_ns(void) {
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

int64_t hr__coarse_now_ns(void) {
    return read_clock(CLOCK_MONOTONIC_COARSE);
}

/* The quickest of a few tries: the others were interrupted. */
static uint64_t measure_clock(void) {
    enum { TRIES = 3, READS = 16 };
    int64_t best_ns = INT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        int64_t began_ns = hr__now_ns(), end_ns = began_ns;
        for (int read = 0; read < READS; read++) end_ns = hr__now_ns();
        best_ns = end_ns - began_ns < best_ns ? end_ns - began_ns : best_ns;
    }
    return hr__max((uint64_t)best_ns / READS, 1);
}

uint64_t hr__clock_cost_ns(void) {
    static _Atomic uint64_t cost_ns; /* threads that measure at the same time store about the same */
    uint64_t known_ns = atomic_load_explicit(&cost_ns, memory_order_relaxed);
    if (known_ns) return known_ns;
    known_ns = measure_clock();
    atomic_store_explicit(&cost_ns, known_ns, memory_order_relaxed);
    return known_ns;
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
