/* SPDX-License-Identifier: Apache-2.0 */
/* Builds frozen data: its memory or file, scalars, and the end. */
#include "frozen/build.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "base/hash.h"
#include "frozen/frozen.h"
#include "os/os.h"

enum {
    FIRST_STEP_BYTES = 1 << 16,
    FIRST_MAPPED_BYTES = 64 << 20,
    HUGE_BYTES = 2 << 20,
    STEPS = 32, /* frozen data grows by a 32nd of its size */
    LAST_STEP_BYTES = 64 << 20,
    FORGET_BYTES = 256 << 20,
    LATE_TEXT_BYTES = 64,
};

/* ---- room ---- */

static int no_room(const hr_builder *builder, int code, uint64_t bytes) {
    if (code == -EFBIG && bytes > hr__file_limit())
        return hr__fail(code,
                        "frozen data: frozen data of %" PRIu64
                        " bytes or more in %s is over the limit on file sizes, which "
                        "also applies to shared memory; raise it (ulimit -f)",
                        bytes, builder->path ? builder->path : "memory");
    if (builder->path && code != -ENOSPC && code != -EDQUOT && code != -ENOMEM)
        return hr__fail(code, "frozen data: cannot write frozen data of %" PRIu64 " bytes to %s: %s", bytes,
                        builder->path, hr_error_text(code));
    return hr__fail(code, "frozen data: no room for frozen data of %" PRIu64 " bytes in %s: %s; %s", bytes,
                    builder->path ? builder->path : "memory", hr_error_text(code),
                    builder->path ? "free some space, or choose another file system" : "write it to a file (path=)");
}

/* Maps at least `bytes` bytes, not all of which need to be committed yet. */
static int map_more(hr_builder *builder, uint64_t bytes) {
    if (bytes <= builder->mapped_bytes) return 0;
    uint64_t mapped_bytes = hr__max(2 * bytes, FIRST_MAPPED_BYTES);
    void *base;
    int r = hr__map(builder->fd, mapped_bytes, &base);
    if (r < 0) return r;
    hr__unmap(builder->base, builder->mapped_bytes);
    builder->base = base;
    builder->mapped_bytes = mapped_bytes;
    return 0;
}

/* Makes the file or memory `room` bytes long, and commits all of it, because touching memory that is not committed
 * raises SIGBUS. Frozen data in memory gets no huge page before it fills one, because making and clearing a huge page
 * takes longer than building small frozen data. */
static int commit(hr_builder *builder, uint64_t room) {
    if (room > hr__file_limit()) return -EFBIG;
    uint64_t begin = builder->room, huge = begin < HUGE_BYTES ? 0 : hr__round_up(begin, HUGE_BYTES);
    if (builder->path || room < HUGE_BYTES || huge >= room) return hr__commit(builder->fd, begin, room - begin);
    int r = hr__file_cut(builder->fd, room);
    if (r == 0 && huge > begin) r = hr__commit(builder->fd, begin, huge - begin);
    return r < 0 ? r : hr__commit_huge(builder->fd, builder->base, huge, room - huge);
}

static int grow(hr_builder *builder, uint64_t needed) {
    uint64_t step = hr__min(hr__max(builder->room / STEPS, FIRST_STEP_BYTES), LAST_STEP_BYTES);
    uint64_t room = hr__max(needed, builder->room + step);
    room = hr__round_up(room, room > HUGE_BYTES ? HUGE_BYTES : FIRST_STEP_BYTES);
    room = hr__max(needed, hr__min(room, hr__file_limit()));
    int r = map_more(builder, room);
    if (r == 0) r = commit(builder, room);
    if (r < 0) return no_room(builder, r, room);
    builder->room = room;
    return 0;
}

/* Pages that were written to a file are removed from this process, so that frozen data larger than memory does not
 * count as memory of this process. */
static void forget(hr_builder *builder) {
    if (!builder->path || builder->used - builder->forgotten < FORGET_BYTES) return;
    hr__forget_pages(builder->base, builder->used & ~UINT64_C(0xFFFF));
    builder->forgotten = builder->used;
}

