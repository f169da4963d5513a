/* SPDX-License-Identifier: Apache-2.0 */

/* The weights of a resize. They are computed in double precision, in the order of Pillow's operations, because another
 * order could round a weight in another way. This file is compiled without fused multiply-add for the same reason. */

#include "resize.h"

#include <math.h>

static double box(double x) {
    return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
}

static double triangle(double x) {
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double hamming(double x) {
    x = fabs(x);
    if (x == 0.0) return 1.0;
    if (x >= 1.0) return 0.0;
    x *= M_PI;
    return sin(x) / x * (0.54f + 0.46f * cos(x));
}

/* Keys, "Cubic convolution interpolation for digital image processing" (1981), with a = -0.5. */
static double cubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

static double sinc(double x) {
    if (x == 0.0) return 1.0;
    x *= M_PI;
    return sin(x) / x;
}

static double lanczos(double x) {
    return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
}

struct kernel {
    double (*at)(double x);
    double support; /* the kernel is 0 beyond that distance */
};

static struct kernel kernel_of(uint32_t filter) {
    switch (filter) {
    case HR_IMAGE_LANCZOS:
        return (struct kernel){lanczos, 3.0};
    case HR_IMAGE_BICUBIC:
        return (struct kernel){cubic, 2.0};
    case HR_IMAGE_BOX:
        return (struct kernel){box, 0.5};
    case HR_IMAGE_HAMMING:
        return (struct kernel){hamming, 1.0};
    default:
        return (struct kernel){triangle, 1.0};
    }
}

static double scale_of(float from, float to, uint32_t out_size) {
    return (double)(to - from) / out_size; /* the difference is one of floats, as in Pillow */
}

static double support_of(uint32_t filter, double scale) {
    return kernel_of(filter).support * (scale < 1.0 ? 1.0 : scale);
}

static uint32_t most_taps(uint32_t filter, float from, float to, uint32_t out_size) {
    return (uint32_t)ceil(support_of(filter, scale_of(from, to, out_size))) * 2 + 1;
}

uint64_t hr__taps_bytes(uint32_t filter, float from, float to, uint32_t out_size, uint32_t length) {
    uint64_t most = most_taps(filter, from, to, out_size);
    return (2 * length + most * length) * sizeof(int32_t) + most * sizeof(double);
}

static int32_t round_weight(double weight) {
    double scaled = weight * (1 << HR__WEIGHT_BITS);
    return (int32_t)(weight < 0 ? -0.5 + scaled : 0.5 + scaled);
}

/* Sets the weights of one pixel of the result. */
static void weigh(const struct kernel *kernel, double center, double inverse, int32_t first, int32_t count,
                  uint32_t most, double *exact, int32_t *weights) {
    double sum = 0.0;
    for (int32_t i = 0; i < count; i++) sum += exact[i] = kernel->at((i + first - center + 0.5) * inverse);
    for (int32_t i = 0; i < count; i++) weights[i] = round_weight(sum != 0.0 ? exact[i] / sum : exact[i]);
    for (uint32_t i = (uint32_t)count; i < most; i++) weights[i] = 0;
}

void hr__taps_fill(struct hr__taps *taps, uint32_t filter, uint32_t in_size, float from, float to, uint32_t out_size,
                   uint32_t begin, uint32_t length, void *memory) {
    struct kernel kernel = kernel_of(filter);
    double scale = scale_of(from, to, out_size), support = support_of(filter, scale);
    double inverse = 1.0 / (scale < 1.0 ? 1.0 : scale), *exact = memory;
    uint32_t most = most_taps(filter, from, to, out_size);
    *taps = (struct hr__taps){.length = length, .most = most, .first = (int32_t *)(void *)(exact + most)};
    taps->count = taps->first + length;
    taps->weights = taps->count + length;
    for (uint32_t i = 0; i < length; i++) {
        double center = from + (begin + i + 0.5) * scale;
        int32_t first = (int32_t)(center - support + 0.5), last = (int32_t)(center + support + 0.5);
        if (first < 0) first = 0;
        if (last > (int32_t)in_size) last = (int32_t)in_size;
        taps->first[i] = first;
        taps->count[i] = last - first;
        weigh(&kernel, center, inverse, first, last - first, most, exact, taps->weights + (size_t)i * most);
    }
}
