/* SPDX-License-Identifier: Apache-2.0 */
/* Learns for how long to spin before sleeping. */
#ifndef HR_ARENA_SPIN_H
#define HR_ARENA_SPIN_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Decides how long to poll before sleeping. A wake-up through the kernel costs several microseconds, more than many
 * batches, so a waiter polls for a while first. It polls for as long as recent waits lasted. It polls only briefly if
 * waits are long, or if there are more processes than cores, because polling would keep other processes from running.
 */
struct hr__spin {
    int64_t expected_ns; /* moving average of how long waits lasted */
    int64_t placed_ns;   /* when a wait last slept at once, so that the kernel chooses a core for this process again */
    bool is_crowded;
    bool shares_core; /* another process ran on this core while this one polled */
};

void hr__spin_init(struct hr__spin *spin, uint32_t process_count);

/* Polls until `is_ready(context)` or until it is better to sleep. */
bool hr__spin_until(struct hr__spin *spin, bool (*is_ready)(void *context), void *context);

/* Learns from a wait that began at `start_ns`. */
void hr__spin_learn(struct hr__spin *spin, int64_t start_ns);

#endif
