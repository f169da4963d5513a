/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "cache/files.h"
#include "os/os.h"

/*
 * Copies array files into the space of a build, with several threads, chunk by chunk: a chunk that is complete survives
 * the death of this process. Compressed members cannot be read from the middle, so they are unpacked first, each as a
 * whole; then the chunks get what else belongs to them, and are marked.
 */

enum { WORKERS_MAX = 64, PIECE = 1 << 20, MESSAGE_BYTES = 512, FIRST_PAUSE_NS = 100000, PAUSE_NS = 20000000 };

struct filling {
    const hr_files_plan *plan;
    hr_cache_build *build;
    uint64_t bytes, chunk_count;
    _Atomic uint64_t next, done_bytes, running;
    _Atomic int error; /* the first one */
    pthread_mutex_t lock;
    char message[MESSAGE_BYTES]; /* of that error, whose own is in the memory of its thread */
};

static void note_error(struct filling *all, int error) {
    pthread_mutex_lock(&all->lock);
    int none = 0;
    if (atomic_compare_exchange_strong(&all->error, &none, error))
        snprintf(all->message, sizeof all->message, "%s", hr_error_message());
    pthread_mutex_unlock(&all->lock);
}

/* ---- reading a file ---- */

/* A thread keeps the file that it has read last open, because neighbouring arrays are in one .npz. */
struct reader {
    struct filling *all;
    uint32_t file;
    int fd;
    unsigned char *piece;
};

static int has_changed(const struct plan_file *file) {
    return hr__fail(-ESTALE, "cache: %s changed while it was copied; try again when it is complete", file->path);
}

static int open_source(struct reader *reader, uint32_t number) {
    const struct plan_file *file = &reader->all->plan->files[number];
    struct hr__file_info info = {0};
    if (reader->fd >= 0 && reader->file == number) return 0;
    hr__close(&reader->fd);
    int r = hr__file_open(file->path, &reader->fd);
    if (r == 0) r = hr__file_look_fd(reader->fd, &info);
    if (r < 0) return hr__fail(r, "cache: cannot open %s: %s", file->path, hr_error_text(r));
    reader->file = number;
    bool is_same = info.bytes == file->bytes && info.changed_ns == file->changed_ns && info.inode == file->inode;
    return is_same ? 0 : has_changed(file);
}

/* Copies `count` bytes of an array, from byte `from` on. */
static int copy_part(struct reader *reader, const struct plan_array *array, uint64_t from, uint64_t count) {
    const struct plan_file *file = &reader->all->plan->files[array->file];
    int r = open_source(reader, array->file);
    while (r == 0 && count) {
        uint64_t step = hr__min(count, PIECE);
        r = hr__read_at(reader->fd, array->source_at + from, reader->piece, step);
        if (r < 0)
            return r == -EIO ? has_changed(file)
                             : hr__fail(r, "cache: cannot read %s: %s", file->path, hr_error_text(r));
        r = hr_cache_build_write(reader->all->build, array->at + from, reader->piece, step);
        from += step;
        count -= step;
    }
    return r;
}

/* ---- compressed members ---- */

struct unpacking {
    struct reader *reader;
    const struct plan_array *array;
    uint64_t at; /* in the unpacked bytes */
    uint32_t crc;
};

static int write_unpacked(void *context, const unsigned char *bytes, uint64_t count) {
    struct unpacking *unpacking = context;
    const struct plan_array *array = unpacking->array;
    uint64_t at = unpacking->at, skipped = 0;
    unpacking->crc = (uint32_t)crc32(unpacking->crc, bytes, (uInt)count);
    unpacking->at += count;
    if (unpacking->at > array->member->bytes) return -EINVAL;
    if (atomic_load(&unpacking->reader->all->error)) return -ECANCELED;
    if (at < array->source_at) skipped = hr__min(array->source_at - at, count);
    uint64_t to = at + skipped - array->source_at, left = count - skipped;
    if (to >= array->npy.bytes || left == 0) return 0;
    left = hr__min(left, array->npy.bytes - to);
    int r = hr_cache_build_write(unpacking->reader->all->build, array->at + to, bytes + skipped, left);
    atomic_fetch_add(&unpacking->reader->all->done_bytes, left);
    return r;
}

