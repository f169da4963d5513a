/* SPDX-License-Identifier: Apache-2.0 */
#include "os.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

#ifdef __GLIBC__

enum { MAPPED_FROM = 32 << 20 }; /* the most that malloc takes for it */

/* Has somebody chosen for this process? (mallopt(3), and glibc's manual on tunables) */
static bool is_chosen(const char *variable, const char *tunable) {
    const char *tuned = getenv("GLIBC_TUNABLES");
    return getenv(variable) || (tuned && strstr(tuned, tunable));
}

/* By itself malloc maps each block above a threshold, which rises with what is freed to 32 MiB, the most it can be, and
 * keeps twice as much at its end. Both stay as they are once one of them is given: less than that would be a loss. */
uint64_t hr__keep_heap(uint64_t bytes) {
    uint64_t kept = hr__min(bytes, INT32_MAX);
    if (kept < 2 * MAPPED_FROM || is_chosen("MALLOC_TRIM_THRESHOLD_", "glibc.malloc.trim_threshold") ||
        is_chosen("MALLOC_MMAP_THRESHOLD_", "glibc.malloc.mmap_threshold"))
        return 0;
    return mallopt(M_MMAP_THRESHOLD, MAPPED_FROM) && mallopt(M_TRIM_THRESHOLD, (int)kept) ? kept : 0;
}

#else

uint64_t hr__keep_heap(uint64_t bytes) {
    (void)bytes;
    return 0;
}

#endif

#ifdef HR__HAS_MALLINFO2

/* Blocks that are not mapped lie between others, and small ones that stay cut up the room that a large one leaves. */
void hr__keep_blocks(uint64_t block_bytes, uint64_t kept) {
    if (block_bytes < MAPPED_FROM || block_bytes > kept / 2 || is_chosen("MALLOC_MMAP_MAX_", "glibc.malloc.mmap_max"))
        return;
    mallopt(M_MMAP_MAX, 0);
    if (mallinfo2().fordblks > kept) malloc_trim(0);
}

#else

void hr__keep_blocks(uint64_t block_bytes, uint64_t kept) {
    (void)block_bytes;
    (void)kept;
}

#endif
