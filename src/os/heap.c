/* SPDX-License-Identifier: Apache-2.0 */
#include "os.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

#ifdef __GLIBC__

/* Has somebody chosen for this process? (mallopt(3), and glibc's manual on tunables) */
static bool is_chosen_by_user(void) {
    static const char *const variables[] = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"};
    static const char *const tunables[] = {"glibc.malloc.trim_threshold", "glibc.malloc.mmap_threshold"};
    const char *tuned = getenv("GLIBC_TUNABLES");
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        if (getenv(variables[i]) || (tuned && strstr(tuned, tunables[i]))) return true;
    return false;
}

/* By itself malloc maps each block above a threshold, which rises with what is freed to 32 MiB, the most it can be, and
 * keeps twice as much at its end. Both stay as they are once one of them is given: less than that would be a loss. */
uint64_t hr__keep_heap(uint64_t bytes) {
    enum { MAPPED_FROM = 32 << 20 };
    uint64_t kept = hr__min(bytes, INT32_MAX);
    if (is_chosen_by_user() || kept < 2 * MAPPED_FROM) return 0;
    return mallopt(M_MMAP_THRESHOLD, MAPPED_FROM) && mallopt(M_TRIM_THRESHOLD, (int)kept) ? kept : 0;
}

#else

uint64_t hr__keep_heap(uint64_t bytes) {
    (void)bytes;
    return 0;
}

#endif
