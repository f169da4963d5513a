/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <headrace/headrace.h>

#include "arena/arena.h"
#include "bench.h"

/* Measures the cost of moving bytes through a slot, compared with a plain memcpy. Lines: "name: value unit (ratio x)".
 */

enum { REPETITIONS = 5, ROUNDS = 20, WARM_UP = 10 };

static long count_faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

/* Written by the worker, read by the trainer. */
struct board {
    double write_us[ROUNDS]; /* the times of the last rounds */
    double plain_us[ROUNDS];
    long faults; /* so far */
};

static struct board *board;

static void *buffer_new(uint64_t bytes) {
    void *memory = aligned_alloc(1 << 21, bytes);
    if (!memory) exit(1);
    return memset(memory, 1, bytes);
}

static double copy_us(void *to, const void *from, uint64_t bytes) {
    int64_t start = now_ns();
    memcpy(to, from, bytes);
    __asm__ volatile("" ::: "memory");
    return (double)(now_ns() - start) / 1e3;
}

/* Writes each batch from a warm private buffer; the plain memcpy for comparison goes to another buffer. */
static _Noreturn void work(struct hr_worker_fds *fds, uint64_t bytes) {
    hr_port *port;
    struct hr_task task;
    void *from = buffer_new(bytes), *other = buffer_new(bytes), *data;
    check(hr_port_open(fds, &port));
    while (hr_port_take(port, HR_NO_DEADLINE, &task) == 0) {
        uint64_t round = task.task % ROUNDS;
        if (task.kind == 1) board->plain_us[round] = copy_us(other, from, bytes);
        check(hr_port_reserve(port, bytes, &data));
        if (task.kind == 0) board->write_us[round] = copy_us(data, from, bytes);
        board->faults = count_faults();
        check(hr_port_publish(port, 0, bytes));
    }
    hr_port_close(port);
    _exit(0);
}

/* Sends one batch to the worker and back. Returns the us from the grant until the trainer has read it. */
static double go(hr_arena *arena, uint32_t kind, uint64_t task, void *to) {
    struct hr_delivery *delivery;
    int64_t start = now_ns();
    check(hr__arena_grant(arena, 0, kind, task, NULL, 0));
    check(hr__arena_receive(arena, 0, HR_NO_DEADLINE, &delivery));
    if (to) memcpy(to, delivery->data, delivery->bytes);
    hr_delivery_done(delivery);
    return (double)(now_ns() - start) / 1e3;
}

static void measure(uint64_t bytes) {
    double write_us[REPETITIONS], plain_us[REPETITIONS], whole_us[REPETITIONS], read_plain_us[REPETITIONS];
    double rounds[ROUNDS], plain_rounds[ROUNDS];
    hr_arena *arena;
    struct hr_worker_fds fds;
    void *to = buffer_new(bytes), *from = buffer_new(bytes);
    check(hr__arena_open(&(struct hr__arena_options){.worker_count = 1, .prefetch_count = 2}, &arena));
    check(hr__arena_open_worker_fds(arena, 0, &fds));
    if (fork() == 0) work(&fds, bytes);
    hr_worker_fds_close(&fds);
    for (uint64_t i = 0; i < WARM_UP; i++) go(arena, i % 2, i, to);

    long faults = count_faults(), worker_faults = board->faults;
    struct hr_arena_report before, after;
    hr_arena_report(arena, &before);
    for (int r = 0; r < REPETITIONS; r++) {
        for (uint64_t i = 0; i < ROUNDS; i++) {
            go(arena, 1, i, NULL); /* the plain memcpy, in turn with the batch */
            plain_rounds[i] = copy_us(to, from, bytes);
            rounds[i] = go(arena, 0, i, to);
        }
        write_us[r] = median(board->write_us, ROUNDS);
        plain_us[r] = median(board->plain_us, ROUNDS);
        read_plain_us[r] = median(plain_rounds, ROUNDS);
        whole_us[r] = median(rounds, ROUNDS);
    }
    hr_arena_report(arena, &after);
    double batches = (double)(after.delivered_count - before.delivered_count);
    double plain = median(plain_us, REPETITIONS), write = median(write_us, REPETITIONS);
    double whole = median(whole_us, REPETITIONS), both = plain + median(read_plain_us, REPETITIONS);
    uint64_t kib = bytes >> 10;
    printf("%llu KiB, plain memcpy: %.1f us\n", (unsigned long long)kib, plain);
    printf("%llu KiB, written into a warm slot: %.1f us (%.2f x memcpy)\n", (unsigned long long)kib, write,
           write / plain);
    printf("%llu KiB, granted, written, received and copied out: %.1f us (%.2f x two memcpys)\n",
           (unsigned long long)kib, whole, whole / both);
    printf("%llu KiB, page faults per batch: %.3f in the trainer, %.3f in the worker\n", (unsigned long long)kib,
           (double)(count_faults() - faults) / batches, (double)(board->faults - worker_faults) / batches);
    printf("%llu KiB, sleeps of the trainer per batch: %.3f\n", (unsigned long long)kib,
           (double)(after.slept_count - before.slept_count) / batches);
    hr_arena_stop(arena);
    wait(NULL);
    hr_arena_close(arena);
    free(to);
    free(from);
}

int main(void) {
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) return 1;
    memset(board, 0, sizeof *board);
    measure(UINT64_C(32) << 20);
    measure(UINT64_C(2) << 20);
    measure(UINT64_C(64) << 10);
    return 0;
}
