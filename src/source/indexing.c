/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the index of several files at the same time, in threads. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "lines.h"
#include "pool.h"

enum { THREADS_MOST = 32, OPEN_SHARE = 8, TEXT_BYTES = 1024 };

/* A new kind is a line here. */
static const struct kind {
    hr__scanner scan;
} kinds[] = {
    [HR_INDEX_TAR] = {hr__tar_scan},
    [HR_INDEX_LINES] = {hr__lines_scan},
};

/* A file, and what is known of it. */
struct job {
    char *path;
    struct hr__draft draft;
    hr_index *saved; /* was read instead of the file; NULL: the draft has it */
};

struct hr_indexing {
    enum hr_index_kind kind;
    bool uses_saved;
    struct job *jobs;
    uint64_t count;
    struct hr__thread threads[THREADS_MOST];
    uint32_t thread_count;
    _Atomic bool stop;
    _Atomic uint32_t running; /* threads that have not ended; hr_indexing_wait sleeps on it */
    _Atomic uint64_t next, files_done, bytes_done, saved_count, unused_count;
    _Atomic bool has_failed;      /* taken by the thread that may write the text */
    _Atomic bool is_unused_there; /* the text was written */
    int failure;
    char text[TEXT_BYTES], unused[TEXT_BYTES];
};

static void copy_text(char *to) {
    snprintf(to, TEXT_BYTES, "%s", hr_error_message());
}

/* ---- one file ---- */

/* Takes the index next to a file. Returns false if there is no such index, or it cannot be used. */
static bool take_saved(hr_indexing *indexing, struct job *job) {
    int r = hr_index_load(indexing->kind, job->path, &job->saved);
    if (r == 0) {
        atomic_fetch_add(&indexing->saved_count, 1);
        return true;
    }
    if (r != -ENOENT && atomic_fetch_add(&indexing->unused_count, 1) == 0) {
        copy_text(indexing->unused);
        atomic_store(&indexing->is_unused_there, true);
    }
    return false;
}

static int check_same(const char *path, const struct hr__file_info *before, int fd) {
    struct hr__file_info now;
    int r = hr__file_look_fd(fd, &now);
    if (r < 0) return hr__fail(r, "source: cannot look at %s: %s", path, hr_error_text(r));
    if (now.bytes == before->bytes && now.changed_ns == before->changed_ns) return 0;
    return hr__fail(-ESTALE, "source: %s was written to while it was indexed; wait until it is complete", path);
}

/* Reads a file through a window that has all but its memory. */
static int scan(hr_indexing *indexing, struct job *job, struct hr__window *window, const struct hr__file_info *info,
                unsigned char *memory) {
    window->path = job->path;
    window->file_bytes = info->bytes;
    window->memory = memory;
    window->stop = &indexing->stop;
    window->bytes_done = &indexing->bytes_done;
    struct hr_index_file *file = &job->draft.file;
    file->good_bytes = info->bytes;
    int r = kinds[indexing->kind].scan(window, &job->draft);
    file->bytes = info->bytes;
    file->changed_ns = info->changed_ns;
    file->inode = info->inode;
    file->name_count = job->draft.name_count;
    file->sample_count = job->draft.has_starts ? job->draft.start_count : file->entry_count;
    return r;
}

static int scan_open(hr_indexing *indexing, struct job *job, int fd, unsigned char *memory) {
    struct hr__file_info before;
    int r = hr__file_look_fd(fd, &before);
    if (r < 0) return hr__fail(r, "source: cannot look at %s: %s", job->path, hr_error_text(r));
    struct hr__window window = {.fd = fd};
    r = scan(indexing, job, &window, &before, memory);
    return r < 0 ? r : check_same(job->path, &before, fd);
}

static int scan_remote(hr_indexing *indexing, struct job *job, unsigned char *memory) {
    struct hr__window window = {.fd = -1};
    uint32_t number;
    int r = hr__pool_new(&window.pool);
    if (r < 0) return hr__fail(r, "source: no memory to read %s", job->path);
    r = hr__pool_add(window.pool, job->path, &number);
    if (r == 0) r = scan(indexing, job, &window, &hr__pool_file(window.pool, number)->first, memory);
    hr__pool_free(window.pool);
    return r;
}

static int scan_file(hr_indexing *indexing, struct job *job, unsigned char *memory) {
    int fd = -1;
    if (hr__remote_is(job->path)) return scan_remote(indexing, job, memory);
    int r = hr__file_open(job->path, &fd);
    if (r == -EINVAL) return hr__fail(r, "source: %s is not a regular file", job->path);
    if (r < 0) return hr__fail(r, "source: cannot open %s: %s", job->path, hr_error_text(r));
    r = scan_open(indexing, job, fd, memory);
    hr__close(&fd);
    return r;
}

