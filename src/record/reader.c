/* SPDX-License-Identifier: Apache-2.0 */
/* hr_record: reads the file of a loader in a recording, and checks all of it. `headrace report` calls it. */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "format.h"
#include "os/os.h"

enum { NS_PER_US = 1000, NS_PER_MS = 1000000, KIB = 1024 };

/* The places of the entries of a ring, oldest first. */
struct found {
    uint32_t *places;
    uint32_t count;
};

struct hr_record {
    unsigned char *bytes; /* the file */
    uint64_t length;
    uint32_t version;
    struct hr_record_identity identity;
    struct hr_record_info info;
    struct hr__record_place places[HR__RING_COUNT];
    struct found found[HR__RING_COUNT];
    struct hr__record_now now; /* the newest; zeros: it has no such entry */
    uint32_t slowest_count;
};

static const char NO_RECORDING[] =
    "this is not the file of a recording; give one that ends with .hrr, or the folder of HEADRACE_RECORD";

static int fail(int code, const char *path, const char *why) {
    return hr__fail(code, "recording: %s: %s", path, why);
}

/* ---- the head ---- */

static int check_head(const char *path, const struct hr__record_head *head, uint64_t length) {
    if (length < sizeof *head || head->magic != HR__RECORD_MAGIC) return fail(-EINVAL, path, NO_RECORDING);
    if (head->version < HR__RECORD_VERSION_LEAST || head->version > HR__RECORD_VERSION)
        return hr__fail(HR_E_VERSION,
                        "recording: %s: it has format %u, and this headrace reads formats %d to %d; read it with the "
                        "headrace that has recorded it, or a newer one",
                        path, head->version, HR__RECORD_VERSION_LEAST, HR__RECORD_VERSION);
    if (head->check != hr__record_check_head(head) || head->worker_count > HR_ARENA_MAX_WORKERS)
        return fail(-EBADMSG, path, "its first bytes are damaged, so the rest of it cannot be read");
    return 0;
}

static void copy_text(char *to, const char *from, size_t bytes) {
    memcpy(to, from, bytes - 1);
    to[bytes - 1] = '\0';
}

static void read_identity(const struct hr__record_head *head, struct hr_record_identity *identity) {
    *identity = (struct hr_record_identity){
        .pid = head->pid,
        .loader = head->loader,
        .rank = head->rank,
        .world_size = head->world_size,
        .worker_count = head->worker_count,
        .queue_room = head->queue_room,
        .core_count = head->core_count,
        .opened_ns = head->opened_ns,
        .began_ns = head->began_ns,
        .began_real_ns = head->began_real_ns,
        .memory_bytes = head->memory_bytes,
    };
    copy_text(identity->name, head->name, sizeof identity->name);
    copy_text(identity->host, head->host, sizeof identity->host);
    copy_text(identity->version, head->version_text, sizeof identity->version);
    copy_text(identity->command, head->command, sizeof identity->command);
}

static void read_finish(hr_record *record) {
    struct hr__record_finish finish;
    if (record->length < HR__RECORD_FINISH_AT + sizeof finish) return;
    memcpy(&finish, record->bytes + HR__RECORD_FINISH_AT, sizeof finish);
    if (finish.end == HR_RECORD_OPEN && finish.check == 0) return;
    if (finish.check != hr__record_check_finish(&finish) || finish.end >= HR_RECORD_ENDS) {
        record->info.torn_count++;
        return;
    }
    record->info.end = (enum hr_record_end)finish.end;
    record->info.ended_ns = finish.ended_ns;
}

/* ---- the rings ---- */

static bool is_unwritten(const unsigned char *entry, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i++)
        if (entry[i]) return false;
    return true;
}

/* Callers use the number of a worker as an index. */
static bool has_worker(const hr_record *record, enum hr__record_ring ring, const unsigned char *at) {
    struct hr__record_batch batch;
    struct hr__record_now now;
    uint32_t count = (uint32_t)hr__max(record->identity.worker_count, 1);
    bool is_known = true;
    if (ring == HR__RING_BATCHES) {
        memcpy(&batch, at, sizeof batch);
        return batch.worker < count;
    }
    if (ring != HR__RING_NOW) return true;
    memcpy(&now, at, sizeof now);
    for (int i = 0; i < HR_RECORD_SLOWEST; i++) is_known = is_known && now.slowest[i].worker < count;
    return is_known;
}

