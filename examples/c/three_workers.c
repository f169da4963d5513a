/* SPDX-License-Identifier: Apache-2.0 */
/* Three worker processes square rows of numbers; the trainer receives the rows in order, without a copy. */
#include <headrace/headrace.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS = 3, PREFETCH = 2, ROWS = 1000, WIDTH = 4096 };

static void check(int code) {
    if (code >= 0) return;
    fprintf(stderr, "%s\n", hr_error_message());
    exit(1);
}

static void work(struct hr_pass *pass) {
    hr_port *port;
    struct hr_task task;
    check(hr_port_open(pass, &port));
    while (hr_port_take(port, HR_NO_DEADLINE, &task) == 0) {
        int64_t row = *(const int64_t *)task.payload;
        void *data;
        check(hr_port_reserve(port, WIDTH * sizeof(double), &data));
        for (int i = 0; i < WIDTH; i++) ((double *)data)[i] = (double)row * (double)row + i;
        check(hr_port_publish(port, HR_STATUS_BATCH, WIDTH * sizeof(double)));
    }
    hr_port_close(port);
    exit(0);
}

/* The pidfd stays open: a worker that dies is noticed by it. */
static void start(hr_arena *arena, uint32_t worker) {
    struct hr_pass pass;
    int pidfd;
    check(hr_arena_pass(arena, worker, &pass));
    pid_t pid = fork();
    if (pid < 0) exit(1);
    if (pid == 0) work(&pass);
    hr_pass_done(&pass);
    check(hr_open_pidfd(pid, &pidfd));
    check(hr_arena_watch(arena, worker, pidfd));
}

int main(void) {
    hr_loader *loader;
    check(hr_loader_open(&(struct hr_loader_options){.worker_count = WORKERS, .prefetch_factor = PREFETCH}, &loader));
    for (uint32_t i = 0; i < WORKERS; i++) start(hr_loader_arena(loader), i);

    int64_t submitted = 0, row = 0;
    double sum = 0;
    struct hr_delivery *delivery;
    check(hr_loader_begin(loader, NULL, 0, HR_NO_DEADLINE));
    for (; submitted < WORKERS * PREFETCH; submitted++) check(hr_loader_submit(loader, &submitted, sizeof submitted));
    int r;
    for (; (r = hr_loader_next(loader, HR_NO_DEADLINE, &delivery)) == 0; row++) {
        if (submitted < ROWS) check(hr_loader_submit(loader, &submitted, sizeof submitted));
        submitted++;
        const double *values = delivery->data;
        if (values[WIDTH - 1] != (double)row * (double)row + WIDTH - 1) exit(1);
        sum += values[0];
        hr_delivery_done(delivery);
    }
    if (r != HR_E_END) check(r);
    hr_arena_stop(hr_loader_arena(loader));
    while (wait(NULL) > 0) continue;
    hr_loader_close(loader);
    printf("%d rows of %d doubles, sum of the first column %.0f\n", (int)row, WIDTH, sum);
    return row == ROWS ? 0 : 1;
}
