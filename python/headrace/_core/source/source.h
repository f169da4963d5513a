/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_SOURCE_SOURCE_H
#define HEADRACE_CORE_SOURCE_SOURCE_H

#include "core.h"

/*
 * Samples from the files of users: what module.c adds to the module.
 *
 *     index.c     _core.Index, where the members and lines of files are, and _core.Indexing
 *     tar.c       _core.Tar, tar files that are open
 *     tokens.c    _core.Tokens, token files that are open
 */

extern PyTypeObject IndexType, IndexingType, TarType, TokensType;

/* The open files of a _core.Tokens; borrowed. */
const hr_tokens *tokens_of(PyObject *self);

const hr_index *index_of(PyObject *self); /* that of a _core.Index; borrowed */

#endif
