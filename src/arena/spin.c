/* SPDX-License-Identifier: Apache-2.0 */
/* Learns how long to spin before sleeping. */
#include "spin.h"

#include "base/base.h"
#include "os/os.h"

enum {
    SHORT_NS = 5000,    /* if waits are long: the cost of a wake-up */
    LONG_NS = 50000,    /* the maximum time to poll */
    CROWDED_NS = 5000,  /* more processes than cores */
    SHARED_NS = 3000,   /* a yield that takes longer has let another process run on this core */
    PLACE_NS = 1000000, /* if the core is shared, one wait per this time sleeps at once */
    WEIGHT = 8          /* of older waits, in the moving average */
};

void hr__spin_init(struct hr__spin *spin, uint32_t process_count) {
    *spin = (struct hr__spin){.expected_ns = LONG_NS / 2, .is_crowded = process_count > hr__core_count()};
}

static int64_t bound_ns(const struct hr__spin *spin) {
    if (spin->is_crowded) return CROWDED_NS;
    return spin->expected_ns < LONG_NS ? hr__min((uint64_t)(2 * spin->expected_ns + SHORT_NS), LONG_NS) : SHORT_NS;
}

/* The kernel chooses a core for a process that wakes up, and seldom moves one that runs: two that yield to each other
 * may share a core for seconds while another core idles. */
static bool must_sleep(struct hr__spin *spin, int64_t start_ns) {
    if (!spin->shares_core || start_ns - spin->placed_ns < PLACE_NS) return false;
    spin->shares_core = false;
    spin->placed_ns = start_ns;
    return true;
}

bool hr__spin_until(struct hr__spin *spin, bool (*is_ready)(void *context), void *context) {
    if (is_ready(context)) return true;
    int64_t start_ns = hr__now_ns(), bound = bound_ns(spin), lasted_ns = 0;
    if (must_sleep(spin, start_ns)) return false;
    while (!is_ready(context)) {
        if (lasted_ns >= bound) return false;
        hr__yield(); /* cheap if no other process uses this core; without it, the other process could not run on a
                        machine with one core */
        int64_t now_ns = hr__now_ns() - start_ns;
        spin->shares_core |= now_ns - lasted_ns > SHARED_NS;
        lasted_ns = now_ns;
    }
    return true;
}

void hr__spin_learn(struct hr__spin *spin, int64_t start_ns) {
    int64_t lasted_ns = hr__now_ns() - start_ns;
    if (lasted_ns > 2 * LONG_NS)
        lasted_ns = 2 * LONG_NS; /* so that one long wait counts little after a few short ones */
    spin->expected_ns += (lasted_ns - spin->expected_ns) / WEIGHT;
}
