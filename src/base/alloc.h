/* SPDX-License-Identifier: Apache-2.0 */
/* realloc and free, which a test can make fail. */
#ifndef HR_BASE_ALLOC_H
#define HR_BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

/* realloc and free. A build with HR_FAILPOINTS can make one of them fail. `bytes` is more than 0. */
void *hr__realloc(void *memory, size_t bytes);
void hr__free(void *memory);

#ifdef HR_FAILPOINTS
/* Makes the nth allocation from now on fail (1 is the next one), in any thread; 0 disarms. */
void hr__alloc_fail_at(uint64_t nth);
#endif

#endif