int hr__builder_room(hr_builder *builder, uint64_t bytes, uint64_t align, uint64_t *ret_offset) {
    uint64_t offset = hr__round_up(builder->used, align), end;
    if (!hr__add(offset, bytes, &end) || end > UINT64_C(1) << 43)
        return hr__fail(-EFBIG, "frozen data: frozen data can have up to 8 TiB; split it");
    end = hr__round_up(end, 8);
    int r = end > builder->room ? grow(builder, end) : 0;
    if (r < 0) return r;
    builder->used = end;
    forget(builder);
    *ret_offset = offset;
    return 0;
}

struct hr__contents hr__builder_contents(const hr_builder *builder) {
    return (struct hr__contents){.base = builder->base,
                                 .heap_end = builder->used,
                                 .shapes = builder->shapes,
                                 .shape_count = builder->shape_count,
                                 .seed = builder->seed};
}

uint64_t hr_builder_bytes(const hr_builder *builder) {
    return builder->used;
}

/* ---- open, close ---- */

hr_builder *hr_builder_close(hr_builder *builder) {
    if (!builder) return NULL;
    hr__unmap(builder->base, builder->mapped_bytes);
    hr__close(&builder->fd);
    if (builder->pid == hr__pid()) hr__file_remove(builder->temporary);
    hr__free(builder->temporary);
    hr__free(builder->path);
    hr__free(builder->shapes);
    hr__free(builder->shape_slots);
    hr__free(builder);
    return NULL;
}

static void drop_builder(hr_builder **builder) {
    hr_builder_close(*builder);
}

static int create(hr_builder *builder, const char *path) {
    enum hr__memory_kind kind;
    if (!path) return hr__memory_create("headrace-frozen", 0, 0, &builder->fd, &kind);
    size_t length = strlen(path) + 1;
    builder->path = hr__realloc(NULL, length);
    if (!builder->path) return -ENOMEM;
    memcpy(builder->path, path, length);
    return hr__file_create(path, &builder->fd, &builder->temporary);
}

static const char *advice(int code) {
    if (code == -EMFILE || code == -ENFILE)
        return "; each freeze has a descriptor: freeze related objects together, or raise the limit on open files "
               "(ulimit -n)";
    return code == -EEXIST ? ", and it is not a regular file" : "";
}

int hr_builder_open(const char *path, hr_builder **ret_builder) {
    if (path && !*path)
        return hr__fail(-ENOENT, "frozen data: the path of frozen data is empty; NULL makes frozen data in memory");
    hr_cleanup(drop_builder) hr_builder *builder = hr__realloc(NULL, sizeof *builder);
    if (!builder) return hr__fail(-ENOMEM, "frozen data: no memory for a builder");
    *builder = (hr_builder){.fd = -1, .pid = hr__pid(), .seed = UINT64_C(0x9e3779b97f4a7c15)};
    int r = create(builder, path);
    if (r < 0)
        return hr__fail(r, "frozen data: it cannot be made in %s: %s%s", path ? path : "memory", hr_error_text(r),
                        advice(r));
    uint64_t header;
    r = hr__builder_room(builder, sizeof(struct hr__frozen_header), 8, &header);
    if (r == 0) *ret_builder = hr_take(builder);
    return r;
}

/* ---- scalars ---- */

hr_value hr_value_none(void) {
    return TAG_NONE;
}

hr_value hr_value_bool(int truth) {
    return truth ? TAG_TRUE : TAG_FALSE;
}

static int put_bytes(hr_builder *builder, unsigned tag, const void *bytes, uint64_t count, hr_value *ret_value) {
    bool stands_before = count >= COUNT_BEFORE_ITEMS;
    uint64_t offset, room;
    if (!hr__add(count, stands_before ? 8 : 0, &room))
        return hr__fail(-EFBIG, "frozen data: a value of %" PRIu64 " bytes is larger than frozen data can be", count);
    int r = hr__builder_room(builder, hr__max(room, 1), 8, &offset);
    if (r < 0) return r;
    unsigned char *at = builder->base + offset;
    if (stands_before) {
        memcpy(at, &count, sizeof count);
        at += sizeof count;
    }
    if (count) memcpy(at, bytes, count);
    *ret_value = hr__word(tag, stands_before ? COUNT_BEFORE_ITEMS : (unsigned)count, offset);
    return 0;
}

