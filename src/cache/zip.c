/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "cache/files.h"
#include "os/os.h"

/* Lists the members of a .npz file, which is a zip archive (PKWARE's APPNOTE.TXT). plan.c calls it. */

enum {
    END_BYTES = 22,
    END64_BYTES = 56,
    LOCATOR_BYTES = 20,
    ENTRY_BYTES = 46,
    LOCAL_BYTES = 30,
    COMMENT_MAX = 65535,
    DIRECTORY_MAX = 256 << 20,
    STORED = 0,
    DEFLATED = 8,
};

static uint64_t number_at(const unsigned char *at, int bytes) {
    uint64_t number = 0;
    for (int i = bytes - 1; i >= 0; i--) number = number << 8 | at[i];
    return number;
}

static int malformed(const char *path) {
    return hr__fail(-EINVAL, "cache: %s is not a .npz file, or is truncated or damaged; write it again", path);
}

/* ---- the end of the archive ---- */

struct directory {
    uint64_t at, bytes, count;
};

/* The record of archives that are too large for the first one. */
static int read_end64(int fd, uint64_t end_at, const char *path, struct directory *directory) {
    unsigned char record[END64_BYTES];
    if (end_at < LOCATOR_BYTES || hr__read_at(fd, end_at - LOCATOR_BYTES, record, LOCATOR_BYTES) < 0)
        return malformed(path);
    if (number_at(record, 4) != 0x07064b50) return 0; /* the first record is complete */
    uint64_t at = number_at(record + 8, 8);
    if (at > end_at || hr__read_at(fd, at, record, END64_BYTES) < 0 || number_at(record, 4) != 0x06064b50)
        return malformed(path);
    *directory = (struct directory){
        .count = number_at(record + 32, 8), .bytes = number_at(record + 40, 8), .at = number_at(record + 48, 8)};
    return 0;
}

static int read_end(int fd, uint64_t file_bytes, const char *path, struct directory *ret_directory) {
    uint64_t count = hr__min(file_bytes, END_BYTES + COMMENT_MAX);
    unsigned char *tail = hr__realloc(NULL, count + 1);
    if (!tail) return -ENOMEM;
    int r = hr__read_at(fd, file_bytes - count, tail, count);
    int64_t at = (int64_t)count - END_BYTES;
    while (r == 0 && at >= 0 && number_at(tail + at, 4) != 0x06054b50) at--;
    if (r == 0 && at >= 0) {
        const unsigned char *end = tail + at;
        *ret_directory = (struct directory){
            .count = number_at(end + 10, 2), .bytes = number_at(end + 12, 4), .at = number_at(end + 16, 4)};
        r = read_end64(fd, file_bytes - count + (uint64_t)at, path, ret_directory);
    } else
        r = malformed(path);
    hr__free(tail);
    return r;
}

/* ---- members ---- */

/* The sizes of large members are in an extra field. */
static bool read_extra(const unsigned char *extra, uint64_t bytes, struct zip_member *member, uint64_t *local_at) {
    for (uint64_t at = 0; at + 4 <= bytes;) {
        uint64_t id = number_at(extra + at, 2), size = number_at(extra + at + 2, 2), used = 0;
        if (at + 4 + size > bytes) return false;
        uint64_t *fields[] = {&member->bytes, &member->packed_bytes, local_at};
        for (int i = 0; id == 1 && i < 3; i++) {
            if (*fields[i] != UINT32_MAX) continue;
            if (used + 8 > size) return false;
            *fields[i] = number_at(extra + at + 4 + used, 8);
            used += 8;
        }
        at += 4 + size;
    }
    return true;
}

static int find_data(int fd, uint64_t file_bytes, const char *path, uint64_t local_at, struct zip_member *member) {
    unsigned char local[LOCAL_BYTES];
    uint64_t end;
    if (local_at > file_bytes || hr__read_at(fd, local_at, local, LOCAL_BYTES) < 0) return malformed(path);
    if (number_at(local, 4) != 0x04034b50) return malformed(path);
    member->data_at = local_at + LOCAL_BYTES + number_at(local + 26, 2) + number_at(local + 28, 2);
    if (!hr__add(member->data_at, member->packed_bytes, &end) || end > file_bytes) return malformed(path);
    return 0;
}

