/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_SOURCE_SOURCE_H
#define HEADRACE_CORE_SOURCE_SOURCE_H

#include "core.h"

/*
 * Samples from the files of users: what module.c adds to the module.
 *
 *     ask.c       what is asked for ahead
 *     index.c     _core.Index, where the members and lines of files are, and _core.Indexing
 *     lines.c     _core.Lines, text files that are open
 *     objects.c   _core.Objects, whole files
 *     tar.c       _core.Tar, tar files that are open
 *     tokens.c    _core.Tokens, token files that are open
 */

extern PyTypeObject IndexType, IndexingType, LinesType, ObjectsType, TarType, TokensType;

/* Gets a contiguous buffer of 64-bit numbers, `count` of them, -1: any number. Returns -1 with an exception. The caller
 * releases it. */
int core_get_numbers(PyObject *object, int flags, Py_ssize_t count, Py_buffer *ret_buffer);

/* The arguments of the methods `ask`: a list of indices, and a _core.Announcer or None. */
struct source_asked {
    int64_t *indices; /* -1: not an int. The caller frees it with PyMem_Free. */
    size_t count;
    hr_announcer *announcer; /* borrowed; NULL: none was given */
};
#define SOURCE_ASK_DOC                                                                                                 \
    "ask(indices, announcer=None)\n\nAsks the kernel, or the fetcher of remote objects, to read samples ahead. "       \
    "indices: a list. announcer: adds what is remote and not kept to a _core.Announcer instead."
int source_read_asked(PyObject *arguments, struct source_asked *ret_asked); /* -1: exception */

/* The open files of a _core.Tokens; borrowed. */
const hr_tokens *tokens_of(PyObject *self);

const hr_index *index_of(PyObject *self); /* that of a _core.Index; borrowed */

#endif
