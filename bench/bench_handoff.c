/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <headrace/headrace.h>

#include "arena/arena.h"
#include "bench.h"

/* Measures the cost of granting an empty slot to a worker and receiving it again. Lines: "name: value unit (ratio x)".
 */

enum { REPETITIONS = 5, ROUNDS = 20000, SLEEPY_ROUNDS = 100, IDLE_NS = 2000000, BUSY_NS = 5000, WORKERS = 2 };

static void be_busy(int64_t ns) {
    int64_t until = now_ns() + ns;
    while (ns && now_ns() < until) continue;
}

/* ---- the two ends of a round trip ---- */

struct trip {
    void (*go)(struct trip *trip);
    hr_arena *arena;
    int to, from;
};

static void go_arena(struct trip *trip) {
    struct hr_delivery *delivery;
    check(hr__arena_grant(trip->arena, 0, 0, 0, NULL, 0));
    check(hr__arena_receive(trip->arena, 0, HR_NO_DEADLINE, &delivery));
    hr_delivery_done(delivery);
}

static void go_descriptors(struct trip *trip) {
    uint64_t one = 1;
    if (write(trip->to, &one, sizeof one) < 0 || read(trip->from, &one, sizeof one) < 0) exit(1);
}

static double round_trip_us(struct trip *trip, int rounds, int64_t idle_ns) {
    static double times[ROUNDS];
    double medians[REPETITIONS];
    for (int i = 0; i < REPETITIONS; i++) {
        for (int round = 0; round < rounds; round++) {
            if (idle_ns) nanosleep(&(struct timespec){.tv_nsec = idle_ns}, NULL);
            int64_t start = now_ns();
            trip->go(trip);
            times[round] = (double)(now_ns() - start) / 1e3;
        }
        medians[i] = median(times, rounds);
    }
    return median(medians, REPETITIONS);
}

static pid_t start_echo(int from, int to) {
    pid_t pid = fork();
    uint64_t one;
    if (pid) return pid;
    while (read(from, &one, sizeof one) == sizeof one && one < 1000)
        if (write(to, &one, sizeof one) < 0) break;
    _exit(0);
}

static void measure_pipe(double *ret_us, double *ret_idle_us) {
    int there[2], back[2];
    if (pipe(there) < 0 || pipe(back) < 0) exit(1);
    pid_t pid = start_echo(there[0], back[1]);
    struct trip trip = {.go = go_descriptors, .to = there[1], .from = back[0]};
    *ret_us = round_trip_us(&trip, ROUNDS, 0);
    *ret_idle_us = round_trip_us(&trip, SLEEPY_ROUNDS, IDLE_NS);
    if (write(there[1], &(uint64_t){1000}, sizeof(uint64_t)) < 0) exit(1);
    waitpid(pid, NULL, 0);
}

static void measure_eventfd(double *ret_us, double *ret_idle_us) {
    int there = eventfd(0, 0), back = eventfd(0, 0);
    pid_t pid = start_echo(there, back);
    struct trip trip = {.go = go_descriptors, .to = there, .from = back};
    *ret_us = round_trip_us(&trip, ROUNDS, 0);
    *ret_idle_us = round_trip_us(&trip, SLEEPY_ROUNDS, IDLE_NS);
    if (write(there, &(uint64_t){1000}, sizeof(uint64_t)) < 0) exit(1);
    waitpid(pid, NULL, 0);
}

/* ---- the arena ---- */

static _Noreturn void work(struct hr_worker_fds *fds, int64_t busy_ns) {
    hr_port *port;
    struct hr_task task;
    check(hr_port_open(fds, &port));
    while (hr_port_take(port, HR_NO_DEADLINE, &task) == 0) {
        be_busy(busy_ns);
        check(hr_port_publish(port, 0, 0));
    }
    hr_port_close(port);
    _exit(0);
}

