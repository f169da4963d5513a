/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Changes of colours, as Pillow's ImageEnhance and torchvision's adjust_hue make them. This file is compiled without
 * fused multiply-add, which would round other values.
 */

#include "image.h"

/* Pillow's luma: the weights of ITU-R BT.601, rounded to 16 bits. */
static unsigned luma(const unsigned char *pixel) {
    return (pixel[0] * 19595U + pixel[1] * 38470U + pixel[2] * 7471U + 0x8000) >> 16;
}

void hr__grey(const struct hr__pixels *from, const struct hr__pixels *to) {
    for (uint32_t y = 0; y < to->height; y++) {
        const unsigned char *in = hr__row(from, y);
        unsigned char *out = hr__row(to, y);
        for (uint32_t x = 0; x < to->width; x++) out[x] = (unsigned char)luma(in + (size_t)4 * x);
    }
}

/* Image.blend of two values: from the first (factor 0) to the second (1) and beyond. */
static unsigned char blend(int first, int second, float factor) {
    if (factor == 0) return (unsigned char)first;
    if (factor == 1) return (unsigned char)second;
    float product = factor * (float)(second - first);
    float value = (float)first + product;
    if (factor >= 0 && factor <= 1) return (unsigned char)value;
    return value <= 0 ? 0 : value >= 255 ? 255 : (unsigned char)value;
}

static void look_up(const struct hr__pixels *pixels, const unsigned char table[256]) {
    size_t bytes = (size_t)pixels->width * pixels->pixel_bytes;
    for (uint32_t y = 0; y < pixels->height; y++) {
        unsigned char *row = hr__row(pixels, y);
        for (size_t i = 0; i < bytes; i++) row[i] = table[row[i]];
    }
}

/* Blends each value with the same grey. */
static void blend_with(const struct hr__pixels *pixels, int grey, float factor) {
    unsigned char table[256];
    for (int i = 0; i < 256; i++) table[i] = blend(grey, i, factor);
    look_up(pixels, table);
}

void hr__brightness(const struct hr__pixels *pixels, float factor) {
    blend_with(pixels, 0, factor);
}

void hr__contrast(const struct hr__pixels *pixels, float factor) {
    uint64_t sum = 0;
    for (uint32_t y = 0; y < pixels->height; y++) {
        const unsigned char *row = hr__row(pixels, y);
        for (uint32_t x = 0; x < pixels->width; x++)
            sum += pixels->pixel_bytes == 1 ? row[x] : luma(row + (size_t)4 * x);
    }
    double mean = (double)sum / (double)((uint64_t)pixels->width * pixels->height);
    blend_with(pixels, (int)(mean + 0.5), factor);
}

void hr__saturation(const struct hr__pixels *pixels, float factor) {
    if (pixels->pixel_bytes == 1) return; /* grey stays grey */
    for (uint32_t y = 0; y < pixels->height; y++) {
        unsigned char *pixel = hr__row(pixels, y);
        for (uint32_t x = 0; x < pixels->width; x++, pixel += 4) {
            int grey = (int)luma(pixel);
            for (int c = 0; c < 3; c++) pixel[c] = blend(grey, pixel[c], factor);
        }
    }
}

static int clip(int value) {
    return value < 0 ? 0 : value > 255 ? 255 : value;
}

/* The conversions between RGB and HSV (Smith, "Color gamut transform pairs", 1978), with Pillow's mixture of float and
 * double. */
static void to_hsv(const unsigned char *rgb, int hsv[3]) {
    int red = rgb[0], green = rgb[1], blue = rgb[2];
    int most = red > green ? (red > blue ? red : blue) : (green > blue ? green : blue);
    int least = red < green ? (red < blue ? red : blue) : (green < blue ? green : blue);
    hsv[0] = hsv[1] = 0;
    hsv[2] = most;
    if (most == least) return;
    float range = (float)(most - least), saturation = range / (float)most, hue;
    float red_part = (float)(most - red) / range, green_part = (float)(most - green) / range;
    float blue_part = (float)(most - blue) / range;
    if (red == most)
        hue = blue_part - green_part;
    else if (green == most)
        hue = (float)(2.0 + (double)red_part - (double)blue_part);
    else
        hue = (float)(4.0 + (double)green_part - (double)red_part);
    double turn = (double)hue / 6.0 + 1.0;
    hue = (float)(turn - (double)(int64_t)turn);
    hsv[0] = clip((int)((double)hue * 255.0));
    hsv[1] = clip((int)((double)saturation * 255.0));
}

static int nearest(double value) {
    return clip((int)(value + 0.5));
}

static void from_hsv(const int hsv[3], unsigned char *rgb) {
    int value = hsv[2];
    if (hsv[1] == 0) {
        rgb[0] = rgb[1] = rgb[2] = (unsigned char)value;
        return;
    }
    double sixth = (float)hsv[0] * 6.0 / 255.0;
    float saturation = (float)(hsv[1] / 255.0);
    int side = (int)sixth;
    float rest = (float)(sixth - (double)(float)side);
    int p = nearest((double)(float)value * (1.0 - (double)saturation));
    int q = nearest((double)(float)value * (1.0 - (double)(saturation * rest)));
    int t = nearest((double)(float)value * (1.0 - (double)saturation * (1.0 - (double)rest)));
    const int sides[6][3] = {{value, t, p}, {q, value, p}, {p, value, t}, {p, q, value}, {t, p, value}, {value, p, q}};
    for (int c = 0; c < 3; c++) rgb[c] = (unsigned char)sides[side % 6][c];
}

void hr__hue(const struct hr__pixels *pixels, uint32_t shift) {
    if (pixels->pixel_bytes == 1) return; /* grey has no hue */
    for (uint32_t y = 0; y < pixels->height; y++) {
        unsigned char *pixel = hr__row(pixels, y);
        for (uint32_t x = 0; x < pixels->width; x++, pixel += 4) {
            int hsv[3];
            to_hsv(pixel, hsv);
            hsv[0] = (int)(((uint32_t)hsv[0] + shift) & 255);
            from_hsv(hsv, pixel);
        }
    }
}
