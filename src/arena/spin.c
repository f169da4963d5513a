/* SPDX-License-Identifier: Apache-2.0 */
#include "spin.h"

#include "os/os.h"

enum {
    PAUSES = 16,       /* between two looks */
    BUSY_NS = 2000,    /* look without giving the core away for this long */
    SHORT_NS = 5000,   /* when waits last long: what a wake-up costs */
    LONG_NS = 50000,   /* never look for longer */
    CROWDED_NS = 1000, /* more processes than cores */
    WEIGHT = 8         /* of the past, in the moving average */
};

void hr__spin_init(struct hr__spin *spin, uint32_t process_count) {
    *spin = (struct hr__spin){.expected_ns = LONG_NS / 2, .is_crowded = process_count > hr__core_count()};
}

static int64_t bound_ns(const struct hr__spin *spin) {
    if (spin->is_crowded) return CROWDED_NS;
    return spin->expected_ns < LONG_NS ? 2 * spin->expected_ns + SHORT_NS : SHORT_NS;
}

bool hr__spin_until(const struct hr__spin *spin, bool (*is_ready)(void *context), void *context) {
    int64_t start_ns = hr__now_ns(), bound = bound_ns(spin), lasted_ns = 0;
    if (bound > LONG_NS) bound = LONG_NS;
    while (!is_ready(context)) {
        if (lasted_ns >= bound) return false;
        if (spin->is_crowded || lasted_ns > BUSY_NS)
            hr__yield();
        else
            for (int i = 0; i < PAUSES; i++) hr__pause();
        lasted_ns = hr__now_ns() - start_ns;
    }
    return true;
}

void hr__spin_learn(struct hr__spin *spin, int64_t start_ns) {
    int64_t lasted_ns = hr__now_ns() - start_ns;
    spin->expected_ns += (lasted_ns - spin->expected_ns) / WEIGHT;
}
