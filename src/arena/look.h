/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_ARENA_LOOK_H
#define HR_ARENA_LOOK_H

#include "layout.h"
#include "ring.h"

/* Numbers as observers get them, from memory of this process: an arena that it has mapped, or what was read of one. */

void hr__look_worker(const struct hr__worker *record, const struct hr__sight *sight, struct hr_worker_look *ret_look);
void hr__look_counts(const uint64_t *counts, struct hr_arena_look *look);
/* The records in a ring; 0 if its indices cannot be. `ring`: its first two lines. */
uint32_t hr__look_ring(const struct hr__ring_shared *ring);

#endif