static int name_member(const char *path, const unsigned char *name, uint64_t length, struct zip_member *member) {
    if (memchr(name, '\0', length)) return malformed(path);
    if (length < 4 || memcmp(name + length - 4, ".npy", 4) != 0)
        return hr__fail(-EINVAL, "cache: the member %.*s of %s is not an array (.npy); leave it out", (int)length, name,
                        path);
    length -= 4;
    member->name = hr__realloc(NULL, length + 1);
    if (!member->name) return -ENOMEM;
    memcpy(member->name, name, length);
    member->name[length] = '\0';
    return 0;
}

static int read_entry(int fd, uint64_t file_bytes, const char *path, const unsigned char *entry, uint64_t left,
                      struct zip_member *member, uint64_t *ret_bytes) {
    if (left < ENTRY_BYTES || number_at(entry, 4) != 0x02014b50) return malformed(path);
    uint64_t flags = number_at(entry + 8, 2), method = number_at(entry + 10, 2);
    uint64_t name = number_at(entry + 28, 2), extra = number_at(entry + 30, 2), comment = number_at(entry + 32, 2);
    uint64_t local_at = number_at(entry + 42, 4);
    *ret_bytes = ENTRY_BYTES + name + extra + comment;
    if (*ret_bytes > left) return malformed(path);
    if (flags & 1) return hr__fail(-EINVAL, "cache: %s is encrypted; write it without a password", path);
    if (method != STORED && method != DEFLATED)
        return hr__fail(-EINVAL,
                        "cache: %s is compressed by method %" PRIu64 "; write it with numpy.savez or "
                        "numpy.savez_compressed",
                        path, method);
    *member = (struct zip_member){.packed_bytes = number_at(entry + 20, 4),
                                  .bytes = number_at(entry + 24, 4),
                                  .crc = (uint32_t)number_at(entry + 16, 4),
                                  .is_deflated = method == DEFLATED};
    if (!read_extra(entry + ENTRY_BYTES + name, extra, member, &local_at)) return malformed(path);
    int r = find_data(fd, file_bytes, path, local_at, member);
    return r < 0 ? r : name_member(path, entry + ENTRY_BYTES, name, member);
}

void hr__zip_free(struct zip_list *list) {
    for (size_t i = 0; i < list->count; i++) hr__free(list->members[i].name);
    hr__free(list->members);
    *list = (struct zip_list){NULL, 0};
}

static int read_directory(int fd, uint64_t file_bytes, const char *path, const struct directory *directory,
                          const unsigned char *bytes, struct zip_list *list) {
    uint64_t at = 0, used = 0;
    int r = 0;
    for (uint64_t i = 0; r == 0 && i < directory->count; i++, at += used) {
        r = read_entry(fd, file_bytes, path, bytes + at, directory->bytes - at, &list->members[list->count], &used);
        if (r == 0) list->count++;
    }
    return r;
}

int hr__zip_read(int fd, uint64_t file_bytes, const char *path, struct zip_list *ret_list) {
    struct directory directory = {0};
    struct zip_list list = {NULL, 0};
    if (file_bytes < END_BYTES) return malformed(path);
    int r = read_end(fd, file_bytes, path, &directory);
    if (r < 0) return r;
    if (directory.bytes > DIRECTORY_MAX || directory.at > file_bytes || directory.bytes > file_bytes - directory.at ||
        directory.count > directory.bytes / ENTRY_BYTES)
        return malformed(path);
    unsigned char *bytes = hr__realloc(NULL, directory.bytes + 1);
    list.members = hr__realloc(NULL, (directory.count + 1) * sizeof *list.members);
    r = bytes && list.members ? hr__read_at(fd, directory.at, bytes, directory.bytes) : -ENOMEM;
    if (r == 0) r = read_directory(fd, file_bytes, path, &directory, bytes, &list);
    hr__free(bytes);
    if (r < 0)
        hr__zip_free(&list);
    else
        *ret_list = list;
    return r;
}
