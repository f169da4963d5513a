/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_LINES_H
#define HEADRACE_LINES_H

#include <stddef.h>
#include <stdint.h>

#include <headrace/index.h>
#include <headrace/remote.h>
#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The lines of text files as samples, any of them at random. An index (headrace/index.h, HR_INDEX_LINES) says where
 * they are.
 *
 * A line ends before "\n" or "\r\n", or with its file. A line of white space only is blank, and no sample. The mark of
 * UTF-8 at the begin of a file belongs to no line. What is in a line is not looked at: it may be of any encoding in
 * which the byte 10 is a line feed.
 *
 * The index is not believed: a line that is read has to begin at the begin of its file or behind a line feed, to end at
 * the end of the file or before a line feed, and to have the hash that the index has of all of its bytes. Files are
 * read with pread into the memory of the caller, see headrace/tokens.h.
 *
 * Threads: all functions that take a const pointer may run in several threads at the same time. A child that was forked
 * can go on with the hr_lines of its parent.
 */

typedef struct hr_lines hr_lines; /* text files that are open */

/* Numbers of hr_index_file.counts, for HR_INDEX_LINES. */
enum hr_lines_count {
    HR_LINES_BLANK, /* blank lines */
};

enum { HR_LINE_ROOM = 5 }; /* bytes around a line that are read with it */

/* Opens the files of an index, in its order. The index is borrowed until hr_lines_close. -EINVAL: a file is compressed,
 * or UTF-16; the index is not one of lines, or of another number of files. -ESTALE: a file is not the one of the index.
 * -ENOENT and others: it cannot be opened. Owned by the caller. */
HR_API int hr_lines_open(const char *const *paths, size_t path_count, const hr_index *index, hr_lines **ret_lines);
HR_API hr_lines *hr_lines_close(hr_lines *lines); /* NULL is fine; returns NULL */

struct hr_line {
    uint64_t file;    /* number of its file */
    const char *path; /* absolute; borrowed */
    uint64_t at;      /* offset in the file */
    uint64_t bytes;   /* without its end */
};
/* Finds a line. -ERANGE: there is no such line. -EINVAL: the index is damaged. */
HR_API int hr_lines_find(const hr_lines *lines, uint64_t index, struct hr_line *ret_line);

/* Reads a line that hr_lines_find has found into memory of line->bytes + HR_LINE_ROOM bytes, and returns where it
 * begins in that. -ESTALE: there is no such line any more. -EIO and others: the file cannot be read. */
HR_API int hr_lines_read(const hr_lines *lines, uint64_t index, const struct hr_line *line, void *memory,
                         const char **ret_bytes);

/* Asks the kernel to read the lines of a batch ahead, so that a disk can read several at a time. Best effort.
 * announcer: see headrace/remote.h; NULL: they are read now. */
HR_API void hr_lines_ask(const hr_lines *lines, const int64_t *indices, uint64_t count, hr_announcer *announcer);

/* Finds the number of a line in its file, from 1 on; blank lines count. Reads what is between lines if the file has
 * blank ones. Errors as hr_lines_read. */
HR_API int hr_lines_number(const hr_lines *lines, uint64_t index, uint64_t *ret_number);

/* Writes the lengths of `count` lines in bytes, from `first` on. -ERANGE. */
HR_API int hr_lines_lengths(const hr_lines *lines, uint64_t first, uint64_t count, int64_t *ret_lengths);

#ifdef __cplusplus
}
#endif
#endif