/* A value of fixed size, which has no count. */
static int put_fixed(hr_builder *builder, unsigned tag, const void *bytes, uint64_t count, hr_value *ret_value) {
    int r = put_bytes(builder, tag, bytes, count, ret_value);
    if (r == 0) *ret_value &= ~UINT64_C(0xFFFF00);
    return r;
}

int hr_builder_int(hr_builder *builder, int64_t integer, hr_value *ret_value) {
    if (integer < -(INT64_C(1) << 55) || integer >= INT64_C(1) << 55)
        return put_fixed(builder, TAG_INT64, &integer, 8, ret_value);
    *ret_value = (uint64_t)integer << 8 | TAG_INT;
    return 0;
}

int hr_builder_float(hr_builder *builder, double real, hr_value *ret_value) {
    uint64_t bits;
    memcpy(&bits, &real, sizeof bits);
    if (bits & 0xFF) return put_fixed(builder, TAG_REAL64, &real, 8, ret_value);
    *ret_value = bits | TAG_REAL;
    return 0;
}

int hr_builder_complex(hr_builder *builder, double real, double imaginary, hr_value *ret_value) {
    return put_fixed(builder, TAG_COMPLEX, (double[]){real, imaginary}, 16, ret_value);
}

/* ---- texts ---- */

static bool is_ascii(const unsigned char *bytes, uint64_t count) {
    unsigned char all = 0;
    uint64_t word, many = 0, i = 0;
    for (; i + 8 <= count; i += 8) {
        memcpy(&word, bytes + i, sizeof word);
        many |= word;
    }
    for (; i < count; i++) all |= bytes[i];
    return !((many & UINT64_C(0x8080808080808080)) | (all & 0x80));
}

static hr_value short_text(const unsigned char *bytes, uint64_t count) {
    uint64_t characters = 0;
    for (uint64_t i = 0; i < count; i++) characters |= (uint64_t)bytes[i] << 8 * i;
    return characters << 8 | (TAG_SHORT + count);
}

static int put_text(hr_builder *builder, const unsigned char *bytes, uint64_t count, hr_value *ret_value) {
    bool ascii = is_ascii(bytes, count);
    if (ascii && count <= SHORT_MAX) {
        *ret_value = short_text(bytes, count);
        return 0;
    }
    unsigned tag = ascii ? TAG_ASCII : TAG_TEXT;
    if (count > LATE_TEXT_BYTES) return put_bytes(builder, tag, bytes, count, ret_value);
    hr_value *late = &builder->late[hr__hash(bytes, count, builder->seed) % LATE_TEXTS];
    if (hr__word_tag(*late) == tag && hr__word_count(*late) == count &&
        !memcmp(builder->base + hr__word_offset(*late), bytes, count)) {
        *ret_value = *late;
        return 0;
    }
    int r = put_bytes(builder, tag, bytes, count, ret_value);
    if (r == 0) *late = *ret_value;
    return r;
}

int hr_builder_bytes_of(hr_builder *builder, enum hr_kind kind, const void *bytes, uint64_t count,
                        hr_value *ret_value) {
    switch (kind) {
    case HR_KIND_TEXT:
        return put_text(builder, bytes, count, ret_value);
    case HR_KIND_BIG_INT:
        return put_bytes(builder, TAG_BIG_INT, bytes, count, ret_value);
    case HR_KIND_BYTES:
        return put_bytes(builder, TAG_BYTES, bytes, count, ret_value);
    case HR_KIND_BYTE_ARRAY:
        return put_bytes(builder, TAG_BYTE_ARRAY, bytes, count, ret_value);
    case HR_KIND_PICKLE:
        return put_bytes(builder, TAG_PICKLE, bytes, count, ret_value);
    default:
        return hr__fail(-EINVAL, "frozen data: a value of kind %d is not made of bytes", (int)kind);
    }
}

/* ---- finishing ---- */