/* ---- threads ---- */

static void note_failure(hr_indexing *indexing, int failure) {
    if (!atomic_exchange(&indexing->has_failed, true)) {
        indexing->failure = failure;
        copy_text(indexing->text);
    }
    atomic_store(&indexing->stop, true);
}

static void index_files(hr_indexing *indexing, unsigned char *memory) {
    while (!atomic_load(&indexing->stop)) {
        uint64_t number = atomic_fetch_add(&indexing->next, 1);
        if (number >= indexing->count) return;
        struct job *job = &indexing->jobs[number];
        bool is_saved = indexing->uses_saved && take_saved(indexing, job);
        int r = is_saved ? 0 : scan_file(indexing, job, memory);
        if (r < 0) note_failure(indexing, r);
        atomic_fetch_add(&indexing->files_done, 1);
    }
}

static void run(void *context) {
    hr_indexing *indexing = context;
    unsigned char *memory = hr__realloc(NULL, HR__WINDOW_BYTES);
    hr__link_stop_with(&indexing->stop);
    if (memory)
        index_files(indexing, memory);
    else
        note_failure(indexing, hr__fail(-ENOMEM, "source: no memory to read files"));
    hr__free(memory);
    atomic_fetch_sub(&indexing->running, 1);
    hr__futex_wake(&indexing->running);
}

/* Each thread has a file open, of those that this process may have. */
static uint32_t choose_threads(uint64_t file_count) {
    uint64_t most = hr__min(THREADS_MOST, hr__open_file_limit() / OPEN_SHARE);
    return (uint32_t)hr__max(1, hr__min(most, file_count));
}

static int start_threads(hr_indexing *indexing) {
    uint32_t wanted = indexing->count ? choose_threads(indexing->count) : 0;
    for (uint32_t i = 0; i < wanted; i++) {
        atomic_fetch_add(&indexing->running, 1);
        int r = hr__thread_start(&indexing->threads[i], run, indexing);
        if (r == 0) {
            indexing->thread_count++;
            continue;
        }
        atomic_fetch_sub(&indexing->running, 1);
        return i ? 0 : hr__fail(r, "source: cannot start a thread that reads files: %s", hr_error_text(r));
    }
    return 0;
}

/* ---- the public functions ---- */

static int copy_paths(hr_indexing *indexing, const char *const *paths, size_t path_count) {
    indexing->jobs = hr__realloc(NULL, (path_count + 1) * sizeof *indexing->jobs);
    if (!indexing->jobs) return hr__fail(-ENOMEM, "source: no memory for %zu paths", path_count);
    memset(indexing->jobs, 0, (path_count + 1) * sizeof *indexing->jobs);
    for (; indexing->count < path_count; indexing->count++) {
        const char *path = paths[indexing->count];
        struct job *job = &indexing->jobs[indexing->count];
        hr__draft_init(&job->draft);
        job->path = hr__realloc(NULL, strlen(path) + 1);
        if (!job->path) return hr__fail(-ENOMEM, "source: no memory for %zu paths", path_count);
        memcpy(job->path, path, strlen(path) + 1);
    }
    return 0;
}

int hr_indexing_start(enum hr_index_kind kind, const char *const *paths, size_t path_count, bool uses_saved,
                      hr_indexing **ret_indexing) {
    bool is_kind = (size_t)kind < sizeof kinds / sizeof *kinds && kinds[kind].scan;
    if (!is_kind) return hr__fail(-EINVAL, "source: there is no index of kind %d", (int)kind);
    hr_indexing *indexing = hr__realloc(NULL, sizeof *indexing);
    if (!indexing) return hr__fail(-ENOMEM, "source: no memory to make an index");
    memset(indexing, 0, sizeof *indexing);
    indexing->kind = kind;
    indexing->uses_saved = uses_saved;
    int r = copy_paths(indexing, paths, path_count);
    if (r == 0) r = start_threads(indexing);
    if (r == 0)
        *ret_indexing = indexing;
    else
        hr_indexing_free(indexing);
    return r;
}

int hr_indexing_wait(hr_indexing *indexing, int64_t deadline_ns) {
    for (uint32_t running; (running = atomic_load(&indexing->running));) {
        int r = hr__futex_wait(&indexing->running, running, deadline_ns);
        if (r == -ETIMEDOUT) return 0;
        if (r == -EINTR) return hr__fail(r, "source: a signal came while files were read");
        if (r < 0 && r != -EAGAIN) return hr__fail(r, "source: cannot wait for threads: %s", hr_error_text(r));
    }
    return indexing->failure < 0 ? hr__fail(indexing->failure, "%s", indexing->text) : 1;
}

