/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the file of a loader in a recording. */
#include "writer.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "os/os.h"

enum { NS_PER_US = 1000, NS_PER_MS = 1000000, KIB = 1024, CHUNK_BYTES = 8192 };

static uint32_t narrow(uint64_t value) {
    return (uint32_t)hr__min(value, UINT32_MAX);
}

static uint32_t in_us(uint64_t ns) {
    return narrow((ns + NS_PER_US / 2) / NS_PER_US);
}

static uint32_t in_kib(uint64_t bytes) {
    return narrow((bytes + KIB - 1) / KIB);
}

/* ---- opening ---- */

static void write_head(const struct hr_record_identity *identity, struct hr__record_head *head) {
    *head = (struct hr__record_head){
        .magic = HR__RECORD_MAGIC,
        .version = HR__RECORD_VERSION,
        .pid = identity->pid,
        .loader = identity->loader,
        .rank = identity->rank,
        .world_size = identity->world_size,
        .worker_count = identity->worker_count,
        .queue_room = identity->queue_room,
        .core_count = identity->core_count,
        .opened_ns = identity->opened_ns,
        .began_ns = identity->began_ns,
        .began_real_ns = identity->began_real_ns,
        .memory_bytes = identity->memory_bytes,
    };
    memcpy(head->name, identity->name, sizeof head->name);
    memcpy(head->host, identity->host, sizeof head->host);
    memcpy(head->version_text, identity->version, sizeof head->version_text);
    memcpy(head->command, identity->command, sizeof head->command);
    head->check = hr__record_check_head(head);
}

int hr__record_create(const char *path, const struct hr_record_identity *identity,
                      struct hr__record_writer *ret_writer) {
    unsigned char page[HR__RECORD_RINGS_AT] = {0};
    struct hr__record_head head;
    struct hr__record_writer writer = {
        .fd = -1, .worker_count = identity->worker_count, .began_ns = identity->began_ns};
    hr__record_plan(HR__RECORD_VERSION, identity->worker_count, writer.places);
    write_head(identity, &head);
    memcpy(page, &head, sizeof head);
    int r = hr__file_make(path, &writer.fd);
    if (r < 0) return r;
    r = hr__write_at(writer.fd, 0, page, sizeof page); /* with room for the finish */
    if (r < 0) {
        hr__close(&writer.fd);
        hr__file_remove(path);
        return r;
    }
    *ret_writer = writer;
    return 0;
}

void hr__record_close(struct hr__record_writer *writer) {
    hr__close(&writer->fd);
}

/* ---- rings ---- */

/* Numbers entries that follow each other in memory, and writes them: as few calls as the end of the ring allows. */
static int append(struct hr__record_writer *writer, enum hr__record_ring ring, unsigned char *entries, uint32_t count) {
    const struct hr__record_place *place = &writer->places[ring];
    for (uint32_t i = 0; i < count; i++) {
        struct hr__record_entry entry = {.number = writer->numbers[ring] + 1 + i};
        unsigned char *at = entries + (size_t)i * place->stride;
        memcpy(at, &entry, sizeof entry);
        entry.check = hr__record_check_entry(at, place->stride);
        memcpy(at, &entry, sizeof entry);
    }
    while (count) {
        uint32_t first = writer->numbers[ring] % place->room;
        uint32_t some = (uint32_t)hr__min(count, place->room - first);
        int r = hr__write_at(writer->fd, place->at + (uint64_t)first * place->stride, entries,
                             (size_t)some * place->stride);
        if (r < 0) return r;
        writer->numbers[ring] += some;
        entries += (size_t)some * place->stride;
        count -= some;
    }
    return 0;
}

static void pack_row(const struct hr_record_row *row, struct hr__record_row *to) {
    *to = (struct hr__record_row){
        .at_ns = row->at_ns,
        .real_ns = row->real_ns,
        .bytes = row->bytes,
        .length_us = in_us(row->length_ns),
        .epoch = narrow(row->epoch),
        .step = narrow(row->step),
        .batches = narrow(row->batches),
        .samples = narrow(row->samples),
        .errors = narrow(row->errors),
        .inside_us = in_us(row->inside_ns),
        .start_us = in_us(row->start_ns),
        .starts = narrow(row->starts),
        .wait_us = in_us(row->wait_ns),
        .pin_us = in_us(row->pin_ns),
        .draw_us = in_us(row->draw_ns),
        .rebuild_us = in_us(row->rebuild_ns),
        .restarts = narrow(row->restarts),
        .bad_samples = narrow(row->bad_samples),
        .queue_count = narrow(row->queue_count),
        .used_kib = in_kib(row->used_bytes),
        .cores_busy = narrow(row->cores_busy),
        .cores_allowed = narrow(row->cores_allowed),
        .throttled_us = in_us(row->throttled_ns),
        .available_kib = in_kib(row->memory_available),
        .used_workers = narrow(row->used_workers),
        .trainer_cpu_us = in_us(row->trainer_cpu_ns),
        .trainer_delay_us = in_us(row->trainer_delay_ns),
        .network_us = in_us(row->network_ns),
        .hit_count = narrow(row->hit_count),
        .wait_count = narrow(row->wait_count),
        .fetched_kib = in_kib(row->fetched_bytes),
        .requests = narrow(row->requests),
        .retries = narrow(row->retries),
    };
}

