/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of glibc's malloc for workers. */
#define _GNU_SOURCE
#include "os.h"

#include <dlfcn.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

#ifdef __GLIBC__

enum { MAPPED_FROM = 32 << 20 }; /* the maximum that malloc accepts */

/* Returns true if the environment configures malloc. (mallopt(3), and the manual of glibc on tunables) */
static bool is_chosen(const char *variable, const char *tunable) {
    const char *tuned = getenv("GLIBC_TUNABLES");
    return getenv(variable) || (tuned && strstr(tuned, tunable));
}

/* By default malloc maps each block above a threshold, which rises with the size of freed blocks up to its maximum, 32
 * MiB, and malloc keeps twice as much free memory at the end of the heap. When a program sets one of the two, both stop
 * rising. Lower values than these would therefore make the process slower. */
uint64_t hr__keep_heap(uint64_t bytes) {
    uint64_t kept = hr__min(bytes, INT32_MAX);
    if (kept < 2 * MAPPED_FROM || is_chosen("MALLOC_TRIM_THRESHOLD_", "glibc.malloc.trim_threshold") ||
        is_chosen("MALLOC_MMAP_THRESHOLD_", "glibc.malloc.mmap_threshold"))
        return 0;
    return mallopt(M_MMAP_THRESHOLD, MAPPED_FROM) && mallopt(M_TRIM_THRESHOLD, (int)kept) ? kept : 0;
}

/* The result of mallinfo2. */
struct counters {
    size_t other[8], free_bytes, can_be_cut_off;
};

/* Returns the bytes in free blocks of the heap. glibc has mallinfo2 since 2.33: it is looked up here, so that a program
 * that was built for an older one has it too. UINT64_MAX: this glibc has none. */
static uint64_t count_free_bytes(void) {
    struct counters (*count)(void);
    void *found = dlsym(RTLD_DEFAULT, "mallinfo2");
    memcpy(&count, &found, sizeof count);
    return found ? count().free_bytes : UINT64_MAX;
}

/* Blocks that are not mapped are between others, so small blocks that stay fragment the space that a large one leaves.
 */
void hr__keep_blocks(uint64_t block_bytes, uint64_t kept) {
    if (block_bytes < MAPPED_FROM || block_bytes > kept / 2 || is_chosen("MALLOC_MMAP_MAX_", "glibc.malloc.mmap_max"))
        return;
    uint64_t free_bytes = count_free_bytes();
    if (free_bytes == UINT64_MAX) return; /* the holes could not be given back */
    mallopt(M_MMAP_MAX, 0);
    if (free_bytes > kept) malloc_trim(0);
}

void hr__trim_heap(void) {
    malloc_trim(0);
}

#else

uint64_t hr__keep_heap(uint64_t bytes) {
    (void)bytes;
    return 0;
}

void hr__keep_blocks(uint64_t block_bytes, uint64_t kept) {
    (void)block_bytes;
    (void)kept;
}

void hr__trim_heap(void) {}

#endif