/* Returns the number of the entry at place `i`; 0: there is no entry that can be read. */
static uint32_t number_at(hr_record *record, enum hr__record_ring ring, uint32_t i) {
    const struct hr__record_place *place = &record->places[ring];
    const unsigned char *at = record->bytes + place->at + (uint64_t)i * place->stride;
    struct hr__record_entry entry;
    memcpy(&entry, at, sizeof entry);
    if (entry.check == 0 && entry.number == 0 && is_unwritten(at, place->stride)) return 0;
    if (entry.number && (entry.number - 1) % place->room == i &&
        entry.check == hr__record_check_entry(at, place->stride) && has_worker(record, ring, at))
        return entry.number;
    record->info.torn_count++;
    return 0;
}

/* The entries that are in the file; one that was cut is torn. */
static uint32_t count_places(hr_record *record, enum hr__record_ring ring) {
    const struct hr__record_place *place = &record->places[ring];
    uint64_t bytes = record->length > place->at ? record->length - place->at : 0;
    if (bytes / place->stride < place->room && bytes % place->stride) record->info.torn_count++;
    return (uint32_t)hr__min(bytes / place->stride, place->room);
}

/* An entry that is older than the room of its ring was left there by a write that is missing. */
static int find_entries(hr_record *record, enum hr__record_ring ring) {
    struct found *found = &record->found[ring];
    uint32_t room = record->places[ring].room, count = count_places(record, ring), newest = 0;
    uint32_t *numbers = hr__realloc(NULL, ((size_t)room + 1) * sizeof *numbers);
    found->places = hr__realloc(NULL, ((size_t)room + 1) * sizeof *found->places);
    if (!numbers || !found->places) {
        hr__free(numbers);
        return hr__fail(-ENOMEM, "recording: not enough memory");
    }
    for (uint32_t i = 0; i < count; i++) {
        numbers[i] = number_at(record, ring, i);
        newest = (uint32_t)hr__max(newest, numbers[i]);
    }
    for (uint64_t number = newest > room ? (uint64_t)newest - room + 1 : 1; number <= newest; number++) {
        uint32_t place = (uint32_t)((number - 1) % room);
        if (place < count && numbers[place] == number) found->places[found->count++] = place;
    }
    hr__free(numbers);
    return 0;
}

static const unsigned char *entry_of(const hr_record *record, enum hr__record_ring ring, uint64_t number) {
    const struct hr__record_place *place = &record->places[ring];
    assert(number < record->found[ring].count);
    return record->bytes + place->at + (uint64_t)record->found[ring].places[number] * place->stride;
}

static void read_now(hr_record *record) {
    uint32_t count = record->found[HR__RING_NOW].count;
    if (!count) return;
    memcpy(&record->now, entry_of(record, HR__RING_NOW, count - 1), sizeof record->now);
    while (record->slowest_count < HR_RECORD_SLOWEST && record->now.slowest[record->slowest_count].ns)
        record->slowest_count++;
}

/* ---- opening ---- */

static int read_bytes(const char *path, int fd, hr_record *record) {
    int r = hr__memory_bytes(fd, &record->length);
    if (r < 0) return hr__fail(r, "recording: cannot read %s: %s", path, hr_error_text(r));
    if (record->length < sizeof(struct hr__record_head)) return fail(-EINVAL, path, NO_RECORDING);
    record->bytes = hr__realloc(NULL, hr__min(record->length, HR_RECORD_MAX_BYTES));
    if (!record->bytes) return hr__fail(-ENOMEM, "recording: not enough memory for %s", path);
    r = hr__read_at(fd, 0, record->bytes, sizeof(struct hr__record_head));
    if (r == 0) return 0;
    return hr__fail(r, "recording: cannot read %s: %s", path, hr_error_text(r));
}

static int read_rest(const char *path, int fd, hr_record *record) {
    if (record->length > HR_RECORD_MAX_BYTES)
        return hr__fail(-EBADMSG, "recording: %s: it has %llu bytes, and the file of a recording has at most %d", path,
                        (unsigned long long)record->length, HR_RECORD_MAX_BYTES);
    int r = hr__read_at(fd, 0, record->bytes, record->length);
    if (r == -EIO) return fail(-EBADMSG, path, "it became shorter while it was read");
    return r < 0 ? hr__fail(r, "recording: cannot read %s: %s", path, hr_error_text(r)) : 0;
}

