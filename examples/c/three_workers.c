/* SPDX-License-Identifier: Apache-2.0 */
/* Three worker processes square rows of numbers, in two epochs; the trainer receives the rows in order, without a copy.
 */
#include <headrace/headrace.h>

#include <stdio.h>
#include <stdlib.h>

enum { WORKERS = 3, PREFETCH = 2, EPOCHS = 2, ROWS = 1000, WIDTH = 4096 };
#define STOP_NS INT64_C(5000000000)

static void check(int code) {
    if (code >= 0) return;
    fprintf(stderr, "%s\n", hr_error_message());
    exit(1);
}

static void make_row(hr_port *port, int64_t row) {
    void *data;
    check(hr_port_reserve(port, WIDTH * sizeof(double), &data));
    for (int i = 0; i < WIDTH; i++) ((double *)data)[i] = (double)row * (double)row + i;
    check(hr_port_publish(port, HR_STATUS_BATCH, WIDTH * sizeof(double)));
}

static int work(hr_port *port, void *context) {
    struct hr_task task;
    (void)context;
    while (hr_port_take(port, HR_NO_DEADLINE, &task) == 0) {
        if (task.kind == HR_TASK_STOP) break;
        if (task.kind == HR_TASK_EPOCH)
            check(hr_port_publish(port, HR_STATUS_SKIPPED, 0));
        else
            make_row(port, *(const int64_t *)task.payload);
    }
    return 0;
}

/* Returns the sum of the first column. */
static double run_epoch(hr_loader *loader) {
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
    if (row != ROWS) exit(1);
    return sum;
}

int main(void) {
    hr_loader *loader;
    check(hr_loader_open(&(struct hr_loader_options){.worker_count = WORKERS, .prefetch_factor = PREFETCH}, &loader));
    for (uint32_t i = 0; i < WORKERS; i++) check(hr_crew_fork(hr_loader_crew(loader), i, work, NULL));

    for (int epoch = 0; epoch < EPOCHS; epoch++)
        printf("%d rows of %d doubles, sum of the first column %.0f\n", ROWS, WIDTH, run_epoch(loader));
    hr_crew_stop(hr_loader_crew(loader), STOP_NS);
    hr_loader_close(loader);
    return 0;
}
