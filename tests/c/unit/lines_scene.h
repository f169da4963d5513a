/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_TESTS_LINES_SCENE_H
#define HR_TESTS_LINES_SCENE_H

#include "tokens_scene.h"

/* Text files in a folder of the test, with their index. */

struct text {
    hr_index *index;
    hr_lines *lines;
};

static inline void make_index(const char *const *paths, size_t count, hr_index **ret_index) {
    hr_indexing *indexing;
    must(hr_indexing_start(HR_INDEX_LINES, paths, count, false, &indexing));
    check(hr_indexing_wait(indexing, in_s(PATIENCE_S)) == 1);
    must(hr_indexing_take(indexing, ret_index));
    hr_indexing_free(indexing);
}

static inline struct text open_text(const char *const *paths, size_t count) {
    struct text text;
    make_index(paths, count, &text.index);
    must(hr_lines_open(paths, count, text.index, &text.lines));
    return text;
}

static inline void close_text(struct text *text) {
    hr_lines_close(text->lines);
    hr_index_close(text->index);
}

static inline void puts_at(const char *name, const char *string) {
    put(name, string, strlen(string));
}

/* Returns what hr_lines_find or hr_lines_read returned, and after 0 a copy of the line, which the caller frees. */
static inline int read_line(const hr_lines *lines, uint64_t index, char **ret_copy) {
    struct hr_line line;
    const char *bytes;
    int r = hr_lines_find(lines, index, &line);
    if (r < 0) return r;
    char *memory = malloc(line.bytes + HR_LINE_ROOM);
    check(memory != NULL);
    r = hr_lines_read(lines, index, &line, memory, &bytes);
    if (r == 0) *ret_copy = strndup(bytes, line.bytes);
    free(memory);
    return r;
}

static inline void assert_line(const hr_lines *lines, uint64_t index, const char *wanted) {
    char *copy = NULL;
    must(read_line(lines, index, &copy));
    assert_string_equal(copy, wanted);
    free(copy);
}

#endif
