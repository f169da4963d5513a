/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <headrace/cache_files.h>
#include <headrace/cache_samples.h>

#include "../src/cache/record.h"
#include "../src/cache/samples.h"
#include "cache/samples.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes);

/* Reads what the cache reads from files: the record of an object, array files and archives of a user, and a table of
 * samples. Whatever the bytes are, they are refused, or what is read is inside the file. */

enum { TABLE_SAMPLES = 20 };

static char folder[64];
static hr_cached *cached; /* a table of samples with some samples */
static hr_samples *samples;
static unsigned char *whole; /* its head, entries and extents as they were */
static uint64_t whole_bytes;

#define SURE(call)                                                                                                     \
    do {                                                                                                               \
        if ((call) < 0) abort();                                                                                       \
    } while (0)

static void write_file(const char *name, const uint8_t *input, size_t bytes) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, input, bytes) != (ssize_t)bytes) abort();
    close(fd);
}

static void read_record(const uint8_t *input, size_t bytes) {
    struct hr__cache_record record;
    write_file("info", input, bytes);
    if (hr__record_read(folder, &record) == 0) hr__record_done(&record);
}

static void read_arrays(const char *name, const uint8_t *input, size_t bytes) {
    char path[128];
    const char *paths[] = {path};
    hr_files_plan *plan = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    write_file(name, input, bytes);
    if (hr_files_plan_new(paths, 1, &plan) == 0) hr_files_plan_free(plan);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info, (void)kind, (void)where;
    return remove(path);
}

static void remove_folder(void) {
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void make_table(void) {
    struct hr_cache_request request = {
        .name = "table", .version = "0", .format = HR_SAMPLES_FORMAT, .keep = HR_CACHE_KEEP_BOOT};
    struct hr_sample sample;
    hr_cache *cache;
    hr_cache_ticket *ticket;
    hr_cache_build *build;
    SURE(hr_cache_open(folder, &cache));
    SURE(hr_cache_ask(cache, &request, &ticket));
    if (hr_cache_wait(ticket, INT64_MAX, &cached, &build) != HR_CACHE_BUILD) abort();
    SURE(hr_samples_build(build, TABLE_SAMPLES, HR_SAMPLES_LEAST_BYTES));
    SURE(hr_cache_build_finish(build, "", &cached));
    SURE(hr_samples_open(cached, &samples));
    for (uint64_t i = 0; i < TABLE_SAMPLES; i += 2) {
        if (hr_samples_begin(samples, i, &sample) != HR_SAMPLE_MAKE) abort();
        SURE(hr_samples_reserve(samples, &sample, 100 * i));
        memset(sample.data, (int)i, sample.bytes);
        SURE(hr_samples_publish(samples, &sample));
    }
    whole_bytes = samples->head->data_at + 8192;
    whole = malloc(whole_bytes);
    if (!whole) abort();
    memcpy(whole, samples->file, whole_bytes);
    hr_cache_ticket_free(ticket);
    hr_cache_close(cache);
}

/* Changes a byte of the table for every four bytes of input, and reads all samples. */
static void read_table(const uint8_t *input, size_t bytes) {
    hr_samples *other = NULL;
    struct hr_samples_report report;
    struct hr_sample sample;
    volatile unsigned char sum = 0;
    memcpy(samples->file, whole, whole_bytes);
    for (; bytes >= 4; input += 4, bytes -= 4) {
        uint64_t at = (uint64_t)(input[0] | input[1] << 8);
        if (input[2] & 1) at = samples->head->extents_at + at % 4096;
        if (input[2] & 2) at = samples->head->data_at + at % 8192;
        if (at < whole_bytes) samples->file[at] ^= input[3];
    }
    if (hr_samples_open(cached, &other) < 0) return;
    hr_samples_look(other, &report);
    for (uint64_t i = 0; i < report.count && i < 2 * TABLE_SAMPLES; i++) {
        int r = hr_samples_begin(other, i, &sample);
        if (r == HR_SAMPLE_READY)
            for (uint64_t k = 0; k < sample.bytes; k += 64) sum += ((const unsigned char *)sample.data)[k];
        if (r == HR_SAMPLE_MAKE && hr_samples_reserve(other, &sample, 500) == HR_SAMPLE_READY)
            hr_samples_publish(other, &sample);
    }
    hr__samples_verify(other);
    hr_samples_close(other);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes) {
    if (!*folder) {
        snprintf(folder, sizeof folder, "/dev/shm/hrc-fuzz-XXXXXX");
        if (!mkdtemp(folder)) abort();
        atexit(remove_folder);
        make_table();
    }
    if (bytes == 0) return 0;
    switch (input[0] % 4) {
    case 0:
        read_record(input + 1, bytes - 1);
        break;
    case 1:
        read_arrays("a.npy", input + 1, bytes - 1);
        break;
    case 2:
        read_arrays("a.npz", input + 1, bytes - 1);
        break;
    default:
        read_table(input + 1, bytes - 1);
    }
    return 0;
}