void hr_indexing_look(hr_indexing *indexing, struct hr_indexing_info *ret_info) {
    *ret_info = (struct hr_indexing_info){.file_count = indexing->count,
                                          .files_done = atomic_load(&indexing->files_done),
                                          .bytes_done = atomic_load(&indexing->bytes_done),
                                          .saved_count = atomic_load(&indexing->saved_count),
                                          .unused_count = atomic_load(&indexing->unused_count),
                                          .unused = atomic_load(&indexing->is_unused_there) ? indexing->unused : ""};
}

hr_indexing *hr_indexing_free(hr_indexing *indexing) {
    if (!indexing) return NULL;
    atomic_store(&indexing->stop, true);
    for (uint32_t i = 0; i < indexing->thread_count; i++) hr__thread_join(&indexing->threads[i]);
    for (uint64_t i = 0; indexing->jobs && i < indexing->count; i++) {
        hr__free(indexing->jobs[i].path);
        hr__draft_done(&indexing->jobs[i].draft);
        hr_index_close(indexing->jobs[i].saved);
    }
    hr__free(indexing->jobs);
    hr__free(indexing);
    return NULL;
}

/* ---- one index of all files ---- */

/* The index of one file, made or saved. */
struct part {
    const struct hr_index_file *file;
    const struct hr__entry *entries;
    const uint32_t *starts, *name_ends;
    const char *names;
    uint64_t start_count, name_bytes;
};

static struct part part_of(const struct job *job) {
    const struct hr__draft *draft = &job->draft;
    const hr_index *saved = job->saved;
    if (!saved)
        return (struct part){&draft->file, draft->entries,     draft->starts,    draft->name_ends,
                             draft->names, draft->start_count, draft->name_bytes};
    return (struct part){saved->files, saved->entries,           saved->starts,          saved->name_ends,
                         saved->names, saved->head->start_count, saved->head->name_bytes};
}

static struct hr__index_head add_up(const hr_indexing *indexing) {
    struct hr__index_head sizes = {.kind = (uint32_t)indexing->kind, .file_count = indexing->count};
    for (uint64_t i = 0; i < indexing->count; i++) {
        struct part part = part_of(&indexing->jobs[i]);
        sizes.entry_count += part.file->entry_count;
        sizes.start_count += part.start_count;
        sizes.name_count += part.file->name_count;
        sizes.name_bytes += part.name_bytes;
    }
    return sizes;
}

static void copy(void *to, const void *from, uint64_t bytes) {
    if (bytes) memcpy(to, from, bytes);
}

/* Copies the index of one file behind those before it, whose counts are in `done`, and adds its own. */
static void put_part(unsigned char *block, const hr_index *index, uint64_t number, const struct part *part,
                     struct hr__index_head *done) {
#define AT(pointer) ((void *)(block + ((const unsigned char *)(pointer)-block)))
    struct hr_index_file *file = AT(&index->files[number]);
    *file = *part->file;
    file->first_entry = done->entry_count;
    file->first_sample = index->starts ? done->start_count : done->entry_count;
    file->first_name = done->name_count;
    copy(AT(&index->entries[done->entry_count]), part->entries, file->entry_count * sizeof *part->entries);
    if (part->start_count)
        copy(AT(&index->starts[done->start_count]), part->starts, part->start_count * sizeof *part->starts);
    uint32_t *ends = AT(&index->name_ends[done->name_count]);
    for (uint64_t i = 0; i < file->name_count; i++) ends[i] = part->name_ends[i] + (uint32_t)done->name_bytes;
    copy(AT(&index->names[done->name_bytes]), part->names, part->name_bytes);
#undef AT
    done->entry_count += file->entry_count;
    done->start_count += part->start_count;
    done->name_count += file->name_count;
    done->name_bytes += part->name_bytes;
}

int hr_indexing_take(hr_indexing *indexing, hr_index **ret_index) {
    struct hr__index_head sizes = add_up(indexing), done = {0};
    hr_index *index;
    if (sizes.name_bytes > UINT32_MAX) return hr__fail(-EOVERFLOW, "source: the names of fields take more than 4 GB");
    int r = hr__index_new(&sizes, &index);
    if (r < 0) return r;
    for (uint64_t i = 0; i < indexing->count; i++) {
        struct part part = part_of(&indexing->jobs[i]);
        put_part(index->owned, index, i, &part, &done);
        hr__draft_done(&indexing->jobs[i].draft); /* so that the whole is not in memory twice */
        indexing->jobs[i].saved = hr_index_close(indexing->jobs[i].saved);
    }
    hr__index_seal(index);
    *ret_index = index;
    return 0;
}
