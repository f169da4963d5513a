/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A blur, as torchvision computes it: torch's conv2d on floats, with mirrored borders, and the nearest byte. For its
 * bits, all products are added one after the other, with one rounding each (fma). So there is no faster way by rows and
 * columns; instead, TILE_ROWS rows of TILE_WIDTH pixels are computed together, so that each pixel that was read is used
 * for several sums.
 */

#include "blur.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* ---- the weights ---- */

/* Notes in which columns one of the rows that meet a row of pixels has weights that are not 0. */
static void find_range(const struct hr__weights *weights, uint32_t row, uint32_t *ret_range) {
    uint32_t first = weights->width, end = 0;
    for (uint32_t y = row; y < row + HR__TILE_ROWS; y++)
        for (uint32_t x = 0; x < weights->width; x++) {
            if (weights->values[(size_t)y * weights->width + x] == 0) continue;
            first = (uint32_t)hr__min(first, x);
            end = (uint32_t)hr__max(end, x + 1);
        }
    ret_range[0] = first;
    ret_range[1] = end;
}

/* Adds rows of zeros above and below, so that all rows of a tile can read the same pixels: adding a product with 0
 * changes no sum. */
static void lay_weights(struct hr__weights *weights, const struct hr__kernel *kernel, void *memory) {
    uint32_t rows = kernel->height + 2 * (HR__TILE_ROWS - 1), width = kernel->width;
    float *values = memory;
    uint32_t *ranges = (uint32_t *)(void *)(values + (size_t)rows * width);
    memset(values, 0, (size_t)rows * width * sizeof *values);
    memcpy(values + (size_t)(HR__TILE_ROWS - 1) * width, kernel->weights,
           (size_t)kernel->height * width * sizeof *values);
    *weights = (struct hr__weights){.values = values, .ranges = ranges, .width = width, .height = kernel->height};
    for (uint32_t y = 0; y < kernel->height + HR__TILE_ROWS - 1; y++) find_range(weights, y, ranges + 2 * (size_t)y);
}

/* ---- one tile ---- */

void hr__tile_c(const struct hr__weights *weights, const float *from, size_t stride, hr__tile *tile) {
    float sums[HR__TILE_ROWS][HR__TILE_WIDTH] = {{0}};
    for (uint32_t y = 0; y < weights->height + HR__TILE_ROWS - 1; y++, from += stride) {
        for (uint32_t x = weights->ranges[2 * (size_t)y]; x < weights->ranges[2 * (size_t)y + 1]; x++)
            for (uint32_t row = 0; row < HR__TILE_ROWS; row++) {
                float weight = weights->values[(size_t)(y + HR__TILE_ROWS - 1 - row) * weights->width + x];
                for (uint32_t i = 0; i < HR__TILE_WIDTH; i++) sums[row][i] = fmaf(from[x + i], weight, sums[row][i]);
            }
    }
    for (uint32_t row = 0; row < HR__TILE_ROWS; row++)
        for (uint32_t i = 0; i < HR__TILE_WIDTH; i++) (*tile)[row][i] = (int32_t)lrintf(sums[row][i]);
}

/* ---- one channel ---- */

static uint32_t mirror(int64_t at, uint32_t length) {
    if (at < 0) at = -at;
    return (uint32_t)(at < length ? at : 2 * (int64_t)length - 2 - at);
}

/* A channel as floats, with its mirrored borders, and some zeros at the right and below, which tiles may read. */
struct plane {
    float *values;
    size_t stride; /* in floats */
    uint32_t rows;
};

static void fill_plane(const struct plane *plane, const struct hr__pixels *pixels, uint32_t channel,
                       const struct hr__kernel *kernel) {
    int64_t left = kernel->width / 2, top = kernel->height / 2;
    uint32_t width = pixels->width + kernel->width - 1, height = pixels->height + kernel->height - 1;
    memset(plane->values, 0, plane->rows * plane->stride * sizeof *plane->values);
    for (uint32_t y = 0; y < height; y++) {
        const unsigned char *from = hr__row(pixels, mirror((int64_t)y - top, pixels->height)) + channel;
        float *to = plane->values + y * plane->stride;
        for (int64_t x = 0; x < left; x++) to[x] = from[(size_t)mirror(x - left, pixels->width) * pixels->pixel_bytes];
        for (uint32_t x = 0; x < pixels->width; x++) to[left + x] = from[(size_t)x * pixels->pixel_bytes];
        for (int64_t x = left + pixels->width; x < width; x++)
            to[x] = from[(size_t)mirror(x - left, pixels->width) * pixels->pixel_bytes];
    }
}

static void write_tile(const struct hr__pixels *pixels, uint32_t channel, uint32_t left, uint32_t top,
                       const hr__tile *tile) {
    uint32_t rows = (uint32_t)hr__min(HR__TILE_ROWS, pixels->height - top);
    uint32_t width = (uint32_t)hr__min(HR__TILE_WIDTH, pixels->width - left);
    for (uint32_t y = 0; y < rows; y++) {
        unsigned char *to = hr__row(pixels, top + y) + (size_t)left * pixels->pixel_bytes + channel;
        for (uint32_t x = 0; x < width; x++, to += pixels->pixel_bytes) {
            int32_t value = (*tile)[y][x];
            *to = (unsigned char)(value < 0 ? 0 : value > 255 ? 255 : value);
        }
    }
}

int hr__blur(const struct hr__pixels *pixels, const struct hr__kernel *kernel, struct hr__scratch *scratch) {
    hr__tile_function *make_tile = hr__tile_avx2();
    struct hr__weights weights;
    struct plane plane = {.stride = (size_t)pixels->width + kernel->width + HR__TILE_WIDTH,
                          .rows = pixels->height + kernel->height + HR__TILE_ROWS};
    uint64_t weight_count = (uint64_t)(kernel->height + 2 * HR__TILE_ROWS) * (kernel->width + 2);
    void *memory = hr__scratch_take(scratch, weight_count * sizeof(float));
    plane.values = hr__scratch_take(scratch, (uint64_t)plane.rows * plane.stride * sizeof(float));
    if (!make_tile) make_tile = hr__tile_c;
    if (memory && plane.values) {
        lay_weights(&weights, kernel, memory);
        for (uint32_t channel = 0; channel < (pixels->pixel_bytes == 1 ? 1 : 3); channel++) {
            fill_plane(&plane, pixels, channel, kernel);
            for (uint32_t y = 0; y < pixels->height; y += HR__TILE_ROWS)
                for (uint32_t x = 0; x < pixels->width; x += HR__TILE_WIDTH) {
                    hr__tile tile;
                    make_tile(&weights, plane.values + y * plane.stride + x, plane.stride, &tile);
                    write_tile(pixels, channel, x, y, (const hr__tile *)&tile);
                }
        }
    }
    hr__scratch_give(scratch, memory);
    hr__scratch_give(scratch, plane.values);
    return memory && plane.values ? 0 : -ENOMEM;
}
