/* SPDX-License-Identifier: Apache-2.0 */
/* Has whole objects fetched and kept, in threads. */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "blocks.h"
#include "kept.h"
#include "remote.h"

/* So half of the requests that the fetcher sends at a time are left for others. */
enum { THREADS = 8, CHUNK_BYTES = 4 << 20, TEXT_BYTES = 1024 };

struct object {
    const struct hr__known *known;
    uint64_t first_chunk;
};

struct hr_filling {
    char folder[HR__PATH_BYTES];
    struct object *objects;
    size_t count;
    uint64_t chunk_count, total_bytes, kept_bytes;
    struct hr__thread threads[THREADS];
    uint32_t thread_count;
    _Atomic bool stop;
    _Atomic uint32_t running; /* threads that have not ended; hr_filling_wait sleeps on it */
    _Atomic uint64_t next, done_bytes;
    _Atomic bool has_failed; /* taken by the thread that may write the text */
    int failure;
    char text[TEXT_BYTES];
};

static void note_failure(hr_filling *filling, int failure) {
    if (!atomic_exchange(&filling->has_failed, true)) {
        filling->failure = failure;
        snprintf(filling->text, sizeof filling->text, "%s", hr_error_message());
    }
    atomic_store(&filling->stop, true);
}

/* ---- a chunk ---- */

/* The last object that does not begin behind a chunk, and is not empty. */
static const struct object *object_of(const hr_filling *filling, uint64_t chunk) {
    size_t low = 0, high = filling->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (filling->objects[middle].first_chunk <= chunk)
            low = middle;
        else
            high = middle;
    }
    return &filling->objects[low];
}

static bool is_kept(const hr_filling *filling, const struct hr_remote_object *object, uint64_t at, uint64_t bytes) {
    int fd = -1;
    if (hr__blocks_open(filling->folder, object->name, object->bytes, &fd) < 0) return false;
    bool is_kept = hr__blocks_have(fd, object->bytes, at, bytes);
    hr__close(&fd);
    return is_kept;
}

static int fill_chunk(hr_filling *filling, uint64_t chunk, void *memory) {
    const struct object *object = object_of(filling, chunk);
    const struct hr_remote_object *known = &object->known->object;
    uint64_t at = (chunk - object->first_chunk) * CHUNK_BYTES, bytes = hr__min(CHUNK_BYTES, known->bytes - at);
    struct hr__read_part place = {memory, bytes};
    if (!is_kept(filling, known, at, bytes)) {
        int r = hr__remote_get(object->known, at, bytes, false, &place, 1);
        if (r == 1)
            return hr__fail(-ENOSPC,
                            "remote: %s is not kept as a whole: the disk is full, or the quota is used up. Remove "
                            "other objects (headrace cache gc), or give another quota (HEADRACE_REMOTE_QUOTA) or "
                            "another folder (HEADRACE_REMOTE)" HR_HELP("remote-folder"),
                            known->path);
        if (r < 0) return hr__fail_more(r, "remote: wanted %" PRIu64 " bytes at offset %" PRIu64, bytes, at);
    }
    atomic_fetch_add(&filling->done_bytes, bytes);
    return 0;
}

/* ---- threads ---- */

static void fill_chunks(hr_filling *filling, void *memory) {
    while (!atomic_load(&filling->stop)) {
        uint64_t chunk = atomic_fetch_add(&filling->next, 1);
        if (chunk >= filling->chunk_count) return;
        int r = fill_chunk(filling, chunk, memory);
        if (r < 0) note_failure(filling, r);
    }
}

static void run(void *context) {
    hr_filling *filling = context;
    void *memory = hr__realloc(NULL, CHUNK_BYTES);
    hr__link_stop_with(&filling->stop);
    if (memory)
        fill_chunks(filling, memory);
    else
        note_failure(filling, hr__fail(-ENOMEM, "remote: no memory for an answer"));
    hr__free(memory);
    hr__link_close();
    atomic_fetch_sub(&filling->running, 1);
    hr__futex_wake(&filling->running);
}

static int start_threads(hr_filling *filling) {
    for (uint32_t i = 0; i < hr__min(THREADS, filling->chunk_count); i++) {
        atomic_fetch_add(&filling->running, 1);
        int r = hr__thread_start(&filling->threads[i], run, filling);
        if (r == 0) {
            filling->thread_count++;
            continue;
        }
        atomic_fetch_sub(&filling->running, 1);
        return i ? 0 : hr__fail(r, "remote: cannot start a thread: %s", hr_error_text(r));
    }
    return 0;
}

/* ---- the public functions ---- */

static uint64_t kept_bytes_of(const hr_filling *filling, const struct hr__known *known) {
    struct hr_kept kept;
    return hr__kept_look(filling->folder, known->object.name, &kept) == 0 ? kept.kept_bytes : 0;
}

static int add_objects(hr_filling *filling, const char *const *paths, size_t count) {
    filling->objects = hr__realloc(NULL, (count + 1) * sizeof *filling->objects);
    if (!filling->objects) return hr__fail(-ENOMEM, "remote: no memory for %zu objects", count);
    for (size_t i = 0; i < count; i++) {
        const struct hr__known *known = hr__known_find(paths[i]);
        if (!known) return hr__fail(-ENOENT, "remote: an object is not known; look at it first (hr_remote_look)");
        if (!known->object.bytes) continue;
        filling->objects[filling->count++] = (struct object){known, filling->chunk_count};
        filling->chunk_count += (known->object.bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
        filling->total_bytes += known->object.bytes;
        filling->kept_bytes += kept_bytes_of(filling, known);
    }
    return 0;
}

int hr_filling_start(const char *const *paths, size_t count, hr_filling **ret_filling) {
    hr_filling *filling = hr__realloc(NULL, sizeof *filling);
    if (!filling) return hr__fail(-ENOMEM, "remote: no memory to fill objects");
    memset(filling, 0, sizeof *filling);
    int r = hr__remote_folder(filling->folder);
    if (r == 0) r = add_objects(filling, paths, count);
    if (r == 0) r = start_threads(filling);
    if (r == 0)
        *ret_filling = filling;
    else
        hr_filling_free(filling);
    return r;
}

int hr_filling_wait(hr_filling *filling, int64_t deadline_ns) {
    for (uint32_t running; (running = atomic_load(&filling->running));) {
        int r = hr__futex_wait(&filling->running, running, deadline_ns);
        if (r == -ETIMEDOUT) return 0;
        if (r == -EINTR) return hr__fail(r, "remote: a signal came while objects were filled");
        if (r < 0 && r != -EAGAIN) return hr__fail(r, "remote: cannot wait for threads: %s", hr_error_text(r));
    }
    return filling->failure < 0 ? hr__fail(filling->failure, "%s", filling->text) : 1;
}

void hr_filling_look(hr_filling *filling, struct hr_filling_info *ret_info) {
    *ret_info = (struct hr_filling_info){.total_bytes = filling->total_bytes,
                                         .done_bytes = atomic_load(&filling->done_bytes),
                                         .kept_bytes = filling->kept_bytes};
}

hr_filling *hr_filling_free(hr_filling *filling) {
    if (!filling) return NULL;
    atomic_store(&filling->stop, true);
    for (uint32_t i = 0; i < filling->thread_count; i++) hr__thread_join(&filling->threads[i]);
    hr__free(filling->objects);
    hr__free(filling);
    return NULL;
}
