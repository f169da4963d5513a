/* SPDX-License-Identifier: Apache-2.0 */

/*
 * MPI: the ranks of a job read one file of frozen data, each its own part of a shuffled order, and add up what they
 * read. All ranks of a machine map the same memory. `records.c` shows how such a file is written; here rank 0 writes
 * it.
 *
 *     mpicc mpi_frozen.c $(pkg-config --cflags --libs --static headrace) -o mpi_frozen && mpirun -n 4 ./mpi_frozen
 */

#include <headrace/headrace.h>
#include <headrace/sampler.h>
#include <mpi.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECORDS = 1000 };

static int check(int r, const char *what) {
    if (r >= 0) return r;
    fprintf(stderr, "mpi_frozen: %s: %s\n", what, *hr_error_message() ? hr_error_message() : hr_error_text(r));
    MPI_Abort(MPI_COMM_WORLD, 1);
    return r;
}

/* A list of the squares of 0 to RECORDS - 1. */
static void write_squares(const char *path) {
    hr_builder *builder;
    hr_frozen *frozen;
    hr_value list, square;
    check(hr_builder_open(path, &builder), "the builder");
    check(hr_builder_container(builder, HR_KIND_LIST, RECORDS, &list), "the list");
    for (int64_t i = 0; i < RECORDS; i++) {
        check(hr_builder_int(builder, i * i, &square), "a square");
        check(hr_builder_put(builder, list, (uint64_t)i, square), "a place");
    }
    check(hr_builder_finish(builder, list, &frozen), "the frozen data");
    hr_frozen_close(frozen);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const char *path = argc > 1 ? argv[1] : "squares.frozen";
    if (rank == 0) write_squares(path);
    MPI_Barrier(MPI_COMM_WORLD);

    hr_frozen *frozen;
    struct hr_item list, square;
    check(hr_frozen_open(path, 0, &frozen), "the file");
    check(hr_frozen_read(frozen, hr_frozen_root(frozen), &list), "the list");

    struct hr_order order;
    struct hr_deal deal;
    check(hr_order_stream((int64_t)list.count, 0, 0, &order), "the order"); /* seed 0, epoch 0 */
    check(hr_deal_rank((int64_t)list.count, 0, size, rank, true, &deal), "the part of this rank");
    int64_t sum = 0, first = -1;
    for (int64_t i = 0; i < deal.count; i++) {
        int64_t index = hr_order_at(&order, deal.first + i * deal.step);
        check(hr_frozen_at(frozen, &list, (uint64_t)index, &square), "a record");
        if (i == 0) first = index;
        sum += square.integer;
    }
    printf("rank %d of %d read %" PRId64 " records, the first one is %" PRId64 "\n", rank, size, deal.count, first);

    int64_t total;
    MPI_Reduce(&sum, &total, 1, MPI_INT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("sum of all: %" PRId64 "\n", total);
        remove(path);
    }
    hr_frozen_close(frozen);
    MPI_Finalize();
    return 0;
}
