/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_BOARD_BOARD_H
#define HEADRACE_CORE_BOARD_BOARD_H

#include "core.h"

/*
 * The board between ranks: what module.c adds to the module.
 *
 *     board.c  _core.Board, the board of this process
 *     entry.c  _core.BoardEntry, the entry of a loader, which Board.enter returns
 */

extern PyTypeObject BoardType;
extern PyTypeObject BoardEntryType;

/* Takes an entry for a loader. The entry keeps a reference to `owner`, the _core.Board. */
PyObject *entry_new(PyObject *owner, hr_board *board, PyObject *arguments);

#endif
