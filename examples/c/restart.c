/* SPDX-License-Identifier: Apache-2.0 */
/* A dataset with one row that crashes the first worker that reads it. The worker is replaced, and no row is lost or
 * doubled. */
#include <headrace/headrace.h>

#include <stdio.h>
#include <stdlib.h>

enum { WORKERS = 2, PREFETCH = 2, ROWS = 100, WIDTH = 1000, BAD_ROW = 37 };
#define STOP_NS INT64_C(5000000000)

static void check(int code) {
    if (code >= 0) return;
    fprintf(stderr, "%s\n", hr_error_message());
    exit(1);
}

static void read_row(int64_t row, double *values, int crashes) {
    if (row == BAD_ROW && crashes) abort();
    for (int i = 0; i < WIDTH; i++) values[i] = (double)row + i;
}

/* The loop of a worker for one epoch; three_workers.c has the loop for several. `context` points to a copy from the
 * time of the fork. */
static int work(hr_port *port, void *context) {
    int crashes = *(const int *)context;
    struct hr_task task;
    while (hr_port_take(port, HR_NO_DEADLINE, &task) == 0) {
        int64_t row =
            *(const int64_t *)task.payload; /* read it before hr_port_reserve, because the row overwrites it */
        void *values;
        check(hr_port_reserve(port, WIDTH * sizeof(double), &values));
        hr_port_note(port, (uint64_t)row);
        read_row(row, values, crashes);
        check(hr_port_publish(port, HR_STATUS_BATCH, WIDTH * sizeof(double)));
    }
    return 0;
}

/* Prints how the dead worker ended, and starts another one, which makes its rows again. */
static void replace_dead_worker(hr_loader *loader) {
    uint32_t worker = hr_arena_dead_worker(hr_loader_arena(loader));
    struct hr_worker_report report;
    struct hr_succession succession;
    char text[512];
    int crashes = 0;
    check(hr_crew_look(hr_loader_crew(loader), worker, &report));
    hr_crew_describe(&report, text, sizeof text);
    check(hr_loader_replace(loader, worker, &succession));
    check(hr_crew_fork(hr_loader_crew(loader), worker, work, &crashes));
    printf("%s; last row: %d. Replaced, %d rows made again\n", text, (int)report.status.sample,
           (int)succession.granted_count);
}

int main(void) {
    hr_loader *loader;
    int crashes = 1, deaths = 0, r;
    check(hr_loader_open(&(struct hr_loader_options){.worker_count = WORKERS, .prefetch_factor = PREFETCH}, &loader));
    for (uint32_t i = 0; i < WORKERS; i++) check(hr_crew_fork(hr_loader_crew(loader), i, work, &crashes));

    int64_t submitted = 0, row = 0;
    struct hr_delivery *delivery;
    check(hr_loader_begin(loader, NULL, 0, HR_NO_DEADLINE));
    for (; submitted < WORKERS * PREFETCH; submitted++) check(hr_loader_submit(loader, &submitted, sizeof submitted));
    while ((r = hr_loader_next(loader, HR_NO_DEADLINE, &delivery)) != HR_E_END) {
        if (r == HR_E_WORKER_DIED) {
            if (++deaths > 1) exit(1);
            replace_dead_worker(loader);
            continue;
        }
        check(r);
        if (submitted < ROWS) check(hr_loader_submit(loader, &submitted, sizeof submitted));
        submitted++;
        const double *values = delivery->data;
        if (values[0] != (double)row || values[WIDTH - 1] != (double)row + WIDTH - 1) exit(1);
        hr_delivery_done(delivery);
        row++;
    }
    int running = hr_crew_stop(hr_loader_crew(loader), STOP_NS);
    hr_loader_close(loader);
    printf("%d rows in order, %d death\n", (int)row, deaths);
    return row == ROWS && deaths == 1 && running == 0 ? 0 : 1;
}
