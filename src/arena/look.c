/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at an arena from another process, by reading its file. `headrace top` calls it. */
#include "look.h"

#include <errno.h>
#include <string.h>

#include <headrace/error.h>

#include "base/error.h"
#include "os/os.h"

/* The sizes of what the first version has shown; a loader of it has nothing behind it. */
enum {
    SHOWN_BYTES_LEAST = offsetof(struct hr__shown, network),
    SIGHT_BYTES_LEAST = offsetof(struct hr__sight, network)
};
enum { TRIES = 4, SIGHT_HEAD_BYTES = offsetof(struct hr__sight, batches), RING_HEAD_BYTES = 2 * HR_CACHE_LINE };

static uint64_t load(const _Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_relaxed);
}

/* ---- from memory ---- */

static void look_at_times(const struct hr__shown_times *times, struct hr_times *ret_times) {
    for (int i = 0; i < HR_LOOK_BUCKETS; i++) ret_times->buckets[i] = load(&times->buckets[i]);
    ret_times->sum_ns = load(&times->sum_ns);
    ret_times->worst_ns = load(&times->worst_ns);
    ret_times->worst_index = load(&times->worst_index);
}

void hr__look_network(const struct hr__shown_network *network, struct hr_network_look *ret_look) {
    *ret_look = (struct hr_network_look){.since_ns = load(&network->since_ns),
                                         .wait_ns = load(&network->wait_ns),
                                         .wait_count = load(&network->wait_count),
                                         .hit_count = load(&network->hit_count)};
}

void hr__look_worker(const struct hr__worker *record, const struct hr__sight *sight, struct hr_worker_look *ret_look) {
    struct hr_worker_status *status = &ret_look->status;
    *ret_look = (struct hr_worker_look){.index = load(&sight->index) - 1, .timed_batches = load(&sight->batch_count)};
    hr__layout_read_status(record, status);
    if (status->phase_since_ns < 0) status->phase_since_ns = 0; /* differences of times may not overflow */
    status->done_count += load(&sight->earlier_done);
    status->starts += (uint32_t)load(&sight->earlier_starts);
    for (int i = 0; i < HR_PHASE_COUNT; i++) status->phase_ns[i] += load(&sight->earlier_phase_ns[i]);
    look_at_times(&sight->samples, &ret_look->samples);
    look_at_times(&sight->collates, &ret_look->collates);
    hr__look_network(&sight->network, &ret_look->network);
}

void hr__look_counts(const uint64_t *counts, struct hr_arena_look *look) {
    look->batches = counts[HR__COUNT_BATCHES];
    look->samples = counts[HR__COUNT_SAMPLES];
    look->bytes = counts[HR__COUNT_BYTES];
    look->errors = counts[HR__COUNT_ERRORS];
    look->inside_ns = counts[HR__COUNT_INSIDE_NS];
    look->start_ns = counts[HR__COUNT_START_NS];
    look->starts = counts[HR__COUNT_STARTS];
    look->wait_ns = counts[HR__COUNT_WAIT_NS];
    look->pin_ns = counts[HR__COUNT_PIN_NS];
    look->draw_ns = counts[HR__COUNT_DRAW_NS];
    look->rebuild_ns = counts[HR__COUNT_REBUILD_NS];
    look->restarts = counts[HR__COUNT_RESTARTS];
    look->bad_samples = counts[HR__COUNT_BAD];
}

uint32_t hr__look_ring(const struct hr__ring_shared *ring) {
    uint64_t head = atomic_load(&ring->head), tail = atomic_load(&ring->tail);
    return tail >= head && tail - head <= HR_ARENA_MAX_SLOTS ? (uint32_t)(tail - head) : 0;
}

/* ---- from a file ---- */

/* The file of an arena, and the page that was read of it. */
struct file {
    union {
        struct hr__header header;
        unsigned char bytes[HR__HEADER_ROOM];
    } page;
    struct hr__shown *shown; /* in `page` */
    uint64_t bytes;
    int fd;
};

static int read_part(const struct file *file, uint64_t at, void *data, size_t bytes) {
    int r = hr__read_at(file->fd, at, data, bytes);
    return r == -EIO ? hr__fail(HR_E_CORRUPT, "arena: its memory was cut while it was read")
           : r < 0   ? hr__fail(r, "arena: cannot read its memory: %s", hr_error_text(r))
                     : 0;
}

