/* SPDX-License-Identifier: Apache-2.0 */

/* A tile of a blur with AVX2 and FMA, whose sums are those of hr__tile_c in blur.c. */

#include "blur.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "os/os.h"

#define AVX2 __attribute__((target("avx2,fma")))

enum { LANES = 8 };

struct sums {
    __m256 left[HR__TILE_ROWS], right[HR__TILE_ROWS];
};

/* Adds the products of one row of pixels with a row of weights for each row of the tile. */
AVX2 static inline void add_row(struct sums *sums, const float *weights, uint32_t width, const float *from,
                                uint32_t first, uint32_t end) {
    for (uint32_t x = first; x < end; x++) {
        __m256 left = _mm256_loadu_ps(from + x), right = _mm256_loadu_ps(from + x + LANES);
#pragma GCC unroll 4
        for (uint32_t row = 0; row < HR__TILE_ROWS; row++) {
            __m256 weight = _mm256_broadcast_ss(weights + (size_t)(HR__TILE_ROWS - 1 - row) * width + x);
            sums->left[row] = _mm256_fmadd_ps(left, weight, sums->left[row]);
            sums->right[row] = _mm256_fmadd_ps(right, weight, sums->right[row]);
        }
    }
}

AVX2 static void make_tile(const struct hr__weights *weights, const float *from, size_t stride, hr__tile *tile) {
    struct sums sums;
#pragma GCC unroll 4
    for (uint32_t row = 0; row < HR__TILE_ROWS; row++) sums.left[row] = sums.right[row] = _mm256_setzero_ps();
    for (uint32_t y = 0; y < weights->height + HR__TILE_ROWS - 1; y++, from += stride) {
        const uint32_t *range = weights->ranges + 2 * (size_t)y;
        add_row(&sums, weights->values + (size_t)y * weights->width, weights->width, from, range[0], range[1]);
    }
#pragma GCC unroll 4
    for (uint32_t row = 0; row < HR__TILE_ROWS; row++) {
        _mm256_storeu_si256((__m256i *)(void *)(*tile)[row], _mm256_cvtps_epi32(sums.left[row]));
        _mm256_storeu_si256((__m256i *)(void *)((*tile)[row] + LANES), _mm256_cvtps_epi32(sums.right[row]));
    }
}

hr__tile_function *hr__tile_avx2(void) {
    return hr__cpu_has(HR__CPU_AVX2 | HR__CPU_FMA) ? make_tile : NULL;
}

#else

hr__tile_function *hr__tile_avx2(void) {
    return NULL;
}

#endif
