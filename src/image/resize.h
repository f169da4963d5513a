/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_IMAGE_RESIZE_H
#define HR_IMAGE_RESIZE_H

#include "image.h"

/*
 * Pillow's resize (Image.resize with a filter other than NEAREST): a weighted sum of pixels along rows and one along
 * columns, with bytes between the two passes. Weights are computed as doubles, and rounded to 22 bits after the binary
 * point; a sum is rounded to the nearest byte.
 */

enum { HR__WEIGHT_BITS = 22 };

/* The sums of one pass. Each pixel of its result is the sum of `count[i]` pixels from `first[i]` on, with `weights[i *
 * most]` and those that follow, of which the rest is 0. */
struct hr__taps {
    uint32_t length, most; /* pixels of the result; maximum of `count` */
    int32_t *first, *count, *weights;
};

struct hr__resize {
    uint32_t in_width, in_height, out_width, out_height;
    float area[4]; /* left, upper, right, lower: what is resized */
    uint32_t filter, passes;
    struct hr__rect out; /* the part of the result that is wanted */
};

struct hr__resize_plan {
    bool is_copy;              /* the result is `in`, unchanged */
    bool has_across, has_down; /* which passes are needed */
    bool is_down_first;
    struct hr__taps across, down; /* positions count from the beginning of `in` */
    struct hr__rect in;           /* the part of the image that must be given */
    void *memory;                 /* memory of the taps */
};

/* Plans a resize whose values have been checked. The plan's memory is given back by hr__resize_done. -ENOMEM,
 * -EOVERFLOW. */
int hr__resize_plan(const struct hr__resize *resize, struct hr__scratch *scratch, struct hr__resize_plan *ret_plan);

/* Resizes `in`, the pixels of plan->in, to `out`, which has the size of the part that is wanted. -ENOMEM. */
int hr__resize_run(const struct hr__resize_plan *plan, struct hr__scratch *scratch, const struct hr__pixels *in,
                   const struct hr__pixels *out);

void hr__resize_done(struct hr__resize_plan *plan, struct hr__scratch *scratch);

/* taps.c: computes the taps of one pass for the pixels [begin, begin + length) of `out_size`. `memory` has
 * hr__taps_bytes. */
uint64_t hr__taps_bytes(uint32_t filter, float from, float to, uint32_t out_size, uint32_t length);
void hr__taps_fill(struct hr__taps *taps, uint32_t filter, uint32_t in_size, float from, float to, uint32_t out_size,
                   uint32_t begin, uint32_t length, void *memory);

/* One pass along rows, or along columns, for pixels of 4 bytes or 1 byte. All ways give the same bytes. */
void hr__across_c(const struct hr__taps *taps, const struct hr__pixels *in, const struct hr__pixels *out);
void hr__down_c(const struct hr__taps *taps, const struct hr__pixels *in, const struct hr__pixels *out);

/* passes_avx2.c: return false if this processor or build has no AVX2, or the pixels are too narrow; then nothing was
 * done. `scratch` is for the weights in another form. */
bool hr__across_avx2(const struct hr__taps *taps, struct hr__scratch *scratch, const struct hr__pixels *in,
                     const struct hr__pixels *out);
bool hr__down_avx2(const struct hr__taps *taps, const struct hr__pixels *in, const struct hr__pixels *out);

#endif
