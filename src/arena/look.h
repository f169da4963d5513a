/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_ARENA_LOOK_H
#define HR_ARENA_LOOK_H

#include <headrace/look.h>

#include "layout.h"
#include "ring.h"

/* Numbers as observers get them, from memory of this process: an arena that it has mapped, or what was read of one. */

void hr__look_worker(const struct hr__worker *record, const struct hr__sight *sight, struct hr_worker_look *ret_look);
void hr__look_network(const struct hr__shown_network *network, struct hr_network_look *ret_look);
void hr__look_counts(const uint64_t *counts, struct hr_arena_look *look);
/* The records in a ring; 0 if its indices cannot be. `ring`: its first two lines. */
uint32_t hr__look_ring(const struct hr__ring_shared *ring);

/* The work of a worker at a moment. */
struct hr__glance {
    enum hr_phase phase;
    uint64_t task;
    uint64_t sample; /* its place in the task; HR_NO_SAMPLE: none since it took the task */
    uint64_t index;  /* of that sample; HR_NO_SAMPLE: not known */
};

/* Looks only at the work of the first `room` workers, so that it can be called many times a second. Returns how many
 * there are. Errors as hr_arena_look. */
int hr__arena_glance(int fd, struct hr__glance *ret_glances, uint32_t room);

/* Reads those of the last 256 timed batches of a worker that are newer than number `after`, oldest first. Returns their
 * number, at most `room`. Errors as hr_arena_look. */
int hr__arena_look_batches(int fd, uint32_t worker, uint64_t after, struct hr_batch_look *ret_batches, uint32_t room);

#endif
