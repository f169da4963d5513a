/* SPDX-License-Identifier: Apache-2.0 */
/* Knows, by their first bytes, files whose lines cannot be read. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "lines.h"

struct magic {
    const char *bytes;
    uint32_t at, count;
    enum hr_damage damage;
    const char *format, *command; /* command: makes a text file of it; the path is behind it */
};

/* Git LFS has such a text in place of a file that was not fetched. */
static const char POINTER[] = "version https://git-lfs.github.com/spec/";

static const char to_utf8[] = "iconv -f UTF-16 -t UTF-8 -o NEW_FILE";

static const struct magic magics[] = {
    {"\x1f\x8b\x08", 0, 3, HR_DAMAGE_COMPRESSED, "compressed by gzip", "gzip -dk"},
    {"\x28\xb5\x2f\xfd", 0, 4, HR_DAMAGE_COMPRESSED, "compressed by zstd", "zstd -d"},
    {"1AY&SY", 4, 6, HR_DAMAGE_COMPRESSED, "compressed by bzip2", "bzip2 -dk"},
    {"\xfd\x37zXZ\0", 0, 6, HR_DAMAGE_COMPRESSED, "compressed by xz", "xz -dk"},
    {"\x04\x22\x4d\x18", 0, 4, HR_DAMAGE_COMPRESSED, "compressed by lz4", "lz4 -d"},
    {"PK\3\4", 0, 4, HR_DAMAGE_COMPRESSED, "a zip archive", "unzip"},
    {"\xff\xfe", 0, 2, HR_DAMAGE_REFUSED, "text in UTF-16", to_utf8},
    {"\xfe\xff", 0, 2, HR_DAMAGE_REFUSED, "text in UTF-16", to_utf8},
};

static const struct magic *find_magic(const unsigned char *head, uint64_t count) {
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++) {
        const struct magic *magic = &magics[i];
        if (count >= magic->at + magic->count && memcmp(head + magic->at, magic->bytes, magic->count) == 0)
            return magic;
    }
    return NULL;
}

const char *hr__lines_format(const unsigned char *head, uint64_t count) {
    const struct magic *magic = find_magic(head, count);
    return magic ? magic->format : NULL;
}

bool hr__is_pointer(const unsigned char *head, uint64_t count) {
    return count >= sizeof POINTER - 1 && memcmp(head, POINTER, sizeof POINTER - 1) == 0;
}

int hr__refuse_pointer(const char *path) {
    return hr__fail(-EINVAL,
                    "source: %s is a pointer of Git LFS, and not the file itself, which was not fetched. Fetch it: "
                    "git lfs pull",
                    path);
}

enum hr_damage hr__lines_check_head(const unsigned char *head, uint64_t count) {
    const struct magic *magic = find_magic(head, count);
    return magic ? magic->damage : hr__is_pointer(head, count) ? HR_DAMAGE_REFUSED : HR_DAMAGE_NONE;
}

int hr__lines_refuse(const char *path, const unsigned char *head, uint64_t count) {
    const struct magic *magic = find_magic(head, count);
    if (hr__is_pointer(head, count)) return hr__refuse_pointer(path);
    if (!magic)
        return hr__fail(-EINVAL, "source: %s was no text file when its index was made. Make the index again", path);
    return hr__fail(
        -EINVAL, "source: %s is %s, so its lines cannot be read at any place. Convert it, and open the result: %s %s",
        path, magic->format, magic->command, path);
}

uint64_t hr__lines_mark_bytes(const unsigned char *head, uint64_t count) {
    static const unsigned char mark[HR__LINES_MARK_BYTES] = {0xef, 0xbb, 0xbf};
    return count >= sizeof mark && memcmp(head, mark, sizeof mark) == 0 ? sizeof mark : 0;
}
