/* SPDX-License-Identifier: Apache-2.0 */
/* Creates, maps, writes and reads a worker's diagnostics file. */
#include "diagnostics.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "base/base.h"
#include "base/error.h"
#include "os/os.h"

enum { STATUS_COUNT_AT = 8, STATUS_AT = HR_CACHE_LINE, PLACE_BYTES = 4096, STDERR_AT = 2 * PLACE_BYTES };
static_assert(sizeof(((struct hr__diagnostics *)0)->stderr_end) == HR_DIAGNOSTICS_STDERR_BYTES, "one size");
static_assert(STATUS_AT + sizeof(uint64_t) + HR_DIAGNOSTICS_STATUS_BYTES <= PLACE_BYTES, "one layout");
static_assert(HR_DIAGNOSTICS_STACK_AT == STDERR_AT + HR_DIAGNOSTICS_STDERR_BYTES, "one layout");

int hr__diagnostics_open(struct hr__diagnostics *diagnostics, int *ret_fd) {
    enum hr__memory_kind kind;
    int fd;
    hr__diagnostics_close(diagnostics);
    int r = hr__memory_create("headrace-worker", HR_DIAGNOSTICS_BYTES, HR_DIAGNOSTICS_BYTES, &fd, &kind);
    if (r < 0) return r;
    hr__keep_size(fd);
    r = hr__map(fd, HR_DIAGNOSTICS_BYTES, &diagnostics->mapping);
    if (r < 0) {
        hr__close(&fd);
        return r;
    }
    hr__keep_from_children(diagnostics->mapping, HR_DIAGNOSTICS_BYTES);
    *ret_fd = fd;
    return 0;
}

void hr__diagnostics_close(struct hr__diagnostics *diagnostics) {
    hr__unmap(diagnostics->mapping, HR_DIAGNOSTICS_BYTES);
    diagnostics->mapping = NULL;
}

void hr__diagnostics_stack(const struct hr__diagnostics *diagnostics, const char **ret_text, size_t *ret_bytes) {
    *ret_text = diagnostics->mapping ? (const char *)diagnostics->mapping + HR_DIAGNOSTICS_STACK_AT : "";
    *ret_bytes = diagnostics->mapping ? strnlen(*ret_text, HR_DIAGNOSTICS_STACK_BYTES) : 0;
}

void hr__diagnostics_stderr(struct hr__diagnostics *diagnostics, const char **ret_text, size_t *ret_bytes) {
    *ret_text = diagnostics->stderr_end;
    *ret_bytes = 0;
    if (!diagnostics->mapping) return;
    const char *ring = (const char *)diagnostics->mapping + STDERR_AT;
    uint64_t count = atomic_load((_Atomic uint64_t *)diagnostics->mapping);
    size_t bytes = (size_t)hr__min(count, HR_DIAGNOSTICS_STDERR_BYTES);
    size_t start = (size_t)((count - bytes) % HR_DIAGNOSTICS_STDERR_BYTES);
    size_t first = (size_t)hr__min(bytes, HR_DIAGNOSTICS_STDERR_BYTES - start);
    memcpy(diagnostics->stderr_end, ring + start, first);
    memcpy(diagnostics->stderr_end + first, ring, bytes - first);
    *ret_bytes = bytes;
}

/* The offset of the status text with this number: its length, then its bytes. */
static uint64_t place_of(uint64_t number) {
    return STATUS_AT + number % 2 * PLACE_BYTES;
}

/* While status_count does not change, the worker writes only to the other place. */
void hr__diagnostics_posted_status(struct hr__diagnostics *diagnostics, const char **ret_text, size_t *ret_bytes) {
    enum { MAX_TRIES = 100 }; /* a damaged worker could change it all the time */
    *ret_text = diagnostics->status;
    *ret_bytes = 0;
    if (!diagnostics->mapping) return;
    _Atomic uint64_t *status_count = (_Atomic uint64_t *)((char *)diagnostics->mapping + STATUS_COUNT_AT);
    for (int i = 0; i < MAX_TRIES; i++) {
        uint64_t count = atomic_load(status_count);
        _Atomic uint64_t *place = (_Atomic uint64_t *)((char *)diagnostics->mapping + place_of(count));
        uint64_t bytes = count ? atomic_load(place) : 0;
        if (bytes <= HR_DIAGNOSTICS_STATUS_BYTES) memcpy(diagnostics->status, place + 1, bytes);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load(status_count) != count) continue;
        *ret_bytes = bytes <= HR_DIAGNOSTICS_STATUS_BYTES ? (size_t)bytes : 0;
        return;
    }
}

/* The user's dataset may have closed the diagnostics file and opened another file under its number. */
static int check_file(int fd) {
    uint64_t bytes = 0;
    int r = hr__memory_bytes(fd, &bytes);
    return r == 0 && bytes != HR_DIAGNOSTICS_BYTES ? -EBADF : r;
}

/* This writes by file offsets and not through a mapping, because it is called rarely, and because the dataset may have
 * closed the file. */
int hr_diagnostics_log_stderr(int fd, const void *text, size_t bytes) {
    uint64_t count = 0;
    const char *at = text;
    int r = check_file(fd);
    if (r == 0) r = hr__read_at(fd, 0, &count, sizeof count);
    if (r < 0) return hr__fail(r, "crew: cannot read the diagnostics file of a worker: %s", hr_error_text(r));
    uint64_t end = count + bytes;
    if (bytes > HR_DIAGNOSTICS_STDERR_BYTES)
        at += bytes - HR_DIAGNOSTICS_STDERR_BYTES, bytes = HR_DIAGNOSTICS_STDERR_BYTES;
    size_t start = (size_t)((end - bytes) % HR_DIAGNOSTICS_STDERR_BYTES);
    size_t first = (size_t)hr__min(bytes, HR_DIAGNOSTICS_STDERR_BYTES - start);
    r = hr__write_at(fd, STDERR_AT + start, at, first);
    if (r == 0) r = hr__write_at(fd, STDERR_AT, at + first, bytes - first);
    hr__stop_at(HR__AT_STDERR_WRITTEN);
    if (r == 0) r = hr__write_at(fd, 0, &end, sizeof end);
    hr__stop_at(HR__AT_STDERR_LOGGED);
    return r < 0 ? hr__fail(r, "crew: cannot write the diagnostics file of a worker: %s", hr_error_text(r)) : 0;
}

int hr_diagnostics_post_status(int fd, const void *text, size_t bytes) {
    uint64_t count = 0, length = bytes;
    int r = bytes > HR_DIAGNOSTICS_STATUS_BYTES ? -EMSGSIZE : check_file(fd);
    if (r == 0) r = hr__read_at(fd, STATUS_COUNT_AT, &count, sizeof count);
    count++;
    if (r == 0) r = hr__write_at(fd, place_of(count), &length, sizeof length);
    if (r == 0) r = hr__write_at(fd, place_of(count) + sizeof length, text, bytes);
    hr__stop_at(HR__AT_STATUS_WRITTEN);
    if (r == 0) r = hr__write_at(fd, STATUS_COUNT_AT, &count, sizeof count);
    hr__stop_at(HR__AT_STATUS_POSTED);
    return r < 0 ? hr__fail(r, "crew: cannot write the diagnostics file of a worker: %s", hr_error_text(r)) : 0;
}