static bool fits(const struct file *file, uint64_t at, uint64_t count, uint64_t stride, uint64_t least) {
    uint64_t bytes, end;
    return count == 0 ||
           (stride >= least && hr__mul(count, stride, &bytes) && hr__add(at, bytes, &end) && end <= file->bytes);
}

static int check_places(const struct file *file) {
    const struct hr__shown *shown = file->shown;
    uint32_t count = shown->worker_count;
    if (count <= HR_ARENA_MAX_WORKERS &&
        fits(file, shown->records_at, count, shown->record_bytes, sizeof(struct hr__worker)) &&
        fits(file, shown->rings_at, 2 * (uint64_t)count, shown->ring_bytes, RING_HEAD_BYTES) &&
        fits(file, shown->sights_at, count, shown->sight_bytes, SIGHT_BYTES_LEAST))
        return 0;
    return hr__fail(HR_E_CORRUPT, "arena: the places that its header names are not in its memory of %llu bytes",
                    (unsigned long long)file->bytes);
}

static int check_file(struct file *file) {
    const struct hr__header *header = &file->page.header;
    const struct hr__shown *shown = file->shown;
    if (header->magic != HR__MAGIC && header->magic != 0)
        return hr__fail(HR_E_CORRUPT, "arena: the memory is not that of a headrace arena");
    if (!atomic_load_explicit(&file->page.header.ready, memory_order_acquire))
        return hr__fail(HR_E_STATE, "arena: it is not ready");
    if (shown->magic != HR__SHOWN_MAGIC || shown->version < HR__SHOWN_VERSION || shown->bytes < SHOWN_BYTES_LEAST)
        return hr__fail(HR_E_VERSION, "arena: made by another version of headrace (shared-memory layout %u)",
                        header->abi_version);
    if (!atomic_load_explicit(&file->shown->is_named, memory_order_acquire))
        return hr__fail(HR_E_STATE, "arena: it is not ready");
    return check_places(file);
}

static int open_file(int fd, struct file *file) {
    file->fd = fd;
    file->shown = hr__shown_of(&file->page.header);
    int r = hr__memory_bytes(fd, &file->bytes);
    if (r < 0) return hr__fail(r, "arena: cannot read its memory: %s", hr_error_text(r));
    if (file->bytes < HR__HEADER_ROOM)
        return hr__fail(HR_E_CORRUPT, "arena: a file of %llu bytes is too small to be an arena",
                        (unsigned long long)file->bytes);
    r = read_part(file, 0, &file->page, sizeof file->page);
    return r < 0 ? r : check_file(file);
}

/* Counts only grow. If one is smaller than in the read before, one of the two was torn. */
static bool has_grown(const struct hr__shown *before, const struct hr__shown *now) {
    for (int i = 0; i < HR__COUNT_COUNT; i++)
        if (load(&now->counts[i]) < load(&before->counts[i])) return false;
    return true;
}

static int read_again(struct file *file) {
    struct hr__shown before;
    for (int i = 0; i < TRIES; i++) {
        memcpy(&before, file->shown, sizeof before);
        int r = read_part(file, 0, &file->page, sizeof file->page);
        if (r == 0) r = check_file(file);
        if (r < 0) return r;
        if (has_grown(&before, file->shown)) return 0;
    }
    return hr__fail(-EAGAIN, "arena: its counts do not grow; the shared memory is damaged");
}

static uint32_t used_count(const struct hr__shown *shown) {
    uint32_t count = atomic_load_explicit(&shown->used_count, memory_order_relaxed);
    return count && count < shown->worker_count ? count : shown->worker_count;
}