int hr__record_put_row(struct hr__record_writer *writer, enum hr_record_part part, const struct hr_record_row *row,
                       const struct hr_record_worker *workers) {
    enum hr__record_ring ring = part == HR_RECORD_MINUTES ? HR__RING_MINUTES : HR__RING_SECONDS;
    unsigned char *entry = hr__realloc(NULL, writer->places[ring].stride);
    struct hr__record_row packed;
    if (!entry) return -ENOMEM;
    memset(entry, 0, writer->places[ring].stride);
    pack_row(row, &packed);
    memcpy(entry, &packed, sizeof packed);
    for (uint32_t i = 0; i < writer->worker_count; i++) {
        struct hr__record_worker worker = {.fetch_us = in_us(workers[i].fetch_ns),
                                           .collate_us = in_us(workers[i].collate_ns),
                                           .wait_us = in_us(workers[i].wait_ns),
                                           .delay_us = in_us(workers[i].delay_ns),
                                           .cpu_us = in_us(workers[i].cpu_ns),
                                           .private_kib = in_kib(workers[i].private_bytes),
                                           .network_us = in_us(workers[i].network_ns)};
        memcpy(entry + sizeof packed + i * sizeof worker, &worker, sizeof worker);
    }
    int r = append(writer, ring, entry, 1);
    hr__free(entry);
    return r;
}

static void pack_hour(const struct hr_record_hour *hour, struct hr__record_hour *to) {
    *to = (struct hr__record_hour){.at_ns = hour->at_ns};
    for (int i = 0; i < HR_LOOK_BUCKETS; i++) {
        to->samples[i] = narrow(hour->samples[i]);
        to->collates[i] = narrow(hour->collates[i]);
    }
}

int hr__record_put_hour(struct hr__record_writer *writer, const struct hr_record_hour *hour) {
    struct hr__record_hour packed;
    pack_hour(hour, &packed);
    return append(writer, HR__RING_HOURS, (unsigned char *)&packed, 1);
}

int hr__record_put_now(struct hr__record_writer *writer, const struct hr_record_hour *hour,
                       const struct hr_record_sample *slowest, size_t count) {
    struct hr__record_now now = {0};
    if (hour) pack_hour(hour, &now.hour);
    for (size_t i = 0; i < count; i++)
        now.slowest[i] = (struct hr__record_sample){.ns = slowest[i].ns,
                                                    .index = slowest[i].index,
                                                    .began_ns = slowest[i].began_ns,
                                                    .worker = slowest[i].worker,
                                                    .task = narrow(slowest[i].task)};
    return append(writer, HR__RING_NOW, (unsigned char *)&now, 1);
}

static void pack_batch(const struct hr_record_batch *batch, void *to) {
    const struct hr_batch_look *look = &batch->look;
    struct hr__record_batch packed = {.worker = batch->worker,
                                      .number = (uint32_t)look->number,
                                      .task = look->task,
                                      .began_ns = look->began_ns,
                                      .fetch_ns = look->fetch_ns,
                                      .collate_ns = look->collate_ns,
                                      .slowest_index = look->slowest_index,
                                      .slowest_us = in_us(look->slowest_ns),
                                      .kib = in_kib(look->bytes)};
    memcpy(to, &packed, sizeof packed);
}

int hr__record_put_batches(struct hr__record_writer *writer, const struct hr_record_batch *batches, size_t count) {
    enum { MOST = CHUNK_BYTES / sizeof(struct hr__record_batch) };
    unsigned char entries[MOST * sizeof(struct hr__record_batch)];
    int r = 0;
    for (size_t done = 0; r == 0 && done < count;) {
        uint32_t some = (uint32_t)hr__min(count - done, MOST);
        for (uint32_t i = 0; i < some; i++)
            pack_batch(&batches[done + i], entries + i * sizeof(struct hr__record_batch));
        r = append(writer, HR__RING_BATCHES, entries, some);
        done += some;
    }
    return r;
}

static void pack_step(const struct hr__record_writer *writer, const struct hr_record_step *step, void *to) {
    uint64_t since_ns = step->at_ns > writer->began_ns ? (uint64_t)(step->at_ns - writer->began_ns) : 0;
    struct hr__record_step packed = {.at_ms = narrow(since_ns / NS_PER_MS),
                                     .rest_us = (uint32_t)(since_ns % NS_PER_MS / NS_PER_US),
                                     .epoch = narrow(step->epoch),
                                     .step = narrow(step->step),
                                     .inside_us = step->inside_us};
    memcpy(to, &packed, sizeof packed);
}

int hr__record_put_steps(struct hr__record_writer *writer, const struct hr_record_step *steps, size_t count) {
    enum { MOST = CHUNK_BYTES / sizeof(struct hr__record_step) };
    unsigned char entries[MOST * sizeof(struct hr__record_step)];
    int r = 0;
    for (size_t done = 0; r == 0 && done < count;) {
        uint32_t some = (uint32_t)hr__min(count - done, MOST);
        for (uint32_t i = 0; i < some; i++)
            pack_step(writer, &steps[done + i], entries + i * sizeof(struct hr__record_step));
        r = append(writer, HR__RING_STEPS, entries, some);
        done += some;
    }
    return r;
}

int hr__record_finish(struct hr__record_writer *writer, enum hr_record_end end, int64_t ended_ns) {
    struct hr__record_finish finish = {.end = end, .ended_ns = ended_ns};
    finish.check = hr__record_check_finish(&finish);
    return hr__write_at(writer->fd, HR__RECORD_FINISH_AT, &finish, sizeof finish);
}
