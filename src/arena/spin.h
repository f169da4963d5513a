/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_ARENA_SPIN_H
#define HR_ARENA_SPIN_H

#include <stdbool.h>
#include <stdint.h>

/*
 * How long to look before sleeping. A wake-up through the kernel costs several microseconds, more than many batches, so
 * a waiter looks for a while first: as long as recent waits lasted, and hardly at all when they last long or when there
 * are more processes than cores, whom looking would keep from working.
 */
struct hr__spin {
    int64_t expected_ns; /* moving average of how long waits lasted */
    int64_t placed_ns;   /* when a wait was last slept so that the kernel places this process anew */
    bool is_crowded;
    bool shares_core; /* another process ran here while this one looked */
};

void hr__spin_init(struct hr__spin *spin, uint32_t process_count);

/* Looks until `is_ready(context)` or until it is better to sleep. */
bool hr__spin_until(struct hr__spin *spin, bool (*is_ready)(void *context), void *context);

/* Learns from a wait that began at `start_ns`. */
void hr__spin_learn(struct hr__spin *spin, int64_t start_ns);

#endif
