/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_BENCH_BENCH_H
#define HR_BENCH_BENCH_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <headrace/headrace.h>

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Ends the program with the library's message if a call failed. */
static inline void check(int result) {
    if (result >= 0) return;
    fprintf(stderr, "bench: %d, %s\n", result, hr_error_message());
    exit(1);
}

static inline int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the values. */
static inline double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return values[count / 2];
}

#endif