static uint64_t chunk_of(uint64_t at) {
    return at / HR_CACHE_CHUNK_BYTES;
}

/* Returns true if all chunks that an array lies in are complete. */
static bool is_complete(const struct filling *all, const struct plan_array *array) {
    if (!array->npy.bytes) return true;
    for (uint64_t i = chunk_of(array->at); i <= chunk_of(array->at + array->npy.bytes - 1); i++)
        if (!hr_cache_build_has(all->build, i)) return false;
    return true;
}

static int unpack(struct reader *reader, const struct plan_array *array) {
    const struct plan_file *file = &reader->all->plan->files[array->file];
    struct unpacking unpacking = {.reader = reader, .array = array};
    int r = open_source(reader, array->file);
    if (r < 0) return r;
    r = hr__inflate(reader->fd, array->member->data_at, array->member->packed_bytes, write_unpacked, &unpacking);
    if (r == -EINVAL || (r == 0 && (unpacking.at != array->member->bytes || unpacking.crc != array->member->crc)))
        return hr__fail(-EINVAL, "cache: the member %s of %s is damaged; write the file again", array->member->name,
                        file->path);
    return r;
}

/* ---- chunks ---- */

/* The first array that ends after a byte of the object. */
static size_t first_array_after(const hr_files_plan *plan, uint64_t at) {
    size_t low = 0, high = plan->array_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (plan->arrays[middle].at + plan->arrays[middle].npy.bytes <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int write_index(const struct filling *all, uint64_t begin, uint64_t end) {
    const hr_files_plan *plan = all->plan;
    uint64_t from = hr__max(begin, plan->index_at), to = hr__min(end, plan->index_at + plan->index_bytes);
    if (from >= to) return 0;
    return hr_cache_build_write(all->build, from, plan->index + (from - plan->index_at), to - from);
}

static int fill_chunk(struct reader *reader, uint64_t chunk) {
    struct filling *all = reader->all;
    uint64_t begin = chunk * HR_CACHE_CHUNK_BYTES, end = hr__min(begin + HR_CACHE_CHUNK_BYTES, all->bytes);
    int r = 0;
    for (size_t i = first_array_after(all->plan, begin); r == 0 && i < all->plan->array_count; i++) {
        const struct plan_array *array = &all->plan->arrays[i];
        if (array->at >= end) break;
        uint64_t from = hr__max(begin, array->at), to = hr__min(end, array->at + array->npy.bytes);
        if (from >= to || (array->member && array->member->is_deflated)) continue;
        r = copy_part(reader, array, from - array->at, to - from);
        atomic_fetch_add(&all->done_bytes, to - from);
    }
    if (r == 0) r = write_index(all, begin, end);
    return r < 0 ? r : hr_cache_build_mark(all->build, chunk);
}

/* ---- threads ---- */

static int do_array(struct reader *reader, uint64_t number) {
    const struct plan_array *array = &reader->all->plan->arrays[number];
    bool is_packed = array->member && array->member->is_deflated;
    return is_packed && !is_complete(reader->all, array) ? unpack(reader, array) : 0;
}

static int do_chunk(struct reader *reader, uint64_t number) {
    return hr_cache_build_has(reader->all->build, number) ? 0 : fill_chunk(reader, number);
}

struct task {
    struct filling *all;
    uint64_t count;
    int (*run)(struct reader *reader, uint64_t number);
};

static void work(void *context) {
    const struct task *task = context;
    struct filling *all = task->all;
    struct reader reader = {.all = all, .fd = -1, .piece = hr__realloc(NULL, PIECE)};
    int r = reader.piece ? 0 : hr__fail(-ENOMEM, "cache: no memory to copy files");
    while (r == 0 && !atomic_load(&all->error)) {
        uint64_t number = atomic_fetch_add(&all->next, 1);
        if (number >= task->count) break;
        r = task->run(&reader, number);
    }
    if (r < 0) note_error(all, r);
    hr__close(&reader.fd);
    hr__free(reader.piece);
    atomic_fetch_sub(&all->running, 1);
}

struct reporting {
    int (*report)(void *context, const struct hr_files_progress *progress);
    void *context;
    struct hr_files_progress progress;
};

static void report_once(struct filling *all, struct reporting *reporting) {
    reporting->progress.done_bytes = hr__min(atomic_load(&all->done_bytes), reporting->progress.total_bytes);
    hr_cache_build_progress(all->build, reporting->progress.done_bytes, reporting->progress.total_bytes);
    if (reporting->report && reporting->report(reporting->context, &reporting->progress) != 0) {
        hr__message_set("cache: stopped");
        note_error(all, -ECANCELED);
    }
}

/* Runs all tasks of one kind. */
static int run_tasks(struct filling *all, struct task task, uint32_t worker_count, struct reporting *reporting) {
    struct hr__thread threads[WORKERS_MAX];
    uint32_t started = 0;
    int r = 0;
    atomic_store(&all->next, 0);
    for (; started < worker_count && r == 0; started += r == 0) {
        atomic_fetch_add(&all->running, 1);
        r = hr__thread_start(&threads[started], work, &task);
    }
    if (r < 0) {
        atomic_fetch_sub(&all->running, 1);
        if (!started) work(&task); /* no thread can be started: this one does the work */
    }
    for (int64_t pause_ns = FIRST_PAUSE_NS; atomic_load(&all->running);
         pause_ns = pause_ns < PAUSE_NS ? 2 * pause_ns : pause_ns) {
        hr__sleep_until(hr__now_ns() + pause_ns);
        report_once(all, reporting);
    }
    for (uint32_t i = 0; i < started; i++) hr__thread_join(&threads[i]);
    report_once(all, reporting);
    return atomic_load(&all->error);
}

/* A file that was written while it was copied may be half old and half new in the copy. */
static int check_sources(const hr_files_plan *plan) {
    for (size_t i = 0; i < plan->file_count; i++) {
        const struct plan_file *file = &plan->files[i];
        struct hr__file_info info = {0};
        int fd = -1;
        int r = hr__file_open(file->path, &fd);
        if (r == 0) r = hr__file_look_fd(fd, &info);
        hr__close(&fd);
        if (r < 0 || info.bytes != file->bytes || info.changed_ns != file->changed_ns || info.inode != file->inode)
            return has_changed(file);
    }
    return 0;
}

static uint64_t count_kept(const struct filling *all) {
    uint64_t kept = 0;
    for (uint64_t i = 0; i < all->chunk_count; i++)
        if (hr_cache_build_has(all->build, i))
            kept += hr__min(HR_CACHE_CHUNK_BYTES, all->bytes - i * HR_CACHE_CHUNK_BYTES);
    return kept;
}

int hr_files_fill(const hr_files_plan *plan, hr_cache_build *build, uint32_t worker_count,
                  int (*report)(void *context, const struct hr_files_progress *progress), void *context) {
    struct filling all = {.plan = plan, .build = build, .bytes = plan->index_at + plan->index_bytes};
    if (worker_count == 0) worker_count = hr__usable_core_count();
    worker_count = worker_count > WORKERS_MAX ? WORKERS_MAX : worker_count;
    int r = hr_cache_build_reserve(build, all.bytes, HR_CACHE_CHUNK_BYTES, "{\"kind\": \"files\"}");
    if (r < 0) return r;
    all.chunk_count = hr_cache_build_chunk_count(build);
    uint64_t kept = count_kept(&all);
    struct reporting reporting = {report, context, {.total_bytes = all.bytes, .kept_bytes = kept}};
    atomic_store(&all.done_bytes, kept);
    pthread_mutex_init(&all.lock, NULL);
    r = run_tasks(&all, (struct task){&all, plan->array_count, do_array}, worker_count, &reporting);
    if (r == 0) r = run_tasks(&all, (struct task){&all, all.chunk_count, do_chunk}, worker_count, &reporting);
    pthread_mutex_destroy(&all.lock);
    return r < 0 ? hr__fail(r, "%s", all.message) : check_sources(plan);
}
