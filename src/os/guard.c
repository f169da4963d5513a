/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a test guards, as a device does that has registered it: each punch and each unmapping of it is counted.
 */
#include "os.h"

#ifdef HR_FAILPOINTS

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

#include <headrace/face/machine.h>

enum { MOST_RANGES = 256 };

static struct range { uintptr_t from, to; } ranges[MOST_RANGES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t lost_count;

static struct range *find(uintptr_t from, uintptr_t to) {
    for (int i = 0; i < MOST_RANGES; i++)
        if (ranges[i].from < to && from < ranges[i].to) return &ranges[i];
    return NULL;
}

int hr_guard(uint64_t address, uint64_t bytes) {
    int r = -EEXIST;
    pthread_mutex_lock(&lock);
    if (!find(address, address + bytes)) {
        r = -ENOMEM;
        for (int i = 0; r < 0 && i < MOST_RANGES; i++) {
            if (ranges[i].to) continue;
            ranges[i] = (struct range){address, address + bytes};
            r = 0;
        }
    }
    pthread_mutex_unlock(&lock);
    return r;
}

int hr_unguard(uint64_t address) {
    pthread_mutex_lock(&lock);
    struct range *range = find(address, address + 1);
    bool is_start = range && range->from == address;
    if (is_start) *range = (struct range){0, 0};
    pthread_mutex_unlock(&lock);
    return is_start ? 0 : -ENOENT;
}

uint64_t hr_guard_lost(void) {
    return lost_count;
}

void hr__note_lost(const void *address, uint64_t bytes) {
    pthread_mutex_lock(&lock);
    lost_count += find((uintptr_t)address, (uintptr_t)address + bytes) != NULL;
    pthread_mutex_unlock(&lock);
}

#endif