static int read_file(const char *path, int fd, hr_record *record) {
    struct hr__record_head head;
    int r = read_bytes(path, fd, record);
    if (r < 0) return r;
    memcpy(&head, record->bytes, sizeof head);
    r = check_head(path, &head, record->length);
    if (r == 0) r = read_rest(path, fd, record);
    if (r < 0) return r;
    read_identity(&head, &record->identity);
    read_finish(record);
    record->version = head.version;
    hr__record_plan(head.version, head.worker_count, record->places);
    for (int ring = 0; r == 0 && ring < HR__RING_COUNT; ring++) r = find_entries(record, (enum hr__record_ring)ring);
    if (r == 0) read_now(record);
    return r;
}

int hr_record_open(const char *path, hr_record **ret_record) {
    int fd = -1;
    int r = hr__file_open(path, &fd);
    if (r == -EINVAL) return fail(r, path, "this is not a file");
    if (r < 0) return hr__fail(r, "recording: cannot read %s: %s", path, hr_error_text(r));
    hr_record *record = hr__realloc(NULL, sizeof *record);
    if (!record) {
        hr__close(&fd);
        return hr__fail(-ENOMEM, "recording: not enough memory for %s", path);
    }
    memset(record, 0, sizeof *record);
    r = read_file(path, fd, record);
    hr__close(&fd);
    if (r < 0) {
        hr_record_close(record);
        return r;
    }
    *ret_record = record;
    return 0;
}

hr_record *hr_record_close(hr_record *record) {
    if (!record) return NULL;
    for (int ring = 0; ring < HR__RING_COUNT; ring++) hr__free(record->found[ring].places);
    hr__free(record->bytes);
    hr__free(record);
    return NULL;
}

/* ---- reading ---- */

const struct hr_record_identity *hr_record_identity_of(const hr_record *record) {
    return &record->identity;
}

void hr_record_look(const hr_record *record, struct hr_record_info *ret_info) {
    *ret_info = record->info;
}

/* A recorder that ended between two writes has left its last hour in both rings. */
static bool has_current_hour(const hr_record *record) {
    struct hr__record_hour last = {.at_ns = 0};
    uint32_t count = record->found[HR__RING_HOURS].count;
    if (count) memcpy(&last, entry_of(record, HR__RING_HOURS, count - 1), sizeof last);
    return record->now.hour.at_ns > last.at_ns;
}

uint64_t hr_record_count(const hr_record *record, enum hr_record_part part) {
    static const enum hr__record_ring rings[] = {[HR_RECORD_SECONDS] = HR__RING_SECONDS,
                                                 [HR_RECORD_MINUTES] = HR__RING_MINUTES,
                                                 [HR_RECORD_HOURS] = HR__RING_HOURS,
                                                 [HR_RECORD_BATCHES] = HR__RING_BATCHES,
                                                 [HR_RECORD_STEPS] = HR__RING_STEPS};
    if (part == HR_RECORD_SAMPLES) return record->slowest_count;
    return record->found[rings[part]].count + (part == HR_RECORD_HOURS && has_current_hour(record));
}

static enum hr__record_ring ring_of_rows(enum hr_record_part part) {
    return part == HR_RECORD_MINUTES ? HR__RING_MINUTES : HR__RING_SECONDS;
}

static uint64_t us(uint32_t us) {
    return (uint64_t)us * NS_PER_US;
}

static uint64_t kib(uint32_t kib) {
    return (uint64_t)kib * KIB;
}

