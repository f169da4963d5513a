/* SPDX-License-Identifier: Apache-2.0 */
/* The lines of text files as samples. */
#include "lines.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "pool.h"

struct hr_lines {
    const hr_index *index;
    struct hr__pool *pool; /* its files have the numbers of those of the index */
};

static const char advice[] = "Open the source again; if there is an index next to the file, make it again: headrace "
                             "index --again";

static const struct hr__pool_file *file_of(const hr_lines *lines, uint64_t number) {
    return hr__pool_file(lines->pool, (uint32_t)number);
}

static int stale(const char *path, uint64_t at, const char *what) {
    return hr__fail(-ESTALE, "source: %s is not the file of its index: %s at offset %" PRIu64 ". %s %s", path, what, at,
                    advice, path);
}

/* ---- opening ---- */

static int refuse(const hr_lines *lines, uint64_t number) {
    unsigned char head[HR__LINES_HEAD_BYTES];
    uint64_t count = hr__min(sizeof head, file_of(lines, number)->first.bytes);
    int r = hr__pool_read(lines->pool, (uint32_t)number, 0, head, count);
    return r < 0 ? r : hr__lines_refuse(file_of(lines, number)->path, head, count);
}

/* Compares a file with the one of which the index was made. A copy of a folder with its indexes has other inodes. */
static int check_file(const hr_lines *lines, uint64_t number) {
    const struct hr_index_file *file = &lines->index->files[number];
    const struct hr__file_info *now = &file_of(lines, number)->first;
    if (file->bytes != now->bytes || file->changed_ns != now->changed_ns)
        return hr__fail(-ESTALE, "source: %s was changed or replaced since its index was made. %s %s",
                        file_of(lines, number)->path, advice, file_of(lines, number)->path);
    return file->damage ? refuse(lines, number) : 0;
}

static int add_file(hr_lines *lines, const char *path) {
    uint32_t number;
    int r = hr__pool_add(lines->pool, path, &number);
    return r < 0 ? r : check_file(lines, number);
}

int hr_lines_open(const char *const *paths, size_t path_count, const hr_index *index, hr_lines **ret_lines) {
    struct hr_index_info info;
    hr_index_look(index, &info);
    if (info.kind != HR_INDEX_LINES || info.file_count != path_count)
        return hr__fail(-EINVAL, "source: an index of %" PRIu64 " files is not the one of %zu text files",
                        info.file_count, path_count);
    hr_lines *lines = hr__realloc(NULL, sizeof *lines);
    if (!lines) return hr__fail(-ENOMEM, "source: no memory for text files");
    *lines = (hr_lines){.index = index};
    int r = hr__pool_new(&lines->pool);
    if (r < 0) hr__fail(r, "source: no memory for text files");
    for (size_t i = 0; i < path_count && r == 0; i++) r = add_file(lines, paths[i]);
    if (r < 0)
        hr_lines_close(lines);
    else
        *ret_lines = lines;
    return r;
}

hr_lines *hr_lines_close(hr_lines *lines) {
    if (!lines) return NULL;
    hr__pool_free(lines->pool);
    hr__free(lines);
    return NULL;
}

/* ---- a line ---- */

/* A line in the index. */
static int look_up(const hr_lines *lines, uint64_t index, struct hr__sample *ret_sample, struct hr__entry *ret_entry) {
    int r = hr__index_sample(lines->index, index, ret_sample);
    if (r == 0) *ret_entry = lines->index->entries[ret_sample->first];
    return r;
}

int hr_lines_find(const hr_lines *lines, uint64_t index, struct hr_line *ret_line) {
    struct hr__sample sample;
    struct hr__entry entry = {0, 0};
    int r = look_up(lines, index, &sample, &entry);
    if (r < 0) return r;
    const struct hr__pool_file *file = file_of(lines, sample.file);
    uint64_t at = hr__line_at(entry), bytes = hr__line_bytes(entry);
    if (at + bytes > file->first.bytes) return stale(file->path, at, "there is no line");
    *ret_line = (struct hr_line){.file = sample.file, .path = file->path, .at = at, .bytes = bytes};
    return 0;
}

/* A line with the bytes around it. */
struct around {
    uint64_t before, after; /* bytes before and behind it */
};

static struct around around_line(const hr_lines *lines, const struct hr_line *line) {
    uint64_t left = file_of(lines, line->file)->first.bytes - line->at - line->bytes;
    bool may_have_mark = line->at == HR__LINES_MARK_BYTES;
    return (struct around){.before = may_have_mark ? HR__LINES_MARK_BYTES : line->at > 0, .after = hr__min(left, 2)};
}

