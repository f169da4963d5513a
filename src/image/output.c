/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the pixels of a result to their final place. */

#include "image.h"

#include <string.h>

/* ---- bytes, pixel by pixel ---- */

static void write_packed_row(const unsigned char *from, uint32_t width, uint32_t pixel_bytes, unsigned char *to) {
    if (pixel_bytes == 1) {
        for (uint32_t x = 0; x < width; x++, to += 3) to[0] = to[1] = to[2] = from[x];
        return;
    }
    for (uint32_t x = hr__pack_avx2(from, width, to); x < width; x++)
        memcpy(to + (size_t)3 * x, from + (size_t)4 * x, 3);
}

static void write_padded_row(const unsigned char *from, uint32_t width, uint32_t pixel_bytes, unsigned char *to) {
    enum { FULL = 255 };
    for (uint32_t x = 0; x < width; x++, from += pixel_bytes, to += 4) {
        bool is_grey = pixel_bytes == 1;
        to[0] = from[0];
        to[1] = is_grey ? from[0] : from[1];
        to[2] = is_grey ? from[0] : from[2];
        to[3] = FULL;
    }
}

static void write_pixels(const struct hr_image_recipe *recipe, const struct hr__pixels *pixels, uint32_t channels) {
    uint32_t width = pixels->width, pixel_bytes = pixels->pixel_bytes;
    size_t row_bytes = (size_t)width * (channels == 1 ? 1 : recipe->layout == HR_IMAGE_PACKED ? 3 : 4);
    unsigned char *to = recipe->target;
    for (uint32_t y = 0; y < pixels->height; y++, to += row_bytes) {
        if (channels == 1)
            memcpy(to, hr__row(pixels, y), width);
        else if (recipe->layout == HR_IMAGE_PACKED)
            write_packed_row(hr__row(pixels, y), width, pixel_bytes, to);
        else
            write_padded_row(hr__row(pixels, y), width, pixel_bytes, to);
    }
}

/* ---- planes ---- */

/* Writes one plane: items of a type, from a table of 256 of them, or the bytes themselves. */
#define DEFINE_PLANE(type, name)                                                                                       \
    static void name(const struct hr__pixels *pixels, uint32_t channel, const void *table, void *target) {             \
        const type *items = table;                                                                                     \
        type *to = target;                                                                                             \
        uint32_t step = pixels->pixel_bytes;                                                                           \
        for (uint32_t y = 0; y < pixels->height; y++) {                                                                \
            const unsigned char *from = hr__row(pixels, y) + channel;                                                  \
            for (uint32_t x = 0; x < pixels->width; x++) *to++ = items[from[(size_t)x * step]];                        \
        }                                                                                                              \
    }
DEFINE_PLANE(uint8_t, write_plane_8)
DEFINE_PLANE(uint16_t, write_plane_16)
DEFINE_PLANE(uint32_t, write_plane_32)
DEFINE_PLANE(uint64_t, write_plane_64)

static void write_bytes(const struct hr__pixels *pixels, uint32_t channel, void *target) {
    unsigned char *to = target;
    for (uint32_t y = 0; y < pixels->height; y++) {
        const unsigned char *from = hr__row(pixels, y) + channel;
        for (uint32_t x = 0; x < pixels->width; x++) *to++ = from[(size_t)x * pixels->pixel_bytes];
    }
}

static void write_plane(const struct hr_image_recipe *recipe, const struct hr__pixels *pixels, uint32_t channel,
                        const void *table, void *target) {
    if (!table)
        write_bytes(pixels, channel, target);
    else if (recipe->item_bytes == 1)
        write_plane_8(pixels, channel, table, target);
    else if (recipe->item_bytes == 2)
        write_plane_16(pixels, channel, table, target);
    else if (recipe->item_bytes == 4)
        write_plane_32(pixels, channel, table, target);
    else
        write_plane_64(pixels, channel, table, target);
}

static void write_planes(const struct hr_image_recipe *recipe, const struct hr__pixels *pixels, uint32_t channels) {
    uint32_t count = recipe->table ? recipe->table_channels : channels;
    size_t plane_bytes = (size_t)pixels->width * pixels->height * recipe->item_bytes;
    if (!recipe->table && count == 3 && hr__output_planes_avx2(pixels, recipe->target)) return;
    for (uint32_t c = 0; c < count; c++) {
        const char *table = recipe->table;
        if (table) table += (size_t)c * 256 * recipe->item_bytes;
        write_plane(recipe, pixels, pixels->pixel_bytes == 1 ? 0 : c, table, (char *)recipe->target + c * plane_bytes);
    }
}

void hr__output(const struct hr_image_recipe *recipe, const struct hr__pixels *pixels, uint32_t channels) {
    if (recipe->layout == HR_IMAGE_PLANES)
        write_planes(recipe, pixels, channels);
    else
        write_pixels(recipe, pixels, channels);
}
