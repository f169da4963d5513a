/* SPDX-License-Identifier: Apache-2.0 */

/* Writes pixels of 4 bytes as three planes of bytes, or as pixels of 3 bytes, with AVX2: the same bytes as in output.c.
 */

#include "image.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "os/os.h"

enum { STEP = 8 }; /* pixels at the same time */

/* Writes STEP pixels to the places of the three planes. */
__attribute__((target("avx2"))) static inline void split_step(const unsigned char *from, unsigned char *to,
                                                              size_t plane_bytes) {
    const __m256i by_channel = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, /**/
                                                0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m256i join = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i pixels = _mm256_loadu_si256((const __m256i *)(const void *)from);
    pixels = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(pixels, by_channel), join);
    __m128i front = _mm256_castsi256_si128(pixels), back = _mm256_extracti128_si256(pixels, 1);
    _mm_storel_epi64((__m128i *)(void *)to, front);
    _mm_storel_epi64((__m128i *)(void *)(to + plane_bytes), _mm_unpackhi_epi64(front, front));
    _mm_storel_epi64((__m128i *)(void *)(to + 2 * plane_bytes), back);
}

__attribute__((target("avx2"))) static void split(const struct hr__pixels *pixels, unsigned char *target) {
    size_t plane_bytes = (size_t)pixels->width * pixels->height;
    for (uint32_t y = 0; y < pixels->height; y++) {
        const unsigned char *row = hr__row(pixels, y);
        unsigned char *to = target + (size_t)y * pixels->width;
        for (uint32_t x = 0; x < pixels->width; x += STEP) {
            uint32_t begin = x + STEP <= pixels->width ? x : pixels->width - STEP; /* some pixels twice at the end */
            split_step(row + (size_t)4 * begin, to + begin, plane_bytes);
        }
    }
}

bool hr__output_planes_avx2(const struct hr__pixels *pixels, unsigned char *target) {
    if (pixels->pixel_bytes != 4 || pixels->width < STEP || !hr__cpu_has(HR__CPU_AVX2)) return false;
    split(pixels, target);
    return true;
}

/* Writes pixels of 3 bytes while there is room for the 4 bytes more that each store writes. Returns how many. */
__attribute__((target("avx2"))) static uint32_t pack(const unsigned char *from, uint32_t width, unsigned char *to) {
    enum { HALF = STEP / 2, EXTRA = 2 }; /* pixels: EXTRA of them have more than 4 bytes */
    const __m256i order = _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1, /**/
                                           0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    uint32_t x = 0;
    for (; x + STEP + EXTRA <= width; x += STEP) {
        __m256i pixels = _mm256_loadu_si256((const __m256i *)(const void *)(from + (size_t)4 * x));
        pixels = _mm256_shuffle_epi8(pixels, order);
        unsigned char *at = to + (size_t)3 * x;
        _mm_storeu_si128((__m128i *)(void *)at, _mm256_castsi256_si128(pixels));
        _mm_storeu_si128((__m128i *)(void *)(at + (size_t)3 * HALF), _mm256_extracti128_si256(pixels, 1));
    }
    return x;
}

uint32_t hr__pack_avx2(const unsigned char *from, uint32_t width, unsigned char *to) {
    return hr__cpu_has(HR__CPU_AVX2) ? pack(from, width, to) : 0;
}

#else

uint32_t hr__pack_avx2(const unsigned char *from, uint32_t width, unsigned char *to) {
    (void)from, (void)width, (void)to;
    return 0;
}

bool hr__output_planes_avx2(const struct hr__pixels *pixels, unsigned char *target) {
    (void)pixels, (void)target;
    return false;
}

#endif
