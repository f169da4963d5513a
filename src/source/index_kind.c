/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the kind of a file, and compares indexes: for `headrace index`. */
#include <headrace/face/index.h>

#include <errno.h>
#include <string.h>

#include "base/base.h"
#include "base/error.h"
#include "index.h"
#include "pool.h"

/* ---- the kind of a file ---- */

enum { BLOCK = 512, SUM_AT = 148, SUM_BYTES = 8 };

static bool has_suffix(const char *path, const char *suffix) {
    size_t length = strlen(path), count = strlen(suffix);
    return length >= count && strcmp(path + length - count, suffix) == 0;
}

/* Says whether a block is the header of a member, by its checksum: the sum of its bytes, with spaces for itself. */
static bool is_tar_header(const unsigned char *block) {
    uint64_t sum = 0, said = 0;
    const unsigned char *digit = block + SUM_AT;
    for (int i = 0; i < BLOCK; i++) sum += i >= SUM_AT && i < SUM_AT + SUM_BYTES ? ' ' : block[i];
    while (*digit == ' ') digit++;
    for (; digit < block + SUM_AT + SUM_BYTES && *digit >= '0' && *digit <= '7'; digit++)
        said = 8 * said + (uint64_t)(*digit - '0');
    return said == sum && sum > SUM_BYTES * ' '; /* a block of zeros has no checksum */
}

static bool is_tar(const char *path, const unsigned char *head, uint64_t count) {
    static const char *const suffixes[] = {".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz"};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (has_suffix(path, suffixes[i])) return true;
    return count == BLOCK && is_tar_header(head);
}

static bool is_lines(const char *path, const unsigned char *head, uint64_t count) {
    static const char *const suffixes[] = {".jsonl", ".ndjson", ".json", ".txt"};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (has_suffix(path, suffixes[i])) return true;
    return memchr(head, 0, count) == NULL;
}

static int read_remote_head(const char *path, unsigned char *head, uint64_t *ret_count) {
    struct hr__pool *pool;
    uint32_t number;
    int r = hr__pool_new(&pool);
    if (r < 0) return hr__fail(r, "source: no memory to read %s", path);
    r = hr__pool_add(pool, path, &number);
    if (r == 0) *ret_count = hr__min(BLOCK, hr__pool_file(pool, number)->first.bytes);
    if (r == 0) r = hr__pool_read(pool, number, 0, head, *ret_count);
    hr__pool_free(pool);
    return r;
}

static int read_head(const char *path, unsigned char *head, uint64_t *ret_count) {
    struct hr__file_info info;
    int fd = -1;
    if (hr__remote_is(path)) return read_remote_head(path, head, ret_count);
    int r = hr__file_open(path, &fd);
    if (r == -EINVAL) return hr__fail(r, "source: %s is not a regular file", path);
    if (r < 0) return hr__fail(r, "source: cannot open %s: %s", path, hr_error_text(r));
    r = hr__file_look_fd(fd, &info);
    *ret_count = hr__min(BLOCK, info.bytes);
    if (r == 0) r = hr__read_at(fd, 0, head, *ret_count);
    hr__close(&fd);
    return r < 0 ? hr__fail(r, "source: cannot read %s: %s", path, hr_error_text(r)) : 0;
}

int hr_index_guess(const char *path, enum hr_index_kind *ret_kind) {
    unsigned char head[BLOCK] = {0};
    uint64_t count = 0;
    int r = read_head(path, head, &count);
    if (r < 0) return r;
    if (!is_tar(path, head, count) && !is_lines(path, head, count))
        return hr__fail(-EINVAL, "source: %s is neither a tar file nor text, by its name and its first bytes", path);
    *ret_kind = is_tar(path, head, count) ? HR_INDEX_TAR : HR_INDEX_LINES;
    return 0;
}

/* ---- are two indexes the same? ---- */

static bool is_same_file(const struct hr_index_file *one, struct hr_index_file other) {
    other.inode = one->inode;
    return memcmp(one, &other, sizeof other) == 0;
}

bool hr_index_is_same(const hr_index *one, const hr_index *other) {
    if (one->head->bytes != other->head->bytes || one->head->file_count != other->head->file_count) return false;
    for (uint64_t i = 0; i < one->head->file_count; i++)
        if (!is_same_file(&one->files[i], other->files[i])) return false;
    const unsigned char *from = (const void *)one->head, *end = from + one->head->bytes;
    size_t behind = (size_t)(end - (const unsigned char *)one->entries);
    return memcmp(one->entries, other->entries, behind) == 0;
}