static void fill(const struct file *file, struct hr_arena_look *ret_look) {
    const struct hr__shown *shown = file->shown;
    uint64_t counts[HR__COUNT_COUNT];
    struct hr_arena_look *look = ret_look;
    *look = (struct hr_arena_look){.version = shown->version,
                                   .trainer_pid = shown->trainer_pid,
                                   .worker_count = shown->worker_count,
                                   .loader = shown->loader,
                                   .rank = shown->rank,
                                   .world_size = shown->world_size,
                                   .queue_room = atomic_load_explicit(&shown->queue_room, memory_order_relaxed),
                                   .used_count = used_count(shown),
                                   .opened_ns = shown->opened_ns > 0 ? shown->opened_ns : 0,
                                   .recording = shown->recording,
                                   .epoch = load(&shown->epoch),
                                   .step = load(&shown->step),
                                   .wait_since_ns = load(&shown->wait_since_ns),
                                   .inside_since_ns = load(&shown->inside_since_ns),
                                   .queue_count = (uint32_t)hr__min(load(&shown->ahead_count), HR_ARENA_MAX_SLOTS),
                                   .used_bytes = load(&shown->used_bytes),
                                   .has_stopped = atomic_load(&file->page.header.stopped) != 0};
    memcpy(look->name, shown->name, sizeof look->name - 1);
    for (int i = 0; i < HR_LOOK_STEPS; i++) {
        look->step_us[i] = atomic_load_explicit(&shown->step_us[i], memory_order_relaxed);
        look->step_end_us[i] = atomic_load_explicit(&shown->step_end_us[i], memory_order_relaxed);
    }
    for (int i = 0; i < HR__COUNT_COUNT; i++) counts[i] = load(&shown->counts[i]);
    hr__look_counts(counts, look);
    if (shown->bytes >= sizeof *shown) hr__look_network(&shown->network, &look->network);
}

/* Between the two parts of a sight that are read are its batches. */
static int read_worker(const struct file *file, uint32_t worker, struct hr_worker_look *ret_look) {
    struct hr__worker record;
    struct hr__sight sight;
    uint64_t sight_at = file->shown->sights_at + (uint64_t)worker * file->shown->sight_bytes;
    int r =
        read_part(file, file->shown->records_at + (uint64_t)worker * file->shown->record_bytes, &record, sizeof record);
    memset(&sight.network, 0, sizeof sight.network);
    if (r == 0) r = read_part(file, sight_at, &sight, SIGHT_HEAD_BYTES);
    if (r == 0 && file->shown->sight_bytes >= sizeof sight)
        r = read_part(file, sight_at + SIGHT_BYTES_LEAST, &sight.network, sizeof sight.network);
    if (r == 0) hr__look_worker(&record, &sight, ret_look);
    return r;
}

static bool is_later(const struct hr_worker_look *before, const struct hr_worker_look *now) {
    bool is_later =
        now->status.done_count >= before->status.done_count && now->samples.sum_ns >= before->samples.sum_ns &&
        now->collates.sum_ns >= before->collates.sum_ns && now->network.wait_ns >= before->network.wait_ns &&
        now->network.wait_count >= before->network.wait_count && now->network.hit_count >= before->network.hit_count;
    for (int i = 0; i < HR_PHASE_COUNT; i++)
        is_later = is_later && now->status.phase_ns[i] >= before->status.phase_ns[i];
    for (int i = 0; i < HR_LOOK_BUCKETS; i++)
        is_later = is_later && now->samples.buckets[i] >= before->samples.buckets[i] &&
                   now->collates.buckets[i] >= before->collates.buckets[i];
    return is_later;
}

static int look_at_worker(const struct file *file, uint32_t worker, struct hr_worker_look *ret_look) {
    struct hr_worker_look before;
    int r = read_worker(file, worker, &before);
    for (int i = 0; r == 0 && i < TRIES; i++) {
        r = read_worker(file, worker, ret_look);
        if (r < 0 || is_later(&before, ret_look)) return r;
        before = *ret_look;
    }
    return r < 0
               ? r
               : hr__fail(-EAGAIN, "arena: the counts of worker %u do not grow; the shared memory is damaged", worker);
}

/* The completion ring of a worker comes after its grant ring. */
static int count_ready(const struct file *file, uint32_t worker, uint32_t *count) {
    struct {
        _Alignas(HR_CACHE_LINE) unsigned char bytes[sizeof(struct hr__ring_shared) + HR_CACHE_LINE];
    } ring;
    uint64_t nth = 2 * (uint64_t)worker + 1;
    int r = read_part(file, file->shown->rings_at + nth * file->shown->ring_bytes, &ring, RING_HEAD_BYTES);
    if (r == 0) *count += hr__look_ring((const void *)ring.bytes);
    return r;
}