void hr_record_read_row(const hr_record *record, enum hr_record_part part, uint64_t number,
                        struct hr_record_row *ret_row) {
    struct hr__record_row row = {.network_us = 0}; /* what an older file does not have */
    uint32_t workers = record->identity.worker_count;
    memcpy(&row, entry_of(record, ring_of_rows(part), number), hr__record_row_bytes(record->version));
    *ret_row = (struct hr_record_row){
        .at_ns = row.at_ns,
        .real_ns = row.real_ns,
        .length_ns = us(row.length_us),
        .epoch = row.epoch,
        .step = row.step,
        .batches = row.batches,
        .samples = row.samples,
        .bytes = row.bytes,
        .errors = row.errors,
        .inside_ns = us(row.inside_us),
        .start_ns = us(row.start_us),
        .starts = row.starts,
        .wait_ns = us(row.wait_us),
        .pin_ns = us(row.pin_us),
        .draw_ns = us(row.draw_us),
        .rebuild_ns = us(row.rebuild_us),
        .restarts = row.restarts,
        .bad_samples = row.bad_samples,
        .queue_count = row.queue_count,
        .used_bytes = kib(row.used_kib),
        .cores_busy = row.cores_busy,
        .cores_allowed = row.cores_allowed,
        .throttled_ns = us(row.throttled_us),
        .memory_available = kib(row.available_kib),
        .used_workers = row.used_workers && row.used_workers < workers ? row.used_workers : workers,
        .trainer_cpu_ns = us(row.trainer_cpu_us),
        .trainer_delay_ns = us(row.trainer_delay_us),
        .network_ns = us(row.network_us),
        .hit_count = row.hit_count,
        .wait_count = row.wait_count,
        .fetched_bytes = kib(row.fetched_kib),
        .requests = row.requests,
        .retries = row.retries,
    };
}

void hr_record_read_worker(const hr_record *record, enum hr_record_part part, uint64_t number, uint32_t worker,
                           struct hr_record_worker *ret_worker) {
    struct hr__record_worker packed = {.network_us = 0};
    uint32_t bytes = hr__record_worker_bytes(record->version);
    assert(worker < record->identity.worker_count);
    const unsigned char *entry = entry_of(record, ring_of_rows(part), number);
    memcpy(&packed, entry + hr__record_row_bytes(record->version) + worker * bytes, bytes);
    *ret_worker = (struct hr_record_worker){.fetch_ns = us(packed.fetch_us),
                                            .collate_ns = us(packed.collate_us),
                                            .wait_ns = us(packed.wait_us),
                                            .delay_ns = us(packed.delay_us),
                                            .cpu_ns = us(packed.cpu_us),
                                            .private_bytes = kib(packed.private_kib),
                                            .network_ns = us(packed.network_us)};
}

void hr_record_read_hour(const hr_record *record, uint64_t number, struct hr_record_hour *ret_hour) {
    struct hr__record_hour hour = record->now.hour;
    if (number < record->found[HR__RING_HOURS].count)
        memcpy(&hour, entry_of(record, HR__RING_HOURS, number), sizeof hour);
    ret_hour->at_ns = hour.at_ns;
    for (int i = 0; i < HR_LOOK_BUCKETS; i++) {
        ret_hour->samples[i] = hour.samples[i];
        ret_hour->collates[i] = hour.collates[i];
    }
}

void hr_record_read_batch(const hr_record *record, uint64_t number, struct hr_record_batch *ret_batch) {
    struct hr__record_batch batch;
    memcpy(&batch, entry_of(record, HR__RING_BATCHES, number), sizeof batch);
    *ret_batch = (struct hr_record_batch){.worker = batch.worker,
                                          .look = {.number = batch.number,
                                                   .task = batch.task,
                                                   .began_ns = batch.began_ns,
                                                   .fetch_ns = batch.fetch_ns,
                                                   .collate_ns = batch.collate_ns,
                                                   .bytes = kib(batch.kib),
                                                   .slowest_index = batch.slowest_index,
                                                   .slowest_ns = us(batch.slowest_us)}};
}

void hr_record_read_step(const hr_record *record, uint64_t number, struct hr_record_step *ret_step) {
    struct hr__record_step step;
    memcpy(&step, entry_of(record, HR__RING_STEPS, number), sizeof step);
    int64_t since_ns = (int64_t)step.at_ms * NS_PER_MS + (int64_t)us(step.rest_us);
    *ret_step = (struct hr_record_step){.at_ns = record->identity.began_ns + since_ns,
                                        .epoch = step.epoch,
                                        .step = step.step,
                                        .inside_us = step.inside_us};
}

void hr_record_read_sample(const hr_record *record, uint64_t number, struct hr_record_sample *ret_sample) {
    assert(number < record->slowest_count);
    const struct hr__record_sample *sample = &record->now.slowest[number];
    *ret_sample = (struct hr_record_sample){.ns = sample->ns,
                                            .index = sample->index,
                                            .worker = sample->worker,
                                            .task = sample->task,
                                            .began_ns = sample->began_ns};
}