static bool is_at_begin(const unsigned char *bytes, uint64_t count, uint64_t before) {
    if (before == 0) return hr__lines_mark_bytes(bytes, count) == 0;
    return bytes[-1] == '\n' || (before == HR__LINES_MARK_BYTES && hr__lines_mark_bytes(bytes - before, before));
}

static bool is_before_end(const unsigned char *end, uint64_t after) {
    if (after == 2 && end[0] == '\r') end++; /* the last byte of a file is a line end only if it is a line feed */
    return after == 0 || *end == '\n';
}

static int check_line(const struct hr_line *line, struct hr__entry entry, const unsigned char *bytes,
                      struct around around) {
    if (!is_at_begin(bytes, line->bytes, around.before) || !is_before_end(bytes + line->bytes, around.after) ||
        memchr(bytes, '\n', line->bytes))
        return stale(line->path, line->at, "no line begins or ends");
    if (!hr__line_has_hash(entry, hr__line_hash(bytes, line->bytes)))
        return stale(line->path, line->at, "there is another line");
    return 0;
}

int hr_lines_read(const hr_lines *lines, uint64_t index, const struct hr_line *line, void *memory,
                  const char **ret_bytes) {
    struct hr__sample sample;
    struct hr__entry entry = {0, 0};
    int r = look_up(lines, index, &sample, &entry);
    if (r < 0) return r;
    if (sample.file != line->file || hr__line_at(entry) != line->at || hr__line_bytes(entry) != line->bytes)
        return hr__fail(-EINVAL, "source: line %" PRIu64 " is not as hr_lines_find has found it", index);
    struct around around = around_line(lines, line);
    r = hr__pool_read(lines->pool, (uint32_t)line->file, line->at - around.before, memory,
                      around.before + line->bytes + around.after);
    const unsigned char *bytes = (const unsigned char *)memory + around.before;
    if (r == 0) r = check_line(line, entry, bytes, around);
    if (r == 0) *ret_bytes = (const char *)bytes;
    return r;
}

void hr_lines_ask(const hr_lines *lines, const int64_t *indices, uint64_t count, hr_announcer *announcer) {
    for (uint64_t i = 0; i < count; i++) {
        struct hr_line line;
        if (indices[i] >= 0 && hr_lines_find(lines, (uint64_t)indices[i], &line) == 0)
            hr__pool_ask(lines->pool, (uint32_t)line.file, line.at, line.bytes, announcer);
    }
}

/* ---- the number of a line ---- */

/* Counts the line feeds of a part of a file. */
static int count_ends(const hr_lines *lines, uint64_t file, uint64_t at, uint64_t end, uint64_t *count) {
    enum { CHUNK_BYTES = 4096 };
    unsigned char chunk[CHUNK_BYTES];
    while (at < end) {
        uint64_t some = hr__min(end - at, sizeof chunk);
        int r = hr__pool_read(lines->pool, (uint32_t)file, at, chunk, some);
        if (r < 0) return r;
        for (uint64_t i = 0; i < some; i++) *count += chunk[i] == '\n';
        at += some;
    }
    return 0;
}

int hr_lines_number(const hr_lines *lines, uint64_t index, uint64_t *ret_number) {
    struct hr__sample sample;
    struct hr__entry entry = {0, 0};
    int r = look_up(lines, index, &sample, &entry);
    if (r < 0) return r;
    const struct hr_index_file *file = &lines->index->files[sample.file];
    uint64_t count = sample.first - file->first_entry, end = 0, feeds = 0;
    for (uint64_t i = 0; i <= count && file->counts[HR_LINES_BLANK]; i++) {
        entry = lines->index->entries[file->first_entry + i];
        uint64_t at = hr__line_at(entry);
        if (at < end || at > file->bytes) return stale(file_of(lines, sample.file)->path, at, "there is no line");
        if (at == end + 1)
            feeds++; /* nothing but the end of a line */
        else
            r = count_ends(lines, sample.file, end, at, &feeds);
        if (r < 0) return r;
        end = at + hr__line_bytes(entry);
    }
    *ret_number = 1 + (file->counts[HR_LINES_BLANK] ? feeds : count);
    return 0;
}

int hr_lines_lengths(const hr_lines *lines, uint64_t first, uint64_t count, int64_t *ret_lengths) {
    struct hr_index_info info;
    hr_index_look(lines->index, &info);
    if (first > info.entry_count || count > info.entry_count - first)
        return hr__fail(-ERANGE, "source: there are no %" PRIu64 " lines from %" PRIu64 " on", count, first);
    for (uint64_t i = 0; i < count; i++) ret_lengths[i] = (int64_t)hr__line_bytes(lines->index->entries[first + i]);
    return 0;
}
