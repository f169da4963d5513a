/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_BOARD_LOOK_H
#define HR_BOARD_LOOK_H

#include <stdbool.h>
#include <stdint.h>

/* A board as another process sees it: headrace run, whose ranks share it. */

/* How far a running process is in the epoch of one of its loaders. */
struct hr__board_position {
    uint32_t page;
    uint32_t rank;
    uint64_t loader; /* the same number for the same loader in all processes */
    int64_t epoch;   /* -1: not known */
    uint64_t steps;  /* batches that were taken */
    bool is_at_end;  /* of the epoch */
};

/* Looks at the board of the ranks of this machine, whose memory is `fd` ("/memfd:headrace-board (deleted)"). Writes the
 * positions, at most `room`, and returns how many there are. HR_E_CORRUPT: it is not a board. */
int hr__board_look(int fd, struct hr__board_position *ret_positions, uint32_t room);

#endif
