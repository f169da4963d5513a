/* SPDX-License-Identifier: Apache-2.0 */
/* The signals that end a job, and the time: for commands that take long. */
#include "stop.h"

#include <signal.h>
#include <stddef.h>
#include <time.h>

static volatile sig_atomic_t stop_signal;

static void note_signal(int signal) {
    stop_signal = signal;
}

void watch_stop_signals(void) {
    struct sigaction action = {.sa_handler = note_signal};
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < 3; i++) {
        struct sigaction before;
        sigaction(signals[i], NULL, &before);
        if (before.sa_handler != SIG_IGN) sigaction(signals[i], &action, NULL); /* nohup ignores SIGHUP */
    }
}

bool is_stopped(void) {
    return stop_signal != 0;
}

int64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}
