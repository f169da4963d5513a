/* SPDX-License-Identifier: Apache-2.0 */
#include "os.h"

/*
 * What the CPU can do. __builtin_cpu_supports says it too, but with clang it needs a variable of libgcc or LLVM's
 * compiler-rt, which zig's runtime library lacks. The loops over pixels ask before each row, so the answer is kept.
 */

#if defined(__x86_64__)

#include <cpuid.h>
#include <stdatomic.h>

enum { IS_KNOWN = 1 << 30 };

/* Returns true if the kernel saves the registers of 256 bits. */
static bool are_registers_saved(uint32_t features) {
    enum { XMM_AND_YMM = 6 };
    uint32_t low, high;
    if (!(features & bit_OSXSAVE) || !(features & bit_AVX)) return false;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & XMM_AND_YMM) == XMM_AND_YMM;
}

static uint32_t look(void) {
    uint32_t eax, ebx, ecx, edx, more;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !are_registers_saved(ecx)) return 0;
    uint32_t found = ecx & bit_FMA ? HR__CPU_FMA : 0;
    return __get_cpuid_count(7, 0, &eax, &more, &ecx, &edx) && (more & bit_AVX2) ? found | HR__CPU_AVX2 : found;
}

bool hr__cpu_has(uint32_t features) {
    static _Atomic uint32_t kept; /* each thread would write the same */
    uint32_t found = atomic_load_explicit(&kept, memory_order_relaxed);
    if (!found) {
        found = look() | IS_KNOWN;
        atomic_store_explicit(&kept, found, memory_order_relaxed);
    }
    return (found & features) == features;
}

#else

bool hr__cpu_has(uint32_t features) {
    return !features;
}

#endif