static int put_shapes(hr_builder *builder, struct hr__frozen_header *header) {
    uint64_t offset;
    header->heap_end = builder->used;
    header->shape_count = builder->shape_count;
    int r = hr__builder_room(builder, header->shape_count * 8, 8, &offset);
    if (r < 0) return r;
    if (header->shape_count) memcpy(builder->base + offset, builder->shapes, header->shape_count * 8);
    header->shapes_at = offset;
    return 0;
}

static int put_sums(hr_builder *builder, struct hr__frozen_header *header) {
    uint64_t end = builder->used;
    header->sum_count = (end - sizeof *header + CHUNK_BYTES - 1) / CHUNK_BYTES;
    int r = hr__builder_room(builder, header->sum_count * 8, 8, &header->sums_at);
    if (r < 0) return r;
    uint64_t *sums = (uint64_t *)(void *)(builder->base + header->sums_at);
    for (uint64_t i = 0; i < header->sum_count; i++) {
        sums[i] = hr__chunk_sum(builder->base, i, header->sums_at);
        if (builder->path && i && i % (FORGET_BYTES / CHUNK_BYTES) == 0)
            hr__forget_pages(builder->base, i * (uint64_t)CHUNK_BYTES & ~UINT64_C(0xFFFF));
    }
    hr__contents_digest(header, sums, header->digest);
    return 0;
}

/* Writes all but the header, and computes the header. */
static int write_sections(hr_builder *builder, hr_value root, struct hr__frozen_header *ret_header) {
    struct hr__frozen_header header = {.magic = HR__FROZEN_MAGIC,
                                       .version = HR_FROZEN_VERSION,
                                       .header_bytes = sizeof header,
                                       .root = root,
                                       .seed = builder->seed,
                                       .chunk_bytes = CHUNK_BYTES};
    struct hr__contents contents = hr__builder_contents(builder);
    struct hr_item item;
    int r = hr__contents_read(&contents, root, &item);
    if (r < 0) return hr__fail(-EINVAL, "frozen data: the root is not a value of this builder");
    r = put_shapes(builder, &header);
    if (r == 0) r = put_sums(builder, &header);
    if (r < 0) return r;
    header.total_bytes = builder->used;
    memcpy(header.id, &(uint64_t[]){(uint64_t)hr__now_ns(), hr__pid()}, sizeof header.id);
    hr__random(header.id, sizeof header.id);
    header.checksum = hr__header_sum(&header);
    *ret_header = header;
    return 0;
}

/* The header is written last, because a file without a header is not taken for frozen data. */
static int publish(hr_builder *builder, const struct hr__frozen_header *header) {
    hr__unmap(builder->base, builder->mapped_bytes);
    builder->base = NULL;
    int r = hr__file_cut(builder->fd, header->total_bytes);
    if (r == 0 && builder->path) r = hr__file_sync(builder->fd);
    if (r == 0) r = hr__write_at(builder->fd, 0, header, sizeof *header);
    if (r == 0 && builder->path) r = hr__file_sync(builder->fd);
    if (r == 0 && builder->path) r = hr__file_publish(builder->fd, builder->temporary, builder->path);
    if (r < 0) return no_room(builder, r, header->total_bytes);
    hr__free(builder->temporary);
    builder->temporary = NULL;
    if (!builder->path) hr__seal(builder->fd);
    return 0;
}

int hr_builder_finish(hr_builder *builder, hr_value root, hr_frozen **ret_frozen) {
    hr_cleanup(drop_builder) hr_builder *mine = builder;
    struct hr__frozen_header header;
    int fd;
    int r = write_sections(mine, root, &header);
    if (r == 0) r = publish(mine, &header);
    if (r < 0) return r;
    r = hr__file_reopen(mine->fd, &fd);
    if (r < 0) return hr__fail(r, "frozen data: cannot open a descriptor of the frozen data: %s", hr_error_text(r));
    r = hr__frozen_open_taken(fd, mine->path ? mine->path : "frozen data in memory", 0, ret_frozen);
    if (r == 0 && mine->path) hr__close(&(*ret_frozen)->fd);
    return r;
}