static hr_arena *open_arena(uint32_t workers, int64_t busy_ns) {
    hr_arena *arena;
    struct hr__arena_options options = {.worker_count = workers, .prefetch_count = 2 * workers};
    check(hr__arena_open(&options, &arena));
    for (uint32_t i = 0; i < workers; i++) {
        struct hr_worker_fds fds;
        check(hr__arena_open_worker_fds(arena, i, &fds));
        if (fork() == 0) work(&fds, busy_ns);
        hr_worker_fds_close(&fds);
    }
    return arena;
}

static void close_arena(hr_arena *arena) {
    hr_arena_stop(arena);
    while (wait(NULL) > 0) continue;
    hr_arena_close(arena);
}

static void measure_arena(double *ret_us, double *ret_idle_us) {
    struct trip trip = {.go = go_arena, .arena = open_arena(1, 0)};
    round_trip_us(&trip, 1000, 0);
    *ret_us = round_trip_us(&trip, ROUNDS, 0);
    *ret_idle_us = round_trip_us(&trip, SLEEPY_ROUNDS, IDLE_NS);
    close_arena(trip.arena);
}

/* Returns the us per batch if trainer and workers are busy with each batch for `busy_ns`, 2 batches ahead. */
static double pipelined_us(uint32_t workers, int64_t busy_ns, double *ret_sleeps) {
    double times[REPETITIONS];
    uint32_t rounds = busy_ns > BUSY_NS ? ROUNDS / 10 : ROUNDS;
    hr_arena *arena = open_arena(workers, busy_ns);
    struct hr_arena_report before, after;
    for (uint32_t i = 0; i < 2 * workers; i++) check(hr__arena_grant(arena, i % workers, 0, 0, NULL, 0));
    hr_arena_report(arena, &before);
    for (int i = 0; i < REPETITIONS; i++) {
        int64_t start = now_ns();
        for (uint32_t round = 0; round < rounds; round++) {
            struct hr_delivery *delivery;
            check(hr__arena_receive(arena, round % workers, HR_NO_DEADLINE, &delivery));
            check(hr__arena_grant(arena, delivery->worker, 0, 0, NULL, 0));
            be_busy(busy_ns);
            hr_delivery_done(delivery);
        }
        times[i] = (double)(now_ns() - start) / 1e3 / rounds;
    }
    hr_arena_report(arena, &after);
    *ret_sleeps = (double)(after.slept_count - before.slept_count) / REPETITIONS / rounds;
    close_arena(arena);
    return median(times, REPETITIONS);
}

int main(void) {
    double pipe_us, pipe_idle_us, eventfd_us, eventfd_idle_us, us, idle_us, sleeps;
    measure_pipe(&pipe_us, &pipe_idle_us);
    measure_eventfd(&eventfd_us, &eventfd_idle_us);
    measure_arena(&us, &idle_us);
    printf("pipe round trip: %.2f us\n", pipe_us);
    printf("eventfd round trip: %.2f us\n", eventfd_us);
    printf("slot round trip: %.2f us (%.2f x eventfd)\n", us, us / eventfd_us);
    printf("pipe round trip, other asleep for %d ms: %.2f us\n", IDLE_NS / 1000000, pipe_idle_us);
    printf("eventfd round trip, other asleep for %d ms: %.2f us\n", IDLE_NS / 1000000, eventfd_idle_us);
    printf("slot round trip, other asleep for %d ms: %.2f us (%.2f x eventfd)\n", IDLE_NS / 1000000, idle_us,
           idle_us / eventfd_idle_us);
    const int64_t busy_ns[] = {0, BUSY_NS, 20 * BUSY_NS};
    for (size_t i = 0; i < sizeof busy_ns / sizeof *busy_ns; i++)
        for (uint32_t workers = 1; workers <= WORKERS; workers++) {
            double batch_us = pipelined_us(workers, busy_ns[i], &sleeps);
            printf("pipelined, %u workers, busy %.0f us: %.2f us per batch (%.3f sleeps of the trainer)\n", workers,
                   (double)busy_ns[i] / 1e3, batch_us, sleeps);
        }
    return 0;
}
