/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_IMAGE_BLUR_H
#define HR_IMAGE_BLUR_H

#include "image.h"

/* A blur, and its tiles, in C (blur.c) and with AVX2 (blur_avx2.c). */

struct hr__kernel {
    const float *weights; /* height rows of width */
    uint32_t width, height;
};

/* Blurs pixels in place. -ENOMEM. */
int hr__blur(const struct hr__pixels *pixels, const struct hr__kernel *kernel, struct hr__scratch *scratch);

enum { HR__TILE_ROWS = 4, HR__TILE_WIDTH = 16 };

/* The values of a tile, rounded. */
typedef int32_t hr__tile[HR__TILE_ROWS][HR__TILE_WIDTH];

/* A kernel with HR__TILE_ROWS - 1 rows of zeros above and below. */
struct hr__weights {
    const float *values;
    const uint32_t *ranges; /* two for each row of pixels: the first column in which it has weights that are not 0,
                               and the end of those */
    uint32_t width, height; /* size of the kernel */
};

/* Makes one tile. Its sum in row r and column c begins at from[r * stride + c]. */
typedef void hr__tile_function(const struct hr__weights *weights, const float *from, size_t stride, hr__tile *tile);

hr__tile_function hr__tile_c;
/* The same with AVX2 and FMA; NULL: this processor does not have them. */
hr__tile_function *hr__tile_avx2(void);

#endif
