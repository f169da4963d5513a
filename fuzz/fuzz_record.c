/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <headrace/headrace.h>

#include "folder.h"
#include "record/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes);

/* Reads the file of a recording. Whatever the bytes are, it is refused, or all of its entries are read. The first byte
 * of input decides whether the rest is the file as it is, or a head and entries, whose checksums are made right. */

enum { FILE_MOST = 1 << 18, WORKERS_MOST = 8 };

static unsigned char file[FILE_MOST];

static void read_part(const hr_record *record, enum hr_record_part part) {
    uint32_t workers = hr_record_identity_of(record)->worker_count;
    struct hr_record_worker worker;
    struct hr_record_sample sample;
    struct hr_record_batch batch;
    struct hr_record_step step;
    struct hr_record_hour hour;
    struct hr_record_row row;
    for (uint64_t i = 0; i < hr_record_count(record, part); i++) {
        if (part == HR_RECORD_HOURS) hr_record_read_hour(record, i, &hour);
        if (part == HR_RECORD_STEPS) hr_record_read_step(record, i, &step);
        if (part == HR_RECORD_BATCHES) {
            hr_record_read_batch(record, i, &batch);
            if (batch.worker && batch.worker >= workers) abort();
        }
        if (part == HR_RECORD_SAMPLES) {
            hr_record_read_sample(record, i, &sample);
            if (sample.worker && sample.worker >= workers) abort();
        }
        if (part != HR_RECORD_SECONDS && part != HR_RECORD_MINUTES) continue;
        hr_record_read_row(record, part, i, &row);
        for (uint32_t k = 0; k < workers; k++) hr_record_read_worker(record, part, i, k, &worker);
    }
}

static void read_file(size_t bytes) {
    hr_record *record;
    write_file("a.hrr", file, bytes);
    if (hr_record_open(path_of("a.hrr"), &record) < 0) return;
    for (int part = 0; part < HR_RECORD_PARTS; part++) read_part(record, (enum hr_record_part)part);
    hr_record_close(record);
}

/* Puts an entry of the input at a place of a ring. Returns how many bytes of input it took. */
static size_t put_entry(const struct hr__record_place *places, const uint8_t *input, size_t bytes, size_t *ret_end) {
    enum { HEAD = 4 };
    if (bytes <= HEAD) return bytes;
    const struct hr__record_place *place = &places[input[0] % HR__RING_COUNT];
    uint32_t i = input[1] % 4, some = (uint32_t)(bytes - HEAD < input[2] ? bytes - HEAD : input[2]);
    uint64_t at = place->at + (uint64_t)i * place->stride;
    if (some > place->stride) some = place->stride;
    if (at + place->stride > FILE_MOST) return HEAD + some;
    memcpy(file + at, input + HEAD, some);
    struct hr__record_entry entry = {.number = input[3] & 1 ? i + 1 : i + 1 + place->room};
    memcpy(file + at, &entry, sizeof entry);
    if (!(input[3] & 2)) entry.check = hr__record_check_entry(file + at, place->stride);
    memcpy(file + at, &entry, sizeof entry);
    if (at + place->stride > *ret_end) *ret_end = at + place->stride;
    return HEAD + some;
}

static size_t write_entries(const uint8_t *input, size_t bytes) {
    struct hr__record_place places[HR__RING_COUNT];
    struct hr__record_head head = {.magic = HR__RECORD_MAGIC, .worker_count = input[0] % WORKERS_MOST};
    head.version = input[0] & 0x80 ? HR__RECORD_VERSION_LEAST : HR__RECORD_VERSION;
    size_t end = HR__RECORD_RINGS_AT;
    hr__record_plan(head.version, head.worker_count, places);
    head.check = hr__record_check_head(&head);
    memcpy(file, &head, sizeof head);
    for (size_t at = 1; at < bytes;) at += put_entry(places, input + at, bytes - at, &end);
    return end;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes) {
    if (!*folder) make_folder();
    if (bytes < 2 || bytes > FILE_MOST) return 0;
    memset(file, 0, sizeof file);
    size_t length = bytes - 1;
    if (input[0] & 1)
        length = write_entries(input + 1, bytes - 1);
    else
        memcpy(file, input + 1, length);
    read_file(length);
    return 0;
}
