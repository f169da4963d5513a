/* SPDX-License-Identifier: Apache-2.0 */
#include "box.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "base/base.h"
#include "base/error.h"
#include "os/os.h"

enum { TOLD_COUNT_AT = 8, TOLD_AT = HR_CACHE_LINE, PLACE_BYTES = 4096, SAID_AT = 2 * PLACE_BYTES };
static_assert(sizeof(((struct hr__box *)0)->said) == HR_BOX_SAID_BYTES, "one size");
static_assert(TOLD_AT + sizeof(uint64_t) + HR_BOX_TOLD_BYTES <= PLACE_BYTES, "one layout");
static_assert(HR_BOX_STACK_AT == SAID_AT + HR_BOX_SAID_BYTES, "one layout");

int hr__box_open(struct hr__box *box, int *ret_fd) {
    enum hr__memory_kind kind;
    int fd;
    hr__box_close(box);
    int r = hr__memory_create(HR_BOX_BYTES, HR_BOX_BYTES, &fd, &kind);
    if (r < 0) return r;
    hr__keep_size(fd);
    r = hr__map(fd, HR_BOX_BYTES, &box->mapping);
    if (r < 0) {
        hr__close(&fd);
        return r;
    }
    hr__keep_from_children(box->mapping, HR_BOX_BYTES);
    *ret_fd = fd;
    return 0;
}

void hr__box_close(struct hr__box *box) {
    hr__unmap(box->mapping, HR_BOX_BYTES);
    box->mapping = NULL;
}

void hr__box_stack(const struct hr__box *box, const char **ret_text, size_t *ret_bytes) {
    *ret_text = box->mapping ? (const char *)box->mapping + HR_BOX_STACK_AT : "";
    *ret_bytes = box->mapping ? strnlen(*ret_text, HR_BOX_STACK_BYTES) : 0;
}

void hr__box_said(struct hr__box *box, const char **ret_text, size_t *ret_bytes) {
    *ret_text = box->said;
    *ret_bytes = 0;
    if (!box->mapping) return;
    const char *ring = (const char *)box->mapping + SAID_AT;
    uint64_t count = atomic_load((_Atomic uint64_t *)box->mapping);
    size_t bytes = (size_t)hr__min(count, HR_BOX_SAID_BYTES);
    size_t start = (size_t)((count - bytes) % HR_BOX_SAID_BYTES);
    size_t first = (size_t)hr__min(bytes, HR_BOX_SAID_BYTES - start);
    memcpy(box->said, ring + start, first);
    memcpy(box->said + first, ring, bytes - first);
    *ret_bytes = bytes;
}

/* Where the text with this number is: its bytes, and itself. */
static uint64_t place_of(uint64_t number) {
    return TOLD_AT + number % 2 * PLACE_BYTES;
}

/* While told_count is the same, only the other place is written to. */
void hr__box_told(struct hr__box *box, const char **ret_text, size_t *ret_bytes) {
    enum { MOST_LOOKS = 100 }; /* a worker may do anything */
    *ret_text = box->told;
    *ret_bytes = 0;
    if (!box->mapping) return;
    _Atomic uint64_t *told_count = (_Atomic uint64_t *)((char *)box->mapping + TOLD_COUNT_AT);
    for (int i = 0; i < MOST_LOOKS; i++) {
        uint64_t count = atomic_load(told_count);
        _Atomic uint64_t *place = (_Atomic uint64_t *)((char *)box->mapping + place_of(count));
        uint64_t bytes = count ? atomic_load(place) : 0;
        if (bytes <= HR_BOX_TOLD_BYTES) memcpy(box->told, place + 1, bytes);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load(told_count) != count) continue;
        *ret_bytes = bytes <= HR_BOX_TOLD_BYTES ? (size_t)bytes : 0;
        return;
    }
}

/* A data set may have closed the box and opened a file of its own under its number. */
static int check_file(int fd) {
    uint64_t bytes = 0;
    int r = hr__memory_bytes(fd, &bytes);
    return r == 0 && bytes != HR_BOX_BYTES ? -EBADF : r;
}

/* By file offsets and not through a mapping: it is called rarely, and a worker may have closed the file. */
int hr_box_say(int fd, const void *text, size_t bytes) {
    uint64_t count = 0;
    const char *at = text;
    int r = check_file(fd);
    if (r == 0) r = hr__read_at(fd, 0, &count, sizeof count);
    if (r < 0) return hr__fail(r, "crew: a worker's box cannot be read: %s", hr_error_text(r));
    uint64_t end = count + bytes;
    if (bytes > HR_BOX_SAID_BYTES) at += bytes - HR_BOX_SAID_BYTES, bytes = HR_BOX_SAID_BYTES;
    size_t start = (size_t)((end - bytes) % HR_BOX_SAID_BYTES);
    size_t first = (size_t)hr__min(bytes, HR_BOX_SAID_BYTES - start);
    r = hr__write_at(fd, SAID_AT + start, at, first);
    if (r == 0) r = hr__write_at(fd, SAID_AT, at + first, bytes - first);
    hr__stop_at(HR__AT_BOX_WRITTEN);
    if (r == 0) r = hr__write_at(fd, 0, &end, sizeof end);
    hr__stop_at(HR__AT_BOX_SAID);
    return r < 0 ? hr__fail(r, "crew: a worker's box cannot be written: %s", hr_error_text(r)) : 0;
}

int hr_box_tell(int fd, const void *text, size_t bytes) {
    uint64_t count = 0, length = bytes;
    int r = bytes > HR_BOX_TOLD_BYTES ? -EMSGSIZE : check_file(fd);
    if (r == 0) r = hr__read_at(fd, TOLD_COUNT_AT, &count, sizeof count);
    count++;
    if (r == 0) r = hr__write_at(fd, place_of(count), &length, sizeof length);
    if (r == 0) r = hr__write_at(fd, place_of(count) + sizeof length, text, bytes);
    hr__stop_at(HR__AT_BOX_TELLING);
    if (r == 0) r = hr__write_at(fd, TOLD_COUNT_AT, &count, sizeof count);
    hr__stop_at(HR__AT_BOX_TOLD);
    return r < 0 ? hr__fail(r, "crew: a worker's box cannot be written: %s", hr_error_text(r)) : 0;
}