int hr_arena_look(int fd, struct hr_arena_look *ret_look, struct hr_worker_look *ret_workers, uint32_t room) {
    struct file file;
    struct hr_arena_look look;
    int r = open_file(fd, &file);
    if (r == 0) r = read_again(&file);
    if (r < 0) return r;
    fill(&file, &look);
    for (uint32_t i = 0; r == 0 && i < look.worker_count; i++) {
        r = count_ready(&file, i, &look.queue_count);
        if (r == 0 && ret_workers && i < room) r = look_at_worker(&file, i, &ret_workers[i]);
    }
    if (r == 0) *ret_look = look;
    return r;
}

static int glance(const struct file *file, uint32_t worker, struct hr__glance *ret_glance) {
    struct hr__worker record;
    struct hr_worker_status status;
    _Atomic uint64_t index;
    uint64_t record_at = file->shown->records_at + (uint64_t)worker * file->shown->record_bytes;
    uint64_t sight_at = file->shown->sights_at + (uint64_t)worker * file->shown->sight_bytes;
    int r = read_part(file, record_at, &record, sizeof record);
    if (r == 0) r = read_part(file, sight_at + offsetof(struct hr__sight, index), &index, sizeof index);
    if (r < 0) return r;
    hr__layout_read_status(&record, &status);
    *ret_glance = (struct hr__glance){
        .phase = status.phase, .task = status.task, .sample = status.sample, .index = load(&index) - 1};
    return 0;
}

int hr__arena_glance(int fd, struct hr__glance *ret_glances, uint32_t room) {
    struct file file;
    int r = open_file(fd, &file);
    for (uint32_t i = 0; r == 0 && i < file.shown->worker_count && i < room; i++) r = glance(&file, i, &ret_glances[i]);
    return r < 0 ? r : (int)file.shown->worker_count;
}

/* ---- the last batches of a worker ---- */

/* Returns false if the batch is not the one of this number: it is being written, or a newer one is in its place. */
static bool take_batch(const struct hr__shown_batch *batch, uint64_t number, struct hr_batch_look *ret_batch) {
    if (atomic_load_explicit(&batch->number, memory_order_acquire) != number) return false;
    *ret_batch = (struct hr_batch_look){.number = number,
                                        .task = load(&batch->task),
                                        .began_ns = load(&batch->began_ns),
                                        .fetch_ns = load(&batch->fetch_ns),
                                        .collate_ns = load(&batch->collate_ns),
                                        .bytes = load(&batch->bytes),
                                        .slowest_index = load(&batch->slowest_index) - 1,
                                        .slowest_ns = load(&batch->slowest_ns)};
    return true;
}

static int read_batch(const struct file *file, uint64_t sight_at, uint64_t number, struct hr_batch_look *ret_batch) {
    struct hr__shown_batch batch;
    unsigned char first[sizeof batch], second[sizeof batch];
    uint64_t at = sight_at + offsetof(struct hr__sight, batches) + number % HR__SIGHT_BATCHES * sizeof batch;
    int r = read_part(file, at, first, sizeof first);
    if (r == 0) r = read_part(file, at, second, sizeof second);
    if (r < 0) return r;
    memcpy(&batch, second, sizeof batch);
    return memcmp(first, second, sizeof first) == 0 && take_batch(&batch, number, ret_batch);
}

int hr__arena_look_batches(int fd, uint32_t worker, uint64_t after, struct hr_batch_look *ret_batches, uint32_t room) {
    struct file file;
    struct hr__sight head;
    int r = open_file(fd, &file), count = 0;
    if (r < 0) return r;
    if (worker >= file.shown->worker_count)
        return hr__fail(-EINVAL, "arena: worker %u of %u", worker, file.shown->worker_count);
    uint64_t sight_at = file.shown->sights_at + (uint64_t)worker * file.shown->sight_bytes;
    r = read_part(&file, sight_at, &head, SIGHT_HEAD_BYTES);
    uint64_t last = r == 0 ? load(&head.batch_count) : 0;
    uint64_t number = last > HR__SIGHT_BATCHES ? last - HR__SIGHT_BATCHES + 1 : 1;
    for (number = hr__max(number, after + 1); r >= 0 && number <= last && (uint32_t)count < room; number++) {
        r = read_batch(&file, sight_at, number, &ret_batches[count]);
        count += r > 0;
    }
    return r < 0 ? r : count;
}
